/* Options structs of the public header, which begin with their own size so that they can grow.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_OPTIONS_H
#define MN_BASE_OPTIONS_H

#include <string.h>

#include "base/status.h"

/* Overwrites the first given->size bytes of *full, which holds the defaults and is n bytes long; given may be
 * NULL. MN_E_ARG when the size cannot be one of `name`. */
static inline mn_status options_take(void *full, size_t n, const void *given, const char *name) {
    size_t size;
    if (!given) return MN_OK;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > n)
        MN_FAIL(MN_E_ARG, "%s.size is %zu, allowed: %zu to %zu", name, size, sizeof size, n);
    memcpy(full, given, size);
    return MN_OK;
}

/* Fills an answer of the public header from *full, n bytes of which the caller knows the first out->size; both
 * begin with their size. MN_E_ARG when the size cannot be one of `name`. */
static inline mn_status options_give(void *out, const void *full, size_t n, const char *name) {
    size_t size;
    memcpy(&size, out, sizeof size);
    if (size < sizeof size || size > n)
        MN_FAIL(MN_E_ARG, "%s.size is %zu, allowed: %zu to %zu", name, size, sizeof size, n);
    memcpy((char *)out + sizeof size, (const char *)full + sizeof size, size - sizeof size);
    return MN_OK;
}

#endif
