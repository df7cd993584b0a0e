package pd

import (
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pools"
)

// CostModel holds what is the same for every choice.
type CostModel struct {
	HandOff         time.Duration // a second leg instead of one: its round trip and handling
	BlockTokens     int           // below one block there is nothing to hand over
	KVBytesPerToken int
	Reference       pools.Curve // prefill at the speed that others' waiting is priced at
	CPULoad         float64     // bytes per second from a server's CPU memory to its GPU
	DiskLoad        float64     // likewise from its disk
	DecodeReuse     bool        // decode takes over only the blocks that it lacks
}

// DefaultCost assumes 128 KiB of KV per token (Llama 3.1 8B in bf16) and vLLM's
// blocks.
func DefaultCost() CostModel {
	return CostModel{
		HandOff:         2 * time.Millisecond,
		BlockTokens:     16,
		KVBytesPerToken: 128 << 10,
		Reference:       pools.Default().Prefill,
		CPULoad:         20e9, // PCIe 4 x16, less its overhead
		DiskLoad:        3e9,  // one NVMe drive
		DecodeReuse:     true,
	}
}

// Validate reports what is wrong with the model, nil if nothing.
func (m *CostModel) Validate() error {
	if m.KVBytesPerToken <= 0 || m.BlockTokens <= 0 || m.HandOff < 0 {
		return errors.New("kv-bytes-per-token and block-tokens must be positive")
	}
	return nil
}

// Terms are the parts of an alternative's cost, each a time on the way to the
// first token, save Burden: the delay that the choice puts on others.
type Terms struct {
	Queue    time.Duration // work ahead on the server that prefills
	Prefill  time.Duration
	Transfer time.Duration // KV on the link, and the second leg
	Room     time.Duration // until the decode server has KV room
	Step     time.Duration // one decode step there
	Burden   time.Duration // those who wait for prefill wait longer; on a decode server its batch stalls
}

// Total is what alternatives are compared by.
func (t *Terms) Total() time.Duration {
	return t.Queue + t.Prefill + t.Transfer + t.Room + t.Step + t.Burden
}

// TTFT is the part of it that the request itself waits for.
func (t *Terms) TTFT() time.Duration { return t.Total() - t.Burden }

// prefill is the time that c needs for the part of the prompt that it lacks, and
// to load what it holds in slower memory: the best of using its GPU only, also CPU
// memory, also disk.
func (m *CostModel) prefill(c *Candidate, promptTokens int) time.Duration {
	best := m.compute(c.Prefill, promptTokens, c.Cached.GPU)
	for tier, speed := range [...]float64{kvstate.CPU: m.CPULoad, kvstate.Disk: m.DiskLoad} {
		extra := c.Cached.In(kvstate.Tier(tier)) - c.Cached.GPU
		if speed <= 0 || extra <= 0 {
			continue
		}
		load := time.Duration(float64(extra) * float64(m.KVBytesPerToken) / speed * float64(time.Second))
		best = min(best, load+m.compute(c.Prefill, promptTokens, c.Cached.GPU+extra))
	}
	return best
}

// compute is the time of a prefill behind cached tokens. The last token is
// computed in any case.
func (m *CostModel) compute(curve pools.Curve, promptTokens, cached int) time.Duration {
	cached = max(0, min(cached, promptTokens-1))
	return curve.Time(pools.PrefillFeatures(promptTokens-cached, cached))
}

// reference is the time of the same prefill at the reference speed. Priced at each
// server's own speed, the fastest would look cheapest to everyone, and everyone
// would wait for it.
func (m *CostModel) reference(c *Candidate, promptTokens int) time.Duration {
	return m.compute(m.Reference, promptTokens, c.Cached.GPU)
}

// reused is how many tokens need not be moved to d, because it holds them.
func (m *CostModel) reused(d *Candidate) int {
	if !m.DecodeReuse {
		return 0
	}
	return d.Cached.GPU
}

// price is what a second of prefill costs those who wait for prefill: two seconds
// for each of them per server. It is what keeps short prompts off the few servers
// that hold long ones' prefixes when load is high; greedy minimisation of each
// request's own time loses near saturation.
func (m *CostModel) price(prefill []Candidate) float64 {
	waiting := 0
	for i := range prefill {
		waiting += max(0, prefill[i].Queued-1)
	}
	return 2 * float64(waiting) / float64(max(len(prefill), 1))
}

// transfer is the time to move the KV of tokens over the link, and to run a second
// leg at all. Only whole blocks move.
func (m *CostModel) transfer(link Link, tokens int) time.Duration {
	whole := tokens / m.BlockTokens * m.BlockTokens
	return m.HandOff + link.Time(float64(whole)*float64(m.KVBytesPerToken))
}

// step is one decode step on d with the new sequence in its batch.
func (m *CostModel) step(d *Candidate, tokens int) time.Duration {
	return d.Step.Time(pools.StepFeatures(d.Running+1, d.KVUsed+tokens))
}

// room is how long d needs to free the KV that it lacks for the request and for
// those that wait on it already: a batch of n sequences ends one about every
// outputTokens/n steps, and each frees about what the request needs.
func (m *CostModel) room(d *Candidate, need, outputTokens int, step time.Duration) time.Duration {
	if !d.KVKnown {
		return 0
	}
	lacking := need*(1+d.Waiting) - d.KVFree
	if lacking <= 0 {
		return 0
	}
	endings := float64(lacking) / float64(need)
	perEnding := float64(step) * float64(outputTokens) / float64(max(d.Running, 1))
	return time.Duration(endings * perEnding)
}

// burden prices a prefill on a decode server: every sequence of its batch, and
// one yet to come, waits as long as it runs.
func (m *CostModel) burden(d *Candidate, prefill time.Duration) time.Duration {
	return prefill * time.Duration(1+d.Running)
}
