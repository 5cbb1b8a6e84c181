#!/usr/bin/env python3
"""Records what Python's Jinja2 makes of a few hundred small templates: tests/data/jinja/differential.json.

The environment is the one Transformers renders chat templates with. Jinja2 3.1.6 recorded the file in the repository; older
releases differ in a few cases (list.pop, int of an infinity).

    tools/make_jinja_cases.py > tests/data/jinja/differential.json
"""
import datetime
import json
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
EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7.5 // 2, -7.5 // 2, 7.5 % 2, -7.5 % 2, 7 / 2, 6 / 3
2 ** 10, 2 ** -1, 2 ** 0.5, -2 ** 2, 2 ** 3 ** 2
1 / 0
1 // 0
1 % 0
1.0 / 0
10 ** 18
9223372036854775807
true + true, true * 3, -true
1_000 + 0x1F + 0b101 + 0o17
1.5e3, 1e16, 1e15, 123456789012345680.0, 0.0001, 0.00001, 1e100, 1.0, -0.0
floats
floats | map('string') | list
floats | tojson
1 == 1.0, 1 == true, '1' == 1, [1] == [1.0], {'a': 1} == {'a': 1.0}, (1,) == [1]
1 < 2 < 3, 1 < 3 < 2, 1 < 2 > 1 == true
'a' < 'b', 'a' < 'B', [1, 2] < [1, 3], (1, 2) < (1, 2, 0)
1 < 'a'
none < 1
{} < {}
'a' in 'abc', 'x' not in 'abc', 1 in [1, 2], 'b' in d, 1 in nums, none in mixed
1 in 'abc'
not 1 in [2], not true == false
1 if true else 2, (1 if false), 'x' if e else 'y'
(1 if false) is undefined
1 and 2, 0 and 2, 0 or 'x', '' or [] or 'last', not 0
'a' ~ 1 ~ 2.0 ~ none ~ true ~ [1, 'x']
'a' + 'b' * 3
'a' + 1
1 + 'a'
[1] + [2] * 2
[1] + (2,)
(1, 2) + (3,)
'%s and %d and %5.2f|%-5s|%05d|%+d|%x|%X|%o|%e|%g|%%' % ('a', 3, 2.5, 'x', 42, 5, 255, 255, 8, 12345.678, 0.0001)
'%s' % [1, 2]
'%s' % (1, 2)
'%(a)s-%(b)03d' % {'a': 'x', 'b': 7}
'%r %a' % ('é', 'é')
'%d' % 'x'
'%d' % 3.9
'%c%c' % (65, 'z')
'%10s|%-10s|%.2s' % ('abc', 'abc', 'abc')
'%*d' % (5, 42)
'x' % 1
'%s %s' % 'a'
'%q' % 1
'{} {}'.format(1, 'x')
'{0} {1} {0}'.format('a', 'b')
'{a} {b!r}'.format(a=1, b='x')
'{:>8}|{:<8}|{:^8}|{:*^9}'.format('ab', 'cd', 'ef', 'gh')
'{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#x}|{:b}|{:o}|{:c}'.format(42, 42, 1234567, 1234567, 255, 255, 5, 8, 65)
'{:.2f}|{:8.3f}|{:e}|{:g}|{:%}|{:.1%}|{:,.2f}|{}'.format(3.14159, 2.5, 12345.678, 0.00001, 0.5, 0.256, 1234567.891, 1.0)
'{:010.3f}|{:+.1f}|{: d}|{:012,d}'.format(3.14159, 2.0, 5, 1234567)
'{0[a]} {0[b][1]} {1.real}'.format({'a': 1, 'b': [1, 2]}, 5)
'{{}} {}'.format(1)
'{:{w}}|'.format('x', w=5)
'{}'.format()
'{x}'.format(y=1)
'{:d}'.format('x')
'{:s}'.format(1)
'{:.3}'.format('abcdef')
'{} {1}'.format(1, 2)
'{'.format(1)
'{:5}|{:5}'.format(true, none)
'{!s:>5}'.format(none)
s[0], s[-1], s[1:4], s[::-1], s[::2], s[-3:], s[:-3], s[10:2], s[100:], s[5:1:-1], s[-100:3]
u[0], u[4], u[-1], u[::-1], u[8:12], u[2:9:3]
nums[::-1], nums[1:], nums[:1], nums[-2:], nums[::2], nums[5:]
nums[10] is undefined, nums['x'] is undefined, nums[-1], nums[1.5] is undefined
nums[10].x
nest[1][1][0], nest.1.0, nest[0].0
(1, 2, 3)[1:], range(10)[2:8:2] | list, range(10)[-1], range(5)[7] is undefined
s['upper'](), s.upper(), d['items']() | list, d.items() | list
d.b, d['b'], d.missing is undefined, d['missing'] is undefined, d.get('b'), d.get('zz'), d.get('zz', 5)
d[[1]] is undefined
d.keys() | list, d.values() | list, d.keys(), d.items(), d.values()
d, nest, mixed, users
deep.x.y.z[2].k, deep['x']['y'].z[0]
deep.x.q.z
missing
missing.x
missing['x']
missing()
missing + 1
missing ~ 'x'
missing == missing2, missing == none, missing | length, missing | list, missing | join(',')
missing | int
missing | upper
missing < 1
missing in [1], 1 in missing
-missing
not missing
missing[1:2]
nil.x
nil.x.y
nil['x'] is undefined
(nil.x) is defined, (d.zz.q) is defined
none, true, false, None, True, False, [none, true], {'a': none}
q
[q], [s, 'it\'s', "a\"b", '\'"'], ['\x00\x1f\x7f\x80\u200b\u3000é日\U0001F600']
[u]
'\x41\u00e9\n\t\\\'\101\q', "a\
b"
'a' 'b' "c"
(), (1,), (1, 2), [()], {}, [], {'a': {}, 1: 'x', none: 2, true: 3, (1, 2): 4, 1.5: 5}
{1: 'a', true: 'b', 1.0: 'c'}
{[1]: 2}
range(5), range(1, 5), range(0, 10, 3), range(5) | list, range(5, 0, -2) | list, range(3) | length
range(2, 9, 2).index(4), range(4).count(7), range(4).index(2.0), range(4).count("x"), missing.__class__ is defined, 5.x is defined
range(4).index(9)
'' % range(4), 'a' % [1], 'b' % {}
range(0)| list, range(-3) | list, 3 in range(5), range(5) == range(0, 5)
range(1, 2, 0)
range(200000)
range('x')
s | upper, s | lower, u | upper, u | lower, u | title, u | capitalize
'ǅ ŉ ΌΣΟΣ ΣΑΣ İ ßtraße' | lower, 'ΌΣΟΣ ŉ ǰ ﬁn' | title, 'ǆ ßa'.title(), 'ΑΣ'.lower(), 'ŉ'.upper(), 'ﬃ'.capitalize()
'ß'.casefold(), 'ΑΣ'.casefold(), 'Straße'.swapcase()
"they're bill's friends-from the (uk) x1y" | title, "they're bill's friends x1y".title()
'hELLO wORLD' | capitalize, 'hELLO'.capitalize(), ''|capitalize, ''|title
ws | trim, ws.strip(), ws.lstrip(), ws.rstrip(), 'xxaxx' | trim('x'), 'xyaxy'.strip('yx'), 'é é'.strip('é')
'　 a\x1f\x85'.strip() ~ '|'
csv.split(','), csv.split(',', 1), csv.rsplit(',', 1), ws.split(), ws.split(none, 1), ws.rsplit(none, 1), csv.split('zz'), e.split(), e.split(',')
csv.split(sep=',', maxsplit=2), 'a b c'.split(maxsplit=1), 'a  b c '.rsplit(maxsplit=1), ' a b '.split(' ')
csv.split('')
csv.split(1)
'a\nb\r\nc\x0bd\u2028e\n'.splitlines(), 'a\nb'.splitlines(true), 'a\n\nb\n'.splitlines(keepends=true), ''.splitlines()
'a=b=c'.partition('='), 'a=b=c'.rpartition('='), 'abc'.partition('='), 'abc'.rpartition('=')
'aXbXc'.replace('X', '-'), 'aXbXc'.replace('X', '-', 1), 'abc'.replace('', '-'), 'aé'.replace('', '.', 2), 'aaa'.replace('aa', 'b')
'abc'.replace('a')
'abc'.replace('a', 'b', count=1)
'abc' | replace('b', 'X'), 'aaa' | replace('a', 'b', 2), 123 | replace(2, 'x'), 'aaa' | replace('a', 'b', count=1)
'abcabc'.find('c'), 'abcabc'.rfind('c'), 'abc'.find('z'), 'abcabc'.index('b', 2), 'é日本'.find('本'), 'abcabc'.count('bc'), 'aaaa'.count('aa'), 'abc'.count(''), 'abc'.find('', 5), 'abcabc'.find('a', -4, -1)
'abc'.index('z')
s.startswith('Hello'), s.endswith(('x', 'ld')), s.startswith('World', 6), s.startswith('W', 6, 7), s.endswith('o', 0, 5), s.startswith(''), s.startswith(())
s.startswith(1)
s.startswith(['H'])
'abc'.removeprefix('a'), 'abc'.removesuffix('bc'), 'abc'.removeprefix('x')
'-'.join(['a', 'b']), ','.join('abc'), ''.join([]), '-'.join(d)
'-'.join([1, 2])
'ab'.ljust(5) ~ '|', 'ab'.rjust(5, '*'), 'ab'.center(5, '*'), 'abc'.center(6, '*'), 'é'.center(4, '日'), '-42'.zfill(6), 'x'.zfill(3), 'a\tb'.expandtabs(4), 'a\tb\tc'.expandtabs()
'ab'.center(5, '**')
'abc'.isalpha(), 'é1'.isalnum(), '12'.isdigit(), '²'.isdigit(), '²'.isdecimal(), '½'.isnumeric(), ' \t'.isspace(), 'A1'.isupper(), 'a1'.islower(), 'Ab Cd'.istitle(), 'a_1'.isidentifier(), '1a'.isidentifier(), 'é'.isascii(), ''.isascii(), 'a\n'.isprintable(), ''.isalpha()
'abc'.upper(1)
'abc'.nosuch
'abc'.nosuch()
'abc'.__class__
'abc'.__class__.x
[].append
[].append(1)
nums.append(4)
nums.sort()
nums.pop()
d.pop('a')
d.update({'x': 1})
d.clear is defined, nums.append is defined
nums.count(1), nums.index(2), nums.copy(), d.copy(), (1, 2, 1).count(1), (1, 2).index(2)
nums.index(99)
nums | sort, nums | sort(reverse=true), words | sort, words | sort(case_sensitive=true), words | sort(true)
users | sort(attribute='age') | map(attribute='name') | list, users | sort(attribute='age,name', reverse=true) | map(attribute='name') | list, users | sort(attribute='name') | map(attribute='name') | join(' ')
mixed | sort
[[2, 'b'], [1, 'z'], [2, 'a']] | sort, [[2, 'b'], [1, 'z'], [2, 'a']] | sort(attribute='1'), [[2, 'b'], [1, 'z'], [2, 'a']] | sort(attribute=0)
[{'a': 1}, {}] | sort(attribute='a')
[{}, {}] | sort(attribute='a')
d | dictsort, d | dictsort(true), d | dictsort(by='value'), d | dictsort(reverse=true), d | dictsort(false, 'value', true)
d | dictsort(by='x')
[1] | dictsort
d | items | list, d | list, missing | items | list
[1] | items | list
nums | first, nums | last, 'abc' | first, 'abc' | last, d | first, d | last, empty | first, empty | last
(nums | map('string')) | last
missing | first, missing | last
5 | first
nums | length, s | length, u | length, d | length, nums | count, range(4) | length, d.items() | length
5 | length
nums | map('string') | length
nums | min, nums | max, words | min, words | max, words | min(true), users | max(attribute='age'), empty | min, 'hello' | max, nums | sum, users | sum(attribute='age'), [1.5, 2] | sum(start=10), empty | sum
mixed | min
['a'] | sum
[[1], [2]] | sum(start=[])
nums | map('string') | list, words | map('upper') | join(' '), nums | map('round', 1) | list, words | map('replace', 'a', 'X') | list, words | map(attribute=0) | list
users | map(attribute='name') | list, users | map(attribute='tags.0', default='none') | list, users | map(attribute='zip', default=0) | list, users | map(attribute='zip') | list
nums | map | list
nums | map('nosuch') | list
nums | map('nosuch') | string | length > 0
empty | map('nosuch') | list
nums | map(attribute='x', foo=1) | list
users | selectattr('age', 'equalto', 30) | map(attribute='name') | list, users | rejectattr('tags') | map(attribute='name') | list, users | selectattr('tags', 'defined') | list | length, users | selectattr('age', '>', 26) | map(attribute='name') | join(',')
users | selectattr('tags.0', 'eq', 'x') | list | length, users | selectattr('name', 'in', ['Bob', 'Carl']) | map(attribute='name') | list
nums | select('odd') | list, nums | reject('odd') | list, mixed | select | list, mixed | reject | list, nums | select('gt', 1) | list, mixed | select('string') | list, mixed | select('none') | list, nums | select('divisibleby', 3) | list
nums | select('nosuch') | list
users | selectattr | list
5 | select | list
0 | select | list
nums | select('odd') | first, nums | select('lt', 0) | first is undefined, (nums | select('odd')) is iterable, (nums | select('odd')) is sequence, 'x' if nums | select('lt', 0) else 'y'
words | unique | list, words | unique(true) | list, [1, 1.0, true, 2] | unique | list, users | unique(attribute='age') | map(attribute='name') | list
[[1], [1]] | unique | list
users | groupby('age') | map(attribute='grouper') | list, (users | groupby('age') | list)[0].list | length, (users | groupby('age'))[1], words | groupby(0) | map('first') | list, users | groupby('tags', default=['q']) | length
words | groupby('0', case_sensitive=true) | map(attribute=0) | list
nums | batch(2) | list, nums | batch(2, 'x') | list, range(7) | slice(3) | list, range(7) | slice(3, '-') | list, empty | batch(3) | list, nums | batch(5, 0) | list, range(2) | slice(3) | list
nums | slice(0) | list
nums | reverse | list, 'abc' | reverse, u | reverse, d | reverse | list, (nums | reverse) is iterable, (1, 2) | reverse | list, range(3) | reverse | list
(nums | map('string')) | reverse
5 | reverse
nums | join, nums | join(','), nums | join(', ', attribute='x'), users | join(', ', attribute='name'), 'abc' | join('-'), d | join('/'), nums | join(1), mixed | join(' ')
5 | join
3.7 | int, '42' | int, ' 42 ' | int, '4_2' | int, '3.9' | int, 'x' | int, 'x' | int(5), '0x1F' | int(0, 16), '1F' | int(base=16), '101' | int(base=2), '1e3' | int, none | int, true | int, [1] | int(default=-1), '-7' | int, 'inf' | int, '0b11' | int(base=0), '' | int
3 | float, '3.5' | float, 'x' | float, 'x' | float(1.5), '1e3' | float, 'inf' | float, '-nan' | float, none | float, true | float, ' 2.5 ' | float, '1_0.5' | float
2.5 | round, 3.5 | round, 2.675 | round(2), 42 | round, 42.55 | round(1, 'floor'), 42.55 | round(1, 'ceil'), -2.5 | round, 1234.5 | round(-2), 7 | round(-1), 2.5 | round(0, 'ceil'), 7 | round(1, 'floor'), 15 | round(-1), 25 | round(-1), 0.5 | round, 1e20 | round(2)
2.5 | round(1, 'x')
'x' | round
-5 | abs, 5.5 | abs, -5.5 | abs, true | abs
'x' | abs
missing | default('x'), none | default('x'), none | default('x', true), '' | d('y', boolean=true), 0 | default(1), missing | default, missing | default(none), d.q | default('z'), d.q.r | default('z')
d.q | default('z') | upper, (missing | default([])) | length
'a\nb\n\nc' | indent, 'a\nb\n\nc' | indent(2), 'a\nb\n\nc' | indent(2, true), 'a\nb\n\nc' | indent(2, first=false, blank=true), 'a\nb' | indent('> '), 'a\r\nb\n' | indent(1), '' | indent, 'x' | indent(width=2, first=true), 'a\nb' | indent(0)
5 | indent
'hello big world foo' | truncate(9), 'hello big world foo' | truncate(9, true), 'hello big world foo' | truncate(11, false, '…'), 'short' | truncate(5), 'hello world' | truncate(9, leeway=0), 'hello world' | truncate(5, true, '..', 0)
'abc' | truncate(1)
'a b' | wordcount, "it's a x_y é" | wordcount, '' | wordcount, 'ab' | center(6) ~ '|', 'abc' | center(width=8) ~ '|'
'a b/c?d=é&' | urlencode, {'a b': 'c&d', 'é': 1} | urlencode, [('x', 1), ('y', '/')] | urlencode, 5 | urlencode
html | e, html | escape, html | safe, html | safe | e, html | e | e, html | forceescape, (html | e) | forceescape, (html | safe) ~ html, (html | safe) + html, html + (html | safe), ('<' | safe) * 3, [html | safe], 5 | e, none | e
('<%s>' | safe) % html, ('<{}>' | safe).format(html), (html | safe).replace('b', '<'), (html | safe)[1:3] + '<', ('<' | safe).join(['<', '>']), ('<a,b' | safe).split(',')[0] + '>', (html | safe) | upper + '<', (html | safe) | trim + '<', (html | e | string) + '<', (html | safe) | replace('b', 'i') + '<', ('&' | safe) in html
html | e is escaped, html is escaped, (html | safe).upper() + '<', ('a\nb' | safe) | indent + '<', ('a' | safe).strip() + '<', ('ab' | safe) | first + '<', ('a' | safe) == 'a', {'a': 1}['a' | safe], ('<a>' | safe) | length
{'class': 'a"b', 'id': none, 'x': 1} | xmlattr, {} | xmlattr, {'a': 'b'} | xmlattr(false)
{'a b': 1} | xmlattr
1 | filesizeformat, 999 | filesizeformat, 1000 | filesizeformat, 123456789 | filesizeformat, 1024 | filesizeformat(true), 1500000 | filesizeformat(binary=true), '5000' | filesizeformat
users | tojson, d | tojson, mixed | tojson, u | tojson, q | tojson, html | tojson, none | tojson, [] | tojson, {} | tojson, (1, 2) | tojson, 1.0 | tojson, 1e16 | tojson, true | tojson, [[], {}, [[]]] | tojson
d | tojson(indent=2), users | tojson(indent=4), nest | tojson(indent=1), d | tojson(indent=0), d | tojson(indent='\t'), {} | tojson(indent=2), [[], {}] | tojson(indent=2), d | tojson(indent=-1)
d | tojson(separators=(',', ':')), d | tojson(separators=[', ', ' : '], indent=2), d | tojson(sort_keys=true), u | tojson(ensure_ascii=true), q | tojson(ensure_ascii=true), d | tojson(true, 2, none, true), {'é': '\x7f\x80'} | tojson(true)
{1: 2, none: 3, true: 4, 1.5: 5} | tojson, {2: 'a', 1: 'b'} | tojson(sort_keys=true)
{(1, 2): 3} | tojson
{1: 2, 'a': 3} | tojson(sort_keys=true)
missing | tojson
[missing] | tojson
nums | map('string') | tojson
range(3) | tojson
d.items() | tojson
d | tojson(foo=1)
(html | safe) | tojson, '1e999' | float | tojson
s | string, 5 | string, none | string, d | string | length, [1, 'a'] | string, 1.50 | string
'%s-%s' | format(1, 'a'), '%(x)s' | format(x=5), '%05.1f' | format(3.14159), 'x' | format
'%s' | format(1, 2)
nums | list, 'abc' | list, d | list, range(3) | list, none | list
'abc' | attr('upper') is callable, d | attr('b') is defined, d | attr('items') is callable, 'x' | attr('nope') is undefined
i is odd, i is even, 4 is divisibleby 2, 4 is divisibleby(3), z is even, n is odd, 2.0 is even, true is odd
'a' is odd
i is number, f is number, t is number, s is number, i is integer, t is integer, f is float, f is integer, t is boolean, 1 is boolean, t is true, no is false, 1 is true, none is none, nil is none, s is string, i is string
s is sequence, nums is sequence, d is sequence, i is sequence, missing is sequence, range(2) is sequence, d is mapping, nums is mapping, s is iterable, i is iterable, none is iterable, missing is iterable, d.items() is iterable, d.items() is sequence
s is lower, 'abc' is lower, 'ABC' is upper, '' is upper, 5 is lower, i is sameas i, none is sameas none, 1 is sameas true, s is callable, s.upper is callable, range is callable, missing is callable
i is eq 7, i is equalto 7, i is ne 8, i is gt 5, i is lt 5, i is ge 7, i is le 7, i is == 7 if false else 'x', i is in [7], 'a' is in 'abc', i is greaterthan 3, i is lessthan 3
'upper' is filter, 'nosuch' is filter, 'odd' is test, 'nosuch' is test
i is not odd, not i is odd, i is defined and missing is not defined, missing is undefined or i, i is odd and n is odd, (i is odd) == true
i is nosuch
(i is nosuch) if false else 'x'
(i | nosuch) if false else 'x'
(i | nosuch) if true else 'x'
i | nosuch
i is divisibleby
i is odd is true
dict(a=1, b=2), dict([('x', 1), ['y', 2]]), dict({'a': 1}, b=2), dict(), dict(d, **{'q': 1})
dict(1)
dict([1])
namespace(a=1).a, namespace({'x': 2}).x, namespace(a=1).b is undefined, namespace(a=1)['a'], namespace(a=[1])
namespace(a=1).b.c
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y'), strftime_now('%B %-d, %Y %H:%M:%S %A %j %p %y %%'), strftime_now('')
raise_exception('boom: é "x"')
raise_exception()
raise_exception(d)
5()
'x'()
none()
d()
nums.x()
[1, 2, 3,], {'a': 1,}, (1, 2,), [1
{'a': 1}.a, [1, 2][0], (1, 2)[0], 'abc'[1], {'a': {'b': 1}}['a']['b']
d|length == 3, nums|first + 1, -nums|first, nums|length * 2, (nums|length)**2, not nums|length, 'a' ~ nums|length, 1 + nums | length
-1 | abs, -i, +i, --i, -(-i), - 1 + 2, 2 - -1
-'a'
+none
[] | length or 'none', ({}.x or 'default'), (nums or []) [0]
s.split(' ')[0].lower() | replace('h', 'j') | title
nums[0] if nums else none, nums[0] if nums is iterable and nums is not string else 'no'
[i, n] | max if i > n else 0
'abc'.upper().lower()[1:].replace('b', 'x') ~ s[:2]
cycler(1, 2).next(), cycler('a').current, joiner('|')(), joiner()() ~ 'x'
cycler()
users[0]['name'].upper(), users[0].tags[0], users[-1].tags is defined, users[0].get('zip', {}).get('code', 'none')
messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length, (messages | last).content[0].text, messages[-1]['content'][0]['type'], messages[1:] | length, messages[2].tool_calls[0].function.arguments | tojson, messages[0].content is string, messages[3].content is not string
messages[2].tool_calls[0]['function'] | items | list
1 in [1.0, 2], 1.0 in {1: 'x'}, 'a' in ['A' | lower], [1] in [[1], 2], none in [none], missing in [missing2]
[1] in {}
x.y is defined
'a' < none
[3, 'a'] | max
true < 2, true + 1.5, false == 0, [true, 1] | unique | list
big, big + 1, big * 2, big // 10, big % 10, big / 10, big == 9007199254740992.0, big == 9007199254740993, big | tojson, big | float
0.1 + 0.2, 1e308 * 10, 3.0 * 2, 7.0 // 2, 1.1 % 1, 5 % 2.5, -1e-7, 1.0e-4, 12345678901234567890.0, 0.1 + 0.7
1e308 * 10 - 1e308 * 10
'é' < 'z', 'Z' < 'a', '10' < '9', 'ab' < 'abc'
loop
'{!a}'.format('é')
'a,b' | replace(',', '\n') | indent(2, true)
5.real, 1.5.is_integer(), (5).bit_length()
lipsum is callable, dict is callable, range is defined, namespace is defined
'x' * 0, 'x' * -1, [1] * 0, 3 * 'ab', 'é' * 3
'x' * 1.5
nums * 'a'
[1, 2] - [1]
{'a': 1} + {'b': 2}
d.items() | first, d.items() | sort, d.values() | sum, d.keys() | sort | join, d.values() | max, d.items() | map('first') | list, d.items() | map('last') | list
d.items()[0]
d.keys()[0] is undefined
nums[0:'a']
nums[::0]
d[0:1]
i[0:1]
nums[true], nums[none:2], nums[:none]
"a" "b" ~ 'c' 'd'

[[1, 2], [3, 4]] | map('sum') | list, [[1, 2], [3]] | map('length') | list, ['a', 'b'] | map('upper') | map('lower') | join('+'), [[3, 1], [2]] | map('sort') | list, ['1', '2'] | map('int') | sum
words | map('length') | list, words | map('first') | join, words | select('in', 'banana split') | list, words | map('indent', 2, true) | list
words | sort | first | upper, words | map('lower') | unique | sort | join(', '), words | reject('eq', 'Apple') | list
'Hello %s, you are %i' % ('Bob', 5.7), '%s' % none, '%s' % true, '%5s|%-5d|' % (none, 3), '%.3s' % 12345, '%s' % d
'%.10g|%G|%E|%F' % (1/3, 1e-10, 12345.6789, 1.5), '%#x %#o' % (255, 8), '% d' % 5, '%+.2e' % 12345.678
'%i%%' % 50, '%%' % (), '%s%%' % 5
range(10)[2:5:2], range(10)[::-1], range(10)[8:2:-3], range(10)[5:2], range(10)[:-20], range(0, 10, 3)[1:][1:][::2]
range(10)[::-9223372036854775807 - 1], range(10)[::9223372036854775807], range(3)[-9223372036854775807 - 1:9223372036854775807]
range(-9223372036854775807, 9223372036854775807, 9223372036854775806)[-1], range(-9223372036854775807, 9223372036854775807, 9223372036854775806) | list
range(-9223372036854775807, 9223372036854775807, 9223372036854775806).index(9223372036854775805)
range(9223372036854775807, -9223372036854775807, -9223372036854775806).index(-9223372036854775805)
'abcdef'[::-9223372036854775807 - 1], 'abcdef'[9223372036854775807::-1], 'abcdef'[:-9223372036854775807 - 1:-1], [1, 2, 3][::9223372036854775807]
{4611686018427387904: 'x'}[4611686018427387904.0], {9007199254740993: 'x'}.get(9007199254740992.0), {(-9223372036854775807 - 1): 'x'}[-9223372036854775808.0]
not not 1, not not not 1, - - 1, -+-1, - - 'x'|length, -2|abs, 1 + 2 ~ 3 * 4 ~ 5, 2 ** 3 ** 2 * 3, 7 - 3 - 2, 8 // 3 // 2, -2 ** 2 ** 2
1 < 2 < 3 == 3 != 4, 1 in [1] in [[1]], not 1 in [1], not 1 not in [1], 1 is odd is true, 1 if 0 else 2 if 0 else 3, 1 or 0 and 0, (1 or 0) and 0, not 1 or 1
s.upper()[1:4].lower()|upper|list|first, d.items()|list|last|first, s|replace('l', 'L')|length is odd and s is string
'%s' % s ~ u, 'a' 'b' ~ 'c', s[0] ~ s[-1] ~ s[1:3] ~ nums[0], 1 ~ 2 ~ none ~ true ~ [1]
'a\x7fé\u2028😀"\\/' | tojson, 'a\x7fé\u2028😀"\\/' | tojson(ensure_ascii=true), '\x00\x1f\b\f' | tojson
'ab' * 200, ('é' * 300)|length, 'x'.ljust(300, 'é')|length, '%300d' % 5, '{:é>300}'.format(1)|length
""".strip("\n")

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
