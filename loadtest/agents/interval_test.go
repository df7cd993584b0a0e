package agents

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Of two APIs that take equally long an interval contains zero in nearly all comparisons, and of
// one that takes half as long again on every turn it lies above it: chance and a fault are told
// apart with three seeds of a cluster of four servers.
func TestP99Above_TellsAFaultFromChance(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 1))
	// One turn in ten waits for another, which has nothing to do with its API.
	times := func(scale float64) laterTurns {
		l := make(laterTurns)
		for i := range 36 {
			of := session{uint64(i / 12), 4, i % 12}
			for range 6 {
				ttft := 0.2 + 0.1*chance.Float64()
				if chance.IntN(10) == 0 {
					ttft += 0.4 * chance.Float64()
				}
				l[of] = append(l[of], &turn{ttft: time.Duration(scale * ttft * float64(time.Second))})
			}
		}
		return l
	}
	const comparisons = 10
	verdicts := make(map[string]int)
	for range comparisons {
		verdicts[p99Above(times(1), times(1), 1).verdict()]++
	}
	if verdicts[notToldApart] < comparisons*9/10 {
		t.Errorf("of %d comparisons of equals: %v", comparisons, verdicts)
	}
	clear(verdicts)
	for range comparisons {
		verdicts[p99Above(times(1.5), times(1), 1).verdict()]++
	}
	if verdicts[missed] < comparisons*9/10 {
		t.Errorf("of %d comparisons with one that takes half as long again: %v", comparisons, verdicts)
	}
	if d := p99Above(times(1), times(1.5), 2); d.verdict() != reached || d.Low > d.Seconds || d.Seconds > d.High {
		t.Errorf("one that takes less than chat: %v", d)
	}
}

// A round of one seed in which the machine was slow shows nothing of an API: sessions that share it
// are drawn together.
func TestP99Above_BlamesNoAPIForOneSlowRound(t *testing.T) {
	times := func(slow uint64) laterTurns {
		l := make(laterTurns)
		for i := range 36 {
			of, ttft := session{uint64(i / 12), 4, i % 12}, 200*time.Millisecond
			if of.seed == slow {
				ttft *= 3
			}
			l[of] = []*turn{{ttft: ttft + time.Duration(i%12)*time.Millisecond}}
		}
		return l
	}
	if d := p99Above(times(1), times(99), 1); d.Seconds < 0.3 || d.verdict() != notToldApart {
		t.Errorf("%v", d)
	}
}

// Sessions are compared with themselves on the other API: one that only one of them has counts for
// neither, and where none is common there is nothing to say.
func TestP99Above_ComparesCommonSessions(t *testing.T) {
	a, b, c := session{1, 2, 0}, session{1, 2, 1}, session{2, 2, 0}
	took := func(d time.Duration) []*turn { return []*turn{{ttft: d}} }
	x := laterTurns{a: took(time.Second), b: took(9 * time.Second)}
	if d := p99Above(x, laterTurns{a: took(2 * time.Second), c: took(time.Millisecond)}, 2); *d != (Difference{-2, -2, -2}) {
		t.Errorf("%v", d)
	}
	if d := p99Above(x, laterTurns{c: took(time.Second)}, 1); d != nil {
		t.Errorf("%v of nothing in common", d)
	}
}

// A share shows little in few turns: the same 6 % is nothing beyond chance in 50 and too much in
// 5,000, and none of 20 does not show that it is below 5 %.
func TestShareVerdict_WantsEnoughTurns(t *testing.T) {
	for _, c := range []struct {
		count, of int
		want      string
	}{{3, 50, notToldApart}, {300, 5000, missed}, {0, 20, notToldApart}, {0, 80, reached}, {17, 621, reached}, {4, 33, notToldApart}, {13, 33, missed}, {0, 0, notToldApart}} {
		if got := shareVerdict(c.count, c.of, 0.05); got != c.want {
			t.Errorf("%d of %d: %s, want %s", c.count, c.of, got, c.want)
		}
	}
}
