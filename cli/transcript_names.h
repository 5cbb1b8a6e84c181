/* What the transcripts of several recordings are called in one folder.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_TRANSCRIPT_NAMES_H
#define MNEME_CLI_TRANSCRIPT_NAMES_H

#include "base/mem.h"

/* A name for each of the n recordings, no two the same: the file's own without its ending ("stdin" for "-"). Those that
 * would be the same get the name of their folder before it, as monday-talk of monday/talk.wav, then that of the folder
 * around it and so on; where paths do not tell them apart, all but the first get a number behind it. names [n]: empty,
 * owned by the caller. */
mn_status transcript_names(bytes *names, const char *const *paths, size_t n);

#endif
