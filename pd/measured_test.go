package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
)

// The history says what the time of a stream's first token went to, in parts that add up, all of
// its gaps, and what of its prompt was cached.
func TestHistory_OfAPair(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	other := f.asks(api.Completions, more(api.Completions, true)+`,"stream_options":{"include_usage":true}`)
	ask := func() *Request {
		return f.asks(api.Chat, more(api.Chat, true)+`,"stream_options":{"include_usage":true}`)
	}
	for _, req := range []*Request{ask(), ask(), other} { // the second finds its prompt in prefill's cache
		f.served(req)
	}
	seen := f.History.View(testModel, time.Now()).Lately
	if p := seen.Parts; seen.First != 3 || p.Prefill <= 0 || p.Transfer <= 0 || p.Together != 0 || p.Aggregated != 0 {
		t.Errorf("%d first tokens, %+v", seen.First, p)
	}
	var measured time.Duration
	prompts := int64(0)
	for _, r := range f.Decisions.Newest(3) {
		measured += (r.Choices[0].Demand.Waited + r.Choices[0].Measured.FirstToken) / 3
		prompts += int64(r.Choices[0].Measured.Usage.Prompt.Tokens)
	}
	if total := seen.Parts.Total(); total < measured || total > measured+measured/2+time.Millisecond {
		t.Errorf("the parts are %v together, measured are %v", total, measured)
	}
	if want := int(f.metric("tandem_itl_seconds")); want == 0 || seen.Gaps != want {
		t.Errorf("%d gaps are kept, of %d", seen.Gaps, want)
	}
	cached := int64(f.metric("tandem_cached_prompt_tokens_total"))
	if seen.Answers != 3 || cached == 0 || seen.Cached != cached || seen.ReportedOf != prompts || seen.Output != 36 {
		t.Errorf("%+v, cached %d of %d", seen, cached, prompts)
	}
}

// Where both legs run at once no engine says when prefill was done: the time is one part. Where
// decode runs alone it is another.
func TestHistory_OfConcurrentLegsAndOfDecodeAlone(t *testing.T) {
	for name, shape := range map[string]fleetShape{
		"together": {prefill: 1, decode: 1, engine: func(c *engine.Config) { c.Connector = engine.ConnectorSGLang }},
		"alone":    {decode: 1},
	} {
		f := newEngineFleet(t, shape)
		f.identified()
		f.served(f.asks(api.Chat, streamed))
		p := f.History.View("", time.Now()).Lately.Parts
		only := map[string]time.Duration{"together": p.Together, "alone": p.Aggregated}
		if only[name] <= 0 || p.Prefill+p.Transfer != 0 || p.Together+p.Aggregated != only[name] {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// A request that no server could answer is a failure of its model.
func TestHistory_OfAFailure(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1})
	f.server(f.decode[0]).MarkDown("for the test")
	if _, err := f.run(t.Context(), f.asks(api.Chat, streamed)); err == nil {
		t.Fatal("it was served")
	}
	if seen := f.History.View(testModel, time.Now()).Lately; seen.Failed != 1 || seen.First != 0 {
		t.Errorf("%+v", seen)
	}
}
