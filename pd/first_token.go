package pd

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pd/transcript"
)

// Prefill computes one token, and decode would compute the same one again once it has the KV.
// Where decode can go on behind it, that token is the first one of the answer: the client gets
// it at once, and the KV travels meanwhile; or, where the second token may come later than the
// request's objective for gaps allows, so much later (hold). Decode is asked for the rest as for
// that of a broken stream (pd/transcript), by the token ids of the prompt and of the token, and with
// the hand-off of the prompt.

// firstTokens are the first tokens of the answers that an orchestrator gives.
type firstTokens struct{ o *Orchestrator }

// mayBeFromPrefill reports whether the client of a stream will get prefill's token, as far as the
// request goes: what is predicted of its first token depends on it. The client of a whole answer
// sees no token before the last.
func (f firstTokens) mayBeFromPrefill(req *Request) bool {
	servers := f.o.Fleet.Servers()
	if !req.Stream || req.proxied || f.o.Binder.Config.FirstToken != firsttoken.FromPrefill || !slices.ContainsFunc(servers, connector.MaySayFirst) {
		return false // in which case its body need not be looked at
	}
	c := f.caseOf(req)
	c.Proved, c.BlockTokens = true, 1
	f.judgeBody(&c, req)
	use, _ := c.Decide()
	return use != firsttoken.Unused
}

// caseOf is what decides about a request's first token before its servers and its body are
// looked at.
func (f firstTokens) caseOf(req *Request) firsttoken.Case {
	return firsttoken.Case{Setting: f.o.Binder.Config.FirstToken, Dialect: req.Dialect, OneToken: req.MaxOutput == 1}
}

// judgeBody adds what the body of a request decides.
func (f firstTokens) judgeBody(c *firsttoken.Case, req *Request) {
	m, _ := f.o.Fleet.Model(req.Model)
	most, _ := req.bound()
	c.Bounded, c.Field = !asksForNothing(req) && (most > 0 || m.MaxModelLen > 0), transcript.NotFromPrefill(req.Body, req.OnlyText)
	c.Stops = firsttoken.Stops(req.Body)
}

// asksForNothing reports whether a bound on the answer is 0, which engines refuse.
func asksForNothing(req *Request) bool {
	return slices.ContainsFunc(req.Dialect.Limits(), func(field string) bool { return req.MaxOutput == 0 && !req.Body.Get(field).Null() })
}

// plan says what prefill's token is asked for.
func (f firstTokens) plan(st *requestState, b *binding) connector.First {
	from, to := b.prefill.Server(), b.decode.Server()
	b.first = f.caseOf(st.req)
	b.first.Continues, b.first.Proved = st.bind.continues, connector.SaysFirst(from, to)
	if b.first.Proved { // else the rest does not matter
		b.first.BlockTokens = blockTokens(from, to)
		f.judgeBody(&b.first, st.req)
	}
	use, reason := b.first.Decide()
	if use == firsttoken.Unused {
		f.record(b, use, reason)
		return connector.First{}
	}
	plan := connector.First{Wanted: true, All: use == firsttoken.All}
	if !firsttoken.IsGreedy(st.req.Body) && !plan.All {
		plan.Seed = 1 + rand.Int64N(math.MaxInt64-1)
	}
	return plan
}

// firstSaid is what prefill's answer is read into where a stream may begin with its token. Its zero value is of one that
// is read as any other.
type firstSaid struct {
	prompt *transcript.Prompt       // the ids of the prompt, which are as long as all else
	memory *enginehttp.AnswerMemory // of all
}

// use makes of prefill's token what it is good for.
func (f firstTokens) use(st *requestState, b *binding, t *connector.Transfer, h *connector.Handoff, said firstSaid) {
	if !t.First.Wanted {
		return
	}
	answered := b.first // what was said is as long as the prompt, and not kept with the binding
	answered.Said, answered.Handed = h.First, h.Blocks
	use, reason := answered.Decide()
	switch use {
	case firsttoken.First:
		if err := f.beginWith(st, h, said.prompt); err != nil {
			use, reason = firsttoken.Redrawn, "length"
			h.SayFirst(t.First)
			break
		}
		b.prefillSaid = said.memory
	case firsttoken.Redrawn:
		h.SayFirst(t.First)
	case firsttoken.All:
		h.WholeAnswer = wholeFromPrefill(st.req, h.First.Answer)
		f.o.Metrics.countStranded(h)
	case firsttoken.Unused:
		h.SayFirst(connector.First{})
	}
	f.record(b, use, reason)
}

// beginWith begins the answer with prefill's token, and makes decode's leg the rest of it.
func (f firstTokens) beginWith(st *requestState, h *connector.Handoff, prompt *transcript.Prompt) error {
	token := h.First
	m, _ := f.o.Fleet.Model(st.client.Model)
	of := st.client.forTranscript()
	if !st.req.Stream { // it is begun anew by each attempt
		limits, ok := of.LimitsBehindFirst(m.MaxModelLen, token.Prompt)
		if !ok {
			return errNoTranscript
		}
		h.GoOnBehind(limits)
		return nil
	}
	said := transcript.ForFirst(of, m.MaxModelLen, f.o.Config.ContinueByText)
	if said == nil {
		return errNoTranscript
	}
	said.StartLeg(streamEngine(h.From), api.Body{})
	said.RecordPrompt(token.PromptIDs(), prompt)
	var begun []byte
	var c api.Chunk
	for _, data := range token.Events(st.req.Dialect, api.AsksForIDs(st.client.Body), wantsEachUsage(st.req.Body)) {
		st.req.Dialect.ReadEvent(data, &c, nil, nil)
		begun = fmt.Appendf(begun, "data: %s\n\n", said.Record(new([]byte), &c, data))
	}
	if err := said.BehindFirst(token.Characters()); err != nil {
		return err
	}
	st.transcript, st.begun = said, begun
	h.GoOnBehind(said.Limits())
	return nil
}

var errNoTranscript = errors.New("the answer has no transcript")

// wholeFromPrefill is the answer to the client where prefill's is all of it.
func wholeFromPrefill(req *Request, said api.Answer) []byte {
	answer := said.Body().With(api.Remove(api.HandoffField))
	if !api.AsksForIDs(req.Body) {
		answer = api.WithoutIDs(answer, req.Stream)
	}
	return answer.Bytes()
}

// wantsEachUsage reports whether the client wants the usage with each event.
func wantsEachUsage(request api.Body) bool {
	options, _ := request.Get("stream_options").Object()
	each, _ := options.Get("continuous_usage_stats").Bool()
	return each
}

// record counts what became of prefill's token, and keeps it with the decision.
func (f firstTokens) record(b *binding, use firsttoken.Use, reason string) {
	f.o.Metrics.firstTokens.WithLabelValues(string(use), reason).Inc()
	b.choice.FirstToken = firsttoken.Outcome{Use: use, Reason: reason, Field: b.first.Field}
}
