package zmqsub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/loadtest/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const model = "sim-model"

// quick is Default with times for tests. An answer to a replay may take as long as in life:
// a busy machine needs it, and blocks whose parents were not replayed are dropped.
func quick() Config {
	cfg := Default()
	cfg.ReconnectMin, cfg.ReconnectMax = 5*time.Millisecond, 20*time.Millisecond
	cfg.ReplayPause = 300 * time.Millisecond
	cfg.CheckAfter, cfg.CheckEvery = 30*time.Millisecond, 200*time.Millisecond
	return cfg
}

func newIndex(t testing.TB) *kvstate.Index {
	t.Helper()
	ix, err := kvstate.New(kvstate.Default())
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

func newHub(t testing.TB, cfg Config) *Hub {
	t.Helper()
	hub, err := NewHub(cfg, slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return hub
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// subscribe feeds a new source of the index.
func subscribe(t testing.TB, hub *Hub, ix *kvstate.Index, server string, feed Feed) (*kvstate.Source, *Subscriber) {
	t.Helper()
	source, err := ix.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: server}, Model: model, Replays: feed.Replay != ""})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Close)
	sub, err := hub.Subscribe(source, feed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sub.Close)
	return source, sub
}

// startEngine runs a small simulated engine that waits for nothing.
func startEngine(t testing.TB, change func(*engine.Config)) *engine.Engine {
	t.Helper()
	cfg := engine.Default()
	cfg.TimeScale, cfg.Blocks, cfg.MaxModelLen = 0, 120, 1900
	change(&cfg)
	e, err := engine.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("engine: %v", err)
		}
	})
	return e
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func post(t testing.TB, e *engine.Engine, path string, body any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Post(e.URL()+path, "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d: %s", path, res.StatusCode, answer)
	}
}

// complete runs a prompt of tokens on an engine; adapters and salts are optional.
func complete(t testing.TB, e *engine.Engine, tokens []uint32, adapter, salt string) {
	t.Helper()
	body := map[string]any{"model": model, "prompt": tokens, "max_tokens": 4}
	if adapter != "" {
		body["model"] = adapter
	}
	if salt != "" {
		body["cache_salt"] = salt
	}
	post(t, e, "/v1/completions", body)
}

// prompt is n tokens, of which the first half depends on the family only.
func prompt(family, variant, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(300 + (7*i+family*31)%150)
		if i >= n/2 {
			tokens[i] = uint32(300 + (11*i+variant*13)%150)
		}
	}
	return tokens
}

// difference says where the index and the engine disagree about what the rank holds:
// for each block held, the prompt that ends with it must be matched just as far as its
// blocks are held; and the index has no more blocks than the engine.
func difference(ix *kvstate.Index, source *kvstate.Source, e *engine.Engine, rank int) string {
	blocks := map[uint64]engine.Block{}
	for _, b := range e.Blocks() {
		if b.Rank == rank {
			blocks[b.Hash] = b
		}
	}
	reachable := 0
	var hits kvstate.Hits
	for _, b := range blocks {
		var tokens []uint32
		held := 0
		for at, known := b, true; known; at, known = blocks[at.Parent] {
			own := make([]uint32, len(at.Tokens))
			for i, token := range at.Tokens {
				own[i] = uint32(token)
			}
			tokens = append(own, tokens...)
			if at.First {
				held = len(tokens)
				break
			}
		}
		if held == 0 {
			continue // its head is gone: no request can use it
		}
		reachable++
		ix.Match(&kvstate.Prompt{Model: model, Tokens: tokens, Adapter: b.Adapter, Salt: b.Salt}, &hits)
		if got := hits.Held(source.ID().Server).GPU; got != held {
			return fmt.Sprintf("%d tokens of a prompt of which %d are held", got, held)
		}
	}
	claimed := 0
	for _, h := range source.State().Holders {
		claimed += h.GPU
	}
	if claimed != reachable {
		return fmt.Sprintf("%d blocks claimed, %d held", claimed, reachable)
	}
	return ""
}

// agree waits until index and engine say the same.
func agree(t testing.TB, ix *kvstate.Index, source *kvstate.Source, e *engine.Engine, rank int) {
	t.Helper()
	last := ""
	until(t, func() string {
		last = difference(ix, source, e, rank)
		return last
	})
}

// until waits until nothing is wrong.
func until(t testing.TB, wrong func() string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		what := wrong()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still after 30 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func connected(t testing.TB, s *Subscriber) {
	t.Helper()
	until(t, func() string {
		if s.Connected() {
			return ""
		}
		return "not connected"
	})
}

// freePorts returns the first of n tcp ports in a row that are free now. They are below
// those that the system gives to outgoing connections, one of which could take a port
// before it is listened on.
func freePorts(t testing.TB, n int) int {
	t.Helper()
	for range 50 {
		first, free := 10_000+rand.IntN(22_000), true
		for p := first; p < first+n && free; p++ {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(p))
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return first
		}
	}
	t.Fatal("no free ports")
	return 0
}
