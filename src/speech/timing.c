/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/timing.h"

#include "base/num.h"
#include "speech/align.h"

static mn_status choose_heads(speech_timing *t) {
    const speech_tokens *tokens = t->setup.tokens;
    const model_config *config = &t->setup.model->core->net.config;
    int32_t layers = (int32_t)config->num_hidden_layers, per_layer = (int32_t)config->num_attention_heads;
    size_t n = tokens->n_heads ? tokens->n_heads : (size_t)(layers - layers / 2) * (size_t)per_layer;
    t->heads = mem_alloc(n, sizeof *t->heads);
    if (!t->heads) return MN_E_NOMEM;
    for (size_t i = 0; i < tokens->n_heads; i++) t->heads[i] = tokens->heads[i];
    for (int32_t layer = layers / 2; !tokens->n_heads && layer < layers; layer++) {
        for (int32_t head = 0; head < per_layer; head++) t->heads[t->n_heads++] = (cross_head){layer, head};
    }
    t->n_heads = n;
    return MN_OK;
}

mn_status speech_timing_open(speech_timing *t, const speech_timing_setup *setup) {
    size_t most = (size_t)setup->tokens->max_length;
    *t = (speech_timing){.setup = *setup};
    t->ids = mem_alloc(most + 4, sizeof *t->ids);
    t->ends = mem_alloc(most, sizeof *t->ends);
    t->begins = mem_alloc(most + 1, sizeof *t->begins);
    t->words = mem_alloc(most, sizeof *t->words);
    bool has_all = t->ids && t->ends && t->begins && t->words;
    mn_status status = has_all ? choose_heads(t) : MN_E_NOMEM;
    if (status != MN_OK) speech_timing_close(t);
    return status;
}

void speech_timing_close(speech_timing *t) {
    mem_free(t->heads);
    mem_free(t->ids);
    mem_free(t->ends);
    mem_free(t->begins);
    mem_free(t->words);
    bytes_clear(&t->text);
    bytes_clear(&t->scratch);
    *t = (speech_timing){0};
}

/* Writes prompt, text ids and end token to t->ids, the bytes of the text ids to t->text. Returns the number of text
 * ids. */
static size_t spell(speech_timing *t, size_t n_prompt, const int32_t *ids, size_t n) {
    const speech_tokens *tokens = t->setup.tokens;
    size_t n_text = 0, most = (size_t)tokens->max_length;
    t->text.n = 0;
    for (size_t i = 0; i < n && n_prompt + n_text + 1 < most; i++) {
        if (ids[i] >= tokens->end) continue;
        tokenizer_token_bytes(t->setup.tokenizer, ids[i], n_text == 0, &t->scratch, &t->text);
        t->ids[n_prompt + n_text] = ids[i];
        t->ends[n_text++] = t->text.n;
    }
    t->ids[n_prompt + n_text] = tokens->end;
    return n_text;
}

mn_status speech_timing_make(speech_timing *t, const mn_session *session, const speech_language *language,
                             speech_task task, const int32_t *ids, size_t n, int64_t n_frames) {
    const model_config *encoder = t->setup.model->core->net.config.encoder;
    size_t positions = (size_t)encoder->max_position_embeddings, numbers = 0;
    size_t n_prompt = speech_prompt(t->ids, t->setup.tokens, language, task, false, NULL);
    size_t n_text = spell(t, n_prompt, ids, n), rows = n_prompt + n_text + 1;
    t->n_words = 0;
    MN_TRY(bytes_status(&t->text));
    MN_TRY(bytes_status(&t->scratch));
    if (n_text == 0) return MN_OK;
    if (!size_mul(t->n_heads * rows, positions, &numbers)) return mem_no_memory();
    float *weights = mem_alloc_raw(numbers, sizeof *weights);
    if (!weights) return MN_E_NOMEM;
    const speech_attention attention = {.weights = weights,
                                        .n_heads = t->n_heads,
                                        .n_rows = rows,
                                        .stride = positions,
                                        .n_positions = (size_t)min_i64((n_frames + 1) / 2, (int64_t)positions)};
    mn_status status = session_cross_weights(session, t->ids, rows, t->heads, t->n_heads, weights);
    if (status == MN_OK) status = speech_align(t->begins, &attention, n_prompt - 1, n_text + 1);
    mem_free(weights);
    MN_TRY(status);
    bool has_spaces = !language || speech_language_has_spaces(language->code);
    t->n_words = speech_words(t->words, t->text.data, t->ends, n_text, t->begins, has_spaces);
    return MN_OK;
}
