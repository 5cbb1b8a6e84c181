/* The HTTP library, libmicrohttpd: one thread of its own that reads bodies and writes answers.
 * SPDX-License-Identifier: Apache-2.0 */
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "http/form.h"
#include "http/page.h"
#include "request/fields.h"
#include "routes.h"
#include "sandbox.h"

/* One request and its answer. */
typedef struct exchange {
    server *server;
    struct MHD_Connection *connection;
    client_connection *client;
    const route *route;
    write_error *error;         /* of the path's dialect */
    const char *key;            /* whose it is; NULL: there are no keys */
    bytes body, warning;        /* warning: of fields that were ignored */
    form *form;                 /* instead of the body; NULL: it is JSON */
    size_t n_form;              /* bytes of it */
    const char *allowed_method; /* of a path that has no other; NULL: not refused for that */
    bool has_body, is_too_large, is_handled, has_recording;
    struct {
        int status; /* 0: not refused */
        const char *code, *message;
    } early;      /* why it is refused whatever its body is */
    reply *reply; /* NULL: answered at once */
    char job_id[40], parameter[MOST_PARAMETER];
    double began;
    int status; /* of HTTP; 0: not answered */
} exchange;

/* ---- answers ---- */

static bool add_page_headers(struct MHD_Response *response) {
    bytes policy = {0};
    bool is_made = page_policy(&policy) == MN_OK;
    if (is_made) MHD_add_response_header(response, "Content-Security-Policy", bytes_text(&policy));
    bytes_clear(&policy);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    return is_made;
}

static enum MHD_Result queue(exchange *x, int status, struct MHD_Response *response, const char *type) {
    if (!response) return MHD_NO;
    x->status = status;
    if (status >= 400) metrics_fail(&x->server->metrics, error_type(status));
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (proxy_closes(x->server->proxy, x->client))
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (x->warning.n) MHD_add_response_header(response, "X-Mneme-Warning", bytes_text(&x->warning));
    if (x->allowed_method) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, x->allowed_method);
    if (status == 429 || status == 503) MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (strcmp(type, "text/event-stream") == 0) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    if (strcmp(type, PAGE_TYPE) == 0 && !add_page_headers(response)) {
        MHD_destroy_response(response);
        return MHD_NO;
    }
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

/* Takes the text. */
static enum MHD_Result answer_text(exchange *x, int status, bytes *text, const char *type) {
    struct MHD_Response *response = NULL;
    if (bytes_status(text) == MN_OK)
        response = MHD_create_response_from_buffer(text->n, text->data, MHD_RESPMEM_MUST_COPY);
    bytes_clear(text);
    return queue(x, status, response, type ? type : "application/json");
}

static enum MHD_Result refuse(exchange *x, int status, const char *code, const char *param, const char *message) {
    bytes text = {0};
    x->error(&text, status, code, param, message);
    return answer_text(x, status, &text, NULL);
}

static bool takes_recording(const exchange *x) {
    return x->route && x->route->form & BODY_SPEECH;
}

static size_t most_body(const exchange *x) {
    return takes_recording(x) ? MOST_FORM : MOST_BODY;
}

static const char *too_large(const exchange *x) {
    return takes_recording(x) ? "the body is larger than 26214400 bytes" : "the body is larger than 8388608 bytes";
}

/* Before the body has come. The library ends connections of which it does not read the body. */
static enum MHD_Result refuse_early(exchange *x, int status, const char *code, const char *message) {
    x->early.status = status;
    x->early.code = code;
    x->early.message = message;
    if (!x->has_body) return MHD_YES;
    proxy_end(x->server->proxy, x->client);
    return refuse(x, status, code, NULL, message);
}

static enum MHD_Result refuse_for(exchange *x, mn_status status, const refusal *why) {
    bytes text = {0};
    int code = refusal_body(&text, x->error, status, why);
    return answer_text(x, code, &text, NULL);
}

/* ---- streams ---- */

static ssize_t read_reply(void *user, uint64_t position, char *to, size_t most) {
    exchange *x = user;
    reply *r = x->reply;
    (void)position;
    pthread_mutex_lock(&r->lock);
    size_t n = r->out.n - r->sent;
    if (n > most) n = most;
    if (n) memcpy(to, r->out.data + r->sent, n);
    r->sent += n;
    bool is_over = n == 0 && r->is_ended, is_cut = r->is_cut;
    if (n == 0 && !is_over) {
        r->is_waited_for = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&r->lock);
    if (is_over) return is_cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    return (ssize_t)n;
}

static void resume(void *user) {
    MHD_resume_connection(((exchange *)user)->connection);
}

/* A stream begins at once; a whole answer when it is there: until then the connection is suspended. */
static enum MHD_Result answer_reply(exchange *x) {
    reply *r = x->reply;
    if (r->streams)
        return queue(x, 200, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1024, read_reply, x, NULL),
                     "text/event-stream");
    pthread_mutex_lock(&r->lock);
    bool is_ended = r->is_ended;
    if (!is_ended) {
        r->is_waited_for = true;
        MHD_suspend_connection(x->connection);
    }
    bytes text = {0};
    if (is_ended) {
        text = r->out;
        r->out = (bytes){0};
    }
    int status = r->status;
    const char *type = is_ended && status == 200 ? r->type : NULL;
    pthread_mutex_unlock(&r->lock);
    return is_ended ? answer_text(x, status, &text, type) : MHD_YES;
}

/* ---- requests ---- */

/* The jobs of a request; on failure none is left, and they are closed. */
static mn_status add_jobs(exchange *x, job *j, refusal *why) {
    mn_status status = MN_OK;
    for (job *next; j && status == MN_OK; j = next) {
        next = j->sibling;
        j->sibling = NULL;
        if (j->file_work && !j->query)
            status = file_worker_add(x->server->file_worker, j, why);
        else if (j->is_recording)
            status = speech_add(x->server->speech, j, why);
        else
            status = scheduler_add(x->server->scheduler, j, why);
        if (status == MN_OK) continue;
        if (j->blame) j->blame(x->route->form, status, why);
        scheduler_cancel(x->server->scheduler, x->job_id, NULL);
        j->sibling = next;
        job_close(j);
    }
    return status;
}

static enum MHD_Result start_job(exchange *x, const json *body) {
    server *s = x->server;
    job *first = NULL;
    refusal why = {0};
    bool streams = false;
    if (x->route->form && atomic_load(&s->drains))
        return refuse(x, 503, "shutting_down", NULL, "the server is shutting down");
    mn_status status = x->route->job(&first, s, body, &streams, &why);
    for (job *j = first; j && status == MN_OK; j = j->sibling)
        status = job_adopt(j, x->key, !s->options.share_prefixes, &why);
    if (status != MN_OK) {
        job_close(first);
        return refuse_for(x, status, &why);
    }
    x->reply = reply_open(streams, resume, x);
    if (!x->reply) {
        job_close(first);
        return MHD_NO;
    }
    for (job *j = first; j; j = j->sibling) {
        reply_hold(x->reply);
        j->reply = x->reply;
        memcpy(j->parameter, x->parameter, sizeof j->parameter);
        j->metrics = &s->metrics;
        j->tells_other = !x->key || !s->options.share_prefixes;
    }
    snprintf(x->job_id, sizeof x->job_id, "%s", first->id);
    bytes begin = {0};
    if (streams && first->dialect->begin) first->dialect->begin(&begin, first);
    reply_put(x->reply, &begin);
    status = add_jobs(x, first, &why);
    if (status != MN_OK) {
        reply_forget_wake(x->reply);
        reply_release(x->reply);
        x->reply = NULL;
        return refuse_for(x, status, &why);
    }
    proxy_take(s->proxy, x->client, x);
    return answer_reply(x);
}

/* *doc: to be closed; the body is in it, or in the form. */
static mn_status read_body(exchange *x, json_doc **doc, const json **body, refusal *why) {
    if (x->form) return form_end(x->form, body, why);
    *why = (refusal){400, "invalid_json", NULL};
    MN_TRY(json_parse(doc, x->body.data ? x->body.data : "", x->body.n, JSON_STRICT, "body"));
    *why = (refusal){0};
    *body = json_root(*doc);
    return MN_OK;
}

static enum MHD_Result handle(exchange *x) {
    json_doc *doc = NULL;
    const json *body = NULL;
    enum MHD_Result result;
    refusal why = {0};
    x->is_handled = true;
    if (x->early.status) return refuse(x, x->early.status, x->early.code, NULL, x->early.message);
    if (x->is_too_large) return refuse(x, 413, "body_too_large", NULL, too_large(x));
    const bool takes_body = strcmp(x->route->method, "POST") == 0; /* what has no route was refused early */
    mn_status read = takes_body ? read_body(x, &doc, &body, &why) : MN_OK;
    if (read != MN_OK) {
        result = refuse_for(x, read, &why);
    } else if (takes_body && body->kind != JSON_OBJECT) {
        result = refuse(x, 400, "invalid_json", NULL, "the body is not a JSON object");
    } else if (takes_body && fields_check(body, x->route->form, &x->warning, &why) != MN_OK) {
        result = refuse_for(x, MN_E_ARG, &why);
    } else if (x->route->job) {
        result = start_job(x, body);
    } else {
        bytes text = {0};
        mn_status status = x->route->answer(&text, x->server, body, &why);
        result = status == MN_OK ? answer_text(x, 200, &text, x->route->type) : refuse_for(x, status, &why);
        bytes_clear(&text);
    }
    json_close(&doc);
    form_close(&x->form);
    return result;
}

/* "application/json", with or without parameters. */
static bool is_type(const char *type, const char *wanted) {
    size_t n = strlen(wanted);
    return type && strncasecmp(type, wanted, n) == 0 && (type[n] == 0 || type[n] == ';' || type[n] == ' ');
}

/* An IP address, which nobody can point elsewhere, and a port. */
static bool is_address(const char *host) {
    if (*host == '[') return true;
    size_t n = strspn(host, "0123456789.");
    return n > 0 && (host[n] == 0 || host[n] == ':');
}

/* The server is reached by the name of this machine, or the one that it was told to listen on: another one is a page of
 * somebody else whose name was pointed here. */
static bool is_own_host(const server *s, const char *host) {
    const char *names[] = {"localhost", "127.0.0.1", "[::1]", s->options.host};
    if (!host || s->options.unix_path || s->keys) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = names[i] ? strlen(names[i]) : 0;
        if (n && strncasecmp(host, names[i], n) == 0 && (host[n] == 0 || host[n] == ':')) return true;
    }
    return s->options.allow_remote && is_address(host);
}

static const char *header(const exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* "Authorization: Bearer KEY" or "x-api-key: KEY". */
static const char *key_of(const exchange *x) {
    const char *bearer = header(x, MHD_HTTP_HEADER_AUTHORIZATION);
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) return keys_find(x->server->keys, bearer + 7);
    return keys_find(x->server->keys, header(x, "x-api-key"));
}

/* Whether a path is of this pattern; the part at {id}, 1 to 63 characters without '/', becomes the parameter. */
static bool path_is(const char *pattern, const char *path, char parameter[MOST_PARAMETER]) {
    const char *hole = strchr(pattern, '{');
    if (!hole) return strcmp(pattern, path) == 0;
    size_t before = (size_t)(hole - pattern);
    if (strncmp(pattern, path, before) != 0) return false;
    size_t n = strcspn(path + before, "/");
    if (n == 0 || n >= MOST_PARAMETER || strcmp(path + before + n, strchr(hole, '}') + 1) != 0) return false;
    memcpy(parameter, path + before, n);
    parameter[n] = 0;
    return true;
}

/* A page of somebody else may send forms without asking, unlike JSON: it must not use the machine without a key. */
static bool is_own_origin(const exchange *x) {
    const char *origin = header(x, "Origin"), *host = origin ? strstr(origin, "://") : NULL;
    return !origin || x->server->keys || (host && is_own_host(x->server, host + 3));
}

/* A body with a recording. */
static enum MHD_Result begin_form(exchange *x) {
    x->has_recording = speech_enter(x->server->speech);
    if (!x->has_recording) return refuse_early(x, 429, "queue_full", "too many recordings at a time");
    x->form = form_open(x->connection, x->route->form);
    return x->form ? MHD_YES
                   : refuse_early(x, 400, "wrong_content_type", "the Content-Type has no boundary that can be used");
}

/* Refusals that need no body. */
static enum MHD_Result begin(exchange *x, const char *method, const char *path) {
    const char *length = header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const uint64_t n_body = length ? strtoull(length, NULL, 10) : 0;
    const char *other = NULL;
    bool is_public = false;
    size_t i = 0;
    x->has_body = n_body > 0 || header(x, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    for (const route *r; !x->route && (r = route_at(i)); i++) {
        if (!path_is(r->path, path, x->parameter)) continue;
        x->error = route_error(r);
        other = r->method;
        is_public = is_public || r->is_public;
        if (strcmp(r->method, method) == 0) x->route = r;
    }
    if (!is_own_host(x->server, header(x, MHD_HTTP_HEADER_HOST)))
        return refuse_early(x, 403, "not_permitted", "the request is for another host than this one");
    if (x->server->keys) x->key = key_of(x);
    if (x->server->keys && !x->key && !is_public)
        return refuse_early(x, 401, "invalid_api_key",
                            "the API key is missing or unknown; send 'Authorization: Bearer KEY'");
    if (!other) return refuse_early(x, 404, "route_not_found", "there is no such route; see /openapi.json");
    if (!x->route) {
        x->allowed_method = other;
        return refuse_early(x, 405, "wrong_method", "the route has another method; see the header 'Allow'");
    }
    if (n_body > most_body(x)) return refuse_early(x, 413, "body_too_large", too_large(x));
    const bool is_form = takes_recording(x);
    const char *type = header(x, MHD_HTTP_HEADER_CONTENT_TYPE), *lack = route_lacks(x->route, x->server);
    if (is_form && !is_type(type, "multipart/form-data"))
        return refuse_early(x, 400, "wrong_content_type", "the Content-Type is not multipart/form-data");
    if (is_form && !is_own_origin(x))
        return refuse_early(x, 403, "not_permitted", "the request comes from a page of another host than this one");
    if (!is_form && strcmp(method, "POST") == 0 && !is_type(type, "application/json"))
        return refuse_early(x, 400, "wrong_content_type", "the Content-Type is not application/json");
    if (lack) return refuse_early(x, 501, "not_supported", lack);
    return is_form ? begin_form(x) : MHD_YES;
}

static void take_data(exchange *x, const char *data, size_t n) {
    x->is_too_large = x->is_too_large || (x->form ? x->n_form : x->body.n) + n > most_body(x);
    if (x->is_too_large) return;
    if (!x->form) {
        bytes_append(&x->body, data, n);
        return;
    }
    x->n_form += n;
    form_take(x->form, data, n);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n_data, void **context) {
    server *s = user;
    exchange *x = *context;
    (void)version;
    if (!x) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        client_connection *c = info ? info->socket_context : NULL;
        x = c ? mem_alloc(1, sizeof *x) : NULL;
        if (!x) return MHD_NO;
        *x = (exchange){.server = s, .connection = connection, .client = c, .began = clock_ms(), .error = openai_error};
        *context = x;
        return begin(x, method, url);
    }
    if (*n_data > 0) {
        take_data(x, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    if (!x->is_handled) return handle(x);
    return x->reply ? answer_reply(x) : MHD_NO;
}

/* Paths, ids of requests in them, and texts are left out: they are the client's. So nothing in a line has to be
 * escaped for JSON. */
static void log_request(const exchange *x) {
    const serve_options *o = &x->server->options;
    const char *method = x->route ? x->route->method : "-", *path = x->route ? x->route->path : "-";
    reply *r = x->reply;
    const bool has_tokens = r && x->route->form;
    struct tm t;
    time_t now = time(NULL);
    char when[32], tokens[160] = "", line[400];
    if (!o->log) return;
    gmtime_r(&now, &t);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &t);
    if (has_tokens) {
        pthread_mutex_lock(&r->lock);
        snprintf(tokens, sizeof tokens,
                 o->log_json ? ",\"id\":\"%s\",\"prompt_tokens\":%zu,\"cached_tokens\":%zu,\"completion_tokens\":%zu"
                             : " id=%s prompt_tokens=%zu cached_tokens=%zu completion_tokens=%zu",
                 x->job_id, r->prompt_tokens, r->cached_tokens, r->generated_tokens);
        pthread_mutex_unlock(&r->lock);
    }
    snprintf(line, sizeof line,
             o->log_json ? "{\"time\":\"%s\",\"method\":\"%s\",\"path\":\"%s\",\"status\":%d,\"ms\":%.1f%s}"
                         : "%s %s %s status=%d ms=%.1f%s",
             when, method, path, x->status, clock_ms() - x->began, tokens);
    o->log(o->log_user, line);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code) {
    server *s = user;
    exchange *x = *context;
    (void)connection;
    if (!x) return;
    proxy_answered(s->proxy, x->client, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (x->reply) reply_forget_wake(x->reply);
    log_request(x);
    if (x->reply) {
        server_cancel(s, x->job_id, NULL); /* nobody reads the rest */
        reply_release(x->reply);
    }
    if (x->has_recording) speech_leave(s->speech);
    form_close(&x->form);
    bytes_clear(&x->body);
    bytes_clear(&x->warning);
    mem_free(x);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code) {
    server *s = user;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        *context = proxy_connection(s->proxy, info->connect_fd);
    else if (*context)
        proxy_release(s->proxy, *context, info->connect_fd);
}

/* ---- the proxy ---- */

static bool on_enter(void *user, int fd) {
    server *s = user;
    const struct sockaddr_un address = {.sun_family = AF_UNIX};
    return MHD_add_connection(s->http, fd, (const struct sockaddr *)&address, sizeof address.sun_family) == MHD_YES;
}

static void on_left(void *user, void *request) {
    server *s = user;
    const exchange *x = request;
    server_cancel(s, x->job_id, NULL);
}

/* Deadlines are the proxy's, and a connection of the library has one request. Its memory has room for the longest head
 * and its fields taken apart; half of it is touched. It watches by poll: with epoll it does not look at exactly 128
 * events before more come. It has only the connections whose requests are being read or answered, not idle ones. */
static mn_status open_library(server *s) {
    s->http = MHD_start_daemon(
        MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        on_request, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_CONNECTION_LIMIT, (unsigned)(2 * MAX_CONNECTIONS),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(48 << 10), MHD_OPTION_END);
    if (!s->http) MN_FAIL(MN_E_IO, "the HTTP library does not start");
    return MN_OK;
}

mn_status http_open(server *s) {
    const serve_options *o = &s->options;
    if (o->ssl_cert_file) MN_TRY(wire_identity_open(&s->identity, o->ssl_cert_file, o->ssl_key_file));
    const proxy_options options = {.host = o->host,
                                   .port = o->port,
                                   .unix_path = o->unix_path,
                                   .identity = s->identity,
                                   .max_connections = MAX_CONNECTIONS,
                                   .head_ms = HEAD_MS,
                                   .body_ms = BODY_MS,
                                   .idle_ms = IDLE_MS,
                                   .stall_ms = STALL_MS,
                                   .user = s,
                                   .enter = on_enter,
                                   .left = on_left};
    MN_TRY(proxy_open(&s->proxy, &options));
    MN_TRY(open_library(s));
    if (s->options.sandbox) MN_TRY(sandbox_enter(&s->options)); /* before anybody can ask for anything */
    return proxy_start(s->proxy);
}

void http_close(server *s) {
    if (s->proxy) proxy_stop(s->proxy); /* it hands connections to the library */
    if (s->http) MHD_stop_daemon(s->http);
    s->http = NULL;
    proxy_close(&s->proxy);
    wire_identity_close(&s->identity);
}
