package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
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
		{"qwen", 1, order.Latency},
		{"meta/llama", 1, order.Throughput},
		{"meta/llama", 0, order.Latency},
	} {
		if got := o.of(&Request{Model: x.model, Class: x.class}); got != x.want {
			t.Errorf("model %s, class %d: %s, want %s", x.model, x.class, got, x.want)
		}
	}
	if o, err = ParseObjectives([]string{"throughput"}, classes); err != nil || o.of(&Request{}) != order.Throughput {
		t.Errorf("%+v, %v", o, err)
	}
	for _, wrong := range []string{"speed", "llama=", "class:none=latency", ""} {
		if _, err := ParseObjectives([]string{wrong}, classes); err == nil {
			t.Errorf("%q: no error", wrong)
		}
	}
}

func TestObjectives_AreInTheTicketOfARequest(t *testing.T) {
	now := time.Now()
	o := &Orchestrator{Cost: DefaultCost()}
	o.Config.TTFT = 5 * time.Second
	o.Config.Objective.Classes = map[int]order.Objective{2: order.Throughput}
	for class, want := range []order.Objective{order.Latency, order.Latency, order.Throughput} {
		j := &journey{req: &Request{Class: class}, arrived: now}
		var ticket order.Ticket
		o.Cost.Price(o.demand(j, now), &Field{}, &ticket)
		if ticket.Weights != want.Weights() || ticket.TTFT != 5 {
			t.Errorf("class %d: %+v, TTFT %v", class, ticket.Weights, ticket.TTFT)
		}
	}
}
