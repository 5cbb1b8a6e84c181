/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/transcript.h"

#include <string.h>

/* The public view of a segment is constant; this module owns what it points to. */
static void free_view(const void *block) {
    mem_free((void *)(uintptr_t)block);
}

static void close_segment(const mn_segment *s) {
    if (!s) return;
    free_view(s->text);
    free_view(s->ids);
    if (s->words) { /* the first one points to the array and the text of all */
        free_view(s->words[0]->text);
        free_view(s->words[0]);
    }
    free_view(s->words);
    free_view(s);
}

static mn_status copy_ids(mn_segment *s, const int32_t *ids, size_t n) {
    int32_t *copy = mem_alloc_raw(n, sizeof *copy);
    if (!copy) return mem_no_memory();
    memcpy(copy, ids, n * sizeof *copy);
    s->ids = copy;
    s->n_ids = n;
    return MN_OK;
}

static mn_status copy_text(mn_segment *s, const tokenizer *text_of_ids, const int32_t *ids, size_t n) {
    bytes text = {0};
    mn_status status = tokenizer_decode(text_of_ids, ids, n, TOKENIZER_SKIP_SPECIAL, &text);
    if (status == MN_OK) {
        s->text = mem_copy_text(text.n ? text.data : "", text.n);
        s->n_text = text.n;
        if (!s->text) status = mem_no_memory();
    }
    bytes_clear(&text);
    return status;
}

static mn_status copy_words(mn_segment *s, const transcript_words *from) {
    if (!from || from->n == 0) return MN_OK;
    size_t begin = from->words[0].text_begin, end = from->words[from->n - 1].text_end;
    mn_word *words = mem_alloc(from->n, sizeof *words);
    const mn_word **list = mem_alloc(from->n, sizeof *list);
    char *text = mem_copy_text(from->text + begin, end - begin);
    if (!words || !list || !text) {
        mem_free(words);
        mem_free(list);
        mem_free(text);
        return mem_no_memory();
    }
    for (size_t i = 0; i < from->n; i++) {
        const speech_word *w = &from->words[i];
        list[i] = &words[i];
        words[i] = (mn_word){.size = sizeof(mn_word),
                             .text = text + (w->text_begin - begin),
                             .n_text = w->text_end - w->text_begin,
                             .start = from->offset + w->start,
                             .end = from->offset + w->end};
        audio_parts_word(from->parts, &words[i].start, &words[i].end);
    }
    s->words = list;
    s->n_words = from->n;
    return MN_OK;
}

mn_status transcript_add(transcript *t, const mn_segment *segment, const transcript_words *words) {
    mn_transcript *public = &t->public;
    MN_TRY(mem_grow(&t->segments, &t->capacity, public->n_segments + 1, sizeof *t->segments));
    MN_TRY(mem_grow(&t->ids, &t->ids_capacity, public->n_ids + segment->n_ids, sizeof *t->ids));
    MN_TRY(mem_grow(&t->text_ids, &t->text_capacity, t->n_text_ids + segment->n_ids, sizeof *t->text_ids));
    int32_t *text_ids = t->text_ids + t->n_text_ids;
    size_t n_text_ids = speech_text_ids(text_ids, t->tokens, segment->ids, segment->n_ids);
    mn_segment *s = mem_alloc(1, sizeof *s);
    if (!s) return MN_E_NOMEM;
    *s = (mn_segment){.size = sizeof *s,
                      .start = segment->start,
                      .end = segment->end,
                      .avg_logprob = segment->avg_logprob,
                      .no_speech_prob = segment->no_speech_prob,
                      .compression_ratio = segment->compression_ratio,
                      .temperature = segment->temperature,
                      .window_start = segment->window_start};
    mn_status status = copy_ids(s, segment->ids, segment->n_ids);
    if (status == MN_OK && t->tokenizer) status = copy_text(s, t->tokenizer, text_ids, n_text_ids);
    if (status == MN_OK) status = copy_words(s, words);
    if (status != MN_OK) {
        close_segment(s);
        return status;
    }
    memcpy(t->ids + public->n_ids, segment->ids, segment->n_ids * sizeof *t->ids);
    t->segments[public->n_segments++] = s;
    public->n_ids += segment->n_ids;
    t->n_text_ids += n_text_ids;
    public->segments = t->segments;
    public->ids = t->ids;
    return MN_OK;
}

mn_status transcript_finish(transcript *t, mn_status status) {
    mn_transcript *public = &t->public;
    public->size = sizeof *public;
    public->status = status;
    if (status != MN_OK) bytes_append_text(&t->error, mn_last_error());
    if (t->tokenizer && !t->text.n)
        MN_TRY(tokenizer_decode(t->tokenizer, t->text_ids, t->n_text_ids, TOKENIZER_SKIP_SPECIAL, &t->text));
    public->error = bytes_text(&t->error);
    public->text = t->tokenizer ? bytes_text(&t->text) : NULL;
    public->n_text = t->text.n;
    public->language = *t->language ? t->language : NULL;
    MN_TRY(bytes_status(&t->text));
    return bytes_status(&t->error);
}

void transcript_clear(transcript *t) {
    for (size_t i = 0; i < t->public.n_segments; i++) close_segment(t->segments[i]);
    mem_free(t->segments);
    mem_free(t->ids);
    mem_free(t->text_ids);
    bytes_clear(&t->text);
    bytes_clear(&t->error);
    mem_free(t->path);
    *t = (transcript){0};
}
