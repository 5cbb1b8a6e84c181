/* Saved sessions: a loaded session continues, bit for bit, as if it had never been interrupted, for every strategy and
 * after any history; files of other models and damaged files are refused, and nothing has changed.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <sys/stat.h>
#include <unistd.h>

#include "session/session.h"
#include "kv/group.h"
#include "kv/archive.h"
#include "support/hostile/hostile.h"
#include "support/scratch.h"
#include "support/strategies.h"

static const char tiny[] = "golden/llama-untied-bias";

enum { MOST = 400, N_MORE = 40 };

typedef struct fixture {
    mn_model *model;
    int32_t vocab;
    uint64_t seed;
    int64_t live; /* blocks before the model was opened */
} fixture;

static fixture open_fixture(const char *path) {
    fixture w = {.seed = 5, .live = mem_count().live};
    w.model = engine_model(path, "f32", "auto", engine_threads());
    w.vocab = engine_vocab(w.model);
    return w;
}

/* The pool keeps pages for reuse, so what is lost shows when it is closed. */
static void close_fixture(fixture *w) {
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
    assert_int_equal(mem_count().live, w->live);
}

static size_t below(fixture *w, size_t n) {
    return (size_t)(test_random(&w->seed) % n);
}

static void feed_random(fixture *w, mn_session *session, size_t n, int piece) {
    int32_t ids[MOST];
    engine_ids(&w->seed, ids, n, w->vocab);
    engine_feed(session, ids, n, piece, &w->seed, NULL);
}

/* A session with a history: a prompt, then steps, truncations and forks of which one continues. */
static mn_session *with_history(fixture *w, engine_cache cache, size_t n_prompt, int n_actions) {
    mn_session *session = engine_session(w->model, cache);
    if (n_prompt) feed_random(w, session, n_prompt, below(w, 2) ? 0 : -1);
    for (int i = 0; i < n_actions; i++) {
        mn_session *fork = NULL;
        size_t n = (size_t)mn_session_length(session);
        switch (below(w, 4)) {
        case 0: mn_session_truncate(session, (int64_t)below(w, n + 1)); break; /* a window may refuse */
        case 1:
            assert_ok(mn_session_fork(&fork, session));
            feed_random(w, session, 1 + below(w, 12), 0);
            if (below(w, 2)) {
                mn_session *parent = session;
                session = fork;
                fork = parent;
            }
            mn_session_close(&fork);
            break;
        default:
            if (n < MOST / 2) {
                size_t n_fed = 1 + below(w, 30);
                feed_random(w, session, n_fed, below(w, 2) ? 0 : 1);
            }
        }
    }
    return session;
}

static void same_state(const mn_session *got, const mn_session *wanted, const char *what) {
    size_t n = (size_t)mn_session_length(wanted), vocab = (size_t)wanted->model->net.config.vocab_size;
    assert_int_equal(mn_session_length(got), n);
    if (n) assert_memory_equal(mn_session_ids(got), mn_session_ids(wanted), n * sizeof(int32_t));
    const float *a = mn_session_logits(got), *b = mn_session_logits(wanted);
    if (!a != !b) fail_msg("%s: one of the two has logits, the other has none", what);
    if (a) engine_same_bits(a, b, 1, vocab, "%s", what);
    assert_ok(kv_check(got->cache));
}

/* Both compute the same tokens and stay equal. */
static void go_on_alike(fixture *w, mn_session *got, mn_session *wanted, const char *what) {
    int32_t ids[N_MORE];
    float *logits[2];
    size_t vocab = (size_t)w->vocab;
    for (int i = 0; i < 2; i++) logits[i] = malloc(N_MORE * vocab * sizeof(float));
    for (int i = 0; i < 6; i++) {
        size_t n = i == 0 ? 1 : 1 + below(w, N_MORE);
        engine_ids(&w->seed, ids, n, w->vocab);
        assert_ok(mn_session_step(wanted, ids, n, logits[0]));
        assert_ok(mn_session_step(got, ids, n, logits[1]));
        engine_same_bits(logits[1], logits[0], n, vocab, "%s, call %d", what, i);
        if (i != 2 && i != 4) continue;
        int64_t keep = mn_session_length(wanted) - (int64_t)below(w, 60);
        if (keep < 0) keep = 0;
        mn_status status = mn_session_truncate(wanted, keep);
        assert_int_equal(mn_session_truncate(got, keep), status);
    }
    same_state(got, wanted, what);
    for (int i = 0; i < 2; i++) free(logits[i]);
}

static void forks_go_on_alike(fixture *w, const mn_session *got, const mn_session *wanted, const char *what) {
    mn_session *forks[2] = {NULL, NULL};
    assert_ok(mn_session_fork(&forks[0], got));
    assert_ok(mn_session_fork(&forks[1], wanted));
    go_on_alike(w, forks[0], forks[1], what);
    mn_session_close(&forks[0]);
    mn_session_close(&forks[1]);
}

/* Two saved caches are equal, except for the time of saving. */
static void same_archives(const char *path_a, const char *path_b, const char *what) {
    archive *a = NULL, *b = NULL;
    assert_ok(archive_open(&a, path_a));
    assert_ok(archive_open(&b, path_b));
    assert_ok(archive_verify(a));
    assert_ok(archive_verify(b));
    assert_int_equal(archive_members(a), archive_members(b));
    for (size_t i = 0; i < archive_members(a); i++) {
        archive_member x = archive_member_at(a, i), y = archive_member_at(b, i);
        assert_string_equal(x.key, y.key);
        if (strcmp(x.key, ARCHIVE_CREATED) != 0) assert_string_equal(x.value, y.value);
    }
    if (archive_entries(a) != archive_entries(b))
        fail_msg("%s: %zu entries, after a load %zu", what, archive_entries(b), archive_entries(a));
    for (size_t i = 0; i < archive_entries(a); i++) {
        const archive_view *x = archive_entry_at(a, i), *y = archive_entry_at(b, i);
        if (strcmp(x->name, y->name) != 0 || x->stored_bytes != y->stored_bytes || x->sum != y->sum)
            fail_msg("%s: entries '%s' and '%s' differ", what, x->name, y->name);
    }
    archive_close(&a);
    archive_close(&b);
}

static mn_session *load(mn_model *model, const char *path) {
    mn_session *session = NULL;
    assert_ok(mn_session_load(&session, model, path, NULL));
    return session;
}

/* ---- the identity ---- */

static void check_identity(fixture *w, engine_cache cache, size_t n_prompt, int n_actions, bool compress) {
    char what[200], first[256], second[256];
    snprintf(what, sizeof what, "%s %s %s%s", cache.implementation, cache.config ? cache.config : "", cache.dtype,
             compress ? " compressed" : "");
    snprintf(first, sizeof first, "%s", scratch_path("first"));
    snprintf(second, sizeof second, "%s", scratch_path("second"));
    mn_session *session = with_history(w, cache, n_prompt, n_actions);
    mn_cache_info before = {.size = sizeof before}, after = before;
    assert_ok(mn_session_save(session, first, compress));
    assert_ok(kv_check(session->cache));
    mn_session *loaded = load(w->model, first);
    same_state(loaded, session, what);
    assert_ok(mn_session_cache(session, &before));
    assert_ok(mn_session_cache(loaded, &after));
    assert_string_equal(after.implementation, before.implementation);
    assert_string_equal(after.dtype, before.dtype);
    assert_int_equal(after.tokens, before.tokens);
    assert_int_equal(after.max_cache_len, before.max_cache_len);
    /* Preallocated pages that were offloaded or shared with a fork are lost by truncating; after loading all are there
     * again. */
    bool is_whole = !strstr(before.implementation, "static");
    /* Unused room and parts of the page being filled are not saved. */
    size_t open_pages = 0;
    for (int g = 0; g < session->cache->n_groups; g++) open_pages += session->cache->groups[g].page_bytes[PAGE_EXACT];
    if (is_whole ? after.bytes > before.bytes || before.bytes - after.bytes > 2 * open_pages
                 : after.bytes < before.bytes)
        fail_msg("%s: %llu bytes after the load, %llu before", what, (unsigned long long)after.bytes,
                 (unsigned long long)before.bytes);
    assert_ok(mn_session_save(loaded, second, compress));
    same_archives(second, first, what);
    forks_go_on_alike(w, loaded, session, what);
    mn_session_close(&session); /* the mapped file serves the loaded one alone now */
    session = load(w->model, second);
    unlink(first);
    unlink(second);
    go_on_alike(w, loaded, session, what);
    mn_session_close(&loaded);
    mn_session_close(&session);
}

/* `first` differs between the callers, which have every strategy together where each tries a sample. */
static void check_strategies(const char *path, const char *exact, int n_histories, int first) {
    fixture w = open_fixture(path);
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        for (int history = 0; history < n_histories; history++) {
            if (!test_samples(s + history + first, 8)) continue;
            w.seed = 1000 * (uint64_t)s + (uint64_t)history;
            size_t n_prompt = history ? 1 + below(&w, 110) : 90;
            check_identity(&w, strategy_cache(s, exact), n_prompt, history ? 9 : 0, history % 2);
        }
    }
    engine_cache none = {.implementation = "none", .dtype = exact};
    check_identity(&w, none, 20, 4, false);
    close_fixture(&w);
}

static void f32_sessions_continue(void **state) {
    (void)state;
    check_strategies(tiny, "f32", 3, 0);
}

static void bf16_sessions_continue(void **state) {
    (void)state;
    check_strategies(tiny, "bf16", 3, 3);
}

static void windowed_models_continue(void **state) {
    (void)state;
    check_strategies("golden/mistral-window", "bf16", 2, 6);
}

/* Where rotary angles depend on the length, the saved keys have those of their length. */
static void long_angles_continue(void **state) {
    (void)state;
    fixture w = open_fixture("golden/phi3-longrope");
    for (size_t n = 20; n <= 140; n += 40)
        check_identity(&w, (engine_cache){.implementation = "dynamic", .dtype = "f32", .page_tokens = 4}, n, 3, false);
    close_fixture(&w);
}

static void empty_sessions_are_saved_too(void **state) {
    (void)state;
    fixture w = open_fixture(tiny);
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        if (test_samples(s, 4)) check_identity(&w, strategy_cache(s, "bf16"), 0, 0, false);
    }
    close_fixture(&w);
}

/* Truncated tokens are not saved, and the rest has no logits until it is synchronised. */
static void truncated_sessions_are_saved_as_they_are(void **state) {
    (void)state;
    fixture w = open_fixture(tiny);
    const char *path = scratch_path("cut");
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        if (!test_samples(s, 4)) continue;
        mn_session *session = engine_session(w.model, strategy_cache(s, "f32"));
        feed_random(&w, session, 80, 0);
        if (mn_session_truncate(session, 70) == MN_OK) {
            size_t reused[2];
            int32_t ids[70];
            assert_ok(mn_session_save(session, path, false));
            mn_session *loaded = load(w.model, path);
            assert_null(mn_session_logits(loaded));
            same_state(loaded, session, "cut");
            memcpy(ids, mn_session_ids(session), sizeof ids);
            assert_ok(mn_session_sync(session, ids, 70, &reused[0]));
            assert_ok(mn_session_sync(loaded, ids, 70, &reused[1]));
            assert_int_equal(reused[0], reused[1]);
            same_state(loaded, session, "cut and synchronised");
            mn_session_close(&loaded);
        }
        mn_session_close(&session);
    }
    close_fixture(&w);
}

/* ---- expected strategies ---- */

static bool same_results(mn_session *a, mn_session *b) {
    kv_spec *specs[2];
    int n[2];
    assert_ok(session_specs(&specs[0], &n[0], a));
    assert_ok(session_specs(&specs[1], &n[1], b));
    bool same = a->plan.options.page_tokens == b->plan.options.page_tokens;
    for (int i = 0; same && i < n[0]; i++) same = kv_spec_equal(&specs[0][i], &specs[1][i]);
    mem_free(specs[0]);
    mem_free(specs[1]);
    return same;
}

static void other_strategies_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture(tiny);
    char path[256];
    int n_refused = 0, n_saved = 0;
    snprintf(path, sizeof path, "%s", scratch_path("strategy"));
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        if (!test_samples(s, 4)) continue;
        mn_session *session = engine_session(w.model, strategy_cache(s, "bf16"));
        feed_random(&w, session, 60, 0);
        assert_ok(mn_session_save(session, path, false));
        n_saved++;
        for (int other = 0; other < N_ENGINE_STRATEGIES; other++) {
            mn_cache_options options = engine_cache_options(strategy_cache(other, "bf16"));
            mn_session *loaded = NULL, *plain = engine_session(w.model, strategy_cache(other, "bf16"));
            bool same = same_results(session, plain);
            mn_session_close(&plain);
            if (same) {
                assert_ok(mn_session_load(&loaded, w.model, path, &options));
                same_state(loaded, session, options.implementation);
                assert_string_equal(loaded->plan.name, options.implementation);
                mn_session_close(&loaded);
            } else {
                n_refused++;
                assert_fails(MN_E_REFUSED, "not the requested '", mn_session_load(&loaded, w.model, path, &options));
                assert_null(loaded);
            }
        }
        engine_cache wide = strategy_cache(s, "f32");
        mn_cache_options options = engine_cache_options(wide);
        mn_session *loaded = NULL;
        assert_fails(MN_E_REFUSED, "strategy", mn_session_load(&loaded, w.model, path, &options));
        mn_session_close(&session);
    }
    assert_true(n_refused > n_saved * (N_ENGINE_STRATEGIES - 3));
    close_fixture(&w);
}

/* Options other than the strategy are the caller's. */
static void options_of_the_caller_are_kept(void **state) {
    (void)state;
    fixture w = open_fixture(tiny);
    char path[256];
    snprintf(path, sizeof path, "%s", scratch_path("options"));
    mn_session *session = engine_session(w.model, (engine_cache){.page_tokens = 4, .dtype = "f32"}), *loaded = NULL;
    feed_random(&w, session, 50, 0);
    assert_ok(mn_session_save(session, path, false));
    mn_cache_options options = engine_cache_options((engine_cache){.page_tokens = 4, .dtype = "f32"});
    options.on_oom = "offload";
    options.prefill_chunk = 7;
    options.max_cache_len = 60;
    assert_ok(mn_session_load(&loaded, w.model, path, &options));
    assert_int_equal(loaded->on_oom, OOM_OFFLOAD);
    assert_int_equal(loaded->prefill_chunk, 7);
    assert_int_equal(loaded->plan.options.limit, 60);
    mn_session_close(&loaded);
    options.implementation = "static";
    assert_ok(mn_session_load(&loaded, w.model, path, &options));
    assert_string_equal(loaded->plan.name, "static");
    same_state(loaded, session, "static from dynamic");
    mn_session_close(&loaded);
    options.max_cache_len = 49;
    assert_fails(MN_E_REFUSED, "49", mn_session_load(&loaded, w.model, path, &options));
    /* Without a name the file determines the strategy. */
    options.implementation = NULL;
    options.max_cache_len = 0;
    assert_ok(mn_session_load(&loaded, w.model, path, &options));
    assert_string_equal(loaded->plan.name, "dynamic");
    assert_int_equal(loaded->on_oom, OOM_OFFLOAD);
    assert_int_equal(loaded->prefill_chunk, 7);
    mn_session_close(&loaded);
    options.on_oom = "sometimes";
    assert_fails(MN_E_ARG, "sometimes", mn_session_load(&loaded, w.model, path, &options));
    options.on_oom = NULL;
    options.implementation = "dinamic";
    assert_fails(MN_E_ARG, "dynamic", mn_session_load(&loaded, w.model, path, &options));
    assert_fails(MN_E_ARG, NULL, mn_session_load(&loaded, w.model, "", NULL));
    assert_fails(MN_E_ARG, NULL, mn_session_load(&loaded, w.model, NULL, NULL));
    assert_fails(MN_E_ARG, NULL, mn_session_save(session, "", false));
    assert_fails(MN_E_IO, "/absent/", mn_session_save(session, "/absent/folder/file", false));
    assert_fails(MN_E_NOT_FOUND, "absent", mn_session_load(&loaded, w.model, scratch_path("absent"), NULL));
    assert_null(loaded);
    mn_session_close(&session);
    close_fixture(&w);
}

/* ---- other models ---- */

static void other_models_are_refused(void **state) {
    (void)state;
    static const char *const others[] = {"golden/llama", "golden/qwen3", "golden/mistral-window", "embedded"};
    fixture w = open_fixture(tiny);
    char path[256];
    snprintf(path, sizeof path, "%s", scratch_path("model"));
    mn_session *session = with_history(&w, (engine_cache){.page_tokens = 4}, 30, 2);
    assert_ok(mn_session_save(session, path, false));
    for (int i = 0; i < 4; i++) {
        mn_model *other = engine_model(others[i], "f32", "auto", 1);
        mn_session *loaded = NULL;
        assert_fails(MN_E_REFUSED, "another model", mn_session_load(&loaded, other, path, NULL));
        assert_non_null(strstr(mn_last_error(), "llama-untied-bias")); /* the model that saved it */
        assert_null(loaded);
        mn_model_close(&other);
    }
    mn_session_close(&session);
    close_fixture(&w);
}

/* The same sizes and names; one bit of one weight, or one number of the configuration, is another. */
static void nearly_the_same_model_is_refused(void **state) {
    (void)state;
    bytes weights = {0}, config = {0};
    char folder[256], path[256];
    fixture w = open_fixture(tiny);
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    snprintf(path, sizeof path, "%s", scratch_path("near"));
    mn_session *session = with_history(&w, (engine_cache){.page_tokens = 4}, 30, 2);
    assert_ok(mn_session_save(session, path, false));
    assert_ok(file_read(&weights, data_path("golden/llama-untied-bias/model.safetensors"), 1 << 24));
    assert_ok(file_read(&config, data_path("golden/llama-untied-bias/config.json"), 1 << 20));
    for (int i = 0; i < 3; i++) {
        if (i == 1) weights.data[weights.n - 1000] ^= 1;
        if (i == 2) {
            weights.data[weights.n - 1000] ^= 1;
            char *theta = strstr(bytes_text(&config), "\"rms_norm_eps\": 1e-0");
            assert_non_null(theta);
            char *digit = theta + strlen("\"rms_norm_eps\": 1e-0");
            *digit = *digit == '5' ? '6' : '5';
        }
        scratch_file("model.safetensors", weights.data, weights.n);
        scratch_file("config.json", config.data, config.n);
        mn_model *other = engine_model(folder, "f32", "auto", 1);
        mn_session *loaded = NULL;
        if (i == 0) { /* a copy is the same model */
            assert_ok(mn_session_load(&loaded, other, path, NULL));
            same_state(loaded, session, "a copy of the model");
            mn_session_close(&loaded);
        } else {
            assert_fails(MN_E_REFUSED, "another model", mn_session_load(&loaded, other, path, NULL));
        }
        mn_model_close(&other);
    }
    unlink(scratch_path("model.safetensors"));
    unlink(scratch_path("config.json"));
    bytes_clear(&weights);
    bytes_clear(&config);
    mn_session_close(&session);
    close_fixture(&w);
}

/* ---- damage ---- */

/* Loading fails, or gives a session that can be used; nothing is left, and the witness is as before. */
static mn_status try_damaged(fixture *w, const char *path, const void *data, size_t n) {
    mn_session *loaded = NULL;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    size_t used = kv_pool_used(w->model->core->pool);
    mn_status status = mn_session_load(&loaded, w->model, path, NULL);
    if (status == MN_OK) {
        const int32_t some[] = {3, 1, 2};
        assert_ok(kv_check(loaded->cache));
        mn_status fed = mn_session_step(loaded, some, 3, NULL);
        if (fed != MN_OK && fed != MN_E_FULL) fail_msg("%s", mn_last_error()); /* a file sets the limit of its cache */
        mn_session_close(&loaded);
    } else {
        assert_null(loaded);
        if (status != MN_E_REFUSED || !*mn_last_error()) fail_msg("status %d, '%s'", status, mn_last_error());
    }
    assert_int_equal(kv_pool_used(w->model->core->pool), used);
    return status;
}

static void check_damage(fixture *w, engine_cache cache, bool compress) {
    char path[256];
    bytes file = {0};
    uint64_t n_head;
    snprintf(path, sizeof path, "%s", scratch_path("damaged"));
    mn_session *witness = with_history(w, cache, 50, 0), *loaded = NULL;
    assert_ok(mn_session_save(witness, path, compress));
    assert_ok(file_read(&file, path, 1 << 24));
    memcpy(&n_head, file.data, sizeof n_head);
    n_head += 8;
    mn_session *twin = load(w->model, path);
    unlink(path);
    for (size_t at = 0; at < file.n; at += at < n_head ? 1 + below(w, 9) : 1 + below(w, file.n / 300)) {
        uint8_t bit = (uint8_t)(1u << below(w, 8));
        file.data[at] ^= (char)bit;
        if (try_damaged(w, path, file.data, file.n) == MN_OK)
            fail_msg("%s: a flipped bit of byte %zu of %zu (header %zu) went unseen", cache.implementation, at, file.n,
                     (size_t)n_head);
        file.data[at] ^= (char)bit;
    }
    for (size_t n = 0; n < file.n; n += n < 64 ? 1 : 1 + below(w, file.n / 150)) {
        if (try_damaged(w, path, file.data, n) == MN_OK)
            fail_msg("%s: the first %zu of %zu bytes were taken for all", cache.implementation, n, file.n);
    }
    assert_int_equal(try_damaged(w, path, file.data, file.n - 1), MN_E_REFUSED);
    assert_int_equal(try_damaged(w, path, file.data, file.n), MN_OK);
    assert_fails(MN_E_REFUSED, NULL, mn_session_load(&loaded, w->model, data_path("golden/llama/config.json"), NULL));
    assert_fails(MN_E_REFUSED, NULL,
                 mn_session_load(&loaded, w->model, data_path("golden/llama/model.safetensors"), NULL));
    /* Neither the saved session nor one over another mapping of the same bytes has changed. */
    same_state(twin, witness, "after all the damage");
    go_on_alike(w, twin, witness, "after all the damage");
    mn_session_close(&twin);
    mn_session_close(&witness);
    bytes_clear(&file);
}

static void damage_is_detected(void **state) {
    (void)state;
    static const int strategies[] = {0, 3, 7, 10, 18};
    fixture w = open_fixture(tiny);
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        if (test_samples((int)i, 3)) check_damage(&w, strategy_cache(strategies[i], "bf16"), i % 2);
    close_fixture(&w);
}

/* Files whose checksums are right and whose contents are not. */
static void hostile_files_are_refused_or_usable(void **state) {
    (void)state;
    const int n_tries = 400 / test_stride(2);
    static const int strategies[] = {0, 4, 7, 10, 15, 18, 20, 22};
    fixture w = open_fixture(tiny);
    char path[256];
    int n_taken = 0;
    snprintf(path, sizeof path, "%s", scratch_path("hostile"));
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        mn_session *session = with_history(&w, strategy_cache(strategies[i], "bf16"), 60, 3);
        bytes file = {0};
        assert_ok(mn_session_save(session, path, i % 2));
        assert_ok(file_read(&file, path, 1 << 24));
        size_t capacity = file.n + 4096;
        uint8_t *damaged = malloc(capacity);
        for (int k = 0; k < n_tries; k++) {
            size_t n = file.n;
            memcpy(damaged, file.data, n);
            n = hostile_mutate(damaged, n, capacity, &w.seed);
            hostile_archive_fix_checksums(damaged, n);
            n_taken += try_damaged(&w, path, damaged, n) == MN_OK;
        }
        free(damaged);
        bytes_clear(&file);
        mn_session_close(&session);
    }
    assert_true(n_taken > 0); /* so the checksums were right */
    close_fixture(&w);
}

/* Members and entries that contradict each other, each with good checksums. */
static const struct forgery {
    const char *member, *value; /* NULL: left as it is; value NULL: left out */
    const char *entry;          /* this entry is left out */
    const char *message;
} forgeries[] = {
    {ARCHIVE_KIND, "recipe", NULL, "recipe"},
    {ARCHIVE_KIND, NULL, NULL, ARCHIVE_KIND},
    {ARCHIVE_MODEL_FINGERPRINT, NULL, NULL, ARCHIVE_MODEL_FINGERPRINT},
    {ARCHIVE_MODEL_FINGERPRINT, "00112233445566778899aabbccddeeff", NULL, "another model"},
    {ARCHIVE_TOKENIZER_FINGERPRINT, NULL, NULL, ARCHIVE_TOKENIZER_FINGERPRINT},
    {ARCHIVE_TOKENIZER_FINGERPRINT, "00112233445566778899aabbccddeeff", NULL, "another tokenizer"},
    {ARCHIVE_STRATEGY, NULL, NULL, ARCHIVE_STRATEGY},
    {ARCHIVE_STRATEGY, "dynamic", NULL, "strategy"},
    {ARCHIVE_STRATEGY, "{}", NULL, "strategy"},
    {ARCHIVE_STRATEGY, "{\"implementation\":7}", NULL, "strategy"},
    {ARCHIVE_STRATEGY, "{\"implementation\":\"dynamic\",\"page_tokens\":4,\"calibration\":\"\"}", NULL,
     "max_cache_len"},
    {ARCHIVE_STRATEGY, "{\"implementation\":\"dynamic\",\"max_cache_len\":-1,\"page_tokens\":4,\"calibration\":\"\"}",
     NULL, "max_cache_len"},
    {ARCHIVE_STRATEGY,
     "{\"implementation\":\"static\",\"max_cache_len\":1099511627776,\"page_tokens\":4,\"calibration\":\"\"}", NULL,
     NULL},
    {ARCHIVE_STRATEGY,
     "{\"implementation\":\"dynamic\",\"max_cache_len\":0,\"page_tokens\":40000,\"calibration\":\"\"}", NULL,
     "page_tokens"},
    {ARCHIVE_STRATEGY, "{\"implementation\":\"dynamic\",\"max_cache_len\":0,\"page_tokens\":8,\"calibration\":\"\"}",
     NULL, NULL},
    {ARCHIVE_STRATEGY, "{\"implementation\":\"dinamic\",\"max_cache_len\":0,\"page_tokens\":4,\"calibration\":\"\"}",
     NULL, "dinamic"},
    {ARCHIVE_STRATEGY, "{\"implementation\":\"dynamic\",\"max_cache_len\":0,\"page_tokens\":4,\"calibration\":\"00\"}",
     NULL, "calibration"},
    {ARCHIVE_STRATEGY, "{\"implementation\":\"dynamic\",\"max_cache_len\":20,\"page_tokens\":4,\"calibration\":\"\"}",
     NULL, "20"},
    {ARCHIVE_ROPE, NULL, NULL, ARCHIVE_ROPE},
    {ARCHIVE_ROPE, "[", NULL, "rotary"},
    {ARCHIVE_ROPE, "{\"regime\":-5}", NULL, "rotary"},
    {"cached_tokens", NULL, NULL, "no number of tokens"},
    {"cached_tokens", "", NULL, "no number of tokens"},
    {"cached_tokens", "31x", NULL, "no number of tokens"},
    {"cached_tokens", "-1", NULL, "no number of tokens"},
    {"cached_tokens", "31", NULL, "no number of tokens"},
    {"cached_tokens", "26", NULL, NULL},
    {"cached_tokens", "99999999999999999999999999", NULL, "no number of tokens"},
    {NULL, NULL, ARCHIVE_IDS, "token ids"},
    {NULL, NULL, "groups", "groups"},
    {NULL, NULL, "group.0.quantized", "group.0.quantized"},
    {NULL, NULL, "group.0.exact.3", "group.0.exact.3"},
    {NULL, NULL, "group.0.exact.7", "group.0.exact.7"},
};

static void forge(const char *from, const char *to, const struct forgery *f) {
    archive *a = NULL;
    archive_entry entries[64];
    archive_member members[32];
    size_t n_entries = 0, n_members = 0;
    assert_ok(archive_open(&a, from));
    for (size_t i = 0; i < archive_entries(a); i++) {
        const archive_view *view = archive_entry_at(a, i);
        if (f->entry && strcmp(f->entry, view->name) == 0) continue;
        archive_entry *e = &entries[n_entries++];
        *e = (archive_entry){.name = view->name,
                             .type = view->type,
                             .n_dims = view->n_dims,
                             .data = view->stored,
                             .n_bytes = view->n_bytes};
        memcpy(e->shape, view->shape, sizeof e->shape);
    }
    for (size_t i = 0; i < archive_members(a); i++) {
        members[n_members] = archive_member_at(a, i);
        if (f->member && strcmp(f->member, members[n_members].key) == 0) members[n_members].value = f->value;
        n_members += members[n_members].value != NULL;
    }
    assert_ok(archive_write(to, entries, n_entries, members, n_members));
    archive_close(&a);
}

static void forgeries_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture(tiny);
    char good[256], bad[256];
    snprintf(good, sizeof good, "%s", scratch_path("good"));
    snprintf(bad, sizeof bad, "%s", scratch_path("bad"));
    mn_session *session = engine_session(w.model, (engine_cache){.page_tokens = 4, .dtype = "bf16"}), *loaded = NULL;
    feed_random(&w, session, 30, 0);
    assert_ok(mn_session_save(session, good, false));
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        forge(good, bad, &forgeries[i]);
        mn_status status = mn_session_load(&loaded, w.model, bad, NULL);
        if (status != MN_E_REFUSED || loaded)
            fail_msg("forgery %zu: status %d, %s", i, status, status ? mn_last_error() : "loaded");
        if (forgeries[i].message && !strstr(mn_last_error(), forgeries[i].message))
            fail_msg("forgery %zu: '%s' lacks '%s'", i, mn_last_error(), forgeries[i].message);
    }
    forge(good, bad, &(struct forgery){0});
    loaded = load(w.model, bad);
    same_state(loaded, session, "nothing forged");
    mn_session_close(&loaded);
    mn_session_close(&session);
    close_fixture(&w);
}

/* ---- folders ---- */

static void cached(fixture *w, engine_cache cache, const char *folder, const int32_t *ids, size_t n, size_t wanted,
                   const char *what) {
    mn_cache_options options = engine_cache_options(cache);
    mn_session *session = NULL, *fresh = engine_session(w->model, cache);
    size_t reused = SIZE_MAX;
    assert_ok(mn_session_open_cached(&session, w->model, &options, folder, ids, n));
    assert_string_equal(session->plan.name, fresh->plan.name);
    assert_ok(mn_session_sync(session, ids, n, &reused));
    assert_ok(mn_session_sync(fresh, ids, n, NULL));
    if (reused != wanted) fail_msg("%s: %zu tokens were reused, expected %zu", what, reused, wanted);
    if (strcmp(cache.implementation, "quantized") != 0) same_state(session, fresh, what);
    mn_session_close(&session);
    mn_session_close(&fresh);
}

static void save_prefix(mn_model *model, engine_cache cache, const int32_t *ids, size_t n, const char *name) {
    mn_session *session = engine_session(model, cache);
    engine_feed(session, ids, n, 0, NULL, NULL);
    assert_ok(mn_session_save(session, scratch_path(name), false));
    mn_session_close(&session);
}

static void the_longest_prefix_wins(void **state) {
    (void)state;
    fixture w = open_fixture(tiny);
    mn_model *other = engine_model("golden/llama", "f32", "auto", 1), *rounded = engine_model(tiny, "bf16", "auto", 1);
    engine_cache plain = {.implementation = "dynamic", .page_tokens = 4, .dtype = "f32"};
    engine_cache coded = {.implementation = "quantized", .page_tokens = 16, .dtype = "f32"};
    engine_cache sink = {
        .implementation = "sink", .page_tokens = 4, .dtype = "f32", .config = "window_length=20,num_sink_tokens=2"};
    char folder[256];
    int32_t ids[100], strange[100];
    engine_ids(&w.seed, ids, 100, w.vocab);
    engine_ids(&w.seed, strange, 100, w.vocab);
    strange[0] = (ids[0] + 1) % w.vocab;
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    cached(&w, plain, scratch_path("absent"), ids, 100, 0, "no folder");
    cached(&w, plain, NULL, ids, 100, 0, "no name of a folder");
    cached(&w, plain, folder, ids, 100, 0, "an empty folder");
    save_prefix(w.model, plain, strange, 90, "strange.safetensors");
    cached(&w, plain, folder, ids, 100, 0, "nothing in common");
    save_prefix(w.model, plain, ids, 10, "a.safetensors");
    cached(&w, plain, folder, ids, 100, 10, "one prefix");
    save_prefix(w.model, plain, ids, 30, "c.safetensors");
    save_prefix(w.model, plain, ids, 20, "b.safetensors");
    cached(&w, plain, folder, ids, 100, 30, "the longest of three");
    cached(&w, plain, folder, ids, 25, 24, "longer than the text"); /* its last logits are computed */
    cached(&w, plain, folder, ids, 30, 30, "the text itself");
    cached(&w, plain, folder, ids, 1, 0, "one token");
    /* The same tokens and more: with other strategies, of another model, another type, damaged, and no cache at all. */
    save_prefix(w.model, coded, ids, 50, "0.safetensors");
    save_prefix(other, plain, ids, 60, "1.safetensors");
    save_prefix(rounded, plain, ids, 65, "2.safetensors");
    cached(&w, plain, folder, ids, 100, 30, "others are passed over");
    cached(&w, coded, folder, ids, 100, 50, "the other strategy finds its own");
    save_prefix(w.model, coded, ids, 30, "b0.safetensors"); /* as long as what the next finds */
    save_prefix(w.model, coded, ids, 30, "z0.safetensors");
    cached(&w, plain, folder, ids, 100, 30, "one as long in another strategy");
    save_prefix(w.model, plain, ids, 70, "y.safetensors");
    bytes file = {0};
    assert_ok(file_read(&file, scratch_path("y.safetensors"), 1 << 24));
    cached(&w, plain, folder, ids, 100, 70, "the longest of all");
    file.data[file.n - 5] ^= 1;
    scratch_file("y.safetensors", file.data, file.n);
    cached(&w, plain, folder, ids, 100, 30, "the longest is damaged");
    scratch_file("y.safetensors", file.data, file.n / 2);
    scratch_file("x.safetensors", "text", 4);
    scratch_file("w.safetensors", "", 0);
    assert_int_equal(symlink("nowhere", scratch_path("v.safetensors")), 0);
    cached(&w, plain, folder, ids, 100, 30, "the longest is cut");
    bytes_clear(&file);
    /* Texts with a common beginning. */
    strange[0] = ids[0];
    memcpy(strange, ids, 45 * sizeof *ids);
    strange[45] = (ids[45] + 1) % w.vocab;
    save_prefix(w.model, plain, strange, 100, "u.safetensors");
    cached(&w, plain, folder, ids, 100, 45, "a text that parts");
    /* A window that has dropped tokens cannot be truncated; the shorter file has more to reuse. */
    save_prefix(w.model, sink, strange, 100, "t.safetensors");
    cached(&w, sink, folder, ids, 100, 0, "a window that has passed");
    save_prefix(w.model, sink, ids, 40, "s.safetensors");
    cached(&w, sink, folder, ids, 100, 40, "a window that has not passed");
    mn_cache_options wrong;
    mn_cache_options_init(&wrong, sizeof wrong);
    wrong.implementation = "dinamic";
    mn_session *session = NULL;
    assert_fails(MN_E_ARG, "dynamic", mn_session_open_cached(&session, w.model, &wrong, folder, ids, 100));
    assert_null(session);
    mn_model_close(&rounded);
    mn_model_close(&other);
    close_fixture(&w);
}

/* ---- memory ---- */

static void every_failed_allocation_is_clean(void **state) {
    (void)state;
    static const int strategies[] = {0, 1, 2, 7, 10, 15, 17, 18, 21};
    fixture w = open_fixture(tiny);
    char path[256];
    snprintf(path, sizeof path, "%s", scratch_path("memory"));
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        engine_cache cache = strategy_cache(strategies[i], "bf16");
        mn_cache_options options = engine_cache_options(cache);
        mn_session *session = with_history(&w, cache, 60, 2), *loaded = NULL, *twin = NULL;
        assert_ok(mn_session_fork(&twin, session));
        unlink(path);
        int64_t k = 1;
        for (mn_status status = MN_E_NOMEM; status != MN_OK; k++) {
            mem_fail_after(k);
            status = mn_session_save(session, path, i % 2);
            mem_fail_after(0);
            if (status != MN_OK && status != MN_E_NOMEM) fail_msg("save, %lld: %s", (long long)k, mn_last_error());
            assert_int_equal(file_exists(path), status == MN_OK);
        }
        assert_true(k > 10);
        for (int wanted = 0; wanted < 2; wanted++) {
            k = 1;
            for (mn_status status = MN_E_NOMEM; status != MN_OK; k++) {
                mem_fail_after(k);
                status = mn_session_load(&loaded, w.model, path, wanted ? &options : NULL);
                mem_fail_after(0);
                if (status != MN_OK && status != MN_E_NOMEM)
                    fail_msg("load, %lld: %d %s", (long long)k, status, mn_last_error());
            }
            assert_true(k > 10);
            same_state(loaded, session, "loaded at last");
            mn_session_close(&loaded);
        }
        same_state(session, twin, "after failed saves");
        go_on_alike(&w, session, twin, "after failed saves");
        mn_session_close(&session);
        mn_session_close(&twin);
    }
    close_fixture(&w);
}

/* Mapped pages do not count against the budget, and a static cache fits where it did before. */
static void what_was_saved_fits_again(void **state) {
    (void)state;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    mn_model *model = NULL;
    fixture w = open_fixture(tiny);
    mn_model_info info = {.size = sizeof info};
    mn_session *probe = engine_session(w.model, strategy_cache(1, "f32")), *session, *loaded = NULL;
    assert_ok(mn_model_get_info(w.model, &info));
    options.compute_type = "f32";
    options.threads = 1; /* each thread has a buffer, which the limit includes */
    options.memory_limit = info.packed_bytes + kv_bytes(probe->cache) + kv_bytes(probe->cache) / 2;
    mn_session_close(&probe);
    close_fixture(&w);
    assert_ok(mn_model_open(&model, data_path(tiny), &options));
    w.model = model;
    session = with_history(&w, strategy_cache(1, "f32"), 60, 3);
    const char *path = scratch_path("static");
    assert_ok(mn_session_save(session, path, false));
    mn_session_close(&session);
    assert_ok(mn_session_load(&loaded, model, path, NULL));
    assert_ok(kv_check(loaded->cache));
    mn_session_close(&loaded);
    assert_int_equal(kv_pool_used(model->core->pool), 0);
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_prefix_wins), /* before other files are in the folder */
        cmocka_unit_test(f32_sessions_continue),        cmocka_unit_test(bf16_sessions_continue),
        cmocka_unit_test(windowed_models_continue),     cmocka_unit_test(long_angles_continue),
        cmocka_unit_test(empty_sessions_are_saved_too), cmocka_unit_test(truncated_sessions_are_saved_as_they_are),
        cmocka_unit_test(other_strategies_are_refused), cmocka_unit_test(options_of_the_caller_are_kept),
        cmocka_unit_test(other_models_are_refused),     cmocka_unit_test(nearly_the_same_model_is_refused),
        cmocka_unit_test(damage_is_detected),           cmocka_unit_test(hostile_files_are_refused_or_usable),
        cmocka_unit_test(forgeries_are_refused),        cmocka_unit_test(every_failed_allocation_is_clean),
        cmocka_unit_test(what_was_saved_fits_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
