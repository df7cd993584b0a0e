package vllm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const model = "tiny"

// client of all engines and gateways: no answer here takes longer.
var client = &http.Client{Timeout: 2 * time.Minute}

// A gateway is one `tandem serve`.
type gateway struct {
	process    *process.Process
	url, admin string
}

// startGateway puts one in front of engines, whose KV events it listens to. Settings are
// lines of its configuration.
func startGateway(t *testing.T, prefill, decode []*engine, settings ...string) gateway {
	t.Helper()
	listen, admin := process.FreeAddress(t), process.FreeAddress(t)
	config := fmt.Sprintf("listen: %q\nadmin: %q\nexpose-pair: true\n", listen, admin)
	for _, setting := range settings {
		config += setting + "\n"
	}
	for role, engines := range map[string][]*engine{"prefill": prefill, "decode": decode} {
		config += role + ":\n"
		for _, e := range engines {
			for rank := range max(1, e.ranks) {
				config += fmt.Sprintf("  - url: %s\n    events: %s\n    replay: %s\n", e.url, portOfRank(t, e.events, rank), portOfRank(t, e.replay, rank))
				if e.connector != "" {
					config += fmt.Sprintf("    connector: %s\n", e.connector)
				}
				if e.ranks > 0 {
					config += fmt.Sprintf("    rank: %d\n", rank)
				}
			}
		}
	}
	file := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	g := gateway{process.Start(t, nil, "gateway", "bin/tandem", "serve", "-c", file), "http://" + listen, "http://" + admin}
	process.WaitFor(t, g.process, "the gateway to be ready", process.ReadyWithin, process.Answers(g.admin+"/readyz"))
	return g
}

// portOfRank is where a data-parallel rank publishes: vLLM counts ports from that of the first.
func portOfRank(t *testing.T, first string, rank int) string {
	t.Helper()
	colon := strings.LastIndexByte(first, ':')
	port, err := strconv.Atoi(first[colon+1:])
	if err != nil {
		t.Fatal(err)
	}
	return first[:colon+1] + strconv.Itoa(port+rank)
}

// An answer of a gateway, or of an engine asked directly.
type answer struct {
	id, prefill, decode string // of the gateway
	text                string
	prompt, cached      int // tokens, by usage
	output              int
	done                bool // a stream that ended with [DONE]
}

// ask sends a completion or, where body has messages, a chat completion.
func ask(t *testing.T, url string, body map[string]any) answer {
	t.Helper()
	a, err := tryAsk(url, body, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// tryAsk is ask; seen is called at each piece of a streamed answer.
func tryAsk(url string, body map[string]any, seen func(pieces int)) (a answer, err error) {
	path := "/v1/completions"
	if body["messages"] != nil {
		path = "/v1/chat/completions"
	}
	body["model"], body["temperature"] = model, 0
	if body["stream"] == true {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	sent, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	resp, err := client.Post(url+path, "application/json", bytes.NewReader(sent))
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(resp.Body)
		return a, fmt.Errorf("%s: %s", resp.Status, said)
	}
	a.id, a.prefill, a.decode = resp.Header.Get("X-Request-Id"), resp.Header.Get("X-Tandem-Prefill"), resp.Header.Get("X-Tandem-Decode")
	if body["stream"] != true {
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			return a, err
		}
		return a, a.add(data)
	}
	pieces := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !is:
			continue
		case data == "[DONE]":
			a.done = true
			return a, nil
		}
		if err := a.add([]byte(data)); err != nil {
			return a, err
		}
		if pieces++; seen != nil {
			seen(pieces)
		}
	}
	return a, fmt.Errorf("the stream ended without [DONE] after %q", a.text)
}

// add takes in a whole answer or an event of one.
func (a *answer) add(data []byte) error {
	var part struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
			Delta   struct{ Content string }
		}
		Usage *struct {
			Prompt  int `json:"prompt_tokens"`
			Output  int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Error json.RawMessage
	}
	if err := json.Unmarshal(data, &part); err != nil {
		return err
	}
	if part.Error != nil {
		return fmt.Errorf("error event: %s", part.Error)
	}
	for _, c := range part.Choices {
		a.text += c.Text + c.Message.Content + c.Delta.Content
	}
	if u := part.Usage; u != nil {
		a.prompt, a.output, a.cached = u.Prompt, u.Output, u.Details.Cached
	}
	return nil
}

// metric sums the series of a name, of those that have all the labels, on a /metrics page.
func metric(t *testing.T, url, name string, labels ...string) (sum float64) {
	t.Helper()
	resp, err := client.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
series:
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(line, label) {
				continue series
			}
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		sum += value
	}
	return sum
}
