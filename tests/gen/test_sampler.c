/* The public parts of a hand-written generation loop: mn_sampler chooses the tokens of mn_generate, mn_detokenizer
 * gives its text, and token events agree with the sequences.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_PROMPT = 12, N_NEW = 40, MOST_EVENTS = 512, MOST_TEXT = 4096 };

typedef struct fixture {
    mn_model *model;
    mn_generation_config *config;
    int32_t prompt[N_PROMPT];
    size_t vocab;
} fixture;

static fixture open_fixture(const char *const *settings) {
    fixture w = {.model = engine_model("embedded", "f32", "auto", engine_threads())};
    uint64_t seed = 5;
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&seed, w.prompt, N_PROMPT, (int32_t)w.vocab);
    assert_ok(mn_generation_config_open(&w.config, w.model));
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "40"));
    assert_ok(mn_generation_config_set(w.config, "seed", "11"));
    for (; *settings; settings += 2) assert_ok(mn_generation_config_set(w.config, settings[0], settings[1]));
    return w;
}

static void close_fixture(fixture *w) {
    mn_generation_config_close(&w->config);
    mn_model_close(&w->model);
}

/* ---- the sampler ---- */

static void check_like_generate(const char *const *settings) {
    fixture w = open_fixture(settings);
    mn_session *session = NULL, *own = NULL;
    mn_generation *generation = NULL;
    mn_sampler *sampler = NULL;
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_scores = true;
    float *scores = malloc(w.vocab * sizeof *scores);
    assert_non_null(scores);
    assert_ok(mn_session_open(&session, w.model, NULL));
    assert_ok(mn_generate(session, w.prompt, N_PROMPT, w.config, &how, &generation));
    assert_ok(mn_session_open(&own, w.model, NULL));
    assert_ok(mn_session_step(own, w.prompt, N_PROMPT, NULL));
    assert_ok(mn_sampler_open(&sampler, w.model, w.config, w.prompt, N_PROMPT));
    assert_int_equal(mn_sampler_seed(sampler), generation->seed);
    const mn_sequence *wanted = generation->sequences[0];
    assert_true(wanted->n_ids > 3);
    for (size_t i = 0; i < wanted->n_ids; i++) {
        int32_t id = -1, again = -1;
        assert_ok(mn_sampler_choose(sampler, mn_session_logits(own), scores, &id));
        assert_ok(mn_sampler_choose(sampler, mn_session_logits(own), NULL, &again));
        assert_int_equal(id, wanted->ids[i]);
        assert_int_equal(again, id);
        assert_memory_equal(scores, wanted->scores + i * w.vocab, w.vocab * sizeof *scores);
        assert_ok(mn_sampler_accept(sampler, id));
        assert_ok(mn_session_step(own, &id, 1, NULL));
    }
    free(scores);
    mn_sampler_close(&sampler);
    mn_generation_close(&generation);
    mn_session_close(&session);
    mn_session_close(&own);
    close_fixture(&w);
}

static void the_sampler_chooses_the_tokens_of_mn_generate(void **state) {
    (void)state;
    check_like_generate((const char *const[]){"repetition_penalty", "1.3", "no_repeat_ngram_size", "3", NULL});
    check_like_generate(
        (const char *const[]){"do_sample", "true", "top_k", "30", "top_p", "0.9", "temperature", "1.4", NULL});
    check_like_generate((const char *const[]){"do_sample", "true", "min_new_tokens", "20", "forced_eos_token_id", "2",
                                              "encoder_repetition_penalty", "1.5", NULL});
    check_like_generate((const char *const[]){"regex", "\"[a-z]{3,9}( [a-z]+){1,4}\\\\.\"", NULL});
    check_like_generate(
        (const char *const[]){"grammar", "\"root ::= word (\\\" \\\" word){1,4}\\nword ::= [a-z]{3,9}\"", NULL});
}

static void other_searches_and_wrong_ids_are_refused(void **state) {
    (void)state;
    static const char *const other[][2] = {{"num_beams", "2"},
                                           {"guidance_scale", "1.5"},
                                           {"penalty_alpha", "0.6"},
                                           {"dola_layers", "\"low\""},
                                           {"prompt_lookup_num_tokens", "3"}};
    fixture w = open_fixture((const char *const[]){NULL});
    mn_sampler *sampler = NULL;
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        mn_generation_config *config = NULL;
        assert_ok(mn_generation_config_open(&config, w.model));
        assert_ok(mn_generation_config_set(config, other[i][0], other[i][1]));
        if (i == 2) assert_ok(mn_generation_config_set(config, "top_k", "4"));
        int64_t live = mem_count().live;
        assert_fails(MN_E_ARG, "a sampler", mn_sampler_open(&sampler, w.model, config, w.prompt, N_PROMPT));
        assert_null(sampler);
        assert_int_equal(mem_count().live, live);
        mn_generation_config_close(&config);
    }
    assert_fails(MN_E_ARG, "prompt is empty", mn_sampler_open(&sampler, w.model, w.config, w.prompt, 0));
    assert_fails(MN_E_ARG, "is -1", mn_sampler_open(&sampler, w.model, w.config, (const int32_t[]){3, -1}, 2));
    assert_ok(mn_sampler_open(&sampler, w.model, w.config, w.prompt, N_PROMPT));
    assert_fails(MN_E_ARG, "allowed: 0 to", mn_sampler_accept(sampler, (int32_t)w.vocab));
    mn_sampler_close(&sampler);
    close_fixture(&w);
}

/* ---- the streaming detokenizer ---- */

static bool is_whole(const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        unsigned char first = (unsigned char)text[i++];
        int more = first < 0x80 ? 0 : first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : -1;
        if (more < 0) return false;
        for (; more > 0; more--, i++)
            if (i >= n || ((unsigned char)text[i] & 0xC0) != 0x80) return false;
    }
    return true;
}

/* Ids one by one and in pieces, with incomplete characters: the pieces concatenate to the whole text; a second text
 * after the first. */
static void pieces_are_valid_UTF_8_and_concatenate_to_the_text(void **state) {
    (void)state;
    static const char *const paths[] = {"tokenizers/gpt2", "tokenizers/mistral", "tokenizers/smollm2"};
    static const char text[] =
        "\xC3\xA9t\xC3\xA9 \xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\xA6\x99 \xF0\x9F\x87\xA8\xF0\x9F\x87\xAD, its \xD0\xBC\xD0\xB8\xD1\x80.";
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
        mn_tokenizer *tokenizer = NULL;
        mn_detokenizer *stream = NULL;
        int32_t *ids = NULL;
        size_t n = 0, n_whole = 0;
        assert_ok(mn_tokenizer_open(&tokenizer, data_path(paths[p])));
        assert_ok(mn_tokenize(tokenizer, text, sizeof text - 1, 0, &ids, &n));
        assert_ok(mn_detokenizer_open(&stream, tokenizer, MN_SKIP_SPECIAL));
        for (size_t step = 1; step < 5; step++) {
            size_t kept = step == 4 ? n - 1 : n; /* the last time the end token is missing */
            if (step == 3) ids[2] = ids[4];      /* and once a character is incomplete */
            char all[MOST_TEXT], *whole = NULL;
            const char *piece = NULL;
            size_t n_piece = 0, n_all = 0;
            for (size_t i = 0; i < kept; i += step) {
                assert_ok(mn_detokenizer_push(stream, ids + i, i + step < kept ? step : kept - i, &piece, &n_piece));
                assert_true(is_whole(piece, n_piece) && piece[n_piece] == 0);
                memcpy(all + n_all, piece, n_piece);
                n_all += n_piece;
            }
            assert_ok(mn_detokenizer_finish(stream, &piece, &n_piece));
            assert_true(is_whole(piece, n_piece));
            memcpy(all + n_all, piece, n_piece);
            n_all += n_piece;
            assert_ok(mn_detokenize(tokenizer, ids, kept, MN_SKIP_SPECIAL, &whole, &n_whole));
            assert_int_equal(n_all, n_whole);
            assert_memory_equal(all, whole, n_whole);
            if (step == 1) assert_string_equal(whole + (whole[0] == ' '), text);
            mn_free(whole);
        }
        const char *piece = NULL;
        size_t n_piece = 0;
        assert_fails(MN_E_ARG, "-5", mn_detokenizer_push(stream, (const int32_t[]){-5}, 1, &piece, &n_piece));
        mn_detokenizer_close(&stream);
        mn_tokenizer_close(&tokenizer);
        mn_free(ids);
    }
}

/* ---- token events ---- */

typedef struct event_log {
    size_t n, n_last, n_text, top;
    int32_t ids[MOST_EVENTS], best[MOST_EVENTS][2];
    float logprobs[MOST_EVENTS];
    char text[MOST_TEXT];
    const char *reason;
    size_t stop_after; /* 0: never */
} event_log;

static bool note_event(void *user, const mn_token_event *event) {
    event_log *l = user;
    assert_int_equal(event->size, sizeof *event);
    assert_int_equal(l->n_last, 0); /* no event follows the last one */
    memcpy(l->text + l->n_text, event->text, event->n_text);
    l->n_text += event->n_text;
    if (event->id < 0) {
        l->n_last++;
        l->reason = event->finish_reason;
        assert_null(event->logprobs);
        return true;
    }
    assert_null(event->finish_reason);
    l->ids[l->n] = event->id;
    assert_int_equal(event->logprob_ids[0], event->id);
    l->logprobs[l->n] = event->logprobs[0];
    for (int k = 0; k < 2; k++) l->best[l->n][k] = event->logprob_ids[1 + k];
    return ++l->n != l->stop_after;
}

/* Every mode reports the tokens with their log-probabilities, then the finish reason once. */
static void token_events_agree_with_the_sequences(void **state) {
    (void)state;
    static const struct {
        const char *settings[5], *reason;
        size_t stop_after;
    } cases[] = {
        {{"ignore_eos", "true"}, "length", 0},
        {{"ignore_eos", "true", "stop_strings", "[\"none such\", \"e\"]"}, "stop_string", 0},
        {{"ignore_eos", "true", "do_sample", "true"}, "cancelled", 4},
        {{"ignore_eos", "true", "num_beams", "3"}, "length", 0},
        {{"ignore_eos", "true", "num_beams", "3", NULL}, "length", 0},
        {{"ignore_eos", "true", "prompt_lookup_num_tokens", "4"}, "length", 0},
        {{"eos_token_id", NULL}, "eos", 0}, /* the third token that greedy search finds */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool is_eos = strcmp(cases[i].reason, "eos") == 0;
        fixture w = open_fixture(is_eos ? (const char *const[]){NULL} : (const char *const *)cases[i].settings);
        mn_session *session = NULL;
        mn_generation *generation = NULL;
        event_log l = {.stop_after = cases[i].stop_after};
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        how.on_token = note_event;
        how.user = &l;
        how.top_logprobs = 2;
        assert_ok(mn_session_open(&session, w.model, NULL));
        if (is_eos) {
            char id[16];
            assert_ok(mn_generate(session, w.prompt, N_PROMPT, w.config, NULL, &generation));
            snprintf(id, sizeof id, "%d", (int)generation->sequences[0]->ids[2]);
            assert_ok(mn_generation_config_set(w.config, "eos_token_id", id));
            mn_generation_close(&generation);
        }
        assert_ok(mn_generate(session, w.prompt, N_PROMPT, w.config, &how, &generation));
        const mn_sequence *s = generation->sequences[0];
        assert_int_equal(l.n_last, 1);
        assert_string_equal(l.reason, cases[i].reason);
        assert_string_equal(s->finish_reason, cases[i].reason);
        assert_int_equal(s->stop_string, strcmp(s->finish_reason, "stop_string") == 0 ? 1 : -1);
        assert_int_equal(l.n, s->n_ids);
        assert_memory_equal(l.ids, s->ids, l.n * sizeof *l.ids);
        assert_int_equal(l.n_text, s->n_text);
        assert_memory_equal(l.text, s->text, l.n_text);
        for (size_t k = 0; k < l.n; k++) {
            assert_true(l.logprobs[k] == s->logprobs[3 * k]);
            assert_int_equal(s->logprob_ids[3 * k], s->ids[k]);
            for (size_t b = 0; b < 2; b++) assert_int_equal(l.best[k][b], s->logprob_ids[3 * k + 1 + b]);
        }
        mn_generation_close(&generation);
        mn_session_close(&session);
        close_fixture(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sampler_chooses_the_tokens_of_mn_generate),
        cmocka_unit_test(other_searches_and_wrong_ids_are_refused),
        cmocka_unit_test(pieces_are_valid_UTF_8_and_concatenate_to_the_text),
        cmocka_unit_test(token_events_agree_with_the_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
