package advise

import (
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/mix"
)

// Question is what is asked of a traffic.
type Question struct {
	Variants []mix.Variant
	Window   time.Duration // the busiest such time is planned for
	Use      float64       // share of a server's capacity that is planned with, more than 0 and at most 1
	TTFT     time.Duration
	ITL      time.Duration
}

// Advice is the answer.
type Advice struct {
	Question Question
	From     time.Duration // of the busiest window
	Span     time.Duration // of it: Question.Window, or the whole of a shorter log, at least a second
	Requests int           // in it
	Prompt   float64       // tokens per second there, those to compute
	Output   float64       // tokens per second there
	Prefixes bool          // hits in prefix caches were counted
	LeftOut  int           // rows of the whole log that had no tokens

	Mix        *mix.Mix
	Aggregated []Aggregated // by variant
	Layouts    []Layouts    // of each kind of GPUs that there are several of
}

// Aggregated is a fleet of one variant that does both.
type Aggregated struct {
	Variant string
	Servers int
	Cost    float64 // an hour
	Meets   bool    // it meets the objectives at all
}

// solveWithin is time enough for an answer that no request waits for.
const solveWithin = 5 * time.Second

// Ask plans for the traffic's busiest window.
func Ask(t *Traffic, q Question) (*Advice, error) {
	if q.Window <= 0 || q.TTFT <= 0 || q.ITL <= 0 {
		return nil, errors.New("window, ttft-slo and itl-slo must be positive")
	}
	if !(q.Use > 0 && q.Use <= 1) {
		return nil, fmt.Errorf("use %v: want more than 0 and at most 1", q.Use)
	}
	from, requests := t.Busiest(q.Window)
	span := min(q.Window, max(t.Requests[len(t.Requests)-1].At, time.Second))
	all := classes(requests, span, q.TTFT, q.ITL)
	a := &Advice{Question: q, From: from, Span: span, Requests: len(requests), Prefixes: t.Prefixes, LeftOut: t.LeftOut}
	for _, c := range all {
		a.Prompt += c.Rate * c.Uncached
		a.Output += c.Rate * c.Output
	}
	problem := &mix.Problem{Classes: all, Variants: q.Variants, Use: q.Use}
	var err error
	if a.Mix, err = problem.Solve(solveWithin); err != nil {
		return nil, err
	}
	for i := range q.Variants {
		v := &q.Variants[i]
		n, ok := aggregated(v, all, q.Use)
		if v.Have > 0 && n*v.GPUs > v.Have {
			ok = false
		}
		a.Aggregated = append(a.Aggregated, Aggregated{v.Name, n, float64(n) * v.Cost, ok})
	}
	a.Layouts = layouts(&q, requests, span.Seconds())
	return a, nil
}

// Served says whether all of the traffic is served by the mix within its objectives.
func (a *Advice) Served() bool {
	for _, unmet := range a.Mix.Unmet {
		if unmet > 1e-6 {
			return false
		}
	}
	return true
}

// servers is how many the mix has.
func (a *Advice) servers() (n int) {
	for g := range a.Mix.Prefill {
		n += a.Mix.Prefill[g] + a.Mix.Decode[g]
	}
	return n
}

// Best is the cheapest fleet that does both; nil if none meets the objectives.
func (a *Advice) Best() *Aggregated {
	var best *Aggregated
	for i := range a.Aggregated {
		if g := &a.Aggregated[i]; g.Meets && (best == nil || g.Cost < best.Cost) {
			best = g
		}
	}
	return best
}

// Verdict is the answer in a sentence.
func (a *Advice) Verdict() string {
	best := a.Best()
	switch {
	case !a.Served() && best == nil:
		return "neither way meets the objectives with this hardware"
	case !a.Served():
		return "aggregated: no mix of prefill and decode servers meets the objectives with this hardware"
	case best == nil:
		return "disaggregated: servers that do both cannot meet the objectives"
	case math.Abs(a.Mix.Cost-best.Cost) < 0.005*best.Cost: // what would be 0 %
		return "either: both cost about the same"
	case a.Mix.Cost < best.Cost:
		return fmt.Sprintf("disaggregated: %.0f %% cheaper than servers that do both", 100*(1-a.Mix.Cost/best.Cost))
	}
	return fmt.Sprintf("aggregated: %.0f %% cheaper than prefill and decode servers", 100*(1-best.Cost/a.Mix.Cost))
}

// WriteTable writes the advice for people.
func (a *Advice) WriteTable(out io.Writer) error {
	hits := "prefix hits are not known: every prompt is computed whole"
	if a.Prefixes {
		hits = "prompts less what an unbounded prefix cache would hold"
	}
	when := fmt.Sprintf("busiest %v from %v", a.Span, a.From.Round(time.Second))
	if a.Span < a.Question.Window {
		when = fmt.Sprintf("whole log, taken as %v", a.Span.Round(time.Millisecond))
	}
	fmt.Fprintf(out, "%s: %d requests, %.0f prompt and %.0f output tokens/s (%s)\nobjectives: first token in %v, %v a token\n\n",
		when, a.Requests, a.Prompt, a.Output, hits, a.Question.TTFT, a.Question.ITL)
	if a.LeftOut > 0 {
		fmt.Fprintf(out, "%d rows without tokens are left out\n\n", a.LeftOut)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "way\thardware\tprefill\tdecode\tboth\tGPUs\tcost/h\t")
	for g, v := range a.Question.Variants {
		p, d := a.Mix.Prefill[g], a.Mix.Decode[g]
		if p+d > 0 {
			fmt.Fprintf(w, "disaggregated\t%s\t%d\t%d\t\t%d\t%.2f\t\n", v.Name, p, d, (p+d)*v.GPUs, float64(p+d)*v.Cost)
		}
	}
	if a.servers() == 0 {
		fmt.Fprintln(w, "disaggregated\t\tnone\tnone\t\t\t\t")
	}
	for g, fleet := range a.Aggregated {
		if !fleet.Meets {
			fmt.Fprintf(w, "aggregated\t%s\t\t\tnone\t\t\t\n", fleet.Variant)
			continue
		}
		fmt.Fprintf(w, "aggregated\t%s\t\t\t%d\t%d\t%.2f\t\n", fleet.Variant, fleet.Servers, fleet.Servers*a.Question.Variants[g].GPUs, fleet.Cost)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if !a.Served() && a.servers() > 0 {
		fmt.Fprintln(out, "\nthe prefill and decode servers above do not serve all of it")
	}
	if _, err := fmt.Fprintf(out, "\n%s\n", a.Verdict()); err != nil {
		return err
	}
	for i := range a.Layouts {
		if err := a.Layouts[i].write(out); err != nil {
			return err
		}
	}
	return nil
}
