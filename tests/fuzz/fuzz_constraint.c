/* Random bytes as a constraint: a JSON schema when they are JSON, a grammar when they have a ::=, else a regular
 * expression. Accepted constraints are walked: every mask has a token, that token is accepted, and the complete text of
 * a schema is JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "constraint/constraint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { STEPS = 24, BYTES = 256, END = BYTES };

/* A vocabulary of all bytes, some longer tokens, and an end token. */
static tokenizer *open_bytes(void) {
    bytes text = {0};
    tokenizer *t = NULL;
    bytes_printf(
        &text,
        "{\"added_tokens\":[{\"id\":%d,\"content\":\"<end>\",\"special\":true}],\"decoder\":{\"type\":\"Sequence\","
        "\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{",
        END);
    for (int i = 0; i < BYTES; i++) bytes_printf(&text, "\"<0x%02X>\":%d,", (unsigned)i, i);
    bytes_printf(&text, "\"ab\":%d,\"\\\"}\":%d,\"{\\\"\":%d,\"é\":%d,\"  \":%d,\"123\":%d},\"merges\":[]}}", END + 1,
                 END + 2, END + 3, END + 4, END + 5, END + 6);
    if (tokenizer_from_memory(&t, bytes_text(&text), text.n, NULL, 0) != MN_OK) abort();
    bytes_clear(&text);
    return t;
}

static void walk(constraint *c, const tokenizer *t, bool is_schema, size_t vocab, const uint8_t *data, size_t n) {
    int32_t ids[STEPS];
    for (size_t k = 0; k < STEPS; k++) {
        const uint64_t *mask;
        mn_status status = constraint_allow(c, ids, k, &mask);
        if (status == MN_E_UNSUPPORTED && strstr(mn_last_error(), "too ambiguous")) return;
        if (status != MN_OK) abort();
        size_t id = (size_t)data[k % n] * 31 + k * 7, tried = 0;
        for (id %= vocab; !(mask[id / 64] >> id % 64 & 1); id = (id + 1) % vocab) {
            if (++tried > vocab) abort();
        }
        if (mask[END / 64] >> END % 64 & 1 && k > STEPS / 2) id = END;
        ids[k] = (int32_t)id;
        if (id != END) continue;
        bytes text = {0};
        json_doc *doc = NULL;
        if (tokenizer_decode(t, ids, k, 0, &text) != MN_OK) abort();
        if (is_schema && json_parse(&doc, bytes_text(&text), text.n, JSON_PYTHON, "answer") != MN_OK) abort();
        json_close(&doc);
        bytes_clear(&text);
        return;
    }
}

static bool is_grammar(const uint8_t *data, size_t n) {
    for (size_t i = 0; i + 3 <= n; i++) {
        if (memcmp(data + i, "::=", 3) == 0) return true;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static tokenizer *t;
    static const int32_t end = END;
    json_doc *doc = NULL;
    constraint *c = NULL;
    if (!t) t = open_bytes();
    if (n == 0) return 0;
    size_t vocab = tokenizer_size(t);
    bool is_schema = json_parse(&doc, (const char *)data, n, JSON_STRICT, "schema") == MN_OK;
    mn_status status = is_schema             ? constraint_open_schema(&c, json_root(doc), t, &end, 1, vocab)
                       : is_grammar(data, n) ? constraint_open_grammar(&c, (const char *)data, n, t, &end, 1, vocab)
                                             : constraint_open_regex(&c, (const char *)data, n, t, &end, 1, vocab);
    if (status == MN_OK) walk(c, t, is_schema, vocab, data, n);
    constraint_close(&c);
    json_close(&doc);
    return 0;
}
