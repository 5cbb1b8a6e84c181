/* Calibration of quantized keys: computed from a text, used by sessions, better than none, and never exchanged
 * silently.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/session.h"
#include "kv/archive.h"
#include "support/scratch.h"
#include "support/strategies.h"
#include "tensor/safetensors.h"

static const char family[] = "golden/llama"; /* heads of 32 values */

enum { N_TEXT = 900, N_IDS = 300, LEAST = 384 };

typedef struct fixture {
    mn_model *model;
    size_t vocab;
    int32_t text[N_TEXT], ids[N_IDS]; /* what is calibrated with, and what is measured on */
    uint64_t seed;
    char path[256]; /* of the calibration, when there is one */
} fixture;

static fixture open_fixture(const char *path) {
    fixture w = {.model = engine_model(path, "f32", "auto", engine_threads()), .seed = 21};
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&w.seed, w.text, N_TEXT, (int32_t)w.vocab);
    engine_ids(&w.seed, w.ids, N_IDS, (int32_t)w.vocab);
    snprintf(w.path, sizeof w.path, "%s", scratch_path("calibration"));
    return w;
}

static void close_fixture(fixture *w) {
    unlink(w->path);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
}

static void reopen(fixture *w, const char *path) {
    mn_model_close(&w->model);
    w->model = engine_model(path, "f32", "auto", engine_threads());
    if (file_exists(w->path)) assert_ok(mn_model_set_calibration(w->model, w->path));
}

static engine_cache coded(const char *config) {
    return (engine_cache){.implementation = "quantized", .dtype = "f32", .config = config};
}

static bool has_calibration(const mn_session *session) {
    return kv_attention_view(session->cache, 0).calibration != NULL;
}

/* ---- making them ---- */

static void short_texts_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture(family);
    assert_fails(MN_E_ARG, "at least 384", mn_cache_calibrate(w.model, w.text, LEAST - 1, w.path));
    assert_fails(MN_E_ARG, "0 tokens", mn_cache_calibrate(w.model, w.text, 0, w.path));
    w.text[200] = (int32_t)w.vocab;
    assert_fails(MN_E_ARG, "token 200", mn_cache_calibrate(w.model, w.text, LEAST, w.path));
    assert_false(file_exists(w.path));
    w.text[200] = 0;
    engine_calibrate(w.model, w.text, LEAST, w.path);
    assert_true(file_exists(w.path));
    close_fixture(&w);
    mn_model *narrow = engine_model("embedded", "f32", "auto", 1); /* heads of 8 values */
    assert_fails(MN_E_UNSUPPORTED, "8 values", mn_cache_calibrate(narrow, w.text, N_TEXT, w.path));
    mn_model_close(&narrow);
}

/* The same text gives the same file; only its first 2,048 tokens count; nothing else is written. */
static void files_are_whole_and_repeatable(void **state) {
    (void)state;
    enum { LONG = 2300 };
    fixture w = open_fixture(family);
    bytes first = {0}, second = {0};
    int32_t *ids = malloc(LONG * sizeof *ids);
    engine_ids(&w.seed, ids, LONG, (int32_t)w.vocab);
    const char *path = scratch_path("one");
    assert_ok(mn_cache_calibrate(w.model, ids, LONG, path));
    assert_ok(file_read(&first, path, 1 << 24));
    assert_false(file_exists(w.path)); /* another path was given */
    ids[2048] = (ids[2048] + 1) % (int32_t)w.vocab;
    assert_ok(mn_cache_calibrate(w.model, ids, 2048, path));
    assert_ok(file_read(&second, path, 1 << 24));
    assert_int_equal(first.n, second.n);
    assert_memory_equal(first.data, second.data, first.n);
    ids[2000] = (ids[2000] + 1) % (int32_t)w.vocab;
    assert_ok(mn_cache_calibrate(w.model, ids, 2048, path));
    second.n = 0;
    assert_ok(file_read(&second, path, 1 << 24));
    assert_memory_not_equal(first.data, second.data, first.n);
    assert_false(file_exists(scratch_path("one" FILE_PART_SUFFIX)));
    assert_fails(MN_E_IO, "/absent/", mn_cache_calibrate(w.model, ids, LEAST, "/absent/folder/file"));
    assert_fails(MN_E_ARG, "no file", mn_cache_calibrate(w.model, ids, LEAST, NULL));
    /* The file is not used before mn_model_set_calibration, nor is one in the folder of the command. */
    mn_session *session = engine_session(w.model, coded(NULL));
    assert_false(has_calibration(session));
    mn_session_close(&session);
    assert_fails(MN_E_NOT_FOUND, "/absent", mn_model_set_calibration(w.model, "/absent"));
    assert_ok(mn_model_set_calibration(w.model, path));
    session = engine_session(w.model, coded(NULL));
    assert_true(has_calibration(session));
    mn_session_close(&session);
    assert_ok(mn_model_set_calibration(w.model, NULL));
    session = engine_session(w.model, coded(NULL));
    assert_false(has_calibration(session));
    mn_session_close(&session);
    free(ids);
    bytes_clear(&first);
    bytes_clear(&second);
    unlink(path);
    close_fixture(&w);
}

typedef struct busy {
    mn_session *session;
    const fixture *w;
    atomic_bool ends;
    atomic_int n_steps;
} busy;

static void *keep_busy(void *arg) {
    busy *b = arg;
    while (!atomic_load(&b->ends)) {
        if (mn_session_step(b->session, b->w->ids, N_IDS, NULL) != MN_OK) break;
        if (mn_session_truncate(b->session, 0) != MN_OK) break;
        atomic_fetch_add(&b->n_steps, 1);
    }
    return NULL;
}

/* What another thread computes with the model at the same time is not collected. */
static void other_sessions_are_not_collected(void **state) {
    (void)state;
    fixture w = open_fixture(family);
    bytes alone = {0}, beside = {0};
    const char *path = scratch_path("beside");
    assert_ok(mn_cache_calibrate(w.model, w.text, LEAST, path));
    assert_ok(file_read(&alone, path, 1 << 24));
    busy b = {.session = engine_session(w.model, (engine_cache){0}), .w = &w};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &b), 0);
    while (atomic_load(&b.n_steps) == 0) sched_yield();
    int before = atomic_load(&b.n_steps);
    for (int tries = 0; tries < 50 && atomic_load(&b.n_steps) < before + 2; tries++)
        assert_ok(mn_cache_calibrate(w.model, w.text, LEAST, path));
    atomic_store(&b.ends, true);
    pthread_join(thread, NULL);
    assert_ok(file_read(&beside, path, 1 << 24));
    assert_int_equal(alone.n, beside.n);
    assert_memory_equal(alone.data, beside.data, alone.n);
    mn_session_close(&b.session);
    bytes_clear(&alone);
    bytes_clear(&beside);
    unlink(path);
    close_fixture(&w);
}

/* A failure within a step may be survived: the step is tried again with fewer tokens, which allocates again. */
static void every_failed_allocation_is_clean(void **state) {
    (void)state;
    fixture w = open_fixture(family);
    int64_t k = 1;
    for (bool failed = true; failed; k++) {
        int64_t used = (int64_t)kv_pool_used(w.model->core->pool), before = mem_count().allocations;
        mem_fail_after(k);
        mn_status status = mn_cache_calibrate(w.model, w.text, LEAST, scratch_path("memory"));
        mem_fail_after(0);
        failed = status != MN_OK || mem_count().allocations - before >= k;
        if (status != MN_OK && status != MN_E_NOMEM) fail_msg("%lld: %s", (long long)k, mn_last_error());
        assert_int_equal(file_exists(scratch_path("memory")), status == MN_OK);
        unlink(scratch_path("memory"));
        assert_int_equal(kv_pool_used(w.model->core->pool), used);
        assert_true(k < 1000);
    }
    assert_true(k > 20);
    close_fixture(&w);
}

/* ---- using them ---- */

/* Mean-square error of keys against an exact session's, in layers whose keys depend on nothing coded: the first. Only
 * tokens that are quantized. */
static double key_error(fixture *w, engine_cache cache, const int32_t *ids, size_t n) {
    const kernel_table *kernels = &w->model->core->compute.kernels;
    engine_cache plain = {.implementation = "dynamic", .dtype = "f32"};
    mn_session *sessions[2] = {engine_session(w->model, cache), engine_session(w->model, plain)};
    int end = (int)n / PAGE_TOKENS * PAGE_TOKENS;
    const kv_spec *spec = kv_entry_spec(sessions[0]->cache, 0);
    size_t floats = (size_t)spec->n_heads * (size_t)end * (size_t)spec->k_dim;
    float *rows[2];
    double error = 0, size = 0;
    for (int i = 0; i < 2; i++) {
        rows[i] = malloc(floats * sizeof(float));
        engine_feed(sessions[i], ids, n, 0, NULL, NULL);
        assert_ok(kv_read(sessions[i]->cache, kernels, 0, true, 0, end, rows[i]));
    }
    assert_true(strategy_quantized(sessions[0]) > 0);
    for (size_t i = 0; i < floats; i++) {
        error += pow((double)rows[0][i] - (double)rows[1][i], 2);
        size += pow((double)rows[1][i], 2);
    }
    for (int i = 0; i < 2; i++) {
        free(rows[i]);
        mn_session_close(&sessions[i]);
    }
    return sqrt(error / size);
}

static const char *const equal_bits[] = {"nbits=2,residual_length=0,first_exact=0",
                                         "nbits=3,residual_length=0,first_exact=0",
                                         "nbits=4,residual_length=0,first_exact=0"};

static void check_better(fixture *w, const int32_t *text, size_t n_text, const int32_t *ids, size_t n, double most) {
    double without[3];
    for (int i = 0; i < 3; i++) {
        mn_session *session = engine_session(w->model, coded(equal_bits[i]));
        assert_false(has_calibration(session));
        mn_session_close(&session);
        without[i] = key_error(w, coded(equal_bits[i]), ids, n);
    }
    engine_calibrate(w->model, text, n_text, w->path);
    for (int i = 0; i < 3; i++) {
        mn_session *session = engine_session(w->model, coded(equal_bits[i]));
        assert_true(has_calibration(session));
        mn_session_close(&session);
        double with = key_error(w, coded(equal_bits[i]), ids, n);
        if (!(with < most * without[i]))
            fail_msg("%s: key error %g with calibration, %g without", equal_bits[i], with, without[i]);
    }
}

/* A copy of the model whose keys vary mostly in few directions, as those of trained models do: the keys of random
 * weights vary equally in all directions, so there is nothing to calibrate. */
static void write_leaning_model(void) {
    bytes weights = {0}, config = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", data_path(family));
    assert_ok(file_read(&weights, path, 1 << 24));
    snprintf(path, sizeof path, "%s/config.json", data_path(family));
    assert_ok(file_read(&config, path, 1 << 20));
    tensor_set *set = NULL;
    assert_ok(safetensors_open_memory(&set, weights.data, weights.n, "weights"));
    int n_changed = 0;
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const tensor *t = tensor_set_at(set, i);
        if (!strstr(t->name, "k_proj.weight")) continue;
        assert_int_equal(t->type, DTYPE_F32);
        float *values = (float *)(uintptr_t)t->data;
        for (int64_t row = 0; row < t->shape[0]; row++) {
            float scale = powf(0.7f, (float)(row % 16)); /* the two rows of a rotated pair alike */
            for (int64_t k = 0; k < t->shape[1]; k++) values[row * t->shape[1] + k] *= scale;
        }
        n_changed++;
    }
    assert_true(n_changed > 0);
    scratch_file("model.safetensors", weights.data, weights.n);
    scratch_file("config.json", config.data, config.n);
    tensor_set_close(&set);
    bytes_clear(&weights);
    bytes_clear(&config);
}

static void calibration_is_used_and_is_better(void **state) {
    (void)state;
    char folder[256];
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    write_leaning_model();
    fixture w = open_fixture(folder);
    check_better(&w, w.text, N_TEXT, w.ids, N_IDS, 0.75);
    /* Another instance of the model uses the same file. */
    reopen(&w, folder);
    mn_session *session = engine_session(w.model, coded(NULL));
    assert_true(has_calibration(session));
    mn_session_close(&session);
    close_fixture(&w);
    unlink(scratch_path("model.safetensors"));
    unlink(scratch_path("config.json"));
}

static void calibration_of_a_trained_model_is_better(void **state) {
    (void)state;
    const size_t n_text = 512, n_measured = test_is_long() ? 256 : 128;
    const char *path = smollm2_path(), *book = shared_path("data/tales/aesops-fables.txt");
    bool is_fast = false;
#ifdef __OPTIMIZE__
    is_fast = true;
#endif
    test_of_numbers();
    if (!path || !book || !is_fast) skip();
    char model[512];
    snprintf(model, sizeof model, "%s", path);
    fixture w = {.model = engine_model(model, "auto", "auto", engine_threads())};
    snprintf(w.path, sizeof w.path, "%s", scratch_path("calibration"));
    bytes text = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    assert_ok(file_read(&text, book, 1 << 24));
    assert_ok(mn_tokenize(mn_model_tokenizer(w.model), text.data, 8000, 0, &ids, &n));
    assert_true(n >= n_text + n_measured);
    check_better(&w, ids, n_text, ids + n - n_measured, n_measured, 1);
    mn_free(ids);
    bytes_clear(&text);
    close_fixture(&w);
}

/* Sessions keep the calibration that they were opened with, and a saved cache names it. */
static void sessions_keep_their_calibration(void **state) {
    (void)state;
    fixture w = open_fixture(family);
    char path[3][300];
    mn_session *sessions[3], *twins[3], *loaded = NULL;
    for (int i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "%s", scratch_path(i == 0 ? "bare" : i == 1 ? "old" : "new"));
        if (i > 0) engine_calibrate(w.model, w.text + 100 * i, 600, w.path);
        sessions[i] = engine_session(w.model, coded("nbits=3,residual_length=0"));
        assert_int_equal(has_calibration(sessions[i]), i > 0);
        engine_feed(sessions[i], w.ids, 200, 0, NULL, NULL);
    }
    assert_ptr_not_equal(sessions[1]->calibration, sessions[2]->calibration);
    for (int i = 0; i < 3; i++) {
        assert_ok(mn_session_save(sessions[i], path[i], false));
        assert_ok(mn_session_fork(&twins[i], sessions[i]));
        assert_int_equal(has_calibration(twins[i]), i > 0);
    }
    /* Keys quantized without calibration, or with the present one, can be loaded, others cannot. */
    mn_cache_options options = engine_cache_options(coded("nbits=3,residual_length=0"));
    for (int i = 0; i < 3; i++) {
        for (int wanted = 0; wanted < 2; wanted++) {
            mn_cache_options *expected = wanted ? &options : NULL;
            if (i == 1) {
                assert_fails(MN_E_REFUSED, "another calibration", mn_session_load(&loaded, w.model, path[i], expected));
                continue;
            }
            assert_ok(mn_session_load(&loaded, w.model, path[i], expected));
            assert_int_equal(has_calibration(loaded), i > 0);
            engine_ends_with(loaded, mn_session_logits(twins[i]), "loaded");
            mn_session *twin = NULL;
            assert_ok(mn_session_fork(&twin, twins[i]));
            engine_feed(loaded, w.ids + 200, 90, 7, NULL, NULL);
            engine_feed(twin, w.ids + 200, 90, 7, NULL, NULL);
            engine_ends_with(loaded, mn_session_logits(twin), "some way behind the load");
            mn_session_close(&twin);
            mn_session_close(&loaded);
        }
    }
    /* Without a calibration. */
    unlink(w.path);
    mn_model *other = engine_model(family, "f32", "auto", 1);
    assert_fails(MN_E_REFUSED, "than the model has now (none)", mn_session_load(&loaded, other, path[2], NULL));
    assert_ok(mn_session_load(&loaded, other, path[0], NULL));
    mn_session_close(&loaded);
    mn_model_close(&other);
    /* Forms that use no calibration do not depend on it. */
    mn_session *quanto = engine_session(w.model, coded("backend=quanto,nbits=4,residual_length=16"));
    engine_feed(quanto, w.ids, 200, 0, NULL, NULL);
    assert_ok(mn_session_save(quanto, path[0], false));
    other = engine_model(family, "f32", "auto", 1);
    assert_ok(mn_session_load(&loaded, other, path[0], NULL));
    engine_ends_with(loaded, mn_session_logits(quanto), "quanto");
    mn_session_close(&loaded);
    mn_model_close(&other);
    mn_session_close(&quanto);
    for (int i = 0; i < 3; i++) {
        mn_session_close(&sessions[i]);
        mn_session_close(&twins[i]);
        unlink(path[i]);
    }
    close_fixture(&w);
}

/* A cache that is converted to a quantized one uses the calibration, too. */
static void converted_sessions_use_it(void **state) {
    (void)state;
    fixture w = open_fixture(family);
    mn_cache_options options = engine_cache_options(coded("nbits=3,residual_length=0"));
    mn_session *session = engine_session(w.model, (engine_cache){.dtype = "f32"});
    mn_session *before = engine_session(w.model, coded("nbits=3,residual_length=0"));
    engine_feed(session, w.ids, 200, 0, NULL, NULL);
    engine_feed(before, w.ids, 200, 0, NULL, NULL);
    engine_calibrate(w.model, w.text, 600, w.path);
    assert_ok(mn_session_set_cache(session, &options));
    assert_true(has_calibration(session));
    engine_feed(session, w.ids + 200, 50, 0, NULL, NULL);
    /* A cache that was quantized without calibration stays so when it is offloaded. */
    options.implementation = "quantized+offloaded";
    assert_ok(mn_session_set_cache(before, &options));
    assert_false(has_calibration(before));
    engine_feed(before, w.ids + 200, 50, 0, NULL, NULL);
    assert_ok(kv_check(before->cache));
    mn_session_close(&before);
    mn_session_close(&session);
    close_fixture(&w);
}

/* ---- damaged files ---- */

static void check_refused(fixture *w, const char *path, mn_status status, const char *message) {
    mn_cache_options options = engine_cache_options(coded(NULL));
    mn_session *session = NULL, *plain = engine_session(w->model, (engine_cache){.dtype = "f32"});
    int64_t live = mem_count().live;
    assert_fails(status, message, mn_session_open(&session, w->model, &options));
    if (!strstr(mn_last_error(), path)) fail_msg("'%s' does not name %s", mn_last_error(), path);
    assert_null(session);
    assert_int_equal(mem_count().live, live);
    /* Other caches are not affected; the message names the way to quantize without calibration. */
    engine_feed(plain, w->ids, 20, 0, NULL, NULL);
    assert_fails(status, message, mn_session_set_cache(plain, &options));
    engine_feed(plain, w->ids, 20, 0, NULL, NULL);
    mn_session_close(&plain);
}

static void damaged_files_are_named(void **state) {
    (void)state;
    fixture w = open_fixture(family);
    bytes file = {0};
    char path[512];
    engine_calibrate(w.model, w.text, LEAST, w.path);
    snprintf(path, sizeof path, "%s", w.path);
    assert_ok(file_read(&file, path, 1 << 24));
    reopen(&w, family);
    assert_ok(file_write_atomic(path, file.data, file.n / 2));
    check_refused(&w, path, MN_E_REFUSED, "calibrate");
    assert_ok(file_write_atomic(path, "text", 4));
    check_refused(&w, path, MN_E_REFUSED, "calibrate");
    assert_ok(file_write_atomic(path, "", 0));
    check_refused(&w, path, MN_E_REFUSED, "calibrate");
    /* A calibration of another model. */
    mn_model *other = engine_model("golden/qwen3", "f32", "auto", 1);
    assert_ok(mn_cache_calibrate(other, w.text, LEAST, path));
    mn_model_close(&other);
    check_refused(&w, path, MN_E_REFUSED, "fingerprint");
    /* Values that are not finite or contradict each other: every 97th byte of the data in turn. */
    uint64_t head;
    int n_seen = 0, n = 0;
    memcpy(&head, file.data, sizeof head);
    mn_cache_options options = engine_cache_options(coded(NULL));
    for (size_t at = 8 + (size_t)head; at < file.n; at += 97, n++) {
        mn_session *session = NULL;
        file.data[at] ^= 0x7F;
        assert_ok(file_write_atomic(path, file.data, file.n));
        mn_status status = mn_session_open(&session, w.model, &options);
        n_seen += status == MN_E_REFUSED;
        if (status != MN_OK) assert_null(session);
        mn_session_close(&session);
        if (status == MN_OK) reopen(&w, family);
        file.data[at] ^= 0x7F;
    }
    assert_int_equal(n_seen, n);
    /* A new file, or none, makes sessions possible again. */
    engine_calibrate(w.model, w.text, LEAST, w.path);
    mn_session *session = engine_session(w.model, coded(NULL));
    assert_true(has_calibration(session));
    mn_session_close(&session);
    unlink(path);
    reopen(&w, family);
    session = engine_session(w.model, coded(NULL));
    assert_false(has_calibration(session));
    mn_session_close(&session);
    bytes_clear(&file);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_texts_are_refused),           cmocka_unit_test(files_are_whole_and_repeatable),
        cmocka_unit_test(other_sessions_are_not_collected),  cmocka_unit_test(every_failed_allocation_is_clean),
        cmocka_unit_test(calibration_is_used_and_is_better), cmocka_unit_test(calibration_of_a_trained_model_is_better),
        cmocka_unit_test(sessions_keep_their_calibration),   cmocka_unit_test(converted_sessions_use_it),
        cmocka_unit_test(damaged_files_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
