/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"

static void make_id(job *j, const char *prefix) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuv";
    unsigned char random[24] = {0};
    char text[sizeof random + 1];
    if (getrandom(random, sizeof random, 0) < 0) random[0] = (unsigned char)clock();
    for (size_t i = 0; i < sizeof random; i++) text[i] = letters[random[i] % 32];
    text[sizeof random] = 0;
    snprintf(j->id, sizeof j->id, "%s%s", prefix, text);
}

static job *open_empty(const char *prefix) {
    job *j = mem_alloc(1, sizeof *j);
    if (!j) return NULL;
    j->arrived = clock_ms();
    j->request = (request_settings){.n = 1, .top_logprobs = -1};
    j->number = -1;
    j->created = (int64_t)time(NULL);
    make_id(j, prefix);
    return j;
}

job *job_ask(job_function *what) {
    job *j = open_empty("ask-");
    if (j) j->query = what;
    return j;
}

job *job_record(job_function *what) {
    job *j = open_empty("transcription-");
    if (j) j->query = what;
    if (j) j->is_recording = true;
    return j;
}

job *job_open(const dialect *form, const mn_model *model, const char *prefix) {
    job *j = open_empty(prefix);
    if (!j) return NULL;
    j->dialect = form;
    mn_generate_options_init(&j->options, sizeof j->options);
    j->options.on_token = job_on_token;
    j->options.user = j;
    /* Whatever the checkpoint's file says: clients ask for more answers, within the limit of what a job has places for.
     */
    if (mn_generation_config_open(&j->request.config, model) == MN_OK &&
        mn_generation_config_set(j->request.config, "num_return_sequences", "1") == MN_OK)
        return j;
    job_close(j);
    return NULL;
}

/* ---- several prompts ---- */

mn_status job_join(job *first, size_t n) {
    batch *b = mem_alloc(1, sizeof *b);
    if (!b) return MN_E_NOMEM;
    b->n = n;
    atomic_init(&b->n_open, (int)n);
    b->jobs = mem_alloc(n, sizeof *b->jobs);
    b->done = mem_alloc(n, sizeof *b->done);
    if (!b->jobs || !b->done) {
        mem_free(b->jobs);
        mem_free(b->done);
        mem_free(b);
        return MN_E_NOMEM;
    }
    size_t i = 0;
    for (job *j = first; j; j = j->sibling) {
        j->batch = b;
        j->place = i++;
        memcpy(j->id, first->id, sizeof j->id); /* one request for the client and for cancelling */
    }
    return MN_OK;
}

static void close_batch(batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        if (b->jobs[i]) b->jobs[i]->batch = NULL;
        job_close(b->jobs[i]);
        mn_generation_close(&b->done[i]);
    }
    mem_free(b->jobs);
    mem_free(b->done);
    mem_free(b);
}

const job *job_of_answer(const job *j, size_t index) {
    return j->batch ? j->batch->jobs[index / (size_t)j->request.n] : j;
}

/* ---- jobs ---- */

void job_close(job *j) {
    for (job *next; j; j = next) {
        next = j->sibling;
        if (j->batch && atomic_fetch_sub(&j->batch->n_open, 1) == 1) close_batch(j->batch);
        if (j->state) j->dialect->close(j);
        reply_release(j->reply);
        mn_generation_config_close(&j->request.config);
        mn_free(j->ids);
        mem_free(j->request.salt);
        tools_close(&j->tools);
        for (size_t i = 0; i < MOST_TIMED; i++) bytes_clear(&j->streamed[i].held);
        mn_session_close(&j->session);
        mem_free(j);
    }
}

static mn_status keep_apart(job *j) {
    bytes salt = {0};
    bytes_printf(&salt, "%s/%s", j->owner, j->request.salt ? j->request.salt : "");
    char *text = bytes_status(&salt) == MN_OK ? mem_copy_text(salt.data, salt.n) : NULL;
    bytes_clear(&salt);
    if (!text) return MN_E_NOMEM;
    mem_free(j->request.salt);
    j->request.salt = text;
    return MN_OK;
}

mn_status job_adopt(job *j, const char *owner, bool keeps_apart, refusal *why) {
    j->owner = owner;
    if (owner && keeps_apart) MN_TRY(keep_apart(j));
    return j->dialect && j->dialect->adopt ? j->dialect->adopt(j, why) : MN_OK;
}

/* Tokens that come together, as those of beams do, are no measure of latency: a sequence's next one is. */
static void measure(job *j, const mn_token_event *event) {
    double now = clock_ms();
    if (event->id < 0) return;
    if (!j->has_token) metrics_time(j->metrics, TIME_TO_FIRST_TOKEN, now - j->arrived);
    j->has_token = true;
    if (event->sequence < 0 || event->sequence >= MOST_TIMED) return;
    double *last = &j->last_token[event->sequence];
    if (*last > 0) metrics_time(j->metrics, INTER_TOKEN_LATENCY, now - *last);
    *last = now;
}

static bool take_part(void *user, reasoning_part part, const char *text, size_t n) {
    job_delta *d = user;
    if (part != REASONING_MARKER) bytes_append(part == REASONING_TEXT ? &d->reasoning : &d->content, text, n);
    return true;
}

job_delta job_tell_apart(job *j, const mn_token_event *e) {
    job_delta d = {0};
    reasoning_stream *s = &j->streamed[e->sequence];
    reasoning_push(s, &j->reasoning, e->text, e->n_text, take_part, &d);
    if (e->sequence == 0 && e->id >= 0) j->n_reasoning_tokens += s->state != REASONING_OVER;
    if (e->finish_reason) reasoning_finish(s, &j->reasoning, take_part, &d);
    return d;
}

job_delta job_tell_visible(job *j, const mn_token_event *e) {
    job_delta d = job_tell_apart(j, e);
    if (!j->tools) return d;
    size_t shown, n;
    const bytes *text = tools_push(j->tools, e->sequence, d.content.data, d.content.n, &shown, &n);
    d.content.n = 0;
    if (n > shown) bytes_append(&d.content, text->data + shown, n - shown);
    return d;
}

void job_delta_clear(bytes *out, job_delta *d) {
    out->failed = out->failed || d->reasoning.failed || d->content.failed;
    bytes_clear(&d->reasoning);
    bytes_clear(&d->content);
}

static void count_reasoning(job *j, const mn_token_event *e) {
    if (e->sequence > 0 || !j->reasoning.begin || j->streamed[0].state == REASONING_OVER) return;
    bytes none = {0};
    job_delta d = job_tell_apart(j, e);
    job_delta_clear(&none, &d);
}

bool job_on_token(void *user, const mn_token_event *event) {
    job *j = user;
    measure(j, event);
    if (j->batch && j->batch->has_failed) return false;
    bytes out = {0};
    if (!j->reply->streams) {
        count_reasoning(j, event);
        return true;
    }
    j->dialect->piece(&out, j, event);
    return reply_put(j->reply, &out);
}

static int status_of(mn_status status) {
    switch (status) {
    case MN_E_ARG:
    case MN_E_FULL:
    case MN_E_UNSUPPORTED: return 400;
    case MN_E_NOMEM: return 503;
    default: return 500;
    }
}

void openai_fail(bytes *out, job *j, int status, const char *code, const char *param, const char *message) {
    (void)j;
    bytes_append_text(out, "data: ");
    openai_error(out, status, code, param, message);
    bytes_append_text(out, "\n\n");
}

static void fail(job *j, mn_status status) {
    bytes out = {0};
    refusal why = {0};
    int code = status_of(status);
    const char *what = status == MN_E_NOMEM ? "kv_exhausted" : code == 400 ? "invalid_value" : "server_error";
    if (j->blame) j->blame(j->dialect->form, status, &why);
    if (j->reply->streams) {
        metrics_fail(j->metrics, error_type(code)); /* the status has been sent, and is 200 */
        j->dialect->fail(&out, j, code, what, why.param, mn_last_error());
    } else {
        j->dialect->error(&out, code, what, why.param, mn_last_error());
    }
    reply_end(j->reply, code, &out);
}

static void write_end(job *j, const mn_generation *generation) {
    bytes out = {0};
    if (j->reply->streams)
        j->dialect->end(&out, j, generation);
    else
        j->dialect->whole(&out, j, generation);
    reply_end(j->reply, 200, &out);
}

static void finish(job *j) {
    bytes out = {0};
    refusal why = {0};
    mn_status status = j->dialect->finish(&out, j, &why);
    if (status == MN_OK) status = bytes_status(&out);
    int code = 200;
    if (status != MN_OK) {
        bytes_clear(&out);
        code = refusal_body(&out, j->dialect->error, status, &why);
    }
    reply_end(j->reply, code, &out);
}

/* The answers to all prompts, as if they were one generation's. */
static void write_batch(job *j) {
    const batch *b = j->batch;
    mn_generation all = *b->done[0];
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) n += b->done[i]->n_sequences;
    const mn_sequence **list = mem_alloc(n, sizeof *list);
    if (!list) {
        fail(j, MN_E_NOMEM);
        return;
    }
    all.n_sequences = n;
    all.sequences = list;
    for (size_t i = 0; i < b->n; i++) {
        const mn_generation *one = b->done[i];
        for (size_t k = 0; k < one->n_sequences; k++) *list++ = one->sequences[k];
        if (one->prompt_ms > all.prompt_ms) all.prompt_ms = one->prompt_ms;
        if (one->predicted_ms > all.predicted_ms) all.predicted_ms = one->predicted_ms;
    }
    list -= n;
    write_end(j, &all);
    mem_free(list);
}

static void end_in_batch(job *j, mn_status status, mn_generation *generation) {
    batch *b = j->batch;
    b->jobs[j->place] = j;
    b->done[j->place] = generation;
    b->n_ended++;
    if (status != MN_OK && !b->has_failed) fail(j, status);
    b->has_failed = b->has_failed || status != MN_OK;
    if (b->n_ended == b->n && !b->has_failed) write_batch(j);
    if (atomic_fetch_sub(&b->n_open, 1) == 1) close_batch(b);
}

static void count_tokens(const job *j, const mn_generation *g) {
    for (size_t i = 0; i < g->n_sequences; i++) {
        const mn_sequence *s = g->sequences[i];
        const bool is_first = s->index == 0; /* the others have the same prompt */
        reply_count(j->reply, is_first ? s->prompt_tokens : 0, is_first ? s->cached_tokens : 0, s->n_ids);
    }
}

void job_end(job *j, mn_status status, mn_generation *generation) {
    if (status == MN_OK) count_tokens(j, generation);
    if (status == MN_OK) metrics_finish(j->metrics, generation, clock_ms() - j->arrived);
    if (j->batch) {
        end_in_batch(j, status, generation);
        return;
    }
    if (status == MN_OK && j->dialect->finish)
        finish(j);
    else if (status == MN_OK)
        write_end(j, generation);
    else
        fail(j, status);
    mn_generation_close(&generation);
    job_close(j);
}

/* As an event. */
static void event_error(bytes *out, int status, const char *code, const char *param, const char *message) {
    openai_fail(out, NULL, status, code, param, message);
}

int job_outcome(bytes *out, job *j, mn_status status, const refusal *why) {
    bool streams = j->reply->streams;
    if (status == MN_OK) status = bytes_status(out);
    if (status == MN_OK) return 200;
    bytes_clear(out);
    int code = refusal_body(out, streams ? event_error : openai_error, status, why);
    if (streams) metrics_fail(j->metrics, error_type(code)); /* the status has been sent, and is 200 */
    return code;
}

void job_tell(job *j, mn_status status, bytes *out, const refusal *why) {
    int code = job_outcome(out, j, status, why);
    reply_end(j->reply, code, out);
    job_close(j);
}

bool job_answer(job *j, struct server *s) {
    bytes out = {0};
    refusal why = {0};
    job_function *asked = j->query;
    j->query = NULL;
    mn_status status = asked(&out, s, j, &why);
    if (status == MN_OK && j->file_work) return false;
    job_tell(j, status, &out, &why);
    return true;
}
