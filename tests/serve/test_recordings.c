/* Requests with recordings: forms that are none are refused; requests wait, are listed, are cancelled, and end with the
 * server.
 * SPDX-License-Identifier: Apache-2.0 */
#include "serve/prometheus.h"
#include "serve/recordings.h"

/* ---- refusals ---- */

static void bad_fields_are_refused_by_name(void **state) {
    (void)state;
    static const char list[] = "timestamp_granularities[]", format[] = "response_format";
    const struct {
        const char *path;
        const char *const *fields;
        int status;
        const char *code, *param, *part;
    } of[] = {
        {ROUTE, FIELDS("temperature", "1.5"), 400, "value_out_of_range", "temperature", "is 1.5, allowed: 0 to 1"},
        {ROUTE, FIELDS("temperature", "warm"), 400, "value_out_of_range", "temperature", "\"warm\""},
        {ROUTE, FIELDS("temperature", ""), 400, "value_out_of_range", "temperature", "\"\""},
        {ROUTE, FIELDS("temperature", "[1]"), 400, "value_out_of_range", "temperature", "\"[1]\""},
        {ROUTE, FIELDS("temperature", "0", "temperature", "1"), 400, "invalid_value", "temperature", "is there twice"},
        {ROUTE, FIELDS("stream", "yes"), 400, "value_out_of_range", "stream", "true, false"},
        {ROUTE, FIELDS("stream", "true", format, "srt"), 400, "value_out_of_range", "stream", "json or text"},
        {ROUTE, FIELDS(format, "diarized_json"), 400, "value_out_of_range", format, "'verbose_json', 'vtt'"},
        {ROUTE, FIELDS(list, "word"), 400, "value_out_of_range", list, "verbose_json"},
        {ROUTE, FIELDS(format, "verbose_json", list, "letter"), 400, "value_out_of_range", list, "'word', 'segment'"},
        {ROUTE, FIELDS(format, "verbose_json", list, "word", list, "word", list, "word"), 400, "value_out_of_range",
         list, "'word', 'segment'"},
        {ROUTE, FIELDS("language", "Spanisch"), 400, "invalid_value", "language", "did you mean Spanish"},
        {ROUTE, FIELDS("language", ""), 400, "value_out_of_range", "language", "1 to 64 bytes"},
        {ROUTE, FIELDS("prompt", "a\xFF"), 400, "invalid_value", "prompt", "UTF-8"},
        {ROUTE, FIELDS("model", "whisper-1"), 404, "model_not_found", "model", "allowed: 'spelled'"},
        {ROUTE, FIELDS("model", "tiny"), 404, "model_not_found", "model", "allowed: 'spelled'"},
        {TRANSLATE, FIELDS(format, "xml"), 400, "value_out_of_range", format, "'json', 'text'"},
    };
    fixture w = open_fixture();
    bytes recording = read_data("test_speech.wav");
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        answer_text a = ask(w.port, of[i].path, &recording, of[i].fields);
        assert_refused(&a, of[i].status, of[i].code, of[i].param, of[i].part);
    }
    answer_text a = ask(w.port, TRANSLATE, &recording, FIELDS("language", "es", "top_q", "1", "language", "de"));
    assert_refused(&a, 400, "invalid_value", NULL, "is there twice");
    a = ask(w.port, TRANSLATE, &recording, FIELDS("language", "es", "top q", "1"));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(bytes_text(&a.head), "X-Mneme-Warning: unknown field 'language' ignored"));
    client_clear(&a);
    bytes_clear(&recording);
    close_fixture(&w);
}

static void what_is_no_recording_is_refused(void **state) {
    (void)state;
    fixture w = open_fixture();
    bytes empty = {0}, text = {0}, cut = read_data("1272-141231-0002.flac");
    bytes_append_text(&text,
                      "this is no audio, though it has some length; this is no audio, though it has some length");
    cut.n = 60;
    answer_text a = ask(w.port, ROUTE, NULL, NOTHING);
    assert_refused(&a, 400, "missing_field", "file", "'file' is missing");
    a = ask(w.port, ROUTE, &empty, NOTHING);
    assert_refused(&a, 400, "invalid_value", "file", "'file' is empty");
    a = ask(w.port, ROUTE, &text, NOTHING);
    assert_refused(&a, 400, "invalid_value", "file",
                   "'file' cannot be read as audio: its format is none of wav, flac, mp3, ogg, opus, aiff and the "
                   "others of libsndfile; convert it first, for example with ffmpeg");
    a = ask(w.port, ROUTE, &cut, NOTHING);
    assert_refused(&a, 400, "invalid_value", "file", "'file'");
    a = ask(w.port, ROUTE, &text, FIELDS("stream", "true"));
    assert_int_equal(a.status, 200); /* sent before the recording is read */
    assert_non_null(strstr(bytes_text(&a.body), "data: {\"error\":{\"message\":\"'file' cannot be read as audio"));
    client_clear(&a);
    bytes_clear(&text);
    bytes_clear(&cut);
    close_fixture(&w);
}

/* Bytes that are no form, with a recording inside that would be taken. */
static void malformed_forms_are_refused(void **state) {
    (void)state;
    static const char type[] = "multipart/form-data; boundary=" BOUNDARY;
    static const char part[] = "Content-Disposition: form-data; name=\"file\"";
    static const struct {
        const char *type, *begin, *end; /* around the recording */
        int status;
        const char *code;
    } of[] = {
        {"application/json", "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 400, "wrong_content_type"},
        {"multipart/form-data", "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 400, "wrong_content_type"},
        {"multipart/form-data; boundary=", "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 400, NULL},
        {"multipart/form-data; boundary=other", "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 400,
         "missing_field"}, /* all of it comes before the first boundary */
        {"multipart/mixed; boundary=" BOUNDARY, "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 400,
         "wrong_content_type"},
        {type, "--" BOUNDARY "\r\nP\r\n\r\n", "", 400, "invalid_form"},
        {type, "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "\r\n", 400, "invalid_form"},
        {type, "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "--", 200, NULL},
        {type, "--" BOUNDARY "\r\nP; filename=\"a\"; size=3\r\nX-Other: 1\r\n\r\n", "\r\n--" BOUNDARY "--\r\nepilogue",
         400, NULL},
        {"multipart/form-data; charset=utf-8; boundary=\"" BOUNDARY "\"", "--" BOUNDARY "\r\nP\r\n\r\n",
         "\r\n--" BOUNDARY "--\r\n", 200, NULL},
        {type, "--" BOUNDARY "\r\nP\r\nContent-Transfer-Encoding: base64\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 400,
         "invalid_form"},
        {type, "--" BOUNDARY "\r\nP\r\nContent-Transfer-Encoding: binary\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 200,
         NULL},
        {type, "--" BOUNDARY "\r\nContent-Disposition: form-data\r\n\r\n", "\r\n--" BOUNDARY "--\r\n", 400, NULL},
        {type, "", "", 400, NULL},
        {type, "--" BOUNDARY "--\r\n", "", 400, NULL},
        {"multipart/form-data; boundary=" BOUNDARY BOUNDARY, "--" BOUNDARY "\r\nP\r\n\r\n", "\r\n--" BOUNDARY "--\r\n",
         400, "missing_field"},
    };
    fixture w = open_fixture();
    bytes recording = make_noise(1);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        bytes form = {0};
        for (const char *c = of[i].begin; *c; c++)
            bytes_append(&form, *c == 'P' ? part : c, *c == 'P' ? sizeof part - 1 : 1);
        bytes_append(&form, recording.data, recording.n);
        bytes_append_text(&form, of[i].end);
        answer_text a = finish(post_bytes(w.port, ROUTE, of[i].type, "", &form));
        if (a.status != of[i].status || (of[i].code && !strstr(bytes_text(&a.body), of[i].code)))
            fail_msg("%zu: %d %s", i, a.status, bytes_text(&a.body));
        client_clear(&a);
        bytes_clear(&form);
    }
    bytes form = {0};
    for (int i = 0; i < 65; i++) put_field(&form, "include[]", "logprobs");
    put_file(&form, &recording);
    end_form(&form);
    answer_text a = finish(post_bytes(w.port, ROUTE, type, "", &form));
    assert_refused(&a, 400, "invalid_form", NULL, "more than 64 parts");
    bytes_clear(&form);
    bytes_clear(&recording);
    close_fixture(&w);
}

/* A form cut at any byte, and with any byte changed, gets an answer. */
static void damaged_forms_get_an_answer(void **state) {
    (void)state;
    static const char type[] = "multipart/form-data; boundary=" BOUNDARY;
    fixture w = open_fixture();
    bytes whole = {0}, nothing = {0};
    uint64_t seed = 3;
    put_field(&whole, "response_format", "text");
    put_field(&whole, "include[]", "a");
    bytes_append_text(&nothing, "RIFF");
    put_file(&whole, &nothing);
    end_form(&whole);
    const size_t n = whole.n;
    for (size_t i = 0; i < 2 * n; i += test_is_long() ? 1 : 5) {
        bytes form = {0};
        bytes_append(&form, whole.data, i < n ? i : n);
        if (i >= n) form.data[i - n] = (char)test_random(&seed);
        answer_text a = finish(post_bytes(w.port, ROUTE, type, "", &form));
        if (a.status != 400) fail_msg("%zu: %d %s", i, a.status, bytes_text(&a.body));
        client_clear(&a);
        bytes_clear(&form);
    }
    bytes_clear(&whole);
    bytes_clear(&nothing);
    close_fixture(&w);
}

static void bodies_have_a_limit(void **state) {
    (void)state;
    fixture w = open_fixture();
    bytes recording = {0};
    mem_grow(&recording.data, &recording.capacity, (25 << 20) + 1, 1);
    recording.n = 25 << 20;
    memset(recording.data, 'a', recording.n);
    answer_text a = ask(w.port, ROUTE, &recording, NOTHING);
    assert_refused(&a, 413, "body_too_large", NULL, "26214400");
    recording.n -= 1000;
    a = ask(w.port, ROUTE, &recording, NOTHING);
    assert_refused(&a, 400, "invalid_value", "file", "cannot be read as audio");
    bytes_clear(&recording);
    close_fixture(&w);
}

static void pages_of_others_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *origin;
        int status;
    } of[] = {{"https://evil.example", 403},
              {"null", 403},
              {"http://localhost.evil.example", 403},
              {"http://localhost:3000", 200},
              {"http://127.0.0.1:8080", 200}};
    fixture w = open_fixture();
    bytes form = {0}, recording = make_noise(1);
    put_file(&form, &recording);
    end_form(&form);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char header[128];
        snprintf(header, sizeof header, "Origin: %s\r\n", of[i].origin);
        answer_text a = finish(post_bytes(w.port, ROUTE, "multipart/form-data; boundary=" BOUNDARY, header, &form));
        if (a.status != of[i].status) fail_msg("%s: %d", of[i].origin, a.status);
        client_clear(&a);
    }
    bytes_clear(&form);
    bytes_clear(&recording);
    close_fixture(&w);
}

/* ---- other models ---- */

static void a_server_without_a_speech_model_says_so(void **state) {
    (void)state;
    fixture w = {.text = engine_model("embedded", "auto", "auto", 2)};
    const serve_options options = {.name = "tiny"};
    assert_ok(serve_open(&w.server, w.text, &options));
    w.port = serve_port(w.server);
    bytes recording = make_noise(1);
    answer_text a = ask(w.port, ROUTE, &recording, NOTHING);
    assert_refused(&a, 501, "not_supported", NULL, "--speech-model");
    bytes_clear(&recording);
    close_fixture(&w);
}

static void a_speech_model_may_be_alone(void **state) {
    (void)state;
    static const char *const of[][2] = {
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
        {"/v1/completions", "{\"prompt\":\"a\"}"},
        {"/v1/responses", "{\"input\":\"a\"}"},
        {"/v1/generate", "{\"prompt\":\"a\"}"},
        {"/v1/caches", "{\"prompt\":\"a\"}"}};
    fixture w = {.speech = spelled_model()};
    const serve_options options = {.name = "spelled"};
    assert_ok(serve_open(&w.server, w.speech, &options));
    w.port = serve_port(w.server);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        answer_text a = client_ask(w.port, of[i][0], of[i][1]);
        assert_refused(&a, 501, "not_supported", NULL, "is a speech model");
    }
    same_text(&w, ROUTE, "test_speech.wav", defaults(), FIELDS("model", "spelled"));
    answer_text a = client_get(w.port, "/v1/models");
    assert_non_null(strstr(bytes_text(&a.body), "\"id\":\"spelled\""));
    assert_null(strstr(strstr(a.body.data, "spelled") + 1, "\"id\""));
    client_clear(&a);
    close_fixture(&w);
}

static void models_that_do_not_fit_are_refused(void **state) {
    (void)state;
    mn_model *text = engine_model("embedded", "auto", "auto", 1), *hearing = spelled_model(),
             *mute = engine_model("golden/whisper/tiny80", "f32", "auto", 1);
    serve_options options = {.name = "one", .speech_model = text, .speech_name = "other"};
    server *s = NULL;
    assert_fails(MN_E_UNSUPPORTED, "'other' is a text model (llama)", serve_open(&s, text, &options));
    options.speech_model = mute;
    assert_fails(MN_E_UNSUPPORTED, "'other' has no tokenizer", serve_open(&s, text, &options));
    options.speech_model = hearing;
    assert_fails(MN_E_ARG, "'one' is a speech model", serve_open(&s, hearing, &options));
    assert_null(s);
    mn_model_close(&text);
    mn_model_close(&hearing);
    mn_model_close(&mute);
}

static void both_models_are_shown(void **state) {
    (void)state;
    fixture w = open_fixture();
    answer_text a = client_get(w.port, "/v1/models");
    json_doc *doc = client_json(&a);
    const json *data = json_get(json_root(doc), "data");
    assert_int_equal(data->n, 2);
    assert_string_equal(json_get(&data->items[0], "id")->string, "tiny");
    assert_string_equal(json_get(&data->items[1], "id")->string, "spelled");
    json_close(&doc);
    client_clear(&a);
    a = client_get(w.port, "/props");
    doc = client_json(&a);
    assert_string_equal(json_get(json_root(doc), "speech_model")->string, "spelled");
    assert_int_equal(json_get(json_get(json_root(doc), "limits"), "recording_bytes")->integer, 25 << 20);
    json_close(&doc);
    client_clear(&a);
    close_fixture(&w);
}

/* ---- requests that wait or run ---- */

enum { LONG_SECONDS = 600 };

/* How many requests are in this state; *id [64] is that of one of them. */
static int count_requests(int port, const char *state, char *id) {
    int n = 0;
    answer_text a = client_get(port, "/v1/requests");
    json_doc *doc = client_json(&a);
    const json *data = json_get(json_root(doc), "data");
    for (size_t i = 0; i < data->n; i++) {
        if (!json_is_string(json_get(&data->items[i], "state"), state)) continue;
        assert_non_null(json_get(&data->items[i], "seconds_done"));
        if (id) snprintf(id, 64, "%s", json_get(&data->items[i], "id")->string);
        n++;
    }
    json_close(&doc);
    client_clear(&a);
    return n;
}

static void wait_for(int port, const char *state, int n, char *id) {
    wait_until(count_requests(port, state, id) == n);
}

static double metric(int port, const char *name, const char *label) {
    static scrape s;
    answer_text a = client_get(port, "/metrics");
    scrape_read(&s, bytes_text(&a.body));
    client_clear(&a);
    return value_of(&s, name, label);
}

static void long_ones_are_listed_counted_cancelled(void **state) {
    (void)state;
    char id[64], path[128];
    fixture w = open_with((serve_options){.max_queue = 3});
    bytes recording = make_noise(LONG_SECONDS), little = make_noise(1);
    int first = post(w.port, ROUTE, &recording, NOTHING), second = post(w.port, ROUTE, &recording, NOTHING);
    wait_for(w.port, "transcribe", 2, NULL);
    int third = post(w.port, ROUTE, &recording, NOTHING);
    wait_for(w.port, "queued", 1, id);
    assert_true(metric(w.port, "mneme_num_transcriptions_running", "spelled") == 2);
    assert_true(metric(w.port, "mneme_num_transcriptions_waiting", "spelled") == 1);
    answer_text a = ask(w.port, ROUTE, &little, NOTHING);
    assert_non_null(strstr(bytes_text(&a.head), "Retry-After: 1"));
    assert_refused(&a, 429, "queue_full", NULL, "too many recordings");
    /* Texts do not wait for recordings. */
    a = client_ask(w.port, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":8,\"temperature\":0}");
    assert_int_equal(a.status, 200);
    client_clear(&a);
    assert_int_equal(count_requests(w.port, "transcribe", NULL), 2);
    snprintf(path, sizeof path, "/v1/requests/%s", id);
    a = finish(client_begin(w.port, "DELETE", path, ""));
    assert_int_equal(a.status, 200);
    client_clear(&a);
    close(first); /* clients that leave */
    close(second);
    a = finish(third);
    assert_refused(&a, 400, "cancelled", NULL, "was cancelled");
    wait_for(w.port, "transcribe", 0, NULL);
    assert_true(metric(w.port, "mneme_transcriptions_total", "\"abort\"") == 3);
    a = finish(client_begin(w.port, "DELETE", path, ""));
    assert_refused(&a, 404, "request_not_found", NULL, id);
    a = ask(w.port, ROUTE, &little, NOTHING);
    assert_int_equal(a.status, 200);
    client_clear(&a);
    assert_true(metric(w.port, "mneme_transcriptions_total", "\"stop\"") == 1);
    assert_true(metric(w.port, "mneme_transcribed_seconds_total", "spelled") == 1);
    bytes_clear(&recording);
    bytes_clear(&little);
    close_fixture(&w);
}

static void requests_belong_to_their_key(void **state) {
    (void)state;
    static const char both[] = "first-key-0123456789\nsecond-key-987654321\n";
    static const char first[] = "x-api-key: first-key-0123456789\r\n", second[] = "x-api-key: second-key-987654321\r\n";
    static const char type[] = "multipart/form-data; boundary=" BOUNDARY;
    char key_file[512], id[64] = "", path[128];
    snprintf(key_file, sizeof key_file, "%s", scratch_file("keys", both, sizeof both - 1));
    fixture w = open_with((serve_options){.api_key_file = key_file});
    bytes form = {0}, recording = make_noise(LONG_SECONDS);
    put_file(&form, &recording);
    end_form(&form);
    answer_text a = finish(post_bytes(w.port, ROUTE, type, "", &form));
    assert_true(a.status == 401 || a.status == 0); /* refused before the body, which is then not read */
    client_clear(&a);
    int fd = post_bytes(w.port, ROUTE, type, first, &form);
    wait_until(*id) {
        a = finish(client_begin(w.port, "GET", "/v1/requests", first));
        const char *at = strstr(bytes_text(&a.body), "transcription-");
        if (at) snprintf(id, sizeof id, "%.*s", (int)strcspn(at, "\""), at);
        client_clear(&a);
    }
    a = finish(client_begin(w.port, "GET", "/v1/requests", second));
    assert_non_null(strstr(bytes_text(&a.body), "\"data\":[]"));
    client_clear(&a);
    snprintf(path, sizeof path, "/v1/requests/%s", id);
    a = finish(client_begin(w.port, "DELETE", path, second));
    assert_int_equal(a.status, 404);
    client_clear(&a);
    a = finish(client_begin(w.port, "DELETE", path, first));
    assert_int_equal(a.status, 200);
    client_clear(&a);
    a = finish(fd);
    assert_int_equal(a.status, 400);
    client_clear(&a);
    bytes_clear(&form);
    bytes_clear(&recording);
    close_fixture(&w);
}

/* R42: what is computed when the server ends has its time; then it is cancelled, and the client knows. */
static void r42_servers_end_with_their_recordings(void **state) {
    (void)state;
    bytes recording = read_data("test_speech.wav"), noise = make_noise(LONG_SECONDS);
    fixture w = open_fixture();
    mn_transcription *t = alone(w.speech, "test_speech.wav", defaults());
    int fd = post(w.port, ROUTE, &recording, NOTHING);
    wait_until(metric(w.port, "mneme_num_transcriptions_running", "spelled") > 0 ||
               metric(w.port, "mneme_transcriptions_total", "\"stop\"") > 0);
    serve_close(&w.server, PATIENCE_MS);
    answer_text a = finish(fd);
    assert_text(&a, t);
    client_clear(&a);
    mn_transcription_close(&t);
    const serve_options options = {.name = "tiny", .speech_model = w.speech, .speech_name = "spelled"};
    assert_ok(serve_open(&w.server, w.text, &options));
    w.port = serve_port(w.server);
    int first = post(w.port, ROUTE, &noise, NOTHING), second = post(w.port, ROUTE, &noise, NOTHING),
        third = post(w.port, ROUTE, &noise, NOTHING);
    wait_for(w.port, "transcribe", 2, NULL);
    wait_for(w.port, "queued", 1, NULL);
    serve_close(&w.server, 10); /* none of them is computed to its end: the answers say so */
    a = finish(first);
    assert_refused(&a, 503, "shutting_down", NULL, "is shutting down");
    a = finish(second);
    assert_refused(&a, 503, "shutting_down", NULL, "is shutting down");
    a = finish(third);
    assert_refused(&a, 503, "shutting_down", NULL, "is shutting down");
    bytes_clear(&recording);
    bytes_clear(&noise);
    mn_model_close(&w.text);
    mn_model_close(&w.speech);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_fields_are_refused_by_name),
        cmocka_unit_test(what_is_no_recording_is_refused),
        cmocka_unit_test(malformed_forms_are_refused),
        cmocka_unit_test(damaged_forms_get_an_answer),
        cmocka_unit_test(bodies_have_a_limit),
        cmocka_unit_test(pages_of_others_are_refused),
        cmocka_unit_test(a_server_without_a_speech_model_says_so),
        cmocka_unit_test(a_speech_model_may_be_alone),
        cmocka_unit_test(models_that_do_not_fit_are_refused),
        cmocka_unit_test(both_models_are_shown),
        cmocka_unit_test(long_ones_are_listed_counted_cancelled),
        cmocka_unit_test(requests_belong_to_their_key),
        cmocka_unit_test(r42_servers_end_with_their_recordings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
