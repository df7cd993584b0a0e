package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pools"
)

// A completion that does not say how long it may be has 16 tokens: what goes on behind prefill's
// token, or behind a break, has no more of them.
func TestBound_OfACompletionIsThatOfTheAPI(t *testing.T) {
	for _, x := range []struct {
		dialect *api.Dialect
		own     int
		want    int
		field   string
	}{{api.Completions, 0, 16, "max_tokens"}, {api.Completions, 7, 7, "max_tokens"}, {api.Chat, 0, 0, ""}, {api.Chat, 7, 7, "max_tokens"}} {
		r := &Request{Dialect: x.dialect, MaxOutput: x.own}
		if x.own > 0 {
			r.MaxField = "max_tokens"
		}
		if got := r.forTranscript(); got.MaxOutput != x.want || got.MaxField != x.field {
			t.Errorf("%s of %d: %d by %q", x.dialect.Name, x.own, got.MaxOutput, got.MaxField)
		}
	}
}

// What is decided about prefill's token is done: the answer begins with it and decode gets the rest, it is
// the whole answer, decode draws it again with the same seed, or decode says its own. What was decided is
// counted and remembered.
func TestFirstTokens_UseDoesWhatIsDecided(t *testing.T) {
	for name, c := range map[string]struct {
		text, finish string
		prompt       int
		use          firsttoken.Use
		reason       string
	}{
		"a word":               {"He", "length", 35, firsttoken.First, "continues"},
		"no text":              {"", "length", 35, firsttoken.Redrawn, "no_text"},
		"the end":              {"", "stop", 35, firsttoken.All, "stop"},
		"a prompt of 2 blocks": {"He", "length", 32, firsttoken.Unused, "block_boundary"},
	} {
		for _, stream := range []bool{false, true} {
			f := newTestFleet(t, 1, testPrompt(100))
			st, b := f.bound(t, false)
			body, err := api.ParseBody(fmt.Appendf(nil, `{"model":"m","max_tokens":5,"stream":%v,"messages":[{"role":"user","content":"hi"}]}`, stream))
			if err != nil {
				t.Fatal(err)
			}
			st.client.Body, st.client.Stream, st.client.MaxOutput, st.client.MaxField = body, stream, 5, "max_tokens"
			b.first = firsttoken.Case{Setting: firsttoken.FromPrefill, Dialect: api.Chat, Proved: true, BlockTokens: 16, Bounded: true}
			tr := st.transfer(b)
			tr.First = connector.First{Wanted: true, Seed: 7}
			h := tr.Handoff()
			ids := strings.TrimSuffix(strings.Repeat("1,", c.prompt), ",")
			h.RecordPrefill(tr, answered(t, fmt.Sprintf(`{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":%q,"token_ids":[5]}],`+
				`"prompt_token_ids":[%s],"usage":{"prompt_tokens":%d,"completion_tokens":1},"kv_transfer_params":{"remote_block_ids":[[1,2,3]],"remote_num_tokens":%d}}`,
				c.text, c.finish, ids, c.prompt, c.prompt)), time.Now())
			firstTokens{f.Orchestrator}.use(st, b, tr, h, firstSaid{})
			if is := b.choice.FirstToken; is.Use != c.use || is.Reason != c.reason || testutil.ToFloat64(f.Metrics.firstTokens.WithLabelValues(string(c.use), c.reason)) != 1 {
				t.Errorf("%s: remembered is %+v", name, is)
			}
			leg := string(h.Leg.Body.Bytes())
			if first := c.use == firsttoken.First; h.GoesOn() != first || strings.Contains(leg, "prompt_token_ids") != first || (len(st.begun) > 0) != (first && stream) {
				t.Errorf("%s: it goes on %v with %s behind %q", name, h.GoesOn(), leg, st.begun)
			}
			if again := c.use == firsttoken.Redrawn; strings.Contains(leg, `"seed":7`) != again {
				t.Errorf("%s: decode is sent %s", name, leg)
			}
			if all := c.use == firsttoken.All; (h.WholeAnswer != nil) != all || (f.strandedOn(tr.From) == 1) != all || strings.Contains(string(h.WholeAnswer), "kv_transfer_params") {
				t.Errorf("%s: the whole answer is %s, %v hand-offs are stranded", name, h.WholeAnswer, f.strandedOn(tr.From))
			}
		}
	}
}

// beginsAtPrefill is a stream whose first token prefill has said, and whose decode leg is not sent yet.
func beginsAtPrefill(ctx context.Context, t *testing.T, continues bool) (*engineFleet, *Answer) {
	t.Helper()
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.Version = "0.32.0" }})
	f.identified()
	f.Config.ContinueStreams = continues
	answer, err := f.Run(ctx, requestOf(t, api.Completions, `{"model":"m","max_tokens":5,"stream":true,"prompt":"`+strings.Repeat("river bridge ", 30)+`"}`))
	if err != nil || f.metric("tandem_first_tokens_total", "use", "first") != 1 {
		d, _ := f.Decisions.Find("r")
		t.Fatalf("%v; what became of prefill's token: %v", err, d.Choices[0].FirstToken)
	}
	return f, answer
}

// Decode is asked for the rest behind prefill's token: by the ids of the prompt and of that token, for one
// token less.
func TestFirstTokens_DecodeIsAskedForTheRest(t *testing.T) {
	f, answer := beginsAtPrefill(t.Context(), t, true)
	var err error
	for err == nil {
		_, err = answer.Stream.Next()
	}
	answer.Stream.Close()
	legs := f.decode[0].State().Requests
	last := legs[len(legs)-1].Body
	if !errors.Is(err, io.EOF) || gjson.Get(last, "max_tokens").Int() != 4 || len(gjson.Get(last, "prompt").Array()) < 30 {
		t.Errorf("%v: decode was asked for %s", err, last)
	}
	f.nothingIsLeft()
}

// A client that leaves before decode is asked gives decode's place back, and the hand-off is stranded: by
// closing the stream, or by its context.
func TestFirstTokens_AClientThatLeavesBeforeTheRest(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		ctx, leave := context.WithCancel(t.Context())
		f, answer := beginsAtPrefill(ctx, t, true)
		if _, err := answer.Stream.Next(); err != nil {
			t.Fatal(err)
		}
		if cancels {
			leave()
			if _, err := answer.Stream.Next(); !errors.Is(err, context.Canceled) {
				t.Errorf("its client has left: %v", err)
			}
		}
		answer.Stream.Close()
		leave()
		f.wantMetrics(map[string]float64{"tandem_handoffs_stranded_total": 1, "tandem_streams_broken_total": 0, "tandem_output_tokens_total": map[bool]float64{false: 1, true: 0}[cancels]})
		if n := f.decode[0].State().DecodesDone; n != 0 {
			t.Errorf("decode was asked %d times", n)
		}
		for _, s := range f.Fleet.Servers() {
			if n := s.InFlight(pools.Decode, time.Now()).Requests; n != 0 {
				t.Errorf("%d places are held on %s", n, s.ID())
			}
		}
	}
}

// Where decode fails behind prefill's token the stream has broken: its client is told, and the server is
// counted.
func TestFirstTokens_DecodeFailsBehindIt(t *testing.T) {
	f, answer := beginsAtPrefill(t.Context(), t, false)
	f.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502})
	_, err := answer.Stream.Next()
	if err == nil {
		_, err = answer.Stream.Next()
	}
	var broken *BrokenStreamError
	if !errors.As(err, &broken) || broken.Status != 502 || broken.Message != "decode failed behind the first token" {
		t.Errorf("%v", err)
	}
	answer.Stream.Close()
	f.wantMetrics(map[string]float64{"tandem_streams_broken_total": 1, "tandem_retries_total": 0})
	if d, found := f.Decisions.Find("r"); !found || d.Choices[0].Outcome == "" {
		t.Errorf("remembered is %+v", d)
	}
	f.nothingIsLeft()
}
