package pd

import "time"

// Place is where a server stands; empty labels are unknown.
type Place struct {
	Host, Rack, Zone string
}

// Link is what moving KV between two servers costs: Latency once, then the bytes
// at BytesPerSecond.
type Link struct {
	Latency        time.Duration
	BytesPerSecond float64
}

// Links is the topology prior: one link per class of distance.
type Links struct {
	SameHost, SameRack, SameZone, Far Link
}

// DefaultLinks assumes NVLink within a host, 400 Gb/s within a rack, 100 Gb/s
// within a zone, and 10 Gb/s beyond.
func DefaultLinks() Links {
	return Links{
		SameHost: Link{Latency: 50 * time.Microsecond, BytesPerSecond: 200e9},
		SameRack: Link{Latency: 200 * time.Microsecond, BytesPerSecond: 50e9},
		SameZone: Link{Latency: 500 * time.Microsecond, BytesPerSecond: 12.5e9},
		Far:      Link{Latency: 2 * time.Millisecond, BytesPerSecond: 1.25e9},
	}
}

// Between returns the link of the closest label that both places know and share.
// Places without any common label are taken to be in one zone: a deployment that
// says nothing of its topology usually has one.
func (l Links) Between(a, b Place) Link {
	same := func(x, y string) bool { return x != "" && x == y }
	switch {
	case same(a.Host, b.Host):
		return l.SameHost
	case same(a.Rack, b.Rack):
		return l.SameRack
	case a.Zone != "" && b.Zone != "" && a.Zone != b.Zone:
		return l.Far
	}
	return l.SameZone
}
