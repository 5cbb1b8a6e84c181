/* Two parts of Linux, by their system calls: Landlock for files, seccomp for the rest.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

/* ---- system calls ---- */

#if defined __x86_64__
#define THIS_ARCHITECTURE AUDIT_ARCH_X86_64
enum { FIRST_OTHER_CALL = 0x40000000 }; /* the same calls again, for 32-bit pointers */
#elif defined __aarch64__
#define THIS_ARCHITECTURE AUDIT_ARCH_AARCH64
enum { FIRST_OTHER_CALL = 0x7fffffff };
#endif

static const int denied_calls[] = {
    /* programs and other processes */
    SYS_execve, SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_getfd, SYS_kcmp,
    /* sockets: those that listen are there, clients' come from them; rings, whose operations this filter does not see
     */
    SYS_socket, SYS_connect, SYS_bind, SYS_listen, SYS_io_uring_setup,
    /* file systems and namespaces */
    SYS_mount, SYS_umount2, SYS_move_mount, SYS_open_tree, SYS_fsopen, SYS_fsmount, SYS_pivot_root, SYS_chroot,
    SYS_unshare, SYS_setns, SYS_open_by_handle_at,
    /* the kernel itself */
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module,
    SYS_add_key, SYS_request_key, SYS_keyctl};

enum { N_DENIED = sizeof denied_calls / sizeof *denied_calls };

#define LOAD(member)                                                                                                   \
    (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, member))
#define RETURN(value)              (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, (value))
#define JUMP(kind, value, yes, no) (struct sock_filter) BPF_JUMP(BPF_JMP | (kind) | BPF_K, (value), (yes), (no))

static bool has_seccomp(void) {
    const unsigned action = SECCOMP_RET_ERRNO;
    return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

/* Of all threads at once. */
static mn_status deny_calls(void) {
    enum { N_BEFORE = 4 };
    struct sock_filter filter[N_BEFORE + N_DENIED + 2];
    filter[0] = LOAD(arch);
    filter[1] = JUMP(BPF_JEQ, THIS_ARCHITECTURE, 0, N_DENIED + 3);
    filter[2] = LOAD(nr);
    filter[3] = JUMP(BPF_JGE, FIRST_OTHER_CALL, N_DENIED + 1, 0);
    for (int i = 0; i < N_DENIED; i++)
        filter[N_BEFORE + i] = JUMP(BPF_JEQ, (unsigned)denied_calls[i], (unsigned char)(N_DENIED - i), 0);
    filter[N_BEFORE + N_DENIED] = RETURN(SECCOMP_RET_ALLOW);
    filter[N_BEFORE + N_DENIED + 1] = RETURN(SECCOMP_RET_ERRNO | EPERM);
    const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0)
        return MN_OK;
    MN_FAIL(MN_E_IO, "the sandbox cannot filter system calls: %s", strerror(errno));
}

/* ---- files ---- */

/* Rights and members that the headers of Debian 12 do not have yet. */
enum {
    MAY_TRUNCATE = 1 << 14, /* version 3 */
    MAY_TRUNCATE_SINCE = 3,
    BIND_AND_CONNECT = 3, /* of TCP, version 4 */
    BIND_AND_CONNECT_SINCE = 4,
    MAY_REFER_SINCE = 2
};

typedef struct ruleset_attributes {
    uint64_t files, network;
} ruleset_attributes;

enum {
    MAY_READ = LANDLOCK_ACCESS_FS_READ_FILE,
    MAY_LIST = MAY_READ | LANDLOCK_ACCESS_FS_READ_DIR,
    MAY_REMOVE = LANDLOCK_ACCESS_FS_REMOVE_FILE,
    MAY_WRITE = MAY_LIST | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG | MAY_REMOVE | MAY_TRUNCATE,
    MAY_ALL = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1 /* of version 1 */
};

static long landlock_version(void) {
    return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

static ruleset_attributes attributes_of(long version) {
    ruleset_attributes a = {.files = MAY_ALL};
    if (version >= MAY_REFER_SINCE) a.files |= LANDLOCK_ACCESS_FS_REFER;
    if (version >= MAY_TRUNCATE_SINCE) a.files |= MAY_TRUNCATE;
    if (version >= BIND_AND_CONNECT_SINCE) a.network = BIND_AND_CONNECT;
    return a;
}

/* is_needed: the server ends when it is not there. */
static mn_status allow(int ruleset, const char *path, uint64_t rights, bool is_needed) {
    int fd = file_descriptor(path, O_PATH, 0);
    if (fd < 0 && !is_needed) return MN_OK;
    const struct landlock_path_beneath_attr rule = {.allowed_access = rights, .parent_fd = fd};
    bool is_allowed = fd >= 0 && syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    int code = errno;
    if (fd >= 0) close(fd);
    if (is_allowed) return MN_OK;
    MN_FAIL(MN_E_IO, "the sandbox cannot allow '%s': %s", path, strerror(code));
}

static mn_status allow_removal(int ruleset, const char *socket_path) {
    const char *slash = strrchr(socket_path, '/');
    char *folder = slash ? mem_copy_text(socket_path, (size_t)(slash - socket_path) + 1) : mem_copy_text(".", 1);
    if (!folder) return MN_E_NOMEM;
    mn_status status = allow(ruleset, folder, MAY_REMOVE, true);
    mem_free(folder);
    return status;
}

static mn_status allow_all(int ruleset, const serve_options *o, uint64_t handled) {
    static const struct {
        const char *path;
        uint64_t rights;
    } of_system[] = {{"/usr", MAY_LIST},
                     {"/lib", MAY_LIST},
                     {"/etc/ssl/openssl.cnf", MAY_READ},
                     {"/dev/null", MAY_READ},
                     {"/dev/urandom", MAY_READ}};
    mn_cache_summary summary = {.size = sizeof summary};
    const uint64_t writes = MAY_WRITE & handled;
    const char *key_file = o->cache ? o->cache->key_file : NULL;
    if (o->cache) MN_TRY(mn_cache_check(o->cache, &summary));
    for (size_t i = 0; i < sizeof of_system / sizeof *of_system; i++)
        MN_TRY(allow(ruleset, of_system[i].path, of_system[i].rights, false));
    MN_TRY(allow(ruleset, *summary.path ? summary.path : file_scratch_folder(), writes, false));
    if (o->cache_dir) MN_TRY(allow(ruleset, o->cache_dir, writes, true));
    if (key_file) MN_TRY(allow(ruleset, key_file, MAY_READ, true));
    if (o->speech_path) MN_TRY(allow(ruleset, o->speech_path, MAY_LIST, true));
    return o->unix_path ? allow_removal(ruleset, o->unix_path) : MN_OK;
}

/* ---- every thread ---- */

/* Landlock holds for the thread that calls it and for those that it starts, so each thread that is there calls it in a
 * signal handler, one after the other. Seen by all threads, of necessity. */
static struct {
    int ruleset;
    atomic_int answered; /* the thread that has called it last */
    atomic_int error;    /* its errno; 0: none */
} entering;

static int restrict_this_thread(int ruleset) {
    bool is_done = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
    return is_done ? 0 : errno;
}

static void on_signal(int number) {
    (void)number;
    int before = errno;
    atomic_store(&entering.error, restrict_this_thread(entering.ruleset));
    atomic_store(&entering.answered, (int)gettid());
    errno = before;
}

static mn_status restrict_thread(int thread, int number) {
    enum { WAIT_MS = 2000 };
    const struct timespec pause = {.tv_nsec = 50000};
    atomic_store(&entering.answered, 0);
    if (syscall(SYS_tgkill, getpid(), thread, number) != 0) return MN_OK; /* it has ended */
    for (double end = clock_ms() + WAIT_MS; atomic_load(&entering.answered) != thread; nanosleep(&pause, NULL))
        if (clock_ms() > end) MN_FAIL(MN_E_IO, "thread %d of this process does not enter the sandbox", thread);
    int code = atomic_load(&entering.error);
    if (code) MN_FAIL(MN_E_IO, "thread %d of this process cannot enter the sandbox: %s", thread, strerror(code));
    return MN_OK;
}

typedef struct thread_list {
    int *ids; /* [n] */
    size_t n, capacity;
} thread_list;

/* Threads that are not in the list yet; *n_new: how many. */
static mn_status restrict_new_threads(thread_list *done, int number, size_t *n_new) {
    DIR *folder = file_open_folder("/proc/self/task");
    if (!folder) MN_FAIL(MN_E_IO, "/proc/self/task cannot be read: %s", strerror(errno));
    mn_status status = MN_OK;
    *n_new = 0;
    for (struct dirent *entry; status == MN_OK && (entry = readdir(folder));) {
        int thread = atoi(entry->d_name);
        bool is_done = thread <= 0 || thread == (int)gettid();
        for (size_t i = 0; i < done->n && !is_done; i++) is_done = done->ids[i] == thread;
        if (is_done) continue;
        status = mem_grow(&done->ids, &done->capacity, done->n + 1, sizeof *done->ids);
        if (status == MN_OK) status = restrict_thread(thread, number);
        if (status == MN_OK) done->ids[done->n++] = thread;
        ++*n_new;
    }
    closedir(folder);
    return status;
}

/* A thread that is missed in one round was started by one that is not restricted yet: it comes in the next. */
static mn_status restrict_all_threads(int ruleset) {
    const int number = SIGRTMAX;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    thread_list done = {0};
    mn_status status = MN_OK;
    sigemptyset(&action.sa_mask);
    entering.ruleset = ruleset;
    sigaction(number, &action, &before);
    for (size_t n_new = 1; n_new > 0 && status == MN_OK;) status = restrict_new_threads(&done, number, &n_new);
    sigaction(number, &before, NULL);
    mem_free(done.ids);
    int code = status == MN_OK ? restrict_this_thread(ruleset) : 0;
    if (code) MN_FAIL(MN_E_IO, "this process cannot enter the sandbox: %s", strerror(code));
    return status;
}

static mn_status deny_files(const serve_options *options) {
    const long version = landlock_version();
    const ruleset_attributes attributes = attributes_of(version);
    const size_t size = attributes.network ? sizeof attributes : sizeof attributes.files;
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attributes, size, 0);
    if (ruleset < 0) MN_FAIL(MN_E_IO, "the sandbox cannot be made: %s", strerror(errno));
    mn_status status = allow_all(ruleset, options, attributes.files);
    if (status == MN_OK) status = restrict_all_threads(ruleset);
    close(ruleset);
    return status;
}

/* ---- both ---- */

const char *serve_sandbox_lacks(void) {
    const bool has_files = landlock_version() > 0, has_calls = has_seccomp();
    if (has_files && has_calls) return NULL;
    return has_files ? "seccomp" : has_calls ? "Landlock" : "Landlock and seccomp";
}

mn_status sandbox_enter(const serve_options *options) {
    if (landlock_version() > 0) MN_TRY(deny_files(options));
    return has_seccomp() ? deny_calls() : MN_OK;
}
