package pd

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd/api"
)

// newTestLocality is one whose engines render chats, so that messages are translated.
func newTestLocality(t *testing.T) *Locality {
	t.Helper()
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode, cfg.AskOver = model, tokens.Engine, 0
		return tokens.New(cfg, func(_ context.Context, path string, _ []byte) ([]byte, error) {
			if path != "/v1/chat/completions/render" {
				return nil, tokens.ErrNotServed
			}
			return []byte(`{"token_ids":[1,2,3]}`), nil
		}, nil)
	})
	t.Cleanup(l.Close)
	return l
}

func newRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: redisserver.Start(t).Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// In which contexts the translation of prompts is wrong, one replica knows from what another one's
// answers have counted: before its first request of that agent.
func TestLocality_ReplicasKnowWhichTranslationsAreWrong(t *testing.T) {
	a, b := newTestLocality(t), newTestLocality(t)
	message := func(text string) *Request {
		return requestOf(t, api.Messages, `{"model":"`+testModel+`","max_tokens":9,"system":"be brief","messages":[{"role":"user","content":"`+text+`"}]}`)
	}
	finds := func(l *Locality, text string) *prefix { return l.findTokens(t.Context(), message(text), testModel) }
	reports := func(to *Locality) {
		now := time.Now()
		to.ReceiveDisproved(a.Disproved(now), 0, now)
	}
	if p := finds(b, "before"); !p.isClaimed() {
		t.Fatalf("the translation is not used: %+v", p)
	}
	finds(a, "one").counted(4)
	reports(b)
	for _, text := range []string{"before", "another"} {
		if p := finds(b, text); p.isClaimed() || p.unknown != tokens.Wrong {
			t.Errorf("b uses the translation that a found wrong: %q, known %v, %q", text, p.known, p.unknown)
		}
	}
	late := newTestLocality(t) // whose models' sources open after it was told
	reports(late)
	finds(late, "opens it")
	reports(late)
	if p := finds(late, "another"); p.isClaimed() {
		t.Error("one that starts uses the translation that a found wrong")
	}
}

// What one replica learns of prompts' tokens is told to those that run, and kept for those
// that start; the list is bounded and expires.
func TestTokenSync_IsToldAndKept(t *testing.T) {
	client := newRedis(t)
	var l Locality
	s := NewTokenSync(&l, client, "test:", slog.New(slog.NewTextHandler(io.Discard, nil)))
	sub := client.Subscribe(t.Context(), "test:"+tokenSyncChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range maxKeptPrefixes + 3 {
		s.publish(t.Context(), []byte{byte(i), byte(i >> 8)})
	}
	told, err := sub.ReceiveMessage(t.Context())
	if err != nil || told.Payload != "\x00\x00" {
		t.Errorf("%v, %v", told, err)
	}
	kept := client.LRange(t.Context(), "test:"+tokenSyncList, 0, -1).Val()
	const last = maxKeptPrefixes + 2
	if len(kept) != maxKeptPrefixes || kept[0] != string([]byte{last & 255, last >> 8}) || kept[len(kept)-1] != "\x03\x00" {
		t.Errorf("%d are kept, the first %q, the last %q", len(kept), kept[0], kept[len(kept)-1])
	}
	if ttl := client.TTL(t.Context(), "test:"+tokenSyncList).Val(); ttl <= 0 || ttl > keptPrefixLife {
		t.Errorf("they live for %v", ttl)
	}
}

// A request never waits for Redis: what finds the queue full is dropped, and so is what no
// other replica would take.
func TestTokenSync_OffersAreBounded(t *testing.T) {
	var l Locality
	s := NewTokenSync(&l, nil, "test:", nil)
	for name, c := range map[string]struct {
		model  string
		prefix []byte
		queued bool
	}{
		"a prefix":               {"m", []byte("prefix"), true},
		"nothing":                {"m", nil, false},
		"the longest":            {"m", make([]byte, maxLearnedPrefix), true},
		"longer":                 {"m", make([]byte, maxLearnedPrefix+1), false},
		"a model's longest name": {strings.Repeat("m", 255), []byte("prefix"), true},
		"a longer one":           {strings.Repeat("m", 256), []byte("prefix"), false},
	} {
		s.offer(c.model, c.prefix)
		select {
		case got := <-s.queue:
			n, at := binary.Uvarint(got)
			if !c.queued || string(got[at:at+int(n)]) != c.model || string(got[at+int(n):]) != string(c.prefix) {
				t.Errorf("%s: queued as %.40q", name, got)
			}
		default:
			if c.queued {
				t.Errorf("%s: not queued", name)
			}
		}
	}
	for range tokenSyncQueue + 5 {
		s.offer("m", []byte("prefix"))
	}
	if len(s.queue) != tokenSyncQueue {
		t.Errorf("%d are queued", len(s.queue))
	}
}

// What one replica learned of a prompt's tokens the others know: those that run, and one that
// starts when it was published long ago.
func TestTokenSync_ReplicasKnowWhatOneLearned(t *testing.T) {
	client := newRedis(t)
	newLocality := func() *Locality {
		l := NewLocality(nil, func(model string) (*tokens.Source, error) {
			cfg := tokens.Default()
			cfg.Model, cfg.Mode = model, tokens.Learned
			return tokens.New(cfg, nil, nil)
		})
		t.Cleanup(l.Close)
		return l
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	run := func(l *Locality) {
		s := NewTokenSync(l, client, "test:", slog.New(slog.DiscardHandler))
		running.Go(func() { s.Run(ctx) })
	}
	req := requestOf(t, api.Completions, `{"model":"m","prompt":"`+strings.Repeat("the river and the bridge ", 40)+`"}`)
	ids := make([]string, 240)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	knows := func(l *Locality) bool { return len(l.findTokens(t.Context(), req, testModel).tokens.IDs) > 0 }
	await := func(who string, l *Locality) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !knows(l); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(who + " never knew the prompt")
			}
		}
	}
	learns, hears, starts := newLocality(), newLocality(), newLocality()
	run(learns)
	run(hears)
	if knows(hears) {
		t.Fatal("it knows the prompt from nowhere")
	}
	p := learns.findTokens(t.Context(), req, testModel)
	learns.learn(p, []byte(`{"prompt_token_ids":[`+strings.Join(ids, ",")+`]}`))
	await("the one that learned it", learns)
	await("the one that runs", hears)
	run(starts)
	await("the one that starts", starts)
}

// A prompt of whose tokens nothing is known goes by its text, and that counts as known: what was
// sent where is known of text as well.
func TestLocality_APromptThatIsNotKnownGoesByItsText(t *testing.T) {
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode = model, tokens.Learned
		return tokens.New(cfg, nil, nil)
	})
	defer l.Close()
	long := requestOf(t, api.Completions, `{"model":"m","prompt":"`+strings.Repeat("the river and the bridge ", 400)+`"}`)
	if p := l.findTokens(t.Context(), long, testModel); !p.known || len(p.tokens.Chunks) == 0 || !p.isGuessed() {
		t.Errorf("known %v, %d chunks, guessed %v", p.known, len(p.tokens.Chunks), p.isGuessed())
	}
	long.Aggregated = true
	if p := l.findTokens(t.Context(), long, testModel); p.known || p.source != nil {
		t.Error("a request that shares nothing is looked up")
	}
}
