package cost

import (
	"errors"
	"math"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Pieces is how the prefill of a long prompt is cut: over growing beginnings of the prompt, each a
// request of its own that finds what came before it in the engine's prefix cache. Between two of
// them shorter requests have their turn, and decode pulls the KV of one while the next is computed.
// It is about what a piece takes its server; 0: prompts are prefilled whole.
type Pieces time.Duration

// DefaultPieces is what did best in the simulator, of 0.2 to 4 seconds on servers of three speeds:
// of smaller ones the longest prompts wait more often than shorter ones gain, the more so where
// another replica says whose turn it is.
const DefaultPieces = Pieces(2 * time.Second)

const (
	// leastPiece is how many tokens a piece has at least to compute: each is two legs more.
	leastPiece = 2048
	// leastHidden is how many seconds of a transfer a cut must hide, and worthOfCut how many times what it
	// costs: a leg, and a step of the engine, more.
	leastHidden, worthOfCut = 0.02, 3
	// leastBeforeCut is how many tokens a part of a prompt has at least.
	leastBeforeCut = 512
	// mostCuts is how many times a prompt is cut at most: each cut hides a part of what the one before
	// it left, and costs as much.
	mostCuts = 3
	// longestPiece is how much longer than a piece one may be, so that no piece is a short one: what is
	// between that and one and a half pieces becomes two equal ones.
	longestPiece = 1.25
)

// Validate reports what is wrong with it, nil if nothing.
func (p Pieces) Validate() error {
	if p < 0 {
		return errors.New("prefill-pieces must not be negative")
	}
	return nil
}

// tokens is how many tokens a piece has to compute on a server.
func (p Pieces) tokens(c *Candidate) int {
	return int(min(max(leastPiece, time.Duration(p).Seconds()*1000/max(c.Prefill[1], 1e-6)), math.MaxInt32))
}

// End is up to which token of a prompt the next prefill goes on a server that holds leading tokens
// of it: the whole prompt, or a multiple of the server's KV block, in tokens.
func (p Pieces) End(c *Candidate, prompt, block int) int {
	if p <= 0 || block <= 0 {
		return prompt
	}
	held, piece := c.Cached.GPU, p.tokens(c)
	rest, end := prompt-held, held+piece
	if float64(rest) <= longestPiece*float64(piece) {
		return prompt
	}
	if 2*rest < 3*piece {
		end = held + rest/2
	}
	if end -= end % block; end <= held || end >= prompt {
		return prompt
	}
	return end
}

// Cuts are where a prefill of all that is left of a prompt is cut so that decode pulls the KV before a cut
// while what is behind it is computed; none where that is not worth it. What is behind one follows at once,
// on the same place on the server: others have no turn in between. Of what is to move spare need not be hidden:
// nobody waits for it.
func (m *Model) Cuts(f *Candidates, prefill, decode, prompt, block int, spare time.Duration) []int {
	from, to, w := &f.Prefill[prefill], &f.Decode[decode], newWork(prompt)
	held, has := from.Cached.GPU, min(prompt, to.Cached.Confirmed())
	if block <= 0 || held >= prompt || has >= prompt {
		return nil
	}
	bytes := float64(prompt-has) * m.TokenBytes(to)
	leg := from.Prefill.Fixed() + m.HandOff.Seconds()
	t := train{
		held: held, has: has, prompt: prompt, leg: leg,
		pull:     m.HandOff.Seconds() + stepsOfPull*to.nextStep,
		computes: (m.prefill(from, &w) - from.Prefill.Fixed()) / float64(prompt-held),
		moves:    f.Links.After(0, order.Pair{Prefill: prefill, Decode: decode}, len(f.Decode), bytes) / float64(prompt-has),
	}
	if t.computes <= 0 {
		return nil
	}
	parts := []float64{float64(prompt - held)}
	best, nobodyWaits := t.ends(parts), t.computes*parts[0]+spare.Seconds()
	for len(parts) <= mostCuts {
		more := t.parts(len(parts) + 1)
		if more == nil {
			break
		}
		ends := max(t.ends(more), nobodyWaits)
		if best-ends < max(leastHidden, worthOfCut*leg) {
			break
		}
		best, parts = ends, more
	}
	return t.cuts(parts, block)
}

// stepsOfPull is how many steps of its batch a decode server takes for a piece beside the transfer: it begins one
// between two steps, sees between two steps that it has come, and ends it with a step. vLLM,
// vllm/v1/core/sched/scheduler.py: WAITING_FOR_REMOTE_KVS.
const stepsOfPull = 2

// train is a prompt whose parts are computed one after the other, and pulled one after the other. It takes least
// where each pull ends when the next part is computed.
type train struct {
	held, has, prompt int     // tokens that prefill holds and decode has, and all
	computes, moves   float64 // seconds for a token
	leg, pull         float64 // seconds that each part takes prefill, and decode, more
}

// parts are how many tokens prefill computes in each of so many parts, each as long as the pull of the one before it;
// nil where the prompt has no room for them. The tokens of each are a line over those of the first.
func (t *train) parts(count int) []float64 {
	at, slope := 0.0, 1.0
	atAll, slopeOfAll := at, slope
	for i := 1; i < count; i++ {
		at, slope = t.behind(at, i == 1), t.moves/t.computes*slope
		atAll, slopeOfAll = atAll+at, slopeOfAll+slope
	}
	part := (float64(t.prompt-t.held) - atAll) / slopeOfAll
	if float64(t.held)+part <= float64(t.has) {
		return nil
	}
	parts := make([]float64, 0, mostCuts+1)
	for i := 1; part >= leastBeforeCut; i++ {
		parts = append(parts, part)
		if len(parts) == count {
			return parts
		}
		part = t.behind(part, i == 1)
	}
	return nil
}

// behind is how many tokens are computed while so many, that were computed before, are pulled. With the first
// part decode pulls what it lacks before it, too.
func (t *train) behind(tokens float64, first bool) float64 {
	if first {
		tokens += float64(t.held - t.has)
	}
	return (t.pull + t.moves*tokens - t.leg) / t.computes
}

// ends is when decode has all of a prompt of such parts.
func (t *train) ends(parts []float64) float64 {
	return t.computes*parts[0] + float64(len(parts))*t.pull + t.moves*float64(t.prompt-t.has)
}

// cuts are the ends of all parts but the last, each with a block; a part of less than a block has none.
func (t *train) cuts(parts []float64, block int) (ends []int) {
	end, before := float64(t.held), t.held
	for _, part := range parts[:len(parts)-1] {
		end += part
		if cut := int(end) / block * block; cut > before {
			ends, before = append(ends, cut), cut
		}
	}
	return ends
}

// PieceTime is what a server needs to prefill the tokens of a prompt that it lacks up to one.
func (m *Model) PieceTime(c *Candidate, upTo int) time.Duration {
	w := newWork(upTo)
	return Duration(m.prefill(c, &w))
}
