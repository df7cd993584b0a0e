package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/permodel"
)

func TestObjectives_AClassGoesBeforeAModelAndBothBeforeAll(t *testing.T) {
	classes := []string{"interactive", "standard", "batch"}
	o, err := ParseObjectives([]string{"meta/llama=throughput", "class:interactive=latency"}, classes)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		model string
		class int
		want  order.Objective
	}{
		{"qwen", 1, order.Auto},
		{"meta/llama", 1, order.Throughput},
		{"meta/llama", 0, order.Latency},
	} {
		if got := o.of(&Request{Model: x.model, Class: x.class}, x.model); got != x.want {
			t.Errorf("model %s, class %d: %s, want %s", x.model, x.class, got, x.want)
		}
	}
	if o, err = ParseObjectives([]string{"throughput"}, classes); err != nil || o.of(&Request{}, "") != order.Throughput {
		t.Errorf("%+v, %v", o, err)
	}
	for _, wrong := range []string{"speed", "llama=", "class:none=latency", "class:batch=speed", ""} {
		if _, err := ParseObjectives([]string{wrong}, classes); err == nil {
			t.Errorf("%q: no error", wrong)
		}
	}
}

func TestSLO_TheNearestCounts(t *testing.T) {
	var c Config
	var err error
	if c.TTFT, err = permodel.ParseDurations("ttft-slo", []string{"2s", "big=5s", "sql=1s", "free=0s"}); err != nil {
		t.Fatal(err)
	}
	if c.ITL, err = permodel.ParseDurations("itl-slo", []string{"big=80ms"}); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, model, base string
		own               time.Duration // TTFT of the request
		ttft, itl         time.Duration
	}{
		{"the request's own", "big", "big", 100 * time.Millisecond, 100 * time.Millisecond, 80 * time.Millisecond},
		{"the request's own, of a model without", "free", "free", 100 * time.Millisecond, 100 * time.Millisecond, 0},
		{"its model's", "big", "big", 0, 5 * time.Second, 80 * time.Millisecond},
		{"its adapter's, and its base model's", "sql", "big", 0, time.Second, 80 * time.Millisecond},
		{"its base model's", "law", "big", 0, 5 * time.Second, 80 * time.Millisecond},
		{"none for its model", "free", "free", 0, 0, 0},
		{"that of all", "small", "small", 0, 2 * time.Second, 0},
	} {
		if ttft, itl := c.SLO(&Request{Model: x.model, TTFT: x.own}, x.base); ttft != x.ttft || itl != x.itl {
			t.Errorf("%s: %v and %v, want %v and %v", x.name, ttft, itl, x.ttft, x.itl)
		}
	}
}

// The replica that decides judges another's request by what that replica judges it by.
func TestSLO_TravelsToTheReplicaThatDecides(t *testing.T) {
	f := newTestFleet(t, 1, nil)
	f.Binder.Config.TTFT.Models = map[string]time.Duration{testModel: 5 * time.Second}
	f.Binder.Config.ITL.All = 40 * time.Millisecond
	elsewhere := &Chooser{Snapshotter: Snapshotter{Config: DefaultConfig().BindConfig}}
	elsewhere.Config.TTFT.All = time.Second // one that does not know the model's yet
	now := time.Now()
	remote := newRemoteRequest(f.Binder.remoteRequest(&f.arrives(testPrompt(100), now).bind), now)
	if d := elsewhere.demand(remote, now); d.TTFT != 5*time.Second || d.ITL != 40*time.Millisecond {
		t.Errorf("another replica's request is judged by %v and %v", d.TTFT, d.ITL)
	}
}

// It prices another's request with the first token from where that replica will take it.
func TestDemand_FirstTokensTravelToTheReplicaThatDecides(t *testing.T) {
	f := newTestFleet(t, 1, nil)
	now := time.Now()
	for _, own := range []struct{ first, exact bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		r := f.arrives(testPrompt(100), now).bind
		r.firstFromPrefill = own.first
		r.prefix = &prefix{}
		r.prefix.tokens.Complete = own.exact
		d := f.Binder.demand(newRemoteRequest(f.Binder.remoteRequest(&r), now), now)
		if d.FirstFromPrefill != own.first || d.Exact != own.exact {
			t.Errorf("%+v: it is priced as %v, %v", own, d.FirstFromPrefill, d.Exact)
		}
	}
}

func TestObjectives_AreInTheTicketOfARequest(t *testing.T) {
	now := time.Now()
	o := &Chooser{Snapshotter: Snapshotter{Cost: cost.Default()}}
	o.Config.TTFT.All = 5 * time.Second
	o.Config.Objective.Classes = map[int]order.Objective{0: order.Latency, 2: order.Throughput}
	for class, want := range []order.Objective{order.Latency, order.Throughput, order.Throughput} { // 1 is auto
		r := &bindRequest{req: &Request{Class: class}, arrived: now}
		var ticket order.Ticket
		o.Cost.PriceRequest(o.demand(r, now), &cost.Candidates{}, &ticket)
		if ticket.Weights != want.Weights() || ticket.TTFT != 5 {
			t.Errorf("class %d: %+v, TTFT %v", class, ticket.Weights, ticket.TTFT)
		}
	}
	o.Config.TTFT.All, o.Config.ITL.All = 0, 50*time.Millisecond
	for class, want := range []order.Objective{order.Latency, order.Latency, order.Throughput} { // no first token is due
		r := &bindRequest{req: &Request{Class: class}, arrived: now}
		var ticket order.Ticket
		o.Cost.PriceRequest(o.demand(r, now), &cost.Candidates{}, &ticket)
		if ticket.Weights != want.Weights() {
			t.Errorf("class %d without an objective for the first token: %+v", class, ticket.Weights)
		}
	}
}
