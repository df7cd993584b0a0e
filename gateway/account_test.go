package gateway

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"
)

// A client reads in OpenAI's headers what is left of its key's limits; a key without limits
// gets no headers.
func TestRateLimitHeaders(t *testing.T) {
	g := run(t, usual(t, "ada requests-per-minute=10 prompt-tokens-per-minute=10 output-tokens-per-minute=10", "bob"), complete().roundTrip, alone(t))
	got := g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
	for name, want := range map[string]string{"Limit-Requests": "10", "Remaining-Requests": "9", "Limit-Tokens": "10", "Limit-Output-Tokens": "10", "Remaining-Output-Tokens": "7"} {
		if is := got.header.Get("X-Ratelimit-" + name); is != want {
			t.Errorf("%s is %q, want %s", name, is, want)
		}
	}
	if reset := got.header.Get("X-Ratelimit-Reset-Requests"); !strings.HasPrefix(reset, "5.") && !strings.HasPrefix(reset, "6") {
		t.Errorf("one of ten a minute is there again in %s, want 6 s", reset)
	}
	if got := g.post(`{"model":"m","prompt":"hi"}`, as("bob")...); got.header.Get("X-Ratelimit-Limit-Requests") != "" {
		t.Errorf("no limit: %v", got.header)
	}
	if got := g.post(`{`, as("ada")...); got.header.Get("X-Ratelimit-Remaining-Requests") != "9" {
		t.Errorf("what was refused cost a request: %v", got.header)
	}
}

// A key that has used up a limit gets an error with the limit and the time; it is counted.
func TestAdmit_BeyondTheLimit(t *testing.T) {
	g := run(t, usual(t, "ada requests-per-minute=1", "eve prompt-tokens-per-minute=10"), complete().roundTrip, alone(t))
	g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
	got := g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
	if got.status != 429 || gjson.Get(got.body, "error.type").String() != "requests" || got.header.Get("Retry-After") == "" || got.header.Get("X-Should-Retry") != "" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
	got = g.post(`{"model":"m","prompt":"`+strings.Repeat("long ", 100)+`"}`, as("eve")...)
	if got.status != 429 || gjson.Get(got.body, "error.type").String() != "tokens" || got.header.Get("Retry-After") != "" || got.header.Get("X-Should-Retry") != "false" {
		t.Errorf("more than the limit ever is: %d %s %v", got.status, got.body, got.header)
	}
	for tenant, limit := range map[string]string{"ada": "requests", "eve": "prompt_tokens"} {
		if n := testutil.ToFloat64(g.server.metrics.limited.WithLabelValues(tenant, limit)); n != 1 {
			t.Errorf("%v refusals of %s by %s", n, tenant, limit)
		}
	}
}

// A request whose body costs work to read counts also where it is refused for what it says: a key that is over its limit
// has nothing decoded or parsed. A short mistake is free.
func TestAdmit_WhatIsLongToReadCounts(t *testing.T) {
	long := `{"model":"m","prompt":"` + strings.Repeat("x", 2*freeBytes) + `","n":0}`
	var varied strings.Builder // what is equal throughout may not be compressed so
	for i := range 30_000 {
		fmt.Fprint(&varied, i, " ")
	}
	for _, x := range []struct {
		name, body string
		headers    []string
		status     int
		left       string
	}{
		{"a short prompt of more tokens than the key's", `{"model":"m","prompt":"` + strings.Repeat("word ", 9000) + `"}`, nil, 429, "2"},
		{"a long one", `{"model":"m","prompt":"` + strings.Repeat("word ", 30_000) + `"}`, nil, 429, "1"},
		{"a compressed one of more tokens", encoded(t, `{"model":"m","prompt":"`+varied.String()+`"}`, gzipped), []string{"Content-Encoding", "gzip"}, 429, "1"},
		{"a short mistake", `{"model":"m","prompt":"hi","n":0}`, nil, 400, "2"},
		{"an unknown model", `{"model":"unknown","prompt":"hi"}`, nil, 404, "2"},
		{"a long mistake", long, nil, 400, "1"},
		{"a compressed one", encoded(t, `{"model":"m","prompt":"`+varied.String()+`","n":0}`, gzipped), []string{"Content-Encoding", "gzip"}, 400, "1"},
		{"a body that is not compressed as it says", `{"model":"m","prompt":"hi"}`, []string{"Content-Encoding", "gzip"}, 400, "1"},
	} {
		g := run(t, usual(t, "ada requests-per-minute=2 concurrent-requests=1 prompt-tokens-per-minute=5000"), complete().roundTrip, alone(t))
		got := g.post(x.body, append(as("ada"), x.headers...)...)
		if left := got.header.Get("X-Ratelimit-Remaining-Requests"); got.status != x.status || left != x.left {
			t.Errorf("%s: %d, %s requests are left, want %d, %s: %s", x.name, got.status, left, x.status, x.left, got.body)
		}
		if x.left == "2" {
			continue
		}
		g.post(x.body, append(as("ada"), x.headers...)...)
		if got := g.post(x.body, append(as("ada"), x.headers...)...); got.status != 429 {
			t.Errorf("%s, beyond the limit: %d %s", x.name, got.status, got.body)
		}
	}
}

// What a request cost is given back as far as the service did not serve it: all of it where
// the service failed, the tokens where the request was at fault.
func TestRefund(t *testing.T) {
	e := complete()
	g := run(t, usual(t, "ada requests-per-minute=10 prompt-tokens-per-minute=10 output-tokens-per-minute=10"), e.roundTrip, alone(t))
	left := func(of string) string {
		return g.post(`{`, as("ada")...).header.Get("X-Ratelimit-Remaining-" + of) // costs nothing
	}
	for _, x := range []struct {
		name           string
		status         int
		requests, left string // of the output tokens
	}{
		{"served", 200, "9", "7"}, {"an engine's failure", 500, "9", "7"}, {"the request's own fault", 422, "8", "7"},
	} {
		body := completion
		if x.status != 200 {
			body = `{"error":{"message":"no"}}`
		}
		e.answer = response(x.status, "application/json", body)
		g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
		if requests, output := left("Requests"), left("Output-Tokens"); requests != x.requests || output != x.left {
			t.Errorf("%s: %s requests and %s tokens are left, want %s and %s", x.name, requests, output, x.requests, x.left)
		}
	}
	if prompt := left("Tokens"); prompt != "8" {
		t.Errorf("%s prompt tokens are left of 10: two were served", prompt)
	}
}

// Metrics name so many tenants, the first that come.
func TestTenantLabels(t *testing.T) {
	labels := tenantLabels{most: 2, named: make(map[string]bool)}
	for i, x := range []struct{ tenant, want string }{{"a", "a"}, {"b", "b"}, {"c", "other"}, {"a", "a"}, {"b", "b"}, {"d", "other"}} {
		if got := labels.label(x.tenant); got != x.want {
			t.Errorf("%d: %s is %s, want %s", i, x.tenant, got, x.want)
		}
	}
	none := tenantLabels{named: make(map[string]bool)}
	if got := none.label("a"); got != "other" {
		t.Errorf("none is named, and %s is", got)
	}
}

// Tenants that come at once get names up to the bound, each one of its own.
func TestTenantLabels_OfManyAtOnce(t *testing.T) {
	labels := tenantLabels{most: 8, named: make(map[string]bool)}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				if tenant := strconv.Itoa(i); labels.label(tenant) != tenant {
					t.Errorf("%s has no name of its own", tenant)
				}
			}
		})
	}
	all.Wait()
	if got := labels.label("another"); got != otherTenants {
		t.Errorf("one beyond the bound is %s", got)
	}
}
