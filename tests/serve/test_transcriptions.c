/* Recordings: transcripts are those of the library in every form of answer, whatever else the server computes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "serve/recordings.h"
#include "support/speech/sound.h"

static void transcripts_are_the_librarys(void **state) {
    (void)state;
    static const double from[] = {0.5, 0.7, 0.9};
    fixture w = open_fixture();
    mn_transcribe_options o = defaults();
    same_text(&w, ROUTE, "test_speech.wav", o, NOTHING);
    same_text(&w, ROUTE, "1272-141231-0002.mp3", o, FIELDS("model", "spelled", "response_format", "json"));
    same_text(&w, ROUTE, "1272-141231-0002.flac", o, FIELDS("temperature", "0"));
    o.language = "es";
    same_text(&w, ROUTE, "test_speech.wav", o, FIELDS("language", "Spanish"));
    o = defaults();
    o.prompt = "Glossary: Mneme";
    same_text(&w, ROUTE, "test_speech.wav", o, FIELDS("prompt", "Glossary: Mneme"));
    o = defaults();
    o.hotwords = "Glossary: Mneme";
    same_text(&w, ROUTE, "test_speech.wav", o, FIELDS("hotwords", "Glossary: Mneme"));
    o = defaults();
    o.temperatures = from;
    o.n_temperatures = 3;
    same_text(&w, ROUTE, "test_speech.wav", o, FIELDS("temperature", "0.5"));
    o = defaults();
    o.task = "translate";
    same_text(&w, TRANSLATE, "test_speech.wav", o, FIELDS("response_format", "json"));
    close_fixture(&w);
}

/* A clip with six seconds of noise before it, as a file of its own; valid as scratch_path says. */
static const char *write_spoken(void) {
    enum { NOISE = 6 * AUDIO_RATE };
    size_t n = 0;
    uint64_t seed = 7;
    float *clip = sound_read(data_path("audio/5s_dont_worry_about_him.wav"), &n);
    int16_t *samples = malloc((NOISE + n) * sizeof *samples);
    for (size_t i = 0; i < NOISE; i++) samples[i] = (int16_t)test_uniform(&seed, -30, 30);
    for (size_t i = 0; i < n; i++) samples[NOISE + i] = (int16_t)lrintf(clip[i] * 32767);
    const char *path = sound_file_i16("spoken.wav", samples, NOISE + n);
    free(clip);
    free(samples);
    return path;
}

#define CHUNKING "chunking_strategy"

static void what_is_no_speech_is_left_out(void **state) {
    (void)state;
    const struct {
        const char *const *fields;
        double threshold;
        int64_t pad, silence;
    } of[] = {
        {FIELDS(CHUNKING, "auto"), 4, 400, 2000},
        {FIELDS(CHUNKING "[type]", "server_vad"), 4, 400, 2000},
        {FIELDS(CHUNKING "[type]", "server_vad", CHUNKING "[threshold]", "1"), 8, 400, 2000},
        {FIELDS(CHUNKING "[threshold]", "0.75", CHUNKING "[prefix_padding_ms]", "20", CHUNKING "[silence_duration_ms]",
                "100"),
         6, 20, 100},
        {FIELDS(CHUNKING "[threshold]", "0"), 0.1, 400, 2000},
    };
    fixture w = open_fixture();
    const char *given = write_spoken();
    bytes recording = {0};
    mn_transcription *plain = NULL, *t = NULL;
    mn_transcribe_options o = defaults();
    assert_ok(file_read(&recording, given, 1 << 22));
    assert_ok(mn_transcribe(w.speech, &given, 1, &o, &plain));
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (!test_samples((int)i, 2)) continue;
        o.vad_filter = true;
        o.vad_threshold = of[i].threshold;
        o.vad_speech_pad_ms = of[i].pad;
        o.vad_min_silence_ms = of[i].silence;
        assert_ok(mn_transcribe(w.speech, &given, 1, &o, &t));
        answer_text a = ask(w.port, ROUTE, &recording, of[i].fields);
        assert_text(&a, t);
        if (of[i].threshold > 1) assert_string_not_equal(t->files[0]->text, plain->files[0]->text);
        client_clear(&a);
        mn_transcription_close(&t);
    }
    static const char *const wrong[][2] = {{CHUNKING, "manual"},
                                           {CHUNKING "[type]", "client_vad"},
                                           {CHUNKING "[threshold]", "1.5"},
                                           {CHUNKING "[prefix_padding_ms]", "-1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        answer_text a = ask(w.port, ROUTE, &recording, FIELDS(wrong[i][0], wrong[i][1]));
        assert_refused(&a, 400, "value_out_of_range", wrong[i][0], "allowed: ");
    }
    mn_transcription_close(&plain);
    bytes_clear(&recording);
    close_fixture(&w);
}

/* So that the first test sees each of them. */
static void fields_change_the_transcript(void **state) {
    (void)state;
    static const char *const others[][2] = {{"language", "ja"},
                                            {"prompt", "Glossary: Mneme"},
                                            {"hotwords", "Glossary: Mneme"},
                                            {"temperature", "0.5"},
                                            {"temperature", "1"}};
    fixture w = open_fixture();
    bytes recording = read_data("test_speech.wav");
    answer_text plain = ask(w.port, ROUTE, &recording, FIELDS("language", "en"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool has_language = i == 0;
        answer_text a =
            ask(w.port, ROUTE, &recording,
                has_language ? FIELDS("language", "ja") : FIELDS("language", "en", others[i][0], others[i][1]));
        assert_int_equal(a.status, 200);
        if (strcmp(a.body.data, plain.body.data) == 0) fail_msg("%s changes nothing", others[i][0]);
        client_clear(&a);
    }
    client_clear(&plain);
    bytes_clear(&recording);
    close_fixture(&w);
}

/* ---- forms of answers ---- */

static void same_number(const json *object, const char *name, double wanted, double error) {
    const json *value = json_get(object, name);
    assert_non_null(value);
    double seen = value->kind == JSON_INT ? (double)value->integer : value->real;
    if (!(fabs(seen - wanted) <= error)) fail_msg("%s is %g, not %g", name, seen, wanted);
}

static void same_segment(const json *got, const mn_segment *s, size_t index) {
    const json *tokens = json_get(got, "tokens");
    assert_int_equal(json_get(got, "id")->integer, index);
    same_number(got, "start", s->start, 0.0006);
    same_number(got, "end", s->end, 0.0006);
    same_number(got, "avg_logprob", s->avg_logprob, 0);
    same_number(got, "no_speech_prob", s->no_speech_prob, 0);
    same_number(got, "compression_ratio", s->compression_ratio, 0);
    same_number(got, "temperature", s->temperature, 0);
    same_number(got, "seek", 100 * s->window_start, 0.5);
    assert_string_equal(json_get(got, "text")->string, s->text);
    assert_int_equal(tokens->n, s->n_ids);
    for (size_t i = 0; i < s->n_ids; i++) assert_int_equal(tokens->items[i].integer, s->ids[i]);
}

static void verbose_answers_have_segments_and_words(void **state) {
    (void)state;
    static const char name[] = "test_speech.wav", granularity[] = "timestamp_granularities[]";
    fixture w = open_fixture();
    bytes recording = read_data(name);
    mn_transcribe_options o = defaults();
    o.timestamps = "word";
    mn_transcription *t = alone(w.speech, name, o);
    const mn_transcript *file = t->files[0];
    const struct {
        const char *const *fields;
        bool segments, words;
    } of[] = {
        {FIELDS("response_format", "verbose_json"), true, false},
        {FIELDS("response_format", "verbose_json", granularity, "segment"), true, false},
        {FIELDS("response_format", "verbose_json", granularity, "word"), false, true},
        {FIELDS(granularity, "word", "response_format", "verbose_json", granularity, "segment"), true, true},
    };
    assert_true(file->n_segments >= 2 && file->segments[file->n_segments - 1]->window_start > 0);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        answer_text a = ask(w.port, ROUTE, &recording, of[i].fields);
        assert_text(&a, t);
        json_doc *doc = client_json(&a);
        const json *root = json_root(doc), *segments = json_get(root, "segments"), *words = json_get(root, "words");
        size_t n_words = 0;
        assert_string_equal(json_get(root, "task")->string, "transcribe");
        assert_string_equal(json_get(root, "language")->string, file->language);
        same_number(root, "duration", file->duration, 0.0006);
        same_number(json_get(root, "usage"), "seconds", file->duration, 0.0006);
        assert_int_equal(segments != NULL, of[i].segments);
        assert_int_equal(words != NULL, of[i].words);
        if (segments) assert_int_equal(segments->n, file->n_segments);
        for (size_t k = 0; k < file->n_segments; k++) {
            const mn_segment *s = file->segments[k];
            if (segments) same_segment(&segments->items[k], s, k);
            for (size_t m = 0; words && m < s->n_words; m++) {
                const json *word = &words->items[n_words++];
                const char *text = without_space(s->words[m]->text);
                size_t n = s->words[m]->n_text - (size_t)(text - s->words[m]->text);
                assert_int_equal(json_get(word, "word")->n, n);
                assert_memory_equal(json_get(word, "word")->string, text, n);
                same_number(word, "start", s->words[m]->start, 0.0006);
                same_number(word, "end", s->words[m]->end, 0.0006);
            }
        }
        if (words) assert_true(n_words == words->n && n_words > 0);
        json_close(&doc);
        client_clear(&a);
    }
    mn_transcription_close(&t);
    bytes_clear(&recording);
    close_fixture(&w);
}

static void put_subtitles(bytes *out, const char *format, const mn_transcript *file) {
    char *text = NULL;
    size_t n = 0;
    int64_t n_cues = 0;
    assert_ok(mn_subtitles_head(format, &text, &n));
    for (size_t i = 0;; i++) {
        bytes_append(out, text, n);
        n_cues += i > 0 && n > 0;
        mn_free(text);
        if (i == file->n_segments) break;
        const mn_segment *s = file->segments[i];
        assert_ok(mn_subtitles_cue(format, n_cues, s->start, s->end, s->text, s->n_text, &text, &n));
    }
}

static void texts_and_subtitles_have_their_types(void **state) {
    (void)state;
    static const char *const of[][2] = {{"text", "text/plain"}, {"srt", "text/plain"}, {"vtt", "text/vtt"}};
    static const char name[] = "test_speech.wav";
    fixture w = open_fixture();
    bytes recording = read_data(name);
    mn_transcription *t = alone(w.speech, name, defaults());
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char type[64];
        bytes wanted = {0};
        answer_text a = ask(w.port, ROUTE, &recording, FIELDS("response_format", of[i][0]));
        assert_int_equal(a.status, 200);
        snprintf(type, sizeof type, "Content-Type: %s; charset=utf-8\r\n", of[i][1]);
        assert_non_null(strstr(bytes_text(&a.head), type));
        if (i == 0)
            bytes_printf(&wanted, "%s\n", without_space(t->files[0]->text));
        else
            put_subtitles(&wanted, of[i][0], t->files[0]);
        assert_string_equal(a.body.data, bytes_text(&wanted));
        bytes_clear(&wanted);
        client_clear(&a);
    }
    mn_transcription_close(&t);
    bytes_clear(&recording);
    close_fixture(&w);
}

static void streams_have_the_text_in_pieces(void **state) {
    (void)state;
    static const char name[] = "1272-141231-0002.flac";
    fixture w = open_fixture();
    bytes recording = read_data(name), joined = {0};
    mn_transcription *t = alone(w.speech, name, defaults());
    answer_text a = ask(w.port, ROUTE, &recording, FIELDS("stream", "true"));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(bytes_text(&a.head), "Content-Type: text/event-stream\r\n"));
    int n_deltas = 0, n_done = 0;
    for (const char *at = bytes_text(&a.body); strncmp(at, "data: ", 6) == 0;) {
        const char *end = strstr(at, "\n\n");
        json_doc *doc = NULL;
        assert_non_null(end);
        assert_ok(json_parse(&doc, at + 6, (size_t)(end - at - 6), JSON_STRICT, "event"));
        const json *delta = json_get(json_root(doc), "delta"), *text = json_get(json_root(doc), "text");
        const char *type = json_get(json_root(doc), "type")->string;
        assert_int_equal(n_done, 0); /* it is the last one */
        assert_string_equal(type, delta ? "transcript.text.delta" : "transcript.text.done");
        if (delta) bytes_append(&joined, delta->string, delta->n);
        if (text) assert_string_equal(text->string, without_space(t->files[0]->text));
        n_deltas += delta != NULL;
        n_done += text != NULL;
        json_close(&doc);
        at = end + 2;
    }
    assert_true(n_deltas > 3);
    assert_int_equal(n_done, 1);
    assert_string_equal(bytes_text(&joined), without_space(t->files[0]->text));
    mn_transcription_close(&t);
    client_clear(&a);
    bytes_clear(&joined);
    bytes_clear(&recording);
    close_fixture(&w);
}

/* ---- both at once ---- */

typedef struct text_client {
    pthread_t thread;
    int port;
    atomic_bool stops;
    int n; /* answers */
    bytes wanted;
} text_client;

static const char *choices_of(bytes *body) {
    const char *at = strstr(bytes_text(body), "\"text\":");
    return at ? at : "";
}

static void *converse(void *arg) {
    text_client *t = arg;
    while (!atomic_load(&t->stops)) {
        answer_text a =
            client_ask(t->port, "/v1/completions", "{\"prompt\":\"Once upon\",\"max_tokens\":24,\"temperature\":0}");
        const char *text = choices_of(&a.body);
        size_t n = strcspn(text, "}");
        if (!t->n) bytes_append(&t->wanted, text, n);
        if (a.status != 200 || n != t->wanted.n || memcmp(text, t->wanted.data, n) != 0) fail_msg("%s", a.body.data);
        client_clear(&a);
        t->n++;
    }
    return NULL;
}

static void *transcribe_some(void *arg) {
    fixture *w = arg;
    for (int i = 0; i < 2; i++) same_text(w, ROUTE, "test_speech.wav", defaults(), NOTHING);
    return NULL;
}

static void texts_and_transcripts_stay_the_same_together(void **state) {
    (void)state;
    fixture w = open_fixture();
    text_client t = {.port = w.port};
    pthread_t other;
    assert_int_equal(pthread_create(&t.thread, NULL, converse, &t), 0);
    assert_int_equal(pthread_create(&other, NULL, transcribe_some, &w), 0);
    transcribe_some(&w);
    pthread_join(other, NULL);
    atomic_store(&t.stops, true);
    pthread_join(t.thread, NULL);
    assert_true(t.n >= 2);
    bytes_clear(&t.wanted);
    close_fixture(&w);
}

/* ---- recorded requests ---- */

/* Clients send a field's head and its value apart. */
static void forms_may_come_in_pieces(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *refusal; /* that has read all of the form */
    } fields[] = {{"temperature", "0", "cannot be read as audio"},
                  {"stream", "true", "cannot be read as audio"},
                  {"response_format", "json", "cannot be read as audio"},
                  {"timestamp_granularities[]", "word", "is [\\\"word\\\"]"}};
    enum { N_FIELDS = sizeof fields / sizeof *fields, AROUND = 3 };
    const struct timespec pause = {.tv_nsec = 5000000};
    fixture w = open_fixture();
    for (size_t i = 0; i < N_FIELDS; i++) {
        bytes form = {0}, head = {0}, recording = {0};
        bytes_append_text(&recording, "no audio at all, though it is long enough");
        put_field(&form, fields[i].name, fields[i].value);
        const size_t value = form.n - strlen(fields[i].value) - 2;
        put_file(&form, &recording);
        end_form(&form);
        bytes_printf(&head,
                     "POST " ROUTE
                     " HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=" BOUNDARY
                     "\r\nContent-Length: %zu\r\n\r\n",
                     form.n);
        for (size_t cut = value - AROUND; cut <= value + AROUND; cut++) {
            int fd = client_connect(w.port);
            client_send(fd, head.data, head.n);
            client_send(fd, form.data, cut);
            nanosleep(&pause, NULL);
            client_send(fd, form.data + cut, form.n - cut);
            answer_text a = client_read(fd);
            if (!strstr(a.body.data, fields[i].refusal))
                fail_msg("%s, its value at %zu, cut at %zu: %s", fields[i].name, value, cut, a.body.data);
            client_clear(&a);
            close(fd);
        }
        bytes_clear(&form);
        bytes_clear(&head);
        bytes_clear(&recording);
    }
    close_fixture(&w);
}

/* The recording inside a request: a WAV file has its length in its head. */
static bytes recording_of(const bytes *request) {
    bytes file = {0};
    uint32_t length;
    const char *at = memmem(request->data, request->n, "\r\n\r\nRIFF", 8);
    assert_non_null(at);
    at += 4;
    memcpy(&length, at + 4, sizeof length);
    assert_true(length > 1000 && at + 8 + length <= request->data + request->n);
    bytes_append(&file, at, 8 + length);
    return file;
}

static void replay(const fixture *w, const char *name) {
    char path[512];
    bytes request = {0};
    mn_transcription *t = NULL;
    snprintf(path, sizeof path, "serve/speech/%s", name);
    assert_ok(file_read(&request, data_path(path), 1 << 20));
    bytes file = recording_of(&request);
    mn_transcribe_options o = defaults();
    const void *data = file.data;
    o.data = &data;
    o.data_sizes = &file.n;
    assert_ok(mn_transcribe(w->speech, FIELDS("a recording"), 1, &o, &t));
    int fd = client_connect(w->port);
    client_send(fd, request.data, request.n);
    answer_text a = finish(fd);
    if (strstr(name, "-stream.")) {
        bytes wanted = {0};
        bytes_append_text(&wanted, "data: {\"type\":\"transcript.text.done\",\"text\":");
        json_put_string(&wanted, without_space(t->files[0]->text), strlen(without_space(t->files[0]->text)));
        assert_non_null(strstr(bytes_text(&a.body), bytes_text(&wanted)));
        bytes_clear(&wanted);
    } else {
        assert_text(&a, t);
    }
    if (strstr(name, "-words.")) assert_non_null(strstr(a.body.data, "\"words\":[{\"word\""));
    mn_transcription_close(&t);
    client_clear(&a);
    bytes_clear(&file);
    bytes_clear(&request);
}

/* What the official client sent (tests/data/serve/speech) is answered with what the library says of the same file. */
static void recorded_requests_get_the_librarys_answer(void **state) {
    (void)state;
    static const char key[] = "a-key-of-the-clients-0123\n";
    char path[512];
    int n_requests = 0;
    snprintf(path, sizeof path, "%s", scratch_file("keys", key, sizeof key - 1));
    fixture w = open_with((serve_options){.api_key_file = path});
    DIR *folder = opendir(data_path("serve/speech"));
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strstr(entry->d_name, ".http")) continue;
        replay(&w, entry->d_name);
        n_requests++;
    }
    closedir(folder);
    assert_int_equal(n_requests, 3);
    close_fixture(&w);
}

/* The real model, where it is installed. */
static void whisper_transcribes_a_recording(void **state) {
    (void)state;
    const char *path = whisper_path("whisper-tiny.en");
    if (!path || !test_is_long()) skip();
    fixture w = {.text = engine_model("embedded", "auto", "auto", 2)};
    mn_model_options how;
    mn_model_options_init(&how, sizeof how);
    assert_ok(mn_model_open(&w.speech, path, &how));
    const serve_options options = {.name = "tiny", .speech_model = w.speech, .speech_name = "whisper-tiny.en"};
    assert_ok(serve_open(&w.server, w.text, &options));
    w.port = serve_port(w.server);
    same_text(&w, ROUTE, "jfk.wav", defaults(), NOTHING);
    bytes recording = read_data("jfk.wav");
    answer_text a = ask(w.port, ROUTE, &recording, FIELDS("response_format", "text"));
    assert_non_null(strstr(bytes_text(&a.body), "ask what you can do for your country"));
    client_clear(&a);
    a = ask(w.port, TRANSLATE, &recording, NOTHING);
    assert_refused(&a, 501, "not_supported", NULL, "'whisper-tiny.en' cannot translate");
    bytes_clear(&recording);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transcripts_are_the_librarys),
        cmocka_unit_test(fields_change_the_transcript),
        cmocka_unit_test(what_is_no_speech_is_left_out),
        cmocka_unit_test(verbose_answers_have_segments_and_words),
        cmocka_unit_test(texts_and_subtitles_have_their_types),
        cmocka_unit_test(streams_have_the_text_in_pieces),
        cmocka_unit_test(texts_and_transcripts_stay_the_same_together),
        cmocka_unit_test(forms_may_come_in_pieces),
        cmocka_unit_test(recorded_requests_get_the_librarys_answer),
        cmocka_unit_test(whisper_transcribes_a_recording),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
