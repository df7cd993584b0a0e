package vllm

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
)

// otherTemplate is an engine whose chats have a system message more than those that it is
// sent, as one with another chat template: some three KV blocks.
func otherTemplate(t *testing.T, e *engine) (other *engine, withIDs *atomic.Int64) {
	t.Helper()
	target, err := url.Parse(e.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	withIDs = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			proxy.ServeHTTP(w, r)
			return
		}
		var chat struct {
			Transfer struct {
				IDs []int `json:"prompt_token_ids"`
			} `json:"kv_transfer_params"`
		}
		fields := map[string]any{}
		body, err := io.ReadAll(r.Body)
		if err != nil || errors.Join(json.Unmarshal(body, &chat), json.Unmarshal(body, &fields)) != nil {
			http.Error(w, "no chat", http.StatusBadRequest)
			return
		}
		if len(chat.Transfer.IDs) > 0 {
			withIDs.Add(1)
		}
		system := map[string]string{"role": "system", "content": text(8000, 80)}
		fields["messages"] = append([]any{system}, fields["messages"].([]any)...)
		if body, err = json.Marshal(fields); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return &engine{process: e.process, url: server.URL, events: e.events, replay: e.replay}, withIDs
}

// templatesDiffer: a decode server whose template makes other tokens of a chat computes with
// those of prefill. A prompt of more KV blocks than were handed over would end its engine.
func templatesDiffer(t *testing.T, prefill, decode *engine) {
	other, withIDs := otherTemplate(t, decode)
	g := startGateway(t, []*engine{prefill}, []*engine{other})
	pairs, same := 0, 0
	for i := range 6 {
		body := func() map[string]any {
			said := []map[string]string{{"role": "user", "content": text(uint64(8100+i), 40+60*i)}}
			return map[string]any{"messages": said, "max_tokens": 24, "stream": i%2 == 1}
		}
		got := ask(t, g.url, body())
		if got.prefill != "" {
			pairs++
		}
		alone := ask(t, prefill.url, body())
		if got.text == alone.text && got.prompt == alone.prompt {
			same++
		} else if got.prefill != "" {
			t.Errorf("by %s and %s, of %d tokens:\n%q\nby one engine, of %d:\n%q", got.prefill, got.decode, got.prompt, got.text, alone.prompt, alone.text)
		}
	}
	t.Logf("%d of 6 chats by pairs whose templates differ, %d decodes got prefill's ids, %d answers are those of one engine", pairs, withIDs.Load(), same)
	if pairs == 0 || int(withIDs.Load()) < pairs {
		t.Error("decode did not get the ids")
	}
	if err := healthy(decode); err != nil {
		t.Errorf("the decode engine: %v", err)
	}
}
