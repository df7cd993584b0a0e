package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tandem-gateway/tandem/loadtest"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Report is the comparison. Times are in the engines' time: what this machine took,
// divided by the scale.
type Report struct {
	Schema   int      `json:"schema"`
	Load     string   `json:"load"`
	Trace    string   `json:"trace"`
	Requests int      `json:"requests"`
	Shape    Shape    `json:"shape"`
	Ways     []Result `json:"ways"`
}

// Result is what came of one way.
type Result struct {
	Way
	Rounds []Round `json:"rounds"`
	// Predicted is what the simulator predicts for the same cluster and load; nil: nothing.
	Predicted *Predicted `json:"predicted,omitempty"`
}

// Predicted is what the simulator says of a way: means over its seeds.
type Predicted struct {
	TTFT   float64 `json:"ttft_mean_s"`
	TTFT99 float64 `json:"ttft_p99_s"`
	Cached float64 `json:"cached_share"` // of the prompt tokens, 0..1
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
	Pieces   float64 `json:"pieces_kept"` // of prompts, that the next piece found in prefill's cache
	Lost     float64 `json:"pieces_lost"` // that it did not
}

func newReport(cfg *Config) *Report {
	r := &Report{Schema: 2, Load: cfg.Load, Trace: cfg.Trace, Requests: cfg.Limit, Shape: cfg.Shape}
	for _, way := range cfg.Ways {
		r.Ways = append(r.Ways, Result{Way: way})
	}
	return r
}

func (r *Report) add(way int, l *loadtest.Report, m process.Metrics, scale float64) {
	round := Round{
		OK: l.Requests.OK, Failed: l.Requests.Failed,
		TTFT: l.TTFT.Mean / scale, TTFT50: l.TTFT.P50 / scale, TTFT99: l.TTFT.P99 / scale,
		ITL99: l.ITL.P99 / scale, SendLate: l.SendLag.P99,
		Pieces: m.Sum(pieces, `outcome="kept"`), Lost: m.Sum(pieces, `outcome="lost"`),
	}
	if l.Tokens.Prompt > 0 {
		round.Cached = float64(l.Tokens.Cached) / float64(l.Tokens.Prompt)
	}
	r.Ways[way].Rounds = append(r.Ways[way].Rounds, round)
}

// pieces is the gateway's metric of prompts in pieces.
const pieces = "tandem_prefill_pieces_total"

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
	fmt.Fprintf(w, "%s: %d prefill and %d decode servers in %d racks, %d requests; seconds of the engines (a second takes %g s here)\n",
		r.Load, s.Prefill, s.Decode, s.Racks, r.Requests, s.Scale)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "way\tTTFT mean\trange\tsimulated\toff by\tp50\tp99\tsimulated\tITL p99 ms\tcached\tsimulated\tpieces\tlost\tfailed\tsend lag ms\t\n")
	for i := range r.Ways {
		way := &r.Ways[i]
		ttft, least, most := way.mean(func(x *Round) float64 { return x.TTFT })
		of := func(figure func(*Round) float64) float64 { mean, _, _ := way.mean(figure); return mean }
		mean, off, p99, cached := "-", "-", "-", "-"
		if p := way.Predicted; p != nil {
			mean, off = fmt.Sprintf("%.2f", p.TTFT), fmt.Sprintf("%+.0f%%", 100*(ttft/p.TTFT-1))
			p99, cached = fmt.Sprintf("%.2f", p.TTFT99), fmt.Sprintf("%.1f%%", 100*p.Cached)
		}
		fmt.Fprintf(table, "%s\t%.2f\t%.2f-%.2f\t%s\t%s\t%.2f\t%.2f\t%s\t%.1f\t%.1f%%\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t\n", way.Name, ttft, least, most, mean, off,
			of(func(x *Round) float64 { return x.TTFT50 }), of(func(x *Round) float64 { return x.TTFT99 }), p99,
			1000*of(func(x *Round) float64 { return x.ITL99 }), 100*of(func(x *Round) float64 { return x.Cached }), cached,
			of(func(x *Round) float64 { return x.Pieces }), of(func(x *Round) float64 { return x.Lost }),
			float64(len(way.Rounds))*of(func(x *Round) float64 { return float64(x.Failed) }), 1000*of(func(x *Round) float64 { return x.SendLate }))
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
			if a.Predicted != nil && b.Predicted != nil && 1.1*a.Predicted.TTFT < b.Predicted.TTFT && a.TTFT() > 1.1*b.TTFT() {
				pairs = append(pairs, [2]string{a.Name, b.Name})
			}
		}
	}
	return pairs
}
