package connector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// identified are servers of a fleet that reported what they are.
func identified(t *testing.T, connector string, told ...pools.Identity) []*pools.Server {
	t.Helper()
	fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	var specs []pools.Spec
	for i := range told {
		specs = append(specs, pools.Spec{URL: fmt.Sprintf("http://10.0.0.%d:8000", i+1), Role: pools.Decode, Connector: connector})
	}
	if err := fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	for i, s := range fleet.Servers() {
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		s.SetIdentity(told[i], true)
	}
	return fleet.Servers()
}

func parsed(t *testing.T, text string) api.Body {
	t.Helper()
	body, err := api.ParseBody([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// answered is an engine's answer; of no text an empty one.
func answered(t *testing.T, d *api.Dialect, text string) api.Answer {
	t.Helper()
	if text == "" {
		return api.Answer{}
	}
	answer, err := d.ReadAnswer([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// Where decode does not wait for prefill's answer its hand-off is complete before any leg is
// sent; else nothing is handed over before prefill has said what.
func TestHandoff_IsCompleteAtOnceWhereDecodeDoesNotWait(t *testing.T) {
	for _, c := range byName {
		if !c.Pairs {
			continue
		}
		server := &pools.Server{Spec: pools.Spec{URL: "http://10.0.0.1:8000", Connector: c.name}}
		tr := NewTransfer(Request{Dialect: api.Chat, Body: parsed(t, `{"model":"m"}`)}, server, server)
		tr.engine = engineRank{"e", 0}
		h := tr.Handoff()
		atOnce := c.ConcurrentLegs || c.DecodeDriven
		if h.HasKV() != atOnce || (h.Leg.Body.Len() > 2) != atOnce || h.From != server || h.Attempt != tr.ID {
			t.Errorf("%s: has KV %v, its leg is %s", c.name, h.HasKV(), h.Leg.Body.Bytes())
		}
	}
	if (*Handoff)(nil).HasKV() {
		t.Error("no hand-off has KV")
	}
}

// SGLang's own API puts what prefill says of the prompt's tokens into decode's answer, which waits
// for it; no longer than its leg lives.
func TestHandoff_DecodesAnswerWaitsForWhatOnlyPrefillKnows(t *testing.T) {
	server := &pools.Server{Spec: pools.Spec{URL: "http://10.0.0.1:8000", Connector: "sglang"}}
	const decoded = `{"text":"a","meta_info":{"input_token_logprobs":[]}}`
	for body, waits := range map[string]bool{`{"text":"hi","return_logprob":true}`: true, `{"text":"hi"}`: false} {
		tr := NewTransfer(Request{Dialect: api.Generate, Body: parsed(t, body)}, server, server)
		h := tr.Handoff()
		over, end := context.WithCancelCause(t.Context())
		gone := errors.New("the leg is over")
		end(gone)
		if got, err := h.Complete(over, []byte(decoded)); waits != errors.Is(err, gone) || !waits && string(got) != decoded {
			t.Errorf("%s: before prefill has answered: %s, %v", body, got, err)
		}
		h.RecordPrefill(tr, answered(t, tr.dialect, `{"text":"","meta_info":{"prompt_tokens":2,"input_token_logprobs":[[-1,5,null]]}}`), time.Now())
		for range 2 { // each event of a stream
			got, err := h.Complete(t.Context(), []byte(decoded))
			if n := gjson.GetBytes(got, "meta_info.input_token_logprobs.#").Int(); err != nil || (n == 1) != waits {
				t.Errorf("%s: %s, %v", body, got, err)
			}
		}
		if h.Coverage().Prompt != 2 {
			t.Errorf("%s: prefill reported %+v", body, h.Coverage())
		}
	}
}

// Decode is given prefill's token ids where both engines know them and the API has a place for
// them, and where nothing in the request shows or replaces the prompt's text.
func TestSharesIDs_WhereBothEnginesAndTheAPICan(t *testing.T) {
	vllm := func(version string) pools.Identity { return pools.Identity{Engine: "vllm", Version: version} }
	const chat, text = `{"messages":[{"role":"user","content":"hi"}]`, `{"prompt":"hi"`
	for name, c := range map[string]struct {
		dialect   *api.Dialect
		body      string
		connector string
		from, to  pools.Identity
		want      bool
	}{
		"a chat":                          {api.Chat, chat, "nixl", vllm("0.11.0"), vllm("0.32.0"), true},
		"parts of text":                   {api.Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]`, "nixl", vllm("0.32.0"), vllm("0.32.0"), true},
		"media":                           {api.Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url"}]}]`, "nixl", vllm("0.32.0"), vllm("0.32.0"), false},
		"media in an earlier message":     {api.Chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]},{"role":"user","content":[{"type":"text"}]}]`, "nixl", vllm("0.32.0"), vllm("0.32.0"), false},
		"decode is too old for chats":     {api.Chat, chat, "nixl", vllm("0.32.0"), vllm("0.31.9"), false},
		"prefill is too old":              {api.Chat, chat, "nixl", vllm("0.10.1"), vllm("0.32.0"), false},
		"prefill's version is not known":  {api.Chat, chat, "nixl", vllm(""), vllm("0.32.0"), false},
		"another engine":                  {api.Chat, chat, "nixl", pools.Identity{Engine: "sglang", Version: "0.32.0"}, vllm("0.32.0"), false},
		"another connector":               {api.Chat, chat, "mooncake", vllm("0.32.0"), vllm("0.32.0"), false},
		"a completion":                    {api.Completions, text, "nixl", vllm("0.11.0"), vllm("0.11.0"), true},
		"a completion of ids":             {api.Completions, `{"prompt":[1,2]`, "nixl", vllm("0.32.0"), vllm("0.32.0"), false},
		"a completion that is echoed":     {api.Completions, text + `,"echo":true`, "nixl", vllm("0.32.0"), vllm("0.32.0"), false},
		"a field that is null":            {api.Completions, text + `,"echo":null`, "nixl", vllm("0.32.0"), vllm("0.32.0"), true},
		"an API without a place for them": {api.Messages, chat, "nixl", vllm("0.32.0"), vllm("0.32.0"), false},
	} {
		servers := identified(t, c.connector, c.from, c.to)
		tr := NewTransfer(Request{Dialect: c.dialect, Body: parsed(t, c.body+`,"model":"m"}`)}, servers[0], servers[1])
		if tr.sharesIDs != c.want || tr.TokenIDs != c.want {
			t.Errorf("%s: shared %v, asked for %v", name, tr.sharesIDs, tr.TokenIDs)
		}
	}
	servers := identified(t, "nixl", vllm("0.32.0"), vllm("0.32.0"))
	known := Request{Dialect: api.Chat, Body: parsed(t, `{"messages":[{"content":[{"type":"image_url"}]}]}`), OnlyText: true}
	if !NewTransfer(known, servers[0], servers[1]).sharesIDs {
		t.Error("a chat that is known to be only text is searched for media")
	}
	servers[0].RecordNoTokenIDs()
	if NewTransfer(Request{Dialect: api.Chat, Body: parsed(t, chat+`}`)}, servers[0], servers[1]).sharesIDs {
		t.Error("an engine that reported none is asked for ids again")
	}
}

// The ids go where decode reads them: as the prompt of a completion, among a chat's transfer
// parameters. Where prefill gave none decode makes its own of the text.
func TestNIXL_DecodeGetsPrefillsIDs(t *testing.T) {
	const params = `"kv_transfer_params":{"remote_host":"10.0.0.1"}`
	for name, c := range map[string]struct {
		dialect *api.Dialect
		shares  bool
		answer  string
		place   string // of the ids in decode's leg; "": nowhere
	}{
		"a chat":               {api.Chat, true, `{"prompt_token_ids":[1,2],` + params + `}`, "kv_transfer_params.prompt_token_ids"},
		"a completion":         {api.Completions, true, `{"choices":[{"prompt_token_ids":[1,2]}],` + params + `}`, "prompt"},
		"they were not wanted": {api.Completions, false, `{"choices":[{"prompt_token_ids":[1,2]}],` + params + `}`, ""},
		"an empty list":        {api.Completions, true, `{"prompt_token_ids":[],` + params + `}`, ""},
		"no list":              {api.Completions, true, `{"prompt_token_ids":null,` + params + `}`, ""},
	} {
		leg := nixlDecode(&Transfer{dialect: c.dialect, body: parsed(t, `{"prompt":"hi"}`), sharesIDs: c.shares, To: pools.NewServer(pools.Spec{})}, answered(t, c.dialect, c.answer))
		body := string(leg.request.Body.Bytes())
		if shared := leg.prompt != nil; shared != (c.place != "") || !leg.hasKV || strings.Contains(body, "[1,2]") != (c.place != "") {
			t.Errorf("%s: shared %v, %s", name, shared, body)
		}
		if c.place != "" && gjson.Get(body, c.place).Raw != "[1,2]" {
			t.Errorf("%s: decode is sent %s", name, body)
		}
	}
}

// A chat whose ids decode has, and has shown to read, goes there without its text, but where vLLM looks at the messages
// all the same.
func TestNIXL_AChatWithIDsGoesToDecodeWithoutItsText(t *testing.T) {
	unproved, proved := pools.NewServer(pools.Spec{}), pools.NewServer(pools.Spec{})
	proved.RecordReadsPromptIDs()
	for fields, stays := range map[string]bool{
		``:            false,
		`,"tools":[]`: false,
		`,"tools":[{"type":"function"}],"tool_choice":"none"`: false,
		`,"tools":[{"type":"function"}]`:                      true, // it numbers calls behind those of the messages
		`,"add_generation_prompt":true`:                       false,
		`,"add_generation_prompt":null`:                       false,
		`,"add_generation_prompt":false`:                      true, // the answer has the role of the last message
		`,"add_generation_prompt":0`:                          true, // which is false to vLLM
	} {
		for ids, told := range map[string]bool{`[1,2]`: true, `null`: false} {
			body := parsed(t, `{"messages":[{"role":"user","content":"a secret"}],"model":"m"`+fields+`}`)
			answer := answered(t, api.Chat, `{"prompt_token_ids":`+ids+`,"kv_transfer_params":{"remote_host":"10.0.0.1"}}`)
			asked := func(of *pools.Server) string {
				leg := nixlDecode(&Transfer{dialect: api.Chat, body: body, sharesIDs: true, To: of}, answer)
				return string(leg.request.Body.Bytes())
			}
			if sent := asked(unproved); !strings.Contains(sent, "a secret") {
				t.Errorf("ids %s, %s: a server that may not read them is sent %s", ids, fields, sent)
			}
			sent := asked(proved)
			if got := strings.Contains(sent, "a secret"); got != (stays || !told) {
				t.Errorf("ids %s, %s: text %v, %s", ids, fields, got, sent)
			}
			if n := gjson.Get(sent, "messages.#").Int(); n != 1 {
				t.Errorf("ids %s, %s: %d messages: %s", ids, fields, n, sent)
			}
		}
	}
}

// A server with an offload tier beside NIXL is one whose address for KV is configured: that of
// the tier.
func TestNIXL_PullsWhereItsTierHasAnAddress(t *testing.T) {
	for address, want := range map[string]bool{"": false, "10.0.0.1:9999": true} {
		if got := nixl.CanPull(&pools.Server{Spec: pools.Spec{KVAddress: address}}); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
}

// A context's answer that is over is the whole answer: without what is between engines, and with
// the prompt's ids only where the client asked for them.
func TestTRTLLM_AnAnswerThatIsOverIsCleaned(t *testing.T) {
	const over = `{"prompt_token_ids":[1],"disaggregated_params":{"a":1},"choices":[{"finish_reason":"stop","disaggregated_params":{"b":1}},7]}`
	for name, c := range map[string]struct{ body, answer, want string }{
		"it goes on":         {`{}`, `{"choices":[{"finish_reason":"length"}]}`, ""},
		"it is over":         {`{}`, over, `{"choices":[{"finish_reason":"stop"},7]}`},
		"with the ids":       {`{"return_token_ids":true}`, over, `{"prompt_token_ids":[1],"choices":[{"finish_reason":"stop"},7]}`},
		"explicitly without": {`{"return_token_ids":false}`, over, `{"choices":[{"finish_reason":"stop"},7]}`},
	} {
		if got := string(trtllmWholeAnswer(&Transfer{body: parsed(t, c.body)}, answered(t, api.Chat, c.answer))); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// The engine that computes is that of the server's rank, any where it has none; one that its
// bootstrap server does not name cannot be met.
func TestMooncake_TheEngineIsThatOfTheServersRank(t *testing.T) {
	one := 1
	ranked := &pools.Server{Spec: pools.Spec{URL: "http://10.0.0.1:8000", Connector: "mooncake", Rank: &one}}
	for name, c := range map[string]struct {
		from *pools.Server
		ids  map[int]string
		want string // "": an error
	}{
		"its rank":              {ranked, map[int]string{0: "a", 1: "b"}, "b"},
		"its rank is not there": {ranked, map[int]string{0: "a"}, ""},
		"it has no rank":        {&pools.Server{}, map[int]string{3: "c"}, "c"},
		"it has no id":          {&pools.Server{}, map[int]string{3: ""}, ""},
	} {
		tr := &Transfer{From: c.from}
		if err := tr.ChooseEngine(c.ids); (err == nil) != (c.want != "") || c.want != "" && tr.engine.id != c.want {
			t.Errorf("%s: %+v, %v", name, tr.engine, err)
		}
	}
}

// roundTrips counts the bodies that are open.
type roundTrips struct{ open int }

type openBody struct {
	*strings.Reader
	open *int
}

func (b openBody) Close() error { *b.open--; return nil }

func (r *roundTrips) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	switch req.URL.Host {
	case "gone:8998":
		return nil, errors.New("refused")
	case "late:8998":
		if until, bounded := req.Context().Deadline(); !bounded || time.Until(until) > queryTimeout {
			return nil, errors.New("the question has no bound")
		}
		_, _ = w.WriteString(`{"0":{"engine_id":"e"}}`)
	case "busy:8998":
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.WriteString(`{"0":{"engine_id":"e"}}`)
	case "odd:8998":
		_, _ = w.WriteString(`[]`)
	case "empty:8998":
		_, _ = w.WriteString(`{}`)
	default:
		_, _ = w.WriteString(`{"0":{"engine_id":"e0"},"3":{"engine_id":"e3"}}`)
	}
	resp := w.Result()
	r.open++
	resp.Body = openBody{strings.NewReader(w.Body.String()), &r.open}
	return resp, nil
}

// A bootstrap server is asked for its engines, within a bound; what is no answer is an error, and
// no connection is left open.
func TestMooncake_ABootstrapServerIsAskedForItsEngines(t *testing.T) {
	transport := &roundTrips{}
	for host, want := range map[string]string{
		"good": "map[0:e0 3:e3]", "late": "map[0:e]", "gone": "", "busy": "", "odd": "", "empty": "", "no host": "",
	} {
		ids, err := queryBootstrap(t.Context(), transport, &pools.Server{Spec: pools.Spec{URL: "http://10.0.0.1:8000", KVAddress: host + ":8998"}})
		if (err == nil) != (want != "") || want != "" && fmt.Sprint(ids) != want {
			t.Errorf("%s: %v, %v", host, ids, err)
		}
		if transport.open != 0 {
			t.Errorf("%s: %d bodies are open", host, transport.open)
		}
	}
}
