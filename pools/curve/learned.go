package curve

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// How a curve learns. A server that turns twice as slow is seen as such within some
// thirty samples; one that is ten times off moves it by a tenth.
const (
	speedKeep      = 0.96 // weight of the past in the factor at each sample: a memory of 25
	sameStep       = 0.1  // a work that took less of what was believed of it belongs to the step before
	maxStep        = 64   // samples of one step; more that took nothing are a server much faster than believed
	outlier        = 3.0  // a sample counts as at most so many times what was believed of it, or of an average one
	shapeKeep      = 0.95 // weight of the past in the shape at each sample: a memory of twenty
	huberLimit     = 0.3  // relative residual from which a sample weighs less
	anchorShare    = 2.0  // weight of the anchors, in samples
	knownAfter     = 8.0  // samples after which a server is judged by itself alone
	recoveredShare = 0.6  // a sample after a silence is, that took at most so much of what was believed: nearer it may be noise
)

// longSilence is how much a server has been forgotten before good news count for more, 0..1 (in
// five seconds of a minute's half-life): one that is believed slow is avoided, or what it
// would be late for is refused, and the few samples that it gives then are not to be
// outweighed by those of its bad times.
const longSilence = 0.056

// Learned is a curve that follows what a server shows. It starts as the prior;
// a single factor learns first how fast the server is on the whole, and the three
// coefficients follow where the samples say that the shape differs. Anchors, the
// prior times the factor at a few typical works, hold the shape where there are no
// samples. Safe for concurrent use.
type Learned struct {
	prior      Curve
	anchors    []Features
	forgetting time.Duration  // without a sample, in which it is known half as well
	changes    *atomic.Uint64 // counts what is learned; nil: it is not counted

	mu        sync.Mutex // guards the rest
	sampledAt time.Time  // of the last sample
	// Their ratio is the factor: seconds that works took, and that the prior predicted.
	observed, predicted float64
	scatter             scatter
	latest              step  // of the server, not in them yet: more works may belong to it
	atMost              bound // what works took at the most
	metered             meter
	own                 Report // sums of what was seen here, for other replicas
	a                   [3][3]float64
	b                   [3]float64
	samples             float64 // up to knownAfter, forgotten like what they showed
	current             Curve
}

// step is what one step of a server finished: seconds that its works took, and that the
// prior predicted.
type step struct {
	observed, predicted float64
	samples             int
	silent              bool // nothing was learned of the server for long before it
}

// bound is sums over works of which it is known what they took at the most, in seconds, and what the prior
// predicted of them; both fade.
type bound struct {
	observed, predicted float64
	samples             int // up to knownAfter
}

// scatter is sums over the samples of the factor, each by the square of its weight there: of the
// squares of what works took and of what the prior predicted, and of their products.
type scatter struct{ observed, product, predicted float64 }

func (s *scatter) add(kept float64, x step) {
	kept *= kept
	s.observed = kept*s.observed + x.observed*x.observed
	s.product = kept*s.product + x.observed*x.predicted
	s.predicted = kept*s.predicted + x.predicted*x.predicted
}

// Belief is what is believed of a curve, and how far that can be relied on.
type Belief struct {
	Curve      Curve
	Confidence float64 // see Learned.Confidence
	// Error is the standard error of how fast the server is on the whole, as a share of that: by how
	// much its works scatter, and how few they were.
	Error float64
}

// NewLearned returns a curve that believes the prior. What a server has shown loses half its
// weight in the time of forgetting, if it shows nothing more.
func NewLearned(prior Curve, anchors []Features, forgetting time.Duration) *Learned {
	return &Learned{prior: prior, anchors: anchors, forgetting: forgetting, current: prior}
}

// CountChanges counts in what may have changed what is believed. It is called before the first sample.
func (l *Learned) CountChanges(in *atomic.Uint64) { l.changes = in }

// lockToLearn locks the curve for who changes what is believed.
func (l *Learned) lockToLearn() {
	l.mu.Lock()
	if l.changes != nil {
		l.changes.Add(1) // who reads the curve from here on waits for the change
	}
}

// factorLocked is how much slower than the prior the server is on the whole.
func (l *Learned) factorLocked() float64 {
	if l.predicted == 0 {
		return 1
	}
	return l.observed / l.predicted
}

// Curve returns the belief.
func (l *Learned) Curve() Curve {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// Confidence is how much of the belief the server has shown lately, 0..1. One that is believed
// slow is avoided and so gives no samples: what it has shown loses half its weight in
// the time of forgetting, to what its peers have, until it is tried again. So is one
// that is new.
func (l *Learned) Confidence(now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.confidenceLocked(now)
}

func (l *Learned) confidenceLocked(now time.Time) float64 { return l.fadingLocked().At(now) }

func (l *Learned) fadingLocked() Fading {
	return Fading{shown: l.samples / knownAfter, at: l.sampledAt, forgetting: l.forgetting}
}

// Belief returns the belief with its confidence and its error.
func (l *Learned) Belief(now time.Time) Belief {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Belief{l.current, l.confidenceLocked(now), l.errorLocked()}
}

// Fading is a confidence as it fades until the next sample.
type Fading struct {
	shown      float64 // 0..1, at the last sample
	at         time.Time
	forgetting time.Duration
}

// Fading returns the confidence for whoever reads it again and again, until what is believed changes: see CountChanges.
func (l *Learned) Fading() Fading {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fadingLocked()
}

// At is Learned.Confidence.
func (f Fading) At(now time.Time) float64 {
	if f.shown == 0 {
		return 0
	}
	return f.shown * weightAfter(now.Sub(f.at), f.forgetting)
}

// errorLocked is the standard error of the factor, as a share of it: that of a ratio of two sums.
func (l *Learned) errorLocked() float64 {
	if l.observed <= 0 {
		return 0
	}
	f, s := l.factorLocked(), &l.scatter
	return math.Sqrt(max(0, s.observed-2*f*s.product+f*f*s.predicted)) / l.observed
}

// weightAfter is the share of its weight that what was shown has after a time.
func (l *Learned) weightAfter(age time.Duration) float64 { return weightAfter(age, l.forgetting) }

func weightAfter(age, forgetting time.Duration) float64 {
	return math.Exp2(-max(0, float64(age)/float64(forgetting)))
}

// ObserveServed is for a sample that tells only how fast the server is on the whole: the time
// between two answers of a server that was never idle. Where one step of an engine
// finishes several works, the first to be answered bears it all, so only their sum
// says anything; and what a step takes whatever is in it was predicted of each, and is
// counted once.
func (l *Learned) ObserveServed(x Features, took time.Duration, now time.Time) {
	if took < 0 {
		return
	}
	l.lockToLearn()
	defer l.mu.Unlock()
	predicted := l.prior.Seconds(x)
	if took.Seconds() > sameStep*l.factorLocked()*predicted || l.latest.samples >= maxStep {
		l.countLocked()
	}
	if l.latest.samples > 0 {
		predicted = max(0, predicted-l.prior.Fixed())
	}
	l.latest = step{l.latest.observed + took.Seconds(), l.latest.predicted + predicted, l.latest.samples + 1, l.latest.silent || l.silentLocked(now)}
	l.countSamplesLocked(1, now)
}

// Observe is for a sample of one work alone.
func (l *Learned) Observe(x Features, took time.Duration, now time.Time) {
	y := took.Seconds()
	if y <= 0 {
		return
	}
	l.lockToLearn()
	defer l.mu.Unlock()
	l.countLocked()
	l.addOwnLocked(l.followLocked(step{y, l.prior.Seconds(x), 1, l.silentLocked(now)}))
	believed := max(l.current.Seconds(x), y/100)
	weight := 1.0
	if residual := math.Abs(y/believed - 1); residual > huberLimit {
		weight = huberLimit / residual
	}
	l.add(x, y, weight/(believed*believed))
	l.countSamplesLocked(1, now)
}

// ObserveAtMost is for a sample that bounds how fast the server is on the whole: the time between two answers
// of a server that was never idle, in which it did other things beside the work. It counts, as
// ObserveServed's, in sums, and only where the server is believed to be slower than these allow.
func (l *Learned) ObserveAtMost(x Features, took time.Duration, now time.Time) {
	l.lockToLearn()
	defer l.mu.Unlock()
	predicted := l.prior.Seconds(x)
	if l.atMost.samples > 0 && took.Seconds() <= sameStep*l.factorLocked()*predicted { // of the same step as the one before
		predicted = max(0, predicted-l.prior.Fixed())
	}
	l.atMostLocked(took, predicted, now)
}

// ObserveAloneAtMost is ObserveAtMost for a sample that bears all of its step, whatever else was in it.
func (l *Learned) ObserveAloneAtMost(x Features, took time.Duration, now time.Time) {
	l.lockToLearn()
	defer l.mu.Unlock()
	l.atMostLocked(took, l.prior.Seconds(x), now)
}

// atMostLocked enters a work, of so many seconds by the prior, of which it is known what it took at the most.
func (l *Learned) atMostLocked(took time.Duration, predicted float64, now time.Time) {
	m := &l.atMost
	if l.boundsLocked(m, knownAfter, max(0, took.Seconds()), predicted, 1) {
		average := m.predicted * (1 - speedKeep)
		l.enterBoundLocked(step{observed: m.observed / m.predicted * average, predicted: average, samples: 1}, now)
	}
}

// boundsLocked adds works of which it is known what they took at the most, and reports whether, once there are so
// many, the server is believed to be slower than all of them allow.
func (l *Learned) boundsLocked(b *bound, least int, observed, predicted float64, works int) bool {
	kept := math.Pow(speedKeep, float64(works))
	b.observed, b.predicted = kept*b.observed+observed, kept*b.predicted+predicted
	b.samples = min(knownAfter, b.samples+works)
	return b.samples >= least && b.predicted > 0 && b.observed < l.factorLocked()*b.predicted
}

// enterBoundLocked enters what works took at the most as what they took.
func (l *Learned) enterBoundLocked(s step, now time.Time) {
	l.countLocked()
	s.silent = l.silentLocked(now)
	l.addOwnLocked(l.followLocked(s))
	l.countSamplesLocked(uint64(s.samples), now)
}

// countLocked enters the latest step of the server.
func (l *Learned) countLocked() {
	if l.latest.samples == 0 {
		return
	}
	l.addOwnLocked(l.followLocked(l.latest))
	l.latest = step{}
}

func (l *Learned) addOwnLocked(s step) {
	l.own.Works += uint64(s.samples)
	l.own.Observed += s.observed
	l.own.Predicted += s.predicted
}

// followLocked enters a step and returns what counted of it. What is known of the shape
// stays, and becomes slower by as much as the server does: else what was learned when the
// server was fast would hold it there.
func (l *Learned) followLocked(s step) step {
	before := l.factorLocked()
	l.forgetIfRecoveredLocked(s)
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

func (l *Learned) silentLocked(now time.Time) bool {
	return l.weightAfter(now.Sub(l.sampledAt)) <= 1-longSilence
}

// forgetIfRecoveredLocked lets good news count: all that the server showed before counts as one
// work.
func (l *Learned) forgetIfRecoveredLocked(s step) {
	if !s.silent || l.predicted == 0 || s.predicted == 0 || s.observed > recoveredShare*l.factorLocked()*s.predicted {
		return
	}
	predicted := s.predicted / float64(s.samples)
	l.observed, l.predicted = l.factorLocked()*predicted, predicted
	l.scatter = scatter{}
	l.scatter.add(0, step{observed: l.observed, predicted: l.predicted})
}

// enterLocked enters a step into the factor and returns what counted of it. The prior
// counts as one work like the first. A step is cut to size as a whole: cut to that of its
// first work, which bears all of it, it would make the server look faster, and the next
// cut would be deeper.
func (l *Learned) enterLocked(s step) step {
	if l.predicted == 0 {
		l.observed, l.predicted = s.predicted/float64(s.samples), s.predicted/float64(s.samples)
		l.scatter.add(0, step{observed: l.observed, predicted: l.predicted})
	}
	usual := (1 - speedKeep) * l.predicted // an average work
	s.observed = min(s.observed, outlier*l.factorLocked()*max(s.predicted, usual))
	kept := math.Pow(speedKeep, float64(s.samples))
	l.observed = kept*l.observed + s.observed
	l.predicted = kept*l.predicted + s.predicted
	l.scatter.add(kept, s)
	return s
}

// countSamplesLocked counts samples that the server has shown, and believes them.
func (l *Learned) countSamplesLocked(samples uint64, seen time.Time) {
	l.samples = min(knownAfter, l.weightAfter(seen.Sub(l.sampledAt))*l.samples+float64(samples))
	if seen.After(l.sampledAt) {
		l.sampledAt = seen
	}
	l.solveLocked()
}
