/* Tests of caches that change during use: a model with two threads, random ids, sessions that hold some of them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHANGING_H
#define TESTS_CHANGING_H

#include "session/session.h"
#include "support/engine.h"

#define TINY_MODEL "golden/llama-untied-bias" /* heads of 16 values, which can be quantized */

enum { CHANGING_IDS = 220 };

typedef struct changing {
    mn_model *model;
    size_t vocab;
    int32_t ids[CHANGING_IDS];
    uint64_t seed;
} changing;

/* path: TINY_MODEL or a path of engine_model. */
changing changing_open(const char *path, int threads);
void changing_close(changing *w); /* no page may be left */

/* Set-up and tear-down of a test, which must not leak. */
int changing_note_live(void **state);
int changing_check_live(void **state);
#define CHANGING_TEST(test) cmocka_unit_test_setup_teardown(test, changing_note_live, changing_check_live)

/* A session that was fed n of the ids in random pieces. */
mn_session *changing_fed(changing *w, engine_cache cache, size_t n);
mn_status changing_set(mn_session *session, engine_cache cache);

/* Feeds both sessions up to n tokens; the logits after each token must be equal. */
void changing_go_on_alike(changing *w, mn_session *got, mn_session *wanted, size_t n, int piece, const char *what);

#endif
