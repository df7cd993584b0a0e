package tokens

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"slices"
	"testing"
)

var realEngine = flag.String("vllm", "", "URL of a vLLM with --enable-scale-out, for TestChatForm_IsVLLMs; its model is called sim-model")

// The same as TestChatForm_IsTheEngines with vLLM itself:
//
//	go test ./kvstate/tokens -run IsVLLMs -v -vllm http://127.0.0.1:8000
func TestChatForm_IsVLLMs(t *testing.T) {
	if *realEngine == "" {
		t.Skip("no -vllm")
	}
	defer http.DefaultClient.CloseIdleConnections()
	post := func(path string, body []byte) (int, []byte) {
		resp, err := http.Post(*realEngine+path, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, answer
	}
	for _, c := range agentBodies {
		p := Prompt{API: c.api, Body: withModel(c.body, c.api), Model: "sim-model"}
		text, ok := p.read()
		if !ok {
			t.Fatalf("%s %s: not read", c.api, c.what)
		}
		var want []uint32
		asked := 0
		for _, q := range p.questions(text, func(Method) bool { return true }) {
			if asked++; asked > 3 {
				break // the form for templates that refuse system messages within a conversation
			}
			status, answer := post(q.path, q.body)
			found, ok := q.read(answer, false)
			same := want == nil || slices.Equal(found.IDs, want)
			t.Logf("%s %s: %s by %s: %d, %d tokens, same %v", c.api, c.what, q.path, q.by, status, len(found.IDs), same)
			if !ok {
				t.Errorf("%s %s: %s: %d %s of %s", c.api, c.what, q.path, status, answer, q.body)
				continue
			}
			if want == nil {
				want = found.IDs
			}
			if !same {
				t.Errorf("%s %s: %s finds %d tokens, vLLM %d of %s", c.api, c.what, q.path, len(found.IDs), len(want), q.body)
			}
		}
		text.free()
	}
}
