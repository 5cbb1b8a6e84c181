/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/chooser.h"

#include <string.h>

#include "base/mem.h"

mn_status chooser_open(chooser *c, const search_setup *setup, bool weighs) {
    *c = (chooser){.setup = setup, .vocab = (size_t)setup->session->model->net.config.vocab_size};
    c->scores = mem_alloc_raw(c->vocab, sizeof *c->scores);
    if (!c->scores) return MN_E_NOMEM;
    if (weighs || setup->config->do_sample) MN_TRY(choice_open(&c->choice, c->vocab));
    const processor_setup inputs = search_processors(setup);
    return processors_open(&c->processors, &inputs);
}

void chooser_close(chooser *c) {
    processors_close(&c->processors);
    choice_close(&c->choice);
    mem_free(c->scores);
    *c = (chooser){0};
}

mn_status chooser_process(chooser *c, const int32_t *ids, size_t n, const float *logits) {
    const processor_step step = {.ids = ids, .n = n};
    if (logits) memcpy(c->scores, logits, c->vocab * sizeof *logits);
    return processors_run(c->processors, &step, c->scores);
}

int32_t chooser_pick(chooser *c, const sequence *to, size_t at) {
    const search_setup *setup = c->setup;
    if (!setup->config->do_sample) return choice_best(c->scores, c->vocab);
    return choice_sample(&c->choice, c->scores, c->vocab, setup->seed, (uint64_t)to->index, at);
}
