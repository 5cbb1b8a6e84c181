/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "output.h"

typedef enum signal_mode { SIGNALS_END, SIGNALS_CANCEL, SIGNALS_RECORD } signal_mode;

/* Read by the signal handler, so process-wide of necessity. */
static mn_session *volatile watched;
static volatile sig_atomic_t mode, stop_seen, leave_seen, resize_seen, resume_seen;
static int wake[2] = {-1, -1}; /* a byte for each signal, so that one that comes just before poll() is not missed */

static void on_signal(int number) {
    int before = errno;
    bool again = mode == SIGNALS_CANCEL && (stop_seen || leave_seen);
    if (mode == SIGNALS_END || again) _exit(EXIT_CANCELLED);
    *(number == SIGINT ? &stop_seen : &leave_seen) = 1;
    if (watched) mn_session_cancel(watched);
    if (wake[1] >= 0 && write(wake[1], "", 1) < 0) errno = before; /* a full pipe wakes as well */
    errno = before;
}

static void on_terminal(int number) {
    int before = errno;
    *(number == SIGWINCH ? &resize_seen : &resume_seen) = 1;
    if (write(wake[1], "", 1) < 0) errno = before;
    errno = before;
}

/* A read beyond the new end of a mapped file. Any other SIGBUS is an error of the program. Threads read at once: the
 * first one reports it, the others wait for the end of the process. */
static void on_bus(int number, siginfo_t *info, void *context) {
    static const char text[] =
        "mneme: a file that is in use was shortened by another process; run again with the whole file\n";
    static atomic_flag is_reported = ATOMIC_FLAG_INIT;
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(number, SIG_DFL);
        return;
    }
    while (atomic_flag_test_and_set(&is_reported)) pause();
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(EXIT_FAILED);
}

void interrupt_install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN; /* a closed pipe is seen as a failed write, so that nothing is left half-written */
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL); /* the same for a file that may not grow further */
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_bus;
    sigaction(SIGBUS, &action, NULL);
}

void interrupt_watch(mn_session *session) {
    watched = session;
    mode = SIGNALS_CANCEL;
}

void interrupt_unwatch(void) {
    mode = SIGNALS_END;
    watched = NULL;
}

bool interrupt_seen(void) {
    return stop_seen || leave_seen;
}

/* ---- listening ---- */

static mn_status open_wake(void) {
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
        MN_FAIL(MN_E_IO, "cannot open a pipe for signals: %s", strerror(errno));
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
    action.sa_handler = on_terminal;
    sigaction(SIGWINCH, &action, NULL);
    sigaction(SIGCONT, &action, NULL);
    return MN_OK;
}

mn_status interrupt_listen(void) {
    if (wake[0] < 0) MN_TRY(open_wake());
    mode = SIGNALS_RECORD;
    watched = NULL;
    return MN_OK;
}

bool interrupt_wait(int fd) {
    struct pollfd both[2] = {{.fd = wake[0], .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    char taken[64];
    for (;;) {
        int n = poll(both, 2, -1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return true; /* the following read reports the error */
        if (both[0].revents) {
            while (read(wake[0], taken, sizeof taken) > 0) {}
            return false;
        }
        if (both[1].revents) return true;
    }
}

interrupt_events interrupt_take(void) {
    interrupt_events events = {stop_seen, leave_seen, resize_seen, resume_seen};
    stop_seen = resize_seen = resume_seen = 0;
    return events;
}
