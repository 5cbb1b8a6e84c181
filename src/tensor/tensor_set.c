/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/tensor_set.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/sort.h"
#include "base/utf8.h"

mn_status tensor_set_new(tensor_set **out) {
    *out = mem_alloc(1, sizeof **out);
    return *out ? MN_OK : MN_E_NOMEM;
}

void tensor_set_close(tensor_set **set) {
    tensor_set *s = *set;
    if (!s) return;
    for (size_t i = 0; i < s->n_files; i++) {
        json_close(&s->files[i].header);
        mem_free(s->files[i].names);
        if (!s->files[i].borrowed) file_map_close(&s->files[i].map);
    }
    mem_free(s->files);
    mem_free(s->tensors);
    mem_free(s->by_name);
    mem_free(s);
    *set = NULL;
}

static mn_status grow_files(tensor_set *set, size_t n) {
    return mem_grow(&set->files, &set->files_capacity, set->n_files + n, sizeof *set->files);
}

mn_status tensor_set_map(tensor_set *set, const char *path) {
    file_map map;
    MN_TRY(grow_files(set, 1));
    MN_TRY(file_map_open(&map, path));
    set->files[set->n_files++] = (tensor_file){.map = map};
    return MN_OK;
}

mn_status tensor_set_borrow(tensor_set *set, const void *data, size_t n) {
    MN_TRY(grow_files(set, 1));
    set->files[set->n_files++] = (tensor_file){.map = {data, n, 0}, .borrowed = true};
    return MN_OK;
}

mn_status tensor_set_merge(tensor_set *set, tensor_set *other) {
    MN_TRY(grow_files(set, other->n_files));
    MN_TRY(mem_grow(&set->tensors, &set->capacity, set->n + other->n, sizeof *set->tensors));
    for (size_t i = 0; i < other->n_files; i++) set->files[set->n_files++] = other->files[i];
    for (size_t i = 0; i < other->n; i++) set->tensors[set->n++] = other->tensors[i];
    other->n_files = other->n = 0;
    return MN_OK;
}

mn_status tensor_set_add(tensor_set *set, const tensor *t) {
    MN_TRY(mem_grow(&set->tensors, &set->capacity, set->n + 1, sizeof *set->tensors));
    set->tensors[set->n++] = *t;
    return MN_OK;
}

static int order_in_file(const void *a, const void *b) {
    const tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* an empty tensor lies before what starts at its place */
}

static int order_of_names(const void *a, const void *b) {
    const tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Pointers to all tensors, sorted, owned by the caller. */
static mn_status sorted_tensors(const tensor_set *set, sort_order order, const void ***out) {
    const void **sorted = mem_alloc_raw(set->n, sizeof *sorted);
    if (!sorted) return MN_E_NOMEM;
    for (size_t i = 0; i < set->n; i++) sorted[i] = &set->tensors[i];
    mn_status status = sort_pointers(sorted, set->n, order);
    if (status == MN_OK) {
        *out = sorted;
    } else {
        mem_free(sorted);
    }
    return status;
}

mn_status tensor_set_order(tensor_set *set) {
    const void **sorted = NULL;
    MN_TRY(sorted_tensors(set, order_in_file, &sorted));
    tensor *ordered = mem_alloc_raw(set->n, sizeof *ordered);
    if (ordered) {
        for (size_t i = 0; i < set->n; i++) ordered[i] = *(const tensor *)sorted[i];
        mem_free(set->tensors);
        set->tensors = ordered;
        set->capacity = set->n;
    }
    mem_free(sorted);
    return ordered ? MN_OK : MN_E_NOMEM;
}

mn_status tensor_set_finish(tensor_set *set, const char *what) {
    mem_free(set->by_name);
    set->by_name = NULL;
    MN_TRY(sorted_tensors(set, order_of_names, &set->by_name));
    for (size_t i = 1; i < set->n; i++) {
        if (order_of_names(set->by_name[i - 1], set->by_name[i]) != 0) continue;
        MN_FAIL(MN_E_FORMAT, "%s: tensor '%.150s' appears twice", what, ((const tensor *)set->by_name[i])->name);
    }
    return MN_OK;
}

static mn_status count_elements(const tensor *t, int64_t *out) {
    *out = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->shape[i] < 0) MN_FAIL(MN_E_FORMAT, "dimension %d is %" PRId64 ", allowed: 0 or more", i, t->shape[i]);
        if (__builtin_mul_overflow(*out, t->shape[i], out)) {
            MN_FAIL(MN_E_FORMAT, "the shape has more elements than 63 bits can count");
        }
    }
    return MN_OK;
}

static mn_status count_bytes(const tensor *t, size_t *out) {
    int64_t elements, row = t->n_dims > 0 ? t->shape[t->n_dims - 1] : 1;
    const dtype_info *info = &dtype_table[t->type];
    MN_TRY(count_elements(t, &elements));
    if (row % info->block != 0) {
        MN_FAIL(MN_E_FORMAT, "rows of %" PRId64 " values do not fill blocks of %d (%s)", row, info->block, info->name);
    }
    return dtype_bytes(t->type, elements, out);
}

mn_status tensor_needs(const char *what, const tensor *t, size_t *out) {
    return status_context(count_bytes(t, out), "%s: tensor '%.150s'", what, t->name);
}

mn_status tensor_check_name(const char *what, const char *kind, const char *name, size_t n) {
    if (n == 0 || n > TENSOR_NAME_BYTES) {
        MN_FAIL(MN_E_FORMAT, "%s: the name of a %s has %zu bytes, allowed: 1 to %d", what, kind, n, TENSOR_NAME_BYTES);
    }
    size_t valid = utf8_valid_prefix(name, n);
    if (valid < n) {
        MN_FAIL(MN_E_FORMAT, "%s: the name of a %s is not valid UTF-8 at its byte %zu", what, kind, valid);
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c >= 0x20 && c != 0x7F) continue;
        MN_FAIL(MN_E_FORMAT, "%s: the name of a %s holds the control character 0x%02x at its byte %zu", what, kind, c,
                i);
    }
    return MN_OK;
}

size_t tensor_set_count(const tensor_set *set) {
    return set->n;
}

const tensor *tensor_set_at(const tensor_set *set, size_t i) {
    return &set->tensors[i];
}

const tensor *tensor_set_find(const tensor_set *set, const char *name) {
    size_t lo = 0, hi = set->n;
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        const tensor *t = set->by_name[middle];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0) {
            hi = middle;
        } else {
            lo = middle + 1;
        }
    }
    return NULL;
}

size_t tensor_set_file_bytes(const tensor_set *set) {
    size_t n = 0;
    for (size_t i = 0; i < set->n_files; i++) n += set->files[i].map.n;
    return n;
}

void tensor_set_release_pages(const tensor_set *set) {
    for (size_t i = 0; i < set->n_files; i++) {
        const tensor_file *file = &set->files[i];
        if (file->map.data && !file->borrowed) madvise((void *)(uintptr_t)file->map.data, file->map.n, MADV_DONTNEED);
    }
}
