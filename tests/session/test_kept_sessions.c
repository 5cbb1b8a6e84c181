/* Sessions of the sequences of a generation: each continues bit for bit as a session of the prompt and the sequence's
 * tokens except the last, in every mode and cache, also if it ended early or was cancelled.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include "session/session.h"

enum { MOST_PROMPT = 40, N_ROWS = 2, N_AFTER = 3 };

/* Settings NAME VALUE by NAME VALUE. */
static const struct mode {
    const char *name;
    const char *settings[16];
    size_t least; /* sequences of a row at least */
} modes[] = {
    {"greedy", {"max_new_tokens", "9"}, 1},
    {"drawn", {"max_new_tokens", "12", "do_sample", "true", "seed", "4", "num_return_sequences", "3", "top_k", "0"}, 3},
    {"lookup",
     {"max_new_tokens", "15", "prompt_lookup_num_tokens", "4", "do_sample", "true", "seed", "9", "num_return_sequences",
      "2", "top_k", "20"},
     2},
    {"contrastive", {"max_new_tokens", "8", "penalty_alpha", "0.6", "top_k", "4"}, 1},
    {"beams", {"max_new_tokens", "10", "num_beams", "4", "num_return_sequences", "4"}, 4},
    {"guided beams",
     {"max_new_tokens", "7", "num_beams", "3", "num_return_sequences", "2", "guidance_scale", "1.5"},
     2},
    {"groups",
     {"max_new_tokens", "9", "num_beams", "4", "num_beam_groups", "2", "diversity_penalty", "0.8",
      "num_return_sequences", "4"},
     4},
    {"phrases",
     {"max_new_tokens", "9", "num_beams", "3", "num_return_sequences", "3", "force_words_ids", "[[5],[7,9]]"},
     3},
};
enum { N_MODES = sizeof modes / sizeof *modes };

typedef struct fixture {
    mn_model *model;
    size_t vocab;
    int32_t ids[N_ROWS][MOST_PROMPT];
    mn_batch_row rows[N_ROWS];
} fixture;

static void open_fixture(fixture *w) {
    uint64_t seed = 11;
    *w = (fixture){.model = engine_model("golden/llama", "f32", "auto", engine_threads())};
    w->vocab = (size_t)engine_vocab(w->model);
    for (int r = 0; r < N_ROWS; r++) {
        engine_ids(&seed, w->ids[r], MOST_PROMPT, (int32_t)w->vocab);
        w->rows[r] = (mn_batch_row){.size = sizeof(mn_batch_row), .prompt = w->ids[r], .n_prompt = r ? 7 : MOST_PROMPT};
    }
}

/* ends: every seventh token ends a text, so that beams end at different lengths. */
static mn_generation_config *configure(const fixture *w, const struct mode *mode, bool ends) {
    mn_generation_config *config = NULL;
    bytes list = {0};
    assert_ok(mn_generation_config_open(&config, w->model));
    for (size_t id = 3; ends && id < w->vocab; id += 7) bytes_printf(&list, "%s%zu", list.n ? "," : "[", id);
    bytes_append_text(&list, "]");
    if (ends) {
        assert_ok(mn_generation_config_set(config, "eos_token_id", bytes_text(&list)));
    } else {
        assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    }
    bytes_clear(&list);
    for (int k = 0; mode->settings[k]; k += 2)
        assert_ok(mn_generation_config_set(config, mode->settings[k], mode->settings[k + 1]));
    return config;
}

/* What the session holds, and how it continues, compared with one that was fed by hand. */
static void goes_on(const fixture *w, engine_cache cache, const mn_batch_row *row, const mn_sequence *s,
                    mn_session *session, const char *what) {
    mn_session *plain = engine_session(w->model, cache);
    assert_ok(mn_session_step(plain, row->prompt, row->n_prompt, NULL));
    for (size_t i = 0; i + 1 < s->n_ids; i++) assert_ok(mn_session_step(plain, &s->ids[i], 1, NULL));
    assert_int_equal(mn_session_length(session), mn_session_length(plain));
    assert_memory_equal(mn_session_ids(session), mn_session_ids(plain),
                        (size_t)mn_session_length(plain) * sizeof(int32_t));
    assert_ok(kv_check(session->cache));
    for (int32_t i = 0; i < N_AFTER; i++) {
        int32_t id = i == 0 && s->n_ids > 0 ? s->ids[s->n_ids - 1] : i + 11;
        assert_ok(mn_session_step(session, &id, 1, NULL));
        assert_ok(mn_session_step(plain, &id, 1, NULL));
        engine_same_bits(mn_session_logits(session), mn_session_logits(plain), 1, w->vocab, "%s", what);
    }
    mn_session_close(&plain);
}

static void check_all(const fixture *w, engine_cache cache, const struct mode *mode, bool ends) {
    mn_generation_config *config = configure(w, mode, ends);
    mn_cache_options options = engine_cache_options(cache);
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    mn_generation *generation = NULL;
    how.keep_sessions = true;
    assert_ok(mn_generate_batch(w->model, &options, w->rows, N_ROWS, config, &how, &generation));
    assert_true(generation->n_sequences >= N_ROWS * mode->least);
    mn_session *sessions[16] = {NULL};
    for (size_t i = generation->n_sequences; i-- > 0;)
        assert_ok(mn_generation_take_session(generation, i, &sessions[i]));
    mn_session *again = sessions[0];
    assert_fails(MN_E_ARG, "taken before", mn_generation_take_session(generation, 0, &again));
    assert_null(again);
    assert_fails(MN_E_ARG, "the generation has",
                 mn_generation_take_session(generation, generation->n_sequences, &again));
    for (size_t i = 0; i < generation->n_sequences; i++) {
        const mn_sequence *s = generation->sequences[i];
        char what[200];
        snprintf(what, sizeof what, "%s, %s%s, row %d, sequence %d (%s)", mode->name, cache.implementation,
                 ends ? ", with ends" : "", s->row, s->index, s->finish_reason);
        goes_on(w, cache, &w->rows[s->row], s, sessions[i], what);
        mn_session_close(&sessions[i]);
    }
    mn_generation_close(&generation);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_generation_config_close(&config);
}

static void every_sequence_continues(void **state) {
    (void)state;
    fixture w;
    open_fixture(&w);
    for (int m = 0; m < N_MODES; m++) {
        for (int i = m % 3; i < N_ENGINE_STRATEGIES; i += strategy_is_long() ? 1 : 3) {
            if (!test_samples((i - m % 3) / 3 + m, 3)) continue;
            check_all(&w, strategy_cache(i, "f32"), &modes[m], false);
            check_all(&w, strategy_cache(i, "bf16"), &modes[m], true);
        }
    }
    mn_model_close(&w.model);
}

static bool stop_at_the_fifth(void *user, const mn_token_event *event) {
    int *count = user;
    return event->id < 0 || ++*count < 5;
}

/* Cancelled in the middle, and one prompt with the caller's session, which belongs to sequence 0. */
static void cancelled_and_alone(void **state) {
    (void)state;
    fixture w;
    open_fixture(&w);
    engine_cache cache = strategy_cache(0, "f32");
    mn_generation_config *config = configure(&w, &modes[1], false);
    for (int cancel = 0; cancel < 2; cancel++) {
        mn_session *session = engine_session(w.model, cache), *other = NULL;
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        mn_generation *generation = NULL;
        int count = 0;
        how.keep_sessions = true;
        how.on_token = cancel ? stop_at_the_fifth : NULL;
        how.user = &count;
        assert_ok(mn_generate(session, w.ids[0], MOST_PROMPT, config, &how, &generation));
        assert_int_equal(generation->n_sequences, 3);
        assert_fails(MN_E_ARG, "mn_generate was given", mn_generation_take_session(generation, 0, &other));
        goes_on(&w, cache, &w.rows[0], generation->sequences[0], session, "the caller's");
        assert_ok(mn_generation_take_session(generation, 1, &other)); /* the third is closed with the generation */
        goes_on(&w, cache, &w.rows[0], generation->sequences[1], other, "the second");
        mn_generation_close(&generation);
        mn_session_close(&session);
        mn_session_close(&other);
        assert_int_equal(kv_pool_used(w.model->core->pool), 0);
    }
    mn_generation_config_close(&config);
    mn_model_close(&w.model);
}

static void sessions_are_kept_on_request_only(void **state) {
    (void)state;
    fixture w;
    open_fixture(&w);
    mn_generation *generation = NULL;
    mn_session *session = NULL;
    mn_generation_config *config = configure(&w, &modes[4], true);
    assert_ok(mn_generate_batch(w.model, NULL, w.rows, N_ROWS, config, NULL, &generation));
    assert_int_equal(kv_pool_used(w.model->core->pool), 0);
    assert_fails(MN_E_ARG, "keep_sessions was not set", mn_generation_take_session(generation, 1, &session));
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_model_close(&w.model);
}

/* Sessions that are not taken, with the k-th allocation failing. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    fixture w;
    open_fixture(&w);
    for (int m = 4; m <= 6; m += 2) {
        mn_generation_config *config = configure(&w, &modes[m], true);
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        int64_t live = 0, n = 1 << 20;
        how.keep_sessions = true;
        for (int64_t k = 0; k <= n; k += 1 + k / 16) {
            mn_generation *generation = NULL;
            int64_t before = mem_count().allocations;
            mem_fail_after(k);
            mn_status status = mn_generate_batch(w.model, NULL, w.rows, N_ROWS, config, &how, &generation);
            mem_fail_after(0);
            if (k == 0) n = mem_count().allocations - before;
            if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
            mn_generation_close(&generation);
            assert_int_equal(kv_pool_used(w.model->core->pool), 0);
            if (k == 0) live = mem_count().live;
            if (mem_count().live > live) fail_msg("%lld: blocks are left", (long long)k);
        }
        assert_true(n > 200 && n < 1 << 20);
        mn_generation_config_close(&config);
    }
    mn_model_close(&w.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sequence_continues),
        cmocka_unit_test(cancelled_and_alone),
        cmocka_unit_test(sessions_are_kept_on_request_only),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
