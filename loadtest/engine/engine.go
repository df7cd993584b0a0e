// Package engine is a simulated LLM engine that speaks vLLM's HTTP API, so that a
// gateway for disaggregated serving can be tested and measured without a GPU.
//
// It is honest where a gateway could go wrong. Its answers are autoregressive: each
// token is a function of all tokens before it, the model and the adapter, so that a
// lost, doubled or wrong token changes the rest. Its tokenizer merges across words.
// Its KV cache is paged, reuses prefixes, evicts, and says so in KV events. A prefill
// leg holds its blocks under a lease; a decode leg pulls them from that engine over
// HTTP and checks that they belong to its own prompt. A wrong, stale, foreign or
// missing hand-off is noticed, counted, and recomputed or failed. Time passes by
// published formulas, scaled.
//
// What happened is at GET /sim/state; POST /sim/faults makes it misbehave.
//
// A request takes this way: server.go (routing, recording, faults) -> one file for
// each API (chat.go, completions.go, ...) -> generation.go -> rank.go and schedule.go
// (batches, KV blocks) -> answers.go -> back to the API's file.
package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Engine is a running simulated engine.
type Engine struct {
	cfg       Config
	language  *language
	ranks     []*rank
	registry  *prometheus.Registry // of vLLM's metrics
	pages     metricsPages
	others    *prometheus.Registry // of another engine's, where it is not vLLM
	adapters  *adapters
	faults    faults
	recorder  *recorder
	started   time.Time
	load      atomic.Int64 // HTTP requests under way
	turn      atomic.Uint64
	sleepMode sleepState
	media     sync.Map // digests of media by the uuid that they came with

	api       *listener
	listeners []*listener // of the ranks by their number, where each has its own; the first is api
	control   *listener   // nil: none
	reports   *reports
	side      *listener

	life    context.Context // ends when the engine closes
	end     context.CancelFunc
	loops   sync.WaitGroup // of the ranks
	gate    handlerGate
	closing sync.Once
	closed  error
}

// Start runs an engine until ctx ends or Close is called. It listens when Start
// returns.
func Start(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("engine configuration: %w", err)
	}
	e := &Engine{
		cfg:      cfg,
		language: newLanguage(cfg.Model+cfg.Weights, cfg.MinOutputTokens, cfg.MeanOutputTokens),
		registry: prometheus.NewRegistry(),
		others:   prometheus.NewRegistry(),
		adapters: newAdapters(cfg.Adapters),
		recorder: newRecorder(),
		started:  time.Now(),
	}
	e.life, e.end = context.WithCancel(ctx)
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	context.AfterFunc(ctx, func() { _ = e.Close() }) // its error is for the caller of Close
	return e, nil
}

// open makes the ranks and listens: first where other engines pull KV, since
// hand-offs name that port, last where requests come in.
func (e *Engine) open() (err error) {
	sideAddress := e.cfg.SideChannel
	if sideAddress == "" {
		host, _, err := net.SplitHostPort(e.cfg.Listen)
		if err != nil {
			return fmt.Errorf("listen address: %w", err)
		}
		sideAddress = net.JoinHostPort(host, "0")
	}
	incoming := newLink(e.cfg.LinkBytesPerSecond, e.cfg.LinkLatency, e.cfg.TimeScale)
	outgoing := newLink(e.cfg.LinkBytesPerSecond, e.cfg.LinkLatency, e.cfg.TimeScale)
	uplink := newLink(cmp.Or(e.cfg.UplinkBytesPerSecond, e.cfg.LinkBytesPerSecond), e.cfg.LinkLatency, e.cfg.TimeScale)
	side := &sideChannel{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	id := newID("")
	for i := range e.cfg.DataParallel {
		rankID := id
		if e.cfg.DataParallel > 1 {
			rankID = id + "_dp" + strconv.Itoa(i)
		}
		r := newRank(i, rankID, &e.cfg, e.language)
		r.incoming, r.outgoing, r.uplink, r.side = incoming, outgoing, uplink, side
		r.faults, r.fatal = &e.faults, e.die
		r.meters = newRankMeters(e.registry, r, &e.pages.changes)
		expose(e.others, e.cfg.exposition(), r)
		if r.events, err = newPublisher(&e.cfg, i); err != nil {
			return err
		}
		if r.pushes, err = newLoadPublisher(&e.cfg, r); err != nil {
			return err
		}
		e.ranks = append(e.ranks, r)
	}
	if e.cfg.Lockstep {
		steps := newLockstep()
		for _, r := range e.ranks {
			r.steps = steps
		}
	}
	e.registry.MustRegister(newAdapterCollector(e.ranks)) // the registry is new
	e.side = newListener(sideAddress, e.counted(sideChannelHandler(e.ranks)))
	if err := e.makeListeners(); err != nil {
		return err
	}
	if err := e.side.open(); err != nil {
		return fmt.Errorf("side channel: %w", err)
	}
	if side.host, side.port, err = e.advertised(); err != nil {
		return err
	}
	for _, r := range e.ranks {
		e.loops.Go(func() { r.run(e.life) })
	}
	if err := e.openReports(); err != nil {
		return err
	}
	if e.cfg.Control != "" {
		e.control = newListener(e.cfg.Control, e.counted(e.controlHandler()))
		if err := e.control.open(); err != nil {
			return fmt.Errorf("control: %w", err)
		}
	}
	for _, l := range e.listeners {
		if err := l.open(); err != nil {
			return err
		}
	}
	return nil
}

// makeListeners makes one for all ranks, or one for each.
func (e *Engine) makeListeners() error {
	if !e.cfg.RankPorts {
		e.api = newListener(e.cfg.Listen, e.counted(e.apiHandler(-1)))
		e.listeners = []*listener{e.api}
		return nil
	}
	host, text, err := net.SplitHostPort(e.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen address: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("listen port: %w", err)
	}
	for i := range e.ranks {
		at := port
		if port != 0 {
			at += i
		}
		e.listeners = append(e.listeners, newListener(net.JoinHostPort(host, strconv.Itoa(at)), e.counted(e.apiHandler(i))))
	}
	e.api = e.listeners[0]
	return nil
}

// advertised is the side channel's address as hand-offs name it.
func (e *Engine) advertised() (host string, port int, err error) {
	host, portText, err := net.SplitHostPort(e.side.addr)
	if err != nil {
		return "", 0, fmt.Errorf("side channel address: %w", err)
	}
	if port, err = strconv.Atoi(portText); err != nil {
		return "", 0, fmt.Errorf("side channel port: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	if e.cfg.AdvertiseHost != "" {
		host = e.cfg.AdvertiseHost
	}
	return host, port, nil
}

// URL is the address of the API, without a path.
func (e *Engine) URL() string { return urlOf(e.api.addr) }

// RankURL is the address of one rank, where each has its own.
func (e *Engine) RankURL(rank int) string { return urlOf(e.listeners[rank].addr) }

// ControlURL is the address of /sim/ that faults do not close: the control listener
// if there is one, else the API.
func (e *Engine) ControlURL() string {
	if e.control != nil {
		return urlOf(e.control.addr)
	}
	return e.URL()
}

func urlOf(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "http://" + addr
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// SetFault is AddFault for tests: it panics on a fault that could never do anything.
func (e *Engine) SetFault(f Fault) {
	if err := e.AddFault(f); err != nil {
		panic("engine: " + err.Error())
	}
}

// AddFault adds a fault to those set.
func (e *Engine) AddFault(f Fault) error {
	if err := f.validate(); err != nil {
		return err
	}
	e.faults.add(f)
	switch {
	case f.Kind == FaultRankDies:
		rank := 0
		if f.Rank != nil {
			rank = min(*f.Rank, len(e.ranks)-1)
		}
		e.ranks[rank].die()
		if len(e.listeners) > 1 {
			e.listeners[rank].suspend()
		}
	case f.closesListener():
		e.api.suspend()
	}
	return nil
}

// ClearFaults removes all faults. What hangs goes on hanging until its client leaves.
// It panics when the address that a fault closed was taken by someone else meanwhile.
func (e *Engine) ClearFaults() {
	if err := e.clearFaults(); err != nil {
		panic("engine: " + err.Error())
	}
}

func (e *Engine) clearFaults() error {
	e.faults.clear()
	for _, r := range e.ranks {
		r.revive()
	}
	var errs []error
	for _, l := range e.listeners {
		errs = append(errs, l.open())
	}
	return errors.Join(errs...)
}

// Close stops everything the engine started and waits for it. Requests under way
// are cut off. It may be called more than once.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.end()
		e.reports.close()
		e.loops.Wait()
		var errs []error
		for _, l := range append([]*listener{e.control, e.side}, e.listeners...) {
			if l != nil {
				errs = append(errs, l.close())
			}
		}
		for _, r := range e.ranks {
			r.close()
		}
		e.gate.close()
		for _, r := range e.ranks {
			if r.events != nil {
				r.events.close()
			}
			r.pushes.close()
			r.side.client.CloseIdleConnections()
		}
		e.closed = errors.Join(errs...)
	})
	return e.closed
}

// counted makes Close wait for a handler, and refuses requests after it.
func (e *Engine) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !e.gate.enter() {
			panic(http.ErrAbortHandler)
		}
		defer e.gate.inside.Done()
		h.ServeHTTP(w, r)
	})
}

// handlerGate counts HTTP handlers under way, so that Close can wait for them.
type handlerGate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// enter is false once the gate is closed; else the caller leaves by inside.Done.
func (g *handlerGate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

// close refuses new requests and waits until all have ended.
func (g *handlerGate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

// newID is a prefix and 32 random hex digits.
func newID(prefix string) string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return prefix + hex.EncodeToString(b[:])
}
