#!/usr/bin/env python3
"""Records the output of Python's Jinja2 for a few hundred small templates: tests/data/jinja/differential.json.

The environment is the one Transformers renders chat templates with. Jinja2 3.1.6 recorded the file in the repository; older
releases differ in a few cases (list.pop, int of an infinity).

    tools/make_jinja_cases.py > tests/data/jinja/differential.json
"""
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class AssistantTracker(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[AssistantTracker, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(layout):
        return datetime.datetime(2025, 7, 10, 12, 0, 0).strftime(layout)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


CONTEXT = {
    "i": 7, "n": -3, "z": 0, "f": 2.5, "big": 9007199254740993, "t": True, "no": False, "nil": None,
    "s": "Hello World", "u": "äöü ß Ünï 日本 😀 ﬁ", "e": "", "q": "it's \"q\" \\ \n\t\x07\u200b", "html": "<b>&\"'</b>",
    "ws": "  \t two  words \n ", "csv": "a,b,,c", "nums": [3, 1, 2], "mixed": [1, "a", None, 2.5, True],
    "words": ["banana", "Apple", "cherry", "apple", "Banana"], "nest": [[1, 2], [3, [4, 5]]], "empty": [], "ed": {},
    "d": {"b": 1, "a": 2, "C": 3}, "deep": {"x": {"y": {"z": [10, 20, {"k": "v"}]}}},
    "users": [{"name": "Bob", "age": 30, "tags": ["x"]}, {"name": "alice", "age": 25, "tags": []}, {"name": "Carl", "age": 30}],
    "floats": [0.1, 1e16, 1e-5, 123456789.0, 1e22, 5e-324, 1.7976931348623157e308, -0.0, 100000.0],
    "messages": [{"role": "system", "content": "Be nice."}, {"role": "user", "content": "Hi <there> & 'you' é"},
                 {"role": "assistant", "content": "Hello!\nHow are you?", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [1.5, None, True]}}}]},
                 {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]}],
}

# Each expression is rendered as {{ expression }}.
# An expression in each line.
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja_expressions.txt"), encoding="utf-8") as file:
    EXPRESSIONS = file.read().strip("\n")

TEMPLATES = [
    # loops
    "{% for x in nums %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }}/{{ loop.depth0 }}:{{ x }};{% endfor %}",
    "{% for x in nums %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in nums %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in nums %}{{ loop.previtem.x }}{% endfor %}",
    "{% for x in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in nums %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1,1,2,2,1] %}{% if loop.changed(x) %}[{{ x }}]{% endif %}{% endfor %}",
    "{% for x in nums %}{{ loop }}{% endfor %}",
    "{% for x in nums if x > 1 %}{{ loop.index }}{{ x }}{{ loop.length }}{{ loop.last }} {% else %}none{% endfor %}",
    "{% for x in nums if x > 10 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in empty %}a{% else %}b{% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in 5 %}a{% endfor %}",
    "{% for x in none %}a{% endfor %}",
    "{% for c in 'aé😀' %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}{% for k, v in d|dictsort %}{{ k }}{{ v }}{% endfor %}{% for k, v in d|items %}{{ loop.index }}{{ loop.last }}{{ k }}{% endfor %}",
    "{% for a, b in [[1, 2], (3, 4), 'xy'] %}{{ a }}-{{ b }} {% endfor %}",
    "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}",
    "{% for a, b in [[1]] %}{{ a }}{% endfor %}",
    "{% for a, b in [1] %}{{ a }}{% endfor %}",
    "{% for x in nums %}{% for y in nums %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for x in nums %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in nums recursive %}{{ x }}{% endfor %}",
    "{% for x in nest recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in nums %}{{ loop([1]) }}{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1] %}{% continue %}{% else %}else{% endfor %}|{% for x in [1] %}{% break %}{% else %}else{% endfor %}|{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}",
    "{% for x in [1, 2] %}{% for y in [1, 2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% break %}", "{% for x in nums %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% continue %}",
    "{% for x in nums %}{% set q %}a{% break %}b{% endset %}{% endfor %}done",
    "{% for x in nums|map('string') %}{{ loop.length }}{{ x }}{{ loop.revindex }} {% endfor %}",
    "{% for x in nums|select('odd') %}{{ loop.first }}{{ loop.last }}{{ x }} {% endfor %}",
    "{% set g = nums|map('string') %}{{ g|list }}{{ g|list }}",
    "{% set g = nums|select %}{{ g|first }}{{ g|first }}{{ g|list }}",
    "{% for loop in nums %}{% endfor %}", "{% for x in nums %}{% set loop = 1 %}{% endfor %}",
    "{{ loop is defined }}{% for x in [1] %}{{ loop is defined }}{% else %}{{ loop is defined }}{% endfor %}",
    "{% for x in empty %}{% else %}{{ loop is defined }}{% endfor %}",
    "{% for x in nums %}{{ loop.nosuch is defined }}{{ loop['index'] }}{% endfor %}",
    "{% for u in users if u.age == 30 %}{{ u.name }}{{ loop.index }}{% endfor %}",
    "{% for i in range(3) -%}\n  {{ i }}\n{%- endfor %}",
    "{% for a in nums %}{% for b in nums if b > a %}{{ a }}{{ b }} {% endfor %}{% endfor %}",
    "{% for x in nums: %}{{ x }}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in (nums if t else []) %}{{ x }}{% endfor %}",
    # scoping
    "{% set x = 1 %}{% for i in nums %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% if false %}{% set x = 2 %}{% endif %}{{ x is defined }}",
    "{% for i in nums %}{{ x is defined }}{% set x = i %}{{ x }} {% endfor %}",
    "{% for i in [1] %}{{ z }}{% endfor %}{% set z = 5 %}{{ z }}",
    "{{ z }}{% for i in [1] %}{{ z }}{% endfor %}{% set z = 5 %}{{ z }}",
    "{% macro m() %}{{ z }}{% endmacro %}{{ m() }}{% set z = 5 %}{{ m() }}",
    "{% macro m() %}{{ i }}{{ qq }}{% endmacro %}{{ m() }}{% set qq = 5 %}{{ m() }}",
    "{% for k in nums %}{% if k == 1 %}{% set i = 'one' %}{% endif %}{{ i }} {% endfor %}",
    "{% for k in nums %}{% if k == 1 %}{% set i = 'one' %}{% else %}{% set i = 'other' %}{% endif %}{{ i }} {% endfor %}{{ i }}",
    "{% for k in nums %}{% if k == 1 %}{% set i = 'one' %}{% elif k == 2 %}{% set i = 'two' %}{% else %}{% set i = 'other' %}{% endif %}{{ i }} {% endfor %}",
    "{% for k in nums %}{% if k == 1 %}{% set w = 'one' %}{% elif k == 2 %}{% set w = 'two' %}{% endif %}{{ w is defined }}{{ w }} {% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in nums %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{% set d.x = 1 %}", "{% set nosuch.x = 1 %}", "{% set s.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = (b, a) %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}",
    "{% set a, b = [1] %}", "{% set a, b = 5 %}", "{% set 5 = 1 %}", "{% set a.b.c = 1 %}", "{% set none = 1 %}", "{% set 'a' = 1 %}",
    "{% set x = i if t else n %}{{ x }}", "{% set x = x %}{{ x is defined }}", "{% set i = i + 1 %}{{ i }}",
    "{% set x %}hello {{ i }}{% endset %}[{{ x }}]{{ x|length }}", "{% set x | upper | replace('A', 'b') %}aXa{% endset %}{{ x }}",
    "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}", "{% set ns = namespace() %}{% set ns.t %}abc{% endset %}{{ ns.t }}",
    "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}", "{% with i = i + 1 %}{{ i }}{% endwith %}{{ i }}", "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b') | title %}aaa {{ s }}{% endfilter %}", "{% filter indent(2) %}a\nb{% set v = 1 %}{% endfilter %}{{ v is defined }}", "{% filter length %}abc{% endfilter %}",
    "{% block a %}x{{ i }}{% endblock %}{% block b %}y{% endblock b %}",
    "{% for i in nums %}{% set ns = namespace(v=i) %}{{ ns.v }}{% endfor %}{{ ns is defined }}",
    "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% set x = 1 %}{% macro m(x) %}{{ x }}{% set x = 3 %}{{ x }}{% endmacro %}{{ m(2) }}{{ x }}",
    "{% for i in nums %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}",
    "{% if t %}{% macro m() %}m{% endmacro %}{% endif %}{{ m() }}", "{% if no %}{% macro m() %}m{% endmacro %}{% endif %}{{ m() }}",
    "{% for x in nums %}{% if loop.first %}{% set flag = 1 %}{% endif %}{{ flag }}{% endfor %}",
    "{% set msgs = [] %}{% for x in nums %}{% set msgs = msgs + [x] %}{% endfor %}{{ msgs }}",
    "{% set i = 100 %}{% for k in [1] %}{% set i = i + k %}{{ i }}{% endfor %}{{ i }}",
    "{% for i in nums %}{{ i }}{% endfor %}{{ i }}", "{% for x in nums %}{% endfor %}{{ x is defined }}",
    # macros
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(1, c='y') }} {{ f(c=1, a=2) }} {{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(none) }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}", "{% macro f(a) %}{{ a }}{{ varargs|join(',') }}{{ kwargs|dictsort }}{% endmacro %}{{ f(1, 2, 3, z=4, y=5) }}",
    "{% macro f(a, b=a * 2) %}{{ b }}{% endmacro %}{{ f(4) }}", "{% macro f(a=i) %}{{ a }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ later() }}{% macro later() %}x{% endmacro %}",
    "{% macro f(x) %}[{{ caller() }}|{{ x }}]{% endmacro %}{% call f(1) %}body{{ i }}{% endcall %}",
    "{% macro f(items) %}{% for x in items %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(v, k=0) f(nums) %}<{{ v }}:{{ k }}>{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}", "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% call 5 %}{% endcall %}", "{% call s.upper() %}y{% endcall %}",
    "{% macro f(caller) %}{{ caller }}{% endmacro %}{{ f(1) }}", "{% macro f(caller=5) %}{{ caller }}{% endmacro %}{{ f() }}", "{% macro f(a, a) %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}",
    "{% macro outer() %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer() }}",
    "{% macro f() %}x{% endmacro %}{{ f }}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}{{ f.caller }}", "{% macro f() %} a {% endmacro %}[{{ f()|trim }}]{{ f() is string }}{{ f()|length }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ nums|map('string')|map('upper')|join }}{{ f(*[1]) }}{{ f(**{'a': 2}) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "{{ dict(a=1, a=2) }}", "{{ range(1, *[5]) | list }}",
    "{% macro f() %}{{ f2() }}{% endmacro %}{% macro f2() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}",
    "{% macro m(x) %}{{ x }}{{ caller() if caller else 'no' }}{% endmacro %}{% call m(1) %}A{% call m(2) %}B{% endcall %}{% endcall %}",
    "{% macro show(m) -%}\n  <{{ m.role }}>\n  {{- m.content }}\n{%- endmacro %}{% for m in messages[:2] %}{{ show(m) }}\n{% endfor %}",
    "{% macro f(x, y=[]) %}{{ y + [x] }}{% endmacro %}{{ f(1) }}{{ f(2) }}",
    # white space
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if t -%}\n  b\n  {%- endif -%}\nc\n", "a\n  {%+ if t %}\n  b\n  {%+ endif +%}\nc\n", "  {{ i }}  \n  {{- i -}}  \n", "{{ i }}\n{{ n }}\n\n", "a\n\n", "a\r\nb\r\n{% if t %}\r\nc{% endif %}\r\rd", "\n", "", "  ", "{# c #}\n", "{# c #}\nx", "  {# c #}  \nx\n  {#- c -#}  \ny", "a {#- c #} b {# c -#} c", "a{% if t %} {% endif %}b", "a {% if t -%} b {%- endif %} c",
    "x {% raw %} {{ a }} {% b %} {# c #} {% endraw %} y", "x\n  {% raw %}\n  {{ a }}\n  {% endraw %}\ny", "x {%- raw -%} {{ a }} {%- endraw -%} y", "{% raw %}{{", "{% raw %}a{% endraw", "  {% set x = 1 %}\n  {% set y = 2 %}\n{{ x }}{{ y }}", "{%- for x in nums -%}\n {{ x }} \n{%- endfor -%}\n", "a  {%- set x = 1 %}\n b", "\t{% if t %}\n\tx\n\t{% endif %}", "é\u00a0{% if t %}x{% endif %}", "\u2003{% if t %}x{% endif %}", "a\u00a0{%- if t %}x{% endif %}", "x{% if t %}\n\n y{% endif %}\n\nz", "{% if t %}  \nx{% endif %}", "a{{- ' b ' -}} c", "{{ '{{' }}{{ '}}' }}{{ '{%' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a':1}}}", "{{'a'}}}", "{{+1}}", "{{-1}}", "a {{-1}}", "a{%set x=1%}{{x}}", "{%if t%}a{%else%}b{%endif%}", "   {%- if t %}  x{% endif %}   ", "a\n   {{ i }}{% if t %}\nb{% endif %}\n", "{% if t %}a{% endif %}   {% if t %}b{% endif %}\n", "x\n    {% if t %}{% endif %}    {# c #}\ny", "line1\n    {# comment\n over lines #}\nline2", "{#- x -#}\n\n a", "a {#+ x +#}\n b", "{{ 'a\nb' }}\n{{ nosuch.x }}",
    # syntax errors
    "{{", "{%", "{#", "{{ }}", "{% %}", "{{ 1 + }}", "{{ 1 2 }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ {1} }}", "{{ 'a }}", "{{ a. }}", "{{ a| }}", "{{ a is }}", "{{ a..b }}", "{{ a ? b }}", "{{ a = 1 }}", "{{ ! a }}", "{{ a && b }}", "{% if %}{% endif %}", "{% if t %}", "{% endif %}", "{% if t %}{% endfor %}", "{% for %}{% endfor %}", "{% for x %}{% endfor %}", "{% for x in %}{% endfor %}", "{% for 1 in x %}{% endfor %}", "{% set %}", "{% set x %}", "{% set x = %}", "{% nosuch %}", "{% else %}", "{% if t %}{% else %}{% else %}{% endif %}", "{% macro %}{% endmacro %}", "{% macro f %}{% endmacro %}", "{% do 1 %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'x' import y %}", "{{ f(a=1, 2) }}", "{{ f(**a, *b) }}", "{{ f(*a, *b) }}", "{{ f(*a, b) }}", "{{ a[1:2:3:4] }}", "{{ 1if t else 2 }}", "{{ a.b.1.c }}", "{{ not }}", "{{ a not b }}", "{{ a is not }}", "{{ in a }}", "{{ 1 in }}", "{{ if }}", "{{ 0777 }}", "{{ 1__0 }}", "{{ 1.e5 }}", "{{ .5 }}", "{{ 1e }}", "{{ $ }}", "{{ a@b }}", "{{ '\\x4' }}", "{% if t %}x{% elif %}y{% endif %}", "{% for x in nums %}{% else %}{% else %}{% endfor %}", "{% call f() %}", "{% block %}{% endblock %}", "{% block a-b %}{% endblock %}", "{% filter %}{% endfilter %}", "{% filter nosuch %}{% endfilter %}", "{% with a %}{% endwith %}", "{% raw %}", "{{ a, }}", "{{ , }}", "{{ () }}", "{{ (1,) }}", "{{ [,] }}", "{{ [1,,2] }}", "{{ x[] is undefined }}", "{{ f(,) }}", "{{ nums[0, 1] is undefined }}", "{{ a b }}", "{% print 1, 2 %}", "{% print %}", "{{ 1 is 1 }}", "{{ ''' }}", "{{ \"a\"b }}",
    # the rest
    "{% if nosuch %}a{% elif i == 7 %}b{% else %}c{% endif %}", "{% if nosuch.x %}a{% endif %}", "{% if not nosuch and i %}a{% endif %}", "{% if i == 7, 2 %}a{% endif %}", "{% if no %}{{ i|nosuch }}{% endif %}ok", "{% if no %}{% for x in nums %}{{ x|nosuch }}{% endfor %}{% endif %}ok", "{% if t %}{{ i|nosuch }}{% endif %}", "{% if no %}{{ i is nosuch }}{% endif %}ok", "{% macro m() %}{{ i|nosuch }}{% endmacro %}", "{{ no and (i|nosuch) }}",
    "{% generation %}a{{ i }}{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ loop.index }}{% endgeneration %}{% endif %}{% endfor %}", "{% for x in nums %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{%- generation -%}\n  x\n{%- endgeneration %}",
    "{% set j = joiner(' | ') %}{% for x in nums %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a', 'b', 'c') %}{% for x in range(5) %}{{ c.next() }}{% endfor %}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}{{ c.next() }}", "{% set it = d.items() %}{{ it|list|length }}{{ it|list|length }}",
    "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}{% for k, v in users|groupby('age') %}{{ k }}{{ v|length }}{% endfor %}", "{{ (users|groupby('age'))[0] is sequence }}{{ (users|groupby('age'))[0].grouper }}",
    "{% for row in range(7)|batch(3, '-') %}{{ row|join(' ') }}\n{% endfor %}", "{% set x = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' and not x.found %}{% set x.found = true %}{{ m.content }}{% endif %}{% endfor %}{{ x.found }}",
    "{%- for message in messages %}\n    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\n        {{- message.role }}\n    {%- endif %}\n{%- endfor %}", "{{ messages | tojson(indent=2) }}", "{{ messages[2] }}", "{{ messages[3]['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}", "{{- 'x' if messages[0]['role'] == 'system' else '' }}{{ messages[1:] | map(attribute='role') | list }}",
    "{% for part in messages[3].content %}{% if part.type == 'text' %}{{ part.text }}{% elif part['type'] == 'image' %}<img>{% endif %}{% endfor %}", "{% if messages[0].tool_calls is defined %}a{% endif %}{% if messages[2].tool_calls %}{% for tc in messages[2].tool_calls %}{{ tc.function.name }}({% for k, v in tc.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}{% endif %}",
    "{% set content = messages[2].content %}{% if '</think>' in content %}a{% else %}{{ content.split('\\n')[-1].lstrip('\\n') }}{% endif %}", "{{ messages[2].content.split('?')[0].rstrip('\\n').split('!')[-1].lstrip('\\n') }}", "{% autoescape false %}{{ html }}{% endautoescape %}", "{{ html }}{{ html|safe }}{{ html|e }}", "{{ [1, 2, 3]|map('multiply', 2)|list }}",
    "{% set x = 5 %}{{ x }}{% set x = x + 1 %}{{ x }}{% set x %}{{ x }}!{% endset %}{{ x }}", "{{ i }}\n{{ 1/0 }}", "{% set a = [1] %}{% set b = a %}{{ a is sameas b }}{{ a == b }}", "{% set a = 'x' %}{% for k in [1,2] %}{% set a = a ~ k %}{{ a }} {% endfor %}{{ a }}",
    "{{ strftime_now('%d %B %Y') if strftime_now is defined else 'x' }}", "{{ raise_exception('Roles must alternate') if t }}", "{% if no %}{{ raise_exception('x') }}{% endif %}ok", "{{ 'a' if raise_exception is defined }}", "{% set f = raise_exception %}{{ f('from a variable') }}", "{{ ['boom'] | map('nosuch') }}ok" if False else "ok",
    "{% set x = {'a': [1, {'b': 2}]} %}{{ x.a[1].b }}{{ x['a'][0] }}{{ x.get('a')[1]['b'] }}", "{{ x is defined and x.y is defined }}{{ d.b is defined and d.b == 1 }}", "{% for k, v in {'a': 1, 'b': {'c': 2}}.items() recursive %}{{ k }}{% if v is mapping %}({{ loop(v.items()) }}){% else %}={{ v }};{% endif %}{% endfor %}",
    "{% for x in [3,2,1] %}{{ loop.index0 }}{% set y = loop.index %}{{ y }}{% if loop.index is divisibleby 2 %}!{% endif %}{% endfor %}", "{% set s2 = namespace(text='') %}{% for m in messages %}{% set s2.text = s2.text ~ m.role[0] %}{% endfor %}{{ s2.text|upper }}", "{{ (messages|length - 1) // 2 }}{{ messages|length > 3 and messages[-1].role != 'assistant' }}",
    "{% macro r(x) %}{% if x is mapping %}{{ '{' }}{% for k, v in x|dictsort %}{{ k }}:{{ r(v) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif x is sequence and x is not string %}[{% for y in x %}{{ r(y) }}{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ x|tojson }}{% endif %}{% endmacro %}{{ r(deep) }}{{ r(messages[2]) }}",
    # fields of cyclers, macros, loops; what calls and signatures refuse
    "{% set c = cycler(1, 2) %}{{ c.pos }}{{ c.items }}{% set _ = c.next() %}{{ c.pos }}{{ c.nosuch is undefined }}", "{{ cycler() }}", "{{ cycler(a=1) }}", "{% set j = joiner() %}{{ j() }}{{ j() }}", "{% set j = joiner() %}{{ j(1) }}", "{{ joiner(1, 2) }}",
    "{% macro f(*, a) %}{% endmacro %}", "{% macro f(a, a) %}{{ a }}{% endmacro %}{{ f(1) }}", "{% macro f(varargs) %}{{ varargs }}{% endmacro %}{{ f(1) }}{{ f.catch_varargs }}", "{% macro f(kwargs) %}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f.catch_kwargs }}", "{% macro f(caller) %}{{ caller }}{% endmacro %}{{ f(1) }}", "{% macro f(caller=none) %}{{ caller() if caller else 'no' }}{% endmacro %}{{ f() }}{% call f() %}x{% endcall %}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}{{ f.catch_varargs }}{{ f.catch_kwargs }}{{ f.arguments }}{{ f.nosuch is undefined }}", "{% macro f(a, b) %}{% endmacro %}{{ f.arguments }}", "{% macro f() %}{% endmacro %}{{ f(1) }}", "{% macro f() %}{% endmacro %}{{ f(x=1) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "{% macro m() %}{{ caller.arguments }}{{ caller.name }}{{ caller(1) }}{% endmacro %}{% call(x) m() %}<{{ x }}>{% endcall %}", 
    "{% call 5 %}x{% endcall %}", "{% call nosuch() %}x{% endcall %}", "{% call nums.x %}x{% endcall %}", "{% call(a) %}x{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a) m() %}{{ a }}{% endcall %}", "{% call (a, b=2) nums %}{% endcall %}",
    "{% for x in nums %}{{ loop.cycle() }}{% endfor %}", "{% for x in nums %}{{ loop.cycle(a=1) }}{% endfor %}", "{% for x in nums %}{{ loop.changed(a=1) }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.changed() }}{% endfor %}", "{% for x in nums %}{{ loop() }}{% endfor %}", "{% for x in nums recursive %}{{ loop(1, 2) }}{% endfor %}", "{% for x in nums recursive %}{{ loop(a=1) }}{% endfor %}", "{% for x in nums recursive %}{{ loop(5) }}{% endfor %}", "{% for x in nums %}{{ loop.nosuch is undefined }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.first }}{{ loop|length }}{% endfor %}", "{% for x in nums %}{{ loop.previtem.x }}{% endfor %}", "{% for x in [1] %}{{ loop.nextitem.x }}{% endfor %}", "{% for x in nums %}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}",
    "{% for x in d.items() if x[1] > 1 %}{{ x }}{{ loop.length }}{{ loop.last }}{% endfor %}", "{% for x in nums if loop.first %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in nosuch %}{% else %}none{% endfor %}", "{% for a, b in [nosuch] %}{% endfor %}", "{% for a, b in [5] %}{% endfor %}", "{% for loop in nums %}{% endfor %}", "{% for x, loop in [[1, 2]] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in 'aé日' %}{{ x }}.{% endfor %}", "{% for x in [] %}{% else %}{{ loop is defined }}{% endfor %}", "{% break %}", "{% continue %}", "{% macro f() %}{% break %}{% endmacro %}", "{% for x in nums %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{{ loop.index }}{% endfor %}",
    "{% set none = 1 %}", "{% set true = 1 %}", "{% set a.b = 1 %}", "{% set d.b = 1 %}", "{% set a, b = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = [1, 2] %}{{ b }}{{ a }}", "{% set a, none = 1, 2 %}", "{% set a, 'x' = 1, 2 %}", "{% set a[0] = 1 %}", "{% set x | upper %}ab{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}a{% endset %}{{ x }}{{ x is escaped }}", "{% set x, y %}ab{% endset %}", "{% set ns = namespace() %}{% set ns.a %}body{% endset %}{{ ns.a }}", "{% set ns = namespace(a=1) %}{% for x in nums %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}", "{% for ns.x in nums %}{% endfor %}",
    "{% with %}{{ i }}{% endwith %}", "{% with a = 1, b = a %}{{ b is defined }}{% endwith %}", "{% with a = 1 b = 2 %}{% endwith %}", "{% with a, b = [1, 2] %}{{ a }}{{ b }}{% endwith %}", "{% with a = 1 %}{% set i = 9 %}{{ i }}{% endwith %}{{ i }}", "{% filter upper %}a{{ i }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}a{% endfilter %}", "{% filter join(nosuch=1) %}a{% endfilter %}", "{% block b %}{{ i }}{% endblock %}", "{% block b %}{% endblock b %}x", 
    "{{ f(a=1, a=2) }}", "{{ f(a=1, **d, b=2) }}", "{{ f(**d, c) }}", "{{ nums[] }}", "{{ nums[::] }}", "{{ nums[1 }}", "{{ nums[1: }}", "{{ i.5 }}", "{{ nums.1.real }}", "{{ i|a.b }}", "{{ i|string.x }}", "{{ i is a.b }}", "{{ i is divisibleby 7 and t }}", "{{ i is divisibleby(7) }}", "{{ i is divisibleby nums.1 }}", "{{ nums is sameas nums[:] }}", "{{ i is sameas deep.x }}", "{{ i is eq nums[0] + 4 }}", "{{ i is in [7] }}", "{{ i is not in [7] }}", "{{ i is none }}", "{{ i is true }}", "{{ 'a' is eq 'a' 'b' }}", "{{ i is divisibleby -7 }}", "{{ d is eq {'a': 1} }}", "{{ i is eq (7) }}",
    "{{ 1 if 0 else 2 if 0 else 3 }}", "{{ (1 if 0 else 2) if 1 }}", "{{ [1 if t else 2, 3 if no] }}", "{{ 1 < 2 in [2] }}", "{{ 1 in [1] in [[1]] }}", "{{ 1 not in [2] }}", "{{ not not 1 }}", "{{ 2**-1 }}", "{{ -2**2 }}", "{{ (1, ) }}", "{{ 1, }}", "{{ (1, 2 }}", "{{ {'a': 1, } }}", "{{ {'a' 1} }}", "{{ {'a':} }}", "{{ {1: 2, 3} }}", "{{ {**d} }}", "{{ [*nums] }}", "{{ a if }}", "{{ a if b else }}", "{{ lambda }}", "{{ 'a'.upper()() }}", "{{ 'a' 'b'.upper() }}", "{{ 1_ }}", "{{ 0x }}", "{{ 0b2 }}", "{{ 0o8 }}", "{{ 0x_f }}", "{{ 00 }}", "{{ 0_0 }}", "{{ 01 }}", "{{ 1.5.5 }}", "{{ 1e+5 }}{{ 1E-5 }}{{ 1_0.5_0e1_0 }}", "{{ 1e5.x is undefined }}", "{{ 1.real }}", "{{ 1..x }}", "{{ 1.__x }}", "{{ \"a'b\" 'c\"d' }}", "{{ '\\q\\'\\\"\\\\' }}", "{{ 'a",
    "{{ i }}{{", "{{ i }}{%", "{{ i }}{#", "{{ i }}{", "{ { i } }", "{", "}}", "%}", "#}", "{{ '}}' }}", "{% raw %}{% endraw %}{% raw %}{{ i }}{% endraw -%}  x", "{%- raw +%} a {%+ endraw -%} b", "{% raw x %}{% endraw %}", "{% endraw %}", "  {%+ if t %}a{% endif %}", "{{- i -}}{{+ i }}", "{{ -i }}{{ - i }}", "{%\nif\nt\n%}a{%\nendif\n%}\n{{ nosuch.x }}", "{# {# #}x#}", "{#", "{#-#}x", "{%-%}", "{{-}}", "{%- -%}",
    "{% if t %}a{% elif no %}b{% elif i %}c{% endif %}", "{% if no %}a{% elif no %}b{% endif %}", "{% if t %}{% elif %}{% endif %}", "{% elif t %}", "{% if t %}{% endif x %}", "{% for x in nums x %}{% endfor %}", "{% for x in nums if %}{% endfor %}", "{% for x in nums recursive if x %}{% endfor %}", "{% set x = 1 x %}", "{% print i %}", "{% print i, %}", "{% print 1 2 %}", "{% include 'a' ignore missing %}x", "{% generation %}", "{% generation x %}{% endgeneration %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% macro f(1) %}{% endmacro %}", "{% macro f(a b) %}{% endmacro %}", "{% macro f(a=) %}{% endmacro %}", "{% macro 1() %}{% endmacro %}", "{% macro none() %}{% endmacro %}", "{% call() %}{% endcall %}", "{% macro f(a=i, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}{{ f(1) }}{{ f(b=2) }}",
    "{% set i = 1 %}{% if t %}{% set i = 2 %}{% else %}{% set i = 3 %}{% endif %}{{ i }}", "{% if no %}{% set q1 = 2 %}{% endif %}{{ q1 is defined }}", "{% for x in nums %}{% set i = x %}{% endfor %}{{ i }}", "{% for i in nums %}{% if i == 1 %}{% set n = i %}{% endif %}{{ n }}{% endfor %}{{ n }}{{ i }}", "{% macro f() %}{{ i }}{% set i = 2 %}{{ i }}{% endmacro %}{{ f() }}{{ i }}", "{% for x in [1] %}{% for y in [x] %}{% set z = x + y %}{{ z }}{{ i }}{% endfor %}{% endfor %}", "{% macro g(x) %}{% for y in x %}{% macro h() %}{{ y }}{{ x }}{{ i }}{% endmacro %}{{ h() }}{% endfor %}{% endmacro %}{{ g([1, 2]) }}", "{% if t %}{% macro f() %}a{% endmacro %}{% endif %}{{ f() }}", "{% set f = 1 %}{% macro f() %}a{% endmacro %}{{ f() }}", "{% for x in nums if x > i - 6 %}{{ x }}{% else %}{{ i }}{% endfor %}", "{% set x = i %}{% set i = x + 1 %}{% set x = i %}{{ x }}", "{% with i = i + 1 %}{{ i }}{% with i = i * 2 %}{{ i }}{% endwith %}{{ i }}{% endwith %}{{ i }}", "{% filter upper %}{% set i = 'q' %}{{ i }}{% endfilter %}{{ i }}", "{% set x %}{% set i = 5 %}{{ i }}{% endset %}{{ x }}{{ i }}",
]


def cases():
    for line in EXPRESSIONS.replace("\\\nb", "\\\x00b").split("\n"):
        yield "{{ " + line.replace("\\\x00b", "\\\nb") + " }}"
    yield from TEMPLATES


def main():
    env = environment()
    recorded = []
    for template in cases():
        case = {"template": template}
        try:
            case["output"] = env.from_string(template).render(**CONTEXT)
            case["output"].encode()
        except jinja2.exceptions.TemplateError as error:
            case["error"] = type(error).__name__ + ": " + str(error)
        except Exception as error:  # whatever Python raises is what a template's author sees
            case["error"] = type(error).__name__ + ": " + str(error)
        recorded.append(case)
    json.dump({"jinja2": jinja2.__version__, "context": CONTEXT, "cases": recorded}, sys.stdout, ensure_ascii=False, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
