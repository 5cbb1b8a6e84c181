/* Regular expressions to nodes: the part of ECMAScript's and PCRE's syntax that describes a regular language, over
 * UTF-8.
 *
 * A pattern is parsed into a small tree, because nodes are built from right to left. Constructs that are not regular
 * (backreferences, lookaround, word boundaries) are refused with their place.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/num.h"
#include "base/utf8.h"
#include "constraint/parts.h"

enum {
    PATTERN_BYTES = 1 << 16,
    GROUPS_DEEP = 100,
    SHOWN = 80, /* bytes of a pattern in a message */
};

typedef struct parser {
    net *g;
    const char *text;
    size_t n, at;
    int depth;
    part_tree tree;
    code_set set; /* scratch: the class being read */
} parser;

static bool ok(const parser *p) {
    return p->g->status == MN_OK;
}

static void fail(parser *p, mn_status code, size_t place, const char *problem) {
    if (!ok(p)) return;
    p->g->status = status_fail(code, "regular expression '%.*s'%s: %s (at byte %zu)",
                               (int)utf8_valid_prefix(p->text, p->n < SHOWN ? p->n : SHOWN), p->text,
                               p->n > SHOWN ? "..." : "", problem, place);
}

static uint32_t add_part(parser *p, part_kind kind, size_t place) {
    return part_add(&p->tree, kind, (uint32_t)place);
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

/* ---- characters ---- */

static uint32_t take_code(parser *p) {
    size_t length = utf8_length((unsigned char)p->text[p->at]);
    uint32_t code = utf8_decode(p->text + p->at, length);
    p->at += length;
    return code;
}

/* Exactly `least` to `most` hexadecimal digits; false (nothing read) when there are fewer. */
static bool take_hex(parser *p, int least, int most, uint32_t *code) {
    size_t at = p->at;
    int n = 0;
    *code = 0;
    for (; n < most && at < p->n && hex_value(p->text[at]) >= 0; n++, at++)
        *code = *code << 4 | (uint32_t)hex_value(p->text[at]);
    if (n < least) return false;
    p->at = at;
    return true;
}

/* Behind \x or \u. */
static uint32_t take_number(parser *p, int digits, size_t place) {
    uint32_t code, low;
    bool braces = accept(p, "{"),
         good = braces ? take_hex(p, 1, 6, &code) && accept(p, "}") : take_hex(p, digits, digits, &code);
    if (good && !braces && code >= 0xD800 && code < 0xDC00 && next_is(p, "\\u")) {
        size_t back = p->at;
        p->at += 2;
        if (take_hex(p, 4, 4, &low) && low >= 0xDC00 && low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else {
            p->at = back;
        }
    }
    if (!good || code > CODE_LAST || (code >= 0xD800 && code < 0xE000)) {
        fail(p, MN_E_ARG, place, "no character of Unicode");
        return 0;
    }
    return code;
}

/* Adds \d, \w, \s or the like to the set; letters as in ECMAScript: digits and word characters are ASCII, white space
 * has the byte order mark and no U+0085. */
static void add_named(parser *p, char letter, code_set *set) {
    static const uint32_t digits[][2] = {{'0', '9'}}, words[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                          spaces[][2] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                         {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                         {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    bool d = letter == 'd' || letter == 'D', w = letter == 'w' || letter == 'W';
    const uint32_t(*ranges)[2] = d ? digits : w ? words : spaces;
    size_t n = d ? 1 : w ? sizeof words / sizeof *words : sizeof spaces / sizeof *spaces;
    code_set named = {0};
    for (size_t i = 0; i < n; i++) code_set_add(p->g, &named, ranges[i][0], ranges[i][1]);
    if (letter < 'a') code_set_invert(p->g, &named);
    for (size_t i = 0; i < named.n; i++)
        code_set_add(p->g, set, (uint32_t)(named.ranges[i] >> 32), (uint32_t)named.ranges[i]);
    code_set_clear(&named);
}

static void refuse_escape(parser *p, char c, size_t place) {
    static const struct {
        const char *letters, *name;
    } names[] = {{"123456789k", "references back to a group are not supported"},
                 {"bB", "word borders are not supported"},
                 {"pPX", "Unicode properties are not supported"},
                 {"AZzG", "only ^ and $ mark the ends"},
                 {"QE", "\\Q quoting is not supported"},
                 {"cCKNRHhVLUlg", "this escape is not supported"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (c && strchr(names[i].letters, c)) {
            fail(p, MN_E_UNSUPPORTED, place, names[i].name);
            return;
        }
    }
    fail(p, MN_E_ARG, place, "there is no such escape");
}

/* The character or the set behind a backslash (already read), added to the set; whether it was one character, *code. */
static bool take_escape(parser *p, bool in_class, code_set *set, uint32_t *code) {
    static const char letters[] = "tnrfv0", meanings[] = "\t\n\r\f\v";
    size_t place = p->at - 1;
    if (p->at == p->n) {
        fail(p, MN_E_ARG, place, "a backslash ends the pattern");
        return false;
    }
    char c = p->text[p->at];
    if (c && strchr("dDwWsS", c)) {
        p->at++;
        add_named(p, c, set);
        return false;
    }
    const char *letter = strchr(letters, c);
    bool plain =
        (unsigned char)c < 0x80 && !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'));
    if (letter && *letter) {
        p->at++;
        *code = (unsigned char)meanings[letter - letters];
        if (c == '0' && p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9')
            fail(p, MN_E_UNSUPPORTED, place, "octal numbers are not supported");
    } else if (c == 'x' || c == 'u') {
        p->at++;
        *code = take_number(p, c == 'x' ? 2 : 4, place);
    } else if (c == 'b' && in_class) {
        p->at++;
        *code = '\b';
    } else if (plain) {
        p->at++;
        *code = (unsigned char)c;
    } else {
        refuse_escape(p, c, place);
        return false;
    }
    code_set_add(p->g, set, *code, *code);
    return true;
}

/* One member of a bracket; whether it was one character, *code. */
static bool take_member(parser *p, uint32_t *code) {
    if (accept(p, "\\")) return take_escape(p, true, &p->set, code);
    if (next_is(p, "[:") || next_is(p, "[=") || next_is(p, "[.")) {
        fail(p, MN_E_UNSUPPORTED, p->at, "POSIX classes are not supported");
        return false;
    }
    *code = take_code(p);
    code_set_add(p->g, &p->set, *code, *code);
    return true;
}

/* Behind "[". */
static void take_bracket(parser *p, size_t place) {
    bool negated = accept(p, "^");
    if (next_is(p, "]")) fail(p, MN_E_ARG, place, "an empty class; a bracket inside one is written \\]");
    while (ok(p) && p->at < p->n && !next_is(p, "]")) {
        uint32_t first = 0, last = 0;
        size_t here = p->at;
        bool single = take_member(p, &first);
        if (!next_is(p, "-") || p->at + 1 >= p->n || p->text[p->at + 1] == ']') continue;
        p->at++;
        if (!single || !take_member(p, &last)) {
            fail(p, MN_E_ARG, here, "a range needs a character at both ends; a plain dash is written \\-");
        } else if (last < first) {
            fail(p, MN_E_ARG, here, "a range out of order");
        } else {
            code_set_add(p->g, &p->set, first, last);
        }
    }
    if (!accept(p, "]")) fail(p, MN_E_ARG, place, "the class has no end");
    if (!negated || !ok(p)) return;
    code_set_order(&p->set);
    code_set_invert(p->g, &p->set);
}

static uint32_t parse_character(parser *p) {
    size_t place = p->at;
    uint32_t code;
    p->set.n = 0;
    if (accept(p, "[")) {
        take_bracket(p, place);
    } else if (accept(p, "\\")) {
        take_escape(p, false, &p->set, &code);
    } else if (accept(p, ".")) { /* all but the ends of lines */
        code_set_add(p->g, &p->set, '\n', '\n');
        code_set_add(p->g, &p->set, '\r', '\r');
        code_set_add(p->g, &p->set, 0x2028, 0x2029);
        if (ok(p)) code_set_invert(p->g, &p->set);
    } else {
        code = take_code(p);
        code_set_add(p->g, &p->set, code, code);
    }
    return part_add_class(&p->tree, &p->set, (uint32_t)place);
}

/* ---- structure ---- */

static uint32_t parse_choice(parser *p);

/* Behind "(". */
static uint32_t parse_group(parser *p, size_t place) {
    static const struct {
        const char *begin, *problem;
    } refused[] = {{"?=", "looking ahead is not supported"},
                   {"?!", "looking ahead is not supported"},
                   {"?<=", "looking behind is not supported"},
                   {"?<!", "looking behind is not supported"},
                   {"?>", "atomic groups are not supported"},
                   {"?#", "comments are not supported"},
                   {"?P=", "references back to a group are not supported"},
                   {"*", "verbs are not supported"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (next_is(p, refused[i].begin)) fail(p, MN_E_UNSUPPORTED, place, refused[i].problem);
    }
    if (accept(p, "?<") || accept(p, "?P<")) {
        while (p->at < p->n && p->text[p->at] != '>') p->at++;
        if (!accept(p, ">")) fail(p, MN_E_ARG, place, "the group's name has no end");
    } else if (!accept(p, "?:") && next_is(p, "?")) {
        fail(p, MN_E_UNSUPPORTED, place, "flags and groups of this kind are not supported");
    }
    if (++p->depth > GROUPS_DEEP) fail(p, MN_E_ARG, place, "more than 100 groups inside each other");
    uint32_t inner = parse_choice(p);
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

/* {m}, {m,} or {m,n}; anything else in braces is plain text. */
static bool take_braces(parser *p, uint32_t *min, uint32_t *max) {
    size_t from = p->at++;
    bool good = take_count(p, min);
    *max = *min;
    if (good && accept(p, ",")) {
        *max = NET_MANY;
        if (!next_is(p, "}")) good = take_count(p, max);
    }
    if (good && accept(p, "}")) return true;
    p->at = from;
    return false;
}

static bool take_repetition(parser *p, uint32_t *min, uint32_t *max) {
    if (p->at == p->n) return false;
    *min = 0;
    *max = NET_MANY;
    if (accept(p, "*")) return true;
    *min = 1;
    if (accept(p, "+")) return true;
    *min = 0;
    *max = 1;
    if (accept(p, "?")) return true;
    return p->text[p->at] == '{' && take_braces(p, min, max);
}

static uint32_t parse_repeated(parser *p) {
    size_t place = p->at;
    uint32_t min, max, inner;
    if (take_repetition(p, &min, &max)) {
        fail(p, MN_E_ARG, place, "there is nothing to repeat");
        return 0;
    }
    if (accept(p, "^")) return add_part(p, PART_START, place);
    if (accept(p, "$")) return add_part(p, PART_STOP, place);
    inner = accept(p, "(") ? parse_group(p, place) : parse_character(p);
    size_t count = p->at;
    if (!ok(p) || !take_repetition(p, &min, &max)) return inner;
    if (min > max) fail(p, MN_E_ARG, count, "the counts are out of order");
    if (accept(p, "+")) fail(p, MN_E_UNSUPPORTED, count, "possessive repetition is not supported");
    accept(p, "?"); /* lazy: the same texts match */
    count = p->at;
    uint32_t again[2];
    if (take_repetition(p, &again[0], &again[1])) fail(p, MN_E_ARG, count, "there is nothing to repeat");
    uint32_t id = add_part(p, PART_REPEAT, place);
    if (!ok(p)) return 0;
    p->tree.parts[id].min = min;
    p->tree.parts[id].max = max;
    part_append(&p->tree, id, inner);
    return id;
}

static uint32_t parse_sequence(parser *p) {
    uint32_t id = add_part(p, PART_SEQUENCE, p->at);
    while (ok(p) && p->at < p->n && !next_is(p, "|") && !next_is(p, ")")) part_append(&p->tree, id, parse_repeated(p));
    return part_unwrap(&p->tree, id);
}

static uint32_t parse_choice(parser *p) {
    uint32_t id = add_part(p, PART_CHOICE, p->at);
    do { part_append(&p->tree, id, parse_sequence(p)); } while (ok(p) && accept(p, "|"));
    return part_unwrap(&p->tree, id);
}

/* ---- ends ---- */

static bool is_mark(const parser *p, uint32_t id, part_kind kind) {
    return id != NO_PART && p->tree.parts[id].kind == kind;
}

/* Fails for a ^ or $ that stands where text may precede or follow. */
static void check_ends(parser *p, uint32_t id, bool left, bool right, bool search) {
    const part *it = &p->tree.parts[id];
    if (it->kind == PART_START && !left) fail(p, MN_E_UNSUPPORTED, it->place, "^ may only stand at the beginning");
    if (it->kind == PART_STOP && !right) fail(p, MN_E_UNSUPPORTED, it->place, "$ may only stand at the end");
    bool is_choice = it->kind == PART_CHOICE, ends = it->kind == PART_SEQUENCE || is_choice;
    uint32_t first = part_first(&p->tree, id);
    bool after = right && ends; /* nothing but $ follows the child */
    for (uint32_t child = it->last; child != NO_PART && ok(p); child = p->tree.parts[child].before) {
        bool before =
            left && ends && (is_choice || child == first || is_mark(p, p->tree.parts[child].before, PART_START));
        bool own = is_choice || (p->tree.parts[child].kind == PART_START || p->tree.parts[child].kind == PART_STOP);
        /* Where a match may begin anywhere, only a whole alternative can rule that out. */
        check_ends(p, child, before && (own || !search), after && (own || !search), search);
        if (!is_choice && p->tree.parts[child].kind != PART_STOP) after = false;
    }
}

/* ---- lengths ---- */

typedef struct span {
    uint64_t min, max;
} span;

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    if (a == 0 || b == 0) return 0;
    return __builtin_mul_overflow(a, b, &product) || product > NET_MANY ? NET_MANY : product;
}

static uint64_t plus(uint64_t a, uint64_t b) {
    return a + b > NET_MANY ? NET_MANY : a + b;
}

/* Fewest and most characters of a part; NET_MANY means that many or more. */
static span length_of(const parser *p, uint32_t id) {
    const part *it = &p->tree.parts[id];
    span sum = {0, 0};
    if (it->kind == PART_CLASS) return (span){1, 1};
    for (uint32_t child = it->last; child != NO_PART; child = p->tree.parts[child].before) {
        span one = length_of(p, child);
        if (it->kind == PART_CHOICE) {
            sum.min = child == it->last || one.min < sum.min ? one.min : sum.min;
            sum.max = one.max > sum.max ? one.max : sum.max;
        } else {
            sum = (span){plus(sum.min, one.min), plus(sum.max, one.max)};
        }
    }
    if (it->kind == PART_REPEAT) sum = (span){times(sum.min, it->min), times(sum.max, it->max)};
    return sum;
}

/* Applies how->min..max characters: possible when all texts satisfy it, or when the pattern is ^x{m,n}$ of one class.
 */
static void limit_length(parser *p, uint32_t root, const net_pattern *how) {
    uint32_t last = p->tree.parts[root].last,
             middle = is_mark(p, last, PART_STOP) ? p->tree.parts[last].before : NO_PART;
    bool whole = middle != NO_PART && p->tree.parts[root].kind == PART_SEQUENCE &&
                 is_mark(p, part_first(&p->tree, root), PART_START);
    span length = length_of(p, root);
    if (!whole && how->search) length.max = NET_MANY;
    if (length.min >= how->min && (length.max <= how->max || how->max == NET_MANY)) return;
    if (whole && is_mark(p, middle, PART_REPEAT) && p->tree.parts[middle].before == part_first(&p->tree, root) &&
        is_mark(p, p->tree.parts[middle].last, PART_CLASS)) {
        part *it = &p->tree.parts[middle];
        if (it->min < how->min) it->min = how->min;
        if (it->max > how->max) it->max = how->max;
    } else {
        fail(p, MN_E_UNSUPPORTED, 0,
             "limits of the length are only supported beside a pattern ^[...]*$ or one that keeps to them");
    }
}

/* ---- building ---- */

static uint32_t any_text(parser *p, net_spelling spelling, uint32_t next) {
    code_set any = {0};
    code_set_add(p->g, &any, 0, CODE_LAST);
    uint32_t loop = net_loop(p->g, next);
    net_loop_body(p->g, loop, net_class(p->g, &any, spelling, loop));
    code_set_clear(&any);
    return loop;
}

/* A pattern that may match anywhere: each alternative has its own rule for text around the match. */
static uint32_t build_search(parser *p, uint32_t id, net_spelling spelling, uint32_t next) {
    const part *it = &p->tree.parts[id];
    if (it->kind == PART_CHOICE) {
        uint32_t node = NET_FAIL;
        for (uint32_t child = it->last; child != NO_PART; child = p->tree.parts[child].before)
            node = net_split(p->g, build_search(p, child, spelling, next), node);
        return node;
    }
    bool several = it->kind == PART_SEQUENCE;
    uint32_t first = several ? part_first(&p->tree, id) : id, last = several ? it->last : id;
    if (!is_mark(p, last, PART_STOP)) next = any_text(p, spelling, next);
    next = part_build(&p->tree, id, spelling, next);
    return is_mark(p, first, PART_START) ? next : any_text(p, spelling, next);
}

static uint32_t build_pattern(parser *p, const net_pattern *how, uint32_t next) {
    uint32_t root = parse_choice(p);
    if (p->at < p->n) fail(p, MN_E_ARG, p->at, "a closing parenthesis without an opening one");
    if (ok(p)) check_ends(p, root, true, true, how->search);
    if (ok(p) && (how->min > 0 || how->max != NET_MANY)) limit_length(p, root, how);
    if (!ok(p)) return NET_FAIL;
    return how->search ? build_search(p, root, how->spelling, next) : part_build(&p->tree, root, how->spelling, next);
}

uint32_t net_regex(net *g, const char *pattern, size_t n, const net_pattern *how, uint32_t next) {
    parser p = {.g = g, .text = pattern, .n = n, .tree = {.g = g}};
    uint32_t node = NET_FAIL;
    if (g->status != MN_OK) return NET_FAIL;
    if (n > PATTERN_BYTES) {
        p.n = 0;
        g->status =
            status_fail(MN_E_ARG, "a regular expression of %zu bytes, at most %d are allowed", n, PATTERN_BYTES);
    } else if (utf8_valid_prefix(pattern, n) < n) {
        g->status =
            status_fail(MN_E_ARG, "the regular expression is not UTF-8 at byte %zu", utf8_valid_prefix(pattern, n));
    } else {
        node = build_pattern(&p, how, next);
    }
    part_tree_clear(&p.tree);
    code_set_clear(&p.set);
    return node;
}

uint32_t net_plain(net *g, const char *pattern, uint32_t next) {
    return net_regex(g, pattern, strlen(pattern), &(net_pattern){.max = NET_MANY}, next);
}
