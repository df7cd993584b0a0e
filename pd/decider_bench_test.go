package pd

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// benchLobby is 1,000 requests that wait before 32 + 32 servers, each prefill server with
// seconds of work ahead.
type benchLobby struct {
	*testFleet
	*Decider
	benchWaiting
	shared, tail    []uint32 // the tokens that all prompts begin with, and those that each takes a part of
	prefill, decode []*pools.Server
	granted         chan bindResult // of all that wait
	busy            []*pools.Lease
}

// benchWaiting says which requests wait.
type benchWaiting struct {
	tenants int  // that they are of
	begun   bool // half of them have their servers: a piece of their prompt is prefilled
	alike   bool // all begin with as much of one prompt as they are long
}

func newBenchLobby(b *testing.B, waiting benchWaiting) *benchLobby {
	whole := testPrompt(14_000)
	l := &benchLobby{testFleet: newTestFleet(b, 32, whole), benchWaiting: waiting, shared: whole[:3500], tail: testPrompt(20_000), granted: make(chan bindResult, 1000)}
	if l.alike {
		l.shared = whole
	}
	l.Decider = newTestDecider(l.testFleet)
	for _, s := range l.Fleet.Servers() {
		if s.Role == pools.Decode {
			l.decode = append(l.decode, s)
			continue
		}
		l.prefill = append(l.prefill, s)
		l.occupy(b, s)
	}
	for i := range 1000 {
		l.comes(i)
	}
	l.decide()
	return l
}

// occupy gives a server three seconds of work.
func (l *benchLobby) occupy(b *testing.B, s *pools.Server) {
	lease, err := s.Claim(pools.Prefill, curve.Work{Tokens: 1000, Estimate: 3 * time.Second}, false, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	l.busy = append(l.busy, lease)
}

// comes lets one more request wait: prompts of 12,000 tokens on the mean, as in the traces, no two
// of one length. What servers hold of them all begin with, and the rest is their own. What servers hold
// is looked up before a request waits, as await does.
func (l *benchLobby) comes(i int) {
	n := 10_000 + 4*(i%1000)
	prompt := slices.Clone(l.shared[:min(n, len(l.shared))])
	prompt = append(prompt, l.tail[i%1000:][:n-len(prompt)]...)
	w := &waiter{request: &l.arrives(prompt, time.Now()).bind, done: l.granted}
	w.request.req.Tenant = strconv.Itoa(i % l.tenants)
	if pair := i / 2 % len(l.prefill); l.begun && i%2 == 0 {
		w.request.begun = &begunPrefill{prefill: l.prefill[pair].ID(), decode: l.decode[pair].ID(), tokens: 1024}
	}
	l.ch.match(w.request)
	l.arrivals = append(l.arrivals, w)
}

// BenchmarkDecider: one wake-up of the decider, all of it: looking at the servers, pricing
// those whose turn that is, whose turn it is to go, and claiming the servers for the one that goes.
// Budget (2-core VM, one core), the median of single wake-ups: <= 200 us, and <= 5 ms (the goal is 3) from scratch,
// where other servers are there than at the look before and all that wait are priced anew. Where
// one goes, it is noted of 12,000 tokens that its server will hold them.
func BenchmarkDecider(b *testing.B) {
	b.Run("no request goes", func(b *testing.B) {
		l := newBenchLobby(b, benchWaiting{tenants: 1})
		b.ReportAllocs()
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			l.decideAt(start)
			took = append(took, time.Since(start))
			if len(l.granted) > 0 {
				b.Fatal("a request went")
			}
		}
		reportQuantiles(b, took)
	})
	for _, c := range []struct {
		name    string
		waiting benchWaiting
	}{
		{"one tenant", benchWaiting{tenants: 1}},
		{"1000 tenants", benchWaiting{tenants: 1000}},
		{"one tenant, in pieces", benchWaiting{tenants: 1, begun: true}},
		{"1000 tenants, in pieces", benchWaiting{tenants: 1000, begun: true}},
		{"one prompt", benchWaiting{tenants: 1, alike: true}},
	} {
		b.Run("one comes and some go, of "+c.name, func(b *testing.B) {
			l := newBenchLobby(b, c.waiting)
			b.ReportAllocs()
			var took []time.Duration
			for n := 0; b.Loop(); n++ {
				free := l.busy[0]
				l.busy = l.busy[1:]
				free.Release()
				l.comes(n)
				start := time.Now()
				l.decideAt(start)
				took = append(took, time.Since(start))
				if len(l.granted) == 0 {
					b.Fatal("no request went")
				}
				for more := 0; len(l.granted) > 0; more++ {
					g := <-l.granted
					_, _ = g.received() // as its own goroutine does
					g.b.undo()          // else the first servers that were sent the prompt would be worth waiting for
					if more > 0 {
						l.comes(n + more)
					}
				}
				l.occupy(b, free.Server())
			}
			reportQuantiles(b, took)
		})
	}
	b.Run("from scratch", func(b *testing.B) {
		l := newBenchLobby(b, benchWaiting{tenants: 1})
		b.ReportAllocs()
		var took []time.Duration
		for b.Loop() {
			l.queues[testModel].snapshot = snapshot{}
			start := time.Now()
			l.decideAt(start)
			took = append(took, time.Since(start))
		}
		reportQuantiles(b, took)
	})
}

// reportQuantiles reports the lower twentieth and the median of single wake-ups, which say more
// than their mean where other programs run.
func reportQuantiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(quantile(took, 0.05), "p5-us")
	b.ReportMetric(quantile(took, 0.5), "p50-us")
}
