package tokens

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// sumOf is the identity of a prompt's text.
func sumOf(t testing.TB, api API, body string) uint64 {
	t.Helper()
	p := Prompt{API: api, Body: []byte(body)}
	text, ok := p.read()
	if !ok {
		t.Fatalf("not read: %s", body)
	}
	defer text.free()
	return text.sum
}

const plainChat = `{"model":"m","messages":[{"role":"system","content":"Be brief, always."},{"role":"user","content":"Hello there, \"you\""}]}`

func TestRead_WhatChangesNoTokensChangesNothing(t *testing.T) {
	want := sumOf(t, Chat, plainChat)
	for _, same := range []string{
		`{"temperature":0.5,"messages":[{"role":"system","content":"Be brief, always."},{"role":"user","content":"Hello there, \"you\""}],"model":"other","stream":true,"max_tokens":7,"seed":null}`,
		` { "messages" : [ { "role" : "system" , "content" : "Be brief, always." } , {"role":"user","content":"Hello there, \"you\""}
			] } `,
		`{"messages":[{"role":"system","content":"Be brief, always.","cache_control":{"type":"ephemeral"}},{"role":"user","content":"Hello there, \"you\""}],"tools":null}`,
	} {
		if sumOf(t, Chat, same) != want {
			t.Errorf("another text: %s", same)
		}
	}
}

// All turns of a conversation open alike, and so do agents that branch off it; another question,
// other tools or another system prompt open another one.
func TestRead_TheOpeningIsThatOfTheConversation(t *testing.T) {
	of := func(api API, body string) uint64 {
		p := Prompt{API: api, Body: []byte(body)}
		text, ok := p.read()
		if !ok {
			t.Fatalf("not read: %s", body)
		}
		defer text.free()
		return text.opening()
	}
	chat := func(more string) string {
		return `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"` + strings.Repeat("Look at this. ", 200) + `"}` + more + `]}`
	}
	first := of(Chat, chat(""))
	for name, body := range map[string]string{
		"a next turn":           chat(`,{"role":"assistant","content":"So?"},{"role":"user","content":"Go on."}`),
		"one with calls":        chat(`,{"role":"assistant","tool_calls":[{"id":"1"}]},{"role":"tool","content":"It is."}`),
		"an agent branches off": chat(`,{"role":"assistant","content":"So?"},{"role":"user","content":"You look elsewhere."}`),
	} {
		if of(Chat, body) != first {
			t.Errorf("%s opens another conversation", name)
		}
	}
	for name, body := range map[string]string{
		"another question":      strings.Replace(chat(""), "Look", "Have a look", 1),
		"another system prompt": strings.Replace(chat(""), "brief", "short", 1),
		"two questions":         chat(`,{"role":"user","content":"And this."}`),
		"tools":                 strings.Replace(chat(""), `"messages"`, `"tools":[{"type":"function","function":{"name":"f"}}],"messages"`, 1),
		"the assistant begins":  `{"messages":[{"role":"assistant","content":"Well?"},{"role":"user","content":"Go on."}]}`,
	} {
		if of(Chat, body) == first {
			t.Errorf("%s opens the same conversation", name)
		}
	}
	messages := `{"system":"Be brief.","messages":[{"role":"user","content":"Look."}%s]}`
	if of(Messages, fmt.Sprintf(messages, "")) != of(Messages, fmt.Sprintf(messages, `,{"role":"assistant","content":[{"type":"thinking","thinking":"Hm."}]},{"role":"user","content":"Go on."}`)) {
		t.Error("a next turn of messages opens another conversation")
	}
	responses := `{"input":[{"role":"user","content":"Look."}%s]}`
	if of(Responses, fmt.Sprintf(responses, "")) != of(Responses, fmt.Sprintf(responses, `,{"type":"reasoning","content":[{"type":"reasoning_text","text":"Hm."}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}`)) {
		t.Error("a next turn of responses opens another conversation")
	}
	if of(Completions, `{"prompt":"Look."}`) != 0 {
		t.Error("a completion opens a conversation")
	}
}

// What comes before the last answer is all of the turn before, on each API: also where an agent's
// calls and thoughts lie between, and where only the newest message is marked for the cache. Of
// agents that branch off one conversation each follows its own last turn.
func TestRead_ATurnFollowsTheOneBefore(t *testing.T) {
	of := func(api API, body string) (whole, before uint64) {
		p := Prompt{API: api, Body: []byte(body)}
		text, ok := p.read()
		if !ok {
			t.Fatalf("not read: %s", body)
		}
		defer text.free()
		var known Tokens
		known.setText(text)
		return known.Whole, known.Before
	}
	for name, c := range map[string]struct {
		api   API
		head  string
		turns [3]string // what each adds; the last is of another agent, behind the first
	}{
		"chat": {Chat, `{"messages":[{"role":"user","content":"Look."}`, [3]string{
			`]}`, `,{"role":"assistant","reasoning":"Hm.","tool_calls":[{"id":"1"}]},{"role":"tool","content":"It is."}`, `,{"role":"assistant","content":"So?"},{"role":"user","content":"Look elsewhere."}`,
		}},
		"messages": {Messages, `{"system":"Be brief.","messages":[{"role":"user","content":[{"type":"text","text":"Look."}]}`, [3]string{
			`]}`, `,{"role":"assistant","content":[{"type":"thinking","thinking":"Hm."}]},{"role":"user","content":[{"type":"text","text":"Go on."}]}`, `,{"role":"assistant","content":"So?"},{"role":"user","content":"Look elsewhere."}`,
		}},
		"responses": {Responses, `{"input":[{"role":"user","content":"Look."}`, [3]string{
			`]}`, `,{"type":"reasoning","content":[{"type":"reasoning_text","text":"Hm."}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"It is."}`,
			`,{"role":"assistant","content":"So?"},{"role":"user","content":"Look elsewhere."}`,
		}},
	} {
		first, none := of(c.api, c.head+c.turns[0])
		second, before := of(c.api, c.head+c.turns[1]+`]}`)
		branch, parent := of(c.api, c.head+c.turns[2]+`]}`)
		if none != 0 || before != first || parent != first || first == 0 || second == first || branch == second {
			t.Errorf("%s: the first turn is %x behind %x, the second %x behind %x, a branch %x behind %x", name, first, none, second, before, branch, parent)
		}
		_, third := of(c.api, c.head+c.turns[1]+`,{"role":"assistant","content":"Yes."},{"role":"user","content":"Good."}]}`)
		if third != second {
			t.Errorf("%s: the third turn follows %x, want %x", name, third, second)
		}
	}
	marked := `{"messages":[{"role":"user","content":[{"type":"text","text":"Look."%s}]}%s]}`
	first, _ := of(Messages, fmt.Sprintf(marked, `,"cache_control":{"type":"ephemeral"}`, ""))
	if _, before := of(Messages, fmt.Sprintf(marked, "", `,{"role":"assistant","content":"So?"},{"role":"user","content":"Go on."}`)); before != first {
		t.Errorf("a mark for the cache that moved on: behind %x, want %x", before, first)
	}
	if whole, before := of(Completions, `{"prompt":"Look."}`); whole != 0 || before != 0 {
		t.Errorf("a completion is %x behind %x", whole, before)
	}
}

func TestRead_WhatMayChangeTokensChangesTheText(t *testing.T) {
	seen := map[uint64]string{}
	for _, body := range []string{
		plainChat,
		strings.Replace(plainChat, "brief", "short", 1),
		strings.Replace(plainChat, `"system"`, `"developer"`, 1),
		strings.Replace(plainChat, `"messages"`, `"tools":[{"type":"function","function":{"name":"f"}}],"messages"`, 1),
		strings.Replace(plainChat, `"messages"`, `"chat_template_kwargs":{"enable_thinking":false},"messages"`, 1),
		strings.Replace(plainChat, `"messages"`, `"add_generation_prompt":false,"messages"`, 1),
		strings.Replace(plainChat, `"messages"`, `"a_field_nobody_knows":1,"messages"`, 1),
		strings.Replace(plainChat, `"role":"user"`, `"name":"bob","role":"user"`, 1),
		strings.Replace(plainChat, `"Hello there, \"you\""`, `[{"type":"text","text":"Hello there, \"you\""}]`, 1),
		strings.Replace(plainChat, `},{`, `},{"role":"user","content":""},{`, 1),
		`{"messages":[{"role":"system","content":"Be brief, always.Hello there"}]}`,
	} {
		sum := sumOf(t, Chat, body)
		if other, twice := seen[sum]; twice {
			t.Errorf("the same text:\n%s\n%s", body, other)
		}
		seen[sum] = body
	}
	p := Prompt{API: Chat, Body: []byte(plainChat), Adapter: "lora"}
	text, _ := p.read()
	if _, same := seen[text.sum]; same {
		t.Error("an adapter may have a tokenizer of its own")
	}
}

// The next turn shares all cells of a chat, whatever API it comes by.
func TestRead_ANextTurnBeginsWithTheTurnBefore(t *testing.T) {
	for _, turns := range [][2]string{
		{plainChat, strings.Replace(plainChat, `}]}`, `},{"role":"assistant","content":"Hi."},{"role":"user","content":"More"}]}`, 1)},
		{`{"system":"x","messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}`,
			`{"system":"x","messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":"b"},{"role":"user","content":[{"cache_control":{"type":"ephemeral"},"type":"text","text":"c"}]}]}`},
		{`{"instructions":"x","input":[{"role":"user","content":"a"}]}`,
			`{"instructions":"x","input":[{"role":"user","content":"a"},{"type":"function_call","name":"f","call_id":"1","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"2"}]}`},
		{`{"prompt":"0123456789abcdef0123456789abcdef"}`, `{"prompt":["0123456789abcdef0123456789abcdef and more"]}`},
	} {
		api := Chat
		for _, a := range []API{Completions, Responses, Messages} {
			if strings.Contains(turns[0], `"`+turnField[a]+`"`) && !strings.Contains(turns[0], `"model"`) {
				api = a
			}
		}
		a, b := Prompt{API: api, Body: []byte(turns[0])}, Prompt{API: api, Body: []byte(turns[1])}
		first, ok1 := a.read()
		second, ok2 := b.read()
		if !ok1 || !ok2 {
			t.Fatalf("not read: %s", turns)
		}
		if n := second.common(printsOf(first)); int(n) != len(first.prints) || first.sum == second.sum {
			t.Errorf("%s: %d of %d cells shared with the next turn", turns[0], n, len(first.prints))
		}
	}
}

func TestRead_StopsBeforeMedia(t *testing.T) {
	image := `{"messages":[{"role":"system","content":"Look."},{"role":"user","content":[{"type":"text","text":"at this"},{"type":"image_url","image_url":{"url":"x"}}]},{"role":"user","content":"and?"}]}`
	p := Prompt{API: Chat, Body: []byte(image)}
	text, ok := p.read()
	if !ok || !text.partial || len(text.turns) != 3 || int(text.turns[1].first) != len(text.prints) {
		t.Fatalf("ok %v, partial %v, %d turns, %d prints", ok, text.partial, len(text.turns), len(text.prints))
	}
}

func TestRead_RefusesWhatHasNoOneText(t *testing.T) {
	for _, c := range []struct {
		api  API
		body string
	}{
		{Completions, `{"prompt":["a","b"]}`}, {Completions, `{"prompt":[1,2]}`}, {Completions, `{"prompt":[]}`}, {Completions, `{}`},
		{Completions, `{"prompt":{}}`}, {Chat, `{"messages":[]}`}, {Chat, `{"messages":"x"}`}, {Chat, `{"messages":[1]}`}, {Chat, `{"messages":null}`},
		{Chat, `[]`}, {Chat, ``}, {Chat, `{"messages":[{"role":"user"`}, {Messages, `{"system":3,"messages":[]}`}, {Responses, `{"input":7}`},
		{"embeddings", `{"input":"x"}`},
	} {
		p := Prompt{API: c.api, Body: []byte(c.body)}
		if text, ok := p.read(); ok {
			t.Errorf("%s %s was read: %+v", c.api, c.body, text)
		}
	}
}

func TestParseIDs(t *testing.T) {
	for list, want := range map[string][]uint32{
		`[1,2, 3]`: {1, 2, 3}, `[128009]`: {128009}, `[0]`: {0}, "[ 12345678 ,\n\t4294967295, 1234567]": {12345678, 4294967295, 1234567},
		`[4294967296]`: nil, `[00000000001]`: nil, `[1, ]`: nil, `[1 2]`: nil, `[",,,,,,,,"]`: nil,
		`[]`: nil, `[-1]`: nil, `[1.5]`: nil, `["1"]`: nil, `[99999999999999999999]`: nil, `[[1]]`: nil, `null`: nil, `{}`: nil, ``: nil, `[1,2`: nil,
	} {
		got, ok := ParseIDs([]byte(list))
		if ok != (want != nil) || ok && !slices.Equal(got, want) {
			t.Errorf("%s: %v %v, want %v", list, got, ok, want)
		}
	}
}

// What encoding/json reads as a list of ids is read as the same ids, and no other list is.
func FuzzParseIDs(f *testing.F) {
	for _, list := range []string{`[1,2, 3]`, `[128009,0,12345678,123456789]`, `[4294967296]`, `[]`, `[-1]`, `[1.5]`, `["1"]`, `[[1]]`, `[1e3]`, `null`, "[\n1\t]"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, ok := ParseIDs([]byte(list))
		trimmed := strings.TrimSpace(list)
		if !json.Valid([]byte(list)) || len(trimmed) != len(list) {
			return // it must not panic
		}
		var want []uint32
		err := json.Unmarshal([]byte(list), &want)
		if has := err == nil && len(want) > 0 && !strings.Contains(list, "null"); ok != has || ok && !slices.Equal(got, want) {
			t.Fatalf("%s: %v %v, want %v, %v", list, got, ok, want, err)
		}
	})
}

// Anything may come; of well-formed JSON encoding/json makes the same compact text.
func FuzzRead_NeverPanicsAndAgreesWithJSON(f *testing.F) {
	for _, s := range []string{plainChat, `{"prompt":"abc\\\"\u00e9"}`, `{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}]}`,
		`{"system":[{"type":"text","text":"a","cache_control":{"a":[1,{"b":"}"}]}}],"messages":[{"role":"user","content":"\\"}]}`,
		`{"cache_control":1,"a":[1,"cache_control",{"cache_control":[]}]}`, `{"a":{},"b":[],"c":-1.5e7,"d":tru`, `{"prompt":[[1,2]]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for api := range turnField {
			p := Prompt{API: api, Body: raw, Model: "m"}
			p.promptIDs()
			p.chunks()
			p.conversation()
			if text, ok := p.read(); ok {
				for _, q := range p.questions(text, func(Method) bool { return true }) {
					if json.Valid(raw) && !json.Valid(q.body) {
						t.Fatalf("a question that is no JSON: %s", q.body)
					}
				}
				text.free()
			}
		}
		ParseIDs(raw)
		(&question{render: true}).read(raw, false)
		if jsonscan.Check(raw) != nil {
			return
		}
		compact := appendCompact(nil, raw)
		if !json.Valid(compact) {
			t.Fatalf("%s made compact: %s", raw, compact)
		}
		if same := bytes.Equal(raw, compact); isCompact(raw, nil) && !same || same && !isCompact(raw, nil) && !bytes.Contains(raw, []byte("cache_control")) {
			t.Fatalf("that %s is compact is %v, made so it is %s", raw, isCompact(raw, nil), compact)
		}
		var plain bytes.Buffer
		if !bytes.Contains(raw, []byte("cache_control")) && json.Compact(&plain, raw) == nil && !bytes.Equal(plain.Bytes(), appendCompact(nil, raw)) {
			t.Fatalf("%s made compact: %s", raw, appendCompact(nil, raw))
		}
	})
}

// A prompt's chunks are the same whether or not its JSON has white space and marks of caches.
func TestChunks_OfOneTextAreTheSameHoweverItIsWritten(t *testing.T) {
	text := strings.Repeat("the river is deep and the sea is wide ", 40)
	var want []Chunk
	for i, messages := range []string{
		`[{"role":"user","content":"` + text + `"}]`, ` [ {"role": "user", "content": "` + text + `"} ]`,
		`[{"role":"user","content":"` + text + `","cache_control":{"type":"ephemeral"}}]`,
	} {
		p := Prompt{API: Chat, Body: []byte(`{"messages":` + messages + `}`)}
		got := p.chunks()
		if i == 0 {
			want = got
		}
		if len(got) != len(`[{"role":"user","content":"`+text+`"}]`)/ChunkBytes || !slices.Equal(got, want) {
			t.Errorf("%.40s: %d chunks, want %d", messages, len(got), len(want))
		}
	}
}

// Text in all its forms is no medium; what is of another type, or cannot be read, counts as one.
func TestHasMedia_IsAllThatIsNotText(t *testing.T) {
	for value, want := range map[string]bool{
		`"image_url"`: false, `[{"type":"text","text":"image_url"}]`: false, `{"content":[{"type":"input_text"}]}`: false, `[{"type":"tool_use","input":{"type":"image"}}]`: false,
		`[{"type":"image"}]`: true, `[{"type":7}]`: true, `[{"image_url":"a"}]`: true, `{"output":[{"type":"input_audio"}]}`: true,
		`[{"type":"text"`: true, `{"type":"text",`: true, `{"content":[`: true,
	} {
		if got := hasMedia([]byte(value)); got != want {
			t.Errorf("%s: media is %v, want %v", value, got, want)
		}
	}
}

// Parts of a message are looked into up to a depth of 8: what is deeper counts as media, since it
// may be.
func TestHasMedia_WhatIsTooDeepCountsAsMedia(t *testing.T) {
	for depth, want := range map[int]bool{1: false, deepestPart: false, deepestPart + 1: true, 100: true} {
		value := strings.Repeat("[", depth) + `"text"` + strings.Repeat("]", depth)
		if got := hasMedia([]byte(value)); got != want {
			t.Errorf("a text %d lists deep: media is %v, want %v", depth, got, want)
		}
	}
}

// The hash of a cell differs with each bit of the cell and of what came before, whatever is in the cell.
func TestCellHash_HidesNothing(t *testing.T) {
	for _, halves := range [][2]uint64{{0, 0}, {1, 0}, {0, 1}, {1 << 63, 1 << 63}, {0x2020202020202020, 0x6120646e61206f6e}} {
		for _, before := range []uint64{0, 1, 0x9e3779b97f4a7c15, halves[1]} {
			cell := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, halves[0]), halves[1])
			seen := map[uint64]string{cellHash(before, cell): "itself"}
			for bit := range 64 {
				for half, name := range []string{"first", "second"} {
					other := bytes.Clone(cell)
					other[8*half+bit/8] ^= 1 << (bit % 8)
					note(t, seen, cellHash(before, other), fmt.Sprintf("bit %d of the %s half", bit, name))
				}
				note(t, seen, cellHash(before^1<<bit, cell), fmt.Sprintf("bit %d of what came before", bit))
			}
		}
	}
}

// note fails where a hash was seen before.
func note(t *testing.T, seen map[uint64]string, hash uint64, of string) {
	t.Helper()
	if other, twice := seen[hash]; twice {
		t.Errorf("%s and %s have one hash", of, other)
	}
	seen[hash] = of
}

// Of texts that differ in a few letters no two have the same cells from there on.
func TestText_PrintsOfManyTextsDiffer(t *testing.T) {
	seen := make(map[[4]uint32]int)
	for n := range 20_000 {
		var x text
		x.reset(1, 1)
		x.cells(fmt.Appendf(nil, "%08d the river is deep and the sea is wide, so tell me of its harbour", n))
		key := [4]uint32(x.prints[:4])
		if other, twice := seen[key]; twice {
			t.Fatalf("texts %d and %d", other, n)
		}
		seen[key] = n
	}
}

// The hash of a chunk is another one for every change of a bit of it, or of what stands before it, and for every
// exchange of two of its words. It is the same in every process, since replicas tell each other.
func TestChunkHash(t *testing.T) {
	var text [ChunkBytes]byte
	for i := range text {
		text[i] = byte(i * 7)
	}
	seen := map[uint64]string{}
	add := func(h uint64, what string) {
		if other, is := seen[h]; is {
			t.Errorf("%s has the hash of %s", what, other)
		}
		seen[h] = what
	}
	add(chunkHash(1, &text), "the text")
	for bit := range 8 * ChunkBytes {
		text[bit/8] ^= 1 << (bit % 8)
		add(chunkHash(1, &text), fmt.Sprintf("the text without bit %d", bit))
		text[bit/8] ^= 1 << (bit % 8)
	}
	for bit := range 64 {
		add(chunkHash(1^1<<bit, &text), fmt.Sprintf("it behind another with bit %d", bit))
	}
	for i := 0; i < ChunkBytes; i += 8 {
		for j := i + 8; j < ChunkBytes; j += 8 {
			other := text
			copy(other[i:i+8], text[j:])
			copy(other[j:j+8], text[i:])
			add(chunkHash(1, &other), fmt.Sprintf("the text with the words at %d and %d exchanged", i, j))
		}
	}
	if got := chunkHash(1, &text); got != 0x56654afe10cba769 {
		t.Errorf("another hash than before: %#x", got)
	}
}
