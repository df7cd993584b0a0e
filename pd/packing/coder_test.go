package packing

import (
	"math"
	"sync"
	"testing"
	"time"
)

type values struct {
	u     []uint64
	i     []int
	f     []float64
	truth []bool
	texts []string
	at    []time.Time
	span  time.Duration
}

func (v *values) pack(c *Coder) {
	for i := range Slice(c, &v.u) {
		c.Uint(&v.u[i])
	}
	for i := range Slice(c, &v.i) {
		Int(c, &v.i[i])
	}
	for i := range Slice(c, &v.f) {
		c.Float(&v.f[i])
	}
	for i := range Slice(c, &v.truth) {
		c.Bool(&v.truth[i])
	}
	for i := range Slice(c, &v.texts) {
		Text(c, &v.texts[i])
	}
	for i := range Slice(c, &v.at) {
		c.Time(&v.at[i])
	}
	Int(c, &v.span)
}

func (v *values) equal(o *values) bool {
	same := len(v.u) == len(o.u) && len(v.i) == len(o.i) && len(v.f) == len(o.f) && len(v.truth) == len(o.truth) &&
		len(v.texts) == len(o.texts) && len(v.at) == len(o.at) && v.span == o.span
	if !same {
		return false
	}
	for i := range v.u {
		same = same && v.u[i] == o.u[i]
	}
	for i := range v.i {
		same = same && v.i[i] == o.i[i]
	}
	for i := range v.f {
		same = same && math.Float64bits(v.f[i]) == math.Float64bits(o.f[i])
	}
	for i := range v.truth {
		same = same && v.truth[i] == o.truth[i]
	}
	for i := range v.texts {
		same = same && v.texts[i] == o.texts[i]
	}
	for i := range v.at {
		same = same && v.at[i].Equal(o.at[i]) && v.at[i].IsZero() == o.at[i].IsZero()
	}
	return same
}

// What is written is read back, and no byte is left.
func TestCoder_ReadsWhatItWrote(t *testing.T) {
	wrote := values{
		u: []uint64{0, 1, 127, 128, math.MaxUint64}, i: []int{0, -1, 1, math.MinInt64, math.MaxInt64},
		f:     []float64{0, 1, -0.5, math.Inf(1), math.NaN(), math.SmallestNonzeroFloat64, math.Copysign(0, -1)},
		truth: []bool{true, false}, texts: []string{"", "a", "\x00\xff"}, at: []time.Time{{}, time.Unix(1790000000, 123456789)}, span: -time.Second,
	}
	w := Writer([]byte("before"))
	wrote.pack(&w)
	data := w.Data()[len("before"):]
	var read values
	r := Reader(data)
	if read.pack(&r); len(r.Data()) != 0 || !read.equal(&wrote) {
		t.Errorf("%+v\nwant %+v: %d bytes left", read, wrote, len(r.Data()))
	}
}

// Values that others read are only read where they are written into bytes: the race detector sees any other.
func TestCoder_AWriterLeavesValuesAlone(t *testing.T) {
	v := values{[]uint64{1}, []int{-2}, []float64{3.5}, []bool{true}, []string{"four"}, []time.Time{time.Unix(5, 6)}, 7}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			x := Writer(nil)
			v.pack(&x)
			read := Reader(x.Data())
			var got values
			if got.pack(&read); !got.equal(&v) {
				t.Errorf("got %+v", got)
			}
		})
	}
	both.Wait()
}
