/* Every decoding mode with every cache strategy, one row and a batch of three unequal ones. Whatever a mode does with
 * its caches (forks, drafts, truncation), the logits that chose each returned token must equal, bit for bit, those of a
 * session of that strategy that is fed prompt and tokens; for exact strategies these are within rounding of a
 * computation in double precision without a cache, with the strategy's window and sinks. Choices are recomputed from
 * the logits: the best token, the score of a beam, equality of modes that must give the same text.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/oracle.h"
#include "support/strategies.h"

#include <math.h>

#include "session/session.h"

enum { N_ROWS = 3, MOST_PROMPT = 41, N_NEW = 14, MOST_SETTINGS = 7 };

static const size_t lengths[N_ROWS] = {29, 7, 41};

/* The property of a mode's tokens that is checked. */
typedef enum rule {
    RULE_NONE,   /* drawn or contrasted: the logits alone are checked */
    RULE_GREEDY, /* each is the best one, as in greedy search */
    RULE_BEAMS,  /* the score is the sum of log-probabilities over length^length_penalty, the best first */
} rule;

typedef struct mode {
    const char *name;
    rule rule;
    int n_sequences;
    bool assisted;
    const char *settings[MOST_SETTINGS][2];
} mode;

static const mode modes[] = {
    {"greedy", RULE_GREEDY, 1, .settings = {{"num_beams", "1"}}},
    {"sampling", RULE_NONE, 3,
     .settings = {{"do_sample", "true"}, {"num_return_sequences", "3"}, {"temperature", "1.5"}}},
    {"beams", RULE_BEAMS, 3,
     .settings = {{"num_beams", "4"}, {"num_return_sequences", "3"}, {"length_penalty", "0.7"}}},
    {"beam sampling", RULE_NONE, 2,
     .settings = {{"num_beams", "3"}, {"num_return_sequences", "2"}, {"do_sample", "true"}}},
    {"diverse beams", RULE_NONE, 4,
     .settings =
         {{"num_beams", "4"}, {"num_beam_groups", "2"}, {"num_return_sequences", "4"}, {"diversity_penalty", "0.8"}}},
    {"constrained beams", RULE_NONE, 1, .settings = {{"num_beams", "3"}, {"force_words_ids", "[[57]]"}}},
    {"contrastive", RULE_NONE, 1, .settings = {{"penalty_alpha", "0.5"}, {"top_k", "3"}}},
    {"assisted", RULE_GREEDY, 1, .assisted = true,
     .settings = {{"num_assistant_tokens", "4"}, {"assistant_confidence_threshold", "0"}}},
    {"assisted sampling", RULE_NONE, 1, .assisted = true,
     .settings = {{"do_sample", "true"}, {"num_assistant_tokens", "3"}}},
    {"prompt lookup", RULE_GREEDY, 1,
     .settings = {{"prompt_lookup_num_tokens", "5"}, {"max_matching_ngram_size", "2"}}},
    {"guidance", RULE_NONE, 1, .settings = {{"guidance_scale", "1.5"}}},
    {"DoLa", RULE_NONE, 1, .settings = {{"dola_layers", "[1]"}}},
};

enum { N_MODES = sizeof modes / sizeof modes[0] };

typedef struct fixture {
    mn_model *model, *draft;
    oracle oracle;
    size_t vocab;
    int32_t ids[N_ROWS][MOST_PROMPT];
    int32_t greedy[N_ROWS][N_NEW]; /* of the current strategy */
    size_t n_cells, n_refused;
} fixture;

static fixture open_fixture(void) {
    fixture w = {.model = engine_model("golden/llama", "f32", "auto", engine_threads()),
                 .draft = engine_model("golden/decoding/draft", "f32", "auto", engine_threads()),
                 .oracle = oracle_open(data_path("golden/llama"))};
    uint64_t seed = 77;
    w.vocab = (size_t)engine_vocab(w.model);
    for (size_t r = 0; r < N_ROWS; r++) {
        engine_ids(&seed, w.ids[r], lengths[r], (int32_t)w.vocab);
        /* repeated text for prompt lookup */
        for (size_t i = 3; i < 6 && lengths[r] > 12; i++) w.ids[r][lengths[r] - 6 + i] = w.ids[r][i];
    }
    return w;
}

static void close_fixture(fixture *w) {
    mn_model_close(&w->model);
    mn_model_close(&w->draft);
    oracle_close(&w->oracle);
}

/* Logits [N_NEW][vocab] that choose each of a sequence's tokens, by a session that is fed the prompt, then token by
 * token. */
static void plain_logits(const fixture *w, engine_cache cache, int row, const int32_t *ids, size_t n, float *logits) {
    mn_session *session = engine_session(w->model, cache);
    assert_ok(mn_session_step(session, w->ids[row], lengths[row], NULL));
    for (size_t i = 0; i < n; i++) {
        memcpy(logits + i * w->vocab, mn_session_logits(session), w->vocab * sizeof *logits);
        if (i + 1 < n) assert_ok(mn_session_step(session, &ids[i], 1, NULL));
    }
    mn_session_close(&session);
}

/* Compares with double precision, without a cache. */
static void check_oracle(const fixture *w, const engine_cache *cache, int row, const int32_t *ids, size_t n,
                         const float *logits) {
    enum { MOST = MOST_PROMPT + N_NEW };
    int32_t all[MOST];
    oracle o = w->oracle;
    oracle_layer layers[8];
    mn_session *session = engine_session(w->model, *cache);
    assert_true(o.n_layers <= 8);
    o.layers = layers;
    for (int i = 0; i < o.n_layers; i++) {
        layers[i] = w->oracle.layers[i];
        layers[i].window = kv_entry_spec(session->cache, i)->window;
        layers[i].sinks = kv_entry_spec(session->cache, i)->sinks;
    }
    mn_session_close(&session);
    memcpy(all, w->ids[row], lengths[row] * sizeof *all);
    memcpy(all + lengths[row], ids, n * sizeof *all);
    double *wanted = malloc((lengths[row] + n) * w->vocab * sizeof *wanted);
    assert_non_null(wanted);
    oracle_logits(&o, all, lengths[row] + n, wanted);
    double distance = oracle_distance(logits, wanted + (lengths[row] - 1) * w->vocab, n * w->vocab);
    free(wanted);
    if (!(distance > 0 && distance < 2e-4)) fail_msg("%s: %g away from the oracle", cache->implementation, distance);
}

static double log_probability(const float *logits, size_t vocab, int32_t id) {
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < vocab; i++) most = fmax(most, (double)logits[i]);
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - most);
    return (double)logits[id] - most - log(sum);
}

static void check_rule(fixture *w, const mode *m, const mn_sequence *s, const float *logits, bool is_first_mode) {
    double sum = 0;
    for (size_t i = 0; i < s->n_ids; i++) {
        const float *row = logits + i * w->vocab;
        for (size_t k = 0; m->rule == RULE_GREEDY && k < w->vocab; k++) assert_true(row[k] <= row[s->ids[i]]);
        sum += log_probability(row, w->vocab, s->ids[i]);
    }
    if (m->rule == RULE_GREEDY && is_first_mode) memcpy(w->greedy[s->row], s->ids, sizeof w->greedy[0]);
    if (m->rule == RULE_GREEDY) assert_memory_equal(w->greedy[s->row], s->ids, sizeof w->greedy[0]);
    if (m->rule != RULE_BEAMS) return;
    assert_true(s->has_score);
    double score = sum / pow((double)s->n_ids, 0.7);
    if (!(fabs(score - s->score) < 1e-4)) fail_msg("score %g, by the logits %g", s->score, score);
}

static mn_generation_config *config_of(const fixture *w, const mode *m) {
    mn_generation_config *config = NULL;
    char text[16];
    assert_ok(mn_generation_config_open(&config, w->model));
    snprintf(text, sizeof text, "%d", N_NEW);
    assert_ok(mn_generation_config_set(config, "max_new_tokens", text));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    assert_ok(mn_generation_config_set(config, "seed", "3"));
    for (int i = 0; i < MOST_SETTINGS && m->settings[i][0]; i++)
        assert_ok(mn_generation_config_set(config, m->settings[i][0], m->settings[i][1]));
    return config;
}

/* One cell: first_row and n_rows say which rows run together. */
static void check_cell(fixture *w, const mode *m, const engine_strategy *strategy, int first_row, int n_rows,
                       bool is_first_mode) {
    mn_generation_config *config = config_of(w, m);
    mn_cache_options options = engine_cache_options(strategy->cache);
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    mn_batch_row rows[N_ROWS];
    mn_generation *generation = NULL;
    how.keep_logits = true;
    how.assistant = m->assisted ? w->draft : NULL;
    for (int r = 0; r < n_rows; r++)
        rows[r] = (mn_batch_row){sizeof(mn_batch_row), w->ids[first_row + r], lengths[first_row + r], config, NULL};
    mn_status status = mn_generate_batch(w->model, &options, rows, (size_t)n_rows, NULL, &how, &generation);
    mn_generation_config_close(&config);
    w->n_cells++;
    if (status == MN_E_UNSUPPORTED) {
        printf("  %s with %s %s: refused: %s\n", m->name, strategy->cache.implementation,
               strategy->cache.config ? strategy->cache.config : "", mn_last_error());
        w->n_refused++;
        return;
    }
    if (status != MN_OK)
        fail_msg("%s with %s %s: %s", m->name, strategy->cache.implementation,
                 strategy->cache.config ? strategy->cache.config : "", mn_last_error());
    assert_int_equal(generation->n_sequences, n_rows * m->n_sequences);
    float *wanted = malloc(N_NEW * w->vocab * sizeof *wanted);
    assert_non_null(wanted);
    for (size_t i = 0; i < generation->n_sequences; i++) {
        mn_sequence s = *generation->sequences[i];
        assert_int_equal(s.row, i / (size_t)m->n_sequences);
        assert_int_equal(s.index, i % (size_t)m->n_sequences);
        assert_int_equal(s.n_ids, N_NEW);
        s.row += first_row;
        plain_logits(w, strategy->cache, s.row, s.ids, s.n_ids, wanted);
        engine_same_bits(s.logits, wanted, s.n_ids, w->vocab, "%s with %s %s, row %d of %d, sequence %d", m->name,
                         strategy->cache.implementation, strategy->cache.config ? strategy->cache.config : "", s.row,
                         n_rows, s.index);
        if (!strategy->is_lossy && i == 0) check_oracle(w, &strategy->cache, s.row, s.ids, s.n_ids, wanted);
        check_rule(w, m, &s, wanted, is_first_mode);
        if (m->rule == RULE_BEAMS && s.index > 0) assert_true(generation->sequences[i - 1]->score >= s.score);
    }
    free(wanted);
    mn_generation_close(&generation);
}

static void every_mode_with_every_cache_is_exact(void **state) {
    (void)state;
    fixture w = open_fixture();
    engine_strategy none = {.cache = {.implementation = "none", .page_tokens = 4}};
    const int every = strategy_is_brief() ? 7 : strategy_is_long() ? 1 : 3;
    for (int i = -1; i < N_ENGINE_STRATEGIES; i++) {
        engine_strategy strategy = i < 0 ? none : engine_strategies[i];
        strategy.cache.dtype = "f32";
        for (int m = 0; m < N_MODES; m++) {
            if (m > 0 && (i + m) % every != 0) continue;
            const bool is_tried = test_samples(i + 1 + m / every, 3);
            if (m > 0 && !is_tried) continue;
            check_cell(&w, &modes[m], &strategy, 0, N_ROWS, m == 0);
            if (is_tried) check_cell(&w, &modes[m], &strategy, (i + m + 1) % N_ROWS, 1, false);
        }
    }
    printf("  %zu cells, %zu of them refused\n", w.n_cells, w.n_refused);
    assert_int_equal(kv_pool_used(w.model->core->pool), 0);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_mode_with_every_cache_is_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
