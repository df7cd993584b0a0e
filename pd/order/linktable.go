package order

import (
	"math"
	"slices"
)

// LinkTable holds what moving KV takes between the servers of each pair. The pair of prefill
// server p and decode server d is at index p*decodes + d.
type LinkTable struct {
	Latency        []float64 // seconds
	SecondsPerByte []float64
	// Fastest is a lower bound of SecondsPerByte, by which searches skip servers.
	Fastest float64

	firstAlike []int // by prefill server the first with the same row; empty: each has its own
}

// NewLinkTable returns a table of zeros.
func NewLinkTable(prefills, decodes int) *LinkTable {
	return &LinkTable{Latency: make([]float64, prefills*decodes), SecondsPerByte: make([]float64, prefills*decodes)}
}

// Resize makes the table as large as the fleet. What is in it then is undefined.
func (l *LinkTable) Resize(prefills, decodes int) {
	l.Latency, l.SecondsPerByte = sized(l.Latency, prefills*decodes), sized(l.SecondsPerByte, prefills*decodes)
	l.firstAlike = l.firstAlike[:0]
}

// Group finds prefill servers with equal links, as those of one rack mostly have, so that what
// follows from links is computed once for all of them. Call it after the last change of the table.
func (l *LinkTable) Group(decodes int) {
	l.firstAlike = l.firstAlike[:0]
	for p := range len(l.Latency) / max(1, decodes) {
		own := l.row(p, decodes)
		l.firstAlike = append(l.firstAlike, p)
		for q := range p {
			if l.firstAlike[q] != q {
				continue
			}
			if own.equal(l.row(q, decodes)) {
				l.firstAlike[p] = q
				break
			}
		}
	}
}

// After returns when bytes that leave at start have reached the decode server of a pair, both in
// seconds.
func (l *LinkTable) After(start float64, pair int, bytes float64) float64 {
	return pairLinks{l.Latency, l.SecondsPerByte}.after(start, pair, bytes)
}

// Part is the links between some prefill and some decode servers, of so many.
func (l *LinkTable) Part(prefills, decodes []int, all int) *LinkTable {
	part := NewLinkTable(len(prefills), len(decodes))
	if len(part.Latency) == 0 {
		return part
	}
	part.Fastest = l.Fastest
	for i, p := range prefills {
		for j, d := range decodes {
			at := i*len(decodes) + j
			part.Latency[at], part.SecondsPerByte[at] = l.Latency[p*all+d], l.SecondsPerByte[p*all+d]
		}
	}
	return part
}

// pairLinks are a run of pairs of the table: all of them, or those of one prefill server.
type pairLinks struct{ latency, perByte []float64 }

// after adds up a pair's figures, for Terms and for the searches; least does it in a loop.
func (l pairLinks) after(start float64, i int, bytes float64) float64 {
	return start + l.latency[i] + bytes*l.perByte[i]
}

// least is the least of after(0, i, bytes[i]). It is the innermost loop of a new ticket.
func (l pairLinks) least(bytes []float64) float64 {
	latency, perByte, least := l.latency[:len(bytes)], l.perByte[:len(bytes)], math.Inf(1)
	for i, n := range bytes {
		if move := latency[i] + n*perByte[i]; move < least { // min takes twice as long
			least = move
		}
	}
	return least
}

func (l pairLinks) equal(o pairLinks) bool {
	return slices.Equal(l.latency, o.latency) && slices.Equal(l.perByte, o.perByte)
}

// row is the links of a prefill server, by decode server.
func (l *LinkTable) row(p, decodes int) pairLinks {
	from, to := p*decodes, (p+1)*decodes
	return pairLinks{l.Latency[from:to], l.SecondsPerByte[from:to]}
}

// First is the first prefill server with the same links as p, as far as Group has found them.
func (l *LinkTable) First(p int) int {
	if len(l.firstAlike) == 0 {
		return p
	}
	return l.firstAlike[p]
}
