/* Hostile templates: each is refused within the budgets of jinja.h (10 million steps, 64 MiB, 64 levels of source, 100
 * of rendering), within 1 s of processor time, 64 MiB of memory and 64 KiB of stack. Every template runs on a
 * thread with such a stack. Times, memory and stacks are checked in optimised builds without sanitizers. The short tier
 * gives the templates of `work` a quarter of the steps, in slow builds a fiftieth; MNEME_LONG=1 runs them with the
 * defaults.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <time.h>

#include "support/budget.h"
#include "support/hostile/heap_bytes.h"
#include "support/small_stack.h"
#include "text/jinja/jinja.h"

enum { STACK = 64 << 10, MOST_HELD = 68 << 20 /* the budget, and what blocks are larger than requested */ };

/* One template and its outcome. */
typedef struct attempt {
    const char *text;
    size_t n;
    const json *context;
    const jinja_limits *limits;
    mn_status status;
    bool compiled;
    char message[300];
    double seconds;
    size_t stack;
    int64_t held; /* bytes at most, without the text */
    bytes out;
} attempt;

static size_t n_refused, most_stack; /* maxima over the whole program */
static double slowest_seconds;
static const double NEEDED_S = 0.25;
static int64_t most_held;

static void render_on_thread(void *data) {
    attempt *a = data;
    jinja_template *template = NULL;
    int64_t live = heap_bytes.live;
    clock_t start = clock();
    heap_bytes.most = live;
    a->status = jinja_compile(&template, a->text, a->n);
    a->compiled = a->status == MN_OK;
    if (a->compiled) a->status = jinja_render(template, a->context, a->limits, NULL, &a->out);
    jinja_close(&template);
    a->seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    a->held = heap_bytes.most - live;
    snprintf(a->message, sizeof a->message, "%s", a->status == MN_OK ? "" : mn_last_error());
}

static attempt try_template(const char *text, size_t n, const json *context, const jinja_limits *limits) {
    attempt a = {.text = text, .n = n, .context = context, .limits = limits};
    if (!run_on_stack(STACK, render_on_thread, &a, &a.stack)) fail_msg("no thread with a stack of 64 KiB");
    if (a.stack > most_stack) most_stack = a.stack;
    if (a.seconds > slowest_seconds) slowest_seconds = a.seconds;
    if (a.held > most_held) most_held = a.held;
    return a;
}

static attempt try_text(const char *text, const json *context) {
    return try_template(text, strlen(text), context, NULL);
}

static void check_seconds(const attempt *a, double needed) {
    if (build_slowness() == 1 && a->seconds > seconds_allowed(needed))
        fail_msg("%.200s: %.2f s, allowed: %.2f", a->text, a->seconds, seconds_allowed(needed));
}

/* ---- files, unchanged ---- */

static void hostile_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mn_status status;
        const char *expected; /* part of the message, or the output */
    } files[] = {
        {"loop1", MN_E_FULL, "too many steps"},
        {"startswith-tuple", MN_E_FULL, "bytes of memory"},
        {"startswith-small", MN_E_FULL, "too many steps"},
        {"tojson-ascii", MN_E_FULL, "too many steps"},
        {"unique-collisions", MN_OK, "100000"}, /* seeded hashes do not collide, so this is cheap */
        {"range-slice-ub", MN_E_ARG, "an integer beyond 64 bits"},
        {"range-slice-end", MN_E_ARG, "an integer beyond 64 bits"},
        {"range-item", MN_OK, ""},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[100];
        bytes text = {0};
        snprintf(name, sizeof name, "jinja/hostile/%s.jinja", files[i].name);
        assert_ok(file_read(&text, data_path(name), 1 << 20));
        attempt a = try_template(text.data, text.n, NULL, NULL);
        print_message("%s: %.3f s, %s\n", files[i].name, a.seconds, a.status == MN_OK ? "rendered" : a.message);
        assert_int_equal(a.status, files[i].status);
        if (a.status == MN_OK) {
            assert_string_equal(bytes_text(&a.out), files[i].expected);
        } else {
            assert_non_null(strstr(a.message, files[i].expected));
        }
        check_seconds(&a, NEEDED_S);
        n_refused += a.status != MN_OK;
        bytes_clear(&a.out);
        bytes_clear(&text);
    }
}

/* ---- sandbox escapes ---- */

static void templates_cannot_leave_the_sandbox(void **state) {
    (void)state;
    static const char *const objects[] = {"''",          "[]",         "{}",
                                          "()",          "1",          "1.5",
                                          "true",        "none",       "x",
                                          "range(1)",    "range",      "namespace",
                                          "namespace()", "cycler",     "cycler(1)",
                                          "joiner()",    "lipsum",     "dict",
                                          "m",           "m()",        "nosuch",
                                          "''.join",     "{}.items()", "[1]|map('e')",
                                          "self",        "''|safe",    "raise_exception"};
    static const char *const chains[] = {
        ".__class__.__mro__[1].__subclasses__()",
        "['__class__']['__base__']['__subclasses__']()",
        "|attr('__class__')|attr('__mro__')|attr('__getitem__')(1)",
        ".__init__.__globals__['os'].popen('id').read()",
        "|attr('__init__')|attr('__globals__')|attr('get')('__builtins__')",
        "['__cl' ~ 'ass__'].mro()[1]",
        ".func_globals.__builtins__.x",
        ".gi_frame.f_globals.x()",
        "|map(attribute='__class__.__mro__')|list|attr('pop')()",
    };
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        for (size_t k = 0; k < sizeof chains / sizeof *chains; k++) {
            char text[300];
            snprintf(text, sizeof text, "{%% macro m() %%}{%% endmacro %%}{{ (%s)%s }}", objects[i], chains[k]);
            attempt a = try_text(text, NULL);
            if (a.status != MN_E_ARG) fail_msg("%s: %d %s", text, a.status, bytes_text(&a.out));
            n_refused++;
            bytes_clear(&a.out);
        }
    }
    static const char *const others[] = {
        "{{ '{0.__class__.__mro__}'.format(x) }}",
        "{{ '{0.__class__.__init__.__globals__}'.format('') }}",
        "{{ '{x.__class__.__base__}'.format(x=1) }}",
        "{{ '{0[__class__][__mro__]}'.format({}) }}",
        "{{ ('{0.__class__.__mro__}'|safe).format(x) }}",
        "{{ '{0.__class__.__mro__}'.format_map({'0': 1}) }}",
        "{{ '%(__class__.__mro__)s' % {} }}",
        "{{ ''|attr('__class__').__mro__ }}",
        "{{ [''] | map('attr', '__class__') | map(attribute='__mro__.x') | list }}",
        "{{ [{}] | map(attribute='__class__.__mro__.0') | list | first | attr('a') }}",
        "{{ [].append(1) }}",
        "{{ {}.update({1: 2}) }}",
        "{{ {}.setdefault(1, 2) }}",
        "{{ [1].pop() }}",
        "{{ [2, 1].sort() }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.__mro__.x }}",
        "{% set x = 1 %}{% set x.y = 2 %}",
        "{% set cycler.__init__ = 2 %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.system('id') }}",
        "{% from 'os' import system %}",
        "{% extends '/etc/passwd' %}",
        "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
        "{{ caller.__globals__.x }}",
        "{{ loop.__class__.__mro__ }}",
        "{% for i in [1] %}{{ loop.__class__.__mro__ }}{% endfor %}",
        "{% for i in [1] %}{{ loop._iterator.gi_frame }}{% endfor %}",
        "{{ range(100001)|list }}",
        "{{ range(-9223372036854775807, 9223372036854775807) }}",
        "{{ config.items() }}",
        "{{ request.application.__globals__ }}",
        "{{ get_flashed_messages.__globals__.x }}",
        "{{ url_for.__globals__['os'].popen('id') }}",
        "{{ 'x'.encode().decode() }}",
        "{{ 'x'.translate({}) }}",
        "{{ ''.__doc__.x }}",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        attempt a = try_text(others[i], NULL);
        if (a.status != MN_E_ARG && a.status != MN_E_UNSUPPORTED && a.status != MN_E_FORMAT)
            fail_msg("%s: %d %s", others[i], a.status, bytes_text(&a.out));
        n_refused++;
        bytes_clear(&a.out);
    }
}

/* ---- too much work ---- */

/* Operations that are repeated without end. s: a text of a million ASCII letters; u: one of other characters; l: a list
 * of 30,000 numbers; d: a dictionary of them. */
static const char *const work[] = {
    "s ~ 'b' == s ~ 'c'",
    "s < s ~ 'b'",
    "s in s",
    "'ab' in s",
    "s is sameas s ~ ''",
    "s.find('ab')",
    "s.rfind('ba')",
    "s.find('a' * 1000 ~ 'b')",
    "s.rfind('b' ~ 'a' * 1000)",
    "s.rfind('ab' ~ 'a' * 500000)",
    "s.count('a')",
    "s.count('ab')",
    "s.index('a', 999999)",
    "s.replace('a', 'b')",
    "s.replace('ab', 'b')",
    "s.replace('', '-')",
    "s.split('a')",
    "s.rsplit('a')",
    "s.split('ab')",
    "s.rsplit('ba')",
    "(' a' * 100000).split()",
    "(' a' * 100000).rsplit()",
    "(s ~ '\\n').splitlines()",
    "s.partition('b')",
    "s.rpartition('b')",
    "s.upper()",
    "u.upper()",
    "u.lower()",
    "u.casefold()",
    "s.title()",
    "u.swapcase()",
    "u.capitalize()",
    "s|title",
    "('Σ' * 100000).lower()",
    "s.strip('b' * 1000 ~ 'a')",
    "(' ' * 1000000).strip()",
    "s.lstrip('a')",
    "s.startswith(s)",
    "s.endswith((s, s))",
    "s.startswith(('b',) * 100000)",
    "s.removeprefix(s)",
    "s.center(2000000)",
    "s.zfill(2000000)",
    "'x'.ljust(1000000, 'é')",
    "('\\t' * 1000).expandtabs(1000)",
    "u.isalpha()",
    "s.isupper()",
    "u.istitle()",
    "s.isidentifier()",
    "s.isdigit()",
    "s|tojson",
    "u|tojson(ensure_ascii=true)",
    "('\\n' * 100000)|tojson",
    "s|e",
    "('<' * 100000)|e",
    "s|urlencode",
    "(s ~ '\\n')|indent",
    "s|wordcount",
    "s|wordwrap(7)",
    "('a-' * 10000)|wordwrap(3)",
    "('<a>' * 10000)|striptags",
    "('&am' * 10000)|striptags",
    "('x ' * 10000)|pprint",
    "d|pprint",
    "s|truncate(900000)",
    "u[::-1]",
    "s[::2]",
    "u[30000]",
    "s[1:]",
    "s|reverse",
    "s|list",
    "'%s' % s",
    "'{}'.format(s)",
    "('%%' * 100000) % ()",
    "('{{' * 100000).format()",
    "'%r' % u",
    "s|string|int",
    "(' ' * 1000000)|int",
    "s|float",
    "'%.300f' % 1e300",
    "1.1|string",
    "1.234567891234|round(300)",
    "'{:,}'.format(9223372036854775807)",
    "'{:01048576,}'.format(1)",
    "'%1048576d' % 1",
    "{s: 1}[s]",
    "{s: 1} == {s ~ '': 1}",
    "[s] == [s ~ '']",
    "(s, 1) in [(s ~ 'b', 1), (s ~ '', 1)]",
    "[s ~ 'b', s ~ 'c', s]|sort",
    "[s, s]|min",
    "[s, s]|unique|list",
    "[{'a': s}, {'a': s}]|groupby('a')",
    "{s: 1}|dictsort",
    "{s: 1}|xmlattr",
    "[s, s]|join",
    "s.join([s, s])",
    "l|sort",
    "l|sort(reverse=true)",
    "l|unique|list",
    "l|groupby('real')",
    "l == l + []",
    "l < l + [1]",
    "l + l",
    "l * 2",
    "l|sum",
    "l|max",
    "l|map('string')|list",
    "l|select('odd')|list",
    "l|batch(3)|list",
    "l|slice(3)|list",
    "l|join",
    "-1 in l",
    "l.index(29999)",
    "l.count(1)",
    "l|reverse|list",
    "l|tojson",
    "l|tojson(indent=9)",
    "l|string",
    "l[1:]",
    "l[::-1]",
    "d|length == d.copy()|length",
    "d == d.copy()",
    "d|items|list",
    "d.items()|list",
    "d|dictsort",
    "d|tojson(sort_keys=true)",
    "dict(d)",
    "dict(**dict(a=1))",
    "namespace(d)",
    "d.get(7776)",
    "d[7776.0]",
    "(1, 2, 3) in {(1, 2, 3): 1}",
    "cycler(*l)",
    "dict(l|batch(2))",
    "loop.changed(l)",
    "loop.cycle(*l)",
    "lots(*l)",
    "lots(**e)",
    "range(99999)|list",
    "range(100000)|last",
    "'a.b.c.d.e.f.g'.split('.')",
    "[{}]|map(attribute='a')|list",
    "[l]|sum(start=[])",
    "[1, 1.5, true]|sort",
    "'x' if s == s ~ 'b' else 'y'",
    "s ~ s",
    "s + s",
    "s * 2",
    "1 + 1",
    "none",
};

static void excessive_work_is_refused(void **state) {
    (void)state;
    const double scale = test_is_long() ? 1 : build_slowness() == 1 ? 0.25 : 0.02;
    const jinja_limits limits = {.steps = (int64_t)(10000000 * scale)};
    for (size_t i = 0; i < sizeof work / sizeof *work; i++) {
        bytes text = {0};
        bytes_printf(
            &text,
            "{%% macro lots() %%}{{ varargs|length }}{{ kwargs|length }}{%% endmacro %%}{%% set s = 'a' * 1000000 %%}"
            "{%% set u = 'é日' * 20000 %%}{%% set l = range(30000)|list %%}{%% set d = dict(l[:10000]|batch(2)) %%}"
            "{%% set e = {'a' ~ 1: 1, 'b' ~ 2: 2} %%}");
        bytes_append_text(&text, "{% for i in range(100000) %}{% for j in range(100000) %}{% set t = ");
        bytes_append_text(&text, work[i]);
        bytes_append_text(&text, " %}{% endfor %}{% endfor %}");
        attempt a = try_template(text.data, text.n, NULL, &limits);
        if (a.status != MN_E_FULL) fail_msg("%s: %d %s", work[i], a.status, a.message);
        check_seconds(&a, scale * NEEDED_S);
        n_refused++;
        bytes_clear(&a.out);
        bytes_clear(&text);
    }
}

/* ---- too deep in the source ---- */

/* Prefix, repeated opening, middle, repeated closing, suffix. */
static const char *const nests[][5] = {
    {"{{ ", "(", "1", ")", " }}"},
    {"{{ ", "[", "1", "]", " }}"},
    {"{{ ", "{1:", "1", "}", " }}"},
    {"{{ ", "(1 + ", "1", ")", " }}"},
    {"{{ x", "[x", "", "]", " }}"},
    {"{{ x", "(x", "", ")", " }}"},
    {"{{ 1 ", "or 0 and 1 == 1 + 1 ~ 1 * 1 ** (1 ", "", ")", " }}"},
    {"{{ 0 ", "or 1 and 1 != 1 + 1 ~ 1 * 1 ** (0 ", "", ")", " }}"},
    {"{{ 0 ", "or 1 and 1 != [] ~ 1 ** [0 ", "", "]", " }}"},
    {"{{ ", "1 if 0 else ", "1", "", " }}"},
    {"{{ ", "(1 if 1 else ", "1", ")", " }}"},
    {"{{ x|d(", "x|d(", "1", ")", ") }}"},
    {"{{ x is ", "eq(x is ", "eq 1", ")", " }}"},
    {"{{ x", "[0:x", "", "]", " }}"},
    {"{{ dict(", "a=dict(", "", ")", ") }}"},
    {"{{ dict(", "*[dict(", "", ")]", ") }}"},
    {"{{ dict(", "**dict(", "", ")", ") }}"},
    {"{{ x", " == (x", "", ")", " }}"},
    {"{{ x", " in [x", "", "]", " }}"},
    {"{{ x", " ~ [x", "", "]", " }}"},
    {"", "{% if 1 %}", "x", "{% endif %}", ""},
    {"", "{% if 0 %}{% else %}", "x", "{% endif %}", ""},
    {"", "{% if 0 %}{% elif 1 %}", "x", "{% endif %}", ""},
    {"", "{% for x in y %}", "x", "{% endfor %}", ""},
    {"", "{% for x in [] %}{% else %}", "x", "{% endfor %}", ""},
    {"", "{% for x in y if x %}", "x", "{% endfor %}", ""},
    {"", "{% macro m() %}", "x", "{% endmacro %}{{ m() }}", ""},
    {"{% macro m() %}{{ caller() }}{% endmacro %}", "{% call m() %}", "x", "{% endcall %}", ""},
    {"", "{% filter upper %}", "x", "{% endfilter %}", ""},
    {"", "{% set z %}", "x", "{% endset %}{{ z }}", ""},
    {"", "{% with a=1 %}", "x", "{% endwith %}", ""},
    {"", "{% block b %}", "x", "{% endblock %}", ""},
    {"", "{% generation %}", "x", "{% endgeneration %}", ""},
    {"", "{% autoescape false %}", "x", "{% endautoescape %}", ""},
    {"{% set ", "(", "x", ",)", " = 1 %}"},
    {"{% for ", "(", "x", ",)", " in y %}{% endfor %}"},
    {"{% macro f(x) %}{{ x }}{% endmacro %}{{ ", "f(", "1", ")", " }}"},
    {"{{ ", "not ", "1", "", " }}"},
    {"{{ ", "-", "1", "", " }}"},
    {"{{ 1", " + 1", "", "", " }}"},
    {"{{ x", ".a", "", "", " }}"},
    {"{{ x", "|e", "", "", " }}"},
    {"{{ x", "[0]", "", "", " }}"},
    {"{{ x", "()", "", "", " }}"},
    {"{{ 1", " or 1", "", "", " }}"},
    {"{{ 1", " if 1", "", "", " }}"},
    {"{{ x", " is eq 1", "", "", " }}"},
    {"{% filter e", "|e", "", "", " %}{% endfilter %}"},
};

static void put_nest(bytes *text, const char *const parts[5], size_t levels) {
    text->n = 0;
    bytes_append_text(text, parts[0]);
    for (size_t i = 0; i < levels; i++) bytes_append_text(text, parts[1]);
    bytes_append_text(text, parts[2]);
    for (size_t i = 0; i < levels; i++) bytes_append_text(text, parts[3]);
    bytes_append_text(text, parts[4]);
}

static attempt try_nest(bytes *text, const char *const parts[5], size_t levels, const json *context) {
    put_nest(text, parts, levels);
    attempt a = try_template(text->data, text->n, context, NULL);
    a.text = parts[1];
    bytes_clear(&a.out);
    return a;
}

static bool is_accepted(const attempt *a) {
    return a->compiled && a->status != MN_E_FULL;
}

static void nest_is_refused(bytes *text, const char *const parts[5], size_t levels, const json *context) {
    attempt a = try_nest(text, parts, levels, context);
    if (a.status != MN_E_FORMAT && a.status != MN_E_FULL)
        fail_msg("%zu times %s: %d %s", levels, parts[1], a.status, a.message);
    check_seconds(&a, NEEDED_S);
    n_refused++;
}

/* Every nesting construct: with as many levels as fit into 1 MiB of source, near the deepest accepted level (accepted
 * templates must render within the stack), and with a million levels. */
static void excessive_nesting_is_refused(void **state) {
    (void)state;
    static const char context_text[] = "{\"x\": {\"a\": 1}, \"y\": [[1]]}";
    json_doc *context = NULL;
    bytes text = {0};
    assert_ok(json_parse(&context, context_text, sizeof context_text - 1, JSON_STRICT, "context"));
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        const char *const *parts = nests[i];
        size_t each = strlen(parts[1]) + strlen(parts[3]), good = 1, bad = 2000;
        nest_is_refused(&text, parts, ((1 << 20) - 200) / each, json_root(context));
        if (!test_samples((int)i, 4)) continue;
        while (good + 1 < bad) {
            size_t middle = (good + bad) / 2;
            attempt a = try_nest(&text, parts, middle, json_root(context));
            *(is_accepted(&a) ? &good : &bad) = middle;
        }
        if (good < 7) fail_msg("%s: refused at %zu levels", parts[1], bad); /* common depths are accepted */
    }
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        if (test_samples((int)i, 4)) nest_is_refused(&text, nests[i], 1000000, json_root(context));
    }
    bytes_clear(&text);
    json_close(&context);
}

/* ---- too deep in the rendering ---- */

static const char *const recursions[] = {
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ 1 + (1 * f()) }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% if 1 %}{{ f() }}{% endif %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% for x in [1] %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% for x in [] %}{% else %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% for x in [1] if f() %}{% endfor %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% for x in f() %}{% endfor %}{% endmacro %}{{ f() }}",
    "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ f(x=f(x)) }}{% endmacro %}{{ f(1) }}",
    "{% macro f() %}{% set x %}{{ f() }}{% endset %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% set x = f() %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% filter upper %}{{ f() }}{% endfilter %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% with a=f() %}{% endwith %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% call f() %}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}",
    "{% macro m(x) %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m(1) %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for x in [1] recursive %}{% if 1 %}{% with a=loop([1]) %}{% endwith %}{% endif %}{% endfor %}",
    "{% macro f() %}{{ {'a': [f()]} }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ f() == f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ 'a' ~ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ [1]|map('default', f())|list }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ 'a'[f():] }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ f() if f() else f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% generation %}{{ f() }}{% endgeneration %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% block b %}{{ f() }}{% endblock %}{% endmacro %}{{ f() }}",
    "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = {1: ns.x} %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x|tojson(indent=1, sort_keys=true) }}",
    "{% set ns = namespace(x=1, y=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set ns = namespace(x=1, y=1) %}{% for i in range(100000) %}{% set ns.x = {1: ns.x} %}{% set ns.y = {1: ns.y} %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set ns = namespace(x=1, y=2) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x < ns.y }}",
    "{% set ns = namespace(x=1, y=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ [ns.x]|sort == ns.y in [ns.x] }}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ '%r' % ns }}",
    "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ '{!a}'.format(ns) }}",
    "{% set ns = namespace(g=[1]) %}{% for i in range(100000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}",
    "{% set ns = namespace(g=[1]) %}{% for i in range(100000) %}{% set ns.g = ns.g|select %}{% endfor %}{{ ns.g|list }}",
    "{% set ns = namespace(g=[1]) %}{% for i in range(100000) %}{% set ns.g = ns.g|unique %}{% endfor %}{{ ns.g|list }}",
    "{% set ns = namespace(g=[1]) %}{% for i in range(100000) %}{% set ns.g = ns.g|batch(1) %}{% endfor %}{{ ns.g|list }}",
    "{% set ns = namespace(g=[1]) %}{% for i in range(100000) %}{% set ns.g = ns.g|slice(1) %}{% endfor %}{{ ns.g|list }}",
    "{% macro a(n) %}{% if n %}{{ b(n - 1) }}{% endif %}{% endmacro %}{% macro b(n) %}{{ a(n) }}{% endmacro %}{{ a(1000000) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% else %}{{ '%.300f' % 1e300 }}{{ 1.1 }}{{ strftime_now('%c') }}{% endif %}{% endmacro %}{{ f(9) }}{{ f(99) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
};

static void excessive_recursion_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof recursions / sizeof *recursions; i++) {
        attempt a = try_text(recursions[i], NULL);
        if (a.status != MN_E_FULL) fail_msg("%s: %d %s", recursions[i], a.status, a.message);
        n_refused++;
        check_seconds(&a, NEEDED_S);
        bytes_clear(&a.out);
    }
}

/* Values as deep as are accepted, each level on lines of its own. */
static void pretty_printing_fits_the_stack(void **state) {
    (void)state;
    size_t n_accepted = 0;
    for (int levels = 80; levels <= 100; levels++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{%% set ns = namespace(x=1) %%}{%% for i in range(%d) %%}{%% set ns.x = [{'k' * 90: ns.x}] %%}"
                 "{%% endfor %%}{{ ns.x|pprint|length }}",
                 levels / 2);
        attempt a = try_text(text, NULL);
        if (a.status != MN_E_FULL) assert_int_equal(a.status, MN_OK);
        n_accepted += a.status == MN_OK;
        check_seconds(&a, NEEDED_S);
        bytes_clear(&a.out);
    }
    assert_in_range(n_accepted, 1, 20);
}

/* ---- published templates ---- */

static void render_all(const json *templates, const char *text_key, const json *contexts, const char *context_key,
                       size_t *n) {
    for (size_t i = 0; i < templates->n; i++) {
        const json *text = json_get(&templates->items[i], text_key);
        for (size_t k = 0; k < (contexts ? contexts->n : 1); k++) {
            const json *context = contexts ? &contexts->members[k].value : json_get(&templates->items[i], context_key);
            attempt a = {.text = text->string, .n = text->n, .context = context};
            if (!run_on_stack(STACK, render_on_thread, &a, &a.stack)) fail_msg("no thread with a stack of 64 KiB");
            if (a.status == MN_E_FULL || a.status == MN_E_FORMAT) fail_msg("%.200s: %s", a.text, a.message);
            if (a.stack > most_stack) most_stack = a.stack;
            bytes_clear(&a.out);
            ++*n;
        }
    }
}

static void published_templates_fit_the_stack(void **state) {
    (void)state;
    json_doc *rendered = open_json(data_path("chat-templates/rendered.json")),
             *published = open_json(data_path("chat-templates/e2e.json"));
    size_t n = 0;
    render_all(json_get(json_root(rendered), "templates"), "template", json_get(json_root(rendered), "contexts"), NULL,
               &n);
    render_all(json_root(published), "chat_template", NULL, "data", &n);
    assert_true(n > 350);
    json_close(&rendered);
    json_close(&published);
}

static void all_stayed_within_the_budgets(void **state) {
    (void)state;
    print_message("%zu hostile templates refused; at most %.2f s, %.2f MiB and %.1f KiB of stack\n", n_refused,
                  slowest_seconds, (double)most_held / (1 << 20), (double)most_stack / 1024);
    assert_true(n_refused >= 200);
    if (build_slowness() > 1) return;
    assert_true(most_stack <= STACK);
    assert_true(slowest_seconds <= seconds_allowed(NEEDED_S));
    assert_true(most_held > 0 && most_held <= MOST_HELD);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_files_are_refused),         cmocka_unit_test(templates_cannot_leave_the_sandbox),
        cmocka_unit_test(excessive_work_is_refused),         cmocka_unit_test(excessive_recursion_is_refused),
        cmocka_unit_test(pretty_printing_fits_the_stack),    cmocka_unit_test(excessive_nesting_is_refused),
        cmocka_unit_test(published_templates_fit_the_stack), cmocka_unit_test(all_stayed_within_the_budgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
