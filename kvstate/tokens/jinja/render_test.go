package jinja

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// goldenCase is a template of testdata/cases.json, which cases.py writes.
type goldenCase struct {
	Template string
	Text     *string
	Error    bool // Python fails
	Refused  bool // Python renders it, and this package does not
}

func readCases(t testing.TB) (variables string, cases []goldenCase) {
	t.Helper()
	raw, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Variables string
		Cases     []goldenCase
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file.Variables, file.Cases
}

func variablesOf(t testing.TB, text string) map[string]Value {
	t.Helper()
	v, err := ParseJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	variables := make(map[string]Value)
	for k, v := range v.(*Dict).All {
		variables[k] = v
	}
	return variables
}

func renderText(source string, variables map[string]Value) (string, error) {
	template, err := Parse(source)
	if err != nil {
		return "", err
	}
	return template.Render(variables)
}

// What Python renders is rendered byte for byte the same, or refused where the case says so; what
// fails there fails here.
func TestRender_IsPythons(t *testing.T) {
	text, cases := readCases(t)
	if len(cases) < 400 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		got, err := renderText(c.Template, variablesOf(t, text))
		switch {
		case c.Error || c.Refused:
			if err == nil {
				t.Errorf("%s: rendered %q, and should fail", c.Template, got)
			}
		case err != nil:
			t.Errorf("%s: %v; Python renders %q", c.Template, err, *c.Text)
		case got != *c.Text:
			t.Errorf("%s:\n got  %q\n want %q", c.Template, got, *c.Text)
		}
	}
}

// A template or a client cannot make a render go on without end, or write without bound.
func TestRender_WorkIsBounded(t *testing.T) {
	variables := variablesOf(t, `{"s": "`+strings.Repeat("x", 1<<16)+`"}`)
	variables["big"] = strings.Repeat("x", 20<<20)
	for _, source := range []string{
		"{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"{% set ns = namespace(s=s) %}{% for a in range(90000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"{% for a in range(3000) %}{% set t = s + s %}{% endfor %}",
		"{{ 'x' | replace('', big) | length }}",
		"{{ 'x' * 2147483000 }}",
		"{{ s | replace('', s) }}",
		"{% set l = range(90000) | list %}{% for a in l %}{% set b = l[1:] %}{% endfor %}",
		"{% for a in range(90000) %}{{ s }}{% endfor %}",
		"{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}",
		strings.Repeat("{% if true %}", 5000),
		"{{ " + strings.Repeat("not ", 5000) + "1 }}",
		"{{ " + strings.Repeat("-", 5000) + "1 }}",
	} {
		if got, err := renderText(source, variables); err == nil {
			t.Errorf("%.60s: rendered %d bytes", source, len(got))
		}
	}
}

// What fails in Python fails here, wherever in a template it stands, and so does what is not known
// to be the same there.
func TestRender_FailsWhereItIsNotPythons(t *testing.T) {
	for _, source := range []string{
		"{{ 'abc'[1 // 0:] }}", "{{ 'abc'[:1 // 0] }}", "{{ (1 // 0)[1:] }}", "{# no end", "{{ [1].index(1, x=2) }}", "{{ [1].index(value=1) }}",
		"{{ 'a' | safe | upper }}", "{{ {'\u00e9': 1} | dictsort }}",
	} {
		if got, err := renderText(source, nil); err == nil {
			t.Errorf("%s: rendered %q, and should fail", source, got)
		}
	}
}

// A loop over a message's content is found, also where a macro has it and is given the content.
func TestTemplate_LoopsOverContent(t *testing.T) {
	const macro = "{% macro m(first, parts) %}{% for p in parts %}{% endfor %}{% endmacro %}"
	for source, want := range map[string]bool{
		"{% for p in message.content %}{% endfor %}":                            true,
		"{% for p in message['content'] | list %}{% endfor %}":                  true,
		"{% set content = message.content %}{% for p in content %}{% endfor %}": true,
		"{% for message in messages %}{{ message.content }}{% endfor %}":        false,
		macro + "{{ m(1, message.content) }}":                                   true,
		macro + "{{ m(1, parts=message.content) }}":                             true,
		macro + "{{ m(message.content, 1) }}":                                   false,
		macro + "{{ m(first=message.content, parts=1) }}":                       false,
		macro + "{{ m(1, 2, message.content) }}":                                false,
		macro + "{{ other(1, message.content) }}":                               false,
		macro: false,
	} {
		template, err := Parse(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := template.LoopsOverContent(); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
}

// JSON that Python reads otherwise, and JSON without bound, is not read.
func TestParseJSON_Refuses(t *testing.T) {
	for _, text := range []string{
		"", "{", "[1,]", `{"a":1,}`, `{"a"}`, "NaN", "Infinity", "-", "01", "1.", ".5", "1e", "+1", `"\x"`, `"\ud800"`, `"\ud800\u0041"`, `"\udc00"`, "\"\n\"", `"a`, `"\n`, `"\nab`, "tru", "1 2",
		strings.Repeat("[", maxDepth+2) + strings.Repeat("]", maxDepth+2), strings.Repeat("9", maxDigits+1), `"\u12"`, "'a'", "{1:2}", `{"a" 1}`, "[1 2]", "nul",
	} {
		if v, err := ParseJSON([]byte(text)); err == nil {
			t.Errorf("%.60s: read as %v", text, v)
		}
	}
	if _, err := ParseJSON([]byte("[" + strings.Repeat("0,", maxValues) + "0]")); err == nil {
		t.Error("a list of more values than may be is read")
	}
	if _, err := ParseJSON([]byte(strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth))); err != nil {
		t.Errorf("a list as deep as may be is not read: %v", err)
	}
}

// A key that is there twice has its last value, in the place of the first, as in Python; many keys
// keep their order too.
func TestParseJSON_KeepsTheOrderOfKeys(t *testing.T) {
	v, err := ParseJSON([]byte(`{"b":1,"a":2,"b":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := str(v); got != "{'b': 3, 'a': 2}" {
		t.Errorf("read as %s", got)
	}
	var text strings.Builder
	for i := range 40 {
		text.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + `"` + string(rune('z'-i%26)) + string(rune('0'+i/26)) + `":1`)
	}
	text.WriteString(`,"z0":7}`)
	d, err := ParseJSON([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := d.(*Dict).Get("z0"); !ok || v != int64(7) || d.(*Dict).Len() != 40 {
		t.Errorf("z0 is %v of %d keys", v, d.(*Dict).Len())
	}
	first := ""
	for k := range d.(*Dict).All {
		first = k
		break
	}
	if first != "z0" {
		t.Errorf("the first key is %s", first)
	}
}
