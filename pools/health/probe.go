package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// prober watches one server: is it healthy, which models does it serve, how
// loaded is it.
type prober struct {
	engine         // with the time limit of a probe
	patient engine // with that of an answer that is late
	slow    *slowHealth
	cfg     pools.Config
	load    *load.Scraper
	list    modelList
	page    bytes.Buffer // memory for the next list
	log     *slog.Logger

	ranks    *rankAddress // what it shares with them; nil: the server is not a rank
	loadRead time.Time    // when a page was read for this rank
	due      bool         // the next probe was asked for: what others were told before does not answer it

	goes         sync.WaitGroup // goroutines that probe, or wait for an answer that is late
	unresponsive bool           // and that was logged
	saidUp       bool           // the log said last that the server is up
}

// lateAnswer is how long the answer to a probe that is late is a sign of life yet.
const lateAnswer = 10 * time.Second

func newProber(e engine, slow *slowHealth, cfg pools.Config, pages *load.Pages, log *slog.Logger) *prober {
	p := &prober{engine: e, patient: e, slow: slow, cfg: cfg, log: log, saidUp: e.server.Health().Up}
	p.limit, p.patient.limit = cfg.ProbeTimeout, max(lateAnswer, cfg.ProbeTimeout)
	p.load = load.NewScraper(e.server.Metrics, e.server.Rank, pages)
	return p
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) {
	defer p.goes.Wait()
	if p.probe(ctx) && p.pause(ctx, rand.N(p.cfg.ProbeInterval)) {
		p.repeat(ctx)
	}
}

// repeat probes until ctx ends, at once when the server asks for it, or until another goroutine does so.
// Intervals are jittered, the first one most, so that gateways and servers that start together
// do not probe in step.
func (p *prober) repeat(ctx context.Context) {
	for p.probe(ctx) && p.pause(ctx, p.jittered()) {
	}
}

func (p *prober) jittered() time.Duration {
	return shortestPause(p.cfg.ProbeInterval) + time.Duration(float64(p.cfg.ProbeInterval)*0.4*rand.Float64())
}

// shortestPause is the least time between two probes of one server.
func shortestPause(interval time.Duration) time.Duration { return interval * 4 / 5 }

// pause waits for the time of the next probe, and reports whether there is one.
func (p *prober) pause(ctx context.Context, d time.Duration) bool {
	next := time.NewTimer(d)
	defer next.Stop()
	p.due = false
	select {
	case <-ctx.Done():
		return false
	case <-next.C:
		return true
	case <-p.server.ProbeDue():
		p.due = true
		// A refused connection was reported. A short pause keeps a flood of
		// refused requests from becoming a flood of probes.
		return pools.Pause(ctx, p.cfg.ProbeInterval/10)
	}
}

// probe asks for health, models and load. Only the first two decide whether the
// server is up. The models are asked for every time: adapters come and go, and
// another engine may take the address. It returns false where the answer was late: another goroutine goes on then.
func (p *prober) probe(ctx context.Context) (inTime bool) {
	was, sent := p.server.Health(), time.Now()
	if p.isKnownWell(was) {
		p.sleeping(ctx)
		p.ranks.read(ctx, p)
		return true
	}
	err, inTime := p.healthyInTime(ctx, was, sent)
	if !inTime {
		return false
	}
	if err != nil {
		p.failed(ctx, was, err, sent)
		return true
	}
	models, err := p.models(ctx)
	if err != nil {
		p.failed(ctx, was, fmt.Errorf("identity: %w", err), sent)
		return true
	}
	p.identify(ctx, was.Up, models, p.log)
	p.sleeping(ctx)
	p.server.ProbePassed(was, models, time.Now())
	if p.unresponsive {
		p.unresponsive = false
		p.log.Info("server answers again", "role", p.server.Role.String())
	}
	if !was.Up {
		p.log.Info("server up", "role", p.server.Role.String(), "models", modelIDs(models))
	} else {
		p.logChange(was.Models, models)
	}
	p.saidUp = true
	if p.ranks != nil {
		p.ranks.recordWell(sent, models)
		p.ranks.read(ctx, p)
	} else {
		p.readLoad(ctx)
	}
	return true
}

// isKnownWell reports whether another rank at the server's address was just told what this one would be.
func (p *prober) isKnownWell(was *pools.Health) bool {
	return p.ranks != nil && !p.due && was.Up && !p.unresponsive && p.server.State() == pools.Alive && p.ranks.isWell(was.Models)
}

// readLoad asks for the load, and reports whether there was one.
func (p *prober) readLoad(ctx context.Context) bool {
	load, ok := p.load.Scrape(ctx, p.read)
	if ok {
		p.server.ReportLoad(load)
	}
	return ok
}

// logChange logs that a server that stayed up serves other models: another engine may have taken its address between
// two probes. Adapters come and go by themselves.
func (p *prober) logChange(was, models []pools.Model) {
	if sameIDs(was, models) {
		return
	}
	before, after := baseModels(was), baseModels(models)
	if sameIDs(before, after) {
		p.log.Debug("server's adapters changed", "models", modelIDs(models))
		return
	}
	p.log.Info("server serves other models", "role", p.server.Role.String(), "models", modelIDs(after), "before", modelIDs(before))
}

// healthyInTime asks whether the server is well. Where its answer is late, what comes later is a sign of life
// still, while other probes may be under way: on a network that has lost packets a new connection is answered
// sooner. The goroutine that waits for it ends with it then, and another one probes in its place. (One for each
// question would cost half of what the question does.)
func (p *prober) healthyInTime(ctx context.Context, was *pools.Health, sent time.Time) (err error, inTime bool) { //nolint:revive,staticcheck // the second is of the error
	var decided atomic.Bool
	stop := afterOwnTime(p.cfg.ProbeTimeout, func() {
		p.goes.Add(1) // before the other one may end
		defer p.goes.Done()
		if !decided.CompareAndSwap(false, true) {
			return
		}
		p.failed(ctx, was, context.DeadlineExceeded, sent)
		if p.pause(ctx, p.jittered()) {
			p.repeat(ctx)
		}
	})
	err = p.slow.healthy(ctx, p.patient, p.log)
	stop()
	return err, decided.CompareAndSwap(false, true)
}

// failed takes in that a probe which was sent at a time was not answered well, or not in
// time.
func (p *prober) failed(ctx context.Context, was *pools.Health, err error, sent time.Time) {
	if p.ranks != nil {
		p.ranks.forgetWell()
	}
	switch {
	case ctx.Err() != nil || outOfDescriptors(err):
	case was.Up && isLate(err):
		p.late(sent)
	default:
		p.down(was, err)
	}
}

// isLate reports whether an error only means that there was no answer yet: of the server, or
// of the name service.
func isLate(err error) bool {
	var name *net.DNSError
	return isTimeout(err) || errors.As(err, &name) && !name.IsNotFound
}

func (p *prober) late(sent time.Time) {
	if p.server.ProbeLate(sent) && !p.unresponsive {
		p.unresponsive = true
		p.log.Warn("server unresponsive: a probe is late", "role", p.server.Role.String())
	}
}

// down notes that a probe failed. Where a request noticed it first the server is down already, and the log has yet to
// say so.
func (p *prober) down(was *pools.Health, err error) {
	why := reason(err)
	p.server.ProbeFailed(was, why)
	saidUp := p.saidUp
	p.unresponsive, p.saidUp = false, false
	switch {
	case AsksForKey(err) && (saidUp || was.Reason != why):
		p.log.Warn("server down: the engine wants a key, or another one than it was shown; engine-key-file names the file that holds it",
			"role", p.server.Role.String(), "reason", why)
	case IsLoop(err) && (saidUp || was.Reason != why):
		p.log.Error("server is a gateway with the same servers: it gets no request", "role", p.server.Role.String(), "reason", why)
	case saidUp:
		p.log.Warn("server down", "role", p.server.Role.String(), "reason", why)
	case was.Reason != why:
		p.log.Info("server not up", "role", p.server.Role.String(), "reason", why)
	}
}

// sleeping asks the engine whether it sleeps. Engines without sleep mode do not know
// the path, and do not sleep.
func (e engine) sleeping(ctx context.Context) {
	if e.server.GPUs == "" {
		return
	}
	share := e.server.GPUShare()
	mark := share.Version()
	body, err := e.get(ctx, "/is_sleeping")
	if err != nil {
		return
	}
	var answer struct {
		Sleeping bool `json:"is_sleeping"`
	}
	if json.Unmarshal(body, &answer) == nil {
		share.Observe(answer.Sleeping, mark, time.Now())
	}
}

// Probed is what a server answered when it was asked once.
type Probed struct {
	*pools.Server           // as the answers make it: outside a fleet, and up
	Load          load.Load // unknown is a valid answer
	// Metrics is why the metrics that its configuration names could not be read; nil also where it names none.
	Metrics error
}

// Probe asks a server once, without a fleet, what a prober would, and reads no page twice: for
// checking a configuration by hand.
func Probe(ctx context.Context, spec pools.Spec, cfg pools.Config, transport http.RoundTripper, log *slog.Logger) (Probed, error) {
	s := pools.NewServer(spec)
	transport = pageMemory{transport, make(map[string][]byte)}
	e := engine{s, transport, cfg.ProbeTimeout}
	err := newSlowHealth().healthy(ctx, e, log)
	if errors.Is(err, errSlowHealth) {
		_, err = engine{s, transport, slowHealthTimeout}.get(ctx, "/health")
	}
	if err != nil {
		return Probed{}, err
	}
	models, err := e.models(ctx, log)
	if err != nil {
		return Probed{}, err
	}
	e.identify(ctx, false, models, log)
	probed := Probed{Server: s}
	read := func(ctx context.Context, page string, into *bytes.Buffer) error {
		err := e.read(ctx, page, into)
		if page == spec.Metrics {
			probed.Metrics = err
		}
		return err
	}
	probed.Load, _ = load.NewScraper(spec.Metrics, spec.Rank, load.NewPages(cfg.LoadTables)).Scrape(ctx, read)
	s.ProbePassed(s.Health(), models, time.Now())
	return probed, nil
}
