package cost

import (
	"math"
	"time"
)

// Transfer is one under way.
type Transfer struct {
	links    *Links
	from, to LinkEnd
	bytes    float64
	expected float64 // seconds, by class
	nearby   float64 // seconds for which it takes the links of its two servers: between neighbours it takes no longer
	since    time.Time
	// What a transfer had got alone of the links of the two servers until then: see linkUse.
	sent, received float64
}

// Begin notes a transfer that is under way from now on, until it is ended.
func (l *Links) Begin(p, d LinkEnd, bytes float64, now time.Time) *Transfer {
	t := &Transfer{
		links: l, from: p, to: d, bytes: bytes, since: now,
		expected: l.classes[DistanceOf(&p.Topology, &d.Topology)].Curve().Seconds(linkFeatures(bytes)),
		nearby:   l.classes[SameRack].Curve().Seconds(linkFeatures(bytes)),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving[t] = struct{}{}
	t.sent, t.received = beginUse(l.sending, p.ID, t.nearby, now), beginUse(l.receiving, d.ID, t.nearby, now)
	return t
}

// Forecast is how long a transfer that begins now is believed to take: alone, and longer by what is under
// way over the link of either server, of which each gets as much as it.
func (l *Links) Forecast(p, d LinkEnd, bytes float64, now time.Time) time.Duration {
	class := l.classes[DistanceOf(&p.Topology, &d.Topology)].Curve()
	l.mu.Lock()
	defer l.mu.Unlock()
	alone := math.Exp(l.differsLocked(pairID{p.ID, d.ID}, now)) * class.Seconds(linkFeatures(bytes))
	sending, receiving := l.sending[p.ID], l.receiving[d.ID]
	return Duration(alone + max(sending.delay(alone), receiving.delay(alone)))
}

// End says that it is no longer under way; said again it does nothing. nil is none.
func (t *Transfer) End(now time.Time) {
	if t == nil {
		return
	}
	l := t.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, moves := l.moving[t]; !moves {
		return
	}
	delete(l.moving, t)
	endUse(l.sending, t.from.ID, t.nearby, now)
	endUse(l.receiving, t.to.ID, t.nearby, now)
}

// Observe ends it and teaches the links that it took a time, known within some slack. Where others
// went over a link of its two servers meanwhile, and that was what held it up, alone it would have
// taken its share of that time.
func (t *Transfer) Observe(took, slack time.Duration, now time.Time) {
	share := t.share(now)
	t.End(now)
	t.links.observe(&t.from, &t.to, t.bytes, took, slack, share, now)
}

// share is the part of its time, 0..1, that it would have taken alone if the link of the end that was
// more crowded was what held it up.
func (t *Transfer) share(now time.Time) float64 {
	l := t.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, moves := l.moving[t]; !moves || !now.After(t.since) {
		return 1
	}
	sender, receiver := l.sending[t.from.ID], l.receiving[t.to.ID]
	sender.advance(now)
	receiver.advance(now)
	alone := min(sender.alone-t.sent, receiver.alone-t.received)
	return min(1, max(0, alone/now.Sub(t.since).Seconds()))
}
