package transcript

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

// What a continuation would not be exact for is not continued.
func TestTranscript_WhatCanBeContinued(t *testing.T) {
	for extra, want := range map[string]bool{
		``: true, `"temperature":0.7,"top_p":0.9`: true, `"tools":[],"stop":[],"stop":null`: false, // a field twice
		`"tools":[]`: true, `"stop":""`: true, `"seed":null`: true, `"presence_penalty":0`: true, `"response_format":{"type":"text"}`: true,
		`"tools":[{}]`: false, `"stop":["x"]`: false, `"seed":0`: false, `"presence_penalty":0.1`: false, `"repetition_penalty":1.1`: false,
		`"logprobs":true`: false, `"logprobs":0`: false, `"response_format":{"type":"json_object"}`: false, `"structured_outputs":{"regex":"a"}`: false,
		`"bad_words":["a b"]`: false, `"echo":true`: false, `"a_field_of_tomorrow":3`: false,
		`"echo":false`: true, `"include_reasoning":false`: false, `"stream_reasoning":false`: false, `"separate_reasoning":false`: false,
	} {
		body, err := api.ParseBody([]byte(`{"model":"m"` + map[bool]string{true: "", false: ","}[extra == ""] + extra + `}`))
		if got := err == nil && notContinuable(body) == ""; got != want {
			t.Errorf("%s: %v", extra, got)
		}
	}
	for content, want := range map[string]bool{
		`"hi"`: true, `null`: true, `[{"type":"text","text":"hi"}]`: true,
		`[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:"}}]`: false, `[{"type":"input_audio"}]`: false,
	} {
		body, err := api.ParseBody(fmt.Appendf(nil, `{"messages":[{"role":"system","content":"x"},{"role":"user","content":%s}]}`, content))
		if err != nil {
			t.Fatal(err)
		}
		if onlyText(body) != want {
			t.Errorf("%s: %v", content, !want)
		}
	}
}

// An answer that is whole lacks its usage, where the client wants it and has not got it,
// and the end marker.
func TestTranscript_TheEndOfAWholeAnswer(t *testing.T) {
	const done = "data: [DONE]\n\n"
	first := `{"id":"x","choices":[{"index":0,"text":" a","token_ids":[7,8]}],"prompt_token_ids":[1,2,3]}`
	last := `{"id":"x","choices":[{"index":0,"text":" b","token_ids":[9],"finish_reason":"stop"}]}`
	usage := `{"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}`
	for _, c := range []struct {
		events []string
		hide   bool
		want   string
	}{
		{[]string{first}, false, ""},
		{[]string{first, last, usage}, false, done},
		{[]string{first, last}, true, done},
		{[]string{first, last}, false, "data: " + usage + "\n\n" + done},
		{[]string{last}, false, ""}, // how long the prompt is was not told
		{[]string{`{"choices":[{"delta":{"reasoning":"hm"}}]}`, first, last}, true, ""},
	} {
		s := Transcript{req: Request{Dialect: api.Completions, HideUsage: c.hide, MaxOutput: 9}, asked: true}
		for _, e := range c.events {
			s.recordAt([]byte(e))
		}
		if got := string(s.Ending()); got != c.want {
			t.Errorf("after %q: %q, want %q", c.events, got, c.want)
		}
	}
}

// Of an engine that tells no ids where a request hides its reasoning, or wants none, it does not follow that it knows none.
func TestTranscript_WhatHidesReasoningHidesIDs(t *testing.T) {
	said := []byte(`{"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}`)
	for field, want := range map[string]bool{``: true, `,"reasoning_effort":"high"`: true, `,"reasoning_effort":"none"`: false} {
		body, err := api.ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true` + field + `}`))
		if err != nil {
			t.Fatal(err)
		}
		s, _ := New(Request{Dialect: api.Chat, Body: body}, 1000, false)
		s.StartLeg(Engine{Name: "vllm", MayReportIDs: true}, body)
		if s.recordAt(said); s.WithoutIDs() != want {
			t.Errorf("%s: it knows none: %v", field, !want)
		}
	}
}

// An engine told no ids, and another one is given the text: it is not asked for ids, and
// nothing follows of whether it tells them.
func TestTranscript_WhoContinuesTextIsNotAskedForIDs(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := New(Request{Dialect: api.Chat, Body: body}, 1000, true)
	vllm := Engine{Name: "vllm", MayReportIDs: true}
	said := []byte(`{"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}`)
	leg := s.StartLeg(vllm, body)
	if s.recordAt(said); leg.Get("return_token_ids") == nil || !s.WithoutIDs() {
		t.Fatalf("it is asked %s, and told none: %v", leg.Bytes(), s.WithoutIDs())
	}
	rest, err := s.Continue()
	if err != nil {
		t.Fatal(err)
	}
	leg = s.StartLeg(vllm, rest.Body)
	if s.recordAt(said); leg.Get("return_token_ids") != nil || s.WithoutIDs() {
		t.Errorf("it is asked %s, and told none: %v", leg.Bytes(), s.WithoutIDs())
	}
	if again, err := s.Continue(); err != nil || s.tokensBefore != 2 {
		t.Errorf("it cannot be continued again: %v, %v, %d pieces", again, err, s.tokensBefore)
	}
}

// recordAt is Record of an event of any shape.
func (t *Transcript) recordAt(data []byte) []byte {
	var c api.Chunk
	t.req.Dialect.ReadEvent(data, &c, t, nil)
	return t.Record(new([]byte), &c, data)
}

// The ids of the prompt are those of the event that has them first, whether they are read with the event or from
// what it came to, and those of an event that cannot be read are none.
func TestReadPrompt_TheIDsAreTheEvents(t *testing.T) {
	const first = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":%s}`
	for name, c := range map[string]struct {
		events []string
		want   string
		beyond bool
	}{
		"one event":              {[]string{fmt.Sprintf(first, "[1,2]")}, "1,2", false},
		"the first of two":       {[]string{fmt.Sprintf(first, "[1,2]"), fmt.Sprintf(first, "[3]")}, "1,2", false},
		"none before":            {[]string{fmt.Sprintf(first, "null"), fmt.Sprintf(first, "[3]")}, "3", false},
		"another choice's":       {[]string{`{"choices":[{"index":0,"text":"a","prompt_token_ids":[1]},{"index":1,"text":"b","prompt_token_ids":[9]}]}`}, "1", true},
		"the last of an event":   {[]string{`{"choices":[{"index":0,"delta":{},"prompt_token_ids":[1]}],"prompt_token_ids":[2]}`}, "2", false},
		"a list of other things": {[]string{fmt.Sprintf(first, "[1.5]")}, "", true},
		"with white space":       {[]string{fmt.Sprintf(first, "[ 1, 2 ]")}, "1,2", false},
		"another kind later":     {[]string{fmt.Sprintf(first, "[1,2]"), fmt.Sprintf(first, `["[",3]`)}, "1,2", false},
		"cut off":                {[]string{`{"prompt_token_ids":[7],"choices":`, fmt.Sprintf(first, "[1]")}, "1", false},
	} {
		s := Transcript{req: Request{Dialect: api.Chat, MaxOutput: 1 << 20}, asked: true}
		for _, e := range c.events {
			s.recordAt([]byte(e))
		}
		if got := string(s.prompt.appendTo(nil)); got != c.want || s.beyondIDs != c.beyond || s.promptRead.shared != nil || s.promptRead.rest != nil {
			t.Errorf("%s: %q, beyond ids: %v, left %v", name, got, s.beyondIDs, s.promptRead)
		}
	}
	if s := (&Transcript{}); s.ReadPrompt([]byte("1")) {
		t.Error("ids are read of an engine that was asked for none")
	}
}

// An event that brings a token is read, kept and cut without an allocation.
func TestRecord_AnEventAllocatesNothing(t *testing.T) {
	var room []byte
	event := []byte(`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[48113]}]}`)
	s := Transcript{req: Request{Dialect: api.Chat, MaxOutput: 1 << 20}, asked: true}
	var c api.Chunk
	if n := testing.AllocsPerRun(100, func() {
		api.Chat.ReadEvent(event, &c, &s, nil)
		if len(s.Record(&room, &c, event)) == 0 || len(s.answer) == 0 {
			t.Fatal("it is not recorded")
		}
		s.answer = s.answer[:0]
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What reading an event and keeping the transcript of a stream costs: the budget is 1 us, of
// a token that takes an engine some 10 ms, and no allocation.
func BenchmarkTranscript_Event(b *testing.B) {
	event := []byte(`{"id":"chatcmpl-tandem-5b0c1c9e","object":"chat.completion.chunk","created":1763640000,"model":"test-model","choices":[{"index":0,"delta":{"content":" bicycle"},"logprobs":null,"finish_reason":null,"token_ids":[48113]}],"prompt_token_ids":null}`)
	s := Transcript{req: Request{Dialect: api.Chat, MaxOutput: 1 << 20}, asked: true}
	var c api.Chunk
	var room []byte
	b.ReportAllocs()
	for b.Loop() {
		api.Chat.ReadEvent(event, &c, &s, nil)
		s.Record(&room, &c, event)
		s.answer = s.answer[:0]
	}
}

// What was read of prefill's answer is kept for the list that it was read of, and no other.
func TestRecordPrompt_TakesWhatWasRead(t *testing.T) {
	list := []byte("[1,2,3]")
	for name, c := range map[string]struct {
		read   func(p *Prompt)
		list   string
		same   bool // the list is the one that was read
		shared bool
	}{
		"read":             {func(p *Prompt) { p.ReadPrompt(list[1:6]) }, "", true, true},
		"another list":     {func(p *Prompt) { p.ReadPrompt([]byte("7,8,9")) }, "[1,2,3]", false, false},
		"nothing was read": {func(*Prompt) {}, "[1,2,3]", false, false},
		"no ids":           {func(p *Prompt) { p.ReadPrompt([]byte("1.5,2")) }, "[1,2,3]", false, false},
		"no ids any more":  {func(p *Prompt) { p.ReadPrompt(list[1:6]); p.ReadPrompt([]byte("1.5,2")) }, "", true, true},
	} {
		p := Prompt{}
		c.read(&p)
		given := []byte(c.list)
		if c.same {
			given = list
		}
		s := Transcript{}
		s.RecordPrompt(given, &p)
		if got := string(s.prompt.appendTo(nil)); got != "1,2,3" || s.promptTokens != 3 || s.beyondIDs {
			t.Errorf("%s: %q, %d tokens", name, got, s.promptTokens)
		}
		if got := len(p.packed.rest) > 0 && &s.prompt.rest[0] == &p.packed.rest[0]; got != c.shared {
			t.Errorf("%s: what was read is kept: %v", name, got)
		}
	}
	if p := (*Prompt)(nil); p.ReadPrompt(list[1:6]) || p.isOf(list) {
		t.Error("ids are read that nobody wants")
	}
}

// The ids that a leg was given are looked for their end alone, and the event is what it is without them, whatever
// they are.
func TestReadPrompt_LeavesWhatIsKnownUnread(t *testing.T) {
	for _, list := range []string{"[1,2,3]", "[1.5]", `["]",3]`, `["],\"choices\":[",3]`, "[[1],2]", "[]", "null"} {
		s := Transcript{req: Request{Dialect: api.Chat, MaxOutput: 1 << 20}, asked: true}
		s.RecordPrompt([]byte("[1,2]"), nil)
		event := fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}],"prompt_token_ids":%s}`, list)
		got := s.recordAt([]byte(event))
		if want := `{"choices":[{"index":0,"delta":{"content":"a"}}]}`; string(got) != want {
			t.Errorf("%s: the client sees %s", list, got)
		}
		if ids := string(s.prompt.appendTo(nil)); ids != "1,2" || s.promptRead.count != 0 || string(s.answer) != "7" {
			t.Errorf("%s: the prompt is %s, the answer %s", list, ids, s.answer)
		}
		if !s.ReadPrompt([]byte("no number")) {
			t.Error("the ids of a known prompt are read")
		}
	}
}

// An engine that reports more ids than the answer may have, or more text than is kept, is not followed: nobody would see
// what that takes.
func TestTranscript_KeepsNoMoreThanAnAnswerMayHave(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("7,", mostText/4) + "7"
	for name, c := range map[string]struct {
		max, modelLen int
		ids           []string
		kept          string
	}{
		"as many as it asks for":           {5, 0, []string{"7,7", "7,7,7"}, "7,7,7,7,7"},
		"one more":                         {5, 0, []string{"7,7", "7,7,7,7", "7"}, ""},
		"as many as the model has":         {0, 8, []string{"7,7", "7,7,7"}, "7,7,7,7,7"},
		"one more than it has":             {0, 8, []string{"7,7", "7,7,7,7", "7"}, ""},
		"of a model that says it has many": {0, 1 << 62, []string{long, long, long}, ""},
	} {
		s, _ := New(Request{Dialect: api.Chat, Body: body, MaxOutput: c.max}, c.modelLen, false)
		s.StartLeg(Engine{Name: "vllm", MayReportIDs: true}, body)
		s.recordAt([]byte(`{"choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1,2,3]}`))
		for _, ids := range c.ids {
			s.recordAt(fmt.Appendf(nil, `{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[%s]}]}`, ids))
		}
		if string(s.answer) != c.kept || s.beyondIDs != (c.kept == "") {
			t.Errorf("%s: %d bytes are kept, beyond ids: %v", name, len(s.answer), s.beyondIDs)
		}
	}
	s, _ := New(Request{Dialect: api.Chat, Body: body}, 1000, true)
	s.StartLeg(Engine{Name: "vllm"}, body)
	for range 5 {
		s.recordAt(fmt.Appendf(nil, `{"choices":[{"index":0,"delta":{"content":%q}}]}`, strings.Repeat("a", mostText/4)))
	}
	if _, err := s.Continue(); s.text.text.Len() > 0 || err == nil {
		t.Errorf("%d bytes of text are kept, %v", s.text.text.Len(), err)
	}
}
