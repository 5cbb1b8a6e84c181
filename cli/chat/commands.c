/* The commands of `mneme chat`. Each is a row: names, argument, help, function. What they say goes to stderr; failures
 * are one sentence, and the conversation is as before.
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"
#include "chat/chat.h"
#include "config.h"
#include "output.h"

typedef struct chat_command_row {
    const char *name, *aliases; /* further names, space between; NULL: none */
    const char *argument, *help;
    mn_status (*run)(chat *c, const char *argument); /* argument: without blanks around; "" when there is none */
} chat_command_row;

static void warn_recomputed(bool is_forgotten) {
    if (is_forgotten)
        chat_note("this cache cannot go back; the tokens that it evicted are computed again with the next message");
}

/* Ids before a message: those when the one before it was complete, or what every conversation begins with. */
static size_t ids_before(chat *c, size_t message) {
    const conversation *t = chat_conversation(c);
    bool is_first = message == 0 || t->messages[message - 1].role == CONVERSATION_SYSTEM;
    return is_first ? conversation_head(t, &c->form) : t->messages[message - 1].n_ids;
}

/* ---- leaving ---- */

static mn_status run_exit(chat *c, const char *argument) {
    (void)argument;
    c->leaves = true;
    return MN_OK;
}

/* ---- going back ---- */

static mn_status run_clear(chat *c, const char *argument) {
    (void)argument;
    conversation *t = chat_conversation(c);
    bool is_forgotten = false;
    size_t head = conversation_head(t, &c->form), keep = conversation_system(t) != NULL;
    while (t->n > keep) conversation_drop_last(t);
    MN_TRY(conversation_crop(t, head, &is_forgotten));
    if (is_forgotten) MN_TRY(conversation_crop(t, 0, &is_forgotten));
    chat_note(keep ? "the conversation begins anew; the system message stays" : "the conversation begins anew");
    return MN_OK;
}

/* The last exchange: MN_E_ARG when there is none. */
static mn_status find_exchange(chat *c, size_t *question, const char *what) {
    conversation *t = chat_conversation(c);
    *question = conversation_last_question(t);
    if (*question == t->n) MN_FAIL(MN_E_ARG, "there is nothing to %s yet; write a message first", what);
    return MN_OK;
}

static mn_status run_undo(chat *c, const char *argument) {
    (void)argument;
    conversation *t = chat_conversation(c);
    size_t question = 0;
    bool is_forgotten = false;
    MN_TRY(find_exchange(c, &question, "take back"));
    size_t keep = ids_before(c, question);
    while (t->n > question) conversation_drop_last(t);
    MN_TRY(conversation_crop(t, keep, &is_forgotten));
    chat_note("the last turn is taken back; %zu messages are left", t->n);
    warn_recomputed(is_forgotten);
    return MN_OK;
}

/* Replaces the messages from `first` on by the answer to a new question (NULL: to the old one). Where no answer comes,
 * the old messages come back. */
static mn_status regenerate(chat *c, size_t first, const char *question) {
    conversation *t = chat_conversation(c);
    bool is_forgotten = false;
    enum { MOST = 2 }; /* a question and its answer */
    conversation_message old[MOST];
    size_t n_old = t->n - first, keep = question ? ids_before(c, first) : t->messages[first].n_ids;
    if (n_old > MOST) n_old = MOST;
    memcpy(old, t->messages + first, n_old * sizeof *old);
    t->n = first;
    mn_status status = conversation_add(t, CONVERSATION_USER, question ? question : old[0].text.data,
                                        question ? strlen(question) : old[0].text.n);
    if (status == MN_OK) status = conversation_crop(t, keep, &is_forgotten);
    if (status == MN_OK) {
        if (!question) t->messages[first].n_ids = old[0].n_ids;
        chat_answer(c, question == NULL);
    }
    bool is_answered = t->n == first + MOST;
    while (!is_answered && t->n > first) conversation_drop_last(t);
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].n_ids > t->n_ids) old[i].n_ids = t->n_ids;
        if (is_answered) {
            bytes_clear(&old[i].text);
        } else {
            t->messages[t->n++] = old[i]; /* there was room for them before */
        }
    }
    if (!is_answered && status == MN_OK) chat_note("no answer came; the last turn is as it was");
    return status;
}

static bool samples(const chat *c) {
    char *sample = mn_generation_config_get(c->config, "do_sample");
    bool is_true = sample && strcmp(sample, "true") == 0;
    mn_free(sample);
    return is_true;
}

static mn_status run_regen(chat *c, const char *argument) {
    (void)argument;
    size_t question = 0;
    MN_TRY(find_exchange(c, &question, "answer anew"));
    if (!samples(c))
        chat_note("answers are the most likely ones, so this one will be the same; /set do_sample=true draws others");
    return regenerate(c, question, NULL);
}

static mn_status run_edit(chat *c, const char *argument) {
    size_t question = 0;
    MN_TRY(find_exchange(c, &question, "edit"));
    if (*argument) return regenerate(c, question, argument);
    if (!line_can_edit(c->reader)) MN_FAIL(MN_E_ARG, "the new text of the last message is missing: /edit TEXT");
    const bytes *text = &chat_conversation(c)->messages[question].text;
    bytes_clear(&c->next);
    bytes_append_text(&c->next, "/edit ");
    bytes_append(&c->next, text->data, text->n);
    return bytes_status(&c->next);
}

/* ---- branches ---- */

static size_t find_conversation(const chat *c, const char *name) {
    size_t i = 0;
    while (i < c->n_conversations && strcmp(c->conversations[i].name, name) != 0) i++;
    return i;
}

static mn_status run_fork(chat *c, const char *argument) {
    char name[32];
    for (size_t i = c->n_conversations + 1; i <= 2 * c->n_conversations + 1; i++) { /* one of these is free */
        snprintf(name, sizeof name, "%zu", i);
        if (find_conversation(c, name) == c->n_conversations) break;
    }
    if (!*argument) argument = name;
    if (find_conversation(c, argument) < c->n_conversations)
        MN_FAIL(MN_E_ARG, "there is a branch '%.60s' already; take another name", argument);
    MN_TRY(mem_grow(&c->conversations, &c->capacity, c->n_conversations + 1, sizeof *c->conversations));
    MN_TRY(conversation_fork(&c->conversations[c->n_conversations], chat_conversation(c), argument));
    c->last_at = c->at;
    c->at = c->n_conversations++;
    chat_note("a second branch '%s' goes on from here; /switch %s goes back", argument,
              c->conversations[c->last_at].name);
    return MN_OK;
}

static mn_status run_switch(chat *c, const char *argument) {
    size_t to = *argument ? find_conversation(c, argument) : c->last_at;
    if (to == c->n_conversations) {
        const char **names = mem_alloc(c->n_conversations + 1, sizeof *names);
        if (!names) return mem_no_memory();
        for (size_t i = 0; i < c->n_conversations; i++) names[i] = c->conversations[i].name;
        mn_status status = text_unknown("there is no branch", argument, strlen(argument), names, "");
        mem_free(names);
        return status;
    }
    if (c->n_conversations == 1)
        MN_FAIL(MN_E_ARG, "there is one branch only, '%s'; /fork makes another", c->conversations[0].name);
    if (to != c->at) c->last_at = c->at;
    c->at = to;
    const conversation *t = chat_conversation(c);
    chat_note("branch '%s': %zu messages, %zu tokens", t->name, t->n, t->n_ids);
    return MN_OK;
}

/* ---- files ---- */

/* Calls `add` for every field that differs from the model's own, with its value as JSON text. */
static mn_status for_each_change(bytes *b, const chat *c, void (*add)(bytes *b, const char *name, const char *value)) {
    mn_generation_config *plain = NULL;
    MN_TRY(chat_open_config(&plain, c));
    for (int i = 0; mn_generation_field_at(i); i++) {
        const char *name = mn_generation_field_at(i)->name;
        char *value = mn_generation_config_get(c->config, name), *own = mn_generation_config_get(plain, name);
        if (value && own && strcmp(value, own) != 0) add(b, name, value);
        mn_free(value);
        mn_free(own);
    }
    mn_generation_config_close(&plain);
    return bytes_status(b);
}

static void put_member(bytes *b, const char *name, const char *value) {
    bytes_printf(b, "%s\"%s\":%s", b->n > 1 ? "," : "", name, value);
}

static mn_status put_settings(bytes *b, const chat *c) {
    bytes_append_text(b, "{");
    MN_TRY(for_each_change(b, c, put_member));
    bytes_append_text(b, "}");
    return bytes_status(b);
}

mn_status chat_save(chat *c, const char *path) {
    bytes settings = {0};
    mn_status status = put_settings(&settings, c);
    if (status == MN_OK)
        status =
            conversation_save(chat_conversation(c), path, c->e.path, bytes_text(&settings), option_on(c->o, OPT_ZSTD));
    bytes_clear(&settings);
    if (status == MN_OK && c->n_conversations > 1)
        chat_note("saved is branch '%s'; the others are saved one by one", chat_conversation(c)->name);
    return status;
}

static mn_status run_save(chat *c, const char *argument) {
    if (!*argument) MN_FAIL(MN_E_ARG, "the folder is missing: /save FOLDER");
    MN_TRY(chat_save(c, argument));
    const conversation *t = chat_conversation(c);
    chat_note("saved %zu messages and the cache of %lld tokens to '%s'", t->n, (long long)mn_session_length(t->session),
              argument);
    return MN_OK;
}

mn_status chat_load(chat *c, const char *path, bool is_start) {
    const options *o = c->o;
    bool is_set = is_start && (option_is_set(o, OPT_CACHE) || option_is_set(o, OPT_CACHE_CONFIG) ||
                               option_is_set(o, OPT_CACHE_DTYPE));
    conversation loaded = {0};
    char *settings = NULL;
    MN_TRY(conversation_load(&loaded, &settings, c->e.model, path, &c->cache, is_set));
    mn_status status = conversation_set_name(&loaded, chat_conversation(c)->name);
    if (status == MN_OK) status = chat_apply_settings(c, settings, is_start);
    mem_free(settings);
    if (status != MN_OK) {
        conversation_clear(&loaded);
        return status_in_file(status, path);
    }
    conversation_clear(chat_conversation(c));
    *chat_conversation(c) = loaded;
    return MN_OK;
}

static mn_status run_load(chat *c, const char *argument) {
    if (!*argument) MN_FAIL(MN_E_ARG, "the folder is missing: /load FOLDER, one that /save wrote");
    MN_TRY(chat_load(c, argument, false));
    const conversation *t = chat_conversation(c);
    chat_note("loaded %zu messages and the cache of %lld tokens", t->n, (long long)mn_session_length(t->session));
    return MN_OK;
}

/* ---- settings ---- */

static bool is_exact_form(const char *codec) {
    return strcmp(codec, "f32") == 0 || strcmp(codec, "bf16") == 0;
}

/* Of a quantized cache: how many tokens are not quantized yet, in the first layer that is. */
static void print_exact(const mn_session *session) {
    mn_layer_info layer = {.size = sizeof layer};
    for (int i = 0; mn_session_layer(session, i, &layer) == MN_OK; i++) {
        bool is_exact = is_exact_form(layer.key_codec) && is_exact_form(layer.value_codec);
        if (is_exact || strcmp(layer.kind, "self") != 0) continue;
        /* The first tokens stay exact; while their page is held they count as quantized, too. */
        int64_t first = layer.first_exact < layer.tokens ? layer.first_exact : layer.tokens,
                others = layer.tokens - (layer.first_held > first ? layer.first_held : first),
                quantized = layer.quantized_tokens;
        if (layer.first_held < first) quantized = quantized > first ? quantized - first : 0;
        int64_t held = first + others, exact = held - quantized;
        if (exact > 0)
            print_error_text("  %lld of these tokens (%lld %%) are still exact: %s, and memory shrinks then\n",
                             (long long)exact, (long long)(exact * 100 / held),
                             strcmp(layer.key_codec, "mneme") == 0
                                 ? "whole pages are quantized, when they are residual_length tokens old"
                                 : "they are quantized when there are residual_length of them");
        return;
    }
}

static void print_cache(chat *c) {
    mn_cache_info info = {.size = sizeof info};
    mn_layer_info layer = {.size = sizeof layer};
    const mn_session *session = chat_conversation(c)->session;
    if (mn_session_cache(session, &info) != MN_OK) return;
    print_error_text("%s cache (%s): %lld tokens in %.2f MiB", info.implementation, info.dtype, (long long)info.tokens,
                     (double)info.bytes / (1 << 20));
    if (info.offloaded_bytes) print_error_text(", %.2f MiB of it offloaded", (double)info.offloaded_bytes / (1 << 20));
    print_error_text(", peak %.2f MiB, full pages take %llu bytes per token", (double)info.peak_bytes / (1 << 20),
                     (unsigned long long)info.bytes_per_token);
    if (info.seen > info.tokens) print_error_text(", %lld seen", (long long)info.seen);
    if (info.limit) print_error_text(", room for %lld tokens", (long long)info.limit);
    if (mn_session_layer(session, 0, &layer) == MN_OK && layer.window_length)
        print_error_text(", window of %lld, the first %lld kept", (long long)layer.window_length,
                         (long long)layer.first_exact);
    print_error_text("\n");
    print_exact(session);
}

/* A session of these options in place of one that holds nothing. */
static mn_status reopen(chat *c, const mn_cache_options *how) {
    mn_session *session = NULL;
    MN_TRY(mn_session_open(&session, c->e.model, how));
    mn_session_close(&chat_conversation(c)->session);
    chat_conversation(c)->session = session;
    return MN_OK;
}

/* A window that has dropped tokens has to stay: the message gets the command that keeps it, where there is one. */
static mn_status name_windowed(const mn_session *session, const mn_cache_options *how, mn_status status) {
    char failure[256], name[128], config[256];
    mn_cache_info info = {.size = sizeof info};
    mn_layer_info layer = {.size = sizeof layer}, widest = {0};
    snprintf(failure, sizeof failure, "%s", mn_last_error());
    for (int i = 0; mn_session_layer(session, i, &layer) == MN_OK; i++) {
        if (layer.window_length > widest.window_length) widest = layer;
    }
    bool is_windowed = mn_session_cache(session, &info) == MN_OK && info.has_unbounded_context && widest.window_length;
    if (is_windowed && !strstr(info.implementation, "quantized")) { /* whose numbers would be needed as well */
        mn_cache_options both = *how;
        both.implementation = name;
        both.config = config;
        snprintf(name, sizeof name, "%.60s+%.60s", info.implementation, how->implementation);
        size_t used = (size_t)snprintf(config, sizeof config, "window_length=%lld", (long long)widest.window_length);
        if (widest.first_exact)
            used += (size_t)snprintf(config + used, sizeof config - used, ",num_sink_tokens=%lld",
                                     (long long)widest.first_exact);
        if (how->config) snprintf(config + used, sizeof config - used, ",%s", how->config);
        if (mn_cache_check(&both, NULL) == MN_OK)
            return status_fail(status, "%s; `/cache %s %s` keeps the window", failure, name, config);
    }
    return status_fail(status, "%s", failure);
}

static mn_status run_cache(chat *c, const char *argument) {
    if (*argument) {
        size_t n = strcspn(argument, " \t");
        const char *config = argument + n + strspn(argument + n, " \t");
        char *name = mem_copy_text(argument, n);
        if (!name) return mem_no_memory();
        mn_cache_options how;
        mn_cache_options_init(&how, sizeof how);
        mn_cache_summary summary = {0};
        how.implementation = name;
        how.config = *config ? config : NULL;
        how.dtype = c->cache.dtype;
        how.on_oom = c->cache.on_oom;
        mn_session *session = chat_conversation(c)->session;
        mn_status status = cache_resolve(&how, &summary);
        if (status == MN_OK && summary.preallocates && how.max_cache_len <= 0)
            how.max_cache_len = c->e.info.max_position_embeddings;
        if (status == MN_OK)
            status = mn_session_length(session) ? mn_session_set_cache(session, &how) : reopen(c, &how);
        if (status == MN_E_UNSUPPORTED) status = name_windowed(session, &how, status);
        mem_free(name);
        MN_TRY(status);
    }
    print_cache(c);
    return MN_OK;
}

static void put_line(bytes *b, const char *name, const char *value) {
    bytes_printf(b, "  %s=%s\n", name, value);
}

static mn_status print_settings(const chat *c) {
    bytes lines = {0};
    mn_status status = for_each_change(&lines, c, put_line);
    if (status == MN_OK) print_error_text("%s", lines.n ? bytes_text(&lines) : "  (no setting was changed)\n");
    bytes_clear(&lines);
    return status;
}

static mn_status run_set(chat *c, const char *argument) {
    char name[64];
    size_t n = strcspn(argument, "= \t"), at = n + strspn(argument + n, " \t");
    bool turned = false; /* sampling on or off */
    if (!*argument) return print_settings(c);
    if (n >= sizeof name) n = sizeof name - 1;
    memcpy(name, argument, n);
    name[n] = 0;
    if (argument[at] == '=') {
        at++;
        const bool sampled = samples(c);
        MN_TRY(generation_set(c->config, name, argument + at + strspn(argument + at, " \t"), &c->sampling_is_named));
        turned = samples(c) != sampled;
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        how.session = chat_conversation(c)->session;
        if (generation_warn(c->config, &how, &c->warned) != MN_OK) chat_note("as it stands, %s", mn_last_error());
    } else if (argument[at]) {
        MN_FAIL(MN_E_ARG, "'%.60s' sets nothing; write /set name=value, as /set temperature=0.7", argument);
    }
    int field = generation_flag(name);
    char *value = field >= 0 ? mn_generation_config_get(c->config, mn_generation_field_at(field)->name) : NULL;
    if (value) print_error_text("  %s=%s\n", mn_generation_field_at(field)->name, value);
    if (turned && field != generation_field("do_sample"))
        print_error_text("  do_sample=%s\n", samples(c) ? "true" : "false");
    bool is_shown = value != NULL || argument[at];
    mn_free(value);
    return is_shown ? MN_OK
                    : generation_set(c->config, name, "null", &c->sampling_is_named); /* tells what there is instead */
}

static mn_status run_system(chat *c, const char *argument) {
    conversation *t = chat_conversation(c);
    const conversation_message *old = conversation_system(t);
    if (!*argument) {
        print_error_text("  %.*s\n", old ? (int)old->text.n : 21, old ? old->text.data : "(no system message)");
        return MN_OK;
    }
    bool is_none = strcmp(argument, "none") == 0;
    MN_TRY(conversation_set_system(t, is_none ? NULL : argument, strlen(argument)));
    chat_note(is_none ? "the conversation has no system message now" : "that is the system message from now on");
    if (t->n_ids && t->n > !is_none) chat_note("the conversation is computed again with the next message");
    return MN_OK;
}

static mn_status run_stats(chat *c, const char *argument) {
    (void)argument;
    if (!c->last.finish) {
        print_error_text("  no turn yet\n");
    } else {
        chat_print_stats(c);
        print_error_text("  all turns (%zu): %zu prompt tokens, %zu of them cached, %zu new; last seed %llu\n",
                         c->n_turns, c->n_prompt, c->n_cached, c->n_new, (unsigned long long)c->last.seed);
    }
    for (size_t i = 0; c->n_conversations > 1 && i < c->n_conversations; i++)
        print_error_text("%c %s: %zu messages, %zu tokens\n", i == c->at ? '*' : ' ', c->conversations[i].name,
                         c->conversations[i].n, c->conversations[i].n_ids);
    print_cache(c);
    return MN_OK;
}

/* ---- the table ---- */

static mn_status run_help(chat *c, const char *argument);

static const chat_command_row rows[] = {
    {"help", "?", "", "this list", run_help},
    {"clear", NULL, "", "begin anew; the system message stays", run_clear},
    {"undo", NULL, "", "take the last turn back; crops the cache", run_undo},
    {"regen", NULL, "", "answer the last message anew, other seed", run_regen},
    {"edit", NULL, "[TEXT]", "replace the last message and answer it", run_edit},
    {"save", NULL, "FOLDER", "write text, settings and cache", run_save},
    {"load", NULL, "FOLDER", "go on with a saved conversation at once", run_load},
    {"fork", NULL, "[NAME]", "a second branch from here, pages shared", run_fork},
    {"switch", NULL, "[NAME]", "to another branch, or the one before", run_switch},
    {"cache", NULL, "[NAME [k=v,...]]", "show the cache, or change its kind in place", run_cache},
    {"set", NULL, "[name=value]", "show or change settings, named as flags", run_set},
    {"system", NULL, "[TEXT|none]", "show or change the system message", run_system},
    {"stats", NULL, "", "tokens, cached tokens, speed, cache", run_stats},
    {"exit", "quit bye", "", "leave", run_exit},
    {0},
};

static mn_status run_help(chat *c, const char *argument) {
    (void)c, (void)argument;
    for (int i = 0; rows[i].name; i++) {
        char left[64];
        snprintf(left, sizeof left, "/%s%s%s", rows[i].name, *rows[i].argument ? " " : "", rows[i].argument);
        print_error_text("  %-26s %s\n", left, rows[i].help);
    }
    print_error_text("  Several lines: between \"\"\" and \"\"\", or \\ at a line's end, or pasted.\n"
                     "  Ctrl-C stops an answer and keeps what there is; Ctrl-D leaves; ! is as /.\n");
    return MN_OK;
}

static bool has_name(const chat_command_row *row, const char *name, size_t n) {
    if (strlen(row->name) == n && strncmp(row->name, name, n) == 0) return true;
    for (const char *at = row->aliases; at && *at; at += strcspn(at, " "), at += *at == ' ') {
        if (strcspn(at, " ") == n && strncmp(at, name, n) == 0) return true;
    }
    return false;
}

static mn_status unknown_command(const char *name, size_t n) {
    enum { MOST = 32 };
    const char *names[MOST];
    char word[32];
    size_t count = 0;
    for (; rows[count].name && count + 1 < MOST; count++) names[count] = rows[count].name;
    names[count] = NULL;
    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), name);
    const char *near = text_nearest(word, names);
    if (near) MN_FAIL(MN_E_ARG, "unknown command '/%s'; did you mean /%s?", word, near);
    MN_FAIL(MN_E_ARG, "unknown command '/%s'; /help lists all commands", word);
}

bool chat_command(chat *c, const char *line, size_t n) {
    if (n < 2 || (line[0] != '/' && line[0] != '!')) return false;
    size_t word = 1;
    while (word < n && (isalpha((unsigned char)line[word]) || line[word] == '?')) word++;
    /* "/usr/lib is full" and "! what a day" are no commands. */
    if (word == 1 || (word < n && !isspace((unsigned char)line[word]))) return false;
    size_t from = word, to = n;
    while (from < to && isspace((unsigned char)line[from])) from++;
    while (to > from && isspace((unsigned char)line[to - 1])) to--;
    char *argument = mem_copy_text(line + from, to - from);
    mn_status status = argument ? MN_OK : mem_no_memory();
    for (int i = 0; status == MN_OK; i++) {
        if (!rows[i].name) {
            status = unknown_command(line + 1, word - 1);
        } else if (has_name(&rows[i], line + 1, word - 1)) {
            bool takes_it = *rows[i].argument || !*argument; /* a pasted text may begin like a command */
            status = takes_it ? rows[i].run(c, argument)
                              : status_fail(MN_E_ARG, "/%s stands alone on its line", rows[i].name);
            break;
        }
    }
    mem_free(argument);
    if (status != MN_OK) report(c->o, exit_of(status), NULL);
    return true;
}
