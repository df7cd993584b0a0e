package pools

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/address"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// live is what changes about a server while requests run. It is created when
// the server is first seen and survives reloads of the configuration.
type live struct {
	health       atomic.Pointer[Health]
	scraped      atomic.Pointer[load.Load]
	reported     atomic.Pointer[load.Load] // by ORCA
	reports      struct{ read, unreadable atomic.Uint64 }
	keep         time.Duration // load older than this is not believed
	loadRequests *LoadRequests
	wakeRequests *WakeRequests
	gpus         GPUShare
	life         atomic.Uint64 // counts how often the server came up
	told         atomic.Pointer[identity]
	busyUntil    atomic.Pointer[time.Time] // the engine asked to be left alone until then
	breakers     [2]*breaker.Breaker       // prefill, decode
	drained      atomic.Bool               // an operator lets it drain
	leaving      atomic.Bool               // scaling in takes it next
	changed      *changes                  // of the fleet; nil: nobody is told
	ramps        [2]atomic.Pointer[ramp]
	states       *changes // of servers' states; nil: nobody is told
	vitals       vitals
	slowStart    time.Duration
	downSince    atomic.Pointer[time.Time] // nil while up, and before the server was ever up
	recheck      chan struct{}
	group        atomic.Pointer[group] // nil: it steps by itself

	// tellsCached is set once the engine has reported cached tokens. vLLM leaves
	// the number out when it is zero, and always without
	// --enable-prompt-tokens-details; only this tells the two apart.
	tellsCached atomic.Bool
	// retains is the life in which the engine was first seen to keep the blocks of answers;
	// 0: none.
	retains atomic.Uint64
	// idsUntold is the life in which the engine was asked for token ids and told none;
	// 0: none.
	idsUntold atomic.Uint64

	prefill *curve.Learned // time of a prefill, by PrefillFeatures
	step    *curve.Learned // time of a decode step, by StepFeatures

	handoffs  handoffs // of prefill
	addresses *address.Book

	mu   sync.Mutex // guards work and falls
	work [2]curve.Backlog
	// falls are called when the server is not expected to answer any more; see Fall.
	falls map[uint64]func(Fall)
}

// Fall is why a server is not expected to answer what it has not answered yet.
type Fall uint8

const (
	Fell   Fall = iota // two probes in a row failed: it is certain
	Silent             // probes are late and nothing else is heard: it is dead, or stands still
	Hangs              // a canary did not come back: the engine is stuck, for good or for a while
)

// OnFall calls fall when the server, or one that steps with it, has failed two probes
// in a row, is silent, or let a canary wait, and at each further probe or canary, until
// stop is called.
func (l *live) OnFall(fall func(Fall)) (stop func()) {
	id := leaseSeq.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.falls == nil {
		l.falls = make(map[uint64]func(Fall))
	}
	l.falls[id] = fall
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.falls, id)
	}
}

// fall tells all who wait on the server, or on one that steps with it.
func (l *live) fall(why Fall) {
	l.fallAlone(why)
	if g := l.group.Load(); g != nil {
		for _, m := range g.members {
			m.fallAlone(why)
		}
	}
}

func (l *live) fallAlone(why Fall) {
	l.mu.Lock()
	falls := slices.Collect(maps.Values(l.falls))
	l.mu.Unlock()
	for _, fall := range falls {
		fall(why)
	}
}

func newLive(cfg Config) *live {
	l := &live{
		recheck:      make(chan struct{}, 1),
		loadRequests: newLoadRequests(),
		wakeRequests: newWakeRequests(),
		addresses:    address.NewBook(),
		keep:         3 * cfg.ProbeInterval,
		slowStart:    cfg.SlowStart,
		prefill:      curve.NewLearned(cfg.Prefill, []curve.Features{curve.PrefillFeatures(256, 0), curve.PrefillFeatures(4096, 0), curve.PrefillFeatures(32768, 0)}, cfg.Forgetting),
		step:         curve.NewLearned(cfg.Step, []curve.Features{curve.StepFeatures(1, 2000), curve.StepFeatures(32, 100_000), curve.StepFeatures(128, 500_000)}, cfg.Forgetting),
	}
	l.vitals.born = time.Now()
	l.health.Store(&Health{Reason: notProbed})
	l.scraped.Store(&load.Load{})
	l.reported.Store(&load.Load{})
	l.told.Store(newIdentity(Identity{}, false))
	for i := range l.breakers {
		l.breakers[i] = breaker.New(cfg.Breaker)
	}
	return l
}

// LegIndex is where a leg stands in what is kept for both: prefill first.
func LegIndex(leg Role) int {
	if leg == Prefill {
		return 0
	}
	return 1
}

// notProbed is the reason of a server that no probe has told of.
const notProbed = "not probed yet"

// Health is what the last probe that was answered found. A server that is not Up takes
// nothing; whether one that is lives still, its State says.
type Health struct {
	Up     bool
	Reason string  // why it is down
	Models []Model // what it serves, or served when last up, as its /v1/models says

	at map[string]int // where in Models a name stands; nil: where there are few
}

// fewModels are found by looking at each.
const fewModels = 16

// serving returns the health with other models. It keeps them.
func (h Health) serving(models []Model) Health {
	h.Models, h.at = models, nil
	if len(models) <= fewModels {
		return h
	}
	h.at = make(map[string]int, len(models))
	for i, m := range models {
		if _, twice := h.at[m.ID]; !twice {
			h.at[m.ID] = i
		}
	}
	return h
}

// model returns what the engine said of one that it serves, whatever the number of others.
func (h Health) model(id string) (Model, bool) {
	if h.at != nil {
		i, found := h.at[id]
		if !found {
			return Model{}, false
		}
		return h.Models[i], true
	}
	for _, m := range h.Models {
		if m.ID == id {
			return m, true
		}
	}
	return Model{}, false
}

// Model is one entry of an engine's /v1/models.
type Model struct {
	ID          string
	Parent      string // base model of an adapter, else empty
	Owner       string // owned_by, which is the engine's name for itself
	MaxModelLen int    // tokens; 0 is unknown
	Created     int64  // unix seconds, as the engine says
}

// Life returns a number that changes when the server was down and is up again: what an
// engine said in an earlier life may not hold.
func (l *live) Life() uint64 { return l.life.Load() }

// Health returns the state as of the last probe or failed connection. Nobody may change it.
func (l *live) Health() *Health { return l.health.Load() }

// DownSince is since when the server is down, zero while it is up: what it said of its
// health before does not count.
func (l *live) DownSince() time.Time {
	if since := l.downSince.Load(); since != nil {
		return *since
	}
	return time.Time{}
}

// LoadRequests are the adapters that requests ask the server to load, WakeRequests those that
// wait for it to be awake, GPUShare is its part in sharing GPUs.
func (l *live) LoadRequests() *LoadRequests { return l.loadRequests }
func (l *live) WakeRequests() *WakeRequests { return l.wakeRequests }
func (l *live) GPUShare() *GPUShare         { return &l.gpus }

// ProbeDue says that the next probe is due at once.
func (l *live) ProbeDue() <-chan struct{} { return l.recheck }

// Load returns what the engine told last; its zero value is all unknown. What an
// answer or a stream of reports told counts before a scrape that is older, and a
// scrape fills in what they lack.
func (l *live) Load() load.Load {
	scraped, reported := l.scraped.Load(), l.reported.Load()
	if reported.At.After(scraped.At) {
		return reported.FilledFrom(*scraped, l.keep)
	}
	return *scraped
}

// MarkDown takes the server out at once, because a connection to it was refused.
// The next successful probe brings it back; one is due at once.
func (l *live) MarkDown(reason string) {
	l.setDown(reason)
	l.ProbeNow()
}

// ProbeNow makes the next probe due at once.
func (l *live) ProbeNow() {
	select {
	case l.recheck <- struct{}{}:
	default:
	}
}

// setDown keeps the models, so that a request for one of them is told that no
// server is there and not that there is no such model. They are asked for again
// before the server takes anything.
func (l *live) setDown(reason string) {
	was := l.health.Load()
	l.health.Store(&Health{Reason: reason, Models: was.Models, at: was.at})
	l.vitals.clear()
	if was.Up {
		now := time.Now()
		l.downSince.Store(&now)
		l.changed.note()
		l.states.note()
	}
}

// setUp lets the server in again: gradually, and proved first if it was ejected.
//
// asked is the health from before they were asked for: an adapter that was loaded or
// unloaded since may not be in them as it is, and the next probe asks again.
func (l *live) setUp(asked *Health, models []Model, slowStart time.Duration, now time.Time) {
	var was *Health
	told := Health{Up: true}.serving(models)
	for set := false; !set; {
		was = l.health.Load()
		next := told
		if was.Up && was != asked {
			next.Models, next.at = was.Models, was.at
		}
		set = l.health.CompareAndSwap(was, &next)
	}
	l.Heard(now)
	if was.Up {
		if !slices.Equal(was.Models, l.health.Load().Models) {
			l.states.note()
		}
		return
	}
	defer l.downSince.Store(nil)
	l.HandedOver()    // it may have been started anew with a connector
	away := slowStart // a server that is new is as cold as one that was long away
	if since := l.downSince.Load(); since != nil {
		away = now.Sub(*since)
	}
	for i, leg := range []Role{Prefill, Decode} {
		l.returned(leg, away, slowStart, now)
		l.breakers[i].ProbeNow(now)
	}
	l.changed.note()
	l.states.note()
}

// changeModels changes what the server is known to serve, until it says so itself.
func (l *live) changeModels(change func([]Model) []Model) {
	for {
		was := l.health.Load()
		next := was.serving(change(slices.Clone(was.Models)))
		if l.health.CompareAndSwap(was, &next) {
			l.states.note()
			return
		}
	}
}

// MarkBusy asks for the server to be left alone for d: it answered 429 or 503,
// which is load and no fault. A shorter pause never replaces a longer one.
func (l *live) MarkBusy(d time.Duration) {
	until := time.Now().Add(d)
	for was := l.busyUntil.Load(); was == nil || was.Before(until); was = l.busyUntil.Load() {
		if l.busyUntil.CompareAndSwap(was, &until) {
			return
		}
	}
}

func (l *live) busy(now time.Time) bool {
	until := l.busyUntil.Load()
	return until != nil && now.Before(*until)
}

// NoteCachedTokens remembers that the engine reports cached tokens.
func (l *live) NoteCachedTokens() { l.tellsCached.Store(true) }

// NoteNoTokenIDs remembers that the engine does not know return_token_ids, until it is
// started anew.
func (l *live) NoteNoTokenIDs() { l.idsUntold.Store(l.Life()) }

// NoteRetains remembers that the engine keeps the blocks of its answers for a prefill to
// fetch, and reports whether that is news in this life of it.
func (l *live) NoteRetains() bool { return l.retains.Swap(l.Life()) != l.Life() }

// TellsTokenIDs reports whether the engine may know return_token_ids.
func (l *live) TellsTokenIDs() bool { return l.idsUntold.Load() != l.Life() }

// TellsCachedTokens reports whether an answer without the number means zero.
func (l *live) TellsCachedTokens() bool { return l.tellsCached.Load() }

// Serves reports whether the engine said that it serves the model.
func (h Health) Serves(model string) bool {
	_, yes := h.model(model)
	return yes
}

// PrefillCurve predicts the time of a prefill on the server, by PrefillFeatures.
func (l *live) PrefillCurve() curve.Curve { return l.prefill.Curve() }

// StepCurve predicts the time of a decode step on the server, by StepFeatures.
func (l *live) StepCurve() curve.Curve { return l.step.Curve() }

// Confidence is how much of the two curves the server has shown lately, 0..1.
func (l *live) Confidence(now time.Time) (prefill, step float64) {
	return l.prefill.Confidence(now), l.step.Confidence(now)
}

// ObserveStep teaches the server's step curve one gap between two tokens of a
// stream, under the batch and KV of that time.
func (l *live) ObserveStep(gap time.Duration, sequences, kvTokens int, now time.Time) {
	l.step.Observe(curve.StepFeatures(sequences, kvTokens), gap, now)
}

// InFlight is work that gateways have on a server in one role.
type InFlight struct {
	Requests int
	Tokens   int
	Queue    time.Duration // predicted time until the outstanding work is done
	Stays    time.Duration // of it, what does not wear off while nothing is answered
}

// Plus returns the sum of two.
func (w InFlight) Plus(o InFlight) InFlight {
	return InFlight{Requests: w.Requests + o.Requests, Tokens: w.Tokens + o.Tokens, Queue: w.Queue + o.Queue, Stays: w.Stays + o.Stays}
}

// OwnInFlight returns this gateway's own outstanding work on the server.
func (l *live) OwnInFlight(leg Role, now time.Time) InFlight {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.work[LegIndex(leg)]
	return InFlight{Requests: w.Len(), Tokens: w.Tokens(), Queue: w.Ahead(now), Stays: w.Stays()}
}
