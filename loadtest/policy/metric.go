package policy

// metric is one figure of an outcome, as reports name it. Names carry their unit
// and do not change; new ones may come.
type metric struct {
	name  string
	about string
	of    func(o *Outcome) float64
}

// metrics are those of a whole run.
var metrics = []metric{
	{"ttft_mean_s", "time to the first token, from arrival", func(o *Outcome) float64 { return o.TTFT.Mean }},
	{"ttft_p50_s", "", func(o *Outcome) float64 { return o.TTFT.P50 }},
	{"ttft_p90_s", "", func(o *Outcome) float64 { return o.TTFT.P90 }},
	{"ttft_p99_s", "", func(o *Outcome) float64 { return o.TTFT.P99 }},
	{"ttft_max_s", "", func(o *Outcome) float64 { return o.TTFT.Max }},
	{"itl_mean_s", "gaps between tokens", func(o *Outcome) float64 { return o.ITL.Mean }},
	{"itl_p50_s", "", func(o *Outcome) float64 { return o.ITL.P50 }},
	{"itl_p90_s", "", func(o *Outcome) float64 { return o.ITL.P90 }},
	{"itl_p99_s", "", func(o *Outcome) float64 { return o.ITL.P99 }},
	{"itl_p999_s", "", func(o *Outcome) float64 { return o.ITL.P999 }},
	{"itl_max_s", "", func(o *Outcome) float64 { return o.ITL.Max }},
	{"wait_mean_s", "of the mean TTFT: from arrival to the first step of prefill", func(o *Outcome) float64 { return o.MeanWait }},
	{"prefill_mean_s", "of the mean TTFT: from then to the end of prefill, without the decode step in which decode computes a prompt itself", func(o *Outcome) float64 { return o.MeanPrefill }},
	{"prefill_again_mean_s", "of prefill_mean_s: the work of tokens that an earlier request had, on the fastest server", func(o *Outcome) float64 { return o.MeanAgain }},
	{"prefill_beside_mean_s", "of prefill_mean_s: the fixed time of steps, other prompts and streams in the same steps, and what slower servers take longer", func(o *Outcome) float64 { return o.MeanBeside }},
	{"decode_step_mean_s", "of the mean TTFT, behind the prefill: a decode step of a batch of one", func(o *Outcome) float64 { return o.MeanStep }},
	{"wait_max_s", "longest wait from arrival to the first step of prefill", func(o *Outcome) float64 { return o.Wait }},
	{"idle_wait_max_s", "longest wait while a prefill server that could have begun the request was idle", func(o *Outcome) float64 { return o.IdleWait }},
	{"idle_wait_share", "the longest of it as a share of what the request may wait so; above 1 the run fails for ours", func(o *Outcome) float64 { return o.IdleShare }},
	{"goodput_share", "requests that met the SLOs of TTFT and of every gap between tokens, 0..1", func(o *Outcome) float64 { return o.Goodput }},
	{"goodput_mean_itl_share", "the same with the mean of a request's gaps instead of every gap, 0..1", func(o *Outcome) float64 { return o.MeanGoodput }},
	{"hit_share", "prompt tokens found on the prefill server, 0..1", func(o *Outcome) float64 { return o.HitRate }},
	{"moved_in_rack_bytes", "KV moved within racks", func(o *Outcome) float64 { return o.SameRack }},
	{"moved_cross_rack_bytes", "KV moved between racks", func(o *Outcome) float64 { return o.Cross }},
	{"cross_rack_share", "of the bytes moved, 0..1", crossShare},
	{"transfer_p99_s", "of single transfers", func(o *Outcome) float64 { return o.Transfer }},
	{"prefill_busy_share", "mean of the prefill servers, 0..1", func(o *Outcome) float64 { return o.PrefillBusy }},
	{"prefill_imbalance", "busiest prefill server over the mean", func(o *Outcome) float64 { return o.PrefillImbalance }},
	{"decode_imbalance", "tokens of the decode server that made most over the mean", func(o *Outcome) float64 { return o.DecodeImbalance }},
	{"preemptions", "sequences that lost their KV on a decode server", func(o *Outcome) float64 { return float64(o.Preemptions) }},
	{"alone", "requests without a prefill server", func(o *Outcome) float64 { return float64(o.Aggregated) }},
	{"output_error", "mean |expected - true| output length over the mean", func(o *Outcome) float64 { return o.OutputError }},
	{"decision_ns", "wall time of one decision on this machine", func(o *Outcome) float64 { return o.DecisionNS }},
	{"run_s", "wall time of one run on this machine, beside the other runs", func(o *Outcome) float64 { return o.RunSeconds }},
}

func crossShare(o *Outcome) float64 {
	if o.Cross == 0 {
		return 0
	}
	return o.Cross / (o.Cross + o.SameRack)
}

// decileMetric is one figure of a tenth of the requests.
type decileMetric struct {
	name string
	of   func(d *DecileOutcome) float64
}

var decileMetrics = []decileMetric{
	{"ttft_mean_s", func(d *DecileOutcome) float64 { return d.TTFT.Mean }},
	{"ttft_p50_s", func(d *DecileOutcome) float64 { return d.TTFT.P50 }},
	{"ttft_p90_s", func(d *DecileOutcome) float64 { return d.TTFT.P90 }},
	{"ttft_p99_s", func(d *DecileOutcome) float64 { return d.TTFT.P99 }},
	{"itl_mean_s", func(d *DecileOutcome) float64 { return d.ITL.Mean }},
	{"itl_p50_s", func(d *DecileOutcome) float64 { return d.ITL.P50 }},
	{"itl_p90_s", func(d *DecileOutcome) float64 { return d.ITL.P90 }},
	{"itl_p99_s", func(d *DecileOutcome) float64 { return d.ITL.P99 }},
	{"wait_max_s", func(d *DecileOutcome) float64 { return d.Wait }},
}

// Range is a figure over the seeds.
type Range struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

func rangeOf(values []float64) Range {
	r := Range{Min: values[0], Max: values[0]}
	for _, v := range values {
		r.Mean += v / float64(len(values))
		r.Min, r.Max = min(r.Min, v), max(r.Max, v)
	}
	return r
}
