package overload

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
)

// good is a report in which all gates hold.
func good() *Report {
	return &Report{
		Binding: "late", Factor: 3, SLO: 2 * time.Second,
		Peak:    Phase{Name: "peak", Length: time.Second, Rate: 36, Good: 36, TTFT99: time.Second},
		Over:    Phase{Name: "overload", Length: time.Second, Rate: 108, Good: 33, Refused: 100, Refusal99: 9 * time.Millisecond, TTFT99: 2 * time.Second, Growth: 0.05},
		After:   Phase{Name: "after", Length: time.Second, Rate: 18, Good: 18},
		Shared:  Phase{Name: "shared", Length: time.Second, TTFT99: 400 * time.Millisecond, All99: 400 * time.Millisecond},
		Flooded: Phase{Name: "flooded", Length: time.Second, TTFT99: 600 * time.Millisecond, All99: 600 * time.Millisecond},
	}
}

func TestReport_EachGateCanBeMissed(t *testing.T) {
	if r := good(); !r.OK() {
		t.Fatalf("%+v", r.Gates())
	}
	for _, c := range []struct {
		gate  string
		spoil func(*Report)
	}{
		{"goodput", func(r *Report) { r.Over.Good = 32 }},
		{"refusals", func(r *Report) { r.Over.Refusal99 = 11 * time.Millisecond }},
		{"refusals", func(r *Report) { r.Over.Refused = 0 }},
		{"failures", func(r *Report) { r.Over.Failed = 1 }},
		{"failures", func(r *Report) { r.After.Failed = 1 }},
		{"admitted", func(r *Report) { r.Over.TTFT99 = 2001 * time.Millisecond }},
		{"memory", func(r *Report) { r.Over.Growth = 0.06 }},
		{"recovery", func(r *Report) { r.After.Late = 1 }},
		{"fairness", func(r *Report) { r.Flooded.All99 = 601 * time.Millisecond }},
		{"fairness", func(r *Report) { r.Flooded.All99 = 0 }},
	} {
		r := good()
		c.spoil(r)
		var table strings.Builder
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		if r.OK() || strings.Count(table.String(), "MISSED") != 1 || !strings.Contains(table.String(), "MISSED  "+c.gate) {
			t.Errorf("%s:\n%s", c.gate, table.String())
		}
	}
	r := good()
	r.Shared, r.Flooded = Phase{}, Phase{}
	if !r.OK() || len(r.Gates()) != 6 {
		t.Errorf("without tenants: %+v", r.Gates())
	}
}

// A refused request counts against a tenant's first tokens, and so does one answered late.
func TestPhase_TheP99OfAllKnowsWhoWasNotAnswered(t *testing.T) {
	p := newPhase("", 1, time.Second, time.Second)
	for i := range 1000 {
		p.ended(ended(time.Duration(i)*time.Millisecond, i < 991))
	}
	if out := p.result(nil); out.All99 != 990*time.Millisecond || out.Refused != 9 {
		t.Errorf("p99 %v, %d refused", out.All99, out.Refused)
	}
	p.ended(ended(0, false))
	p.ended(ended(0, false))
	if out := p.result(nil); out.All99 != 0 {
		t.Errorf("p99 %v though more than one in a hundred had no answer", out.All99)
	}
}

// An empty queue takes in more in its first seconds than the servers can do.
func TestPhase_GoodputIsThatOfAFullQueue(t *testing.T) {
	p := newPhase("", 1, 3*time.Second, time.Second)
	for _, due := range []time.Duration{0, time.Second, 2 * time.Second} {
		e := ended(time.Millisecond, due < 2*time.Second)
		e.Due = due
		p.ended(e)
	}
	if out := p.result(nil); out.Asked != 1 || out.Good != 0.5 || out.Arrived != 3 {
		t.Errorf("asked %.1f/s, good %.1f/s, %d arrived", out.Asked, out.Good, out.Arrived)
	}
}

func ended(ttft time.Duration, answered bool) loadtest.Ended {
	if !answered {
		return loadtest.Ended{Kind: "http_503", Took: time.Millisecond}
	}
	return loadtest.Ended{Kind: loadtest.OK, TTFT: ttft}
}
