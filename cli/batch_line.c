/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_line.h"

#include <string.h>
#include <time.h>

#include "result.h"

/* ---- fields ---- */

static void put_field(bytes *out, const char *name, const json *value) {
    if (out->n > 1) bytes_append_text(out, ",");
    json_put_string(out, name, strlen(name));
    bytes_append_text(out, ":");
    json_put_as(out, value, JSON_PYTHON);
}

static mn_status put_stop(bytes *out, const json *value) {
    const json list = {.kind = JSON_ARRAY, .n = 1, .items = value};
    put_field(out, "stop_strings", value->kind == JSON_STRING ? &list : value);
    return MN_OK;
}

static mn_status put_format(bytes *out, const json *value) {
    static const json_member members[] = {{"type", 4, {.kind = JSON_STRING, .n = 6, .string = "object"}}};
    static const json any_object = {.kind = JSON_OBJECT, .n = 1, .members = members};
    const json *type = json_get(value, "type"), *schema = json_get(json_get(value, "json_schema"), "schema");
    bool is_schema = json_is_string(type, "json_schema") && schema;
    if (is_schema || json_is_string(type, "json_object")) {
        put_field(out, "json_schema", is_schema ? schema : &any_object);
    } else if (!json_is_string(type, "text")) {
        MN_FAIL(MN_E_ARG,
                "response_format: allowed: type 'text', 'json_object', or 'json_schema' with json_schema.schema");
    }
    return MN_OK;
}

/* Of OpenAI's lines: 0 takes the best token, more samples. */
static mn_status put_temperature(bytes *out, const json *value) {
    bool samples = (value->kind == JSON_INT && value->integer > 0) || (value->kind == JSON_REAL && value->real > 0);
    const json flag = {.kind = JSON_BOOL, .boolean = samples};
    if (value->kind != JSON_INT && value->kind != JSON_REAL) MN_FAIL(MN_E_ARG, "temperature is no number");
    put_field(out, "do_sample", &flag);
    if (samples) put_field(out, "temperature", value);
    return MN_OK;
}

/* A text, a list with one, or a list of token ids. */
static mn_status put_prompt(bytes *out, const json *value) {
    const json *first = value->kind == JSON_ARRAY && value->n ? value->items : NULL;
    if (first && first->kind != JSON_INT && value->n > 1)
        MN_FAIL(MN_E_ARG, "prompt is a list of %zu, allowed: one prompt in a line", value->n);
    bool is_ids = first && first->kind == JSON_INT;
    put_field(out, is_ids ? "ids" : "prompt", first && !is_ids ? first : value);
    return MN_OK;
}

static mn_status refuse_on(bytes *out, const json *value, const char *name) {
    (void)out;
    if (value->kind == JSON_BOOL && !value->boolean) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s is not for lines of a batch, allowed: false", name);
}

static mn_status refuse_stream(bytes *out, const json *value) {
    return refuse_on(out, value, "stream");
}

static mn_status refuse_logprobs(bytes *out, const json *value) {
    return refuse_on(out, value, "logprobs");
}

/* OpenAI's names: the field, how its value is put, or neither where it has no effect here. */
static const struct {
    const char *name, *field;
    mn_status (*put)(bytes *out, const json *value);
    bool of_body; /* in the body of OpenAI's lines alone: elsewhere the name is a field of its own, or none */
} names[] = {
    {"max_tokens", "max_new_tokens", NULL, false},
    {"max_completion_tokens", "max_new_tokens", NULL, false},
    {"min_tokens", "min_new_tokens", NULL, false},
    {"n", "num_return_sequences", NULL, false},
    {"stop", NULL, put_stop, false},
    {"response_format", NULL, put_format, false},
    {"stream", NULL, refuse_stream, false},
    {"user", NULL, NULL, false},
    {"temperature", NULL, put_temperature, true},
    {"prompt", NULL, put_prompt, true},
    {"logprobs", NULL, refuse_logprobs, true},
    {"model", NULL, NULL, true},
    {"store", NULL, NULL, true},
    {"metadata", NULL, NULL, true},
    {"service_tier", NULL, NULL, true},
    {"safety_identifier", NULL, NULL, true},
    {"prompt_cache_key", NULL, NULL, true},
};

static mn_status put_member(bytes *out, const json_member *member, bool is_body) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, member->key) != 0 || (names[i].of_body && !is_body)) continue;
        if (member->value.kind == JSON_NULL) return MN_OK; /* as clients write what they do not set */
        if (names[i].put) return names[i].put(out, &member->value);
        if (names[i].field) put_field(out, names[i].field, &member->value);
        return MN_OK;
    }
    put_field(out, member->key, &member->value);
    return MN_OK;
}

/* ---- lines ---- */

static bool put_returned(batch_line *line, const json_member *member) {
    static const char *const keys[] = {"id", "custom_id", "metadata"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(keys[i], member->key) != 0) continue;
        json_put_string(&line->returned, keys[i], strlen(keys[i]));
        bytes_append_text(&line->returned, ":");
        json_put(&line->returned, &member->value);
        bytes_append_text(&line->returned, ",");
        return true;
    }
    return false;
}

/* The head of OpenAI's lines. */
static mn_status read_head(batch_line *line, const json *root) {
    const json *url = json_get(root, "url"), *method = json_get(root, "method");
    bool is_chat = json_is_string(url, "/v1/chat/completions");
    for (size_t i = 0; i < root->n; i++) {
        static const char *const keys[] = {"custom_id", "method", "url", "body"};
        size_t k = 0;
        while (k < 4 && strcmp(keys[k], root->members[i].key) != 0) k++;
        if (k == 4)
            MN_FAIL(MN_E_ARG, "'%.60s' is unknown beside a body, allowed: custom_id, method, url, body",
                    root->members[i].key);
    }
    if (!is_chat && !json_is_string(url, "/v1/completions"))
        MN_FAIL(MN_E_ARG, "url is %s, allowed: /v1/chat/completions, /v1/completions",
                url && url->kind == JSON_STRING ? url->string : "no text");
    if (method && !json_is_string(method, "POST"))
        MN_FAIL(MN_E_ARG, "method is %.20s, allowed: POST", method->kind == JSON_STRING ? method->string : "no text");
    if (json_get(root, "body")->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "body is no object");
    line->form = is_chat ? BATCH_CHAT : BATCH_COMPLETION;
    return MN_OK;
}

mn_status batch_line_read(batch_line *line, const json *root) {
    const json *body = json_get(root, "body");
    *line = (batch_line){.form = BATCH_OWN};
    if (root->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "is no JSON object");
    if (body) MN_TRY(read_head(line, root));
    for (size_t i = 0; i < root->n && body; i++) put_returned(line, &root->members[i]);
    const json *fields = body ? body : root;
    bytes_append_text(&line->fields, "{");
    for (size_t i = 0; i < fields->n; i++) {
        if (!body && put_returned(line, &fields->members[i])) continue;
        MN_TRY(put_member(&line->fields, &fields->members[i], body != NULL));
    }
    bytes_append_text(&line->fields, "}");
    return line->returned.failed ? mem_no_memory() : bytes_status(&line->fields);
}

void batch_line_clear(batch_line *line) {
    bytes_clear(&line->fields);
    bytes_clear(&line->returned);
}

/* ---- answers ---- */

/* In OpenAI's form the content is the answer alone, as servers with a reasoning parser have it. */
static void put_choice(bytes *out, const mn_sequence *s, const reasoning *r, size_t i, bool is_chat) {
    const reasoning_place at = is_chat && s->text ? reasoning_find(r, s->text, s->n_text) : (reasoning_place){0};
    bytes_printf(out, "%s{\"index\":%zu,%s", i ? "," : "", i,
                 is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    json_put_string(out, s->text ? s->text + at.answer : "", s->text ? s->n_text - at.answer : 0);
    if (at.answer) {
        bytes_append_text(out, ",\"reasoning_content\":");
        json_put_string(out, s->text + at.begin, at.end - at.begin);
    }
    bytes_printf(out, "%s,\"logprobs\":null,\"finish_reason\":\"%s\"}", is_chat ? ",\"refusal\":null}" : "",
                 strcmp(s->finish_reason, "length") == 0 ? "length" : "stop");
}

/* OpenAI's object for a line: {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}. */
static void put_openai(bytes *out, const batch_line *line, int number, const loaded_model *e, const mn_generation *g,
                       const prompt *p) {
    bool is_chat = line->form == BATCH_CHAT;
    size_t cached = 0, n_new = 0;
    bytes_printf(out, "{\"id\":\"batch_req_%d\",", number);
    if (line->returned.n) {
        bytes_append(out, line->returned.data, line->returned.n);
    } else {
        bytes_append_text(out, "\"custom_id\":null,");
    }
    bytes_printf(out, "\"response\":{\"status_code\":200,\"request_id\":\"req_%d\",\"body\":{", number);
    bytes_printf(out, "\"id\":\"%s-%d\",\"object\":\"%s\",\"created\":%lld,\"model\":", is_chat ? "chatcmpl" : "cmpl",
                 number, is_chat ? "chat.completion" : "text_completion", (long long)time(NULL));
    json_put_string(out, e->path, strlen(e->path));
    bytes_append_text(out, ",\"choices\":[");
    for (size_t i = 0; i < g->n_sequences; i++) {
        put_choice(out, g->sequences[i], &p->reasoning, i, is_chat);
        cached += g->sequences[i]->cached_tokens;
        n_new += g->sequences[i]->n_ids;
    }
    bytes_printf(out, "],\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,", p->n, n_new,
                 p->n + n_new);
    bytes_printf(out, "\"prompt_tokens_details\":{\"cached_tokens\":%zu}}}},\"error\":null}", cached);
}

void batch_line_answer(bytes *out, const batch_line *line, int number, const loaded_model *e,
                       const mn_generation *generation, const prompt *p, int top_logprobs) {
    bytes answer = {0};
    if (line->form != BATCH_OWN) {
        put_openai(out, line, number, e, generation, p);
        return;
    }
    result_put(&answer, e, generation, p, top_logprobs);
    bytes_append_text(out, "{");
    if (line->returned.n) bytes_append(out, line->returned.data, line->returned.n);
    if (answer.n > 1) bytes_append(out, answer.data + 1, answer.n - 1);
    out->failed = out->failed || answer.failed;
    bytes_clear(&answer);
}
