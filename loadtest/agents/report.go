package agents

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is the comparison. Times are in the engines' time: what this machine took, times the
// speed.
type Report struct {
	Schema  int      `json:"schema"`
	Speed   float64  `json:"speed"`
	Seeds   int      `json:"seeds"` // of each run, from that of the load on
	Load    Load     `json:"load"`
	Results []Result `json:"results"`
}

// Result is what came of one run, of all its seeds.
type Result struct {
	run
	CacheTokens  int     `json:"cache_tokens_per_server"` // with the last seed
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
	// AboveChat is how far that is above chat's with the same servers, caches and policy.
	AboveChat *Difference `json:"later_turns_ttft_p99_above_chat,omitempty"`
	// Repeated is how many times what sub-agents that begin at once share was computed by
	// them all together, on average over their starts.
	Repeated float64 `json:"shared_prefix_computed_by_sub_agents"`
	Seconds  float64 `json:"run_s"` // of this machine's time

	cached, oracle int // tokens
	later          laterTurns
	starts         siblingStarts // of sub-agents

	// What is explained of a round, and not kept.
	changes changes
	slowest []*turn // of the later ones, one in slowestOf
}

// newResult holds the log of a round against the oracle.
func newResult(what *round, log []*turn, blocks int, speed float64) (*Result, error) {
	r := &Result{run: what.run, CacheTokens: blocks * blockTokens, Requests: len(log), later: make(laterTurns)}
	var done []*turn
	var first error
	for _, t := range log {
		if t.err != nil {
			if r.Failed++; first == nil {
				first = t.err
			}
			continue
		}
		done = append(done, t)
		r.PromptTokens += t.usage.prompt
		r.cached += t.usage.cached
		if t.prefill == "" {
			r.Alone++
		}
		if t.request.turn > 0 || t.request.conversation.parent != nil {
			of := session{what.seed, what.Servers, t.request.conversation.session}
			r.later[of] = append(r.later[of], t)
		}
	}
	if len(r.later) == 0 {
		return nil, fmt.Errorf("%d of %d requests failed: %w", r.Failed, r.Requests, first)
	}
	r.oracle, r.starts = oracle(done, r.Servers, blocks), startsOf(done)
	r.changes = findChanges(done, blocks)
	r.Changed, r.NeedNot = len(r.changes.changed), r.changes.needNot
	r.Needless, r.Losing = len(r.changes.needless), losing(r.changes.needless)
	for i := range r.changes.changed {
		r.changes.changed[i].turn.changed = true
	}
	r.slowest = r.later.slowest()
	r.sum(speed)
	return r, nil
}

// sum works out the shares and times of all seeds together.
func (r *Result) sum(speed float64) {
	r.Cached, r.Oracle = float64(r.cached)/float64(r.PromptTokens), float64(r.oracle)/float64(r.PromptTokens)
	r.OfOracle = float64(r.cached) / float64(max(r.oracle, 1))
	r.TTFT50, r.TTFT99 = r.later.quantile(0.5, speed), r.later.quantile(0.99, speed)
	r.Repeated = r.starts.repeated()
}

// add adds the result of a round to that of its run.
func (r *Report) add(x *Result) {
	x.changes, x.slowest = changes{}, nil
	x.later.forget()
	i := slices.IndexFunc(r.Results, func(y Result) bool { return y.run == x.run })
	if i < 0 {
		r.Results = append(r.Results, *x)
		return
	}
	y := &r.Results[i]
	y.CacheTokens, y.Seconds = x.CacheTokens, y.Seconds+x.Seconds
	y.Requests, y.Failed, y.Alone, y.PromptTokens = y.Requests+x.Requests, y.Failed+x.Failed, y.Alone+x.Alone, y.PromptTokens+x.PromptTokens
	y.Changed, y.NeedNot, y.Needless, y.Losing = y.Changed+x.Changed, y.NeedNot+x.NeedNot, y.Needless+x.Needless, y.Losing+x.Losing
	y.cached, y.oracle = y.cached+x.cached, y.oracle+x.oracle
	y.later.add(x.later)
	y.starts = siblingStarts{y.starts.times + x.starts.times, y.starts.count + x.starts.count}
	y.sum(r.Speed)
}

// compare holds each run against chat's, once all are there.
func (r *Report) compare() {
	for i := range r.Results {
		x := &r.Results[i]
		if of := r.chatOf(x); of != nil && of != x {
			x.AboveChat = p99Above(x.later, of.later, r.Speed)
		}
	}
}

func quantile(sorted []time.Duration, q, speed float64) float64 {
	return speed * sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Seconds()
}

// siblingStarts are starts of sub-agents that begin at once, and how many times they computed what
// they share, all together, summed over the starts.
type siblingStarts struct {
	times float64
	count int
}

func (s siblingStarts) repeated() float64 { return s.times / float64(max(s.count, 1)) }

// startsOf finds the starts of sub-agents in the log of one seed.
func startsOf(log []*turn) siblingStarts {
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
	starts := siblingStarts{count: len(shared)}
	for parent, of := range shared {
		starts.times += float64(computed[parent]) / float64(max(of, 1))
	}
	return starts
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
	fmt.Fprintf(w, "seconds of the engines; %g of them pass here in one; %d seeds a run\n", r.Speed, r.Seeds)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "API\tprefill\tcache\tpolicy\tcached\toracle\tof oracle\tchanged\tneedless\tlosing\tTTFT p50\tp99\tabove chat (95%%)\trepeated\tdecode alone\tfailed\trun s\t\n")
	for i := range r.Results {
		x := &r.Results[i]
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%.1f%%\t%.1f%%\t%.1f%%\t%d of %d\t%d\t%d\t%.3f\t%.3f\t%s\t%.2f\t%d\t%d of %d\t%.1f\t\n", x.API, x.Servers, x.Cache, x.Policy,
			100*x.Cached, 100*x.Oracle, 100*x.OfOracle, x.Changed, x.NeedNot, x.Needless, x.Losing, x.TTFT50, x.TTFT99, x.AboveChat, x.Repeated, x.Alone, x.Failed, x.Requests, x.Seconds)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, t := range r.Totals() {
		fmt.Fprintln(w, t)
	}
	for _, g := range r.Goals() {
		fmt.Fprintln(w, g)
	}
	return nil
}
