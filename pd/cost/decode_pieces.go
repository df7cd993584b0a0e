package cost

import (
	"math"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// DecodePieces is how a prompt is cut that decode computes itself: over growing beginnings of it,
// each a request of its own that finds what came before in the engine's prefix cache. Between two of
// them the streams there go on, and none of their gaps is longer than Demand.Gap. The zero value:
// the prompt is computed whole, and the engine cuts it by its budget of tokens.
type DecodePieces struct {
	Seconds float64 // of a piece

	curve curve.Curve // of prefills on the server
	block int         // tokens; a piece ends with one
}

const (
	// gapMargin is the part of a gap that a step and a piece are predicted to fill: predictions
	// are wrong by a tenth.
	gapMargin = 0.8
	// leastDecodePiece is the least that a piece takes, in seconds: each is a leg more.
	leastDecodePiece = 0.01
	// mostDecodePieces is how many pieces a prompt has at most, else decode computes it whole.
	mostDecodePieces = 32
	// streamShare is which part of a prefill in pieces the streams beside it are taken to lose. They
	// go on, with longer gaps: it counts more than as much decoding (Weights.Decode), and less than a
	// standstill, so that hardly one gap in a hundred becomes longer. Where much fewer do, a part of it is
	// left out (order.Servers.StreamDiscount).
	streamShare = 0.45
)

// DecodePieces is how a request's prompt is cut on a decode server that PriceServers has seen.
func (m *Model) DecodePieces(r *Demand, d *Candidate) DecodePieces {
	w := newWork(r.PromptTokens)
	return r.decodePieces(d, m.prefill(d, &w))
}

// decodePieces is that where the prefill takes so many seconds there.
func (r *Demand) decodePieces(d *Candidate, prefill float64) DecodePieces {
	if r.Gap <= 0 || d.PieceBlock <= 0 {
		return DecodePieces{}
	}
	piece := DecodePieces{gapMargin * (r.Gap.Seconds() - d.nextStep), d.Prefill, d.PieceBlock}
	if piece.Seconds < leastDecodePiece || piece.pauses(prefill) > mostDecodePieces {
		return DecodePieces{}
	}
	return piece
}

// pauses is how many times the streams go on during so many seconds of prefill.
func (p DecodePieces) pauses(seconds float64) float64 {
	return math.Floor(max(0, seconds-p.curve.Fixed()) / p.Seconds)
}

// End is up to which token of a prompt the next piece goes, of which the server holds leading ones:
// the whole prompt, or a multiple of the server's KV block, in tokens. What is left is cut into equal
// pieces, as few as may be: the gaps of the streams beside it are as many, and shorter.
func (p DecodePieces) End(held, prompt int) int {
	if p.Seconds <= 0 {
		return prompt
	}
	// Behind c tokens n take a n + b n (n + 2c) seconds.
	a, b, left := p.curve[1]/1e3, p.curve[2]/1e6, float64(prompt-held)
	linear := a + 2*b*float64(held)
	work := left * (linear + b*left)
	pieces := math.Ceil(work / p.Seconds)
	if pieces <= 1 {
		return prompt
	}
	seconds := work / pieces
	n := 2 * seconds / max(linear+math.Sqrt(linear*linear+4*b*seconds), 1e-12)
	end := held + int(min(max(n, float64(p.block)), math.MaxInt32))
	if end -= end % p.block; end >= prompt {
		return prompt
	}
	return end
}
