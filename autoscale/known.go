package autoscale

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
)

// How models are forgotten whose servers are gone.
const (
	forgetAfter = 24 * time.Hour // without a server and a request
	mostGone    = 256            // of all without a server; those not seen for longest go first
)

// presence is when a model was last seen, and what it was like when it last had a server.
type presence struct {
	At       time.Time `json:"at"`                 // a server had it, or a request asked for it
	Zero     bool      `json:"zero"`               // none was wanted: a request brings it back
	Adapters []string  `json:"adapters,omitempty"` // that its servers had or could load
}

// seen notes whether servers have the model, with which adapters, whether requests ask for
// it, and what is wanted of it.
func (p *presence) seen(served bool, adapters []string, asked bool, plan sizing.Plan, now time.Time) {
	if served || p.At.IsZero() {
		p.Zero = plan.Known && plan.Prefill.Servers+plan.Decode.Servers == 0
		p.Adapters = adapters
	}
	if served || asked || p.At.IsZero() || p.At.After(now) {
		p.At = now
	}
}

// forget drops the models that are not coming back: those whose servers went although some
// were wanted, after a while, and what is more than can be kept. What was scaled to zero
// stays.
func (p *plans) forget(served map[string][]string, now time.Time) {
	var gone []string
	for model, m := range p.Memories {
		_, there := served[model]
		switch {
		case there:
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

// models are those that were known when it was last decided or had servers since, and which of these, and of
// others, servers have, with their adapters: an adapter is served by its base model's
// servers. had are the adapters of those that had servers since.
func (s *Scaler) models(last plans) (names []string, served, had map[string][]string) {
	served = s.served()
	names = slices.AppendSeq(slices.Collect(maps.Keys(last.Models)), maps.Keys(served))
	had = s.seen.all()
	names = slices.AppendSeq(names, maps.Keys(had))
	slices.Sort(names)
	return slices.Compact(names), served, had
}

// served are the models that servers have, with their adapters.
func (s *Scaler) served() map[string][]string {
	served := make(map[string][]string)
	adapters := make(map[string][]string)
	for _, m := range s.fleet.Models() {
		if m.Parent == "" {
			served[m.ID] = nil
		} else {
			adapters[m.Parent] = append(adapters[m.Parent], m.ID)
		}
	}
	for base := range served {
		served[base] = adapters[base]
	}
	return served
}

// sightings are models that had servers, with their adapters, which no decision knows yet: their servers may go before
// the next one. It is not made sooner for that, since the servers that are up first would look like all there are.
type sightings struct {
	mu     sync.Mutex
	models map[string][]string
}

// note adds the models that servers have and a decision does not know.
func (n *sightings) note(served map[string][]string, decided map[string]*Decision) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for base, adapters := range served {
		_, noted := n.models[base]
		if decided[base] != nil || !noted && len(n.models) == mostGone {
			continue
		}
		if n.models == nil {
			n.models = make(map[string][]string)
		}
		n.models[base] = adapters
	}
}

// forget drops those that a decision knows.
func (n *sightings) forget(decided map[string]*Decision) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.models, func(model string, _ []string) bool { return decided[model] != nil })
}

// all returns the models and their adapters.
func (n *sightings) all() map[string][]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.models)
}

// known are the models of the last decision and those that had servers since, with their adapters.
func (s *Scaler) known() map[string][]string {
	known := make(map[string][]string)
	maps.Copy(known, s.seen.all())
	for base, m := range s.current.Load().Memories {
		known[base] = m.Present.Adapters
	}
	return known
}

// Base is the model whose servers serve a model: itself, or of an adapter its base model;
// false if neither has servers, nor had some and may have them again.
func (s *Scaler) Base(model string) (base string, known bool) {
	if s.current.Load().Models[model] != nil { // nearly all are: no more is looked at for a request
		return model, true
	}
	models := s.known()
	if _, had := models[model]; had {
		return model, true
	}
	for _, base := range slices.Sorted(maps.Keys(models)) {
		if slices.Contains(models[base], model) || s.fleet.Loads(base, model) {
			return base, true
		}
	}
	return "", false
}

// Models returns the models that Base knows, without adapters that no server had.
func (s *Scaler) Models() []string {
	var all []string
	for base, adapters := range s.known() {
		all = append(append(all, base), adapters...)
	}
	return all
}
