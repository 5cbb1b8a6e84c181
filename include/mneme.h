/* Mneme: text generation with every KV-cache strategy.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_H
#define MNEME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------------------------------ */

#define MN_STATUS_LIST(X)                                                                                    \
    X(OK, 0, "done")                                                                                         \
    X(E_ARG, -1, "an argument is out of range or contradicts another")                                       \
    X(E_NOMEM, -2, "out of memory")                                                                          \
    X(E_FULL, -3, "a limit that the caller set is reached")                                                  \
    X(E_IO, -4, "a file or device failed")                                                                   \
    X(E_FORMAT, -5, "a file is damaged or of a form that is not read here")                                  \
    X(E_UNSUPPORTED, -6, "not possible for this model, cache or machine")                                    \
    X(E_NOT_FOUND, -7, "no such file or model")                                                              \
    X(E_CANCELLED, -8, "cancelled")                                                                          \
    X(E_REFUSED, -9, "a saved cache does not belong to this model or is damaged")

typedef enum mn_status {
#define MN_STATUS_ENUM(name, value, text) MN_##name = value,
    MN_STATUS_LIST(MN_STATUS_ENUM)
#undef MN_STATUS_ENUM
} mn_status;

#if defined(__GNUC__)
#define MN_API __attribute__((visibility("default")))
#else
#define MN_API
#endif

/* One sentence about the last failure of the calling thread: what was wrong, the value seen, the values allowed. Valid
 * until the thread's next call into the library; "" when none failed yet. */
MN_API const char *mn_last_error(void);

/* A fixed text for a code; never NULL. */
MN_API const char *mn_status_text(mn_status status);

#ifdef __cplusplus
}
#endif

#endif
