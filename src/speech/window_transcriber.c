/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/window_transcriber.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "gen/logits/scores.h"
#include "session/session.h"
#include "speech/rules.h"
#include "speech/segments.h"
#include "speech/timing.h"

struct window_transcriber {
    const window_transcriber_setup *setup;
    window_transcriber_input input;
    transcript *out;
    const speech_language *language; /* NULL: not known yet, or the model's only one */

    /* The window. */
    int64_t seek, n_frames; /* its first frame, and how many of its frames the recording has */
    mn_session *session;    /* encoded, and given the prompt up to the start token; NULL: not yet */
    size_t attempt;
    double no_speech;
    int32_t *prompt; /* [max_length / 2 + 4] */
    size_t n_prompt;
    int32_t *history; /* [max_length / 2 - 1] the last ids generated */
    size_t n_history;

    /* The attempt. */
    mn_generation_config *config;
    float *scores;  /* [vocab_size] from which the next id is chosen */
    double log_sum; /* of their exponentials */
    double sum;     /* of the log-probabilities of the ids chosen so far */
    bool is_scored; /* scores are computed, and the id chosen from them is not counted yet */

    speech_segment *segments; /* [max_length + 2] scratch, as the two following */
    speech_timing timing;
};

/* The language without detection: the requested one, or the model's only one. */
static void set_language(window_transcriber *s) {
    transcript *out = s->out;
    if (s->setup->tokens->n_languages == 0) {
        memcpy(out->language, "en", sizeof "en");
    } else if (s->language) {
        memcpy(out->language, s->language->code, sizeof out->language);
    } else {
        return;
    }
    out->public.language_probability = 1;
}

static void append_history(window_transcriber *s, const int32_t *ids, size_t n) {
    size_t room = speech_history_room(s->setup->tokens);
    if (n > room) {
        ids += n - room;
        n = room;
    }
    size_t keep = s->n_history + n <= room ? s->n_history : room - n;
    memmove(s->history, s->history + (s->n_history - keep), keep * sizeof *s->history);
    memcpy(s->history + keep, ids, n * sizeof *ids);
    s->n_history = keep + n;
}

mn_status window_transcriber_open(window_transcriber **out, const window_transcriber_setup *setup,
                                  const window_transcriber_input *input, transcript *text) {
    window_transcriber *s = mem_alloc(1, sizeof *s);
    *out = s;
    if (!s) return MN_E_NOMEM;
    size_t most = (size_t)setup->tokens->max_length;
    s->setup = setup;
    s->input = *input;
    s->out = text;
    s->language = setup->language;
    set_language(s);
    s->prompt = mem_alloc(most / 2 + 4, sizeof *s->prompt);
    s->history = mem_alloc(speech_history_room(setup->tokens), sizeof *s->history);
    s->scores = mem_alloc_raw((size_t)setup->tokens->vocab_size, sizeof *s->scores);
    s->segments = mem_alloc(most + 2, sizeof *s->segments);
    bool has_all = s->prompt && s->history && s->scores && s->segments;
    mn_status status = has_all ? mn_generation_config_open(&s->config, setup->model) : MN_E_NOMEM;
    if (status == MN_OK && setup->words) {
        const speech_timing_setup how = {.model = setup->model, .tokens = setup->tokens, .tokenizer = text->tokenizer};
        status = speech_timing_open(&s->timing, &how);
    }
    if (status == MN_OK && setup->n_prompt) append_history(s, setup->prompt, setup->n_prompt);
    if (status != MN_OK) window_transcriber_close(out);
    return status;
}

void window_transcriber_close(window_transcriber **out) {
    window_transcriber *s = *out;
    if (!s) return;
    mn_session_close(&s->session);
    mn_generation_config_close(&s->config);
    speech_timing_close(&s->timing);
    mem_free(s->prompt);
    mem_free(s->history);
    mem_free(s->scores);
    mem_free(s->segments);
    mem_free(s);
    *out = NULL;
}

int64_t window_transcriber_position(const window_transcriber *s) {
    return min_i64(s->seek, s->input.n_frames);
}

/* ---- a window ---- */

static mn_status read_window(window_transcriber *s) {
    const window_transcriber_setup *setup = s->setup;
    s->n_frames = min_i64(setup->n_frames, s->input.n_frames - s->seek);
    return s->input.window(s->input.state, s->seek, setup->n_frames, setup->levels);
}

/* Whether the window is silent. */
static bool is_silent(const window_transcriber *s) {
    const window_transcriber_setup *setup = s->setup;
    size_t n = (size_t)setup->n_bands * (size_t)setup->n_frames, i = 1;
    while (i < n && setup->levels[i] == setup->levels[0]) i++;
    return i == n && isfinite(setup->limits.no_speech);
}

static mn_status encode(window_transcriber *s) {
    const window_transcriber_setup *setup = s->setup;
    size_t bands = (size_t)setup->n_bands, frames = (size_t)setup->n_frames;
    for (size_t band = 0; band < bands; band++) {
        for (size_t i = 0; i < frames; i++) setup->features[band * frames + i] = setup->levels[i * bands + band];
    }
    MN_TRY(mn_session_open(&s->session, setup->model, &setup->cache));
    return mn_session_encode(s->session, setup->features, bands, frames);
}

/* The most probable language in the logits after the start token. */
static mn_status choose_language(window_transcriber *s, const float *logits) {
    const speech_tokens *tokens = s->setup->tokens;
    transcript *out = s->out;
    double *p = mem_alloc(tokens->n_languages, sizeof *p);
    if (!p) return MN_E_NOMEM;
    s->language = speech_detect_language(p, logits, tokens);
    if (s->language) out->public.language_probability = p[s->language - tokens->languages];
    mem_free(p);
    if (!s->language) MN_FAIL(MN_E_FORMAT, "the model's scores are no numbers: its weights are damaged");
    memcpy(out->language, s->language->code, sizeof out->language);
    return MN_OK;
}

/* The language of a text before the window may be another, so it is not detected behind that text. */
static mn_status detect_language(window_transcriber *s) {
    mn_session *alone = NULL;
    MN_TRY(mn_session_fork(&alone, s->session));
    mn_status status = mn_session_step(alone, &s->setup->tokens->start, 1, NULL);
    if (status == MN_OK) status = choose_language(s, mn_session_logits(alone));
    mn_session_close(&alone);
    return status;
}

/* Encodes the window and evaluates its first step: every attempt has the same prompt up to the start token. */
static mn_status open_window(window_transcriber *s) {
    const window_transcriber_setup *setup = s->setup;
    const speech_tokens *tokens = setup->tokens;
    s->attempt = 0;
    MN_TRY(encode(s));
    const speech_context context = {setup->hotwords, s->history, setup->n_hotwords, s->n_history};
    if (!*s->out->language && context.n_hotwords + context.n_history) MN_TRY(detect_language(s));
    size_t n_before = speech_prompt(s->prompt, tokens, NULL, setup->task, true, &context);
    MN_TRY(mn_session_step(s->session, s->prompt, n_before, NULL));
    const float *logits = mn_session_logits(s->session);
    s->no_speech = speech_no_speech_probability(logits, tokens);
    if (!*s->out->language) MN_TRY(choose_language(s, logits));
    s->n_prompt = speech_prompt(s->prompt, tokens, s->language, setup->task, setup->timestamps, &context);
    return MN_OK;
}

static void close_window(window_transcriber *s, int64_t advance) {
    mn_session_close(&s->session);
    s->seek += advance;
}

/* ---- an attempt ---- */

static mn_status set_number(mn_generation_config *config, const char *name, double value) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return mn_generation_config_set(config, name, text);
}

/* Seeds depend on the position in the recording alone, so that other recordings do not change the result. This module
 * applies the rules. */
static mn_status configure(window_transcriber *s) {
    static const struct {
        const char *name, *value;
    } fixed[] = {{"suppress_tokens", "null"},
                 {"begin_suppress_tokens", "null"},
                 {"num_return_sequences", "1"},
                 {"top_k", "0"},
                 {"top_p", "1"}};
    const window_transcriber_setup *setup = s->setup;
    mn_generation_config *config = s->config;
    double temperature = setup->temperatures[s->attempt];
    bool is_drawn = temperature > 0;
    int64_t room = (int64_t)setup->tokens->max_length - (int64_t)s->n_prompt;
    uint64_t place = setup->seed + (uint64_t)s->seek * 0x9E3779B97F4A7C15u + s->attempt * 0xBF58476D1CE4E5B9u;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        MN_TRY(mn_generation_config_set(config, fixed[i].name, fixed[i].value));
    MN_TRY(mn_generation_config_set(config, "do_sample", is_drawn ? "true" : "false"));
    MN_TRY(set_number(config, "temperature", is_drawn ? temperature : 1));
    MN_TRY(set_number(config, "num_beams", is_drawn ? 1 : setup->num_beams));
    MN_TRY(set_number(config, "max_new_tokens", (double)(setup->max_new ? min_i64(setup->max_new, room) : room)));
    return set_number(config, "seed", (double)(place & ((UINT64_C(1) << 53) - 1)));
}

mn_status window_transcriber_next(window_transcriber *s, mn_request *request, window_transcriber_step *step) {
    *step = WINDOW_DONE;
    if (s->seek >= s->input.n_frames) return MN_OK;
    if (!s->session) {
        MN_TRY(read_window(s));
        if (is_silent(s)) {
            *step = WINDOW_SILENCE;
            close_window(s, s->n_frames);
            return MN_OK;
        }
        MN_TRY(open_window(s));
    }
    *step = WINDOW_REQUEST;
    MN_TRY(configure(s));
    s->sum = 0;
    s->is_scored = false;
    mn_request_init(request, sizeof *request);
    request->prompt = s->prompt;
    request->n_prompt = s->n_prompt;
    request->config = s->config;
    request->prefix = s->session;
    return MN_OK;
}

static bool has_beams(const window_transcriber *s) {
    return s->setup->num_beams > 1 && !(s->setup->temperatures[s->attempt] > 0);
}

/* Counts the id that was chosen by the scores at hand. */
static void count(window_transcriber *s, int32_t id) {
    if (s->is_scored) s->sum += (double)s->scores[id] - s->log_sum;
    s->is_scored = false;
}

void window_transcriber_process(window_transcriber *s, const int32_t *ids, size_t n, float *scores) {
    const speech_tokens *tokens = s->setup->tokens;
    size_t vocab = (size_t)tokens->vocab_size;
    if (n > s->n_prompt) count(s, ids[n - 1]);
    speech_rules_apply(scores, tokens, s->setup->timestamps, ids + s->n_prompt, n - s->n_prompt);
    if (has_beams(s)) return; /* whose sequences come with the log-probabilities of their ids */
    memcpy(s->scores, scores, vocab * sizeof *scores);
    s->log_sum = scores_log_sum(scores, vocab);
    s->is_scored = true;
}

static double sum_of(window_transcriber *s, const mn_sequence *sequence) {
    double sum = 0;
    if (!has_beams(s)) {
        if (sequence->n_ids) count(s, sequence->ids[sequence->n_ids - 1]);
        return s->sum;
    }
    for (size_t i = 0; i < sequence->n_ids; i++) sum += (double)sequence->transition_scores[i];
    return sum;
}

/* ---- results ---- */

/* The words whose first id is in the segment: words [*at, ...) begin at text id `first` or later. */
static transcript_words words_of(const window_transcriber *s, size_t *at, size_t end) {
    const speech_timing *t = &s->timing;
    transcript_words words = {.words = t->words + *at,
                              .text = t->text.data,
                              .offset = (double)s->seek / SPEECH_FRAMES_PER_SECOND,
                              .parts = s->input.parts};
    while (*at < t->n_words && t->words[*at].token_begin < end) {
        words.n++;
        ++*at;
    }
    return words;
}

/* In the frames that there are. */
static double seconds(const window_transcriber *s, int64_t frame) {
    return (double)min_i64(frame, s->input.n_frames) / SPEECH_FRAMES_PER_SECOND;
}

static mn_status keep(window_transcriber *s, const int32_t *ids, size_t n, mn_segment *measures, int64_t *advance) {
    const window_transcriber_setup *setup = s->setup;
    size_t n_segments = n ? speech_segments(s->segments, advance, setup->tokens, ids, n, s->seek, s->n_frames) : 0;
    size_t n_kept = n_segments ? s->segments[n_segments - 1].end : 0, at_word = 0, n_text = 0;
    if (setup->words)
        MN_TRY(speech_timing_make(&s->timing, s->session, s->language, setup->task, ids, n_kept, s->n_frames));
    for (size_t i = 0; i < n_segments; i++) {
        const speech_segment *from = &s->segments[i];
        bool is_last = i + 1 == n_segments;
        measures->ids = ids + from->begin;
        measures->n_ids = from->end - from->begin;
        measures->start = audio_parts_start(s->input.parts, seconds(s, from->start));
        measures->end = fmax(measures->start, audio_parts_end(s->input.parts, seconds(s, from->stop)));
        for (size_t k = from->begin; k < from->end; k++) n_text += ids[k] < setup->tokens->end;
        transcript_words words = {0};
        if (setup->words) words = words_of(s, &at_word, is_last ? SIZE_MAX : n_text);
        MN_TRY(transcript_add(s->out, measures, setup->words ? &words : NULL));
    }
    if (setup->conditions && measures->temperature < SPEECH_HISTORY_TEMPERATURE)
        append_history(s, ids, n_kept);
    else
        s->n_history = 0;
    return MN_OK;
}

mn_status window_transcriber_take(window_transcriber *s, const mn_sequence *sequence) {
    const window_transcriber_setup *setup = s->setup;
    const int32_t *ids = sequence->ids;
    size_t n = sequence->n_ids;
    if (n && ids[n - 1] == setup->tokens->end) n--;
    int64_t advance = s->n_frames;
    mn_segment measures = {.no_speech_prob = s->no_speech,
                           .temperature = setup->temperatures[s->attempt],
                           .window_start = audio_parts_start(s->input.parts, seconds(s, s->seek))};
    measures.avg_logprob = speech_average_log_probability(sum_of(s, sequence), n);
    MN_TRY(speech_compression_ratio(&measures.compression_ratio, ids, n, setup->tokens->vocab_size));
    bool is_last = s->attempt + 1 == setup->n_temperatures;
    speech_decision decision =
        speech_decide(&setup->limits, measures.compression_ratio, measures.avg_logprob, s->no_speech, is_last);
    if (decision == SPEECH_RETRY) {
        s->attempt++;
        return MN_OK;
    }
    if (decision == SPEECH_KEEP) MN_TRY(keep(s, ids, n, &measures, &advance));
    close_window(s, advance);
    return MN_OK;
}
