package sizing

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// The cases of the planner are text files that a person can dispute. "new" begins with the
// usual signals and no memory; what a line says stays until a later one changes it, and so does
// the memory of decisions. A series of 20000x54+60000x6 is 54 bins of 20,000 and then six of
// 60,000. The time between two decisions is 15 s. Regenerate with:
// go test ./autoscale/sizing -run Golden -rewrite
func TestPlan_Golden(t *testing.T) {
	datadriven.Walk(t, "testdata/want", func(t *testing.T, path string) {
		p, s, m := DefaultPlanner(), usualSignals(), Memory{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				p, s, m = DefaultPlanner(), usualSignals(), Memory{}
			}
			times := 1
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "times":
					d.ScanArgs(t, a.Key, &times)
				case "zero":
					p.Prefill.Min, p.Decode.Min = 0, 0
				default:
					setSignal(t, d, &s, &p, a.Key, a.Vals[0])
				}
			}
			return decide(&p, &s, &m, times)
		})
	})
}

// decide prints the decisions that differ from the one before.
func decide(p *Planner, s *Signals, m *Memory, times int) string {
	var b strings.Builder
	var last Plan
	for i := range times {
		var plan Plan
		plan, *m = p.Plan(*s, *m, 15*time.Second)
		if i > 0 && plan == last {
			continue
		}
		last = plan
		if !plan.Known {
			fmt.Fprintf(&b, "%s: nothing is decided\n", time.Duration(i)*15*time.Second)
			continue
		}
		fmt.Fprintf(&b, "%s: prefill %d %s, decode %d %s\n", time.Duration(i)*15*time.Second,
			plan.Prefill.Servers, plan.Prefill.Reason, plan.Decode.Servers, plan.Decode.Reason)
	}
	return b.String()
}

// usualSignals are of two servers of each role that are busy for three quarters.
func usualSignals() Signals {
	return Signals{
		Prompt: parsed("15000x90"), Output: parsed("1500x90"), KV: parsed("450000x90"),
		PrefillSpeed: 10_000, DecodeSpeed: 1000, KVCapacity: 300_000,
		Prefill: Pool{Ready: 2}, Decode: Pool{Ready: 2}, ColdStart: 2 * time.Minute,
	}
}

// parsed reads a series such as 20000x54+60000x6, or 100..300x20 for a straight line.
func parsed(text string) Series {
	var s Series
	for part := range strings.SplitSeq(text, "+") {
		values, count, _ := strings.Cut(part, "x")
		from, to, ramp := strings.Cut(values, "..")
		if !ramp {
			to = from
		}
		n, err := strconv.Atoi(count)
		a, errA := strconv.ParseFloat(from, 64)
		b, errB := strconv.ParseFloat(to, 64)
		if err != nil || errA != nil || errB != nil {
			panic("want VALUExCOUNT or FROM..TOxCOUNT, got " + part)
		}
		for i := range n {
			s = append(s, a+(b-a)*float64(i)/float64(max(n-1, 1)))
		}
	}
	return s
}

func setSignal(t *testing.T, d *datadriven.TestData, s *Signals, p *Planner, key, value string) {
	number := func() float64 {
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			d.Fatalf(t, "%s: %v", key, err)
		}
		return v
	}
	span := func() time.Duration {
		v, err := time.ParseDuration(value)
		if err != nil {
			d.Fatalf(t, "%s: %v", key, err)
		}
		return v
	}
	switch key {
	case "prompt":
		s.Prompt = parsed(value)
	case "output":
		s.Output = parsed(value)
	case "kv":
		s.KV = parsed(value)
	case "held":
		s.WaitingForCapacity = int(number())
	case "prefill-backlog":
		s.PrefillBacklog = number()
	case "decode-backlog":
		s.DecodeBacklog = number()
	case "prefill-speed":
		s.PrefillSpeed = number()
	case "decode-speed":
		s.DecodeSpeed = number()
	case "kv-capacity":
		s.KVCapacity = number()
	case "prefill":
		s.Prefill.Ready = int(number())
	case "decode":
		s.Decode.Ready = int(number())
	case "prefill-pending":
		s.Prefill.Pending = int(number())
	case "decode-pending":
		s.Decode.Pending = int(number())
	case "convertible":
		s.Decode.Convertible = int(number())
	case "cold-start":
		s.ColdStart = span()
	case "age":
		s.Age = span()
	case "most":
		p.Prefill.Max, p.Decode.Max = int(number()), int(number())
	default:
		d.Fatalf(t, "unknown word %q", key)
	}
}

func TestPlan_Properties(t *testing.T) {
	rate := rapid.Custom(func(t *rapid.T) Series {
		return Series(rapid.SliceOfN(rapid.Float64Range(0, 1e6), 0, 90).Draw(t, "bins"))
	})
	figure := func(t *rapid.T, name string) float64 {
		return rapid.SampledFrom([]float64{0, 1, 1000, 350_000, math.NaN(), math.Inf(1), -1}).Draw(t, name)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := DefaultPlanner()
		if rapid.Bool().Draw(t, "zero") {
			p.Prefill.Min, p.Decode.Min = 0, 0
		}
		var m Memory
		for range rapid.IntRange(1, 20).Draw(t, "decisions") {
			s := Signals{
				Age: time.Duration(rapid.IntRange(0, 90).Draw(t, "age")) * time.Second, Prompt: rate.Draw(t, "prompt"), Output: rate.Draw(t, "output"),
				KV: rate.Draw(t, "kv"), WaitingForCapacity: rapid.IntRange(0, 3).Draw(t, "held"), PrefillBacklog: figure(t, "backlog"), DecodeBacklog: figure(t, "decode backlog"),
				PrefillSpeed: figure(t, "prefill speed"), DecodeSpeed: figure(t, "decode speed"), KVCapacity: figure(t, "capacity"), ColdStart: time.Minute,
				Prefill: Pool{Ready: rapid.IntRange(0, 9).Draw(t, "prefill"), Pending: rapid.IntRange(0, 2).Draw(t, "pending")}, Decode: Pool{Ready: rapid.IntRange(0, 9).Draw(t, "decode")},
			}
			before := m
			var plan Plan
			plan, m = p.Plan(s, m, 15*time.Second)
			if (plan.Prefill.Servers == 0) != (plan.Decode.Servers == 0) {
				t.Fatalf("one role alone serves nothing: %+v", plan)
			}
			if plan.Prefill.Reason == Stale && (m != before || plan.Prefill.Servers != before.Prefill.Servers) {
				t.Fatalf("stale signals changed the decision from %+v to %+v", before, plan)
			}
			for _, servers := range []int{plan.Prefill.Servers, plan.Decode.Servers} {
				if servers < 0 || servers > 100 || plan.Known && p.Prefill.Min == 1 && servers < 1 {
					t.Fatalf("out of bounds: %+v", plan)
				}
			}
		}
	})
}

// No request comes, and some servers are wanted all the same: they are work for
// the choice of hardware too, or it would want none.
func TestPlan_FewestServersAreLoad(t *testing.T) {
	p := DefaultPlanner()
	p.Prefill.Min, p.Decode.Min = 3, 1
	s := usualSignals()
	s.Prompt, s.Output, s.KV = make(Series, 90), make(Series, 90), make(Series, 90)
	s.Prefill.Ready, s.Decode.Ready = 3, 1
	plan, _ := p.Plan(s, Memory{}, 0)
	if plan.Prefill.Load != 3 || plan.Decode.Load != 1 {
		t.Errorf("%+v: want the load of 3 and 1 servers", plan)
	}
}

func TestPlanner_Validate(t *testing.T) {
	for _, of := range []struct {
		name   string
		change func(*Planner)
		valid  bool
	}{
		{"as it comes", func(*Planner) {}, true}, {"to zero", func(p *Planner) { p.Prefill.Min, p.Decode.Min = 0, 0 }, true}, {"one at least and at most", func(p *Planner) { p.Prefill = Bounds{1, 1} }, true},
		{"one role to zero", func(p *Planner) { p.Prefill.Min = 0 }, false}, {"the other", func(p *Planner) { p.Decode.Min = 0 }, false},
		{"fewer than none", func(p *Planner) { p.Prefill.Min, p.Decode.Min = -1, -1 }, false}, {"none at most", func(p *Planner) { p.Prefill, p.Decode = Bounds{0, 0}, Bounds{0, 0} }, false}, {"more than the most", func(p *Planner) { p.Decode = Bounds{3, 2} }, false},
		{"no use", func(p *Planner) { p.Use = 0 }, false}, {"more than all", func(p *Planner) { p.Use = 1.01 }, false}, {"no use of KV", func(p *Planner) { p.KVUse = 0 }, false}, {"all KV", func(p *Planner) { p.KVUse = 1 }, true},
		{"no spare", func(p *Planner) { p.Spare = 0 }, true}, {"less than none", func(p *Planner) { p.Spare = -0.1 }, false},
		{"none converts", func(p *Planner) { p.Convert = 0 }, true}, {"all convert", func(p *Planner) { p.Convert = 1 }, true}, {"more than all convert", func(p *Planner) { p.Convert = 1.1 }, false}, {"fewer than none", func(p *Planner) { p.Convert = -0.1 }, false},
		{"no margin", func(p *Planner) { p.DownMargin = 0 }, true}, {"less than none", func(p *Planner) { p.DownMargin = -0.1 }, false},
		{"no time to work off", func(p *Planner) { p.Drain = 0 }, false}, {"nor of decode", func(p *Planner) { p.DecodeDrain = 0 }, false}, {"at once down", func(p *Planner) { p.DownAfter = 0 }, true}, {"before", func(p *Planner) { p.DownAfter = -1 }, false},
		{"no age", func(p *Planner) { p.MaxAge = 0 }, false}, {"nothing watched", func(p *Planner) { p.Watched = 0 }, true}, {"less", func(p *Planner) { p.Watched = -1 }, false}, {"idle at once", func(p *Planner) { p.IdleAfter = 0 }, true}, {"idle before", func(p *Planner) { p.IdleAfter = -1 }, false},
	} {
		p := DefaultPlanner()
		of.change(&p)
		if err := p.Validate(); (err == nil) != of.valid {
			t.Errorf("%s: %v", of.name, err)
		}
	}
}
