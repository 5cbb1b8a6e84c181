/* Public functions that belong to no module: they check arguments and call modules.
 * SPDX-License-Identifier: Apache-2.0 */
#include "mneme.h"

#include <string.h>

#include "base/file.h"
#include "base/options.h"
#include "gen/config/generation_config.h"
#include "session/session.h"
#include "model/embedded.h"
#include "model/locate.h"
#include "model/packed.h"
#include "text/chat.h"

#define DIGITS_OF(number) #number
#define DIGITS(number)    DIGITS_OF(number)

const char *mn_version(void) {
    return DIGITS(MN_VERSION_MAJOR) "." DIGITS(MN_VERSION_MINOR) "." DIGITS(MN_VERSION_PATCH);
}
int mn_version_number(void) {
    return MN_VERSION_NUMBER;
}
void mn_free(void *block) {
    mem_free(block);
}

/* Returns the bytes as text owned by the caller. */
static mn_status give_text(bytes *from, char **text, size_t *n_text) {
    mn_status status = bytes_status(from);
    if (status == MN_OK) {
        bytes_text(from);
        status = bytes_status(from);
    }
    if (status == MN_OK) {
        *text = from->data;
        if (n_text) *n_text = from->n;
    } else {
        bytes_clear(from);
    }
    return status;
}

/* ---- model ---- */

void mn_model_options_init(mn_model_options *options, size_t size) {
    const mn_model_options full = {.compute_type = "auto", .cpu = "auto"};
    options_init(options, size, &full, sizeof full);
}

static mn_status find_model(char **path, const char *name, model_use use) {
    bytes found = {0};
    *path = NULL;
    mn_status status = model_locate(&found, name, use);
    if (status == MN_OK) return give_text(&found, path, NULL);
    bytes_clear(&found);
    return status;
}

mn_status mn_model_find(char **path, const char *name) {
    return find_model(path, name, MODEL_FOR_TEXT);
}
mn_status mn_model_find_speech(char **path, const char *name) {
    return find_model(path, name, MODEL_FOR_SPEECH);
}

mn_status mn_models_describe(char **text) {
    bytes found = {0};
    *text = NULL;
    mn_status status = models_describe(&found);
    if (status == MN_OK) return give_text(&found, text, NULL);
    bytes_clear(&found);
    return status;
}

/* path: as tokenizer_open, or "embedded". */
static mn_status open_tokenizer(tokenizer **out, const char *path) {
    if (strcmp(path, "embedded") != 0) return tokenizer_open(out, path);
    const embedded_file *file = embedded_find("tokenizer.json"), *config = embedded_find("tokenizer_config.json");
    *out = NULL;
    if (!file) MN_FAIL(MN_E_NOT_FOUND, "this build has no embedded model");
    return tokenizer_from_memory(out, (const char *)file->data, file->n, config ? (const char *)config->data : NULL,
                                 config ? config->n : 0);
}

/* The tokenizer of an open checkpoint; a missing one is not an error. */
static mn_status open_text(tokenizer **out, const model_core *core, const char *path) {
    *out = NULL;
    if (core->file) {
        gguf_text kind = {0};
        MN_TRY(gguf_string(core->file, "tokenizer.ggml.model", &kind));
        return kind.n == 0 ? MN_OK : tokenizer_from_gguf(out, core->file);
    }
    mn_status status = open_tokenizer(out, path);
    return status == MN_E_NOT_FOUND ? MN_OK : status;
}

static mn_status set_ids(mn_generation_config *config, const char *name, const int64_t *ids, size_t n) {
    bytes text = {0};
    for (size_t i = 0; i < n; i++) bytes_printf(&text, "%s%lld", i ? "," : "[", (long long)ids[i]);
    bytes_append_text(&text, n ? "]" : "null");
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = mn_generation_config_set(config, name, bytes_text(&text));
    bytes_clear(&text);
    return status;
}

/* generation_config.json, which overrides the end tokens of config.json and the tokenizer. */
static mn_status open_generation(mn_model *model, const char *path) {
    const model_config *config = &model->core->net.config;
    MN_TRY(generation_config_copy(&model->generation, NULL));
    MN_TRY(set_ids(model->generation, "eos_token_id", config->eos_token_id, config->n_eos_token_id));
    if (model->core->file && model->text) {
        size_t n;
        const int32_t *ends = tokenizer_end_ids(model->text, &n);
        int64_t ids[64];
        if (n > 64) n = 64;
        for (size_t i = 0; i < n; i++) ids[i] = ends[i];
        if (n) MN_TRY(set_ids(model->generation, "eos_token_id", ids, n));
    }
    json_doc *doc = NULL;
    mn_status status = model->core->file ? MN_OK : checkpoint_json(&doc, path, "generation_config.json");
    if (status == MN_E_NOT_FOUND) status = MN_OK;
    if (status == MN_OK && doc) {
        status = generation_config_load(model->generation, json_root(doc), true, json_what(doc));
        if (status == MN_E_ARG) status = MN_E_FORMAT;
    }
    json_close(&doc);
    model->pad_token_id = model->generation->pad_token_id;
    return status;
}

/* What the files lack, or hold beyond what is read: sentences, a semicolon between. */
static mn_status put_warning(mn_model *model) {
    const model_config *config = &model->core->net.config;
    const char *of_text = model->text ? tokenizer_warning(model->text) : NULL;
    bytes line = {0}, templates = {0};
    if (of_text) bytes_append_text(&line, of_text);
    if (model->text) tokenizer_put_template_names(model->text, &templates);
    if (templates.n)
        bytes_printf(&line, "%snone of the chat templates is named default, so none is used: %s", line.n ? "; " : "",
                     bytes_text(&templates));
    bytes_clear(&templates);
    if (model->core->n_left_out)
        bytes_printf(&line, "%sthe text half is read alone; tensors of other parts that are left out: %zu",
                     line.n ? "; " : "", model->core->n_left_out);
    if (config->float8.is_wider)
        bytes_printf(
            &line,
            "%sweights in 8-bit floats are multiplied by their scales; activations and the cache are not rounded to "
            "8 bits as quantization_config asks",
            line.n ? "; " : "");
    if (config->unknown_keys)
        bytes_printf(&line, "%sconfig.json has fields that are not known here: %s", line.n ? "; " : "",
                     config->unknown_keys);
    mn_status status = bytes_status(&line);
    if (status == MN_OK && line.n) {
        model->warning = mem_copy_text(line.data, line.n);
        if (!model->warning) status = MN_E_NOMEM;
    }
    bytes_clear(&line);
    return status;
}

mn_status mn_model_open(mn_model **model, const char *path, const mn_model_options *options) {
    *model = NULL;
    mn_model_options full;
    mn_model_options_init(&full, sizeof full);
    MN_TRY(options_take(&full, sizeof full, options, "mn_model_options"));
    mn_model *m = mem_alloc(1, sizeof *m);
    if (!m) return MN_E_NOMEM;
    atomic_init(&m->n_holders, 1);
    mn_status status = model_open(&m->core, path, &full);
    if (status == MN_OK) status = open_text(&m->text, m->core, path);
    if (status == MN_OK) status = open_generation(m, path);
    if (status == MN_OK) status = put_warning(m);
    if (status != MN_OK) {
        mn_model_close(&m);
        return status;
    }
    *model = m;
    return MN_OK;
}

mn_status mn_model_save_packed(const mn_model *model, const char *folder, uint64_t *n_bytes) {
    uint64_t n = 0;
    if (!folder || !*folder) MN_FAIL(MN_E_ARG, "no folder was named to save the packed weights to");
    MN_TRY(packed_save(model->core, folder, &n));
    if (n_bytes) *n_bytes = n;
    return MN_OK;
}

void mn_model_close(mn_model **model) {
    mn_model *m = *model;
    *model = NULL;
    if (!m || atomic_fetch_sub_explicit(&m->n_holders, 1, memory_order_acq_rel) > 1) return;
    mn_generation_config_close(&m->generation);
    tokenizer_close(&m->text);
    model_close(&m->core);
    mem_free(m->warning);
    mem_free(m);
}

static uint64_t count_parameters(const model_core *core) {
    const tensor_set *set = model_tensors(core);
    uint64_t n = 0;
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const tensor *t = tensor_set_at(set, i);
        uint64_t values = 1;
        for (int d = 0; d < t->n_dims; d++) values *= (uint64_t)t->shape[d];
        n += values;
    }
    return n;
}

mn_status mn_model_get_info(const mn_model *model, mn_model_info *info) {
    const model_core *core = model->core;
    const model_config *c = &core->net.config;
    const mn_model_info full = {
        .architecture = model_type_name(c->model_type),
        .compute_type = core->compute_name,
        .cpu = cpu_level_name(core->compute.kernels.level),
        .vocab_size = (int32_t)c->vocab_size,
        .hidden_size = (int32_t)c->hidden_size,
        .num_hidden_layers = (int32_t)c->num_hidden_layers,
        .num_attention_heads = (int32_t)c->num_attention_heads,
        .num_key_value_heads = (int32_t)c->num_key_value_heads,
        .head_dim = (int32_t)c->head_dim,
        .max_position_embeddings = c->max_position_embeddings == CONFIG_UNBOUNDED ? 0 : c->max_position_embeddings,
        .has_learned_positions = c->positions == POSITIONS_LEARNED,
        .num_mel_bins = c->encoder ? (int32_t)c->encoder->num_mel_bins : 0,
        .max_source_positions = c->encoder ? c->encoder->max_position_embeddings : 0,
        .parameters = count_parameters(core),
        .file_bytes = tensor_set_file_bytes(model_tensors(core)),
        .packed_bytes = model_packed_bytes(core),
        .mapped_bytes = packed_mapped_bytes(core),
        .available_bytes = core->available_bytes,
        .threads = core->compute.n_threads,
        .has_tokenizer = model->text != NULL,
        .has_chat_template = model->text && tokenizer_chat_template(model->text, NULL),
        .warning = model->warning,
    };
    return options_give(info, &full, sizeof full, "mn_model_info");
}

mn_status mn_model_fingerprint(const mn_model *model, char **text) {
    char digits[FINGERPRINT_HEX];
    *text = NULL;
    MN_TRY(model_fingerprint(digits, model->core));
    *text = mem_copy_text(digits, strlen(digits));
    return *text ? MN_OK : mem_no_memory();
}

/* ---- text ---- */

struct mn_tokenizer {
    char never_defined; /* a tokenizer under its public name */
};

static const tokenizer *text_of(const mn_tokenizer *t) {
    return (const tokenizer *)(const void *)t;
}

mn_status mn_tokenizer_open(mn_tokenizer **out, const char *path) {
    tokenizer *t = NULL;
    *out = NULL;
    MN_TRY(open_tokenizer(&t, path));
    *out = (mn_tokenizer *)(void *)t;
    return MN_OK;
}

void mn_tokenizer_close(mn_tokenizer **t) {
    tokenizer *text = (tokenizer *)(void *)*t;
    tokenizer_close(&text);
    *t = NULL;
}

const mn_tokenizer *mn_model_tokenizer(const mn_model *model) {
    return (const mn_tokenizer *)(const void *)model->text;
}

mn_status mn_tokenize_after(const mn_tokenizer *t, const int32_t *held, size_t n_held, const char *text, size_t n_text,
                            int flags, int32_t **ids, size_t *n_ids, size_t *n_kept) {
    token_list list = {0};
    size_t kept = 0;
    unsigned how =
        (flags & MN_ADD_SPECIAL ? TOKENIZER_ADD_SPECIAL : 0u) | (flags & MN_NO_PARSE ? 0u : TOKENIZER_PARSE_SPECIAL);
    *ids = NULL;
    *n_ids = 0;
    MN_TRY(tokenizer_encode_after(text_of(t), held, n_held, text, n_text, how, &list, &kept));
    *ids = list.ids;
    *n_ids = list.n;
    if (n_kept) *n_kept = kept;
    return MN_OK;
}

mn_status mn_tokenize(const mn_tokenizer *t, const char *text, size_t n_text, int flags, int32_t **ids, size_t *n_ids) {
    return mn_tokenize_after(t, NULL, 0, text, n_text, flags, ids, n_ids, NULL);
}

mn_status mn_detokenize(const mn_tokenizer *t, const int32_t *ids, size_t n_ids, int flags, char **text,
                        size_t *n_text) {
    bytes out = {0};
    *text = NULL;
    mn_status status =
        tokenizer_decode(text_of(t), ids, n_ids, flags & MN_SKIP_SPECIAL ? TOKENIZER_SKIP_SPECIAL : 0u, &out);
    if (status == MN_OK) return give_text(&out, text, n_text);
    bytes_clear(&out);
    return status;
}

struct mn_detokenizer {
    tokenizer *tokenizer; /* held */
    tokenizer_stream *stream;
    bytes text; /* that was returned last */
};

mn_status mn_detokenizer_open(mn_detokenizer **out, const mn_tokenizer *t, int flags) {
    *out = NULL;
    mn_detokenizer *d = mem_alloc(1, sizeof *d);
    if (!d) return MN_E_NOMEM;
    d->tokenizer = tokenizer_hold(text_of(t));
    mn_status status =
        tokenizer_stream_open(&d->stream, d->tokenizer, flags & MN_SKIP_SPECIAL ? TOKENIZER_SKIP_SPECIAL : 0u);
    if (status != MN_OK) mn_detokenizer_close(&d);
    *out = d;
    return status;
}

void mn_detokenizer_close(mn_detokenizer **d) {
    if (!*d) return;
    tokenizer_stream_close(&(*d)->stream);
    tokenizer_close(&(*d)->tokenizer);
    bytes_clear(&(*d)->text);
    mem_free(*d);
    *d = NULL;
}

mn_status mn_detokenizer_push(mn_detokenizer *d, const int32_t *ids, size_t n, const char **text, size_t *n_text) {
    d->text.n = 0;
    for (size_t i = 0; i < n; i++) MN_TRY(tokenizer_stream_push(d->stream, ids[i], &d->text));
    *text = bytes_text(&d->text);
    MN_TRY(bytes_status(&d->text));
    *n_text = d->text.n;
    return MN_OK;
}

mn_status mn_detokenizer_finish(mn_detokenizer *d, const char **text, size_t *n_text) {
    d->text.n = 0;
    MN_TRY(tokenizer_stream_finish(d->stream, &d->text));
    *text = bytes_text(&d->text);
    MN_TRY(bytes_status(&d->text));
    *n_text = d->text.n;
    return MN_OK;
}

const char *mn_token_piece(const mn_tokenizer *t, int32_t id) {
    size_t n;
    return id < 0 || (size_t)id >= tokenizer_size(text_of(t)) ? NULL : tokenizer_piece(text_of(t), id, &n);
}

int32_t mn_token_id(const mn_tokenizer *t, const char *piece) {
    return tokenizer_find(text_of(t), piece);
}

int32_t mn_special_token_id(const mn_tokenizer *t, const char *name) {
    for (int role = 0; role < N_TOKEN_ROLES; role++) {
        if (strcmp(token_role_names[role], name) == 0) return tokenizer_role(text_of(t), (token_role)role);
    }
    return -1;
}

mn_status mn_token_bytes(const mn_tokenizer *t, int32_t id, bool first, char **text, size_t *n_text) {
    bytes scratch = {0}, out = {0};
    size_t size = tokenizer_size(text_of(t));
    *text = NULL;
    if (id < 0 || (size_t)id >= size) MN_FAIL(MN_E_ARG, "the token is %d, allowed: 0 to %zu", id, size - 1);
    mn_status status = tokenizer_token_bytes(text_of(t), id, first, &scratch, &out);
    bytes_clear(&scratch);
    if (status == MN_OK) return give_text(&out, text, n_text);
    bytes_clear(&out);
    return status;
}

int32_t mn_vocab_size(const mn_tokenizer *t) {
    return (int32_t)tokenizer_size(text_of(t));
}

bool mn_has_chat_template(const mn_tokenizer *t) {
    return tokenizer_chat_template(text_of(t), NULL) != NULL;
}

const char *mn_chat_template(const mn_tokenizer *t, bool with_tools) {
    const char *own = with_tools ? tokenizer_chat_template(text_of(t), "tool_use") : NULL;
    return own ? own : tokenizer_chat_template(text_of(t), NULL);
}

void mn_chat_options_init(mn_chat_options *options, size_t size) {
    const mn_chat_options full = {.size = sizeof full, .add_generation_prompt = true};
    options_init(options, size, &full, sizeof full);
}

/* The JSON texts of the options; those that are NULL stay so. */
typedef struct chat_texts {
    json_doc *messages, *tools, *documents, *extra;
} chat_texts;

static mn_status parse_chat_text(json_doc **doc, const char *text, size_t n, const char *what) {
    return text && json_parse(doc, text, n, JSON_PYTHON, what) != MN_OK ? MN_E_ARG : MN_OK;
}

static mn_status parse_chat_texts(chat_texts *t, const char *messages, size_t n, const mn_chat_options *o) {
    const struct {
        json_doc **doc;
        const char *text, *what;
    } others[] = {{&t->tools, o->tools, "tools"},
                  {&t->documents, o->documents, "documents"},
                  {&t->extra, o->template_kwargs, "template_kwargs"}};
    MN_TRY(parse_chat_text(&t->messages, messages, n, "messages"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *text = others[i].text;
        MN_TRY(parse_chat_text(others[i].doc, text, text ? strlen(text) : 0, others[i].what));
    }
    return MN_OK;
}

static const json *root_or_null(const json_doc *doc) {
    return doc ? json_root(doc) : NULL;
}

static mn_status no_template(const tokenizer *t) {
    bytes names = {0};
    tokenizer_put_template_names(t, &names);
    if (names.n) {
        status_fail(MN_E_UNSUPPORTED, "this checkpoint has no chat template named default, only: %s",
                    bytes_text(&names));
    } else {
        status_fail(MN_E_UNSUPPORTED, "this checkpoint has no chat template");
    }
    bytes_clear(&names);
    return MN_E_UNSUPPORTED;
}

mn_status mn_chat_render_with(const mn_tokenizer *t, const char *messages, size_t n_messages,
                              const mn_chat_options *options, char **text, size_t *n_text) {
    const tokenizer *from = text_of(t);
    mn_chat_options full;
    mn_chat_options_init(&full, sizeof full);
    *text = NULL;
    MN_TRY(options_take(&full, sizeof full, options, "mn_chat_options"));
    const char *source = mn_chat_template(t, full.tools != NULL);
    if (!source) return no_template(from);
    chat_texts texts = {0};
    bytes out = {0};
    mn_status status = parse_chat_texts(&texts, messages, n_messages, &full);
    if (status == MN_OK) {
        chat_request request = {
            .messages = root_or_null(texts.messages),
            .tools = root_or_null(texts.tools),
            .documents = root_or_null(texts.documents),
            .extra = root_or_null(texts.extra),
            .tokens = {tokenizer_role_text(from, TOKEN_BOS), tokenizer_role_text(from, TOKEN_EOS),
                       tokenizer_role_text(from, TOKEN_PAD), tokenizer_role_text(from, TOKEN_UNK)},
            .add_generation_prompt = full.add_generation_prompt,
        };
        status = chat_render_text(source, strlen(source), &request, &out);
    }
    json_close(&texts.messages);
    json_close(&texts.tools);
    json_close(&texts.documents);
    json_close(&texts.extra);
    if (status == MN_OK) return give_text(&out, text, n_text);
    bytes_clear(&out);
    return status;
}

mn_status mn_chat_render(const mn_tokenizer *t, const char *messages, size_t n_messages, bool add_generation_prompt,
                         char **text, size_t *n_text) {
    mn_chat_options options;
    mn_chat_options_init(&options, sizeof options);
    options.add_generation_prompt = add_generation_prompt;
    return mn_chat_render_with(t, messages, n_messages, &options, text, n_text);
}

/* ---- generation ---- */

mn_status mn_generation_config_open(mn_generation_config **config, const mn_model *model) {
    MN_TRY(generation_config_copy(config, model ? model->generation : NULL));
    (*config)->set_fields = 0;
    return MN_OK;
}
