/* tokenizer.json: the model, and the components (normalizer, pre-tokenizer, post-processor, decoder) by tables of
 * names.
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/build.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct reader {
    tokenizer *t;
    const char *what;
    bool lone_digits; /* the last pre-tokenizer step takes every number alone */
    bool letters;     /* a byte-level step was read: nothing may follow */
} reader;

typedef mn_status (*component_reader)(reader *r, const json *node);

typedef struct component {
    const char *type;
    component_reader read;
} component;

/* Reads one component by its "type"; the message for an unknown one lists the known. */
static mn_status read_component(reader *r, const json *node, const component *table, const char *role) {
    if (!node || node->kind == JSON_NULL) return MN_OK;
    const json *type = json_get(node, "type");
    if (!type || type->kind != JSON_STRING) MN_FAIL(MN_E_FORMAT, "%s: a %s without a type", r->what, role);
    for (const component *c = table; c->type; c++) {
        if (json_is_string(type, c->type)) return c->read(r, node);
    }
    bytes known = {0};
    for (const component *c = table; c->type; c++) bytes_printf(&known, "%s%s", known.n ? ", " : "", c->type);
    status_fail(MN_E_UNSUPPORTED, "%s: the %s type '%.80s' is not read here, allowed: %s", r->what, role, type->string,
                bytes_text(&known));
    bytes_clear(&known);
    return MN_E_UNSUPPORTED;
}

/* Every member of the list `key` of a Sequence. */
static mn_status read_list(reader *r, const json *node, const char *key, const component *table, const char *role) {
    const json *list = json_get(node, key);
    if (!list || list->kind != JSON_ARRAY)
        MN_FAIL(MN_E_FORMAT, "%s: a %s Sequence without its list '%s'", r->what, role, key);
    for (size_t i = 0; i < list->n; i++) MN_TRY(read_component(r, &list->items[i], table, role));
    return MN_OK;
}

/* A string member with its length (it may hold zero bytes); an empty one when absent. */
static mn_status read_text(const reader *r, const json *node, const char *key, const char **text, size_t *n) {
    const char *unused = "";
    MN_TRY(json_string(r->what, node, key, &unused));
    const json *value = json_get(node, key);
    bool present = value && value->kind == JSON_STRING;
    *text = present ? value->string : "";
    *n = present ? value->n : 0;
    return MN_OK;
}

/* "pattern": {"String": ...} or {"Regex": ...}. */
static mn_status read_pattern(const reader *r, const json *node, const json **text, bool *is_regex) {
    const json *pattern = json_get(node, "pattern");
    *text = json_get(pattern, "String");
    *is_regex = !*text;
    if (!*text) *text = json_get(pattern, "Regex");
    if (*text && (*text)->kind == JSON_STRING) return MN_OK;
    MN_FAIL(MN_E_FORMAT, "%s: a pattern must be {\"String\": text} or {\"Regex\": text}", r->what);
}

/* ---- normalizers ---- */

static mn_status norm_sequence(reader *r, const json *node);

static mn_status norm_form(reader *r, const json *node) {
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    norm_step step = {.kind = NORM_FORM};
    for (int i = 0; i < 4; i++) {
        if (json_is_string(json_get(node, "type"), names[i])) step.form = (unicode_form)i;
    }
    return normalizer_add(&r->t->normalizer, &step, r->what);
}

static mn_status norm_lowercase(reader *r, const json *node) {
    (void)node;
    return normalizer_add(&r->t->normalizer, &(norm_step){.kind = NORM_LOWERCASE}, r->what);
}

static mn_status norm_strip(reader *r, const json *node) {
    norm_step step = {.kind = NORM_STRIP, .left = true, .right = true};
    MN_TRY(json_bool(r->what, node, "strip_left", &step.left));
    MN_TRY(json_bool(r->what, node, "strip_right", &step.right));
    return normalizer_add(&r->t->normalizer, &step, r->what);
}

static mn_status norm_strip_accents(reader *r, const json *node) {
    (void)node;
    return normalizer_add(&r->t->normalizer, &(norm_step){.kind = NORM_STRIP_ACCENTS}, r->what);
}

static mn_status norm_prepend(reader *r, const json *node) {
    norm_step step = {.kind = NORM_PREPEND};
    const char *text;
    size_t n;
    MN_TRY(read_text(r, node, "prepend", &text, &n));
    bytes_append(&step.content, text, n);
    return normalizer_add(&r->t->normalizer, &step, r->what);
}

static mn_status norm_replace(reader *r, const json *node) {
    norm_step step = {.kind = NORM_REPLACE};
    const json *pattern;
    bool is_regex;
    const char *text;
    size_t n;
    MN_TRY(read_pattern(r, node, &pattern, &is_regex));
    MN_TRY(read_text(r, node, "content", &text, &n));
    if (is_regex) MN_TRY(regex_open(&step.pattern, pattern->string, pattern->n, r->what));
    if (!is_regex) bytes_append(&step.from, pattern->string, pattern->n);
    bytes_append(&step.content, text, n);
    return normalizer_add(&r->t->normalizer, &step, r->what);
}

static const component normalizers[] = {{"Sequence", norm_sequence},
                                        {"NFC", norm_form},
                                        {"NFD", norm_form},
                                        {"NFKC", norm_form},
                                        {"NFKD", norm_form},
                                        {"Lowercase", norm_lowercase},
                                        {"Strip", norm_strip},
                                        {"StripAccents", norm_strip_accents},
                                        {"Prepend", norm_prepend},
                                        {"Replace", norm_replace},
                                        {0}};

static mn_status norm_sequence(reader *r, const json *node) {
    return read_list(r, node, "normalizers", normalizers, "normalizer");
}

/* ---- pre-tokenizers ---- */

static mn_status pre_sequence(reader *r, const json *node);

static mn_status add_pre(reader *r, pre_step step) {
    if (r->letters) {
        regex_close(&step.pattern);
        MN_FAIL(MN_E_UNSUPPORTED, "%s: a pre-tokenizer after ByteLevel is not read here", r->what);
    }
    r->lone_digits = false;
    return pretokenizer_add(&r->t->pre, &step, r->what);
}

static mn_status add_pre_regex(reader *r, const char *pattern, split_behavior behavior, bool invert) {
    pre_step step = {.kind = PRE_REGEX, .behavior = behavior, .invert = invert};
    MN_TRY(regex_open(&step.pattern, pattern, strlen(pattern), r->what));
    return add_pre(r, step);
}

static mn_status pre_byte_level(reader *r, const json *node) {
    bool prefix_space = true, use_regex = true;
    MN_TRY(json_bool(r->what, node, "add_prefix_space", &prefix_space));
    MN_TRY(json_bool(r->what, node, "use_regex", &use_regex));
    if (prefix_space) MN_TRY(add_pre(r, (pre_step){.kind = PRE_SPACE}));
    if (use_regex && r->lone_digits) {
        pretokenizer *p = &r->t->pre;
        regex_close(&p->steps[--p->n].pattern);
        MN_TRY(add_pre(r, (pre_step){.kind = PRE_SCAN, .scanner = SCAN_DIGITS_GPT2}));
    } else if (use_regex) {
        MN_TRY(add_pre(r, (pre_step){.kind = PRE_SCAN, .scanner = SCAN_GPT2}));
    }
    r->letters = true;
    r->t->byte_level = true;
    return MN_OK;
}

static mn_status pre_digits(reader *r, const json *node) {
    bool individual = false;
    MN_TRY(json_bool(r->what, node, "individual_digits", &individual));
    MN_TRY(add_pre_regex(r, individual ? "\\p{N}" : "\\p{N}+", SPLIT_ISOLATED, false));
    r->lone_digits = individual;
    return MN_OK;
}

static mn_status read_behavior(const reader *r, const json *node, split_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json *value = json_get(node, "behavior");
    if (!value) return MN_OK;
    for (int i = 0; i < 5; i++) {
        if (json_is_string(value, names[i])) {
            *out = (split_behavior)i;
            return MN_OK;
        }
    }
    MN_FAIL(MN_E_FORMAT,
            "%s: behavior is '%.40s', allowed: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
            r->what, value->kind == JSON_STRING ? value->string : "no string");
}

/* The scanner of a pattern that has one. Such patterns match every character, so removing what does not match is the
 * same as isolating the matches. */
static bool find_scanner(const json *pattern, split_behavior behavior, bool invert, pre_scanner *out) {
    static const struct {
        const char *pattern;
        pre_scanner scanner;
    } table[] = {{PATTERN_GPT2, SCAN_GPT2}, {PATTERN_LLAMA3, SCAN_LLAMA3}, {PATTERN_QWEN2, SCAN_QWEN2}};
    if (!(behavior == SPLIT_ISOLATED || (behavior == SPLIT_REMOVED && invert))) return false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (json_is_string(pattern, table[i].pattern)) {
            *out = table[i].scanner;
            return true;
        }
    }
    return false;
}

static mn_status pre_split(reader *r, const json *node) {
    pre_step step = {.kind = PRE_REGEX, .behavior = SPLIT_ISOLATED};
    const json *pattern;
    bool is_regex;
    MN_TRY(read_pattern(r, node, &pattern, &is_regex));
    MN_TRY(read_behavior(r, node, &step.behavior));
    MN_TRY(json_bool(r->what, node, "invert", &step.invert));
    if (is_regex && find_scanner(pattern, step.behavior, step.invert, &step.scanner)) {
        return add_pre(r, (pre_step){.kind = PRE_SCAN, .scanner = step.scanner});
    }
    MN_TRY((is_regex ? regex_open : regex_open_literal)(&step.pattern, pattern->string, pattern->n, r->what));
    return add_pre(r, step);
}

/* "prepend_scheme", or the older "add_prefix_space". */
static mn_status read_scheme(const reader *r, const json *node, pre_prefix *out) {
    const char *scheme = NULL;
    bool prefix_space = true;
    MN_TRY(json_bool(r->what, node, "add_prefix_space", &prefix_space));
    MN_TRY(json_string(r->what, node, "prepend_scheme", &scheme));
    if (!scheme) scheme = prefix_space ? "always" : "never";
    static const char *const names[] = {"never", "first", "always"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(scheme, names[i]) == 0) {
            *out = (pre_prefix)i;
            return MN_OK;
        }
    }
    MN_FAIL(MN_E_FORMAT, "%s: prepend_scheme is '%.40s', allowed: never, first, always", r->what, scheme);
}

static mn_status read_mark(const reader *r, const json *node, const char **mark, size_t *n) {
    *mark = "\xE2\x96\x81";
    *n = 3;
    if (!json_get(node, "replacement")) return MN_OK;
    MN_TRY(read_text(r, node, "replacement", mark, n));
    if (*n == 0 || utf8_sequence(*mark, *n) != *n)
        MN_FAIL(MN_E_FORMAT, "%s: replacement is '%.40s', allowed: one character", r->what, *mark);
    return MN_OK;
}

static mn_status pre_metaspace(reader *r, const json *node) {
    pre_step step = {.kind = PRE_METASPACE, .split = true};
    const char *mark;
    MN_TRY(read_scheme(r, node, &step.prefix));
    MN_TRY(read_mark(r, node, &mark, &step.n_mark));
    MN_TRY(json_bool(r->what, node, "split", &step.split));
    memcpy(step.mark, mark, step.n_mark);
    return add_pre(r, step);
}

static mn_status pre_whitespace(reader *r, const json *node) {
    (void)node;
    return add_pre_regex(r, PATTERN_WHITESPACE, SPLIT_REMOVED, true);
}

static mn_status pre_whitespace_split(reader *r, const json *node) {
    (void)node;
    return add_pre_regex(r, "\\s", SPLIT_REMOVED, false);
}

static const char punctuation[] = "[\\p{P}!-\\/:-@\\[-`{-~]";

static mn_status pre_punctuation(reader *r, const json *node) {
    split_behavior behavior = SPLIT_ISOLATED;
    MN_TRY(read_behavior(r, node, &behavior));
    return add_pre_regex(r, punctuation, behavior, false);
}

static const component pretokenizers[] = {{"Sequence", pre_sequence},
                                          {"ByteLevel", pre_byte_level},
                                          {"Split", pre_split},
                                          {"Digits", pre_digits},
                                          {"Metaspace", pre_metaspace},
                                          {"Whitespace", pre_whitespace},
                                          {"WhitespaceSplit", pre_whitespace_split},
                                          {"Punctuation", pre_punctuation},
                                          {0}};

static mn_status pre_sequence(reader *r, const json *node) {
    return read_list(r, node, "pretokenizers", pretokenizers, "pre-tokenizer");
}

/* ---- post-processors: what is put around a text ---- */

static mn_status post_sequence(reader *r, const json *node);

static mn_status post_nothing(reader *r, const json *node) {
    (void)r, (void)node; /* ByteLevel trims offsets only */
    return MN_OK;
}

static mn_status put_around(reader *r, id_row *row, int64_t id) {
    if (!vocab_has(&r->t->pieces, id))
        MN_FAIL(MN_E_FORMAT, "%s: the post-processor adds the id %" PRId64 ", which no token has", r->what, id);
    return id_row_put(row, (int32_t)id, r->what);
}

/* The ids of one special token of a template. */
static mn_status put_template_token(reader *r, const json *node, const json *name, id_row *row) {
    const json *ids = NULL;
    if (name && name->kind == JSON_STRING)
        ids = json_get(json_get(json_get(node, "special_tokens"), name->string), "ids");
    if (!ids || ids->kind != JSON_ARRAY) {
        MN_FAIL(MN_E_FORMAT, "%s: the template names the special token '%.60s', but its ids are missing", r->what,
                name && name->kind == JSON_STRING ? name->string : "?");
    }
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->items[i].kind != JSON_INT)
            MN_FAIL(MN_E_FORMAT, "%s: a special token of the template has an id that is no whole number", r->what);
        MN_TRY(put_around(r, row, ids->items[i].integer));
    }
    return MN_OK;
}

/* Puts `outer` before what is there already in `row` and `outer_after` behind it. */
static mn_status wrap(reader *r, const id_row *outer, const id_row *outer_after) {
    id_row before = *outer;
    tokenizer *t = r->t;
    for (size_t i = 0; i < t->before.n; i++) MN_TRY(id_row_put(&before, t->before.ids[i], r->what));
    for (size_t i = 0; i < outer_after->n; i++) MN_TRY(id_row_put(&t->after, outer_after->ids[i], r->what));
    t->before = before;
    return MN_OK;
}

static mn_status post_template(reader *r, const json *node) {
    const json *single = json_get(node, "single");
    if (!single || single->kind != JSON_ARRAY)
        MN_FAIL(MN_E_FORMAT, "%s: a TemplateProcessing without its list 'single'", r->what);
    if (single->n > 2 * TEMPLATE_IDS + 1) {
        MN_FAIL(MN_E_FORMAT, "%s: a template of %zu parts, at most %d are allowed", r->what, single->n,
                2 * TEMPLATE_IDS + 1);
    }
    id_row before = {0}, after = {0};
    int n_texts = 0;
    for (size_t i = 0; i < single->n; i++) {
        const json *special = json_get(&single->items[i], "SpecialToken");
        if (special) {
            MN_TRY(put_template_token(r, node, json_get(special, "id"), n_texts ? &after : &before));
        } else if (json_get(&single->items[i], "Sequence")) {
            n_texts++;
        } else {
            MN_FAIL(MN_E_FORMAT, "%s: a template holds something that is neither SpecialToken nor Sequence", r->what);
        }
    }
    if (n_texts != 1)
        MN_FAIL(MN_E_UNSUPPORTED, "%s: a template with the text %d times, allowed: once", r->what, n_texts);
    return wrap(r, &before, &after);
}

/* RobertaProcessing and BertProcessing: "cls": [text, id], "sep": [text, id]. */
static mn_status post_cls_sep(reader *r, const json *node) {
    static const char *const keys[] = {"cls", "sep"};
    id_row rows[2] = {{.n = 0}, {.n = 0}};
    for (int i = 0; i < 2; i++) {
        const json *pair = json_get(node, keys[i]);
        if (!pair || pair->kind != JSON_ARRAY || pair->n != 2 || pair->items[1].kind != JSON_INT) {
            MN_FAIL(MN_E_FORMAT, "%s: the post-processor's '%s' must be [text, id]", r->what, keys[i]);
        }
        MN_TRY(put_around(r, &rows[i], pair->items[1].integer));
    }
    return wrap(r, &rows[0], &rows[1]);
}

static const component postprocessors[] = {{"Sequence", post_sequence},      {"TemplateProcessing", post_template},
                                           {"ByteLevel", post_nothing},      {"RobertaProcessing", post_cls_sep},
                                           {"BertProcessing", post_cls_sep}, {0}};

static mn_status post_sequence(reader *r, const json *node) {
    return read_list(r, node, "processors", postprocessors, "post-processor");
}

/* ---- decoders ---- */

static mn_status dec_sequence(reader *r, const json *node);

static mn_status needs_tokens(const reader *r, const char *type) {
    if (!r->t->decoder.joined) return MN_OK;
    MN_FAIL(MN_E_UNSUPPORTED, "%s: a %s decoder after tokens have been joined is not read here", r->what, type);
}

static mn_status dec_byte_level(reader *r, const json *node) {
    (void)node;
    MN_TRY(needs_tokens(r, "ByteLevel"));
    return detokenizer_add(&r->t->decoder, &(dec_stage){.kind = DEC_BYTE_LEVEL}, r->what);
}

static mn_status dec_byte_fallback(reader *r, const json *node) {
    (void)node;
    MN_TRY(needs_tokens(r, "ByteFallback"));
    return detokenizer_add(&r->t->decoder, &(dec_stage){.kind = DEC_BYTE_FALLBACK}, r->what);
}

static mn_status dec_fuse(reader *r, const json *node) {
    (void)node;
    r->t->decoder.joined = true;
    return MN_OK;
}

static mn_status dec_replace(reader *r, const json *node) {
    dec_stage stage = {.kind = DEC_REPLACE};
    const json *pattern;
    bool is_regex;
    const char *text;
    size_t n;
    MN_TRY(read_pattern(r, node, &pattern, &is_regex));
    if (is_regex)
        MN_FAIL(MN_E_UNSUPPORTED, "%s: a Replace decoder with a regular expression is not read here", r->what);
    MN_TRY(read_text(r, node, "content", &text, &n));
    bytes_append(&stage.from, pattern->string, pattern->n);
    bytes_append(&stage.content, text, n);
    return detokenizer_add(&r->t->decoder, &stage, r->what);
}

static mn_status dec_strip(reader *r, const json *node) {
    dec_stage stage = {.kind = DEC_STRIP};
    int64_t start = 0, stop = 0;
    const char *text;
    size_t n;
    MN_TRY(json_int(r->what, node, "start", 0, DEC_STRIP_MOST, &start));
    MN_TRY(json_int(r->what, node, "stop", 0, DEC_STRIP_MOST, &stop));
    MN_TRY(read_text(r, node, "content", &text, &n));
    if (n == 0 || utf8_sequence(text, n) != n)
        MN_FAIL(MN_E_FORMAT, "%s: the content of a Strip decoder must be one character", r->what);
    bytes_append(&stage.content, text, n);
    stage.start = (uint32_t)start;
    stage.stop = (uint32_t)stop;
    return detokenizer_add(&r->t->decoder, &stage, r->what);
}

static mn_status dec_metaspace(reader *r, const json *node) {
    dec_stage stage = {.kind = DEC_METASPACE};
    pre_prefix prefix;
    const char *mark;
    size_t n;
    MN_TRY(needs_tokens(r, "Metaspace"));
    MN_TRY(read_scheme(r, node, &prefix));
    MN_TRY(read_mark(r, node, &mark, &n));
    bytes_append(&stage.from, mark, n);
    stage.start = prefix != PREFIX_NEVER;
    return detokenizer_add(&r->t->decoder, &stage, r->what);
}

static const component decoders[] = {
    {"Sequence", dec_sequence}, {"ByteLevel", dec_byte_level}, {"ByteFallback", dec_byte_fallback}, {"Fuse", dec_fuse},
    {"Replace", dec_replace},   {"Strip", dec_strip},          {"Metaspace", dec_metaspace},        {0}};

static mn_status dec_sequence(reader *r, const json *node) {
    return read_list(r, node, "decoders", decoders, "decoder");
}

/* ---- the model ---- */

static mn_status read_vocabulary(reader *r, const json *vocabulary) {
    if (!vocabulary || vocabulary->kind != JSON_OBJECT)
        MN_FAIL(MN_E_FORMAT, "%s: the model has no object 'vocab'", r->what);
    for (size_t i = 0; i < vocabulary->n; i++) {
        const json_member *m = &vocabulary->members[i];
        if (m->value.kind != JSON_INT) {
            MN_FAIL(MN_E_FORMAT, "%s: the id of token '%.60s' is no whole number", r->what, m->key);
        }
        MN_TRY(vocab_put(&r->t->pieces, m->value.integer, m->key, m->key_n, 0, r->what));
    }
    return MN_OK;
}

/* "left right", or ["left", "right"]. */
static mn_status read_merge(reader *r, const json *entry, uint32_t rank) {
    if (entry->kind == JSON_ARRAY && entry->n == 2 && entry->items[0].kind == JSON_STRING &&
        entry->items[1].kind == JSON_STRING) {
        const json *left = &entry->items[0], *right = &entry->items[1];
        return tokenizer_put_merge(r->t, left->string, left->n, right->string, right->n, rank, r->what);
    }
    if (entry->kind == JSON_STRING) {
        const char *space = memchr(entry->string, ' ', entry->n);
        size_t n_left = space ? (size_t)(space - entry->string) : 0;
        if (space && !memchr(space + 1, ' ', entry->n - n_left - 1)) {
            return tokenizer_put_merge(r->t, entry->string, n_left, space + 1, entry->n - n_left - 1, rank, r->what);
        }
    }
    MN_FAIL(MN_E_FORMAT, "%s: merge %" PRIu32 " must be two tokens with one space between, or a list of two", r->what,
            rank);
}

static mn_status read_merges(reader *r, const json *merges) {
    bool empty_object = merges && merges->kind == JSON_OBJECT && merges->n == 0;
    if (!merges || !(merges->kind == JSON_ARRAY || empty_object))
        MN_FAIL(MN_E_FORMAT, "%s: the model has no list 'merges'", r->what);
    if (empty_object) return MN_OK;
    if (merges->n >= UINT32_MAX / 2) MN_FAIL(MN_E_FORMAT, "%s: %zu merges are too many", r->what, merges->n);
    MN_TRY(merge_table_reserve(&r->t->merges, merges->n));
    for (size_t i = 0; i < merges->n; i++) MN_TRY(read_merge(r, &merges->items[i], (uint32_t)i));
    return MN_OK;
}

/* Parts of the format that no known BPE tokenizer of a generative model uses. */
static mn_status refuse_unused(const reader *r, const json *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const char *text = "";
        MN_TRY(json_string(r->what, model, affixes[i], &text));
        if (*text) MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is '%.40s', allowed: none", r->what, affixes[i], text);
    }
    double dropout = 0;
    MN_TRY(json_real(r->what, model, "dropout", 0, 1, &dropout));
    if (dropout > 0)
        MN_FAIL(MN_E_UNSUPPORTED, "%s: the model drops merges at random (dropout %g), allowed: 0", r->what, dropout);
    return MN_OK;
}

static mn_status read_model(reader *r, const json *model) {
    if (!model || model->kind != JSON_OBJECT) MN_FAIL(MN_E_FORMAT, "%s: 'model' is missing", r->what);
    const json *type = json_get(model, "type");
    if (type ? !json_is_string(type, "BPE") : !json_get(model, "merges")) {
        MN_FAIL(MN_E_UNSUPPORTED, "%s: the model type '%.60s' is not read here, allowed: BPE", r->what,
                type && type->kind == JSON_STRING ? type->string : "(none)");
    }
    tokenizer *t = r->t;
    MN_TRY(refuse_unused(r, model));
    MN_TRY(json_bool(r->what, model, "byte_fallback", &t->byte_fallback));
    MN_TRY(json_bool(r->what, model, "fuse_unk", &t->fuse_unknown));
    MN_TRY(json_bool(r->what, model, "ignore_merges", &t->whole_words));
    MN_TRY(read_vocabulary(r, json_get(model, "vocab")));
    MN_TRY(read_merges(r, json_get(model, "merges")));
    const char *unknown;
    size_t n;
    MN_TRY(read_text(r, model, "unk_token", &unknown, &n));
    if (n == 0) return MN_OK;
    t->unknown = vocab_find(&t->pieces, unknown, n);
    if (t->unknown == VOCAB_NONE)
        MN_FAIL(MN_E_FORMAT, "%s: unk_token is '%.60s', which is no token of the vocabulary", r->what, unknown);
    return MN_OK;
}

static mn_status read_added_tokens(reader *r, const json *list) {
    if (!list || list->kind == JSON_NULL) return MN_OK;
    if (list->kind != JSON_ARRAY) MN_FAIL(MN_E_FORMAT, "%s: 'added_tokens' is no list", r->what);
    for (size_t i = 0; i < list->n; i++) {
        const json *entry = &list->items[i];
        const char *text;
        size_t n;
        int64_t id = -1;
        unsigned set = 0;
        MN_TRY(json_require(r->what, entry, "content"));
        MN_TRY(json_require(r->what, entry, "id"));
        MN_TRY(read_text(r, entry, "content", &text, &n));
        MN_TRY(json_int(r->what, entry, "id", 0, VOCAB_MAX_ID, &id));
        MN_TRY(tokenizer_read_flags(entry, r->what, &set));
        MN_TRY(tokenizer_put_added(r->t, id, text, n, set, r->what));
    }
    return MN_OK;
}

mn_status tokenizer_read_json(tokenizer *t, const json *root, const char *what) {
    reader r = {.t = t, .what = what};
    if (root->kind != JSON_OBJECT) MN_FAIL(MN_E_FORMAT, "%s: not an object", what);
    MN_TRY(read_model(&r, json_get(root, "model")));
    MN_TRY(read_added_tokens(&r, json_get(root, "added_tokens")));
    MN_TRY(read_component(&r, json_get(root, "normalizer"), normalizers, "normalizer"));
    MN_TRY(read_component(&r, json_get(root, "pre_tokenizer"), pretokenizers, "pre-tokenizer"));
    MN_TRY(read_component(&r, json_get(root, "post_processor"), postprocessors, "post-processor"));
    const json *decoder = json_get(root, "decoder");
    if (decoder && decoder->kind != JSON_NULL) return read_component(&r, decoder, decoders, "decoder");
    return detokenizer_add(&t->decoder, &(dec_stage){.kind = DEC_JOIN}, what);
}
