package gateway

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd/api"
)

// correctCharge corrects what the request's key was charged by what the answer cost, which is over now.
func (x *exchange) correctCharge(cost access.Tokens, now time.Time) {
	x.output = cost.Output
	if !x.charge.IsMade() {
		return
	}
	x.charge.End(cost, now)
	if x.key.Tenant == "" {
		return
	}
	tenant := x.server.tenants.label(x.key.Tenant)
	x.server.metrics.tenantTokens.WithLabelValues(tenant, "prompt").Add(float64(max(cost.Prompt, 0)))
	x.server.metrics.tenantTokens.WithLabelValues(tenant, "output").Add(float64(max(cost.Output, 0)))
}

// refund gives back what a request was charged that got no answer: all of it where the
// service could not serve it, the tokens where the request itself was at fault. The
// work for a client that left was done.
func (x *exchange) refund(f failure) {
	switch {
	case !x.charge.IsMade():
	case f.text.Status == statusClientGone:
		x.charge.End(access.Tokens{Prompt: -1, Output: -1}, time.Now())
	case f.text.Status < http.StatusInternalServerError:
		x.charge.End(access.Tokens{}, time.Now())
	default:
		x.charge.Refund(time.Now())
	}
}

// tenantLabels bounds the tenants that metrics name: the first that come.
type tenantLabels struct {
	most int

	mu    sync.Mutex // guards named
	named map[string]bool
}

// otherTenants stands for all beyond the bound.
const otherTenants = "other"

func (t *tenantLabels) label(tenant string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.named[tenant] {
		return tenant
	}
	if len(t.named) >= t.most {
		return otherTenants
	}
	t.named[tenant] = true
	return tenant
}

// setRateLimitHeaders reports to the client what is left of its limits, in OpenAI's headers.
// Tokens are those of prompts; those of answers have a limit of their own.
func (x *exchange) setRateLimitHeaders(to headerSetter) {
	if x.key == nil || !x.key.HasLimits() {
		return
	}
	for of, s := range x.key.LimitStatuses(time.Now()) {
		limit, remaining, reset := rateLimitHeaders(of)
		to.Set(limit, strconv.Itoa(s.Limit))
		to.Set(remaining, strconv.Itoa(s.Remaining))
		to.Set(reset, s.Reset.Round(time.Millisecond).String())
	}
}

// rateLimitHeaders are the names of the headers of one limit.
func rateLimitHeaders(of string) (limit, remaining, reset string) {
	switch of {
	case access.OfPrompt:
		return "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"
	case access.OfOutput:
		return "X-Ratelimit-Limit-Output-Tokens", "X-Ratelimit-Remaining-Output-Tokens", "X-Ratelimit-Reset-Output-Tokens"
	}
	return "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"
}

// tokensOf is what an answer cost, as far as its engine reported it.
func tokensOf(u api.Usage) access.Tokens {
	c := access.Tokens{Prompt: -1, Output: -1}
	if u.Prompt.Known {
		c.Prompt = u.Prompt.Tokens
	}
	if u.Output.Known {
		c.Output = u.Output.Tokens
	}
	return c
}
