package loadtest

import (
	"encoding/json"
	"io"
	"time"
)

// ReportSchema names the JSON form below. Fields may be added under the same
// name; a field that changes its meaning or goes away gets a new name here.
const ReportSchema = "tandem-load/1"

// A Report is the result of one run. Times are in seconds, rates per second over
// the whole run: from its start to the end of the last answer.
type Report struct {
	Schema      string         `json:"schema"`
	Started     time.Time      `json:"started"`
	Interrupted bool           `json:"interrupted"` // ended by its user before its time
	Target      Target         `json:"target"`
	Workload    WorkloadReport `json:"workload"`

	ArrivalSeconds float64 `json:"arrival_seconds"` // until the last arrival
	TotalSeconds   float64 `json:"total_seconds"`

	Requests Counts        `json:"requests"`
	Errors   map[Kind]int  `json:"errors"`        // failed requests by kind; empty when there are none
	Samples  []ErrorSample `json:"error_samples"` // the first few of each kind

	OKPerSecond float64     `json:"ok_per_second"`
	Goodput     *Goodput    `json:"goodput,omitempty"` // absent without SLOs
	Tokens      TokenReport `json:"tokens"`

	TTFT    Summary `json:"ttft_seconds"`
	ITL     Summary `json:"itl_seconds"`
	TPOT    Summary `json:"tpot_seconds"`
	E2E     Summary `json:"e2e_seconds"`
	SendLag Summary `json:"send_lag_seconds"` // sent after the planned arrival: the generator's own lateness
}

// Target is what was asked.
type Target struct {
	URL      string   `json:"url"`
	Model    string   `json:"model"`
	Endpoint Endpoint `json:"endpoint"`
	Stream   bool     `json:"stream"`
}

// WorkloadReport repeats the settings that shaped the load. Those that do not
// apply (a trace's lengths, a synthetic load's time scale) are absent.
type WorkloadReport struct {
	Seed               uint64   `json:"seed"`
	Words              WordRate `json:"words"`
	Trace              string   `json:"trace,omitempty"`
	TimeScale          float64  `json:"time_scale,omitempty"`
	Arrivals           Arrivals `json:"arrivals,omitempty"`
	RPS                float64  `json:"rps,omitempty"`
	PromptTokens       string   `json:"prompt_tokens,omitempty"`
	OutputTokens       string   `json:"output_tokens,omitempty"`
	SharedPrefixTokens int      `json:"shared_prefix_tokens,omitempty"`
	Turns              int      `json:"turns,omitempty"`
	ThinkSeconds       float64  `json:"think_seconds,omitempty"`
	IgnoreEOS          bool     `json:"ignore_eos"`
	MaxInFlight        int      `json:"max_in_flight"`
	TimeoutSeconds     float64  `json:"timeout_seconds"`
}

// ErrorSample tells one failure in full.
type ErrorSample struct {
	Kind      Kind    `json:"kind"`
	Detail    string  `json:"detail"`
	RequestID string  `json:"request_id,omitempty"` // X-Request-Id of the answer
	At        float64 `json:"at_seconds"`           // planned arrival since the start
}

// Goodput counts the answers that met all SLOs. A limit that was not asked for
// is absent.
type Goodput struct {
	PerSecond float64 `json:"per_second"`
	Met       int     `json:"met"`
	TTFT      float64 `json:"slo_ttft_seconds,omitempty"`
	ITL       float64 `json:"slo_itl_seconds,omitempty"`
	TPOT      float64 `json:"slo_tpot_seconds,omitempty"`
	E2E       float64 `json:"slo_e2e_seconds,omitempty"`
}

// TokenReport is TokenCounts and the rate of output.
type TokenReport struct {
	TokenCounts
	OutputPerSecond float64 `json:"output_per_second"`
}

// WriteJSON writes the report as one indented JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// report describes the run, which took total and whose requests have all ended.
func (r *run) report(total time.Duration, interrupted bool) *Report {
	t, cfg := r.tally, r.cfg
	t.mu.Lock()
	defer t.mu.Unlock()
	out := &Report{
		Schema:         ReportSchema,
		Started:        r.started.UTC(),
		Interrupted:    interrupted,
		Target:         Target{URL: cfg.URL, Model: r.model, Endpoint: cfg.Endpoint, Stream: cfg.Stream},
		Workload:       describe(cfg, r.words),
		ArrivalSeconds: t.lastDue.Seconds(),
		TotalSeconds:   total.Seconds(),
		Requests:       t.counts,
		Errors:         t.errors,
		Samples:        t.samples,
		OKPerSecond:    perSecond(t.counts.OK, total),
		Tokens:         TokenReport{TokenCounts: t.tokens, OutputPerSecond: perSecond(t.tokens.Output, total)},
		TTFT:           t.ttft.summary(),
		ITL:            t.itl.summary(),
		TPOT:           t.tpot.summary(),
		E2E:            t.e2e.summary(),
		SendLag:        t.lag.summary(),
	}
	if out.Samples == nil {
		out.Samples = []ErrorSample{}
	}
	if t.slo.any() {
		out.Goodput = &Goodput{
			PerSecond: perSecond(t.sloMet, total),
			Met:       t.sloMet,
			TTFT:      t.slo.TTFT.Seconds(),
			ITL:       t.slo.ITL.Seconds(),
			TPOT:      t.slo.TPOT.Seconds(),
			E2E:       t.slo.E2E.Seconds(),
		}
	}
	return out
}

func describe(cfg Config, words WordRate) WorkloadReport {
	w := WorkloadReport{
		Seed:           cfg.Seed,
		Words:          words,
		IgnoreEOS:      cfg.IgnoreEOS,
		MaxInFlight:    cfg.MaxInFlight,
		TimeoutSeconds: cfg.Timeout.Seconds(),
	}
	if cfg.Trace != "" {
		w.Trace, w.TimeScale = cfg.Trace, cfg.TimeScale
		return w
	}
	w.Arrivals, w.RPS = cfg.Arrivals, cfg.RPS
	w.PromptTokens, w.OutputTokens = cfg.PromptTokens.String(), cfg.OutputTokens.String()
	w.SharedPrefixTokens, w.Turns, w.ThinkSeconds = cfg.SharedPrefixTokens, cfg.Turns, cfg.ThinkTime.Seconds()
	return w
}

// perSecond is n/d, and 0 for no time.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
