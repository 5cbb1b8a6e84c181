/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <xxhash.h>

#include "kv/archive.h"
#include "support/hostile/hostile.h"
#include "tensor/safetensors.h"

static void walk_entries(const archive *a, const uint8_t *data, size_t n) {
    MUST_HOLD(archive_file_bytes(a) == n);
    for (size_t i = 0; i < archive_members(a); i++) {
        archive_member member = archive_member_at(a, i);
        MUST_HOLD(archive_member_of(a, member.key) == member.value);
    }
    for (size_t i = 0; i < archive_entries(a); i++) {
        const archive_view *view = archive_entry_at(a, i);
        int64_t elements = 1;
        size_t needed;
        MUST_HOLD(archive_find(a, view->name) == view);
        MUST_HOLD(view->n_dims >= 0 && view->n_dims <= ARCHIVE_DIMS);
        for (int k = 0; k < view->n_dims; k++) MUST_HOLD(!__builtin_mul_overflow(elements, view->shape[k], &elements));
        MUST_HOLD(dtype_bytes(view->type, elements, &needed) == MN_OK && needed == view->n_bytes);
        MUST_HOLD(view->stored >= data && view->stored_bytes <= n &&
                  (size_t)(view->stored - data) <= n - view->stored_bytes);
        MUST_HOLD((size_t)(view->stored - data) % ARCHIVE_ALIGN == 0);
        MUST_HOLD(view->compressed || view->n_bytes == view->stored_bytes);
        MUST_HOLD(view->n_bytes / ARCHIVE_MOST_RATIO <= view->stored_bytes);
    }
    MUST_HOLD(archive_find(a, "no entry has this name") == NULL);
}

/* Every entry into a block of exactly its size. */
static void read_everything(const archive *a) {
    for (size_t i = 0; i < archive_entries(a); i++) {
        const archive_view *view = archive_entry_at(a, i);
        const uint8_t *data = NULL;
        void *buffer = malloc(view->n_bytes ? view->n_bytes : 1);
        MUST_HOLD(buffer);
        MUST_HOLD(archive_bytes(a, view, buffer, &data) == MN_OK && data);
        MUST_HOLD(data == (view->compressed ? buffer : view->stored));
        free(buffer);
    }
}

mn_status hostile_archive(const uint8_t *data, size_t n) {
    int64_t live = mem_count().live;
    uint8_t *copy = malloc(n ? n : 1);
    MUST_HOLD(copy);
    if (n) memcpy(copy, data, n);
    archive *a = NULL;
    mn_status status = archive_open_memory(&a, copy, n, "hostile");
    MUST_HOLD((status == MN_OK) == (a != NULL));
    if (a) {
        walk_entries(a, copy, n);
        status = archive_verify(a);
        if (status == MN_OK) read_everything(a);
    }
    MUST_HOLD(status == MN_OK || status == MN_E_REFUSED);
    archive_close(&a);
    free(copy);
    MUST_HOLD(mem_count().live == live);
    return status;
}

/* Overwrites the 16 digits after `key` in the head, if there are as many. */
static void put_digits(uint8_t *head, size_t n, const char *key, uint64_t hash) {
    char digits[17];
    uint8_t *at = memmem(head, n, key, strlen(key));
    if (!at || (size_t)(at - head) + strlen(key) + 16 >= n || at[strlen(key) + 16] != '"') return;
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash);
    memcpy(at + strlen(key), digits, 16);
}

void hostile_archive_fix_checksums(uint8_t *data, size_t n) {
    static const char own[] = "\"mneme.sum\":\"";
    tensor_set *set = NULL;
    uint64_t length;
    if (n < 8) return;
    memcpy(&length, data, 8);
    if (length > n - 8) return;
    size_t n_head = 8 + (size_t)length;
    if (safetensors_open_memory(&set, data, n, "checksums") == MN_OK) {
        for (size_t i = 0; i < tensor_set_count(set); i++) {
            const tensor *t = tensor_set_at(set, i);
            char key[256];
            snprintf(key, sizeof key, "\"sum.%.200s\":\"", t->name);
            put_digits(data, n_head, key, XXH3_64bits(t->data, t->bytes));
        }
    }
    tensor_set_close(&set);
    uint8_t *at = memmem(data, n_head, own, sizeof own - 1);
    if (!at || (size_t)(at - data) + sizeof own - 1 + 16 > n_head) return;
    memset(at + sizeof own - 1, '0', 16);
    put_digits(data, n_head, own, XXH3_64bits(data, n_head));
}
