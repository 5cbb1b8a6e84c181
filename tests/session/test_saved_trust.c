/* How far a saved cache is trusted: its sizes are limited by the caller's options, files of other users are ignored,
 * and with a key only files that were saved with it are used.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <sys/stat.h>
#include <unistd.h>

#include "session/session.h"
#include "kv/archive.h"
#include "support/hostile/hostile.h"
#include "support/scratch.h"

static const char tiny[] = "golden/llama-untied-bias"; /* context 512 */

enum { N_IDS = 40 };

typedef struct fixture {
    mn_model *model;
    int32_t ids[N_IDS];
    char folder[400], path[500], key[500], other_key[500];
    int64_t live;
} fixture;

static void write_key(const char *path, int byte) {
    char key[32];
    memset(key, byte, sizeof key);
    assert_ok(file_write_atomic(path, key, sizeof key));
}

static int open_fixture(void **state) {
    static int n;
    static fixture w;
    char name[32];
    uint64_t seed = 3;
    w.live = mem_count().live;
    w.model = engine_model(tiny, "f32", "auto", 1);
    engine_ids(&seed, w.ids, N_IDS, engine_vocab(w.model));
    snprintf(name, sizeof name, "trust-%d", n++);
    snprintf(w.folder, sizeof w.folder, "%s", scratch_path(name));
    snprintf(w.path, sizeof w.path, "%s/saved.safetensors", w.folder);
    snprintf(w.key, sizeof w.key, "%s/key", w.folder);
    snprintf(w.other_key, sizeof w.other_key, "%s/other-key", w.folder);
    assert_ok(file_make_folders(w.folder, FILE_PRIVATE));
    write_key(w.key, 'k');
    write_key(w.other_key, 'o');
    *state = &w;
    return 0;
}

static int close_fixture(void **state) {
    fixture *w = *state;
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
    assert_int_equal(mem_count().live, w->live);
    return 0;
}

static void save_as(const fixture *w, const char *path, mn_cache_options options) {
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, w->model, &options));
    assert_ok(mn_session_step(session, w->ids, N_IDS, NULL));
    assert_ok(mn_session_save(session, path, false));
    mn_session_close(&session);
}

/* The same file with another strategy; its checksums are right. */
static void say_strategy(const char *path, const char *strategy) {
    archive *a = NULL;
    archive_entry entries[64];
    archive_member members[32];
    bytes file = {0};
    assert_ok(file_read(&file, path, 1 << 24));
    assert_ok(archive_open_memory(&a, file.data, file.n, path));
    for (size_t i = 0; i < archive_entries(a); i++) {
        const archive_view *view = archive_entry_at(a, i);
        entries[i] = (archive_entry){.name = view->name,
                                     .type = view->type,
                                     .n_dims = view->n_dims,
                                     .data = view->stored,
                                     .n_bytes = view->n_bytes};
        memcpy(entries[i].shape, view->shape, sizeof view->shape);
    }
    for (size_t i = 0; i < archive_members(a); i++) {
        members[i] = archive_member_at(a, i);
        if (strcmp(members[i].key, ARCHIVE_STRATEGY) == 0) members[i].value = strategy;
    }
    assert_ok(archive_write(path, entries, archive_entries(a), members, archive_members(a)));
    archive_close(&a);
    bytes_clear(&file);
}

/* ---- sizes and paths ---- */

/* What is allocated at once is limited by the model's context, or by the caller's options. */
static void sizes_are_limited(void **state) {
    const fixture *w = *state;
    static const struct {
        const char *strategy;
        const char *refusal; /* NULL: none */
    } cases[] = {
        {"{\"implementation\":\"static\",\"dtype\":\"f32\",\"max_cache_len\":3000000,\"page_tokens\":128,\"calibration\":\"\"}",
         "3000000 tokens"},
        {"{\"implementation\":\"offloaded_static\",\"dtype\":\"f32\",\"max_cache_len\":3000000,\"page_tokens\":128,\"calibration\":\"\"}",
         "3000000 tokens"},
        {"{\"implementation\":\"static\",\"dtype\":\"f32\",\"max_cache_len\":513,\"page_tokens\":128,\"calibration\":\"\"}",
         "up to 512, the model's context"},
        {"{\"implementation\":\"static\",\"config\":\"max_cache_len=3000000\",\"dtype\":\"f32\",\"max_cache_len\":0,\"page_tokens\":128,\"calibration\":\"\"}",
         "3000000 tokens"},
        {"{\"implementation\":\"static\",\"config\":\"{\\\"max_cache_len\\\": 1099511627776}\",\"dtype\":\"f32\",\"max_cache_len\":0,\"page_tokens\":128,\"calibration\":\"\"}",
         "1099511627776 tokens"},
        {"{\"implementation\":\"static\",\"dtype\":\"f32\",\"max_cache_len\":512,\"page_tokens\":128,\"calibration\":\"\"}",
         NULL},
        {"{\"implementation\":\"dynamic\",\"dtype\":\"f32\",\"max_cache_len\":3000000,\"page_tokens\":128,\"calibration\":\"\"}",
         NULL},
    };
    mn_cache_options plain;
    mn_cache_options_init(&plain, sizeof plain);
    mn_cache_options bounded = plain;
    plain.dtype = "f32";
    bounded.implementation = NULL;
    bounded.max_cache_len = 100;
    save_as(w, w->path, plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_session *session = NULL;
        int64_t before = mem_count().allocations;
        say_strategy(w->path, cases[i].strategy);
        if (cases[i].refusal) {
            assert_fails(MN_E_REFUSED, cases[i].refusal, mn_session_load(&session, w->model, w->path, NULL));
            assert_non_null(strstr(mn_last_error(), "max_cache_len where that is set"));
            assert_true(kv_pool_used(w->model->core->pool) == 0 && mem_count().allocations - before < 2000);
        } else {
            assert_ok(mn_session_load(&session, w->model, w->path, NULL));
            mn_session_close(&session);
        }
        assert_ok(mn_session_load(&session, w->model, w->path, &bounded));
        assert_int_equal(session->plan.options.limit, 100);
        mn_session_close(&session);
    }
}

/* The folder of offloaded pages is set by the session that loads; no file contains it. */
static void paths_are_ignored(void **state) {
    const fixture *w = *state;
    mn_cache_options offloaded;
    mn_cache_options_init(&offloaded, sizeof offloaded);
    mn_session *session = NULL;
    bytes config = {0}, file = {0};
    bytes_printf(&config, "path=%s,home=file", w->folder);
    offloaded.implementation = "offloaded";
    offloaded.dtype = "f32";
    offloaded.config = bytes_text(&config);
    save_as(w, w->path, offloaded);
    assert_ok(file_read(&file, w->path, 1 << 24));
    assert_null(memmem(file.data, file.n, w->folder, strlen(w->folder)));
    assert_non_null(memmem(file.data, file.n, "home", 4)); /* the other keys are saved */
    bytes_clear(&file);
    bytes_clear(&config);
    static const char *const configs[] = {"path=/proc/no/such/folder", "{\\\"path\\\":\\\"/proc/no/such/folder\\\"}",
                                          "home=file,path=/proc/no/such/folder"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        char strategy[400];
        snprintf(strategy, sizeof strategy,
                 "{\"implementation\":\"offloaded\",\"config\":\"%s\",\"dtype\":\"f32\",\"max_cache_len\":0,"
                 "\"page_tokens\":128,\"calibration\":\"\"}",
                 configs[i]);
        say_strategy(w->path, strategy);
        assert_ok(mn_session_load(&session, w->model, w->path, NULL));
        assert_string_equal(session->plan.path, "");
        assert_ok(mn_session_step(session, w->ids, N_IDS, NULL));
        mn_session_close(&session);
    }
}

/* ---- reuse ---- */

static size_t reused(const fixture *w, const char *folder, const char *key) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    mn_session *session = NULL;
    size_t n = SIZE_MAX;
    options.dtype = "f32";
    options.key_file = key;
    assert_ok(mn_session_open_cached(&session, w->model, &options, folder, w->ids, N_IDS));
    assert_ok(mn_session_sync(session, w->ids, N_IDS, &n));
    mn_session_close(&session);
    return n;
}

static void files_of_others_are_ignored(void **state) {
    const fixture *w = *state;
    static const mode_t open_modes[] = {0620, 0602, 0666, 0622}, fine_modes[] = {0600, 0644, 0400, 0755};
    mn_cache_options plain;
    mn_cache_options_init(&plain, sizeof plain);
    char link[700], real[600], folder_link[600];
    plain.dtype = "f32";
    save_as(w, w->path, plain);
    assert_int_equal(reused(w, w->folder, NULL), N_IDS);
    for (size_t i = 0; i < 4; i++) {
        chmod(w->path, open_modes[i]);
        if (reused(w, w->folder, NULL) != 0) fail_msg("a file of mode %o was taken", (unsigned)open_modes[i]);
        chmod(w->path, fine_modes[i]);
        assert_int_equal(reused(w, w->folder, NULL), N_IDS);
    }
    chmod(w->path, 0600);
    for (size_t i = 0; i < 4; i++) {
        chmod(w->folder, open_modes[i] | 0111);
        if (reused(w, w->folder, NULL) != 0) fail_msg("a folder of mode %o was used", (unsigned)open_modes[i] | 0111);
    }
    chmod(w->folder, 01777);
    assert_int_equal(reused(w, w->folder, NULL), 0);
    chmod(w->folder, 0755);
    assert_int_equal(reused(w, w->folder, NULL), N_IDS);
    if (scratch_give_away(w->path)) {
        assert_int_equal(reused(w, w->folder, NULL), 0);
        assert_int_equal(chown(w->path, 0, 0), 0);
        assert_true(scratch_give_away(w->folder));
        assert_int_equal(reused(w, w->folder, NULL), 0);
        assert_int_equal(chown(w->folder, 0, 0), 0);
    }
    /* A symbolic link among the files may lead anywhere; the folder itself may be one, because the user named it. */
    snprintf(real, sizeof real, "%s/real", w->folder);
    snprintf(folder_link, sizeof folder_link, "%s/to-folder", w->folder);
    assert_ok(file_make_folders(real, FILE_PRIVATE));
    snprintf(link, sizeof link, "%s/link.safetensors", real);
    assert_int_equal(symlink(w->path, link), 0);
    assert_int_equal(reused(w, real, NULL), 0);
    assert_int_equal(symlink(w->folder, folder_link), 0);
    assert_int_equal(reused(w, folder_link, NULL), N_IDS);
    /* A file that the user names is loaded, whoever owns it. */
    mn_session *session = NULL;
    chmod(w->path, 0666);
    assert_ok(mn_session_load(&session, w->model, w->path, NULL));
    mn_session_close(&session);
}

static void with_a_key_other_files_are_misses(void **state) {
    const fixture *w = *state;
    mn_cache_options plain;
    mn_cache_options_init(&plain, sizeof plain);
    mn_cache_options keyed = plain, other = plain;
    mn_session *session = NULL, *fork = NULL;
    plain.dtype = keyed.dtype = other.dtype = "f32";
    keyed.key_file = w->key;
    other.key_file = w->other_key;
    save_as(w, w->path, plain);
    assert_int_equal(reused(w, w->folder, w->key), 0);
    assert_fails(MN_E_REFUSED, "saved without a key", mn_session_load(&session, w->model, w->path, &keyed));
    save_as(w, w->path, keyed);
    assert_int_equal(reused(w, w->folder, w->key), N_IDS);
    assert_int_equal(reused(w, w->folder, w->other_key), 0);
    assert_int_equal(reused(w, w->folder, NULL), N_IDS); /* without a key every file may be used */
    assert_fails(MN_E_REFUSED, "keyed checksum is wrong", mn_session_load(&session, w->model, w->path, &other));
    assert_null(session);
    assert_ok(mn_session_load(&session, w->model, w->path, &keyed));
    /* A loaded session and its forks save with the key they were opened with. */
    assert_ok(mn_session_fork(&fork, session));
    mn_session_close(&session);
    assert_ok(mn_session_save(fork, w->path, true));
    mn_session_close(&fork);
    assert_int_equal(reused(w, w->folder, w->key), N_IDS);
    assert_int_equal(reused(w, w->folder, w->other_key), 0);
    keyed.key_file = "/absent/key";
    assert_fails(MN_E_NOT_FOUND, "/absent/key", mn_session_open(&session, w->model, &keyed));
    assert_fails(MN_E_NOT_FOUND, "/absent/key", mn_session_load(&session, w->model, w->path, &keyed));
    assert_fails(MN_E_NOT_FOUND, "/absent/key",
                 mn_session_open_cached(&session, w->model, &keyed, w->folder, w->ids, N_IDS));
    assert_null(session);
}

/* Somebody who can write the file but has no key: every changed byte is detected, though all other checksums are right.
 */
static void every_changed_byte_is_detected(void **state) {
    const fixture *w = *state;
    mn_cache_options keyed;
    mn_cache_options_init(&keyed, sizeof keyed);
    mac_key key;
    bytes file = {0};
    size_t n_seen = 0, step = test_is_long() ? 1 : 97;
    keyed.dtype = "f32";
    keyed.key_file = w->key;
    save_as(w, w->path, keyed);
    assert_ok(mac_key_read(&key, w->key));
    assert_ok(file_read(&file, w->path, 1 << 24));
    uint8_t *copy = aligned_alloc(64, (file.n + 63) / 64 * 64);
    assert_non_null(copy);
    for (size_t at = 0; at < file.n; at += step) {
        archive *a = NULL;
        memcpy(copy, file.data, file.n);
        copy[at] ^= (uint8_t)(1 + at % 255);
        hostile_archive_fix_checksums(copy, file.n);
        if (archive_open_memory(&a, copy, file.n, "changed") != MN_OK) continue;
        /* The checksums are computed again: if only one of them was changed, nothing is. */
        bool is_same = memcmp(copy, file.data, file.n) == 0;
        mn_status status = archive_authenticate(a, &key);
        if (status != (is_same ? MN_OK : MN_E_REFUSED)) fail_msg("byte %zu: status %d", at, status);
        n_seen += status != MN_OK;
        archive_close(&a);
    }
    assert_true(n_seen > file.n / step / 2);
    free(copy);
    mac_key_wipe(&key);
    bytes_clear(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sizes_are_limited, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(paths_are_ignored, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(files_of_others_are_ignored, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(with_a_key_other_files_are_misses, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(every_changed_byte_is_detected, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
