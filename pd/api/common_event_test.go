package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tidwall/gjson"
)

// commonEvents are the events of which streams consist, as vLLM 0.32 and SGLang send them.
var commonEvents = map[*Dialect][]string{
	Chat: {
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" a \"word\" \u00e9"},"logprobs":null,"finish_reason":null,"token_ids":[5]}]}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":1,"delta":{"role":null,"content":null,"reasoning_content":"so","tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]},"logprobs":null,"finish_reason":null}]}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}}`,
	},
	Completions: {
		`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[5]}],"usage":null}`,
		`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":3,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null}]}`,
		`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}}`,
	},
	Responses: {
		`{"content_index":0,"delta":" a","item_id":"msg_1","logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}`,
		`{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","usage":null}}`,
		`{"response":{"id":"resp_1","error":null,"usage":{"input_tokens":2,"output_tokens":1}},"sequence_number":9,"type":"response.completed"}`,
	},
	Messages: {
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" a"}}`,
		`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":2,"output_tokens":0}}}`,
		`{"type":"message_stop"}`,
	},
}

// notOrdinary have something that is not for the client, or usage.
var notOrdinary = []string{
	`{"choices":[{"delta":{"content":"a"}}],"kv_transfer_params":{"do_remote_decode":true}}`, `{"choices":[{"delta":{"content":"a"}}],"ec_transfer_params":{}}`,
	`{"choices":[{"delta":{"content":"a"}}],"response":{"kv_transfer_params":{}}}`, `{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":2}}`,
	`{"choices":[{"delta":{"content":"a"}}],"kv_transfer_params":null}`, `{"usage":{},"choices":[],"usage":null}`,
	`{"choices":[{"text":""usage" and "kv_transfer_params"","token_ids":[1],"token_ids":[2] , "text":"b"}], "prompt_token_ids" : [ ] }`,
}

// uncommonEvents mean something else, or are not well formed.
var uncommonEvents = []string{
	`[DONE]`, ``, `5`, `null`, `[]`, `{}`, `{"choices":{}}`, `{"choices":null}`, `{"choices":[5]}`, `{"choices":[{}]}`, `{"choices":[]} x`, `{"choices":[{"delta":{"content":"a"}}]`,
	`{"error":{"message":"no"}}`, `{"error":null,"choices":[{"delta":{"content":"a"}}]}`, `{"error":"no","choices":[]}`, `{"object":"error","message":"no"}`, `{"object":"\u0065rror","message":"no"}`,
	`{"\u0065rror":{"message":"no"},"choices":[]}`, `{"choices":[],"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"a"}}],"choices":[]}`,
	`{"choices":[{"index":1,"index":2,"finish_reason":"stop"}]}`, `{"choices":[{"index":"2","finish_reason":"stop"}]}`, `{"choices":[{"index":-1,"finish_reason":"stop"}]}`, `{"choices":[{"index":1e2,"finish_reason":"stop"}]}`,
	`{"choices":[{"finish_reason":"stop"},{"index":1,"finish_reason":"error"}]}`, `{"choices":[{"finish_reason":"abort"}]}`, `{"choices":[{"finish_reason":"cancelled"}]}`, `{"choices":[{"finish_reason":"timeout"}]}`, `{"choices":[{"finish_reason":"\u0061bort"}]}`, `{"choices":[{"finish_reason":5}]}`, `{"choices":[{"finish_reason":null,"finish_reason":"stop"}]}`,
	`{"choices":[{"delta":null}]}`, `{"choices":[{"delta":"a"}]}`, `{"choices":[{"delta":{"role":"a","content":5}}]}`, `{"choices":[{"delta":{"role":"a","content":"","content":"b"}}]}`, `{"choices":[{"delta":{"role":"a","reasoning":""}}]}`,
	`{"choices":[{"delta":{"role":"a","reasoning":"","reasoning":"b"}}]}`, `{"choices":[{"delta":{"role":"a","reasoning_content":"","reasoning_content":"b"}}]}`, `{"choices":[{"delta":{"r\u006fle":"a"}}]}`, `{"choices":[{"delta":{"role":"a","\u0063ontent":"b"}}]}`, `{"choices":[{"delta":{"\u0063ontent":"b","role":"a"}}]}`, `{"choices":[{"delta":{"role":"a"},"delta":{"content":"b"}}]}`,
	`{"choices":[{"d\u0065lta":{"role":"a"}}]}`, `{"choices":[{"delta":{"role":"a","content":"` + "\x01" + `"}}]}`,
	`{"type":"error","message":"no"}`, `{"type":"response.failed","response":{"error":{"message":"no"}}}`, `{"type":""}`, `{"type":null}`, `{"type":5}`, `{"type":"response.compl\u0065ted"}`, `{"t\u0079pe":"ping"}`, `{"a":1,"type":"ping"`, `{"a":tru,"type":"ping"}`,
	`{"type":"ping","type":"message_stop"}`,
}

func streamDialects() []*Dialect { return []*Dialect{Chat, Completions, Responses, Messages} }

// prompt is a reader of prompts' ids: all that it was given last and took.
type prompt struct{ read string }

func (p *prompt) ReadPrompt(ids []byte) bool {
	if !json.Valid(slices.Concat([]byte("["), ids, []byte("]"))) || len(bytes.Trim(ids, "0123456789 ,")) > 0 || len(ids) == 0 {
		return false
	}
	p.read = "[" + string(ids) + "]"
	return true
}

// checkMeaning compares the one pass with the long way.
func checkMeaning(t *testing.T, data []byte) (common map[*Dialect]bool) {
	t.Helper()
	common = make(map[*Dialect]bool)
	for _, d := range []*Dialect{Chat, Completions} {
		var c Chunk
		c.reset()
		g, ok := c.readCommon(data, d == Chat, nil, nil)
		var p prompt
		var read Chunk
		read.reset()
		if also, as := read.readCommon(data, d == Chat, &p, nil); as != ok || ok && !reflect.DeepEqual(also, g) {
			t.Errorf("%s: %s means %+v, %v where its prompt is read, and %+v, %v", d.Name, data, also, as, g, ok)
		}
		if common[d] = ok; !ok {
			continue
		}
		if read.PromptRead && string(read.Prompt) != p.read {
			t.Errorf("%s: %s has the prompt %s, and %s was read", d.Name, data, read.Prompt, p.read)
		}
		if read.PromptRead = false; !reflect.DeepEqual(c, read) {
			t.Errorf("%s: %s is %+v where its prompt is read, and %+v", d.Name, data, read, c)
		}
		checkChunk(t, &c, data)
		if want := d.inspect(data); !reflect.DeepEqual(g, want) {
			t.Errorf("%s: %s means %+v in one pass, and %+v", d.Name, data, g, want)
		}
	}
	kind, ok := commonType(data)
	common[Responses], common[Messages] = ok, ok
	if want := gjson.GetBytes(data, "type").String(); ok && string(kind) != want {
		t.Errorf("%s is of type %s in one pass, and %s", data, kind, want)
	}
	return common
}

// checkChunk compares what the one pass kept of an event with what the long way does.
func checkChunk(t *testing.T, c *Chunk, data []byte) {
	t.Helper()
	want := ReadChunk(data)
	got, without := *c, string(c.Without(nil, data))
	if long := string(want.Without(nil, data)); without != long {
		t.Errorf("%s is %s without its ids in one pass, and %s", data, without, long)
	}
	got.hidden, want.hidden, got.more, want.more = [3][2]int{}, [3][2]int{}, nil, nil // where they begin may differ by white space
	// Ordinary events are those of which the long way would find nothing to clean.
	want.Ordinary = got.Ordinary
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is %+v in one pass, and %+v", data, got, want)
	}
	if !got.Ordinary {
		return
	}
	cleaned, err := Chat.CleanAnswer(data, PromptUsage{Override: true})
	if errors.Is(err, errTwice) { // of a field that says nothing to us: the one pass gives the event on as it came
		cleaned, err = data, nil
	}
	if _, usage := Chat.ReadUsage(data); usage || (AnswerHandoff(data) != nil) || err != nil || !bytes.Equal(cleaned, data) {
		t.Errorf("%s is not ordinary: usage %v, cleaned %s, %v", data, usage, cleaned, err)
	}
}

// What engines send all the time takes one pass, and whatever an event says, both ways say the same of it.
func TestInspect_OnePassSaysWhatTheLongWaySays(t *testing.T) {
	for d, events := range commonEvents {
		for _, data := range events {
			if !checkMeaning(t, []byte(data))[d] {
				t.Errorf("%s: %s is no common event", d.Name, data)
			}
		}
	}
	for _, data := range slices.Concat(uncommonEvents, notOrdinary) {
		checkMeaning(t, []byte(data))
	}
}

func FuzzInspect_OnePass(f *testing.F) {
	for _, events := range commonEvents {
		for _, data := range events {
			f.Add([]byte(data))
		}
	}
	for _, data := range append(slices.Concat(uncommonEvents, notOrdinary), `{"a":"0","a":{"usage":{}}}`) {
		f.Add([]byte(data))
	}
	for _, list := range []string{"[1,,2]", "[01]", "[-]", "[1,2", "[1]]", `[1,"]"]`, "[ 1 , 2 ]", "[[1],[2]]"} {
		f.Add([]byte(`{"choices":[{"index":0,"delta":{"content":"a"}}],"prompt_token_ids":` + list + `}`))
		f.Add([]byte(`{"choices":[{"index":0,"text":"a","prompt_token_ids":` + list + `},{"index":1,"text":"b","prompt_token_ids":[7]}],"prompt_token_ids":` + list + `}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkMeaning(t, data) })
}

// checkBehind compares what the one pass says of an event behind another one of its stream with what it says of it alone.
func checkBehind(t *testing.T, before, data []byte) {
	t.Helper()
	for _, d := range []*Dialect{Chat, Completions} {
		var head EventHead
		var alone, behind Chunk
		d.ReadEvent(before, &behind, nil, &head)
		was := string(head.text)
		got, want := d.ReadEvent(data, &behind, nil, &head), d.ReadEvent(data, &alone, nil, nil)
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(behind, alone) {
			t.Errorf("%s: %s means %+v and is %+v behind %s, and alone %+v and %+v", d.Name, data, got, behind, before, want, alone)
		}
		if len(head.text) > mostHead || was != "" && strings.HasPrefix(string(data), was) && string(head.text) != was {
			t.Errorf("%s: the head is %q behind %s, and %q behind %s", d.Name, was, before, head.text, data)
		}
	}
}

// Events that begin as the one before them are read from there on, and mean what they do alone.
func TestReadEvent_BehindOthersTheSameAsAlone(t *testing.T) {
	var all []string
	for _, events := range commonEvents {
		all = append(all, events...)
	}
	all = slices.Concat(all, uncommonEvents, notOrdinary, []string{
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000001,"model":"m","choices":[]}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[]`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","error":{},"choices":[]}`,
		`{"id":"` + strings.Repeat("x", mostHead) + `","choices":[]}`, `{"prompt_token_ids":[1],"choices":[]}`, `{"kv_transfer_params":{},"choices":[]}`,
		`{"usage":null,"choices":[]}`, `{"usage":null,"choices":[],"usage":{}}`, `{"a":1, "choices":[]}`, `{"a":1, "choices":[],}`,
	})
	for _, before := range all {
		for _, data := range all {
			checkBehind(t, []byte(before), []byte(data))
		}
	}
}

func FuzzReadEvent_BehindAnother(f *testing.F) {
	for _, events := range commonEvents {
		for i, data := range events {
			f.Add([]byte(events[0]), []byte(data))
			f.Add([]byte(data), []byte(events[len(events)-1-i]))
		}
	}
	f.Fuzz(func(t *testing.T, before, data []byte) { checkBehind(t, before, data) })
}

// Wherever the network cuts a stream, its events mean the same.
func TestInspect_CutsOfAStreamChangeNothing(t *testing.T) {
	for _, d := range streamDialects() {
		stream := ": comment\n\nevent: x\n" + "data: " + strings.Join(commonEvents[d], "\n\ndata: ") + "\r\n\r\n"
		whole := meanings(t, d, strings.NewReader(stream))
		if len(whole) != len(commonEvents[d]) {
			t.Fatalf("%s: %d events of %d", d.Name, len(whole), len(commonEvents[d]))
		}
		for i, data := range commonEvents[d] {
			if want := d.inspect([]byte(data)); !reflect.DeepEqual(whole[i], want) {
				t.Errorf("%s: %s means %+v, want %+v", d.Name, data, whole[i], want)
			}
		}
		for cut := range len(stream) {
			pieces := io.MultiReader(strings.NewReader(stream[:cut]), strings.NewReader(stream[cut:]))
			if got := meanings(t, d, pieces); !reflect.DeepEqual(got, whole) {
				t.Fatalf("%s, cut at %d: %+v", d.Name, cut, got)
			}
			passing, other := NewPassingAnswer(d, true, 4), NewPassingAnswer(d, true, 4)
			passing.Add([]byte(stream))
			other.Add([]byte(stream[:cut]))
			other.Add([]byte(stream[cut:]))
			if passing.Content != other.Content || passing.Usage != other.Usage || passing.Complete != other.Complete || passing.Failure != other.Failure {
				t.Fatalf("%s, cut at %d: %+v, and whole %+v", d.Name, cut, other, passing)
			}
		}
		if got := meanings(t, d, iotest.OneByteReader(strings.NewReader(stream))); !reflect.DeepEqual(got, whole) {
			t.Errorf("%s, byte by byte: %+v", d.Name, got)
		}
	}
}

func meanings(t *testing.T, d *Dialect, stream io.Reader) (all []Meaning) {
	t.Helper()
	for events := NewEventReader(stream); ; {
		ev, err := events.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d.Inspect(bytes.Clone(ev.Data)))
	}
}

// An event of one token is read without an allocation, in each API.
func TestInspect_AnEventOfOneTokenAllocatesNothing(t *testing.T) {
	for d, i := range map[*Dialect]int{Chat: 1, Completions: 0, Responses: 0, Messages: 0} {
		data := []byte(commonEvents[d][i])
		if n := testing.AllocsPerRun(100, func() { d.Inspect(data) }); n != 0 {
			t.Errorf("%s: %v allocations", d.Name, n)
		}
	}
}

// BenchmarkInspect: what an event of one token means. Budget: 1 us, without allocations.
func BenchmarkInspect(b *testing.B) {
	for _, d := range streamDialects() {
		b.Run(d.Name, func(b *testing.B) {
			data := []byte(commonEvents[d][map[*Dialect]int{Chat: 1}[d]])
			b.ReportAllocs()
			for b.Loop() {
				if !d.Inspect(data).Content {
					b.Fatal("no content")
				}
			}
		})
	}
}
