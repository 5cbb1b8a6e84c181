/* What caches take, from the planner of the library.
 * SPDX-License-Identifier: Apache-2.0 */
#include "advise/advise.h"

#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "output.h"

/* The plan of rows that hold so many tokens each. */
static mn_status plan_of(mn_memory_plan *plan, const advice *a, const cache_choice *choice, int64_t n_tokens) {
    mn_cache_summary kind;
    mn_cache_options how = cache_choice_options(choice, &a->cache);
    MN_TRY(cache_resolve(&how, &kind));
    if (kind.preallocates) how.max_cache_len = n_tokens;
    *plan = (mn_memory_plan){.size = sizeof *plan};
    return mn_memory_plan_make(plan, a->e.model, &how, n_tokens, 1, 1, a->rows);
}

/* What is not a number of bytes has no end. */
static uint64_t need_of(const advice *a, const mn_memory_plan *plan) {
    size_t need = 0;
    return size_add((size_t)a->fixed_bytes, (size_t)plan->cache_bytes, &need) ? need : UINT64_MAX;
}

static bool holds(const advice *a, const cache_choice *choice, int64_t n_tokens) {
    mn_memory_plan plan;
    return plan_of(&plan, a, choice, n_tokens) == MN_OK && need_of(a, &plan) <= a->memory;
}

static int64_t largest_context(const advice *a, const advised_cache *k) {
    const bool ends = a->e.info.has_learned_positions;
    const int64_t most = ends ? a->e.info.max_position_embeddings : INT64_C(1) << 40;
    int64_t fits = k->fits ? a->context : 0, beyond = k->fits ? most + 1 : a->context;
    if (k->fits && holds(a, &k->is, most)) return ends ? most : ANY_CONTEXT;
    for (int64_t n = 2 * fits; k->fits && n < beyond; n *= 2) *(holds(a, &k->is, n) ? &fits : &beyond) = n;
    while (beyond - fits > 1) {
        int64_t n = fits + (beyond - fits) / 2;
        *(holds(a, &k->is, n) ? &fits : &beyond) = n;
    }
    return fits;
}

/* A cache that the model refuses keeps the reason. */
static mn_status plan_cache(const advice *a, advised_cache *k) {
    mn_memory_plan plan;
    mn_status status = plan_of(&plan, a, &k->is, a->context);
    if (status == MN_E_NOMEM) return status;
    if (status != MN_OK) {
        snprintf(k->refused, sizeof k->refused, "%.300s", mn_last_error());
        return MN_OK;
    }
    size_t all = 0;
    k->bytes = size_mul((size_t)plan.session_bytes, (size_t)a->rows, &all) ? all : UINT64_MAX;
    k->peak_bytes = plan.cache_bytes;
    k->fits = need_of(a, &plan) <= a->memory;
    k->largest_context = largest_context(a, k);
    return MN_OK;
}

/* What weights and buffers take of the memory. */
static mn_status read_fixed(advice *a) {
    char *text = NULL;
    json_doc *doc = NULL;
    MN_TRY(mn_model_describe(a->e.model, LEAST_CONTEXT, &text));
    mn_status status = json_parse(&doc, text, strlen(text), JSON_PYTHON, "the description");
    if (status == MN_OK) {
        const json *memory = json_get(json_root(doc), "memory");
        a->fixed_bytes =
            (uint64_t)(json_get(memory, "packed_bytes")->integer + json_get(memory, "buffer_bytes")->integer);
    }
    json_close(&doc);
    mn_free(text);
    return status;
}

/* All caches but `none`, which holds nothing, without those that are the same on this model. */
static mn_status list_caches(advice *a) {
    cache_choice list[LISTED_CACHES];
    bytes left_out = {0};
    int n = LISTED_CACHES - 1;
    cache_list_all(list, (size_t)a->context);
    memmove(list, list + 1, (size_t)n * sizeof *list);
    mn_status status = cache_list_drop_same(list, &n, a->e.model, &a->cache, &left_out);
    for (int i = 0; i < n; i++) a->caches[i] = (advised_cache){.is = list[i]};
    a->n = n;
    if (status == MN_OK && left_out.n && option_on(a->o, OPT_VERBOSE))
        print_message("left out, each the same on this model as the one in parentheses: %s", bytes_text(&left_out));
    bytes_clear(&left_out);
    return status;
}

/* In KiB or MiB, as --memory takes it, rounded up. */
static void put_memory(bytes *b, uint64_t n_bytes) {
    const int shift = n_bytes < 10 << 20 ? 10 : 20;
    bytes_printf(b, "%llu%c", (unsigned long long)((n_bytes + (UINT64_C(1) << shift) - 1) >> shift),
                 shift == 10 ? 'K' : 'M');
}

static mn_status nothing_fits(const advice *a) {
    const advised_cache *least = NULL;
    for (int i = 0; i < a->n; i++) {
        const advised_cache *k = &a->caches[i];
        if (!*k->refused && (!least || k->peak_bytes < least->peak_bytes)) least = k;
    }
    if (!least) MN_FAIL(MN_E_UNSUPPORTED, "the model takes none of the caches: %.250s", a->caches[0].refused);
    bytes memory = {0}, fixed = {0}, need = {0};
    put_memory(&memory, a->memory);
    put_memory(&fixed, a->fixed_bytes);
    put_memory(&need, a->fixed_bytes + least->peak_bytes);
    mn_status status = status_fail(
        MN_E_NOMEM,
        "--memory is %s, in which no cache holds %lld tokens%s: weights and buffers take %s; the smallest that would is %s%s%s, with --memory %s",
        bytes_text(&memory), (long long)a->context, a->rows > 1 ? " of every row" : "", bytes_text(&fixed),
        least->is.name, *least->is.config ? " " : "", least->is.config, bytes_text(&need));
    bytes_clear(&memory);
    bytes_clear(&fixed);
    bytes_clear(&need);
    return status;
}

mn_status advise_plan(advice *a) {
    MN_TRY(read_fixed(a));
    MN_TRY(list_caches(a));
    for (int i = 0; i < a->n; i++) {
        MN_TRY(plan_cache(a, &a->caches[i]));
        a->n_fit += a->caches[i].fits;
    }
    return a->n_fit ? MN_OK : nothing_fits(a);
}
