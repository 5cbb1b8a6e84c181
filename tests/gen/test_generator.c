/* Generation step by step: what one call gives, in every mode and for rows; ended early; refused where it cannot be
 * called; with allocations that fail.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <string.h>

#include "base/mem.h"

static const char *const modes[][6] = {
    {"do_sample", "false"},
    {"do_sample", "true", "seed", "7"},
    {"num_beams", "3", "num_return_sequences", "2"},
    {"prompt_lookup_num_tokens", "3"},
    {"penalty_alpha", "0.6", "top_k", "4"},
    {"guidance_scale", "2", "repetition_penalty", "1.2"},
};
enum { N_MODES = sizeof modes / sizeof *modes, N_ROWS = 3, N_PROMPT = 40, N_NEW = 12 };

/* What callbacks see: the number of tokens, and calls while no step runs. */
typedef struct watcher {
    mn_generator *generator; /* of the step that runs; NULL: none */
    size_t n_tokens, n_outside;
    bool calls_back;
} watcher;

typedef struct fixture {
    mn_model *model;
    mn_generation_config *config;
    mn_generate_options how;
    mn_batch_row rows[N_ROWS];
    int32_t ids[N_ROWS][N_PROMPT];
    watcher seen;
} fixture;

static bool watch(void *user, const mn_token_event *event) {
    watcher *seen = user;
    (void)event;
    seen->n_tokens++;
    if (!seen->generator) seen->n_outside++;
    if (seen->calls_back) {
        mn_generation *generation = NULL;
        bool is_done;
        assert_fails(MN_E_ARG, "mn_generator_step in a callback", mn_generator_step(seen->generator, &is_done));
        assert_fails(MN_E_ARG, "mn_generator_finish in a callback", mn_generator_finish(seen->generator, &generation));
        assert_null(generation);
    }
    return true;
}

static void open_fixture(fixture *w, size_t mode) {
    uint64_t seed = 3;
    *w = (fixture){.model = engine_model("golden/llama", "f32", "auto", engine_threads())};
    assert_ok(mn_generation_config_open(&w->config, w->model));
    assert_ok(mn_generation_config_set(w->config, "max_new_tokens", "12"));
    assert_ok(mn_generation_config_set(w->config, "ignore_eos", "true"));
    for (size_t i = 0; i < 6 && modes[mode][i]; i += 2)
        assert_ok(mn_generation_config_set(w->config, modes[mode][i], modes[mode][i + 1]));
    for (size_t r = 0; r < N_ROWS; r++) {
        size_t n = N_PROMPT / (r + 1);
        engine_ids(&seed, w->ids[r], n, engine_vocab(w->model));
        w->rows[r] = (mn_batch_row){.size = sizeof(mn_batch_row), .prompt = w->ids[r], .n_prompt = n};
    }
    mn_generate_options_init(&w->how, sizeof w->how);
    w->how.on_token = watch;
    w->how.user = &w->seen;
    w->how.keep_logits = true;
}

static void close_fixture(fixture *w) {
    mn_generation_config_close(&w->config);
    mn_model_close(&w->model);
}

/* With a session the first row alone, else all rows together. */
static mn_status open_generator(fixture *w, mn_session *session, mn_generator **generator) {
    if (session) return mn_generator_open(generator, session, w->ids[0], w->rows[0].n_prompt, w->config, &w->how);
    return mn_generator_open_batch(generator, w->model, NULL, w->rows, N_ROWS, w->config, &w->how);
}

static mn_status in_one_call(fixture *w, mn_session *session, mn_generation **generation) {
    if (session) return mn_generate(session, w->ids[0], w->rows[0].n_prompt, w->config, &w->how, generation);
    return mn_generate_batch(w->model, NULL, w->rows, N_ROWS, w->config, &w->how, generation);
}

/* At most so many steps; returns how many were made. */
static size_t step(fixture *w, mn_generator *generator, size_t most, bool *is_done) {
    size_t n = 0;
    for (*is_done = false; n < most && !*is_done; n++) {
        w->seen.generator = generator;
        assert_ok(mn_generator_step(generator, is_done));
        w->seen.generator = NULL;
    }
    return n;
}

static void same_sequences(const fixture *w, const mn_generation *got, const mn_generation *wanted, size_t mode) {
    assert_int_equal(got->n_sequences, wanted->n_sequences);
    for (size_t i = 0; i < got->n_sequences; i++) {
        const mn_sequence *s = got->sequences[i], *other = wanted->sequences[i];
        assert_int_equal(s->row, other->row);
        assert_int_equal(s->n_ids, other->n_ids);
        assert_memory_equal(s->ids, other->ids, s->n_ids * sizeof *s->ids);
        assert_string_equal(s->finish_reason, other->finish_reason);
        assert_int_equal(s->logits != NULL, other->logits != NULL);
        if (s->logits)
            engine_same_bits(s->logits, other->logits, s->n_ids, (size_t)engine_vocab(w->model), "mode %zu", mode);
    }
}

static void steps_give_what_one_call_gives(void **state) {
    (void)state;
    for (size_t mode = 0; mode < N_MODES; mode++) {
        fixture w;
        open_fixture(&w, mode);
        for (int is_batch = 0; is_batch < 2; is_batch++) {
            mn_session *session = is_batch ? NULL : engine_session(w.model, (engine_cache){.page_tokens = 16});
            mn_session *other = is_batch ? NULL : engine_session(w.model, (engine_cache){.page_tokens = 16});
            mn_generator *generator = NULL;
            mn_generation *got = NULL, *wanted = NULL;
            bool is_done;
            w.seen = (watcher){0};
            assert_ok(in_one_call(&w, other, &wanted));
            size_t n_tokens = w.seen.n_tokens;
            w.seen = (watcher){.calls_back = true};
            assert_ok(open_generator(&w, session, &generator));
            size_t n = step(&w, generator, SIZE_MAX, &is_done);
            assert_in_range(n, 4, 2 * N_NEW + 2 * N_ROWS);
            assert_int_equal(w.seen.n_tokens, n_tokens);
            assert_int_equal(w.seen.n_outside, 0);
            assert_ok(mn_generator_step(generator, &is_done)); /* nothing is left to do */
            assert_true(is_done);
            assert_ok(mn_generator_finish(generator, &got));
            same_sequences(&w, got, wanted, mode);
            if (session) assert_int_equal(mn_session_length(session), mn_session_length(other));
            assert_fails(MN_E_ARG, "has given its result", mn_generator_step(generator, &is_done));
            mn_generator_close(&generator);
            assert_null(generator);
            mn_generator_close(&generator);
            mn_generation_close(&got); /* outlives its generator */
            mn_generation_close(&wanted);
            mn_session_close(&session);
            mn_session_close(&other);
        }
        close_fixture(&w);
    }
}

static void what_has_not_ended_ends_as_cancelled(void **state) {
    (void)state;
    fixture w;
    open_fixture(&w, 0);
    mn_generation *whole = NULL;
    assert_ok(in_one_call(&w, NULL, &whole));
    int64_t live = engine_live(w.model);
    for (size_t n = 0; n < N_NEW; n++) {
        for (int is_batch = 0; is_batch < 2; is_batch++) {
            mn_session *session = is_batch ? NULL : engine_session(w.model, (engine_cache){.page_tokens = 16});
            mn_generator *generator = NULL;
            mn_generation *got = NULL;
            bool is_done;
            assert_ok(open_generator(&w, session, &generator));
            assert_int_equal(step(&w, generator, n, &is_done), n);
            assert_false(is_done);
            if (n % 3 != 2) {
                assert_ok(mn_generator_finish(generator, &got));
                assert_int_equal(got->n_sequences, is_batch ? N_ROWS : 1);
            }
            mn_generator_close(&generator); /* without a result too */
            for (size_t i = 0; got && i < got->n_sequences; i++) {
                assert_string_equal(got->sequences[i]->finish_reason, "cancelled");
                assert_true(got->sequences[i]->n_ids <= n);
                assert_memory_equal(got->sequences[i]->ids, whole->sequences[i]->ids,
                                    got->sequences[i]->n_ids * sizeof(int32_t));
            }
            mn_generation_close(&got);
            if (session) { /* it goes on */
                assert_ok(in_one_call(&w, session, &got));
                assert_memory_equal(got->sequences[0]->ids, whole->sequences[0]->ids, N_NEW * sizeof(int32_t));
                mn_generation_close(&got);
            }
            mn_session_close(&session);
            assert_int_equal(engine_live(w.model), live);
        }
    }
    mn_generation_close(&whole);
    close_fixture(&w);
}

static void opening_fails_as_the_call_does(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"num_beams", "3"}, {"max_length", "5"}, {"guidance_scale", "2"}};
    int n_refused = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (int is_batch = 0; is_batch < 2; is_batch++) {
            fixture w;
            open_fixture(&w, 4);
            if (i == 1) assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "null"));
            assert_ok(mn_generation_config_set(w.config, bad[i][0], bad[i][1]));
            mn_session *session = is_batch ? NULL : engine_session(w.model, (engine_cache){0});
            mn_generation *generation = NULL;
            mn_generator *generator = NULL;
            char sentence[1000];
            mn_status status = in_one_call(&w, session, &generation);
            if (status != MN_OK) snprintf(sentence, sizeof sentence, "%s", mn_last_error());
            mn_generation_close(&generation);
            n_refused += status != MN_OK;
            if (status == MN_OK)
                assert_ok(open_generator(&w, session, &generator));
            else
                assert_fails(status, sentence, open_generator(&w, session, &generator));
            assert_int_equal(generator != NULL, status == MN_OK);
            mn_generator_close(&generator);
            mn_session_close(&session);
            close_fixture(&w);
        }
    }
    assert_true(n_refused >= 4);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int is_batch = 0; is_batch < 2; is_batch++) {
        fixture w;
        open_fixture(&w, is_batch ? 0 : 2);
        bool done = false;
        for (int64_t k = 1; !done; k += test_stride(3)) {
            mn_session *session = is_batch ? NULL : engine_session(w.model, (engine_cache){.page_tokens = 16});
            mn_generator *generator = NULL;
            mn_generation *got = NULL;
            bool is_done = false;
            mem_fail_after(k);
            mn_status status = open_generator(&w, session, &generator);
            w.seen.generator = generator;
            while (status == MN_OK && !is_done) status = mn_generator_step(generator, &is_done);
            if (status == MN_OK) status = mn_generator_finish(generator, &got);
            mem_fail_after(0);
            done = status == MN_OK;
            if (!done) {
                assert_int_equal(status, MN_E_NOMEM);
                assert_null(got);
                if (generator) assert_fails(MN_E_ARG, "or failed", mn_generator_step(generator, &is_done));
            }
            mn_generator_close(&generator);
            mn_generation_close(&got);
            mn_session_close(&session);
            assert_true(k < 3000);
        }
        close_fixture(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_give_what_one_call_gives),
        cmocka_unit_test(what_has_not_ended_ends_as_cancelled),
        cmocka_unit_test(opening_fails_as_the_call_does),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
