package order

import (
	"math"
	"slices"
)

// LinkTable holds what moving KV takes between the servers of each pair: by prefill server a row with
// its decode servers. Prefill servers whose links are alike may share a row, as nearly all of a fleet of
// one rack do: a choice reads all links, and a row of each of hundreds would not stay in a processor's cache.
type LinkTable struct {
	Latency        []float64 // seconds, row by row
	SecondsPerByte []float64
	// Fastest is a lower bound of SecondsPerByte, by which searches skip servers.
	Fastest float64

	rows       []int // by prefill server the number of its row; empty: the p-th is that of server p
	firstAlike []int // by prefill server the first with the same row; empty: each has its own
}

// NewLinkTable returns a table of zeros, in which each prefill server has its own row.
func NewLinkTable(prefills, decodes int) *LinkTable {
	return &LinkTable{Latency: make([]float64, prefills*decodes), SecondsPerByte: make([]float64, prefills*decodes)}
}

// Reset makes the table one of so many prefill servers, which all have yet to get a row: AddRow, or ShareRow.
func (l *LinkTable) Reset(prefills int) {
	l.Latency, l.SecondsPerByte = l.Latency[:0], l.SecondsPerByte[:0]
	l.rows, l.firstAlike = sized(l.rows, prefills), l.firstAlike[:0]
}

// AddRow gives a prefill server a row of its own, of zeros.
func (l *LinkTable) AddRow(p, decodes int) (latency, perByte []float64) {
	at := len(l.Latency)
	l.rows[p] = at / max(1, decodes)
	l.Latency, l.SecondsPerByte = slices.Grow(l.Latency, decodes)[:at+decodes], slices.Grow(l.SecondsPerByte, decodes)[:at+decodes]
	clear(l.Latency[at:])
	clear(l.SecondsPerByte[at:])
	return l.Latency[at:], l.SecondsPerByte[at:]
}

// ShareRow lets a prefill server share the row of another one.
func (l *LinkTable) ShareRow(p, with int) { l.rows[p] = l.rows[with] }

// CopyRow gives a prefill server a row of its own, which is a copy of the one that it shares.
func (l *LinkTable) CopyRow(p, decodes int) {
	was := l.row(p, decodes)
	latency, perByte := l.AddRow(p, decodes)
	copy(latency, was.latency)
	copy(perByte, was.perByte)
}

// Prefills is of how many prefill servers the table is, where it has so many decode servers.
func (l *LinkTable) Prefills(decodes int) int {
	if len(l.rows) > 0 {
		return len(l.rows)
	}
	return len(l.Latency) / max(1, decodes)
}

// rowNumber is which of the rows is a prefill server's.
func (l *LinkTable) rowNumber(p int) int {
	if len(l.rows) > 0 {
		return l.rows[p]
	}
	return p
}

// Group finds prefill servers with equal links, as those of one rack mostly have, so that what
// follows from links is computed once for all of them. Call it after the last change of the table.
func (l *LinkTable) Group(decodes int) {
	l.firstAlike = l.firstAlike[:0]
	for p := range l.Prefills(decodes) {
		own := l.row(p, decodes)
		l.firstAlike = append(l.firstAlike, p)
		for q := range p {
			if l.firstAlike[q] != q {
				continue
			}
			if l.rowNumber(p) == l.rowNumber(q) || own.equal(l.row(q, decodes)) {
				l.firstAlike[p] = q
				break
			}
		}
	}
}

// After returns when bytes that leave at start have reached the decode server of a pair, one of so many, both in
// seconds.
func (l *LinkTable) After(start float64, pair Pair, decodes int, bytes float64) float64 {
	return l.row(pair.Prefill, decodes).after(start, pair.Decode, bytes)
}

// Part is the links between some prefill and some decode servers, of so many.
func (l *LinkTable) Part(prefills, decodes []int, all int) *LinkTable {
	part := NewLinkTable(len(prefills), len(decodes))
	if len(part.Latency) == 0 {
		return part
	}
	part.Fastest = l.Fastest
	for i, p := range prefills {
		row := l.row(p, all)
		for j, d := range decodes {
			at := i*len(decodes) + j
			part.Latency[at], part.SecondsPerByte[at] = row.latency[d], row.perByte[d]
		}
	}
	return part
}

// Row is the links of a prefill server to so many decode servers, which others may share.
func (l *LinkTable) Row(p, decodes int) (latency, perByte []float64) {
	row := l.row(p, decodes)
	return row.latency, row.perByte
}

// pairLinks are the links of a prefill server, by decode server.
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

func (l *LinkTable) row(p, decodes int) pairLinks {
	from := l.rowNumber(p) * decodes
	return pairLinks{l.Latency[from : from+decodes], l.SecondsPerByte[from : from+decodes]}
}

// First is the first prefill server with the same links as p, as far as Group has found them.
func (l *LinkTable) First(p int) int {
	if len(l.firstAlike) == 0 {
		return p
	}
	return l.firstAlike[p]
}
