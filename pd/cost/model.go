package cost

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// Model holds what is the same for every choice. It turns what is known of servers
// and a request into the numbers that package order compares.
type Model struct {
	HandOff         time.Duration // a second leg instead of one: its round trip and handling
	BlockTokens     int           // below one block there is nothing to hand over
	KVBytesPerToken int           // 0: as servers show it, and assumedKVBytes until one does
	CPULoad         float64       // bytes per second from a server's CPU memory to its GPU
	DiskLoad        float64       // likewise from its disk
	DecodeReuse     bool          // decode takes over only the blocks that it lacks
	ChunkTokens     int           // prompt tokens that a decode server computes between two steps of its batch
	StepTokens      int           // prompt tokens that a prefill server computes in one step at most
	// PairsFirst lets decode servers compute prompts only where no pair can, and not where
	// that is cheaper.
	PairsFirst bool
	Adapter    AdapterCost
	Rule       Rule // of choices on arrival; "" is Joint
	turns      *atomic.Uint64
}

// assumedKVBytes of KV has a token of Llama 3.1 8B in bf16.
const assumedKVBytes = 128 << 10

// Default assumes vLLM's blocks and token budget.
func Default() Model {
	return Model{
		HandOff:     2 * time.Millisecond,
		BlockTokens: 16,
		CPULoad:     20e9, // PCIe 4 x16, less its overhead
		DiskLoad:    3e9,  // one NVMe drive
		DecodeReuse: true,
		ChunkTokens: 8192, // max_num_batched_tokens
		StepTokens:  8192, // likewise
		Adapter:     DefaultAdapterCost(),
		Rule:        Joint,
		turns:       new(atomic.Uint64),
	}
}

// Validate reports what is wrong with the model, nil if nothing.
func (m *Model) Validate() error {
	if m.KVBytesPerToken < 0 || m.BlockTokens <= 0 || m.ChunkTokens <= 0 || m.StepTokens <= 0 || m.HandOff < 0 {
		return errors.New("block-tokens, decode-chunk and prefill-step must be positive, kv-bytes-per-token not negative")
	}
	if m.Rule != "" {
		if err := m.Rule.Validate(); err != nil {
			return err
		}
	}
	return m.Adapter.Validate()
}

// PriceServers writes what all requests wait for and cost on the servers of a choice, and works out
// what the prices of all have in common.
func (m *Model) PriceServers(f *Candidates, s *order.Servers) {
	s.Links, s.HandOff, f.reference = f.Links, m.HandOff.Seconds(), f.meanPrefill()
	fullStep := curve.PrefillFeatures(m.StepTokens, 0)
	f.referenceStep = stepWork(&f.reference, &fullStep)
	s.Prefill, s.Decode = resized(s.Prefill, len(f.Prefill)), resized(s.Decode, len(f.Decode))
	self := -1
	for i := range f.Prefill {
		p := &f.Prefill[i]
		p.priceLoad(&s.Prefill[i], &fullStep)
		if p.Both {
			self = f.decodeOf(p.ID, self+1)
			s.Prefill[i].Self = self
		}
	}
	s.AverageAwaiting, s.StreamDiscount, s.KVPrice = f.AverageAwaiting, f.StreamDiscount, f.KVPrice
	for i, n := range f.Awaiting {
		s.Prefill[i].Awaiting = n
	}
	for i := range f.Decode {
		f.Decode[i].priceStep(&s.Decode[i])
	}
	f.combineGroups(s.Decode)
	s.CompareSteps(f.meanStep(s))
}

// resized is a slice of n elements, whatever is in them.
func resized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// priceLoad writes what any request waits for on a prefill server: every field, one by one, since a
// literal is made first and copied then.
func (c *Candidate) priceLoad(to *order.PrefillState, fullStep *curve.Features) {
	to.Ahead, to.Forming, to.StepWork = inSeconds(c.Queue), inSeconds(c.Forming), stepWork(&c.Prefill, fullStep)
	to.PerStep = c.Prefill.Fixed()
	to.Awaiting, to.Queued, to.Stalls, to.Self, to.Rest = 0, c.Queued, c.Decodes, -1, inSeconds(c.Rest)
	to.Excluded, to.SaysFirst, to.Sending = c.Excluded, c.FirstBlock > 0, c.linkUse()
}

func (c *Candidate) linkUse() order.LinkUse {
	return order.LinkUse{Moving: inSeconds(c.Moving), Coming: inSeconds(c.Coming), ComesIn: inSeconds(c.ComesIn)}
}

// priceStep writes what any request finds on a decode server, likewise.
func (c *Candidate) priceStep(to *order.DecodeState) {
	to.Receiving = c.linkUse()
	c.nextStep = c.stepWithOneMore()
	to.Step, to.Ahead, to.PerToken = c.nextStep, inSeconds(c.Queue), c.Step.PerToken()
	to.Running, to.Queued, to.Used, to.KVRoom = c.Running, c.Queued, c.KVUsed, math.MaxInt
	to.KVComing, to.KVComesIn = c.KVComing, inSeconds(c.KVComesIn)
	if c.KVKnown {
		to.KVRoom = c.KVFree
	}
	to.Excluded, to.GoesOn, to.Protected = c.Excluded, c.FirstBlock > 0, c.Protected
}

// inSeconds is d.Seconds without its division into whole seconds and the rest: it is asked for each
// server at each choice.
func inSeconds(d time.Duration) float64 { return float64(d) / float64(time.Second) }

// worthOfStep is how many times the time that a step takes whatever is in it the prompts in it
// are to take: with eight, no more than a ninth of a server's time is spent on the former.
const worthOfStep = 8

// stepWork is the seconds of prompts that make a step of a prefill server worth while: so many
// that its fixed part hardly counts, or all that its budget of tokens, fullStep, lets in.
func stepWork(c *curve.Curve, fullStep *curve.Features) float64 {
	fixed := c.Fixed()
	return min(worthOfStep*fixed, max(0, fullStep.On(c)-fixed))
}

// PriceRequest writes what a request needs on each server of candidates that PriceServers has seen.
func (m *Model) PriceRequest(r Demand, f *Candidates, t *order.Ticket) {
	t.Tokens, t.Output, t.PairsFirst = r.PromptTokens, float64(r.OutputTokens), m.PairsFirst
	t.TTFT, t.ITL, t.Weights = r.TTFT.Seconds(), r.ITL.Seconds(), r.Objective.Of(r.TTFT.Seconds()).Weights()
	t.FirstFromPrefill = r.FirstFromPrefill && !f.endsWithBlock(r)
	t.PerStep, t.StepWork, t.Eviction = f.reference.Fixed(), f.referenceStep, f.eviction(&r)
	t.Resize(len(f.Prefill), len(f.Decode))
	t.PrefillReady, t.DecodeReady, t.StreamShare = t.PrefillReady[:0], t.DecodeReady[:0], t.StreamShare[:0]
	handsOver, work := f.handsOver(r, m.BlockTokens), newWork(r.PromptTokens)
	for i := range f.Prefill {
		p := &f.Prefill[i]
		t.Prefill[i], t.Reference[i] = math.Inf(1), 0
		if handsOver && !p.NoPair {
			t.Prefill[i] = m.prefill(p, &work)
			t.Reference[i] = work.behind(m.prefix(p, &work)).On(&f.reference) + m.fetching(p, &work)
		}
		t.PrefillReady = readyAt(t.PrefillReady, i, p.Ready)
	}
	t.Follows = f.follows(t.FollowsOn)
	t.HardwareMismatch = hardwareMismatches(t.HardwareMismatch[:0], r, f, t.Prefill)
	for i := range f.Decode {
		d := &f.Decode[i]
		t.Missing[i], t.Aggregated[i], t.Stall[i], t.LongGaps[i] = math.Inf(1), math.Inf(1), 0, 0
		if !d.NoPair {
			t.Missing[i] = m.missing(d, &work)
		}
		if !d.NoAggregated {
			t.Aggregated[i] = m.prefill(d, &work)
			pieces := r.decodePieces(d, t.Aggregated[i])
			if t.ITL > 0 {
				t.Stall[i] = m.stall(d, &work, pieces, t.Aggregated[i])
			}
			if pieces.Seconds > 0 {
				t.StreamShare = shareAt(t.StreamShare, i, streamShare)
			}
			pauses, seconds := m.pauses(d, &work, pieces, t.Aggregated[i])
			t.Aggregated[i] += seconds
			t.LongGaps[i] = 1 + pauses
		}
		t.DecodeReady = readyAt(t.DecodeReady, i, d.Ready)
	}
}

// WorthFollowing is how many tokens that are being computed, or pulled, make a request wait for them.
const WorthFollowing = 1024

// follows reports whether a beginning of a request's prompt that no prefill server has is being computed
// on one of them for another request, and writes on which ones any is.
func (f *Candidates) follows(on []bool) bool {
	most, confirmed := 0, 0
	for i := range f.Prefill {
		held := &f.Prefill[i].Cached
		on[i] = held.Pending >= WorthFollowing
		most, confirmed = max(most, held.GPU), max(confirmed, held.Confirmed())
	}
	return most-confirmed >= WorthFollowing
}

// readyAt notes when server i can take the request. The list ends with the last that
// cannot at once: it is empty for most requests.
func readyAt(list []float64, i int, ready time.Duration) []float64 {
	if ready <= 0 {
		return list
	}
	for len(list) < i {
		list = append(list, 0)
	}
	return append(list, ready.Seconds())
}

// shareAt notes the share of server i, and that those before it without one lose all.
func shareAt(list []float64, i int, share float64) []float64 {
	for len(list) < i {
		list = append(list, 1)
	}
	return append(list, share)
}

// handsOver reports whether pairs are worth pricing. Less than one block cannot be handed
// over, decode would compute it again; where no server runs alone they are, since those
// engines hand over any number of tokens.
func (f *Candidates) handsOver(r Demand, blockTokens int) bool {
	if r.PromptTokens >= blockTokens {
		return true
	}
	for i := range f.Decode {
		if !f.Decode[i].NoAggregated {
			return false
		}
	}
	return true
}

// endsWithBlock reports whether a prompt is known to end with a KV block of the servers that
// could say its first token: decode says that one then.
func (f *Candidates) endsWithBlock(r Demand) bool {
	if !r.Exact {
		return false
	}
	looked := 0 // at blocks of so many tokens, which is what most servers have
	for i := range f.Prefill {
		if block := f.Prefill[i].FirstBlock; block > 0 && block != looked {
			if looked = block; r.PromptTokens%block == 0 {
				return true
			}
		}
	}
	return false
}

// meanPrefill is the mean of the prefill servers' curves.
func (f *Candidates) meanPrefill() (mean curve.Curve) {
	if f.Whole != nil {
		return f.Whole.Reference
	}
	share := 1 / float64(max(len(f.Prefill), 1))
	for i := range f.Prefill {
		curve := &f.Prefill[i].Prefill
		for k := range mean {
			mean[k] += share * curve[k]
		}
	}
	return mean
}

// missing is the bytes of KV that d lacks, of what it computes now too: that is seldom there before
// prefill has computed the rest. Only whole blocks move.
func (m *Model) missing(d *Candidate, w *work) float64 {
	tokens := w.prompt
	if m.DecodeReuse {
		tokens -= min(tokens, d.Cached.Confirmed())
	}
	if each := m.TokenBytes(d); tokens != w.moved || each != w.each {
		w.moved, w.each, w.bytes = tokens, each, float64(tokens/m.BlockTokens*m.BlockTokens)*each
	}
	return w.bytes
}

// TokenBytes is the bytes of KV of a token that a server gets or loads: as configured, else as servers of its
// model show it, else as assumed.
func (m *Model) TokenBytes(c *Candidate) float64 {
	switch {
	case m.KVBytesPerToken > 0:
		return float64(m.KVBytesPerToken)
	case c.KVBytesPerToken > 0:
		return c.KVBytesPerToken
	}
	return assumedKVBytes
}

// pauses is how many times, and for how many seconds in all, the batch of a decode server goes on between two
// steps that compute the prompt there: by the engine's budget of tokens, or between two pieces.
func (m *Model) pauses(d *Candidate, w *work, pieces DecodePieces, prefill float64) (times, seconds float64) {
	if pieces.Seconds > 0 {
		times = pieces.pauses(prefill)
		return times, times * (m.HandOff.Seconds() + d.stepOfStreams())
	}
	times = float64((w.lacking(d) - 1) / m.ChunkTokens)
	return times, times * d.stepOfStreams()
}

// untilAStep is how many steps of its batch an engine takes until it looks at a request that comes at any time.
const untilAStep = 0.5

// BatchBeside is what the batch of a decode server that PriceServers has seen takes of the time in which it computes so
// many tokens of a prompt, not in pieces: until the engine looks at the request, and in each step that computes them.
// vLLM, vllm/v1/core/sched/scheduler.py, schedule: what runs comes first in each step.
func (m *Model) BatchBeside(d *Candidate, newTokens int) time.Duration {
	steps := 1 + max(0, newTokens-1)/m.ChunkTokens
	return Duration((untilAStep + float64(steps)) * d.stepOfStreams())
}

// stall is the longest gap that this makes in the batch's streams: a step, and a piece of the prompt,
// or the last chunk of it, which attends to all before it.
func (m *Model) stall(d *Candidate, w *work, pieces DecodePieces, prefill float64) float64 {
	if pieces.Seconds > 0 {
		return d.nextStep + min(pieces.Seconds, prefill)
	}
	chunk := min(w.lacking(d), m.ChunkTokens)
	return d.nextStep + w.behind(w.prompt-chunk).On(&d.Prefill)
}

// stepOfStreams is the seconds of its next step, 0 where nothing streams there.
func (c *Candidate) stepOfStreams() float64 {
	if c.Running == 0 {
		return 0
	}
	return c.nextStep
}

// stepWithOneMore is the seconds of its next step with one sequence more.
func (c *Candidate) stepWithOneMore() float64 {
	return c.Step.Seconds(curve.StepFeatures(c.Running+1, c.KVUsed))
}

// arrivalPrice is what a second of prefill costs requests that wait in the servers' own
// queues, and one that is yet to come.
func arrivalPrice(s *order.Servers, t *order.Ticket) float64 {
	waiting := 0
	for i := range s.Prefill {
		waiting += max(0, s.Prefill[i].Queued-1)
	}
	return t.Weights.Price(float64(waiting) / float64(max(len(s.Prefill), 1)))
}
