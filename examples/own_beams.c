/* A beam search written with public functions only: beams are sessions, a step chooses the best continuations of all of
 * them, mn_sessions_select forks and drops beams accordingly (no key or value moves), mn_sessions_step feeds every beam
 * its token in one pass. usage: own_beams [MODEL [TEXT [BEAMS [STEPS]]]] */
#include <math.h>
#include <mneme.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BEAMS = 64 };

typedef struct candidate {
    double score; /* sum of log-probabilities */
    int32_t beam, id;
} candidate;

/* Inserts a candidate into the `width` best, best first; ties keep the order of insertion. */
static void keep(candidate *best, int *n, int width, candidate c) {
    if (*n == width && c.score <= best[width - 1].score) return;
    int at = *n < width ? (*n)++ : width - 1;
    for (; at > 0 && best[at - 1].score < c.score; at--) best[at] = best[at - 1];
    best[at] = c;
}

static double log_sum_exp(const float *logits, int32_t n) {
    double most = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

/* beams[0] holds the prompt; afterwards the beams are the best continuations, best first, and *score is the first
 * one's. */
static mn_status beam_search(mn_session **beams, int width, int32_t vocab_size, int steps, double *score) {
    double scores[MOST_BEAMS] = {0};
    int n_beams = 1;
    for (int step = 0; step < steps; step++) {
        candidate best[MOST_BEAMS];
        int32_t from[MOST_BEAMS], ids[MOST_BEAMS];
        int n = 0;
        for (int32_t b = 0; b < n_beams; b++) {
            const float *logits = mn_session_logits(beams[b]);
            double all = log_sum_exp(logits, vocab_size);
            for (int32_t id = 0; id < vocab_size; id++)
                keep(best, &n, width, (candidate){scores[b] + (double)logits[id] - all, b, id});
        }
        for (int i = 0; i < n; i++) {
            from[i] = best[i].beam;
            ids[i] = best[i].id;
            scores[i] = best[i].score;
        }
        mn_status status = mn_sessions_select(beams, (size_t)n_beams, from, (size_t)n);
        if (status != MN_OK) return status;
        n_beams = n;
        status = mn_sessions_step(beams, (size_t)n_beams, ids);
        if (status != MN_OK) return status;
    }
    *score = scores[0];
    return MN_OK;
}

int main(int argc, char **argv) {
    const char *text = argc > 2 ? argv[2] : "Once upon a time";
    int width = argc > 3 ? atoi(argv[3]) : 4, steps = argc > 4 ? atoi(argv[4]) : 16;
    if (width < 1 || width > MOST_BEAMS || steps < 1)
        return fprintf(stderr, "BEAMS: 1 to %d, STEPS: 1 or more\n", MOST_BEAMS), 2;
    char *path = NULL, *answer = NULL;
    mn_model *model = NULL;
    mn_session *beams[MOST_BEAMS] = {NULL};
    int32_t *ids = NULL;
    size_t n = 0;
    double score = 0;
    mn_model_info info = {.size = sizeof info};
    mn_status status = mn_model_find(&path, argc > 1 ? argv[1] : "embedded");
    if (status == MN_OK) status = mn_model_open(&model, path, NULL);
    if (status == MN_OK) status = mn_model_get_info(model, &info);
    if (status == MN_OK) status = mn_tokenize(mn_model_tokenizer(model), text, strlen(text), MN_ADD_SPECIAL, &ids, &n);
    if (status == MN_OK) status = mn_session_open(&beams[0], model, NULL);
    if (status == MN_OK) status = mn_session_step(beams[0], ids, n, NULL);
    if (status == MN_OK) status = beam_search(beams, width, info.vocab_size, steps, &score);
    if (status == MN_OK)
        status = mn_detokenize(mn_model_tokenizer(model), mn_session_ids(beams[0]), n + (size_t)steps, MN_SKIP_SPECIAL,
                               &answer, NULL);
    if (status == MN_OK) printf("%s\n%.4f\n", answer, score);
    if (status != MN_OK) fprintf(stderr, "%s\n", mn_last_error());
    for (int i = 0; i < MOST_BEAMS; i++) mn_session_close(&beams[i]);
    mn_free(answer);
    mn_free(ids);
    mn_model_close(&model);
    mn_free(path);
    return status == MN_OK ? 0 : 1;
}
