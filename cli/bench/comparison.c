/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/comparison.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "bench/figures.h"
#include "interrupt.h"
#include "progress.h"

/* The text where none is given. */
static const char standard_text[] =
    "A reader who opens a long letter does not begin again at its first line whenever a new word comes. What was read "
    "stays in mind, in some form, and the next word is understood in its light. A language model works in the same "
    "way. For every word it has seen, each of its layers keeps two short lists of numbers: a key, which says what the "
    "word can be asked about, and a value, which says what it answers. The next word brings a question, the question "
    "is compared with every key, and the answers are mixed by how well the keys fit.\n\n"
    "Those lists grow with the letter. After four thousand words they fill more memory than many a small model does, "
    "and all of it is read again for every new word. So people have looked for ways to keep less. One can write the "
    "numbers down more coarsely, as a traveller writes short notes instead of whole sentences; most of the meaning "
    "stays, and the notebook is thin. One can forget the middle and keep the beginning and the end, which is enough "
    "for a talk that wanders from subject to subject, but not for a question about the third page. One can put the "
    "old pages on a shelf and fetch them when their turn comes, which costs time and nothing else.\n\n"
    "Which of these is right depends on the letter and on the reader. A recipe wants every number; a fairy tale does "
    "not mind if the colour of the second horse is forgotten. It is better to measure than to guess: read the same "
    "letter in each way, ask after every word what should come next, and look how often the answers agree. Where they "
    "always agree, nothing was lost. Where they differ now and then, one can count how much, and set against it what "
    "was saved. The old poets, who had no paper, called upon Mneme before they began, and she gave them the whole of "
    "a long song, line after line, in the right order. We have paper, and so we are left with the smaller art of "
    "deciding what to write down.\n";

/* ---- the text ---- */

static mn_status random_text(prompt *text, const loaded_model *e) {
    enum { RANDOM_TOKENS = 384 };
    text->ids = mem_alloc(RANDOM_TOKENS, sizeof *text->ids);
    if (!text->ids) return mem_no_memory();
    text->n = RANDOM_TOKENS;
    for (size_t i = 0; i < RANDOM_TOKENS; i++)
        text->ids[i] = (int32_t)(random_bits(1, 0, i) % (uint64_t)e->info.vocab_size);
    return MN_OK;
}

mn_status comparison_read_text(prompt *text, const char **source, const options *o, const loaded_model *e) {
    const mn_tokenizer *tokenizer = mn_model_tokenizer(e->model);
    input in = {0};
    if (!input_is_given(o)) {
        *source = tokenizer ? "built in" : "random tokens";
        return tokenizer ? prompt_from_text(text, tokenizer, standard_text, sizeof standard_text - 1, false)
                         : random_text(text, e);
    }
    mn_status status = input_read(&in, o, NULL);
    if (status == MN_OK) status = prompt_from_input(text, o, &in, tokenizer, NULL);
    *source = in.kind == INPUT_IDS ? "ids" : option_text(o, OPT_TEXT, "");
    input_clear(&in);
    return status;
}

mn_status comparison_plan(compared_text *t, const segment *segments, int n) {
    size_t numbers = 0;
    mem_free(t->reference);
    mem_free(t->reference_log_sums);
    t->n_segments = n;
    t->n_compared = 0;
    for (int i = 0; i < n; i++) {
        t->segments[i] = segments[i];
        if (segments[i].is_compared) t->n_compared += segments[i].n;
    }
    t->reference_log_sums = mem_alloc(t->n_compared, sizeof *t->reference_log_sums);
    t->reference =
        size_mul(t->n_compared, t->vocab_size, &numbers) ? mem_alloc_raw(numbers, sizeof *t->reference) : NULL;
    return t->reference && t->reference_log_sums ? MN_OK : mem_no_memory();
}

void comparison_clear(compared_text *t) {
    mem_free(t->ids);
    mem_free(t->reference);
    mem_free(t->reference_log_sums);
    *t = (compared_text){0};
}

/* ---- distributions ---- */

static double log_sum(const float *logits, size_t n) {
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, (double)logits[i]);
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

static int32_t best_of(const float *logits, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* Keeps the logits of dynamic as those of compared token k, behind `fed` tokens. */
static void note(compared_text *t, size_t k, size_t fed, const float *logits) {
    memcpy(t->reference + k * t->vocab_size, logits, t->vocab_size * sizeof *logits);
    t->reference_log_sums[k] = log_sum(logits, t->vocab_size);
    if (fed >= t->n_text) t->ids[fed] = best_of(logits, t->vocab_size);
}

static void compare(const compared_text *t, size_t k, size_t fed, const float *logits, cache_measure *out) {
    const float *reference = t->reference + k * t->vocab_size;
    double sum = log_sum(logits, t->vocab_size), reference_log_sum = t->reference_log_sums[k], kl = 0;
    for (size_t j = 0; j < t->vocab_size; j++) {
        double log_p = (double)reference[j] - reference_log_sum, log_q = (double)logits[j] - sum;
        kl += exp(log_p) * (log_p - log_q);
    }
    int32_t id = t->ids[fed];
    kl = fmax(kl, 0);
    out->kl += kl;
    out->kl_squares += kl * kl;
    out->nll += sum - (double)logits[id];
    out->reference_nll += reference_log_sum - (double)reference[id];
    out->same += best_of(logits, t->vocab_size) == best_of(reference, t->vocab_size);
}

/* ---- the text through a cache ---- */

/* A run of the text. to_note: the text again, whose reference this run is; NULL: another cache is compared. */
typedef struct text_run {
    const compared_text *t;
    compared_text *to_note;
    const cache_choice *choice;
    mn_session *session;
    cache_measure *out;
    double *token_ms; /* of the tokens of a segment */
    size_t n_looked;  /* at compared tokens */
} text_run;

static mn_status step(text_run *r, size_t begin, size_t n, double *ms) {
    double start = clock_ms();
    MN_TRY(mn_session_step(r->session, &r->t->ids[begin], n, NULL));
    *ms = clock_ms() - start;
    if (interrupt_seen()) MN_FAIL(MN_E_CANCELLED, "cancelled");
    if (r->t->end_ms > 0 && clock_ms() > r->t->end_ms) MN_FAIL(MN_E_FULL, "the time is over");
    return MN_OK;
}

static mn_status run_segment(text_run *r, int index) {
    const segment *s = &r->t->segments[index];
    double *sum = &r->out->new_ms[index];
    for (size_t i = 0; i < s->n; i++) {
        const size_t fed = s->begin + i;
        const float *logits = mn_session_logits(r->session);
        if (s->is_compared && r->to_note) note(r->to_note, r->n_looked++, fed, logits);
        if (s->is_compared && !r->to_note) compare(r->t, r->n_looked++, fed, logits, r->out);
        if (i + 1 == s->n) break;
        MN_TRY(step(r, fed, 1, &r->token_ms[i]));
        *sum += r->token_ms[i];
        progress_line("%s %s: %zu of %zu tokens", r->choice->name, r->choice->config, fed + 1, r->t->n - 1);
    }
    r->out->median_ms[index] = median_of(r->token_ms, s->n - 1);
    return MN_OK;
}

/* Whether the cache has done what makes its numbers others: dropped tokens, if it has a window (those of the model do
 * not count), and quantized some, if it quantizes. */
static mn_status look_for_losses(const text_run *r) {
    enum { EXACT_BITS = 16 };
    const mn_cache_options how = cache_choice_options(r->choice, &r->t->cache);
    mn_cache_summary kind = {.size = sizeof kind};
    mn_cache_info cache = {.size = sizeof cache};
    MN_TRY(mn_cache_check(&how, &kind));
    MN_TRY(mn_session_cache(r->session, &cache));
    bool drops = !kind.has_unbounded_context, has_codes = false, quantizes = false;
    for (int i = 0; i < cache.num_layers; i++) {
        mn_layer_info layer = {.size = sizeof layer};
        MN_TRY(mn_session_layer(r->session, i, &layer));
        drops = drops || (layer.window_length > 0 && layer.tokens > layer.window_length);
        if (strcmp(layer.kind, "state") != 0)
            has_codes = has_codes || layer.key_bits < EXACT_BITS || layer.value_bits < EXACT_BITS;
        quantizes = quantizes || layer.quantized_tokens > 0;
    }
    r->out->has_begun = drops && (quantizes || !has_codes);
    return MN_OK;
}

static mn_status run_segments(text_run *r) {
    size_t fed = 0;
    for (int i = 0; i < r->t->n_segments; i++) {
        const segment *s = &r->t->segments[i];
        double ms = 0;
        progress_line("%s %s: %zu of %zu tokens", r->choice->name, r->choice->config, fed, r->t->n - 1);
        if (s->begin > fed) MN_TRY(step(r, fed, s->begin - fed, &ms));
        r->out->prompt_ms += ms;
        MN_TRY(run_segment(r, i));
        if (s->is_compared) MN_TRY(look_for_losses(r));
        fed = s->begin + s->n - 1;
    }
    r->out->cache.size = sizeof r->out->cache;
    MN_TRY(mn_session_cache(r->session, &r->out->cache));
    snprintf(r->out->dtype, sizeof r->out->dtype, "%s", r->out->cache.dtype);
    return MN_OK;
}

mn_status comparison_open(mn_session **session, const compared_text *t, const cache_choice *choice) {
    mn_cache_summary kind;
    mn_cache_options how = cache_choice_options(choice, &t->cache);
    MN_TRY(cache_resolve(&how, &kind));
    if (kind.preallocates && how.max_cache_len <= 0) how.max_cache_len = (int64_t)t->n;
    return mn_session_open(session, t->model, &how);
}

static mn_status run(const compared_text *t, compared_text *to_note, const cache_choice *choice, cache_measure *out) {
    text_run r = {.t = t, .to_note = to_note, .choice = choice, .out = out};
    *out = (cache_measure){.prompt_ms = 0};
    r.token_ms = mem_alloc(t->n, sizeof *r.token_ms);
    if (!r.token_ms) return mem_no_memory();
    mn_status status = comparison_open(&r.session, t, choice);
    if (status == MN_OK) {
        interrupt_watch(r.session);
        status = run_segments(&r);
        interrupt_unwatch();
        progress_clear();
    }
    mn_session_close(&r.session);
    mem_free(r.token_ms);
    return status;
}

mn_status comparison_run_reference(compared_text *t, cache_measure *out) {
    static const cache_choice dynamic = {"dynamic", ""};
    return run(t, t, &dynamic, out);
}

mn_status comparison_run(const compared_text *t, const cache_choice *choice, cache_measure *out) {
    return run(t, NULL, choice, out);
}
