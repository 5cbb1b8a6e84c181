/* Every system call of the library may fail: opening, reading, mapping, writing, syncing, renaming, starting threads.
 * Each failure gives an error or the right result, existing files stay intact, and nothing leaks.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <sys/stat.h>
#include <unistd.h>

#include "session/session.h"
#include "kv/archive.h"
#include "speech/audio.h"
#include "support/hostile/fault_io.h"
#include "support/scratch.h"

enum { N_IDS = 70 };

/* The initial state of a scenario; the model and the files exist before. */
typedef struct fixture {
    mn_model *model;
    mn_session *session; /* of the scenario's strategy, N_IDS tokens; NULL: no session */
    mn_cache_options options;
    int32_t ids[N_IDS];
    char folder[400], saved[450], out[450], key[450], config[450];
} fixture;

typedef struct scenario {
    const char *name;
    engine_cache cache; /* implementation NULL: no session */
    mn_status (*run)(fixture *w, bool *is_right);
} scenario;

static bool holds_same(const mn_session *s, const fixture *w) {
    return mn_session_length(s) == N_IDS && memcmp(mn_session_ids(s), w->ids, sizeof w->ids) == 0 &&
           kv_check(s->cache) == MN_OK;
}

static mn_status save(fixture *w, bool *is_right, bool compress) {
    mn_session *loaded = NULL;
    MN_TRY(mn_session_save(w->session, w->out, compress));
    fault_io_disarm(); /* the assertions below check the result */
    assert_ok(mn_session_load(&loaded, w->model, w->out, &w->options));
    *is_right = holds_same(loaded, w);
    mn_session_close(&loaded);
    return MN_OK;
}

static mn_status save_plain(fixture *w, bool *is_right) {
    return save(w, is_right, false);
}
static mn_status save_zstd(fixture *w, bool *is_right) {
    return save(w, is_right, true);
}

static mn_status load(fixture *w, bool *is_right) {
    mn_session *loaded = NULL;
    MN_TRY(mn_session_load(&loaded, w->model, w->saved, NULL));
    *is_right = holds_same(loaded, w);
    mn_session_close(&loaded);
    return MN_OK;
}

static mn_status load_and_step(fixture *w, bool *is_right) {
    mn_session *loaded = NULL;
    MN_TRY(mn_session_load(&loaded, w->model, w->saved, &w->options));
    mn_status status = mn_session_step(loaded, w->ids, 20, NULL);
    *is_right = kv_check(loaded->cache) == MN_OK && mn_session_length(loaded) == N_IDS + (status == MN_OK ? 20 : 0);
    mn_session_close(&loaded);
    return status;
}

static mn_status open_cached(fixture *w, bool *is_right) {
    mn_session *found = NULL;
    MN_TRY(mn_session_open_cached(&found, w->model, &w->options, w->folder, w->ids, N_IDS));
    /* An unreadable file is a cache miss. */
    *is_right = mn_session_length(found) == 0 || holds_same(found, w);
    mn_session_close(&found);
    return MN_OK;
}

static mn_status export_legacy(fixture *w, bool *is_right) {
    MN_TRY(mn_sessions_export(&w->session, 1, w->out, NULL));
    *is_right = file_exists(w->out);
    return MN_OK;
}

static mn_status import_legacy(fixture *w, bool *is_right) {
    mn_session *made = NULL;
    char path[460];
    snprintf(path, sizeof path, "%s.legacy", w->saved);
    MN_TRY(mn_session_import(&made, w->model, &w->options, path, 0, NULL, 0));
    *is_right = mn_session_length(made) == N_IDS;
    mn_session_close(&made);
    return MN_OK;
}

/* The first session that fills a page opens the offload file; full pages are offloaded when the next step begins. */
static mn_status open_session(fixture *w, bool *is_right) {
    mn_session *fresh = NULL;
    MN_TRY(mn_session_open(&fresh, w->model, &w->options));
    mn_status status = mn_session_step(fresh, w->ids, N_IDS - 1, NULL);
    if (status == MN_OK) status = mn_session_step(fresh, w->ids + N_IDS - 1, 1, NULL);
    *is_right = kv_check(fresh->cache) == MN_OK && (status != MN_OK || holds_same(fresh, w));
    mn_session_close(&fresh);
    return status;
}

static mn_status convert(fixture *w, bool *is_right) {
    mn_cache_options offloaded = w->options;
    mn_session *fork = NULL;
    offloaded.implementation = "offloaded";
    offloaded.config = NULL;
    MN_TRY(mn_session_fork(&fork, w->session));
    mn_status status = mn_session_set_cache(fork, &offloaded);
    *is_right = holds_same(fork, w);
    mn_session_close(&fork);
    return status;
}

static mn_status open_model_at(const char *path, bool *is_right) {
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    mn_model *model = NULL;
    options.threads = 3;
    MN_TRY(mn_model_open(&model, path, &options));
    mn_session *session = NULL;
    const int32_t ids[] = {1, 5, 9};
    mn_status status = mn_session_open(&session, model, NULL);
    if (status == MN_OK) status = mn_session_step(session, ids, 3, NULL);
    *is_right = true;
    mn_session_close(&session);
    mn_model_close(&model);
    return status;
}

static mn_status open_folder(fixture *w, bool *is_right) {
    (void)w;
    return open_model_at(data_path("golden/llama"), is_right);
}

static mn_status open_embedded(fixture *w, bool *is_right) {
    (void)w;
    return open_model_at("embedded", is_right);
}

static mn_status read_config(fixture *w, bool *is_right) {
    json_doc *doc = NULL;
    MN_TRY(json_open(&doc, w->config, JSON_PYTHON, 1 << 20));
    *is_right = json_get(json_root(doc), "top_k") != NULL;
    json_close(&doc);
    return MN_OK;
}

static mn_status read_key(fixture *w, bool *is_right) {
    mac_key key;
    MN_TRY(mac_key_read(&key, w->key));
    *is_right = key.n == 32;
    mac_key_wipe(&key);
    return MN_OK;
}

static mn_status verify(fixture *w, bool *is_right) {
    archive *a = NULL;
    mn_status status = archive_open(&a, w->saved);
    if (status == MN_OK) status = archive_verify(a);
    *is_right = true;
    archive_close(&a);
    return status;
}

static mn_status append_line(fixture *w, bool *is_right) {
    bytes text = {0};
    MN_TRY(file_append(w->out, "line\n", 5));
    fault_io_disarm();
    assert_ok(file_read(&text, w->out, 1 << 20));
    *is_right = text.n >= 5 && memcmp(text.data + text.n - 5, "line\n", 5) == 0;
    bytes_clear(&text);
    return MN_OK;
}

static mn_status transcribe_file(fixture *w, bool *is_right) {
    audio *a = NULL;
    float samples[1000];
    int64_t n = 0;
    (void)w;
    MN_TRY(audio_open(&a, data_path("audio/5s_dont_worry_about_him.wav")));
    mn_status status = audio_read(a, 0, 1000, samples, &n);
    *is_right = status != MN_OK || n > 0;
    audio_close(&a);
    return status;
}

#define CACHE(name, page, text)                                                                                        \
    { .implementation = name, .page_tokens = page, .config = text, .dtype = "f32" }
#define SAVED(name, page, text)                                                                                        \
    {"save " name, CACHE(name, page, text), save_plain}, {"load " name, CACHE(name, page, text), load}, {              \
        "load, step " name, CACHE(name, page, text), load_and_step                                                     \
    }

static const scenario scenarios[] = {
    SAVED("dynamic", 4, NULL),
    SAVED("static", 16, NULL),
    SAVED("offloaded", 4, NULL),
    SAVED("offloaded_static", 16, NULL),
    SAVED("sliding_window", 4, "window_length=21"),
    SAVED("sink", 4, "window_length=22,num_sink_tokens=5"),
    SAVED("quantized", 16, "nbits=4,residual_length=24"),
    SAVED("quantized+offloaded", 16, "nbits=4,residual_length=16"),
    {"open, step static", CACHE("static", 16, NULL), open_session},
    {"open, step offloaded", CACHE("offloaded", 4, NULL), open_session},
    {"open, step offloaded_static", CACHE("offloaded_static", 16, NULL), open_session},
    {"open, step quantized+offloaded", CACHE("quantized+offloaded", 16, "nbits=4,residual_length=16"), open_session},
    {"save, zstd", CACHE("dynamic", 16, NULL), save_zstd},
    {"save, offloaded, zstd", CACHE("offloaded", 16, NULL), save_zstd},
    {"reuse", CACHE("dynamic", 16, NULL), open_cached},
    {"reuse, offloaded", CACHE("offloaded", 16, NULL), open_cached},
    {"export", CACHE("dynamic", 16, NULL), export_legacy},
    {"import", CACHE("dynamic", 16, NULL), import_legacy},
    {"convert", CACHE("dynamic", 16, NULL), convert},
    {"convert a preallocated cache", CACHE("static", 16, NULL), convert},
    {"verify", CACHE("dynamic", 16, NULL), verify},
    {"a model folder", {0}, open_folder},
    {"the embedded model", {0}, open_embedded},
    {"a configuration", {0}, read_config},
    {"a key", {0}, read_key},
    {"a line", {0}, append_line},
    {"a recording", {0}, transcribe_file},
};

enum { N_SCENARIOS = sizeof scenarios / sizeof *scenarios };

static int count_descriptors(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; dir && (entry = readdir(dir));) n++;
    if (dir) closedir(dir);
    return n;
}

static void check_result(const scenario *s, fault_kind kind, const char *call, mn_status status, bool is_right) {
    const char *what = fault_names[kind];
    if (status == MN_OK && !is_right) fail_msg("%s: after %s of %s the result is wrong", s->name, what, call);
    if (status == MN_OK) return;
    if (status != MN_E_IO && status != MN_E_NOMEM && status != MN_E_REFUSED && status != MN_E_NOT_FOUND &&
        status != MN_E_FORMAT)
        fail_msg("%s: %s of %s gives status %d: %s", s->name, what, call, status, mn_last_error());
    if (!*mn_last_error()) fail_msg("%s: %s of %s has no message", s->name, what, call);
    bool moves_bytes = strcmp(call, "read") == 0 || strcmp(call, "pread") == 0 || strcmp(call, "write") == 0 ||
                       strcmp(call, "pwrite") == 0;
    bool waits = moves_bytes || strcmp(call, "open") == 0 || strcmp(call, "fsync") == 0;
    if ((kind == FAULT_EINTR && waits) || (kind == FAULT_SHORT && moves_bytes))
        fail_msg("%s: %s of %s is no failure: %s", s->name, what, call, mn_last_error());
}

/* The file must be the old one or the new one. */
static void check_old(const scenario *s, const fixture *w, mn_status status, const char *call) {
    bytes text = {0};
    char part[500];
    snprintf(part, sizeof part, "%s%s", w->out, FILE_PART_SUFFIX);
    if (file_exists(part)) fail_msg("%s, %s: a temporary file is left", s->name, call);
    if (status == MN_OK || strstr(mn_last_error(), "its folder could not be synced") || s->run == append_line) return;
    assert_ok(file_read(&text, w->out, 1 << 24));
    if (strcmp(bytes_text(&text), "old") != 0) fail_msg("%s, %s: the old file is missing", s->name, call);
    bytes_clear(&text);
}

static size_t try_scenario(const scenario *s, fixture *w) {
    size_t n_failed = 0;
    for (fault_kind kind = 0; kind < N_FAULTS; kind = (fault_kind)(kind + 1)) {
        for (int k = 1 + (int)kind % test_stride(2);; k += test_stride(2)) {
            bool is_right = false;
            assert_ok(file_write_atomic(w->out, "old", 3));
            int64_t live = mem_count().live;
            size_t used = kv_pool_used(w->model->core->pool);
            int descriptors = count_descriptors();
            fault_io_arm(k, kind);
            mn_status status = s->run(w, &is_right);
            const char *call = fault_io_failed();
            fault_io_disarm();
            if (!call && status != MN_OK) fail_msg("%s: %s", s->name, mn_last_error());
            check_result(s, kind, call ? call : "nothing", status, is_right);
            check_old(s, w, status, call ? call : "nothing");
            if (kv_pool_used(w->model->core->pool) != used) fail_msg("%s: %s loses pages", s->name, call);
            /* The first use of the pool and of the offload file keeps memory for reuse. */
            if (k > 1 && call && s->cache.implementation == NULL && mem_count().live != live)
                fail_msg("%s: %s of %s loses memory", s->name, fault_names[kind], call);
            if (k > 1 && count_descriptors() > descriptors + 2) fail_msg("%s: %s loses descriptors", s->name, call);
            if (w->session) assert_true(holds_same(w->session, w));
            if (!call) break;
            n_failed++;
        }
    }
    return n_failed;
}

static void open_fixture(fixture *w, const scenario *s, int i) {
    uint64_t seed = 9;
    char name[32];
    snprintf(name, sizeof name, "calls-%d", i);
    snprintf(w->folder, sizeof w->folder, "%s", scratch_path(name));
    snprintf(w->saved, sizeof w->saved, "%s/saved.safetensors", w->folder);
    snprintf(w->out, sizeof w->out, "%s/out", w->folder);
    snprintf(w->key, sizeof w->key, "%s/key", w->folder);
    snprintf(w->config, sizeof w->config, "%s/config.json", w->folder);
    assert_ok(file_make_folders(w->folder, FILE_PRIVATE));
    assert_ok(file_write_atomic(w->key, "thirty-two bytes that are a key.", 32));
    assert_ok(file_write_atomic(w->config, "{\"top_k\": 3}", 12));
    w->model = engine_model("golden/llama-untied-bias", "f32", "auto", 1);
    engine_ids(&seed, w->ids, N_IDS, engine_vocab(w->model));
    w->options = engine_cache_options(s->cache);
    if (!s->cache.implementation || s->run == open_session) return;
    w->session = engine_session(w->model, s->cache);
    engine_feed(w->session, w->ids, N_IDS, 0, NULL, NULL);
    assert_ok(mn_session_save(w->session, w->saved, i % 2));
    if (s->run == import_legacy) {
        char path[460];
        snprintf(path, sizeof path, "%s.legacy", w->saved);
        assert_ok(mn_sessions_export(&w->session, 1, path, NULL));
    }
}

static void every_system_call_may_fail(void **state) {
    (void)state;
    size_t n_failed = 0;
    int64_t live = mem_count().live;
    assert_true(N_SCENARIOS >= 40);
    for (int i = 0; i < N_SCENARIOS; i++) {
        fixture w = {0};
        open_fixture(&w, &scenarios[i], i);
        size_t n = try_scenario(&scenarios[i], &w);
        if (n == 0) fail_msg("%s: no call failed", scenarios[i].name);
        n_failed += n;
        mn_session_close(&w.session);
        assert_int_equal(kv_pool_used(w.model->core->pool), 0);
        mn_model_close(&w.model);
        if (mem_count().live != live)
            fail_msg("%s: %lld blocks are lost", scenarios[i].name, (long long)(mem_count().live - live));
    }
    print_message("%zu calls failed in %d scenarios\n", n_failed, N_SCENARIOS);
    assert_true(n_failed > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_system_call_may_fail)};
    if (file_is_directory("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1); /* many fsync calls */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
