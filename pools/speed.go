package pools

import (
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Shown returns what this replica has seen of the server's two curves.
func (l *live) Shown(now time.Time) (prefill, step curve.Shown) {
	return l.prefill.Shown(now), l.step.Shown(now)
}

// ReceivePrefill and ReceiveStep take in what another replica tells of the curves.
func (l *live) ReceivePrefill(before *curve.Shown, s curve.Shown, age time.Duration, now time.Time) {
	l.prefill.Receive(before, s, age, now)
}

func (l *live) ReceiveStep(before *curve.Shown, s curve.Shown, age time.Duration, now time.Time) {
	l.step.Receive(before, s, age, now)
}
