/* SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <stdatomic.h>
#include <sys/stat.h>

#include "base/num.h"

enum { N_PATHS = 64, PATH_BYTES = 4096 };

/* Of all threads: a thread's own would take part of its stack, which some tests make small. */
static char *next_path(void) {
    static char paths[N_PATHS][PATH_BYTES];
    static atomic_uint n_calls;
    return paths[atomic_fetch_add(&n_calls, 1) % N_PATHS];
}

const char *data_path(const char *name) {
    char *path = next_path();
    snprintf(path, PATH_BYTES, "%s/data/%s", TESTS_DIR, name);
    return path;
}

const char *shared_path(const char *name) {
    const char *folder = getenv("MNEME_SHARED");
    char *path = next_path();
    struct stat info;
    snprintf(path, PATH_BYTES, "%s/%s", folder ? folder : TESTS_DIR "/../../shared", name);
    return stat(path, &info) == 0 ? path : NULL;
}

bool test_is_long(void) {
    const char *value = getenv("MNEME_LONG");
    return value && strcmp(value, "1") == 0;
}

bool test_samples(int i, int every) {
    return !TEST_IS_SANITIZED || test_is_long() || i % every == 0;
}

int test_stride(int every) {
    return test_samples(1, every) ? 1 : every;
}

void test_of_numbers(void) {
    if (!test_samples(1, 2)) skip();
}

uint64_t test_random(uint64_t *state) {
    return random_bits(0x6D6E656D65u, 0, (*state)++);
}

double test_uniform(uint64_t *state, double lo, double hi) {
    return lo + (hi - lo) * ((double)(test_random(state) >> 11) * 0x1p-53);
}

json_doc *open_json(const char *path) {
    json_doc *doc = NULL;
    assert_ok(json_open(&doc, path, JSON_PYTHON, (size_t)1 << 30));
    return doc;
}
