package cost

import (
	"slices"
	"time"
)

// Explained is one alternative as people read it, costs in milliseconds.
type Explained struct {
	Prefill          string  `json:"prefill,omitempty"`
	Decode           string  `json:"decode"`
	Chosen           bool    `json:"chosen,omitempty"`
	Total            float64 `json:"total_ms"`               // first token and gap, decode cost, delay to others, hardware mismatch and eviction
	First            float64 `json:"first_token_ms"`         // ready to step, or to prefill where that says it
	FirstGap         float64 `json:"first_gap_ms,omitempty"` // transfer to step, where prefill says the first token
	Ready            float64 `json:"ready_ms,omitempty"`     // adapters to load
	Queue            float64 `json:"queue_ms"`
	Compute          float64 `json:"prefill_ms"`
	Transfer         float64 `json:"transfer_ms"`
	KVRoom           float64 `json:"room_ms"`
	Step             float64 `json:"step_ms"`
	DecodeCost       float64 `json:"pace_ms"`
	DelayToOthers    float64 `json:"burden_ms"`
	HardwareMismatch float64 `json:"misfit_ms,omitempty"`   // the plan gives such requests to other hardware
	Eviction         float64 `json:"eviction_ms,omitempty"` // KV that is likelier to come back would go
	Misses           int     `json:"misses,omitempty"`      // objectives
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
func (m *Model) Explain(r Demand, f Candidates, chosen Alternative, limit int) []Explained {
	f.Decode = slices.Clone(f.Decode) // pricing writes to it, and others may read it
	all := m.Alternatives(r, &f, chosen.Price)
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
	for _, list := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range list {
			known[list[i].ID] = &list[i]
		}
	}
	var out []Explained
	alone := false
	work := newWork(r.PromptTokens)
	for i := range all {
		a := &all[i]
		isChosen := a.Prefill == chosen.Prefill && a.Decode == chosen.Decode
		firstAlone := a.Prefill == "" && !alone
		if len(out) >= limit && !isChosen && !firstAlone {
			continue
		}
		alone = alone || firstAlone
		e := a.Explained()
		e.Chosen, e.DecodeCached = isChosen, known[a.Decode].Cached.GPU
		if a.Prefill != "" {
			held := known[a.Prefill].Cached
			e.PrefillCached, e.PrefillCPU, e.PrefillDisk = held.GPU, held.CPU-held.GPU, held.Disk-held.CPU
			e.Moved = m.missing(known[a.Decode], &work)
		}
		out = append(out, e)
	}
	return out
}

// Explained is the alternative in milliseconds, without what its servers hold.
func (a *Alternative) Explained() Explained {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	t := &a.Terms
	return Explained{
		Prefill: a.Prefill, Decode: a.Decode, Misses: a.Misses, Total: ms(t.Total()), First: ms(t.TTFT()), FirstGap: ms(t.FirstGap()),
		Ready: ms(t.Ready), Queue: ms(t.Queue), Compute: ms(t.Prefill), Transfer: ms(t.Transfer),
		KVRoom: ms(t.KVRoom), Step: ms(t.Step), DecodeCost: ms(t.DecodeCost), DelayToOthers: ms(t.DelayToOthers), HardwareMismatch: ms(t.HardwareMismatch), Eviction: ms(t.Eviction),
	}
}
