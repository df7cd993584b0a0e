package pd

import (
	"math"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pools"
)

// transferSample is the transfer that a decode leg begins with.
type transferSample struct {
	links    *cost.Links   // nil: the leg teaches nothing of them
	server   *pools.Server // that decodes
	from, to cost.LinkEnd
	bytes    float64
	own      time.Duration  // what the servers are predicted to need themselves until the first event
	slack    time.Duration  // by which that may be wrong
	step     time.Duration  // of decoding
	transfer *cost.Transfer // nil: it is not known when it began
}

// How far predictions may be off before what remains is taken for the transfer.
const (
	prefillSlack = 0.5 // of prefill and the wait for it, where legs run together
	decodeSlack  = 0.3 // of decoding, where the answer comes as a whole
	// readingPerToken is the most that decode's engine needs to make the prompt's tokens of the request,
	// before it asks for their KV: a tokenizer of Hugging Face's does about a million in a second. A
	// guess; nothing is the least.
	readingPerToken = time.Microsecond
)

// beginTransfer notes that a decode leg, which is sent now, moves KV over the link of its
// pair. What the leg can teach of it:
//
//   - decode after prefill, streamed: the time to its first event, less a step
//   - the same, not streamed: the time of the whole answer, less its decoding
//   - together with prefill, or with prefill on decode's behalf: the same less prefill and
//     the wait for it, as predicted. No engine says when its prefill was done: what SGLang's
//     prefill server answers comes after the transfer.
//
// What is taken off may be wrong, so that the transfer took something between two bounds.
// Such a sample only teaches where the belief is outside of them: a fallback to TCP, and
// not what twice the bandwidth would change. So does one of a long prompt of which little
// moves, as each turn of an agent has it: decode may have read its text for longer than the KV
// traveled. Where decode has to wait for room, or
// computes prompts itself, or has pulled pieces of the prompt before, its time says nothing of the link.
// The link is taken all the same, unless it waits for room.
func (ch *Chooser) beginTransfer(st *requestState, b *binding, now time.Time) transferSample {
	c := transferSample{server: b.decode.Server(), step: b.chosen.Terms.Step}
	b.expected.End()
	if !b.handoff.HasKV() || b.chosen.Terms.KVRoom > 0 || !ch.kvFits(c.server, now) {
		return c
	}
	reading := time.Duration(st.req.PromptTokens) * readingPerToken / 2
	c.own, c.slack = ch.Cost.HandOff+c.step+reading, reading
	moved, beside := b.handoff.Coverage().Tokens, movesWithPrefill(c.server)
	if beside {
		prefill := b.chosen.Terms.Queue + b.chosen.Terms.Prefill
		moved, c.own, c.slack = st.req.PromptTokens, c.own+prefill, c.slack+time.Duration(prefillSlack*float64(prefill))
	}
	if moved == 0 {
		return c
	}
	c.bytes = float64(ch.lacking(b, moved)) * b.tokenBytes
	c.from, c.to = linkEndOf(b.handoff.From), linkEndOf(c.server)
	if b.cut.done == 0 && !computesPrompts(c.server, now) {
		c.links = ch.Links
	}
	if !beside { // else it has not begun yet
		c.transfer = ch.Links.Begin(c.from, c.to, c.bytes, now)
	}
	return c
}

// kvFits reports whether all KV that a decode server has or gets now fits there, by what is known: else a request that
// counted on what would come free by now may wait in the engine's queue.
func (ch *Chooser) kvFits(s *pools.Server, now time.Time) bool {
	prefills, decodes := s.InFlightOfLegs(now)
	free, known := s.KVFree(prefills, decodes, s.FreshLoad(now), now)
	return !known || free+ch.Links.KVComing(s.ID()) >= 0
}

// movesWithPrefill reports whether a server gets a prompt's KV while prefill computes it.
func movesWithPrefill(decode *pools.Server) bool {
	by := connector.Of(decode)
	return by.ConcurrentLegs || by.DecodeDriven
}

// expectTransfer notes that decode's server is to pull what it lacks of a prompt from prefill's, when that is done.
// What another request brings it meanwhile is not known yet.
func (ch *Chooser) expectTransfer(r *bindRequest, b *binding, now time.Time) cost.ExpectedTransfer {
	lacking := ch.lacking(b, r.req.PromptTokens)
	if lacking <= 0 || movesWithPrefill(b.decode.Server()) {
		return cost.ExpectedTransfer{}
	}
	return ch.Links.Expect(linkEndOf(b.prefill.Server()), linkEndOf(b.decode.Server()), float64(lacking)*b.tokenBytes, contextWork(r.req).Tokens, b.chosen.Terms.PrefilledIn(), now)
}

// lacking is how many of so many tokens of a prompt decode has yet to pull: not those that it holds or has pulled
// with pieces.
func (ch *Chooser) lacking(b *binding, tokens int) int {
	if ch.Cost.DecodeReuse {
		tokens -= min(tokens, max(b.cachedTokens, b.cut.tokens))
	}
	return tokens
}

func linkEndOf(s *pools.Server) cost.LinkEnd {
	return cost.LinkEnd{ID: s.ID(), Topology: topologyOf(s)}
}

// first teaches the link the time between decode's dispatch and its first event.
func (c *transferSample) first(took time.Duration, now time.Time) {
	c.learn(took-c.own, c.slack, now)
}

// whole teaches the link the time between decode's dispatch and its whole answer.
func (c *transferSample) whole(took time.Duration, output api.Count, now time.Time) {
	if output.Known && output.Tokens > 0 {
		decoding := time.Duration(output.Tokens-1) * c.step
		c.learn(took-c.own-decoding, c.slack+time.Duration(decodeSlack*float64(decoding)), now)
	}
}

func (c *transferSample) learn(took, slack time.Duration, now time.Time) {
	switch {
	case !c.teaches(now):
	case c.transfer != nil:
		c.transfer.Observe(took, slack, now)
	default:
		c.links.Observe(c.from, c.to, c.bytes, took, slack, now)
	}
}

// teaches reports whether the time of the leg, which ends now, says something of the link.
func (c *transferSample) teaches(now time.Time) bool {
	return c.links != nil && !computesPrompts(c.server, now)
}

// end says that the transfer is no longer under way.
func (c *transferSample) end() {
	if c.transfer != nil {
		c.transfer.End(time.Now())
	}
}

// computesPrompts reports whether a server has prompts to compute, between the steps of
// its batch.
func computesPrompts(s *pools.Server, now time.Time) bool {
	return s.InFlight(pools.Prefill, now).Requests > 0
}

// countAnswer counts the tokens of an answer, and learns from its usage how long the prompt
// was. Its cached tokens are those on the server that computed the prompt.
func (o *Orchestrator) countAnswer(st *requestState, u api.Usage, events int, now time.Time) {
	o.Metrics.countTokens(st, u, events)
	o.recordAnswer(st, u, outputTokens(u, events), now)
	o.Binder.learnPrompt(st, u.Prompt, now)
	o.Binder.judgeStore(st, u.Cached)
}

// judgeStore holds what a KV store outside the engines was believed to have of the prompt, behind
// what the server that computed it has itself, against what that found cached.
func (ch *Chooser) judgeStore(st *requestState, cached api.Count) {
	if cached.Known && st.teachesStore() {
		ch.Locality.Index.RecordCached(st.hits.server, &st.bind.prefix.hits, cached.Tokens)
	}
}

// teachesStore reports whether what is found cached of the prompt shows what a KV store has of it.
func (st *requestState) teachesStore() bool {
	return st.hits.held.Disk > st.hits.held.GPU && !st.bind.continues && st.req.Answers <= 1
}

// learnPrompt learns from an answer how long its prompt was. One that continues a stream has
// another prompt than the request, and several samples may each count theirs.
func (ch *Chooser) learnPrompt(st *requestState, prompt api.Count, now time.Time) {
	if st.bind.continues || !prompt.Known || st.req.Answers > 1 || !st.req.Body.Get("truncate_prompt_tokens").Null() {
		return
	}
	ch.Metrics.choices.ObservePrompt(st.req.Model, st.req.PromptTokens, prompt.Tokens)
	ch.Prompts.Observe(st.client.Size, prompt.Tokens, now)
	st.bind.prefix.counted(prompt.Tokens)
}

// mostTokens is how many tokens the usage of an answer can count, of its prompt or of its output. An engine that counts more
// is wrong, and the tenant's limits and what is expected of other answers would long bear it. A response may be that of
// several turns, with a tool between two.
func (o *Orchestrator) mostTokens(st *requestState) int {
	longest := o.Fleet.LongestContext(st.bind.base)
	if longest == 0 || !st.req.Dialect.Split || st.req.Dialect == api.Responses {
		return math.MaxInt
	}
	return min(longest, math.MaxInt32) * max(1, st.req.Answers)
}

// learnOutput learns from an answer that came to its end how long answers are, and keeps
// how far off the prediction was. One that another stream began is not a whole answer.
func (ch *Chooser) learnOutput(st *requestState, u api.Usage, now time.Time) {
	tokens := u.Output.Tokens / max(1, st.req.Answers)
	if st.bind.continues || st.req.OutputTokens <= 0 || tokens <= 0 {
		return
	}
	ch.Metrics.choices.ObserveOutput(st.req.Model, st.req.OutputTokens, tokens)
	ch.Outputs.Observe(st.req.Expected(), tokens, now)
}

// gapsPerSample is how many gaps between tokens make one sample of a decode step:
// events that travel together have gaps of nothing and of twice the step.
const gapsPerSample = 16

// stepSampler measures the gaps between the tokens of one stream.
type stepSampler struct {
	server *pools.Server
	itl    histogram.ServerObserver
	recent *history.Series
	sum    time.Duration
	gaps   int
	// sampled are the gaps of this sample.
	sampled [gapsPerSample]time.Duration
	// computing: the server had prompts to compute at the first gap of the sample. Steps that compute them
	// too are no steps of decoding.
	computing bool
	// several answers have their tokens of one step one behind the other in the stream: its gaps are no steps.
	several bool
}

func (o *Orchestrator) newStepSampler(server *pools.Server, req *Request) *stepSampler {
	return &stepSampler{
		server: server, itl: o.Metrics.itl.Of(req.Model, server.ID()), recent: o.History.Model(req.Model, time.Now()), several: req.Answers > 1,
	}
}

func (p *stepSampler) observeGap(gap time.Duration) {
	p.itl.Observe(gap)
	if p.gaps == 0 {
		p.computing = computesPrompts(p.server, time.Now())
	}
	p.sum += gap
	p.sampled[p.gaps] = gap
	if p.gaps++; p.gaps < gapsPerSample {
		return
	}
	now := time.Now()
	p.recent.RecordGaps(p.sampled[:], now)
	p.learn(p.sum/gapsPerSample, p.computing || computesPrompts(p.server, now), now)
	p.sum, p.gaps = 0, 0
}

// learn teaches the server's curve one step. Of one in which it computed prompts too the batch's own took no longer:
// a server that always does would else be believed to decode as slowly as at its start for ever.
func (p *stepSampler) learn(step time.Duration, computing bool, now time.Time) {
	if p.several {
		return
	}
	c := candidateOf(p.server, now)
	if computing {
		p.server.ObserveStepAtMost(step, max(c.Running, 1), c.KVUsed, now)
	} else {
		p.server.ObserveStep(step, max(c.Running, 1), c.KVUsed, now)
	}
}

// end records the gaps that were too few for a sample: of short answers with those of others.
func (p *stepSampler) end() {
	if p.gaps == 0 {
		return
	}
	now := time.Now()
	p.recent.RecordGaps(p.sampled[:p.gaps], now)
	if p.several {
		return
	}
	computing := p.computing || computesPrompts(p.server, now)
	if step := p.server.JoinGaps(p.sum, p.gaps, computing, gapsPerSample, now); step > 0 {
		p.learn(step, computing, now)
	}
}
