package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseBody_RefusesWhatParsersDisagreeOn(t *testing.T) {
	for name, raw := range map[string]string{
		"empty":              ``,
		"blank":              "  \n",
		"array":              `[1]`,
		"string":             `"x"`,
		"trailing comma":     `{"a":1,}`,
		"trailing data":      `{"a":1} {"b":2}`,
		"duplicate":          `{"model":"a","model":"b"}`,
		"duplicate escaped":  `{"model":"a","mod\u0065l":"b"}`,
		"raw newline":        "{\"a\":\"x\ny\"}",
		"bad escape":         `{"a":"\x41"}`,
		"short unicode":      `{"a":"\u12"}`,
		"leading zero":       `{"a":01}`,
		"bare minus":         `{"a":-}`,
		"NaN":                `{"a":NaN}`,
		"single quotes":      `{'a':1}`,
		"comment":            `{"a":1/*x*/}`,
		"invalid UTF-8":      "{\"a\":\"\xff\"}",
		"unterminated":       `{"a":"`,
		"100,000 brackets":   `{"a":` + strings.Repeat("[", 100_000),
		"100,000 both sides": `{"a":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`,
		"many fields":        manyFields(maxFields + 1),
	} {
		if b, err := ParseBody([]byte(raw)); err == nil {
			t.Errorf("%s: accepted with keys %v", name, b.Keys())
		}
	}
}

// Text is UTF-8 where utf8.Valid says so, wherever in it a byte beyond ASCII stands.
func FuzzIsUTF8(f *testing.F) {
	for _, text := range []string{"", "a", "\xff", strings.Repeat("a", 31) + "\u00e9", strings.Repeat("a", 32) + "\xe6\x97", strings.Repeat("ab\u65e5 ", 20), "\xed\xa0\x80"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, want := isUTF8(text), utf8.Valid(text); got != want {
			t.Fatalf("%q: %v", text, got)
		}
	})
}

func TestIsUTF8_AtEveryPlace(t *testing.T) {
	for n := range 100 {
		for at := range n {
			for _, odd := range []string{"\u00e9", "\u65e5", "\U0001f600", "\xff", "\xe6\x97", "\x80"} {
				text := append(bytes.Repeat([]byte("a"), at), odd...)
				text = append(text, bytes.Repeat([]byte("b"), n-at)...)
				if got, want := isUTF8(text), utf8.Valid(text); got != want {
					t.Fatalf("%q: %v", text, got)
				}
			}
		}
	}
}

// The budget is 30 us for 220 KB, with or without some characters beyond ASCII.
func BenchmarkIsUTF8(b *testing.B) {
	for name, text := range map[string]string{"ASCII": strings.Repeat("abcdefghij", 22_000), "quotes": strings.Repeat(strings.Repeat("abcdefghij", 20)+"\u2019", 1100)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for raw := []byte(text); b.Loop(); {
				isUTF8(raw)
			}
		})
	}
}

func manyFields(n int) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(`"k` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/26) + `":1`)
	}
	return b.String() + "}"
}

func TestBodyWith_KeepsEveryOtherByte(t *testing.T) {
	raw := `{ "seed" : 9007199254740993, "messages":[{"content":"a\u003cb/\/é","role":"user"}], "stream":true ,"x":{"b":1,"a":2}}`
	body, err := ParseBody([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	got := body.With(Remove("stream"), Set("max_tokens", []byte("1")), Set("x", []byte("null")), Set("max_tokens", []byte("2")))
	want := `{"seed" : 9007199254740993,"messages":[{"content":"a\u003cb/\/é","role":"user"}],"x":null,"max_tokens":2}`
	if string(got.Bytes()) != want {
		t.Errorf("got  %s\nwant %s", got.Bytes(), want)
	}
	if n, ok := got.Get("max_tokens").Int(); !ok || n != 2 {
		t.Errorf("the new body reads max_tokens as %d, %v", n, ok)
	}
}

// A value in parts is that value, wherever the long ones stand, and they are sent from where they lie.
func TestBodyWith_LongPartsAreNotCopied(t *testing.T) {
	long, other := bytes.Repeat([]byte("12345,"), longPart), bytes.Repeat([]byte{'7'}, longPart)
	short := func(text string) []byte { return []byte(text) }
	inner, err := ParseBody([]byte(`{"remote_host":"a","ids":null}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := ParseBody([]byte(`{"model":"m","prompt":"hi","n":1}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, parts := range map[string][][]byte{
		"short":        {short("["), short("1,2"), short("]")},
		"first":        {other},
		"in between":   {short("["), long, other, short("]")},
		"two of three": {short("["), long, short("8,"), other, short("]")},
	} {
		value := bytes.Join(parts, nil)
		nested := inner.With(SetParts("ids", parts...))
		kept := body.With(SetParts("prompt", parts...), SetBody("params", nested), SetParts("more", parts...))
		copied := body.With(Set("prompt", value), Set("params", inner.With(Set("ids", value)).Bytes()), Set("more", value))
		kept, copied = kept.With(Set("n", short("2"))), copied.With(Set("n", short("2")))
		if !bytes.Equal(kept.Bytes(), copied.Bytes()) || kept.Len() != len(copied.Bytes()) || kept.Sum() != copied.Sum() {
			t.Errorf("%s: %.60s and %.60s differ", name, kept.Bytes(), copied.Bytes())
		}
		if got := kept.Get("prompt"); !bytes.Equal(got, value) {
			t.Errorf("%s: the value is %.60s", name, got)
		}
		if got, want := kept.WithoutText(), copied.WithoutText(); !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%s: without text %.60s", name, got.Bytes())
		}
		for _, part := range parts {
			sent := 0
			for piece := range kept.Parts() {
				if len(piece) > 0 && &piece[0] == &part[0] {
					sent++
				}
			}
			if isLong := len(part) >= longPart; isLong != (sent == 3) {
				t.Errorf("%s: a part of %d bytes is sent from where it lies %d times", name, len(part), sent)
			}
		}
	}
}

func TestBodyWith_CanEmptyTheObject(t *testing.T) {
	body, _ := ParseBody([]byte(`{"a":1}`))
	if got := string(body.With(Remove("a")).Bytes()); got != "{}" {
		t.Errorf("got %s", got)
	}
}

func TestValueArray(t *testing.T) {
	for raw, want := range map[string]int{`[]`: 0, `[ ]`: 0, `["a", "b"]`: 2, `[[1,2],[3]]`: 2, `[1 , 2,3 ]`: 3} {
		if got, ok := Value(raw).Array(); !ok || len(got) != want {
			t.Errorf("%s: %d elements, %v", raw, len(got), ok)
		}
	}
	if _, ok := Value(`{"a":1}`).Array(); ok {
		t.Error("an object passed for an array")
	}
}

// The members of an object in a body come with their keys as they mean and their values as they stand.
func TestValueMembers(t *testing.T) {
	for raw, want := range map[string]string{
		`{"a":1,"\u0062" : [2 ] ,"a":"3"}`: `a=1 b=[2 ] a="3" `, `{}`: "", `[1]`: "", `"x"`: "", ``: "", `{"a":1`: "a=1 ",
	} {
		got := ""
		for key, value := range Value(raw).Members() {
			got += key + "=" + string(value) + " "
		}
		if got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
	for key := range Value(`{"a":1,"b":2}`).Members() {
		if key != "a" {
			t.Error("it goes on behind its end")
		}
		break
	}
}

// Ids are whole numbers of any length, and the white space between them says nothing.
func TestCompactIDs(t *testing.T) {
	for list, want := range map[string]string{
		"1,2,30": "1,2,30", "0": "0", " 1 ,\t2,\r\n3 ": "1,2,3", "99999999999999999999": "99999999999999999999",
		"": "", " ": "", "1 2": "", "1,,2": "", "1,": "", ",1": "", "01": "", "1, 02": "", "-1": "", "1.5": "", "1e3, 2": "", "[1], [2]": "", "1],[2": "", `"1"`: "", `"1", 2`: "", "null": "",
	} {
		if got, ok := CompactIDs([]byte(list)); string(got) != want && ok || ok != (want != "") {
			t.Errorf("%q: %q, %v", list, got, ok)
		}
	}
}

// A member is the first of its name among the object's own.
func TestValueMember(t *testing.T) {
	for raw, want := range map[string]string{
		`{"b":{"a":1},"a" : [2 ] ,"a":3}`: "[2 ]", `{"ab":1,"b":"a"}`: "", `{}`: "", `["a"]`: "", ``: "", `{"a":1`: "1", `{"b":1`: "",
	} {
		if got := Value(raw).Member("a"); string(got) != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

func TestValueIsEmptyArray(t *testing.T) {
	for raw, want := range map[string]bool{`[]`: true, "[ \n]": true, `[1]`: false, `[[]]`: false, `{}`: false, ``: false, `[`: false, `" ]"`: false} {
		if got := Value(raw).IsEmptyArray(); got != want {
			t.Errorf("%q: %v", raw, got)
		}
	}
}

// The oracle is encoding/json: what it refuses we refuse, and what we accept
// reads the same.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":1}`, `{"a":"\ud800","b":[1,2,{"c":null}]}`, `{"a":1e5,"b":-0.5E-2}`, "{\"a\":\"\x7f\"}",
		`{"kv\u005ftransfer_params":{}}`, `{"long":"` + strings.Repeat("x", 100) + `\n"}`,
	} {
		f.Add([]byte(seed), "a")
	}
	f.Fuzz(func(t *testing.T, raw []byte, key string) {
		body, err := ParseBody(raw)
		var oracle map[string]json.RawMessage
		oracleErr := json.Unmarshal(raw, &oracle)
		if err == nil && oracleErr != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", oracleErr)
		}
		if err != nil {
			return
		}
		if len(oracle) != len(body.Keys()) {
			t.Fatalf("%d keys, encoding/json sees %d", len(body.Keys()), len(oracle))
		}
		for k, v := range oracle {
			if !bytes.Equal(bytes.TrimSpace(v), body.Get(k)) {
				t.Fatalf("field %q: %s, encoding/json sees %s", k, body.Get(k), v)
			}
		}
		if !utf8.ValidString(key) {
			return // keys that Tandem edits are its own, written in ASCII
		}
		edited := body.With(Set(key, []byte(`"new"`)))
		again, err := ParseBody(edited.Bytes())
		if err != nil {
			t.Fatalf("the edit broke the body: %v\n%s", err, edited.Bytes())
		}
		if sent := slices.Concat(slices.Collect(edited.Parts())...); !bytes.Equal(sent, edited.Bytes()) || len(sent) != edited.Len() || !bytes.Equal(edited.Source(), raw) {
			t.Fatalf("sent as %d bytes of %d", len(sent), edited.Len())
		}
		if s, _ := again.Get(key).String(); s != "new" {
			t.Fatalf("edited field reads %q", s)
		}
	})
}

// Budget (2-core VM): 2 us, whatever the length of the body: it is held once.
func BenchmarkBodyWith512KB(b *testing.B) {
	body, err := ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("lorem ipsum ", 512*1024/12) + `"}],"stream":true}`))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if body.With(Set("stream", []byte("false")), Set("max_tokens", []byte("1"))).Len() == 0 {
			b.Fatal("empty")
		}
	}
}

// Budget (2-core VM): 512 KB of chat in <= 100 us with no allocation in
// proportion to the body; encoding/json into a map takes about 2 ms.
func BenchmarkParseBody512KB(b *testing.B) {
	raw := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("lorem ipsum ", 512*1024/12) + `"}],"stream":true}`)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseBody(raw); err != nil {
			b.Fatal(err)
		}
	}
}

// A value is read as what it is, and as nothing else.
func TestValue_IsReadAsWhatItIs(t *testing.T) {
	type reading struct {
		text   string
		isText bool
		number int64
		isInt  bool
		truth  bool
		isBool bool
		null   bool
		list   bool
	}
	for raw, want := range map[string]reading{
		``:            {null: true},
		`null`:        {null: true},
		`"hi"`:        {text: "hi", isText: true},
		`"\n"`:        {text: "\n", isText: true},
		`"`:           {},
		`0`:           {isInt: true},
		`9`:           {number: 9, isInt: true},
		`-3`:          {number: -3, isInt: true},
		`1.5`:         {},
		`1e2`:         {},
		`-`:           {},
		`+3`:          {},
		`:`:           {},
		`"7"`:         {text: "7", isText: true},
		`true`:        {truth: true, isBool: true},
		`false`:       {isBool: true},
		`[`:           {list: true},
		`[1,2]`:       {list: true},
		`{"a":[1,2]}`: {},
	} {
		v := Value(raw)
		var got reading
		got.text, got.isText = v.String()
		got.number, got.isInt = v.Int()
		got.truth, got.isBool = v.Bool()
		got.null, got.list = v.Null(), v.IsArray()
		if got.isText != want.isText {
			got.text = ""
		}
		if got != want {
			t.Errorf("%s is read as %+v, want %+v", raw, got, want)
		}
	}
	if _, ok := Value(`[1,`).Array(); ok {
		t.Error("a list that is cut off is read")
	}
	for raw, want := range map[string]bool{`{"a":1}`: true, `[1]`: false, ``: false, `{"a":1`: false} {
		if _, ok := Value(raw).Object(); ok != want {
			t.Errorf("%s is an object: %v", raw, ok)
		}
	}
}

// Each field is kept, changed or removed as it is said of it, and nothing else is touched.
func TestBodyRewrite_ChangesWhatItIsTold(t *testing.T) {
	const text = `{ "keep" : 1 , "change" : 2, "drop":3 }`
	body, err := ParseBody([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	same := body.Rewrite(func(_ string, v Value) Value { return v })
	if string(same.Bytes()) != text || same.Edited() {
		t.Errorf("kept as it is it becomes %s, edited %v", same.Bytes(), same.Edited())
	}
	changed := body.Rewrite(func(key string, v Value) Value {
		switch key {
		case "change":
			return Value(`"x"`)
		case "drop":
			return nil
		}
		return v
	})
	if !changed.Edited() || string(changed.Get("keep")) != "1" || string(changed.Get("change")) != `"x"` || changed.Get("drop") != nil || len(changed.Keys()) != 2 {
		t.Errorf("it becomes %s", changed.Bytes())
	}
}

// Bodies have the same sum where they are the same, and another where a byte, a field or an edit differs.
func TestBody_Sum(t *testing.T) {
	const whole = `{"model":"m","messages":[{"role":"user","content":"hello"}],"n":1}`
	parsed := func(raw string) Body {
		b, err := ParseBody([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := parsed(whole)
	sums := map[uint64]string{}
	for name, other := range map[string]Body{
		"as it came":         b,
		"another byte":       parsed(strings.Replace(whole, "hello", "hallo", 1)),
		"a field more":       b.With(Set("cache_salt", []byte(`"a"`))),
		"another value":      b.With(Set("cache_salt", []byte(`"b"`))),
		"another field":      b.With(Set("cache_sale", []byte(`"a"`))),
		"a field changed":    b.With(Set("n", []byte(`2`))),
		"a field less":       b.With(Remove("n")),
		"without its text":   b.WithoutText(),
		"rewritten":          b.Rewrite(func(_ string, v Value) Value { return append(Value{' '}, v...) }),
		"changed, then more": parsed(whole).With(Set("n", []byte(`2`))).With(Set("cache_salt", []byte(`"a"`))),
	} {
		if same, known := sums[other.Sum()]; known {
			t.Errorf("%s and %s have the same sum", same, name)
		}
		sums[other.Sum()] = name
	}
	for name, again := range map[string]Body{"as it came": parsed(whole), "a field more": parsed(whole).With(Set("cache_salt", []byte(`"a"`)))} {
		if sums[again.Sum()] != name {
			t.Errorf("%s has another sum when it comes again", name)
		}
	}
}

// A key reads the same by a cursor as by a walk over members and in a body: usual or not, escaped, empty, or with bytes
// that are no text.
func TestCursor_KeysAreThoseOfMembers(t *testing.T) {
	object := Value("{\"model\":1,\"\":2,\"an_unusual_key\":3,\"q\\u0075oted\\\"\":4,\"gr\u00fcn\":5,\"\xff\":6}")
	var walked, read []string
	for key := range object.Members() {
		walked = append(walked, key)
	}
	c := object.CursorOf(nil)
	for more := c.Enter('{'); more; more = c.More('}') {
		read = append(read, c.Key())
		c.Value()
	}
	want := []string{"model", "", "an_unusual_key", `quoted"`, "gr\u00fcn", "\ufffd"}
	if !slices.Equal(walked, want) || !slices.Equal(read, want) {
		t.Errorf("members are %q, a cursor reads %q, want %q", walked, read, want)
	}
}
