/* The table of fields, and what each does.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "request/fields.h"

enum { MOST_ANSWERS = 8 };

/* ---- what fields do ---- */

/* Whether a field selects another cache than the usual one. */
static bool asks_for_cache(const char *name, const json *value) {
    if (value->kind == JSON_NULL) return false;
    if (strcmp(name, "use_cache") == 0) return value->kind == JSON_BOOL && !value->boolean;
    return strcmp(name, "cache_implementation") == 0 || strcmp(name, "cache_config") == 0;
}

mn_status field_set_config(request_settings *r, const field *f, const char *name, const json *value, refusal *why) {
    bytes text = {0};
    if (r->members) {
        json_put_key(r->members, name);
        json_put_as(r->members, value, JSON_PYTHON);
        return bytes_status(r->members);
    }
    r->has_cache = r->has_cache || asks_for_cache(name, value);
    *why = (refusal){0, "invalid_value", f->name};
    if (value->kind == JSON_REAL && !isfinite(value->real)) /* it would be written as null */
        MN_FAIL(MN_E_ARG, "'%s': %s is larger than any double, allowed: up to 1.8e308", f->name, name);
    json_put(&text, value);
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = mn_generation_config_set(r->config, name, bytes_text(&text));
    bytes_clear(&text);
    if (status == MN_OK) *why = (refusal){0};
    return strcmp(f->name, name) == 0 ? status : status_context(status, "'%s'", f->name);
}

static mn_status set_config(request_settings *r, const field *f, const json *value, refusal *why) {
    return field_set_config(r, f, f->config, value, why);
}

static mn_status refuse(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)r;
    if ((value->kind == JSON_BOOL && !value->boolean) ||
        ((value->kind == JSON_ARRAY || value->kind == JSON_OBJECT || value->kind == JSON_STRING) && value->n == 0))
        return MN_OK;
    *why = (refusal){400, "not_supported", f->name};
    MN_FAIL(MN_E_ARG, "'%s' is not supported: %s", f->name, f->help);
}

static mn_status read_temperature(request_settings *r, const field *f, const json *value, refusal *why) {
    bool samples = (value->kind == JSON_INT ? (double)value->integer : value->real) >= 1e-6;
    const json flag = {.kind = JSON_BOOL, .boolean = samples};
    MN_TRY(field_set_config(r, f, "do_sample", &flag, why));
    return samples ? field_set_config(r, f, "temperature", value, why) : MN_OK;
}

static mn_status read_stop(request_settings *r, const field *f, const json *value, refusal *why) {
    const json *items = value->kind == JSON_ARRAY ? value->items : value;
    const json list = {.kind = JSON_ARRAY, .n = value->kind == JSON_ARRAY ? value->n : 1, .items = items};
    if (list.n > 16) return field_wrong(f, value, NULL, why);
    for (size_t i = 0; i < list.n; i++) {
        if (items[i].kind != JSON_STRING || items[i].n < 1 || items[i].n > 256) return field_wrong(f, value, NULL, why);
    }
    return list.n ? field_set_config(r, f, "stop_strings", &list, why) : MN_OK;
}

/* They end the text beside those of the model, which are null, an id or a list. */
static mn_status read_stop_ids(request_settings *r, const field *f, const json *value, refusal *why) {
    bytes ids = {0};
    json_doc *doc = NULL;
    char *text = mn_generation_config_get(r->config, f->config);
    if (!text) return MN_E_NOMEM;
    mn_status status = json_parse(&doc, text, strlen(text), JSON_STRICT, f->config);
    mn_free(text);
    MN_TRY(status);
    const json *own = json_root(doc);
    bytes_append_text(&ids, "[");
    for (size_t i = 0; own->kind == JSON_ARRAY && i < own->n; i++)
        bytes_printf(&ids, "%lld,", (long long)own->items[i].integer);
    if (own->kind == JSON_INT) bytes_printf(&ids, "%lld,", (long long)own->integer);
    json_close(&doc);
    for (size_t i = 0; i < value->n; i++) {
        json_put(&ids, &value->items[i]);
        bytes_append_text(&ids, i + 1 < value->n ? "," : "]");
    }
    status = bytes_status(&ids);
    if (status == MN_OK && value->n) status = mn_generation_config_set(r->config, f->config, bytes_text(&ids));
    bytes_clear(&ids);
    return status == MN_E_ARG ? field_wrong(f, value, NULL, why) : status;
}

static mn_status read_n(request_settings *r, const field *f, const json *value, refusal *why) {
    r->n = (int)value->integer;
    return field_set_config(r, f, "num_return_sequences", value, why);
}

static mn_status read_best_of(request_settings *r, const field *f, const json *value, refusal *why) {
    return value->integer == r->n ? MN_OK : field_wrong(f, value, "the value of 'n'", why);
}

static mn_status read_bias(request_settings *r, const field *f, const json *value, refusal *why) {
    for (size_t i = 0; i < value->n; i++) {
        const json_member *m = &value->members[i];
        double bias = m->value.kind == JSON_INT    ? (double)m->value.integer
                      : m->value.kind == JSON_REAL ? m->value.real
                                                   : 1e9;
        if (m->key_n == 0 || m->key_n > 9 || strspn(m->key, "0123456789") != m->key_n || !(bias >= -100 && bias <= 100))
            return field_wrong(f, value, NULL, why);
    }
    return value->n ? field_set_config(r, f, "logit_bias", value, why) : MN_OK;
}

static mn_status read_salt(request_settings *r, const field *f, const json *value, refusal *why) {
    for (size_t i = 0; i < value->n; i++) {
        if (value->string[i] <= ' ' || value->string[i] >= 127) return field_wrong(f, value, NULL, why);
    }
    r->salt = mem_copy_text(value->string, value->n);
    return r->salt ? MN_OK : MN_E_NOMEM;
}

/* schema: what the format has beside the type "json_schema". */
static mn_status take_format(request_settings *r, const field *f, const json *format, const json *schema,
                             refusal *why) {
    static const json_member object[] = {{"type", 4, {.kind = JSON_STRING, .n = 6, .string = "object"}}};
    static const json any_object = {.kind = JSON_OBJECT, .n = 1, .members = object};
    const json *type = json_get(format, "type");
    if (json_is_string(type, "text")) return MN_OK;
    if (json_is_string(type, "json_object")) return field_set_config(r, f, "json_schema", &any_object, why);
    if (json_is_string(type, "json_schema") && schema && schema->kind == JSON_OBJECT)
        return field_set_config(r, f, "json_schema", schema, why);
    return field_wrong(f, format, NULL, why);
}

/* {"type": "json_schema", "json_schema": {"schema": {...}}} */
static mn_status read_format(request_settings *r, const field *f, const json *value, refusal *why) {
    return take_format(r, f, value, json_get(json_get(value, "json_schema"), "schema"), why);
}

/* {"type": "json_schema", "schema": {...}} */
static mn_status read_flat_format(request_settings *r, const field *f, const json *value, refusal *why) {
    return take_format(r, f, value, json_get(value, "schema"), why);
}

/* The route reads it; this checks its type. */
static mn_status check_choice(request_settings *r, const field *f, const json *value, refusal *why) {
    static const char *const types[] = {"auto", "any", "tool", "none"};
    (void)r;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (json_is_string(json_get(value, "type"), types[i])) return MN_OK;
    }
    return field_wrong(f, value, NULL, why);
}

static mn_status read_modalities(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)r;
    for (size_t i = 0; i < value->n; i++) {
        if (!json_is_string(&value->items[i], "text")) return field_wrong(f, value, NULL, why);
    }
    return MN_OK;
}

static mn_status read_stream(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)f, (void)why;
    r->streams = value->boolean;
    return MN_OK;
}

static mn_status read_include_usage(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)f, (void)why;
    r->includes_usage = value->boolean;
    return MN_OK;
}

static mn_status read_explain(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)f, (void)why;
    r->explains = value->boolean;
    return MN_OK;
}

static mn_status read_logprobs(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)f, (void)why;
    if (value->kind == JSON_INT)
        r->top_logprobs = (int)value->integer;
    else if (value->boolean)
        r->top_logprobs = 0;
    return MN_OK;
}

static mn_status read_top_logprobs(request_settings *r, const field *f, const json *value, refusal *why) {
    bool is_on = r->top_logprobs >= 0;
    if (!is_on && value->integer > 0) return field_wrong(f, value, "0, or 'logprobs' true", why);
    if (is_on) r->top_logprobs = (int)value->integer;
    return MN_OK;
}

/* ---- GenerationConfig and the cache ---- */

static mn_status check_cache_config(const char *name, const json *value, refusal *why) {
    if (value->kind == JSON_STRING) return field_wrong(&(field){.name = name}, value, "an object", why);
    if (!json_get(value, "path")) return MN_OK;
    *why = (refusal){403, "not_permitted", name};
    MN_FAIL(MN_E_ARG, "'%s' names a folder of the server: 'path'", name);
}

static mn_status read_generation_config(request_settings *r, const field *f, const json *value, refusal *why) {
    for (size_t i = 0; i < value->n; i++) {
        const json_member *m = &value->members[i];
        if (strlen(m->key) != m->key_n) return field_wrong(f, value, NULL, why);
        if (strcmp(m->key, "cache_config") == 0) MN_TRY(check_cache_config("cache_config", &m->value, why));
        MN_TRY(field_set_config(r, f, m->key, &m->value, why));
    }
    return MN_OK;
}

static mn_status read_cache_config(request_settings *r, const field *f, const json *value, refusal *why) {
    MN_TRY(check_cache_config(f->name, value, why));
    return field_set_config(r, f, f->config, value, why);
}

/* ---- of /v1/generate ---- */

static mn_status read_priority(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)f, (void)why;
    r->priority = (int)value->integer;
    return MN_OK;
}

static mn_status read_best_tokens(request_settings *r, const field *f, const json *value, refusal *why) {
    (void)f, (void)why;
    r->top_logprobs = (int)value->integer;
    return MN_OK;
}

/* The tokens of the prompt have no log-probabilities here. */
static mn_status read_echo(request_settings *r, const field *f, const json *value, refusal *why) {
    if (value->boolean && r->top_logprobs >= 0) return field_wrong(f, value, "false beside 'logprobs'", why);
    r->echoes = value->boolean;
    return MN_OK;
}

/* ---- the table ---- */

#define NUMBERS(from, to)  .kinds = TAKES_NUMBER, .low = (from), .high = (to)
#define INTEGERS(from, to) .kinds = TAKES_INTEGER, .low = (from), .high = (to)
#define FLAG               .kinds = TAKES_FLAG
#define STRING(from, to)   .kinds = TAKES_STRING, .least = (from), .most = (to)
#define LIST(from, to)     .kinds = TAKES_LIST, .least = (from), .most = (to)
#define OBJECT(to)         .kinds = TAKES_OBJECT, .most = (to)
#define SETS(field)        .apply = set_config, .config = #field
#define IGNORED            .kinds = TAKES_ANY
#define REFUSED            .kinds = TAKES_ANY, .apply = refuse

#define MESSAGES                                                                                                       \
    "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"properties\":{\"role\":{\"type\":\"string\"}" \
    "},\"required\":[\"role\"]}}"

#define BLOCK                                                                                                          \
    "{\"type\":\"object\",\"properties\":{\"type\":{\"type\":\"string\"},\"text\":{\"type\":\"string\"}},"             \
    "\"required\":[\"type\",\"text\"]}"
#define BLOCKS "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":" BLOCK "}]}"
#define INPUT  "{\"anyOf\":[{\"type\":\"string\"}," MESSAGES "]}"

#define FLAT_FORMAT                                                                                                    \
    "{\"type\":\"object\",\"properties\":{\"type\":{\"type\":\"string\",\"enum\":[\"text\",\"json_object\","           \
    "\"json_schema\"]},\"schema\":{\"type\":\"object\"}},\"required\":[\"type\"]}"

#define PROMPTS                                                                                                             \
    "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"integer\",\"minimum\":0}}," \
    "{\"type\":\"array\",\"minItems\":1,\"maxItems\":64,\"items\":{\"type\":\"string\"}},"                                  \
    "{\"type\":\"array\",\"minItems\":1,\"maxItems\":64,\"items\":{\"type\":\"array\",\"minItems\":1,"                      \
    "\"items\":{\"type\":\"integer\",\"minimum\":0}}}]}"

static const field fields[] = {
    {"messages", BODY_CHAT | BODY_TEMPLATE | BODY_ANTHROPIC, LIST(1, 65536), .schema = MESSAGES, .is_required = true,
     .allowed = "a list of messages with 'role' and 'content'",
     .example = "[{\"role\":\"user\",\"content\":\"Hello\"}]",
     .help = "the conversation, as the chat template takes it"},
    {"prompt", BODY_COMPLETION, .kinds = TAKES_STRING | TAKES_LIST, .is_required = true,
     .example = "\"Once upon a time\"", .allowed = "a string, a list of token ids, or a list of up to 64 of these",
     .schema = PROMPTS, .help = "the text to continue; several are answered together, in order"},
    {"prompt", BODY_GENERATE, .kinds = TAKES_STRING | TAKES_LIST, .example = "\"Once upon a time\"",
     .allowed = "a string, a list of token ids, or a list of up to 64 of these", .schema = PROMPTS,
     .help = "the text to continue; this, 'ids' or 'messages'"},
    {"prompt", BODY_CACHE | BODY_LINES, .kinds = TAKES_STRING | TAKES_LIST, .example = "\"Once upon a time\"",
     .allowed = "a string, or a list of token ids",
     .schema = "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"integer\","
               "\"minimum\":0}}]}",
     .help = "the text to keep; this, 'ids' or 'messages'"},
    {"ids", BODY_CACHE | BODY_LINES, LIST(0, 0), .example = "[1,2]", .allowed = "a list of token ids",
     .schema = "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"integer\",\"minimum\":0}}",
     .help = "the text as tokens"},
    {"pin", BODY_CACHE | BODY_HOLD, FLAG, .help = "whether it is kept when memory is needed"},
    {"ttl", BODY_CACHE | BODY_HOLD, NUMBERS(0, 1e9),
     .help = "seconds without use after which it is dropped; 0: that of `--cache-ttl`, pinned ones never"},
    {"name", BODY_SAVE, STRING(1, 63), .is_required = true, .example = "\"librarian\"", .allowed = SAVED_NAMES,
     .help = "of the file; one of this name is replaced"},
    {"ids", BODY_GENERATE, LIST(0, 0), .example = "[1,2]", .allowed = "a list of token ids, or up to 64 of these",
     .schema = "{\"type\":\"array\",\"minItems\":1,\"items\":{\"anyOf\":[{\"type\":\"integer\",\"minimum\":0},"
               "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}}]}}",
     .help = "the prompt as tokens"},
    {"messages", BODY_GENERATE | BODY_CACHE | BODY_LINES, LIST(1, 65536), .schema = MESSAGES,
     .allowed = "a list of messages with 'role' and 'content'",
     .example = "[{\"role\":\"user\",\"content\":\"Hello\"}]", .help = "a conversation, as the chat template takes it"},
    {"generation_config", BODY_GENERATE, OBJECT(0), .apply = read_generation_config,
     .schema = "{\"$ref\":\"#/components/schemas/GenerationConfig\"}",
     .example = "{\"max_new_tokens\":16,\"num_beams\":2}", .allowed = "an object of GenerationConfig's fields",
     .help = "the fields of [generation.md](generation.md)"},
    {"cache_implementation", BODY_TEXT | BODY_GENERATE, STRING(1, 256), SETS(cache_implementation),
     .example = "\"sink\"", .allowed = "a cache of [caches.md](caches.md)",
     .help = "another cache than the server's; not with `--cache-fixed`"},
    {"cache_config", BODY_TEXT | BODY_GENERATE, OBJECT(64), .apply = read_cache_config, .config = "cache_config",
     .example = "{}", .allowed = "an object of that cache's keys, without 'path'",
     .schema = "{\"type\":\"object\",\"maxProperties\":64}", .help = "numbers of that cache"},
    {"priority", BODY_GENERATE, INTEGERS(-100, 100), .apply = read_priority,
     .help = "higher ones start first and are preempted last"},
    {"top_logprobs", BODY_GENERATE, INTEGERS(0, 20), .apply = read_best_tokens,
     .help = "the log-probability of every token, and of this many best ones"},
    {"input", BODY_RESPONSES, .kinds = TAKES_STRING | TAKES_LIST, .is_required = true, .schema = INPUT,
     .allowed = "a string, or a list of messages with 'role' and 'content'", .example = "\"Hello\"",
     .help = "the user's message, or the conversation"},
    {"system", BODY_ANTHROPIC, .kinds = TAKES_STRING | TAKES_LIST, .schema = BLOCKS,
     .allowed = "a string, or a list of blocks of type 'text'", .example = "\"Be brief.\"",
     .help = "the system's message"},
    {"instructions", BODY_RESPONSES, STRING(0, 0), .help = "the system's message, for this response alone"},
    {"previous_response_id", BODY_RESPONSES, STRING(1, 64),
     .help = "'input' continues the conversation of this response"},
    {"store", BODY_RESPONSES, FLAG, .help = "whether this response can be continued; true unless set"},
    {"content", BODY_TOKENIZE, STRING(0, 0), .is_required = true, .example = "\"Once\"", .help = "the text"},
    {"tokens", BODY_DETOKENIZE, LIST(0, 0), .is_required = true, .allowed = "token ids of the model",
     .schema = "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}}", .example = "[1,2]",
     .help = "the tokens"},

    {"file", BODY_SPEECH, .kinds = TAKES_FILE, .is_required = true,
     .help = "the recording: WAV, MP3, FLAC, OGG and what else [transcribe.md](transcribe.md) reads"},
    {"model", BODY_SPEECH, STRING(0, 0), .allowed = "the speech model's name in /v1/models", .help = "the model"},
    {"language", BODY_TRANSCRIPTION, STRING(1, 64), .example = "\"en\"",
     .help = "the language spoken, a code or an English name; detected unless set"},
    {"prompt", BODY_SPEECH, STRING(0, 65536),
     .help = "text placed before the recording, such as the spelling of names and terms"},
    {"hotwords", BODY_SPEECH, STRING(0, 65536),
     .help = "words to expect, spelled as they should appear: text before every window"},
    {"response_format", BODY_SPEECH, .kinds = TAKES_STRING, .choices = "json|text|srt|verbose_json|vtt",
     .help = "the form of the answer: [below](#transcriptions)"},
    {"temperature", BODY_SPEECH, NUMBERS(0, 1),
     .help = "of the first attempt at a window; others follow in steps of 0.2 where the text fails the thresholds"},
    {"timestamp_granularities[]", BODY_TRANSCRIPTION, LIST(0, 2), .example = "[\"word\"]",
     .allowed = "'word', 'segment' or both, with 'response_format' verbose_json",
     .schema = "{\"type\":\"array\",\"maxItems\":2,\"items\":{\"type\":\"string\",\"enum\":[\"word\",\"segment\"]}}",
     .help = "what has times; segments unless set"},
    {"chunking_strategy", BODY_TRANSCRIPTION, .kinds = TAKES_STRING, .choices = "auto",
     .help = "what is no speech is left out, as with [--vad-filter](transcribe.md#silence-left-out)"},
    {"chunking_strategy[type]", BODY_TRANSCRIPTION, .kinds = TAKES_STRING, .choices = "server_vad",
     .help = "as 'auto', with the next three: an object in OpenAI's clients"},
    {"chunking_strategy[threshold]", BODY_TRANSCRIPTION, NUMBERS(0, 1),
     .help = "0.5 is a threshold of 4 dB, and others are in proportion, at least 0.1 dB"},
    {"chunking_strategy[prefix_padding_ms]", BODY_TRANSCRIPTION, INTEGERS(0, 3600000),
     .help = "kept before and after speech; 400 unless set"},
    {"chunking_strategy[silence_duration_ms]", BODY_TRANSCRIPTION, INTEGERS(0, 3600000),
     .help = "shorter silence is kept; 2000 unless set"},
    {"stream", BODY_TRANSCRIPTION, FLAG, .help = "events as segments come, with 'response_format' json or text"},
    {"model", BODY_SAMPLED | BODY_COUNT_TOKENS | BODY_GENERATE | BODY_CACHE, STRING(0, 0),
     .allowed = "the name in /v1/models", .help = "the model"},
    {"max_tokens", BODY_TEXT | BODY_LINES, INTEGERS(1, 1 << 20), SETS(max_new_tokens), .help = "new tokens at most"},
    {"max_tokens", BODY_MESSAGES, INTEGERS(1, 1 << 20), SETS(max_new_tokens), .is_required = true, .example = "16",
     .help = "new tokens at most"},
    {"max_output_tokens", BODY_RESPONSES, INTEGERS(1, 1 << 20), SETS(max_new_tokens), .help = "new tokens at most"},
    {"max_completion_tokens", BODY_TEXT | BODY_LINES, INTEGERS(1, 1 << 20), SETS(max_new_tokens),
     .help = "as 'max_tokens'"},
    {"min_tokens", BODY_DIALECT | BODY_LINES, INTEGERS(0, 1 << 20), SETS(min_new_tokens),
     .help = "no end token before this many"},
    {"temperature", BODY_SAMPLED, NUMBERS(0, 100), .apply = read_temperature,
     .help = "0: greedy; above 0: sampling, below 1 sharper"},
    {"top_p", BODY_SAMPLED, NUMBERS(0, 1), SETS(top_p), .help = "keep the best tokens of this much probability"},
    {"top_k", BODY_SAMPLED, INTEGERS(0, 1e9), SETS(top_k), .help = "keep the k best tokens; 0: all"},
    {"min_p", BODY_SAMPLED, NUMBERS(0, 1), SETS(min_p),
     .help = "drop tokens below this share of the best one's probability"},
    {"typical_p", BODY_SAMPLED, NUMBERS(1e-6, 1), SETS(typical_p),
     .help = "keep the most typical tokens of this much probability"},
    {"repetition_penalty", BODY_SAMPLED, NUMBERS(1e-6, 1e6), SETS(repetition_penalty),
     .help = "above 1 weakens tokens that occurred"},
    {"presence_penalty", BODY_SAMPLED, NUMBERS(-2, 2), SETS(presence_penalty),
     .help = "subtracted from the score of each token generated before"},
    {"frequency_penalty", BODY_SAMPLED, NUMBERS(-2, 2), SETS(frequency_penalty),
     .help = "subtracted once for each time a token was generated"},
    {"logit_bias", BODY_SAMPLED, OBJECT(1024), .apply = read_bias, .example = "{\"15\":-100}",
     .allowed = "an object of up to 1024 token ids with numbers from -100 to 100",
     .schema =
         "{\"type\":\"object\",\"maxProperties\":1024,\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,\"maximum\":100}}",
     .help = "added to the scores of tokens"},
    {"seed", BODY_SAMPLED, INTEGERS(0, 9007199254740992.0), SETS(seed), .help = "same seed, same text"},
    {"stop", BODY_TEXT | BODY_LINES, .kinds = TAKES_STRING | TAKES_LIST, .most = 256, .apply = read_stop,
     .example = "[\"\\n\"]", .allowed = "a string or up to 16, each of 1 to 256 bytes",
     .schema =
         "{\"anyOf\":[{\"type\":\"string\",\"minLength\":1,\"maxLength\":256},{\"type\":\"array\",\"maxItems\":16,"
         "\"items\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":256}}]}",
     .help = "texts that end the answer and are not in it"},
    {"stop_sequences", BODY_MESSAGES, LIST(0, 16), .apply = read_stop, .example = "[\"\\n\"]",
     .allowed = "a list of up to 16 strings of 1 to 256 bytes",
     .schema = "{\"type\":\"array\",\"maxItems\":16,\"items\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":256}}",
     .help = "texts that end the answer and are not in it"},
    {"stop_token_ids", BODY_DIALECT, LIST(0, 64), .apply = read_stop_ids, .config = "eos_token_id",
     .allowed = "a list of up to 64 token ids", .example = "[2]",
     .schema = "{\"type\":\"array\",\"maxItems\":64,\"items\":{\"type\":\"integer\",\"minimum\":0}}",
     .help = "tokens that end the answer, beside the model's own"},
    {"ignore_eos", BODY_SAMPLED, FLAG, SETS(ignore_eos), .help = "go on past the end token"},
    {"max_time", BODY_SAMPLED, NUMBERS(0, 1e9), SETS(max_time), .help = "stop after this many seconds; 0: never"},
    {"n", BODY_TEXT, INTEGERS(1, MOST_ANSWERS), .apply = read_n, .help = "answers; more than 1 with sampling or beams"},
    {"n", BODY_LINES, INTEGERS(1, 1 << 20), .apply = read_n, .help = "answers; more than 1 with sampling or beams"},
    {"num_return_sequences", BODY_TEXT, INTEGERS(1, MOST_ANSWERS), .apply = read_n, .help = "as 'n'"},
    {"best_of", BODY_COMPLETION, INTEGERS(1, MOST_ANSWERS), .apply = read_best_of, .help = "as many as 'n'"},
    {"response_format", BODY_TEXT | BODY_LINES, OBJECT(0), .apply = read_format, .config = "schema",
     .example = "{\"type\":\"json_object\"}",
     .allowed = "type 'text', 'json_object', or 'json_schema' with json_schema.schema",
     .schema =
         "{\"type\":\"object\",\"properties\":{\"type\":{\"type\":\"string\",\"enum\":[\"text\",\"json_object\",\"json_schema\"]},"
         "\"json_schema\":{\"type\":\"object\",\"properties\":{\"schema\":{\"type\":\"object\"}},\"required\":[\"schema\"]}},"
         "\"required\":[\"type\"]}",
     .help = "the answer is JSON, of this schema"},
    {"text", BODY_RESPONSES, OBJECT(0), .example = "{\"format\":{\"type\":\"text\"}}",
     .help = "the form of the answer"},
    {"text.format", BODY_RESPONSES, OBJECT(0), .apply = read_flat_format, .config = "schema",
     .example = "{\"type\":\"json_object\"}", .allowed = "type 'text', 'json_object', or 'json_schema' with schema",
     .schema = FLAT_FORMAT, .help = "the answer is JSON, of this schema"},
    {"text.verbosity", BODY_RESPONSES, IGNORED, .help = "accepted without effect"},
    {"output_config", BODY_ANTHROPIC, OBJECT(0), .example = "{}", .help = "the form of the answer"},
    {"output_config.format", BODY_ANTHROPIC, OBJECT(0), .apply = read_flat_format, .config = "schema",
     .allowed = "type 'text', 'json_object', or 'json_schema' with schema", .schema = FLAT_FORMAT,
     .example = "{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}",
     .help = "the answer is JSON, of this schema"},
    {"output_config.effort", BODY_ANTHROPIC, IGNORED, .help = "accepted without effect"},
    {"regex", BODY_SAMPLED, STRING(1, 65536), SETS(regex), .example = "\"[a-z]+\"",
     .help = "the answer matches this regular expression"},
    {"grammar", BODY_SAMPLED, STRING(1, 65536), SETS(grammar), .example = "\"root ::= [a-z]+\"",
     .help = "the answer matches this grammar, in GBNF"},
    {"logprobs", BODY_CHAT | BODY_CHAT_LINE, FLAG, .apply = read_logprobs,
     .help = "the log-probability of every token"},
    {"logprobs", BODY_COMPLETION | BODY_COMPLETION_LINE, INTEGERS(0, 20), .apply = read_logprobs,
     .help = "the log-probability of every token, and of this many best ones"},
    {"top_logprobs", BODY_CHAT | BODY_CHAT_LINE, INTEGERS(0, 20), .apply = read_top_logprobs,
     .help = "with 'logprobs': also those of this many best tokens at its place"},
    {"echo", BODY_COMPLETION | BODY_COMPLETION_LINE, FLAG, .apply = read_echo, .help = "answers begin with the prompt"},
    {"stream", BODY_DIALECT | BODY_GENERATE | BODY_LINES, FLAG, .apply = read_stream, .help = "events as tokens come"},
    {"stream_options", BODY_TEXT, OBJECT(0), .example = "{}", .help = "of streams"},
    {"stream_options.include_usage", BODY_TEXT, FLAG, .apply = read_include_usage, .help = "a last event with 'usage'"},
    {"tools", BODY_CHAT | BODY_TEMPLATE | BODY_CACHE | BODY_LINES, LIST(0, 128),
     .allowed = "a list of up to 128 functions",
     .example = "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\"}}}]",
     .schema =
         "{\"type\":\"array\",\"maxItems\":128,\"items\":{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"function\"},"
         "\"function\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_.-]{1,64}$\"},"
         "\"parameters\":{\"type\":\"object\"}},\"required\":[\"name\"]}},\"required\":[\"type\",\"function\"]}}",
     .help = "functions that the model may call: [below](#tools)"},
    {"tool_choice", BODY_CHAT | BODY_TEMPLATE, .kinds = TAKES_STRING | TAKES_OBJECT, .choices = "none|auto|required",
     .example = "\"auto\"",
     .allowed = "'none', 'auto', 'required', or {\"type\": \"function\", \"function\": {\"name\": ...}}",
     .schema = "{\"anyOf\":[{\"type\":\"string\",\"enum\":[\"none\",\"auto\",\"required\"]},{\"type\":\"object\"}]}",
     .help = "'required' and a named function force a call"},
    {"tools", BODY_RESPONSES, LIST(0, 128), .allowed = "a list of up to 128 functions",
     .example = "[{\"type\":\"function\",\"name\":\"weather\",\"parameters\":{\"type\":\"object\"}}]",
     .schema =
         "{\"type\":\"array\",\"maxItems\":128,\"items\":{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"function\"},"
         "\"name\":{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_.-]{1,64}$\"},\"parameters\":{\"type\":\"object\"}},"
         "\"required\":[\"type\",\"name\"]}}",
     .help = "functions that the model may call: [below](#tools)"},
    {"tools", BODY_ANTHROPIC, LIST(0, 128), .allowed = "a list of up to 128 functions",
     .example = "[{\"name\":\"weather\",\"input_schema\":{\"type\":\"object\"}}]",
     .schema =
         "{\"type\":\"array\",\"maxItems\":128,\"items\":{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"custom\"},"
         "\"name\":{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_.-]{1,64}$\"},\"input_schema\":{\"type\":\"object\"}},"
         "\"required\":[\"name\"]}}",
     .help = "functions that the model may call: [below](#tools)"},
    {"tool_choice", BODY_RESPONSES, .kinds = TAKES_STRING | TAKES_OBJECT, .choices = "none|auto|required",
     .example = "\"auto\"", .allowed = "'none', 'auto', 'required', or {\"type\": \"function\", \"name\": ...}",
     .schema = "{\"anyOf\":[{\"type\":\"string\",\"enum\":[\"none\",\"auto\",\"required\"]},{\"type\":\"object\"}]}",
     .help = "'required' and a named function force a call"},
    {"tool_choice", BODY_ANTHROPIC, OBJECT(0), .apply = check_choice, .example = "{\"type\":\"auto\"}",
     .allowed = "type 'auto', 'any', 'none', or 'tool' with name",
     .schema = "{\"type\":\"object\",\"properties\":{\"type\":{\"type\":\"string\",\"enum\":[\"auto\",\"any\",\"tool\","
               "\"none\"]}},\"required\":[\"type\"]}",
     .help = "'any' and 'tool' force a call"},
    {"parallel_tool_calls", BODY_CHAT | BODY_TEMPLATE | BODY_RESPONSES, FLAG, .help = "false: one call at most"},
    {"cache_salt", BODY_DIALECT | BODY_GENERATE | BODY_CACHE, STRING(1, 128), .apply = read_salt,
     .allowed = "1 to 128 visible ASCII characters", .example = "\"mine\"",
     .help = "only requests with the same salt share computed tokens"},
    {"cache", BODY_DIALECT | BODY_GENERATE, OBJECT(0), .example = "{}", .help = "of the cache"},
    {"cache.implementation", BODY_TEXT | BODY_GENERATE, STRING(1, 256), SETS(cache_implementation),
     .example = "\"sink\"", .allowed = "a cache of [caches.md](caches.md)", .help = "as `cache_implementation`"},
    {"cache.config", BODY_TEXT | BODY_GENERATE, OBJECT(64), .apply = read_cache_config, .config = "cache_config",
     .example = "{}", .allowed = "an object of that cache's keys, without 'path'",
     .schema = "{\"type\":\"object\",\"maxProperties\":64}", .help = "as `cache_config`"},
    {"cache.explain", BODY_DIALECT | BODY_GENERATE, FLAG, .apply = read_explain,
     .help = "cached tokens found, and why not more: [below](#why-a-prefix-was-not-found)"},
    {"documents", BODY_CHAT | BODY_TEMPLATE | BODY_GENERATE | BODY_CACHE | BODY_LINES, LIST(0, 0),
     .allowed = "a list of objects", .example = "[{\"title\":\"Rome\",\"text\":\"A city.\"}]",
     .schema = "{\"type\":\"array\",\"items\":{\"type\":\"object\"}}", .help = "what the chat template may quote from"},
    {"chat_template_kwargs", BODY_CHAT | BODY_TEMPLATE | BODY_GENERATE | BODY_CACHE | BODY_LINES, OBJECT(0),
     .example = "{\"enable_thinking\":false}", .schema = "{\"type\":\"object\"}",
     .help = "variables of the chat template; override standard ones"},
    {"modalities", BODY_CHAT | BODY_CHAT_LINE, LIST(0, 8), .apply = read_modalities, .allowed = "[\"text\"]",
     .example = "[\"text\"]", .schema = "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"enum\":[\"text\"]}}",
     .help = "answers are text"},

    {"truncation", BODY_RESPONSES, .kinds = TAKES_STRING, .choices = "disabled",
     .help = "a prompt longer than the context is refused"},
    {"mcp_servers", BODY_ANTHROPIC, REFUSED, .help = "the server reaches no network"},
    {"background", BODY_RESPONSES, REFUSED, .help = "answers are sent on the request's own connection only"},
    {"conversation", BODY_RESPONSES, REFUSED, .help = "'previous_response_id' continues a response"},
    {"prompt", BODY_RESPONSES, REFUSED, .help = "'input' has the text"},
    {"suffix", BODY_COMPLETION, REFUSED, .help = "texts are continued at their end"},
    {"audio", BODY_CHAT, REFUSED, .help = "answers are text"},
    {"prediction", BODY_CHAT, REFUSED, .help = "drafts cannot be given in a request"},
    {"functions", BODY_CHAT, REFUSED, .help = "'tools' takes functions"},
    {"function_call", BODY_CHAT, REFUSED, .help = "'tool_choice' chooses a function"},
    {"web_search_options", BODY_CHAT, REFUSED, .help = "the server reaches no network"},

    {"include[]", BODY_TRANSCRIPTION, IGNORED, .help = "accepted without effect: there is no more to include"},
    {"user", BODY_TEXT | BODY_LINES, IGNORED, .help = "accepted without effect"},
    {"id", BODY_LINE, IGNORED, .help = "of any value; comes back with the answer"},
    {"custom_id", BODY_LINE, IGNORED, .help = "as 'id'"},
    {"metadata", BODY_LINE, IGNORED, .help = "as 'id'"},
    {"user", BODY_RESPONSES, IGNORED, .help = "repeated in the response"},
    {"metadata", BODY_RESPONSES, IGNORED, .help = "repeated in the response"},
    {"reasoning", BODY_RESPONSES, IGNORED, .help = "repeated in the response, without effect"},
    {"include", BODY_RESPONSES, IGNORED, .help = "accepted without effect: there is no more to include"},
    {"stream_options", BODY_RESPONSES, IGNORED, .help = "accepted without effect"},
    {"thinking", BODY_ANTHROPIC, IGNORED,
     .help = "accepted without effect: answers have a block of thinking where the model thinks"},
    {"cache_control", BODY_ANTHROPIC, IGNORED, .help = "accepted without effect: every prompt is cached"},
    {"metadata", BODY_CHAT | BODY_MESSAGES | BODY_OPENAI_LINE, IGNORED, .help = "accepted without effect"},
    {"store", BODY_CHAT | BODY_OPENAI_LINE, IGNORED, .help = "accepted without effect: nothing is stored"},
    {"service_tier", BODY_CHAT | BODY_RESPONSES | BODY_MESSAGES | BODY_OPENAI_LINE, IGNORED,
     .help = "accepted without effect"},
    {"safety_identifier", BODY_CHAT | BODY_RESPONSES | BODY_OPENAI_LINE, IGNORED, .help = "accepted without effect"},
    {"prompt_cache_key", BODY_CHAT | BODY_RESPONSES | BODY_OPENAI_LINE, IGNORED,
     .help = "accepted without effect: prompts are matched by their tokens"},
    {"prompt_cache_retention", BODY_CHAT | BODY_RESPONSES | BODY_OPENAI_LINE, IGNORED,
     .help = "accepted without effect"},
    {"reasoning_effort", BODY_CHAT | BODY_CHAT_LINE, IGNORED, .help = "accepted without effect"},
    {"verbosity", BODY_CHAT | BODY_CHAT_LINE, IGNORED, .help = "accepted without effect"},
};

const field *field_at(size_t index) {
    return index < sizeof fields / sizeof *fields ? &fields[index] : NULL;
}
