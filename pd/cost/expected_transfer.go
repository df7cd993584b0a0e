package cost

import "time"

// ExpectedTransfer is one that begins when a prefill is done which has its place already. The zero value is none. It is
// not to be copied once it has been expected.
type ExpectedTransfer struct {
	links    *Links
	from, to string
	bytes    float64 // that are yet to begin
	nearby   float64 // seconds that those take between neighbours
	kv       int     // tokens of KV room that is kept for it
	due      float64 // when they are to begin, in seconds since Links.began
	ended    bool
}

// Expect notes a transfer that is to come in some time, until it is ended: whoever chooses servers before it begins
// finds their links taken by it, from when they will be. Room for so many tokens of KV is kept for it on decode, and
// stands empty until then.
func (l *Links) Expect(p, d LinkEnd, bytes float64, kv int, in time.Duration, now time.Time) (e ExpectedTransfer) {
	e = ExpectedTransfer{
		links: l, from: p.ID, to: d.ID, bytes: bytes, kv: kv,
		nearby: l.classes[SameRack].Curve().Seconds(linkFeatures(bytes)),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.due = l.sinceLocked(now) + in.Seconds()
	e.enterLocked(1, e.nearby, kv)
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
	e.enterLocked(0, -less, 0)
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
		e.enterLocked(-1, -e.nearby, -e.kv)
	}
}

func (e *ExpectedTransfer) enterLocked(transfers int, nearby float64, kv int) {
	expectAt := func(uses map[string]linkUse, server string, kv int) {
		u := uses[server]
		u.expected += transfers
		u.coming += nearby
		u.due += nearby * e.due
		u.kv += kv
		u.kvDue += float64(kv) * e.due
		keepUse(uses, server, u)
	}
	expectAt(e.links.sending, e.from, 0)
	expectAt(e.links.receiving, e.to, kv)
}
