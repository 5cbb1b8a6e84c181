/* /v1/caches: the tree of cached prefixes. They are computed, pinned and dropped by their ids.
 * SPDX-License-Identifier: Apache-2.0 */
#include "caches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "request/fields.h"
#include "request/prompt.h"

enum { MOST_NODES = 1000, MOST_TEXT_IDS = 64, MOST_TEXT = 200 };

typedef struct prefix_list {
    bytes *out;
    const server *server;
    const char *owner;
    bool is_own;      /* the client created it: shown with any salt */
    uint64_t id;      /* the only one to be shown; 0: all */
    mn_prefix_info v; /* what was shown last */
    size_t n;
    bool is_truncated;
} prefix_list;

/* Whether the prefix belongs to the client: to a key that shares no prefixes, or, without keys, to everybody. Prefixes
 * that keys share and prefixes with a salt belong to nobody. */
static bool is_own_prefix(const prefix_list *list, const char *salt) {
    if (list->is_own) return true;
    if (!list->owner) return !*salt;
    if (list->server->options.share_prefixes) return false;
    const size_t n = strlen(list->owner);
    return strncmp(salt, list->owner, n) == 0 && strcmp(salt + n, "/") == 0;
}

/* The beginning of the text of a node's own tokens, in whole characters. */
static void put_edge(bytes *out, const mn_tokenizer *tokenizer, const mn_prefix_info *info) {
    char *text = NULL;
    size_t n = 0, n_ids = info->n_ids < MOST_TEXT_IDS ? info->n_ids : MOST_TEXT_IDS;
    if (!tokenizer || mn_detokenize(tokenizer, info->ids, n_ids, 0, &text, &n) != MN_OK) return;
    if (n > MOST_TEXT) {
        n = MOST_TEXT;
        while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    }
    bytes_append_text(out, ",\"text\":");
    json_put_string(out, text, n);
    mn_free(text);
}

static void put_node(bytes *out, const server *s, const mn_prefix_info *info) {
    bytes_printf(out, "{\"id\":%llu,\"object\":\"cache\",\"parent\":", (unsigned long long)info->id);
    bytes_printf(out, info->parent_id ? "%llu" : "null", (unsigned long long)info->parent_id);
    bytes_printf(out,
                 ",\"tokens\":%zu,\"total_tokens\":%zu,\"kept\":%s,\"running\":%s,\"file\":%s,\"bytes\":%llu,"
                 "\"unique_bytes\":%llu,\"hits\":%llu,\"unused_ms\":%.3f,\"pinned\":%s,\"ttl_left_ms\":",
                 info->n_ids, info->n_tokens, info->is_kept ? "true" : "false", info->is_running ? "true" : "false",
                 info->has_file ? "true" : "false", (unsigned long long)info->bytes,
                 (unsigned long long)info->unique_bytes, (unsigned long long)info->n_hits, info->unused_ms,
                 info->is_pinned ? "true" : "false");
    if (info->is_kept && info->ttl_ms > 0)
        bytes_printf(out, "%.3f", fmax(info->ttl_ms - info->unused_ms, 0));
    else
        bytes_append_text(out, "null");
    put_edge(out, s->tokenizer, info);
    bytes_append_text(out, "}");
}

/* Nodes of others are not listed. */
static bool put_prefix(void *user, const mn_prefix_info *info) {
    prefix_list *list = user;
    if ((list->id && info->id != list->id) || !is_own_prefix(list, info->salt)) return true;
    if (list->n == MOST_NODES) {
        list->is_truncated = true;
        return false;
    }
    list->v = *info;
    if (list->n++) bytes_append_text(list->out, ",");
    if (list->out) put_node(list->out, list->server, info);
    return !list->id;
}

static void put_tiers(bytes *out, const mn_engine_info *info) {
    bytes_printf(out, "\"memory\":{\"texts\":%zu,\"bytes\":%llu},\"disk\":{\"texts\":%zu,\"bytes\":%llu}", info->n_kept,
                 (unsigned long long)info->kept_bytes, info->n_files, (unsigned long long)info->file_bytes);
}

static mn_status list_prefixes(bytes *out, server *s, job *j, refusal *why) {
    mn_engine *engine = scheduler_engine(s->scheduler);
    mn_engine_info info = {.size = sizeof info};
    prefix_list list = {.out = out, .server = s, .owner = j->owner};
    (void)why;
    MN_TRY(mn_engine_get_info(engine, &info));
    bytes_append_text(out, "{\"object\":\"list\",\"data\":[");
    MN_TRY(mn_engine_prefixes(engine, put_prefix, &list));
    bytes_printf(out, "],\"truncated\":%s,\"tiers\":{", list.is_truncated ? "true" : "false");
    if (!j->owner) put_tiers(out, &info); /* they count what all keys have */
    bytes_append_text(out, "}}");
    return bytes_status(out);
}

/* ---- one prefix ---- */

mn_status caches_find(mn_prefix_info *info, server *s, const job *j, refusal *why) {
    const size_t n = strlen(j->parameter);
    prefix_list list = {.server = s, .owner = j->owner};
    if (n < 20 && strspn(j->parameter, "0123456789") == n) list.id = strtoull(j->parameter, NULL, 10);
    if (list.id) MN_TRY(mn_engine_prefixes(scheduler_engine(s->scheduler), put_prefix, &list));
    *info = list.v;
    if (list.n) return MN_OK;
    *why = (refusal){404, "cache_not_found", NULL};
    MN_FAIL(MN_E_NOT_FOUND, "no cached prefix has the id '%s'", j->parameter);
}

mn_status caches_show(bytes *out, server *s, uint64_t id) {
    prefix_list list = {.out = out, .server = s, .id = id, .is_own = true};
    MN_TRY(mn_engine_prefixes(scheduler_engine(s->scheduler), put_prefix, &list));
    return bytes_status(out);
}

static mn_status show_prefix(bytes *out, server *s, job *j, refusal *why) {
    mn_prefix_info v;
    MN_TRY(caches_find(&v, s, j, why));
    return caches_show(out, s, v.id);
}

mn_status caches_refuse(mn_status status, refusal *why) {
    switch (status) {
    case MN_E_NOT_FOUND: *why = (refusal){404, "cache_not_found", NULL}; break;
    case MN_E_REFUSED: *why = (refusal){409, "cache_in_use", NULL}; break;
    case MN_E_FULL: *why = (refusal){429, "pin_limit", "pin"}; break;
    default: break;
    }
    return status;
}

static mn_status hold_prefix(bytes *out, server *s, job *j, refusal *why) {
    mn_prefix_info v;
    MN_TRY(caches_find(&v, s, j, why));
    const bool pin = j->hold.has_pin ? j->hold.pin : v.is_pinned;
    /* A time that was not set for this prefix is the server's. */
    const double ttl = j->hold.has_ttl ? j->hold.ttl_ms : v.ttl_ms != 1000 * s->options.cache_ttl ? v.ttl_ms : 0;
    MN_TRY(caches_refuse(mn_engine_prefix_hold(scheduler_engine(s->scheduler), v.id, pin, ttl), why));
    return caches_show(out, s, v.id);
}

static mn_status drop_prefix(bytes *out, server *s, job *j, refusal *why) {
    mn_prefix_info v;
    MN_TRY(caches_find(&v, s, j, why));
    MN_TRY(caches_refuse(mn_engine_prefix_drop(scheduler_engine(s->scheduler), v.id), why));
    bytes_printf(out, "{\"id\":%llu,\"object\":\"cache\",\"deleted\":true}", (unsigned long long)v.id);
    return bytes_status(out);
}

/* ---- jobs ---- */

static mn_status ask(job **out, job_function *what) {
    *out = job_ask(what);
    return *out ? MN_OK : MN_E_NOMEM;
}

mn_status caches_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask(out, list_prefixes);
}

mn_status cache_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask(out, show_prefix);
}

mn_status drop_cache_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask(out, drop_prefix);
}

void caches_read_hold(job *j, const json *body) {
    const json *pin = json_get(body, "pin"), *ttl = json_get(body, "ttl");
    j->hold.has_pin = pin && pin->kind == JSON_BOOL;
    j->hold.pin = j->hold.has_pin && pin->boolean;
    j->hold.has_ttl = ttl && ttl->kind != JSON_NULL;
    if (j->hold.has_ttl) j->hold.ttl_ms = 1000 * (ttl->kind == JSON_INT ? (double)ttl->integer : ttl->real);
}

mn_status hold_cache_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)streams, (void)why;
    MN_TRY(ask(out, hold_prefix));
    caches_read_hold(*out, body);
    return MN_OK;
}

static mn_status finish(bytes *out, job *j, refusal *why) {
    mn_engine *engine = scheduler_engine(j->server->scheduler);
    uint64_t id;
    MN_TRY(caches_refuse(mn_engine_prefix_of(engine, j->ids, j->n_ids, j->request.salt, &id), why));
    if (j->hold.has_pin || j->hold.has_ttl)
        MN_TRY(caches_refuse(mn_engine_prefix_hold(engine, id, j->hold.pin, j->hold.ttl_ms), why));
    return caches_show(out, j->server, id);
}

static bool ignore_token(void *user, const mn_token_event *event) {
    (void)user, (void)event;
    return true;
}

static const dialect creates = {.form = BODY_CACHE, .finish = finish, .error = openai_error, .fail = openai_fail};

/* The prompt is computed as that of any request; its answer has one token, which is not returned. */
mn_status create_cache_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    const char *name;
    job *j = NULL;
    MN_TRY(prompt_any_jobs(&j, s, &creates, "cache-", body, &name, why));
    if (j->sibling) {
        job_close(j);
        return field_wrong(&(field){.name = name}, json_get(body, name), "one prompt", why);
    }
    MN_TRY(prompt_finish(&j, j, s, body, name, streams, why));
    mn_status status = mn_generation_config_set(j->request.config, "max_new_tokens", "1");
    if (status == MN_OK) status = mn_generation_config_set(j->request.config, "do_sample", "false");
    if (status == MN_OK) status = mn_generation_config_set(j->request.config, "num_beams", "1");
    if (status != MN_OK) {
        job_close(j);
        return status;
    }
    j->options.on_token = ignore_token;
    j->server = s;
    caches_read_hold(j, body);
    *out = j;
    return MN_OK;
}
