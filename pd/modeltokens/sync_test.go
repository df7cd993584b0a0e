package modeltokens

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

func newRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: redisserver.Start(t).Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// What one replica learns of prompts' tokens is told to those that run, and kept for those
// that start; the list is bounded and expires.
func TestSync_IsToldAndKept(t *testing.T) {
	client := newRedis(t)
	s := NewSync(New(nil), client, "test:", slog.New(slog.NewTextHandler(io.Discard, nil)))
	sub := client.Subscribe(t.Context(), "test:"+syncChannel)
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
	kept := client.LRange(t.Context(), "test:"+syncList, 0, -1).Val()
	const last = maxKeptPrefixes + 2
	if len(kept) != maxKeptPrefixes || kept[0] != string([]byte{last & 255, last >> 8}) || kept[len(kept)-1] != "\x03\x00" {
		t.Errorf("%d are kept, the first %q, the last %q", len(kept), kept[0], kept[len(kept)-1])
	}
	if ttl := client.TTL(t.Context(), "test:"+syncList).Val(); ttl <= 0 || ttl > keptPrefixLife {
		t.Errorf("they live for %v", ttl)
	}
}

// A request never waits for Redis: what finds the queue full is dropped, and so is what no
// other replica would take.
func TestSync_OffersAreBounded(t *testing.T) {
	s := NewSync(New(nil), nil, "test:", nil)
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
	for range syncQueue + 5 {
		s.offer("m", []byte("prefix"))
	}
	if len(s.queue) != syncQueue {
		t.Errorf("%d are queued", len(s.queue))
	}
}

// What one replica learned of a prompt's tokens the others know: those that run, and one that
// starts when it was published long ago.
func TestSync_ReplicasKnowWhatOneLearned(t *testing.T) {
	client := newRedis(t)
	newSources := func() *Sources {
		sources := New(func(model string) (*tokens.Source, error) {
			cfg := tokens.Default()
			cfg.Model, cfg.Mode = model, tokens.Learned
			return tokens.New(cfg, nil, nil)
		})
		t.Cleanup(sources.Close)
		return sources
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	run := func(sources *Sources) {
		s := NewSync(sources, client, "test:", slog.New(slog.DiscardHandler))
		running.Go(func() { s.Run(ctx) })
	}
	prompt := tokens.Prompt{API: tokens.Completions, Model: "m", Body: []byte(`{"model":"m","prompt":"` + strings.Repeat("the river and the bridge ", 40) + `"}`)}
	ids := make([]uint32, 240)
	for i := range ids {
		ids[i] = uint32(i)
	}
	knows := func(sources *Sources) bool {
		source, _ := sources.Source("m")
		if source == nil {
			return false
		}
		found, _ := source.Tokens(t.Context(), prompt)
		return len(found.IDs) > 0
	}
	await := func(who string, sources *Sources) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !knows(sources); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(who + " never knew the prompt")
			}
		}
	}
	learns, hears, starts := newSources(), newSources(), newSources()
	run(learns)
	run(hears)
	if knows(hears) {
		t.Fatal("it knows the prompt from nowhere")
	}
	source, why := learns.Source("m")
	if source == nil {
		t.Fatalf("it has no source: %s", why)
	}
	learns.Learn("m", source, prompt, ids)
	await("the one that learned it", learns)
	await("the one that runs", hears)
	run(starts)
	await("the one that starts", starts)
}

// What others write into the channel and cannot be read asks for nothing.
func TestSync_WhatCannotBeReadIsIgnored(t *testing.T) {
	var asked []string
	sources := New(func(model string) (*tokens.Source, error) {
		asked = append(asked, model)
		return nil, fmt.Errorf("none")
	})
	defer sources.Close()
	s := NewSync(sources, nil, "test:", nil)
	name := strings.Repeat("m", 256)
	for _, message := range []string{
		"", "\x00prefix", "\x05four", "\xff", "\x80\x02" + name, "\x01" + "m" + strings.Repeat("x", maxLearnedPrefix+300),
	} {
		s.take([]byte(message))
	}
	if sources.openings.Wait(); len(asked) != 0 {
		t.Errorf("asked for the tokens of %.40q", asked)
	}
	s.take([]byte("\x01mprefix"))
	s.take(append([]byte{0xff, 0x01}, name[:255]...))
	if sources.openings.Wait(); len(asked) != 2 || asked[0] != "m" || asked[1] != name[:255] {
		t.Errorf("asked for the tokens of %.40q", asked)
	}
}

// lists records the ranges that are read of lists.
type lists struct {
	mu     sync.Mutex // guards ranges
	ranges [][2]int64
}

func (l *lists) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *lists) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lists) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); args[0] == "lrange" {
			l.mu.Lock()
			l.ranges = append(l.ranges, [2]int64{args[2].(int64), args[3].(int64)})
			l.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

// What was kept is read once, the oldest first, and then what is published without being kept is
// taken too; when the context has ended no subscription is left.
func TestSync_ReadsWhatIsKeptAndListens(t *testing.T) {
	client := newRedis(t)
	var read lists
	client.AddHook(&read)
	asked := make(chan string, 100)
	sources := New(func(model string) (*tokens.Source, error) {
		asked <- model
		return nil, fmt.Errorf("none")
	})
	defer sources.Close()
	const kept = 40
	for i := range kept {
		client.LPush(t.Context(), "test:"+syncList, fmt.Sprintf("\x03k%02dprefix", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { NewSync(sources, client, "test:", slog.New(slog.DiscardHandler)).Run(ctx) })
	took := make(map[string]bool)
	for range kept {
		took[<-asked] = true
	}
	if len(took) != kept || !took["k00"] || !took["k39"] {
		t.Errorf("of what was kept these are taken: %v", took)
	}
	for i := range int64(maxKeptPrefixes / 16) {
		at := maxKeptPrefixes - 16*(i+1)
		if want := [2]int64{at, at + 15}; read.ranges[i] != want {
			t.Errorf("read %d is of %v, want %v", i, read.ranges[i], want)
		}
	}
	if err := client.Publish(t.Context(), "test:"+syncChannel, "\x04livePrefix").Err(); err != nil {
		t.Fatal(err)
	}
	if model := <-asked; model != "live" {
		t.Errorf("the tokens of %s are asked for", model)
	}
	stop()
	running.Wait()
	if n := len(read.ranges); n != maxKeptPrefixes/16 {
		t.Errorf("%d reads", n)
	}
	for deadline := time.Now().Add(30 * time.Second); client.PubSubNumSub(t.Context(), "test:"+syncChannel).Val()["test:"+syncChannel] != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a subscription is left")
		}
	}
}

// While Redis is away it is tried once a second.
func TestSync_TriesAgainEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer stop()
		tried := 0
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			if tried++; tried > 100 {
				stop() // else it would go on for ever
			}
			return nil, errors.New("away")
		}})
		defer func() { _ = client.Close() }()
		NewSync(New(nil), client, "test:", slog.New(slog.DiscardHandler)).Run(ctx)
		if tried < 11 || tried > 33 { // go-redis may dial more than once
			t.Errorf("tried %d times in 10 s", tried)
		}
	})
}
