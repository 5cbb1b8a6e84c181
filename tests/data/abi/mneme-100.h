/* Mneme: text generation with every KV-cache strategy.
 *
 * Reading order: status, model, text, cache and session, generation, sampler, embeddings; then mneme_engine.h (many
 * requests) and mneme_speech.h (transcription), which this header includes. A program needs little of it: open a model,
 * open a session, call mn_generate (examples/generate.c); or drive the cache by hand with mn_session_step
 * (examples/own_loop.c).
 *
 * Rules that hold everywhere. Handles are opaque: mn_x_open creates one, mn_x_close(&handle) closes it, accepts NULL
 * and sets the pointer to NULL. Pointers passed in are borrowed for the call; each function states who owns what it
 * returns. Text is UTF-8 with an explicit length. Functions return MN_OK or a negative status. On failure outputs are
 * unchanged (handles: NULL) and mn_last_error() has one sentence. No function prints, exits or keeps global state.
 *
 * The library is for Linux. A model may be used by several threads at once, each with sessions of its own; computations
 * of one model take turns on its thread pool. Results do not depend on the environment: the library reads
 * $MNEME_MODELS, $HF_HUB_CACHE, $HF_HOME, $XDG_CONFIG_HOME, $XDG_DATA_HOME and $HOME in mn_model_find,
 * mn_model_find_speech and mn_models_describe alone, and $TMPDIR for temporary files.
 *
 * Structs grow at their end, so every struct begins with its `size` in bytes, and a program and a library of different
 * versions work together. Options: mn_x_init(&options, sizeof options) writes the defaults to the members that the
 * program knows. In a larger struct the members that the library does not know must be zero, which is the default of
 * every member added later; otherwise MN_E_ARG. Information structs (mn_x_info): the caller sets `size`, and members
 * that the library does not know become zero. Structs that the library returns have the library's size, and arrays of
 * them are arrays of pointers, so programs do not depend on their size. In an array that the caller fills, all elements
 * have the `size` of the first.
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

/* ---- status ---- */

#define MN_STATUS_LIST(X)                                                                                              \
    X(OK, 0, "done")                                                                                                   \
    X(E_ARG, -1, "an argument is out of range or contradicts another")                                                 \
    X(E_NOMEM, -2, "out of memory")                                                                                    \
    X(E_FULL, -3, "a limit that the caller set is reached")                                                            \
    X(E_IO, -4, "a file or device failed")                                                                             \
    X(E_FORMAT, -5, "a file is damaged or has an unsupported format")                                                  \
    X(E_UNSUPPORTED, -6, "not possible for this model, cache or machine")                                              \
    X(E_NOT_FOUND, -7, "no such file or model")                                                                        \
    X(E_CANCELLED, -8, "cancelled")                                                                                    \
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
 * until the thread's next call into the library; "" when no call has failed. */
MN_API const char *mn_last_error(void);

/* A fixed text for a code; never NULL. */
MN_API const char *mn_status_text(mn_status status);

/* The version of this header, and that of the running library: "0.1.0", 100. Version numbers can be compared: 10000 *
 * major + 100 * minor + patch. Before 1.0 a minor version may break the interface, which CHANGELOG.md states; names of
 * functions and members are never reused. */
#define MN_VERSION_MAJOR  0
#define MN_VERSION_MINOR  1
#define MN_VERSION_PATCH  0
#define MN_VERSION_NUMBER (10000 * MN_VERSION_MAJOR + 100 * MN_VERSION_MINOR + MN_VERSION_PATCH)
MN_API const char *mn_version(void);
MN_API int mn_version_number(void);

/* Frees text and arrays that this library returns and the caller owns; accepts NULL. */
MN_API void mn_free(void *block);

/* ---- model ---- */

typedef struct mn_model mn_model;

enum { MN_MOST_THREADS = 256 };

typedef struct mn_model_options {
    size_t size;              /* sizeof(mn_model_options) */
    const char *compute_type; /* type in which activations are multiplied: "auto", "f32" (the reference), "bf16",
                               * "int8" (of quantized weights; activations have 16 bits), "int8_a8" (8 bits: long
                               * prompts are faster, results less exact) */
    const char *cpu;          /* "auto", or a level: "scalar", "avx2", "avx512", "avx512_dot", "neon" */
    int threads;              /* computing threads, including the caller, at most MN_MOST_THREADS; 0: the
                               * cores available to this process */
    uint64_t memory_limit;    /* bytes for weights and caches together; 0: the available memory */
    /* Called in the opening thread while weights are packed; NULL: never. */
    void (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_user;
    /* Folder with files of mn_model_save_packed: those of this model are mapped, which takes the place of packing.
     * Damaged files, and files and folders that others may write, are passed over. NULL: none. */
    const char *packed_dir;
} mn_model_options;

MN_API void mn_model_options_init(mn_model_options *options, size_t size);

/* Resolves a name: a path to a Hugging Face folder or a .gguf file, "org/name[@revision]" in the local Hugging Face
 * cache, a file in the models folder ($MNEME_MODELS, else $XDG_DATA_HOME/mneme/models), "embedded", or NULL: the most
 * recently installed text model, else the embedded one. Never downloads. *path is owned by the caller ("embedded" for
 * the embedded model). MN_E_NOT_FOUND: the message lists every place searched. */
MN_API mn_status mn_model_find(char **path, const char *name);

/* The same for mn_transcribe: NULL is the most recently installed speech model; no speech model is embedded. */
MN_API mn_status mn_model_find_speech(char **path, const char *name);

/* The models that these two find without a path: the embedded one, those of the models folder and those of the Hugging
 * Face cache; one JSON array of {"name", "path", "use": "text" or "speech"} in that order, owned by the caller. */
MN_API mn_status mn_models_describe(char **text);

/* Opens a path returned by mn_model_find. Weights are mapped, then packed for this CPU. The required memory is computed
 * and compared with the memory limit before anything large is allocated: MN_E_NOMEM. Damaged files: MN_E_FORMAT; an
 * unknown architecture: MN_E_UNSUPPORTED. options: NULL for the defaults. */
MN_API mn_status mn_model_open(mn_model **model, const char *path, const mn_model_options *options);

/* Writes the packed weights of a model to `folder`, which is made, for mn_model_options.packed_dir: about the bytes of
 * the checkpoint again. They belong to this checkpoint and compute_type; the same file is replaced. *n_bytes: of all
 * files, may be NULL. MN_E_UNSUPPORTED where weights are packed for each use; MN_E_IO, MN_E_NOMEM. */
MN_API mn_status mn_model_save_packed(const mn_model *model, const char *folder, uint64_t *n_bytes);

/* The order in which a program closes things is free: the model stays, with its tokenizer, until every session and
 * engine of it is closed too, and every request of an engine that drafts with it has ended. */
MN_API void mn_model_close(mn_model **model);

typedef struct mn_model_info {
    size_t size;              /* sizeof(mn_model_info), set by the caller */
    const char *architecture; /* model_type: "llama"; owned by the model, as all strings here */
    const char *compute_type; /* the type in use, also where "auto" was requested */
    const char *cpu;          /* level of the kernels in use */
    int32_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    int64_t max_position_embeddings; /* 0: unlimited, as for models with recurrent states only */
    uint64_t parameters;             /* elements of all tensors */
    uint64_t file_bytes;             /* mapped */
    uint64_t packed_bytes;           /* packed weights; 0: packed for each use */
    uint64_t available_bytes;        /* memory limit, or the available memory at opening */
    int threads;
    bool has_tokenizer, has_chat_template;
    const char *warning;          /* for the user, in one line: what the files lack or hold beyond what is read; NULL */
    int32_t num_mel_bins;         /* speech models: mel bands of the features; else 0 */
    int64_t max_source_positions; /* of the encoder, whose input has twice as many frames; 0: no encoder */
    bool has_learned_positions;   /* a table of max_position_embeddings rows limits the context of every
                                   * cache */
    uint64_t mapped_bytes;        /* of packed_bytes, those that lie in files of packed_dir */
} mn_model_info;

MN_API mn_status mn_model_get_info(const mn_model *model, mn_model_info *info);

/* 32 hexadecimal digits, computed from the configuration and samples of the weights. Models with different fingerprints
 * cannot share saved caches or calibrations. *text is owned by the caller. */
MN_API mn_status mn_model_fingerprint(const mn_model *model, char **text);

/* Everything `mneme inspect` shows, as one JSON object: every size, tensor types and bytes, memory, cache bytes per
 * token of each strategy. context: tokens to plan for, 0 for the model's own. *text is owned by the caller. */
MN_API mn_status mn_model_describe(const mn_model *model, int64_t context, char **text);

/* ---- text ---- */

typedef struct mn_tokenizer mn_tokenizer;

/* Opens the tokenizer of a checkpoint; only its tokenizer files are read. */
MN_API mn_status mn_tokenizer_open(mn_tokenizer **tokenizer, const char *path);
MN_API void mn_tokenizer_close(mn_tokenizer **tokenizer);

/* The model's own, or NULL; owned by the model, and valid as long as that stays (mn_model_close). */
MN_API const mn_tokenizer *mn_model_tokenizer(const mn_model *model);

enum {
    MN_ADD_SPECIAL = 1,  /* add what the tokenizer's post-processor adds (bos, ...) */
    MN_NO_PARSE = 2,     /* special tokens spelled in the text are ordinary text */
    MN_SKIP_SPECIAL = 4, /* mn_detokenize: leave special tokens out */
};

/* n_text bytes of UTF-8 to ids; *ids is owned by the caller. MN_E_ARG gives the byte position of invalid UTF-8. */
MN_API mn_status mn_tokenize(const mn_tokenizer *tokenizer, const char *text, size_t n_text, int flags, int32_t **ids,
                             size_t *n_ids);

/* The ids of a text that begins as `held` [n_held] does, as the next prompt of a conversation: the ids held, as far as
 * their text is the text's beginning, and behind them the ids of the rest. An answer's ids, which were generated, need
 * not be those that its text is tokenized to; a session that holds them (mn_session_ids) goes on with the ids of this
 * function and computes only what is new. *n_kept: how many of those held they begin with; may be NULL. examples/chat.c
 * is such a conversation. */
MN_API mn_status mn_tokenize_after(const mn_tokenizer *tokenizer, const int32_t *held, size_t n_held, const char *text,
                                   size_t n_text, int flags, int32_t **ids, size_t *n_ids, size_t *n_kept);

/* *text (owned by the caller, zero-terminated) and its length without the zero; n_text may be NULL. */
MN_API mn_status mn_detokenize(const mn_tokenizer *tokenizer, const int32_t *ids, size_t n_ids, int flags, char **text,
                               size_t *n_text);

/* Streaming: the pieces that push and finish return, joined, are the text that mn_detokenize returns for all ids. Each
 * piece consists of whole UTF-8 sequences, may be empty, is zero-terminated, and is valid until the next call. */
typedef struct mn_detokenizer mn_detokenizer;

/* flags: MN_SKIP_SPECIAL or 0. A tokenizer that is closed first, by itself or with its model, stays until the
 * detokenizer is closed. */
MN_API mn_status mn_detokenizer_open(mn_detokenizer **detokenizer, const mn_tokenizer *tokenizer, int flags);
MN_API void mn_detokenizer_close(mn_detokenizer **detokenizer);
/* MN_E_ARG for an id out of range: the ids before it have been added, and their text is lost. */
MN_API mn_status mn_detokenizer_push(mn_detokenizer *detokenizer, const int32_t *ids, size_t n, const char **text,
                                     size_t *n_text);
/* Returns the text that was held back; then the next sequence may begin. */
MN_API mn_status mn_detokenizer_finish(mn_detokenizer *detokenizer, const char **text, size_t *n_text);

/* The token's string in the vocabulary; NULL when out of range. Owned by the tokenizer. */
MN_API const char *mn_token_piece(const mn_tokenizer *tokenizer, int32_t id);
/* The token with this string, as mn_token_piece gives it; -1: none. */
MN_API int32_t mn_token_id(const mn_tokenizer *tokenizer, const char *piece);
/* A special token by its name in Transformers: "bos_token", "eos_token", "unk_token", "pad_token", "sep_token",
 * "cls_token", "mask_token"; -1: the tokenizer has none, or the name is another. */
MN_API int32_t mn_special_token_id(const mn_tokenizer *tokenizer, const char *name);
MN_API int32_t mn_vocab_size(const mn_tokenizer *tokenizer);

/* The bytes that a token adds to a text, as they are: perhaps a part of a UTF-8 sequence. first: the text begins with
 * it (some tokenizers drop a space there). None for special tokens and ids without a token. *text is owned by the
 * caller, zero-terminated. MN_E_ARG for an id out of range. */
MN_API mn_status mn_token_bytes(const mn_tokenizer *tokenizer, int32_t id, bool first, char **text, size_t *n_text);

/* Renders messages, JSON text [{"role": "user", "content": "..."}, ...], through the chat template. *text is owned by
 * the caller. Members of messages that are null are left out; "reasoning" or "thinking" is read as "reasoning_content"
 * when that is absent. MN_E_UNSUPPORTED when there is no template; MN_E_ARG with the template's message when it raises
 * an error. */
MN_API mn_status mn_chat_render(const mn_tokenizer *tokenizer, const char *messages, size_t n_messages,
                                bool add_generation_prompt, char **text, size_t *n_text);

/* What a chat template gets besides messages, as Transformers' apply_chat_template: zero-terminated JSON texts,
 * borrowed for the call. */
typedef struct mn_chat_options {
    size_t size;                 /* sizeof(mn_chat_options) */
    bool add_generation_prompt;  /* end with the beginning of an answer; the default */
    const char *tools;           /* functions that the model may call, a list of objects; NULL: none */
    const char *documents;       /* what it may quote from, a list of objects {"title", "text"}; NULL: none */
    const char *template_kwargs; /* an object; each member is a variable of the template, above the variables of the
                                    same name: {"enable_thinking": false}; NULL: none */
} mn_chat_options;

MN_API void mn_chat_options_init(mn_chat_options *options, size_t size);

/* mn_chat_render with these. options: NULL for the defaults. MN_E_ARG also for texts that are no JSON or have another
 * form; the message names "tools", "documents" or "template_kwargs". */
MN_API mn_status mn_chat_render_with(const mn_tokenizer *tokenizer, const char *messages, size_t n_messages,
                                     const mn_chat_options *options, char **text, size_t *n_text);
/* The text of the chat template, of the one for tools where there are two; NULL: there is none. Owned by the
 * tokenizer. */
MN_API const char *mn_chat_template(const mn_tokenizer *tokenizer, bool with_tools);
MN_API bool mn_has_chat_template(const mn_tokenizer *tokenizer);

/* ---- cache and session ---- */

typedef struct mn_cache_options {
    size_t size;                /* sizeof(mn_cache_options) */
    const char *implementation; /* a strategy, or several joined by "+": "dynamic", "static",
                                   "quantized+sink", ..., or "self=...,cross=..." for an encoder-decoder
                                   model; the command's --cache. Names of Transformers' classes are accepted
                                   ("HQQQuantizedCache"). NULL: not set; generation then uses the one in its
                                   configuration, everything else "dynamic" */
    const char *config;         /* "key=value,..." or a JSON object: Transformers' cache_config, the command's
                                   --cache-config; NULL: empty. The members below override its keys */
    const char *dtype;          /* "auto", "f32", "bf16": type of keys and values that are not quantized */
    int64_t max_cache_len;      /* static: tokens allocated at once; others: limit beyond which tokens are
                                 * refused (0: no limit) */
    int page_tokens;            /* tokens in a page, even; 0: 128 */
    int prefill_chunk;          /* tokens computed together in prefill; 0: 512. Results do not depend on it */
    const char *on_oom;         /* when memory runs out: "offload", "quantize", "evict" (drop old tokens, keep
                                   sinks): the cache is converted and the run continues; NULL or "fail":
                                   MN_E_NOMEM */
    const char *key_file;       /* a file of 16 to 4096 bytes, accessible to its owner alone: saved caches get
                                   a checksum keyed with its bytes (HMAC-SHA256), and only caches with a valid
                                   one are loaded; NULL: no key */
} mn_cache_options;

MN_API void mn_cache_options_init(mn_cache_options *options, size_t size);

/* The result of options and their config together, without a model. */
typedef struct mn_cache_summary {
    size_t size;           /* sizeof(mn_cache_summary), set by the caller */
    bool preallocates;     /* max_cache_len tokens are allocated at once, so a session requires
                            * max_cache_len */
    int64_t max_cache_len; /* 0: not set */
    int page_tokens, prefill_chunk;
    bool has_unbounded_context; /* every query has a window: a text may exceed the model's context */
    char path[512];             /* the folder of the file with offloaded pages, if config names one; "": the system's */
} mn_cache_summary;

/* MN_E_ARG for names, keys and values that are invalid for every model, as in mn_session_open; summary may be NULL. */
MN_API mn_status mn_cache_check(const mn_cache_options *options, mn_cache_summary *summary);

/* What a run needs of memory when no limit is set: batch_size prompts (lines of a batch, recordings) of prompt_tokens
 * tokens that are computed together, and behind each of them rows (beams, groups, answers) that share it and take up to
 * max_new_tokens more. Rows that are chosen anew on the way, as beams are, share more and need less, as do prompts that
 * end at different times. Of a speech model: the encoder's positions and buffers, and recordings of any length. */
typedef struct mn_memory_plan {
    size_t size;             /* sizeof(mn_memory_plan), set by the caller */
    uint64_t prompt_bytes;   /* pages of caches in memory while the prompt is computed, at most */
    uint64_t rows_bytes;     /* the same while the rows grow; 0: they do not */
    uint64_t cache_bytes;    /* the larger of both */
    uint64_t resident_bytes; /* of the process: what it holds now, cache_bytes, and what computing needs beside them;
                                not less than its peak until now. Weights that are read where they are mapped count once
                                they were read */
    uint64_t session_bytes;  /* what mn_session_cache reports as bytes of one session once the prompt is computed in one
                                call, offloaded bytes included; states of recurrent layers: one by one, since earlier
                                ones are kept of steps */
} mn_memory_plan;

/* The plan of a session with these options; a strategy that allocates all at once without max_cache_len: for as many
 * tokens as the run has. MN_E_ARG as mn_session_open, and for prompt_tokens out of 1 to 2^40, max_new_tokens or rows
 * out of 1 to 2^24, batch_size out of 1 to 2^16. */
MN_API mn_status mn_memory_plan_make(mn_memory_plan *plan, mn_model *model, const mn_cache_options *options,
                                     int64_t prompt_tokens, int64_t max_new_tokens, int64_t rows, int64_t batch_size);

/* The options that have no effect in a session of the model, one line each: unused keys of the config, sinks beside the
 * model's own windows. "" when there are none; *warnings is owned by the caller. MN_E_ARG for a cache that the model
 * does not support. */
MN_API mn_status mn_cache_warnings(const mn_model *model, const mn_cache_options *options, char **warnings);

/* Computes a calibration of quantized keys (backend "mneme") for this model from at least 384 tokens, of which the
 * first 2,048 are used, and writes it to the file `path`. mn_model_set_calibration makes sessions use it. No other
 * thread may use the model during the call. MN_E_ARG for a short text, MN_E_UNSUPPORTED, MN_E_IO. */
MN_API mn_status mn_cache_calibrate(mn_model *model, const int32_t *ids, size_t n, const char *path);

/* Sets the calibration of quantized keys for sessions opened later: a file written by mn_cache_calibrate, read when the
 * first such session needs it; NULL (the default): a form without calibration is used. Open sessions keep theirs. A
 * saved cache contains the checksum of its calibration and can be loaded only with the same one. No other thread may
 * open sessions of the model during the call. MN_E_NOT_FOUND; opening a session returns MN_E_REFUSED when the file is
 * damaged or belongs to another model. */
MN_API mn_status mn_model_set_calibration(mn_model *model, const char *path);

/* The strategies with their help, and the keys of a config with their allowed values and defaults: one JSON object
 * owned by the caller. */
MN_API mn_status mn_cache_describe(char **text);

/* A sequence of tokens with its cache and the logits after its last token.
 *
 * Threads: only one thread at a time may call functions of a session, with two exceptions. Any thread may call
 * mn_session_cancel at any time while the session is open. Several threads may concurrently fork, save and read it
 * (mn_session_length, _ids, _logits, _cache, _layer, _kv_shape) while no other function of this session runs. Different
 * sessions may be used by different threads, also forks that share pages: their computations take turns. */
typedef struct mn_session mn_session;

/* MN_E_ARG for options that contradict; MN_E_NOMEM when a static cache does not fit. options: NULL for the defaults. */
MN_API mn_status mn_session_open(mn_session **session, mn_model *model, const mn_cache_options *options);
MN_API void mn_session_close(mn_session **session);

/* Encoder-decoder models: runs the encoder over features f32 [num_mel_bins][n_frames], n_frames = 2 *
 * max_source_positions, and fills the cross caches with keys and values of its output. Allowed once in a session,
 * before its first token; forks share the result. MN_E_ARG: no encoder, another number of bands or frames, already
 * encoded, or the session has tokens; MN_E_NOMEM. On failure the session is unchanged. */
MN_API mn_status mn_session_encode(mn_session *session, const float *features, size_t num_mel_bins, size_t n_frames);

/* Appends n >= 1 tokens. all_logits: NULL, or f32 [n][vocab_size], which receives the logits after each of them. On
 * failure the session is unchanged: MN_E_ARG for an id out of range, MN_E_FULL when the cache has no room, MN_E_NOMEM,
 * MN_E_CANCELLED. */
MN_API mn_status mn_session_step(mn_session *session, const int32_t *ids, size_t n, float *all_logits);

/* Makes the session hold exactly these tokens: keeps the longest common prefix, drops the rest and computes the new
 * tokens (at least the last one, for its logits). *n_reused: tokens not recomputed; may be NULL. */
MN_API mn_status mn_session_sync(mn_session *session, const int32_t *ids, size_t n, size_t *n_reused);

/* Logits after the last token, f32 [vocab_size]; NULL when the session is empty or was truncated. Owned by the session,
 * valid until its next call. */
MN_API const float *mn_session_logits(const mn_session *session);

MN_API int64_t mn_session_length(const mn_session *session);
/* The tokens held, int32 [length]; owned by the session, valid until its next call. */
MN_API const int32_t *mn_session_ids(const mn_session *session);

/* Keeps the first n_keep tokens; negative: drops the last -n_keep, or all if there are fewer. MN_E_ARG when n_keep
 * exceeds the length; MN_E_UNSUPPORTED, with nothing changed, when the cache no longer has keys and values, or the
 * state, that the kept tokens need (mn_session_sync recomputes them). */
MN_API mn_status mn_session_truncate(mn_session *session, int64_t n_keep);

/* Copies a session; pages are shared until one of the two writes to them. */
MN_API mn_status mn_session_fork(mn_session **fork, const mn_session *session);

/* Appends ids[i] to rows[i] for i < n_rows, different sessions of one model, all computed in one pass; each row gets
 * the same bits as if it were computed alone. Errors as in mn_session_step, and MN_E_ARG for a session that appears
 * twice; on failure the tokens of every row are unchanged, but some rows may have lost their logits. */
MN_API mn_status mn_sessions_step(mn_session *const *rows, size_t n_rows, const int32_t *ids);

/* Replaces rows[i] by the previous rows[index[i]], for i < n_index: reorders rows, closes those that index omits and
 * forks those that it repeats, as beam search and batches need. rows has room for max(n_rows, n_index) pointers; those
 * from n_index on are NULL afterwards. On failure nothing has changed. */
MN_API mn_status mn_sessions_select(mn_session **rows, size_t n_rows, const int32_t *index, size_t n_index);

/* Converts the cache to another strategy, for example offloaded, quantized or with a window, and keeps its tokens.
 * MN_E_UNSUPPORTED, with the reason, when that is not possible; then nothing has changed. */
MN_API mn_status mn_session_set_cache(mn_session *session, const mn_cache_options *options);

/* Writes the session, tokens and cache, to one safetensors file: the old file or the new one, never a part. A new file
 * has mode 0600, a replaced file keeps its mode; if path is a symbolic link, its target is replaced. compress: zstd for
 * entries that it makes at least a tenth smaller. MN_E_IO, also when another process has been writing the file for 10
 * s. */
MN_API mn_status mn_session_save(const mn_session *session, const char *path, bool compress);

/* Opens a session from such a file. It continues, bit for bit, as if it had never been interrupted, where the model has
 * the compute_type and cpu that it was computed with. Everything is verified first. The file may preallocate at most
 * the model's context (or expected->max_cache_len) and cannot name an offload folder. expected: the strategy that the
 * file must have and the other options of the session; NULL, or without an implementation: any strategy. MN_E_REFUSED
 * when the file belongs to another model, tokenizer or strategy, or is damaged; MN_E_ARG, MN_E_NOT_FOUND, MN_E_IO,
 * MN_E_NOMEM. The file must not change while the session is open: its pages are used where they are mapped. */
MN_API mn_status mn_session_load(mn_session **session, mn_model *model, const char *path,
                                 const mn_cache_options *expected);

/* Opens a session with these options that begins with the longest prefix of ids found in a saved cache (*.safetensors)
 * in `folder`, or an empty one. Ignored are files of other models and strategies, those computed with another
 * compute_type or cpu, damaged files, files and folders that belong to another user, that others may write or that are
 * symbolic links, a missing folder, and, with options->key_file, files that were not saved with that key. */
MN_API mn_status mn_session_open_cached(mn_session **session, mn_model *model, const mn_cache_options *options,
                                        const char *folder, const int32_t *ids, size_t n);

/* Saved caches as files, without a model: whether a file begins as one does; its description, as one JSON object with
 * "bytes", "version", "members" (model, fingerprints, strategy, tokens, ...) and "entries" (name, type, shape, bytes,
 * stored_bytes, compression, checksum), owned by the caller; whether every byte is as written. key_file: as in
 * mn_cache_options, the keyed checksum is then verified too; NULL: no key. MN_E_REFUSED with the reason;
 * MN_E_NOT_FOUND, MN_E_IO, MN_E_NOMEM. */
MN_API bool mn_cache_file_is(const char *path);
MN_API mn_status mn_cache_file_describe(const char *path, char **text);
MN_API mn_status mn_cache_file_verify(const char *path, const char *key_file);

/* Writes a verified copy, completely or not at all. compression: NULL: the same bytes; "none", "zstd": entries stored
 * so; with a key, the copy gets a keyed checksum of its own. */
MN_API mn_status mn_cache_file_copy(const char *from, const char *to, const char *compression, const char *key_file);

/* Writes caches in Transformers' legacy format as a safetensors file: for every layer N "key.N" (with rotary embedding
 * applied) and "value.N", [n_rows][num_key_value_heads][tokens][head_dim], and "ids", I32 [n_rows][tokens]; with cross
 * attention also "cross_key.N" and "cross_value.N", with the encoder's positions in place of tokens. Shorter rows are
 * padded on the left, with zeros and the pad token (0 without one): "attention_mask", I64 [n_rows][tokens], is 1 for a
 * token, 0 for padding; positions count tokens only. dtype: "f32", "bf16", or "auto": the cache's type, f32 for
 * quantized tokens. MN_E_UNSUPPORTED when tokens have been dropped, and for recurrent states. */
MN_API mn_status mn_sessions_export(mn_session *const *rows, size_t n_rows, const char *path, const char *dtype);

/* Opens a session with one row of such a file (F32, BF16 or F16) in a cache of any strategy that keeps keys and values;
 * it has no logits until its next step. Padding by attention_mask, on the left or the right, is left out; without a
 * mask there is no padding. ids: of the tokens [n_ids], or NULL for those in the file. MN_E_REFUSED for a file that
 * does not fit the model or is damaged. */
MN_API mn_status mn_session_import(mn_session **session, mn_model *model, const mn_cache_options *options,
                                   const char *path, size_t row, const int32_t *ids, size_t n_ids);

/* The same from memory: keys[i] and values[i] are those of layer i, f32 [num_key_value_heads][n_ids][head_dim] as
 * mn_session_read gives them; of cross attention, with the encoder's positions in place of tokens. MN_E_ARG for another
 * number of layers or tokens, MN_E_REFUSED for ids out of range and values that are not finite; MN_E_UNSUPPORTED as
 * above. */
MN_API mn_status mn_session_import_layers(mn_session **session, mn_model *model, const mn_cache_options *options,
                                          const int32_t *ids, size_t n_ids, const float *const *keys,
                                          const float *const *values, size_t n_layers);

/* The number of rows of such a file. MN_E_REFUSED. */
MN_API mn_status mn_session_import_rows(const char *path, size_t *n_rows);

/* Writes f32 values of the given shape (n_dims: 1 to 4) as the only tensor of a safetensors file, completely or not at
 * all. MN_E_ARG, MN_E_IO. */
MN_API mn_status mn_tensor_save(const char *path, const char *name, const int64_t *shape, int n_dims,
                                const float *values);

typedef struct mn_cache_info {
    size_t size;                /* sizeof(mn_cache_info), set by the caller */
    const char *implementation; /* as in mn_cache_options */
    const char *dtype;          /* "f32" or "bf16" */
    int64_t tokens;             /* tokens held: the most of any layer; 0 without a cache */
    int64_t next_position;      /* position of the next token */
    uint64_t bytes, peak_bytes; /* of all pages that this session uses, now and at most; peak_bytes of a
                                 * generation: the most resident bytes of all the model's caches while it ran,
                                 * all rows and beams together, as memory_limit counts them */
    uint64_t bytes_per_token;   /* of a full page in its last form (quantized, if the cache quantizes): what a long text
                                 * takes */
    int64_t max_cache_len;      /* tokens held at most: the limit, or the window of layers that all have one;
                                 * 0: unlimited */
    int32_t num_layers;
    uint64_t offloaded_bytes;            /* the part of bytes that is offloaded */
    const char *original_implementation; /* if on_oom changed the implementation when memory ran out; NULL: unchanged */
    bool has_unbounded_context;          /* every query has a window: a text may exceed the model's context */
    int64_t limit;                       /* max_cache_len as requested: further tokens are refused; 0: no limit */
    int64_t seen;                        /* tokens computed into the cache, including those dropped since */
    uint64_t unique_bytes;               /* resident bytes of pages that no other session holds: what closing this one
                                          * frees. 0 for a generation */
} mn_cache_info;

MN_API mn_status mn_session_cache(const mn_session *session, mn_cache_info *info);

/* The cache of one layer. */
typedef struct mn_layer_info {
    size_t size;      /* sizeof(mn_layer_info), set by the caller */
    const char *kind; /* "self", "cross" (attention of an encoder-decoder model), "state" (recurrent) */
    int32_t num_key_value_heads;
    int32_t k_head_dim, v_head_dim;
    int64_t tokens;                      /* seen */
    int64_t first_held;                  /* earlier tokens have been dropped, except the first first_exact */
    int64_t first_exact;                 /* first tokens that are never dropped or quantized: sinks, or first_exact of
                                          * quantized */
    int64_t quantized_tokens;            /* held tokens that are quantized */
    int64_t window_length;               /* sinks included; 0: none */
    const char *key_codec, *value_codec; /* form of quantized tokens: "f32", "bf16", "mneme", "quanto", "hqq" */
    int32_t key_bits, value_bits;        /* per value, without scales */
} mn_layer_info;

MN_API mn_status mn_session_layer(const mn_session *session, int layer, mn_layer_info *info);

/* A layer's keys (with rotary embedding applied) or values as Transformers has them: tokens [begin, begin + n),
 * dequantized, as f32 [num_key_value_heads][n][head_dim]. MN_E_ARG for tokens that are not held, MN_E_UNSUPPORTED for
 * recurrent states. */
MN_API mn_status mn_session_read(const mn_session *session, int layer, bool keys, int64_t begin, int64_t n,
                                 float *rows);

/* Shape of one layer's keys as Transformers shows it: [1][num_key_value_heads][tokens][head_dim]; tokens are those
 * held; in a preallocated cache its capacity, max_cache_len or the layer's window. */
MN_API mn_status mn_session_kv_shape(const mn_session *session, int layer, int64_t shape[4]);

/* Makes a running step or generation of this session end with MN_E_CANCELLED, or the next one if none is running; may
 * be called from any thread or a signal handler. */
MN_API void mn_session_cancel(mn_session *session);

/* ---- generation ---- */

typedef struct mn_generation_config mn_generation_config;

/* Transformers' GenerationConfig. A new one has the values of the model's generation_config.json (model NULL: the
 * defaults). A value there that its field cannot take is MN_E_FORMAT when a generation or mn_generation_config_check
 * finds that it has an effect; setting the field replaces it. */
MN_API mn_status mn_generation_config_open(mn_generation_config **config, const mn_model *model);
MN_API void mn_generation_config_close(mn_generation_config **config);

/* Sets one field by Transformers' name; value is JSON text ("0.7", "true", "[1,2]", "\"text\""). MN_E_ARG names the
 * field, the value and the allowed values; for an unknown name, the nearest known one. */
MN_API mn_status mn_generation_config_set(mn_generation_config *config, const char *name, const char *value);

/* Sets every known field of a JSON object in the format of generation_config.json. An object that changes the cache
 * implementation resets cache_config and use_cache unless it sets them too. */
MN_API mn_status mn_generation_config_load(mn_generation_config *config, const char *text, size_t n_text);

/* The fields, for help texts and tools. */
typedef struct mn_generation_field {
    size_t size;
    const char *name;     /* "max_new_tokens" */
    const char *alias;    /* llama.cpp's name of the flag, "n-predict"; or NULL */
    const char *kind;     /* "integer", "number", "boolean", "choice", "string", "grammar", "schema", "integers",
                             "strings", "lists of integers", "biases", "object", "pair", "layers" */
    const char *allowed;  /* "1 to 1000000" */
    const char *standard; /* default, as text */
    const char *help;     /* one line */
    bool only_samples;    /* has an effect in sampling alone; top_k in contrastive search, too */
} mn_generation_field;

/* The field at `index`, counted from 0; NULL after the last one. */
MN_API const mn_generation_field *mn_generation_field_at(int index);
/* The value as JSON text (owned by the caller), NULL for an unknown name. */
MN_API char *mn_generation_config_get(const mn_generation_config *config, const char *name);

/* The cache of a generation with this configuration: options without an implementation get the configuration's
 * cache_implementation and cache_config ("none" if use_cache is false); options that are set stay. The strings belong
 * to the configuration. */
MN_API mn_status mn_generation_config_cache(const mn_generation_config *config, mn_cache_options *options);

typedef struct mn_token_event {
    size_t size;
    int row;          /* of the batch */
    int sequence;     /* among those returned for the row */
    int32_t id;       /* -1 in the last event of a sequence, with finish_reason and the text that was held back */
    const char *text; /* new text: whole UTF-8 sequences, never part of a stop string; may be empty */
    size_t n_text;
    const int32_t *logprob_ids; /* [1 + top_logprobs] as in mn_sequence: this token, then the best; NULL unless
                                 * requested, or id -1 */
    const float *logprobs;
    const char *finish_reason; /* as in mn_sequence, in the last event of a sequence; else NULL */
} mn_token_event;

/* Return false to cancel; the last event of each sequence is still sent, but not when generation fails. */
typedef bool (*mn_token_callback)(void *user, const mn_token_event *event);

typedef struct mn_sequence {
    size_t size;
    int row;            /* input row */
    int index;          /* in its row: 0 to num_return_sequences - 1; with beams the best one first */
    const int32_t *ids; /* new tokens, including the end token if there was one */
    size_t n_ids;
    const char *text; /* NULL without a tokenizer */
    size_t n_text;
    const char *finish_reason; /* static text: "eos", "length", "stop_string", "time", "callback", "cancelled" */
    /* [n_ids][1 + top_logprobs]: tokens, natural log-probabilities, the chosen one first; NULL unless requested. */
    const int32_t *logprob_ids;
    const float *logprobs;
    const float *scores; /* [n_ids][vocab_size] processed scores; NULL unless requested */
    const float *logits; /* [n_ids][vocab_size] raw logits; NULL unless requested */
    size_t prompt_tokens, cached_tokens;
    bool has_score;                      /* beams only, as the following */
    double score;                        /* sum of log-probabilities / length^length_penalty */
    const int32_t *beam_indices;         /* [n_ids] index in its row of the beam that each token was added to */
    const float *transition_scores;      /* [n_ids] log-probability with which each token was chosen */
    size_t draft_tokens, draft_accepted; /* assisted decoding: drafted tokens, and those accepted */
    /* Of an engine's request with enable_prefix_caching, why no more than cached_tokens of the prompt was found; else
     * NULL. Static text: "end_of_prompt" (all but the last token, whose logits are needed), "different_token" (texts
     * that are kept go on with other tokens), "evicted" (a text was dropped for lack of memory, one of the last 16),
     * "salt" (a text without a salt has more), "strategy" (a text with another cache has more, or this cache shares no
     * tokens, or none at this place), "not_in_memory" (the text is being computed, or in a file), "nothing_cached". */
    const char *match_ended;
    int32_t match_other; /* "different_token": a token that a kept text has there; else -1 */
    int stop_string;     /* with finish_reason "stop_string": index in the configuration's stop_strings; else -1 */
    size_t file_tokens;  /* of cached_tokens, those that were read for this request from a file of the engine's
                          * cache_dir; the others were in memory */
} mn_sequence;

typedef struct mn_generation {
    size_t size;
    size_t n_sequences;                  /* fewer than requested if beam search finds fewer */
    const mn_sequence *const *sequences; /* in the order of the input rows */
    uint64_t seed;                       /* the one used */
    double prompt_ms, predicted_ms;
    const mn_cache_info *cache; /* sums over the rows; implementation "several" if they differ */
    /* Beams with keep_scores, keep_logits: of every step and running beam, f32 [n_steps][n_beams][vocab_size], row by
     * row, NAN for rows that have ended; else NULL. */
    const float *beam_scores, *beam_logits;
    size_t n_steps, n_beams;
    size_t n_preemptions; /* of an engine's request: how often it was preempted and recomputed */
    double queue_ms;      /* of an engine's request: from mn_engine_add until its computation began */
} mn_generation;

/* Changes scores [vocab_size] of the token after ids [n] (including the prompt); -infinity removes a token. false:
 * failed. */
typedef bool (*mn_logits_processor)(void *user, int row, const int32_t *ids, size_t n, float *scores,
                                    size_t vocab_size);

/* The ids that may follow ids [n]; *allowed stays valid until the next call. false: failed. */
typedef bool (*mn_prefix_allowed)(void *user, int row, const int32_t *ids, size_t n, const int32_t **allowed,
                                  size_t *n_allowed);

/* Whether ids [n] (including the prompt) end here. */
typedef bool (*mn_stopping)(void *user, int row, const int32_t *ids, size_t n);

typedef struct mn_generate_options {
    size_t size;      /* sizeof(mn_generate_options) */
    int top_logprobs; /* -1: none; K: the chosen token's and the K best */
    bool keep_scores, keep_logits;
    mn_token_callback on_token; /* NULL: none */
    void *user;
    /* While the prompts are computed: tokens computed so far and their total; NULL: never. */
    void (*on_prefill)(void *user, size_t done, size_t total);
    mn_logits_processor process; /* after the built-in processors and before the warpers; NULL: none, as
                                  * the next two */
    mn_prefix_allowed prefix_allowed;
    mn_stopping stop;               /* the reason is then "callback" */
    mn_model *assistant;            /* draft model of assisted decoding; NULL: none */
    const int32_t *negative_prompt; /* guidance_scale: the prompt of the unconditional context; NULL: the
                                     * prompt's last token */
    size_t n_negative_prompt;
    bool keep_sessions;        /* mn_generation_take_session returns the session of each sequence */
    const mn_session *session; /* for mn_generation_config_check only: the session that will generate; NULL:
                                * unknown */
    /* Called before every pass, those of the prompt too; true ends the generation as "cancelled", a batch with all its
     * rows. In an engine from the request's first pass on. NULL: none. */
    bool (*abort_callback)(void *user);
} mn_generate_options;

MN_API void mn_generate_options_init(mn_generate_options *options, size_t size);

/* Checks that settings are consistent: MN_E_ARG with a sentence when two contradict each other, which generation would
 * refuse too. *warnings: one line, with the reason, for each setting of the program that has no effect, and one that
 * names all such fields of a checkpoint's file, but for those that a setting of the program overrides; "" when there is
 * none; owned by the caller. options may be NULL; with a session, a line warns if its cache is not the one that the
 * configuration requests. */
MN_API mn_status mn_generation_config_check(const mn_generation_config *config, const mn_generate_options *options,
                                            char **warnings);

/* Makes `session` hold the prompt (mn_session_sync), then generates. A session opened without a cache implementation
 * takes the one that the configuration requests; its tokens are converted or recomputed. Afterwards the session holds
 * the prompt and the new tokens except the last (which was never computed). A cancelled run is MN_OK with finish_reason
 * "cancelled" and the tokens generated so far. */
MN_API mn_status mn_generate(mn_session *session, const int32_t *prompt, size_t n_prompt,
                             const mn_generation_config *config, const mn_generate_options *options,
                             mn_generation **generation);

typedef struct mn_batch_row {
    size_t size; /* sizeof(mn_batch_row), the same in all rows */
    const int32_t *prompt;
    size_t n_prompt;
    const mn_generation_config *config; /* NULL: the one for all rows */
    const mn_session *prefix;           /* the row begins as a fork of this session, has its strategy, and
                                           reuses its tokens up to the first that differs from the prompt;
                                           NULL: none */
} mn_batch_row;

/* Generates rows of different lengths together, each exactly as it would be alone. cache: of every row; without an
 * implementation, each row has the cache that its own configuration requests. */
MN_API mn_status mn_generate_batch(mn_model *model, const mn_cache_options *cache, const mn_batch_row *rows,
                                   size_t n_rows, const mn_generation_config *config,
                                   const mn_generate_options *options, mn_generation **generation);

/* The same step by step, for loops of one's own, such as an iterator over tokens: open is mn_generate or
 * mn_generate_batch up to the first step, and fails as they do; then *generator is NULL. What it was given (session,
 * prompts, configurations, what options name) must remain valid until it is closed, rows and options themselves are
 * copied; until then no other call uses the session, but mn_session_cancel. Used by one thread at a time. Results are
 * those of the one call, bit for bit; predicted_ms includes the time between steps. */
typedef struct mn_generator mn_generator;
MN_API mn_status mn_generator_open(mn_generator **generator, mn_session *session, const int32_t *prompt,
                                   size_t n_prompt, const mn_generation_config *config,
                                   const mn_generate_options *options);
MN_API mn_status mn_generator_open_batch(mn_generator **generator, mn_model *model, const mn_cache_options *cache,
                                         const mn_batch_row *rows, size_t n_rows, const mn_generation_config *config,
                                         const mn_generate_options *options);

/* One step: a pass of the prompts, or the next tokens of every row; callbacks are called here. *is_done: nothing is
 * left to do. After a failure the generator can only be closed. MN_E_ARG in a callback of it, and behind
 * mn_generator_finish.
 */
MN_API mn_status mn_generator_step(mn_generator *generator, bool *is_done);

/* The result, owned by the caller; rows that have not ended end as "cancelled", with the tokens generated so far. It
 * can be taken once. */
MN_API mn_status mn_generator_finish(mn_generator *generator, mn_generation **generation);

/* At any time but in a callback of it; NULL inside is allowed. */
MN_API void mn_generator_close(mn_generator **generator);

/* With keep_sessions: transfers the session of sequence i (of n_sequences) to the caller, who closes it. It holds the
 * prompt and the sequence's ids except the last, which was never computed. Sessions that are not taken are closed with
 * the generation; until then they keep their pages. MN_E_ARG when there is none: keep_sessions was not set, it has been
 * taken, or it is sequence 0 of mn_generate, whose session the caller already owns. */
MN_API mn_status mn_generation_take_session(mn_generation *generation, size_t i, mn_session **session);
MN_API void mn_generation_close(mn_generation **generation);

/* ---- sampler ---- */

/* Chooses tokens as mn_generate does in greedy search and sampling, for programs with their own loops: logits
 * processors, and for sampling warpers and a random draw. Used by one thread at a time. */
typedef struct mn_sampler mn_sampler;

/* The configuration is copied, and what is needed of the model too; prompt: the tokens before the first chosen one,
 * which some processors read. MN_E_ARG for settings that contradict each other or request another search (beams, a
 * draft model, contrastive search, guidance, DoLa). */
MN_API mn_status mn_sampler_open(mn_sampler **sampler, const mn_model *model, const mn_generation_config *config,
                                 const int32_t *prompt, size_t n_prompt);
MN_API void mn_sampler_close(mn_sampler **sampler);

/* *id: the next token after the prompt and the accepted tokens, chosen from logits [vocab_size]. Repeating the call
 * returns the same token. scores: NULL, or f32 [vocab_size], which receives the processed scores. MN_E_ARG when no
 * token is left. */
MN_API mn_status mn_sampler_choose(mn_sampler *sampler, const float *logits, float *scores, int32_t *id);

/* Adds a token to the text: the one that was chosen, or another. MN_E_ARG for an id out of range, MN_E_NOMEM. */
MN_API mn_status mn_sampler_accept(mn_sampler *sampler, int32_t id);

/* The seed in use: the configuration's, or a random one. */
MN_API uint64_t mn_sampler_seed(const mn_sampler *sampler);

/* ---- embeddings ---- */

typedef struct mn_embed_options {
    size_t size;         /* sizeof(mn_embed_options) */
    const char *pooling; /* from the rows of the tokens to what is returned: "none": all rows; "mean": their mean, the
                          * default; "cls": the row of the first token; "last": that of the last token */
    bool normalize;      /* divide each row that is returned by its L2 norm (a row of zeros stays); default false */
} mn_embed_options;

MN_API void mn_embed_options_init(mn_embed_options *options, size_t size);

/* The embedding of a text of n_ids >= 1 tokens: the hidden states behind the last norm (Transformers'
 * last_hidden_state), pooled. out, owned by the caller: f32 [n_ids][hidden_size] for "none", else [hidden_size]; its
 * contents are undefined after a failure. options: NULL for the defaults. The text is computed from its beginning, with
 * a dynamic cache that is freed behind it and without logits; special tokens are those among the ids. Several threads
 * may embed texts with one model; their computations take turns. MN_E_ARG for no ids, an id out of range, more ids than
 * learned positions or another pooling; MN_E_UNSUPPORTED for encoder-decoder models; MN_E_NOMEM. */
MN_API mn_status mn_model_embed(mn_model *model, const int32_t *ids, size_t n_ids, const mn_embed_options *options,
                                float *out);

/* ---- machine ---- */

/* CPU level, the level of each kernel, cores, memory: one JSON object owned by the caller. cpu: as in
 * mn_model_options. */
MN_API mn_status mn_machine_describe(const char *cpu, char **text);

#ifdef __cplusplus
}
#endif

/* The part of mneme.h that is about many requests: an engine computes them together as they come and go, and caches
 * what their prompts have in common. Programs include <mneme.h>, whose rules hold here.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_ENGINE_H
#define MNEME_ENGINE_H

#ifndef MNEME_H
#error "include <mneme.h>"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- many requests ---- */

/* Computes requests together (continuous batching): each may be added at any time, leaves when it ends, and gets
 * exactly the result that it would get alone. One thread steps an engine (mn_engine_step, mn_engine_wait); add, cancel
 * and take may be called from any thread, at any time between open and close, also in a callback of a request: what is
 * added there joins, and what is cancelled there ends, at the next step; a request can be taken when the step in which
 * it ended has returned. mn_engine_step, mn_engine_wait and the calls about kept texts are MN_E_ARG in a callback of
 * the same engine; mn_engine_prefix_room and mn_engine_close do nothing there, and mn_last_error tells why. */
typedef struct mn_engine mn_engine;

typedef struct mn_engine_options {
    size_t size;                   /* sizeof(mn_engine_options) */
    const mn_cache_options *cache; /* of requests that set none; NULL: the defaults */
    uint64_t memory_limit;         /* bytes that all caches of the model may hold while the engine is open; 0:
                                    * the model's limit. A request begins when its cache and those of its draft model
                                    * fit */
    size_t max_num_seqs;           /* sequences computed together at most; 0: no limit */
    bool enable_prefix_caching;    /* the prefix cache: what requests computed is kept, as far as memory_limit
                                    * allows, for requests whose prompts begin with the same tokens */
    double max_slowdown;           /* while prompts are computed, steps take at most about so many times as long as
                                    * without, in the mean: 1.5 to 1000. More where more prompts are computed than
                                    * requests generate, or where a prompt delays these by less than 64 tokens. 0: no limit,
                                    * prompts are computed fastest */
    const char *cache_dir;         /* a folder, made when it is missing: cached prefixes are written there, too, and are
                                    * found again by the next engine. NULL: none */
    size_t cache_dir_limit;        /* bytes of these files; above it the least recently used are deleted; 0: no limit */
    double prefix_ttl_ms;          /* prefixes that were unused for this long are dropped from memory; 0: no limit */
    size_t owner_quota;            /* bytes of the cached prefixes of one owner, those that were read from files for it
                                    * included; what it adds beyond that replaces its own prefixes, not those of others.
                                    * 0: no limit */
    size_t prefix_limit; /* bytes of the cached prefixes of all owners; above it the least valuable ones are dropped.
                          * 0: no limit but memory_limit */
} mn_engine_options;

MN_API void mn_engine_options_init(mn_engine_options *options, size_t size);

/* MN_E_ARG as in mn_session_open, MN_E_NOMEM. options: NULL for the defaults. */
MN_API mn_status mn_engine_open(mn_engine **engine, mn_model *model, const mn_engine_options *options);
/* Drops the requests that were not taken. */
MN_API void mn_engine_close(mn_engine **engine);

typedef struct mn_request {
    size_t size; /* sizeof(mn_request) */
    const int32_t *prompt;
    size_t n_prompt;
    const mn_generation_config *config; /* NULL: the model's */
    const mn_generate_options *options; /* NULL: the defaults. Its callbacks are called by mn_engine_step,
                                           with the id as `row`; its `user` must remain valid until the
                                           request is taken */
    const mn_cache_options *cache;      /* NULL: the engine's */
    const mn_session *prefix;           /* as in mn_batch_row; its strategy overrides `cache` */
    int priority;                       /* requests of higher priority start first and are preempted last */
    const char *cache_salt;             /* with enable_prefix_caching: requests share what they computed only with
                                           those of the same salt; NULL: "" */
    const char *owner;                  /* whose request it is: of waiting ones with the same priority, that of the
                                           owner for whom fewer tokens were computed starts first; NULL: "" */
} mn_request;

MN_API void mn_request_init(mn_request *options, size_t size);

/* Adds a request, which joins at a following step; *id counts from 0. Requests that mn_generate would refuse are
 * refused here, as are those that need more memory than the limit (MN_E_NOMEM); the engine is then unchanged.
 * Everything that the caller passes is copied, except what must remain valid according to mn_request; prefix is forked,
 * so no other thread may use it during this call. */
MN_API mn_status mn_engine_add(mn_engine *engine, const mn_request *request, int *id);

/* With enable_prefix_caching, a request starts from the longest beginning of its prompt that a request before it has
 * computed, or one beside it, for which it waits; the results stay the same, bit for bit. Not shared are caches with
 * backend quanto or hqq, those that preallocate, those that on_oom changed, requests with a prefix of their own, with
 * penalty_alpha, and those of encoder-decoder models. What is kept is dropped when running requests need the memory:
 * what was used long ago and is cheap to compute again for its bytes goes first.
 *
 * One step. Waiting requests start, by priority, then by owner, then in order of arrival, while max_num_seqs and the
 * memory limit allow, given the planned bytes of their caches. Every request whose prompt is computed chooses its next
 * tokens, and the next tokens of every request are computed in one pass. A failure ends only the requests that it
 * concerns; mn_engine_take returns its status.
 *
 * When memory runs out in a step, the on_oom policy of the caches is tried first. Then a request is preempted: the
 * newest of the lowest priority frees its pages and keeps its tokens, waits, later recomputes them and continues with
 * the same result. A request is not preempted when recomputing would not give the same bits (quantized with backend
 * quanto or hqq, or a cache that on_oom changed) or when that frees nothing (static); such a request starts only when
 * there is room for its whole length. A request that runs alone ends with MN_E_NOMEM.
 *
 * *n_running: requests that have not ended; may be NULL. */
MN_API mn_status mn_engine_step(mn_engine *engine, size_t *n_running);

/* Returns when there is work for mn_engine_step, or after timeout_ms (at most 10^9) milliseconds. */
MN_API mn_status mn_engine_wait(mn_engine *engine, double timeout_ms, bool *has_work);

/* Makes mn_engine_wait return at once: the call that waits, or the next one. From any thread. */
MN_API void mn_engine_wake(mn_engine *engine);

typedef struct mn_engine_info {
    size_t size; /* sizeof(mn_engine_info), set by the caller */
    size_t num_requests_running, num_requests_waiting;
    uint64_t n_preemptions; /* since the engine was opened */
    uint64_t cache_bytes;   /* resident bytes of all caches of the model, as memory_limit counts them */
    uint64_t memory_limit;  /* the limit in force; 0: none */
    uint64_t kept_bytes;    /* the prefix cache: its pages, each once, those that running requests share included */
    size_t n_kept;          /* cached prefixes */
    size_t n_files;         /* of cache_dir, and their bytes */
    uint64_t file_bytes;
    uint64_t n_files_read, n_files_written, n_files_failed; /* since the engine was opened */
    uint64_t n_resident_pages, n_offloaded_pages; /* of all caches of the model, shared ones once; pages of a saved
                                                   * cache that is mapped are in neither */
    uint64_t offloaded_bytes;                     /* of the offloaded ones */
} mn_engine_info;

/* Between steps, on the thread that steps. MN_E_NOMEM. */
MN_API mn_status mn_engine_get_info(mn_engine *engine, mn_engine_info *info);

/* A node of the tree of prefixes that are cached or being computed. Its prefix is that of its parent and its own ids.
 */
typedef struct mn_prefix_info {
    size_t size;
    size_t index;       /* in this visit, counted from 0; parents come first */
    ptrdiff_t parent;   /* its index; -1: none */
    const char *salt;   /* of its requests, "": none */
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
    size_t n_tokens; /* of the whole prefix */
    bool is_kept, is_running, has_file;
    uint64_t bytes;        /* of the cached prefix, those that it shares with others included; 0: not kept */
    uint64_t n_hits;       /* how many requests began with the cached prefix or a part of it */
    double unused_ms;      /* since the last one, or since it was kept; 0: not kept */
    uint64_t id;           /* of its prefix, the same while the engine is open; counts from 1 */
    uint64_t parent_id;    /* 0: none */
    uint64_t unique_bytes; /* of `bytes`, those that nothing else holds: dropping the prefix frees them */
    bool is_pinned;
    double ttl_ms; /* it is dropped when it was not used for so long; 0: never */
} mn_prefix_info;

/* Visits the tree until visit returns false; what it gets is valid during the call. Between steps, on the thread that
 * steps. What a callback of a request cannot call, the visitor cannot either. */
MN_API mn_status mn_engine_prefixes(mn_engine *engine, bool (*visit)(void *user, const mn_prefix_info *info),
                                    void *user);

/* The id of a prefix that is cached with the engine's own cache and this salt (NULL: ""), as one of its own from now on
 * if it is the beginning of a longer one. MN_E_NOT_FOUND when it is not kept whole, MN_E_ARG without
 * enable_prefix_caching, MN_E_NOMEM. This and the following calls: between steps, on the thread that steps. */
MN_API mn_status mn_engine_prefix_of(mn_engine *engine, const int32_t *ids, size_t n, const char *salt, uint64_t *id);

/* A session with a cached prefix and its cache, owned by the caller and of no engine: to be saved (mn_session_save) on
 * any thread, or gone on with, where the engine's cache offloads on the thread that steps. MN_E_NOT_FOUND for what is
 * not kept in memory, MN_E_NOMEM. */
MN_API mn_status mn_engine_prefix_session(mn_engine *engine, uint64_t id, mn_session **session);

/* Keeps the tokens that a session of the model holds in its cache, as if a request of this owner and salt (NULL: "")
 * had computed them; *id: of the prefix. The session stays the caller's. MN_E_ARG for one without tokens; MN_E_REFUSED
 * for a cache that is not shared (mn_engine_add); MN_E_FULL when it alone exceeds owner_quota or prefix_limit;
 * MN_E_NOMEM. */
MN_API mn_status mn_engine_prefix_add(mn_engine *engine, const mn_session *session, const char *salt, const char *owner,
                                      uint64_t *id);

/* Drops cached prefixes, in the order of mn_engine_step, until caches can take so many bytes more, or nothing is left
 * to drop: before a session is loaded on another thread. */
MN_API void mn_engine_prefix_room(mn_engine *engine, size_t n_bytes);

/* pin: the prefix is not dropped when memory is needed. Pinned prefixes have at most half of the memory limit and of
 * prefix_limit, and those of one owner half of owner_quota (MN_E_FULL).
 * ttl_ms: it is dropped when no request began with it for so long; 0: the engine's prefix_ttl_ms, which pinned prefixes
 * do not have; at most 10^12. Its file stays. MN_E_NOT_FOUND for what is not kept in memory; on failure nothing has
 * changed. MN_E_ARG, MN_E_NOMEM. */
MN_API mn_status mn_engine_prefix_hold(mn_engine *engine, uint64_t id, bool pin, double ttl_ms);

/* Drops a prefix and those that begin with it, their files too. MN_E_NOT_FOUND; MN_E_REFUSED, with nothing dropped,
 * while one of them is being computed. */
MN_API mn_status mn_engine_prefix_drop(mn_engine *engine, uint64_t id);

typedef struct mn_request_info {
    size_t size;       /* sizeof(mn_request_info), set by the caller */
    const char *state; /* static text: "queued", "prompt" (being computed), "decode" */
    size_t prompt_tokens, cached_tokens;
    size_t prompt_done;         /* tokens of the prompt that are computed, cached ones included */
    size_t generated_tokens;    /* of all its sequences */
    const char *implementation; /* of its cache; valid until the next step */
    size_t n_preemptions;
} mn_request_info;

/* A request that has not ended. Between steps, on the thread that steps. MN_E_ARG when there is none with this id. */
MN_API mn_status mn_engine_request(mn_engine *engine, int id, mn_request_info *info);

/* Ends a request at the beginning of the next step: its sequences have the tokens generated so far and finish_reason
 * "cancelled". MN_E_ARG when it has already ended or does not exist. */
MN_API mn_status mn_engine_cancel(mn_engine *engine, int id);

/* Takes the first request that ended and was not taken: *id and its generation (owned by the caller), in which `row` is
 * the id and times are counted from mn_engine_add. *id is -1 when there is none. Returns the status of the request,
 * with its message in mn_last_error; *generation is NULL when it failed. */
MN_API mn_status mn_engine_take(mn_engine *engine, int *id, mn_generation **generation);

#ifdef __cplusplus
}
#endif

#endif
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

#endif

