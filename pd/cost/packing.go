package cost

import (
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/packing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// CanPack reports whether Pack keeps all of the candidates that Explain reads. A table of hardware is shared by many
// decisions, and is not packed with each.
func (f *Candidates) CanPack() bool {
	return f.Shares == nil && (f.Links == nil || len(f.Decode) == 0 || f.Links.Prefills(len(f.Decode)) == len(f.Prefill))
}

// Pack writes or reads all that Explain reads: neither what only links or classes of hardware follow from, nor how well
// curves are known, which speeds were judged by before the choice.
func (f *Candidates) Pack(x *packing.Coder) {
	for i := range packing.Slice(x, &f.Prefill) {
		f.Prefill[i].pack(x)
	}
	for i := range packing.Slice(x, &f.Decode) {
		f.Decode[i].pack(x)
	}
	for i := range packing.Slice(x, &f.Awaiting) {
		packing.Int(x, &f.Awaiting[i])
	}
	x.Float(&f.AverageAwaiting)
	x.Float(&f.StreamDiscount)
	x.Float(&f.KVPrice)
	f.packWhole(x)
	has := f.Links != nil
	if x.Bool(&has); !has {
		return
	}
	if x.Reads() {
		f.Links = order.NewLinkTable(len(f.Prefill), len(f.Decode))
	}
	x.Float(&f.Links.Fastest)
	for p := range f.Prefill {
		packRow(x, f.Links, p, len(f.Decode))
	}
}

func (f *Candidates) packWhole(x *packing.Coder) {
	has := f.Whole != nil
	if x.Bool(&has); !has {
		return
	}
	if x.Reads() {
		f.Whole = new(Whole)
	}
	packing.Int(x, &f.Whole.Prefills)
	packing.Int(x, &f.Whole.Decodes)
	packCurve(x, &f.Whole.Reference)
	x.Float(&f.Whole.Step)
	for i := range packing.Slice(x, &f.Whole.Groups) {
		g := &f.Whole.Groups[i]
		packing.Int(x, &g.Number)
		packing.Int(x, &g.Running)
		x.Float(&g.Step)
	}
}

// packRow writes or reads the links of a prefill server: which one before it has the same, else how many decode
// servers in turn have the same link. In a fleet all of whose links are alike it is a byte. Others may read the table
// that is written down.
func packRow(x *packing.Coder, l *order.LinkTable, p, decodes int) {
	first := p
	if !x.Reads() {
		first = l.First(p)
	}
	packing.Int(x, &first)
	latency, perByte := l.Row(p, decodes)
	switch {
	case first == p:
		packRuns(x, latency, perByte)
	case x.Reads():
		sameLatency, samePerByte := l.Row(first, decodes)
		copy(latency, sameLatency)
		copy(perByte, samePerByte)
	}
}

func packRuns(x *packing.Coder, latency, perByte []float64) {
	for d := 0; d < len(latency); {
		next := d + 1
		if !x.Reads() {
			for next < len(latency) && latency[next] == latency[d] && perByte[next] == perByte[d] {
				next++
			}
		}
		packing.Int(x, &next)
		x.Float(&latency[d])
		x.Float(&perByte[d])
		for i := d + 1; i < next && x.Reads(); i++ {
			latency[i], perByte[i] = latency[d], perByte[d]
		}
		d = next
	}
}

func (c *Candidate) pack(x *packing.Coder) {
	packing.Text(x, &c.ID)
	x.Bool(&c.Both)
	packing.Int(x, &c.Group)
	x.Bool(&c.Excluded)
	x.Bool(&c.NoPair)
	x.Bool(&c.NoAggregated)
	packing.Int(x, &c.Ready)
	packing.Int(x, &c.Queue)
	packing.Int(x, &c.Moving)
	packing.Int(x, &c.Coming)
	packing.Int(x, &c.ComesIn)
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
	x.Bool(&c.Remote.Fetched)
	packing.Int(x, &c.PieceBlock)
	packing.Int(x, &c.FirstBlock)
	packing.Int(x, &c.FetchBlock)
	packCurve(x, &c.Prefill)
	packCurve(x, &c.Step)
	packing.Int(x, &c.Running)
	packing.Int(x, &c.Decodes)
	packing.Int(x, &c.KVUsed)
	packing.Int(x, &c.KVFree)
	x.Bool(&c.KVKnown)
	packing.Int(x, &c.KVComing)
	packing.Int(x, &c.KVComesIn)
	x.Bool(&c.Protected)
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
	packing.Int(x, &r.New)
	x.Float(&r.LostShare)
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
	packing.Int(x, &a.Terms.Eviction)
	x.Bool(&a.Terms.FirstFromPrefill)
	packing.Int(x, &a.Terms.Held)
	packing.Int(x, &a.Misses)
	x.Float(&a.Price)
}
