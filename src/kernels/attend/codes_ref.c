/* Products with quantized streams and the Hadamard transform in plain C, the reference of the vector kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/attend/codes_tile.h"
#include "kernels/kernels.h"

static int level_at(const code_layout *layout, const char *stream, int step, int lane) {
    const code_run *run = layout->runs;
    while (step >= run->end) run++;
    const size_t n_tiles = code_run_tiles(layout, run);
    const size_t tiles_across = (size_t)(code_lanes(layout) / CODE_LANES);
    const size_t k = (size_t)((step - run->begin) / CODE_STEPS) * tiles_across + (size_t)(lane / CODE_LANES);
    const size_t byte = (size_t)(lane % CODE_LANES * CODE_STEPS + step % CODE_STEPS);
    const uint8_t *plane = (const uint8_t *)stream + run->offset;
    unsigned code = 0;
    for (int width = code_first_width(run->bits), low = 0; width; width = code_next_width(run->bits, width)) {
        const size_t tiles_of_block = (size_t)(8 / width);
        unsigned block_byte = plane[k / tiles_of_block * CODE_BLOCK + byte];
        code |= (block_byte >> k % tiles_of_block * (size_t)width & ((1u << width) - 1)) << low;
        low += width;
        plane += code_plane_bytes(n_tiles, width);
    }
    return code_levels(layout->grid, run->bits)[code];
}

/* Index of the scale and shift of a value. */
static size_t side_index(const code_layout *layout, int step, int lane) {
    return layout->is_key ? code_side_index(layout, lane, step) : code_side_index(layout, step, lane);
}

static float scale_at(const code_product *p, int step, int lane) {
    return code_side_at(p->layout->scale, p->stream + p->layout->scale_offset, side_index(p->layout, step, lane));
}

static float shift_at(const code_product *p, int step, int lane) {
    return code_side_at(p->layout->shift, p->stream + p->layout->shift_offset, side_index(p->layout, step, lane));
}

/* Sets p->rounded of the steps (those of 0 bits are ignored) and returns the factor. fold_lane: a lane of the group
 * whose scales are folded in, -1: none. */
static float round_steps(const code_product *p, slot_range steps, int fold_lane) {
    float largest = CODE_SMALLEST;
    for (int pass = 0; pass < 2; pass++) {
        for (int step = steps.lo; step < steps.hi; step++) {
            float a = fold_lane < 0 ? p->a[step] : p->a[step] * scale_at(p, step, fold_lane);
            if (pass == 0) {
                largest = fmaxf(largest, fabsf(a));
            } else {
                p->rounded[step] = (int32_t)lrintf(a * (CODE_LIMIT / largest));
            }
        }
    }
    return largest / CODE_LIMIT;
}

/* One group: lanes and steps that share a factor. */
static void add_group(const code_product *p, slot_range steps, slot_range lanes) {
    const bool by_lane = code_scales_by_lane(p->layout);
    const int used = code_used_steps(p->layout);
    const slot_range with_codes = {steps.lo, steps.hi < used ? steps.hi : used};
    const float factor = round_steps(p, with_codes, by_lane ? -1 : lanes.lo);
    float shifts = 0;
    for (int step = steps.lo; step < steps.hi; step++) {
        shifts += by_lane ? p->a[step] : p->a[step] * shift_at(p, step, lanes.lo);
    }
    for (int lane = lanes.lo; lane < lanes.hi; lane++) {
        int32_t sum = 0;
        for (int step = with_codes.lo; step < with_codes.hi; step++) {
            sum += p->rounded[step] * level_at(p->layout, p->stream, step, lane);
        }
        p->y[lane] += (by_lane ? scale_at(p, steps.lo, lane) * factor : factor) * (float)sum;
        p->y[lane] += by_lane ? shifts * shift_at(p, steps.lo, lane) : shifts;
    }
}

/* The part of group number i that lies in `of`. */
static slot_range group_range(int i, int group, slot_range of) {
    slot_range part = {i * group, (i + 1) * group};
    if (part.lo < of.lo) part.lo = of.lo;
    if (part.hi > of.hi) part.hi = of.hi;
    return part;
}

void code_product_ref(const code_product *p) {
    const bool by_lane = code_scales_by_lane(p->layout);
    const int group = p->layout->group;
    const slot_range grouped = by_lane ? p->steps : p->lanes;
    for (int i = grouped.lo / group; i * group < grouped.hi; i++) {
        slot_range part = group_range(i, group, grouped);
        add_group(p, by_lane ? part : p->steps, by_lane ? p->lanes : part);
    }
}

void hadamard_plain(float *x, int n_rows, int dim) {
    const int block = dim & -dim;
    const float size = 1.0f / sqrtf((float)block);
    for (float *end = x + (size_t)n_rows * (size_t)dim; x < end; x += block) {
        for (int half = 1; half < block; half *= 2) {
            for (int i = 0; i < block; i++) {
                if (i & half) continue;
                float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
        }
        for (int i = 0; i < block; i++) x[i] *= size;
    }
}

void codes_ref_fill(kernel_table *table) {
    table->hadamard = hadamard_plain;
}
