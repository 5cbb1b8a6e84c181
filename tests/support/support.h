/* Included by every test program: cmocka with its includes, paths of test data, counted skips.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

/* Fails the test with the library's message unless the call returned MN_OK. */
#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        mn_status assert_ok_status_ = (call);                                                                          \
        if (assert_ok_status_ != MN_OK) fail_msg("%s: %s", #call, mn_last_error());                                    \
    } while (0)

/* Fails unless the call returned `code` with a message that contains `part` (NULL: any). */
#define assert_fails(code, part, call)                                                                                 \
    do {                                                                                                               \
        mn_status assert_fails_status_ = (call);                                                                       \
        if (assert_fails_status_ != (code)) {                                                                          \
            fail_msg("%s: status %d, expected %d: %s", #call, assert_fails_status_, (code), mn_last_error());          \
        }                                                                                                              \
        const char *assert_fails_part_ = (part);                                                                       \
        if (assert_fails_part_ && !strstr(mn_last_error(), assert_fails_part_)) {                                      \
            fail_msg("%s: the message '%s' lacks '%s'", #call, mn_last_error(), assert_fails_part_);                   \
        }                                                                                                              \
    } while (0)

/* "tests/data/<name>" as an absolute path; valid until the 64th call after it. */
const char *data_path(const char *name);

/* A path inside the data that are not part of the project ($MNEME_SHARED, else ../shared beside the source), or NULL
 * when they are missing: then the test calls skip(), which cmocka counts. */
const char *shared_path(const char *name);

/* A real model: the path `given`, or where that is NULL `name` as the library finds it in $MNEME_TEST_MODELS
 * (tests/run). NULL when it is not installed; valid until the 64th call after it. */
const char *real_model_path(const char *given, const char *name);
const char *smollm2_path(void);              /* $MNEME_TEST_SMOLLM2, else SmolLM2-135M-Instruct.Q4_1.gguf */
const char *whisper_path(const char *model); /* "whisper-tiny.en", "whisper-base" */

/* Whether the long tier runs: MNEME_LONG=1. */
bool test_is_long(void);

/* Whether a sanitizer checks this build: gcc's macros, clang's features. */
#if defined(__has_feature)
#define TEST_HAS(feature) __has_feature(feature)
#else
#define TEST_HAS(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || TEST_HAS(address_sanitizer) ||                    \
    TEST_HAS(thread_sanitizer) || TEST_HAS(memory_sanitizer) || TEST_HAS(undefined_behavior_sanitizer)
enum { TEST_IS_SANITIZED = true };
#else
enum { TEST_IS_SANITIZED = false };
#endif

/* Whether member i of a product of strategies, models or shapes is tried: each one, but with a sanitizer only one of
 * `every`, because a slow build looks for faults that members share. MNEME_LONG has them all. */
bool test_samples(int i, int every);
/* The distance between the allocations that a test lets fail in turn: 1, and in the short tier with a sanitizer
 * `every`. */
int test_stride(int every);
/* Skips the case in the short tier with a sanitizer: numbers of operations that other cases try one by one.
 */
void test_of_numbers(void);

/* A small deterministic generator for test inputs. */
uint64_t test_random(uint64_t *state);
double test_uniform(uint64_t *state, double lo, double hi);

/* Parses a JSON file of the test data, failing the test when that is impossible. */
json_doc *open_json(const char *path);

#endif
