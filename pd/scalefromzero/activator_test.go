package scalefromzero

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

const testModel = "llama"

// engines makes every server healthy with one model: another one at 10.9.0.1, and none at 10.7.0.1, which
// refuses all.
type engines struct{}

func (engines) RoundTrip(r *http.Request) (*http.Response, error) {
	model, body := testModel, ""
	switch r.URL.Hostname() {
	case "10.9.0.1":
		model = "another"
	case "10.7.0.1":
		return nil, io.ErrUnexpectedEOF
	}
	if r.URL.Path == "/v1/models" {
		body = `{"data":[{"id":"` + model + `"}]}`
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
}

// A held request looks at the fleet when something has changed, and once in a while, however
// many servers change.
func TestHold_LooksAreAsManyAsChangesAndFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{}, 1)
		var looks atomic.Int64
		var lookedAt atomic.Pointer[time.Time]
		ended := make(chan error)
		go func() {
			ended <- lookUntil(ctx, changed, func() (bool, error) {
				now := time.Now()
				looks.Add(1)
				lookedAt.Store(&now)
				return false, nil
			})
		}()
		change := func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		time.Sleep(time.Minute)
		if n := looks.Swap(0); n < 50 || n > 61 {
			t.Errorf("%d looks in a minute in which nothing changed", n)
		}
		for range 512 {
			change()
			time.Sleep(2 * time.Millisecond)
		}
		if n := looks.Load(); n > 21 {
			t.Errorf("%d looks at 512 changes in a second", n)
		}
		time.Sleep(2*capacityBeat + capacityBeat/3)
		change()
		at := time.Now()
		time.Sleep(capacityBeat / 2)
		if after := lookedAt.Load().Sub(at); after <= 0 || after > capacityStep {
			t.Errorf("looked %v after a change", after)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// What a request is held for wakes it: servers that come.
func TestHold_ServersThatComeWakeARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		fleet := pools.NewFleet(pools.Default(), log)
		health.Watch(fleet, engines{}, log)
		defer fleet.Close()
		q := queue.New(queue.Default())
		entry, err := q.Enter(t.Context(), queue.Request{Model: testModel})
		if err != nil {
			t.Fatal(err)
		}
		woken := make(chan time.Time, 1)
		go func() {
			if err := awaitCapacity(t.Context(), fleet, q, entry, testModel); err != nil {
				t.Error(err)
			}
			woken <- time.Now()
		}()
		time.Sleep(10*capacityBeat + capacityBeat/3)
		came := time.Now()
		if err := fleet.Apply([]pools.Spec{{URL: "http://10.0.0.1:8000", Role: pools.Both, Connector: "nixl"}}); err != nil {
			t.Fatal(err)
		}
		if after := (<-woken).Sub(came); after > 2*capacityStep {
			t.Errorf("woken %v after its server was up", after)
		}
	})
}

// The configuration's bounds are not negative.
func TestConfig_ValidateRefusesNegativeBounds(t *testing.T) {
	for cfg, want := range map[Config]bool{
		Default(): true, {}: true, {MaxWait: time.Second, MaxWaiting: 1}: true, {MaxWait: -1}: false, {MaxWaiting: -1}: false,
	} {
		if err := cfg.Validate(); (err == nil) != want {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// activator keeps requests for testModel and its adapter, and counts how often servers are asked for.
func activator(cfg Config) (a *Activator, begun *atomic.Int64) {
	begun = new(atomic.Int64)
	return &Activator{
		Config: cfg,
		Base:   func(model string) (string, bool) { return testModel, model == testModel || model == "adapter" },
		Models: func() []string { return []string{testModel} },
		Begin:  func() { begun.Add(1) },
	}, begun
}

// Requests wait for models whose servers may come, where waiting is on at all.
func TestActivator_WhoseRequestsWait(t *testing.T) {
	on, _ := activator(Config{MaxWait: 1, MaxWaiting: 1})
	off, _ := activator(Config{MaxWaiting: 1})
	for name, c := range map[string]struct {
		a    *Activator
		want bool
	}{"none": {nil, false}, "off": {off, false}, "on": {on, true}} {
		base, yes := c.a.WillServe("adapter")
		if yes != c.want || (base == testModel) != c.want {
			t.Errorf("%s: %q, %v", name, base, yes)
		}
		if models := c.a.WillServeModels(); (len(models) == 1) != c.want {
			t.Errorf("%s: %v", name, models)
		}
		if w, ok := c.a.Enter(testModel, time.Time{}, io.EOF); ok != c.want || w.HasBegun() != c.want {
			t.Errorf("%s: entered %v, begun %v", name, ok, w.HasBegun())
		}
	}
	if _, ok := on.Enter("unknown", time.Time{}, io.EOF); ok {
		t.Error("a request waits for a model that nothing serves")
	}
}

// Servers are asked for by the first request of a base model and not by the next ones; so many wait at
// once, and each place is given back once.
func TestActivator_TheFirstAsksForServersAndSoManyWait(t *testing.T) {
	a, begun := activator(Config{MaxWait: time.Minute, MaxWaiting: 2})
	enter := func(model string, want bool) *Wait {
		t.Helper()
		w, ok := a.Enter(model, time.Time{}, io.EOF)
		if ok != want || w.HasBegun() != want {
			t.Errorf("%s: entered %v, begun %v", model, ok, w.HasBegun())
		}
		return &w
	}
	first, second := enter(testModel, true), enter("adapter", true)
	enter(testModel, false).End() // which has no place to give back
	if n := begun.Load(); n != 1 {
		t.Errorf("servers were asked for %d times for two requests of a model", n)
	}
	first.End()
	third := enter(testModel, true)
	if n := begun.Load(); n != 1 {
		t.Errorf("servers were asked for %d times while requests wait", n)
	}
	second.End()
	third.End()
	if len(a.waiting) != 0 {
		t.Errorf("%v are counted where none waits", a.waiting)
	}
	enter(testModel, true).End()
	if n := begun.Load(); n != 2 {
		t.Errorf("servers were asked for %d times by the first of two waits", n)
	}
}

// The places are counted right whoever comes and goes at once.
func TestActivator_CountsAtOnce(t *testing.T) {
	a, _ := activator(Config{MaxWait: time.Minute, MaxWaiting: 1000})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				w, ok := a.Enter(testModel, time.Time{}, io.EOF)
				if !ok {
					t.Error("there is no place")
				}
				w.End()
			}
		})
	}
	all.Wait()
	if len(a.waiting) != 0 {
		t.Errorf("%v are counted where none waits", a.waiting)
	}
}

// waiting is a request that waits for servers: a fleet, its queue and its place in it.
type waiting struct {
	*testing.T
	fleet *pools.Fleet
	queue *queue.Queue
	entry *queue.Entry
}

func newWaiting(t *testing.T, model string, cfg queue.Config) waiting {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	w := waiting{t, pools.NewFleet(pools.Default(), log), queue.New(cfg), nil}
	health.Watch(w.fleet, engines{}, log)
	t.Cleanup(w.fleet.Close)
	var err error
	if w.entry, err = w.queue.Enter(t.Context(), queue.Request{Model: model, Class: 1}); err != nil {
		t.Fatal(err)
	}
	return w
}

// apply gives the fleet its servers, which are up then.
func (w waiting) apply(specs ...pools.Spec) {
	w.Helper()
	if err := w.fleet.Apply(specs); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// awaits waits until an error or nil comes, and says after how long.
func (w waiting) awaits(ctx context.Context, wait *Wait) (took time.Duration, err error) {
	w.Helper()
	start := time.Now()
	err = wait.Await(ctx, w.fleet, w.queue, w.entry)
	if n, _ := w.queue.Len(); n != 0 {
		w.Errorf("%d are counted as waiting after the wait", n)
	}
	return time.Since(start), err
}

// A wait in vain ends with its reason: the request's deadline, the longest time that one waits, a request
// with a better claim, or that its client left. Nothing of it is left in the request's context.
func TestWait_EndsWithWhyItWasInVain(t *testing.T) {
	tooLate, left := errors.New("too late"), errors.New("left")
	for name, c := range map[string]struct {
		deadline time.Duration // 0: none
		during   func(waiting, context.CancelCauseFunc)
		want     error
		after    time.Duration
	}{
		"its deadline":     {10 * time.Second, nil, queue.ErrDeadline, 10 * time.Second},
		"the longest wait": {0, nil, tooLate, time.Minute},
		"a late deadline":  {time.Hour, nil, tooLate, time.Minute},
		"it leaves":        {0, func(_ waiting, leave context.CancelCauseFunc) { leave(left) }, left, 5 * time.Second},
		"it is displaced": {0, func(w waiting, _ context.CancelCauseFunc) {
			if _, err := w.queue.Enter(w.Context(), queue.Request{Model: testModel}); err != nil {
				w.Error(err)
			}
		}, queue.ErrDisplaced, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiting(t, testModel, queue.Config{MaxInFlight: 2, MaxWaiting: 1, MaxBytes: 100, MaxWait: time.Minute})
			a, _ := activator(Config{MaxWait: time.Minute, MaxWaiting: 1})
			deadline := time.Time{}
			if c.deadline > 0 {
				deadline = time.Now().Add(c.deadline)
			}
			wait, ok := a.Enter(testModel, deadline, tooLate)
			if !ok {
				t.Fatal("it does not wait")
			}
			defer wait.End()
			ctx, leave := context.WithCancelCause(t.Context())
			defer leave(nil)
			if c.during != nil {
				time.AfterFunc(5*time.Second, func() { c.during(w, leave) })
			}
			if took, err := w.awaits(ctx, &wait); !errors.Is(err, c.want) || took != c.after {
				t.Errorf("%s: %v after %v", name, err, took)
			}
		})
	}
}

// foreign is a context that outlives the test and is unknown to package context: what is derived from
// it keeps a goroutine until it is cancelled, and synctest fails where one is left.
type foreign struct {
	context.Context
	never chan struct{}
}

// Done is context.Context's.
func (f foreign) Done() <-chan struct{} { return f.never }

// A wait that has ended leaves nothing in the request's context.
func TestWait_LeavesNothingInTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, testModel, queue.Default())
		a, _ := activator(Config{MaxWait: time.Minute, MaxWaiting: 1})
		wait, _ := a.Enter(testModel, time.Time{}, io.EOF)
		defer wait.End()
		w.apply(pools.Spec{URL: "http://10.0.0.1:8000", Role: pools.Both, Connector: "nixl"})
		if took, err := w.awaits(foreign{t.Context(), make(chan struct{})}, &wait); err != nil || took != capacityStep {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// An adapter that the servers of its base model do not have is waited for a while after they are up,
// counted anew where they go; then the request is told.
func TestWait_AnAdapterThatDoesNotComeIsWaitedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := pools.Spec{URL: "http://10.0.0.1:8000", Role: pools.Both, Connector: "nixl"}
		w := newWaiting(t, "adapter", queue.Default())
		a, _ := activator(Config{MaxWait: time.Hour, MaxWaiting: 1})
		wait, _ := a.Enter("adapter", time.Time{}, io.EOF)
		defer wait.End()
		w.apply(server)
		const gone, back = 10 * time.Second, 20 * time.Second
		time.AfterFunc(gone, func() { w.apply() })
		time.AfterFunc(back, func() { w.apply(server) })
		took, err := w.awaits(t.Context(), &wait)
		if late := took - back - adapterGrace; !errors.Is(err, ErrNoAdapter) || late < 0 || late > 2*(capacityBeat+capacityStep) {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// A model is served where a decode server is up for it, and a prefill server where one is known of; what
// drains takes no request, and what starts may come to serve it.
func TestServes_WhereEachKnownRoleIsUp(t *testing.T) {
	const other = "http://10.9.0.1:8000" // which serves another model
	for name, c := range map[string]struct {
		specs []pools.Spec
		drain bool // the first
		down  bool // the last
		want  bool
	}{
		"nothing":                   {nil, false, false, false},
		"a server of both":          {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Both}}, false, false, true},
		"it drains":                 {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Both}}, true, false, false},
		"it is down":                {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Both}}, false, true, false},
		"decode alone":              {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Decode}}, false, false, true},
		"prefill alone":             {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Prefill}}, false, false, false},
		"a pair":                    {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Prefill}, {URL: "http://10.0.0.2:1", Role: pools.Decode}}, false, false, true},
		"prefill drains":            {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Prefill}, {URL: "http://10.0.0.2:1", Role: pools.Decode}}, true, false, false},
		"decode is down":            {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Prefill}, {URL: "http://10.0.0.2:1", Role: pools.Decode}}, false, true, false},
		"prefill is another's":      {[]pools.Spec{{URL: other, Role: pools.Prefill}, {URL: "http://10.0.0.2:1", Role: pools.Decode}}, false, false, true},
		"decode is another's":       {[]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Prefill}, {URL: other, Role: pools.Decode}}, false, false, false},
		"prefill has not begun yet": {[]pools.Spec{{URL: "http://10.0.0.2:1", Role: pools.Decode}, {URL: "http://10.7.0.1:1", Role: pools.Prefill}}, false, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiting(t, testModel, queue.Default())
			for i := range c.specs {
				c.specs[i].Connector = "nixl"
			}
			w.apply(c.specs...)
			if servers := w.fleet.Servers(); len(servers) > 0 {
				w.fleet.SetDrain(servers[0].ID(), c.drain)
				if c.down {
					servers[len(servers)-1].ProbeFailed(&pools.Health{}, "for the test")
				}
			}
			if got := serves(w.fleet, testModel); got != c.want {
				t.Errorf("%s: served %v", name, got)
			}
		})
	}
}
