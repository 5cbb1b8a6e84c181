/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/plan_rows.h"

#include "base/mem.h"
#include "base/num.h"
#include "kv/group.h"

enum {
    MOST_STEPS = 2048, /* the last ones of a phase: what is held grows, or repeats itself page by page */
    SPARE_SLICES = 8   /* of areas for pages read from the offload file, as in stage.c */
};

/* One entry between two steps. */
typedef struct plan_entry {
    kv_group group;
    int64_t quantized;        /* tokens */
    int64_t prompt_quantized; /* of them, those of the prompt, when the rows begin */
    size_t reserved[2];       /* pages that each row keeps */
} plan_entry;

/* Bytes of a step, as doubles: sums of products of large numbers have no end to check for. */
typedef struct step_bytes {
    double shared, own; /* pages of all rows once, pages of each */
    double replaced;    /* a part that has grown, while it is copied */
    double outgrown;    /* what a row's newest page had before as smaller parts */
    double slices,
        shared_slices; /* the largest entry's pages that are read from the offload file: of a row's own, of all rows' */
    double slice;      /* one of them */
} step_bytes;

static double whole_bytes(const kv_group *group, page_kind kind, int64_t n_pages) {
    return n_pages > 0 ? (double)n_pages * (double)group->page_bytes[kind] : 0;
}

/* Of a page, or of the rows' own part of one that begins at `split`, with tokens up to `fill`. */
static double open_bytes(const kv_group *group, int split, int fill) {
    if (fill <= split) return 0;
    part_plan part = part_for(group, NULL, 0, fill - split);
    int most = group->page_tokens - split, room = part.tokens ? part.tokens : group->page_tokens;
    return (double)part_bytes(group, room < most ? room : most);
}

/* Tokens that are quantized behind the step: the prompt is one call, each token behind it another (kv_call_begin). */
static int64_t quantized_at(plan_entry *e, int64_t prompt, int64_t from, int64_t to) {
    kv_group *group = &e->group;
    int64_t residual = from - e->quantized;
    group->flushes = to <= prompt || (residual >= 1 && residual + 1 >= group->spec.residual);
    return max_i64(e->quantized, group_quantize_target(group, to, to >= prompt));
}

/* Exact pages of a row of its own in a step: from the page of the fork on. */
static void add_own_exact(const plan_entry *e, int64_t prompt, int64_t from, int64_t to, int64_t first, step_bytes *b) {
    const kv_group *group = &e->group;
    const int64_t page = group->page_tokens, fork = prompt / page;
    const bool has_parts = e->reserved[PAGE_EXACT] == 0 && page % ATTEND_PART_TOKENS == 0;
    const bool has_base = has_parts && e->prompt_quantized < prompt; /* else no exact page was left to share */
    const int in_fork = (int)(prompt % page), split = has_base ? in_fork / ATTEND_PART_TOKENS * ATTEND_PART_TOKENS : 0;
    const bool is_offloaded = group->spec.is_offloaded && !group->is_coded; /* what was full before the step is */
    const int64_t end = ceil_div(to, page),
                  begin = max_i64(max_i64(first, is_offloaded ? from / page : e->quantized / page), fork);
    double own = 0;
    for (int64_t i = begin; i < end; i++) {
        if (i > fork && i < end - 1) { /* this one and those up to the last are whole */
            own += whole_bytes(group, PAGE_EXACT, end - 1 - i);
            i = end - 1;
        }
        int at = i == fork ? split : 0, now = (int)min_i64(page, to - i * page), was = (int)(from - i * page);
        double n_bytes = has_parts ? open_bytes(group, at, now) : (double)group->page_bytes[PAGE_EXACT];
        own += n_bytes;
        if (has_parts && now > at) b->outgrown += n_bytes - open_bytes(group, at, at + 1);
        if (has_parts && was > at && was < now && from > prompt) {
            double old = open_bytes(group, at, was);
            if (old < n_bytes) b->replaced += old;
        }
        bool keeps_base = i == fork && split > 0;
        if (keeps_base) b->shared += open_bytes(group, 0, in_fork);
    }
    double reserve = whole_bytes(group, PAGE_EXACT, (int64_t)e->reserved[PAGE_EXACT] - max_i64(0, fork - first));
    b->own += own > reserve ? own : reserve;
}

/* The newest exact page of the only row has grown since the prompt or since it was begun. */
static double outgrown_alone(const kv_group *group, int64_t prompt, int64_t to) {
    const int64_t begin = (to - 1) / group->page_tokens * group->page_tokens;
    if (to <= prompt) return 0;
    return open_bytes(group, 0, (int)(to - begin)) - open_bytes(group, 0, (int)max_i64(prompt - begin, 1));
}

static void add_slices(const kv_group *group, page_kind kind, double own, double shared, step_bytes *b) {
    double n_bytes = (double)group->page_bytes[kind], n = own + shared;
    if (n * n_bytes <= b->slices + b->shared_slices) return;
    b->slices = own * n_bytes;
    b->shared_slices = shared * n_bytes;
    b->slice = n_bytes;
}

/* What an entry holds in the step from `from` to `to` tokens of rows that share `prompt` tokens; alone: there is one
 * row. */
static void add_pages(plan_entry *e, int64_t prompt, int64_t from, int64_t to, bool alone, step_bytes *b) {
    const kv_group *group = &e->group;
    const int64_t page = group->page_tokens, first = visible_first(from, group->spec.window) / page;
    const int64_t quantized = quantized_at(e, prompt, from, to);
    const bool is_offloaded = group->spec.is_offloaded;
    const int64_t shared_end = alone ? ceil_div(to, page) : prompt / page;
    /* Shared by all: exact pages that are whole, coded ones that no row has changed. */
    int64_t exact_first = max_i64(first, e->quantized / page), exact_end = shared_end;
    int64_t full = min_i64(from / page, shared_end);
    double shared_exact = 0, shared_coded = 0, own_offloaded = 0;
    if (is_offloaded && !group->is_coded && full > exact_first) {
        shared_exact = (double)(full - exact_first);
        exact_first = full;
    }
    bool opens = alone && to % page && exact_end > exact_first && e->reserved[PAGE_EXACT] == 0;
    b->shared += whole_bytes(group, PAGE_EXACT, exact_end - exact_first - opens);
    if (opens) b->shared += open_bytes(group, 0, (int)(to % page));
    if (alone && exact_end > exact_first && e->reserved[PAGE_EXACT] == 0)
        b->outgrown += outgrown_alone(group, prompt, to);
    int64_t coded_end = ceil_div(alone ? quantized : e->prompt_quantized, page);
    bool changes = !alone && quantized > e->prompt_quantized && e->prompt_quantized % page;
    int64_t coded_shared = max_i64(0, coded_end - changes - first), coded_own = 0;
    if (!alone) coded_own = max_i64(0, ceil_div(quantized, page) - max_i64(first, coded_end - changes));
    if (is_offloaded && group->is_coded) { /* what was full before the step is offloaded */
        int64_t n_quantized = max_i64(0, e->quantized / page - first);
        shared_coded = (double)min_i64(n_quantized, coded_shared);
        own_offloaded = (double)n_quantized - shared_coded;
    }
    b->shared += whole_bytes(group, PAGE_CODED, coded_shared - (int64_t)shared_coded);
    double own_coded = whole_bytes(group, PAGE_CODED, coded_own - (int64_t)own_offloaded);
    if (is_offloaded && !group->is_coded && !alone)
        own_offloaded = (double)max_i64(0, from / page - max_i64(first, prompt / page));
    if (is_offloaded)
        add_slices(group, group->is_coded ? PAGE_CODED : PAGE_EXACT, own_offloaded, shared_exact + shared_coded, b);
    if (alone) {
        for (int kind = 0; kind < 2; kind++) {
            int64_t held = kind == PAGE_EXACT ? exact_end - exact_first : coded_shared;
            b->shared += whole_bytes(group, (page_kind)kind, (int64_t)e->reserved[kind] - held);
        }
    } else {
        double reserve = whole_bytes(group, PAGE_CODED, (int64_t)e->reserved[PAGE_CODED] - coded_shared);
        b->own += own_coded > reserve ? own_coded : reserve;
        add_own_exact(e, prompt, from, to, first, b);
    }
    double head = (double)group->page_bytes[PAGE_HEAD];
    *(alone || prompt >= group->head_tokens ? &b->shared : &b->own) += head;
    e->quantized = quantized;
}

/* States are kept of steps; the one that a step writes is there beside them. */
static void add_states(const plan_entry *e, int64_t n_before, int64_t prompt_steps, bool alone, step_bytes *b) {
    double n_bytes = (double)e->group.page_bytes[PAGE_EXACT],
           kept = (double)min_i64(n_before, e->group.spec.checkpoints + 1);
    double own = alone ? 0 : (double)min_i64(n_before - prompt_steps, e->group.spec.checkpoints + 1);
    b->shared += (kept - own) * n_bytes + (alone ? n_bytes : 0);
    if (!alone) b->own += (own + 1) * n_bytes;
}

/* Of entries that are written once, beside the steps. */
static double once_bytes(const kv_spec *spec, const kv_options *options, int64_t n) {
    return (double)kv_plan_bytes(spec, 1, options, n);
}

typedef struct planner {
    plan_entry *entries;
    const kv_spec *specs;
    const kv_options *options;
    const kv_run *run;
    int n;
    double areas[2]; /* bytes of each area of the first row, and of each other row */
} planner;

/* An area that is too small is made anew with room for what comes next. */
static void grow_area(double *area, double needed, double slice) {
    double spare = SPARE_SLICES * slice;
    if (needed > *area) *area = needed + (needed < spare ? needed : spare);
}

/* Both areas of each row. The first one reads what all share. */
static double area_bytes(planner *p, const step_bytes *b, double rows) {
    grow_area(&p->areas[0], b->slices + b->shared_slices, b->slice);
    grow_area(&p->areas[1], b->slices, b->slice);
    return 2 * (p->areas[0] + (rows - 1) * p->areas[1]);
}

static size_t as_size(double n) {
    return n < (double)SIZE_MAX / 2 ? (size_t)n : SIZE_MAX;
}

static double bytes_of_step(planner *p, int64_t from, int64_t to, kv_run_bytes *out) {
    const int64_t prompt = p->run->prompt, prompt_steps = ceil_div(prompt, p->run->chunk);
    const bool alone = to <= prompt || p->run->rows == 1;
    const double rows = alone ? 1 : (double)p->run->rows;
    step_bytes b = {0};
    for (int i = 0; i < p->n; i++) {
        if (p->specs[i].write_once) {
            b.shared += once_bytes(&p->specs[i], p->options, p->run->cross);
        } else if (p->specs[i].kind == KV_STATE) {
            int64_t steps = from < prompt ? from / p->run->chunk : prompt_steps + from - prompt;
            add_states(&p->entries[i], steps, prompt_steps, alone, &b);
        } else {
            add_pages(&p->entries[i], prompt, from, to, alone, &b);
        }
    }
    size_t outgrown = as_size(rows * b.outgrown);
    if (outgrown > out->outgrown) out->outgrown = outgrown;
    return b.shared + rows * b.own + b.replaced + area_bytes(p, &b, rows);
}

static void walk(planner *p, kv_run_bytes *out) {
    const int64_t prompt = p->run->prompt, chunk = p->run->chunk, own = p->run->own;
    double most = 0;
    int64_t from = max_i64(0, (ceil_div(prompt, chunk) - MOST_STEPS) * chunk);
    for (; from < prompt; from += chunk) {
        double n_bytes = bytes_of_step(p, from, min_i64(from + chunk, prompt), out);
        if (n_bytes > most) most = n_bytes;
    }
    out->prompt = as_size(most);
    for (int i = 0; i < p->n; i++) p->entries[i].prompt_quantized = p->entries[i].quantized;
    p->areas[1] = 0;
    for (int64_t n = max_i64(0, own - MOST_STEPS); n < own; n++) {
        double n_bytes = bytes_of_step(p, prompt + n, prompt + n + 1, out);
        if (out->rows < as_size(n_bytes)) out->rows = as_size(n_bytes);
    }
}

static mn_status open_entry(plan_entry *e, const kv_spec *spec, const kv_options *options) {
    MN_TRY(group_open(&e->group, spec, options));
    for (int kind = 0; kind < N_PAGE_KINDS; kind++) e->group.page_bytes[kind] = e->group.entry_bytes[kind];
    int64_t reserve = spec->kind == KV_STATE ? 0 : group_reserve(&e->group, options);
    if (reserve) group_most_pages(&e->group, reserve, e->reserved);
    return MN_OK;
}

mn_status kv_plan_run(kv_run_bytes *out, const kv_spec *specs, int n_entries, const kv_options *options,
                      const kv_run *run) {
    *out = (kv_run_bytes){0};
    planner p = {.specs = specs, .options = options, .run = run};
    p.entries = mem_alloc((size_t)n_entries, sizeof *p.entries);
    mn_status status = p.entries ? MN_OK : MN_E_NOMEM;
    for (; status == MN_OK && p.n < n_entries; p.n++) status = open_entry(&p.entries[p.n], &specs[p.n], options);
    if (status == MN_OK) walk(&p, out);
    for (int i = 0; i < p.n; i++) group_close(&p.entries[i].group, NULL);
    mem_free(p.entries);
    return status;
}
