/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "output.h"

/* Read by the signal handler, so process-wide of necessity. */
static mn_session *volatile watched;
static volatile sig_atomic_t watching, seen;

static void on_signal(int number) {
    (void)number;
    if (!watching || seen) _exit(EXIT_CANCELLED);
    seen = 1;
    if (watched) mn_session_cancel(watched);
}

/* Reading where a mapped file ended meanwhile. Anything else that comes as SIGBUS is a fault of the program. */
static void on_bus(int number, siginfo_t *info, void *context) {
    static const char text[] = "mneme: a file that is in use was shortened by another process; run again with the whole file\n";
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(number, SIG_DFL);
        return;
    }
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(EXIT_FAILED);
}

void interrupt_install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler =
        SIG_IGN; /* a closed pipe is seen as a failed write, so that nothing is left half-written */
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL); /* the same for a file that may not grow further */
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_bus;
    sigaction(SIGBUS, &action, NULL);
}

void interrupt_watch(mn_session *session) {
    watched = session;
    watching = 1;
}

void interrupt_unwatch(void) {
    watching = 0;
    watched = NULL;
}

bool interrupt_seen(void) {
    return seen;
}
