/* Whole checkpoints with damage in one file: each is refused, or opened and used, without a sanitizer report. Every
 * prefix of the small files and 100,000 damaged files with MNEME_LONG=1; a sample otherwise.
 * tests/fuzz/fuzz_checkpoint.c continues from these files.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/hostile.h"
#include "support/support.h"

enum { LONG_TRIES = 100000, SHORT_TRIES = 1500, SHORT_PREFIXES = 200, SMALL = 8192 };

static const char *const calibration[] = {
    "golden/llama", "golden/qwen2-moe",     "golden/gemma3",         "golden/gpt2",
    "golden/jamba", "golden/phi3-longrope", "golden/whisper/tiny80", "../../models-embedded/stories260K"};
enum { N_CHECKPOINTS = sizeof calibration / sizeof *calibration };

typedef struct whole {
    const char *base, *file;
    bytes data;
} whole;

/* Every file of every base checkpoint, and a GGUF file. */
static size_t gather(whole *files) {
    static char folders[N_CHECKPOINTS][4096];
    size_t n = 0;
    for (int b = 0; b < N_CHECKPOINTS; b++) {
        snprintf(folders[b], sizeof folders[b], "%s", data_path(calibration[b]));
        for (int i = 0; checkpoint_files[i]; i++) {
            bytes path = {0};
            assert_ok(path_join(&path, folders[b], checkpoint_files[i]));
            bool is_there = file_exists(bytes_text(&path));
            files[n] = (whole){folders[b], checkpoint_files[i], {0}};
            if (is_there) assert_ok(file_read(&files[n++].data, bytes_text(&path), 1 << 24));
            bytes_clear(&path);
        }
    }
    files[n] = (whole){0};
    files[n].data.data = (char *)checkpoint_gguf(&files[n].data.n);
    return n + 1;
}

static void forget(whole *files, size_t n) {
    for (size_t i = 0; i < n; i++) bytes_clear(&files[i].data);
}

enum { MOST_FILES = 7 * N_CHECKPOINTS };

static void undamaged_checkpoints_run(void **state) {
    (void)state;
    whole files[MOST_FILES];
    size_t n = gather(files);
    assert_true(n >= 25);
    for (size_t i = 0; i < n; i++) {
        mn_status status =
            hostile_checkpoint(files[i].base, files[i].file, (const uint8_t *)files[i].data.data, files[i].data.n);
        if (status != MN_OK) fail_msg("%s/%s: %s", files[i].base, files[i].file, mn_last_error());
    }
    forget(files, n);
}

/* A truncated file is refused, except for text whose end is insignificant and files that are not read. */
static void prefixes_are_refused_or_run(void **state) {
    (void)state;
    whole files[MOST_FILES];
    size_t n = gather(files);
    int n_refused = 0;
    for (size_t i = 0; i < n; i++) {
        const bytes *data = &files[i].data;
        size_t step = data->n / (SHORT_PREFIXES / n + 1) + 1;
        if (test_is_long()) step = data->n <= SMALL ? 1 : data->n / 1000 + 1;
        for (size_t length = i % step; length < data->n; length += step) {
            mn_status status = hostile_checkpoint(files[i].base, files[i].file, (const uint8_t *)data->data, length);
            n_refused += status != MN_OK;
            bool is_weights = !files[i].base || strcmp(files[i].file, "model.safetensors") == 0;
            if (status == MN_OK && is_weights) fail_msg("%s: opened with its first %zu bytes", files[i].base, length);
        }
    }
    assert_true(n_refused > 50);
    forget(files, n);
}

static void damage_is_refused_or_runs(void **state) {
    (void)state;
    whole files[MOST_FILES];
    size_t n = gather(files);
    int tries = test_is_long() ? LONG_TRIES : SHORT_TRIES / test_stride(2), n_ran = 0, n_refused = 0;
    uint64_t seed = 20;
    for (int t = 0; t < tries; t++) {
        const whole *file = &files[(size_t)t % n];
        const bytes *data = &file->data;
        size_t capacity = data->n + 4096, head = data->n;
        uint8_t *damaged = malloc(capacity);
        memcpy(damaged, data->data, data->n);
        /* Half of the damage to weights falls into their header. */
        if (data->n > SMALL && t / (int)n % 2) head = SMALL;
        size_t length = hostile_mutate(damaged, head, head == data->n ? capacity : head, &seed);
        if (head < data->n && length == head) length = data->n;
        mn_status status = hostile_checkpoint(file->base, file->file, damaged, length);
        n_ran += status == MN_OK;
        n_refused += status != MN_OK;
        free(damaged);
    }
    assert_true(n_ran > tries / 20 && n_refused > tries / 20);
    forget(files, n);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(undamaged_checkpoints_run),
                                       cmocka_unit_test(prefixes_are_refused_or_run),
                                       cmocka_unit_test(damage_is_refused_or_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
