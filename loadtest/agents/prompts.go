package agents

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

const (
	modelName   = "agents"
	blockTokens = 16
	// rendersAll is a version of the engine that has render paths for all APIs.
	rendersAll = "0.33.0"
)

// request is one turn: its body, and what the engines make of it.
type request struct {
	conversation *conversation
	turn         int
	body         []byte
	tokens       int      // of the prompt
	blocks       []uint64 // its full blocks, each by a hash of it and all before it
}

// turnKey names a turn of a workload.
type turnKey struct {
	conversation *conversation
	turn         int
}

// requests are all turns of a workload on one API.
type requests struct {
	api      *api
	workload *workload
	byTurn   map[turnKey]*request
	distinct int // blocks: the working set
	longest  int // tokens of the longest prompt and its answer
}

// newRequests writes the bodies of all turns, and asks an engine for their exact tokens.
func newRequests(ctx context.Context, a *api, w *workload) (*requests, error) {
	cfg := engine.Default()
	cfg.Model, cfg.Version, cfg.TimeScale = modelName, rendersAll, 0
	e, err := engine.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = e.Close() }() // it only renders
	all := &requests{api: a, workload: w, byTurn: make(map[turnKey]*request)}
	head := a.head(modelName, w)
	distinct := make(map[uint64]struct{})
	for _, c := range w.all() {
		for turn := range c.steps {
			r := &request{conversation: c, turn: turn, body: a.body(head, c, turn)}
			ids, err := render(ctx, e.URL()+a.path+"/render", r.body)
			if err != nil {
				return nil, fmt.Errorf("render a prompt of %s: %w", a.name, err)
			}
			r.tokens, r.blocks = len(ids), chain(ids)
			for _, b := range r.blocks {
				distinct[b] = struct{}{}
			}
			all.longest = max(all.longest, r.tokens+c.steps[turn].answer)
			all.byTurn[turnKey{c, turn}] = r
		}
	}
	all.distinct = len(distinct)
	return all, nil
}

// body is the request of a turn, with all before it.
func (a *api) body(head []byte, c *conversation, turn int) []byte {
	var b bytes.Buffer
	b.Write(head)
	steps := c.upTo(turn)
	for i, s := range steps {
		a.step(&b, s, i == len(steps)-1)
	}
	fmt.Fprintf(&b, a.tail, c.steps[turn].answer)
	return b.Bytes()
}

func render(ctx context.Context, url string, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	var rendered struct {
		IDs []uint32 `json:"token_ids"`
	}
	err = json.NewDecoder(resp.Body).Decode(&rendered)
	return rendered.IDs, err
}

// chain hashes the full blocks of a prompt.
func chain(ids []uint32) (blocks []uint64) {
	h := xxhash.New()
	var raw []byte
	for block := range slices.Chunk(ids, blockTokens) {
		if len(block) < blockTokens {
			break
		}
		raw = raw[:0]
		for _, id := range block {
			raw = binary.LittleEndian.AppendUint32(raw, id)
		}
		_, _ = h.Write(raw) // it never fails
		blocks = append(blocks, h.Sum64())
	}
	return blocks
}

// blocksPerServer is the size of each prefill server's cache in a cluster of so many.
func (r *requests) blocksPerServer(cache string, servers int) int {
	least := (r.longest + 2*blockTokens) / blockTokens
	if cache == Ample {
		return max(least, r.distinct+r.distinct/4) + least
	}
	return max(least, r.distinct/2/servers)
}
