/* Expressions of the template language, by recursive descent with one table of binary operators.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja_internal.h"

/* Nesting of brackets, unary operators and statements; one level is about ten C frames. Chains to the left do
 * not nest here, but make deep trees: jinja_scope limits those. */
enum { MAX_DEPTH = 300, MAX_KEYWORDS = 256 };

/* ---- what both halves of the parser use ---- */

mn_status jparse_node(jparser *p, jnode_kind kind, jnode **out) {
    MN_TRY(jinja_take(p->arena, sizeof **out, out));
    **out = (jnode){.kind = kind, .line = p->at->line};
    return MN_OK;
}

mn_status jparse_push(jparser *p, jnode *node) {
    MN_TRY(mem_grow(&p->stack, &p->stack_capacity, p->n_stack + 1, sizeof *p->stack));
    p->stack[p->n_stack++] = node;
    return MN_OK;
}

mn_status jparse_pop(jparser *p, size_t base, jnodes *out) {
    *out = (jnodes){NULL, p->n_stack - base};
    MN_TRY(jinja_take(p->arena, out->n * sizeof *out->items, &out->items));
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

mn_status jparse_unexpected(const jparser *p, const char *wanted) {
    const jtoken *t = p->at;
    switch (t->kind) {
    case T_EOF: return jinja_syntax_error(t->line, "unexpected end of template, expected %s", wanted);
    case T_VARIABLE_END: return jinja_syntax_error(t->line, "expected %s, got '}}'", wanted);
    case T_BLOCK_END: return jinja_syntax_error(t->line, "expected %s, got '%%}'", wanted);
    case T_OPERATOR:
        if (t->op > 0xFF)
            return jinja_syntax_error(t->line, "expected %s, got '%c%c'", wanted, t->op >> 8, t->op & 0xFF);
        return jinja_syntax_error(t->line, "expected %s, got '%c'", wanted, t->op);
    case T_INTEGER:
    case T_FLOAT: return jinja_syntax_error(t->line, "expected %s, got a number", wanted);
    default:
        return jinja_syntax_error(t->line, "expected %s, got '%.*s'", wanted,
                                  t->text ? (int)(t->text->n < 60 ? t->text->n : 60) : 0,
                                  t->text ? t->text->data : "");
    }
}

mn_status jparse_expect_op(jparser *p, int op) {
    const char wanted[] = {'\'', (char)op, '\'', 0};
    return jparse_accept_op(p, op) ? MN_OK : jparse_unexpected(p, wanted);
}

mn_status jparse_expect_name(jparser *p, const jstring **out) {
    if (p->at->kind != T_NAME) return jparse_unexpected(p, "a name");
    *out = p->at->text;
    p->at++;
    return MN_OK;
}

mn_status jparse_enter(jparser *p) {
    if (++p->depth > MAX_DEPTH)
        return jinja_syntax_error(p->at->line, "nesting deeper than %d levels", MAX_DEPTH);
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
    for (; end->kind == T_STRING; end++) n += end->text->n;
    const jstring *text = p->at->text;
    if (end > p->at + 1) {
        char *data;
        MN_TRY(jinja_take(p->arena, n, &data));
        n = 0;
        for (const jtoken *t = p->at; t < end; t++) {
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

static mn_status parse_tuple_until(jparser *p, bool conditional, const char *end, bool parentheses,
                                   jnode **out);

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

/* ---- what follows a primary ---- */

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

static mn_status parse_subscript(jparser *p, jnode *value, jnode **out) {
    size_t base = p->n_stack;
    jnode *index = NULL, *slice = NULL;
    MN_TRY(jparse_node(p, N_ITEM, out));
    (*out)->a = value;
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
        p->n_stack = base;
        if (slice) {
            slice->a = value;
            *out = slice;
        } else {
            (*out)->b = index;
        }
        return MN_OK;
    }
    jnode *tuple;
    MN_TRY(jparse_node(p, N_TUPLE, &tuple));
    MN_TRY(jparse_pop(p, base, &tuple->items));
    for (size_t i = 0; i < tuple->items.n; i++) {
        if (tuple->items.items[i]->kind == N_SLICE)
            return jinja_syntax_error(p->at->line, "a slice among several indices");
    }
    (*out)->b = tuple;
    return MN_OK;
}

static mn_status parse_point(jparser *p, jnode *value, jnode **out) {
    p->at++;
    if (p->at->kind == T_NAME) {
        MN_TRY(jparse_node(p, N_ATTRIBUTE, out));
        (*out)->text = p->at->text;
    } else if (p->at->kind == T_INTEGER) {
        MN_TRY(jparse_node(p, N_ITEM, out));
        MN_TRY(new_const(p, j_int(p->at->integer), &(*out)->b));
    } else {
        return jparse_unexpected(p, "a name or a number");
    }
    (*out)->a = value;
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
    while (first < p->n_stack && p->stack[first]->kind != N_OPERAND) first++;
    args->n_named = p->n_stack - first;
    if (args->n_named > MAX_KEYWORDS)
        return jinja_syntax_error(p->at->line, "more than %d keyword arguments", MAX_KEYWORDS);
    MN_TRY(jinja_take(p->arena, args->n_named * sizeof *args->named, &args->named));
    for (size_t i = 0; i < args->n_named; i++) {
        const jnode *keyword = p->stack[first + i];
        args->named[i] = (jkeyword){keyword->text, keyword->a};
        for (size_t j = 0; j < i; j++) {
            const jstring *other = args->named[j].name;
            if (other->n == keyword->text->n && memcmp(other->data, keyword->text->data, other->n) == 0) {
                return jinja_syntax_error(keyword->line, "keyword argument repeated: %.*s", (int)other->n,
                                          other->data);
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
    MN_TRY(jinja_take(p->arena, sizeof *args, &args));
    *args = (jarguments){0};
    p->at++;
    for (bool first = true; !jparse_is_op(p, ')'); first = false) {
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

static mn_status parse_call(jparser *p, jnode *callee, jnode **out) {
    MN_TRY(jparse_node(p, N_CALL, out));
    (*out)->a = callee;
    return parse_arguments(p, &(*out)->arguments);
}

static mn_status parse_postfix(jparser *p, jnode *value, jnode **out) {
    for (;;) {
        if (jparse_is_op(p, '.')) {
            MN_TRY(parse_point(p, value, &value));
        } else if (jparse_is_op(p, '[')) {
            MN_TRY(parse_subscript(p, value, &value));
        } else if (jparse_is_op(p, '(')) {
            MN_TRY(parse_call(p, value, &value));
        } else {
            *out = value;
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
        MN_TRY(jinja_take(p->arena, whole->n + 1 + part->n, &data));
        memcpy(data, whole->data, whole->n);
        data[whole->n] = '.';
        memcpy(data + whole->n + 1, part->data, part->n);
        MN_TRY(jinja_string_wrap(p->arena, data, whole->n + 1 + part->n, out));
    }
    return MN_OK;
}

static mn_status no_arguments(jparser *p, jarguments **out) {
    MN_TRY(jinja_take(p->arena, sizeof **out, out));
    **out = (jarguments){0};
    return MN_OK;
}

mn_status jparse_filters(jparser *p, jnode *value, bool first_without_pipe, jnode **out) {
    *out = value;
    while (first_without_pipe || jparse_is_op(p, '|')) {
        jnode *filter;
        if (!first_without_pipe) p->at++;
        first_without_pipe = false;
        MN_TRY(jparse_node(p, N_FILTER, &filter));
        MN_TRY(parse_dotted(p, &filter->text));
        filter->builtin = jinja_find_filter(filter->text);
        filter->a = *out;
        *out = filter;
        if (jparse_is_op(p, '(')) {
            MN_TRY(parse_arguments(p, &filter->arguments));
        } else {
            MN_TRY(no_arguments(p, &filter->arguments));
        }
    }
    return MN_OK;
}

/* A test may have one argument without parentheses: x is divisibleby 3. */
static bool starts_argument(const jparser *p) {
    switch (p->at->kind) {
    case T_NAME:
        return !jparse_is_name(p->at, "else") && !jparse_is_name(p->at, "or") &&
               !jparse_is_name(p->at, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT: return true;
    case T_OPERATOR: return p->at->op == '[' || p->at->op == '{';
    default: return false;
    }
}

static mn_status parse_test(jparser *p, jnode *value, jnode **out) {
    p->at++;
    bool negated = jparse_accept_name(p, "not");
    jnode *test;
    MN_TRY(jparse_node(p, N_TEST, &test));
    test->a = value;
    MN_TRY(parse_dotted(p, &test->text));
    test->builtin = jinja_find_test(test->text);
    if (jparse_is_op(p, '(')) {
        MN_TRY(parse_arguments(p, &test->arguments));
    } else {
        MN_TRY(no_arguments(p, &test->arguments));
        if (starts_argument(p)) {
            jnode *argument;
            size_t base = p->n_stack;
            if (jparse_is_name(p->at, "is"))
                return jinja_syntax_error(p->at->line, "tests cannot be chained with is");
            MN_TRY(jparse_enter(p));
            MN_TRY(jparse_primary(p, &argument));
            MN_TRY(parse_postfix(p, argument, &argument));
            p->depth--;
            MN_TRY(jparse_push(p, argument));
            MN_TRY(jparse_pop(p, base, &test->arguments->positional));
        }
    }
    *out = test;
    if (negated) {
        MN_TRY(jparse_node(p, N_NOT, out));
        (*out)->a = test;
    }
    return MN_OK;
}

static mn_status parse_filters_and_tests(jparser *p, jnode *value, jnode **out) {
    for (;;) {
        if (jparse_is_op(p, '|')) {
            MN_TRY(jparse_filters(p, value, false, &value));
        } else if (jparse_is_name(p->at, "is")) {
            MN_TRY(parse_test(p, value, &value));
        } else if (jparse_is_op(p, '(')) {
            MN_TRY(parse_call(p, value, &value));
        } else {
            *out = value;
            return MN_OK;
        }
    }
}

/* ---- operators ---- */

static mn_status parse_unary(jparser *p, bool filters, jnode **out) {
    jnode *value;
    bool minus = jparse_is_op(p, '-');
    if (minus || jparse_is_op(p, '+')) {
        MN_TRY(jparse_enter(p));
        MN_TRY(jparse_node(p, minus ? N_NEGATE : N_PLUS, &value));
        p->at++;
        MN_TRY(parse_unary(p, false, &value->a));
        p->depth--;
    } else {
        MN_TRY(jparse_primary(p, &value));
    }
    MN_TRY(parse_postfix(p, value, out));
    return filters ? parse_filters_and_tests(p, *out, out) : MN_OK;
}

/* Binary operators by how tightly they bind; all lead to the left, the power too. `~` takes all its operands
 * at once. */
static const int binary[][5] = {{'+', '-'}, {'~'}, {'*', '/', JOP_FLOOR, '%'}, {JOP_POWER}};
enum { N_LEVELS = sizeof binary / sizeof *binary };

static bool is_binary(const jparser *p, int level) {
    for (const int *op = binary[level]; *op; op++) {
        if (jparse_is_op(p, *op)) return true;
    }
    return false;
}

static mn_status parse_binary(jparser *p, int level, jnode **out) {
    if (level == N_LEVELS) return parse_unary(p, true, out);
    MN_TRY(parse_binary(p, level + 1, out));
    if (!is_binary(p, level)) return MN_OK;
    if (jparse_is_op(p, '~')) {
        size_t base = p->n_stack;
        jnode *first = *out, *next;
        MN_TRY(jparse_node(p, N_CONCAT, out));
        MN_TRY(jparse_push(p, first));
        while (jparse_accept_op(p, '~')) {
            MN_TRY(parse_binary(p, level + 1, &next));
            MN_TRY(jparse_push(p, next));
        }
        return jparse_pop(p, base, &(*out)->items);
    }
    while (is_binary(p, level)) {
        jnode *node;
        MN_TRY(jparse_node(p, N_BINARY, &node));
        node->op = p->at->op;
        node->a = *out;
        p->at++;
        MN_TRY(parse_binary(p, level + 1, &node->b));
        *out = node;
    }
    return MN_OK;
}

/* The comparison operator at hand, or 0; *n is how many tokens it takes. */
static int comparison(const jparser *p, int *n) {
    *n = 1;
    if (p->at->kind == T_OPERATOR) {
        int op = p->at->op;
        return op == JOP_EQ || op == JOP_NE || op == '<' || op == '>' || op == JOP_LE || op == JOP_GE ? op
                                                                                                      : 0;
    }
    if (jparse_is_name(p->at, "in")) return JOP_IN;
    *n = 2;
    return jparse_is_name(p->at, "not") && jparse_is_name(p->at + 1, "in") ? JOP_NOT_IN : 0;
}

static mn_status parse_compare(jparser *p, jnode **out) {
    int n, op;
    MN_TRY(parse_binary(p, 0, out));
    if (!comparison(p, &n)) return MN_OK;
    size_t base = p->n_stack;
    jnode *first = *out;
    MN_TRY(jparse_node(p, N_COMPARE, out));
    (*out)->a = first;
    while ((op = comparison(p, &n))) {
        jnode *operand;
        MN_TRY(jparse_node(p, N_OPERAND, &operand));
        operand->op = op;
        p->at += n;
        MN_TRY(parse_binary(p, 0, &operand->a));
        MN_TRY(jparse_push(p, operand));
    }
    return jparse_pop(p, base, &(*out)->items);
}

static mn_status parse_not(jparser *p, jnode **out) {
    if (!jparse_is_name(p->at, "not")) return parse_compare(p, out);
    jnode *node;
    MN_TRY(jparse_enter(p));
    MN_TRY(jparse_node(p, N_NOT, &node));
    p->at++;
    MN_TRY(parse_not(p, &node->a));
    p->depth--;
    *out = node;
    return MN_OK;
}

static mn_status parse_logic(jparser *p, bool is_or, jnode **out) {
    const char *word = is_or ? "or" : "and";
    MN_TRY(is_or ? parse_logic(p, false, out) : parse_not(p, out));
    while (jparse_is_name(p->at, word)) {
        jnode *node;
        MN_TRY(jparse_node(p, is_or ? N_OR : N_AND, &node));
        node->a = *out;
        p->at++;
        MN_TRY(is_or ? parse_logic(p, false, &node->b) : parse_not(p, &node->b));
        *out = node;
    }
    return MN_OK;
}

mn_status jparse_expression(jparser *p, jnode **out) {
    int depth = p->depth;
    MN_TRY(jparse_enter(p));
    MN_TRY(parse_logic(p, true, out));
    while (jparse_is_name(p->at, "if")) {
        jnode *node;
        MN_TRY(jparse_node(p, N_COND, &node));
        node->a = *out;
        p->at++;
        MN_TRY(parse_logic(p, true, &node->b));
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

static mn_status parse_tuple_until(jparser *p, bool conditional, const char *end, bool parentheses,
                                   jnode **out) {
    size_t base = p->n_stack;
    bool is_tuple = false;
    jnode *tuple, *item = NULL;
    MN_TRY(jparse_node(p, N_TUPLE, &tuple));
    MN_TRY(jparse_enter(p));
    while (!ends_tuple(p, end)) {
        MN_TRY(conditional ? jparse_expression(p, &item) : parse_logic(p, true, &item));
        MN_TRY(jparse_push(p, item));
        if (!jparse_is_op(p, ',')) break;
        p->at++;
        is_tuple = true;
    }
    p->depth--;
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
