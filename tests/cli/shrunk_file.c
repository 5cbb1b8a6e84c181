/* Several threads read a mapped file that was shortened: the command says so once and exits with code 1. 0: it does.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interrupt.h"
#include "output.h"

enum { N_THREADS = 8, N_TRIES = 100 };

static const volatile char *mapped;
static pthread_barrier_t together;

static void *read_it(void *arg) {
    pthread_barrier_wait(&together);
    (void)mapped[0];
    return arg;
}

static void read_in_threads(void) {
    pthread_t threads[N_THREADS];
    FILE *file = tmpfile();
    mapped = file ? mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(file), 0) : MAP_FAILED;
    if (mapped == MAP_FAILED || pthread_barrier_init(&together, NULL, N_THREADS) != 0) return;
    interrupt_install();
    for (int i = 0; i < N_THREADS; i++) {
        if (pthread_create(&threads[i], NULL, read_it, NULL) != 0) return;
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
}

int main(void) {
    for (int i = 0; i < N_TRIES; i++) {
        int ends[2], status = 0;
        if (pipe(ends) != 0) return 1;
        pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], STDERR_FILENO);
            read_in_threads();
            _exit(0);
        }
        close(ends[1]);
        char text[4096];
        size_t n = 0;
        for (ssize_t got; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
        text[n] = '\0';
        close(ends[0]);
        if (child < 0 || waitpid(child, &status, 0) != child) return 1;
        const char *end = strchr(text, '\n');
        bool is_one = end && end[1] == '\0' && strncmp(text, "mneme: a file that is in use was shortened", 42) == 0;
        if (!is_one || !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_FAILED) {
            fprintf(stderr, "try %d ended with status %d and printed:\n%s", i, status, text);
            return 1;
        }
    }
    return 0;
}
