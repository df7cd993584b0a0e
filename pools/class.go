package pools

import "hash/fnv"

// class is a number that servers share when one can use the KV of another: the same
// connector, weights and KV layout. Only such servers make a pair, so that a rollout
// passes through both pools without mixing.
func (s Spec) class() uint64 {
	h := fnv.New64a()
	for _, part := range []string{s.Connector, s.Weights, s.Layout} {
		_, _ = h.Write([]byte(part)) // never fails (hash.Hash)
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}

// Class returns the class of servers with which this one may be paired.
func (s *Server) Class() uint64 { return s.class }
