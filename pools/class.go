package pools

import (
	"context"
	"encoding/json"
	"hash/fnv"
)

// class is a number that servers share when one can use the KV of another: the same
// connector, weights and KV layout. Only such servers make a pair, so that a rollout
// passes through both pools without mixing.
func class(parts ...string) uint64 {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part)) // never fails (hash.Hash)
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}

// Class returns the class of servers with which this one may be paired. The layout is
// what the configuration says of it; where that is silent, engines of different
// versions differ.
func (s *Server) Class() uint64 {
	if s.Layout != "" {
		return s.class
	}
	return s.class ^ s.engineVersion.Load()
}

// askVersion learns the engine's version, until the engine has told it in this life of
// the server. Engines other than vLLM tell none.
func (p *prober) askVersion(ctx context.Context, was Health) {
	if was.Up && p.live.engineVersion.Load() != 0 {
		return
	}
	var told struct {
		Version string `json:"version"`
	}
	body, err := p.get(ctx, p.spec.URL+"/version")
	if err != nil || json.Unmarshal(body, &told) != nil || told.Version == "" {
		p.live.engineVersion.Store(0)
		return
	}
	p.live.engineVersion.Store(class(told.Version))
}
