/* Pre-tokenization: a text is split into words by a list of steps; each splits the pieces of the previous one further.
 *
 * The usual patterns (GPT-2, SmolLM, Llama 3, Qwen 2) have hand-written scanners; anything else goes through PCRE2. A
 * word reaches the caller as a slice that is valid during the call only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_PRETOKENIZE_H
#define MN_TEXT_TOKENIZER_PRETOKENIZE_H

#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

/* What happens to the matches of a pattern; the names are those of tokenizer.json. */
typedef enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
} split_behavior;

typedef enum pre_scanner {
    SCAN_GPT2,        /* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    SCAN_DIGITS_GPT2, /* every \p{N} alone, the above on what lies between */
    SCAN_LLAMA3,      /* PATTERN_LLAMA3 */
    SCAN_QWEN2,       /* PATTERN_QWEN2 */
    N_SCANNERS,
} pre_scanner;

/* What the pre-tokenizer Whitespace keeps: Rust's \w has the joiners beside those of sets in Oniguruma. */
#define PATTERN_WHITESPACE "[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+"
#define PATTERN_GPT2       "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PATTERN_LLAMA3                                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                                         \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_QWEN2                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                              \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Where a word that starts at text[i] (i < n) ends. Lookahead sees text[0..n) only. */
size_t pre_scan(pre_scanner scanner, const unicode_table *classes, const char *text, size_t n, size_t i);

typedef enum pre_kind {
    PRE_SCAN,
    PRE_REGEX,
    PRE_SPACE,     /* put a space before every piece that starts with none */
    PRE_METASPACE, /* spaces become `mark`; one is prepended according to `prefix`; split before each if `split`
                    */
} pre_kind;

typedef enum pre_prefix {
    PREFIX_NEVER,
    PREFIX_FIRST,  /* at the start of the input, unless it begins with a mark or a space */
    PREFIX_ALWAYS, /* on every piece, unless it begins with a mark or a space */
    PREFIX_FORCED, /* at the start of the input, whatever it begins with */
} pre_prefix;

typedef struct pre_step {
    pre_kind kind;
    pre_scanner scanner;
    regex *pattern; /* owned */
    split_behavior behavior;
    bool invert; /* matches are what does not match */
    char mark[8];
    size_t n_mark;
    pre_prefix prefix;
    bool split;
} pre_step;

enum { PRE_STEPS = 16 };

typedef struct pretokenizer {
    pre_step steps[PRE_STEPS];
    size_t n;
} pretokenizer;

/* Appends a step and takes over its pattern; MN_E_FORMAT when there are too many (the pattern is closed then). */
mn_status pretokenizer_add(pretokenizer *p, const pre_step *step, const char *what);
mn_status pretokenizer_add_regex(pretokenizer *p, const char *pattern, split_behavior behavior, const char *what);
mn_status pretokenizer_add_scan(pretokenizer *p, pre_scanner scanner, const char *what);
void pretokenizer_clear(pretokenizer *p);

typedef mn_status (*pre_sink)(void *arg, const char *word, size_t n);

/* Scratch of one thread, for the parts of one text: opened on first use. Zero it but for n_text. */
typedef struct pre_state {
    size_t n_text; /* bytes of the whole text, by which the work of patterns is limited */
    regex_state *regex;
    bytes buffer[PRE_STEPS]; /* rewritten pieces, one buffer for each step */
} pre_state;

void pre_state_clear(pre_state *state);

/* Gives every word of text[0..n) (valid UTF-8) to `sink`; never an empty one. at_start: the piece begins the input. */
mn_status pretokenize(const pretokenizer *p, const unicode_table *classes, pre_state *state, const char *text, size_t n,
                      bool at_start, pre_sink sink, void *arg);

#endif
