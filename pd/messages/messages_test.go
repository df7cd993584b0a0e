package messages

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

// What becomes of requests, answers and streams, for people to dispute: one JSON each
// line in, and out. go test ./pd/messages -rewrite writes what comes out.
func TestGolden(t *testing.T) {
	for _, file := range []string{"request", "refused", "answer", "stream"} {
		datadriven.RunTest(t, "testdata/"+file+".txt", func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			stream := &Stream{}
			for line := range strings.Lines(d.Input) {
				line := strings.TrimSpace(line)
				switch d.Cmd {
				case "sglang", "vllm":
					out.WriteString(chatOf(t, line, Engine{Name: d.Cmd}) + "\n")
				case "vllm-0.24":
					out.WriteString(chatOf(t, line, Engine{Name: VLLM, JoinsResults: true}) + "\n")
				case "answer":
					got, err := FromChat([]byte(line))
					out.WriteString(orError(got, err) + "\n")
				case "stream":
					got, err := stream.Append(nil, []byte(line))
					out.WriteString(strings.ReplaceAll(orError(got, err), "\n\n", "\n"))
				}
			}
			return out.String()
		})
	}
}

func orError(got []byte, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return string(got)
}

func chatOf(t *testing.T, request string, engine Engine) string {
	t.Helper()
	body, err := api.ParseBody([]byte(request))
	if err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	chat, err := ToChat(body, engine)
	return orError(chat, err)
}

// What is refused is refused for every engine whose conversion is not known, too.
func TestToChat_KnowsTheEngine(t *testing.T) {
	if got := chatOf(t, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, Engine{Name: "trtllm"}); !strings.HasPrefix(got, "error: ") {
		t.Error(got)
	}
}

// json.dumps of CPython 3.11 wrote the right sides.
func TestPythonJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{ }`:                              `{}`,
		`{"a":1,"b":[1,2,{"c":null}]}`:     `{"a": 1, "b": [1, 2, {"c": null}]}`,
		`{"a":[],"b":{},"c":true}`:         `{"a": [], "b": {}, "c": true}`,
		`{"a":1.0,"b":1.50,"c":-0.0}`:      `{"a": 1.0, "b": 1.5, "c": -0.0}`,
		`{"a":1e5,"b":1e16,"c":1E-5}`:      `{"a": 100000.0, "b": 1e+16, "c": 1e-05}`,
		`{"a":0.0001,"b":123456789.25}`:    `{"a": 0.0001, "b": 123456789.25}`,
		`{"a":12345678901234567890123}`:    `{"a": 12345678901234567890123}`,
		`{"ü":"日本 😀/<&>"}`:                 `{"\u00fc": "\u65e5\u672c \ud83d\ude00/<&>"}`,
		`{"a":"q\"b\\s\/n\n\u0001\u007f"}`: `{"a": "q\"b\\s/n\n\u0001\u007f"}`,
	} {
		if got, err := pythonJSON(api.Value(in), new(parts)); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{`{"a":[` + repeated("1", 2*maxParts) + `]}`, `{"a":{"b":1,"b":2}}`, `{"a":-0}`, `{"a":1e999}`, `{"a":"\ud800"}`, `{"a":` + strings.Repeat("9", maxDigits+1) + `}`} {
		if got, err := pythonJSON(api.Value(in), new(parts)); err == nil {
			t.Errorf("%.40s became %.40s", in, got)
		}
	}
}

// Whatever a client sends: no panic, and what comes out is a chat of the client's own
// model, which carries none of the fields that are not chat's.
func FuzzToChat(f *testing.F) {
	for _, file := range []string{"request", "refused"} {
		for _, line := range inputs(f, file) {
			f.Add([]byte(line), true)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, sglang bool) {
		request, err := api.ParseBody(raw)
		if err != nil {
			return
		}
		engine := Engine{Name: VLLM, JoinsResults: true}
		if sglang {
			engine.Name = SGLang
		}
		out, err := ToChat(request, engine)
		if err != nil {
			return
		}
		chat, err := api.ParseBody(out)
		if err != nil {
			t.Fatalf("%s became %s: %v", raw, out, err)
		}
		allowed := []string{"model", "messages", "max_tokens", "stream", "stream_options", "temperature", "top_p", "top_k", "stop", "tools", "tool_choice", "chat_template_kwargs", "response_format"}
		for _, key := range chat.Keys() {
			if !slices.Contains(allowed, key) {
				t.Errorf("%s became %s", raw, out)
			}
		}
		if !bytes.Equal(chat.Get("model"), request.Get("model")) || !bytes.Equal(chat.Get("max_tokens"), request.Get("max_tokens")) {
			t.Errorf("%s became %s", raw, out)
		}
	})
}

// Whatever an engine sends: no panic, and what comes out are events that a client can
// read, whose blocks open and close in turn.
func FuzzStream(f *testing.F) {
	for _, line := range slices.Concat(inputs(f, "stream"), inputs(f, "answer")) {
		f.Add([]byte(line + "\n[DONE]"))
	}
	f.Fuzz(func(t *testing.T, lines []byte) {
		s := &Stream{}
		var out []byte
		for line := range bytes.Lines(lines) {
			var err error
			if out, err = s.Append(out, bytes.TrimSpace(line)); err != nil {
				return
			}
		}
		if _, err := FromChat(lines); err == nil && !json.Valid(lines) {
			t.Errorf("an answer of %s", lines)
		}
		if bytes.Contains(out, []byte("event: message_stop\n")) && s.end.finish == "" {
			t.Fatalf("an answer that did not end ends cleanly in\n%s", out)
		}
		open, next := int64(-1), int64(0)
		for data := range api.Events(out) {
			if !json.Valid(data) {
				t.Fatalf("%s", data)
			}
			e := gjson.ParseBytes(data)
			index := e.Get("index").Int()
			switch e.Get("type").String() {
			case "content_block_start":
				if open >= 0 || index != next {
					t.Fatalf("%s opens in\n%s", data, out)
				}
				open, next = index, next+1
			case "content_block_delta", "content_block_stop":
				if open != index {
					t.Fatalf("%s is of no block in\n%s", data, out)
				}
				if e.Get("type").String() == "content_block_stop" {
					open = -1
				}
			case "message_delta", "message_stop":
				if open >= 0 {
					t.Fatalf("a block is open at the end of\n%s", out)
				}
			}
		}
	})
}

// inputs are the lines of a golden file that go in.
func inputs(f *testing.F, file string) (lines []string) {
	datadriven.RunTest(&testing.T{}, "testdata/"+file+".txt", func(_ *testing.T, d *datadriven.TestData) string {
		for line := range strings.Lines(d.Input) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return d.Expected
	})
	if len(lines) == 0 {
		f.Fatal("no seeds")
	}
	return lines
}

// What a worst body costs does not grow with its length: its parts are bounded.
func BenchmarkToChat_Adversarial(b *testing.B) {
	deep := strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200)
	for name, message := range map[string]string{
		"blocks": `{"role":"user","content":[` + repeated(`{"type":"text","text":"x"}`, 1<<20) + `]}`,
		"turns":  repeated(`{"role":"user","content":"x"}`, 1<<20),
		"input":  `{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":{"a":[` + repeated(deep, 1<<20) + `]}}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			request, err := api.ParseBody([]byte(`{"model":"m","max_tokens":1,"messages":[` + message + `]}`))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(request.Len()))
			for b.Loop() {
				_, _ = ToChat(request, Engine{Name: SGLang}) // refused or not: its time counts
			}
		})
	}
}

func repeated(element string, bytes int) string {
	return strings.TrimSuffix(strings.Repeat(element+",", bytes/(len(element)+1)), ",")
}
