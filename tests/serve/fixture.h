/* A server of the embedded model for a test, and what the library generates from a prompt.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_FIXTURE_H
#define TESTS_SERVE_FIXTURE_H

#include "base/mem.h"
#include "serve.h"
#include "serve/chat_model.h"
#include "serve/client.h"
#include "session/session.h"

typedef struct fixture {
    mn_model *model;
    server *server;
    int port;
    int64_t live; /* blocks of memory before it was opened */
} fixture;

/* The server takes the model, which was opened with `live` blocks of memory there. */
static inline fixture serve_model(mn_model *model, int64_t live, serve_options options) {
    fixture w = {.model = model, .live = live};
    if (!options.name) options.name = "tiny";
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    return w;
}

/* chat_template: NULL: none. With PLAIN_TEMPLATE the prompt of one message is "<s>user: Hello\nassistant:". */
static inline fixture serve_embedded(const char *chat_template, serve_options options) {
    int64_t live = mem_count().live;
    mn_model *model = chat_template ? chat_model(chat_template) : engine_model("embedded", "auto", "auto", 2);
    return serve_model(model, live, options);
}

static inline void close_fixture(fixture *w) {
    serve_close(&w->server, 2000);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
    assert_int_equal(mem_count().live, w->live);
}

/* What the library answers to this text, in which special tokens are spelled. settings: names and values [NULL at the
 * end] beside do_sample false. *n_prompt: tokens of the text. */
static inline mn_generation *alone(const fixture *w, const char *prompt, const char *const *settings,
                                   size_t *n_prompt) {
    mn_generation_config *config = NULL;
    mn_generation *g = NULL;
    int32_t *ids = NULL;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    for (; *settings; settings += 2) assert_ok(mn_generation_config_set(config, settings[0], settings[1]));
    assert_ok(mn_tokenize(mn_model_tokenizer(w->model), prompt, strlen(prompt), 0, &ids, n_prompt));
    mn_session *session = engine_session(w->model, (engine_cache){.implementation = "dynamic"});
    assert_ok(mn_generate(session, ids, *n_prompt, config, NULL, &g));
    mn_session_close(&session);
    mn_generation_config_close(&config);
    mn_free(ids);
    return g;
}

#endif
