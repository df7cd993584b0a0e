package pd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools"
)

// bindsLate gives the orchestrator a decider that runs until the test's end.
func bindsLate(t *testing.T) func(*Orchestrator) {
	return func(o *Orchestrator) {
		d := NewDecider(o.Binder.Chooser, order.DefaultConfig(), time.Minute, o.Log)
		o.Binder.Late = d
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		var running sync.WaitGroup
		running.Go(func() { d.Run(ctx) })
		t.Cleanup(func() {
			stop()
			running.Wait()
		})
	}
}

// Requests that wait for their turn are answered as those that do not, all of them, and none
// waits any more afterwards.
func TestRun_BoundLateAllAreAnswered(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 2, orchestrator: bindsLate(t)})
	var all sync.WaitGroup
	for i := range 24 {
		req := f.asks(dialects[i%len(dialects)], more(dialects[i%len(dialects)], i%2 == 0))
		all.Go(func() {
			got, err := f.run(t.Context(), req)
			if err != nil || got.err != nil || got.text == "" {
				t.Errorf("%v, %v: %q", err, got.err, got.text)
			}
		})
	}
	all.Wait()
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_wait_seconds": 24, "tandem_retries_total": 0, "tandem_waiting_requests": 0, "tandem_in_flight_requests": 0})
	if f.metric("tandem_queue_evaluations_total") == 0 {
		t.Error("nothing was decided")
	}
}

// Of a whole answer nothing says when its prompt has been computed. While the server decodes it, for
// seconds, other prompts do not wait as if it were computed all the time.
func TestRun_BoundLatePromptsDoNotWaitForWholeAnswers(t *testing.T) {
	const requests = 16
	f := newEngineFleet(t, fleetShape{decode: 1, orchestrator: bindsLate(t), engine: func(c *engine.Config) {
		c.TimeScale, c.MinOutputTokens = 1, 1000 // some 16 s for an answer
	}})
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer leave()
	for range requests {
		req := f.asks(api.Chat, "")
		req.PromptTokens = 1000 // a prefill of a tenth of a second
		all.Go(func() {
			if _, err := f.run(ctx, req); !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want one that is still under way", err)
			}
		})
	}
	f.eventually("all of them are at the engine", func() bool { return f.decode[0].State().Running == requests })
}

// A request that has failed on a server has had its turn: it does not wait for another one.
func TestRun_BoundLateARetryDoesNotWaitAgain(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2, orchestrator: bindsLate(t)})
	for _, e := range f.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Count: 1})
	}
	for _, stream := range []bool{false, true} {
		f.served(f.asks(api.Chat, more(api.Chat, stream)))
	}
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_wait_seconds": 2, "tandem_retries_total": 2})
}

// A client that leaves while its request waits for its turn leaves nothing there.
func TestRun_BoundLateAClientThatLeavesWaitsNoMore(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, orchestrator: func(o *Orchestrator) {
		o.Binder.Late = NewDecider(o.Binder.Chooser, order.DefaultConfig(), time.Minute, o.Log) // no decider runs
	}})
	for cause, want := range map[string]error{"it leaves": context.Canceled, "its deadline": queue.ErrDeadline, "the longest wait": queue.ErrTimeout} {
		ctx, leave := context.WithCancel(t.Context())
		req := f.asks(api.Chat, more(api.Chat, false))
		f.Binder.Late.maxWait = time.Minute
		switch cause {
		case "its deadline":
			req.Deadline = time.Now().Add(30 * time.Millisecond)
		case "the longest wait":
			f.Binder.Late.maxWait = 30 * time.Millisecond
		}
		ended := make(chan error, 1)
		go func() {
			_, err := f.run(ctx, req)
			ended <- err
		}()
		if cause == "it leaves" {
			f.eventually("it waits", func() bool { waiting, _ := f.Queue.Len(); return waiting == 1 })
			leave()
		}
		if err := <-ended; !errors.Is(err, want) {
			t.Errorf("%s: %v", cause, err)
		}
		leave()
		f.nothingIsLeft()
	}
	if n := len(f.prefill[0].State().Requests); n != 0 {
		t.Errorf("prefill got %d requests", n)
	}
}

// A request that cannot have its first token in time is refused at once, not answered late.
// What has been begun is not given up.
func TestRun_ADeadlineThatCannotBeKeptIsToldAtOnce(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	f.served(f.asks(api.Chat, more(api.Chat, false))) // one that was in time is there lately
	req := f.asks(api.Chat, more(api.Chat, true))
	req.Deadline = time.Now().Add(-time.Second)
	if _, err := f.run(t.Context(), req); !errors.Is(err, queue.ErrDeadline) {
		t.Errorf("%v", err)
	}
	f.nothingIsLeft()
	req = f.asks(api.Chat, more(api.Chat, true))
	req.Deadline = time.Now().Add(time.Minute)
	f.served(req)
	f.nothingIsLeft()
}

// held is a fleet whose model is scaled to zero, with what its servers would be.
func heldFleet(t *testing.T, hold scalefromzero.Config) (f *engineFleet, specs []pools.Spec, begun *int) {
	f = newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	for _, s := range f.Fleet.Servers() {
		specs = append(specs, s.Spec)
	}
	if err := f.Fleet.Apply(nil); err != nil {
		t.Fatal(err)
	}
	begun = new(int)
	f.ScaleFromZero = &scalefromzero.Activator{
		Config: hold, Base: func(model string) (string, bool) { return testModel, model == testModel || model == "adapter" },
		Models: func() []string { return []string{testModel} }, Begin: func() { *begun++ },
	}
	return f, specs, begun
}

// noneIsHeld fails where a request still has its place: the first that is held has servers
// started, and the next one is not the first then.
func noneIsHeld(t *testing.T, f *engineFleet, begun *int) {
	t.Helper()
	before := *begun
	f.ScaleFromZero.Config.MaxWait = time.Minute
	next, ok := f.ScaleFromZero.Enter(testModel, time.Time{}, nil)
	defer next.End()
	if !ok || *begun != before+1 {
		t.Errorf("requests are still held")
	}
}

// Requests of a model without servers are held until these are there: the first of them has
// servers started, and all are answered as any other.
func TestRun_HeldUntilServersCome(t *testing.T) {
	f, specs, begun := heldFleet(t, scalefromzero.Config{MaxWait: time.Minute, MaxWaiting: 4})
	var all sync.WaitGroup
	for i := range 3 {
		req := f.asks(api.Chat, more(api.Chat, i%2 == 0))
		all.Go(func() {
			if got, err := f.run(t.Context(), req); err != nil || got.err != nil || got.Prefill == "" {
				t.Errorf("%v, %v, by %q", err, got.err, got.Prefill)
			}
		})
	}
	f.eventually("they are held", func() bool { waiting, _ := f.Queue.Len(); return waiting == 3 })
	if err := f.Fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if *begun != 1 {
		t.Errorf("servers were asked for %d times", *begun)
	}
	f.nothingIsLeft()
	noneIsHeld(t, f, begun)
}

// No request is held where it is of no use: for models that no server serves, beyond the bound, for
// longer than allowed, or behind the request's deadline or its client's patience.
func TestRun_HeldNoLongerThanOfUse(t *testing.T) {
	f, _, begun := heldFleet(t, scalefromzero.Config{MaxWait: 150 * time.Millisecond, MaxWaiting: 1})
	var none *NoServerError
	ask := func(change func(*Request)) error {
		req := f.asks(api.Chat, more(api.Chat, false))
		if change != nil {
			change(req)
		}
		_, err := f.run(t.Context(), req)
		return err
	}
	if err := ask(func(r *Request) { r.Model = "unknown" }); !errors.As(err, &none) || *begun != 0 {
		t.Errorf("a model that no server serves: %v", err)
	}
	start := time.Now()
	if err := ask(nil); !errors.As(err, &none) || time.Since(start) < 150*time.Millisecond || *begun != 1 {
		t.Errorf("held for %v: %v", time.Since(start), err)
	}
	if err := ask(func(r *Request) { r.Deadline = time.Now().Add(50 * time.Millisecond) }); !errors.Is(err, queue.ErrDeadline) {
		t.Errorf("behind its deadline: %v", err)
	}
	f.ScaleFromZero.Config.MaxWait = time.Minute
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	req := f.asks(api.Chat, more(api.Chat, false))
	go func() {
		_, err := f.run(ctx, req)
		first <- err
	}()
	f.eventually("it is held", func() bool { waiting, _ := f.Queue.Len(); return waiting == 1 })
	if err := ask(nil); !errors.As(err, &none) {
		t.Errorf("one more than may be held: %v", err)
	}
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("its client left: %v", err)
	}
	f.ScaleFromZero.Config.MaxWait = 0
	if err := ask(nil); !errors.As(err, &none) {
		t.Errorf("no request is to be held: %v", err)
	}
	f.nothingIsLeft()
	noneIsHeld(t, f, begun)
}

// A gateway is ready where a request could be served, or would be held until it can.
func TestReady_WhereARequestCouldBeServed(t *testing.T) {
	f, specs, _ := heldFleet(t, scalefromzero.Config{MaxWait: time.Minute, MaxWaiting: 1})
	ready := func(when string, want bool, why string) {
		t.Helper()
		if got, text := f.Ready(); got != want || text != why {
			t.Errorf("%s: %v, %q", when, got, text)
		}
	}
	const noDecode, noPrefill = "no decode server takes requests", "no prefill server takes requests, and no decode server may work alone"
	ready("scaled to zero, and held", true, "")
	if models := f.ScaleFromZero.WillServeModels(); !slices.Equal(models, []string{testModel}) {
		t.Errorf("held are requests for %v", models)
	}
	f.ScaleFromZero.Config.MaxWait = 0
	if models := f.ScaleFromZero.WillServeModels(); models != nil {
		t.Errorf("held are requests for %v", models)
	}
	ready("scaled to zero", false, noDecode)
	f.ScaleFromZero = nil
	apply := func(specs []pools.Spec) {
		t.Helper()
		if err := f.Fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		f.eventually("they are up", func() bool {
			return !slices.ContainsFunc(f.Fleet.Servers(), func(s *pools.Server) bool { return !s.Health().Up })
		})
	}
	apply(specs[:1])
	ready("prefill only", false, noDecode)
	apply(specs[1:])
	ready("decode only", true, "")
	f.Binder.Config.EnforceDisaggregation = true
	ready("decode only, which must not work alone", false, noPrefill)
	apply(specs)
	ready("both", true, "")
	drain := func(s *pools.Server, drains bool) {
		t.Helper()
		if ids := f.Fleet.SetDrain(s.ID(), drains); len(ids) != 1 {
			t.Fatalf("%v drain", ids)
		}
	}
	drain(f.server(f.decode[0]), true)
	ready("decode is draining", false, noDecode)
	drain(f.server(f.decode[0]), false)
	drain(f.server(f.prefill[0]), true)
	ready("prefill is draining", false, noPrefill)
	drain(f.server(f.prefill[0]), false)
	f.Binder.Config.UnresponsiveWait = 0
	f.server(f.decode[0]).MarkDown("for the test")
	ready("decode has just gone down", false, noDecode)
	f.Binder.Config.UnresponsiveWait = time.Minute
	ready("decode has just gone down, and requests wait for it", true, "")
}
