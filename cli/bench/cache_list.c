/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cache_list.h"

#include <stdio.h>
#include <string.h>

/* %d is half of the tokens. */
static const cache_choice all_choices[LISTED_CACHES] = {
    {"none", ""},
    {"dynamic", ""},
    {"hybrid", ""},
    {"mamba", ""},
    {"static", ""},
    {"offloaded", ""},
    {"offloaded_static", ""},
    {"quantized", "nbits=8"},
    {"quantized", "nbits=4"},
    {"quantized", "nbits=3"},
    {"quantized", "nbits=2"},
    {"quantized", "backend=quanto,nbits=4"},
    {"quantized", "backend=hqq,nbits=4,axis_key=1,axis_value=1"},
    {"sink", "window_length=%d"},
    {"sliding_window", "window_length=%d"},
    {"quantized+static", "nbits=4"},
    {"quantized+offloaded", "nbits=4"},
    {"quantized+sink", "nbits=4,window_length=%d"},
    {"quantized+sliding_window", "nbits=4,window_length=%d"},
    {"sink+offloaded", "window_length=%d"},
};

void cache_list_all(cache_choice list[LISTED_CACHES], size_t n_tokens) {
    enum { LEAST_WINDOW = 8, MOST_WINDOW = 1 << 30 };
    const size_t half = (n_tokens + 1) / 2;
    const int window = half < LEAST_WINDOW ? LEAST_WINDOW : half > MOST_WINDOW ? MOST_WINDOW : (int)half;
    for (int i = 0; i < LISTED_CACHES; i++) {
        list[i] = all_choices[i];
        const char *config = all_choices[i].config, *at = strstr(config, "%d");
        if (at) snprintf(list[i].config, sizeof list[i].config, "%.*s%d%s", (int)(at - config), config, window, at + 2);
    }
}

mn_cache_options cache_choice_options(const cache_choice *choice, const mn_cache_options *base) {
    mn_cache_options how = *base;
    how.implementation = choice->name;
    how.config = choice->config;
    return how;
}

/* The parts of a name whose effect is not in the forms of the layers: where tokens are kept, when memory is allocated,
 * which positions they have. */
static void put_parts(bytes *b, const char *name) {
    static const char *const in_layers[] = {"dynamic", "hybrid", "mamba", "sliding_window"};
    for (size_t n; *name; name += n + (name[n] == '+')) {
        n = strcspn(name, "+");
        bool is_in_layers = false;
        for (size_t i = 0; i < sizeof in_layers / sizeof *in_layers; i++)
            is_in_layers = is_in_layers || (strlen(in_layers[i]) == n && memcmp(in_layers[i], name, n) == 0);
        if (!is_in_layers) bytes_printf(b, "%.*s ", (int)n, name);
    }
}

static mn_status put_layers(bytes *b, const mn_session *session) {
    mn_cache_info cache = {.size = sizeof cache};
    MN_TRY(mn_session_cache(session, &cache));
    bytes_printf(b, "%s", cache.dtype);
    for (int i = 0; i < cache.num_layers; i++) {
        mn_layer_info layer = {.size = sizeof layer};
        MN_TRY(mn_session_layer(session, i, &layer));
        bytes_printf(b, "\n%s %lld %lld %s %d %s %d", layer.kind, (long long)layer.window_length,
                     (long long)layer.first_exact, layer.key_codec, (int)layer.key_bits, layer.value_codec,
                     (int)layer.value_bits);
    }
    return bytes_status(b);
}

/* What a cache keeps, and where, as a text; empty for one that the model refuses. */
static mn_status put_kind(bytes *b, const cache_choice *choice, mn_model *model, const mn_cache_options *base) {
    mn_session *session = NULL;
    mn_cache_options how = cache_choice_options(choice, base);
    how.max_cache_len = 1; /* nothing is computed */
    if (mn_session_open(&session, model, &how) != MN_OK) return MN_OK;
    put_parts(b, choice->name);
    mn_status status = put_layers(b, session);
    mn_session_close(&session);
    return status;
}

mn_status cache_list_drop_same(cache_choice *list, int *n, mn_model *model, const mn_cache_options *base,
                               bytes *left_out) {
    bytes kinds[LISTED_CACHES] = {{0}};
    int n_kept = 0;
    mn_status status = MN_OK;
    for (int i = 0, same = 0; status == MN_OK && i < *n; i++) {
        bytes *kind = &kinds[n_kept];
        kind->n = 0;
        status = put_kind(kind, &list[i], model, base);
        for (same = 0; same < n_kept; same++)
            if (kind->n && strcmp(bytes_text(&kinds[same]), bytes_text(kind)) == 0) break;
        if (same == n_kept) {
            list[n_kept++] = list[i];
        } else {
            bytes_printf(left_out, left_out->n ? ", %s%s%s (%s)" : "%s%s%s (%s)", list[i].name,
                         *list[i].config ? " " : "", list[i].config, list[same].name);
        }
    }
    for (int i = 0; i < LISTED_CACHES; i++) bytes_clear(&kinds[i]);
    *n = n_kept;
    bytes_text(left_out);
    return status == MN_OK ? bytes_status(left_out) : status;
}
