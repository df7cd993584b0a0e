package gateway

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// observed keeps what an observer is told.
type observed struct {
	mu    sync.Mutex // guards what follows
	seen  []Arrival
	calls []string
}

func (o *observed) observe(a Arrival) Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, a)
	return o
}

func (o *observed) say(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, fmt.Sprintf(format, args...))
}

func (o *observed) RecordFirstToken(prompt, computed int) { o.say("answered %d %d", prompt, computed) }
func (o *observed) RecordEnd(output int, failed bool)     { o.say("ended %d %v", output, failed) }
func (o *observed) RecordRefusal()                        { o.say("refused") }

func (o *observed) take() (string, []Arrival) {
	o.mu.Lock()
	defer o.mu.Unlock()
	told, seen := strings.Join(o.calls, ", "), o.seen
	o.calls, o.seen = nil, nil
	return told, seen
}

// The planner learns of each request that is let in: how it comes, when it has its first
// token, and how it ended.
func TestObserver(t *testing.T) {
	var o observed
	e := complete()
	of := usual(t, "ada may-set=[objectives]", "one requests-per-minute=1")
	of.before = func(s *Server) { s.SetObserver(o.observe) }
	g := run(t, of, e.roundTrip, alone(t))
	const whole, streaming = `{"model":"m","prompt":"hi there","max_tokens":9}`, `{"model":"m","prompt":"hi there","max_tokens":9,"stream":true}`
	for _, x := range []struct {
		name, body, key string
		status          int // of the engine
		kind, answer    string
		told            string
	}{
		{"whole", whole, "ada", 200, "application/json", completion, "answered 2 2, ended 3 false"},
		{"streamed", streaming, "ada", 200, "text/event-stream", streamed, "answered 2 2, ended 3 false"},
		{"without usage", whole, "ada", 200, "application/json", `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`, "answered 2 2, ended -1 false"},
		{"a stream that breaks", streaming, "ada", 200, "text/event-stream", `data: {"choices":[{"index":0,"text":"Hel","finish_reason":null}]}` + "\n\n", "answered 2 2, ended 1 true"},
		{"refused by the engine", whole, "ada", 422, "application/json", `{"error":{"message":"no"}}`, "ended -1 false"},
		{"an engine's failure", whole, "ada", 500, "application/json", `no`, "ended -1 true"},
		{"busy", whole, "ada", 503, "application/json", `no`, "refused"},
		{"not let in", `{`, "ada", 200, "application/json", completion, ""},
		{"without a key", whole, "nobody", 200, "application/json", completion, ""},
	} {
		e.answer = response(x.status, x.kind, x.answer)
		g.post(x.body, as(x.key)...)
		var told string
		var seen []Arrival
		eventually(t, x.name+": it was told how it ended", func() bool {
			more, arrivals := o.take()
			if told != "" && more != "" {
				told += ", "
			}
			told, seen = told+more, append(seen, arrivals...)
			return len(told) >= len(x.told)
		})
		if told != x.told || (len(seen) == 1) != (x.told != "") {
			t.Errorf("%s: told %q of %d, want %q", x.name, told, len(seen), x.told)
		}
	}

	e.answer = response(200, "application/json", completion)
	g.post(streaming, append(as("ada"), "X-Tandem-Ttft-Slo-Ms", "700", "X-Tandem-Itl-Slo-Ms", "30")...)
	_, seen := o.take()
	if len(seen) != 1 {
		t.Fatalf("%+v", seen)
	}
	first := seen[0]
	if first.Model != "m" || first.PromptTokens != 2 || first.OutputTokens <= 0 || first.OutputTokens > 9 || !first.Stream || first.TTFT != 700*time.Millisecond || first.ITL != 30*time.Millisecond || first.Fingerprint == 0 {
		t.Errorf("%+v", first)
	}
	g.post(whole, as("one")...)
	o.take()
	if got := g.post(whole, as("one")...); got.status != 429 {
		t.Errorf("%d", got.status)
	}
	if told, seen := o.take(); told != "" || len(seen) != 0 {
		t.Errorf("a key's limit is no demand: %q %+v", told, seen)
	}
}
