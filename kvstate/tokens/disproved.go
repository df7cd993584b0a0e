package tokens

import (
	"cmp"
	"slices"
	"time"
)

// Disproved is a context in which the translation of prompts to chats was wrong, as it is
// reported to other gateways. Hashes name it, so that no prompt can be read from it. A tokenizer
// that was wrong is not reported: it is a file of one gateway, which others may have another of.
type Disproved struct {
	Context uint64  `json:"c"`
	Root    uint64  `json:"r"` // of what is remembered of the context
	Seconds float64 `json:"s"` // for which it is left alone
	Times   int     `json:"n"` // that it was wrong
}

// maxDisproved is how many contexts are reported.
const maxDisproved = 256

func (d *Disproved) valid() bool {
	return d.Seconds > 0 && d.Seconds <= mostDistrust.Seconds() && d.Times > 0 && d.Times < 1<<20
}

// Disproved returns the contexts in which this gateway found the translation wrong and leaves it
// alone, those for the longest time first. What others reported is theirs to report.
func (s *Source) Disproved(now time.Time) (all []Disproved) {
	s.claims.mu.Lock()
	defer s.claims.mu.Unlock()
	for key, l := range s.claims.lost {
		if left := l.own.Sub(now); key.by == ByTranslation && left > 0 {
			all = append(all, Disproved{key.context, l.root, left.Seconds(), l.times})
		}
	}
	slices.SortFunc(all, func(a, b Disproved) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Context, b.Context))
	})
	return all[:min(len(all), maxDisproved)]
}

// ReceiveDisproved leaves the translation alone in contexts where another gateway found it wrong,
// and forgets what was learned by it there. age is how long ago that was reported. The same
// again changes nothing.
func (s *Source) ReceiveDisproved(reported []Disproved, age time.Duration, now time.Time) {
	for i := range reported[:min(len(reported), maxDisproved)] {
		d := &reported[i]
		until := now.Add(time.Duration(d.Seconds*float64(time.Second)) - age)
		if d.valid() && until.After(now) && s.claims.receive(d, until, now) && s.memory != nil {
			s.memory.forget(d.Root)
		}
	}
}

// receive notes that the translation was wrong elsewhere, and reports whether it was believed
// in that context until now.
func (c *claims) receive(d *Disproved, until, now time.Time) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := claimKey{d.Context, ByTranslation}
	l := c.lostLocked(key)
	news = !now.Before(l.until)
	if until.After(l.until) {
		l.until = until
	}
	l.times = max(l.times, d.Times)
	c.lost[key] = l
	return news
}
