/* `mneme chat`: a conversation with a model, turn by turn, from a terminal or a pipe.
 * SPDX-License-Identifier: Apache-2.0 */
#include "chat/chat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "config.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "sampling.h"
#include "terminal.h"
#include "commands.h"

static const char first_name[] = "main"; /* of the first branch */

conversation *chat_conversation(chat *c) {
    return &c->conversations[c->at];
}

void chat_note(const char *format, ...) {
    const char *no_color = getenv("NO_COLOR");
    bool is_faint = progress_shown() && !(no_color && *no_color);
    progress_clear();
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (is_faint) put_control(stderr, "\x1b[2m");
    print_error_text("%s", text);
    if (is_faint) put_control(stderr, "\x1b[0m");
    print_error_text("\n");
}

/* ---- settings ---- */

/* Plain turns end where the next one would begin, unless stop strings are given. */
static mn_status set_plain_stop(const chat *c, mn_generation_config *config) {
    if (c->form.use_template) return MN_OK;
    char *own = mn_generation_config_get(config, "stop_strings");
    bool is_set = own && strcmp(own, "null") != 0 && strcmp(own, "[]") != 0;
    mn_free(own);
    bytes value = {0};
    bytes_append_text(&value, "[");
    json_put_string(&value, conversation_plain_stop, strlen(conversation_plain_stop));
    bytes_append_text(&value, "]");
    mn_status status = bytes_status(&value);
    if (status == MN_OK && !is_set) status = mn_generation_config_set(config, "stop_strings", bytes_text(&value));
    bytes_clear(&value);
    return status;
}

mn_status chat_open_config(mn_generation_config **config, const chat *c) {
    MN_TRY(mn_generation_config_open(config, c->e.model));
    mn_status status = set_plain_stop(c, *config);
    if (status != MN_OK) mn_generation_config_close(config);
    return status;
}

static mn_status open_config(chat *c) {
    const given_settings given = {.o = c->o, .file = c->file ? json_root(c->file) : NULL};
    c->sampling_is_named = sampling_is_named(&given);
    MN_TRY(generation_build(&c->config, c->o, c->e.model, c->file, NULL));
    MN_TRY(generation_warn(c->config, NULL, &c->warned));
    MN_TRY(cache_warn(c->e.model, &c->cache, &c->warned));
    return set_plain_stop(c, c->config);
}

mn_status chat_apply_settings(chat *c, const char *settings, bool is_start) {
    const given_settings given = {.o = c->o};
    json_doc *doc = NULL;
    mn_generation_config *config = NULL;
    MN_TRY(json_parse(&doc, settings, strlen(settings), JSON_STRICT, "its settings"));
    const json *root = json_root(doc);
    mn_status status = is_start ? generation_build(&config, c->o, c->e.model, c->file, NULL)
                                : mn_generation_config_open(&config, c->e.model);
    for (size_t i = 0; status == MN_OK && i < root->n; i++) {
        const char *name = root->members[i].key;
        bool is_sampling = strcmp(name, "do_sample") == 0;
        bool by_flag =
            generation_text(c->o, name) || (strcmp(name, "temperature") == 0 && option_is_set(c->o, OPT_TEMP)) ||
            (is_sampling && (sampling_is_named(&given) || sampling_origin(config, &given) != ORIGIN_DEFAULT));
        if (is_start && by_flag) continue;
        c->sampling_is_named = c->sampling_is_named || is_sampling;
        bytes value = {0};
        json_put(&value, &root->members[i].value);
        status = bytes_status(&value);
        if (status == MN_OK) status = mn_generation_config_set(config, name, bytes_text(&value));
        bytes_clear(&value);
    }
    json_close(&doc);
    if (status != MN_OK) {
        mn_generation_config_close(&config);
        return status;
    }
    mn_generation_config_close(&c->config);
    c->config = config;
    return set_plain_stop(c, c->config);
}

/* ---- opening ---- */

/* Two positional arguments are MODEL and TEXT. A lone one is the MODEL, but for one with blanks in it that leads to no
 * model: that is the TEXT. */
static mn_status read_positional(const options *o, const char **model, const char **text) {
    MN_TRY(positional_pair(model, text, o));
    if (o->n_positional != 1) return MN_OK;
    const char *lone = o->positional[0];
    bool model_given = option_is_set(o, OPT_MODEL) && o->set[OPT_MODEL].origin == ORIGIN_FLAG;
    char *path = NULL;
    bool is_text = model_given || (strpbrk(lone, " \t\n") && model_path(&path, o, lone) != MN_OK);
    mn_free(path);
    *(is_text ? text : model) = lone;
    return MN_OK;
}

static mn_status check_files(const options *o) {
    int n = option_is_set(o, OPT_LOAD) + option_is_set(o, OPT_LOAD_CACHE) + option_is_set(o, OPT_CACHE_DIR);
    if (n > 1)
        MN_FAIL(MN_E_ARG, "--load, --load-cache and --cache-dir all set where the cache comes from; use one of them");
    if (option_is_set(o, OPT_SAVE_CACHE)) MN_TRY(file_check_target(option_text(o, OPT_SAVE_CACHE, NULL)));
    if (option_is_set(o, OPT_SAVE)) MN_TRY(conversation_save_check(option_text(o, OPT_SAVE, NULL)));
    if (option_is_set(o, OPT_LOGPROBS) && !option_on(o, OPT_JSON))
        MN_FAIL(MN_E_ARG, "--logprobs shows in JSON only; add --json");
    return MN_OK;
}

static int prepare(chat *c) {
    mn_status status = check_files(c->o);
    if (status == MN_OK) status = template_input_read(&c->form.template, c->o);
    if (status != MN_OK) return report(c->o, exit_of(status), NULL);
    mn_cache_options_init(&c->cache, sizeof c->cache);
    status = cache_options_read(c->o, &c->cache);
    if (status == MN_OK) status = generation_file_read(&c->file, c->o);
    if (status == MN_OK) status = cache_check_named(&c->cache);
    if (status != MN_OK) return report(c->o, exit_of(status), "cache");
    return EXIT_DONE;
}

/* With the open model: the form of the prompts, and the cache. */
static mn_status resolve(chat *c) {
    mn_cache_summary kind = {0};
    c->form.tokenizer = mn_model_tokenizer(c->e.model);
    if (!c->form.tokenizer)
        MN_FAIL(MN_E_UNSUPPORTED, "this model has no tokenizer, so `mneme chat` cannot use it; `mneme run --ids` can");
    c->form.use_template = mn_has_chat_template(c->form.tokenizer) && !option_on(c->o, OPT_RAW);
    if (!c->form.use_template) MN_TRY(template_refuse(c->o));
    MN_TRY(generation_build(&c->start, c->o, c->e.model, c->file, NULL));
    MN_TRY(generation_cache(&c->cache, &kind, c->start));
    if (kind.preallocates && c->cache.max_cache_len <= 0) c->cache.max_cache_len = c->e.info.max_position_embeddings;
    return open_config(c);
}

static mn_status open_conversation(chat *c) {
    const char *system = option_text(c->o, OPT_SYSTEM, NULL), *load = option_text(c->o, OPT_LOAD, NULL);
    MN_TRY(mem_grow(&c->conversations, &c->capacity, 1, sizeof *c->conversations));
    c->conversations[0] = (conversation){0};
    c->n_conversations = 1;
    MN_TRY(conversation_set_name(&c->conversations[0], first_name));
    if (load) {
        MN_TRY(chat_load(c, load, true));
    } else {
        MN_TRY(session_open(&c->conversations[0].session, c->o, c->e.model, &c->cache));
    }
    if (system)
        MN_TRY(status_context(conversation_set_system(&c->conversations[0], system, strlen(system)), "--system"));
    return MN_OK;
}

static void print_greeting(chat *c) {
    const conversation *t = chat_conversation(c);
    mn_cache_info info = {.size = sizeof info};
    if (!c->form.use_template)
        print_message("%s chat template: turns are written as 'User: ...' and 'Assistant: ...'",
                      option_on(c->o, OPT_RAW) ? "without the" : "this model has no");
    if (!line_is_terminal(c->reader) || mn_session_cache(t->session, &info) != MN_OK) return;
    if (t->n) chat_note("%zu messages, %lld tokens", t->n, (long long)mn_session_length(t->session));
    const char *name = strrchr(c->e.path, '/');
    chat_note("%s, %s cache; /help lists the commands, Ctrl-D leaves", name && name[1] ? name + 1 : c->e.path,
              info.implementation);
}

/* ---- messages ---- */

static bool is_blank(const bytes *text) {
    for (size_t i = 0; i < text->n; i++) {
        if (!strchr(" \t\r\n", text->data[i]) || !text->data[i]) return false;
    }
    return true;
}

static bool ends_with(const bytes *text, const char *end) {
    size_t n = strlen(end);
    return text->n >= n && memcmp(text->data + text->n - n, end, n) == 0;
}

static const char block_mark[] = "\"\"\"";

/* The next line of a message: what begins it decides whether more belong to it. */
static line_end read_more(chat *c, const char *initial, bool is_first, bytes *line) {
    char sign[64];
    const char *name = chat_conversation(c)->name;
    size_t used, n = strcmp(name, first_name) == 0 ? 0 : strlen(name);
    n = terminal_clean(sign, sizeof sign - 3, name, n, &used); /* the editor draws it as it is */
    snprintf(sign + n, sizeof sign - n, "%s", is_first ? "> " : ". ");
    return line_read(c->reader, sign, initial, line);
}

/* A whole message: a line, lines joined by a backslash at their end, or a block between marks. An input that ends in
 * the middle ends the message. */
static line_end read_message(chat *c, bytes *message) {
    enum { MARK = sizeof block_mark - 1 };
    bytes line = {0};
    bytes initial = c->next;
    c->next = (bytes){0};
    message->n = 0;
    line_end end = read_more(c, initial.n ? bytes_text(&initial) : NULL, true, &line);
    bytes_clear(&initial);
    bool in_block = line.n >= MARK && memcmp(line.data, block_mark, MARK) == 0;
    size_t from = in_block ? MARK : 0;
    for (bool goes_on = end == LINE_READ; goes_on;) {
        bool closes = in_block && line.n - from >= MARK && ends_with(&line, block_mark);
        bool joins = !in_block && line.n && line.data[line.n - 1] == '\\';
        bytes_append(message, line.data + from, line.n - from - (closes ? MARK : joins ? 1 : 0));
        goes_on = joins || (in_block && !closes);
        if (!goes_on) break;
        bool is_begin = in_block && from && message->n == 0; /* the opening mark stood alone */
        if (!is_begin) bytes_append_text(message, "\n");
        from = 0;
        end = read_more(c, NULL, false, &line);
        if (end == LINE_CLOSED) {
            end = LINE_READ;
            break;
        }
        if (end != LINE_READ) break;
    }
    while (end == LINE_READ && message->n && message->data[message->n - 1] == '\n') message->n--;
    if (end == LINE_STOPPED) { /* what had been typed tells whether there was something to drop */
        bytes_append(message, line.data, line.n);
    }
    bytes_clear(&line);
    return end;
}

static void handle_input(chat *c, const bytes *message) {
    if (is_blank(message)) return;
    line_remember(c->reader, message->data, message->n);
    if (!chat_command(c, message->data, message->n)) chat_turn(c, message->data, message->n);
}

/* A Ctrl-C or the like during an answer: a person at a terminal goes on, everybody else is done. */
static void after_turn(chat *c) {
    interrupt_events events = interrupt_take();
    if (events.leave || (events.stop && !line_is_terminal(c->reader))) {
        c->leaves = true;
        c->code = EXIT_CANCELLED;
    }
    if (!put("", 0)) c->leaves = true; /* stdout is closed */
}

static void read_and_answer(chat *c, const char *text) {
    bytes message = {0};
    if (text) {
        bytes_append_text(&message, text);
        handle_input(c, &message);
        after_turn(c);
    }
    while (!c->leaves) {
        switch (read_message(c, &message)) {
        case LINE_READ: handle_input(c, &message); break;
        case LINE_CLOSED: c->leaves = true; break;
        case LINE_STOPPED:
            if (!line_is_terminal(c->reader)) {
                c->leaves = true;
                c->code = EXIT_CANCELLED;
            } else if (message.n == 0) {
                chat_note("Ctrl-D or /exit leaves");
            }
            break;
        case LINE_LEAVE:
            c->leaves = true;
            c->code = EXIT_CANCELLED;
            break;
        case LINE_FAILED: report(c->o, EXIT_FAILED, NULL); break;
        }
        if (!c->leaves) after_turn(c);
    }
    bytes_clear(&message);
}

static int run_chat(chat *c) {
    const char *model = NULL, *text = NULL;
    mn_status status = read_positional(c->o, &model, &text);
    if (status != MN_OK) return report(c->o, exit_of(status), NULL);
    int code = prepare(c);
    if (code == EXIT_DONE) code = loaded_model_open(&c->e, c->o, model, 0);
    if (code != EXIT_DONE) return code;
    status = resolve(c);
    if (status == MN_OK && option_on(c->o, OPT_PRINT_CONFIG)) {
        config_print(c->o, c->config, c->file, 0);
        return EXIT_DONE;
    }
    if (status == MN_OK) status = open_conversation(c);
    if (status == MN_OK) status = interrupt_listen();
    if (status == MN_OK) status = line_reader_open(&c->reader, !option_on(c->o, OPT_NO_HISTORY));
    if (status != MN_OK) return report(c->o, exit_of(status), NULL);
    print_greeting(c);
    read_and_answer(c, text);
    const char *save = option_text(c->o, OPT_SAVE, NULL);
    if (save) status = chat_save(c, save);
    if (status == MN_OK) status = session_save(&c->e, chat_conversation(c)->session, c->o);
    return status == MN_OK ? c->code : report(c->o, exit_of(status), NULL);
}

int command_chat(options *o) {
    chat c = {.o = o};
    int code = run_chat(&c);
    interrupt_unwatch();
    line_reader_close(&c.reader);
    for (size_t i = 0; i < c.n_conversations; i++) conversation_clear(&c.conversations[i]);
    mem_free(c.conversations);
    mn_generation_config_close(&c.config);
    json_close(&c.file);
    template_input_clear(&c.form.template);
    mn_generation_config_close(&c.start);
    bytes_clear(&c.next);
    bytes_clear(&c.warned);
    loaded_model_close(&c.e);
    return code;
}
