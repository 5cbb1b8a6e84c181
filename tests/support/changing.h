/* Tests of caches that change while they are in use: a model of two threads, random ids, sessions that have read some of them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHANGING_H
#define TESTS_CHANGING_H

#include "gen/session.h"
#include "support/engine.h"

#define TINY_MODEL "golden/llama-untied-bias" /* heads of 16: codes are possible */

enum { CHANGING_IDS = 220 };

typedef struct changing {
    mn_model *model;
    size_t vocab;
    int32_t ids[CHANGING_IDS];
    uint64_t seed;
} changing;

/* path: TINY_MODEL or as engine_model's. */
changing changing_open(const char *path, int threads);
void changing_close(changing *w); /* no page may be left */

/* Set-up and tear-down of a test: no block of memory may be left behind it. */
int changing_note_live(void **state);
int changing_check_live(void **state);
#define CHANGING_TEST(test) cmocka_unit_test_setup_teardown(test, changing_note_live, changing_check_live)

/* A session that has read n of the ids in random pieces. */
mn_session *changing_fed(changing *w, engine_cache cache, size_t n);
mn_status changing_set(mn_session *session, engine_cache cache);

/* Tokens up to n go into both; the logits behind each are the same. */
void changing_go_on_alike(changing *w, mn_session *got, mn_session *wanted, size_t n, int piece, const char *what);

#endif
