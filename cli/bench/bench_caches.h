/* `mneme bench` on several caches, or on a text: the cost of each and its difference from `dynamic`.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BENCH_CACHES_H
#define MNEME_CLI_BENCH_CACHES_H

#include "options.h"

/* Whether the options request it: --cache all, a list of caches, or a text. */
bool bench_compares(const options *o);

/* An exit code; a failure has been reported. */
int bench_caches(const options *o);

/* A value of a line of CSV, in quotes. */
void bench_put_csv(bytes *b, const char *text, size_t n);

#endif
