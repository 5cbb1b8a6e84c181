/* One turn of `mneme chat`: the prompt of the whole conversation, its limits, the answer as it comes, what is kept of
 * it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "chat/chat.h"
#include "config.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "result.h"

typedef struct turn {
    chat *c;
    conversation *t;
    prompt prompt;
    int64_t most;               /* tokens that the conversation may have; 0: without end */
    size_t expected;            /* tokens of the prompt that the session holds already */
    bool streams, has_printed;  /* the answer is printed as it comes; some of it was */
    size_t n_shown;             /* bytes of its text that have come */
    reasoning_stream reasoning; /* of it */
    char last;                  /* byte printed */
    double started, first_ms;
    mn_generation *generation;
} turn;

/* ---- limits ---- */

/* Checks that the prompt fits; sets max_new_tokens to what may be generated after it, unless it is set. */
static mn_status resolve_limits(turn *w) {
    chat *c = w->c;
    mn_cache_info info = {.size = sizeof info};
    MN_TRY(mn_session_cache(w->t->session, &info));
    int64_t n = (int64_t)w->prompt.n, own = c->e.info.max_position_embeddings, limit = info.limit;
    w->most = limit > 0 ? limit : info.has_unbounded_context ? 0 : own;
    if (w->most > 0 && n > w->most) {
        if (c->e.info.has_learned_positions) {
            MN_FAIL(
                MN_E_FULL,
                "the conversation would have %lld tokens with this message, and %s holds %lld: /clear begins anew, /undo takes turns back",
                (long long)n, limit > 0 ? "the cache" : "the model's table of positions", (long long)w->most);
        }
        MN_FAIL(
            limit > 0 ? MN_E_FULL : MN_E_ARG,
            "the conversation would have %lld tokens with this message, and %s holds %lld: /clear begins anew, /undo takes turns back, "
            "%s, and `--max-cache-len N` at the start %s",
            (long long)n, limit > 0 ? "the cache" : "the model's context", (long long)w->most,
            limit > 0 && info.has_unbounded_context ? "/save keeps the conversation"
                                                    : "/cache sink goes on without end",
            limit > 0 ? "holds more" : "goes beyond");
    }
    int64_t room = w->most > 0 ? w->most - n + (limit > 0) : own > 0 ? own : INT64_C(1) << 20;
    int64_t no_limit = 0;
    return generation_limit(c->config, c->o, c->file, NULL, &no_limit, room);
}

/* ---- the answer as it comes ---- */

static bool show(void *user, reasoning_part part, const char *text, size_t n) {
    turn *w = user;
    size_t from = 0;
    if (part != REASONING_ANSWER && w->prompt.hides_reasoning) return true;
    if (!w->has_printed && !w->c->form.use_template) { /* "Assistant:" is followed by a space */
        while (from < n && (text[from] == ' ' || text[from] == '\n')) from++;
    }
    if (from == n) return true;
    progress_clear();
    w->has_printed = true;
    w->last = text[n - 1];
    return part == REASONING_ANSWER ? put(text + from, n - from) : put_faint(text + from, n - from);
}

/* The next piece of the answer. */
static bool push(turn *w, const char *text, size_t n) {
    return reasoning_push(&w->reasoning, &w->prompt.reasoning, text, n, show, w);
}

static bool on_token(void *user, const mn_token_event *event) {
    turn *w = user;
    if (w->first_ms <= 0) w->first_ms = clock_ms() - w->started;
    if (interrupt_seen()) return false;
    if (event->sequence != 0) return true; /* of several, the first is the answer */
    w->n_shown += event->n_text;
    return !w->streams || push(w, event->text, event->n_text);
}

static void on_prefill(void *user, size_t done, size_t total) {
    (void)user;
    progress_prefill(NULL, done, total);
}

/* ---- generating ---- */

static mn_status open_cached(turn *w) {
    chat *c = w->c;
    const char *folder = cache_folder(c->o);
    if (!folder || mn_session_length(w->t->session) > 0) return MN_OK;
    mn_session *session = NULL;
    MN_TRY(mn_session_open_cached(&session, c->e.model, &c->cache, folder, w->prompt.ids, w->prompt.n));
    mn_session_close(&w->t->session);
    w->t->session = session;
    return MN_OK;
}

static mn_status generate(turn *w) {
    chat *c = w->c;
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.top_logprobs = (int)option_number(c->o, OPT_LOGPROBS, -1);
    how.on_token = on_token;
    how.on_prefill = progress_shown() ? on_prefill : NULL;
    how.user = w;
    bool is_stale = true;
    mn_status status = MN_OK;
    /* A signal that came when the turn before was just over may be left in the session: it stops nothing. */
    for (int i = 0; i < 2 && is_stale && status == MN_OK; i++) {
        mn_generation_close(&w->generation);
        interrupt_watch(w->t->session);
        status = mn_generate(w->t->session, w->prompt.ids, w->prompt.n, c->config, &how, &w->generation);
        interrupt_listen();
        if (status != MN_OK) break;
        const mn_sequence *s = w->generation->sequences[0];
        is_stale = strcmp(s->finish_reason, "cancelled") == 0 && s->n_ids == 0 && !interrupt_seen();
    }
    return status;
}

/* Another seed for each time that the same question is answered: the one that is set, and those after it. */
static mn_status set_seed(chat *c, int64_t own, uint64_t n_again) {
    char text[32];
    if (own < 0 || n_again == 0) return MN_OK;
    snprintf(text, sizeof text, "%lld", (long long)((own + (int64_t)n_again) & ((INT64_C(1) << 53) - 1)));
    return mn_generation_config_set(c->config, "seed", text);
}

/* Takes back what a turn alone set. */
static void restore_config(chat *c, int64_t new_tokens, int64_t seed) {
    char text[32];
    if (new_tokens < 0) mn_generation_config_set(c->config, "max_new_tokens", "null");
    snprintf(text, sizeof text, "%lld", (long long)seed);
    if (seed >= 0) mn_generation_config_set(c->config, "seed", text);
}

static mn_status run_turn(turn *w) {
    chat *c = w->c;
    w->started = clock_ms();
    MN_TRY(conversation_prompt(&w->prompt, w->t, &c->form));
    MN_TRY(open_cached(w));
    size_t held = (size_t)mn_session_length(w->t->session);
    w->expected = conversation_common(mn_session_ids(w->t->session), held, w->prompt.ids, w->prompt.n);
    if (w->expected == w->prompt.n) w->expected--; /* the last token's logits are needed */
    int64_t new_tokens = generation_integer(c->config, "max_new_tokens", -1),
            seed = generation_integer(c->config, "seed", -1);
    mn_status status = resolve_limits(w);
    if (status == MN_OK) status = set_seed(c, seed, c->n_again);
    if (status == MN_OK) status = generate(w);
    restore_config(c, new_tokens, seed);
    progress_clear();
    return status;
}

/* ---- what is kept and reported ---- */

static void count(turn *w) {
    const mn_sequence *s = w->generation->sequences[0];
    chat *c = w->c;
    c->last = (turn_stats){.prompt_tokens = s->prompt_tokens,
                           .cached_tokens = s->cached_tokens,
                           .new_tokens = s->n_ids,
                           .prompt_ms = w->generation->prompt_ms,
                           .predicted_ms = w->generation->predicted_ms,
                           .first_ms = w->first_ms,
                           .seed = w->generation->seed,
                           .finish = s->finish_reason};
    c->n_turns++;
    c->n_prompt += s->prompt_tokens;
    c->n_cached += s->cached_tokens;
    c->n_new += s->n_ids;
}

static void print_answer(turn *w) {
    const mn_sequence *s = w->generation->sequences[0];
    if (!w->streams) {
        bytes b = {0};
        result_put(&b, &w->c->e, w->generation, &w->prompt, (int)option_number(w->c->o, OPT_LOGPROBS, -1));
        bytes_append_text(&b, "\n");
        put_bytes(&b);
        return;
    }
    /* Beams come at the end, as does what was held back when the answer was stopped. */
    if (s->n_text > w->n_shown) push(w, s->text + w->n_shown, s->n_text - w->n_shown);
    reasoning_finish(&w->reasoning, &w->prompt.reasoning, show, w);
    if (w->last != '\n' && (w->has_printed || s->n_ids)) put("\n", 1);
    if (s->n_ids == 0 && line_is_terminal(w->c->reader)) print_error_text("\n"); /* behind the terminal's ^C */
}

/* What the person should know about this turn. */
static void print_notes(const turn *w) {
    const mn_sequence *s = w->generation->sequences[0];
    const mn_cache_info *cache = w->generation->cache;
    int64_t total = (int64_t)(s->prompt_tokens + s->n_ids);
    if (cache->original_implementation)
        chat_note("out of memory: switched the cache from '%s' to '%s', and the conversation went on",
                  cache->original_implementation, cache->implementation);
    if (s->cached_tokens < w->expected && strcmp(cache->implementation, "none") != 0)
        chat_note("the %s cache cannot go back that far: %zu tokens of the past were computed again",
                  cache->implementation, w->expected - s->cached_tokens);
    if (strcmp(s->finish_reason, "length") == 0 && w->most > 0 && total >= w->most)
        chat_note(
            "the answer was cut: the conversation has %lld tokens, and no more fit; /clear begins anew, /undo takes turns back, /cache sink "
            "goes on without end",
            (long long)total);
    if (strcmp(s->finish_reason, "cancelled") == 0 && line_is_terminal(w->c->reader))
        chat_note(s->n_ids ? "(stopped; what there is stays in the conversation)"
                           : "(stopped before the answer began; the message was taken back)");
}

static mn_status keep(turn *w) {
    const mn_sequence *s = w->generation->sequences[0];
    if (s->n_ids == 0) return conversation_keep(w->t, &w->prompt, NULL, 0);
    MN_TRY(conversation_keep(w->t, &w->prompt, s->ids, s->n_ids));
    return conversation_add_answer(w->t, &w->c->form, s->text ? s->text : "", s->n_text);
}

void chat_answer(chat *c, bool is_again) {
    turn w = {.c = c, .t = chat_conversation(c), .streams = !option_on(c->o, OPT_JSON)};
    c->n_again = is_again ? c->n_again + 1 : 0;
    mn_status status = run_turn(&w);
    bool is_there = status == MN_OK && w.generation->sequences[0]->n_ids > 0;
    if (status == MN_OK) status = keep(&w);
    if (w.generation) {
        print_answer(&w);
        count(&w);
        print_notes(&w);
    } else if (w.has_printed) {
        put("\n", 1);
    }
    if (status != MN_OK) report(c->o, exit_of(status), NULL);
    if (!is_there || status != MN_OK) conversation_drop_last(w.t);
    if (is_there && (option_on(c->o, OPT_STATS) || option_on(c->o, OPT_VERBOSE))) chat_print_stats(c);
    mn_generation_close(&w.generation);
    bytes_clear(&w.reasoning.held);
    prompt_clear(&w.prompt);
}

void chat_turn(chat *c, const char *text, size_t n) {
    mn_status status = conversation_add(chat_conversation(c), CONVERSATION_USER, text, n);
    if (status != MN_OK) {
        report(c->o, exit_of(status), NULL);
        return;
    }
    chat_answer(c, false);
}

static double rate(size_t n, double ms) {
    return ms > 0 ? (double)n / ms * 1e3 : 0;
}

void chat_print_stats(const chat *c) {
    const turn_stats *s = &c->last;
    mn_cache_info info = {.size = sizeof info};
    if (!s->finish || mn_session_cache(c->conversations[c->at].session, &info) != MN_OK) return;
    chat_note(
        "%zu prompt tokens, %zu cached, %zu computed in %.0f ms; %zu new at %.1f tok/s, the first after %.0f ms (%s); %s cache: "
        "%lld tokens, %.1f MiB",
        s->prompt_tokens, s->cached_tokens, s->prompt_tokens - s->cached_tokens, s->prompt_ms, s->new_tokens,
        rate(s->new_tokens, s->predicted_ms), s->first_ms, s->finish, info.implementation, (long long)info.tokens,
        (double)info.bytes / (1 << 20));
}
