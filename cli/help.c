/* Help, printed from the table of options: one screen that starts with examples, or everything.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "options.h"

enum { COLUMN = 30 }; /* where the explanation begins */

/* The generation fields of the one-screen help. */
static const char *const brief_fields[] = {"max_new_tokens", "do_sample", "temperature",
                                           "top_k",          "top_p",     "repetition_penalty",
                                           "stop_strings",   "seed",      NULL};

static void print_line(const char *left, const char *help, const char *standard) {
    int n = printf("  %s", left);
    printf("%*s%s", n < COLUMN ? COLUMN - n : 2, "", help);
    bool is_said = standard && *standard && strcmp(standard, "null") != 0;
    printf(is_said ? " [%s]\n" : "\n", standard);
}

static void print_row(const option *row) {
    char left[160], flag[64];
    const char *letter = row->aliases && row->aliases[1] != '-' ? row->aliases : "";
    snprintf(left, sizeof left, "%.*s%s--%s%s%s", (int)strcspn(letter, " "), letter, *letter ? ", " : "",
             flag_spelling(flag, sizeof flag, row->name), row->argument ? " " : "",
             row->argument ? row->argument : "");
    print_line(left, row->help, row->standard);
}

static void print_field(const mn_generation_field *field) {
    static const struct {
        const char *kind, *argument;
    } arguments[] = {{"integer", " N"},           {"number", " X"},      {"boolean", ""},
                     {"integers", " 1,2"},        {"pair", " N,X"},      {"lists of integers", " 1,2"},
                     {"strings", " TEXT"},        {"string", " TEXT"},   {"choice", " WORD"},
                     {"layers", " low|high|1,2"}, {"object", " k=v,..."}};
    char left[160], flag[64];
    const char *argument = " JSON";
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        if (strcmp(arguments[i].kind, field->kind) == 0) argument = arguments[i].argument;
    }
    snprintf(left, sizeof left, "--%s%s", flag_spelling(flag, sizeof flag, field->name), argument);
    print_line(left, field->help, field->standard);
}

/* The strategies, or the keys of their configuration, as the library has them. */
static void print_caches(const json *rows, const char *title) {
    puts(title);
    for (size_t i = 0; rows && i < rows->n; i++) {
        const json *row = &rows->items[i], *allowed = json_get(row, "allowed"),
                   *standard = json_get(row, "standard");
        char help[256];
        snprintf(help, sizeof help, "%s%s%s", json_get(row, "help")->string, allowed ? "; " : "",
                 allowed ? allowed->string : "");
        print_line(json_get(row, "name")->string, help, standard ? standard->string : NULL);
    }
}

static void print_cache_help(void) {
    char *text = NULL;
    json_doc *doc = NULL;
    if (mn_cache_describe(&text) == MN_OK &&
        json_parse(&doc, text, strlen(text), JSON_STRICT, "caches") == MN_OK) {
        print_caches(
            json_get(json_root(doc), "strategies"),
            "Caches, for --cache; + joins several (self=NAME,cross=NAME where there is an encoder):");
        print_caches(json_get(json_root(doc), "config"), "What --cache-config sets, Transformers' names:");
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

void help_print(const verb *v, bool all) {
    printf("Examples:\n%s\nUsage: mneme %s\n", v->examples, v->usage);
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *row = &option_table[i];
        if (row->help && (all ? row->verbs : row->brief) & v->bit) print_row(row);
    }
    if (v->bit & VERB_GENERATES) {
        const mn_generation_field *fields = mn_generation_fields();
        puts(all ? "Generation, Transformers' fields (defaults are the model's own where it has some):"
                 : "Generation:");
        for (int i = 0; fields[i].name; i++) {
            if ((all || field_is_brief(fields[i].name)) && !option_is_row(v, fields[i].name))
                print_field(&fields[i]);
        }
    }
    if (all && v->bit & option_table[OPT_CACHE].verbs) print_cache_help();
    if (all) {
        puts(
            "Every --some-name can be given as MNEME_SOME_NAME in the environment or as \"some_name\" in the file $MNEME_CONFIG\n"
            "(else ~/.config/mneme/config.json; its \"aliases\" name models). Flags win, then the environment, then that file.\n"
            "Exit codes: 0 done, 1 failed, 2 bad usage, 3 model missing or unreadable, 4 out of memory or over budget,\n"
            "5 cancelled, 6 saved cache refused.");
    }
}
