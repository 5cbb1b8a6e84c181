/* SPDX-License-Identifier: Apache-2.0 */
#include "chat/line_editor.h"

#ifdef MNEME_HAVE_LIBEDIT

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "base/utf8.h"
#include "interrupt.h"
#include "chat/line_history.h"
#include "output.h"

/* What a terminal puts around a pasted block once it was asked to (xterm's control sequences, "bracketed paste"). */
static const char paste_on[] = "\x1b[?2004h", paste_off[] = "\x1b[?2004l";
static const char paste_begin[] = "\x1b[200~", paste_end[] = "\x1b[201~";

struct line_editor {
    EditLine *el;
    History *history;
    FILE *screen;
    locale_t utf8; /* libedit draws in the thread's locale */
    bool pastes;
    const char *prompt;
    bytes given;     /* keys to be read before the terminal's: the text to begin with */
    size_t given_at; /* of them, read */
    line_end end;    /* why reading broke off */
    bytes typed;     /* what stood there then */
};

static wchar_t *wide(const bytes *text, size_t *n) {
    wchar_t *out = mem_alloc(text->n + 1, sizeof *out);
    *n = 0;
    for (size_t i = 0; out && i < text->n;) {
        size_t length = utf8_sequence(text->data + i, text->n - i);
        out[(*n)++] = length ? (wchar_t)utf8_decode(text->data + i, length) : (wchar_t)0xFFFD;
        i += length ? length : 1;
    }
    return out;
}

static void put_wide(bytes *out, const wchar_t *text, size_t n) {
    char sequence[4];
    for (size_t i = 0; i < n; i++) bytes_append(out, sequence, utf8_encode(sequence, (uint32_t)text[i]));
}

/* ---- keys ---- */

static void note_typed(line_editor *e) {
    const LineInfoW *line = el_wline(e->el);
    e->typed.n = 0;
    put_wide(&e->typed, line->buffer, (size_t)(line->lastchar - line->buffer));
}

/* Rows between the prompt and the cursor, as a terminal that wraps its lines anew has them now. */
static int rows_above(const line_editor *e) {
    const LineInfoW *line = el_wline(e->el);
    struct winsize size = {0};
    ioctl(fileno(e->screen), TIOCGWINSZ, &size);
    int width = size.ws_col > 1 ? size.ws_col : 80, rows = 0, column = (int)strlen(e->prompt);
    for (const wchar_t *at = line->buffer; at < line->cursor; at++) {
        int n = wcwidth(*at);
        if (*at == L'\n' || column + (n > 0 ? n : 0) > width) {
            rows++;
            column = 0;
        }
        if (*at != L'\n' && n > 0) column += n;
    }
    return rows;
}

/* Draws the line again where it stands. */
static void redraw(line_editor *e) {
    int rows = rows_above(e);
    char up[24];
    snprintf(up, sizeof up, "\x1b[%dA", rows);
    if (e->pastes && rows) put_control(e->screen, up);
    put_control(e->screen, e->pastes ? "\r\x1b[J" : "\n");
    el_resize(e->el);
    el_set(e->el, EL_REFRESH);
}

/* Acts on the signals that came: true when reading breaks off. */
static bool take_events(line_editor *e) {
    interrupt_events events = interrupt_take();
    if (events.stop || events.leave) {
        e->end = events.leave ? LINE_LEAVE : LINE_STOPPED;
        note_typed(e);
        errno = EINTR;
        return true;
    }
    if (events.resumed) { /* another process has used the terminal and left its own settings */
        el_set(e->el, EL_PREP_TERM, 0);
        el_set(e->el, EL_PREP_TERM, 1);
        if (e->pastes) put_control(e->screen, paste_on);
    }
    if (events.resumed || events.resized) redraw(e);
    return false;
}

/* The next byte typed: 1, or what read() gives. */
static int next_byte(line_editor *e, char *byte) {
    if (e->given_at < e->given.n) {
        *byte = e->given.data[e->given_at++];
        return 1;
    }
    while (!interrupt_wait(STDIN_FILENO)) {
        if (take_events(e)) return -1;
    }
    ssize_t n = read(STDIN_FILENO, byte, 1);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return next_byte(e, byte);
    if (n <= 0) { /* Ctrl-D is a key here: the terminal itself has gone */
        e->end = LINE_LEAVE;
        note_typed(e);
    }
    return (int)n;
}

/* libedit's reader of one character, from UTF-8 whatever the locale; a broken sequence becomes U+FFFD. */
static int next_character(EditLine *el, wchar_t *out) {
    line_editor *e = NULL;
    char sequence[4];
    el_get(el, EL_CLIENTDATA, (void **)&e);
    int n = next_byte(e, sequence);
    if (n != 1) return n;
    size_t length = utf8_length((unsigned char)sequence[0]), have = 1;
    while (have < length && utf8_prefix(sequence, have) == have) {
        n = next_byte(e, sequence + have);
        if (n != 1) return n;
        have++;
    }
    *out = utf8_sequence(sequence, have) ? (wchar_t)utf8_decode(sequence, have) : (wchar_t)0xFFFD;
    return 1;
}

/* A block as it is put into the line: lines end in \n, other control characters are left out. */
static void clean_block(bytes *block) {
    size_t n = 0;
    for (size_t i = 0; i < block->n; i++) {
        char c = block->data[i];
        if (c == '\r' && i + 1 < block->n && block->data[i + 1] == '\n') continue;
        if (c == '\r') c = '\n';
        bool is_control = ((unsigned char)c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
        if (!is_control) block->data[n++] = c;
    }
    block->n = n;
}

/* Bound to what begins a pasted block: takes all of it as text. */
static unsigned char on_paste(EditLine *el, int key) {
    (void)key;
    line_editor *e = NULL;
    bytes block = {0};
    const size_t tail = sizeof paste_end - 1;
    el_get(el, EL_CLIENTDATA, (void **)&e);
    for (char c; next_byte(e, &c) == 1;) {
        bytes_append(&block, &c, 1);
        if (block.failed) break;
        if (block.n < tail || memcmp(block.data + block.n - tail, paste_end, tail) != 0) continue;
        block.n -= tail;
        break;
    }
    if (!block.failed) clean_block(&block);
    size_t n = 0;
    wchar_t *text = wide(&block, &n);
    bool put = text && n && !block.failed && el_winsertstr(el, text) == 0;
    mem_free(text);
    bytes_clear(&block);
    return e->end == LINE_READ ? (put || !n ? CC_REFRESH : CC_REFRESH_BEEP) : CC_EOF;
}

static char *show_prompt(EditLine *el) {
    line_editor *e = NULL;
    el_get(el, EL_CLIENTDATA, (void **)&e);
    return (char *)(uintptr_t)e->prompt; /* libedit takes it unconst and does not write */
}

/* ---- opening ---- */

static mn_status open_history(line_editor *e) {
    HistEvent event;
    e->history = history_init();
    if (!e->history) return mem_no_memory();
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_HIST, history, e->history);
    return MN_OK;
}

mn_status line_editor_open(line_editor **editor, FILE *screen) {
    const char *term = getenv("TERM");
    *editor = NULL;
    if (!term || !*term) return MN_OK;
    line_editor *e = mem_alloc(1, sizeof *e);
    if (!e) return mem_no_memory();
    e->screen = screen;
    e->utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!e->utf8) e->utf8 = newlocale(LC_CTYPE_MASK, "", (locale_t)0); /* systems without that one: the person's own */
    locale_t before = e->utf8 ? uselocale(e->utf8) : (locale_t)0;
    e->el = e->utf8 ? el_init("mneme", stdin, screen, stderr) : NULL;
    mn_status status = MN_OK;
    if (e->el) {
        e->pastes = strcmp(term, "dumb") != 0;
        el_set(e->el, EL_CLIENTDATA, e);
        el_set(e->el, EL_PROMPT, show_prompt);
        el_set(e->el, EL_EDITOR, "emacs");
        status = open_history(e);
        el_wset(e->el, EL_ADDFN, L"mneme-paste", L"takes a pasted block", on_paste);
        el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
        el_source(e->el, NULL); /* ~/.editrc: what the person likes */
        el_set(e->el, EL_BIND, paste_begin, "mneme-paste", NULL);
        el_wset(e->el, EL_GETCFN, next_character);
    }
    if (e->utf8) uselocale(before);
    if (status == MN_OK && e->el) {
        *editor = e;
    } else {
        line_editor_close(&e); /* no locale or terminal for it: lines come as they are */
    }
    return status;
}

void line_editor_close(line_editor **editor) {
    line_editor *e = *editor;
    if (!e) return;
    if (e->history) history_end(e->history);
    if (e->el) el_end(e->el);
    if (e->utf8) freelocale(e->utf8);
    bytes_clear(&e->given);
    bytes_clear(&e->typed);
    mem_free(e);
    *editor = NULL;
}

void line_editor_remember(line_editor *e, const char *text) {
    HistEvent event;
    history(e->history, &event, H_ENTER, text);
}

/* ---- a line ---- */

static void give(line_editor *e, const char *initial) {
    e->given.n = e->given_at = 0;
    if (!initial || !*initial) return;
    bytes block = {0};
    bytes_append_text(&block, initial);
    clean_block(&block); /* behind an end of a block in it, the rest of a saved message would count as keys */
    bytes_append_text(&e->given, paste_begin);
    bytes_append(&e->given, block.data, block.n);
    bytes_append_text(&e->given, paste_end);
    e->given.failed = e->given.failed || block.failed;
    bytes_clear(&block);
    if (e->given.failed) bytes_clear(&e->given);
}

line_end line_editor_read(line_editor *e, const char *prompt, const char *initial, bytes *line) {
    int n = 0;
    e->prompt = prompt;
    e->end = LINE_READ;
    give(e, initial);
    locale_t before = uselocale(e->utf8);
    el_set(e->el, EL_PREP_TERM, 1); /* first: what is pasted from now on must not be edited by the system */
    if (e->pastes) put_control(e->screen, paste_on);
    const wchar_t *text = el_wgets(e->el, &n);
    if (text && n > 0) put_wide(line, text, (size_t)n);
    uselocale(before);
    if (e->pastes) put_control(e->screen, paste_off);
    if (!text || n <= 0) put_control(e->screen, "\n");
    if (e->end != LINE_READ) {
        bytes_append(line, e->typed.data, e->typed.n);
        return e->end;
    }
    if (!text || n <= 0) return LINE_CLOSED;
    if (line->n && line->data[line->n - 1] == '\n') line->n--;
    if (line->failed) mem_no_memory();
    return line->failed ? LINE_FAILED : LINE_READ;
}

#else

mn_status line_editor_open(line_editor **editor, FILE *screen) {
    (void)screen;
    *editor = NULL;
    return MN_OK;
}

void line_editor_close(line_editor **editor) {
    (void)editor;
}

line_end line_editor_read(line_editor *editor, const char *prompt, const char *initial, bytes *line) {
    (void)editor, (void)prompt, (void)initial, (void)line;
    return LINE_CLOSED;
}

void line_editor_remember(line_editor *editor, const char *text) {
    (void)editor, (void)text;
}

#endif
