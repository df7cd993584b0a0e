package policy

import "testing"

// Where decode's KV is nearly all taken, little of it may stand empty: gateways that kept a server for a large request
// until all of its room was there, and let decode compute prompts meanwhile, took five times as long as those that
// leave the waiting to engines.
func TestRun_LittleKVIsNotKeptEmpty(t *testing.T) {
	s := scenario(t, "testdata/little-kv.yaml")
	trace := s.workload().trace(s.Name, 1, 3000)
	keepUp(t, trace, s, "least-load", 1, "tandem-late", "tandem-pieces")
}
