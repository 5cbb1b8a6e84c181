/* Whether what was written for a window is kept, written again at a higher temperature, or left out as silence.
 *
 * Three measures, as in OpenAI's transcription and Transformers' long form: text that repeats itself compresses too well;
 * text that the model does not believe in has a low average log-probability; and where the model also thinks that nobody
 * speaks, there is nothing. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_FALLBACK_H
#define MN_SPEECH_FALLBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct speech_limits {
    double compression_ratio;   /* above it: repetition; INFINITY: not looked at */
    double log_probability;     /* average below it: not believed; -INFINITY: not looked at */
    double no_speech;           /* with that, a no-speech probability above it: silence; INFINITY: not looked at */
} speech_limits;

/* 1.35 (the ratio of ids, as in Transformers' documentation), -1.0, 0.6 (OpenAI's). */
speech_limits speech_limits_default(void);

/* The temperatures that are tried one after the other: 0, 0.2, ... 1. */
enum { SPEECH_TEMPERATURES = 6 };
#define SPEECH_HISTORY_TEMPERATURE 0.5 /* text written at this or above is not given to the next window */
extern const double speech_temperatures[SPEECH_TEMPERATURES];

/* Bytes of the ids over bytes of them deflated as zlib does by default. An id is int(log2(vocab_size) / 8) + 1 bytes, little
 * endian. 0 for no ids. MN_E_NOMEM. */
mn_status speech_compression_ratio(double *out, const int32_t *ids, size_t n, int32_t vocab_size);

/* sum: of the log-probabilities of the n ids and of the end token behind them, at temperature 1, after the rules. The end
 * token counts as an id. */
static inline double speech_average_log_probability(double sum, size_t n) { return sum / ((double)n + 1.0); }

typedef enum speech_verdict { SPEECH_KEEP, SPEECH_RETRY, SPEECH_SKIP } speech_verdict;

/* SPEECH_RETRY is not given when is_last: there is no higher temperature. */
speech_verdict speech_judge(const speech_limits *limits, double compression_ratio, double average_log_probability,
                            double no_speech_probability, bool is_last);

#endif
