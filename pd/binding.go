package pd

import (
	"net/http"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
)

// binding is a chosen alternative with its servers claimed, and what its legs come to.
// prefill is nil when decode runs alone or the hand-off is there already.
type binding struct {
	chosen       cost.Alternative
	aggregated   cost.Terms // of the cheapest decode server alone, beside a pair; zero: none can
	reason       string
	prefill      *pools.Lease
	decode       *pools.Lease
	handoff      *connector.Handoff
	pullFrom     *pools.Server         // from which the prompt's beginning is pulled; nil: from none
	fetch        fetch                 // of prefill, before it computes the rest
	reads        *answerkv.Answer      // whose KV prefill reads first; nil: none's
	readsTokens  int                   // leading tokens of the prompt in it
	cachedTokens int                   // of the prompt, on decode beforehand
	tokenBytes   float64               // of KV: that a token has as it crosses to decode
	expected     cost.ExpectedTransfer // of the prompt's KV that has not begun to move
	hits         hits                  // of the prompt, on the server that computes it; none where a hand-off is there already
	choice       decision.Choice       // what it was chosen from
	candidates   cost.Room             // that choice's servers lie in, where they are few
	upTo         int                   // token of the prompt that the next prefill leg goes to; 0: the whole prompt
	behindCuts   []behindCut           // the rest behind upTo, which follows at once; none: it waits for its turn, or there is none
	cut          cutPrompt             // pieces so far
	decodePieces cost.DecodePieces     // how decode computes the prompt by itself
	batch        time.Duration         // that decode's batch is predicted to take meanwhile, where that is at once
	span         spans.Leg             // of decode's leg
	answer       *Answer               // nil until a leg has given it, or begun it
	first        firsttoken.Case
	prefillSaid  *enginehttp.AnswerMemory // of the answer that prefill's token is from, as long as decode's leg may be sent; nil: it does not come back
	legIDs       *answerkv.IDs            // of a stream's decode leg, where they are wanted
	hold         *hold                    // of prefill's token; nil: the client gets it at once
	begunAt      time.Time                // when the client was given prefill's token
	continuedAt  time.Time                // of decode's first token
	behindSent   bool                     // decode was sent the rest behind prefill's token
	pull         *pull                    // of decode's leg, which others may wait for; nil: none is worth it
	prediction   *prediction              // of the servers' caches; nil: nothing was predicted
}

// hasPulled reports whether decode has all pieces of the prompt that it was to pull.
func (b *binding) hasPulled() bool {
	if b.cut.pulled == nil {
		return true
	}
	select {
	case <-b.cut.pulled:
		return true
	default:
		return false
	}
}

// undo releases a binding that nothing was done with.
func (b *binding) undo() {
	if b == nil {
		return
	}
	b.prediction.takeBack()
	b.release()
}

// release gives the places back; twice is as good as once. A nil binding has none.
func (b *binding) release() {
	if b == nil {
		return
	}
	if b.prefill != nil {
		b.prefill.Release()
	}
	b.releaseBehindCuts()
	if b.decode != nil {
		b.releaseDecode()
	}
}

// releaseDecode gives decode's place back, for which no KV is to come any more.
func (b *binding) releaseDecode() {
	b.decode.Release()
	b.expected.End()
}

func (b *binding) releaseBehindCuts() {
	for _, behind := range b.behindCuts {
		behind.prefill.Release()
	}
}

// releaseUnlessAnswered gives decode's place back where decode says nothing.
func (b *binding) releaseUnlessAnswered() {
	if b.answer == nil {
		b.releaseDecode()
	}
}

// source is the prefill server of the pair, nil where decode runs alone.
func (b *binding) source() *pools.Server {
	switch {
	case b.handoff != nil:
		return b.handoff.From
	case b.prefill != nil:
		return b.prefill.Server()
	}
	return nil
}

// failedTransfer reports whether a failed leg is what a failed transfer looks like.
func (b *binding) failedTransfer(failed *LegError) bool {
	c := connector.Of(b.decode.Server())
	switch {
	case failed.Leg == AggregatedLeg:
		return false
	case c.DecodeDriven && failed.Status >= http.StatusInternalServerError && failed.Kind == Broken:
		return true // prefill's answer as well as decode's
	case !failed.engineFault():
		return false
	case c.TransferFault != nil:
		return c.TransferFault(failed.engineMessage())
	}
	return failed.Leg == DecodeLeg
}

// promptSide says whose prompt and cached tokens the client sees.
func (b *binding) promptSide() api.PromptUsage {
	if b.handoff == nil {
		return api.PromptUsage{Own: b.cut.computed}
	}
	if !b.handoff.HasKV() || connector.Of(b.decode.Server()).ReportsCachedTokens {
		return api.PromptUsage{}
	}
	coverage := b.handoff.Coverage()
	return api.PromptUsage{Override: true, Prefill: coverage.Usage, Handed: coverage.Tokens}
}

// countedUsage is decode's usage with the cached part of the prompt on the server that computed it. Where
// that is prefill's, and decode's usage never came, so is the prompt's length: what is cached is a part of it.
func (b *binding) countedUsage(decode api.Usage) api.Usage {
	if b.promptSide().Override {
		coverage := b.handoff.Coverage()
		decode.Cached = coverage.Cached
		if !decode.Prompt.Known && coverage.Prompt > 0 {
			decode.Prompt = api.Count{Tokens: coverage.Prompt, Known: true}
		}
		return decode
	}
	if b.handoff == nil && decode.Cached.Known {
		decode.Cached.Tokens = max(0, decode.Cached.Tokens-b.cut.computed)
	}
	return decode
}

// hits is what the server that computes a request's prompt was known to hold of it when it
// was chosen.
type hits struct {
	server string
	held   cached.Tokens
}
