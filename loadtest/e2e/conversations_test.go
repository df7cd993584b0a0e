package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	turnPause   = 80 * time.Millisecond // of one person
	turnWords   = 60
	turnsAtMost = 10
)

// conversations is what people say through one gateway: one person for each model, one
// conversation after the other, each turn with all that was said before.
type conversations struct {
	answered atomic.Int64
	failed   atomic.Int64
	cancel   context.CancelFunc
	people   sync.WaitGroup

	mu    sync.Mutex // guards first
	first error      // failure
}

// converse begins conversations; they end with stop, or with the test.
func converse(t *testing.T, gateway string, seed uint64, models ...string) *conversations {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &conversations{cancel: cancel}
	for i, model := range models {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		c.people.Go(func() { c.person(ctx, r, gateway, model) })
	}
	t.Cleanup(c.stop)
	return c
}

// stop ends the conversations after their present turns.
func (c *conversations) stop() {
	c.cancel()
	c.people.Wait()
}

// failure is nil if every turn was answered.
func (c *conversations) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.failed.Load(); n > 0 {
		return fmt.Errorf("%d of %d requests failed, the first: %w", n, n+c.answered.Load(), c.first)
	}
	return nil
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// person talks until the context ends.
func (c *conversations) person(ctx context.Context, r *rand.Rand, gateway, model string) {
	tick := time.NewTicker(turnPause)
	defer tick.Stop()
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var said []chatMessage
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if len(said) == 0 || len(said) > 2*r.IntN(turnsAtMost) {
			said = []chatMessage{{"system", systemPrompt(r)}}
		}
		said = append(said, chatMessage{"user", words(r)})
		answer, err := chat(client, gateway, model, said)
		if err != nil {
			c.fail(err)
			said = nil
			continue
		}
		c.answered.Add(1)
		said = append(said, chatMessage{"assistant", answer})
	}
}

func (c *conversations) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed.Add(1) == 1 {
		c.first = err
	}
}

// systemPrompt is one that all share, or one of the conversation's own: what is behind
// a block that an engine told when no gateway listened stays unknown until it is evicted,
// so that an engine that cannot replay needs conversations without such a block.
func systemPrompt(r *rand.Rand) string {
	const shared = "You are a patient assistant who answers in full sentences. "
	if r.IntN(2) == 0 {
		return strings.Repeat(shared, 12)
	}
	return fmt.Sprintf("Conversation %d. ", r.Uint64()) + shared
}

func words(r *rand.Rand) string {
	var b strings.Builder
	for range turnWords {
		fmt.Fprintf(&b, "w%d ", r.IntN(10_000))
	}
	return b.String()
}

// chat is one turn; the request is finished even when the conversations are told to
// end, so that an ending is no failure.
func chat(client *http.Client, gateway, model string, said []chatMessage) (answer string, err error) {
	body, err := json.Marshal(map[string]any{"model": model, "messages": said, "max_tokens": 24})
	if err != nil {
		return "", err
	}
	res, err := client.Post(gateway+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	var got struct {
		Choices []struct {
			Message      chatMessage `json:"message"`
			FinishReason string      `json:"finish_reason"`
		} `json:"choices"`
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s of %s: %s", res.Status, model, text)
	}
	if err := json.Unmarshal(text, &got); err != nil || len(got.Choices) != 1 || got.Choices[0].FinishReason == "" {
		return "", fmt.Errorf("no whole answer of %s: %s (%v)", model, text, err)
	}
	return got.Choices[0].Message.Content, nil
}
