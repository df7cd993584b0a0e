package order

// LinkTable is what moving KV costs for each pair, by prefill*decodes+decode.
type LinkTable struct {
	Latency        []float64 // seconds
	SecondsPerByte []float64
	// Fastest is at most the least of SecondsPerByte: it bounds searches.
	Fastest float64
}

// NewLinkTable returns a table of zeros.
func NewLinkTable(prefills, decodes int) *LinkTable {
	return &LinkTable{Latency: make([]float64, prefills*decodes), SecondsPerByte: make([]float64, prefills*decodes)}
}

// Resize makes the table as large as the fleet, whatever is in it.
func (l *LinkTable) Resize(prefills, decodes int) {
	l.Latency, l.SecondsPerByte = sized(l.Latency, prefills*decodes), sized(l.SecondsPerByte, prefills*decodes)
}
