/* What ends an answer is no part of its text: ordinary tokens that are made the end, and stop strings that name special
 * tokens; in every decoding mode.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <stdio.h>
#include <string.h>

enum { MOST_TEXT = 512 };

static const char *const modes[][6] = {
    {"do_sample", "false"},
    {"do_sample", "true", "seed", "7"},
    {"num_beams", "3"},
    {"num_beams", "4", "num_beam_groups", "2", "diversity_penalty", "0.5"},
    {"num_beams", "3", "do_sample", "true", "seed", "7"}, /* the text of one run is looked for in the next */
    {"prompt_lookup_num_tokens", "3"},
    {"penalty_alpha", "0.6", "top_k", "4"},
};
enum { N_MODES = sizeof modes / sizeof *modes };

typedef struct fixture {
    mn_model *model;
    mn_session *session;
    mn_generation_config *config;
    int32_t *prompt;
    size_t n_prompt;
    char shown[MOST_TEXT]; /* by events */
} fixture;

static fixture open_fixture(size_t mode) {
    fixture w = {.model = engine_model("embedded", "f32", "auto", 1)};
    assert_ok(mn_tokenize(mn_model_tokenizer(w.model), "Once upon a time", 16, MN_ADD_SPECIAL, &w.prompt, &w.n_prompt));
    assert_ok(mn_session_open(&w.session, w.model, NULL));
    assert_ok(mn_generation_config_open(&w.config, w.model));
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "8"));
    for (size_t i = 0; i < 6 && modes[mode][i]; i += 2)
        assert_ok(mn_generation_config_set(w.config, modes[mode][i], modes[mode][i + 1]));
    return w;
}

static void close_fixture(fixture *w) {
    mn_free(w->prompt);
    mn_generation_config_close(&w->config);
    mn_session_close(&w->session);
    mn_model_close(&w->model);
}

static bool note(void *user, const mn_token_event *event) {
    char *shown = user;
    if (event->sequence == 0 && strlen(shown) + event->n_text < MOST_TEXT) strncat(shown, event->text, event->n_text);
    return true;
}

/* Generates once more from the prompt alone; the events say what the text says. */
static mn_generation *generate(fixture *w) {
    mn_generation *g = NULL;
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.on_token = note;
    how.user = w->shown;
    w->shown[0] = 0;
    assert_ok(mn_session_truncate(w->session, 0));
    assert_ok(mn_generate(w->session, w->prompt, w->n_prompt, w->config, &how, &g));
    assert_string_equal(w->shown, g->sequences[0]->text);
    return g;
}

static void set(fixture *w, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void set(fixture *w, const char *name, const char *format, ...) {
    char value[256];
    va_list list;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    assert_ok(mn_generation_config_set(w->config, name, value));
}

/* Ends with the reason; the text is that of the ids but the last, less n bytes. */
static void assert_end(fixture *w, const mn_sequence *s, const char *reason, size_t less, size_t mode) {
    char *text = NULL;
    size_t n = 0;
    assert_true(s->n_ids > 0);
    assert_ok(mn_detokenize(mn_model_tokenizer(w->model), s->ids, s->n_ids - 1, MN_SKIP_SPECIAL, &text, &n));
    if (strcmp(s->finish_reason, reason) != 0 || s->n_text != n - less || memcmp(s->text, text, n - less) != 0)
        fail_msg("mode %zu: ends by %s, wanted %s; '%s' of '%s'", mode, s->finish_reason, reason, s->text, text);
    mn_free(text);
}

static void ordinary_end_tokens_are_not_shown(void **state) {
    (void)state;
    for (size_t mode = 0; mode < N_MODES; mode++) {
        fixture w = open_fixture(mode);
        mn_generation *g = generate(&w);
        int32_t end = g->sequences[0]->ids[3];
        mn_generation_close(&g);
        set(&w, "logit_bias", "{\"%d\": 3}", end); /* what beams find instead may hold it elsewhere */
        set(&w, "eos_token_id", "[2, %d]", end);
        g = generate(&w);
        const mn_sequence *s = g->sequences[0];
        assert_int_equal(s->ids[s->n_ids - 1], end);
        assert_end(&w, s, "eos", 0, mode);
        mn_generation_close(&g);
        close_fixture(&w);
    }
}

/* The end token of a text that a pattern describes need not match the pattern. */
static void patterns_end_before_an_ordinary_end_token(void **state) {
    (void)state;
    for (size_t mode = 0; mode < 3; mode++) {
        fixture w = open_fixture(mode);
        int32_t *point = NULL;
        size_t n = 0;
        assert_ok(mn_tokenize(mn_model_tokenizer(w.model), "!", 1, 0, &point, &n));
        int32_t end = point[n - 1];
        mn_free(point);
        set(&w, "regex", "\"a{3}|b{3}\"");
        set(&w, "eos_token_id", "%d", end);
        mn_generation *g = generate(&w);
        const mn_sequence *s = g->sequences[0];
        assert_int_equal(s->ids[s->n_ids - 1], end);
        assert_true(strcmp(s->text, "aaa") == 0 || strcmp(s->text, "bbb") == 0);
        mn_generation_close(&g);
        close_fixture(&w);
    }
}

/* The eighth token is forced to be </s>, which does not end the text by itself. */
static void stop_strings_may_name_special_tokens(void **state) {
    (void)state;
    for (size_t mode = 0; mode < N_MODES; mode++) {
        fixture w = open_fixture(mode);
        set(&w, "ignore_eos", "true");
        set(&w, "forced_eos_token_id", "2");
        mn_generation *g = generate(&w);
        assert_int_equal(g->sequences[0]->n_ids, 8);
        assert_int_equal(g->sequences[0]->ids[7], 2);
        assert_end(&w, g->sequences[0], "length", 0, mode);
        const char *text = g->sequences[0]->text;
        char last[3] = {text[strlen(text) - 2], text[strlen(text) - 1]};
        mn_generation_close(&g);
        set(&w, "stop_strings", "[\"none\", \"</s>\"]");
        g = generate(&w);
        assert_end(&w, g->sequences[0], "stop_string", 0, mode);
        assert_int_equal(g->sequences[0]->stop_string, 1);
        mn_generation_close(&g);
        set(&w, "stop_strings", "[\"%s</s>\"]", last);
        g = generate(&w);
        assert_end(&w, g->sequences[0], "stop_string", 2, mode);
        mn_generation_close(&g);
        set(&w, "stop_strings", "[\"</s>x\"]"); /* what is held back is not lost */
        g = generate(&w);
        assert_end(&w, g->sequences[0], "length", 0, mode);
        mn_generation_close(&g);
        close_fixture(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordinary_end_tokens_are_not_shown),
        cmocka_unit_test(patterns_end_before_an_ordinary_end_token),
        cmocka_unit_test(stop_strings_may_name_special_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
