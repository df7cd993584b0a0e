package cost

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Home is where the session that a request says it belongs to was served last, by server IDs.
// Prefill is the server that prefilled for it last, "" where decode has computed all its prompts. The
// zero value is nowhere.
type Home struct{ Prefill, Decode string }

// What alternatives may differ by and still be taken for equally good: less than predictions
// are wrong by.
const (
	tieShare = 0.05                  // of what the better one costs
	mostTie  = 30 * time.Millisecond // and no more than this
)

// TieMargin is by how much an alternative may cost more than the chosen one, or less, and be
// as good: 5 % of it, and 30 ms at most.
func TieMargin(chosen *Alternative) time.Duration {
	return min(time.Duration(tieShare*float64(chosen.Terms.Total())), mostTie)
}

// isTie reports whether another alternative is as good as the chosen one: it misses no more
// objectives, costs as much but for the margin, and has no more work ahead of it but for the
// margin.
func (a *Alternative) isTie(chosen *Alternative) bool {
	margin := TieMargin(chosen)
	return a.Misses <= chosen.Misses && (a.Terms.Total()-chosen.Terms.Total()).Abs() <= margin && a.Terms.Queue <= chosen.Terms.Queue+margin
}

// Settle breaks a tie in favour of a request's home: of both its servers, else of the one that
// prefills, else of the one that decodes. Whatever is not as good as the chosen pair is left
// alone.
func (f *Candidates) Settle(s *order.Servers, t *order.Ticket, home Home, best order.Pair, price float64) order.Pair {
	if home == (Home{}) {
		return best
	}
	chosen := f.Alternative(s, t, best, price)
	for _, at := range []Home{home, {home.Prefill, chosen.Decode}, {chosen.Prefill, home.Decode}} {
		pair, known := f.pairOf(at)
		if !known || pair == best || !s.Possible(t, pair) || !s.HasRoom(t, pair) {
			continue
		}
		if other := f.Alternative(s, t, pair, price); other.isTie(&chosen) {
			return pair
		}
	}
	return best
}

// pairOf is the pair of two servers, false where one of them is not there.
func (f *Candidates) pairOf(at Home) (order.Pair, bool) {
	pair := order.Pair{Prefill: order.Aggregated, Decode: IndexOf(f.Decode, at.Decode)}
	if at.Prefill != "" {
		if pair.Prefill = IndexOf(f.Prefill, at.Prefill); pair.Prefill < 0 {
			return pair, false
		}
	}
	return pair, pair.Decode >= 0
}
