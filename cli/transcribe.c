/* `mneme transcribe`: recordings in, text, subtitles or JSON out.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "config.h"
#include "loaded_model.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "result.h"
#include "transcript_names.h"
#include "commands.h"

enum { MOST_TEMPERATURES = 64 };

/* Progress of a recording. */
typedef struct recording_state {
    double done, duration; /* seconds; 0 until they are known */
    bool is_over;
} recording_state;

typedef struct transcribe {
    const options *o;
    loaded_model e;
    mn_cache_options cache;
    mn_cache_summary kind; /* of the cache */
    mn_transcribe_options how;
    double temperatures[MOST_TEMPERATURES];
    bool is_json;
    const char *format;                  /* "txt", ... */
    int64_t n_cues;                      /* of the recording that is written to stdout segment by segment */
    recording_state *states;             /* [files] */
    bytes *names;                        /* [files], of what is written to --output-dir */
    double started, moved, done_seconds; /* times of the beginning and of the last progress, and the seconds done
                                          * then */
    mn_transcription *result;
    int code;
} transcribe;

/* ---- options ---- */

static mn_status read_temperatures(transcribe *t) {
    const char *text = option_text(t->o, OPT_TEMPERATURES, NULL);
    if (!text) return MN_OK;
    for (const char *at = text + strspn(text, " ["); *at;) {
        char *end = NULL;
        double value = strtod(at, &end);
        if (end == at || t->how.n_temperatures == MOST_TEMPERATURES)
            MN_FAIL(MN_E_ARG,
                    "--temperature: '%.60s' is no list; allowed: numbers with commas between, as in 0,0.4,0.8", text);
        t->temperatures[t->how.n_temperatures++] = value;
        at = end + strspn(end, " ,]");
    }
    t->how.temperatures = t->temperatures;
    return MN_OK;
}

/* "none" turns a threshold off. */
static mn_status read_threshold(double *out, const options *o, option_id id, double off) {
    const char *text = option_text(o, id, NULL);
    if (!text) return MN_OK;
    if (strcmp(text, "none") == 0) {
        *out = off;
        return MN_OK;
    }
    char *end = NULL, flag[64];
    double value = strtod(text, &end);
    if (end == text || *end || isnan(value))
        MN_FAIL(MN_E_ARG, "--%s: '%.40s' is no number; allowed: a number, or none",
                flag_spelling(flag, sizeof flag, option_table[id].name), text);
    *out = value;
    return MN_OK;
}

static mn_status read_output(transcribe *t) {
    const options *o = t->o;
    const char *output = option_text(o, OPT_SUBTITLES, option_on(o, OPT_JSON) ? "json" : "txt");
    t->is_json = strcmp(output, "json") == 0;
    if (option_on(o, OPT_JSON) && !t->is_json)
        MN_FAIL(MN_E_ARG, "--json and --output %s contradict each other; give one of them", output);
    t->format = output;
    bool has_times = t->is_json || strcmp(t->format, "txt") == 0 || strcmp(t->how.timestamps, "none") != 0;
    if (!has_times)
        MN_FAIL(MN_E_ARG, "--output %s shows times, and --timestamps none gives none; leave one of them out", output);
    return MN_OK;
}

/* Its details may stay in the configuration file for runs with the filter; flags of them alone are a mistake. */
static mn_status read_vad(mn_transcribe_options *how, const options *o) {
    how->vad_filter = option_on(o, OPT_VAD_FILTER);
    for (option_id id = OPT_VAD_THRESHOLD; id <= OPT_VAD_SPEECH_PAD && !how->vad_filter; id++) {
        char flag[64];
        if (option_is_set(o, id) && o->set[id].origin == ORIGIN_FLAG)
            MN_FAIL(MN_E_ARG, "--%s %s is given without --vad-filter",
                    flag_spelling(flag, sizeof flag, option_table[id].name), option_text(o, id, ""));
    }
    how->vad_threshold = (double)option_number(o, OPT_VAD_THRESHOLD, (int64_t)how->vad_threshold);
    how->vad_min_silence_ms = option_number(o, OPT_VAD_MIN_SILENCE, how->vad_min_silence_ms);
    how->vad_min_speech_ms = option_number(o, OPT_VAD_MIN_SPEECH, how->vad_min_speech_ms);
    how->vad_speech_pad_ms = option_number(o, OPT_VAD_SPEECH_PAD, how->vad_speech_pad_ms);
    return MN_OK;
}

static mn_status read_options(transcribe *t) {
    const options *o = t->o;
    mn_transcribe_options *how = &t->how;
    mn_transcribe_options_init(how, sizeof *how);
    how->language = option_text(o, OPT_LANGUAGE, NULL);
    how->prompt = option_text(o, OPT_SPEECH_PROMPT, NULL);
    how->hotwords = option_text(o, OPT_HOTWORDS, NULL);
    how->task = option_text(o, OPT_TASK, how->task);
    how->timestamps = option_text(o, OPT_TIMESTAMPS, how->timestamps);
    how->num_beams = (int)option_number(o, OPT_NUM_BEAMS, how->num_beams);
    how->condition_on_prev_tokens = option_on(o, OPT_CONDITION);
    how->max_new_tokens = option_number(o, OPT_WINDOW_TOKENS, how->max_new_tokens);
    how->seed = (uint64_t)option_number(o, OPT_SEED, 0);
    how->batch_size = (size_t)option_number(o, OPT_BATCH_SIZE, (int64_t)how->batch_size);
    MN_TRY(read_vad(how, o));
    how->cache = &t->cache;
    MN_TRY(read_temperatures(t));
    MN_TRY(read_threshold(&how->compression_ratio_threshold, o, OPT_COMPRESSION_RATIO, INFINITY));
    MN_TRY(read_threshold(&how->logprob_threshold, o, OPT_LOGPROB, -INFINITY));
    MN_TRY(read_threshold(&how->no_speech_threshold, o, OPT_NO_SPEECH, INFINITY));
    MN_TRY(read_output(t));
    if (o->n_positional == 0)
        MN_FAIL(MN_E_ARG, "there is no recording; usage: mneme %s (- is the standard input, the model is given by -m)",
                o->command->usage);
    return MN_OK;
}

static mn_status make_folder(const char *folder) {
    return file_make_folders(folder, FILE_BY_UMASK);
}

/* ---- forms ---- */

static void put_text_or_null(bytes *b, const char *text, size_t n) {
    if (text) {
        json_put_string(b, text, n);
    } else {
        bytes_append_text(b, "null");
    }
}

static void put_member(bytes *b, const char *name, double value) {
    bytes_printf(b, ",\"%s\":", name);
    json_put_real(b, value);
}

static void put_seconds(bytes *b, double start, double end) {
    bytes_printf(b, "\"start\":%.3f,\"end\":%.3f", start, end);
}

static void put_json_segment(bytes *b, const mn_segment *s, bool has_words) {
    bytes_append_text(b, "{");
    put_seconds(b, s->start, s->end);
    bytes_append_text(b, ",\"text\":");
    put_text_or_null(b, s->text, s->n_text);
    bytes_append_text(b, ",\"ids\":");
    result_put_ids(b, s->ids, s->n_ids);
    put_member(b, "avg_logprob", s->avg_logprob);
    put_member(b, "no_speech_prob", s->no_speech_prob);
    put_member(b, "temperature", s->temperature);
    put_member(b, "compression_ratio", s->compression_ratio);
    if (has_words) bytes_append_text(b, ",\"words\":[");
    for (size_t i = 0; i < s->n_words; i++) {
        bytes_append_text(b, i ? ",{\"word\":" : "{\"word\":");
        json_put_string(b, s->words[i]->text, s->words[i]->n_text);
        bytes_append_text(b, ",");
        put_seconds(b, s->words[i]->start, s->words[i]->end);
        bytes_append_text(b, "}");
    }
    bytes_append_text(b, has_words ? "]}" : "}");
}

static void put_json(bytes *b, const mn_transcript *file, bool has_words) {
    bytes_append_text(b, "{\"file\":");
    json_put_string(b, file->path, strlen(file->path));
    if (file->status != MN_OK) {
        bytes_append_text(b, ",\"error\":{\"message\":");
        json_put_string(b, file->error, strlen(file->error));
        bytes_printf(b, ",\"type\":\"%s\",\"param\":\"file\",\"code\":\"%s\"}",
                     file->status == MN_E_CANCELLED ? "cancelled_error" : "invalid_request_error",
                     file->status == MN_E_CANCELLED   ? "cancelled"
                     : file->status == MN_E_NOT_FOUND ? "not_found"
                                                      : "unreadable");
    }
    bytes_append_text(b, ",\"language\":");
    put_text_or_null(b, file->language, file->language ? strlen(file->language) : 0);
    put_member(b, "language_probability", file->language_probability);
    bytes_printf(b, ",\"duration\":%.3f,\"text\":", file->duration);
    put_text_or_null(b, file->text, file->n_text);
    bytes_append_text(b, ",\"ids\":");
    result_put_ids(b, file->ids, file->n_ids);
    bytes_append_text(b, ",\"segments\":[");
    for (size_t i = 0; i < file->n_segments; i++) {
        bytes_append_text(b, i ? "," : "");
        put_json_segment(b, file->segments[i], has_words);
    }
    bytes_append_text(b, "]}\n");
}

/* Without a tokenizer the ids are shown in place of the text. */
static void put_cue(bytes *b, const char *format, int64_t *n_cues, const mn_segment *s) {
    bytes ids = {0};
    for (size_t i = 0; !s->text && i < s->n_ids; i++) bytes_printf(&ids, i ? ",%d" : "%d", (int)s->ids[i]);
    const char *text = s->text ? s->text : bytes_text(&ids);
    size_t n = s->text ? s->n_text : ids.n, n_cue = 0;
    char *cue = NULL;
    bool failed = ids.failed || mn_subtitles_cue(format, *n_cues, s->start, s->end, text, n, &cue, &n_cue) != MN_OK;
    if (!failed) bytes_append(b, cue, n_cue);
    *n_cues += n_cue > 0;
    b->failed = b->failed || failed;
    mn_free(cue);
    bytes_clear(&ids);
}

static void put_head(bytes *b, const char *format) {
    char *head = NULL;
    size_t n = 0;
    if (mn_subtitles_head(format, &head, &n) == MN_OK) {
        bytes_append(b, head, n);
    } else {
        b->failed = true;
    }
    mn_free(head);
}

static void put_file(bytes *b, const transcribe *t, const mn_transcript *file) {
    if (t->is_json) {
        put_json(b, file, strcmp(t->how.timestamps, "word") == 0);
        return;
    }
    int64_t n_cues = 0;
    put_head(b, t->format);
    for (size_t i = 0; i < file->n_segments; i++) put_cue(b, t->format, &n_cues, file->segments[i]);
}

/* ---- callbacks ---- */

static bool on_progress(void *user, const mn_transcribe_progress *progress) {
    transcribe *t = user;
    double done = 0, known = 0, now = clock_ms();
    int n = t->o->n_positional, n_known = 0;
    t->states[progress->file].done = progress->done;
    t->states[progress->file].duration = progress->duration;
    if (interrupt_seen()) return false;
    if (!progress_shown()) return true;
    for (int i = 0; i < n; i++) {
        const recording_state *s = &t->states[i];
        done += s->is_over ? s->duration : s->done;
        known += s->duration;
        n_known += s->duration > 0 || s->is_over;
    }
    if (done <= 0 || n_known == 0) {
        progress_line("reading %s", t->o->positional[progress->file]);
        return true;
    }
    if (done != t->done_seconds) {
        t->done_seconds = done;
        t->moved = now;
    }
    /* Counted from the end of the last window, so that it falls while the next one is computed. */
    double all = known * n / n_known, took = t->moved - t->started;
    double left = fmax(0, took * (all - done) / done - (now - t->moved)) / 1e3;
    progress_line("%.0f %% of %d:%02d, %d:%02d left", 100 * done / all, (int)all / 60, (int)all % 60, (int)left / 60,
                  (int)left % 60);
    return true;
}

/* The text of a single recording is written as it is transcribed. */
static bool is_live(const transcribe *t) {
    return !t->is_json && t->o->n_positional == 1 && !option_is_set(t->o, OPT_OUTPUT_DIR);
}

static void on_segment(void *user, size_t file, const mn_segment *segment) {
    transcribe *t = user;
    bytes b = {0};
    (void)file;
    if (!is_live(t)) return;
    progress_clear();
    put_cue(&b, t->format, &t->n_cues, segment);
    put_bytes(&b);
}

static mn_status write_file(const transcribe *t, const char *folder, size_t i, bytes *text) {
    bytes path = {0};
    bytes_printf(&path, "%s/%s.%s", folder, bytes_text(&t->names[i]), t->is_json ? "json" : t->format);
    mn_status status = bytes_status(&path);
    if (status == MN_OK)
        status = file_write_parts(bytes_text(&path), &(file_part){text->data, text->n}, 1, FILE_BY_UMASK);
    bytes_clear(&path);
    return status;
}

/* The worst status of the recordings is the result. */
static void note_failure(transcribe *t, mn_status status) {
    int code = status == MN_E_CANCELLED ? EXIT_CANCELLED : status == MN_E_NOMEM ? EXIT_MEMORY : EXIT_FAILED;
    if (code > t->code) t->code = code;
}

static void on_file(void *user, size_t i, const mn_transcript *file) {
    transcribe *t = user;
    const char *folder = option_text(t->o, OPT_OUTPUT_DIR, NULL);
    bytes b = {0};
    t->states[i] = (recording_state){.duration = file->duration, .is_over = true};
    progress_clear();
    if (file->status != MN_OK) {
        note_failure(t, file->status);
        if (file->status != MN_E_CANCELLED) print_message("%s", file->error);
    }
    bool has_text = file->status == MN_OK || t->is_json || (file->status == MN_E_CANCELLED && file->n_segments);
    if (is_live(t) || !has_text) return;
    if (!folder && !t->is_json && strcmp(t->format, "txt") == 0)
        bytes_printf(&b, "%s==> %s <==\n", i ? "\n" : "", file->path);
    put_file(&b, t, file);
    if (folder && file->status == MN_OK) {
        mn_status status = bytes_status(&b);
        if (status == MN_OK) status = write_file(t, folder, i, &b);
        if (status != MN_OK) {
            note_failure(t, status);
            print_message("%s", mn_last_error());
        }
    }
    if (folder) {
        bytes_clear(&b);
    } else {
        put_bytes(&b);
    }
}

/* ---- the command ---- */

static int report_as_given(const transcribe *t, int code, const char *param) {
    return report_json(t->is_json, code, param);
}

/* All checks that need no model. */
static int prepare(transcribe *t) {
    const options *o = t->o;
    mn_cache_options_init(&t->cache, sizeof t->cache);
    mn_status status = cache_options_read(o, &t->cache);
    if (status == MN_OK) status = cache_resolve(&t->cache, &t->kind);
    if (status != MN_OK) return report_as_given(t, exit_of(status), "cache");
    status = read_options(t);
    if (status != MN_OK) return report_as_given(t, exit_of(status), NULL);
    if (option_on(o, OPT_PRINT_CONFIG)) return EXIT_DONE;
    if (option_is_set(o, OPT_OUTPUT_DIR)) status = make_folder(option_text(o, OPT_OUTPUT_DIR, NULL));
    if (status != MN_OK) return report_as_given(t, exit_of(status), "output_dir");
    size_t n = (size_t)o->n_positional;
    t->states = mem_alloc(n, sizeof *t->states);
    t->names = mem_alloc(n, sizeof *t->names);
    if (!t->states || !t->names) return report_as_given(t, EXIT_MEMORY, NULL);
    status = transcript_names(t->names, o->positional, n);
    return status == MN_OK ? EXIT_DONE : report_as_given(t, exit_of(status), NULL);
}

/* Warns of what the flags and the checkpoint ask of the cache in vain. */
static int check_cache(const transcribe *t) {
    mn_generation_config *config = NULL;
    mn_cache_options cache = t->cache;
    mn_cache_summary kind;
    mn_status status = options_cache(&config, &cache, &kind, t->o, &t->e);
    mn_generation_config_close(&config);
    return status == MN_OK ? EXIT_DONE : report_as_given(t, exit_of(status), "cache");
}

static int transcribe_all(transcribe *t) {
    const options *o = t->o;
    int code = prepare(t);
    if (code == EXIT_DONE) code = loaded_model_open(&t->e, o, NULL, 0);
    if (code == EXIT_DONE && option_on(o, OPT_PRINT_CONFIG)) return options_print_config(o, &t->e);
    if (code == EXIT_DONE) code = check_cache(t);
    if (code != EXIT_DONE) return code;
    t->how.on_progress = on_progress;
    t->how.on_segment = on_segment;
    t->how.on_file = on_file;
    t->how.user = t;
    t->started = clock_ms();
    interrupt_watch(NULL);
    if (is_live(t)) {
        bytes b = {0};
        put_head(&b, t->format);
        put_bytes(&b);
    }
    mn_status status = mn_transcribe(t->e.model, o->positional, (size_t)o->n_positional, &t->how, &t->result);
    progress_clear();
    if (status != MN_OK) return report_as_given(t, exit_of(status), NULL);
    if (option_on(o, OPT_VERBOSE) || progress_shown()) {
        double seconds = 0, took = (clock_ms() - t->started) / 1e3;
        for (size_t i = 0; i < t->result->n_files; i++) {
            if (t->result->files[i]->status == MN_OK) seconds += t->result->files[i]->duration;
        }
        print_message("%.1f s transcribed in %.1f s, %.1f times as fast as spoken", seconds, took, seconds / took);
    }
    return t->code;
}

int command_transcribe(options *o) {
    transcribe t = {.o = o, .is_json = option_on(o, OPT_JSON)};
    int code = transcribe_all(&t);
    interrupt_unwatch();
    mn_transcription_close(&t.result);
    for (int i = 0; t.names && i < o->n_positional; i++) bytes_clear(&t.names[i]);
    mem_free(t.names);
    mem_free(t.states);
    loaded_model_close(&t.e);
    return code;
}
