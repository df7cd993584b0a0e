package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
)

// tokensOf are the tokens of a JSON text in their order, numbers by their value as Python reads
// them; false where a key is there twice.
func tokensOf(t testing.TB, text string) (out []string, ok bool) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var keys []map[string]bool // of the objects around
	isKey := false
	for {
		token, err := d.Token()
		if err == io.EOF {
			return out, true
		}
		if err != nil {
			t.Fatalf("%q is not JSON: %v", text, err)
		}
		within := len(keys) > 0 && keys[len(keys)-1] != nil
		switch token := token.(type) {
		case json.Delim:
			switch token {
			case '{':
				keys = append(keys, map[string]bool{})
			case '[':
				keys = append(keys, nil)
			default:
				keys = keys[:len(keys)-1]
			}
			isKey = len(keys) > 0 && keys[len(keys)-1] != nil
			out = append(out, token.String())
			continue
		case json.Number:
			out = append(out, numberText(token.String()))
		case string:
			if within && isKey {
				if keys[len(keys)-1][token] {
					return nil, false
				}
				keys[len(keys)-1][token] = true
			}
			out = append(out, "s"+token)
		default:
			out = append(out, fmt.Sprint(token))
		}
		isKey = within && !isKey
	}
}

func numberText(s string) string {
	if n, ok := new(big.Int).SetString(s, 10); ok {
		return n.String()
	}
	f, err := json.Number(s).Float64()
	return fmt.Sprintf("f%v%v", f, err)
}

// What is read and written again is the same JSON: equal tokens in equal order, whatever the form
// that is asked for; and writing is Python's, so that a second time changes nothing.
func FuzzTojson_KeepsValuesAndOrder(f *testing.F) {
	text, _ := readCases(f)
	for _, s := range []string{text, `{"b":[1,2.50,-0.0,1e400],"a":"\ud83d\ude00<>&'\u2028\u007f"}`, `[]`, `{"":{}}`, `-1e-7`, `"\/"`, `12345678901234567890`, `[1E400,0e0,1e22,1e15]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseJSON([]byte(text))
		if err != nil {
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%q is read, and is not JSON", text)
		}
		want, once := tokensOf(t, text)
		for _, args := range []arguments{
			{}, {named: []pair{{"indent", int64(2)}}}, {named: []pair{{"ensure_ascii", true}}},
			{named: []pair{{"separators", NewList(",", ":")}}},
		} {
			out, err := tojson(&render{out: new(strings.Builder)}, v, args)
			if err != nil {
				t.Fatalf("%q is read and not written: %v", text, err)
			}
			written := out.(string)
			if strings.Contains(written, "Infinity") { // Python's, and no JSON
				return
			}
			got, _ := tokensOf(t, written)
			if once && !slices.Equal(got, want) {
				t.Fatalf("%q is written as %q", text, written)
			}
			again, err := ParseJSON([]byte(written))
			if err != nil {
				t.Fatalf("%q is written as %q, which is not read: %v", text, written, err)
			}
			if second, _ := tojson(&render{out: new(strings.Builder)}, again, args); second != written {
				t.Fatalf("%q is written as %q, then as %q", text, written, second)
			}
			if args.named != nil && args.named[0].key == "ensure_ascii" && bytes.ContainsFunc([]byte(written), func(r rune) bool { return r > 0x7e }) {
				t.Fatalf("%q is beyond ASCII", written)
			}
		}
	})
}

// A string is what encoding/json reads, wherever its escapes stand, and takes no more room than
// its text has; one that does not end is refused.
func TestParseJSON_StringsWithEscapes(t *testing.T) {
	parts := []string{``, `a`, `\\`, `\"`, `\n`, `\u00e9`, `\ud83d\ude00`, `größer`, `\/`}
	for _, a := range parts {
		for _, b := range parts {
			for _, c := range parts {
				text := `"` + a + b + c + `"`
				var want string
				if err := json.Unmarshal([]byte(text), &want); err != nil {
					t.Fatal(err)
				}
				if got, err := ParseJSON([]byte(`[` + text + `,"\"next"]`)); err != nil || got.(*List).Items[0] != want || got.(*List).Items[1] != `"next` {
					t.Errorf("%s: %q, %v, want %q", text, got, err, want)
				}
				if got, err := ParseJSON([]byte(text[:len(text)-1])); err == nil {
					t.Errorf("%s without its end: %q", text, got)
				}
			}
		}
	}
	long := `"` + strings.Repeat(`say \"no\"\n`, 10_000) + `"`
	if got := testing.AllocsPerRun(10, func() { _, _ = ParseJSON([]byte(long)) }); got > 4 {
		t.Errorf("a long string with escapes takes %v allocations", got)
	}
}
