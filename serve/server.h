/* What the parts of the server share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_SERVER_H
#define MNEME_SERVE_SERVER_H

#include "base/json.h"
#include "error.h"
#include "file_worker.h"
#include "job.h"
#include "http/keys.h"
#include "http/proxy.h"
#include "http/wire.h"
#include "scheduler.h"
#include "serve.h"
#include "speech.h"

struct MHD_Daemon;

/* What is refused, or cut off. */
enum {
    MOST_BODY = 8 << 20,
    MOST_FORM = 25 << 20, /* a body with a recording */
    MAX_CONNECTIONS = 1024,
    HEAD_MS = 10000,
    BODY_MS = 30000,
    IDLE_MS = 60000,  /* between an answer and the next request of a connection */
    STALL_MS = 60000, /* for a client that reads nothing of its answer */
};

typedef struct server {
    serve_options options;
    mn_model *model;
    mn_model_info info;
    const mn_tokenizer *tokenizer;
    const char *name;             /* of the model, as clients see it */
    mn_generation_config *config; /* the checkpoint's */
    mn_cache_options cache;       /* of requests that name none; its texts are the options' or the configuration's */
    scheduler *scheduler;
    bool has_text;          /* the model is no speech model */
    mn_model *speech_model; /* NULL: none */
    const char *speech_name;
    speech *speech;          /* NULL: no speech model */
    wire_identity *identity; /* NULL: no TLS */
    file_worker *file_worker;
    proxy *proxy;
    keys *keys; /* NULL: none */
    struct MHD_Daemon *http;
    struct conversations *conversations;
    metrics metrics;
    atomic_bool drains; /* nothing is computed for new requests */
    int64_t started;    /* seconds since 1970 */
    int statm;          /* /proc/self/statm, which the sandbox does not open; -1: it is not there */
} server;

/* A job for the request of a client, or a refusal. */
typedef mn_status make_job(job **out, server *s, const json *body, bool *streams, refusal *why);
make_job chat_job, completion_job, generate_job, responses_job, messages_job;
make_job metrics_job, requests_job, cancel_job;
make_job transcription_job, translation_job;
make_job caches_job, cache_job, create_cache_job, hold_cache_job, drop_cache_job;
make_job saved_job, save_cache_job, load_cache_job, delete_saved_job;

/* What is answered at once: written as JSON. body: NULL for GET. */
typedef mn_status answer(bytes *out, server *s, const json *body, refusal *why);
answer models_answer, page_answer, health_answer, ready_answer, props_answer, openapi_answer;
answer tokenize_answer, detokenize_answer, template_answer, count_tokens_answer;

/* The body of an error, where it is not OpenAI's. */
write_error messages_error;

/* Ends a request of this owner (NULL: of anybody), whatever computes it; false: it is not there. */
bool server_cancel(server *s, const char *id, const char *owner);

mn_status http_open(server *s);
void http_close(server *s);

#endif
