/* Single windows and long recordings of the tiny golden checkpoints, from features to segments: languages, logits
 * rules, timestamps, state passed from one window to the next.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/speech/whisper_golden.h"

#include <math.h>

#include "speech/rules.h"
#include "speech/window_transcriber.h"

static const char *const folders[] = {"golden/whisper/tiny80", "golden/whisper/tiny128"};

enum { MOST_IDS = 256 };

/* Features [n_frames][mels] of a recording, padded with zeros as in Transformers. */
typedef struct levels {
    const float *features; /* [mels][n_frames] */
    size_t mels, n_frames;
} levels;

static mn_status read_window(void *state, int64_t first, int n, float *out) {
    const levels *l = state;
    for (size_t i = 0; i < (size_t)n; i++) {
        for (size_t band = 0; band < l->mels; band++) {
            size_t at = (size_t)first + i;
            out[i * l->mels + band] = at < l->n_frames ? l->features[band * l->n_frames + at] : 0.0f;
        }
    }
    return MN_OK;
}

typedef struct fixture {
    golden g;
    speech_tokens tokens;
    window_transcriber_setup setup;
    double temperatures[1];
    window_transcriber *window_transcriber;
    transcript text;
    int32_t first[MOST_IDS]; /* what the first window generated */
    size_t n_first;
} fixture;

static void open_fixture(fixture *w, const char *folder) {
    *w = (fixture){.g = golden_open(folder)};
    assert_ok(speech_tokens_open(&w->tokens, data_path(folder)));
    window_transcriber_setup *s = &w->setup;
    s->model = w->g.model;
    s->tokens = &w->tokens;
    s->limits = (speech_limits){INFINITY, -INFINITY, INFINITY};
    s->temperatures = w->temperatures;
    s->n_temperatures = 1;
    s->num_beams = 1;
    mn_cache_options_init(&s->cache, sizeof s->cache);
    s->n_bands = (int)w->g.mels;
    s->n_frames = (int)w->g.frames;
    s->levels = malloc(w->g.mels * w->g.frames * sizeof(float));
    s->features = malloc(w->g.mels * w->g.frames * sizeof(float));
}

static void close_fixture(fixture *w) {
    free(w->setup.levels);
    free(w->setup.features);
    speech_tokens_close(&w->tokens);
    golden_close(&w->g);
}

static bool process(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab_size) {
    (void)row;
    (void)vocab_size;
    window_transcriber_process(((fixture *)user)->window_transcriber, ids, n, scores);
    return true;
}

/* Transcribes the recording with the settings of the case; compares the prompt where the case has one. */
static void transcribe(fixture *w, const json *test, levels *input) {
    const json *args = json_get(test, "args"), *times = json_get(args, "return_timestamps"),
               *prompt = json_get(test, "prompt"), *language = json_get(args, "language"),
               *conditions = json_get(args, "condition_on_prev_tokens");
    w->setup.timestamps = times && times->boolean;
    w->setup.conditions = conditions && conditions->boolean;
    w->setup.language = language ? speech_tokens_language(&w->tokens, language->string) : NULL;
    w->setup.max_new = json_get(args, "max_new_tokens")->integer;
    const window_transcriber_input from = {.window = read_window, .state = input, .n_frames = (int64_t)input->n_frames};
    w->text = (transcript){.tokens = &w->tokens};
    w->n_first = 0;
    assert_ok(window_transcriber_open(&w->window_transcriber, &w->setup, &from, &w->text));
    for (window_transcriber_step step = WINDOW_REQUEST;;) {
        mn_request request;
        int32_t ids[MOST_IDS];
        assert_ok(window_transcriber_next(w->window_transcriber, &request, &step));
        if (step == WINDOW_DONE) break;
        assert_int_equal(step, WINDOW_REQUEST);
        if (prompt) {
            assert_int_equal(request.n_prompt, engine_read_ids(prompt, ids, MOST_IDS));
            assert_memory_equal(request.prompt, ids, request.n_prompt * sizeof *ids);
        }
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        mn_generation *generation = NULL;
        how.process = process;
        how.user = w;
        const mn_batch_row row = {.size = sizeof row,
                                  .prompt = request.prompt,
                                  .n_prompt = request.n_prompt,
                                  .config = request.config,
                                  .prefix = request.prefix};
        assert_ok(mn_generate_batch(w->g.model, NULL, &row, 1, NULL, &how, &generation));
        const mn_sequence *sequence = generation->sequences[0];
        if (w->n_first == 0) {
            assert_true(sequence->n_ids <= MOST_IDS);
            w->n_first = sequence->n_ids;
            memcpy(w->first, sequence->ids, sequence->n_ids * sizeof *sequence->ids);
        }
        assert_ok(window_transcriber_take(w->window_transcriber, sequence));
        mn_generation_close(&generation);
    }
    window_transcriber_close(&w->window_transcriber);
    assert_ok(transcript_finish(&w->text, MN_OK));
}

static void check_ids(const char *name, const int32_t *got, size_t n_got, const json *wanted, size_t n_wanted) {
    for (size_t i = 0; i < n_got && i < n_wanted; i++) {
        if (got[i] != wanted->items[i].integer)
            fail_msg("%s: id %zu is %d, golden %d", name, i, got[i], (int)wanted->items[i].integer);
    }
    if (n_got != n_wanted) fail_msg("%s: %zu ids, golden %zu", name, n_got, n_wanted);
}

/* The mean log-probability of a window's ids and the end token after them, from the logits of one call. The windows
 * here end at the length limit without an end token, which is counted all the same. */
static void check_log_probability(fixture *w, const json *test) {
    const mn_transcript *got = &w->text.public;
    const json *prompt = json_get(test, "prompt");
    size_t vocab = w->g.vocab, n = w->n_first, n_prompt = prompt->n, n_all = n_prompt + n - 1;
    int32_t ids[MOST_IDS];
    double sum = 0;
    float *logits = malloc(n_all * vocab * sizeof *logits);
    mn_session *session = golden_session(&w->g, "dynamic", NULL, json_get(test, "input")->integer);
    engine_read_ids(prompt, ids, MOST_IDS);
    memcpy(ids + n_prompt, w->first, n * sizeof *ids);
    assert_ok(mn_session_step(session, ids, n_all, logits));
    for (size_t i = 0; i < n; i++) {
        float *scores = logits + (n_prompt - 1 + i) * vocab;
        double all = 0;
        speech_rules_apply(scores, &w->tokens, w->setup.timestamps, w->first, i);
        for (size_t k = 0; k < vocab; k++) all += exp((double)scores[k]);
        sum += (double)scores[w->first[i]] - log(all);
    }
    double wanted = sum / (double)(n + 1);
    if (!(fabs(got->segments[0]->avg_logprob - wanted) <= 1e-4))
        fail_msg("%s: mean log-probability %g, computed %g", json_get(test, "name")->string,
                 got->segments[0]->avg_logprob, wanted);
    mn_session_close(&session);
    free(logits);
}

/* One window: all ids that it generated, whichever of them are kept. */
static void check_window(fixture *w, const json *test) {
    levels input = {w->g.features[json_get(test, "input")->integer], w->g.mels, w->g.frames};
    const json *wanted = json_get(test, "new");
    transcribe(w, test, &input);
    check_ids(json_get(test, "name")->string, w->first, w->n_first, wanted, wanted->n);
    check_log_probability(w, test);
    transcript_clear(&w->text);
}

/* Transformers ends the last segment before a cut with both timestamps of the pair, and lets segments end after the
 * recording. */
static void check_long(fixture *w, const json *test) {
    size_t n;
    const char *name = json_get(test, "name")->string;
    float *features = golden_values(golden_tensor(&w->g, "long.%lld.features", name[strlen(name) - 1] - '0', 0), &n);
    levels input = {features, w->g.mels, n / w->g.mels};
    const json *wanted = json_get(test, "segments");
    double end = (double)input.n_frames / 100;
    assert_int_equal(input.n_frames, json_get(test, "frames")->integer);
    transcribe(w, test, &input);
    assert_int_equal(w->text.public.n_segments, wanted->n);
    for (size_t i = 0; i < wanted->n; i++) {
        const mn_segment *got = w->text.public.segments[i];
        const json *segment = &wanted->items[i], *ids = json_get(segment, "tokens");
        size_t n_ids = ids->n;
        if (n_ids > 1 && ids->items[n_ids - 1].integer >= w->tokens.first_timestamp &&
            ids->items[n_ids - 2].integer >= w->tokens.first_timestamp)
            n_ids--;
        check_ids(name, got->ids, got->n_ids, ids, n_ids);
        assert_true(fabs(got->start - json_get(segment, "start")->real) < 1e-9);
        assert_true(fabs(got->end - fmin(end, json_get(segment, "end")->real)) < 1e-9);
    }
    transcript_clear(&w->text);
    free(features);
}

static void check_languages(fixture *w, const json *test) {
    const json *detected = json_get(test, "detected"), *rows = json_get(test, "probabilities");
    assert_int_equal(detected->n, MOST_INPUTS);
    for (size_t i = 0; i < detected->n; i++) {
        double p[8] = {0};
        assert_true(w->tokens.n_languages == rows->items[i].n && rows->items[i].n <= 8);
        mn_session *session = golden_session(&w->g, "dynamic", NULL, (int64_t)i);
        assert_ok(mn_session_step(session, &w->tokens.start, 1, NULL));
        const speech_language *found = speech_detect_language(p, mn_session_logits(session), &w->tokens);
        assert_int_equal(found->id, detected->items[i].integer);
        for (size_t k = 0; k < rows->items[i].n; k++) {
            int32_t first = w->tokens.languages[0].id; /* golden probabilities are in the order of ids */
            for (size_t j = 1; j < w->tokens.n_languages; j++)
                if (w->tokens.languages[j].id < first) first = w->tokens.languages[j].id;
            double wanted = rows->items[i].items[w->tokens.languages[k].id - first].real;
            if (!(fabs(p[k] - wanted) <= 1e-4)) fail_msg("input %zu, language %zu: %g, golden %g", i, k, p[k], wanted);
        }
        mn_session_close(&session);
    }
}

static void equals_golden(void **state) {
    fixture w;
    int n_windows = 0, n_long = 0, n_languages = 0;
    open_fixture(&w, *state);
    for (size_t i = 0; i < w.g.cases->n; i++) {
        const json *test = &w.g.cases->items[i], *kind = json_get(test, "kind");
        if (json_is_string(kind, "whisper")) {
            check_window(&w, test);
            n_windows++;
        } else if (json_is_string(kind, "long")) {
            check_long(&w, test);
            n_long++;
        } else if (json_is_string(kind, "language")) {
            check_languages(&w, test);
            n_languages++;
        }
    }
    assert_true(n_windows >= 8 && n_long == 2 && n_languages == 1);
    close_fixture(&w);
}

/* ---- the end of a window ---- */

enum { NONE = -1, TIME = 1000 }; /* TIME + k: the timestamp k */

typedef struct ending {
    int32_t ids[12];  /* text ids, TIME + k; NONE: the end */
    int64_t kept;     /* of the ids */
    int64_t position; /* of the next window, in frames; -1: there is none */
} ending;

/* What a window of a recording generated is kept up to its last pair of timestamps, unless one timestamp ends it: the
 * rest is decoded again from there, in a recording of one window too (whisper/transcribe.py of OpenAI). */
static void the_rest_of_a_window_is_decoded_again(void **state) {
    static const ending endings[] = {
        {{TIME, 5, 6, TIME + 9, NONE}, 4, -1},
        {{TIME, 5, 6, TIME + 9, TIME + 9, NONE}, 4, 18},
        {{TIME, 5, 6, TIME + 9, TIME + 9, 7, 8, NONE}, 4, 18},
        {{TIME, 5, 6, TIME + 9, TIME + 10, 7, 8, TIME + 14, NONE}, 8, -1},
        {{TIME, 5, 6, TIME + 9, TIME + 10, 7, 8, TIME + 14, TIME + 14, NONE}, 8, 28},
        {{TIME, 5, 6, TIME + 9, TIME + 10, 7, TIME + 12, TIME + 13, 8, NONE}, 7, 24},
        {{TIME, 5, 6, 7, NONE}, 4, -1},
        {{5, 6, 7, NONE}, 3, -1},
    };
    fixture w;
    open_fixture(&w, *state);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        levels input = {w.g.features[0], w.g.mels, w.g.frames};
        const window_transcriber_input from = {.window = read_window, .state = &input, .n_frames = (int64_t)w.g.frames};
        const ending *e = &endings[i];
        int32_t ids[12];
        mn_sequence sequence = {.size = sizeof sequence, .ids = ids, .finish_reason = "eos"};
        for (; e->ids[sequence.n_ids] != NONE; sequence.n_ids++) {
            const int32_t id = e->ids[sequence.n_ids];
            ids[sequence.n_ids] = id < TIME ? id : w.tokens.first_timestamp + id - TIME;
        }
        w.setup.timestamps = true;
        w.setup.max_new = 12;
        w.text = (transcript){.tokens = &w.tokens};
        assert_ok(window_transcriber_open(&w.window_transcriber, &w.setup, &from, &w.text));
        mn_request request;
        window_transcriber_step step;
        assert_ok(window_transcriber_next(w.window_transcriber, &request, &step));
        assert_int_equal(step, WINDOW_REQUEST);
        assert_ok(window_transcriber_take(w.window_transcriber, &sequence));
        const int64_t position = window_transcriber_position(w.window_transcriber);
        assert_int_equal(position, e->position < 0 ? (int64_t)w.g.frames : e->position);
        assert_ok(window_transcriber_next(w.window_transcriber, &request, &step));
        assert_int_equal(step, e->position < 0 ? WINDOW_DONE : WINDOW_REQUEST);
        window_transcriber_close(&w.window_transcriber);
        assert_ok(transcript_finish(&w.text, MN_OK));
        assert_int_equal(w.text.public.n_ids, e->kept);
        assert_memory_equal(w.text.public.ids, ids, (size_t)e->kept * sizeof *ids);
        transcript_clear(&w.text);
    }
    close_fixture(&w);
}

int main(void) {
    enum { N = sizeof folders / sizeof *folders };
    struct CMUnitTest tests[N + 1];
    tests[N] = (struct CMUnitTest){.name = "the_rest_of_a_window_is_decoded_again",
                                   .test_func = the_rest_of_a_window_is_decoded_again,
                                   .initial_state = (void *)(uintptr_t)folders[0]};
    for (int i = 0; i < N; i++) {
        tests[i] = (struct CMUnitTest){
            .name = folders[i], .test_func = equals_golden, .initial_state = (void *)(uintptr_t)folders[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
