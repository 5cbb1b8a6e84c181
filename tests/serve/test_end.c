/* The end of a server: nothing that its threads still do reaches a part that is closed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <microhttpd.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "file_worker.h"
#include "serve/fixture.h"
#include "server.h"

/* ---- connections ---- */

static const char health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
static atomic_bool has_stopped;
static atomic_int n_late;
static int idle = -1; /* a connection that sends its request when the library ends; -1: none */

static void nap(int ms) {
    const struct timespec pause = {.tv_nsec = ms * 1000000L};
    nanosleep(&pause, NULL);
}

enum MHD_Result __real_MHD_add_connection(struct MHD_Daemon *daemon, int fd, const struct sockaddr *address,
                                          socklen_t n);
enum MHD_Result __wrap_MHD_add_connection(struct MHD_Daemon *daemon, int fd, const struct sockaddr *address,
                                          socklen_t n);
enum MHD_Result __wrap_MHD_add_connection(struct MHD_Daemon *daemon, int fd, const struct sockaddr *address,
                                          socklen_t n) {
    if (!atomic_load(&has_stopped)) return __real_MHD_add_connection(daemon, fd, address, n);
    atomic_fetch_add(&n_late, 1);
    close(fd);
    return MHD_NO;
}

void __real_MHD_stop_daemon(struct MHD_Daemon *daemon);
void __wrap_MHD_stop_daemon(struct MHD_Daemon *daemon);
void __wrap_MHD_stop_daemon(struct MHD_Daemon *daemon) {
    atomic_store(&has_stopped, true);
    if (idle >= 0) client_send(idle, health, sizeof health - 1);
    nap(50);
    __real_MHD_stop_daemon(daemon);
}

static void no_connection_reaches_the_library_after_its_end(void **state) {
    (void)state;
    fixture w = serve_embedded(NULL, (serve_options){0});
    int fd = client_connect(w.port);
    client_send(fd, health, sizeof health - 1);
    answer_text a = client_read(fd);
    assert_int_equal(a.status, 200);
    client_clear(&a);
    close(fd);
    idle = client_connect(w.port);
    nap(50); /* until it has been let in */
    close_fixture(&w);
    assert_true(atomic_load(&has_stopped));
    assert_int_equal(atomic_load(&n_late), 0);
    close(idle);
    idle = -1;
    atomic_store(&has_stopped, false);
}

/* ---- files ---- */

static atomic_bool has_begun, library_was_there;

/* Looks for a while whether the library is closed beside it. */
static mn_status slow_work(bytes *out, struct server *s, job *j, refusal *why) {
    (void)out, (void)j, (void)why;
    atomic_store(&has_begun, true);
    for (int i = 0; i < 10 && !atomic_load(&has_stopped); i++) nap(20);
    atomic_store(&library_was_there, s->http != NULL && !atomic_load(&has_stopped));
    return MN_OK;
}

static void wake_nobody(void *user) {
    (void)user;
}

static job *open_work(void) {
    job *j = job_ask(NULL);
    assert_non_null(j);
    j->file_work = slow_work;
    j->reply = reply_open(false, wake_nobody, NULL);
    assert_non_null(j->reply);
    return j;
}

static void file_work_ends_before_the_connections(void **state) {
    (void)state;
    refusal why = {0};
    fixture w = serve_embedded(NULL, (serve_options){0});
    assert_ok(file_worker_add(w.server->file_worker, open_work(), &why));
    while (!atomic_load(&has_begun)) nap(1);
    close_fixture(&w);
    assert_true(atomic_load(&library_was_there));
    atomic_store(&has_stopped, false);
}

static mn_status no_query(struct server *s, job *j, refusal *why) {
    (void)s, (void)j, (void)why;
    return MN_E_FULL;
}

static void file_work_after_the_stop_is_refused(void **state) {
    (void)state;
    file_worker *worker = NULL;
    refusal why = {0};
    assert_ok(file_worker_open(&worker, NULL, no_query));
    file_worker_stop(worker);
    job *j = open_work();
    assert_int_equal(file_worker_add(worker, j, &why), MN_E_FULL);
    assert_int_equal(why.status, 503);
    assert_string_equal(mn_last_error(), "the server is shutting down");
    job_close(j);
    file_worker_close(&worker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_connection_reaches_the_library_after_its_end),
        cmocka_unit_test(file_work_ends_before_the_connections),
        cmocka_unit_test(file_work_after_the_stop_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
