/* Whether the text of a window is kept, generated again at a higher temperature, or left out as silence.
 *
 * Three statistics, as in OpenAI's transcription and Transformers' long form: repetitive text has a high compression
 * ratio; low confidence shows as a low average log-probability; if the no-speech probability is high too, the window is
 * silent.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_FALLBACK_H
#define MN_SPEECH_FALLBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct speech_limits {
    double compression_ratio; /* above it: repetition; INFINITY: not checked */
    double log_probability;   /* average below it: low confidence; -INFINITY: not checked */
    double no_speech;         /* with that, a no-speech probability above it: silence; INFINITY: not
                               * checked */
} speech_limits;

/* 1.35 (the ratio of ids, as in Transformers' documentation), -1.0, 0.6 (OpenAI's). */
speech_limits speech_limits_default(void);

/* The temperatures tried in order: 0, 0.2, ... 1. */
enum { SPEECH_TEMPERATURES = 6 };
#define SPEECH_HISTORY_TEMPERATURE 0.5 /* text generated at this or above is not part of the next window's prompt */
extern const double speech_temperatures[SPEECH_TEMPERATURES];

/* Bytes of the ids over bytes of them deflated as zlib does by default. An id is int(log2(vocab_size) / 8) + 1 bytes,
 * little endian. 0 for no ids. MN_E_NOMEM. */
mn_status speech_compression_ratio(double *out, const int32_t *ids, size_t n, int32_t vocab_size);

/* sum: of the log-probabilities of the n ids and of the end token behind them, at temperature 1, after the rules. The
 * end token counts as an id. */
static inline double speech_average_log_probability(double sum, size_t n) {
    return sum / ((double)n + 1.0);
}

typedef enum speech_decision { SPEECH_KEEP, SPEECH_RETRY, SPEECH_SKIP } speech_decision;

/* SPEECH_RETRY is not returned when is_last: there is no higher temperature. */
speech_decision speech_decide(const speech_limits *limits, double compression_ratio, double average_log_probability,
                              double no_speech_probability, bool is_last);

#endif
