/* The tiny random Whisper checkpoint with a tokenizer, so that its transcripts have texts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SPELLED_H
#define TESTS_SPELLED_H

#include "mneme.h"

/* Its folder, named "spelled", in scratch. Ids 0 to 93 are the visible ASCII characters; those behind them are the same
 * with a space before them, then with brackets; the last one is a space. */
const char *spelled_folder(void);

/* The same opened, computing in f32 with 2 threads. */
mn_model *spelled_model(void);

#endif
