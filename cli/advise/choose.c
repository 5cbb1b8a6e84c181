/* The Pareto front of what was measured, and one cache of it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "advise/advise.h"

#include <math.h>
#include <string.h>

#include "bench/figures.h"

/* A cache that is slower than the fastest one by more than this is not recommended. */
static const double least_share = 0.5;

double advised_speed(const advice *a, const advised_cache *k) {
    return k->is_measured ? 1e3 / k->m.median_ms[a->t.n_segments - 1] : NAN;
}

double advised_divergence(const advice *a, const advised_cache *k) {
    return k->is_measured && k->m.has_begun ? k->m.kl / (double)a->t.n_compared : NAN;
}

double advised_error(const advice *a, const advised_cache *k) {
    const double n = (double)a->t.n_compared, mean = advised_divergence(a, k);
    return n > 1 ? sqrt(fmax(0, k->m.kl_squares / n - mean * mean) / (n - 1)) : NAN;
}

static bool has_figures(const advice *a, const advised_cache *k) {
    return k->fits && advised_speed(a, k) > 0 && advised_divergence(a, k) >= 0;
}

/* Nowhere worse, and somewhere better. */
static bool is_better(const advice *a, const advised_cache *k, const advised_cache *than) {
    const double kl = advised_divergence(a, k), other_kl = advised_divergence(a, than);
    const double speed = advised_speed(a, k), other_speed = advised_speed(a, than);
    if (k->peak_bytes > than->peak_bytes || kl > other_kl || speed < SPEED_TOLERANCE * other_speed) return false;
    return k->peak_bytes < than->peak_bytes || kl < other_kl || SPEED_TOLERANCE * speed > other_speed;
}

static bool is_on_front(const advice *a, const advised_cache *k) {
    if (!has_figures(a, k)) return false;
    for (int i = 0; i < a->n; i++)
        if (has_figures(a, &a->caches[i]) && is_better(a, &a->caches[i], k)) return false;
    return true;
}

/* The one closest to dynamic among those that are fast enough; of equally close ones the first, which is the simplest.
 * Where nothing is measured, the first that fits. */
void advise_choose(advice *a) {
    double fastest = 0;
    a->recommended = -1;
    for (int i = 0; i < a->n; i++) {
        advised_cache *k = &a->caches[i];
        k->is_on_front = is_on_front(a, k);
        if (has_figures(a, k)) fastest = fmax(fastest, advised_speed(a, k));
    }
    for (int i = 0; i < a->n; i++) {
        const advised_cache *k = &a->caches[i], *best = a->recommended < 0 ? NULL : &a->caches[a->recommended];
        if (!has_figures(a, k) || advised_speed(a, k) < least_share * fastest) continue;
        if (!best || advised_divergence(a, k) < advised_divergence(a, best)) a->recommended = i;
    }
    for (int i = 0; a->recommended < 0 && i < a->n; i++)
        if (a->caches[i].fits) a->recommended = i;
}

void advise_put_flags(bytes *b, const advice *a, const advised_cache *k) {
    mn_cache_summary kind = {.size = sizeof kind};
    const mn_cache_options how = cache_choice_options(&k->is, &a->cache);
    const bool preallocates = mn_cache_check(&how, &kind) == MN_OK && kind.preallocates;
    const int64_t own = a->e.info.max_position_embeddings;
    bytes_printf(b, "--cache %s", k->is.name);
    if (*k->is.config) bytes_printf(b, " --cache-config %s", k->is.config);
    if (preallocates || (own > 0 && a->context > own)) bytes_printf(b, " --max-cache-len %lld", (long long)a->context);
    if (option_is_set(a->o, OPT_CACHE_DTYPE)) bytes_printf(b, " --cache-dtype %s", a->cache.dtype);
}

void advise_put_sentence(bytes *b, const advice *a) {
    const advised_cache *k = &a->caches[a->recommended];
    const double kl = advised_divergence(a, k);
    char peak[FIGURE], room[FIGURE], speed[FIGURE];
    figure_size(peak, k->peak_bytes);
    figure_size(room, a->memory - a->fixed_bytes);
    figure_rate(speed, advised_speed(a, k));
    bytes_printf(b, "Take %s%s%s: it needs %s of the %s that weights leave for %lld tokens", k->is.name,
                 *k->is.config ? " with " : "", k->is.config, peak, room, (long long)a->context);
    if (a->rows > 1) bytes_printf(b, " in each of %lld rows", (long long)a->rows);
    if (!has_figures(a, k)) {
        bytes_printf(b, ", and is the first of the list that fits; %s.",
                     a->n_measured ? "how close it is to dynamic could not be measured" : "nothing was measured");
    } else if (kl == 0) {
        bytes_printf(b, ", changes no answer, and decodes %s tokens a second.", speed);
    } else {
        bytes_printf(
            b,
            ", and of those that fit and are at least half as fast as the fastest it is the closest to dynamic: "
            "%.2g nats a token, %s tokens a second.",
            kl, speed);
    }
}
