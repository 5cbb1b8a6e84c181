/* When the words of a window were spoken, from the decoder's cross attention when the generated ids are computed again.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_TIMING_H
#define MN_SPEECH_TIMING_H

#include "session/session.h"
#include "speech/tokens.h"
#include "speech/words.h"

typedef struct speech_timing_setup {
    mn_model *model;
    const speech_tokens *tokens;
    const tokenizer *tokenizer;
} speech_timing_setup;

/* Memory for one window's words. */
typedef struct speech_timing {
    speech_timing_setup setup; /* borrowed */
    cross_head *heads;         /* alignment heads, else all heads of the upper half of the layers */
    size_t n_heads;
    int32_t *ids;       /* [max_length + 4] prompt, text, end token */
    size_t *ends;       /* [max_length] end of each text id in the text */
    int64_t *begins;    /* [max_length + 1] */
    speech_word *words; /* [max_length]; the first n_words are filled */
    size_t n_words;
    bytes text, scratch;
} speech_timing;

mn_status speech_timing_open(speech_timing *t, const speech_timing_setup *setup);
void speech_timing_close(speech_timing *t);

/* The words of the ids [n] (which are at most max_length, timestamps among them) that were generated for the window
 * encoded in `session`, whose first n_frames frames hold sound: into t->words, token_begin and token_end counting text
 * ids alone. MN_E_NOMEM. */
mn_status speech_timing_make(speech_timing *t, const mn_session *session, const speech_language *language,
                             speech_task task, const int32_t *ids, size_t n, int64_t n_frames);

#endif
