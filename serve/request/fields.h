/* The fields of request bodies and of lines of the command's --batch, one table: names of OpenAI's interface beside
 * those of GenerationConfig. What is read, refused, warned of and documented (/openapi.json, docs/serve.md) comes from
 * its rows. Knows no server: the command reads its lines here too.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_FIELDS_H
#define MNEME_SERVE_FIELDS_H

#include "base/json.h"
#include "error.h"

/* The forms of bodies; routes with the same form take the same fields. Lines refuse fields that are not known. */
enum {
    BODY_CHAT = 1,
    BODY_COMPLETION = 2,
    BODY_TOKENIZE = 4,
    BODY_DETOKENIZE = 8,
    BODY_TEMPLATE = 16,
    BODY_GENERATE = 32, /* refuses fields that are not known; the others ignore them */
    BODY_RESPONSES = 64,
    BODY_MESSAGES = 128,
    BODY_COUNT_TOKENS = 256,
    BODY_CACHE = 512, /* refuse them, too */
    BODY_HOLD = 1024,
    BODY_SAVE = 2048,
    BODY_TRANSCRIPTION = 4096,
    BODY_TRANSLATION = 8192,
    BODY_SPEECH = BODY_TRANSCRIPTION | BODY_TRANSLATION, /* multipart/form-data; the others are JSON */
    BODY_LINE = 16384,                                   /* a line of --batch with its prompt */
    BODY_CHAT_LINE = 32768,                              /* the body of a line of OpenAI's batch format, of a chat */
    BODY_COMPLETION_LINE = 65536,                        /* and of a completion */
    BODY_OPENAI_LINE = BODY_CHAT_LINE | BODY_COMPLETION_LINE,
    BODY_LINES = BODY_LINE | BODY_OPENAI_LINE,
    BODY_STRICT = BODY_GENERATE | BODY_CACHE | BODY_HOLD | BODY_SAVE,
    BODY_TEXT = BODY_CHAT | BODY_COMPLETION,
    BODY_ANTHROPIC = BODY_MESSAGES | BODY_COUNT_TOKENS,
    BODY_DIALECT = BODY_TEXT | BODY_RESPONSES | BODY_MESSAGES, /* fields of generation beside others */
    BODY_SAMPLED = BODY_DIALECT | BODY_OPENAI_LINE             /* the same, of requests and of lines */
};

/* What a saved cache may be called. */
#define SAVED_NAMES "1 to 63 letters, digits, '.', '_' and '-', the first no '.' or '-'"

/* The kinds of values that a field takes; null is as if it were absent. */
enum {
    TAKES_NUMBER = 1,
    TAKES_INTEGER = 2,
    TAKES_FLAG = 4,
    TAKES_STRING = 8,
    TAKES_LIST = 16,
    TAKES_OBJECT = 32,
    TAKES_ANY = 63,
    TAKES_FILE = 64 /* the bytes of a part of a form */
};

/* What the fields of a body set. */
typedef struct request_settings {
    mn_generation_config *config;
    /* Not NULL: fields of GenerationConfig do not go into config, they are appended here by their own names, as members
     * of a JSON object. */
    bytes *members;
    int n;            /* answers */
    int top_logprobs; /* as in mn_generate_options */
    int priority;     /* as in mn_request */
    char *salt;       /* to be freed; NULL: none */
    bool streams, includes_usage;
    bool echoes;    /* answers begin with the prompt */
    bool explains;  /* what was found in the cache, and why no more */
    bool has_cache; /* the configuration names a cache */
} request_settings;

typedef struct field field;

struct field {
    const char *name; /* "n"; "a.b": the member b of the object a, which has a row too; "a[]": a list of a form */
    unsigned bodies, kinds;
    double low, high;    /* of numbers and integers */
    size_t least, most;  /* bytes of a string, items of a list, members of an object; most 0: any number */
    const char *choices; /* of strings: "a|b"; NULL: any */
    const char *allowed; /* in words; NULL: from kind and range */
    const char *schema;  /* JSON schema of lists and objects, and of several kinds; NULL: from kind and range */
    const char *example; /* JSON of a value that is taken; NULL: from kind and range */
    const char *help;
    /* NULL: the route reads it, or it has no effect. */
    mn_status (*apply)(request_settings *r, const field *f, const json *value, refusal *why);
    const char *config; /* the field of GenerationConfig that apply sets: so begins a message about it */
    bool is_required;
};

/* The row at `index`, counted from 0; NULL after the last one. */
const field *field_at(size_t index);
/* Appends what a field takes, in words. */
void field_put_allowed(bytes *out, const field *f);
/* "'top_p' is 3, allowed: 0 to 1"; allowed NULL: from the row. MN_E_ARG. */
mn_status field_wrong(const field *f, const json *value, const char *allowed, refusal *why);

/* Sets a field of GenerationConfig from the value of f. */
mn_status field_set_config(request_settings *r, const field *f, const char *name, const json *value, refusal *why);

/* Whether bodies of this form have this field of GenerationConfig by its own name, beside their rows. */
bool field_is_generation(unsigned form, const mn_generation_field *g);

/* Checks every field of a body: required ones, kinds and ranges. *warning (to be cleared; NULL: not wanted) becomes a
 * line on fields that are not known and ignored, in visible ASCII characters; empty when there are none. */
mn_status fields_check(const json *body, unsigned form, bytes *warning, refusal *why);

/* Sets what the checked body has. */
mn_status fields_read(request_settings *r, const json *body, unsigned form, refusal *why);

/* Names the field that the library refused, if its message begins with one that a row sets. */
void fields_blame(unsigned form, mn_status status, refusal *why);

/* The field as a string, a name; NULL: absent. MN_E_ARG for another kind, and for one with a zero byte. */
mn_status field_string(const char **out, const json *body, const char *name, refusal *why);

#endif
