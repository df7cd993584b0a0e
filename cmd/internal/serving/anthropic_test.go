package serving

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

const countPath = "/v1/messages/count_tokens"

// Agents ask how long a prompt is before they send it: one server says so, and nothing is
// generated.
func TestAnthropic_CountTokens(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1})
	body := `{"model":"test-model","system":"be brief","messages":[{"role":"user","content":"the river"}]`
	count := c.post(countPath, body+`}`)
	answer := c.post("/v1/messages", body+`,"max_tokens":3}`)
	told := gjson.Get(count.body, "input_tokens").Int()
	if want := gjson.Get(answer.body, "usage.input_tokens").Int(); count.status != 200 || told == 0 || answer.status == 200 && want > told {
		t.Errorf("%d %s, the message has %s", count.status, count.body, gjson.Get(answer.body, "usage").Raw)
	}
	if id := count.header.Get("Request-Id"); id == "" || id != count.header.Get("X-Request-Id") {
		t.Errorf("request-id %q", id)
	}
	if n := len(requests(c.decode, countPath)) + len(requests(c.prefill, countPath)); n != 1 {
		t.Errorf("%d servers were asked", n)
	}
}

// It is a request of its key, and its prompt is one of its tokens.
func TestAnthropic_CountTokensIsOfAKey(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withKeys(t, "sk-ada tenant=ada requests-per-minute=2")})
	body := `{"model":"test-model","messages":[{"role":"user","content":"the river"}]}`
	if got := c.post(countPath, body); got.status != 401 || gjson.Get(got.body, "error.type").String() != "authentication_error" {
		t.Errorf("without a key: %d %s", got.status, got.body)
	}
	limited := 0
	for range 4 {
		got := c.post(countPath, body, "X-Api-Key", "sk-ada")
		if got.status == 429 && gjson.Get(got.body, "error.type").String() == "rate_limit_error" {
			limited++
		} else if got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if limited == 0 {
		t.Error("no limit")
	}
}

// Whatever fails under /v1/messages fails in Anthropic's shape, with the request's id in
// body and header.
func TestAnthropic_ErrorsNameTheRequest(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1})
	refused := `{"model":"test-model","max_tokens":5,"messages":[{"role":"user","content":"x"}],"temperature":-1}`
	for name, x := range map[string]struct {
		method, path, body string
		status             int
		kind               string
	}{
		"unknown model": {"POST", "/v1/messages", `{"model":"nope","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`, 404, "not_found_error"},
		"not JSON":      {"POST", "/v1/messages", `{`, 400, "invalid_request_error"},
		"no such path":  {"POST", "/v1/messages/batches", `{}`, 404, "not_found_error"},
		"wrong method":  {"GET", "/v1/messages", "", 405, "invalid_request_error"},
		"an engine's":   {"POST", "/v1/messages", refused, 400, "invalid_request_error"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), x.method, c.base+x.path, strings.NewReader(x.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", "mine-7")
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got := readResponse(resp)
		e := gjson.Parse(got.body)
		if got.status != x.status || e.Get("type").String() != "error" || e.Get("error.type").String() != x.kind || e.Get("error.message").String() == "" ||
			e.Get("request_id").String() != "mine-7" || got.header.Get("Request-Id") != "mine-7" {
			t.Errorf("%s: %d %q %s", name, got.status, got.header.Get("Request-Id"), got.body)
		}
	}
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 2, Path: "/v1/messages"})
	got := c.post("/v1/messages", `{"model":"test-model","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"x"}]}`)
	last := gjson.Parse(got.events[len(got.events)-1])
	if last.Get("type").String() != "error" || last.Get("request_id").String() != got.header.Get("Request-Id") {
		t.Errorf("a stream that breaks ended with %s", last.Raw)
	}
}

// What asks for a response of before is told that none is kept.
func TestResponses_AreNotKeptAndSaySo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for _, ask := range []string{"GET /v1/responses/resp_1", "DELETE /v1/responses/resp_1", "POST /v1/responses/resp_1/cancel", "GET /v1/responses/resp_1/input_items"} {
		method, path, _ := strings.Cut(ask, " ")
		got := c.raw(method, c.base+path)
		if got.status != 404 || !strings.Contains(gjson.Get(got.body, "error.message").String(), "not kept") {
			t.Errorf("%s: %d %s", ask, got.status, got.body)
		}
	}
}
