/* mneme pack: writes the packed weights of a model to a folder, where the other commands find and map them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "config.h"
#include "loaded_model.h"
#include "output.h"

static mn_status save(bytes *out, const options *o, const loaded_model *e) {
    bytes folder = {0};
    uint64_t n = 0;
    MN_TRY(packed_folder(&folder, o));
    mn_status status = mn_model_save_packed(e->model, folder.data, &n);
    if (status == MN_OK && option_on(o, OPT_JSON)) {
        bytes_append_text(out, "{");
        json_put_text_member(out, "model", e->path);
        json_put_text_member(out, "compute_type", e->info.compute_type);
        json_put_text_member(out, "packed_dir", folder.data);
        json_put_int_member(out, "packed_bytes", (int64_t)n);
        bytes_append_text(out, "}\n");
    } else if (status == MN_OK) {
        bytes_printf(out, "%s: %.1f MiB in %s\n", e->path, (double)n / (1 << 20), folder.data);
    }
    bytes_clear(&folder);
    return status;
}

int command_pack(options *o) {
    loaded_model e = {0};
    bytes out = {0};
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    int code = loaded_model_open(&e, o, o->n_positional ? o->positional[0] : NULL, 0);
    if (code == EXIT_DONE) {
        mn_status status = save(&out, o, &e);
        if (status == MN_OK) put_bytes(&out);
        if (status != MN_OK) code = report(o, exit_of(status), "packed_dir");
    }
    bytes_clear(&out);
    loaded_model_close(&e);
    return code;
}
