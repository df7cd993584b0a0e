// Package packing writes values into bytes without a pointer and reads them back, for what is kept by the ten
// thousand and read by hardly anyone: the garbage collector walks through all that has pointers.
package packing

import (
	"encoding/binary"
	"math"
	"math/bits"
	"time"
)

// Coder writes values, or reads them back: the same calls in the same order do both, so that what is written and
// what is read cannot differ, and reading has no errors. It is for bytes that a Writer of this process wrote: any others
// may make it panic. What is written is left alone: others may read it meanwhile. Small numbers, empty texts and round
// fractions take a byte or two.
type Coder struct {
	data  []byte
	reads bool
}

// Writer returns a coder that appends to data.
func Writer(data []byte) Coder { return Coder{data: data} }

// Reader returns a coder that reads data, which a Writer wrote.
func Reader(data []byte) Coder { return Coder{data: data, reads: true} }

// Reads reports whether it reads.
func (c *Coder) Reads() bool { return c.reads }

// Data is what was written, or what is left to be read.
func (c *Coder) Data() []byte { return c.data }

// Uint is a number that is not negative.
func (c *Coder) Uint(p *uint64) {
	if c.reads {
		*p = c.take()
		return
	}
	c.put(*p)
}

// put writes a number: mostly a small one. It is short, to be written out where it is called: of a decision there are
// a hundred.
func (c *Coder) put(v uint64) {
	if v < 0x80 {
		c.data = append(c.data, byte(v))
		return
	}
	c.putLong(v)
}

func (c *Coder) putLong(v uint64) { c.data = binary.AppendUvarint(c.data, v) }

func (c *Coder) take() uint64 {
	v, n := binary.Uvarint(c.data)
	c.data = c.data[n:]
	return v
}

// Int is a number, such as a time span.
func Int[T ~int | ~int64](c *Coder, p *T) {
	if c.reads {
		v := c.take()
		*p = T(int64(v>>1) ^ -int64(v&1))
		return
	}
	c.put(uint64(*p)<<1 ^ uint64(int64(*p)>>63))
}

// Float is a number with a fraction: its leading bytes, behind how many there are. A round one ends in bytes of zero.
func (c *Coder) Float(p *float64) {
	if !c.reads {
		v := math.Float64bits(*p)
		if v == 0 {
			c.put(0)
			return
		}
		n := 8 - bits.TrailingZeros64(v)/8
		c.data = binary.BigEndian.AppendUint64(append(c.data, byte(n)), v)
		c.data = c.data[:len(c.data)-8+n]
		return
	}
	var leading [8]byte
	n := 1 + int(c.data[0])
	copy(leading[:], c.data[1:n])
	*p, c.data = math.Float64frombits(binary.BigEndian.Uint64(leading[:])), c.data[n:]
}

// Bool is a truth.
func (c *Coder) Bool(p *bool) {
	if c.reads {
		*p = c.take() != 0
		return
	}
	var v uint64
	if *p {
		v = 1
	}
	c.put(v)
}

// Text is a string. What is read is a copy.
func Text[T ~string](c *Coder, p *T) {
	if c.reads {
		n := int(c.take())
		*p, c.data = T(c.data[:n]), c.data[n:]
		return
	}
	c.put(uint64(len(*p)))
	if *p != "" {
		c.data = append(c.data, *p...)
	}
}

// Time is a moment, without its location and without what a monotonic clock said.
func (c *Coder) Time(p *time.Time) {
	seconds, rest := p.Unix(), int64(p.Nanosecond())
	Int(c, &seconds)
	Int(c, &rest)
	if c.reads {
		*p = time.Unix(seconds, rest)
	}
}

// Len is how many values follow: as many as are given where it writes.
func (c *Coder) Len(n int) int {
	v := uint64(n)
	c.Uint(&v)
	return int(v)
}

// Slice gives a slice that is read its length, and returns it. Its values are the caller's to write or read.
func Slice[T any](c *Coder, p *[]T) []T {
	n := c.Len(len(*p))
	if c.reads {
		*p = nil
		if n > 0 {
			*p = make([]T, n)
		}
	}
	return *p
}
