/* SPDX-License-Identifier: Apache-2.0 */
#include "chat/template.h"

#include <string.h>

#include "base/status.h"

enum { LIST_FILE = 1 << 26 }; /* bytes of a file with a list, at most */

/* ---- options ---- */

/* A list of objects: JSON text itself, or the file that has it, "@path" or a path. */
static mn_status read_list(bytes *out, const options *o, option_id id) {
    const char *text = option_text(o, id, NULL), *name = option_table[id].name;
    json_doc *doc = NULL;
    if (!text) return MN_OK;
    bool is_file = text[strspn(text, " \t\r\n")] != '[';
    mn_status status = is_file ? json_open(&doc, text + (*text == '@'), JSON_PYTHON, LIST_FILE)
                               : json_parse(&doc, text, strlen(text), JSON_PYTHON, "the text");
    const json *root = status == MN_OK ? json_root(doc) : NULL;
    bool is_list = root && root->kind == JSON_ARRAY;
    for (size_t i = 0; is_list && i < root->n; i++) is_list = root->items[i].kind == JSON_OBJECT;
    if (root && !is_list) status = status_fail(MN_E_ARG, "'%.200s' is no list of objects, [{...}, ...]", text);
    if (status == MN_E_FORMAT) status = MN_E_ARG;
    if (status == MN_OK) json_put_as(out, root, JSON_PYTHON);
    json_close(&doc);
    if (status == MN_OK) bytes_text(out);
    return status == MN_OK ? bytes_status(out) : status_context(status, "--%s", name);
}

static void put_variable(bytes *out, const char *name, size_t n_name, const json *value) {
    bytes_append_text(out, out->n > 1 ? "," : "");
    json_put_string(out, name, n_name);
    bytes_append_text(out, ":");
    json_put_as(out, value, JSON_PYTHON);
}

static void put_variables(bytes *out, const json *object) {
    for (size_t i = 0; object && i < object->n; i++)
        put_variable(out, object->members[i].key, object->members[i].key_n, &object->members[i].value);
}

/* JSON where it can be read as such, or one of Python's words for it; a text otherwise. */
static mn_status read_value(json_doc **doc, const char *text, size_t n) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    bytes quoted = {0};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i][0]) == n && strncmp(words[i][0], text, n) == 0)
            return json_parse(doc, words[i][1], strlen(words[i][1]), JSON_STRICT, "value");
    }
    if (json_parse(doc, text, n, JSON_PYTHON, "value") == MN_OK) return MN_OK;
    json_put_string(&quoted, text, n);
    mn_status status = bytes_status(&quoted);
    if (status == MN_OK) status = json_parse(doc, quoted.data, quoted.n, JSON_STRICT, "value");
    bytes_clear(&quoted);
    return status;
}

/* NAME=VALUE, or an object of variables. */
static mn_status read_variable(bytes *out, const char *line, size_t n) {
    const char *equals = memchr(line, '=', n);
    json_doc *doc = NULL;
    if (*line == '{') {
        mn_status status = json_parse(&doc, line, n, JSON_PYTHON, "--template-var");
        if (status == MN_OK) put_variables(out, json_root(doc));
        json_close(&doc);
        return status == MN_E_FORMAT ? MN_E_ARG : status;
    }
    size_t n_name = equals ? (size_t)(equals - line) : 0;
    if (n_name == 0)
        MN_FAIL(MN_E_ARG,
                "--template-var: '%.*s' names no variable; allowed: NAME=VALUE, or an object {\"NAME\": VALUE}",
                (int)(n < 200 ? n : 200), line);
    MN_TRY(read_value(&doc, equals + 1, n - n_name - 1));
    put_variable(out, line, n_name, json_root(doc));
    json_close(&doc);
    return MN_OK;
}

mn_status template_input_read(template_input *t, const options *o) {
    MN_TRY(read_list(&t->tools, o, OPT_TOOLS));
    MN_TRY(read_list(&t->documents, o, OPT_DOCUMENTS));
    t->hides_reasoning = option_is_set(o, OPT_THINKING) && !option_on(o, OPT_THINKING);
    bytes_append_text(&t->variables, "{");
    if (option_is_set(o, OPT_THINKING))
        bytes_printf(&t->variables, "\"enable_thinking\":%s", t->hides_reasoning ? "false" : "true");
    for (const char *at = option_text(o, OPT_TEMPLATE_VAR, ""); *at;) {
        size_t n = strcspn(at, "\n");
        MN_TRY(read_variable(&t->variables, at, n));
        at += n + (at[n] == '\n');
    }
    if (t->variables.n == 1) bytes_clear(&t->variables);
    if (t->variables.n) bytes_append_text(&t->variables, "}");
    if (t->variables.n) bytes_text(&t->variables);
    return bytes_status(&t->variables);
}

void template_input_clear(template_input *t) {
    bytes_clear(&t->tools);
    bytes_clear(&t->documents);
    bytes_clear(&t->variables);
}

mn_status template_refuse(const options *o) {
    static const option_id ids[] = {OPT_TOOLS, OPT_DOCUMENTS, OPT_TEMPLATE_VAR, OPT_THINKING};
    char flag[64];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        if (!option_is_set(o, ids[i]) || o->set[ids[i]].origin != ORIGIN_FLAG) continue;
        MN_FAIL(MN_E_ARG,
                "--%s is for the chat template; not allowed with --raw, token ids, or a model without a template",
                flag_spelling(flag, sizeof flag, option_table[ids[i]].name));
    }
    return MN_OK;
}

/* ---- lines ---- */

static mn_status take_list(bytes *out, const bytes *standard, const json *line, const char *name) {
    const json *list = json_get(line, name);
    bool is_own = list && list->kind != JSON_NULL;
    if (is_own && list->kind != JSON_ARRAY) MN_FAIL(MN_E_ARG, "%s is no list of objects", name);
    if (is_own) {
        json_put_as(out, list, JSON_PYTHON);
    } else if (standard->n) {
        bytes_append(out, standard->data, standard->n);
    }
    if (out->n) bytes_text(out);
    return bytes_status(out);
}

mn_status template_input_of_line(template_input *t, const template_input *standard, const json *line) {
    const json *own = json_get(line, "chat_template_kwargs");
    if (own && own->kind == JSON_NULL) own = NULL;
    if (own && own->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "chat_template_kwargs is no object");
    t->hides_reasoning = standard->hides_reasoning;
    MN_TRY(take_list(&t->tools, &standard->tools, line, "tools"));
    MN_TRY(take_list(&t->documents, &standard->documents, line, "documents"));
    if (!standard->variables.n && !own) return MN_OK;
    if (standard->variables.n) {
        bytes_append(&t->variables, standard->variables.data, standard->variables.n - 1); /* without its brace */
    } else {
        bytes_append_text(&t->variables, "{");
    }
    put_variables(&t->variables, own); /* of one name the last counts */
    bytes_append_text(&t->variables, "}");
    bytes_text(&t->variables);
    return bytes_status(&t->variables);
}

/* ---- rendering ---- */

mn_status template_render(char **text, size_t *n_text, const mn_tokenizer *tokenizer, const template_input *t,
                          const char *messages, size_t n, bool add_generation_prompt) {
    mn_chat_options how;
    mn_chat_options_init(&how, sizeof how);
    how.add_generation_prompt = add_generation_prompt;
    how.tools = t->tools.n ? t->tools.data : NULL;
    how.documents = t->documents.n ? t->documents.data : NULL;
    how.template_kwargs = t->variables.n ? t->variables.data : NULL;
    return mn_chat_render_with(tokenizer, messages, n, &how, text, n_text);
}
