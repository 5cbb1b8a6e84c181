/* `mneme run`: one prompt streamed, or a batch; text, ids or messages in, text or JSON out.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "batch.h"
#include "config.h"
#include "engine.h"
#include "input.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "result.h"
#include "verbs.h"

typedef struct run {
    const options *o;
    const char *model_name; /* positional MODEL, or NULL */
    input in;
    json_doc *file; /* --generation-config, or NULL */
    mn_cache_options cache;
    mn_cache_summary kind; /* of the cache; of a batch: of its first row's */
    engine e, draft;       /* the latter: of --assistant-model */
    prompt negative;       /* --negative-prompt */
    batch batch;
    prompt *prompts; /* views of the lines' prompts, for the result */
    bytes prefix;    /* --prefix-file */
    mn_session *session;
    mn_session *common; /* what the prompts behind a prefix have in common */
    bool has_text;      /* a prompt was given, in whatever way */
    mn_generation *generation;
    bool streamed;       /* some text has been printed */
    char last;           /* its last byte */
    int64_t longest;     /* tokens that the cache of the longest row will hold */
    size_t n_new;        /* tokens seen by the callback */
    int64_t n_sequences; /* returned for the prompt: several are printed one after the other at the end */
    double first_ms;
} run;

static bool is_batch(const run *r) {
    return r->in.kind == INPUT_BATCH;
}

/* ---- what is asked for ---- */

static bool looks_like_path(const char *text) {
    size_t n = strlen(text);
    if (strpbrk(text, " \t\r\n")) return false;
    return text[0] == '/' || strncmp(text, "./", 2) == 0 || strncmp(text, "../", 3) == 0 ||
           (n > 5 && strcmp(text + n - 5, ".gguf") == 0);
}

/* Two positional arguments are MODEL TEXT. A lone one is the TEXT when a model is said otherwise, the MODEL
 * when a text is said otherwise or when it leads to one, else the TEXT. */
static mn_status read_positional(run *r, const char **text) {
    const options *o = r->o;
    MN_TRY(positional_pair(&r->model_name, text, o));
    if (o->n_positional == 1) {
        const char *lone = o->positional[0];
        bool model_said = option_is_set(o, OPT_MODEL) && o->set[OPT_MODEL].origin == ORIGIN_FLAG;
        char *path = NULL;
        bool is_model = !model_said && *lone &&
                        (input_is_said(o) || looks_like_path(lone) || model_path(&path, o, lone) == MN_OK);
        mn_free(path);
        *(is_model ? &r->model_name : text) = lone;
    }
    return MN_OK;
}

static mn_status check_outputs(const options *o) {
    if (option_is_set(o, OPT_SAVE_CACHE)) MN_TRY(file_check_target(option_text(o, OPT_SAVE_CACHE, NULL)));
    if (option_is_set(o, OPT_LOAD_CACHE) && option_is_set(o, OPT_CACHE_DIR))
        MN_FAIL(MN_E_ARG,
                "--load-cache and --cache-dir both say where the cache comes from; give one of them");
    for (option_id id = OPT_SAVE_CACHE; id <= OPT_CACHE_DIR; id++) {
        if (option_is_set(o, id) && option_is_set(o, OPT_BATCH))
            MN_FAIL(
                MN_E_ARG,
                "--batch has a cache for every row; --save-cache, --load-cache and --cache-dir are for one");
    }
    for (option_id id = OPT_SCORES_OUT; id <= OPT_LOGITS_OUT; id++) {
        if (option_is_set(o, id)) MN_TRY(file_check_target(option_text(o, id, NULL)));
    }
    if (option_is_set(o, OPT_LOGPROBS) && !option_on(o, OPT_JSON) && !option_is_set(o, OPT_BATCH)) {
        MN_FAIL(MN_E_ARG, "--logprobs shows in JSON only; add --json");
    }
    return MN_OK;
}

/* Everything that can be refused before a model is opened. */
static int prepare(run *r) {
    const char *text = NULL;
    mn_status status = read_positional(r, &text);
    if (status != MN_OK) return report(r->o, exit_of(status), NULL);
    r->cache = mn_cache_options_default();
    status = cache_options_read(r->o, &r->cache);
    if (status != MN_OK) return report(r->o, exit_of(status), "cache");
    status = generation_file_read(&r->file, r->o);
    if (status != MN_OK) return report(r->o, exit_of(status), "generation_config");
    status = cache_check_named(&r->cache);
    if (status != MN_OK) return report(r->o, exit_of(status), "cache");
    status = check_outputs(r->o);
    const char *prefix = option_text(r->o, OPT_PREFIX_FILE, NULL);
    if (status == MN_OK && prefix) status = file_read_input(&r->prefix, prefix, (size_t)1 << 30);
    if (status != MN_OK) return report(r->o, exit_of(status), NULL);
    if (option_on(r->o, OPT_PRINT_CONFIG)) return EXIT_DONE;
    r->has_text = text != NULL || input_is_said(r->o);
    if (!r->has_text && option_is_set(r->o, OPT_LOAD_CACHE)) return EXIT_DONE;
    status = input_read(&r->in, r->o, text);
    return status == MN_OK ? EXIT_DONE : report(r->o, exit_of(status), "prompt");
}

/* ---- rows ---- */

/* A loaded cache without a text is continued as it stands. */
static bool continues(const run *r) {
    return option_is_set(r->o, OPT_LOAD_CACHE) && !r->in.data.n && !r->has_text;
}

static mn_status read_batch(run *r) {
    const batch_setup setup = {
        .o = r->o, .in = &r->in, .prefix = &r->prefix, .model = r->e.model, .file = r->file};
    return batch_read(&r->batch, &setup);
}

/* One text behind the prefix is a longer text. */
static mn_status put_prefix_first(run *r) {
    if (!r->prefix.n) return MN_OK;
    if (r->in.kind != INPUT_TEXT)
        MN_FAIL(MN_E_ARG, "--prefix-file stands before texts; %s is none", r->in.what);
    bytes all = r->prefix;
    bytes_append(&all, r->in.data.data, r->in.data.n);
    r->prefix = (bytes){0};
    bytes_clear(&r->in.data);
    r->in.data = all;
    return bytes_status(&all);
}

static mn_status read_one(run *r) {
    batch_line *line = NULL;
    MN_TRY(batch_add(&r->batch, &line));
    if (continues(r)) {
        MN_TRY(generation_build(&line->config, r->o, r->e.model, r->file, NULL));
        MN_TRY(generation_cache(&r->cache, &r->kind, line->config));
        MN_TRY(session_open(&r->session, r->o, r->e.model, &r->cache));
        size_t n = (size_t)mn_session_length(r->session);
        line->prompt.ids = mem_alloc_raw(n, sizeof *line->prompt.ids);
        if (!line->prompt.ids) return mem_no_memory();
        memcpy(line->prompt.ids, mn_session_ids(r->session), n * sizeof *line->prompt.ids);
        line->prompt.n = n;
        return MN_OK;
    }
    const mn_tokenizer *tokenizer = mn_model_tokenizer(r->e.model);
    MN_TRY(put_prefix_first(r));
    MN_TRY(prompt_from_input(&line->prompt, r->o, &r->in, tokenizer, !option_on(r->o, OPT_RAW)));
    return generation_build(&line->config, r->o, r->e.model, r->file, NULL);
}

/* Limits of one row: how much is generated, and whether it fits its cache. *need: tokens that the cache will hold. */
static mn_status settle_limits(run *r, batch_line *line, const mn_cache_options *cache,
                               const mn_cache_summary *kind, int64_t *need) {
    int64_t n = (int64_t)line->prompt.n, own = r->e.info.max_position_embeddings,
            chosen = cache->max_cache_len;
    int64_t context = chosen > 0 ? chosen : own;
    if (chosen <= 0 && own > 0 && n > own && !kind->is_endless) {
        MN_FAIL(MN_E_ARG, "the prompt has %lld tokens, the model's context holds %lld; shorten it%s",
                (long long)n, (long long)own, engine_beyond(&r->e));
    }
    const json *row = line->doc ? json_root(line->doc) : NULL;
    int64_t room = kind->is_endless ? context : context > 0 ? context - n : INT64_C(1) << 20;
    MN_TRY(generation_limit(line->config, r->o, r->file, row, line->prompt.is_chat, room));
    int64_t new_tokens = generation_integer(line->config, "max_new_tokens", -1);
    int64_t length = generation_integer(line->config, "max_length", n + 1);
    if (new_tokens < 0) new_tokens = length > n ? length - n : 1;
    *need = n + new_tokens;
    if (chosen > 0 && *need - 1 > chosen) {
        MN_FAIL(
            MN_E_FULL,
            "%lld prompt tokens and %lld new ones do not fit into max_cache_len %lld; raise it or lower max_new_tokens",
            (long long)n, (long long)new_tokens, (long long)chosen);
    }
    if (own > 0 && chosen <= 0 && *need > own && !kind->is_endless) {
        say(r->e.info.has_learned_positions
                ? "warning: the text might grow to %lld tokens, and ends at %lld, for which the model has learned positions"
                : "warning: the text may grow to %lld tokens, beyond the model's context of %lld",
            (long long)*need, (long long)own);
    }
    return MN_OK;
}

static mn_status warn_of_settings(const run *r, const mn_generation_config *config, bytes *said) {
    mn_generate_options how = mn_generate_options_default();
    how.assistant = r->draft.model;
    how.negative_prompt = r->negative.ids;
    how.n_negative_prompt = r->negative.n;
    how.keep_scores = option_is_set(r->o, OPT_SCORES_OUT);
    how.keep_logits = option_is_set(r->o, OPT_LOGITS_OUT);
    return generation_warn(config, &how, said);
}

/* One row: its warnings, its cache, its limits. */
static mn_status settle_row(run *r, batch_line *line, bytes *said, int64_t *need) {
    mn_cache_options cache = r->cache;
    mn_cache_summary kind = {0};
    MN_TRY(warn_of_settings(r, line->config, said));
    MN_TRY(generation_cache(&cache, &kind, line->config));
    MN_TRY(cache_warn(r->e.model, &cache, said));
    engine_bound(&r->e, &kind);
    if (line == r->batch.lines) r->kind = kind;
    return settle_limits(r, line, &cache, &kind, need);
}

static mn_status settle_all(run *r) {
    int64_t longest = 0;
    bytes said = {0};
    mn_status status = MN_OK;
    r->prompts = mem_alloc(r->batch.n, sizeof *r->prompts);
    if (!r->prompts) return mem_no_memory();
    for (size_t i = 0; status == MN_OK && i < r->batch.n; i++) {
        int64_t need = 0;
        status = settle_row(r, &r->batch.lines[i], &said, &need);
        if (need > longest) longest = need;
        r->prompts[i] = r->batch.lines[i].prompt;
    }
    bytes_clear(&said);
    MN_TRY(status);
    r->longest = longest;
    return MN_OK;
}

/* The cache of a row by itself; one that is allocated at once has room for the longest. */
static mn_status row_cache(const run *r, const batch_line *line, mn_cache_options *cache) {
    mn_cache_summary kind = {0};
    *cache = r->cache;
    MN_TRY(generation_cache(cache, &kind, line->config));
    if (kind.reserves && cache->max_cache_len <= 0) cache->max_cache_len = r->longest;
    return MN_OK;
}

/* ---- generation ---- */

static bool on_token(void *user, const mn_token_event *event) {
    run *r = user;
    if (event->id >= 0) {
        if (r->n_new++ == 0) r->first_ms = clock_ms();
    }
    if (interrupt_seen()) return false;
    bool quiet = option_on(r->o, OPT_JSON) || is_batch(r) || r->n_sequences > 1;
    if (!quiet && event->n_text) {
        progress_clear();
        r->streamed = true;
        r->last = event->text[event->n_text - 1];
        if (!put(event->text, event->n_text)) return false;
    }
    if ((quiet || !stdout_is_terminal()) && r->n_new > 1) {
        progress_line("%zu new tokens, %.1f tok/s", r->n_new,
                      (double)(r->n_new - 1) / (clock_ms() - r->first_ms) * 1e3);
    }
    return true;
}

static mn_status open_session(run *r, const int32_t *ids, size_t n) {
    const char *folder = cache_folder(r->o);
    if (folder && !option_is_set(r->o, OPT_LOAD_CACHE))
        return mn_session_open_cached(&r->session, r->e.model, &r->cache, folder, ids, n);
    return session_open(&r->session, r->o, r->e.model, &r->cache);
}

/* Whether two rows ask for one cache. */
static bool same_cache(const mn_generation_config *a, const mn_generation_config *b) {
    static const char *const fields[] = {"cache_implementation", "cache_config", "use_cache"};
    bool same = true;
    for (size_t i = 0; same && i < sizeof fields / sizeof *fields; i++) {
        char *x = mn_generation_config_get(a, fields[i]), *y = mn_generation_config_get(b, fields[i]);
        same = x && y && strcmp(x, y) == 0;
        mn_free(x);
        mn_free(y);
    }
    return same;
}

/* What all prompts of a batch begin with is computed once when they have a prefix. */
static mn_status open_common(run *r) {
    size_t n = SIZE_MAX;
    if (!r->prefix.n) return MN_OK;
    const prompt *first = &r->batch.lines[0].prompt;
    for (size_t i = 0; i < r->batch.n; i++) {
        const prompt *p = &r->batch.lines[i].prompt;
        size_t most = p->n - 1 < n ? p->n - 1 : n; /* each computes its last token */
        for (n = 0; n < most && p->ids[n] == first->ids[n];) n++;
    }
    if (n == 0) return MN_OK;
    mn_cache_options cache;
    MN_TRY(row_cache(r, &r->batch.lines[0], &cache));
    MN_TRY(mn_session_open(&r->common, r->e.model, &cache));
    return mn_session_step(r->common, first->ids, n, NULL);
}

/* Tokens that a text of its own would begin with too. */
static mn_status read_negative(run *r) {
    const char *text = option_text(r->o, OPT_NEGATIVE_PROMPT, NULL);
    if (!text) return MN_OK;
    return prompt_from_text(&r->negative, mn_model_tokenizer(r->e.model), text, strlen(text),
                            option_on(r->o, OPT_NO_SPECIAL_TOKENS));
}

static mn_status generate(run *r) {
    mn_generate_options how = mn_generate_options_default();
    how.top_logprobs = (int)option_number(r->o, OPT_LOGPROBS, -1);
    how.keep_scores = option_is_set(r->o, OPT_SCORES_OUT);
    how.keep_logits = option_is_set(r->o, OPT_LOGITS_OUT);
    how.on_token = on_token;
    how.on_prefill = progress_shown() ? progress_prefill : NULL;
    how.user = r;
    how.assistant = r->draft.model;
    how.negative_prompt = r->negative.ids;
    how.n_negative_prompt = r->negative.n;
    r->n_sequences = generation_integer(r->batch.lines[0].config, "num_return_sequences", 1);
    if (!is_batch(r)) {
        const batch_line *line = &r->batch.lines[0];
        mn_cache_options cache;
        MN_TRY(row_cache(r, line, &cache));
        r->cache = cache;
        if (!r->session) MN_TRY(open_session(r, line->prompt.ids, line->prompt.n));
        interrupt_watch(r->session);
        return mn_generate(r->session, line->prompt.ids, line->prompt.n, line->config, &how, &r->generation);
    }
    MN_TRY(open_common(r));
    mn_batch_row *rows = mem_alloc(r->batch.n, sizeof *rows);
    if (!rows) return mem_no_memory();
    for (size_t i = 0; i < r->batch.n; i++) {
        const batch_line *line = &r->batch.lines[i];
        bool shares = r->common && same_cache(line->config, r->batch.lines[0].config);
        rows[i] = (mn_batch_row){line->prompt.ids, line->prompt.n, line->config, shares ? r->common : NULL};
    }
    mn_cache_options cache = r->cache;
    cache.implementation = cache.config = NULL; /* each row's configuration says them */
    interrupt_watch(NULL);
    mn_status status = mn_generate_batch(r->e.model, &cache, rows, r->batch.n, NULL, &how, &r->generation);
    mem_free(rows);
    return status;
}

/* ---- what comes out ---- */

static void print_plain(run *r, bool cancelled) {
    if (!r->streamed) {
        bytes b = {0};
        for (size_t i = 0; i < r->generation->n_sequences; i++) {
            const mn_sequence *sequence = &r->generation->sequences[i];
            if (i) bytes_append_text(&b, "\n");
            if (sequence->text) bytes_append(&b, sequence->text, sequence->n_text);
            for (size_t k = 0; !sequence->text && k < sequence->n_ids; k++)
                bytes_printf(&b, k ? ",%d" : "%d", (int)sequence->ids[k]);
        }
        if (b.n) r->last = b.data[b.n - 1];
        put_bytes(&b);
    }
    if ((stdout_is_terminal() || cancelled) && r->last != '\n') put("\n", 1);
}

static void print_summary(const run *r) {
    const mn_generation *g = r->generation;
    if (g->cache.before)
        say("memory ended: the cache '%s' became '%s', and the run went on", g->cache.before,
            g->cache.implementation);
    size_t prompt_tokens = 0, new_tokens = 0;
    for (size_t i = 0; i < r->batch.n; i++) prompt_tokens += r->batch.lines[i].prompt.n;
    for (size_t i = 0; i < g->n_sequences; i++) new_tokens += g->sequences[i].n_ids;
    char *sample = mn_generation_config_get(r->batch.lines[0].config, "do_sample");
    bool sampled = sample && strcmp(sample, "true") == 0;
    mn_free(sample);
    if (progress_shown() || option_on(r->o, OPT_VERBOSE)) {
        char seed[40] = "";
        if (sampled) snprintf(seed, sizeof seed, ", seed %llu", (unsigned long long)g->seed);
        say("%zu prompt tokens at %.0f tok/s, %zu new at %.1f tok/s, %s cache of %.1f MiB%s", prompt_tokens,
            (double)prompt_tokens / (g->prompt_ms > 0 ? g->prompt_ms : 1) * 1e3, new_tokens,
            (double)new_tokens / (g->predicted_ms > 0 ? g->predicted_ms : 1) * 1e3, g->cache.implementation,
            (double)g->cache.bytes / (1 << 20), seed);
    } else if (sampled && !generation_text(r->o, "seed") && !option_on(r->o, OPT_JSON) && !is_batch(r)) {
        say("seed %llu", (unsigned long long)g->seed);
    }
}

static mn_status write_files(const run *r) {
    for (int raw = 0; raw < 2; raw++) {
        const char *path = option_text(r->o, raw ? OPT_LOGITS_OUT : OPT_SCORES_OUT, NULL);
        if (path) MN_TRY(result_write_scores(path, r->generation, r->e.info.vocab_size, raw));
    }
    return MN_OK;
}

/* What is saved goes on behind the text that was shown: its last token, which was never computed with, is so now. */
static mn_status save_session(run *r) {
    const mn_sequence *sequence = &r->generation->sequences[0];
    if (!option_is_set(r->o, OPT_SAVE_CACHE) && !option_is_set(r->o, OPT_CACHE_DIR)) return MN_OK;
    if (sequence->n_ids > 0) {
        mn_status status = mn_session_step(r->session, &sequence->ids[sequence->n_ids - 1], 1, NULL);
        if (status != MN_OK && status != MN_E_FULL) return status; /* a full cache is saved as it is */
    }
    return session_save(&r->e, r->session, r->o);
}

static int print_results(run *r) {
    bool cancelled = false, lines = is_batch(r);
    int top = (int)option_number(r->o, OPT_LOGPROBS, -1);
    for (size_t i = 0; i < r->generation->n_sequences; i++) {
        cancelled = cancelled || strcmp(r->generation->sequences[i].finish_reason, "cancelled") == 0;
    }
    progress_clear();
    if (lines || option_on(r->o, OPT_JSON)) {
        for (size_t i = 0; i < (lines ? r->batch.n : 1); i++) {
            bytes b = {0};
            result_put(&b, &r->e, r->generation, r->prompts, r->batch.n, lines ? (int)i : -1, top);
            bytes_append_text(&b, "\n");
            put_bytes(&b);
        }
    } else {
        print_plain(r, cancelled && interrupt_seen());
    }
    int code = finish(cancelled ? EXIT_CANCELLED : EXIT_DONE);
    if (code == EXIT_FAILED) return code;
    mn_status status = write_files(r);
    if (status == MN_OK && r->session) status = save_session(r);
    if (status != MN_OK) return report(r->o, exit_of(status), NULL);
    print_summary(r);
    return code;
}

static int run_all(run *r) {
    int code = prepare(r);
    if (code == EXIT_DONE) code = engine_open(&r->e, r->o, r->model_name, 0);
    const char *draft = option_text(r->o, OPT_ASSISTANT_MODEL, NULL);
    if (code == EXIT_DONE && draft && !option_on(r->o, OPT_PRINT_CONFIG))
        code = engine_open(&r->draft, r->o, draft, 0);
    if (code != EXIT_DONE) return code;
    if (option_on(r->o, OPT_PRINT_CONFIG)) {
        mn_generation_config *config = NULL;
        mn_status status = generation_build(&config, r->o, r->e.model, r->file, NULL);
        if (status != MN_OK) return report(r->o, exit_of(status), NULL);
        config_print(r->o, config, r->file);
        mn_generation_config_close(&config);
        return EXIT_DONE;
    }
    mn_status status = is_batch(r) ? read_batch(r) : read_one(r);
    if (status == MN_OK) status = read_negative(r);
    if (status == MN_OK) status = settle_all(r);
    if (status == MN_OK) status = generate(r);
    if (status != MN_OK) return report(r->o, exit_of(status), NULL);
    return print_results(r);
}

int run_verb(options *o) {
    run r = {.o = o};
    int code = run_all(&r);
    interrupt_unwatch();
    mn_generation_close(&r.generation);
    mn_session_close(&r.session);
    mn_session_close(&r.common);
    batch_clear(&r.batch);
    bytes_clear(&r.prefix);
    mem_free(r.prompts);
    json_close(&r.file);
    input_clear(&r.in);
    prompt_clear(&r.negative);
    engine_close(&r.draft);
    engine_close(&r.e);
    return code;
}
