/* A strict reader of Prometheus' text format 0.0.4: types before samples, the samples of a metric together behind one
 * line of help and one of type, no sample or label twice, histograms that are whole.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_PROMETHEUS_H
#define TESTS_SERVE_PROMETHEUS_H

#include <ctype.h>
#include <math.h>

#include "support/support.h"

enum { MOST_FAMILIES = 64, MOST_SAMPLES = 512 };

typedef struct family {
    char name[96], type[16];
} family;

typedef struct sample {
    char name[96], labels[160]; /* as written, without braces */
    double value;
    int family;
} sample;

typedef struct scrape {
    family families[MOST_FAMILIES];
    sample samples[MOST_SAMPLES];
    int n_families, n_samples;
    char helped[96]; /* the name of the last help, whose type comes next; "": of none */
} scrape;

static inline size_t name_length(const char *s) {
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_' || s[n] == ':') n++;
    return n > 0 && !isdigit((unsigned char)s[0]) ? n : 0;
}

/* name="value",...; returns what follows the closing brace. */
static inline const char *check_labels(const char *s) {
    enum { MOST_LABELS = 4 };
    char names[MOST_LABELS][32];
    for (int n_labels = 0;; n_labels++) {
        size_t n = name_length(s);
        assert_true(n > 0 && n < sizeof names[0] && n_labels < MOST_LABELS && !memchr(s, ':', n));
        snprintf(names[n_labels], sizeof names[0], "%.*s", (int)n, s);
        for (int i = 0; i < n_labels; i++) assert_string_not_equal(names[i], names[n_labels]);
        s += n;
        assert_memory_equal(s, "=\"", 2);
        for (s += 2; *s != '"'; s++) {
            assert_true(*s && *s != '\n');
            if (*s == '\\') assert_true(*++s && strchr("\\\"n", *s));
        }
        s++;
        if (*s == '}') return s + 1;
        assert_int_equal(*s++, ',');
    }
}

static inline bool ends_with(const char *s, const char *end) {
    return strlen(s) >= strlen(end) && strcmp(s + strlen(s) - strlen(end), end) == 0;
}

/* Whether a sample of this name belongs to the family. */
static inline bool is_of(const family *f, const char *name) {
    size_t n = strlen(f->name);
    if (strncmp(f->name, name, n) != 0) return false;
    if (strcmp(f->type, "histogram") != 0) return name[n] == 0;
    return strcmp(name + n, "_bucket") == 0 || strcmp(name + n, "_sum") == 0 || strcmp(name + n, "_count") == 0;
}

static inline void read_comment(scrape *s, const char *line) {
    char kind[8], name[96], rest[16];
    assert_int_equal(sscanf(line, "# %7s %95s %15s", kind, name, rest), 3);
    if (strcmp(kind, "HELP") == 0) {
        assert_string_equal(s->helped, "");
        snprintf(s->helped, sizeof s->helped, "%s", name);
        for (const char *c = strchr(line, '\\'); c; c = strchr(c + 2, '\\')) assert_true(c[1] == '\\' || c[1] == 'n');
        return;
    }
    assert_string_equal(kind, "TYPE");
    assert_string_equal(s->helped, name);
    s->helped[0] = 0;
    assert_true(name_length(name) == strlen(name) && s->n_families < MOST_FAMILIES);
    for (int i = 0; i < s->n_families; i++) assert_string_not_equal(s->families[i].name, name);
    assert_true(strcmp(rest, "counter") == 0 || strcmp(rest, "gauge") == 0 || strcmp(rest, "histogram") == 0);
    if (strcmp(rest, "counter") == 0) assert_true(ends_with(name, "_total"));
    family *f = &s->families[s->n_families++];
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->type, sizeof f->type, "%s", rest);
}

static inline void read_sample(scrape *s, const char *line) {
    size_t n = name_length(line);
    assert_true(n > 0 && s->n_samples < MOST_SAMPLES && s->n_families > 0 && !s->helped[0]);
    sample *x = &s->samples[s->n_samples];
    const char *after = line + n;
    snprintf(x->name, sizeof x->name, "%.*s", (int)n, line);
    x->labels[0] = 0;
    if (*after == '{') {
        const char *end = check_labels(after + 1);
        snprintf(x->labels, sizeof x->labels, "%.*s", (int)(end - after) - 2, after + 1);
        after = end;
    }
    assert_int_equal(*after, ' ');
    char *end;
    x->value = strtod(after + 1, &end);
    if (end == after + 1 || *end) fail_msg("no number: %s", line);
    assert_true(isfinite(x->value));
    x->family = s->n_families - 1; /* the samples of a family follow its type */
    if (!is_of(&s->families[x->family], x->name)) fail_msg("%s has no type before it", x->name);
    for (int i = 0; i < s->n_samples; i++) {
        if (strcmp(s->samples[i].name, x->name) == 0 && strcmp(s->samples[i].labels, x->labels) == 0)
            fail_msg("twice: %s", line);
    }
    s->n_samples++;
}

static inline double value_of(const scrape *s, const char *name, const char *label) {
    for (int i = 0; i < s->n_samples; i++) {
        if (strcmp(s->samples[i].name, name) == 0 && strstr(s->samples[i].labels, label)) return s->samples[i].value;
    }
    fail_msg("there is no %s with %s", name, label);
    return 0;
}

static inline void check_histogram(const scrape *s, int f) {
    char name[128];
    double bound = -INFINITY, count = 0;
    bool is_whole = false;
    snprintf(name, sizeof name, "%s_bucket", s->families[f].name);
    for (int i = 0; i < s->n_samples; i++) {
        const sample *x = &s->samples[i];
        if (strcmp(x->name, name) != 0) continue;
        const char *le = strstr(x->labels, "le=\"");
        assert_non_null(le);
        double to = strtod(le + 4, NULL); /* "+Inf" too */
        assert_true(to > bound && x->value >= count && x->value == floor(x->value));
        bound = to;
        count = x->value;
        is_whole = isinf(to);
    }
    assert_true(is_whole);
    snprintf(name, sizeof name, "%s_count", s->families[f].name);
    assert_true(value_of(s, name, "") == count);
    snprintf(name, sizeof name, "%s_sum", s->families[f].name);
    double sum = value_of(s, name, "");
    assert_true(sum >= 0 && (count > 0 || sum == 0));
}

static inline void scrape_read(scrape *s, const char *text) {
    memset(s, 0, sizeof *s);
    for (const char *at = text; *at;) {
        char line[512];
        const char *end = strchr(at, '\n');
        assert_non_null(end);
        assert_true((size_t)(end - at) < sizeof line);
        snprintf(line, sizeof line, "%.*s", (int)(end - at), at);
        if (line[0] == '#')
            read_comment(s, line);
        else
            read_sample(s, line);
        at = end + 1;
    }
    for (int f = 0; f < s->n_families; f++) {
        int n = 0;
        for (int i = 0; i < s->n_samples; i++) n += s->samples[i].family == f;
        assert_true(n > 0);
        if (strcmp(s->families[f].type, "histogram") == 0) check_histogram(s, f);
    }
}

/* What only grows has not fallen, and nothing has gone. */
static inline void scrape_follows(const scrape *later, const scrape *before) {
    assert_int_equal(later->n_samples, before->n_samples);
    for (int i = 0; i < before->n_samples; i++) {
        const sample *a = &before->samples[i], *b = &later->samples[i];
        assert_string_equal(a->name, b->name);
        assert_string_equal(a->labels, b->labels);
        if (strcmp(before->families[a->family].type, "gauge") != 0 && b->value < a->value)
            fail_msg("%s{%s} fell from %g to %g", a->name, a->labels, a->value, b->value);
    }
}

#endif
