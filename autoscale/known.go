package autoscale

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
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

// models are those that were known when it was last decided, and which of these, and of
// others, servers have, with their adapters: an adapter is served by its base model's
// servers.
func (s *Scaler) models(last plans) (names []string, served map[string][]string) {
	served = make(map[string][]string)
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
	names = slices.AppendSeq(slices.Collect(maps.Keys(last.Models)), maps.Keys(served))
	slices.Sort(names)
	return slices.Compact(names), served
}

// knowsAll reports whether the last decision knew all models that have servers.
func (s *Scaler) knowsAll() bool {
	decided := s.current.Load().Models
	return !slices.ContainsFunc(s.fleet.Models(), func(m pools.Model) bool { return m.Parent == "" && decided[m.ID] == nil })
}

// Base is the model whose servers serve a model: itself, or of an adapter its base model;
// false if neither has servers, nor had some and may have them again.
func (s *Scaler) Base(model string) (base string, known bool) {
	p := s.current.Load()
	if p.Models[model] != nil {
		return model, true
	}
	for _, base := range slices.Sorted(maps.Keys(p.Memories)) {
		if slices.Contains(p.Memories[base].Present.Adapters, model) || s.fleet.Loads(base, model) {
			return base, true
		}
	}
	return "", false
}

// Models returns the models that Base knows, without adapters that no server had.
func (s *Scaler) Models() []string {
	var all []string
	for base, m := range s.current.Load().Memories {
		all = append(append(all, base), m.Present.Adapters...)
	}
	return all
}
