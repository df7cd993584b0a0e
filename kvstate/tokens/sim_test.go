package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sim is a simulated engine as tests use it.
type sim struct {
	*engine.Engine
	client *http.Client
}

func startSim(t testing.TB, change func(*engine.Config)) *sim {
	t.Helper()
	cfg := engine.Default()
	cfg.TimeScale = 0
	cfg.MeanOutputTokens = 40
	cfg.Adapters = []string{"lora-a"}
	if change != nil {
		change(&cfg)
	}
	e, err := engine.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{Engine: e, client: &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// post is an Ask.
func (s *sim) post(ctx context.Context, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == 404 || resp.StatusCode == 405:
		return nil, fmt.Errorf("%s: %w", path, ErrNotServed)
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return nil, fmt.Errorf("%s: %w", answer, ErrRefused)
	case resp.StatusCode != 200:
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	return answer, nil
}

// message is one turn in tests.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func chatBody(t testing.TB, messages []message, more map[string]any) []byte {
	t.Helper()
	fields := map[string]any{"model": "sim-model", "messages": messages, "max_tokens": 64}
	for k, v := range more {
		fields[k] = v
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// chatAnswer is what tests read of an answer.
type chatAnswer struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Text      string   `json:"text"` // of a completion
		PromptIDs []uint32 `json:"prompt_token_ids"`
	} `json:"choices"`
	PromptIDs []uint32 `json:"prompt_token_ids"`
	Usage     struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// complete sends a chat or a completion and returns its answer, also raw.
func (s *sim) complete(t testing.TB, p Prompt) (chatAnswer, []byte) {
	t.Helper()
	raw, err := s.post(t.Context(), map[API]string{Chat: "/v1/chat/completions", Completions: "/v1/completions"}[p.API], p.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a chatAnswer
	if err := json.Unmarshal(raw, &a); err != nil {
		t.Fatal(err)
	}
	return a, raw
}

// words writes n words of prose; equal seeds give equal texts.
func words(rng *rand.Rand, n int) string {
	list := strings.Fields(`the of and to in is that for it with as was on be at by this had not are but from or
		have an they which one you were all her she there would their we him been has when who will more no if out
		so what up said its about into than them can only other new some could time these two may then do first any
		my now such like our over man me even most made after also did many before must through back years where
		server cluster cache block token prefill decode transfer gateway request response latency queue`)
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(list[rng.IntN(len(list))])
		switch rng.IntN(15) {
		case 0:
			b.WriteByte('.')
		case 1:
			b.WriteByte(',')
		case 2:
			b.WriteString("\n")
		}
	}
	return b.String()
}
