/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/messages.h"
#include "batch_line.h"
#include "config.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "result.h"

enum {
    MOST_WAITING = 1024, /* lines that may be read ahead of the one whose answer is printed next */
    STANDARD_ROWS = 16,  /* of --batch-size */
    MESSAGE = 1024
};

/* A line that is being computed. */
typedef struct batch_row {
    bool is_used;
    int id;     /* of the engine, which numbers requests like the lines */
    int number; /* of the line */
    batch_line line;
    template_input template;
    prompt prompt;
    mn_generation_config *config;
    int64_t answer_limit; /* built in; 0: none */
} batch_row;

typedef struct batch {
    const run_settings *s;
    lines *in;
    bool reads, is_unordered; /* there may be more lines; answers are printed as they end */
    bytes warned;             /* warnings printed so far, each once */
    mn_engine *engine;
    mn_session *common; /* what all prompts after the prefix begin with; NULL: nothing */
    unsigned common_form;
    bool has_common;    /* it was computed or there is none */
    bytes common_cache; /* its names */
    batch_row *rows;    /* [n_rows] places */
    size_t n_rows, n_running;
    bytes *answers; /* [MOST_WAITING] by line, results that wait for an earlier one; empty: none */
    bool *is_done;  /* [MOST_WAITING] */
    int n_added, n_printed;
    mn_generation **kept; /* [n_kept] for --scores-out and --logits-out */
    size_t n_kept, kept_capacity;
    int code; /* of the first failure */
    char error[MESSAGE];
    bool has_started, was_cancelled, reported_on_oom, reported_limit;
    size_t prompt_tokens, new_tokens;
    double started, first_ms;
} batch;

/* ---- a line ---- */

static bool uses_template(const batch *b, unsigned form) {
    const mn_tokenizer *tokenizer = mn_model_tokenizer(b->s->e.model);
    return form != BODY_COMPLETION_LINE && !option_on(b->s->o, OPT_RAW) && tokenizer && mn_has_chat_template(tokenizer);
}

/* A text after the prefix. */
static mn_status prompt_behind_prefix(const batch *b, prompt *p, const batch_row *row, const char *text, size_t n) {
    const mn_tokenizer *tokenizer = mn_model_tokenizer(b->s->e.model);
    bytes all = {0};
    bytes_append(&all, b->s->prefix.data, b->s->prefix.n);
    bytes_append(&all, text, n);
    mn_status status = bytes_status(&all);
    if (status == MN_OK)
        status = uses_template(b, row->line.form)
                     ? prompt_from_chat(p, tokenizer, &row->template, option_text(b->s->o, OPT_SYSTEM, NULL), all.data,
                                        all.n)
                     : prompt_from_text(p, tokenizer, all.data, all.n, option_on(b->s->o, OPT_NO_SPECIAL_TOKENS));
    bytes_clear(&all);
    return status;
}

/* Of a line that goes through no template. */
static mn_status refuse_template(const batch *b, const json *line) {
    static const char *const keys[] = {"tools", "documents", "chat_template_kwargs"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json *value = json_get(line, keys[i]);
        if (value && value->kind != JSON_NULL)
            MN_FAIL(MN_E_ARG, "%s: for the chat template; not with token ids, --raw or a model without one", keys[i]);
    }
    return template_refuse(b->s->o);
}

/* Those of a line of OpenAI's are read as the server reads them; others go to the template as they are. */
static mn_status read_messages(const batch *b, batch_row *row, const json *list) {
    const mn_tokenizer *tokenizer = mn_model_tokenizer(b->s->e.model);
    bool own = row->line.form == BODY_LINE;
    bytes text = {0};
    mn_status status = MN_E_ARG;
    for (int fill = 0; fill < (own ? 1 : 2) && status == MN_E_ARG; fill++) {
        text.n = 0;
        prompt_clear(&row->prompt);
        if (own) json_put(&text, list);
        status = own ? bytes_status(&text) : messages_put(&text, list, fill);
        if (status == MN_OK) status = prompt_from_messages(&row->prompt, tokenizer, &row->template, text.data, text.n);
    }
    bytes_clear(&text);
    return status;
}

/* A prompt is a text, a list of token ids, or a list with one of these. */
static mn_status choose_prompt(const json **text, const json **ids) {
    const json *list = *text, *first = list && list->kind == JSON_ARRAY && list->n ? list->items : NULL;
    if (!first) return MN_OK;
    if (first->kind != JSON_INT && list->n > 1)
        MN_FAIL(MN_E_ARG, "prompt is a list of %zu, allowed: one prompt in a line", list->n);
    const json *one = first->kind == JSON_INT ? list : first;
    *text = one->kind == JSON_ARRAY ? NULL : one;
    if (!*text) *ids = one;
    return MN_OK;
}

static mn_status read_prompt(const batch *b, batch_row *row) {
    const json *root = row->line.body, *ids = json_get(root, "ids"), *text = json_get(root, "prompt");
    const json *messages = json_get(root, "messages");
    if ((ids != NULL) + (text != NULL) + (messages != NULL) != 1)
        MN_FAIL(MN_E_ARG, "give one of \"ids\", \"prompt\" and \"messages\"");
    MN_TRY(choose_prompt(&text, &ids));
    bool is_chat = text && uses_template(b, row->line.form);
    if (!is_chat) MN_TRY(refuse_system(b->s->o));
    if (!is_chat && !messages) MN_TRY(refuse_template(b, root));
    MN_TRY(template_input_of_line(&row->template, &b->s->template, root));
    if (text && text->kind == JSON_STRING && text->n)
        return prompt_behind_prefix(b, &row->prompt, row, text->string, text->n);
    if (b->s->prefix.n) MN_FAIL(MN_E_ARG, "--prefix-file is put before texts; give a \"prompt\" that is not empty");
    bytes list = {0};
    mn_status status = MN_OK;
    if (ids && ids->kind == JSON_ARRAY && ids->n) {
        for (size_t i = 0; i < ids->n; i++) {
            bytes_append_text(&list, i ? "," : "");
            json_put(&list, &ids->items[i]);
        }
        status = bytes_status(&list);
        if (status == MN_OK) status = prompt_from_ids(&row->prompt, list.data, list.n, "ids");
    } else if (messages && messages->kind == JSON_ARRAY) {
        status = read_messages(b, row, messages);
    } else {
        status = status_fail(MN_E_ARG, "ids and messages are lists, a prompt is a text, and none is empty");
    }
    bytes_clear(&list);
    return status;
}

/* What two rows must have in common to share a prefix. */
static void put_cache_names(bytes *out, const mn_cache_options *cache) {
    bytes_printf(out, "%s, %s", cache->implementation ? cache->implementation : "", cache->config ? cache->config : "");
    bytes_text(out);
}

static bool shares_common(const batch *b, const batch_row *row, const mn_cache_options *cache) {
    bytes names = {0};
    put_cache_names(&names, cache);
    bool shares = b->common && b->common_form == row->line.form && !names.failed && names.n == b->common_cache.n &&
                  memcmp(names.data, b->common_cache.data, names.n) == 0;
    bytes_clear(&names);
    return shares;
}

/* The tokens that the prefix has in common with the first prompt after it are computed once for all rows. */
static mn_status open_common(batch *b, const batch_row *row, const mn_cache_options *own, bool preallocates) {
    const prompt *first = &row->prompt;
    prompt alone = {0};
    b->has_common = true;
    b->common_form = row->line.form;
    if (!b->s->prefix.n) return MN_OK;
    mn_status status = prompt_behind_prefix(b, &alone, row, "", 0);
    size_t n = 0;
    while (status == MN_OK && n < alone.n && n + 1 < first->n && alone.ids[n] == first->ids[n]) n++;
    prompt_clear(&alone);
    if (status != MN_OK || n == 0) return status;
    mn_cache_options cache = *own;
    if (preallocates) cache.max_cache_len = (int64_t)n;
    put_cache_names(&b->common_cache, own);
    status = bytes_status(&b->common_cache);
    if (status == MN_OK) status = mn_session_open(&b->common, b->s->e.model, &cache);
    return status == MN_OK ? mn_session_step(b->common, first->ids, n, NULL) : status;
}

static bool on_token(void *user, const mn_token_event *event) {
    batch *b = user;
    if (event->id >= 0 && b->new_tokens++ == 0) b->first_ms = clock_ms();
    if (b->new_tokens > 1)
        progress_line("%zu new tokens, %.1f tok/s", b->new_tokens,
                      (double)(b->new_tokens - 1) / (clock_ms() - b->first_ms) * 1e3);
    return !interrupt_seen();
}

static mn_status start(batch *b, batch_row *row, const mn_cache_options *cache, bool preallocates) {
    mn_generate_options how = settings_options(b->s);
    mn_request request;
    mn_request_init(&request, sizeof request);
    mn_session *fork = NULL;
    mn_status status = MN_OK;
    how.on_token = on_token;
    how.on_prefill = progress_shown() ? progress_prefill : NULL;
    how.user = b;
    request.prompt = row->prompt.ids;
    request.n_prompt = row->prompt.n;
    request.config = row->config;
    request.options = &how;
    request.cache = cache;
    request.prefix = shares_common(b, row, cache) ? b->common : NULL;
    if (preallocates && request.prefix) { /* with the capacity that this row needs */
        status = mn_session_fork(&fork, b->common);
        if (status == MN_OK) status = mn_session_set_cache(fork, cache);
        request.prefix = fork;
    }
    if (status == MN_OK) status = mn_engine_add(b->engine, &request, &row->id);
    mn_session_close(&fork);
    return status;
}

static void clear_row(batch_row *row) {
    prompt_clear(&row->prompt);
    template_input_clear(&row->template);
    batch_line_clear(&row->line);
    mn_generation_config_close(&row->config);
    *row = (batch_row){0};
}

/* fields: of the line, by their own names. */
static mn_status open_row(batch *b, batch_row *row, const json *fields) {
    mn_cache_options cache;
    mn_cache_summary kind;
    MN_TRY(read_prompt(b, row));
    MN_TRY(generation_build(&row->config, b->s->o, b->s->e.model, b->s->file, fields));
    MN_TRY(settings_resolve(b->s, row->config, &row->prompt, fields, &b->warned, &cache, &kind, &row->answer_limit));
    if (!b->has_common) MN_TRY(open_common(b, row, &cache, kind.preallocates));
    return start(b, row, &cache, kind.preallocates);
}

static mn_status read_row(batch *b, batch_row *row, const char *text, size_t n) {
    char what[128];
    row->number = b->in->number;
    snprintf(what, sizeof what, "%.90s line %d", b->in->what, row->number);
    json_doc *doc = NULL, *fields = NULL;
    MN_TRY(json_parse(&doc, text, n, JSON_PYTHON, what));
    mn_status status = batch_line_read(&row->line, json_root(doc));
    if (status == MN_OK) status = json_parse(&fields, row->line.fields.data, row->line.fields.n, JSON_PYTHON, "fields");
    if (status == MN_OK) status = open_row(b, row, json_root(fields));
    json_close(&fields);
    json_close(&doc);
    row->line.body = NULL;
    return status_context(status, "%s", what);
}

/* ---- failures ---- */

/* Records the first failure, which is reported at the end; no more lines are read. number: of the line, or 0 when the
 * message names it, or there is none. */
static void fail(batch *b, mn_status status, int number) {
    b->reads = false;
    if (b->code != EXIT_DONE) return;
    if (number > 0) status_context(status, "%.90s line %d", b->in->what, number);
    b->code = exit_of(status);
    snprintf(b->error, sizeof b->error, "%s", mn_last_error());
}

/* ---- reading ---- */

static batch_row *free_row(const batch *b) {
    bool is_full = b->n_added - b->n_printed >= MOST_WAITING;
    for (size_t i = 0; i < b->n_rows && !is_full; i++) {
        if (!b->rows[i].is_used) return &b->rows[i];
    }
    return NULL;
}

/* Nothing is being computed and all is printed, so that a signal may end the command. */
static void wait_for_lines(const batch *b) {
    interrupt_unwatch();
    if (!interrupt_seen()) lines_wait(b->in);
    interrupt_watch(NULL);
}

/* Takes lines while there are places and lines; waits for one only when nothing is being computed. */
static void fill(batch *b) {
    batch_row *row;
    while (b->reads && !interrupt_seen() && (row = free_row(b)) != NULL) {
        lines_state state;
        const char *text = NULL;
        size_t n = 0;
        mn_status status = lines_next(b->in, &state, &text, &n);
        if (status != MN_OK) {
            fail(b, status, 0);
        } else if (state == LINES_END) {
            b->reads = false;
        } else if (state == LINES_LATER) {
            if (b->n_running > 0) return;
            wait_for_lines(b);
        } else if ((status = read_row(b, row, text, n)) != MN_OK) {
            clear_row(row);
            fail(b, status, 0);
        } else {
            row->is_used = true;
            b->n_added = row->id + 1;
            b->n_running++;
        }
    }
}

/* ---- answers ---- */

/* Prints the results that no longer wait for an earlier one. */
static void print_ready(batch *b) {
    while (b->n_printed < b->n_added && b->is_done[b->n_printed % MOST_WAITING]) {
        int at = b->n_printed++ % MOST_WAITING;
        b->is_done[at] = false;
        if (b->answers[at].n > 0) put_bytes(&b->answers[at]);
    }
}

static void answer(batch *b, const batch_row *row, const mn_generation *generation) {
    bytes text = {0};
    progress_clear();
    batch_line_answer(&text, &row->line, row->number, &b->s->e, generation, &row->prompt,
                      (int)option_number(b->s->o, OPT_LOGPROBS, -1));
    bytes_append_text(&text, "\n");
    if (b->is_unordered || text.failed) {
        put_bytes(&text);
    } else {
        b->answers[row->id % MOST_WAITING] = text;
    }
}

static mn_status keep(batch *b, mn_generation *generation) {
    MN_TRY(mem_grow(&b->kept, &b->kept_capacity, b->n_kept + 1, sizeof *b->kept));
    b->kept[b->n_kept++] = generation;
    return MN_OK;
}

static void take_in(batch *b, const batch_row *row, mn_generation *generation) {
    const mn_cache_info *cache = generation->cache;
    if (cache->original_implementation && !b->reported_on_oom)
        print_message("memory ran out: the cache '%s' was converted to '%s', and the run continued",
                      cache->original_implementation, cache->implementation);
    b->reported_on_oom = b->reported_on_oom || cache->original_implementation;
    if (!b->reported_limit) b->reported_limit = generation_report_limit(generation, row->answer_limit);
    b->prompt_tokens += row->prompt.n;
    for (size_t i = 0; i < generation->n_sequences; i++) {
        if (strcmp(generation->sequences[i]->finish_reason, "cancelled") == 0) b->was_cancelled = true;
    }
    answer(b, row, generation);
    bool wants_all = option_is_set(b->s->o, OPT_SCORES_OUT) || option_is_set(b->s->o, OPT_LOGITS_OUT);
    mn_status status = wants_all ? keep(b, generation) : MN_OK;
    if (status != MN_OK) fail(b, status, 0);
    if (status != MN_OK || !wants_all) mn_generation_close(&generation);
}

/* Takes every generation that has ended. */
static void take_all(batch *b) {
    for (;;) {
        mn_generation *generation = NULL;
        batch_row *row = b->rows;
        int id = -1;
        mn_status status = mn_engine_take(b->engine, &id, &generation);
        if (id < 0) break;
        while (row->id != id || !row->is_used) row++;
        if (status == MN_OK) take_in(b, row, generation);
        if (status != MN_OK) fail(b, status, row->number);
        if (b->is_unordered) {
            b->n_printed++;
        } else {
            b->is_done[id % MOST_WAITING] = true;
        }
        clear_row(row);
        b->n_running--;
    }
    print_ready(b);
}

/* ---- the run ---- */

static void cancel_all(batch *b) {
    b->reads = false;
    for (size_t i = 0; i < b->n_rows; i++) {
        if (b->rows[i].is_used) mn_engine_cancel(b->engine, b->rows[i].id); /* no effect on those that have ended */
    }
    take_all(b);
}

/* Also ends when the output fails. */
static void run_lines(batch *b) {
    interrupt_watch(NULL);
    for (fill(b); b->n_running > 0 && put("", 0); fill(b)) {
        if (!b->has_started && b->code != EXIT_DONE) return; /* refused before anything was computed */
        b->has_started = true;
        mn_engine_step(b->engine, NULL);
        take_all(b);
        if (interrupt_seen()) cancel_all(b);
    }
}

static int by_row(const void *a, const void *b) {
    const mn_generation *const *x = a, *const *y = b;
    return (*x)->sequences[0]->row - (*y)->sequences[0]->row;
}

static mn_status write_files(batch *b) {
    if (b->n_kept > 0) qsort(b->kept, b->n_kept, sizeof(mn_generation *), by_row);
    for (int raw = 0; raw < 2; raw++) {
        const char *path = option_text(b->s->o, raw ? OPT_LOGITS_OUT : OPT_SCORES_OUT, NULL);
        if (path) MN_TRY(result_write_scores(path, b->kept, b->n_kept, b->s->e.info.vocab_size, raw));
    }
    return MN_OK;
}

static mn_status open_batch(batch *b) {
    b->n_rows = (size_t)option_number(b->s->o, OPT_ROWS, STANDARD_ROWS);
    b->rows = mem_alloc(b->n_rows, sizeof *b->rows);
    b->answers = mem_alloc(MOST_WAITING, sizeof *b->answers);
    b->is_done = mem_alloc(MOST_WAITING, sizeof *b->is_done);
    if (!b->rows || !b->answers || !b->is_done) return mem_no_memory();
    return mn_engine_open(&b->engine, b->s->e.model, NULL);
}

static void close_batch(batch *b) {
    mn_engine_close(&b->engine);
    mn_session_close(&b->common);
    for (size_t i = 0; b->rows && i < b->n_rows; i++) clear_row(&b->rows[i]);
    for (size_t i = 0; b->answers && i < MOST_WAITING; i++) bytes_clear(&b->answers[i]);
    for (size_t i = 0; i < b->n_kept; i++) mn_generation_close(&b->kept[i]);
    mem_free(b->rows);
    mem_free(b->answers);
    mem_free(b->is_done);
    mem_free(b->kept);
    bytes_clear(&b->warned);
    bytes_clear(&b->common_cache);
}

static void print_summary(const batch *b) {
    double seconds = (clock_ms() - b->started) / 1e3;
    if (!progress_shown() && !option_on(b->s->o, OPT_VERBOSE)) return;
    print_message("%d rows, %zu prompt tokens and %zu new ones in %.1f s, %.1f new tok/s", b->n_added, b->prompt_tokens,
                  b->new_tokens, seconds, (double)b->new_tokens / (seconds > 0 ? seconds : 1));
}

int batch_run(const run_settings *settings, lines *in) {
    batch b = {.s = settings, .in = in, .reads = true, .code = EXIT_DONE, .started = clock_ms()};
    b.is_unordered = option_on(settings->o, OPT_UNORDERED);
    mn_status status = open_batch(&b);
    if (status == MN_OK) run_lines(&b);
    if (status == MN_OK && b.code == EXIT_DONE && b.n_added == 0 && !interrupt_seen())
        status = status_fail(MN_E_ARG, "%s holds no lines", in->what);
    if (status == MN_OK && b.code == EXIT_DONE && b.n_added > 0 && put("", 0)) status = write_files(&b);
    if (status != MN_OK) fail(&b, status, 0);
    progress_clear();
    int code = b.code;
    if (b.was_cancelled || interrupt_seen()) code = EXIT_CANCELLED;
    if (code == b.code && code != EXIT_DONE) {
        status_fail(MN_E_ARG, "%s", b.error);
        report(settings->o, code, NULL);
    }
    code = finish(code);
    if (code == EXIT_DONE || code == EXIT_CANCELLED) print_summary(&b);
    close_batch(&b);
    return code;
}
