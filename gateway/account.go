package gateway

import (
	"net/http"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/gateway/door"
)

// settle corrects what the request's key was charged by what the answer cost.
func (x *exchange) settle(cost door.Cost) {
	x.output = cost.Output
	if x.visit == nil {
		return
	}
	x.visit.End(cost, time.Now())
	if x.key.Tenant == "" {
		return
	}
	tenant := x.server.tenants.label(x.key.Tenant)
	x.server.metrics.tenantTokens.WithLabelValues(tenant, "prompt").Add(float64(max(cost.Prompt, 0)))
	x.server.metrics.tenantTokens.WithLabelValues(tenant, "output").Add(float64(max(cost.Output, 0)))
}

// giveBack returns what a request was charged that got no answer: all of it where the
// service could not serve it, the tokens where the request itself was at fault. The
// work for a client that left was done.
func (x *exchange) giveBack(f failure) {
	switch {
	case x.visit == nil:
	case f.text.Status == statusClientGone:
		x.visit.End(door.Cost{Prompt: -1, Output: -1}, time.Now())
	case f.text.Status < http.StatusInternalServerError:
		x.visit.End(door.Cost{}, time.Now())
	default:
		x.visit.Refund(time.Now())
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
