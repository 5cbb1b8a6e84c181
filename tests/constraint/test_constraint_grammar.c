/* Grammars as constraints, without tokens: prefixes of random texts are accepted exactly when a plain matcher accepts
 * them, also for random grammars, of which exactly those with left recursion are refused; wrong and hostile ones are
 * refused with their place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "base/utf8.h"
#include "constraint/run.h"
#include "support/support.h"

enum { LONGEST = 60 };

typedef struct machine {
    net g;
    run r;
} machine;

static mn_status open_grammar(machine *m, const char *text, size_t n) {
    *m = (machine){0};
    MN_TRY(net_open(&m->g));
    uint32_t root = net_grammar(&m->g, text, n);
    MN_TRY(net_finish(&m->g, root));
    return run_open(&m->r, &m->g);
}

static void machine_open(machine *m, const char *text) {
    assert_ok(open_grammar(m, text, strlen(text)));
}

static void machine_close(machine *m) {
    run_clear(&m->r);
    net_clear(&m->g);
}

static mn_status read_text(machine *m, const char *text, size_t n, bool *accepts) {
    uint32_t state = m->r.start;
    m->r.steps = 0;
    for (size_t i = 0; i < n && state != RUN_DEAD; i++) MN_TRY(run_step(&m->r, state, (uint8_t)text[i], &state));
    *accepts = m->r.states[state].accepts;
    return MN_OK;
}

static bool takes(machine *m, const char *text, size_t n) {
    bool accepts = false;
    assert_ok(read_text(m, text, n, &accepts));
    return accepts;
}

/* ---- the matcher ---- */

/* It reads the grammar's text and matches at once: from the set of places in the text where a part may begin (bit i:
 * before byte i) to the set of those where it may end. With an empty set it only reads on. */
typedef struct matcher {
    const char *grammar, *at; /* ends with a zero */
    const char *text;
    size_t n;
    int depth, deepest;
    struct {
        const char *rule;
        uint64_t from, to;
    } known[256]; /* what rules matched */
    size_t n_known;
} matcher;

enum { MATCH_DEPTH = 400 }; /* rules inside each other: more only happen in left recursion */

static uint64_t match_choice(matcher *m, bool nested, uint64_t from);

static void skip_space(matcher *m, bool lines) {
    for (;; m->at++) {
        if (*m->at == '#') m->at += strcspn(m->at, "\n");
        if (*m->at != ' ' && *m->at != '\t' && !(lines && (*m->at == '\n' || *m->at == '\r'))) return;
    }
}

static bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
}

static uint32_t read_character(matcher *m) {
    static const struct {
        char letter;
        int digits;
    } numbers[] = {{'x', 2}, {'u', 4}, {'U', 8}};
    char c = *m->at++, hex[9] = {0};
    if (c != '\\') {
        size_t n = utf8_length((unsigned char)c);
        m->at += n - 1;
        return utf8_decode(m->at - n, n);
    }
    c = *m->at++;
    for (size_t i = 0; i < 3; i++) {
        if (c != numbers[i].letter) continue;
        memcpy(hex, m->at, (size_t)numbers[i].digits);
        m->at += numbers[i].digits;
        return (uint32_t)strtoul(hex, NULL, 16);
    }
    return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : (uint32_t)(unsigned char)c;
}

/* One character of the text at `place`, and how long it is; 0: none begins there. */
static size_t text_character(const matcher *m, size_t place, uint32_t *code) {
    size_t n = place < m->n ? utf8_length((unsigned char)m->text[place]) : 0;
    if (n == 0 || n > m->n - place) return 0;
    *code = utf8_decode(m->text + place, n);
    return n;
}

/* From `from` over one character that the ranges have, or have not. */
static uint64_t step_over(const matcher *m, uint32_t (*ranges)[2], size_t n_ranges, bool negated, uint64_t from) {
    uint64_t to = 0;
    for (size_t i = 0; i < m->n; i++) {
        uint32_t code;
        size_t n = from >> i & 1 ? text_character(m, i, &code) : 0;
        bool inside = false;
        for (size_t k = 0; n && k < n_ranges; k++) inside |= code >= ranges[k][0] && code <= ranges[k][1];
        if (n && inside != negated) to |= (uint64_t)1 << (i + n);
    }
    return to;
}

static uint64_t match_set(matcher *m, uint64_t from) {
    uint32_t ranges[64][2];
    size_t n = 0;
    bool negated = *m->at == '^';
    m->at += negated;
    for (; *m->at != ']'; n++) {
        ranges[n][0] = ranges[n][1] = read_character(m);
        if (m->at[0] != '-' || m->at[1] == ']') continue;
        m->at++;
        ranges[n][1] = read_character(m);
    }
    m->at++;
    return step_over(m, ranges, n, negated, from);
}

static uint64_t match_literal(matcher *m, uint64_t from) {
    while (*m->at != '"') {
        uint32_t code = read_character(m), range[1][2] = {{code, code}};
        from = step_over(m, range, 1, false, from);
    }
    m->at++;
    return from;
}

/* Where the text of a rule begins: behind its ::=, which nothing else is followed by. */
static const char *rule_text(const char *grammar, const char *name, size_t n) {
    for (const char *at = grammar; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        const char *rest = at + n + strspn(at + n < grammar + strlen(grammar) ? at + n : "", " \t");
        if (strncmp(at, name, n) == 0 && strncmp(rest, "::=", 3) == 0) return rest + 3;
    }
    fail_msg("no rule %.*s", (int)n, name);
    return NULL;
}

static uint64_t match_rule(matcher *m, const char *name, size_t n, uint64_t from) {
    const char *back = m->at;
    uint64_t to = 0;
    if (from == 0) return 0;
    const char *text = m->at = rule_text(m->grammar, name, n);
    for (size_t i = 0; i < m->n_known; i++) {
        if (m->known[i].rule != text || m->known[i].from != from) continue;
        m->at = back;
        return m->known[i].to;
    }
    if (++m->depth > m->deepest) m->deepest = m->depth;
    if (m->depth < MATCH_DEPTH && m->deepest < MATCH_DEPTH) to = match_choice(m, false, from);
    m->depth--;
    m->at = back;
    if (m->n_known < 256) {
        m->known[m->n_known].rule = text;
        m->known[m->n_known].from = from;
        m->known[m->n_known++].to = to;
    }
    return to;
}

static uint64_t match_once(matcher *m, uint64_t from) {
    static uint32_t all[1][2] = {{0, 0x10FFFF}};
    const char *name = m->at;
    char c = *m->at++;
    if (c == '"') return match_literal(m, from);
    if (c == '[') return match_set(m, from);
    if (c == '.') return step_over(m, all, 1, false, from);
    if (c == '(') {
        uint64_t to = match_choice(m, true, from);
        assert_int_equal(*m->at, ')');
        m->at++;
        return to;
    }
    while (is_word(*m->at)) m->at++;
    return match_rule(m, name, (size_t)(m->at - name), from);
}

/* The counts behind an element. */
static void read_counts(matcher *m, size_t *least, size_t *most) {
    int used = 0;
    *least = *m->at == '+';
    *most = *m->at == '?' ? 1 : SIZE_MAX;
    if (*m->at++ != '{') return;
    if (sscanf(m->at, "%zu}%n", least, &used) == 1 && used) {
        *most = *least;
    } else if (sscanf(m->at, "%zu,%zu}%n", least, most, &used) != 2 || !used) {
        *most = SIZE_MAX;
    }
    m->at += strcspn(m->at, "}") + 1;
}

/* An element with what repeats it; only one operator each in these grammars. */
static uint64_t match_element(matcher *m, bool nested, uint64_t from) {
    const char *begin = m->at, *behind;
    uint64_t reached = from, to = 0;
    size_t least = 1, most = 1;
    match_once(m, 0);
    skip_space(m, nested);
    if (*m->at && strchr("*+?{", *m->at)) read_counts(m, &least, &most);
    skip_space(m, nested);
    behind = m->at;
    for (size_t round = 0; reached && round <= least + LONGEST; round++) { /* later rounds lead nowhere new */
        if (round >= least) to |= reached;
        if (round == most) break;
        m->at = begin;
        reached = match_once(m, reached);
    }
    m->at = behind;
    return to;
}

static uint64_t match_choice(matcher *m, bool nested, uint64_t from) {
    uint64_t to = 0;
    do {
        uint64_t reached = from;
        m->at += *m->at == '|';
        skip_space(m, true);
        while (*m->at && (is_word(*m->at) || strchr("\"[(.", *m->at))) reached = match_element(m, nested, reached);
        to |= reached;
    } while (*m->at == '|');
    return to;
}

static bool matches(const char *grammar, const char *text, size_t n) {
    matcher m = {.grammar = grammar, .at = "", .text = text, .n = n};
    return match_rule(&m, "root", 4, 1) >> n & 1;
}

/* ---- grammars as they are used ---- */

/* Written in the manner of llama.cpp's examples. */
#define JSON_GRAMMAR                                                                                                   \
    "# any JSON\n"                                                                                                     \
    "root   ::= value\n"                                                                                               \
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\n"                           \
    "object ::=\n"                                                                                                     \
    "  \"{\" ws (\n"                                                                                                   \
    "    string \":\" ws value   # a member\n"                                                                         \
    "    (\",\" ws string \":\" ws value)*\n"                                                                          \
    "  )? \"}\" ws\n\n"                                                                                                \
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n\n"                                                     \
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] |\n"                                                              \
    "  \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n\n"                                            \
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,2})? ws\n"              \
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"

static const char *const grammars[] = {
    JSON_GRAMMAR,
    /* arithmetic */
    "root ::= (expr \"=\" ws term \"\\n\")+\n"
    "expr ::= term ([-+*/] term)*\r\n"
    "term ::= ident | num | \"(\" ws expr \")\" ws\r\n"
    "ident ::= [a-z] [a-z0-9_]* ws\n"
    "num ::= [0-9]+ ws\n"
    "ws ::= [ \\t\\n]*\n",
    /* lists */
    "root ::= item+\n# an item is a line\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
    /* chess */
    "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n"
    "move ::= (pawn | piece | castle) [+#]?\n"
    "piece ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
    "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
    "castle ::= \"O-O\" \"-O\"?\n",
    /* other syntax */
    "root ::= \"a\"",
    "root ::= \"\"",
    "root ::= ",
    "root ::= \"abc\"* \"d\"",
    "root ::= \"ab\"{2,3} [cd]{1,} .{2}",
    "root ::= \"ab\"{2} | \"x\"{0} \"y\" | \"z\"{0,1}",
    "root ::= [\\]\\[a-c-]+ | [^\\]a-y\\n]{2} | [-x]",
    "root::=a|b #c\na::=\"\\x41\\u00e9\"b\nb::=\"\\U0001F600\"?|\"\\\\\\\"\\[\\]\\t\"",
    "root ::= \"é\" .? [α-ω]+ [^α-ω]",
    "root ::= (\n\"a\"\n|\n# nothing\n\"b\" c\n) # end\n\n\nc ::= \"d\" |\n  \"e\"\n",
    "root ::= \"a\" root \"b\" | \"\"",
    "root ::= [a-c] root | \"!\"",
    "root ::= even | odd\neven ::= \"\" | \"a\" odd\nodd ::= \"a\" even",
    "root ::= (\"a\" | \"b\" | p)* \nx-1 ::= \"(\" root \")\"\np ::= x-1 | \"[\" root \"]\"",
    "root ::= (\"\" | \"a\")* (b?)+ b{0,2}\nb ::= \"b\" | \"\"",
    "root ::= (a | \"a\" b){2,3}\na ::= \"aa\"? b\nb ::= \"b\" | \"\" c\nc ::= \"c\"*",
    "root ::= x{2}\nx ::= \"a\" x | \"b\"",
    "root ::= \"a\" never | \"b\"\nnever ::= \"c\" never",
};
enum { N_GRAMMARS = sizeof grammars / sizeof *grammars };

/* A text that the machine can read on and on, of up to LONGEST bytes. */
static size_t walk_text(machine *m, uint64_t *seed, char *out) {
    uint32_t state = m->r.start;
    size_t n = 0;
    for (m->r.steps = 0; n < LONGEST;) {
        uint8_t can[256];
        size_t n_can = 0;
        if (m->r.states[state].accepts && test_random(seed) % 6 == 0) break;
        for (unsigned c = 0; c < m->g.n_classes; c++) {
            uint32_t next;
            assert_ok(run_step(&m->r, state, m->g.sample[c], &next));
            if (next != RUN_DEAD) can[n_can++] = m->g.sample[c];
        }
        if (n_can == 0) break;
        out[n++] = (char)can[test_random(seed) % n_can];
        assert_ok(run_step(&m->r, state, (uint8_t)out[n - 1], &state));
    }
    return n;
}

/* Changes, drops or doubles a byte here and there. */
static size_t damage(uint64_t *seed, char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t what = test_random(seed) % 20;
        if (what == 0) text[i] = "ab\"{} ,1x-\n"[test_random(seed) % 11];
        if (what == 1 && i > 0) text[i] = text[i - 1];
        if (what == 2) memmove(text + i, text + i + 1, --n - i);
    }
    return n;
}

static void texts_are_those_of_the_grammar(void **state) {
    (void)state;
    uint64_t seed = 7;
    size_t compared = 0, matched = 0;
    for (size_t i = 0; i < N_GRAMMARS; i++) {
        machine m;
        char text[LONGEST + 1];
        machine_open(&m, grammars[i]);
        for (int k = 0; k < 100; k++) {
            size_t n = walk_text(&m, &seed, text);
            if (k % 2) n = damage(&seed, text, n);
            for (size_t j = 0; j <= n; j++) {
                if (utf8_valid_prefix(text, j) < j) continue;
                bool expected = matches(grammars[i], text, j);
                if (takes(&m, text, j) != expected)
                    fail_msg("%s\non '%.*s': %d expected", grammars[i], (int)j, text, expected);
                compared++;
                matched += expected;
            }
        }
        machine_close(&m);
    }
    print_message("%zu prefixes, %zu match\n", compared, matched);
    assert_true(compared > 20000 && matched > 2000 && matched < compared / 2);
}

/* What the grammar of JSON allows, the reader of JSON reads. */
static void the_grammar_of_json_gives_json(void **state) {
    (void)state;
    machine m;
    uint64_t seed = 3;
    size_t complete = 0;
    machine_open(&m, JSON_GRAMMAR);
    for (int k = 0; k < 2000; k++) {
        char text[LONGEST + 1];
        json_doc *doc = NULL;
        size_t n = walk_text(&m, &seed, text);
        if (!takes(&m, text, n)) continue;
        text[n] = 0;
        complete++;
        assert_ok(json_parse(&doc, text, n, JSON_PYTHON, text));
        json_close(&doc);
    }
    assert_true(complete > 300);
    assert_true(takes(&m, "{\"a\": [1, {}, \"\\u00e9\"], \"b\": -0.5e3}", 37));
    machine_close(&m);
}

/* ---- random grammars ---- */

static void put_random(bytes *out, uint64_t *seed, int depth) {
    static const char *const elements[] = {"\"a\"", "\"b\"", "\"\"", "[ab]", "[^a]", "root", "s", "t", "u", "\"ab\""};
    static const char *const counts[] = {"", "", "", "", "*", "+", "?", "{2}", "{0}", "{1,2}", "{0,1}", "{2,}"};
    size_t n_choices = 1 + test_random(seed) % 3;
    for (size_t i = 0; i < n_choices; i++) {
        size_t n = test_random(seed) % 4;
        if (i) bytes_append_text(out, " | ");
        if (n == 0) bytes_append_text(out, "\"\"");
        for (size_t k = 0; k < n; k++) {
            if (depth < 2 && test_random(seed) % 5 == 0) {
                bytes_append_text(out, "(");
                put_random(out, seed, depth + 1);
                bytes_append_text(out, ")");
            } else {
                bytes_append_text(out, elements[test_random(seed) % 10]);
            }
            bytes_printf(out, "%s ", counts[test_random(seed) % 12]);
        }
    }
}

/* Whether matching some rule never ends, which is left recursion. */
static bool never_ends(const char *grammar) {
    static const char *const names[] = {"root", "s", "t", "u"};
    bool endless = false;
    for (size_t i = 0; i < 4; i++) {
        matcher m = {.grammar = grammar, .at = "", .text = ""};
        match_rule(&m, names[i], strlen(names[i]), 1);
        endless |= m.deepest >= MATCH_DEPTH;
    }
    return endless;
}

/* Whether all texts of up to 5 characters were compared: some grammars have too many ways to read them. */
static bool compare_short_texts(const char *grammar) {
    machine m;
    mn_status status = open_grammar(&m, grammar, strlen(grammar));
    for (size_t n = 0; n <= 5 && status == MN_OK; n++) {
        for (unsigned bits = 0; bits < 1u << n && status == MN_OK; bits++) {
            char text[8];
            bool accepts;
            for (size_t i = 0; i < n; i++) text[i] = bits >> i & 1 ? 'b' : 'a';
            status = read_text(&m, text, n, &accepts);
            if (status == MN_OK && accepts != matches(grammar, text, n))
                fail_msg("%s\non '%.*s'", grammar, (int)n, text);
        }
    }
    if (status != MN_OK) assert_fails(MN_E_UNSUPPORTED, "too ambiguous", status);
    machine_close(&m);
    return status == MN_OK;
}

static void random_grammars(void **state) {
    (void)state;
    uint64_t seed = 11;
    size_t n_refused = 0, n_compared = 0;
    const int n = 300 / test_stride(4);
    for (int i = 0; i < n; i++) {
        bytes text = {0};
        static const char *const names[] = {"root", "s", "t", "u"};
        for (size_t k = 0; k < 4; k++) {
            bytes_printf(&text, "%s ::= ", names[k]);
            put_random(&text, &seed, 0);
            bytes_append_text(&text, k < 3 ? "#\n" : "");
        }
        if (never_ends(bytes_text(&text))) {
            machine m;
            assert_fails(MN_E_ARG, "left recursion", open_grammar(&m, text.data, text.n));
            machine_close(&m);
            n_refused++;
        } else {
            n_compared += compare_short_texts(bytes_text(&text));
        }
        bytes_clear(&text);
    }
    print_message("%zu grammars refused, %zu compared\n", n_refused, n_compared);
    assert_true(n_refused > (size_t)n / 3 && n_compared > (size_t)n / 6);
}

/* ---- refusals and limits ---- */

static void wrong_grammars_are_refused_with_their_place(void **state) {
    (void)state;
    static const struct {
        const char *grammar;
        mn_status code;
        const char *part;
    } rows[] = {
        {"", MN_E_ARG, "grammar, line 1, column 1: it is empty"},
        {" \n# nothing\n", MN_E_ARG, "it is empty"},
        {"a ::= \"x\"", MN_E_ARG, "no rule 'root'"},
        {"root ::= a\nb ::= \"x\"", MN_E_ARG, "line 1, column 10: the rule 'a' is not defined"},
        {"root ::= \"x\"\n  root ::= \"y\"", MN_E_ARG, "line 2, column 3: the rule 'root' is defined twice"},
        {"root := \"x\"", MN_E_ARG, "line 1, column 6: ::= is missing behind the name 'root'"},
        {"root ::= \"x\"\n| \"y\"", MN_E_ARG, "line 2, column 1: a | at the beginning of a line"},
        {"?", MN_E_ARG, "a rule begins with its name"},
        {"root ::= \"é\" $", MN_E_ARG, "line 1, column 14: unexpected"},
        {"root ::= \"x\" )", MN_E_ARG, "column 14: a closing parenthesis"},
        {"root ::= (\"x\"\n\n", MN_E_ARG, "line 1, column 10: the group has no end"},
        {"root ::= (\"x\" *", MN_E_ARG, "the group has no end"},
        {"root ::= \"x", MN_E_ARG, "column 10: the literal has no end"},
        {"root ::= [x", MN_E_ARG, "column 10: the set has no end"},
        {"root ::= []", MN_E_ARG, "an empty set"},
        {"root ::= [z-a]", MN_E_ARG, "column 11: a range out of order"},
        {"root ::= \"\\q\"", MN_E_ARG, "column 11: no such escape"},
        {"root ::= \"\\x4\"", MN_E_ARG, "2 hexadecimal digits"},
        {"root ::= \"\\ud800\"", MN_E_ARG, "no character of Unicode"},
        {"root ::= \"\\U00110000\"", MN_E_ARG, "no character of Unicode"},
        {"root ::= \"\\", MN_E_ARG, "no such escape"},
        {"root ::= *", MN_E_ARG, "nothing to repeat"},
        {"root ::= \"x\"{}", MN_E_ARG, "column 13: a repetition is written"},
        {"root ::= \"x\"{,2}", MN_E_ARG, "a repetition is written"},
        {"root ::= \"x\"{2", MN_E_ARG, "a repetition is written"},
        {"root ::= \"x\"{3,2}", MN_E_ARG, "the counts are out of order"},
        {"root ::= \"x\"{4294967295}", MN_E_ARG, "a count of 4294967295 or more"},
        {"root ::= \na ::= \"x\"", MN_E_ARG, "line 2, column 3: a second ::= in one rule"},
        {"root ::= <think>", MN_E_UNSUPPORTED, "column 10: tokens are not supported"},
        {"root ::= \"a\"\nb ::= \"\xff\"", MN_E_ARG, "line 2, column 8: this is not UTF-8"},
        {"root ::= a\na ::= a \"x\" | \"x\"", MN_E_ARG,
         "line 2, column 1: the rule 'a' begins with itself: left recursion"},
        {"root ::= \"x\" | b\nb ::= c \"y\"\nc ::= \"z\"? (\"q\" | b)", MN_E_ARG, "begins with itself through '"},
        {"root ::= root | \"x\"", MN_E_ARG, "the rule 'root' begins with itself"},
        {"root ::= e root | \"x\"\ne ::= \"y\"*", MN_E_ARG, "the rule 'root' begins with itself"},
        {"root ::= \"x\"\nu ::= (u)*", MN_E_ARG, "the rule 'u' begins with itself"},
        {"root ::= \"x\" root", MN_OK, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        net g;
        assert_ok(net_open(&g));
        mn_status status = net_finish(&g, net_grammar(&g, rows[i].grammar, strlen(rows[i].grammar)));
        if (status != rows[i].code || !strstr(status ? mn_last_error() : "", rows[i].part))
            fail_msg("%s\ngives %d: %s", rows[i].grammar, status, mn_last_error());
        if (status == MN_OK) assert_true(g.nodes[g.root].need > NET_DEPTH); /* matches nothing */
        net_clear(&g);
    }
}

static void repeat_text(bytes *out, const char *text, size_t times) {
    for (size_t i = 0; i < times; i++) bytes_append_text(out, text);
}

/* The longest grammars, and short ones that are large when written out. */
static void hostile_grammars_are_bounded(void **state) {
    (void)state;
    enum { KINDS = 9 };
    for (int kind = 0; kind < KINDS; kind++) {
        machine m;
        bytes text = {0};
        bytes_append_text(&text, "root ::= ");
        if (kind == 0) repeat_text(&text, "(", 60000);
        if (kind == 1) repeat_text(&text, "\"a\" | ", 10000);
        if (kind == 2) repeat_text(&text, "[^a]", 15000);
        if (kind == 3) bytes_append_text(&text, "((\"a\"{1000000}){1000000}){1000000}");
        if (kind == 4) repeat_text(&text, "#", 70000);
        if (kind == 5) bytes_append_text(&text, "\"a\"*"), repeat_text(&text, "*", 60000);
        if (kind == 6) repeat_text(&text, "a ", 30000);
        if (kind == 7 || kind == 8) { /* each rule calls the next one twice, or begins with it */
            bytes_append_text(&text, "r0");
            for (int i = 0; text.n < 60000 && (kind == 8 || i < 40); i++)
                bytes_printf(&text, kind == 7 ? "\nr%d ::= r%d r%d" : "\nr%d ::= \"\" r%d | r%d", i, i + 1, i + 1);
            bytes_append_text(&text, kind == 7 ? "\nr40 ::= \"a\"" : " \"b\"");
        }
        mn_status status = open_grammar(&m, text.data, text.n);
        static const char *const parts[KINDS] = {"more than 100 groups",
                                                 NULL,
                                                 NULL,
                                                 NULL,
                                                 "at most 65536 are allowed",
                                                 "more than 100 groups",
                                                 "the rule 'a' is not defined",
                                                 NULL,
                                                 "is not defined"};
        if (parts[kind]) {
            assert_fails(MN_E_ARG, parts[kind], status);
        } else {
            assert_ok(status);
            assert_true(takes(&m, "a", kind == 1) || kind > 1);
        }
        bytes_clear(&text);
        machine_close(&m);
    }
}

/* A rule in last position is no call: lists have any length. Others may be open 64 at once. */
static void recursion_in_last_position_has_no_limit(void **state) {
    (void)state;
    machine m;
    bytes text = {0};
    machine_open(&m,
                 "root ::= list\nlist ::= item tail\ntail ::= \",\" list | \"\"\nitem ::= \"a\" | \"(\" item \")\"");
    repeat_text(&text, "a,", 5000);
    assert_false(takes(&m, text.data, text.n));
    assert_true(takes(&m, text.data, text.n - 1));
    for (size_t deep = 62; deep < 66; deep++) {
        text.n = 0;
        repeat_text(&text, "(", deep);
        repeat_text(&text, "a", 1);
        repeat_text(&text, ")", deep);
        assert_int_equal(takes(&m, text.data, text.n), deep < 64);
    }
    bytes_clear(&text);
    machine_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_grammar),
        cmocka_unit_test(the_grammar_of_json_gives_json),
        cmocka_unit_test(random_grammars),
        cmocka_unit_test(wrong_grammars_are_refused_with_their_place),
        cmocka_unit_test(hostile_grammars_are_bounded),
        cmocka_unit_test(recursion_in_last_position_has_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
