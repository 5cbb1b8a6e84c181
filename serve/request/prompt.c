/* SPDX-License-Identifier: Apache-2.0 */
#include "request/prompt.h"

#include <string.h>

#include "base/messages.h"
#include "request/fields.h"

mn_status prompt_needs_tokenizer(const server *s, refusal *why) {
    if (s->tokenizer) return MN_OK;
    *why = (refusal){501, "not_supported", NULL};
    MN_FAIL(MN_E_UNSUPPORTED, "the model has no tokenizer");
}

static mn_status wrong(const char *name, const json *prompt, refusal *why) {
    const field f = {.name = name};
    bool is_ids = strcmp(name, "ids") == 0;
    return field_wrong(&f, prompt,
                       is_ids ? "a list of token ids, or up to 64 of these"
                              : "a string, a list of token ids, or a list of up to 64 of these",
                       why);
}

static mn_status read_text(job *j, const server *s, const char *name, const json *text, refusal *why) {
    MN_TRY(prompt_needs_tokenizer(s, why));
    mn_status status = mn_tokenize(s->tokenizer, text->string, text->n, MN_ADD_SPECIAL, &j->ids, &j->n_ids);
    if (status != MN_OK) *why = (refusal){0, "invalid_value", name};
    return status_context(status, "'%s'", name);
}

static mn_status read_ids(job *j, const server *s, const char *name, const json *list, refusal *why) {
    j->ids = mem_alloc(list->n, sizeof *j->ids);
    if (!j->ids) return MN_E_NOMEM;
    for (size_t i = 0; i < list->n; i++) {
        const json *id = &list->items[i];
        if (id->kind != JSON_INT) return wrong(name, list, why);
        if (id->integer < 0 || id->integer >= s->info.vocab_size) {
            *why = (refusal){400, "value_out_of_range", name};
            MN_FAIL(MN_E_ARG, "'%s' has the token %lld, allowed: 0 to %d", name, (long long)id->integer,
                    s->info.vocab_size - 1);
        }
        j->ids[j->n_ids++] = (int32_t)id->integer;
    }
    return MN_OK;
}

static mn_status read_one(job *j, const server *s, const char *name, const json *prompt, refusal *why) {
    bool is_ids = strcmp(name, "ids") == 0;
    if (prompt->kind == JSON_STRING && !is_ids) return read_text(j, s, name, prompt, why);
    if (prompt->kind == JSON_ARRAY) return read_ids(j, s, name, prompt, why);
    return wrong(name, prompt, why);
}

mn_status prompt_jobs(job **out, server *s, const dialect *form, const char *prefix, const char *name,
                      const json *prompt, refusal *why) {
    bool is_list = prompt->kind == JSON_ARRAY && prompt->n > 0 && prompt->items[0].kind != JSON_INT;
    size_t n = is_list ? prompt->n : 1;
    job *first = NULL, **end = &first;
    if (n > MOST_PROMPTS) return wrong(name, prompt, why);
    mn_status status = MN_OK;
    for (size_t i = 0; i < n && status == MN_OK; i++) {
        job *j = job_open(form, s->model, prefix);
        *end = j;
        if (!j) status = MN_E_NOMEM;
        if (!j) break;
        end = &j->sibling;
        j->tokenizer = s->tokenizer;
        status = read_one(j, s, name, is_list ? &prompt->items[i] : prompt, why);
    }
    if (status == MN_OK && n > 1) status = job_join(first, n);
    if (status != MN_OK) job_close(first);
    if (status == MN_OK) *out = first;
    return status;
}

/* ---- messages ---- */

static const char *put_optional(bytes *out, const json *value) {
    if (!value || value->kind == JSON_NULL) return NULL;
    json_put(out, value);
    return bytes_text(out);
}

static mn_status check_documents(const json *list, refusal *why) {
    for (size_t i = 0; list && i < list->n; i++) {
        if (list->items[i].kind == JSON_OBJECT) continue;
        *why = (refusal){400, "value_out_of_range", "documents"};
        MN_FAIL(MN_E_ARG, "'documents' has at %zu no object, allowed: {\"title\": ..., \"text\": ...}", i);
    }
    return MN_OK;
}

/* Messages without content are rendered as the template renders them; one that needs it everywhere gets an empty one.
 */
mn_status prompt_render(const server *s, const json *body, const tools *t, char **text, size_t *n, refusal *why) {
    const json *list = json_get(body, "documents");
    bytes messages = {0}, functions = {0}, documents = {0}, variables = {0};
    *text = NULL;
    MN_TRY(prompt_needs_tokenizer(s, why));
    MN_TRY(check_documents(list, why));
    mn_chat_options options;
    mn_chat_options_init(&options, sizeof options);
    options.tools = t ? put_optional(&functions, tools_list(t)) : NULL;
    options.documents = put_optional(&documents, list);
    options.template_kwargs = put_optional(&variables, json_get(body, "chat_template_kwargs"));
    mn_status status = bytes_status(&functions);
    if (status == MN_OK) status = bytes_status(&documents);
    if (status == MN_OK) status = bytes_status(&variables);
    for (int fill = 0; fill < 2 && status == MN_OK && !*text; fill++) {
        messages.n = 0;
        *why = (refusal){400, "value_out_of_range", "messages"};
        status = messages_put(&messages, json_get(body, "messages"), fill);
        if (status != MN_OK) break;
        *why = (refusal){0};
        status = mn_chat_render_with(s->tokenizer, messages.data, messages.n, &options, text, n);
        if (status == MN_E_ARG && !fill) {
            status = MN_OK;
        } else if (status != MN_OK) {
            *why = (refusal){400, "invalid_value", "messages"};
            status_context(status, "'messages'");
        }
    }
    bytes_clear(&messages);
    bytes_clear(&functions);
    bytes_clear(&documents);
    bytes_clear(&variables);
    return status;
}

mn_status prompt_tools(tools **out, const server *s, const json *body, refusal *why) {
    static const tools_shape shape = {
        .type = "function",
        .inner = "function",
        .parameters = "parameters",
        .allowed = "{\"type\": \"function\", \"function\": {...}}",
        .choices = "'none', 'auto', 'required', or {\"type\": \"function\", \"function\": {\"name\": ...}}"};
    const tools_choice choice = tools_read_choice(body, "function");
    *out = NULL;
    MN_TRY(prompt_needs_tokenizer(s, why));
    return tools_open(out, mn_chat_template(s->tokenizer, true), &shape, json_get(body, "tools"), &choice, why);
}

mn_status prompt_chat_job(job **out, server *s, const dialect *form, const char *prefix, const json *body,
                          refusal *why) {
    bytes prompt = {0};
    char *text = NULL;
    size_t n = 0;
    tools *t = NULL;
    if (form->form & (BODY_CHAT | BODY_CACHE)) MN_TRY(prompt_tools(&t, s, body, why));
    mn_status status = prompt_render(s, body, t, &text, &n, why);
    if (status != MN_OK) {
        tools_close(&t);
        return status;
    }
    const reasoning r = reasoning_of(mn_chat_template(s->tokenizer, t != NULL), text, n);
    bytes_append(&prompt, text, n);
    mn_free(text);
    if (t) bytes_append_text(&prompt, tools_prefix(t));
    job *j = job_open(form, s->model, prefix);
    status = j ? bytes_status(&prompt) : MN_E_NOMEM;
    if (status == MN_OK) status = mn_tokenize(s->tokenizer, bytes_text(&prompt), prompt.n, 0, &j->ids, &j->n_ids);
    bytes_clear(&prompt);
    if (j)
        j->tools = t;
    else
        tools_close(&t);
    if (status != MN_OK) {
        *why = (refusal){0, "invalid_value", "messages"};
        job_close(j);
        return status;
    }
    j->tokenizer = s->tokenizer;
    j->reasoning = r;
    *out = j;
    return MN_OK;
}

/* The schema of a job with a forced call is that of its tools. */
static void blame_tools(unsigned form, mn_status status, refusal *why) {
    if (strncmp(mn_last_error(), "schema", 6) == 0) {
        why->param = "tools";
        status_context(status, "'tools'");
    } else {
        fields_blame(form, status, why);
    }
}

/* The field that sets the schema of an answer. */
static const char *schema_field(unsigned form) {
    const field *f = field_at(0);
    for (size_t i = 0; f && (!(f->bodies & form) || !f->config || strcmp(f->config, "schema") != 0); i++)
        f = field_at(i);
    return f ? f->name : "schema";
}

static const char *const constraints[] = {"json_schema", "regex", "grammar"};
enum { N_CONSTRAINTS = sizeof constraints / sizeof *constraints };

static bool is_set(const job *j, const char *name) {
    char *value = mn_generation_config_get(j->request.config, name);
    bool is_there = value && strcmp(value, "null") != 0;
    mn_free(value);
    return is_there;
}

/* A forced call is held to its schema, so nothing else can be. */
static mn_status force_call(job *j, refusal *why) {
    bytes schema = {0};
    mn_status status = MN_OK;
    if (!j->tools) return MN_OK;
    tools_put_schema(&schema, j->tools);
    for (size_t i = 0; i < N_CONSTRAINTS && schema.n && status == MN_OK; i++) {
        if (!is_set(j, constraints[i])) continue;
        *why = (refusal){400, "invalid_value", "tool_choice"};
        status = status_fail(MN_E_ARG, "'tool_choice' forces a call beside '%s', allowed: one of both",
                             i ? constraints[i] : schema_field(j->dialect->form));
    }
    if (status == MN_OK && schema.n) {
        *why = (refusal){0, "invalid_value", "tools"};
        status = bytes_status(&schema);
        if (status == MN_OK) status = mn_generation_config_set(j->request.config, constraints[0], bytes_text(&schema));
        if (status == MN_OK) *why = (refusal){0};
        j->blame = blame_tools;
    }
    bytes_clear(&schema);
    return status;
}

mn_status prompt_any_jobs(job **out, server *s, const dialect *form, const char *prefix, const json *body,
                          const char **used, refusal *why) {
    static const char *const names[] = {"prompt", "ids", "messages"};
    const json *value = NULL;
    const char *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json *one = json_get(body, names[i]);
        if (!one || one->kind == JSON_NULL) continue;
        *why = (refusal){400, "invalid_value", names[i]};
        if (value)
            MN_FAIL(MN_E_ARG, "'%s' and '%s' are both given, allowed: one of prompt, ids, messages", name, names[i]);
        value = one;
        name = names[i];
    }
    *why = (refusal){400, "missing_field", "prompt"};
    if (!value) MN_FAIL(MN_E_ARG, "'prompt' is missing, allowed: one of prompt, ids, messages");
    *why = (refusal){0};
    *used = name;
    return strcmp(name, "messages") == 0 ? prompt_chat_job(out, s, form, prefix, body, why)
                                         : prompt_jobs(out, s, form, prefix, name, value, why);
}

static mn_status check_model(const server *s, const json *body, refusal *why) {
    const char *name;
    MN_TRY(field_string(&name, body, "model", why));
    if (!name || strcmp(name, s->name) == 0) return MN_OK;
    *why = (refusal){404, "model_not_found", "model"};
    MN_FAIL(MN_E_NOT_FOUND, "there is no model '%.100s', allowed: '%s'", name, s->name);
}

mn_status prompt_check(const server *s, const json *body, refusal *why) {
    MN_TRY(prompt_needs_tokenizer(s, why));
    return check_model(s, body, why);
}

mn_status prompt_check_length(const server *s, const job *j, const char *name, refusal *why) {
    int64_t most = s->info.max_position_embeddings;
    *why = (refusal){400, "value_out_of_range", name};
    if (j->n_ids == 0) MN_FAIL(MN_E_ARG, "'%s' has no tokens, allowed: one or more", name);
    why->code = "context_length_exceeded";
    if (most && (int64_t)j->n_ids > most)
        MN_FAIL(MN_E_ARG, "'%s' has %zu tokens, allowed: the model's context of %lld", name, j->n_ids, (long long)most);
    *why = (refusal){0};
    return MN_OK;
}

/* Several answers of a greedy search would be the same. */
static mn_status check_answers(const request_settings *r, refusal *why) {
    if (r->n == 1) return MN_OK;
    char *samples = mn_generation_config_get(r->config, "do_sample");
    char *beams = mn_generation_config_get(r->config, "num_beams");
    const bool is_known = samples && beams;
    bool is_greedy = is_known && strcmp(samples, "true") != 0 && strcmp(beams, "1") == 0;
    mn_free(samples);
    mn_free(beams);
    if (!is_known) return MN_E_NOMEM;
    if (!is_greedy) return MN_OK;
    *why = (refusal){400, "value_out_of_range", "n"};
    MN_FAIL(MN_E_ARG, "'n' is %d without sampling or beams, allowed: 1, or 'temperature' above 0", r->n);
}

void prompt_close_reasoning(job *j) {
    for (size_t i = 0; i < N_CONSTRAINTS; i++)
        j->reasoning.is_open = j->reasoning.is_open && !is_set(j, constraints[i]);
}

mn_status prompt_set(job *j, const json *body, bool *streams, refusal *why) {
    j->blame = fields_blame;
    MN_TRY(fields_read(&j->request, body, j->dialect->form, why));
    MN_TRY(check_answers(&j->request, why));
    j->options.top_logprobs = j->request.top_logprobs;
    *streams = j->request.streams;
    MN_TRY(force_call(j, why));
    prompt_close_reasoning(j);
    return MN_OK;
}

/* The server's options with the cache of the body in place of the server's own. */
static mn_status choose_cache(job *j, const server *s, const json *body, refusal *why) {
    const json *object = json_get(body, "cache");
    const bool is_member = json_get(object, "implementation") || json_get(object, "config");
    const char *param = is_member ? "cache.implementation" : "cache_implementation";
    if (!j->request.has_cache) return MN_OK;
    if (s->options.cache_fixed) {
        *why = (refusal){403, "not_permitted", param};
        MN_FAIL(MN_E_ARG, "'%s' is fixed: the server has --cache-fixed", param);
    }
    mn_cache_options_init(&j->cache, sizeof j->cache);
    if (s->options.cache) j->cache = *s->options.cache;
    j->cache.implementation = j->cache.config = NULL;
    mn_status status = mn_generation_config_cache(j->request.config, &j->cache);
    if (status == MN_OK && !j->cache.implementation) {
        *why = (refusal){400, "missing_field", param};
        MN_FAIL(MN_E_ARG, "'%s' is missing beside '%s'", param, is_member ? "cache.config" : "cache_config");
    }
    if (status == MN_OK) status = mn_cache_check(&j->cache, NULL);
    if (status == MN_OK) return MN_OK;
    *why = (refusal){0, "invalid_value", param};
    return status_context(status, "'%s'", param);
}

mn_status prompt_finish(job **out, job *first, const server *s, const json *body, const char *name, bool *streams,
                        refusal *why) {
    mn_status status = check_model(s, body, why);
    int n = 0;
    for (job *j = first; j && status == MN_OK; j = j->sibling) {
        status = prompt_check_length(s, j, name, why);
        if (status == MN_OK) status = prompt_set(j, body, streams, why);
        if (status == MN_OK) status = choose_cache(j, s, body, why);
        j->model = s->name;
        j->first = n;
        n += j->request.n;
    }
    if (status == MN_OK)
        *out = first;
    else
        job_close(first);
    return status;
}
