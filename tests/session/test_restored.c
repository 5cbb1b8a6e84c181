/* Saved caches that somebody forged: every checksum is right, so that every field must be looked at; what is accepted
 * is used.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "support/engine.h"
#include "support/restored.h"
#include "support/scratch.h"
#include "support/strategies.h"

typedef struct tally {
    size_t n_taken, n_refused;
} tally;

/* bytes of pages that a file may make a session hold: what is in it, and a reserve of the model's context. */
enum { MOST_BYTES = 16 << 20 };

static void try_forgeries(mn_model *model, engine_cache cache, size_t n_tokens, int n_tries, uint64_t *seed, tally *t) {
    char good[400], bad[400], scratch[400];
    int32_t ids[200];
    archive *a = NULL;
    snprintf(good, sizeof good, "%s", scratch_path("good"));
    snprintf(bad, sizeof bad, "%s", scratch_path("bad"));
    snprintf(scratch, sizeof scratch, "%s", scratch_path("again"));
    mn_session *session = engine_session(model, cache);
    engine_ids(seed, ids, n_tokens, engine_vocab(model));
    if (n_tokens) engine_feed(session, ids, n_tokens, 0, NULL, NULL);
    if (n_tokens > 20) engine_feed(session, ids, 9, 1, NULL, NULL);
    assert_ok(mn_session_save(session, good, *seed % 2));
    mn_session_close(&session);
    assert_ok(archive_open(&a, good));
    for (int i = 0; i < n_tries; i++) {
        uint64_t of_try = *seed = test_random(seed);
        restored_mutate(a, bad, seed);
        if (getenv("MNEME_SEED")) fprintf(stderr, "seed %llu\n", (unsigned long long)of_try);
        mn_status status = restored_use(model, bad, scratch, MOST_BYTES, seed);
        t->n_taken += status == MN_OK;
        t->n_refused += status != MN_OK;
    }
    archive_close(&a);
}

static void forged_caches_do_no_harm(void **state) {
    (void)state;
    static const char *const models[] = {"golden/llama-untied-bias", "golden/mistral-window", "golden/jamba",
                                         "golden/phi3-longrope"};
    int n_tries = test_is_long() ? 300 : 12;
    tally t = {0};
    const char *start = getenv("MNEME_SEED");
    uint64_t seed = start ? strtoull(start, NULL, 10) : 11;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        mn_model *model = engine_model(models[m], "f32", "auto", 1);
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            mn_session *session = NULL;
            engine_cache cache = strategy_cache(s, s % 2 ? "bf16" : "f32");
            mn_cache_options options = engine_cache_options(cache);
            if (mn_session_open(&session, model, &options) != MN_OK) continue; /* not of this model */
            mn_session_close(&session);
            try_forgeries(model, cache, s % 5 == 4 ? 0 : 30 + (size_t)s * 3, n_tries, &seed, &t);
        }
        assert_int_equal(kv_pool_used(model->core->pool), 0);
        mn_model_close(&model);
    }
    print_message("%zu forgeries were taken and used, %zu refused\n", t.n_taken, t.n_refused);
    assert_true(t.n_taken > 100 && t.n_refused > t.n_taken / 4);
}

/* Everything that a session holds: ids, logits, the keys and values of every layer. */
static uint64_t checksum(const mn_session *s) {
    const model_config *c = &s->model->net.config;
    size_t n = (size_t)mn_session_length(s), heads = (size_t)c->num_key_value_heads;
    size_t n_row = n * heads * (size_t)c->head_dim;
    bytes all = {0};
    float *rows = malloc(n_row * sizeof *rows);
    assert_non_null(rows);
    bytes_append(&all, mn_session_ids(s), n * sizeof(int32_t));
    bytes_append(&all, mn_session_logits(s), (size_t)c->vocab_size * sizeof(float));
    for (int layer = 0; layer < (int)c->num_hidden_layers; layer++) {
        for (int keys = 0; keys < 2; keys++) {
            assert_ok(mn_session_read(s, layer, keys, 0, (int64_t)n, rows));
            bytes_append(&all, rows, n_row * sizeof *rows);
        }
    }
    assert_ok(bytes_status(&all));
    uint64_t sum = hash_of(all.data, all.n);
    bytes_clear(&all);
    free(rows);
    return sum;
}

/* A session that lives meanwhile, whose pages lie in the same pool, is as it was after each of 1,000 refusals. */
static void refused_files_change_nothing(void **state) {
    (void)state;
    enum { N_REFUSALS = 1000 };
    mn_model *model = engine_model("golden/llama-untied-bias", "f32", "auto", 1);
    engine_cache cache = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 4};
    char good[400], bad[400];
    uint64_t seed = 23;
    int32_t ids[60];
    archive *a = NULL;
    snprintf(good, sizeof good, "%s", scratch_path("good"));
    snprintf(bad, sizeof bad, "%s", scratch_path("bad"));
    mn_session *live = engine_session(model, cache), *s = NULL;
    engine_ids(&seed, ids, 60, engine_vocab(model));
    engine_feed(live, ids, 60, 0, NULL, NULL);
    assert_ok(mn_session_save(live, good, false));
    assert_ok(archive_open(&a, good));
    uint64_t before = checksum(live);
    size_t used = kv_pool_used(model->core->pool);
    for (int n = 0; n < N_REFUSALS;) {
        restored_mutate(a, bad, &seed);
        mn_status status = mn_session_load(&s, model, bad, NULL);
        mn_session_close(&s);
        if (status == MN_OK) continue;
        n++;
        if (checksum(live) != before || kv_pool_used(model->core->pool) != used)
            fail_msg("after refusal %d: %s", n, mn_last_error());
    }
    assert_ok(kv_check(live->cache));
    archive_close(&a);
    mn_session_close(&live);
    mn_model_close(&model);
}

int main(void) {
    /* Thousands of synced files: in memory, where the system has such a folder. */
    if (file_is_directory("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(forged_caches_do_no_harm),
                                       cmocka_unit_test(refused_files_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
