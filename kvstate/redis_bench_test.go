package kvstate

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
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

// redisBlocks is the other way to share an index: the holders of a block are kept in Redis
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
		holders, _ := v.(string) // of a block without holders: empty
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

// next takes the holders of the i-th block; false when no server holds all up to it.
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
		hashes := f.ix.seed.Load().Chain(nil, f.ix.seed.Load().Root("m", 16, ""), tokens, 16, 0)
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
				h.chains = append(h.chains, inBlocksOf16(hashes))
				m.matchChains(m.view.Load(), &h)
			}
			runs := make([]int, servers)
			for i := range runs {
				runs[i] = h.Held(fmt.Sprint("s", i)).GPU / 16
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
