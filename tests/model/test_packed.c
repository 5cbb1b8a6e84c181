/* Files of packed weights: a model that maps one computes the same bits as one that packs; damaged files, those of
 * other layouts and those that others may write are passed over.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/session.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { N_IDS = 20 };

static mn_model *open_with(const char *path, const char *type, const char *folder) {
    mn_model *model = NULL;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.compute_type = type;
    options.threads = 1;
    options.packed_dir = folder;
    assert_ok(mn_model_open(&model, *path == '/' ? path : data_path(path), &options));
    return model;
}

static float *logits_of(mn_model *model) {
    int32_t ids[N_IDS];
    uint64_t seed = 1;
    engine_ids(&seed, ids, N_IDS, engine_vocab(model));
    return engine_logits(model, (engine_cache){.page_tokens = 16}, ids, N_IDS, 0, NULL);
}

static bool is_mapped(const mn_model *model) {
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(model, &info));
    assert_true(info.mapped_bytes == 0 || info.mapped_bytes == info.packed_bytes);
    return info.mapped_bytes > 0;
}

/* The bits of a model that may map, beside one that does not. */
static void check(const char *path, const char *type, const char *folder, bool maps) {
    mn_model *model = open_with(path, type, NULL), *other = open_with(path, type, folder);
    assert_false(is_mapped(model));
    if (is_mapped(other) != maps) fail_msg("%s, %s: is %smapped", path, type, maps ? "not " : "");
    float *wanted = logits_of(model), *got = logits_of(other);
    engine_same_bits(got, wanted, N_IDS, (size_t)engine_vocab(model), "%s, %s", path, type);
    free(wanted);
    free(got);
    mn_model_close(&model);
    mn_model_close(&other);
}

static void save(const char *path, const char *type, const char *folder) {
    mn_model *model = open_with(path, type, NULL);
    uint64_t n = 0;
    assert_ok(mn_model_save_packed(model, folder, &n));
    assert_int_equal(n, model_packed_bytes(model->core));
    mn_model_close(&model);
}

static void mapped_weights_compute_the_same_bits(void **state) {
    static const char *const models[] = {"golden/llama", "golden/mixtral", "golden/jamba", "golden/gpt2"};
    static const char *const types[] = {"auto", "f32", "bf16", "int8", "int8_a8"};
    (void)state;
    const int64_t live = mem_count().live;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        const char *folder = scratch_empty("packed");
        check(models[m], "int8", folder, false);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            save(models[m], types[t], folder);
            check(models[m], types[t], folder, true);
        }
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) check(models[m], types[t], folder, true);
    }
    assert_int_equal(mem_count().live, live);
}

static void an_encoder_has_a_file_of_its_own(void **state) {
    (void)state;
    const char *folder = scratch_empty("packed");
    save("golden/whisper/tiny80", "int8", folder);
    assert_int_equal(scratch_count(folder), 2);
    mn_model *model = open_with("golden/whisper/tiny80", "int8", folder);
    assert_true(is_mapped(model));
    mn_model_close(&model);
}

/* Both types have the same panels, and others have others. */
static void files_are_of_their_layouts(void **state) {
    (void)state;
    const char *folder = scratch_empty("packed");
    save("golden/llama", "int8", folder);
    check("golden/llama", "int8_a8", folder, true);
    check("golden/llama", "bf16", folder, false);
    check("golden/qwen2", "int8", folder, false);
    check("golden/llama", "int8", scratch_path("nowhere"), false);
}

static void the_file(char *path, size_t n, const char *folder) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    *path = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (*entry->d_name != '.') snprintf(path, n, "%s/%s", folder, entry->d_name);
    }
    closedir(dir);
    assert_true(*path);
}

static void damaged_files_are_passed_over(void **state) {
    enum { ROUNDS = 40 };
    (void)state;
    const char *folder = scratch_empty("packed");
    char path[1024];
    struct stat s;
    uint64_t seed = 3;
    save("golden/llama", "int8", folder);
    the_file(path, sizeof path, folder);
    assert_int_equal(stat(path, &s), 0);
    for (int round = 0; round < ROUNDS; round++) {
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        const long at = round < 8 ? round : (long)(test_random(&seed) % (uint64_t)s.st_size);
        fseek(f, at, SEEK_SET);
        const int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ 1 << round % 8, f);
        fclose(f);
        check("golden/llama", "int8", folder, false);
        f = fopen(path, "r+b");
        assert_non_null(f);
        fseek(f, at, SEEK_SET);
        fputc(byte, f);
        fclose(f);
    }
    check("golden/llama", "int8", folder, true);
    assert_int_equal(chmod(path, 0666), 0);
    check("golden/llama", "int8", folder, false);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    check("golden/llama", "int8", folder, false);
    assert_int_equal(chmod(folder, 0700), 0);
    check("golden/llama", "int8", folder, true);
    assert_int_equal(truncate(path, s.st_size - 1), 0);
    check("golden/llama", "int8", folder, false);
    assert_int_equal(truncate(path, 0), 0);
    check("golden/llama", "int8", folder, false);
    save("golden/llama", "int8", folder);
    check("golden/llama", "int8", folder, true);
    assert_int_equal(scratch_count(folder), 1);
}

/* A weight changed by hand may lie between the samples of the fingerprint. */
static void files_are_of_the_checkpoint_as_it_was(void **state) {
    (void)state;
    const char *folder = scratch_empty("packed"), *model = scratch_empty("model");
    char command[4096], weights[1024];
    snprintf(command, sizeof command, "cp '%s'/* '%s'", data_path("golden/llama"), model);
    assert_int_equal(system(command), 0);
    snprintf(weights, sizeof weights, "%s/model.safetensors", model);
    save(model, "int8", folder);
    check(model, "int8", folder, true);
    struct stat s;
    assert_int_equal(stat(weights, &s), 0);
    struct timespec times[] = {s.st_atim, {s.st_mtim.tv_sec, (s.st_mtim.tv_nsec + 1) % 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, weights, times, 0), 0);
    check(model, "int8", folder, false);
    times[1] = s.st_mtim;
    assert_int_equal(utimensat(AT_FDCWD, weights, times, 0), 0);
    check(model, "int8", folder, true);
}

/* Each process writes the file again while the others map it: whoever opens it has all of it. */
static void processes_save_and_map_one_file(void **state) {
    enum { PROCESSES = 4, ROUNDS = 12 };
    (void)state;
    const char *folder = scratch_empty("packed");
    save("golden/llama", "int8", folder);
    for (int p = 0; p < PROCESSES; p++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child > 0) continue;
        for (int round = 0; round < ROUNDS; round++) {
            save("golden/llama", "int8", folder);
            check("golden/llama", "int8", folder, true);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status = -1;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(scratch_count(folder), 1);
}

static void what_cannot_be_saved_is_refused(void **state) {
    (void)state;
    mn_model *model = open_with("golden/llama", "int8", NULL);
    assert_fails(MN_E_ARG, "no folder", mn_model_save_packed(model, "", NULL));
    assert_fails(MN_E_IO, "no-folder", mn_model_save_packed(model, scratch_file("no-folder", "x", 1), NULL));
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mapped_weights_compute_the_same_bits), cmocka_unit_test(an_encoder_has_a_file_of_its_own),
        cmocka_unit_test(files_are_of_their_layouts),           cmocka_unit_test(damaged_files_are_passed_over),
        cmocka_unit_test(what_cannot_be_saved_is_refused),      cmocka_unit_test(files_are_of_the_checkpoint_as_it_was),
        cmocka_unit_test(processes_save_and_map_one_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
