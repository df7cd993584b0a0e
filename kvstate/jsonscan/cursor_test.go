package jsonscan

import (
	"strings"
	"testing"
)

// walked goes through all of a text by a cursor, into each object and array of the first levels, and returns
// what it saw: brackets, keys and values.
func walked(text string, levels int) (seen []string, err error) {
	c := NewCursor([]byte(text))
	var value func(level int)
	value = func(level int) {
		first := c.Next()
		if level == levels || first != '{' && first != '[' {
			if v := c.Value(); v != nil {
				seen = append(seen, string(v))
			}
			return
		}
		seen = append(seen, string(first))
		for more := c.Enter(first); more; more = c.More(first + 2) {
			if first == '{' {
				seen = append(seen, string(c.Key())+":")
			}
			value(level + 1)
		}
		seen = append(seen, string(first+2))
	}
	value(0)
	return seen, c.End()
}

// A cursor shows keys and values as they stand in the text, on each level that its user enters.
func TestCursor_ShowsWhatStandsThere(t *testing.T) {
	const text = ` { "a" : [ 1 , {"b\n":null} ] , "c":{}, "d" : "x\"y" } `
	for levels, want := range []string{
		`{ "a" : [ 1 , {"b\n":null} ] , "c":{}, "d" : "x\"y" }`,
		`{|a:|[ 1 , {"b\n":null} ]|c:|{}|d:|"x\"y"|}`,
		`{|a:|[|1|{"b\n":null}|]|c:|{|}|d:|"x\"y"|}`,
		`{|a:|[|1|{|b\n:|null|}|]|c:|{|}|d:|"x\"y"|}`,
	} {
		seen, err := walked(text, levels)
		if got := strings.Join(seen, "|"); got != want || err != nil {
			t.Errorf("%d levels: %s, %v, want %s", levels, got, err, want)
		}
	}
	if c := NewCursor([]byte(`[1]`)); c.Enter('{') || c.End() == nil {
		t.Error("an array was entered as an object")
	}
}

// Behind what is not well formed nothing is shown.
func TestCursor_StandsStillAtAnError(t *testing.T) {
	c := NewCursor([]byte(`{"a":tru,"b":1}`))
	if !c.Enter('{') || string(c.Key()) != "a" || c.Value() != nil {
		t.Fatal("the value of a is no value")
	}
	if c.More('}') || c.Enter('{') || c.Key() != nil || c.Value() != nil || c.Next() != 0 || c.End() == nil {
		t.Error("the walk goes on")
	}
}

// However deep its user enters, a cursor accepts what Check does and nothing else.
func FuzzCursor(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,{"b":null}],"c":{},"d":"x\"y"}`, `[[[[]]]]`, `{"a":1,}`, `{"a" 1}`, `{a:1}`, `[1 2]`, `"a"x`, ``, `{`, `[1`,
		strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth), strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1),
		strings.Repeat(`{"a":`, MaxDepth) + "1" + strings.Repeat("}", MaxDepth), strings.Repeat(`{"a":`, MaxDepth-1) + "1" + strings.Repeat("}", MaxDepth-1),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want := Check([]byte(text)) == nil
		for _, levels := range []int{0, 1, 2, 3, 2 * MaxDepth} {
			if _, err := walked(text, levels); (err == nil) != want {
				t.Fatalf("%d levels of %q: %v, and Check says %v", levels, text, err, Check([]byte(text)))
			}
		}
	})
}

// A list of numbers is skipped on the word of who reads it, who is asked of nothing else; then the text is
// what Check says of it.
func TestCursor_TakesAReadersWordForNumbers(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":[1, 2],"b":3}`: "1, 2", `{"a": [1],"b":3}`: "1", `{"a":[x],"b":3}`: "x", `{"a":[],"b":3}`: "", `{"a":[[1],[2]],"b":3}`: "[1", `{"a":["]"],"b":3}`: `"`,
		`{"a":1,"b":3}`: "not asked", `{"a":"[1]","b":3}`: "not asked", `{"a":[1`: "not asked", `{"a"`: "not asked", `{"a":`: "not asked",
	} {
		for _, isNumbers := range []bool{true, false} {
			asked, c := "not asked", NewCursor([]byte(text))
			c.Enter('{')
			c.Key()
			value := c.Numbers(func(text []byte) bool {
				asked = string(text)
				return isNumbers
			})
			if asked != want || (value != nil) != (isNumbers && want != "not asked") || value != nil && string(value) != "["+want+"]" {
				t.Errorf("%s: asked of %s, got %s", text, asked, value)
			}
			if value == nil {
				c.Value()
			}
			for c.More('}') {
				c.Key()
				c.Value()
			}
			if err := c.End(); value == nil && (err == nil) != (Check([]byte(text)) == nil) {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	deep := NewCursor([]byte(strings.Repeat("[", MaxDepth-1) + "1" + strings.Repeat("]", MaxDepth-1)))
	for range MaxDepth - 2 {
		deep.Enter('[')
	}
	if last := deep; string(last.Numbers(isAnything)) != "[1]" {
		t.Error("the deepest list is not taken")
	}
	deep = NewCursor([]byte(strings.Repeat("[", MaxDepth) + "1" + strings.Repeat("]", MaxDepth)))
	for range MaxDepth - 1 {
		deep.Enter('[')
	}
	if deep.Numbers(isAnything) != nil || deep.Value() != nil {
		t.Error("one that is nested too deep is taken")
	}
}

func isAnything([]byte) bool { return true }
