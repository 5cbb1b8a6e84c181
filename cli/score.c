/* `mneme score`: negative log-likelihood and perplexity of a text, with the cache of the options.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "config.h"
#include "loaded_model.h"
#include "input.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "result.h"
#include "commands.h"

/* Logits kept at once when they are not all needed. A text within this limit is computed in one call. */
enum { LOGITS_BYTES = 1 << 29 };

typedef struct score {
    const options *o;
    loaded_model e;
    input in;
    mn_generation_config *config; /* has the texts of the cache */
    mn_cache_options cache;
    mn_cache_summary kind; /* of the cache */
    mn_session *session;
    prompt text;
    float *logits;
    double nll;
} score;

/* -log softmax(logits)[id] in double. */
static double negative_log_likelihood(const float *logits, int32_t vocab, int32_t id) {
    double most = -INFINITY, sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if ((double)logits[i] > most) most = (double)logits[i];
    }
    for (int32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - most);
    return most + log(sum) - (double)logits[id];
}

/* The text is computed in pieces of `chunk`, which --chunk or the memory for logits limits. */
static mn_status feed(score *s) {
    const size_t n = s->text.n, vocab = (size_t)s->e.info.vocab_size;
    bool keep = option_is_set(s->o, OPT_OUT);
    size_t fits = LOGITS_BYTES / (vocab * sizeof(float)), chunk = (size_t)option_number(s->o, OPT_CHUNK, 0),
           numbers = 0;
    if (chunk == 0) chunk = keep || n <= fits ? n : fits > 128 ? fits / 128 * 128 : 128;
    if (chunk > n) chunk = n;
    if (!size_mul(keep ? n : chunk, vocab, &numbers)) return mem_no_memory();
    s->logits = mem_alloc_raw(numbers, sizeof *s->logits);
    if (!s->logits) return mem_no_memory();
    MN_TRY(session_open(&s->session, s->o, s->e.model, &s->cache));
    interrupt_watch(s->session);
    double start = clock_ms();
    for (size_t at = 0; at < n; at += chunk) {
        size_t now = n - at < chunk ? n - at : chunk;
        float *logits = s->logits + (keep ? at * vocab : 0);
        MN_TRY(mn_session_step(s->session, s->text.ids + at, now, logits));
        for (size_t i = 0; i < now && at + i + 1 < n; i++) {
            s->nll += negative_log_likelihood(logits + i * vocab, s->e.info.vocab_size, s->text.ids[at + i + 1]);
        }
        if (interrupt_seen()) MN_FAIL(MN_E_CANCELLED, "cancelled after %zu of %zu tokens", at + now, n);
        progress_line("%zu of %zu tokens, %.0f tok/s", at + now, n, (double)(at + now) / (clock_ms() - start) * 1e3);
    }
    return MN_OK;
}

static mn_status check_length(const score *s) {
    long long n = (long long)s->text.n, own = s->e.info.max_position_embeddings, chosen = s->cache.max_cache_len;
    if (chosen > 0 && n > chosen) {
        MN_FAIL(MN_E_FULL, "the text has %lld tokens, max_cache_len is %lld; raise it or shorten the text", n, chosen);
    }
    if (chosen <= 0 && own > 0 && n > own && !s->kind.has_unbounded_context) {
        MN_FAIL(MN_E_ARG, "the text has %lld tokens, the model's context holds %lld; shorten it%s", n, own,
                loaded_model_beyond(&s->e));
    }
    if (n < 2) MN_FAIL(MN_E_ARG, "the text has one token; a score needs two or more");
    return MN_OK;
}

static mn_status print(score *s) {
    mn_cache_info cache = {.size = sizeof cache};
    MN_TRY(mn_session_cache(s->session, &cache));
    double perplexity = exp(s->nll / (double)(s->text.n - 1));
    bytes b = {0};
    if (option_on(s->o, OPT_JSON)) {
        bytes_printf(&b, "{\"tokens\":%zu,\"nll\":", s->text.n);
        json_put_real(&b, s->nll);
        bytes_append_text(&b, ",\"perplexity\":");
        json_put_real(&b, perplexity);
        bytes_append_text(&b, ",\"cache\":");
        result_put_cache(&b, &cache);
        bytes_append_text(&b, "}\n");
    } else {
        bytes_printf(&b, "tokens %zu\nnll %.6f\nperplexity %.6f\n", s->text.n, s->nll, perplexity);
    }
    put_bytes(&b);
    return MN_OK;
}

static mn_status write_logits(const score *s) {
    size_t vocab = (size_t)s->e.info.vocab_size;
    return mn_tensor_save(option_text(s->o, OPT_OUT, NULL), "logits",
                          (const int64_t[]){(int64_t)s->text.n, (int64_t)vocab}, 2, s->logits);
}

static int score_all(score *s) {
    const options *o = s->o;
    const char *out = option_text(o, OPT_OUT, NULL);
    mn_cache_options_init(&s->cache, sizeof s->cache);
    mn_status status = cache_options_read(o, &s->cache);
    if (status == MN_OK) status = cache_check_named(&s->cache);
    if (status != MN_OK) return report(o, exit_of(status), "cache");
    bool prints = option_on(o, OPT_PRINT_CONFIG);
    status = out ? file_check_target(out) : MN_OK;
    if (status != MN_OK) return report(o, exit_of(status), "out");
    if (!prints) status = input_read(&s->in, o, NULL);
    if (status != MN_OK) return report(o, exit_of(status), "prompt");
    int code = loaded_model_open(&s->e, o, o->n_positional ? o->positional[0] : NULL, 0);
    if (code == EXIT_DONE && prints) return options_print_config(o, &s->e);
    if (code != EXIT_DONE) return code;
    status = options_cache(&s->config, &s->cache, &s->kind, o, &s->e);
    if (status != MN_OK) return report(o, exit_of(status), "cache");
    loaded_model_bound(&s->e, &s->kind);
    status = prompt_from_input(&s->text, o, &s->in, mn_model_tokenizer(s->e.model), NULL);
    if (status == MN_OK) status = check_length(s);
    if (status == MN_OK && s->kind.preallocates && s->cache.max_cache_len <= 0) {
        s->cache.max_cache_len = (int64_t)s->text.n;
    }
    if (status == MN_OK) status = feed(s);
    progress_clear();
    if (status == MN_OK && out) status = write_logits(s);
    if (status == MN_OK) status = session_save(&s->e, s->session, o);
    if (status == MN_OK) status = print(s);
    return status == MN_OK ? EXIT_DONE : report(o, exit_of(status), NULL);
}

int command_score(options *o) {
    score s = {.o = o};
    int code = score_all(&s);
    interrupt_unwatch();
    mn_session_close(&s.session);
    mn_generation_config_close(&s.config);
    mem_free(s.logits);
    prompt_clear(&s.text);
    input_clear(&s.in);
    loaded_model_close(&s.e);
    return code;
}
