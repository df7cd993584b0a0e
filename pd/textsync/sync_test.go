package textsync

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd/senttext"
)

var (
	of = senttext.Salted{Model: "m", Adapter: "a", Salt: "s"}
	on = senttext.Server{ID: "10.0.0.1:8000", Class: 7}
)

// prompt are the chunks of a text of its own.
func prompt(text, chunks int) (all []tokens.Chunk) {
	for i := range chunks {
		all = append(all, tokens.Chunk(uint64(text)<<32|uint64(i+1)))
	}
	return all
}

func sent(until time.Time) senttext.Sighting {
	return senttext.Sighting{Held: time.Now(), Computes: until, Shared: true}
}

// run starts a replica, and waits until so many listen.
func run(t *testing.T, client redis.UniversalClient, replica string, listening int) *Sync {
	t.Helper()
	s := New(senttext.New(), client, "test:", replica, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	eventually(t, "it listens", func() bool {
		return client.PubSubNumSub(t.Context(), "test:"+channel).Val()["test:"+channel] == int64(listening)
	})
	return s
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

func (s *Sync) holds(text []tokens.Chunk) int {
	return s.history.CachedTokens(of, on, text) / senttext.ChunkTokens
}

// What one replica sends to a server the others believe that it holds, until it is taken back, also
// after Redis was away.
func TestSync_OthersKnowWhatOneSent(t *testing.T) {
	t.Parallel()
	server := redisserver.Start(t)
	a, b := run(t, server.Client(), "a", 1), run(t, server.Client(), "b", 2)
	until := time.Now().Add(time.Minute)
	long, short := prompt(1, 860), prompt(2, 3)
	a.history.Record(of, on, 1<<20, long, sent(until))
	b.history.Record(of, on, 1<<20, short, sent(until))
	eventually(t, "each knows what the other sent", func() bool { return b.holds(long) == 860 && a.holds(short) == 3 })
	a.history.Withdraw(of, on, long, sent(until))
	eventually(t, "it is taken back", func() bool { return b.holds(long) == 0 })
	if n := b.holds(short); n != 3 {
		t.Errorf("%d chunks are held that were not taken back", n)
	}
	eventually(t, "both records are counted as told", func() bool { return a.told.Load() == 2 }) // b may know before
	if received := a.received.Load(); received != 1 {                                            // not its own
		t.Errorf("a received %d records", received)
	}
	server.Kill()
	a.history.Record(of, on, 0, prompt(3, 3), sent(until))
	eventually(t, "what Redis did not take is counted", func() bool { return a.dropped.Load() > 0 })
	server.Restart()
	eventually(t, "they share again", func() bool {
		a.history.Record(of, on, 0, prompt(4, 3), sent(until))
		return b.holds(prompt(4, 3)) == 3
	})
}

// What is told within a beat is bounded, and a request never waits for it.
func TestSync_WhatWaitsIsBounded(t *testing.T) {
	t.Parallel()
	s := New(senttext.New(), nil, "test:", "a", nil)
	for i := range 1000 { // of 220 KB, each on a pair
		for _, server := range []string{"p", "d"} {
			s.history.Record(of, senttext.Server{ID: server}, 0, prompt(i, 860), sent(time.Time{}))
		}
	}
	if n := len(s.next.bytes); n > maxMessage || n < maxMessage-8*860 {
		t.Errorf("%d bytes wait", n)
	}
	if kept, dropped := s.next.records, s.dropped.Load(); kept < 2*100 || kept+dropped != 2000 {
		t.Errorf("%d records wait, %d were dropped", kept, dropped)
	}
}

// A message says what was to be told, and whatever else is in Redis does no harm.
func TestOpen_ReadsWhatWasTold(t *testing.T) {
	t.Parallel()
	now := time.UnixMicro(time.Now().UnixMicro())
	marks := []senttext.Mark{1, 1 << 63, 7}
	records := []senttext.Sent{
		{Server: on, KVTokens: 1 << 20, Marks: marks, Sighting: senttext.Sighting{Held: now, Computes: now.Add(time.Second)}},
		{Server: senttext.Server{ID: "d", Class: 1 << 63}, Marks: marks, Sighting: senttext.Sighting{Held: now}},
		{Server: on, Marks: nil, Sighting: senttext.Sighting{Held: now, Computes: now}, Withdrawn: true},
		{Server: on, Marks: marks[:1], Sighting: senttext.Sighting{Held: now}},
	}
	m := newMessage("replica")
	for _, s := range records {
		m.add(s)
	}
	from, read, ok := open(m.bytes)
	var got []senttext.Sent
	for s := range read {
		got = append(got, s)
	}
	if !ok || from != "replica" || fmt.Sprint(got) != fmt.Sprint(records) {
		t.Errorf("%v, %q\n got %v\nwant %v", ok, from, got, records)
	}
	if _, _, ok := open(append([]byte{version + 1}, m.bytes[1:]...)); ok {
		t.Error("a message of another version is read")
	}
	for n := range len(m.bytes) {
		if _, read, ok := open(m.bytes[:n]); ok {
			for s := range read {
				if s.Server.ID != "d" && s.Server != on {
					t.Fatalf("of %d bytes it reads %v", n, s)
				}
			}
		}
	}
}

func FuzzOpen(f *testing.F) {
	m := newMessage("a")
	m.add(senttext.Sent{Server: on, Marks: []senttext.Mark{1, 2}, Sighting: sent(time.Now())})
	f.Add(m.bytes)
	f.Add([]byte{version, 1, 'a', 0, 1, 'b', 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	history := senttext.New()
	f.Fuzz(func(t *testing.T, data []byte) {
		from, records, ok := open(data)
		if !ok {
			return
		}
		if len(from) > maxName {
			t.Fatalf("a name of %d bytes", len(from))
		}
		for s := range records {
			if len(s.Marks) > len(data)/8 {
				t.Fatalf("%d marks in %d bytes", len(s.Marks), len(data))
			}
			history.Receive(s)
		}
	})
}

// What a pick of 220 KB costs the replica that tells, and each that is told. Budget: 20 us each.
func BenchmarkSync_Prompt220KB(b *testing.B) {
	marks := make([]senttext.Mark, 263)
	for i := range marks {
		marks[i] = senttext.Mark(uint64(i+1) * 0x9e3779b97f4a7c15)
	}
	pair := []senttext.Sent{
		{Server: on, KVTokens: 1 << 20, Marks: marks, Sighting: sent(time.Now())},
		{Server: senttext.Server{ID: "10.0.0.2:8000"}, KVTokens: 1 << 20, Marks: marks, Sighting: sent(time.Now())},
	}
	b.Run("tell", func(b *testing.B) {
		for b.Loop() {
			m := newMessage("a")
			for _, s := range pair {
				m.add(s)
			}
		}
	})
	b.Run("receive", func(b *testing.B) {
		m, history := newMessage("a"), senttext.New()
		for _, s := range pair {
			m.add(s)
		}
		for b.Loop() {
			_, records, _ := open(m.bytes)
			for s := range records {
				history.Receive(s)
			}
		}
	})
}
