/* Prints the command's options that take a whole number, a verb a line: "run --logprobs 0 1000".
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "options.h"

int main(void) {
    static const struct {
        unsigned bit;
        const char *name;
    } verbs[] = {{VERB_RUN, "run"},         {VERB_SCORE, "score"},   {VERB_TOKENIZE, "tokenize"},
                 {VERB_INSPECT, "inspect"}, {VERB_DOCTOR, "doctor"}, {VERB_BENCH, "bench"},
                 {VERB_CACHE, "cache"},     {VERB_CHAT, "chat"},     {VERB_TRANSCRIBE, "transcribe"}};
    char flag[80];
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *row = &option_table[i];
        for (size_t k = 0; row->kind == OPTION_INTEGER && k < sizeof verbs / sizeof *verbs; k++) {
            if (row->verbs & verbs[k].bit)
                printf("%s --%s %lld %lld\n", verbs[k].name, flag_spelling(flag, sizeof flag, row->name),
                       (long long)row->lo, (long long)row->hi);
        }
    }
    return 0;
}
