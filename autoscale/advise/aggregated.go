package advise

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-gateway/tandem/autoscale/mix"
)

// leastChunk is the smallest piece of a prompt, in tokens, that an engine computes in
// a step beside its batch; with less prefill would never end.
const leastChunk = 64

// cycles is how many step times up to the objective are tried.
const cycles = 40

// aggregated is the fewest servers of a variant that prefill and decode both, within
// the objectives; false if none can. They may be two fleets, one for the longest prompts:
// these leave room for few answers beside them, and are rare.
func aggregated(v *mix.Variant, all []mix.Class, use float64) (servers int, ok bool) {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b mix.Class) int {
		return cmp.Compare(alone(v, &a), alone(v, &b))
	})
	least := math.Inf(1)
	for i := range sorted {
		least = min(least, oneFleet(v, sorted[:i], use)+oneFleet(v, sorted[i:], use))
	}
	if math.IsInf(least, 1) {
		return 0, false
	}
	return int(least), true
}

// oneFleet is the fewest equal servers for some classes, infinite if none can.
//
// In a cycle of T seconds, ITL at most, a server gives each of n sequences a token and
// computes a piece of a prompt with the time that is left:
//
//	chunk = (T - step of n) / seconds per prompt token
//	servers = max(prompt tokens per second x T / chunk, output tokens per second x T / n) / use
//
// T and n are tried.
func oneFleet(v *mix.Variant, all []mix.Class, use float64) float64 {
	if len(all) == 0 {
		return 0
	}
	w := sumUp(v, all)
	least := math.Inf(1)
	for i := 1; i <= cycles; i++ {
		cycle := w.itl * float64(i) / cycles
		for n := 1.0; n*w.context <= float64(v.Capacity.KVTokens); n++ {
			if most := v.Capacity.MaxSequences; most > 0 && n > float64(most) {
				break
			}
			step := v.Capacity.Step[0] + n*(v.Capacity.Step[1]+v.Capacity.Step[2]*w.context/1e6)
			chunk := (cycle - step) / w.perToken
			if chunk < leastChunk {
				break
			}
			// The longest prompt advances by a chunk in each cycle.
			if w.longest/w.perToken/chunk*cycle <= w.ttft {
				least = min(least, max(w.prompts*cycle/chunk, w.outputs*cycle/n)/use)
			}
		}
	}
	return math.Ceil(least)
}

// alone is the seconds of a class's prefill with a server to itself.
func alone(v *mix.Variant, c *mix.Class) float64 {
	return v.Capacity.PrefillSeconds(c.Uncached, c.Prompt-c.Uncached)
}

// whole is what all classes together ask of a variant.
type whole struct {
	prompts, outputs float64 // tokens per second
	perToken         float64 // seconds of prefill, at these lengths
	context          float64 // tokens of a sequence on the mean
	longest          float64 // seconds of the longest class's prefill alone
	itl, ttft        float64 // seconds: the tightest
}

func sumUp(v *mix.Variant, all []mix.Class) whole {
	w := whole{itl: math.Inf(1), ttft: math.Inf(1)}
	busy := 0.0
	for i := range all {
		c := &all[i]
		prefill := alone(v, c)
		busy += c.Rate * prefill
		w.prompts += c.Rate * c.Uncached
		w.outputs += c.Rate * c.Output
		w.context += c.Rate * c.Output * (c.Prompt + c.Output/2)
		w.longest = max(w.longest, prefill)
		w.itl, w.ttft = min(w.itl, c.ITL.Seconds()), min(w.ttft, c.TTFT.Seconds())
	}
	w.perToken = busy / w.prompts
	w.context /= w.outputs
	return w
}
