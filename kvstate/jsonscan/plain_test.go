package jsonscan

import (
	"slices"
	"testing"
)

// A text is plain unless a byte of it, wherever it stands, is a control character or beyond ASCII.
func TestIsPlain(t *testing.T) {
	for length := range 200 {
		text := slices.Repeat([]byte{' '}, length)
		if !IsPlain(text) {
			t.Errorf("%d blanks are not plain", length)
		}
		for i := range text {
			for c := range 256 {
				text[i] = byte(c)
				if IsPlain(text) != (c >= ' ' && c < 0x80) {
					t.Errorf("byte %#x at %d of %d: plain is %v", c, i, length, IsPlain(text))
				}
			}
			text[i] = '~'
		}
	}
}

// A plain text has the members that any text has, or is refused alike.
func FuzzCheckKnownMembers(f *testing.F) {
	for _, text := range []string{`{"a":[1,{"b":"x\"y\u00e9"}],"c":"d"}`, `{"a":"b`, `{"a":"\x"}`, `{} `, `[1]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !IsPlain(text) {
			return
		}
		type seen struct{ text, err string }
		all := func(members func([]byte) func(func(Member, error) bool)) (saw []seen) {
			members(text)(func(m Member, err error) bool {
				s := seen{text: string(m.Text)}
				if err != nil {
					s.err = err.Error()
				}
				saw = append(saw, s)
				return true
			})
			return saw
		}
		plain := all(func(b []byte) func(func(Member, error) bool) { return CheckKnownMembers(b, true) })
		if usual := all(func(b []byte) func(func(Member, error) bool) { return CheckMembers(b) }); !slices.Equal(plain, usual) {
			t.Errorf("%q: %v, otherwise %v", text, plain, usual)
		}
	})
}
