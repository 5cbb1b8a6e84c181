/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/sequence.h"

#include <string.h>

#include "base/mem.h"
#include "gen/logits/scores.h"

/* The decoder and its buffers, large enough that ordinary text never grows them. */
static mn_status open_text(sequence *s, const tokenizer *text) {
    enum { PIECE_BYTES = 512, TOKEN_BYTES = 8, MOST_TOKENS = 65536 };
    size_t n = s->max_new < MOST_TOKENS ? s->max_new : MOST_TOKENS;
    MN_TRY(tokenizer_stream_open(&s->stream, text, TOKENIZER_SKIP_SPECIAL));
    MN_TRY(tokenizer_stream_reserve(s->stream, PIECE_BYTES));
    MN_TRY(mem_grow(&s->piece.data, &s->piece.capacity, PIECE_BYTES, 1));
    MN_TRY(stop_text_reserve(&s->text, PIECE_BYTES));
    return mem_grow(&s->text.text.data, &s->text.text.capacity, n * TOKEN_BYTES + PIECE_BYTES, 1);
}

mn_status sequence_open(sequence *s, const mn_session *session, const mn_generation_config *config,
                        const mn_generate_options *options, const int32_t *prompt, size_t n_prompt, size_t max_new) {
    *s = (sequence){.session = session, .config = config, .options = options, .n_prompt = n_prompt, .max_new = max_new};
    const tokenizer *text = session->owner->text;
    size_t vocab = (size_t)session->model->net.config.vocab_size;
    s->text.stops = &config->stop_strings;
    if (s->text.stops->n && !text) MN_FAIL(MN_E_ARG, "stop_strings need a tokenizer, and this checkpoint has none");
    if (text) MN_TRY(open_text(s, text));
    int top = options->top_logprobs;
    s->all = mem_alloc_raw(n_prompt + max_new, sizeof *s->all);
    if (top >= 0) {
        s->logprob_ids = mem_alloc(max_new * (size_t)(1 + top), sizeof *s->logprob_ids);
        s->logprobs = mem_alloc(max_new * (size_t)(1 + top), sizeof *s->logprobs);
    }
    if (options->keep_scores) s->scores = mem_alloc_raw(max_new * vocab, sizeof *s->scores);
    if (options->keep_logits) s->raw = mem_alloc_raw(max_new * vocab, sizeof *s->raw);
    bool complete = s->all && (top < 0 || (s->logprob_ids && s->logprobs)) && (!options->keep_scores || s->scores) &&
                    (!options->keep_logits || s->raw);
    if (!complete) return MN_E_NOMEM;
    memcpy(s->all, prompt, n_prompt * sizeof *prompt);
    s->ids = s->all + n_prompt;
    return MN_OK;
}

void sequence_close(sequence *s) {
    tokenizer_stream_close(&s->stream);
    bytes_clear(&s->piece);
    stop_text_clear(&s->text);
    mem_free(s->all);
    mem_free(s->logprob_ids);
    mem_free(s->logprobs);
    mem_free(s->scores);
    mem_free(s->raw);
    mem_free(s->beam_indices);
    mem_free(s->transitions);
    mn_session_close(&s->session_kept);
    *s = (sequence){0};
}

/* Reports the text that may be shown now. */
static void show(sequence *s, int32_t id) {
    mn_token_event event = {.size = sizeof event,
                            .row = s->row,
                            .sequence = s->index,
                            .id = id,
                            .text = "",
                            .n_text = s->text.text.n - s->shown,
                            .finish_reason = id < 0 ? s->finish : NULL};
    if (event.n_text) event.text = s->text.text.data + s->shown;
    if (id >= 0 && s->logprobs) {
        size_t at = (s->n_ids - 1) * (1 + (size_t)s->options->top_logprobs);
        event.logprob_ids = s->logprob_ids + at;
        event.logprobs = s->logprobs + at;
    }
    s->shown = s->text.text.n;
    if (s->options->on_token && !s->options->on_token(s->options->user, &event)) s->cancelled = true;
}

/* Text of a chosen token, or with id -1 the rest in the decoder. A token that ends the answer is no part of its text,
 * whether it is a special one or an ordinary one that was made the end. */
static mn_status add_text(sequence *s, int32_t id) {
    const tokenizer *text = s->session->owner->text;
    bool is_end = id >= 0 && s->finish;
    if (s->stream && id < 0) {
        s->piece.n = 0;
        MN_TRY(tokenizer_stream_finish(s->stream, &s->piece));
        stop_text_push(&s->text, s->piece.data, s->piece.n, true);
        stop_text_finish(&s->text);
        MN_TRY(bytes_status(&s->text.text));
    } else if (s->stream && !(is_end && !tokenizer_is_special(text, id))) {
        MN_TRY(stop_text_push_token(&s->text, text, s->stream, id, &s->piece));
    }
    show(s, id);
    if (s->text.stopped && !s->finish) s->finish = "stop_string";
    return MN_OK;
}

void sequence_rank(int32_t *ids, float *logprobs, size_t top, int32_t id, const float *scores, size_t vocab) {
    double log_sum = scores_log_sum(scores, vocab);
    ids[0] = id;
    logprobs[0] = (float)((double)scores[id] - log_sum);
    size_t n = 0;
    for (size_t i = 0; i < vocab && top > 0; i++) {
        float value = (float)((double)scores[i] - log_sum);
        if (n == top && value <= logprobs[n]) continue;
        size_t at = n < top ? ++n : n;
        for (; at > 1 && logprobs[at - 1] < value; at--) {
            ids[at] = ids[at - 1];
            logprobs[at] = logprobs[at - 1];
        }
        ids[at] = (int32_t)i;
        logprobs[at] = value;
    }
}

static void keep_rows(sequence *s, size_t at, const float *scores, const float *raw) {
    size_t vocab = (size_t)s->session->model->net.config.vocab_size;
    if (s->raw && raw) memcpy(s->raw + at * vocab, raw, vocab * sizeof *raw);
    if (s->scores && scores) memcpy(s->scores + at * vocab, scores, vocab * sizeof *scores);
}

void sequence_record(sequence *s, size_t at, int32_t id, const float *scores, const float *raw) {
    size_t vocab = (size_t)s->session->model->net.config.vocab_size, top = (size_t)s->options->top_logprobs;
    size_t first = at * (1 + top);
    if (s->logprobs && scores) sequence_rank(s->logprob_ids + first, s->logprobs + first, top, id, scores, vocab);
    keep_rows(s, at, scores, raw);
}

mn_status sequence_append(sequence *s, int32_t id, const float *scores, const float *raw) {
    keep_rows(s, s->n_ids, scores, raw);
    s->ids[s->n_ids++] = id;
    return add_text(s, id);
}

mn_status sequence_add(sequence *s, int32_t id) {
    if (!s->config->ignore_eos && id_list_has(&s->config->eos_token_id, id)) s->finish = "eos";
    MN_TRY(sequence_append(s, id, NULL, NULL));
    mn_stopping stop = s->options->stop;
    if (!s->finish && stop && stop(s->options->user, s->row, s->all, s->n_prompt + s->n_ids)) s->finish = "callback";
    if (!s->finish && s->n_ids == s->max_new) s->finish = "length";
    return s->finish ? sequence_end(s, s->finish) : MN_OK;
}

mn_status sequence_end(sequence *s, const char *reason) {
    if (s->has_ended) return MN_OK;
    s->has_ended = true;
    if (!s->finish) s->finish = reason;
    return add_text(s, -1);
}

void sequence_keep(sequence *s, mn_session **session) {
    if (s->options->keep_sessions && *session) {
        s->session_kept = *session;
        *session = NULL;
    }
    mn_session_close(session);
}
