/* A server in its sandbox: no thread of it starts a program, connects to anything, or opens a file of others, and it
 * goes on to serve, to keep texts on disk and to offload. The server is a process of its own, and this one its client.
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "serve/steps.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/scratch.h"

/* ---- what is tried: 0, or why it failed ---- */

static int opens(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600), error = errno;
    if (fd < 0) return error;
    close(fd);
    return 0;
}

static int starts_a_program(void) {
    char *const arguments[] = {"true", NULL};
    int status = 0;
    pid_t child = fork();
    if (child < 0) return errno;
    if (child == 0) {
        execv("/bin/true", arguments);
        _exit(errno);
    }
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static int makes_a_ring(void) {
    struct io_uring_params p = {0};
    long fd = syscall(SYS_io_uring_setup, 1, &p);
    int error = errno;
    if (fd >= 0) close((int)fd);
    return fd >= 0 ? 0 : error;
}

static int makes_a_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error = errno;
    if (fd < 0) return error;
    close(fd);
    return 0;
}

typedef struct tries {
    int passwd, own_model, makes, shortens, removes, program, socket, ring, kept, offloads;
} tries;

typedef struct folders {
    char model[512], kept[512], offloaded[512], foreign[512], other[512]; /* foreign: a file that is there */
} folders;

static tries try_all(const folders *f) {
    char kept[600];
    snprintf(kept, sizeof kept, "%s/tried", f->kept);
    tries t = {.passwd = opens("/etc/passwd", O_RDONLY),
               .own_model = opens(f->model, O_RDONLY),
               .makes = opens(f->other, O_WRONLY | O_CREAT),
               .shortens = truncate(f->foreign, 1) == 0 ? 0 : errno,
               .removes = unlink(f->foreign) == 0 ? 0 : errno,
               .program = starts_a_program(),
               .socket = makes_a_socket(),
               .ring = makes_a_ring(),
               .kept = opens(kept, O_RDWR | O_CREAT),
               .offloads = opens(f->offloaded, O_RDWR | O_TMPFILE)};
    unlink(kept);
    return t;
}

/* ---- the server's process ---- */

enum { N_THREADS = 4 }; /* the first one, one that it starts, the scheduler's, one that computes */

typedef struct report {
    int port;
    tries of[N_THREADS];
} report;

static const folders *where; /* of the process of the server, which is one */
static report told;

static void *try_in_thread(void *arg) {
    *(tries *)arg = try_all(where);
    return NULL;
}

static mn_status try_between_steps(bytes *out, server *s, job *j, refusal *why) {
    (void)s, (void)j, (void)why;
    told.of[2] = try_all(where);
    bytes_append_text(out, "{}");
    sem_post(&steps_gate.is_held);
    return MN_OK;
}

static void try_in_pool(void *arg, int task, int thread) {
    (void)arg, (void)task;
    const struct timespec pause = {.tv_nsec = 50000000};
    if (thread == 1) told.of[3] = try_all(where);
    if (thread == 0) nanosleep(&pause, NULL); /* so that the other one takes its part */
}

static void try_everywhere(server *s, const mn_model *model) {
    pthread_t thread;
    refusal why = {0};
    told.of[0] = try_all(where);
    assert_int_equal(pthread_create(&thread, NULL, try_in_thread, &told.of[1]), 0);
    pthread_join(thread, NULL);
    sem_init(&steps_gate.is_held, 0, 0);
    job *j = job_ask(try_between_steps);
    j->reply = reply_open(false, NULL, NULL);
    assert_ok(scheduler_add(s->scheduler, j, &why));
    steps_wait(&steps_gate.is_held);
    thread_run(model->core->compute.pool, 2, try_in_pool, NULL);
}

/* Serves until the other end of `until` is closed. */
static void serve_here(const folders *f, bool sandbox, int tell, int until) {
    char byte, config[600];
    server *s = NULL;
    where = f;
    memset(told.of, -1, sizeof told.of);
    snprintf(config, sizeof config, "path=%s", f->offloaded);
    mn_model *model = engine_model("embedded", "auto", "auto", 2);
    const mn_cache_options cache = {.size = sizeof cache, .implementation = "offloaded", .config = config};
    const serve_options options = {.name = "tiny", .cache = &cache, .cache_dir = f->kept, .sandbox = sandbox};
    assert_ok(serve_open(&s, model, &options));
    told.port = serve_port(s);
    try_everywhere(s, model);
    if (write(tell, &told, sizeof told) != sizeof told) _exit(2);
    while (read(until, &byte, 1) < 0) {}
    serve_close(&s, 2000);
    mn_model_close(&model);
    _exit(0);
}

typedef struct remote {
    pid_t process;
    int until;
    report r;
} remote;

static remote open_remote(const folders *f, bool sandbox) {
    remote w = {0};
    int tell[2], until[2];
    assert_true(pipe2(tell, O_CLOEXEC) == 0 && pipe2(until, O_CLOEXEC) == 0);
    w.process = fork();
    if (w.process == 0) {
        close(until[1]);
        serve_here(f, sandbox, tell[1], until[0]);
    }
    close(tell[1]);
    close(until[0]);
    w.until = until[1];
    assert_int_equal(read(tell[0], &w.r, sizeof w.r), sizeof w.r);
    close(tell[0]);
    return w;
}

static void close_remote(remote *w) {
    int status = -1;
    close(w->until);
    waitpid(w->process, &status, 0);
    assert_int_equal(status, 0);
}

static folders make_folders(void) {
    folders f;
    snprintf(f.model, sizeof f.model, TESTS_DIR "/../models-embedded/stories260K/config.json");
    snprintf(f.kept, sizeof f.kept, "%s", scratch_empty("kept"));
    snprintf(f.offloaded, sizeof f.offloaded, "%s", scratch_empty("offloaded"));
    snprintf(f.foreign, sizeof f.foreign, "%s", scratch_file("foreign", "text", 4));
    snprintf(f.other, sizeof f.other, "%s", scratch_path("other"));
    return f;
}

/* ---- tests ---- */

/* The thread sanitizer has a thread of its own, which does not enter the sandbox, and starts none after a fork. */
#ifdef __SANITIZE_THREAD__
enum { HAS_FOREIGN_THREADS = 1 };
#else
enum { HAS_FOREIGN_THREADS = 0 };
#endif

/* A plain answer and a stream, a cache that is offloaded, texts that go to disk, the memory of the process. */
static void check_that_it_serves(int port) {
    static const char plain[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":200,\"temperature\":0}",
                      stream[] =
                          "{\"prompt\":\"Once upon a time\",\"max_tokens\":200,\"temperature\":0,\"stream\":true}";
    for (int i = 0; i < 2; i++) {
        answer_text a = client_ask(port, "/v1/completions", i ? stream : plain);
        if (a.status != 200) fail_msg("%d %s", a.status, a.body.data);
        if (i) assert_non_null(strstr(a.body.data, "[DONE]"));
        client_clear(&a);
    }
    answer_text a = client_get(port, "/metrics");
    const char *resident = strstr(a.body.data, "\nprocess_resident_memory_bytes ");
    assert_true(resident && atof(strchr(resident, ' ')) > 1e6);
    client_clear(&a);
}

static void R46_a_server_starts_no_program_and_opens_no_file_of_others(void **state) {
    (void)state;
    if (HAS_FOREIGN_THREADS || serve_sandbox_lacks()) skip();
    const folders f = make_folders();
    for (int i = 0; i < (test_is_long() ? 50 : 1); i++) {
        remote w = open_remote(&f, true);
        for (int k = 0; k < N_THREADS; k++) {
            const tries *t = &w.r.of[k];
            assert_int_equal(t->passwd, EACCES);
            assert_int_equal(t->own_model, EACCES); /* it is open already */
            assert_int_equal(t->makes, EACCES);
            assert_int_equal(t->shortens, EACCES);
            assert_int_equal(t->removes, EACCES);
            assert_int_equal(t->program, EPERM);
            assert_int_equal(t->socket, EPERM);
            assert_int_equal(t->ring, EPERM);
            assert_int_equal(t->kept, 0);
            assert_int_equal(t->offloads, 0);
        }
        check_that_it_serves(w.r.port);
        close_remote(&w);
        assert_true(scratch_count(f.kept) > 0);
        assert_int_equal(scratch_count(f.offloaded), 0);
    }
}

/* The same is possible without it: what the test above tries is worth trying. */
static void without_the_sandbox_all_of_it_works(void **state) {
    (void)state;
    if (HAS_FOREIGN_THREADS) skip();
    const folders f = make_folders();
    remote w = open_remote(&f, false);
    const tries all = {0};
    tries first = w.r.of[0];
    assert_memory_equal(&first, &all, sizeof all);
    for (int k = 0; k < N_THREADS; k++) assert_true(w.r.of[k].passwd == 0 && w.r.of[k].program == 0);
    check_that_it_serves(w.r.port);
    close_remote(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(R46_a_server_starts_no_program_and_opens_no_file_of_others),
        cmocka_unit_test(without_the_sandbox_all_of_it_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
