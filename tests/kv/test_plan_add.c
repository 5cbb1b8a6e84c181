/* Plans that are changed and compared as data.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/plans.h"

/* A plan with one strategy more is the plan of the joined names. */
static void one_strategy_more(void **state) {
    (void)state;
    static const struct {
        const char *implementation, *config;
        kv_trait trait;
        const char *name, *all; /* the joined names and every key; NULL: refused */
    } cases[] = {
        {"dynamic", "", KV_TRAIT_OFFLOADED, "offloaded", ""},
        {"hybrid", "page_tokens=32", KV_TRAIT_QUANTIZED, "quantized", "page_tokens=32"},
        {"static", "max_cache_len=90", KV_TRAIT_QUANTIZED, "static+quantized", "max_cache_len=90"},
        {"quantized", "nbits=2,layers=0:f32", KV_TRAIT_OFFLOADED, "quantized+offloaded", "nbits=2,layers=0:f32"},
        {"HQQQuantizedCache", "nbits=3", KV_TRAIT_SINKS, "quantized+sink", "nbits=3,backend=hqq,window_length=20"},
        {"offloaded", "path=/tmp", KV_TRAIT_SINKS, "offloaded+sink", "path=/tmp,window_length=20"},
        {"self=quantized,cross=dynamic", "", KV_TRAIT_OFFLOADED, "self=quantized+offloaded,cross=offloaded", ""},
        {"self=dynamic,cross=quantized", "nbits=2", KV_TRAIT_QUANTIZED, "self=quantized,cross=quantized", "nbits=2"},
        {"self=static,cross=offloaded", "max_cache_len=90", KV_TRAIT_SINKS, "self=static+sink,cross=offloaded",
         "max_cache_len=90,window_length=20"},
        {"quantized", "", KV_TRAIT_QUANTIZED, NULL, NULL},
        {"sliding_window", "window_length=9", KV_TRAIT_SINKS, NULL, NULL},
        {"none", "", KV_TRAIT_OFFLOADED, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_plan plan, added, wanted;
        kv_spec specs[2][3];
        assert_ok(plans_make(&plan, cases[i].implementation, cases[i].config));
        if (!cases[i].name) {
            assert_fails(MN_E_ARG, "cannot be combined", kv_plan_add(&added, &plan, cases[i].trait, 20));
            continue;
        }
        assert_ok(kv_plan_add(&added, &plan, cases[i].trait, 20));
        assert_ok(plans_make(&wanted, cases[i].name, cases[i].all));
        assert_string_equal(added.name, wanted.name);
        assert_true(kv_config_equal(&added.config, &wanted.config));
        assert_memory_equal(&added.options, &wanted.options, sizeof added.options);
        assert_string_equal(added.path, wanted.path);
        for (int k = 0; k < 2; k++) {
            plans_entries(specs[k], 3, 16);
            specs[k][2].write_once = true;
            assert_ok(kv_plan_specs(k ? &wanted : &added, specs[k], 3, 2, NULL));
        }
        for (int k = 0; k < 3; k++) {
            if (!kv_spec_equal(&specs[0][k], &specs[1][k]))
                fail_msg("%s and one more: entry %d differs", cases[i].implementation, k);
        }
    }
}

/* What is compared are keys and values, not how they were written. */
static void equal_configurations(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        bool is_equal;
    } cases[] = {
        {"", "{}", true},
        {"nbits=4,home=file", "{\"home\": \"file\", \"nbits\": 4}", true},
        {"nbits=4", "", false},
        {"nbits=4", "nbits=3", false},
        {"path=/a", "path=/b", false},
        {"backend=hqq", "backend=quanto", false},
        {"layers=0:4bit,device=cpu", "device=cpu,layers=0:4bit", true},
        {"layers=0:4bit", "device=0:4bit", false},
        {"sliding_window=9", "window-length=9", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_config a, b;
        assert_ok(kv_config_read(&a, cases[i].a));
        assert_ok(kv_config_read(&b, cases[i].b));
        if (kv_config_equal(&a, &b) != cases[i].is_equal || kv_config_equal(&b, &a) != cases[i].is_equal)
            fail_msg("'%s' and '%s'", cases[i].a, cases[i].b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_strategy_more),
        cmocka_unit_test(equal_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
