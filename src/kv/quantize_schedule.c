/* Quantizing tokens that a step made old enough, and reading streams of any form. SPDX-License-Identifier:
 * Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "kv/group.h"
#include "kv/quantize.h"
#include "kv/stage.h"

/* ---- exact rows ---- */

/* Where the values of the token in a slot are in an exact stream (kernels/attend/attend.h): n_together from `first` on,
 * the next ones `step` later. */
typedef struct exact_row {
    size_t first, step;
    int n_together;
} exact_row;

static exact_row exact_row_of(kv_codec exact, bool is_key, int page_tokens, int dim, int slot) {
    const size_t t = (size_t)slot, p = (size_t)page_tokens, n = (size_t)dim;
    if (exact == KV_F32) return is_key ? (exact_row){t, p, 1} : (exact_row){t * n, 1, 1};
    return is_key ? (exact_row){2 * t, 2 * p, 2} : (exact_row){t / 2 * n * 2 + t % 2, 2, 1};
}

/* Separate loops for speed: quantizing reads every key and value once. */
static void exact_get(kv_codec exact, bool is_key, const char *stream, int page_tokens, int dim, int slot, int n,
                      float *x) {
    for (int t = 0; t < n; t++, x += dim) {
        const exact_row row = exact_row_of(exact, is_key, page_tokens, dim, slot + t);
        const float *wide = (const float *)(const void *)stream + row.first;
        const bf16 *narrow = (const bf16 *)(const void *)stream + row.first;
        if (exact == KV_F32) {
            for (int d = 0; d < dim; d++, wide += row.step) x[d] = *wide;
        } else if (is_key) {
            for (int d = 0; d < dim; d += 2, narrow += row.step) {
                x[d] = f32_from_bf16(narrow[0]);
                x[d + 1] = f32_from_bf16(narrow[1]);
            }
        } else {
            for (int d = 0; d < dim; d++) x[d] = f32_from_bf16(narrow[2 * d]);
        }
    }
}

static void exact_put(kv_codec exact, bool is_key, char *stream, int page_tokens, int dim, int slot, int n,
                      const float *x) {
    for (int t = 0; t < n; t++, x += dim) {
        const exact_row row = exact_row_of(exact, is_key, page_tokens, dim, slot + t);
        float *wide = (float *)(void *)stream + row.first;
        bf16 *narrow = (bf16 *)(void *)stream + row.first;
        for (int d = 0; exact == KV_F32 && d < dim; d++, wide += row.step) *wide = x[d];
        for (int d = 0; exact != KV_F32 && d < dim; d += row.n_together, narrow += row.step) {
            narrow[0] = bf16_from_f32(x[d]);
            if (row.n_together == 2) narrow[1] = bf16_from_f32(x[d + 1]);
        }
    }
}

/* ---- one stream of an entry ---- */

typedef struct stream {
    bool is_key, is_coded;
    int dim;
    size_t offset[N_PAGE_KINDS], head_bytes[N_PAGE_KINDS]; /* from a page's first byte to head 0 */
} stream;

static stream stream_of(const kv_group *group, const kv_entry *entry, bool is_key) {
    const kv_spec *spec = &group->spec;
    stream s = {.is_key = is_key,
                .is_coded = kv_form_is_coded(is_key ? spec->key : spec->value),
                .dim = is_key ? spec->k_dim : spec->v_dim};
    for (int kind = 0; kind < N_PAGE_KINDS; kind++) {
        const kv_place *place = &group->place[kind];
        s.offset[kind] =
            (size_t)entry->member * group->entry_bytes[kind] + (is_key ? place->k_offset : place->v_offset);
        s.head_bytes[kind] = is_key ? place->k_head_bytes : place->v_head_bytes;
    }
    return s;
}

static quantize_stream quantize_job(const kernel_table *kernels, const kv_group *group, const kv_entry *entry,
                                    bool is_key) {
    const kv_spec *spec = &group->spec;
    return (quantize_stream){.kernels = kernels,
                             .form = is_key ? spec->key : spec->value,
                             .is_key = is_key,
                             .dim = is_key ? spec->k_dim : spec->v_dim,
                             .page_tokens = group->page_tokens,
                             .head_end = spec->n_heads,
                             .layouts = is_key ? entry->key_codes : entry->value_codes,
                             .calibration = is_key ? entry->calibration : NULL,
                             .head_bytes = is_key ? group->place[PAGE_CODED].k_head_bytes
                                                  : group->place[PAGE_CODED].v_head_bytes};
}

static size_t rows_bytes(const kv_spec *spec, bool is_key, int n) {
    size_t floats = (size_t)spec->n_heads * (size_t)n * (size_t)(is_key ? spec->k_dim : spec->v_dim);
    return (floats * sizeof(float) + 63) / 64 * 64;
}

/* ---- what to quantize ---- */

/* hqq chooses its zero points over all tokens quantized together, which is a call's with `flush`; the others work page
 * by page. */
static bool quantizes_together(const kv_group *group, bool is_key) {
    const kv_form form = is_key ? group->spec.key : group->spec.value;
    return form.codec == KV_HQQ && !group_quantizes_by_unit(group);
}

static bool quantizes_whole_pages(const kv_spec *spec) {
    const kv_form *forms[] = {&spec->key, &spec->value};
    for (int i = 0; i < 2; i++) {
        if (forms[i]->codec == KV_MNEME || (kv_form_is_coded(*forms[i]) && forms[i]->axis == CODE_CHANNEL)) return true;
    }
    return false;
}

int64_t group_quantize_target(const kv_group *group, int64_t n, bool call_ends) {
    const kv_spec *spec = &group->spec;
    if (!group->is_coded) return 0;
    if (spec->write_once) return quantizes_whole_pages(spec) ? n / group->page_tokens * group->page_tokens : n;
    if (!spec->flush) return quantize_until(n, spec->residual, group->page_tokens);
    if (!call_ends || !group->flushes) return 0;
    return quantizes_whole_pages(spec) ? n / group->page_tokens * group->page_tokens : n;
}

bool group_quantize_range(const kv_group *group, int64_t page, int64_t n, int64_t target, int *first, int *end) {
    const kv_spec *spec = &group->spec;
    int64_t slot = group_slot(group, page), most = target - page * group->page_tokens;
    *first = slot < (int64_t)group->n_slots ? group->n_quantized[slot] : 0;
    *end = (int)(most < 0 ? 0 : most > group->page_tokens ? group->page_tokens : most);
    if (*first >= *end) return false;
    if (spec->flush && page < visible_first(n, spec->window) / group->page_tokens) return false;
    return *first == 0 || !quantizes_whole_pages(spec);
}

/* Which tasks each_task lists: the position up to which a group is quantized. */
typedef int64_t (*task_target)(const kv_cache *cache, const kv_group *group, int64_t n_tokens);
typedef void (*task_visit)(kv_cache *cache, const quantize_task *task);

/* For groups that step, at the end of a step; for those that are filled once; for later units of a step. */
static int64_t step_target(const kv_cache *cache, const kv_group *group, int64_t n_tokens) {
    return group_steps(group) ? group_quantize_target(group, n_tokens, cache->call_ends) : 0;
}
static int64_t fill_target(const kv_cache *cache, const kv_group *group, int64_t n_tokens) {
    return group_steps(group) ? 0 : group_quantize_target(group, n_tokens, cache->call_ends);
}
static int64_t early_target(const kv_cache *cache, const kv_group *group, int64_t n_tokens) {
    (void)cache;
    return group_quantizes_by_unit(group) ? quantize_until(n_tokens - 1, group->spec.residual, group->page_tokens) : 0;
}

/* Every task when n tokens are held. */
static void each_task(kv_cache *cache, task_target target_of, int64_t n_tokens, task_visit visit) {
    for (int i = 0; i < cache->n_entries; i++) {
        const kv_group *group = &cache->groups[cache->entries[i].group];
        int64_t target = target_of(cache, group, n_tokens);
        int64_t from = target && group_steps(group) ? group_step_first(group, cache->n_tokens) : group->first_page;
        for (int is_key = 0; target > 0 && is_key < 2; is_key++) {
            quantize_task whole = {.entry = i, .is_key = is_key, .n = 0};
            for (int64_t page = from; page * group->page_tokens < target; page++) {
                int first, end;
                if (!group_quantize_range(group, page, n_tokens, target, &first, &end)) continue;
                quantize_task task = {.entry = i,
                                      .is_key = is_key,
                                      .slot = (size_t)group_slot(group, page),
                                      .first = first,
                                      .n = end - first};
                if (!quantizes_together(group, is_key)) {
                    visit(cache, &task);
                } else if (whole.n == 0) {
                    whole = task;
                } else {
                    whole.n += task.n;
                }
            }
            if (whole.n > 0) visit(cache, &whole);
        }
    }
}

size_t quantize_task_scratch(const kv_cache *cache, const quantize_task *task) {
    const kv_group *group = &cache->groups[cache->entries[task->entry].group];
    const kv_spec *spec = &group->spec;
    stream s = stream_of(group, &cache->entries[task->entry], task->is_key);
    size_t need = rows_bytes(spec, task->is_key, task->n);
    if (!s.is_coded) return need;
    size_t n_pages = (size_t)ceil_div(task->first + task->n, group->page_tokens);
    need += (n_pages * sizeof(char *) + 63) / 64 * 64;
    return need + quantize_scratch_bytes(task->is_key ? spec->key : spec->value, task->is_key, s.dim,
                                         group->page_tokens, spec->n_heads, task->n);
}

static void count_task(kv_cache *cache, const quantize_task *task) {
    size_t need = quantize_task_scratch(cache, task);
    if (need > cache->quantize_scratch) cache->quantize_scratch = need;
    cache->n_tasks++;
}

static void keep_task(kv_cache *cache, const quantize_task *task) {
    cache->tasks[cache->n_tasks++] = *task;
}

mn_status schedule_reserve(kv_cache *cache, bool steps, int64_t n_total) {
    cache->n_tasks = 0;
    cache->quantize_scratch = 0;
    each_task(cache, steps ? step_target : fill_target, n_total, count_task);
    size_t n = cache->n_tasks;
    cache->n_tasks = 0;
    return mem_grow(&cache->tasks, &cache->task_capacity, n, sizeof *cache->tasks);
}

void quantize_early(kv_cache *cache, int64_t n_total) {
    each_task(cache, early_target, n_total, keep_task);
    cache->n_early = cache->n_tasks;
    cache->n_early_asked = 0;
}

bool kv_spans_units(const kv_cache *cache) {
    return cache->n_early > 0;
}

int kv_early(kv_cache *cache, int entry, int *first) {
    size_t i = 0, n = 0;
    while (i < cache->n_early && cache->tasks[i].entry < entry) i++;
    while (i + n < cache->n_early && cache->tasks[i + n].entry == entry) n++;
    *first = (int)i;
    cache->n_early_asked += n;
    return (int)n;
}

/* Records the results of the tasks in the tables. */
static void note_quantized(kv_cache *cache) {
    for (size_t i = 0; i < cache->n_tasks; i++) {
        const quantize_task *task = &cache->tasks[i];
        kv_group *group = &cache->groups[cache->entries[task->entry].group];
        int left = task->n, first = (int)task->first;
        for (size_t slot = task->slot; left > 0; slot++, first = 0) {
            int n = (int)min_i64(group->page_tokens - first, left);
            group->n_quantized[slot] = first + n;
            left -= n;
        }
    }
    cache->n_tasks = 0;
}

int kv_commit(kv_cache *cache) {
    assert(cache->fault == MN_OK && cache->n_step > 0);
    stage_drain(cache);
    /* A caller that does not attend between append and commit has not called kv_early, and quantizes everything now. */
    if (cache->n_early_asked == cache->n_early) note_quantized(cache);
    cache->n_tasks = cache->n_early = 0;
    cache->n_tokens += cache->n_step;
    cache->n_step = 0;
    for (int g = 0; g < cache->n_groups; g++) {
        if (cache->groups[g].spec.kind == KV_STATE) state_commit(&cache->groups[g], cache->pool, cache->n_tokens);
    }
    each_task(cache, step_target, cache->n_tokens, keep_task);
    return (int)cache->n_tasks;
}

int kv_fill_commit(kv_cache *cache) {
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        if (!group_steps(group)) each_task(cache, fill_target, group->n_filled, keep_task);
        if (cache->n_tasks > 0) break; /* all of them are filled with equally many tokens */
    }
    return (int)cache->n_tasks;
}

size_t kv_quantize_scratch(const kv_cache *cache) {
    return cache->quantize_scratch;
}

/* ---- quantizing ---- */

/* Slots [first, first + n) of an exact page, of one head, from its parts. */
static void gather_page(const kv_group *group, const stream *s, size_t slot, int head, int first, int n, float *rows) {
    for (int from = first, end = first + n; from < end;) {
        page_rows at = page_rows_at(group, group->pages[PAGE_EXACT][slot], from);
        size_t offset = s->offset[PAGE_EXACT] + (size_t)head * s->head_bytes[PAGE_EXACT];
        int stop = at.end < end ? at.end : end;
        exact_get(group->spec.exact, s->is_key, at.part->data + part_offset(group, at.part, offset), at.room, s->dim,
                  from - at.first, stop - from, rows + (size_t)(from - first) * (size_t)s->dim);
        from = stop;
    }
}

/* Rows of tokens [first, first + n) counted from the slot's first, all exact: f32 [heads][n][dim]. */
static void gather_rows(const kv_group *group, const stream *s, const quantize_task *task, float *rows) {
    for (int head = 0; head < group->spec.n_heads; head++) {
        int done = 0;
        for (size_t slot = task->slot; done < task->n; slot++) {
            int from = slot == task->slot ? (int)task->first : 0;
            int n = (int)min_i64(group->page_tokens - from, task->n - done);
            gather_page(group, s, slot, head, from, n,
                        rows + ((size_t)head * (size_t)task->n + (size_t)done) * (size_t)s->dim);
            done += n;
        }
    }
}

void kv_quantize(kv_cache *cache, const kernel_table *kernels, int i_task, void *scratch) {
    const quantize_task *task = &cache->tasks[i_task];
    const kv_entry *entry = &cache->entries[task->entry];
    const kv_group *group = &cache->groups[entry->group];
    stream s = stream_of(group, entry, task->is_key);
    float *rows = scratch;
    char *rest = (char *)scratch + rows_bytes(&group->spec, task->is_key, task->n);
    gather_rows(group, &s, task, rows);
    if (!s.is_coded) { /* the other stream of a quantized page */
        for (int head = 0; head < group->spec.n_heads; head++) {
            exact_put(group->spec.exact, s.is_key,
                      group->pages[PAGE_CODED][task->slot]->data + s.offset[PAGE_CODED] +
                          (size_t)head * s.head_bytes[PAGE_CODED],
                      group->page_tokens, s.dim, (int)task->first, task->n,
                      rows + (size_t)head * (size_t)task->n * (size_t)s.dim);
        }
        return;
    }
    size_t n_pages = (size_t)ceil_div(task->first + task->n, group->page_tokens);
    char **pages = (char **)(void *)rest;
    rest += (n_pages * sizeof *pages + 63) / 64 * 64;
    for (size_t i = 0; i < n_pages; i++)
        pages[i] = group->pages[PAGE_CODED][task->slot + i]->data + s.offset[PAGE_CODED];
    int64_t position = (group->first_page + (int64_t)task->slot) * group->page_tokens + task->first;
    quantize_stream job = quantize_job(kernels, group, entry, task->is_key);
    job.pages = pages;
    job.first = task->first;
    job.n = task->n;
    job.n_skip = (int)max_i64(0, min_i64(group->head_tokens - position, task->n));
    job.rows = rows;
    job.scratch = rest;
    quantize_write(&job);
}

void kv_finish_step(kv_cache *cache) {
    note_quantized(cache);
    cache->call_ends = false;
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &cache->groups[g];
        group_tidy(group, cache->pool, group_steps(group) ? cache->n_tokens : group->n_filled);
    }
    KV_ASSERT_VALID(cache);
}

/* ---- reading back ---- */

/* n tokens of one page, of all heads: rows of head h begin at rows + h * head_floats. */
static mn_status read_page(const kv_cache *cache, const kernel_table *kernels, const kv_group *group,
                           const kv_entry *entry, const stream *s, page_kind kind, size_t slot, int first, int n,
                           float *rows, size_t head_floats) {
    const kv_page *page = kind == PAGE_HEAD ? group->head : group->pages[kind][slot];
    int heads = group->spec.n_heads, tokens = kind == PAGE_HEAD ? group->head_page_tokens : group->page_tokens;
    bool decodes = kind == PAGE_CODED && s->is_coded;
    size_t stored = (size_t)heads * s->head_bytes[kind], floats = (size_t)n * (size_t)s->dim;
    size_t stored_room = (stored + 63) / 64 * 64, rows_size = rows_bytes(&group->spec, s->is_key, n);
    quantize_stream job = quantize_job(kernels, group, entry, s->is_key);
    size_t scratch = decodes ? quantize_scratch_bytes(job.form, s->is_key, s->dim, tokens, heads, n) : 0;
    char *memory = mem_alloc_raw(stored_room + rows_size + scratch, 1);
    if (!memory) return MN_E_NOMEM;
    mn_status status = kv_pool_copy(cache->pool, page, s->offset[kind], stored, memory);
    job.rows = (float *)(void *)(memory + stored_room);
    if (status == MN_OK && decodes) {
        job.pages = &memory;
        job.first = first;
        job.n = n;
        job.scratch = memory + stored_room + rows_size;
        quantize_read(&job);
    }
    for (int head = 0; status == MN_OK && head < heads; head++) {
        float *to = rows + (size_t)head * head_floats;
        if (decodes) {
            memcpy(to, job.rows + (size_t)head * floats, floats * sizeof *rows);
        } else {
            exact_get(group->spec.exact, s->is_key, memory + (size_t)head * s->head_bytes[kind], tokens, s->dim, first,
                      n, to);
        }
    }
    mem_free(memory);
    return status;
}

mn_status kv_read(const kv_cache *cache, const kernel_table *kernels, int i_entry, bool is_key, int64_t begin, int n,
                  float *rows) {
    const kv_entry *entry = &cache->entries[i_entry];
    const kv_group *group = &cache->groups[entry->group];
    int64_t held = group->spec.write_once ? group->n_filled : cache->n_tokens;
    int64_t first_held = group->first_page * group->page_tokens, end = begin + n;
    bool is_gone = max_i64(begin, group->head_tokens) < min_i64(end, first_held);
    if (begin < 0 || n < 0 || end > held || is_gone) {
        MN_FAIL(MN_E_ARG, "tokens %lld to %lld of layer %d were requested, the cache holds %lld to %lld",
                (long long)begin, (long long)end, i_entry, (long long)first_held, (long long)held);
    }
    stream s = stream_of(group, entry, is_key);
    size_t head_floats = (size_t)n * (size_t)s.dim;
    for (int64_t t = begin; t < end;) {
        int64_t page = t / group->page_tokens, stop = min_i64(end, (page + 1) * group->page_tokens);
        size_t slot = (size_t)group_slot(group, page);
        int first = (int)(t % group->page_tokens);
        page_kind kind = PAGE_EXACT;
        if (t < group->head_tokens) {
            kind = PAGE_HEAD;
            first = (int)t;
            stop = min_i64(end, group->head_tokens);
        } else if (first < group->n_quantized[slot]) {
            kind = PAGE_CODED;
            stop = min_i64(stop, page * group->page_tokens + group->n_quantized[slot]);
        }
        float *out = rows + (size_t)(t - begin) * (size_t)s.dim;
        if (kind == PAGE_EXACT && group->pages[kind][slot]->tokens) {
            for (int head = 0; head < group->spec.n_heads; head++)
                gather_page(group, &s, slot, head, first, (int)(stop - t), out + (size_t)head * head_floats);
            t = stop;
            continue;
        }
        MN_TRY(read_page(cache, kernels, group, entry, &s, kind, slot, first, (int)(stop - t), out, head_floats));
        t = stop;
    }
    return MN_OK;
}
