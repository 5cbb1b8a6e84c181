/* SPDX-License-Identifier: Apache-2.0 */
#include "support/kernel_check.h"

#include <math.h>
#include <sys/mman.h>

enum { PAGE = 4096, GUARD_BYTES = 128, FILL = 0xA5, GUARD = 0x5C };

/* [inaccessible page][GUARD ...][data][GUARD, fewer than 64][inaccessible page] */
guarded guarded_make(size_t n, size_t shift) {
    size_t n_inner = (n + GUARD_BYTES + 64 + PAGE - 1) / PAGE * PAGE;
    guarded block = {.bytes = n, .n_inner = n_inner};
    block.base = mmap(NULL, n_inner + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(block.base != MAP_FAILED);
    char *inner = block.base + PAGE, *end = inner + n_inner;
    assert_int_equal(mprotect(inner, n_inner, PROT_READ | PROT_WRITE), 0);
    size_t slack = (64 - (n + shift) % 64) % 64; /* the block begins `shift` bytes after a multiple of 64 */
    block.data = end - slack - n;
    memset(inner, GUARD, n_inner);
    memset(block.data, FILL, n);
    return block;
}

void guarded_check(const guarded *block, const char *what) {
    const unsigned char *inner = (const unsigned char *)block->base + PAGE, *end = inner + block->n_inner,
                        *data = block->data, *after = data + block->bytes;
    for (const unsigned char *p = inner; p < data; p++) {
        if (*p != GUARD) fail_msg("%s: byte %td before the output was written", what, data - p);
    }
    for (const unsigned char *p = after; p < end; p++) {
        if (*p != GUARD) fail_msg("%s: byte %td after the output was written", what, p - after);
    }
}

void guarded_free(guarded *block) {
    guarded_check(block, "guarded block");
    munmap(block->base, block->n_inner + 2 * PAGE);
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
