/* Offsets within a WEIGHT_INT panel (linear.h), for the packer and the kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_LINEAR_LINEAR_INT_H
#define MN_KERNELS_LINEAR_LINEAR_INT_H

#include "kernels/linear/linear.h"

enum { INT_FACTOR_BYTES = PANEL * 4, INT_SPAN = 64 /* inputs of a span, the repeating unit of a panel */ };

/* Bytes from the start of a span, and of a span. */
typedef struct int_shape {
    size_t mins;       /* after the scales */
    size_t codes;      /* after the mins */
    size_t half_codes; /* bytes of the codes of 32 inputs */
    size_t span;
} int_shape;

static inline int_shape int_shape_of(const weight_layout *layout) {
    int_shape shape;
    shape.mins = (size_t)(INT_SPAN / layout->group) * PANEL * sizeof(f16);
    shape.codes = shape.mins * (layout->has_min ? 2 : 1);
    shape.half_codes = (size_t)(ACT_GROUP * PANEL * layout->bits / 8);
    shape.span = shape.codes + 2 * shape.half_codes;
    return shape;
}

#endif
