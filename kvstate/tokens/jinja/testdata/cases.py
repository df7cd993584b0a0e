"""Templates and variables, each rendered by Python's jinja2 with the settings of transformers.

    python3 kvstate/tokens/jinja/testdata/cases.py    (needs transformers and jinja2)

writes cases.json, to which TestRender_IsPythons holds the package. A case is a template, its
variables as JSON text, and the text or "error"; "refused" are those that Python renders and
the package does not.
"""

import json
import os

from transformers.utils.chat_template_utils import _compile_jinja_template

V = r"""{"s": "Hello, Wörld", "empty": "", "n": 3, "neg": -7, "f": 1.5, "t": true, "no": false, "nil": null,
 "list": ["b", "a", "C", "a"], "nums": [3, 1, 2], "nested": [[1, 2], [3, 4]], "none": [],
 "d": {"z": 1, "a": {"items": "own", "deep": [1, {"k": null}]}, "b": 2.0, "items": "x"},
 "objs": [{"n": "x", "on": true, "in": {"k": 1}}, {"n": "y", "on": false}, {"n": "z"}],
 "html": "<b>&'\"</b>", "ctl": "\u0000\u001f\u007f\u0080\u2028 \ud83d\ude00 \\ \"q\" \t\r\n\b\f",
 "big": 123456789012345678901234567890, "floats": [1e5, 1E+2, 1.0, 0.1, 1e16, 1e15, 123456789.123, 1e-5, 0.0001, -0.0, 1e400, 1.5e300, 5e-324, 100, -0],
 "lines": "a\n\nb\n  c\n", "spaces": " \t\u00a0\u2003x\u001f ", "quotes": ["it's", "say \"x\"", "it's \"x\"", "back\\slash", "nl\n", "é"],
 "args": {"city": "Berlin", "n": 1, "nested": {"b": [1, 2], "a": {}}, "e": []}}"""

OUT = r"""
s|n|f|t|no|nil|list|nums|d|floats|quotes|big|nested|none|missing|neg
s ~ n ~ nil ~ f|n + 1|n - 10|n * 2|n / 2|n // 2|neg // 2|neg % 3|n % 2|f + n|"a" + "b"|"ab" * n|nums + [4]|-n|-f|+n|f * 2|7 / 7
n == 3.0|t == 1|"a" == "a"|list == list|d == d|nil == none|missing == none|missing == nope|nil == ""|n != 4|1 < 2 < 3|"a" < "b"|n >= 3|[] == []|(1,) == [1]|(1, 2) == (1, 2)
"a" in list|"ell" in s|"z" in d|4 not in nums|nil in list|missing in list|n in d|"x" in missing|2 in range(3)|"n" in objs[0]
not n|not missing|n and s|empty or s|nil or empty|t and no|(n if no)|"x" if n else "y"|"x" if empty else "y" if no else "z"|not nil == none
s[0]|s[-1]|s[1:3]|s[::-1]|list[1:]|list[-1]|list[-9]|list[9]|list[::-1]|list[:-1]|list[::2]|d["z"]|d.z|d["items"]|d.a.items|d.nope|d["nope"]|nil.x|n.x|s.x|list.x|d.a["deep"][1]["k"]|nums[-1:]|list[1:100]|none[-1]|list[0]["x"]
d.items()|d.keys()|d.get("z")|d.get("q")|d.get("q", "dflt")|d.get(1)|d.keys() | list|d.values() | list|d.a.deep|d | items | list|d.items() | list|missing | items | list|d | length|d.keys() | length
s.upper()|"ab".upper()|"aB".lower()|"aBC".capitalize()|s.strip("Hd")|" x ".strip()|spaces.strip()|"xxaxx".lstrip("x")|"xxaxx".rstrip("x")|"a,b,c".split(",")|"a,b,c".split(",", 1)|"a,b,c".rsplit(",", 1)|" a  b ".split()|s.startswith("Hell")|s.startswith(("x", "H"))|s.endswith("d")|s.replace("l", "L")|s.replace("l", "L", 1)|"ab".replace("", "-")|s.find("W")|s.find("ö")|s.rfind("l")|s.count("l")|"abc".removeprefix("a")|"abc".removesuffix("c")|"a-b-c".partition("-")|"a-b-c".rpartition("-")|"abc".partition("-")|"abc".rpartition("-")|", ".join(list)|", ".join(nums)|"12".isdigit()|"".isdigit()|"a".isalpha()
s.split("</think>")[-1].lstrip("\n")|"a</think>\nb".split("</think>")[0].rstrip("\n").split("<think>")[-1]|"<think>a".split("<think>")[-1]
s | length|list | length|nums | first|nums | last|none | first|none | last|s | first|s | last|n | length|missing | length|list | join|list | join("-")|objs | join(", ", attribute="n")|missing | join("x")|nums | join(d=",")
s | upper|"abc" | upper|"ABC" | lower|"aBC def" | capitalize|spaces | trim|"--x--" | trim("-")|missing | trim|n | trim|s | replace("l", "")|n | string|nil | string|list | string|"a" | default("b")|missing | default("b")|missing | default|nil | default("b")|nil | default("b", true)|empty | d("b", boolean=True)|missing | d
list | reverse | list|s | reverse|nums | sort|list | sort|list | unique | list|d | dictsort|objs | map(attribute="n") | list|objs | map(attribute="in.k") | list|objs | map(attribute="n", default="q") | list|list | map("upper") | list|list | map("length") | list|objs | selectattr("on") | list|objs | rejectattr("on") | list|objs | selectattr("n", "equalto", "y") | list|objs | selectattr("on", "defined") | list|nums | select("odd") | list|nums | reject("odd") | list|list | select("in", ["a"]) | list|objs | selectattr("n", "in", ["x", "z"]) | map(attribute="n") | join(",")|nested | map("first") | list|objs | map(attribute="on") | list
lines | indent|lines | indent(2)|lines | indent(2, true)|lines | indent(2, true, true)|lines | indent(width="> ")|"7" | int|"x" | int|1.9 | int|n | float|"7" | float|neg | abs|f | abs|objs | selectattr("on") | first|list | list|s | list|d | list
d | tojson|html | tojson|ctl | tojson|floats | tojson|big | tojson|nil | tojson|args | tojson|args | tojson(indent=4)|args | tojson(indent=2)|args | tojson(indent=0)|args | tojson(separators=(",", ":"))|args | tojson(indent=2, separators=(",", ": "))|args | tojson(sort_keys=True)|ctl | tojson(ensure_ascii=True)|s | tojson(ensure_ascii=False)|args | tojson(True)|none | tojson|{} | tojson|[] | tojson(indent=4)|(1, "a") | tojson|missing | tojson|{"b": 1, "a": [s]} | tojson|args | tojson(indent="\t")|nested | tojson(indent=1)|d | tojson | safe|d | tojson | length|"é" | tojson(ensure_ascii=True)|args | tojson(indent=none)|args | tojson(4)|d.items() | tojson|range(2) | tojson
n is defined|missing is defined|missing is undefined|nil is none|missing is none|s is string|n is string|d is mapping|list is mapping|d is sequence|s is sequence|n is sequence|n is iterable|s is iterable|nil is iterable|d is iterable|missing is iterable|d.items() is sequence|d.items() is iterable|range(2) is sequence|n is number|t is number|f is number|s is number|n is integer|t is integer|f is float|big is integer|big is number|t is boolean|n is boolean|t is true|n is true|no is false|n is odd|n is even|n is divisibleby 3|n is divisibleby(2)|n is eq 3|n is equalto(3)|"a" is in list|n is gt 2|n is not none|n is not defined|s is not string and n|d.items is callable|n is callable|n is ne 3|not n is none|n is lt 2 or t
range(3) | list|range(1, 4) | list|range(5, 0, -2) | list|range(0)|range(2) | length|range(3)[1]|dict(a=1, b="x")|dict(d)["z"]|namespace(x=1).x|namespace(x=1).y|namespace(d).z|{"a": 1, "b": [1, 2]}|{"a": 1}["a"]|[1, "x", none, true]|(1, "a")|(1,)|()|1, 2
nope()|n()|nope.x|nope["x"]|nope + 1|s + n|s + nil|n in s|nil + 1|s < n|list.append(1)|d.update({"a": 1})|d.pop("z")|s.__class__|d.__len__|s.format(1)|list | nosuch|n is nosuch|1 / 0|nil | length|d[list]|raise_exception("no")|range(200000)|n[0]|list | sum|"%s" % s|d.copy()|html | e|html | escape|n ** 2|lipsum()|loop|2 | round
"a" "b"|'it\'s \n \x41 \u00e9 \/ \d'|"tab\tx"|1.50|1_0|True|None|none|false|"a" ~ "b" | upper|("a" ~ "b") | upper|-1 | abs|-n | string ~ "x"|1 if t else 2 ~ "x"|not t or t|t and not no|n - 1 - 1|2 * 3 + 4 * 5|10 - 2 * 3|"a" if nil is none else "b"|[1, 2, 3][1]|"abc"[1]|s[n]|s[1:][0]|d.a.deep.0|d.a.deep[-1].k is none|"x" * -1|n is string or n is number|(n, s)[0]|[[1], [2]][1][0]|s [0]|{"a": {"b": 1}}.a.b|"a" in "abc" and "b" not in "xyz"|n if n > 2 else -n
"""

BLOCKS = [
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}",
    "{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{% endfor %}",
    "{% for x in list if x != 'a' %}{{ loop.index }}/{{ loop.length }} {{ x }}{% else %}none{% endfor %}",
    "{% for x in none %}x{% else %}empty{% endfor %}", "{% for x in missing %}x{% endfor %}.", "{% for x in nil %}x{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}", "{% for a, b in nested %}{{ a + b }};{% endfor %}",
    "{% for (a, b) in nested %}{{ a }}{% endfor %}", "{% for a, b in nums %}x{% endfor %}",
    "{% for x in nums %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for y in nums %}{% set x = x + y %}{{ x }};{% endfor %}{{ x }}",
    "{% set ns = namespace(x=0, found=false) %}{% for y in nums %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}{{ ns.found }}{{ ns.nope }}",
    "{% for y in nums %}{% if loop.first %}{% set z = 'a' %}{% endif %}{{ z }}{% endfor %}{{ z is defined }}",
    "{% if n == 1 %}1{% elif n == 3 %}3{% else %}x{% endif %}", "{% if none %}a{% elif missing %}b{% endif %}.",
    "{% if no %}{% set q = 1 %}{% else %}{% set q = 2 %}{% endif %}{{ q }}",
    "{% set a, b = nested[0] %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set x %}  a{{ n }}  {% endset %}[{{ x }}]", "{% set x | trim | upper %}  a{{ n }}  {% endset %}[{{ x }}]",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% set s.x = 1 %}", "{% set n.x = 1 %}",
    "{% macro m(a, b='dflt', c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 2) }}|{{ m(a=1, c=3) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{{ later }}{{ n }}{% endmacro %}{% set later = 'L' %}{{ m('x') }}", "{% macro m(k) %}{% if k %}{{ k }}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro m(a) %}{% set n = 9 %}{{ n }}{% endmacro %}{{ m(1) }}{{ n }}", "{% for x in nums %}{{ m2(x) }}{% endfor %}{% macro m2(x) %}{% endmacro %}",
    "{% macro render(v, i=0) %}{% if v is mapping %}{{ '{' }}{% for k, x in v.items() %}{{ k }}:{{ render(x, i + 1) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif v is iterable and v is not string %}[{% for x in v %}{{ render(x) }}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}{% endmacro %}{{ render(d) }}",
    "{% macro m(x) %}{{ x | upper }}{% endmacro %}{{ m('a') | length }}{{ m('b') ~ 'c' }}",
    "{%- set g = objs | selectattr('on') -%}{{ g | list | length }}{{ g | list | length }}", "{% if objs | selectattr('nope') %}always{% endif %}", "{{ objs | selectattr('on') }}",
    "{% set g = nums | map('string') %}{{ '1' in g }}{{ g | list }}", "{% set g = nums | map('string') %}{{ g | first }}{{ g | list }}", "{% set g = nums | reverse %}{% for x in g %}{{ x }}{% break %}{% endfor %}{{ g | list }}",
    "a  {% if t %}  b  {% endif %}  c", "a\n  {% if t %}\n  b\n  {% endif %}\n  c\n", "a\n  {%+ if t %}\n  b\n  {%- endif +%}\n  c\n\n", "  {% if t %}x{% endif %}", " x {%- if t -%}  y  {%- endif -%}  z ",
    "{# c #}\n a {#- c -#}  b\n  {# d #}\n  e", "a\n  {# c #} b", "{{ n }}\n{{ n }}\n", "{{- n -}}  \n x", "  {{ n }}  ", "{% if t %}\n\nx\n\n{% endif %}\n\ny", "x\r\ny\rz\n", "{% if t -%}\n  a\n{%- endif %}\nb", "a {{+ n }}", "{{ '}}' }}{{ \"%}\" }}{{ {'a': {'b': 1}} }}", "{{ {'a':{}}}}",
    "a\n\t{% if t %}b{% endif %}\n", "a {% if t %}\n  {%- if t %}\n    {{- n }}\n  {%- endif %}\n{% endif %}b", "{%if t%}x{%endif%}", "{% generation %}x{{ n }}{% endgeneration %}\ny",
    "{% if t %}x", "{% endif %}", "{% for x in %}", "{{ n", "{{ }}", "{% unknown %}", "{% set x = %}", "{{ 'a }}", "{{ n n }}", "{% if %}{% endif %}", "{{ (1 }}", "{{ [1, 2 }}", "{{ n | }}", "{% for loop in nums %}{% endfor %}",
    "{% raw %}{{ n }}{% endraw %}", "{% with x = 1 %}{{ x }}{% endwith %}", "{% filter upper %}a{% endfilter %}", "{% call m() %}{% endcall %}", "{% for x in nested recursive %}{% endfor %}", "{{ loop.cycle('a') }}",
    "{% for x in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in nums %}{% for y in nums %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in nums %}{{ loop.depth }}{% endfor %}",
    "{{ strftime_now('%Y') }}", "{% if no %}{{ strftime_now('%Y') }}{% endif %}x", "{% if no %}{{ raise_exception('x') }}{% endif %}x", "{% if strftime_now is defined %}x{% endif %}",
    "{% set x = n if t %}{{ x }}", "{% if n is defined and n is not none %}y{% endif %}", "{% if 'a' in list or 'q' in list %}y{% endif %}", "{%- for x in list %}\n    {{- x }}\n{%- endfor %}",
    "{% set list = list[1:] %}{{ list }}", "{% for x in list %}{% set list = [] %}{{ list }}{% endfor %}{{ list }}", "{{ list is list }}", "{% set d2 = dict(d, q=1) %}{{ d2 | tojson }}",
    "{% for o in objs %}{{ o.n }}{{ o.on }}{{ o['in'].k if o['in'] }};{% endfor %}", "{% set x = [1] + [2] %}{{ x }}", "{{ '<' ~ html ~ '>' }}", "{{ html | safe ~ '<' }}", "{{ html | safe }}",
]

REFUSED = set("""d.items()
d.keys()
range(0)
"a".isalpha()
s.upper()
s | upper
"x" | int
n ** 2
2 | round
html | e
html | escape
list | sum
"%s" % s
d.copy()
s.format(1)
d.a.items
1_0
s.__class__
d.__len__
{% raw %}{{ n }}{% endraw %}
{% filter upper %}a{% endfilter %}
{% with x = 1 %}{{ x }}{% endwith %}
{% for x in nested recursive %}{% endfor %}
{% for x in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for x in nums %}{{ loop.depth }}{% endfor %}
{{ objs | selectattr('on') }}
{% set g = nums | reverse %}{% for x in g %}{{ x }}{% break %}{% endfor %}{{ g | list }}
{{ strftime_now('%Y') }}
{{ html | safe ~ '<' }}
lipsum()""".split("\n"))


def render(template):
    try:
        return _compile_jinja_template(template).render(**json.loads(V))
    except Exception:
        return None


def main():
    cases = []
    for line in OUT.strip().split("\n"):
        # A filter's bar has spaces around it, the one between cases has none.
        parts, at = [""], 0
        while at < len(line):
            if line[at] == "|" and not (line[at - 1] == " " and line[at + 1 : at + 2] == " "):
                parts.append("")
            else:
                parts[-1] += line[at]
            at += 1
        cases += [("{{ " + p + " }}", p) for p in parts]
    cases += [(b, b) for b in BLOCKS]
    out = []
    for template, name in cases:
        text = render(template)
        case = {"template": template}
        if text is None:
            case["error"] = True
        elif name in REFUSED:
            case["refused"] = True
        else:
            case["text"] = text
        out.append(case)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.json")
    with open(path, "w") as f:
        f.write(json.dumps({"variables": V, "cases": out}, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
