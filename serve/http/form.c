/* SPDX-License-Identifier: Apache-2.0 */
#include "http/form.h"

#include <microhttpd.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"
#include "request/fields.h"

enum { BUFFER = 32 << 10 }; /* of the library: a head of a part fits, a file comes in pieces of this size */

typedef struct part {
    char *name;
    bytes value;
} part;

struct form {
    struct MHD_PostProcessor *reader;
    unsigned bodies;
    size_t n;
    part parts[MOST_PARTS];
    mn_status status; /* of what was read; its message is fixed text */
    const char *problem;
    json body;
    json_member members[MOST_PARTS];
    json items[MOST_PARTS]; /* of lists */
};

static void fail(form *f, mn_status status, const char *problem) {
    if (f->status != MN_OK) return;
    f->status = status;
    f->problem = problem;
}

/* Where an encoding is named, it is that the bytes are as they are. */
static bool is_plain(const char *encoding) {
    return !encoding || strcmp(encoding, "binary") == 0 || strcmp(encoding, "8bit") == 0 ||
           strcmp(encoding, "7bit") == 0;
}

/* The library begins a part twice, first with no bytes, when the body has come up to its value and no further. */
static bool is_begun(const form *f, const char *name) {
    const part *last = f->n ? &f->parts[f->n - 1] : NULL;
    return last && last->value.n == 0 && strcmp(last->name, name) == 0;
}

static enum MHD_Result on_part(void *user, enum MHD_ValueKind kind, const char *key, const char *file, const char *type,
                               const char *encoding, const char *data, uint64_t at, size_t n) {
    form *f = user;
    (void)kind, (void)file, (void)type;
    if (!key) {
        fail(f, MN_E_FORMAT, "a part has no name");
    } else if (!is_plain(encoding)) {
        fail(f, MN_E_FORMAT, "a part has another Content-Transfer-Encoding than binary");
    } else if (at == 0 && is_begun(f, key)) {
        /* its bytes follow */
    } else if (at == 0 && f->n == MOST_PARTS) {
        fail(f, MN_E_FORMAT, "it has more than 64 parts");
    } else if (at == 0) {
        f->parts[f->n].name = mem_copy_text(key, strlen(key));
        if (!f->parts[f->n++].name) fail(f, MN_E_NOMEM, NULL);
    }
    if (f->status != MN_OK) return MHD_NO;
    bytes_append(&f->parts[f->n - 1].value, data, n);
    return MHD_YES;
}

form *form_open(struct MHD_Connection *connection, unsigned bodies) {
    form *f = mem_alloc(1, sizeof *f);
    if (!f) return NULL;
    f->bodies = bodies;
    f->reader = MHD_create_post_processor(connection, BUFFER, on_part, f);
    if (!f->reader) form_close(&f);
    return f;
}

void form_close(form **out) {
    form *f = *out;
    *out = NULL;
    if (!f) return;
    if (f->reader) MHD_destroy_post_processor(f->reader);
    for (size_t i = 0; i < f->n; i++) {
        mem_free(f->parts[i].name);
        bytes_clear(&f->parts[i].value);
    }
    mem_free(f);
}

void form_take(form *f, const char *data, size_t n) {
    if (f->status == MN_OK && MHD_post_process(f->reader, data, n) != MHD_YES)
        fail(f, MN_E_FORMAT, "it does not have the form that its boundary says");
}

/* The row of a part; NULL: the field is not known. */
static const field *field_of(const form *f, const part *p) {
    const field *row;
    for (size_t i = 0; (row = field_at(i)); i++) {
        if (row->bodies & f->bodies && strcmp(row->name, p->name) == 0) return row;
    }
    return NULL;
}

static bool is_list(const char *name) {
    size_t n = strlen(name);
    return n > 2 && strcmp(name + n - 2, "[]") == 0;
}

/* What a text means where a number or a flag is wanted; else it stays a text, which is refused by the field's name. */
static void read_scalar(json *value, const field *row) {
    json_doc *doc = NULL;
    if (!row || row->kinds == TAKES_ANY || !(row->kinds & (TAKES_NUMBER | TAKES_INTEGER | TAKES_FLAG))) return;
    if (json_parse(&doc, value->string, value->n, JSON_STRICT, row->name) != MN_OK) return;
    const char *text = value->string; /* the document ends here, the part stays */
    const json *root = json_root(doc);
    if (root->kind == JSON_BOOL || root->kind == JSON_INT || root->kind == JSON_REAL) *value = *root;
    if (root->kind == JSON_REAL) value->written = text + strspn(text, " \t\r\n");
    json_close(&doc);
}

static mn_status read_value(json *value, const form *f, part *p, refusal *why) {
    const field *row = field_of(f, p);
    const char *text = bytes_text(&p->value);
    MN_TRY(bytes_status(&p->value));
    *value = (json){.kind = JSON_STRING, .n = p->value.n, .string = text};
    if (row && row->kinds == TAKES_FILE) return MN_OK;
    if (utf8_valid_prefix(text, p->value.n) != p->value.n || memchr(text, 0, p->value.n)) {
        *why = (refusal){400, "invalid_value", row ? row->name : NULL};
        MN_FAIL(MN_E_ARG, "'%s' is no text in UTF-8 without zero bytes", row ? row->name : "a field");
    }
    read_scalar(value, row);
    return MN_OK;
}

/* Whether a part before this one has its name. */
static bool is_again(const form *f, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (strcmp(f->parts[i].name, f->parts[index].name) == 0) return true;
    }
    return false;
}

/* The parts of a list's name, from `index` on, as items behind the n_used ones. */
static mn_status read_list(json *value, form *f, size_t index, size_t *n_used, refusal *why) {
    *value = (json){.kind = JSON_ARRAY, .items = &f->items[*n_used]};
    for (size_t i = index; i < f->n; i++) {
        if (strcmp(f->parts[i].name, f->parts[index].name) != 0) continue;
        MN_TRY(read_value(&f->items[(*n_used)++], f, &f->parts[i], why));
        value->n++;
    }
    return MN_OK;
}

mn_status form_end(form *f, const json **body, refusal *why) {
    size_t n_items = 0, n = 0;
    bool is_whole = MHD_destroy_post_processor(f->reader) == MHD_YES;
    f->reader = NULL;
    if (!is_whole) fail(f, MN_E_FORMAT, "it ends before its last boundary");
    if (f->status == MN_E_NOMEM) return mem_no_memory();
    if (f->status != MN_OK) {
        *why = (refusal){400, "invalid_form", NULL};
        MN_FAIL(f->status, "the body is no multipart/form-data: %s", f->problem);
    }
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->parts[i].name;
        json_member *m = &f->members[n];
        if (is_again(f, i) && is_list(name)) continue;
        if (is_again(f, i)) {
            const field *row = field_of(f, &f->parts[i]);
            *why = (refusal){400, "invalid_value", row ? row->name : NULL};
            MN_FAIL(MN_E_ARG, "'%.60s' is there twice, allowed: once", name);
        }
        *m = (json_member){.key = name, .key_n = strlen(name)};
        MN_TRY(is_list(name) ? read_list(&m->value, f, i, &n_items, why) : read_value(&m->value, f, &f->parts[i], why));
        n++;
    }
    f->body = (json){.kind = JSON_OBJECT, .n = n, .members = f->members};
    *body = &f->body;
    return MN_OK;
}
