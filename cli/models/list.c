/* `mneme list`: the models that a name finds.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "config.h"
#include "output.h"
#include "commands.h"

int command_list(options *o) {
    char *text = NULL;
    json_doc *doc = NULL;
    bytes out = {0};
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    mn_status status = mn_models_describe(&text);
    if (status == MN_OK) status = json_parse(&doc, text, strlen(text), JSON_PYTHON, "the models");
    if (status == MN_OK && option_on(o, OPT_JSON)) bytes_printf(&out, "{\"models\":%s}\n", text);
    for (size_t i = 0; status == MN_OK && !option_on(o, OPT_JSON) && i < json_root(doc)->n; i++) {
        const json *model = &json_root(doc)->items[i];
        bytes_printf(&out, "%-36s %-7s %s\n", json_get(model, "name")->string, json_get(model, "use")->string,
                     json_get(model, "path")->string);
    }
    json_close(&doc);
    mn_free(text);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    put_bytes(&out);
    return EXIT_DONE;
}
