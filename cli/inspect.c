/* `mneme inspect`: what a model is and needs, or which kernels this CPU runs.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "config.h"
#include "describe.h"
#include "engine.h"
#include "output.h"
#include "verbs.h"

/* Prints a JSON object as it is or for human eyes. */
static mn_status print(const options *o, const char *text) {
    bytes b = {0};
    if (option_on(o, OPT_JSON)) {
        bytes_append_text(&b, text);
        bytes_append_text(&b, "\n");
    } else {
        json_doc *doc = NULL;
        MN_TRY(json_parse(&doc, text, strlen(text), JSON_PYTHON, "the description"));
        describe_put(&b, json_root(doc), 0);
        json_close(&doc);
    }
    put_bytes(&b);
    return MN_OK;
}

int inspect_verb(options *o) {
    engine e = {0};
    char *text = NULL;
    mn_status status = MN_OK;
    int code = EXIT_DONE;
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL);
        return EXIT_DONE;
    }
    if (option_on(o, OPT_KERNELS)) {
        status = mn_machine_describe(option_text(o, OPT_CPU, "auto"), &text);
    } else {
        code = engine_open(&e, o, o->n_positional ? o->positional[0] : NULL, 0);
        if (code == EXIT_DONE) status = mn_model_describe(e.model, option_number(o, OPT_CONTEXT, 0), &text);
    }
    if (code == EXIT_DONE && status == MN_OK) status = print(o, text);
    if (code == EXIT_DONE && status != MN_OK) code = report(o, exit_of(status), NULL);
    mn_free(text);
    engine_close(&e);
    return code;
}
