/* Random settings of fixtures.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/num.h"
#include "support/kv/kv_fixture.h"

static int below(uint64_t *state, int n) {
    return (int)((test_random(state) >> 20) % (uint64_t)n);
}

static bool one_in(uint64_t *state, int n) {
    return below(state, n) == 0;
}

static kv_form random_form(uint64_t *state, int dim, int page_tokens) {
    static const int mneme[] = {1, 2, 3, 4, 5, 6, 8}, quanto[] = {2, 4}, hqq[] = {1, 2, 3, 4, 8};
    kv_form form = {.codec = KV_MNEME, .bits = mneme[below(state, 7)]};
    switch (below(state, 5)) {
    case 0:
    case 1: return form;
    case 2:
    case 3: form = (kv_form){.codec = KV_QUANTO, .bits = quanto[below(state, 2)]}; break;
    default: form = (kv_form){.codec = KV_HQQ, .bits = hqq[below(state, 5)]};
    }
    form.axis = one_in(state, 2) ? CODE_TOKEN : CODE_CHANNEL;
    form.f32_scales = one_in(state, 2);
    int whole = form.axis == CODE_TOKEN ? dim : page_tokens;
    if (one_in(state, 2)) form.group = whole % 32 == 0 && one_in(state, 2) ? 32 : one_in(state, 3) ? 8 : 16;
    return form;
}

static void random_window(uint64_t *state, kv_spec *s) {
    s->window = 1 + below(state, 40);
    if (one_in(state, 2)) s->window = 1 + below(state, 6);
    if (one_in(state, 2)) s->sinks = 1 + below(state, 5);
}

static void random_change(uint64_t *state, kv_spec *s, int page_tokens) {
    bool is_coded = kv_form_is_coded(s->key) || kv_form_is_coded(s->value);
    if (s->kind == KV_STATE) {
        if (one_in(state, 8)) s->checkpoints++;
        return;
    }
    if ((!is_coded || one_in(state, 16)) && page_tokens % 16 == 0 && !one_in(state, 3)) {
        if (s->k_dim % 16 == 0 && !one_in(state, 4)) s->key = random_form(state, s->k_dim, page_tokens);
        if (s->v_dim % 16 == 0 && !one_in(state, 4)) s->value = random_form(state, s->v_dim, page_tokens);
    }
    if (one_in(state, 2)) s->residual = one_in(state, 2) ? 0 : below(state, 41);
    if (one_in(state, 3)) s->exact_first += one_in(state, 3) ? -(s->exact_first > 0) : below(state, 5);
    if (one_in(state, 4)) s->flush = !s->flush;
    if (s->write_once || !one_in(state, 2)) return;
    if (s->window && one_in(state, 2)) {
        s->window = 1 + below(state, s->window);
    } else {
        random_window(state, s);
    }
}

void fixture_specs_change(kv_spec *specs, const fixture_setting *set, uint64_t seed) {
    bool in_calibration = seed & 1;
    for (int i = 0; i < set->n_entries; i++) {
        uint64_t state = seed << 8; /* equal specs stay equal */
        kv_spec *s = &specs[i];
        bool was_coded = kv_form_is_coded(s->key) || kv_form_is_coded(s->value);
        random_change(&state, s, set->options.page_tokens);
        if (set->is_offloaded && s->kind == KV_PAGES && one_in(&state, 3)) s->is_offloaded = !s->is_offloaded;
        if (!was_coded && s->kind == KV_PAGES && in_calibration && kv_form_takes_calibration(s->key, true))
            s->calibration = model_calibration(i, s->k_dim);
    }
}

static kv_spec random_state(uint64_t *state) {
    return (kv_spec){.kind = KV_STATE, .state_bytes = 1 + (size_t)below(state, 200), .checkpoints = below(state, 5)};
}

static kv_spec random_spec(uint64_t *state, kv_codec exact, bool may_code, int page_tokens) {
    kv_spec s = {.exact = exact, .n_heads = 1 + below(state, 2)};
    s.k_dim = 2 + 2 * below(state, 3);
    s.v_dim = 2 + 2 * below(state, 3);
    s.key = s.value = kv_form_exact(exact);
    bool codes = may_code && !one_in(state, 4);
    int coded = codes ? 1 + below(state, 4) : 0;
    if (coded == 1 || coded >= 3) {
        s.k_dim = one_in(state, 3) ? 32 : 16;
        s.key = random_form(state, s.k_dim, page_tokens);
    }
    if (coded >= 2) {
        s.v_dim = one_in(state, 3) ? 32 : 16;
        s.value = random_form(state, s.v_dim, page_tokens);
    }
    if (may_code && !codes && one_in(state, 2)) s.k_dim = s.v_dim = 16; /* a form may be set later */
    s.flush = codes && one_in(state, 3);
    s.residual = s.flush ? below(state, one_in(state, 4) ? 40 : 6) : one_in(state, 3) ? 0 : below(state, 41);
    if (!codes && one_in(state, 2)) s.residual = 0;
    if (one_in(state, 2)) s.exact_first = below(state, 6);
    if (one_in(state, 5)) {
        s.write_once = true;
    } else if (one_in(state, 3)) {
        random_window(state, &s);
    }
    return s;
}

static void random_entries(fixture_setting *set, uint64_t *state, bool may_code) {
    kv_codec exact = one_in(state, 2) ? KV_F32 : KV_BF16;
    int n_kinds = 1 + below(state, 3);
    kv_spec kinds[3];
    for (int i = 0; i < n_kinds; i++) {
        kinds[i] =
            one_in(state, 6) ? random_state(state) : random_spec(state, exact, may_code, set->options.page_tokens);
    }
    set->n_entries = 1 + below(state, MODEL_ENTRIES);
    for (int i = 0; i < set->n_entries; i++) set->specs[i] = kinds[below(state, n_kinds)];
    bool in_calibration = one_in(state, 2);
    for (int i = 0; i < set->n_entries; i++) {
        kv_spec *s = &set->specs[i];
        if (in_calibration && s->kind == KV_PAGES && kv_form_takes_calibration(s->key, true))
            s->calibration = model_calibration(i, s->k_dim);
    }
}

/* Bytes of one page of every entry. */
static size_t page_bytes(const fixture_setting *set) {
    kv_options options = {.page_tokens = set->options.page_tokens};
    return kv_plan_bytes(set->specs, set->n_entries, &options, set->options.page_tokens);
}

void fixture_setting_free(fixture_setting *set, uint64_t seed) {
    uint64_t state = seed << 24;
    bool may_code = one_in(&state, 2);
    *set = (fixture_setting){.seed = seed, .alone = true};
    set->options.page_tokens =
        may_code ? 16 * (one_in(&state, 8) ? 4 : 1 + below(&state, 2)) : 2 + 2 * below(&state, 4);
    if (!may_code && one_in(&state, 3)) set->options.page_tokens = 32 + 16 * below(&state, 3);
    random_entries(set, &state, may_code);
}

void fixture_setting_offloaded(fixture_setting *set, uint64_t seed) {
    fixture_setting_free(set, seed);
    set->is_offloaded = true;
    for (int i = 0; i < set->n_entries; i++)
        set->specs[i].is_offloaded = set->specs[i].kind == KV_PAGES && (seed % 3 || set->specs[i].n_heads == 1);
}

void fixture_setting_make(fixture_setting *set, uint64_t seed) {
    uint64_t state = (seed << 24) + (1 << 20);
    fixture_setting_free(set, seed);
    if (one_in(&state, 4)) set->options.limit = 10 + below(&state, 100);
    if (one_in(&state, 4)) {
        set->options.reserve = 10 + below(&state, 100);
        if (one_in(&state, 2)) set->options.limit = set->options.reserve;
    }
    set->fails = one_in(&state, 3);
    if (one_in(&state, 3)) set->budget = page_bytes(set) * (size_t)(1 + below(&state, 40)) / 2;
}
