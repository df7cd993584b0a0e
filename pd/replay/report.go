package replay

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// Report sums placements up.
type Report struct {
	servers []Server
	share   map[string]*work // by server
	ttft    []time.Duration
	alone   int           // requests that decode ran alone
	nowhere int           // requests that no server could take
	gaveUp  int           // requests that waited in vain
	waited  time.Duration // of all that were placed
	to      time.Duration // when the last request arrived
}

// work is what one server was given.
type work struct {
	prompts, streams int
	tokens, cached   int // of the prompts
	busy             time.Duration
}

// NewReport is that of a fleet to which nothing was given.
func NewReport(f Fleet) *Report {
	r := &Report{servers: f.Servers, share: make(map[string]*work)}
	for _, s := range f.Servers {
		r.share[s.ID] = new(work)
	}
	return r
}

// Add takes in a placement, or with placed false that there was none.
func (r *Report) Add(req *Request, p Placement, placed bool) {
	r.to = max(r.to, req.At)
	if !placed && p.Waited > 0 {
		r.gaveUp++
		return
	}
	if !placed {
		r.nowhere++
		return
	}
	r.waited += p.Waited
	computes := r.share[p.Prefill]
	if p.Prefill == "" {
		r.alone++
		computes = r.share[p.Decode]
	}
	computes.prompts++
	computes.tokens += req.Prompt
	computes.cached += p.Cached
	computes.busy += p.Compute
	r.share[p.Decode].streams++
	r.ttft = append(r.ttft, p.TTFT)
}

// WriteTable prints what servers were given, and the predicted times to first tokens.
func (r *Report) WriteTable(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "server\tprompts\ttokens\tcached\tbusy\tanswers\t") // Flush has the error
	for _, s := range r.servers {
		w := r.share[s.ID]
		_, _ = fmt.Fprintf(t, "%s\t%d\t%d\t%.1f %%\t%.1f %%\t%d\t\n", s.ID, w.prompts, w.tokens,
			percent(float64(w.cached), float64(w.tokens)), percent(w.busy.Seconds(), r.to.Seconds()), w.streams)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	all := len(r.ttft) + r.nowhere + r.gaveUp
	_, err := fmt.Fprintf(out, "\n%d requests in %v: decode alone %d, no server %d, waited in vain %d\n", all, r.to.Round(time.Second), r.alone, r.nowhere, r.gaveUp)
	if err != nil || len(r.ttft) == 0 {
		return err
	}
	sorted, sum := slices.Sorted(slices.Values(r.ttft)), time.Duration(0)
	for _, d := range sorted {
		sum += d
	}
	at := func(q float64) time.Duration { // by nearest rank
		return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)].Round(time.Millisecond)
	}
	placed := time.Duration(len(sorted))
	_, err = fmt.Fprintf(out, "time to first token, predicted: mean %v, p50 %v, p90 %v, p99 %v, max %v; of the mean %v waiting for a turn\n",
		(sum / placed).Round(time.Millisecond), at(.5), at(.9), at(.99), at(1), (r.waited / placed).Round(time.Millisecond))
	return err
}

func percent(part, of float64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * part / of
}
