/* SPDX-License-Identifier: Apache-2.0 */
#include "result.h"

#include <math.h>
#include <string.h>

void result_put_ids(bytes *b, const int32_t *ids, size_t n) {
    bytes_append_text(b, "[");
    for (size_t i = 0; i < n; i++) bytes_printf(b, i ? ",%d" : "%d", (int)ids[i]);
    bytes_append_text(b, "]");
}

static void put_named_real(bytes *b, const char *name, double value) {
    bytes_printf(b, "\"%s\":", name);
    json_put_real(b, value);
}

void result_put_cache(bytes *b, const mn_cache_info *cache) {
    bytes_append_text(b, "{");
    json_put_text_member(b, "implementation", cache->implementation);
    json_put_text_member(b, "dtype", cache->dtype);
    json_put_int_member(b, "tokens", cache->tokens);
    json_put_int_member(b, "seen", cache->seen);
    json_put_int_member(b, "bytes", (int64_t)cache->bytes);
    json_put_int_member(b, "peak_bytes", (int64_t)cache->peak_bytes);
    json_put_int_member(b, "bytes_per_token", (int64_t)cache->bytes_per_token);
    if (cache->offloaded_bytes) json_put_int_member(b, "offloaded_bytes", (int64_t)cache->offloaded_bytes);
    if (cache->original_implementation)
        json_put_text_member(b, "original_implementation", cache->original_implementation);
    if (cache->max_cache_len) json_put_int_member(b, "max_cache_len", cache->max_cache_len);
    bytes_append_text(b, "}");
}

static void put_logprobs(bytes *b, const mn_sequence *sequence, int top) {
    bytes_append_text(b, ",\"logprobs\":[");
    for (size_t i = 0; i < sequence->n_ids; i++) {
        const int32_t *ids = sequence->logprob_ids + i * (size_t)(1 + top);
        const float *logprobs = sequence->logprobs + i * (size_t)(1 + top);
        bytes_printf(b, "%s{\"id\":%d,", i ? "," : "", ids[0]);
        put_named_real(b, "logprob", (double)logprobs[0]);
        bytes_append_text(b, ",\"top\":[");
        for (int k = 1; k <= top; k++) {
            bytes_printf(b, "%s{\"id\":%d,", k > 1 ? "," : "", ids[k]);
            put_named_real(b, "logprob", (double)logprobs[k]);
            bytes_append_text(b, "}");
        }
        bytes_append_text(b, "]}");
    }
    bytes_append_text(b, "]");
}

static void put_text(bytes *b, const mn_sequence *sequence, const prompt *p) {
    const reasoning_place at = reasoning_find(&p->reasoning, sequence->text, sequence->n_text);
    size_t from = p->hides_reasoning ? at.answer : 0;
    json_put_string(b, sequence->text + from, sequence->n_text - from);
    if (at.answer == 0) return;
    bytes_append_text(b, ",\"reasoning\":");
    json_put_string(b, sequence->text + at.begin, at.end - at.begin);
}

static void put_sequence(bytes *b, const mn_sequence *sequence, const prompt *p, int top_logprobs) {
    bytes_printf(b, "{\"row\":%d,\"ids\":", sequence->row);
    result_put_ids(b, sequence->ids, sequence->n_ids);
    bytes_append_text(b, ",\"text\":");
    if (sequence->text) {
        put_text(b, sequence, p);
    } else {
        bytes_append_text(b, "null");
    }
    bytes_printf(b, ",\"finish_reason\":\"%s\"", sequence->finish_reason);
    if (sequence->has_score) {
        bytes_append_text(b, ",");
        put_named_real(b, "score", sequence->score);
    }
    if (sequence->logprobs && top_logprobs >= 0) put_logprobs(b, sequence, top_logprobs);
    bytes_append_text(b, "}");
}

void result_put(bytes *b, const loaded_model *e, const mn_generation *generation, const prompt *p, int top_logprobs) {
    size_t cached_tokens = 0, completion_tokens = 0, drafted = 0, accepted = 0;
    bytes_append_text(b, "{\"model\":");
    json_put_string(b, e->path, strlen(e->path));
    bytes_append_text(b, ",\"prompt_ids\":[");
    result_put_ids(b, p->ids, p->n);
    bytes_printf(b, "],\"seed\":%llu,\"sequences\":[", (unsigned long long)generation->seed);
    for (size_t i = 0; i < generation->n_sequences; i++) {
        const mn_sequence *sequence = generation->sequences[i];
        bytes_append_text(b, i ? "," : "");
        put_sequence(b, sequence, p, top_logprobs);
        cached_tokens += sequence->cached_tokens;
        completion_tokens += sequence->n_ids;
        drafted += sequence->draft_tokens;
        accepted += sequence->draft_accepted;
    }
    bytes_printf(b, "],\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"cached_tokens\":%zu", p->n,
                 completion_tokens, cached_tokens);
    if (drafted) bytes_printf(b, ",\"draft_tokens\":%zu,\"draft_accepted\":%zu", drafted, accepted);
    bytes_append_text(b, "},\"cache\":");
    result_put_cache(b, generation->cache);
    double rates[2] = {(double)(p->n - cached_tokens) / generation->prompt_ms * 1e3,
                       (double)completion_tokens / generation->predicted_ms * 1e3};
    bytes_printf(b,
                 ",\"timings\":{\"load_ms\":%.3f,\"prompt_ms\":%.3f,\"predicted_ms\":%.3f,"
                 "\"prompt_per_second\":%.3f,\"predicted_per_second\":%.3f}}",
                 e->load_ms, generation->prompt_ms, generation->predicted_ms, isfinite(rates[0]) ? rates[0] : 0,
                 isfinite(rates[1]) ? rates[1] : 0);
}

/* Side by side in one row of numbers: running beams, or sequences. */
static size_t count_columns(const mn_generation *g, const float *beams) {
    return beams ? g->n_beams : g->n_sequences;
}

static size_t count_steps(const mn_generation *g, const float *beams) {
    size_t steps = beams ? g->n_steps : 0;
    for (size_t i = 0; !beams && i < g->n_sequences; i++) {
        if (g->sequences[i]->n_ids > steps) steps = g->sequences[i]->n_ids;
    }
    return steps;
}

/* Scores of one step and column; NULL: it had ended. */
static const float *scores_at(const mn_generation *g, const float *beams, size_t step, size_t column, size_t vocab,
                              bool raw) {
    if (beams) return step < g->n_steps ? beams + (step * g->n_beams + column) * vocab : NULL;
    const mn_sequence *sequence = g->sequences[column];
    const float *own = raw ? sequence->logits : sequence->scores;
    return own && step < sequence->n_ids ? own + step * vocab : NULL;
}

static const float *beams_of(const mn_generation *g, bool raw) {
    return raw ? g->beam_logits : g->beam_scores;
}

mn_status result_write_scores(const char *path, mn_generation *const *generations, size_t n, int32_t vocab_size,
                              bool raw) {
    size_t steps = 0, columns = 0, total = 0, vocab = (size_t)vocab_size;
    for (size_t i = 0; i < n; i++) {
        size_t own = count_steps(generations[i], beams_of(generations[i], raw));
        if (own > steps) steps = own;
        columns += count_columns(generations[i], beams_of(generations[i], raw));
    }
    if (!size_mul(steps, columns, &total) || !size_mul(total, vocab, &total)) return mem_no_memory();
    float *all = mem_alloc_raw(total, sizeof *all), *to = all;
    if (!all) return mem_no_memory();
    for (size_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < n; i++) {
            const float *beams = beams_of(generations[i], raw);
            size_t own = count_columns(generations[i], beams);
            for (size_t column = 0; column < own; column++, to += vocab) {
                const float *from = scores_at(generations[i], beams, step, column, vocab, raw);
                for (size_t k = 0; k < vocab; k++) to[k] = from ? from[k] : NAN;
            }
        }
    }
    const int64_t shape[] = {(int64_t)steps, (int64_t)columns, vocab_size};
    mn_status status = mn_tensor_save(path, raw ? "logits" : "scores", shape, 3, all);
    mem_free(all);
    return status;
}
