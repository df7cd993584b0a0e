package autoscale

import (
	"cmp"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// gauge is the state of a model's servers at one moment. A unit is what is scaled: a
// pod or a group of pods, where that is known, else the ranks behind one address.
type gauge struct {
	prefill, decode Pool
	prefillSpeed    float64 // prompt tokens per second of a unit, 0 if no server tells
	decodeSpeed     float64 // output tokens per second of a unit
	kvCapacity      float64 // tokens of a unit
	kv              float64 // tokens that requests hold
}

// works are what servers are asked for on the mean.
type works struct {
	prompt, computed, output float64 // tokens
	itl                      time.Duration
}

// UnknownKV stands for room that engines do not tell: then KV decides nothing.
const UnknownKV = 1e15

// look reads the fleet for a model. Servers of both roles count as decode.
func look(servers []*pools.Server, model string, w works, now time.Time) gauge {
	var g gauge
	units := map[pools.Role]map[string]bool{pools.Prefill: {}, pools.Decode: {}}
	told := 0
	for _, s := range servers {
		h := s.Health()
		if !h.Up || s.Drain || !h.Serves(model) {
			continue
		}
		if s.Role == pools.Prefill {
			units[pools.Prefill][cmp.Or(s.Unit, s.URL)] = true
			g.prefillSpeed += w.computed / s.PrefillCurve().Seconds(pools.PrefillFeatures(int(w.computed), int(w.prompt-w.computed)))
			continue
		}
		units[pools.Decode][cmp.Or(s.Unit, s.URL)] = true
		if s.Role == pools.Both {
			g.decode.Convertible++
		}
		c := Capacity{Step: s.StepCurve(), KVTokens: int(UnknownKV)}
		load := s.FreshLoad(now)
		if load.KVTokens.Known && load.KVTokens.Value > 0 {
			c.KVTokens = int(load.KVTokens.Value)
			g.kvCapacity += load.KVTokens.Value
			told++
		}
		held := float64(s.InFlight(pools.Decode, now).Tokens)
		if load.KVUsed.Known && load.KVTokens.Known {
			held = max(held, load.KVUsed.Value*load.KVTokens.Value)
		}
		g.kv += held
		g.decodeSpeed += c.DecodeSpeed(w.itl, w.prompt+w.output/2)
	}
	g.prefill.Ready, g.decode.Ready = len(units[pools.Prefill]), len(units[pools.Decode])
	if g.prefill.Ready > 0 {
		g.prefillSpeed /= float64(g.prefill.Ready)
	}
	if g.decode.Ready > 0 {
		g.decodeSpeed /= float64(g.decode.Ready)
		g.kvCapacity /= float64(g.decode.Ready)
	}
	if told == 0 && g.decode.Ready > 0 {
		g.kvCapacity = UnknownKV
	}
	return g
}
