/* Quality of caches; bench/quality runs this program and makes calibration_use of its output.
 *
 * bench_quality score MODEL TEXT CALIBRATION LIST FIRST N MARK THREADS
 *   Feeds the tokens of a text to one session for each cache of a list, in parallel, and compares the distributions of
 *   the next token with those of the first cache, the reference. The first FIRST tokens are a prompt in one call and
 *   not scored; the N positions after them are, and the first MARK of these a second time separately.
 *
 * bench_quality find MODEL PROMPTS CALIBRATION LIST THREADS
 *   PROMPTS: a JSON list of {"prompt", "answer"}. Whether each token of the answer is the most probable one after the
 *   tokens before it.
 *
 *   CALIBRATION  text for the calibration of quantized keys, which is written to the folder $MNEME_CALIBRATIONS
 *   LIST         file of lines "HOW CALIBRATION IMPLEMENTATION DTYPE CONFIG"
 *                HOW: token (after the prompt one token per call, as in decoding) or chunk (128 per call)
 *                CALIBRATION: with, without
 *                IMPLEMENTATION: of mneme, or a name of block_codec.h
 *                CONFIG: optional
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/thread.h"
#include "bench_program.h"
#include "block_codec.h"

enum { CHUNK = 128, UNIT = 64, MOST = 64, SPANS = 2 };

/* Sums over the scored positions of a span. */
typedef struct score {
    double n, nll, kl, kl_squares, change, change_squares, n_same;
} score;

typedef struct candidate {
    mn_session *session;
    char how[8], calibration_use[8], implementation[64], dtype[8], config[256];
    bool is_block; /* a codec of blocks */
    block_codec block;
    float *logits; /* [CHUNK][vocab] of the chunk under way */
    score spans[SPANS];
} candidate;

typedef struct row_result {
    double kl, nll;
    int best;
} row_result;

typedef struct program {
    mn_model *model;
    mn_model_info info;
    text_ids text;
    size_t first, n_scored, mark;
    candidate list[MOST];
    int n;
    thread_pool *pool;
    size_t begin;        /* of the chunk being compared: its i-th logits follow token begin + i */
    float *shares;       /* [threads][vocab] */
    row_result *results; /* [n][CHUNK] */
} program;

/* ---- candidates ---- */

static void read_list(program *p, const char *path) {
    char line[512];
    FILE *file = fopen(path, "re");
    if (!file) exit(2);
    while (p->n < MOST && fgets(line, sizeof line, file)) {
        candidate *c = &p->list[p->n];
        if (sscanf(line, "%7s %7s %63s %7s %255s", c->how, c->calibration_use, c->implementation, c->dtype, c->config) <
            4)
            continue;
        c->is_block = block_codec_read(&c->block, c->implementation);
        p->n++;
    }
    fclose(file);
}

static mn_session *open_session(const program *p, const candidate *c) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    mn_session *session = NULL;
    options.implementation = c->is_block ? "dynamic" : c->implementation;
    options.dtype = c->dtype;
    options.config = c->config[0] ? c->config : NULL;
    must(mn_session_open(&session, p->model, &options));
    if (c->is_block) block_codec_use(&c->block, session);
    return session;
}

/* Candidates with a calibration come after those without are opened: a calibrated model uses its calibration. */
static void each_candidate(program *p, const char *calibration, void (*visit)(program *, candidate *)) {
    for (int pass = 0; pass < 2; pass++) {
        bool is_wanted = false;
        for (int i = 0; i < p->n; i++) is_wanted = is_wanted || strcmp(p->list[i].calibration_use, "with") == 0;
        if (pass && is_wanted) {
            text_ids text = read_tokens(p->model, calibration);
            calibrate(p->model, &text);
            mn_free(text.ids);
        }
        for (int i = 0; i < p->n; i++) {
            if ((strcmp(p->list[i].calibration_use, "with") == 0) == pass) visit(p, &p->list[i]);
        }
    }
}

static void feed(const program *p, candidate *c, mn_session *session, const int32_t *ids, size_t n, float *logits) {
    size_t most = c->is_block && c->block.residual ? UNIT : n;
    for (size_t at = 0; at < n; at += most) {
        size_t count = n - at < most ? n - at : most;
        must(mn_session_step(session, ids + at, count, logits ? logits + at * (size_t)p->info.vocab_size : NULL));
        if (c->is_block) block_codec_apply(&c->block, session);
    }
}

/* ---- scores ---- */

static void open_candidate(program *p, candidate *c) {
    c->session = open_session(p, c);
    c->logits = must_have(mem_alloc_raw((size_t)CHUNK * (size_t)p->info.vocab_size, sizeof(float)));
    feed(p, c, c->session, p->text.ids, p->first, NULL);
}

/* Token by token, for all candidates with HOW "token" together. */
static void feed_singly(const program *p, size_t begin, size_t n) {
    const size_t vocab = (size_t)p->info.vocab_size;
    for (size_t i = 0; i < n; i++) {
        mn_session *sessions[MOST];
        int32_t ids[MOST];
        int count = 0;
        for (int k = 0; k < p->n; k++) {
            if (strcmp(p->list[k].how, "token") != 0) continue;
            sessions[count] = p->list[k].session;
            ids[count++] = p->text.ids[begin + i];
        }
        if (count) must(mn_sessions_step(sessions, (size_t)count, ids));
        for (int k = 0; k < p->n; k++) {
            const candidate *c = &p->list[k];
            if (strcmp(c->how, "token") != 0) continue;
            memcpy(c->logits + i * vocab, mn_session_logits(c->session), vocab * sizeof(float));
        }
    }
}

static double log_sum(const float *logits, float most, int n) {
    double sum = 0;
    for (int i = 0; i < n; i += CHUNK) { /* short sums in float, long ones in double */
        float part = 0;
        for (int j = i; j < n && j < i + CHUNK; j++) part += expf(logits[j] - most);
        sum += (double)part;
    }
    return (double)most + log(sum);
}

/* All candidates at one position. The divergence is sum p (log p - log q), p of the reference. */
static void compare_task(void *arg, int task, int thread) {
    program *p = arg;
    const int vocab = p->info.vocab_size;
    const size_t offset = (size_t)task * (size_t)vocab;
    const float *exact = p->list[0].logits + offset;
    const int32_t next = p->text.ids[p->begin + (size_t)task + 1];
    float *shares = p->shares + (size_t)thread * (size_t)vocab;
    const double sum_exact = log_sum(exact, exact[best_of(exact, vocab)], vocab);
    for (int i = 0; i < vocab; i++) shares[i] = expf(exact[i] - (float)sum_exact);
    for (int k = 0; k < p->n; k++) {
        const float *logits = p->list[k].logits + offset;
        const int best = best_of(logits, vocab);
        const double sum = log_sum(logits, logits[best], vocab), shift = sum - sum_exact;
        double kl = 0;
        for (int i = 0; k && i < vocab; i++) kl += (double)shares[i] * ((double)(exact[i] - logits[i]) + shift);
        p->results[k * CHUNK + task] = (row_result){kl, sum - (double)logits[next], best};
    }
}

static void add(score *s, row_result exact, row_result row) {
    const double change = row.nll - exact.nll;
    s->n++;
    s->nll += row.nll;
    s->kl += row.kl;
    s->kl_squares += row.kl * row.kl;
    s->change += change;
    s->change_squares += change * change;
    s->n_same += row.best == exact.best;
}

static void compare(program *p, size_t begin, size_t n) {
    p->begin = begin;
    thread_run(p->pool, (int)n, compare_task, p);
    for (int k = 0; k < p->n; k++) {
        for (size_t i = 0; i < n; i++) {
            const row_result exact = p->results[i], row = p->results[(size_t)k * CHUNK + i];
            add(&p->list[k].spans[0], exact, row);
            if (begin + i < p->first + p->mark) add(&p->list[k].spans[1], exact, row);
        }
    }
}

static double error_of_mean(double sum, double squares, double n) {
    return sqrt(fmax(0, squares / n - sum / n * (sum / n)) / n);
}

/* One line per candidate: bytes per token, bytes held; for all positions and for the marked ones: perplexity, change in
 * per cent and its standard error, KL and its standard error, share of equal best tokens in per cent. */
static void print_scores(const program *p) {
    for (int k = 0; k < p->n; k++) {
        const candidate *c = &p->list[k];
        mn_cache_info cache = {.size = sizeof cache};
        must(mn_session_cache(c->session, &cache));
        uint64_t token_bytes = c->is_block ? block_codec_token_bytes(&c->block, &p->info) : cache.bytes_per_token;
        uint64_t held = c->is_block ? token_bytes * p->text.n : cache.bytes;
        printf("%llu %llu", (unsigned long long)token_bytes, (unsigned long long)held);
        for (int i = 0; i < SPANS; i++) {
            const score *s = &c->spans[i];
            double ratio = exp(s->change / s->n);
            printf(" %.6f %.6f %.6f %.8f %.8f %.4f", exp(s->nll / s->n), (ratio - 1) * 100,
                   error_of_mean(s->change, s->change_squares, s->n) * ratio * 100, s->kl / s->n,
                   error_of_mean(s->kl, s->kl_squares, s->n), 100 * s->n_same / s->n);
        }
        puts("");
    }
}

static void run_scores(program *p, const char *text, const char *calibration) {
    p->text = read_tokens(p->model, text);
    if (p->first < 1 || p->text.n < p->first + p->n_scored + 1) exit(2);
    p->text.n = p->first + p->n_scored + 1;
    size_t threads = (size_t)thread_pool_threads(p->pool);
    p->results = must_have(mem_alloc((size_t)p->n * CHUNK, sizeof *p->results));
    p->shares = must_have(mem_alloc(threads * (size_t)p->info.vocab_size, sizeof *p->shares));
    each_candidate(p, calibration, open_candidate);
    for (size_t at = p->first; at + 1 < p->text.n; at += CHUNK) {
        size_t n = p->text.n - 1 - at < CHUNK ? p->text.n - 1 - at : CHUNK;
        for (int k = 0; k < p->n; k++) {
            candidate *c = &p->list[k];
            if (strcmp(c->how, "token") != 0) feed(p, c, c->session, p->text.ids + at, n, c->logits);
        }
        feed_singly(p, at, n);
        compare(p, at, n);
        fprintf(stderr, "%zu of %zu tokens\n", at + n, p->text.n - 1);
    }
    print_scores(p);
}

/* ---- answers ---- */

static const json *prompts;

/* One line per candidate: for each prompt the number of correct tokens, and of all tokens of the answer. */
static void find_answers(program *p, candidate *c) {
    printf("%d", (int)(c - p->list));
    for (size_t i = 0; i < prompts->n; i++) {
        const json *prompt = json_get(&prompts->items[i], "prompt"), *answer = json_get(&prompts->items[i], "answer");
        if (!prompt || !answer) exit(2);
        text_ids question = tokens_of(p->model, prompt->string, prompt->n),
                 right = tokens_of(p->model, answer->string, answer->n);
        mn_session *session = open_session(p, c);
        int n_right = 0;
        feed(p, c, session, question.ids, question.n, NULL);
        for (size_t t = 0; t < right.n; t++) {
            n_right += best_of(mn_session_logits(session), p->info.vocab_size) == right.ids[t];
            if (t + 1 < right.n) must(mn_session_step(session, right.ids + t, 1, NULL));
        }
        printf(" %zu:%d/%zu", question.n, n_right, right.n);
        mn_session_close(&session);
        mn_free(question.ids);
        mn_free(right.ids);
    }
    puts("");
    fflush(stdout);
}

int main(int n, char **words) {
    static program p;
    const bool scores = n == 10 && strcmp(words[1], "score") == 0, finds = n == 7 && strcmp(words[1], "find") == 0;
    if (!scores && !finds) return 2;
    const int threads = atoi(words[n - 1]);
    p.model = open_model(words[2], threads);
    p.info.size = sizeof p.info;
    must(mn_model_get_info(p.model, &p.info));
    must(thread_pool_open(&p.pool, threads));
    read_list(&p, words[5]);
    if (scores) {
        p.first = (size_t)atol(words[6]);
        p.n_scored = (size_t)atol(words[7]);
        p.mark = (size_t)atol(words[8]);
        run_scores(&p, words[3], words[4]);
    } else {
        json_doc *doc = NULL;
        must(json_open(&doc, words[3], JSON_STRICT, TEXT_LIMIT));
        prompts = json_root(doc);
        each_candidate(&p, words[4], find_answers);
        json_close(&doc);
    }
    for (int k = 0; k < p.n; k++) {
        mn_session_close(&p.list[k].session);
        mem_free(p.list[k].logits);
    }
    mem_free(p.results);
    mem_free(p.shares);
    mn_free(p.text.ids);
    thread_pool_close(&p.pool);
    mn_model_close(&p.model);
    return 0;
}
