/* Saved caches with correct checksums that are loaded and used; support/restored.h describes the checks. The model is
 * small and made here. Inputs that are not archives are replaced by a saved session.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "support/hostile/hostile.h"
#include "support/restored.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most);

enum { MOST_BYTES = 16 << 20 }; /* bytes of pages that a loaded session may hold */

static mn_model *model;
static char scratch[64];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.compute_type = "f32";
    options.threads = 1;
    char path[64];
    snprintf(scratch, sizeof scratch, "/dev/shm/mneme-fuzz-%ld", (long)getpid());
    snprintf(path, sizeof path, "/dev/shm/mneme-fuzz-%ld.gguf", (long)getpid());
    size_t n = 0;
    uint8_t *gguf = checkpoint_gguf(&n);
    FILE *file = fopen(path, "wb");
    MUST_HOLD(gguf && file && fwrite(gguf, 1, n, file) == n && fclose(file) == 0);
    free(gguf);
    MUST_HOLD(mn_model_open(&model, path, &options) == MN_OK);
    unlink(path);
    return 0;
}

/* Saves a session of one of the strategies to the scratch file. */
static void save_fresh(uint64_t seed) {
    static const char *const strategies[][2] = {
        {"dynamic", NULL},
        {"static", NULL},
        {"offloaded", NULL},
        {"sliding_window", "window_length=20"},
        {"sink", "window_length=24,num_sink_tokens=4"},
        {"quantized", "nbits=4,q_group_size=16,residual_length=8"},
        {"quantized", "backend=quanto,nbits=2,q_group_size=16,residual_length=8"},
        {"quantized", "backend=hqq,nbits=3,q_group_size=16,residual_length=8"},
        {"quantized+sink", "nbits=8,q_group_size=16,residual_length=8,window_length=24,num_sink_tokens=2"},
        {"quantized+sliding_window", "nbits=1,q_group_size=16,residual_length=8,window_length=20"}};
    const char *const *strategy = strategies[seed % (sizeof strategies / sizeof *strategies)];
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    mn_session *session = NULL;
    int32_t ids[48];
    size_t n = seed / 16 % 48;
    options.implementation = strategy[0];
    options.config = strategy[1];
    options.page_tokens = 16;
    options.max_cache_len = strcmp(strategy[0], "static") == 0 ? 64 : 0;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(seed * i % 31);
    mn_status status = mn_session_open(&session, model, &options);
    if (status != MN_OK) fprintf(stderr, "%s\n", mn_last_error());
    MUST_HOLD(status == MN_OK);
    MUST_HOLD(n == 0 || mn_session_step(session, ids, n, NULL) == MN_OK);
    MUST_HOLD(mn_session_save(session, scratch, seed / 1024 % 4 == 0) == MN_OK);
    mn_session_close(&session);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    uint64_t seed = hash_of(data, n);
    uint8_t *copy = malloc(n ? n : 1);
    int fd = memfd_create("restored", MFD_CLOEXEC);
    MUST_HOLD(copy && fd >= 0);
    if (n) memcpy(copy, data, n);
    hostile_archive_fix_checksums(copy, n);
    MUST_HOLD(write(fd, copy, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    restored_use(model, path, scratch, MOST_BYTES, &seed);
    close(fd);
    free(copy);
    return 0;
}

/* Mutates an archive into another one, now and then at any byte; replaces other inputs by an archive. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed) {
    archive *a = NULL;
    bytes changed = {0};
    uint64_t state = seed;
    if (seed % 8 == 0) return LLVMFuzzerMutate(data, n, most);
    if (archive_open_memory(&a, data, n, "seed") == MN_OK && archive_verify(a) == MN_OK) {
        restored_mutate(a, scratch, &state);
    } else {
        save_fresh(seed / 8);
    }
    archive_close(&a);
    bool fits = file_read(&changed, scratch, most) == MN_OK;
    if (fits) memcpy(data, changed.data, changed.n);
    n = fits ? changed.n : LLVMFuzzerMutate(data, n, most);
    bytes_clear(&changed);
    unlink(scratch);
    return n;
}
