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

// linkUse is the transfers under way at one end, and those that are to come. All that are under way share its link
// alike.
type linkUse struct {
	transfers int
	nearby    float64 // seconds that they take between neighbours, one after the other
	expected  int     // transfers that are to come
	coming    float64 // seconds that those take likewise
	due       float64 // sum of when each is to begin, in seconds since Links.began, times what it takes
	// alone is the seconds in which a transfer alone would have got what one that was there all
	// the time got until the moment at.
	alone float64
	at    time.Time
}

// setOn writes for how long the link of a server is taken, so many seconds after Links.began.
func (u linkUse) setOn(c *Candidate, now float64) {
	c.Moving, c.Coming, c.ComesIn = Duration(u.nearby), Duration(u.coming), 0
	if u.coming > 0 {
		c.ComesIn = Duration(max(0, u.due/u.coming-now))
	}
}

func (u *linkUse) advance(now time.Time) {
	if u.transfers > 0 {
		u.alone += max(0, now.Sub(u.at).Seconds()) / float64(u.transfers)
	}
	u.at = now
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

func beginUse(uses map[string]linkUse, server string, nearby float64, now time.Time) (alone float64) {
	u := uses[server]
	u.advance(now)
	u.transfers++
	u.nearby += nearby
	uses[server] = u
	return u.alone
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

// delay is by how much the transfers under way make one longer that takes so many seconds alone.
func (u *linkUse) delay(alone float64) float64 { return min(u.nearby, alone*float64(u.transfers)) }

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

func endUse(uses map[string]linkUse, server string, nearby float64, now time.Time) {
	u := uses[server]
	u.advance(now)
	u.transfers--
	u.nearby -= nearby
	keepUse(uses, server, u)
}

// keepUse forgets an end at which nothing is under way and nothing is to come: it would keep the rounding of sums.
func keepUse(uses map[string]linkUse, server string, u linkUse) {
	if u.transfers == 0 {
		u.nearby = 0
	}
	if u.expected == 0 {
		u.coming, u.due = 0, 0
	}
	if u.transfers+u.expected == 0 {
		delete(uses, server)
		return
	}
	uses[server] = u
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

// ExpectedTransfer is one that begins when a prefill is done which has its place already. The zero value is none. It is
// not to be copied once it has been expected.
type ExpectedTransfer struct {
	links    *Links
	from, to string
	bytes    float64 // that are yet to begin
	nearby   float64 // seconds that those take between neighbours
	due      float64 // when they are to begin, in seconds since Links.began
	ended    bool
}

// Expect notes a transfer that is to come in some time, until it is ended: whoever chooses servers before it begins
// finds their links taken by it, from when they will be.
func (l *Links) Expect(p, d LinkEnd, bytes float64, in time.Duration, now time.Time) (e ExpectedTransfer) {
	e = ExpectedTransfer{
		links: l, from: p.ID, to: d.ID, bytes: bytes,
		nearby: l.classes[SameRack].Curve().Seconds(linkFeatures(bytes)),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.due = l.sinceLocked(now) + in.Seconds()
	e.enterLocked(1, e.nearby)
	return e
}

// Less says that so many of its bytes are no longer to come: they have begun to move.
func (e *ExpectedTransfer) Less(bytes float64) {
	if e.links == nil || bytes <= 0 {
		return
	}
	e.links.mu.Lock()
	defer e.links.mu.Unlock()
	if e.ended || e.bytes <= 0 {
		return
	}
	bytes = min(bytes, e.bytes)
	less := e.nearby * bytes / e.bytes
	e.bytes, e.nearby = e.bytes-bytes, e.nearby-less
	e.enterLocked(0, -less)
}

// End says that nothing of it is to come any more; said again it does nothing.
func (e *ExpectedTransfer) End() {
	if e.links == nil {
		return
	}
	e.links.mu.Lock()
	defer e.links.mu.Unlock()
	if !e.ended {
		e.ended = true
		e.enterLocked(-1, -e.nearby)
	}
}

func (e *ExpectedTransfer) enterLocked(transfers int, nearby float64) {
	expectAt := func(uses map[string]linkUse, server string) {
		u := uses[server]
		u.expected += transfers
		u.coming += nearby
		u.due += nearby * e.due
		keepUse(uses, server, u)
	}
	expectAt(e.links.sending, e.from)
	expectAt(e.links.receiving, e.to)
}

// SetMoving writes for how long what is under way or to come takes the links of servers at most. What lies between
// racks is others' as well, and is in what transfers between them have taken.
func (l *Links) SetMoving(prefill, decode []Candidate, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.sinceLocked(now)
	for i := range prefill {
		l.sending[prefill[i].ID].setOn(&prefill[i], at)
	}
	for i := range decode {
		l.receiving[decode[i].ID].setOn(&decode[i], at)
	}
}
