package zmqsub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-gateway/tandem/kvstate"
)

// publisher is an engine's event sockets with a script: batch n stores block n of one
// chain, and messages may be left out, or be anything.
type publisher struct {
	t       testing.TB
	context *zmq.Context
	pub     *zmq.Socket
	events  string

	router   *zmq.Socket
	replay   string
	oldShape bool        // answers without a topic
	silent   atomic.Bool // requests are not answered
	endless  atomic.Bool // answers to them have no end
	requests atomic.Int64
	closing  atomic.Bool
	owner    sync.WaitGroup

	mu    sync.Mutex // guards first and next
	first uint64     // oldest batch kept
	next  uint64
}

func newPublisher(t testing.TB, oldShape bool) *publisher {
	t.Helper()
	context, err := zmq.NewContext()
	must(t, err)
	p := &publisher{t: t, context: context, oldShape: oldShape}
	p.pub, err = context.NewSocket(zmq.PUB)
	must(t, err)
	p.router, err = context.NewSocket(zmq.ROUTER)
	must(t, err)
	must(t, errors.Join(p.pub.SetLinger(0), p.pub.Bind("tcp://127.0.0.1:*"),
		p.router.SetLinger(0), p.router.SetRcvtimeo(5*time.Millisecond), p.router.Bind("tcp://127.0.0.1:*")))
	p.events, err = p.pub.GetLastEndpoint()
	must(t, err)
	p.replay, err = p.router.GetLastEndpoint()
	must(t, err)
	p.owner.Go(p.answer)
	t.Cleanup(func() {
		p.closing.Store(true)
		p.owner.Wait()
		must(t, errors.Join(p.pub.Close(), p.router.Close(), context.Term()))
	})
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// payload stores block n of the chain: one token a block, its engine hash n + 1.
func payload(n uint64) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), float64(n))
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendString(msgp.AppendArrayHeader(b, 5), "BlockStored")
	b = msgp.AppendUint64(msgp.AppendArrayHeader(b, 1), n+1)
	b = msgp.AppendUint64(b, n)
	b = msgp.AppendUint64(msgp.AppendArrayHeader(b, 1), n)
	b = msgp.AppendInt(b, 1)
	return msgp.AppendNil(b)
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// publish sends the next batch; unless it is to be lost.
func (p *publisher) publish(lost bool) {
	p.mu.Lock()
	n := p.next
	p.next++
	p.mu.Unlock()
	if !lost {
		p.send("kv@x", number(n), payload(n))
	}
}

func (p *publisher) send(frames ...any) {
	p.t.Helper()
	_, err := p.pub.SendMessage(frames...)
	must(p.t, err)
}

// answer owns the ROUTER socket.
func (p *publisher) answer() {
	for !p.closing.Load() {
		request, err := p.router.RecvMessageBytes(0)
		if err != nil {
			continue // nothing came
		}
		p.requests.Add(1)
		if p.silent.Load() || len(request) != 3 || len(request[1]) != 0 || len(request[2]) != 8 {
			continue
		}
		p.mu.Lock()
		first, next := max(p.first, binary.BigEndian.Uint64(request[2])), p.next
		p.mu.Unlock()
		for n := first; n < next; n++ {
			p.reply(request[0], number(n), payload(n))
		}
		for n := next; p.endless.Load() && !p.closing.Load(); n++ {
			p.reply(request[0], number(n), payload(n))
			_, _ = p.router.RecvMessageBytes(0) // the time until nothing has come
		}
		p.reply(request[0], number(^uint64(0)), nil)
	}
}

func (p *publisher) reply(to, number, payload []byte) {
	frames := []any{to, "", "kv@x", number, payload}
	if p.oldShape {
		frames = []any{to, "", number, payload}
	}
	if _, err := p.router.SendMessage(frames...); err != nil {
		p.t.Errorf("reply: %v", err)
	}
}

// claimed is how many blocks of the chain the source claims.
func claimed(ix *kvstate.Index, n int) int {
	p := kvstate.Prompt{Model: model}
	for i := range n {
		p.Tokens = append(p.Tokens, uint32(i))
	}
	var h kvstate.Hits
	ix.Match(&p, &h)
	return h.Held("s").GPU
}

func claims(t testing.TB, ix *kvstate.Index, want int) {
	t.Helper()
	until(t, func() string {
		if got := claimed(ix, 1000); got != want {
			return fmt.Sprintf("%d blocks claimed, want %d", got, want)
		}
		return ""
	})
}

// asked waits until the publisher is asked for a replay.
func (p *publisher) asked() {
	p.t.Helper()
	until(p.t, func() string {
		if p.requests.Load() > 0 {
			return ""
		}
		return "no request"
	})
}

// subscribed waits until the publisher is heard: its first batches may come before.
func (p *publisher) subscribed(s *kvstate.Source) {
	p.t.Helper()
	until(p.t, func() string {
		p.send("hello")
		if s.State().Counts.Misread > 0 {
			return ""
		}
		return "not heard"
	})
}

func TestSubscriber_Gaps(t *testing.T) {
	for _, oldShape := range []bool{false, true} {
		t.Run(fmt.Sprintf("old replies=%v", oldShape), func(t *testing.T) {
			ix, hub, p := newIndex(t), newHub(t, quick()), newPublisher(t, oldShape)
			source, _ := subscribe(t, hub, ix, "s", Feed{Events: p.events, Replay: p.replay})
			p.subscribed(source)
			for n := range 20 {
				p.publish(n%3 == 1)
			}
			claims(t, ix, 20)
			p.publish(true) // the last one, which no gap shows
			claims(t, ix, 21)
			if c := source.State().Counts; c.Resets[kvstate.ResetGap] > 0 || c.Gaps == 0 {
				t.Errorf("%d gaps, %d resets", c.Gaps, c.Resets[kvstate.ResetGap])
			}
			// The publisher no longer has what was lost: what was known is void, what it
			// still has is behind an unknown parent.
			p.mu.Lock()
			p.next, p.first = p.next+5, p.next+3
			p.mu.Unlock()
			p.publish(false)
			claims(t, ix, 0)
		})
	}
}

func TestSubscriber_GapWithoutReplay(t *testing.T) {
	ix, hub, p := newIndex(t), newHub(t, quick()), newPublisher(t, false)
	source, _ := subscribe(t, hub, ix, "s", Feed{Events: p.events})
	p.subscribed(source)
	for range 5 {
		p.publish(false)
	}
	claims(t, ix, 5)
	p.publish(true)
	p.publish(false)
	claims(t, ix, 0)
}

// TestSubscriber_SilentReplay: where replays are not answered, what cannot be proved is
// void soon, live events go on, and when answers come again all is known again.
func TestSubscriber_SilentReplay(t *testing.T) {
	cfg := quick()
	cfg.ReplayIdle = 300 * time.Millisecond
	ix, hub, p := newIndex(t), newHub(t, cfg), newPublisher(t, false)
	source, _ := subscribe(t, hub, ix, "s", Feed{Events: p.events, Replay: p.replay})
	p.subscribed(source)
	for range 5 {
		p.publish(false)
	}
	claims(t, ix, 5)
	p.silent.Store(true)
	p.publish(true)
	p.publish(false)
	claims(t, ix, 0)
	p.silent.Store(false)
	claims(t, ix, 7)
}

// TestSubscriber_CloseDoesNotWaitForReplay: also while one is not answered.
func TestSubscriber_CloseDoesNotWaitForReplay(t *testing.T) {
	cfg := quick()
	cfg.ReplayIdle = time.Hour
	ix, hub, p := newIndex(t), newHub(t, cfg), newPublisher(t, false)
	p.silent.Store(true)
	_, sub := subscribe(t, hub, ix, "s", Feed{Events: p.events, Replay: p.replay})
	p.asked()
	sub.Close()
}

// TestSubscriber_Poison: whatever comes over the socket, the next good message is heard.
func TestSubscriber_Poison(t *testing.T) {
	ix, hub, p := newIndex(t), newHub(t, quick()), newPublisher(t, false)
	source, _ := subscribe(t, hub, ix, "s", Feed{Events: p.events, Replay: p.replay})
	p.subscribed(source)
	before := source.State().Counts.Misread
	for _, frames := range [][]any{
		{""}, {"a", "b"}, {"a", number(0), "c", "d"}, // frames
		{"t", ""}, {"t", "", "x"}, {"t", "1234567", "x"}, {"t", "123456789"}, // numbers
		{"t", number(^uint64(0)), "x"},
		{strings.Repeat("t", 1<<20), number(1 << 63), "x"}, {"\xff\xfe", number(7), "\x93"},
	} {
		p.send(frames...)
	}
	fifty := make([]any, 50)
	for i := range fifty {
		fifty[i] = ""
	}
	p.send(fifty...)
	p.publish(false)
	claims(t, ix, 1)
	if got := source.State().Counts.Misread - before; got < 8 {
		t.Errorf("%d misread messages", got)
	}
}

// TestSubscriber_Strangers: what connects to a bound socket and is no ZMQ changes nothing.
func TestSubscriber_Strangers(t *testing.T) {
	ix, hub, p := newIndex(t), newHub(t, quick()), newPublisher(t, false)
	address := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1))
	source, sub := subscribe(t, hub, ix, "s", Feed{Events: "tcp://" + address, Bind: true})
	must(t, p.pub.Connect("tcp://"+address))
	connected(t, sub)
	p.subscribed(source)
	for range 3 {
		p.publish(false)
	}
	claims(t, ix, 3)
	for _, said := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03", strings.Repeat("\xff", 1<<16)} {
		c, err := net.Dial("tcp", address)
		must(t, err)
		_, _ = c.Write([]byte(said)) // it may hang up while it is talked to
		must(t, c.Close())
	}
	p.publish(false)
	claims(t, ix, 4)
	if c := source.State().Counts; c.Resets[kvstate.ResetDisconnect] != 0 || !sub.Connected() {
		t.Errorf("%d resets, connected: %v", c.Resets[kvstate.ResetDisconnect], sub.Connected())
	}
}

// TestSubscriber_AReplayWithoutEndEnds: answers that come for ever keep neither the live events of their source
// waiting nor the replays of others.
func TestSubscriber_AReplayWithoutEndEnds(t *testing.T) {
	cfg := quick()
	cfg.Replays, cfg.ReplayTime, cfg.ReplayPause = 1, 200*time.Millisecond, time.Hour
	ix, hub, endless, p := newIndex(t), newHub(t, cfg), newPublisher(t, false), newPublisher(t, false)
	endless.endless.Store(true)
	other, _ := subscribe(t, hub, ix, "endless", Feed{Events: endless.events, Replay: endless.replay})
	endless.asked()
	source, _ := subscribe(t, hub, ix, "s", Feed{Events: p.events, Replay: p.replay})
	p.subscribed(source)
	for n := range 5 {
		p.publish(n == 1)
	}
	claims(t, ix, 5)
	endless.subscribed(other)
}
