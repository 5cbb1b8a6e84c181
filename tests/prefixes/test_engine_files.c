/* What an engine keeps in a folder: the next engine finds it, and its answers are those of requests computed alone, bit
 * for bit. Files that are damaged, of others, or of other salts are misses.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_texts.h"
#include "session/prefix_disk.h"
#include "support/hostile/moved_clock.h"
#include "support/scratch.h"

static mn_engine *open_engine(const fixture *w, engine_cache cache, const char *folder, size_t limit,
                              size_t memory_limit) {
    return open_keeping(
        w, cache, (mn_engine_options){.memory_limit = memory_limit, .cache_dir = folder, .cache_dir_limit = limit});
}

static mn_engine_info info_of(mn_engine *engine) {
    mn_engine_info info = {.size = sizeof info};
    assert_ok(mn_engine_get_info(engine, &info));
    return info;
}

/* The tokens of text i that are not computed. */
static size_t check_with(const fixture *w, mn_engine *engine, int i, const char *salt, const mn_generation *wanted) {
    mn_generation *got = run(w, engine, &w->texts[i], salt);
    size_t cached = got->sequences[0]->cached_tokens;
    same(w, got, wanted, got->sequences[0]->text);
    mn_generation_close(&got);
    return cached;
}

static size_t check(const fixture *w, mn_engine *engine, engine_cache cache, int i, const char *salt) {
    mn_generation *wanted = alone(w, cache, &w->texts[i]);
    size_t cached = check_with(w, engine, i, salt, wanted);
    mn_generation_close(&wanted);
    return cached;
}

typedef void visit_file(const char *path, uint64_t *seed);

/* Visits the files of a folder; how many. */
static int visit_files(const char *folder, visit_file *visit, uint64_t seed) {
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[4096];
        if (*entry->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        visit(path, &seed);
        n++;
    }
    closedir(dir);
    return n;
}

/* ---- restarts ---- */

static void restart(const fixture *w, const engine_strategy *strategy, engine_cache cache, bool is_exact) {
    const char *folder = scratch_empty("texts");
    mn_generation *wanted[N_TEXTS];
    mn_engine *engine = open_engine(w, cache, folder, 0, 0);
    for (int i = 0; i < N_TEXTS; i++) {
        wanted[i] = alone(w, cache, &w->texts[i]);
        check_with(w, engine, i, NULL, wanted[i]);
    }
    mn_engine_close(&engine);
    int n_files = scratch_count(folder);
    if (!engine_shares(strategy)) assert_int_equal(n_files, 0);
    engine = open_engine(w, cache, folder, 0, 0);
    assert_int_equal(info_of(engine).n_files, n_files);
    clock_hold(); /* a file is read whatever that takes */
    for (int i = 0; i < N_TEXTS; i++) {
        size_t n = w->texts[i].n, cached = check_with(w, engine, i, NULL, wanted[i]);
        mn_generation_close(&wanted[i]);
        /* Up to a page is not written, half of one not read. */
        if (is_exact && cached + PAGE + PAGE / 2 < n - 1) fail_msg("%zu of %zu tokens were found", cached, n);
    }
    clock_run();
    if (is_exact) assert_true(info_of(engine).n_files_read > 0);
    assert_int_equal(info_of(engine).n_files_failed, 0);
    mn_engine_close(&engine);
}

static void a_restart_finds_every_text(void **state) {
    (void)state;
    for (int m = 0; m < N_STRATEGY_MODELS; m++) {
        fixture w = open_fixture(strategy_models[m]);
        for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
            if (!strategy_tries(i, m % 2, m)) continue;
            const engine_strategy *strategy = &engine_strategies[i];
            make_texts(&w, (uint64_t)(100 * m + i));
            restart(&w, strategy, strategy_cache(i, strategy_dtypes[m % 2]),
                    m == 0 && engine_shares(strategy) && !strategy->is_lossy && !strategy->forgets);
        }
        close_fixture(&w);
    }
}

static const engine_cache plain = {.implementation = "dynamic", .page_tokens = PAGE, .prefill_chunk = 32};

/* ---- files that are not taken ---- */

/* Changes a bit, cuts the file or empties it. */
static void damage(const char *path, uint64_t *seed) {
    struct stat s;
    uint64_t r = test_random(seed);
    assert_int_equal(stat(path, &s), 0);
    if (r % 8 == 0) assert_int_equal(truncate(path, s.st_size / 2), 0);
    if (r % 8 == 1) assert_int_equal(truncate(path, 0), 0);
    if (r % 8 < 2) return;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    long at = (long)(test_random(seed) % (uint64_t)s.st_size);
    fseek(f, at, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(byte ^ 1 << r / 8 % 8, f);
    fclose(f);
}

static void damaged_files_are_misses(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const uint64_t n_rounds = 6 / (uint64_t)test_stride(3);
    uint64_t n_bad = 0;
    for (uint64_t round = 0; round < n_rounds; round++) {
        const char *folder = scratch_empty("texts");
        make_texts(&w, round);
        mn_generation *wanted[N_TEXTS];
        mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
        for (int i = 0; i < N_TEXTS; i++) {
            wanted[i] = alone(&w, plain, &w.texts[i]);
            check_with(&w, engine, i, NULL, wanted[i]);
        }
        mn_engine_close(&engine);
        size_t n_files = (size_t)visit_files(folder, damage, round);
        assert_true(n_files > 0);
        engine = open_engine(&w, plain, folder, 0, 0);
        n_bad += n_files - info_of(engine).n_files;
        for (int i = 0; i < N_TEXTS; i++) {
            check_with(&w, engine, i, NULL, wanted[i]);
            mn_generation_close(&wanted[i]);
        }
        assert_int_equal(info_of(engine).n_files_read, 0);
        n_bad += info_of(engine).n_files_failed;
        mn_engine_close(&engine);
    }
    assert_true(n_bad > n_rounds);
    close_fixture(&w);
}

/* A file that another was given the name of: its ids are not those that were listed. */
static void a_replaced_file_is_a_miss(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const char *folder = scratch_empty("texts");
    char names[2][4096];
    make_texts(&w, 1);
    w.texts[1] = (text){.ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3}, .n = 18};
    w.texts[2] = (text){.ids = {2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2, 3}, .n = 18};
    mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
    for (int i = 1; i < 3; i++) check(&w, engine, plain, i, NULL);
    mn_engine_close(&engine);
    engine = open_engine(&w, plain, folder, 0, 0);
    assert_int_equal(info_of(engine).n_files, 2);
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (*entry->d_name != '.') snprintf(names[n++], sizeof names[0], "%s/%s", folder, entry->d_name);
    }
    closedir(dir);
    assert_int_equal(n, 2);
    assert_int_equal(rename(names[0], names[1]), 0);
    size_t cached[2];
    for (int i = 1; i < 3; i++) cached[i - 1] = check(&w, engine, plain, i, NULL);
    assert_int_equal(cached[0] > 0 && cached[1] > 0, false); /* one may be found under the other's name */
    assert_true(info_of(engine).n_files_failed > 0);
    mn_engine_close(&engine);
    close_fixture(&w);
}

static void salts_stay_apart(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const char *folder = scratch_empty("texts");
    make_texts(&w, 2);
    w.texts[0].n = w.texts[0].n < 40 ? 40 : w.texts[0].n;
    mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
    check(&w, engine, plain, 0, "a");
    mn_engine_close(&engine);
    engine = open_engine(&w, plain, folder, 0, 0);
    assert_int_equal(check(&w, engine, plain, 0, "b"), 0);
    assert_int_equal(check(&w, engine, plain, 0, NULL), 0);
    assert_int_equal(check(&w, engine, plain, 0, "a"), w.texts[0].n - 1);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* Their numbers are not those that this model would compute. */
static void files_of_another_compute_type_are_misses(void **state) {
    static const struct { const char *type, *cpu; } others[] = {{"bf16", "auto"}, {"int8", "auto"}, {"f32", "scalar"}};
    (void)state;
    fixture w = open_fixture("golden/llama");
    const char *folder = scratch_empty("texts");
    w.texts[0].n = 100;
    engine_ids(&(uint64_t){5}, w.texts[0].ids, 100, (int32_t)w.vocab);
    mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
    check(&w, engine, plain, 0, NULL);
    mn_engine_close(&engine);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        fixture other = open_fixture_in("golden/llama", others[i].type, others[i].cpu);
        memcpy(other.texts, w.texts, sizeof w.texts);
        engine = open_engine(&other, plain, folder, 0, 0);
        assert_int_equal(info_of(engine).n_files, 0);
        assert_int_equal(check(&other, engine, plain, 0, NULL), 0);
        mn_engine_close(&engine);
        close_fixture(&other);
    }
    engine = open_engine(&w, plain, folder, 0, 0);
    assert_int_equal(check(&w, engine, plain, 0, NULL), 99);
    mn_engine_close(&engine);
    close_fixture(&w);
}

static void folders_of_others_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    mn_engine *engine = NULL;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.cache_dir = scratch_empty("texts");
    assert_int_equal(mn_engine_open(&engine, w.model, &options), MN_E_ARG);
    options.enable_prefix_caching = true;
    assert_ok(mn_engine_open(&engine, w.model, &options));
    mn_engine_close(&engine);
    assert_int_equal(chmod(options.cache_dir, 0777), 0);
    assert_int_equal(mn_engine_open(&engine, w.model, &options), MN_E_REFUSED);
    assert_null(engine);
    assert_int_equal(chmod(options.cache_dir, 0700), 0);
    options.cache_dir = scratch_file("no-folder", "x", 1);
    assert_int_equal(mn_engine_open(&engine, w.model, &options), MN_E_IO);
    assert_null(engine);
    close_fixture(&w);
}

/* ---- how much is kept ---- */

static void a_longer_text_replaces_its_beginnings(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const char *folder = scratch_empty("texts");
    make_texts(&w, 3);
    w.texts[0].n = 90;
    engine_ids(&(uint64_t){8}, w.texts[0].ids, 90, (int32_t)w.vocab);
    const size_t lengths[] = {30, 60, 90};
    for (int i = 0; i < 3; i++) {
        mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
        w.texts[0].n = lengths[i];
        size_t cached = check(&w, engine, plain, 0, NULL);
        assert_int_equal(cached, i == 0 ? 0 : lengths[i - 1]);
        mn_engine_close(&engine);
        /* The answer to a shorter prompt ends in tokens that the longer one does not have. */
        assert_int_equal(scratch_count(folder), i + 1);
    }
    mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
    mn_generation *first = run(&w, engine, &w.texts[0], NULL);
    const mn_sequence *answer = first->sequences[0];
    memcpy(w.texts[0].ids + 90, answer->ids, answer->n_ids * sizeof *answer->ids);
    w.texts[0].n += answer->n_ids;
    mn_generation_close(&first);
    check(&w, engine, plain, 0, NULL);
    mn_engine_close(&engine);
    assert_int_equal(scratch_count(folder), 3); /* that of the text with its answer replaced the third */
    close_fixture(&w);
}

/* Texts with one beginning do not each take its room. */
static void what_files_have_is_not_written_again(void **state) {
    enum { SAME = 100, N_NEW_IDS = 8 };
    (void)state;
    fixture w = open_fixture("golden/llama");
    const char *folder = scratch_empty("texts");
    for (int i = 0; i < N_TEXTS; i++) {
        w.texts[i].n = SAME + N_NEW_IDS;
        engine_ids(&(uint64_t){1}, w.texts[i].ids, SAME, (int32_t)w.vocab);
        engine_ids(&(uint64_t){100 + (uint64_t)i}, w.texts[i].ids + SAME, N_NEW_IDS, (int32_t)w.vocab);
    }
    for (int round = 0; round < 2; round++) {
        mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
        for (int i = 0; i < N_TEXTS; i++) {
            size_t cached = check(&w, engine, plain, i, NULL);
            if (round + i > 0) assert_true(cached >= SAME);
        }
        mn_engine_close(&engine);
        assert_int_equal(scratch_count(folder), 1);
    }
    close_fixture(&w);
}

static void files_stay_within_their_limit(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const char *folder = scratch_empty("texts");
    make_texts(&w, 4);
    mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
    for (int i = 0; i < N_TEXTS; i++) check(&w, engine, plain, i, NULL);
    mn_engine_close(&engine);
    engine = open_engine(&w, plain, folder, 0, 0);
    const mn_engine_info all = info_of(engine);
    assert_true(all.n_files > 2);
    mn_engine_close(&engine);
    const size_t limit = all.file_bytes / 2;
    engine = open_engine(&w, plain, folder, limit, 0);
    assert_true(info_of(engine).n_files < all.n_files);
    assert_true(info_of(engine).n_files > 0);
    for (int i = 0; i < N_TEXTS; i++) {
        check(&w, engine, plain, i, NULL);
        assert_true(info_of(engine).file_bytes <= limit);
    }
    mn_engine_close(&engine);
    engine = open_engine(&w, plain, folder, 0, 0);
    assert_true(info_of(engine).file_bytes <= limit);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* What is evicted from memory is still in its file, once that was written. */
static void evicted_texts_come_back(void **state) {
    enum { MOST_TURNS = 200 };
    (void)state;
    fixture w = open_fixture("golden/llama");
    const char *folder = scratch_empty("texts");
    for (int i = 0; i < N_TEXTS; i++) {
        w.texts[i].n = 100;
        engine_ids(&(uint64_t){100 + (uint64_t)i}, w.texts[i].ids, 100, (int32_t)w.vocab);
    }
    mn_generation *wanted[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++) wanted[i] = alone(&w, plain, &w.texts[i]);
    mn_engine *engine = open_engine(&w, plain, NULL, 0, 0);
    check_with(&w, engine, 0, NULL, wanted[0]);
    const size_t unit = info_of(engine).kept_bytes;
    mn_engine_close(&engine);
    engine = open_engine(&w, plain, folder, 0, 4 * unit);
    for (int i = 0; i < N_TEXTS; i++) {
        assert_int_equal(check_with(&w, engine, i, NULL, wanted[i]), 0);
        for (int turn = 0; i < 2 && info_of(engine).n_files_written < (uint64_t)i + 1; turn++) {
            bool has_work;
            assert_true(turn < MOST_TURNS);
            assert_ok(mn_engine_wait(engine, 20, &has_work));
        }
    }
    assert_int_equal(info_of(engine).n_files_read, 0);
    clock_hold(); /* a file is read whatever that takes */
    for (int i = 0; i < 2; i++) assert_int_equal(check_with(&w, engine, i, NULL, wanted[i]), 99);
    clock_run();
    assert_int_equal(info_of(engine).n_files_read, 2);
    assert_true(info_of(engine).cache_bytes <= 4 * unit);
    mn_engine_close(&engine);
    for (int i = 0; i < N_TEXTS; i++) mn_generation_close(&wanted[i]);
    close_fixture(&w);
}

/* The rates are those of this run: the first file is read whatever it takes, and then one that is slower than computing
 * its tokens is not. */
static void a_file_is_read_where_that_is_faster(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    char folder[512];
    snprintf(folder, sizeof folder, "%s", scratch_empty("texts"));
    mn_engine *engine = open_engine(&w, plain, folder, 0, 0);
    for (int i = 0; i < 3; i++) {
        w.texts[i].n = 90;
        engine_ids(&(uint64_t){50 + (uint64_t)i}, w.texts[i].ids, 90, (int32_t)w.vocab);
        check(&w, engine, plain, i, NULL);
    }
    mn_engine_close(&engine);

    prefix_tree *tree = NULL;
    prefix_disk *disk = NULL;
    prefix_root *root = NULL;
    mn_session *session = engine_session(w.model, plain);
    assert_ok(prefix_open(&tree));
    assert_ok(prefix_disk_open(&disk, tree, w.model, folder, 0, NULL));
    assert_ok(prefix_root_of(&root, tree, session, NULL));
    prefix_match match[3];
    for (int i = 0; i < 3; i++) {
        match[i] = prefix_find(root, w.texts[i].ids, 90);
        assert_int_equal(match[i].filed, 90);
    }
    static const double at_once = 1e-12, for_ever = 1e12;               /* ms to compute a token */
    assert_true(prefix_disk_reads(disk, &match[0], at_once, true, "")); /* how fast files are is not known yet */
    prefix_disk_wait_all(disk);
    assert_int_equal(prefix_disk_get_info(disk).n_read, 1);
    assert_false(prefix_disk_reads(disk, &match[1], at_once, true, ""));
    assert_true(prefix_disk_reads(disk, &match[1], for_ever, true, ""));
    assert_true(prefix_disk_reads(disk, &match[1], at_once, true, "")); /* it is being read */
    assert_true(prefix_disk_reads(disk, &match[2], 0, true, ""));       /* how fast tokens are is not known */
    prefix_disk_wait_all(disk);
    assert_int_equal(prefix_disk_get_info(disk).n_read, 3);
    assert_int_equal(prefix_find(root, w.texts[1].ids, 90).now, 90);
    prefix_disk_close(&disk);
    prefix_close(&tree);
    mn_session_close(&session);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_finds_every_text),
        cmocka_unit_test(damaged_files_are_misses),
        cmocka_unit_test(a_replaced_file_is_a_miss),
        cmocka_unit_test(salts_stay_apart),
        cmocka_unit_test(files_of_another_compute_type_are_misses),
        cmocka_unit_test(folders_of_others_are_refused),
        cmocka_unit_test(a_longer_text_replaces_its_beginnings),
        cmocka_unit_test(what_files_have_is_not_written_again),
        cmocka_unit_test(files_stay_within_their_limit),
        cmocka_unit_test(evicted_texts_come_back),
        cmocka_unit_test(a_file_is_read_where_that_is_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
