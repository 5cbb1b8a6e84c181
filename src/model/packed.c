/* SPDX-License-Identifier: Apache-2.0 */
#include "model/packed.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "kv/archive.h"
#include "model/encoder.h"
#include "model/weights.h"
#include "tensor/fingerprint.h"

enum { LAYOUT_VERSION = 1 }; /* of panels, as kernels/linear/linear.h describes them */

static const char identity_name[] = "panels_identity", panels_name[] = "panels", kind[] = "weights";

static void add_layout(fingerprint *f, const weight_layout *layout) {
    const int64_t numbers[] = {LAYOUT_VERSION,  layout->form,        layout->n,
                               layout->k,       layout->bits,        layout->group,
                               layout->has_min, layout->byte_scales, (int64_t)layout->panel_bytes};
    fingerprint_add_sized(f, numbers, sizeof numbers);
}

static mn_status identity_of(char out[FINGERPRINT_HEX], network *net, const model_core *model) {
    char whole[FINGERPRINT_HEX];
    fingerprint *f = NULL;
    weight **list = NULL;
    int n = 0;
    MN_TRY(model_fingerprint(whole, model));
    MN_TRY(weights_list(&list, &n, net));
    mn_status status = fingerprint_open(&f);
    if (status == MN_OK) {
        fingerprint_add_sized(f, whole, sizeof whole);
        tensor_set_add_files(f, model_tensors(model));
        for (int i = 0; i < n; i++) {
            fingerprint_add_sized(f, list[i]->source.tensor->name, strlen(list[i]->source.tensor->name));
            add_layout(f, &list[i]->layout);
        }
        fingerprint_put(out, f);
        fingerprint_close(&f);
    }
    mem_free(list);
    return status;
}

static mn_status path_of(bytes *path, const char *folder, const char *identity) {
    char name[FINGERPRINT_HEX + sizeof ".safetensors"];
    snprintf(name, sizeof name, "%s.safetensors", identity);
    return path_join(path, folder, name);
}

static mn_status open_panels(archive **out, const uint8_t **panels, const char *path, const char *identity, size_t n) {
    archive *a = NULL;
    MN_TRY(archive_open(&a, path));
    const char *given = archive_member_of(a, identity_name);
    const archive_view *view = archive_find(a, panels_name);
    mn_status status = archive_verify_gaps(a);
    if (status == MN_OK && (!given || strcmp(given, identity) != 0 || !view || view->compressed || view->n_bytes != n))
        status = status_fail(MN_E_REFUSED, "the file has not the panels of this model");
    if (status == MN_OK) status = archive_bytes(a, view, NULL, panels);
    if (status != MN_OK) archive_close(&a);
    *out = a;
    return status;
}

/* Whether the folder itself, if the path is a link, and the file are this user's. */
static bool are_own(const char *folder, const bytes *path) {
    bytes self = {0};
    const bool is_own = path_join(&self, folder, ".") == MN_OK && file_is_own(bytes_text(&self));
    bytes_clear(&self);
    return is_own && file_is_own(path->data);
}

mn_status packed_map(network *net, const model_core *model, const char *folder) {
    packed_weights *weights = &net->weights;
    char identity[FINGERPRINT_HEX];
    bytes path = {0};
    const uint8_t *panels = NULL;
    if (!folder || weights->packed_bytes == 0) return MN_OK;
    mn_status status = identity_of(identity, net, model);
    if (status == MN_OK) status = path_of(&path, folder, identity);
    if (status == MN_OK && are_own(folder, &path)) {
        status = open_panels(&weights->mapped, &panels, bytes_text(&path), identity, weights->packed_bytes);
        if (status == MN_OK) status = weights_place(net, (const char *)panels);
        if (status != MN_OK) archive_close(&weights->mapped);
        if (status != MN_E_NOMEM) status = MN_OK;
    }
    bytes_clear(&path);
    return status;
}

static size_t mapped_bytes(const network *net) {
    return net->weights.mapped ? net->weights.packed_bytes : 0;
}

size_t packed_mapped_bytes(const model_core *model) {
    return mapped_bytes(&model->net) + (model->encoder ? mapped_bytes(&model->encoder->net) : 0);
}

static mn_status save_network(network *net, const model_core *model, const char *folder) {
    char identity[FINGERPRINT_HEX];
    bytes path = {0};
    weight **list = NULL;
    int n = 0;
    MN_TRY(identity_of(identity, net, model));
    MN_TRY(weights_list(&list, &n, net));
    const archive_entry entry = {.name = panels_name,
                                 .type = DTYPE_U8,
                                 .n_dims = 1,
                                 .shape = {(int64_t)net->weights.packed_bytes},
                                 .data = list[0]->packed,
                                 .n_bytes = net->weights.packed_bytes};
    const archive_member members[] = {{ARCHIVE_KIND, kind}, {ARCHIVE_MODEL, model->what}, {identity_name, identity}};
    mn_status status = path_of(&path, folder, identity);
    if (status == MN_OK)
        status = archive_write(bytes_text(&path), &entry, 1, members, sizeof members / sizeof *members);
    bytes_clear(&path);
    mem_free(list);
    return status;
}

mn_status packed_save(model_core *model, const char *folder, uint64_t *n_bytes) {
    *n_bytes = 0;
    if (model_packed_bytes(model) == 0)
        MN_FAIL(MN_E_UNSUPPORTED, "'%s' packs its weights for each use: there is nothing to save", model->what);
    MN_TRY(file_make_folders(folder, FILE_PRIVATE));
    MN_TRY(save_network(&model->net, model, folder));
    if (model->encoder) MN_TRY(save_network(&model->encoder->net, model, folder));
    *n_bytes = model_packed_bytes(model);
    return MN_OK;
}
