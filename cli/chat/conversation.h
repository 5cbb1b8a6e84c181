/* One conversation: its messages, the token ids that they were computed as, and the session that holds their keys and
 * values.
 *
 * The ids of an answer are those that were generated, which need not be those that its text would be cut into. So a
 * prompt is the ids held, as far as their text is the text of the new rendering, and behind them the ids of the rest.
 * What the session must compute is then what is new, token by token.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_CONVERSATION_H
#define MNEME_CLI_CONVERSATION_H

#include "input.h"

typedef enum conversation_role {
    CONVERSATION_SYSTEM,
    CONVERSATION_USER,
    CONVERSATION_ASSISTANT,
    N_CONVERSATION_ROLES
} conversation_role;
extern const char *const conversation_role_names[N_CONVERSATION_ROLES];

typedef struct conversation_message {
    conversation_role role;
    bytes text;
    size_t n_ids; /* ids of the conversation when the message was complete; of a user's message, with the answer's head.
                     0: not known */
} conversation_message;

typedef struct conversation {
    char *name; /* owned */
    conversation_message *messages;
    size_t n, capacity;
    int32_t *ids; /* [n_ids]: the last prompt and what was generated behind it */
    size_t n_ids, ids_capacity;
    mn_session *session; /* owned; holds these ids but the last, or fewer */
} conversation;

/* How a conversation becomes text. */
typedef struct conversation_form {
    const mn_tokenizer *tokenizer;
    template_input template;
    bool use_template; /* the model's chat template; else "User: ...\nAssistant:" */
} conversation_form;

/* Where plain turns end. */
extern const char conversation_plain_stop[];

mn_status conversation_set_name(conversation *t, const char *name);
void conversation_clear(conversation *t); /* frees everything, the session too */

/* Appends a message. MN_E_ARG for an empty text and one that is no UTF-8. */
mn_status conversation_add(conversation *t, conversation_role role, const char *text, size_t n);
void conversation_drop_last(conversation *t);

/* The system message: text NULL takes it away. */
mn_status conversation_set_system(conversation *t, const char *text, size_t n);
const conversation_message *conversation_system(const conversation *t); /* or NULL */

/* The number of the last message of the user's, n when there is none. */
size_t conversation_last_question(const conversation *t);

/* The ids for the next answer, as above. */
mn_status conversation_prompt(prompt *p, const conversation *t, const conversation_form *form);

/* Keeps the ids of a prompt and of the n_answer tokens generated behind it; the last message is the user's and gets its
 * mark. */
mn_status conversation_keep(conversation *t, const prompt *p, const int32_t *answer, size_t n_answer);

/* Appends the answer whose ids were just kept. Templates put blanks before it or not, and tokenizers show those it
 * begins with or not: of the ways to write them, the one is taken whose rendering keeps most of the ids. */
mn_status conversation_add_answer(conversation *t, const conversation_form *form, const char *text, size_t n);

/* Ids at the start of every conversation with this system message, whatever the user says first; 0 when that is not
 * known. */
size_t conversation_head(const conversation *t, const conversation_form *form);

/* Takes ids and session back to the first n ids. *is_forgotten: the cache cannot go back there (MN_E_UNSUPPORTED), so
 * the next turn computes anew. */
mn_status conversation_crop(conversation *t, size_t n, bool *is_forgotten);

/* A second conversation with the same past; the session's pages are shared until one of the two writes. */
mn_status conversation_fork(conversation *fork, const conversation *t, const char *name);

/* How many of the first ids are equal. */
size_t conversation_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

/* ---- saved conversations (conversation_file.c) ---- */

/* Writes messages, ids, settings and cache into the folder `path`, made when it is missing: what was saved there
 * before, or all of this. MN_E_ARG when something else is there. settings: JSON text of an object; model: its path. */
mn_status conversation_save(const conversation *t, const char *path, const char *model, const char *settings,
                            bool compress);

/* Whether it could be written there, as far as that is known before: MN_E_ARG, MN_E_IO. */
mn_status conversation_save_check(const char *path);

/* Opens one into *t, where nothing but a name may be; everything is verified first. cache: what a conversation without
 * one gets; is_set: that strategy must be the file's, otherwise the file's is taken. *settings is owned by the caller.
 * MN_E_NOT_FOUND, MN_E_FORMAT, and those of mn_session_load. */
mn_status conversation_load(conversation *t, char **settings, mn_model *model, const char *path,
                            const mn_cache_options *cache, bool is_set);

#endif
