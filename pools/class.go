package pools

import "hash/fnv"

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
// what the configuration says of it; where that is silent, what the engine tells of its
// version and its KV cache.
func (s *Server) Class() uint64 {
	told, c := s.told.Load(), s.class
	if s.Spec.Connector == "" {
		c ^= told.connector
	}
	if s.Layout == "" {
		c ^= told.kv
	}
	return c
}

// configuredClass is the part of the class that the configuration says.
func configuredClass(spec Spec) uint64 {
	c := class(spec.Weights, spec.Layout)
	if spec.Connector != "" {
		c ^= class(spec.Connector)
	}
	return c
}
