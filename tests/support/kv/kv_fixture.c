/* SPDX-License-Identifier: Apache-2.0 */
#include "support/kv/kv_fixture.h"

#include <unistd.h>

#include "base/num.h"
#include "kv/quantize.h"
#include "kv/snapshot.h"
#include "support/kv/kv_walk.h"
#include "support/scratch.h"

enum { MOST_STEP = 48, MOST_DIM = 32 };

#define PROBLEM(w, ...)                                                                                                \
    do {                                                                                                               \
        if (!(w)->problem) snprintf((w)->text, sizeof(w)->text, __VA_ARGS__);                                          \
        (w)->problem = (w)->text;                                                                                      \
    } while (0)

/* ---- comparison with the model ---- */

/* A row of an exact stream with space for `tokens` tokens. */
static void exact_row(const kv_spec *spec, bool is_key, const char *stream, int tokens, int slot, float *row) {
    int dim = is_key ? spec->k_dim : spec->v_dim;
    for (int d = 0; d < dim; d++) {
        if (spec->exact == KV_F32) {
            memcpy(&row[d], stream + 4 * (is_key ? d * tokens + slot : slot * dim + d), 4);
        } else {
            bf16 x;
            memcpy(&x,
                   stream + 2 * (is_key ? (d / 2 * tokens + slot) * 2 + d % 2 : (slot / 2 * dim + d) * 2 + slot % 2),
                   2);
            row[d] = f32_from_bf16(x);
        }
    }
}

/* Finds token `position` of one head as a kernel does, and decodes it to a row. */
static void view_row(const fixture *w, const kv_view *view, bool is_key, int head, int64_t position, float *row) {
    const kv_spec *spec = view->spec;
    int dim = is_key ? spec->k_dim : spec->v_dim, tokens = view->page_tokens;
    const kv_place *place = &view->exact_place;
    const char *page;
    int slot = (int)(position % tokens);
    if (position < view->n_head) {
        page = view->head;
        place = &view->head_place;
        tokens = view->head_page_tokens;
        slot = (int)position;
    } else {
        int64_t i = position / tokens - view->first_page;
        attend_part parts[ATTEND_PARTS];
        int n_parts = kv_parts(view, i, head, parts);
        page = view->exact[i];
        if (n_parts && slot >= view->n_quantized[i]) {
            const attend_part *part = parts;
            while (slot >= part->end && part + 1 < parts + n_parts) part++;
            assert_in_range(slot, part->first, part->end - 1);
            exact_row(spec, is_key, is_key ? part->keys : part->values, part->tokens, slot - part->first, row);
            return;
        }
        if (slot < view->n_quantized[i]) {
            place = &view->coded_place;
            page = view->coded[i];
            const code_layout *layout = is_key ? view->key_codes : view->value_codes;
            if (layout) {
                kv_form form = is_key ? spec->key : spec->value;
                char *codes = (char *)(uintptr_t)page + (is_key ? place->k_offset : place->v_offset);
                char *memory = mem_alloc_raw(quantize_scratch_bytes(form, is_key, dim, tokens, 1, 1), 1);
                quantize_stream job = {.kernels = &w->kernels,
                                       .form = form,
                                       .is_key = is_key,
                                       .dim = dim,
                                       .page_tokens = tokens,
                                       .head_begin = head,
                                       .head_end = head + 1,
                                       .layouts = layout,
                                       .calibration = is_key ? view->calibration : NULL,
                                       .pages = &codes,
                                       .head_bytes = is_key ? place->k_head_bytes : place->v_head_bytes,
                                       .first = slot,
                                       .n = 1,
                                       .rows = row,
                                       .scratch = memory};
                quantize_read(&job);
                mem_free(memory);
                return;
            }
        }
    }
    page += is_key ? place->k_offset + (size_t)head * place->k_head_bytes
                   : place->v_offset + (size_t)head * place->v_head_bytes;
    exact_row(spec, is_key, page, tokens, slot, row);
}

/* A token of the model, or of the current step. */
static void check_view(fixture *w, const fixture_member *m, int entry, int64_t position, const uint32_t *step) {
    const model_entry *e = &m->model->entries[entry];
    kv_view view = kv_attention_view(m->cache, entry);
    int64_t held = model_held(m->model, e), n_step = model_steps(e) ? m->model->n_step : 0;
    if (view.n_tokens != held + n_step) PROBLEM(w, "the view of entry %d has another number of tokens", entry);
    if (view.first_page != e->first_page || view.n_pages != e->n_slots) {
        PROBLEM(w, "the view of entry %d has other pages", entry);
        return;
    }
    for (int is_key = 0; is_key < 2; is_key++) {
        for (int head = 0; head < e->spec.n_heads; head++) {
            float row[MOST_DIM], wanted[MOST_DIM];
            size_t dim = (size_t)model_dim(e, is_key);
            view_row(w, &view, is_key, head, position, row);
            if (position < held) {
                memcpy(wanted, model_row(e, is_key, head, position), dim * sizeof *row);
            } else {
                for (int d = 0; d < (int)dim; d++)
                    wanted[d] = model_value(step[position - held], entry, head, is_key, d, e->spec.exact);
            }
            if (memcmp(row, wanted, dim * sizeof *row) != 0)
                PROBLEM(w, "entry %d, %s %d of head %d: its address differs from that in the table for kernels", entry,
                        is_key ? "key" : "value", (int)position, head);
        }
    }
}

static void check_rows(fixture *w, const fixture_member *m, int entry, int64_t begin, int64_t end) {
    static _Thread_local float rows[2 * MODEL_TOKENS * MOST_DIM];
    const model_entry *e = &m->model->entries[entry];
    int n = (int)(end - begin);
    if (n <= 0) return;
    for (int is_key = 0; is_key < 2; is_key++) {
        size_t floats = (size_t)n * (size_t)model_dim(e, is_key);
        mn_status status = kv_read(m->cache, &w->kernels, entry, is_key, begin, n, rows);
        if (status != MN_OK) PROBLEM(w, "tokens %d to %d were not read: %s", (int)begin, (int)end, mn_last_error());
        for (int head = 0; head < e->spec.n_heads; head++) {
            if (memcmp(rows + (size_t)head * floats, model_row(e, is_key, head, begin), floats * sizeof *rows) == 0)
                continue;
            size_t i = 0;
            while (rows[(size_t)head * floats + i] == model_row(e, is_key, head, begin)[i]) i++;
            int at = (int)(i / (size_t)model_dim(e, is_key));
            PROBLEM(w, "%s of entry %d, head %d, token %d (of %d to %d) read %g, not %g", is_key ? "keys" : "values",
                    entry, head, (int)begin + at, (int)begin, (int)end, (double)rows[(size_t)head * floats + i],
                    (double)model_row(e, is_key, head, begin)[i]);
        }
    }
}

/* Tokens that are not held cannot be read. */
static void check_refusals(fixture *w, const fixture_member *m, int entry, int64_t first, int64_t held, int64_t head) {
    float none[1];
    const kv_cache *c = m->cache;
    bool right = kv_read(c, &w->kernels, entry, true, held, 1, none) == MN_E_ARG &&
                 kv_read(c, &w->kernels, entry, false, -1, 1, none) == MN_E_ARG &&
                 kv_read(c, &w->kernels, entry, false, 0, -1, none) == MN_E_ARG &&
                 kv_read(c, &w->kernels, entry, true, held, 0, none) == MN_OK;
    if (first > head) right = right && kv_read(c, &w->kernels, entry, true, first - 1, 1, none) == MN_E_ARG;
    if (!right) PROBLEM(w, "tokens outside of entry %d were read, or inside refused", entry);
}

static void check_entry(fixture *w, const fixture_member *m, int entry) {
    const model_entry *e = &m->model->entries[entry];
    int64_t held = model_held(m->model, e), first = model_first_held(e), head = min_i64(e->head_tokens, held);
    int P = e->page_tokens;
    if (kv_filled(m->cache, entry) != (e->spec.write_once ? e->n_filled : 0)) PROBLEM(w, "kv_filled is another");
    if (e->spec.kind == KV_STATE) return;
    if (kv_first_held(m->cache, entry) != first) {
        PROBLEM(w, "entry %d holds tokens from %d on, not %d", entry, (int)kv_first_held(m->cache, entry), (int)first);
        return;
    }
    check_refusals(w, m, entry, first, held, head);
    if (first <= head) {
        check_rows(w, m, entry, 0, held);
    } else {
        check_rows(w, m, entry, 0, head);
        check_rows(w, m, entry, first, held);
    }
    if (held > first && !e->spec.is_offloaded) /* offloaded pages are compared in steps */
        check_view(w, m, entry, first + (int64_t)(w->next_token * 7u % (unsigned)(held - first)), NULL);
    if (head && !e->spec.is_offloaded) check_view(w, m, entry, head - 1, NULL);
    kv_view view = kv_attention_view(m->cache, entry);
    for (int i = 0; i < view.n_pages && !w->problem; i++) {
        int quantized = model_quantized(e, e->first_page + i);
        w->counts.quantized += quantized;
        if (view.n_quantized[i] != quantized)
            PROBLEM(w, "%d tokens of page %d are quantized, not %d", view.n_quantized[i], i, quantized);
    }
    /* A window has no more pages than it can cover. */
    if (e->spec.window && view.n_pages > (int)ceil_div(e->spec.window, P) + 1)
        PROBLEM(w, "%d pages for a window of %d", view.n_pages, e->spec.window);
}

/* A page shared with a cache of another fixture, which may close at any time, may become unshared: kv_check covers
 * that. */
static void check_bytes(fixture *w, const fixture_member *m) {
    size_t least, most;
    model_bytes_range(m->model, &least, &most);
    if (!w->set->is_offloaded) least = most = model_bytes(m->model);
    if (w->set->alone && (kv_bytes(m->cache) < least || kv_bytes(m->cache) > most))
        PROBLEM(w, "the bytes are %zu, not %zu to %zu", kv_bytes(m->cache), least, most);
    if (w->set->alone && !w->set->is_offloaded && kv_peak_bytes(m->cache) != m->model->peak)
        PROBLEM(w, "the peak is %zu, not %zu", kv_peak_bytes(m->cache), m->model->peak);
}

static void check_sizes(fixture *w, const fixture_member *m) {
    const model_cache *model = m->model;
    bool has_pages = false;
    for (int i = 0; i < model->n_entries; i++) {
        const model_entry *e = &model->entries[i];
        has_pages = has_pages || (e->spec.kind == KV_PAGES && model_steps(e));
    }
    int64_t P = model->options.page_tokens, total = model->n + model->n_step,
            room = max_i64(has_pages ? ceil_div(total, P) * P : 0, model->options.reserve);
    if (kv_length(m->cache) != model->n) PROBLEM(w, "the length differs");
    if (kv_step_limit(m->cache, model->n) != model_step_limit(model)) PROBLEM(w, "the largest step differs");
    if (kv_room(m->cache) != room) PROBLEM(w, "the room is %d, not %d", (int)kv_room(m->cache), (int)room);
    check_bytes(w, m);
    if (w->set->alone && !w->set->is_offloaded && kv_pool_used(w->pool) != w->model_pool->used)
        PROBLEM(w, "the pool counts %zu bytes, not %zu", kv_pool_used(w->pool), w->model_pool->used);
    if (kv_check(m->cache) != MN_OK) PROBLEM(w, "kv_check: %s", mn_last_error());
}

void fixture_check(fixture *w, const fixture_member *m) {
    check_sizes(w, m);
    for (int i = 0; i < m->model->n_entries && !w->problem; i++) check_entry(w, m, i);
    int64_t length = (int64_t)(w->next_token * 5u % (unsigned)(m->model->n + 3));
    if (kv_reachable(m->cache, length) != model_reachable(m->model, length))
        PROBLEM(w, "%d tokens are reachable of %d, not %d", (int)kv_reachable(m->cache, length), (int)length,
                (int)model_reachable(m->model, length));
}

/* What the code says of bytes is what its caches, its pool and its offload file hold, page by page. */
static void check_accounting(fixture *w) {
    kv_cache *caches[2 * FIXTURE_CACHES];
    const size_t n = (size_t)w->n_members;
    kv_offload *file = kv_pool_offload(w->pool);
    for (size_t i = 0; i < n; i++) {
        caches[i] = w->members[i].cache;
        const walk_sums *own = walk_pages(&caches[i], 1, false);
        if (kv_bytes(caches[i]) != own->resident + own->mapped + own->offloaded)
            PROBLEM(w, "the bytes of cache %zu are %zu, it holds %zu resident, %zu mapped, %zu offloaded", i,
                    kv_bytes(caches[i]), own->resident, own->mapped, own->offloaded);
        if (kv_offloaded_held(caches[i]) != own->offloaded)
            PROBLEM(w, "%zu bytes of cache %zu are offloaded, not %zu", own->offloaded, i,
                    kv_offloaded_held(caches[i]));
    }
    const walk_sums *all = walk_pages(caches, n, true);
    if (!all) {
        PROBLEM(w, "the references of a page are not those of the caches and parts that hold it");
        return;
    }
    if (kv_bytes_together(caches, n) != all->resident)
        PROBLEM(w, "the bytes together are %zu, not %zu", kv_bytes_together(caches, n), all->resident);
    if (kv_pool_used(w->pool) != all->resident + all->staged)
        PROBLEM(w, "the pool counts %zu bytes, its caches hold %zu and %zu staged", kv_pool_used(w->pool),
                all->resident, all->staged);
    if ((file ? kv_offload_bytes(file) : 0) != all->offloaded)
        PROBLEM(w, "the file holds other bytes than the %zu that are offloaded", all->offloaded);
    for (size_t i = 0; i < n; i++) {
        if (kv_unique_bytes(caches[i]) != walk_freed(caches[i]))
            PROBLEM(w, "closing cache %zu frees %zu bytes, not %zu", i, walk_freed(caches[i]),
                    kv_unique_bytes(caches[i]));
    }
}

void fixture_check_all(fixture *w) {
    if (w->set->alone) check_accounting(w);
    for (int i = 0; i < w->n_members && !w->problem; i++) {
        fixture_check(w, &w->members[i]);
        w->counts.offload += kv_offloaded_held(w->members[i].cache);
    }
}

/* ---- steps ---- */

static void start_failing(const fixture *w, unsigned fail) {
    if (w->set->fails && fail % 3 == 0) mem_fail_after(1 + fail / 3 % 14);
}

/* Whether an operation succeeded; a refusal must be justified. */
static bool was_done(fixture *w, mn_status status, bool is_full, bool fits, const char *what) {
    mem_fail_after(0);
    if (status == MN_OK) {
        if (is_full || !fits) PROBLEM(w, "%s succeeded beyond the budget", what);
        return true;
    }
    w->counts.refused++;
    if (is_full ? status != MN_E_FULL : status != MN_E_NOMEM) PROBLEM(w, "%s: refused for another reason", what);
    if (!is_full && fits && !w->set->fails) PROBLEM(w, "%s: refused within the budget: %s", what, mn_last_error());
    return false;
}

/* Rows with a gap between them. */
static void append_some(fixture *w, const fixture_member *m, const uint32_t *tokens, int entry, int head, int begin,
                        int end) {
    enum { STRIDE = 2 * MOST_DIM + 5 };
    static _Thread_local float rows[MODEL_TOKENS][STRIDE];
    const kv_spec *spec = &m->model->entries[entry].spec;
    for (int t = begin; t < end; t++) {
        for (int d = 0; d < spec->k_dim; d++) rows[t][d] = model_value(tokens[t], entry, head, true, d, KV_F32);
        for (int d = 0; d < spec->v_dim; d++)
            rows[t][MOST_DIM + 1 + d] = model_value(tokens[t], entry, head, false, d, KV_F32);
    }
    kv_append(m->cache, &w->kernels, entry, head, begin, end, &rows[0][0], &rows[0][MOST_DIM + 1], STRIDE, STRIDE);
}

/* Appends all heads of an entry, divided at a page boundary and stored in another order. */
static void append_entry(fixture *w, const fixture_member *m, const uint32_t *tokens, int entry, int64_t at, int n,
                         unsigned order) {
    int page = m->model->options.page_tokens, edge = page - (int)(at % page);
    if (edge > n) edge = n;
    for (int head = 0; head < m->model->entries[entry].spec.n_heads; head++) {
        if (order % 4 == 0) {
            append_some(w, m, tokens, entry, head, 0, n);
            continue;
        }
        if (order % 2) append_some(w, m, tokens, entry, head, edge, n);
        append_some(w, m, tokens, entry, head, 0, edge);
        if (order % 2 == 0) append_some(w, m, tokens, entry, head, edge, n);
    }
}

/* A state: a repeated number that differs between entries. */
static void state_bytes_of(char *data, size_t n, uint64_t trail, int entry) {
    for (size_t i = 0; i < n; i++) data[i] = (char)((trail >> i % 8 * 8) + (unsigned)entry * 3 + i / 8);
}

static void check_state(fixture *w, const fixture_member *m, int entry) {
    const model_entry *e = &m->model->entries[entry];
    kv_state s = kv_states(m->cache, entry);
    char wanted[512];
    if ((s.now == NULL) != (e->n_states == 0)) {
        PROBLEM(w, "a state exists that should not, or is missing");
        return;
    }
    if (!s.now) return;
    state_bytes_of(wanted, e->spec.state_bytes, e->states[e->n_states - 1].trail, entry);
    if (memcmp(s.now, wanted, e->spec.state_bytes) != 0) PROBLEM(w, "the state of entry %d differs", entry);
}

static void check_step(fixture *w, const fixture_member *m, const uint32_t *tokens, int n, bool backwards) {
    check_sizes(w, m);
    for (int j = 0; j < m->model->n_entries && !w->problem; j++) {
        int i = backwards ? m->model->n_entries - 1 - j : j;
        const model_entry *e = &m->model->entries[i];
        kv_stage(m->cache, i);
        if (kv_fault(m->cache) != MN_OK) PROBLEM(w, "offloaded pages: %s", mn_last_error());
        if (e->spec.kind == KV_STATE) {
            check_state(w, m, i);
        } else if (model_steps(e)) {
            int most = (int)ceil_div(e->spec.window + n, e->page_tokens) + 1;
            if (e->spec.window && kv_attention_view(m->cache, i).n_pages > most)
                PROBLEM(w, "a step of %d tokens holds more than %d pages for a window of %d", n, most, e->spec.window);
            for (int t = 0; t < n; t += 1 + n / 4) check_view(w, m, i, m->model->n + t, tokens);
            check_view(w, m, i, m->model->n + n - 1, tokens);
            int64_t first = model_first_held(e), past = m->model->n - first;
            if (past > 0) check_view(w, m, i, m->model->n - 1, tokens);
            if (past > 0) check_view(w, m, i, first + (int64_t)(tokens[0] * 3u % (unsigned)past), tokens);
        }
    }
}

bool fixture_step(fixture *w, fixture_member *m, const uint32_t *tokens, int n, unsigned order, unsigned fail) {
    model_cache *model = m->model;
    bool is_full = model->options.limit && model->n + n > model->options.limit, fits = is_full || model_fits(model, n);
    start_failing(w, fail);
    if (!was_done(w, kv_reserve(m->cache, n), is_full, fits, "a step") || w->problem) return false;
    model_reserve(model, n);
    for (int i = 0; i < model->n_entries; i++) {
        int entry = order % 8 < 4 ? i : model->n_entries - 1 - i;
        const model_entry *e = &model->entries[entry];
        if (e->spec.kind == KV_PAGES && model_steps(e)) append_entry(w, m, tokens, entry, model->n, n, order);
    }
    check_step(w, m, tokens, n, order % 4 == 3);
    return true;
}

/* Runs the tasks in another order, each with exactly the requested scratch. */
static void quantize_all(fixture *w, fixture_member *m, int n_tasks, unsigned order) {
    void *scratch = mem_alloc_raw(kv_quantize_scratch(m->cache), 1);
    for (int i = 0; i < n_tasks; i++) kv_quantize(m->cache, &w->kernels, order % 2 ? n_tasks - 1 - i : i, scratch);
    mem_free(scratch);
    kv_finish_step(m->cache);
}

void fixture_commit(fixture *w, fixture_member *m, const uint32_t *tokens, unsigned order) {
    model_cache *model = m->model;
    model_commit(model, tokens);
    for (int i = 0; i < model->n_entries; i++) {
        const model_entry *e = &model->entries[i];
        if (e->spec.kind == KV_STATE)
            state_bytes_of(kv_states(m->cache, i).next, e->spec.state_bytes, model->trails[model->n], i);
    }
    quantize_all(w, m, kv_commit(m->cache), order);
}

static void new_tokens(fixture *w, uint32_t *tokens, int n) {
    for (int i = 0; i < n; i++) tokens[i] = w->next_token++;
}

/* As many tokens as one step may have. */
static int cut_step(const fixture_member *m, int n, int most) {
    int64_t limit = kv_step_limit(m->cache, m->model->n) - m->model->n;
    if (n > most) n = most;
    return (int)min_i64(n, limit);
}

bool fixture_call(fixture *w, fixture_member *m, const uint32_t *tokens, int n, int most_step) {
    kv_call_begin(m->cache);
    model_call_begin(m->model);
    for (int done = 0; done < n;) {
        int step = cut_step(m, n - done, most_step);
        if (done + step == n) {
            kv_call_ends(m->cache, true);
            m->model->call_ends = true;
        }
        if (!fixture_step(w, m, tokens + done, step, 0, 1)) return false;
        fixture_commit(w, m, tokens + done, 0);
        done += step;
    }
    return true;
}

/* Steps of random lengths; `kind` says how it ends. */
static void do_call(fixture *w, fixture_member *m, const fixture_op *op) {
    uint64_t state = op->detail;
    uint32_t tokens[MODEL_TOKENS];
    int left = 1 + (int)(op->amount % (op->amount & 0x100 ? MOST_STEP : 9)), round = 0;
    if (m->model->n + left > MODEL_TOKENS) left = (int)(MODEL_TOKENS - m->model->n);
    kv_call_begin(m->cache);
    model_call_begin(m->model);
    for (int n; left > 0 && !w->problem; left -= n, round++) {
        uint64_t r = test_random(&state);
        n = cut_step(m, left, r & 1 ? left : 1 + (int)(r >> 8 & 0xFF) % 5);
        new_tokens(w, tokens, n);
        bool ends = n == left && op->kind != FIXTURE_BROKEN_CALL;
        if (ends) kv_call_ends(m->cache, true);
        m->model->call_ends = ends;
        unsigned fail = round ? (unsigned)(r >> 40) : op->fail;
        if (!fixture_step(w, m, tokens, n, (unsigned)(r >> 16), fail)) return;
        if (op->kind == FIXTURE_ABANDON && (ends || r >> 60 == 0)) {
            kv_abandon(m->cache);
            model_abandon(m->model);
            return;
        }
        if (op->kind == FIXTURE_TRUNCATE_IN_STEP && ends) {
            int64_t keep = kv_reachable(m->cache, (int64_t)(op->detail % (unsigned)(m->model->n + 1)));
            if (kv_truncate(m->cache, keep) != MN_OK) PROBLEM(w, "truncation in a step: %s", mn_last_error());
            model_truncate(m->model, keep);
            return;
        }
        fixture_commit(w, m, tokens, (unsigned)(r >> 24));
        if (op->kind == FIXTURE_BROKEN_CALL && left - n <= (int)(op->detail % 8)) return;
    }
}

/* ---- other operations ---- */

static void do_truncate(fixture *w, fixture_member *m, int64_t keep) {
    model_cache *model = m->model;
    if (kv_truncate(m->cache, model->n + 1) != MN_E_ARG || kv_truncate(m->cache, -1) != MN_E_ARG)
        PROBLEM(w, "truncation beyond the length");
    bool reached = model_reachable(model, keep) == keep;
    mn_status status = kv_truncate(m->cache, keep);
    if (status != (reached ? MN_OK : MN_E_UNSUPPORTED))
        PROBLEM(w, "truncation to %d of %d tokens gave %d", (int)keep, (int)model->n, (int)status);
    if (reached) model_truncate(model, keep);
}

bool fixture_fork(fixture *w, fixture_member *out, const fixture_member *m, unsigned fail) {
    *out = (fixture_member){0};
    bool fits = model_fork(&out->model, m->model);
    start_failing(w, fail);
    if (was_done(w, kv_fork(&out->cache, m->cache), false, fits, "a fork") && !w->problem) return true;
    if (out->cache && !w->problem) PROBLEM(w, "a failed fork gave a cache");
    fixture_drop(out);
    return false;
}

bool fixture_add(fixture *w, fixture_member *out, unsigned fail) {
    const fixture_setting *set = w->set;
    *out = (fixture_member){0};
    bool fits = model_open(&out->model, w->model_pool, set->specs, set->n_entries, &set->options, &w->kernels);
    start_failing(w, fail);
    mn_status status = kv_open(&out->cache, w->pool, set->specs, set->n_entries, &set->options);
    if (was_done(w, status, false, fits, "opening") && !w->problem) return true;
    if (out->cache && !w->problem) PROBLEM(w, "a failed opening gave a cache");
    fixture_drop(out);
    return false;
}

void fixture_drop(fixture_member *m) {
    kv_close(&m->cache);
    model_close(&m->model);
}

static void do_close(fixture *w, int i) {
    fixture_drop(&w->members[i]);
    w->members[i] = w->members[--w->n_members];
}

/* The rows of a batch become rows[order[i]]: reorder, repeat or select, depending on the numbers. */
static void do_rows(fixture *w, const fixture_op *op) {
    fixture_member next[FIXTURE_CACHES];
    int n = 1 + (int)(op->amount % FIXTURE_CACHES), n_made = 0;
    for (; n_made < n; n_made++) {
        unsigned from = op->detail >> 3 * n_made & 7;
        if (!fixture_fork(w, &next[n_made], &w->members[from % (unsigned)w->n_members], op->fail + (unsigned)n_made))
            break;
    }
    if (n_made < n) { /* refused: the old rows are kept */
        while (n_made > 0) fixture_drop(&next[--n_made]);
        return;
    }
    while (w->n_members > 0) do_close(w, w->n_members - 1);
    for (; w->n_members < n; w->n_members++) w->members[w->n_members] = next[w->n_members];
}

static void do_fill(fixture *w, fixture_member *m, const fixture_op *op) {
    model_cache *model = m->model;
    uint32_t tokens[MODEL_TOKENS];
    int n = 1 + (int)(op->amount % MOST_STEP);
    int64_t filled = 0;
    bool any = false;
    for (int i = 0; i < model->n_entries; i++) {
        any = any || !model_steps(&model->entries[i]);
        filled += model->entries[i].n_filled;
    }
    if (!any) return;
    if (filled) {
        if (kv_fill(m->cache, n) != MN_E_ARG) PROBLEM(w, "filled twice");
        return;
    }
    bool fits = model_fill_fits(model, n);
    start_failing(w, op->fail);
    if (!was_done(w, kv_fill(m->cache, n), false, fits, "filling") || w->problem) return;
    new_tokens(w, tokens, n);
    for (int i = 0; i < model->n_entries; i++) {
        if (!model_steps(&model->entries[i])) append_entry(w, m, tokens, i, 0, n, op->detail);
    }
    model_fill(model, tokens, n);
    quantize_all(w, m, kv_fill_commit(m->cache), op->detail);
}

/* Failures in the middle of an operation are tested elsewhere (tests/kv/test_convert.c, test_snapshot.c). */
static bool has_room_for_all(const fixture *w) {
    return w->set->alone && !w->set->fails && !w->set->budget;
}

static void do_convert(fixture *w, fixture_member *m, const fixture_op *op) {
    kv_spec specs[MODEL_ENTRIES];
    int n = m->model->n_entries;
    kv_options options = m->model->options;
    if (!has_room_for_all(w)) return;
    for (int i = 0; i < n; i++) specs[i] = m->model->entries[i].spec;
    fixture_specs_change(specs, w->set, op->detail);
    if (op->amount % 4 == 0 && !w->set->is_offloaded) options.reserve = options.reserve ? 0 : 10 + op->amount % 100;
    kv_cache *before = m->cache;
    mn_status status = kv_convert(&m->cache, &w->kernels, specs, n, &options);
    if (model_convert(m->model, specs, options.reserve)) {
        if (status != MN_OK) PROBLEM(w, "a conversion gave %d: %s", (int)status, mn_last_error());
        w->counts.converted++;
    } else {
        if (status != MN_E_UNSUPPORTED || m->cache != before) PROBLEM(w, "a conversion gave %d", (int)status);
        w->counts.kept++;
    }
}

static void do_save(fixture *w, fixture_member *m) {
    kv_spec specs[MODEL_ENTRIES];
    kv_snapshot *snapshot = NULL;
    archive *saved = NULL;
    size_t n;
    int n_entries = m->model->n_entries;
    if (!has_room_for_all(w)) return;
    for (int i = 0; i < n_entries; i++) specs[i] = m->model->entries[i].spec;
    const char *path = scratch_path("cache");
    assert_ok(kv_snapshot_open(&snapshot, m->cache, false));
    const archive_entry *entries = kv_snapshot_entries(snapshot, &n);
    assert_ok(archive_write(path, entries, n, NULL, 0));
    kv_snapshot_close(&snapshot);
    kv_close(&m->cache);
    assert_ok(archive_open(&saved, path));
    unlink(path);
    if (kv_restore(&m->cache, w->pool, specs, n_entries, &m->model->options, saved, m->model->n) != MN_OK) {
        PROBLEM(w, "a saved cache is refused: %s", mn_last_error());
        assert_ok(kv_open(&m->cache, w->pool, specs, n_entries, &m->model->options));
    }
    model_reload(m->model);
    w->counts.saved++;
}

void fixture_do(fixture *w, const fixture_op *op) {
    int i = (int)(op->cache % (unsigned)w->n_members);
    fixture_member *m = &w->members[i];
    switch (op->kind) {
    case FIXTURE_TRUNCATE: do_truncate(w, m, (int64_t)(op->amount % (unsigned)(m->model->n + 1))); break;
    case FIXTURE_RESET: do_truncate(w, m, 0); break;
    case FIXTURE_FORK:
        if (w->n_members < FIXTURE_CACHES && fixture_fork(w, &w->members[w->n_members], m, op->fail)) w->n_members++;
        break;
    case FIXTURE_OPEN:
        if (w->n_members < FIXTURE_CACHES && fixture_add(w, &w->members[w->n_members], op->fail)) w->n_members++;
        break;
    case FIXTURE_CLOSE:
        if (w->n_members > 1) do_close(w, i);
        break;
    case FIXTURE_ROWS: do_rows(w, op); break;
    case FIXTURE_FILL: do_fill(w, m, op); break;
    case FIXTURE_CONVERT: do_convert(w, m, op); break;
    case FIXTURE_SAVE: do_save(w, m); break;
    default: do_call(w, m, op);
    }
}

void fixture_files_in_memory(void) {
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
}

void fixture_open(fixture *w, const fixture_setting *set, kv_pool *pool) {
    *w = (fixture){.set = set, .pool = pool, .next_token = 1};
    kernel_table_fill(&w->kernels, set->seed % 16 == 0 ? CPU_SCALAR : cpu_best());
    w->model_pool = malloc(sizeof *w->model_pool);
    model_pool_open(w->model_pool, set->budget);
    if (!pool) assert_ok(kv_pool_open(&w->pool, set->budget));
    if (set->is_offloaded) assert_ok(kv_pool_open_offload(w->pool, scratch_path("")));
}

void fixture_close(fixture *w) {
    for (int i = 0; i < w->n_members; i++) fixture_drop(&w->members[i]);
    if (!w->problem && w->model_pool->used != 0) PROBLEM(w, "the model kept pages");
    if (w->set->alone) {
        if (!w->problem && kv_pool_used(w->pool) != 0) PROBLEM(w, "pages were not returned");
        kv_pool_close(&w->pool);
    }
    free(w->model_pool);
}

/* ---- random sequences ---- */

static const char *run(const fixture_setting *set, const fixture_op *ops, int n, int *n_done, fixture_counts *counts,
                       char *text) {
    static fixture w;
    int64_t live = mem_count().live;
    fixture_open(&w, set, NULL);
    *n_done = 0;
    if (fixture_add(&w, &w.members[0], 1)) w.n_members = 1;
    for (; w.n_members && *n_done < n && !w.problem; ++*n_done) {
        fixture_do(&w, &ops[*n_done]);
        fixture_check_all(&w);
    }
    fixture_close(&w);
    if (!w.problem && mem_count().live != live) PROBLEM(&w, "memory was not returned");
    counts->refused += w.counts.refused;
    counts->quantized += w.counts.quantized;
    counts->converted += w.counts.converted;
    counts->kept += w.counts.kept;
    counts->saved += w.counts.saved;
    counts->offload += w.counts.offload;
    if (w.problem) snprintf(text, sizeof w.text, "%s", w.problem);
    return w.problem ? text : NULL;
}

static const char *const op_names[FIXTURE_N_OPS] = {
    "call",  "broken call", "abandoned call", "truncate", "truncate in a step", "reset", "fork", "open",
    "close", "rows",        "fill",           "convert",  "save and load"};

static size_t describe(const fixture_setting *set, char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "seed %llu, pages of %d, reserve %d, limit %d, budget %zu%s",
                                (unsigned long long)set->seed, set->options.page_tokens, (int)set->options.reserve,
                                (int)set->options.limit, set->budget, set->fails ? ", failing" : "");
    for (int i = 0; i < set->n_entries && n < size; i++) {
        const kv_spec *s = &set->specs[i];
        n += (size_t)snprintf(
            text + n, size - n,
            "\n  entry %d: %s %d heads of %d and %d, %s, keys %s %d bits axis %d group %d%s, values %s %d bits "
            "axis %d group %d, residual %d%s, exact_first %d, window %d + %d%s, %d checkpoints",
            i, s->kind == KV_STATE ? "state" : "pages", s->n_heads, s->k_dim, s->v_dim, kv_codec_name(s->exact),
            kv_codec_name(s->key.codec), s->key.bits, s->key.axis, s->key.group, s->calibration ? " calibrated" : "",
            kv_codec_name(s->value.codec), s->value.bits, s->value.axis, s->value.group, s->residual,
            s->flush ? " flush" : "", s->exact_first, s->sinks, s->window,
            s->write_once     ? ", write once"
            : s->is_offloaded ? ", offloaded"
                              : "",
            s->checkpoints);
    }
    return n;
}

/* Removes every operation without which the sequence still fails, then reduces numbers; prints the rest. */
static void show_shortest(const fixture_setting *set, fixture_op *ops, int n) {
    static char text[6000], why[512];
    fixture_counts counts = {0};
    int done;
    for (int i = n - 1; i >= 0; i--) {
        fixture_op gone = ops[i];
        memmove(ops + i, ops + i + 1, (size_t)(n - i - 1) * sizeof *ops);
        if (run(set, ops, n - 1, &done, &counts, why)) {
            n--;
            continue;
        }
        memmove(ops + i + 1, ops + i, (size_t)(n - i - 1) * sizeof *ops);
        ops[i] = gone;
    }
    for (int i = 0; i < n; i++) {
        unsigned *numbers[] = {&ops[i].cache, &ops[i].amount, &ops[i].detail, &ops[i].fail};
        for (int j = 0; j < 4; j++) {
            for (unsigned old = *numbers[j]; old > 0; old = *numbers[j]) {
                *numbers[j] = old / 2;
                if (run(set, ops, n, &done, &counts, why)) continue;
                *numbers[j] = old;
                break;
            }
        }
    }
    bool still = run(set, ops, n, &done, &counts, why) != NULL;
    size_t at = describe(set, text, sizeof text);
    for (int i = 0; i < n && at < sizeof text; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "\n  %s of cache %u, amount %u, detail %u, fail %u",
                               op_names[ops[i].kind], ops[i].cache, ops[i].amount, ops[i].detail, ops[i].fail);
    }
    printf("%s\n", text); /* longer than cmocka's messages can be */
    fail_msg("%s", still ? why : "(no longer)");
}

void fixture_random_ops(fixture_op *ops, int n, uint64_t seed) {
    static const fixture_op_kind often[] = {FIXTURE_CALL,        FIXTURE_CALL,     FIXTURE_CALL,    FIXTURE_CALL,
                                            FIXTURE_CALL,        FIXTURE_CALL,     FIXTURE_CALL,    FIXTURE_TRUNCATE,
                                            FIXTURE_BROKEN_CALL, FIXTURE_TRUNCATE, FIXTURE_ABANDON, FIXTURE_FORK,
                                            FIXTURE_FORK,        FIXTURE_FILL,     FIXTURE_ROWS,    FIXTURE_CLOSE};
    static const fixture_op_kind seldom[] = {FIXTURE_TRUNCATE_IN_STEP, FIXTURE_RESET, FIXTURE_OPEN,    FIXTURE_CONVERT,
                                             FIXTURE_TRUNCATE_IN_STEP, FIXTURE_SAVE,  FIXTURE_CONVERT, FIXTURE_SAVE};
    uint64_t state = seed << 20;
    for (int i = 0; i < n; i++) {
        uint64_t r = test_random(&state), s = test_random(&state);
        ops[i] = (fixture_op){r % 11 == 0 ? seldom[s >> 60 & 7] : often[r >> 8 & 15], (unsigned)(r >> 16 & 0xFF),
                              (unsigned)(r >> 24 & 0xFFFF), (unsigned)(s & 0xFFFFFF), (unsigned)(r >> 44 & 0xFFFF)};
    }
}

int fixture_run_random(const fixture_setting *set, fixture_counts *counts) {
    fixture_op ops[FIXTURE_OPS];
    char why[512];
    int done;
    fixture_random_ops(ops, FIXTURE_OPS, set->seed);
    if (!run(set, ops, FIXTURE_OPS, &done, counts, why)) return done;
    if (getenv("MNEME_NO_SHRINK")) fail_msg("seed %llu: %s", (unsigned long long)set->seed, why);
    show_shortest(set, ops, done);
    return done;
}

/* ---- with assertions ---- */

uint32_t *fixture_tokens(void) {
    static uint32_t tokens[MODEL_TOKENS];
    for (int i = 0; i < MODEL_TOKENS; i++) tokens[i] = 1000u + 7u * (unsigned)i;
    return tokens;
}

fixture_member *fixture_new(fixture *w) {
    if (!fixture_add(w, &w->members[w->n_members], 1)) fail_msg("%s", w->problem);
    return &w->members[w->n_members++];
}

fixture_member *fixture_fork_of(fixture *w, const fixture_member *m) {
    if (!fixture_fork(w, &w->members[w->n_members], m, 1)) fail_msg("%s", w->problem);
    return &w->members[w->n_members++];
}

void fixture_put(fixture *w, fixture_member *m, const uint32_t *tokens, int n, int most_step) {
    if (!fixture_call(w, m, tokens, n, most_step)) fail_msg("%s", w->problem ? w->problem : "no room");
}

void fixture_cut(fixture_member *m, int64_t n) {
    assert_ok(kv_truncate(m->cache, n));
    model_truncate(m->model, n);
}

/* Compares one stream of the tokens that both caches hold, bit for bit. */
void fixture_assert_same_stream(const fixture *w, const kv_cache *a, const kv_cache *b, int entry, bool is_key,
                                int64_t begin, int64_t end) {
    static float rows[2][2 * MODEL_TOKENS * 32];
    const kv_spec *spec = kv_entry_spec(a, entry);
    int n = (int)(end - begin);
    if (n <= 0) return;
    size_t floats = (size_t)spec->n_heads * (size_t)n * (size_t)(is_key ? spec->k_dim : spec->v_dim);
    assert_ok(kv_read(a, &w->kernels, entry, is_key, begin, n, rows[0]));
    assert_ok(kv_read(b, &w->kernels, entry, is_key, begin, n, rows[1]));
    assert_memory_equal(rows[0], rows[1], floats * sizeof(float));
}

void fixture_assert_same(const fixture *w, const kv_cache *a, const kv_cache *b) {
    assert_int_equal(kv_length(a), kv_length(b));
    assert_int_equal(kv_entries(a), kv_entries(b));
    for (int i = 0; i < kv_entries(a); i++) {
        if (kv_entry_spec(a, i)->kind == KV_STATE) continue;
        kv_view view = kv_attention_view(a, i);
        int64_t n = view.n_tokens, first = max_i64(kv_first_held(a, i), kv_first_held(b, i));
        assert_int_equal(kv_attention_view(b, i).n_tokens, n);
        for (int is_key = 0; is_key < 2; is_key++) {
            fixture_assert_same_stream(w, a, b, i, is_key, 0,
                                       min_i64(min_i64(view.n_head, kv_attention_view(b, i).n_head), n));
            fixture_assert_same_stream(w, a, b, i, is_key, first, n);
        }
    }
}
