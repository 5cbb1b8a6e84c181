/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits/processors.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "gen/logits/scores.h"
#include "gen/logits/warpers.h"
#include "gen/logits/watermark.h"

struct processors {
    processor_setup setup;
    const mn_generation_config *config; /* setup.config */
    size_t vocab;                       /* setup.vocab */
    uint64_t active;                    /* bit i: row i of the table */
    uint32_t *counts;                   /* [vocab] all 0 between processors; NULL when no processor counts tokens */
    float *kept;                        /* [vocab] scratch; NULL when not needed */
    uint64_t *mask;                     /* [(vocab + 63) / 64] of the constraint; NULL without one */
    shortlist list;                     /* of the warpers; empty when none is active */
};

/* The signature of all processors. */
typedef mn_status (*process)(processors *p, const processor_step *step, float *scores);

static void forbid(const processors *p, const id_list *ids, float *scores) {
    for (size_t i = 0; i < ids->n; i++) {
        if ((size_t)ids->ids[i] < p->vocab) scores[ids->ids[i]] = -INFINITY;
    }
}

/* Removes all other tokens; these get the score 0. */
static void force(const processors *p, const int32_t *ids, size_t n, float *scores) {
    for (size_t i = 0; i < p->vocab; i++) scores[i] = -INFINITY;
    for (size_t i = 0; i < n; i++) scores[ids[i]] = 0;
}

/* Whether ids[0..n) ends with the first `length` ids of `part`. */
static bool ends_with(const int32_t *ids, size_t n, const int32_t *part, size_t length) {
    return length <= n && memcmp(ids + n - length, part, length * sizeof *ids) == 0;
}

/* ---- biases ---- */

/* Sequences longer than the text so far are ignored, as in Transformers. */
static bool is_due(const id_list *sequence, const processor_step *step) {
    if (sequence->n == 1) return true;
    return sequence->n <= step->n && ends_with(step->ids, step->n, sequence->ids, sequence->n - 1);
}

static mn_status add_sequence_bias(processors *p, const processor_step *step, float *scores) {
    const id_biases *all = &p->config->sequence_bias;
    for (size_t i = 0; i < all->n; i++) {
        const id_list *ids = &all->items[i].ids;
        if (is_due(ids, step)) scores[ids->ids[ids->n - 1]] += (float)all->items[i].bias;
    }
    return MN_OK;
}

static mn_status add_logit_bias(processors *p, const processor_step *step, float *scores) {
    const id_biases *all = &p->config->logit_bias;
    (void)step;
    for (size_t i = 0; i < all->n; i++) scores[all->items[i].ids.ids[0]] += (float)all->items[i].bias;
    return MN_OK;
}

/* A bad word that is a single end token is ignored. */
static mn_status forbid_bad_words(processors *p, const processor_step *step, float *scores) {
    const id_lists *all = &p->config->bad_words_ids;
    for (size_t i = 0; i < all->n; i++) {
        const id_list *ids = &all->lists[i];
        bool is_end = ids->n == 1 && id_list_has(&p->config->eos_token_id, ids->ids[0]);
        if (!is_end && is_due(ids, step)) scores[ids->ids[ids->n - 1]] = -INFINITY;
    }
    return MN_OK;
}

/* ---- penalties ---- */

static mn_status penalize_groups(processors *p, const processor_step *step, float *scores) {
    for (size_t i = 0; i < step->n_chosen; i++) {
        size_t id = (size_t)step->chosen[i];
        if (id < p->vocab) scores[id] -= (float)p->config->diversity_penalty;
    }
    return MN_OK;
}

/* Weakens, or below 1 strengthens, each token of ids once. */
static void penalize_occurring(processors *p, const int32_t *ids, size_t n, float penalty, float *scores) {
    for (size_t i = 0; i < n; i++) {
        if ((size_t)ids[i] >= p->vocab || p->counts[ids[i]]++) continue;
        float *score = &scores[ids[i]];
        *score = *score < 0 ? *score * penalty : *score / penalty;
    }
    for (size_t i = 0; i < n; i++) {
        if ((size_t)ids[i] < p->vocab) p->counts[ids[i]] = 0;
    }
}

static mn_status penalize_repetition(processors *p, const processor_step *step, float *scores) {
    penalize_occurring(p, step->ids, step->n, (float)p->config->repetition_penalty, scores);
    return MN_OK;
}

static mn_status favour_encoder(processors *p, const processor_step *step, float *scores) {
    float inverse = (float)(1 / p->config->encoder_repetition_penalty);
    (void)step;
    penalize_occurring(p, p->setup.encoder, p->setup.n_encoder, inverse, scores);
    return MN_OK;
}

/* Of the generated tokens only, as in OpenAI's API. */
static mn_status penalize_presence(processors *p, const processor_step *step, float *scores) {
    const int32_t *ids = step->ids + p->setup.n_prompt;
    size_t n = step->n > p->setup.n_prompt ? step->n - p->setup.n_prompt : 0;
    for (size_t i = 0; i < n; i++) p->counts[ids[i]]++;
    for (size_t i = 0; i < n; i++) {
        uint32_t count = p->counts[ids[i]];
        if (count == 0) continue;
        scores[ids[i]] -= (float)(p->config->presence_penalty + p->config->frequency_penalty * count);
        p->counts[ids[i]] = 0;
    }
    return MN_OK;
}

/* Forbids what followed, in `text`, the last size - 1 ids of the step. */
static void forbid_ngrams(const int32_t *text, size_t n, const processor_step *step, size_t size, float *scores,
                          size_t vocab) {
    if (step->n + 1 < size || n < size) return;
    const int32_t *prefix = step->ids + step->n - (size - 1);
    for (size_t i = 0; i + size <= n; i++) {
        size_t next = (size_t)text[i + size - 1];
        if (memcmp(text + i, prefix, (size - 1) * sizeof *text) == 0 && next < vocab) scores[next] = -INFINITY;
    }
}

static mn_status forbid_repeated_ngrams(processors *p, const processor_step *step, float *scores) {
    forbid_ngrams(step->ids, step->n, step, (size_t)p->config->no_repeat_ngram_size, scores, p->vocab);
    return MN_OK;
}

static mn_status forbid_encoder_ngrams(processors *p, const processor_step *step, float *scores) {
    forbid_ngrams(p->setup.encoder, p->setup.n_encoder, step, (size_t)p->config->encoder_no_repeat_ngram_size, scores,
                  p->vocab);
    return MN_OK;
}

/* ---- length ---- */

static mn_status hold_min_length(processors *p, const processor_step *step, float *scores) {
    if ((int64_t)step->n < p->config->min_length) forbid(p, &p->config->eos_token_id, scores);
    return MN_OK;
}

static mn_status hold_min_new_tokens(processors *p, const processor_step *step, float *scores) {
    if ((int64_t)(step->n - p->setup.n_prompt) < p->config->min_new_tokens) forbid(p, &p->config->eos_token_id, scores);
    return MN_OK;
}

static mn_status force_bos(processors *p, const processor_step *step, float *scores) {
    int32_t bos = (int32_t)p->config->forced_bos_token_id;
    if (step->n == 1) force(p, &bos, 1, scores);
    return MN_OK;
}

static mn_status force_eos(processors *p, const processor_step *step, float *scores) {
    const id_list *ends = &p->config->forced_eos_token_id;
    if ((int64_t)step->n == p->setup.max_length - 1) force(p, ends->ids, ends->n, scores);
    return MN_OK;
}

static mn_status favour_end(processors *p, const processor_step *step, float *scores) {
    const length_decay *decay = &p->config->exponential_decay_length_penalty;
    const id_list *ends = &p->config->eos_token_id;
    int64_t late = (int64_t)(step->n - p->setup.n_prompt) - decay->start;
    if (late <= 0) return MN_OK;
    double gain = pow(decay->factor, (double)late) - 1;
    for (size_t i = 0; i < ends->n; i++) {
        if ((size_t)ends->ids[i] >= p->vocab) continue;
        float *score = &scores[ends->ids[i]];
        if (isfinite(*score)) *score = (float)fmin((double)*score + fabs((double)*score) * gain, FLT_MAX);
    }
    return MN_OK;
}

static mn_status suppress(processors *p, const processor_step *step, float *scores) {
    (void)step;
    forbid(p, &p->config->suppress_tokens, scores);
    return MN_OK;
}

static mn_status suppress_at_begin(processors *p, const processor_step *step, float *scores) {
    bool is_after_bos = p->setup.n_prompt <= 1 && p->config->forced_bos_token_id >= 0;
    if (step->n == p->setup.n_prompt + is_after_bos) forbid(p, &p->config->begin_suppress_tokens, scores);
    return MN_OK;
}

/* ---- callbacks and the constraint ---- */

static mn_status allow_prefix(processors *p, const processor_step *step, float *scores) {
    const int32_t *allowed = NULL;
    size_t n = 0;
    if (!p->setup.prefix_allowed(p->setup.user, p->setup.row, step->ids, step->n, &allowed, &n))
        MN_FAIL(MN_E_ARG, "the callback for allowed tokens failed at position %zu", step->n);
    if (n == 0) MN_FAIL(MN_E_ARG, "the callback for allowed tokens allows none at position %zu", step->n);
    for (size_t i = 0; i < n; i++) {
        if ((size_t)allowed[i] >= p->vocab) {
            MN_FAIL(MN_E_ARG, "the callback for allowed tokens gave %d at position %zu, allowed: 0 to %zu", allowed[i],
                    step->n, p->vocab - 1);
        }
    }
    for (size_t i = 0; i < n; i++) p->kept[allowed[i]] = scores[allowed[i]];
    for (size_t i = 0; i < p->vocab; i++) scores[i] = -INFINITY;
    for (size_t i = 0; i < n; i++) scores[allowed[i]] = p->kept[allowed[i]];
    return MN_OK;
}

static mn_status follow_constraint(processors *p, const processor_step *step, float *scores) {
    MN_TRY(constraint_mask(p->setup.constraint, step->ids + p->setup.n_prompt, step->n - p->setup.n_prompt, p->mask));
    for (size_t i = 0; i < p->vocab; i++) {
        bool is_allowed = p->mask[i / 64] >> i % 64 & 1;
        scores[i] = is_allowed ? scores[i] : -INFINITY;
    }
    return MN_OK;
}

static mn_status run_callback(processors *p, const processor_step *step, float *scores) {
    if (!p->setup.process(p->setup.user, p->setup.row, step->ids, step->n, scores, p->vocab))
        MN_FAIL(MN_E_ARG, "the callback for scores failed at position %zu", step->n);
    return MN_OK;
}

/* ---- checks of the result ---- */

static mn_status remove_invalid(processors *p, const processor_step *step, float *scores) {
    (void)step;
    for (size_t i = 0; i < p->vocab; i++) {
        float score = isnan(scores[i]) ? 0.0f : scores[i];
        scores[i] = score > FLT_MAX ? FLT_MAX : score < -FLT_MAX ? -FLT_MAX : score;
    }
    return MN_OK;
}

static mn_status add_watermark(processors *p, const processor_step *step, float *scores) {
    watermark_apply(&p->config->watermarking_config, step->ids, step->n, scores, p->vocab);
    return MN_OK;
}

static mn_status renormalize(processors *p, const processor_step *step, float *scores) {
    (void)step;
    scores_log_softmax(scores, p->vocab);
    return MN_OK;
}

/* ---- the table ---- */

typedef bool (*condition)(const processor_setup *setup);

#define WANTS(name, condition)                                                                                         \
    static bool wants_##name(const processor_setup *setup) {                                                           \
        const mn_generation_config *c = setup->config;                                                                 \
        return condition;                                                                                              \
    }

WANTS(sequence_bias, c->sequence_bias.n > 0)
WANTS(diversity, c->num_beam_groups > 1 && c->diversity_penalty > 0)
WANTS(encoder_repetition, c->encoder_repetition_penalty != 1)
WANTS(repetition, c->repetition_penalty != 1)
WANTS(presence, c->presence_penalty != 0 || c->frequency_penalty != 0)
WANTS(logit_bias, c->logit_bias.n > 0)
WANTS(no_repeat_ngram, c->no_repeat_ngram_size > 0)
WANTS(encoder_no_repeat_ngram, c->encoder_no_repeat_ngram_size > 0)
WANTS(bad_words, c->bad_words_ids.n > 0)
/* min_new_tokens takes precedence, as in Transformers. */
WANTS(min_length, c->min_length > 0 && c->min_new_tokens == 0 && c->eos_token_id.n > 0)
WANTS(min_new_tokens, c->min_new_tokens > 0 && c->eos_token_id.n > 0)
WANTS(forced_bos, c->forced_bos_token_id >= 0)
WANTS(forced_eos, c->forced_eos_token_id.n > 0)
WANTS(remove_invalid, c->remove_invalid_values)
WANTS(decay, c->exponential_decay_length_penalty.is_set)
WANTS(suppress, c->suppress_tokens.n > 0)
WANTS(begin_suppress, c->begin_suppress_tokens.n > 0)
WANTS(watermark, c->watermarking_config.is_set)
WANTS(renormalize, c->renormalize_logits)

static bool wants_prefix(const processor_setup *setup) {
    return setup->prefix_allowed != NULL;
}
static bool wants_constraint(const processor_setup *setup) {
    return setup->constraint != NULL;
}
static bool wants_callback(const processor_setup *setup) {
    return setup->process != NULL;
}

/* Warpers work on the list, which is opened before the first of them and written back after the last. */
#define WARPER(name, condition, parameter)                                                                             \
    WANTS(name, c->do_sample && (condition))                                                                           \
    static mn_status run_##name(processors *p, const processor_step *step, float *scores) {                            \
        const mn_generation_config *c = p->config;                                                                     \
        (void)step;                                                                                                    \
        (void)scores;                                                                                                  \
        warp_##name(&p->list, parameter);                                                                              \
        return MN_OK;                                                                                                  \
    }

WARPER(temperature, c->temperature != 1, c->temperature)
WARPER(top_k, c->top_k > 0, (size_t)c->top_k)
WARPER(top_p, c->top_p < 1, c->top_p)
WARPER(min_p, c->min_p > 0, c->min_p)
WARPER(typical, c->typical_p < 1, c->typical_p)
WARPER(epsilon, c->epsilon_cutoff > 0 && c->epsilon_cutoff < 1, c->epsilon_cutoff)
WARPER(eta, c->eta_cutoff > 0 && c->eta_cutoff < 1, c->eta_cutoff)
#undef WARPER
#undef WANTS

static const struct {
    const char *name;
    condition is_active;
    process run;
    bool counts, keeps, warps; /* data it needs: counts, kept, the list */
} table[] = {
    {"sequence_bias", wants_sequence_bias, add_sequence_bias, false, false, false},
    {"diversity_penalty", wants_diversity, penalize_groups, false, false, false},
    {"encoder_repetition_penalty", wants_encoder_repetition, favour_encoder, true, false, false},
    {"repetition_penalty", wants_repetition, penalize_repetition, true, false, false},
    {"presence_penalty, frequency_penalty", wants_presence, penalize_presence, true, false, false},
    {"logit_bias", wants_logit_bias, add_logit_bias, false, false, false},
    {"no_repeat_ngram_size", wants_no_repeat_ngram, forbid_repeated_ngrams, false, false, false},
    {"encoder_no_repeat_ngram_size", wants_encoder_no_repeat_ngram, forbid_encoder_ngrams, false, false, false},
    {"bad_words_ids", wants_bad_words, forbid_bad_words, false, false, false},
    {"min_length", wants_min_length, hold_min_length, false, false, false},
    {"min_new_tokens", wants_min_new_tokens, hold_min_new_tokens, false, false, false},
    {"allowed tokens", wants_prefix, allow_prefix, false, true, false},
    {"constraint", wants_constraint, follow_constraint, false, false, false},
    {"forced_bos_token_id", wants_forced_bos, force_bos, false, false, false},
    {"forced_eos_token_id", wants_forced_eos, force_eos, false, false, false},
    {"remove_invalid_values", wants_remove_invalid, remove_invalid, false, false, false},
    {"exponential_decay_length_penalty", wants_decay, favour_end, false, false, false},
    {"suppress_tokens", wants_suppress, suppress, false, false, false},
    {"begin_suppress_tokens", wants_begin_suppress, suppress_at_begin, false, false, false},
    {"callback", wants_callback, run_callback, false, false, false},
    {"temperature", wants_temperature, run_temperature, false, false, true},
    {"top_k", wants_top_k, run_top_k, false, false, true},
    {"top_p", wants_top_p, run_top_p, false, false, true},
    {"min_p", wants_min_p, run_min_p, false, false, true},
    {"typical_p", wants_typical, run_typical, false, false, true},
    {"epsilon_cutoff", wants_epsilon, run_epsilon, false, false, true},
    {"eta_cutoff", wants_eta, run_eta, false, false, true},
    {"watermarking_config", wants_watermark, add_watermark, false, false, false},
    {"renormalize_logits", wants_renormalize, renormalize, false, false, false},
};

enum { N_TABLE = sizeof table / sizeof table[0] };
_Static_assert(N_TABLE <= 64, "one bit each in active");

/* ---- opening and running ---- */

static mn_status check_id(const processor_setup *setup, const char *field, int32_t id) {
    if ((size_t)id < setup->vocab) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s has the token %d, allowed: 0 to %zu", field, id, setup->vocab - 1);
}

static mn_status check_ids(const processor_setup *setup, const char *field, const id_list *ids) {
    for (size_t i = 0; i < ids->n; i++) MN_TRY(check_id(setup, field, ids->ids[i]));
    return MN_OK;
}

static mn_status check_biases(const processor_setup *setup, const char *field, const id_biases *all) {
    for (size_t i = 0; i < all->n; i++) MN_TRY(check_ids(setup, field, &all->items[i].ids));
    return MN_OK;
}

/* Tokens to be removed may be outside the vocabulary: checkpoints have such lists. */
static mn_status check_vocabulary(const processor_setup *setup) {
    const mn_generation_config *c = setup->config;
    MN_TRY(check_biases(setup, "sequence_bias", &c->sequence_bias));
    MN_TRY(check_biases(setup, "logit_bias", &c->logit_bias));
    for (size_t i = 0; i < c->bad_words_ids.n; i++)
        MN_TRY(check_ids(setup, "bad_words_ids", &c->bad_words_ids.lists[i]));
    MN_TRY(check_ids(setup, "forced_eos_token_id", &c->forced_eos_token_id));
    if (c->forced_bos_token_id < 0) return MN_OK;
    return check_id(setup, "forced_bos_token_id", (int32_t)c->forced_bos_token_id);
}

/* Beam search needs candidates that do not end a text besides those that do. */
static size_t min_keep_of(const mn_generation_config *config) {
    if (config->num_beams == 1) return 1;
    return config->eos_token_id.n ? config->eos_token_id.n + 1 : 2;
}

static mn_status open_scratch(processors *p) {
    bool counts = false, keeps = false, warps = false;
    for (size_t i = 0; i < N_TABLE; i++) {
        if (!processors_is_active(p, i)) continue;
        counts |= table[i].counts;
        keeps |= table[i].keeps;
        warps |= table[i].warps;
    }
    if (counts) p->counts = mem_alloc(p->vocab, sizeof *p->counts);
    if (keeps) p->kept = mem_alloc_raw(p->vocab, sizeof *p->kept);
    if (p->setup.constraint) p->mask = mem_alloc_raw((p->vocab + 63) / 64, sizeof *p->mask);
    if ((counts && !p->counts) || (keeps && !p->kept) || (p->setup.constraint && !p->mask)) return MN_E_NOMEM;
    return warps ? shortlist_open(&p->list, p->vocab, min_keep_of(p->config)) : MN_OK;
}

mn_status processors_open(processors **out, const processor_setup *setup) {
    *out = NULL;
    MN_TRY(check_vocabulary(setup));
    processors *p = mem_alloc(1, sizeof *p);
    if (!p) return MN_E_NOMEM;
    *p = (processors){.setup = *setup, .config = setup->config, .vocab = setup->vocab};
    if (!setup->encoder) {
        p->setup.encoder = setup->prompt;
        p->setup.n_encoder = setup->n_prompt;
    }
    for (size_t i = 0; i < N_TABLE; i++) p->active |= (uint64_t)table[i].is_active(setup) << i;
    mn_status status = open_scratch(p);
    if (status == MN_OK) {
        *out = p;
    } else {
        processors_close(&p);
    }
    return status;
}

void processors_close(processors **p) {
    if (!*p) return;
    mem_free((*p)->counts);
    mem_free((*p)->kept);
    mem_free((*p)->mask);
    shortlist_close(&(*p)->list);
    mem_free(*p);
    *p = NULL;
}

static mn_status run_active(processors *p, const processor_step *step, float *scores) {
    bool in_list = false;
    for (size_t i = 0; i < N_TABLE; i++) {
        if (!processors_is_active(p, i)) continue;
        if (table[i].warps && !in_list) shortlist_begin(&p->list, scores, p->vocab);
        if (!table[i].warps && in_list) shortlist_end(&p->list, scores, p->vocab);
        in_list = table[i].warps;
        MN_TRY(table[i].run(p, step, scores));
    }
    if (in_list) shortlist_end(&p->list, scores, p->vocab);
    return MN_OK;
}

mn_status processors_run(processors *p, const processor_step *step, float *scores) {
    if (p->active == 0) return MN_OK;
    bool is_search = p->config->num_beams > 1, was_empty = !(scores_max(scores, p->vocab) > -INFINITY);
    MN_TRY(run_active(p, step, scores));
    if (is_search || was_empty || scores_max(scores, p->vocab) > -INFINITY) return MN_OK;
    MN_FAIL(MN_E_ARG, "no token is left at position %zu: the settings together forbid all %zu", step->n, p->vocab);
}

size_t processors_count(void) {
    return N_TABLE;
}

const char *processors_name(size_t i) {
    return table[i].name;
}

bool processors_is_active(const processors *p, size_t i) {
    return p->active >> i & 1;
}

mn_status processors_run_one(processors *p, size_t i, const processor_step *step, float *scores) {
    if (table[i].warps) shortlist_begin(&p->list, scores, p->vocab);
    mn_status status = table[i].run(p, step, scores);
    if (table[i].warps) shortlist_end(&p->list, scores, p->vocab);
    return status;
}
