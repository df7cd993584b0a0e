package autoscale

import (
	"cmp"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
)

// memory is what the next decision for a model must know.
type memory struct {
	Memory       sizing.Memory           `json:"memory"`
	Present      presence                `json:"present"`
	KV           sizing.Series           `json:"kv"`
	KVBin        int64                   `json:"kv_bin"` // that runs
	KVSum        float64                 `json:"kv_sum"`
	KVCount      int                     `json:"kv_count"`
	Prefill      float64                 `json:"speed_of_prefill"` // of a server, when one was last there; as prefill_speed it was that for one token
	Decode       float64                 `json:"speed_of_decode"`  // likewise
	Capacity     float64                 `json:"kv_capacity"`      // likewise
	Raised       [2]time.Time            `json:"raised"`           // when more was wanted than there was; zero while it is there
	ColdStart    time.Duration           `json:"cold_start"`
	Draining     []DrainingUnit          `json:"leaving,omitempty"`
	Allocation   *mix.HardwareAllocation `json:"spread,omitempty"`     // what stands; nil without hardware to choose from
	NoAllocation string                  `json:"no_spread,omitempty"`  // why none could be found, as the log says
	AllocatedFor [2]int                  `json:"spread_for,omitempty"` // prefill and decode servers that it was found for
}

// remember keeps what servers can do for when none is there, and fills it in then: before the
// first with what is believed, for the workload of now. Speeds are those of a workload, so that
// none is kept before the first request: of prompts of one token it would be far too low.
func (m *memory) remember(g *poolState, prior *sizing.Capacity, w workload) {
	for _, figure := range []struct {
		now, last *float64
		believed  float64
		keeps     bool
	}{
		{&g.prefillSpeed, &m.Prefill, prior.PrefillSpeed(w.computed, w.prompt-w.computed), w.seen},
		{&g.decodeSpeed, &m.Decode, prior.DecodeSpeed(w.itl, w.context), w.seen},
		{&g.kvCapacity, &m.Capacity, float64(prior.KVTokens), true},
	} {
		switch {
		case *figure.now == 0:
			*figure.now = cmp.Or(*figure.last, figure.believed)
		case figure.keeps:
			*figure.last = *figure.now
		}
	}
}

// sample adds a reading of KV to the bin that runs.
func (m *memory) sample(kv float64, now time.Time) {
	if at := demand.BinOf(now); at != m.KVBin {
		if m.KVCount > 0 {
			m.KV = append(m.KV[max(0, len(m.KV)-demand.KeptBins+1):len(m.KV):len(m.KV)], m.KVSum/float64(m.KVCount))
		}
		m.KVBin, m.KVSum, m.KVCount = at, 0, 0
	}
	m.KVSum, m.KVCount = m.KVSum+kv, m.KVCount+1
	if len(m.KV) == 0 {
		m.KV = sizing.Series{kv} // the first bin is not over
	}
}

// pending is how many servers of a role are starting: those that are wanted and not
// there. One that is not there after three cold starts will not come.
func (m *memory) pending(role, missing int, now time.Time) int {
	raised := m.Raised[role]
	if missing <= 0 || raised.IsZero() || now.Sub(raised) > 3*m.ColdStart {
		return 0
	}
	return missing
}

// chooseDraining chooses which units of each pool drain, and keeps the wanted numbers up while
// they do. Of a role of which none is wanted all are idle, and none drains: the next request
// may come any time. Engines that grow in place shrink.
func (m *memory) chooseDraining(wants []PoolWant, servers []*pools.Server, model string, savings map[string]float64, now time.Time) {
	var all []DrainingUnit
	whole := make(map[pools.Role]int)
	for i := range wants {
		whole[wants[i].Role] += wants[i].Want.Servers
	}
	for i := range wants {
		w := &wants[i]
		if w.Engines > 0 || whole[w.Role] == 0 {
			continue
		}
		var draining []DrainingUnit
		w.Want, draining = scaleIn(w.Want, unitsOf(servers, w, model, savings, now), m.Draining, now)
		all = append(all, draining...)
	}
	m.Draining = all
}

// wanted is how many servers of both roles stand, as they are counted when they start.
func (m *memory) wanted() (prefill, decode int) {
	if m.Allocation != nil {
		return sumOf(m.Allocation.Prefill), sumOf(m.Allocation.Decode)
	}
	return m.Memory.Prefill.Servers, m.Memory.Decode.Servers
}

// learnColdStart notes when more servers are wanted than there are, and learns from when they
// are there how long a cold start takes.
func (m *memory) learnColdStart(s *sizing.Signals, now time.Time) {
	prefill, decode := m.wanted()
	for role, missing := range [2]int{prefill - s.Prefill.Ready, decode - s.Decode.Ready} {
		switch raised := &m.Raised[role]; {
		case missing > 0 && raised.IsZero():
			*raised = now
		case missing <= 0 && !raised.IsZero():
			if took := now.Sub(*raised); took < 3*m.ColdStart {
				m.ColdStart += (took - m.ColdStart) / 4
			}
			*raised = time.Time{}
		}
	}
}
