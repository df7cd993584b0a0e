package order

import "slices"

// LinkTable is what moving KV costs for each pair, by prefill*decodes+decode.
type LinkTable struct {
	Latency        []float64 // seconds
	SecondsPerByte []float64
	// Fastest is at most the least of SecondsPerByte: it bounds searches.
	Fastest float64

	firstAlike []int // by prefill server the first with the same row; empty: each has its own
}

// NewLinkTable returns a table of zeros.
func NewLinkTable(prefills, decodes int) *LinkTable {
	return &LinkTable{Latency: make([]float64, prefills*decodes), SecondsPerByte: make([]float64, prefills*decodes)}
}

// Resize makes the table as large as the fleet, whatever is in it.
func (l *LinkTable) Resize(prefills, decodes int) {
	l.Latency, l.SecondsPerByte = sized(l.Latency, prefills*decodes), sized(l.SecondsPerByte, prefills*decodes)
	l.firstAlike = l.firstAlike[:0]
}

// Group finds the prefill servers whose links are alike, as those of one rack mostly are:
// what follows from the links is worked out once for all of them. It comes after the last
// change of the table.
func (l *LinkTable) Group(decodes int) {
	l.firstAlike = l.firstAlike[:0]
	for p := range len(l.Latency) / max(1, decodes) {
		latency, perByte := l.row(p, decodes)
		l.firstAlike = append(l.firstAlike, p)
		for q := range p {
			if l.firstAlike[q] != q {
				continue
			}
			if a, b := l.row(q, decodes); slices.Equal(a, latency) && slices.Equal(b, perByte) {
				l.firstAlike[p] = q
				break
			}
		}
	}
}

// row is the links of a prefill server, by decode server.
func (l *LinkTable) row(p, decodes int) (latency, perByte []float64) {
	return l.Latency[p*decodes : (p+1)*decodes], l.SecondsPerByte[p*decodes : (p+1)*decodes]
}

// first is the first prefill server with the same links as p.
func (l *LinkTable) first(p int) int {
	if len(l.firstAlike) == 0 {
		return p
	}
	return l.firstAlike[p]
}
