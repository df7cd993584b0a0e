package transcript

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

var vllm = Engine{Name: "vllm", MayReportIDs: true}

const (
	chatBegins = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2,3]}`
	chatSays   = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" a"},"token_ids":[7,8]}]}`
	chatHolds  = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":""},"token_ids":[9]}]}` // half a character
	chatText   = `{"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}`
	chatEnds   = `{"id":"x","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}`
)

// asked is the transcript of a stream whose engine was asked for ids, after some events.
func asked(t *testing.T, d *api.Dialect, request string, byText bool, modelLen int, events ...string) *Transcript {
	t.Helper()
	body, err := api.ParseBody([]byte(request))
	if err != nil {
		t.Fatal(err)
	}
	req := Request{Dialect: d, Body: body}
	if most := gjson.Get(request, "max_tokens"); most.Exists() {
		req.MaxOutput, req.MaxField = int(most.Int()), "max_tokens"
	}
	s, _ := New(req, modelLen, byText)
	if s == nil {
		t.Fatalf("%s has no transcript", request)
	}
	s.StartLeg(vllm, body)
	for _, e := range events {
		s.recordAt([]byte(e))
	}
	return s
}

// A transcript is kept where the answer's end is known beforehand: by the request, or by the model.
func TestNew_WhereTheAnswersBoundIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		dialect   *api.Dialect
		model     int
		maxOutput int
		want      bool
	}{
		"a chat of a known model": {api.Chat, 100, 0, true}, "one with a bound": {api.Chat, 0, 9, true}, "a completion": {api.Completions, 100, 9, true},
		"nothing is known": {api.Chat, 0, 0, false}, "another API": {api.Messages, 100, 9, false},
	} {
		body, _ := api.ParseBody([]byte(`{"model":"m"}`))
		if got, _ := New(Request{Dialect: c.dialect, Body: body, MaxOutput: c.maxOutput}, c.model, false); (got != nil) != c.want {
			t.Errorf("%s: kept %v", name, got != nil)
		}
	}
}

// The rest is asked for by the ids of the prompt and of what the client has, no further; it may be
// as long as the whole had left.
func TestContinue_AsksForTheRestByIDs(t *testing.T) {
	const chat = `{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"min_tokens":%,"max_tokens":9}`
	for name, c := range map[string]struct {
		request  string
		modelLen int
		events   []string
		prompt   string // of the continuation; "": it is refused
		left     string
		least    string
	}{
		"after two tokens":          {strings.Replace(chat, "%", "5", 1), 0, []string{chatBegins, chatSays}, "[1,2,3,7,8]", "7", "3"},
		"text that is held back":    {strings.Replace(chat, "%", "2", 1), 0, []string{chatBegins, chatSays, chatHolds}, "[1,2,3,7,8]", "7", ""},
		"one token at least":        {strings.Replace(chat, "%", "3", 1), 0, []string{chatBegins, chatSays}, "[1,2,3,7,8]", "7", "1"},
		"more, in pieces":           {`{"model":"m","messages":[]}`, 100, []string{chatBegins, chatSays, chatHolds, chatSays}, "[1,2,3,7,8,9,7,8]", "92", ""},
		"the model's length counts": {`{"model":"m","messages":[]}`, 6, []string{chatBegins, chatSays}, "[1,2,3,7,8]", "1", ""},
		"none is left":              {`{"model":"m","messages":[]}`, 5, []string{chatBegins, chatSays}, "", "", ""},
		"the bound is reached":      {`{"model":"m","messages":[],"max_tokens":2}`, 100, []string{chatBegins, chatSays}, "", "", ""},
		"nothing was said":          {`{"model":"m","messages":[]}`, 100, []string{chatBegins}, "", "", ""},
		"the prompt is not known":   {`{"model":"m","messages":[]}`, 100, []string{chatSays}, "", "", ""},
		"a tool was called": {`{"model":"m","messages":[]}`, 100, []string{chatBegins, chatSays,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{}]},"token_ids":[9]}]}`}, "", "", ""},
		"an image was shown": {`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 100, []string{chatBegins, chatSays}, "", "", ""},
	} {
		s := asked(t, api.Chat, c.request, false, c.modelLen, c.events...)
		rest, err := s.Continue()
		if c.prompt == "" {
			if !errors.Is(err, errMoreThanIDs) || strings.Contains(err.Error(), "the field messages") != (name == "an image was shown") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body := string(rest.Body.Bytes())
		for field, want := range map[string]string{"prompt": c.prompt, "max_tokens": c.left, "min_tokens": c.least, "model": `"m"`, "stream": "true"} {
			if got := gjson.Get(body, field).Raw; got != want {
				t.Errorf("%s: %s is %s, want %s", name, field, got, want)
			}
		}
		if gjson.Get(body, "temperature").Raw != gjson.Get(c.request, "temperature").Raw || gjson.Get(body, "messages").Exists() {
			t.Errorf("%s: %s", name, body)
		}
		ids := int(gjson.Get(body, "prompt.#").Int())
		if rest.Dialect != api.Completions || rest.PromptTokens != ids || rest.Delivered != ids-3 || s.TokensBefore() != ids-3 || s.IsByText() {
			t.Errorf("%s: %d tokens of prompt, %d delivered, %d before, by text %v", name, rest.PromptTokens, rest.Delivered, s.TokensBefore(), s.IsByText())
		}
	}
}

// The chunks of a continuation look to the client like those before: of its API, with its stream's
// id, its own ids only where it asked for them, and one usage for the whole.
func TestRecord_AContinuationLooksLikeTheStream(t *testing.T) {
	const says, usage = `{"id":"y","object":"text_completion","choices":[{"index":0,"text":" c","token_ids":[5],"finish_reason":"stop","stop_reason":7}]}`,
		`{"id":"y","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":4}}}`
	for name, c := range map[string]struct {
		dialect *api.Dialect
		request string
		first   string
		want    map[string]string
	}{
		"a chat": {api.Chat, `{"model":"m","messages":[]}`, chatSays, map[string]string{
			"id": `"x"`, "object": `"chat.completion.chunk"`, "choices.0.delta": `{"content":" c"}`, "choices.0.text": "", "choices.0.token_ids": "",
			"choices.0.finish_reason": `"stop"`, "choices.0.stop_reason": "7",
		}},
		"a chat with ids": {api.Chat, `{"model":"m","messages":[],"return_token_ids":true}`, chatSays, map[string]string{
			"choices.0.delta": `{"content":" c"}`, "choices.0.token_ids": "[5]",
		}},
		"a completion": {api.Completions, `{"model":"m","prompt":"hi"}`, `{"id":"x","object":"text_completion","choices":[{"index":0,"text":" a","token_ids":[7,8]}]}`, map[string]string{
			"id": `"x"`, "choices.0.text": `" c"`, "choices.0.delta": "", "choices.0.token_ids": "",
		}},
	} {
		first := strings.Replace(c.first, `"choices"`, `"prompt_token_ids":[1,2,3],"choices"`, 1)
		s := asked(t, c.dialect, c.request, false, 100, first)
		rest, err := s.Continue()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s.StartLeg(vllm, rest.Body)
		got := string(s.recordAt([]byte(says)))
		for path, want := range c.want {
			if is := gjson.Get(got, path).Raw; is != want {
				t.Errorf("%s: %s is %s, want %s", name, path, is, want)
			}
		}
		counted := string(s.recordAt([]byte(usage)))
		if u := gjson.Get(counted, "usage").Raw; gjson.Get(counted, "id").Str != "x" || gjson.Get(u, "prompt_tokens").Int() != 3 || gjson.Get(u, "completion_tokens").Int() != 3 ||
			gjson.Get(u, "total_tokens").Int() != 6 || gjson.Get(u, "prompt_tokens_details").Exists() {
			t.Errorf("%s: the usage is %s", name, counted)
		}
		if got := string(s.recordAt([]byte(`[DONE]`))); got != "[DONE]" {
			t.Errorf("%s: the end marker becomes %q", name, got)
		}
	}
}

// Before a continuation nothing of a stream is changed but ids that the client did not ask for; its
// usage is the engine's own.
func TestRecord_AStreamIsAsItsEngineSentIt(t *testing.T) {
	const usage = `{"id":"x","choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":1}}}`
	for ids, want := range map[string]string{
		`,"return_token_ids":true`: chatSays, ``: strings.Replace(chatSays, `,"token_ids":[7,8]`, "", 1),
	} {
		s := asked(t, api.Chat, `{"model":"m","messages":[]`+ids+`}`, false, 100, chatBegins)
		if got := string(s.recordAt([]byte(chatSays))); got != want {
			t.Errorf("with%s: %s", ids, got)
		}
		if got := string(s.recordAt([]byte(usage))); got != usage {
			t.Errorf("the usage becomes %s", got)
		}
	}
}

// Where engines report no ids a chat goes on by its text: as its last message, with what is left of
// its bounds in every field that an engine may read.
func TestContinue_GoesOnByText(t *testing.T) {
	const chat = `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	for name, c := range map[string]struct {
		request string
		events  []string
		content string // of the last message; "": it is refused
		limits  map[string]string
	}{
		"without bounds":       {chat + `}`, []string{chatText, chatText}, "aa", map[string]string{"max_tokens": "", "min_tokens": ""}},
		"with a bound":         {chat + `,"max_tokens":9,"min_tokens":4}`, []string{chatText, chatText}, "aa", map[string]string{"max_tokens": "7", "max_completion_tokens": "", "min_tokens": "2"}},
		"with two":             {chat + `,"max_tokens":9,"max_completion_tokens":9,"min_tokens":1}`, []string{chatText, chatText}, "aa", map[string]string{"max_tokens": "7", "max_completion_tokens": "7", "min_tokens": "0"}},
		"the bound is reached": {chat + `,"max_tokens":2}`, []string{chatText, chatText}, "", nil},
		"one is left":          {chat + `,"max_tokens":3}`, []string{chatText, chatText}, "aa", map[string]string{"max_tokens": "1"}},
		"nothing was said":     {chat + `}`, []string{`{"choices":[{"index":0,"delta":{"role":"assistant"}}]}`}, "", nil},
		"it is over":           {chat + `}`, []string{chatText, chatEnds}, "", nil},
		"a tool was called":    {chat + `}`, []string{chatText, `{"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}`}, "", nil},
	} {
		s := asked(t, api.Chat, c.request, true, 100, c.events...)
		rest, err := s.Continue()
		if (err == nil) != (c.content != "") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil || c.content == "" {
			continue
		}
		body := string(rest.Body.Bytes())
		if got := gjson.Get(body, "messages.1").Raw; got != `{"role":"assistant","content":"`+c.content+`"}` || gjson.Get(body, "messages.0.content").Str != "hi" {
			t.Errorf("%s: the last message is %s", name, got)
		}
		if !gjson.Get(body, "continue_final_message").Bool() || gjson.Get(body, "add_generation_prompt").Raw != "false" || !s.IsByText() || rest.Delivered != 2 {
			t.Errorf("%s: by text %v, %d delivered, %s", name, s.IsByText(), rest.Delivered, body)
		}
		for field, want := range c.limits {
			if got := gjson.Get(body, field).Raw; got != want {
				t.Errorf("%s: %s is %s, want %s", name, field, got, want)
			}
		}
	}
}

// A continuation by text says nothing that the client has: its role is left out, its text follows,
// and its usage is of one prompt and one answer.
func TestRecord_AContinuationByTextGoesOnWithTheText(t *testing.T) {
	s := asked(t, api.Chat, `{"model":"m","messages":[]}`, true, 100, chatText, chatText)
	rest, err := s.Continue()
	if err != nil {
		t.Fatal(err)
	}
	s.StartLeg(vllm, rest.Body)
	if got := s.recordAt([]byte(`{"id":"y","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`)); got != nil {
		t.Errorf("the role comes again: %s", got)
	}
	got := string(s.recordAt([]byte(`{"id":"y","choices":[{"index":0,"delta":{"content":"b"}}],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}`)))
	if gjson.Get(got, "choices.0.delta").Raw != `{"content":"b"}` || gjson.Get(got, "id").Str != "x" {
		t.Errorf("the client sees %s", got)
	}
	if u := gjson.Get(got, "usage"); u.Get("prompt_tokens").Int() != 5 || u.Get("completion_tokens").Int() != 3 || u.Get("total_tokens").Int() != 8 {
		t.Errorf("the usage is %s", u.Raw)
	}
	again, err := s.Continue()
	if err != nil || gjson.Get(string(again.Body.Bytes()), "messages.0.content").Str != "aab" {
		t.Errorf("continued again: %s, %v", again.Body.Bytes(), err)
	}
}

// Without ids, and where text may not go on either, an answer is not continued, nor is its end
// known.
func TestContinue_NotWithoutIDs(t *testing.T) {
	s := asked(t, api.Chat, `{"model":"m","messages":[]}`, false, 100, chatText, chatEnds)
	if _, err := s.Continue(); !errors.Is(err, errNoIDs) || !s.WithoutIDs() || s.IsByText() {
		t.Errorf("%v, without ids %v", err, s.WithoutIDs())
	}
	if ending := s.Ending(); ending != nil {
		t.Errorf("its end is %s", ending)
	}
	body, _ := api.ParseBody([]byte(`{"model":"m","messages":[]}`))
	unasked, _ := New(Request{Dialect: api.Chat, Body: body, HideUsage: true}, 100, true)
	unasked.StartLeg(Engine{}, body) // one of which nothing is known
	if got := string(unasked.recordAt([]byte(chatText))); got != chatText {
		t.Errorf("what nothing is noted of becomes %s", got)
	}
}

// An answer goes on behind prefill's token where that is all that was said, its prompt is known by
// ids and there is room for more; the fields that bound it are less by the token.
func TestBehindFirst(t *testing.T) {
	const prompt, one, two = `{"choices":[{"index":0,"text":"a","prompt_token_ids":[1,2,3],"token_ids":[7],"finish_reason":null}]}`,
		`{"choices":[{"index":0,"text":"a","token_ids":[7],"finish_reason":null}]}`, `{"choices":[{"index":0,"text":"b","token_ids":[8],"finish_reason":null}]}`
	for name, c := range map[string]struct {
		request  string
		modelLen int
		events   []string
		goesOn   bool
		limits   string // max_tokens and min_tokens of the rest
	}{
		"with a bound":               {`{"model":"m","prompt":"x","max_tokens":9}`, 100, []string{prompt}, true, "8 "},
		"at least three tokens":      {`{"model":"m","prompt":"x","max_tokens":9,"min_tokens":3}`, 100, []string{prompt}, true, "8 2"},
		"at least one":               {`{"model":"m","prompt":"x","min_tokens":1}`, 5, []string{prompt}, true, " 0"},
		"at least none":              {`{"model":"m","prompt":"x","min_tokens":0}`, 5, []string{prompt}, true, " 0"},
		"room for one":               {`{"model":"m","prompt":"x","max_tokens":2}`, 100, []string{prompt}, true, "1 "},
		"room for none":              {`{"model":"m","prompt":"x","max_tokens":1}`, 100, []string{prompt}, false, ""},
		"as long as the model's":     {`{"model":"m","prompt":"x"}`, 5, []string{prompt}, true, " "},
		"the model has no more room": {`{"model":"m","prompt":"x"}`, 4, []string{prompt}, false, ""},
		"a prompt without ids":       {`{"model":"m","prompt":"x","max_tokens":9}`, 100, []string{one}, false, ""},
		"two tokens":                 {`{"model":"m","prompt":"x","max_tokens":9}`, 100, []string{prompt, two}, false, ""},
		"nothing was said":           {`{"model":"m","prompt":"x","max_tokens":9}`, 100, nil, false, ""},
	} {
		s := asked(t, api.Completions, c.request, false, c.modelLen, c.events...)
		if limits, ok := s.req.LimitsBehindFirst(c.modelLen, 3); len(c.events) == 1 && c.events[0] == prompt && (ok != c.goesOn || c.goesOn && len(limits) != len(strings.Fields(c.limits))) {
			t.Errorf("%s: a whole answer goes on %v, bounded by %v", name, ok, limits)
		}
		if err := s.BehindFirst(1); (err == nil) != c.goesOn {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !c.goesOn {
			continue
		}
		set := map[string]string{}
		for _, edit := range s.Limits() {
			set[edit.Key] = string(edit.Value)
		}
		if limits := set["max_tokens"] + " " + set["min_tokens"]; limits != c.limits {
			t.Errorf("%s: the rest is bounded by %q, want %q", name, limits, c.limits)
		}
	}
}

// Every field that bounds the answer is set, those alone that the client set or that the API reads
// first.
func TestLimits_OfTheRest(t *testing.T) {
	for request, want := range map[string]map[string]string{
		`{"max_tokens":9}`:                              {"max_tokens": "9"},
		`{"max_completion_tokens":9}`:                   {"max_completion_tokens": "9"},
		`{"max_tokens":20,"max_completion_tokens":9}`:   {"max_tokens": "9", "max_completion_tokens": "9"},
		`{"max_tokens":null,"max_completion_tokens":9}`: {"max_completion_tokens": "9"},
		`{}`: {"max_tokens": "9"}, // the key's bound
	} {
		body, err := api.ParseBody([]byte(request))
		if err != nil {
			t.Fatal(err)
		}
		req := Request{Dialect: api.Chat, Body: body, MaxOutput: 9}
		for _, field := range api.Chat.Limits() {
			if n, ok := body.Get(field).Int(); ok && n == 9 {
				req.MaxField = field
			}
		}
		got := map[string]string{}
		bound, _ := New(req, 100, false)
		for _, edit := range bound.Limits() {
			got[edit.Key] = string(edit.Value)
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", request, got, want)
		}
	}
	body, _ := api.ParseBody([]byte(`{}`))
	unbound, _ := New(Request{Dialect: api.Chat, Body: body}, 100, false)
	if got := unbound.Limits(); got != nil {
		t.Errorf("without a bound: %v", got)
	}
}

// The events of a leg behind prefill's token are what editing each by itself makes of them, also where only their
// beginning is changed: that of the first one is another's where a second leg answers, and some have more to be changed.
func TestBehindFirst_EventsAreEditedAsOne(t *testing.T) {
	const first = `{"id":"one","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2,3]}`
	const said = `{"id":"one","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}]}`
	event := func(id, choices, more string) string {
		return `{"id":"` + id + `","object":"chat.completion.chunk","created":6,"model":"m","choices":[` + choices + `]` + more + `}`
	}
	const b, c = `{"index":0,"delta":{"content":"\"choices\":[b"},"logprobs":null,"finish_reason":null,"token_ids":[8]}`, `{"index":0,"delta":{"content":"c"},"finish_reason":"stop","token_ids":[9]}`
	events := []string{
		event("another's", `{"index":0,"delta":{"role":"assistant","content":""}}`, `,"prompt_token_ids":[1,2,3,7]`),
		event("another's", b, ""), event("another's", b, ""), event("another's", b, `,"prompt_token_ids":null`), event("another's", b, `,"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5}`),
		event("a second leg's", b, ""), event("a second leg's", c, ""), `{"choices":[` + c + `],"created":6,"id":"at the end"}`, `{"choices":[` + c + `],"created":6,"id":"at the end"}`,
	}
	for _, request := range []string{`{"model":"m","messages":[],"max_tokens":9}`, `{"model":"m","messages":[],"max_tokens":9,"return_token_ids":true}`} {
		s, plain := asked(t, api.Chat, request, false, 100, first, said), asked(t, api.Chat, request, false, 100, first, said)
		if err := errors.Join(s.BehindFirst(0), plain.BehindFirst(0)); err != nil {
			t.Fatal(err)
		}
		var room []byte
		for _, data := range events {
			var read, again api.Chunk
			api.Chat.ReadEvent([]byte(data), &read, s, nil)
			api.Chat.ReadEvent([]byte(data), &again, plain, nil)
			plain.heads = heads{}
			if got, want := s.Record(&room, &read, []byte(data)), plain.Record(new([]byte), &again, []byte(data)); !bytes.Equal(got, want) {
				t.Errorf("%s becomes\n%s, want\n%s", data, got, want)
			}
		}
	}
}

// There may be a token behind the first one as far as both the request's bound and the context let it, where they are
// known.
func TestLimitsBehindFirst_OfTheContext(t *testing.T) {
	for _, c := range []struct {
		most, context, prompt int
		want                  bool
	}{
		{200, 8192, 8190, true}, {200, 8192, 8191, false}, {2, 8192, 100, true}, {1, 8192, 100, false}, {0, 8192, 8190, true}, {0, 8192, 8191, false}, {200, 0, 9000, true},
	} {
		r := Request{Dialect: api.Chat, MaxOutput: c.most, MaxField: "max_tokens"}
		if _, ok := r.LimitsBehindFirst(c.context, c.prompt); ok != c.want {
			t.Errorf("%+v: %v", c, ok)
		}
	}
}
