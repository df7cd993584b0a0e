package connector

import (
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// TakesPieces reports whether the KV of a prompt may be computed and moved in pieces between two
// servers: by prefills over growing beginnings of the prompt, of which the prefix caches of both
// keep what came before. Proved is vLLM 0.32 with NIXL (loadtest/e2e/vllm): prefill computes and
// decode pulls no token twice.
func TakesPieces(from, to *pools.Server) bool { return SaysFirst(from, to) }

// KeepsPieces reports whether a server's prefix cache is known to keep a piece of a prompt, which it
// computes by itself, until the next one comes: vLLM's since 0.32 (loadtest/e2e/vllm).
func KeepsPieces(s *pools.Server) bool { return Of(s).Aggregated && s.IsVLLM(32) }

// keptOfPrompt are the fields of a request that say whose KV its tokens have, and when its turn is.
var keptOfPrompt = []string{"model", "cache_salt", "priority"}

// NewPiece names the transfer of the KV of a prompt's leading tokens. Its decode leg leaves the KV in
// decode's prefix cache, where the leg of the whole prompt finds it.
func NewPiece(request api.Body, ids []uint32, from, to *pools.Server) *Transfer {
	return NewTransfer(Request{Dialect: api.Completions, Body: PieceBody(request, ids)}, from, to)
}

// PieceBody is the request that leaves the KV of a prompt's leading tokens in a server's prefix cache:
// a completion of one token by their ids, whatever the API of the request.
func PieceBody(request api.Body, ids []uint32) api.Body {
	edits := []api.Edit{api.Set("prompt", idList(ids)), api.Set("max_tokens", number(1)), api.Set("temperature", number(0))}
	for _, field := range keptOfPrompt {
		if value := request.Get(field); !value.Null() {
			edits = append(edits, api.Set(field, value))
		}
	}
	return api.Body{}.With(edits...)
}
