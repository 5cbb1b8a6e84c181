/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/http_client.h"

#ifdef MNEME_HAVE_LIBCURL

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "models/libcurl.h"

enum { CONNECT_MS = 30000 };

struct http_client {
    curl_functions curl;
    CURLM *multi;
    struct curl_slist *headers;
    bytes base, unix_path;
    size_t n_ended; /* in this step */
};

/* ---- opening ---- */

static mn_status read_address(http_client *c, const char *address) {
    bool is_unix = strncmp(address, "unix:", 5) == 0 && address[5];
    bool is_http = strncmp(address, "http://", 7) == 0 && address[7];
    if (!is_unix && !is_http && !(strncmp(address, "https://", 8) == 0 && address[8]))
        MN_FAIL(MN_E_ARG, "'%.200s' is no address of a server; allowed: http://HOST:PORT, https://HOST:PORT, unix:PATH",
                address);
    if (is_unix) bytes_append_text(&c->unix_path, address + 5);
    bytes_append_text(&c->base, is_unix ? "http://localhost" : address);
    while (c->base.n && c->base.data[c->base.n - 1] == '/') c->base.n--;
    if (c->base.n > 3 && memcmp(c->base.data + c->base.n - 3, "/v1", 3) == 0) c->base.n -= 3;
    return bytes_status(&c->base);
}

static mn_status add_header(http_client *c, const char *text) {
    struct curl_slist *longer = c->curl.slist_append(c->headers, text);
    if (!longer) return mem_no_memory();
    c->headers = longer;
    return MN_OK;
}

static mn_status open_all(http_client *c, const char *address, const char *key) {
    MN_TRY(read_address(c, address));
    MN_TRY(libcurl_load(&c->curl, "--serve"));
    c->multi = c->curl.multi_init();
    if (!c->multi) return mem_no_memory();
    MN_TRY(add_header(c, "Content-Type: application/json"));
    MN_TRY(add_header(c, "Expect:")); /* no question before a long body */
    bytes header = {0};
    bytes_printf(&header, "Authorization: Bearer %s", key ? key : "");
    const char *text = bytes_text(&header);
    mn_status status = bytes_status(&header);
    if (status == MN_OK && key) status = add_header(c, text);
    bytes_clear(&header);
    return status;
}

mn_status http_client_open(http_client **out, const char *address, const char *key) {
    http_client *c = *out = mem_alloc(1, sizeof *c);
    if (!c) return mem_no_memory();
    mn_status status = open_all(c, address, key);
    if (status != MN_OK) http_client_close(out);
    return status;
}

/* The library stays loaded: what it set up is for the whole process. */
void http_client_close(http_client **client) {
    http_client *c = *client;
    *client = NULL;
    if (!c) return;
    if (c->headers) c->curl.slist_free_all(c->headers);
    if (c->multi) c->curl.multi_cleanup(c->multi);
    bytes_clear(&c->base);
    bytes_clear(&c->unix_path);
    mem_free(c);
}

/* ---- calls ---- */

static mn_status keep(http_call *call, const char *data, size_t n) {
    size_t most = call->status == 200 ? HTTP_MOST_BODY : HTTP_MOST_ERROR_BODY;
    size_t room = most - call->body.n;
    if (call->status == 200 && n > room) MN_FAIL(MN_E_FORMAT, "an answer of more than %d bytes", (int)HTTP_MOST_BODY);
    bytes_append(&call->body, data, n < room ? n : room);
    return bytes_status(&call->body);
}

typedef struct transfer {
    http_client *client;
    http_call *call;
    bytes url;
} transfer;

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    transfer *t = user;
    http_call *call = t->call;
    long status = 0;
    size_t n = size * count;
    mem_written(data, n);
    t->client->curl.easy_getinfo(call->handle, CURLINFO_RESPONSE_CODE, &status);
    call->status = (int)status;
    bool is_taken = status == 200 && call->take;
    if ((is_taken ? call->take(call, data, n) : keep(call, data, n)) == MN_OK) return n;
    snprintf(call->error, sizeof call->error, "%s", mn_last_error());
    return 0; /* ends the call: every piece has a byte at least */
}

static mn_status set_options(transfer *t) {
    const curl_functions *curl = &t->client->curl;
    http_client *c = t->client;
    http_call *call = t->call;
    CURL *h = call->handle;
    unsigned failed = 0;
    bytes_printf(&t->url, "%s%s", bytes_text(&c->base), call->path);
    const char *url = bytes_text(&t->url);
    MN_TRY(bytes_status(&t->url));
    failed |= curl->easy_setopt(h, CURLOPT_URL, url);
    failed |= curl->easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    failed |= curl->easy_setopt(h, CURLOPT_PROXY, ""); /* the server itself, whatever the environment names */
    failed |= curl->easy_setopt(h, CURLOPT_HTTPHEADER, c->headers);
    failed |= curl->easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    failed |= curl->easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    failed |= curl->easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    failed |= curl->easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    failed |= curl->easy_setopt(h, CURLOPT_WRITEDATA, t);
    failed |= curl->easy_setopt(h, CURLOPT_PRIVATE, t);
    if (c->unix_path.n) failed |= curl->easy_setopt(h, CURLOPT_UNIX_SOCKET_PATH, bytes_text(&c->unix_path));
    if (call->json) {
        failed |= curl->easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->n_json);
        failed |= curl->easy_setopt(h, CURLOPT_POSTFIELDS, call->json);
    }
    if (failed) MN_FAIL(MN_E_UNSUPPORTED, "--serve needs libcurl 7.85 or newer, with HTTP and Unix sockets");
    return MN_OK;
}

static void release(transfer *t) {
    t->client->curl.easy_cleanup(t->call->handle);
    t->call->handle = NULL;
    bytes_clear(&t->url);
    mem_free(t);
}

mn_status http_client_start(http_client *c, http_call *call) {
    transfer *t = mem_alloc(1, sizeof *t);
    if (!t) return mem_no_memory();
    *t = (transfer){.client = c, .call = call};
    call->status = 0;
    call->has_ended = false;
    call->error[0] = 0;
    call->handle = c->curl.easy_init();
    mn_status status = call->handle ? set_options(t) : mem_no_memory();
    if (status == MN_OK && c->curl.multi_add_handle(c->multi, call->handle) != CURLM_OK) status = mem_no_memory();
    if (status != MN_OK) release(t);
    return status;
}

static void end_call(http_client *c, const CURLMsg *message) {
    CURL *handle = message->easy_handle;
    CURLcode code = message->data.result; /* the message is gone with the handle */
    char *private = NULL;
    long status = 0;
    c->curl.easy_getinfo(handle, CURLINFO_PRIVATE, &private);
    c->curl.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    transfer *t = (transfer *)(void *)private;
    http_call *call = t->call;
    call->status = (int)status;
    call->has_ended = true;
    if (code != CURLE_OK && !call->error[0])
        snprintf(call->error, sizeof call->error, "%s", c->curl.easy_strerror(code));
    c->curl.multi_remove_handle(c->multi, handle);
    release(t);
    c->n_ended++;
    if (call->end) call->end(call);
}

mn_status http_client_step(http_client *c, int wait_ms, size_t *n_ended) {
    int running = 0, waiting = 0;
    c->n_ended = 0;
    if (c->curl.multi_poll(c->multi, NULL, 0, wait_ms, NULL) != CURLM_OK ||
        c->curl.multi_perform(c->multi, &running) != CURLM_OK)
        return mem_no_memory();
    for (const CURLMsg *m; (m = c->curl.multi_info_read(c->multi, &waiting));) {
        if (m->msg == CURLMSG_DONE) end_call(c, m);
    }
    *n_ended = c->n_ended;
    return MN_OK;
}

mn_status http_client_ask(http_client *c, http_call *call, bool (*stop)(void)) {
    size_t ended = 0;
    MN_TRY(http_client_start(c, call));
    while (!call->has_ended) {
        MN_TRY(http_client_step(c, 100, &ended));
        if (stop()) MN_FAIL(MN_E_CANCELLED, "cancelled");
    }
    return MN_OK;
}

void http_call_clear(http_client *c, http_call *call) {
    char *private = NULL;
    if (call->handle) {
        c->curl.easy_getinfo(call->handle, CURLINFO_PRIVATE, &private);
        c->curl.multi_remove_handle(c->multi, call->handle);
        release((transfer *)(void *)private);
    }
    bytes_clear(&call->body);
}

#else

#include "base/status.h"

mn_status http_client_open(http_client **out, const char *address, const char *key) {
    (void)address, (void)key;
    *out = NULL;
    MN_FAIL(MN_E_UNSUPPORTED,
            "this program was built without libcurl, which --serve needs; `scripts/deps build` installs it");
}

void http_client_close(http_client **client) {
    *client = NULL;
}
mn_status http_client_start(http_client *c, http_call *call) {
    (void)c, (void)call;
    return MN_E_UNSUPPORTED;
}
mn_status http_client_step(http_client *c, int wait_ms, size_t *n_ended) {
    (void)c, (void)wait_ms, (void)n_ended;
    return MN_E_UNSUPPORTED;
}
mn_status http_client_ask(http_client *c, http_call *call, bool (*stop)(void)) {
    (void)c, (void)call, (void)stop;
    return MN_E_UNSUPPORTED;
}
void http_call_clear(http_client *c, http_call *call) {
    (void)c;
    bytes_clear(&call->body);
}

#endif
