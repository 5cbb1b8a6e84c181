/* The source of the text: an argument, a flag, a file or stdin; as text, as messages or as token ids.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_INPUT_H
#define MNEME_CLI_INPUT_H

#include "base/reasoning.h"
#include "chat/template.h"
#include "options.h"

typedef enum input_kind { INPUT_TEXT, INPUT_IDS, INPUT_MESSAGES, INPUT_BATCH } input_kind;

typedef struct input {
    input_kind kind;
    bytes data;       /* the text, the ids as text or the messages, byte for byte; of a batch nothing */
    const char *what; /* names the source in messages: "--ids", a file's name */
} input;

/* Reads the one source that is given (`text`: a positional argument or NULL); without any, stdin unless it is a
 * terminal. Of `run`, a pipe or file at stdin is joined to a text that is an argument, after an empty line. MN_E_ARG
 * for two sources, none, or an empty one; MN_E_IO, MN_E_NOT_FOUND for files. */
mn_status input_read(input *in, const options *o, const char *text);
void input_clear(input *in);

/* Whether a source of text is given other than a positional argument or stdin. */
bool input_is_given(const options *o);

typedef struct prompt {
    int32_t *ids; /* owned */
    size_t n;
    bool is_chat;         /* went through a chat template */
    reasoning reasoning;  /* how its answer is told apart from that; of a text without a template nothing is */
    bool hides_reasoning; /* by --no-thinking: only the answer is shown */
} prompt;

void prompt_clear(prompt *p);

/* "1,2 3" to ids; `what` names the source. */
mn_status prompt_from_ids(prompt *p, const char *text, size_t n, const char *what);

/* Text to ids with the special tokens that the tokenizer adds, unless no_special. */
mn_status prompt_from_text(prompt *p, const mn_tokenizer *tokenizer, const char *text, size_t n, bool no_special);
/* The same behind ids that are held, as mn_tokenize_after. */
mn_status prompt_from_text_after(prompt *p, const mn_tokenizer *tokenizer, const char *text, size_t n, bool no_special,
                                 const int32_t *held, size_t n_held, size_t *n_kept);

/* Text as a user's message behind a system message (NULL: none), or a JSON array of messages, through the chat
 * template. */
mn_status prompt_from_chat(prompt *p, const mn_tokenizer *tokenizer, const template_input *t, const char *system,
                           const char *text, size_t n);
mn_status prompt_from_messages(prompt *p, const mn_tokenizer *tokenizer, const template_input *t, const char *messages,
                               size_t n);

/* Sets p->reasoning for what a template made: text [n]. */
void prompt_set_reasoning(prompt *p, const mn_tokenizer *tokenizer, const template_input *t, const char *text,
                          size_t n);

/* For a prompt that is no text of a chat template: MN_E_ARG when the flag --system is given. */
mn_status refuse_system(const options *o);

/* An input that is no batch, as the options say. t: text goes through the chat template when there is one, unless --raw
 * is given; NULL: it does not, and there are no messages. */
mn_status prompt_from_input(prompt *p, const options *o, const input *in, const mn_tokenizer *tokenizer,
                            const template_input *t);

#endif
