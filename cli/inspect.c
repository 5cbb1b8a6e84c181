/* `mneme inspect`: properties and memory of a model, or the kernels of this CPU.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "config.h"
#include "description_text.h"
#include "loaded_model.h"
#include "output.h"
#include "commands.h"

/* Prints a JSON object as it is or as text for people. */
static mn_status print(const options *o, const char *text) {
    bytes b = {0};
    if (option_on(o, OPT_JSON)) {
        bytes_append_text(&b, text);
        bytes_append_text(&b, "\n");
    } else {
        json_doc *doc = NULL;
        MN_TRY(json_parse(&doc, text, strlen(text), JSON_PYTHON, "the description"));
        description_text_put(&b, json_root(doc), 0);
        json_close(&doc);
    }
    put_bytes(&b);
    return MN_OK;
}

/* What a run of the options' cache needs, as a JSON object. */
static mn_status plan_text(char **text, const options *o, const loaded_model *e) {
    mn_cache_options cache;
    mn_cache_options_init(&cache, sizeof cache);
    MN_TRY(cache_options_read(o, &cache));
    int64_t own = e->info.max_position_embeddings ? e->info.max_position_embeddings : 1;
    int64_t prompt = option_number(o, OPT_CONTEXT, own), new_tokens = option_number(o, OPT_PLAN_NEW_TOKENS, 1),
            rows = option_number(o, OPT_PLAN_ROWS, 1), batch_size = option_number(o, OPT_PLAN_BATCH_SIZE, 1);
    mn_memory_plan plan = {.size = sizeof plan};
    MN_TRY(mn_memory_plan_make(&plan, e->model, &cache, prompt, new_tokens, rows, batch_size));
    bytes b = {0};
    bytes_append_text(&b, "{\"implementation\":");
    const char *name = cache.implementation ? cache.implementation : "dynamic";
    json_put_string(&b, name, strlen(name));
    bytes_printf(&b, ",\"context\":%lld,\"new_tokens\":%lld,\"rows\":%lld,\"batch_size\":%lld", (long long)prompt,
                 (long long)new_tokens, (long long)rows, (long long)batch_size);
    bytes_printf(&b, ",\"prompt_bytes\":%llu,\"rows_bytes\":%llu,\"cache_bytes\":%llu,\"resident_bytes\":%llu}",
                 (unsigned long long)plan.prompt_bytes, (unsigned long long)plan.rows_bytes,
                 (unsigned long long)plan.cache_bytes, (unsigned long long)plan.resident_bytes);
    bytes_text(&b);
    *text = b.data;
    return bytes_status(&b);
}

static mn_status describe(char **text, const options *o, const loaded_model *e) {
    if (option_is_set(o, OPT_PLAN_ROWS) || option_is_set(o, OPT_PLAN_NEW_TOKENS) ||
        option_is_set(o, OPT_PLAN_BATCH_SIZE))
        return plan_text(text, o, e);
    return mn_model_describe(e->model, option_number(o, OPT_CONTEXT, 0), text);
}

int command_inspect(options *o) {
    loaded_model e = {0};
    char *text = NULL;
    mn_status status = MN_OK;
    int code = EXIT_DONE;
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    if (option_on(o, OPT_KERNELS)) {
        status = mn_machine_describe(option_text(o, OPT_CPU, "auto"), &text);
    } else {
        code = loaded_model_open(&e, o, o->n_positional ? o->positional[0] : NULL, 0);
        if (code == EXIT_DONE) status = describe(&text, o, &e);
    }
    if (code == EXIT_DONE && status == MN_OK) status = print(o, text);
    if (code == EXIT_DONE && status != MN_OK) code = report(o, exit_of(status), NULL);
    mn_free(text);
    loaded_model_close(&e);
    return code;
}
