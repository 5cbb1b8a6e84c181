/* One recording being written down: window after window, and for each of them one attempt after another.
 *
 * The scribe computes nothing by itself but the encoder's part: it says what is to be generated next (scribe_next), lends the rules
 * while that is done (scribe_process), and takes what came of it (scribe_take). So the windows of several recordings go through
 * the decoder together, and each is as it would be alone: Radford and others 2022, section 4.5, with the rules of speech/rules.h,
 * fallback.h and segments.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_SCRIBE_H
#define MN_SPEECH_SCRIBE_H

#include "speech/fallback.h"
#include "speech/transcript.h"

/* What all recordings of a call have in common. All pointers are borrowed. */
typedef struct scribe_setup {
    mn_model *model;
    const speech_tokens *tokens;
    const speech_language *language; /* NULL: heard, or the model's only one */
    speech_task task;
    bool timestamps, words, conditions; /* the last: a window is given the text before it */
    speech_limits limits;
    const double *temperatures;
    size_t n_temperatures;
    int num_beams;
    int64_t max_new; /* ids of a window; 0: what there is room for */
    uint64_t seed;
    mn_cache_options cache;
    int n_bands, n_frames; /* of the model's window */
    float *levels, *features; /* [n_frames][n_bands], [n_bands][n_frames] scratch */
} scribe_setup;

/* Where levels come from. */
typedef struct scribe_input {
    /* Levels [n][n_bands] of frames [first, first + n), silence behind the end. */
    mn_status (*window)(void *state, int64_t first, int n, float *levels);
    void *state;
    int64_t n_frames; /* of the recording, 1 or more */
} scribe_input;

typedef struct scribe scribe;

/* What is written goes to *out, which is borrowed. MN_E_NOMEM. */
mn_status scribe_open(scribe **s, const scribe_setup *setup, const scribe_input *input, transcript *out);
void scribe_close(scribe **s);

typedef enum scribe_step {
    SCRIBE_ROW,     /* an attempt is to be generated, and given to scribe_take */
    SCRIBE_SILENCE, /* a window was passed over; there may be more */
    SCRIBE_DONE,    /* that was all */
} scribe_step;

/* What comes next; SCRIBE_ROW: the row of a batch, valid until scribe_take. A window in which every level is the same, 80 dB below
 * the recording's loudest moment or nothing at all, is not shown to the model, which would write something all the same ("you"):
 * unless no-speech probabilities are not looked at. Errors of the input, MN_E_NOMEM. */
mn_status scribe_next(scribe *s, mn_batch_row *row, scribe_step *step);

/* The rules for the scores of the row's next id, as mn_logits_processor. */
void scribe_process(scribe *s, const int32_t *ids, size_t n, float *scores);

/* What was generated: kept, left out, or to be tried again. */
mn_status scribe_take(scribe *s, const mn_sequence *sequence);

/* Frames of the recording that are dealt with. */
int64_t scribe_position(const scribe *s);

#endif
