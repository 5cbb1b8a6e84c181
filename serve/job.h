/* A request as the thread that computes sees it. Mostly a generation: what is computed, and the functions of its
 * dialect that write the answer. Or a query about the engine and its cache, which is answered between two steps.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_JOB_H
#define MNEME_SERVE_JOB_H

#include "base/json.h"
#include "base/reasoning.h"
#include "error.h"
#include "request/logprobs.h"
#include "metrics.h"
#include "mneme.h"
#include "reply.h"
#include "request/fields.h"
#include "request/tools.h"

typedef struct job job;
struct server;

/* How a dialect writes what is computed. Streams: begin, a piece for each event, then end or fail; else whole or
 * error. */
typedef struct dialect {
    void (*begin)(bytes *out, job *j);
    void (*piece)(bytes *out, job *j, const mn_token_event *event);
    void (*end)(bytes *out, job *j, const mn_generation *generation);
    void (*whole)(bytes *out, job *j, const mn_generation *generation);
    /* In place of whole, for answers that can fail: on the thread that computes, between two steps. */
    mn_status (*finish)(bytes *out, job *j, refusal *why);
    unsigned form; /* of the bodies, BODY_... of fields.h */
    write_error *error;
    void (*fail)(bytes *out, job *j, int status, const char *code, const char *param, const char *message);
    mn_status (*adopt)(job *j, refusal *why); /* after job->owner is set; NULL: nothing to do */
    void (*close)(job *j);                    /* frees the state; NULL: there is none */
} dialect;

/* A stream's last event: {"error": ...} as data. */
void openai_fail(bytes *out, job *j, int status, const char *code, const char *param, const char *message);

/* Writes the answer to a query, of a stream its last event. On failure *out is dropped and the refusal, with the
 * thread's message, answered. */
typedef mn_status job_function(bytes *out, struct server *s, job *j, refusal *why);

enum { MOST_TIMED = 8, MOST_PARAMETER = 64 };

/* Several prompts of one request: their jobs end one by one and are answered together, in order. */
typedef struct batch {
    atomic_int n_open;    /* jobs that have neither ended nor been dropped; the last one closes the batch */
    size_t n, n_ended;    /* jobs; those of them that have ended */
    bool has_failed;      /* and the client was answered */
    job **jobs;           /* [n] that have ended; NULL: not yet */
    mn_generation **done; /* [n] their generations */
} batch;

struct job {
    job_function *query; /* NULL: a generation, or file work alone */
    /* What follows it on the file worker's thread, and may set the next query; NULL: nothing. */
    job_function *file_work;
    bool is_recording; /* a query that is answered by transcribing */
    const dialect *dialect;
    void *state; /* of the dialect; NULL: none */
    reply *reply;
    const char *owner;              /* the client, as keys_find names it; NULL: there are no keys */
    char parameter[MOST_PARAMETER]; /* the value of {id} in the path */
    metrics *metrics;               /* in which it is counted */
    double arrived;                 /* clock_ms() */
    double last_token[MOST_TIMED];  /* of its first sequences; 0: none yet */
    bool has_token;
    request_settings request; /* what the fields of its body set */
    mn_generate_options options;
    int32_t *ids; /* [n_ids] the prompt */
    size_t n_ids;
    int first; /* index of the first of its answers in the request */
    const mn_tokenizer *tokenizer;
    text_place places[MOST_TIMED]; /* of answers that are streamed */
    mn_cache_options cache;        /* if the request has one; its texts belong to the configuration, or to the server */
    tools *tools;                  /* NULL: none */
    reasoning reasoning;           /* how it is told apart from answers */
    int64_t n_reasoning_tokens;    /* before the first answer's text, with the markers; also where there are none */
    reasoning_stream streamed[MOST_TIMED]; /* of answers that are streamed */
    batch *batch;                          /* NULL: a request with one prompt */
    size_t place;                          /* its index in the batch */
    job *sibling;                          /* the next prompt's, until both are added */
    /* Names the field of the body that caused a failure; NULL: unknown. */
    void (*blame)(unsigned form, mn_status status, refusal *why);
    struct server *server; /* of dialects that finish; else NULL */
    struct {
        bool has_pin, pin, has_ttl;
        double ttl_ms;
    } hold;                    /* of /v1/caches */
    char name[MOST_PARAMETER]; /* of a saved cache */
    mn_session *session;       /* that is saved, or was loaded; NULL: none */
    bool tells_other;          /* with request.explains: also the different token of a kept text */
    char id[40];               /* as the client sees it */
    const char *model;         /* its name; owned by the server */
    int64_t created;           /* seconds since 1970 */
    /* Of the scheduler. */
    int number; /* the engine's */
    bool is_added, is_cancelled;
    job *next;
    /* Of the threads that transcribe, as the last two. */
    bool is_running;
    double seconds_done, seconds; /* of the recording; 0: not known yet */
};

/* A job with the model's configuration. NULL: no memory. */
job *job_open(const dialect *form, const mn_model *model, const char *prefix);
/* A query; NULL: what is asked is file work alone. NULL: no memory. */
job *job_ask(job_function *what);
/* A query to the threads that transcribe. NULL: no memory. */
job *job_record(job_function *what);
/* And its siblings. */
void job_close(job *j);
/* Sets the owner; keeps_apart: prefixes are shared with requests of the same owner only. */
mn_status job_adopt(job *j, const char *owner, bool keeps_apart, refusal *why);
/* Makes one request of a job and its siblings, n together. MN_E_NOMEM. */
mn_status job_join(job *first, size_t n);
/* The job whose answer has this index in the generations of a request, or of a batch, taken together. */
const job *job_of_answer(const job *j, size_t index);

/* What an event adds to an answer, or to what is thought before it. */
typedef struct job_delta {
    bytes reasoning, content; /* the caller clears both */
} job_delta;

/* e: its text may be held until more is known; the last event of an answer, with a finish_reason, gives all. */
job_delta job_tell_apart(job *j, const mn_token_event *e);
/* The same; of the content only what may be shown already: with tools, what may become a call is held back. */
job_delta job_tell_visible(job *j, const mn_token_event *e);
/* Clears both; when one of them has failed, so has `out`. */
void job_delta_clear(bytes *out, job_delta *d);

/* Called by the thread that computes. */
bool job_on_token(void *user, const mn_token_event *event);
void job_end(job *j, mn_status status, mn_generation *generation);
/* Answers a query, and closes it; false: file work follows first. */
bool job_answer(job *j, struct server *s);
/* Writes the answer to a query or file work, or the refusal; clears *out and closes the job. */
void job_tell(job *j, mn_status status, bytes *out, const refusal *why);
/* What is to be written of it: *out, or the refusal instead. Returns the status of HTTP. */
int job_outcome(bytes *out, job *j, mn_status status, const refusal *why);

#endif
