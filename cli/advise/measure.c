/* Caches on the text, within the time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "advise/advise.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "output.h"

enum {
    FIRST_DEPTH = 256, /* of the run that tells how fast the machine is */
    MOST_COMPARED = 128,
    LEAST_COMPARED = 16,
    TIMED_SEGMENTS = 3, /* at quarters of the depth */
    LEAST_TIMED = 4,
    MOST_DEPTH = 1 << 24,
};

/* Some caches are slower than dynamic. */
static const double slack = 1.25;

/* Tokens of a segment that is only timed. */
static size_t n_timed(const pass_effort *effort) {
    const size_t n = effort->n_compared / 8;
    return n > LEAST_TIMED ? n : LEAST_TIMED;
}

static double single_tokens(const pass_effort *effort) {
    return (double)(effort->n_compared - 1 + TIMED_SEGMENTS * (n_timed(effort) - 1));
}

static double effort_ms(const pass_cost *cost, const pass_effort *effort) {
    return cost->token_ms * (double)effort->depth + cost->single_ms * single_tokens(effort);
}

pass_effort advise_effort(const pass_cost *cost, int n_passes, double left_ms, size_t most) {
    const double pass_ms = left_ms / (n_passes * slack);
    pass_effort effort = {most < LEAST_CONTEXT ? most : LEAST_CONTEXT, MOST_COMPARED};
    while (effort.n_compared > LEAST_COMPARED &&
           (cost->single_ms * single_tokens(&effort) > pass_ms / 2 || effort_ms(cost, &effort) > pass_ms))
        effort.n_compared /= 2;
    const double depth = (pass_ms - cost->single_ms * single_tokens(&effort)) / cost->token_ms;
    if (depth > (double)effort.depth) effort.depth = depth < (double)most ? (size_t)depth : most;
    return effort;
}

size_t segment_depth(const segment *s) {
    return s->begin + s->n / 2;
}

/* The segment that ends at that depth. */
static segment segment_at(size_t depth, size_t n, bool is_compared) {
    if (n > depth / 2) n = depth / 2;
    return (segment){depth - n, n, is_compared};
}

/* Adds a segment in the order of depth, unless it touches one that is there. */
static void add_segment(segment *list, int *n, segment s) {
    int at = 0;
    while (at < *n && list[at].begin < s.begin) at++;
    if (at > 0 && list[at - 1].begin + list[at - 1].n > s.begin) return;
    if (at < *n && s.begin + s.n > list[at].begin) return;
    memmove(list + at + 1, list + at, (size_t)(*n - at) * sizeof *list);
    list[at] = s;
    ++*n;
}

/* What is compared is at the end of the text, or of the depth; speeds are measured there, at the depth and at quarters
 * of it. */
static mn_status plan_segments(advice *a, const pass_effort *effort) {
    segment list[MAX_SEGMENTS];
    int n = 0;
    a->compared_depth = a->text.n < effort->depth ? a->text.n : effort->depth;
    add_segment(list, &n, segment_at(a->compared_depth, effort->n_compared, true));
    add_segment(list, &n, segment_at(effort->depth, n_timed(effort), false));
    for (size_t part = TIMED_SEGMENTS; part > 0; part--)
        add_segment(list, &n, segment_at(effort->depth * part / (TIMED_SEGMENTS + 1), n_timed(effort), false));
    a->t.n = a->t.n_text = effort->depth;
    return comparison_plan(&a->t, list, n);
}

/* What a token of a run took, in one call with others and by itself. */
static pass_cost cost_of(const advice *a, const cache_measure *m) {
    size_t n_single = 0;
    double single_ms = 0;
    for (int i = 0; i < a->t.n_segments; i++) {
        n_single += a->t.segments[i].n - 1;
        single_ms += m->new_ms[i];
    }
    return (pass_cost){m->prompt_ms / (double)(a->t.n - 1 - n_single), single_ms / (double)n_single};
}

/* The most tokens that are measured: those of the context, as far as the model and this machine's memory go. */
static size_t most_depth(const advice *a) {
    const mn_cache_options dynamic = cache_choice_options(&(cache_choice){"dynamic", ""}, &a->cache);
    const int64_t own = a->e.info.max_position_embeddings;
    mn_memory_plan plan = {.size = sizeof plan};
    int64_t most = min_i64(a->context, MOST_DEPTH);
    if (own > 0) most = min_i64(most, own);
    while (most > LEAST_CONTEXT && (mn_memory_plan_make(&plan, a->e.model, &dynamic, most, 1, 1, 1) != MN_OK ||
                                    a->fixed_bytes + plan.cache_bytes > a->e.info.available_bytes))
        most /= 2;
    return (size_t)most;
}

/* The text, repeated up to that depth. */
static mn_status repeat_text(advice *a, size_t depth) {
    a->t.ids = mem_alloc(depth, sizeof *a->t.ids);
    if (!a->t.ids) return mem_no_memory();
    for (size_t i = 0; i < depth; i++) a->t.ids[i] = a->text.ids[i % a->text.n];
    return MN_OK;
}

static mn_status run_reference(advice *a, const pass_effort *effort, pass_cost *cost) {
    cache_measure m;
    MN_TRY(plan_segments(a, effort));
    MN_TRY(comparison_run_reference(&a->t, &m));
    *cost = cost_of(a, &m);
    a->computed_tokens += a->t.n - 1;
    return MN_OK;
}

static double left_ms(const advice *a) {
    return a->t.end_ms - clock_ms();
}

/* Runs dynamic as deep as the time allows for all caches: a short text tells how deep, a longer one whether that was
 * right. */
static mn_status choose_effort(advice *a, size_t most, pass_effort *effort, pass_cost *cost) {
    *effort = (pass_effort){most < FIRST_DEPTH ? most : FIRST_DEPTH, LEAST_COMPARED};
    MN_TRY(run_reference(a, effort, cost));
    pass_effort wanted = advise_effort(cost, a->n_fit + 1, left_ms(a), most);
    for (int i = 0; i < 2 && (wanted.depth != effort->depth || wanted.n_compared != effort->n_compared); i++) {
        *effort = wanted;
        MN_TRY(run_reference(a, effort, cost));
        /* Deep tokens cost more. */
        if (effort_ms(cost, effort) * a->n_fit <= left_ms(a)) break;
        wanted = advise_effort(cost, a->n_fit + 1, left_ms(a), effort->depth);
    }
    return MN_OK;
}

/* While the time lasts, in the order of the list. */
static mn_status run_caches(advice *a, double pass_ms) {
    for (int i = 0, n_begun = 0; i < a->n; i++) {
        advised_cache *k = &a->caches[i];
        if (!k->fits || pass_ms > left_ms(a)) continue;
        n_begun++;
        mn_status status = comparison_run(&a->t, &k->is, &k->m);
        if (status == MN_E_CANCELLED) return status;
        k->is_measured = status == MN_OK;
        a->n_measured += k->is_measured;
        a->computed_tokens += k->is_measured ? a->t.n - 1 : 0;
        if (status != MN_OK && status != MN_E_FULL) print_message("warning: %s", mn_last_error());
        if (status == MN_OK && option_on(a->o, OPT_VERBOSE))
            print_message("measured %d of %d: %s %s", n_begun, a->n_fit, k->is.name, k->is.config);
    }
    return MN_OK;
}

mn_status advise_measure(advice *a) {
    if (a->time_ms <= 0) return MN_OK;
    pass_cost cost;
    pass_effort effort;
    const size_t most = most_depth(a);
    a->t.model = a->e.model;
    a->t.vocab_size = (size_t)a->e.info.vocab_size;
    a->t.cache = a->cache;
    a->t.end_ms = clock_ms() + a->time_ms;
    print_message("%d of %d caches hold %lld tokens; measuring them on %s takes %.0f s at most (--time)", a->n_fit,
                  a->n, (long long)a->context, a->t.source, a->time_ms / 1e3);
    MN_TRY(repeat_text(a, most));
    mn_status status = choose_effort(a, most, &effort, &cost);
    if (status == MN_OK) status = run_caches(a, effort_ms(&cost, &effort));
    if (status != MN_OK) return status == MN_E_FULL ? MN_OK : status;
    effort = (pass_effort){most, MOST_COMPARED};
    const bool is_whole = a->t.n == most && a->n_measured == a->n_fit;
    if (!is_whole) a->whole_ms = effort_ms(&cost, &effort) * slack * (a->n_fit + 1);
    return MN_OK;
}
