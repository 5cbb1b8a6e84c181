/* SPDX-License-Identifier: Apache-2.0 */
#include "request/conversations.h"
#include "server.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

enum { DEFAULT_QUEUE = 256, ANSWERS_MS = 1000 };

/* Without keys, only programs of this machine may connect. */
static mn_status check_host(const serve_options *options) {
    const char *host = options->api_key_file || options->allow_remote ? NULL : options->host;
    static const char *const names[] = {"127.0.0.1", "localhost", "::1"};
    for (size_t i = 0; host && i < sizeof names / sizeof *names; i++) {
        if (strcmp(host, names[i]) == 0) host = NULL;
    }
    if (!host) return MN_OK;
    MN_FAIL(MN_E_ARG,
            "host is '%.100s', allowed without API keys: 127.0.0.1, localhost, ::1, and with --allow-remote any", host);
}

static mn_status check_tls(const serve_options *options) {
    const char *certificate = options->ssl_cert_file, *key = options->ssl_key_file;
    if (!certificate == !key) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s '%.100s' is given without %s; TLS needs both",
            certificate ? "--ssl-cert-file" : "--ssl-key-file", certificate ? certificate : key,
            certificate ? "--ssl-key-file" : "--ssl-cert-file");
}

static mn_status check_prefix_cache(const serve_options *options) {
    if (!options->no_prefix_cache || (!options->cache_dir && !options->prefix_memory)) return MN_OK;
    MN_FAIL(MN_E_ARG, "--no-prefix-cache is given with %s; allowed: without it",
            options->cache_dir ? "--cache-dir" : "--prefix-memory");
}

/* Texts of a key are found again after a restart, so the checksum of the key in their files must stay the same. */
static mn_status open_keys(server *s) {
    bytes secret = {0};
    const char *folder = s->options.cache_dir;
    mn_status status = folder ? path_join(&secret, folder, "api-keys.secret") : MN_OK;
    if (status == MN_OK) status = keys_open(&s->keys, s->options.api_key_file, folder ? bytes_text(&secret) : NULL);
    bytes_clear(&secret);
    return status;
}

/* ---- models ---- */

static mn_status open_speech(server *s) {
    mn_model_info info = {.size = sizeof info};
    s->has_text = !s->info.num_mel_bins;
    s->speech_model = s->options.speech_model;
    s->speech_name = s->options.speech_name;
    if (s->speech_model && !s->has_text)
        MN_FAIL(MN_E_ARG, "'%.100s' is a speech model, allowed beside another one: a text model", s->name);
    if (!s->speech_model && !s->has_text) {
        s->speech_model = s->model;
        s->speech_name = s->name;
    }
    if (!s->speech_model) return MN_OK;
    MN_TRY(mn_model_get_info(s->speech_model, &info));
    if (!info.num_mel_bins)
        MN_FAIL(MN_E_UNSUPPORTED, "'%.100s' is a text model (%s), allowed as speech model: Whisper", s->speech_name,
                info.architecture);
    if (!info.has_tokenizer) MN_FAIL(MN_E_UNSUPPORTED, "'%.100s' has no tokenizer", s->speech_name);
    return speech_open(&s->speech, s->options.max_queue, s);
}

bool server_cancel(server *s, const char *id, const char *owner) {
    return scheduler_cancel(s->scheduler, id, owner) || speech_cancel(s->speech, id, owner);
}

/* ---- the server ---- */

static mn_status open_cache(server *s) {
    mn_cache_options_init(&s->cache, sizeof s->cache);
    if (s->options.cache) s->cache = *s->options.cache;
    MN_TRY(mn_generation_config_open(&s->config, s->model));
    MN_TRY(mn_generation_config_cache(s->config, &s->cache));
    return mn_cache_check(&s->cache, NULL);
}

static mn_status ask(server *s, job *j, refusal *why) {
    return scheduler_add(s->scheduler, j, why);
}

mn_status serve_open(server **out, mn_model *model, const serve_options *options) {
    *out = NULL;
    MN_TRY(check_host(options));
    MN_TRY(check_tls(options));
    MN_TRY(check_prefix_cache(options));
    server *s = mem_alloc(1, sizeof *s);
    *out = s;
    if (!s) return MN_E_NOMEM;
    s->options = *options;
    if (!s->options.max_queue) s->options.max_queue = DEFAULT_QUEUE;
    s->model = model;
    s->tokenizer = mn_model_tokenizer(model);
    s->name = options->name;
    s->started = (int64_t)time(NULL);
    s->statm = file_descriptor("/proc/self/statm", O_RDONLY, 0);
    s->info.size = sizeof s->info;
    mn_status status = file_worker_open(&s->file_worker, s, ask);
    const scheduler_options scheduling = {.model = model,
                                          .cache = options->cache,
                                          .memory_limit = options->memory_limit,
                                          .cache_dir = options->cache_dir,
                                          .cache_dir_limit = options->cache_dir_limit,
                                          .cache_ttl = options->cache_ttl,
                                          .cache_quota = options->cache_quota,
                                          .no_prefix_cache = options->no_prefix_cache,
                                          .prefix_memory = options->prefix_memory,
                                          .max_num_seqs = options->max_num_seqs,
                                          .max_queue = s->options.max_queue,
                                          .server = s,
                                          .file_worker = s->file_worker};
    if (status == MN_OK) status = mn_model_get_info(model, &s->info);
    if (status == MN_OK) status = open_cache(s);
    s->conversations = conversations_open();
    if (status == MN_OK && !s->conversations) status = MN_E_NOMEM;
    if (status == MN_OK) status = scheduler_open(&s->scheduler, &scheduling);
    if (status == MN_OK) status = open_speech(s);
    if (status == MN_OK && options->api_key_file) status = open_keys(s);
    if (status == MN_OK) status = http_open(s);
    if (status != MN_OK) serve_close(out, 0);
    return status;
}

int serve_port(const server *s) {
    return proxy_port(s->proxy);
}

/* Until nothing is computed and no client waits for bytes, or ms have passed. */
static void drain(server *s, double ms) {
    const struct timespec pause = {.tv_nsec = 5000000};
    for (double end = clock_ms() + ms; s->http && clock_ms() < end; nanosleep(&pause, NULL))
        if (scheduler_jobs(s->scheduler) + speech_jobs(s->speech) == 0 && proxy_n_busy(s->proxy) == 0) return;
}

void serve_close(server **out, double drain_ms) {
    server *s = *out;
    *out = NULL;
    if (!s) return;
    atomic_store(&s->drains, true);
    if (s->proxy) proxy_drain(s->proxy);
    drain(s, drain_ms);
    /* Connections that are still there may ask them, and are refused. */
    scheduler_stop(s->scheduler);
    file_worker_stop(s->file_worker); /* after the scheduler, which hands jobs to it */
    speech_stop(s->speech);
    drain(s, ANSWERS_MS); /* the answers of what was cancelled */
    http_close(s);
    speech_close(&s->speech);
    file_worker_close(&s->file_worker);
    scheduler_close(&s->scheduler);
    conversations_close(&s->conversations);
    keys_close(&s->keys);
    if (s->statm >= 0) close(s->statm);
    mn_generation_config_close(&s->config);
    mem_free(s);
}
