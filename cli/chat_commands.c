/* The commands of `mneme chat`. Each is a row: names, argument, help, function. What they say goes to stderr; failures are one
 * sentence, and the talk is as before. SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"
#include "chat.h"
#include "config.h"
#include "output.h"

typedef struct chat_command_row {
    const char *name, *aliases; /* further names, space between; NULL: none */
    const char *argument, *help;
    mn_status (*run)(chat *c,
                     const char *argument); /* argument: without blanks around; "" when there is none */
} chat_command_row;

static void forgotten(bool is_forgotten) {
    if (is_forgotten)
        chat_note("this cache cannot go back; what it has forgotten is computed again with the next message");
}

/* Ids before a message: those when the one before it was complete, or what every talk begins with. */
static size_t ids_before(chat *c, size_t message) {
    const talk *t = chat_talk(c);
    bool is_first = message == 0 || t->messages[message - 1].role == TALK_SYSTEM;
    return is_first ? talk_head(t, &c->form) : t->messages[message - 1].n_ids;
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
    talk *t = chat_talk(c);
    bool is_forgotten = false;
    size_t head = talk_head(t, &c->form), keep = talk_system(t) != NULL;
    while (t->n > keep) talk_drop_last(t);
    MN_TRY(talk_crop(t, head, &is_forgotten));
    if (is_forgotten) MN_TRY(talk_crop(t, 0, &is_forgotten));
    chat_note(keep ? "the talk begins anew; the system message stays" : "the talk begins anew");
    return MN_OK;
}

/* The last exchange: MN_E_ARG when there is none. */
static mn_status find_exchange(chat *c, size_t *question, const char *what) {
    talk *t = chat_talk(c);
    *question = talk_last_question(t);
    if (*question == t->n) MN_FAIL(MN_E_ARG, "there is nothing to %s yet; say something first", what);
    return MN_OK;
}

static mn_status run_undo(chat *c, const char *argument) {
    (void)argument;
    talk *t = chat_talk(c);
    size_t question = 0;
    bool is_forgotten = false;
    MN_TRY(find_exchange(c, &question, "take back"));
    size_t keep = ids_before(c, question);
    while (t->n > question) talk_drop_last(t);
    MN_TRY(talk_crop(t, keep, &is_forgotten));
    chat_note("the last turn is taken back; %zu messages are left", t->n);
    forgotten(is_forgotten);
    return MN_OK;
}

/* Replaces the messages from `first` on by the answer to a new question (NULL: to the old one). Where no answer comes, the old
 * messages come back. */
static mn_status answer_anew(chat *c, size_t first, const char *question) {
    talk *t = chat_talk(c);
    bool is_forgotten = false;
    enum { MOST = 2 }; /* a question and its answer */
    talk_message old[MOST];
    size_t n_old = t->n - first, keep = question ? ids_before(c, first) : t->messages[first].n_ids;
    if (n_old > MOST) n_old = MOST;
    memcpy(old, t->messages + first, n_old * sizeof *old);
    t->n = first;
    mn_status status = talk_add(t, TALK_USER, question ? question : old[0].text.data,
                                question ? strlen(question) : old[0].text.n);
    if (status == MN_OK) status = talk_crop(t, keep, &is_forgotten);
    if (status == MN_OK) {
        if (!question) t->messages[first].n_ids = old[0].n_ids;
        chat_answer(c, question == NULL);
    }
    bool is_answered = t->n == first + MOST;
    while (!is_answered && t->n > first) talk_drop_last(t);
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

static mn_status run_regen(chat *c, const char *argument) {
    (void)argument;
    size_t question = 0;
    MN_TRY(find_exchange(c, &question, "answer anew"));
    char *sample = mn_generation_config_get(c->config, "do_sample");
    if (sample && strcmp(sample, "false") == 0)
        chat_note(
            "answers are the most likely ones, so this one will be the same; /set do_sample=true draws others");
    mn_free(sample);
    return answer_anew(c, question, NULL);
}

static mn_status run_edit(chat *c, const char *argument) {
    size_t question = 0;
    MN_TRY(find_exchange(c, &question, "edit"));
    if (*argument) return answer_anew(c, question, argument);
    if (!line_can_edit(c->reader))
        MN_FAIL(MN_E_ARG, "say what the last message should have been: /edit TEXT");
    const bytes *text = &chat_talk(c)->messages[question].text;
    bytes_clear(&c->next);
    bytes_append_text(&c->next, "/edit ");
    bytes_append(&c->next, text->data, text->n);
    return bytes_status(&c->next);
}

/* ---- timelines ---- */

static size_t find_talk(const chat *c, const char *name) {
    size_t i = 0;
    while (i < c->n_talks && strcmp(c->talks[i].name, name) != 0) i++;
    return i;
}

static mn_status run_fork(chat *c, const char *argument) {
    char name[32];
    for (size_t i = c->n_talks + 1; i <= 2 * c->n_talks + 1; i++) { /* one of these is free */
        snprintf(name, sizeof name, "%zu", i);
        if (find_talk(c, name) == c->n_talks) break;
    }
    if (!*argument) argument = name;
    if (find_talk(c, argument) < c->n_talks)
        MN_FAIL(MN_E_ARG, "there is a timeline '%.60s' already; take another name", argument);
    MN_TRY(mem_grow(&c->talks, &c->capacity, c->n_talks + 1, sizeof *c->talks));
    MN_TRY(talk_fork(&c->talks[c->n_talks], chat_talk(c), argument));
    c->last_at = c->at;
    c->at = c->n_talks++;
    chat_note("a second timeline '%s' goes on from here; /switch %s goes back", argument,
              c->talks[c->last_at].name);
    return MN_OK;
}

static mn_status run_switch(chat *c, const char *argument) {
    size_t to = *argument ? find_talk(c, argument) : c->last_at;
    if (to == c->n_talks) {
        const char **names = mem_alloc(c->n_talks + 1, sizeof *names);
        if (!names) return mem_no_memory();
        for (size_t i = 0; i < c->n_talks; i++) names[i] = c->talks[i].name;
        mn_status status = text_unknown("there is no timeline", argument, strlen(argument), names, "");
        mem_free(names);
        return status;
    }
    if (c->n_talks == 1)
        MN_FAIL(MN_E_ARG, "there is one timeline only, '%s'; /fork makes another", c->talks[0].name);
    if (to != c->at) c->last_at = c->at;
    c->at = to;
    const talk *t = chat_talk(c);
    chat_note("timeline '%s': %zu messages, %zu tokens", t->name, t->n, t->n_ids);
    return MN_OK;
}

/* ---- files ---- */

/* Fields that differ from the model's own, as JSON. */
static mn_status put_settings(bytes *b, const chat *c) {
    mn_generation_config *plain = NULL;
    MN_TRY(mn_generation_config_open(&plain, c->e.model));
    const mn_generation_field *fields = mn_generation_fields();
    bytes_append_text(b, "{");
    for (int i = 0; fields[i].name; i++) {
        char *value = mn_generation_config_get(c->config, fields[i].name),
             *own = mn_generation_config_get(plain, fields[i].name);
        if (value && own && strcmp(value, own) != 0)
            bytes_printf(b, "%s\"%s\":%s", b->n > 1 ? "," : "", fields[i].name, value);
        mn_free(value);
        mn_free(own);
    }
    bytes_append_text(b, "}");
    mn_generation_config_close(&plain);
    return bytes_status(b);
}

mn_status chat_save(chat *c, const char *path) {
    bytes settings = {0};
    mn_status status = put_settings(&settings, c);
    if (status == MN_OK)
        status = talk_save(chat_talk(c), path, c->e.path, bytes_text(&settings), option_on(c->o, OPT_ZSTD));
    bytes_clear(&settings);
    if (status == MN_OK && c->n_talks > 1)
        chat_note("saved is timeline '%s'; the others are saved one by one", chat_talk(c)->name);
    return status;
}

static mn_status run_save(chat *c, const char *argument) {
    if (!*argument) MN_FAIL(MN_E_ARG, "say where to: /save FOLDER");
    MN_TRY(chat_save(c, argument));
    const talk *t = chat_talk(c);
    chat_note("saved %zu messages and the cache of %lld tokens to '%s'", t->n,
              (long long)mn_session_length(t->session), argument);
    return MN_OK;
}

mn_status chat_load(chat *c, const char *path, bool is_start) {
    const options *o = c->o;
    bool is_said = is_start && (option_is_set(o, OPT_CACHE) || option_is_set(o, OPT_CACHE_CONFIG) ||
                                option_is_set(o, OPT_CACHE_DTYPE));
    talk loaded = {0};
    char *settings = NULL;
    MN_TRY(talk_load(&loaded, &settings, c->e.model, path, &c->cache, is_said));
    mn_status status = talk_set_name(&loaded, chat_talk(c)->name);
    if (status == MN_OK) status = chat_apply_settings(c, settings, is_start);
    mem_free(settings);
    if (status != MN_OK) {
        talk_clear(&loaded);
        return status_in_file(status, path);
    }
    talk_clear(chat_talk(c));
    *chat_talk(c) = loaded;
    return MN_OK;
}

static mn_status run_load(chat *c, const char *argument) {
    if (!*argument) MN_FAIL(MN_E_ARG, "say what: /load FOLDER, one that /save made");
    MN_TRY(chat_load(c, argument, false));
    const talk *t = chat_talk(c);
    chat_note("loaded %zu messages and the cache of %lld tokens", t->n,
              (long long)mn_session_length(t->session));
    return MN_OK;
}

/* ---- settings ---- */

static void print_cache(chat *c) {
    mn_cache_info info = {.size = sizeof info};
    mn_layer_info layer = {.size = sizeof layer};
    const mn_session *session = chat_talk(c)->session;
    if (mn_session_cache(session, &info) != MN_OK) return;
    tell("%s cache (%s): %lld tokens, %.2f MiB of %llu bytes a token, %.2f MiB at most", info.implementation,
         info.dtype, (long long)info.tokens, (double)info.bytes / (1 << 20),
         (unsigned long long)info.bytes_per_token, (double)info.peak_bytes / (1 << 20));
    if (info.far_bytes) tell(", %.2f MiB of it far", (double)info.far_bytes / (1 << 20));
    if (info.seen > info.tokens) tell(", %lld seen", (long long)info.seen);
    if (info.limit) tell(", room for %lld tokens", (long long)info.limit);
    if (mn_session_layer(session, 0, &layer) == MN_OK && layer.window_length)
        tell(", window of %lld, the first %lld kept", (long long)layer.window_length,
             (long long)layer.first_exact);
    tell("\n");
}

/* A session of these options in place of one that holds nothing. */
static mn_status reopen(chat *c, const mn_cache_options *how) {
    mn_session *session = NULL;
    MN_TRY(mn_session_open(&session, c->e.model, how));
    mn_session_close(&chat_talk(c)->session);
    chat_talk(c)->session = session;
    return MN_OK;
}

static mn_status run_cache(chat *c, const char *argument) {
    if (*argument) {
        size_t n = strcspn(argument, " \t");
        const char *config = argument + n + strspn(argument + n, " \t");
        char *name = mem_copy_text(argument, n);
        if (!name) return mem_no_memory();
        mn_cache_options how = mn_cache_options_default();
        mn_cache_summary summary = {0};
        how.implementation = name;
        how.config = *config ? config : NULL;
        how.dtype = c->cache.dtype;
        how.on_oom = c->cache.on_oom;
        mn_session *session = chat_talk(c)->session;
        mn_status status = cache_settle(&how, &summary);
        if (status == MN_OK && summary.reserves && how.max_cache_len <= 0)
            how.max_cache_len = c->e.info.max_position_embeddings;
        if (status == MN_OK)
            status = mn_session_length(session) ? mn_session_set_cache(session, &how) : reopen(c, &how);
        mem_free(name);
        MN_TRY(status);
    }
    print_cache(c);
    return MN_OK;
}

static void print_settings(const chat *c) {
    const mn_generation_field *fields = mn_generation_fields();
    for (int i = 0; fields[i].name; i++) {
        char *value = mn_generation_config_get(c->config, fields[i].name);
        if (value && strcmp(value, fields[i].standard) != 0) tell("  %s=%s\n", fields[i].name, value);
        mn_free(value);
    }
    tell("  all others are as `mneme chat --help-all` says\n");
}

static mn_status run_set(chat *c, const char *argument) {
    char name[64];
    size_t n = strcspn(argument, "= \t"), at = n + strspn(argument + n, " \t");
    if (!*argument) {
        print_settings(c);
        return MN_OK;
    }
    if (n >= sizeof name) n = sizeof name - 1;
    memcpy(name, argument, n);
    name[n] = 0;
    if (argument[at] == '=') {
        at++;
        MN_TRY(generation_say(c->config, name, argument + at + strspn(argument + at, " \t")));
        mn_generate_options how = mn_generate_options_default();
        how.session = chat_talk(c)->session;
        if (generation_warn(c->config, &how, &c->said) != MN_OK)
            chat_note("as it stands, %s", mn_last_error());
    } else if (argument[at]) {
        MN_FAIL(MN_E_ARG, "'%.60s' sets nothing; write /set name=value, as /set temperature=0.7", argument);
    }
    int field = generation_flag(name);
    char *value = field >= 0 ? mn_generation_config_get(c->config, mn_generation_fields()[field].name) : NULL;
    if (value) tell("  %s=%s\n", mn_generation_fields()[field].name, value);
    bool is_shown = value != NULL || argument[at];
    mn_free(value);
    return is_shown ? MN_OK : generation_say(c->config, name, "null"); /* tells what there is instead */
}

static mn_status run_system(chat *c, const char *argument) {
    talk *t = chat_talk(c);
    const talk_message *old = talk_system(t);
    if (!*argument) {
        tell("  %.*s\n", old ? (int)old->text.n : 21, old ? old->text.data : "(no system message)");
        return MN_OK;
    }
    bool is_none = strcmp(argument, "none") == 0;
    MN_TRY(talk_set_system(t, is_none ? NULL : argument, strlen(argument)));
    chat_note(is_none ? "the talk has no system message now" : "that is the system message from now on");
    if (t->n_ids && t->n > !is_none) chat_note("the talk is computed again with the next message");
    return MN_OK;
}

static mn_status run_stats(chat *c, const char *argument) {
    (void)argument;
    if (!c->last.finish) {
        tell("  no turn yet\n");
    } else {
        chat_print_stats(c);
        tell("  all turns (%zu): %zu prompt tokens, %zu of them cached, %zu new; last seed %llu\n",
             c->n_turns, c->n_prompt, c->n_cached, c->n_new, (unsigned long long)c->last.seed);
    }
    for (size_t i = 0; c->n_talks > 1 && i < c->n_talks; i++)
        tell("%c %s: %zu messages, %zu tokens\n", i == c->at ? '*' : ' ', c->talks[i].name, c->talks[i].n,
             c->talks[i].n_ids);
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
    {"load", NULL, "FOLDER", "go on with a saved talk at once", run_load},
    {"fork", NULL, "[NAME]", "a second timeline from here, pages shared", run_fork},
    {"switch", NULL, "[NAME]", "to another timeline, or the one before", run_switch},
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
        tell("  %-26s %s\n", left, rows[i].help);
    }
    tell("  Several lines: between \"\"\" and \"\"\", or \\ at a line's end, or pasted.\n"
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
    MN_FAIL(MN_E_ARG, "unknown command '/%s'; /help lists those there are", word);
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
