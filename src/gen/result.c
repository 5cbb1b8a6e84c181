/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/result.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

mn_status result_open(gen_result **out, size_t n_requests) {
    gen_result *result = mem_alloc(1, sizeof *result);
    *out = result;
    if (!result) return MN_E_NOMEM;
    result->requests = mem_alloc(n_requests, sizeof *result->requests);
    if (!result->requests) return MN_E_NOMEM;
    result->n_requests = n_requests;
    return MN_OK;
}

mn_status result_reserve(gen_result *result) {
    size_t n = 0;
    for (size_t i = 0; i < result->n_requests; i++) n += result->requests[i]->n_opened;
    result->sequences = mem_alloc(n, sizeof *result->sequences);
    result->list = mem_alloc(n, sizeof *result->list);
    return result->sequences && result->list ? MN_OK : MN_E_NOMEM;
}

static void sum_caches(gen_result *result) {
    mn_cache_info *sum = &result->cache;
    for (size_t i = 0; i < result->n_requests; i++) {
        mn_cache_info before = *sum;
        *sum = result->requests[i]->cache;
        sum->tokens += before.tokens;
        sum->seen += before.seen;
        sum->bytes += before.bytes;
        if (before.peak_bytes > sum->peak_bytes) sum->peak_bytes = before.peak_bytes; /* of all rows, both */
        sum->offloaded_bytes += before.offloaded_bytes;
        if (before.original_implementation) sum->original_implementation = before.original_implementation;
        if (before.implementation && strcmp(before.implementation, sum->implementation) != 0)
            sum->implementation = "several";
    }
}

static mn_sequence view_of(const request *r, sequence *s) {
    return (mn_sequence){
        .size = sizeof(mn_sequence),
        .row = s->row,
        .index = s->index,
        .ids = s->ids,
        .n_ids = s->n_ids,
        .text = s->stream ? bytes_text(&s->text.text) : NULL,
        .n_text = s->text.text.n,
        .finish_reason = s->finish,
        .logprob_ids = s->logprob_ids,
        .logprobs = s->logprobs,
        .scores = s->scores,
        .logits = s->raw,
        .prompt_tokens = r->setup.n_prompt,
        .cached_tokens = r->cached_tokens,
        .file_tokens = r->file_tokens,
        .has_score = s->has_score,
        .score = s->score,
        .beam_indices = s->beam_indices,
        .transition_scores = s->transitions,
        .draft_tokens = s->n_drafted,
        .draft_accepted = s->n_draft_accepted,
        .match_ended = r->match.why,
        .match_other = r->match.why ? r->match.other : -1,
        .stop_string = strcmp(s->finish, "stop_string") == 0 ? (int)s->text.found : -1,
    };
}

/* The requests' step logs in one array. *out is owned by the result. */
static mn_status join_steps(gen_result *result, bool raw, float **out) {
    mn_generation *public = &result->public;
    size_t vocab = result->requests[0]->vocab, at = 0;
    bool kept = false;
    for (size_t i = 0; i < result->n_requests; i++) {
        const step_log *log = &result->requests[i]->steps;
        kept = kept || (raw ? log->logits : log->scores) != NULL;
    }
    if (!kept) return MN_OK;
    float *all = mem_alloc_raw(public->n_steps * public->n_beams * vocab, sizeof *all);
    *out = all;
    if (!all) return MN_E_NOMEM;
    for (size_t i = 0; i < public->n_steps * public->n_beams * vocab; i++) all[i] = NAN;
    for (size_t i = 0; i < result->n_requests; i++) {
        const step_log *log = &result->requests[i]->steps;
        const float *from = raw ? log->logits : log->scores;
        for (size_t step = 0; from && step < log->n_steps; step++) {
            memcpy(all + (step * public->n_beams + at) * vocab, from + step * log->n_beams * vocab,
                   log->n_beams * vocab * sizeof *all);
        }
        at += log->n_beams;
    }
    return MN_OK;
}

mn_status result_publish(gen_result *result) {
    mn_generation *public = &result->public;
    for (size_t i = 0; i < result->n_requests; i++) {
        const step_log *log = &result->requests[i]->steps;
        public->n_beams += log->n_beams;
        if (log->n_steps > public->n_steps) public->n_steps = log->n_steps;
    }
    for (size_t i = 0; i < result->n_requests; i++) {
        request *r = result->requests[i];
        for (size_t k = 0; k < r->n_opened; k++) {
            if (!r->sequences[k].finish) continue; /* beam search found fewer texts */
            mn_sequence *view = &result->sequences[public->n_sequences];
            *view = view_of(r, &r->sequences[k]);
            result->list[public->n_sequences++] = view;
        }
    }
    public->size = sizeof *public;
    public->sequences = result->list;
    public->cache = &result->cache;
    sum_caches(result);
    MN_TRY(join_steps(result, false, &result->beam_scores));
    MN_TRY(join_steps(result, true, &result->beam_logits));
    public->beam_scores = result->beam_scores;
    public->beam_logits = result->beam_logits;
    return MN_OK;
}

void result_close(gen_result **out) {
    gen_result *result = *out;
    *out = NULL;
    if (!result) return;
    for (size_t i = 0; result->requests && i < result->n_requests; i++) {
        if (!result->requests[i]) continue;
        request_close(result->requests[i]);
        mem_free(result->requests[i]);
    }
    mem_free(result->requests);
    mem_free(result->sequences);
    mem_free(result->list);
    mem_free(result->beam_scores);
    mem_free(result->beam_logits);
    mem_free(result);
}
