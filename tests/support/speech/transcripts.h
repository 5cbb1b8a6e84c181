/* Visits the recorded transcripts of tests/data/golden/whisper and whisper-real.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TRANSCRIPTS_H
#define TESTS_TRANSCRIPTS_H

#include "speech/tokens.h"
#include "support/support.h"

enum { MOST_IDS = 4096 };

typedef struct transcript {
    const char *name;     /* "whisper-real/whisper-base.jfk", "tiny80 long.0" */
    const char *model;    /* "whisper-base", "tiny80" */
    speech_tokens tokens; /* of the model */
    int64_t window;       /* frames */
    const json *root;     /* whisper-real: the whole file; whisper: one case */
} transcript;

typedef void (*transcript_visit)(const transcript *t, void *user);

/* Visits the files of whisper-real, then the cases of whisper. */
void transcripts_visit(transcript_visit visit, void *user);

/* The runs of a transcript (an object with "tokens", and "prompt" for clips), under `key`; NULL: none. */
const json *transcript_run(const transcript *t, const char *key);

/* List of ids, at most MOST_IDS; 0 for NULL. */
size_t transcript_ids(const json *list, int32_t ids[MOST_IDS]);

#endif
