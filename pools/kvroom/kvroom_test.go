package kvroom

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	capacity = 262_144.
	prompt   = 90_000
)

var now = time.Unix(1_800_000_000, 0)

// What prompts share of their KV shows in what the engine has in use. Too little is rather seen to be shared than too
// much.
func TestSharing_KVThatPromptsShareIsInUseOnce(t *testing.T) {
	for name, c := range map[string]struct {
		requests, computing int
		running, waiting    float64
		used                float64 // of the KV
		answers             int     // tokens of answers that each request is taken to have
		want                float64 // tokens in use
	}{
		"all have one beginning":         {requests: 10, running: 10, used: 0.36, want: 0.36 * capacity},
		"each has its own":               {requests: 2, running: 2, used: 0.7, want: 2 * prompt},
		"answers are not shared":         {requests: 10, running: 10, used: 0.36, answers: 1000, want: 0.36 * capacity},
		"answers are longer than all":    {requests: 10, running: 10, used: 0.36, answers: prompt, want: 0.18*capacity + 10*prompt},
		"half of them wait":              {requests: 10, running: 5, waiting: 5, used: 0.36, want: 2 * 0.36 * capacity},
		"it is short of KV":              {requests: 10, running: 5, waiting: 5, used: 0.95, want: 10 * prompt},
		"all are being computed":         {requests: 2, running: 2, computing: 2, used: 0.05, want: 0},
		"one is computed, one is not":    {requests: 2, running: 2, computing: 1, used: 0.17, want: 0.17 * capacity},
		"hardly anything, as it says":    {requests: 10, running: 10, used: 0.0001, want: 10 * prompt * leastShare},
		"nobody is there":                {used: 0.1, want: 0},
		"it says that none runs":         {requests: 10, used: 0.36, want: 10 * prompt},
		"others run there, or it keeps":  {requests: 1, running: 3, used: 0.9, want: prompt},
		"it is full, and none waits yet": {requests: 10, running: 10, used: 0.95, want: 0.95 * capacity},
	} {
		var s Sharing
		sent := Sent{Tokens: c.requests * (prompt + c.answers), Prompts: c.requests * prompt, Computing: c.computing * prompt}
		s.Observe(Said{Used: c.used * capacity, Capacity: capacity, Running: c.running, Waiting: c.waiting}, sent, now)
		if got := s.InUse(sent, now); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: %v tokens are in use, want %v", name, got, c.want)
		}
		whole := float64(sent.Tokens - sent.Computing)
		if got := s.InUse(sent, now.Add(2*shareLife)); got != whole {
			t.Errorf("%s: long afterwards %v tokens are in use, want %v", name, got, whole)
		}
	}
}

// Where an engine runs all that was sent to it, what is free is what it says but for what answers grow into and what is on
// its way, in tokens of requests that share half as much.
func TestSharing_FreeIsWhatTheEngineHasLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.IntRange(1, 200).Draw(t, "requests")
		prompts := requests * rapid.IntRange(100, 10_000).Draw(t, "tokens of a prompt")
		answers := requests * rapid.IntRange(0, 100).Draw(t, "tokens of an answer")
		coming := rapid.IntRange(0, 20_000).Draw(t, "tokens of prompts that are on their way")
		own := rapid.Float64Range(0.1, 1).Draw(t, "share of a prompt that is its own")
		others := float64(rapid.IntRange(0, 1000).Draw(t, "tokens of others"))
		used := own*float64(prompts) + float64(answers)
		capacity := 1.2*used + 2000
		if float64(answers) > mostAnswers*used {
			t.Skip("answers are taken to be less than that")
		}
		var s Sharing
		sent := Sent{Tokens: prompts + coming + answers, Prompts: prompts + coming, Computing: coming}
		// The answers of what is to come are counted with the others: nothing tells them apart.
		s.Observe(Said{Used: used, Capacity: capacity, Running: float64(requests)}, Sent{Tokens: prompts + answers, Prompts: prompts}, now)
		want := ((1-growth)*capacity-others-used)/min(1, 2*own) - float64(coming)
		if free := s.Free(capacity, others, sent, now); math.Abs(float64(free)-want) > 1 {
			t.Fatalf("%v tokens are free, want %v", free, want)
		}
	})
}
