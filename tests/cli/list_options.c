/* Prints the command's options that take a whole number, a command a line: "run --logprobs 0 1000"; with the argument
 * "serve", the options that the server has beyond those of every command, all spellings of one a line.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "options.h"

static void list_of_server(void) {
    char flag[80];
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *row = &option_table[i];
        if (!(row->commands & COMMAND_SERVE) || row->commands == COMMAND_ALL) continue;
        flag_spelling(flag, sizeof flag, row->name);
        printf("--%s", flag);
        if (row->kind == OPTION_SWITCH) printf(" --no-%s", flag);
        printf(" %s\n", row->aliases ? row->aliases : "");
    }
}

int main(int n, char **arguments) {
    static const struct {
        unsigned bit;
        const char *name;
    } commands[] = {{COMMAND_RUN, "run"},         {COMMAND_SCORE, "score"},   {COMMAND_TOKENIZE, "tokenize"},
                    {COMMAND_INSPECT, "inspect"}, {COMMAND_DOCTOR, "doctor"}, {COMMAND_BENCH, "bench"},
                    {COMMAND_CACHE, "cache"},     {COMMAND_CHAT, "chat"},     {COMMAND_TRANSCRIBE, "transcribe"},
                    {COMMAND_SERVE, "serve"},     {COMMAND_ADVISE, "advise"}, {COMMAND_PACK, "pack"}};
    char flag[80];
    if (n > 1 && strcmp(arguments[1], "serve") == 0) {
        list_of_server();
        return 0;
    }
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *row = &option_table[i];
        for (size_t k = 0; row->kind == OPTION_INTEGER && k < sizeof commands / sizeof *commands; k++) {
            if (row->commands & commands[k].bit)
                printf("%s --%s %lld %lld\n", commands[k].name, flag_spelling(flag, sizeof flag, row->name),
                       (long long)row->lo, (long long)row->hi);
        }
    }
    return 0;
}
