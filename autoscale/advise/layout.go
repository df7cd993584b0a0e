package advise

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/tandem-gateway/tandem/autoscale/mix"
)

// Layout is prefill by servers of one parallel layout of some GPUs, on as many of them as the other
// layouts of these GPUs get.
type Layout struct {
	Variant string
	Servers int
	Busy    float64 // share of their time, 0..1
	Prefill float64 // seconds of a prompt alone on a server, the mean
	Wait    float64 // seconds before that, the mean
	Carries bool    // it does the work within Question.Use, and no prompt alone takes longer than Question.TTFT
}

// Done is the mean time in seconds from a request's arrival to the end of its prefill.
func (l *Layout) Done() float64 { return l.Wait + l.Prefill }

// Layouts are those of one kind of GPUs, the best one first.
type Layouts struct {
	Kind    string
	GPUs    int // for prefill, with which each layout that can do the work does it
	Layouts []Layout
}

// layouts compares how the GPUs of each kind can be put together to servers that prefill some
// requests: many slow ones or few fast ones. Kinds with one layout are left out.
func layouts(q *Question, requests []Request, span float64) (all []Layouts) {
	kinds := make(map[string][]*mix.Variant)
	for i := range q.Variants {
		v := &q.Variants[i]
		kinds[v.Kind] = append(kinds[v.Kind], v)
	}
	for kind, variants := range kinds {
		if kind == "" || len(variants) < 2 {
			continue
		}
		l := Layouts{Kind: kind}
		for _, v := range variants {
			l.GPUs = max(l.GPUs, v.GPUs*int(math.Ceil(newLoad(v, requests, span).servers/q.Use)))
		}
		for _, v := range variants {
			l.Layouts = append(l.Layouts, layout(v, q, newLoad(v, requests, span), l.GPUs/v.GPUs))
		}
		slices.SortStableFunc(l.Layouts, func(a, b Layout) int {
			if a.Carries != b.Carries {
				return cmp.Compare(a.rank(), b.rank())
			}
			return cmp.Compare(a.Done(), b.Done())
		})
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Layouts) int { return cmp.Compare(a.Kind, b.Kind) })
	return all
}

// rank is 0 for a layout that carries the load, else 1.
func (l *Layout) rank() int {
	if l.Carries {
		return 0
	}
	return 1
}

func layout(v *mix.Variant, q *Question, w load, servers int) Layout {
	l := Layout{Variant: v.Name, Servers: servers, Busy: w.servers / float64(max(servers, 1)), Prefill: w.mean}
	l.Carries = servers > 0 && l.Busy <= q.Use && w.seconds[len(w.seconds)-1] <= q.TTFT.Seconds()
	l.Wait = w.wait(servers)
	return l
}

// load is what the prefills of some requests ask of a variant.
type load struct {
	seconds []float64 // of each, the shortest first
	servers float64   // that they keep busy
	mean    float64   // seconds of one
	squares float64   // the mean of the seconds' squares
}

func newLoad(v *mix.Variant, requests []Request, span float64) load {
	var w load
	for _, r := range requests {
		w.seconds = append(w.seconds, v.Capacity.PrefillSeconds(float64(r.Uncached), float64(r.Prompt-r.Uncached)))
	}
	slices.Sort(w.seconds)
	n := float64(len(w.seconds))
	for _, seconds := range w.seconds {
		w.mean += seconds / n
		w.squares += seconds * seconds / n
	}
	w.servers = n * w.mean / span
	return w
}

// wait is the mean wait in seconds before so many servers that take the shortest of those that wait,
// which come at random; infinite where they cannot keep up. With one server (Cobham, 1954; Phipps,
// 1956) a request waits for what is left of the one that is served, and for shorter ones:
//
//	wait = E[S^2] / 2 E[S] x busy / (1 - busy with shorter ones) (1 - busy with those and its like)
//
// With several of them the first busy is the part of requests that wait at all (Erlang C), and what
// is left ends as many times as soon.
func (w *load) wait(servers int) float64 {
	if float64(servers) <= w.servers {
		return math.Inf(1)
	}
	left := erlangC(servers, w.servers) * w.squares / (2 * w.mean * float64(servers))
	wait, busy := 0.0, 0.0
	for _, seconds := range w.seconds {
		shorter := busy
		busy += w.servers / float64(servers) * seconds / (w.mean * float64(len(w.seconds)))
		wait += left / ((1 - shorter) * (1 - busy)) / float64(len(w.seconds))
	}
	return wait
}

// erlangC is the part of requests that wait, with so many servers of which busy are on the mean.
func erlangC(servers int, busy float64) float64 {
	blocked := 1.0 // Erlang's B, server by server
	for n := 1; n <= servers; n++ {
		blocked = busy * blocked / (float64(n) + busy*blocked)
	}
	return blocked / (1 - busy/float64(servers)*(1-blocked))
}

// write writes the comparison for people.
func (l *Layouts) write(out io.Writer) error {
	fmt.Fprintf(out, "\nprefill on %d GPUs %s, by layout (transfer and decode are the same)\n\n", l.GPUs, l.Kind)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "layout\tservers\tbusy\twait s\tprefill s\ttogether s\t")
	for i := range l.Layouts {
		of := &l.Layouts[i]
		if !of.Carries {
			fmt.Fprintf(w, "%s\t%d\t%.0f %%\t\t%.2f\tdoes not do it\t\n", of.Variant, of.Servers, 100*of.Busy, of.Prefill)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%.0f %%\t%.2f\t%.2f\t%.2f\t\n", of.Variant, of.Servers, 100*of.Busy, of.Wait, of.Prefill, of.Done())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s\n", l.Verdict())
	return err
}

// Verdict is which layout to take, in a sentence.
func (l *Layouts) Verdict() string {
	best := &l.Layouts[0]
	if !best.Carries {
		return fmt.Sprintf("prefill: no layout of %s does it within the objectives", l.Kind)
	}
	verdict := fmt.Sprintf("prefill: %d x %s", best.Servers, best.Variant)
	if next := &l.Layouts[1]; next.Carries {
		verdict += fmt.Sprintf(", %.2f s from arrival to the end of prefill where %d x %s take %.2f s", best.Done(), next.Servers, next.Variant, next.Done())
	}
	return verdict
}
