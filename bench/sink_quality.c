/* Feeds a book longer than the model's context through windows of WINDOW tokens: with sinks, without sinks, with
 * quantized sinks, and at every EVERY-th position with a recomputed window; bench/quality runs this program and makes a
 * table of its output.
 *
 * bench_sink MODEL BOOK TOKENS WINDOW EVERY CALIBRATION THREADS
 *   CALIBRATION: text for the calibration of quantized keys, which is written to the folder $MNEME_CALIBRATIONS
 *
 * One line for each eighth of the tokens: tokens fed; for each cache the mean negative log-probability of the next
 * token over all positions of that eighth; number of recomputed windows; the same mean at their positions, for the
 * recomputed windows and for each cache; bytes of each cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/thread.h"
#include "bench_program.h"

enum { CHUNK = 128, N_CACHES = 3, PARTS = 8 };

typedef struct sums {
    double all[N_CACHES], sampled[N_CACHES], fresh;
    size_t n, n_sampled;
} sums;

typedef struct program {
    mn_model *model;
    int vocab;
    size_t window, every;
    text_ids book;
    mn_session *sessions[N_CACHES], *fresh;
    float *logits; /* [CHUNK][vocab] */
} program;

static double loss(const float *logits, int vocab, int32_t next) {
    const float most = logits[best_of(logits, vocab)];
    double sum = 0;
    for (int i = 0; i < vocab; i++) sum += (double)expf(logits[i] - most);
    return log(sum) + (double)(most - logits[next]);
}

static mn_session *open_session(mn_model *model, const char *implementation, const char *config) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    mn_session *session = NULL;
    options.implementation = implementation;
    options.config = config;
    must(mn_session_open(&session, model, &options));
    return session;
}

static void open_sessions(program *p) {
    char window[64], coded[96];
    snprintf(window, sizeof window, "window_length=%zu", p->window);
    snprintf(coded, sizeof coded, "window_length=%zu,nbits=4", p->window);
    p->sessions[0] = open_session(p->model, "sink", window);
    p->sessions[1] = open_session(p->model, "quantized+sink", coded);
    p->sessions[2] = open_session(p->model, "sliding_window", window);
    p->fresh = open_session(p->model, "dynamic", NULL);
}

/* The window that ends with token `last`, without earlier tokens. */
static double fresh_loss(program *p, size_t last) {
    must(mn_session_truncate(p->fresh, 0));
    must(mn_session_step(p->fresh, p->book.ids + last + 1 - p->window, p->window, NULL));
    return loss(mn_session_logits(p->fresh), p->vocab, p->book.ids[last + 1]);
}

/* Positions whose window is not full are equal for all caches and are not counted. */
static void run_chunk(program *p, size_t begin, size_t n, sums *s) {
    for (int k = 0; k < N_CACHES; k++) {
        must(mn_session_step(p->sessions[k], p->book.ids + begin, n, p->logits));
        for (size_t i = 0; i < n; i++) {
            if (begin + i < p->window) continue;
            double nll = loss(p->logits + i * (size_t)p->vocab, p->vocab, p->book.ids[begin + i + 1]);
            s->all[k] += nll;
            s->n += k == 0;
            if ((begin + i) % p->every == 0) s->sampled[k] += nll;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (begin + i < p->window || (begin + i) % p->every) continue;
        s->fresh += fresh_loss(p, begin + i);
        s->n_sampled++;
    }
}

static void print_part(const program *p, size_t n_fed, const sums *s) {
    printf("%zu", n_fed);
    for (int k = 0; k < N_CACHES; k++) printf(" %.6f", s->all[k] / (double)s->n);
    printf(" %zu %.6f", s->n_sampled, s->fresh / (double)s->n_sampled);
    for (int k = 0; k < N_CACHES; k++) printf(" %.6f", s->sampled[k] / (double)s->n_sampled);
    for (int k = 0; k < N_CACHES; k++) {
        mn_cache_info cache = {.size = sizeof cache};
        must(mn_session_cache(p->sessions[k], &cache));
        printf(" %llu", (unsigned long long)cache.bytes);
    }
    puts("");
    fflush(stdout);
}

int main(int n, char **words) {
    static program p;
    if (n != 8) return 2;
    const size_t n_tokens = (size_t)atol(words[3]) / (PARTS * CHUNK) * (PARTS * CHUNK), part = n_tokens / PARTS;
    p.window = (size_t)atol(words[4]);
    p.every = (size_t)atol(words[5]);
    p.model = open_model(words[1], atoi(words[7]));
    p.book = read_tokens(p.model, words[2]);
    if (p.every < 1 || p.window < 8 || part <= p.window || p.book.n < n_tokens + 1) return 2;
    mn_model_info info = {.size = sizeof info};
    must(mn_model_get_info(p.model, &info));
    p.vocab = info.vocab_size;
    p.logits = must_have(mem_alloc_raw((size_t)CHUNK * (size_t)p.vocab, sizeof *p.logits));
    text_ids calibration = read_tokens(p.model, words[6]);
    calibrate(p.model, &calibration);
    open_sessions(&p);
    sums s = {0};
    for (size_t at = 0; at < n_tokens; at += CHUNK) {
        run_chunk(&p, at, CHUNK, &s);
        if ((at + CHUNK) % part) continue;
        print_part(&p, at + CHUNK, &s);
        s = (sums){0};
    }
    for (int k = 0; k < N_CACHES; k++) mn_session_close(&p.sessions[k]);
    mn_session_close(&p.fresh);
    mem_free(p.logits);
    mn_free(p.book.ids);
    mn_free(calibration.ids);
    mn_model_close(&p.model);
    return 0;
}
