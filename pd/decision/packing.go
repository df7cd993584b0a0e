package decision

import (
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/packing"
)

// mostPacked is of how many servers at most a decision is packed. One of more takes longer to pack than the collector
// takes to walk through it as long as it is remembered whole: of 16 x 16 servers it costs 11.4 us to remember packed and
// 9.1 as it is, the collector's walk included, and of 32 x 32 20 and 11 (BenchmarkRecords_Add).
const mostPacked = 16

// Packs reports whether Records pack a decision as it is, and keep nothing of its memory.
func (d *Record) Packs() bool { return d.Ended && d.canPack() }

// canPack reports whether a decision is small enough to be packed, and nothing of it would be lost.
func (d *Record) canPack() bool {
	servers := 0
	for i := range d.Choices {
		f := &d.Choices[i].Candidates
		if !f.CanPack() {
			return false
		}
		servers += len(f.Prefill) + len(f.Decode)
	}
	return servers <= mostPacked
}

// pack writes or reads a decision.
func (d *Record) pack(x *packing.Coder) {
	packing.Text(x, &d.RequestID)
	packing.Text(x, &d.Model)
	packing.Text(x, &d.API)
	x.Time(&d.At)
	packing.Text(x, &d.Outcome)
	x.Bool(&d.Ended)
	for i := range packing.Slice(x, &d.Choices) {
		d.Choices[i].pack(x)
	}
}

func (c *Choice) pack(x *packing.Coder) {
	c.Demand.Pack(x)
	packing.Text(x, &c.Prompt.By)
	packing.Int(x, &c.Prompt.Tokens)
	x.Bool(&c.Prompt.Whole)
	packing.Text(x, &c.Prompt.Unknown)
	x.Bool(&c.Prompt.Guessed)
	c.Candidates.Pack(x)
	c.Chosen.Pack(x)
	packing.Text(x, &c.Reason)
	packing.Text(x, &c.Mismatch)
	packing.Text(x, &c.FirstToken.Use)
	packing.Text(x, &c.FirstToken.Reason)
	packing.Text(x, &c.FirstToken.Field)
	packing.Text(x, &c.AnswerKV.Server)
	packing.Int(x, &c.AnswerKV.Tokens)
	packing.Text(x, &c.AnswerKV.Outcome)
	packing.Text(x, &c.Fetch.Server)
	packing.Int(x, &c.Fetch.Tokens)
	packing.Text(x, &c.Fetch.Outcome)
	packing.Int(x, &c.Fetch.Took)
	x.Bool(&c.Panic)
	packing.Text(x, &c.Outcome)
	packing.Int(x, &c.Measured.Prefill)
	packing.Int(x, &c.Measured.Transfer)
	packing.Int(x, &c.Measured.FirstToken)
	packing.Int(x, &c.Measured.Whole)
	for _, n := range []*api.Count{&c.Measured.Usage.Prompt, &c.Measured.Usage.Output, &c.Measured.Usage.Cached} {
		packing.Int(x, &n.Tokens)
		x.Bool(&n.Known)
	}
}

// pages hold packed decisions, in the order in which they were packed. A page goes when nothing on it is remembered.
type pages struct {
	all     []page
	free    []int32
	current int32
	spare   []byte // of the writer, for one decision
}

type page struct {
	data []byte
	used int // decisions on it
}

// place is where a packed decision lies.
type place struct{ page, from, to int32 }

// pageBytes is how long a page is, unless one decision is longer.
const pageBytes = 64 << 10

// write packs a decision.
func (p *pages) write(d *Record) place {
	x := packing.Writer(p.spare[:0])
	d.pack(&x)
	p.spare = x.Data()
	n := len(p.spare)
	if len(p.all) == 0 || cap(p.all[p.current].data)-len(p.all[p.current].data) < n {
		p.turn(max(pageBytes, n))
	}
	into := &p.all[p.current]
	from := len(into.data)
	into.data, into.used = append(into.data, p.spare...), into.used+1
	if cap(p.spare) > pageBytes {
		p.spare = nil
	}
	return place{p.current, int32(from), int32(from + n)}
}

// turn begins a page.
func (p *pages) turn(size int) {
	if len(p.all) > 0 && p.all[p.current].used == 0 {
		p.drop(p.current)
	}
	fresh := page{data: make([]byte, 0, size)}
	if last := len(p.free) - 1; last >= 0 {
		p.current, p.free = p.free[last], p.free[:last]
		p.all[p.current] = fresh
		return
	}
	p.current = int32(len(p.all))
	p.all = append(p.all, fresh)
}

func (p *pages) drop(at int32) {
	p.all[at] = page{}
	p.free = append(p.free, at)
}

// read unpacks a decision.
func (p *pages) read(at place) (d Record) {
	x := packing.Reader(p.all[at.page].data[at.from:at.to])
	d.pack(&x)
	return d
}

// forget lets a packed decision go.
func (p *pages) forget(at place) {
	on := &p.all[at.page]
	if on.used--; on.used == 0 && at.page != p.current {
		p.drop(at.page)
	}
}
