/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_line.h"

#include <string.h>
#include <time.h>

#include "result.h"

/* ---- fields ---- */

/* What has no place in an answer to a line. */
static mn_status refuse_others(const request_settings *r) {
    const struct {
        const char *name;
        bool is_on;
    } others[] = {{"stream", r->streams}, {"logprobs", r->top_logprobs >= 0}, {"echo", r->echoes}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].is_on) MN_FAIL(MN_E_ARG, "%s is not for lines of a batch, allowed: false", others[i].name);
    }
    return MN_OK;
}

static mn_status read_fields(batch_line *line) {
    request_settings r = {.members = &line->fields, .n = 1, .top_logprobs = -1};
    refusal why = {0};
    bytes_append_text(&line->fields, "{");
    MN_TRY(fields_check(line->body, line->form, NULL, &why));
    MN_TRY(fields_read(&r, line->body, line->form, &why));
    bytes_append_text(&line->fields, "}");
    MN_TRY(refuse_others(&r));
    return bytes_status(&line->fields);
}

/* ---- lines ---- */

/* Of an object, its members that come back. */
static mn_status put_returned(batch_line *line, const json *root) {
    static const char *const keys[] = {"id", "custom_id", "metadata"};
    for (size_t i = 0; i < root->n; i++) {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            if (strcmp(keys[k], root->members[i].key) != 0) continue;
            json_put_string(&line->returned, keys[k], strlen(keys[k]));
            bytes_append_text(&line->returned, ":");
            json_put(&line->returned, &root->members[i].value);
            bytes_append_text(&line->returned, ",");
        }
    }
    return line->returned.failed ? mem_no_memory() : MN_OK;
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
    line->form = is_chat ? BODY_CHAT_LINE : BODY_COMPLETION_LINE;
    return MN_OK;
}

mn_status batch_line_read(batch_line *line, const json *root) {
    const json *body = json_get(root, "body");
    *line = (batch_line){.form = BODY_LINE, .body = body ? body : root};
    if (root->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "is no JSON object");
    if (body) MN_TRY(read_head(line, root));
    MN_TRY(put_returned(line, root));
    return read_fields(line);
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
    bool is_chat = line->form == BODY_CHAT_LINE;
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
    if (line->form != BODY_LINE) {
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
