package pd

import (
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
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
	Panic   bool   // breakers were ignored
	Outcome string // empty when it served
}

// Decisions remembers the last decisions, in a ring.
type Decisions struct {
	mu   sync.Mutex // guards the rest
	ring []Decision
	next int
}

// NewDecisions remembers n decisions.
func NewDecisions(n int) *Decisions { return &Decisions{ring: make([]Decision, 0, n)} }

// Add remembers a decision and forgets the oldest.
func (d *Decisions) Add(decision Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ring) < cap(d.ring) {
		d.ring = append(d.ring, decision)
		return
	}
	d.ring[d.next] = decision
	d.next = (d.next + 1) % len(d.ring)
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
	Total    float64 `json:"total_ms"`
	Ready    float64 `json:"ready_ms,omitempty"` // adapters to load
	Queue    float64 `json:"queue_ms"`
	Compute  float64 `json:"prefill_ms"`
	Transfer float64 `json:"transfer_ms"`
	Room     float64 `json:"room_ms"`
	Step     float64 `json:"step_ms"`
	Pace     float64 `json:"pace_ms"`
	Burden   float64 `json:"burden_ms"`
	Misses   int     `json:"misses,omitempty"` // objectives
	// Tokens of the prompt that the two hold already, on their GPUs; and what else of
	// it the one that prefills has in CPU memory and on disk.
	PrefillCached int `json:"prefill_cached,omitempty"`
	PrefillCPU    int `json:"prefill_cpu,omitempty"`
	PrefillDisk   int `json:"prefill_disk,omitempty"`
	DecodeCached  int `json:"decode_cached,omitempty"`
}

// Explain prices a choice again, cheapest first, at most limit alternatives and
// the chosen one always.
func (m *CostModel) Explain(c Choice, limit int) []Explained {
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
	cached := make(map[string]kvstate.Held)
	for _, list := range [][]Candidate{c.Field.Prefill, c.Field.Decode} {
		for i := range list {
			cached[list[i].ID] = list[i].Cached
		}
	}
	var out []Explained
	for _, a := range all {
		chosen := a.Prefill == c.Chosen.Prefill && a.Decode == c.Chosen.Decode
		if len(out) >= limit && !chosen {
			continue
		}
		first := cached[a.Prefill] // nothing where decode runs alone
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		out = append(out, Explained{
			Prefill: a.Prefill, Decode: a.Decode, Chosen: chosen, Total: ms(a.Terms.Total()),
			Ready: ms(a.Terms.Ready), Queue: ms(a.Terms.Queue), Compute: ms(a.Terms.Prefill), Transfer: ms(a.Terms.Transfer),
			Room: ms(a.Terms.Room), Step: ms(a.Terms.Step), Pace: ms(a.Terms.Pace), Burden: ms(a.Terms.Burden), Misses: a.Misses,
			PrefillCached: first.GPU, PrefillCPU: first.CPU - first.GPU, PrefillDisk: first.Disk - first.CPU,
			DecodeCached: cached[a.Decode].GPU,
		})
	}
	return out
}
