package pd

import (
	"errors"
	"time"
)

// Curve predicts the time of a prefill from its tokens: with n new tokens behind
// c cached ones, base + n*perToken + n*(c+n)*perContext.
type Curve struct {
	Base       time.Duration
	PerToken   time.Duration // per new token
	PerContext time.Duration // per thousand (new token x token of context)
}

// Time returns the predicted engine time.
func (c Curve) Time(newTokens, cached int) time.Duration {
	if newTokens <= 0 {
		return 0
	}
	context := float64(newTokens) * float64(newTokens+cached) / 1000
	return c.Base + time.Duration(newTokens)*c.PerToken + time.Duration(context*float64(c.PerContext))
}

// CostModel holds what is assumed of every server until it is measured.
type CostModel struct {
	Prefill         Curve
	StepBase        time.Duration // one decode step of an empty batch
	StepPerSequence time.Duration // added by each sequence in the batch
	HandOff         time.Duration // a second leg instead of one: its round trip and handling
	BlockTokens     int           // below one block there is nothing to hand over
	KVBytesPerToken int
	Links           Links
}

// DefaultCost uses the coefficients of Dynamo's mocker for prefill
// (ai-dynamo/dynamo lib/mocker/src/common/perf_model.rs: 16.5 ms + 0.0152 ms n +
// 4.2e-7 ms n^2) and of a small batch for decode, and 128 KiB of KV per token
// (Llama 3.1 8B in bf16). They are NVIDIA's defaults, not measurements of ours.
func DefaultCost() CostModel {
	return CostModel{
		Prefill:         Curve{Base: 16500 * time.Microsecond, PerToken: 15184, PerContext: 421},
		StepBase:        6 * time.Millisecond,
		StepPerSequence: 350 * time.Microsecond,
		HandOff:         2 * time.Millisecond,
		BlockTokens:     16,
		KVBytesPerToken: 128 << 10,
		Links:           DefaultLinks(),
	}
}

// Terms are the parts of an alternative's cost, each a time on the way to the
// first token, save Burden: the delay that the choice puts on others.
type Terms struct {
	Queue    time.Duration // work ahead on the server that prefills
	Prefill  time.Duration
	Transfer time.Duration // KV on the link, and the second leg
	Room     time.Duration // until the decode server has KV room
	Step     time.Duration // one decode step there
	Burden   time.Duration // prefill on a decode server stalls its batch
}

// Total is what alternatives are compared by.
func (t Terms) Total() time.Duration {
	return t.Queue + t.Prefill + t.Transfer + t.Room + t.Step + t.Burden
}

// transfer is the time to move the KV of tokens from p to d, and to run a second
// leg at all.
func (m *CostModel) transfer(p, d *Place, tokens int) time.Duration {
	whole := tokens / m.BlockTokens * m.BlockTokens
	link := m.Links.Between(*p, *d)
	bytes := float64(whole) * float64(m.KVBytesPerToken)
	return m.HandOff + link.Latency + time.Duration(bytes/link.BytesPerSecond*float64(time.Second))
}

// step is one decode step on d with the new sequence in its batch.
func (m *CostModel) step(d *Candidate) time.Duration {
	return m.StepBase + time.Duration(d.Running+1)*m.StepPerSequence
}

// room is how long d needs to free the KV that it lacks for the request and for
// those that wait on it already: a batch of n sequences ends one about every
// outputTokens/n steps, and each frees about what the request needs.
func (m *CostModel) room(d *Candidate, need, outputTokens int) time.Duration {
	if !d.KVKnown {
		return 0
	}
	lacking := need*(1+d.Waiting) - d.KVFree
	if lacking <= 0 {
		return 0
	}
	endings := float64(lacking) / float64(need)
	perEnding := float64(m.step(d)) * float64(outputTokens) / float64(max(d.Running, 1))
	return time.Duration(endings * perEnding)
}

// burden prices a prefill on a decode server: every sequence of its batch, and
// one yet to come, waits as long as it runs.
func (m *CostModel) burden(d *Candidate, prefill time.Duration) time.Duration {
	return prefill * time.Duration(1+d.Running)
}

// Validate reports what is wrong with the model, nil if nothing.
func (m *CostModel) Validate() error {
	if m.KVBytesPerToken <= 0 || m.BlockTokens <= 0 {
		return errors.New("kv-bytes-per-token and block-tokens must be positive")
	}
	for _, l := range []Link{m.Links.SameHost, m.Links.SameRack, m.Links.SameZone, m.Links.Far} {
		if !(l.BytesPerSecond > 0) {
			return errors.New("link bandwidths must be positive")
		}
	}
	return nil
}
