/* The bounds that error messages name are those that are enforced: every number of a generation config, the threads of
 * a model.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "mneme.h"

/* Parses "0 to 1e9", "0 (off) to 1", "0 to 2^53"; false when the text names no bounds. */
static bool read_bounds(const char *text, double *lo, double *hi) {
    char *end = NULL;
    const char *to = strstr(text, " to ");
    *lo = strtod(text, &end);
    if (end == text || !to) return false;
    *hi = strncmp(to + 4, "2^", 2) == 0 ? ldexp(1, atoi(to + 6)) : strtod(to + 4, NULL);
    return true;
}

static mn_status set(mn_generation_config *config, const char *name, double value) {
    char text[64];
    snprintf(text, sizeof text, "%.17g", value);
    return mn_generation_config_set(config, name, text);
}

static void generation_fields_enforce_the_bounds_they_name(void **state) {
    (void)state;
    mn_model *model = NULL;
    mn_generation_config *config = NULL;
    assert_ok(mn_model_open(&model, "embedded", NULL));
    assert_ok(mn_generation_config_open(&config, model));
    int n_numbers = 0, n_bounded = 0;
    for (int i = 0; mn_generation_field_at(i); i++) {
        bool is_integer = strcmp(mn_generation_field_at(i)->kind, "integer") == 0;
        double lo, hi;
        if (!is_integer && strcmp(mn_generation_field_at(i)->kind, "number") != 0) continue;
        n_numbers++;
        if (!read_bounds(mn_generation_field_at(i)->allowed, &lo, &hi)) {
            assert_string_equal(mn_generation_field_at(i)->allowed, "a token id"); /* its bound is the vocabulary */
            continue;
        }
        n_bounded++;
        assert_ok(set(config, mn_generation_field_at(i)->name, lo));
        assert_ok(set(config, mn_generation_field_at(i)->name, hi));
        double below = is_integer ? lo - 1 : nextafter(lo, -DBL_MAX),
               above = is_integer ? hi + 1 : nextafter(hi, DBL_MAX);
        assert_fails(MN_E_ARG, mn_generation_field_at(i)->allowed, set(config, mn_generation_field_at(i)->name, below));
        if (above != hi && above < 0x1p53)
            assert_fails(MN_E_ARG, mn_generation_field_at(i)->allowed,
                         set(config, mn_generation_field_at(i)->name, above));
    }
    assert_true(n_numbers > 30 && n_bounded > 28);
    mn_generation_config_close(&config);
    mn_model_close(&model);
}

static void threads_enforce_the_bounds_they_name(void **state) {
    (void)state;
    static const int counts[] = {0, 1, MN_MOST_THREADS};
    mn_model_options how;
    mn_model_options_init(&how, sizeof how);
    mn_model *model = NULL;
    for (int i = 0; i < 3; i++) {
        mn_model_info info = {.size = sizeof info};
        how.threads = counts[i];
        assert_ok(mn_model_open(&model, "embedded", &how));
        assert_ok(mn_model_get_info(model, &info));
        if (counts[i]) assert_int_equal(info.threads, counts[i]);
        mn_model_close(&model);
    }
    how.threads = -1;
    assert_fails(MN_E_ARG, "threads is -1, allowed: 0 (as many as there are cores) to 256",
                 mn_model_open(&model, "embedded", &how));
    how.threads = MN_MOST_THREADS + 1;
    assert_fails(MN_E_ARG, "threads is 257, allowed: 0 (as many as there are cores) to 256",
                 mn_model_open(&model, "embedded", &how));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation_fields_enforce_the_bounds_they_name),
        cmocka_unit_test(threads_enforce_the_bounds_they_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
