package scaling

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tandem-gateway/tandem/loadtest/policy"
	"github.com/tandem-gateway/tandem/pd/order"
)

// request is one request of a load. Times are in seconds of the run, sizes in tokens.
type request struct {
	at         float64
	prompt     int
	uncached   int // of the prompt: what prefill computes
	output     int
	queueEntry order.Ticket // while it waits for prefill
}

// traceBlock is the size in tokens of a block in Mooncake's traces.
const traceBlock = 512

// spread is how far copies of one request of the trace are strewn, in seconds.
const spread = 30.0

// buildLoad repeats the trace to the scenario's length, and takes each request as
// often as the scenario's factor at its time says. Copies belong to different
// users: each finds cached what the request of the trace found.
func buildLoad(t *policy.Trace, s *Scenario, seed uint64) []request {
	rng := rand.New(rand.NewPCG(seed, 7))
	uncached := uncachedTokens(t)
	span := t.Requests[len(t.Requests)-1].Stamp + stampStep
	var load []request
	for begin := 0.0; begin < s.Seconds; begin += span {
		for i, r := range t.Requests {
			at := begin + r.Stamp + rng.Float64()*stampStep
			if s.Stationary {
				at = begin + rng.Float64()*span
			}
			copies := s.factor(at)
			n := int(copies)
			if rng.Float64() < copies-float64(n) {
				n++
			}
			for range n {
				c := s.shape(at, request{prompt: r.Prompt, uncached: uncached[i], output: r.Output})
				c.at = at + (rng.Float64()-0.5)*spread
				if s.factor(c.at) > 0 && c.at >= 0 && c.at < s.Seconds {
					load = append(load, c)
				}
			}
		}
	}
	slices.SortFunc(load, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	return load
}

// stampStep is the step in seconds to which the trace rounds its stamps.
const stampStep = 3.0

// uncachedTokens is, for each request, what an unbounded prefix cache would not
// find. At least one token is always computed.
func uncachedTokens(t *policy.Trace) []int {
	seen := make([]bool, t.Blocks)
	left := make([]int, len(t.Requests))
	for i, r := range t.Requests {
		whole := r.Blocks[:r.Prompt/traceBlock]
		hits := 0
		for hits < len(whole) && seen[whole[hits]] {
			hits++
		}
		for _, b := range whole {
			seen[b] = true
		}
		left[i] = max(1, r.Prompt-hits*traceBlock)
	}
	return left
}

// factor is how often a request of the trace that is due at the time is taken.
func (s *Scenario) factor(at float64) float64 {
	if s.idle(at) {
		return 0
	}
	f := s.Low + (s.High-s.Low)*math.Pow(math.Sin(math.Pi*at/s.Seconds), 2)
	if s.Stationary {
		f = s.High
	}
	for _, b := range s.Bursts {
		if at >= b.From && at < b.From+b.Seconds {
			f *= b.Factor
		}
	}
	return f
}

func (s *Scenario) idle(at float64) bool {
	return s.IdleEvery > 0 && math.Mod(at, s.IdleEvery) >= s.IdleEvery-s.IdleSeconds
}

// shape changes lengths: those of the whole scenario, and from the shift on those
// of the mix after it.
func (s *Scenario) shape(at float64, r request) request {
	prompt, output := s.PromptFactor, s.OutputFactor
	if s.ShiftAt > 0 && at >= s.ShiftAt {
		prompt, output = prompt*s.ShiftPrompt, output*s.ShiftOutput
	}
	scale := func(tokens int, by float64) int { return max(1, int(math.Round(float64(tokens)*by))) }
	return request{prompt: scale(r.prompt, prompt), uncached: scale(r.uncached, prompt), output: scale(r.output, output)}
}
