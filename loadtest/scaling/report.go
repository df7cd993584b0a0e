package scaling

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Report is a comparison's result. Its JSON has "schema": 1; under one schema fields
// may come and do not go.
type Report struct {
	Schema   int        `json:"schema"`
	Trace    string     `json:"trace"`
	Seeds    int        `json:"seeds"`
	Gates    []Gate     `json:"gates"`
	Outcomes []*Outcome `json:"outcomes"`

	scenarios []*Scenario
	policies  []Policy
}

func newReport(trace string, cfg Config, all []*Outcome) *Report {
	place := func(o *Outcome) (scenario, policy int) {
		return slices.IndexFunc(cfg.Scenarios, func(s *Scenario) bool { return s.Name == o.Scenario }),
			slices.IndexFunc(cfg.Policies, func(p Policy) bool { return p.Name == o.Policy })
	}
	slices.SortFunc(all, func(a, b *Outcome) int {
		as, ap := place(a)
		bs, bp := place(b)
		return cmp.Or(cmp.Compare(as, bs), cmp.Compare(a.ColdStart, b.ColdStart), cmp.Compare(ap, bp), cmp.Compare(a.Seed, b.Seed))
	})
	r := &Report{Schema: 1, Trace: trace, Seeds: cfg.Seeds, Outcomes: all, scenarios: cfg.Scenarios, policies: cfg.Policies}
	r.Gates = r.judge()
	return r
}

// Row is a policy on a load, means over the seeds.
type Row struct {
	Scenario, Policy          string
	ColdStart                 float64
	Good, Calm                float64
	Prefill, Decode           float64 // hours
	PrefillWork, DecodeWork   float64 // hours
	Late, Slow                float64
	Longest, Recovery, Revert float64
	Recovers                  bool
	First                     *Outcome // of the first seed, for pictures
}

// Hours are those of both roles.
func (r *Row) Hours() float64 { return r.Prefill + r.Decode }

// Rows are the means, in the order of the outcomes.
func (r *Report) Rows() []*Row {
	var rows []*Row
	n := float64(max(r.Seeds, 1))
	for _, o := range r.Outcomes {
		last := len(rows) - 1
		if last < 0 || rows[last].Scenario != o.Scenario || rows[last].Policy != o.Policy || rows[last].ColdStart != o.ColdStart {
			rows = append(rows, &Row{Scenario: o.Scenario, Policy: o.Policy, ColdStart: o.ColdStart, First: o})
			last++
		}
		row := rows[last]
		row.Good, row.Calm = row.Good+o.Good/n, row.Calm+o.Calm/n
		row.Prefill, row.Decode = row.Prefill+o.PrefillHours/n, row.Decode+o.DecodeHours/n
		row.PrefillWork, row.DecodeWork = row.PrefillWork+o.PrefillWork/n, row.DecodeWork+o.DecodeWork/n
		row.Late, row.Slow = row.Late+float64(o.Late)/n, row.Slow+float64(o.Slow)/n
		row.Longest, row.Revert = max(row.Longest, o.LongestWait), row.Revert+o.Reversals/n
		if o.Recovery != nil {
			row.Recovery, row.Recovers = row.Recovery+*o.Recovery/n, true
		}
	}
	return rows
}

// WriteTable writes a line for each policy on each load, and the gates.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\tcold s\tpolicy\tgood %\tcalm %\tlate\tslow\tlongest s\tP h\tD h\thours\tP/work\tD/work\trecovery s\treversals/h\t")
	for _, o := range r.Rows() {
		recovery := "-"
		if o.Recovers {
			recovery = fmt.Sprintf("%.0f", o.Recovery)
		}
		fmt.Fprintf(w, "%s\t%.0f\t%s\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%s\t%.1f\t\n", o.Scenario, o.ColdStart, o.Policy,
			100*o.Good, 100*o.Calm, o.Late, o.Slow, o.Longest, o.Prefill, o.Decode, o.Hours(), o.Prefill/o.PrefillWork, o.Decode/o.DecodeWork, recovery, o.Revert)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return writeGates(out, r.Gates)
}

// WriteJSON writes everything.
func (r *Report) WriteJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(r)
}
