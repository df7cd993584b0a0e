package pools

import (
	"slices"

	"github.com/tandem-gateway/tandem/pools/address"
)

// KVHosts are the hosts that the server's hand-offs may name: its own and that of its
// kv-address.
func (s Spec) KVHosts() []string {
	bare := s
	bare.KVAddress = ""
	own, _, _ := bare.kvHostPort(0) // the spec was validated
	other, _, _ := s.kvHostPort(0)
	return slices.Compact([]string{own, other})
}

// JudgeHost returns whose a host is that the server's hand-off names: the server's own, if it
// is its host or that of its kv-address.
func (s *Server) JudgeHost(host string, reader *Server) address.Ownership {
	return s.addresses.Judge(host, s.KVHosts(), reader.addresses)
}

// NoteForeign remembers that a hand-off named a foreign host, and reports whether that is
// news in this incarnation of the server.
func (l *live) NoteForeign(host string) bool { return l.addresses.NoteForeign(host, l.Life()) }
