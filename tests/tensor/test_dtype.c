/* Dequantization against vectors of another implementation, bit for bit; quantization against the reference's bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <ctype.h>
#include <math.h>

#include "base/num.h"
#include "support/blocks.h"
#include "tensor/dtype.h"
#include "checkpoint/quantize.h"

/* A file of tests/data/ggml-quants: "<prefix><type in lower case><suffix>.bin". */
static void read_vector(bytes *out, const char *prefix, dtype type, const char *suffix) {
    char name[128], lower[16];
    size_t n = 0;
    for (const char *c = dtype_table[type].name; *c; c++) lower[n++] = (char)tolower((unsigned char)*c);
    lower[n] = 0;
    snprintf(name, sizeof name, "ggml-quants/%s%s%s.bin", prefix, lower, suffix);
    assert_ok(file_read(out, data_path(name), 1 << 20));
}

static void dequantisers_agree_with_the_vectors(void **state) {
    (void)state;
    int n_types = 0;
    for (dtype type = 0; type < N_DTYPES; type++) {
        if (!dtype_table[type].to_f32 || type >= DTYPE_F64) continue; /* those from F64 on: below */
        bytes blocks = {0}, values = {0};
        read_vector(&blocks, "dequant_", type, "_blocks");
        read_vector(&values, "dequant_", type, "_values");
        size_t n = values.n / sizeof(float), size = 0;
        assert_ok(dtype_bytes(type, (int64_t)n, &size));
        assert_int_equal(size, blocks.n);
        float *got = test_malloc(values.n);
        uint8_t *odd = test_malloc(blocks.n + 1); /* sources need no alignment */
        memcpy(odd + 1, blocks.data, blocks.n);
        dtype_table[type].to_f32(got, odd + 1, n);
        for (size_t i = 0; i < n; i++) {
            float expected;
            memcpy(&expected, values.data + i * sizeof expected, sizeof expected);
            if (f32_bits(got[i]) != f32_bits(expected)) {
                fail_msg("%s value %zu: %.9g, expected %.9g", dtype_table[type].name, i, (double)got[i],
                         (double)expected);
            }
        }
        test_free(got);
        test_free(odd);
        bytes_clear(&blocks);
        bytes_clear(&values);
        n_types++;
    }
    assert_int_equal(n_types, DTYPE_F64);
    FOR_COMPUTED_TYPES(type) assert_non_null(dtype_table[type].to_f32);
}

static void eight_bit_floats_have_the_values_of_their_definition(void **state) {
    (void)state;
    for (dtype type = DTYPE_F8_E4M3; type <= DTYPE_F8_E5M2; type = (dtype)(type + 1)) {
        uint8_t codes[256];
        float got[256];
        for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
        dtype_table[type].to_f32(got, codes, 256);
        for (int i = 0; i < 256; i++) {
            const double expected = float8_value(type, i);
            const bool same =
                isnan(expected) ? isnan(got[i]) : (double)got[i] == expected && !signbit(got[i]) == !(i & 0x80);
            if (!same) fail_msg("%s 0x%02x: %.9g, expected %.9g", dtype_table[type].name, i, (double)got[i], expected);
        }
    }
    assert_true(float8_value(DTYPE_F8_E4M3, 0x7E) == 448 && float8_value(DTYPE_F8_E5M2, 0x7B) == 57344);
}

/* As a conversion to float32 gives: rounded to nearest, ties to even, infinite beyond its range. */
static void doubles_are_rounded(void **state) {
    (void)state;
    static const struct {
        double stored;
        float value;
    } cases[] = {{1.5, 1.5f},
                 {-0.0, -0.0f},
                 {1 + 0x1p-24, 1.0f},
                 {1 + 0x3p-24, 1 + 0x1p-22f},
                 {0x1p-149, 0x1p-149f},
                 {0x1p-151, 0.0f},
                 {0x1.fffffefp127, 0x1.fffffep127f},
                 {-1e39, -INFINITY},
                 {(double)INFINITY, INFINITY}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t odd[1 + sizeof(double)];
        float got;
        memcpy(odd + 1, &cases[i].stored, sizeof cases[i].stored);
        dtype_table[DTYPE_F64].to_f32(&got, odd + 1, 1);
        assert_int_equal(f32_bits(got), f32_bits(cases[i].value));
    }
    float got;
    dtype_table[DTYPE_F64].to_f32(&got, &(double){(double)NAN}, 1);
    assert_true(isnan(got));
}

static void quantisers_agree_with_the_reference(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        bytes input = {0}, expected = {0};
        read_vector(&input, "", types[t], "_64_noim_input");
        read_vector(&expected, "", types[t], "_64_noim_expected");
        int64_t n = (int64_t)(input.n / sizeof(float));
        size_t size;
        assert_ok(dtype_bytes(types[t], n, &size));
        assert_int_equal(size, expected.n);
        uint8_t *got = test_malloc(size);
        assert_ok(quantize_from_f32(types[t], got, (const float *)(const void *)input.data, n));
        assert_memory_equal(got, expected.data, size);
        test_free(got);
        bytes_clear(&input);
        bytes_clear(&expected);
    }
}

/* Every writable type: the error of a value stays within half a step of its block. */
static void quantised_values_come_back(void **state) {
    (void)state;
    static const struct {
        dtype type;
        double step; /* of a block whose values reach from -1 to 1 */
    } cases[] = {{DTYPE_F32, 0},
                 {DTYPE_F16, 0x1p-10},
                 {DTYPE_BF16, 0x1p-7},
                 {DTYPE_Q8_0, 1.0 / 127.0},
                 {DTYPE_Q4_0, 2.0 / 8.0 /* twice: there is no level +8, so the positive end is a whole step off */},
                 {DTYPE_Q4_1, 2.0 / 15.0}};
    uint64_t seed = 7;
    float x[64], y[64];
    uint8_t stored[sizeof x];
    for (int i = 0; i < 64; i++) x[i] = (float)test_uniform(&seed, -1, 1);
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        assert_ok(quantize_from_f32(cases[t].type, stored, x, 64));
        dtype_table[cases[t].type].to_f32(y, stored, 64);

        double bound = cases[t].step > 0 ? cases[t].step / 2 + 0x1p-11 : 0; /* scales are rounded to float16 */
        for (int i = 0; i < 64; i++) assert_true(fabs((double)x[i] - (double)y[i]) <= bound);
    }
}

static void zeros_and_subnormal_values_are_stored_as_zeros(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
    float x[32] = {0}, y[32];
    uint8_t stored[34];
    for (int tiny = 0; tiny < 2; tiny++) {
        x[3] = tiny ? 1e-40f : 0.0f; /* a subnormal number: its inverse overflows float32 */
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            assert_ok(quantize_from_f32(types[t], stored, x, 32));
            dtype_table[types[t]].to_f32(y, stored, 32);
            for (int i = 0; i < 32; i++) assert_true(y[i] == 0.0f);
        }
    }
}

static void sizes_are_checked(void **state) {
    (void)state;
    size_t size = 0;
    assert_ok(dtype_bytes(DTYPE_Q4_K, 512, &size));
    assert_int_equal(size, 288);
    assert_ok(dtype_bytes(DTYPE_F32, 0, &size));
    assert_int_equal(size, 0);
    assert_fails(MN_E_FORMAT, "300 values of type Q4_K do not fill blocks of 256", dtype_bytes(DTYPE_Q4_K, 300, &size));
    assert_fails(MN_E_FORMAT, "-1 values", dtype_bytes(DTYPE_F32, -1, &size));
    assert_fails(MN_E_FORMAT, "64 bits", dtype_bytes(DTYPE_F64, INT64_MAX, &size));
    assert_fails(MN_E_FORMAT, "64 bits", dtype_bytes(DTYPE_F32, (int64_t)1 << 61, &size));
    float x[256] = {0};
    uint8_t stored[256];
    assert_fails(MN_E_UNSUPPORTED, "cannot write type Q6_K", quantize_from_f32(DTYPE_Q6_K, stored, x, 256));
    assert_fails(MN_E_FORMAT, "31 values", quantize_from_f32(DTYPE_Q8_0, stored, x, 31));
}

static void the_table_is_consistent(void **state) {
    (void)state;
    for (dtype a = 0; a < N_DTYPES; a++) {
        assert_true(dtype_table[a].block > 0 && dtype_table[a].bytes > 0);
        for (dtype b = 0; b < a; b++) {
            assert_string_not_equal(dtype_table[a].name, dtype_table[b].name);
            assert_true(dtype_table[a].gguf_id < 0 || dtype_table[a].gguf_id != dtype_table[b].gguf_id);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequantisers_agree_with_the_vectors),
        cmocka_unit_test(eight_bit_floats_have_the_values_of_their_definition),
        cmocka_unit_test(doubles_are_rounded),
        cmocka_unit_test(quantisers_agree_with_the_reference),
        cmocka_unit_test(quantised_values_come_back),
        cmocka_unit_test(zeros_and_subnormal_values_are_stored_as_zeros),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(the_table_is_consistent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
