package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// The side channel is where engines move KV between each other: the stand-in for
// NIXL's handshake and reads, over HTTP on a port of its own. A gateway never talks
// to it, and faults of the API do not touch it. Each call posts a kvPull.
const (
	pullPath      = "/sim/kv/pull"      // answers kvContent
	heartbeatPath = "/sim/kv/heartbeat" // extends the lease
	releasePath   = "/sim/kv/release"   // this hand-off will not be read
	meetPath      = "/sim/kv/meet"      // joins a room, answers kvContent
	namedPath     = "/sim/kv/named"     // waits for a hold by its name, answers kvContent
)

// kvPull names the KV of one prefill. Skip is how many leading blocks the reader has
// already: they are checked but not sent.
type kvPull struct {
	EngineID  string  `json:"engine_id"`
	RequestID string  `json:"request_id"`
	BlockIDs  []int32 `json:"block_ids,omitempty"`
	Skip      int     `json:"skip_blocks,omitempty"`
	Rack      string  `json:"rack,omitempty"` // where the reader stands
	Room      string  `json:"room,omitempty"` // of a meeting, instead of the ids
	Rank      int     `json:"rank,omitempty"` // of the prefill that is met; -1: by the room
	Reader    string  `json:"reader,omitempty"`
}

// kvContent says what the named blocks hold: for each the digest of all tokens up to
// its end. Of a refusal it says why.
type kvContent struct {
	Digests  []past `json:"digests,omitempty"`
	Cached   int    `json:"cached,omitempty"` // prompt tokens that prefill did not compute
	Rejected string `json:"rejected,omitempty"`
}

// sideChannel is a rank's view of the side channel: where its own KV is to be
// fetched, and a client for that of others.
type sideChannel struct {
	host   string
	port   int
	client *http.Client
}

// pullTimeout bounds one call: a decode must not wait for ever for a dead engine.
const pullTimeout = 60 * time.Second

// call posts to another engine's side channel.
func (c *sideChannel) call(ctx context.Context, host string, port int, path string, in kvPull) (kvContent, error) {
	return call[kvContent](ctx, c.client, host, port, path, in)
}

// call posts in and returns what comes back.
func call[Out, In any](ctx context.Context, client *http.Client, host string, port int, path string, in In) (out Out, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("encode %s: %w", path, err)
	}
	url := "http://" + net.JoinHostPort(host, strconv.Itoa(port)) + path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return out, fmt.Errorf("make %s: %w", path, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return out, fmt.Errorf("answer of %s, status %d: %w", url, resp.StatusCode, err)
	}
	return out, nil
}

// sideChannelHandler answers other engines for all ranks of this one.
func sideChannelHandler(ranks []*rank) http.Handler {
	serve := map[string]func(context.Context, *rank, kvPull) kvContent{
		pullPath: servePull,
		heartbeatPath: func(_ context.Context, r *rank, in kvPull) kvContent {
			r.extendLease(in.RequestID)
			return kvContent{}
		},
		releasePath: func(_ context.Context, r *rank, in kvPull) kvContent {
			r.releaseHeld(in.RequestID)
			return kvContent{}
		},
	}
	kept := &store{held: map[past]bool{}}
	meets := map[string]func(context.Context, *rank, kvPull) kvContent{meetPath: serveBootstrap, namedPath: serveNamed}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case queryPath:
			answerQuery(w, ranks)
			return
		case prefixPath:
			servePrefix(w, req, ranks)
			return
		case storePath:
			kept.ServeHTTP(w, req)
			return
		}
		answer := serve[req.URL.Path]
		var in kvPull
		if err := json.NewDecoder(req.Body).Decode(&in); err != nil || answer == nil && meets[req.URL.Path] == nil {
			http.Error(w, "not a KV request", http.StatusBadRequest)
			return
		}
		if meet := meets[req.URL.Path]; meet != nil {
			answerKV(w, meet(req.Context(), rankOf(ranks, in), in))
			return
		}
		for _, r := range ranks {
			if r.id != in.EngineID {
				continue
			}
			answerKV(w, answer(req.Context(), r, in))
			return
		}
		ranks[0].reject(rejectedEngine)
		answerKV(w, kvContent{Rejected: rejectedEngine})
	})
}

// queryPath is Mooncake's bootstrap server: which engines are behind the address.
const queryPath = "/query"

func answerQuery(w http.ResponseWriter, ranks []*rank) {
	engines := map[string]map[string]string{}
	for _, r := range ranks {
		engines[strconv.Itoa(r.index)] = map[string]string{"engine_id": r.id}
	}
	writeJSON(w, http.StatusOK, engines)
}

func answerKV(w http.ResponseWriter, out kvContent) {
	status := http.StatusOK
	if out.Rejected != "" {
		status = http.StatusConflict
	}
	writeJSON(w, status, out)
}

// servePull checks the request, lets the bytes flow over this engine's link, and
// ends the hand-off. A reader that goes away before the end leaves it unread.
func servePull(ctx context.Context, r *rank, in kvPull) kvContent {
	digests, rejection := r.beginRead(in.RequestID, in.BlockIDs)
	if rejection != "" {
		return kvContent{Rejected: rejection}
	}
	link := r.outgoing
	if r.cfg.UplinkBytesPerSecond > 0 && in.Rack != "" && r.cfg.Rack != "" && in.Rack != r.cfg.Rack {
		link = r.uplink
	}
	err := link.transfer(ctx, float64(max(0, len(in.BlockIDs)-in.Skip))*r.blockBytes())
	r.endRead(in.RequestID, err == nil)
	return kvContent{Digests: digests}
}
