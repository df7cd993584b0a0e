package proxybench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a run came to.
type Report struct {
	At      time.Time `json:"at"`
	Machine string    `json:"machine"`
	Rounds  int       `json:"rounds"` // of all measures that were made
	Again   int       `json:"again"`  // behind them, of those measures of which rounds do not count
	Wanted  int       `json:"rounds_wanted"`
	Lasts   string    `json:"measure_lasts"`
	// Dropped are the rounds whose figures of a measure do not count, with how far the baseline differed
	// from itself.
	Dropped []Drop `json:"dropped"`
	Rows    []*Row `json:"rows"`

	steady           float64
	baseline, direct string
	samples          []sample
}

// Drop is a measure of a round that does not count.
type Drop struct {
	Round   int     `json:"round"` // from 1
	Measure string  `json:"measure"`
	Differs float64 `json:"differs"` // share by which the baseline's two figures differ
}

// Row is one proxy.
type Row struct {
	Proxy   string            `json:"proxy"`
	Legs    string            `json:"legs"`
	Figures map[string]Figure `json:"figures"`
	Errors  map[string]int    `json:"errors,omitempty"` // of clients, by what went wrong
	Faults  map[string]int    `json:"faults,omitempty"` // of legs, as the engines saw them
	Alone   int               `json:"requests_of_one_leg"`
	Pairs   int               `json:"hand_offs_checked"`
	Failed  []string          `json:"failed,omitempty"` // measures that came to nothing, or why it did not start
}

// Figure is the median of the rounds that count.
type Figure struct {
	Value   float64 `json:"value"`
	Times   float64 `json:"times_baseline,omitempty"`
	Added   float64 `json:"added,omitempty"` // to the same without a proxy
	Rounds  int     `json:"rounds"`
	isAdded bool
}

// sample is one figure of one round.
type sample struct {
	proxy, name string
	round       int
	value       float64
}

func newReport(cfg *Config) *Report {
	r := &Report{
		At: time.Now().UTC().Truncate(time.Second), Machine: fmt.Sprintf("%d cores, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH),
		Wanted: cfg.Rounds, Lasts: cfg.Lasts.String(), steady: cfg.Steady, baseline: cfg.Baseline, direct: cfg.Direct, Dropped: []Drop{},
	}
	for i := range cfg.Proxies {
		p := &cfg.Proxies[i]
		r.Rows = append(r.Rows, &Row{Proxy: p.Name, Legs: p.Legs, Figures: map[string]Figure{}, Errors: map[string]int{}, Faults: map[string]int{}})
	}
	return r
}

func (r *Report) row(proxy string) *Row {
	at := slices.IndexFunc(r.Rows, func(row *Row) bool { return row.Proxy == proxy })
	return r.Rows[at]
}

// fail notes that a proxy did not start.
func (r *Report) fail(proxy string, err error) {
	row := r.row(proxy)
	row.Failed = append(row.Failed, err.Error())
}

// add takes a measure of a round.
func (r *Report) add(p *Proxy, m *measure, round int, values map[string]float64, t *tally, legs Legs, err error) {
	row := r.row(p.Name)
	if err != nil {
		row.Failed = append(row.Failed, fmt.Sprintf("%s: %v", m.name, err))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for why, n := range t.errors {
		row.Errors[m.name+": "+why] += n
	}
	for why, n := range legs.Faults {
		row.Faults[m.name+": "+why] += n
	}
	row.Alone, row.Pairs = row.Alone+legs.Alone, row.Pairs+legs.Pairs
	if p.Legs == "pair" && legs.Alone > 0 {
		row.Faults[m.name+": request of one leg"] += legs.Alone
	}
	if err == nil {
		for name, value := range values {
			r.samples = append(r.samples, sample{p.Name, name, round, value})
		}
	}
}

// finish works the figures out.
func (r *Report) finish() {
	for i := range measures {
		m := &measures[i]
		counts := r.steadyRounds(m)
		for _, v := range m.values {
			base, hasBase := r.median(r.baseline, v.Name, counts)
			direct, hasDirect := r.median(r.direct, v.Name, counts)
			for _, row := range r.Rows {
				value, known := r.median(row.Proxy, v.Name, counts)
				if !known {
					continue
				}
				f := Figure{Value: value, Rounds: len(r.rounds(row.Proxy, v.Name, counts))}
				if v.Ratio && hasBase && base != 0 {
					f.Times = value / base
				}
				if v.Added && hasDirect {
					f.Added, f.isAdded = value-direct, true
				}
				row.Figures[v.Name] = f
			}
		}
	}
}

// differs is the share by which the baseline's two figures of a measure differ in a round; false where it has no two.
func (r *Report) differs(m *measure, round int) (share float64, known bool) {
	own := r.values(r.baseline, m.steady, func(n int) bool { return n == round })
	if len(own) < 2 {
		return 0, false
	}
	share = slices.Max(own)/slices.Min(own) - 1
	if math.IsInf(share, 0) || math.IsNaN(share) {
		share = math.MaxFloat64
	}
	return share, true
}

// steadyRounds reports which rounds of a measure count, and notes those that do not.
func (r *Report) steadyRounds(m *measure) (counts func(round int) bool) {
	dropped := map[int]bool{}
	for round := range r.made() {
		if differs, known := r.differs(m, round); known && differs > r.steady {
			dropped[round] = true
			r.Dropped = append(r.Dropped, Drop{round + 1, m.name, differs})
		}
	}
	return func(round int) bool { return !dropped[round] }
}

// values are the samples of a figure in the rounds that count.
func (r *Report) values(proxy, name string, counts func(int) bool) (all []float64) {
	for _, s := range r.samples {
		if s.proxy == proxy && s.name == name && counts(s.round) {
			all = append(all, s.value)
		}
	}
	return all
}

// rounds that count for a figure.
func (r *Report) rounds(proxy, name string, counts func(int) bool) map[int]bool {
	all := map[int]bool{}
	for _, s := range r.samples {
		if s.proxy == proxy && s.name == name && counts(s.round) {
			all[s.round] = true
		}
	}
	return all
}

func (r *Report) median(proxy, name string, counts func(int) bool) (float64, bool) {
	all := r.values(proxy, name, counts)
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	if mid := len(all) / 2; len(all)%2 == 0 {
		return (all[mid-1] + all[mid]) / 2, true
	}
	return all[len(all)/2], true
}

// OK reports whether no proxy lost, repeated or swapped anything.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Rows, func(row *Row) bool { return row.wrongs() > 0 || len(row.Failed) > 0 })
}

// wrongs are how many requests and legs went wrong.
func (r *Row) wrongs() (n int) {
	for _, counts := range []map[string]int{r.Errors, r.Faults} {
		for _, c := range counts {
			n += c
		}
	}
	return n
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteTable writes the report for people: a line for each figure, a column for each proxy.
func (r *Report) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s, %s; %d rounds, %s a measure; in brackets times %s, or what is added to %s\n\n",
		r.At.Format(time.RFC3339), r.Machine, r.Rounds, r.Lasts, r.baseline, r.direct); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"", "unit"}
	for _, row := range r.Rows {
		head = append(head, row.Proxy)
	}
	lines := [][]string{head}
	for i := range measures {
		for _, v := range measures[i].values {
			line := []string{v.Title, v.Unit}
			for _, row := range r.Rows {
				line = append(line, row.cell(v))
			}
			lines = append(lines, line)
		}
	}
	wrongs := []string{"errors", ""}
	handoffs := []string{"hand-offs checked", ""}
	for _, row := range r.Rows {
		wrongs, handoffs = append(wrongs, fmt.Sprint(row.wrongs())), append(handoffs, fmt.Sprint(row.Pairs))
	}
	for _, line := range append(lines, handoffs, wrongs) {
		if _, err := fmt.Fprintln(tw, strings.Join(line, "\t")+"\t"); err != nil {
			return err
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return r.writeNotes(w)
}

// cell is a figure as the table shows it.
func (r *Row) cell(v Value) string {
	f, known := r.Figures[v.Name]
	switch {
	case !known:
		return "-"
	case f.isAdded:
		return fmt.Sprintf("%s (%+.2f)", short(f.Value), f.Added)
	case f.Times > 0:
		return fmt.Sprintf("%s (%.2f)", short(f.Value), f.Times)
	}
	return short(f.Value)
}

// short writes a number with three digits that count.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// writeNotes says what was dropped, and what went wrong.
func (r *Report) writeNotes(w io.Writer) error {
	var b strings.Builder
	if r.Again > 0 {
		fmt.Fprintf(&b, "rounds made behind these for what was dropped: %d\n", r.Again)
	}
	if r.Rounds < r.Wanted {
		fmt.Fprintf(&b, "%d of %d rounds were made: another would not have ended in time\n", r.Rounds, r.Wanted)
	}
	for _, d := range r.Dropped {
		fmt.Fprintf(&b, "dropped: %s of round %d, %s differs from itself by %.0f %%\n", d.Measure, d.Round, r.baseline, 100*d.Differs)
	}
	for _, row := range r.Rows {
		for _, why := range row.Failed {
			fmt.Fprintf(&b, "%s: %s\n", row.Proxy, why)
		}
		for _, counts := range []map[string]int{row.Errors, row.Faults} {
			for _, why := range slices.Sorted(maps.Keys(counts)) {
				fmt.Fprintf(&b, "%s: %d times %s\n", row.Proxy, counts[why], why)
			}
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s", b.String())
	return err
}
