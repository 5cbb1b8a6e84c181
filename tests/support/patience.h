/* Waiting for what other threads and processes do, without a clock: naps are counted, so that a machine that stands
 * still for a while, or does other things, fails no test.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PATIENCE_H
#define TESTS_PATIENCE_H

/* For calls that take a limit of time themselves, as poll. */
enum { PATIENCE_MS = 300000, PATIENCE_S = PATIENCE_MS / 1000 };

/* Naps until the condition holds, each after the statement behind it: wait_until(done); or wait_until(done) look();
 * Fails the test after PATIENCE_MS of naps or more. */
#define wait_until(condition) for (int naps_ = 0; !(condition); patience_nap(&naps_, #condition))

void patience_nap(int *n_naps, const char *what);

#endif
