/* Shared by all code that reads quantized streams: the place of a code, the value of side data, and the rounding of
 * queries and weights to whole numbers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ATTEND_CODES_TILE_H
#define MN_KERNELS_ATTEND_CODES_TILE_H

#include "base/num.h"
#include "kernels/attend/attend_tile.h"
#include "kernels/attend/codes.h"

enum {
    CODE_CHUNK_LANES = 64, /* whose levels are in scratch at a time */
    CODE_ROW_WORDS = 5,    /* for each step, at most, where every step is a group: two words of a rounded tile;
                              factor, sum and correction of a group */
};

/* Widths of a code's planes, widest first; 0: none. */
static inline int code_first_width(int bits) {
    return bits == 8 ? 8 : bits & 4 ? 4 : bits & 2 ? 2 : bits & 1;
}

static inline int code_next_width(int bits, int width) {
    if (width == 8) return 0;
    int rest = bits & (width - 1);
    return rest & 2 ? 2 : rest & 1;
}

static inline size_t code_run_tiles(const code_layout *layout, const code_run *run) {
    return (size_t)((run->end - run->begin) / CODE_STEPS) * (size_t)(code_lanes(layout) / CODE_LANES);
}

static inline size_t code_plane_bytes(size_t n_tiles, int width) {
    size_t tiles_of_block = (size_t)(8 / width);
    return (n_tiles + tiles_of_block - 1) / tiles_of_block * CODE_BLOCK;
}

static inline size_t code_side_bytes(code_side side) {
    static const uint8_t sizes[] = {0, 4, 2, 1};
    return sizes[side];
}

/* 2^(r / 8), as the bits of a float. */
static const uint32_t code_log8_bits[8] = {0x3F800000, 0x3F8B95C2, 0x3F9837F0, 0x3FA5FED7,
                                           0x3FB504F3, 0x3FC5672A, 0x3FD744FD, 0x3FEAC0C7};

static inline float f32_from_log8(uint8_t n) {
    if (n == 0) return 0;
    return f32_from_bits(code_log8_bits[n & 7] + (uint32_t)((n >> 3) - 20) * 0x800000u);
}

/* Entry i of an array of side data. */
static inline float code_side_at(code_side side, const char *stored, size_t i) {
    float x = 0;
    f16 half;
    switch (side) {
    case CODE_SIDE_F32: memcpy(&x, stored + 4 * i, 4); return x;
    case CODE_SIDE_F16: memcpy(&half, stored + 2 * i, 2); return f32_from_f16(half);
    case CODE_SIDE_LOG8: return f32_from_log8((uint8_t)stored[i]);
    default: return 0;
    }
}

static inline float code_mean_at(const code_layout *layout, const char *stream, int d) {
    return code_side_at(layout->mean, stream + layout->mean_offset, (size_t)d);
}

/* Index of the scale and shift of a value in their arrays. */
static inline size_t code_side_index(const code_layout *layout, int token, int d) {
    return layout->axis == CODE_TOKEN ? (size_t)(d / layout->group) * (size_t)layout->page_tokens + (size_t)token
                                      : (size_t)(token / layout->group) * (size_t)layout->dim + (size_t)d;
}

/* Streams are of two kinds. By lane: a group is a range of steps, and its scale belongs to one lane; the scale is
 * applied to the integer sum over the group. By step: a group is a range of lanes, and its scale belongs to one step;
 * the scale is folded into the query or weight of that step. */
static inline bool code_scales_by_lane(const code_layout *layout) {
    return layout->is_key == (layout->axis == CODE_TOKEN);
}

/* The steps before the first one of 0 bits; bits do not increase, so all later ones have 0 bits too. */
static inline int code_used_steps(const code_layout *layout) {
    const code_run *last = layout->runs + layout->n_runs - 1;
    return last->bits ? last->end : last->begin;
}

/* The rounding to 16 bits: a becomes the nearest integer to a * (CODE_LIMIT / m), to be multiplied by the factor m /
 * CODE_LIMIT, where m is the largest |a| of those that share the factor. CODE_LIMIT = 127 * 256 + 127 is the largest
 * number whose two halves are signed bytes. m is at least CODE_SMALLEST, to keep the quotient finite. */
#define CODE_LIMIT    32639.0f
#define CODE_SMALLEST 0x1p-100f

/* y[lane] += sum over steps of a[step] x[step][lane], without the mean of keys, as specified in codes.h. */
typedef struct code_product {
    const code_layout *layout;
    const char *stream;
    const float *a; /* [steps]; those outside `steps` are not read and treated as 0 */
    slot_range steps, lanes;
    float *y;         /* [lanes] */
    int32_t *rounded; /* [steps] scratch */
} code_product;

void code_product_ref(const code_product *product);
void hadamard_plain(float *x, int n_rows, int dim);

#endif
