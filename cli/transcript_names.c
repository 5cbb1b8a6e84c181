/* SPDX-License-Identifier: Apache-2.0 */
#include "transcript_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/sort.h"

typedef struct naming {
    bytes *name, path; /* path: whole, without the ending */
    size_t from;       /* where the part of the path begins that is the name */
    size_t i;          /* which recording */
} naming;

/* ---- one name ---- */

static mn_status rename_it(naming *it) {
    it->name->n = 0;
    bytes_append(it->name, it->path.data + it->from, it->path.n - it->from);
    for (size_t k = 0; !it->name->failed && k < it->name->n; k++) {
        if (it->name->data[k] == '/') it->name->data[k] = '-';
    }
    return bytes_status(it->name);
}

static mn_status begin(naming *it, const char *path) {
    if (strcmp(path, "-") == 0) path = "stdin";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    char *folder = mem_copy_text(path, (size_t)(name - path));
    if (!folder) return mem_no_memory();
    char *real = realpath(*folder ? folder : ".", NULL); /* links and .. lead to folders with names */
    bytes_printf(&it->path, "%s/", real ? real : folder);
    it->from = it->path.n;
    bytes_append(&it->path, name, dot && dot != name ? (size_t)(dot - name) : strlen(name));
    free(real);
    mem_free(folder);
    MN_TRY(bytes_status(&it->path));
    return rename_it(it);
}

/* One folder more; false when there is none. */
static bool lengthen(naming *it) {
    size_t end = it->from;
    while (end > 0 && it->path.data[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && it->path.data[start - 1] != '/') start--;
    if (start < end) it->from = start;
    return start < end;
}

/* ---- all of them ---- */

static int order_of(const bytes *x, const bytes *y) {
    size_t n = x->n < y->n ? x->n : y->n;
    int order = n ? memcmp(x->data, y->data, n) : 0;
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static int by_name(const void *a, const void *b) {
    const naming *x = a, *y = b;
    int order = order_of(x->name, y->name);
    if (order == 0) order = order_of(&x->path, &y->path);
    return order ? order : (x->i > y->i) - (x->i < y->i);
}

/* How many of the sorted ones from the first on have its name. */
static size_t group_size(naming *const *sorted, size_t n) {
    size_t k = 1;
    while (k < n && order_of(sorted[0]->name, sorted[k]->name) == 0) k++;
    return k;
}

/* Folders, until the names differ or the paths do not. */
static mn_status add_folders(naming **sorted, size_t n) {
    for (bool again = true; again;) {
        again = false;
        MN_TRY(sort_pointers((const void **)sorted, n, by_name));
        for (size_t i = 0, k; i < n; i += k) {
            k = group_size(sorted + i, n - i);
            bool differ = order_of(&sorted[i]->path, &sorted[i + k - 1]->path) != 0;
            for (size_t j = i; differ && j < i + k; j++) again = lengthen(sorted[j]) || again;
        }
        for (size_t i = 0; i < n; i++) MN_TRY(rename_it(sorted[i]));
    }
    return MN_OK;
}

static bool is_taken(naming *const *all, size_t n, const bytes *name) {
    for (size_t i = 0; i < n; i++) {
        if (all[i]->name != name && order_of(all[i]->name, name) == 0) return true;
    }
    return false;
}

static mn_status add_numbers(naming **sorted, size_t n) {
    for (size_t i = 0, k; i < n; i += k) {
        k = group_size(sorted + i, n - i);
        for (size_t j = 1; j < k; j++) {
            bytes *name = sorted[i + j]->name;
            size_t bare = name->n, number = j + 1;
            do {
                name->n = bare;
                bytes_printf(name, "-%zu", number++);
                MN_TRY(bytes_status(name));
            } while (is_taken(sorted, n, name));
        }
    }
    return MN_OK;
}

mn_status transcript_names(bytes *names, const char *const *paths, size_t n) {
    naming *all = mem_alloc(n, sizeof *all), **sorted = mem_alloc(n, sizeof *sorted);
    mn_status status = all && sorted ? MN_OK : mem_no_memory();
    for (size_t i = 0; status == MN_OK && i < n; i++) {
        all[i] = (naming){.name = &names[i], .i = i};
        sorted[i] = &all[i];
        status = begin(&all[i], paths[i]);
    }
    if (status == MN_OK) status = add_folders(sorted, n);
    if (status == MN_OK) status = add_numbers(sorted, n);
    for (size_t i = 0; all && i < n; i++) bytes_clear(&all[i].path);
    mem_free(sorted);
    mem_free(all);
    return status;
}
