/* mn_transcribe: recordings opened one after the other, as many as go side by side; their windows through the decoder as one batch.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "base/options.h"
#include "gen/session.h"
#include "speech/features.h"
#include "speech/languages.h"
#include "speech/scribe.h"

enum { MOST_BATCH = 256, MOST_TEMPERATURES = 64, BATCH = 8 };

/* One recording while it is worked on. */
typedef struct recording {
    size_t file; /* among the paths */
    audio *audio;
    features *features;
    scribe *scribe;
    size_t n_told; /* segments that were shown */
} recording;

typedef struct transcription {
    mn_transcription public; /* first member: the handle points here */
    mn_transcript *files;
    transcript *transcripts; /* [n_files] */
    bool *is_done;           /* [n_files] */
    size_t n_reported;       /* files that on_file was called for */
} transcription;

typedef struct transcriber {
    mn_transcribe_options options;
    scribe_setup setup;
    speech_tokens tokens;
    transcription *result;
    const char *const *paths;
    recording *recordings; /* [batch_size]; the first n_active are worked on */
    mn_batch_row *rows;    /* [batch_size] */
    size_t n_active, next; /* the latter: the first path that was not opened */
    bool is_cancelled;
} transcriber;

mn_transcribe_options mn_transcribe_options_default(void) {
    speech_limits limits = speech_limits_default();
    return (mn_transcribe_options){.size = sizeof(mn_transcribe_options),
                                   .task = "transcribe",
                                   .timestamps = "segment",
                                   .num_beams = 1,
                                   .compression_ratio_threshold = limits.compression_ratio,
                                   .logprob_threshold = limits.log_probability,
                                   .no_speech_threshold = limits.no_speech,
                                   .batch_size = BATCH};
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
    if (o->num_beams < 1 || o->num_beams > 1000)
        MN_FAIL(MN_E_ARG, "num_beams is %d, allowed: 1 to 1000", o->num_beams);
    if (o->max_new_tokens < 0)
        MN_FAIL(MN_E_ARG, "max_new_tokens is %lld, allowed: 0 (what there is room for) or more",
                (long long)o->max_new_tokens);
    if (o->batch_size < 1 || o->batch_size > MOST_BATCH)
        MN_FAIL(MN_E_ARG, "batch_size is %zu, allowed: 1 to %d", o->batch_size, (int)MOST_BATCH);
    if (isnan(o->compression_ratio_threshold) || isnan(o->logprob_threshold) || isnan(o->no_speech_threshold))
        MN_FAIL(MN_E_ARG, "a threshold is no number");
    return MN_OK;
}

static mn_status read_words(scribe_setup *setup, const mn_transcribe_options *o, const mn_model *model) {
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
        MN_FAIL(MN_E_UNSUPPORTED, "timestamps of words need a tokenizer, and '%s' has none",
                model->core->what);
    if (setup->task == SPEECH_TRANSLATE && setup->tokens->translate < 0)
        MN_FAIL(MN_E_UNSUPPORTED, "'%s' cannot translate: it knows English alone", model->core->what);
    return o->language ? speech_language_read(&setup->language, setup->tokens, o->language) : MN_OK;
}

static mn_status read_cache(scribe_setup *setup, const mn_cache_options *given) {
    mn_cache_summary summary = {.size = sizeof summary};
    setup->cache = mn_cache_options_default();
    MN_TRY(options_take(&setup->cache, sizeof setup->cache, given, "mn_cache_options"));
    MN_TRY(mn_generation_config_cache(setup->model->generation, &setup->cache));
    MN_TRY(mn_cache_check(&setup->cache, &summary));
    if (summary.reserves && summary.max_cache_len <= 0)
        setup->cache.max_cache_len = setup->tokens->max_length;
    return MN_OK;
}

static mn_status open_setup(transcriber *t, mn_model *model) {
    const model_core *core = model->core;
    const model_config *encoder = core->config.encoder;
    scribe_setup *setup = &t->setup;
    const mn_transcribe_options *o = &t->options;
    if (!encoder)
        MN_FAIL(MN_E_UNSUPPORTED,
                "'%s' is a text model (%s): it cannot hear; transcribing needs a Whisper model", core->what,
                model_type_name(core->config.model_type));
    MN_TRY(speech_tokens_open(&t->tokens, core->what));
    setup->model = model;
    setup->tokens = &t->tokens;
    MN_TRY(check_numbers(&t->options));
    MN_TRY(read_words(setup, o, model));
    MN_TRY(read_cache(setup, o->cache));
    setup->conditions = o->condition_on_prev_tokens;
    setup->limits =
        (speech_limits){o->compression_ratio_threshold, o->logprob_threshold, o->no_speech_threshold};
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
    t->rows = mem_alloc(o->batch_size, sizeof *t->rows);
    return setup->levels && setup->features && t->recordings && t->rows ? MN_OK : MN_E_NOMEM;
}

/* ---- telling ---- */

/* false: cancelled, now or before. */
static bool tell_progress(transcriber *t, const recording *r) {
    const mn_transcribe_options *o = &t->options;
    if (!o->on_progress || t->is_cancelled) return !t->is_cancelled;
    mn_transcribe_progress p = {.file = r->file, .duration = t->result->transcripts[r->file].public.duration};
    if (r->scribe) p.done = (double)scribe_position(r->scribe) / SPEECH_FRAMES_PER_SECOND;
    t->is_cancelled = !o->on_progress(o->user, &p);
    return !t->is_cancelled;
}

static void tell_segments(transcriber *t, recording *r) {
    const transcript *text = &t->result->transcripts[r->file];
    while (r->n_told < text->public.n_segments) {
        const mn_segment *segment = &text->public.segments[r->n_told++];
        if (t->options.on_segment) t->options.on_segment(t->options.user, r->file, segment);
    }
}

/* Files that are done, as far as all before them are. */
static void tell_files(transcriber *t) {
    transcription *result = t->result;
    for (size_t *i = &result->n_reported; *i < result->public.n_files && result->is_done[*i]; ++*i) {
        result->files[*i] = result->transcripts[*i].public;
        if (t->options.on_file) t->options.on_file(t->options.user, *i, &result->files[*i]);
    }
}

/* ---- recordings ---- */

static void close_recording(recording *r) {
    scribe_close(&r->scribe);
    features_close(&r->features);
    audio_close(&r->audio);
    *r = (recording){0};
}

static mn_status read_window(void *state, int64_t first, int n, float *levels) {
    return features_window(state, first, n, levels);
}

/* A recording is read once before its first window: levels depend on its loudest moment. */
static mn_status scan(transcriber *t, recording *r) {
    bool is_whole = false;
    mn_transcript *public = &t->result->transcripts[r->file].public;
    while (!is_whole) {
        MN_TRY(features_scan(r->features, &is_whole));
        if (!tell_progress(t, r)) MN_FAIL(MN_E_CANCELLED, "cancelled");
    }
    public->duration = (double)audio_length(r->audio) / AUDIO_RATE;
    return MN_OK;
}

static mn_status open_recording(transcriber *t, recording *r, size_t file) {
    transcript *text = &t->result->transcripts[file];
    r->file = file;
    MN_TRY(audio_open(&r->audio, t->paths[file]));
    MN_TRY(features_open(&r->features, r->audio, t->setup.n_bands, t->setup.n_frames));
    MN_TRY(scan(t, r));
    int64_t frames = audio_length(r->audio) * SPEECH_FRAMES_PER_SECOND / AUDIO_RATE;
    const scribe_input input = {.window = read_window, .state = r->features, .n_frames = max_i64(frames, 1)};
    return scribe_open(&r->scribe, &t->setup, &input, text);
}

static mn_status end_recording(transcriber *t, recording *r, mn_status status) {
    size_t file = r->file;
    tell_segments(t, r);
    close_recording(r);
    t->result->is_done[file] = true;
    return transcript_finish(&t->result->transcripts[file], status);
}

/* Opens the next paths, as many as go side by side. */
static mn_status fill(transcriber *t) {
    while (t->n_active < t->options.batch_size && t->next < t->result->public.n_files) {
        recording *r = &t->recordings[t->n_active];
        mn_status status = open_recording(t, r, t->next++);
        if (status == MN_OK) {
            t->n_active++;
        } else {
            MN_TRY(end_recording(t, r, status));
        }
        tell_files(t);
        if (t->is_cancelled) return MN_E_CANCELLED;
    }
    return MN_OK;
}

static void remove_recording(transcriber *t, size_t i) {
    memmove(&t->recordings[i], &t->recordings[i + 1], (t->n_active - i - 1) * sizeof *t->recordings);
    t->recordings[--t->n_active] = (recording){0};
}

/* Its row: windows in which nothing sounds are passed over. */
static mn_status next_row(transcriber *t, size_t i, scribe_step *step) {
    const recording *r = &t->recordings[i];
    do {
        MN_TRY(scribe_next(r->scribe, &t->rows[i], step));
        if (*step == SCRIBE_SILENCE && !tell_progress(t, r)) MN_FAIL(MN_E_CANCELLED, "cancelled");
    } while (*step == SCRIBE_SILENCE);
    return MN_OK;
}

/* The next attempt of every recording; those that are done, or have failed, leave. */
static mn_status prepare(transcriber *t) {
    for (size_t i = 0; i < t->n_active && !t->is_cancelled;) {
        scribe_step step = SCRIBE_DONE;
        mn_status status = next_row(t, i, &step);
        if (status == MN_OK && step == SCRIBE_ROW) {
            i++;
            continue;
        }
        status = end_recording(t, &t->recordings[i], status);
        remove_recording(t, i);
        MN_TRY(status);
    }
    tell_files(t);
    return t->is_cancelled ? MN_E_CANCELLED : MN_OK;
}

/* ---- the rounds ---- */

static bool process(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab_size) {
    transcriber *t = user;
    (void)vocab_size;
    const recording *r = &t->recordings[row];
    scribe_process(r->scribe, ids, n, scores);
    return tell_progress(t, r);
}

static mn_status generate(transcriber *t) {
    mn_generate_options how = mn_generate_options_default();
    mn_generation *generation = NULL;
    how.process = process;
    how.user = t;
    mn_status status = mn_generate_batch(t->setup.model, NULL, t->rows, t->n_active, NULL, &how, &generation);
    if (t->is_cancelled) status = status_fail(MN_E_CANCELLED, "cancelled");
    for (size_t i = 0; status == MN_OK && i < generation->n_sequences; i++) {
        const mn_sequence *sequence = &generation->sequences[i];
        recording *r = &t->recordings[sequence->row];
        status = scribe_take(r->scribe, sequence);
        tell_segments(t, r);
        if (!tell_progress(t, r)) status = status_fail(MN_E_CANCELLED, "cancelled");
    }
    mn_generation_close(&generation);
    return status;
}

static mn_status run(transcriber *t) {
    for (;;) {
        MN_TRY(fill(t));
        MN_TRY(prepare(t));
        if (t->n_active > 0) {
            MN_TRY(generate(t));
        } else if (t->next == t->result->public.n_files) {
            return MN_OK;
        }
    }
}

/* Those that are not finished say so. */
static mn_status cancel(transcriber *t) {
    transcription *result = t->result;
    status_fail(MN_E_CANCELLED, "cancelled");
    for (size_t i = 0; i < t->n_active; i++) MN_TRY(end_recording(t, &t->recordings[i], MN_E_CANCELLED));
    t->n_active = 0;
    for (size_t i = 0; i < result->public.n_files; i++) {
        if (!result->is_done[i]) MN_TRY(transcript_finish(&result->transcripts[i], MN_E_CANCELLED));
        result->is_done[i] = true;
    }
    tell_files(t);
    return MN_OK;
}

static void close_transcriber(transcriber *t) {
    for (size_t i = 0; t->recordings && i < t->n_active; i++) close_recording(&t->recordings[i]);
    mem_free(t->recordings);
    mem_free(t->rows);
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
    result->public = (mn_transcription){.n_files = n, .files = result->files};
    for (size_t i = 0; i < n; i++) {
        result->transcripts[i].tokenizer = model->text;
        result->transcripts[i].tokens = &t->tokens;
        result->transcripts[i].path = mem_copy_text(t->paths[i], strlen(t->paths[i]));
        if (!result->transcripts[i].path) return mem_no_memory();
        result->transcripts[i].public.path =
            result->transcripts[i].path; /* for as long as the transcript lives */
    }
    return MN_OK;
}

mn_status mn_transcribe(mn_model *model, const char *const *paths, size_t n_paths,
                        const mn_transcribe_options *options, mn_transcription **out) {
    transcriber t = {.options = mn_transcribe_options_default(), .paths = paths};
    *out = NULL;
    size_t n_stdin = 0;
    if (n_paths == 0) MN_FAIL(MN_E_ARG, "there is no recording; give at least one path");
    for (size_t i = 0; i < n_paths; i++) n_stdin += strcmp(paths[i], "-") == 0;
    if (n_stdin > 1)
        MN_FAIL(MN_E_ARG, "'-', the standard input, is given %zu times; it can be read once", n_stdin);
    MN_TRY(options_take(&t.options, sizeof t.options, options, "mn_transcribe_options"));
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
