package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
)

// The eight and thirty-two bytes that a string is read by make no difference: what matters
// in it is seen wherever it stands.
func TestCheck_SeesWhatMattersInAStringAtEveryPlace(t *testing.T) {
	for n := range 80 {
		for at := range n {
			plain := []byte(`["` + strings.Repeat("é", n/2) + strings.Repeat("!", n%2) + `"]`)
			if err := Check(plain); err != nil {
				t.Fatalf("%s: %v", plain, err)
			}
			for _, c := range []byte{0, '\n', 0x1f, '"', '\\'} {
				broken := bytes.Clone(plain)
				broken[len(`["`)+at] = c
				if Check(broken) == nil {
					t.Fatalf("accepted %q", broken)
				}
			}
			for _, c := range []byte{' ', '!', '#', '[', ']', 0x7f, 0x80, 0xa2, 0xdc, 0xff} {
				odd := bytes.Clone(plain)
				odd[len(`["`)+at] = c
				if err := Check(odd); err != nil {
					t.Fatalf("%q: %v", odd, err)
				}
			}
		}
	}
}

func TestCheck_RefusesWhatIsNestedTooDeep(t *testing.T) {
	nested := func(depth int) []byte {
		return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	}
	if err := Check(nested(MaxDepth)); err != nil {
		t.Error(err)
	}
	if Check(nested(MaxDepth+1)) == nil {
		t.Error("one deeper is accepted")
	}
	for _, walk := range []iter.Seq2[[]byte, error]{Elements(nested(MaxDepth + 1)), Elements(nested(100_000))} {
		if _, err := collect(walk); err == nil {
			t.Error("the elements of what is too deep come without an error")
		}
	}
}

func TestMembers_SharesTheBytesAsTheyCame(t *testing.T) {
	text := ` { "a\u0062" : [1 , 2], "c":null ,"":"}" } `
	var got []string
	for m, err := range Members([]byte(text)) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s|%s|%s", m.Key, m.Value, m.Text))
	}
	want := []string{`a\u0062|[1 , 2]|"a\u0062" : [1 , 2]`, `c|null|"c":null`, `|"}"|"":"}"`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMembers_StopWhereTheCallerDoes(t *testing.T) {
	seen := 0
	for _, err := range Members([]byte(`{"a":1,"b":2,"c":tru}`)) {
		if err != nil {
			t.Fatal(err)
		}
		if seen++; seen == 2 {
			break
		}
	}
	if seen != 2 {
		t.Errorf("%d members", seen)
	}
}

func TestMembersAndElements_SayWhatIsWrongLast(t *testing.T) {
	for _, text := range []string{``, `1`, `[]`, `{`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1]`, `{"a":1}x`, `{,}`, `{"a":1 "b":2}`} {
		for _, walk := range []iter.Seq2[Member, error]{Members([]byte(text)), CheckMembers([]byte(text))} {
			if _, err := collect(walk); err == nil {
				t.Errorf("the members of %s come without an error", text)
			}
		}
	}
	for _, text := range []string{``, `1`, `{}`, `[`, `[1`, `[1,]`, `[,1]`, `[1}`, `[1]x`, `[1 2]`, `["]`} {
		if _, err := collect(Elements([]byte(text))); err == nil {
			t.Errorf("the elements of %s come without an error", text)
		}
	}
}

func TestValueEnd_MoreMayFollow(t *testing.T) {
	for text, want := range map[string]int{`x"a":{"b":[1]},`: 4, `x {"a":"}"}]`: 11, `x-1.5e3,`: 7, `xtrue]`: 5} {
		if end, err := ValueEnd([]byte(text), 1); err != nil || end != want {
			t.Errorf("%s ends at %d, %v, want %d", text, end, err, want)
		}
	}
	for _, text := range []string{``, `x`, `x,`, `x"`, `x{`, `xtru`} {
		if end, err := ValueEnd([]byte(text), min(1, len(text))); err == nil {
			t.Errorf("%q ends at %d", text, end)
		}
	}
}

// collect is all of a walk.
func collect[T any](walk iter.Seq2[T, error]) (all []T, err error) {
	for one, failed := range walk {
		if err = failed; err == nil {
			all = append(all, one)
		}
	}
	return all, err
}

// The oracle is encoding/json: what is accepted it accepts, and reads the same; what it
// accepts is refused for its depth only.
func FuzzWalk(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `{"a":1}`, `{"a":"\ud800","b":[1,2,{"c":null}]}`, `{"a":1e5,"b":-0.5E-2}`, "{\"a\":\"\x7f\"}", ` [ 1 , [ ] ] `,
		`{"kv\u005ftransfer_params":{}}`, `{"long":"` + strings.Repeat("x", 100) + `\n"}`, `{"prompt":"abc\\\"\u00e9"}`,
		`{"a":{},"b":[],"c":-1.5e7,"d":tru`, `{"prompt":[[1,2]]}`, `"\\"`, `01`, strings.Repeat("[", 300) + strings.Repeat("]", 300),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := Check(raw)
		switch valid := json.Valid(raw); {
		case err == nil && !valid:
			t.Fatalf("accepted %s", raw)
		case err != nil && valid && !strings.Contains(err.Error(), "nested"):
			t.Fatalf("refused %s: %v", raw, err)
		case err != nil:
			if _, all := collect(CheckMembers(raw)); all == nil {
				t.Fatalf("the members of %s, %v, come without an error", raw, err)
			}
			_, _ = collect(Members(raw)) // may yield anything
			_, _ = collect(Elements(raw))
			_, _ = ValueEnd(raw, 0)
			return
		}
		if end, err := ValueEnd(raw, 0); err != nil || SkipSpace(raw, end) != len(raw) {
			t.Fatalf("%s ends at %d, %v", raw, end, err)
		}
		if err := errors.Join(sameMembers(raw, Members), sameMembers(raw, CheckMembers), sameElements(raw)); err != nil {
			t.Fatal(err)
		}
	})
}

// sameMembers compares the members of an object with what encoding/json sees.
func sameMembers(raw []byte, walk func([]byte) iter.Seq2[Member, error]) error {
	var want map[string]json.RawMessage
	members, err := collect(walk(raw))
	if json.Unmarshal(raw, &want) != nil || want == nil {
		if err == nil {
			return fmt.Errorf("%s has %d members", raw, len(members))
		}
		return nil
	}
	if err != nil {
		return err
	}
	seen := make(map[string][]byte)
	for _, m := range members {
		var key string
		if err := json.Unmarshal(m.Text[:len(m.Key)+2], &key); err != nil {
			return err
		}
		if !bytes.HasSuffix(m.Text, m.Value) || !bytes.Equal(m.Text[1:1+len(m.Key)], m.Key) {
			return fmt.Errorf("%s: key %s, value %s", m.Text, m.Key, m.Value)
		}
		seen[key] = m.Value
	}
	if len(seen) != len(want) {
		return fmt.Errorf("%d keys of %s, encoding/json sees %d", len(seen), raw, len(want))
	}
	for key, value := range want {
		if !bytes.Equal(bytes.TrimSpace(value), seen[key]) {
			return fmt.Errorf("%q is %s, encoding/json sees %s", key, seen[key], value)
		}
	}
	return nil
}

// sameElements compares the elements of an array with what encoding/json sees.
func sameElements(raw []byte) error {
	var want []json.RawMessage
	elements, err := collect(Elements(raw))
	if json.Unmarshal(raw, &want) != nil || want == nil {
		if err == nil {
			return fmt.Errorf("%s has %d elements", raw, len(elements))
		}
		return nil
	}
	if err != nil || len(elements) != len(want) {
		return fmt.Errorf("%d elements of %s, encoding/json sees %d: %w", len(elements), raw, len(want), err)
	}
	for i := range want {
		if !bytes.Equal(bytes.TrimSpace(want[i]), elements[i]) {
			return fmt.Errorf("element %d is %s, encoding/json sees %s", i, elements[i], want[i])
		}
	}
	return nil
}

// A control character is refused where it stands, wherever in a string that is, and so is one behind an
// escape; no other byte is taken for one.
func TestCheck_FindsControlCharacters(t *testing.T) {
	for length := range 80 {
		for at := range length {
			text := []byte(`["` + strings.Repeat("\u00e9~\x7f ", length)[:length] + `\""]`)
			if err := Check(text); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			text[2+at] = 0x1f
			if err := Check(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("at byte %d: a control", 2+at)) {
				t.Fatalf("%q: %v, want one at byte %d", text, err, 2+at)
			}
		}
	}
	if err := Check([]byte("\"\\n\x00\"")); err == nil {
		t.Error("a control character behind an escape was accepted")
	}
}

// Budget (2-core VM): 512 KB of chat in 40 us, with no allocation.
func BenchmarkCheck512KB(b *testing.B) {
	raw := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("lorem ipsum ", 512*1024/12) + `"}],"stream":true}`)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Check(raw); err != nil {
			b.Fatal(err)
		}
	}
}

// A list of whole numbers is accepted where encoding/json does, of every length, whatever stands in it and
// wherever.
func TestCheck_SeesWhatMattersInAListOfNumbersAtEveryPlace(t *testing.T) {
	check := func(text string) {
		t.Helper()
		if err, want := Check([]byte(text)), json.Valid([]byte(text)); (err == nil) != want {
			t.Fatalf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"[]", "[", "[1", " [1,2] ", "[1, 2]", `["]"]`, "[[1],[2]]", `[1,{"a":[2]}]`, "[1e5,-2.5]", "[1]]", "[,]", "[01]", "[0]", "[00]"} {
		check(text)
		check(text + "x")
	}
	for n := range 30 {
		list := "[" + strings.Repeat("1234,", n) + strings.Repeat("0,", n) + strings.Repeat("10", n) + "5]"
		check(list)
		check(list[:len(list)-1])
		for at := range len(list) {
			for _, c := range []byte{',', '0', '5', '-', '.', '/', ':', ' ', ']', '[', '"', '+', 0, 0x80, 0xac, 0xb0, 0xff} {
				changed := []byte(list)
				changed[at] = c
				check(string(changed))
			}
		}
	}
	if list := strings.Repeat("1234,0,", 20) + "10"; NumbersLength([]byte(list+"]")) != len(list) {
		t.Error("a usual list is read number by number")
	}
	deep := strings.Repeat("[", MaxDepth)
	if Check([]byte(deep+strings.Repeat("]", MaxDepth))) != nil || Check([]byte(deep+"1"+strings.Repeat("]", MaxDepth))) == nil {
		t.Error("numbers are not counted as a level of their own")
	}
}

// Each bracket costs about as much however deep it stands: of calls as deep a processor foretells no return.
func BenchmarkCheck_Nested(b *testing.B) {
	for _, depth := range []int{2, 25, 250} {
		text := []byte("[" + strings.Repeat(strings.Repeat("[", depth)+strings.Repeat("]", depth)+",", 100_000/depth) + "1]")
		b.Run(fmt.Sprint(depth), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if err := Check(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
