/* A whole checkpoint with one file of random bytes, opened and used; support/hostile/hostile.h describes the checks.
 * The first byte selects the file, the rest is its content; for model.safetensors it is the header, followed by the
 * undamaged data.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/file.h"
#include "support/hostile/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char base[] = TESTS_DIR "/../models-embedded/stories260K";

enum { HEAD = 8, N_FILES = 6 };

/* Length and header of the new file, then the data of the undamaged one. */
static void use_header(const uint8_t *header, size_t n) {
    static bytes whole;
    if (!whole.n)
        MUST_HOLD(file_read(&whole, TESTS_DIR "/../models-embedded/stories260K/model.safetensors", 1 << 24) == MN_OK);
    uint64_t old = 0, length = n;
    memcpy(&old, whole.data, HEAD);
    size_t n_data = whole.n - HEAD - (size_t)old;
    uint8_t *file = malloc(HEAD + n + n_data);
    MUST_HOLD(file);
    memcpy(file, &length, HEAD);
    if (n) memcpy(file + HEAD, header, n);
    memcpy(file + HEAD + n, whole.data + HEAD + old, n_data);
    hostile_checkpoint(base, "model.safetensors", file, HEAD + n + n_data);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n == 0) return 0;
    int which = data[0] % (N_FILES + 1);
    if (which == N_FILES) {
        hostile_checkpoint(NULL, NULL, data + 1, n - 1);
    } else if (strcmp(checkpoint_files[which], "model.safetensors") == 0) {
        use_header(data + 1, n - 1);
    } else {
        hostile_checkpoint(base, checkpoint_files[which], data + 1, n - 1);
    }
    return 0;
}
