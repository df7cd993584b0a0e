package tokens

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

var printTable = flag.Bool("table", false, "print the table of DESIGN.md")

// talks is a workload: conversations that take turns at random, all under one system
// prompt.
type talks struct {
	conversations, turns       int
	systemWords, questionWords int
	raw                        bool // the transcript is the text of a completion
}

// prompt is the next request of a conversation.
func (w *talks) prompt(t *testing.T, conversation []message, learns bool) Prompt {
	more := map[string]any{"return_token_ids": learns}
	if !w.raw {
		return Prompt{API: Chat, Body: chatBody(t, conversation, more), Model: "sim-model"}
	}
	var text strings.Builder
	for _, m := range conversation {
		text.WriteString(m.Role + ": " + m.Content + "\n\n")
	}
	more["model"], more["prompt"], more["max_tokens"] = "sim-model", text.String(), 64
	body, err := json.Marshal(more)
	if err != nil {
		t.Fatal(err)
	}
	return Prompt{API: Completions, Body: body, Model: "sim-model"}
}

// score adds up tokens of full blocks: what the engine had cached, by its own word, and
// what was predicted that it had.
type score struct {
	prompt, cached, predicted, missed, excess int
	took                                      time.Duration
	prompts                                   int
}

func (s *score) add(prompt, cached, predicted int) {
	s.prompts++
	s.prompt += prompt
	s.cached += cached
	s.predicted += predicted
	s.missed += max(0, cached-predicted)
	s.excess += max(0, predicted-cached)
}

// Shares, 0..1: of cached tokens that were predicted, of predicted tokens that were not
// cached, of prompt tokens that were cached.
func (s *score) found() float64 { return 1 - float64(s.missed)/float64(max(1, s.cached)) }
func (s *score) wrong() float64 { return float64(s.excess) / float64(max(1, s.predicted)) }
func (s *score) share() float64 { return float64(s.cached) / float64(s.prompt) }

// holdings are the chains of blocks that an engine holds: a perfect index.
type holdings map[uint64]bool

func holdingsOf(e *engine.Engine) holdings {
	all := e.Blocks()
	byHash := make(map[uint64]engine.Block, len(all))
	for _, b := range all {
		byHash[b.Hash] = b
	}
	chains := map[uint64]uint64{}
	var chain func(b engine.Block) (uint64, bool)
	chain = func(b engine.Block) (uint64, bool) {
		if c, ok := chains[b.Hash]; ok {
			return c, true
		}
		parent := uint64(0)
		if !b.First {
			held, ok := byHash[b.Parent]
			if !ok {
				return 0, false
			}
			if parent, ok = chain(held); !ok {
				return 0, false
			}
		}
		ids := make([]uint32, len(b.Tokens))
		for i, id := range b.Tokens {
			ids[i] = uint32(id)
		}
		chains[b.Hash] = link(parent, ids)
		return chains[b.Hash], true
	}
	h := holdings{}
	for _, b := range all {
		if c, ok := chain(b); ok {
			h[c] = true
		}
	}
	return h
}

func link(parent uint64, block []uint32) uint64 {
	raw := binary.LittleEndian.AppendUint64(nil, parent)
	for _, id := range block {
		raw = binary.LittleEndian.AppendUint32(raw, id)
	}
	return xxhash.Sum64(raw)
}

// match is how many leading tokens are held, in whole blocks.
func (h holdings) match(ids []uint32, block int) int {
	chain, n := uint64(0), 0
	for len(ids)-n >= block {
		if chain = link(chain, ids[n:n+block]); !h[chain] {
			break
		}
		n += block
	}
	return n
}

// history is what a caller of approximate mode remembers: the chunks that it routed,
// and how many tokens a byte of text made so far.
type history struct {
	chunks        map[Chunk]bool
	tokens, bytes int
}

func (h *history) match(chunks []Chunk, block int) int {
	n := 0
	for n < len(chunks) && h.chunks[chunks[n]] {
		n++
	}
	return n * ChunkBytes * h.tokens / max(1, h.bytes) / block * block
}

func (h *history) routed(chunks []Chunk, tokens, bytes int) {
	for _, c := range chunks {
		h.chunks[c] = true
	}
	h.tokens += tokens
	h.bytes += bytes
}

const simBlock = 16 // tokens

// measure runs a workload through one source and one engine.
func measure(t *testing.T, w talks, cfg Config, change func(*engine.Config)) (total score) {
	sim := startSim(t, change)
	s, err := New(cfg, sim.post, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	systemPrompt := words(rng, w.systemWords)
	open := make([][]message, w.conversations)
	for i := range open {
		open[i] = []message{{"system", systemPrompt}}
	}
	routed := history{chunks: map[Chunk]bool{}}
	for range w.conversations * w.turns {
		c := rng.IntN(w.conversations)
		for len(open[c]) == 1+2*w.turns {
			c = (c + 1) % w.conversations
		}
		open[c] = append(open[c], message{"user", words(rng, w.questionWords/2+rng.IntN(w.questionWords))})
		p := w.prompt(t, open[c], cfg.Mode == Learned)
		start := time.Now()
		known, _ := s.Tokens(t.Context(), p)
		total.took += time.Since(start)
		predicted := routed.match(known.Chunks, simBlock)
		if cfg.Mode != Approximate {
			predicted = holdingsOf(sim.Engine).match(known.IDs, simBlock)
		}
		a, _ := sim.complete(t, p)
		if ids := slices.Concat(a.PromptIDs, a.Choices[0].PromptIDs); len(ids) > 0 {
			s.Learn(p, ids)
		}
		if known.Later != nil { // the next turn comes seconds later, when the engine has long answered
			<-known.Later.flight.done
		}
		routed.routed(known.Chunks, a.Usage.PromptTokens, len(p.Body))
		total.add(a.Usage.PromptTokens, a.Usage.Details.Cached, predicted)
		open[c] = append(open[c], message{"assistant", a.Choices[0].Message.Content + a.Choices[0].Text})
	}
	return total
}

// The measurement behind the table of DESIGN.md: -run Accuracy -table.
func TestAccuracy_OfEachMode(t *testing.T) {
	loads := []struct {
		name   string
		w      talks
		change func(*engine.Config)
	}{
		{"chat", talks{24, 5, 800, 60, false}, nil},
		{"long questions", talks{12, 5, 800, 500, false}, nil},
		{"one turn each", talks{60, 1, 800, 100, false}, nil},
		{"chat, cache too small", talks{24, 5, 800, 60, false}, func(c *engine.Config) { c.Blocks, c.MaxModelLen = 300, 4096 }},
		{"completions", talks{24, 5, 800, 60, true}, nil},
		{"completions, long", talks{12, 5, 800, 500, true}, nil},
	}
	config := func(mode Mode) Config {
		c := Default()
		c.Model, c.Mode = "sim-model", mode
		c.AskWait, c.AskTimeout = time.Minute, time.Minute // the machine may be busy
		return c
	}
	always, tokenizer := config(Engine), config(Tokenizer)
	always.AskOver = 0
	tokenizer.TokenizerFile, tokenizer.TemplateFile = simTokenizer(t)
	modes := []struct {
		name         string
		cfg          Config
		least, wrong float64 // shares, 0..1
	}{
		{"engine, waiting always", always, 1, 0},
		{"engine", config(Engine), .9, 0},
		{"tokenizer", tokenizer, 1, 0},
		{"learned", config(Learned), .85, 0},
		{"approximate", config(Approximate), .7, .2},
	}
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(table, "| mode\t| workload\t| cached\t| found\t| wrong\t| mean time\t|")
	for _, mode := range modes {
		for _, load := range loads {
			if !*printTable {
				load.w.conversations /= 3 // the table takes longer than a test should
			}
			got := measure(t, load.w, mode.cfg, load.change)
			fmt.Fprintf(table, "| %s\t| %s\t| %.1f %%\t| %.1f %%\t| %.1f %%\t| %v\t|\n", mode.name, load.name,
				100*got.share(), 100*got.found(), 100*got.wrong(), (got.took / time.Duration(got.prompts)).Round(time.Microsecond))
			if got.found() < mode.least || got.wrong() > mode.wrong {
				t.Errorf("%s, %s: found %.3f, wrong %.3f", mode.name, load.name, got.found(), got.wrong())
			}
		}
	}
	table.Flush()
	if *printTable {
		fmt.Print(out.String())
	}
}
