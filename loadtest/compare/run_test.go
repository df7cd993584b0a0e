package compare

import "testing"

// The simulator serves all requests of the trace, so all are sent to the engines too, also where these are so slow
// that the last one is due after the time that a load takes by default.
func TestTraceLoad_GoesToTheLastRequest(t *testing.T) {
	t.Parallel()
	cfg := Config{Trace: "trace.jsonl", Limit: 350, Shape: DefaultShape()}
	cfg.Shape.Scale = 10
	l := traceLoad(&cfg, "http://gateway", 1)
	if l.Duration != 0 || l.Limit != 350 || l.TimeScale != 10/cfg.Shape.Speedup {
		t.Errorf("%d requests within %v at %v times the trace's", l.Limit, l.Duration, l.TimeScale)
	}
}
