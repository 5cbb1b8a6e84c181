/* Normalizers, pre-tokenizers, decoders, post-processors and added words of tokenizer.json in random combinations
 * against the Python package tokenizers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "text/tokenizer/build.h"

enum { BOTH = TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL };

static tokenizer *open_case(const json *models, const json *test, json_doc **doc) {
    bytes text = {0};
    bytes_printf(&text, "{\"model\":{%s,%s},%s}", json_get(models, json_get(test, "model")->string)->string,
                 json_get(test, "choices")->string, json_get(test, "parts")->string);
    assert_ok(json_parse(doc, bytes_text(&text), text.n, JSON_PYTHON, "tokenizer.json"));
    bytes_clear(&text);
    tokenizer *t = NULL;
    assert_ok(tokenizer_new(&t, NULL));
    assert_ok(tokenizer_read_json(t, json_root(*doc), "tokenizer.json"));
    assert_ok(tokenizer_finish(t, "tokenizer.json"));
    return t;
}

static bool check_ids(const tokenizer *t, const json *text, const json *ids) {
    token_list out = {0};
    assert_ok(tokenizer_encode(t, text->string, text->n, BOTH, &out));
    bool same = out.n == ids->n;
    for (size_t i = 0; same && i < out.n; i++) same = out.ids[i] == ids->items[i].integer;
    token_list_clear(&out);
    return same;
}

static bool check_decoded(const tokenizer *t, const json *ids, const json *text) {
    int32_t row[256];
    bytes out = {0};
    assert_true(ids->n <= 256);
    for (size_t i = 0; i < ids->n; i++) row[i] = (int32_t)ids->items[i].integer;
    assert_ok(tokenizer_decode(t, row, ids->n, 0, &out));
    bool same = out.n == text->n && memcmp(bytes_text(&out), text->string, out.n) == 0;
    bytes_clear(&out);
    return same;
}

static void combinations_equal_the_package(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("tokenizers/components.json"));
    const json *cases = json_get(json_root(doc), "cases"), *models = json_get(json_root(doc), "models");
    size_t n_decoded = 0;
    assert_int_equal(cases->n, 80);
    for (size_t i = 0; i < cases->n; i++) {
        const json *test = &cases->items[i], *texts = json_get(test, "texts");
        json_doc *file = NULL;
        tokenizer *t = open_case(models, test, &file);
        for (size_t k = 0; k < texts->n; k++) {
            const json *sample = texts->items[k].items;
            if (!check_ids(t, &sample[0], &sample[1]))
                fail_msg("case %zu: ids of '%s' differ; %s", i, sample[0].string, json_get(test, "parts")->string);
            if (sample[2].kind == JSON_NULL) continue;
            if (!check_decoded(t, &sample[1], &sample[2]))
                fail_msg("case %zu: '%s' is decoded otherwise; %s", i, sample[2].string,
                         json_get(test, "parts")->string);
            n_decoded++;
        }
        tokenizer_close(&t);
        json_close(&file);
    }
    assert_true(n_decoded > 200);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(combinations_equal_the_package)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
