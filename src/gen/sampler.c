/* The public sampler: the processors and the choice of a token, without a session.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "gen/config/validation.h"
#include "gen/logits/choice.h"
#include "gen/request.h"

struct mn_sampler {
    mn_generation_config *config;
    constraint *constraint; /* NULL: none */
    processors *processors;
    choice choice; /* of sampling */
    size_t vocab;
    float *scores;   /* [vocab] */
    int32_t *prompt; /* [n_prompt] at a fixed address, for the processors */
    int32_t *ids;    /* [n] the prompt and the tokens after it */
    size_t n_prompt, n, capacity;
    uint64_t seed;
};

static mn_status check_mode(const mn_generation_config *config) {
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    MN_TRY(validation_check(config, &options));
    decoding_mode mode = decoding_mode_of(config, &options);
    if (mode != DECODING_GREEDY && mode != DECODING_SAMPLE)
        MN_FAIL(MN_E_ARG, "the configuration selects %s, allowed in a sampler: greedy search and sampling",
                decoding_mode_name(mode));
    if (config->guidance_scale != 1)
        MN_FAIL(MN_E_ARG, "guidance_scale is %g, allowed in a sampler: 1, as it has the logits of one context",
                config->guidance_scale);
    return MN_OK;
}

static mn_status copy_prompt(mn_sampler *s, const int32_t *prompt, size_t n) {
    s->prompt = mem_alloc_raw(n, sizeof *s->prompt);
    s->scores = mem_alloc_raw(s->vocab, sizeof *s->scores);
    if (!s->prompt || !s->scores) return MN_E_NOMEM;
    s->n_prompt = n;
    for (size_t i = 0; i < n; i++) {
        MN_TRY(mn_sampler_accept(s, prompt[i]));
        s->prompt[i] = prompt[i];
    }
    return MN_OK;
}

static mn_status open_sampler(mn_sampler *s, const mn_model *model, const int32_t *prompt, size_t n_prompt) {
    const mn_generation_config *config = s->config;
    MN_TRY(check_mode(config));
    if (n_prompt == 0) MN_FAIL(MN_E_ARG, "the prompt is empty");
    MN_TRY(copy_prompt(s, prompt, n_prompt));
    if (generation_config_constraint(config))
        MN_TRY(request_make_constraint(&s->constraint, config, model->text, s->vocab));
    if (config->do_sample) MN_TRY(choice_open(&s->choice, s->vocab));
    const processor_setup setup = {
        .config = config,
        .vocab = s->vocab,
        .prompt = s->prompt,
        .n_prompt = n_prompt,
        .max_length = config->max_new_tokens >= 0 ? (int64_t)n_prompt + config->max_new_tokens : config->max_length,
        .constraint = s->constraint};
    return processors_open(&s->processors, &setup);
}

mn_status mn_sampler_open(mn_sampler **out, const mn_model *model, const mn_generation_config *config,
                          const int32_t *prompt, size_t n_prompt) {
    *out = NULL;
    mn_sampler *s = mem_alloc(1, sizeof *s);
    if (!s) return MN_E_NOMEM;
    s->vocab = (size_t)model->core->net.config.vocab_size;
    mn_status status = generation_config_copy(&s->config, config ? config : model->generation);
    if (status == MN_OK) status = open_sampler(s, model, prompt, n_prompt);
    if (status != MN_OK) {
        mn_sampler_close(&s);
        return status;
    }
    s->seed = request_seed(s->config);
    *out = s;
    return MN_OK;
}

void mn_sampler_close(mn_sampler **sampler) {
    mn_sampler *s = *sampler;
    *sampler = NULL;
    if (!s) return;
    processors_close(&s->processors);
    choice_close(&s->choice);
    constraint_close(&s->constraint);
    mn_generation_config_close(&s->config);
    mem_free(s->scores);
    mem_free(s->prompt);
    mem_free(s->ids);
    mem_free(s);
}

mn_status mn_sampler_choose(mn_sampler *s, const float *logits, float *scores, int32_t *id) {
    const processor_step step = {.ids = s->ids, .n = s->n};
    memcpy(s->scores, logits, s->vocab * sizeof *logits);
    MN_TRY(processors_run(s->processors, &step, s->scores));
    if (scores) memcpy(scores, s->scores, s->vocab * sizeof *scores);
    *id = s->config->do_sample ? choice_sample(&s->choice, s->scores, s->vocab, s->seed, 0, s->n - s->n_prompt)
                               : choice_best(s->scores, s->vocab);
    return MN_OK;
}

mn_status mn_sampler_accept(mn_sampler *s, int32_t id) {
    if (id < 0 || (size_t)id >= s->vocab) MN_FAIL(MN_E_ARG, "the token is %d, allowed: 0 to %zu", id, s->vocab - 1);
    MN_TRY(mem_grow(&s->ids, &s->capacity, s->n + 1, sizeof *s->ids));
    s->ids[s->n++] = id;
    return MN_OK;
}

uint64_t mn_sampler_seed(const mn_sampler *s) {
    return s->seed;
}
