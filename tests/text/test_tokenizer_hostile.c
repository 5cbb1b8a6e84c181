/* Tokenizers of high cost: each is refused with a message or stays within a time limit. With MNEME_LONG=1 texts have 16
 * MB.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/budget.h"
#include "support/gguf_writer.h"
#include "support/support.h"

#include "base/utf8.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/build.h"

#define MODEL "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2},\"merges\":[]}"

static void repeat(bytes *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) bytes_append_text(out, text);
}

/* MODEL with one more component. */
static mn_status open_with(tokenizer **t, const char *key, const bytes *value) {
    bytes text = {0};
    bytes_printf(&text, MODEL ",\"%s\":", key);
    bytes_append(&text, value->data, value->n);
    bytes_append_text(&text, "}");
    mn_status status = tokenizer_from_memory(t, text.data, text.n, NULL, 0);
    bytes_clear(&text);
    return status;
}

static mn_status open_bytes(tokenizer **out, const bytes *data) {
    *out = NULL;
    tokenizer *t;
    assert_ok(tokenizer_new(&t, NULL));
    mn_status status = tokenizer_read_bytes(t, data->data, data->n, "made");
    if (status == MN_OK) status = tokenizer_finish(t, "made");
    if (status != MN_OK) tokenizer_close(&t);
    *out = t;
    return status;
}

/* ---- files that made loading quadratic ---- */

static void put_varint(bytes *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_append(out, &(char){(char)(value | 0x80)}, 1);
    bytes_append(out, &(char){(char)value}, 1);
}

/* A piece of a SentencePiece model: fields text, score, type. */
static void put_piece(bytes *out, const char *text, size_t n, float score, char type) {
    bytes piece = {0};
    bytes_append(&piece, "\x0A", 1);
    put_varint(&piece, n);
    bytes_append(&piece, text, n);
    bytes_append(&piece, "\x15", 1);
    bytes_append(&piece, &score, 4);
    bytes_append(&piece, "\x18", 1);
    bytes_append(&piece, &type, 1);
    bytes_append(out, "\x0A", 1);
    put_varint(out, piece.n);
    bytes_append(out, piece.data, piece.n);
    bytes_clear(&piece);
}

/* Pieces of 'a' with up to `most` letters in steps of `step`, and <unk>. */
static bytes sentencepiece_of_runs(size_t most, size_t step) {
    bytes model = {0}, run = {0};
    put_piece(&model, "<unk>", 5, 0, 2);
    repeat(&run, "a", most);
    for (size_t n = 1; n <= most; n += step) put_piece(&model, run.data, n, -(float)n, 1);
    bytes_append(&model, "\x12\x02\x18\x02", 4);                 /* the trainer: BPE */
    bytes_append(&model, "\x1A\x06\x18\x00\x20\x00\x28\x01", 8); /* the normalizer: no prefix, spaces kept, marks */
    bytes_clear(&run);
    return model;
}

static void put_base64(bytes *out, const unsigned char *data, size_t n) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t group =
            (uint32_t)data[i] << 16 | (i + 1 < n ? (uint32_t)data[i + 1] << 8 : 0) | (i + 2 < n ? data[i + 2] : 0);
        const char four[] = {letters[group >> 18], letters[group >> 12 & 63],
                             i + 1 < n ? letters[group >> 6 & 63] : '=', i + 2 < n ? letters[group & 63] : '='};
        bytes_append(out, four, 4);
    }
}

/* The 256 bytes, then runs of 'a' as above. */
static bytes tiktoken_of_runs(size_t first, size_t most) {
    bytes file = {0}, run = {0};
    for (int i = 0; i < 256; i++) {
        put_base64(&file, &(unsigned char){(unsigned char)i}, 1);
        bytes_printf(&file, " %d\n", i);
    }
    repeat(&run, "a", most);
    for (size_t n = first, rank = 256; n <= most; n++, rank++) {
        put_base64(&file, (const unsigned char *)run.data, n);
        bytes_printf(&file, " %zu\n", rank);
    }
    bytes_clear(&run);
    return file;
}

static void long_pieces_are_refused(void **state) {
    (void)state;
    enum { LONG = 400000 };
    tokenizer *t;
    double from = processor_seconds();
    bytes sp = {0}, tik = tiktoken_of_runs(300000, 300000), run = {0};
    repeat(&run, "ab", LONG / 2);
    put_piece(&sp, "<unk>", 5, 0, 2);
    put_piece(&sp, "a", 1, -1, 1);
    put_piece(&sp, run.data, run.n, -2, 1);
    bytes_append(&sp, "\x12\x02\x18\x02\x1A\x06\x18\x00\x20\x00\x28\x01", 12);
    assert_fails(MN_E_FORMAT, "token 2 has 400000 bytes, at most 1024 are allowed", open_bytes(&t, &sp));
    assert_fails(MN_E_FORMAT, "token 256 has 300000 bytes, at most 1024", open_bytes(&t, &tik));
    assert_within(from, 0.02, "refusing long pieces");
    bytes_clear(&sp);
    bytes_clear(&tik);

    gguf_writer w = {0};
    bytes file = {0};
    const char *pieces[] = {"<unk>", "a", "b", bytes_text(&run)};
    gguf_writer_text(&w, "general.architecture", "llama");
    gguf_writer_text(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", pieces, 4);
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, sizeof(float), (float[]){0, -1, -2, -3}, 4);
    gguf_writer_finish(&w, &file);
    gguf_writer_clear(&w);
    from = processor_seconds();
    assert_fails(MN_E_FORMAT, "token 3 has 400000 bytes, at most 1024", open_bytes(&t, &file));
    assert_within(from, 0.02, "refusing a long piece of a GGUF file");
    bytes_clear(&file);
    bytes_clear(&run);
}

/* Every split of every piece is a merge: the largest input that is accepted. */
static void longest_pieces_load_in_time(void **state) {
    (void)state;
    bytes files[] = {sentencepiece_of_runs(SPLIT_MAX_BYTES, 1), tiktoken_of_runs(2, SPLIT_MAX_BYTES)}, text = {0},
          back = {0};
    repeat(&text, "a", 5000);
    for (size_t i = 0; i < 2; i++) {
        tokenizer *t;
        token_list ids = {0};
        double from = processor_seconds();
        assert_ok(open_bytes(&t, &files[i]));
        assert_within(from, 0.2 * (double)files[i].n / (1 << 20), "loading the longest pieces");
        assert_ok(tokenizer_encode(t, text.data, text.n, 0, &ids));
        back.n = 0;
        assert_ok(tokenizer_decode(t, ids.ids, ids.n, 0, &back));
        assert_int_equal(back.n, text.n);
        assert_memory_equal(back.data, text.data, back.n);
        token_list_clear(&ids);
        tokenizer_close(&t);
        bytes_clear(&files[i]);
    }
    bytes_clear(&text);
    bytes_clear(&back);
}

static void too_many_templates_and_parts_are_refused(void **state) {
    (void)state;
    tokenizer *t;
    bytes value = {0};
    bytes_append_text(&value, "{\"type\":\"TemplateProcessing\",\"special_tokens\":{},\"single\":[{\"Sequence\":{}}");
    repeat(&value, ",{\"SpecialToken\":{\"id\":\"x\"}}", 65);
    bytes_append_text(&value, "]}");
    assert_fails(MN_E_FORMAT, "a template of 66 parts, at most 65", open_with(&t, "post_processor", &value));
    bytes_clear(&value);

    bytes config = {0};
    bytes_append_text(&config, "{\"chat_template\":[");
    for (int i = 0; i <= TEMPLATES; i++)
        bytes_printf(&config, "%s{\"name\":\"%d\",\"template\":\"\"}", i ? "," : "", i);
    bytes_append_text(&config, "]}");
    assert_fails(MN_E_FORMAT, "more than 256 chat templates",
                 tokenizer_from_memory(&t, MODEL "}", strlen(MODEL "}"), config.data, config.n));
    bytes_clear(&config);
}

/* ---- hash tables ---- */

/* Texts of eight printable bytes whose unseeded hash ends in 23 zero bits. */
static size_t colliding_texts(char (*out)[9], size_t most) {
    const uint64_t c1 = 0x9E3779B97F4A7C15u, c2 = 0xD6E8FEB86659FD93u;
    uint64_t inverse = c2;
    size_t n = 0;
    for (int i = 0; i < 6; i++) inverse *= 2 - c2 * inverse;
    for (uint64_t k = 0; k < (1u << 30) && n < most; k++) {
        uint64_t wanted = (k & 0x1FFFF) << 23 | (k >> 17) << 50, h = wanted ^ wanted >> 29 ^ wanted >> 58;
        if ((h ^ h >> 29) != wanted) continue;
        h *= inverse;
        h ^= h >> 32;
        uint64_t word = (h * inverse) ^ (8 * c1);
        bool printable = true;
        memcpy(out[n], &word, 8);
        for (int i = 0; i < 8; i++) {
            unsigned char c = (unsigned char)out[n][i];
            printable = printable && c > ' ' && c < 0x7F && c != '"' && c != '\\';
        }
        out[n][8] = 0;
        n += printable;
    }
    return n;
}

static void hash_tables_are_seeded(void **state) {
    (void)state;
    enum { MOST = 12000 };
    char(*texts)[9] = mem_alloc(MOST + 1, sizeof *texts);
    assert_non_null(texts);
    size_t n = colliding_texts(texts, MOST);
    assert_true(n > 2000);
    vocab tables[2] = {{0}, {0}};
    double from = processor_seconds();
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n; i++) assert_ok(vocab_put(&tables[k], (int64_t)i, texts[i], 8, 0, "test"));
        for (size_t i = 0; i < n; i++) assert_int_equal(vocab_find(&tables[k], texts[i], 8), i);
    }
    assert_within(from, 0.002, "texts whose hashes were equal");
    assert_true(tables[0].seed != tables[1].seed);
    assert_true(memcmp(tables[0].slots, tables[1].slots, tables[0].n_slots * sizeof *tables[0].slots) != 0);
    vocab_clear(&tables[0]);
    vocab_clear(&tables[1]);
    mem_free(texts);

    merge_table merges[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        assert_ok(merge_table_reserve(&merges[k], 1000));
        for (uint32_t i = 0; i < 1000; i++) merge_table_put(&merges[k], (merge){i << 11, i << 10, i, i});
        for (uint32_t i = 0; i < 1000; i++) assert_int_equal(merge_table_find(&merges[k], i << 11, i << 10)->id, i);
    }
    assert_true(merges[0].keys[0] != merges[1].keys[0]);
    assert_true(memcmp(merges[0].slots, merges[1].slots, merges[0].n_slots * sizeof *merges[0].slots) != 0);
    merge_table_clear(&merges[0]);
    merge_table_clear(&merges[1]);
}

/* ---- output of normalizers and decoders ---- */

static void put_replace(bytes *out, const char *key, const char *pattern, size_t n_content) {
    bytes_printf(out, "{\"type\":\"Replace\",\"pattern\":{\"%s\":\"%s\"},\"content\":\"", key, pattern);
    repeat(out, "a", n_content);
    bytes_append_text(out, "\"}");
}

static mn_status encode_once(const tokenizer *t, const char *text, size_t n, size_t *n_ids) {
    token_list ids = {0};
    mn_status status = tokenizer_encode(t, text, n, 0, &ids);
    *n_ids = ids.n;
    token_list_clear(&ids);
    return status;
}

static void normalizers_are_bounded(void **state) {
    (void)state;
    const size_t most = NORM_GROWTH_BASE + NORM_GROWTH;
    size_t n_ids;
    for (int kind = 0; kind < 3; kind++) {
        for (size_t beyond = 0; beyond < 2; beyond++) {
            tokenizer *t;
            bytes value = {0};
            if (kind < 2) {
                put_replace(&value, kind ? "Regex" : "String", "b", 1 + most + beyond);
            } else {
                bytes_append_text(&value, "{\"type\":\"Prepend\",\"prepend\":\"");
                repeat(&value, "a", most + beyond);
                bytes_append_text(&value, "\"}");
            }
            assert_ok(open_with(&t, "normalizer", &value));
            mn_status status = encode_once(t, "b", 1, &n_ids);
            if (beyond) assert_fails(MN_E_FORMAT, "normalizers lengthen a text of 1 bytes by more than 16", status);
            if (!beyond) assert_ok(status);
            assert_int_equal(n_ids, beyond ? 0 : 1 + most);
            tokenizer_close(&t);
            bytes_clear(&value);
        }
    }
    /* Growth multiplies over steps; a step that shortens does not raise the limit; an empty match counts. */
    static const char *const chains[][3] = {
        {"String", "a", "String"}, {"Regex", "(?=a)", "Regex"}, {"Regex", "", "String"}};
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        tokenizer *t;
        bytes value = {0};
        bytes_append_text(&value, "{\"type\":\"Sequence\",\"normalizers\":[");
        for (int k = 0; k < 16; k++) {
            if (k) bytes_append_text(&value, ",");
            put_replace(&value, chains[i][0], chains[i][1], 60);
        }
        bytes_append_text(&value, "]}");
        assert_ok(open_with(&t, "normalizer", &value));
        double from = processor_seconds();
        assert_fails(MN_E_FORMAT, "normalizers lengthen", encode_once(t, "aaaa", 4, &n_ids));
        assert_within(from, 0.001, "a chain of normalizers");
        tokenizer_close(&t);
        bytes_clear(&value);
    }
}

/* The parts between added tokens share one limit. */
static void normalizers_are_bounded_over_a_text(void **state) {
    (void)state;
    tokenizer *t;
    size_t n_ids;
    bytes file = {0}, text = {0};
    bytes_append_text(&file,
                      MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"<x>\",\"normalized\":false}],\"normalizer\":");
    put_replace(&file, "String", "b", 60000);
    bytes_append_text(&file, "}");
    assert_ok(tokenizer_from_memory(&t, file.data, file.n, NULL, 0));
    repeat(&text, "b<x>", 2);
    assert_fails(MN_E_FORMAT, "normalizers lengthen a text of 8 bytes", encode_once(t, text.data, text.n, &n_ids));
    assert_ok(encode_once(t, text.data, 4, &n_ids));
    assert_int_equal(n_ids, 60001);
    tokenizer_close(&t);
    file.n = 0; /* added tokens do not raise the limit */
    bytes_append_text(&file,
                      MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"bbb\",\"normalized\":true}],\"normalizer\":");
    put_replace(&file, "String", "b", 60000);
    bytes_append_text(&file, "}");
    assert_fails(MN_E_FORMAT, "normalizers lengthen", tokenizer_from_memory(&t, file.data, file.n, NULL, 0));
    bytes_clear(&file);
    bytes_clear(&text);
}

static void decoders_are_bounded(void **state) {
    (void)state;
    for (int joined = 0; joined < 2; joined++) {
        tokenizer *t;
        tokenizer_stream *stream;
        bytes value = {0}, out = {0}, scratch = {0};
        bytes_printf(&value, "{\"type\":\"Sequence\",\"decoders\":[%s", joined ? "{\"type\":\"Fuse\"}," : "");
        for (int k = 0; k < 16; k++) {
            if (k) bytes_append_text(&value, ",");
            put_replace(&value, "String", "a", 60);
        }
        bytes_append_text(&value, "]}");
        assert_ok(open_with(&t, "decoder", &value));
        double from = processor_seconds();
        assert_fails(MN_E_FORMAT, "decoders lengthen", tokenizer_decode(t, (int32_t[]){0, 1}, 2, 0, &out));
        assert_true(out.n < DEC_GROWTH_BASE * 2);
        assert_ok(tokenizer_stream_open(&stream, t, 0));
        mn_status status = tokenizer_stream_push(stream, 0, &out);
        if (status == MN_OK) status = tokenizer_stream_finish(stream, &out);
        assert_fails(MN_E_FORMAT, "decoders lengthen", status);
        tokenizer_stream_close(&stream);
        assert_fails(MN_E_FORMAT, "decoders lengthen", tokenizer_token_bytes(t, 0, false, &scratch, &out));
        assert_within(from, 0.001, "a chain of decoders");
        tokenizer_close(&t);
        bytes_clear(&value);
        bytes_clear(&out);
        bytes_clear(&scratch);
    }
    tokenizer *t;
    bytes value = {0}, out = {0};
    put_replace(&value, "String", "a", DEC_REPLACE_BYTES + 1);
    assert_fails(MN_E_FORMAT, "replaces 1 bytes by 1025, allowed: up to 1024", open_with(&t, "decoder", &value));
    value.n = 0;
    put_replace(&value, "String", "a", DEC_REPLACE_BYTES); /* 64 tokens fit exactly: 65536 and 16 a token are allowed */
    assert_ok(open_with(&t, "decoder", &value));
    int32_t ids[80] = {0};
    assert_ok(tokenizer_decode(t, ids, 65, 0, &out));
    assert_int_equal(out.n, 65 * DEC_REPLACE_BYTES);
    assert_fails(MN_E_FORMAT, "decoders lengthen", tokenizer_decode(t, ids, 66, 0, &out));
    tokenizer_close(&t);
    value.n = 0;
    bytes_append_text(&value, "{\"type\":\"Strip\",\"content\":\"a\",\"start\":0,\"stop\":1025}");
    assert_fails(MN_E_FORMAT, "stop is 1025", open_with(&t, "decoder", &value));
    bytes_clear(&value);
    bytes_clear(&out);
}

/* ---- patterns ---- */

static void patterns_are_bounded(void **state) {
    (void)state;
    static const char *const patterns[] = {"a+b|a",
                                           "(?:a|aa)+$|a",
                                           "a++b|a",
                                           "a+b",
                                           "(?:a*+b|a)*+c|a",
                                           "(a+)+b|a",
                                           "a(?=a*+b)|a",
                                           "(a+)\\1b|a",
                                           "(?:a{0,1000}){0,100}b|a",
                                           "(?<=a{200})b|a",
                                           "\\X+b|a",
                                           "(a(?1)?b)|a",
                                           "a+?b|a",
                                           "(?:[^;]*+b|a)*+c|a",
                                           "(?:a*)*b|",
                                           "(?=a*+b)",
                                           "a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?b|a",
                                           "\\p{L}+\\d|\\p{L}"};
    size_t n = test_is_long() ? 400000 : 60000 / (size_t)test_stride(4);
    bytes texts[3] = {{0}, {0}, {0}};
    repeat(&texts[0], "a", 1024);
    repeat(&texts[1], "a", n);
    for (size_t i = 0; i < n / 121; i++) {
        repeat(&texts[2], "a", 120);
        bytes_append_text(&texts[2], ";");
    }
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        for (int k = 0; k < 3; k++) {
            tokenizer *t;
            size_t n_ids;
            bytes value = {0};
            bytes_append_text(&value, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":");
            json_put_string(&value, patterns[i], strlen(patterns[i]));
            bytes_append_text(&value, "}}");
            assert_ok(open_with(&t, "pre_tokenizer", &value));
            double from = processor_seconds();
            mn_status status = encode_once(t, texts[k].data, texts[k].n, &n_ids);
            assert_within(from, 0.005 + 0.006 * (double)texts[k].n / 1024,
                          patterns[i]); /* a tenth of the documented limit */
            if (status != MN_OK) assert_fails(MN_E_FORMAT, "too costly for this text", status);
            tokenizer_close(&t);
            bytes_clear(&value);
        }
    }
    for (int k = 0; k < 3; k++) bytes_clear(&texts[k]);
}

/* The parts of a text share one limit: each of these alone is below it. */
static void patterns_are_bounded_over_a_text(void **state) {
    (void)state;
    tokenizer *t;
    size_t n_ids;
    static const char file[] =
        MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"<x>\",\"normalized\":false}],"
              "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"a+b|a\"}}}";
    bytes text = {0};
    assert_ok(tokenizer_from_memory(&t, file, sizeof file - 1, NULL, 0));
    for (int i = 0; i < 400; i++) {
        repeat(&text, "a", 1400);
        bytes_append_text(&text, "<x>");
    }
    assert_ok(encode_once(t, text.data, 1403, &n_ids));
    assert_fails(MN_E_FORMAT, "too costly", encode_once(t, text.data, text.n, &n_ids));
    tokenizer_close(&t);
    bytes_clear(&text);
}

/* ---- 16 MB of one character or word ---- */

static tokenizer *open_tiktoken(void) {
    json_doc *doc = open_json(data_path("tokenizers/gpt2/vocab.json"));
    const json *root = json_root(doc);
    bytes file = {0}, raw = {0};
    tokenizer *t;
    for (size_t i = 0; i < root->n; i++) {
        const json_member *m = &root->members[i];
        raw.n = 0;
        bool letters = true;
        for (size_t at = 0, length; at < m->key_n; at += length) {
            length = utf8_length((unsigned char)m->key[at]);
            int byte = byte_of_letter(utf8_decode(m->key + at, length));
            letters = letters && byte >= 0;
            bytes_append(&raw, &(char){(char)byte}, 1);
        }
        if (!letters || m->value.integer == 50256) continue; /* the end of texts */
        put_base64(&file, (const unsigned char *)raw.data, raw.n);
        bytes_printf(&file, " %d\n", (int)m->value.integer);
    }
    json_close(&doc);
    assert_ok(open_bytes(&t, &file));
    bytes_clear(&file);
    bytes_clear(&raw);
    return t;
}

/* The same vocabulary as GGUF metadata: type llama with scores that fall with the ids, type gpt2 with merges. */
static tokenizer *open_gguf(const char *name, const char *kind) {
    tokenizer *source, *t;
    gguf_writer w = {0};
    bytes file = {0}, merges = {0};
    assert_ok(tokenizer_open(&source, data_path(name)));
    size_t n = tokenizer_size(source), n_lines = 0;
    const char **pieces = mem_alloc(n, sizeof *pieces), **lines = NULL;
    float *scores = mem_alloc(n, sizeof *scores);
    int32_t *types = mem_alloc(n, sizeof *types);
    assert_true(pieces && scores && types);
    for (size_t i = 0; i < n; i++) {
        size_t length;
        pieces[i] = tokenizer_piece(source, (int32_t)i, &length);
        scores[i] = -(float)i;
        types[i] = vocab_byte_of(pieces[i], length) >= 0 ? 6 : tokenizer_is_special(source, (int32_t)i) ? i ? 3 : 2 : 1;
    }
    gguf_writer_text(&w, "general.architecture", "llama");
    gguf_writer_text(&w, "tokenizer.ggml.model", kind);
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", pieces, n);
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, sizeof *types, types, n);
    if (strcmp(kind, "llama") == 0) {
        gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, sizeof *scores, scores, n);
    } else {
        assert_ok(file_read(&merges, data_path("tokenizers/gpt2/merges.txt"), 1 << 20));
        lines = mem_alloc(n, sizeof *lines);
        assert_non_null(lines);
        for (char *line = strchr(bytes_text(&merges), '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
            *line = 0;
            lines[n_lines++] = line + 1;
        }
        if (merges.data[merges.n - 1] == '\n') merges.data[merges.n - 1] = 0;
        gguf_writer_text(&w, "tokenizer.ggml.pre", "gpt-2");
        gguf_writer_texts(&w, "tokenizer.ggml.merges", lines, n_lines);
    }
    gguf_writer_finish(&w, &file);
    assert_ok(open_bytes(&t, &file));
    gguf_writer_clear(&w);
    tokenizer_close(&source);
    bytes_clear(&file);
    bytes_clear(&merges);
    mem_free(pieces);
    mem_free(lines);
    mem_free(scores);
    mem_free(types);
    return t;
}

static void check_text(const tokenizer *t, const char *name, const char *unit, size_t size) {
    bytes text = {0}, back = {0};
    token_list ids = {0};
    while (text.n + strlen(unit) <= size) bytes_append_text(&text, unit);
    double from = processor_seconds(), needed = 0.01 + 0.75 * (double)size / (16 << 20);
    assert_ok(tokenizer_encode(t, text.data, text.n, 0, &ids));
    assert_within(from, needed, name);
    from = processor_seconds();
    assert_ok(tokenizer_decode(t, ids.ids, ids.n, 0, &back));
    assert_within(from, needed, name);
    assert_true(back.n == text.n || back.n + 1 == text.n); /* the first space may be stripped */
    assert_memory_equal(back.data, text.data + (text.n - back.n), back.n);
    token_list_clear(&ids);
    bytes_clear(&text);
    bytes_clear(&back);
}

static tokenizer *open_kind(size_t kind, const char **name) {
    static const char *const files[] = {"tokenizers/smollm2", "tokenizers/gpt2", "tokenizers/mistral",
                                        "tokenizers/mistral-v3/tokenizer.model"};
    static const char *const made[] = {"GGUF llama", "GGUF gpt2", "tiktoken"};
    enum { N_FILES = 4 };
    tokenizer *t;
    *name = kind < N_FILES ? files[kind] : made[kind - N_FILES];
    if (kind == N_FILES) return open_gguf("tokenizers/mistral", "llama");
    if (kind == N_FILES + 1) return open_gguf("tokenizers/gpt2", "gpt2");
    if (kind == N_FILES + 2) return open_tiktoken();
    assert_ok(tokenizer_open(&t, data_path(files[kind])));
    return t;
}

static void repetitive_texts_encode_in_linear_time(void **state) {
    (void)state;
    static const char *const units[] = {
        " ", "a", "A", "-", "ab", "\n", "\xF0\x9F\x8F\xBD", "\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD", "\xE4\xB8\xAD"};
    enum { N_KINDS = 7 };
    size_t size = test_is_long() ? 16 << 20 : (1 << 18) / (size_t)test_stride(4);
    for (size_t i = 0; i < N_KINDS; i++) {
        const char *name;
        tokenizer *t = open_kind(i, &name);
        for (size_t k = 0; k < sizeof units / sizeof *units; k++) check_text(t, name, units[k], size);
        tokenizer_close(&t);
    }
}

/* An added token that strips the white space after it occurs at each position of a run of spaces. */
static void stripped_white_space_is_scanned_once(void **state) {
    (void)state;
    static const char file[] =
        MODEL ",\"added_tokens\":[{\"id\":2,\"content\":\" \",\"rstrip\":true,\"normalized\":false}]}";
    tokenizer *t;
    bytes text = {0};
    size_t n_ids;
    assert_ok(tokenizer_from_memory(&t, file, sizeof file - 1, NULL, 0));
    repeat(&text, " ", 200000);
    double from = processor_seconds();
    assert_ok(encode_once(t, text.data, text.n, &n_ids));
    assert_within(from, 0.002, "a run of spaces");
    assert_int_equal(n_ids, text.n);
    tokenizer_close(&t);
    bytes_clear(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_pieces_are_refused),
        cmocka_unit_test(longest_pieces_load_in_time),
        cmocka_unit_test(too_many_templates_and_parts_are_refused),
        cmocka_unit_test(hash_tables_are_seeded),
        cmocka_unit_test(normalizers_are_bounded),
        cmocka_unit_test(normalizers_are_bounded_over_a_text),
        cmocka_unit_test(decoders_are_bounded),
        cmocka_unit_test(patterns_are_bounded),
        cmocka_unit_test(patterns_are_bounded_over_a_text),
        cmocka_unit_test(repetitive_texts_encode_in_linear_time),
        cmocka_unit_test(stripped_white_space_is_scanned_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
