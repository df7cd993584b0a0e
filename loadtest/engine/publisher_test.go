package engine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"
)

// subscriber is a ZMQ reader of KV events that keeps what they say is held.
type subscriber struct {
	context *zmq.Context
	socket  *zmq.Socket
	held    map[uint64]int // hash -> number of equal blocks
	next    uint64         // number of the next message
}

// newSubscriber binds when bindTo is not empty, else it is to be connected.
func newSubscriber(t *testing.T, bindTo string) *subscriber {
	t.Helper()
	context, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	socket, err := context.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, socket.Close()); must(t, context.Term()) })
	must(t, socket.SetSubscribe(""))
	must(t, socket.SetLinger(0))
	must(t, socket.SetRcvtimeo(20*time.Millisecond))
	if bindTo != "" {
		must(t, socket.Bind(bindTo))
	}
	return &subscriber{context: context, socket: socket, held: map[uint64]int{}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read takes in all messages that have come.
func (s *subscriber) read(t *testing.T, topic string) {
	t.Helper()
	for {
		frames, err := s.socket.RecvMessageBytes(0)
		if err != nil {
			return // nothing more for now
		}
		if len(frames) != 3 || string(frames[0]) != topic || len(frames[1]) != 8 {
			t.Fatalf("message of %d frames, topic %q", len(frames), frames[0])
		}
		if number := binary.BigEndian.Uint64(frames[1]); number != s.next {
			t.Fatalf("message %d, want %d", number, s.next)
		}
		s.next++
		s.take(t, frames[2])
	}
}

// take applies one payload, in either encoding.
func (s *subscriber) take(t *testing.T, payload []byte) {
	t.Helper()
	decoded, rest, err := msgp.ReadIntfBytes(payload)
	if err != nil || len(rest) > 0 {
		t.Fatalf("payload: %v, %d bytes left", err, len(rest))
	}
	batch := decoded.([]any)
	for _, event := range batch[1].([]any) {
		kind, hashes, tokens := eventFields(t, event)
		switch kind {
		case "BlockStored":
			if len(tokens) != 16*len(hashes) {
				t.Errorf("%d tokens for %d blocks", len(tokens), len(hashes))
			}
			for _, h := range hashes {
				s.held[number(h)]++
			}
		case "BlockRemoved":
			for _, h := range hashes {
				if s.held[number(h)]--; s.held[number(h)] == 0 {
					delete(s.held, number(h))
				}
			}
		case "AllBlocksCleared":
			clear(s.held)
		default:
			t.Errorf("event %q", kind)
		}
	}
}

func eventFields(t *testing.T, event any) (kind string, hashes, tokens []any) {
	t.Helper()
	switch e := event.(type) {
	case []any:
		kind = e[0].(string)
		if len(e) > 1 {
			hashes = e[1].([]any)
		}
		if kind == "BlockStored" {
			tokens = e[3].([]any)
		}
	case map[string]any:
		kind = e["type"].(string)
		hashes, _ = e["block_hashes"].([]any)
		tokens, _ = e["token_ids"].([]any)
	default:
		t.Fatalf("event is a %T", event)
	}
	return kind, hashes, tokens
}

// number is any integer that msgpack may give.
func number(v any) uint64 {
	switch n := v.(type) {
	case uint64:
		return n
	case int64:
		return uint64(n)
	}
	panic(fmt.Sprintf("%T is no number", v))
}

// truth is what the engine really holds.
func truth(e *Engine) []uint64 {
	var hashes []uint64
	for _, b := range e.Blocks() {
		hashes = append(hashes, b.Hash)
	}
	return slices.Sorted(slices.Values(hashes))
}

// agree waits until the subscriber knows just what is held.
func (s *subscriber) agree(t *testing.T, e *Engine, topic string) {
	t.Helper()
	eventually(t, "events tell what is held", func() bool {
		s.read(t, topic)
		return slices.Equal(slices.Sorted(maps.Keys(s.held)), truth(e))
	})
}

func TestEvents_TellWhatIsHeld(t *testing.T) {
	for _, asMaps := range []bool{false, true} {
		for _, binds := range []bool{true, false} {
			t.Run(fmt.Sprintf("maps=%v,engine binds=%v", asMaps, binds), func(t *testing.T) {
				const topic = "kv@test"
				var s *subscriber
				endpoint := "tcp://*:*"
				if !binds {
					s = newSubscriber(t, "tcp://127.0.0.1:*")
					at, err := s.socket.GetLastEndpoint()
					must(t, err)
					endpoint = at
				}
				e := start(t, func(cfg *Config) {
					cfg.Blocks, cfg.MaxModelLen = 60, 900 // small, so that it evicts
					cfg.EventsEndpoint, cfg.EventsTopic, cfg.EventsAsMaps = endpoint, topic, asMaps
				})
				if binds {
					s = newSubscriber(t, "")
					must(t, s.socket.Connect(e.State().EventsEndpoints[0]))
				}
				s.await(t, e)
				for i := range 8 {
					ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(40, 30+i).with(fields{"cache_salt": fmt.Sprint(i % 5)}))
					s.agree(t, e, topic)
				}
				post(t, e, "/reset_prefix_cache", fields{})
				s.agree(t, e, topic)
				if len(s.held) != 0 || s.next == 0 {
					t.Errorf("%d blocks held after %d messages", len(s.held), s.next)
				}
			})
		}
	}
}

// An engine publishes on the addresses that it is told, of IPv6 too.
func TestEvents_ArePublishedAtIPv6(t *testing.T) {
	hosts := []string{"::"}
	if isHere(t, "::1") {
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		endpoint := "tcp://[" + host + "]:*"
		e := start(t, func(cfg *Config) { cfg.EventsEndpoint, cfg.ReplayEndpoint = endpoint, endpoint })
		s := newSubscriber(t, "")
		must(t, s.socket.SetIpv6(true))
		must(t, s.socket.Connect(e.State().EventsEndpoints[0]))
		s.await(t, e)
		ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(40, 30))
		s.agree(t, e, "")
		if got := e.ranks[0].events.replayAt; portOf(got) == 0 || portOf(got) == portOf(e.State().EventsEndpoints[0]) {
			t.Errorf("%s: replay at %s", endpoint, got)
		}
	}
}

// isHere reports whether an address is of this machine.
func isHere(t *testing.T, address string) bool {
	t.Helper()
	all, err := net.InterfaceAddrs()
	must(t, err)
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		own, isNet := a.(*net.IPNet)
		return isNet && own.IP.String() == address
	})
}

// await makes the engine publish until a message arrives, which shows that the
// subscription is in place, and starts from there.
func (s *subscriber) await(t *testing.T, e *Engine) {
	t.Helper()
	eventually(t, "the subscription is in place", func() bool {
		post(t, e, "/reset_prefix_cache", fields{})
		frames, err := s.socket.RecvMessageBytes(0)
		if err == nil {
			s.next = binary.BigEndian.Uint64(frames[1]) + 1
		}
		return err == nil
	})
}

// replay asks for the batches from a number on.
func replay(t *testing.T, context *zmq.Context, endpoint string, from uint64) (numbers []uint64, payloads [][]byte) {
	t.Helper()
	dealer, err := context.NewSocket(zmq.DEALER)
	must(t, err)
	defer func() { must(t, dealer.Close()) }()
	must(t, dealer.SetLinger(0))
	must(t, dealer.SetRcvtimeo(30*time.Second))
	must(t, dealer.Connect(endpoint))
	_, err = dealer.SendMessage("", binary.BigEndian.AppendUint64(nil, from))
	must(t, err)
	for {
		frames, err := dealer.RecvMessageBytes(0)
		must(t, err)
		if len(frames) != 4 || len(frames[0]) != 0 {
			t.Fatalf("reply of %d frames", len(frames))
		}
		n := binary.BigEndian.Uint64(frames[2])
		if n == endOfReplay {
			if len(frames[1]) != 0 || len(frames[3]) != 0 {
				t.Errorf("end marker %q", frames)
			}
			return numbers, payloads
		}
		numbers, payloads = append(numbers, n), append(payloads, frames[3])
	}
}

func TestEvents_ReplayGivesWhatWasMissed(t *testing.T) {
	e := start(t, func(cfg *Config) {
		cfg.EventsEndpoint, cfg.ReplayEndpoint, cfg.ReplayBatches = "tcp://*:*", "tcp://*:*", 50
	})
	s := newSubscriber(t, "")
	endpoint := e.State().ReplayEndpoints[0]
	ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(100, 100))
	eventually(t, "a replay tells what is held", func() bool {
		clear(s.held)
		numbers, payloads := replay(t, s.context, endpoint, 0)
		for i, payload := range payloads {
			if numbers[i] != uint64(i) {
				t.Fatalf("replayed %v", numbers)
			}
			s.take(t, payload)
		}
		return len(payloads) > 0 && slices.Equal(slices.Sorted(maps.Keys(s.held)), truth(e))
	})
	all, _ := replay(t, s.context, endpoint, 0)
	from := all[len(all)-1]
	if rest, _ := replay(t, s.context, endpoint, from); !slices.Equal(rest, []uint64{from}) {
		t.Errorf("from %d on: %v", from, rest)
	}
	if none, _ := replay(t, s.context, endpoint, from+1); len(none) != 0 {
		t.Errorf("from %d on: %v", from+1, none)
	}
	for range 60 { // more than are kept
		post(t, e, "/reset_prefix_cache", fields{})
		n, _ := replay(t, s.context, endpoint, 0)
		if len(n) > 50 {
			t.Fatalf("%d batches kept", len(n))
		}
	}
	if n, _ := replay(t, s.context, endpoint, 0); n[0] == 0 || len(n) != 50 {
		t.Errorf("%d batches from %d on", len(n), n[0])
	}
}

func TestEvents_RanksHaveEndpointsOfTheirOwn(t *testing.T) {
	for _, c := range []struct{ endpoint, want string }{
		{"tcp://*:5557", "tcp://*:5560"},
		{"tcp://10.0.0.1:5557", "tcp://10.0.0.1:5560"},
		{"tcp://*:*", "tcp://*:*"},
		{"ipc:///tmp/kv", "ipc:///tmp/kv_dp3"},
		{"inproc://kv", "inproc://kv_dp3"},
	} {
		if got := endpointOfRank(c.endpoint, 3); got != c.want {
			t.Errorf("rank 3 of %s: %s, want %s", c.endpoint, got, c.want)
		}
	}
}
