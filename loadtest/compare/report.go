package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tandem-gateway/tandem/loadtest"
)

// Report is the comparison. Times are in the engines' time: what this machine took,
// divided by the scale.
type Report struct {
	Schema   int      `json:"schema"`
	Trace    string   `json:"trace"`
	Requests int      `json:"requests"`
	Shape    Shape    `json:"shape"`
	Ways     []Result `json:"ways"`
}

// Result is what came of one way.
type Result struct {
	Way
	Rounds []Round `json:"rounds"`
	// SimulatedTTFT is the mean that the simulator predicts for the same cluster and
	// load, 0 for none.
	SimulatedTTFT float64 `json:"simulated_ttft_mean_s,omitempty"`
}

// Round is one run.
type Round struct {
	OK       int     `json:"ok"`
	Failed   int     `json:"failed"`
	TTFT     float64 `json:"ttft_mean_s"`
	TTFT50   float64 `json:"ttft_p50_s"`
	TTFT99   float64 `json:"ttft_p99_s"`
	ITL99    float64 `json:"itl_p99_s"`
	Cached   float64 `json:"cached_share"` // of the prompt tokens, 0..1
	SendLate float64 `json:"send_lag_p99_s"`
}

func newReport(cfg *Config) *Report {
	r := &Report{Schema: 1, Trace: cfg.Trace, Requests: cfg.Limit, Shape: cfg.Shape}
	for _, way := range cfg.Ways {
		r.Ways = append(r.Ways, Result{Way: way})
	}
	return r
}

func (r *Report) add(way int, l *loadtest.Report, scale float64) {
	round := Round{
		OK: l.Requests.OK, Failed: l.Requests.Failed,
		TTFT: l.TTFT.Mean / scale, TTFT50: l.TTFT.P50 / scale, TTFT99: l.TTFT.P99 / scale,
		ITL99: l.ITL.P99 / scale, SendLate: l.SendLag.P99,
	}
	if l.Tokens.Prompt > 0 {
		round.Cached = float64(l.Tokens.Cached) / float64(l.Tokens.Prompt)
	}
	r.Ways[way].Rounds = append(r.Ways[way].Rounds, round)
}

// mean is a figure's mean over the rounds, and its range.
func (r *Result) mean(figure func(*Round) float64) (mean, least, most float64) {
	for i := range r.Rounds {
		v := figure(&r.Rounds[i])
		if i == 0 {
			least, most = v, v
		}
		least, most = min(least, v), max(most, v)
		mean += v / float64(len(r.Rounds))
	}
	return mean, least, most
}

// TTFT is the mean time to the first token over the rounds, in seconds.
func (r *Result) TTFT() float64 {
	mean, _, _ := r.mean(func(x *Round) float64 { return x.TTFT })
	return mean
}

// WriteJSON writes the report, indented.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

// WriteTable writes it for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	s := &r.Shape
	fmt.Fprintf(w, "%d prefill and %d decode servers in %d racks, %d requests; seconds of the engines (a second takes %g s here)\n",
		s.Prefill, s.Decode, s.Racks, r.Requests, s.Scale)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "way\tTTFT mean\trange\tp50\tp99\tITL p99 ms\tcached\tfailed\tsimulated\t\n")
	for i := range r.Ways {
		way := &r.Ways[i]
		ttft, least, most := way.mean(func(x *Round) float64 { return x.TTFT })
		of := func(figure func(*Round) float64) float64 { mean, _, _ := way.mean(figure); return mean }
		simulated := "-"
		if way.SimulatedTTFT > 0 {
			simulated = fmt.Sprintf("%.2f", way.SimulatedTTFT)
		}
		fmt.Fprintf(table, "%s\t%.2f\t%.2f-%.2f\t%.2f\t%.2f\t%.1f\t%.1f%%\t%.0f\t%s\t\n", way.Name, ttft, least, most,
			of(func(x *Round) float64 { return x.TTFT50 }), of(func(x *Round) float64 { return x.TTFT99 }),
			1000*of(func(x *Round) float64 { return x.ITL99 }), 100*of(func(x *Round) float64 { return x.Cached }),
			float64(len(way.Rounds))*of(func(x *Round) float64 { return float64(x.Failed) }), simulated)
	}
	return table.Flush()
}

// Disorder names the pairs of ways that the simulator puts the other way round: it
// says that the first is faster by more than a tenth, and it was slower by more than a
// tenth.
func (r *Report) Disorder() (pairs [][2]string) {
	for i := range r.Ways {
		for j := range r.Ways {
			a, b := &r.Ways[i], &r.Ways[j]
			if a.SimulatedTTFT > 0 && b.SimulatedTTFT > 0 && 1.1*a.SimulatedTTFT < b.SimulatedTTFT && a.TTFT() > 1.1*b.TTFT() {
				pairs = append(pairs, [2]string{a.Name, b.Name})
			}
		}
	}
	return pairs
}
