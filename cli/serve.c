/* `mneme serve`: one model over HTTP until a signal comes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/status.h"
#include "config.h"
#include "loaded_model.h"
#include "interrupt.h"
#include "output.h"
#include "serve.h"
#include "commands.h"

/* The model's name without its folder; NULL: there is no model. */
static const char *short_name(const loaded_model *e) {
    if (!e->path) return NULL;
    const char *slash = strrchr(e->path, '/');
    return slash && slash[1] ? slash + 1 : e->path;
}

static void greet(const options *o, const server *s, const loaded_model *e, const loaded_model *speech,
                  const mn_cache_options *cache) {
    const char *path = option_text(o, OPT_UNIX, NULL), *host = option_text(o, OPT_HOST, "127.0.0.1");
    bytes b = {0};
    bytes_append_text(&b, "listening on ");
    if (path)
        bytes_printf(&b, "unix:%s", path);
    else
        bytes_printf(&b, strchr(host, ':') ? "%s://[%s]:%d" : "%s://%s:%d",
                     option_text(o, OPT_SSL_CERT_FILE, NULL) ? "https" : "http", host, serve_port(s));
    bytes_printf(&b, " model=%s cache=%s ctx=%lld", short_name(e),
                 cache->implementation ? cache->implementation : "dynamic", (long long)e->info.max_position_embeddings);
    if (speech->model) bytes_printf(&b, " speech_model=%s", short_name(speech));
    bytes_append_text(&b, "\n");
    print_error_text("%s", bytes_text(&b));
    bytes_clear(&b);
}

/* The cache of requests that name none; what the checkpoint asks for in vain is a warning here, once, and so is a value
 * of its file that requests must replace. */
static mn_status resolve_cache(mn_cache_options *cache, mn_generation_config **config, const options *o,
                               const loaded_model *e) {
    mn_cache_summary kind;
    bytes warned = {0};
    MN_TRY(generation_build(config, o, e->model, NULL, NULL));
    mn_status status = generation_warn(*config, NULL, &warned);
    if (status == MN_E_FORMAT) {
        print_message("warning: %s; requests without a value of their own are refused", mn_last_error());
        status = MN_OK;
    }
    if (status == MN_OK) status = generation_cache(cache, &kind, *config);
    if (status == MN_OK) status = cache_warn(e->model, cache, &warned);
    bytes_clear(&warned);
    return status;
}

static void log_line(void *user, const char *line) {
    (void)user;
    print_error_text("%s\n", line);
}

static mn_status serve(const options *o, loaded_model *e, const loaded_model *speech, mn_generation_config **config) {
    mn_cache_options cache, resolved;
    server *s = NULL;
    if (option_is_set(o, OPT_LOG_FORMAT) && !option_on(o, OPT_LOG_REQUESTS))
        MN_FAIL(MN_E_ARG, "--log-format '%s' is given without --log-requests", option_text(o, OPT_LOG_FORMAT, ""));
    mn_cache_options_init(&cache, sizeof cache);
    MN_TRY(cache_options_read(o, &cache));
    resolved = cache;
    MN_TRY(resolve_cache(&resolved, config, o, e));
    const serve_options how = {.host = option_text(o, OPT_HOST, NULL),
                               .port = (int)option_number(o, OPT_PORT, 8080),
                               .unix_path = option_text(o, OPT_UNIX, NULL),
                               .api_key_file = option_text(o, OPT_API_KEY_FILE, NULL),
                               .allow_remote = option_on(o, OPT_ALLOW_REMOTE),
                               .ssl_cert_file = option_text(o, OPT_SSL_CERT_FILE, NULL),
                               .ssl_key_file = option_text(o, OPT_SSL_KEY_FILE, NULL),
                               .share_prefixes = option_on(o, OPT_SHARE_PREFIXES),
                               .name = short_name(e),
                               .speech_model = speech->model,
                               .speech_name = short_name(speech),
                               .speech_path = speech->model          ? speech->path
                                              : e->info.num_mel_bins ? e->path
                                                                     : NULL,
                               .cache = &cache,
                               .cache_fixed = option_on(o, OPT_CACHE_FIXED),
                               .cache_dir = option_text(o, OPT_CACHE_DIR, NULL),
                               .cache_dir_limit = (uint64_t)option_number(o, OPT_CACHE_DIR_LIMIT, 0),
                               .cache_quota = (uint64_t)option_number(o, OPT_CACHE_QUOTA, 0),
                               .cache_ttl = (double)option_number(o, OPT_CACHE_TTL, 0),
                               .no_prefix_cache = option_number(o, OPT_PREFIX_CACHE, 1) == 0,
                               .prefix_memory = (uint64_t)option_number(o, OPT_PREFIX_MEMORY, 0),
                               .max_num_seqs = (size_t)option_number(o, OPT_MAX_NUM_SEQS, 64),
                               .log = option_on(o, OPT_LOG_REQUESTS) ? log_line : NULL,
                               .log_json = strcmp(option_text(o, OPT_LOG_FORMAT, "text"), "json") == 0,
                               .max_queue = (size_t)option_number(o, OPT_MAX_QUEUE, 256),
                               .sandbox = option_number(o, OPT_SANDBOX, 1) != 0};
    MN_TRY(interrupt_listen());
    MN_TRY(serve_open(&s, e->model, &how));
    if (how.sandbox && serve_sandbox_lacks())
        print_error_text("this kernel has no %s: the sandbox is not whole\n", serve_sandbox_lacks());
    greet(o, s, e, speech, &resolved);
    for (bool leaves = false; !leaves;) {
        interrupt_wait(-1);
        interrupt_events events = interrupt_take();
        leaves = events.stop || events.leave;
    }
    interrupt_unwatch(); /* a second signal ends the command at once */
    serve_close(&s, 1000.0 * (double)option_number(o, OPT_DRAIN_TIMEOUT, 30));
    return MN_OK;
}

int command_serve(options *o) {
    loaded_model e = {0}, speech = {0};
    mn_generation_config *config = NULL;
    bool prints = option_on(o, OPT_PRINT_CONFIG);
    int code = EXIT_DONE; /* the speech model first: what memory it takes is not available to the other one */
    if (option_is_set(o, OPT_SPEECH_MODEL)) code = loaded_model_open_beside(&speech, o, OPT_SPEECH_MODEL);
    if (code == EXIT_DONE) code = loaded_model_open(&e, o, o->n_positional ? o->positional[0] : NULL, 0);
    if (code == EXIT_DONE && prints) {
        code = options_print_config(o, &e);
    } else if (code == EXIT_DONE) {
        mn_status status = serve(o, &e, &speech, &config);
        if (status != MN_OK) code = report(o, exit_of(status), NULL);
    }
    mn_generation_config_close(&config);
    loaded_model_close(&e);
    loaded_model_close(&speech);
    return code;
}
