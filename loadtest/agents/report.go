package agents

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Report is the comparison. Times are in the engines' time: what this machine took, times the
// speed.
type Report struct {
	Schema  int      `json:"schema"`
	Speed   float64  `json:"speed"`
	Load    Load     `json:"load"`
	Results []Result `json:"results"`
}

// Result is what came of one run.
type Result struct {
	run
	CacheTokens  int     `json:"cache_tokens_per_server"`
	Requests     int     `json:"requests"`
	Failed       int     `json:"failed"`
	Alone        int     `json:"prompts_computed_by_decode"`
	PromptTokens int     `json:"prompt_tokens"`
	Cached       float64 `json:"cached_share"`    // of the prompt tokens, 0..1, by the engines' usage
	Oracle       float64 `json:"oracle_share"`    // that the oracle had cached
	OfOracle     float64 `json:"share_of_oracle"` // of its cached tokens, those that were cached
	Changed      int     `json:"changed_server"`  // of later turns that need not
	NeedNot      int     `json:"need_not_change_server"`
	// Needless is how many later turns changed their server although that of the turn before held
	// as much of the prompt as any and could have begun no later.
	Needless int `json:"needlessly_changed_server"`
	// Losing is how many of the needless changes were to a server that held less of the prompt.
	Losing int     `json:"needlessly_changed_to_less_cached"`
	TTFT50 float64 `json:"later_turns_ttft_p50_s"`
	TTFT99 float64 `json:"later_turns_ttft_p99_s"`
	// Repeated is how many times what sub-agents that begin at once share was computed by
	// them all together, on average over their starts.
	Repeated float64 `json:"shared_prefix_computed_by_sub_agents"`
	Seconds  float64 `json:"run_s"` // of this machine's time

	changes changes
	slowest []*turn // of the later ones, one in slowestOf
}

// slowestOf is of how many later turns the slowest is explained.
const slowestOf = 30

// newResult holds the log of a run against the oracle.
func newResult(what *run, log []*turn, blocks int, speed float64) (*Result, error) {
	r := &Result{run: *what, CacheTokens: blocks * blockTokens, Requests: len(log)}
	var done []*turn
	var later []*turn
	var first error
	cached := 0
	for _, t := range log {
		if t.err != nil {
			if r.Failed++; first == nil {
				first = t.err
			}
			continue
		}
		done = append(done, t)
		r.PromptTokens += t.usage.prompt
		cached += t.usage.cached
		if t.prefill == "" {
			r.Alone++
		}
		if t.request.turn > 0 || t.request.conversation.parent != nil {
			later = append(later, t)
		}
	}
	if len(later) == 0 {
		return nil, fmt.Errorf("%d of %d requests failed: %w", r.Failed, r.Requests, first)
	}
	best := oracle(done, r.Servers, blocks)
	r.Cached, r.Oracle = float64(cached)/float64(r.PromptTokens), float64(best)/float64(r.PromptTokens)
	r.OfOracle = float64(cached) / float64(max(best, 1))
	r.changes = findChanges(done, blocks)
	r.Changed, r.NeedNot = len(r.changes.changed), r.changes.needNot
	r.Needless, r.Losing = len(r.changes.needless), losing(r.changes.needless)
	slices.SortFunc(later, func(a, b *turn) int { return cmp.Compare(a.ttft, b.ttft) })
	r.slowest = later[len(later)-(len(later)+slowestOf-1)/slowestOf:]
	r.TTFT50, r.TTFT99 = quantile(later, 0.5, speed), quantile(later, 0.99, speed)
	r.Repeated = repeated(done)
	return r, nil
}

func quantile(sorted []*turn, q, speed float64) float64 {
	return speed * sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].ttft.Seconds()
}

// repeated is how many times sub-agents that began at once computed what they share.
func repeated(log []*turn) float64 {
	computed, shared := make(map[*conversation]int), make(map[*conversation]int)
	for _, t := range log {
		parent := t.request.conversation.parent
		if parent == nil || t.request.turn > 0 {
			continue
		}
		of := commonTokens(t.request, log, parent)
		shared[parent] = of
		computed[parent] += max(0, of-t.usage.cached)
	}
	sum := 0.0
	for parent, of := range shared {
		sum += float64(computed[parent]) / float64(max(of, 1))
	}
	return sum / float64(max(len(shared), 1))
}

// commonTokens are those with which the prompts of all sub-agents of one parent begin.
func commonTokens(r *request, log []*turn, parent *conversation) int {
	common := len(r.blocks)
	for _, t := range log {
		if t.request.conversation.parent != parent || t.request.turn > 0 {
			continue
		}
		n := 0
		for n < min(common, len(t.request.blocks)) && t.request.blocks[n] == r.blocks[n] {
			n++
		}
		common = n
	}
	return common * blockTokens
}

// WriteJSON writes the report, indented.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

// WriteTable writes it for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "seconds of the engines; %g of them pass here in one\n", r.Speed)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "API\tprefill\tcache\tpolicy\tcached\toracle\tof oracle\tchanged\tneedless\tlosing\tTTFT p50\tp99\trepeated\tdecode alone\tfailed\trun s\t\n")
	for i := range r.Results {
		x := &r.Results[i]
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%.1f%%\t%.1f%%\t%.1f%%\t%d of %d\t%d\t%d\t%.3f\t%.3f\t%.2f\t%d\t%d of %d\t%.1f\t\n", x.API, x.Servers, x.Cache, x.Policy,
			100*x.Cached, 100*x.Oracle, 100*x.OfOracle, x.Changed, x.NeedNot, x.Needless, x.Losing, x.TTFT50, x.TTFT99, x.Repeated, x.Alone, x.Failed, x.Requests, x.Seconds)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, g := range r.Goals() {
		fmt.Fprintf(w, "%s: %d of %d\n", g.Text, g.Met, g.Of)
	}
	return nil
}
