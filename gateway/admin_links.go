package gateway

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// LinksStatus is the answer of /debug/links: what transfers of KV are believed to take.
type LinksStatus struct {
	Classes []LinkClassStatus `json:"classes"` // nearest first
	Pairs   []LinkPairStatus  `json:"pairs"`   // that moved KV lately, those taken to be slowest first
}

// LinkClassStatus is a class of links: servers that share a host, a rack, a zone, or none.
type LinkClassStatus struct {
	Distance    string  `json:"distance"` // host, rack, zone, far
	LatencyMs   float64 `json:"latency_ms"`
	GBPerSecond float64 `json:"gb_per_second"`
}

// LinkPairStatus is the link between two servers, as this replica knows it.
type LinkPairStatus struct {
	Prefill   string     `json:"prefill"`
	Decode    string     `json:"decode"`
	Distance  string     `json:"distance,omitempty"` // absent where no transfer was seen
	Transfers uint64     `json:"transfers"`          // that ended
	Moving    int        `json:"moving"`             // transfers under way
	Measured  float64    `json:"measured,omitempty"` // times the time of its class that they took
	Slower    float64    `json:"slower"`             // times slower than its class that choices take it to be
	Blamed    string     `json:"blamed,omitempty"`   // pair, prefill or decode
	FailedAt  *time.Time `json:"failed_at,omitempty"`
}

func describeLinks(classes []cost.ClassStatus, pairs []cost.PairStatus) LinksStatus {
	s := LinksStatus{Classes: []LinkClassStatus{}, Pairs: []LinkPairStatus{}}
	for _, c := range classes {
		s.Classes = append(s.Classes, LinkClassStatus{c.Distance.String(), float64(c.Latency.Microseconds()) / 1000, c.BytesPerSecond / 1e9})
	}
	for _, p := range pairs {
		pair := LinkPairStatus{
			Prefill: p.Prefill, Decode: p.Decode, Transfers: p.Transfers, Moving: p.Moving, Measured: p.Measured, Slower: p.Slower, Blamed: p.By,
		}
		if p.Transfers > 0 {
			pair.Distance = p.Distance.String()
		}
		if !p.FailedAt.IsZero() {
			pair.FailedAt = &p.FailedAt
		}
		s.Pairs = append(s.Pairs, pair)
	}
	return s
}
