package policy

import "math/rand/v2"

// View is what a policy may know when it decides about a request: the request,
// the topology, and its gateway's knowledge, old or predicted as it is.
type View struct {
	gateway *gateway
	now     float64
	job     *job
	held    []int // leading blocks of the request by server, prefill first
	pending []int // of them, those that are being computed there for others

	stored   int // leading blocks of the request in the store, as looked up for it last
	storedOf *job
	storedAt float64
}

func (v *View) scenario() *Scenario { return v.gateway.cluster.scenario }
func (v *View) hardware() *Hardware { return v.gateway.cluster.hw }

// prefillHardware is that of a prefill server, as gateways know or learn it.
func (v *View) prefillHardware(p int) *Hardware { return v.gateway.cluster.prefills[p].hw }

// Prompt is the request's length in tokens.
func (v *View) Prompt() int { return v.job.req.Prompt }

// Output is the expected length of the answer in tokens.
func (v *View) Output() int { return int(v.gateway.learned.outputs.mean()) }

// Prefills and Decodes are the numbers of servers.
func (v *View) Prefills() int { return v.scenario().Prefill }
func (v *View) Decodes() int  { return v.scenario().Decode }

// PrefillRack and DecodeRack are topology labels.
func (v *View) PrefillRack(p int) int { return v.scenario().prefillRack(p) }
func (v *View) DecodeRack(d int) int  { return v.scenario().decodeRack(d) }

// PrefillHit and DecodeHit are the leading tokens that a server is believed to
// hold. One token is always computed.
func (v *View) PrefillHit(p int) int {
	held := v.held[p] * blockTokens
	if p == v.job.pair.Prefill {
		held = max(held, v.job.done)
	}
	return min(held, v.job.req.Prompt-1)
}

// PrefillPending is how many of those tokens p is computing for other requests.
func (v *View) PrefillPending(p int) int { return v.pending[p] * blockTokens }

// DecodePending is how many of DecodeHit's tokens d is computing for other requests.
func (v *View) DecodePending(d int) int {
	pending := v.pending[v.Prefills()+d] * blockTokens
	if d == v.job.pair.Decode {
		pending = min(pending, v.DecodeHit(d)-v.job.done)
	}
	return pending
}

func (v *View) DecodeHit(d int) int {
	held := v.held[v.Prefills()+d] * blockTokens
	if d == v.job.pair.Decode {
		held = max(held, v.job.done)
	}
	return min(held, v.job.req.Prompt)
}

// PrefillSeconds is the predicted time of the prefill alone on p, at the speed
// that p has shown.
func (v *View) PrefillSeconds(p int) float64 {
	return v.NominalSeconds(p) * v.speed(p)
}

// speed multiplies the time of the request on a server of nominal speed.
func (v *View) speed(p int) float64 {
	if v.gateway.cluster.exact {
		return v.job.noise * v.gateway.cluster.prefills[p].speed
	}
	return v.gateway.learned.speeds[p].mean()
}

// PrefillSecondsHolding is the same if p held so many tokens of the prompt.
func (v *View) PrefillSecondsHolding(p, tokens int) float64 {
	return v.prefillHardware(p).prefill(v.Prompt(), tokens) * v.gateway.learned.speeds[p].mean()
}

// CopySeconds is the predicted time to copy what one prefill server holds of the prompt to another
// that lacks it, with the links to itself.
func (v *View) CopySeconds(from, to int) float64 {
	bytes := float64(v.PrefillHit(from)-v.PrefillHit(to)) * v.hardware().KVBytesPerToken
	if v.PrefillRack(from) == v.PrefillRack(to) {
		return bytes / v.hardware().NIC
	}
	return bytes / v.scenario().across()
}

// NominalSeconds is PrefillSeconds on a server of nominal speed.
func (v *View) NominalSeconds(p int) float64 {
	return v.prefillHardware(p).prefill(v.Prompt(), v.PrefillHit(p))
}

// QueueSeconds is the predicted time until p has done all that was sent to it.
func (v *View) QueueSeconds(p int) float64 {
	return v.gateway.account.prefill[p].work.Ahead(clockTime(v.now)).Seconds()
}

// PrefillRequests, PrefillTokens and PrefillPrompts count what was sent to p and
// is not prefilled: requests, tokens not cached, tokens in all.
func (v *View) PrefillRequests(p int) int { return v.gateway.account.prefill[p].work.Len() }
func (v *View) PrefillTokens(p int) int   { return v.gateway.account.prefill[p].tokens }
func (v *View) PrefillPrompts(p int) int  { return v.gateway.account.prefill[p].prompts }

// PrefillProgress is how many of PrefillTokens p is predicted to have computed, of
// the oldest request.
func (v *View) PrefillProgress(p int) float64 {
	a := &v.gateway.account.prefill[p]
	return a.work.Progress(clockTime(v.now)) * float64(a.oldestTokens())
}

// DecodeRequests and DecodeContext count what was sent to pairs of d and has not
// ended: requests, and their prompt tokens.
func (v *View) DecodeRequests(d int) int { return v.gateway.account.decode[d].requests }
func (v *View) DecodeContext(d int) int  { return v.gateway.account.decode[d].context }

// DecodePrompts is how many prompt tokens d has still to compute itself, of requests
// without a prefill server.
func (v *View) DecodePrompts(d int) int { return v.gateway.account.decode[d].tokens }

// DecodeUsed is the KV tokens on d that are in use, as the streams show by their
// age, or promised to requests on their way.
func (v *View) DecodeUsed(d int) int {
	a := &v.gateway.account.decode[d]
	elapsed := float64(a.streaming)*v.now - a.began
	return a.context + int(elapsed/v.hardware().step(a.requests, a.context))
}

// DecodeCapacity is the KV memory of a decode server in tokens.
func (v *View) DecodeCapacity() int { return v.hardware().DecodeCapacity }

// StepSeconds is the predicted time of a decode step on d with this request in
// its batch.
func (v *View) StepSeconds(d int) float64 {
	return v.hardware().step(v.DecodeRequests(d)+1, v.DecodeContext(d)+v.Prompt())
}

// RoomSeconds is the predicted wait for KV room on d: a batch of n sequences ends
// one about every output/n steps, and each frees what an average one has.
func (v *View) RoomSeconds(d int) float64 {
	used := v.DecodeUsed(d)
	lacking := used + v.Prompt() - v.DecodeCapacity()
	if lacking <= 0 {
		return 0
	}
	requests := float64(max(1, v.DecodeRequests(d)))
	endings := float64(lacking) * requests / float64(max(1, used))
	return endings * v.StepSeconds(d) * float64(v.Output()) / requests
}

// PrefillGauge and DecodeGauge are what a server's gauges were when they were
// last read.
func (v *View) PrefillGauge(p int) Gauge {
	return v.gateway.cluster.prefills[p].gauge.read(v.now - v.scenario().GaugeAge)
}
func (v *View) DecodeGauge(d int) Gauge {
	return v.gateway.cluster.decodes[d].gauge.read(v.now - v.scenario().GaugeAge)
}

// MissingBytes is the KV that d is believed to lack.
func (v *View) MissingBytes(d int) float64 {
	return float64(v.Prompt()-v.DecodeHit(d)) * v.hardware().KVBytesPerToken
}

// TransferSeconds is the predicted time to move what d lacks from p, with the
// links to itself.
func (v *View) TransferSeconds(p, d int) float64 {
	return v.MissingBytes(d)/v.scenario().bandwidth(p, d) + v.scenario().handOff()
}

// Tie draws a number below n.
func (v *View) Tie(n int) int { return v.gateway.rng.IntN(n) }

// best returns the index below n with the least cost; equal ones share.
func best(rng *rand.Rand, n int, cost func(i int) float64) int {
	chosen, least, equals := -1, 0.0, 0
	for i := range n {
		switch c := cost(i); {
		case equals == 0 || c < least:
			chosen, least, equals = i, c, 1
		case c == least:
			equals++
			if rng.IntN(equals) == 0 {
				chosen = i
			}
		}
	}
	return chosen
}

// bestPrefill and bestDecode return the server with the least cost.
func (v *View) bestPrefill(cost func(p int) float64) int {
	return best(v.gateway.rng, v.Prefills(), cost)
}
func (v *View) bestDecode(cost func(d int) float64) int {
	return best(v.gateway.rng, v.Decodes(), cost)
}
