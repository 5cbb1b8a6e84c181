/* Names become slots. Jinja2 decides at compile time which scope a variable belongs to: a scope that stores a name has
 * a variable of its own for it, which starts as the outer variable's value, as the context's, or as undefined,
 * depending on what the scope does with the name first. This pass makes the same decisions.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

/* The names of one scope, while it is compiled. */
typedef struct symbols {
    struct symbols *parent;
    jload *items; /* the slots */
    bool *stored;
    size_t n;
    size_t capacity, stored_capacity;
    jinja_arena *arena;
} symbols;

typedef struct resolver {
    jinja_arena *arena;
    symbols *scope;
    int loops;    /* for loops around: `loop` cannot be assigned there */
    bool lenient; /* inside if: an unknown filter fails only when it is reached */
} resolver;

/* The slot of a name in one scope, or -1. */
static mn_status find_own(const symbols *s, const jstring *name, int *slot) {
    *slot = -1;
    MN_TRY(jinja_charge_steps(s->arena, 1));
    for (size_t i = 0; i < s->n && *slot < 0; i++) {
        const jstring *other = s->items[i].name;
        bool long_enough = other->n == name->n;
        MN_TRY(jinja_charge_steps(s->arena, long_enough ? 1 + name->n / 32 : 1));
        if (long_enough && memcmp(other->data, name->data, name->n) == 0) *slot = (int)i;
    }
    return MN_OK;
}

/* The slot that `name` means in scope s, or -1. */
static mn_status find(const symbols *s, const jstring *name, int *hops, int *slot) {
    *slot = -1;
    for (*hops = 0; s; s = s->parent, (*hops)++) {
        MN_TRY(find_own(s, name, slot));
        if (*slot >= 0) return MN_OK;
    }
    return MN_OK;
}

static mn_status define(symbols *s, jload load, bool stored, int *slot) {
    MN_TRY(jinja_grow(s->arena, &s->items, &s->capacity, s->n + 1, sizeof *s->items));
    MN_TRY(jinja_grow(s->arena, &s->stored, &s->stored_capacity, s->n + 1, sizeof *s->stored));
    s->items[s->n] = load;
    s->stored[s->n] = stored;
    *slot = (int)s->n++;
    return MN_OK;
}

static void clear(symbols *s) {
    if (!s->arena) return;
    jinja_free(s->arena, s->items, s->capacity, sizeof *s->items);
    jinja_free(s->arena, s->stored, s->stored_capacity, sizeof *s->stored);
}

/* What a name means outside of scope s: a slot there, or a variable of the context. */
static mn_status outside(const symbols *s, jload *load) {
    load->kind = JLOAD_CONTEXT;
    if (!s->parent) return MN_OK;
    MN_TRY(find(s->parent, load->name, &load->hops, &load->slot));
    if (load->slot < 0) return MN_OK;
    load->kind = JLOAD_OUTER;
    load->hops++;
    return MN_OK;
}

static mn_status store(resolver *v, const jstring *name) {
    symbols *s = v->scope;
    int slot;
    if (v->loops && jinja_string_is(name, "loop"))
        return jinja_syntax_error(1, "can't assign to the special variable 'loop' in a for loop");
    MN_TRY(find_own(s, name, &slot));
    if (slot >= 0) {
        s->stored[slot] = true;
        return MN_OK;
    }
    jload load = {.name = name};
    MN_TRY(outside(s, &load));
    if (load.kind == JLOAD_CONTEXT) load.kind = JLOAD_NOTHING;
    return define(s, load, true, &slot);
}

static mn_status declare_parameter(resolver *v, const jstring *name, int *slot) {
    symbols *s = v->scope;
    MN_TRY(find_own(s, name, slot));
    if (*slot < 0) return define(s, (jload){.name = name, .kind = JLOAD_PARAMETER}, true, slot);
    s->items[*slot].kind = JLOAD_PARAMETER;
    s->stored[*slot] = true;
    return MN_OK;
}

static mn_status load(resolver *v, const jstring *name) {
    int hops, slot;
    MN_TRY(find(v->scope, name, &hops, &slot));
    if (slot >= 0) return MN_OK;
    return define(v->scope, (jload){.name = name, .kind = JLOAD_CONTEXT}, false, &slot);
}

/* ---- first pass over a scope: which names it reads and stores, in order ---- */

static mn_status visit(resolver *v, const jnode *node);

static mn_status visit_all(resolver *v, const jnodes *nodes) {
    for (size_t i = 0; i < nodes->n; i++) MN_TRY(visit(v, nodes->items[i]));
    return MN_OK;
}

static mn_status visit_arguments(resolver *v, const jarguments *args) {
    MN_TRY(visit_all(v, &args->positional));
    for (size_t i = 0; i < args->n_named; i++) MN_TRY(visit(v, args->named[i].value));
    MN_TRY(visit(v, args->star));
    return visit(v, args->double_star);
}

static mn_status visit_target(resolver *v, const jnode *target, bool parameter) {
    int slot;
    MN_TRY(jinja_charge_steps(v->arena, 1));
    if (target->kind == N_MEMBER) return load(v, target->text);
    if (target->kind == N_NAME) return parameter ? declare_parameter(v, target->text, &slot) : store(v, target->text);
    for (size_t i = 0; i < target->items.n; i++) MN_TRY(visit_target(v, target->items.items[i], parameter));
    return MN_OK;
}

static mn_status copy_symbols(const symbols *from, symbols *to) {
    *to = (symbols){.parent = from->parent, .arena = from->arena};
    MN_TRY(jinja_charge_steps(to->arena, from->n));
    MN_TRY(jinja_grow(to->arena, &to->items, &to->capacity, from->n, sizeof *to->items));
    MN_TRY(jinja_grow(to->arena, &to->stored, &to->stored_capacity, from->n, sizeof *to->stored));
    for (size_t i = 0; i < from->n; i++) { /* charged: above */
        to->items[i] = from->items[i];
        to->stored[i] = from->stored[i];
    }
    to->n = from->n;
    return MN_OK;
}

/* Adds the names that a branch defined; `before` is how many slots there were before the if. */
static mn_status merge_branch(symbols *s, const symbols *branch, size_t before, bool *touched) {
    for (size_t i = 0; i < branch->n; i++) {
        const jload *from = &branch->items[i];
        int slot = (int)i;
        MN_TRY(jinja_charge_steps(s->arena, 1));
        if (i >= before) MN_TRY(find_own(s, from->name, &slot));
        if (slot < 0) MN_TRY(define(s, *from, false, &slot));
        if ((size_t)slot >= before) s->items[slot] = *from;
        if (branch->stored[i]) touched[slot] = true;
    }
    return MN_OK;
}

/* Merges three branches that start from the same symbols. After the if, a name that one of them stores is either that
 * variable or the one outside. */
static mn_status merge_branches(resolver *v, const symbols *branches) {
    symbols *s = v->scope;
    size_t before = s->n;
    bool *touched;
    MN_TRY(jinja_alloc(v->arena, branches[0].n + branches[1].n + branches[2].n + 1, &touched));
    memset(touched, 0, branches[0].n + branches[1].n + branches[2].n + 1);
    for (int i = 0; i < 3; i++) /* bounded: three branches */
        MN_TRY(merge_branch(s, &branches[i], before, touched));
    for (size_t slot = 0; slot < s->n; slot++) {
        MN_TRY(jinja_charge_steps(v->arena, 1));
        if (!touched[slot] || s->stored[slot]) continue;
        MN_TRY(outside(s, &s->items[slot]));
        s->stored[slot] = true;
    }
    return MN_OK;
}

static mn_status visit_if(resolver *v, const jnode *node) {
    symbols *s = v->scope, *branches; /* not on the stack: ifs nest */
    const jnodes *bodies[3] = {&node->body, &node->items, &node->other};
    MN_TRY(jinja_alloc(v->arena, 3 * sizeof *branches, &branches));
    memset(branches, 0, 3 * sizeof *branches);
    mn_status status = visit(v, node->a);
    for (int i = 0; i < 3 && status == MN_OK; i++) { /* bounded: three branches */
        status = copy_symbols(s, &branches[i]);
        v->scope = &branches[i];
        if (status == MN_OK) status = visit_all(v, bodies[i]);
        v->scope = s;
    }
    if (status == MN_OK) status = merge_branches(v, branches);
    for (int i = 0; i < 3; i++) /* bounded: three branches */
        clear(&branches[i]);
    return status;
}

static mn_status visit_node(resolver *v, const jnode *node) {
    switch (node->kind) {
    case N_NAME: return load(v, node->text);
    case N_IF: return visit_if(v, node);
    case N_FOR: return visit(v, node->b);
    case N_MACRO: return store(v, node->text);
    case N_SET: MN_TRY(visit(v, node->b)); return visit_target(v, node->a, false);
    case N_SET_BLOCK: return visit_target(v, node->a, false);
    case N_CALL_BLOCK:
    case N_FILTER_BLOCK: return visit(v, node->a);
    case N_WITH:
        for (size_t i = 1; i < node->items.n; i += 2) MN_TRY(visit(v, node->items.items[i]));
        return MN_OK;
    case N_SCOPE: return visit(v, node->a);
    case N_COND: /* in the order of Python's fields: test, then, else */
        MN_TRY(visit(v, node->b));
        MN_TRY(visit(v, node->a));
        return visit(v, node->c);
    default:
        MN_TRY(visit(v, node->a));
        MN_TRY(visit(v, node->b));
        MN_TRY(visit(v, node->c));
        MN_TRY(visit_all(v, &node->items));
        return node->arguments ? visit_arguments(v, node->arguments) : MN_OK;
    }
}

static mn_status visit(resolver *v, const jnode *node) {
    MN_TRY(jinja_charge_steps(v->arena, 1));
    if (!node) return MN_OK;
    v->arena->line = node->line;
    return visit_node(v, node);
}

/* ---- second pass: slots for names, frames for scopes ---- */

static mn_status bind(resolver *v, jnode *node);

static mn_status bind_all(resolver *v, const jnodes *nodes) {
    for (size_t i = 0; i < nodes->n; i++) MN_TRY(bind(v, nodes->items[i]));
    return MN_OK;
}

static mn_status bind_arguments(resolver *v, const jarguments *args) {
    MN_TRY(bind_all(v, &args->positional));
    for (size_t i = 0; i < args->n_named; i++) MN_TRY(bind(v, args->named[i].value));
    MN_TRY(bind(v, args->star));
    return bind(v, args->double_star);
}

/* One scope: `first` collects its names, `second` binds them. */
static mn_status with_scope(resolver *v, jnode *node, mn_status (*first)(resolver *, jnode *),
                            mn_status (*second)(resolver *, jnode *), jframe **out) {
    symbols scope = {.parent = v->scope, .arena = v->arena};
    bool lenient = v->lenient;
    v->scope = &scope;
    v->lenient = false;
    mn_status status = first(v, node);
    if (status == MN_OK) status = second(v, node);
    if (status == MN_OK) status = jinja_alloc(v->arena, sizeof **out, out);
    if (status == MN_OK) {
        (*out)->n = scope.n;
        status = jinja_alloc(v->arena, scope.n * sizeof *scope.items, &(*out)->loads);
        if (status == MN_OK && scope.n) memcpy((*out)->loads, scope.items, scope.n * sizeof *scope.items);
    }
    v->scope = scope.parent;
    v->lenient = lenient;
    clear(&scope);
    return status;
}

static mn_status first_body(resolver *v, jnode *node) {
    return visit_all(v, &node->body);
}
static mn_status second_body(resolver *v, jnode *node) {
    return bind_all(v, &node->body);
}

static mn_status first_filtered(resolver *v, jnode *node) { /* filter and set blocks: the filters run inside */
    MN_TRY(visit_all(v, &node->body));
    return visit(v, node->kind == N_SET_BLOCK ? node->b : node->a);
}

static mn_status second_filtered(resolver *v, jnode *node) {
    MN_TRY(bind_all(v, &node->body));
    return bind(v, node->kind == N_SET_BLOCK ? node->b : node->a);
}

static const jstring name_loop = {"loop", 4, 4}, name_caller = {"caller", 6, 6}, name_kwargs = {"kwargs", 6, 6},
                     name_varargs = {"varargs", 7, 7};

static mn_status bind_target(resolver *v, jnode *target) {
    MN_TRY(jinja_charge_steps(v->arena, 1));
    if (target->kind == N_TUPLE) {
        for (size_t i = 0; i < target->items.n; i++) MN_TRY(bind_target(v, target->items.items[i]));
        return MN_OK;
    }
    return find(v->scope, target->text, &target->hops, &target->slot);
}

static mn_status first_for(resolver *v, jnode *node) {
    MN_TRY(declare_parameter(v, &name_loop, &node->slot));
    MN_TRY(visit_target(v, node->a, true));
    return visit_all(v, &node->body);
}

static mn_status second_for(resolver *v, jnode *node) {
    MN_TRY(bind_target(v, node->a));
    return bind_all(v, &node->body);
}

static mn_status first_else(resolver *v, jnode *node) {
    return visit_all(v, &node->other);
}
static mn_status second_else(resolver *v, jnode *node) {
    return bind_all(v, &node->other);
}

/* The filter of a loop has a scope of its own, so it gets a copy of the target that is bound there (node->items). */
static mn_status first_filter(resolver *v, jnode *node) {
    MN_TRY(visit_target(v, node->a, true));
    return visit(v, node->c);
}

static mn_status copy_target(resolver *v, const jnode *target, jnode **out) {
    MN_TRY(jinja_alloc(v->arena, sizeof **out, out));
    **out = *target;
    if (target->kind != N_TUPLE) return MN_OK;
    MN_TRY(jinja_alloc(v->arena, target->items.n * sizeof(jnode *), &(*out)->items.items));
    for (size_t i = 0; i < target->items.n; i++)
        MN_TRY(copy_target(v, target->items.items[i], &(*out)->items.items[i]));
    return MN_OK;
}

static mn_status second_filter(resolver *v, jnode *node) {
    jnode *target;
    MN_TRY(copy_target(v, node->a, &target));
    MN_TRY(bind_target(v, target));
    MN_TRY(jinja_alloc(v->arena, sizeof(jnode *), &node->items.items));
    node->items.items[0] = target;
    node->items.n = 1;
    return bind(v, node->c);
}

static mn_status bind_for(resolver *v, jnode *node) {
    MN_TRY(bind(v, node->b));
    bool takes_loop = node->a->kind == N_NAME && jinja_string_is(node->a->text, "loop");
    for (size_t i = 0; node->a->kind == N_TUPLE && i < node->a->items.n; i++) { /* charged: each when it was parsed */
        takes_loop |= node->a->items.items[i]->kind == N_NAME && jinja_string_is(node->a->items.items[i]->text, "loop");
    }
    if (takes_loop) return jinja_syntax_error(node->line, "can't assign to the special variable 'loop' in a for loop");
    v->loops++;
    MN_TRY(with_scope(v, node, first_for, second_for, &node->frame));
    if (node->other.n) MN_TRY(with_scope(v, node, first_else, second_else, &node->frame2));
    if (node->c) MN_TRY(with_scope(v, node, first_filter, second_filter, &node->frame3));
    v->loops--;
    return MN_OK;
}

static mn_status first_macro(resolver *v, jnode *node) {
    jparameters *p = node->parameters;
    for (size_t i = 0; i < p->n; i++) MN_TRY(declare_parameter(v, p->items[i].name, &p->items[i].slot));
    for (size_t i = 0; i < p->n; i++) MN_TRY(visit(v, p->items[i].fallback));
    if (p->uses_caller && !p->explicit_caller) MN_TRY(declare_parameter(v, &name_caller, &p->caller));
    if (p->uses_kwargs) MN_TRY(declare_parameter(v, &name_kwargs, &p->kwargs));
    if (p->uses_varargs) MN_TRY(declare_parameter(v, &name_varargs, &p->varargs));
    return visit_all(v, &node->body);
}

static mn_status second_macro(resolver *v, jnode *node) {
    for (size_t i = 0; i < node->parameters->n; i++) MN_TRY(bind(v, node->parameters->items[i].fallback));
    return bind_all(v, &node->body);
}

static mn_status first_with(resolver *v, jnode *node) {
    for (size_t i = 0; i < node->items.n; i += 2) MN_TRY(visit_target(v, node->items.items[i], true));
    return visit_all(v, &node->body);
}

static mn_status second_with(resolver *v, jnode *node) {
    for (size_t i = 0; i < node->items.n; i += 2) MN_TRY(bind_target(v, node->items.items[i]));
    return bind_all(v, &node->body);
}

static mn_status bind_builtin(const resolver *v, const jnode *node) {
    if (node->builtin || v->lenient) return MN_OK;
    const char *nearest = node->kind == N_FILTER ? jinja_nearest_filter(node->text) : NULL;
    return jinja_syntax_error(node->line, "No %s named '%.*s'%s%s%s", node->kind == N_FILTER ? "filter" : "test",
                              (int)(node->text->n < 60 ? node->text->n : 60), node->text->data,
                              nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : ".");
}

static mn_status bind_lenient(resolver *v, jnode *node) {
    bool lenient = v->lenient;
    v->lenient = true;
    MN_TRY(bind(v, node->a));
    MN_TRY(bind(v, node->b));
    MN_TRY(bind(v, node->c));
    MN_TRY(bind_all(v, &node->body));
    MN_TRY(bind_all(v, &node->items));
    MN_TRY(bind_all(v, &node->other));
    v->lenient = lenient;
    return MN_OK;
}

static mn_status bind_node(resolver *v, jnode *node) {
    switch (node->kind) {
    case N_NAME: return find(v->scope, node->text, &node->hops, &node->slot);
    case N_IF:
    case N_COND: return bind_lenient(v, node);
    case N_FOR: return bind_for(v, node);
    case N_SET: MN_TRY(bind(v, node->b)); return bind_target(v, node->a);
    case N_SET_BLOCK:
        MN_TRY(with_scope(v, node, first_filtered, second_filtered, &node->frame));
        return bind_target(v, node->a);
    case N_FILTER_BLOCK: return with_scope(v, node, first_filtered, second_filtered, &node->frame);
    case N_MACRO:
        MN_TRY(find(v->scope, node->text, &node->hops, &node->slot));
        return with_scope(v, node, first_macro, second_macro, &node->frame);
    case N_CALL_BLOCK: MN_TRY(bind(v, node->a)); return with_scope(v, node, first_macro, second_macro, &node->frame);
    case N_WITH:
        for (size_t i = 1; i < node->items.n; i += 2) MN_TRY(bind(v, node->items.items[i]));
        return with_scope(v, node, first_with, second_with, &node->frame);
    case N_SCOPE: MN_TRY(bind(v, node->a)); return with_scope(v, node, first_body, second_body, &node->frame);
    case N_FILTER:
    case N_TEST: MN_TRY(bind_builtin(v, node)); break;
    default: break;
    }
    MN_TRY(bind(v, node->a));
    MN_TRY(bind(v, node->b));
    MN_TRY(bind(v, node->c));
    MN_TRY(bind_all(v, &node->items));
    return node->arguments ? bind_arguments(v, node->arguments) : MN_OK;
}

static mn_status bind(resolver *v, jnode *node) {
    MN_TRY(jinja_charge_steps(v->arena, 1));
    if (!node) return MN_OK;
    v->arena->line = node->line;
    return bind_node(v, node);
}

mn_status jinja_scope(jinja_template *template) {
    resolver v = {.arena = &template->arena};
    jnode root = {.kind = N_SCOPE, .body = template->body};
    return with_scope(&v, &root, first_body, second_body, &template->frame);
}
