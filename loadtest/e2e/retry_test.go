package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// attempt is one of the requests that an SDK made for a call.
type attempt struct {
	at         time.Time
	status     int
	retryAfter time.Duration // as the gateway asked, 0 where it did not
}

// The SDK's own retries, which applications have by default, do what the gateway asks in
// its refusals: they wait as long as it says, and do not come again where that is no use.
func TestRetries_TheSDKHeedsWhatRefusalsSay(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	text := "secret: 0123456789abcdef0123456789abcdef\nkeys:\n"
	for key, limits := range map[string]string{"many": "requests-per-minute: 60", "small": "prompt-tokens-per-minute: 100"} {
		text += fmt.Sprintf("  - {sha256: %x, tenant: %s, %s}\n", sha256.Sum256([]byte(key)), key, limits)
	}
	if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startEngines(t)
	gateway := startGateway(t, f, "", "--keys-file", keys)

	t.Run("capacity", func(t *testing.T) {
		// Where nothing was answered for ten seconds one that would be late is let through.
		if _, err := callWithRetries(t, gateway, "small", call{Model: f.model, Prompt: "hello"}); err != nil {
			t.Fatal(err)
		}
		attempts, err := callWithRetries(t, gateway, "small", call{Model: f.model, Prompt: "hello"}, option.WithHeader("X-Tandem-Deadline-Ms", "1"))
		if err == nil || len(attempts) != 3 || attempts[2].status != http.StatusServiceUnavailable {
			t.Errorf("%+v, %v", attempts, err)
		}
	})
	t.Run("quota", func(t *testing.T) {
		for range 60 { // the minute's
			if _, err := callWithRetries(t, gateway, "many", call{Model: f.model, Prompt: "hello"}); err != nil {
				t.Fatal(err)
			}
		}
		// One a second comes back; some have since.
		for range 60 {
			attempts, err := callWithRetries(t, gateway, "many", call{Model: f.model, Prompt: "hello"})
			if err != nil {
				t.Fatalf("%+v, %v", attempts, err)
			}
			if len(attempts) > 1 {
				if attempts[0].status != http.StatusTooManyRequests {
					t.Errorf("%+v", attempts)
				}
				return
			}
		}
		t.Error("the quota is never used up")
	})
	t.Run("never", func(t *testing.T) {
		attempts, err := callWithRetries(t, gateway, "small", call{Model: f.model, Prompt: prompt("long", 1000)})
		if err == nil || len(attempts) != 1 || attempts[0].status != http.StatusTooManyRequests {
			t.Errorf("%+v, %v", attempts, err)
		}
	})
}

// callWithRetries makes a call with the retries that the SDK makes by default, and checks
// that it waited before each for as long as it was asked to.
func callWithRetries(t *testing.T, gateway, key string, c call, opts ...option.RequestOption) (attempts []attempt, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	client := openai.NewClient(
		option.WithBaseURL(gateway+"/v1/"), option.WithAPIKey(key),
		option.WithMiddleware(func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			at := time.Now()
			res, err := next(req)
			if err == nil {
				ms, _ := strconv.Atoi(res.Header.Get("Retry-After-Ms"))
				attempts = append(attempts, attempt{at, res.StatusCode, time.Duration(ms) * time.Millisecond})
			}
			return res, err
		}))
	_, err = client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model: c.Model, MaxTokens: openai.Int(1),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(c.Prompt)},
	}, opts...)
	for i, next := range attempts[min(1, len(attempts)):] {
		asked := attempts[i].retryAfter
		if waited := next.at.Sub(attempts[i].at); asked == 0 || waited < asked || waited > asked+20*time.Second {
			t.Errorf("it came again after %v, asked to wait %v", waited, asked)
		}
	}
	return attempts, err
}
