/* Packing of stored matrices into panels.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linear/linear.h"

#include <math.h>

#include "kernels/linear/linear_int.h"
#include "kernels/linear/linear_rows.h"
#include "tensor/block_codes.h"

enum { CHUNK = 256, LINE = 64 }; /* CHUNK: inputs transposed at a time, a multiple of every block length */

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* The codes to which a plain type is rounded. */
static const dtype_codes *codes_of(dtype type) {
    return dtype_codes_table[type].decode ? &dtype_codes_table[type] : &dtype_codes_table[DTYPE_Q8_0];
}

void weight_layout_make(weight_layout *out, weight_form wanted, dtype type, int n, int k) {
    *out = (weight_layout){.form = wanted, .n = n, .k = k, .n_panels = (int)ceil_div(n, PANEL)};
    if (wanted == WEIGHT_INT && k % ACT_GROUP != 0) out->form = WEIGHT_BF16;
    size_t inputs = (size_t)k;
    switch (out->form) {
    case WEIGHT_F32: out->panel_bytes = inputs * PANEL * sizeof(float); return;
    case WEIGHT_BF16: out->panel_bytes = round_up(inputs, 2) * PANEL * sizeof(bf16); return;
    case WEIGHT_INT: break;
    }
    const dtype_codes *codes = codes_of(type);
    out->bits = codes->levels || codes->max_code < 16 ? 4 : codes->max_code < 32 ? 5 : codes->max_code < 64 ? 6 : 8;
    out->levels = codes->levels;
    out->group = codes->group;
    out->zero = codes->zero;
    out->has_min = codes->has_min;
    out->byte_scales = codes->factors != NULL;
    const int_shape shape = int_shape_of(out);
    out->panel_bytes = INT_FACTOR_BYTES + (size_t)ceil_div(k, shape.inputs) * shape.span;
}

size_t weight_layout_bytes(const weight_layout *layout) {
    return (size_t)layout->n_panels * layout->panel_bytes;
}

/* The same for every form: a chunk of 16 rows as float32 and as bf16 (dense forms), or one row as float32, codes,
 * scales and mins (WEIGHT_INT). */
size_t pack_scratch_bytes(const weight_layout *layout) {
    if (layout->form != WEIGHT_INT) return (size_t)PANEL * CHUNK * (sizeof(float) + sizeof(bf16));
    size_t k = (size_t)layout->k, groups = k / (size_t)layout->group;
    return round_up(k * sizeof(float) + 2 * groups * sizeof(float) + k, LINE);
}

/* A stored matrix, addressed by output. */
typedef struct source {
    const stored_matrix *stored;
    const dtype_info *type;
    const dtype_codes *codes; /* NULL for plain types */
} source;

static size_t row_of_output(const source *from, int output) {
    const stored_matrix *m = from->stored;
    return (size_t)(m->row_of ? m->row_of(m->user, output) : output);
}

static const uint8_t *source_row(const source *from, int output) {
    return (const uint8_t *)from->stored->data + row_of_output(from, output) * from->stored->row_bytes;
}

/* Multiplies inputs begin..begin+n of an output by the scales of their blocks. */
static void multiply(float *x, const stored_scales *scales, size_t row, int begin, int n) {
    const dtype_info *type = &dtype_table[scales->type];
    const uint8_t *of_row = (const uint8_t *)scales->data + row / scales->rows * scales->stride * (size_t)type->bytes;
    const size_t end = (size_t)begin + (size_t)n;
    for (size_t at = (size_t)begin; at < end;) {
        const size_t block = at / scales->columns, next = (block + 1) * scales->columns;
        float scale;
        type->to_f32(&scale, of_row + block * (size_t)type->bytes, 1);
        for (; at < next && at < end; at++) x[at - (size_t)begin] *= scale;
    }
}

/* Inputs begin..begin+n of an output as float32. */
static void read_inputs(float *x, const source *from, int output, int begin, int n) {
    const size_t size = (size_t)from->type->bytes, row_bytes = from->stored->row_bytes;
    if (!from->stored->is_transposed) {
        from->type->to_f32(x, source_row(from, output) + (size_t)(begin / from->type->block) * size, (size_t)n);
        if (from->stored->scales.data) multiply(x, &from->stored->scales, row_of_output(from, output), begin, n);
        return;
    }
    uint8_t column[CHUNK * sizeof(double)];
    const uint8_t *at = (const uint8_t *)from->stored->data + row_of_output(from, output) * size;
    for (int end = begin + n; begin < end; begin += CHUNK, x += CHUNK) {
        const int part = end - begin < CHUNK ? end - begin : CHUNK;
        for (int i = 0; i < part; i++) memcpy(column + (size_t)i * size, at + (size_t)(begin + i) * row_bytes, size);
        from->type->to_f32(x, column, (size_t)part);
    }
}

/* ---- float32 and bf16 ---- */

/* Inputs begin..begin+n of the panel's rows as float32, [16][CHUNK]; rows beyond the last output are zero. */
static void read_chunk(float *x, const source *from, const weight_layout *layout, int panel, int begin, int n) {
    for (int lane = 0; lane < PANEL; lane++) {
        int output = panel * PANEL + lane;
        if (output < layout->n) {
            read_inputs(x + lane * CHUNK, from, output, begin, n);
        } else {
            memset(x + lane * CHUNK, 0, (size_t)n * sizeof *x);
        }
    }
}

/* The kernels read 32-bit units (a float, a pair of bf16) with the 16 outputs adjacent. */
static void transpose_units(char *out, const char *in, size_t in_row_bytes, int n) {
    for (int i = 0; i < n; i++) {
        for (int lane = 0; lane < PANEL; lane++) {
            memcpy(out + ((size_t)i * PANEL + (size_t)lane) * 4, in + (size_t)lane * in_row_bytes + (size_t)i * 4, 4);
        }
    }
}

static void pack_dense(char *out, const weight_layout *layout, const source *from, int panel, void *scratch) {
    float *x = scratch;
    bf16 *rounded = (bf16 *)(x + PANEL * CHUNK);
    for (int begin = 0; begin < layout->k; begin += CHUNK) {
        int n = layout->k - begin < CHUNK ? layout->k - begin : CHUNK;
        read_chunk(x, from, layout, panel, begin, n);
        if (layout->form == WEIGHT_F32) {
            transpose_units(out + (size_t)begin * PANEL * sizeof(float), (const char *)x, CHUNK * sizeof(float), n);
            continue;
        }
        for (int lane = 0; lane < PANEL; lane++) {
            bf16 *row = rounded + lane * CHUNK;
            for (int i = 0; i < n; i++) row[i] = bf16_from_f32(x[lane * CHUNK + i]);
            if (n % 2 != 0) row[n] = 0;
        }
        transpose_units(out + (size_t)begin * PANEL * sizeof(bf16), (const char *)rounded, CHUNK * sizeof(bf16),
                        (n + 1) / 2);
    }
}

/* ---- integer codes ---- */

/* The data of one output, from which its panel lane is made. */
typedef struct int_row {
    float *x;             /* [k], plain types only */
    float *scales, *mins; /* [k / group] */
    uint8_t *codes;       /* [k] */
} int_row;

/* The power of two by which scales are multiplied before they become f16: the largest is then in 2^15..65504. */
static int scale_exponent(const float *scales, const float *mins, int n) {
    float largest = 0;
    for (int i = 0; i < n; i++) {
        if (isfinite(scales[i])) largest = fmaxf(largest, fabsf(scales[i]));
        if (mins && isfinite(mins[i])) largest = fmaxf(largest, fabsf(mins[i]));
    }
    if (largest == 0) return 0;
    int exponent;
    float fraction = frexpf(largest, &exponent); /* 0.5..1 */
    int up = 16 - exponent - (fraction * 0x1p16f > 65504.0f ? 1 : 0);
    return up < 126 ? up : 126;
}

static void put_scales(char *span, const weight_layout *layout, size_t offset, const float *values, int lane,
                       float power) {
    int_shape shape = int_shape_of(layout);
    int per_span = shape.inputs / layout->group;
    for (int g = 0; g < layout->k / layout->group; g++) {
        f16 value = f16_from_f32(values[g] * power);
        char *at = span + (size_t)(g / per_span) * shape.span + offset;
        memcpy(at + (size_t)(g % per_span * PANEL + lane) * sizeof value, &value, sizeof value);
    }
}

/* Byte scales: one span for each super-block. */
static void put_factors(char *span, const weight_layout *layout, const source *from, const uint8_t *block, int lane) {
    const int_shape shape = int_shape_of(layout);
    const int groups = shape.inputs / layout->group;
    for (int begin = 0; begin < layout->k; begin += shape.inputs, span += shape.span, block += from->type->bytes) {
        block_factors factors;
        from->codes->factors(block, &factors);
        memcpy(span + (size_t)lane * sizeof(f16), &factors.scale, sizeof(f16));
        memcpy(span + (size_t)(PANEL + lane) * sizeof(f16), &factors.min, sizeof(f16));
        for (int g = 0; g < groups; g++) {
            memcpy(span + shape.scales + (size_t)(g * PANEL + lane), &factors.scales[g], 1);
            if (layout->has_min) memcpy(span + shape.mins + (size_t)(g * PANEL + lane), &factors.mins[g], 1);
        }
    }
}

/* The input of a run of 32, or 16, that a pair (linear.h) has in its lower part; the upper part has the second after
 * it. */
static int pair_input(int pair) {
    return pair / 2 * 4 + pair % 2;
}

/* The words of the pairs of codes of 32 inputs (5 bits), or 16 (6 bits): one part, that of the lower inputs or the
 * upper. */
static int make_words(uint16_t *words, const uint8_t *codes, int bits, int part) {
    unsigned pairs[16];
    const int n_words = bits == 6 ? 3 : 5, n_pairs = bits == 6 ? 8 : 16, in_word = 16 / bits;
    for (int p = 0; p < n_pairs; p++) pairs[p] = codes[pair_input(p) + 2 * part];
    for (int j = 0; j < n_words; j++) {
        unsigned word = 0;
        for (int i = 0; i < in_word; i++) word |= pairs[in_word * j + i] << (bits * i);
        if (bits == 5) word |= (pairs[15] >> j & 1) << 15;
        if (bits == 6 && j < 2) word |= (pairs[6 + j] & 15) << 12;
        if (bits == 6 && j == 2) word |= (pairs[6] >> 4) << 12 | (pairs[7] >> 4) << 14;
        words[j] = (uint16_t)word;
    }
    return n_words;
}

/* One output's codes of 32 inputs; out: its 32 bits of the first word. */
static void put_block(char *out, const uint8_t *codes, int bits) {
    if (bits == 4 || bits == 8) {
        for (int i = 0; i < ACT_GROUP; i += 32 / bits, out += PANEL * 4) {
            uint32_t quad, next;
            memcpy(&quad, codes + i, sizeof quad);
            if (bits == 4) {
                memcpy(&next, codes + i + 4, sizeof next);
                quad |= next << 4;
            }
            memcpy(out, &quad, sizeof quad);
        }
        return;
    }
    for (int begin = 0; begin < ACT_GROUP; begin += bits == 6 ? ACT_SUM_GROUP : ACT_GROUP) {
        uint16_t parts[2][5];
        int n = 0;
        for (int part = 0; part < 2; part++) n = make_words(parts[part], codes + begin, bits, part);
        for (int j = 0; j < n; j++, out += PANEL * 4) {
            const uint32_t word = parts[0][j] | (uint32_t)parts[1][j] << 16;
            memcpy(out, &word, sizeof word);
        }
    }
}

/* Codes become the numbers of their levels. */
static void number_levels(uint8_t *codes, const weight_layout *layout) {
    uint8_t numbers[256] = {0};
    for (int i = 0; i < 16; i++) numbers[layout->levels[i]] = (uint8_t)i;
    for (int i = 0; i < layout->k; i++) codes[i] = numbers[codes[i]];
}

static void put_codes(char *span, const weight_layout *layout, const uint8_t *codes, int lane) {
    const int_shape shape = int_shape_of(layout);
    for (int begin = 0; begin < layout->k; begin += ACT_GROUP) {
        char *block = span + (size_t)(begin / shape.inputs) * shape.span + shape.codes +
                      (size_t)(begin % shape.inputs / ACT_GROUP) * shape.block;
        put_block(block + (size_t)lane * 4, codes + begin, layout->bits);
    }
}

static void read_blocks(int_row *row, const source *from, const weight_layout *layout, const uint8_t *block) {
    int groups = from->type->block / layout->group;
    for (int i = 0; i < layout->k / from->type->block; i++, block += from->type->bytes) {
        from->codes->decode(block, row->codes + i * from->type->block, row->scales + i * groups,
                            row->mins + i * groups);
    }
}

/* Scales of a plain row: the largest magnitude of each group becomes code 127. A NaN or infinity becomes the scale. */
static void plain_scales(int_row *row, int k) {
    for (int g = 0; g < k / ACT_GROUP; g++) {
        row->scales[g] = rows_largest(row->x + g * ACT_GROUP, ACT_GROUP) / 127.0f;
    }
}

/* Codes of a plain row for the scales as the kernels read them. */
static void plain_codes(int_row *row, const weight_layout *layout, float power) {
    const float round = 0x1.8p23f; /* x + round has the nearest integer, ties to even, in its low bits */
    for (int g = 0; g < layout->k / ACT_GROUP; g++) {
        float scale = f32_from_f16(f16_from_f32(row->scales[g] * power));
        bool ordinary = scale > 0 && isfinite(scale);
        float divisor = ordinary ? scale : 1, factor = ordinary ? power : 0;
        const float *x = row->x + g * ACT_GROUP;
        uint8_t *codes = row->codes + g * ACT_GROUP;
        for (int i = 0; i < ACT_GROUP; i++) {
            float q = x[i] * factor / divisor;
            q = q > 127 ? 127 : q;
            q = q < -127 ? -127 : q;
            codes[i] = (uint8_t)(f32_bits(q + round) - f32_bits(round) + (uint32_t)layout->zero);
        }
    }
}

static void pack_int_lane(char *panel, const weight_layout *layout, const source *from, int output, int_row row) {
    int lane = output % PANEL, groups = layout->k / layout->group;
    if (from->codes) {
        read_blocks(&row, from, layout, source_row(from, output));
    } else {
        read_inputs(row.x, from, output, 0, layout->k);
        plain_scales(&row, layout->k);
    }
    int up = layout->byte_scales ? 0 : scale_exponent(row.scales, layout->has_min ? row.mins : NULL, groups);
    float power = ldexpf(1, up), factor = ldexpf(1, -up);
    if (!from->codes) plain_codes(&row, layout, power);
    memcpy(panel + (size_t)lane * sizeof factor, &factor, sizeof factor);
    char *span = panel + INT_FACTOR_BYTES;
    if (layout->byte_scales) {
        put_factors(span, layout, from, source_row(from, output), lane);
    } else {
        put_scales(span, layout, 0, row.scales, lane, power);
        if (layout->has_min) put_scales(span, layout, int_shape_of(layout).mins, row.mins, lane, power);
    }
    if (layout->levels) number_levels(row.codes, layout);
    put_codes(span, layout, row.codes, lane);
}

static void pack_int(char *out, const weight_layout *layout, const source *from, int panel, void *scratch) {
    int groups = layout->k / layout->group;
    int_row row;
    row.x = scratch;
    row.scales = row.x + layout->k;
    row.mins = row.scales + groups;
    row.codes = (uint8_t *)(row.mins + groups);
    memset(out, 0, layout->panel_bytes);
    for (int output = panel * PANEL; output < (panel + 1) * PANEL && output < layout->n; output++) {
        pack_int_lane(out, layout, from, output, row);
    }
}

void weight_pack(void *packed, const weight_layout *layout, const stored_matrix *stored, int panel_begin, int panel_end,
                 void *scratch) {
    const source from = {.stored = stored,
                         .type = &dtype_table[stored->type],
                         .codes = dtype_codes_table[stored->type].decode ? &dtype_codes_table[stored->type] : NULL};
    for (int panel = panel_begin; panel < panel_end; panel++) {
        char *out = (char *)packed + (size_t)panel * layout->panel_bytes;
        (layout->form == WEIGHT_INT ? pack_int : pack_dense)(out, layout, &from, panel, scratch);
    }
}
