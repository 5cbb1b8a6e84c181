/* The same prompt gives the same logits, bit for bit, for any number of threads, in batches of any size, with or
 * without a cached prefix, and in repeated runs: 500 prompts with MNEME_LONG=1, otherwise 136 in batches and 30 of them
 * alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include "base/hash.h"
#include "session/session.h"

enum { MANY = 500, FEW = 136 /* 1 + 2 + ... + 16 */, FEW_ALONE = 30, MOST_PROMPT = 80, N_NEW = 6, MOST_ROWS = 16 };

static const int threads[] = {1, 2, 3, 8};
enum { N_THREADS = sizeof threads / sizeof *threads };

typedef struct fixture {
    mn_model *model;
    mn_generation_config *config;
    mn_generate_options how;
    size_t vocab;
} fixture;

static fixture open_fixture(const char *form, int n_threads) {
    fixture w = {0};
    mn_generate_options_init(&w.how, sizeof w.how);
    w.model = engine_model("embedded", form, "auto", n_threads);
    w.vocab = (size_t)engine_vocab(w.model);
    w.how.keep_logits = true;
    assert_ok(mn_generation_config_open(&w.config, w.model));
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "6"));
    assert_ok(mn_generation_config_set(w.config, "ignore_eos", "true"));
    return w;
}

static void close_fixture(fixture *w) {
    mn_generation_config_close(&w->config);
    mn_model_close(&w->model);
}

/* Prompt i, the same in every run; its length. */
static size_t make_prompt(const fixture *w, size_t i, int32_t ids[MOST_PROMPT]) {
    uint64_t seed = 1000 + i;
    size_t n = 1 + (size_t)(test_random(&seed) % MOST_PROMPT);
    engine_ids(&seed, ids, n, (int32_t)w->vocab);
    return n;
}

static uint64_t hash_of_sequence(const fixture *w, const mn_sequence *s) {
    assert_int_equal(s->n_ids, N_NEW);
    return hash_of(s->logits, N_NEW * w->vocab * sizeof *s->logits);
}

static uint64_t run_alone(const fixture *w, mn_session *session, const int32_t *ids, size_t n) {
    mn_generation *generation = NULL;
    assert_ok(mn_generate(session, ids, n, w->config, &w->how, &generation));
    uint64_t hash = hash_of_sequence(w, generation->sequences[0]);
    mn_generation_close(&generation);
    return hash;
}

static void same(uint64_t got, uint64_t wanted, size_t i, const char *what, int number) {
    if (got != wanted) fail_msg("prompt %zu, %s %d: other logits", i, what, number);
}

/* In a new session, again in the same session, and in one that holds the first half followed by other tokens. */
static void check_alone(const fixture *w, size_t i, uint64_t wanted, int n_threads) {
    int32_t ids[MOST_PROMPT], other = 3;
    size_t n = make_prompt(w, i, ids);
    mn_session *session = engine_session(w->model, (engine_cache){.page_tokens = 16});
    same(run_alone(w, session, ids, n), wanted, i, "a miss, threads", n_threads);
    same(run_alone(w, session, ids, n), wanted, i, "a rerun, threads", n_threads);
    if (n / 2 > 0) assert_ok(mn_session_sync(session, ids, n / 2, NULL));
    assert_ok(mn_session_step(session, &other, 1, NULL));
    same(run_alone(w, session, ids, n), wanted, i, "a hit, threads", n_threads);
    mn_session_close(&session);
}

/* Batches of 1, 2, ... 16, 1, 2, ... rows. */
static void check_batches(const fixture *w, size_t n_prompts, const uint64_t *wanted) {
    static int32_t ids[MOST_ROWS][MOST_PROMPT];
    mn_cache_options cache = engine_cache_options((engine_cache){.page_tokens = 16});
    size_t size = 0;
    for (size_t first = 0; first < n_prompts; first += size) {
        mn_batch_row rows[MOST_ROWS];
        mn_generation *generation = NULL;
        size = size % MOST_ROWS + 1;
        if (size > n_prompts - first) size = n_prompts - first;
        for (size_t r = 0; r < size; r++)
            rows[r] = (mn_batch_row){
                .size = sizeof(mn_batch_row), .prompt = ids[r], .n_prompt = make_prompt(w, first + r, ids[r])};
        assert_ok(mn_generate_batch(w->model, &cache, rows, size, w->config, &w->how, &generation));
        for (size_t r = 0; r < size; r++)
            same(hash_of_sequence(w, generation->sequences[r]), wanted[first + r], first + r, "a batch of", (int)size);
        mn_generation_close(&generation);
    }
}

static void logits_do_not_depend_on_threads_batch_or_cache_hits(void **state) {
    (void)state;
    static const char *const forms[] = {"f32", "int8"};
    static uint64_t wanted[MANY];
    size_t n_prompts = test_is_long() ? MANY : FEW / (size_t)test_stride(3), n_different = 0;
    for (int f = 0; f < 2; f++) {
        for (int t = 0; t < N_THREADS; t++) {
            fixture w = open_fixture(forms[f], threads[t]);
            for (size_t i = 0; i < n_prompts; i++) {
                int32_t ids[MOST_PROMPT];
                size_t n = make_prompt(&w, i, ids);
                if (t == 0) {
                    mn_session *session = engine_session(w.model, (engine_cache){.page_tokens = 16});
                    wanted[i] = run_alone(&w, session, ids, n);
                    mn_session_close(&session);
                }
                if (test_is_long() || i < FEW_ALONE / (size_t)test_stride(3)) check_alone(&w, i, wanted[i], threads[t]);
                if (t == 0 && i > 0) n_different += wanted[i] != wanted[i - 1];
            }
            check_batches(&w, n_prompts, wanted);
            close_fixture(&w);
        }
    }
    assert_int_equal(n_different, 2 * (n_prompts - 1)); /* the hash distinguishes prompts */
    print_message("  %zu prompts, threads 1, 2, 3, 8, batches of 1, 2, ... rows, misses, hits, reruns\n", n_prompts);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_do_not_depend_on_threads_batch_or_cache_hits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
