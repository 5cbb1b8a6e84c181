/* Reads unaligned little-endian numbers of 16 bits.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_BYTES16_H
#define MN_TENSOR_BYTES16_H

#include <string.h>

#include "base/num.h"

static inline uint16_t load_u16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline float load_f16(const uint8_t *at) {
    return f32_from_f16(load_u16(at));
}

#endif
