package pd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// bound is a request that was bound just now, on a pair or on decode alone.
func (f *testFleet) bound(t testing.TB, alone bool) (*requestState, *binding) {
	t.Helper()
	st := f.arrives(testPrompt(14_000), time.Now())
	st.bind.tried.mustAggregate = alone
	b, err := f.Binder.bindNow(&st.bind)
	if err != nil || (b.prefill == nil) != alone {
		t.Fatalf("%+v, %v", b, err)
	}
	t.Cleanup(b.release)
	return st, b
}

// The source of a binding's KV is the server that prefilled, or is to; decode alone has none.
func TestBinding_TheSourceIsTheServerThatPrefills(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	if _, b := f.bound(t, true); b.source() != nil {
		t.Errorf("decode alone has the source %s", b.source().ID())
	}
	st, b := f.bound(t, false)
	if b.source() != b.prefill.Server() {
		t.Error("the source is not the server that is to prefill")
	}
	b.handoff = st.transfer(b).Handoff()
	if b.prefill = nil; b.source() != b.handoff.From {
		t.Error("the source is not the server that prefilled")
	}
}

// What a failed transfer looks like depends on which leg brings the KV.
func TestBinding_WhatAFailedTransferLooksLike(t *testing.T) {
	failing := func(leg Leg, kind Kind, status int) *LegError {
		return &LegError{Leg: leg, Kind: kind, Status: status, Err: errEmpty}
	}
	for connector, cases := range map[string]map[*LegError]bool{
		"nixl": {
			failing(DecodeLeg, Broken, 500): true, failing(DecodeLeg, Broken, 502): false, failing(PrefillLeg, Broken, 500): false,
			failing(AggregatedLeg, Broken, 500): false, failing(DecodeLeg, Broken, 0): false,
		},
		"llmd-sidecar": {
			failing(DecodeLeg, Broken, 500): true, failing(DecodeLeg, Broken, 502): true, failing(DecodeLeg, Busy, 503): false, failing(DecodeLeg, Refused, 400): false,
			failing(DecodeLeg, Broken, 499): false, failing(DecodeLeg, Broken, 0): false, failing(AggregatedLeg, Broken, 502): false,
		},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		var specs []pools.Spec
		for _, s := range f.Fleet.Servers() {
			spec := s.Spec
			spec.Connector = connector
			specs = append(specs, spec)
		}
		if err := f.Fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		_, b := f.bound(t, false)
		for failed, want := range cases {
			if got := b.failedTransfer(failed); got != want {
				t.Errorf("%s: %s with status %d, %s: a failed transfer %v", connector, failed.Leg, failed.Status, failed.Kind, got)
			}
		}
	}
}

// A request that is bound is a sign that its model is served: no probe of its deadlines is due.
func TestBindNow_NoDeadlineProbeIsDueThen(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.bound(t, false)
	if f.Binder.deadlineProbes.Take(testModel, time.Now()) {
		t.Error("a probe is due at the moment of a binding")
	}
}

// A prompt of which nothing is known is predicted to be nowhere.
func TestLocality_OfAnUnknownPromptNothingIsPredicted(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	s := f.Fleet.Servers()
	p := f.Binder.Locality.predict(&prefix{model: testModel}, time.Second, s[0], s[1])
	if p.enter(); p.withdraw != nil || p.computed != nil {
		t.Error("there is something to withdraw")
	}
}

// What a server was predicted to compute is taken back when it will not: where the text alone is
// known, and where the index has no place for the tokens.
func TestLocality_WhatIsPredictedByTextIsWithdrawn(t *testing.T) {
	chunks := []tokens.Chunk{1, 2}
	for name, p := range map[string]*prefix{
		"only the text is known":           {model: testModel, known: true, tokens: tokens.Tokens{Chunks: chunks}},
		"the server has published nothing": {model: testModel, known: true, text: chunks},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		l, s := f.Binder.Locality, f.Fleet.Servers()
		computing := func() int { return l.SentText.Computing(p.saltedModel(), versionOf(s[0]), chunks) }
		predicted := l.predict(p, time.Second, s[0], s[1])
		predicted.enter()
		if n := computing(); n != len(chunks) || predicted.withdraw == nil {
			t.Fatalf("%s: %d chunks are being computed", name, n)
		}
		predicted.takeBack()
		if n := computing(); n != 0 {
			t.Errorf("%s: withdrawn, %d chunks are being computed", name, n)
		}
	}
}

// Where hand-offs are strict decode is given none that names a host which is not known to be the
// server's, be it one of several.
func TestCheckHost_StrictHandoffsNameTheServersOwnHosts(t *testing.T) {
	for _, strict := range []bool{false, true} {
		f := newTestFleet(t, 1, testPrompt(100))
		f.Config.StrictHandoffs = strict
		st, b := f.bound(t, false)
		tr := st.transfer(b)
		own := "10.0.0.0"
		for _, hosts := range [][]string{{}, {own}, {"10.77.7.7"}, {"10.77.7.7", own}, {own, "10.77.7.7"}} {
			h := tr.Handoff()
			h.Kept, h.Hosts = true, hosts
			counted, stranded := testutil.ToFloat64(f.Metrics.foreign.WithLabelValues(tr.From.ID())), f.strandedOn(tr.From)
			st.retryWithoutBudget = false
			failed := f.checkHost(st, tr, h)
			withheld := map[bool]float64{true: 1}[failed != nil]
			named := map[bool]float64{true: 1}[slices.Contains(hosts, "10.77.7.7")] // counted also where it is used
			if n := testutil.ToFloat64(f.Metrics.foreign.WithLabelValues(tr.From.ID())) - counted; n != named || f.strandedOn(tr.From)-stranded != withheld || st.retryWithoutBudget != (failed != nil) {
				t.Errorf("strict %v, hosts %v: %v are counted as foreign, %v as stranded", strict, hosts, n, f.strandedOn(tr.From)-stranded)
			}
			if want := strict && len(hosts) > 0 && fmt.Sprint(hosts) != "["+own+"]"; (failed != nil) != want || want && !errors.Is(failed, errForeignHost) {
				t.Errorf("strict %v, hosts %v: %v", strict, hosts, failed)
			}
		}
		h := tr.Handoff()
		h.Hosts, h.WholeAnswer = []string{"10.77.7.7"}, []byte("{}")
		if failed := f.checkHost(st, tr, h); failed != nil {
			t.Errorf("strict %v, a whole answer, of which nothing is fetched: %v", strict, failed)
		}
	}
}

// The gaps between tokens teach the step of the server, so many together.
func TestStepSampler_TeachesTheStepOfTheServer(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	s := f.Fleet.Servers()[1]
	steps := f.newStepSampler(s, &Request{Model: "m"})
	before := s.StepCurve()
	for range gapsPerSample - 1 {
		steps.observeGap(2 * time.Second)
	}
	if s.StepCurve() != before {
		t.Error("fewer gaps than make a sample teach")
	}
	if steps.observeGap(2 * time.Second); s.StepCurve() == before || steps.gaps != 0 || steps.sum != 0 {
		t.Errorf("the step is believed to be %v, before %v", s.StepCurve(), before)
	}
}

// Answers too short for a sample teach together.
func TestStepSampler_ShortAnswersTeachTogether(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	s := f.Fleet.Servers()[1]
	before := s.StepCurve()
	for answer := range 2 {
		if s.StepCurve() != before {
			t.Errorf("%d of two answers teach", answer)
		}
		steps := f.newStepSampler(s, &Request{Model: "m"})
		for range gapsPerSample / 2 {
			steps.observeGap(2 * time.Second)
		}
		steps.end()
	}
	if s.StepCurve() == before {
		t.Errorf("together they teach nothing: %v", before)
	}
}

// Several answers in one stream have their tokens of a step one behind the other.
func TestStepSampler_SeveralAnswersTeachNothing(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	s := f.Fleet.Servers()[1]
	before := s.StepCurve()
	steps := f.newStepSampler(s, &Request{Model: "m", Answers: 4})
	for range 3*gapsPerSample + 1 {
		steps.observeGap(2 * time.Second)
	}
	steps.end()
	if s.StepCurve() != before {
		t.Errorf("the step is believed to be %v, before %v", s.StepCurve(), before)
	}
}

// Where a server computes prompts between its steps, a gap is what a step takes at the most: though the prompts are
// done when the stream ends, and beside streams without prompts, which teach as ever.
func TestStepSampler_BesidePromptsAGapIsABound(t *testing.T) {
	for name, c := range map[string]struct {
		times, least, most float64 // of the step as believed: the gaps, and what is believed then
		alone              bool    // as many streams are without prompts
	}{
		"longer":                           {3, 1, 1, false},
		"shorter":                          {0.1, 0.09, 0.3, false},
		"longer, and without prompts, too": {3, 2.5, 3.5, true},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		s := f.Fleet.Servers()[1]
		candidate := candidateOf(s, time.Now())
		x := curve.StepFeatures(candidate.Running, candidate.KVUsed)
		before := s.StepCurve().Seconds(x)
		stream := func(prompt bool) { // of eight gaps
			steps := f.newStepSampler(s, &Request{Model: "m"})
			l, err := s.Claim(pools.Decode, curve.Work{Tokens: 100}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if prompt {
				l.BeginLocalPrefill(curve.Work{Tokens: 100}, time.Now())
			}
			for range 8 {
				steps.observeGap(time.Duration(c.times * before * float64(time.Second)))
			}
			l.Release()
			steps.end()
		}
		for range 200 {
			if stream(true); c.alone {
				stream(false)
			}
		}
		if got := s.StepCurve().Seconds(x) / before; got < c.least || got > c.most {
			t.Errorf("%s: a step is believed to take %.2f times as long", name, got)
		}
	}
}

// An answer of prefill that cannot be read is prefill's failure, and none for the client.
func TestFromPrefill_AnAnswerThatCannotBeReadIsAFailure(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	for text, want := range map[string]bool{
		`{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}`: true, `{`: false, `{"choices":[]}`: false,
	} {
		st, b := f.bound(t, false)
		b.handoff = st.transfer(b).Handoff()
		answer, failed := streamedAnswer{f.Orchestrator}.fromPrefill(t.Context(), st, b, []byte(text))
		if (failed == nil) != want || (answer != nil) != want {
			t.Errorf("%s: %+v, %v", text, answer, failed)
		}
		if failed != nil && (failed.Leg != PrefillLeg || failed.Kind != Broken || failed.Server != b.prefill.Server().ID()) {
			t.Errorf("%s: %+v", text, failed)
		}
		if answer != nil {
			answer.leg.Close()
		}
	}
}

// strandedOn is how many hand-offs of a server surely no other reads.
func (f *testFleet) strandedOn(s *pools.Server) float64 {
	return testutil.ToFloat64(f.Metrics.stranded.WithLabelValues(s.ID()))
}

// A reader of an answer that prefill gave, and that is no answer, keeps nothing of the request's
// context.
func TestFromPrefill_AFailureLeavesNothingInTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, 1, testPrompt(100))
		st, b := f.bound(t, false)
		b.handoff = st.transfer(b).Handoff()
		if _, failed := (streamedAnswer{f.Orchestrator}).fromPrefill(watch(t.Context()), st, b, []byte(`{"choices":[]}`)); failed == nil {
			t.Error("an answer without a choice is one")
		}
	})
}

// Why decode runs without prefill: the API or the request has no pairs, a pair would cost more, there
// is no prefill server, or none that makes a pair.
func TestAloneReason_SaysWhyThereIsNoPair(t *testing.T) {
	for want, c := range map[string]struct {
		dialect   *api.Dialect
		prompt    int
		connector [2]string // of prefill and decode
		change    func(*testFleet, *requestState)
	}{
		"cheaper":       {api.Chat, 10, [2]string{"nixl", "nixl"}, nil},
		"aggregated":    {api.Embeddings, 14_000, [2]string{"nixl", "nixl"}, nil},
		"fallback":      {api.Chat, 14_000, [2]string{"nixl", "nixl"}, func(_ *testFleet, st *requestState) { st.bind.tried.mustAggregate = true }},
		"no_prefill":    {api.Chat, 14_000, [2]string{"nixl", "nixl"}, func(f *testFleet, _ *requestState) { f.Fleet.SetDrain(f.Fleet.Servers()[0].ID(), true) }},
		decision.NoPair: {api.Chat, 14_000, [2]string{"mooncake", "nixl"}, nil},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		var specs []pools.Spec
		for i, s := range f.Fleet.Servers() {
			spec := s.Spec
			spec.Connector = c.connector[i]
			specs = append(specs, spec)
		}
		if err := f.Fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		st := f.arrives(testPrompt(c.prompt), time.Now())
		st.client.Dialect = c.dialect
		if c.change != nil {
			c.change(f, st)
		}
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || b.prefill != nil {
			t.Fatalf("%s: %+v, %v", want, b, err)
		}
		if b.reason != want || b.choice.Reason != want {
			t.Errorf("it runs alone for %q, recorded as %q, want %q", b.reason, b.choice.Reason, want)
		}
		b.release()
	}
}

// Where both legs counted a prompt's tokens and differ, the decode server is counted: not where there was
// no hand-off, or one of the two did not count.
func TestCompareCounts_OfAPromptThatWasHandedOver(t *testing.T) {
	for name, c := range map[string]struct {
		kept            bool
		prefill, decode int // 0: not counted
		want            float64
	}{
		"they agree":            {true, 100, 100, 0},
		"decode has one more":   {true, 100, 101, 1},
		"decode has one fewer":  {true, 100, 99, 1},
		"nothing was kept":      {false, 100, 101, 0},
		"prefill did not count": {true, 0, 101, 0},
		"decode did not count":  {true, 100, 0, 0},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		st, b := f.bound(t, false)
		f.compareCounts(st, b, api.Usage{Prompt: api.Count{Tokens: 1, Known: true}}) // without a hand-off
		tr := st.transfer(b)
		b.handoff = tr.Handoff()
		answer := `{"kv_transfer_params":{"remote_block_ids":[[1]]}}`
		if c.prefill > 0 {
			answer = fmt.Sprintf(`{"usage":{"prompt_tokens":%d},"kv_transfer_params":{"remote_block_ids":[[1]]}}`, c.prefill)
		}
		b.handoff.RecordPrefill(tr, answered(t, answer), time.Now())
		b.handoff.Kept = c.kept
		f.compareCounts(st, b, api.Usage{Prompt: api.Count{Tokens: c.decode, Known: c.decode > 0}})
		if n := testutil.ToFloat64(f.Metrics.mismatches.WithLabelValues(b.decode.Server().ID())); n != c.want {
			t.Errorf("%s: %v mismatches are counted", name, n)
		}
	}
}

// A decode server that counts prefill's token in the prompt of a chat has read the ids, and no other has shown that.
func TestCompareCounts_ShowsWhoReadsIDs(t *testing.T) {
	for name, c := range map[string]struct {
		dialect *api.Dialect
		goesOn  bool
		counted int // by decode, less that token
		want    bool
	}{
		"behind prefill's token":        {api.Chat, true, 100, true},
		"it rendered the messages":      {api.Chat, true, 99, false},
		"nothing says what it has read": {api.Chat, false, 100, false},
		"a completion has no messages":  {api.Completions, true, 100, false},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		st, b := f.bound(t, false)
		st.req.Dialect = c.dialect
		tr := st.transfer(b)
		tr.First.Wanted = c.goesOn
		b.handoff = tr.Handoff()
		b.handoff.RecordPrefill(tr, answered(t, `{"usage":{"prompt_tokens":100},"kv_transfer_params":{"remote_block_ids":[[1]]}}`), time.Now())
		b.handoff.Kept = true
		if c.goesOn {
			b.handoff.GoOnBehind(nil)
		}
		f.compareCounts(st, b, api.Usage{Prompt: api.Count{Tokens: c.counted, Known: true}})
		if got := b.decode.Server().ReadsPromptIDs(); got != c.want {
			t.Errorf("%s: it is known to read ids: %v", name, got)
		}
	}
}

// Of what a request was bound to is known how many of its prompt's tokens were held there and how many are
// computed, one at least: on prefill, or on decode that computes it.
func TestPredictedCache_IsThatOfTheServerThatComputes(t *testing.T) {
	prompt := testPrompt(1600)
	f := newTestFleet(t, 1, prompt)
	st := f.arrives(prompt, time.Now())
	if held, computed := st.predictedCache(); held != 0 || computed != 1600 {
		t.Errorf("before it is bound: %d held, %d computed", held, computed)
	}
	for _, alone := range []bool{false, true} {
		for _, cached := range []int{0, 400, 1600} {
			b := &binding{choice: decision.Choice{Demand: cost.Demand{PromptTokens: 1600}, Chosen: cost.Alternative{Prefill: "p", Decode: "d"}}}
			b.choice.Candidates.Prefill = []cost.Candidate{{ID: "x"}, {ID: "p"}}
			b.choice.Candidates.Decode = []cost.Candidate{{ID: "x"}, {ID: "d"}}
			computes := &b.choice.Candidates.Prefill[1]
			if alone {
				b.choice.Chosen.Prefill, computes = "", &b.choice.Candidates.Decode[1]
			}
			computes.Cached.GPU = cached
			st.bindings = []*binding{b}
			held, computed := st.predictedCache()
			if want := min(cached, 1599); held != want || computed != 1600-want {
				t.Errorf("alone %v, %d cached: %d held, %d computed", alone, cached, held, computed)
			}
		}
	}
}

// An answer that prefill gives whole counts like one of decode, and what decode counted otherwise in
// the prompt than prefill is told, in both forms of an answer.
func TestAnswers_CountWhoeverGivesThem(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	st, b := f.bound(t, false)
	b.handoff = st.transfer(b).Handoff()
	answer, failed := wholeAnswer{f.Orchestrator}.fromPrefill(t.Context(), st, b, []byte(`{"choices":[],"usage":{"prompt_tokens":14000,"completion_tokens":1}}`))
	if failed != nil || answer.Prefill != b.handoff.From.ID() || answer.Usage.Output.Tokens != 1 {
		t.Errorf("%+v, %v", answer, failed)
	}
	if n := testutil.ToFloat64(f.Metrics.outputToks.WithLabelValues(testModel)); n != 1 {
		t.Errorf("%v tokens count", n)
	}
	if b.choice.Measured.Usage.Output.Tokens != 1 {
		t.Errorf("%+v is measured", b.choice.Measured)
	}
}

// Where decode counts other tokens in a prompt than prefill did, that is counted against it, in
// either form of an answer.
func TestRun_DecodeThatCountsOtherTokensIsTold(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for decodes, mismatches := range map[int]float64{14_000: 0, 13_999: 1} {
			f := newTestFleet(t, 1, testPrompt(100))
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				resp := f.answersOf(r, false)
				if f.serverOf(r).Role != pools.Decode {
					return resp, nil
				}
				usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":1}}`, decodes)
				body := `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],` + usage
				if stream {
					resp.Header.Set("Content-Type", "text/event-stream")
					body = textEvent + `data: {"choices":[],` + usage + "\n\ndata: [DONE]\n\n"
				}
				resp.Body = io.NopCloser(strings.NewReader(body))
				return resp, nil
			})
			if _, err := f.ends(t.Context(), f.pairRequest(t, stream)); err != nil {
				t.Fatal(err)
			}
			if n := testutil.ToFloat64(f.Metrics.mismatches.WithLabelValues("10.0.0.1:8000")); n != mismatches {
				t.Errorf("stream %v, %d of 14000 tokens: %v mismatches", stream, decodes, n)
			}
		}
	}
}

// answered is an engine's answer to a chat.
func answered(t *testing.T, text string) api.Answer {
	t.Helper()
	answer, err := api.Chat.ReadAnswer([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return answer
}
