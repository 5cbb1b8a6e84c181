/* Mneme: text generation with every KV-cache strategy.
 *
 * Reading order: status, model, text, cache and session, generation. A program needs little of it: open a model, open a
 * session, call mn_generate (examples/generate.c); or drive the cache by hand with mn_session_step (examples/own_loop.c).
 *
 * Rules that hold everywhere. Handles are opaque; mn_x_open gives one, mn_x_close(&handle) takes it back, accepts NULL and
 * sets the pointer to NULL. Options structs begin with their own size and come from a mn_x_default function. Pointers passed
 * in are borrowed for the call; what a function hands out says who owns it. Text is UTF-8 with an explicit length. Functions
 * return MN_OK or a negative status and leave outputs untouched (handles: NULL) on failure, with one sentence in
 * mn_last_error(). Nothing prints, exits or keeps global state. A model may be used by several threads at once, each with
 * sessions of its own; computations of one model take turns on its thread pool.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_H
#define MNEME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------------------------------ */

#define MN_STATUS_LIST(X)                                                                                    \
    X(OK, 0, "done")                                                                                         \
    X(E_ARG, -1, "an argument is out of range or contradicts another")                                       \
    X(E_NOMEM, -2, "out of memory")                                                                          \
    X(E_FULL, -3, "a limit that the caller set is reached")                                                  \
    X(E_IO, -4, "a file or device failed")                                                                   \
    X(E_FORMAT, -5, "a file is damaged or of a form that is not read here")                                  \
    X(E_UNSUPPORTED, -6, "not possible for this model, cache or machine")                                    \
    X(E_NOT_FOUND, -7, "no such file or model")                                                              \
    X(E_CANCELLED, -8, "cancelled")                                                                          \
    X(E_REFUSED, -9, "a saved cache does not belong to this model or is damaged")

typedef enum mn_status {
#define MN_STATUS_ENUM(name, value, text) MN_##name = value,
    MN_STATUS_LIST(MN_STATUS_ENUM)
#undef MN_STATUS_ENUM
} mn_status;

#if defined(__GNUC__)
#define MN_API __attribute__((visibility("default")))
#else
#define MN_API
#endif

/* One sentence about the last failure of the calling thread: what was wrong, the value seen, the values allowed. Valid
 * until the thread's next call into the library; "" when none failed yet. */
MN_API const char *mn_last_error(void);

/* A fixed text for a code; never NULL. */
MN_API const char *mn_status_text(mn_status status);

/* "0.1.0" */
MN_API const char *mn_version(void);

/* Frees text and arrays that functions of this header hand out as owned by the caller; accepts NULL. */
MN_API void mn_free(void *block);

/* ---- model --------------------------------------------------------------------------------------------------------- */

typedef struct mn_model mn_model;

enum { MN_MOST_THREADS = 256 };

typedef struct mn_model_options {
    size_t size;              /* sizeof(mn_model_options) */
    const char *compute_type; /* what activations are multiplied in: "auto", "f32" (the reference), "bf16", "int8" */
    const char *cpu;          /* "auto", or a level: "scalar", "avx2", "avx512", "avx512_dot", "neon" */
    int threads;              /* computing threads, the caller included, at most MN_MOST_THREADS; 0: the cores this process may use */
    uint64_t memory_limit;    /* bytes for weights and caches together; 0: what the machine has */
    /* Called from the opening thread while weights are prepared; NULL: never. */
    void (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_user;
} mn_model_options;

MN_API mn_model_options mn_model_options_default(void);

/* Where a name leads: a path to a Hugging Face folder or a .gguf file, "org/name[@revision]" in the local Hugging Face
 * cache, a file in the models folder ($MNEME_MODELS, else $XDG_DATA_HOME/mneme/models), "embedded", or NULL: the text
 * model installed last, else the embedded one. Never downloads. *path is owned by the caller ("embedded" for the embedded model).
 * MN_E_NOT_FOUND lists every place that was looked at. */
MN_API mn_status mn_model_find(char **path, const char *name);

/* The same for mn_transcribe: NULL is the speech model installed last; there is none embedded. */
MN_API mn_status mn_model_find_speech(char **path, const char *name);

/* Opens a path given by mn_model_find. Weights are mapped, then packed for this CPU. The need is computed and compared with
 * the memory limit before anything large is allocated: MN_E_NOMEM. Damaged files: MN_E_FORMAT; an architecture that is not
 * known: MN_E_UNSUPPORTED. options: NULL for the defaults. */
MN_API mn_status mn_model_open(mn_model **model, const char *path, const mn_model_options *options);
MN_API void mn_model_close(mn_model **model); /* after its sessions */

typedef struct mn_model_info {
    size_t size;                    /* sizeof(mn_model_info), set by the caller */
    const char *architecture;       /* model_type: "llama"; owned by the model, as all texts here */
    const char *compute_type;       /* what "auto" became */
    const char *cpu;                /* level of the kernels in use */
    int32_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    int64_t max_position_embeddings; /* 0: no end, as for models of states alone */
    uint64_t parameters;            /* numbers in all tensors */
    uint64_t file_bytes;            /* mapped */
    uint64_t packed_bytes;          /* prepared copies of weights */
    uint64_t available_bytes;       /* memory limit, or what the machine had free at opening */
    int threads;
    bool has_tokenizer, has_chat_template;
    const char *warning;            /* one sentence for the user when the files leave something out; or NULL */
    int32_t num_mel_bins;           /* encoder-decoder models of sound: bands of the features; else 0 */
    int64_t max_source_positions;   /* of the encoder, which takes twice as many frames; 0: no encoder */
    bool has_learned_positions;     /* a table of max_position_embeddings rows: no cache holds longer texts */
} mn_model_info;

MN_API mn_status mn_model_get_info(const mn_model *model, mn_model_info *info);

/* Everything `mneme inspect` shows, as one JSON object: every size, tensor types and bytes, memory, cache bytes per token of
 * each strategy. context: tokens to plan for, 0 for the model's own. *text is owned by the caller. */
MN_API mn_status mn_model_describe(const mn_model *model, int64_t context, char **text);

/* ---- text ---------------------------------------------------------------------------------------------------------- */

typedef struct mn_tokenizer mn_tokenizer;

/* Opens the tokenizer of a checkpoint; only its tokenizer files are read. */
MN_API mn_status mn_tokenizer_open(mn_tokenizer **tokenizer, const char *path);
MN_API void mn_tokenizer_close(mn_tokenizer **tokenizer);

/* The model's own, or NULL; owned by the model. */
MN_API const mn_tokenizer *mn_model_tokenizer(const mn_model *model);

enum {
    MN_ADD_SPECIAL = 1,  /* add what the tokenizer's post-processor adds (bos, ...) */
    MN_NO_PARSE = 2,     /* special tokens spelled in the text are ordinary text */
    MN_SKIP_SPECIAL = 4, /* mn_detokenize: leave special tokens out */
};

/* n_text bytes of UTF-8 to ids; *ids (owned by the caller) and *n_ids. MN_E_ARG names the place of invalid UTF-8. */
MN_API mn_status mn_tokenize(const mn_tokenizer *tokenizer, const char *text, size_t n_text, int flags, int32_t **ids,
                             size_t *n_ids);

/* *text (owned by the caller, zero-terminated) and its length without the zero; n_text may be NULL. */
MN_API mn_status mn_detokenize(const mn_tokenizer *tokenizer, const int32_t *ids, size_t n_ids, int flags, char **text,
                               size_t *n_text);

/* The token as the vocabulary spells it; NULL when out of range. Owned by the tokenizer. */
MN_API const char *mn_token_piece(const mn_tokenizer *tokenizer, int32_t id);
MN_API int32_t mn_vocab_size(const mn_tokenizer *tokenizer);

/* Renders messages, JSON text [{"role": "user", "content": "..."}, ...], through the chat template. *text is owned by the
 * caller. MN_E_UNSUPPORTED when there is no template; MN_E_ARG with the template's own words when it refuses. */
MN_API mn_status mn_chat_render(const mn_tokenizer *tokenizer, const char *messages, size_t n_messages,
                                bool add_generation_prompt, char **text, size_t *n_text);
MN_API bool mn_has_chat_template(const mn_tokenizer *tokenizer);

/* ---- cache and session --------------------------------------------------------------------------------------------- */

typedef struct mn_cache_options {
    size_t size;                /* sizeof(mn_cache_options) */
    const char *implementation; /* a strategy or several joined by "+": "dynamic", "static", "quantized+sink", ..., or
                                   "self=...,cross=..." of an encoder-decoder model; the command's --cache. Transformers' classes
                                   are other names ("HQQQuantizedCache"). NULL: none is asked for; generating then uses the one
                                   that the generation configuration names, and all else "dynamic" */
    const char *config;         /* "key=value,..." or a JSON object: Transformers' cache_config, the command's --cache-config;
                                   NULL: nothing. The numbers below stand above those in it */
    const char *dtype;          /* "auto", "f32", "bf16": stored form of keys and values that are not coded */
    int64_t max_cache_len;      /* static: tokens held, allocated at once; others: refused beyond (0: no limit) */
    int page_tokens;            /* tokens in a page, even; 0: 128 */
    int prefill_chunk;          /* tokens computed together in prefill; 0: 512. Results do not depend on it */
    const char *on_oom;         /* when memory ends: "offload", "quantize", "evict" (old tokens go, sinks stay): the cache becomes
                                   so and the run goes on; NULL or "fail": MN_E_NOMEM */
    const char *key_file;       /* a file of 16 to 4096 bytes that its owner alone may use: caches that the session saves carry a
                                   checksum which nobody makes or checks without it, HMAC-SHA256 under its bytes, and only caches
                                   that do are loaded; NULL: no key */
} mn_cache_options;

MN_API mn_cache_options mn_cache_options_default(void);

/* What options and their config say together, before there is a model. */
typedef struct mn_cache_summary {
    size_t size;           /* sizeof(mn_cache_summary), set by the caller */
    bool reserves;         /* max_cache_len tokens are allocated at once: a session wants it given */
    int64_t max_cache_len; /* 0: not given */
    int page_tokens, prefill_chunk;
    bool is_endless;       /* every query looks through a window: a text may pass the model's context */
} mn_cache_summary;

/* MN_E_ARG for names, keys and values that are wrong whatever the model, as mn_session_open; summary may be NULL. */
MN_API mn_status mn_cache_check(const mn_cache_options *options, mn_cache_summary *summary);

/* What of these options a session of the model would not do, one line each: keys of the config that change nothing, sinks beside
 * windows of the model's own. "" when there is nothing; *warnings is owned by the caller. MN_E_ARG for a cache that the model does not
 * take. */
MN_API mn_status mn_cache_warnings(const mn_model *model, const mn_cache_options *options, char **warnings);

/* Makes the tables of quantized keys (backend "mneme") from a text of 384 tokens or more, of which the first 2,048 are used, and
 * writes them to `path`, or, for NULL, to where sessions of this model look: $MNEME_TABLES, else $XDG_DATA_HOME/mneme/tables.
 * Sessions opened before keep what they have, later ones use these; without tables a form that needs none is used. No other
 * thread may use the model meanwhile. MN_E_ARG for a short text, MN_E_UNSUPPORTED, MN_E_IO. */
MN_API mn_status mn_cache_calibrate(mn_model *model, const int32_t *ids, size_t n, const char *path);

/* The strategies with their help, and the keys of a config with what is allowed and the default: one JSON object owned by the
 * caller. */
MN_API mn_status mn_cache_describe(char **text);

/* One timeline of tokens with its cache and the logits behind its last token. Used by one thread at a time. */
typedef struct mn_session mn_session;

/* MN_E_ARG for options that contradict; MN_E_NOMEM when a static cache does not fit. options: NULL for the defaults. */
MN_API mn_status mn_session_open(mn_session **session, mn_model *model, const mn_cache_options *options);
MN_API void mn_session_close(mn_session **session);

/* Encoder-decoder models: runs the encoder over features f32 [num_mel_bins][n_frames], n_frames = 2 * max_source_positions, and fills
 * the cross caches with what the decoder sees of it, once in a session's life, before its first token; forks share it. MN_E_ARG: no
 * encoder, another number of bands or frames, encoded already, or tokens are there; MN_E_NOMEM; the session is then as before. */
MN_API mn_status mn_session_encode(mn_session *session, const float *features, size_t num_mel_bins, size_t n_frames);

/* Appends n >= 1 tokens. all_logits: NULL, or f32 [n][vocab_size] to be filled with the logits behind each of them. On
 * failure the session is as before: MN_E_ARG for an id out of range, MN_E_FULL when the cache has no room, MN_E_NOMEM,
 * MN_E_CANCELLED. */
MN_API mn_status mn_session_step(mn_session *session, const int32_t *ids, size_t n, float *all_logits);

/* Makes the session hold exactly these tokens: keeps the longest common prefix with what it holds, drops the rest, computes
 * what is new (at least the last token, so that its logits are there). *n_reused: tokens not recomputed; may be NULL. */
MN_API mn_status mn_session_sync(mn_session *session, const int32_t *ids, size_t n, size_t *n_reused);

/* Logits behind the last token, f32 [vocab_size]; NULL when the session is empty or was truncated. Owned by the session,
 * valid until its next call. */
MN_API const float *mn_session_logits(const mn_session *session);

MN_API int64_t mn_session_length(const mn_session *session);
/* The tokens held, int32 [length]; owned by the session, valid until its next call. */
MN_API const int32_t *mn_session_ids(const mn_session *session);

/* Keeps the first n_keep tokens (negative: drops the last -n_keep; more than there are: all of them). MN_E_ARG when there are
 * fewer; MN_E_UNSUPPORTED, with nothing changed, when a window or a state has forgotten what the kept tokens see (mn_session_sync
 * computes such a past anew). */
MN_API mn_status mn_session_truncate(mn_session *session, int64_t n_keep);

/* A second timeline with the same past; pages are shared until one of the two writes. */
MN_API mn_status mn_session_fork(mn_session **fork, const mn_session *session);

/* Appends ids[i] to rows[i] for i < n_rows, different sessions of one model, all computed in one pass; each row gets the bits that it
 * would get alone. As mn_session_step, and MN_E_ARG for a session that is there twice; on failure every row holds the
 * tokens that it held, though some may have lost their logits. */
MN_API mn_status mn_sessions_step(mn_session *const *rows, size_t n_rows, const int32_t *ids);

/* Makes rows[i] go on from what rows[index[i]] was, for i < n_index: reorders, leaves out (such rows are closed) and repeats
 * (forks) rows, as beam search and batches do. rows has room for both n_rows and n_index; those beyond n_index are NULL
 * afterwards. On failure nothing has changed. */
MN_API mn_status mn_sessions_select(mn_session **rows, size_t n_rows, const int32_t *index, size_t n_index);

/* Gives the session another strategy and keeps what it holds: it may become offloaded, quantized, or look through a window.
 * MN_E_UNSUPPORTED says why that cannot be; then nothing has changed. */
MN_API mn_status mn_session_set_cache(mn_session *session, const mn_cache_options *options);

/* Writes the session, tokens and cache, to one safetensors file: the old file or the new one, never a part. A new file has mode
 * 0600, one that is replaced keeps its own; where path is a symbolic link, what it leads to is replaced. compress: zstd
 * where it saves a tenth. MN_E_IO, also when another process has been writing the file for 10 s. */
MN_API mn_status mn_session_save(const mn_session *session, const char *path, bool compress);

/* Opens a session from such a file, which may ask for no more than the model's context at once (expected->max_cache_len: what the
 * caller allows instead) and for no folder of its own; it goes on, bit for bit, as if it had never stopped. Everything is verified first. expected:
 * the strategy that must be the file's, and what else the session is to have; NULL, or one without an implementation, for
 * whatever strategy it is. MN_E_REFUSED says why a file is not for this model, tokenizer or strategy, or what is damaged;
 * MN_E_ARG, MN_E_NOT_FOUND, MN_E_IO, MN_E_NOMEM. The file must stay as it is while the session lives: its pages are used where
 * they are mapped. */
MN_API mn_status mn_session_load(mn_session **session, mn_model *model, const char *path, const mn_cache_options *expected);

/* A session of these options that begins with the longest prefix of ids which a saved cache in `folder` holds, or an empty one;
 * files of other models and strategies and damaged ones are passed over, as is a folder that is not there, files that belong to
 * another user, that others may write or that are links, everything in such a folder, and, with options->key_file, what was not
 * saved with that key. Names end in
 * ".safetensors". */
MN_API mn_status mn_session_open_cached(mn_session **session, mn_model *model, const mn_cache_options *options, const char *folder,
                                        const int32_t *ids, size_t n);

/* Transformers' legacy form of a cache, as a safetensors file: of every layer N "key.N" and "value.N", [n_rows]
 * [num_key_value_heads][tokens][head_dim], keys turned to their positions, and "ids", I32 [n_rows][tokens]; where there is cross
 * attention "cross_key.N" and "cross_value.N", with the encoder's positions in place of tokens. Shorter rows are padded on the left, with
 * zeros and the pad token (0 without one): "attention_mask", I64 [n_rows][tokens], is 1 where there is a token; positions count tokens
 * only. dtype: "f32", "bf16", or "auto": what the cache holds, f32 where codes are decoded. MN_E_UNSUPPORTED where tokens are forgotten
 * and for states. */
MN_API mn_status mn_sessions_export(mn_session *const *rows, size_t n_rows, const char *path, const char *dtype);

/* A session that holds one row of such a file (F32, BF16 or F16) in a cache of any strategy that keeps keys and values; it has no
 * logits until its next step. What attention_mask masks, on the left or the right, is left out; without one all is the row's. ids: of the tokens [n_ids], or NULL for the file's own. MN_E_REFUSED for what does not fit the
 * model or is damaged. */
MN_API mn_status mn_session_import(mn_session **session, mn_model *model, const mn_cache_options *options, const char *path,
                                   size_t row, const int32_t *ids, size_t n_ids);

typedef struct mn_cache_info {
    size_t size;                /* sizeof(mn_cache_info), set by the caller */
    const char *implementation; /* as in mn_cache_options */
    const char *dtype;          /* "f32" or "bf16" */
    int64_t tokens;             /* held: what the layer that looks furthest back still sees; 0 without a cache */
    int64_t next_position;      /* position of the next token */
    uint64_t bytes, peak_bytes; /* of all pages this session refers to, now and at most; peak_bytes of a generation: the most that
                                 * the model's caches took near at once while it ran, all rows and beams together, as memory_limit
                                 * counts it */
    uint64_t bytes_per_token;
    int64_t max_cache_len;      /* tokens held at most: the limit, or the window that every layer looks through; 0: no such end */
    int32_t num_layers;
    uint64_t far_bytes;         /* of bytes: those in the far home of offloaded caches */
    const char *before;         /* the implementation before memory ended and on_oom changed it; NULL: it is the one asked for */
    bool is_endless;            /* every query looks through a window: a text may pass the model's context */
    int64_t limit;              /* max_cache_len as it was asked for: no token is taken beyond; 0: none */
    int64_t seen;               /* tokens that were computed into the cache, those that a window has left behind among them */
} mn_cache_info;

MN_API mn_status mn_session_cache(const mn_session *session, mn_cache_info *info);

/* How one layer's memory stands. */
typedef struct mn_layer_info {
    size_t size;               /* sizeof(mn_layer_info), set by the caller */
    const char *kind;          /* "self", "cross" (attention of an encoder-decoder model), "state" (recurrent) */
    int32_t num_key_value_heads;
    int32_t k_head_dim, v_head_dim;
    int64_t tokens;            /* seen */
    int64_t first_held;        /* earlier ones are forgotten, but for the first_exact first ones */
    int64_t first_exact;       /* first tokens that are kept exactly for ever: sinks, or first_exact of quantized */
    int64_t sealed_tokens;     /* of those held, the ones that are codes */
    int64_t window_length;     /* sinks included; 0: none */
    const char *key_codec, *value_codec; /* form of sealed tokens: "f32", "bf16", "mneme", "quanto", "hqq" */
    int32_t key_bits, value_bits;        /* of one value, scales not counted */
} mn_layer_info;

MN_API mn_status mn_session_layer(const mn_session *session, int layer, mn_layer_info *info);

/* A layer's keys (turned to their positions) or values as attention sees them: tokens [begin, begin + n), codes decoded, as f32
 * [num_key_value_heads][n][head_dim]. MN_E_ARG for tokens that are not held, MN_E_UNSUPPORTED for states. */
MN_API mn_status mn_session_read(const mn_session *session, int layer, bool keys, int64_t begin, int64_t n, float *rows);

/* Shape of one layer's keys as Transformers shows it: [1][num_key_value_heads][tokens][head_dim]; tokens are those held, and of a cache
 * that is allocated at once all that it has room for, max_cache_len or the layer's window. */
MN_API mn_status mn_session_kv_shape(const mn_session *session, int layer, int64_t shape[4]);

/* Asks a running step or generation of this session, from any thread or a signal handler, to end with MN_E_CANCELLED. */
MN_API void mn_session_cancel(mn_session *session);

/* ---- generation ---------------------------------------------------------------------------------------------------- */

typedef struct mn_generation_config mn_generation_config;

/* Transformers' GenerationConfig. A new one holds the model's generation_config.json (model NULL: the defaults). */
MN_API mn_status mn_generation_config_open(mn_generation_config **config, const mn_model *model);
MN_API void mn_generation_config_close(mn_generation_config **config);

/* Sets one field by Transformers' name; value is JSON text ("0.7", "true", "[1,2]", "\"text\""). MN_E_ARG names the field,
 * the value and what is allowed; an unknown name gets the nearest one. */
MN_API mn_status mn_generation_config_set(mn_generation_config *config, const char *name, const char *value);

/* Sets every known field of a JSON object in the format of generation_config.json. One that names another cache than before takes
 * back cache_config and use_cache where it does not say them itself. */
MN_API mn_status mn_generation_config_load(mn_generation_config *config, const char *text, size_t n_text);

/* The fields, for help texts and tools; ends with name NULL. */
typedef struct mn_generation_field {
    const char *name;      /* "max_new_tokens" */
    const char *alias;     /* short flag name of llama.cpp's users, "n-predict"; or NULL */
    const char *kind;      /* "integer", "number", "boolean", "choice", "string", "schema", "integers", "strings",
                              "lists of integers", "biases", "object", "pair", "layers" */
    const char *allowed;   /* "1 to 1000000" */
    const char *standard;  /* default, as text */
    const char *help;      /* one line */
} mn_generation_field;

MN_API const mn_generation_field *mn_generation_fields(void);
/* The value as JSON text (owned by the caller), NULL for an unknown name. */
MN_API char *mn_generation_config_get(const mn_generation_config *config, const char *name);

/* The cache that a generation with this configuration has: where options name none, they get the configuration's
 * cache_implementation and cache_config ("none" where use_cache is false); what they say themselves stays. Texts are the
 * configuration's. */
MN_API mn_status mn_generation_config_cache(const mn_generation_config *config, mn_cache_options *options);

typedef struct mn_token_event {
    int row;           /* of the batch */
    int sequence;      /* among those returned for the row */
    int32_t id;        /* -1 when only held-back text is released at the end */
    const char *text;  /* new text: whole UTF-8 sequences, never part of a stop string; may be empty */
    size_t n_text;
} mn_token_event;

/* Return false to cancel. */
typedef bool (*mn_token_callback)(void *user, const mn_token_event *event);

typedef struct mn_logprob {
    int32_t id;
    float logprob; /* natural */
} mn_logprob;

typedef struct mn_sequence {
    int row;                    /* input row */
    int index;                  /* among the sequences of its row: 0 to num_return_sequences - 1, with beams the best one first */
    const int32_t *ids;         /* new tokens, the end token included when one ended it */
    size_t n_ids;
    const char *text;           /* NULL without a tokenizer */
    size_t n_text;
    const char *finish_reason;  /* static text: "eos", "length", "stop_string", "time", "callback", "cancelled" */
    const mn_logprob *logprobs; /* [n_ids][1 + top_logprobs]: the chosen one, then the best; NULL unless asked for */
    const float *scores;        /* [n_ids][vocab_size] processed scores; NULL unless asked for */
    const float *logits;        /* [n_ids][vocab_size] raw logits; NULL unless asked for */
    size_t prompt_tokens, cached_tokens;
    bool has_score;                 /* beams only, as the following */
    double score;                   /* sum of log-probabilities / length^length_penalty */
    const int32_t *beam_indices;    /* [n_ids] running beam of its row that each token was added to */
    const float *transition_scores; /* [n_ids] log-probability that each token was chosen with */
    size_t draft_tokens, draft_accepted; /* assisted decoding: tokens that were proposed, and those of them that were chosen */
} mn_sequence;

typedef struct mn_generation {
    size_t n_sequences; /* fewer than asked for where beams find fewer texts */
    const mn_sequence *sequences; /* in the order of the input rows */
    uint64_t seed;                /* the one used */
    double prompt_ms, predicted_ms;
    mn_cache_info cache;          /* sums over the rows; implementation "several" where they have different ones */
    /* Beams with keep_scores, keep_logits: of every step and running beam, f32 [n_steps][n_beams][vocab_size], the beams of one row
     * after those of another, NAN where a row has ended; else NULL. */
    const float *beam_scores, *beam_logits;
    size_t n_steps, n_beams;
} mn_generation;

/* Changes scores [vocab_size] of the token behind ids [n] (the prompt included); -infinity removes one. false: failed. */
typedef bool (*mn_logits_processor)(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab_size);

/* The ids that may follow ids [n]; *allowed stays valid until the next call. false: failed. */
typedef bool (*mn_prefix_allowed)(void *user, int row, const int32_t *ids, size_t n, const int32_t **allowed, size_t *n_allowed);

/* Whether ids [n] (the prompt included) end here. */
typedef bool (*mn_stopping)(void *user, int row, const int32_t *ids, size_t n);

typedef struct mn_generate_options {
    size_t size;                /* sizeof(mn_generate_options) */
    int top_logprobs;           /* -1: none; K: the chosen token's and the K best */
    bool keep_scores, keep_logits;
    mn_token_callback on_token; /* NULL: none */
    void *user;
    /* While the prompts are computed: tokens done and in all; NULL: never. */
    void (*on_prefill)(void *user, size_t done, size_t total);
    mn_logits_processor process;       /* behind the built-in processors and before the warpers; NULL: none, as the next two */
    mn_prefix_allowed prefix_allowed;
    mn_stopping stop;                  /* the reason is then "callback" */
    mn_model *assistant;               /* draft model of assisted decoding; NULL: none */
    const int32_t *negative_prompt;    /* guidance_scale: what the unconditional context begins with; NULL: the prompt's last token */
    size_t n_negative_prompt;
    bool keep_sessions;         /* mn_generation_take_session gives the session behind each sequence */
    const mn_session *session; /* for mn_generation_config_check alone: the one that is to generate; NULL: not known */
} mn_generate_options;

MN_API mn_generate_options mn_generate_options_default(void);

/* Whether the settings fit together: MN_E_ARG with a sentence when two contradict each other, which generating would refuse
 * too. *warnings: one line for each that was set but has no effect, and why, those of a checkpoint's file that are not obeyed here
 * among them; "" when there is none; owned by the caller. options may be NULL; with a session there is a line where it keeps
 * another cache than the configuration asks for. */
MN_API mn_status mn_generation_config_check(const mn_generation_config *config, const mn_generate_options *options,
                                            char **warnings);

/* Continues `session`: synchronises it to the prompt, then generates. A session that was opened without naming a cache takes the one
 * that the configuration asks for, and what it holds becomes so or is computed anew. The session afterwards holds the prompt and the new
 * tokens but the last (which was never fed). A cancelled run is MN_OK with finish_reason "cancelled" and what there was. */
MN_API mn_status mn_generate(mn_session *session, const int32_t *prompt, size_t n_prompt, const mn_generation_config *config,
                             const mn_generate_options *options, mn_generation **generation);

typedef struct mn_batch_row {
    const int32_t *prompt;
    size_t n_prompt;
    const mn_generation_config *config; /* NULL: the one for all rows */
    const mn_session *prefix;           /* the row begins as this session's fork, whose tokens it keeps as far as they are the
                                           prompt's; its strategy then is the row's; NULL: nothing */
} mn_batch_row;

/* Rows of different length generated together, each exactly as it would be alone. cache: of every row; where it names none, a row has
 * the cache that its own configuration asks for. */
MN_API mn_status mn_generate_batch(mn_model *model, const mn_cache_options *cache, const mn_batch_row *rows, size_t n_rows,
                                   const mn_generation_config *config, const mn_generate_options *options,
                                   mn_generation **generation);

/* With keep_sessions: the session behind sequence i (of n_sequences), which from now on is the caller's to close. It holds the prompt and
 * the sequence's ids but the last, which was never fed, and goes on as one that was given these tokens. Sessions that are not taken
 * are closed with the generation. Until then the pages of a row that has ended stay. MN_E_ARG when there is none: keep_sessions
 * was not set, it has been taken, or it is sequence 0 of mn_generate, whose session is the caller's already. */
MN_API mn_status mn_generation_take_session(mn_generation *generation, size_t i, mn_session **session);
MN_API void mn_generation_close(mn_generation **generation);

/* ---- many requests --------------------------------------------------------------------------------------------------- */

/* Requests computed side by side: each may be added before any step and leaves when it ends, and each gets exactly what it would
 * get alone. A program adds, steps and takes in a loop of its own; memory is that of the requests in it. Used by one thread at a time. */
typedef struct mn_engine mn_engine;

typedef struct mn_engine_options {
    size_t size;                   /* sizeof(mn_engine_options) */
    const mn_cache_options *cache; /* of requests that say none; NULL: the defaults */
} mn_engine_options;

MN_API mn_engine_options mn_engine_options_default(void);

/* MN_E_ARG as mn_session_open, MN_E_NOMEM. options: NULL for the defaults. */
MN_API mn_status mn_engine_open(mn_engine **engine, mn_model *model, const mn_engine_options *options);
/* Drops the requests that were not taken; before the model is closed. */
MN_API void mn_engine_close(mn_engine **engine);

typedef struct mn_request {
    size_t size; /* sizeof(mn_request) */
    const int32_t *prompt;
    size_t n_prompt;
    const mn_generation_config *config;  /* NULL: the model's */
    const mn_generate_options *options;  /* NULL: the defaults. Its callbacks are called by mn_engine_step and mn_engine_cancel, with the
                                            id as `row`; its `user` and `assistant` must stay until the request is taken */
    const mn_cache_options *cache;       /* NULL: the engine's */
    const mn_session *prefix;            /* as in mn_batch_row; its strategy then stands above `cache` */
} mn_request;

MN_API mn_request mn_request_default(void);

/* A request that joins at the next step; *id counts from 0. What mn_generate would refuse is refused here and leaves the engine as it
 * was. MN_E_NOMEM. */
MN_API mn_status mn_engine_add(mn_engine *engine, const mn_request *request, int *id);

/* One step: every request whose prompt is computed chooses its next tokens, and the next piece of every request is computed, in one
 * pass. A failure ends the requests that it is about, which mn_engine_take tells, and leaves the others alone. *n_running: those that
 * have not ended; may be NULL. */
MN_API mn_status mn_engine_step(mn_engine *engine, size_t *n_running);

/* Ends a request now, between two steps: its sequences have what there is, and finish_reason "cancelled". MN_E_ARG when it is not
 * running. */
MN_API mn_status mn_engine_cancel(mn_engine *engine, int id);

/* Takes the request that ended first of those that were not taken: *id and, owned by the caller, its generation, in which `row` is the
 * id and times are counted from mn_engine_add. *id is -1 when there is none. The status is the request's own, with its sentence in
 * mn_last_error; *generation is NULL when it failed. */
MN_API mn_status mn_engine_take(mn_engine *engine, int *id, mn_generation **generation);

/* ---- features -------------------------------------------------------------------------------------------------------- */

/* What a speech model hears of a recording: its log-mel features, a frame every 10 ms, as Whisper's feature extractor computes them. For
 * one thread at a time. */
typedef struct mn_features mn_features;

/* path: as of mn_transcribe. The recording is read to its end, for features depend on its loudest moment. num_mel_bins: those of
 * mn_model_info (1 to 256). n_frames: those of the model's window, 2 * max_source_positions, up to which a shorter recording is followed by
 * silence; 0: it is left as it is. MN_E_ARG for these; MN_E_NOT_FOUND, MN_E_IO and MN_E_FORMAT for the recording; MN_E_NOMEM. */
MN_API mn_status mn_features_open(mn_features **features, const char *path, size_t num_mel_bins, size_t n_frames);
MN_API void mn_features_close(mn_features **features);

/* Frames of the recording, n_frames where that is more. */
MN_API int64_t mn_features_count(const mn_features *features);

/* Frames [first, first + n) as f32 [num_mel_bins][n], which mn_session_encode takes; behind the end lies silence. MN_E_ARG for a negative
 * `first` and for more than 2^30 numbers; MN_E_NOMEM; MN_E_IO when the file is not the same any more. */
MN_API mn_status mn_features_window(mn_features *features, int64_t first, size_t n, float *window);

/* ---- transcription ---------------------------------------------------------------------------------------------------- */

/* A word, the space before it included; seconds from the recording's beginning. */
typedef struct mn_word {
    const char *text;
    size_t n_text;
    double start, end;
} mn_word;

/* What is said from start to end, seconds from the recording's beginning. The measures are those of the window it was heard in. */
typedef struct mn_segment {
    double start, end;
    const char *text; /* NULL without a tokenizer */
    size_t n_text;
    const int32_t *ids; /* as the model wrote them, timestamps included */
    size_t n_ids;
    const mn_word *words; /* timestamps "word" only */
    size_t n_words;
    double avg_logprob;       /* mean log-probability of the window's ids and end token */
    double no_speech_prob;    /* that nobody speaks in the window */
    double compression_ratio; /* of the window's ids */
    double temperature;       /* that the window was written at */
} mn_segment;

typedef struct mn_transcript {
    const char *path;
    mn_status status;  /* of this recording; not MN_OK: what follows is what there was until then */
    const char *error; /* a sentence, or "" */
    const char *language;        /* "en"; NULL when it was not heard, as in a silent recording */
    double language_probability; /* among the model's languages; 1 when it was said */
    double duration;             /* seconds */
    const char *text;            /* of all segments; NULL without a tokenizer */
    size_t n_text;
    const int32_t *ids; /* of all segments, one after the other, without prompts and end tokens */
    size_t n_ids;
    const mn_segment *segments;
    size_t n_segments;
} mn_transcript;

typedef struct mn_transcription {
    size_t n_files;
    const mn_transcript *files; /* in the order of the paths */
} mn_transcription;

typedef struct mn_transcribe_progress {
    size_t file;           /* among the paths */
    double done, duration; /* seconds of it that are heard, and in all; 0 until that is known */
} mn_transcribe_progress;

typedef struct mn_transcribe_options {
    size_t size;            /* sizeof(mn_transcribe_options) */
    const char *language;   /* what is spoken: "en" or "English"; NULL: heard in the first window that sounds */
    const char *task;       /* "transcribe", "translate" (to English) */
    const char *timestamps; /* "none", "segment", "word" */
    int num_beams;          /* at temperature 0 */
    /* Tried one after the other, rising, while what is written is doubtful: 0 is greedy (or beams), above it is drawn. NULL: 0, 0.2,
     * ... 1. */
    const double *temperatures;
    size_t n_temperatures;
    double compression_ratio_threshold; /* above: it repeats itself; INFINITY: not looked at */
    double logprob_threshold;           /* mean log-probability below: not believed; -INFINITY: not looked at */
    double no_speech_threshold;         /* not believed and no_speech_prob above: silence, left out, as are windows in which
                                           nothing sounds; INFINITY: not looked at */
    bool condition_on_prev_tokens;      /* a window is given the text before it */
    int64_t max_new_tokens;             /* in a window; 0: what the model has room for */
    uint64_t seed;                      /* of what is drawn */
    size_t batch_size;                  /* recordings transcribed side by side; their results do not depend on it */
    const mn_cache_options *cache;      /* of the decoder, "self=...,cross=..."; NULL: the defaults */
    /* Called often; false cancels. NULL: never, as the following two. */
    bool (*on_progress)(void *user, const mn_transcribe_progress *progress);
    void (*on_segment)(void *user, size_t file, const mn_segment *segment);          /* as soon as it is written */
    void (*on_file)(void *user, size_t file, const mn_transcript *transcript);       /* finished or failed; in the order of the paths */
    void *user;
} mn_transcribe_options;

MN_API mn_transcribe_options mn_transcribe_options_default(void);

/* Writes down what is said in recordings: paths to files that libsndfile or libmpg123 reads, "-" for the standard input. Windows of the model's
 * length (30 s) one after the other; those of several recordings are computed side by side. A recording that fails leaves the others
 * alone: its transcript says why. MN_E_UNSUPPORTED for a model that does not hear and for what it cannot do; MN_E_ARG, with the nearest
 * ones for a language; MN_E_NOMEM; MN_E_CANCELLED becomes the status of the recordings that are not finished. */
MN_API mn_status mn_transcribe(mn_model *model, const char *const *paths, size_t n_paths, const mn_transcribe_options *options,
                               mn_transcription **transcription);
MN_API void mn_transcription_close(mn_transcription **transcription);

/* ---- machine ------------------------------------------------------------------------------------------------------- */

/* CPU level, kernels and which level serves each, cores, memory: one JSON object owned by the caller. cpu: as in
 * mn_model_options. */
MN_API mn_status mn_machine_describe(const char *cpu, char **text);

#ifdef __cplusplus
}
#endif

#endif
