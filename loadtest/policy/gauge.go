package policy

// Gauge is what an engine says of itself when it is asked.
type Gauge struct {
	Running, Waiting int
	KVUsed           float64 // fraction, 0..1
}

// history holds a server's gauges over time, so that one may read what they were
// some seconds ago. Reads come in order of time.
type history struct {
	entries []gaugeAt
}

type gaugeAt struct {
	at    float64
	gauge Gauge
}

func (h *history) record(now float64, g Gauge) {
	if n := len(h.entries); n > 0 && h.entries[n-1].at == now {
		h.entries[n-1].gauge = g
		return
	}
	h.entries = append(h.entries, gaugeAt{now, g})
}

// read returns what the gauges were at a time, and forgets what was before.
func (h *history) read(at float64) Gauge {
	for len(h.entries) > 1 && h.entries[1].at <= at {
		h.entries = h.entries[1:]
	}
	if len(h.entries) == 0 || h.entries[0].at > at {
		return Gauge{}
	}
	return h.entries[0].gauge
}
