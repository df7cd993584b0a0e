package pubsub

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// receiving starts to receive a channel; messages come out of taken, and done is closed when
// nothing is received any more.
func receiving(t *testing.T, client *redis.Client) (taken <-chan string, done <-chan struct{}, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	sub := client.Subscribe(ctx, "channel")
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	out, ended := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(ended)
		Receive(ctx, sub, func(m *redis.Message) { out <- m.Payload })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = sub.Close()
	})
	return out, ended, cancel
}

// Messages are taken in their order, also after a time without one in which pings are
// answered, until the context ends.
func TestReceive_TakesMessagesThatComeSeldom(t *testing.T) {
	t.Parallel()
	server := redisserver.Start(t)
	taken, done, stop := receiving(t, server.Client())
	publish := func(texts ...string) {
		t.Helper()
		var got []string
		for _, text := range texts {
			server.Client().Publish(t.Context(), "channel", text)
		}
		for range texts {
			select {
			case text := <-taken:
				got = append(got, text)
			case <-done:
				t.Fatal("it receives no more")
			case <-time.After(30 * time.Second):
				t.Fatal("nothing comes")
			}
		}
		if !slices.Equal(got, texts) {
			t.Errorf("taken %v, want %v", got, texts)
		}
	}
	publish("a", "b", "c")
	select { // longer than a connection may be silent
	case <-done:
		t.Fatal("it ended in silence, though pings are answered")
	case text := <-taken:
		t.Fatalf("taken %q, which is no message", text)
	case <-time.After(4500 * time.Millisecond):
	}
	publish("d")
	stop()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("it goes on after the end of its context")
	}
}

// A connection that is closed is given up at once.
func TestReceive_EndsWithItsConnection(t *testing.T) {
	t.Parallel()
	server := redisserver.Start(t)
	_, done, _ := receiving(t, server.Client())
	server.Kill()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("it waits on a connection that was closed")
	}
}

// hanging is a Redis that answers a subscription and nothing after it; it counts pings.
func hanging(t *testing.T) (address string, pings func() int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	n := 0
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					switch strings.ToLower(lines.Text()) {
					case "hello":
						_, _ = fmt.Fprint(conn, "-ERR unknown command\r\n")
					case "client", "setinfo":
						_, _ = fmt.Fprint(conn, "+OK\r\n")
					case "subscribe":
						_, _ = fmt.Fprint(conn, "*3\r\n$9\r\nsubscribe\r\n$7\r\nchannel\r\n:1\r\n")
					case "ping":
						mu.Lock()
						n++
						mu.Unlock()
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return listener.Addr().String(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// A connection that hangs is given up after three seconds in which pings are not answered.
func TestReceive_EndsWhenPingsAreNotAnswered(t *testing.T) {
	t.Parallel()
	address, pings := hanging(t)
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	began := time.Now()
	_, done, _ := receiving(t, client)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for ever")
	}
	if took := time.Since(began); took < 3*time.Second || pings() != 2 {
		t.Errorf("it ended after %v and %d pings, want 3 s and a ping after each of the first two", took, pings())
	}
}
