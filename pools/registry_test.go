package pools

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// safeBuffer is a log that is read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// registered follows the registry until the test ends and returns what it found last.
func registered(t *testing.T, client redis.UniversalClient, log *safeBuffer) (found func() string) {
	t.Helper()
	var mu sync.Mutex
	ids := "nothing yet"
	r := NewRegistry(client, "test:", func(specs []Spec) {
		mu.Lock()
		defer mu.Unlock()
		var all []string
		for _, s := range specs {
			all = append(all, s.ID()+" "+s.Role.String())
		}
		ids = strings.Join(all, ", ")
	}, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return ids
	}
}

func newTestRedis(t *testing.T) (*redisserver.Server, redis.UniversalClient) {
	t.Helper()
	server := redisserver.Start(t)
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{server.Addr()}, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	})
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

func TestRegistry_ServersComeAndGo(t *testing.T) {
	server, client := newTestRedis(t)
	ctx := t.Context()
	var log safeBuffer
	found := registered(t, client, &log)
	eventually(t, "nobody is there", func() bool { return found() == "" })

	// As a start script would, with redis-cli.
	client.Set(ctx, "test:server:a", `{"url":"http://127.0.0.1:1","role":"prefill","rack":"r1"}`, time.Minute)
	client.SAdd(ctx, "test:servers", "a")
	eventually(t, "a server has registered", func() bool { return found() == "127.0.0.1:1 prefill" })

	life, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		left <- Register(life, client, "test:", Entry{URL: "http://127.0.0.1:2", Role: "decode"}, time.Second, slog.New(slog.DiscardHandler))
	}()
	eventually(t, "another one is registered", func() bool { return found() == "127.0.0.1:2 decode, 127.0.0.1:1 prefill" })
	leave()
	if err := <-left; err != nil {
		t.Error(err)
	}
	eventually(t, "it has left", func() bool { return found() == "127.0.0.1:1 prefill" })

	for name, record := range map[string]string{
		"b": `{"url":"http://127.0.0.1:3"}`, "c": `no JSON`, "d": `{"url":"file:///etc/passwd","role":"both"}`, "e": strings.Repeat(" ", maxRecord+10),
	} {
		client.Set(ctx, "test:server:"+name, record, time.Minute)
		client.SAdd(ctx, "test:servers", name)
	}
	client.Set(ctx, "test:server:f", `{"url":"http://127.0.0.1:4","role":"both"}`, time.Minute)
	client.SAdd(ctx, "test:servers", "f")
	eventually(t, "what is of no use is passed over", func() bool { return found() == "127.0.0.1:1 prefill, 127.0.0.1:4 both" })

	client.PExpire(ctx, "test:server:a", time.Millisecond)
	eventually(t, "one that fell silent is forgotten", func() bool { return found() == "127.0.0.1:4 both" })
	eventually(t, "its name is taken out of the set", func() bool {
		return !slices.Contains(client.SMembers(ctx, "test:servers").Val(), "a")
	})

	server.Kill()
	eventually(t, "it is seen that Redis is away", func() bool { return strings.Contains(log.String(), "not readable") })
	if got := found(); got != "127.0.0.1:4 both" {
		t.Errorf("Redis is away, and the servers are %q", got)
	}
}
