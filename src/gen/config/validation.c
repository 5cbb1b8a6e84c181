/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/config/validation.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/options.h"
#include "gen/config/cache_request.h"

/* ---- the mode ---- */

static const char *const names[] = {
    [DECODING_GREEDY] = "greedy search",
    [DECODING_SAMPLE] = "sampling",
    [DECODING_CONTRASTIVE] = "contrastive search",
    [DECODING_DOLA] = "DoLa",
    [DECODING_ASSISTED] = "assisted decoding",
    [DECODING_PROMPT_LOOKUP] = "prompt lookup",
    [DECODING_BEAM] = "beam search",
    [DECODING_BEAM_SAMPLE] = "beam sampling",
    [DECODING_GROUP_BEAM] = "group beam search",
    [DECODING_CONSTRAINED_BEAM] = "constrained beam search",
};

const char *decoding_mode_name(decoding_mode mode) {
    return names[mode];
}

static bool has_assistant(const mn_generate_options *options) {
    return options && options->assistant;
}

static bool is_looking_up(const mn_generation_config *c) {
    return c->prompt_lookup_num_tokens > 0;
}

static bool has_layers(const mn_generation_config *c) {
    return c->dola_layers.side != LAYERS_NONE;
}

/* The mode without a draft model, prompt lookup and DoLa. */
static decoding_mode search_of(const mn_generation_config *c) {
    if (c->force_words_ids.n) return DECODING_CONSTRAINED_BEAM;
    if (c->num_beams > 1) {
        if (c->num_beam_groups > 1) return DECODING_GROUP_BEAM;
        return c->do_sample ? DECODING_BEAM_SAMPLE : DECODING_BEAM;
    }
    if (c->do_sample) return DECODING_SAMPLE;
    return c->penalty_alpha > 0 && c->top_k > 1 ? DECODING_CONTRASTIVE : DECODING_GREEDY;
}

static bool is_plain(decoding_mode mode) {
    return mode == DECODING_GREEDY || mode == DECODING_SAMPLE;
}

decoding_mode decoding_mode_of(const mn_generation_config *config, const mn_generate_options *options) {
    decoding_mode mode = search_of(config);
    if (!is_plain(mode)) return mode;
    if (has_layers(config)) return DECODING_DOLA;
    if (has_assistant(options)) return DECODING_ASSISTED;
    return is_looking_up(config) ? DECODING_PROMPT_LOOKUP : mode;
}

/* ---- contradictions ---- */

static mn_status check_sequences(const mn_generation_config *c) {
    decoding_mode mode = search_of(c);
    if (c->num_beams > 1 && c->num_return_sequences > c->num_beams) {
        MN_FAIL(MN_E_ARG, "num_return_sequences is %lld, allowed with num_beams %lld: 1 to %lld",
                (long long)c->num_return_sequences, (long long)c->num_beams, (long long)c->num_beams);
    }
    if (c->num_return_sequences > 1 && (mode == DECODING_GREEDY || mode == DECODING_CONTRASTIVE)) {
        MN_FAIL(MN_E_ARG,
                "num_return_sequences is %lld, but %s has one answer; sample (do_sample), or search with at "
                "least as many beams (num_beams)",
                (long long)c->num_return_sequences, names[mode]);
    }
    return MN_OK;
}

static mn_status check_groups(const mn_generation_config *c) {
    if (c->num_beams == 1 || c->num_beam_groups == 1) return MN_OK;
    if (c->do_sample)
        MN_FAIL(MN_E_ARG, "do_sample is true, but groups of beams (num_beam_groups %lld) are not sampled",
                (long long)c->num_beam_groups);
    if (c->num_beams % c->num_beam_groups != 0)
        MN_FAIL(MN_E_ARG, "num_beam_groups is %lld, allowed with num_beams %lld: what divides it",
                (long long)c->num_beam_groups, (long long)c->num_beams);
    if (c->diversity_penalty <= 0)
        MN_FAIL(MN_E_ARG, "diversity_penalty is 0, which makes the %lld groups of beams all alike; set it above 0",
                (long long)c->num_beam_groups);
    return MN_OK;
}

enum { MOST_FORMS = 1024 }; /* of all phrases: each is tried with each beam in every step */

static int by_ids(const void *a, const void *b) {
    const id_list *x = *(const id_list *const *)a, *y = *(const id_list *const *)b;
    for (size_t i = 0; i < x->n && i < y->n; i++) {
        if (x->ids[i] != y->ids[i]) return x->ids[i] < y->ids[i] ? -1 : 1;
    }
    return (x->n > y->n) - (x->n < y->n);
}

/* A form that begins with another one would never be met to its end; Transformers refuses it as well. */
static mn_status check_forms(const id_lists *forms, size_t i_phrase) {
    const id_list **sorted = mem_alloc(forms->n, sizeof *sorted);
    if (!sorted) return MN_E_NOMEM;
    for (size_t i = 0; i < forms->n; i++) sorted[i] = &forms->lists[i];
    qsort(sorted, forms->n, sizeof *sorted, by_ids);
    size_t i = 1; /* what begins with a form stands directly behind it */
    while (i < forms->n && (sorted[i - 1]->n > sorted[i]->n ||
                            memcmp(sorted[i - 1]->ids, sorted[i]->ids, sorted[i - 1]->n * sizeof(int32_t)) != 0))
        i++;
    size_t longer = i < forms->n ? (size_t)(sorted[i] - forms->lists) : 0,
           shorter = i < forms->n ? (size_t)(sorted[i - 1] - forms->lists) : 0;
    mem_free(sorted);
    if (i >= forms->n) return MN_OK;
    MN_FAIL(MN_E_ARG, "force_words_ids: form %zu of phrase %zu begins with form %zu; leave one of the two out", longer,
            i_phrase, shorter);
}

static mn_status check_forced_words(const mn_generation_config *c) {
    if (c->force_words_ids.n == 0) return MN_OK;
    size_t n_forms = 0;
    for (size_t i = 0; i < c->force_words_ids.n; i++) n_forms += c->force_words_ids.items[i].forms.n;
    if (n_forms > MOST_FORMS)
        MN_FAIL(MN_E_ARG, "force_words_ids has %zu forms, allowed: at most %d", n_forms, MOST_FORMS);
    for (size_t i = 0; i < c->force_words_ids.n; i++) MN_TRY(check_forms(&c->force_words_ids.items[i].forms, i));
    if (c->num_beams == 1) MN_FAIL(MN_E_ARG, "force_words_ids needs beams: num_beams is 1, allowed: 2 or more");
    if (c->do_sample) MN_FAIL(MN_E_ARG, "do_sample is true, but beams with force_words_ids are not sampled");
    if (c->num_beam_groups > 1)
        MN_FAIL(MN_E_ARG, "num_beam_groups is %lld, allowed with force_words_ids: 1", (long long)c->num_beam_groups);
    return MN_OK;
}

/* Drafts and DoLa require greedy search or sampling, and exclude each other. */
static mn_status check_helpers(const mn_generation_config *c, const mn_generate_options *options) {
    decoding_mode mode = search_of(c);
    const struct {
        bool is_given;
        const char *name;
    } helpers[] = {
        {has_layers(c), "dola_layers"},
        {has_assistant(options), "a draft model"},
        {is_looking_up(c), "prompt_lookup_num_tokens"},
    };
    enum { N = sizeof helpers / sizeof helpers[0] };
    for (size_t i = 0; i < N; i++) {
        if (!helpers[i].is_given) continue;
        if (!is_plain(mode))
            MN_FAIL(MN_E_ARG, "%s needs greedy search or sampling, but these settings select %s", helpers[i].name,
                    names[mode]);
        for (size_t j = i + 1; j < N; j++) {
            if (helpers[j].is_given)
                MN_FAIL(MN_E_ARG, "%s and %s were both given; use one of them", helpers[i].name, helpers[j].name);
        }
    }
    return MN_OK;
}

/* Guidance feeds a second context, so it requires modes that extend a text token by token. */
static mn_status check_guidance(const mn_generation_config *c, const mn_generate_options *options) {
    decoding_mode mode = decoding_mode_of(c, options);
    bool proposes = mode == DECODING_CONTRASTIVE || mode == DECODING_ASSISTED || mode == DECODING_PROMPT_LOOKUP;
    if (c->guidance_scale == 1 || !proposes) return MN_OK;
    MN_FAIL(MN_E_ARG, "guidance_scale is %g, allowed for %s: 1 (off); greedy search, sampling and beams have guidance",
            c->guidance_scale, names[mode]);
}

/* ---- settings without effect ---- */

/* Inputs of the conditions. */
typedef struct situation {
    const mn_generation_config *config;
    const mn_generate_options *options;
    decoding_mode mode;
    bool samples, has_beams;
} situation;

static situation situation_of(const mn_generation_config *config, const mn_generate_options *options) {
    return (situation){config, options, decoding_mode_of(config, options), config->do_sample, config->num_beams > 1};
}

static bool is_not_sampled(const situation *s) {
    return !s->samples;
}
static bool is_not_ranked(const situation *s) {
    return !s->samples && s->mode != DECODING_CONTRASTIVE;
}
static bool has_one_beam(const situation *s) {
    return !s->has_beams;
}
static bool has_one_group(const situation *s) {
    return s->has_beams && s->mode != DECODING_GROUP_BEAM;
}
static bool is_not_contrastive(const situation *s) {
    return s->mode != DECODING_CONTRASTIVE && s->config->penalty_alpha > 0;
}
static bool has_no_lookup(const situation *s) {
    return s->mode != DECODING_PROMPT_LOOKUP;
}
static bool has_no_draft(const situation *s) {
    return s->mode != DECODING_ASSISTED;
}
static bool has_no_end(const situation *s) {
    return s->config->eos_token_id.n == 0;
}
static bool has_new_tokens(const situation *s) {
    return s->config->max_new_tokens >= 0;
}
static bool has_min_new_tokens(const situation *s) {
    return s->config->min_new_tokens > 0;
}
static bool ends_before(const situation *s) {
    return s->config->max_new_tokens >= 0 && s->config->min_new_tokens > s->config->max_new_tokens;
}
static bool ends_before_length(const situation *s) {
    return s->config->max_new_tokens < 0 && s->config->max_length >= 0 && s->config->min_length > s->config->max_length;
}

static const char not_sampling[] = "do_sample is false", one_beam[] = "num_beams is 1",
                  one_group[] = "num_beam_groups is 1", no_end[] = "eos_token_id is not set",
                  no_draft[] = "there is no draft model";

/* The first matching row of a field gives the reason, and the field that decides it; NULL: none does. */
static const struct {
    const char *field;
    bool (*is_idle)(const situation *s);
    const char *why, *decided_by;
} idle[] = {
    {"temperature", is_not_sampled, not_sampling, "do_sample"},
    {"top_k", is_not_ranked, not_sampling, "do_sample"},
    {"top_p", is_not_sampled, not_sampling, "do_sample"},
    {"min_p", is_not_sampled, not_sampling, "do_sample"},
    {"typical_p", is_not_sampled, not_sampling, "do_sample"},
    {"epsilon_cutoff", is_not_sampled, not_sampling, "do_sample"},
    {"eta_cutoff", is_not_sampled, not_sampling, "do_sample"},
    {"penalty_alpha", is_not_contrastive,
     "contrastive search is without sampling, beams and forced words, with top_k of 2 or more", "do_sample"},
    {"early_stopping", has_one_beam, one_beam, "num_beams"},
    {"length_penalty", has_one_beam, one_beam, "num_beams"},
    {"num_beam_groups", has_one_beam, one_beam, "num_beams"},
    {"diversity_penalty", has_one_beam, one_beam, "num_beams"},
    {"diversity_penalty", has_one_group, one_group, "num_beam_groups"},
    {"max_matching_ngram_size", has_no_lookup, "prompt_lookup_num_tokens is not set", "prompt_lookup_num_tokens"},
    {"num_assistant_tokens", has_no_draft, no_draft, NULL},
    {"num_assistant_tokens_schedule", has_no_draft, no_draft, NULL},
    {"assistant_confidence_threshold", has_no_draft, no_draft, NULL},
    {"min_length", has_no_end, no_end, "eos_token_id"},
    {"min_length", has_min_new_tokens, "min_new_tokens counts", "min_new_tokens"},
    {"min_length", ends_before_length, "max_length ends the text before", "max_length"},
    {"min_new_tokens", has_no_end, no_end, "eos_token_id"},
    {"min_new_tokens", ends_before, "max_new_tokens ends the text before", "max_new_tokens"},
    {"exponential_decay_length_penalty", has_no_end, no_end, "eos_token_id"},
    {"max_length", has_new_tokens, "max_new_tokens counts", "max_new_tokens"},
};

enum { N_IDLE = sizeof idle / sizeof idle[0] };

/* The row that says why a field has no effect; -1: it has one. */
static int find_idle(const situation *s, const char *field) {
    for (int i = 0; i < N_IDLE; i++) {
        if (strcmp(idle[i].field, field) == 0 && idle[i].is_idle(s)) return i;
    }
    return -1;
}

/* A value that a checkpoint's field cannot take is an error where the field has an effect. */
static mn_status check_wrong(const mn_generation_config *config, const mn_generate_options *options) {
    const situation s = situation_of(config, options);
    for (size_t i = 0; i < config->n_wrong; i++) {
        const wrong_value *wrong = &config->wrong[i];
        if (wrong->is_error && find_idle(&s, wrong->field) < 0) MN_FAIL(MN_E_FORMAT, "%s", wrong->text);
    }
    return MN_OK;
}

static mn_status check_constraints(const mn_generation_config *config) {
    if ((config->json_schema != NULL) + (config->regex != NULL) + (config->grammar != NULL) < 2) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s and %s are both set; use one of them", generation_config_constraint(config),
            config->json_schema && config->regex ? "regex" : "grammar");
}

mn_status validation_check(const mn_generation_config *config, const mn_generate_options *options) {
    MN_TRY(check_wrong(config, options));
    MN_TRY(check_forced_words(config));
    MN_TRY(check_groups(config));
    MN_TRY(check_sequences(config));
    MN_TRY(check_constraints(config));
    if (has_layers(config) && generation_config_constraint(config))
        MN_FAIL(MN_E_ARG,
                "dola_layers leaves only tokens near the best one, and %s may allow none of them; give one of them",
                generation_config_constraint(config));
    MN_TRY(check_guidance(config, options));
    return check_helpers(config, options);
}

/* The value of a field if it is not its default; NULL: it is. */
static mn_status unusual_value(const mn_generation_config *config, const mn_generation_config *standard,
                               const char *field, char **value) {
    char *usual = mn_generation_config_get(standard, field);
    *value = mn_generation_config_get(config, field);
    mn_status status = usual && *value ? MN_OK : MN_E_NOMEM;
    if (status != MN_OK || strcmp(usual, *value) == 0) {
        mem_free(*value);
        *value = NULL;
    }
    mem_free(usual);
    return status;
}

static bool is_first_of(size_t i, const bool *reported) {
    for (size_t j = 0; j < i; j++) {
        if (reported[j] && strcmp(idle[j].field, idle[i].field) == 0) return false;
    }
    return true;
}

/* The names of fields whose values would be errors, but have no effect. */
static void warn_wrong(const situation *s, bytes *of_checkpoint) {
    for (size_t i = 0; i < s->config->n_wrong; i++) {
        const wrong_value *wrong = &s->config->wrong[i];
        const int row = wrong->is_error ? find_idle(s, wrong->field) : -1;
        const bool is_decided =
            row >= 0 && idle[row].decided_by && generation_config_is_set(s->config, idle[row].decided_by);
        if (row >= 0 && !is_decided) bytes_printf(of_checkpoint, "%s%s", of_checkpoint->n ? ", " : "", wrong->field);
    }
}

/* A line for each idle field of the program, and the names of those of a checkpoint: where the program decided that
 * they are idle, it knows. */
static mn_status warn_idle(const situation *s, const mn_generation_config *standard, bytes *of_checkpoint,
                           bytes *lines) {
    bool reported[N_IDLE] = {false};
    for (size_t i = 0; i < N_IDLE; i++) {
        const char *field = idle[i].field, *decided_by = idle[i].decided_by;
        const bool is_own = generation_config_is_set(s->config, field);
        char *value = NULL;
        if (!idle[i].is_idle(s) || !is_first_of(i, reported)) continue;
        if (!is_own && decided_by && generation_config_is_set(s->config, decided_by)) continue;
        MN_TRY(unusual_value(s->config, standard, field, &value));
        reported[i] = value != NULL;
        if (value && is_own) bytes_printf(lines, "%s is %.60s but has no effect: %s\n", field, value, idle[i].why);
        if (value && !is_own) bytes_printf(of_checkpoint, "%s%s", of_checkpoint->n ? ", " : "", field);
        mem_free(value);
    }
    return bytes_status(of_checkpoint);
}

mn_status validation_warn(const mn_generation_config *config, const mn_generate_options *options, bytes *lines) {
    mn_generation_config *standard = NULL;
    const situation s = situation_of(config, options);
    MN_TRY(generation_config_copy(&standard, NULL));
    bytes of_checkpoint = {0};
    mn_status status = warn_idle(&s, standard, &of_checkpoint, lines);
    warn_wrong(&s, &of_checkpoint);
    mn_generation_config_close(&standard);
    if (options && options->negative_prompt && config->guidance_scale == 1)
        bytes_append_text(lines, "the negative prompt has no effect: guidance_scale is not set\n");
    generation_config_warn_unused(config, options, &of_checkpoint, lines);
    if (of_checkpoint.n)
        bytes_printf(lines, "generation_config.json has fields that have no effect here: %.800s\n",
                     bytes_text(&of_checkpoint));
    if (status == MN_OK) status = bytes_status(&of_checkpoint);
    bytes_clear(&of_checkpoint);
    if (status == MN_OK) status = cache_request_warn_keys(config, lines);
    if (status == MN_OK && options && options->session)
        status = cache_request_warn_kept(options->session, config, lines);
    return status == MN_OK ? bytes_status(lines) : status;
}

/* ---- the public function ---- */

mn_status mn_generation_config_check(const mn_generation_config *config, const mn_generate_options *options,
                                     char **warnings) {
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    bytes lines = {0};
    *warnings = NULL;
    MN_TRY(options_take(&how, sizeof how, options, "mn_generate_options"));
    MN_TRY(validation_check(config, &how));
    MN_TRY(cache_request_fits(config));
    mn_status status = validation_warn(config, &how, &lines);
    if (status == MN_OK) *warnings = mem_copy_text(lines.n ? lines.data : "", lines.n);
    bytes_clear(&lines);
    return status == MN_OK && !*warnings ? MN_E_NOMEM : status;
}
