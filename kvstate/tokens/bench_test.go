package tokens

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// longTalk is a conversation of 20 messages and some 16,000 tokens of the simulated
// engine's vocabulary.
func longTalk() []message {
	rng := rand.New(rand.NewPCG(6, 6))
	talk := []message{{"system", words(rng, 1500)}}
	for n := 0; n < 16_000; {
		role := "user"
		if len(talk)%2 == 0 {
			role = "assistant"
		}
		talk = append(talk, message{role, words(rng, 600)})
		n = len(bpe.Default().EncodeMarked(appends(talk, 0)))
	}
	return talk
}

func benchmarkSource(b *testing.B, mode Mode, ask Ask) *Source {
	cfg := Default()
	cfg.Model, cfg.Mode, cfg.AskWait, cfg.AskTimeout = "sim-model", mode, time.Second, time.Second
	if mode == Tokenizer {
		cfg.TokenizerFile, cfg.TemplateFile = simTokenizer(b)
	}
	s, err := New(cfg, ask, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s
}

func run(b *testing.B, s *Source, p Prompt, least int) {
	b.Helper()
	ctx := b.Context()
	var got Tokens
	for b.Loop() {
		got, _ = s.Tokens(ctx, p)
	}
	if len(got.IDs) < least {
		b.Fatalf("%d tokens known, want at least %d", len(got.IDs), least)
	}
	b.ReportMetric(float64(len(p.Body)), "bytes/prompt")
}

// Budget: 100 us, for a next turn that memory knows but for its new messages.
func BenchmarkTokens_LearnedNextTurn(b *testing.B) {
	s := benchmarkSource(b, Learned, nil)
	talk := longTalk()
	for n := 2; n < len(talk); n += 2 { // other turns have shown how the template goes on
		s.Learn(Prompt{API: Chat, Body: chatBody(b, talk[:n], nil)}, encode(appends(talk[:n], 0)))
	}
	more := append(talk[:len(talk):len(talk)], message{"assistant", "Yes."}, message{"user", "And then?"})
	if len(talk)%2 == 1 {
		more = append(talk[:len(talk):len(talk)], message{"user", "And then?"})
	}
	run(b, s, Prompt{API: Chat, Body: chatBody(b, more, nil)}, 14_000)
}

// Budget: 100 us, for a prompt that was asked for before.
func BenchmarkTokens_EngineWarm(b *testing.B) {
	sim := startSim(b, nil)
	s := benchmarkSource(b, Engine, sim.post)
	run(b, s, Prompt{API: Chat, Body: chatBody(b, longTalk(), nil), Model: "sim-model"}, 16_000)
}

// No budget: what it takes is the engine's.
func BenchmarkTokens_EngineCold(b *testing.B) {
	sim := startSim(b, nil)
	body := chatBody(b, longTalk(), nil)
	s := benchmarkSource(b, Engine, sim.post)
	ctx := b.Context()
	for b.Loop() {
		s.memory = newMemory(1 << 20)
		s.asker.memory = s.memory
		if _, ok := s.Tokens(ctx, Prompt{API: Chat, Body: body, Model: "sim-model"}); !ok {
			b.Fatal("nothing known")
		}
	}
}

// Budget: 500 us; it takes 310 us of processor time: nearly all of a next turn was encoded before,
// reading the body and the template are not.
func BenchmarkTokens_TokenizerWarm(b *testing.B) {
	s := benchmarkSource(b, Tokenizer, nil)
	run(b, s, Prompt{API: Chat, Body: chatBody(b, longTalk(), nil)}, 16_000)
}

// Budget: 50 ms; the simulated vocabulary has no words to split at, so this is the
// slow case of merging.
func BenchmarkTokens_TokenizerCold(b *testing.B) {
	s := benchmarkSource(b, Tokenizer, nil)
	p := Prompt{API: Chat, Body: chatBody(b, longTalk(), nil)}
	for b.Loop() {
		s.encoder.cache = newPieces(1 << 20)
		s.Tokens(b.Context(), p)
	}
}

// Budget: 50 us.
func BenchmarkTokens_Approximate(b *testing.B) {
	s := benchmarkSource(b, Approximate, nil)
	p := Prompt{API: Chat, Body: chatBody(b, longTalk(), nil)}
	for b.Loop() {
		s.Tokens(b.Context(), p)
	}
}

// Budget: 20 us for a chat of 220 KB.
func BenchmarkTokens_ApproximateLong(b *testing.B) {
	s := benchmarkSource(b, Approximate, nil)
	p := Prompt{API: Chat, Body: []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("of the sea and ", 220_000/15) + `"}]}`)}
	b.SetBytes(int64(len(p.Body)))
	for b.Loop() {
		s.Tokens(b.Context(), p)
	}
}

// Budget: 50 us for a chat of 220 KB of which nothing is known, so that its chunks are made too, and for the next turn
// of one that is known.
func BenchmarkTokens_LearnedLong(b *testing.B) {
	s := benchmarkSource(b, Learned, nil)
	long := `{"messages":[{"role":"user","content":"` + strings.Repeat("of the sea and ", 220_000/15) + `"}`
	for _, c := range []struct{ name, end string }{{"new", `]}`}, {"known", `,{"role":"assistant","content":"Yes."},{"role":"user","content":"And then?"}]}`}} {
		if c.name == "known" {
			s.Learn(Prompt{API: Chat, Body: []byte(long + `]}`)}, make([]uint32, 50_000))
		}
		p := Prompt{API: Chat, Body: []byte(long + c.end)}
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(p.Body)))
			for b.Loop() {
				s.Tokens(b.Context(), p)
			}
		})
	}
}

// Budget: 300 us; it is not on the way to the first token.
func BenchmarkLearn(b *testing.B) {
	s := benchmarkSource(b, Learned, nil)
	talk := longTalk()
	p := Prompt{API: Chat, Body: chatBody(b, talk, nil)}
	ids := encode(appends(talk, 0))
	for b.Loop() {
		s.Learn(p, ids)
	}
}
