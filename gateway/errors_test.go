package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools"
)

// Of many that are refused together each is told when there is room for it.
func TestExplain_ARefusalSaysWhenThereIsRoom(t *testing.T) {
	for _, late := range []error{queue.ErrTimeout, queue.ErrDeadline} {
		for _, in := range []time.Duration{0, 12 * time.Second} {
			err := fmt.Errorf("request: %w", &queue.Refusal{Late: late, Return: in})
			if got := explain(err); got.text.Status != 503 || got.retryAfter < in+time.Second || got.retryAfter >= in+2*time.Second {
				t.Errorf("%v, room in %v: %d, come back in %v", late, in, got.text.Status, got.retryAfter)
			}
		}
	}
}

// Each error has one status, one code and one outcome in metrics; those that pass by
// themselves ask the client to come back within two seconds.
func TestExplain(t *testing.T) {
	legOf := func(kind pd.Kind, status int, body string) error {
		return fmt.Errorf("request: %w", &pd.LegError{Leg: pd.DecodeLeg, Kind: kind, Status: status, Body: []byte(body)})
	}
	for _, x := range []struct {
		name    string
		err     error
		status  int
		code    string
		outcome string
		message string
		retry   bool
		lacks   bool // capacity
	}{
		{"no key", errNoKey, 401, "invalid_api_key", "unauthorized", "is needed", false, false},
		{"unknown key", errUnknownKey, 401, "invalid_api_key", "unauthorized", "not known", false, false},
		{"bad request", invalid("n", "no %d", 7), 400, "", "bad_request", "no 7", false, false},
		{"unknown model", errUnknownModel, 404, "model_not_found", "bad_request", "not served", false, false},
		{"unknown adapter", scalefromzero.ErrNoAdapter, 404, "model_not_found", "bad_request", "not served", false, false},
		{"stopping", fmt.Errorf("x: %w", errStopping), 503, "stopping", "stopped", "shutting down", true, true},
		{"gone", context.Canceled, 499, "", "client_gone", "left", false, false},
		{"quarantined", retry.ErrQuarantined, 422, "request_quarantined", "quarantined", "two servers", false, false},
		{"deadline", queue.ErrDeadline, 503, "deadline_unreachable", "deadline", "deadline", true, true},
		{"displaced", queue.ErrDisplaced, 503, "overloaded", "displaced", "higher priority", true, true},
		{"queue full", queue.ErrFull, 503, "overloaded", "overloaded", "at capacity", true, true},
		{"queue timeout", queue.ErrTimeout, 503, "overloaded", "overloaded", "at capacity", true, true},
		{"too long a prompt", &pd.ContextLengthError{Dialect: api.Chat, Longest: 9, Prompt: 9}, 400, "context_length_exceeded", "bad_request", "is 9 tokens", false, false},
		{"no pair", &pd.NoServerError{Role: pools.Decode, NoPair: true}, 503, "no_pair", "no_server", "work together", true, true},
		{"no decode", &pd.NoServerError{Role: pools.Decode}, 503, "no_server", "no_server", "No decode server", true, true},
		{"no prefill", &pd.NoServerError{Role: pools.Prefill}, 503, "no_server", "no_server", "No prefill server", true, true},
		{"anything", errors.New("secret"), 500, "", "error", "failed to handle", false, false},
		{"an engine's 401", legOf(pd.Refused, 401, `{"error":{"message":"sk-secret"}}`), 401, "invalid_api_key", "unauthorized", "does not accept", false, false},
		{"an engine's refusal", legOf(pd.Refused, 422, `{"error":{"message":"odd"}}`), 422, "", "refused", "", false, false},
		{"a flat refusal", legOf(pd.Refused, 400, `{"message":"too odd"}`), 400, "", "refused", "too odd", false, false},
		{"a refusal without a word", legOf(pd.Refused, 400, `no`), 400, "", "refused", "The engine refused", false, false},
		{"busy", legOf(pd.Busy, 503, ""), 503, "overloaded", "overloaded", "busy", true, true},
		{"unsent", legOf(pd.Unsent, 0, ""), 503, "no_server", "no_server", "reached", true, true},
		{"timeout", legOf(pd.Timeout, 0, ""), 504, "engine_timeout", "timeout", "in time", false, false},
		{"unready", legOf(pd.Unready, 0, ""), 503, "no_server", "no_server", "ready", true, true},
		{"our own", legOf(pd.Ours, 0, ""), 503, "overloaded", "overloaded", "at capacity", true, true},
		{"client gone from a leg", legOf(pd.Gone, 0, ""), 499, "", "client_gone", "left", false, false},
		{"broken", legOf(pd.Broken, 500, "secret"), 502, "engine_error", "error", "failed to answer", false, false},
	} {
		f := explain(x.err)
		if f.text.Status != x.status || f.text.Code != x.code || f.outcome != x.outcome || !strings.Contains(f.text.Message, x.message) || strings.Contains(f.text.Message, "secret") || f.lacksCapacity() != x.lacks {
			t.Errorf("%s: %+v, lacks capacity: %v", x.name, f, f.lacksCapacity())
		}
		if within := f.retryAfter >= time.Second && f.retryAfter < 2*time.Second; within != x.retry || !x.retry && f.retryAfter != 0 {
			t.Errorf("%s: retry after %v", x.name, f.retryAfter)
		}
	}
	if f := explain(&pd.LegError{Kind: pd.Busy, RetryAfter: time.Minute}); f.retryAfter != time.Minute {
		t.Errorf("an engine asked to be left alone for a minute, the client is told %v", f.retryAfter)
	}
}

// The outcome "overloaded" has several causes, which an operator does different things about.
func TestExplain_CauseOfOverload(t *testing.T) {
	for _, x := range []struct {
		err  error
		want string
	}{
		{queue.ErrFull, "max_waiting"},
		{queue.ErrTimeout, "max_wait"},
		{queue.ErrBytes, "max_held"},
		{&pd.LegError{Kind: pd.Ours, Err: fmt.Errorf("read: %w", enginehttp.ErrAnswersHeld)}, "max_held"},
		{&pd.LegError{Kind: pd.Busy, Status: 503}, "engines"},
		{&pd.LegError{Kind: pd.Ours, Err: syscall.EMFILE}, "gateway"},
		{queue.ErrDisplaced, ""},
		{queue.ErrDeadline, ""},
		{&pd.NoServerError{Role: pools.Decode}, ""},
	} {
		if f := explain(x.err); f.cause != x.want || (f.outcome == "overloaded") != (x.want != "") {
			t.Errorf("%v: %+v, want the cause %q", x.err, f, x.want)
		}
	}
}

// On Anthropic's APIs all refusals for want of capacity are 529, and 503 is left to servers that are not there and to a
// gateway that ends; elsewhere both are 503.
func TestExplain_AnthropicsStatusOfCapacity(t *testing.T) {
	for _, x := range []struct {
		err                 error
		messages, elsewhere int
	}{
		{queue.ErrDeadline, 529, 503},
		{queue.ErrDisplaced, 529, 503},
		{queue.ErrFull, 529, 503},
		{&pd.LegError{Kind: pd.Busy, Status: 503}, 529, 503},
		{&pd.NoServerError{Role: pools.Decode}, 503, 503},
		{errStopping, 503, 503},
	} {
		f := explain(x.err)
		if m, e := f.in(api.Messages).text.Status, f.in(api.Chat).text.Status; m != x.messages || e != x.elsewhere {
			t.Errorf("%v: %d and %d, want %d and %d", x.err, m, e, x.messages, x.elsewhere)
		}
	}
}

// A limit says which it is, and when to come back: somewhat later each, so that clients that wait
// do not return together.
func TestExplain_Quota(t *testing.T) {
	for _, x := range []struct {
		limit   access.LimitError
		kind    string
		message string
	}{
		{access.LimitError{Of: access.OfRequests, Limit: 5, Wait: time.Minute}, "requests", "limit of 5 requests per minute is used up"},
		{access.LimitError{Of: access.OfPrompt, Limit: 5, Wait: time.Minute}, "tokens", "limit of 5 prompt tokens per minute is used up"},
		{access.LimitError{Of: access.OfOutput, Limit: 5, Wait: time.Minute}, "tokens", "limit of 5 output tokens per minute is used up"},
		{access.LimitError{Of: access.OfConcurrent, Limit: 5, Wait: time.Second}, "requests", "limit of 5 concurrent requests is reached"},
	} {
		f := explain(&x.limit)
		if f.text.Status != 429 || f.text.Type != x.kind || !strings.Contains(f.text.Message, x.message) || f.final || f.limit != x.limit.Of || f.lacksCapacity() {
			t.Errorf("%+v", f)
		}
		if f.retryAfter < x.limit.Wait || f.retryAfter > x.limit.Wait+x.limit.Wait/10+10*time.Millisecond {
			t.Errorf("%s: %v for a wait of %v", x.limit.Of, f.retryAfter, x.limit.Wait)
		}
	}
	f := explain(&access.LimitError{Of: access.OfPrompt, Limit: 5, Never: true})
	if !f.final || f.retryAfter != 0 || !strings.Contains(f.text.Message, "larger than the API key's limit of 5 prompt tokens") {
		t.Errorf("it can never be let in: %+v", f)
	}
}

// An engine's error goes on as it is where clients can read it.
func TestErrorBody(t *testing.T) {
	long := strings.Repeat("x", maxErrorBody)
	for body, passed := range map[string]bool{
		`{"error":{"message":"a"}}`: true, `{"error":"a"}`: false, `{"message":"a"}`: false, `{"error":{}`: false, ``: false,
		`{"error":{}}`: false, `{"error":{"message":""}}`: false, // nothing to say
		`{"error":{"message":"` + long[:maxErrorBody-24] + `"}}`: true, `{"error":{"message":"` + long[:maxErrorBody-23] + `"}}`: false,
	} {
		if got := errorBody([]byte(body)); (got != nil) != passed || passed && string(got) != body {
			t.Errorf("%.40s of %d bytes: passed on %v", body, len(body), got != nil)
		}
	}
	for body, want := range map[string]string{
		`{"detail":"a"}`: "a", `{"message":"a","detail":"b"}`: "a", `{"detail":[{"msg":"a"}]}`: "The engine refused the request.",
		`{"message":"a"}`: "a", `{"message":""}`: "The engine refused the request.",
		`{"message":"` + long[:maxErrorBody-14] + `"}`: long[:maxErrorBody-14], `{"message":"` + long[:maxErrorBody-13] + `"}`: "The engine refused the request.",
	} {
		if got := flatMessage([]byte(body)); got != want {
			t.Errorf("%.40s of %d bytes: %.40q", body, len(body), got)
		}
	}
}

// OpenAI's SDK for Java throws where a code is a number, and async-openai takes the answer for no error of the API at all.
func TestErrorBody_ACodeIsATextOrNull(t *testing.T) {
	for said, want := range map[string]string{
		`{"error":{"message":"a \"code\":1","type":"BadRequestError","param":"top_k","code":400}}`: `{"error":{"message":"a \"code\":1","type":"BadRequestError","param":"top_k","code":null}}`,
		`{"code":1,"error":{"code":400 ,"message":"a"}}`:                                           `{"code":1,"error":{"code":null ,"message":"a"}}`,
		`{"error":{"message":"too long","param":"input_tokens","code":400}}`:                       `{"error":{"message":"too long","param":"input_tokens","code":"context_length_exceeded"}}`,
		`{"error":{"message":"too long","param":"input_text","code":400}}`:                         `{"error":{"message":"too long","param":"input_text","code":"context_length_exceeded"}}`,
		`{"error":{"message":"This model's maximum context length is 10 tokens. However, you requested 25 tokens (20 in the messages, 5 in the completion).","param":null,"code":400}}`:                 `{"error":{"message":"This model's maximum context length is 10 tokens. However, you requested 25 tokens (20 in the messages, 5 in the completion).","param":null,"code":"context_length_exceeded"}}`,
		`{"object":"error","message":"The input (20 tokens) is longer than the model's context length (10 tokens).","type":"BadRequestError","param":null,"code":400}`:                                  `{"error":{"code":"context_length_exceeded","message":"The input (20 tokens) is longer than the model's context length (10 tokens).","param":null,"type":"invalid_request_error"}}`,
		`{"object":"error","message":"The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)","type":"BadRequestError","param":null,"code":400}`:                 `{"error":{"code":"context_length_exceeded","message":"The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)","param":null,"type":"invalid_request_error"}}`,
		`{"object":"error","message":"This model's maximum context length is 32768 tokens. However, you requested 32818 tokens in the messages, Please reduce the length of the messages.","code":400}`: `{"error":{"code":"context_length_exceeded","message":"This model's maximum context length is 32768 tokens. However, you requested 32818 tokens in the messages, Please reduce the length of the messages.","param":null,"type":"invalid_request_error"}}`,
		`{"object":"error","message":"The input is odd.","code":400}`:      `{"error":{"code":null,"message":"The input is odd.","param":null,"type":"invalid_request_error"}}`,
		`{"error":{"message":"a","param":"max_tokens","code":"too_many"}}`: `{"error":{"message":"a","param":"max_tokens","code":"too_many"}}`,
	} {
		e := &engines{answer: response(400, "application/json", said)}
		g := run(t, usual(t), e.roundTrip, alone(t))
		if got := g.ask("POST", api.Chat.Path, promptOf(api.Chat, "")); got.status != 400 || got.body != want {
			t.Errorf("%s: %d %s", said, got.status, got.body)
		}
	}
}

// Where the prompt is too long, Anthropic's clients look for Anthropic's words.
func TestErrorBody_AMessageThatIsTooLong(t *testing.T) {
	said := `{"type":"error","error":{"type":"invalid_request_error","message":"This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens. Please reduce the length of the input messages."}}`
	e := &engines{answer: response(400, "application/json", said)}
	g := run(t, usual(t), e.roundTrip, alone(t))
	got := g.ask("POST", api.Messages.Path, promptOf(api.Messages, ""))
	if message := gjson.Get(got.body, "error.message").Str; got.status != 400 || message != "prompt is too long: 9000 tokens > 8192 maximum" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// The same request would get the same answer: clients are told not to try again.
func TestPermanent(t *testing.T) {
	for status, want := range map[int]bool{200: false, 399: false, 400: true, 404: true, 408: false, 409: false, 413: true, 422: true, 429: false, 498: true, 499: false, 500: false, 503: false} {
		if permanent(status) != want {
			t.Errorf("%d: %v", status, permanent(status))
		}
	}
}

// An engine's error in the shape of the API that was called, and the times in both headers.
func TestSend(t *testing.T) {
	e := &engines{answer: response(422, "application/json", `{"error":{"message":"too odd","type":"x"}}`)}
	g := run(t, usual(t), e.roundTrip, alone(t))
	got := g.post(`{"model":"m","prompt":"hi"}`)
	if got.status != 422 || got.body != `{"error":{"message":"too odd","type":"x"}}` || got.header.Get("Content-Type") != "application/json" || got.header.Get("Retry-After") != "" {
		t.Errorf("as it is: %d %s %v", got.status, got.body, got.header)
	}
	got = g.ask("POST", "/v1/messages", hello, "X-Request-Id", "mine")
	if got.status != 422 || gjson.Get(got.body, "type").String() != "error" || gjson.Get(got.body, "error.message").String() != "too odd" || gjson.Get(got.body, "request_id").String() != "mine" {
		t.Errorf("Anthropic's: %d %s", got.status, got.body)
	}
	e.answer = func() *http.Response {
		r := response(503, "application/json", `{}`)()
		r.Header.Set("Retry-After", "7")
		return r
	}
	got = g.post(`{"model":"m","prompt":"hi"}`)
	if got.status != 503 || got.header.Get("Retry-After") != "7" || got.header.Get("Retry-After-Ms") != "7000" || got.header.Get("X-Should-Retry") != "" {
		t.Errorf("busy for 7 s: %d %v", got.status, got.header)
	}
}
