/* `mneme run`: one prompt streamed, or a batch; text, ids or messages in, text or JSON out.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "batch.h"
#include "config.h"
#include "loaded_model.h"
#include "input.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "result.h"
#include "settings.h"
#include "commands.h"

typedef struct run {
    run_settings s;
    const char *model_name; /* positional MODEL, or NULL */
    input in;
    lines lines; /* of a batch */
    prompt prompt;
    mn_generation_config *config;
    mn_session *session;
    bool has_text; /* a prompt was given */
    mn_generation *generation;
    reasoning_stream reasoning; /* of the answer as it comes */
    bool streamed;              /* some text has been printed */
    char last;                  /* its last byte */
    size_t n_new;               /* tokens seen by the callback */
    int64_t answer_limit;       /* new tokens by default; 0: no limit but the given one and the context */
    int64_t n_sequences;        /* returned for the prompt: several are printed one after the other at the end */
    double first_ms;
} run;

static bool is_batch(const run *r) {
    return r->in.kind == INPUT_BATCH;
}

/* ---- options ---- */

static bool looks_like_path(const char *text) {
    size_t n = strlen(text);
    if (strpbrk(text, " \t\r\n")) return false;
    return text[0] == '/' || strncmp(text, "./", 2) == 0 || strncmp(text, "../", 3) == 0 ||
           (n > 5 && strcmp(text + n - 5, ".gguf") == 0);
}

/* Two positional arguments are MODEL TEXT. A single one is the TEXT when a model is given otherwise, the MODEL when a
 * text is given otherwise or when it resolves to a model, else the TEXT. */
static mn_status read_positional(run *r, const char **text) {
    const options *o = r->s.o;
    MN_TRY(positional_pair(&r->model_name, text, o));
    if (o->n_positional == 1) {
        const char *lone = o->positional[0];
        bool model_given = option_is_set(o, OPT_MODEL) && o->set[OPT_MODEL].origin == ORIGIN_FLAG;
        char *path = NULL;
        bool is_model = !model_given && *lone &&
                        (input_is_given(o) || looks_like_path(lone) || model_path(&path, o, lone) == MN_OK);
        mn_free(path);
        *(is_model ? &r->model_name : text) = lone;
    }
    return MN_OK;
}

static mn_status check_outputs(const options *o) {
    if (option_is_set(o, OPT_SAVE_CACHE)) MN_TRY(file_check_target(option_text(o, OPT_SAVE_CACHE, NULL)));
    if (option_is_set(o, OPT_LOAD_CACHE) && option_is_set(o, OPT_CACHE_DIR))
        MN_FAIL(MN_E_ARG, "--load-cache and --cache-dir both name the source of the cache; give one of them");
    for (option_id id = OPT_SAVE_CACHE; id <= OPT_CACHE_DIR; id++) {
        if (option_is_set(o, id) && option_is_set(o, OPT_BATCH))
            MN_FAIL(MN_E_ARG,
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

/* All checks that need no model. */
static int prepare(run *r) {
    const char *text = NULL;
    mn_status status = read_positional(r, &text);
    if (status != MN_OK) return report(r->s.o, exit_of(status), NULL);
    mn_cache_options_init(&r->s.cache, sizeof r->s.cache);
    status = cache_options_read(r->s.o, &r->s.cache);
    if (status != MN_OK) return report(r->s.o, exit_of(status), "cache");
    status = generation_file_read(&r->s.file, r->s.o);
    if (status != MN_OK) return report(r->s.o, exit_of(status), "generation_config");
    status = cache_check_named(&r->s.cache);
    if (status != MN_OK) return report(r->s.o, exit_of(status), "cache");
    status = check_outputs(r->s.o);
    const char *prefix = option_text(r->s.o, OPT_PREFIX_FILE, NULL);
    if (status == MN_OK && prefix) status = file_read_input(&r->s.prefix, prefix, (size_t)1 << 30);
    if (status != MN_OK) return report(r->s.o, exit_of(status), NULL);
    if (option_on(r->s.o, OPT_PRINT_CONFIG)) return EXIT_DONE;
    status = template_input_read(&r->s.template, r->s.o);
    if (status != MN_OK) return report(r->s.o, exit_of(status), NULL);
    r->has_text = text != NULL || input_is_given(r->s.o);
    if (!r->has_text && option_is_set(r->s.o, OPT_LOAD_CACHE)) return EXIT_DONE;
    status = input_read(&r->in, r->s.o, text);
    if (status == MN_OK && is_batch(r)) status = lines_open(&r->lines, r->in.what);
    return status == MN_OK ? EXIT_DONE : report(r->s.o, exit_of(status), "prompt");
}

/* ---- rows ---- */

/* A loaded cache without a text is continued. */
static bool continues(const run *r) {
    return option_is_set(r->s.o, OPT_LOAD_CACHE) && !r->in.data.n && !r->has_text;
}

/* A text after the prefix is a longer text. */
static mn_status put_prefix_first(run *r) {
    if (!r->s.prefix.n) return MN_OK;
    if (r->in.kind != INPUT_TEXT) MN_FAIL(MN_E_ARG, "--prefix-file is put before texts; %s is not a text", r->in.what);
    bytes all = r->s.prefix;
    bytes_append(&all, r->in.data.data, r->in.data.n);
    r->s.prefix = (bytes){0};
    bytes_clear(&r->in.data);
    r->in.data = all;
    return bytes_status(&all);
}

static mn_status read_prompt(run *r) {
    if (continues(r)) {
        MN_TRY(refuse_system(r->s.o));
        MN_TRY(template_refuse(r->s.o));
        mn_cache_summary kind = {0};
        MN_TRY(generation_cache(&r->s.cache, &kind, r->config));
        MN_TRY(session_open(&r->session, r->s.o, r->s.e.model, &r->s.cache));
        size_t n = (size_t)mn_session_length(r->session);
        r->prompt.ids = mem_alloc_raw(n, sizeof *r->prompt.ids);
        if (!r->prompt.ids) return mem_no_memory();
        memcpy(r->prompt.ids, mn_session_ids(r->session), n * sizeof *r->prompt.ids);
        r->prompt.n = n;
        return MN_OK;
    }
    MN_TRY(put_prefix_first(r));
    return prompt_from_input(&r->prompt, r->s.o, &r->in, mn_model_tokenizer(r->s.e.model), &r->s.template);
}

static mn_status resolve(run *r) {
    mn_cache_options cache;
    mn_cache_summary kind;
    bytes warned = {0};
    mn_status status = settings_resolve(&r->s, r->config, &r->prompt, NULL, &warned, &cache, &kind, &r->answer_limit);
    bytes_clear(&warned);
    if (status == MN_OK) r->s.cache = cache;
    return status;
}

/* ---- generation ---- */

static bool show(void *user, reasoning_part part, const char *text, size_t n) {
    run *r = user;
    if (part != REASONING_ANSWER && r->prompt.hides_reasoning) return true;
    progress_clear();
    r->streamed = true;
    r->last = text[n - 1];
    return part == REASONING_ANSWER ? put(text, n) : put_faint(text, n);
}

static bool on_token(void *user, const mn_token_event *event) {
    run *r = user;
    if (event->id >= 0) {
        if (r->n_new++ == 0) r->first_ms = clock_ms();
    }
    if (interrupt_seen()) return false;
    bool quiet = option_on(r->s.o, OPT_JSON) || r->n_sequences > 1;
    if (!quiet && !reasoning_push(&r->reasoning, &r->prompt.reasoning, event->text, event->n_text, show, r))
        return false;
    if ((quiet || !stdout_is_terminal()) && r->n_new > 1) {
        progress_line("%zu new tokens, %.1f tok/s", r->n_new,
                      (double)(r->n_new - 1) / (clock_ms() - r->first_ms) * 1e3);
    }
    return true;
}

static mn_status open_session(run *r) {
    const char *folder = cache_folder(r->s.o);
    if (folder && !option_is_set(r->s.o, OPT_LOAD_CACHE))
        return mn_session_open_cached(&r->session, r->s.e.model, &r->s.cache, folder, r->prompt.ids, r->prompt.n);
    return session_open(&r->session, r->s.o, r->s.e.model, &r->s.cache);
}

/* Ids, or the tokens of the text as a prompt of its own. */
static mn_status read_negative(run *r) {
    const char *text = option_text(r->s.o, OPT_NEGATIVE_PROMPT, NULL),
               *ids = option_text(r->s.o, OPT_NEGATIVE_PROMPT_IDS, NULL);
    if (text && ids)
        MN_FAIL(MN_E_ARG, "--negative-prompt and --negative-prompt-ids both set the negative prompt; give one of them");
    if (ids) return prompt_from_ids(&r->s.negative, ids, strlen(ids), "--negative-prompt-ids");
    if (!text) return MN_OK;
    return prompt_from_text(&r->s.negative, mn_model_tokenizer(r->s.e.model), text, strlen(text),
                            option_on(r->s.o, OPT_NO_SPECIAL_TOKENS));
}

/* A text begins a new conversation, which a loaded one is not: what is not in its prompt is given up. */
static void tell_new_turn(const run *r) {
    const int32_t *held = mn_session_ids(r->session);
    size_t n = (size_t)mn_session_length(r->session), common = 0;
    while (common < n && common < r->prompt.n && held[common] == r->prompt.ids[common]) common++;
    if (common < n && r->prompt.is_chat && option_is_set(r->s.o, OPT_LOAD_CACHE))
        print_message(
            "the prompt begins a new conversation and keeps %zu of the %zu tokens of '%s'; without one the run continues after "
            "them, and `mneme chat --load FOLDER` continues a conversation that chat saved",
            common, n, option_text(r->s.o, OPT_LOAD_CACHE, ""));
}

static mn_status generate(run *r) {
    mn_generate_options how = settings_options(&r->s);
    how.on_token = on_token;
    how.on_prefill = progress_shown() ? progress_prefill : NULL;
    how.user = r;
    r->n_sequences = generation_integer(r->config, "num_return_sequences", 1);
    if (!r->session) {
        MN_TRY(open_session(r));
        tell_new_turn(r);
    }
    interrupt_watch(r->session);
    return mn_generate(r->session, r->prompt.ids, r->prompt.n, r->config, &how, &r->generation);
}

/* ---- output ---- */

/* A sequence that was not printed as it came. */
static void print_sequence(run *r, const mn_sequence *sequence) {
    bytes b = {0};
    if (sequence->text) {
        size_t n = reasoning_find(&r->prompt.reasoning, sequence->text, sequence->n_text).answer;
        if (n) show(r, REASONING_TEXT, sequence->text, n);
        if (n < sequence->n_text) show(r, REASONING_ANSWER, sequence->text + n, sequence->n_text - n);
        return;
    }
    for (size_t k = 0; k < sequence->n_ids; k++) bytes_printf(&b, k ? ",%d" : "%d", (int)sequence->ids[k]);
    put_bytes(&b);
}

static void print_plain(run *r, bool cancelled) {
    bool is_known = !r->streamed;
    if (r->streamed) reasoning_finish(&r->reasoning, &r->prompt.reasoning, show, r);
    for (size_t i = 0; is_known && i < r->generation->n_sequences; i++) {
        char mark[32];
        if (i) put("\n", 1);
        if (r->generation->n_sequences > 1) put(mark, (size_t)snprintf(mark, sizeof mark, "[%zu] ", i + 1));
        print_sequence(r, r->generation->sequences[i]);
    }
    if ((stdout_is_terminal() || cancelled) && r->last != '\n') put("\n", 1);
}

static void print_summary(const run *r) {
    const mn_generation *g = r->generation;
    if (g->cache->original_implementation)
        print_message("memory ran out: the cache '%s' was converted to '%s', and the run continued",
                      g->cache->original_implementation, g->cache->implementation);
    generation_report_limit(g, r->answer_limit);
    size_t prompt_tokens = r->prompt.n, new_tokens = 0;
    for (size_t i = 0; i < g->n_sequences; i++) new_tokens += g->sequences[i]->n_ids;
    char *sample = mn_generation_config_get(r->config, "do_sample");
    bool sampled = sample && strcmp(sample, "true") == 0;
    mn_free(sample);
    if (progress_shown() || option_on(r->s.o, OPT_VERBOSE)) {
        char seed[40] = "";
        if (sampled) snprintf(seed, sizeof seed, ", seed %llu", (unsigned long long)g->seed);
        print_message("%zu prompt tokens at %.0f tok/s, %zu new at %.1f tok/s, %s cache of %.1f MiB%s", prompt_tokens,
                      (double)prompt_tokens / (g->prompt_ms > 0 ? g->prompt_ms : 1) * 1e3, new_tokens,
                      (double)new_tokens / (g->predicted_ms > 0 ? g->predicted_ms : 1) * 1e3, g->cache->implementation,
                      (double)g->cache->bytes / (1 << 20), seed);
    } else if (sampled && !generation_text(r->s.o, "seed") && !option_on(r->s.o, OPT_JSON)) {
        print_message("seed %llu", (unsigned long long)g->seed);
    }
}

static mn_status write_files(run *r) {
    for (int raw = 0; raw < 2; raw++) {
        const char *path = option_text(r->s.o, raw ? OPT_LOGITS_OUT : OPT_SCORES_OUT, NULL);
        if (path) MN_TRY(result_write_scores(path, &r->generation, 1, r->s.e.info.vocab_size, raw));
    }
    return MN_OK;
}

/* The saved cache continues after the shown text, so its last token, which was not computed yet, is computed now. */
static mn_status save_session(run *r) {
    const mn_sequence *sequence = r->generation->sequences[0];
    if (!option_is_set(r->s.o, OPT_SAVE_CACHE) && !option_is_set(r->s.o, OPT_CACHE_DIR)) return MN_OK;
    if (sequence->n_ids > 0) {
        mn_status status = mn_session_step(r->session, &sequence->ids[sequence->n_ids - 1], 1, NULL);
        if (status != MN_OK && status != MN_E_FULL) return status; /* a full cache is saved as it is */
    }
    return session_save(&r->s.e, r->session, r->s.o);
}

static int print_results(run *r) {
    bool cancelled = false;
    int top = (int)option_number(r->s.o, OPT_LOGPROBS, -1);
    for (size_t i = 0; i < r->generation->n_sequences; i++) {
        cancelled = cancelled || strcmp(r->generation->sequences[i]->finish_reason, "cancelled") == 0;
    }
    progress_clear();
    if (option_on(r->s.o, OPT_JSON)) {
        bytes b = {0};
        result_put(&b, &r->s.e, r->generation, &r->prompt, top);
        bytes_append_text(&b, "\n");
        put_bytes(&b);
    } else {
        print_plain(r, cancelled && interrupt_seen());
    }
    int code = finish(cancelled ? EXIT_CANCELLED : EXIT_DONE);
    if (code == EXIT_FAILED) return code;
    mn_status status = write_files(r);
    if (status == MN_OK && r->session) status = save_session(r);
    if (status != MN_OK) return report(r->s.o, exit_of(status), NULL);
    print_summary(r);
    return code;
}

/* Whether prompts of these options go through the chat template. */
static bool will_answer(const run *r) {
    const options *o = r->s.o;
    const mn_tokenizer *tokenizer = mn_model_tokenizer(r->s.e.model);
    bool has_ids = option_is_set(o, OPT_IDS) || option_is_set(o, OPT_IDS_FILE);
    if (!tokenizer || !mn_has_chat_template(tokenizer)) return false;
    return option_is_set(o, OPT_MESSAGES) || (!has_ids && !option_on(o, OPT_RAW));
}

static int run_all(run *r) {
    int code = prepare(r);
    if (code == EXIT_DONE) code = loaded_model_open(&r->s.e, r->s.o, r->model_name, 0);
    const char *draft = option_text(r->s.o, OPT_ASSISTANT_MODEL, NULL);
    if (code == EXIT_DONE && draft && !option_on(r->s.o, OPT_PRINT_CONFIG))
        code = loaded_model_open(&r->s.draft, r->s.o, draft, 0);
    if (code != EXIT_DONE) return code;
    if (option_on(r->s.o, OPT_PRINT_CONFIG)) {
        mn_generation_config *config = NULL;
        mn_status status = generation_build(&config, r->s.o, r->s.e.model, r->s.file, NULL);
        if (status != MN_OK) return report(r->s.o, exit_of(status), NULL);
        config_print(r->s.o, config, r->s.file, will_answer(r) ? ANSWER_LIMIT : 0);
        mn_generation_config_close(&config);
        return EXIT_DONE;
    }
    mn_status status = read_negative(r);
    if (status == MN_OK && is_batch(r)) return batch_run(&r->s, &r->lines);
    if (status == MN_OK) status = generation_build(&r->config, r->s.o, r->s.e.model, r->s.file, NULL);
    if (status == MN_OK) status = read_prompt(r);
    if (status == MN_OK) status = resolve(r);
    if (status == MN_OK) status = generate(r);
    if (status != MN_OK) return report(r->s.o, exit_of(status), NULL);
    return print_results(r);
}

int command_run(options *o) {
    run r = {.s.o = o, .lines.fd = -1};
    int code = run_all(&r);
    interrupt_unwatch();
    mn_generation_close(&r.generation);
    mn_session_close(&r.session);
    mn_generation_config_close(&r.config);
    prompt_clear(&r.prompt);
    bytes_clear(&r.reasoning.held);
    lines_close(&r.lines);
    input_clear(&r.in);
    settings_clear(&r.s);
    return code;
}
