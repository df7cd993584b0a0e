package vllm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A usage is what an answer says of its tokens, on any API.
type usage struct {
	Prompt    int `json:"prompt_tokens"` // chat and completions
	Output    int `json:"completion_tokens"`
	Input     int `json:"input_tokens"` // responses, and of messages what no cache has to do with
	Generated int `json:"output_tokens"`
	Read      int `json:"cache_read_input_tokens"` // messages
	Created   int `json:"cache_creation_input_tokens"`
	Details   struct {
		Cached  int `json:"cached_tokens"`
		Created int `json:"created_cache_tokens"`
	} `json:"prompt_tokens_details"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// apis are the requests of all APIs with the same text.
func apis(said string) map[string]map[string]any {
	turns := []map[string]string{{"role": "user", "content": said}}
	return map[string]map[string]any{
		"/v1/completions":      {"prompt": said, "max_tokens": 12, "ignore_eos": true},
		"/v1/chat/completions": {"messages": turns, "max_tokens": 12, "ignore_eos": true},
		"/v1/responses":        {"input": said, "max_output_tokens": 12},
		"/v1/messages":         {"messages": turns, "max_tokens": 12},
	}
}

// usageOf asks and returns the last usage that the answer tells, and the server that decoded.
func usageOf(t *testing.T, url, path string, body map[string]any, stream bool) (last usage, decode string) {
	t.Helper()
	body["model"], body["temperature"], body["stream"] = model, 0, stream
	if stream && strings.HasSuffix(path, "completions") {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	sent, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post(url+path, "application/json", bytes.NewReader(sent))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s, %v", path, resp.Status, said, err)
	}
	parts := [][]byte{said}
	if stream {
		parts = nil
		for lines := bufio.NewScanner(bytes.NewReader(said)); lines.Scan(); {
			if data, is := strings.CutPrefix(lines.Text(), "data: "); is && data != "[DONE]" {
				parts = append(parts, []byte(data))
			}
		}
	}
	told := false
	for _, part := range parts {
		var event struct {
			Usage    *usage
			Response struct{ Usage *usage } // of the last event of a streamed response
		}
		if err := json.Unmarshal(part, &event); err != nil {
			t.Fatalf("%s: %v in %s", path, err, part)
		}
		for _, u := range []*usage{event.Usage, event.Response.Usage} {
			if u != nil {
				last, told = *u, true
			}
		}
	}
	if !told {
		t.Fatalf("%s told no usage: %s", path, said)
	}
	return last, resp.Header.Get("X-Tandem-Decode")
}

// usageIsThatOfOne: what an answer of a pair says of its prompt is what one engine says that
// does all by itself, though to decode all of the prompt was there already.
func usageIsThatOfOne(t *testing.T, g gateway, decode []*engine) {
	seed, same := uint64(7000), 0
	for _, stream := range []bool{false, true} {
		for path := range apis("") {
			seed++
			said := text(seed, 300)
			pair, by := usageOf(t, g.url, path, apis(said)[path], stream)
			witness := decode[0]
			if witness.host() == by { // one that has not seen the text
				witness = decode[1]
			}
			alone, _ := usageOf(t, witness.url, path, apis(said)[path], stream)
			name := fmt.Sprintf("%s, streamed %v", path, stream)
			if pair != alone {
				t.Errorf("%s:\na pair says  %+v\none engine's %+v", name, pair, alone)
				continue
			}
			same++
			t.Logf("%s: a pair and one engine both say %+v", name, pair)
			if alone.Prompt+alone.Input == 0 {
				t.Errorf("%s: a prompt of no tokens", name)
			}
		}
	}
	t.Logf("the usage of %d of 8 requests is that of one engine", same)
	if n := metric(t, g.admin, "tandem_silent_recomputes_total"); n != 0 {
		t.Errorf("%v silent recomputes", n)
	}
}
