/* Options: one table of all options of the command. A row is flag (--max-cache-len), environment variable
 * (MNEME_MAX_CACHE_LEN) and field of the configuration file ("max_cache_len") at once, and prints its own help. The
 * fields of GenerationConfig come from the library and follow the same rule.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_OPTIONS_H
#define MNEME_CLI_OPTIONS_H

#include "base/json.h"
#include "mneme.h"

/* The rows of the table in options.c. */
typedef enum option_id {
    OPT_MODEL,
    OPT_PROMPT,
    OPT_FILE,
    OPT_IDS,
    OPT_IDS_FILE,
    OPT_MESSAGES,
    OPT_PREFIX_FILE,
    OPT_BATCH,
    OPT_ROWS,
    OPT_UNORDERED,
    OPT_RAW,
    OPT_NO_SPECIAL_TOKENS,
    OPT_GENERATION_CONFIG,
    OPT_GREEDY,
    OPT_TEMP,
    OPT_STOP_TOKEN,
    OPT_ASSISTANT_MODEL,
    OPT_NEGATIVE_PROMPT,
    OPT_NEGATIVE_PROMPT_IDS,

    OPT_LOGPROBS,
    OPT_SCORES_OUT,
    OPT_LOGITS_OUT,
    OPT_CACHE,
    OPT_CACHE_CONFIG,
    OPT_CACHE_DTYPE,
    OPT_MAX_CACHE_LEN,
    OPT_NO_CACHE,
    OPT_SAVE_CACHE,
    OPT_LOAD_CACHE,
    OPT_CACHE_DIR,
    OPT_CACHE_DIR_LIMIT,
    OPT_CACHE_TTL,
    OPT_CACHE_QUOTA,
    OPT_PREFIX_CACHE,
    OPT_PREFIX_MEMORY,
    OPT_CACHE_KEY_FILE,
    OPT_CALIBRATION,
    OPT_ON_OOM,
    OPT_SPEECH_MODEL,
    OPT_HOST,
    OPT_PORT,
    OPT_UNIX,
    OPT_API_KEY_FILE,
    OPT_ALLOW_REMOTE,
    OPT_SSL_CERT_FILE,
    OPT_SSL_KEY_FILE,
    OPT_SHARE_PREFIXES,
    OPT_CACHE_FIXED,
    OPT_LOG_REQUESTS,
    OPT_LOG_FORMAT,
    OPT_DRAIN_TIMEOUT,
    OPT_MAX_NUM_SEQS,
    OPT_MAX_QUEUE,
    OPT_SANDBOX,
    OPT_SYSTEM,
    OPT_TOOLS,
    OPT_DOCUMENTS,
    OPT_TEMPLATE_VAR,
    OPT_THINKING,
    OPT_SAVE,
    OPT_LOAD,
    OPT_STATS,
    OPT_NO_HISTORY,
    OPT_CHUNK,
    OPT_OUT,
    OPT_DECODE,
    OPT_RENDER,
    OPT_ADD_GENERATION_PROMPT,
    OPT_SKIP_SPECIAL_TOKENS,
    OPT_KERNELS,
    OPT_CONTEXT,
    OPT_PLAN_ROWS,
    OPT_PLAN_NEW_TOKENS,
    OPT_PLAN_BATCH_SIZE,
    OPT_ADVISE_CONTEXT,
    OPT_ADVISE_MEMORY,
    OPT_ADVISE_ROWS,
    OPT_ADVISE_TIME,
    OPT_ADVISE_SVG,
    OPT_N_PROMPT,
    OPT_N_GEN,
    OPT_N_DEPTH,
    OPT_PG,
    OPT_PARALLEL,
    OPT_REPETITIONS,
    OPT_BENCH_THREADS,
    OPT_OUTPUT,
    OPT_NO_WARMUP,
    OPT_TEXT,
    OPT_TEXTS,
    OPT_SERVE, /* from here to OPT_BENCH_API_KEY_FILE: of `bench --serve` */
    OPT_ENDPOINT,
    OPT_NUM_PROMPTS,
    OPT_REQUEST_RATE,
    OPT_MAX_CONCURRENCY,
    OPT_RANDOM_INPUT_LEN,
    OPT_RANDOM_OUTPUT_LEN,
    OPT_RANDOM_PREFIX_LEN,
    OPT_SERVE_IGNORE_EOS,
    OPT_METRIC_PERCENTILES,
    OPT_BENCH_SEED,
    OPT_BENCH_API_KEY_FILE,
    OPT_LANGUAGE,
    OPT_SPEECH_PROMPT,
    OPT_HOTWORDS,
    OPT_TASK,
    OPT_TIMESTAMPS,
    OPT_SUBTITLES,
    OPT_OUTPUT_DIR,
    OPT_NUM_BEAMS,
    OPT_TEMPERATURES,
    OPT_CONDITION,
    OPT_COMPRESSION_RATIO,
    OPT_LOGPROB,
    OPT_NO_SPEECH,
    OPT_VAD_FILTER,
    OPT_VAD_THRESHOLD,
    OPT_VAD_MIN_SILENCE,
    OPT_VAD_MIN_SPEECH,
    OPT_VAD_SPEECH_PAD,
    OPT_WINDOW_TOKENS,
    OPT_SEED,
    OPT_BATCH_SIZE,
    OPT_ZSTD,
    OPT_PLAIN,
    OPT_LEGACY,
    OPT_ROW,
    OPT_SHA256,
    OPT_COMPUTE_TYPE,
    OPT_CPU,
    OPT_PACKED_DIR,
    OPT_THREADS,
    OPT_MEMORY_LIMIT,
    OPT_JSON,
    OPT_VERBOSE,
    OPT_PRINT_CONFIG,
    OPT_HELP,
    OPT_HELP_ALL,
    N_OPTIONS
} option_id;

/* The commands that take a row. */
enum {
    COMMAND_RUN = 1,
    COMMAND_SCORE = 2,
    COMMAND_TOKENIZE = 4,
    COMMAND_INSPECT = 8,
    COMMAND_DOCTOR = 16,
    COMMAND_BENCH = 32,
    COMMAND_CACHE = 64,
    COMMAND_CHAT = 128,
    COMMAND_TRANSCRIBE = 256,
    COMMAND_SERVE = 512,
    COMMAND_LIST = 1024,
    COMMAND_PULL = 2048,
    COMMAND_ADVISE = 4096,
    COMMAND_PACK = 8192,
    COMMAND_ALL = 16383,
    COMMAND_COMPUTES = COMMAND_RUN | COMMAND_CHAT | COMMAND_SCORE | COMMAND_INSPECT | COMMAND_BENCH | COMMAND_DOCTOR |
                       COMMAND_TRANSCRIBE | COMMAND_SERVE | COMMAND_ADVISE | COMMAND_PACK,
    COMMAND_GENERATES = COMMAND_RUN | COMMAND_CHAT, /* these take the fields of GenerationConfig */
};

/* The origin of a value, lowest precedence first. */
typedef enum option_origin {
    ORIGIN_DEFAULT,
    ORIGIN_MODEL,
    ORIGIN_GENERATION_FILE,
    ORIGIN_CONFIG_FILE,
    ORIGIN_ENVIRONMENT,
    ORIGIN_FLAG
} option_origin;

extern const char *const option_origin_names[];

typedef enum option_kind {
    OPTION_SWITCH,  /* no value; --no-NAME turns it off */
    OPTION_INTEGER, /* lo..hi */
    OPTION_SIZE,    /* bytes with an optional unit: 512M, 1.5GiB */
    OPTION_CHOICE,  /* one of `argument`, "a|b|c" */
    OPTION_TEXT,
    OPTION_LINES /* a text; a repeated flag adds one, and setting.text has a line for each */
} option_kind;

typedef struct option {
    const char *name;    /* "max_cache_len" */
    const char *aliases; /* further spellings, space between: "-c --ctx-size"; NULL: none */
    option_kind kind;
    const char *argument; /* in the help: "N"; of a choice: its values */
    const char *standard; /* default in the help; NULL: not shown */
    const char *help;
    unsigned commands;
    unsigned brief; /* commands whose one-screen help shows it */
    int64_t lo, hi; /* OPTION_INTEGER */
} option;

extern const option option_table[N_OPTIONS];

typedef struct setting {
    char *text;     /* owned; NULL: not set. Of a generation field: JSON text */
    int64_t number; /* value of a switch (0, 1), an integer or a size */
    option_origin origin;
} setting;

typedef struct command command;

typedef struct options {
    const command *command;
    setting set[N_OPTIONS];
    setting *generation; /* one for each of mn_generation_fields(); owned */
    size_t n_generation;
    const char **positional; /* owned; the texts are those of argv */
    int n_positional;
    json_doc *config; /* the configuration file, or NULL */
} options;

struct command {
    const char *name;
    unsigned bit;
    int max_positional;
    const char *summary;  /* one line for `mneme --help` */
    const char *usage;    /* "run [MODEL] [TEXT]" */
    const char *examples; /* lines, the head of --help */
    int (*run)(options *o);
};

/* Reads argv after the command, then the environment and the configuration file ($MNEME_CONFIG, else
 * $XDG_CONFIG_HOME/mneme/config.json). MN_E_ARG with one sentence; *param (not owned, NULL or a flag's name) names
 * which flag it is about. --help and --help-all stop the reading. */
mn_status options_read(options *o, int argc, char **argv, const char **param);
void options_clear(options *o);

bool option_is_set(const options *o, option_id id);
bool option_on(const options *o, option_id id); /* a switch */
const char *option_text(const options *o, option_id id, const char *standard);
int64_t option_number(const options *o, option_id id, int64_t standard);

/* The index of a generation field, -1 when there is none of that name. */
int generation_field(const char *name);
/* The same by any of its flags, without dashes in front: "n" and "predict" are max_new_tokens. */
int generation_flag(const char *name);
/* JSON text of a field that was set, or NULL. */
const char *generation_text(const options *o, const char *name);
/* The command-line text of a generation field as JSON text, owned by the caller: "1,2" of an integer list becomes
 * [1,2], a bare word of a string list ["word"], "15=-5" of an object {"15":-5}; a schema may be in a file, "@path" or a
 * path. MN_E_NOT_FOUND, MN_E_IO and MN_E_FORMAT about that file. */
mn_status generation_value(char **value, const mn_generation_field *field, const char *text);

/* "512M", "1.5GiB", "1000" in bytes. */
mn_status size_parse(const char *text, int64_t *out);

/* max_cache_len -> max-cache-len in `out` (at most n bytes); returns out. */
const char *flag_spelling(char *out, size_t n, const char *name);

/* Whether the command has a row of this name, which takes precedence over a generation field of that name. */
bool option_is_row(const command *c, const char *name);

/* The target of an alias in the configuration file, or NULL. */
const char *options_alias(const options *o, const char *name);

/* Help of one command: one screen, or everything. */
void help_print(const command *c, bool all);

#endif
