package cost

import (
	"errors"
	"time"
)

// Topology is where a server stands; empty labels are unknown.
type Topology struct {
	Host, Rack, Zone string
}

// Link is what moving KV between two servers costs: Latency once, then the bytes
// at BytesPerSecond.
type Link struct {
	Latency        time.Duration
	BytesPerSecond float64
}

// Distance is a class of links.
type Distance uint8

// The classes, nearest first.
const (
	SameHost Distance = iota
	SameRack
	SameZone
	Far
	distances
)

// DistanceOf is the closest label that both places know and share. Places without
// any common label are taken to be in one zone: a deployment that says nothing of
// its topology usually has one.
func DistanceOf(a, b *Topology) Distance {
	same := func(x, y string) bool { return x != "" && x == y }
	switch {
	case same(a.Host, b.Host):
		return SameHost
	case same(a.Rack, b.Rack):
		return SameRack
	case a.Zone != "" && b.Zone != "" && a.Zone != b.Zone:
		return Far
	}
	return SameZone
}

// LinkPrior is what is assumed of each class until transfers have shown it.
type LinkPrior [distances]Link

// DefaultLinks assumes NVLink within a host, 400 Gb/s within a rack, 100 Gb/s
// within a zone, and 10 Gb/s beyond.
func DefaultLinks() LinkPrior {
	return LinkPrior{
		SameHost: {Latency: 50 * time.Microsecond, BytesPerSecond: 200e9},
		SameRack: {Latency: 200 * time.Microsecond, BytesPerSecond: 50e9},
		SameZone: {Latency: 500 * time.Microsecond, BytesPerSecond: 12.5e9},
		Far:      {Latency: 2 * time.Millisecond, BytesPerSecond: 1.25e9},
	}
}

// Validate reports what is wrong with the prior, nil if nothing.
func (p LinkPrior) Validate() error {
	for _, l := range p {
		if !(l.BytesPerSecond > 0) || l.Latency < 0 {
			return errors.New("link bandwidths must be positive")
		}
	}
	return nil
}
