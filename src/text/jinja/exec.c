/* Statements: scopes, loops, macros, captured blocks; and the public entry points.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "text/jinja/internal.h"

/* How a statement ended. */
typedef enum jflow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } jflow;

static mn_status exec_all(jrun *r, jscope *scope, const jnodes *body, jflow *flow);

/* ---- undefined values ---- */

mn_status jinja_fail_undefined(jrun *r, jvalue v) {
    const jundefined *u = v.undefined;
    jvalue text;
    if (u->hint) return jinja_fail(r, "%s", u->hint);
    size_t mark = jinja_mark(r);
    MN_TRY(u->name.kind == J_STRING && !u->owner ? jinja_put_str(r, u->name) : jinja_put_repr(r, u->name));
    MN_TRY(jinja_cut(r, mark, &text));
    const char *what = text.string->data;
    int n = text.string->n < 400 ? (int)text.string->n : 400;
    if (!u->owner) return jinja_fail(r, "'%.*s' is undefined", n, what);
    if (u->name.kind == J_STRING) return jinja_fail(r, "'%s' has no attribute %.*s", u->owner, n, what);
    return jinja_fail(r, "%s has no element %.*s", u->owner, n, what);
}

/* ---- scopes ---- */

mn_status jinja_new_scope(jrun *r, jscope *parent, const jframe *frame, jscope **out) {
    MN_TRY(jinja_charge(r, frame->n));
    MN_TRY(jinja_alloc(&r->arena, sizeof(jscope) + frame->n * sizeof(jvalue), out));
    jscope *scope = *out;
    scope->parent = parent;
    for (size_t i = 0; i < frame->n; i++) { /* charged: above */
        const jload *load = &frame->loads[i];
        jvalue v = {.kind = J_MISSING};
        if (load->kind == JLOAD_OUTER) {
            const jscope *outer = scope;
            for (int hop = 0; hop < load->hops; hop++) /* bounded: by the nesting of the template */
                outer = outer->parent;
            v = outer->slots[load->slot];
        } else if (load->kind == JLOAD_CONTEXT) {
            MN_TRY(jinja_dict_get(r, r->context, j_string(load->name, false), &v));
            const jbuiltin *global = j_given(v) ? NULL : jinja_find_global(load->name);
            if (global) v = (jvalue){.kind = J_FUNCTION, .function = global};
        }
        scope->slots[i] = v;
    }
    return MN_OK;
}

static void set_slot(jscope *scope, int hops, int slot, jvalue value) {
    for (int i = 0; i < hops; i++) /* bounded: by the nesting of the template */
        scope = scope->parent;
    scope->slots[slot] = value;
}

static jvalue get_slot(const jscope *scope, int hops, int slot) {
    for (int i = 0; i < hops; i++) /* bounded: by the nesting of the template */
        scope = scope->parent;
    return scope->slots[slot];
}

static mn_status unpack(jrun *r, jscope *scope, const jnode *target, jvalue value) {
    jiter *it;
    jvalue item;
    bool more = true;
    jlist *items;
    if (value.kind == J_UNDEFINED && target->items.n)
        return jinja_fail(r, "not enough values to unpack (expected %zu, got 0)", target->items.n);
    MN_TRY(jinja_iter(r, value, &it));
    MN_TRY(jinja_list_new(r, target->items.n, &items));
    for (;;) {
        MN_TRY(jinja_next(r, it, &item, &more));
        if (!more) break;
        if (items->n == target->items.n)
            return jinja_fail(r, "too many values to unpack (expected %zu)", target->items.n);
        MN_TRY(jinja_list_push(r, items, item));
    }
    if (items->n < target->items.n) {
        return jinja_fail(r, "not enough values to unpack (expected %zu, got %zu)", target->items.n, items->n);
    }
    for (size_t i = 0; i < items->n; i++) MN_TRY(jinja_assign(r, scope, target->items.items[i], items->items[i]));
    return MN_OK;
}

mn_status jinja_assign(jrun *r, jscope *scope, const jnode *target, jvalue value) {
    MN_TRY(jinja_charge(r, 1));
    if (target->kind == N_NAME) {
        set_slot(scope, target->hops, target->slot, value);
        return MN_OK;
    }
    if (target->kind == N_TUPLE) return unpack(r, scope, target, value);
    jvalue owner = get_slot(scope, target->hops, target->slot);
    if (owner.kind != J_NAMESPACE) return jinja_fail(r, "cannot assign attribute on non-namespace object");
    return jinja_dict_set(r, owner.dict, j_string(target->member, false), value);
}

/* ---- output ---- */

/* Writes the value of a filter or call block, which must be a string, unlike that of {{ }}. */
static mn_status write_text(jrun *r, jvalue v) {
    if (v.kind == J_STRING) return jinja_put(r, v.string->data, v.string->n);
    return jinja_fail(r, "the value of a block has type '%s', allowed: str", jinja_type(v));
}

/* Runs a body and returns its output as a string. */
static mn_status capture(jrun *r, jscope *scope, const jnodes *body, jflow *flow, jvalue *out) {
    size_t mark = jinja_mark(r);
    MN_TRY(exec_all(r, scope, body, flow));
    return jinja_cut(r, mark, out);
}

/* ---- macros ---- */

static mn_status take_named(jrun *r, const jargs *args, const jstring *name, bool *used, jvalue *out) {
    *out = (jvalue){.kind = J_MISSING};
    for (size_t i = 0; i < args->n_named && !j_given(*out); i++) {
        bool same = false;
        MN_TRY(jinja_charge(r, 1));
        if (!used[i]) MN_TRY(jinja_same_text(r, args->named[i].name, name, &same));
        if (!same) continue;
        used[i] = true;
        *out = args->named[i].value;
    }
    return MN_OK;
}

static mn_status bind_special(jrun *r, const jmacro *macro, const jargs *args, bool *used, jscope *scope) {
    static const jstring name_caller = {"caller", 6, 6};
    const jparameters *p = macro->node->parameters;
    jvalue v;
    if (p->caller >= 0) {
        MN_TRY(take_named(r, args, &name_caller, used, &v));
        if (!j_given(v) || v.kind == J_NONE) MN_TRY(jinja_undefined(r, "No caller defined", NULL, j_none(), &v));
        scope->slots[p->caller] = v;
    }
    jdict *rest;
    MN_TRY(jinja_dict_new(r, &rest));
    for (size_t i = 0; i < args->n_named; i++) {
        MN_TRY(jinja_charge(r, 1));
        if (used[i]) continue;
        if (p->kwargs < 0)
            return jinja_fail(r, "macro takes no keyword argument '%.*s'", (int)args->named[i].name->n,
                              args->named[i].name->data);
        MN_TRY(jinja_dict_set(r, rest, j_string(args->named[i].name, false), args->named[i].value));
    }
    if (p->kwargs >= 0) scope->slots[p->kwargs] = j_dict(rest);
    if (p->varargs < 0) {
        return args->n > p->n ? jinja_fail(r, "macro takes not more than %zu argument(s)", p->n) : MN_OK;
    }
    jlist *more;
    MN_TRY(jinja_list_new(r, args->n > p->n ? args->n - p->n : 0, &more));
    for (size_t i = p->n; i < args->n; i++) MN_TRY(jinja_list_push(r, more, args->items[i]));
    scope->slots[p->varargs] = j_tuple(more);
    return MN_OK;
}

static mn_status missing_parameter(jrun *r, const jstring *name, jvalue *out) {
    char *hint;
    size_t n = name->n + 40;
    MN_TRY(jinja_alloc(&r->arena, n, &hint));
    snprintf(hint, n, "parameter '%.*s' was not provided", (int)name->n, name->data);
    return jinja_undefined(r, hint, NULL, j_string(name, false), out);
}

mn_status jinja_call_macro(jrun *r, const jmacro *macro, const jargs *args, jvalue *out) {
    const jparameters *p = macro->node->parameters;
    jscope *scope;
    bool *used;
    jflow flow = FLOW_ON;
    int line = r->arena.line;
    MN_TRY(jinja_charge(r, args->n + args->n_named));
    MN_TRY(jinja_enter(r));
    MN_TRY(jinja_new_scope(r, macro->closure, macro->node->frame, &scope));
    MN_TRY(jinja_alloc(&r->arena, args->n_named + 1, &used));
    memset(used, 0, args->n_named + 1);
    for (size_t i = 0; i < p->n; i++) {
        jvalue v = {.kind = J_MISSING};
        MN_TRY(jinja_charge(r, 1));
        if (i < args->n) {
            v = args->items[i];
        } else {
            MN_TRY(take_named(r, args, p->items[i].name, used, &v));
        }
        scope->slots[p->items[i].slot] = v;
    }
    MN_TRY(bind_special(r, macro, args, used, scope));
    for (size_t i = 0; i < p->n; i++) {
        jvalue *slot = &scope->slots[p->items[i].slot];
        MN_TRY(jinja_charge(r, 1));
        if (j_given(*slot)) continue;
        if (p->items[i].fallback) {
            MN_TRY(jinja_eval(r, scope, p->items[i].fallback, slot));
        } else {
            MN_TRY(missing_parameter(r, p->items[i].name, slot));
        }
    }
    MN_TRY(capture(r, scope, &macro->node->body, &flow, out));
    jinja_leave(r);
    r->arena.line = line;
    return MN_OK;
}

static mn_status new_macro(jrun *r, jscope *scope, const jnode *node, jvalue *out) {
    jmacro *macro;
    MN_TRY(jinja_alloc(&r->arena, sizeof *macro, &macro));
    *macro = (jmacro){node, scope};
    *out = (jvalue){.kind = J_MACRO, .macro = macro};
    return MN_OK;
}

/* ---- loops ---- */

mn_status jinja_loop_peek(jrun *r, jloop *loop) {
    bool more = true;
    if (j_given(loop->after)) return MN_OK;
    MN_TRY(jinja_next(r, loop->iter, &loop->after, &more));
    if (!more) loop->after = (jvalue){.kind = J_MISSING};
    return MN_OK;
}

mn_status jinja_loop_length(jrun *r, jloop *loop, int64_t *out) {
    if (loop->length < 0 && !jinja_length(loop->source, &loop->length)) {
        jlist *rest;
        MN_TRY(jinja_collect(r, j_iterator(loop->iter), &rest));
        MN_TRY(jinja_iter_list(r, rest, &loop->iter));
        loop->length = (int64_t)rest->n + loop->index0 + 1 + j_given(loop->after);
    }
    *out = loop->length;
    return MN_OK;
}

/* The items of a loop that satisfy its `if`. */
static mn_status next_filtered(jrun *r, jiter *it, jvalue *item, bool *more) {
    for (;;) {
        jscope *scope;
        jvalue holds;
        MN_TRY(jinja_next(r, it->inner, item, more));
        if (!*more) return MN_OK;
        MN_TRY(jinja_new_scope(r, it->scope, it->node->frame3, &scope));
        MN_TRY(jinja_assign(r, scope, it->node->items.items[0], *item));
        MN_TRY(jinja_eval(r, scope, it->node->c, &holds));
        if (jinja_truth(holds)) return MN_OK;
    }
}

static mn_status open_loop(jrun *r, jscope *scope, const jnode *node, jvalue iterable, int depth0, jloop **out) {
    jiter *it;
    jvalue source = iterable;
    MN_TRY(jinja_iter(r, iterable, &it));
    if (node->c) {
        jiter *filtered;
        MN_TRY(jinja_iter_new(r, next_filtered, &filtered));
        filtered->inner = it;
        filtered->scope = scope;
        filtered->node = node;
        it = filtered;
        source = j_iterator(it);
    }
    MN_TRY(jinja_alloc(&r->arena, sizeof **out, out));
    **out = (jloop){
        .iter = it, .source = source, .index0 = -1, .length = -1, .depth0 = depth0, .node = node, .scope = scope};
    return MN_OK;
}

static mn_status advance(jrun *r, jloop *loop, bool *more) {
    jvalue item = loop->after;
    *more = j_given(item);
    loop->after = (jvalue){.kind = J_MISSING};
    if (!*more) MN_TRY(jinja_next(r, loop->iter, &item, more));
    if (!*more) return MN_OK;
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return MN_OK;
}

static mn_status run_loop(jrun *r, jscope *scope, const jnode *node, jvalue iterable, int depth0) {
    jloop *loop;
    bool completed = false; /* some iteration reached the end of its body */
    MN_TRY(open_loop(r, scope, node, iterable, depth0, &loop));
    for (bool more = true;;) {
        jscope *inner;
        jflow flow = FLOW_ON;
        r->arena.line = node->line;
        MN_TRY(advance(r, loop, &more));
        if (!more) break;
        MN_TRY(jinja_new_scope(r, scope, node->frame, &inner));
        inner->slots[node->slot] = (jvalue){.kind = J_LOOP, .loop = loop};
        MN_TRY(jinja_assign(r, inner, node->a, loop->current));
        MN_TRY(exec_all(r, inner, &node->body, &flow));
        if (flow == FLOW_BREAK) break;
        if (flow == FLOW_ON) completed = true;
    }
    if (completed || !node->other.n) return MN_OK;
    jscope *inner;
    jflow flow = FLOW_ON;
    MN_TRY(jinja_new_scope(r, scope, node->frame2, &inner));
    return exec_all(r, inner, &node->other, &flow);
}

mn_status jinja_call_loop(jrun *r, jloop *loop, jvalue iterable, jvalue *out) {
    size_t mark = jinja_mark(r);
    if (!loop->node->flag) return jinja_fail(r, "the loop must have the 'recursive' marker to be called recursively");
    MN_TRY(jinja_enter(r));
    MN_TRY(run_loop(r, loop->scope, loop->node, iterable, loop->depth0 + 1));
    jinja_leave(r);
    return jinja_cut(r, mark, out);
}

/* ---- statements ---- */

static mn_status exec_print(jrun *r, jscope *scope, const jnode *node) {
    for (size_t i = 0; i < node->items.n; i++) {
        jvalue v;
        MN_TRY(jinja_eval(r, scope, node->items.items[i], &v));
        MN_TRY(jinja_put_str(r, v));
    }
    return MN_OK;
}

static mn_status exec_if(jrun *r, jscope *scope, const jnode *node, jflow *flow) {
    jvalue v;
    MN_TRY(jinja_eval(r, scope, node->a, &v));
    if (jinja_truth(v)) return exec_all(r, scope, &node->body, flow);
    for (size_t i = 0; i < node->items.n; i++) {
        r->arena.line = node->items.items[i]->line;
        MN_TRY(jinja_eval(r, scope, node->items.items[i]->a, &v));
        if (jinja_truth(v)) return exec_all(r, scope, &node->items.items[i]->body, flow);
    }
    return exec_all(r, scope, &node->other, flow);
}

/* Blocks whose text goes through filters: into a variable, or on into the output. */
static mn_status exec_filtered(jrun *r, jscope *scope, const jnode *node, jflow *flow) {
    jscope *inner;
    jvalue text;
    bool is_set = node->kind == N_SET_BLOCK;
    MN_TRY(jinja_new_scope(r, scope, node->frame, &inner));
    MN_TRY(capture(r, inner, &node->body, flow, &text));
    if (*flow != FLOW_ON) return MN_OK;
    const jnode *filters = is_set ? node->b : node->a;
    if (filters) MN_TRY(jinja_apply_steps(r, inner, filters, filters->items.n, &text));
    if (is_set) return jinja_assign(r, scope, node->a, text);
    return write_text(r, text);
}

static mn_status exec_call_block(jrun *r, jscope *scope, const jnode *node) {
    jvalue caller, text;
    MN_TRY(new_macro(r, scope, node, &caller));
    if (node->a) {
        MN_TRY(jinja_eval_call(r, scope, node->a, caller, &text));
    } else {
        const jargs none = {0};
        MN_TRY(jinja_call(r, caller, &none, &text));
    }
    return write_text(r, text);
}

static mn_status exec_scope(jrun *r, jscope *scope, const jnode *node, jflow *flow) {
    jscope *inner;
    if (node->kind == N_SCOPE && node->a) {
        jvalue escape;
        MN_TRY(jinja_eval(r, scope, node->a, &escape));
        if (jinja_truth(escape))
            MN_FAIL(MN_E_UNSUPPORTED, "chat template: line %d: autoescape is not supported", node->line);
    }
    MN_TRY(jinja_new_scope(r, scope, node->frame, &inner));
    for (size_t i = 0; i + 1 < node->items.n; i += 2) {
        jvalue v;
        MN_TRY(jinja_eval(r, scope, node->items.items[i + 1], &v));
        MN_TRY(jinja_assign(r, inner, node->items.items[i], v));
    }
    return exec_all(r, inner, &node->body, flow);
}

static mn_status exec(jrun *r, jscope *scope, const jnode *node, jflow *flow) {
    jvalue v;
    switch (node->kind) {
    case N_TEXT: return jinja_put(r, node->text->data, node->text->n);
    case N_PRINT: return exec_print(r, scope, node);
    case N_IF: return exec_if(r, scope, node, flow);
    case N_FOR: MN_TRY(jinja_eval(r, scope, node->b, &v)); return run_loop(r, scope, node, v, 0);
    case N_SET: MN_TRY(jinja_eval(r, scope, node->b, &v)); return jinja_assign(r, scope, node->a, v);
    case N_SET_BLOCK:
    case N_FILTER_BLOCK: return exec_filtered(r, scope, node, flow);
    case N_MACRO:
        MN_TRY(new_macro(r, scope, node, &v));
        set_slot(scope, node->hops, node->slot, v);
        return MN_OK;
    case N_CALL_BLOCK: return exec_call_block(r, scope, node);
    case N_WITH:
    case N_SCOPE: return exec_scope(r, scope, node, flow);
    case N_BREAK: *flow = FLOW_BREAK; return MN_OK;
    case N_CONTINUE: *flow = FLOW_CONTINUE; return MN_OK;
    default:
        return jinja_fail(r, "'%.*s' needs a loader for other templates, and there is none", (int)node->text->n,
                          node->text->data);
    }
}

static mn_status exec_all(jrun *r, jscope *scope, const jnodes *body, jflow *flow) {
    MN_TRY(jinja_enter(r));
    for (size_t i = 0; i < body->n && *flow == FLOW_ON; i++) {
        r->arena.line = body->items[i]->line;
        MN_TRY(jinja_charge(r, 1));
        MN_TRY(exec(r, scope, body->items[i], flow));
    }
    jinja_leave(r);
    return MN_OK;
}

/* ---- entry points ---- */

enum {
    TEMPLATE_BYTES = 1 << 20,
    COMPILE_STEPS = 10000000,
    STEPS = 10000000,
    DEPTH = 100,
    TEXT_BYTES = 32 << 20,
    MEMORY = 64 << 20
};

mn_status jinja_compile(jinja_template **out, const char *text, size_t n) {
    *out = NULL;
    if (n > TEMPLATE_BYTES) MN_FAIL(MN_E_FORMAT, "chat template: %zu bytes, allowed: up to %d", n, TEMPLATE_BYTES);
    jinja_template *t = mem_alloc(1, sizeof *t);
    if (!t) return MN_E_NOMEM;
    t->arena = (jinja_arena){.limit = MEMORY, .steps = COMPILE_STEPS, .line = 1};
    jtokens tokens = {0};
    mn_status status = jinja_lex(&t->arena, text, n, &tokens);
    if (status == MN_OK) status = jinja_parse(&t->arena, &tokens, &t->body);
    if (status == MN_OK) status = jinja_scope(t);
    jinja_free(&t->arena, tokens.items, tokens.capacity, sizeof *tokens.items);
    if (status != MN_OK) {
        jinja_close(&t);
    } else {
        *out = t;
    }
    return status;
}

void jinja_close(jinja_template **template) {
    if (!*template) return;
    jinja_arena_clear(&(*template)->arena);
    mem_free(*template);
    *template = NULL;
}

static int64_t limit_or(int64_t limit, int64_t fallback) {
    return limit > 0 ? limit : fallback;
}

static mn_status render(jrun *r, const json *context) {
    jscope *scope;
    jflow flow = FLOW_ON;
    jvalue variables;
    static const json nothing = {.kind = JSON_OBJECT};
    if (!context) context = &nothing;
    if (context->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "chat template: the variables must be a JSON object");
    MN_TRY(jinja_from_json(r, context, &variables));
    r->context = variables.dict;
    MN_TRY(jinja_new_scope(r, NULL, r->template->frame, &scope));
    return exec_all(r, scope, &r->template->body, &flow);
}

mn_status jinja_render(const jinja_template *template, const json *context, const jinja_limits *limits,
                       const struct tm *now, bytes *out) {
    static const jinja_limits none = {0};
    if (!limits) limits = &none;
    jrun r = {.template = template,
              .arena = {.limit = (size_t)limit_or(limits->memory, MEMORY),
                        .steps = limit_or(limits->steps, STEPS),
                        .line = 1},
              .depth_left = limit_or(limits->depth, DEPTH),
              .output_limit = limit_or(limits->output, TEXT_BYTES),
              .seed = hash_seed(),
              .now = now,
              .out = out,
              .out_start = out->n};
    mn_status status = render(&r, context);
    if (status != MN_OK) out->n = r.out_start;
    jinja_arena_clear(&r.arena);
    return status;
}
