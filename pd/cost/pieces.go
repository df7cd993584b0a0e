package cost

import (
	"errors"
	"math"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
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
	// leastBehindCut is the least part of what a server lacks of a prompt that is behind the cut, and
	// leastBeforeCut how many tokens it computes before it at least.
	leastBehindCut, leastBeforeCut = 0.1, 512
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
// on the same place on the server: others have no turn in between. It takes as long to compute as
// what is before it takes to move, as far as lengths say, and may be worth a cut itself. Of what is to move spare
// need not be hidden: nobody waits for it.
func (m *Model) Cuts(f *Candidates, prefill, decode, prompt, block int, spare time.Duration) (ends []int) {
	if block <= 0 {
		return nil
	}
	from, to := f.Prefill[prefill], &f.Decode[decode]
	has := min(prompt, to.Cached.Confirmed())
	link := prefill*len(f.Decode) + decode
	for len(ends) < mostCuts && has < prompt {
		moves := f.Links.After(0, link, float64(prompt-has)*m.TokenBytes(to))
		end := m.cut(&from, has, prompt, block, moves, spare.Seconds())
		if end == 0 {
			break
		}
		ends = append(ends, end)
		from.Cached, from.Remote = cached.Tokens{GPU: end}, Remote{} // by the time that the next part begins
		has = max(has, end)
	}
	return ends
}

// cut is the next of Cuts on a server, where decode has leading tokens of the prompt, and the others take so many
// seconds to move, of which some need not be hidden; 0: none is worth it.
func (m *Model) cut(from *Candidate, has, prompt, block int, moves, spare float64) int {
	held, w := from.Cached.GPU, newWork(prompt)
	computes := m.prefill(from, &w) - from.Prefill.Fixed()
	end := prompt - int(max(leastBehindCut, moves/(moves+computes))*float64(prompt-held))
	end -= end % block
	if end < held+leastBeforeCut || end <= has {
		return 0
	}
	hidden := min(moves*float64(end-has)/float64(prompt-has), computes*float64(prompt-end)/float64(prompt-held))
	if min(hidden, moves-spare) < max(leastHidden, worthOfCut*(from.Prefill.Fixed()+m.HandOff.Seconds())) {
		return 0
	}
	return end
}

// PieceTime is what a server needs to prefill the tokens of a prompt that it lacks up to one.
func (m *Model) PieceTime(c *Candidate, upTo int) time.Duration {
	w := newWork(upTo)
	return Duration(m.prefill(c, &w))
}
