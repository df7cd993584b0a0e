package cost

import "time"

// Pieces is how the prefill of a long prompt is cut: over growing beginnings of the prompt, each a
// request of its own that finds what came before it in the engine's prefix cache. Between two of
// them shorter requests have their turn, and decode pulls the KV of one while the next is computed.
// The zero value prefills prompts whole.
type Pieces struct {
	Tokens int // that a piece has to compute; 0: prompts are prefilled whole
	Last   int // the same of the last piece, whose KV is all that is left to move when it ends
}

// DefaultPieces is what did best in the simulator: pieces of 6,144 to 16,384 tokens are alike,
// smaller ones let the longest prompts wait, and a last piece of 1,024 gains no more.
func DefaultPieces() Pieces { return Pieces{Tokens: 8192, Last: 2048} }

// End is up to which token of a prompt the next prefill goes, where the server holds so many of its
// leading tokens: the whole prompt, or a multiple of the server's KV block, in tokens.
func (p Pieces) End(prompt, held, block int) int {
	rest := prompt - held
	if p.Tokens <= 0 || block <= 0 || rest < 2*p.Last {
		return prompt
	}
	end := held + p.Tokens
	if 2*rest < 3*p.Tokens {
		end = prompt - p.Last
	}
	if end -= end % block; end <= held || end >= prompt {
		return prompt
	}
	return end
}

// Larger is the same with pieces so many times as large.
func (p Pieces) Larger(times int) Pieces {
	p.Tokens *= times
	return p
}

// PieceTime is what a server needs to prefill the tokens of a prompt that it lacks up to one.
func (m *Model) PieceTime(c *Candidate, upTo int) time.Duration {
	w := newWork(upTo)
	return Duration(m.prefill(c, &w))
}
