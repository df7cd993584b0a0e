package pd

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/transcript"
)

// Prefill computes one token, and decode would compute the same one again once it has the KV.
// Where decode can go on behind it, that token is the first one of the answer: the client gets
// it at once, and the KV travels meanwhile. Decode is asked for the rest as for that of a
// broken stream (pd/transcript), by the token ids of the prompt and of the token, and with the
// hand-off of the prompt.

// FirstTokenFrom says which leg says the first token of an answer.
type FirstTokenFrom string

const (
	FirstFromPrefill FirstTokenFrom = "prefill" // where it is known to be that of an undivided run
	FirstFromDecode  FirstTokenFrom = "decode"  // always
)

// Validate reports what is wrong with it, nil if nothing.
func (f FirstTokenFrom) Validate() error {
	if f != FirstFromPrefill && f != FirstFromDecode {
		return errors.New("first-token must be prefill or decode")
	}
	return nil
}

// firstTokenCase is what decides about the first token of an answer.
type firstTokenCase struct {
	Setting     FirstTokenFrom
	Dialect     *api.Dialect
	Proved      bool     // both servers' engines are known to take it
	BlockTokens int      // of a KV block on both; 0: not known, or not the same
	Field       string   // of the request, for which decode has to say it
	Stops       []string // that end the answer
	Bounded     bool     // it is known how long the answer may be
	OneToken    bool     // the answer is one token long
	Continues   bool     // a stream that broke: it has its first token
	LateNext    bool     // the second token is predicted to come later than the request's objective between tokens

	Said   *api.FirstToken        // by prefill; nil: it was not asked yet
	Handed connector.HandedBlocks // with it
}

// firstTokenUse is what becomes of prefill's token.
type firstTokenUse string

const (
	tokenUnused  firstTokenUse = "unused"  // decode says its own
	tokenFirst   firstTokenUse = "first"   // the answer begins with it
	tokenIsAll   firstTokenUse = "all"     // the answer is no longer
	tokenRedrawn firstTokenUse = "redrawn" // decode says the same one again
)

// firstTokenFrom says what becomes of prefill's token, and why. Before prefill is asked
// tokenUnused is final, and everything else is what may come.
func firstTokenFrom(c firstTokenCase) (use firstTokenUse, reason string) {
	switch {
	case c.Setting != FirstFromPrefill:
		return tokenUnused, "off"
	case c.Continues:
		return tokenUnused, "continued"
	case c.Dialect != api.Chat && c.Dialect != api.Completions:
		return tokenUnused, "api"
	case !c.Proved:
		return tokenUnused, "engine"
	case c.Field != "":
		return tokenUnused, "request"
	case c.Said == nil && c.OneToken:
		return tokenIsAll, "one_token"
	case c.LateNext && !c.OneToken:
		return tokenUnused, "itl"
	case c.BlockTokens == 0 && !c.OneToken:
		return tokenUnused, "block_size"
	case !c.Bounded:
		return tokenUnused, "length"
	case c.Said == nil:
		return tokenFirst, ""
	}
	return c.judge()
}

// judge is firstTokenFrom once prefill has answered. What depends on the token itself must not
// make decode draw another one: tokens that prefill cannot say would be rarer then than they
// should be.
func (c *firstTokenCase) judge() (use firstTokenUse, reason string) {
	said := c.Said
	blocks := 0
	if c.BlockTokens > 0 {
		blocks = (said.Prompt + c.BlockTokens - 1) / c.BlockTokens
	}
	switch {
	case c.OneToken && said.Choices == 1:
		return tokenIsAll, "one_token"
	case said.Choices != 1 || said.IDs != 1 || said.Prompt == 0:
		return tokenUnused, "no_ids"
	case said.Prompt%c.BlockTokens == 0:
		// The token begins a KV block, of which prefill has none: decode's engine dies
		// (vllm nixl/base_worker.py, assert num_decode_blocks <= len(prefill_group)).
		return tokenUnused, "block_boundary"
	case c.Handed.Tokens != said.Prompt || c.Handed.Blocks != blocks:
		return tokenUnused, "hand_off"
	case said.Finish == "stop": // only from here on does it matter which token it is
		return tokenIsAll, "stop"
	case said.Finish != "length":
		return tokenRedrawn, "finish_reason"
	case said.NotText:
		return tokenRedrawn, "not_text"
	case said.Text == "" || endsInHalf(said.Text):
		return tokenRedrawn, "no_text"
	case mayBeginStop(said.Text, c.Stops):
		return tokenRedrawn, "stop_string" // of which decode would see the end alone
	}
	return tokenFirst, "continues"
}

// FirstTokenUse is what became of the token of a prefill leg, and why.
type FirstTokenUse struct {
	Use, Reason string
	Field       string // of the request, where that is why
}

// String is empty where the servers or the API of the request are all that is why.
func (u FirstTokenUse) String() string {
	if u.Reason == "off" || u.Reason == "engine" || u.Reason == "api" {
		return ""
	}
	text := u.Use
	if u.Reason != "" {
		text += ": " + u.Reason
	}
	if u.Field != "" {
		text += " (" + u.Field + ")"
	}
	return text
}

// endsInHalf reports whether a text ends in what stands for a part of a character.
func endsInHalf(text string) bool { return strings.HasSuffix(text, "\uFFFD") }

// mayBeginStop reports whether a text ends with the beginning of a stop string.
func mayBeginStop(text string, stops []string) bool {
	return slices.ContainsFunc(stops, func(stop string) bool {
		for n := 1; n < len(stop); n++ {
			if strings.HasSuffix(text, stop[:n]) {
				return true
			}
		}
		return false
	})
}

// stopsOf are the stop strings of a request.
func stopsOf(body api.Body) (stops []string) {
	if one, ok := body.Get("stop").String(); ok {
		return []string{one}
	}
	list, _ := body.Get("stop").Array()
	for _, v := range list {
		stop, _ := v.String()
		stops = append(stops, stop)
	}
	return stops
}

// firstTokens are the first tokens of the answers that an orchestrator gives.
type firstTokens struct{ o *Orchestrator }

// mayBeFromPrefill reports whether the client of a stream will get prefill's token, as far as the
// request goes: what is predicted of its first token depends on it. The client of a whole answer
// sees no token before the last.
func (f firstTokens) mayBeFromPrefill(req *Request) bool {
	servers := f.o.Fleet.Servers()
	if !req.Stream || f.o.Binder.Config.FirstToken != FirstFromPrefill || !slices.ContainsFunc(servers, connector.MaySayFirst) {
		return false // in which case its body need not be looked at
	}
	c := f.caseOf(req)
	c.Proved, c.BlockTokens = true, 1
	f.judgeBody(&c, req)
	use, _ := firstTokenFrom(c)
	return use != tokenUnused
}

// caseOf is what decides about a request's first token before its servers and its body are
// looked at.
func (f firstTokens) caseOf(req *Request) firstTokenCase {
	return firstTokenCase{Setting: f.o.Binder.Config.FirstToken, Dialect: req.Dialect, OneToken: req.MaxOutput == 1}
}

// judgeBody adds what the body of a request decides.
func (f firstTokens) judgeBody(c *firstTokenCase, req *Request) {
	m, _ := f.o.Fleet.Model(req.Model)
	most, _ := req.bound()
	c.Bounded, c.Field = !asksForNothing(req) && (most > 0 || m.MaxModelLen > 0), transcript.NotFromPrefill(req.Body)
	c.Stops = stopsOf(req.Body)
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
	_, itl := f.o.Binder.Config.SLO(st.req, st.bind.base)
	if terms := &b.chosen.Terms; itl > 0 && terms.FirstGap() > itl {
		b.first.LateNext, terms.FirstFromPrefill = true, false
	}
	if b.first.Proved { // else the rest does not matter
		b.first.BlockTokens = blockTokens(from, to)
		f.judgeBody(&b.first, st.req)
	}
	use, reason := firstTokenFrom(b.first)
	if use == tokenUnused {
		f.record(b, use, reason)
		return connector.First{}
	}
	plan := connector.First{Wanted: true, All: use == tokenIsAll}
	if !isGreedy(st.req.Body) && !plan.All {
		plan.Seed = 1 + rand.Int64N(math.MaxInt64-1)
	}
	return plan
}

// isGreedy reports whether each token is the likeliest one, and none is drawn.
func isGreedy(body api.Body) bool {
	temperature, err := strconv.ParseFloat(string(body.Get("temperature")), 64)
	return err == nil && temperature == 0
}

// use makes of prefill's token what it is good for.
func (f firstTokens) use(st *requestState, b *binding, t *connector.Transfer, h *connector.Handoff) {
	if !t.First.Wanted {
		return
	}
	said := api.ReadFirstToken(h.First)
	b.first.Said, b.first.Handed = &said, h.Blocks
	use, reason := firstTokenFrom(b.first)
	switch use {
	case tokenFirst:
		if err := f.beginWith(st, h, &said); err != nil {
			use, reason = tokenRedrawn, "length"
			h.RedrawFirst(t.First)
		}
	case tokenRedrawn:
		h.RedrawFirst(t.First)
	case tokenIsAll:
		h.WholeAnswer = wholeFromPrefill(st.req, h.First)
		f.o.Metrics.countStranded(h)
	case tokenUnused:
	}
	f.record(b, use, reason)
}

// beginWith begins the answer with prefill's token, and makes decode's leg the rest of it.
func (f firstTokens) beginWith(st *requestState, h *connector.Handoff, token *api.FirstToken) error {
	answer, err := api.ParseBody(h.First)
	if err != nil {
		return err
	}
	// An answer that is not streamed is begun anew by each attempt.
	m, _ := f.o.Fleet.Model(st.client.Model)
	said := transcript.ForFirst(st.client.forTranscript(), m.MaxModelLen, f.o.Config.ContinueByText)
	if said == nil {
		return errNoTranscript
	}
	said.StartLeg(streamEngine(h.From), api.Body{})
	var begun []byte
	for data := range api.Events(api.FirstEvents(st.req.Dialect, answer, wantsEachUsage(st.req.Body))) {
		begun = fmt.Appendf(begun, "data: %s\n\n", said.Record(data))
	}
	if err := said.BehindFirst(api.TextLength(gjson.GetBytes(h.First, "choices.0.logprobs"))); err != nil {
		return err
	}
	if st.req.Stream {
		st.transcript, st.begun = said, begun
	}
	h.GoOnBehind(st.req.Dialect, token, said.Limits())
	return nil
}

var errNoTranscript = errors.New("the answer has no transcript")

// wholeFromPrefill is the answer to the client where prefill's is all of it.
func wholeFromPrefill(req *Request, said []byte) []byte {
	answer, err := api.ParseBody(said)
	if err != nil {
		return nil
	}
	answer = answer.With(api.Remove(api.HandoffField))
	if asked, _ := req.Body.Get("return_token_ids").Bool(); !asked {
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
func (f firstTokens) record(b *binding, use firstTokenUse, reason string) {
	f.o.Metrics.firstTokens.WithLabelValues(string(use), reason).Inc()
	b.choice.FirstToken = FirstTokenUse{string(use), reason, b.first.Field}
}
