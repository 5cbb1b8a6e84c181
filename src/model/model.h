/* An open model: configuration, packed weights, tokenizer, memory plan, and the forward pass over batches of sequences.
 *
 * Immutable after opening but for the workspace of the pass in progress, which a lock protects: one uncontended lock
 * per step, none inside it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_MODEL_H
#define MN_MODEL_MODEL_H

#include "base/hash.h"
#include <pthread.h>

#include "model/network.h"

/* Files, threads, memory, and the lock of passes. */
typedef struct model_core {
    network net;
    char *what;          /* path, for messages */
    tensor_set *tensors; /* of a folder or the embedded model; NULL for GGUF */
    gguf *file;          /* of a GGUF file, else NULL */
    bool reference;      /* float32 computation: keys and values default to float32 as well */
    compute compute;
    struct encoder *encoder; /* of encoder-decoder models, else NULL */
    pthread_mutex_t lock;    /* of workspaces, thread pool and calibrations; taken in src/model alone */
    kv_pool *pool;
    char *calibration_path;       /* of the calibration of quantized keys; owned; NULL: none */
    kv_calibration *calibration;  /* of that file; NULL: not loaded */
    kv_calibration *calibrations; /* all loaded ones, which sessions may still use; owned */
    size_t available_bytes;       /* memory limit, or what was free at opening */
    const char *compute_name;     /* "f32", "bf16", "int8", "int8_a8" */
    size_t n_left_out;            /* tensors of parts that are not text */
} model_core;

/* path: a Hugging Face folder, a .gguf file, or "embedded"; as mn_model_open. */
mn_status model_open(model_core **out, const char *path, const mn_model_options *options);
void model_close(model_core **model);

/* Memory in which tokens of a cache are quantized, for each thread. */
mn_status model_grow_quantize(model_core *model, const kv_cache *cache);

/* Bytes this process may still take, by the system and its control group. */
size_t memory_available(void);

/* The set of the checkpoint's tensors, whatever its container. */
const tensor_set *model_tensors(const model_core *model);

/* 32 hexadecimal digits: weights (sampled, tensor/fingerprint.h) and the configuration that keys and values depend
 * on. */
mn_status model_fingerprint(char out[FINGERPRINT_HEX], const model_core *model);

/* Computes a batch: reserves, runs every layer, commits. No text may exceed learned positions; an encoder-decoder's
 * caches must have been encoded (MN_E_ARG). On failure every cache is as before: MN_E_FULL, MN_E_NOMEM. */
mn_status model_forward(model_core *model, const forward_row *rows, int n_rows);

/* Runs work while no pass and no conversion changes a page: another session's pass may offload pages that are shared.
 * Returns its status. */
mn_status model_between_passes(model_core *model, mn_status (*work)(void *), void *arg);

/* kv_convert_begin and kv_convert_end, between passes. */
mn_status model_convert_begin(model_core *model, kv_cache **cache, const kv_spec *specs, int n_entries,
                              const kv_options *options, const kv_cache *beside);
void model_convert_end(model_core *model, kv_cache *const *caches, int n);

/* Sets the calibration file of quantized keys for sessions opened from now on; NULL: none. MN_E_NOT_FOUND. */
mn_status model_set_calibration(model_core *model, const char *path);
/* The calibration of that file, which the first call loads; it lives as long as the model. NULL: no file is named.
 * MN_E_REFUSED for a damaged one and another model's. */
mn_status model_calibration(const kv_calibration **out, model_core *model);

/* Runs tasks 0 .. n_tasks - 1, which work on n_values altogether, on the model's threads; on the calling thread alone
 * where those are in use or the values are few. Tasks must not compute with the model. */
void model_run_tasks(model_core *model, int n_tasks, int64_t n_values, thread_task run, void *arg);

/* Bytes of packed weights, an encoder's included. */
size_t model_packed_bytes(const model_core *model);

/* The cache entries of this model with its own windows, exact in `codec`. *out is owned by the caller; n is
 * num_hidden_layers, and with an encoder as many again, the cross entries. */
mn_status model_cache_specs(kv_spec **out, int *n, const model_core *model, kv_codec codec);

#endif
