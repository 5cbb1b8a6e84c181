/* Assisted decoding changes no result: greedy text and session contents are equal bit for bit, with every cache
 * strategy, in batches, however the text ends; samples have the same draws or the same distribution.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <math.h>

#include "gen/search/drafter.h"
#include "support/scratch.h"

enum { N_NEW = 48, MOST_PROMPT = 90, N_AFTER = 3 };

/* How tokens are proposed. */
typedef enum guess { GUESS_NOTHING, GUESS_WINDOW, GUESS_SELF, GUESS_OTHER, N_GUESSES } guess;
static const char *const guess_names[N_GUESSES] = {"nothing", "prompt lookup", "itself", "another model"};

typedef struct trial {
    mn_model *model, *other;
    size_t vocab;
    mn_generation_config *config;
    mn_generate_options options;
    int32_t prompt[MOST_PROMPT];
    size_t n_prompt;
} trial;

static void set(mn_generation_config *config, const char *name, const char *value) {
    assert_ok(mn_generation_config_set(config, name, value));
}

static void set_number(mn_generation_config *config, const char *name, long long value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    set(config, name, text);
}

/* The prompt repeats itself, so that prompt lookup finds matches. */
static trial open_trial(const char *path, const char *other) {
    enum { PERIOD = 11 };
    trial t = {.model = engine_model(path, "f32", "auto", engine_threads())};
    mn_generate_options_init(&t.options, sizeof t.options);
    uint64_t seed = 9;
    t.vocab = (size_t)engine_vocab(t.model);
    t.other = other ? engine_model(other, "f32", "auto", engine_threads()) : NULL;
    t.n_prompt = MOST_PROMPT;
    engine_ids(&seed, t.prompt, t.n_prompt, (int32_t)t.vocab);
    for (size_t i = PERIOD; i < t.n_prompt; i++) {
        if (i % 5) t.prompt[i] = t.prompt[i - PERIOD];
    }
    t.options.keep_logits = true;
    assert_ok(mn_generation_config_open(&t.config, t.model));
    set(t.config, "ignore_eos", "true");
    set_number(t.config, "max_new_tokens", N_NEW);
    return t;
}

static void close_trial(trial *t) {
    mn_generation_config_close(&t->config);
    mn_model_close(&t->other);
    mn_model_close(&t->model);
}

static void set_guess(trial *t, guess how, long long tokens) {
    t->options.assistant = how == GUESS_SELF ? t->model : how == GUESS_OTHER ? t->other : NULL;
    set(t->config, "prompt_lookup_num_tokens", "null");
    if (how == GUESS_WINDOW) set_number(t->config, "prompt_lookup_num_tokens", tokens);
    set_number(t->config, "num_assistant_tokens", tokens);
    set(t->config, "assistant_confidence_threshold", "0");
}

static mn_generation *run(const trial *t, mn_session *session) {
    mn_generation *generation = NULL;
    assert_ok(mn_generate(session, t->prompt, t->n_prompt, t->config, &t->options, &generation));
    return generation;
}

static void same_sequence(const mn_sequence *got, const mn_sequence *wanted, size_t vocab, const char *what) {
    for (size_t i = 0; i < got->n_ids && i < wanted->n_ids; i++) {
        if (got->ids[i] != wanted->ids[i])
            fail_msg("%s: token %zu is %d, without assistance %d", what, i, got->ids[i], wanted->ids[i]);
    }
    if (got->n_ids != wanted->n_ids)
        fail_msg("%s: %zu tokens, without assistance %zu", what, got->n_ids, wanted->n_ids);
    assert_string_equal(got->finish_reason, wanted->finish_reason);
    assert_int_equal(got->n_text, wanted->n_text);
    if (got->n_text) assert_memory_equal(got->text, wanted->text, got->n_text);
    if (got->logits) engine_same_bits(got->logits, wanted->logits, got->n_ids, vocab, "%s", what);
}

/* Both sessions hold the same tokens and give the same next logits. */
static void same_session(mn_session *got, mn_session *wanted, size_t vocab, const char *what) {
    assert_int_equal(mn_session_length(got), mn_session_length(wanted));
    size_t n = (size_t)mn_session_length(got);
    assert_memory_equal(mn_session_ids(got), mn_session_ids(wanted), n * sizeof(int32_t));
    assert_ok(kv_check(got->cache));
    assert_int_equal(strategy_quantized(got), strategy_quantized(wanted));
    assert_non_null(mn_session_logits(got));
    engine_same_bits(mn_session_logits(got), mn_session_logits(wanted), 1, vocab, "%s, after the text", what);
    for (int32_t i = 0; i < N_AFTER; i++) {
        int32_t id = (int32_t)((size_t)(7 * i + 1) % vocab);
        assert_ok(mn_session_step(got, &id, 1, NULL));
        assert_ok(mn_session_step(wanted, &id, 1, NULL));
        engine_same_bits(mn_session_logits(got), mn_session_logits(wanted), 1, vocab, "%s, %d tokens later", what,
                         i + 1);
    }
}

/* ---- every strategy ---- */

/* Guesses by `one`, or by each in the long tier. */
static void check_strategy(trial *t, int i, guess one, const char *exact, size_t accepted[N_GUESSES],
                           size_t proposed[N_GUESSES]) {
    static const long long tokens[N_GUESSES] = {0, 4, 7, 3};
    engine_cache cache = strategy_cache(i, exact);
    for (guess how = GUESS_WINDOW; how < N_GUESSES; how++) {
        if (!strategy_is_long() && how != one) continue;
        char what[160];
        snprintf(what, sizeof what, "strategy %d (%s %s) %s, guesses by %s", i, cache.implementation,
                 cache.config ? cache.config : "", exact, guess_names[how]);
        if (how == GUESS_OTHER && !t->other) continue;
        mn_session *plain = engine_session(t->model, cache), *session = engine_session(t->model, cache);
        set_guess(t, GUESS_NOTHING, 1);
        mn_generation *wanted = run(t, plain);
        set_guess(t, how, tokens[how]);
        mn_generation *got = run(t, session);
        same_sequence(got->sequences[0], wanted->sequences[0], t->vocab, what);
        same_session(session, plain, t->vocab, what);
        accepted[how] += got->sequences[0]->draft_accepted;
        proposed[how] += got->sequences[0]->draft_tokens;
        mn_generation_close(&got);
        mn_generation_close(&wanted);
        mn_session_close(&session);
        mn_session_close(&plain);
    }
}

static void every_strategy_gives_the_unassisted_text(void **state) {
    (void)state;
    size_t accepted[N_GUESSES] = {0}, proposed[N_GUESSES] = {0};
    for (int j = 0; j < N_STRATEGY_MODELS; j++) {
        bool has_draft = strcmp(strategy_models[j], "golden/llama") == 0;
        trial t = open_trial(strategy_models[j], has_draft ? "golden/decoding/draft" : NULL);
        for (int form = 0; form < 2; form++) {
            for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
                if (!strategy_tries(i, form, j)) continue;
                guess one = (guess)(1 + (i + (i + form) / 2) % 3);
                if (!test_samples(1, 2) && t.other) one = GUESS_OTHER; /* few of the sample have another model */
                check_strategy(&t, i, one, strategy_dtypes[form], accepted, proposed);
            }
        }
        close_trial(&t);
    }
    /* Some proposals are accepted and some are rejected. */
    for (guess how = GUESS_WINDOW; how < N_GUESSES; how++) {
        print_message("%s: %zu of %zu proposals accepted\n", guess_names[how], accepted[how], proposed[how]);
        assert_true(accepted[how] > (strategy_is_brief() ? 0 : 10) && accepted[how] < proposed[how]);
    }
}

/* Layers with and without windows in one model, and rotary angles that depend on the length: every kind of truncation.
 */
static void mixed_layers_and_dynamic_rope_give_the_unassisted_text(void **state) {
    (void)state;
    const char *const models[] = {strategy_hybrid_folder(), "golden/phi3-longrope"};
    size_t accepted[N_GUESSES] = {0}, proposed[N_GUESSES] = {0};
    for (int j = 0; j < 2; j++) {
        trial t = open_trial(models[j], NULL);
        for (int i = 0; i < N_ENGINE_STRATEGIES; i += strategy_is_brief() ? 3 : 1) {
            if (!test_samples(i, 2)) continue;
            for (t.n_prompt = j ? 12 : 40; t.n_prompt < 90; t.n_prompt += 33)
                check_strategy(&t, i, (guess)(1 + (i + (int)t.n_prompt / 33) % 3), "f32", accepted, proposed);
        }
        close_trial(&t);
    }
    assert_true(accepted[GUESS_SELF] > (strategy_is_brief() ? 30 : 100));
}

/* ---- batches ---- */

static void rows_of_a_batch_equal_single_runs(void **state) {
    (void)state;
    enum { N_ROWS = 3 };
    static const size_t lengths[N_ROWS] = {7, 90, 33};
    trial t = open_trial("golden/llama", "golden/decoding/draft");
    for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
        if (!test_samples(i, 4)) continue;
        guess how = (guess)(1 + i % (N_GUESSES - 1));
        engine_cache cache = strategy_cache(i, "f32");
        mn_cache_options options = engine_cache_options(cache);
        mn_batch_row rows[N_ROWS];
        mn_generation *got = NULL;
        for (size_t r = 0; r < N_ROWS; r++)
            rows[r] = (mn_batch_row){.size = sizeof(mn_batch_row), .prompt = t.prompt, .n_prompt = lengths[r]};
        set_guess(&t, how, 5);
        assert_ok(mn_generate_batch(t.model, &options, rows, N_ROWS, t.config, &t.options, &got));
        set_guess(&t, GUESS_NOTHING, 1);
        for (size_t r = 0; r < N_ROWS; r++) {
            mn_session *session = engine_session(t.model, cache);
            t.n_prompt = lengths[r];
            mn_generation *wanted = run(&t, session);
            same_sequence(got->sequences[r], wanted->sequences[0], t.vocab, cache.implementation);
            mn_generation_close(&wanted);
            mn_session_close(&session);
        }
        mn_generation_close(&got);
    }
    close_trial(&t);
}

/* ---- ends of a text ---- */

static void compare(trial *t, guess how, long long tokens, const char *what) {
    mn_session *plain = engine_session(t->model, (engine_cache){.page_tokens = 16}),
               *session = engine_session(t->model, (engine_cache){.page_tokens = 16});
    set_guess(t, GUESS_NOTHING, 1);
    mn_generation *wanted = run(t, plain);
    set_guess(t, how, tokens);
    mn_generation *got = run(t, session);
    same_sequence(got->sequences[0], wanted->sequences[0], t->vocab, what);
    same_session(session, plain, t->vocab, what);
    mn_generation_close(&got);
    mn_generation_close(&wanted);
    mn_session_close(&session);
    mn_session_close(&plain);
}

static void every_length_limit_gives_the_unassisted_text(void **state) {
    (void)state;
    trial t = open_trial("golden/llama", "golden/decoding/draft");
    for (long long n_new = 1; n_new <= 12; n_new++) {
        for (long long tokens = 1 + n_new % 2; tokens <= 9; tokens += 3) {
            if (!test_samples((int)(n_new + tokens / 3), 3)) continue;
            set_number(t.config, "max_new_tokens", n_new);
            for (guess how = GUESS_WINDOW; how < N_GUESSES; how++) compare(&t, how, tokens, "max_new_tokens");
        }
    }
    set(t.config, "max_new_tokens", "null");
    for (long long length = MOST_PROMPT + 1; length < MOST_PROMPT + 9; length++) {
        set_number(t.config, "max_length", length);
        compare(&t, GUESS_SELF, 4, "max_length");
    }
    close_trial(&t);
}

static void end_tokens_inside_proposals_end_the_text(void **state) {
    (void)state;
    trial t = open_trial("golden/llama", "golden/decoding/draft");
    mn_session *session = engine_session(t.model, (engine_cache){0});
    mn_generation *text = run(&t, session);
    set(t.config, "ignore_eos", "false");
    for (size_t i = 0; i < N_NEW; i += 1 + i / 12) {
        if (!test_samples((int)i, 3)) continue;
        set_number(t.config, "eos_token_id", text->sequences[0]->ids[i]);
        for (guess how = GUESS_WINDOW; how < N_GUESSES; how++) compare(&t, how, 6, "eos");
        set_number(t.config, "min_new_tokens", (long long)i / 2);
        compare(&t, GUESS_SELF, 6, "eos and min_new_tokens");
        set(t.config, "min_new_tokens", "0");
    }
    mn_generation_close(&text);
    mn_session_close(&session);
    close_trial(&t);
}

typedef struct shown {
    bytes text;
    size_t n_events, most; /* events until the callback stops the run; 0: never */
} shown;

static bool show(void *user, const mn_token_event *event) {
    shown *s = user;
    bytes_printf(&s->text, "%d:", event->id);
    bytes_append(&s->text, event->text, event->n_text);
    return ++s->n_events != s->most;
}

/* Token events are also equal, up to the cancellation by the callback. */
static void compare_shown(trial *t, guess how, size_t most) {
    shown without = {.most = most}, with = {.most = most};
    t->options.on_token = show;
    mn_session *plain = engine_session(t->model, (engine_cache){0}),
               *session = engine_session(t->model, (engine_cache){0});
    set_guess(t, GUESS_NOTHING, 1);
    t->options.user = &without;
    mn_generation *wanted = run(t, plain);
    set_guess(t, how, 6);
    t->options.user = &with;
    mn_generation *got = run(t, session);
    same_sequence(got->sequences[0], wanted->sequences[0], t->vocab, "shown");
    assert_int_equal(with.n_events, without.n_events);
    assert_string_equal(bytes_text(&with.text), bytes_text(&without.text));
    if (most) assert_string_equal(got->sequences[0]->finish_reason, "cancelled");
    same_session(session, plain, t->vocab, "shown");
    mn_generation_close(&got);
    mn_generation_close(&wanted);
    mn_session_close(&session);
    mn_session_close(&plain);
    bytes_clear(&with.text);
    bytes_clear(&without.text);
    t->options.on_token = NULL;
}

static void stop_strings_and_cancellation_give_the_unassisted_text(void **state) {
    (void)state;
    static const char *const stops[] = {"[\" a\"]", "[\"the\"]", "[\"there wa\"]", "[\".\"]",
                                        "[\"e \", \"Once upon\"]"};
    trial t = open_trial("embedded", NULL);
    t.prompt[0] = 1;
    t.n_prompt = 1;
    for (size_t most = 1; most < 12; most++) {
        compare_shown(&t, GUESS_SELF, most);
        compare_shown(&t, GUESS_WINDOW, most);
    }
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        set(t.config, "stop_strings", stops[i]);
        compare_shown(&t, GUESS_SELF, 0);
        compare_shown(&t, GUESS_WINDOW, 0);
    }
    close_trial(&t);
}

/* ---- sampling ---- */

/* Prompt lookup has no draft distribution: every draw equals that of the unassisted run. */
static void prompt_lookup_keeps_every_draw(void **state) {
    (void)state;
    test_of_numbers();
    trial t = open_trial("golden/llama", NULL);
    set(t.config, "do_sample", "true");
    set(t.config, "top_k", "3");
    set(t.config, "temperature", "0.3");
    set(t.config, "num_return_sequences", "3");
    size_t accepted = 0;
    for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
        engine_cache cache = strategy_cache(i, "f32");
        mn_session *plain = engine_session(t.model, cache), *session = engine_session(t.model, cache);
        set_number(t.config, "seed", i);
        set_guess(&t, GUESS_NOTHING, 1);
        mn_generation *wanted = run(&t, plain);
        set_guess(&t, GUESS_WINDOW, 5);
        mn_generation *got = run(&t, session);
        for (size_t k = 0; k < 3; k++) {
            same_sequence(got->sequences[k], wanted->sequences[k], t.vocab, cache.implementation);
            accepted += got->sequences[k]->draft_accepted;
        }
        same_session(session, plain, t.vocab, cache.implementation);
        mn_generation_close(&got);
        mn_generation_close(&wanted);
        mn_session_close(&session);
        mn_session_close(&plain);
    }
    assert_true(accepted > 20);
    close_trial(&t);
}

enum { KEPT = 4, N_DRAWN = 3, N_CELLS = KEPT * KEPT * KEPT, N_SEEDS = 6, N_SAMPLES = 1000 };

/* Probabilities of the KEPT best tokens, best first, in double precision. */
static void best_tokens(const float *logits, size_t vocab, double temperature, int32_t *ids, double *p) {
    double sum = 0;
    for (int k = 0; k < KEPT; k++) {
        ids[k] = -1;
        for (size_t i = 0; i < vocab; i++) {
            bool is_taken = false;
            for (int j = 0; j < k; j++) is_taken = is_taken || ids[j] == (int32_t)i;
            if (!is_taken && (ids[k] < 0 || logits[i] > logits[ids[k]])) ids[k] = (int32_t)i;
        }
        p[k] = exp((double)(logits[ids[k]] - logits[ids[0]]) / temperature);
        sum += p[k];
    }
    for (int k = 0; k < KEPT; k++) p[k] /= sum;
}

/* All texts of N_DRAWN tokens with their probabilities, from plain session steps. */
static void list_texts(const trial *t, double temperature, int32_t texts[N_CELLS][N_DRAWN], double *p) {
    mn_session *session = engine_session(t->model, (engine_cache){0});
    for (int cell = 0; cell < N_CELLS; cell++) {
        p[cell] = 1;
        assert_ok(mn_session_sync(session, t->prompt, t->n_prompt, NULL));
        for (int step = 0, rest = cell; step < N_DRAWN; step++, rest /= KEPT) {
            int32_t ids[KEPT];
            double each[KEPT];
            best_tokens(mn_session_logits(session), t->vocab, temperature, ids, each);
            texts[cell][step] = ids[rest % KEPT];
            p[cell] *= each[rest % KEPT];
            assert_ok(mn_session_step(session, &texts[cell][step], 1, NULL));
        }
    }
    mn_session_close(&session);
}

static int cell_of(int32_t texts[N_CELLS][N_DRAWN], const int32_t *ids) {
    for (int cell = 0; cell < N_CELLS; cell++) {
        if (memcmp(texts[cell], ids, N_DRAWN * sizeof *ids) == 0) return cell;
    }
    return -1;
}

/* Upper tail of chi-square, by the cube root's normal approximation (Wilson and Hilferty 1931). */
static double chi_square_tail(double x, double freedom) {
    double z = (cbrt(x / freedom) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom));
    return erfc(z / sqrt(2)) / 2;
}

static void draft_models_keep_the_distribution(void **state) {
    (void)state;
    test_of_numbers();
    static int32_t texts[N_CELLS][N_DRAWN];
    static double p[N_CELLS], counts[N_CELLS];
    const double temperature = 1.5;
    trial t = open_trial("golden/llama", "golden/decoding/draft");
    t.n_prompt = 5;
    t.options.keep_logits = false;
    list_texts(&t, temperature, texts, p);
    set_guess(&t, GUESS_OTHER, 4);
    set(t.config, "do_sample", "true");
    set(t.config, "top_k", "4");
    set(t.config, "temperature", "1.5");
    set_number(t.config, "max_new_tokens", N_DRAWN);
    set_number(t.config, "num_return_sequences", N_SAMPLES);
    mn_session *session = engine_session(t.model, (engine_cache){0});
    size_t proposed = 0, accepted = 0;
    for (int seed = 0; seed < N_SEEDS; seed++) {
        set_number(t.config, "seed", seed);
        mn_generation *generation = run(&t, session);
        for (size_t k = 0; k < N_SAMPLES; k++) {
            const mn_sequence *s = generation->sequences[k];
            int cell = cell_of(texts, s->ids);
            if (cell < 0) fail_msg("%d %d %d is not a text of the best tokens", s->ids[0], s->ids[1], s->ids[2]);
            counts[cell]++;
            proposed += s->draft_tokens;
            accepted += s->draft_accepted;
        }
        mn_generation_close(&generation);
    }
    double chi = 0, total = (double)N_SEEDS * N_SAMPLES;
    for (int cell = 0; cell < N_CELLS; cell++) {
        assert_true(p[cell] * total > 5);
        chi += (counts[cell] - p[cell] * total) * (counts[cell] - p[cell] * total) / (p[cell] * total);
    }
    double tail = chi_square_tail(chi, N_CELLS - 1);
    print_message("chi-square %.1f over %d texts, p = %.3f; %zu of %zu proposals accepted\n", chi, N_CELLS, tail,
                  accepted, proposed);
    assert_true(tail > 0.001);
    assert_true(accepted * 10 > proposed && accepted * 10 < proposed * 9);
    mn_session_close(&session);
    close_trial(&t);
}

/* ---- number of proposals ---- */

static size_t count_proposed(trial *t, guess how, const char *tokens, const char *schedule, const char *threshold) {
    mn_session *session = engine_session(t->model, (engine_cache){0});
    set_guess(t, how, 1);
    set(t->config, "num_assistant_tokens", tokens);
    set(t->config, "num_assistant_tokens_schedule", schedule);
    set(t->config, "assistant_confidence_threshold", threshold);
    mn_generation *generation = run(t, session);
    const mn_sequence *s = generation->sequences[0];
    size_t n = s->draft_tokens;
    assert_int_equal(s->draft_accepted, n); /* it proposes to itself */
    mn_generation_close(&generation);
    mn_session_close(&session);
    return n;
}

static void schedules_and_thresholds_set_the_number_of_proposals(void **state) {
    (void)state;
    trial t = open_trial("golden/llama", NULL);
    set(t.config, "max_new_tokens", "20");
    /* The first token, then rounds of proposals and one more token each. */
    assert_int_equal(count_proposed(&t, GUESS_SELF, "3", "\"constant\"", "0"), 3 * 4 + 2); /* 1 + 4 * 4, 3 left */
    assert_int_equal(count_proposed(&t, GUESS_SELF, "1", "\"heuristic\"", "0"),
                     1 + 3 + 5 + 6); /* 1 + 2 + 4 + 6, 7 left */
    assert_int_equal(count_proposed(&t, GUESS_SELF, "5", "\"constant\"", "1"),
                     9); /* confidence always too low: one proposal a round */
    close_trial(&t);
}

/* The rule of Transformers: the first occurrence of the longest suffix that occurred before; proposals stop at an end
 * token. */
static void lookup_proposes_what_followed_the_first_match(void **state) {
    (void)state;
    static const struct {
        const char *width;
        size_t n, most, n_wanted;
        int32_t ids[16], wanted[4];
    } cases[] = {
        {"2", 9, 4, 4, {5, 6, 7, 8, 5, 6, 9, 5, 6}, {7, 8, 5, 6}}, /* not the newer 9 */
        {"2", 9, 2, 2, {5, 6, 7, 8, 5, 6, 9, 5, 6}, {7, 8}},
        {"3", 9, 4, 2, {5, 6, 7, 9, 2, 6, 8, 5, 6}, {7, 9}}, /* 8 5 6 did not occur, 5 6 did; 9 is followed by an end */
        {"1", 6, 4, 4, {3, 4, 4, 5, 6, 4}, {4, 5, 6, 4}},
        {"2", 5, 4, 0, {5, 2, 7, 8, 5}, {0}}, /* an end token follows */
        {"2", 4, 4, 0, {5, 6, 7, 8}, {0}},
        {"9", 2, 4, 1, {5, 5}, {5}},
        {"2", 1, 4, 0, {5}, {0}},
    };
    trial t = open_trial("golden/llama", NULL);
    mn_session *session = engine_session(t.model, (engine_cache){0});
    set(t.config, "ignore_eos", "false");
    set(t.config, "eos_token_id", "2");
    set(t.config, "prompt_lookup_num_tokens", "4");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ids[16], got[4];
        size_t n = 0;
        memcpy(ids, cases[i].ids, sizeof ids);
        set(t.config, "max_matching_ngram_size", cases[i].width);
        sequence text = {.all = ids, .n_prompt = cases[i].n};
        search_setup setup = {.session = session,
                              .config = t.config,
                              .options = &t.options,
                              .prompt = ids,
                              .n_prompt = cases[i].n,
                              .sequences = &text,
                              .n_sequences = 1,
                              .max_new = 9};
        chooser c = {.setup = &setup, .vocab = t.vocab};
        drafter *d = NULL;
        assert_ok(drafter_open(&d, &c, &text, NULL));
        assert_ok(drafter_begin(d, cases[i].most, got, NULL));
        n = drafter_count(d);
        if (n != cases[i].n_wanted) fail_msg("case %zu: %zu tokens, expected %zu", i, n, cases[i].n_wanted);
        assert_memory_equal(got, cases[i].wanted, n * sizeof *got);
        drafter_close(&d);
    }
    mn_session_close(&session);
    close_trial(&t);
}

/* A direct implementation: n-gram sizes from the largest, positions from the first. */
static size_t look_up(const int32_t *ids, size_t n, size_t widest, size_t most, int32_t *found) {
    for (size_t width = widest < n - 1 ? widest : n - 1; width > 0; width--) {
        for (size_t at = 0; at + width < n; at++) {
            size_t count = 0;
            if (memcmp(ids + at, ids + n - width, width * sizeof *ids) != 0) continue;
            for (size_t i = at + width; i < n && count < most && ids[i] != 2; i++) found[count++] = ids[i];
            return count;
        }
    }
    return 0;
}

static void lookup_of_random_texts_equals_the_rule(void **state) {
    (void)state;
    enum { LONGEST = 40, PROPOSED = 4, ROUNDS = 20000 };
    trial t = open_trial("golden/llama", NULL);
    mn_session *session = engine_session(t.model, (engine_cache){0});
    set(t.config, "ignore_eos", "false");
    set(t.config, "eos_token_id", "2");
    set(t.config, "prompt_lookup_num_tokens", "4");
    uint64_t seed = 8;
    int32_t ids[LONGEST], got[PROPOSED], wanted[PROPOSED];
    sequence text = {.all = ids};
    search_setup setup = {.session = session, .config = t.config, .options = &t.options, .max_new = 9};
    chooser c = {.setup = &setup, .vocab = t.vocab};
    drafter *d = NULL;
    assert_ok(drafter_open(&d, &c, &text, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 0, letters = 2 + (size_t)(test_random(&seed) % 4);
        text.n_prompt = 1 + (size_t)(test_random(&seed) % LONGEST);
        t.config->max_matching_ngram_size = (int64_t)(1 + test_random(&seed) % 12);
        for (size_t i = 0; i < text.n_prompt; i++) ids[i] = (int32_t)(2 + test_random(&seed) % letters);
        size_t n_wanted = look_up(ids, text.n_prompt, (size_t)t.config->max_matching_ngram_size, PROPOSED, wanted);
        assert_ok(drafter_begin(d, PROPOSED, got, NULL));
        n = drafter_count(d);
        assert_int_equal(n, n_wanted);
        if (n) assert_memory_equal(got, wanted, n * sizeof *got);
    }
    drafter_close(&d);
    mn_session_close(&session);
    close_trial(&t);
}

/* ---- other vocabularies ---- */

/* A folder with a model and another, byte-level tokenizer. */
static const char *folder_with_tokenizer(void) {
    const char *folder = strategy_hybrid_folder();
    bytes text = {0};
    bytes_append_text(
        &text,
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
        "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"vocab\":{");
    int shifted = 256;
    for (int b = 0; b < 256; b++) {
        bool is_plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        bytes_printf(&text, "\"\\u%04x\":%d,", is_plain ? b : shifted++, b);
    }
    bytes_append_text(&text, "\"th\":256,\"\\u0120t\":257,\"he\":258,\"\\u0120a\":259,\"the\":260},"
                             "\"merges\":[\"t h\",\"\\u0120 t\",\"h e\",\"\\u0120 a\",\"t he\"]}}");
    assert_ok(bytes_status(&text));
    scratch_file("tokenizer.json", text.data, text.n);
    bytes_clear(&text);
    return folder;
}

static void drafts_of_other_tokenizers_are_translated_through_text(void **state) {
    (void)state;
    const char *folder = folder_with_tokenizer();
    const char *const pairs[][2] = {{"embedded", folder}, {folder, "embedded"}};
    for (int i = 0; i < 2; i++) {
        trial t = open_trial(pairs[i][0], pairs[i][1]);
        static const char prompt[] = "Once upon a time, there was a little girl named Lily. She loved to play";
        token_list ids = {0};
        assert_ok(tokenizer_encode(t.model->text, prompt, strlen(prompt), 0, &ids));
        t.n_prompt = ids.n;
        assert_true(ids.n <= MOST_PROMPT);
        memcpy(t.prompt, ids.ids, ids.n * sizeof *ids.ids);
        token_list_clear(&ids);
        compare(&t, GUESS_OTHER, 5, pairs[i][0]);
        set(t.config, "do_sample", "true");
        set(t.config, "seed", "3");
        compare(&t, GUESS_OTHER, 5, "sampled");
        close_trial(&t);
    }
}

/* A trained draft model with another tokenizer that proposes the same text. */
static void a_trained_draft_model_of_another_tokenizer_is_accepted(void **state) {
    (void)state;
    test_of_numbers();
    if (!smollm2_path()) skip();
    trial t = open_trial("embedded", smollm2_path());
    t.prompt[0] = 1;
    t.n_prompt = 1;
    set_number(t.config, "max_new_tokens", 30);
    mn_session *plain = engine_session(t.model, (engine_cache){0}),
               *session = engine_session(t.model, (engine_cache){0});
    mn_generation *wanted = run(&t, plain);
    set_guess(&t, GUESS_OTHER, 4);
    mn_generation *got = run(&t, session);
    const mn_sequence *s = got->sequences[0];
    same_sequence(s, wanted->sequences[0], t.vocab, "a trained draft");
    print_message("%zu of %zu proposals accepted\n", s->draft_accepted, s->draft_tokens);
    assert_true(s->draft_accepted >= 5);
    mn_generation_close(&got);
    mn_generation_close(&wanted);
    mn_session_close(&session);
    mn_session_close(&plain);
    close_trial(&t);
}

/* ---- errors ---- */

static void other_vocabularies_are_refused(void **state) {
    (void)state;
    trial t = open_trial("golden/llama", "embedded");
    mn_session *session = engine_session(t.model, (engine_cache){0});
    mn_generation *generation = NULL;
    set_guess(&t, GUESS_OTHER, 4);
    assert_fails(MN_E_ARG, "another vocabulary",
                 mn_generate(session, t.prompt, t.n_prompt, t.config, &t.options, &generation));
    assert_null(generation);
    assert_int_equal(mn_session_length(session), 0);
    set_guess(&t, GUESS_WINDOW, 4);
    generation = run(&t, session);
    mn_generation_close(&generation);
    mn_session_close(&session);
    close_trial(&t);
}

/* Whichever allocation fails, only the run fails; the session continues as if it had not been called. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    trial t = open_trial("golden/llama", "golden/decoding/draft");
    t.n_prompt = 9;
    set(t.config, "max_new_tokens", "8");
    set(t.config, "do_sample", "true");
    set(t.config, "seed", "1");
    for (guess how = GUESS_WINDOW; how < N_GUESSES; how += 2) {
        bool done = false;
        for (int64_t k = 1; !done; k++) {
            mn_session *session = engine_session(t.model, (engine_cache){.page_tokens = 4});
            mn_generation *generation = NULL;
            set_guess(&t, how, 3);
            mem_fail_after(k);
            mn_status status = mn_generate(session, t.prompt, t.n_prompt, t.config, &t.options, &generation);
            mem_fail_after(0);
            done = status == MN_OK;
            if (!done) assert_int_equal(status, MN_E_NOMEM);
            mn_generation_close(&generation);
            assert_ok(kv_check(session->cache));
            generation = run(&t, session);
            assert_int_equal(generation->sequences[0]->n_ids, 8);
            mn_generation_close(&generation);
            mn_session_close(&session);
            assert_true(k < 2000);
        }
    }
    close_trial(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_gives_the_unassisted_text),
        cmocka_unit_test(mixed_layers_and_dynamic_rope_give_the_unassisted_text),
        cmocka_unit_test(rows_of_a_batch_equal_single_runs),
        cmocka_unit_test(every_length_limit_gives_the_unassisted_text),
        cmocka_unit_test(end_tokens_inside_proposals_end_the_text),
        cmocka_unit_test(stop_strings_and_cancellation_give_the_unassisted_text),
        cmocka_unit_test(prompt_lookup_keeps_every_draw),
        cmocka_unit_test(draft_models_keep_the_distribution),
        cmocka_unit_test(schedules_and_thresholds_set_the_number_of_proposals),
        cmocka_unit_test(lookup_proposes_what_followed_the_first_match),
        cmocka_unit_test(lookup_of_random_texts_equals_the_rule),
        cmocka_unit_test(drafts_of_other_tokenizers_are_translated_through_text),
        cmocka_unit_test(a_trained_draft_model_of_another_tokenizer_is_accepted),
        cmocka_unit_test(other_vocabularies_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
