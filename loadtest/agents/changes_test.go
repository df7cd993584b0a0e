package agents

import (
	"testing"
	"time"
)

// A turn need not change its server if that of the turn before held as much as any and was idle
// when the turn was sent. Its change was needless if the server that it went to began no sooner
// than the other could have, by what each had been given when the choice was made.
func TestChanges_CountsWhatNeedNotMove(t *testing.T) {
	start := time.Unix(0, 0)
	// sent at a second, bound so many seconds later, computed within half a second
	at := func(x *turn, seconds, waited float64) *turn {
		x.sent, x.waited = start.Add(time.Duration(seconds*float64(time.Second))), time.Duration(waited*float64(time.Second))
		x.prefillTook = 500 * time.Millisecond
		x.ttft = x.waited + x.prefillTook
		return x
	}
	a, b := &conversation{session: 1}, &conversation{session: 2}
	sub := &conversation{session: 1, parent: a}
	first, moves := at(logged(a, 0, "p", 1, 2), 0, 0), at(logged(a, 1, "q", 1, 2, 3), 2, 0.1)
	for _, c := range []struct {
		name                               string
		log                                []*turn
		changed, needNot, needless, losing int
	}{
		{"stays", []*turn{first, at(logged(a, 1, "p", 1, 2, 3), 1, 0)}, 0, 1, 0, 0},
		{"moves", []*turn{first, moves}, 1, 1, 1, 1},
		{"a sub-agent moves", []*turn{first, at(logged(sub, 0, "q", 1, 2, 3), 1, 0)}, 1, 1, 1, 1},
		{"decode computes it alone", []*turn{first, at(logged(a, 1, "", 1, 2, 3), 1, 0)}, 0, 0, 0, 0},
		{"another holds more", []*turn{first, at(logged(b, 0, "q", 1, 2, 3), 1, 0), moves}, 0, 0, 0, 0},
		{"it is busy", []*turn{first, at(logged(b, 0, "p", 8, 9), 1.8, 0), moves}, 0, 0, 0, 0},
		{"it is busy until it is chosen", []*turn{first, at(logged(b, 0, "p", 8, 9), 1.55, 0), moves}, 0, 0, 1, 1},
		{"it has become busy when it is chosen", []*turn{first, moves, at(logged(b, 0, "p", 8, 9), 2.01, 0)}, 1, 1, 0, 0},
		{"it becomes busy after that", []*turn{first, moves, at(logged(b, 0, "p", 8, 9), 2.01, 0.2)}, 1, 1, 1, 1},
		{"another holds more when it is chosen", []*turn{first, moves, at(logged(b, 0, "q", 1, 2, 3), 2.05, 0)}, 1, 1, 0, 0},
		{"the other is busy for as long", []*turn{first, at(logged(b, 0, "p", 8, 9), 1.8, 0), at(logged(b, 1, "q", 8, 9), 1.9, 0), moves}, 0, 0, 1, 1},
		{"the other holds as much", []*turn{first, at(logged(b, 0, "q", 1, 2), 1, 0), moves}, 1, 1, 1, 0},
		{"the other is busy for less long", []*turn{first, at(logged(b, 0, "q", 8, 9), 1.8, 0), at(logged(b, 1, "p", 8, 9), 1.9, 0), moves}, 0, 0, 0, 0},
	} {
		found := findChanges(c.log, 100)
		if len(found.changed) != c.changed || found.needNot != c.needNot || len(found.needless) != c.needless || losing(found.needless) != c.losing {
			t.Errorf("%s: %d of %d changed, %d needlessly, %d to less; want %d of %d, %d, %d", c.name, len(found.changed), found.needNot, len(found.needless), losing(found.needless), c.changed, c.needNot, c.needless, c.losing)
		}
	}
}
