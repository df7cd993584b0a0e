package kvstate

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// benchRedis runs a real redis-server for a benchmark and returns a client of it.
func benchRedis(b *testing.B) *redis.Client {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr := ln.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	_ = ln.Close()
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", b.TempDir())
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: time.Second, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second})
	b.Cleanup(func() { _ = client.Close() })
	untilBench(b, "redis-server answers", func() bool { return client.Ping(b.Context()).Err() == nil })
	return client
}

// untilBench waits for a condition.
func untilBench(b *testing.B, what string, holds func() bool) {
	b.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("not within 30 s: %s", what)
		}
	}
}

// redisBlocks is the other way to share an index: who holds a block is kept in Redis
// alone, as one string for each block with a bit for each server, 8 bytes for 64 of
// them. A lookup reads all blocks of the prompt at once: by one MGET, which needs them
// on one node of a cluster, or by a pipeline of GETs. The keys are made beforehand.
type redisBlocks struct {
	client *redis.Client
	keys   []string
	alive  []uint64
	runs   []int
}

func newRedisBlocks(b *testing.B, client *redis.Client, chain []Hash, lengths []int) *redisBlocks {
	b.Helper()
	words := (len(lengths) + 63) / 64
	rb := &redisBlocks{client: client, alive: make([]uint64, words), runs: make([]int, len(lengths))}
	fill := client.Pipeline()
	for i, h := range chain {
		holders := make([]byte, 8*words)
		for server, l := range lengths {
			if i < l {
				holders[server/8] |= 1 << (server % 8)
			}
		}
		rb.keys = append(rb.keys, "m:"+string(binary.LittleEndian.AppendUint64(nil, uint64(h))))
		fill.Set(b.Context(), rb.keys[i], holders, 0)
	}
	if _, err := fill.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
	return rb
}

// mget is a lookup by one command.
func (rb *redisBlocks) mget(ctx context.Context) error {
	values, err := rb.client.MGet(ctx, rb.keys...).Result()
	if err != nil {
		return err
	}
	rb.begin()
	for i, v := range values {
		holders, _ := v.(string) // of a block that nobody holds: empty
		if !rb.next(i, holders) {
			return nil
		}
	}
	return nil
}

// pipeline is a lookup by one command for each block, in one round trip.
func (rb *redisBlocks) pipeline(ctx context.Context) error {
	p := rb.client.Pipeline()
	answers := make([]*redis.StringCmd, len(rb.keys))
	for i, key := range rb.keys {
		answers[i] = p.Get(ctx, key)
	}
	if _, err := p.Exec(ctx); err != nil {
		return err
	}
	rb.begin()
	for i, a := range answers {
		if !rb.next(i, a.Val()) {
			return nil
		}
	}
	return nil
}

func (rb *redisBlocks) begin() {
	for w := range rb.alive {
		rb.alive[w] = ^uint64(0)
	}
}

// next takes the holders of the i-th block; false when nobody holds all up to it.
func (rb *redisBlocks) next(i int, holders string) bool {
	left := uint64(0)
	for w := range rb.alive {
		if len(holders) < 8*(w+1) {
			rb.alive[w] = 0
			continue
		}
		rb.alive[w] &= binary.LittleEndian.Uint64([]byte(holders[8*w:]))
		left |= rb.alive[w]
		eachBit(w, rb.alive[w], func(n int) { rb.runs[n] = i + 1 })
	}
	return left != 0
}

// BenchmarkMatchBesideRedis: a prompt of 1,000 blocks, hashes given, in the usual case;
// ours, a plain Go map, and Redis on the same machine, which spares it the network.
func BenchmarkMatchBesideRedis(b *testing.B) {
	const n = 1000
	client := benchRedis(b)
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 16*n)
	for _, servers := range []int{8, 64, 256} {
		want := lengths("usual", servers, n)
		f, plain := newFleet(b, servers), &goMap{}
		m := f.sources[0].model
		hashes := f.ix.seed.Chain(nil, f.ix.seed.Root("m", 16, ""), tokens, 16, 0)
		for i, l := range want {
			f.hold(i, hashes[:l])
			for _, h := range hashes[:l] {
				plain.put(h, i, (servers+63)/64)
			}
		}
		rb := newRedisBlocks(b, client, hashes, want)
		name := func(way string) string { return fmt.Sprintf("servers=%d/%s", servers, way) }
		check := func(b *testing.B, runs []int) {
			for i, l := range want {
				if runs[i] != l {
					b.Fatalf("server %d: %d blocks, want %d", i, runs[i], l)
				}
			}
		}
		b.Run(name("index"), func(b *testing.B) {
			var h Hits
			for b.Loop() {
				h.reset(16*n, false)
				h.hashes, h.chains = append(h.hashes, hashes...), append(h.chains, chain{16, 0, n})
				m.matchChains(m.view.Load(), &h)
			}
			runs := make([]int, servers)
			for i := range runs {
				runs[i] = h.Tokens(fmt.Sprint("s", i), GPU) / 16
			}
			check(b, runs)
		})
		b.Run(name("go map"), func(b *testing.B) {
			alive, runs := make([]uint64, (servers+63)/64), make([]int, 64*((servers+63)/64))
			for b.Loop() {
				for w := range alive {
					alive[w] = ^uint64(0)
				}
				plain.match(hashes, alive, runs)
			}
			check(b, runs)
		})
		for _, way := range []struct {
			name string
			look func(context.Context) error
		}{{"redis mget", rb.mget}, {"redis pipeline", rb.pipeline}} {
			b.Run(name(way.name), func(b *testing.B) {
				for b.Loop() {
					if err := way.look(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				check(b, rb.runs)
			})
		}
	}
}

// sharing is three replicas that know one engine which dials: a receives, the others
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
		ix, err := New(Default())
		if err != nil {
			b.Fatal(err)
		}
		s, err := ix.Open(Spec{SourceID: SourceID{Server: "engine:8000"}, Model: "m"})
		if err != nil {
			b.Fatal(err)
		}
		r := &sharer{ix, s, NewShared(ix, client, "bench:", fmt.Sprint("replica-", i), slog.New(slog.DiscardHandler))}
		sh.replicas = append(sh.replicas, r)
		bound := make(chan struct{}, 1)
		running.Go(func() {
			r.shared.Follow(ctx, s, "tcp://here", func() (func(), error) {
				s.Connected()
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

// publish lets the engine say a message; all waits until everybody knows.
func (sh *sharing) publish(seq int, payload []byte) {
	sh.replicas[0].source.Live(Message{Seq: uint64(seq), Payload: payload})
}

func (sh *sharing) all(b *testing.B, seq int) {
	b.Helper()
	untilBench(b, "the followers know all", func() bool {
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

// BenchmarkRedisLoad: what three replicas and one engine that dials ask of Redis, idle and
// while the engine stores and removes 16 blocks 1,000 times a second (about 256k tokens
// a second of prefill; a large GPU does a tenth). Snapshots are written each second,
// fifteen times as often as by default.
func BenchmarkRedisLoad(b *testing.B) {
	p := newPublisher(rand.New(rand.NewPCG(1, 2)), 4000, 1000, true)
	for _, load := range []struct {
		name string
		each int // messages in 10 ms
	}{{"idle", 0}, {"1000 events per s", 10}} {
		b.Run(load.name, func(b *testing.B) {
			sh := startSharing(b, benchRedis(b), time.Second)
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
			p := newPublisher(rand.New(rand.NewPCG(1, 2)), messages, cached, true)
			removed := messages - cached
			client := benchRedis(b)
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
