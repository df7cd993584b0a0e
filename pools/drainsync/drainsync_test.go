package drainsync

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

// gateway is one of several that share a Redis: its fleet, and what it shares. Rounds are taken by the
// test.
type gateway struct {
	*Sync
	t *testing.T
}

// newGateway has the servers a, b and those of the group g, by their hosts.
func newGateway(t *testing.T, r *redisserver.Server, hosts ...string) *gateway {
	t.Helper()
	f := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
	client := redis.NewClient(&redis.Options{
		Addr: r.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
	t.Cleanup(func() { _ = client.Close() })
	g := &gateway{New(f, client, "test:", slog.New(slog.DiscardHandler)), t}
	g.apply(hosts...)
	return g
}

func (g *gateway) apply(hosts ...string) {
	g.t.Helper()
	var specs []pools.Spec
	for _, host := range hosts {
		spec := pools.Spec{URL: "http://" + host + ":1", Role: pools.Both}
		if strings.HasPrefix(host, "g") {
			spec.Group = "g"
		}
		specs = append(specs, spec)
	}
	if err := g.fleet.Apply(specs); err != nil {
		g.t.Fatal(err)
	}
}

// shares takes a round of each gateway, twice: what the last one writes the first one reads.
func shares(t *testing.T, all ...*gateway) {
	t.Helper()
	for range 2 {
		for _, g := range all {
			if err := g.round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// draining are the hosts that drain.
func (g *gateway) draining() string {
	var hosts []string
	for _, s := range g.fleet.Servers() {
		if s.Drains() {
			hosts = append(hosts, strings.TrimSuffix(s.ID(), ":1"))
		}
	}
	slices.Sort(hosts)
	return strings.Join(hosts, " ")
}

func wantDraining(t *testing.T, when, want string, all ...*gateway) {
	t.Helper()
	for i, g := range all {
		if got := g.draining(); got != want {
			t.Errorf("%s: at gateway %d %q drain, want %q", when, i, got, want)
		}
	}
}

// What is said to one gateway holds for all, and for one that starts later; the group drains as a whole,
// whichever of its servers is named, and whichever gateway is told.
func TestSync_WhatOneIsToldHoldsForAll(t *testing.T) {
	r := redisserver.Start(t)
	first, second := newGateway(t, r, "a", "b", "g1", "g2"), newGateway(t, r, "a", "b", "g1", "g2")
	if first.SetDrain("c:1", true) {
		t.Error("a server that is not there drains")
	}
	if !first.SetDrain("a:1", true) || !second.SetDrain("g2:1", true) {
		t.Error("a server that is there is not known")
	}
	wantDraining(t, "at once", "a", first)
	shares(t, first, second)
	later := newGateway(t, r, "a", "b", "g1", "g2")
	shares(t, later)
	wantDraining(t, "shared", "a g1 g2", first, second, later)

	later.SetDrain("g1:1", false)
	wantDraining(t, "at once", "a", later)
	shares(t, later, first, second)
	wantDraining(t, "taken back by the third", "a", first, second, later)
	second.SetDrain("a:1", false)
	shares(t, first, second, later)
	wantDraining(t, "taken back by the second", "", first, second, later)
	first.SetDrain("a:1", true)
	shares(t, first, second, later)
	wantDraining(t, "said again", "a", first, second, later)
}

// What was said to another gateway is logged once, where it changes something here.
func TestSync_LogsWhatAnotherWasTold(t *testing.T) {
	r, log := redisserver.Start(t), &testlog.Buffer{}
	first, second := newGateway(t, r, "a"), newGateway(t, r, "a")
	second.log = slog.New(slog.NewTextHandler(log, nil))
	for _, drain := range []bool{true, false} {
		first.SetDrain("a:1", drain)
		shares(t, first, second)
		want := fmt.Sprintf("msg=\"drain set through another gateway\" server=a:1 drain=%v\n", drain)
		if said := log.Take(); !strings.HasSuffix(said, want) || strings.Count(said, "\n") != 1 {
			t.Errorf("drain %v: %q", drain, said)
		}
	}
	second.SetDrain("a:1", true) // who is told logs it at its admin port
	if shares(t, second, first); log.Take() != "" {
		t.Error("what was said here is logged as said elsewhere")
	}
}

// A server that comes back, or that another gateway has only, drains as soon as it is there.
func TestSync_AServerThatComesLaterDrains(t *testing.T) {
	r := redisserver.Start(t)
	first, second := newGateway(t, r, "a", "b"), newGateway(t, r, "b")
	first.SetDrain("a:1", true)
	shares(t, first, second)
	wantDraining(t, "without it", "", second)
	second.apply("a", "b")
	shares(t, second)
	wantDraining(t, "with it", "a", second)
}

// What Redis does not take is kept and written when it answers again; what it has lost is written
// again; and what is not valid there changes nothing.
func TestSync_OutlivesRedis(t *testing.T) {
	r := redisserver.Start(t)
	first, second := newGateway(t, r, "a", "b"), newGateway(t, r, "a", "b")
	shares(t, first, second)
	r.Hang()
	first.SetDrain("a:1", true)
	wantDraining(t, "while Redis hangs", "a", first)
	start := time.Now()
	if err := first.round(t.Context()); err == nil {
		t.Error("a hanging Redis answers")
	}
	if took := time.Since(start); took > 10*patience {
		t.Errorf("a round takes %v", took)
	}
	if !first.Pending("a:1") || first.Pending("b:1") {
		t.Error("others are believed to know what Redis does not have")
	}
	r.Continue()
	shares(t, first, second)
	wantDraining(t, "when Redis answers again", "a", first, second)
	if !first.Pending("a:1") || second.Pending("a:1") {
		t.Error("others are believed to have looked the moment that it was written")
	}
	first.written["a:1"] = time.Now().Add(-untilSeen)
	if first.Pending("a:1") {
		t.Error("others are believed never to look")
	}
	if shares(t, first); len(first.written) > 0 {
		t.Error("what all know is kept")
	}

	r.Do("FLUSHALL")
	shares(t, second, first)
	wantDraining(t, "when Redis has lost all", "a", first, second)
	later := newGateway(t, r, "a", "b")
	shares(t, later)
	wantDraining(t, "written again", "a", later)

	r.Do("HSET", "test:drains", "b:1", "yes please", "a:1", "2 0")
	shares(t, first, second, later)
	wantDraining(t, "what is not valid", "a", first, second, later)
}

// A Redis that comes back with old data, or fails over to a replica that lacks the newest, neither ends a drain nor
// begins one: gateways know what it had last, and write it again.
func TestSync_OldDataOfRedisChangesNothing(t *testing.T) {
	r := redisserver.Start(t)
	first, second := newGateway(t, r, "a", "b"), newGateway(t, r, "a", "b")
	first.SetDrain("a:1", true)
	first.SetDrain("b:1", true)
	shares(t, first, second)
	first.SetDrain("b:1", false)
	shares(t, first, second)
	old := r.Ask("DUMP", "test:drains")
	second.SetDrain("a:1", false)
	second.SetDrain("b:1", true)
	shares(t, second, first)
	wantDraining(t, "as said last", "b", first, second)

	r.Do("RESTORE", "test:drains", 0, old, "REPLACE")
	shares(t, first, second)
	wantDraining(t, "when Redis has what it had before", "b", first, second)
	later := newGateway(t, r, "a", "b")
	shares(t, later)
	wantDraining(t, "at one that starts then", "b", later)

	first.SetDrain("b:1", false)
	shares(t, first, second, later)
	wantDraining(t, "said after that", "", first, second, later)
}

// What is said last holds, also where the clock of the gateway that it is said to is behind.
func TestChanges_WhatIsSaidIsLaterThanWhatWasSaid(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	ahead := record{true, now.Add(time.Hour)}
	for name, v := range map[string]view{
		"by Redis":       {shared: map[string]record{"a:1": ahead}, unwritten: map[string]bool{"a:1": false}},
		"before it lost": {newest: map[string]record{"a:1": ahead}, unwritten: map[string]bool{"a:1": false}},
	} {
		all := v.changes(now)
		if len(all) != 1 || all[0].text() != "0 1003601" {
			t.Errorf("said %s: %+v", name, all)
		}
	}
}

// What an operator says while a round is under way is neither lost nor overwritten by it.
func TestSync_WhatIsSaidDuringARoundHolds(t *testing.T) {
	r := redisserver.Start(t)
	first, second := newGateway(t, r, "a"), newGateway(t, r, "a")
	first.SetDrain("a:1", true)
	shares(t, first, second)
	seen := view{shared: map[string]record{"a:1": {drain: true}}, unwritten: map[string]bool{}}
	first.SetDrain("a:1", false)
	first.take(seen) // read before
	wantDraining(t, "a round that began before", "", first)
	seen = view{shared: map[string]record{}, unwritten: map[string]bool{"a:1": true}}
	first.take(seen) // it wrote what was said before
	shares(t, first, second)
	wantDraining(t, "shared", "", first, second)
}

// Between the look and the write another gateway may have said something newer: it stays.
func TestWrite_LeavesWhatIsNewer(t *testing.T) {
	r := redisserver.Start(t)
	g := newGateway(t, r, "a")
	set := func(read, text string, force bool) string {
		t.Helper()
		if err := write.Run(t.Context(), g.client, []string{"test:drains"}, "a:1", read, text, force).Err(); err != nil {
			t.Fatal(err)
		}
		return r.Ask("HGET", "test:drains", "a:1")
	}
	for i, c := range []struct {
		read, text string
		force      bool
		want       string
	}{
		{"", "1 10", false, "1 10"}, {"", "1 11", false, "1 10"}, {"1 10", "1 12", false, "1 12"}, {"1 10", "", false, "1 12"}, {"x", "0 13", true, "0 13"}, {"0 13", "", false, ""},
	} {
		if got := set(c.read, c.text, c.force); got != c.want {
			t.Errorf("%d: %q is kept, want %q", i, got, c.want)
		}
	}
}

// meanwhile is a hook of a client that does something once, before its first script.
type meanwhile struct {
	once sync.Once
	do   func()
}

func (m *meanwhile) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *meanwhile) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (m *meanwhile) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			m.once.Do(m.do)
		}
		return next(ctx, cmd)
	}
}

// A gateway that would have said again that a server drains, when another one was told the opposite
// between its look and its write, does not take what it would have written for what was said.
func TestSync_WhatIsNewerThanALookHolds(t *testing.T) {
	r := redisserver.Start(t)
	g := newGateway(t, r, "a")
	r.Do("HSET", "test:drains", "a:1", record{true, time.Now().Add(-2 * refresh)}.String())
	g.client.(*redis.Client).AddHook(&meanwhile{do: func() { r.Do("HSET", "test:drains", "a:1", record{false, time.Now()}.String()) }})
	shares(t, g)
	wantDraining(t, "in the next round", "", g)
	if said := r.Ask("HGET", "test:drains", "a:1"); !strings.HasPrefix(said, "0 ") {
		t.Errorf("Redis has %q", said)
	}
}

// What a gateway writes: what was said to it; what Redis has lost; that it still has a server; and
// nothing of a server that nobody has for a day.
func TestChanges(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	ago := func(drain bool, age time.Duration) record { return record{drain, now.Add(-age)} }
	v := view{
		shared: map[string]record{
			"fresh:1": ago(true, time.Minute), "old:1": ago(true, 2*time.Hour), "undone:1": ago(false, 2*time.Hour), "undone long ago:1": ago(false, 25*time.Hour),
			"elsewhere:1": ago(true, 2*time.Hour), "nowhere:1": ago(true, 25*time.Hour), "here for long:1": ago(true, 25*time.Hour), "said:1": ago(true, 25*time.Hour),
			"an hour:1": ago(true, time.Hour), "a day:1": ago(false, 24*time.Hour),
		},
		drained:   map[string]bool{"fresh:1": true, "lost:1": true, "lost and gone:1": true, "new:1": true},
		unwritten: map[string]bool{"said:1": false, "new:1": true},
		present:   map[string]bool{"fresh:1": true, "old:1": true, "undone:1": true, "undone long ago:1": true, "lost:1": true, "here for long:1": true, "said:1": true, "new:1": true, "an hour:1": true},
	}
	got := make(map[string]string)
	for _, c := range v.changes(now) {
		got[c.server] = fmt.Sprintf("%q %v", c.text(), c.force)
	}
	want := map[string]string{
		"said:1": `"0 1000000" true`, "new:1": `"1 1000000" true`, "lost:1": `"1 1000000" false`, "old:1": `"1 1000000" false`,
		"here for long:1": `"1 1000000" false`, "undone long ago:1": `"" false`, "nowhere:1": `"" false`,
	}
	if !maps.Equal(got, want) {
		t.Errorf("written is %v\nwant       %v", got, want)
	}
}

// Running gateways do all that by themselves, and end with their context.
func TestRun_SharesByItself(t *testing.T) {
	r := redisserver.Start(t)
	first, second := newGateway(t, r, "a"), newGateway(t, r, "a")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	for _, g := range []*gateway{first, second} {
		go func() {
			g.Run(ctx)
			ended <- struct{}{}
		}()
	}
	for _, drain := range []bool{true, false} {
		first.SetDrain("a:1", drain)
		for deadline := time.Now().Add(30 * time.Second); second.fleet.Servers()[0].Drains() != drain; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("drain %v does not reach the second gateway", drain)
			}
		}
	}
	stop()
	<-ended
	<-ended
}

// While Redis does not answer, that is said once, and once that it answers again.
func TestRun_SaysOnceThatItDoesNotShare(t *testing.T) {
	r := redisserver.Start(t)
	g, log := newGateway(t, r, "a"), &testlog.Buffer{}
	g.log = slog.New(slog.NewTextHandler(log, nil))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.Run(ctx)
	}()
	await := func(text string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !strings.Contains(log.String(), text); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not logged: %s, but %s", text, log.String())
			}
		}
	}
	r.Hang()
	await("are not shared")
	g.SetDrain("a:1", true) // another round fails
	g.SetDrain("a:1", false)
	r.Continue()
	await("shared with other gateways again")
	stop()
	<-ended
	if lines := strings.Count(log.String(), "\n"); lines != 2 || !strings.Contains(log.String(), "read drains") {
		t.Errorf("%d lines: %s", lines, log.String())
	}
}
