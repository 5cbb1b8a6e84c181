/* Statements of the template language: the tags, and text between them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

enum { MAX_PARAMETERS = 256 };

static mn_status parse_body(jparser *p, const char *const *ends, jnodes *out);

/* ---- targets of assignments ---- */

static mn_status parse_one_target(jparser *p, bool members, jnode **out) {
    if (members && p->at->kind == T_NAME && p->at[1].kind == T_OPERATOR && p->at[1].op == '.') {
        MN_TRY(jparse_node(p, N_MEMBER, out));
        MN_TRY(jparse_expect_name(p, &(*out)->text));
        p->at++;
        return jparse_expect_name(p, &(*out)->member);
    }
    return jparse_primary(p, out);
}

static mn_status check_target(const jnode *target) {
    if (target->kind == N_NAME || target->kind == N_MEMBER) return MN_OK;
    if (target->kind != N_TUPLE) return jinja_syntax_error(target->line, "can't assign to this expression");
    for (size_t i = 0; i < target->items.n; i++) /* charged: each when it was parsed */
        MN_TRY(check_target(target->items.items[i]));
    return MN_OK;
}

/* Names, members of namespaces (if allowed), tuples of these. */
static mn_status parse_target(jparser *p, bool members, const char *end, jnode **out) {
    size_t base = p->n_stack;
    jnode *tuple, *item = NULL;
    bool is_tuple = false;
    MN_TRY(jparse_node(p, N_TUPLE, &tuple));
    while (p->at->kind != T_BLOCK_END && p->at->kind != T_VARIABLE_END && !jparse_is_op(p, ')') &&
           !(end && jparse_is_name(p->at, end))) {
        MN_TRY(parse_one_target(p, members, &item));
        MN_TRY(jparse_push(p, item));
        if (!jparse_accept_op(p, ',')) break;
        is_tuple = true;
    }
    if (!item) return jparse_unexpected(p, "a name");
    if (is_tuple) {
        MN_TRY(jparse_pop(p, base, &tuple->items));
    } else {
        p->n_stack = base;
    }
    *out = is_tuple ? tuple : item;
    return check_target(*out);
}

static mn_status parse_plain_name(jparser *p, const jstring **out) {
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    MN_TRY(jparse_expect_name(p, out));
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        if (jinja_string_is(*out, reserved[i]))
            return jinja_syntax_error(p->at->line, "can't assign to '%s'", reserved[i]);
    }
    return MN_OK;
}

/* ---- tags; each starts behind its own name and ends before the closing delimiter ---- */

static mn_status expect_block_end(jparser *p) {
    if (p->at->kind != T_BLOCK_END) return jparse_unexpected(p, "'%}'");
    p->at++;
    return MN_OK;
}

/* The statements up to a tag named in `ends`; p stands at that name afterwards. */
static mn_status parse_statements(jparser *p, const char *const *ends, jnodes *out) {
    jparse_accept_op(p, ':');
    MN_TRY(expect_block_end(p));
    return parse_body(p, ends, out);
}

static mn_status parse_until(jparser *p, const char *end, jnodes *out) {
    const char *const ends[] = {end, NULL};
    MN_TRY(parse_statements(p, ends, out));
    p->at++;
    return MN_OK;
}

/* As parse_until for bodies that are functions of their own: a loop around them cannot be left from within. */
static mn_status parse_function_body(jparser *p, const char *end, jnodes *out) {
    int loops = p->loops;
    p->loops = 0;
    MN_TRY(parse_until(p, end, out));
    p->loops = loops;
    return MN_OK;
}

static mn_status parse_if(jparser *p, jnode **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    size_t base = p->n_stack;
    jnode *branch;
    MN_TRY(jparse_node(p, N_IF, out));
    branch = *out;
    for (;;) {
        MN_TRY(jparse_tuple(p, false, NULL, &branch->a));
        MN_TRY(parse_statements(p, ends, &branch->body));
        if (!jparse_accept_name(p, "elif")) break;
        MN_TRY(jparse_node(p, N_IF, &branch));
        MN_TRY(jparse_push(p, branch));
    }
    MN_TRY(jparse_pop(p, base, &(*out)->items));
    if (jparse_accept_name(p, "else")) return parse_until(p, "endif", &(*out)->other);
    p->at++;
    return MN_OK;
}

static mn_status parse_for(jparser *p, jnode **out) {
    static const char *const ends[] = {"endfor", "else", NULL};
    MN_TRY(jparse_node(p, N_FOR, out));
    jnode *loop = *out;
    MN_TRY(parse_target(p, false, "in", &loop->a));
    if (!jparse_accept_name(p, "in")) return jparse_unexpected(p, "'in'");
    MN_TRY(jparse_tuple(p, false, "recursive", &loop->b));
    if (jparse_accept_name(p, "if")) MN_TRY(jparse_expression(p, &loop->c));
    loop->flag = jparse_accept_name(p, "recursive");
    int around = p->loops;
    p->loops = loop->flag ? 1 : around + 1;
    MN_TRY(parse_statements(p, ends, &loop->body));
    p->loops = loop->flag ? 0 : around;
    if (jparse_accept_name(p, "else")) {
        MN_TRY(parse_until(p, "endfor", &loop->other));
    } else {
        p->at++;
    }
    p->loops = around;
    return MN_OK;
}

static mn_status parse_set(jparser *p, jnode **out) {
    MN_TRY(jparse_node(p, N_SET, out));
    MN_TRY(parse_target(p, true, NULL, &(*out)->a));
    if (jparse_accept_op(p, '=')) return jparse_tuple(p, true, NULL, &(*out)->b);
    (*out)->kind = N_SET_BLOCK;
    MN_TRY(jparse_filters(p, false, &(*out)->b));
    return parse_until(p, "endset", &(*out)->body);
}

/* (a, b=1, ...) */
static mn_status parse_signature(jparser *p, jparameters *out) {
    size_t base = p->n_stack;
    bool fallbacks = false;
    MN_TRY(jparse_expect_op(p, '('));
    while (!jparse_is_op(p, ')')) {
        jnode *parameter;
        if (p->n_stack > base) MN_TRY(jparse_expect_op(p, ','));
        MN_TRY(jparse_node(p, N_NAME, &parameter));
        MN_TRY(parse_plain_name(p, &parameter->text));
        if (jparse_accept_op(p, '=')) {
            MN_TRY(jparse_expression(p, &parameter->a));
            fallbacks = true;
        } else if (fallbacks) {
            return jinja_syntax_error(p->at->line, "non-default argument follows default argument");
        }
        for (size_t i = base; i < p->n_stack; i++) { /* bounded: by MAX_PARAMETERS */
            const jstring *other = p->stack[i]->text;
            if (other->n == parameter->text->n && memcmp(other->data, parameter->text->data, other->n) == 0) {
                return jinja_syntax_error(p->at->line, "duplicate argument '%.*s'", other->n < 60 ? (int)other->n : 60,
                                          other->data);
            }
        }
        if (p->n_stack - base >= MAX_PARAMETERS)
            return jinja_syntax_error(p->at->line, "more than %d parameters", MAX_PARAMETERS);
        MN_TRY(jparse_push(p, parameter));
    }
    p->at++;
    out->n = p->n_stack - base;
    MN_TRY(jinja_alloc(p->arena, out->n * sizeof *out->items, &out->items));
    for (size_t i = 0; i < out->n; i++) { /* bounded: by MAX_PARAMETERS */
        const jnode *parameter = p->stack[base + i];
        out->items[i] = (jparameter){.name = parameter->text, .fallback = parameter->a};
    }
    p->n_stack = base;
    return MN_OK;
}

/* The body of a macro or call block; notes which of the special names it reads. */
static mn_status parse_macro_body(jparser *p, const char *end, jnode *macro) {
    jparameters *parameters = macro->parameters;
    size_t caller = p->n_caller, kwargs = p->n_kwargs, varargs = p->n_varargs;
    MN_TRY(parse_function_body(p, end, &macro->body));
    parameters->uses_caller = p->n_caller > caller;
    parameters->uses_kwargs = p->n_kwargs > kwargs;
    parameters->uses_varargs = p->n_varargs > varargs;
    for (size_t i = 0; i < parameters->n; i++) { /* bounded: by MAX_PARAMETERS */
        const jparameter *q = &parameters->items[i];
        if (jinja_string_is(q->name, "kwargs")) parameters->uses_kwargs = false;
        if (jinja_string_is(q->name, "varargs")) parameters->uses_varargs = false;
        if (!jinja_string_is(q->name, "caller")) continue;
        parameters->explicit_caller = true;
        if (parameters->uses_caller && !q->fallback) {
            return jinja_syntax_error(macro->line,
                                      "the special 'caller' argument must be omitted or be given a default");
        }
    }
    return MN_OK;
}

static mn_status new_parameters(jparser *p, jparameters **out) {
    MN_TRY(jinja_alloc(p->arena, sizeof **out, out));
    **out = (jparameters){.caller = -1, .kwargs = -1, .varargs = -1};
    return MN_OK;
}

static mn_status parse_macro(jparser *p, jnode **out) {
    MN_TRY(jparse_node(p, N_MACRO, out));
    MN_TRY(parse_plain_name(p, &(*out)->text));
    MN_TRY(new_parameters(p, &(*out)->parameters));
    MN_TRY(parse_signature(p, (*out)->parameters));
    return parse_macro_body(p, "endmacro", *out);
}

static mn_status parse_call(jparser *p, jnode **out) {
    MN_TRY(jparse_node(p, N_CALL_BLOCK, out));
    MN_TRY(new_parameters(p, &(*out)->parameters));
    if (jparse_is_op(p, '(')) MN_TRY(parse_signature(p, (*out)->parameters));
    MN_TRY(jparse_expression(p, &(*out)->a));
    const jnode *callee = (*out)->a;
    if (callee->kind != N_CHAIN || callee->items.items[callee->items.n - 1]->kind != N_CALL)
        return jinja_syntax_error((*out)->line, "expected call");
    return parse_macro_body(p, "endcall", *out);
}

/* {% generation %} marks what the assistant wrote; its text is rendered like a call block that returns caller(). */
static mn_status parse_generation(jparser *p, jnode **out) {
    MN_TRY(jparse_node(p, N_CALL_BLOCK, out));
    MN_TRY(new_parameters(p, &(*out)->parameters));
    return parse_macro_body(p, "endgeneration", *out);
}

static mn_status parse_filter_block(jparser *p, jnode **out) {
    MN_TRY(jparse_node(p, N_FILTER_BLOCK, out));
    MN_TRY(jparse_filters(p, true, &(*out)->a));
    return parse_until(p, "endfilter", &(*out)->body);
}

static mn_status parse_with(jparser *p, jnode **out) {
    size_t base = p->n_stack;
    MN_TRY(jparse_node(p, N_WITH, out));
    while (p->at->kind != T_BLOCK_END) {
        jnode *target, *value;
        if (p->n_stack > base) MN_TRY(jparse_expect_op(p, ','));
        MN_TRY(parse_target(p, false, NULL, &target));
        MN_TRY(jparse_push(p, target));
        MN_TRY(jparse_expect_op(p, '='));
        MN_TRY(jparse_expression(p, &value));
        MN_TRY(jparse_push(p, value));
    }
    MN_TRY(jparse_pop(p, base, &(*out)->items));
    return parse_until(p, "endwith", &(*out)->body);
}

static mn_status parse_print(jparser *p, jnode **out) {
    size_t base = p->n_stack;
    MN_TRY(jparse_node(p, N_PRINT, out));
    while (p->at->kind != T_BLOCK_END) {
        jnode *item;
        if (p->n_stack > base) MN_TRY(jparse_expect_op(p, ','));
        MN_TRY(jparse_expression(p, &item));
        MN_TRY(jparse_push(p, item));
    }
    return jparse_pop(p, base, &(*out)->items);
}

/* A template without a parent renders its blocks in place, in a scope of their own. */
static mn_status parse_block(jparser *p, jnode **out) {
    const jstring *name;
    MN_TRY(jparse_node(p, N_SCOPE, out));
    MN_TRY(jparse_expect_name(p, &name));
    jparse_accept_name(p, "scoped");
    jparse_accept_name(p, "required");
    MN_TRY(parse_function_body(p, "endblock", &(*out)->body));
    if (p->at->kind == T_NAME) p->at++;
    return MN_OK;
}

static mn_status parse_autoescape(jparser *p, jnode **out) {
    MN_TRY(jparse_node(p, N_SCOPE, out));
    MN_TRY(jparse_expression(p, &(*out)->a)); /* a true value is refused when it is reached */
    return parse_until(p, "endautoescape", &(*out)->body);
}

static mn_status parse_leave(jparser *p, jnode_kind kind, jnode **out) {
    if (p->loops == 0) return jinja_syntax_error(p->at->line, "'break' or 'continue' outside of a loop");
    return jparse_node(p, kind, out);
}

static mn_status parse_break(jparser *p, jnode **out) {
    return parse_leave(p, N_BREAK, out);
}
static mn_status parse_continue(jparser *p, jnode **out) {
    return parse_leave(p, N_CONTINUE, out);
}

/* include, import, from, extends: there is no loader. */
static mn_status parse_unsupported(jparser *p, jnode **out) {
    MN_TRY(jparse_node(p, N_UNSUPPORTED, out));
    (*out)->text = p->at[-1].text;
    while (p->at->kind != T_BLOCK_END && p->at->kind != T_EOF) /* charged: by the lexer */
        p->at++;
    return MN_OK;
}

static mn_status parse_statement(jparser *p, jnode **out) {
    static const struct {
        const char *tag;
        mn_status (*parse)(jparser *, jnode **);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call},
        {"generation", parse_generation},
        {"break", parse_break},
        {"continue", parse_continue},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"print", parse_print},
        {"block", parse_block},
        {"include", parse_unsupported},
        {"import", parse_unsupported},
        {"from", parse_unsupported},
        {"extends", parse_unsupported},
        {"autoescape", parse_autoescape},
    };
    if (p->at->kind != T_NAME) return jparse_unexpected(p, "a tag name");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!jparse_is_name(p->at, tags[i].tag)) continue;
        int line = p->at->line;
        p->at++;
        MN_TRY(jparse_enter(p));
        MN_TRY(tags[i].parse(p, out));
        p->depth--;
        (*out)->line = line;
        return MN_OK;
    }
    return jinja_syntax_error(p->at->line, "unknown tag '%.*s'", (int)(p->at->text->n < 60 ? p->at->text->n : 60),
                              p->at->text->data);
}

static mn_status parse_part(jparser *p, jnode **out) {
    if (p->at->kind == T_TEXT) {
        MN_TRY(jparse_node(p, N_TEXT, out));
        (*out)->text = p->at->text;
        p->at++;
        return MN_OK;
    }
    size_t base = p->n_stack;
    jnode *value;
    MN_TRY(jparse_node(p, N_PRINT, out));
    p->at++;
    MN_TRY(jparse_tuple(p, true, NULL, &value));
    if (p->at->kind != T_VARIABLE_END) return jparse_unexpected(p, "'}}'");
    p->at++;
    MN_TRY(jparse_push(p, value));
    return jparse_pop(p, base, &(*out)->items);
}

/* Up to a tag named in `ends` (p stands at its name then), or to the end of the template when ends is NULL. */
static mn_status parse_body(jparser *p, const char *const *ends, jnodes *out) {
    size_t base = p->n_stack;
    while (p->at->kind != T_EOF) {
        jnode *node;
        if (p->at->kind != T_BLOCK_BEGIN) {
            MN_TRY(parse_part(p, &node));
        } else {
            p->at++;
            for (size_t i = 0; ends && ends[i]; i++) { /* bounded: three names */
                if (jparse_is_name(p->at, ends[i])) return jparse_pop(p, base, out);
            }
            MN_TRY(parse_statement(p, &node));
            MN_TRY(expect_block_end(p));
        }
        MN_TRY(jparse_push(p, node));
    }
    if (ends) return jinja_syntax_error(p->at->line, "unexpected end of template, looking for '%s'", ends[0]);
    return jparse_pop(p, base, out);
}

mn_status jinja_parse(jinja_arena *arena, const jtokens *tokens, jnodes *out) {
    jparser p = {.arena = arena, .at = tokens->items};
    mn_status status = parse_body(&p, NULL, out);
    jinja_free(arena, p.stack, p.stack_capacity, sizeof *p.stack);
    return status;
}
