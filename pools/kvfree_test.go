package pools

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// Only prompts that a server has are compared with what its engine says is in use: one that a prefill server still computes,
// or that it computes itself, keeps nothing yet. Counted too, the others would seem to share what is not there.
func TestServer_KVFreeLooksAtPromptsThatAreThere(t *testing.T) {
	const capacity, prompt = 100_000, 30_000
	const left = 0.95*capacity - 2*prompt   // two are there, and share nothing
	const shared = 0.95*capacity - 2*prompt // three are there, and take as much
	for name, c := range map[string]struct {
		another func(*Lease)
		running float64
		used    float64 // tokens that the engine says
		unsaid  bool
		want    int // tokens
	}{
		"nothing else":                 {running: 2, used: 2 * prompt, want: left},
		"a prefill server computes it": {another: func(*Lease) {}, running: 2, used: 2 * prompt, want: left - prompt},
		"it computes it itself": {another: func(l *Lease) {
			l.MarkSent(time.Hour, time.Now())
			l.BeginLocalPrefill(curve.Work{Tokens: prompt, Estimate: time.Hour}, time.Now())
		}, running: 3, used: 2 * prompt, want: left - prompt},
		"it has it, of its own":               {another: func(l *Lease) { l.MarkSent(time.Hour, time.Now()) }, running: 3, used: 3 * prompt, want: left - prompt},
		"it has it, and shares all of it":     {another: func(l *Lease) { l.MarkSent(time.Hour, time.Now()) }, running: 3, used: 2 * prompt, want: shared},
		"it gives a whole answer, unseen":     {another: unseen(prompt), running: 3, used: 2 * prompt, want: shared},
		"the engine does not say what it has": {unsaid: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
			for range 2 {
				claim(t, s, Decode, curve.Work{Tokens: prompt, Prompt: prompt}).MarkSent(time.Hour, time.Now())
			}
			if c.another != nil {
				c.another(claim(t, s, Decode, curve.Work{Tokens: prompt, Prompt: prompt}))
			}
			l := load.Load{Engine: "vllm", Running: reading(c.running), Waiting: reading(0), KVUsed: reading(c.used / capacity), KVTokens: reading(capacity), At: time.Now()}
			if c.unsaid {
				l.KVTokens = load.Gauge{}
			}
			s.ReportLoad(l)
			got, known := s.KVFree(s.InFlight(Prefill, time.Now()), s.InFlight(Decode, time.Now()), s.FreshLoad(time.Now()), time.Now())
			if known == c.unsaid || known && max(got-c.want, c.want-got) > 1 {
				t.Errorf("%s: room for %d tokens, %v, want %d", name, got, known, c.want)
			}
		})
	}
}

// unseen computes a prompt of so many tokens of which nothing says when it has been.
func unseen(prompt int) func(*Lease) {
	return func(l *Lease) {
		l.MarkSent(time.Hour, time.Now())
		l.BeginLocalPrefill(curve.Work{Tokens: prompt, Estimate: time.Hour}, time.Now())
		l.EndsUnseen()
	}
}
