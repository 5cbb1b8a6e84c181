/* A generation loop of one's own: fill a cache with the prompt, take the most likely token, feed it, again. Every line
 * shows the token's position and how the keys of layer 0 grow. usage: own_loop [MODEL [TEXT [STEPS]]] */
#include <mneme.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

static void show(const mn_session *session, const mn_tokenizer *tokenizer, int32_t id) {
    int64_t shape[4] = {0};
    mn_session_kv_shape(session, 0, shape);
    printf("position %3lld  keys [%lld, %lld, %lld, %lld]  next %3d %s\n", (long long)mn_session_length(session) - 1,
           (long long)shape[0], (long long)shape[1], (long long)shape[2], (long long)shape[3], (int)id,
           tokenizer ? mn_token_piece(tokenizer, id) : "");
}

/* Feeds `prompt`, then the `steps` most likely tokens. */
static mn_status loop(mn_session *session, const mn_tokenizer *tokenizer, const int32_t *prompt, size_t n,
                      int32_t vocab_size, int steps) {
    mn_status status = mn_session_step(session, prompt, n, NULL); /* prefill: all at once */
    for (int step = 0; status == MN_OK && step < steps; step++) {
        int32_t next = argmax(mn_session_logits(session), vocab_size);
        show(session, tokenizer, next);
        status = mn_session_step(session, &next, 1, NULL); /* the cache holds the past: one token is enough */
    }
    return status;
}

int main(int argc, char **argv) {
    const char *text = argc > 2 ? argv[2] : "Once upon a time";
    int steps = argc > 3 ? atoi(argv[3]) : 8;
    char *path = NULL;
    mn_model *model = NULL;
    mn_session *session = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    mn_model_info info = {.size = sizeof info};
    mn_status status = mn_model_find(&path, argc > 1 ? argv[1] : "embedded");
    if (status == MN_OK) status = mn_model_open(&model, path, NULL);
    if (status == MN_OK) status = mn_model_get_info(model, &info);
    if (status == MN_OK) status = mn_tokenize(mn_model_tokenizer(model), text, strlen(text), MN_ADD_SPECIAL, &ids, &n);
    if (status == MN_OK) status = mn_session_open(&session, model, NULL);
    if (status == MN_OK) status = loop(session, mn_model_tokenizer(model), ids, n, info.vocab_size, steps);
    if (status != MN_OK) fprintf(stderr, "%s\n", mn_last_error());
    mn_session_close(&session);
    mn_free(ids);
    mn_model_close(&model);
    mn_free(path);
    return status == MN_OK ? 0 : 1;
}
