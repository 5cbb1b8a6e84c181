/* SPDX-License-Identifier: Apache-2.0 */
#include "support/zero_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include "model/names.h"
#include "support/scratch.h"
#include "support/support.h"

void write_with_hole(const char *path, const void *head, size_t n_head, size_t n_hole) {
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0 && write(fd, head, n_head) == (ssize_t)n_head);
    assert_int_equal(ftruncate(fd, (off_t)(n_head + n_hole)), 0);
    close(fd);
}

static void put_tensor(bytes *header, const weight_place *place, dtype type, size_t *offset) {
    const dtype_info *info = &dtype_table[type];
    size_t n = 1;
    bytes_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header->n > 1 ? "," : "", place->name, info->name);
    for (int d = 0; d < place->n_dims; d++) {
        bytes_printf(header, "%s%lld", d ? "," : "", (long long)place->shape[d]);
        n *= (size_t)place->shape[d];
    }
    bytes_printf(header, "],\"data_offsets\":[%zu,%zu]}", *offset, *offset + n * (size_t)info->bytes);
    *offset += n * (size_t)info->bytes;
}

/* The header of a safetensors file with every tensor of the model, once each. */
static size_t put_header(bytes *header, const model_config *config, dtype type) {
    size_t offset = 0;
    bytes_append_text(header, "{");
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++) {
        for (int role = 0; role < N_WEIGHTS; role++) {
            weight_place place;
            char quoted[128];
            if (role >= N_LAYER_WEIGHTS && layer > 0) break;
            if (!weight_find_place(config, false, (weight_role)role, layer, 0, &place)) continue;
            snprintf(quoted, sizeof quoted, "\"%s\"", place.name);
            if (!strstr(bytes_text(header), quoted)) put_tensor(header, &place, type, &offset);
        }
    }
    bytes_append_text(header, "}");
    while (header->n % 8) bytes_append_text(header, " ");
    assert_ok(bytes_status(header));
    return offset;
}

const char *zero_checkpoint(const char *config_text, dtype type) {
    static char folder[512];
    char path[600];
    model_config config = {0};
    json_doc *doc = NULL;
    bytes header = {0};
    snprintf(folder, sizeof folder, "%s", scratch_empty("model"));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(config_text, file) >= 0 && fclose(file) == 0);
    assert_ok(json_parse(&doc, config_text, strlen(config_text), JSON_STRICT, "config"));
    assert_ok(config_from_json(&config, json_root(doc), "config"));
    size_t n = put_header(&header, &config, type);
    const uint64_t n_header = header.n;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    bytes whole = {0};
    bytes_append(&whole, &n_header, sizeof n_header);
    bytes_append(&whole, header.data, header.n);
    write_with_hole(path, whole.data, whole.n, n);
    bytes_clear(&whole);
    bytes_clear(&header);
    json_close(&doc);
    model_config_clear(&config);
    return folder;
}
