package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"
)

// vocabulary is a tokenizer.json of Hugging Face's tokenizers that is a byte-level BPE:
// those of Llama 3 and later, Qwen, DeepSeek, Mistral's newer models, gpt-oss, GPT-2.
// What it cannot do exactly it refuses to load.
type vocabulary struct {
	added      *marks      // found before normalisation
	addedAfter *marks      // found after it
	forms      []norm.Form // normalisation, in order
	splits     []*regexp2.Regexp
	space      bool // a space goes before text that does not begin with one
	merges     merges
	prefix     []uint32 // around a prompt with special tokens
	suffix     []uint32
}

// tokenizerFile is the JSON of a tokenizer.json.
type tokenizerFile struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         struct {
		Type          string            `json:"type"`
		Dropout       *float64          `json:"dropout"`
		SubwordPrefix *string           `json:"continuing_subword_prefix"`
		WordSuffix    *string           `json:"end_of_word_suffix"`
		ByteFallback  bool              `json:"byte_fallback"`
		IgnoreMerges  bool              `json:"ignore_merges"`
		Vocab         map[string]uint32 `json:"vocab"`
		Merges        []mergedPair      `json:"merges"`
	} `json:"model"`
}

type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// mergedPair is "left right" or ["left", "right"].
type mergedPair [2]string

func (p *mergedPair) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '[' {
		return json.Unmarshal(raw, (*[2]string)(p))
	}
	var one string
	if err := json.Unmarshal(raw, &one); err != nil {
		return err
	}
	var ok bool
	if p[0], p[1], ok = strings.Cut(one, " "); !ok {
		return fmt.Errorf("the merge %q is no pair", one)
	}
	return nil
}

// errUnsupported is what a tokenizer needs and is not here.
var errUnsupported = errors.New("not supported")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errUnsupported)
}

func loadVocabulary(path string) (*vocabulary, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	v, err := parseVocabulary(raw)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	return v, nil
}

func parseVocabulary(raw []byte) (*vocabulary, error) {
	var file tokenizerFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, err
	}
	m := &file.Model
	switch {
	case m.Type != "BPE":
		return nil, unsupported("model %q", m.Type)
	case m.Dropout != nil && *m.Dropout != 0, m.ByteFallback,
		m.SubwordPrefix != nil && *m.SubwordPrefix != "", m.WordSuffix != nil && *m.WordSuffix != "":
		return nil, unsupported("a BPE with dropout, byte fallback, prefixes or suffixes")
	}
	v := &vocabulary{}
	if err := v.merges.load(m.Vocab, m.Merges, m.IgnoreMerges); err != nil {
		return nil, err
	}
	var before, after []addedToken
	for _, t := range file.AddedTokens {
		if t.SingleWord || t.LStrip || t.RStrip || t.Content == "" {
			return nil, unsupported("the added token %q, with its neighbours", t.Content)
		}
		if t.Normalized {
			after = append(after, t)
		} else {
			before = append(before, t)
		}
	}
	v.added, v.addedAfter = newMarks(before), newMarks(after)
	for _, step := range []struct {
		raw  json.RawMessage
		load func(json.RawMessage) error
	}{{file.Normalizer, v.loadNormalizer}, {file.PreTokenizer, v.loadSplit}, {file.PostProcessor, v.loadFrame}} {
		if err := step.load(step.raw); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// load takes over a vocabulary whose tokens are written in letters that stand for
// bytes.
func (m *merges) load(vocab map[string]uint32, pairs []mergedPair, ignoreMerges bool) error {
	letters := byteLetters()
	byText := make(map[string]uint32, len(vocab))
	seen := 0
	for letter, id := range vocab {
		text, ok := decodeLetters(letter, letters)
		if !ok {
			continue // no text can make it
		}
		byText[text] = id
		if len(text) == 1 {
			m.bytes[text[0]] = id
			seen++
		}
	}
	if seen != 256 {
		return unsupported("a vocabulary with %d of the 256 bytes", seen)
	}
	m.joined = make(map[uint64]joining, len(pairs))
	for rank, p := range pairs {
		left, okLeft := vocab[p[0]]
		right, okRight := vocab[p[1]]
		both, ok := vocab[p[0]+p[1]]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("merge %d joins %q and %q, which are not all in the vocabulary", rank, p[0], p[1])
		}
		m.joined[pairOf(left, right)] = joining{uint32(rank), both}
	}
	if ignoreMerges {
		m.words = byText
	}
	return nil
}

// byteLetters is the alphabet of GPT-2: each byte as a letter that can be seen.
func byteLetters() map[rune]byte {
	letters := make(map[rune]byte, 256)
	hidden := rune(256)
	for b := range 256 {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			letters[rune(b)] = byte(b)
		default:
			letters[hidden] = byte(b)
			hidden++
		}
	}
	return letters
}

func decodeLetters(word string, letters map[rune]byte) (string, bool) {
	text := make([]byte, 0, len(word))
	for _, r := range word {
		b, ok := letters[r]
		if !ok {
			return "", false
		}
		text = append(text, b)
	}
	return string(text), true
}

// steps unpacks a Sequence of the given field, or the one step that raw is.
func steps(raw json.RawMessage, field string) ([]json.RawMessage, error) {
	if !present(raw) {
		return nil, nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	if string(all["type"]) != `"Sequence"` {
		return []json.RawMessage{raw}, nil
	}
	var list []json.RawMessage
	return list, json.Unmarshal(all[field], &list)
}

func (v *vocabulary) loadNormalizer(raw json.RawMessage) error {
	list, err := steps(raw, "normalizers")
	if err != nil {
		return fmt.Errorf("normalizer: %w", err)
	}
	forms := map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}
	for _, step := range list {
		var n struct{ Type string }
		if err := json.Unmarshal(step, &n); err != nil {
			return fmt.Errorf("normalizer: %w", err)
		}
		form, ok := forms[n.Type]
		if !ok {
			return unsupported("normalizer %q", n.Type)
		}
		v.forms = append(v.forms, form)
	}
	return nil
}

// gpt2Split is what a ByteLevel step splits by when it says so.
const gpt2Split = `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func (v *vocabulary) loadSplit(raw json.RawMessage) error {
	list, err := steps(raw, "pretokenizers")
	if err != nil {
		return fmt.Errorf("pre_tokenizer: %w", err)
	}
	for i, step := range list {
		var s struct {
			Type     string
			Pattern  struct{ Regex, String *string }
			Behavior string
			Invert   bool
			Space    bool  `json:"add_prefix_space"`
			UseRegex *bool `json:"use_regex"`
		}
		if err := json.Unmarshal(step, &s); err != nil {
			return fmt.Errorf("pre_tokenizer: %w", err)
		}
		pattern := ""
		switch {
		case s.Type == "Split" && s.Behavior == "Isolated" && !s.Invert && s.Pattern.Regex != nil:
			pattern = *s.Pattern.Regex
		case s.Type == "Split" && s.Behavior == "Isolated" && !s.Invert && s.Pattern.String != nil:
			pattern = regexp2.Escape(*s.Pattern.String)
		case s.Type == "ByteLevel" && i == len(list)-1:
			v.space = s.Space
			if s.UseRegex == nil || *s.UseRegex {
				pattern = gpt2Split
			}
		default:
			return unsupported("pre_tokenizer %s", step)
		}
		if pattern == "" {
			continue
		}
		if v.space && len(v.splits) > 0 {
			return unsupported("a prefix space after a split")
		}
		re, err := regexp2.Compile(pattern)
		if err != nil {
			return fmt.Errorf("pre_tokenizer: %w", err)
		}
		v.splits = append(v.splits, re)
	}
	return nil
}

// loadFrame reads which tokens go around a prompt.
func (v *vocabulary) loadFrame(raw json.RawMessage) error {
	list, err := steps(raw, "processors")
	if err != nil {
		return fmt.Errorf("post_processor: %w", err)
	}
	for _, step := range list {
		var p struct {
			Type   string
			Single []struct {
				SpecialToken *struct{ ID string }
				Sequence     *struct{ ID string }
			}
			Special map[string]struct{ IDs []uint32 } `json:"special_tokens"`
		}
		if err := json.Unmarshal(step, &p); err != nil {
			return fmt.Errorf("post_processor: %w", err)
		}
		switch p.Type {
		case "ByteLevel": // changes offsets only
			continue
		case "TemplateProcessing":
		default:
			return unsupported("post_processor %q", p.Type)
		}
		after := false
		for _, part := range p.Single {
			switch {
			case part.Sequence != nil:
				after = true
			case part.SpecialToken == nil:
				return unsupported("post_processor %s", step)
			case after:
				v.suffix = append(v.suffix, p.Special[part.SpecialToken.ID].IDs...)
			default:
				v.prefix = append(v.prefix, p.Special[part.SpecialToken.ID].IDs...)
			}
		}
	}
	return nil
}
