/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/utf8.h"

enum { INPUT_LIMIT = 1 << 30 };

static const struct {
    option_id id;
    input_kind kind;
    bool is_file;
} sources[] = {
    {OPT_PROMPT, INPUT_TEXT, false}, {OPT_FILE, INPUT_TEXT, true},    {OPT_IDS, INPUT_IDS, false},
    {OPT_TEXT, INPUT_TEXT, true},    {OPT_IDS_FILE, INPUT_IDS, true}, {OPT_MESSAGES, INPUT_MESSAGES, true},
    {OPT_BATCH, INPUT_BATCH, true},
};

enum { N_SOURCES = sizeof sources / sizeof *sources };

bool input_is_given(const options *o) {
    for (int i = 0; i < N_SOURCES; i++) {
        if (option_is_set(o, sources[i].id)) return true;
    }
    return false;
}

static mn_status two_sources(const char *a, const char *b) {
    MN_FAIL(MN_E_ARG, "%s and %s both give the text; give one of them", a, b);
}

/* The strongest source given; two flags contradict, a flag overrides the environment. */
static mn_status choose(const options *o, const char *text, int *chosen) {
    char a[64], b[64];
    option_origin best = text ? ORIGIN_FLAG : ORIGIN_DEFAULT;
    *chosen = -1;
    for (int i = 0; i < N_SOURCES; i++) {
        const setting *s = &o->set[sources[i].id];
        if (!s->text || s->origin < best) continue;
        snprintf(a, sizeof a, "--%s", option_table[sources[i].id].name);
        if (s->origin == best && s->origin == ORIGIN_FLAG) {
            snprintf(b, sizeof b, "%s%s", *chosen < 0 ? "the TEXT argument" : "--",
                     *chosen < 0 ? "" : option_table[sources[*chosen].id].name);
            return two_sources(flag_spelling(b, sizeof b, b), flag_spelling(a, sizeof a, a));
        }
        best = s->origin;
        *chosen = i;
    }
    return MN_OK;
}

static mn_status refuse_empty(const input *in) {
    if (in->data.n > 0) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s is empty; give a text, or token ids with --ids", in->what);
}

/* `git diff | mneme run "Explain this change:"`: what a pipe or a file brings to the standard input belongs to the text
 * that was given as an argument. Nothing else is read, so that a service or a terminal does not wait. */
static mn_status join_stdin(input *in) {
    struct stat info;
    bytes more = {0};
    if (fstat(STDIN_FILENO, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode))) return MN_OK;
    mn_status status = file_read_input(&more, "-", INPUT_LIMIT);
    if (status == MN_OK && more.n) {
        bytes_append_text(&in->data, "\n\n");
        bytes_append(&in->data, more.data, more.n);
    }
    bytes_clear(&more);
    return status;
}

static bool is_argument(const options *o, const char *text) {
    return text || (option_is_set(o, OPT_PROMPT) && o->set[OPT_PROMPT].origin == ORIGIN_FLAG);
}

mn_status input_read(input *in, const options *o, const char *text) {
    int chosen = -1;
    MN_TRY(choose(o, text, &chosen));
    bool joins =
        o->command->bit == COMMAND_RUN && is_argument(o, text) && (chosen < 0 || sources[chosen].id == OPT_PROMPT);
    if (chosen < 0 && !text) {
        if (isatty(STDIN_FILENO))
            MN_FAIL(MN_E_ARG, "there is no text; give one, or -p TEXT, -f FILE, --ids 1,2,3, or a pipe");
        in->what = "the standard input";
        MN_TRY(file_read_input(&in->data, "-", INPUT_LIMIT));
        return refuse_empty(in);
    }
    in->kind = chosen >= 0 ? sources[chosen].kind : INPUT_TEXT;
    if (chosen >= 0) text = option_text(o, sources[chosen].id, "");
    if (in->kind == INPUT_BATCH) { /* its lines are read while earlier ones are computed */
        in->what = text;
        return MN_OK;
    }
    if (chosen >= 0 && sources[chosen].is_file) {
        in->what = text;
        MN_TRY(file_read_input(&in->data, text, INPUT_LIMIT));
    } else {
        in->what = in->kind == INPUT_IDS ? "--ids" : "the text";
        bytes_append_text(&in->data, text);
        if (joins && in->data.n) MN_TRY(join_stdin(in));
    }
    MN_TRY(bytes_status(&in->data));
    return refuse_empty(in);
}

void input_clear(input *in) {
    bytes_clear(&in->data);
    *in = (input){0};
}

/* ---- prompts ---- */

void prompt_clear(prompt *p) {
    mem_free(p->ids);
    *p = (prompt){0};
}

mn_status prompt_from_ids(prompt *p, const char *text, size_t n, const char *what) {
    static const char between[] = ", \t\r\n";
    size_t capacity = 0;
    for (size_t i = 0; i < n;) {
        if (text[i] && strchr(between, text[i])) {
            i++;
            continue;
        }
        size_t start = i;
        int64_t value = 0;
        for (; i < n && text[i] >= '0' && text[i] <= '9' && value <= INT32_MAX; i++)
            value = value * 10 + (text[i] - '0');
        bool ends = i == n || (text[i] && strchr(between, text[i]));
        if (i == start || !ends || value > INT32_MAX) {
            MN_FAIL(MN_E_ARG,
                    "%s: token id number %zu begins '%.*s'; allowed: whole numbers from 0, commas or spaces between",
                    what, p->n + 1, (int)(n - start < 12 ? n - start : 12), text + start);
        }
        MN_TRY(mem_grow(&p->ids, &capacity, p->n + 1, sizeof *p->ids));
        p->ids[p->n++] = (int32_t)value;
    }
    if (p->n == 0) MN_FAIL(MN_E_ARG, "%s holds no token ids", what);
    return MN_OK;
}

static mn_status tokenize_after(prompt *p, const mn_tokenizer *tokenizer, const char *text, size_t n, int flags,
                                const int32_t *held, size_t n_held, size_t *n_kept) {
    int32_t *ids = NULL;
    if (!tokenizer) MN_FAIL(MN_E_UNSUPPORTED, "this model has no tokenizer; give token ids with --ids");
    MN_TRY(mn_tokenize_after(tokenizer, held, n_held, text, n, flags, &ids, &p->n, n_kept));
    p->ids = mem_alloc(p->n + 1, sizeof *p->ids);
    if (p->ids && p->n) memcpy(p->ids, ids, p->n * sizeof *ids);
    mn_free(ids);
    if (!p->ids) return mem_no_memory();
    if (p->n == 0) MN_FAIL(MN_E_ARG, "the text gives no tokens; give another, or token ids with --ids");
    return MN_OK;
}

static mn_status tokenize(prompt *p, const mn_tokenizer *tokenizer, const char *text, size_t n, int flags) {
    return tokenize_after(p, tokenizer, text, n, flags, NULL, 0, NULL);
}

mn_status prompt_from_text(prompt *p, const mn_tokenizer *tokenizer, const char *text, size_t n, bool no_special) {
    return tokenize(p, tokenizer, text, n, no_special ? 0 : MN_ADD_SPECIAL);
}

mn_status prompt_from_text_after(prompt *p, const mn_tokenizer *tokenizer, const char *text, size_t n, bool no_special,
                                 const int32_t *held, size_t n_held, size_t *n_kept) {
    return tokenize_after(p, tokenizer, text, n, no_special ? 0 : MN_ADD_SPECIAL, held, n_held, n_kept);
}

void prompt_set_reasoning(prompt *p, const mn_tokenizer *tokenizer, const template_input *t, const char *text,
                          size_t n) {
    p->reasoning = reasoning_of(mn_chat_template(tokenizer, t->tools.n > 0), text, n);
    p->hides_reasoning = t->hides_reasoning;
}

mn_status prompt_from_messages(prompt *p, const mn_tokenizer *tokenizer, const template_input *t, const char *messages,
                               size_t n) {
    char *text = NULL;
    size_t n_text = 0;
    if (!tokenizer) MN_FAIL(MN_E_UNSUPPORTED, "this model has no tokenizer; give token ids with --ids");
    MN_TRY(template_render(&text, &n_text, tokenizer, t, messages, n, true));
    mn_status status = tokenize(p, tokenizer, text, n_text, 0);
    p->is_chat = true;
    prompt_set_reasoning(p, tokenizer, t, text, n_text);
    mn_free(text);
    return status;
}

mn_status prompt_from_chat(prompt *p, const mn_tokenizer *tokenizer, const template_input *t, const char *system,
                           const char *text, size_t n) {
    size_t valid = utf8_valid_prefix(text, n); /* the JSON writer would replace invalid bytes */
    if (valid < n)
        MN_FAIL(MN_E_ARG, "the text is not UTF-8 at byte %zu (0x%02X)", valid, (unsigned)(unsigned char)text[valid]);
    bytes messages = {0};
    bytes_append_text(&messages, "[");
    if (system) {
        bytes_append_text(&messages, "{\"role\":\"system\",\"content\":");
        json_put_string(&messages, system, strlen(system));
        bytes_append_text(&messages, "},");
    }
    bytes_append_text(&messages, "{\"role\":\"user\",\"content\":");
    json_put_string(&messages, text, n);
    bytes_append_text(&messages, "}]");
    mn_status status = bytes_status(&messages);
    if (status == MN_OK) status = prompt_from_messages(p, tokenizer, t, messages.data, messages.n);
    bytes_clear(&messages);
    return status;
}

mn_status refuse_system(const options *o) {
    bool is_given = option_is_set(o, OPT_SYSTEM) && o->set[OPT_SYSTEM].origin == ORIGIN_FLAG;
    if (!is_given) return MN_OK;
    MN_FAIL(MN_E_ARG,
            "--system is for a text that goes through a chat template; not for --raw, token ids, messages, models "
            "without a template");
}

mn_status prompt_from_input(prompt *p, const options *o, const input *in, const mn_tokenizer *tokenizer,
                            const template_input *t) {
    const char *data = in->data.data;
    bool uses_template = t && !option_on(o, OPT_RAW) && tokenizer && mn_has_chat_template(tokenizer);
    bool is_chat = in->kind == INPUT_TEXT && uses_template;
    if (!is_chat) MN_TRY(refuse_system(o));
    if (!is_chat && in->kind != INPUT_MESSAGES) MN_TRY(template_refuse(o));
    switch (in->kind) {
    case INPUT_IDS: return prompt_from_ids(p, data, in->data.n, in->what);
    case INPUT_MESSAGES: return prompt_from_messages(p, tokenizer, t, data, in->data.n);
    case INPUT_TEXT:
    case INPUT_BATCH: break;
    }
    if (is_chat) return prompt_from_chat(p, tokenizer, t, option_text(o, OPT_SYSTEM, NULL), data, in->data.n);
    return prompt_from_text(p, tokenizer, data, in->data.n, option_on(o, OPT_NO_SPECIAL_TOKENS));
}
