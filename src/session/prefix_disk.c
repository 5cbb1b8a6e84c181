/* SPDX-License-Identifier: Apache-2.0 */
#include "session/prefix_disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "session/prefix_tree.h"
#include "session/saved.h"

static const double write_after_ms = 1000, look_every_ms = 100, retry_ms = 30000, close_ms = 10000;

/* A file to be written, or read. Between adding and taking back it belongs to the second thread. */
typedef struct task {
    struct task *next;
    prefix_entry *file; /* to be read; NULL: to be written */
    prefix_root *root;
    mn_session *session; /* written; or what was read, NULL on failure */
    char *path, *owner;  /* owner: for whom it is read; else NULL */
    size_t n_bytes;
    mn_status status;
    double ms;
} task;

struct prefix_disk {
    prefix_tree *tree;
    mn_model *model;
    saved_identity identity;
    char *folder, *key_file;
    size_t limit, bytes;
    prefix_entry **files; /* [n_files] */
    size_t n_files, capacity;
    size_t n_reading;
    bool is_writing;
    double next_look, byte_ms; /* of reading; 0: not known */
    uint64_t state;            /* a number that changes when files leave */
    uint64_t n_read, n_written, n_failed;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    task *queue, *done;
    bool stops;
};

/* ---- the second thread ---- */

static size_t bytes_of(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (size_t)s.st_size : 0;
}

static void work(prefix_disk *d, task *t) {
    double begin = clock_ms();
    if (t->file) {
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        options.key_file = d->key_file;
        t->status = saved_read(&t->session, d->model, t->path, &options, &d->identity);
    } else {
        t->status = saved_write(t->session, t->path, false, &d->identity, *t->root->salt ? t->root->salt : NULL);
    }
    t->ms = clock_ms() - begin;
    t->n_bytes = bytes_of(t->path);
}

static void *run(void *arg) {
    prefix_disk *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        task *t = d->queue;
        if (!t && d->stops) break;
        if (!t) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        d->queue = t->next;
        pthread_mutex_unlock(&d->lock);
        work(d, t);
        pthread_mutex_lock(&d->lock);
        t->next = d->done;
        d->done = t;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* Reading comes before writing. */
static void add_task(prefix_disk *d, task *t) {
    pthread_mutex_lock(&d->lock);
    task **link = &d->queue;
    while (*link && (!t->file || (*link)->file)) link = &(*link)->next;
    t->next = *link;
    *link = t;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void task_free(task *t) {
    prefix_root_release(&t->root);
    mn_session_close(&t->session);
    mem_free(t->path);
    mem_free(t->owner);
    mem_free(t);
}

/* ---- files ---- */

static mn_status add_file(prefix_disk *d, prefix_root *root, const int32_t *ids, size_t n, const char *path,
                          size_t n_bytes) {
    MN_TRY(mem_grow(&d->files, &d->capacity, d->n_files + 1, sizeof *d->files));
    char *own = mem_copy_text(path, strlen(path));
    prefix_entry *e = own ? prefix_entry_new(root, ids, n) : NULL;
    if (!e) {
        mem_free(own);
        return MN_E_NOMEM;
    }
    e->path = own;
    e->file_bytes = n_bytes;
    e->used_ms = clock_ms();
    e->index = d->n_files;
    d->files[d->n_files++] = e;
    d->bytes += n_bytes;
    return MN_OK;
}

static void forget_file(prefix_disk *d, prefix_entry *e) {
    d->state++;
    d->bytes -= e->file_bytes;
    d->files[e->index] = d->files[--d->n_files];
    d->files[e->index]->index = e->index;
    prefix_entry_drop(e);
}

void prefix_disk_remove(prefix_disk *d, prefix_entry *e) {
    unlink(e->path);
    forget_file(d, e);
}

static void keep_limit(prefix_disk *d) {
    while (d->limit && d->bytes > d->limit) {
        prefix_entry *oldest = NULL;
        for (size_t i = 0; i < d->n_files; i++) {
            prefix_entry *e = d->files[i];
            if (!e->is_reading && (!oldest || e->used_ms < oldest->used_ms)) oldest = e;
        }
        if (!oldest) return;
        prefix_disk_remove(d, oldest);
    }
}

/* Files that the one of this node makes superfluous. */
static void remove_covered(prefix_disk *d, const prefix_root *root, const node *v) {
    for (const node *above = root->truncates ? v->parent : NULL; above && above->parent;) {
        prefix_entry *e = above->entries;
        while (e && (!e->path || e->is_reading)) e = e->next;
        if (e) prefix_disk_remove(d, e);
        above = e ? v->parent : above->parent; /* the tree has changed: from the beginning */
    }
}

static mn_status list_file(prefix_disk *d, const char *path) {
    mn_session *text = NULL;
    prefix_root *root = NULL;
    char *salt = NULL;
    if (!file_is_own(path)) return MN_OK;
    mn_status status = saved_read_text(&text, &salt, d->model, path, &d->identity);
    if (status == MN_OK && text->n_ids > 0) status = prefix_root_of(&root, d->tree, text, salt);
    if (status == MN_OK && root) status = prefix_open_empty(root, text);
    if (status == MN_OK && root) status = add_file(d, root, text->ids, text->n_ids, path, bytes_of(path));
    if (status == MN_OK && root) {
        struct stat s; /* files that were used long ago go first after a restart, too */
        if (stat(path, &s) == 0) d->files[d->n_files - 1]->used_ms = (double)s.st_mtim.tv_sec * 1e3 - 1e15;
    }
    mn_session_close(&text);
    mem_free(salt);
    return status == MN_E_NOMEM ? status : MN_OK; /* other files, and damaged ones, are ignored */
}

static mn_status list_files(prefix_disk *d) {
    static const char suffix[] = ".safetensors";
    bytes path = {0};
    DIR *dir = file_open_folder(d->folder);
    if (!dir) MN_FAIL(MN_E_IO, "%s: the folder of cached prefixes cannot be read", d->folder);
    mn_status status = MN_OK;
    for (struct dirent *entry; status == MN_OK && (entry = readdir(dir));) {
        size_t n = strlen(entry->d_name);
        if (n < sizeof suffix || strcmp(entry->d_name + n - (sizeof suffix - 1), suffix) != 0) continue;
        status = path_join(&path, d->folder, entry->d_name);
        if (status == MN_OK) status = list_file(d, bytes_text(&path));
    }
    closedir(dir);
    bytes_clear(&path);
    if (status == MN_OK) keep_limit(d);
    return status;
}

/* ---- opening and closing ---- */

static mn_status open_folder(prefix_disk *d, const char *folder, const char *key_file) {
    bytes self = {0};
    d->folder = mem_copy_text(folder, strlen(folder));
    d->key_file = key_file ? mem_copy_text(key_file, strlen(key_file)) : NULL;
    if (!d->folder || (key_file && !d->key_file)) return MN_E_NOMEM;
    MN_TRY(file_make_folders(folder, FILE_PRIVATE));
    mn_status status = path_join(&self, folder, "."); /* the folder itself, if the path is a link */
    bool is_own = status == MN_OK && file_is_own(bytes_text(&self));
    bytes_clear(&self);
    MN_TRY(status);
    if (!is_own) {
        MN_FAIL(MN_E_REFUSED,
                "%s: the folder of cached prefixes must belong to this user, and no other may write to it", folder);
    }
    MN_TRY(saved_identity_of(&d->identity, d->model));
    return list_files(d);
}

mn_status prefix_disk_open(prefix_disk **out, prefix_tree *tree, mn_model *model, const char *folder, size_t limit,
                           const char *key_file) {
    prefix_disk *d = mem_alloc(1, sizeof *d);
    *out = d;
    if (!d) return MN_E_NOMEM;
    d->tree = tree;
    d->model = model;
    d->limit = limit;
    d->state = 1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    mn_status status = open_folder(d, folder, key_file);
    if (status == MN_OK && pthread_create(&d->thread, NULL, run, d) != 0)
        status = status_fail(MN_E_IO, "a thread cannot be started");
    d->has_thread = status == MN_OK;
    if (status != MN_OK) prefix_disk_close(out);
    return status;
}

/* ---- what was read and written ---- */

static bool holds(const mn_session *s, const prefix_entry *file) {
    int64_t n = (int64_t)s->n_ids;
    if (!s->cache || kv_length(s->cache) != n || n != file->node->depth) return false;
    const node *v = file->node;
    for (; v->parent; v = v->parent) {
        if (memcmp(s->ids + v->depth - (int64_t)v->n_ids, v->ids, v->n_ids * sizeof *v->ids) != 0) return false;
    }
    return true;
}

/* The file may have been replaced since it was listed. */
static bool is_what_was_listed(prefix_disk *d, const task *t) {
    prefix_root *root = NULL;
    return prefix_root_of(&root, d->tree, t->session, t->root->salt) == MN_OK && root == t->root &&
           holds(t->session, t->file);
}

static void end_reading(prefix_disk *d, task *t) {
    prefix_entry *file = t->file;
    mn_session *s = t->session;
    mn_status status = t->status;
    d->n_reading--;
    file->is_reading = false;
    if (status == MN_OK && !is_what_was_listed(d, t)) status = MN_E_REFUSED;
    if (status == MN_OK) {
        kv_cache *cache = s->cache;
        s->cache = NULL;
        prefix_entry *kept;
        status = prefix_adopt(&kept, t->root, s->ids, s->n_ids, s->regime, cache, t->owner);
        if (status == MN_OK) {
            kept->was_read = true;
            prefix_keep_quota(kept);
        }
        file->used_ms = clock_ms();
        utimensat(AT_FDCWD, file->path, NULL, 0); /* a hint for the next process */
    }
    if (status == MN_OK) {
        double byte_ms = t->ms / (double)(t->n_bytes ? t->n_bytes : 1);
        d->byte_ms = d->byte_ms > 0 ? d->byte_ms + (byte_ms - d->byte_ms) / 4 : byte_ms;
        d->n_read++;
        return;
    }
    d->n_failed++;
    file->retry = clock_ms() + retry_ms;
    if (status != MN_E_NOMEM) forget_file(d, file); /* damaged, gone, or of somebody else */
}

static void end_writing(prefix_disk *d, const task *t) {
    mn_status status = t->status;
    d->is_writing = false;
    if (status == MN_OK) status = add_file(d, t->root, t->session->ids, t->session->n_ids, t->path, t->n_bytes);
    if (status != MN_OK) {
        d->n_failed++;
        d->next_look = clock_ms() + retry_ms; /* no room on the disk, perhaps */
        return;
    }
    d->n_written++;
    remove_covered(d, t->root, d->files[d->n_files - 1]->node);
    keep_limit(d);
}

static void take_back(prefix_disk *d) {
    pthread_mutex_lock(&d->lock);
    task *done = d->done;
    d->done = NULL;
    pthread_mutex_unlock(&d->lock);
    for (task *next; done; done = next) {
        next = done->next;
        if (done->file)
            end_reading(d, done);
        else
            end_writing(d, done);
        task_free(done);
    }
}

/* ---- writing ---- */

/* The name is a hash of what the file holds and of what made it: servers of several models can share a folder. */
static mn_status path_of(char **out, const prefix_disk *d, const prefix_root *root, const mn_session *s) {
    char name[2 * HASH_HEX + 16], text[HASH_HEX], strategy[HASH_HEX];
    bytes path = {0}, all = {0};
    hash_put(text, hash_of(s->ids, s->n_ids * sizeof *s->ids));
    bytes_printf(&all, "%s %s %s %s %s %d ", d->identity.model, d->identity.tokenizer, d->identity.compute,
                 s->plan.name, kv_codec_name(s->plan.exact), s->plan.options.page_tokens);
    kv_config_put(&all, &s->plan.config);
    bytes_append_text(&all, root->salt);
    mn_status status = bytes_status(&all);
    if (status == MN_OK) {
        hash_put(strategy, hash_of(all.data, all.n));
        snprintf(name, sizeof name, "%s-%s.safetensors", strategy, text);
        status = path_join(&path, d->folder, name);
    }
    if (status == MN_OK && !(*out = mem_copy_text(path.data, path.n))) status = MN_E_NOMEM;
    bytes_clear(&path);
    bytes_clear(&all);
    return status;
}

static bool is_listed(const prefix_disk *d, const char *path) {
    for (size_t i = 0; i < d->n_files; i++) {
        if (strcmp(d->files[i]->path, path) == 0) return true;
    }
    return false;
}

/* Begins to write a cached prefix. */
static mn_status write_text(prefix_disk *d, prefix_entry *e) {
    task *t = mem_alloc(1, sizeof *t);
    if (!t) return MN_E_NOMEM;
    t->root = e->root;
    prefix_root_use(t->root);
    mn_status status = prefix_session_of(&t->session, e);
    if (status == MN_OK) status = path_of(&t->path, d, e->root, t->session);
    if (status == MN_OK && is_listed(d, t->path)) status = MN_E_REFUSED; /* two prefixes with one hash */
    if (status != MN_OK) {
        task_free(t);
        return status;
    }
    d->is_writing = true;
    add_task(d, t);
    return MN_OK;
}

/* Whether files have so much of a prefix that it is not worth one of its own: what they lack is computed again. So
 * prefixes with one long beginning do not each take the room of it. */
static bool has_enough(const prefix_entry *e) {
    enum { PART = 8 };
    const int64_t n = e->node->depth, missing = n - prefix_tokens_on_disk(e->root, e->node);
    return missing < e->root->options.page_tokens || missing < n / PART;
}

/* Of the cached prefixes that were not used lately and are not in files the one that is evicted first. NULL: none was
 * found; the next turn goes on looking. */
static prefix_entry *next_text(prefix_disk *d, double used_before) {
    enum { MOST_TRIED = 16 };
    for (int tried = 0; tried < MOST_TRIED; tried++) {
        prefix_entry *least = NULL;
        for (size_t i = 0; i < d->tree->n_kept; i++) {
            prefix_entry *e = d->tree->kept[i];
            if (e->has_file == d->state || e->used_ms > used_before) continue;
            if (!least || e->worth < least->worth) least = e;
        }
        if (!least || !has_enough(least)) return least;
        least->has_file = d->state;
    }
    return NULL;
}

void prefix_disk_turn(prefix_disk *d) {
    double now = clock_ms();
    take_back(d);
    if (d->is_writing || now < d->next_look) return;
    d->next_look = now + look_every_ms;
    prefix_entry *e = next_text(d, now - write_after_ms);
    if (e && write_text(d, e) != MN_OK) d->next_look = now + retry_ms;
}

/* ---- reading ---- */

bool prefix_disk_reads(prefix_disk *d, const prefix_match *m, double token_ms, bool may_begin, const char *owner) {
    prefix_entry *file = (prefix_entry *)m->file;
    if (!file) return false;
    if (file->is_reading) return true;
    if (!may_begin || file->retry > clock_ms()) return false;
    double computing = (double)(m->filed - m->now) * token_ms, reading = d->byte_ms * (double)file->file_bytes;
    if (m->filed - m->now < file->root->options.page_tokens / 2 || (token_ms > 0 && reading > computing)) return false;
    task *t = mem_alloc(1, sizeof *t);
    char *path = t ? mem_copy_text(file->path, strlen(file->path)) : NULL;
    char *own = path ? mem_copy_text(owner, strlen(owner)) : NULL;
    if (!own) {
        mem_free(path);
        mem_free(t);
        return false;
    }
    *t = (task){.file = file, .root = file->root, .path = path, .owner = own};
    prefix_root_use(t->root);
    file->is_reading = true;
    d->n_reading++;
    add_task(d, t);
    return true;
}

void prefix_disk_wait(prefix_disk *d) {
    pthread_mutex_lock(&d->lock);
    while (d->n_reading > 0 && !d->done) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

prefix_disk_info prefix_disk_get_info(const prefix_disk *d) {
    return (prefix_disk_info){d->n_files, d->bytes, d->n_read, d->n_written, d->n_failed};
}

/* ---- closing ---- */

static void wait_for_task(prefix_disk *d) {
    pthread_mutex_lock(&d->lock);
    while (!d->done) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    take_back(d);
}

void prefix_disk_wait_all(prefix_disk *d) {
    take_back(d);
    while (d->is_writing || d->n_reading > 0) wait_for_task(d);
}

static void write_rest(prefix_disk *d) {
    const double until = clock_ms() + close_ms;
    const uint64_t failed = d->n_failed;
    prefix_disk_wait_all(d);
    for (size_t i = 0; i <= d->tree->n_kept && d->n_failed == failed && clock_ms() < until; i++) {
        prefix_entry *e = next_text(d, clock_ms());
        if (e && write_text(d, e) != MN_OK) return;
        while (d->is_writing) wait_for_task(d);
    }
}

void prefix_disk_close(prefix_disk **disk) {
    prefix_disk *d = *disk;
    *disk = NULL;
    if (!d) return;
    if (d->has_thread) {
        write_rest(d);
        pthread_mutex_lock(&d->lock);
        d->stops = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    while (d->n_files > 0) forget_file(d, d->files[d->n_files - 1]);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    mem_free(d->files);
    mem_free(d->folder);
    mem_free(d->key_file);
    mem_free(d);
}
