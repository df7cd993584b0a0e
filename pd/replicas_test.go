package pd

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
)

// learner is one replica: what it learned, and the sharing of it.
type learner struct {
	*ModelSync
	links *cost.Links
	fleet *pools.Fleet
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
	learned := &Chooser{
		Snapshotter: Snapshotter{Fleet: fleet, Links: links, Locality: newTestLocality(t)}, Outputs: predict.NewOutputs(), Prompts: predict.NewPrompts(),
	}
	return &learner{NewModelSync(learned, cost.DefaultLinks(), cfg, client, "test:", id, log), links, fleet}
}

// newTestLocality is one whose engines render chats, so that messages are translated.
func newTestLocality(t *testing.T) *Locality {
	t.Helper()
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode, cfg.AskOver = model, tokens.Engine, 0
		return tokens.New(cfg, func(_ context.Context, path string, _ []byte) ([]byte, error) {
			if path != "/v1/chat/completions/render" {
				return nil, tokens.ErrNotServed
			}
			return []byte(`{"token_ids":[1,2,3]}`), nil
		}, nil)
	})
	t.Cleanup(l.Close)
	return l
}

// learns lets a replica see slow transfers, and decode steps of a length.
func (l *learner) learns(transfers int, step time.Duration) {
	now := time.Now()
	for i := range transfers {
		for _, from := range []string{"p1", "p2"} {
			for _, to := range []string{"d1", "d2"} {
				l.links.Observe(&cost.Candidate{ID: from}, &cost.Candidate{ID: to}, 1e9, 800*time.Millisecond, 0, now.Add(time.Duration(i)*time.Millisecond))
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
func TestModelSync_ReplicasBelieveWhatOneLearned(t *testing.T) {
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
	// When a record was written is told by when it expires, give or take a quarter of a beat.
	client.PExpire(t.Context(), "test:"+learnedKey+"a", learnedLife+learnedBeat)
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
func TestModelSync_NothingIsWrittenBeforeTheRecordsWereRead(t *testing.T) {
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
func TestModelSync_WritesNewsAndNowAndThen(t *testing.T) {
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
func TestModelSync_OthersMayWriteToThisRedis(t *testing.T) {
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
func TestModelSync_ReplicasKnowWhatOthersCounted(t *testing.T) {
	client := newRedis(t)
	a, b := newLearner(t, client, "a", pools.Default()), newLearner(t, client, "b", pools.Default())
	a.look(t)
	b.look(t)
	message := func(text string) *Request {
		return requestOf(t, api.Messages, `{"model":"`+testModel+`","max_tokens":9,"system":"be brief","messages":[{"role":"user","content":"`+text+`"}]}`)
	}
	finds := func(l *learner, text string) *prefix {
		return l.learned.Locality.findTokens(t.Context(), message(text), testModel)
	}
	if p := finds(b, "before"); !p.isClaimed() {
		t.Fatalf("the translation is not used: %+v", p)
	}
	size := predict.Prompt{Model: testModel, API: api.Messages.Name, Context: 7, Rough: 20_000}
	a.learned.Prompts.Observe(size, 34_000, time.Now())
	finds(a, "one").counted(4)
	a.look(t)
	client.PExpire(t.Context(), "test:"+learnedKey+"a", learnedLife+learnedBeat) // it was written just now
	b.look(t)
	if got := b.learned.Prompts.Expect(size); got != 34_000 {
		t.Errorf("b expects %d tokens of a prompt that had 34000 at a", got)
	}
	for _, text := range []string{"before", "another"} {
		if p := finds(b, text); p.isClaimed() || p.unknown != tokens.Wrong {
			t.Errorf("b uses the translation that a found wrong: %q, known %v, %q", text, p.known, p.unknown)
		}
	}
	late := newLearner(t, client, "c", pools.Default()) // whose models' sources open after it has read
	late.look(t)
	finds(late, "opens it")
	late.look(t)
	if p := finds(late, "another"); p.isClaimed() || late.learned.Prompts.Expect(size) != 34_000 {
		t.Errorf("one that starts: translated %v, %d tokens", p.isClaimed(), late.learned.Prompts.Expect(size))
	}
}

// Two replicas that run share what one of them learns, within some beats.
func TestModelSync_RunsUntilItsContextEnds(t *testing.T) {
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

// What one replica learns of prompts' tokens is told to those that run, and kept for those
// that start; the list is bounded and expires.
func TestTokenSync_IsToldAndKept(t *testing.T) {
	client := newRedis(t)
	var l Locality
	s := NewTokenSync(&l, client, "test:", slog.New(slog.NewTextHandler(io.Discard, nil)))
	sub := client.Subscribe(t.Context(), "test:"+tokenSyncChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range maxKeptPrefixes + 3 {
		s.publish(t.Context(), []byte{byte(i), byte(i >> 8)})
	}
	told, err := sub.ReceiveMessage(t.Context())
	if err != nil || told.Payload != "\x00\x00" {
		t.Errorf("%v, %v", told, err)
	}
	kept := client.LRange(t.Context(), "test:"+tokenSyncList, 0, -1).Val()
	const last = maxKeptPrefixes + 2
	if len(kept) != maxKeptPrefixes || kept[0] != string([]byte{last & 255, last >> 8}) || kept[len(kept)-1] != "\x03\x00" {
		t.Errorf("%d are kept, the first %q, the last %q", len(kept), kept[0], kept[len(kept)-1])
	}
	if ttl := client.TTL(t.Context(), "test:"+tokenSyncList).Val(); ttl <= 0 || ttl > keptPrefixLife {
		t.Errorf("they live for %v", ttl)
	}
}

// A request never waits for Redis: what finds the queue full is dropped, and so is what no
// other replica would take.
func TestTokenSync_OffersAreBounded(t *testing.T) {
	var l Locality
	s := NewTokenSync(&l, nil, "test:", nil)
	for name, c := range map[string]struct {
		model  string
		prefix []byte
		queued bool
	}{
		"a prefix":               {"m", []byte("prefix"), true},
		"nothing":                {"m", nil, false},
		"the longest":            {"m", make([]byte, maxLearnedPrefix), true},
		"longer":                 {"m", make([]byte, maxLearnedPrefix+1), false},
		"a model's longest name": {strings.Repeat("m", 255), []byte("prefix"), true},
		"a longer one":           {strings.Repeat("m", 256), []byte("prefix"), false},
	} {
		s.offer(c.model, c.prefix)
		select {
		case got := <-s.queue:
			n, at := binary.Uvarint(got)
			if !c.queued || string(got[at:at+int(n)]) != c.model || string(got[at+int(n):]) != string(c.prefix) {
				t.Errorf("%s: queued as %.40q", name, got)
			}
		default:
			if c.queued {
				t.Errorf("%s: not queued", name)
			}
		}
	}
	for range tokenSyncQueue + 5 {
		s.offer("m", []byte("prefix"))
	}
	if len(s.queue) != tokenSyncQueue {
		t.Errorf("%d are queued", len(s.queue))
	}
}

// What one replica learned of a prompt's tokens the others know: those that run, and one that
// starts when it was published long ago.
func TestTokenSync_ReplicasKnowWhatOneLearned(t *testing.T) {
	client := newRedis(t)
	newLocality := func() *Locality {
		l := NewLocality(nil, func(model string) (*tokens.Source, error) {
			cfg := tokens.Default()
			cfg.Model, cfg.Mode = model, tokens.Learned
			return tokens.New(cfg, nil, nil)
		})
		t.Cleanup(l.Close)
		return l
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	run := func(l *Locality) {
		s := NewTokenSync(l, client, "test:", slog.New(slog.DiscardHandler))
		running.Go(func() { s.Run(ctx) })
	}
	req := requestOf(t, api.Completions, `{"model":"m","prompt":"`+strings.Repeat("the river and the bridge ", 40)+`"}`)
	ids := make([]string, 240)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	knows := func(l *Locality) bool { return len(l.findTokens(t.Context(), req, testModel).tokens.IDs) > 0 }
	await := func(who string, l *Locality) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !knows(l); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(who + " never knew the prompt")
			}
		}
	}
	learns, hears, starts := newLocality(), newLocality(), newLocality()
	run(learns)
	run(hears)
	if knows(hears) {
		t.Fatal("it knows the prompt from nowhere")
	}
	p := learns.findTokens(t.Context(), req, testModel)
	learns.learn(p, []byte(`{"prompt_token_ids":[`+strings.Join(ids, ",")+`]}`))
	await("the one that learned it", learns)
	await("the one that runs", hears)
	run(starts)
	await("the one that starts", starts)
}

// A prompt of whose tokens nothing is known goes by its text, and that counts as known: what was
// sent where is known of text as well.
func TestLocality_APromptThatIsNotKnownGoesByItsText(t *testing.T) {
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode = model, tokens.Learned
		return tokens.New(cfg, nil, nil)
	})
	defer l.Close()
	long := requestOf(t, api.Completions, `{"model":"m","prompt":"`+strings.Repeat("the river and the bridge ", 400)+`"}`)
	if p := l.findTokens(t.Context(), long, testModel); !p.known || len(p.tokens.Chunks) == 0 || !p.isGuessed() {
		t.Errorf("known %v, %d chunks, guessed %v", p.known, len(p.tokens.Chunks), p.isGuessed())
	}
	long.Aggregated = true
	if p := l.findTokens(t.Context(), long, testModel); p.known || p.source != nil {
		t.Error("a request that shares nothing is looked up")
	}
}
