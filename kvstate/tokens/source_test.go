package tokens

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// All full blocks of a prompt that an engine has just served are in its cache, and they
// must be the ones that the source names.
func TestEngine_TokensAreThoseOfTheRequest(t *testing.T) {
	sim := startSim(t, nil)
	cfg := Default()
	cfg.Model, cfg.Mode, cfg.AskOver = "sim-model", Engine, 0
	cfg.AskWait, cfg.AskTimeout = time.Minute, time.Minute
	s, err := New(cfg, sim.post, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rng := rand.New(rand.NewPCG(5, 5))
	say := func() string { return words(rng, 60) + " \"é\"\n" }
	tools := []any{map[string]any{"type": "function", "function": map[string]any{"name": "f", "parameters": map[string]any{"z": 1, "a": 2}}}}
	type object = map[string]any
	for _, c := range []struct {
		api  API
		path string
		body object
	}{
		{Chat, "/v1/chat/completions", object{"messages": []message{{"system", say()}, {"user", say()}}}},
		{Chat, "/v1/chat/completions", object{"messages": []message{{"user", say()}}, "tools": tools, "temperature": 0}},
		{Chat, "/v1/chat/completions", object{"messages": []message{{"user", say()}, {"assistant", say()}}, "add_generation_prompt": false, "continue_final_message": true}},
		{Chat, "/v1/chat/completions", object{"messages": []any{object{"role": "user", "content": []object{{"type": "text", "text": say()}, {"type": "text", "text": say()}}}}}},
		{Chat, "/v1/chat/completions", object{"messages": []message{{"user", say()}}, "model": "lora-a"}},
		{Chat, "/v1/chat/completions", object{"messages": []message{{"user", say()}}, "cache_salt": "tenant"}},
		{Completions, "/v1/completions", object{"prompt": say()}},
		{Completions, "/v1/completions", object{"prompt": []string{say()}, "add_special_tokens": false}},
		{Completions, "/v1/completions", object{"prompt": encode(say())}},
		{Completions, "/v1/completions", object{"prompt": [][]uint32{encode(say())}}},
		{Messages, "/v1/messages", object{"system": say(), "messages": []message{{"user", say()}}, "max_tokens": 4}},
		{Responses, "/v1/responses", object{"instructions": say(), "input": say()}},
		{Responses, "/v1/responses", object{"input": []object{{"type": "message", "role": "user", "content": []object{{"type": "input_text", "text": say()}}}}}},
	} {
		model, _ := c.body["model"].(string)
		if model == "" {
			model = "sim-model"
			c.body["model"] = model
		}
		body := mustJSON(t, c.body)
		got, ok := s.Tokens(t.Context(), Prompt{API: c.api, Body: body, Model: model})
		if !ok || !got.Complete || got.Certain != len(got.IDs) {
			t.Fatalf("%s: not known", body)
		}
		if _, err := sim.post(t.Context(), c.path, body); err != nil {
			t.Fatal(err)
		}
		if held := holdingsOf(sim.Engine).match(got.IDs, simBlock); held != len(got.IDs)/simBlock*simBlock {
			t.Errorf("%s %.120s: %d of %d tokens are what the engine computed", c.api, body, held, len(got.IDs))
		}
	}
}

func TestTokens_CarryAdapterAndSalt(t *testing.T) {
	for _, mode := range []Mode{Learned, Approximate} {
		cfg := Default()
		cfg.Model, cfg.Mode = "m", mode
		s, err := New(cfg, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := Prompt{API: Completions, Body: []byte(`{"prompt":[1,2,3]}`), Adapter: "lora", Salt: "tenant"}
		got, _ := s.Tokens(t.Context(), p)
		if got.Adapter != "lora" || got.Salt != "tenant" || got.Mode != mode || len(got.IDs) > 0 && len(got.Chunks) > 0 {
			t.Errorf("%s: %+v", mode, got)
		}
		s.Close()
	}
}

// A prompt of token ids needs no server.
func TestTokens_IDsAreTakenAsTheyAre(t *testing.T) {
	s := learnedSource(t, 1<<20)
	for body, want := range map[string][]uint32{
		`{"prompt":[1,2,300]}`: {1, 2, 300}, `{"prompt":[[4,5]]}`: {4, 5}, `{"prompt":[[4],[5]]}`: nil, `{"prompt":[]}`: nil, `{"prompt":[-1]}`: nil,
	} {
		got, ok := s.Tokens(t.Context(), Prompt{API: Completions, Body: []byte(body)})
		if ok != (want != nil) || !slices.Equal(got.IDs, want) || ok && (!got.Complete || got.Certain != len(want)) {
			t.Errorf("%s: %v %+v", body, ok, got)
		}
	}
}

func TestLearned_LearnsFromPrefillAnswersOnly(t *testing.T) {
	s := learnedSource(t, 1<<20)
	p := promptOf(t, helloTalk)
	got, ok := s.Tokens(t.Context(), p)
	if ok || !got.Teaches {
		t.Fatalf("%v %+v: the first prompt is not known and teaches", ok, got)
	}
	if got, _ := s.Tokens(t.Context(), Prompt{API: Messages, Body: p.Body}); got.Teaches {
		t.Fatal("engines give no token ids on /v1/messages")
	}
	s.Learn(p, nil)
	s.Learn(p, []uint32{1, 2})
	if got, ok = s.Tokens(t.Context(), p); !ok || !got.Complete || got.Teaches {
		t.Fatalf("%v %+v: a prompt that is known completely teaches nothing", ok, got)
	}
}

func TestApproximate_ChunksOfANextTurnContinueThoseBefore(t *testing.T) {
	cfg := Default()
	cfg.Model, cfg.Mode = "m", Approximate
	s, err := New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	chunks := func(talk []message, more map[string]any) []Chunk {
		got, _ := s.Tokens(t.Context(), Prompt{API: Chat, Body: chatBody(t, talk, more)})
		return got.Chunks
	}
	rng := rand.New(rand.NewPCG(1, 1))
	talk := []message{{"system", words(rng, 200)}, {"user", words(rng, 100)}}
	first := chunks(talk, nil)
	next := chunks(append(talk[:2:2], message{"assistant", words(rng, 100)}), nil)
	if len(first) < 5 || len(next) <= len(first) || !slices.Equal(next[:len(first)-1], first[:len(first)-1]) {
		t.Fatalf("%d chunks, then %d", len(first), len(next))
	}
	for _, other := range [][]Chunk{
		chunks([]message{{"system", "x" + talk[0].Content}, talk[1]}, nil),
		chunks(talk, map[string]any{"tools": []string{"t"}}),
	} {
		if slices.ContainsFunc(other, func(c Chunk) bool { return slices.Contains(first, c) }) {
			t.Error("chunks of another prefix are the same")
		}
	}
	if got, ok := s.Tokens(t.Context(), Prompt{API: Chat, Body: []byte(plainChat)}); ok || len(got.Chunks) > 0 {
		t.Error("a prompt shorter than a chunk has chunks")
	}
}

func TestMetrics_CountPromptsAndLearnedPrefixes(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := Default()
	cfg.Model, cfg.Mode = "m", Learned
	s, err := New(cfg, nil, NewMetrics(reg))
	if err != nil {
		t.Fatal(err)
	}
	p := promptOf(t, helloTalk)
	s.Tokens(t.Context(), p)
	s.Learn(p, []uint32{1, 2, 3})
	s.Tokens(t.Context(), p)
	s.Learn(p, []uint32{3, 2, 1})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got, memory := map[string]float64{}, 0.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := family.GetName()
			for _, l := range m.GetLabel() {
				labels += " " + l.GetValue()
			}
			if family.GetName() == "tandem_tokens_memory_bytes" {
				memory = m.GetGauge().GetValue()
				continue
			}
			got[labels] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	want := map[string]float64{
		"tandem_tokens_learned_total m confirmed": 1, "tandem_tokens_learned_total m contradicted": 1,
		"tandem_tokens_prompts_total m unknown": 1, "tandem_tokens_prompts_total m whole": 1, "tandem_tokens_seconds m": 2,
		"tandem_tokens_known_prompts m": 1,
	}
	if !maps.Equal(got, want) {
		t.Fatalf("got %v", got)
	}
	if _, bytes := s.memory.size(); bytes == 0 || memory != float64(bytes) {
		t.Errorf("%v bytes of memory are said to be taken, want %d", memory, bytes)
	}
}

func TestConfig_SaysWhatIsWrong(t *testing.T) {
	good := Default()
	good.Model, good.Mode = "m", Learned
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.Model = "" }, func(c *Config) { c.Mode = "guess" }, func(c *Config) { c.MemoryBytes = 5 },
		func(c *Config) { c.AskWait = 0 }, func(c *Config) { c.AskTimeout = 1 }, func(c *Config) { c.MaxAsks = 0 }, func(c *Config) { c.Mode = Tokenizer },
	} {
		bad := good
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("change %d passes", i)
		}
	}
	bad := good
	bad.Mode, bad.TokenizerFile = Tokenizer, "testdata/none.json"
	noTemplate := good
	noTemplate.Mode, noTemplate.TemplateFile = Tokenizer, "testdata/none.jinja"
	noTemplate.TokenizerFile, _ = simTokenizer(t)
	for _, cfg := range []Config{bad, noTemplate, func() Config { c := good; c.Mode = Engine; return c }()} {
		if _, err := New(cfg, nil, nil); err == nil {
			t.Errorf("%+v works", cfg)
		} else if !strings.Contains(fmt.Sprint(err), "tokens of m") {
			t.Error(err)
		}
	}
}

// Questions to engines are counted by what became of them; a source without a memory judges what
// it said by its own count.
func TestMetrics_CountQuestions(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := Default()
	cfg.Model, cfg.Mode, cfg.AskOver = "m", Engine, 0
	s, err := New(cfg, func(_ context.Context, path string, body []byte) ([]byte, error) {
		if path != pathRenderChat {
			return nil, ErrNotServed
		}
		if strings.Contains(string(body), "broken") {
			return nil, errors.New("it does not answer")
		}
		return []byte(`{"token_ids":[1,2,3]}`), nil
	}, NewMetrics(reg))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two", "broken"} {
		s.Tokens(t.Context(), promptOf(t, []message{{"user", text}}))
	}
	s.Close()
	want := `
# HELP tandem_tokenize_calls_total Prompts that an engine was asked to tokenise: ok, failed, refused (not asked: too many at once, or engines do not answer).
# TYPE tandem_tokenize_calls_total counter
tandem_tokenize_calls_total{model="m",outcome="failed"} 1
tandem_tokenize_calls_total{model="m",outcome="ok"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "tandem_tokenize_calls_total"); err != nil {
		t.Error(err)
	}
	alone := &Source{cfg: cfg, claims: newClaims()}
	for count, right := range map[int]bool{2: false, 3: true, 4: true, 0: true} {
		if got := alone.Counted(Chat, &Tokens{IDs: []uint32{1, 2, 3}, By: ByRequest}, count); got != right {
			t.Errorf("3 leading tokens of %d are right: %v", count, got)
		}
	}
}
