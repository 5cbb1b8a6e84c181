/* Constraints on tokens, with real tokenizers: a mask allows exactly the tokens that the automaton accepts, random
 * walks through masks give valid texts, valid texts are allowed token by token, hostile input is bounded, and failures
 * are clean.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "constraint/constraint.h"
#include "constraint/run.h"
#include "support/budget.h"
#include "support/schema_check.h"
#include "support/support.h"
#include "text/tokenizer/regex.h"

enum { MOST = 600 };

static const char *const tokenizers[] = {"smollm2", "gpt2", "mistral", "mistral-v3"};
enum { N_TOKENIZERS = sizeof tokenizers / sizeof *tokenizers };

static tokenizer *opened[N_TOKENIZERS];

static int open_tokenizers(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TOKENIZERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "tokenizers/%s%s", tokenizers[i], i == 3 ? "/tokenizer.model" : "");
        assert_ok(tokenizer_open(&opened[i], data_path(name)));
    }
    return 0;
}

static int close_tokenizers(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TOKENIZERS; i++) tokenizer_close(&opened[i]);
    return 0;
}

static int32_t end_of(const tokenizer *t) {
    return tokenizer_role(t, TOKEN_EOS);
}

static mn_status open_regex(constraint **c, const char *pattern, const tokenizer *t) {
    return constraint_open_regex(c, pattern, strlen(pattern), t, &(int32_t){end_of(t)}, 1, tokenizer_size(t));
}

static mn_status open_schema(constraint **c, const char *schema, const tokenizer *t) {
    json_doc *doc;
    assert_ok(json_parse(&doc, schema, strlen(schema), JSON_STRICT, "schema of a test"));
    mn_status status = constraint_open_schema(c, json_root(doc), t, &(int32_t){end_of(t)}, 1, tokenizer_size(t));
    json_close(&doc);
    return status;
}

static bool allowed(const uint64_t *mask, int32_t id) {
    return mask[id / 64] >> (id % 64) & 1;
}

#define TREE                                                                                                                                       \
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"naïve \\\"name\\\"\":{\"type\":\"string\",\"maxLength\":9}," \
    "\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"children\"]}}}"
#define ORDER                                                                                                                                \
    "{\"type\":\"object\",\"properties\":{\"date\":{\"type\":\"string\",\"format\":\"date\"},\"count\":{\"type\":\"integer\",\"minimum\":1," \
    "\"maximum\":250},\"price\":{\"type\":\"number\",\"minimum\":0},\"color\":{\"enum\":[\"red\",\"green\",\"größer\"]},\"note\":"         \
    "{\"type\":\"string\"},\"more\":{}},\"required\":[\"date\",\"count\",\"color\"],\"additionalProperties\":{\"type\":\"boolean\"}}"

static const char *const schemas[] = {
    "true",
    "{\"type\":\"string\"}",
    TREE,
    ORDER,
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":4}",
    "{\"type\":\"string\",\"pattern\":\"^[à-ÿ€-₿😀-😏]{2,5}$\"}",
    ("{\"properties\":{\"ab\":{}},\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"é$\":{\"type\":[\"null\",\"integer\"]}},\"additionalProperties\":"
     "{\"type\":\"boolean\"},\"propertyNames\":{\"maxLength\":4},\"maxProperties\":3}")};
static const char *const regexes[] = {
    "(yes|no|maybe)",   "[A-Z][a-z]+( [A-Z][a-z]+){1,3}", "\\d{4}-\\d{2}-\\d{2}", "[^\\n]{3,30}",
    "(éß|😀|日本){2,4}", " ?[a-z]+(, [a-z]+)*\\.",         "[ \n\t]{2,5}x"};
enum { N_SCHEMAS = sizeof schemas / sizeof *schemas, N_REGEXES = sizeof regexes / sizeof *regexes };

static constraint *open_case(size_t i, const tokenizer *t) {
    constraint *c = NULL;
    assert_ok(i < N_SCHEMAS ? open_schema(&c, schemas[i], t) : open_regex(&c, regexes[i - N_SCHEMAS], t));
    return c;
}

/* ---- walks ---- */

/* The answer as text. */
static void text_of(const tokenizer *t, const int32_t *ids, size_t n, bytes *out) {
    out->n = 0;
    assert_ok(tokenizer_decode(t, ids, n, TOKENIZER_SKIP_SPECIAL, out));
}

static int32_t random_allowed(const uint64_t *mask, size_t vocab, uint64_t *seed) {
    size_t start = (size_t)(test_random(seed) % vocab);
    for (size_t i = 0; i < vocab; i++) {
        if (allowed(mask, (int32_t)((start + i) % vocab))) return (int32_t)((start + i) % vocab);
    }
    fail_msg("an empty mask");
    return -1;
}

/* Tokens that close strings and brackets, to end long walks. */
static int32_t closing(const tokenizer *t, const uint64_t *mask) {
    static const char *const pieces[] = {"\"", "}",    "]", ":", "-", "0", "1", "2", ".",
                                         "x",  "null", "n", "u", "l", "r", "e", "d"};
    if (allowed(mask, end_of(t))) return end_of(t);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        int32_t id = tokenizer_find(t, pieces[i]);
        if (id >= 0 && allowed(mask, id)) return id;
    }
    return -1;
}

/* Random allowed tokens until the end token, which is not counted. */
static size_t walk(constraint *c, const tokenizer *t, uint64_t *seed, int32_t *ids) {
    size_t n = 0, patience = (size_t)(test_random(seed) % 60);
    for (;;) {
        const uint64_t *mask;
        assert_ok(constraint_allow(c, ids, n, &mask));
        int32_t id = test_random(seed) % 4 < (n < patience ? 1 : 3) ? closing(t, mask) : -1;
        if (id < 0) id = random_allowed(mask, tokenizer_size(t), seed);
        if (n == MOST) {
            bytes text = {0};
            text_of(t, ids, n, &text);
            fail_msg("a walk does not end: %s", bytes_text(&text));
        }
        ids[n] = id;
        if (id == end_of(t)) return n;
        n++;
    }
}

static void walks_give_valid_texts(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (size_t k = 0; k < N_TOKENIZERS; k++) {
        for (size_t i = 0; i < N_SCHEMAS + N_REGEXES; i++) {
            constraint *c = open_case(i, opened[k]);
            json_doc *schema = NULL;
            regex *pattern = NULL;
            regex_state *scratch = NULL;
            bytes text = {0};
            if (i < N_SCHEMAS) {
                assert_ok(json_parse(&schema, schemas[i], strlen(schemas[i]), JSON_STRICT, "schema"));
            } else {
                bytes_printf(&text, "\\A(?:%s)\\z", regexes[i - N_SCHEMAS]);
                assert_ok(regex_open(&pattern, text.data, text.n, "oracle"));
                assert_ok(regex_state_open(&scratch, 1 << 20));
            }
            for (int w = 0; w < (test_is_long() ? 60 : 8 / test_stride(2)); w++) {
                int32_t ids[MOST];
                size_t n = walk(c, opened[k], &seed, ids), start, end;
                bool valid;
                text_of(opened[k], ids, n, &text);
                if (schema) {
                    valid = schema_check_text(json_root(schema), bytes_text(&text), text.n);
                } else {
                    assert_ok(regex_find(pattern, scratch, bytes_text(&text), text.n, 0, &valid, &start, &end));
                }
                if (!valid) fail_msg("%s, case %zu: %s", tokenizers[k], i, bytes_text(&text));
            }
            bytes_clear(&text);
            json_close(&schema);
            regex_close(&pattern);
            regex_state_close(&scratch);
            constraint_close(&c);
        }
    }
}

/* ---- masks ---- */

/* The automaton of a case, advanced byte by byte. */
typedef struct machine {
    json_doc *doc;
    net g;
    run r;
} machine;

static void machine_open(machine *m, size_t i) {
    *m = (machine){0};
    assert_ok(net_open(&m->g));
    uint32_t root;
    if (i < N_SCHEMAS) {
        assert_ok(json_parse(&m->doc, schemas[i], strlen(schemas[i]), JSON_STRICT, "schema"));
        root = net_schema(&m->g, json_root(m->doc));
    } else {
        root = net_regex(&m->g, regexes[i - N_SCHEMAS], strlen(regexes[i - N_SCHEMAS]), &(net_pattern){.max = NET_MANY},
                         NET_END);
    }
    assert_ok(net_finish(&m->g, root));
    assert_ok(run_open(&m->r, &m->g));
}

static void machine_close(machine *m) {
    run_clear(&m->r);
    net_clear(&m->g);
    json_close(&m->doc);
}

static uint32_t read_on(machine *m, uint32_t s, const char *text, size_t n) {
    m->r.steps = 0;
    for (size_t i = 0; i < n && s != RUN_DEAD; i++) assert_ok(run_step(&m->r, s, (uint8_t)text[i], &s));
    return s;
}

static void check_mask(machine *m, const tokenizer *t, const int32_t *ids, size_t n, const uint64_t *mask,
                       bytes *scratch) {
    bytes text = {0};
    for (size_t i = 0; i < n; i++) assert_ok(tokenizer_token_bytes(t, ids[i], i == 0, scratch, &text));
    uint32_t s = read_on(m, m->r.start, bytes_text(&text), text.n);
    for (int32_t id = 0; id < (int32_t)tokenizer_size(t); id++) {
        bool expected;
        text.n = 0;
        assert_ok(tokenizer_token_bytes(t, id, n == 0, scratch, &text));
        if (id == end_of(t)) {
            expected = m->r.states[s].accepts;
        } else {
            bool can = text.n > 0 && !tokenizer_is_special(t, id);
            expected = can && read_on(m, s, text.data, text.n) != RUN_DEAD;
        }
        if (expected != allowed(mask, id)) fail_msg("token %d after %zu tokens: %d expected", (int)id, n, expected);
    }
    bytes_clear(&text);
}

static void masks_equal_every_token_tried(void **state) {
    (void)state;
    uint64_t seed = 2;
    bytes scratch = {0};
    for (size_t k = 0; k < N_TOKENIZERS; k++) {
        for (size_t i = k % 2; i < N_SCHEMAS + N_REGEXES; i += 2) {
            machine m;
            machine_open(&m, i);
            constraint *c = open_case(i, opened[k]);
            int32_t ids[MOST];
            size_t n = walk(c, opened[k], &seed, ids);
            for (size_t at = 0; at <= n; at += 1 + n / 2) {
                const uint64_t *mask;
                assert_ok(constraint_allow(c, ids, at, &mask));
                check_mask(&m, opened[k], ids, at, mask, &scratch);
            }
            constraint_close(&c);
            machine_close(&m);
        }
    }
    bytes_clear(&scratch);
}

static void tokenized_texts_are_allowed(void **state) {
    (void)state;
    static const struct {
        size_t schema;
        const char *text;
    } rows[] = {
        {0, "{\"a\": [1, 2.5e3, true, {\"b\": null}], \"日本\": \"\\u00e9 😀 \\\"x\\\"\"}"},
        {0, "[\n  {\n    \"id\": 17,\n    \"tags\": [\n      \"x\",\n      \"y\"\n    ]\n  }\n]"},
        {0, "-12.75"},
        {1, "\"Once upon a time, there was a naïve fox; it said: \\\"Hi\\\"\\n\\tand left.\""},
        {2,
         "{\"naïve \\\"name\\\"\": \"Jörg\", \"children\": [{\"children\": []}, {\"naïve \\\"name\\\"\": \"\", \"children\": []}]}"},
        {3, "{\"date\": \"2024-02-29\", \"count\": 250, \"price\": 19.99, \"color\": \"größer\"}"},
        {3,
         "{\"date\":\"1999-12-31\",\"count\":1,\"color\":\"red\",\"note\":\"\",\"more\":{\"x\":[]},\"extra\":true,\"dat\":false}"},
        {4, "[1, -20, 300]"},
        {5, "\"é😀€\""},
    };
    for (size_t k = 0; k < N_TOKENIZERS; k++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            constraint *c = NULL;
            token_list ids = {0};
            const uint64_t *mask;
            assert_ok(open_schema(&c, schemas[rows[i].schema], opened[k]));
            assert_ok(tokenizer_encode(opened[k], rows[i].text, strlen(rows[i].text), 0, &ids));
            for (size_t at = 0; at <= ids.n; at++) {
                assert_ok(constraint_allow(c, ids.ids, at, &mask));
                if (!allowed(mask, at < ids.n ? ids.ids[at] : end_of(opened[k])))
                    fail_msg("%s: token %zu of %s", tokenizers[k], at, rows[i].text);
            }
            token_list_clear(&ids);
            constraint_close(&c);
        }
    }
}

/* ---- a function of the ids ---- */

static void masks_depend_on_the_ids_alone(void **state) {
    (void)state;
    enum { ROWS = 90, LENGTH = 40 }; /* more rows than the constraint has slots for texts */
    const tokenizer *t = opened[0];
    size_t words = (tokenizer_size(t) + 63) / 64;
    static int32_t ids[ROWS][MOST];
    uint64_t *kept[ROWS][LENGTH] = {0}, seed = 21;
    size_t lengths[ROWS];
    constraint *c = NULL, *other = NULL;
    const uint64_t *mask;
    assert_ok(open_schema(&c, ORDER, t));
    assert_ok(open_schema(&other, ORDER, t));
    for (size_t r = 0; r < ROWS; r++) {
        lengths[r] = walk(c, t, &seed, ids[r]);
        if (lengths[r] > LENGTH) lengths[r] = LENGTH;
        for (size_t n = 0; n < lengths[r]; n++) {
            assert_ok(constraint_allow(c, ids[r], n, &mask));
            kept[r][n] = mem_alloc_raw(words, sizeof *mask);
            memcpy(kept[r][n], mask, words * sizeof *mask);
        }
    }
    for (int i = 0; i < 3000; i++) {
        size_t r = (size_t)(test_random(&seed) % ROWS), n = (size_t)(test_random(&seed) % LENGTH);
        if (n >= lengths[r]) continue;
        assert_ok(constraint_allow(other, ids[r], n, &mask));
        assert_memory_equal(mask, kept[r][n], words * sizeof *mask);
    }
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t n = 0; n < LENGTH; n++) mem_free(kept[r][n]);
    }
    constraint_close(&c);
    constraint_close(&other);
}

static void only_the_end_token_follows_the_end(void **state) {
    (void)state;
    const tokenizer *t = opened[0];
    int32_t yes = tokenizer_find(t, "yes"), end = end_of(t), ends[] = {tokenizer_find(t, "no"), end};
    constraint *c = NULL;
    const uint64_t *mask;
    assert_ok(open_regex(&c, "yes|no", t));
    int32_t ids[] = {yes, end, end, yes};
    for (size_t n = 1; n <= 3; n++) {
        assert_ok(constraint_allow(c, ids, n, &mask));
        for (int32_t id = 0; id < (int32_t)tokenizer_size(t); id++) assert_int_equal(allowed(mask, id), id == end);
    }
    assert_fails(MN_E_ARG, "does not allow token", constraint_allow(c, ids, 4, &mask));
    assert_fails(MN_E_ARG, "as new token 0", constraint_allow(c, &end, 1, &mask));
    assert_fails(MN_E_ARG, "out of range", constraint_allow(c, &(int32_t){-1}, 1, &mask));
    assert_fails(MN_E_ARG, "out of range", constraint_allow(c, &(int32_t){1 << 24}, 1, &mask));
    assert_ok(constraint_allow(c, ids, 1, &mask)); /* usable after failures */
    constraint_close(&c);

    /* An end token that has a text: it ends the answer and adds no text. */
    assert_ok(constraint_open_regex(&c, "(yes|no)?", 9, t, ends, 2, tokenizer_size(t)));
    assert_ok(constraint_allow(c, NULL, 0, &mask));
    assert_true(allowed(mask, yes) && allowed(mask, ends[0]) && allowed(mask, end));
    assert_ok(constraint_allow(c, &ends[0], 1, &mask));
    assert_false(allowed(mask, yes));
    constraint_close(&c);
}

static void vocabularies_of_other_sizes_than_the_logits_work(void **state) {
    (void)state;
    const tokenizer *t = opened[0];
    constraint *c = NULL;
    const uint64_t *mask;
    int32_t end = 2;
    size_t most = tokenizer_size(t) + 77;
    assert_ok(constraint_open_regex(&c, ".*", 2, t, &end, 1, most)); /* more logits than tokens */
    assert_ok(constraint_allow(c, NULL, 0, &mask));
    for (size_t id = tokenizer_size(t); id < (most + 63) / 64 * 64; id++) assert_false(allowed(mask, (int32_t)id));
    constraint_close(&c);
    assert_ok(constraint_open_regex(&c, ".*", 2, t, &end, 1, 1000)); /* fewer */
    assert_ok(constraint_allow(c, NULL, 0, &mask));
    for (size_t id = 1000; id < 1024; id++) assert_false(allowed(mask, (int32_t)id));
    constraint_close(&c);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    const tokenizer *t = opened[0];
    constraint *c = (constraint *)(uintptr_t)1;
    int32_t end = 2;
    assert_fails(MN_E_ARG, "tokenizer", constraint_open_regex(&c, "a", 1, NULL, &end, 1, 100));
    assert_null(c);
    assert_fails(MN_E_ARG, "end token", constraint_open_regex(&c, "a", 1, t, NULL, 0, 100));
    assert_fails(MN_E_ARG, "the end token 2 is out of range, allowed: 0 to 1",
                 constraint_open_regex(&c, "a", 1, t, &end, 1, 2));
    assert_fails(MN_E_ARG, "a vocabulary of 0 tokens", constraint_open_regex(&c, "a", 1, t, &end, 1, 0));
    assert_fails(MN_E_ARG, "no schema", constraint_open_schema(&c, NULL, t, &end, 1, 100));
    assert_fails(MN_E_ARG, "matches no text", open_regex(&c, "a[^\\s\\S]", t));
    assert_fails(MN_E_ARG, "the schema cannot be met: $: no value is allowed", open_schema(&c, "false", t));
    assert_fails(MN_E_ARG, "nest deeper",
                 open_schema(&c, "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", t));
    assert_null(c);
    constraint_close(&c);
}

/* A vocabulary without a token that the text needs: an error with a message. */
static void a_vocabulary_without_a_fitting_token_is_an_error(void **state) {
    (void)state;
    static const char json_text[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true},{\"id\":5,\"content\":\"[X]\"}],\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,"
        "\"<0xC3>\":3,\"<0xA9>\":4},\"merges\":[]}}";
    tokenizer *t = NULL;
    constraint *c = NULL;
    const uint64_t *mask;
    int32_t end = 0;
    assert_ok(tokenizer_from_memory(&t, json_text, sizeof json_text - 1, NULL, 0));
    assert_fails(MN_E_UNSUPPORTED, "after 0 tokens", constraint_open_regex(&c, "x", 1, t, &end, 1, 6));
    assert_ok(constraint_open_regex(&c, "ax|é|\\[X\\]", 11, t, &end, 1, 6));
    assert_ok(constraint_allow(c, NULL, 0, &mask));
    assert_int_equal(mask[0], 1 << 1 | 1 << 3 | 1 << 5); /* a token that is text by name, a byte, an added one */
    assert_ok(constraint_allow(c, (int32_t[]){3}, 1, &mask));
    assert_int_equal(mask[0], 1 << 4);
    assert_ok(constraint_allow(c, (int32_t[]){3, 4}, 2, &mask));
    assert_int_equal(mask[0], 1 << 0);
    assert_fails(MN_E_UNSUPPORTED, "no token of this vocabulary fits the constraint after 1 tokens",
                 constraint_allow(c, (int32_t[]){1}, 1, &mask));
    assert_ok(constraint_allow(c, (int32_t[]){5}, 1, &mask));
    constraint_close(&c);
    tokenizer_close(&t);
}

/* ---- hostile input ---- */

/* The constraint is refused with a message, or some steps succeed; both within limits of time, which is counted from
 * the last one before it, and of memory. */
static void drive(mn_status status, constraint **c, const tokenizer *t, const char *what) {
    static double from;
    uint64_t seed = 1;
    int32_t ids[40];
    const size_t most = 40 / (size_t)test_stride(4);
    for (size_t n = 0; status == MN_OK && n < most; n++) {
        const uint64_t *mask;
        status = constraint_allow(*c, ids, n, &mask);
        if (status != MN_OK) break;
        ids[n] = random_allowed(mask, tokenizer_size(t), &seed);
        assert_true(constraint_measure(*c).bytes < (size_t)130 << 20);
        if (ids[n] == end_of(t)) break;
    }
    if (status != MN_OK && status != MN_E_ARG && status != MN_E_UNSUPPORTED)
        fail_msg("%.60s: status %d: %s", what, status, mn_last_error());
    constraint_close(c);
    if (from > 0) assert_within(from, 3, what);
    from = processor_seconds();
}

static void hostile_patterns_are_refused_or_bounded(void **state) {
    (void)state;
    static const char *const patterns[] = {"(a{1000}){1000}",
                                           "(a|aa)+$",
                                           "(a*)*b",
                                           "((a{1,1000}){1,1000}){1,1000}",
                                           "(a?){5000}a{5000}",
                                           "(.*)*(.*)*x",
                                           "(.{0,1000}){0,1000}x",
                                           "([a-z ]*a[a-z ]{25})*",
                                           "(((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9})",
                                           "a{4294967294}",
                                           "(.|..|...|....){1,4000000000}",
                                           "(\\w+\\s?)+!",
                                           "(x+x+)+y",
                                           "(?:(?:(?:a|b)|(?:c|d))|(?:(?:e|f)|(?:g|h))){100,10000}",
                                           ".*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*z"};
    const tokenizer *t = opened[0];
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        constraint *c = NULL;
        if (test_samples((int)i, 2)) drive(open_regex(&c, patterns[i], t), &c, t, patterns[i]);
    }
    static const struct {
        const char *unit;
        size_t count;
    } repeated[] = {{"(", 50000},      {"a|", 30000},      {"[^a]", 16000}, {"(a?)", 16000},
                    {"a{0,9}", 10000}, {"[\\w\\s]", 9000}, {"(a|", 90}};
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        bytes pattern = {0};
        constraint *c = NULL;
        for (size_t k = 0; k < repeated[i].count; k++) bytes_append_text(&pattern, repeated[i].unit);
        drive(open_regex(&c, bytes_text(&pattern), t), &c, t, repeated[i].unit);
        bytes_clear(&pattern);
    }
    bytes class = {0};
    bytes_append_text(&class, "[");
    for (uint32_t code = 0x20000; class.n < 65000; code += 2) {
        char text[4];
        bytes_append(&class, text, utf8_encode(text, code));
    }
    bytes_append_text(&class, "]+");
    constraint *c = NULL;
    drive(open_regex(&c, bytes_text(&class), t), &c, t, "a class of many characters");
    bytes_clear(&class);
}

static void append_many(bytes *out, const char *begin, const char *unit, size_t n, const char *end) {
    bytes_append_text(out, begin);
    for (size_t i = 0; i < n; i++) {
        bytes_append_text(out, i ? "," : "");
        bytes_printf(out, unit, (int)i, (int)i, (int)i);
    }
    bytes_append_text(out, end);
}

static void hostile_schemas_are_refused_or_bounded(void **state) {
    (void)state;
    static const struct {
        const char *begin, *unit, *end;
        size_t n;
    } rows[] = {
        {"{\"enum\":[", "\"value %d\"", "]}", 20000},
        {"{\"enum\":[", "%d", "]}", 20000},
        {"{\"properties\":{", "\"p%d\":{\"type\":\"integer\"}", "}}", 3000},
        {"{\"additionalProperties\":true,\"properties\":{", "\"p%d\":{}", "}}", 3000},
        {"{\"allOf\":[", "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\",\"minimum\":%d}]}", "]}", 40},
        {"{\"allOf\":[", "{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d}]}", "]}", 24},
        {"{\"allOf\":[", "{\"properties\":{\"a\":{\"$ref\":\"#\"},\"b%d\":{}}}", "]}", 60},
        {"{\"oneOf\":[", "{\"const\":%d}", "]}", 3000},
        {"{\"anyOf\":[", "{\"type\":\"array\",\"prefixItems\":[{\"const\":%d}],\"minItems\":%d}", "]}", 3000},
        {"{\"$ref\":\"#/$defs/d0\",\"$defs\":{",
         "\"d%d\":{\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/d0\"},{\"$ref\":\"#\"},{\"maxItems\":%d}]}}",
         "}}", 2000},
        {"{\"required\":[", "\"r%d\"", "]}", 5000},
        {"{\"patternProperties\":{", "\"p%d\":{}", "}}", 3000},
        {"{\"patternProperties\":{", "\"^p%d$\":{\"const\":%d}", "}}", 300},
        {"{\"patternProperties\":{\"^x\":{}},\"properties\":{", "\"p%d\":{}", "}}", 3000},
        {"{\"properties\":{", "\"p%d\":{\"patternProperties\":{\"a[ab]{9}%d$\":{}}}", "}}", 40},
        {"{\"propertyNames\":{\"allOf\":[", "{\"pattern\":\"[^%d]\"}", "]}}", 1000},
    };
    static const char *const single[] = {
        "{\"type\":\"string\",\"minLength\":4294967290}",
        "{\"type\":\"array\",\"minItems\":4294967290,\"items\":{\"type\":\"array\",\"minItems\":4000000000}}",
        "{\"type\":\"array\",\"maxItems\":1e15}",
        "{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"type\":\"null\"}]}",
        "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#/items\"},{}]}}",
        "{\"type\":\"string\",\"pattern\":\"(a|aa)+$\"}",
        "{\"type\":\"string\",\"maxLength\":100000}",
        "{\"propertyNames\":{\"maxLength\":100000}}",
        "{\"patternProperties\":{\"a[ab]{300}$\":{}}}",
        "{\"patternProperties\":{\"(.{0,1000}){0,1000}x\":{}}}",
        "{\"patternProperties\":{\"a\":{\"$ref\":\"#\"},\"b\":{\"$ref\":\"#\"},\"^c\":{\"$ref\":\"#/patternProperties/a\"}}}",
        "{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}],\"$defs\":{\"a\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/b\"}}},\"b\":{\"properties\":{\"x\":{\"$ref\":\"#\"}}}}}"};
    const tokenizer *t = opened[0];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!test_samples((int)i, 2)) continue;
        bytes schema = {0};
        constraint *c = NULL;
        append_many(&schema, rows[i].begin, rows[i].unit, rows[i].n / (size_t)test_stride(4), rows[i].end);
        drive(open_schema(&c, bytes_text(&schema), t), &c, t, rows[i].unit);
        bytes_clear(&schema);
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        constraint *c = NULL;
        if (test_samples((int)i, 2)) drive(open_schema(&c, single[i], t), &c, t, single[i]);
    }
    bytes deep = {0};
    constraint *c = NULL;
    for (int i = 0; i < 120; i++) bytes_append_text(&deep, "{\"items\":");
    bytes_append_text(&deep, "true");
    for (int i = 0; i < 120; i++) bytes_append_text(&deep, "}");
    drive(open_schema(&c, bytes_text(&deep), t), &c, t, "deep");
    bytes_clear(&deep);
}

/* A long text with new states throughout: memory stays below its limit, and discarded states are recomputed
 * identically. */
static void memory_of_long_texts_is_bounded(void **state) {
    (void)state;
    enum { LONG = 24000, STRIDE = 300 };
    static int32_t ids[LONG];
    static const char pattern[] = "[a-z ]{0,400000}";
    const tokenizer *t = opened[0];
    constraint *c = NULL, *other = NULL;
    const uint64_t *mask;
    size_t shrunk = 0, before = 0, words = (tokenizer_size(t) + 63) / 64;
    uint64_t *copy = mem_alloc_raw(words, sizeof *mask);
    assert_ok(open_regex(&c, pattern, t));
    for (size_t n = 0; n < LONG; n++) ids[n] = tokenizer_find(t, "Ġinternational");
    for (size_t n = 0; n<LONG; n += n> LONG - 2 * STRIDE ? 1 : STRIDE) {
        assert_ok(constraint_allow(c, ids, n, &mask));
        assert_true(allowed(mask, ids[n]) && allowed(mask, end_of(t)));
        size_t size = constraint_measure(c).bytes;
        assert_true(size < (size_t)64 << 20);
        if (size < before) { /* states were discarded, but not those of the latest texts */
            for (size_t k = 1; k < 4; k++) {
                assert_ok(constraint_allow(c, ids, n - k * STRIDE, &mask));
                assert_true(allowed(mask, ids[n]) && allowed(mask, end_of(t)));
            }
            shrunk++;
        }
        before = size;
    }
    assert_true(shrunk > 0);
    assert_ok(open_regex(&other, pattern, t));
    for (size_t n = LONG - 1; n > 9000; n -= 9000) {
        assert_ok(constraint_allow(c, ids, n, &mask));
        memcpy(copy, mask, words * sizeof *mask);
        assert_ok(constraint_allow(other, ids, n, &mask));
        assert_memory_equal(copy, mask, words * sizeof *mask);
    }
    mem_free(copy);
    constraint_close(&c);
    constraint_close(&other);
}

/* More masks than the cache holds: masks whose slot was reused are recomputed. */
static void evicted_masks_are_recomputed(void **state) {
    (void)state;
    enum { VOCAB = 1 << 21, TEXTS = 90 }; /* a mask of 256 KiB: 64 are kept */
    const tokenizer *t = opened[0];
    static const char pattern[] = "a{0,30}b{0,60}";
    int32_t ids[TEXTS];
    constraint *c = NULL;
    const uint64_t *mask;
    uint64_t seed = 8;
    for (size_t n = 0; n < TEXTS; n++) ids[n] = tokenizer_find(t, n < 30 ? "a" : "b");
    assert_ok(constraint_open_regex(&c, pattern, sizeof pattern - 1, t, &(int32_t){end_of(t)}, 1, VOCAB));
    int32_t aa = tokenizer_find(t, "aa"), bb = tokenizer_find(t, "bb");
    for (size_t i = 0; i < 600; i++) {
        size_t n = i < TEXTS ? i : (size_t)(test_random(&seed) % TEXTS);
        assert_ok(constraint_allow(c, ids, n, &mask));
        assert_int_equal(allowed(mask, ids[0]), n < 30);
        assert_int_equal(allowed(mask, aa), n < 29);
        assert_int_equal(allowed(mask, bb), n < 89);
        assert_true(allowed(mask, end_of(t)));
    }
    assert_true(constraint_measure(c).masks > TEXTS && constraint_measure(c).bytes < (size_t)20 << 20);
    constraint_close(&c);
}

/* ---- failing allocations ---- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char *const cases[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":4},\"b\":{\"enum\":[1,\"x\"]},\"c\":{\"type\":\"array\","
        "\"items\":{\"$ref\":\"#/$defs/d\"}}},\"additionalProperties\":true,\"$defs\":{\"d\":{\"type\":\"string\",\"pattern\":\"^a[b-d]+$\"}}}",
        "{\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"enum\":[1,\"x\",[2]]},\"uniqueItems\":true}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"}},"
        "\"if\":{\"properties\":{\"a\":{\"enum\":[\"x\",\"xy\"]}},\"required\":[\"a\"]},\"then\":{\"properties\":{\"b\":{\"not\":{\"const\":1}}}},"
        "\"else\":{\"oneOf\":[{\"required\":[\"b\"]},{\"maxProperties\":0}]},\"dependentSchemas\":{\"b\":{\"required\":[\"a\"]}}}",
        "{\"properties\":{\"a\":{}},\"patternProperties\":{\"^x[yz]$\":{\"type\":\"null\"}},\"propertyNames\":{\"maxLength\":2,\"anyOf\":"
        "[{\"pattern\":\"x\"},{\"$ref\":\"#/$defs/d\"}]},\"additionalProperties\":false,\"$defs\":{\"d\":{\"const\":\"a\"}}}",
        NULL,
        "root ::= (a | [^b-d]{2,3} \"x\"?)+ # all\na ::= \"(\" root \")\" | b\nb ::= \"q\" b | \"\""};
    const tokenizer *t = opened[2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool is_schema = cases[i] && cases[i][0] == '{';
        int64_t k = 1;
        for (bool done = false; !done; k += 1 + k / 16) { /* each of the first ones, then some */
            constraint *c = NULL;
            json_doc *doc = NULL;
            const uint64_t *mask;
            int64_t live = mem_count().live;
            if (is_schema) assert_ok(json_parse(&doc, cases[i], strlen(cases[i]), JSON_STRICT, "schema"));
            mem_fail_after(k);
            mn_status status =
                is_schema  ? constraint_open_schema(&c, json_root(doc), t, &(int32_t){end_of(t)}, 1, 3000)
                : cases[i] ? constraint_open_grammar(&c, cases[i], strlen(cases[i]), t, &(int32_t){end_of(t)}, 1, 3000)
                           : constraint_open_regex(&c, "(a{2,3}|[^b]){2}x\\d*", 21, t, &(int32_t){end_of(t)}, 1, 3000);
            int32_t ids[8];
            uint64_t seed = 3;
            for (size_t n = 0; status == MN_OK && n < 8; n++) {
                status = constraint_allow(c, ids, n, &mask);
                if (status == MN_OK) ids[n] = random_allowed(mask, 3000, &seed);
            }
            bool hit = status != MN_OK;
            mem_fail_after(0);
            if (hit) assert_int_equal(status, MN_E_NOMEM);
            if (c && hit) { /* usable afterwards */
                for (size_t n = 0; n < 3; n++) {
                    assert_ok(constraint_allow(c, ids, n, &mask));
                    ids[n] = random_allowed(mask, 3000, &seed);
                }
            }
            constraint_close(&c);
            json_close(&doc);
            assert_int_equal(mem_count().live, live);
            done = !hit;
        }
        assert_true(k > 30);
    }
}

/* The texts of a vocabulary's tokens are read for the first constraint of a tokenizer, and stay as long as one of them
 * is open. An allocation that fails meanwhile leaves nothing, or all of them for the next try. */
static void a_vocabulary_is_read_once(void **state) {
    (void)state;
    enum { TREE_BLOCKS = 6 };
    const int64_t live = mem_count().live;
    tokenizer *t = NULL;
    constraint *c[2] = {NULL, NULL};
    int64_t n_allocations[2];
    assert_ok(tokenizer_open(&t, data_path("tokenizers/mistral")));
    const int64_t before = mem_count().live;
    mn_status status = MN_E_NOMEM;
    for (int64_t k = 1; status != MN_OK; k += test_stride(4)) {
        mem_fail_after(k);
        status = open_regex(&c[0], "[a-z]+", t);
        mem_fail_after(0);
        if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
        constraint_close(&c[0]);
        assert_in_range(mem_count().live - before, 0, TREE_BLOCKS);
    }
    tokenizer_close(&t);
    assert_int_equal(mem_count().live, live);
    assert_ok(tokenizer_open(&t, data_path("tokenizers/mistral")));
    for (int i = 0; i < 2; i++) {
        const int64_t allocations = mem_count().allocations;
        assert_ok(open_regex(&c[i], "[a-z]+", t));
        n_allocations[i] = mem_count().allocations - allocations;
    }
    assert_true(n_allocations[1] + TREE_BLOCKS <= n_allocations[0]);
    const int32_t end = end_of(t);
    const uint64_t *masks[2];
    tokenizer_close(&t);
    for (int i = 0; i < 2; i++) {
        assert_ok(constraint_allow(c[i], NULL, 0, &masks[i]));
        assert_false(allowed(masks[i], end));
    }
    assert_memory_equal(masks[0], masks[1], 1000);
    for (int i = 0; i < 2; i++) constraint_close(&c[i]);
    assert_int_equal(mem_count().live, live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks_give_valid_texts),
        cmocka_unit_test(masks_equal_every_token_tried),
        cmocka_unit_test(tokenized_texts_are_allowed),
        cmocka_unit_test(masks_depend_on_the_ids_alone),
        cmocka_unit_test(only_the_end_token_follows_the_end),
        cmocka_unit_test(vocabularies_of_other_sizes_than_the_logits_work),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_vocabulary_without_a_fitting_token_is_an_error),
        cmocka_unit_test(hostile_patterns_are_refused_or_bounded),
        cmocka_unit_test(hostile_schemas_are_refused_or_bounded),
        cmocka_unit_test(memory_of_long_texts_is_bounded),
        cmocka_unit_test(evicted_masks_are_recomputed),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_vocabulary_is_read_once),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
