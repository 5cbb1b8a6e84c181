/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/ffmpeg.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

enum { MESSAGE = 4096, MOST_SHOWN = 200, PAUSE_NS = 20000000 };
static const int64_t most_decoded_bytes = (int64_t)1 << 36;

/* The standard input is opened by its path: a file can be sought in there, a pipe could not. */
#define INPUT "file:/dev/stdin"
static char *const arguments[] = {
    "ffmpeg", "-nostdin", "-v",    "error", "-protocol_whitelist", "file", "-i",  INPUT, "-vn", "-ac",
    "1",      "-ar",      "16000", "-c:a",  "pcm_s16le",           "-f",   "wav", "-",   NULL};
_Static_assert(FFMPEG_RATE == 16000, "the rate among the arguments");

/* In a process group of its own, so that what it may start ends with it. Returns an errno. */
static int start(pid_t *program, int in, int out, int messages) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    int problem = posix_spawn_file_actions_init(&files);
    if (problem) return problem;
    problem = posix_spawnattr_init(&attributes);
    if (!problem) {
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
        posix_spawnattr_setsigdefault(&attributes, &defaults);
        posix_spawnattr_setsigmask(&attributes, &none);
        problem = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
        if (!problem) problem = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
        if (!problem) problem = posix_spawn_file_actions_adddup2(&files, messages, STDERR_FILENO);
        if (!problem) problem = posix_spawnp(program, *arguments, &files, &attributes, arguments, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&files);
    return problem;
}

static int64_t size_of(int fd) {
    struct stat info;
    return fstat(fd, &info) == 0 ? info.st_size : 0;
}

/* Until it has ended, by itself or because it may not go on. */
static mn_status wait_for(pid_t program, int *result, int out, const char *name, const ffmpeg_wait *wait) {
    pid_t ended;
    bool is_stopped = false, is_long = false;
    while ((ended = waitpid(program, result, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        is_long = is_long || size_of(out) > most_decoded_bytes;
        is_stopped = is_stopped || !wait->goes_on(wait->user);
        if (is_long || is_stopped) kill(-program, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    if (is_stopped) MN_FAIL(MN_E_CANCELLED, "cancelled");
    if (is_long)
        MN_FAIL(MN_E_IO, "ffmpeg makes more than the %lld bytes allowed of '%s'", (long long)most_decoded_bytes, name);
    if (ended < 0) MN_FAIL(MN_E_IO, "cannot wait for ffmpeg: %s", strerror(errno));
    return MN_OK;
}

/* The last line that ffmpeg wrote, without the name that it was given. */
static void read_message(char out[MESSAGE + 1], int messages) {
    static const char prefix[] = INPUT ": ";
    int64_t size = size_of(messages), from = size > MESSAGE ? size - MESSAGE : 0;
    ssize_t n = pread(messages, out, MESSAGE, (off_t)from);
    size_t end = n > 0 ? (size_t)n : 0, begin;
    while (end && isspace((unsigned char)out[end - 1])) end--;
    for (begin = end; begin && out[begin - 1] != '\n';) begin--;
    if (end - begin >= sizeof prefix && memcmp(out + begin, prefix, sizeof prefix - 1) == 0) begin += sizeof prefix - 1;
    memmove(out, out + begin, end - begin);
    out[end - begin] = 0;
    for (char *at = out; *at; at++) *at = iscntrl((unsigned char)*at) ? ' ' : *at;
}

static mn_status check_result(int result, int out, int messages, const char *name) {
    char message[MESSAGE + 1];
    if (WIFEXITED(result) && WEXITSTATUS(result) == 0 && size_of(out) > 0) return MN_OK;
    read_message(message, messages);
    if (WIFSIGNALED(result))
        MN_FAIL(MN_E_FORMAT, "'%s' cannot be read as audio: ffmpeg was ended by signal %d", name, WTERMSIG(result));
    MN_FAIL(MN_E_FORMAT,
            "'%s' cannot be read as audio: its format is none of " FFMPEG_OTHERS ", and ffmpeg cannot decode it: %.*s",
            name, (int)MOST_SHOWN, *message ? message : "it wrote nothing");
}

static mn_status decode(int fd, int out, int messages, const char *name, const ffmpeg_wait *wait) {
    pid_t program = -1;
    int result = 0, problem = start(&program, fd, out, messages);
    if (problem == ENOENT || problem == EACCES || problem == ENOTDIR)
        MN_FAIL(MN_E_FORMAT,
                "'%s' cannot be read as audio: its format is none of " FFMPEG_OTHERS
                "; m4a, webm and what else ffmpeg reads need ffmpeg, which is not installed",
                name);
    if (problem == ENOMEM) return mem_no_memory();
    if (problem) MN_FAIL(MN_E_IO, "cannot start ffmpeg: %s", strerror(problem));
    MN_TRY(wait_for(program, &result, out, name, wait));
    MN_TRY(check_result(result, out, messages, name));
    if (lseek(out, 0, SEEK_SET) != 0) MN_FAIL(MN_E_IO, "cannot read what ffmpeg wrote: %s", strerror(errno));
    return MN_OK;
}

mn_status ffmpeg_decode(int *out, int fd, const char *name, const ffmpeg_wait *wait) {
    int sound = -1, messages = -1;
    *out = -1;
    MN_TRY(file_open_unnamed(&sound, file_scratch_folder()));
    mn_status status = file_open_unnamed(&messages, file_scratch_folder());
    if (status == MN_OK) status = decode(fd, sound, messages, name, wait);
    if (messages >= 0) close(messages);
    if (status == MN_OK) {
        *out = sound;
    } else {
        close(sound);
    }
    return status;
}
