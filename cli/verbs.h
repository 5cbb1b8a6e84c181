/* The verbs: each gets its options and returns an exit code.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_VERBS_H
#define MNEME_CLI_VERBS_H

#include "options.h"

int run_verb(options *o);
int chat_verb(options *o);
int score_verb(options *o);
int tokenize_verb(options *o);
int inspect_verb(options *o);
int doctor_verb(options *o);
int list_verb(options *o);
int pull_verb(options *o);
int bench_verb(options *o);
int cache_verb(options *o);
int transcribe_verb(options *o);
int serve_verb(options *o);

#endif
