/* Opens a model, continues a text and prints it as it comes. usage: generate [MODEL [TEXT]] */
#include <mneme.h>
#include <stdio.h>
#include <string.h>

static bool print(void *user, const mn_token_event *event) {
    (void)user;
    return fwrite(event->text, 1, event->n_text, stdout) == event->n_text && fflush(stdout) == 0;
}

int main(int argc, char **argv) {
    const char *text = argc > 2 ? argv[2] : "Once upon a time";
    char *path = NULL;
    mn_model *model = NULL;
    mn_session *session = NULL;
    mn_generation_config *config = NULL;
    mn_generation *generation = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    options.on_token = print;
    bool ok = mn_model_find(&path, argc > 1 ? argv[1] : "embedded") == MN_OK &&
              mn_model_open(&model, path, NULL) == MN_OK &&
              mn_tokenize(mn_model_tokenizer(model), text, strlen(text), MN_ADD_SPECIAL, &ids, &n) == MN_OK &&
              mn_session_open(&session, model, NULL) == MN_OK && mn_generation_config_open(&config, model) == MN_OK &&
              mn_generation_config_set(config, "max_new_tokens", "60") == MN_OK &&
              mn_generate(session, ids, n, config, &options, &generation) == MN_OK;
    if (ok) {
        puts("");
    } else {
        fprintf(stderr, "%s\n", mn_last_error());
    }
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    mn_free(ids);
    mn_model_close(&model);
    mn_free(path);
    return ok ? 0 : 1;
}
