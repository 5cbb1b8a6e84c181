/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/fingerprint.h"

#include <string.h>

#include "tensor/tensor_set.h"

/* By name, not by number: the numbers of dtype may change. */
static void add_description(fingerprint *f, const tensor *t) {
    const char *type = dtype_table[t->type].name;
    fingerprint_add_sized(f, t->name, strlen(t->name));
    fingerprint_add_sized(f, type, strlen(type));
    fingerprint_add_sized(f, t->shape, (size_t)t->n_dims * sizeof *t->shape);
}

static void add_everything(fingerprint *f, const tensor *t) {
    fingerprint_add_sized(f, t->data, t->bytes);
}

static void add_samples(fingerprint *f, const tensor *t) {
    size_t last = t->bytes - FINGERPRINT_BLOCK; /* where the last block begins */
    for (size_t i = 0; i < FINGERPRINT_BLOCKS; i++) {
        size_t begin =
            last / (FINGERPRINT_BLOCKS - 1) * i + last % (FINGERPRINT_BLOCKS - 1) * i / (FINGERPRINT_BLOCKS - 1);
        fingerprint_add(f, t->data + begin, FINGERPRINT_BLOCK);
    }
}

static mn_status take(char out[FINGERPRINT_HEX], const tensor_set *set, const char *kind, size_t whole) {
    fingerprint *f = NULL;
    MN_TRY(fingerprint_open(&f));
    fingerprint_add_sized(f, kind, strlen(kind));
    for (size_t i = 0; i < set->n; i++) {
        const tensor *t = set->by_name[i];
        add_description(f, t);
        if (t->bytes < whole) {
            add_everything(f, t);
        } else {
            add_samples(f, t);
        }
    }
    fingerprint_put(out, f);
    fingerprint_close(&f);
    return MN_OK;
}

mn_status tensor_set_fingerprint(char out[FINGERPRINT_HEX], const tensor_set *set) {
    return take(out, set, "full", SIZE_MAX);
}

mn_status tensor_set_fingerprint_sampled(char out[FINGERPRINT_HEX], const tensor_set *set) {
    return take(out, set, "sampled", FINGERPRINT_WHOLE);
}

void tensor_set_add_files(fingerprint *f, const tensor_set *set) {
    for (size_t i = 0; i < set->n_files; i++) {
        const int64_t numbers[] = {(int64_t)set->files[i].map.n, set->files[i].map.changed_ns};
        fingerprint_add_sized(f, numbers, sizeof numbers);
    }
}
