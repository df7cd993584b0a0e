package jsonscan

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

func isPlain(text []byte) bool {
	_, plain := Sum(text)
	return plain
}

// A text is plain unless a byte of it, wherever it stands, is a control character or beyond ASCII.
func TestSum_SaysWhatisPlain(t *testing.T) {
	for length := range 200 {
		text := slices.Repeat([]byte{' '}, length)
		if !isPlain(text) {
			t.Errorf("%d blanks are not plain", length)
		}
		for i := range text {
			for c := range 256 {
				text[i] = byte(c)
				if isPlain(text) != (c >= ' ' && c < 0x80) {
					t.Errorf("byte %#x at %d of %d: plain is %v", c, i, length, isPlain(text))
				}
			}
			text[i] = '~'
		}
	}
}

// Texts that differ by a bit, by their length alone, or by the order of their words have other hashes.
func TestSum_TellsTextsApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[uint64]string{}
	note := func(text []byte) {
		sum, _ := Sum(text)
		if other, known := seen[sum]; known && other != string(text) {
			t.Fatalf("%q and %q have the same hash", other, text)
		}
		seen[sum] = string(text)
	}
	for _, length := range []int{0, 1, 7, 63, 64, 65, 127, 128, 200} {
		note(make([]byte, length))
		text := make([]byte, length)
		for i := range text {
			text[i] = byte(' ' + rng.IntN(95))
		}
		note(text)
		for bit := range 8 * length {
			text[bit/8] ^= 1 << (bit % 8)
			note(text)
			text[bit/8] ^= 1 << (bit % 8)
		}
		for from := 0; from+16 <= length; from += 8 {
			swapped := slices.Concat(text[:from], text[from+8:from+16], text[from:from+8], text[from+16:])
			note(swapped)
		}
		if length == 128 {
			note(slices.Concat(text[64:], text[:64]))
		}
	}
}

func BenchmarkSum220KB(b *testing.B) {
	text := bytes.Repeat([]byte("of the sea and "), 220_000/15)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Sum(text)
	}
}

// A plain text has the members that any text has, or is refused alike.
func FuzzCheckKnownMembers(f *testing.F) {
	for _, text := range []string{`{"a":[1,{"b":"x\"y\u00e9"}],"c":"d"}`, `{"a":"b`, `{"a":"\x"}`, `{} `, `[1]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !isPlain(text) {
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
		plain := all(func(b []byte) func(func(Member, error) bool) { return CheckKnownMembers(b, true, nil, nil) })
		if usual := all(func(b []byte) func(func(Member, error) bool) { return CheckMembers(b) }); !slices.Equal(plain, usual) {
			t.Errorf("%q: %v, otherwise %v", text, plain, usual)
		}
	})
}
