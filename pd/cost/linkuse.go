package cost

import "time"

// linkUse is the transfers under way at one end, and those that are to come. All that are under way share its link
// alike.
type linkUse struct {
	transfers int
	nearby    float64 // seconds that they take between neighbours, one after the other
	expected  int     // transfers that are to come
	coming    float64 // seconds that those take likewise
	due       float64 // sum of when each is to begin, in seconds since Links.began, times what it takes
	kv        int     // tokens of KV room that is kept for those, where decode gets them
	kvDue     float64 // sum of the same times, times these tokens
	// alone is the seconds in which a transfer alone would have got what one that was there all
	// the time got until the moment at.
	alone float64
	at    time.Time
}

// setOn writes for how long the link of a server is taken, so many seconds after Links.began, and what KV is to come.
func (u linkUse) setOn(c *Candidate, now float64) {
	c.Moving, c.Coming, c.ComesIn = Duration(u.nearby), Duration(u.coming), comesIn(u.due, u.coming, now)
	c.KVComing, c.KVComesIn = u.kv, comesIn(u.kvDue, float64(u.kv), now)
}

// comesIn is when what is to come begins, in its mean: due is the sum of its times, each times how much begins then.
func comesIn(due, all, now float64) time.Duration {
	if all <= 0 {
		return 0
	}
	return Duration(max(0, due/all-now))
}

func (u *linkUse) advance(now time.Time) {
	if u.transfers > 0 {
		u.alone += max(0, now.Sub(u.at).Seconds()) / float64(u.transfers)
	}
	u.at = now
}

// delay is by how much the transfers under way make one longer that takes so many seconds alone.
func (u *linkUse) delay(alone float64) float64 { return min(u.nearby, alone*float64(u.transfers)) }

func beginUse(uses map[string]linkUse, server string, nearby float64, now time.Time) (alone float64) {
	u := uses[server]
	u.advance(now)
	u.transfers++
	u.nearby += nearby
	uses[server] = u
	return u.alone
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
		u.coming, u.due, u.kvDue = 0, 0, 0
	}
	if u.transfers+u.expected == 0 {
		delete(uses, server)
		return
	}
	uses[server] = u
}

// KVComing is the tokens of KV room that are kept on a decode server for what is still to come.
func (l *Links) KVComing(server string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.receiving[server].kv
}

// SetMoving writes for how long what is under way or to come takes the links of servers at most, and the KV that is to
// come. What lies between racks is others' as well, and is in what transfers between them have taken.
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
