package engine

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
)

// prefixPath is where an engine gives away the beginning of a prompt that it has in its
// cache (the offloading connector's remote_kv_source). Nothing is promised: what is not
// there is computed by the engine that asked.
const prefixPath = "/sim/kv/prefix"

// prefixCall names the prompt, since engines hash blocks each in its own way; Have is
// the answer, in blocks.
type prefixCall struct {
	Request string  `json:"kv_request_id"`
	Tokens  []int32 `json:"tokens,omitempty"`
	Adapter string  `json:"adapter,omitempty"`
	Salt    string  `json:"salt,omitempty"`
	Have    int     `json:"have"`
}

// pullPrefix takes what the third engine has of a sequence's prompt, once it has room.
func (r *rank) pullPrefix(ctx context.Context, s *sequence) {
	var got room
	select {
	case <-ctx.Done():
		return
	case got = <-s.admitted:
	}
	ask, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	out, err := call[prefixCall](ask, r.side.client, s.source.host, s.source.port, prefixPath, prefixCall{
		Request: s.source.id, Tokens: s.tokens[:s.prompt], Adapter: s.adapter, Salt: s.salt,
	})
	if err != nil && ctx.Err() == nil {
		slog.Warn("no prefix from a third engine", "engine_id", r.id, "error", err)
	}
	r.found(ctx, s, got, min(out.Have, len(got.want)))
}

// servePrefix lets the leading blocks flow that a rank has, and keeps them meanwhile.
func servePrefix(w http.ResponseWriter, req *http.Request, ranks []*rank) {
	var in prefixCall
	if err := json.NewDecoder(req.Body).Decode(&in); err != nil || in.Request == "" {
		http.Error(w, "not a prefix request", http.StatusBadRequest)
		return
	}
	r := ranks[0]
	blocks := r.holdPrefix(&in)
	// The error is the reader's leaving.
	_ = r.outgoing.transfer(req.Context(), float64(len(blocks))*r.blockBytes())
	r.mu.Lock()
	r.cache.release(blocks)
	r.mu.Unlock()
	r.signal()
	writeJSON(w, http.StatusOK, prefixCall{Have: len(blocks)})
}

func (r *rank) holdPrefix(in *prefixCall) (blocks []*block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size, parent := r.cfg.BlockSize, r.cache.root
	for i := range len(in.Tokens) / size {
		parent = hashBlock(parent, in.Tokens[i*size:(i+1)*size], extraKeys(i, in.Adapter, in.Salt))
		b := r.cache.lookup(parent)
		if b == nil {
			break
		}
		r.cache.hold(b)
		blocks = append(blocks, b)
	}
	return blocks
}
