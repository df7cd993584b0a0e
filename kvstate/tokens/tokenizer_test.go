package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlclark/regexp2/v2"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// simTokenizer writes the simulated engine's vocabulary as a tokenizer.json, and its
// chat template as Jinja.
func simTokenizer(t testing.TB) (tokenizer, template string) {
	t.Helper()
	raw, err := os.ReadFile("../../loadtest/engine/bpe/merges.txt")
	if err != nil {
		t.Fatal(err)
	}
	tok := bpe.Default()
	letters := map[byte]rune{}
	for letter, b := range byteLetters() {
		letters[b] = letter
	}
	spell := func(id int32) string {
		var b strings.Builder
		for _, c := range []byte(tok.Text(id)) {
			b.WriteRune(letters[c])
		}
		return b.String()
	}
	vocab, pairs := map[string]int32{}, [][2]string{}
	var added []map[string]any
	for id := range int32(tok.Size()) {
		switch {
		case tok.Text(id) == "":
			added = append(added, map[string]any{"id": id, "content": tok.Name(id), "special": true})
		default:
			vocab[spell(id)] = id
		}
	}
	for line := range strings.Lines(string(raw)) {
		var left, right int32
		if _, err := fmt.Sscan(line, &left, &right); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, [2]string{spell(left), spell(right)})
	}
	begin, _ := tok.Special(bpe.Begin)
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
	file, err := json.Marshal(map[string]any{
		"added_tokens":  added,
		"pre_tokenizer": byteLevel,
		"post_processor": map[string]any{"type": "Sequence", "processors": []any{byteLevel, map[string]any{
			"type":           "TemplateProcessing",
			"single":         []any{map[string]any{"SpecialToken": map[string]any{"id": bpe.Begin}}, map[string]any{"Sequence": map[string]any{"id": "A"}}},
			"special_tokens": map[string]any{bpe.Begin: map[string]any{"id": bpe.Begin, "ids": []int32{begin}}},
		}}},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": pairs},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tokenizer, template = filepath.Join(dir, "tokenizer.json"), filepath.Join(dir, "chat_template.jinja")
	const jinja = `{{ '<|begin|>' }}{% for m in messages %}
    {%- if m['role'] == 'developer' %}{{ '<|system|>' }}{% else %}{{ '<|' + m.role + '|>' }}{% endif %}
    {{- m.content + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}`
	for path, content := range map[string]string{tokenizer: string(file), template: jinja} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tokenizer, template
}

func simVocabulary(t testing.TB) *vocabulary {
	t.Helper()
	path, _ := simTokenizer(t)
	v, err := loadVocabulary(path)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestTokenizer_SaysWhatTheEngineSays(t *testing.T) {
	cfg := Default()
	cfg.Model, cfg.Mode = "sim-model", Tokenizer
	cfg.TokenizerFile, cfg.TemplateFile = simTokenizer(t)
	s, err := New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sim := startSim(t, func(cfg *engine.Config) { cfg.Version = "0.33.0" })
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 40 {
		chat := []message{{"system", words(rng, 30)}, {"user", words(rng, 1+rng.IntN(50)) + hardTexts[1+rng.IntN(len(hardTexts)-1)]}, {"assistant", words(rng, 9)}, {"user", words(rng, 9)}}
		prompts := []Prompt{
			{API: Chat, Body: chatBody(t, chat, nil)},
			{API: Completions, Body: mustJSON(t, map[string]any{"model": "sim-model", "prompt": words(rng, i)})},
			{API: Completions, Body: mustJSON(t, map[string]any{"model": "sim-model", "prompt": []string{words(rng, i)}, "add_special_tokens": false})},
			{API: Messages, Body: mustJSON(t, map[string]any{"model": "sim-model", "max_tokens": 5, "system": chat[0].Content, "messages": chat[1:]})},
			{API: Responses, Body: mustJSON(t, map[string]any{"model": "sim-model", "instructions": chat[0].Content, "input": chat[1].Content})},
		}
		for _, p := range prompts {
			if strings.Contains(chat[1].Content, "<|") && p.API != Completions {
				continue // the simulated engine keeps names of special tokens in messages as text
			}
			got, ok := s.Tokens(t.Context(), p)
			want := askedOf(t, sim, p)
			if len(want) > 0 && !slices.Equal(got.IDs, want) || ok != (len(got.IDs) > 0) {
				t.Fatalf("%s %.200s:\n got %v %v\nwant %v", p.API, p.Body, ok, got.IDs, want)
			}
		}
	}
}

func TestTokenizer_ManyAtOnce(t *testing.T) {
	cfg := Default()
	cfg.Model, cfg.Mode, cfg.MemoryBytes = "sim-model", Tokenizer, 1<<20
	cfg.TokenizerFile, cfg.TemplateFile = simTokenizer(t)
	s, err := New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all sync.WaitGroup
	for worker := range uint64(8) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(worker%3, 1))
			for range 50 {
				talk := []message{{"system", words(rng, 40)}, {"user", words(rng, 200)}}
				got, ok := s.Tokens(t.Context(), promptOf(t, talk))
				if want := simTokens(talk); !ok || !slices.Equal(got.IDs, want) {
					t.Errorf("%d tokens, want %d", len(got.IDs), len(want))
					return
				}
			}
		})
	}
	all.Wait()
	if s.encoder.cache.bytes > cfg.MemoryBytes {
		t.Errorf("%d bytes remembered", s.encoder.cache.bytes)
	}
}

// simTokens are a chat's tokens by the template of the simulated engine.
func simTokens(talk []message) []uint32 {
	var b strings.Builder
	b.WriteString(bpe.Begin)
	for _, m := range talk {
		b.WriteString(mark(m.Role) + m.Content + bpe.EndOfTurn)
	}
	return encode(b.String() + bpe.Assistant)
}

func TestTemplate_IsExactOrNothing(t *testing.T) {
	chat := &conversation{messages: []chatMessage{{role: "user", texts: []string{"Hi"}}}, addGeneration: true}
	for source, want := range map[string]string{
		"{% for m in messages %}\n    {%- if true %}\n  {{ m.role }}:{{ m['content'] }}\n    {% endif %}\n{% endfor %}": "  user:Hi\n",
		"{{ raise_exception('no') }}": "",
		"  {% if true %} a {% endif %} b\n  {%+ if true %}c{% endif +%}\n{# x #}\nd\n": " a  b\n  c\nd",
		"{{ strftime_now('%Y') }}":                                   "",
		"{{ messages[7].content.strip() }}":                          "",
		"{% for i in range(3) %}{{ i }}{% break %}{% endfor %}":      "0",
		"{% for i in range(9, 1, -3) %}{{ i }} {% endfor %}":         "9 6 3 ",
		"{% for i in range(99999999) %}{{ i }} {% endfor %}":         "",
		"{{ 'a' if strftime_now is defined else 'b' }}{{ missing }}": "a",
		"{% include '/etc/passwd' %}":                                "",
	} {
		template, err := newTemplate(source, nil)
		got := ""
		if err == nil {
			got, err = template.render(chat)
		}
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v; want %q", source, got, err, want)
		}
	}
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// askedOf are the tokens that the engine itself says a prompt has.
func askedOf(t testing.TB, sim *sim, p Prompt) []uint32 {
	t.Helper()
	p.Model = "sim-model"
	text, ok := p.read()
	if !ok {
		t.Fatalf("not read: %s", p.Body)
	}
	defer text.free()
	questions := p.questions(text, func(Method) bool { return true })
	if len(questions) == 0 {
		t.Fatalf("nothing to ask for %s", p.Body)
	}
	q := questions[0]
	answer, err := sim.post(t.Context(), q.path, q.body)
	if errors.Is(err, ErrRefused) {
		return nil // an empty prompt
	}
	if err != nil {
		t.Fatal(err)
	}
	found, ok := q.read(answer, false)
	if !ok {
		t.Fatalf("answer not read: %.200s", answer)
	}
	return found.IDs
}

func FuzzVocabulary_EncodesAsTheEngine(f *testing.F) {
	for _, s := range append(hardTexts, "of the of the of the", "the<|user|>cat<|en") {
		f.Add(s)
	}
	v, tok := simVocabulary(f), bpe.Default()
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		got, err := v.appendText(nil, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := encodeMarked(tok, text); !slices.Equal(got, want) {
			t.Fatalf("%q:\n got %v\nwant %v", text, got, want)
		}
	})
}

func encodeMarked(tok *bpe.Tokenizer, text string) (ids []uint32) {
	for _, id := range tok.EncodeMarked(text) {
		ids = append(ids, uint32(id))
	}
	return ids
}

// qwenSplit is the pattern that Qwen's tokenizers split by; Llama 3's differs in the
// digits.
const qwenSplit = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// A client may send a megabyte without a space: with a quadratic merge that is minutes.
func TestVocabulary_LongPiecesTakeNoLongTime(t *testing.T) {
	pattern := string(mustJSON(t, qwenSplit))
	split, err := parseVocabulary([]byte(`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":` + pattern + `},"behavior":"Isolated"},` + minimalModel() + `}`))
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 17
	for _, v := range []*vocabulary{simVocabulary(t), split} {
		for _, part := range []string{"a", "the", " ", "ab\n", "\n", " \n", "!", "é ", "'s", strings.Repeat(" ", 500) + "x"} {
			start := time.Now()
			if _, err := v.appendText(nil, strings.Repeat(part, size/len(part)), nil); err != nil {
				t.Fatalf("%.6q: %v", part, err)
			}
			if took := time.Since(start); took > 8*time.Second {
				t.Errorf("%d bytes of %.6q took %v", size, part, took)
			}
		}
	}
}

func TestVocabulary_RefusesWhatItCannotDo(t *testing.T) {
	for name, file := range map[string]string{
		"unigram":           `{"model":{"type":"Unigram","vocab":{}}}`,
		"byte fallback":     `{"model":{"type":"BPE","byte_fallback":true,"vocab":{}}}`,
		"dropout":           `{"model":{"type":"BPE","dropout":0.1,"vocab":{}}}`,
		"missing bytes":     `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`,
		"stripping tokens":  `{"added_tokens":[{"id":1,"content":"<x>","lstrip":true}],` + minimalModel() + `}`,
		"lower case":        `{"normalizer":{"type":"Lowercase"},` + minimalModel() + `}`,
		"metaspace":         `{"pre_tokenizer":{"type":"Metaspace"},` + minimalModel() + `}`,
		"removed parts":     `{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"x"},"behavior":"Removed"},` + minimalModel() + `}`,
		"space after split": `{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x"},"behavior":"Isolated"},{"type":"ByteLevel","add_prefix_space":true}]},` + minimalModel() + `}`,
		"roberta":           `{"post_processor":{"type":"RobertaProcessing"},` + minimalModel() + `}`,
	} {
		if _, err := parseVocabulary([]byte(file)); !errors.Is(err, errUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, file := range map[string]string{
		"minimal":                `{` + minimalModel() + `}`,
		"a space before a split": `{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},` + minimalModel() + `}`,
	} {
		if _, err := parseVocabulary([]byte(file)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// minimalModel is a BPE of the 256 bytes.
func minimalModel() string {
	vocab := map[string]int{}
	for letter, b := range byteLetters() {
		vocab[string(letter)] = int(b)
	}
	raw, _ := json.Marshal(vocab) // letters and numbers always marshal
	return `"model":{"type":"BPE","vocab":` + string(raw) + `,"merges":[]}`
}

func FuzzParseVocabulary_NeverPanics(f *testing.F) {
	f.Add([]byte("{" + minimalModel() + "}"))
	f.Add([]byte(`{"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[]},"model":{"type":"BPE"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := parseVocabulary(raw)
		if err != nil {
			return
		}
		if _, err := v.appendText(nil, "some text, 12", nil); err != nil {
			t.Log(err) // a pattern may be one that never ends
		}
	})
}

// Short pieces whose tokens were found are kept, until there are too many: then they are found
// anew.
func TestMerges_ShortPiecesAreKeptUpToABound(t *testing.T) {
	m := merges{short: make(map[string][]uint32, cachedPieces+1)}
	for i := range cachedPieces {
		m.short[strconv.Itoa(i)] = nil
	}
	m.keep(map[string][]uint32{"one": {1}})
	if len(m.short) != cachedPieces+1 || len(m.short["one"]) != 1 {
		t.Errorf("%d are kept, want one more than %d", len(m.short), cachedPieces)
	}
	m.keep(map[string][]uint32{"two": {2}})
	if len(m.short) != 1 || len(m.short["two"]) != 1 {
		t.Errorf("%d are kept beyond the bound", len(m.short))
	}
}

// The template of a tokenizer_config.json is a string, or the one called default of a list.
func TestTemplate_OfATokenizerConfig(t *testing.T) {
	for field, want := range map[string]string{
		`"one"`: "one",
		`[{"name":"tool_use","template":"two"},{"name":"default","template":"one"}]`: "one",
		`[{"name":"tool_use","template":"two"}]`:                                     "",
		`""`:                                                                         "", `null`: "", `7`: "",
	} {
		c := tokenizerConfig{Template: []byte(field)}
		if got, err := c.source(); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", field, got, err, want)
		}
	}
}

// A chat of no messages has no tokens: the engine refuses it.
func TestConversation_OfNoMessagesIsNone(t *testing.T) {
	for body, want := range map[string]bool{`{"messages":[]}`: false, `{}`: false, plainChat: true} {
		if _, ok := (&Prompt{API: Chat, Body: []byte(body)}).conversation(); ok != want {
			t.Errorf("%s: %v, want %v", body, ok, want)
		}
	}
}

// Text is cut into a pattern's matches and what is between them, in characters of any length.
func TestIsolate_CutsAtMatchesAndBetweenThem(t *testing.T) {
	re := regexp2.MustCompile("b+")
	for text, want := range map[string][]string{
		"aabbcc": {"aa", "bb", "cc"}, "bbé世": {"bb", "é世"}, "é世bbx": {"é世", "bb", "x"}, "bab": {"b", "a", "b"}, "none": {"none"},
	} {
		if got, err := isolate(re, []string{text}); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
}

// With ignore_merges a word of the vocabulary is one token, whatever the merges say; without it,
// only merges make one.
func TestVocabulary_AWordIsOneTokenWhereMergesAreIgnored(t *testing.T) {
	model := strings.Replace(minimalModel(), `"vocab":{`, `"vocab":{"ab":256,`, 1)
	for extra, want := range map[string][]uint32{``: {'a', 'b'}, `"ignore_merges":true,`: {256}} {
		v, err := parseVocabulary([]byte("{" + strings.Replace(model, `"type":"BPE",`, `"type":"BPE",`+extra, 1) + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.appendText(nil, "ab", nil); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", extra, got, err, want)
		}
	}
}

// The tokens of text between added tokens are kept, so that its next use needs no merging.
func TestVocabulary_TextOnceSeenIsKept(t *testing.T) {
	v, err := parseVocabulary([]byte("{" + minimalModel() + "}"))
	if err != nil {
		t.Fatal(err)
	}
	text, cache := strings.Repeat("some words ", 100), newPieces(1<<20)
	ids, err := v.appendText([]uint32{7}, text, cache)
	if err != nil {
		t.Fatal(err)
	}
	if kept, ok := cache.get(text); !ok || !slices.Equal(kept, ids[1:]) {
		t.Errorf("kept are %d tokens of %d", len(kept), len(ids)-1)
	}
}

// A word that is not of GPT-2's alphabet of bytes is none; a file that is no tokenizer is named.
func TestVocabulary_NamesWhatItCannotRead(t *testing.T) {
	letters := byteLetters()
	if text, ok := decodeLetters("a\u0120b", letters); !ok || text != "a b" {
		t.Errorf("%q, %v", text, ok)
	}
	if text, ok := decodeLetters("世", letters); ok {
		t.Errorf("%q is of the alphabet", text)
	}
	path := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadVocabulary(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v does not name the file", err)
	}
}

// Variables of a request reach the template, unless they are arguments of the function that
// renders it.
func TestConversation_VariablesAreNoArguments(t *testing.T) {
	for variables, want := range map[string]bool{`{"a":1}`: true, `{}`: true, `null`: true, `{"tools":[]}`: false, `{"a":1,"chat_template":"x"}`: false, `[]`: false, `7`: false} {
		body := `{"chat_template_kwargs":` + variables + `,` + plainChat[1:]
		if _, ok := (&Prompt{API: Chat, Body: []byte(body)}).conversation(); ok != want {
			t.Errorf("%s: %v, want %v", variables, ok, want)
		}
	}
}
