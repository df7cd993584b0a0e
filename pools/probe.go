package pools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// maxProbeBody bounds what is read of a probe's answer, in bytes. A vLLM with
// many adapters exposes some hundred kilobytes of metrics.
const maxProbeBody = 8 << 20

// prober watches one server: is it healthy, which models does it serve, how
// loaded is it.
type prober struct {
	spec Spec
	live *live
	cfg  Config
	load *scraper
	// inFlight is the work of all gateways on the server, in both roles.
	inFlight func(now time.Time) InFlight
	client   *http.Client // with the time limit of a probe
	patient  *http.Client // with that of an answer that is late
	mostLate func() bool  // of the fleet's servers
	changed  func()       // tells the fleet that the server came up or fell
	log      *slog.Logger

	asking  *sync.WaitGroup // probes that are not answered
	doubted bool            // and that was logged
}

// lateAnswer is how long the answer to a probe that is late is a sign of life yet.
const lateAnswer = 10 * time.Second

// run probes until ctx ends, at once when MarkDown asks for it. Intervals are
// jittered, the first one most, so that gateways and servers that start together
// do not probe in step.
func (p *prober) run(ctx context.Context) {
	defer p.asking.Wait()
	for first := true; ; first = false {
		p.probe(ctx)
		pause := time.Duration(float64(p.cfg.ProbeInterval) * (0.8 + 0.4*rand.Float64()))
		if first {
			pause = rand.N(p.cfg.ProbeInterval)
		}
		next := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		case <-p.live.recheck:
			next.Stop()
			// A refused connection was reported. A short pause keeps a flood of
			// refused requests from becoming a flood of probes.
			if !Pause(ctx, p.cfg.ProbeInterval/10) {
				return
			}
		}
	}
}

// probe asks for health, models and load. Only the first two decide whether the
// server is up. The models are asked for every time: adapters come and go, and
// another engine may take the address.
func (p *prober) probe(ctx context.Context) {
	asked, sent := p.live.health.Load(), time.Now()
	was := *asked
	if err := p.healthyInTime(ctx); err != nil {
		p.failed(ctx, was, err, sent)
		return
	}
	models, err := p.models(ctx)
	if err != nil {
		p.failed(ctx, was, fmt.Errorf("identity: %w", err), sent)
		return
	}
	p.identify(ctx, was, models)
	p.sleeping(ctx)
	p.live.setUp(asked, models, p.cfg.SlowStart, time.Now())
	if p.doubted {
		p.doubted = false
		p.log.Info("server answers again", "role", p.spec.Role.String())
	}
	if !was.Up {
		p.live.life.Add(1)
		p.changed()
		p.log.Info("server up", "role", p.spec.Role.String(), "models", modelIDs(models))
	}
	p.scrape(ctx)
}

// healthyInTime is healthy, with an error that is a timeout when the answer is late. What
// comes later is a sign of life still, while other probes may be under way: on a network
// that has lost packets a new connection is answered sooner.
func (p *prober) healthyInTime(ctx context.Context) error {
	answer := make(chan error, 1)
	patient := *p // a copy: p goes on beside it
	patient.client = p.patient
	p.asking.Go(func() {
		answer <- patient.healthy(ctx)
	})
	patience, cancel := withOwnTimeout(ctx, p.cfg.ProbeTimeout)
	defer cancel()
	select {
	case err := <-answer:
		return err
	case <-patience.Done():
		return context.Cause(patience)
	}
}

// failed takes in that a probe which was sent at a time was not answered well, or not in
// time.
func (p *prober) failed(ctx context.Context, was Health, err error, sent time.Time) {
	switch {
	case ctx.Err() != nil || outOfDescriptors(err):
	case was.Up && isLate(err):
		p.late(sent)
	default:
		p.down(was, err)
	}
}

// isLate reports whether an error only says that there was no answer yet: of the server, or
// of the name service.
func isLate(err error) bool {
	var name *net.DNSError
	return isTimeout(err) || errors.As(err, &name) && !name.IsNotFound
}

func (p *prober) late(sent time.Time) {
	d := p.live.late(sent)
	if d.late > 0 && !p.doubted {
		p.doubted = true
		p.log.Warn("server in doubt: a probe is late", "role", p.spec.Role.String())
	}
	if d.silent(p.mostLate()) {
		p.live.fall(Silent)
	}
}

func (p *prober) down(was Health, err error) {
	reason := probeReason(err)
	p.live.setDown(reason)
	p.doubted = false
	if !was.Up {
		p.live.fall(Fell)
	}
	p.changed()
	switch {
	case AsksForKey(err) && (was.Up || was.Reason != reason):
		p.log.Warn("server down: the engine wants a key, or another one than it was shown; engine-key-file names the file that holds it",
			"role", p.spec.Role.String(), "reason", reason)
	case was.Up:
		p.log.Warn("server down", "role", p.spec.Role.String(), "reason", reason)
	case was.Reason != reason:
		p.log.Info("server not up", "role", p.spec.Role.String(), "reason", reason)
	}
}

// outOfDescriptors reports a shortage of our own, which says nothing of the server.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// probeReason is short and carries no address: it is shown to people and kept
// while it stays the same, so that a down server is logged once.
func probeReason(err error) string {
	if isLate(err) {
		return "probe timed out"
	}
	return rootCause(err).Error()
}

func rootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

func (p *prober) models(ctx context.Context) ([]Model, error) {
	body, err := p.get(ctx, p.spec.URL+"/v1/models")
	if err != nil {
		return nil, err
	}
	models, more, err := parseModels(body)
	if more > 0 && !p.live.health.Load().Up {
		p.log.Warn("the server lists more models than are known of one", "known", len(models), "left_out", more)
	}
	return models, err
}

func (p *prober) scrape(ctx context.Context) {
	if load, ok := p.load.scrape(ctx, p.get); ok {
		load.Foreign = load.foreign(p.inFlight(load.At))
		p.live.scraped.Store(&load)
	}
}

func (p *prober) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	p.live.Heard(time.Now())
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusError{req.URL.Path, resp.StatusCode}
	}
	return body, nil
}

// statusError is an answer other than 200.
type statusError struct {
	path string
	code int
}

func (e statusError) Error() string { return fmt.Sprintf("%s answered %d", e.path, e.code) }

// AsksForKey reports whether a probe failed because the engine lets nobody in without a key,
// or not with the key that it was shown.
func AsksForKey(err error) bool {
	var status statusError
	return errors.As(err, &status) && (status.code == http.StatusUnauthorized || status.code == http.StatusForbidden)
}

// maxModels and maxModelID bound what is known of one server, in names and in bytes of one:
// each is a label of metrics and looked at by every request.
const (
	maxModels  = 4096
	maxModelID = 512
)

// parseModels reads an OpenAI model list, and returns how many names it leaves out.
func parseModels(body []byte) (models []Model, more int, err error) {
	var list struct {
		Data []struct {
			ID          string  `json:"id"`
			Parent      string  `json:"parent"`
			Owner       string  `json:"owned_by"`
			MaxModelLen int     `json:"max_model_len"`
			Created     float64 `json:"created"` // with a fraction from Hugging Face's transformers serve
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, 0, errors.New("/v1/models is not a model list")
	}
	for _, m := range list.Data {
		switch {
		case m.ID == "":
		case len(models) == maxModels || len(m.ID) > maxModelID || len(m.Parent) > maxModelID:
			more++
		default:
			models = append(models, Model{m.ID, m.Parent, m.Owner, m.MaxModelLen, int64(m.Created)})
		}
	}
	if len(models) == 0 {
		return nil, more, errors.New("/v1/models names no model")
	}
	return models, more, nil
}

func modelIDs(models []Model) []string {
	ids := make([]string, len(models))
	for i, m := range models {
		ids[i] = m.ID
	}
	return ids
}

// Probed is what a server said when it was asked once.
type Probed struct {
	*Server      // as the answers make it: outside a fleet, and up
	Load    Load // unknown is a valid answer
}

// Probe asks a server once, without a fleet, what a prober would: for checking a
// configuration by hand.
func Probe(ctx context.Context, spec Spec, tables []LoadTable, client *http.Client, log *slog.Logger) (Probed, error) {
	p := prober{spec: spec, live: newLive(Default()), client: client, log: log}
	err := p.healthy(ctx)
	if errors.Is(err, errSlowHealth) {
		patient := *client
		patient.Timeout = slowHealthTimeout
		_, err = (&prober{client: &patient, live: p.live}).get(ctx, spec.URL+"/health")
	}
	if err != nil {
		return Probed{}, err
	}
	models, err := p.models(ctx)
	if err != nil {
		return Probed{}, err
	}
	p.identify(ctx, Health{}, models)
	load, _ := newScraper(spec, tables).scrape(ctx, p.get)
	health := Health{Up: true}.serving(models)
	p.live.health.Store(&health)
	return Probed{Server: &Server{Spec: spec, id: spec.ID(), class: configuredClass(spec), live: p.live}, Load: load}, nil
}
