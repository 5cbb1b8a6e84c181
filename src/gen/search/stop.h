/* Text that may be shown: stop strings end it and are never shown, not even in part.
 *
 * The text ends at the first stop string that is complete; of several complete at the same byte the longest counts. The
 * result does not depend on how the text is divided into pieces.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_STOP_H
#define MN_GEN_SEARCH_STOP_H

#include "gen/config/generation_config.h"

typedef struct stop_text {
    const text_list *stops;
    bytes text;   /* everything decoded so far, cut before a stop string that was found */
    size_t shown; /* bytes of it that were shown */
    bool stopped;
    size_t found; /* index in stops of the one that ended it, if stopped */
} stop_text;

/* Scans new text. What may be shown now is text.data[shown .. result - 1]; the caller sets `shown` to the
 * result. What could still become a stop string is held back. */
size_t stop_text_push(stop_text *s, const char *text, size_t n);

#endif
