/* Logits processors and warpers: they turn the logits of one position into the scores from which the next token is
 * chosen.
 *
 * One table (processors.c) lists them in the order of Transformers 4.45-4.56; OpenAI's penalties and bias follow the
 * repetition penalty. A removed token has the score -infinity. Processors are pure functions of the ids given and keep
 * no state between calls, so one `processors` serves all beams of a row in any order. All memory is allocated at
 * opening. Classifier-free guidance is applied before them: scores_guide.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_LOGITS_PROCESSORS_H
#define MN_GEN_LOGITS_PROCESSORS_H

#include "constraint/constraint.h"
#include "gen/config/generation_config.h"

typedef struct processors processors;

/* Everything is borrowed until processors_close. */
typedef struct processor_setup {
    const mn_generation_config *config;
    size_t vocab;
    int row; /* for the callbacks */
    const int32_t *prompt;
    size_t n_prompt;
    const int32_t *encoder; /* NULL: the prompt takes the place of the encoder's input */
    size_t n_encoder;
    int64_t max_length;          /* prompt and new tokens at most; 0 or less: no limit known */
    mn_logits_processor process; /* NULL: none, as prefix_allowed */
    mn_prefix_allowed prefix_allowed;
    void *user;             /* of both */
    constraint *constraint; /* on the new tokens; NULL: none */
} processor_setup;

typedef struct processor_step {
    const int32_t *ids; /* the whole sequence so far, prompt included; 1 or more, all below vocab */
    size_t n;
    const int32_t *chosen; /* group beams: tokens that the row's earlier groups took at this step */
    size_t n_chosen;
} processor_step;

/* MN_E_ARG: a setting names a token outside the vocabulary. */
mn_status processors_open(processors **out, const processor_setup *setup);
void processors_close(processors **p);

/* Processors and, when sampling, warpers: scores[vocab] in place. Searches with beams pass log-probabilities. MN_E_ARG:
 * a callback failed or allows nothing; without beams also when no token is left (a beam may end so, and the search sees
 * it by its scores). The status of the constraint. */
mn_status processors_run(processors *p, const processor_step *step, float *scores);

/* For measurements: the rows of the table. How many there are; the i-th one's name, and whether p has it active; runs
 * it alone. */
size_t processors_count(void);
const char *processors_name(size_t i);
bool processors_is_active(const processors *p, size_t i);
mn_status processors_run_one(processors *p, size_t i, const processor_step *step, float *scores);

#endif
