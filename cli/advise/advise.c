/* `mneme advise`: options, and the answer.
 * SPDX-License-Identifier: Apache-2.0 */
#include "advise/advise.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "config.h"
#include "output.h"
#include "commands.h"

enum { STANDARD_CONTEXT = 4096, STANDARD_SECONDS = 60 }; /* the context of models without a limit */

static mn_status read_options(advice *a) {
    const options *o = a->o;
    a->rows = option_number(o, OPT_ADVISE_ROWS, 1);
    a->time_ms = 1e3 * (double)option_number(o, OPT_ADVISE_TIME, STANDARD_SECONDS);
    if (option_is_set(o, OPT_ADVISE_SVG) && a->time_ms <= 0)
        MN_FAIL(MN_E_ARG, "--svg draws what is measured, but --time is 0; allowed with it: 1 or more seconds");
    mn_cache_options_init(&a->cache, sizeof a->cache);
    MN_TRY(cache_options_read(o, &a->cache));
    return option_is_set(o, OPT_ADVISE_SVG) ? file_check_target(option_text(o, OPT_ADVISE_SVG, "")) : MN_OK;
}

/* What the model has to do with them. */
static mn_status read_sizes(advice *a) {
    const mn_model_info *info = &a->e.info;
    const int64_t own = info->max_position_embeddings;
    if (info->max_source_positions > 0)
        MN_FAIL(MN_E_UNSUPPORTED, "'%s' has an encoder; allowed: models of text", a->e.path);
    a->context = option_number(a->o, OPT_ADVISE_CONTEXT, own > LEAST_CONTEXT ? own : STANDARD_CONTEXT);
    a->memory = (uint64_t)option_number(a->o, OPT_ADVISE_MEMORY, (int64_t)info->available_bytes);
    if (info->has_learned_positions && a->context > own)
        MN_FAIL(MN_E_ARG, "--context is %lld; allowed: %d to %lld, for which the model has learned positions",
                (long long)a->context, (int)LEAST_CONTEXT, (long long)own);
    return MN_OK;
}

/* A short text would show no difference. */
static mn_status read_text(advice *a) {
    MN_TRY(comparison_read_text(&a->text, &a->t.source, a->o, &a->e));
    if (a->text.n >= LEAST_CONTEXT) return MN_OK;
    MN_FAIL(MN_E_ARG, "the text (%s) has %zu tokens; allowed: %d and more", a->t.source, a->text.n, (int)LEAST_CONTEXT);
}

static mn_status write_picture(const advice *a) {
    const char *path = option_text(a->o, OPT_ADVISE_SVG, NULL);
    bytes b = {0};
    if (!path) return MN_OK;
    advise_put_picture(&b, a);
    mn_status status = bytes_status(&b);
    if (status == MN_OK) status = file_write_parts(path, &(file_part){b.data, b.n}, 1, FILE_BY_UMASK);
    bytes_clear(&b);
    return status;
}

static void print_answer(const advice *a) {
    bytes b = {0};
    if (option_on(a->o, OPT_JSON)) {
        advise_put_json(&b, a);
    } else {
        advise_put_table(&b, a);
    }
    put_bytes(&b);
}

static int advise(advice *a) {
    const options *o = a->o;
    mn_status status = read_options(a);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    int code = loaded_model_open(&a->e, o, o->n_positional ? o->positional[0] : NULL, 0);
    if (code != EXIT_DONE) return code;
    status = read_sizes(a);
    if (status != MN_OK) return report(o, exit_of(status), "context");
    status = read_text(a);
    if (status != MN_OK) return report(o, exit_of(status), "text");
    status = advise_plan(a);
    if (status != MN_OK) return report(o, exit_of(status), "memory");
    if (a->e.info.max_position_embeddings > 0 && a->context > a->e.info.max_position_embeddings)
        print_message("warning: the model was trained with texts of up to %lld tokens",
                      (long long)a->e.info.max_position_embeddings);
    status = advise_measure(a);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    advise_choose(a);
    status = write_picture(a);
    if (status != MN_OK) return report(o, exit_of(status), "svg");
    print_answer(a);
    return EXIT_DONE;
}

int command_advise(options *o) {
    advice *a = mem_alloc(1, sizeof *a);
    if (!a) return report(o, EXIT_MEMORY, NULL);
    a->o = o;
    int code = advise(a);
    prompt_clear(&a->text);
    comparison_clear(&a->t);
    loaded_model_close(&a->e);
    mem_free(a);
    return code;
}
