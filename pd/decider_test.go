package pd

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
	"github.com/tandem-gateway/tandem/pools/share"
)

func newTestDecider(f *testFleet) *Decider {
	return NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Hour, f.Log)
}

// waits lets a request for a model wait.
func (f *testFleet) waits(d *Decider, prompt []uint32, model string) *waiter {
	r := &f.arrives(prompt, time.Now()).bind
	r.req.Model, r.base, r.prefix.model = model, model, model
	w := &waiter{request: r, done: make(chan bindResult, 1)}
	d.arrivals = append(d.arrivals, w)
	return w
}

// newBusyFleet is a fleet of so many pairs whose prefill servers, which every prompt needs, have so much work.
func newBusyFleet(t *testing.T, pairs int, prompt []uint32, work time.Duration) *testFleet {
	t.Helper()
	f := newTestFleet(t, pairs, prompt)
	f.Binder.Config.EnforceDisaggregation = true
	f.occupy(t, testModel, work)
	return f
}

// occupy gives the prefill server of a model so much work.
func (f *testFleet) occupy(t *testing.T, model string, work time.Duration) {
	t.Helper()
	for _, s := range f.Fleet.Servers() {
		if s.Role != pools.Prefill || !s.Serves(model, time.Now()) {
			continue
		}
		lease, err := s.Claim(pools.Prefill, curve.Work{Tokens: 1000, Estimate: work}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(lease.Release)
	}
}

// decideAt is decide at a time.
func (d *Decider) decideAt(now time.Time) (again time.Duration) {
	d.deciding.Lock()
	defer d.deciding.Unlock()
	return d.decideLocked(now)
}

// Who decides for those that wait may have to wait for another who decides. Requests that come meanwhile are decided
// about at a time behind their coming: by one before it they would have waited for less than nothing.
func TestDecider_NobodyHasWaitedForLessThanNothing(t *testing.T) {
	prompt := testPrompt(160)
	f := newTestFleet(t, 1, prompt)
	f.await(t, f.up)
	d := newTestDecider(f)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() {
		stop()
		<-ended
	}()
	go func() {
		defer close(ended)
		d.Run(ctx)
	}()
	f.await(t, func() bool {
		d.deciding.Lock()
		defer d.deciding.Unlock()
		return d.runs
	})
	d.deciding.Lock()
	d.wakeUp()
	stacks := make([]byte, 1<<20)
	f.await(t, func() bool {
		return slices.ContainsFunc(bytes.Split(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")), func(of []byte) bool {
			return bytes.Contains(of, []byte("lockSlow")) && bytes.Contains(of, []byte("(*Decider).decide("))
		})
	})
	began := time.Now()
	f.await(t, func() bool { return time.Since(began) > 10*time.Millisecond })
	w := d.arrive(&f.arrives(prompt, time.Now()).bind)
	d.deciding.Unlock()
	b, err := d.await(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer b.release()
	if b.choice.Demand.Waited < 0 {
		t.Errorf("it has waited for %v", b.choice.Demand.Waited)
	}
}

func TestDecider_WakesForTheModelThatIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		specs := []pools.Spec{{URL: "http://10.9.0.1:8000", Role: pools.Prefill, Connector: "nixl"}, {URL: "http://10.9.0.2:8000", Role: pools.Decode, Connector: "nixl"}}
		for _, s := range f.Fleet.Servers() {
			specs = append(specs, s.Spec)
		}
		if err := f.Fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		now := time.Now()
		f.occupy(t, testModel, 50*time.Millisecond)
		f.occupy(t, otherModel, 30*time.Second)
		d := newTestDecider(f)
		f.waits(d, prompt, testModel)
		f.waits(d, prompt, otherModel)
		d.decideAt(now)
		soon := now.Add(20 * time.Millisecond) // 10 ms before the first may go
		for range 20 {                         // in whatever order the models are looked at
			if in := d.decideAt(soon); in >= order.LookInterval || len(d.queues) != 2 {
				t.Fatalf("the next look is in %v, %d models", in, len(d.queues))
			}
		}
	})
}

// What an order remembers of servers outlives a moment in which nobody waits, or a server that
// holds what many share would never be found to be too few for them. A model without servers is
// forgotten: names are the clients'.
func TestDecider_KeepsTheOrderOfAModelWhileItHasServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		f.await(t, f.up)
		d := newTestDecider(f)
		f.waits(d, prompt, testModel)
		if in := d.decide(); in != 0 || len(d.queues[testModel].waiting) != 0 {
			t.Fatalf("the next look is in %v, it waits", in)
		}
		kept := d.queues[testModel].order
		f.waits(d, prompt, testModel)
		f.waits(d, prompt, "gone")
		d.decide()
		if l := d.queues[testModel]; l == nil || l.order != kept {
			t.Fatal("the order was forgotten with its last request")
		}
		if d.queues["gone"] != nil {
			t.Fatal("a model without servers is remembered")
		}
	})
}

// newLobby is ten requests that wait for the server of a running decider; more lets others wait too, and
// returns when all do.
func newLobby(t *testing.T) (f *testFleet, more func(n int)) {
	t.Helper()
	prompt := testPrompt(14_000)
	f = newProbedFleet(t, 1, prompt, order.LookInterval/10)
	f.occupy(t, testModel, 10*time.Minute)
	f.Binder.Cost.PairsFirst = true
	d := newTestDecider(f)
	f.Binder.Late = d
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	running.Go(func() { d.Run(ctx) })
	more = func(n int) {
		t.Helper()
		before, _ := f.Queue.Len()
		for range n {
			r := &f.arrives(prompt, time.Now()).bind
			running.Go(func() {
				if _, err := f.Binder.Bind(ctx, r); !errors.Is(err, context.Canceled) {
					t.Errorf("it waited until %v", err)
				}
			})
		}
		synctest.Wait()
		if waiting, _ := f.Queue.Len(); waiting != before+n {
			t.Fatalf("%d wait", waiting)
		}
	}
	more(10)
	return f, more
}

// Servers are probed, and nothing happens: ten that wait are looked at at each order.LookInterval, and
// not once more.
func TestDecider_WaitingTurnsNoWheels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newLobby(t)
		before := testutil.ToFloat64(f.Metrics.evaluations)
		time.Sleep(20 * order.LookInterval)
		synctest.Wait()
		if looks := testutil.ToFloat64(f.Metrics.evaluations) - before; looks != 20 {
			t.Errorf("%v looks in 20 beats", looks)
		}
	})
}

// A gateway with no processor to spare looks once for requests that come together, and not once for each.
func TestDecider_LooksOnceForThoseThatComeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, more := newLobby(t)
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		before := testutil.ToFloat64(f.Metrics.evaluations)
		more(20)
		if looks := testutil.ToFloat64(f.Metrics.evaluations) - before; looks > 10 { // a few, where the system takes the processor away
			t.Errorf("%v looks for 20 that came together", looks)
		}
	})
}

func TestDecider_WhoLeavesWaitsNoMore(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	f.occupy(t, testModel, 30*time.Second)
	for _, before := range []bool{true, false} { // it is looked at
		d := newTestDecider(f)
		f.waits(d, prompt, testModel) // and stays
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := d.await(ctx, d.arrive(&f.arrives(prompt, time.Now()).bind))
			left <- err
		}()
		f.await(t, func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.arrivals) == 2
		})
		if !before {
			d.decide()
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatalf("it is told %v", err)
		}
		d.decide()
		if l := d.queues[testModel]; len(l.waiting) != 1 || l.order.Len() != 1 {
			t.Errorf("%d wait, %d in the order, before the first look: %v", len(l.waiting), l.order.Len(), before)
		}
	}
}

// What is left of a prompt leaves behind the look that is under way: its request goes on, and changes what that one reads.
func TestDecider_WhatIsLeftOfAPromptLeavesBehindTheLook(t *testing.T) {
	prompt := testPrompt(100)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	w := f.waits(d, prompt, testModel)
	w.request.begun = &begunPrefill{prefill: f.Fleet.Servers()[0].ID(), decode: f.Fleet.Servers()[1].ID(), tokens: 16}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	left := make(chan error, 1)
	d.deciding.Lock() // a look is under way
	go func() {
		_, err := d.await(ctx, w)
		left <- err
	}()
	stacks := make([]byte, 1<<20)
	f.await(t, func() bool {
		return len(left) == 1 || bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*Decider).awaitLook"))
	})
	if len(left) == 1 {
		t.Error("it goes on while it may be priced")
	}
	d.deciding.Unlock()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDecider_APanicBehindAGrantLosesNobody(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	w := f.waits(d, prompt, testModel)
	w.request.tried.mustAggregate, f.Metrics.aggregated = true, nil // counting that it runs alone panics
	d.decide()
	select {
	case g := <-w.done:
		if g.err != nil || g.b.decode == nil {
			t.Fatalf("it is told %v", g.err)
		}
		g.b.release()
	default:
		t.Fatal("it is granted and never told")
	}
}

func TestDecider_WhoIsDisplacedWhenNoServerIsLeftIsToldSoOnce(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(160))
	f.Queue = queue.New(queue.Config{MaxInFlight: 2, MaxWaiting: 1, MaxBytes: 100, MaxWait: time.Minute})
	f.Binder.Queue = f.Queue
	p, err := f.Queue.Enter(t.Context(), queue.Request{Class: 1, Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := newTestDecider(f)
	f.Binder.Late = d
	r := &f.arrives(testPrompt(160), time.Now()).bind
	r.entry = p
	ended := make(chan error, 1)
	go func() {
		_, err := f.Binder.Bind(t.Context(), r)
		ended <- err
	}()
	var w *waiter
	f.await(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.arrivals) == 1 {
			w = d.arrivals[0]
		}
		return w != nil
	})
	d.mu.Lock() // it is told of both at once
	better, err := f.Queue.Enter(t.Context(), queue.Request{Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.complete(bindResult{err: &NoServerError{Role: pools.Decode}})
	d.mu.Unlock()
	var none *NoServerError
	if err := <-ended; !errors.Is(err, queue.ErrDisplaced) || errors.As(err, &none) {
		t.Errorf("it is told %v", err)
	}
	f.Queue.Leave(better)
	f.Queue.Leave(p)
	if waiting, inFlight := f.Queue.Len(); waiting != 0 || inFlight != 0 {
		t.Errorf("%d wait, %d are in flight", waiting, inFlight)
	}
}

// The requests that other replicas send are no idle time of the one that decides for them.
func TestDeadlineProbes_NotWhileRemoteRequestsAreServed(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	w := f.waits(d, prompt, testModel)
	w.request.remote = true
	now := time.Now()
	d.decideAt(now)
	g := <-w.done
	if g.err != nil {
		t.Fatal(g.err)
	}
	g.b.release()
	if f.Binder.deadlineProbes.Take(testModel, now) {
		t.Error("a probe is due at the moment when a request goes")
	}
}

// A request that got its turn is recorded as one that is bound on arrival is: what it was chosen
// from, what its server held of the prompt, and why it runs alone where it does.
func TestDecider_ATurnIsRecordedAsEveryBinding(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	turn := func(alone bool) *binding {
		t.Helper()
		w := f.waits(d, prompt, testModel)
		w.request.tried.mustAggregate = alone
		d.decide()
		g := <-w.done
		if g.err != nil {
			t.Fatal(g.err)
		}
		g.b.release()
		return g.b
	}
	b := turn(false)
	if c := b.choice; c.Chosen.Prefill != b.chosen.Prefill || c.Demand.PromptTokens != len(prompt) || len(c.Candidates.Prefill) != 1 || len(c.Candidates.Decode) != 1 {
		t.Errorf("its choice is recorded as %+v", c)
	}
	if b.hits.server != b.chosen.Prefill || b.hits.held.GPU != len(prompt)/4/16*16 {
		t.Errorf("of its prompt %+v was known to be held", b.hits)
	}
	if b := turn(true); b.reason != "fallback" || b.choice.Reason != "fallback" || testutil.ToFloat64(f.Metrics.aggregated.WithLabelValues("fallback")) != 1 {
		t.Errorf("it runs alone for %q, recorded as %q", b.reason, b.choice.Reason)
	}
}

// What is shown of a turn's alternatives counts the requests that waited for just their prefill server then.
func TestDecider_AlternativesOfATurnCountThoseThatWaited(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 2, prompt)
	f.Binder.Config.EnforceDisaggregation = true
	d, servers := newTestDecider(f), f.Fleet.Servers()
	lease, err := servers[1].Claim(pools.Prefill, curve.Work{Tokens: 1000, Estimate: 10 * time.Second}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	f.waits(d, prompt, testModel).request.begun = &begunPrefill{prefill: servers[1].ID(), decode: servers[2].ID(), tokens: 1000}
	w := f.waits(d, prompt[:2000], testModel) // shorter: its turn comes first
	d.decide()
	g := <-w.done
	if g.err != nil {
		t.Fatal(g.err)
	}
	defer g.b.release()
	shown := func() (all []cost.Explained) {
		c := &g.b.choice
		all = f.Binder.Cost.Explain(c.Demand, c.Candidates, c.Chosen, 100)
		slices.SortFunc(all, func(a, b cost.Explained) int { return strings.Compare(a.Prefill+a.Decode, b.Prefill+b.Decode) })
		return all
	}
	with := shown()
	g.b.choice.Candidates.Awaiting[1] = 0
	for i, e := range shown() {
		want := e.DelayToOthers
		if e.Prefill == servers[1].ID() {
			want += e.Compute / 2 // one waits for it, and half a request for an average server
		}
		if got := with[i].DelayToOthers; math.Abs(got-want) > 0.01 {
			t.Errorf("%s and %s: a delay to others of %v ms, want %v", e.Prefill, e.Decode, got, want)
		}
		if e.Chosen && math.Abs(with[i].DelayToOthers-g.b.chosen.Explained().DelayToOthers) > 0.01 {
			t.Errorf("the chosen pair is shown as %+v", with[i])
		}
	}
}

// One that waited and has to give way was promised its turn in vain: waits are reckoned with
// as longer from then on. Where only max-wait bounds it nothing was promised.
func TestDecider_WhoGivesWayMakesPromisesLonger(t *testing.T) {
	for _, promised := range []bool{true, false} {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		f.Binder.deadlineProbes.Observe(testModel, time.Now())
		f.occupy(t, testModel, 10*time.Second)
		d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 30*time.Second, f.Log)
		low := f.waits(d, prompt, testModel)
		low.request.req.Class = 1
		if promised {
			low.request.req.Deadline = low.request.arrived.Add(29 * time.Second)
		}
		d.decide()
		before := low.margin.Bound(time.Second)
		high := f.waits(d, prompt, testModel)
		high.request.prefix, high.request.req.PromptTokens = nil, 900_000 // a prefill of a minute at least, and there is KV room for it
		d.decide()
		select {
		case g := <-low.done:
			if !errors.Is(g.err, queue.ErrDisplaced) {
				t.Errorf("it is told %v", g.err)
			}
		default:
			t.Error("it does not give way")
		}
		if after := low.margin.Bound(time.Second); (low.margin == &d.waitMargin) != promised || (after > before) != promised {
			t.Errorf("promised %v: a wait of a second was reckoned with as %v, and then as %v", promised, before, after)
		}
	}
}

// A request with a deadline is promised its turn; one without is refused only where it would wait for too long.
func TestDecider_RefusesForMaxWaitOnlyWhatWouldWaitLonger(t *testing.T) {
	for name, c := range map[string]struct {
		maxWait, deadline time.Duration
		refused           error
	}{
		"longer than it may":          {maxWait: 14 * time.Second, refused: queue.ErrTimeout},
		"not as long":                 {maxWait: 16 * time.Second},
		"not as long, but a deadline": {maxWait: time.Hour, deadline: 18 * time.Second, refused: queue.ErrDeadline},
		"a deadline that is far away": {maxWait: time.Hour, deadline: 50 * time.Second},
	} {
		prompt := testPrompt(14_000)
		f := newBusyFleet(t, 1, prompt, 15*time.Second)
		f.Binder.deadlineProbes.Observe(testModel, time.Now())
		d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), c.maxWait, f.Log)
		w := f.waits(d, prompt, testModel)
		if c.deadline > 0 {
			w.request.req.Deadline = time.Now().Add(c.deadline)
		}
		d.decide()
		var err error
		select {
		case g := <-w.done:
			err = g.err
		default:
		}
		if !errors.Is(err, c.refused) {
			t.Errorf("%s: %v, want %v", name, err, c.refused)
		}
	}
}

// Requests that are refused together are told to come back one after the other, as they are served, and sooner again once
// that time is over.
func TestDecider_WhoIsRefusedComesBackInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		f.await(t, f.up)
		f.Binder.Config.EnforceDisaggregation = true
		f.occupy(t, testModel, 15*time.Second)
		d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 12*time.Second, f.Log)
		refused := func() time.Duration {
			t.Helper()
			w := f.waits(d, prompt, testModel)
			d.decide()
			err := (<-w.done).err
			if !errors.Is(err, queue.ErrTimeout) {
				t.Fatal(err)
			}
			return queue.ReturnIn(err)
		}
		first, second := refused(), refused()
		third := refused()
		if first != 3*time.Second || second <= first || third-second != second-first {
			t.Errorf("they are to come back in %v, %v and %v", first, second, third)
		}
		for range 1000 {
			refused()
		}
		if longest := refused(); longest != 30*time.Second {
			t.Errorf("of many the last is to come back in %v", longest)
		}
	})
}

// Short waits scatter more than long ones, and are let in whatever waits are reckoned with as: they say nothing of those
// that are nearly too long.
func TestDecider_ShortWaitsMakeNoLongOnesLonger(t *testing.T) {
	for waited, longer := range map[time.Duration]bool{14 * time.Minute: false, 16 * time.Minute: true} {
		synctest.Test(t, func(t *testing.T) {
			prompt := testPrompt(14_000)
			f := newTestFleet(t, 1, prompt)
			f.await(t, f.up)
			f.Binder.Config.EnforceDisaggregation = true
			lease, err := f.Fleet.Servers()[0].Claim(pools.Prefill, curve.Work{Tokens: 1000, Estimate: time.Second}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			d := newTestDecider(f)
			w := f.waits(d, prompt, testModel)
			d.decide()
			before := w.margin.Bound(time.Second)
			time.Sleep(waited)
			lease.Release()
			d.decide()
			if len(w.done) != 1 {
				t.Fatal("it waits on")
			}
			(<-w.done).b.release()
			if after := w.margin.Bound(time.Second); (after > before) != longer {
				t.Errorf("it waited %v of an hour: a wait of a second is reckoned with as %v and then %v", waited, before, after)
			}
		})
	}
}

// A burst on servers that nothing is known of makes waits count longer. Once they are predicted well they count as
// predicted again, though those that are long are refused meanwhile.
func TestDecider_ABurstMakesWaitsLongerForAWhileOnly(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(160))
	d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 30*time.Second, f.Log)
	w := &waiter{margin: &d.longMargin}
	for range 60 {
		d.observeWait(w, 7*time.Second, 29*time.Second)
	}
	counted := func() time.Duration { return d.longMargin.Bound(6 * time.Second) }
	if got := counted(); got < 20*time.Second {
		t.Fatalf("after the burst a wait of 6 s counts as %v", got)
	}
	for range 100 {
		d.observeWait(w, 6*time.Second, 6*time.Second)
	}
	if got := counted(); got > 8*time.Second {
		t.Errorf("after a hundred waits of 6 s, as they were predicted, one counts as %v", got)
	}
}

// Smaller requests take the KV room that one waits for, until it is overdue: such a wait is as promised, and makes no
// promise longer, unless a deadline comes before.
func TestDecider_WhoIsOvertakenMakesPromisesNoLonger(t *testing.T) {
	for _, c := range []struct {
		waited, deadline time.Duration
		longer           bool
	}{{waited: 15 * time.Second}, {15 * time.Second, time.Hour, false}, {15 * time.Second, 18 * time.Second, true}, {waited: 20 * time.Minute, longer: true}} {
		synctest.Test(t, func(t *testing.T) {
			prompt := testPrompt(14_000)
			f := newTestFleet(t, 1, prompt)
			f.await(t, f.up)
			decode := f.Fleet.Servers()[1]
			report := func(running, used float64) {
				decode.ReportLoad(load.Load{Engine: "vllm", Running: known(running), Waiting: known(0), KVUsed: known(used), KVTokens: known(20_000), At: time.Now()})
			}
			d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Hour, f.Log)
			report(5, 0.9)
			w := f.waits(d, prompt, testModel)
			if c.deadline > 0 {
				w.request.req.Deadline = time.Now().Add(c.deadline)
			}
			d.decide()
			if len(w.done) != 0 {
				t.Fatal("it goes without KV room")
			}
			before := w.margin.Bound(time.Second)
			time.Sleep(c.waited)
			report(0, 0)
			d.decide()
			if len(w.done) != 1 {
				t.Fatal("it waits on with KV room")
			}
			(<-w.done).b.release()
			if after := w.margin.Bound(time.Second); (after > before) != c.longer {
				t.Errorf("it waited %v, with a deadline in %v: a wait of a second is reckoned with as %v and then %v", c.waited, c.deadline, before, after)
			}
		})
	}
}

// How long decode's steps take with a full batch shows only while requests wait for its KV room. One that would not begin
// within max-wait by what has shown is refused within seconds, and told when there is room. A deadline is a promise.
func TestDecider_WhoWaitsInVainIsRefusedOnceThatShows(t *testing.T) {
	for name, c := range map[string]struct {
		step, deadline time.Duration
		refused        error
		after          time.Duration
	}{
		"steps are long":                  {step: 200 * time.Millisecond, refused: queue.ErrTimeout, after: 4 * time.Second},
		"steps are long, and a deadline":  {step: 200 * time.Millisecond, deadline: 20 * time.Second, refused: queue.ErrDeadline, after: 20 * time.Second},
		"steps are as they were taken to": {step: 10 * time.Millisecond, refused: queue.ErrTimeout, after: 30 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			prompt := testPrompt(14_000)
			f := newTestFleet(t, 1, prompt)
			f.await(t, f.up)
			prefill, decode := f.Fleet.Servers()[0], f.Fleet.Servers()[1]
			d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 30*time.Second, f.Log)
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer stop()
			running.Go(func() { d.Run(ctx) })
			report := func() {
				decode.ReportLoad(load.Load{Engine: "vllm", Running: known(5), Waiting: known(0), KVUsed: known(0.9), KVTokens: known(20_000), At: time.Now()})
			}
			report()
			synctest.Wait()
			running.Go(func() { // as an engine that is asked
				for ctx.Err() == nil {
					report()
					decode.ObserveStep(c.step, 5, 18_000, time.Now())
					time.Sleep(100 * time.Millisecond)
				}
			})
			r := &f.arrives(prompt, time.Now()).bind
			if c.deadline > 0 {
				r.req.Deadline = time.Now().Add(c.deadline)
			}
			w := d.arrive(r)
			prefill.Evidence().Observe(curve.Completion{Work: curve.Work{Estimate: time.Second}, Served: time.Second, Alone: true})
			began := time.Now()
			_, err := d.await(ctx, w)
			if waited := time.Since(began); !errors.Is(err, c.refused) || waited > c.after || waited < c.after-time.Second {
				t.Errorf("%s: %v after %v, want %v after %v", name, err, waited, c.refused, c.after)
			}
			if in := queue.ReturnIn(err); (c.after < 5*time.Second) != (in > 0) {
				t.Errorf("%s: it is to come back in %v", name, in)
			}
		})
	}
}

// One that leaves because its turn did not come in time makes promises longer too; one whose
// client leaves does not.
func TestDecider_WhoLeavesLateMakesPromisesLonger(t *testing.T) {
	for left, longer := range map[int32]bool{leftLate: true, hasLeft: false} {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		f.occupy(t, testModel, 10*time.Second)
		d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 20*time.Second, f.Log)
		w := f.waits(d, prompt, testModel)
		d.decide()
		before := w.margin.Bound(time.Second)
		w.state.Store(left)
		d.queues[testModel].forget(w)
		if after := w.margin.Bound(time.Second); (after > before) != longer {
			t.Errorf("left late %v: a wait of a second was reckoned with as %v, and then as %v", longer, before, after)
		}
	}
}

// Of a burst that one forecast let in many leave late. They make others wait for no longer by prediction than they have waited.
func TestDecider_ABurstThatLeavesLateSaysNoMoreThanItWaited(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newBusyFleet(t, 1, prompt, 10*time.Second)
	d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 20*time.Second, f.Log)
	var burst []*waiter
	for range 50 {
		burst = append(burst, f.waits(d, prompt, testModel))
	}
	d.decide()
	left := 0
	for _, w := range burst {
		if len(w.done) == 0 {
			w.state.Store(leftLate)
			d.queues[testModel].forget(w)
			left++
		}
	}
	if got := d.longMargin.Bound(time.Second); left < 30 || got < 1500*time.Millisecond || got > 2200*time.Millisecond {
		t.Errorf("%d have left after 20 s that were predicted to wait for 10 and more, and a wait of a second is reckoned with as %v", left, got)
	}
}

// What another replica's request is told: that its time is over, where that was the reason, be
// it its own deadline or the longest wait; and else nothing of the kind.
func TestRemoteRequests_SayThatTheTurnDidNotComeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		f.occupy(t, testModel, time.Hour)
		d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log) // no decider runs
		ask := func(ctx context.Context, left time.Duration) (waited time.Duration, err error) {
			start := time.Now()
			_, err = d.RemoteRequests().Bind(ctx, &leaderpb.RemoteRequest{
				Model: testModel, Base: testModel, Api: api.Chat.Name, PromptTokens: 14_000, LeftUs: uint64(left.Microseconds()),
			})
			return time.Since(start), err
		}
		for left, want := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Second} {
			if waited, err := ask(t.Context(), left); !errors.Is(err, leader.ErrTimeout) || waited != want {
				t.Errorf("with %v left it is told %v after %v", left, err, waited)
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if _, err := ask(ctx, 0); !errors.Is(err, context.Canceled) || errors.Is(err, leader.ErrTimeout) {
			t.Errorf("one that leaves is told %v", err)
		}
	})
}

// What a turn puts on its servers counts for the next in the same look: of two that wait for one
// server the second waits on.
func TestDecider_ATurnCountsForTheNextInTheSameLook(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	waiters := []*waiter{f.waits(d, prompt, testModel), f.waits(d, prompt, testModel), f.waits(d, prompt, testModel)}
	for _, w := range waiters { // seconds of prefill, of which decode would need more
		w.request.prefix, w.request.req.PromptTokens = nil, 200_000
	}
	d.decide()
	if l := d.queues[testModel]; len(l.waiting) != len(waiters)-1 {
		t.Errorf("of three for one server %d wait on", len(l.waiting))
	}
	for _, w := range waiters {
		select {
		case g := <-w.done:
			g.b.release()
		default:
		}
	}
}

// One that leaves at the very moment of its turn gets no servers, and they are free for the next.
func TestDecider_WhoLeavesAtItsTurnHoldsNothing(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	q := newModelQueue(d, testModel)
	w := f.waits(d, prompt, testModel)
	d.arrivals = nil
	now := time.Now()
	q.refresh(now)
	q.enter(w, false, now)
	w.state.Store(hasLeft)
	if q.decide(now); len(q.waiting) != 0 || len(w.done) != 0 {
		t.Errorf("%d wait on, and it is told %d things", len(q.waiting), len(w.done))
	}
	for _, s := range f.Fleet.Servers() {
		if n := s.InFlight(s.Role, now).Requests; n != 0 {
			t.Errorf("%d requests are held on %s", n, s.ID())
		}
	}
}

// One whose client leaves at the very moment when its servers are handed over gives them back, and
// what was predicted of their caches.
func TestDecider_WhatIsHandedOverToWhoLeavesIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, testPrompt(64))
		d := newTestDecider(f)
		r := &f.arrives(prompt, time.Now()).bind
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := d.await(ctx, d.arrive(r))
			left <- err
		}()
		synctest.Wait()
		w := d.arrivals[0]
		b, err := f.Binder.bindNow(r)
		if err != nil || b.prediction == nil {
			t.Fatalf("%+v, %v", b, err)
		}
		withdrawn := false
		b.prediction.withdraw = func() { withdrawn = true }
		w.state.Store(isBound)
		leave()
		synctest.Wait()
		w.done <- bindResult{b: b}
		if err := <-left; !errors.Is(err, context.Canceled) || !withdrawn {
			t.Errorf("it is told %v, withdrawn %v", err, withdrawn)
		}
		f.holdsNothing(t)
	})
}

// A server that takes no more requests since it was looked at refuses the one whose turn it is. That
// one waits on, in the order too, and goes when the server takes requests again.
func TestDecider_WhoIsRefusedWaitsOn(t *testing.T) {
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		f.Binder.Config.EnforceDisaggregation = true
		var refuses string
		for _, s := range f.Fleet.Servers() {
			if s.Role == role {
				refuses = s.ID()
			}
		}
		drained := false
		f.Binder.Shares = func(string) *share.Table { // asked behind the look at which servers take requests
			f.Fleet.SetDrain(refuses, drained)
			return nil
		}
		d := newTestDecider(f)
		w := f.waits(d, prompt, testModel)
		drained = true
		d.decide()
		if l := d.queues[testModel]; len(l.waiting) != 1 || l.order.Len() != 1 || len(w.done) != 0 || w.state.Load() != stillWaits {
			t.Fatalf("%s refuses: %d wait, %d in the order, and it was told %d things", role, len(l.waiting), l.order.Len(), len(w.done))
		}
		f.holdsNothing(t)
		drained = false
		f.Fleet.SetDrain(refuses, false)
		d.decide()
		select {
		case g := <-w.done:
			if g.err != nil || g.b.prefill == nil {
				t.Errorf("%s takes requests again: %+v, %v", role, g.b, g.err)
			}
			g.b.release()
		default:
			t.Errorf("%s takes requests again, and it waits on", role)
		}
	}
}

// Where servers come, each request that waits costs something else, and the order of all of them
// follows, however many there are: those go first whose prompts the new server holds.
func TestDecider_NewServersChangeTheOrderOfAllThatWait(t *testing.T) {
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		short, long := testPrompt(12_000), testPrompt(20_000)
		f := newTestFleet(t, 1, testPrompt(64))
		f.Binder.Cost.PairsFirst = true
		added := pools.Spec{URL: "http://10.0.9.9:8000", Role: role, Connector: "nixl", Rack: "r0", Zone: "z"}
		source, err := f.Binder.Locality.Index.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: added.ID()}, Model: testModel, BlockTokens: 16})
		if err != nil {
			t.Fatal(err)
		}
		source.ApplyLive(kvstate.Message{Payload: stored(long)})
		f.occupy(t, testModel, 10*time.Minute)
		d := newTestDecider(f)
		const shorts, longs = 30, 10
		for range shorts {
			f.waits(d, short, testModel)
		}
		for range longs {
			f.waits(d, long, testModel)
		}
		d.decide()
		specs := []pools.Spec{added}
		for _, s := range f.Fleet.Servers() {
			specs = append(specs, s.Spec)
		}
		if err := f.Fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		f.occupy(t, testModel, 10*time.Minute)
		d.decide()
		q := d.queues[testModel]
		if q == nil || len(q.waiting) != shorts+longs {
			t.Fatalf("a %s server comes: not all wait on", role)
		}
		for i, ticket := range q.order.All(nil) {
			if len(ticket.Prefill) != len(q.snapshot.prefill) || len(ticket.Missing) != len(q.snapshot.decode) {
				t.Fatalf("a %s server comes: one is priced on %d and %d servers", role, len(ticket.Prefill), len(ticket.Missing))
			}
			if first := ticket.Tokens == len(long); role == pools.Prefill && first != (i < longs) {
				t.Errorf("place %d has a prompt of %d tokens", i, ticket.Tokens)
			}
		}
	}
}

// Where another server takes one's place all that wait are priced on it at the next look, as many as there are: what the
// one before held of their prompts the other one does not.
func TestDecider_AServerTakesAnothersPlace(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newBusyFleet(t, 2, prompt, 10*time.Minute)
	d := newTestDecider(f)
	const waiting = 5 * order.RepricedPerLook
	for range waiting {
		f.waits(d, prompt, testModel)
	}
	d.decide()
	specs := make([]pools.Spec, 0, 4)
	for _, s := range f.Fleet.Servers() {
		specs = append(specs, s.Spec)
	}
	specs[1].URL = "http://10.9.9.9:8000"
	before := d.queues[testModel].order.All(nil)[0].Prefill[1]
	if err := f.Fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	f.await(t, f.up)
	f.occupy(t, testModel, 10*time.Minute)
	d.decide()
	all := d.queues[testModel].order.All(nil)
	if len(all) != waiting {
		t.Fatalf("%d of %d wait on", len(all), waiting)
	}
	for i, ticket := range all {
		if ticket.Prefill[1] <= before {
			t.Fatalf("%d is priced at %v s, %v s before", i, ticket.Prefill[1], before)
		}
	}
}

// What a look is noted in keeps no request that has gone, with its prompt: that for which the servers were priced last is.
func TestDecider_KeepsNoRequestThatHasGone(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newBusyFleet(t, 1, prompt, 10*time.Minute)
	d := newTestDecider(f)
	var all []*waiter
	var kept []weak.Pointer[waiter]
	for range 3 * order.RepricedPerLook {
		w := f.waits(d, prompt, testModel)
		all, kept = append(all, w), append(kept, weak.Make(w))
	}
	d.decide()
	q := d.queues[testModel]
	q.repriced = time.Time{}
	if d.decide(); len(q.waiting) != len(all) {
		t.Fatalf("%d wait", len(q.waiting))
	}
	for _, w := range all {
		w.state.Store(hasLeft)
		d.departures = append(d.departures, w)
	}
	clear(all)
	if d.decide(); len(q.waiting) > 0 {
		t.Fatalf("%d wait still", len(q.waiting))
	}
	runtime.GC()
	if n := len(slices.DeleteFunc(kept, func(w weak.Pointer[waiter]) bool { return w.Value() == nil })); n > 1 {
		t.Errorf("%d are kept", n)
	}
	runtime.KeepAlive(d)
}

// Where all servers go, everybody is told that waits, in a few looks.
func TestDecider_TellsAllThatNoServerIsLeft(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newBusyFleet(t, 2, prompt, 10*time.Second)
	d := newTestDecider(f)
	var all []*waiter
	for range 5 * order.RepricedPerLook {
		all = append(all, f.waits(d, prompt, testModel))
	}
	now := time.Now()
	d.decideAt(now)
	if err := f.Fleet.Apply(nil); err != nil {
		t.Fatal(err)
	}
	for looks := 1; d.decideAt(now.Add(time.Duration(looks)*repriceEvery)) > 0; looks++ {
		if looks > 5 {
			t.Fatal("some are told nothing")
		}
	}
	for i, w := range all {
		var none *NoServerError
		if len(w.done) != 1 {
			t.Errorf("%d of %d is told nothing", i, len(all))
		} else if g := <-w.done; !errors.As(g.err, &none) {
			t.Errorf("%d: %v", i, g.err)
		}
	}
	if len(d.queues) > 0 {
		t.Error("their queue is kept")
	}
}

// Looks that follow each other within a millisecond price nothing anew.
func TestDecider_RenewsPricesOnceAMillisecond(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newBusyFleet(t, 2, prompt, 10*time.Second)
	d := newTestDecider(f)
	f.waits(d, prompt, testModel)
	start := time.Now()
	d.decideAt(start)
	q := d.queues[testModel]
	for after, want := range map[time.Duration]time.Duration{repriceEvery - 1: 0, repriceEvery: repriceEvery} {
		q.repriced = start
		d.decideAt(start.Add(after))
		if got := q.repriced.Sub(start); len(q.waiting) != 1 || got != want {
			t.Errorf("%v later: %d wait, priced after %v, want %v", after, len(q.waiting), got, want)
		}
	}
}

// A request that cannot have its turn in time is refused when it comes, by the limit that it would miss;
// one whose last server goes while it waits is told so then.
func TestDecider_RefusesAtOnceWhatWouldWaitInVain(t *testing.T) {
	prompt := testPrompt(14_000)
	for name, c := range map[string]struct {
		deadline time.Duration // 0: none
		want     error
	}{
		"the longest wait":        {0, queue.ErrTimeout},
		"its deadline":            {5 * time.Second, queue.ErrDeadline},
		"the nearer of the two":   {time.Hour, queue.ErrTimeout},
		"a deadline that is near": {time.Millisecond, queue.ErrDeadline},
	} {
		f := newBusyFleet(t, 1, prompt, 10*time.Minute)
		f.Binder.deadlineProbes.Observe(testModel, time.Now()) // no probe of deadlines is due
		d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 20*time.Second, f.Log)
		w := f.waits(d, prompt, testModel)
		if c.deadline > 0 {
			w.request.req.Deadline = time.Now().Add(c.deadline)
		}
		d.decide()
		if len(w.done) != 1 {
			t.Fatalf("%s: it is told nothing", name)
		}
		if g := <-w.done; !errors.Is(g.err, c.want) || g.b != nil {
			t.Errorf("%s: %v", name, g.err)
		}
		if q := d.queues[testModel]; len(q.waiting) != 0 || q.order.Len() != 0 {
			t.Errorf("%s: %d wait, %d in the order", name, len(q.waiting), q.order.Len())
		}
	}
	f := newBusyFleet(t, 1, prompt, 10*time.Minute)
	d := newTestDecider(f)
	w := f.waits(d, prompt, testModel)
	d.decide()
	f.Fleet.SetDrain(f.Fleet.Servers()[0].ID(), true)
	d.decideAt(time.Now().Add(repriceEvery))
	var none *NoServerError
	if len(w.done) != 1 {
		t.Fatal("its server is gone, and it is told nothing")
	}
	if g := <-w.done; !errors.As(g.err, &none) || none.Role != pools.Prefill {
		t.Errorf("its server is gone: %v", g.err)
	}
	if q := d.queues[testModel]; q != nil && (len(q.waiting) != 0 || q.order.Len() != 0) {
		t.Errorf("its server is gone: %d wait, %d in the order", len(q.waiting), q.order.Len())
	}
}

// One that was let in to wait is given up at its turn only where it is predicted to come too late, and then
// waits are reckoned with as longer; one that has come just now must be sure of its first token.
func TestDecider_IsTooLateAtItsTurn(t *testing.T) {
	for name, c := range map[string]struct {
		left time.Duration // until its deadline, at its turn
		late bool
	}{"in time": {time.Hour, false}, "too late": {time.Millisecond, true}} {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		f.Binder.deadlineProbes.Observe(testModel, time.Now())
		d := newTestDecider(f)
		q := newModelQueue(d, testModel)
		w := f.waits(d, prompt, testModel)
		d.arrivals = nil
		now := time.Now()
		w.request.req.Deadline = now.Add(time.Minute)
		q.refresh(now)
		q.enter(w, false, now)
		before := w.margin.Bound(time.Second)
		now = now.Add(time.Second)
		w.request.req.Deadline = now.Add(c.left)
		q.decide(now)
		if len(w.done) != 1 || len(q.waiting) != 0 {
			t.Fatalf("%s: it waits on", name)
		}
		g := <-w.done
		g.b.release()
		if errors.Is(g.err, queue.ErrDeadline) != c.late || (g.b == nil) != c.late {
			t.Errorf("%s: %v", name, g.err)
		}
		if after := w.margin.Bound(time.Second); c.late && after <= before {
			t.Errorf("%s: a wait of a second is reckoned with as %v and then %v", name, before, after)
		}
		f.holdsNothing(t)
	}
}

// A request that finds nobody waiting decides for itself, and no other goroutine has to wake up for it; while
// another one waits, Run decides.
func TestDecider_ARequestDecidesForItselfWhereNobodyWaits(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	d.setRuns(true) // as Run has it, which does nothing here
	b, err := d.await(t.Context(), d.arrive(&f.arrives(prompt, time.Now()).bind))
	if err != nil || b == nil {
		t.Fatalf("%v, %v", b, err)
	}
	b.release()
	if len(d.wake) != 0 {
		t.Error("Run was woken for a request that is bound")
	}

	f.occupy(t, testModel, 30*time.Second)
	f.waits(d, prompt, testModel)
	if d.decideAtOnce() || !d.waits {
		t.Error("Run is not asked to look again for a request that waits")
	}
	f.waits(d, prompt, testModel)
	if d.decideAtOnce() || len(d.arrivals) != 1 {
		t.Error("a request decides for itself while another one waits")
	}
	d.setRuns(false)
	if d.waits = false; d.decideAtOnce() || len(d.arrivals) != 1 {
		t.Error("a request decides for itself although Run has ended")
	}
}

// A request that is bound at once has no part in the queue of those that wait for servers: nothing is made for it
// there, and nobody displaces it.
func TestBinder_WhatIsBoundAtOnceIsNotCountedAsWaiting(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	late := *f.Binder
	late.Late = newTestDecider(f)
	late.Late.setRuns(true) // as Run has it, which does nothing here
	r := &f.arrives(prompt, time.Now()).bind
	r.entry = nil // to be counted it would have to have one
	b, err := late.Bind(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	b.release()
}

// What ends wakes Run while a request waits for it.
func TestDecider_WorkThatEndsLetsWaitingRequestsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompt := testPrompt(14_000)
		f := newTestFleet(t, 1, prompt)
		d := newTestDecider(f)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() { d.Run(ctx) })
		synctest.Wait()
		var busy *pools.Lease
		for _, s := range f.Fleet.Servers() {
			if s.Role == pools.Prefill && s.Serves(testModel, time.Now()) {
				busy, _ = s.Claim(pools.Prefill, curve.Work{Tokens: 1000, Estimate: 30 * time.Second}, false, time.Now())
			}
		}
		bound := make(chan time.Time, 1)
		running.Go(func() {
			b, err := d.await(ctx, d.arrive(&f.arrives(prompt, time.Now()).bind))
			if err != nil {
				t.Error(err)
				return
			}
			bound <- time.Now()
			b.release()
		})
		synctest.Wait()
		if len(bound) != 0 {
			t.Fatal("it did not wait")
		}
		ended := time.Now()
		busy.Release()
		synctest.Wait()
		if len(bound) != 1 || !(<-bound).Equal(ended) {
			t.Error("it was not bound when the work ended")
		}
	})
}
