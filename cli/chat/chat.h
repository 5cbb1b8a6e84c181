/* What `mneme chat` is made of: the command and its loop (chat.c), one turn (chat_turn.c), the commands
 * (chat_commands.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_CHAT_H
#define MNEME_CLI_CHAT_H

#include "loaded_model.h"
#include "chat/line.h"
#include "chat/conversation.h"

/* What the last turn took. */
typedef struct turn_stats {
    size_t prompt_tokens, cached_tokens, new_tokens;
    double prompt_ms, predicted_ms, first_ms; /* first_ms: from the message to the first token */
    uint64_t seed;
    const char *finish; /* a fixed text; NULL: there was no turn yet */
} turn_stats;

typedef struct chat {
    const options *o;
    loaded_model e;
    json_doc *file; /* --generation-config, or NULL */
    mn_generation_config *config;
    mn_generation_config *start; /* the configuration of the start, which has the texts of `cache` */
    mn_cache_options cache;      /* of the start */
    conversation_form form;
    conversation *conversations;                   /* the branches; at least one once the conversation has started */
    size_t n_conversations, capacity, at, last_at; /* at: the current one; last_at: the previous one */
    line_reader *reader;
    bool leaves;            /* the loop ends */
    int code;               /* exit code then */
    bytes next;             /* text to begin the next line with */
    bytes warned;           /* warnings of the settings */
    bool sampling_is_named; /* do_sample was set by name: options of sampling do not change it */
    turn_stats last;
    size_t n_turns, n_prompt, n_cached, n_new; /* of all turns */
    uint64_t n_again; /* how often the last question was answered anew: each time with another seed */
} chat;

/* The current conversation. */
conversation *chat_conversation(chat *c);

/* One sentence on stderr about what was done; faint on terminals. */
void chat_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The configuration of a conversation in which nothing was changed. */
mn_status chat_open_config(mn_generation_config **config, const chat *c);

/* Puts the fields of a saved conversation's settings over the configuration, but for those that the command line sets
 * when `is_start`. */
mn_status chat_apply_settings(chat *c, const char *settings, bool is_start);

/* Saves the current branch; replaces it by a saved one (unchanged on failure). */
mn_status chat_save(chat *c, const char *path);
mn_status chat_load(chat *c, const char *path, bool is_start);

/* Adds the text as the user's message, answers, and keeps the answer. A failure is reported, and the message taken
 * back. */
void chat_turn(chat *c, const char *text, size_t n);
/* Answers the last message, which is the user's. is_again: with another seed than before. */
void chat_answer(chat *c, bool is_again);
/* One line about the last turn. */
void chat_print_stats(const chat *c);

/* Runs a line that is a command ("/help", "!exit"): false when it is none. */
bool chat_command(chat *c, const char *line, size_t n);

#endif
