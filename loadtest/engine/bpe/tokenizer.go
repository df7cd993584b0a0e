// Package bpe is a byte-level byte-pair encoding: a tokenizer of our own for the
// simulated engine.
//
// A token is a run of bytes. Tokens 0..255 are the single bytes, each later token
// joins two earlier ones, and a few special tokens at the end stand for no bytes.
// Text is not cut into words first, so tokens cross word boundaries (" of the" is
// one token) and a prefix of a text is not, in general, a prefix of its tokens.
// That is how real tokenizers surprise a gateway, so ours does too.
package bpe

import (
	"fmt"
	"strings"
)

// byteTokens is the number of tokens that are a single byte.
const byteTokens = 256

// Merge joins two tokens into the next free token.
type Merge struct{ Left, Right int32 }

// Tokenizer turns text into tokens and back. What it makes never changes, and several
// goroutines may use it at once.
type Tokenizer struct {
	text     []string // bytes of each token; empty for a special one
	special  map[string]int32
	specials []string // names, the first has id firstSpecial
	merges   []Merge  // merges[r] makes token byteTokens+r
	ranks    pairTable

	encodings encodings
	memory    memory // of long texts
}

// New makes a tokenizer of the single bytes, the merges in their order, and the
// special tokens after them. A merge of a token that does not exist yet is an error.
func New(merges []Merge, specials []string) (*Tokenizer, error) {
	t := &Tokenizer{
		special:  make(map[string]int32, len(specials)),
		specials: specials,
		merges:   merges,
		ranks:    newPairTable(len(merges)),
	}
	for b := range byteTokens {
		t.text = append(t.text, string([]byte{byte(b)}))
	}
	for rank, m := range merges {
		next := int32(len(t.text))
		if m.Left < 0 || m.Left >= next || m.Right < 0 || m.Right >= next {
			return nil, fmt.Errorf("merge %d joins %d and %d, but only %d tokens exist", rank, m.Left, m.Right, next)
		}
		t.ranks.put(m.Left, m.Right, int32(rank))
		t.text = append(t.text, t.text[m.Left]+t.text[m.Right])
	}
	for _, name := range specials {
		t.special[name] = int32(len(t.text))
		t.text = append(t.text, "")
	}
	return t, nil
}

// Size is the number of tokens; ids are 0..Size()-1.
func (t *Tokenizer) Size() int { return len(t.text) }

// Special is the id of a special token.
func (t *Tokenizer) Special(name string) (id int32, ok bool) {
	id, ok = t.special[name]
	return id, ok
}

// Name is how a token is shown to a reader: a special token's name, else its bytes.
func (t *Tokenizer) Name(id int32) string {
	if first := t.firstSpecial(); id >= first && int(id-first) < len(t.specials) {
		return t.specials[id-first]
	}
	return t.Text(id)
}

// Text is the bytes of one token: empty for a special or unknown token.
func (t *Tokenizer) Text(id int32) string {
	if id < 0 || int(id) >= len(t.text) {
		return ""
	}
	return t.text[id]
}

// Decode joins the bytes of tokens. Special and unknown tokens add nothing; the
// result may end within a UTF-8 character.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(t.Text(id))
	}
	return b.String()
}

// EncodeMarked is Encode for text in which the names of special tokens stand for
// these tokens, as in a rendered chat template.
func (t *Tokenizer) EncodeMarked(text string) []int32 {
	var ids []int32
	for text != "" {
		at, name := t.nextSpecial(text)
		ids = append(ids, t.Encode(text[:at])...)
		if name == "" {
			return ids
		}
		ids = append(ids, t.special[name])
		text = text[at+len(name):]
	}
	return ids
}

// nextSpecial finds the first special token's name in text: its offset and name,
// or len(text) and "" when there is none. All names begin with "<|".
func (t *Tokenizer) nextSpecial(text string) (at int, name string) {
	for from := 0; ; {
		i := strings.Index(text[from:], "<|")
		if i < 0 {
			return len(text), ""
		}
		at = from + i
		for _, name := range t.specials {
			if strings.HasPrefix(text[at:], name) {
				return at, name
			}
		}
		from = at + len("<|")
	}
}

// Adjacent says whether tokens a, b stay as they are when the text of both is
// encoded again. A run of tokens re-encodes to itself exactly when every
// neighbouring pair does.
func (t *Tokenizer) Adjacent(a, b int32) bool {
	if t.Text(a) == "" || t.Text(b) == "" {
		return true // special tokens never merge
	}
	ids := t.Encode(t.text[a] + t.text[b])
	return len(ids) == 2 && ids[0] == a && ids[1] == b
}

func (t *Tokenizer) firstSpecial() int32 { return int32(byteTokens + len(t.merges)) }
