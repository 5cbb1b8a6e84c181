/* OpenAI's /v1/audio/transcriptions and /v1/audio/translations.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "request/fields.h"
#include "server.h"

enum { MOST_TEMPERATURES = 8 };

/* What a recording is called in messages. */
static const char *const file_name = "file";

typedef enum answer_format { AS_JSON, AS_TEXT, AS_SRT, AS_VERBOSE, AS_VTT } answer_format;

/* What a request asks for: the job's state. */
typedef struct transcription {
    bytes file;
    char *language, *prompt, *hotwords; /* NULL: none */
    double temperatures[MOST_TEMPERATURES];
    mn_transcribe_options options;
    answer_format format;
    bool has_segments, has_words; /* AS_VERBOSE */
    const char *task;
    struct server *server;
    job *job;
    bool has_text, is_read; /* of a stream: something was sent; the client reads it */
} transcription;

/* ---- what is written ---- */

static void put_text(bytes *out, const char *key, const char *text, size_t n) {
    json_put_key(out, key);
    json_put_string(out, n ? text : "", n);
}

/* Whisper's texts begin with a space. */
static const char *trimmed(const char *text, size_t *n) {
    while (*n && *text == ' ') text++, --*n;
    return text;
}

static void put_seconds(bytes *out, const char *key, double value) {
    json_put_key(out, key);
    bytes_printf(out, "%.3f", value);
}

static void put_segment(bytes *out, const mn_segment *s, size_t index) {
    bytes_printf(out, "{\"id\":%zu,\"seek\":%.0f", index, s->window_start * 100);
    put_seconds(out, "start", s->start);
    put_seconds(out, "end", s->end);
    put_text(out, "text", s->text, s->n_text);
    bytes_append_text(out, ",\"tokens\":[");
    for (size_t i = 0; i < s->n_ids; i++) bytes_printf(out, "%s%d", i ? "," : "", s->ids[i]);
    bytes_append_text(out, "]");
    json_put_real_member(out, "temperature", s->temperature);
    json_put_real_member(out, "avg_logprob", s->avg_logprob);
    json_put_real_member(out, "compression_ratio", s->compression_ratio);
    json_put_real_member(out, "no_speech_prob", s->no_speech_prob);
    bytes_append_text(out, "}");
}

static void put_words(bytes *out, const mn_segment *s, size_t *n_put) {
    for (size_t i = 0; i < s->n_words; i++) {
        size_t n = s->words[i]->n_text;
        const char *text = trimmed(s->words[i]->text, &n);
        bytes_append_text(out, (*n_put)++ ? ",{" : "{");
        put_text(out, "word", text, n);
        put_seconds(out, "start", s->words[i]->start);
        put_seconds(out, "end", s->words[i]->end);
        bytes_append_text(out, "}");
    }
}

static void put_verbose(bytes *out, const transcription *t, const mn_transcript *file) {
    json_put_text_member(out, "task", t->task);
    json_put_text_member(out, "language", file->language ? file->language : "");
    put_seconds(out, "duration", file->duration);
    if (t->has_segments) bytes_append_text(out, ",\"segments\":[");
    for (size_t i = 0; t->has_segments && i < file->n_segments; i++) {
        if (i) bytes_append_text(out, ",");
        put_segment(out, file->segments[i], i);
    }
    if (t->has_segments) bytes_append_text(out, "]");
    size_t n_words = 0;
    if (t->has_words) bytes_append_text(out, ",\"words\":[");
    for (size_t i = 0; t->has_words && i < file->n_segments; i++) put_words(out, file->segments[i], &n_words);
    if (t->has_words) bytes_append_text(out, "]");
}

static void put_json(bytes *out, const transcription *t, const mn_transcript *file, const char *type) {
    size_t n = file->n_text;
    const char *text = trimmed(file->text, &n);
    bytes_append_text(out, "{");
    if (type) json_put_text_member(out, "type", type);
    if (t->format == AS_VERBOSE) put_verbose(out, t, file);
    put_text(out, "text", text, n);
    bytes_append_text(out, ",\"usage\":{\"type\":\"duration\"");
    put_seconds(out, "seconds", file->duration);
    bytes_append_text(out, "}}");
}

static mn_status put_subtitles(bytes *out, const char *format, const mn_transcript *file) {
    char *text = NULL;
    size_t n = 0;
    int64_t n_cues = 0;
    MN_TRY(mn_subtitles_head(format, &text, &n));
    bytes_append(out, text, n);
    mn_free(text);
    for (size_t i = 0; i < file->n_segments; i++) {
        const mn_segment *s = file->segments[i];
        MN_TRY(mn_subtitles_cue(format, n_cues, s->start, s->end, s->text, s->n_text, &text, &n));
        bytes_append(out, text, n);
        n_cues += n > 0;
        mn_free(text);
    }
    return bytes_status(out);
}

static mn_status put_answer(bytes *out, transcription *t, const mn_transcript *file) {
    size_t n = file->n_text;
    const char *text = trimmed(file->text, &n);
    if (t->job->reply->streams) {
        bytes_append_text(out, "data: ");
        put_json(out, t, file, "transcript.text.done");
        bytes_append_text(out, "\n\n");
        return bytes_status(out);
    }
    if (t->format != AS_JSON && t->format != AS_VERBOSE)
        t->job->reply->type = t->format == AS_VTT ? "text/vtt; charset=utf-8" : "text/plain; charset=utf-8";
    switch (t->format) {
    case AS_SRT: return put_subtitles(out, "srt", file);
    case AS_VTT: return put_subtitles(out, "vtt", file);
    case AS_TEXT:
        if (n) bytes_append(out, text, n);
        bytes_append_text(out, "\n");
        break;
    default: put_json(out, t, file, NULL);
    }
    return bytes_status(out);
}

/* ---- transcribing ---- */

static void on_segment(void *user, size_t index, const mn_segment *s) {
    transcription *t = user;
    bytes out = {0};
    size_t n = s->n_text;
    const char *text = t->has_text ? s->text : trimmed(s->text, &n);
    (void)index;
    if (!t->job->reply->streams || n == 0) return;
    bytes_append_text(&out, "data: {\"type\":\"transcript.text.delta\"");
    put_text(&out, "delta", text, n);
    bytes_append_text(&out, "}\n\n");
    t->has_text = true;
    t->is_read = reply_put(t->job->reply, &out) && t->is_read;
}

static bool on_progress(void *user, const mn_transcribe_progress *p) {
    transcription *t = user;
    return speech_goes_on(t->server->speech, t->job, p->done, p->duration) && t->is_read;
}

/* The field that the library's sentence is about; NULL: none. */
static const char *field_meant(void) {
    static const char *const names[] = {"language", "prompt", "hotwords"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strstr(mn_last_error(), names[i])) return names[i];
    }
    return NULL;
}

/* "'PATH' cannot translate: ..." with the model's name: where it is does not concern clients. */
static mn_status cannot(const transcription *t) {
    const char *message = mn_last_error(), *end = *message == '\'' ? strchr(message + 1, '\'') : NULL;
    bytes text = {0};
    bytes_append_text(&text, end ? end + 1 : " cannot do this");
    status_fail(MN_E_UNSUPPORTED, "'%.100s'%s", t->server->speech_name, bytes_text(&text));
    bytes_clear(&text);
    return MN_E_UNSUPPORTED;
}

/* Why there is no transcript. */
static mn_status failed(const transcription *t, mn_status status, refusal *why) {
    switch (status) {
    case MN_E_CANCELLED:
        if (speech_stops(t->server->speech)) {
            *why = (refusal){503, "shutting_down", NULL};
            MN_FAIL(status, "the server is shutting down");
        }
        *why = (refusal){400, "cancelled", NULL};
        MN_FAIL(status, "the request was cancelled");
    case MN_E_FORMAT: *why = (refusal){400, "invalid_value", file_name}; break;
    case MN_E_ARG: *why = (refusal){400, "invalid_value", field_meant()}; break;
    case MN_E_UNSUPPORTED: *why = (refusal){501, "not_supported", field_meant()}; return cannot(t);
    case MN_E_NOMEM: *why = (refusal){503, "out_of_memory", NULL}; break;
    default: *why = (refusal){500, "server_error", NULL};
    }
    return status;
}

/* The query of the job. */
static mn_status transcribe(bytes *out, server *s, job *j, refusal *why) {
    transcription *t = j->state;
    mn_transcription *result = NULL;
    const void *data = bytes_text(&t->file);
    t->options.data = &data;
    t->options.data_sizes = &t->file.n;
    t->is_read = true;
    mn_status status = mn_transcribe(s->speech_model, &file_name, 1, &t->options, &result);
    const mn_transcript *file = status == MN_OK ? result->files[0] : NULL;
    if (file && file->status != MN_OK) status = status_fail(file->status, "%s", file->error);
    status = status == MN_OK ? put_answer(out, t, file) : failed(t, status, why);
    if (status == MN_OK) {
        reply_count(j->reply, 0, 0, file->n_ids);
        speech_goes_on(s->speech, j, file->duration, file->duration);
    }
    mn_transcription_close(&result);
    return status;
}

/* ---- what is read ---- */

static void close_transcription(job *j) {
    transcription *t = j->state;
    bytes_clear(&t->file);
    mem_free(t->language);
    mem_free(t->prompt);
    mem_free(t->hotwords);
    mem_free(t);
}

static const dialect transcriptions = {.error = openai_error, .fail = openai_fail, .close = close_transcription};

static mn_status check_model(const server *s, const json *body, refusal *why) {
    const json *name = json_get(body, "model");
    if (!name || json_is_string(name, s->speech_name)) return MN_OK;
    *why = (refusal){404, "model_not_found", "model"};
    MN_FAIL(MN_E_NOT_FOUND, "there is no speech model '%.100s', allowed: '%s'", name->string, s->speech_name);
}

static mn_status wrong(const char *name, const json *value, const char *allowed, refusal *why) {
    return field_wrong(&(field){.name = name}, value, allowed, why);
}

static mn_status read_format(transcription *t, const json *body, refusal *why) {
    static const char *const names[] = {"json", "text", "srt", "verbose_json", "vtt"};
    static const char granularities[] = "timestamp_granularities[]";
    const json *format = json_get(body, "response_format"), *list = json_get(body, granularities);
    for (size_t i = 0; format && i < sizeof names / sizeof *names; i++) {
        if (json_is_string(format, names[i])) t->format = (answer_format)i;
    }
    if (list && list->n && t->format != AS_VERBOSE)
        return wrong(granularities, list, "none, or 'response_format' verbose_json", why);
    for (size_t i = 0; list && i < list->n; i++) {
        bool is_word = json_is_string(&list->items[i], "word");
        if (!is_word && !json_is_string(&list->items[i], "segment"))
            return wrong(granularities, list, "'word', 'segment'", why);
        t->has_words = t->has_words || is_word;
        t->has_segments = t->has_segments || !is_word;
    }
    if (!t->has_words) t->has_segments = true;
    return MN_OK;
}

static mn_status read_stream(const transcription *t, const json *body, bool *streams, refusal *why) {
    const json *flag = json_get(body, "stream");
    *streams = flag && flag->boolean;
    if (*streams && t->format != AS_JSON && t->format != AS_TEXT)
        return wrong("stream", flag, "false, or 'response_format' json or text", why);
    return MN_OK;
}

static double number_of(const json *value) {
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

/* Of "auto", or of the members of an object: any of them leaves out what is no speech. */
static void read_chunking(mn_transcribe_options *o, const json *body) {
    static const double threshold_of_half = 4;
    const json *threshold = json_get(body, "chunking_strategy[threshold]"),
               *pad = json_get(body, "chunking_strategy[prefix_padding_ms]"),
               *silence = json_get(body, "chunking_strategy[silence_duration_ms]");
    o->vad_filter =
        json_get(body, "chunking_strategy") || json_get(body, "chunking_strategy[type]") || threshold || pad || silence;
    if (threshold) o->vad_threshold = fmax(number_of(threshold) / 0.5 * threshold_of_half, 0.1);
    if (pad) o->vad_speech_pad_ms = pad->integer;
    if (silence) o->vad_min_silence_ms = silence->integer;
}

/* Above 0: this temperature and those above it in the library's steps. */
static void read_temperature(transcription *t, const json *value) {
    double from = value ? number_of(value) : 0;
    mn_transcribe_options *o = &t->options;
    if (from < 1e-6) return;
    for (int i = 0; i < MOST_TEMPERATURES && from + 0.2 * i < 1 + 1e-6; i++)
        t->temperatures[o->n_temperatures++] = from + 0.2 * i;
    o->temperatures = t->temperatures;
}

/* A copy of a text, or NULL. */
static mn_status read_text(char **out, const json *value) {
    if (!value || !value->n) return MN_OK;
    *out = mem_copy_text(value->string, value->n);
    return *out ? MN_OK : MN_E_NOMEM;
}

static mn_status read_fields(transcription *t, const json *body, bool *streams, refusal *why) {
    const json *file = json_get(body, "file");
    mn_transcribe_options *o = &t->options;
    MN_TRY(read_format(t, body, why));
    MN_TRY(read_stream(t, body, streams, why));
    MN_TRY(read_text(&t->language, json_get(body, "language")));
    MN_TRY(read_text(&t->prompt, json_get(body, "prompt")));
    MN_TRY(read_text(&t->hotwords, json_get(body, "hotwords")));
    mn_transcribe_options_init(o, sizeof *o);
    read_temperature(t, json_get(body, "temperature"));
    read_chunking(o, body);
    o->task = t->task;
    o->language = t->language;
    o->prompt = t->prompt;
    o->hotwords = t->hotwords;
    o->timestamps = t->has_words ? "word" : "segment";
    o->on_progress = on_progress;
    o->on_segment = on_segment;
    o->user = t;
    bytes_append(&t->file, file->string, file->n);
    return bytes_status(&t->file);
}

static mn_status make(job **out, server *s, const json *body, bool *streams, const char *task, refusal *why) {
    MN_TRY(check_model(s, body, why));
    job *j = job_record(transcribe);
    transcription *t = j ? mem_alloc(1, sizeof *t) : NULL;
    if (!t) {
        job_close(j);
        return MN_E_NOMEM;
    }
    j->dialect = &transcriptions;
    j->state = t;
    t->server = s;
    t->job = j;
    t->task = task;
    mn_status status = read_fields(t, body, streams, why);
    if (status == MN_OK)
        *out = j;
    else
        job_close(j);
    return status;
}

mn_status transcription_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    return make(out, s, body, streams, "transcribe", why);
}

mn_status translation_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    return make(out, s, body, streams, "translate", why);
}
