/* One conversation: what was said, the token ids that it was computed as, and the session that holds their keys and values.
 *
 * The ids of an answer are those that were generated, which need not be those that its text would be cut into. So a prompt is the
 * ids held, as far as their text is the text of the new rendering, and behind them the ids of the rest. What the session
 * must compute is then what is new, token by token. SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_TALK_H
#define MNEME_CLI_TALK_H

#include "input.h"

typedef enum talk_role { TALK_SYSTEM, TALK_USER, TALK_ASSISTANT, N_TALK_ROLES } talk_role;
extern const char *const talk_role_names[N_TALK_ROLES];

typedef struct talk_message {
    talk_role role;
    bytes text;
    size_t
        n_ids; /* ids of the talk when the message was complete; of a user's message, with the answer's head. 0: not known */
} talk_message;

typedef struct talk {
    char *name; /* owned */
    talk_message *messages;
    size_t n, capacity;
    int32_t *ids; /* [n_ids]: the last prompt and what was generated behind it */
    size_t n_ids, ids_capacity;
    mn_session *session; /* owned; holds these ids but the last, or fewer */
} talk;

/* How a talk becomes text. */
typedef struct talk_form {
    const mn_tokenizer *tokenizer;
    bool use_template; /* the model's chat template; else "User: ...\nAssistant:" */
} talk_form;

/* Where plain turns end. */
extern const char talk_plain_stop[];

mn_status talk_set_name(talk *t, const char *name);
void talk_clear(talk *t); /* frees everything, the session too */

/* Appends a message. MN_E_ARG for an empty text and one that is no UTF-8. */
mn_status talk_add(talk *t, talk_role role, const char *text, size_t n);
void talk_drop_last(talk *t);

/* The system message: text NULL takes it away. */
mn_status talk_set_system(talk *t, const char *text, size_t n);
const talk_message *talk_system(const talk *t); /* or NULL */

/* The number of the last message of the user's, n when there is none. */
size_t talk_last_question(const talk *t);

/* The ids for the next answer, as above. */
mn_status talk_prompt(prompt *p, const talk *t, const talk_form *form);

/* Keeps the ids of a prompt and of the n_answer tokens generated behind it; the last message is the user's and gets its
 * mark. */
mn_status talk_keep(talk *t, const prompt *p, const int32_t *answer, size_t n_answer);

/* Appends the answer whose ids were just kept. Templates put blanks before it or not, and tokenizers show those it begins with or not: of
 * the ways to write them, the one is taken whose rendering keeps most of the ids. */
mn_status talk_add_answer(talk *t, const talk_form *form, const char *text, size_t n);

/* Ids at the start of every talk with this system message, whatever the user says first; 0 when that cannot be told. */
size_t talk_head(const talk *t, const talk_form *form);

/* Takes ids and session back to the first n ids. *is_forgotten: the cache cannot go back there (MN_E_UNSUPPORTED), so the
 * next turn computes anew. */
mn_status talk_crop(talk *t, size_t n, bool *is_forgotten);

/* A second talk with the same past; the session's pages are shared until one of the two writes. */
mn_status talk_fork(talk *fork, const talk *t, const char *name);

/* How many of the first ids are equal. */
size_t talk_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

/* ---- saved talks (talk_file.c) ---- */

/* Writes messages, ids, settings and cache into the folder `path`, made when it is missing: what was saved there before, or all of this.
 * MN_E_ARG when something else is there. settings: JSON text of an object; model: its path. */
mn_status talk_save(const talk *t, const char *path, const char *model, const char *settings, bool compress);

/* Whether it could be written there, as far as that can be told before: MN_E_ARG, MN_E_IO. */
mn_status talk_save_check(const char *path);

/* Opens one into *t, where nothing but a name may be; everything is verified first. cache: what a talk without one gets; is_said:
 * that strategy must be the file's, otherwise the file's is taken. *settings is owned by the caller. MN_E_NOT_FOUND,
 * MN_E_FORMAT, and what mn_session_load says. */
mn_status talk_load(talk *t, char **settings, mn_model *model, const char *path,
                    const mn_cache_options *cache, bool is_said);

#endif
