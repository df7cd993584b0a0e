package pd

import (
	"context"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/spans"
)

// A prompt that a decode server computes by itself is computed in pieces, too (cost.DecodePieces):
// legs of one token over growing beginnings of it, each so small that a step which computes it leaves
// the streams there within the gap that they may have. Between two of them they go on. The last leg is
// the client's own request.

// mostUncertain is how many tokens of a prompt of so many need not be certain where it is computed in pieces: the
// last leg computes them beside what is left for it. Of a question on a known document that may be a 32nd
// (kvstate/tokens, worthAsking), which keeps streams standing for longer than a piece and for less than all of it.
func mostUncertain(tokens int) int { return max(64, tokens/32) }

// gap is how long a request's prompt may keep the streams of a decode server standing at a time, 0
// where it is computed there whole: by the objective for gaps if there is one.
func (ch *Chooser) gap(r *bindRequest, itl time.Duration) time.Duration {
	if ch.Config.DecodePieces <= 0 || !r.req.Dialect.Split || r.req.Aggregated || r.req.proxied || r.req.PromptTokens-r.certain > mostUncertain(r.req.PromptTokens) {
		return 0
	}
	if itl > 0 {
		return itl
	}
	return ch.Config.DecodePieces
}

// decodePieces lets a decode server that serves a request alone compute all pieces of its prompt but
// the last.
func (o pieceLegs) decodePieces(ctx context.Context, st *requestState, b *binding) *LegError {
	for {
		end := b.decodePieces.End(b.cut.tokens, st.req.PromptTokens)
		if end >= st.req.PromptTokens || end > st.bind.certain {
			return nil
		}
		kept, failed := o.decodePiece(ctx, st, b, end)
		if failed != nil {
			o.reportFailure(b.decode, st, b, failed)
			b.releaseDecode()
			return failed
		}
		if b.cut.done, b.cut.tokens = b.cut.done+1, end; !kept {
			return nil // its cache keeps nothing: what is left is computed at once
		}
	}
}

// decodePiece sends the leg of a prompt's tokens up to one, and reports whether the server's cache
// still had what it had computed of them before.
func (o pieceLegs) decodePiece(ctx context.Context, st *requestState, b *binding, end int) (kept bool, failed *LegError) {
	server, id := b.decode.Server(), connector.AttemptID()
	ctx, span := spans.StartLeg(ctx, o.Tracer, "decode", server.ID(), id)
	span.SetKind("piece")
	span.SetPiece(b.cut.done+1, end)
	defer func() { endLegSpan(span, failed) }()
	body := connector.PieceBody(st.req.Body, st.bind.prefix.tokens.IDs[:end])
	_, answer, failed := o.sendWhole(ctx, o.Config.PrefillTimeout, AggregatedLeg, server, st, api.Completions.Path, id, connector.LegRequest{Body: body})
	if failed != nil {
		return false, failed
	}
	usage, _ := api.Completions.ReadUsage(answer)
	computed := end - b.cut.tokens
	if usage.Cached.Known {
		computed = end - usage.Cached.Tokens
	}
	b.cut.computed += computed
	o.Metrics.pieces.WithLabelValues("on_decode").Inc()
	if kept = b.cut.done == 0 || !usage.Cached.Known || usage.Cached.Tokens >= b.cut.tokens-server.BlockTokens(); !kept {
		server.RecordLostPiece(time.Now())
		o.Metrics.pieces.WithLabelValues("lost").Inc()
	}
	return kept, nil
}
