/* Whisper's logits rules against a predicate for each id, against recorded scores before and after them, and against
 * every recorded transcript, which they must allow.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/rules.h"

#include <math.h>

#include "support/speech/transcripts.h"

/* ---- an independent implementation of the rules, id by id ---- */

static bool is_listed(const int32_t *list, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++) {
        if (list[i] == id) return true;
    }
    return false;
}

/* The grammar: TIME is a timestamp, WORD any other id. */
static bool grammar_allows(const speech_tokens *t, const int32_t *ids, size_t n, int32_t id) {
    bool is_time = id >= t->first_timestamp;
    if (n == 0) return is_time && (t->max_initial_timestamp < 0 || id - t->first_timestamp <= t->max_initial_timestamp);
    int32_t latest = -1;
    size_t run = 0; /* timestamps at the end */
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= t->first_timestamp) latest = ids[i];
        run = ids[i] >= t->first_timestamp ? run + 1 : 0;
    }
    bool half_pair = run == 1 && n > 1; /* text and one timestamp: the second one must follow */
    if (half_pair) return is_time ? id >= latest : id >= t->end;
    if (run > 0) return !is_time;
    return !is_time || id > latest;
}

static void oracle(double *out, const speech_tokens *t, const double *scores, bool timestamps, const int32_t *ids,
                   size_t n) {
    double sum = 0.0, best = -INFINITY;
    for (int32_t id = 0; id < t->vocab_size; id++) {
        bool is_out = is_listed(t->suppress, t->n_suppress, id) ||
                      (n == 0 && is_listed(t->begin_suppress, t->n_begin_suppress, id)) ||
                      (timestamps && (id == t->no_timestamps || !grammar_allows(t, ids, n, id)));
        out[id] = is_out ? -INFINITY : scores[id];
        if (id >= t->first_timestamp) {
            sum += exp(out[id]);
        } else {
            best = fmax(best, out[id]);
        }
    }
    for (int32_t id = 0; timestamps && id < t->first_timestamp && log(sum) > best; id++) out[id] = -INFINITY;
}

static void random_ids(uint64_t *seed, const speech_tokens *t, int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t kind = test_random(seed) % 3;
        int32_t span = kind == 0 ? t->vocab_size - t->first_timestamp : t->end;
        ids[i] = (kind == 0 ? t->first_timestamp : 0) + (int32_t)(test_random(seed) % (uint64_t)span);
        if (kind == 2 && i > 0) ids[i] = ids[i - 1];
    }
}

static void the_rules_equal_the_predicate(void **state) {
    (void)state;
    speech_tokens t;
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper/tiny80")));
    enum { MOST = 400, LONGEST = 7 };
    float scores[MOST];
    double before[MOST], wanted[MOST];
    assert_true(t.vocab_size <= MOST);
    uint64_t seed = 5;
    int n_text_forbidden = 0, n_text_allowed = 0;
    for (int round = 0; round < 4000; round++) {
        int32_t ids[LONGEST];
        size_t n = test_random(&seed) % (LONGEST + 1);
        random_ids(&seed, &t, ids, n);
        bool timestamps = test_random(&seed) % 8 != 0;
        t.max_initial_timestamp = test_random(&seed) % 2 ? 15 : -1;
        /* The timestamps' total probability is near that of the best text token. */
        double lift = test_uniform(&seed, -6.0, 2.0);
        for (int32_t id = 0; id < t.vocab_size; id++) {
            scores[id] = (float)(test_uniform(&seed, -4.0, 4.0) + (id >= t.first_timestamp ? lift : 0.0));
            before[id] = (double)scores[id];
        }
        oracle(wanted, &t, before, timestamps, ids, n);
        int64_t allocations = mem_count().allocations;
        speech_rules_apply(scores, &t, timestamps, ids, n);
        assert_int_equal(mem_count().allocations, allocations);
        bool has_text = false;
        for (int32_t id = 0; id < t.vocab_size; id++) {
            if ((double)scores[id] != wanted[id])
                fail_msg("round %d, %zu ids: id %d has %g, expected %g", round, n, (int)id, (double)scores[id],
                         wanted[id]);
            has_text = has_text || (id < t.first_timestamp && scores[id] > -INFINITY);
        }
        if (timestamps && n > 0) *(has_text ? &n_text_allowed : &n_text_forbidden) += 1;
    }
    assert_true(n_text_allowed > 500 && n_text_forbidden > 500); /* both outcomes of the last rule occurred */
    speech_tokens_close(&t);
}

/* ---- recorded runs ---- */

typedef struct tally {
    size_t n_steps, n_runs;
    float *scores;
} tally;

static int32_t best_of(const float *scores, int32_t n) {
    int32_t best = 0;
    for (int32_t id = 1; id < n; id++) best = scores[id] > scores[best] ? id : best;
    return best;
}

/* Every id of a run is allowed after those before it, and the end token after all of them. */
static void check_path(const transcript *t, const json *list, bool timestamps, bool is_ended, tally *all) {
    int32_t ids[MOST_IDS];
    size_t n = transcript_ids(list, ids);
    if (is_ended) ids[n++] = t->tokens.end;
    for (size_t i = 0; i < n; i++) {
        memset(all->scores, 0, (size_t)t->tokens.vocab_size * sizeof *all->scores);
        all->scores[ids[i]] = 20.0f;
        speech_rules_apply(all->scores, &t->tokens, timestamps, ids, i);
        if (best_of(all->scores, t->tokens.vocab_size) != ids[i])
            fail_msg("%s: id %zu of a recorded run, %d, is not allowed", t->name, i, (int)ids[i]);
        all->n_steps++;
    }
    all->n_runs++;
}

static void visit_paths(const transcript *t, void *user) {
    static const char *const runs[] = {"greedy", "beam5", "greedy_translate", "greedy_timestamps"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const json *run = transcript_run(t, runs[i]);
        if (run) check_path(t, json_get(run, "tokens"), i == 3, true, user);
    }
    if (!json_is_string(json_get(t->root, "kind"), "whisper")) return;
    const json *timestamps = json_get(json_get(t->root, "args"), "return_timestamps");
    check_path(t, json_get(t->root, "new"), timestamps && timestamps->boolean, false, user);
}

static void recorded_runs_are_allowed(void **state) {
    (void)state;
    tally all = {.scores = test_malloc(sizeof(float) * 60000)};
    transcripts_visit(visit_paths, &all);
    assert_true(all.n_runs >= 45 && all.n_steps > 1000);
    test_free(all.scores);
}

/* The five best before and after the rules: exactly the forbidden ones were removed, and the rest were scaled by one
 * factor. */
static void check_step(const transcript *t, const json *raw, const json *processed, bool timestamps, const int32_t *ids,
                       size_t n, tally *all) {
    for (int32_t id = 0; id < t->tokens.vocab_size; id++) all->scores[id] = -40.0f;
    for (size_t k = 0; k < raw->n; k++)
        all->scores[raw->items[k].items[0].integer] = (float)raw->items[k].items[1].real;
    speech_rules_apply(all->scores, &t->tokens, timestamps, ids, n);
    double scale = NAN;
    for (size_t k = 0; k < raw->n; k++) {
        int32_t id = (int32_t)raw->items[k].items[0].integer;
        const json *left = NULL;
        for (size_t m = 0; m < processed->n; m++) {
            if (processed->items[m].items[0].integer == id) left = &processed->items[m].items[1];
        }
        if ((left != NULL) != (all->scores[id] > -INFINITY))
            fail_msg("%s: step %zu: id %d is %s", t->name, n, (int)id, left ? "forbidden" : "allowed");
        if (!left) continue;
        double moved = left->real - raw->items[k].items[1].real;
        if (isnan(scale)) scale = moved;
        assert_true(fabs(moved - scale) < 1e-5);
    }
    all->n_steps++;
}

static void visit_scores(const transcript *t, void *user) {
    static const char *const runs[] = {"greedy", "greedy_translate", "greedy_timestamps"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const json *run = transcript_run(t, runs[i]);
        if (!run) continue;
        int32_t ids[MOST_IDS];
        transcript_ids(json_get(run, "tokens"), ids);
        const json *raw = json_get(run, "first5_top5_raw"), *processed = json_get(run, "first5_top5_processed");
        for (size_t n = 0; raw && n < raw->n; n++)
            check_step(t, &raw->items[n], &processed->items[n], i == 2, ids, n, user);
    }
}

static void recorded_scores_are_reproduced(void **state) {
    (void)state;
    tally all = {.scores = test_malloc(sizeof(float) * 60000)};
    transcripts_visit(visit_scores, &all);
    assert_true(all.n_steps >= 100);
    test_free(all.scores);
}

/* ---- no-speech probability and language ---- */

static void no_speech_probability_and_language_are_computed(void **state) {
    (void)state;
    speech_tokens t;
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper/tiny80")));
    float logits[400];
    double p[4];
    for (int round = 0; round < 50; round++) {
        uint64_t seed = 100 + (uint64_t)round;
        double sum = 0.0, among = 0.0;
        for (int32_t id = 0; id < t.vocab_size; id++) {
            logits[id] = (float)test_uniform(&seed, 80.0, 95.0);
            sum += exp((double)logits[id]);
        }
        double silence = exp((double)logits[210]) / sum; /* gen/logits/scores.h takes exponentials in float32 */
        assert_true(fabs(speech_no_speech_probability(logits, &t) - silence) < 1e-6 * silence);
        int best = 0;
        for (int i = 0; i < 4; i++) {
            among += exp((double)logits[t.languages[i].id]);
            if (logits[t.languages[i].id] > logits[t.languages[best].id]) best = i;
        }
        assert_ptr_equal(speech_detect_language(p, logits, &t), &t.languages[best]);
        for (int i = 0; i < 4; i++) assert_true(fabs(p[i] - exp((double)logits[t.languages[i].id]) / among) < 1e-12);
        assert_ptr_equal(speech_detect_language(NULL, logits, &t), &t.languages[best]);
    }
    for (int32_t id = 0; id < t.vocab_size; id++) logits[id] = NAN;
    assert_null(speech_detect_language(p, logits, &t));
    assert_true(p[0] == 0.0 && speech_no_speech_probability(logits, &t) == 0.0);
    logits[t.languages[2].id] = 3.0f; /* the only finite score */
    assert_ptr_equal(speech_detect_language(p, logits, &t), &t.languages[2]);
    assert_true(p[2] == 1.0 && p[1] == 0.0);
    speech_tokens_close(&t);
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper-real/whisper-tiny.en")));
    assert_null(speech_detect_language(NULL, logits, &t));
    speech_tokens_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rules_equal_the_predicate),
        cmocka_unit_test(recorded_runs_are_allowed),
        cmocka_unit_test(recorded_scores_are_reproduced),
        cmocka_unit_test(no_speech_probability_and_language_are_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
