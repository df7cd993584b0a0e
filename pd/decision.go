package pd

import (
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Decision is why a request went where it did: one choice per attempt.
type Decision struct {
	RequestID string
	Model     string
	API       string
	At        time.Time
	Choices   []Choice
	Outcome   string
}

// Choice is what one attempt chose from, and how it ended.
type Choice struct {
	Demand  Demand
	Field   Field
	Chosen  Alternative
	Reason  string // why decode runs alone, empty for a pair
	Differ  string // what keeps servers from making a pair, where that is why
	Panic   bool   // breakers were ignored
	Outcome string // empty when it served
}

// NoPair is the Reason where prefill servers are there and make no pair with decode servers.
const NoPair = "no_pair"

// Decisions remembers the last decisions, in a ring. Of the older ones it keeps what the
// chosen servers were like, and of all others no more than maxCandidates.
type Decisions struct {
	mu         sync.Mutex // guards the rest
	ring       []Decision
	next       int
	candidates int // in all of them
	cut        int // of the oldest decisions, of which only the chosen servers are kept
}

// maxCandidates bounds the servers that are remembered with decisions, to some 20 MB.
const maxCandidates = 1 << 16

// NewDecisions remembers n decisions.
func NewDecisions(n int) *Decisions { return &Decisions{ring: make([]Decision, 0, n)} }

// Add remembers a decision and forgets the oldest.
func (d *Decisions) Add(decision Decision) {
	decision.Choices = slices.Clone(decision.Choices) // the request may go on with its own
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ring) < cap(d.ring) {
		d.ring = append(d.ring, decision)
	} else {
		d.candidates -= d.ring[d.next].candidates()
		d.ring[d.next] = decision
		d.next = (d.next + 1) % len(d.ring)
		d.cut = max(0, d.cut-1)
	}
	d.candidates += decision.candidates()
	for ; d.candidates > maxCandidates && d.cut < len(d.ring)-1; d.cut++ {
		oldest := &d.ring[(d.next+d.cut)%len(d.ring)]
		d.candidates -= oldest.candidates()
		oldest.Choices = onlyChosen(oldest.Choices)
		d.candidates += oldest.candidates()
	}
}

// candidates is how many servers it remembers.
func (d *Decision) candidates() (n int) {
	for i := range d.Choices {
		n += len(d.Choices[i].Field.Prefill) + len(d.Choices[i].Field.Decode)
	}
	return n
}

// onlyChosen are choices without the servers that were not chosen: copies, since others may
// read them.
func onlyChosen(choices []Choice) []Choice {
	kept := slices.Clone(choices)
	for i := range kept {
		c := &kept[i]
		all := c.Field
		p, d := numberOf(all.Prefill, c.Chosen.Prefill), numberOf(all.Decode, c.Chosen.Decode)
		c.Field.Prefill, c.Field.Decode = nil, nil
		if d >= 0 {
			c.Field.Decode = slices.Clone(all.Decode[d : d+1])
		}
		if p >= 0 {
			c.Field.Prefill = slices.Clone(all.Prefill[p : p+1])
		}
		c.Field.Links = order.NewLinkTable(len(c.Field.Prefill), len(c.Field.Decode))
		if p >= 0 && d >= 0 {
			at := p*len(all.Decode) + d
			c.Field.Links.Latency[0], c.Field.Links.SecondsPerByte[0] = all.Links.Latency[at], all.Links.SecondsPerByte[at]
			c.Field.Links.Fastest = all.Links.SecondsPerByte[at]
		}
	}
	return kept
}

// Find returns the newest decision on a request, false if it is not remembered.
func (d *Decisions) Find(requestID string) (Decision, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.ring {
		at := (d.next - 1 - i + 2*len(d.ring)) % len(d.ring)
		if d.ring[at].RequestID == requestID {
			return d.ring[at], true
		}
	}
	return Decision{}, false
}

// Explained is one alternative as people read it, costs in milliseconds.
type Explained struct {
	Prefill  string  `json:"prefill,omitempty"`
	Decode   string  `json:"decode"`
	Chosen   bool    `json:"chosen,omitempty"`
	Total    float64 `json:"total_ms"`           // first token, pace, burden and misfit
	First    float64 `json:"first_token_ms"`     // ready to step
	Ready    float64 `json:"ready_ms,omitempty"` // adapters to load
	Queue    float64 `json:"queue_ms"`
	Compute  float64 `json:"prefill_ms"`
	Transfer float64 `json:"transfer_ms"`
	Room     float64 `json:"room_ms"`
	Step     float64 `json:"step_ms"`
	Pace     float64 `json:"pace_ms"`
	Burden   float64 `json:"burden_ms"`
	Misfit   float64 `json:"misfit_ms,omitempty"` // the plan gives such requests to other hardware
	Misses   int     `json:"misses,omitempty"`    // objectives
	// Tokens of the prompt that the two hold already, on their GPUs; and what else of
	// it the one that prefills has in CPU memory and on disk.
	PrefillCached int `json:"prefill_cached,omitempty"`
	PrefillCPU    int `json:"prefill_cpu,omitempty"`
	PrefillDisk   int `json:"prefill_disk,omitempty"`
	DecodeCached  int `json:"decode_cached,omitempty"`
	// Moved is the bytes of KV that decode lacks and is sent.
	Moved float64 `json:"moved_bytes,omitempty"`
}

// Explain prices a choice again, cheapest first, at most limit alternatives; the chosen
// one always, and the cheapest without a prefill server.
func (m *CostModel) Explain(c Choice, limit int) []Explained {
	c.Field.Decode = slices.Clone(c.Field.Decode) // weighing writes to it, and others may read it
	all := m.Alternatives(c.Demand, &c.Field, c.Chosen.Price)
	slices.SortStableFunc(all, func(a, b Alternative) int {
		switch {
		case a.before(&b):
			return -1
		case b.before(&a):
			return 1
		}
		return 0
	})
	known := make(map[string]*Candidate)
	for _, list := range [][]Candidate{c.Field.Prefill, c.Field.Decode} {
		for i := range list {
			known[list[i].ID] = &list[i]
		}
	}
	var out []Explained
	alone := false
	work := newWork(c.Demand.PromptTokens)
	for i := range all {
		a := &all[i]
		chosen := a.Prefill == c.Chosen.Prefill && a.Decode == c.Chosen.Decode
		firstAlone := a.Prefill == "" && !alone
		if len(out) >= limit && !chosen && !firstAlone {
			continue
		}
		alone = alone || firstAlone
		e := explained(a)
		e.Chosen, e.DecodeCached = chosen, known[a.Decode].Cached.GPU
		if a.Prefill != "" {
			held := known[a.Prefill].Cached
			e.PrefillCached, e.PrefillCPU, e.PrefillDisk = held.GPU, held.CPU-held.GPU, held.Disk-held.CPU
			e.Moved = m.missing(known[a.Decode], &work)
		}
		out = append(out, e)
	}
	return out
}

// explained is an alternative in milliseconds.
func explained(a *Alternative) Explained {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	t := &a.Terms
	return Explained{
		Prefill: a.Prefill, Decode: a.Decode, Misses: a.Misses, Total: ms(t.Total()), First: ms(t.TTFT()),
		Ready: ms(t.Ready), Queue: ms(t.Queue), Compute: ms(t.Prefill), Transfer: ms(t.Transfer),
		Room: ms(t.Room), Step: ms(t.Step), Pace: ms(t.Pace), Burden: ms(t.Burden), Misfit: ms(t.Misfit),
	}
}
