/* mn_transcribe: recordings opened one after the other, batch_size of them at a time. Their windows are requests of one
 * engine, so that recordings proceed independently.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "base/options.h"
#include "session/session.h"
#include "speech/features.h"
#include "speech/languages.h"
#include "speech/voice.h"
#include "speech/window_transcriber.h"

enum {
    MOST_BATCH = 256,
    MOST_TEMPERATURES = 64,
    BATCH = 8,
    MS_PER_FRAME = 1000 / VOICE_FRAMES_PER_SECOND,
    MOST_VAD_MS = 3600000,
    READ = 4096 /* samples read at once for speech to be found in them */
};
static const double most_vad_db = 60;

typedef struct transcriber transcriber;

/* A recording in progress, or an empty slot. */
typedef struct recording {
    transcriber *owner; /* NULL: nothing */
    size_t file;        /* among the paths */
    int request;        /* of the engine, its window; -1: none */
    audio *audio;
    audio_parts parts; /* with speech, when others are left out */
    features *features;
    window_transcriber *window_transcriber;
    size_t n_reported; /* segments that were reported */
} recording;

typedef struct transcription {
    mn_transcription public;     /* first member: the handle points here */
    const mn_transcript **files; /* [n_files] those below */
    transcript *transcripts;     /* [n_files] */
    bool *is_done;               /* [n_files] */
    size_t n_reported;           /* files that on_file was called for */
} transcription;

struct transcriber {
    mn_transcribe_options options;
    mn_engine *engine;
    window_transcriber_setup setup;
    speech_tokens tokens;
    transcription *result;
    const char *const *paths;
    token_list prompt, hotwords; /* the ids of those options */
    recording *recordings;       /* [batch_size] */
    size_t next;                 /* the first path not opened yet */
    bool is_cancelled;
};

void mn_transcribe_options_init(mn_transcribe_options *options, size_t size) {
    speech_limits limits = speech_limits_default();
    voice_limits vad = voice_limits_default();
    const mn_transcribe_options full = {.task = "transcribe",
                                        .timestamps = "segment",
                                        .num_beams = 1,
                                        .compression_ratio_threshold = limits.compression_ratio,
                                        .logprob_threshold = limits.log_probability,
                                        .no_speech_threshold = limits.no_speech,
                                        .batch_size = BATCH,
                                        .vad_threshold = vad.threshold,
                                        .vad_min_silence_ms = vad.min_silence * MS_PER_FRAME,
                                        .vad_min_speech_ms = vad.min_speech * MS_PER_FRAME,
                                        .vad_speech_pad_ms = vad.pad * MS_PER_FRAME};
    options_init(options, size, &full, sizeof full);
}

/* ---- options ---- */

static mn_status check_temperatures(const double *list, size_t n) {
    if (n == 0 || n > MOST_TEMPERATURES)
        MN_FAIL(MN_E_ARG, "%zu temperatures, allowed: 1 to %d", n, (int)MOST_TEMPERATURES);
    for (size_t i = 0; i < n; i++) {
        if (!(list[i] >= 0) || list[i] > 100 || (list[i] > 0 && list[i] < 1e-6))
            MN_FAIL(MN_E_ARG, "a temperature is %g, allowed: 0 or 0.000001 to 100", list[i]);
        if (i > 0 && list[i] <= list[i - 1])
            MN_FAIL(MN_E_ARG, "temperature %g behind %g; they must rise", list[i], list[i - 1]);
    }
    return MN_OK;
}

static mn_status check_numbers(mn_transcribe_options *o) {
    if (!o->temperatures) {
        o->temperatures = speech_temperatures;
        o->n_temperatures = SPEECH_TEMPERATURES;
    }
    MN_TRY(check_temperatures(o->temperatures, o->n_temperatures));
    if (o->num_beams < 1 || o->num_beams > 1000) MN_FAIL(MN_E_ARG, "num_beams is %d, allowed: 1 to 1000", o->num_beams);
    if (o->max_new_tokens < 0)
        MN_FAIL(MN_E_ARG, "max_new_tokens is %lld, allowed: 0 (what there is room for) or more",
                (long long)o->max_new_tokens);
    if (o->batch_size < 1 || o->batch_size > MOST_BATCH)
        MN_FAIL(MN_E_ARG, "batch_size is %zu, allowed: 1 to %d", o->batch_size, (int)MOST_BATCH);
    if (isnan(o->compression_ratio_threshold) || isnan(o->logprob_threshold) || isnan(o->no_speech_threshold))
        MN_FAIL(MN_E_ARG, "a threshold is NaN, allowed: numbers");
    return MN_OK;
}

static mn_status check_ms(const char *name, int64_t ms) {
    if (ms < 0 || ms > MOST_VAD_MS)
        MN_FAIL(MN_E_ARG, "%s is %lld, allowed: 0 to %d", name, (long long)ms, (int)MOST_VAD_MS);
    return MN_OK;
}

static mn_status check_vad(const mn_transcribe_options *o) {
    if (!o->vad_filter) return MN_OK;
    if (!(o->vad_threshold > 0 && o->vad_threshold <= most_vad_db))
        MN_FAIL(MN_E_ARG, "vad_threshold is %g, allowed: above 0, at most %g (dB)", o->vad_threshold, most_vad_db);
    MN_TRY(check_ms("vad_min_silence_ms", o->vad_min_silence_ms));
    MN_TRY(check_ms("vad_min_speech_ms", o->vad_min_speech_ms));
    return check_ms("vad_speech_pad_ms", o->vad_speech_pad_ms);
}

static mn_status read_words(window_transcriber_setup *setup, const mn_transcribe_options *o, const mn_model *model) {
    if (o->task && strcmp(o->task, "translate") == 0) {
        setup->task = SPEECH_TRANSLATE;
    } else if (o->task && strcmp(o->task, "transcribe") != 0) {
        MN_FAIL(MN_E_ARG, "task is '%.40s', allowed: transcribe, translate", o->task);
    }
    const char *times = o->timestamps ? o->timestamps : "segment";
    setup->words = strcmp(times, "word") == 0;
    setup->timestamps = setup->words || strcmp(times, "segment") == 0;
    if (!setup->timestamps && strcmp(times, "none") != 0)
        MN_FAIL(MN_E_ARG, "timestamps is '%.40s', allowed: none, segment, word", times);
    if (setup->words && !model->text)
        MN_FAIL(MN_E_UNSUPPORTED, "timestamps of words need a tokenizer, and '%s' has none", model->core->what);
    if (setup->task == SPEECH_TRANSLATE && setup->tokens->translate < 0)
        MN_FAIL(MN_E_UNSUPPORTED, "'%s' cannot translate: it is an English-only model", model->core->what);
    return o->language ? speech_language_read(&setup->language, setup->tokens, o->language) : MN_OK;
}

/* The ids of a text before recordings or windows, with a space before its first word as before every word. */
static mn_status read_context(token_list *ids, const char *what, const char *text, const transcriber *t,
                              const mn_model *model) {
    bytes spaced = {0};
    if (!text) return MN_OK;
    text += strspn(text, " ");
    if (!*text) return MN_OK;
    if (!model->text || t->tokens.previous < 0)
        MN_FAIL(MN_E_UNSUPPORTED, "'%s' takes no %s: it has no %s", model->core->what, what,
                model->text ? "token that begins previous text (prev_sot_token_id)" : "tokenizer");
    bytes_printf(&spaced, " %s", text);
    mn_status status = bytes_status(&spaced);
    if (status == MN_OK) status = tokenizer_encode(model->text, spaced.data, spaced.n, 0, ids);
    bytes_clear(&spaced);
    return status_context(status, "%s", what);
}

static mn_status read_cache(window_transcriber_setup *setup, const mn_cache_options *given) {
    mn_cache_summary summary = {.size = sizeof summary};
    mn_cache_options_init(&setup->cache, sizeof setup->cache);
    MN_TRY(options_take(&setup->cache, sizeof setup->cache, given, "mn_cache_options"));
    MN_TRY(mn_generation_config_cache(setup->model->generation, &setup->cache));
    MN_TRY(mn_cache_check(&setup->cache, &summary));
    if (summary.preallocates && summary.max_cache_len <= 0) setup->cache.max_cache_len = setup->tokens->max_length;
    return MN_OK;
}

static mn_status open_setup(transcriber *t, mn_model *model) {
    const model_core *core = model->core;
    const model_config *encoder = core->net.config.encoder;
    window_transcriber_setup *setup = &t->setup;
    const mn_transcribe_options *o = &t->options;
    if (!encoder)
        MN_FAIL(MN_E_UNSUPPORTED, "'%s' is a text model (%s); transcription needs a speech model (Whisper)", core->what,
                model_type_name(core->net.config.model_type));
    MN_TRY(speech_tokens_open(&t->tokens, core->what));
    setup->model = model;
    setup->tokens = &t->tokens;
    MN_TRY(check_numbers(&t->options));
    MN_TRY(check_vad(&t->options));
    MN_TRY(read_words(setup, o, model));
    MN_TRY(read_context(&t->prompt, "prompt", o->prompt, t, model));
    MN_TRY(read_context(&t->hotwords, "hotwords", o->hotwords, t, model));
    MN_TRY(read_cache(setup, o->cache));
    setup->prompt = t->prompt.ids;
    setup->n_prompt = t->prompt.n;
    setup->hotwords = t->hotwords.ids;
    setup->n_hotwords = t->hotwords.n;
    setup->conditions = o->condition_on_prev_tokens;
    setup->limits = (speech_limits){o->compression_ratio_threshold, o->logprob_threshold, o->no_speech_threshold};
    setup->temperatures = o->temperatures;
    setup->n_temperatures = o->n_temperatures;
    setup->num_beams = o->num_beams;
    setup->max_new = o->max_new_tokens;
    setup->seed = o->seed;
    setup->n_bands = (int)encoder->num_mel_bins;
    setup->n_frames = (int)(2 * encoder->max_position_embeddings);
    size_t numbers = (size_t)setup->n_bands * (size_t)setup->n_frames;
    setup->levels = mem_alloc_raw(numbers, sizeof *setup->levels);
    setup->features = mem_alloc_raw(numbers, sizeof *setup->features);
    t->recordings = mem_alloc(o->batch_size, sizeof *t->recordings);
    if (!setup->levels || !setup->features || !t->recordings) return MN_E_NOMEM;
    return mn_engine_open(&t->engine, model, NULL);
}

/* ---- progress ---- */

/* NULL: the whole recording. */
static const audio_parts *kept_parts(const transcriber *t, const recording *r) {
    return t->options.vad_filter ? &r->parts : NULL;
}

/* false: cancelled. */
static bool report_progress(transcriber *t, const recording *r) {
    const mn_transcribe_options *o = &t->options;
    if (!o->on_progress || t->is_cancelled) return !t->is_cancelled;
    mn_transcribe_progress p = {
        .size = sizeof p, .file = r->file, .duration = t->result->transcripts[r->file].public.duration};
    if (r->window_transcriber)
        p.done = audio_parts_end(kept_parts(t, r),
                                 (double)window_transcriber_position(r->window_transcriber) / SPEECH_FRAMES_PER_SECOND);
    t->is_cancelled = !o->on_progress(o->user, &p);
    return !t->is_cancelled;
}

static void report_segments(transcriber *t, recording *r) {
    const transcript *text = &t->result->transcripts[r->file];
    while (r->n_reported < text->public.n_segments) {
        const mn_segment *segment = text->public.segments[r->n_reported++];
        if (t->options.on_segment) t->options.on_segment(t->options.user, r->file, segment);
    }
}

/* Reports finished files in their order. */
static void report_files(transcriber *t) {
    transcription *result = t->result;
    for (size_t *i = &result->n_reported; *i < result->public.n_files && result->is_done[*i]; ++*i) {
        if (t->options.on_file) t->options.on_file(t->options.user, *i, result->files[*i]);
    }
}

/* ---- recordings ---- */

static void close_recording(recording *r) {
    window_transcriber_close(&r->window_transcriber);
    features_close(&r->features);
    audio_close(&r->audio);
    audio_parts_clear(&r->parts);
    *r = (recording){0};
}

static mn_status read_window(void *state, int64_t first, int n, float *levels) {
    return features_window(state, first, n, levels);
}

static mn_status goes_on_or_fails(transcriber *t, const recording *r) {
    if (!report_progress(t, r)) MN_FAIL(MN_E_CANCELLED, "cancelled");
    return MN_OK;
}

static mn_status read_voice(transcriber *t, recording *r, voice *v) {
    enum { MINUTE = 60 * AUDIO_RATE / READ };
    float samples[READ];
    int64_t n_read = READ;
    for (int64_t i = 0; n_read == READ; i++) {
        MN_TRY(audio_read(r->audio, i * READ, READ, samples, &n_read));
        MN_TRY(voice_take(v, samples, (size_t)n_read));
        if (i % MINUTE == 0) MN_TRY(goes_on_or_fails(t, r));
    }
    return voice_finish(v);
}

/* Reads the recording once, and leaves out of it what is no speech. */
static mn_status find_speech(transcriber *t, recording *r) {
    const mn_transcribe_options *o = &t->options;
    const voice_limits limits = {.threshold = o->vad_threshold,
                                 .min_silence = o->vad_min_silence_ms / MS_PER_FRAME,
                                 .min_speech = o->vad_min_speech_ms / MS_PER_FRAME,
                                 .pad = o->vad_speech_pad_ms / MS_PER_FRAME};
    voice *v;
    MN_TRY(voice_open(&v, &limits, &r->parts));
    mn_status status = read_voice(t, r, v);
    voice_close(&v);
    MN_TRY(status);
    t->result->transcripts[r->file].public.duration = (double)audio_length(r->audio) / AUDIO_RATE;
    audio_keep(r->audio, &r->parts);
    return MN_OK;
}

/* A recording is read once before its first window: levels depend on its loudest moment. */
static mn_status scan(transcriber *t, recording *r) {
    bool is_whole = false;
    mn_transcript *public = &t->result->transcripts[r->file].public;
    while (!is_whole) {
        MN_TRY(features_scan(r->features, &is_whole));
        MN_TRY(goes_on_or_fails(t, r));
    }
    if (!t->options.vad_filter) public->duration = (double)audio_length(r->audio) / AUDIO_RATE;
    return MN_OK;
}

static bool goes_on(void *user) {
    const recording *r = user;
    return report_progress(r->owner, r);
}

static mn_status open_audio(transcriber *t, recording *r) {
    const mn_transcribe_options *o = &t->options;
    const char *path = t->paths[r->file];
    const void *data = o->data ? o->data[r->file] : NULL;
    if (data) return audio_open_memory(&r->audio, data, o->data_sizes[r->file], path);
    return audio_open_waiting(&r->audio, path, &(ffmpeg_wait){goes_on, r});
}

static mn_status open_recording(transcriber *t, recording *r, size_t file) {
    transcript *text = &t->result->transcripts[file];
    *r = (recording){.owner = t, .file = file, .request = -1};
    MN_TRY(open_audio(t, r));
    if (t->options.vad_filter) MN_TRY(find_speech(t, r));
    MN_TRY(features_open(&r->features, r->audio, t->setup.n_bands, t->setup.n_frames));
    MN_TRY(scan(t, r));
    int64_t samples = audio_length(r->audio), frames = samples * SPEECH_FRAMES_PER_SECOND / AUDIO_RATE;
    const window_transcriber_input input = {.window = read_window,
                                            .state = r->features,
                                            .n_frames = samples ? max_i64(frames, 1) : 0,
                                            .parts = kept_parts(t, r)};
    return window_transcriber_open(&r->window_transcriber, &t->setup, &input, text);
}

static mn_status end_recording(transcriber *t, recording *r, mn_status status) {
    size_t file = r->file;
    report_segments(t, r);
    close_recording(r);
    t->result->is_done[file] = true;
    return transcript_finish(&t->result->transcripts[file], status);
}

/* ---- windows ---- */

static bool process(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab_size) {
    const recording *r = user;
    (void)row, (void)vocab_size;
    window_transcriber_process(r->window_transcriber, ids, n, scores);
    return report_progress(r->owner, r);
}

/* Adds the next attempt, if any; silent windows are skipped. */
static mn_status begin_attempt(transcriber *t, recording *r) {
    mn_generate_options how;
    mn_request request;
    window_transcriber_step step;
    do {
        MN_TRY(window_transcriber_next(r->window_transcriber, &request, &step));
        if (step == WINDOW_SILENCE && !report_progress(t, r)) MN_FAIL(MN_E_CANCELLED, "cancelled");
    } while (step == WINDOW_SILENCE);
    if (step == WINDOW_DONE) return MN_OK;
    mn_generate_options_init(&how, sizeof how);
    how.process = process;
    how.user = r;
    request.options = &how;
    return mn_engine_add(t->engine, &request, &r->request);
}

/* Fills the slots until each has an attempt in the engine: opens paths, and ends recordings that are done or have
 * failed. */
static mn_status begin_attempts(transcriber *t) {
    for (size_t i = 0; i < t->options.batch_size; i++) {
        recording *r = &t->recordings[i];
        while (!t->is_cancelled && (r->owner ? r->request < 0 : t->next < t->result->public.n_files)) {
            mn_status status = r->owner ? MN_OK : open_recording(t, r, t->next++);
            if (status == MN_OK) status = begin_attempt(t, r);
            if (r->request < 0) MN_TRY(end_recording(t, r, status));
            report_files(t);
        }
    }
    return t->is_cancelled ? MN_E_CANCELLED : MN_OK;
}

static recording *recording_of(transcriber *t, int request) {
    recording *r = t->recordings;
    while (!r->owner || r->request != request) r++;
    return r;
}

/* Takes the requests that the engine has ended. A failed window ends only its recording. */
static mn_status take_attempts(transcriber *t) {
    while (!t->is_cancelled) {
        mn_generation *generation = NULL;
        int id;
        mn_status status = mn_engine_take(t->engine, &id, &generation);
        if (id < 0) return MN_OK;
        recording *r = recording_of(t, id);
        r->request = -1;
        if (status == MN_OK) status = window_transcriber_take(r->window_transcriber, generation->sequences[0]);
        mn_generation_close(&generation);
        report_segments(t, r);
        if (report_progress(t, r) && status != MN_OK) MN_TRY(end_recording(t, r, status));
        report_files(t);
    }
    return MN_E_CANCELLED;
}

static bool is_working(const transcriber *t) {
    for (size_t i = 0; i < t->options.batch_size; i++) {
        if (t->recordings[i].owner) return true;
    }
    return false;
}

static mn_status run(transcriber *t) {
    for (;;) {
        MN_TRY(begin_attempts(t));
        if (!is_working(t)) return MN_OK;
        MN_TRY(mn_engine_step(t->engine, NULL));
        MN_TRY(take_attempts(t));
    }
}

/* Sets the status of unfinished recordings. */
static mn_status cancel(transcriber *t) {
    transcription *result = t->result;
    status_fail(MN_E_CANCELLED, "cancelled");
    for (size_t i = 0; i < t->options.batch_size; i++) {
        recording *r = &t->recordings[i];
        if (r->owner) MN_TRY(end_recording(t, r, MN_E_CANCELLED));
    }
    for (size_t i = 0; i < result->public.n_files; i++) {
        if (!result->is_done[i]) MN_TRY(transcript_finish(&result->transcripts[i], MN_E_CANCELLED));
        result->is_done[i] = true;
    }
    report_files(t);
    return MN_OK;
}

static void close_transcriber(transcriber *t) {
    mn_engine_close(&t->engine);
    for (size_t i = 0; t->recordings && i < t->options.batch_size; i++) close_recording(&t->recordings[i]);
    mem_free(t->recordings);
    token_list_clear(&t->prompt);
    token_list_clear(&t->hotwords);
    mem_free(t->setup.levels);
    mem_free(t->setup.features);
    speech_tokens_close(&t->tokens);
}

/* ---- entry points ---- */

static mn_status open_result(transcriber *t, const mn_model *model, size_t n) {
    transcription *result = mem_alloc(1, sizeof *result);
    t->result = result;
    if (!result) return MN_E_NOMEM;
    result->files = mem_alloc(n, sizeof *result->files);
    result->transcripts = mem_alloc(n, sizeof *result->transcripts);
    result->is_done = mem_alloc(n, sizeof *result->is_done);
    if (!result->files || !result->transcripts || !result->is_done) return MN_E_NOMEM;
    result->public = (mn_transcription){.size = sizeof(mn_transcription), .n_files = n, .files = result->files};
    for (size_t i = 0; i < n; i++) {
        result->files[i] = &result->transcripts[i].public;
        result->transcripts[i].tokenizer = model->text;
        result->transcripts[i].tokens = &t->tokens;
        result->transcripts[i].path = mem_copy_text(t->paths[i], strlen(t->paths[i]));
        if (!result->transcripts[i].path) return mem_no_memory();
        result->transcripts[i].public.path = result->transcripts[i].path; /* for as long as the transcript lives */
    }
    return MN_OK;
}

mn_status mn_transcribe(mn_model *model, const char *const *paths, size_t n_paths, const mn_transcribe_options *options,
                        mn_transcription **out) {
    transcriber t = {.paths = paths};
    mn_transcribe_options_init(&t.options, sizeof t.options);
    *out = NULL;
    size_t n_stdin = 0;
    if (n_paths == 0) MN_FAIL(MN_E_ARG, "there is no recording; give at least one path");
    MN_TRY(options_take(&t.options, sizeof t.options, options, "mn_transcribe_options"));
    for (size_t i = 0; i < n_paths; i++)
        n_stdin += strcmp(paths[i], "-") == 0 && !(t.options.data && t.options.data[i]);
    if (n_stdin > 1) MN_FAIL(MN_E_ARG, "'-', the standard input, is given %zu times; it can be read once", n_stdin);
    mn_status status = open_setup(&t, model);
    if (status == MN_OK) status = open_result(&t, model, n_paths);
    if (status == MN_OK) {
        status = run(&t);
        if (status == MN_E_CANCELLED && t.is_cancelled) status = cancel(&t);
    }
    close_transcriber(&t);
    *out = t.result ? &t.result->public : NULL;
    if (status != MN_OK) mn_transcription_close(out);
    return status;
}

void mn_transcription_close(mn_transcription **out) {
    if (!*out) return;
    transcription *result = (transcription *)(void *)*out;
    for (size_t i = 0; result->transcripts && i < result->public.n_files; i++)
        transcript_clear(&result->transcripts[i]);
    mem_free(result->files);
    mem_free(result->transcripts);
    mem_free(result->is_done);
    mem_free(result);
    *out = NULL;
}
