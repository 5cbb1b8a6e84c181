/* Packing: every stored type into every form, read back by the layout that linear.h describes and compared with the
 * dequantized rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "support/blocks.h"
#include "support/kernel_check.h"
#include "tensor/block_codes.h"

/* A stored matrix, packed; values[n][k] are the values of the rows, in the order of outputs. */
typedef struct packed {
    weight_layout layout;
    guarded weights;
    float *values;
} packed;

static int reversed(const void *user, int output) {
    return *(const int *)user - 1 - output;
}

static packed pack_stored(dtype type, weight_form form, int n, int k, const void *stored, size_t row_bytes,
                          bool permute) {
    packed m;
    weight_layout_make(&m.layout, form, type, n, k);
    m.weights = guarded_make(weight_layout_bytes(&m.layout), 0);
    m.values = mem_alloc((size_t)n * (size_t)k, sizeof(float));
    guarded scratch = guarded_make(pack_scratch_bytes(&m.layout), 0);
    assert_non_null(m.values);
    for (int i = 0; i < n; i++) {
        int row = permute ? n - 1 - i : i;
        dtype_table[type].to_f32(m.values + (size_t)i * (size_t)k, (const char *)stored + (size_t)row * row_bytes,
                                 (size_t)k);
    }
    /* In two calls, the second part first. */
    int middle = m.layout.n_panels / 2;
    const stored_matrix from = {
        .type = type, .data = stored, .row_bytes = row_bytes, .row_of = permute ? reversed : NULL, .user = &n};
    weight_pack(m.weights.data, &m.layout, &from, middle, m.layout.n_panels, scratch.data);
    weight_pack(m.weights.data, &m.layout, &from, 0, middle, scratch.data);
    guarded_free(&scratch);
    guarded_check(&m.weights, "packed weights");
    return m;
}

static packed pack_random(uint64_t *seed, dtype type, weight_form form, int n, int k, double largest, bool permute) {
    size_t row_bytes;
    assert_ok(dtype_bytes(type, k, &row_bytes));
    size_t stride = row_bytes + 3; /* rows need not touch or be aligned */
    uint8_t *stored = mem_alloc((size_t)n, stride);
    assert_non_null(stored);
    for (int i = 0; i < n; i++) random_blocks(seed, type, stored + (size_t)i * stride, (size_t)k, largest);
    packed m = pack_stored(type, form, n, k, stored, stride, permute);
    mem_free(stored);
    return m;
}

static void packed_free(packed *m) {
    guarded_free(&m->weights);
    mem_free(m->values);
}

/* ---- reading panels back, written from the description in linear.h ---- */

static const char *panel_of(const packed *m, int output) {
    return (const char *)m->weights.data + (size_t)(output / PANEL) * m->layout.panel_bytes;
}

static float dense_at(const packed *m, int output, int input) {
    const char *panel = panel_of(m, output);
    if (m->layout.form == WEIGHT_F32) return ((const float *)panel)[input * PANEL + output % PANEL];
    return f32_from_bf16(((const bf16 *)panel)[input / 2 * 2 * PANEL + output % PANEL * 2 + input % 2]);
}

typedef struct int_weight {
    float scale, min; /* times the factor */
    int code;         /* as stored */
} int_weight;

static int_weight int_at(const packed *m, int output, int input) {
    const weight_layout *l = &m->layout;
    const char *panel = panel_of(m, output);
    const int lane = output % PANEL, inputs = l->byte_scales ? 256 : 64, in_span = input % inputs;
    const size_t scale_bytes = (size_t)(inputs / l->group * PANEL) * (l->byte_scales ? 1 : 2);
    const size_t first = l->byte_scales ? 64 : 0, head = first + scale_bytes * (l->has_min ? 2 : 1);
    const char *span = panel + 64 + (size_t)(input / inputs) * (head + (size_t)(inputs * PANEL * l->bits / 8));
    const size_t index = (size_t)(in_span / l->group * PANEL + lane);
    const float factor = ((const float *)panel)[lane];
    int_weight w = {0};
    if (l->byte_scales) {
        const float super = f32_from_f16(((const f16 *)span)[lane]), min = f32_from_f16(((const f16 *)span)[16 + lane]);
        assert_true(factor == (output < l->n ? 1 : 0));
        w.scale = super * (float)((const int8_t *)span + first)[index];
        if (l->has_min) w.min = min * (float)((const int8_t *)span + first + scale_bytes)[index];
    } else {
        w.scale = f32_from_f16(((const f16 *)span)[index]) * factor;
        if (l->has_min) w.min = f32_from_f16(((const f16 *)(span + scale_bytes))[index]) * factor;
    }
    const uint8_t *codes = (const uint8_t *)span + head + in_span / 32 * 32 * PANEL * l->bits / 8;
    const int quad = in_span % 32 / 4, place = lane * 4 + in_span % 4;
    if (l->bits == 8) {
        w.code = codes[quad * PANEL * 4 + place];
    } else {
        const uint16_t *words = (const uint16_t *)(const void *)codes + lane * 2 + in_span % 4 / 2;
        const int pair = quad * 2 + in_span % 2;
        if (l->bits == 4) w.code = codes[quad / 2 * PANEL * 4 + place] >> (quad % 2 ? 4 : 0) & 15;
        if (l->bits == 5 && pair < 15) w.code = words[pair / 3 * 32] >> pair % 3 * 5 & 31;
        if (l->levels) w.code = l->levels[w.code];
        for (int j = 0; l->bits == 5 && pair == 15 && j < 5; j++) w.code |= words[j * 32] >> 15 << j;
        if (l->bits == 6) {
            const int in_half = pair % 8;
            words += pair / 8 * 3 * 32;
            if (in_half < 6) w.code = words[in_half / 2 * 32] >> in_half % 2 * 6 & 63;
            if (in_half == 6) w.code = words[0] >> 12 | (words[64] >> 12 & 3) << 4;
            if (in_half == 7) w.code = words[32] >> 12 | words[64] >> 14 << 4;
        }
    }
    return w;
}

/* ---- tests ---- */

/* Outputs that are columns, also of a matrix that is stored in another order. */
static void columns_pack_as_rows(void **state) {
    (void)state;
    enum { N = 21, K = 2 * 256 + 32, PAD = 3 };
    static const dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64, DTYPE_F8_E4M3};
    uint64_t seed = 7;
    for (int t = 0; t < 5; t++) {
        const size_t size = (size_t)dtype_table[types[t]].bytes, row_bytes = K * size, column_bytes = N * size + PAD;
        uint8_t *rows = mem_alloc(N, row_bytes), *columns = mem_alloc(K, column_bytes);
        assert_true(rows && columns);
        random_blocks(&seed, types[t], rows, (size_t)N * K, 1.0);
        for (size_t i = 0; i < N; i++) {
            for (size_t j = 0; j < K; j++)
                memcpy(columns + j * column_bytes + i * size, rows + i * row_bytes + j * size, size);
        }
        for (int form = WEIGHT_F32; form <= WEIGHT_INT; form++) {
            for (int permute = 0; permute < 2; permute++) {
                const int n = N;
                packed m = pack_stored(types[t], (weight_form)form, N, K, rows, row_bytes, permute);
                guarded again = guarded_make(weight_layout_bytes(&m.layout), 0),
                        scratch = guarded_make(pack_scratch_bytes(&m.layout), 0);
                const stored_matrix from = {.type = types[t],
                                            .data = columns,
                                            .row_bytes = column_bytes,
                                            .is_transposed = true,
                                            .row_of = permute ? reversed : NULL,
                                            .user = &n};
                weight_pack(again.data, &m.layout, &from, 0, m.layout.n_panels, scratch.data);
                assert_memory_equal(again.data, m.weights.data, weight_layout_bytes(&m.layout));
                guarded_free(&scratch);
                guarded_free(&again);
                packed_free(&m);
            }
        }
        mem_free(rows);
        mem_free(columns);
    }
}

/* Scales of rows, of the matrix and of blocks that end inside of a chunk give the bits of the products. */
static void scales_multiply_their_blocks(void **state) {
    (void)state;
    enum { N = 37, K = 256 + 96 };
    static const struct {
        size_t rows, columns;
        dtype type;
    } cases[] = {{N, K, DTYPE_F32}, {1, K, DTYPE_BF16}, {16, 128, DTYPE_F32}, {5, 7, DTYPE_F32}, {N, 300, DTYPE_F16}};
    uint64_t seed = 9;
    uint8_t codes[N * K];
    static float products[N * K];
    random_blocks(&seed, DTYPE_F8_E4M3, codes, (size_t)N * K, 448);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t down = (N + cases[i].rows - 1) / cases[i].rows,
                     across = (K + cases[i].columns - 1) / cases[i].columns,
                     size = (size_t)dtype_table[cases[i].type].bytes;
        uint8_t *scales = mem_alloc(down * across, size);
        float *values = mem_alloc(down * across, sizeof *values);
        assert_true(scales && values);
        random_blocks(&seed, cases[i].type, scales, down * across, 0.01);
        dtype_table[cases[i].type].to_f32(values, scales, down * across);
        for (size_t r = 0; r < N; r++) {
            for (size_t c = 0; c < K; c++)
                products[r * K + c] = (float)(float8_value(DTYPE_F8_E4M3, codes[r * K + c]) *
                                              (double)values[r / cases[i].rows * across + c / cases[i].columns]);
        }
        for (int form = WEIGHT_F32; form <= WEIGHT_INT; form++) {
            for (int permute = 0; permute < 2; permute++) {
                const int n = N;
                packed m = pack_stored(DTYPE_F32, (weight_form)form, N, K, products, K * sizeof(float), permute);
                guarded again = guarded_make(weight_layout_bytes(&m.layout), 0),
                        scratch = guarded_make(pack_scratch_bytes(&m.layout), 0);
                const stored_matrix from = {.type = DTYPE_F8_E4M3,
                                            .data = codes,
                                            .row_bytes = K,
                                            .row_of = permute ? reversed : NULL,
                                            .user = &n,
                                            .scales = {cases[i].type, scales, cases[i].rows, cases[i].columns, across}};
                weight_pack(again.data, &m.layout, &from, 0, m.layout.n_panels, scratch.data);
                assert_memory_equal(again.data, m.weights.data, weight_layout_bytes(&m.layout));
                guarded_free(&scratch);
                guarded_free(&again);
                packed_free(&m);
            }
        }
        mem_free(values);
        mem_free(scales);
    }
}

static void dense_forms_hold_the_rows(void **state) {
    (void)state;
    uint64_t seed = 1;
    FOR_COMPUTED_TYPES(type) {
        int block = dtype_table[type].block;
        for (int form = WEIGHT_F32; form <= WEIGHT_BF16; form++) {
            int n = 21, k = block == 1 ? 261 : 2 * block;
            packed m = pack_random(&seed, type, (weight_form)form, n, k, 1.0, type % 2);
            assert_int_equal(m.layout.form, form);
            assert_int_equal(m.layout.n_panels, 2);
            for (int i = 0; i < 32; i++) {
                for (int j = 0; j < k + (form == WEIGHT_BF16 ? k % 2 : 0); j++) {
                    float stored = i < n && j < k ? m.values[i * k + j] : 0;
                    float expected = form == WEIGHT_F32 ? stored : f32_from_bf16(bf16_from_f32(stored));
                    if (dense_at(&m, i, j) != expected) {
                        fail_msg("%s form %d [%d][%d]: %g, expected %g", dtype_table[type].name, form, i, j,
                                 dense_at(&m, i, j), expected);
                    }
                }
            }
            packed_free(&m);
        }
    }
}

static void check_int(const packed *m, dtype type) {
    const weight_layout *l = &m->layout;
    for (int i = 0; i < l->n_panels * PANEL; i++) {
        for (int j = 0; j < l->k; j++) {
            int_weight w = int_at(m, i, j);
            float stored = i < l->n ? m->values[i * l->k + j] : 0;
            assert_in_range(w.code, 0, dtype_codes_table[type].max_code);
            float value = w.scale * (float)(w.code - l->zero) + w.min;
            if (value != stored) {
                fail_msg("%s [%d][%d]: %.9g, expected %.9g", dtype_table[type].name, i, j, value, stored);
            }
        }
    }
}

static void block_types_become_codes(void **state) {
    (void)state;
    uint64_t seed = 2;
    FOR_COMPUTED_TYPES(type) {
        int block = dtype_table[type].block;
        if (block == 1) continue;
        /* 96 inputs end in half a span. Scales from the smallest to the largest that float16 has. */
        static const double largest[] = {1.0, 65000.0, 0x1p-13, 0x1p-22};
        for (int i = 0; i < 4; i++) {
            packed m = pack_random(&seed, type, WEIGHT_INT, 16 + 5 * i, block == 32 ? 96 : 512, largest[i], i % 2);
            assert_int_equal(m.layout.form, WEIGHT_INT);
            check_int(&m, type);
            packed_free(&m);
        }
    }
}

static void layouts_are_compact(void **state) {
    (void)state;
    weight_layout l;
    weight_layout_make(&l, WEIGHT_INT, DTYPE_Q4_0, 64, 2048);
    assert_int_equal(l.bits, 4);
    assert_int_equal(weight_layout_bytes(&l), 64u * (4 + 2048 / 2 + 2048 / 32 * 2));
    weight_layout_make(&l, WEIGHT_INT, DTYPE_Q6_K, 64, 2048);
    assert_int_equal(l.bits, 6);
    assert_int_equal(weight_layout_bytes(&l), 64u * (4 + 2048 * 6 / 8 + 2048 / 256 * 4 + 2048 / 16));
    weight_layout_make(&l, WEIGHT_INT, DTYPE_IQ4_XS, 64, 2048);
    assert_int_equal(weight_layout_bytes(&l), 64u * (4 + 2048 / 2 + 2048 / 256 * 4 + 2048 / 32));
    weight_layout_make(&l, WEIGHT_INT, DTYPE_Q5_0, 64, 2048);
    assert_int_equal(weight_layout_bytes(&l), 64u * (4 + 2048 * 5 / 8 + 2048 / 32 * 2));
    weight_layout_make(&l, WEIGHT_INT, DTYPE_Q4_K, 64, 2048);
    assert_int_equal(weight_layout_bytes(&l), 64u * (4 + 2048 / 2 + 2048 / 256 * 4 + 2048 / 32 * 2));
    weight_layout_make(&l, WEIGHT_INT, DTYPE_F32, 64, 2050);
    assert_int_equal(l.form, WEIGHT_BF16);
    weight_layout_make(&l, WEIGHT_BF16, DTYPE_F32, 1, 3);
    assert_int_equal(weight_layout_bytes(&l), 4 * 16 * 2);
}

static void plain_types_round_to_eight_bits(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (dtype type = DTYPE_F32; type <= DTYPE_BF16; type = (dtype)(type + 1)) {
        packed m = pack_random(&seed, type, WEIGHT_INT, 19, 160, 3.0, false);
        for (int i = 0; i < 19; i++) {
            for (int j = 0; j < 160; j++) {
                float largest = 0;
                for (int g = j / 32 * 32; g < j / 32 * 32 + 32; g++)
                    largest = fmaxf(largest, fabsf(m.values[i * 160 + g]));
                int_weight w = int_at(&m, i, j);
                double error = fabs((double)w.scale * (w.code - 128) - m.values[i * 160 + j]);
                if (error > largest / 127 * (0.5 + 0x1p-4)) fail_msg("[%d][%d]: error %g of %g", i, j, error, largest);
                assert_true(fabs(w.scale - largest / 127) <= largest / 127 * 0x1p-10);
            }
        }
        packed_free(&m);
    }
}

/* Rows whose scales lie far apart or outside float16's range keep their precision. */
static void wide_ranges_survive(void **state) {
    (void)state;
    enum { K = 64 };
    static const float sizes[][2] = {{1e30f, 1e25f}, {1e-30f, 1e-34f}, {65504.0f * 127, 1.0f}, {1.0f, 1e-7f}, {0, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        float row[K];
        for (int j = 0; j < K; j++) row[j] = sizes[i][j / 32] * (float)(j % 32 - 16) / 16;
        packed m = pack_stored(DTYPE_F32, WEIGHT_INT, 1, K, row, sizeof row, false);
        for (int j = 0; j < K; j++) {
            int_weight w = int_at(&m, 0, j);
            float value = w.scale * (float)(w.code - 128);
            double allowed = sizes[i][j / 32] / 127 * 0.55 + sizes[i][0] * 0x1p-32;
            if (!(fabs((double)value - row[j]) <= allowed))
                fail_msg("case %zu [%d]: %g, expected %g", i, j, value, row[j]);
        }
        packed_free(&m);
    }
}

/* The products of scales in a K block reach past float16 on both sides. */
static void large_products_do_not_overflow(void **state) {
    (void)state;
    uint8_t block[210];
    memset(block, 0x5A, sizeof block);
    for (int i = 0; i < 16; i++) block[192 + i] = (uint8_t)(i % 2 ? 127 : 1);
    f16 d = f16_from_f32(60000);
    memcpy(block + 208, &d, sizeof d);
    packed m = pack_stored(DTYPE_Q6_K, WEIGHT_INT, 1, 256, block, sizeof block, false);
    check_int(&m, DTYPE_Q6_K);
    assert_true(fabsf(int_at(&m, 0, 16).scale) > 65504);
    packed_free(&m);
}

static void infinite_weights_show(void **state) {
    (void)state;
    float row[64];
    for (int j = 0; j < 64; j++) row[j] = 1;
    row[3] = INFINITY;
    row[40] = NAN;
    packed m = pack_stored(DTYPE_F32, WEIGHT_INT, 1, 64, row, sizeof row, false);
    assert_true(!isfinite(int_at(&m, 0, 0).scale));
    assert_true(!isfinite(int_at(&m, 0, 32).scale));
    packed_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_pack_as_rows),      cmocka_unit_test(scales_multiply_their_blocks),
        cmocka_unit_test(dense_forms_hold_the_rows), cmocka_unit_test(block_types_become_codes),
        cmocka_unit_test(layouts_are_compact),       cmocka_unit_test(plain_types_round_to_eight_bits),
        cmocka_unit_test(wide_ranges_survive),       cmocka_unit_test(large_products_do_not_overflow),
        cmocka_unit_test(infinite_weights_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
