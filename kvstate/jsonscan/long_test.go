package jsonscan

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// longOf is the long values of a text, which has so many.
func longOf(t *testing.T, text []byte, want int) (long Long) {
	t.Helper()
	for _, err := range CheckKnownMembers(text, false, nil, &long) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(long) != want {
		t.Fatalf("%d long strings and lists are found, want %d", len(long), want)
	}
	return long
}

// A walk that knows a text's long values sees what any walk sees, of the text and of its parts, and does not look
// for their ends; of other bytes, equal or not, it knows nothing.
func TestLong_IsTheUsualWalk(t *testing.T) {
	long := func(of string) string { return strings.Repeat(of, longValue/len(of)+1) }
	raw := []byte(fmt.Sprintf(` {"a":"%s","b":[{"c":"%s","d":"short"},"%s",["%s"]],"%s":1,"e":"%s","f":[{"ids":[%s1],"more":[1,[%s0]]}]}`,
		long("word "), strings.Repeat("w", aside)+long(`\"\\`), long("x")+`","`+long("y"), long("deep "), long("key "), strings.Repeat("z", aside), long("12,"), long("3,")))
	known := longOf(t, raw, 8)
	for _, s := range known {
		at := bytes.Index(raw, s)
		if n := known.length(raw[at:]); n != len(s) || !strings.Contains(`"" []`, string([]byte{s[0], s[n-1]})) {
			t.Errorf("the value at %d has %d bytes, of which %d are known", at, len(s), n)
		}
		if n := known.length(bytes.Clone(raw[at:])); n != 0 {
			t.Errorf("of a copy %d bytes are known", n)
		}
	}
	var walk func(long Long, part []byte) []string
	walk = func(long Long, part []byte) (saw []string) {
		end, err := long.ValueEnd(part, 0)
		saw = append(saw, fmt.Sprint(end, err))
		for m, err := range long.Members(part) {
			saw = append(saw, string(m.Text), fmt.Sprint(err))
			if err == nil {
				saw = append(saw, walk(long, m.Value)...)
			}
		}
		for e, err := range long.Elements(part) {
			saw = append(saw, string(e), fmt.Sprint(err))
			if err == nil {
				saw = append(saw, walk(long, e)...)
			}
		}
		return saw
	}
	want := walk(nil, raw)
	for name, text := range map[string][]byte{"the text": raw, "a copy": bytes.Clone(raw)} {
		if got := walk(known, text); !slices.Equal(got, want) {
			t.Errorf("%s is walked otherwise", name)
		}
	}
	end, err := known.ValueEnd(raw[:len(raw)/4], bytes.Index(raw, known[0]))
	if wantEnd, wantErr := ValueEnd(raw[:len(raw)/4], bytes.Index(raw, known[0])); end != wantEnd || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Errorf("cut, it ends at %d, %v; want %d, %v", end, err, wantEnd, wantErr)
	}
}

// A cursor in a text that was checked goes past its long values, and shows what is left of it.
func TestLong_Cursor(t *testing.T) {
	value := `"` + strings.Repeat("a", longValue) + `"`
	text := []byte(`{"long": ` + value + `, "list":[1, {"a\"b":2}]}`)
	c := longOf(t, text, 1).Cursor(text)
	var seen []string
	for more := c.Enter('{'); more; more = c.More('}') {
		seen = append(seen, string(c.Key()))
		c.Next()
		rest := len(c.Rest())
		seen = append(seen, fmt.Sprint(len(c.Value()), rest-len(c.Rest())))
	}
	want := []string{"long", fmt.Sprint(len(value), len(value)), "list", "15 15"}
	if err := c.End(); err != nil || !slices.Equal(seen, want) {
		t.Errorf("%q, %v, want %q", seen, err, want)
	}
}
