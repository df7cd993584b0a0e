package cost

import (
	"math"
	"testing"
	"time"
)

// teachShared moves a gigabyte from p to each of some servers at once, over and over: each transfer
// takes as many times as long as assumed as there are of them, times slower.
func teachShared(l *Links, to []string, slower float64, rounds int) {
	took := time.Duration(slower * float64(len(to)) * float64(asAssumed))
	now := linkTime
	for range rounds {
		var all []*Transfer
		for _, d := range to {
			all = append(all, l.Begin(at("p", "r1").LinkEnd(), at(d, "r1").LinkEnd(), 1e9, now))
		}
		now = now.Add(took)
		for _, transfer := range all {
			transfer.Observe(took, 0, now)
		}
	}
}

// asAssumedElsewhere is links of which those of three servers have shown what is assumed.
func asAssumedElsewhere() *Links {
	l := NewLinks(DefaultLinks())
	for _, q := range []string{"q1", "q2", "q3"} {
		for _, d := range []string{"d", "e"} {
			transfers(l, at(q, "r1"), at(d, "r1"), 50e9, 10, linkTime)
		}
	}
	return l
}

// Transfers that leave a server together share its link. That they take longer for it is not held
// against the server: it would be avoided for having been asked for much at once.
func TestTransfer_SharingALinkIsNotHeldAgainstItsServer(t *testing.T) {
	for _, to := range [][]string{{"d", "e", "d", "e"}, {"d", "d", "d"}} {
		l := asAssumedElsewhere()
		teachShared(l, to, 1, 10)
		if got := l.prefill["p"].differs(linkTime); got != 0 {
			t.Errorf("to %v: the server is believed to be slower by a logarithm of %.2f", to, got)
		}
		for id, pair := range l.pairs {
			if got := pair.differs(linkTime); got != 0 {
				t.Errorf("to %v: %v is believed to be slower by a logarithm of %.2f", to, id, got)
			}
		}
	}
}

// A server whose link is slow is seen as such by transfers that share it, too.
func TestTransfer_ASlowServerIsSeenThoughItsTransfersShareItsLink(t *testing.T) {
	l := asAssumedElsewhere()
	teachShared(l, []string{"d", "e", "d", "e"}, 8, 10)
	if got := l.prefill["p"].differs(linkTime); got < 1 {
		t.Errorf("a server that is eight times as slow is believed to be slower by a logarithm of %.2f", got)
	}
}

// The class learns how long transfers take as they come, those that share a link with others too.
func TestTransfer_TheClassLearnsWhatSharingTakes(t *testing.T) {
	l := NewLinks(DefaultLinks())
	before := seconds(l, at("new", "r1"), at("other", "r1"), linkTime)
	teachShared(l, []string{"d", "e", "f"}, 1, 40)
	if got := seconds(l, at("new", "r1"), at("other", "r1"), linkTime); got < 2*before {
		t.Errorf("a gigabyte is believed to take %.3f s, and %.3f s before transfers that took three times as long", got, before)
	}
}

// The share of a transfer is what it would have taken alone, by the end that was more crowded over
// all its time.
func TestTransfer_ShareIsThatOfTheMoreCrowdedEnd(t *testing.T) {
	l := NewLinks(DefaultLinks())
	after := func(seconds float64) time.Time { return linkTime.Add(time.Duration(seconds * float64(time.Second))) }
	first := l.Begin(at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, after(0))
	same := l.Begin(at("p", "r1").LinkEnd(), at("e", "r1").LinkEnd(), 1e9, after(1)) // of what is sent: a second alone, and one of two
	same.End(after(2))
	for range 3 { // of what is received: a second as one of four
		defer l.Begin(at("q", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, after(2)).End(after(3))
	}
	if got, want := first.share(after(3)), (1+1+0.25)/3; math.Abs(got-want) > 1e-9 {
		t.Errorf("its share is %v, want %v", got, want)
	}
	first.End(after(3))
	first.End(after(3))
	if got := first.share(after(4)); got != 1 {
		t.Errorf("its share is %v when it has ended", got)
	}
}

// A transfer is forecast to share the links of its servers with what is under way there, and to take as long
// as its pair has shown.
func TestLinks_Forecast(t *testing.T) {
	l := asAssumedElsewhere()
	p, d := at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd()
	forecast := func(bytes float64) float64 { return float64(l.Forecast(p, d, bytes, linkTime)) / float64(asAssumed) }
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.2 }
	if got := forecast(1e9); !near(got, 1) {
		t.Errorf("on idle links %.2f of what it takes alone", got)
	}
	long := l.Begin(p, at("e", "r1").LinkEnd(), 50e9, linkTime)
	if got := forecast(1e9); !near(got, 2) {
		t.Errorf("beside a long one %.2f of what it takes alone, want 2", got)
	}
	long.End(linkTime)
	short := l.Begin(at("q", "r1").LinkEnd(), d, 0.5e9, linkTime)
	if got := forecast(1e9); !near(got, 1.5) {
		t.Errorf("beside one of half its size %.2f of what it takes alone, want 1.5", got)
	}
	short.End(linkTime)
	for range 20 {
		l.Observe(p, d, 1e9, 4*asAssumed, 0, linkTime)
	}
	if got := forecast(1e9); got < 3 {
		t.Errorf("on a pair that took four times as long %.2f of what it should", got)
	}
}
