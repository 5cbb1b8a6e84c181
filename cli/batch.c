/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include <stdio.h>
#include <string.h>

#include "config.h"

static mn_status line_prompt(const batch_setup *setup, batch_line *line, const char *what) {
    const json *root = json_root(line->doc), *ids = json_get(root, "ids"), *text = json_get(root, "prompt");
    const json *messages = json_get(root, "messages");
    const mn_tokenizer *tokenizer = mn_model_tokenizer(setup->model);
    if ((ids != NULL) + (text != NULL) + (messages != NULL) != 1) {
        MN_FAIL(MN_E_ARG, "%s: give one of \"ids\", \"prompt\" and \"messages\"", what);
    }
    mn_status status = MN_OK;
    bytes b = {0};
    if (text && text->kind == JSON_STRING && text->n) {
        bool chat = !option_on(setup->o, OPT_RAW) && tokenizer && mn_has_chat_template(tokenizer);
        bytes_append(&b, setup->prefix->data, setup->prefix->n);
        bytes_append(&b, text->string, text->n);
        status = bytes_status(&b);
        if (status == MN_OK)
            status = chat ? prompt_from_chat(&line->prompt, tokenizer, b.data, b.n)
                          : prompt_from_text(&line->prompt, tokenizer, b.data, b.n,
                                             option_on(setup->o, OPT_NO_SPECIAL_TOKENS));
    } else if (setup->prefix->n) {
        status =
            status_fail(MN_E_ARG, "--prefix-file stands before texts; give a \"prompt\" that is not empty");
    } else if (ids && ids->kind == JSON_ARRAY && ids->n) {
        for (size_t i = 0; i < ids->n; i++) {
            bytes_append_text(&b, i ? "," : "");
            json_put(&b, &ids->items[i]);
        }
        status = bytes_status(&b);
        if (status == MN_OK) status = prompt_from_ids(&line->prompt, b.data, b.n, "ids");
    } else if (messages && messages->kind == JSON_ARRAY) {
        json_put(&b, messages);
        status = bytes_status(&b);
        if (status == MN_OK) status = prompt_from_messages(&line->prompt, tokenizer, b.data, b.n);
    } else {
        status = status_fail(MN_E_ARG, "ids and messages are lists, a prompt is a text, and none is empty");
    }
    bytes_clear(&b);
    return status_context(status, "%s", what);
}

mn_status batch_add(batch *b, batch_line **line) {
    MN_TRY(mem_grow(&b->lines, &b->capacity, b->n + 1, sizeof *b->lines));
    *line = &b->lines[b->n++];
    **line = (batch_line){0};
    return MN_OK;
}

mn_status batch_read(batch *b, const batch_setup *setup) {
    const char *at = setup->in->data.data, *end = at + setup->in->data.n;
    for (int number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t n = newline ? (size_t)(newline - at) : (size_t)(end - at);
        bool blank = true;
        for (size_t i = 0; i < n; i++) blank = blank && strchr(" \t\r", at[i]) && at[i];
        if (!blank) {
            char what[128];
            batch_line *line = NULL;
            snprintf(what, sizeof what, "%.90s line %d", setup->in->what, number);
            MN_TRY(batch_add(b, &line));
            MN_TRY(json_parse(&line->doc, at, n, JSON_PYTHON, what));
            if (json_root(line->doc)->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "%s: is no JSON object", what);
            MN_TRY(line_prompt(setup, line, what));
            const json *row = json_root(line->doc);
            MN_TRY(status_context(generation_build(&line->config, setup->o, setup->model, setup->file, row),
                                  "%s", what));
        }
        at += n + (newline != NULL);
    }
    if (b->n == 0) MN_FAIL(MN_E_ARG, "%s holds no lines", setup->in->what);
    return MN_OK;
}

void batch_clear(batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        prompt_clear(&b->lines[i].prompt);
        mn_generation_config_close(&b->lines[i].config);
        json_close(&b->lines[i].doc);
    }
    mem_free(b->lines);
    *b = (batch){0};
}
