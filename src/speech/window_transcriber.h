/* Transcribes one recording: window after window, and for each of them one attempt after another.
 *
 * It runs only the encoder itself: it returns the next request (window_transcriber_next), provides the rules as its
 * logits processor (window_transcriber_process), and takes the result (window_transcriber_take). So the windows of
 * several recordings are decoded together, with the same result as alone: Radford and others 2022, section 4.5, with
 * the rules of speech/rules.h, fallback.h and segments.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_WINDOW_TRANSCRIBER_H
#define MN_SPEECH_WINDOW_TRANSCRIBER_H

#include "speech/fallback.h"
#include "speech/audio_parts.h"
#include "speech/transcript.h"

/* Settings of all recordings of a call. All pointers are borrowed. */
typedef struct window_transcriber_setup {
    mn_model *model;
    const speech_tokens *tokens;
    const speech_language *language; /* NULL: detected, or the model's only one */
    speech_task task;
    bool timestamps, words, conditions; /* the last: the previous text is part of a window's prompt */
    const int32_t *prompt, *hotwords; /* [n_prompt] ids of text before the recording, [n_hotwords] before each window */
    size_t n_prompt, n_hotwords;
    speech_limits limits;
    const double *temperatures;
    size_t n_temperatures;
    int num_beams;
    int64_t max_new; /* ids of a window; 0: as many as there is room for */
    uint64_t seed;
    mn_cache_options cache;
    int n_bands, n_frames;    /* of the model's window */
    float *levels, *features; /* [n_frames][n_bands], [n_bands][n_frames] scratch */
} window_transcriber_setup;

/* The source of levels. */
typedef struct window_transcriber_input {
    /* Levels [n][n_bands] of frames [first, first + n), silence after the end. */
    mn_status (*window)(void *state, int64_t first, int n, float *levels);
    void *state;
    int64_t n_frames;         /* of the recording; 0: no window */
    const audio_parts *parts; /* that the recording was made of; NULL: it is whole */
} window_transcriber_input;

typedef struct window_transcriber window_transcriber;

/* Segments are appended to *out, which is borrowed. MN_E_NOMEM. */
mn_status window_transcriber_open(window_transcriber **s, const window_transcriber_setup *setup,
                                  const window_transcriber_input *input, transcript *out);
void window_transcriber_close(window_transcriber **s);

typedef enum window_transcriber_step {
    WINDOW_REQUEST, /* an attempt is to be generated, and given to window_transcriber_take */
    WINDOW_SILENCE, /* a window was skipped; there may be more */
    WINDOW_DONE,    /* no more windows */
} window_transcriber_step;

/* The next step; WINDOW_REQUEST: the request to generate, valid until window_transcriber_take. A window in which
 * every level is the same, 80 dB below the recording's loudest moment or nothing at all, is skipped, as the model would
 * generate text even for it ("you"), unless no-speech probabilities are not checked. Errors of the input, MN_E_NOMEM.
 */
mn_status window_transcriber_next(window_transcriber *s, mn_request *request, window_transcriber_step *step);

/* The rules for the scores of the request's next id, as mn_logits_processor. */
void window_transcriber_process(window_transcriber *s, const int32_t *ids, size_t n, float *scores);

/* Takes the generated ids: they are kept, left out as silence, or generated again. */
mn_status window_transcriber_take(window_transcriber *s, const mn_sequence *sequence);

/* Frames of the recording that are finished. */
int64_t window_transcriber_position(const window_transcriber *s);

#endif
