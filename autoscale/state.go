package autoscale

import (
	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/share"
)

// State is what is published of a model beside the signals; nothing is decided by it.
type State struct {
	Hardware []Hardware `json:"hardware"`
	// PrefillWaiting and DecodeWaiting are the requests that wait for a pool: in the queues
	// of its engines, and in the gateways'. It is what the engines alone would have reported
	// (vllm:num_requests_waiting) of requests that a gateway sends on at once.
	PrefillWaiting float64 `json:"prefill_waiting"`
	DecodeWaiting  float64 `json:"decode_waiting"`
	// KVQueued is the tokens of KV that requests without a first token will hold.
	KVQueued  float64         `json:"kv_queued"`
	TTFT, ITL demand.Attained // lately
	// Prices say which capacity is short, where there is hardware to choose from.
	Prices []mix.Price `json:"prices,omitempty"`
	// Shares say which of it serves which requests: the choice of servers reads them.
	Shares *share.Table `json:"shares,omitempty"`

	workload workload // what servers are asked for
}

// queuedForDecode is how many of those in the gateways' queues wait for decode. They wait
// for prefill, whose servers come first: unless one of these has nothing to do, or there
// are none and decode servers compute the prompts.
func queuedForDecode(g *poolState, t *demand.Total) float64 {
	if g.idlePrefill > 0 || g.prefill.Ready == 0 {
		return float64(t.Queued)
	}
	return 0
}

// wait says for which pool requests wait. Where a pool has no server, all wait for it.
func (s *State) wait(g *poolState, t *demand.Total) {
	for i := range s.Hardware {
		if s.Hardware[i].Role == pools.Prefill {
			s.PrefillWaiting += s.Hardware[i].Waiting
		} else {
			s.DecodeWaiting += s.Hardware[i].Waiting
		}
	}
	switch {
	case g.prefill.Ready == 0 && g.decode.Ready == 0:
		s.PrefillWaiting, s.DecodeWaiting = float64(t.Waiting.Requests), float64(t.Waiting.Requests)
	case g.decode.Ready == 0:
		s.DecodeWaiting = float64(t.Waiting.Requests)
	case g.prefill.Ready == 0 && g.decode.Convertible == 0:
		s.PrefillWaiting = float64(t.Waiting.Requests)
	default:
		s.DecodeWaiting += queuedForDecode(g, t)
		s.PrefillWaiting += float64(t.Queued) - queuedForDecode(g, t)
	}
}

// engines is how many engines of a role there are, if all of them grow in place.
func (s *State) engines(role pools.Role) (n int) {
	for i := range s.Hardware {
		if k := &s.Hardware[i]; k.Role == role {
			if k.Engines == 0 {
				return 0
			}
			n += k.Engines
		}
	}
	return n
}

// backlog is the seconds that a pool's servers need for what waits, and whether that can
// be said: not where there are none.
func backlog(tokens, speed float64, ready int) (seconds float64, known bool) {
	if ready == 0 || !(speed > 0) {
		return 0, false
	}
	return tokens / (speed * float64(ready)), true
}
