/* Text as it may be shown: stop strings end it and are never shown, not even in part.
 *
 * The text ends at the first stop string that is complete; of several complete at the same byte the longest
 * counts. So the result does not depend on the pieces in which text arrives. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef MN_GEN_STOP_H
#define MN_GEN_STOP_H

#include "gen/generation_config.h"

typedef struct stop_text {
    const text_list *stops;
    bytes text;   /* everything decoded so far, cut before a stop string that was found */
    size_t shown; /* bytes of it that were released */
    bool stopped;
} stop_text;

/* Takes new text into account. What may be shown now is text.data[shown .. result - 1]; the caller sets
 * `shown` to the result. What could still become a stop string is held back. */
size_t stop_text_push(stop_text *s, const char *text, size_t n);

#endif
