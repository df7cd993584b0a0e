package pools

import (
	"math"
	"sync"
	"time"
)

// Curve is a time that grows linearly with three features of the work. Units are
// seconds per feature; what the features are, PrefillFeatures and StepFeatures say.
type Curve [3]float64

// Features are what a time depends on, scaled so that their coefficients are of
// like size.
type Features [3]float64

// PrefillFeatures are those of a prefill of new tokens behind cached ones: one,
// thousands of new tokens, and millions of what attention works on: the square of the
// whole less that of the cached part, n (n + 2c). Source of the form: Mooncake FAST'25,
// section 4.
func PrefillFeatures(newTokens, cached int) Features {
	n, c := float64(newTokens), float64(cached)
	return Features{1, n / 1e3, n * (n + 2*c) / 1e6}
}

// StepFeatures are those of one decode step: one, sequences in the batch, and
// millions of tokens of KV that the step reads.
func StepFeatures(sequences, kvTokens int) Features {
	return Features{1, float64(sequences), float64(kvTokens) / 1e6}
}

// PerToken is the seconds that one token of KV adds to a decode step.
func (c Curve) PerToken() float64 { return c[2] / 1e6 }

// Seconds is the time of work with the given features.
func (c Curve) Seconds(x Features) float64 { return x.On(&c) }

// On is Seconds of a curve: where there are many of them, copies take longer than the sum.
func (x *Features) On(c *Curve) float64 {
	seconds := c[0]*x[0] + c[1]*x[1] + c[2]*x[2]
	if seconds < 0 { // max costs as much as the rest
		return 0
	}
	return seconds
}

// Time is Seconds as a duration.
func (c Curve) Time(x Features) time.Duration {
	return time.Duration(c.Seconds(x) * float64(time.Second))
}

// How a curve learns. A server that turns twice as slow is seen as such within some
// thirty samples; one that is ten times off moves it by a tenth.
const (
	speedKeep   = 0.96 // weight of the past in the factor at each sample: a memory of 25
	sameStep    = 0.1  // a work that took less of what was believed of it belongs to the step before
	maxStep     = 64   // works of one step; more that took nothing are a server much faster than believed
	outlier     = 3.0  // a sample counts as at most so many times what was believed of it, or of an average one
	forgetting  = 0.95 // weight of the past in the shape at each sample: a memory of twenty
	huberLimit  = 0.3  // relative residual from which a sample weighs less
	anchorShare = 2.0  // weight of the anchors, in samples
	knownAfter  = 8.0  // samples after which a server is judged by itself alone
	goodNews    = 0.6  // a sample after a silence is, that took at most so much of what was believed: nearer it may be noise
)

// silence is how much a server has been forgotten before good news count for more, 0..1 (in
// five seconds of a minute's half-life): one that is believed slow is avoided, or what it
// would be late for is refused, and the few samples that it gives then are not to be
// outweighed by those of its bad times.
const silence = 0.056

// Learned is a curve that follows what a server shows. It starts as the prior;
// a single factor learns first how fast the server is on the whole, and the three
// coefficients follow where the samples say that the shape differs. Anchors, the
// prior times the factor at a few typical works, hold the shape where there are no
// samples. Safe for concurrent use.
type Learned struct {
	prior   Curve
	anchors []Features
	half    time.Duration // without a sample, in which it is known half as well

	mu   sync.Mutex // guards the rest
	seen time.Time  // of the last sample
	// Their ratio is the factor: seconds that works took, and that the prior said.
	took, said float64
	latest     step  // of the server, not in them yet: more works may belong to it
	own        Shown // sums of what was seen here, for other replicas
	a          [3][3]float64
	b          [3]float64
	samples    float64 // up to knownAfter, forgotten like what they showed
	current    Curve
}

// step is what one step of a server finished: seconds that its works took, and that the
// prior said.
type step struct {
	took, said float64
	works      int
	silent     bool // nothing was heard of the server for long before it
}

// NewLearned returns a curve that believes the prior.
func NewLearned(prior Curve, anchors []Features) *Learned {
	return &Learned{prior: prior, anchors: anchors, half: time.Minute, current: prior}
}

// factorLocked is how much slower than the prior the server is on the whole.
func (l *Learned) factorLocked() float64 {
	if l.said == 0 {
		return 1
	}
	return l.took / l.said
}

// Curve returns the belief.
func (l *Learned) Curve() Curve {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// Known is how much of the belief the server has shown lately, 0..1. One that is believed
// slow is avoided and so gives no samples: what it has shown loses half its weight in a
// minute (Config.Forgetting), to what its peers have, until it is tried again. So is one
// that is new.
func (l *Learned) Known(now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.samples == 0 {
		return 0
	}
	return l.samples / knownAfter * l.keeps(now.Sub(l.seen))
}

// keeps is the share of its weight that what was shown has after a time.
func (l *Learned) keeps(age time.Duration) float64 {
	return math.Exp2(-max(0, float64(age)/float64(l.half)))
}

// Served is for a sample that tells only how fast the server is on the whole: the time
// between two answers of a server that was never idle. Where one step of an engine
// finishes several works, the first to be answered bears it all, so only their sum
// says anything.
func (l *Learned) Served(x Features, took time.Duration, now time.Time) {
	if took < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	said := l.prior.Seconds(x)
	if took.Seconds() > sameStep*l.factorLocked()*said || l.latest.works >= maxStep {
		l.countLocked()
	}
	l.latest = step{l.latest.took + took.Seconds(), l.latest.said + said, l.latest.works + 1, l.latest.silent || l.silentLocked(now)}
	l.noteLocked(1, now)
}

// Observe is for a sample of one work alone.
func (l *Learned) Observe(x Features, took time.Duration, now time.Time) {
	y := took.Seconds()
	if y <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countLocked()
	l.ownLocked(l.followLocked(step{y, l.prior.Seconds(x), 1, l.silentLocked(now)}))
	believed := max(l.current.Seconds(x), y/100)
	weight := 1.0
	if residual := math.Abs(y/believed - 1); residual > huberLimit {
		weight = huberLimit / residual
	}
	l.add(x, y, weight/(believed*believed))
	l.noteLocked(1, now)
}

// countLocked enters the latest step of the server.
func (l *Learned) countLocked() {
	if l.latest.works == 0 {
		return
	}
	l.ownLocked(l.followLocked(l.latest))
	l.latest = step{}
}

func (l *Learned) ownLocked(s step) {
	l.own.Works += uint64(s.works)
	l.own.Took += s.took
	l.own.Said += s.said
}

// followLocked enters a step and returns what counted of it. What is known of the shape
// stays, and becomes slower by as much as the server does: else what was learned when the
// server was fast would hold it there.
func (l *Learned) followLocked(s step) step {
	before := l.factorLocked()
	l.heedLocked(s)
	s = l.enterLocked(s)
	slower := l.factorLocked() / max(before, 1e-9)
	if !(slower > 1e-3 && slower < 1e3) {
		return s
	}
	for i := range l.a { // errors count relative to the time that was taken
		for j := range l.a[i] {
			l.a[i][j] /= slower * slower
		}
		l.b[i] /= slower
	}
	return s
}

func (l *Learned) silentLocked(now time.Time) bool { return l.keeps(now.Sub(l.seen)) <= 1-silence }

// heedLocked lets good news count: all that the server showed before counts as one work.
func (l *Learned) heedLocked(s step) {
	if !s.silent || l.said == 0 || s.said == 0 || s.took > goodNews*l.factorLocked()*s.said {
		return
	}
	said := s.said / float64(s.works)
	l.took, l.said = l.factorLocked()*said, said
}

// enterLocked enters a step into the factor and returns what counted of it. The prior
// counts as one work like the first. A step is cut to size as a whole: cut to that of its
// first work, which bears all of it, it would make the server look faster, and the next
// cut would be deeper.
func (l *Learned) enterLocked(s step) step {
	if l.said == 0 {
		l.took, l.said = s.said/float64(s.works), s.said/float64(s.works)
	}
	usual := (1 - speedKeep) * l.said // an average work
	s.took = min(s.took, outlier*l.factorLocked()*max(s.said, usual))
	kept := math.Pow(speedKeep, float64(s.works))
	l.took = kept*l.took + s.took
	l.said = kept*l.said + s.said
	return s
}

// add enters a sample into the normal equations. The weight is by the square of what was
// believed of it: relative errors count, else the longest prompts would decide alone. By
// what it took, the samples of a server's fast times would outweigh those of its slow ones.
func (l *Learned) add(x Features, y, w float64) {
	for i := range x {
		for j := range x {
			l.a[i][j] = forgetting*l.a[i][j] + w*x[i]*x[j]
		}
		l.b[i] = forgetting*l.b[i] + w*x[i]*y
	}
}

// solveLocked finds the coefficients that fit samples and anchors. Where the result is
// no curve (a negative coefficient), the prior times the factor is.
func (l *Learned) solveLocked() {
	factor := l.factorLocked()
	var scaled Curve
	for i, c := range l.prior {
		scaled[i] = factor * c
	}
	a, b := l.a, l.b
	for _, x := range l.anchors {
		y := scaled.Seconds(x)
		w := anchorShare / (y * y)
		for i := range x {
			for j := range x {
				a[i][j] += w * x[i] * x[j]
			}
			b[i] += w * x[i] * y
		}
	}
	for i := range a { // a feature that is never there has no coefficient
		if a[i][i] == 0 {
			a[i][i] = 1
		}
	}
	theta, ok := solve3(a, b)
	for _, c := range theta {
		ok = ok && c >= 0 && !math.IsInf(c, 0) && !math.IsNaN(c)
	}
	if !ok {
		theta = scaled
	}
	l.current = theta
}

// solve3 solves three linear equations by elimination, false if they have no
// single solution.
func solve3(a [3][3]float64, b [3]float64) (x Curve, ok bool) {
	for k := range 3 {
		pivot := k
		for i := k + 1; i < 3; i++ {
			if math.Abs(a[i][k]) > math.Abs(a[pivot][k]) {
				pivot = i
			}
		}
		if math.Abs(a[pivot][k]) < 1e-12 {
			return x, false
		}
		a[k], a[pivot] = a[pivot], a[k]
		b[k], b[pivot] = b[pivot], b[k]
		for i := k + 1; i < 3; i++ {
			f := a[i][k] / a[k][k]
			for j := k; j < 3; j++ {
				a[i][j] -= f * a[k][j]
			}
			b[i] -= f * b[k]
		}
	}
	for k := 2; k >= 0; k-- {
		x[k] = b[k]
		for j := k + 1; j < 3; j++ {
			x[k] -= a[k][j] * x[j]
		}
		x[k] /= a[k][k]
	}
	return x, true
}
