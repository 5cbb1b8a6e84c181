/* Grammars in llama.cpp's GBNF to nodes: rules, one of them named root, of literals, sets of characters, groups,
 * choices and repetitions, over UTF-8.
 *
 * A rule is a rule of the net, so recursion is a call; in last position it is a jump. A rule that begins with itself
 * would be called for ever before a byte is read: refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "constraint/parts.h"

enum {
    GRAMMAR_BYTES = 1 << 16,
    GROUPS_DEEP = 100,
    SHOWN = 40, /* bytes of a name in a message */
};

typedef struct rule {
    const char *name;
    size_t n;
    uint32_t place;         /* where it is defined, or was met first */
    uint32_t body;          /* NO_PART: not defined */
    bool nullable;          /* may match the empty text */
    bool acyclic;           /* does not begin with itself */
    size_t left_at, left_n; /* slice of parser.left: the rules that it may begin with */
} rule;

typedef struct parser {
    net *g;
    const char *text;
    size_t n, at;
    int depth;
    part_tree tree;
    code_set set; /* scratch: the set being read */
    rule *rules;  /* in the order in which they were met; their numbers are those of the net's rules */
    size_t n_rules, rules_capacity;
    uint32_t *left;
    size_t n_left, left_capacity;
    uint32_t *entries; /* the first node of each rule */
} parser;

static bool ok(const parser *p) {
    return p->g->status == MN_OK;
}

/* Lines and columns count from 1, columns in characters. */
static void fail(parser *p, mn_status code, size_t place, const char *problem) {
    size_t line = 1, column = 1;
    if (!ok(p)) return;
    for (size_t i = 0; i < place; i++) {
        if (p->text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)p->text[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    p->g->status = status_fail(code, "grammar, line %zu, column %zu: %s", line, column, problem);
}

static void fail_name(parser *p, size_t place, const char *before, const char *name, size_t n, const char *after) {
    char problem[200];
    snprintf(problem, sizeof problem, "%s'%.*s%s'%s", before, (int)(n < SHOWN ? n : SHOWN), name,
             n > SHOWN ? "..." : "", after);
    fail(p, MN_E_ARG, place, problem);
}

static bool next_is(const parser *p, const char *word) {
    size_t n = strlen(word);
    return p->n - p->at >= n && memcmp(p->text + p->at, word, n) == 0;
}

static bool accept(parser *p, const char *word) {
    if (!next_is(p, word)) return false;
    p->at += strlen(word);
    return true;
}

static bool at_line_end(const parser *p) {
    return p->at == p->n || next_is(p, "\n") || next_is(p, "\r");
}

/* White space and comments; ends of lines too when a rule may continue after them. */
static void skip(parser *p, bool lines) {
    while (p->at < p->n) {
        if (next_is(p, "#")) {
            while (!at_line_end(p)) p->at++;
        } else if (next_is(p, " ") || next_is(p, "\t") || (lines && at_line_end(p))) {
            p->at++;
        } else {
            return;
        }
    }
}

/* ---- names ---- */

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* The rule of the name that stands here, which must be one. */
static uint32_t take_name(parser *p) {
    size_t from = p->at;
    while (p->at < p->n && is_name(p->text[p->at])) p->at++;
    size_t n = p->at - from;
    for (size_t i = 0; i < p->n_rules; i++) {
        if (p->rules[i].n == n && memcmp(p->rules[i].name, p->text + from, n) == 0) return (uint32_t)i;
    }
    if (!ok(p) || !net_check(p->g, mem_grow(&p->rules, &p->rules_capacity, p->n_rules + 1, sizeof *p->rules))) return 0;
    net_rule(p->g);
    p->rules[p->n_rules] = (rule){.name = p->text + from, .n = n, .place = (uint32_t)from, .body = NO_PART};
    return (uint32_t)p->n_rules++;
}

/* ---- characters ---- */

static bool take_hex(parser *p, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        static const char known[] = "0123456789abcdefABCDEF";
        const char *found = p->at < p->n && p->text[p->at] ? strchr(known, p->text[p->at]) : NULL;
        if (!found) return false;
        size_t value = (size_t)(found - known);
        *code = *code << 4 | (uint32_t)(value < 16 ? value : value - 6);
    }
    return true;
}

/* Behind a backslash at `place`. */
static uint32_t take_escape(parser *p, size_t place) {
    static const char letters[] = "tnr\\\"[]", meanings[] = "\t\n\r\\\"[]";
    char c = p->at < p->n ? p->text[p->at] : 0;
    const char *letter = c ? strchr(letters, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (letter) {
        p->at++;
        return (unsigned char)meanings[letter - letters];
    }
    if (!digits) {
        fail(p, MN_E_ARG, place, "no such escape, allowed: \\t \\n \\r \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH");
        return 0;
    }
    p->at++;
    if (!take_hex(p, digits, &code)) {
        fail(p, MN_E_ARG, place, "\\x needs 2 hexadecimal digits, \\u 4, \\U 8");
    } else if (code > CODE_LAST || (code >= 0xD800 && code < 0xE000)) {
        fail(p, MN_E_ARG, place, "no character of Unicode");
    }
    return code;
}

static uint32_t take_character(parser *p) {
    size_t place = p->at, length = utf8_length((unsigned char)p->text[place]);
    if (accept(p, "\\")) return take_escape(p, place);
    p->at += length;
    return utf8_decode(p->text + place, length);
}

/* Behind a quotation mark. A literal is one part, so what is repeated is the whole of it. */
static uint32_t parse_literal(parser *p, size_t place) {
    uint32_t id = part_add(&p->tree, PART_SEQUENCE, (uint32_t)place);
    while (ok(p) && p->at < p->n && !next_is(p, "\"")) {
        size_t here = p->at;
        uint32_t code = take_character(p);
        p->set.n = 0;
        code_set_add(p->g, &p->set, code, code);
        part_append(&p->tree, id, part_add_class(&p->tree, &p->set, (uint32_t)here));
    }
    if (!accept(p, "\"")) fail(p, MN_E_ARG, place, "the literal has no end");
    return id;
}

/* Behind an opening bracket. */
static uint32_t parse_set(parser *p, size_t place) {
    bool negated = accept(p, "^");
    p->set.n = 0;
    if (next_is(p, "]")) fail(p, MN_E_ARG, place, "an empty set; a bracket inside one is written \\]");
    while (ok(p) && p->at < p->n && !next_is(p, "]")) {
        size_t here = p->at;
        uint32_t first = take_character(p), last = first;
        if (next_is(p, "-") && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
            p->at++;
            last = take_character(p);
        }
        if (last < first) fail(p, MN_E_ARG, here, "a range out of order");
        code_set_add(p->g, &p->set, first, last);
    }
    if (!accept(p, "]")) fail(p, MN_E_ARG, place, "the set has no end");
    if (negated && ok(p)) {
        code_set_order(&p->set);
        code_set_invert(p->g, &p->set);
    }
    return part_add_class(&p->tree, &p->set, (uint32_t)place);
}

static uint32_t parse_any(parser *p, size_t place) {
    p->set.n = 0;
    code_set_add(p->g, &p->set, 0, CODE_LAST);
    return part_add_class(&p->tree, &p->set, (uint32_t)place);
}

/* ---- structure ---- */

static uint32_t parse_choice(parser *p, bool nested);

/* Behind "(". */
static uint32_t parse_group(parser *p, size_t place) {
    if (++p->depth > GROUPS_DEEP) fail(p, MN_E_ARG, place, "more than 100 groups inside each other");
    uint32_t inner = ok(p) ? parse_choice(p, true) : 0;
    p->depth--;
    if (!accept(p, ")")) fail(p, MN_E_ARG, place, "the group has no end");
    return inner;
}

static bool take_count(parser *p, uint32_t *count) {
    uint64_t value = 0;
    size_t from = p->at;
    for (; p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++) {
        value = value * 10 + (uint64_t)(p->text[p->at] - '0');
        if (value >= NET_MANY) {
            fail(p, MN_E_ARG, from, "a count of 4294967295 or more");
            return false;
        }
    }
    *count = (uint32_t)value;
    return p->at > from;
}

/* *, +, ?, {m}, {m,} or {m,n}. */
static bool take_repetition(parser *p, uint32_t *min, uint32_t *max) {
    size_t place = p->at;
    *min = next_is(p, "+");
    *max = next_is(p, "?") ? 1 : NET_MANY;
    if (accept(p, "*") || accept(p, "+") || accept(p, "?")) return true;
    if (!accept(p, "{")) return false;
    skip(p, false);
    bool good = take_count(p, min);
    skip(p, false);
    *max = *min;
    if (accept(p, ",")) {
        skip(p, false);
        if (!take_count(p, max)) *max = NET_MANY;
        skip(p, false);
    }
    if (!good || !accept(p, "}")) fail(p, MN_E_ARG, place, "a repetition is written {m}, {m,} or {m,n}");
    if (*min > *max) fail(p, MN_E_ARG, place, "the counts are out of order");
    return ok(p);
}

/* One element with what repeats it; false: none begins here. */
static bool parse_element(parser *p, bool nested, uint32_t *id) {
    size_t place = p->at;
    if (accept(p, "\"")) {
        *id = parse_literal(p, place);
    } else if (accept(p, "[")) {
        *id = parse_set(p, place);
    } else if (accept(p, "(")) {
        *id = parse_group(p, place);
    } else if (accept(p, ".")) {
        *id = parse_any(p, place);
    } else if (p->at < p->n && is_name(p->text[p->at])) {
        *id = part_add(&p->tree, PART_RULE, (uint32_t)place);
        uint32_t called = take_name(p);
        if (ok(p)) p->tree.parts[*id].rule = called;
    } else {
        return false;
    }
    skip(p, nested);
    for (uint32_t min, max; ok(p) && take_repetition(p, &min, &max); skip(p, nested)) {
        uint32_t repeated = part_add(&p->tree, PART_REPEAT, (uint32_t)place);
        if (++p->depth > GROUPS_DEEP) fail(p, MN_E_ARG, place, "more than 100 groups inside each other");
        if (!ok(p)) return true;
        p->tree.parts[repeated].min = min;
        p->tree.parts[repeated].max = max;
        part_append(&p->tree, repeated, *id);
        *id = repeated;
    }
    return true;
}

static uint32_t parse_sequence(parser *p, bool nested) {
    uint32_t id = part_add(&p->tree, PART_SEQUENCE, (uint32_t)p->at), element;
    int depth = p->depth;
    while (ok(p) && parse_element(p, nested, &element)) {
        part_append(&p->tree, id, element);
        p->depth = depth;
    }
    return part_unwrap(&p->tree, id);
}

static uint32_t parse_choice(parser *p, bool nested) {
    uint32_t id = part_add(&p->tree, PART_CHOICE, (uint32_t)p->at);
    do {
        skip(p, true);
        part_append(&p->tree, id, parse_sequence(p, nested));
    } while (ok(p) && accept(p, "|"));
    return part_unwrap(&p->tree, id);
}

static void refuse_rest(parser *p) {
    char c = p->text[p->at];
    fail(p, c == '<' || c == '!' ? MN_E_UNSUPPORTED : MN_E_ARG, p->at,
         next_is(p, "::=")      ? "a second ::= in one rule; a rule without a text is written \"\""
         : c == ')'             ? "a closing parenthesis without an opening one"
         : c == '<' || c == '!' ? "tokens are not supported, only characters"
         : c == '*' || c == '+' || c == '?' || c == '{'
             ? "there is nothing to repeat"
             : "unexpected; allowed: \"...\", [...], (...), a rule's name, ., |");
}

static void parse_rule(parser *p) {
    size_t place = p->at;
    if (next_is(p, "|"))
        fail(p, MN_E_ARG, place, "a | at the beginning of a line; it stands at the end of the line before");
    if (!is_name(p->text[place])) fail(p, MN_E_ARG, place, "a rule begins with its name: letters, digits, - and _");
    if (!ok(p)) return;
    uint32_t id = take_name(p);
    size_t name_n = p->at - place;
    skip(p, false);
    if (!accept(p, "::=")) fail_name(p, p->at, "::= is missing behind the name ", p->text + place, name_n, "");
    if (ok(p) && p->rules[id].body != NO_PART)
        fail_name(p, place, "the rule ", p->text + place, name_n, " is defined twice");
    uint32_t body = ok(p) ? parse_choice(p, false) : 0;
    if (ok(p) && !at_line_end(p)) refuse_rest(p);
    if (!ok(p)) return;
    p->rules[id].body = body;
    p->rules[id].place = (uint32_t)place;
}

/* ---- left recursion ---- */

/* Whether the part may match the empty text; adds to p->left the rules that it may begin with. */
static bool read_left(parser *p, uint32_t id) {
    const part *it = &p->tree.parts[id];
    bool nullable = it->kind == PART_SEQUENCE || (it->kind == PART_REPEAT && it->min == 0);
    size_t before = p->n_left;
    if (it->kind == PART_REPEAT && it->max == 0) return true;
    if (it->kind == PART_RULE) {
        if (!net_check(p->g, mem_grow(&p->left, &p->left_capacity, p->n_left + 1, sizeof *p->left))) return false;
        p->left[p->n_left++] = it->rule;
        return p->rules[it->rule].nullable;
    }
    /* From the last child to the first: what stands behind one that cannot be empty begins nothing. */
    for (uint32_t child = it->last; child != NO_PART; child = p->tree.parts[child].before) {
        size_t behind = p->n_left;
        bool empty = read_left(p, child);
        if (it->kind != PART_SEQUENCE) {
            nullable |= empty;
        } else if (!empty) {
            if (p->n_left > behind) memmove(p->left + before, p->left + behind, (p->n_left - behind) * sizeof *p->left);
            p->n_left -= behind - before;
            nullable = false;
        }
    }
    return nullable;
}

/* Fills nullable and the slices of p->left: the last round, which changes nothing, has them right. */
static void fill_left(parser *p) {
    for (bool changed = true; changed && ok(p);) {
        changed = false;
        p->n_left = 0;
        for (size_t i = p->n_rules; i-- > 0;) { /* rules are mostly met before those that they call */
            rule *r = &p->rules[i];
            r->left_at = p->n_left;
            bool nullable = read_left(p, r->body);
            r->left_n = p->n_left - r->left_at;
            changed |= nullable != r->nullable;
            r->nullable = nullable;
        }
    }
}

static bool is_acyclic(const parser *p, const rule *r, uint32_t *open) {
    for (size_t i = 0; i < r->left_n; i++) {
        *open = p->left[r->left_at + i];
        if (!p->rules[*open].acyclic) return false;
    }
    return true;
}

static void check_left_recursion(parser *p) {
    uint32_t at = 0, next = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = p->n_rules; i-- > 0;) {
            if (p->rules[i].acyclic || !is_acyclic(p, &p->rules[i], &next)) continue;
            p->rules[i].acyclic = changed = true;
        }
    }
    while (at < p->n_rules && p->rules[at].acyclic) at++;
    if (at == p->n_rules) return;
    /* Each rule that is left leads to such a one: after so many steps the path is on a circle. */
    for (size_t i = 0; i < p->n_rules; i++) {
        is_acyclic(p, &p->rules[at], &next);
        at = next;
    }
    is_acyclic(p, &p->rules[at], &next);
    const rule *r = &p->rules[at], *through = &p->rules[next];
    char after[120];
    snprintf(after, sizeof after, " begins with itself%s%.*s%s: left recursion is not supported",
             at == next ? "" : " through '", at == next ? 0 : (int)(through->n < SHOWN ? through->n : SHOWN),
             through->name, at == next ? "" : "'");
    fail_name(p, r->place, "the rule ", r->name, r->n, after);
}

/* ---- building ---- */

static uint32_t build_rules(parser *p, uint32_t root) {
    p->entries = mem_alloc(p->n_rules, sizeof *p->entries);
    if (!p->entries) {
        net_check(p->g, MN_E_NOMEM);
        return NET_FAIL;
    }
    p->tree.entries = p->entries;
    for (size_t i = 0; i < p->n_rules; i++) p->entries[i] = net_loop(p->g, NET_FAIL);
    for (size_t i = 0; i < p->n_rules && ok(p); i++) {
        p->g->rules[i] = p->entries[i];
        net_loop_body(p->g, p->entries[i], part_build(&p->tree, p->rules[i].body, SPELL_PLAIN, NET_END));
    }
    return p->entries[root];
}

static uint32_t parse_grammar(parser *p) {
    size_t root = 0;
    skip(p, true);
    if (p->at == p->n) fail(p, MN_E_ARG, 0, "it is empty; a rule is written name ::= \"text\"");
    for (; ok(p) && p->at < p->n; skip(p, true)) parse_rule(p);
    for (size_t i = 0; i < p->n_rules && ok(p); i++) {
        const rule *r = &p->rules[i];
        if (r->body == NO_PART) fail_name(p, r->place, "the rule ", r->name, r->n, " is not defined");
    }
    while (root < p->n_rules && (p->rules[root].n != 4 || memcmp(p->rules[root].name, "root", 4) != 0)) root++;
    if (root == p->n_rules) fail(p, MN_E_ARG, p->n, "there is no rule 'root', with which a text begins");
    if (ok(p)) fill_left(p);
    if (ok(p)) check_left_recursion(p);
    return ok(p) ? build_rules(p, (uint32_t)root) : (uint32_t)NET_FAIL;
}

uint32_t net_grammar(net *g, const char *text, size_t n) {
    parser p = {.g = g, .text = text, .n = n, .tree = {.g = g}};
    uint32_t node = NET_FAIL;
    if (g->status != MN_OK) return NET_FAIL;
    size_t valid = utf8_valid_prefix(text, n);
    if (n > GRAMMAR_BYTES) {
        g->status = status_fail(MN_E_ARG, "a grammar of %zu bytes, at most %d are allowed", n, GRAMMAR_BYTES);
    } else if (valid < n) {
        fail(&p, MN_E_ARG, valid, "this is not UTF-8");
    } else {
        node = parse_grammar(&p);
    }
    part_tree_clear(&p.tree);
    code_set_clear(&p.set);
    mem_free(p.rules);
    mem_free(p.left);
    mem_free(p.entries);
    return node;
}
