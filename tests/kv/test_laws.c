/* The laws of caches: random sequences of operations against a model (support/kv_world.h), and each law by
 * itself. MNEME_LONG=1 runs a million operations; MNEME_SEED=n one sequence.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/kv_world.h"

static void random_operations(void **state) {
    (void)state;
    const char *only = getenv("MNEME_SEED");
    int wanted = getenv("MNEME_LONG") ? 1000000 : 50000, done = 0, n_refused = 0, n_sealed = 0;
    world_setting set;
    if (only) {
        world_setting_make(&set, strtoull(only, NULL, 10));
        world_run_random(&set, &n_refused, &n_sealed);
        return;
    }
    for (uint64_t seed = 1; done < wanted; seed++) {
        world_setting_make(&set, seed);
        done += world_run_random(&set, &n_refused, &n_sealed);
    }
    /* A world in which nothing is refused or sealed would show little. */
    assert_true(n_refused > wanted / 100);
    assert_true(n_sealed > wanted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
