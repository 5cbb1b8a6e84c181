/* Status codes with one line of context.
 *
 * The place that detects a failure reports what was wrong, the value seen and the values allowed, once, with MN_FAIL;
 * callers only forward with MN_TRY. The line is kept per thread and read through mn_last_error().
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_STATUS_H
#define MN_BASE_STATUS_H

#include "mneme.h"

/* Stores the message of the calling thread and returns `code`. Messages longer than the buffer are cut at a whole UTF-8
 * sequence. */
mn_status status_fail(mn_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the message of the calling thread and returns `code`; nothing when code is MN_OK. */
mn_status status_context(mn_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts the file's path before the message, "path: ", unless the message names it already, in quotes or at its
 * beginning. */
mn_status status_in_file(mn_status code, const char *path);

/* The code is named twice so that compilers see that a failure is never MN_OK. */
#define MN_FAIL(code, ...) return (status_fail((code), __VA_ARGS__), (code))

#define MN_TRY(expression)                                                                                             \
    do {                                                                                                               \
        mn_status mn_try_status_ = (expression);                                                                       \
        if (mn_try_status_ != MN_OK) return mn_try_status_;                                                            \
    } while (0)

/* For functions with one clean-up label: stores the status in `status` and jumps. */
#define MN_GOTO(label, status, expression)                                                                             \
    do {                                                                                                               \
        (status) = (expression);                                                                                       \
        if ((status) != MN_OK) goto label;                                                                             \
    } while (0)

#endif
