/* A server: clients of OpenAI's and Anthropic's interfaces and of our own reach one model, and share what it has
 * computed; beside it perhaps a speech model.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_H
#define MNEME_SERVE_H

#include <stdbool.h>
#include <stddef.h>

#include "mneme.h"

typedef struct serve_options {
    const char *host;          /* "127.0.0.1", "localhost", "::1"; NULL: the first; others with keys or allow_remote */
    int port;                  /* 0: any free one */
    const char *unix_path;     /* a Unix socket instead; NULL: none */
    const char *api_key_file;  /* a key in each line; NULL: whoever connects is served */
    bool allow_remote;         /* any host, without keys too */
    const char *ssl_cert_file; /* PEM: connections are in TLS; NULL: they are not */
    const char *ssl_key_file;  /* PEM: the key of the certificate; NULL with it */
    bool share_prefixes;       /* requests with different keys share prefixes */
    const char *name;          /* of the model, as clients see it */
    mn_model *speech_model;    /* that transcribes recordings, and must stay open; NULL: the model, if it can */
    const char *speech_name;   /* as clients see it */
    const char *speech_path;   /* its files, which are read for each recording */
    const mn_cache_options *cache; /* of requests that name none; NULL: the checkpoint's */
    bool cache_fixed;              /* requests cannot name another */
    uint64_t memory_limit;         /* bytes of caches; 0: the model's */
    const char *cache_dir;         /* what was computed is kept there, too, for the next server; NULL: not */
    uint64_t cache_dir_limit;      /* bytes of its files; 0: no limit */
    double cache_ttl;              /* seconds; what was not used for so long is no longer kept in memory; 0: no limit */
    uint64_t cache_quota;          /* bytes kept in memory for one API key, and again of its saved files; 0: no limit */
    bool no_prefix_cache;          /* requests share no prefixes; without cache_dir */
    uint64_t prefix_memory;        /* bytes kept in memory of all keys; 0: no limit but the memory's */
    size_t max_num_seqs;           /* computed together; 0: no limit */
    size_t max_queue;              /* requests that wait or are computed; 0: 256 */
    /* Once the server listens, no thread of this process starts a program, makes a connection, or opens a file outside
     * of cache_dir and of the folder of offloaded pages; as far as the kernel can do that. It holds until the process
     * ends. */
    bool sandbox;
    /* Gets a line, without its end, for each request that was answered, or whose client left; NULL: none. On a thread
     * of the server. */
    void (*log)(void *user, const char *line);
    void *log_user;
    bool log_json; /* the line is a JSON object */
} serve_options;

typedef struct server server;

/* Listens and serves in threads of its own; the model must stay open. MN_E_ARG, MN_E_IO, MN_E_NOMEM; MN_E_UNSUPPORTED
 * for a speech model that has no tokenizer, or is none. */
mn_status serve_open(server **out, mn_model *model, const serve_options *options);
int serve_port(const server *s); /* 0: a Unix socket */
/* Computes nothing for new requests, waits up to drain_ms for those that are there, cancels the rest. */
void serve_close(server **s, double drain_ms);

/* What the kernel lacks of what the sandbox needs: "Landlock", "seccomp", "Landlock and seccomp"; NULL: nothing. */
const char *serve_sandbox_lacks(void);

#endif
