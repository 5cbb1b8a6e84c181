/* Checksums against the output of xxHash's tools; fingerprints of tensors.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "base/hash.h"
#include "support/budget.h"
#include "support/scratch.h"
#include "tensor/fingerprint.h"
#include "tensor/safetensors.h"

/* Printed by xxhsum -H3 and -H2 (and Python's xxhash) for the same bytes. */
static const struct {
    int n; /* the bytes 0, 1, ... 255, 0, ... */
    const char *hash, *fingerprint;
} known[] = {{0, "2d06800538d394c2", "99aa06d3014798d86001c324468d497f"},
             {10240, "c03d2231ab9348f3", "1cb22534d0d96975c03d2231ab9348f3"}};

static void hashes_are_those_of_xxhash(void **state) {
    (void)state;
    uint8_t data[10240];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char hex[HASH_HEX], whole[FINGERPRINT_HEX];
        size_t n = (size_t)known[i].n;
        uint64_t back = 0;
        hash_put(hex, hash_of(data, n));
        assert_string_equal(hex, known[i].hash);
        assert_true(hash_read(&back, hex) && back == hash_of(data, n));
        fingerprint *f = NULL;
        assert_ok(fingerprint_open(&f));
        for (size_t at = 0, step = 1; at < n; at += step, step = step * 3 % 1000 + 1) {
            fingerprint_add(f, data + at, step < n - at ? step : n - at);
        }
        fingerprint_put(whole, f);
        assert_string_equal(whole, known[i].fingerprint);
        fingerprint_close(&f);
        assert_null(f);
    }
    static const char *const bad[] = {
        "", "0", "2d06800538d394c", "2d06800538d394c2a", "2D06800538d394c2", " d06800538d394c2", "-d06800538d394c2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t hash;
        assert_false(hash_read(&hash, bad[i]));
    }
}

static void fields_are_hashed_with_their_sizes(void **state) {
    (void)state;
    char texts[2][FINGERPRINT_HEX];
    for (int i = 0; i < 2; i++) {
        fingerprint *f = NULL;
        assert_ok(fingerprint_open(&f));
        fingerprint_add_sized(f, "abc", i ? 1 : 2);
        fingerprint_add_sized(f, i ? "bc" : "c", i ? 2 : 1);
        fingerprint_put(texts[i], f);
        fingerprint_close(&f);
    }
    assert_string_not_equal(texts[0], texts[1]);
}

/* ---- tensors ---- */

enum { N_SMALL = 1000, N_LARGE = 300001 };

typedef struct both {
    char full[FINGERPRINT_HEX], sampled[FINGERPRINT_HEX];
} both;

static both take(const tensor *tensors, size_t n) {
    const char *path = scratch_path("weights.safetensors");
    tensor_set *set = NULL;
    both out;
    assert_ok(safetensors_write(path, tensors, n, NULL));
    assert_ok(safetensors_open(&set, path));
    assert_ok(tensor_set_fingerprint(out.full, set));
    assert_ok(tensor_set_fingerprint_sampled(out.sampled, set));
    tensor_set_close(&set);
    assert_int_equal(strlen(out.full), 32);
    assert_string_not_equal(out.full, out.sampled);
    return out;
}

static void assert_both_differ(both a, both b) {
    assert_string_not_equal(a.full, b.full);
    assert_string_not_equal(a.sampled, b.sampled);
}

static void fingerprints_depend_on_every_part(void **state) {
    (void)state;
    uint8_t *data = malloc(N_LARGE);
    uint64_t seed = 3;
    for (size_t i = 0; i < N_LARGE; i++) data[i] = (uint8_t)test_random(&seed);
    tensor t[2] = {{.name = "a", .type = DTYPE_U8, .n_dims = 2, .shape = {10, 100}, .data = data, .bytes = N_SMALL},
                   {.name = "b", .type = DTYPE_U8, .n_dims = 1, .shape = {N_LARGE}, .data = data, .bytes = N_LARGE}};
    both first = take(t, 2), again = take(t, 2);
    assert_string_equal(first.full, again.full);
    assert_string_equal(first.sampled, again.sampled);
    /* The fingerprint depends neither on the order in the file nor on the file. */
    tensor swapped[2] = {t[1], t[0]};
    again = take(swapped, 2);
    assert_string_equal(first.full, again.full);
    assert_string_equal(first.sampled, again.sampled);
    tensor other[2] = {t[0], t[1]};
    other[0].shape[0] = 100, other[0].shape[1] = 10;
    assert_both_differ(first, take(other, 2));
    other[0] = t[0], other[0].type = DTYPE_I8;
    assert_both_differ(first, take(other, 2));
    other[0] = t[0], other[0].name = "c";
    assert_both_differ(first, take(other, 2));
    assert_both_differ(first, take(t, 1));
    /* A small tensor is hashed whole, a large one in samples that include both ends. */
    static const struct {
        size_t at;
        bool sampled;
    } changes[] = {{0, true},
                   {500, true},
                   {999, true},
                   {4095, true},
                   {5000, false},
                   {N_LARGE - 1, true},
                   {N_LARGE - 4096, true},
                   {N_LARGE - 4097, false},
                   {(N_LARGE - 4096) / 3, true},
                   {(N_LARGE - 4096) / 3 - 1, false}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        data[changes[i].at] ^= 1;
        again = take(t, 2);
        data[changes[i].at] ^= 1;
        assert_string_not_equal(first.full, again.full);
        assert_int_equal(strcmp(first.sampled, again.sampled) != 0, changes[i].sampled);
    }
    free(data);
}

/* 1 GB of address space: untouched zero pages, no memory. */
static void sampling_large_models_is_fast(void **state) {
    (void)state;
    enum { N = 300, EACH = 3600000 };
    bytes head = {0};
    tensor *tensors = calloc(N, sizeof *tensors);
    char(*names)[16] = calloc(N, sizeof *names);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tensors[i] = (tensor){.name = names[i], .type = DTYPE_U8, .n_dims = 1, .shape = {EACH}, .bytes = EACH};
    }
    assert_ok(safetensors_head(&head, "large", tensors, N, NULL, 8));
    size_t n = head.n + (size_t)N * EACH;
    char *file = calloc(n, 1), out[FINGERPRINT_HEX];
    assert_non_null(file);
    memcpy(file, head.data, head.n);
    tensor_set *set = NULL;
    assert_ok(safetensors_open_memory(&set, file, n, "large"));
    const double from = processor_seconds();
    assert_ok(tensor_set_fingerprint_sampled(out, set));
    assert_within(from, 0.005, "sampling a large model");
    tensor_set_close(&set);
    bytes_clear(&head);
    free(file);
    free(names);
    free(tensors);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int64_t live = mem_count().live;
    fingerprint *f = NULL;
    mem_fail_after(1);
    assert_fails(MN_E_NOMEM, NULL, fingerprint_open(&f));
    mem_fail_after(0);
    assert_null(f);
    assert_int_equal(mem_count().live, live);
}

/* The seed makes collisions unpredictable. */
static void seeds_change_hashes(void **state) {
    (void)state;
    uint64_t one = hash_seed(), other = hash_seed();
    assert_true(one != other);
    assert_int_equal(hash_seeded("key", 3, one), hash_seeded("key", 3, one));
    assert_true(hash_seeded("key", 3, one) != hash_seeded("key", 3, other));
    assert_true(hash_seeded("key", 3, one) != hash_seeded("kez", 3, one));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_are_those_of_xxhash),         cmocka_unit_test(seeds_change_hashes),
        cmocka_unit_test(fields_are_hashed_with_their_sizes), cmocka_unit_test(fingerprints_depend_on_every_part),
        cmocka_unit_test(sampling_large_models_is_fast),      cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
