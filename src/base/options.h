/* Structs of the public header, which begin with their own size so that members can be added: members that one side
 * does not know are zero or unchanged on the other.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_OPTIONS_H
#define MN_BASE_OPTIONS_H

#include <string.h>

#include "base/status.h"

/* Writes `size` bytes of a caller's options: the defaults *full, n bytes long, and zeros behind them. */
static inline void options_init(void *options, size_t size, const void *full, size_t n) {
    if (size < sizeof size) return;
    memset(options, 0, size);
    memcpy(options, full, size < n ? size : n);
    memcpy(options, &size, sizeof size);
}

/* MN_E_ARG for a value that cannot be a size of `name`, such as that of an uninitialized struct; n: what it has here.
 */
static inline mn_status options_size(size_t size, size_t n, const char *name) {
    enum { MOST_GROWTH = 4096 };
    if (size < sizeof size || size > n + MOST_GROWTH)
        MN_FAIL(MN_E_ARG, "%s.size is %zu, allowed: %zu to %zu", name, size, sizeof size, n + MOST_GROWTH);
    return MN_OK;
}

/* Overwrites the first given->size bytes of *full, which holds the defaults and is n bytes long and keeps its own size;
 * given may be NULL. MN_E_ARG when the size cannot be one of `name`, or a member is set that is not known here. */
static inline mn_status options_take(void *full, size_t n, const void *given, const char *name) {
    const char *from = given;
    size_t size;
    if (!given) return MN_OK;
    memcpy(&size, given, sizeof size);
    MN_TRY(options_size(size, n, name));
    for (size_t i = n; i < size; i++) {
        if (from[i])
            MN_FAIL(MN_E_ARG,
                    "%s.size is %zu and byte %zu is not zero: this version of the library knows the first %zu bytes",
                    name, size, i, n);
    }
    memcpy((char *)full + sizeof size, from + sizeof size, (size < n ? size : n) - sizeof size);
    return MN_OK;
}

/* Fills an output struct of the public header from *full, n bytes of which the caller knows the first out->size; both
 * begin with their size. MN_E_ARG when the size cannot be one of `name`. */
static inline mn_status options_give(void *out, const void *full, size_t n, const char *name) {
    size_t size;
    memcpy(&size, out, sizeof size);
    MN_TRY(options_size(size, n, name));
    options_init(out, size, full, n);
    return MN_OK;
}

#endif
