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
