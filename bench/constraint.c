/* Constraints: CPU time to compile, and per mask. bench_constraint TOKENIZER (a .gguf file, a tokenizer.json or a
 * folder); ends with 1 when the mean mask of a new state takes more than a millisecond.
 *
 * Walks take random allowed tokens; each is repeated with all its masks cached.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_timer.h"
#include "base/num.h"
#include "constraint/constraint.h"

enum { STEPS = 120, WALKS = 8 };

static const char *const regexes[] = {"(yes|no)", "[A-Z][a-z]+( [A-Z][a-z]+){1,4}", "\\d{4}-\\d{2}-\\d{2}", ".{1,400}",
                                      "([a-z ]*a[a-z ]{12})+"};
static const char *const schemas[] = {
    "true",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":20}}},\"required\":[\"name\",\"age\",\"tags\"]}",
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"string\",\"maxLength\":200},\"children\":"
    "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"v\",\"children\"]}}}",
    "{\"properties\":{\"id\":{\"type\":\"integer\"}},\"patternProperties\":{\"^x-[a-z]+$\":{\"type\":\"string\"},\"_at$\":{\"format\":\"date\"}},"
    "\"propertyNames\":{\"maxLength\":20},\"additionalProperties\":{\"type\":\"boolean\"}}",
};

static void check(mn_status status) {
    if (status == MN_OK) return;
    fprintf(stderr, "bench_constraint: %s\n", mn_last_error());
    exit(1);
}

static double microseconds(void) {
    return 1e6 * seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static int32_t random_bit(const uint64_t *mask, size_t vocab, uint64_t *seed) {
    size_t start = (size_t)(random_bits(11, 0, ++*seed) % vocab);
    for (size_t i = 0; i < vocab; i++) {
        size_t id = (start + i) % vocab;
        if (mask[id / 64] >> id % 64 & 1) return (int32_t)id;
    }
    return -1;
}

typedef struct times {
    double fresh, slowest, known; /* microseconds: sum and maximum of calls with a new mask; sum of the others */
    size_t n_fresh, n_known;
} times;

static void walk(constraint *c, size_t vocab, const int32_t *ends, size_t n_ends, uint64_t seed, times *t) {
    int32_t ids[STEPS];
    size_t n = 0;
    for (bool ended = false; n < STEPS && !ended; n++) {
        const uint64_t *mask;
        size_t before = constraint_measure(c).masks;
        double start = microseconds();
        check(constraint_allow(c, ids, n, &mask));
        double time = microseconds() - start;
        if (constraint_measure(c).masks > before) {
            t->fresh += time;
            t->n_fresh++;
            if (time > t->slowest) t->slowest = time;
        } else {
            t->known += time;
            t->n_known++;
        }
        ids[n] = random_bit(mask, vocab, &seed);
        for (size_t i = 0; i < n_ends; i++) ended |= ids[n] == ends[i];
    }
}

static bool measure(const char *name, bool is_schema, const tokenizer *text) {
    constraint *c = NULL;
    json_doc *doc = NULL;
    size_t n_ends, vocab = tokenizer_size(text);
    const int32_t *ends = tokenizer_end_ids(text, &n_ends);
    if (is_schema) check(json_parse(&doc, name, strlen(name), JSON_STRICT, "schema"));
    times t = {0};
    double start = microseconds();
    if (is_schema) {
        check(constraint_open_schema(&c, json_root(doc), text, ends, n_ends, vocab));
    } else {
        check(constraint_open_regex(&c, name, strlen(name), text, ends, n_ends, vocab));
    }
    double compile = microseconds() - start;
    for (uint64_t k = 0; k < 2 * WALKS; k++) walk(c, vocab, ends, n_ends, k / 2 * 1000, &t);
    constraint_size size = constraint_measure(c);
    double fresh = t.n_fresh ? t.fresh / (double)t.n_fresh : 0;
    printf("%-44.44s %8.0f %6zu %8.1f %8.1f %8.2f %7zu %7zu %6.1f\n", name, compile, t.n_fresh, fresh, t.slowest,
           t.n_known ? t.known / (double)t.n_known : 0, size.nodes, size.states, (double)size.bytes / 1048576);
    constraint_close(&c);
    json_close(&doc);
    return fresh <= 1000;
}

int main(int argc, char **argv) {
    tokenizer *text = NULL;
    bool fast = true;
    if (argc != 2) {
        fprintf(stderr, "usage: bench_constraint TOKENIZER\n");
        return 2;
    }
    check(tokenizer_open(&text, argv[1]));
    printf("%zu tokens; microseconds of CPU time\n%-44s %8s %6s %8s %8s %8s %7s %7s %6s\n", tokenizer_size(text),
           "constraint", "compile", "masks", "a mask", "slowest", "known", "nodes", "states", "MiB");
    for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++) fast &= measure(regexes[i], false, text);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) fast &= measure(schemas[i], true, text);
    tokenizer_close(&text);
    return !fast;
}
