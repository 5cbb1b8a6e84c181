/* A conversation on one session: each line that is typed is a message, and only what is new of it is computed.
 * usage: chat [MODEL] < LINES */
#include <mneme.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct chat {
    mn_model *model;
    mn_session *session;
    mn_generation_config *config;
    char *messages; /* JSON without the last bracket; owned */
    size_t n;
} chat;

static bool print(void *user, const mn_token_event *event) {
    (void)user;
    return fwrite(event->text, 1, event->n_text, stdout) == event->n_text && fflush(stdout) == 0;
}

/* Appends {"role": ..., "content": ...}; false without memory. */
static bool add_message(chat *c, const char *role, const char *text, size_t n) {
    char *grown = realloc(c->messages, c->n + 6 * n + 64);
    if (!grown) return false;
    c->messages = grown;
    c->n += (size_t)sprintf(grown + c->n, "%c{\"role\":\"%s\",\"content\":\"", c->n ? ',' : '[', role);
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        bool escaped = byte < 32 || byte == '"' || byte == '\\';
        c->n += (size_t)sprintf(grown + c->n, escaped ? "\\u%04x" : "%c", byte);
    }
    c->n += (size_t)sprintf(grown + c->n, "\"}");
    return true;
}

/* The ids of all messages: those that the session holds, and behind them the new ones. */
static mn_status make_prompt(const chat *c, int32_t **ids, size_t *n, size_t *n_kept) {
    const mn_tokenizer *tokenizer = mn_model_tokenizer(c->model);
    char *text = NULL;
    size_t n_text = 0;
    c->messages[c->n] = ']';
    mn_status status = mn_chat_render(tokenizer, c->messages, c->n + 1, true, &text, &n_text);
    if (status == MN_OK)
        status = mn_tokenize_after(tokenizer, mn_session_ids(c->session), (size_t)mn_session_length(c->session), text,
                                   n_text, 0, ids, n, n_kept);
    mn_free(text);
    return status;
}

static mn_status answer(chat *c) {
    mn_generate_options options;
    mn_generation *generation = NULL;
    int32_t *ids = NULL;
    size_t n = 0, n_kept = 0;
    mn_generate_options_init(&options, sizeof options);
    options.on_token = print;
    mn_status status = make_prompt(c, &ids, &n, &n_kept);
    if (status == MN_OK) status = mn_generate(c->session, ids, n, c->config, &options, &generation);
    if (status == MN_OK) {
        const mn_sequence *sequence = generation->sequences[0];
        printf("\n[%zu of %zu tokens were there]\n", sequence->cached_tokens, sequence->prompt_tokens);
        if (!add_message(c, "assistant", sequence->text, sequence->n_text)) status = MN_E_NOMEM;
    }
    mn_generation_close(&generation);
    mn_free(ids);
    return status;
}

int main(int argc, char **argv) {
    chat c = {0};
    char *path = NULL, line[4096];
    mn_status status = mn_model_find(&path, argc > 1 ? argv[1] : "smollm2");
    if (status == MN_OK) status = mn_model_open(&c.model, path, NULL);
    if (status == MN_OK) status = mn_session_open(&c.session, c.model, NULL);
    if (status == MN_OK) status = mn_generation_config_open(&c.config, c.model);
    if (status == MN_OK) status = mn_generation_config_set(c.config, "max_new_tokens", "100");
    while (status == MN_OK && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        status = add_message(&c, "user", line, strlen(line)) ? answer(&c) : MN_E_NOMEM;
    }
    if (status != MN_OK) fprintf(stderr, "%s\n", status == MN_E_NOMEM ? "out of memory" : mn_last_error());
    free(c.messages);
    mn_generation_config_close(&c.config);
    mn_session_close(&c.session);
    mn_model_close(&c.model);
    mn_free(path);
    return status == MN_OK ? 0 : 1;
}
