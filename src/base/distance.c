/* SPDX-License-Identifier: Apache-2.0 */
#include "base/distance.h"

#include <string.h>

#include "base/mem.h"

size_t text_distance(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t row[DISTANCE_LONGEST + 1]; /* of the table of distances between beginnings of a and b */
    if (n_a > DISTANCE_LONGEST || n_b > DISTANCE_LONGEST) return DISTANCE_LONGEST;
    for (size_t j = 0; j <= n_b; j++) row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = corner + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[n_b];
}

const char *text_nearest(const char *text, const char *const *names) {
    const char *nearest = NULL;
    size_t n = strlen(text), best = n / 2 + 1;
    for (; *names; names++) {
        size_t distance = text_distance(text, n, *names, strlen(*names));
        if (n >= 3 && strncmp(text, *names, n) == 0 && distance > 1) distance = 1; /* a cut name */
        if (distance < best) {
            best = distance;
            nearest = *names;
        }
    }
    return nearest;
}

mn_status text_unknown(const char *what, const char *name, size_t n, const char *const *names, const char *rest) {
    char text[DISTANCE_LONGEST + 1];
    bytes all = {0};
    size_t shown = n < sizeof text - 1 ? n : sizeof text - 1;
    memcpy(text, name, shown);
    text[shown] = 0;
    for (const char *const *other = names; *other; other++) bytes_printf(&all, other == names ? "%s" : ", %s", *other);
    const char *near = text_nearest(text, names);
    mn_status status = status_fail(MN_E_ARG, "%s '%s'%s%s%s; allowed: %s%s", what, text, near ? "; did you mean " : "",
                                   near ? near : "", near ? "?" : "", bytes_text(&all), rest);
    bytes_clear(&all);
    return status;
}
