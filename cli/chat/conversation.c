/* SPDX-License-Identifier: Apache-2.0 */
#include "chat/conversation.h"

#include <string.h>

#include "base/utf8.h"

const char *const conversation_role_names[N_CONVERSATION_ROLES] = {
    [CONVERSATION_SYSTEM] = "system", [CONVERSATION_USER] = "user", [CONVERSATION_ASSISTANT] = "assistant"};

/* The heads of plain turns, for models without a chat template. */
static const char *const plain_heads[N_CONVERSATION_ROLES] = {
    [CONVERSATION_SYSTEM] = "", [CONVERSATION_USER] = "User: ", [CONVERSATION_ASSISTANT] = "Assistant:"};
const char conversation_plain_stop[] = "\nUser:";

/* ---- messages ---- */

mn_status conversation_set_name(conversation *t, const char *name) {
    char *copy = mem_copy_text(name, strlen(name));
    if (!copy) return mem_no_memory();
    mem_free(t->name);
    t->name = copy;
    return MN_OK;
}

void conversation_clear(conversation *t) {
    while (t->n) conversation_drop_last(t);
    mem_free(t->messages);
    mem_free(t->ids);
    mem_free(t->name);
    mn_session_close(&t->session);
    *t = (conversation){0};
}

static mn_status check_text(const char *text, size_t n) {
    if (n == 0) MN_FAIL(MN_E_ARG, "the message is empty; write one");
    size_t valid = utf8_valid_prefix(text, n); /* JSON would replace what is not */
    if (valid < n)
        MN_FAIL(MN_E_ARG, "the message is not UTF-8 at byte %zu (0x%02X)", valid, (unsigned)(unsigned char)text[valid]);
    return MN_OK;
}

mn_status conversation_add(conversation *t, conversation_role role, const char *text, size_t n) {
    if (role != CONVERSATION_ASSISTANT || n) MN_TRY(check_text(text, n));
    MN_TRY(mem_grow(&t->messages, &t->capacity, t->n + 1, sizeof *t->messages));
    conversation_message message = {.role = role};
    bytes_append(&message.text, text, n);
    mn_status status = bytes_status(&message.text);
    if (status == MN_OK) t->messages[t->n++] = message;
    return status;
}

void conversation_drop_last(conversation *t) {
    bytes_clear(&t->messages[--t->n].text);
}

const conversation_message *conversation_system(const conversation *t) {
    return t->n && t->messages[0].role == CONVERSATION_SYSTEM ? &t->messages[0] : NULL;
}

mn_status conversation_set_system(conversation *t, const char *text, size_t n) {
    bool is_there = conversation_system(t) != NULL;
    if (text) {
        MN_TRY(conversation_add(t, CONVERSATION_SYSTEM, text, n));
        conversation_message message = t->messages[--t->n];
        if (is_there) {
            bytes_clear(&t->messages[0].text);
        } else {
            memmove(t->messages + 1, t->messages, t->n++ * sizeof *t->messages);
        }
        t->messages[0] = message;
    } else if (is_there) {
        bytes_clear(&t->messages[0].text);
        memmove(t->messages, t->messages + 1, --t->n * sizeof *t->messages);
    }
    return MN_OK;
}

size_t conversation_last_question(const conversation *t) {
    for (size_t i = t->n; i > 0; i--) {
        if (t->messages[i - 1].role == CONVERSATION_USER) return i - 1;
    }
    return t->n;
}

/* ---- text ---- */

static mn_status render_template(bytes *out, const conversation_message *messages, size_t n,
                                 const conversation_form *form) {
    bytes list = {0};
    char *text = NULL;
    size_t n_text = 0;
    bytes_append_text(&list, "[");
    for (size_t i = 0; i < n; i++) {
        bytes_printf(&list, "%s{\"role\":\"%s\",\"content\":", i ? "," : "", conversation_role_names[messages[i].role]);
        json_put_string(&list, messages[i].text.data, messages[i].text.n);
        bytes_append_text(&list, "}");
    }
    bytes_append_text(&list, "]");
    mn_status status = bytes_status(&list);
    if (status == MN_OK)
        status = template_render(&text, &n_text, form->tokenizer, &form->template, list.data, list.n, true);
    if (status == MN_OK) bytes_append(out, text, n_text);
    mn_free(text);
    bytes_clear(&list);
    return status == MN_OK ? bytes_status(out) : status;
}

static mn_status render_plain(bytes *out, const conversation_message *messages, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bytes_append_text(out, plain_heads[messages[i].role]);
        bytes_append(out, messages[i].text.data, messages[i].text.n);
        bytes_append_text(out, "\n");
    }
    bytes_append_text(out, plain_heads[CONVERSATION_ASSISTANT]);
    return bytes_status(out);
}

/* The ids of messages[n] behind those held; a template writes its own special tokens, plain text gets the
 * tokenizer's. */
static mn_status tokenize_all(prompt *p, const conversation_message *messages, size_t n, const conversation_form *form,
                              const int32_t *held, size_t n_held, size_t *n_kept) {
    bytes text = {0};
    mn_status status =
        form->use_template ? render_template(&text, messages, n, form) : render_plain(&text, messages, n);
    if (status == MN_OK)
        status =
            prompt_from_text_after(p, form->tokenizer, text.data, text.n, form->use_template, held, n_held, n_kept);
    p->is_chat = true;
    if (status == MN_OK && form->use_template)
        prompt_set_reasoning(p, form->tokenizer, &form->template, text.data, text.n);
    bytes_clear(&text);
    return status;
}

/* ---- ids held and ids new ---- */

size_t conversation_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* The ids held, as far as their text is that of the messages, and behind them those of the rest. *n_kept: how many of
 * those held it begins with. */
static mn_status conversation_ids(prompt *p, size_t *n_kept, const conversation *t, const conversation_form *form) {
    mn_status status = tokenize_all(p, t->messages, t->n, form, t->ids, t->n_ids, n_kept);
    if (status != MN_OK) prompt_clear(p);
    return status;
}

mn_status conversation_prompt(prompt *p, const conversation *t, const conversation_form *form) {
    size_t n_kept = 0;
    return conversation_ids(p, &n_kept, t, form);
}

mn_status conversation_keep(conversation *t, const prompt *p, const int32_t *answer, size_t n_answer) {
    size_t common = conversation_common(t->ids, t->n_ids, p->ids, p->n);
    MN_TRY(mem_grow(&t->ids, &t->ids_capacity, p->n + n_answer, sizeof *t->ids));
    for (size_t i = 0; i < t->n; i++) {
        if (t->messages[i].n_ids > common) t->messages[i].n_ids = common;
    }
    memcpy(t->ids, p->ids, p->n * sizeof *t->ids);
    memcpy(t->ids + p->n, answer, n_answer * sizeof *t->ids);
    t->n_ids = p->n + n_answer;
    t->messages[t->n - 1].n_ids = p->n;
    return MN_OK;
}

/* How many ids held the next prompt will begin with; 0 when it cannot be rendered. */
static size_t count_kept(const conversation *t, const conversation_form *form) {
    prompt p = {0};
    size_t n = 0;
    if (conversation_ids(&p, &n, t, form) != MN_OK) n = 0;
    prompt_clear(&p);
    return n;
}

static size_t blanks(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && (text[i] == ' ' || text[i] == '\n')) i++;
    return i;
}

/* The blanks that an answer begins with where it stands: the text of its ids alone may lack a space, by the tokenizer's
 * rules. */
static void put_own_blanks(bytes *out, const conversation *t, const conversation_form *form, size_t n_prompt) {
    char *before = NULL, *all = NULL;
    size_t n_before = 0, n_all = 0;
    if (mn_detokenize(form->tokenizer, t->ids, n_prompt, 0, &before, &n_before) == MN_OK &&
        mn_detokenize(form->tokenizer, t->ids, t->n_ids, 0, &all, &n_all) == MN_OK && n_all > n_before)
        bytes_append(out, all + n_before, blanks(all + n_before, n_all - n_before));
    mn_free(before);
    mn_free(all);
}

mn_status conversation_add_answer(conversation *t, const conversation_form *form, const char *text, size_t n) {
    size_t n_prompt = t->messages[t->n - 1].n_ids, n_blank = blanks(text, n), best = 0;
    bytes ways[3] = {{0}}; /* as it is; with its own blanks in front; without any */
    bytes_append(&ways[0], text, n);
    put_own_blanks(&ways[1], t, form, n_prompt);
    bytes_append(&ways[1], text + n_blank, n - n_blank);
    bytes_append(&ways[2], text + n_blank, n - n_blank);
    bool failed = ways[0].failed || ways[1].failed || ways[2].failed;
    mn_status status = failed ? mem_no_memory() : conversation_add(t, CONVERSATION_ASSISTANT, "", 0);
    conversation_message *answer = &t->messages[t->n - 1];
    size_t chosen = 0;
    for (size_t i = 0; status == MN_OK && i < 3 && best + 1 < t->n_ids;
         i++) { /* one less: an end token need not be in the text */
        answer->text = ways[i];
        size_t n_kept = i == 0 || ways[i].n != ways[0].n ? count_kept(t, form) : 0;
        if (n_kept <= best) continue;
        best = n_kept;
        chosen = i;
    }
    if (status == MN_OK) {
        *answer = (conversation_message){.role = CONVERSATION_ASSISTANT, .text = ways[chosen], .n_ids = t->n_ids};
        ways[chosen] = (bytes){0};
    }
    for (int i = 0; i < 3; i++) bytes_clear(&ways[i]);
    return status;
}

size_t conversation_head(const conversation *t, const conversation_form *form) {
    const conversation_message *system = conversation_system(t);
    prompt p[2] = {{0}};
    size_t n = 0, n_kept;
    bool rendered = true;
    for (int i = 0; i < 2 && rendered; i++) {
        conversation_message first[2] = {system ? *system : (conversation_message){0}};
        conversation_message *user = &first[system != NULL];
        *user = (conversation_message){.role = CONVERSATION_USER};
        bytes_append_text(&user->text, i ? "1" : "?");
        rendered = tokenize_all(&p[i], first, system ? 2 : 1, form, NULL, 0, &n_kept) == MN_OK;
        bytes_clear(&user->text);
    }
    if (rendered) n = conversation_common(p[0].ids, p[0].n, p[1].ids, p[1].n);
    if (rendered) n = conversation_common(t->ids, t->n_ids, p[0].ids, n);
    prompt_clear(&p[0]);
    prompt_clear(&p[1]);
    return n;
}

mn_status conversation_crop(conversation *t, size_t n, bool *is_forgotten) {
    *is_forgotten = false;
    if (n < t->n_ids) t->n_ids = n;
    for (size_t i = 0; i < t->n; i++) {
        if (t->messages[i].n_ids > n) t->messages[i].n_ids = n;
    }
    if ((size_t)mn_session_length(t->session) <= n) return MN_OK;
    mn_status status = mn_session_truncate(t->session, (int64_t)n);
    *is_forgotten = status == MN_E_UNSUPPORTED;
    return *is_forgotten ? MN_OK : status;
}

/* ---- a second branch ---- */

mn_status conversation_fork(conversation *fork, const conversation *t, const char *name) {
    *fork = (conversation){0};
    mn_status status = conversation_set_name(fork, name);
    for (size_t i = 0; status == MN_OK && i < t->n; i++) {
        status = conversation_add(fork, t->messages[i].role, t->messages[i].text.data, t->messages[i].text.n);
        if (status == MN_OK) fork->messages[i].n_ids = t->messages[i].n_ids;
    }
    if (status == MN_OK) status = mem_grow(&fork->ids, &fork->ids_capacity, t->n_ids, sizeof *fork->ids);
    if (status == MN_OK && t->n_ids) memcpy(fork->ids, t->ids, t->n_ids * sizeof *fork->ids);
    fork->n_ids = t->n_ids;
    if (status == MN_OK) status = mn_session_fork(&fork->session, t->session);
    if (status != MN_OK) conversation_clear(fork);
    return status;
}
