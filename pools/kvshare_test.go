package pools

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// What prompts share of their KV shows in what the engine has in use. Too little is rather seen to be shared than too
// much.
func TestServer_KVThatPromptsShareTakesRoomOnce(t *testing.T) {
	const capacity, prompt = 262_144, 90_000
	for name, c := range map[string]struct {
		requests, running, waiting int
		computing                  int     // of the requests, those whose prompts the server computes yet
		unseen                     bool    // these give whole answers
		used                       float64 // of the KV
		outputs                    int     // tokens of answers that each context is taken to have
		want                       float64
	}{
		"all have one beginning":        {requests: 10, running: 10, used: 0.36, want: 0.36 * capacity / (10 * prompt)},
		"each has its own":              {requests: 2, running: 2, used: 0.7, want: 1},
		"long answers are not shared":   {requests: 10, running: 10, used: 0.36, outputs: prompt, want: 0.5 + 0.5*0.36*capacity/(10*prompt)},
		"half of them wait":             {requests: 10, running: 5, waiting: 5, used: 0.36, want: 0.36 * capacity / (5 * prompt)},
		"it is short of KV":             {requests: 10, running: 5, waiting: 5, used: 0.95, want: 1},
		"all are being computed":        {requests: 2, running: 2, computing: 2, used: 0.05, want: 1},
		"one is computed, one is not":   {requests: 2, running: 2, computing: 1, used: 0.17, want: 0.17 * capacity / prompt},
		"nothing says which are":        {requests: 2, running: 2, computing: 2, unseen: true, used: 0.36, want: 0.36 * capacity / (2 * prompt)},
		"hardly anything, as it says":   {requests: 10, running: 10, used: 0.0001, want: leastShare},
		"nobody is there":               {used: 0.1, want: 1},
		"it does not say what runs":     {requests: 10, running: -1, used: 0.36, want: 1},
		"others run there, or it keeps": {requests: 1, running: 3, used: 0.9, want: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
			for i := range c.requests {
				l := claim(t, s, Decode, curve.Work{Tokens: prompt + c.outputs, Prompt: prompt})
				if i < c.computing {
					l.BeginLocalPrefill(curve.Work{Tokens: prompt, Estimate: time.Hour})
				}
				if i < c.computing && c.unseen {
					l.EndsUnseen()
				}
			}
			l := load.Load{Engine: "vllm", Waiting: reading(float64(c.waiting)), KVUsed: reading(c.used), KVTokens: reading(capacity), At: time.Now()}
			if c.running >= 0 {
				l.Running = reading(float64(c.running))
			}
			s.ReportLoad(l)
			sent := s.InFlight(Decode, time.Now())
			if got := s.KVShare(sent, time.Now()); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("%s: a token takes %v of one, want %v", name, got, c.want)
			}
			if got := s.KVShare(sent, time.Now().Add(2*shareLife)); got != 1 {
				t.Errorf("%s: long afterwards it takes %v of one", name, got)
			}
		})
	}
}
