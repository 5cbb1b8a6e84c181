/* SPDX-License-Identifier: Apache-2.0 */
#include "http/proxy.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "error.h"
#include "http/body.h"
#include "http/listen.h"
#include "http/wire.h"

enum { SWEEP_MS = 100, FAREWELL_MS = 1000, MOST_EVENTS = 64, MOST_ROUNDS = 64, SCRATCH = 16 << 10 };

typedef enum phase {
    IDLE,     /* nothing of a request has come */
    HEAD,     /* a part of its head */
    BODY,     /* the library has the head and gets the body */
    ANSWER,   /* the library has all of it */
    FAREWELL, /* all was sent; what the client still sends is dropped, lest the last answer be lost */
    GONE      /* the client has left; the library does not know yet */
} phase;

/* What a look at a connection came to. */
typedef enum progress { WAITS, MOVED, OVER /* there is no such connection any more */ } progress;

struct client_connection {
    /* Of the proxy's thread. */
    wire wire; /* to the client */
    int inner; /* one end of the pair whose other end the library has; -1: none */
    uint32_t number;
    bool was_served; /* a request of this connection has been answered */
    bool has_begun;  /* something of the answer has been sent */
    bytes in, out;   /* from the client and not yet the library's; the other way round */
    size_t n_pass;   /* bytes of `in` that belong to the request */
    body body;
    double deadline; /* clock_ms(); 0: none */
    /* Under the lock; only the proxy's thread writes the phase. */
    phase phase;
    bool closes;      /* after the answer */
    bool is_answered; /* the library has written the answer */
    size_t n_inside;  /* sockets that the library has */
    void *request;    /* of the one who is notified when the client leaves; NULL: none */
    client_connection *next, *previous;
};

struct proxy {
    proxy_options options;
    int listener, epoll, wake; /* -1: closed */
    int spare;                 /* a descriptor for the moment when there is none */
    char *unix_path;
    char *scratch; /* [SCRATCH], of the proxy's thread */
    bool is_started;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    bool drains, stops;
    client_connection *first;
    size_t n_connections;
    uint32_t last_number;
    client_connection **by_fd; /* [n_by_fd]: clients, inner ends, ends that the library has */
    size_t n_by_fd;
};

/* ---- opening ---- */

/* A connection with a request has three descriptors. */
static void allow_descriptors(size_t max_connections) {
    const rlim_t wanted = 3 * max_connections + 1024;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted) return;
    files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &files);
}

static bool watch(proxy *p, int fd, uint32_t events, uint32_t number) {
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)number << 32 | (uint32_t)fd};
    return epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static mn_status start_listening(proxy *p) {
    const char *path = p->options.unix_path;
    MN_TRY(listen_open(&p->listener, p->options.host, p->options.port, path));
    if (path && !(p->unix_path = mem_copy_text(path, strlen(path)))) return MN_E_NOMEM;
    if (p->epoll < 0 || p->wake < 0 || !watch(p, p->wake, EPOLLIN | EPOLLET, 0) || !watch(p, p->listener, EPOLLIN, 0))
        MN_FAIL(MN_E_IO, "cannot watch connections: %s", strerror(errno));
    return MN_OK;
}

mn_status proxy_open(proxy **out, const proxy_options *options) {
    proxy *p = mem_alloc(1, sizeof *p);
    *out = p;
    if (!p) return MN_E_NOMEM;
    p->options = *options;
    p->listener = -1;
    p->scratch = mem_alloc(1, SCRATCH);
    p->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&p->lock, NULL);
    allow_descriptors(options->max_connections);
    mn_status status = p->scratch ? start_listening(p) : MN_E_NOMEM;
    if (status != MN_OK) proxy_close(out);
    return status;
}

int proxy_port(const proxy *p) {
    return listen_port(p->listener);
}

/* ---- connections ---- */

static const uint32_t both_ways = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

/* Holding the lock. */
static bool put_on_map(proxy *p, int fd, client_connection *c) {
    size_t had = p->n_by_fd;
    if (mem_grow(&p->by_fd, &p->n_by_fd, (size_t)fd + 1, sizeof *p->by_fd) != MN_OK) return false;
    if (p->n_by_fd > had) memset(p->by_fd + had, 0, (p->n_by_fd - had) * sizeof *p->by_fd);
    p->by_fd[fd] = c;
    return true;
}

/* Holding the lock. */
static void take_from_map(proxy *p, int fd, const client_connection *c) {
    if (fd >= 0 && (size_t)fd < p->n_by_fd && p->by_fd[fd] == c) p->by_fd[fd] = NULL;
}

/* Holding the lock. */
static void forget(proxy *p, client_connection *c) {
    if (c->next) c->next->previous = c->previous;
    *(c->previous ? &c->previous->next : &p->first) = c->next;
    p->n_connections--;
    mem_free(c);
}

/* Holding the lock. The library's end then reads the end of what it gets. */
static void close_inner(proxy *p, client_connection *c) {
    take_from_map(p, c->inner, c);
    if (c->inner >= 0) close(c->inner);
    c->inner = -1;
}

/* Holding the lock. The client is gone, or given up. */
static void let_go(proxy *p, client_connection *c) {
    if (c->request) p->options.left(p->options.user, c->request);
    take_from_map(p, c->wire.fd, c);
    close_inner(p, c);
    wire_close(&c->wire);
    bytes_clear(&c->in);
    bytes_clear(&c->out);
    c->phase = GONE;
    c->deadline = 0;
    if (c->n_inside == 0) forget(p, c);
}

static progress leave(proxy *p, client_connection *c) {
    pthread_mutex_lock(&p->lock);
    let_go(p, c);
    pthread_mutex_unlock(&p->lock);
    return OVER;
}

/* ms: until its deadline; 0: none. */
static void enter_phase(proxy *p, client_connection *c, phase next, double ms) {
    pthread_mutex_lock(&p->lock);
    c->phase = next;
    pthread_mutex_unlock(&p->lock);
    c->deadline = ms > 0 ? clock_ms() + ms : 0;
}

/* The library sees the end of its socket and the connection is in its next phase, both at once. */
static void end_request(proxy *p, client_connection *c, phase next, double ms) {
    pthread_mutex_lock(&p->lock);
    c->deadline = clock_ms() + ms;
    c->phase = next;
    close_inner(p, c);
    pthread_mutex_unlock(&p->lock);
}

static progress say_farewell(proxy *p, client_connection *c) {
    end_request(p, c, FAREWELL, FAREWELL_MS);
    bytes_clear(&c->in);
    bytes_clear(&c->out);
    wire_finish(&c->wire);
    return MOVED;
}

static void put_refusal(bytes *out, int status, const char *code, const char *message) {
    error_response(out, status, error_type(status), code, message);
}

/* Nothing of an answer has been sent. */
static progress refuse(proxy *p, client_connection *c, int status, const char *code, const char *message) {
    bytes answer = {0};
    put_refusal(&answer, status, code, message);
    if (bytes_status(&answer) == MN_OK) wire_send(&c->wire, answer.data, answer.n);
    bytes_clear(&answer);
    return say_farewell(p, c);
}

/* ---- coming in ---- */

/* There is no room for it, or no memory. In TLS there is no way to say so. */
static void send_away(const proxy *p, int fd) {
    bytes answer = {0};
    put_refusal(&answer, 503, "too_many_connections", "there are too many connections");
    if (!p->options.identity && bytes_status(&answer) == MN_OK)
        send(fd, answer.data, answer.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    bytes_clear(&answer);
    shutdown(fd, SHUT_WR);
    while (recv(fd, p->scratch, SCRATCH, MSG_DONTWAIT) == SCRATCH) {}
    close(fd);
}

/* There is no descriptor left: the next client is sent away with the spare one. */
static void turn_away(proxy *p) {
    close(p->spare);
    int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) send_away(p, fd);
    p->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Holding the lock. When there is no room, the connection that has been idle for the longest time ends. */
static void make_room(proxy *p) {
    client_connection *oldest = NULL;
    if (p->n_connections < p->options.max_connections) return;
    for (client_connection *c = p->first; c; c = c->next) {
        if (c->phase == IDLE && c->was_served && (!oldest || c->deadline < oldest->deadline)) oldest = c;
    }
    if (oldest) let_go(p, oldest);
}

/* Holding the lock. */
static bool remember(proxy *p, int fd) {
    if (p->n_connections >= p->options.max_connections) return false;
    client_connection *c = mem_alloc(1, sizeof *c);
    if (!c) return false;
    if (!wire_open(&c->wire, fd, p->options.identity)) {
        mem_free(c);
        return false;
    }
    if (++p->last_number == 0) p->last_number = 1;
    c->inner = -1;
    c->number = p->last_number;
    c->phase = IDLE;
    c->deadline = clock_ms() + p->options.head_ms;
    c->next = p->first;
    if (p->first) p->first->previous = c;
    p->first = c;
    p->n_connections++;
    if (put_on_map(p, fd, c) && watch(p, fd, both_ways, c->number)) return true;
    let_go(p, c);
    return true; /* it is closed */
}

static void let_in(proxy *p) {
    const int one = 1;
    for (int i = 0; i < MOST_EVENTS; i++) {
        int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) turn_away(p);
            return;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* tokens leave one by one */
        pthread_mutex_lock(&p->lock);
        make_room(p);
        bool fits = remember(p, fd);
        pthread_mutex_unlock(&p->lock);
        if (!fits) send_away(p, fd);
    }
}

/* ---- from the client to the library ---- */

/* An idle connection has no buffers. */
static void drop_front(bytes *b, size_t n) {
    b->n -= n;
    if (b->n)
        memmove(b->data, b->data + n, b->n);
    else
        bytes_clear(b);
}

/* Gives the library one end of a pair. */
static bool enter(proxy *p, client_connection *c) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return false;
    pthread_mutex_lock(&p->lock);
    c->inner = pair[0];
    c->is_answered = false;
    bool is_known = put_on_map(p, pair[0], c) && put_on_map(p, pair[1], c) && watch(p, pair[0], both_ways, c->number);
    if (is_known) c->n_inside++;
    pthread_mutex_unlock(&p->lock);
    if (is_known && p->options.enter(p->options.user, pair[1])) return true;
    if (!is_known) close(pair[1]);
    pthread_mutex_lock(&p->lock);
    take_from_map(p, pair[1], c);
    if (is_known) c->n_inside--;
    pthread_mutex_unlock(&p->lock);
    return false;
}

static progress take_head(proxy *p, client_connection *c) {
    const http_head h = head_check(c->in.data, c->in.n);
    if (h.status == 0) return MOVED;
    if (h.status != 200) return refuse(p, c, h.status, "bad_request", h.problem);
    const size_t n_behind = c->in.n - h.n, n_head = head_shorten(c->in.data, h.n);
    memmove(c->in.data + n_head, c->in.data + h.n, n_behind);
    c->in.n = n_head + n_behind;
    c->body = body_begin(&h);
    c->n_pass = n_head + body_take(&c->body, c->in.data + n_head, n_behind);
    if (c->body.problem) return refuse(p, c, 400, "bad_request", c->body.problem);
    pthread_mutex_lock(&p->lock);
    c->closes = h.closes;
    pthread_mutex_unlock(&p->lock);
    c->has_begun = false;
    if (!enter(p, c)) return refuse(p, c, 503, "too_many_connections", "there are too many connections");
    enter_phase(p, c, BODY, p->options.body_ms);
    return MOVED;
}

/* A head is read again at its beginning, after the ends of its lines and where a limit may be passed: not for every
 * byte that drips in. */
static bool may_be_decided(const client_connection *c, size_t had) {
    const size_t n = c->in.n;
    return had == 0 || n > HEAD_MOST_BYTES || (had <= HEAD_MOST_LINE && n > HEAD_MOST_LINE) ||
           memchr(c->in.data + had, '\n', n - had);
}

static progress receive(proxy *p, client_connection *c) {
    const size_t had = c->in.n;
    const ssize_t n = wire_receive(&c->wire, p->scratch, SCRATCH);
    if (n == WIRE_LATER) return WAITS;
    if (n == WIRE_PLAIN)
        return refuse(p, c, 400, "bad_request", "this port speaks TLS: the address has to be https://");
    if (n <= 0) return leave(p, c);
    bytes_append(&c->in, p->scratch, (size_t)n);
    if (c->in.failed) return leave(p, c);
    if (c->phase == BODY) {
        c->n_pass = body_take(&c->body, c->in.data, c->in.n);
        if (!c->body.problem) return MOVED;
        return c->has_begun ? leave(p, c) : refuse(p, c, 400, "bad_request", c->body.problem);
    }
    if (c->phase == IDLE) {
        const double first_deadline = c->deadline;
        enter_phase(p, c, HEAD, p->options.head_ms);
        if (!c->was_served) c->deadline = first_deadline;
    }
    return may_be_decided(c, had) ? take_head(p, c) : MOVED;
}

static progress forward(proxy *p, client_connection *c) {
    ssize_t n = send(c->inner, c->in.data, c->n_pass, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return WAITS;
    bool is_refused = n < 0; /* the library wants no more of it; its answer says why */
    if (is_refused) n = (ssize_t)c->n_pass;
    drop_front(&c->in, (size_t)n);
    c->n_pass -= (size_t)n;
    if (is_refused) proxy_end(p, c);
    if (is_refused || (c->n_pass == 0 && c->body.is_over)) enter_phase(p, c, ANSWER, 0);
    return MOVED;
}

static progress drop_rest(proxy *p, client_connection *c) {
    const ssize_t n = recv(c->wire.fd, p->scratch, SCRATCH, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return WAITS;
    return n > 0 ? MOVED : leave(p, c);
}

static progress take_in(proxy *p, client_connection *c) {
    switch (c->phase) {
    case IDLE:
    case HEAD: return receive(p, c);
    case BODY: return c->n_pass ? forward(p, c) : receive(p, c);
    case FAREWELL: return drop_rest(p, c);
    default: return WAITS; /* the next request stays where it is */
    }
}

/* ---- from the library to the client ---- */

/* The answer is with the client, or is not going to be. */
static progress finish(proxy *p, client_connection *c, bool library_closed) {
    pthread_mutex_lock(&p->lock);
    const bool closes = library_closed || c->closes || p->drains || c->phase == BODY;
    pthread_mutex_unlock(&p->lock);
    if (closes) return say_farewell(p, c);
    c->was_served = true;
    const bool has_more = c->in.n > 0;
    end_request(p, c, has_more ? HEAD : IDLE, has_more ? p->options.head_ms : p->options.idle_ms);
    return has_more ? take_head(p, c) : MOVED;
}

static progress deliver(proxy *p, client_connection *c) {
    if (c->inner < 0) return WAITS;
    if (c->out.n == 0) {
        pthread_mutex_lock(&p->lock);
        const bool is_answered = c->is_answered; /* and then all of it is there to be read */
        pthread_mutex_unlock(&p->lock);
        const ssize_t n = recv(c->inner, p->scratch, SCRATCH, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) return is_answered ? finish(p, c, false) : WAITS;
        if (n <= 0) return finish(p, c, true);
        bytes_append(&c->out, p->scratch, (size_t)n);
        if (c->out.failed) return leave(p, c);
        c->has_begun = true;
    }
    const ssize_t sent = wire_send(&c->wire, c->out.data, c->out.n);
    if (sent == WIRE_FAILED) return leave(p, c);
    if (sent > 0) drop_front(&c->out, (size_t)sent);
    const bool is_stalled = c->phase == ANSWER && c->out.n > 0;
    if (c->phase == ANSWER && (sent > 0 || c->deadline == 0))
        c->deadline = is_stalled ? clock_ms() + p->options.stall_ms : 0;
    return sent > 0 ? MOVED : WAITS;
}

/* ---- the thread ---- */

/* Holding the lock. An event then comes as soon as the client may be read or written. */
static void look_again(proxy *p, const client_connection *c) {
    struct epoll_event event = {.events = both_ways, .data.u64 = (uint64_t)c->number << 32 | (uint32_t)c->wire.fd};
    epoll_ctl(p->epoll, EPOLL_CTL_MOD, c->wire.fd, &event);
}

/* Moves what can be moved, some of it at a time, so that others have their turn. */
static progress move(proxy *p, client_connection *c) {
    for (int i = 0; i < MOST_ROUNDS; i++) {
        progress in = take_in(p, c);
        progress out = in == OVER ? OVER : deliver(p, c);
        if (out == OVER) return OVER;
        if (in == WAITS && out == WAITS) return WAITS;
    }
    pthread_mutex_lock(&p->lock);
    look_again(p, c);
    pthread_mutex_unlock(&p->lock);
    return MOVED;
}

/* Events name a descriptor and the connection that had it: it may be another's when they are read. */
static void act(proxy *p, const struct epoll_event *event) {
    const size_t fd = (uint32_t)event->data.u64;
    pthread_mutex_lock(&p->lock);
    client_connection *c = fd < p->n_by_fd ? p->by_fd[fd] : NULL;
    if (c && (c->number != event->data.u64 >> 32 || c->phase == GONE)) c = NULL;
    pthread_mutex_unlock(&p->lock);
    if (!c || move(p, c) == OVER) return;
    /* A client may leave with what it sent last: no other event tells it. */
    const bool leaves = (size_t)c->wire.fd == fd && (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (leaves) leave(p, c);
}

/* A connection whose time is over; NULL: none. */
static client_connection *find_late(proxy *p, double now) {
    client_connection *c;
    pthread_mutex_lock(&p->lock);
    for (c = p->first; c; c = c->next) {
        if (c->phase == GONE) continue;
        if ((c->deadline > 0 && now >= c->deadline) || (p->drains && c->phase == IDLE && c->was_served)) break;
    }
    pthread_mutex_unlock(&p->lock);
    return c;
}

static void sweep(proxy *p) {
    const double now = clock_ms();
    for (client_connection *c; (c = find_late(p, now));) {
        const bool is_head = c->phase == HEAD || (c->phase == IDLE && !c->was_served);
        if (is_head && c->wire.is_ready && now >= c->deadline)
            refuse(p, c, 408, "timeout", "the header did not come in time");
        else if (c->phase == BODY && !c->has_begun)
            refuse(p, c, 408, "timeout", "the body did not come in time");
        else
            leave(p, c);
    }
}

static void *run(void *arg) {
    proxy *p = arg;
    struct epoll_event events[MOST_EVENTS];
    double swept = clock_ms();
    for (bool stops = false; !stops;) {
        int n = epoll_wait(p->epoll, events, MOST_EVENTS, SWEEP_MS);
        bool is_woken = false;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == (uint32_t)p->listener)
                let_in(p);
            else if (events[i].data.u64 == (uint32_t)p->wake)
                is_woken = true;
            else
                act(p, &events[i]);
        }
        if (is_woken || clock_ms() - swept >= SWEEP_MS) {
            sweep(p);
            swept = clock_ms();
        }
        pthread_mutex_lock(&p->lock);
        stops = p->stops;
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

static void wake(proxy *p) {
    const uint64_t one = 1;
    if (write(p->wake, &one, sizeof one) < 0) {} /* it looks within a sweep anyway */
}

mn_status proxy_start(proxy *p) {
    int error = pthread_create(&p->thread, NULL, run, p);
    if (error) MN_FAIL(MN_E_IO, "a thread cannot be started: %s", strerror(error));
    p->is_started = true;
    return MN_OK;
}

void proxy_drain(proxy *p) {
    pthread_mutex_lock(&p->lock);
    p->drains = true;
    pthread_mutex_unlock(&p->lock);
    wake(p);
}

void proxy_stop(proxy *p) {
    if (!p->is_started) return;
    pthread_mutex_lock(&p->lock);
    p->stops = true;
    pthread_mutex_unlock(&p->lock);
    wake(p);
    pthread_join(p->thread, NULL);
    p->is_started = false;
}

void proxy_close(proxy **out) {
    proxy *p = *out;
    *out = NULL;
    if (!p) return;
    proxy_stop(p);
    while (p->first) {
        p->first->n_inside = 0;
        p->first->request = NULL;
        let_go(p, p->first);
    }
    const int fds[] = {p->listener, p->epoll, p->wake, p->spare};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
    if (p->unix_path) unlink(p->unix_path);
    mem_free(p->unix_path);
    mem_free(p->scratch);
    mem_free(p->by_fd);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* ---- for the HTTP library's thread ---- */

size_t proxy_n_busy(proxy *p) {
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (const client_connection *c = p->first; c; c = c->next)
        n += c->phase == HEAD || c->phase == BODY || c->phase == ANSWER || c->phase == GONE;
    pthread_mutex_unlock(&p->lock);
    return n;
}

size_t proxy_n_connections(proxy *p) {
    pthread_mutex_lock(&p->lock);
    size_t n = p->n_connections;
    pthread_mutex_unlock(&p->lock);
    return n;
}

client_connection *proxy_connection(proxy *p, int fd) {
    pthread_mutex_lock(&p->lock);
    client_connection *c = fd >= 0 && (size_t)fd < p->n_by_fd ? p->by_fd[fd] : NULL;
    pthread_mutex_unlock(&p->lock);
    return c;
}

void proxy_take(proxy *p, client_connection *c, void *request) {
    pthread_mutex_lock(&p->lock);
    c->request = request;
    if (c->phase == GONE) p->options.left(p->options.user, request);
    pthread_mutex_unlock(&p->lock);
}

void proxy_answered(proxy *p, client_connection *c, bool is_whole) {
    pthread_mutex_lock(&p->lock);
    c->request = NULL;
    c->is_answered = true;
    c->closes = c->closes || !is_whole;
    if (c->phase != GONE) look_again(p, c);
    pthread_mutex_unlock(&p->lock);
}

void proxy_end(proxy *p, client_connection *c) {
    pthread_mutex_lock(&p->lock);
    c->closes = true;
    pthread_mutex_unlock(&p->lock);
}

bool proxy_closes(proxy *p, client_connection *c) {
    pthread_mutex_lock(&p->lock);
    bool closes = c->closes || p->drains;
    pthread_mutex_unlock(&p->lock);
    return closes;
}

void proxy_release(proxy *p, client_connection *c, int fd) {
    pthread_mutex_lock(&p->lock);
    take_from_map(p, fd, c);
    c->n_inside--;
    if (c->phase == GONE && c->n_inside == 0) forget(p, c);
    pthread_mutex_unlock(&p->lock);
}
