/* Saved caches with right checksums that are loaded and then used: see support/restored.h for what must hold.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "support/hostile.h"
#include "support/restored.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most);

enum { MOST_BYTES = 16 << 20 }; /* of pages that a file may make a session hold */

static mn_model *model;
static char scratch[64];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    mn_model_options options = mn_model_options_default();
    options.compute_type = "f32";
    options.threads = 1;
    snprintf(scratch, sizeof scratch, "/dev/shm/mneme-fuzz-%ld", (long)getpid());
    MUST_HOLD(mn_model_open(&model, TESTS_DIR "/data/golden/llama-untied-bias", &options) == MN_OK);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    uint64_t seed = hash_of(data, n);
    uint8_t *copy = malloc(n ? n : 1);
    int fd = memfd_create("restored", MFD_CLOEXEC);
    MUST_HOLD(copy && fd >= 0);
    if (n) memcpy(copy, data, n);
    hostile_archive_reseal(copy, n);
    MUST_HOLD(write(fd, copy, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    restored_use(model, path, scratch, MOST_BYTES, &seed);
    close(fd);
    free(copy);
    return 0;
}

/* What is an archive becomes another one; other bytes, and now and then those of an archive, are changed anywhere. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed) {
    archive *a = NULL;
    bytes changed = {0};
    uint64_t state = seed;
    if (seed % 4 == 0 || archive_open_memory(&a, data, n, "seed") != MN_OK)
        return LLVMFuzzerMutate(data, n, most);
    if (archive_verify(a) == MN_OK) restored_mutate(a, scratch, &state);
    archive_close(&a);
    bool fits = file_read(&changed, scratch, most) == MN_OK;
    if (fits) memcpy(data, changed.data, changed.n);
    n = fits ? changed.n : LLVMFuzzerMutate(data, n, most);
    bytes_clear(&changed);
    unlink(scratch);
    return n;
}
