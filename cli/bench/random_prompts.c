/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/random_prompts.h"

#include <math.h>

#include "base/json.h"
#include "base/num.h"

enum { MOST_TRIES = 16, MOST_PADDING = 8, PREFIX_STREAM = 0 };

static const char *const words[] = {
    "time",   "year",   "people", "way",    "day",   "man",   "thing", "woman", "life",  "child", "world",
    "school", "state",  "home",   "family", "group", "house", "hand",  "part",  "place", "week",  "case",
    "point",  "water",  "room",   "book",   "money", "story", "fact",  "word",  "month", "night", "line",
    "side",   "head",   "door",   "car",    "city",  "name",  "team",  "hour",  "game",  "body",  "back",
    "parent", "friend", "level",  "road",   "tree",  "wind",  "light", "stone", "river", "hill",  "bread",
    "table",  "window", "garden", "sea",    "bird",  "fish",  "milk",  "song",  "paper",
};

/* n words of a stream of random numbers, and then as many times "a", which is one token nearly everywhere. */
static void put_words(bytes *out, uint64_t seed, uint64_t stream, size_t n, size_t padding) {
    for (size_t i = 0; i < n + padding; i++) {
        uint64_t choice = random_bits(seed, stream, i) % (sizeof words / sizeof *words);
        if (out->n) bytes_append_text(out, " ");
        bytes_append_text(out, i < n ? words[choice] : "a");
    }
}

/* *count: tokens of the text, 0 where the server has no tokenizer. */
static mn_status count_tokens(random_prompts *p, bytes *text, size_t *count) {
    bytes body = {0};
    bytes_append_text(&body, "{\"content\":");
    json_put_string(&body, bytes_text(text), text->n);
    bytes_append_text(&body, "}");
    http_call call = {.path = "/tokenize", .json = bytes_text(&body), .n_json = body.n};
    json_doc *doc = NULL;
    mn_status status = bytes_status(&body);
    *count = 0;
    if (status == MN_OK) status = http_client_ask(p->client, &call, p->stop);
    if (status == MN_OK && call.status == 200 && !call.error[0] &&
        json_parse(&doc, call.body.data, call.body.n, JSON_PYTHON, "/tokenize") == MN_OK) {
        const json *tokens = json_get(json_root(doc), "tokens");
        if (tokens && tokens->kind == JSON_ARRAY) *count = tokens->n;
    }
    json_close(&doc);
    http_call_clear(p->client, &call);
    bytes_clear(&body);
    return status;
}

/* *out: head and words of the stream behind it, `tokens` tokens in all, or nearly as many where the words allow no
 * better. */
static mn_status fit(random_prompts *p, bytes *out, const bytes *head, uint64_t stream, size_t tokens) {
    size_t n = (size_t)((double)(head->n ? tokens - p->prefix_len : tokens) / p->tokens_per_word);
    size_t padding = 0, count = 0;
    for (int i = 0; i < MOST_TRIES; i++) {
        out->n = 0;
        bytes_append(out, head->data, head->n);
        put_words(out, p->seed, stream, n, padding);
        MN_TRY(bytes_status(out));
        if (!p->has_tokenizer) return MN_OK;
        MN_TRY(count_tokens(p, out, &count));
        if (count == tokens || count == 0) return MN_OK;
        size_t apart = count < tokens ? tokens - count : count - tokens;
        size_t change = (size_t)ceil((double)apart / p->tokens_per_word);
        if (count < tokens && apart <= MOST_PADDING) {
            padding += apart;
        } else if (count < tokens) {
            n += change;
        } else if (padding > 0) {
            padding -= padding < apart ? padding : apart;
        } else {
            n -= n < change ? n : change;
        }
        if (n + padding == 0 && head->n == 0) padding = 1; /* a prompt is not empty */
    }
    return MN_OK;
}

mn_status random_prompts_open(random_prompts *p) {
    enum { SAMPLE = 64 };
    bytes sample = {0}, none = {0};
    size_t count = 0;
    put_words(&sample, p->seed, PREFIX_STREAM, SAMPLE, 0);
    mn_status status = count_tokens(p, &sample, &count);
    bytes_clear(&sample);
    p->has_tokenizer = count > 0;
    p->tokens_per_word = count ? (double)count / SAMPLE : 1;
    if (status == MN_OK && p->prefix_len) status = fit(p, &p->prefix, &none, PREFIX_STREAM, p->prefix_len);
    return status;
}

mn_status random_prompts_make(random_prompts *p, size_t number, bytes *out) {
    return fit(p, out, &p->prefix, PREFIX_STREAM + 1 + number, p->prefix_len + p->input_len);
}

void random_prompts_close(random_prompts *p) {
    bytes_clear(&p->prefix);
}
