/* The budget of a compilation or a rendering: memory, steps, and the one buffer in which all text is written. Nothing
 * else in the engine allocates memory or writes text.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/internal.h"

enum { FIRST_BLOCK = 8 << 10, LARGEST_BLOCK = 1 << 20, FIRST_TEXT = 1 << 10 };

/* ---- failing ---- */

mn_status jinja_syntax_error(int line, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return status_fail(MN_E_FORMAT, "chat template: line %d: %s", line, text);
}

mn_status jinja_fail(const jrun *r, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return status_fail(MN_E_ARG, "chat template: line %d: %s", r->arena.line, text);
}

/* ---- steps and depth ---- */

mn_status jinja_out_of_steps(jinja_arena *arena) {
    arena->steps = 0;
    MN_FAIL(MN_E_FULL, "chat template: line %d: the template takes too many steps", arena->line);
}

mn_status jinja_enter(jrun *r) {
    if (r->depth_left <= 0)
        MN_FAIL(MN_E_FULL, "chat template: line %d: calls or values are nested too deeply", r->arena.line);
    r->depth_left--;
    return MN_OK;
}

/* ---- memory ---- */

struct jinja_block {
    jinja_block *next;
    size_t used, size;
    size_t pad; /* keeps what follows 16-byte aligned */
};

/* Whether n bytes more may be held. */
static mn_status check_memory(const jinja_arena *arena, size_t n) {
    if (n <= arena->limit - arena->held) return MN_OK;
    MN_FAIL(MN_E_FULL, "chat template: line %d: more than %zu bytes of memory are needed", arena->line, arena->limit);
}

static mn_status new_block(jinja_arena *arena, size_t n, jinja_block **out) {
    jinja_block *current = arena->blocks;
    size_t size = current ? current->size * 2 : FIRST_BLOCK;
    if (size > LARGEST_BLOCK) size = LARGEST_BLOCK;
    bool own = n > size / 4;
    if (own) size = n;
    MN_TRY(check_memory(arena, sizeof **out + size));
    jinja_block *fresh = mem_alloc_raw(1, sizeof *fresh + size);
    if (!fresh) return MN_E_NOMEM;
    arena->held += sizeof *fresh + size;
    *fresh = (jinja_block){.size = size};
    if (current && own) { /* a block of its own; go on filling the current one */
        fresh->next = current->next;
        current->next = fresh;
    } else {
        fresh->next = current;
        arena->blocks = fresh;
    }
    *out = fresh;
    return MN_OK;
}

mn_status jinja_alloc(jinja_arena *arena, size_t n, void *out) {
    void **place = out;
    *place = NULL;
    MN_TRY(jinja_charge_steps(arena, 1 + n / 64));
    if (n > SIZE_MAX / 4) return check_memory(arena, n);
    n = (n + 15) & ~(size_t)15;
    jinja_block *b = arena->blocks;
    if (!b || b->size - b->used < n) MN_TRY(new_block(arena, n, &b));
    *place = (char *)(b + 1) + b->used;
    b->used += n;
    return MN_OK;
}

mn_status jinja_grow(jinja_arena *arena, void *block, size_t *capacity, size_t need, size_t size) {
    MN_TRY(jinja_charge_steps(arena, 1));
    if (need <= *capacity) return MN_OK;
    size_t new_capacity = *capacity < 8 ? 8 : *capacity * 2, n;
    if (new_capacity < need) new_capacity = need;
    if (!size_mul(new_capacity, size, &n)) n = SIZE_MAX;
    MN_TRY(check_memory(arena, n)); /* for a moment the old and the new one are held */
    MN_TRY(jinja_charge_steps(arena, n / 64));
    char **slot = block, *grown = mem_alloc_raw(new_capacity, size);
    if (!grown) return MN_E_NOMEM;
    if (*slot) memcpy(grown, *slot, *capacity * size);
    mem_free(*slot);
    arena->held += (new_capacity - *capacity) * size;
    *slot = grown;
    *capacity = new_capacity;
    return MN_OK;
}

void jinja_free(jinja_arena *arena, void *block, size_t capacity, size_t size) {
    mem_free(block);
    arena->held -= capacity * size;
}

void jinja_arena_clear(jinja_arena *arena) {
    for (jinja_block *b = arena->blocks, *next; b; b = next) { /* bounded: one turn a block that was paid for */
        next = b->next;
        mem_free(b);
    }
    arena->blocks = NULL;
}

/* ---- text ---- */

mn_status jinja_put(jrun *r, const char *data, size_t n) {
    bytes *out = r->out;
    MN_TRY(jinja_charge_bytes(r, n));
    if (n > (size_t)r->output_limit - (out->n - r->out_start))
        MN_FAIL(MN_E_FULL, "chat template: line %d: more than %lld bytes of output or of one text", r->arena.line,
                (long long)r->output_limit);
    if (n > out->capacity - out->n) {
        size_t need = out->n + n;
        MN_TRY(jinja_grow(&r->arena, &out->data, &out->capacity, need < FIRST_TEXT ? FIRST_TEXT : need, 1));
    }
    if (n) memcpy(out->data + out->n, data, n);
    out->n += n;
    return MN_OK;
}

mn_status jinja_put_z(jrun *r, const char *text) {
    return jinja_put(r, text, strlen(text));
}

mn_status jinja_put_many(jrun *r, const char *unit, size_t n, int64_t times) {
    char several[256];
    size_t each = 1;
    if (n > 0 && n < sizeof several / 2 && times > 1) { /* short ones go together */
        each = sizeof several / n;
        for (size_t i = 0; i < each; i++) /* bounded: by the size of `several` */
            memcpy(several + i * n, unit, n);
    }
    for (; times >= (int64_t)each; times -= (int64_t)each) MN_TRY(jinja_put(r, each > 1 ? several : unit, each * n));
    return times > 0 ? jinja_put(r, several, (size_t)times * n) : MN_OK;
}

mn_status jinja_printf(jrun *r, const char *format, ...) {
    char text[200];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return jinja_put(r, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

size_t jinja_mark(const jrun *r) {
    return r->out->n;
}

mn_status jinja_cut(jrun *r, size_t mark, jvalue *out) {
    MN_TRY(jinja_text(r, r->out->data ? r->out->data + mark : "", r->out->n - mark, out));
    r->out->n = mark;
    return MN_OK;
}
