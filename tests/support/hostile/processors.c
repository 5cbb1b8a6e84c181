/* A library that is loaded before others (LD_PRELOAD): the program sees PROCESSORS processors, however many there are.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

/* Seen from outside, unlike all else in this build. */
#define SEEN __attribute__((visibility("default")))

SEEN int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    (void)process;
    if (size * 8 < PROCESSORS) {
        errno = EINVAL;
        return -1;
    }
    memset(set, 0, size);
    for (size_t i = 0; i < PROCESSORS; i++) CPU_SET_S(i, size, set);
    return 0;
}

SEEN long sysconf(int name) {
    if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return PROCESSORS;
    void *next = dlsym(RTLD_NEXT, "sysconf");
    long (*real)(int) = NULL;
    memcpy(&real, &next, sizeof real);
    return real(name);
}
