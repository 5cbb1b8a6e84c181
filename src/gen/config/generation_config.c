/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/config/generation_config.h"

#include <assert.h>
#include <string.h>

#include "base/distance.h"
#include "kv/plan.h"

/* One row per field: name, alias, kind, smallest and largest value, standard (JSON text), what null means for numbers,
 * what is allowed, help. S has those that only sampling uses, X the others. */
/* clang-format off */
#define FIELDS(X, S) \
    X(max_new_tokens, "n-predict", INT, 1, 1e9, "null", -1, \
      "1 to 1000000000", "tokens to generate at most") \
    X(min_new_tokens, NULL, INT, 0, 1e9, "0", 0, \
      "0 to 1000000000", "no end token before this many") \
    X(max_length, NULL, INT, 1, 1e9, "null", -1, \
      "1 to 1000000000", "prompt and new tokens together at most") \
    X(min_length, NULL, INT, 0, 1e9, "0", 0, \
      "0 to 1000000000", "prompt and new tokens together at least; min_new_tokens takes precedence") \
    X(max_time, NULL, REAL, 0, 1e9, "null", 0, \
      "0 to 1e9", "stop after this many seconds") \
    X(do_sample, NULL, BOOL, 0, 1, "false", 0, \
      "true or false", "sample from the distribution instead of the best token") \
    S(temperature, "temp", REAL, 1e-6, 1e6, "1", 1, \
      "1e-6 to 1e6", "divides the scores; below 1 sharpens") \
    S(top_k, NULL, INT, 0, 1e9, "50", 0, \
      "0 (off) to 1000000000", "keep the k best tokens") \
    S(top_p, NULL, REAL, 0, 1, "1", 1, \
      "0 to 1", "keep the best tokens of this much probability") \
    S(min_p, NULL, REAL, 0, 1, "null", 0, \
      "0 to 1", "drop tokens below this share of the best one's probability") \
    S(typical_p, NULL, REAL, 1e-6, 1, "1", 1, \
      "1e-6 to 1", "keep the most typical tokens of this much probability") \
    S(epsilon_cutoff, NULL, REAL, 0, 1, "0", 0, \
      "0 (off) to 1", "drop tokens below this probability") \
    S(eta_cutoff, NULL, REAL, 0, 1, "0", 0, \
      "0 (off) to 1", "as epsilon_cutoff, lower where the distribution is flat") \
    X(seed, NULL, INT, 0, 9007199254740992.0, "null", -1, \
      "0 to 2^53", "same seed, same text") \
    X(repetition_penalty, "repeat-penalty", REAL, 1e-6, 1e6, "1", 1, \
      "1e-6 to 1e6", "weakens tokens that occurred") \
    X(encoder_repetition_penalty, NULL, REAL, 1e-6, 1e6, "1", 1, \
      "1e-6 to 1e6", "raises the scores of tokens of the prompt") \
    X(presence_penalty, NULL, REAL, -100, 100, "0", 0, \
      "-100 to 100", "subtracted from the score of each token generated before") \
    X(frequency_penalty, NULL, REAL, -100, 100, "0", 0, \
      "-100 to 100", "subtracted once per time it was generated") \
    X(logit_bias, NULL, BIAS_MAP, -100, 100, "null", 0, \
      "an object of token ids and numbers from -100 to 100", "added to the scores, as in {\"15\": -5}") \
    X(sequence_bias, NULL, BIASES, -1e30, 1e30, "null", 0, \
      "a list of [[ids], bias]; \"-inf\" forbids", "added to the last token of a sequence") \
    X(no_repeat_ngram_size, NULL, INT, 0, 1e9, "0", 0, \
      "0 (off) to 1000000000", "no sequence of this many tokens twice") \
    X(encoder_no_repeat_ngram_size, NULL, INT, 0, 1e9, "0", 0, \
      "0 (off) to 1000000000", "no sequence of this many tokens that occurs in the prompt") \
    X(bad_words_ids, NULL, ID_LISTS, 0, 2147483647, "null", 0, \
      "lists of one token id or more", "sequences that must not appear") \
    X(force_words_ids, NULL, PHRASES, 0, 2147483647, "null", 0, \
      "lists of one token id or more, or lists of such lists, of which one must appear; 1024 of them at most", \
      "sequences that must appear") \
    X(suppress_tokens, NULL, IDS, 0, 2147483647, "null", 0, \
      "token ids", "tokens that are never chosen") \
    X(begin_suppress_tokens, NULL, IDS, 0, 2147483647, "null", 0, \
      "token ids", "tokens that are not chosen first") \
    X(forced_bos_token_id, NULL, INT, 0, 2147483647, "null", -1, \
      "a token id", "the token after a prompt of one") \
    X(forced_eos_token_id, NULL, IDS, 0, 2147483647, "null", 0, \
      "token ids", "tokens allowed as the last one at the length limit") \
    X(exponential_decay_length_penalty, NULL, DECAY, 1e-6, 1e6, "null", 0, \
      "[start, factor], factor from 1e-6 to 1e6", "past start new tokens, end tokens gain this factor per token") \
    X(json_schema, NULL, SCHEMA, 0, 0, "null", 0, \
      "a JSON schema: an object, true or false", "the text is JSON that follows it") \
    X(regex, NULL, TEXT, 0, 0, "null", 0, \
      "a text that is not empty and holds no zero byte", "the text matches this regular expression") \
    X(grammar, NULL, GRAMMAR, 0, 0, "null", 0, \
      "a text that is not empty and holds no zero byte", "the text matches this grammar, in GBNF") \
    X(guidance_scale, NULL, REAL, 0, 1e6, "null", 1, \
      "0 to 1e6", "classifier-free guidance: above 1 follows the prompt more") \
    X(watermarking_config, NULL, WATERMARK, 0, 0, "null", 0, \
      "an object of greenlist_ratio, bias, hashing_key, seeding_scheme, context_width", "favours tokens that a key makes green") \
    X(remove_invalid_values, NULL, BOOL, 0, 1, "false", 0, \
      "true or false", "repair scores that are infinite or no number") \
    X(renormalize_logits, NULL, BOOL, 0, 1, "false", 0, \
      "true or false", "normalize the final scores to log-probabilities") \
    X(num_return_sequences, NULL, INT, 1, 4096, "1", 1, \
      "1 to 4096", "sequences returned for each prompt") \
    X(num_beams, NULL, INT, 1, 4096, "1", 1, \
      "1 to 4096", "beam search with this many beams") \
    X(num_beam_groups, NULL, INT, 1, 4096, "1", 1, \
      "1 to 4096", "groups of beams that avoid each other's tokens") \
    X(diversity_penalty, NULL, REAL, 0, 1e6, "0", 0, \
      "0 to 1e6", "how much groups avoid each other's tokens") \
    X(length_penalty, NULL, REAL, -1e6, 1e6, "1", 1, \
      "-1e6 to 1e6", "a beam's score is divided by its length to this power") \
    X(early_stopping, NULL, CHOICE, 0, 0, "false", 0, \
      "false|true|\"never\"", "when beams end: once there are enough, or when none can win") \
    X(penalty_alpha, NULL, REAL, 0, 1, "null", 0, \
      "0 (off) to 1", "contrastive search among top_k: weight of the similarity to earlier tokens") \
    X(dola_layers, NULL, LAYERS, 0, 1000000, "null", 0, \
      "\"low\", \"high\" or a list of layer numbers", "decoding by contrasting layers") \
    X(prompt_lookup_num_tokens, NULL, INT, 1, 1e6, "null", -1, \
      "1 to 1000000", "draft this many tokens from the text itself") \
    X(max_matching_ngram_size, NULL, INT, 1, 1e6, "2", 2, \
      "1 to 1000000", "longest n-gram matched for such a draft") \
    X(num_assistant_tokens, NULL, INT, 1, 1e6, "20", 20, \
      "1 to 1000000", "tokens that a draft model drafts") \
    X(num_assistant_tokens_schedule, NULL, CHOICE, 0, 0, "\"constant\"", 0, \
      "\"constant\"|\"heuristic\"|\"heuristic_transient\"", "whether draft length adapts to accepted tokens") \
    X(assistant_confidence_threshold, NULL, REAL, 0, 1, "0.4", 0, \
      "0 to 1", "a draft ends below this probability") \
    X(use_cache, NULL, BOOL, 0, 1, "true", 1, \
      "true or false", "keep keys and values; false computes the whole text for every token") \
    X(cache_implementation, NULL, TEXT, 0, 0, "null", 0, \
      "a cache, or several joined by +", "cache strategy") \
    X(cache_config, NULL, OPTIONS, 0, 0, "null", 0, \
      "an object, or a text key=value,...", "numbers of that cache, as in {\"nbits\": 4}") \
    X(stop_strings, "stop", TEXTS, 1, 64, "null", 0, \
      "1 to 64 texts that are not empty and hold no zero byte", "stop when one of these appears") \
    X(eos_token_id, NULL, IDS, 0, 2147483647, "null", 0, \
      "token ids", "tokens that end the text") \
    X(ignore_eos, NULL, BOOL, 0, 1, "false", 0, \
      "true or false", "go on past the end token") \
    X(bos_token_id, NULL, INT, 0, 2147483647, "null", -1, \
      "a token id", "token that begins a text") \
    X(pad_token_id, NULL, INT, 0, 2147483647, "null", -1, \
      "a token id", "filler token")
/* clang-format on */

static const field_row rows[] = {
#define FIELD(name, alias, kind, lo, hi, standard, none, allowed, help)                                                \
    {#name, FIELD_##kind, offsetof(mn_generation_config, name), lo, hi, allowed, none},
    FIELDS(FIELD, FIELD)
#undef FIELD
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

_Static_assert(N_ROWS <= 64, "one bit per field in is_set");

static const char *const standards[N_ROWS] = {
#define FIELD(name, alias, kind, lo, hi, standard, none, allowed, help) standard,
    FIELDS(FIELD, FIELD)
#undef FIELD
};

static const mn_generation_field fields[N_ROWS] = {
#define FIELD(name, alias, kind, lo, hi, standard, none, allowed, help)                                                \
    {sizeof(mn_generation_field), #name, alias, FIELD_NAME_##kind, allowed, standard, help, false},
#define SAMPLING_FIELD(name, alias, kind, lo, hi, standard, none, allowed, help)                                       \
    {sizeof(mn_generation_field), #name, alias, FIELD_NAME_##kind, allowed, standard, help, true},
    FIELDS(FIELD, SAMPLING_FIELD)
#undef SAMPLING_FIELD
#undef FIELD
};

/* Known fields without effect, and why; NULL: they request nothing of a generation, so there is no warning. */
static const struct {
    const char *name, *why;
} unused[] = {
    {"_from_model_config", NULL},
    {"transformers_version", NULL},
    {"_commit_hash", NULL},
    {"num_parameters", NULL},
    {"decoder_start_token_id",
     NULL}, /* of speech models, read by src/speech/tokens.c where needed; the next ones too */
    {"alignment_heads", NULL},
    {"is_multilingual", NULL},
    {"lang_to_id", NULL},
    {"max_initial_timestamp_index", NULL},
    {"no_timestamps_token_id", NULL},
    {"prev_sot_token_id", NULL},
    {"return_timestamps", NULL},
    {"task_to_id", NULL},
    {"forced_decoder_ids", "the prompt begins the text"},
    {"return_dict_in_generate", "results always have every field"},
    {"disable_compile", "nothing is compiled"},
    {"return_legacy_cache", "the cache stays in its session; mn_sessions_export writes the legacy form"},
    {"output_attentions", "attention weights are not handed out"},
    {"output_hidden_states", "hidden states are not handed out"},
    {"output_scores", "scores are requested with keep_scores (--scores-out)"},
    {"output_logits", "logits are requested with keep_logits (--logits-out)"},
    {"low_memory", "contrastive search has one form"},
    {"prefill_chunk_size", "set by the cache option prefill_chunk"},
    {"compile_config", "nothing is compiled"},
    {"trust_remote_code", "code of a checkpoint is never run"},
    {"is_assistant", "the draft model is an option of the generation"},
    {"assistant_early_exit", "a draft comes from a whole model"},
    {"assistant_lookbehind", "other vocabularies are matched by their text"},
    {"target_lookbehind", "other vocabularies are matched by their text"},
    {"token_healing", "prompts are taken as they are"},
    {"generation_kwargs", "each field is set by its own name"},
    {"chat_format", "set by the chat template"},
    {"max_window_size", "set by the cache"},
    {"constraints", "use force_words_ids"},
    {"stop_token_ids", "use eos_token_id"},
};

enum { N_UNUSED = sizeof unused / sizeof unused[0] };

/* N_UNUSED: not found. */
static int find_unused(const char *name) {
    int i = 0;
    while (i < N_UNUSED && strcmp(unused[i].name, name) != 0) i++;
    return i;
}

/* Whether a value requests nothing: null, false, an empty list or object. */
static bool requests_nothing(const json *value) {
    bool is_empty = (value->kind == JSON_OBJECT || value->kind == JSON_ARRAY) && value->n == 0;
    return value->kind == JSON_NULL || (value->kind == JSON_BOOL && !value->boolean) || is_empty;
}

/* A value of the program replaces that of the checkpoint. */
static void note_unused(mn_generation_config *config, int i, const json *value, bool is_checkpoint) {
    const uint64_t bit = UINT64_C(1) << i, noted = requests_nothing(value) ? 0 : bit;
    config->unused = (config->unused & ~bit) | (is_checkpoint ? 0 : noted);
    config->unused_of_checkpoint = (config->unused_of_checkpoint & ~bit) | (is_checkpoint ? noted : 0);
}

static mn_status note_unknown(mn_generation_config *config, const char *name, const json *value) {
    bytes text = {0};
    if (requests_nothing(value)) return MN_OK;
    if (config->unknown) bytes_printf(&text, "%s, ", config->unknown);
    bytes_append_text(&text, name);
    mn_status status = bytes_status(&text);
    char *copy = status == MN_OK ? mem_copy_text(text.data, text.n) : NULL;
    bytes_clear(&text);
    if (!copy) return MN_E_NOMEM;
    mem_free(config->unknown);
    config->unknown = copy;
    return MN_OK;
}

/* ---- values of a checkpoint that fields cannot take ---- */

/* Numbers that Transformers takes as "off". */
static const struct {
    const char *field;
    bool below, above; /* the range of the field */
} off_values[] = {
    {"min_new_tokens", true, false},
    {"min_length", true, false},
    {"top_p", false, true},
    {"typical_p", false, true},
    {"epsilon_cutoff", true, true},
    {"eta_cutoff", true, true},
    {"no_repeat_ngram_size", true, false},
    {"encoder_no_repeat_ngram_size", true, false},
    {"penalty_alpha", true, false},
    {"bos_token_id", true, false},
    {"pad_token_id", true, false},
};

/* Lists in which ids below 0, which no token has, are left out. */
static const char *const sets_of_ids[] = {"eos_token_id", "suppress_tokens", "begin_suppress_tokens"};

static bool is_off(const field_row *row, const json *value) {
    if (value->kind != JSON_INT && value->kind != JSON_REAL) return false;
    const double number = value->kind == JSON_INT ? (double)value->integer : value->real;
    for (size_t i = 0; i < sizeof off_values / sizeof *off_values; i++) {
        if (strcmp(off_values[i].field, row->name) == 0)
            return (off_values[i].below && number < row->lo) || (off_values[i].above && number > row->hi);
    }
    return false;
}

static bool is_set_of_ids(const char *name) {
    for (size_t i = 0; i < sizeof sets_of_ids / sizeof *sets_of_ids; i++) {
        if (strcmp(sets_of_ids[i], name) == 0) return true;
    }
    return false;
}

static void forget_wrong(mn_generation_config *config, const char *field) {
    for (size_t i = 0; i < config->n_wrong; i++) {
        if (strcmp(config->wrong[i].field, field) != 0) continue;
        mem_free(config->wrong[i].text);
        config->wrong[i] = config->wrong[--config->n_wrong];
        return;
    }
}

static mn_status note_wrong(mn_generation_config *config, const char *field, bool is_error, const char *text) {
    MN_TRY(mem_grow(&config->wrong, &config->wrong_capacity, config->n_wrong + 1, sizeof *config->wrong));
    wrong_value *wrong = &config->wrong[config->n_wrong];
    *wrong = (wrong_value){field, is_error, mem_copy_text(text, strlen(text))};
    if (!wrong->text) return mem_no_memory();
    config->n_wrong++;
    return MN_OK;
}

static mn_status note_ignored(mn_generation_config *config, const char *field, const json *value) {
    bytes text = {0};
    bytes_printf(&text, "%s ", field);
    json_put(&text, value);
    bytes_text(&text);
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = note_wrong(config, field, false, text.data);
    bytes_clear(&text);
    return status;
}

/* Sets a list without its ids below 0, of which the first is noted. */
static mn_status set_from_ids(mn_generation_config *config, const field_row *row, const json *value, const char *what) {
    const size_t n = value->kind == JSON_ARRAY ? value->n : 1;
    const json *ids = value->kind == JSON_ARRAY ? value->items : value, *below = NULL;
    json *items = mem_alloc(n, sizeof *items);
    if (!items) return mem_no_memory();
    json kept = {.kind = JSON_ARRAY, .items = items};
    for (size_t i = 0; i < n; i++) {
        const bool is_below = ids[i].kind == JSON_INT && ids[i].integer < 0;
        if (!is_below) items[kept.n++] = ids[i];
        if (is_below && !below) below = &ids[i];
    }
    mn_status status = field_set(row, config, &kept, what);
    mem_free(items);
    return status == MN_OK && below ? note_ignored(config, row->name, below) : status;
}

static mn_status set_from_checkpoint(mn_generation_config *config, const field_row *row, const json *value,
                                     const char *what) {
    forget_wrong(config, row->name);
    if (is_off(row, value)) {
        field_clear(row, config);
        return note_ignored(config, row->name, value);
    }
    const bool is_ids = is_set_of_ids(row->name) && value->kind != JSON_NULL;
    mn_status status = is_ids ? set_from_ids(config, row, value, what) : field_set(row, config, value, what);
    return status == MN_E_ARG ? note_wrong(config, row->name, true, mn_last_error()) : status;
}

static mn_status copy_wrong(mn_generation_config *config, const mn_generation_config *from) {
    mn_status status = MN_OK;
    for (size_t i = 0; i < from->n_wrong && status == MN_OK; i++) {
        const wrong_value *wrong = &from->wrong[i];
        status = note_wrong(config, wrong->field, wrong->is_error, wrong->text);
    }
    return status;
}

/* ---- fields without effect ---- */

/* Whether an option of the generation does what the field requests. */
static bool is_replaced(const char *name, const mn_generate_options *options) {
    return options && ((options->keep_scores && strcmp(name, "output_scores") == 0) ||
                       (options->keep_logits && strcmp(name, "output_logits") == 0));
}

static void put_name(bytes *names, const char *name) {
    bytes_printf(names, "%s%s", names->n ? ", " : "", name);
}

void generation_config_warn_unused(const mn_generation_config *config, const mn_generate_options *options,
                                   bytes *of_checkpoint, bytes *lines) {
    for (int i = 0; i < N_UNUSED; i++) {
        if (!unused[i].why || is_replaced(unused[i].name, options)) continue;
        if (config->unused >> i & 1)
            bytes_printf(lines, "%s was given but has no effect: %s\n", unused[i].name, unused[i].why);
        if (config->unused_of_checkpoint >> i & 1) put_name(of_checkpoint, unused[i].name);
    }
    for (size_t i = 0; i < config->n_wrong; i++) {
        if (!config->wrong[i].is_error) put_name(of_checkpoint, config->wrong[i].text);
    }
    if (config->unknown) put_name(of_checkpoint, config->unknown);
}

static int find_row(const char *name) {
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) return i;
    }
    return -1;
}

static mn_status unknown_field(const char *what, const char *name) {
    const char *nearest = rows[0].name;
    for (int i = 0; i < N_ROWS; i++) {
        const char *candidate = rows[i].name;
        if (text_distance(name, strlen(name), candidate, strlen(candidate)) <
            text_distance(name, strlen(name), nearest, strlen(nearest)))
            nearest = candidate;
    }
    MN_FAIL(MN_E_ARG, "%s: '%.60s' is no field of a generation config; the nearest is '%s'", what, name, nearest);
}

mn_status generation_config_set(mn_generation_config *config, const char *name, const json *value, const char *what) {
    int row = find_row(name), other = find_unused(name);
    if (row >= 0) {
        MN_TRY(field_set(&rows[row], config, value, what));
        forget_wrong(config, name);
        return MN_OK;
    }
    if (other == N_UNUSED) return unknown_field(what, name);
    note_unused(config, other, value, false);
    return MN_OK;
}

/* Name and options of a cache, each of which may be NULL; contradictions between them are reported when they are used.
 */
static mn_status check_cache_texts(const char *implementation, const char *config) {
    kv_plan plan;
    kv_config keys;
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = implementation;
    MN_TRY(kv_plan_make(&plan, &options, KV_BF16));
    return kv_config_read(&keys, config);
}

/* Cache settings of a program are checked when they are set. */
static mn_status check_cache(const char *name, const json *value, const char *what) {
    bool is_cache = strcmp(name, "cache_implementation") == 0 || strcmp(name, "cache_config") == 0;
    if (!is_cache || value->kind == JSON_NULL) return MN_OK;
    mn_generation_config only = {0};
    const field_row *row = &rows[find_row(name)];
    MN_TRY(field_set(row, &only, value, what));
    mn_status status = check_cache_texts(only.cache_implementation, only.cache_config);
    field_clear(row, &only);
    return status_context(status, "%s: %s", what, name);
}

/* Fields that an object keeps when it names another cache. */
typedef struct kept_fields {
    bool cache_config, use_cache;
} kept_fields;

/* Settings of one cache are dropped when another is named. */
static void forget_other_cache(mn_generation_config *config, const char *before, kept_fields kept) {
    const char *now = config->cache_implementation;
    if (now && !kept.cache_config && before && strcmp(before, now) != 0)
        field_clear(&rows[find_row("cache_config")], config);
    if (now && !kept.use_cache) config->use_cache = true;
}

static mn_status load_member(mn_generation_config *config, const json_member *member, bool is_checkpoint,
                             const char *what) {
    const int other = find_unused(member->key), row = find_row(member->key);
    if (is_checkpoint && row >= 0) return set_from_checkpoint(config, &rows[row], &member->value, what);
    if (is_checkpoint) {
        if (other == N_UNUSED) return note_unknown(config, member->key, &member->value);
        note_unused(config, other, &member->value, true);
        return MN_OK;
    }
    if (!is_checkpoint) MN_TRY(check_cache(member->key, &member->value, what));
    return generation_config_set(config, member->key, &member->value, what);
}

static mn_status load(mn_generation_config *config, const json *object, bool is_checkpoint, kept_fields kept,
                      const char *what) {
    const char *named = config->cache_implementation;
    char *before = named ? mem_copy_text(named, strlen(named)) : NULL;
    mn_status status = named && !before ? MN_E_NOMEM : MN_OK;
    for (size_t i = 0; status == MN_OK && i < object->n; i++)
        status = load_member(config, &object->members[i], is_checkpoint, what);
    if (status == MN_OK && json_get(object, "cache_implementation")) forget_other_cache(config, before, kept);
    mem_free(before);
    return status;
}

mn_status generation_config_load(mn_generation_config *config, const json *object, bool is_checkpoint,
                                 const char *what) {
    if (object->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "%s: a JSON object was expected", what);
    kept_fields kept = {json_get(object, "cache_config") != NULL, json_get(object, "use_cache") != NULL};
    return load(config, object, is_checkpoint, kept, what);
}

static void mark_set(mn_generation_config *config, const char *name) {
    int row = find_row(name);
    if (row >= 0) config->set_fields |= UINT64_C(1) << row;
}

bool generation_config_is_set(const mn_generation_config *config, const char *name) {
    int row = find_row(name);
    assert(row >= 0);
    return config->set_fields >> row & 1;
}

/* Sets one field from `text`. */
static mn_status set_from_text(mn_generation_config *config, int row, const char *text, const char *what) {
    json_doc *value = NULL;
    MN_TRY(json_parse(&value, text, strlen(text), JSON_STRICT, rows[row].name));
    mn_status status = field_set(&rows[row], config, json_root(value), what);
    json_close(&value);
    return status;
}

static mn_status copy_field(mn_generation_config *config, const mn_generation_config *from, int row) {
    bytes text = {0};
    field_put(&rows[row], from, &text);
    bytes_text(&text);
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = set_from_text(config, row, text.data, "copy");
    bytes_clear(&text);
    return status;
}

mn_status generation_config_copy(mn_generation_config **out, const mn_generation_config *from) {
    *out = NULL;
    mn_generation_config *config = mem_alloc(1, sizeof *config);
    if (!config) return MN_E_NOMEM;
    mn_status status = MN_OK;
    for (int i = 0; status == MN_OK && i < N_ROWS; i++) {
        status = from ? copy_field(config, from, i) : set_from_text(config, i, standards[i], "default");
    }
    if (status == MN_OK && from) status = copy_wrong(config, from);
    if (status == MN_OK && from && from->unknown) {
        config->unknown = mem_copy_text(from->unknown, strlen(from->unknown));
        if (!config->unknown) status = MN_E_NOMEM;
    }
    if (status != MN_OK) {
        mn_generation_config_close(&config);
        return status;
    }
    config->set_fields = from ? from->set_fields : 0;
    config->unused = from ? from->unused : 0;
    config->unused_of_checkpoint = from ? from->unused_of_checkpoint : 0;
    *out = config;
    return MN_OK;
}

void mn_generation_config_close(mn_generation_config **config) {
    if (!*config) return;
    for (int i = 0; i < N_ROWS; i++) field_clear(&rows[i], *config);
    for (size_t i = 0; i < (*config)->n_wrong; i++) mem_free((*config)->wrong[i].text);
    mem_free((*config)->wrong);
    mem_free((*config)->unknown);
    mem_free(*config);
    *config = NULL;
}

mn_status mn_generation_config_set(mn_generation_config *config, const char *name, const char *value) {
    json_doc *doc = NULL;
    mn_status status = json_parse(&doc, value, strlen(value), JSON_STRICT, name);
    if (status == MN_E_FORMAT) MN_FAIL(MN_E_ARG, "%.60s is %.60s, which is not JSON", name, value);
    MN_TRY(status);
    const json_member member = {name, strlen(name), *json_root(doc)};
    const json object = {.kind = JSON_OBJECT, .n = 1, .members = &member};
    kept_fields kept = {generation_config_is_set(config, "cache_config"),
                        generation_config_is_set(config, "use_cache")};
    status = load(config, &object, false, kept, "generation config");
    if (status == MN_OK) mark_set(config, name);
    json_close(&doc);
    return status;
}

mn_status mn_generation_config_load(mn_generation_config *config, const char *text, size_t n_text) {
    json_doc *doc = NULL;
    mn_generation_config *loaded = NULL;
    MN_TRY(json_parse(&doc, text, n_text, JSON_PYTHON, "generation config"));
    mn_status status = generation_config_copy(&loaded, config);
    const json *root = json_root(doc);
    if (status == MN_OK) status = generation_config_load(loaded, root, false, "generation config");
    if (status == MN_OK) { /* all fields or none */
        mn_generation_config before = *config;
        *config = *loaded;
        *loaded = before;
        for (size_t i = 0; i < root->n; i++) mark_set(config, root->members[i].key);
    }
    mn_generation_config_close(&loaded);
    json_close(&doc);
    return status;
}

char *mn_generation_config_get(const mn_generation_config *config, const char *name) {
    int row = find_row(name);
    if (row < 0) return NULL;
    bytes out = {0};
    field_put(&rows[row], config, &out);
    char *text = out.failed ? NULL : mem_copy_text(out.data, out.n);
    bytes_clear(&out);
    return text;
}

const mn_generation_field *mn_generation_field_at(int index) {
    return index >= 0 && index < N_ROWS ? &fields[index] : NULL;
}
