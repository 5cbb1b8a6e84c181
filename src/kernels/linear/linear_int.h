/* Offsets within a WEIGHT_INT panel (linear.h), for the packer and the kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_LINEAR_LINEAR_INT_H
#define MN_KERNELS_LINEAR_LINEAR_INT_H

#include "kernels/linear/linear.h"

enum { INT_FACTOR_BYTES = PANEL * 4, INT_SUPER_BYTES = 2 * PANEL * 2 };

/* Bytes from the start of a span, the repeating unit of a panel. */
typedef struct int_shape {
    int inputs;    /* of a span */
    size_t scales; /* after the f16 factors of byte scales */
    size_t mins;
    size_t group; /* of the scales of one group */
    size_t codes;
    size_t block; /* of the codes of 32 inputs */
    size_t span;
} int_shape;

static inline int_shape int_shape_of(const weight_layout *layout) {
    int_shape shape;
    shape.inputs = layout->byte_scales ? 256 : 64;
    shape.group = layout->byte_scales ? PANEL : PANEL * sizeof(f16);
    const size_t bytes = (size_t)(shape.inputs / layout->group) * shape.group;
    shape.scales = layout->byte_scales ? INT_SUPER_BYTES : 0;
    shape.mins = shape.scales + bytes;
    shape.codes = shape.mins + (layout->has_min ? bytes : 0);
    shape.block = (size_t)(ACT_GROUP * PANEL * layout->bits / 8);
    shape.span = shape.codes + (size_t)(shape.inputs / ACT_GROUP) * shape.block;
    return shape;
}

/* Whether a weight group has the outlier of a run; begin: its first input in the run. */
static inline bool int_has_outlier(const act_span *span, int run, int group, int begin) {
    return span->upper[run] && (group == ACT_GROUP || span->place[run] / ACT_SUM_GROUP == begin / ACT_SUM_GROUP);
}

/* The upper part of the code of a run's outlier as factors of the two even, or odd, bytes of a lane that has its quad.
 */
static inline int32_t int_outlier_factor(const act_span *span, int run) {
    return (int32_t)((uint32_t)(uint16_t)(span->upper[run] * ACT_UPPER) << (span->place[run] % 4 / 2 * 16));
}

#endif
