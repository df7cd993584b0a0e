package modelsync

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// learner is one replica: what it learned, and the sharing of it.
type learner struct {
	*Sync
	links *cost.Links
	fleet *pools.Fleet
	wrong *translations
}

// translations are those that a replica knows to be wrong.
type translations struct {
	own      map[string][]tokens.Disproved
	received map[string][]tokens.Disproved
}

func (w *translations) Disproved(time.Time) map[string][]tokens.Disproved { return w.own }

func (w *translations) ReceiveDisproved(reported map[string][]tokens.Disproved, _ time.Duration, _ time.Time) {
	if len(reported) > 0 {
		w.received = reported
	}
}

func newLearner(t *testing.T, client redis.UniversalClient, id string, cfg pools.Config) *learner {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	fleet := pools.NewFleet(cfg, log)
	t.Cleanup(func() { _ = fleet.Apply(nil) })
	if err := fleet.Apply([]pools.Spec{
		{URL: "http://10.0.0.1:8000", Role: pools.Prefill, Connector: "nixl"}, {URL: "http://10.0.0.2:8000", Role: pools.Decode, Connector: "nixl"},
	}); err != nil {
		t.Fatal(err)
	}
	links := cost.NewLinks(cost.DefaultLinks())
	wrong := &translations{}
	learned := Learned{Fleet: fleet, Links: links, Outputs: predict.NewOutputs(), Prompts: predict.NewPrompts(), Translations: wrong}
	return &learner{New(learned, cost.DefaultLinks(), cfg, client, "test:", id, log), links, fleet, wrong}
}

// learns lets a replica see slow transfers, and decode steps of a length.
func (l *learner) learns(transfers int, step time.Duration) {
	now := time.Now()
	for i := range transfers {
		for _, from := range []string{"p1", "p2"} {
			for _, to := range []string{"d1", "d2"} {
				l.links.Observe(cost.LinkEnd{ID: from}, cost.LinkEnd{ID: to}, 1e9, 800*time.Millisecond, 0, now.Add(time.Duration(i)*time.Millisecond))
			}
		}
		l.fleet.Servers()[1].ObserveStep(step, 4, 1000, now)
	}
}

// linkSeconds is what a gigabyte is believed to take.
func (l *learner) linkSeconds() float64 {
	latency, perByte := l.links.Estimate(&cost.Topology{}, &cost.Topology{}, time.Now())
	return latency + 1e9*perByte
}

// look is one beat of a replica.
func (l *learner) look(t *testing.T) {
	t.Helper()
	if err := l.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.begun.Store(true)
	l.takeIn(time.Now())
	if err := l.write(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
}

func newRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: redisserver.Start(t).Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// What one replica learned the others believe, once; one that starts takes over what is
// believed, its own former record too; and one that is gone is forgotten.
func TestSync_ReplicasBelieveWhatOneLearned(t *testing.T) {
	client := newRedis(t)
	a, b := newLearner(t, client, "a", pools.Default()), newLearner(t, client, "b", pools.Default())
	a.look(t)
	b.look(t)
	prior := b.linkSeconds()
	a.learns(20, 80*time.Millisecond)
	seen := a.linkSeconds()
	if seen < 4*prior {
		t.Fatalf("a believes %v s, assumed were %v", seen, prior)
	}
	a.look(t)
	a.justWrote(t)
	b.look(t)
	// What is told at once counts as one long look, of which a belief takes over a part.
	if got := b.linkSeconds(); got < 2*prior || got > 1.1*seen {
		t.Errorf("b believes %v s of a gigabyte, where a has seen %v and %v were assumed", got, seen, prior)
	}
	stepA, stepB := a.fleet.Servers()[1].StepCurve(), b.fleet.Servers()[1].StepCurve()
	if stepB[0] < 2*pools.Default().Step[0] || stepB[0] > 1.1*stepA[0] {
		t.Errorf("b believes a step of %v, a %v", stepB, stepA)
	}
	once := b.linkSeconds()
	for range 3 {
		b.look(t)
	}
	if got := b.linkSeconds(); math.Abs(got/once-1) > 1e-9 {
		t.Errorf("told once, b believes %v s, and later %v", once, got)
	}
	anew := newLearner(t, client, "a", pools.Default()) // a is started anew
	anew.look(t)
	if got := anew.linkSeconds(); math.Abs(got/seen-1) > 0.5 {
		t.Errorf("started anew, a believes %v s, where it had seen %v", got, seen)
	}
	if got := b.count.Load(); got != 1 {
		t.Errorf("b has taken in %d records", got)
	}
	if err := client.Del(t.Context(), "test:"+learnedKey+"a").Err(); err != nil { // its life has ended
		t.Fatal(err)
	}
	b.look(t)
	if left, _ := client.ZRange(t.Context(), "test:"+learnedSet, 0, -1).Result(); !slices.Equal(left, []string{"b"}) || b.count.Load() != 0 {
		t.Errorf("replicas %v have records, b keeps %d", left, b.count.Load())
	}
}

// Before the records were read once nothing is written: a replica that starts would replace
// what its former life knew.
func TestSync_NothingIsWrittenBeforeTheRecordsWereRead(t *testing.T) {
	client := newRedis(t)
	a := newLearner(t, client, "a", pools.Default())
	a.learns(5, 80*time.Millisecond)
	exists := func() bool { return client.Exists(t.Context(), "test:"+learnedKey+"a").Val() == 1 }
	if err := a.write(t.Context(), time.Now()); err != nil || exists() {
		t.Errorf("%v, written: %v", err, exists())
	}
	a.look(t)
	if !exists() {
		t.Error("nothing is written")
	}
	for _, key := range []string{learnedKey + "a", learnedSet} {
		if ttl := client.TTL(t.Context(), "test:"+key).Val(); ttl <= 0 || ttl > learnedLife {
			t.Errorf("%s lives for %v", key, ttl)
		}
	}
}

// A record is written when there is news, and once a minute all the same, since it expires.
func TestSync_WritesNewsAndNowAndThen(t *testing.T) {
	client := newRedis(t)
	a := newLearner(t, client, "a", pools.Default())
	a.look(t)
	gone := func() bool { return client.Del(t.Context(), "test:"+learnedKey+"a").Val() == 0 }
	written := func(when string, now time.Time, want bool) {
		t.Helper()
		gone()
		if err := a.write(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if got := !gone(); got != want {
			t.Errorf("%s: written %v", when, got)
		}
	}
	now := time.Now()
	written("no news", now.Add(learnedRest/2), false)
	written("no news for a minute", now.Add(learnedRest+time.Second), true)
	a.learns(1, 80*time.Millisecond)
	written("news", now.Add(learnedRest+2*time.Second), true)
	written("no news since", now.Add(learnedRest+3*time.Second), false)
}

// What cannot be read, is too long, or starts from other priors is as good as no record.
func TestSync_OthersMayWriteToThisRedis(t *testing.T) {
	client := newRedis(t)
	other := pools.Default()
	other.Step[0] *= 3
	a, b := newLearner(t, client, "a", other), newLearner(t, client, "b", pools.Default())
	a.look(t)
	a.learns(20, 80*time.Millisecond)
	a.look(t)
	put := func(id, text string) {
		t.Helper()
		client.Set(t.Context(), "test:"+learnedKey+id, text, learnedLife)
		client.ZAdd(t.Context(), "test:"+learnedSet, redis.Z{Member: id})
	}
	put("x", "no JSON")
	put("y", `{"basis":"`+b.basis+`","servers":{"10.0.0.2:8000":{"p":{"c":[-1,0,0]},"d":{"c":[-1,0,0],"k":1}}}}`)
	put("z", strings.Repeat(" ", maxLearned)+`{"basis":"`+b.basis+`"}`)
	before, step := b.linkSeconds(), b.fleet.Servers()[1].StepCurve()
	b.look(t)
	b.look(t)
	if got := b.linkSeconds(); got != before || b.fleet.Servers()[1].StepCurve() != step {
		t.Errorf("b believes %v s, before %v", got, before)
	}
	if _, ok := b.parse([]byte(`{"basis":"` + b.basis + `"}`)); !ok {
		t.Error("a record of the same priors is not read")
	}
}

// How long an agent's prompts are, and where the translation of prompts is wrong, one replica
// knows from what another one's answers have counted: before its first request of that agent.
func TestSync_ReplicasKnowWhatOthersCounted(t *testing.T) {
	client := newRedis(t)
	a, b := newLearner(t, client, "a", pools.Default()), newLearner(t, client, "b", pools.Default())
	a.look(t)
	b.look(t)
	size := predict.Prompt{Model: "llama", API: "messages", Context: 7, Rough: 20_000}
	a.learned.Prompts.Observe(size, 34_000, time.Now())
	a.wrong.own = map[string][]tokens.Disproved{"llama": {{Context: 7, Times: 3}}}
	a.look(t)
	a.justWrote(t)
	b.look(t)
	late := newLearner(t, client, "c", pools.Default())
	late.look(t)
	for name, l := range map[string]*learner{"b": b, "one that starts": late} {
		if got := l.learned.Prompts.Expect(size); got != 34_000 {
			t.Errorf("%s expects %d tokens of a prompt that had 34000 at a", name, got)
		}
		if got := l.wrong.received["llama"]; len(got) != 1 || got[0] != a.wrong.own["llama"][0] {
			t.Errorf("%s knows of wrong translations: %+v", name, got)
		}
	}
	b.wrong.received = nil
	b.look(t) // a model whose source opens later gets them then
	if len(b.wrong.received["llama"]) != 1 {
		t.Error("what has not changed is not said again")
	}
}

// Two replicas that run share what one of them learns, within some beats.
func TestSync_RunsUntilItsContextEnds(t *testing.T) {
	client := newRedis(t)
	a, b := newLearner(t, client, "a", pools.Default()), newLearner(t, client, "b", pools.Default())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	a.learns(20, 80*time.Millisecond)
	prior := b.linkSeconds()
	for _, l := range []*learner{a, b} {
		go func() {
			l.Run(ctx)
			ended <- struct{}{}
		}()
	}
	for deadline := time.Now().Add(30 * time.Second); client.ZCard(ctx, "test:"+learnedSet).Val() < 2 || b.count.Load() < 1 || b.linkSeconds() < 1.5*prior; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("b never believed what a learned")
		}
	}
	stop()
	<-ended
	<-ended
}

// servesFast lets a replica see prefills that take next to no time.
func (l *learner) servesFast(t *testing.T, prefills int) {
	t.Helper()
	for range prefills {
		lease, err := l.fleet.Servers()[0].Claim(pools.Prefill, curve.Work{Tokens: 4096}, true, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		lease.MarkSent(time.Minute, time.Now())
		lease.ReleasePrefilled(4096, 0, 0)
		lease.Release()
	}
}

// beliefs are what a replica believes, by name: seconds of a gigabyte, of a prefill and of a step, and
// tokens of an answer and of a prompt.
func (l *learner) beliefs() map[string]float64 {
	servers := l.fleet.Servers()
	return map[string]float64{
		"links":   l.linkSeconds(),
		"prefill": servers[0].PrefillCurve().Seconds(curve.PrefillFeatures(4096, 0)),
		"step":    servers[1].StepCurve().Seconds(curve.StepFeatures(4, 1000)),
		"output":  float64(l.learned.Outputs.Expect(predict.Answer{Model: "llama", Tokens: predict.UnknownOutput})),
		"prompt":  float64(l.learned.Prompts.Expect(somePrompt)),
	}
}

var somePrompt = predict.Prompt{Model: "llama", API: "chat", Context: 7, Rough: 20_000}

// learnsAll lets a replica see something of all that is shared.
func (l *learner) learnsAll(t *testing.T) {
	t.Helper()
	l.learns(20, 80*time.Millisecond)
	l.servesFast(t, 60)
	for range 60 {
		l.learned.Outputs.Observe(predict.Answer{Model: "llama"}, 2000, time.Now())
		l.learned.Prompts.Observe(somePrompt, 34_000, time.Now())
	}
}

// A record that follows another one by a beat is read, also where Redis answered late when the one before was read: no
// other may follow it for a minute.
func TestSync_ReadsARecordThatFollowsOneThatWasReadSlowly(t *testing.T) {
	client := newRedis(t)
	reads := redis.NewClient(&redis.Options{Addr: client.(*redis.Client).Options().Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = reads.Close() })
	var slow lateAnswers
	reads.AddHook(&slow)
	a, b := newLearner(t, client, "a", pools.Default()), newLearner(t, reads, "b", pools.Default())
	a.look(t)
	b.look(t)
	begun := time.Now()
	for _, x := range []struct{ written, late time.Duration }{{0, learnedBeat * 3 / 4}, {learnedBeat * 4 / 5, 0}} {
		a.learns(20, 80*time.Millisecond)
		a.look(t)
		if err := client.PExpireAt(t.Context(), "test:"+learnedKey+"a", begun.Add(x.written+learnedLife)).Err(); err != nil {
			t.Fatal(err)
		}
		slow.by = x.late
		b.look(t)
		if got := b.received["a"].record.samples(); got != a.wrote {
			t.Errorf("the one of %v: b knows of %d of %d samples", x.written, got, a.wrote)
		}
	}
	once := b.linkSeconds()
	slow.by = learnedBeat / 3 // so that it may be another one
	b.look(t)
	if got := b.linkSeconds(); math.Abs(got/once-1) > 1e-9 {
		t.Errorf("a record that was read twice changes what b believes from %v s to %v", once, got)
	}
}

// lateAnswers is a Redis whose answers to a pipeline come late.
type lateAnswers struct{ by time.Duration }

func (l *lateAnswers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lateAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (l *lateAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		defer func() { <-time.After(l.by) }()
		return next(ctx, commands)
	}
}

// justWrote makes what a replica wrote look new to the others: when a record was written is told by
// when it expires, give or take a quarter of a beat.
func (l *learner) justWrote(t *testing.T) {
	t.Helper()
	l.client.PExpire(t.Context(), "test:"+learnedKey+l.id, learnedLife+learnedBeat)
}

// A replica that starts believes all that another one has learned, of whatever kind.
func TestSync_OneThatStartsBelievesAllThatWasLearned(t *testing.T) {
	client := newRedis(t)
	a := newLearner(t, client, "a", pools.Default())
	prior := a.beliefs()
	a.look(t)
	a.learnsAll(t)
	a.look(t)
	late := newLearner(t, client, "b", pools.Default())
	late.look(t)
	want, got := a.beliefs(), late.beliefs()
	for what := range prior {
		if math.Abs(want[what]/prior[what]-1) < 0.3 {
			t.Fatalf("%s: a believes %v, assumed were %v", what, want[what], prior[what])
		}
		if math.Abs(got[what]-prior[what]) < 0.4*math.Abs(want[what]-prior[what]) {
			t.Errorf("%s: a believes %v, one that starts %v, assumed were %v", what, want[what], got[what], prior[what])
		}
	}
}

// What a replica has seen since its record before is added to what another one has seen itself, also
// where it reports a server, a link or a model for the first time; and what it sees after that.
func TestSync_WhatIsSeenIsAddedToWhatAnotherHasSeen(t *testing.T) {
	client := newRedis(t)
	a, b := newLearner(t, client, "a", pools.Default()), newLearner(t, client, "b", pools.Default())
	now := time.Now()
	for i := range 60 { // as fast as is assumed, and answers and prompts that are short
		at := now.Add(time.Duration(i-100) * time.Millisecond)
		for _, from := range []string{"p1", "p2"} {
			for _, to := range []string{"d1", "d2"} {
				b.links.Observe(cost.LinkEnd{ID: from}, cost.LinkEnd{ID: to}, 1e9, 100*time.Millisecond, 0, at)
			}
		}
		b.learned.Outputs.Observe(predict.Answer{Model: "llama"}, 20, at)
		b.learned.Prompts.Observe(somePrompt, 21_000, at)
		step := b.fleet.Servers()[1].StepCurve().Seconds(curve.StepFeatures(4, 1000))
		b.fleet.Servers()[1].ObserveStep(time.Duration(step*float64(time.Second)), 4, 1000, at)
	}
	a.look(t) // its first record has nothing
	b.look(t)
	for _, when := range []string{"for the first time", "again"} {
		before := b.beliefs()
		a.learnsAll(t)
		a.look(t)
		a.justWrote(t)
		b.look(t)
		after, theirs := b.beliefs(), a.beliefs()
		for what := range before {
			if what == "prompt" && when == "again" {
				continue // it is the latest prompts already
			}
			if nearer := math.Abs(before[what]-theirs[what]) - math.Abs(after[what]-theirs[what]); nearer <= 0 {
				t.Errorf("%s %s: b believed %v and then %v, where a believes %v", what, when, before[what], after[what], theirs[what])
			}
		}
		b.received["a"].written = time.Time{} // so that the next is new too
	}
}

// The records of all replicas are read in one look, those are forgotten that another replica has
// taken from the list, and the number of those that are kept is what the metric says.
func TestSync_ReadsAllRecordsAtOnce(t *testing.T) {
	client := newRedis(t)
	for _, id := range []string{"a", "c", "d"} {
		newLearner(t, client, id, pools.Default()).look(t)
	}
	b := newLearner(t, client, "b", pools.Default())
	b.look(t)
	if n := b.count.Load(); n != 3 || len(b.received) != 3 {
		t.Errorf("%d records are counted, %d are kept", n, len(b.received))
	}
	client.Del(t.Context(), "test:"+learnedKey+"a")
	client.ZRem(t.Context(), "test:"+learnedSet, "a")
	b.look(t)
	if _, kept := b.received["a"]; kept || b.count.Load() != 2 {
		t.Errorf("of one that is gone: kept %v, %d are counted", kept, b.count.Load())
	}
}

// failing fails the command of a name, alone or as the first of a pipeline.
type failing struct{ command string }

var errAway = errors.New("Redis is away")

func (f *failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == f.command {
			cmd.SetErr(errAway)
			return errAway
		}
		return next(ctx, cmd)
	}
}

func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == f.command {
			return errAway
		}
		return next(ctx, cmds)
	}
}

// What cannot be read or written is an error, and is read or written at the next look.
func TestSync_WhatFailsIsDoneAtTheNextLook(t *testing.T) {
	client := newRedis(t)
	newLearner(t, client, "a", pools.Default()).look(t)
	redisFails := &failing{}
	client.AddHook(redisFails)
	b := newLearner(t, client, "b", pools.Default())
	for _, redisFails.command = range []string{"zrange", "pttl", "get"} {
		if err := b.read(t.Context()); !errors.Is(err, errAway) {
			t.Errorf("%s fails: %v", redisFails.command, err)
		}
	}
	redisFails.command = ""
	if b.look(t); b.count.Load() != 1 {
		t.Errorf("%d records are read then", b.count.Load())
	}
	b.learns(1, 80*time.Millisecond)
	redisFails.command = "set"
	if err := b.write(t.Context(), time.Now()); !errors.Is(err, errAway) {
		t.Errorf("set fails: %v", err)
	}
	redisFails.command = ""
	client.Del(t.Context(), "test:"+learnedKey+"b")
	if b.look(t); client.Exists(t.Context(), "test:"+learnedKey+"b").Val() != 1 {
		t.Error("what could not be written is not written then")
	}
}
