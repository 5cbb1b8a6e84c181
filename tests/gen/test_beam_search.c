/* Beam search beyond the golden outputs: ends of single beams, beam sampling, the cache of the best beam, batches,
 * memory limits and failed allocations, cancellation.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "gen/logits/choice.h"
#include "kv/group.h"
#include "support/changing.h"
#include "support/strategies.h"

enum { N_PROMPT = 29, N_BEAMS = 4 };

static mn_generation_config *config_of(const mn_model *model, const char *text) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_load(config, text, strlen(text)));
    return config;
}

static mn_generation *generate(mn_session *session, const int32_t *ids, size_t n, const char *settings,
                               const mn_generate_options *options) {
    mn_generation_config *config = config_of(session->owner, settings);
    mn_generation *g = NULL;
    assert_ok(mn_generate(session, ids, n, config, options, &g));
    mn_generation_config_close(&config);
    assert_ok(kv_check(session->cache));
    return g;
}

static void same_texts(const mn_generation *a, const mn_generation *b, bool same_reasons) {
    assert_int_equal(a->n_sequences, b->n_sequences);
    for (size_t i = 0; i < a->n_sequences; i++) {
        const mn_sequence *x = a->sequences[i], *y = b->sequences[i];
        assert_int_equal(x->n_ids, y->n_ids);
        assert_memory_equal(x->ids, y->ids, x->n_ids * sizeof *x->ids);
        assert_memory_equal(x->beam_indices, y->beam_indices, x->n_ids * sizeof *x->beam_indices);
        assert_memory_equal(x->transition_scores, y->transition_scores, x->n_ids * sizeof *x->transition_scores);
        assert_true(x->score == y->score);
        if (same_reasons) assert_string_equal(x->finish_reason, y->finish_reason);
    }
}

/* ---- the cache of the best beam ---- */

/* The session holds the prompt and the best text without its last token, and continues like one that was fed those
 * tokens. */
static void check_winner(strategy_fixture *w, int i, const char *exact, const char *settings) {
    const engine_strategy *strategy = &engine_strategies[i];
    enum { MORE = 10 };
    engine_cache cache = strategy_cache(i, exact);
    mn_session *session = engine_session(w->model, cache), *plain = engine_session(w->model, cache);
    mn_generation *g = generate(session, w->ids, N_PROMPT, settings, NULL);
    const mn_sequence *best = g->sequences[0];
    assert_int_equal(mn_session_length(session), N_PROMPT + (int64_t)best->n_ids - 1);
    assert_memory_equal(mn_session_ids(session), w->ids, N_PROMPT * sizeof *w->ids);
    assert_memory_equal(mn_session_ids(session) + N_PROMPT, best->ids, (best->n_ids - 1) * sizeof *best->ids);
    assert_ok(mn_session_step(plain, w->ids, N_PROMPT, NULL));
    for (size_t k = 0; k + 1 < best->n_ids; k++) assert_ok(mn_session_step(plain, &best->ids[k], 1, NULL));
    engine_ends_with(session, mn_session_logits(plain), strategy->cache.implementation);
    int32_t next = best->ids[best->n_ids - 1];
    for (int k = 0; k < MORE; k++) {
        assert_ok(mn_session_step(session, &next, 1, NULL));
        assert_ok(mn_session_step(plain, &next, 1, NULL));
        engine_ends_with(session, mn_session_logits(plain), strategy->cache.implementation);
        next = choice_best(mn_session_logits(session), w->vocab);
    }
    mn_generation_close(&g);
    mn_session_close(&session);
    mn_session_close(&plain);
}

static void the_session_continues_from_the_best_beam(void **state) {
    (void)state;
    static const char *const settings[] = {
        "{\"num_beams\": 4, \"max_new_tokens\": 17}",
        "{\"num_beams\": 4, \"max_new_tokens\": 17, \"eos_token_id\": [105, 127, 139, 200, 201, 202, 203]}",
        "{\"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.7, \"max_new_tokens\": 17}",
        "{\"num_beams\": 3, \"do_sample\": true, \"seed\": 4, \"max_new_tokens\": 17, \"ignore_eos\": true}",
        "{\"num_beams\": 3, \"force_words_ids\": [[7, 9], [44]], \"max_new_tokens\": 17}",
    };
    for (int j = 0; j < N_STRATEGY_MODELS; j++) {
        strategy_fixture w = strategy_fixture_open(strategy_models[j], "auto", engine_threads());
        for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
            if (strcmp(engine_strategies[i].cache.implementation, "hybrid") == 0 && j < 3) continue;
            for (int form = 0; form < 2; form++) {
                if (strategy_tries(i, form, j))
                    check_winner(&w, i, strategy_dtypes[form], settings[(i + form + j / 2) % 5]);
            }
        }
        strategy_fixture_close(&w);
    }
}

/* Greedy search from the best beam's cache equals greedy search over the whole text without a cache. */
static void the_best_beams_cache_equals_no_cache(void **state) {
    (void)state;
    static const char *const greedy = "{\"max_new_tokens\": 12, \"ignore_eos\": true}";
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    mn_session *session = engine_session(w.model, (engine_cache){.dtype = "f32", .page_tokens = 4}),
               *none = engine_session(w.model, (engine_cache){.implementation = "none", .dtype = "f32"});
    mn_generation *g = generate(session, w.ids, N_PROMPT, "{\"num_beams\": 5, \"max_new_tokens\": 20}", NULL), *got,
                  *wanted;
    int32_t ids[64];
    size_t n = g->sequences[0]->n_ids;
    memcpy(ids, w.ids, N_PROMPT * sizeof *ids);
    memcpy(ids + N_PROMPT, g->sequences[0]->ids, n * sizeof *ids);
    got = generate(session, ids, N_PROMPT + n, greedy, NULL);
    wanted = generate(none, ids, N_PROMPT + n, greedy, NULL);
    assert_int_equal(got->sequences[0]->cached_tokens, N_PROMPT + n - 1);
    assert_int_equal(wanted->sequences[0]->n_ids, 12);
    assert_memory_equal(got->sequences[0]->ids, wanted->sequences[0]->ids, 12 * sizeof *ids);
    mn_generation_close(&g);
    mn_generation_close(&got);
    mn_generation_close(&wanted);
    mn_session_close(&session);
    mn_session_close(&none);
    strategy_fixture_close(&w);
}

/* ---- ends of beams ---- */

typedef struct ender {
    const mn_tokenizer *text; /* NULL: the token `id` ends the beam */
    size_t n_prompt;
    const char *stop;
    int32_t id;
    int n_calls;
} ender;

static bool ends_here(void *user, int row, const int32_t *ids, size_t n) {
    ender *e = user;
    assert_int_equal(row, 0);
    e->n_calls++;
    if (!e->text) return ids[n - 1] == e->id;
    char *text = NULL;
    size_t n_text = 0;
    assert_ok(mn_detokenize(e->text, ids + e->n_prompt, n - e->n_prompt, MN_SKIP_SPECIAL, &text, &n_text));
    bool found = memmem(text, n_text, e->stop, strlen(e->stop)) != NULL;
    mn_free(text);
    return found;
}

/* A callback ends single beams as the end token does. */
static void a_callback_ends_single_beams(void **state) {
    (void)state;
    static const char *const forms[] = {
        "{\"num_beams\": 4, \"num_return_sequences\": 4, \"max_new_tokens\": 20, \"length_penalty\": 0, \"eos_token_id\": %s}",
        "{\"num_beams\": 4, \"num_return_sequences\": 4, \"max_new_tokens\": 20, \"num_beam_groups\": 2, "
        "\"diversity_penalty\": 0.5, \"length_penalty\": 0, \"eos_token_id\": %s}"};
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    mn_session *session = engine_session(w.model, (engine_cache){.page_tokens = 4});
    for (int i = 0; i < 2; i++) {
        char settings[256];
        int n_ended = 0;
        ender e = {0};
        snprintf(settings, sizeof settings, forms[i], "null");
        mn_generation *g = generate(session, w.ids, N_PROMPT, settings, NULL);
        e.id = g->sequences[0]->ids[6]; /* a token that occurs */
        mn_generation_close(&g);
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        how.stop = ends_here;
        how.user = &e;
        g = generate(session, w.ids, N_PROMPT, settings, &how);
        char id[16];
        snprintf(id, sizeof id, "%d", e.id);
        snprintf(settings, sizeof settings, forms[i], id);
        mn_generation *wanted = generate(session, w.ids, N_PROMPT, settings, NULL);
        same_texts(g, wanted, false);
        assert_true(e.n_calls > 0);
        for (size_t k = 0; k < g->n_sequences; k++) {
            bool ended = strcmp(g->sequences[k]->finish_reason, "callback") == 0;
            n_ended += ended;
            assert_string_equal(wanted->sequences[k]->finish_reason, ended ? "eos" : "length");
        }
        assert_true(n_ended > 0);
        mn_generation_close(&g);
        mn_generation_close(&wanted);
    }
    mn_session_close(&session);
    strategy_fixture_close(&w);
}

/* Stop strings end each beam separately, wherever they cross token boundaries; a callback that decodes the text gives
 * the same. */
static void stop_strings_end_single_beams(void **state) {
    (void)state;
    static const char prompt[] = "Once upon a time, there was a little";
    static const char *const stops[] = {". ", "he", "d to", "\xc3\xa9"};
    mn_model *model = engine_model("embedded", "f32", "auto", engine_threads());
    mn_session *session = engine_session(model, (engine_cache){0});
    int32_t *ids = NULL;
    size_t n = 0;
    assert_ok(mn_tokenize(mn_model_tokenizer(model), prompt, strlen(prompt), MN_ADD_SPECIAL, &ids, &n));
    for (int i = 0; i < 4; i++) {
        char settings[256];
        snprintf(
            settings, sizeof settings,
            "{\"num_beams\": 4, \"num_return_sequences\": 3, \"length_penalty\": 0, \"max_new_tokens\": 24, \"stop_strings\": [\"%s\"]}",
            stops[i]);
        mn_generation *g = generate(session, ids, n, settings, NULL);
        ender e = {.text = mn_model_tokenizer(model), .n_prompt = n, .stop = stops[i]};
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        how.stop = ends_here;
        how.user = &e;
        mn_generation *wanted = generate(
            session, ids, n,
            "{\"num_beams\": 4, \"num_return_sequences\": 3, \"length_penalty\": 0, \"max_new_tokens\": 24}", &how);
        same_texts(g, wanted, false);
        int n_stopped = 0;
        for (size_t k = 0; k < g->n_sequences; k++) {
            const mn_sequence *s = g->sequences[k];
            bool stopped = strcmp(s->finish_reason, "stop_string") == 0;
            n_stopped += stopped;
            assert_int_equal(s->stop_string, stopped ? 0 : -1);
            assert_null(memmem(s->text, s->n_text, stops[i], strlen(stops[i])));
            assert_string_equal(wanted->sequences[k]->finish_reason, stopped ? "callback" : "length");
        }
        assert_int_equal(n_stopped > 0, i < 3);
        mn_generation_close(&g);
        mn_generation_close(&wanted);
    }
    mn_free(ids);
    mn_session_close(&session);
    mn_model_close(&model);
}

static void max_time_ends_all_beams(void **state) {
    (void)state;
    static const char *const settings[] = {
        "{\"num_beams\": 4, \"num_return_sequences\": 4, \"max_new_tokens\": 20, \"max_time\": 1e-9, \"eos_token_id\": null}",
        "{\"num_beams\": 4, \"num_return_sequences\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.5, \"max_new_tokens\": 20, "
        "\"max_time\": 1e-9, \"eos_token_id\": null}"};
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    mn_session *session = engine_session(w.model, (engine_cache){0});
    for (int i = 0; i < 2; i++) {
        mn_generation *g = generate(session, w.ids, N_PROMPT, settings[i], NULL);
        assert_int_equal(g->n_sequences, 4);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(g->sequences[k]->n_ids, 1);
            assert_string_equal(g->sequences[k]->finish_reason, "time");
        }
        assert_int_equal(mn_session_length(session), N_PROMPT);
        mn_generation_close(&g);
    }
    mn_session_close(&session);
    strategy_fixture_close(&w);
}

/* ---- scores ---- */

static bool few_are_left(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    size_t n_prompt = N_PROMPT, most = *(const size_t *)user;
    (void)row;
    (void)ids;
    for (size_t i = 0; i < vocab; i++) {
        if (i % 40 != 3 || n - n_prompt >= most) scores[i] = -INFINITY;
    }
    return true;
}

/* Two of eight tokens make 64 texts: exactly these are found, in order; when no token is allowed the error says so. */
static void enough_beams_find_every_text(void **state) {
    (void)state;
    size_t most = 2;
    double last = INFINITY;
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    mn_session *session = engine_session(w.model, (engine_cache){.dtype = "f32", .page_tokens = 4});
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.process = few_are_left;
    how.user = &most;
    how.keep_logits = true;
    how.top_logprobs = 2;
    mn_generation *g = generate(
        session, w.ids, N_PROMPT,
        "{\"num_beams\": 70, \"num_return_sequences\": 70, \"max_new_tokens\": 2, \"eos_token_id\": null}", &how);
    assert_int_equal(g->n_sequences, 64);
    bool seen[64] = {false};
    for (int i = 0; i < 64; i++) {
        const mn_sequence *s = g->sequences[i];
        assert_int_equal(s->n_ids, 2);
        assert_true(s->ids[0] % 40 == 3 && s->ids[1] % 40 == 3);
        int which = s->ids[0] / 40 * 8 + s->ids[1] / 40;
        assert_false(seen[which]);
        seen[which] = true;
        assert_true(s->score <= last);
        last = s->score;
        double sum = 0;
        for (int k = 0; k < 2; k++) { /* log-probabilities from the logits, in double */
            double total = 0;
            for (size_t v = 0; v < w.vocab; v++) total += exp((double)s->logits[(size_t)k * w.vocab + v]);
            sum += (double)s->logits[(size_t)k * w.vocab + (size_t)s->ids[k]] - log(total);
            /* Renormalized over the eight allowed tokens. */
            const float *top = s->logprobs + 3 * k;
            assert_int_equal(s->logprob_ids[3 * k], s->ids[k]);
            assert_true(top[1] >= top[0] && top[1] >= top[2]);
            assert_true(s->logprob_ids[3 * k + 1] % 40 == 3 && top[0] > s->transition_scores[k]);
        }
        assert_true(fabs(sum / 2 - s->score) < 1e-5);
    }
    mn_generation_close(&g);
    most = 1;
    mn_generation_config *config =
        config_of(w.model, "{\"num_beams\": 4, \"max_new_tokens\": 2, \"eos_token_id\": null}");
    assert_fails(MN_E_ARG, "no token is left", mn_generate(session, w.ids, N_PROMPT, config, &how, &g));
    assert_null(g);
    mn_generation_config_close(&config);
    g = generate(session, w.ids, N_PROMPT, "{\"max_new_tokens\": 3}", NULL); /* the session is usable */
    mn_generation_close(&g);
    mn_session_close(&session);
    strategy_fixture_close(&w);
}

/* One step of beam sampling: two of five tokens are drawn without replacement, the better one is the best beam. */
static void draws_follow_the_distribution(void **state) {
    (void)state;
    test_of_numbers();
    enum { KEPT = 5, DRAWS = 20000 };
    static const double critical = 18.47; /* of chi square with 4 degrees of freedom, p = 0.001 */
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    mn_session *session = engine_session(w.model, (engine_cache){0});
    int32_t ids[KEPT];
    double p[KEPT], wanted[KEPT] = {0}, sum = 0, chi = 0;
    int counts[KEPT] = {0};
    assert_ok(mn_session_step(session, w.ids, N_PROMPT, NULL));
    float *logits = malloc(w.vocab * sizeof *logits);
    memcpy(logits, mn_session_logits(session), w.vocab * sizeof *logits);
    for (int i = 0; i < KEPT; i++) {
        ids[i] = choice_best(logits, w.vocab);
        p[i] = exp((double)logits[ids[i]]);
        logits[ids[i]] = -INFINITY;
        sum += p[i];
    }
    for (int i = 0; i < KEPT; i++) p[i] /= sum;
    for (int i = 0; i < KEPT; i++) {
        for (int j = 0; j < KEPT; j++) {
            if (i != j) wanted[i < j ? i : j] += p[i] * p[j] / (1 - p[i]);
        }
    }
    mn_generation_config *config = config_of(
        w.model,
        "{\"num_beams\": 2, \"do_sample\": true, \"top_k\": 5, \"max_new_tokens\": 1, \"eos_token_id\": null}");
    for (int d = 0; d < DRAWS; d++) {
        char seed[16];
        mn_generation *g = NULL;
        int at = 0;
        snprintf(seed, sizeof seed, "%d", d);
        assert_ok(mn_generation_config_set(config, "seed", seed));
        assert_ok(mn_generate(session, w.ids, N_PROMPT, config, NULL, &g));
        while (at < KEPT && ids[at] != g->sequences[0]->ids[0]) at++;
        assert_true(at < KEPT - 1); /* the worst token is never the better one of two */
        counts[at]++;
        mn_generation_close(&g);
    }
    for (int i = 0; i < KEPT - 1; i++) chi += pow(counts[i] - DRAWS * wanted[i], 2) / (DRAWS * wanted[i]);
    if (!(chi < critical)) fail_msg("chi square is %g", chi);
    mn_generation_config_close(&config);
    free(logits);
    mn_session_close(&session);
    strategy_fixture_close(&w);
}

static double log_softmax(const float *logits, size_t n, int32_t id) {
    double sum = 0;
    for (size_t v = 0; v < n; v++) sum += exp((double)logits[v]);
    return (double)logits[id] - log(sum);
}

/* With guidance every beam has an unconditional context as well: scores are recomputed by sessions that are fed these
 * texts. */
static void beams_are_guided(void **state) {
    (void)state;
    enum { N_NEGATIVE = 3 };
    static const double guidance = 1.7;
    static const int32_t negative[N_NEGATIVE] = {44, 5, 291};
    static const char *const settings[] = {
        "{\"num_beams\": 4, \"num_return_sequences\": 4, \"max_new_tokens\": 11, \"guidance_scale\": 1.7, \"eos_token_id\": null}",
        "{\"num_beams\": 4, \"num_beam_groups\": 4, \"num_return_sequences\": 4, \"diversity_penalty\": 1e-9, "
        "\"max_new_tokens\": 11, \"guidance_scale\": 1.7, \"eos_token_id\": null}"};
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    const engine_cache cache = {.dtype = "f32", .page_tokens = 4};
    for (int i = 0; i < 4; i++) {
        mn_session *session = engine_session(w.model, cache);
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        if (i % 2) {
            how.negative_prompt = negative;
            how.n_negative_prompt = N_NEGATIVE;
        }
        mn_generation *g = generate(session, w.ids, N_PROMPT, settings[i / 2], &how);
        for (int k = 0; k < 4; k++) {
            const mn_sequence *s = g->sequences[k];
            mn_session *with = engine_session(w.model, cache), *without = engine_session(w.model, cache);
            assert_ok(mn_session_step(with, w.ids, N_PROMPT, NULL));
            assert_ok(mn_session_step(without, i % 2 ? negative : &w.ids[N_PROMPT - 1], i % 2 ? N_NEGATIVE : 1, NULL));
            for (size_t t = 0; t < s->n_ids; t++) {
                double c = log_softmax(mn_session_logits(with), w.vocab, s->ids[t]),
                       u = log_softmax(mn_session_logits(without), w.vocab, s->ids[t]), wanted = guidance * (c - u) + u;
                assert_true(fabs((double)s->transition_scores[t] - wanted) < 1e-4);
                assert_ok(mn_session_step(with, &s->ids[t], 1, NULL));
                assert_ok(mn_session_step(without, &s->ids[t], 1, NULL));
            }
            mn_session_close(&with);
            mn_session_close(&without);
        }
        mn_generation_close(&g);
        mn_session_close(&session);
    }
    strategy_fixture_close(&w);
}

/* ---- batches ---- */

static void rows_of_a_batch_equal_single_runs(void **state) {
    (void)state;
    enum { ROWS = 4 };
    static const size_t lengths[ROWS] = {3, 29, 1, 90};
    static const char *const settings[ROWS] = {
        "{\"num_beams\": 4, \"num_return_sequences\": 4, \"max_new_tokens\": 18, \"eos_token_id\": [100, 101, 102, 103, 104, 105]}",
        "{\"num_beams\": 6, \"num_beam_groups\": 3, \"diversity_penalty\": 0.5, \"num_return_sequences\": 2, \"max_new_tokens\": 11}",
        "{\"num_beams\": 3, \"do_sample\": true, \"seed\": 9, \"num_return_sequences\": 3, \"max_new_tokens\": 14}",
        "{\"max_new_tokens\": 21, \"ignore_eos\": true}"};
    for (int threads = 1; threads < 3; threads++) {
        strategy_fixture w = strategy_fixture_open("golden/qwen3", "auto", threads);
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        mn_cache_options cache = engine_cache_options((engine_cache){.page_tokens = 4, .prefill_chunk = 32});
        mn_generation_config *configs[ROWS];
        mn_batch_row rows[ROWS];
        mn_generation *all = NULL;
        how.keep_scores = how.keep_logits = true;
        for (int r = 0; r < ROWS; r++) {
            configs[r] = config_of(w.model, settings[r]);
            rows[r] = (mn_batch_row){
                .size = sizeof(mn_batch_row), .prompt = w.ids, .n_prompt = lengths[r], .config = configs[r]};
        }
        assert_ok(mn_generate_batch(w.model, &cache, rows, ROWS, NULL, &how, &all));
        size_t at = 0;
        for (int r = 0; r < ROWS; r++) {
            mn_generation *one = NULL;
            assert_ok(mn_generate_batch(w.model, &cache, &rows[r], 1, NULL, &how, &one));
            assert_true(one->n_sequences > 0);
            for (size_t i = 0; i < one->n_sequences; i++, at++) {
                const mn_sequence *a = one->sequences[i], *s = all->sequences[at];
                assert_int_equal(s->row, r);
                assert_int_equal(s->n_ids, a->n_ids);
                assert_memory_equal(s->ids, a->ids, a->n_ids * sizeof *a->ids);
                engine_same_bits(s->scores, a->scores, a->n_ids, w.vocab, "scores of row %d", r);
                engine_same_bits(s->logits, a->logits, a->n_ids, w.vocab, "logits of row %d", r);
                assert_true(s->score == a->score);
            }
            mn_generation_close(&one);
            mn_generation_config_close(&configs[r]);
        }
        assert_int_equal(at, all->n_sequences);
        mn_generation_close(&all);
        strategy_fixture_close(&w);
    }
}

/* ---- memory ---- */

/* Beams share common pages: resident are at most the prompt's pages and two more for each beam. */
typedef struct page_watch {
    kv_pool *pool;
    size_t most;
} page_watch;

static bool watch_pages(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    page_watch *watch = user;
    (void)row;
    (void)ids;
    (void)n;
    (void)scores;
    (void)vocab;
    size_t used = kv_pool_used(watch->pool);
    if (used > watch->most) watch->most = used;
    return true;
}

static void beams_share_common_pages(void **state) {
    (void)state;
    enum { PROMPT = 128, NEW = 40, PAGE = 4 };
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    mn_session *session = engine_session(w.model, (engine_cache){.page_tokens = PAGE});
    page_watch watch = {.pool = w.model->core->pool};
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.process = watch_pages;
    how.user = &watch;
    mn_generation *g =
        generate(session, w.ids, PROMPT, "{\"num_beams\": 4, \"max_new_tokens\": 40, \"eos_token_id\": null}", &how);
    size_t token = kv_cache_token_bytes(session->cache), own = NEW * N_BEAMS + 2 * PAGE * N_BEAMS;
    assert_true(watch.most >= PROMPT * token);
    if (watch.most > (PROMPT + own) * token) fail_msg("%zu bytes, a token takes %zu", watch.most, token);
    mn_generation_close(&g);
    mn_session_close(&session);
    assert_int_equal(kv_pool_used(w.model->core->pool), 0);
    strategy_fixture_close(&w);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char *const settings[] = {
        "{\"num_beams\": 3, \"num_return_sequences\": 2, \"max_new_tokens\": 9, \"eos_token_id\": [100, 101, 102, 103, 104]}",
        "{\"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.5, \"max_new_tokens\": 7}",
        "{\"num_beams\": 3, \"force_words_ids\": [[7, 9], [[44], [45, 46]]], \"max_new_tokens\": 7}"};
    changing w = changing_open("golden/llama", 1);
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_scores = true;
    how.top_logprobs = 1;
    for (int i = 0; i < 3; i++) {
        engine_cache cache = {.implementation = i == 1 ? "static" : "dynamic", .page_tokens = 4, .max_cache_len = 64};
        mn_session *session = engine_session(w.model, cache);
        mn_generation *wanted = generate(session, w.ids, N_PROMPT, settings[i], &how), *g = NULL;
        mn_generation_config *config = config_of(w.model, settings[i]);
        int64_t before = mem_count().allocations, n_allocations;
        int n_failed = 0;
        assert_ok(mn_generate(session, w.ids, N_PROMPT, config, &how, &g));
        n_allocations = mem_count().allocations - before;
        mn_generation_close(&g);
        assert_true(n_allocations > 60);
        for (int64_t k = 1; k <= n_allocations; k += 1 + k / 16) {
            int64_t live = mem_count().live;
            mem_fail_after(k);
            mn_status status = mn_generate(session, w.ids, N_PROMPT, config, &how, &g);
            mem_fail_after(0);
            assert_ok(kv_check(session->cache));
            if (status == MN_OK) { /* a step was retried */
                same_texts(g, wanted, true);
                mn_generation_close(&g);
                continue;
            }
            assert_int_equal(status, MN_E_NOMEM);
            assert_null(g);
            if (mem_count().live > live + 2) fail_msg("%lld blocks are left", (long long)(mem_count().live - live));
            n_failed++;
            if (n_failed % 8) continue;
            g = generate(session, w.ids, N_PROMPT, settings[i], &how);
            same_texts(g, wanted, true);
            mn_generation_close(&g);
        }
        assert_true(n_failed > 20);
        mn_generation_close(&wanted);
        mn_generation_config_close(&config);
        mn_session_close(&session);
    }
    changing_close(&w);
}

/* ---- memory limits ---- */

enum { OKAYS = 1000 };

/* A thousand tokens, forty beams in as many groups, `budget` bytes of pages (0: no limit). *most: peak bytes in use. */
static mn_generation *forty_beams(const char *settings, size_t budget, size_t *most) {
    static char text[OKAYS * 5 + 1];
    for (int i = 0; i < OKAYS; i++) memcpy(text + i * 5, "okay ", 5);
    changing w = changing_open("embedded", engine_threads());
    mn_session *session = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    mn_cache_options options = engine_cache_options(
        (engine_cache){.dtype = "f32", .page_tokens = 16, .max_cache_len = OKAYS + 64, .prefill_chunk = 64});
    if (budget) {
        kv_pool_close(&w.model->core->pool);
        assert_ok(kv_pool_open(&w.model->core->pool, budget));
        options.on_oom = "offload";
    }
    assert_ok(mn_tokenize(mn_model_tokenizer(w.model), text, strlen(text), MN_ADD_SPECIAL, &ids, &n));
    assert_true(n >= OKAYS);
    assert_ok(mn_session_open(&session, w.model, &options));
    page_watch watch = {.pool = w.model->core->pool};
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.process = watch_pages;
    how.user = &watch;
    mn_generation *g = generate(session, ids, OKAYS, settings, &how);
    assert_string_equal(g->cache->implementation, budget ? "offloaded" : "dynamic");
    assert_int_equal(g->n_sequences, 40);
    assert_int_equal(mn_session_length(session), OKAYS - 1 + (int64_t)g->sequences[0]->n_ids);
    *most = watch.most;
    mn_free(ids);
    mn_session_close(&session);
    changing_close(&w);
    return g;
}

/* With too little memory for all pages the texts are the same as with enough. The prompt's pages stay shared when
 * on_oom converts every session's cache: once at the start, once after some texts have ended, the best of which has a
 * session. */
static void forty_beams_under_a_memory_limit_give_the_same_texts(void **state) {
    (void)state;
    test_of_numbers();
    static const size_t budgets[2] = {1700000, 2400000};
    int32_t end = -1;
    for (int i = 0; i < 2; i++) {
        char settings[256];
        size_t most[2];
        snprintf(
            settings, sizeof settings,
            "{\"num_beams\": 40, \"num_beam_groups\": 40, \"num_return_sequences\": 40, \"diversity_penalty\": 1.0, "
            "\"max_new_tokens\": 24, \"eos_token_id\": [%d]}",
            i ? end : 511);
        mn_generation *wanted = forty_beams(settings, 0, &most[0]), *got = forty_beams(settings, budgets[i], &most[1]);
        same_texts(got, wanted, true);
        assert_true(most[0] > budgets[i]); /* or the limit was not reached */
        assert_true(most[1] <= budgets[i]);
        end = wanted->sequences[20]->ids[2];
        int n_ended = 0;
        for (int k = 0; k < 40; k++) n_ended += strcmp(wanted->sequences[k]->finish_reason, "eos") == 0;
        if (i ? n_ended < 1 || n_ended > 20 : n_ended > 0) fail_msg("%d texts ended", n_ended);
        mn_generation_close(&got);
        mn_generation_close(&wanted);
    }
}

/* The beams' own pages exceed the limit: with every on_oom policy the run fails with a message, and the session is
 * usable. */
static void too_little_memory_is_reported(void **state) {
    (void)state;
    enum { BUDGET = 600000, LONG = 200 };
    static const char *const policies[] = {"fail", "offload", "quantize", "evict"};
    changing w = changing_open("embedded", engine_threads());
    kv_pool_close(&w.model->core->pool);
    assert_ok(kv_pool_open(&w.model->core->pool, BUDGET));
    mn_generation_config *config =
        config_of(w.model, "{\"num_beams\": 40, \"max_new_tokens\": 24, \"ignore_eos\": true}");
    for (int i = 0; i < 4; i++) {
        mn_session *session = NULL;
        mn_generation *g = NULL;
        mn_cache_options options =
            engine_cache_options((engine_cache){.dtype = "f32", .page_tokens = 16, .prefill_chunk = 64});
        options.on_oom = policies[i];
        assert_ok(mn_session_open(&session, w.model, &options));
        assert_fails(MN_E_NOMEM, "600000 allowed", mn_generate(session, w.ids, LONG, config, NULL, &g));
        assert_null(g);
        assert_ok(kv_check(session->cache));
        g = generate(session, w.ids, LONG, "{\"num_beams\": 2, \"max_new_tokens\": 5}", NULL);
        mn_generation_close(&g);
        mn_session_close(&session);
    }
    mn_generation_config_close(&config);
    changing_close(&w);
}

/* ---- cancellation ---- */

typedef struct stopper {
    mn_session *session;
    size_t at;
    bool by_token; /* stopped by the token callback, which beam search calls only at the end */
} stopper;

static bool cancel_at(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    const stopper *s = user;
    (void)row;
    (void)ids;
    (void)scores;
    (void)vocab;
    if (n == N_PROMPT + s->at) mn_session_cancel(s->session);
    return true;
}

static void cancelled_runs_return_the_best_beam_so_far(void **state) {
    (void)state;
    static const char *const settings[] = {
        "{\"num_beams\": 4, \"num_return_sequences\": 3, \"max_new_tokens\": 20, \"eos_token_id\": null}",
        "{\"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.5, \"num_return_sequences\": 3, "
        "\"max_new_tokens\": 20, \"eos_token_id\": null}"};
    strategy_fixture w = strategy_fixture_open("golden/llama", "auto", engine_threads());
    mn_session *session = engine_session(w.model, (engine_cache){.dtype = "f32", .page_tokens = 4});
    for (int i = 0; i < 2; i++) {
        for (size_t at = 0; at < 12; at += 4) {
            stopper s = {.session = session, .at = at};
            mn_generate_options how;
            mn_generate_options_init(&how, sizeof how);
            how.process = cancel_at;
            how.user = &s;
            mn_generation *g = generate(session, w.ids, N_PROMPT, settings[i], &how), *wanted;
            char shorter[256];
            assert_int_equal(g->n_sequences, 3);
            assert_int_equal(mn_session_length(session), N_PROMPT + (int64_t)at);
            for (int k = 0; k < 3; k++) {
                assert_string_equal(g->sequences[k]->finish_reason, "cancelled");
                assert_int_equal(g->sequences[k]->n_ids, at + 1);
            }
            /* The same as with that limit. */
            snprintf(shorter, sizeof shorter, "%.*s, \"max_new_tokens\": %zu}", (int)strlen(settings[i]) - 1,
                     settings[i], at + 1);
            wanted = generate(session, w.ids, N_PROMPT, shorter, NULL);
            same_texts(g, wanted, false);
            mn_generation_close(&g);
            mn_generation_close(&wanted);
        }
        mn_session_cancel(session); /* before the first step */
        mn_generation *g = generate(session, w.ids, N_PROMPT + 5, settings[i], NULL);
        assert_int_equal(g->n_sequences, 3);
        assert_int_equal(g->sequences[0]->n_ids, 0);
        assert_string_equal(g->sequences[2]->finish_reason, "cancelled");
        mn_generation_close(&g);
    }
    mn_session_close(&session);
    strategy_fixture_close(&w);
}

/* ---- token events ---- */

typedef struct shown {
    char text[3][512];
    size_t n[3];
} shown;

static bool note_text(void *user, const mn_token_event *event) {
    shown *s = user;
    memcpy(s->text[event->sequence] + s->n[event->sequence], event->text, event->n_text);
    s->n[event->sequence] += event->n_text;
    return true;
}

static void texts_are_emitted_at_the_end(void **state) {
    (void)state;
    static const char prompt[] = "Once upon a time";
    mn_model *model = engine_model("embedded", "f32", "auto", engine_threads());
    mn_session *session = engine_session(model, (engine_cache){0});
    int32_t *ids = NULL;
    size_t n = 0;
    shown s = {0};
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.on_token = note_text;
    how.user = &s;
    assert_ok(mn_tokenize(mn_model_tokenizer(model), prompt, strlen(prompt), MN_ADD_SPECIAL, &ids, &n));
    mn_generation *g =
        generate(session, ids, n, "{\"num_beams\": 3, \"num_return_sequences\": 3, \"max_new_tokens\": 30}", &how);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(g->sequences[k]->n_text, s.n[k]);
        assert_memory_equal(g->sequences[k]->text, s.text[k], s.n[k]);
    }
    assert_true(s.n[0] > 20);
    assert_null(g->beam_scores);
    mn_generation_close(&g);
    mn_free(ids);
    mn_session_close(&session);
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHANGING_TEST(the_session_continues_from_the_best_beam),
        CHANGING_TEST(the_best_beams_cache_equals_no_cache),
        CHANGING_TEST(a_callback_ends_single_beams),
        CHANGING_TEST(stop_strings_end_single_beams),
        CHANGING_TEST(max_time_ends_all_beams),
        CHANGING_TEST(enough_beams_find_every_text),
        CHANGING_TEST(draws_follow_the_distribution),
        CHANGING_TEST(beams_are_guided),
        CHANGING_TEST(rows_of_a_batch_equal_single_runs),
        CHANGING_TEST(beams_share_common_pages),
        CHANGING_TEST(every_allocation_may_fail),
        CHANGING_TEST(forty_beams_under_a_memory_limit_give_the_same_texts),
        CHANGING_TEST(too_little_memory_is_reported),
        CHANGING_TEST(cancelled_runs_return_the_best_beam_so_far),
        CHANGING_TEST(texts_are_emitted_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
