/* The answer for people and as JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#include "advise/advise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/figures.h"

/* ---- for people ---- */

static int name_of(char *out, size_t n, const advised_cache *k) {
    return snprintf(out, n, "%s%s%s", k->is.name, *k->is.config ? " " : "", k->is.config);
}

static void put_row(bytes *b, const advice *a, const advised_cache *k, int width) {
    char name[3 * CACHE_NAME + 2], size[FIGURE], peak[FIGURE], rate[FIGURE], kl[48] = "-", largest[FIGURE] = "any";
    const double mean = advised_divergence(a, k);
    name_of(name, sizeof name, k);
    figure_size(size, k->bytes);
    figure_size(peak, k->peak_bytes);
    figure_rate(rate, advised_speed(a, k));
    if (!isnan(mean)) snprintf(kl, sizeof kl, "%.5f \xC2\xB1 %.5f", mean, advised_error(a, k));
    if (k->largest_context != ANY_CONTEXT) snprintf(largest, sizeof largest, "%lld", (long long)k->largest_context);
    /* The sign takes two bytes. */
    bytes_printf(b, "| %c | %-*s | %10s | %10s | %4s | %7s | %*s | %11s |\n", k->is_on_front ? '*' : ' ', width, name,
                 size, peak, k->fits ? "yes" : "no", rate, isnan(mean) ? 17 : 18, kl, largest);
}

/* How the measured columns came about. */
static void put_measured_notes(bytes *b, const advice *a) {
    bytes_printf(b,
                 "t/s: of one row, at a depth of %zu tokens. KL: from dynamic, in nats, mean and standard error of %zu "
                 "tokens at a depth of %zu; -: no token has been dropped or quantized there yet.\n",
                 segment_depth(&a->t.segments[a->t.n_segments - 1]), a->t.n_compared, a->compared_depth);
    bytes_printf(b, "Text (%s): %zu tokens%s.", a->t.source, a->text.n,
                 a->t.n > a->text.n ? ", repeated for the speed alone" : "");
    if (a->compared_depth < (size_t)a->context)
        bytes_printf(b, " At %lld what drops or quantizes tokens differs more.", (long long)a->context);
    if (a->whole_ms > a->time_ms) bytes_printf(b, " --time %.0f goes deeper.", ceil(a->whole_ms / 1e3));
    bytes_append_text(
        b, "\n*: on the Pareto front: no other one that fits needs as little memory, is as close and as fast "
           "(within a tenth), and is better in one of them.\n");
}

static void put_notes(bytes *b, const advice *a) {
    char name[3 * CACHE_NAME + 2], memory[FIGURE], fixed[FIGURE];
    for (int i = 0; i < a->n; i++) {
        const advised_cache *k = &a->caches[i];
        name_of(name, sizeof name, k);
        if (*k->refused) bytes_printf(b, "%s: refused: %s\n", name, k->refused);
        if (k->fits && !k->is_measured && a->time_ms > 0) bytes_printf(b, "%s: not measured, for lack of time\n", name);
    }
    figure_size(memory, a->memory);
    figure_size(fixed, a->fixed_bytes);
    bytes_printf(
        b,
        "\nbytes: with %lld tokens%s, those in a file included. peak: the most in memory, beside %s of weights "
        "and buffers; fits: in %s. largest: the context that fits.\n",
        (long long)a->context, a->rows > 1 ? " in every row" : "", fixed, memory);
    if (a->n_measured) put_measured_notes(b, a);
}

void advise_put_table(bytes *b, const advice *a) {
    char name[3 * CACHE_NAME + 2];
    int width = 5;
    for (int i = 0; i < a->n; i++) {
        int n = *a->caches[i].refused ? 0 : name_of(name, sizeof name, &a->caches[i]);
        if (n > width) width = n;
    }
    advise_put_sentence(b, a);
    bytes_append_text(b, "\n\n    ");
    advise_put_flags(b, a, &a->caches[a->recommended]);
    bytes_printf(
        b, "\n\n|   | %-*s |      bytes |       peak | fits |     t/s |          KL, nats |     largest |\n| - | ",
        width, "cache");
    for (int i = 0; i < width; i++) bytes_append_text(b, "-");
    bytes_append_text(b, " | ---------: | ---------: | ---- | ------: | ----------------: | ----------: |\n");
    for (int i = 0; i < a->n; i++)
        if (!*a->caches[i].refused) put_row(b, a, &a->caches[i], width);
    put_notes(b, a);
}

/* ---- JSON ---- */

static void put_speeds(bytes *b, const advice *a, const advised_cache *k) {
    json_put_key(b, "speeds");
    bytes_append_text(b, "[");
    for (int i = 0; i < a->t.n_segments; i++) {
        bytes_append_text(b, i ? ",{" : "{");
        json_put_int_member(b, "n_depth", (int64_t)segment_depth(&a->t.segments[i]));
        json_put_real_member(b, "decode_per_second", 1e3 / k->m.median_ms[i]);
        bytes_append_text(b, "}");
    }
    bytes_append_text(b, "]");
}

static void put_measures(bytes *b, const advice *a, const advised_cache *k) {
    const double n = (double)a->t.n_compared;
    json_put_real_member(b, "decode_per_second", advised_speed(a, k));
    put_speeds(b, a, k);
    json_put_int_member(b, "compared_tokens", (int64_t)a->t.n_compared);
    json_put_int_member(b, "same_tokens", (int64_t)k->m.same);
    json_put_real_member(b, "kl_divergence", advised_divergence(a, k));
    json_put_real_member(b, "kl_standard_error", advised_error(a, k));
    json_put_real_member(b, "perplexity_change", exp((k->m.nll - k->m.reference_nll) / n) - 1);
}

static void put_flags_member(bytes *b, const advice *a, const advised_cache *k) {
    bytes flags = {0};
    advise_put_flags(&flags, a, k);
    json_put_key(b, "flags");
    json_put_bytes(b, &flags);
    bytes_clear(&flags);
}

static void put_cache(bytes *b, const advice *a, const advised_cache *k) {
    json_put_text_member(b, "cache_implementation", k->is.name);
    json_put_text_member(b, "cache_config", k->is.config);
    json_put_text_member(b, "refused", k->refused);
    if (*k->refused) return;
    put_flags_member(b, a, k);
    json_put_int_member(b, "cache_bytes", (int64_t)k->bytes);
    json_put_int_member(b, "cache_peak_bytes", (int64_t)k->peak_bytes);
    json_put_bool_member(b, "fits", k->fits);
    json_put_key(b, "largest_context");
    bytes_printf(b, k->largest_context == ANY_CONTEXT ? "null" : "%lld", (long long)k->largest_context);
    json_put_bool_member(b, "measured", k->is_measured);
    if (k->is_measured) put_measures(b, a, k);
    json_put_bool_member(b, "pareto", k->is_on_front);
}

static void put_recommendation(bytes *b, const advice *a) {
    const advised_cache *k = &a->caches[a->recommended];
    bytes sentence = {0};
    advise_put_sentence(&sentence, a);
    json_put_key(b, "recommendation");
    bytes_append_text(b, "{");
    json_put_text_member(b, "cache_implementation", k->is.name);
    json_put_text_member(b, "cache_config", k->is.config);
    put_flags_member(b, a, k);
    json_put_key(b, "sentence");
    json_put_bytes(b, &sentence);
    bytes_append_text(b, "}");
    bytes_clear(&sentence);
}

void advise_put_json(bytes *b, const advice *a) {
    bytes_append_text(b, "{");
    json_put_text_member(b, "model", a->e.path);
    json_put_text_member(b, "text", a->t.source);
    json_put_int_member(b, "context", a->context);
    json_put_int_member(b, "rows", a->rows);
    json_put_int_member(b, "memory_bytes", (int64_t)a->memory);
    json_put_int_member(b, "fixed_bytes", (int64_t)a->fixed_bytes);
    json_put_real_member(b, "time", a->time_ms / 1e3);
    json_put_int_member(b, "n_text", (int64_t)a->text.n);
    json_put_int_member(b, "n_depth", a->n_measured ? (int64_t)a->t.n : 0);
    json_put_int_member(b, "n_compared_depth", a->n_measured ? (int64_t)a->compared_depth : 0);
    json_put_int_member(b, "computed_tokens", (int64_t)a->computed_tokens);
    json_put_int_member(b, "n_threads", a->e.info.threads);
    put_recommendation(b, a);
    json_put_key(b, "caches");
    bytes_append_text(b, "[");
    for (int i = 0; i < a->n; i++) {
        bytes_append_text(b, i ? ",{" : "{");
        put_cache(b, a, &a->caches[i]);
        bytes_append_text(b, "}");
    }
    bytes_append_text(b, "]}\n");
}
