/* Edit distance of two names, for "did you mean".
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_DISTANCE_H
#define MN_BASE_DISTANCE_H

#include <stddef.h>

#include "base/status.h"

enum { DISTANCE_LONGEST = 64 };

/* Levenshtein's distance of a[n_a] and b[n_b] in bytes; DISTANCE_LONGEST when one is longer than that. */
size_t text_distance(const char *a, size_t n_a, const char *b, size_t n_b);

/* The name among `names` (ends with NULL) that `text` was most likely meant to be: few bytes apart, or cut short; NULL
 * when none is near. */
const char *text_nearest(const char *text, const char *const *names);

/* Fails with MN_E_ARG for a name, name[n], that is not among `names`:
 * "WHAT 'name'; did you mean x?; allowed: a, b, cREST". */
mn_status text_unknown(const char *what, const char *name, size_t n, const char *const *names, const char *rest);

#endif
