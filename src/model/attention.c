/* SPDX-License-Identifier: Apache-2.0 */
#include "model/attention.h"

#include <string.h>

#include "base/mem.h"

enum { TILE_ROWS = 96 }; /* query rows of a task */

/* A task's buffers in its thread's scratch. */
typedef struct attend_buffers {
    float *q, *slot_q, *q_for_quantized; /* [rows][k_dim] */
    int64_t *first, *last, *head_first;  /* [rows]; head_first: their first visible token in the head page */
    attend_state total, part;
    void *kernel;
    char *page;  /* dequantized keys and values of one head, as a float32 page */
    float *rows; /* [page_tokens][k_dim + v_dim] the same by tokens */
} attend_buffers;

static int tile_tokens(int group) {
    return group >= TILE_ROWS ? 1 : TILE_ROWS / group;
}

/* The next n bytes of scratch, aligned to a cache line; NULL where sizes are only added up. */
static void *carve(char *scratch, size_t *used, size_t n) {
    void *place = scratch ? scratch + *used : NULL;
    *used += (n + 63) / 64 * 64;
    return place;
}

/* Pointers into scratch, and in *used their bytes. With scratch NULL only the bytes. */
static attend_buffers carve_buffers(char *scratch, size_t *used, int n_rows, int k_dim, int v_dim, int page_tokens) {
    size_t n = (size_t)n_rows, f = sizeof(float);
    size_t page_bytes = (size_t)page_tokens * (size_t)(k_dim + v_dim) * f;
    attend_buffers b;
    *used = 0;
    float **queries[] = {&b.q, &b.slot_q, &b.q_for_quantized};
    for (int i = 0; i < 3; i++) *queries[i] = carve(scratch, used, n * (size_t)k_dim * f);
    int64_t **positions[] = {&b.first, &b.last, &b.head_first};
    for (int i = 0; i < 3; i++) *positions[i] = carve(scratch, used, n * sizeof **positions[i]);
    attend_state *states[] = {&b.total, &b.part};
    for (int i = 0; i < 2; i++) {
        states[i]->m = carve(scratch, used, n * f);
        states[i]->l = carve(scratch, used, n * f);
        states[i]->acc = carve(scratch, used, n * (size_t)v_dim * f);
    }
    b.page = carve(scratch, used, page_bytes);
    b.rows = carve(scratch, used, page_bytes);
    b.kernel = carve(scratch, used, 0);
    return b;
}

size_t attention_scratch_bytes(int group, int k_dim, int v_dim, int page_tokens) {
    int n_rows = tile_tokens(group) * group;
    size_t used;
    carve_buffers(NULL, &used, n_rows, k_dim, v_dim, page_tokens);
    return used + attend_scratch_bytes(n_rows, k_dim, v_dim, page_tokens);
}

typedef struct attend_plan {
    compute *c;
    const attend_shape *shape;
    const attend_rows *rows;
    attend_space *space;
    int n_rows;       /* sequences */
    int group;        /* query heads of a KV head */
    int tile;         /* query tokens computed together */
    bool by_segments; /* every sequence has one tile: the work is divided by segments of the cache instead */
    const int *first_store, *first_task; /* [n_rows + 1] storing and attention tasks before each sequence */
} attend_plan;

static int segment_tokens(const kv_view *view) {
    return ATTEND_SEGMENT_PAGES * view->page_tokens;
}

/* Parts of a cache whose results are merged in order: the head page, if any, then the segments of the table, from
 * *first on, with a token that queries at positions [begin, end) see. */
static int segment_range(const kv_view *view, int64_t begin, int64_t end, int64_t *first) {
    *first = max_i64(visible_first(begin, view->spec->window) / segment_tokens(view),
                     view->first_page / ATTEND_SEGMENT_PAGES);
    return (view->n_head > 0) + (int)((end - 1) / segment_tokens(view) + 1 - *first);
}

/* The end of the tokens that queries up to t_end see. */
static int64_t seen_end(const attend_rows *row, int t_end) {
    return row->seen ? row->seen : row->position + t_end;
}

static int row_segments(const attend_rows *row) {
    kv_view view = kv_attention_view(row->cache, row->entry);
    int64_t first;
    return segment_range(&view, row->position, seen_end(row, row->n), &first);
}

static void state_reset(const attend_state *state, int n_rows, int v_dim) {
    for (int r = 0; r < n_rows; r++) state->m[r] = -__builtin_inff();
    memset(state->l, 0, (size_t)n_rows * sizeof *state->l);
    memset(state->acc, 0, (size_t)n_rows * (size_t)v_dim * sizeof *state->acc);
}

static void copy_queries(const attend_plan *plan, float *to, const float *from) {
    size_t n = (size_t)plan->group * (size_t)plan->shape->head_dim;
    memcpy(to, from, n * sizeof *to);
    plan->c->kernels.scale(to, plan->shape->scale, n);
}

/* The scaled queries of a tile in every form that its pages need, and the tokens that each sees. */
static int fill_tile(const attend_plan *plan, const attend_rows *row, int head, int t_begin, int t_end,
                     const kv_spec *spec, attend_buffers *b) {
    const attend_shape *shape = plan->shape;
    int n = 0, dim = shape->head_dim;
    ptrdiff_t of_head = (ptrdiff_t)head * plan->group * dim, width = (ptrdiff_t)shape->n_heads * dim;
    for (int t = t_begin; t < t_end; t++) {
        ptrdiff_t at = (ptrdiff_t)n * dim;
        copy_queries(plan, b->q + at, row->qkv + t * shape->stride + of_head);
        if (spec->sinks) copy_queries(plan, b->slot_q + at, row->slot_q + t * width + of_head);
        if (kv_form_is_coded(spec->key))
            copy_queries(plan, b->q_for_quantized + at, row->q_for_quantized + t * width + of_head);
        for (int g = 0; g < plan->group; g++, n++) {
            b->last[n] = row->seen ? row->seen - 1 : row->position + t;
            b->first[n] = visible_first(b->last[n], spec->window);
            b->head_first[n] = spec->sinks ? 0 : b->first[n];
        }
    }
    return n;
}

/* The common part of all jobs over pages of one entry. */
static attend_job job_over(const attend_plan *plan, const kv_view *view, int head, int n_rows, const attend_buffers *b,
                           attend_state state, const kv_place *place) {
    return (attend_job){
        .k_offset = place->k_offset + (size_t)head * place->k_head_bytes,
        .v_offset = place->v_offset + (size_t)head * place->v_head_bytes,
        .page_tokens = view->page_tokens,
        .k_dim = view->spec->k_dim,
        .v_dim = view->spec->v_dim,
        .n_rows = n_rows,
        .q = b->q,
        .first = b->first,
        .last = b->last,
        .hi = INT64_MAX,
        .softcap = plan->shape->softcap,
        .state = state,
        .scratch = b->kernel,
    };
}

static void attend_exact(const attend_plan *plan, const kv_view *view, const attend_job *job) {
    if (view->spec->exact == KV_F32) {
        plan->c->kernels.attend_f32(job);
    } else {
        plan->c->kernels.attend_bf16(job);
    }
}

static void attend_head(const attend_plan *plan, const kv_view *view, int head, int n_rows, const attend_buffers *b,
                        attend_state state) {
    attend_job job = job_over(plan, view, head, n_rows, b, state, &view->head_place);
    job.pages = &view->head;
    job.n_pages = 1;
    job.page_tokens = view->head_page_tokens;
    job.hi = view->n_head;
    job.first = b->head_first;
    if (view->spec->sinks) job.q = b->slot_q;
    attend_exact(plan, view, &job);
}

/* Dequantizes one page and head into a float32 page for the job: its first n tokens, then zeros. */
static void dequantize_page(const attend_plan *plan, const attend_job *job, const char *page, int n,
                            const attend_buffers *b) {
    size_t k_dim = (size_t)job->k_dim, v_dim = (size_t)job->v_dim, tokens = (size_t)job->page_tokens;
    float *k = b->rows, *v = b->rows + tokens * k_dim;
    code_decode(job->key_codes, page + job->k_offset, k, 0, n);
    code_decode(job->value_codes, page + job->v_offset, v, 0, n);
    memset(k + (size_t)n * k_dim, 0, (tokens - (size_t)n) * k_dim * sizeof *k);
    memset(v + (size_t)n * v_dim, 0, (tokens - (size_t)n) * v_dim * sizeof *v);
    store_job store = {.keys = b->page,
                       .values = b->page + tokens * k_dim * sizeof *k,
                       .page_tokens = job->page_tokens,
                       .n = job->page_tokens,
                       .k_dim = job->k_dim,
                       .v_dim = job->v_dim,
                       .k = k,
                       .v = v,
                       .k_stride = job->k_dim,
                       .v_stride = job->v_dim};
    plan->c->kernels.store_f32(&store);
}

/* In float32 computation queries are not quantized: pages are dequantized one by one. */
static void attend_dequantized(const attend_plan *plan, const attend_job *whole, const attend_buffers *b) {
    for (int i = 0; i < whole->n_pages; i++) {
        attend_job job = *whole;
        const char *page = b->page;
        job.position += (int64_t)i * job.page_tokens;
        dequantize_page(plan, whole, whole->pages[i], (int)min_i64(job.page_tokens, job.hi - job.position), b);
        job.pages = &page;
        job.n_pages = 1;
        job.next = NULL;
        job.k_offset = 0;
        job.v_offset = (size_t)job.page_tokens * (size_t)job.k_dim * sizeof(float);
        plan->c->kernels.attend_f32(&job);
    }
}

static void attend_quantized(const attend_plan *plan, const kv_view *view, const attend_job *job,
                             const attend_buffers *b) {
    if (view->spec->exact == KV_F32 && job->key_codes && job->value_codes) {
        attend_dequantized(plan, job, b);
    } else {
        plan->c->kernels.attend_codes(job);
    }
}

/* Pages [i, i + n) of the table, all exact or all quantized, from position lo up to hi. Of exact ones only the last may
 * have several parts. */
static void attend_pages(const attend_plan *plan, const kv_view *view, int head, int n_rows, const attend_buffers *b,
                         attend_state state, bool coded, int64_t i, int n, int64_t lo, int64_t hi, const char *follow) {
    const kv_spec *spec = view->spec;
    const char *const *pages = coded ? view->coded : view->exact;
    attend_job job = job_over(plan, view, head, n_rows, b, state, coded ? &view->coded_place : &view->exact_place);
    attend_part parts[ATTEND_PARTS];
    job.pages = pages + i;
    job.n_pages = n;
    job.next = follow ? follow - job.k_offset : i + n < view->n_pages ? pages[i + n] : NULL;
    if (!coded) {
        job.n_parts = kv_parts(view, i + n - 1, head, parts);
        job.parts = job.n_parts ? parts : NULL;
    }
    job.position = (view->first_page + i) * view->page_tokens;
    job.lo = lo > view->n_head ? lo : view->n_head;
    job.hi = hi;
    if (!coded) {
        attend_exact(plan, view, &job);
        return;
    }
    if (view->key_codes) job.q = b->q_for_quantized;
    job.key_codes = view->key_codes ? &view->key_codes[head] : NULL;
    job.value_codes = view->value_codes ? &view->value_codes[head] : NULL;
    job.exact_bf16 = spec->exact == KV_BF16;
    attend_quantized(plan, view, &job, b);
}

/* Tokens of a page that the queries of a tile read quantized. */
static int page_quantized(const kv_view *view, int64_t i, int64_t early) {
    bool is_early = view->n_quantized[i] == 0 && (view->first_page + i + 1) * view->page_tokens <= early;
    return is_early ? view->page_tokens : view->n_quantized[i];
}

static bool in_parts(const kv_view *view, int64_t i) {
    return view->pages[i] && view->pages[i]->tokens;
}

/* Transformed values are summed as they are; the transform is its own inverse. */
static void rotate_sums(const attend_plan *plan, const kv_spec *spec, int n_rows, attend_state state, bool *rotated,
                        bool should_rotate) {
    if (*rotated != should_rotate) plan->c->kernels.hadamard(state.acc, n_rows, spec->v_dim);
    *rotated = should_rotate;
}

/* Attention of the query rows in b over one part of the cache, into `state` (which is reset first). follow: keys to
 * prefetch for the work after it; NULL: those of the next page. */
static void attend_segment(const attend_plan *plan, const kv_view *view, int head, int64_t segment, int n_rows,
                           const attend_buffers *b, attend_state state, const char *follow) {
    state_reset(&state, n_rows, view->spec->v_dim);
    if (segment < 0) {
        attend_head(plan, view, head, n_rows, b, state);
        return;
    }
    int page_tokens = view->page_tokens;
    int64_t begin = max_i64(segment * ATTEND_SEGMENT_PAGES - view->first_page, 0);
    int64_t end = min_i64((segment + 1) * ATTEND_SEGMENT_PAGES - view->first_page, view->n_pages);
    int64_t early = kv_quantized_for(view, b->last[0]);
    const kv_spec *spec = view->spec;
    const bool rotates = kv_form_is_coded(spec->value) && kv_form_rotates(spec->value, false, false);
    /* Empty sums are 0. */
    bool rotated = rotates && begin < end && page_quantized(view, begin, early) > 0;
    for (int64_t i = begin; i < end;) {
        int quantized = page_quantized(view, i, early), n = 1;
        bool whole = quantized == 0 || quantized == page_tokens;
        while (whole && i + n < end && page_quantized(view, i + n, early) == quantized &&
               !(quantized == 0 && in_parts(view, i + n - 1)))
            n++;
        int64_t border = (view->first_page + i) * page_tokens + quantized;
        if (quantized > 0) {
            rotate_sums(plan, spec, n_rows, state, &rotated, rotates);
            attend_pages(plan, view, head, n_rows, b, state, true, i, n, 0, whole ? INT64_MAX : border,
                         i + n < end ? NULL : follow);
        }
        if (quantized < page_tokens) {
            rotate_sums(plan, spec, n_rows, state, &rotated, false);
            attend_pages(plan, view, head, n_rows, b, state, false, i, n, border, INT64_MAX,
                         i + n < end ? NULL : follow);
        }
        i += n;
    }
    rotate_sums(plan, spec, n_rows, state, &rotated, false);
}

/* Normalizes the rows of a tile and writes them as input of the output projection. */
static void finish_tile(const attend_plan *plan, const attend_rows *row, int head, int t_begin, int t_end,
                        const attend_state *total) {
    int group = plan->group, dim = plan->shape->head_dim;
    for (int t = t_begin; t < t_end; t++) {
        size_t at = (size_t)(t - t_begin) * (size_t)group;
        attend_state one = {total->m + at, total->l + at, total->acc + at * (size_t)dim};
        float *out = row->out + ((size_t)t * (size_t)plan->shape->n_heads + (size_t)head * (size_t)group) * (size_t)dim;
        plan->c->kernels.attend_finish(out, &one, group, dim);
    }
}

/* Number of part i: -1 for the head page, else a segment of the table. */
static int64_t part_segment(const kv_view *view, int64_t first, int i) {
    return view->n_head == 0 ? first + i : i == 0 ? -1 : first + i - 1;
}

/* A tile of query tokens over the whole visible cache. */
static void attend_tile(const attend_plan *plan, const attend_rows *row, int head, int t_begin, int t_end,
                        char *scratch) {
    kv_view view = kv_attention_view(row->cache, row->entry);
    int dim = plan->shape->head_dim;
    size_t used;
    attend_buffers b = carve_buffers(scratch, &used, (t_end - t_begin) * plan->group, dim, dim, view.page_tokens);
    int n_rows = fill_tile(plan, row, head, t_begin, t_end, view.spec, &b);
    int64_t first;
    int n = segment_range(&view, row->position + t_begin, seen_end(row, t_end), &first);
    state_reset(&b.total, n_rows, dim);
    for (int i = 0; i < n; i++) {
        attend_segment(plan, &view, head, part_segment(&view, first, i), n_rows, &b, b.part, NULL);
        plan->c->kernels.attend_merge(&b.total, &b.part, n_rows, dim);
    }
    finish_tile(plan, row, head, t_begin, t_end, &b.total);
}

/* The most parts that any entry, with a window or without, may have until the cache takes another page. Space is sized
 * for it, so that it does not grow at every token. */
static int64_t most_segments(const attend_rows *row) {
    int64_t most = 0;
    for (int entry = 0; entry < kv_entries(row->cache); entry++) {
        kv_view view = kv_attention_view(row->cache, entry);
        if (view.spec->kind != KV_PAGES) continue;
        int64_t pages = view.spec->write_once ? view.n_pages
                        : view.spec->window   ? view.n_pages + 2
                                              : ceil_div(kv_room(row->cache), view.page_tokens);
        most = max_i64(most, ceil_div(pages, ATTEND_SEGMENT_PAGES) + 2);
    }
    return most;
}

static size_t part_floats(const attend_shape *shape, int n_rows) {
    return (size_t)n_rows * (size_t)(shape->head_dim + 2);
}

static attend_state part_state(float *place, int n_rows) {
    return (attend_state){place, place + n_rows, place + 2 * (ptrdiff_t)n_rows};
}

/* One part for all new tokens of a sequence; the thread that finishes last merges the parts in order. */
static void attend_one_segment(const attend_plan *plan, const attend_rows *row, int head, int i_segment, float *parts,
                               _Atomic int *pending, const char *follow, char *scratch) {
    kv_view view = kv_attention_view(row->cache, row->entry);
    int dim = plan->shape->head_dim, n_rows = row->n * plan->group;
    size_t part = part_floats(plan->shape, n_rows);
    size_t used;
    attend_buffers b = carve_buffers(scratch, &used, n_rows, dim, dim, view.page_tokens);
    fill_tile(plan, row, head, 0, row->n, view.spec, &b);
    int64_t first;
    int n = segment_range(&view, row->position, seen_end(row, row->n), &first);
    attend_segment(plan, &view, head, part_segment(&view, first, i_segment), n_rows, &b,
                   part_state(parts + (size_t)i_segment * part, n_rows), follow);
    if (atomic_fetch_sub_explicit(pending, 1, memory_order_acq_rel) != 1) return;
    state_reset(&b.total, n_rows, dim);
    for (int i = 0; i < n; i++) {
        attend_state one = part_state(parts + (size_t)i * part, n_rows);
        plan->c->kernels.attend_merge(&b.total, &one, n_rows, dim);
    }
    finish_tile(plan, row, head, 0, row->n, &b.total);
}

/* The segment and head of a task. */
typedef struct segment_task {
    int row, head, segment, n_segments;
} segment_task;

static segment_task find_segment(const attend_plan *plan, int row, int task) {
    while (task >= plan->first_task[row + 1]) row++;
    int n = (plan->first_task[row + 1] - plan->first_task[row]) / plan->shape->n_kv_heads;
    task -= plan->first_task[row];
    return (segment_task){row, task / n, task % n, n};
}

/* The first keys that a task reads; NULL: its head page, which is small. */
static const char *segment_keys(const attend_plan *plan, const segment_task *task) {
    const attend_rows *row = &plan->rows[task->row];
    kv_view view = kv_attention_view(row->cache, row->entry);
    int64_t first;
    segment_range(&view, row->position, seen_end(row, row->n), &first);
    int64_t segment = part_segment(&view, first, task->segment);
    if (segment < 0) return NULL;
    int64_t i = max_i64(segment * ATTEND_SEGMENT_PAGES - view.first_page, 0);
    bool coded = view.n_quantized[i] > 0;
    const kv_place *place = coded ? &view.coded_place : &view.exact_place;
    const char *page = coded ? view.coded[i] : view.exact[i];
    return page ? page + place->k_offset + (size_t)task->head * place->k_head_bytes : NULL;
}

static void attend_segment_task(const attend_plan *plan, int task, char *scratch) {
    const attend_shape *shape = plan->shape;
    segment_task own = find_segment(plan, 0, task);
    const attend_rows *row = &plan->rows[own.row];
    const char *follow = NULL; /* threads take tasks in turn, about */
    if (task + plan->c->n_threads < plan->first_task[plan->n_rows]) {
        segment_task next = find_segment(plan, own.row, task + plan->c->n_threads);
        follow = segment_keys(plan, &next);
    }
    float *parts = plan->space->parts;
    for (int i = 0; i < own.row; i++) {
        size_t n = (size_t)(plan->first_task[i + 1] - plan->first_task[i]);
        parts += n * part_floats(shape, plan->rows[i].n * plan->group);
    }
    parts += (size_t)(own.head * own.n_segments) * part_floats(shape, row->n * plan->group);
    attend_one_segment(plan, row, own.head, own.segment, parts,
                       &plan->space->pending[own.row * shape->n_kv_heads + own.head], follow, scratch);
}

static void attend_task(void *arg, int task, int thread) {
    const attend_plan *plan = arg;
    char *scratch = plan->c->scratch[thread];
    if (plan->by_segments) {
        attend_segment_task(plan, task, scratch);
        return;
    }
    int i = 0;
    while (task >= plan->first_task[i + 1]) i++;
    const attend_rows *row = &plan->rows[i];
    int tile = plan->tile, n_tiles = (int)ceil_div(row->n, tile), n_heads = plan->shape->n_kv_heads;
    task -= plan->first_task[i];
    /* The last tiles see most tokens: they go first, so that no thread ends with a long one. */
    int begin = (n_tiles - 1 - task / n_heads) * tile, end = begin + tile < row->n ? begin + tile : row->n;
    attend_tile(plan, row, task % n_heads, begin, end, scratch);
}

/* The queries of one token and KV head in the additional forms for sinks and quantized keys. Called before and after
 * rotation. */
static void keep_slot_queries(const attend_plan *plan, const attend_rows *row, int t, int head, const float *q) {
    const attend_shape *shape = plan->shape;
    size_t dim = (size_t)shape->head_dim, n = (size_t)plan->group * dim, half = (size_t)shape->rotary / 2;
    float *to = row->slot_q + ((size_t)t * (size_t)shape->n_heads + (size_t)(head * plan->group)) * dim;
    memcpy(to, q, n * sizeof *q);
    for (int g = 0; g < plan->group; g++, to += dim) {
        if (shape->q_norm) plan->c->kernels.rms_norm(to, to, shape->q_norm, shape->head_dim, shape->norm_eps);
        plan->c->kernels.rope(to, row->slot_cos + (size_t)t * half, row->slot_sin + (size_t)t * half, (int)half);
    }
}

static void store_q_for_quantized(const attend_plan *plan, const attend_rows *row, const kv_view *view, int t, int head,
                                  const float *q) {
    const attend_shape *shape = plan->shape;
    const kernel_table *kernels = &plan->c->kernels;
    size_t dim = (size_t)shape->head_dim, n = (size_t)plan->group * dim;
    float *to = row->q_for_quantized + ((size_t)t * (size_t)shape->n_heads + (size_t)(head * plan->group)) * dim;
    if (view->calibration && kv_form_takes_calibration(view->spec->key, true)) {
        kernels->fit_product(to, q, view->calibration[head].turn, plan->group, (int)dim, (int)dim);
        return;
    }
    memcpy(to, q, n * sizeof *q);
    if (kv_form_rotates(view->spec->key, true, false)) kernels->hadamard(to, plan->group, (int)dim);
}

static void rotate_head(const attend_plan *plan, float *x, const float *norm, const float *cos, const float *sin) {
    const attend_shape *shape = plan->shape;
    if (norm) plan->c->kernels.rms_norm(x, x, norm, shape->head_dim, shape->norm_eps);
    plan->c->kernels.rope(x, cos, sin, shape->rotary / 2);
}

/* Pages of the cache that receive the new tokens of a sequence; without new keys there is one task. */
static int pages_touched(const attend_rows *row, int page_tokens) {
    if (row->is_cross) return 1;
    return (int)((row->position + row->n - 1) / page_tokens - row->position / page_tokens) + 1;
}

/* Collects keys of one page and their queries for calibration; the page of the first token is left out. */
static void calibrate(const attend_plan *plan, const attend_rows *row, int head, int begin, int end) {
    const attend_shape *shape = plan->shape;
    kv_view view = kv_attention_view(row->cache, row->entry);
    if (row->position + begin < view.page_tokens) return;
    const float *keys = row->qkv + begin * shape->stride + (ptrdiff_t)(shape->n_heads + head) * shape->head_dim;
    kv_calibration_add_keys(row->calibrator, row->entry, head, keys, shape->stride, end - begin);
    for (int t = begin; t < end; t++) {
        const float *queries = row->qkv + t * shape->stride + (ptrdiff_t)(head * plan->group) * shape->head_dim;
        kv_calibration_add_queries(row->calibrator, row->entry, head, queries, plan->group);
    }
}

/* Queries of one KV head for cross attention. */
static void prepare_queries(const attend_plan *plan, const attend_rows *row, const kv_view *view, int head) {
    if (!kv_form_is_coded(view->spec->key)) return;
    for (int t = 0; t < row->n; t++) {
        const float *queries =
            row->qkv + t * plan->shape->stride + (ptrdiff_t)(head * plan->group) * plan->shape->head_dim;
        store_q_for_quantized(plan, row, view, t, head, queries);
    }
}

/* Rotates and stores one KV head (and its query heads) for the tokens of one page. */
static void store_task(void *arg, int task, int thread) {
    (void)thread;
    const attend_plan *plan = arg;
    const attend_shape *shape = plan->shape;
    int i = 0;
    while (task >= plan->first_store[i + 1]) i++;
    task -= plan->first_store[i];
    const attend_rows *row = &plan->rows[i];
    kv_view view = kv_attention_view(row->cache, row->entry);
    int page_tokens = view.page_tokens;
    int head = task % shape->n_kv_heads, dim = shape->head_dim, half = shape->rotary / 2;
    if (row->is_cross) {
        prepare_queries(plan, row, &view, head);
        return;
    }
    int64_t page_begin = (row->position / page_tokens + task / shape->n_kv_heads) * page_tokens;
    int begin = (int)max_i64(page_begin - row->position, 0);
    int end = (int)min_i64(page_begin + page_tokens - row->position, row->n);
    ptrdiff_t key = (ptrdiff_t)(shape->n_heads + head) * dim, value = key + (ptrdiff_t)shape->n_kv_heads * dim;
    for (int t = begin; t < end; t++) {
        float *x = row->qkv + t * shape->stride, *queries = x + (ptrdiff_t)(head * plan->group) * dim;
        const float *cos = row->cos + (ptrdiff_t)t * half, *sin = row->sin + (ptrdiff_t)t * half;
        if (view.spec->sinks) keep_slot_queries(plan, row, t, head, queries);
        for (int g = 0; g < plan->group; g++) {
            rotate_head(plan, queries + (ptrdiff_t)g * dim, shape->q_norm, cos, sin);
        }
        if (kv_form_is_coded(view.spec->key)) store_q_for_quantized(plan, row, &view, t, head, queries);
        rotate_head(plan, x + key, shape->k_norm, cos, sin);
    }
    if (row->calibrator) calibrate(plan, row, head, begin, end);
    kv_append(row->cache, &plan->c->kernels, row->entry, head, begin, end, row->qkv + key, row->qkv + value,
              shape->stride, shape->stride);
}

/* All queries of a tile must see the same tokens quantized: where some are quantized in this step, a tile lies inside a
 * unit. */
static int choose_tile(const attend_shape *shape, const attend_rows *rows, int n_rows) {
    int tile = tile_tokens(shape->n_heads / shape->n_kv_heads);
    for (int i = 0; i < n_rows; i++) {
        int unit = kv_spans_units(rows[i].cache) ? kv_unit(rows[i].cache) : 0;
        while (unit && unit % tile) tile--;
    }
    return tile;
}

static bool cut_by_segments(const attend_shape *shape, const attend_rows *rows, int n_rows) {
    int tile = choose_tile(shape, rows, n_rows);
    for (int i = 0; i < n_rows; i++) {
        if (rows[i].n > tile) return false;
    }
    return true;
}

/* Queries in further forms, for rows whose caches have entries that need them. */
static mn_status reserve_queries(attend_space *space, const attend_shape *shape, attend_rows *rows, int n_rows) {
    size_t width = (size_t)shape->n_heads * (size_t)shape->head_dim, floats = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) MN_TRY(mem_grow(&space->queries, &space->queries_capacity, floats, sizeof *space->queries));
        floats = 0;
        for (int i = 0; i < n_rows; i++) {
            bool slot = rows[i].has_slots, coded = false;
            for (int entry = 0; entry < kv_entries(rows[i].cache); entry++) {
                const kv_spec *spec = kv_entry_spec(rows[i].cache, entry);
                coded |= spec->kind == KV_PAGES && kv_form_is_coded(spec->key);
            }
            rows[i].slot_q = slot && pass ? space->queries + floats : NULL;
            floats += slot ? (size_t)rows[i].n * width : 0;
            rows[i].q_for_quantized = coded && pass ? space->queries + floats : NULL;
            floats += coded ? (size_t)rows[i].n * width : 0;
        }
        if (floats == 0) return MN_OK;
    }
    return MN_OK;
}

mn_status attend_space_reserve(attend_space *space, const attend_shape *shape, attend_rows *rows, int n_rows) {
    MN_TRY(reserve_queries(space, shape, rows, n_rows));
    MN_TRY(mem_grow(&space->first_tasks, &space->first_tasks_capacity, 2 * ((size_t)n_rows + 1),
                    sizeof *space->first_tasks));
    size_t floats = 0;
    if (!cut_by_segments(shape, rows, n_rows)) return MN_OK;
    for (int i = 0; i < n_rows; i++) {
        int query_rows = rows[i].n * (shape->n_heads / shape->n_kv_heads);
        floats += (size_t)most_segments(&rows[i]) * (size_t)shape->n_kv_heads * part_floats(shape, query_rows);
    }
    MN_TRY(mem_grow(&space->parts, &space->parts_capacity, floats, sizeof *space->parts));
    return mem_grow(&space->pending, &space->pending_capacity, (size_t)n_rows * (size_t)shape->n_kv_heads,
                    sizeof *space->pending);
}

void attend_space_clear(attend_space *space) {
    mem_free(space->parts);
    mem_free(space->queries);
    mem_free(space->pending);
    mem_free(space->quantize);
    mem_free(space->first_tasks);
    *space = (attend_space){0};
}

void compute_attention(compute *c, const attend_shape *shape, const attend_rows *rows, int n_rows,
                       attend_space *space) {
    attend_plan plan = {.c = c, .shape = shape, .rows = rows, .space = space, .n_rows = n_rows};
    int *first_store = space->first_tasks, *first_task = first_store + n_rows + 1;
    plan.first_store = first_store;
    plan.first_task = first_task;
    plan.group = shape->n_heads / shape->n_kv_heads;
    plan.tile = choose_tile(shape, rows, n_rows);
    plan.by_segments = cut_by_segments(shape, rows, n_rows);
    int n_new = 0;
    bool is_calibrated = false;
    first_store[0] = first_task[0] = 0;
    for (int i = 0; i < n_rows; i++) {
        kv_stage(rows[i].cache, rows[i].entry);
        int n_pages = pages_touched(&rows[i], kv_attention_view(rows[i].cache, rows[i].entry).page_tokens);
        first_store[i + 1] = first_store[i] + n_pages * shape->n_kv_heads;
        n_new += rows[i].n;
        is_calibrated = is_calibrated || rows[i].calibrator;
        int n_parts = (int)ceil_div(rows[i].n, plan.tile);
        if (plan.by_segments) {
            n_parts = row_segments(&rows[i]);
            for (int h = 0; h < shape->n_kv_heads; h++) {
                atomic_store_explicit(&space->pending[i * shape->n_kv_heads + h], n_parts, memory_order_relaxed);
            }
        }
        first_task[i + 1] = first_task[i] + n_parts * shape->n_kv_heads;
    }
    /* When keys are collected, one thread has the sums of a head. */
    compute_tasks(c, first_store[n_rows], is_calibrated ? 0 : (int64_t)n_new * shape->stride, store_task, &plan);
    for (int i = 0; i < n_rows; i++) {
        int first, n = kv_early(rows[i].cache, rows[i].entry, &first);
        compute_quantize(c, rows[i].cache, first, n, space);
    }
    thread_run(c->pool, first_task[n_rows], attend_task, &plan);
}

typedef struct quantize_job {
    const compute *c;
    kv_cache *cache;
    const attend_space *space;
    int first;
} quantize_job;

static void quantize_run(void *arg, int task, int thread) {
    const quantize_job *job = arg;
    kv_quantize(job->cache, &job->c->kernels, job->first + task,
                job->space->quantize + (size_t)thread * job->space->quantize_bytes);
}

void compute_quantize(compute *c, kv_cache *cache, int first, int n, const attend_space *space) {
    quantize_job job = {c, cache, space, first};
    if (n > 0) thread_run(c->pool, n, quantize_run, &job);
}
