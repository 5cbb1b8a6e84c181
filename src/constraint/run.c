/* SPDX-License-Identifier: Apache-2.0 */
#include "constraint/run.h"

#include <string.h>

#include "base/hash.h"

enum { SEEN_SLOTS = RUN_READINGS * 4 };

static uint64_t mix(uint64_t h) {
    h *= 0x9E3779B97F4A7C15u;
    return (h ^ h >> 32) & MN_HASH_MASK;
}

static uint64_t reading_of(uint32_t node, uint32_t frame) {
    return (uint64_t)node << 32 | frame;
}

/* ---- tables ---- */

/* Room for one more entry: at least twice as many slots as entries. entry_hash gives an entry's hash. */
static mn_status table_reserve(run_table *table, size_t n, uint64_t (*entry_hash)(const run *, uint32_t),
                               const run *r) {
    if ((n + 1) * 2 <= table->n_slots) return MN_OK;
    size_t n_slots = table->n_slots ? table->n_slots * 2 : 256;
    uint32_t *slots = mem_alloc(n_slots, sizeof *slots);
    if (!slots) return MN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t slot = (size_t)entry_hash(r, (uint32_t)i) & (n_slots - 1);
        while (slots[slot]) slot = (slot + 1) & (n_slots - 1);
        slots[slot] = (uint32_t)i + 1;
    }
    mem_free(table->slots);
    *table = (run_table){slots, n_slots};
    return MN_OK;
}

static mn_status too_much(const char *what, size_t limit) {
    MN_FAIL(MN_E_UNSUPPORTED, "the constraint is too ambiguous here: more than %zu %s", limit, what);
}

/* ---- frames ---- */

static uint64_t hash_frame(const run_frame *f) {
    return mix(mix((uint64_t)f->parent << 32 | f->node) ^ ((uint64_t)f->count << 1 | f->fresh));
}

static uint64_t hash_of_frame(const run *r, uint32_t id) {
    return hash_frame(&r->frames[id]);
}

static mn_status put_frame(run *r, uint32_t parent, uint32_t node, uint32_t count, bool fresh, uint32_t *out) {
    run_frame f = {parent, node, count, 0, fresh};
    MN_TRY(table_reserve(&r->frame_table, r->n_frames, hash_of_frame, r));
    size_t mask = r->frame_table.n_slots - 1, slot = (size_t)hash_frame(&f) & mask;
    for (; r->frame_table.slots[slot]; slot = (slot + 1) & mask) {
        *out = r->frame_table.slots[slot] - 1;
        const run_frame *known = &r->frames[*out];
        if (known->parent == parent && known->node == node && known->count == count && known->fresh == fresh)
            return MN_OK;
    }
    if (run_bytes(r) > RUN_HARD) return too_much("bytes of states", RUN_HARD);
    MN_TRY(mem_grow(&r->frames, &r->frames_capacity, r->n_frames + 1, sizeof *r->frames));
    if (r->n_frames) f.depth = (uint16_t)(r->frames[parent].depth + (r->g->nodes[node].kind == NET_CALL));
    *out = (uint32_t)r->n_frames;
    r->frames[r->n_frames++] = f;
    r->frame_table.slots[slot] = *out + 1;
    return MN_OK;
}

/* The same stack with no frame fresh; fresh frames are the topmost ones. */
static mn_status resolve_frame(run *r, uint32_t *frame) {
    uint32_t above[2 * NET_DEPTH], top = *frame;
    size_t n = 0;
    for (uint32_t f = top; r->frames[f].fresh; f = r->frames[f].parent) {
        if (n == 2 * NET_DEPTH) { /* deep nests of groups: resolve the inner groups first */
            uint32_t below = r->frames[f].parent;
            MN_TRY(resolve_frame(r, &below));
            MN_TRY(put_frame(r, below, r->frames[f].node, r->frames[f].count, false, &below));
            *frame = below;
            break;
        }
        above[n++] = f;
        *frame = r->frames[f].parent;
    }
    while (n-- > 0) MN_TRY(put_frame(r, *frame, r->frames[above[n]].node, r->frames[above[n]].count, false, frame));
    return MN_OK;
}

/* ---- the readings that follow from one without a byte ---- */

static mn_status visit(run *r, uint32_t node, uint32_t frame) {
    uint64_t reading = reading_of(node, frame);
    if ((size_t)r->g->nodes[node].need + r->frames[frame].depth > NET_DEPTH) return MN_OK;
    size_t slot = (size_t)mix(reading) & (SEEN_SLOTS - 1);
    for (; r->stamp[slot] == r->now; slot = (slot + 1) & (SEEN_SLOTS - 1)) {
        if (r->seen[slot] == reading) return MN_OK;
    }
    if (r->n_seen == SEEN_SLOTS / 2) return too_much("ways to read the text", SEEN_SLOTS / 2);
    if (++r->steps > RUN_STEPS) return too_much("steps", RUN_STEPS);
    MN_TRY(mem_grow(&r->work, &r->work_capacity, r->n_work + 1, sizeof *r->work));
    r->seen[slot] = reading;
    r->stamp[slot] = r->now;
    r->n_seen++;
    r->work[r->n_work++] = reading;
    return MN_OK;
}

/* Behind the end of a rule or of a round. */
static mn_status leave(run *r, uint32_t frame) {
    if (frame == 0) {
        r->accepts = true;
        return MN_OK;
    }
    run_frame f = r->frames[frame];
    const net_node *node = &r->g->nodes[f.node];
    if (node->kind == NET_CALL) return visit(r, node->next, f.parent);
    /* A repetition that read nothing counts as all remaining ones. */
    if (f.fresh) return visit(r, node->next, f.parent);
    uint32_t count = node->max == NET_MANY && f.count == node->min ? f.count : f.count + 1, again;
    if (count >= node->min) MN_TRY(visit(r, node->next, f.parent));
    if (count >= node->max) return MN_OK;
    MN_TRY(put_frame(r, f.parent, f.node, count, true, &again));
    return visit(r, node->other, again);
}

static mn_status follow(run *r, uint64_t reading) {
    uint32_t id = (uint32_t)(reading >> 32), frame = (uint32_t)reading, inner;
    const net_node *node = &r->g->nodes[id];
    switch ((net_kind)node->kind) {
    case NET_IS_END: return leave(r, frame);
    case NET_IS_FAIL: break;
    case NET_BYTES:
        if (r->n_kept == RUN_READINGS) return too_much("ways to read the text", RUN_READINGS);
        MN_TRY(resolve_frame(r, &frame));
        MN_TRY(mem_grow(&r->kept, &r->kept_capacity, r->n_kept + 1, sizeof *r->kept));
        r->kept[r->n_kept++] = reading_of(id, frame);
        break;
    case NET_SPLIT: MN_TRY(visit(r, node->next, frame)); return visit(r, node->other, frame);
    case NET_CALL: MN_TRY(put_frame(r, frame, id, 0, true, &inner)); return visit(r, r->g->rules[node->other], inner);
    case NET_REPEAT:
        if (node->min == 0) MN_TRY(visit(r, node->next, frame));
        MN_TRY(put_frame(r, frame, id, 0, true, &inner));
        return visit(r, node->other, inner);
    }
    return MN_OK;
}

static void begin_step(run *r) {
    if (++r->now == 0) {
        memset(r->stamp, 0, SEEN_SLOTS * sizeof *r->stamp);
        r->now = 1;
    }
    r->n_work = r->n_seen = r->n_kept = 0;
    r->accepts = false;
}

/* ---- states ---- */

static uint64_t hash_readings(const uint64_t *readings, size_t n, bool accepts) {
    uint64_t h = n * 2 + accepts;
    for (size_t i = 0; i < n; i++) h = mix(h ^ readings[i]);
    return h;
}

static uint64_t hash_of_state(const run *r, uint32_t id) {
    const run_state *s = &r->states[id];
    return hash_readings(r->readings + s->at, s->n, s->accepts);
}

/* The state of the readings kept. */
static mn_status put_state(run *r, uint32_t *out) {
    size_t n = 0, n_classes = r->g->n_classes;
    keys_sort(r->kept, r->n_kept);
    for (size_t i = 0; i < r->n_kept; i++) {
        if (n == 0 || r->kept[n - 1] != r->kept[i]) r->kept[n++] = r->kept[i];
    }
    MN_TRY(table_reserve(&r->state_table, r->n_states, hash_of_state, r));
    size_t mask = r->state_table.n_slots - 1, slot = (size_t)hash_readings(r->kept, n, r->accepts) & mask;
    for (; r->state_table.slots[slot]; slot = (slot + 1) & mask) {
        *out = r->state_table.slots[slot] - 1;
        const run_state *s = &r->states[*out];
        if (s->n == n && s->accepts == r->accepts &&
            (n == 0 || memcmp(r->readings + s->at, r->kept, n * sizeof *r->kept) == 0))
            return MN_OK;
    }
    if (run_bytes(r) > RUN_HARD) return too_much("bytes of states", RUN_HARD);
    MN_TRY(mem_grow(&r->states, &r->states_capacity, r->n_states + 1, sizeof *r->states));
    MN_TRY(mem_grow(&r->readings, &r->readings_capacity, r->n_readings + n, sizeof *r->readings));
    MN_TRY(mem_grow(&r->next, &r->next_capacity, (r->n_states + 1) * n_classes, sizeof *r->next));
    if (n) memcpy(r->readings + r->n_readings, r->kept, n * sizeof *r->kept);
    memset(r->next + r->n_states * n_classes, 0xFF, n_classes * sizeof *r->next); /* RUN_NO_STATE */
    *out = (uint32_t)r->n_states;
    r->states[r->n_states++] = (run_state){(uint32_t)r->n_readings, (uint32_t)n, RUN_NO_MASK, r->accepts};
    r->n_readings += n;
    r->state_table.slots[slot] = *out + 1;
    return MN_OK;
}

static mn_status finish_step(run *r, uint32_t *out) {
    while (r->n_work) MN_TRY(follow(r, r->work[--r->n_work]));
    return put_state(r, out);
}

mn_status run_step_slow(run *r, uint32_t state, unsigned class, uint32_t *out) {
    run_state s = r->states[state];
    uint8_t byte = r->g->sample[class];
    begin_step(r);
    for (uint32_t i = 0; i < s.n; i++) {
        uint64_t reading = r->readings[s.at + i];
        const net_node *node = &r->g->nodes[reading >> 32];
        if (node->lo <= byte && byte <= node->hi) MN_TRY(visit(r, node->next, (uint32_t)reading));
    }
    MN_TRY(finish_step(r, out));
    r->next[(size_t)state * r->g->n_classes + class] = *out;
    return MN_OK;
}

/* ---- opening ---- */

static mn_status put_first_states(run *r) {
    uint32_t empty, id;
    MN_TRY(put_frame(r, 0, NET_END, 0, false, &empty));
    begin_step(r);
    MN_TRY(put_state(r, &id));
    r->accepts = true;
    MN_TRY(put_state(r, &id));
    begin_step(r);
    MN_TRY(visit(r, r->g->root, empty));
    return finish_step(r, &r->start);
}

mn_status run_open(run *r, const net *g) {
    *r = (run){.g = g};
    r->seen = mem_alloc_raw(SEEN_SLOTS, sizeof *r->seen);
    r->stamp = mem_alloc(SEEN_SLOTS, sizeof *r->stamp);
    if (!r->seen || !r->stamp) return MN_E_NOMEM;
    return put_first_states(r);
}

/* The stack of `from` in `to`. No frame of a state is fresh. */
static mn_status move_frame(run *to, const run *from, uint32_t frame, uint32_t *frames) {
    while (frame && !frames[frame]) { /* from the lowest unknown one up */
        uint32_t lowest = frame;
        while (from->frames[lowest].parent && !frames[from->frames[lowest].parent])
            lowest = from->frames[lowest].parent;
        const run_frame *f = &from->frames[lowest];
        MN_TRY(put_frame(to, frames[f->parent], f->node, f->count, false, &frames[lowest]));
    }
    return MN_OK;
}

mn_status run_move(run *to, const run *from, uint32_t state, uint32_t *frames, uint32_t *out) {
    const run_state *s = &from->states[state];
    begin_step(to);
    MN_TRY(mem_grow(&to->kept, &to->kept_capacity, s->n, sizeof *to->kept));
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t reading = from->readings[s->at + i];
        uint32_t frame = (uint32_t)reading;
        MN_TRY(move_frame(to, from, frame, frames));
        to->kept[to->n_kept++] = reading_of((uint32_t)(reading >> 32), frame ? frames[frame] : 0);
    }
    to->accepts = s->accepts;
    return put_state(to, out);
}

size_t run_bytes(const run *r) {
    return r->n_frames * sizeof *r->frames + r->n_states * (sizeof *r->states + r->g->n_classes * sizeof *r->next) +
           r->n_readings * sizeof *r->readings;
}

void run_clear(run *r) {
    mem_free(r->frames);
    mem_free(r->states);
    mem_free(r->readings);
    mem_free(r->next);
    mem_free(r->frame_table.slots);
    mem_free(r->state_table.slots);
    mem_free(r->work);
    mem_free(r->seen);
    mem_free(r->stamp);
    mem_free(r->kept);
    *r = (run){0};
}
