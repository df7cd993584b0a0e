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

// Nor is it given away before it is free: where half of a server's KV is one long prompt's, those that counted on twice
// as much of what comes free waited for each other in engines' queues, as all do behind gateways that do not look.
func TestRun_LittleKVIsNotCountedOnTooSoon(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 350)
	if err != nil {
		t.Fatal(err)
	}
	keepUp(t, trace, scenario(t, "testdata/little-kv-conversation.yaml"), "dynamo-conditional-hot-0.1", 0.75, "tandem-late", "tandem-pieces")
}
