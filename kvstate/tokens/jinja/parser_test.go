package jinja

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A template of which any part is missing, or in the wrong place, is not taken: the tokens of what
// would be made of it are not those of the engine. In each template any token within a mark is
// replaced by a bracket that nothing opens.
func TestParse_RefusesWhatIsMalformed(t *testing.T) {
	for _, source := range []string{
		"{{ not a }}", "{{ not not a and not b }}", "{{ a in b and c not in d or e == f < g != h }}", "{{ a + b - c ~ d * - e // f % + g / h ~ i }}", "{{ a if b else c if d else e }}", "{{ a if b }}",
		"{{ a [ b : c : d ] . e [ 0 ] . 1 }}", "{{ a [ : ] }}", "{{ f ( a , b , c = d , ) | g ( h ) | i }}", "{{ f ( a = 1 , b = 2 ) ( c ) }}", "{{ a is not b ( c ) }}", "{{ a is divisibleby 2 }}", "{{ a is b and c is not d }}",
		"{{ [ a , b , ] }}", "{{ { a : b , c : d , } }}", "{{ ( a , b ) }}", "{{ ( a ) }}", "{{ a , b }}", "{{ 'a' 'b' }}", "{{ 1.5 }}", "{{ true }}",
		"{% for a , b in c if d %} x {% else %} y {% endfor %}", "{% for ( a , b ) in c %} x {% endfor %}", "{% for a in b , c %} {% break %} {% continue %} {% endfor %}",
		"{% if a %} x {% elif b %} y {% else %} z {% endif %}", "{% if a , b %} x {% endif %}",
		"{% set a = b %}", "{% set a . b = c %}", "{% set a , b = c , d %}", "{% set a | f ( b ) | g %} x {% endset %}", "{% set a %} x {% endset %}",
		"{% macro m ( a , b = c , d = e ) %} x {% endmacro %}", "{% macro m ( ) %} {{ a }} {% endmacro %}", "{% generation %} x {% endgeneration %}",
	} {
		if _, err := Parse(source); err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		tokens := strings.Fields(source)
		within := false
		for i, token := range tokens {
			if token == "{{" || token == "{%" {
				within = true
				continue
			}
			for _, bracket := range []string{")", "]"} {
				if !within || token == bracket {
					continue
				}
				changed := slices.Clone(tokens)
				changed[i] = bracket
				if _, err := Parse(strings.Join(changed, " ")); err == nil {
					t.Errorf("%s is taken", strings.Join(changed, " "))
				}
			}
			if token == "}}" || token == "%}" {
				within = false
			}
		}
		for cut := range len(source) {
			if _, err := Parse(source[:cut]); err == nil && cut > 1 {
				t.Errorf("%s is taken", source[:cut])
			}
		}
	}
	for _, source := range []string{
		"{{ ' }}", `{{ "a }}`, "{{ @ }}", "{{ a", "{% set a = ' %}", "{% if a = 1 %}{% endif %}", "{% for loop in a %}{% endfor %}", "{% set none = 1 %}", "{% set a, b %}x{% endset %}", "{% set a.b %}x{% endset %}",
		"{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ a[] }}", "{{ a[1:2:3:4] }}", "{{ a[1 2] }}", "{{ caller }}", "{% include 'a' %}", "{{ a. }}", "{{ 9223372036854775808 }}", "{{ {1} }}",
	} {
		if _, err := Parse(source); err == nil {
			t.Errorf("%s is taken", source)
		}
	}
}

// What fails within a statement fails the template, wherever in it that is.
func TestRender_FailsWithItsParts(t *testing.T) {
	for _, source := range []string{
		"{% for a in 1 // 0 %}{% endfor %}", "{% for a in [1] if 1 // 0 %}x{% endfor %}", "{% for a in [1] %}{{ 1 // 0 }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
		"{% for a in [] %}{% else %}{{ 1 // 0 }}{% endfor %}", "{% for a in 5 %}{% endfor %}", "{% if 1 // 0 %}{% endif %}", "{% if true %}{{ 1 // 0 }}{% endif %}", "{% if false %}{% else %}{{ 1 // 0 }}{% endif %}",
		"{% set a = 1 // 0 %}", "{% set a %}{{ 1 // 0 }}{% endset %}", "{% macro m() %}{{ 1 // 0 }}{% endmacro %}{{ m() }}", "{{ [1 // 0] }}", "{{ {1 // 0: 1} }}", "{{ {'a': 1 // 0} }}", "{{ not 1 // 0 }}", "{{ 1 if 1 // 0 else 2 }}",
		"{{ 1 < 1 // 0 }}", "{{ 1 // 0 == 1 }}", "{{ 1 in 1 // 0 }}", "{{ 'a' ~ 1 // 0 }}", "{{ 1 in 'a' }}", "{{ [1] in {} }}", "{{ 1 in 5 }}", "{{ -(1 // 0) }}", "{{ [1][1 // 0] }}",
	} {
		if got, err := renderText(source, nil); err == nil {
			t.Errorf("%s: rendered %q, and should fail", source, got)
		}
	}
}

// Numbers and depths are taken up to their bounds, and not beyond.
func TestRender_ToItsBounds(t *testing.T) {
	nested := func(depth int) string {
		return fmt.Sprintf("{%% set ns = namespace(v=1) %%}{%% for i in range(%d) %%}{%% set ns.v = [ns.v] %%}{%% endfor %%}{{ ns.v | tojson | length }}", depth)
	}
	for source, want := range map[string]string{ // "": it fails
		"{{ 2147483648 + 1 }}": "2147483649", "{{ 1 + 2147483648 }}": "2147483649", "{{ -2147483648 + 1 }}": "-2147483647", "{{ 1 + -2147483648 }}": "-2147483647",
		"{{ 2147483649 + 1 }}": "", "{{ 1 + 2147483649 }}": "", "{{ -2147483649 + 1 }}": "", "{{ 1 + -2147483649 }}": "",
		"{{ 'abc'[::2147483647] }}": "a", "{{ 'abc'[::2147483648] }}": "", "{{ 'abc'[::-2147483648] }}": "c", "{{ 'abc'[::-2147483649] }}": "", "{{ 'abc'[::0] }}": "",
		"{{ 1 if () else 2 }}": "2", "{{ 1 if (0,) else 2 }}": "1", "{{ 1 if [] else 2 }}": "2", "{{ 1 if {} else 2 }}": "2", "{{ 1 if {'a': 1} else 2 }}": "1", "{{ 1 if '' else 2 }}": "2", "{{ 1 if range(0) else 2 }}": "2",
		nested(maxDump): fmt.Sprint(2*maxDump + 1), nested(maxDump + 1): "",
	} {
		got, err := renderText(source, nil)
		if (err == nil) != (want != "") || got != want && err == nil {
			t.Errorf("%s: %q, %v, want %q", source, got, err, want)
		}
	}
}
