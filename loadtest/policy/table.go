package policy

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable writes the report for a terminal: one table for each scenario, then
// the goals.
func (r *Report) WriteTable(w io.Writer) error {
	for i := range r.Scenarios {
		if err := r.Scenarios[i].writeTable(w, r.SeedRange()); err != nil {
			return err
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "skipped %s\n", s)
	}
	if len(r.Gates) > 0 {
		fmt.Fprintf(w, "\ngoals: %d of %d reached\n", reachedGates(r.Gates), len(r.Gates))
	}
	for _, g := range r.Gates {
		fmt.Fprintln(w, g)
	}
	return nil
}

func (s *ScenarioReport) writeTable(w io.Writer, seeds string) error {
	fmt.Fprintf(w, "\n%s: %s\n%d prefill and %d decode servers on %d racks, %d gateway replica(s), %d requests, %s\n",
		s.Name, s.Title, s.Prefill, s.Decode, s.Racks, s.Replicas, s.Requests, seeds)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format, args...) } // Flush reports
	say("policy\tTTFT mean\trange\tp50\tp90\tp99\tto best\tmean wait, longest\tgood: mean gap, every gap\tITL mean ms\tp99\thits\tcross-rack\tTB\timbalance P D\tdecision, run\t\n")
	for i := range s.Policies {
		p := &s.Policies[i]
		m := func(name string) float64 { return p.Metrics[name].Mean }
		mean := p.Metrics["ttft_mean_s"]
		mark := ""
		if p.Name == s.BestReleased {
			mark = "*"
		}
		ratio := "-"
		if p.Ratios != nil {
			ratio = fmt.Sprintf("%.2f", p.Ratios["ttft_mean"].Mean)
		}
		say("%s%s\t%.2f\t%.2f-%.2f\t%.2f\t%.2f\t%.1f\t%s\t%.2f, %.0f s\t%.0f%% %.0f%%\t%.1f\t%.1f\t%.0f%%\t%.0f%%\t%.1f\t%.2f %.2f\t%.1f us, %.1f s\t\n",
			mark, p.Name, mean.Mean, mean.Min, mean.Max, m("ttft_p50_s"), m("ttft_p90_s"), m("ttft_p99_s"), ratio,
			m("wait_mean_s"), m("wait_max_s"), 100*m("goodput_mean_itl_share"), 100*m("goodput_share"), 1000*m("itl_mean_s"), 1000*m("itl_p99_s"), 100*m("hit_share"),
			100*m("cross_rack_share"), (m("moved_in_rack_bytes")+m("moved_cross_rack_bytes"))/1e12,
			m("prefill_imbalance"), m("decode_imbalance"), m("decision_ns")/1000, m("run_s"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "no policy has a mean TTFT below %.3f s (%.3f-%.3f), and none below %.3f s whose decode servers compute no prompts\n",
		s.TTFTBound.Mean, s.TTFTBound.Min, s.TTFTBound.Max, s.PairsTTFTBound.Mean)
	return err
}

// WriteParts writes what the mean time to the first token of each policy is made of, beside what it is
// at least.
func (r *Report) WriteParts(w io.Writer) error {
	for i := range r.Scenarios {
		if err := r.Scenarios[i].writeParts(w, r.SeedRange()); err != nil {
			return err
		}
	}
	return nil
}

func (s *ScenarioReport) writeParts(w io.Writer, seeds string) error {
	fmt.Fprintf(w, "\n%s, %s: mean TTFT and its parts, in seconds\n", s.Name, seeds)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	say := func(name string, p ttftParts) { // Flush reports
		_, _ = fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t\n", name, p.sum(), p.Wait, p.Fresh, p.Again, p.Beside, p.Move, p.Step)
	}
	_, _ = fmt.Fprint(table, "policy\tTTFT\twaiting\tprefill: new\tknown before\tsteps and others\thand-off, transfer\tfirst decode step\t\n")
	say("at least", s.bounds[0])
	say("at least, by pairs", s.bounds[1])
	for i := range s.Policies {
		p := &s.Policies[i]
		name := p.Name
		if name == s.BestReleased {
			name = "*" + name
		}
		say(name, p.parts())
	}
	return table.Flush()
}

// parts is what the policy's mean time to the first token is made of.
func (p *PolicyReport) parts() ttftParts {
	mean := func(name string) float64 { return p.Metrics[name].Mean }
	parts := ttftParts{Wait: mean("wait_mean_s"), Again: mean("prefill_again_mean_s"), Beside: mean("prefill_beside_mean_s"), Step: mean("decode_step_mean_s")}
	parts.Fresh = mean("prefill_mean_s") - parts.Again - parts.Beside
	parts.Move = mean("ttft_mean_s") - parts.sum()
	return parts
}
