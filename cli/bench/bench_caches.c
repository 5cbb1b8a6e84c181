/* Comparison of caches on one text. Its first tokens are the prompt, given in one call; the others follow one by one,
 * as in generation. A text that is too short is continued by greedy generation with `dynamic`. After the prompt and
 * every token but the last the distribution of the next token is compared with that of `dynamic`; every cache gets the
 * same tokens. Only the steps are timed. Rows are printed as they are measured.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "bench/bench_caches.h"
#include "bench/comparison.h"
#include "bench/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "config.h"
#include "loaded_model.h"
#include "input.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"

enum {
    MOST_CASES = 64,
    MOST_REPETITIONS = 99,
    MOST_TOKENS = 1 << 24,
    STANDARD_NEW = 128,
    SENTENCE = 320,
};

typedef struct cache_case {
    const cache_choice *is;
    char refused[SENTENCE];   /* why it is not measured; "": it was */
    cache_measure m;          /* of the last repetition */
    long peak_rss;            /* bytes of the process at most while this was measured */
    bytes text;               /* --texts: generated after the prompt */
    double prompt_ms, new_ms; /* medians */
} cache_case;

typedef struct comparison {
    const options *o;
    loaded_model e;
    prompt text;
    compared_text t;  /* its first n_prompt tokens and the n_new behind them */
    const char *form; /* md, csv, json, jsonl */
    bool has_texts;
    mn_generation_config *config; /* of the texts */
    cache_choice *choices;        /* [n_cases] */
    cache_case *cases;
    int n_cases, repetitions, width; /* width: of the table's first column */
    size_t n_prompt, n_new;
} comparison;

/* ---- options ---- */

static bool is_list(const char *names) {
    return strchr(names, ',') && !strchr(names, '=');
}

bool bench_compares(const options *o) {
    const char *names = option_text(o, OPT_CACHE, "");
    return strcmp(names, "all") == 0 || is_list(names) || input_is_given(o);
}

/* A number of an option that may hold a list otherwise. */
static mn_status read_number(const options *o, option_id id, int lo, int hi, int *value) {
    const char *text = option_text(o, id, NULL);
    char *end = NULL;
    if (!text) return MN_OK;
    long number = strtol(text, &end, 10);
    if (end == text || *end || number < lo || number > hi) {
        MN_FAIL(MN_E_ARG, "--%s is '%.40s'; allowed where caches are compared: one number from %d to %d",
                option_table[id].name, text, lo, hi);
    }
    *value = (int)number;
    return MN_OK;
}

static mn_status check_options(const options *o) {
    static const option_id others[] = {OPT_N_DEPTH, OPT_PG, OPT_PARALLEL};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (option_is_set(o, others[i]))
            MN_FAIL(MN_E_ARG, "--%s has no meaning when caches are compared on a text; use -p and -n",
                    option_table[others[i]].name);
    }
    return MN_OK;
}

/* Prompt and new tokens: -p and -n, else the text with its last tokens new. */
static mn_status resolve_lengths(comparison *c) {
    int given = 0, fresh = 0;
    size_t n = c->text.n, context = (size_t)c->e.info.max_position_embeddings;
    MN_TRY(read_number(c->o, OPT_N_PROMPT, 1, MOST_TOKENS, &given));
    MN_TRY(read_number(c->o, OPT_N_GEN, 1, MOST_TOKENS, &fresh));
    if (c->t.cache.max_cache_len > 0) context = (size_t)c->t.cache.max_cache_len;
    if (context > 0 && n > context) {
        if (input_is_given(c->o))
            print_message("warning: the text has %zu tokens; its first %zu are used, which is what %s holds", n,
                          context, c->t.cache.max_cache_len > 0 ? "max_cache_len" : "the model's context");
        n = context;
    }
    c->n_new = fresh ? (size_t)fresh : n < 2 * STANDARD_NEW ? (n + 1) / 2 : STANDARD_NEW;
    if (given > 0) {
        if ((size_t)given > n) MN_FAIL(MN_E_ARG, "--n-prompt is %d, but the text has %zu tokens", given, n);
        c->n_prompt = (size_t)given;
        if (!fresh && n > c->n_prompt) c->n_new = n - c->n_prompt;
    } else {
        c->n_prompt = n > c->n_new ? n - c->n_new : n;
    }
    if (context > 0 && c->n_prompt + c->n_new > context) {
        MN_FAIL(MN_E_ARG, "%zu tokens and %zu new ones pass %zu, which %s; shorten them%s", c->n_prompt, c->n_new,
                context, c->t.cache.max_cache_len > 0 ? "is max_cache_len" : "the model's context holds",
                loaded_model_beyond(&c->e));
    }
    c->t.n = c->n_prompt + c->n_new;
    c->t.n_text = n < c->t.n ? n : c->t.n;
    return MN_OK;
}

static mn_status take_text(comparison *c) {
    const segment fresh = {c->n_prompt, c->n_new, true};
    c->t.ids = mem_alloc(c->t.n, sizeof *c->t.ids);
    if (!c->t.ids) return mem_no_memory();
    memcpy(c->t.ids, c->text.ids, c->t.n_text * sizeof *c->t.ids);
    return comparison_plan(&c->t, &fresh, 1);
}

/* ---- the cases ---- */

static bool names_all(const comparison *c) {
    return strcmp(option_text(c->o, OPT_CACHE, ""), "all") == 0;
}

static mn_status list_choices(comparison *c) {
    const char *names = option_text(c->o, OPT_CACHE, "dynamic");
    c->choices = mem_alloc(MOST_CASES, sizeof *c->choices);
    if (!c->choices) return mem_no_memory();
    if (names_all(c)) {
        cache_list_all(c->choices, c->t.n);
        c->n_cases = LISTED_CACHES;
        return MN_OK;
    }
    for (const char *at = names; *at;) {
        size_t n = is_list(names) ? strcspn(at, ",") : strlen(at);
        if (c->n_cases == MOST_CASES) MN_FAIL(MN_E_ARG, "more than %d caches", (int)MOST_CASES);
        if (n >= CACHE_NAME) MN_FAIL(MN_E_ARG, "cache implementation is '%.60s...', which is no name", at);
        memcpy(c->choices[c->n_cases++].name, at, n);
        at += n + (at[n] == ',');
    }
    return MN_OK;
}

/* With --cache all a cache that is the same as another on this model is left out. */
static mn_status make_cases(comparison *c) {
    bytes left_out = {0};
    mn_status status = MN_OK;
    if (names_all(c)) status = cache_list_drop_same(c->choices, &c->n_cases, c->e.model, &c->t.cache, &left_out);
    if (status == MN_OK && left_out.n)
        print_message("left out, each the same on this model as the one in parentheses: %s; a list, as in --cache "
                      "dynamic,hybrid, measures both",
                      bytes_text(&left_out));
    bytes_clear(&left_out);
    if (status == MN_OK) c->cases = mem_alloc((size_t)c->n_cases, sizeof *c->cases);
    if (status == MN_OK && !c->cases) return mem_no_memory();
    for (int i = 0; status == MN_OK && i < c->n_cases; i++) c->cases[i].is = &c->choices[i];
    return status;
}

/* --cache-config as key=value,...; a JSON object is converted. */
static mn_status given_config(const comparison *c, bytes *out) {
    const char *text = option_text(c->o, OPT_CACHE_CONFIG, "");
    if (text[strspn(text, " \t\n")] != '{') {
        bytes_append_text(out, text);
    } else {
        json_doc *doc = NULL;
        MN_TRY(json_parse(&doc, text, strlen(text), JSON_STRICT, "--cache-config"));
        const json *root = json_root(doc);
        for (size_t i = 0; i < root->n; i++) {
            const json_member *member = &root->members[i];
            if (member->value.kind == JSON_NULL) continue;
            bytes_printf(out, "%s%s=", i ? "," : "", member->key);
            if (member->value.kind == JSON_STRING) {
                bytes_append(out, member->value.string, member->value.n);
            } else {
                json_put(out, &member->value);
            }
        }
        json_close(&doc);
    }
    bytes_text(out);
    return bytes_status(out);
}

/* Applies --cache-config to the caches that accept it; MN_E_ARG when none does. */
static mn_status configure_choices(comparison *c) {
    bytes given = {0};
    mn_status status = given_config(c, &given);
    int n_taken = 0;
    for (int i = 0; status == MN_OK && given.n && i < c->n_cases; i++) {
        cache_choice with = c->choices[i];
        size_t used = strlen(with.config);
        int n = snprintf(with.config + used, sizeof with.config - used, "%s%s", used ? "," : "", bytes_text(&given));
        mn_cache_options how = cache_choice_options(&with, &c->t.cache);
        if (n >= (int)(sizeof with.config - used)) {
            status = status_fail(MN_E_ARG, "--cache-config has %zu bytes; that is too long here", given.n);
        } else if (mn_cache_check(&how, NULL) == MN_OK) {
            c->choices[i] = with;
            n_taken++;
        }
    }
    if (status == MN_OK && given.n && n_taken == 0)
        status = status_fail(MN_E_ARG, "no cache here takes the options: %.250s", mn_last_error());
    bytes_clear(&given);
    return status == MN_E_FORMAT ? MN_E_ARG : status;
}

/* ---- printing ---- */

static double rate(size_t n, double ms) {
    return n > 0 && ms > 0 ? (double)n * 1e3 / ms : NAN;
}

static double perplexity(double nll, size_t n) {
    return exp(nll / (double)n);
}

static void put_case(bytes *b, const comparison *c, const cache_case *k) {
    bool ran = !*k->refused;
    size_t n = c->n_new;
    json_put_text_member(b, "cache_implementation", k->is->name);
    json_put_text_member(b, "cache_config", k->is->config);
    json_put_text_member(b, "refused", k->refused);
    if (ran) {
        json_put_text_member(b, "cache_dtype", k->m.dtype);
        bytes_printf(b,
                     ",\"cache_tokens\":%lld,\"cache_seen\":%lld,\"cache_bytes\":%llu,\"cache_peak_bytes\":%llu,"
                     "\"cache_offloaded_bytes\":%llu,\"bytes_per_token\":%llu,\"peak_rss\":%ld",
                     (long long)k->m.cache.tokens, (long long)k->m.cache.seen, (unsigned long long)k->m.cache.bytes,
                     (unsigned long long)k->m.cache.peak_bytes, (unsigned long long)k->m.cache.offloaded_bytes,
                     (unsigned long long)k->m.cache.bytes_per_token, k->peak_rss);
        json_put_real_member(b, "prefill_per_second", rate(c->n_prompt, k->prompt_ms));
        json_put_real_member(b, "decode_per_second", rate(n - 1, k->new_ms));
        json_put_real_member(b, "total_ms", k->prompt_ms + k->new_ms);
        bytes_printf(b, ",\"compared_tokens\":%zu,\"same_tokens\":%zu", n, k->m.same);
        json_put_real_member(b, "kl_divergence", k->m.kl / (double)n);
        json_put_real_member(b, "perplexity", perplexity(k->m.nll, n));
        json_put_real_member(b, "perplexity_change", perplexity(k->m.nll - k->m.reference_nll, n) - 1);
        if (c->has_texts) {
            bytes_append_text(b, ",\"generated_text\":");
            json_put_string(b, k->text.data ? k->text.data : "", k->text.n);
        }
    }
}

/* What all rows have in common. */
static void put_common(bytes *b, const comparison *c) {
    json_put_text_member(b, "model", c->e.path);
    json_put_text_member(b, "text", c->t.source);
    bytes_printf(b, ",\"n_prompt\":%zu,\"n_gen\":%zu,\"n_generated\":%zu,\"n_threads\":%d,\"repetitions\":%d",
                 c->n_prompt, c->n_new, c->t.n - c->t.n_text, c->e.info.threads, c->repetitions);
}

static void put_json(bytes *b, const comparison *c) {
    bytes_append_text(b, "{");
    put_common(b, c);
    bytes_append_text(b, ",\"caches\":[");
    for (int i = 0; i < c->n_cases; i++) {
        bytes_append_text(b, i ? ",{" : "{");
        put_case(b, c, &c->cases[i]);
        bytes_append_text(b, "}");
    }
    bytes_append_text(b, "]}\n");
}

/* One complete object on a line. */
static void put_line(bytes *b, const comparison *c, const cache_case *k) {
    bytes_append_text(b, "{");
    put_common(b, c);
    put_case(b, c, k);
    bytes_append_text(b, "}");
}

static const char *const csv_columns[] = {"model",
                                          "text",
                                          "n_prompt",
                                          "n_gen",
                                          "n_generated",
                                          "n_threads",
                                          "repetitions",
                                          "cache_implementation",
                                          "cache_config",
                                          "refused",
                                          "cache_dtype",
                                          "cache_tokens",
                                          "cache_seen",
                                          "cache_bytes",
                                          "cache_peak_bytes",
                                          "cache_offloaded_bytes",
                                          "bytes_per_token",
                                          "peak_rss",
                                          "prefill_per_second",
                                          "decode_per_second",
                                          "total_ms",
                                          "compared_tokens",
                                          "same_tokens",
                                          "kl_divergence",
                                          "perplexity",
                                          "perplexity_change",
                                          "generated_text"};

/* The same columns for every row, empty where it has no value. NULL: the names of the columns. */
static void put_csv(bytes *b, const comparison *c, const cache_case *k) {
    bytes object = {0}, value = {0};
    json_doc *doc = NULL;
    if (k) put_line(&object, c, k);
    if (k && json_parse(&doc, bytes_text(&object), object.n, JSON_STRICT, "row") != MN_OK) b->failed = true;
    for (size_t i = 0; i + !c->has_texts < sizeof csv_columns / sizeof *csv_columns; i++) {
        const json *member = doc ? json_get(json_root(doc), csv_columns[i]) : NULL;
        bool is_text = member && member->kind == JSON_STRING;
        value.n = 0;
        if (member && !is_text) json_put(&value, member);
        if (is_text) bytes_append(&value, member->string, member->n);
        if (!k) bytes_append_text(&value, csv_columns[i]);
        bytes_append_text(b, i ? "," : "");
        bench_put_csv(b, value.data ? value.data : "", value.n);
    }
    bytes_append_text(b, "\n");
    b->failed = b->failed || object.failed || value.failed;
    json_close(&doc);
    bytes_clear(&object);
    bytes_clear(&value);
}

static void put_row(bytes *b, const comparison *c, const cache_case *k) {
    char name[3 * CACHE_NAME + 2], size[FIGURE], peak[FIGURE], rates[2][FIGURE], same[48], change[32];
    size_t n = c->n_new;
    snprintf(name, sizeof name, "%s%s%s", k->is->name, *k->is->config ? " " : "", k->is->config);
    figure_size(size, k->m.cache.bytes);
    figure_size(peak, k->m.cache.peak_bytes);
    figure_rate(rates[0], rate(c->n_prompt, k->prompt_ms));
    figure_rate(rates[1], rate(n - 1, k->new_ms));
    snprintf(same, sizeof same, "%zu of %zu", k->m.same, n);
    snprintf(change, sizeof change, "%+.2f %%", (perplexity(k->m.nll - k->m.reference_nll, n) - 1) * 100);
    bytes_printf(b, "| %-*s | %10s | %10s | %11s | %10s | %7.2f | %14s | %8.5f | %10.3f | %10s |\n", c->width, name,
                 size, peak, rates[0], rates[1], (k->prompt_ms + k->new_ms) / 1e3, same, k->m.kl / (double)n,
                 perplexity(k->m.nll, n), change);
}

static void put_head(bytes *b, const comparison *c) {
    bytes_printf(
        b,
        "| %-*s |      bytes |       peak | prefill t/s | decode t/s | seconds |    same tokens | KL, nats | perplexity |"
        "     change |\n| %.*s | ---------: | ---------: | ----------: | ---------: | ------: | -------------: | -------: |"
        " ---------: | ---------: |\n",
        c->width, "cache", c->width,
        "----------------------------------------------------------------------"
        "----------------------------------------------------------------------"
        "----------------------------------------------------------------------");
}

/* Below the table. */
static void put_notes(bytes *b, const comparison *c) {
    for (int i = 0; i < c->n_cases; i++) {
        const cache_case *k = &c->cases[i];
        const char *why = strncmp(k->refused, "left out", 8) == 0 ? "" : "refused: ";
        if (*k->refused)
            bytes_printf(b, "%s%s%s: %s%s\n", k->is->name, *k->is->config ? " " : "", k->is->config, why, k->refused);
    }
    bytes_printf(b, "\nText (%s): a prompt of %zu tokens, then %zu one by one", c->t.source, c->n_prompt, c->n_new);
    size_t own = c->t.n - c->t.n_text;
    if (own) bytes_printf(b, ", of which dynamic chose the last %zu", own);
    bytes_printf(
        b,
        "; %d threads; medians of %d. Same tokens, KL and change are against dynamic. Bytes are held at the end, peak is the most.\n",
        c->e.info.threads, c->repetitions);
    for (int i = 0; c->has_texts && i < c->n_cases; i++) {
        const cache_case *k = &c->cases[i];
        if (*k->refused) continue;
        bytes_printf(b, "\n==> %s%s%s <==\n", k->is->name, *k->is->config ? " " : "", k->is->config);
        bytes_append(b, k->text.data ? k->text.data : "", k->text.n);
        bytes_append_text(b, "\n");
    }
}

static bool has_form(const comparison *c, const char *form) {
    return strcmp(c->form, form) == 0;
}

static void print_head(comparison *c) {
    bytes b = {0};
    c->width = 5;
    for (int i = 0; i < c->n_cases; i++) {
        int n = (int)(strlen(c->cases[i].is->name) + strlen(c->cases[i].is->config)) + 1;
        if (n > c->width) c->width = n;
    }
    if (has_form(c, "md")) put_head(&b, c);
    if (has_form(c, "csv")) put_csv(&b, c, NULL);
    put_bytes(&b);
}

static void print_case(const comparison *c, const cache_case *k) {
    bytes b = {0};
    if (has_form(c, "md") && !*k->refused) put_row(&b, c, k);
    if (has_form(c, "csv")) put_csv(&b, c, k);
    if (has_form(c, "jsonl")) {
        put_line(&b, c, k);
        bytes_append_text(&b, "\n");
    }
    put_bytes(&b);
}

/* The output after the rows. */
static void print_tail(const comparison *c) {
    bytes b = {0};
    if (has_form(c, "md")) put_notes(&b, c);
    if (has_form(c, "json")) put_json(&b, c);
    put_bytes(&b);
}

/* ---- measuring ---- */

/* Resets the peak of resident memory, where the system allows it. */
static void reset_peak(void) {
    file_append("/proc/self/clear_refs", "5", 1);
}

static long peak_now(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
}

/* Generates greedily with this cache after the prompt. */
static mn_status write_text(comparison *c, cache_case *k) {
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    MN_TRY(comparison_open(&session, &c->t, k->is));
    interrupt_watch(session);
    mn_status status = mn_generate(session, c->t.ids, c->n_prompt, c->config, NULL, &generation);
    interrupt_unwatch();
    if (status == MN_OK) {
        const mn_sequence *sequence = generation->sequences[0];
        for (size_t i = 0; !sequence->text && i < sequence->n_ids; i++)
            bytes_printf(&k->text, i ? ",%d" : "%d", (int)sequence->ids[i]);
        if (sequence->text) bytes_append(&k->text, sequence->text, sequence->n_text);
        status = interrupt_seen() ? status_fail(MN_E_CANCELLED, "cancelled") : bytes_status(&k->text);
    }
    mn_generation_close(&generation);
    mn_session_close(&session);
    return status;
}

static mn_status measure_case(comparison *c, cache_case *k) {
    double samples[2][MOST_REPETITIONS];
    reset_peak();
    for (int i = 0; i < c->repetitions; i++) {
        MN_TRY(comparison_run(&c->t, k->is, &k->m));
        samples[0][i] = k->m.prompt_ms;
        samples[1][i] = k->m.new_ms[0];
    }
    k->peak_rss = peak_now();
    k->prompt_ms = median_of(samples[0], (size_t)c->repetitions);
    k->new_ms = median_of(samples[1], (size_t)c->repetitions);
    return c->has_texts ? write_text(c, k) : MN_OK;
}

/* A failed case keeps the reason and the others are measured; only cancelling ends the comparison. */
static mn_status measure(comparison *c, cache_case *k) {
    if (*k->refused) return MN_OK;
    mn_status status = measure_case(c, k);
    if (status == MN_OK || status == MN_E_CANCELLED) return status;
    snprintf(k->refused, sizeof k->refused, "%.300s", mn_last_error());
    return MN_OK;
}

/* Times the prompt once more, with warm caches. */
static mn_status time_prompt(comparison *c, double *ms) {
    mn_session *session = NULL;
    const cache_choice dynamic = {"dynamic", ""};
    MN_TRY(comparison_open(&session, &c->t, &dynamic));
    double start = clock_ms();
    mn_status status = mn_session_step(session, c->t.ids, c->n_prompt, NULL);
    *ms = clock_ms() - start;
    mn_session_close(&session);
    return status;
}

/* `none` computes the whole text for every token. The time it will take is printed first; with --cache all it is left
 * out if it would take longer than all others together. */
static mn_status resolve_none(comparison *c, double new_ms) {
    double n = (double)c->n_new, computed = (double)c->n_prompt * n + n * (n - 1) / 2, prompt_ms = 0;
    cache_case *none = NULL;
    for (int i = 0; i < c->n_cases; i++) {
        if (strcmp(c->cases[i].is->name, "none") == 0) none = &c->cases[i];
    }
    if (!none) return MN_OK;
    MN_TRY(time_prompt(c, &prompt_ms));
    double rounds = c->repetitions + c->has_texts, token_ms = prompt_ms / (double)c->n_prompt;
    if (c->n_new > 1) token_ms = fmin(token_ms, new_ms / (n - 1));
    double alone = computed * token_ms * rounds / 1e3, others = (c->n_cases - 1) * (prompt_ms + new_ms) * rounds / 1e3;
    if (!names_all(c) || alone <= others) {
        print_message("none computes the whole text for every token: about %.1f s", alone);
        return MN_OK;
    }
    snprintf(
        none->refused, sizeof none->refused,
        "left out: it computes the whole text for every token, which takes about %.1f s, all others together about %.1f s; "
        "--cache none,dynamic measures it",
        alone, others);
    print_message("none is %s", none->refused);
    return MN_OK;
}

static mn_status measure_all(comparison *c) {
    cache_measure reference;
    MN_TRY(comparison_run_reference(&c->t, &reference));
    MN_TRY(resolve_none(c, reference.new_ms[0]));
    print_head(c);
    for (int i = 0; i < c->n_cases; i++) {
        MN_TRY(measure(c, &c->cases[i]));
        print_case(c, &c->cases[i]);
    }
    return MN_OK;
}

/* ---- the comparison ---- */

static mn_status read_options(comparison *c) {
    c->repetitions = 1;
    c->form = option_text(c->o, OPT_OUTPUT, option_on(c->o, OPT_JSON) ? "json" : "md");
    c->has_texts = option_on(c->o, OPT_TEXTS);
    MN_TRY(check_options(c->o));
    MN_TRY(read_number(c->o, OPT_REPETITIONS, 1, MOST_REPETITIONS, &c->repetitions));
    mn_cache_options_init(&c->t.cache, sizeof c->t.cache);
    MN_TRY(cache_options_read(c->o, &c->t.cache));
    c->t.cache.config = NULL;
    return MN_OK;
}

/* Texts are generated greedily, regardless of the model's own configuration. */
static mn_status open_config(comparison *c) {
    char length[32];
    if (!c->has_texts) return MN_OK;
    snprintf(length, sizeof length, "%zu", c->n_new);
    MN_TRY(mn_generation_config_open(&c->config, c->e.model));
    MN_TRY(mn_generation_config_set(c->config, "do_sample", "false"));
    MN_TRY(mn_generation_config_set(c->config, "max_length", "null"));
    return mn_generation_config_set(c->config, "max_new_tokens", length);
}

static int compare_all(comparison *c) {
    const options *o = c->o;
    int threads = 0;
    mn_status status = read_options(c);
    if (status == MN_OK) status = read_number(o, OPT_BENCH_THREADS, 1, MN_MOST_THREADS, &threads);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    int code = loaded_model_open(&c->e, o, o->n_positional ? o->positional[0] : NULL, threads);
    if (code != EXIT_DONE) return code;
    c->t.model = c->e.model;
    c->t.vocab_size = (size_t)c->e.info.vocab_size;
    status = comparison_read_text(&c->text, &c->t.source, o, &c->e);
    if (status == MN_OK) status = resolve_lengths(c);
    if (status == MN_OK) status = take_text(c);
    if (status == MN_OK) status = list_choices(c);
    if (status == MN_OK) status = configure_choices(c);
    if (status == MN_OK) status = make_cases(c);
    if (status == MN_OK) status = open_config(c);
    if (status == MN_OK) status = measure_all(c);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    print_tail(c);
    return EXIT_DONE;
}

int bench_caches(const options *o) {
    comparison c = {.o = o};
    int code = compare_all(&c);
    for (int i = 0; c.cases && i < c.n_cases; i++) bytes_clear(&c.cases[i].text);
    mem_free(c.cases);
    mem_free(c.choices);
    mn_generation_config_close(&c.config);
    comparison_clear(&c.t);
    prompt_clear(&c.text);
    loaded_model_close(&c.e);
    return code;
}
