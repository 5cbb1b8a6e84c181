/* Streamed text of a sequence: complete UTF-8 characters, no part of a stop string, and in total the text up to the
 * stop string.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/sequence.h"

#include "base/utf8.h"
#include "support/engine.h"

enum { MOST_IDS = 24, MOST_STOPS = 3 };

typedef struct shown {
    bytes text;
    size_t n_events;
} shown;

static bool show(void *user, const mn_token_event *event) {
    shown *s = user;
    if (utf8_valid_prefix(event->text, event->n_text) != event->n_text) fail_msg("incomplete UTF-8 was released");
    bytes_append(&s->text, event->text, event->n_text);
    s->n_events++;
    return true;
}

/* A random part of the text that begins and ends with complete characters; "" when there is none. */
static void cut_stop(uint64_t *seed, const char *text, size_t n, char *out) {
    size_t begin = n ? (size_t)(test_random(seed) % n) : 0, size = 1 + (size_t)(test_random(seed) % 12);
    out[0] = 0;
    if (begin + size > n || memchr(text + begin, 0, size)) return;
    if (utf8_valid_prefix(text + begin, size) != size) return;
    memcpy(out, text + begin, size);
    out[size] = 0;
}

/* The text ends where the first stop string that is complete begins; of several complete at one byte the longest
 * counts. *which is its index in the list that set_stops sets. */
static size_t cut_at(const char *text, size_t n, char stops[MOST_STOPS][16], size_t *which) {
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0, index = 0;
        for (int i = 0; i < MOST_STOPS; i++) {
            size_t size = strlen(stops[i]);
            if (size && size <= end && size > longest && memcmp(text + end - size, stops[i], size) == 0) {
                longest = size;
                *which = index;
            }
            index += size > 0;
        }
        if (longest) return end - longest;
    }
    return n;
}

static void set_stops(mn_generation_config *config, char stops[MOST_STOPS][16]) {
    bytes b = {0};
    bytes_append_text(&b, "[");
    for (int i = 0; i < MOST_STOPS; i++) {
        if (!stops[i][0]) continue;
        if (b.n > 1) bytes_append_text(&b, ",");
        json_put_string(&b, stops[i], strlen(stops[i]));
    }
    bytes_append_text(&b, "]");
    assert_ok(mn_generation_config_set(config, "stop_strings", b.n > 2 ? bytes_text(&b) : "null"));
    bytes_clear(&b);
}

/* 10,000 sequences of random tokens, many of which are single bytes, with stop strings cut from their own text. */
static void streamed_text_is_complete_and_ends_at_the_stop_string(void **state) {
    (void)state;
    mn_model *model = engine_model("embedded", "f32", "auto", 1);
    mn_session *session = engine_session(model, (engine_cache){.implementation = "dynamic"});
    mn_generation_config *config = NULL;
    uint64_t seed = 9;
    size_t n_stopped = 0;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    for (int round = 0; round < 10000; round++) {
        int32_t ids[MOST_IDS], prompt = 1;
        char *text = NULL, stops[MOST_STOPS][16] = {""};
        size_t n_text = 0;
        shown s = {.n_events = 0};
        mn_generate_options options;
        mn_generate_options_init(&options, sizeof options);
        sequence q;
        engine_ids(&seed, ids, MOST_IDS, engine_vocab(model));
        for (int i = 0; i < MOST_IDS; i++) { /* bytes of characters that are longer than one, some of them whole */
            if (test_random(&seed) % 3 == 0) ids[i] = 3 + 0xC3;
            if (i && ids[i - 1] == 3 + 0xC3 && test_random(&seed) % 4)
                ids[i] = 3 + 0x80 + (int32_t)(test_random(&seed) % 64);
        }
        assert_ok(mn_detokenize(mn_model_tokenizer(model), ids, MOST_IDS, MN_SKIP_SPECIAL, &text, &n_text));
        for (int i = 0; i < MOST_STOPS; i++) {
            if (test_random(&seed) % 2) cut_stop(&seed, text, n_text, stops[i]);
        }
        set_stops(config, stops);
        options.on_token = show;
        options.user = &s;
        assert_ok(sequence_open(&q, session, config, &options, &prompt, 1, MOST_IDS));
        for (int i = 0; i < MOST_IDS && !q.finish; i++) assert_ok(sequence_add(&q, ids[i]));
        size_t which = 0, wanted = cut_at(text, n_text, stops, &which);
        /* A stop string that is complete only at the end of the text comes after the last token, which already ended
         * it. */
        bool at_end = q.n_ids == MOST_IDS && strcmp(q.finish, "length") == 0;
        if (wanted == n_text || !at_end) assert_string_equal(q.finish, wanted < n_text ? "stop_string" : "length");
        if (q.text.stopped) assert_int_equal(q.text.found, which);
        n_stopped += wanted < n_text;
        /* Tokens after the stop string were not added; the text before it is the same. */
        if (s.text.n != wanted || memcmp(bytes_text(&s.text), text, wanted) != 0)
            fail_msg("'%s' was released of '%s', %zu bytes expected", bytes_text(&s.text), text, wanted);
        assert_int_equal(q.text.text.n, wanted);
        assert_true(s.n_events >= q.n_ids);
        sequence_close(&q);
        bytes_clear(&s.text);
        mn_free(text);
    }
    assert_true(n_stopped > 3000 && n_stopped < 9500);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(streamed_text_is_complete_and_ends_at_the_stop_string)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
