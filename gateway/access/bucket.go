package access

import "time"

// bucket is a token bucket that holds one minute's worth, is refilled all the time and
// may be overdrawn: what an answer cost is known only when it is there, and what other
// replicas let in only when they have reported. golang.org/x/time/rate can do neither of
// these, nor give back what was taken too much.
type bucket struct {
	perMinute float64 // 0: no limit
	level     float64 // below 0 while overdrawn
	at        time.Time
}

// setLimit changes the limit. A new bucket is full; one whose limit changes keeps what
// was used of it.
func (b *bucket) setLimit(perMinute int) {
	b.level += float64(perMinute) - b.perMinute
	b.perMinute = float64(perMinute)
}

// refill brings the level up to now. share is the part of the limit that is this
// replica's, 0..1.
func (b *bucket) refill(now time.Time, share float64) {
	if passed := now.Sub(b.at); passed > 0 {
		b.level = min(b.level+b.perMinute*share*passed.Minutes(), b.perMinute)
		b.at = now
	}
}

// wait is the time until the bucket holds n, 0 if it does.
func (b *bucket) wait(n float64) time.Duration {
	if b.perMinute == 0 || b.level >= n {
		return 0
	}
	return time.Duration((n - b.level) / b.perMinute * float64(time.Minute))
}

// maxDebt is how far a bucket may be overdrawn, in minutes' worth.
const maxDebt = 60

// take charges n, a negative n gives back.
func (b *bucket) take(n float64) {
	b.level = max(min(b.level-n, b.perMinute), -maxDebt*b.perMinute)
}
