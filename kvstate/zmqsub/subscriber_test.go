package zmqsub

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// TestSubscriber_FollowsAnEngine: in both encodings, in bind and connect mode, with and without
// replay, the index says what the engine holds, through evictions, salts, adapters and a
// reset.
func TestSubscriber_FollowsAnEngine(t *testing.T) {
	for _, asMaps := range []bool{false, true} {
		for _, mode := range []string{"connect", "connect and replay", "bind", "bind and replay"} {
			t.Run(fmt.Sprintf("maps=%v,%s", asMaps, mode), func(t *testing.T) {
				ix, hub := newIndex(t), newHub(t, quick())
				binds, replays := strings.HasPrefix(mode, "bind"), strings.HasSuffix(mode, "replay")
				port := freePorts(t, 2)
				feed := Feed{Events: fmt.Sprintf("tcp://127.0.0.1:%d", port), Bind: binds}
				if replays {
					feed.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", port+1)
				}
				var source *kvstate.Source
				var sub *Subscriber
				if binds {
					source, sub = subscribe(t, hub, ix, "s", feed)
				}
				e := startEngine(t, func(cfg *engine.Config) {
					cfg.Adapters, cfg.EventsAsMaps, cfg.EventsTopic = []string{"lora"}, asMaps, "kv@any@thing"
					cfg.EventsEndpoint = feed.Events
					if !binds {
						cfg.EventsEndpoint = fmt.Sprintf("tcp://*:%d", port)
					}
					if replays {
						cfg.ReplayEndpoint = fmt.Sprintf("tcp://*:%d", port+1)
					}
				})
				if replays {
					complete(t, e, prompt(0, 0, 400), "", "") // before a subscriber listens
				}
				if !binds {
					source, sub = subscribe(t, hub, ix, "s", feed)
				}
				connected(t, sub)
				if !replays {
					listening(t, source, e)
				}
				for i := range 12 {
					adapter, salt := "", ""
					if i%4 == 1 {
						adapter = "lora"
					}
					if i%4 >= 2 {
						salt = fmt.Sprint("tenant", i%3)
					}
					complete(t, e, prompt(i%2, i, 300+10*i), adapter, salt)
					agree(t, ix, source, e, 0)
				}
				if removed := source.State().Counts.Removed; removed == 0 {
					t.Error("nothing was evicted")
				}
				post(t, e, "/reset_prefix_cache", map[string]any{})
				complete(t, e, prompt(1, 1, 100), "", "")
				agree(t, ix, source, e, 0)
				if c := source.State().Counts; c.Unreadable+c.Misread+c.Dropped[kvstate.DropUnknown]+c.Dropped[kvstate.DropConflict] > 0 {
					t.Errorf("not understood: %+v", c)
				}
			})
		}
	}
}

// TestSubscriber_GoesOnAfterAnErrorOfZMQ: what it cannot hear it does not believe, and
// with new sockets it hears all again.
func TestSubscriber_GoesOnAfterAnErrorOfZMQ(t *testing.T) {
	for _, replays := range []bool{false, true} {
		t.Run(fmt.Sprintf("replays=%v", replays), func(t *testing.T) {
			ix, hub := newIndex(t), newHub(t, quick())
			var fail atomic.Bool
			hub.receive = func(socket *zmq.Socket) ([][]byte, error) {
				if fail.CompareAndSwap(true, false) {
					return nil, zmq.Errno(syscall.EMFILE)
				}
				return receive(socket)
			}
			port := freePorts(t, 2)
			feed := Feed{Events: fmt.Sprintf("tcp://127.0.0.1:%d", port)}
			if replays {
				feed.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", port+1)
			}
			e := startEngine(t, func(cfg *engine.Config) {
				cfg.EventsEndpoint, cfg.ReplayEndpoint = fmt.Sprintf("tcp://*:%d", port), fmt.Sprintf("tcp://*:%d", port+1)
			})
			source, sub := subscribe(t, hub, ix, "s", feed)
			connected(t, sub)
			if !replays {
				listening(t, source, e)
			}
			complete(t, e, prompt(0, 0, 400), "", "")
			agree(t, ix, source, e, 0)

			fail.Store(true)
			complete(t, e, prompt(0, 1, 400), "", "") // wakes the subscriber
			until(t, func() string {
				if fail.Load() {
					return "the error has not come"
				}
				return ""
			})
			if !replays {
				listening(t, source, e)
				if n := source.State().Counts.Resets[kvstate.ResetDisconnect]; n == 0 {
					t.Error("what it could not hear of it still believed")
				}
				post(t, e, "/reset_prefix_cache", map[string]any{})
			}
			complete(t, e, prompt(1, 2, 400), "", "")
			agree(t, ix, source, e, 0)
		})
	}
}

// TestSubscriber_OneThatIsClosedLeavesTheOthersHearing: as it connects, or as its engine ends. ZMQ's only thread waited for
// ever then for a monitor that was gone, with all feeds behind it: within some ten subscribers that were closed.
func TestSubscriber_OneThatIsClosedLeavesTheOthersHearing(t *testing.T) {
	ix, hub, p := newIndex(t), newHub(t, quick()), newPublisher(t, false)
	stays, _ := subscribe(t, hub, ix, "stays", Feed{Events: p.events})
	p.subscribed(stays)
	for i := range 200 {
		source, err := ix.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: "leaves"}, Model: model})
		must(t, err)
		sub, err := hub.Subscribe(source, Feed{Events: p.events})
		must(t, err)
		for began := time.Now(); time.Since(began) < time.Duration(i)*10*time.Microsecond; { // at another moment of its connecting
		}
		sub.Close()
		source.Close()
		before := stays.State().Counts.Misread
		p.send("hello")
		until(t, func() string {
			if stays.State().Counts.Misread == before {
				return fmt.Sprintf("deaf after %d that were closed", i+1)
			}
			return ""
		})
	}
}

// listening makes the engine publish until the source hears it: without replay, what
// was published before is lost.
func listening(t *testing.T, source *kvstate.Source, e *engine.Engine) {
	t.Helper()
	until(t, func() string {
		post(t, e, "/reset_prefix_cache", map[string]any{})
		if source.State().SeqKnown {
			return ""
		}
		return "nothing heard"
	})
}

// TestSubscriber_RestartedEngine: what the old process held is forgotten at once, even
// if the new one publishes nothing.
func TestSubscriber_RestartedEngine(t *testing.T) {
	for _, replays := range []bool{true, false} {
		t.Run(fmt.Sprintf("replay=%v", replays), func(t *testing.T) {
			ix, hub := newIndex(t), newHub(t, quick())
			port := freePorts(t, 2)
			start := func() *engine.Engine {
				return startEngine(t, func(cfg *engine.Config) {
					cfg.EventsEndpoint = fmt.Sprintf("tcp://*:%d", port)
					if replays {
						cfg.ReplayEndpoint = fmt.Sprintf("tcp://*:%d", port+1)
					}
				})
			}
			feed := Feed{Events: fmt.Sprintf("tcp://127.0.0.1:%d", port)}
			if replays {
				feed.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", port+1)
			}
			e := start()
			source, sub := subscribe(t, hub, ix, "s", feed)
			connected(t, sub)
			if !replays {
				listening(t, source, e)
			}
			complete(t, e, prompt(0, 0, 400), "", "")
			agree(t, ix, source, e, 0)
			before := source.State()
			if before.Holders[0].GPU == 0 {
				t.Fatal("nothing held")
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = start()
			agree(t, ix, source, e, 0) // empty
			if !replays {
				connected(t, sub)
				listening(t, source, e)
			}
			complete(t, e, prompt(0, 1, 400), "", "")
			agree(t, ix, source, e, 0)
			if after := source.State(); after.Epoch <= before.Epoch && replays {
				t.Errorf("epoch %d after %d", after.Epoch, before.Epoch)
			}
		})
	}
}

// TestSubscriber_Ranks: each rank has its own sockets, port + rank.
func TestSubscriber_Ranks(t *testing.T) {
	ix, hub := newIndex(t), newHub(t, quick())
	port := freePorts(t, 4)
	feed := Feed{Events: fmt.Sprintf("tcp://127.0.0.1:%d", port), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", port+2)}
	e := startEngine(t, func(cfg *engine.Config) {
		cfg.DataParallel = 2
		cfg.EventsEndpoint, cfg.ReplayEndpoint = fmt.Sprintf("tcp://*:%d", port), fmt.Sprintf("tcp://*:%d", port+2)
	})
	var sources []*kvstate.Source
	for rank := range 2 {
		source, _ := subscribe(t, hub, ix, fmt.Sprintf("s/dp%d", rank), feed.ForRank(rank))
		sources = append(sources, source)
	}
	for i := range 6 {
		complete(t, e, prompt(i, i, 200), "", "")
	}
	for rank, source := range sources {
		agree(t, ix, source, e, rank)
		if len(source.State().Holders) == 0 {
			t.Errorf("rank %d holds nothing", rank)
		}
	}
}

func TestFeed_ForRank(t *testing.T) {
	for _, c := range []struct{ endpoint, want string }{
		{"tcp://10.0.0.1:5557", "tcp://10.0.0.1:5560"},
		{"tcp://[fd00::1]:5557", "tcp://[fd00::1]:5560"},
		{"ipc:///tmp/kv", "ipc:///tmp/kv_dp3"},
		{"", ""},
	} {
		if got := (Feed{Events: c.endpoint}).ForRank(3).Events; got != c.want {
			t.Errorf("rank 3 of %s: %s, want %s", c.endpoint, got, c.want)
		}
	}
}

func TestSubscribe_RefusesWhatCannotBe(t *testing.T) {
	ix, hub := newIndex(t), newHub(t, quick())
	source, err := ix.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: "s"}, Model: model})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	for _, events := range []string{"", "nonsense", "tcp://nowhere"} {
		if _, err := hub.Subscribe(source, Feed{Events: events}); err == nil {
			t.Errorf("%q was accepted", events)
		}
	}
}

func TestHub_Collector(t *testing.T) {
	ix, hub, p := newIndex(t), newHub(t, quick()), newPublisher(t, false)
	_, sub := subscribe(t, hub, ix, "up", Feed{Events: p.events})
	subscribe(t, hub, ix, "down", Feed{Events: fmt.Sprintf("tcp://127.0.0.1:%d", freePorts(t, 1))})
	connected(t, sub)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(hub.Collector())
	families, err := registry.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "server" {
				got[label.GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	if len(got) != 2 || got["up"] != 1 || got["down"] != 0 {
		t.Errorf("connected: %v", got)
	}
}

// TestSubscriber_RestsBehindAFewMessages: what comes while a feed rests is left to wait, and closing does not.
func TestSubscriber_RestsBehindAFewMessages(t *testing.T) {
	resting, awake := quick(), quick()
	resting.Rest, awake.Rest = 1e6*time.Hour, 0
	ix, p := newIndex(t), newPublisher(t, false)
	source, sub := subscribe(t, newHub(t, resting), ix, "rests", Feed{Events: p.events})
	p.subscribed(source)
	other, _ := subscribe(t, newHub(t, awake), ix, "s", Feed{Events: p.events})
	p.subscribed(other)
	p.publish(false)
	claims(t, ix, 1)
	if n := source.State().Counts.Batches; n > 0 {
		t.Errorf("%d batches were read in a rest", n)
	}
	sub.Close()
}

// What an engine publishes while a replay is awaited waits at the engine beyond a few messages: ZMQ bounds no bytes.
func TestSubscriber_HoldsFewMessages(t *testing.T) {
	const size, sent = 256 << 10, 400
	cfg := quick()
	cfg.ReplayIdle = time.Minute
	ix, hub, p := newIndex(t), newHub(t, cfg), newPublisher(t, false)
	p.silent.Store(true)
	pub, err := p.context.NewSocket(zmq.XPUB)
	must(t, err)
	defer func() { must(t, pub.Close()) }()
	must(t, errors.Join(pub.SetLinger(0), pub.SetSndhwm(1), pub.SetXpubNodrop(true), pub.SetRcvtimeo(30*time.Second), pub.Bind("tcp://127.0.0.1:*")))
	events, err := pub.GetLastEndpoint()
	must(t, err)
	_, sub := subscribe(t, hub, ix, "s", Feed{Events: events, Replay: p.replay})
	_, err = pub.RecvBytes(0) // the subscription
	must(t, err)
	connected(t, sub)
	until(t, func() string {
		if p.requests.Load() == 0 {
			return "nothing is asked for"
		}
		return ""
	})
	must(t, pub.SetSndtimeo(time.Second))
	payload := make([]byte, size)
	for n := range sent {
		if _, err := pub.SendMessage("kv", number(uint64(n)), payload); err != nil {
			if held := n * size; held > (cfg.QueueMessages+1)*size+32<<20 { // and what the sockets of the kernel hold
				t.Errorf("%d MiB are held", held>>20)
			}
			return
		}
	}
	t.Errorf("%d messages of %d KiB are taken without being read", sent, size>>10)
}
