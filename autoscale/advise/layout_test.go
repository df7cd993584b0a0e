package advise

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// The waits of queues that textbooks have. Of equal prefills the order does not matter: M/D/1. Of
// prefills of 1 s and 3 s before one server that is busy half of the time, by hand (Cobham): what is
// left of the one under way is 0.625 s, the short ones wait 0.625/(1 x 0.875) s, the long ones
// 0.625/(0.875 x 0.5) s.
func TestWait_IsThatOfKnownQueues(t *testing.T) {
	queue := func(servers int, busy float64, seconds ...float64) float64 {
		v := mix.Variant{Capacity: sizing.Capacity{Prefill: curve.Curve{0, 1, 0}}}
		var requests []Request
		whole := 0.0
		for range 500 {
			for _, s := range seconds {
				requests = append(requests, Request{Prompt: int(1000 * s), Uncached: int(1000 * s)})
				whole += s
			}
		}
		w := newLoad(&v, requests, whole/busy)
		return w.wait(servers)
	}
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"equal prefills, one server", queue(1, 0.5, 1), 0.5},
		{"equal prefills, two servers", queue(2, 1, 1), 1.0 / 6},
		{"short and long ones", queue(1, 0.5, 1, 3), (0.625/0.875 + 0.625/(0.875*0.5)) / 2},
		{"too few servers", queue(1, 1, 1), math.Inf(1)},
	} {
		if c.got != c.want && !(math.Abs(c.got-c.want) <= 0.001) {
			t.Errorf("%s: they wait %v s and not %v", c.name, c.got, c.want)
		}
	}
}

// layoutsOf asks for h100 alone or in pairs that are so many times as fast, with a request of 10,000
// tokens each second, 0.638 s on one GPU.
func layoutsOf(t *testing.T, speedup float64, ttft time.Duration) *Advice {
	t.Helper()
	one, two := h100(), h100()
	one.Kind, two.Kind = "h100", "h100"
	two.Name, two.GPUs, two.Cost = "h100-tp2", 2, 2*one.Cost
	for i := range two.Capacity.Prefill {
		two.Capacity.Prefill[i] /= speedup
	}
	var log strings.Builder
	for i := range 900 {
		fmt.Fprintf(&log, `{"timestamp":%d,"input_length":10000,"output_length":100}`+"\n", i*1000)
	}
	traffic, err := Read(strings.NewReader(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	a, err := Ask(traffic, Question{Variants: []mix.Variant{one, two}, Window: 15 * time.Minute, Use: 0.8, TTFT: ttft, ITL: 40 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Twice as fast on twice the GPUs: fewer and faster servers end each prefill in half of the time, and
// the wait is no longer than before many slow ones.
func TestAsk_FewerFasterServersWhereTheyScale(t *testing.T) {
	a := layoutsOf(t, 2, 12*time.Second)
	if len(a.Layouts) != 1 || a.Layouts[0].GPUs != 2 {
		t.Fatalf("%+v", a.Layouts)
	}
	best, next := a.Layouts[0].Layouts[0], a.Layouts[0].Layouts[1]
	if best.Variant != "h100-tp2" || best.Servers != 1 || next.Servers != 2 || math.Abs(best.Prefill-0.319) > 0.001 || best.Done() >= next.Done() {
		t.Errorf("%+v before %+v", best, next)
	}
	var table bytes.Buffer
	if err := a.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if want := "prefill: 1 x h100-tp2, "; !strings.Contains(table.String(), want) {
		t.Errorf("the table does not say %q:\n%s", want, &table)
	}
}

// Hardly faster on twice the GPUs: the pair would be busy all the time, and is not taken.
func TestAsk_ManySlowServersWhereTheyDoNotScale(t *testing.T) {
	l := layoutsOf(t, 1.05, 12*time.Second).Layouts[0]
	if l.Layouts[0].Variant != "h100" || !l.Layouts[0].Carries {
		t.Errorf("%+v", l)
	}
	// Prompts that no layout computes within the objective are of none.
	if verdict := layoutsOf(t, 2, 100*time.Millisecond).Layouts[0].Verdict(); verdict != "prefill: no layout of h100 does it within the objectives" {
		t.Error(verdict)
	}
}

// Hardware without a kind, or with one layout, is not compared.
func TestAsk_OneLayoutIsNotCompared(t *testing.T) {
	q := Question{Use: 0.8, TTFT: time.Second, Variants: []mix.Variant{h100(), h100(), {Kind: "l40s", GPUs: 1, Capacity: sizing.Capacity{Prefill: curve.Curve{0, 1, 0}}}}}
	if all := layouts(&q, []Request{{Prompt: 10, Uncached: 10, Output: 1}}, 1); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}
