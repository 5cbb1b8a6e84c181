/* The part of mneme.h that is about speech: log-mel features of recordings, transcription, subtitles. Programs include
 * <mneme.h>, whose rules hold here.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SPEECH_H
#define MNEME_SPEECH_H

#ifndef MNEME_H
#error "include <mneme.h>"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- features ---- */

/* The log-mel features of a recording, the input of a speech model: a frame every 10 ms, as Whisper's feature extractor
 * computes them. Used by one thread at a time. */
typedef struct mn_features mn_features;

/* path: as in mn_transcribe. The whole recording is read, because features depend on its loudest moment. num_mel_bins:
 * as in mn_model_info (1 to 256). n_frames: shorter recordings are padded with silence to this length (the model's
 * window is 2 * max_source_positions); 0: no padding. MN_E_ARG for these; MN_E_NOT_FOUND, MN_E_IO and MN_E_FORMAT for
 * the recording; MN_E_NOMEM. */
MN_API mn_status mn_features_open(mn_features **features, const char *path, size_t num_mel_bins, size_t n_frames);
MN_API void mn_features_close(mn_features **features);

/* The number of frames of the recording, at least n_frames. */
MN_API int64_t mn_features_count(const mn_features *features);

/* Frames [first, first + n) as f32 [num_mel_bins][n], the input of mn_session_encode; after the end of the recording
 * they are those of silence. MN_E_ARG for a negative `first` and for more than 2^30 values; MN_E_NOMEM; MN_E_IO when
 * the file has changed. */
MN_API mn_status mn_features_window(mn_features *features, int64_t first, size_t n, float *window);

/* ---- transcription ---- */

/* A word, including the space before it; seconds from the recording's beginning. */
typedef struct mn_word {
    size_t size;
    const char *text;
    size_t n_text;
    double start, end;
} mn_word;

/* The text from start to end, in seconds from the recording's beginning. The statistics are those of its window. */
typedef struct mn_segment {
    size_t size;
    double start, end;
    const char *text; /* NULL without a tokenizer */
    size_t n_text;
    const int32_t *ids; /* as generated, including timestamps */
    size_t n_ids;
    const mn_word *const *words; /* timestamps "word" only */
    size_t n_words;
    double avg_logprob;       /* mean log-probability of the window's ids and end token */
    double no_speech_prob;    /* probability that nobody speaks in the window */
    double compression_ratio; /* of the window's ids */
    double temperature;       /* with which the window was generated */
    double window_start;      /* where its window begins, seconds */
} mn_segment;

typedef struct mn_transcript {
    size_t size;
    const char *path;
    mn_status status;            /* of this recording; if not MN_OK, the following members have the part before the
                                  * failure */
    const char *error;           /* a sentence, or "" */
    const char *language;        /* "en"; NULL when not detected, as in a silent recording */
    double language_probability; /* among the model's languages; 1 when it was set */
    double duration;             /* seconds */
    const char *text;            /* of all segments; NULL without a tokenizer */
    size_t n_text;
    const int32_t *ids; /* of all segments in order, without prompts and end tokens */
    size_t n_ids;
    const mn_segment *const *segments;
    size_t n_segments;
} mn_transcript;

typedef struct mn_transcription {
    size_t size;
    size_t n_files;
    const mn_transcript *const *files; /* in the order of the paths */
} mn_transcription;

typedef struct mn_transcribe_progress {
    size_t size;
    size_t file;           /* among the paths */
    double done, duration; /* seconds transcribed, and in total; 0 until that is known */
} mn_transcribe_progress;

typedef struct mn_transcribe_options {
    size_t size;            /* sizeof(mn_transcribe_options) */
    const char *language;   /* "en" or "English"; NULL: detected in the first window that is not silent */
    const char *task;       /* "transcribe", "translate" (to English) */
    const char *timestamps; /* "none", "segment", "word" */
    int num_beams;          /* at temperature 0 */
    /* Temperatures tried in increasing order until the result passes the thresholds; 0 is greedy (or beams), others
     * sample. NULL: 0, 0.2, ... 1. */
    const double *temperatures;
    size_t n_temperatures;
    double compression_ratio_threshold; /* above it, the text is repetitive and fails; INFINITY: not
                                         * checked */
    double logprob_threshold;           /* below it, the mean log-probability fails; -INFINITY: not checked */
    double no_speech_threshold;         /* a window that fails logprob_threshold and has a no_speech_prob
                                           above this is silence and left out, as are windows without sound;
                                           INFINITY: not checked */
    bool condition_on_prev_tokens;      /* the prompt of a window has the text before it */
    int64_t max_new_tokens;             /* per window; 0: as many as the model's context allows */
    uint64_t seed;                      /* of sampling */
    size_t batch_size;                  /* recordings transcribed together; results do not depend on it */
    const mn_cache_options *cache;      /* of the decoder, "self=...,cross=..."; NULL: the defaults */
    /* Called repeatedly; returning false cancels. NULL: never, as the following two. */
    bool (*on_progress)(void *user, const mn_transcribe_progress *progress);
    void (*on_segment)(void *user, size_t file, const mn_segment *segment);    /* when a segment is complete */
    void (*on_file)(void *user, size_t file, const mn_transcript *transcript); /* complete or failed; in
                                                                                * the order of the
                                                                                * paths */
    void *user;
    /* Text placed before each recording, such as the spelling of names and terms: its last tokens, half of the model's
     * context at most, are in the prompt of the first window, and with condition_on_prev_tokens of those after it, too.
     * NULL or "": none. */
    const char *prompt;
    /* [n_paths] the bytes of files in memory, data_sizes[i] each, borrowed for the call; their paths are then names in
     * messages and transcripts. NULL, or a NULL in it: the file at the path. */
    const void *const *data;
    const size_t *data_sizes;
    /* Words to expect, spelled as they should appear: the first tokens, half of the model's context at most, are in the
     * prompt of every window; the text before the window follows them where there is room. NULL or "": none. */
    const char *hotwords;
    /* Leaves out what is no speech before windows are cut; times are those of the whole recording. A recording without
     * speech has no segments. Speech is what rises vad_threshold dB (above 0, at most 60) above the quietest moment
     * nearby; silence of less than vad_min_silence_ms is kept, a segment with less than vad_min_speech_ms of voice is
     * left out, vad_speech_pad_ms are kept around each (0 to 3,600,000, rounded down to 10 ms). docs/transcribe.md says
     * what is lost. */
    bool vad_filter;
    double vad_threshold;
    int64_t vad_min_silence_ms, vad_min_speech_ms, vad_speech_pad_ms;
} mn_transcribe_options;

MN_API void mn_transcribe_options_init(mn_transcribe_options *options, size_t size);

/* Transcribes recordings: paths to files that libsndfile or libmpg123 reads, "-" for the standard input; for files in
 * other formats the program ffmpeg is started where PATH has it, not for recordings in memory. A recording is
 * transcribed in windows of the model's length (30 s); windows of several recordings are computed together. A recording
 * that fails does not affect the others: its transcript has the error. MN_E_UNSUPPORTED for a model that is not a
 * speech model and for tasks that it does not support; MN_E_ARG, for an unknown language with the nearest ones;
 * MN_E_NOMEM; MN_E_CANCELLED becomes the status of the recordings that are not finished. */
MN_API mn_status mn_transcribe(mn_model *model, const char *const *paths, size_t n_paths,
                               const mn_transcribe_options *options, mn_transcription **transcription);
MN_API void mn_transcription_close(mn_transcription **transcription);

/* Transcripts as files. format: "txt", "srt" (SubRip), "vtt" (WebVTT). The head of a file, and a cue: n_text bytes
 * shown from start to end, in seconds; number: how many cues precede it. A cue whose text is empty after cleaning is
 * empty and is not counted. Text is escaped so that it cannot break the format. *head and *cue are owned by the caller.
 * MN_E_ARG for another format. */
MN_API mn_status mn_subtitles_head(const char *format, char **head, size_t *n_head);
MN_API mn_status mn_subtitles_cue(const char *format, int64_t number, double start, double end, const char *text,
                                  size_t n_text, char **cue, size_t *n_cue);

#ifdef __cplusplus
}
#endif

#endif
