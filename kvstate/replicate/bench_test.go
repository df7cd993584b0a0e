package replicate

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// sharing is three replicas that know one engine in connect mode: a receives, the others
// follow.
type sharing struct {
	client   *redis.Client
	replicas []*sharer
	stop     func()
}

// startSharing begins to follow, and to write snapshots.
func startSharing(b *testing.B, client *redis.Client, snapshots time.Duration) *sharing {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	sh := &sharing{client: client}
	var running sync.WaitGroup
	sh.stop = func() { cancel(); running.Wait() }
	b.Cleanup(sh.stop)
	for i := range 3 {
		ix, err := kvstate.New(kvstate.Default())
		if err != nil {
			b.Fatal(err)
		}
		s, err := ix.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: "engine:8000"}, Model: "m"})
		if err != nil {
			b.Fatal(err)
		}
		r := &sharer{ix, s, New(ix, client, "bench:", fmt.Sprint("replica-", i), slog.New(slog.DiscardHandler))}
		sh.replicas = append(sh.replicas, r)
		bound := make(chan struct{}, 1)
		running.Go(func() {
			r.shared.Follow(ctx, s, "tcp://here", func() (func(), error) {
				s.RecordConnect()
				bound <- struct{}{}
				return func() {}, nil
			})
		})
		running.Go(func() { r.shared.Run(ctx, snapshots) })
		if i == 0 {
			<-bound
		}
	}
	return sh
}

// publish lets the engine say a message; all waits until every replica knows.
func (sh *sharing) publish(seq int, payload []byte) {
	sh.replicas[0].source.ApplyLive(kvstate.Message{Seq: uint64(seq), Payload: payload})
}

func (sh *sharing) all(b *testing.B, seq int) {
	b.Helper()
	waitUntil(b, "the followers know all", func() bool {
		for _, r := range sh.replicas {
			if st := r.source.State(); !st.SeqKnown || st.Seq != uint64(seq) {
				return false
			}
		}
		return true
	})
}

// commands is how often each command ran since the server's start, and the processor
// time that the server used, in seconds.
func (sh *sharing) commands(b *testing.B) (calls map[string]int, cpu float64) {
	b.Helper()
	info, err := sh.client.Info(b.Context(), "commandstats", "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	calls = make(map[string]int)
	for lines := bufio.NewScanner(strings.NewReader(info)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		var n int
		var seconds float64
		switch command, isCommand := strings.CutPrefix(name, "cmdstat_"); {
		case isCommand && command != "info":
			if _, err := fmt.Sscanf(value, "calls=%d,", &n); err != nil {
				b.Fatalf("%s: %v", lines.Text(), err)
			}
			calls[command] = n
		case name == "used_cpu_user", name == "used_cpu_sys":
			if _, err := fmt.Sscan(value, &seconds); err != nil {
				b.Fatalf("%s: %v", lines.Text(), err)
			}
			cpu += seconds
		}
	}
	return calls, cpu
}

// memory is what a key takes, in bytes.
func (sh *sharing) memory(b *testing.B, key string) float64 {
	b.Helper()
	n, err := sh.client.MemoryUsage(b.Context(), key, 0).Result()
	if err != nil {
		b.Fatal(err)
	}
	return float64(n)
}

// streamBound is what the stream takes when it is as long as it may be, in bytes, with
// entries like those in it.
func (sh *sharing) streamBound(b *testing.B) float64 {
	b.Helper()
	receiver := sh.replicas[0]
	key := receiver.shared.key(receiver.source.ID(), "deltas")
	entries, err := sh.client.XLen(b.Context(), key).Result()
	if err != nil {
		b.Fatal(err)
	}
	return sh.memory(b, key) / float64(entries) * deltaKept
}

// BenchmarkRedisLoad: what three replicas and one engine in connect mode ask of Redis, idle and
// while the engine stores and removes 16 blocks 1,000 times a second (about 256k tokens
// a second of prefill; a large GPU does a tenth). Snapshots are written each second,
// fifteen times as often as by default.
func BenchmarkRedisLoad(b *testing.B) {
	p := newPublisher(rand.New(rand.NewPCG(1, 2)), 4000, 1000)
	for _, load := range []struct {
		name string
		each int // messages in 10 ms
	}{{"idle", 0}, {"1000 events per s", 10}} {
		b.Run(load.name, func(b *testing.B) {
			sh := startSharing(b, redisserver.Start(b).Client(), time.Second)
			said := 0
			for ; said < 1000; said++ {
				sh.publish(said, p.payloads[said])
			}
			sh.all(b, said-1)
			key := sh.replicas[0].shared.key(sh.replicas[0].source.ID(), "deltas")
			if err := sh.client.XTrimMaxLen(b.Context(), key, 0).Err(); err != nil { // what came in one burst
				b.Fatal(err)
			}
			before, cpu := sh.commands(b)
			b.ResetTimer()
			for b.Loop() {
				tick := time.NewTicker(10 * time.Millisecond)
				for range 300 {
					<-tick.C
					for range load.each {
						sh.publish(said%len(p.payloads), p.payloads[said%len(p.payloads)])
						said++
					}
				}
				tick.Stop()
			}
			b.StopTimer()
			seconds := b.Elapsed().Seconds()
			after, cpuAfter := sh.commands(b)
			total, detail := 0, ""
			for command, n := range after {
				if n -= before[command]; n > 0 {
					total += n
					detail += fmt.Sprintf(" %s %.1f/s", command, float64(n)/seconds)
				}
			}
			b.Logf("commands:%s", detail)
			if load.each > 0 {
				b.ReportMetric(sh.streamBound(b)/1e6, "stream-MB-full")
			}
			b.ReportMetric(float64(total)/seconds, "commands/s")
			b.ReportMetric(100*(cpuAfter-cpu)/seconds, "redis-cpu-%")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRedisStream: how fast the deltas of a receiver reach two followers through
// Redis, the engine saying 40,000 events as fast as the receiver takes them, all on this
// machine; and what the stream and a snapshot take in Redis. Each event stores 16 blocks;
// with a full cache another one removes 16. Budget: 100k events/s.
func BenchmarkRedisStream(b *testing.B) {
	const messages = 40_000
	for _, cache := range []struct {
		name   string
		events int // until it is full
	}{{"growing", messages}, {"full cache", messages / 4}} {
		b.Run(cache.name, func(b *testing.B) {
			cached := cache.events
			p := newPublisher(rand.New(rand.NewPCG(1, 2)), messages, cached)
			removed := messages - cached
			client := redisserver.Start(b).Client()
			b.ResetTimer()
			for b.Loop() {
				if err := client.FlushAll(b.Context()).Err(); err != nil {
					b.Fatal(err)
				}
				sh := startSharing(b, client, time.Hour)
				_, redisBefore := sh.commands(b)
				began, before := time.Now(), processorTime(b)
				for i, payload := range p.payloads {
					sh.publish(i, payload)
				}
				sh.all(b, messages-1)
				events := float64(messages + removed)
				_, redisAfter := sh.commands(b)
				b.ReportMetric(events/time.Since(began).Seconds()/1e3, "kevents/s")
				b.ReportMetric(float64((processorTime(b)-before).Microseconds())/events, "cpu-us/event(3-replicas)")
				b.ReportMetric(1e6*(redisAfter-redisBefore)/events, "redis-cpu-us/event")
				sh.measure(b, float64(p.blocks)*events, p.blocks*cached)
				sh.stop()
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// processorTime is what this process has used of processors, all threads.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure reports the size of the stream, for each of so many blocks that went through
// it, and of a snapshot, for each block that is held.
func (sh *sharing) measure(b *testing.B, moved float64, held int) {
	b.Helper()
	receiver := sh.replicas[0]
	key := func(name string) string { return receiver.shared.key(receiver.source.ID(), name) }
	entries, err := sh.client.XLen(b.Context(), key("deltas")).Result()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(entries), "stream-entries")
	b.ReportMetric(sh.memory(b, key("deltas"))/moved, "stream-bytes/block")
	if err := receiver.shared.Write(b.Context(), receiver.source); err != nil {
		b.Fatal(err)
	}
	name, err := sh.client.Get(b.Context(), key("snapshot")).Result()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(sh.memory(b, key("snapshot:"+name))/float64(receiver.holds()), "snapshot-bytes/block")
	for _, r := range sh.replicas {
		if r.holds() != held {
			b.Errorf("%s holds %d blocks of %d", r.shared.replica, r.holds(), held)
		}
	}
}
