package tokens

import (
	"cmp"
	"slices"
	"strings"
)

// marks finds added tokens, such as <|im_start|>, in a text.
type marks struct {
	first [256]bool // bytes that one begins with
	by    [256][]addedToken
}

func newMarks(added []addedToken) *marks {
	m := &marks{}
	for _, t := range added {
		b := t.Content[0]
		m.first[b] = true
		m.by[b] = append(m.by[b], t)
	}
	for b := range m.by { // the longest wins
		slices.SortFunc(m.by[b], func(x, y addedToken) int { return cmp.Compare(len(y.Content), len(x.Content)) })
	}
	return m
}

// next finds the first added token from an offset on: where it is, len(text) if there
// is none.
func (m *marks) next(text string, from int) (at int, token addedToken) {
	for at := from; at < len(text); at++ {
		if !m.first[text[at]] {
			continue
		}
		for _, t := range m.by[text[at]] {
			if strings.HasPrefix(text[at:], t.Content) {
				return at, t
			}
		}
	}
	return len(text), addedToken{}
}

// split calls plain with the text between added tokens and mark with each of them.
func (m *marks) split(text string, plain func(string), mark func(uint32)) {
	for from := 0; from < len(text); {
		at, token := m.next(text, from)
		if at > from {
			plain(text[from:at])
		}
		if token.Content == "" {
			return
		}
		mark(token.ID)
		from = at + len(token.Content)
	}
}
