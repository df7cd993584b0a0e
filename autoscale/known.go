package autoscale

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// How models are forgotten whose servers are gone.
const (
	forgetAfter = 24 * time.Hour // without a server and a request
	mostGone    = 256            // of all without a server; those not seen for longest go first
)

// presence is when a model was last seen, and how its servers went.
type presence struct {
	At   time.Time `json:"at"`   // a server had it, or somebody asked for it
	Zero bool      `json:"zero"` // none was wanted when its last server was there: a request brings it back
}

// seen notes whether servers have the model and whether somebody asks for it, and what is
// wanted of it.
func (p *presence) seen(served, asked bool, plan Plan, now time.Time) {
	if served || p.At.IsZero() {
		p.Zero = plan.Known && plan.Prefill.Servers+plan.Decode.Servers == 0
	}
	if served || asked || p.At.IsZero() || p.At.After(now) {
		p.At = now
	}
}

// asked reports whether anybody asked for the model lately.
func (t *total) asked() bool { return t.waiting.Requests > 0 || t.output.Mean() > 0 }

// forget drops the models that are not coming back: those whose servers went although some
// were wanted, after a while, and what is more than can be kept. What was scaled to zero
// stays.
func (p *plans) forget(served map[string]bool, now time.Time) {
	var gone []string
	for model, m := range p.Memories {
		switch {
		case served[model]:
		case !m.Present.Zero && now.Sub(m.Present.At) > forgetAfter:
			p.drop(model)
		default:
			gone = append(gone, model)
		}
	}
	slices.SortFunc(gone, func(a, b string) int {
		return cmp.Or(p.Memories[b].Present.At.Compare(p.Memories[a].Present.At), cmp.Compare(a, b))
	})
	for _, model := range gone[min(len(gone), mostGone):] {
		p.drop(model)
	}
}

func (p *plans) drop(model string) {
	delete(p.Models, model)
	delete(p.Memories, model)
}

// models are those that were known when it was last decided, and which of these, and of
// others, servers have. An adapter is served by its base model's servers.
func (s *Scaler) models(last plans) (names []string, served map[string]bool) {
	served = make(map[string]bool)
	for _, m := range s.fleet.Models() {
		if m.Parent == "" {
			served[m.ID] = true
		}
	}
	names = slices.AppendSeq(slices.Collect(maps.Keys(last.Models)), maps.Keys(served))
	slices.Sort(names)
	return slices.Compact(names), served
}

// Knows reports whether a model has servers, or had some and may have them again.
func (s *Scaler) Knows(model string) bool { return s.current.Load().Models[model] != nil }

// Models are those that it knows.
func (s *Scaler) Models() []string { return slices.Collect(maps.Keys(s.current.Load().Models)) }
