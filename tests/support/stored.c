/* SPDX-License-Identifier: Apache-2.0 */
#include "support/stored.h"

#include "session/session.h"
#include "kv/group.h"

enum { MOST_LAYERS = 8 };

/* Keys or values [heads][n][dim] of an entry; dropped tokens stay zero. */
static float *read_rows(const mn_session *session, int entry, bool is_key) {
    const kv_spec *spec = kv_entry_spec(session->cache, entry);
    size_t n = (size_t)kv_length(session->cache), dim = (size_t)spec->k_dim, heads = (size_t)spec->n_heads,
           first = (size_t)kv_first_held(session->cache, entry),
           head = first < (size_t)spec->sinks ? first : (size_t)spec->sinks;
    float *all = calloc(heads * n * dim, sizeof *all), *part = malloc(heads * n * dim * sizeof *part);
    const size_t ranges[2][2] = {{0, head}, {first, n}};
    assert_true(first <= n);
    for (int i = 0; i < 2; i++) {
        size_t begin = ranges[i][0], count = ranges[i][1] - begin;
        assert_ok(
            kv_read(session->cache, &session->model->compute.kernels, entry, is_key, (int64_t)begin, (int)count, part));
        for (size_t h = 0; h < heads; h++)
            memcpy(all + (h * n + begin) * dim, part + h * count * dim, count * dim * sizeof *all);
    }
    free(part);
    return all;
}

static const float *read_state(const kv_cache *cache, int i) {
    const kv_entry *entry = &cache->entries[i];
    const kv_group *group = &cache->groups[entry->group];
    const char *newest = group->states[group->n_states - 1].page->data;
    return (const float *)(const void *)(newest + (size_t)entry->member * group->entry_bytes[PAGE_EXACT]);
}

static bool is_all_f32(const mn_session *session) {
    for (int i = 0; i < kv_entries(session->cache); i++) {
        if (kv_entry_spec(session->cache, i)->exact != KV_F32) return false;
    }
    return true;
}

void stored_check_step(const char *model, const oracle *natural, mn_session *session, int32_t id, const char *what) {
    oracle o = *natural;
    oracle_layer layers[MOST_LAYERS];
    oracle_past past[MOST_LAYERS] = {{NULL, NULL, NULL}};
    assert_true(o.n_layers <= MOST_LAYERS);
    o.layers = layers;
    for (int i = 0; i < o.n_layers; i++) {
        const kv_spec *spec = kv_entry_spec(session->cache, i);
        layers[i] = natural->layers[i];
        layers[i].window = spec->window;
        layers[i].sinks = spec->sinks;
        if (spec->kind == KV_STATE) {
            past[i].state = read_state(session->cache, i);
        } else {
            past[i].k = read_rows(session, i, true);
            past[i].v = read_rows(session, i, false);
        }
    }
    size_t n = (size_t)kv_length(session->cache), vocab = (size_t)o.vocab;
    double *wanted = malloc(vocab * sizeof *wanted);
    float *narrow = malloc(vocab * sizeof *narrow);
    oracle_continue(&o, id, past, n, wanted);
    assert_ok(mn_session_step(session, &id, 1, NULL));
    const float *got = mn_session_logits(session);
    for (size_t i = 0; i < vocab; i++) narrow[i] = (float)wanted[i];
    bool is_f32 = is_all_f32(session);
    double distance = is_f32 ? oracle_distance(got, wanted, vocab)
                             : engine_mean_square(got, narrow, vocab) / engine_spread(narrow, vocab);
    if (!(distance > 0 && distance <= (is_f32 ? STORED_TOLERANCE : STORED_BF16_TOLERANCE))) {
        bytes config = {0};
        kv_config_put(&config, &session->plan.config);
        fail_msg("%s, %s %s, %s, token %zu %s: %g away from the oracle", model, session->plan.name, bytes_text(&config),
                 is_f32 ? "f32" : "bf16", n, what, distance);
    }
    for (int i = 0; i < o.n_layers; i++) {
        free((void *)(uintptr_t)past[i].k);
        free((void *)(uintptr_t)past[i].v);
    }
    free(wanted);
    free(narrow);
}
