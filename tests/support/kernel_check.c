/* SPDX-License-Identifier: Apache-2.0 */
#include "support/kernel_check.h"

#include <math.h>

enum { GUARD_BYTES = 128, FILL = 0xA5, GUARD = 0x5C };

guarded guarded_make(size_t n, size_t shift) {
    guarded block = {.bytes = n};
    block.base = mem_alloc_raw(n + shift + 2 * GUARD_BYTES, 1);
    assert_non_null(block.base);
    block.data = block.base + GUARD_BYTES + shift;
    memset(block.base, GUARD, n + shift + 2 * GUARD_BYTES);
    memset(block.data, FILL, n);
    return block;
}

void guarded_check(const guarded *block, const char *what) {
    const unsigned char *after = (const unsigned char *)block->data + block->bytes;
    for (const unsigned char *p = (const unsigned char *)block->base; p < (const unsigned char *)block->data;
         p++) {
        if (*p != GUARD)
            fail_msg("%s: byte %td before the output was written", what,
                     (const unsigned char *)block->data - p);
    }
    for (int i = 0; i < GUARD_BYTES; i++) {
        if (after[i] != GUARD) fail_msg("%s: byte %d after the output was written", what, i);
    }
}

void guarded_free(guarded *block) {
    guarded_check(block, "guarded block");
    mem_free(block->base);
    *block = (guarded){0};
}

void check_close(double got, double expected, double terms, double c, const char *format, ...) {
    double allowed = c * 0x1p-24 * terms;
    if (fabs(got - expected) <= allowed) return;
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail_msg("%s: got %.9g, expected %.9g, allowed difference %.3g", text, got, expected, allowed);
}

void random_floats(uint64_t *seed, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t kind = test_random(seed) % 32;
        double value = test_uniform(seed, -1, 1);
        x[i] = kind == 0 ? 0.0f : (float)(kind == 1 ? 10 * value : value);
    }
}
