package tokens

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// appendText appends the tokens of a text. Added tokens in it are found, as engines do
// for prompts of completions and for rendered templates. Text between them is encoded
// by itself, so it can be remembered: cache may be nil.
func (v *vocabulary) appendText(ids []uint32, text string, cache *pieces) ([]uint32, error) {
	var failed error
	v.added.split(text, func(plain string) {
		if failed != nil {
			return
		}
		if known, ok := cache.get(plain); ok {
			ids = append(ids, known...)
			return
		}
		from := len(ids)
		ids, failed = v.appendPlain(ids, plain)
		if failed == nil {
			cache.put(plain, ids[from:])
		}
	}, func(token uint32) { ids = append(ids, token) })
	return ids, failed
}

// appendPlain appends the tokens of text without added tokens, but for those that are
// found after normalisation.
func (v *vocabulary) appendPlain(ids []uint32, plain string) ([]uint32, error) {
	for _, form := range v.forms {
		plain = form.String(plain)
	}
	var failed error
	v.addedAfter.split(plain, func(part string) {
		if failed != nil {
			return
		}
		if v.space {
			if r, _ := utf8.DecodeRuneInString(part); !unicode.IsSpace(r) {
				part = " " + part
			}
		}
		parts := []string{part}
		for _, re := range v.splits {
			if parts, failed = isolate(re, parts); failed != nil {
				return
			}
		}
		ids = v.merges.appendPieces(ids, parts)
	}, func(token uint32) { ids = append(ids, token) })
	return ids, failed
}

// isolate cuts each part into the pattern's matches and what is between them.
func isolate(re *regexp2.Regexp, parts []string) ([]string, error) {
	out := make([]string, 0, 8*len(parts))
	var runes []rune
	for _, part := range parts {
		runes = append(runes[:0], []rune(part)...)
		done, at := 0, 0 // what was cut off so far, in runes and in bytes
		cut := func(to int) {
			if to == done {
				return
			}
			size := 0
			for _, r := range runes[done:to] {
				size += max(1, utf8.RuneLen(r))
			}
			out = append(out, part[at:at+size])
			done, at = to, at+size
		}
		err := re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
			index, length, _ := m.GroupRange(0)
			cut(index)
			cut(index + length)
			return true
		})
		if err != nil {
			return nil, fmt.Errorf("split: %w", err)
		}
		cut(len(runes))
	}
	return out, nil
}

// valid replaces what is no UTF-8, so that runes and bytes agree.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
