/* `mneme doctor`: checks that a model can be loaded and generates. One line per check, a verdict at the end.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config.h"
#include "description_text.h"
#include "loaded_model.h"
#include "output.h"
#include "progress.h"
#include "serve.h"
#include "commands.h"

typedef struct checkup {
    const options *o;
    bytes lines; /* text or JSON objects */
    int n, n_failed;
} checkup;

static void note(checkup *c, bool ok, const char *name, const char *detail) {
    if (option_on(c->o, OPT_JSON)) {
        bytes_printf(&c->lines, "%s{\"name\":\"%s\",\"ok\":%s,\"detail\":", c->n ? "," : "", name,
                     ok ? "true" : "false");
        json_put_string(&c->lines, detail, strlen(detail));
        bytes_append_text(&c->lines, "}");
    } else {
        bytes_printf(&c->lines, "%-4s  %-10s %s\n", ok ? "ok" : "FAIL", name, detail);
    }
    c->n++;
    c->n_failed += !ok;
}

static void check_machine(checkup *c) {
    char *text = NULL;
    json_doc *doc = NULL;
    char detail[160];
    mn_status status = mn_machine_describe(option_text(c->o, OPT_CPU, "auto"), &text);
    if (status == MN_OK) status = json_parse(&doc, text, strlen(text), JSON_PYTHON, "the machine");
    const json *root = status == MN_OK ? json_root(doc) : NULL;
    const json *level = json_get(root, "cpu");
    if (!level) level = json_get(root, "level");
    snprintf(detail, sizeof detail, "%s, %ld cores online",
             level && level->kind == JSON_STRING ? level->string : "unknown level", sysconf(_SC_NPROCESSORS_ONLN));
    note(c, status == MN_OK, "cpu", status == MN_OK ? detail : mn_last_error());
    json_close(&doc);
    mn_free(text);
}

static void check_memory(checkup *c) {
    char detail[160];
    double gib = (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    double total = (double)sysconf(_SC_PHYS_PAGES) * gib, available = (double)sysconf(_SC_AVPHYS_PAGES) * gib;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_AS, &limit);
    bool limited = limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < (rlim_t)1 << 28;
    snprintf(detail, sizeof detail, "%.1f GiB, %.1f GiB of it unused%s", total, available,
             limited ? "; ulimit -v allows less than 256 MiB" : "");
    note(c, !limited && total > 0.2, "memory", detail);
}

/* `mneme serve` runs without one, too. */
static void check_sandbox(checkup *c) {
    char detail[96] = "Landlock and seccomp";
    const char *lacks = serve_sandbox_lacks();
    if (lacks) snprintf(detail, sizeof detail, "this kernel has no %s", lacks);
    note(c, true, "sandbox", detail);
}

/* A model opens, and generates eight tokens from one. */
static void check_model(checkup *c, const char *label, const char *name) {
    char detail[512];
    loaded_model e = {0};
    mn_session *session = NULL;
    mn_model_options how;
    mn_model_options_init(&how, sizeof how);
    mn_status status = model_path(&e.path, c->o, name);
    how.cpu = option_text(c->o, OPT_CPU, how.cpu);
    how.compute_type = option_text(c->o, OPT_COMPUTE_TYPE, how.compute_type);
    how.threads = (int)option_number(c->o, OPT_THREADS, how.threads);
    how.memory_limit = (uint64_t)option_number(c->o, OPT_MEMORY_LIMIT, (int64_t)how.memory_limit);
    how.progress = progress_shown() ? progress_loading : NULL;
    if (status == MN_OK) status = mn_model_open(&e.model, e.path, &how);
    progress_clear();
    e.info.size = sizeof e.info;
    if (status == MN_OK) status = mn_model_get_info(e.model, &e.info);
    if (status == MN_OK) status = mn_session_open(&session, e.model, NULL);
    int32_t id = 1;
    for (int step = 0; status == MN_OK && step < 8; step++) {
        status = mn_session_step(session, &id, 1, NULL);
        const float *logits = status == MN_OK ? mn_session_logits(session) : NULL;
        int32_t best = 0;
        for (int32_t i = 1; logits && i < e.info.vocab_size; i++) best = logits[i] > logits[best] ? i : best;
        if (logits && !(logits[best] > -1e30f && logits[best] < 1e30f)) status = MN_E_FORMAT;
        id = best;
    }
    if (status == MN_OK) {
        char context[32] = "unbounded";
        if (e.info.max_position_embeddings)
            snprintf(context, sizeof context, "%lld", (long long)e.info.max_position_embeddings);
        snprintf(detail, sizeof detail, "%.300s: %s, %.1f M parameters, %.1f MiB to hold, context %s, %s on %s", e.path,
                 e.info.architecture, (double)e.info.parameters / 1e6,
                 (double)(e.info.packed_bytes ? e.info.packed_bytes : e.info.file_bytes) / (1 << 20), context,
                 e.info.compute_type, e.info.cpu);
    }
    note(c, status == MN_OK, label, status == MN_OK ? detail : mn_last_error());
    mn_session_close(&session);
    loaded_model_close(&e);
}

/* The names that find a model here. */
static void check_names(checkup *c) {
    char *text = NULL;
    json_doc *doc = NULL;
    bytes detail = {0};
    mn_status status = mn_models_describe(&text);
    if (status == MN_OK) status = json_parse(&doc, text, strlen(text), JSON_PYTHON, "the models");
    for (size_t i = 0; status == MN_OK && i < json_root(doc)->n; i++) {
        const json *model = &json_root(doc)->items[i];
        bytes_printf(&detail, "%s%s%s", i ? ", " : "", json_get(model, "name")->string,
                     json_is_string(json_get(model, "use"), "speech") ? " (speech)" : "");
    }
    note(c, status == MN_OK, "models", status == MN_OK ? bytes_text(&detail) : mn_last_error());
    bytes_clear(&detail);
    json_close(&doc);
    mn_free(text);
}

int command_doctor(options *o) {
    checkup c = {.o = o};
    bytes out = {0};
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    note(&c, true, "version", mn_version());
    check_machine(&c);
    check_memory(&c);
    check_sandbox(&c);
    check_names(&c);
    check_model(&c, "embedded", "embedded");
    check_model(&c, "model", o->n_positional ? o->positional[0] : NULL);
    const char *lines = bytes_text(&c.lines);
    if (option_on(o, OPT_JSON)) {
        bytes_printf(&out, "{\"ok\":%s,\"checks\":[%s]}\n", c.n_failed ? "false" : "true", lines);
    } else if (c.n_failed) {
        bytes_printf(&out, "%s%d of %d checks failed\n", lines, c.n_failed, c.n);
    } else {
        bytes_printf(&out, "%sready\n", lines);
    }
    put_bytes(&out);
    bytes_clear(&c.lines);
    return c.n_failed ? EXIT_FAILED : EXIT_DONE;
}
