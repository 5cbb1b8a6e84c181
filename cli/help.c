/* Help, printed from the table of options: one screen that starts with examples, or everything.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "output.h"

enum {
    COLUMN = 30,       /* of the explanation, where everything is listed */
    BRIEF_COLUMN = 24, /* of it on one screen */
    SCREEN = 80,       /* columns of that */
};

/* The generation fields of the one-screen help. */
static const char *const brief_fields[] = {"max_new_tokens", "temperature", "top_p", "seed", "stop_strings", NULL};

static bool has_standard(const char *standard) {
    return standard && *standard && strcmp(standard, "null") != 0;
}

static void put_line(bytes *b, const char *left, const char *help, const char *standard) {
    int n = 2 + (int)strlen(left);
    bytes_printf(b, "  %s%*s%s", left, n < COLUMN ? COLUMN - n : 2, "", help);
    bytes_printf(b, has_standard(standard) ? " [%s]\n" : "\n", standard);
}

/* On one screen: what does not fit behind the option goes without its default and without what a semicolon divides
 * from the rest, and then into further lines. */
static void put_brief_line(bytes *b, const char *left, const char *help, const char *standard) {
    enum { WIDTH = SCREEN - BRIEF_COLUMN };
    char text[512];
    size_t n = 2 + strlen(left);
    int length = snprintf(text, sizeof text, has_standard(standard) ? "%s [%s]" : "%s", help, standard);
    if (length > WIDTH) snprintf(text, sizeof text, "%s", help);
    if (strlen(text) > WIDTH && strchr(text, ';')) *strchr(text, ';') = 0;
    bytes_printf(b, "  %s", left);
    if (n + 1 > BRIEF_COLUMN) bytes_append_text(b, "\n");
    for (const char *at = text; *at;) {
        size_t taken = strlen(at), before = at == text && n < BRIEF_COLUMN ? n : 0;
        if (taken > WIDTH) {
            for (taken = WIDTH; taken && at[taken] != ' ';) taken--;
            if (taken == 0) taken = strcspn(at, " "); /* a word as wide as that */
        }
        bytes_printf(b, "%*s%.*s\n", (int)(BRIEF_COLUMN - before), "", (int)taken, at);
        at += taken + (at[taken] == ' ');
    }
}

/* A shorter name, where there is one. */
static const char *brief_flag(const option *row) {
    size_t n = row->aliases ? strlen(row->aliases) : 0;
    bool is_one = n && strncmp(row->aliases, "--", 2) == 0 && !strchr(row->aliases, ' ');
    return is_one && n - 2 < strlen(row->name) ? row->aliases + 2 : row->name;
}

static void put_row(bytes *b, const option *row, bool all) {
    char left[160], flag[64];
    const char *letter = row->aliases && row->aliases[1] != '-' ? row->aliases : "";
    snprintf(left, sizeof left, "%.*s%s--%s%s%s", (int)strcspn(letter, " "), letter, *letter ? ", " : "",
             flag_spelling(flag, sizeof flag, all ? row->name : brief_flag(row)), row->argument ? " " : "",
             row->argument ? row->argument : "");
    (all ? put_line : put_brief_line)(b, left, row->help, row->standard);
}

static void put_field(bytes *b, const mn_generation_field *field, bool all) {
    static const struct {
        const char *kind, *argument;
    } arguments[] = {{"integer", " N"},           {"number", " X"},       {"boolean", ""},
                     {"integers", " 1,2"},        {"pair", " N,X"},       {"lists of integers", " 1,2"},
                     {"strings", " TEXT"},        {"string", " TEXT"},    {"choice", " WORD"},
                     {"layers", " low|high|1,2"}, {"object", " k=v,..."}, {"grammar", " TEXT"}};
    char left[160], flag[64];
    const char *argument = " JSON";
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        if (strcmp(arguments[i].kind, field->kind) == 0) argument = arguments[i].argument;
    }
    snprintf(left, sizeof left, "--%s%s", flag_spelling(flag, sizeof flag, field->name), argument);
    (all ? put_line : put_brief_line)(b, left, field->help, field->standard);
}

/* The strategies, or the keys of their configuration, from the library. */
static void put_caches(bytes *b, const json *rows, const char *title) {
    bytes_printf(b, "%s\n", title);
    for (size_t i = 0; rows && i < rows->n; i++) {
        const json *row = &rows->items[i], *allowed = json_get(row, "allowed"), *standard = json_get(row, "standard");
        char help[256];
        snprintf(help, sizeof help, "%s%s%s", json_get(row, "help")->string, allowed ? "; " : "",
                 allowed ? allowed->string : "");
        put_line(b, json_get(row, "name")->string, help, standard ? standard->string : NULL);
    }
}

static void put_cache_help(bytes *b) {
    char *text = NULL;
    json_doc *doc = NULL;
    if (mn_cache_describe(&text) == MN_OK && json_parse(&doc, text, strlen(text), JSON_STRICT, "caches") == MN_OK) {
        put_caches(b, json_get(json_root(doc), "strategies"),
                   "Caches, for --cache; + joins several (self=NAME,cross=NAME where there is an encoder):");
        put_caches(b, json_get(json_root(doc), "config"), "What --cache-config sets, Transformers' names:");
    }
    json_close(&doc);
    mn_free(text);
}

static bool field_is_brief(const char *name) {
    for (int i = 0; brief_fields[i]; i++) {
        if (strcmp(brief_fields[i], name) == 0) return true;
    }
    return false;
}

void help_print(const command *c, bool all) {
    bytes b = {0};
    bytes_printf(&b, "Examples:\n%s\nUsage: mneme %s\n", c->examples, c->usage);
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *row = &option_table[i];
        if (row->help && (all ? row->commands : row->brief) & c->bit) put_row(&b, row, all);
    }
    if (c->bit & COMMAND_GENERATES) {
        if (all)
            bytes_append_text(&b,
                              "Generation, Transformers' fields (defaults are the model's own where it has some):\n");
        for (int i = 0; mn_generation_field_at(i); i++) {
            if ((all || field_is_brief(mn_generation_field_at(i)->name)) &&
                !option_is_row(c, mn_generation_field_at(i)->name))
                put_field(&b, mn_generation_field_at(i), all);
        }
    }
    if (!all) put_brief_line(&b, "--help all", "every option, variables, exit codes", NULL);
    if (all && c->bit & option_table[OPT_CACHE].commands) put_cache_help(&b);
    if (all) {
        bytes_append_text(
            &b,
            "Every --some-name can be given as MNEME_SOME_NAME in the environment or as \"some_name\" in the file $MNEME_CONFIG\n"
            "(else ~/.config/mneme/config.json; its \"aliases\" name models). Flags win, then the environment, then that file.\n"
            "A flag that takes no value may have true or false behind it; --no-some-name is --some-name false.\n"
            "Exit codes: 0 done, 1 failed, 2 bad usage, 3 model missing or unreadable, 4 out of memory or over budget,\n"
            "5 cancelled, 6 saved cache refused.\n");
    }
    put_bytes(&b);
}
