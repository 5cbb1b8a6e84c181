/* Expressions of the template language. Attributes, calls, filters and operators that are applied to a value from left
 * to right are one flat chain of steps of any length; only brackets, right operands and inline conditions nest.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

/* MAX_DEPTH bounds the nesting of brackets, right operands and statements, so that parsing, resolving and rendering
 * what was parsed need less than 64 KiB of stack. */
enum { MAX_DEPTH = 64, MAX_STEPS = 1000, MAX_KEYWORDS = 256 };

/* ---- what both halves of the parser use ---- */

mn_status jparse_node(jparser *p, jnode_kind kind, jnode **out) {
    p->arena->line = p->at->line;
    MN_TRY(jinja_alloc(p->arena, sizeof **out, out));
    **out = (jnode){.kind = kind, .line = p->at->line};
    return MN_OK;
}

mn_status jparse_push(jparser *p, jnode *node) {
    MN_TRY(jinja_grow(p->arena, &p->stack, &p->stack_capacity, p->n_stack + 1, sizeof *p->stack));
    p->stack[p->n_stack++] = node;
    return MN_OK;
}

mn_status jparse_pop(jparser *p, size_t base, jnodes *out) {
    *out = (jnodes){NULL, p->n_stack - base};
    MN_TRY(jinja_alloc(p->arena, out->n * sizeof *out->items, &out->items));
    if (out->n) memcpy(out->items, p->stack + base, out->n * sizeof *out->items);
    p->n_stack = base;
    return MN_OK;
}

bool jparse_is_op(const jparser *p, int op) {
    return p->at->kind == T_OPERATOR && p->at->op == op;
}

bool jparse_is_name(const jtoken *token, const char *name) {
    return token->kind == T_NAME && jinja_string_is(token->text, name);
}

bool jparse_accept_op(jparser *p, int op) {
    if (!jparse_is_op(p, op)) return false;
    p->at++;
    return true;
}

bool jparse_accept_name(jparser *p, const char *name) {
    if (!jparse_is_name(p->at, name)) return false;
    p->at++;
    return true;
}

mn_status jparse_unexpected(const jparser *p, const char *expected) {
    const jtoken *t = p->at;
    switch (t->kind) {
    case T_EOF: return jinja_syntax_error(t->line, "unexpected end of template, expected %s", expected);
    case T_VARIABLE_END: return jinja_syntax_error(t->line, "expected %s, got '}}'", expected);
    case T_BLOCK_END: return jinja_syntax_error(t->line, "expected %s, got '%%}'", expected);
    case T_OPERATOR:
        if (t->op > 0xFF)
            return jinja_syntax_error(t->line, "expected %s, got '%c%c'", expected, t->op >> 8, t->op & 0xFF);
        return jinja_syntax_error(t->line, "expected %s, got '%c'", expected, t->op);
    case T_INTEGER:
    case T_FLOAT: return jinja_syntax_error(t->line, "expected %s, got a number", expected);
    default:
        return jinja_syntax_error(t->line, "expected %s, got '%.*s'", expected,
                                  t->text ? (int)(t->text->n < 60 ? t->text->n : 60) : 0, t->text ? t->text->data : "");
    }
}

mn_status jparse_expect_op(jparser *p, int op) {
    const char expected[] = {'\'', (char)op, '\'', 0};
    return jparse_accept_op(p, op) ? MN_OK : jparse_unexpected(p, expected);
}

mn_status jparse_expect_name(jparser *p, const jstring **out) {
    if (p->at->kind != T_NAME) return jparse_unexpected(p, "a name");
    *out = p->at->text;
    p->at++;
    return MN_OK;
}

mn_status jparse_enter(jparser *p) {
    if (++p->depth > MAX_DEPTH) return jinja_syntax_error(p->at->line, "nesting deeper than %d levels", MAX_DEPTH);
    return MN_OK;
}

/* ---- primaries ---- */

static mn_status new_const(jparser *p, jvalue value, jnode **out) {
    MN_TRY(jparse_node(p, N_CONST, out));
    (*out)->value = value;
    return MN_OK;
}

static mn_status parse_name(jparser *p, jnode **out) {
    static const struct {
        const char *name;
        jvalue value;
    } words[] = {{"true", {.kind = J_BOOL, .boolean = true}},
                 {"True", {.kind = J_BOOL, .boolean = true}},
                 {"false", {.kind = J_BOOL}},
                 {"False", {.kind = J_BOOL}},
                 {"none", {.kind = J_NONE}},
                 {"None", {.kind = J_NONE}}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!jparse_is_name(p->at, words[i].name)) continue;
        MN_TRY(new_const(p, words[i].value, out));
        p->at++;
        return MN_OK;
    }
    MN_TRY(jparse_node(p, N_NAME, out));
    (*out)->text = p->at->text;
    p->n_caller += jparse_is_name(p->at, "caller");
    p->n_kwargs += jparse_is_name(p->at, "kwargs");
    p->n_varargs += jparse_is_name(p->at, "varargs");
    p->at++;
    return MN_OK;
}

/* Neighbouring strings are one. */
static mn_status parse_strings(jparser *p, jnode **out) {
    size_t n = 0;
    const jtoken *end = p->at;
    for (; end->kind == T_STRING; end++) { /* charged: by the lexer */
        n += end->text->n;
    }
    const jstring *text = p->at->text;
    if (end > p->at + 1) {
        char *data;
        MN_TRY(jinja_alloc(p->arena, n, &data));
        n = 0;
        for (const jtoken *t = p->at; t < end; t++) { /* charged: by the lexer */
            memcpy(data + n, t->text->data, t->text->n);
            n += t->text->n;
        }
        MN_TRY(jinja_string_wrap(p->arena, data, n, &text));
    }
    MN_TRY(new_const(p, j_string(text, false), out));
    p->at = end;
    return MN_OK;
}

/* [ ... ] and { ... }, with a trailing comma allowed. */
static mn_status parse_display(jparser *p, jnode_kind kind, int closing, jnode **out) {
    size_t base = p->n_stack;
    MN_TRY(jparse_node(p, kind, out));
    p->at++;
    for (bool first = true; !jparse_is_op(p, closing); first = false) {
        if (!first) {
            MN_TRY(jparse_expect_op(p, ','));
            if (jparse_is_op(p, closing)) break;
        }
        jnode *item;
        MN_TRY(jparse_expression(p, &item));
        MN_TRY(jparse_push(p, item));
        if (kind == N_DICT) {
            MN_TRY(jparse_expect_op(p, ':'));
            MN_TRY(jparse_expression(p, &item));
            MN_TRY(jparse_push(p, item));
        }
    }
    p->at++;
    return jparse_pop(p, base, &(*out)->items);
}

static mn_status parse_tuple_until(jparser *p, bool conditional, const char *end, bool parentheses, jnode **out);

mn_status jparse_primary(jparser *p, jnode **out) {
    const jtoken *t = p->at;
    switch (t->kind) {
    case T_NAME: return parse_name(p, out);
    case T_STRING: return parse_strings(p, out);
    case T_INTEGER: MN_TRY(new_const(p, j_int(t->integer), out)); break;
    case T_FLOAT: MN_TRY(new_const(p, j_float(t->real), out)); break;
    case T_OPERATOR:
        if (t->op == '[') return parse_display(p, N_LIST, ']', out);
        if (t->op == '{') return parse_display(p, N_DICT, '}', out);
        if (t->op == '(') {
            p->at++;
            MN_TRY(parse_tuple_until(p, true, NULL, true, out));
            return jparse_expect_op(p, ')');
        }
        return jparse_unexpected(p, "an expression");
    default: return jparse_unexpected(p, "an expression");
    }
    p->at++;
    return MN_OK;
}

/* ---- what follows a primary: steps of a chain, pushed one after the other ---- */

static mn_status push_step(jparser *p, jnode_kind kind, jnode **out) {
    MN_TRY(jparse_node(p, kind, out));
    return jparse_push(p, *out);
}

/* What was pushed since `base`, a value and the steps that follow it, as one expression. */
static mn_status pop_chain(jparser *p, size_t base, jnode **out) {
    size_t n_steps = p->n_stack - base - 1;
    jnode *first = p->stack[base];
    if (n_steps > MAX_STEPS) return jinja_syntax_error(p->at->line, "an expression of more than %d steps", MAX_STEPS);
    *out = first;
    if (n_steps) {
        MN_TRY(jparse_node(p, N_CHAIN, out));
        (*out)->a = first;
        MN_TRY(jparse_pop(p, base + 1, &(*out)->items));
    }
    p->n_stack = base;
    return MN_OK;
}

static mn_status parse_slice_part(jparser *p, jnode **out) {
    *out = NULL;
    if (jparse_is_op(p, ':') || jparse_is_op(p, ']') || jparse_is_op(p, ',')) return MN_OK;
    return jparse_expression(p, out);
}

/* One index or slice; *slice is NULL unless there was a colon. */
static mn_status parse_subscribed(jparser *p, jnode **index, jnode **slice) {
    jnode *parts[3] = {NULL, NULL, NULL};
    *slice = NULL;
    if (!jparse_is_op(p, ':')) {
        MN_TRY(jparse_expression(p, index));
        if (!jparse_is_op(p, ':')) return MN_OK;
        parts[0] = *index;
    }
    MN_TRY(jparse_node(p, N_SLICE, slice));
    p->at++;
    MN_TRY(parse_slice_part(p, &parts[1]));
    if (jparse_accept_op(p, ':')) MN_TRY(parse_slice_part(p, &parts[2]));
    size_t base = p->n_stack;
    for (int i = 0; i < 3; i++) MN_TRY(jparse_push(p, parts[i]));
    return jparse_pop(p, base, &(*slice)->items);
}

static mn_status parse_subscript(jparser *p) {
    size_t base = p->n_stack;
    jnode *index = NULL, *slice = NULL, *tuple, *step;
    p->at++;
    while (!jparse_is_op(p, ']')) {
        if (p->n_stack > base) {
            MN_TRY(jparse_expect_op(p, ','));
            if (jparse_is_op(p, ']')) break;
        }
        MN_TRY(parse_subscribed(p, &index, &slice));
        MN_TRY(jparse_push(p, slice ? slice : index));
    }
    p->at++;
    if (p->n_stack == base + 1) {
        if (slice) return MN_OK;
        p->n_stack = base;
    } else {
        MN_TRY(jparse_node(p, N_TUPLE, &tuple));
        MN_TRY(jparse_pop(p, base, &tuple->items));
        for (size_t i = 0; i < tuple->items.n; i++) { /* charged: each when it was parsed */
            if (tuple->items.items[i]->kind == N_SLICE)
                return jinja_syntax_error(p->at->line, "a slice among several indices");
        }
        index = tuple;
    }
    MN_TRY(push_step(p, N_ITEM, &step));
    step->b = index;
    return MN_OK;
}

static mn_status parse_point(jparser *p) {
    jnode *step;
    p->at++;
    if (p->at->kind == T_NAME) {
        MN_TRY(push_step(p, N_ATTRIBUTE, &step));
        step->text = p->at->text;
    } else if (p->at->kind == T_INTEGER) {
        MN_TRY(push_step(p, N_ITEM, &step));
        MN_TRY(new_const(p, j_int(p->at->integer), &step->b));
    } else {
        return jparse_unexpected(p, "a name or a number");
    }
    p->at++;
    return MN_OK;
}

/* One argument; keyword arguments are pushed as N_OPERAND nodes with a name. */
static mn_status parse_argument(jparser *p, jarguments *args, bool *named) {
    bool starred = args->star || args->double_star;
    jnode *value;
    if (jparse_is_op(p, '*')) {
        if (starred) return jparse_unexpected(p, "')'");
        p->at++;
        return jparse_expression(p, &args->star);
    }
    if (jparse_is_op(p, JOP_POWER)) {
        if (args->double_star) return jparse_unexpected(p, "')'");
        p->at++;
        return jparse_expression(p, &args->double_star);
    }
    if (p->at->kind == T_NAME && p->at[1].kind == T_OPERATOR && p->at[1].op == '=') {
        if (args->double_star) return jparse_unexpected(p, "')'");
        jnode *keyword;
        MN_TRY(jparse_node(p, N_OPERAND, &keyword));
        keyword->text = p->at->text;
        p->at += 2;
        MN_TRY(jparse_expression(p, &keyword->a));
        *named = true;
        return jparse_push(p, keyword);
    }
    if (starred || *named) return jparse_unexpected(p, "a keyword argument");
    MN_TRY(jparse_expression(p, &value));
    return jparse_push(p, value);
}

/* The keyword arguments among the nodes above `base` go into args->named. */
static mn_status take_keywords(jparser *p, size_t base, jarguments *args) {
    size_t first = base;
    while (first < p->n_stack && p->stack[first]->kind != N_OPERAND) /* charged: each when it was parsed */
        first++;
    args->n_named = p->n_stack - first;
    if (args->n_named > MAX_KEYWORDS)
        return jinja_syntax_error(p->at->line, "more than %d keyword arguments", MAX_KEYWORDS);
    MN_TRY(jinja_alloc(p->arena, args->n_named * sizeof *args->named, &args->named));
    for (size_t i = 0; i < args->n_named; i++) { /* bounded: by MAX_KEYWORDS */
        const jnode *keyword = p->stack[first + i];
        args->named[i] = (jkeyword){keyword->text, keyword->a};
        for (size_t j = 0; j < i; j++) { /* bounded: by MAX_KEYWORDS */
            const jstring *other = args->named[j].name;
            if (other->n == keyword->text->n && memcmp(other->data, keyword->text->data, other->n) == 0) {
                return jinja_syntax_error(keyword->line, "keyword argument repeated: %.*s",
                                          other->n < 60 ? (int)other->n : 60, other->data);
            }
        }
    }
    p->n_stack = first;
    return MN_OK;
}

static mn_status parse_arguments(jparser *p, jarguments **out) {
    size_t base = p->n_stack;
    bool named = false;
    jarguments *args;
    MN_TRY(jinja_alloc(p->arena, sizeof *args, &args));
    *args = (jarguments){0};
    p->at++;
    for (bool first = true; !jparse_is_op(p, ')'); first = false) { /* charged: each turn takes tokens */
        if (!first) {
            MN_TRY(jparse_expect_op(p, ','));
            if (jparse_is_op(p, ')')) break;
        }
        MN_TRY(parse_argument(p, args, &named));
    }
    p->at++;
    MN_TRY(take_keywords(p, base, args));
    *out = args;
    return jparse_pop(p, base, &args->positional);
}

static mn_status parse_call(jparser *p) {
    jnode *step;
    MN_TRY(push_step(p, N_CALL, &step));
    return parse_arguments(p, &step->arguments);
}

static mn_status parse_postfix(jparser *p) {
    for (;;) { /* charged: each step */
        if (jparse_is_op(p, '.')) {
            MN_TRY(parse_point(p));
        } else if (jparse_is_op(p, '[')) {
            MN_TRY(parse_subscript(p));
        } else if (jparse_is_op(p, '(')) {
            MN_TRY(parse_call(p));
        } else {
            return MN_OK;
        }
    }
}

/* The dotted name of a filter or test. */
static mn_status parse_dotted(jparser *p, const jstring **out) {
    MN_TRY(jparse_expect_name(p, out));
    while (jparse_accept_op(p, '.')) {
        const jstring *part = NULL, *whole = *out;
        char *data;
        MN_TRY(jparse_expect_name(p, &part));
        MN_TRY(jinja_alloc(p->arena, whole->n + 1 + part->n, &data));
        memcpy(data, whole->data, whole->n);
        data[whole->n] = '.';
        memcpy(data + whole->n + 1, part->data, part->n);
        MN_TRY(jinja_string_wrap(p->arena, data, whole->n + 1 + part->n, out));
    }
    return MN_OK;
}

static mn_status no_arguments(jparser *p, jarguments **out) {
    MN_TRY(jinja_alloc(p->arena, sizeof **out, out));
    **out = (jarguments){0};
    return MN_OK;
}

/* The name and arguments of a filter, behind its pipe. */
static mn_status parse_filter(jparser *p) {
    jnode *step;
    MN_TRY(push_step(p, N_FILTER, &step));
    MN_TRY(parse_dotted(p, &step->text));
    step->builtin = jinja_find_filter(step->text);
    return jparse_is_op(p, '(') ? parse_arguments(p, &step->arguments) : no_arguments(p, &step->arguments);
}

mn_status jparse_filters(jparser *p, bool first_without_pipe, jnode **out) {
    size_t base = p->n_stack;
    MN_TRY(jparse_push(p, NULL));
    if (first_without_pipe) MN_TRY(parse_filter(p));
    while (jparse_accept_op(p, '|')) MN_TRY(parse_filter(p));
    return pop_chain(p, base, out);
}

/* A test may have one argument without parentheses: x is divisibleby 3. */
static bool starts_argument(const jparser *p) {
    switch (p->at->kind) {
    case T_NAME: return !jparse_is_name(p->at, "else") && !jparse_is_name(p->at, "or") && !jparse_is_name(p->at, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT: return true;
    case T_OPERATOR: return p->at->op == '[' || p->at->op == '{';
    default: return false;
    }
}

static mn_status parse_test(jparser *p) {
    p->at++;
    bool negated = jparse_accept_name(p, "not");
    jnode *test;
    MN_TRY(push_step(p, N_TEST, &test));
    MN_TRY(parse_dotted(p, &test->text));
    test->builtin = jinja_find_test(test->text);
    if (jparse_is_op(p, '(')) {
        MN_TRY(parse_arguments(p, &test->arguments));
    } else {
        MN_TRY(no_arguments(p, &test->arguments));
        if (starts_argument(p)) {
            jnode *argument;
            size_t base = p->n_stack;
            if (jparse_is_name(p->at, "is")) return jinja_syntax_error(p->at->line, "tests cannot be chained with is");
            MN_TRY(jparse_enter(p));
            MN_TRY(jparse_primary(p, &argument));
            MN_TRY(jparse_push(p, argument));
            MN_TRY(parse_postfix(p));
            MN_TRY(pop_chain(p, base, &argument));
            p->depth--;
            MN_TRY(jparse_push(p, argument));
            MN_TRY(jparse_pop(p, base, &test->arguments->positional));
        }
    }
    return negated ? push_step(p, N_NOT, &test) : MN_OK;
}

static mn_status parse_filters_and_tests(jparser *p) {
    for (;;) { /* charged: each step */
        if (jparse_accept_op(p, '|')) {
            MN_TRY(parse_filter(p));
        } else if (jparse_is_name(p->at, "is")) {
            MN_TRY(parse_test(p));
        } else if (jparse_is_op(p, '(')) {
            MN_TRY(parse_call(p));
        } else {
            return MN_OK;
        }
    }
}

/* ---- operators ---- */

/* Precedence of operators. All associate to the left, the power too; `~` takes all its operands at once. */
typedef enum jlevel { L_NONE, L_OR, L_AND, L_NOT, L_COMPARE, L_SUM, L_CONCAT, L_PRODUCT, L_POWER, L_UNARY } jlevel;

static bool at_not_in(const jparser *p) {
    return jparse_is_name(p->at, "not") && jparse_is_name(p->at + 1, "in");
}

static jlevel level_of(const jparser *p) {
    if (p->at->kind == T_NAME) {
        if (jparse_is_name(p->at, "or")) return L_OR;
        if (jparse_is_name(p->at, "and")) return L_AND;
        return jparse_is_name(p->at, "in") || at_not_in(p) ? L_COMPARE : L_NONE;
    }
    if (p->at->kind != T_OPERATOR) return L_NONE;
    switch (p->at->op) {
    case JOP_EQ:
    case JOP_NE:
    case '<':
    case '>':
    case JOP_LE:
    case JOP_GE: return L_COMPARE;
    case '+':
    case '-': return L_SUM;
    case '~': return L_CONCAT;
    case '*':
    case '/':
    case JOP_FLOOR:
    case '%': return L_PRODUCT;
    case JOP_POWER: return L_POWER;
    default: return L_NONE;
    }
}

/* A primary with its signs, what follows it, filters and tests; the innermost sign comes first. */
static mn_status parse_unary(jparser *p) {
    const jtoken *first = p->at, *sign;
    jnode *node;
    while (jparse_is_op(p, '-') || jparse_is_op(p, '+')) /* charged: by the lexer */
        p->at++;
    sign = p->at;
    MN_TRY(jparse_primary(p, &node));
    MN_TRY(jparse_push(p, node));
    MN_TRY(parse_postfix(p));
    while (sign > first) MN_TRY(push_step(p, (--sign)->op == '-' ? N_NEGATE : N_PLUS, &node));
    return parse_filters_and_tests(p);
}

static mn_status parse_chain(jparser *p, jlevel lowest, jnode **out);

/* The operator at hand and its right operands. */
static mn_status parse_operator(jparser *p, jlevel level) {
    jnode *step, *operand;
    jnode_kind kind = level == L_OR        ? N_OR
                      : level == L_AND     ? N_AND
                      : level == L_COMPARE ? N_COMPARE
                      : level == L_CONCAT  ? N_CONCAT
                                           : N_BINARY;
    MN_TRY(push_step(p, kind, &step));
    step->op = p->at->op;
    if (kind != N_COMPARE && kind != N_CONCAT) {
        p->at++;
        return parse_chain(p, level + 1, &step->b);
    }
    size_t base = p->n_stack;
    while (level_of(p) == level) {
        if (kind == N_COMPARE) {
            MN_TRY(push_step(p, N_OPERAND, &operand));
            operand->op = p->at->kind == T_OPERATOR ? p->at->op : at_not_in(p) ? JOP_NOT_IN : JOP_IN;
            p->at += operand->op == JOP_NOT_IN ? 2 : 1;
            MN_TRY(parse_chain(p, level + 1, &operand->a));
        } else {
            p->at++;
            MN_TRY(parse_chain(p, level + 1, &operand));
            MN_TRY(jparse_push(p, operand));
        }
    }
    return jparse_pop(p, base, &step->items);
}

/* Pushes an operand and the operators behind it that bind at least as tightly as `lowest`. */
static mn_status parse_steps(jparser *p, jlevel lowest) {
    size_t n_not = 0;
    jnode *step;
    if (lowest <= L_NOT) {
        for (; jparse_is_name(p->at, "not"); p->at++) /* charged: by the lexer */
            n_not++;
    }
    MN_TRY(n_not ? parse_steps(p, L_COMPARE) : parse_unary(p));
    for (; n_not > 0; n_not--) MN_TRY(push_step(p, N_NOT, &step));
    for (;;) {
        jlevel level = level_of(p);
        if (level < lowest) return MN_OK;
        MN_TRY(parse_operator(p, level));
    }
}

static mn_status parse_chain(jparser *p, jlevel lowest, jnode **out) {
    size_t base = p->n_stack;
    MN_TRY(jparse_enter(p));
    MN_TRY(parse_steps(p, lowest));
    p->depth--;
    return pop_chain(p, base, out);
}

mn_status jparse_expression(jparser *p, jnode **out) {
    int depth = p->depth;
    MN_TRY(parse_chain(p, L_OR, out));
    while (jparse_is_name(p->at, "if")) {
        jnode *node;
        MN_TRY(jparse_enter(p)); /* each condition lies one level deeper in the tree */
        MN_TRY(jparse_node(p, N_COND, &node));
        node->a = *out;
        p->at++;
        MN_TRY(parse_chain(p, L_OR, &node->b));
        if (jparse_accept_name(p, "else")) MN_TRY(jparse_expression(p, &node->c));
        *out = node;
    }
    p->depth = depth;
    return MN_OK;
}

static bool ends_tuple(const jparser *p, const char *end) {
    return p->at->kind == T_VARIABLE_END || p->at->kind == T_BLOCK_END || jparse_is_op(p, ')') ||
           (end && jparse_is_name(p->at, end));
}

static mn_status parse_tuple_until(jparser *p, bool conditional, const char *end, bool parentheses, jnode **out) {
    size_t base = p->n_stack;
    bool is_tuple = false;
    jnode *tuple, *item = NULL;
    MN_TRY(jparse_node(p, N_TUPLE, &tuple));
    while (!ends_tuple(p, end)) {
        MN_TRY(conditional ? jparse_expression(p, &item) : parse_chain(p, L_OR, &item));
        MN_TRY(jparse_push(p, item));
        if (!jparse_is_op(p, ',')) break;
        p->at++;
        is_tuple = true;
    }
    if (!is_tuple && item) {
        p->n_stack = base;
        *out = item;
        return MN_OK;
    }
    if (!is_tuple && !parentheses) return jparse_unexpected(p, "an expression");
    *out = tuple;
    return jparse_pop(p, base, &tuple->items);
}

mn_status jparse_tuple(jparser *p, bool conditional, const char *end, jnode **out) {
    return parse_tuple_until(p, conditional, end, false, out);
}
