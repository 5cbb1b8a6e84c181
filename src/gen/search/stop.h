/* Text that may be shown: stop strings end it and are never shown, not even in part.
 *
 * The text ends at the first stop string that is complete; of several complete at the same byte the longest counts. The
 * result does not depend on how the text is divided into pieces. Stop strings may name special tokens, which are
 * matched where they stand but belong to no text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_STOP_H
#define MN_GEN_SEARCH_STOP_H

#include "gen/config/generation_config.h"
#include "text/tokenizer/tokenizer.h"

typedef struct stop_text {
    const text_list *stops;
    bytes text; /* what may be shown; owned, as the two below */
    bytes held; /* behind it: what could still become a stop string, special tokens included */
    bytes seen; /* for each byte of held: 1 when it is text, 0 when it belongs to a special token */
    bool stopped;
    size_t found; /* index in stops of the one that ended it, if stopped */
} stop_text;

/* Room for pieces of n bytes. */
mn_status stop_text_reserve(stop_text *s, size_t n);

/* Scans what follows; `is_text`: it is not the name of a special token. Memory that is missing shows in text.failed. */
void stop_text_push(stop_text *s, const char *text, size_t n, bool is_text);

/* Decodes a token and scans what it adds; an id without a token adds nothing. piece: a buffer of the caller's. */
mn_status stop_text_push_token(stop_text *s, const tokenizer *t, tokenizer_stream *stream, int32_t id, bytes *piece);

void stop_text_finish(stop_text *s); /* nothing follows: what was held back is text */
void stop_text_restart(stop_text *s);
void stop_text_clear(stop_text *s);

#endif
