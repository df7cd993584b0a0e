package standby

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// obeying is the transport to engines that do at once what they are told, but for one thing.
type obeying struct {
	mu      sync.Mutex // guards the rest
	refuses string     // a path; empty: nothing
	orders  []string   // "host path adapter", what was done only
	hung    int        // times that it was asked at hangs
	hangs   string     // a path that is answered when its request is given up
	during  func()     // while an order is carried out
	last    context.Context
}

func (o *obeying) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if req.URL.Path == o.hangs {
		o.mu.Lock()
		o.hung++
		o.mu.Unlock()
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	if o.during != nil {
		o.during()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = req.Context()
	status := http.StatusOK
	if req.URL.Path == o.refuses {
		status = http.StatusInternalServerError
	} else {
		order := req.URL.Hostname() + " " + req.URL.Path + " " + gjson.GetBytes(body, "lora_name").Str
		o.orders = append(o.orders, strings.TrimSpace(order))
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

// took fails the test unless exactly these orders were taken since it was last asked.
func (o *obeying) took(t *testing.T, when string, want ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.orders, want) {
		t.Errorf("%s: the engines were told %q, want %q", when, o.orders, want)
	}
	o.orders = nil
}

// overLast fails the test where the last order could go on after it was answered.
func (o *obeying) overLast(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last.Err() == nil {
		t.Error("the time of the last order runs on")
	}
}

// prepared is a lease on a server that is ready for a model.
func prepared(t *testing.T, s *pools.Server, model string) *pools.Lease {
	t.Helper()
	lease, err := s.Claim(pools.Decode, curve.Work{}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if await := lease.Prepare(model); await != nil {
		t.Errorf("%s is not ready for %s", s.ID(), model)
	}
	return lease
}
