/* Embeddings. The states of a text, multiplied by the matrix of the head in double precision, are the logits that
 * Transformers recorded for it; the pooled ones follow from the states by their definitions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>
#include <pthread.h>

#include "session/pass.h"
#include "support/families.h"
#include "support/oracle.h"
#include "tensor/safetensors.h"

enum { N_IDS = 100, N_LONG = 600, MOST_HIDDEN = 128, N_THREADS = 4 };
static const double tolerance = 2e-4; /* as test_golden.c */

static mn_embed_options options_of(const char *pooling, bool normalize) {
    mn_embed_options options;
    mn_embed_options_init(&options, sizeof options);
    options.pooling = pooling;
    options.normalize = normalize;
    return options;
}

static size_t hidden_of(const mn_model *model) {
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(model, &info));
    assert_true(info.hidden_size <= MOST_HIDDEN);
    return (size_t)info.hidden_size;
}

/* The states of every token, [n][hidden]; the caller frees them. */
static float *states_of(mn_model *model, const int32_t *ids, size_t n) {
    const mn_embed_options options = options_of("none", false);
    size_t n_bytes = n * hidden_of(model) * sizeof(float);
    float *states = malloc(n_bytes);
    memset(states, 0xFF, n_bytes);
    assert_ok(mn_model_embed(model, ids, n, &options, states));
    return states;
}

static double length_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* ---- the states ---- */

/* A logit by the definition of the head. */
static double logit_of(const oracle *o, const float *state, size_t v) {
    const float *row = (o->head ? o->head : o->embed) + v * (size_t)o->hidden;
    double sum = o->head_bias ? (double)o->head_bias[v] : 0;
    for (int i = 0; i < o->hidden; i++) sum += (double)row[i] * (double)state[i];
    sum /= o->logit_divisor;
    return o->logit_cap > 0 ? o->logit_cap * tanh(sum / o->logit_cap) : sum;
}

static void check_family(const char *family) {
    char path[128], tensors[128];
    snprintf(path, sizeof path, "golden/%s", family);
    snprintf(tensors, sizeof tensors, "golden/%s/tensors.safetensors", family);
    tensor_set *set = NULL;
    assert_ok(safetensors_open(&set, data_path(tensors)));
    const tensor *wanted = tensor_set_find(set, "score.logits"), *given = tensor_set_find(set, "score.ids");
    size_t n = (size_t)wanted->shape[0], vocab = (size_t)wanted->shape[1];
    int32_t ids[N_IDS];
    assert_true(n > 1 && n <= N_IDS);
    memcpy(ids, given->data, n * sizeof *ids);
    oracle o = oracle_open(data_path(path));
    mn_model *model = engine_model(path, "f32", "auto", engine_threads());
    float *states = states_of(model, ids, n);
    assert_int_equal(o.hidden, hidden_of(model));
    for (size_t i = 0; i < n * vocab; i++) {
        float logit;
        memcpy(&logit, (const char *)wanted->data + i * sizeof logit, sizeof logit);
        double got = logit_of(&o, states + i / vocab * (size_t)o.hidden, i % vocab);
        if (!(fabs(got - (double)logit) <= tolerance))
            fail_msg("%s: logit %zu of token %zu is %g, golden %g", family, i % vocab, i / vocab, got, (double)logit);
    }
    free(states);
    mn_model_close(&model);
    oracle_close(&o);
    tensor_set_close(&set);
}

static void states_give_the_golden_logits(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDEN_FAMILIES; i++) check_family(golden_families[i]);
}

/* ---- pooling ---- */

static void check_pooling(const char *path, size_t n) {
    mn_model *model = engine_model(path, "f32", "auto", engine_threads());
    size_t hidden = hidden_of(model);
    uint64_t seed = 4;
    int32_t ids[N_IDS];
    float pooled[MOST_HIDDEN], plain[MOST_HIDDEN], *rows = malloc(n * hidden * sizeof *rows);
    engine_ids(&seed, ids, n, engine_vocab(model));
    float *states = states_of(model, ids, n);
    const struct {
        const char *pooling;
        size_t first, n; /* the rows whose mean it is */
    } cases[] = {{"mean", 0, n}, {"cls", 0, 1}, {"last", n - 1, 1}};
    for (size_t c = 0; c < 3; c++) {
        mn_embed_options options = options_of(cases[c].pooling, false);
        assert_ok(mn_model_embed(model, ids, n, &options, plain));
        options.normalize = true;
        assert_ok(mn_model_embed(model, ids, n, &options, pooled));
        double length = length_of(plain, hidden);
        assert_true(fabs(length_of(pooled, hidden) - 1) < 1e-6);
        for (size_t j = 0; j < hidden; j++) {
            double sum = 0;
            for (size_t t = 0; t < cases[c].n; t++) sum += (double)states[(cases[c].first + t) * hidden + j];
            double mean = sum / (double)cases[c].n;
            if (!(fabs((double)plain[j] - mean) <= 1e-6 * (1 + fabs(mean))))
                fail_msg("%s, %s: value %zu is %g, not %g", path, cases[c].pooling, j, (double)plain[j], mean);
            assert_true(fabs((double)pooled[j] - (double)plain[j] / length) < 1e-6);
        }
    }
    assert_ok(mn_model_embed(model, ids, n, NULL, pooled)); /* the defaults: the mean, as it is */
    mn_embed_options mean = options_of("mean", false);
    assert_ok(mn_model_embed(model, ids, n, &mean, plain));
    assert_memory_equal(pooled, plain, hidden * sizeof *plain);
    mn_embed_options each = options_of("none", true);
    assert_ok(mn_model_embed(model, ids, n, &each, rows));
    for (size_t i = 0; i < n * hidden; i++) {
        double length = length_of(states + i / hidden * hidden, hidden);
        assert_true(fabs((double)rows[i] - (double)states[i] / length) < 1e-6);
    }
    free(rows);
    free(states);
    mn_model_close(&model);
}

static void pooled_states_are_what_their_names_say(void **state) {
    (void)state;
    check_pooling("golden/llama", N_IDS);
    check_pooling("golden/gpt2", 17);
    check_pooling("golden/jamba", 1);
}

/* ---- the same bits ---- */

/* The states by a session with pieces of this size. */
static float *states_in_pieces(mn_model *model, const int32_t *ids, size_t n, int piece) {
    mn_session *session = engine_session(model, (engine_cache){.prefill_chunk = piece});
    float *states = malloc(n * hidden_of(model) * sizeof *states);
    feed f = {.session = session, .ids = ids, .n = n, .states = states};
    assert_ok(feed_run(&f));
    mn_session_close(&session);
    return states;
}

static void states_do_not_depend_on_the_cut(void **state) {
    (void)state;
    static const char *const models[] = {"golden/llama-untied-bias", "golden/mistral-window", "golden/mamba"};
    static const int threads[] = {2, 4}, pieces[] = {7, 64};
    for (size_t m = 0; m < 3; m++) {
        uint64_t seed = 8;
        int32_t ids[N_LONG];
        mn_model *model = engine_model(models[m], "f32", "auto", 1);
        size_t hidden = hidden_of(model);
        engine_ids(&seed, ids, N_LONG, engine_vocab(model));
        float *wanted = states_of(model, ids, N_LONG), *first = states_of(model, ids, N_IDS);
        engine_same_bits(first, wanted, N_IDS, hidden, "%s, the first tokens alone", models[m]);
        for (size_t i = 0; i < 2; i++) {
            float *got = states_in_pieces(model, ids, N_LONG, pieces[i]);
            engine_same_bits(got, wanted, N_LONG, hidden, "%s, pieces of %d", models[m], pieces[i]);
            free(got);
            mn_model *other = engine_model(models[m], "f32", "auto", threads[i]);
            got = states_of(other, ids, N_LONG);
            engine_same_bits(got, wanted, N_LONG, hidden, "%s, %d threads", models[m], threads[i]);
            free(got);
            mn_model_close(&other);
        }
        free(first);
        free(wanted);
        mn_model_close(&model);
    }
}

typedef struct worker {
    mn_model *model;
    int32_t ids[N_IDS];
    size_t n;
    float got[MOST_HIDDEN], wanted[MOST_HIDDEN];
    mn_status status;
} worker;

static void *work(void *argument) {
    worker *w = argument;
    w->status = mn_model_embed(w->model, w->ids, w->n, NULL, w->got);
    return NULL;
}

/* Each text in a thread of its own, beside a session that decodes. */
static void texts_do_not_depend_on_each_other(void **state) {
    (void)state;
    worker workers[N_THREADS] = {{0}};
    pthread_t threads[N_THREADS];
    uint64_t seed = 2;
    mn_model *model = engine_model("golden/llama", "f32", "auto", 2);
    mn_session *session = engine_session(model, (engine_cache){.implementation = "dynamic"});
    for (size_t i = 0; i < N_THREADS; i++) {
        workers[i].model = model;
        workers[i].n = N_IDS - 30 * i;
        engine_ids(&seed, workers[i].ids, workers[i].n, engine_vocab(model));
        assert_ok(mn_model_embed(model, workers[i].ids, workers[i].n, NULL, workers[i].wanted));
    }
    for (size_t i = 0; i < N_THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (size_t i = 0; i < N_IDS; i++) assert_ok(mn_session_step(session, &workers[0].ids[i], 1, NULL));
    for (size_t i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].status, MN_OK);
        assert_memory_equal(workers[i].got, workers[i].wanted, hidden_of(model) * sizeof(float));
    }
    mn_session_close(&session);
    mn_model_close(&model);
}

/* ---- refusals ---- */

static void what_cannot_be_embedded_is_refused(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/gpt2", "f32", "auto", 1);
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(model, &info));
    size_t most = (size_t)info.max_position_embeddings;
    int32_t *ids = calloc(most + 1, sizeof *ids), outside[] = {5, info.vocab_size};
    float out[MOST_HIDDEN], before[MOST_HIDDEN] = {3};
    char sentence[128];
    memcpy(out, before, sizeof out);
    snprintf(sentence, sizeof sentence, "the text has %zu tokens, allowed: 1 to %zu", most + 1, most);
    assert_fails(MN_E_ARG, sentence, mn_model_embed(model, ids, most + 1, NULL, out));
    assert_fails(MN_E_ARG, "no token was given", mn_model_embed(model, ids, 0, NULL, out));
    snprintf(sentence, sizeof sentence, "token 1 is %d, allowed: 0 to %d", info.vocab_size, info.vocab_size - 1);
    assert_fails(MN_E_ARG, sentence, mn_model_embed(model, outside, 2, NULL, out));
    mn_embed_options options = options_of("max", false);
    assert_fails(MN_E_ARG, "pooling is 'max', allowed: none, mean, cls, last",
                 mn_model_embed(model, ids, 2, &options, out));
    assert_memory_equal(out, before, sizeof out);
    assert_ok(mn_model_embed(model, ids, most, NULL, out));
    free(ids);
    mn_model_close(&model);
    model = engine_model("golden/whisper/tiny80", "f32", "auto", 1);
    const int32_t id = 3;
    assert_fails(MN_E_UNSUPPORTED, "is a speech model", mn_model_embed(model, &id, 1, NULL, out));
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_give_the_golden_logits),      cmocka_unit_test(pooled_states_are_what_their_names_say),
        cmocka_unit_test(states_do_not_depend_on_the_cut),    cmocka_unit_test(texts_do_not_depend_on_each_other),
        cmocka_unit_test(what_cannot_be_embedded_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
