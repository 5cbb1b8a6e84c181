/* Quantized streams: sizes, the place of every code and side value, levels, rounding, decoding. What is expected is
 * computed here from the description in codes.h, not with its code.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/num.h"
#include "kernels/attend/codes.h"
#include "support/support.h"

static code_layout make(code_shape shape) {
    code_layout layout;
    code_layout_make(&layout, &shape);
    return layout;
}

static void sizes_are_as_described(void **state) {
    (void)state;
    static const struct {
        code_shape shape;
        size_t bytes;
    } cases[] = {
        /* scales, means, codes */
        {{true, 64, 128, 128, 4, CODE_CHANNEL, CODE_NORMAL, CODE_SIDE_LOG8, CODE_SIDE_NONE, CODE_SIDE_F16, NULL},
         64 + 128 + 4096},
        /* two groups a token, scales and shifts f16 */
        {{false, 64, 128, 32, 2, CODE_TOKEN, CODE_UNSIGNED, CODE_SIDE_F16, CODE_SIDE_F16, CODE_SIDE_NONE, NULL},
         512 + 512 + 2048},
        /* 5 tiles of 1 bit in a block of 8 */
        {{false, 80, 16, 80, 1, CODE_TOKEN, CODE_SIGNED, CODE_SIDE_LOG8, CODE_SIDE_NONE, CODE_SIDE_NONE, NULL},
         64 + 3 * 64},
        /* 20 tiles: 5 blocks of 2 bits and 3 of 1 bit */
        {{false, 80, 16, 80, 3, CODE_TOKEN, CODE_SIGNED, CODE_SIDE_LOG8, CODE_SIDE_NONE, CODE_SIDE_NONE, NULL},
         64 + 5 * 64 + 3 * 64},
        {{true, 16, 16, 16, 8, CODE_TOKEN, CODE_SIGNED, CODE_SIDE_F32, CODE_SIDE_F32, CODE_SIDE_F32, NULL},
         64 + 64 + 64 + 256},
        {{true, 16, 16, 16, 0, CODE_TOKEN, CODE_SIGNED, CODE_SIDE_F32, CODE_SIDE_NONE, CODE_SIDE_NONE, NULL}, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        code_layout layout = make(cases[i].shape);
        assert_int_equal(layout.bytes, cases[i].bytes);
    }
    uint8_t bits[64];
    memset(bits, 8, 8), memset(bits + 8, 5, 12), memset(bits + 20, 2, 40), memset(bits + 60, 0, 4);
    code_layout mixed = make((code_shape){true, 64, 32, 32, 0, CODE_CHANNEL, CODE_NORMAL, CODE_SIDE_LOG8,
                                          CODE_SIDE_NONE, CODE_SIDE_F16, bits});
    static const code_run runs[] = {{0, 8, 8, 192}, {8, 20, 5, 192 + 4 * 64}, {20, 60, 2, 192 + 4 * 64 + 3 * 64 + 64}};
    assert_int_equal(mixed.n_runs, 4);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mixed.runs[i].begin, runs[i].begin);
        assert_int_equal(mixed.runs[i].end, runs[i].end);
        assert_int_equal(mixed.runs[i].bits, runs[i].bits);
        assert_int_equal(mixed.runs[i].offset, runs[i].offset);
    }
    assert_int_equal(mixed.runs[3].bits, 0);
    assert_int_equal(mixed.bytes, 192 + 4 * 64 + 3 * 64 + 64 + 5 * 64);
}

/* ---- layouts at random ---- */

static int divisor(uint64_t *state, int n) {
    for (;;) {
        int d = 1 + (int)(test_random(state) % (uint64_t)n);
        if (n % d == 0) return d;
    }
}

/* Keys have mixed bits half of the time. */
static code_layout random_layout(uint64_t *state) {
    static const int dims[] = {16, 32, 48, 64, 80, 128, 256}, pages[] = {16, 32, 64, 128};
    static uint8_t bits[512];
    code_shape shape = {.is_key = test_random(state) % 2, .dim = dims[test_random(state) % 7]};
    shape.page_tokens = pages[test_random(state) % 4];
    shape.axis = (code_axis)(test_random(state) % 2);
    shape.group = divisor(state, shape.axis == CODE_TOKEN ? shape.dim : shape.page_tokens);
    shape.grid = (code_grid)(test_random(state) % 3);
    shape.scale = (code_side)(1 + test_random(state) % 3);
    shape.shift = (code_side)(test_random(state) % 3);
    do shape.bits = (int)(test_random(state) % 9);
    while (shape.bits == 7 && shape.grid == CODE_UNSIGNED);
    if (shape.is_key) {
        shape.mean = (code_side)(test_random(state) % 3);
        if (test_random(state) % 2) {
            int b = 8;
            for (int d = 0; d < shape.dim; d++) {
                if (d % 4 == 0 && d > 0) b -= (int)(test_random(state) % 8 * 8 / (uint64_t)shape.dim / 3);
                if (d % 4 == 0 && b > 0 && test_random(state) % 3 == 0) b--;
                if (b < 0) b = 0;
                if (b == 7 && shape.grid == CODE_UNSIGNED) b = 6;
                bits[d] = (uint8_t)b;
            }
            shape.bits_of_dim = bits;
        }
    }
    return make(shape);
}

static int bits_at(const code_layout *layout, int token, int d) {
    int step = layout->is_key ? d : token;
    for (int r = 0; r < layout->n_runs; r++) {
        if (step >= layout->runs[r].begin && step < layout->runs[r].end) return layout->runs[r].bits;
    }
    fail_msg("no run holds step %d", step);
    return 0;
}

/* Bit number `bit` of the code of (token, d): its byte in the stream and its place in the byte, from the header's
 * words. */
static size_t bit_place(const code_layout *layout, int token, int d, int bit, int *in_byte) {
    int step = layout->is_key ? d : token, lane = layout->is_key ? token : d;
    int n_lanes = layout->is_key ? layout->page_tokens : layout->dim;
    const code_run *run = layout->runs;
    while (step >= run->end) run++;
    size_t n_tiles = (size_t)(run->end - run->begin) / 4 * (size_t)n_lanes / 16;
    size_t tile = (size_t)((step - run->begin) / 4 * (n_lanes / 16) + lane / 16), at = run->offset;
    int low = 0;
    for (int width = 8; width; width /= 2) {
        if (!(run->bits & width)) continue;
        size_t of_block = (size_t)(8 / width), n_blocks = (n_tiles + of_block - 1) / of_block;
        if (bit < low + width) {
            *in_byte = (int)(tile % of_block) * width + bit - low;
            return at + tile / of_block * 64 + (size_t)(lane % 16 * 4 + step % 4);
        }
        low += width, at += n_blocks * 64;
    }
    fail_msg("bit %d of %d", bit, run->bits);
    return 0;
}

static void every_code_is_where_the_layout_says(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 120; i++) {
        code_layout layout = random_layout(&seed);
        int P = layout.page_tokens, dim = layout.dim;
        /* Tokens slot .. slot + n - 1 are written over random bytes; a copy is changed bit by bit. */
        int slot = (int)(test_random(&seed) % (uint64_t)P), n = 1 + (int)(test_random(&seed) % (uint64_t)(P - slot));
        char *got = mem_alloc(layout.bytes + 64, 1), *expected = mem_alloc(layout.bytes + 64, 1);
        uint8_t *codes = mem_alloc((size_t)(n * dim), 1), *back = mem_alloc((size_t)(n * dim), 1);
        for (size_t b = 0; b < layout.bytes + 64; b++) got[b] = expected[b] = (char)test_random(&seed);
        for (int t = 0; t < n; t++) {
            for (int d = 0; d < dim; d++) {
                int bits = bits_at(&layout, slot + t, d);
                uint8_t code = codes[t * dim + d] = (uint8_t)(test_random(&seed) % (1u << bits));
                for (int bit = 0; bit < bits; bit++) {
                    int in_byte = 0;
                    size_t at = bit_place(&layout, slot + t, d, bit, &in_byte);
                    assert_in_range(at, layout.mean_offset, layout.bytes - 1);
                    unsigned old = (unsigned char)expected[at] & ~(1u << in_byte);
                    expected[at] = (char)(old | (unsigned)(code >> bit & 1) << in_byte);
                }
            }
        }
        code_pack(&layout, got, codes, slot, n);
        assert_memory_equal(got, expected, layout.bytes + 64);
        memset(back, 0xEE, (size_t)(n * dim));
        code_unpack(&layout, got, back, slot, n);
        assert_memory_equal(back, codes, (size_t)(n * dim));
        mem_free(got), mem_free(expected), mem_free(codes), mem_free(back);
    }
}

static void tokens_packed_in_parts_are_tokens_packed_at_once(void **state) {
    (void)state;
    uint64_t seed = 2;
    for (int i = 0; i < 60; i++) {
        code_layout layout = random_layout(&seed);
        int P = layout.page_tokens, dim = layout.dim;
        char *parts = mem_alloc(layout.bytes, 1), *whole = mem_alloc(layout.bytes, 1);
        uint8_t *codes = mem_alloc((size_t)(P * dim), 1), *back = mem_alloc((size_t)(P * dim), 1);
        for (int j = 0; j < P * dim; j++) {
            codes[j] = (uint8_t)(test_random(&seed) % (1u << bits_at(&layout, j / dim, j % dim)));
        }
        code_pack(&layout, whole, codes, 0, P);
        for (int slot = 0, n; slot < P; slot += n) {
            n = 1 + (int)(test_random(&seed) % (uint64_t)(P - slot));
            code_pack(&layout, parts, codes + slot * dim, slot, n);
        }
        assert_memory_equal(parts, whole, layout.bytes);
        for (int slot = 0; slot < P; slot++) code_unpack(&layout, whole, back + slot * dim, slot, 1);
        assert_memory_equal(back, codes, (size_t)(P * dim));
        mem_free(parts), mem_free(whole), mem_free(codes), mem_free(back);
    }
}

/* ---- side data ---- */

static size_t side_bytes(code_side side) {
    return side == CODE_SIDE_F32 ? 4 : side == CODE_SIDE_F16 ? 2 : 1;
}

static float side_value(code_side side, const char *stored, size_t i) {
    float x = 0;
    f16 half;
    if (side == CODE_SIDE_F32) memcpy(&x, stored + 4 * i, 4);
    if (side == CODE_SIDE_F16) memcpy(&half, stored + 2 * i, 2), x = f32_from_f16(half);
    if (side == CODE_SIDE_LOG8 && stored[i]) x = (float)exp2(((unsigned char)stored[i] - 160) / 8.0);
    return x;
}

static void every_side_value_is_where_the_layout_says(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 80; i++) {
        code_layout layout = random_layout(&seed);
        int P = layout.page_tokens, dim = layout.dim, group = layout.group;
        bool by_token = layout.axis == CODE_TOKEN;
        char *stream = mem_alloc(layout.bytes, 1), *before = mem_alloc(layout.bytes, 1);
        float *x[2], *y[2], means[512], back[512];
        for (int j = 0; j < 2; j++) x[j] = mem_alloc((size_t)(P * dim), 4), y[j] = mem_alloc((size_t)(P * dim), 4);
        for (size_t b = 0; b < layout.bytes; b++) stream[b] = before[b] = 1;
        int slot = (int)(test_random(&seed) % (uint64_t)P), n = 1 + (int)(test_random(&seed) % (uint64_t)(P - slot));
        if (!by_token) slot = slot / group * group, n = (n + group - 1) / group * group;
        if (slot + n > P) n = P - slot;
        int rows = by_token ? dim / group : n / group, columns = by_token ? n : dim;
        for (int j = 0; j < rows * columns; j++) {
            x[0][j] = (float)test_uniform(&seed, 0.001, 2), x[1][j] = (float)test_uniform(&seed, -2, 2);
        }
        for (int d = 0; d < dim; d++) means[d] = (float)test_uniform(&seed, -2, 2);
        code_put_side(&layout, stream, x[0], x[1], slot, n);
        code_put_mean(&layout, stream, means);
        code_get_side(&layout, stream, y[0], y[1], slot, n);
        code_get_mean(&layout, stream, back);
        const size_t offsets[] = {layout.scale_offset, layout.shift_offset};
        const code_side sides[] = {layout.scale, layout.shift};
        for (int j = 0; j < 2; j++) {
            for (int r = 0; r < rows; r++) {
                for (int c = 0; c < columns; c++) {
                    size_t at = by_token ? (size_t)(r * P + slot + c) : (size_t)((slot / group + r) * dim + c);
                    float expected = sides[j] ? code_side_round(sides[j], x[j][r * columns + c]) : 0;
                    assert_true(y[j][r * columns + c] == expected);
                    if (!sides[j]) continue;
                    assert_true(side_value(sides[j], stream + offsets[j], at) == expected);
                    memcpy(before + offsets[j] + at * side_bytes(sides[j]),
                           stream + offsets[j] + at * side_bytes(sides[j]), side_bytes(sides[j]));
                }
            }
        }
        for (int d = 0; d < dim; d++) {
            float expected = layout.mean ? code_side_round(layout.mean, means[d]) : 0;
            assert_true(back[d] == expected);
            if (layout.mean) assert_true(side_value(layout.mean, stream + layout.mean_offset, (size_t)d) == expected);
        }
        if (layout.mean) {
            memcpy(before + layout.mean_offset, stream + layout.mean_offset, side_bytes(layout.mean) * (size_t)dim);
        }
        assert_memory_equal(stream, before, layout.bytes); /* nothing else has changed */
        mem_free(stream), mem_free(before);
        for (int j = 0; j < 2; j++) mem_free(x[j]), mem_free(y[j]);
    }
}

static void side_values_are_rounded_to_the_nearest(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int i = 0; i < 20000; i++) {
        float x = (float)exp2(test_uniform(&seed, -22, 13));
        double best = 1e30, got = (double)code_side_round(CODE_SIDE_LOG8, x);
        double largest = exp2((255 - 160) / 8.0), smallest = exp2((1 - 160) / 8.0);
        for (int n = 1; n < 256; n++) best = fmin(best, fabs(log2((double)x) - (n - 160) / 8.0));
        if ((double)x < smallest / 2) {
            assert_true(got == 0);
        } else if ((double)x < smallest) {
            assert_true(fabs(got / smallest - 1) < 1e-7);
        } else if ((double)x > largest) {
            assert_true(fabs(got / largest - 1) < 1e-7);
        } else {
            assert_true(fabs(log2((double)x) - log2(got)) <= best + 1e-6);
        }
        assert_true(code_side_round(CODE_SIDE_LOG8, (float)got) == (float)got);
        assert_true(code_side_round(CODE_SIDE_F16, x) == f32_from_f16(f16_from_f32(x)));
        assert_true(code_side_round(CODE_SIDE_F32, -x) == -x);
    }
    for (int n = 0; n < 256; n++) {
        float power = n ? (float)exp2((n - 160) / 8.0) : 0;
        assert_true(code_side_round(CODE_SIDE_LOG8, power) == power);
    }
    assert_true(code_side_round(CODE_SIDE_LOG8, -1) == 0 && code_side_round(CODE_SIDE_LOG8, NAN) == 0);
    assert_true(code_side_round(CODE_SIDE_LOG8, INFINITY) == (float)exp2(95 / 8.0));
    assert_true(code_side_round(CODE_SIDE_F16, 1e9f) == 65504 && code_side_round(CODE_SIDE_F16, -1e9f) == -65504);
    assert_true(code_side_round(CODE_SIDE_NONE, 3) == 0);
}

/* ---- levels ---- */

static double density(double x) {
    return exp(-x * x / 2) / sqrt(2 * acos(-1));
}
static double tail(double x) {
    return erfc(x / sqrt(2)) / 2;
}

/* Points of the positive half by Lloyd's iteration. */
static void lloyd(double *points, int n) {
    for (int i = 0; i < n; i++) points[i] = (i + 0.5) / n * 2;
    for (double moved = 1; moved > 1e-13;) {
        moved = 0;
        double low = 0;
        for (int i = 0; i < n; i++) {
            double high = i + 1 < n ? (points[i] + points[i + 1]) / 2 : INFINITY;
            double mean = (density(low) - (i + 1 < n ? density(high) : 0)) / (tail(low) - (i + 1 < n ? tail(high) : 0));
            moved = fmax(moved, fabs(mean - points[i]));
            points[i] = mean;
            low = high;
        }
    }
}

static void normal_levels_are_those_of_lloyd(void **state) {
    (void)state;
    for (int bits = 1; bits <= 5; bits++) {
        double points[16];
        int n = 1 << (bits - 1);
        lloyd(points, n);
        const int8_t *levels = code_levels(CODE_NORMAL, bits);
        for (int i = 0; i < n; i++) {
            assert_int_equal(levels[n + i], lrint(127 * points[i] / points[n - 1]));
            assert_int_equal(levels[n - 1 - i], -levels[n + i]);
        }
    }
}

static void even_levels_are_as_described(void **state) {
    (void)state;
    for (int bits = 0; bits <= 8; bits++) {
        for (int code = 0; code < 1 << bits; code++) {
            int is_signed = bits == 0 ? 0 : bits == 8 ? code - 128 : 2 * code - (1 << bits) + 1;
            assert_int_equal(code_levels(CODE_SIGNED, bits)[code], is_signed);
            if (bits > 5 || bits == 0) assert_int_equal(code_levels(CODE_NORMAL, bits)[code], is_signed);
            if (bits != 7) assert_int_equal(code_levels(CODE_UNSIGNED, bits)[code], bits == 8 ? code - 128 : code);
        }
    }
}

static void decoding_is_scale_times_level_plus_shift_plus_mean(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < 60; i++) {
        code_layout layout = random_layout(&seed);
        int P = layout.page_tokens, dim = layout.dim, group = layout.group;
        bool by_token = layout.axis == CODE_TOKEN;
        size_t n_sides = (size_t)(P * dim / group);
        char *stream = mem_alloc(layout.bytes, 1);
        float *scales = mem_alloc(n_sides, 4), *shifts = mem_alloc(n_sides, 4), *x = mem_alloc((size_t)(P * dim), 4);
        float means[512];
        uint8_t *codes = mem_alloc((size_t)(P * dim), 1);
        for (size_t b = 0; b < layout.bytes; b++) stream[b] = (char)test_random(&seed);
        for (size_t j = 0; j < n_sides; j++) {
            scales[j] = (float)test_uniform(&seed, 0.01, 1), shifts[j] = (float)test_uniform(&seed, -1, 1);
        }
        for (int d = 0; d < dim; d++) means[d] = (float)test_uniform(&seed, -1, 1);
        code_put_side(&layout, stream, scales, shifts, 0, P);
        code_put_mean(&layout, stream, means);
        code_unpack(&layout, stream, codes, 0, P);
        int slot = (int)(test_random(&seed) % (uint64_t)P), n = 1 + (int)(test_random(&seed) % (uint64_t)(P - slot));
        code_decode(&layout, stream, x, slot, n);
        for (int t = slot; t < slot + n; t++) {
            for (int d = 0; d < dim; d++) {
                size_t side = by_token ? (size_t)(d / group * P + t) : (size_t)(t / group * dim + d);
                double scale = (double)code_side_round(layout.scale, scales[side]);
                double shift = (double)code_side_round(layout.shift, shifts[side]);
                double mean = (double)code_side_round(layout.mean, means[d]);
                int bits = bits_at(&layout, t, d), level = code_levels(layout.grid, bits)[codes[t * dim + d]];
                double expected = scale * level + shift + mean;
                double allowed = 3 * 0x1p-24 * (fabs(scale * level) + fabs(shift) + fabs(mean));
                assert_true(fabs((double)x[(t - slot) * dim + d] - expected) <= allowed);
            }
        }
        mem_free(stream), mem_free(scales), mem_free(shifts), mem_free(x), mem_free(codes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_as_described),
        cmocka_unit_test(every_code_is_where_the_layout_says),
        cmocka_unit_test(tokens_packed_in_parts_are_tokens_packed_at_once),
        cmocka_unit_test(every_side_value_is_where_the_layout_says),
        cmocka_unit_test(side_values_are_rounded_to_the_nearest),
        cmocka_unit_test(normal_levels_are_those_of_lloyd),
        cmocka_unit_test(even_levels_are_as_described),
        cmocka_unit_test(decoding_is_scale_times_level_plus_shift_plus_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
