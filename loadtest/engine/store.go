package engine

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// A store is where engines of connector "store" leave the KV of every prompt and look
// for it (LMCache, a shared disk). One engine's side channel is the store of all; it
// holds digests, which stand for blocks.
type store struct {
	mu     sync.Mutex
	held   map[past]bool
	oldest []past
}

// storedBlocks bounds a store.
const storedBlocks = 1 << 18

// storeCall asks how many leading blocks are there, and puts blocks.
type storeCall struct {
	Put  []past `json:"put,omitempty"`
	Want []past `json:"want,omitempty"`
	Have int    `json:"have"`
}

func (s *store) put(blocks []past) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range blocks {
		if s.held[b] {
			continue
		}
		s.held[b] = true
		s.oldest = append(s.oldest, b)
	}
	for len(s.oldest) > storedBlocks {
		delete(s.held, s.oldest[0])
		s.oldest = s.oldest[1:]
	}
}

func (s *store) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.oldest = map[past]bool{}, nil
}

func (s *store) leading(blocks []past) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(blocks) && s.held[blocks[n]] {
		n++
	}
	return n
}

// storePath is where the store answers.
const storePath = "/sim/kv/store"

// ServeHTTP answers storeCalls; DELETE makes the store forget everything, without a word to anyone.
func (s *store) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodDelete {
		s.clear()
		return
	}
	var in storeCall
	if err := json.NewDecoder(req.Body).Decode(&in); err != nil {
		http.Error(w, "not a store request", http.StatusBadRequest)
		return
	}
	have := s.leading(in.Want)
	s.put(in.Put)
	writeJSON(w, http.StatusOK, storeCall{Have: have})
}

// askStore calls the store; one that cannot be reached has nothing.
func (r *rank) askStore(ctx context.Context, in storeCall) (have int) {
	host, text, err := net.SplitHostPort(r.cfg.Store)
	port, errPort := strconv.Atoi(text)
	if err != nil || errPort != nil {
		host, port = r.side.host, r.side.port
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	out, err := call[storeCall](ctx, r.side.client, host, port, storePath, in)
	if err != nil && ctx.Err() == nil {
		slog.Warn("no answer from the store", "engine_id", r.id, "error", err)
	}
	return out.Have
}

// leave puts the full blocks of a finished prompt that the store lacks into it, before the answer.
func (j *job) leave(ctx context.Context, p piece) {
	r := j.rank
	if r.cfg.Connector != ConnectorStore || p.finish != finishStop && p.finish != finishLength {
		return
	}
	s := j.sequences[p.at]
	full := s.prompt / r.cfg.BlockSize
	// The error is the client's leaving, which its reader will notice.
	_ = r.outgoing.transfer(ctx, float64(full)*r.blockBytes())
	had := r.askStore(ctx, storeCall{Want: s.pasts[:full], Put: s.pasts[:full]})
	r.mu.Lock()
	r.cache.reportPut(s, had, full)
	r.mu.Unlock()
	r.signal()
}

// lookUp takes what the store has of a sequence's prompt, once it has room. What is
// missing is computed here, without an error.
func (r *rank) lookUp(ctx context.Context, s *sequence) {
	var got room
	select {
	case <-ctx.Done():
		return
	case got = <-s.admitted:
	}
	r.found(ctx, s, got, r.askStore(ctx, storeCall{Want: got.want}))
}

// found takes as many leading blocks of a sequence's prompt from elsewhere, over this
// engine's link; the rest is computed.
func (r *rank) found(ctx context.Context, s *sequence, got room, have int) {
	have = max(have, got.have)
	if r.incoming.transfer(ctx, float64(have-got.have)*r.blockBytes()) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.state != loading {
		return
	}
	delete(r.loading, s)
	s.fetches = false
	s.cancel()
	r.counts.prefixPulled += have - got.have
	if have < len(got.want) && s.decodeLeg {
		r.counts.recomputed[recomputeMissing]++
	}
	s.pulled = have == len(got.want)
	s.cached = max(s.cached, have*r.cfg.BlockSize)
	s.computed = min(max(s.computed, have*r.cfg.BlockSize), s.prompt-1)
	r.storeLocked(s)
	r.enqueueLocked(s)
}
