/* One prefix, many prompts: the prefix is computed once and forked for each prompt; forks share its pages, so memory
 * holds one prefix and the rest of each prompt. usage: prefix [MODEL [PREFIX [PROMPT...]]] */
#include <mneme.h>
#include <stdio.h>
#include <string.h>

/* The text's tokens after those of the prefix: *ids [*n], owned by the caller. */
static mn_status join(const mn_tokenizer *tokenizer, const char *prefix, const char *prompt, int32_t **ids, size_t *n) {
    char text[4096];
    snprintf(text, sizeof text, "%s%s", prefix, prompt);
    return mn_tokenize(tokenizer, text, strlen(text), MN_ADD_SPECIAL, ids, n);
}

/* Continues one prompt from a fork; only the tokens after the common ones are computed. */
static mn_status answer(const mn_session *prefix, const int32_t *ids, size_t n, const mn_generation_config *config) {
    mn_session *fork = NULL;
    mn_generation *generation = NULL;
    mn_status status = mn_session_fork(&fork, prefix);
    if (status == MN_OK) status = mn_generate(fork, ids, n, config, NULL, &generation);
    if (status == MN_OK) {
        const mn_sequence *sequence = generation->sequences[0];
        printf("[%zu of %zu tokens were there] %s\n", sequence->cached_tokens, sequence->prompt_tokens, sequence->text);
    }
    mn_generation_close(&generation);
    mn_session_close(&fork);
    return status;
}

int main(int argc, char **argv) {
    static char *const own[] = {" dog", " girl named Lily", " boy who had a red ball"};
    const char *begin = argc > 2 ? argv[2] : "Once upon a time there was a little";
    char *const *prompts = argc > 3 ? argv + 3 : own;
    int n_prompts = argc > 3 ? argc - 3 : 3;
    char *path = NULL;
    mn_model *model = NULL;
    mn_session *prefix = NULL;
    mn_generation_config *config = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    mn_status status = mn_model_find(&path, argc > 1 ? argv[1] : "embedded");
    if (status == MN_OK) status = mn_model_open(&model, path, NULL);
    const mn_tokenizer *tokenizer = model ? mn_model_tokenizer(model) : NULL;
    if (status == MN_OK) status = mn_session_open(&prefix, model, NULL);
    if (status == MN_OK) status = mn_generation_config_open(&config, model);
    if (status == MN_OK) status = mn_generation_config_set(config, "max_new_tokens", "24");
    if (status == MN_OK) status = join(tokenizer, begin, "", &ids, &n);
    if (status == MN_OK) status = mn_session_step(prefix, ids, n, NULL); /* once */
    for (int i = 0; status == MN_OK && i < n_prompts; i++) {
        mn_free(ids);
        ids = NULL;
        status = join(tokenizer, begin, prompts[i], &ids, &n);
        if (status == MN_OK) status = answer(prefix, ids, n, config);
    }
    if (status != MN_OK) fprintf(stderr, "%s\n", mn_last_error());
    mn_free(ids);
    mn_generation_config_close(&config);
    mn_session_close(&prefix);
    mn_model_close(&model);
    mn_free(path);
    return status == MN_OK ? 0 : 1;
}
