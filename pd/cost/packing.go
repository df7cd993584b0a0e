package cost

import (
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/packing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// CanPack reports whether Pack keeps all of the candidates that Explain reads. A table of hardware is shared by many
// decisions, and is not packed with each.
func (f *Candidates) CanPack() bool { return f.Shares == nil }

// Pack writes or reads all that Explain reads.
func (f *Candidates) Pack(x *packing.Coder) {
	for i := range packing.Slice(x, &f.Prefill) {
		f.Prefill[i].pack(x)
	}
	for i := range packing.Slice(x, &f.Decode) {
		f.Decode[i].pack(x)
	}
	has := f.Links != nil
	if x.Bool(&has); !has {
		return
	}
	if x.Reads() {
		f.Links = &order.LinkTable{}
	}
	for i := range packing.Slice(x, &f.Links.Latency) {
		x.Float(&f.Links.Latency[i])
	}
	for i := range packing.Slice(x, &f.Links.SecondsPerByte) {
		x.Float(&f.Links.SecondsPerByte[i])
	}
	x.Float(&f.Links.Fastest)
}

func (c *Candidate) pack(x *packing.Coder) {
	packing.Text(x, &c.ID)
	x.Uint(&c.Class)
	packing.Text(x, &c.Topology.Host)
	packing.Text(x, &c.Topology.Rack)
	packing.Text(x, &c.Topology.Zone)
	x.Bool(&c.Both)
	packing.Int(x, &c.Kind)
	packing.Int(x, &c.Group)
	x.Bool(&c.Excluded)
	x.Bool(&c.NoPair)
	x.Bool(&c.NoAggregated)
	packing.Int(x, &c.Ready)
	packing.Int(x, &c.Queue)
	packing.Int(x, &c.Moving)
	packing.Int(x, &c.Forming)
	packing.Int(x, &c.Queued)
	packing.Int(x, &c.Rest)
	packing.Int(x, &c.Cached.GPU)
	packing.Int(x, &c.Cached.CPU)
	packing.Int(x, &c.Cached.Disk)
	packing.Int(x, &c.Cached.Pending)
	packing.Text(x, &c.Remote.Server)
	packing.Int(x, &c.Remote.Tokens)
	x.Float(&c.Remote.Latency)
	x.Float(&c.Remote.PerByte)
	x.Bool(&c.Remote.Answer)
	packing.Int(x, &c.PieceBlock)
	packing.Int(x, &c.FirstBlock)
	packCurve(x, &c.Prefill)
	packCurve(x, &c.Step)
	x.Float(&c.PrefillKnown)
	x.Float(&c.StepKnown)
	x.Float(&c.PrefillError)
	x.Float(&c.StepError)
	packing.Int(x, &c.Running)
	packing.Int(x, &c.Decodes)
	packing.Int(x, &c.KVUsed)
	packing.Int(x, &c.KVFree)
	x.Bool(&c.KVKnown)
	x.Float(&c.KVBytesPerToken)
}

func packCurve(x *packing.Coder, c *curve.Curve) {
	for i := range c {
		x.Float(&c[i])
	}
}

// Pack writes or reads a demand.
func (r *Demand) Pack(x *packing.Coder) {
	packing.Int(x, &r.PromptTokens)
	packing.Int(x, &r.OutputTokens)
	packing.Int(x, &r.Waited)
	packing.Int(x, &r.TTFT)
	packing.Int(x, &r.ITL)
	packing.Int(x, &r.Gap)
	packing.Text(x, &r.Objective)
	packing.Text(x, &r.Home.Prefill)
	packing.Text(x, &r.Home.Decode)
	x.Bool(&r.FirstFromPrefill)
	x.Bool(&r.Exact)
}

// Pack writes or reads an alternative.
func (a *Alternative) Pack(x *packing.Coder) {
	packing.Text(x, &a.Prefill)
	packing.Text(x, &a.Decode)
	packing.Int(x, &a.Terms.Ready)
	packing.Int(x, &a.Terms.Queue)
	packing.Int(x, &a.Terms.Prefill)
	packing.Int(x, &a.Terms.Transfer)
	packing.Int(x, &a.Terms.KVRoom)
	packing.Int(x, &a.Terms.Step)
	packing.Int(x, &a.Terms.DecodeCost)
	packing.Int(x, &a.Terms.DelayToOthers)
	packing.Int(x, &a.Terms.HardwareMismatch)
	x.Bool(&a.Terms.FirstFromPrefill)
	packing.Int(x, &a.Terms.Held)
	packing.Int(x, &a.Misses)
	x.Float(&a.Price)
}
