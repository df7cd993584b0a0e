package cost

import "time"

// Pieces is how the prefill of a long prompt is cut: over growing beginnings of the prompt, each a
// request of its own that finds what came before it in the engine's prefix cache. Between two of
// them shorter requests have their turn, and decode pulls the KV of one while the next is computed.
// It is the tokens that a piece has to compute; 0: prompts are prefilled whole.
type Pieces int

// DefaultPieces is what did best in the simulator: pieces of 6,144 to 16,384 tokens are alike, and
// smaller ones let the longest prompts wait.
const DefaultPieces Pieces = 8192

// lastPiece is the least part of a piece that the last one is, whose KV is all that is left to move
// when it ends: with half of that the simulator gains no more.
const lastPiece = 4

// End is up to which token of a prompt the next prefill goes, where the server holds so many of its
// leading tokens: the whole prompt, or a multiple of the server's KV block, in tokens.
func (p Pieces) End(prompt, held, block int) int {
	piece, last, rest := int(p), int(p)/lastPiece, prompt-held
	if piece <= 0 || block <= 0 || rest < 2*last {
		return prompt
	}
	end := held + piece
	if 2*rest < 3*piece {
		end = prompt - last
	}
	if end -= end % block; end <= held || end >= prompt {
		return prompt
	}
	return end
}

// PieceTime is what a server needs to prefill the tokens of a prompt that it lacks up to one.
func (m *Model) PieceTime(c *Candidate, upTo int) time.Duration {
	w := newWork(upTo)
	return Duration(m.prefill(c, &w))
}
