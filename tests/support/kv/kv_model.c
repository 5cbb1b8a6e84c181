/* SPDX-License-Identifier: Apache-2.0 */
#include "support/kv/kv_model.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "kv/quantize.h"

enum { EXACT, CODED, HEAD };

/* Memory of tests is not in the library's counters and does not fail with it. */
static void *zeroed(size_t n) {
    void *block = NULL;
    n = (n + 63) / 64 * 64;
    if (posix_memalign(&block, 64, n ? n : 64) != 0) abort();
    memset(block, 0, n);
    return block;
}

/* ---- pages by number ---- */

void model_pool_open(model_pool *pool, size_t budget) {
    pool->budget = budget;
    pool->used = 0;
    pool->n_free = 0;
    memset(pool->is_mapped, 0, sizeof pool->is_mapped);
    for (int i = MODEL_IDS - 1; i > 0; i--) pool->free[pool->n_free++] = i;
}

static bool allows(const model_pool *pool, size_t need) {
    return need == 0 || !pool->budget || pool->used + need <= pool->budget;
}

static int new_page(model_pool *pool, size_t bytes) {
    if (pool->n_free == 0) abort();
    int page = pool->free[--pool->n_free];
    pool->references[page] = 1;
    pool->bytes[page] = bytes;
    pool->before[page] = pool->from[page] = pool->room[page] = 0;
    pool->used += bytes;
    return page;
}

static int mapped_page(model_pool *pool, size_t bytes) {
    int page = new_page(pool, bytes);
    pool->used -= bytes;
    pool->is_mapped[page] = true;
    return page;
}

static void drop_reference(model_pool *pool, int page) {
    if (--pool->references[page] > 0) return;
    if (!pool->is_mapped[page]) pool->used -= pool->bytes[page];
    pool->is_mapped[page] = false;
    pool->free[pool->n_free++] = page;
    if (pool->before[page]) drop_reference(pool, pool->before[page]);
}

static bool is_own(const model_pool *pool, int page) {
    return pool->references[page] == 1 && !pool->is_mapped[page];
}

static int share(model_pool *pool, int page) {
    if (page) pool->references[page]++;
    return page;
}

/* ---- values ---- */

float *model_row(const model_entry *e, bool is_key, int head, int64_t position) {
    return e->rows[is_key ? 0 : 1] + ((size_t)head * MODEL_TOKENS + (size_t)position) * (size_t)model_dim(e, is_key);
}

static void put_values(model_entry *e, int64_t position, const uint32_t *tokens, int64_t n) {
    for (int is_key = 0; is_key < 2; is_key++) {
        for (int head = 0; head < e->spec.n_heads; head++) {
            for (int64_t t = 0; t < n; t++) {
                float *row = model_row(e, is_key, head, position + t);
                for (int d = 0; d < model_dim(e, is_key); d++)
                    row[d] = model_value(tokens[t], e->number, head, is_key, d, e->spec.exact);
            }
        }
    }
}

/* ---- rules ---- */

/* A page is halved until the pieces divide the residual; pieces of up to 32 tokens are not halved. */
static int64_t unit_of(const kv_spec *spec, int page_tokens) {
    for (int parts = 1;; parts *= 2) {
        int unit = page_tokens / parts;
        if (unit <= 32 || unit % 2 || spec->residual % unit == 0) return unit;
    }
}

/* The maximum number of quantized tokens of n held ones. */
static int64_t target_of(const model_entry *e, int64_t n, bool call_ends) {
    if (!e->is_coded) return 0;
    int64_t whole = n - n % e->page_tokens, most = e->quantizes_whole_pages ? whole : n;
    if (e->spec.write_once) return most;
    if (e->spec.flush) return call_ends && e->flushes ? most : 0;
    int64_t unit_begin = n - n % unit_of(&e->spec, e->page_tokens), quantized = 0;
    while (quantized + e->page_tokens + e->spec.residual <= unit_begin) quantized += e->page_tokens;
    return quantized;
}

/* First position that a query at n still sees. */
static int64_t needed_from(const model_entry *e, int64_t n) {
    int64_t first = n - e->spec.window + 1;
    return e->spec.window == 0 || first < 0 ? 0 : first;
}

static bool is_whole(kv_form form) {
    return form.codec == KV_MNEME || (kv_form_is_coded(form) && form.axis == CODE_CHANNEL);
}

/* Tokens of a page to quantize when n are held: per call, not those that no query sees any more; page by page, all of
 * them, since queries in the middle of the step saw them. */
static bool to_quantize(const model_entry *e, int64_t page, int64_t n, int64_t target, int *first, int *end) {
    int64_t slot = page - e->first_page, most = target - page * e->page_tokens;
    *first = slot < e->n_slots ? e->slots[slot].n_quantized : 0;
    *end = (int)min_i64(most, e->page_tokens);
    if (e->spec.flush && (page + 1) * e->page_tokens <= needed_from(e, n)) return false;
    return *end > *first && (*first == 0 || !e->quantizes_whole_pages);
}

int model_quantized(const model_entry *e, int64_t page) {
    return e->slots[page - e->first_page].n_quantized;
}

int64_t model_first_held(const model_entry *e) {
    return e->first_page * e->page_tokens;
}

int64_t model_held(const model_cache *cache, const model_entry *e) {
    return e->spec.write_once ? e->n_filled : cache->n;
}

/* ---- sizes ---- */

static size_t padded(size_t n) {
    return (n + 63) / 64 * 64;
}

static size_t exact_bytes(const kv_spec *spec, int dim, int tokens) {
    return (size_t)spec->n_heads * (size_t)dim * (size_t)tokens * (spec->exact == KV_F32 ? 4 : 2);
}

static size_t coded_bytes(const kv_spec *spec, bool is_key, int dim, int tokens) {
    kv_form form = is_key ? spec->key : spec->value;
    if (!kv_form_is_coded(form)) return exact_bytes(spec, dim, tokens);
    return (size_t)spec->n_heads * kv_form_bytes(form, is_key, is_key && spec->calibration, dim, tokens);
}

/* Pages that a cache preallocates for n tokens: those of a window, one more where it begins inside a page; with
 * quantization, exact ones for the residual and two more. */
static void reserve_sizes(model_entry *e, int64_t n) {
    const kv_spec *spec = &e->spec;
    int page = e->page_tokens, held = (int)ceil_div(n, page), tail = (int)ceil_div(spec->residual, page) + 2;
    int window = (int)ceil_div(spec->window, page) + 1;
    if (n == 0 || spec->kind == KV_STATE) return;
    if (spec->window && held > window) held = window;
    e->most_kept[EXACT] = !e->is_coded || spec->flush || tail > held ? held : tail;
    e->most_kept[CODED] = e->is_coded ? held : 0;
}

static void open_entry(model_entry *e, const kv_spec *spec, int number, const kv_options *options,
                       const kernel_table *kernels) {
    int page = options->page_tokens;
    *e = (model_entry){.spec = *spec, .kernels = kernels, .number = number, .page_tokens = page};
    if (spec->kind == KV_STATE) {
        e->bytes[EXACT] = padded(spec->state_bytes);
        return;
    }
    e->is_coded = kv_form_is_coded(spec->key) || kv_form_is_coded(spec->value);
    e->quantizes_whole_pages = is_whole(spec->key) || is_whole(spec->value);
    e->head_tokens = spec->window && spec->sinks ? spec->sinks : e->is_coded ? spec->exact_first : 0;
    int head = (e->head_tokens + 1) / 2 * 2;
    e->bytes[EXACT] = padded(padded(exact_bytes(spec, spec->k_dim, page)) + exact_bytes(spec, spec->v_dim, page));
    e->bytes[HEAD] = padded(padded(exact_bytes(spec, spec->k_dim, head)) + exact_bytes(spec, spec->v_dim, head));
    if (e->is_coded) {
        e->bytes[CODED] =
            padded(padded(coded_bytes(spec, true, spec->k_dim, page)) + coded_bytes(spec, false, spec->v_dim, page));
    }
    reserve_sizes(e, options->reserve);
    for (int i = 0; i < 2; i++) {
        int dim = i == 0 ? spec->k_dim : spec->v_dim;
        e->rows[i] = zeroed((size_t)spec->n_heads * MODEL_TOKENS * (size_t)dim * sizeof(float));
    }
}

static int n_held(const model_entry *e, int kind) {
    int n = 0;
    for (int i = 0; i < e->n_slots; i++) n += e->slots[i].page[kind] != 0;
    return n;
}

size_t model_bytes(const model_cache *cache) {
    size_t n = 0;
    for (int i = 0; i < cache->n_entries; i++) {
        const model_entry *e = &cache->entries[i];
        for (int kind = 0; kind < 2; kind++) n += (size_t)e->n_kept[kind] * e->bytes[kind];
        n += (size_t)n_held(e, CODED) * e->bytes[CODED];
        for (int s = 0; s < e->n_slots; s++) {
            for (int page = e->slots[s].page[EXACT]; page; page = cache->pool->before[page])
                n += cache->pool->bytes[page];
        }
        n += e->head ? e->bytes[HEAD] : 0;
        n += (size_t)(e->n_states + (e->next_state != 0)) * e->bytes[EXACT];
    }
    return n;
}

/* Tokens for which a page that holds `fill` of them has space when it is allocated for them alone. */
static int room_for(const model_entry *e, int fill) {
    int room = 16;
    while (room < fill) room += room;
    return e->page_tokens % 16 || e->most_kept[EXACT] || room > e->page_tokens ? e->page_tokens : room;
}

void model_bytes_range(const model_cache *cache, size_t *least, size_t *most) {
    *least = *most = model_bytes(cache);
    for (int i = 0; i < cache->n_entries; i++) {
        const model_entry *e = &cache->entries[i];
        for (int s = 0; s < e->n_slots; s++) {
            size_t in_parts = 0, first = 0, whole = e->bytes[EXACT];
            for (int page = e->slots[s].page[EXACT]; page; page = cache->pool->before[page]) {
                first = cache->pool->bytes[page];
                in_parts += first;
            }
            if (in_parts == 0) continue;
            int64_t fill = min_i64(cache->n - (e->first_page + s) * e->page_tokens, e->page_tokens);
            size_t compact = whole * (size_t)room_for(e, (int)max_i64(fill, 1)) / (size_t)e->page_tokens;
            *least -= in_parts > compact ? in_parts - compact : 0;
            *most += whole - first; /* a whole page that is shared keeps what lies behind the tokens of this cache */
        }
    }
}

static void note_peak(model_cache *cache) {
    size_t now = model_bytes(cache);
    if (now > cache->peak) cache->peak = now;
}

/* ---- taking and returning pages ---- */

/* Refills the preallocated pages; returns the bytes that this needs. */
static size_t keep_reserve(model_pool *pool, model_entry *e, bool apply) {
    size_t need = 0;
    for (int kind = 0; kind < 2; kind++) {
        int n = e->most_kept[kind] - n_held(e, kind) - e->n_kept[kind];
        if (n <= 0) continue;
        need += (size_t)n * e->bytes[kind];
        if (!apply) continue;
        e->n_kept[kind] += n;
        pool->used += (size_t)n * e->bytes[kind];
    }
    return need;
}

static int take(model_pool *pool, model_entry *e, int kind) {
    if (kind != HEAD && e->n_kept[kind] > 0) {
        e->n_kept[kind]--;
        pool->used -= e->bytes[kind];
    }
    return new_page(pool, e->bytes[kind]);
}

/* A page that no other cache shares returns to the preallocated ones while they are fewer than requested. */
static void give(model_pool *pool, model_entry *e, int kind, int *page) {
    if (!*page) return;
    int number = *page;
    bool own = is_own(pool, number) && !pool->room[number];
    *page = 0;
    drop_reference(pool, number);
    if (own && e->n_kept[kind] + n_held(e, kind) < e->most_kept[kind]) {
        e->n_kept[kind]++;
        pool->used += e->bytes[kind];
    }
}

/* Gives a slot that will be written an unshared page; returns the bytes that this needs from the pool. */
static size_t own_page(model_pool *pool, model_entry *e, int kind, int *page, int *n_kept, bool apply) {
    if (*page && is_own(pool, *page)) return 0;
    size_t need = kind != HEAD && n_kept[kind] > 0 ? 0 : e->bytes[kind];
    if (!need) n_kept[kind]--;
    if (apply) {
        int own = take(pool, e, kind);
        if (*page) drop_reference(pool, *page);
        *page = own;
    }
    return need;
}

/* An exact page of which slots [begin, end) will be written. Pages of a multiple of 16 tokens that are not preallocated
 * grow in parts of 16, 32, 64, ... tokens. Slots that other caches share are kept, in multiples of 16; the cache's own
 * part begins after them. */
static size_t own_part(model_pool *pool, model_entry *e, int *page, int begin, int end, int *n_kept, bool apply) {
    if (e->page_tokens % 16 || e->most_kept[EXACT]) return own_page(pool, e, EXACT, page, n_kept, apply);
    int last = *page, from = 0, before = 0, room = 16;
    bool own = last && is_own(pool, last);
    if (own && begin >= pool->from[last]) {
        int has = pool->room[last] ? pool->room[last] : e->page_tokens;
        if (end <= pool->from[last] + has) return 0;
        from = pool->from[last];
        before = pool->before[last];
    } else if (last) {
        while (pool->from[last] > begin) last = pool->before[last];
        from = begin - begin % 16;
        before = last;
        if (from == pool->from[last]) before = pool->before[last];
    }
    while (from + room < end) room += room;
    room = (int)min_i64(room, e->page_tokens - from);
    size_t need = e->bytes[EXACT] * (size_t)room / (size_t)e->page_tokens;
    if (!apply) return need;
    int part = new_page(pool, need);
    if (room < e->page_tokens) pool->room[part] = room;
    pool->from[part] = from;
    pool->before[part] = share(pool, before);
    if (*page) drop_reference(pool, *page);
    *page = part;
    return need;
}

/* A page with space for `fill` tokens. */
static int open_page(model_pool *pool, const model_entry *e, int fill) {
    int room = room_for(e, fill), page = new_page(pool, e->bytes[EXACT] * (size_t)room / (size_t)e->page_tokens);
    if (room < e->page_tokens) pool->room[page] = room;
    return page;
}

/* The bytes that a step from n to n_total tokens that quantizes up to `target` takes; with `apply` takes the pages. */
static size_t step_entry(model_pool *pool, model_entry *e, int64_t n, int64_t n_total, int64_t target, bool apply) {
    size_t need = 0;
    int n_kept[3] = {e->n_kept[EXACT], e->n_kept[CODED]}, first, end;
    if (e->spec.kind == KV_STATE) {
        if (apply) e->next_state = new_page(pool, e->bytes[EXACT]);
        return e->bytes[EXACT];
    }
    for (int64_t page = e->first_page; page * e->page_tokens < n_total; page++) {
        int64_t slot = page - e->first_page;
        model_slot none = {0}, *place = slot < e->n_slots ? &e->slots[slot] : &none;
        bool is_written = (page + 1) * e->page_tokens > n && n_total > n;
        bool is_quantized = to_quantize(e, page, n_total, target, &first, &end);
        if (apply && place == &none) {
            place = &e->slots[slot];
            *place = none;
            e->n_slots = (int)slot + 1;
        }
        int64_t at = page * e->page_tokens;
        if (is_written) {
            need += own_part(pool, e, &place->page[EXACT], (int)max_i64(n - at, 0),
                             (int)min_i64(n_total - at, e->page_tokens), n_kept, apply);
        }
        if (is_quantized) need += own_page(pool, e, CODED, &place->page[CODED], n_kept, apply);
    }
    if (n < e->head_tokens && n_total > n) need += own_page(pool, e, HEAD, &e->head, n_kept, apply);
    return need;
}

static void tidy_states(model_pool *pool, model_entry *e, int64_t n) {
    if (e->next_state) drop_reference(pool, e->next_state);
    e->next_state = 0;
    while (e->n_states > 0 && e->states[e->n_states - 1].position > n)
        drop_reference(pool, e->states[--e->n_states].page);
}

/* Keeps the pages that n tokens need. */
static void tidy_entry(model_pool *pool, model_entry *e, int64_t n) {
    if (e->spec.kind == KV_STATE) {
        tidy_states(pool, e, n);
        return;
    }
    int64_t page = e->page_tokens, end = ceil_div(n, page);
    for (; e->n_slots > 0 && e->first_page + e->n_slots > end; e->n_slots--) {
        for (int kind = 0; kind < 2; kind++) give(pool, e, kind, &e->slots[e->n_slots - 1].page[kind]);
    }
    int64_t first = n == 0 ? 0 : max_i64(e->first_page, needed_from(e, n) / page);
    int n_evicted = (int)min_i64(max_i64(first - e->first_page, 0), e->n_slots);
    for (int i = 0; i < n_evicted; i++) {
        for (int kind = 0; kind < 2; kind++) give(pool, e, kind, &e->slots[i].page[kind]);
    }
    e->n_slots -= n_evicted;
    memmove(e->slots, e->slots + n_evicted, (size_t)e->n_slots * sizeof *e->slots);
    e->first_page = first;
    for (int i = 0; i < e->n_slots; i++) {
        model_slot *slot = &e->slots[i];
        int fill = (int)min_i64(page, n - (first + i) * page);
        if (slot->n_quantized > fill) slot->n_quantized = fill;
        if (slot->n_quantized == fill) give(pool, e, EXACT, &slot->page[EXACT]);
        if (slot->n_quantized == 0) give(pool, e, CODED, &slot->page[CODED]);
        int *exact = &slot->page[EXACT];
        while (*exact && pool->before[*exact] && pool->from[*exact] >= fill) { /* the last part is empty */
            int rest = share(pool, pool->before[*exact]);
            drop_reference(pool, *exact);
            *exact = rest;
        }
    }
    if (n == 0 && e->head) {
        drop_reference(pool, e->head);
        e->head = 0;
    }
}

/* ---- quantizing ---- */

/* Quantizes tokens [begin, begin + n) of one stream and stores the dequantized values. */
static void quantize_tokens(model_entry *e, bool is_key, int64_t begin, int n) {
    const kv_spec *spec = &e->spec;
    kv_form form = is_key ? spec->key : spec->value;
    int dim = model_dim(e, is_key), heads = spec->n_heads, slot = (int)(begin % e->page_tokens);
    int n_pages = (int)ceil_div(slot + n, e->page_tokens);
    code_layout layouts[8];
    for (int h = 0; h < heads; h++) {
        kv_form_layout(&layouts[h], form, is_key, dim, e->page_tokens,
                       is_key && spec->calibration ? spec->calibration[h].lambda : NULL);
    }
    size_t head_bytes = kv_form_bytes(form, is_key, is_key && spec->calibration, dim, e->page_tokens);
    size_t floats = (size_t)heads * (size_t)n * (size_t)dim;
    char *pages[MODEL_PAGES], *codes = zeroed((size_t)n_pages * (size_t)heads * head_bytes);
    for (int i = 0; i < n_pages; i++) pages[i] = codes + (size_t)i * (size_t)heads * head_bytes;
    float *rows = zeroed(floats * sizeof *rows);
    void *scratch = zeroed(quantize_scratch_bytes(form, is_key, dim, e->page_tokens, heads, n));
    quantize_stream job = {.kernels = e->kernels,
                           .form = form,
                           .is_key = is_key,
                           .dim = dim,
                           .page_tokens = e->page_tokens,
                           .head_end = heads,
                           .layouts = layouts,
                           .calibration = is_key ? spec->calibration : NULL,
                           .pages = pages,
                           .head_bytes = head_bytes,
                           .first = slot,
                           .n = n,
                           .rows = rows,
                           .scratch = scratch};
    job.n_skip = (int)min_i64(max_i64(e->head_tokens - begin, 0), n);
    size_t row_bytes = (size_t)dim * sizeof *rows;
    for (int h = 0; h < heads; h++)
        memcpy(rows + (size_t)h * (size_t)n * (size_t)dim, model_row(e, is_key, h, begin), (size_t)n * row_bytes);
    quantize_write(&job);
    quantize_read(&job);
    for (int h = 0; h < heads; h++) {
        for (int t = job.n_skip; t < n; t++) /* the first tokens are read from the head */
            memcpy(model_row(e, is_key, h, begin + t), rows + ((size_t)h * (size_t)n + (size_t)t) * (size_t)dim,
                   row_bytes);
    }
    free(codes);
    free(rows);
    free(scratch);
}

/* hqq optimizes over all tokens of a call that are quantized together, the others over at most a page. */
static void quantize_stream_of(model_entry *e, bool is_key, int64_t n, int64_t target) {
    kv_form form = is_key ? e->spec.key : e->spec.value;
    int64_t all_begin = -1, all_end = 0;
    bool together = form.codec == KV_HQQ && (e->spec.flush || e->spec.write_once);
    if (!kv_form_is_coded(form)) return;
    for (int i = 0; i < e->n_slots; i++) {
        int first, end;
        int64_t begin = (e->first_page + i) * e->page_tokens;
        if (!to_quantize(e, e->first_page + i, n, target, &first, &end)) continue;
        if (!together) quantize_tokens(e, is_key, begin + first, end - first);
        if (all_begin < 0) all_begin = begin + first;
        all_end = begin + end;
    }
    if (together && all_end > 0) quantize_tokens(e, is_key, all_begin, (int)(all_end - all_begin));
}

static void quantize_entry(model_entry *e, int64_t n, int64_t target) {
    quantize_stream_of(e, true, n, target);
    quantize_stream_of(e, false, n, target);
    for (int i = 0; i < e->n_slots; i++) {
        int first, end;
        if (to_quantize(e, e->first_page + i, n, target, &first, &end)) e->slots[i].n_quantized = end;
    }
}

/* ---- a cache ---- */

bool model_open(model_cache **out, model_pool *pool, const kv_spec *specs, int n_entries, const kv_options *options,
                const kernel_table *kernels) {
    model_cache *cache = zeroed(sizeof *cache);
    size_t need = 0;
    *cache = (model_cache){.pool = pool, .options = *options, .n_entries = n_entries};
    for (int i = 0; i < n_entries; i++) {
        open_entry(&cache->entries[i], &specs[i], i, options, kernels);
        need += keep_reserve(pool, &cache->entries[i], false);
    }
    *out = cache;
    if (!allows(pool, need)) {
        model_close(out);
        return false;
    }
    for (int i = 0; i < n_entries; i++) keep_reserve(pool, &cache->entries[i], true);
    note_peak(cache);
    return true;
}

void model_close(model_cache **cache) {
    model_cache *c = *cache;
    for (int i = 0; c && i < c->n_entries; i++) {
        model_entry *e = &c->entries[i];
        e->most_kept[0] = e->most_kept[1] = 0;
        tidy_entry(c->pool, e, 0);
        for (int kind = 0; kind < 2; kind++) c->pool->used -= (size_t)e->n_kept[kind] * e->bytes[kind];
        for (int j = 0; j < 2; j++) free(e->rows[j]);
    }
    free(c);
    *cache = NULL;
}

/* A preallocated cache gives its fork private copies of pages that are not full. */
static size_t fork_entry(model_pool *pool, model_entry *fork, const model_entry *e, int64_t n, bool copies,
                         bool apply) {
    size_t need = 0;
    *fork = *e;
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < e->n_slots; i++) {
            bool full = (e->first_page + i + 1) * e->page_tokens <= n;
            int page = e->slots[i].page[kind];
            if (page && copies && !full) need += e->bytes[kind];
            if (!apply) continue;
            fork->slots[i].page[kind] = page && copies && !full ? new_page(pool, e->bytes[kind]) : share(pool, page);
        }
        fork->n_kept[kind] = 0;
    }
    bool own_head = copies && e->head && n < e->head_tokens;
    need += own_head ? e->bytes[HEAD] : 0;
    need += keep_reserve(pool, fork, apply);
    if (!apply) return need;
    fork->head = own_head ? new_page(pool, e->bytes[HEAD]) : share(pool, e->head);
    for (int i = 0; i < e->n_states; i++) share(pool, e->states[i].page);
    for (int j = 0; j < 2 && e->rows[j]; j++) {
        size_t dim = (size_t)model_dim(e, j == 0), most = MODEL_TOKENS * dim;
        fork->rows[j] = zeroed((size_t)e->spec.n_heads * most * sizeof(float));
        for (int h = 0; h < e->spec.n_heads; h++)
            memcpy(fork->rows[j] + (size_t)h * most, e->rows[j] + (size_t)h * most, (size_t)n * dim * sizeof(float));
    }
    return need;
}

bool model_fork(model_cache **out, const model_cache *cache) {
    model_cache *fork = zeroed(sizeof *fork);
    size_t need = 0;
    *fork = *cache;
    for (int apply = 0; apply < 2; apply++) {
        for (int i = 0; i < cache->n_entries; i++) {
            const model_entry *e = &cache->entries[i];
            need +=
                fork_entry(cache->pool, &fork->entries[i], e, model_held(cache, e), cache->options.reserve > 0, apply);
        }
        if (apply == 0 && !allows(cache->pool, need)) {
            free(fork);
            *out = NULL;
            return false;
        }
    }
    fork->peak = model_bytes(fork);
    *out = fork;
    return true;
}

/* ---- steps ---- */

/* Transformers 4.56: the first call is quantized whole; a later one when the exact tokens before it are one at least
 * and, with one more, as many as residual_length. */
void model_call_begin(model_cache *cache) {
    cache->call_ends = false;
    for (int i = 0; i < cache->n_entries; i++) {
        model_entry *e = &cache->entries[i];
        int64_t exact_from = model_first_held(e);
        for (int s = 0; s < e->n_slots; s++) {
            if (e->slots[s].n_quantized > 0)
                exact_from = (e->first_page + s) * e->page_tokens + e->slots[s].n_quantized;
        }
        int64_t r = cache->n - exact_from;
        e->flushes = cache->n == 0 || (r >= 1 && r + 1 >= e->spec.residual);
    }
}

int64_t model_step_limit(const model_cache *cache) {
    int64_t limit = INT64_MAX;
    for (int i = 0; i < cache->n_entries; i++) {
        const model_entry *e = &cache->entries[i];
        if (!e->is_coded || e->spec.flush || e->spec.write_once) continue;
        int64_t unit = unit_of(&e->spec, e->page_tokens), next = cache->n - cache->n % unit + unit;
        if (cache->n % unit && next < limit) limit = next;
    }
    return limit;
}

static size_t step_all(model_cache *cache, int64_t n_total, bool steps, bool apply) {
    size_t need = 0;
    for (int i = 0; i < cache->n_entries; i++) {
        model_entry *e = &cache->entries[i];
        if (model_steps(e) != steps) continue;
        int64_t target = target_of(e, n_total, cache->call_ends);
        need += step_entry(cache->pool, e, steps ? cache->n : 0, n_total, target, apply);
    }
    return need;
}

bool model_fits(const model_cache *cache, int64_t n_new) {
    return allows(cache->pool, step_all((model_cache *)(uintptr_t)cache, cache->n + n_new, true, false));
}

void model_reserve(model_cache *cache, int64_t n_new) {
    step_all(cache, cache->n + n_new, true, true);
    cache->n_step = n_new;
    note_peak(cache);
}

static void tidy_all(model_cache *cache) {
    for (int i = 0; i < cache->n_entries; i++) {
        model_entry *e = &cache->entries[i];
        tidy_entry(cache->pool, e, model_held(cache, e));
    }
}

void model_abandon(model_cache *cache) {
    cache->n_step = 0;
    tidy_all(cache);
}

static void commit_state(model_cache *cache, model_entry *e) {
    if (e->n_states == e->spec.checkpoints + 1) {
        drop_reference(cache->pool, e->states[0].page);
        memmove(e->states, e->states + 1, (size_t)--e->n_states * sizeof *e->states);
    }
    e->states[e->n_states++] = (model_state){cache->n, e->next_state, cache->trails[cache->n]};
    e->next_state = 0;
}

void model_commit(model_cache *cache, const uint32_t *tokens) {
    int64_t begin = cache->n;
    for (int64_t i = 0; i < cache->n_step; i++)
        cache->trails[begin + i + 1] = model_mixed(cache->trails[begin + i] * 31 + tokens[i]);
    cache->n += cache->n_step;
    for (int i = 0; i < cache->n_entries; i++) {
        model_entry *e = &cache->entries[i];
        if (e->spec.kind == KV_STATE) {
            commit_state(cache, e);
        } else if (model_steps(e)) {
            put_values(e, begin, tokens, cache->n_step);
            quantize_entry(e, cache->n, target_of(e, cache->n, cache->call_ends));
        }
    }
    cache->n_step = 0;
    cache->call_ends = false;
    tidy_all(cache);
}

bool model_fill_fits(const model_cache *cache, int64_t n) {
    return allows(cache->pool, step_all((model_cache *)(uintptr_t)cache, n, false, false));
}

void model_fill(model_cache *cache, const uint32_t *tokens, int64_t n) {
    step_all(cache, n, false, true);
    for (int i = 0; i < cache->n_entries; i++) {
        if (!model_steps(&cache->entries[i])) cache->entries[i].n_filled = n;
    }
    note_peak(cache);
    for (int i = 0; i < cache->n_entries; i++) {
        model_entry *e = &cache->entries[i];
        if (model_steps(e)) continue;
        put_values(e, 0, tokens, n);
        quantize_entry(e, n, target_of(e, n, true));
    }
    cache->call_ends = false;
    tidy_all(cache);
}

/* ---- truncation ---- */

static int64_t reachable_entry(const model_entry *e, int64_t n) {
    if (!model_steps(e) || n == 0) return n;
    if (e->spec.kind == KV_PAGES) return needed_from(e, n) >= model_first_held(e) ? n : 0;
    int64_t best = 0;
    for (int i = 0; i < e->n_states; i++) {
        if (e->states[i].position <= n) best = e->states[i].position;
    }
    return best;
}

int64_t model_reachable(const model_cache *cache, int64_t n) {
    for (n = min_i64(n, cache->n); n > 0; n--) {
        bool all = true;
        for (int i = 0; i < cache->n_entries; i++) all = all && reachable_entry(&cache->entries[i], n) == n;
        if (all) break;
    }
    return n;
}

void model_truncate(model_cache *cache, int64_t n) {
    cache->n_step = 0;
    cache->n = n;
    tidy_all(cache);
}

/* ---- other specs ---- */

/* Entries must stay in the same or in different groups, as they are. */
static bool groups_as(const model_cache *cache, const kv_spec *specs) {
    for (int i = 0; i < cache->n_entries; i++) {
        for (int j = 0; j < i; j++) {
            const kv_spec *a = &cache->entries[i].spec, *b = &cache->entries[j].spec;
            if (kv_spec_equal(a, b) != kv_spec_equal(&specs[i], &specs[j])) return false;
        }
    }
    return true;
}

static bool may_become(const model_entry *e, const model_entry *next) {
    const kv_spec *a = &e->spec, *b = &next->spec;
    bool has_forgotten = e->first_page > 0, was_wider = a->window == 0 || (b->window && b->window <= a->window);
    if (a->kind == KV_STATE) return b->checkpoints == a->checkpoints;
    if (e->is_coded &&
        !(kv_form_equal(a->key, b->key) && kv_form_equal(a->value, b->value) && !a->calibration == !b->calibration))
        return false;
    if (e->is_coded && next->head_tokens < e->head_tokens) return false; /* the first tokens were never quantized */
    if (a->sinks ? a->sinks != b->sinks : b->sinks && has_forgotten) return false;
    return was_wider || !has_forgotten;
}

/* The first tokens become exact with the values that are read now; dropped ones are zeros. */
static void convert_head(model_pool *pool, model_entry *next, const model_entry *e, int64_t n) {
    if (e->head_tokens == next->head_tokens) return;
    if (e->head) drop_reference(pool, e->head);
    next->head = n > 0 && next->head_tokens ? new_page(pool, next->bytes[HEAD]) : 0;
    for (int64_t t = e->head_tokens; t < min_i64(n, next->head_tokens); t++) {
        for (int is_key = 0; is_key < 2; is_key++) {
            for (int h = 0; h < e->spec.n_heads; h++) {
                float *row = model_row(next, is_key, h, t);
                for (int d = 0; d < model_dim(e, is_key); d++) {
                    if (t < model_first_held(e)) row[d] = 0;
                    if (e->spec.exact == KV_BF16) row[d] = f32_from_bf16(bf16_from_f32(row[d]));
                }
            }
        }
    }
}

/* A preallocated cache owns the pages that it will write; another one returns empty parts. */
static void own_pages(model_pool *pool, model_entry *e, int64_t n, bool preallocates) {
    for (int i = 0; i < e->n_slots; i++) {
        int64_t begin = (e->first_page + i) * e->page_tokens;
        if (!model_steps(e) || begin + e->page_tokens <= n) continue;
        for (int kind = 0; kind < 2; kind++) {
            int *page = &e->slots[i].page[kind], fresh = 0;
            if (!*page) continue;
            if (preallocates) {
                if (is_own(pool, *page) && !pool->room[*page]) continue;
                fresh = new_page(pool, e->bytes[kind]);
            } else {
                if (kind == CODED || !is_own(pool, *page) || pool->before[*page]) continue;
                fresh = open_page(pool, e, (int)(n - begin));
                if (pool->bytes[fresh] >= pool->bytes[*page]) {
                    drop_reference(pool, fresh);
                    continue;
                }
            }
            drop_reference(pool, *page);
            *page = fresh;
        }
    }
}

/* Quantizes the tokens that would be quantized by now, page by page. */
static void quantize_late(model_cache *cache, model_entry *e) {
    int64_t n = model_held(cache, e), page = e->page_tokens;
    bool flush = e->spec.flush;
    e->spec.flush = false;
    int64_t target = e->spec.write_once ? n - n % page : target_of(e, n, true);
    e->spec.flush = flush;
    for (int i = 0; e->is_coded && i < e->n_slots; i++) {
        model_slot *slot = &e->slots[i];
        int64_t begin = (e->first_page + i) * page;
        int first, end;
        if (!to_quantize(e, e->first_page + i, n, target, &first, &end)) continue;
        for (int is_key = 0; is_key < 2; is_key++) {
            if (kv_form_is_coded(is_key ? e->spec.key : e->spec.value))
                quantize_tokens(e, is_key, begin + first, end - first);
        }
        slot->n_quantized = end;
        int n_kept[3] = {e->n_kept[EXACT], e->n_kept[CODED]};
        own_page(cache->pool, e, CODED, &slot->page[CODED], n_kept, true);
        give(cache->pool, e, EXACT, &slot->page[EXACT]);
    }
}

bool model_convert(model_cache *cache, const kv_spec *specs, int64_t reserve) {
    static _Thread_local model_entry next[MODEL_ENTRIES];
    kv_options options = cache->options;
    bool allowed = groups_as(cache, specs);
    options.reserve = reserve;
    for (int i = 0; i < cache->n_entries; i++) {
        const model_entry *e = &cache->entries[i];
        open_entry(&next[i], &specs[i], i, &options, e->kernels);
        allowed = allowed && may_become(e, &next[i]);
    }
    for (int i = 0; i < cache->n_entries; i++) {
        model_entry *e = &cache->entries[i], *to = &next[i];
        if (!allowed) {
            for (int j = 0; j < 2; j++) free(to->rows[j]);
            continue;
        }
        for (int j = 0; j < 2; j++) {
            free(to->rows[j]);
            to->rows[j] = e->rows[j];
            cache->pool->used -= (size_t)e->n_kept[j] * e->bytes[j];
        }
        to->first_page = e->first_page;
        to->n_slots = e->n_slots;
        memcpy(to->slots, e->slots, sizeof e->slots);
        own_pages(cache->pool, to, cache->n, reserve > 0);
        to->head = e->head;
        to->n_filled = e->n_filled;
        to->n_states = e->n_states;
        memcpy(to->states, e->states, sizeof e->states);
        convert_head(cache->pool, to, e, model_held(cache, e));
        *e = *to;
        keep_reserve(cache->pool, e, true);
    }
    if (!allowed) return false;
    cache->options = options;
    cache->call_ends = false;
    tidy_all(cache);
    for (int i = 0; i < cache->n_entries; i++) {
        if (cache->entries[i].spec.kind == KV_PAGES) quantize_late(cache, &cache->entries[i]);
    }
    note_peak(cache);
    return true;
}

/* ---- files ---- */

static void reload_page(model_pool *pool, int *page, size_t bytes, bool is_full) {
    if (!*page) return;
    drop_reference(pool, *page);
    *page = is_full ? mapped_page(pool, bytes) : new_page(pool, bytes);
}

void model_reload(model_cache *cache) {
    for (int i = 0; i < cache->n_entries; i++) {
        model_entry *e = &cache->entries[i];
        int64_t n = model_held(cache, e);
        for (int s = 0; s < e->n_slots; s++) {
            bool is_full = (e->first_page + s + 1) * e->page_tokens <= n;
            for (int kind = 0; kind < 2; kind++) {
                int *page = &e->slots[s].page[kind];
                if (*page && kind == EXACT && !is_full) {
                    drop_reference(cache->pool, *page);
                    *page = open_page(cache->pool, e, (int)(n - (e->first_page + s) * e->page_tokens));
                } else {
                    reload_page(cache->pool, page, e->bytes[kind], is_full);
                }
            }
        }
        reload_page(cache->pool, &e->head, e->bytes[HEAD], n >= e->head_tokens);
        for (int s = 0; s < e->n_states; s++) reload_page(cache->pool, &e->states[s].page, e->bytes[EXACT], true);
        for (int kind = 0; kind < 2; kind++) {
            cache->pool->used -= (size_t)e->n_kept[kind] * e->bytes[kind];
            e->n_kept[kind] = 0;
        }
        keep_reserve(cache->pool, e, true);
        e->flushes = false;
    }
    cache->call_ends = false;
    cache->peak = model_bytes(cache);
}
