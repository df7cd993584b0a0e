package transformers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// model is in the Hugging Face cache that .ci/e2e-parts has made.
const model = "tiny-models/llama"

// startedWithin is what a server may take on a busy machine: 15 s on a quiet one, of which 5 are CPU.
const startedWithin = 2 * time.Minute

// engine is a `transformers serve`.
type engine struct {
	process *process.Process
	url     string
}

func startEngine(t *testing.T) engine {
	t.Helper()
	parts := filepath.Join(process.Root(t), ".cache/e2e/transformers")
	listen := process.FreeAddress(t)
	host, port, _ := strings.Cut(listen, ":")
	e := engine{url: "http://" + listen}
	e.process = process.Start(t, []string{"HF_HOME=" + parts, "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1"}, "transformers serve",
		filepath.Join(parts, "bin/transformers"), "serve", model, "--device", "cpu", "--host", host, "--port", port)
	process.WaitFor(t, e.process, "transformers serve to be ready", startedWithin, process.Answers(e.url+"/health"))
	return e
}

// gateway is one `tandem serve`.
type gateway struct{ url, admin string }

// startGateway puts one in front of engines, of which it is told the address alone.
func startGateway(t *testing.T, engines ...engine) gateway {
	t.Helper()
	listen, admin := process.FreeAddress(t), process.FreeAddress(t)
	config := fmt.Sprintf("listen: %q\nadmin: %q\ndecode:\n", listen, admin)
	for _, e := range engines {
		config += fmt.Sprintf("  - url: %s\n", e.url)
	}
	file := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := process.Start(t, nil, "gateway", "bin/tandem", "serve", "-c", file)
	g := gateway{"http://" + listen, "http://" + admin}
	process.WaitFor(t, p, "the gateway to see its servers", process.ReadyWithin, process.SeesUp(g.admin, len(engines)))
	return g
}

// client of engines and gateways: no answer here takes longer.
var client = &http.Client{Timeout: 2 * time.Minute}

// An answer is what a client makes of one, streamed or not.
type answer struct {
	status         int
	text, finish   string
	prompt, output int    // tokens, by usage
	failed         string // message of an error, as the body or an event
	marked         bool   // a stream of chat or completions that ended with [DONE]
	body           string
	contentType    string
}

// ask sends a request of an API and reads its answer; seen is called at each event of a stream.
func ask(ctx context.Context, url, path string, body map[string]any, seen func()) (answer, error) {
	sent, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, bytes.NewReader(sent))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, contentType: resp.Header.Get("Content-Type")}
	var all strings.Builder
	if !strings.HasPrefix(a.contentType, "text/event-stream") {
		data, err := io.ReadAll(resp.Body)
		a.body = string(data)
		a.add(data)
		return a, err
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		all.WriteString(lines.Text() + "\n")
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !is:
			continue
		case data == "[DONE]":
			a.marked = true
			continue
		}
		a.add([]byte(data))
		if seen != nil {
			seen()
		}
	}
	a.body = all.String()
	return a, lines.Err()
}

// add takes in a whole answer, or an event of one, of any of the three APIs.
func (a *answer) add(data []byte) {
	type usage struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
		In     int `json:"input_tokens"`
		Out    int `json:"output_tokens"`
	}
	type response struct {
		Status string
		Output []struct{ Content []struct{ Text string } }
		Usage  *usage
	}
	var part struct {
		response
		Choices []struct {
			Text    string
			Message struct{ Content string }
			Delta   struct{ Content string }
			Finish  string `json:"finish_reason"`
		}
		Response response
		Error    *struct{ Message string }
	}
	if json.Unmarshal(data, &part) != nil {
		a.failed = "not JSON: " + string(data)
		return
	}
	if part.Error != nil {
		a.failed = part.Error.Message
	}
	for _, c := range part.Choices {
		a.text += c.Text + c.Message.Content + c.Delta.Content
		a.finish += c.Finish
	}
	for _, r := range []response{part.response, part.Response} {
		for _, item := range r.Output {
			for _, content := range item.Content {
				a.text += content.Text
			}
		}
		if r.Status == "completed" || r.Status == "failed" {
			a.finish = r.Status
		}
		if u := r.Usage; u != nil {
			a.prompt, a.output = u.Prompt+u.In, u.Output+u.Out
		}
	}
}
