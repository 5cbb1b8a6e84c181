/* SPDX-License-Identifier: Apache-2.0 */
#include "request/conversations.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

typedef struct conversation conversation;

struct conversation {
    char id[40];
    const char *owner;
    bytes messages;
    conversation *next;
};

struct conversations {
    pthread_mutex_t lock; /* of all below */
    conversation *first;  /* the last used one comes first */
    size_t n, n_bytes;
};

conversations *conversations_open(void) {
    conversations *c = mem_alloc(1, sizeof *c);
    if (c) pthread_mutex_init(&c->lock, NULL);
    return c;
}

static size_t size_of(const conversation *one) {
    return sizeof *one + one->messages.capacity;
}

static void drop(conversations *c, conversation **link) {
    conversation *one = *link;
    *link = one->next;
    c->n--;
    c->n_bytes -= size_of(one);
    bytes_clear(&one->messages);
    mem_free(one);
}

void conversations_close(conversations **out) {
    conversations *c = *out;
    *out = NULL;
    if (!c) return;
    while (c->first) drop(c, &c->first);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

void conversations_keep(conversations *c, const char *id, const char *owner, const bytes *messages) {
    conversation *one = mem_alloc(1, sizeof *one);
    if (!one) return;
    snprintf(one->id, sizeof one->id, "%s", id);
    one->owner = owner;
    bytes_append(&one->messages, messages->data, messages->n);
    if (bytes_status(&one->messages) != MN_OK || size_of(one) > MOST_CONVERSATION_BYTES) {
        bytes_clear(&one->messages);
        mem_free(one);
        return;
    }
    pthread_mutex_lock(&c->lock);
    one->next = c->first;
    c->first = one;
    c->n++;
    c->n_bytes += size_of(one);
    while (c->n > MOST_CONVERSATIONS || c->n_bytes > MOST_CONVERSATION_BYTES) {
        conversation **link = &c->first;
        while ((*link)->next) link = &(*link)->next;
        drop(c, link);
    }
    pthread_mutex_unlock(&c->lock);
}

bool conversations_find(conversations *c, const char *id, const char *owner, bytes *messages) {
    conversation *found = NULL;
    pthread_mutex_lock(&c->lock);
    for (conversation **link = &c->first; *link && !found; link = &(*link)->next) {
        if (strcmp((*link)->id, id) != 0 || (*link)->owner != owner) continue;
        found = *link;
        *link = found->next;
        found->next = c->first;
        c->first = found;
        bytes_append(messages, found->messages.data, found->messages.n);
        break;
    }
    pthread_mutex_unlock(&c->lock);
    return found != NULL;
}
