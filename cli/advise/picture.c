/* Two plots as SVG: divergence from dynamic against memory, and speed against depth. Each cache has a number and a
 * colour, and a line of the key below. Only numbers and names of caches are written, none of which needs escaping.
 * SPDX-License-Identifier: Apache-2.0 */
#include "advise/advise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/figures.h"

enum {
    WIDTH = 1120,
    TOP = 70,
    BOTTOM = 430, /* of both plots */
    LEFT_BEGIN = 90,
    LEFT_END = 530,
    RIGHT_BEGIN = 640,
    RIGHT_END = 1060,
    ZERO_BAND = 40, /* below a logarithmic axis, where 0 is */
    KEY_TOP = 510,
    KEY_LINE = 22,
    LABEL_HEIGHT = 15,
    MOST_BOXES = 4 * LISTED_CACHES,
};

static const char *const colours[] = {"#1f618d", "#c0392b", "#1e8449", "#7d3c98", "#b9770e",
                                      "#117a65", "#d81b60", "#5d4037", "#2e4053"};

static const char *colour_of(int i) {
    return colours[(size_t)i % (sizeof colours / sizeof *colours)];
}

/* Values from low to high on the way from `first` to `last`. */
typedef struct axis {
    double low, high, first, last;
    bool is_log;
} axis;

static double place(const axis *x, double value) {
    double low = x->low, high = x->high;
    if (x->is_log) {
        low = log10(low);
        high = log10(high);
        value = log10(value);
    }
    return x->first + (value - low) / (high - low) * (x->last - x->first);
}

static void put_label(bytes *b, double x, double y, const char *anchor, const char *colour, const char *text) {
    bytes_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y, anchor, colour,
                 text);
}

/* 1, 2 or 5 times a power of ten: about six steps up to that value. */
static double step_to(double most) {
    double power = pow(10, floor(log10(most / 6))), share = most / 6 / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

static void put_line_at(bytes *b, bool is_upright, double at, double begin, double end) {
    bytes_printf(b,
                 is_upright ? "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#e4e4e4\"/>\n"
                            : "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#e4e4e4\"/>\n",
                 is_upright ? at : begin, is_upright ? begin : at, end);
}

/* Grid lines with their values; `axis` is made to end at one of them. */
static void put_linear(bytes *b, axis *x, bool is_upright, double begin, double end) {
    char text[FIGURE];
    const double step = step_to(x->high);
    x->high = ceil(x->high / step) * step;
    for (int i = 0; i * step <= x->high * 1.0001; i++) {
        const double at = place(x, i * step);
        put_line_at(b, is_upright, at, begin, end);
        snprintf(text, sizeof text, "%.12g", i * step);
        if (is_upright) put_label(b, at, BOTTOM + 20, "middle", "#000000", text);
        if (!is_upright) put_label(b, begin - 8, at + 5, "end", "#000000", text);
    }
}

static void put_titles(bytes *b, double begin, double end, const char *title, const char *x, const char *y) {
    const double middle = (begin + end) / 2;
    bytes_printf(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-size=\"15\">%s</text>\n", middle, TOP - 20,
                 title);
    put_label(b, middle, BOTTOM + 46, "middle", "#000000", x);
    bytes_printf(b, "<text transform=\"translate(%.1f %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n", begin - 62,
                 (TOP + BOTTOM) / 2, y);
}

/* ---- quality against memory ---- */

typedef struct box {
    double left, top, right, bottom;
} box;

typedef struct boxes {
    box list[MOST_BOXES];
    int n;
} boxes;

static bool is_free(const boxes *taken, box a) {
    if (a.left < LEFT_BEGIN || a.right > LEFT_END + 40 || a.top < TOP - 12 || a.bottom > BOTTOM) return false;
    for (int i = 0; i < taken->n; i++) {
        const box *c = &taken->list[i];
        if (a.left < c->right && c->left < a.right && a.top < c->bottom && c->top < a.bottom) return false;
    }
    return true;
}

/* Writes a number beside a mark where nothing else is: in circles around it, each wider than the last. */
static void put_number(bytes *b, boxes *taken, double x, double y, int number) {
    enum { RINGS = 12, DIRECTIONS = 12 };
    const double half = number < 10 ? 5.5 : 9.5, height = LABEL_HEIGHT / 2.0;
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    for (int k = 0; k < RINGS * DIRECTIONS; k++) {
        const int circle = k / DIRECTIONS;
        const double angle = (k % DIRECTIONS) * 6.283185307 / DIRECTIONS, radius = 16 + 9.0 * circle;
        const double at = x + radius * cos(angle), level = y - radius * sin(angle);
        const box a = {at - half, level - height, at + half, level + height};
        if (!is_free(taken, a)) continue;
        if (circle > 0)
            bytes_printf(b, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#909090\" stroke-width=\"0.7\"/>\n", x, y,
                         x + (radius - 9) * cos(angle), y - (radius - 9) * sin(angle));
        put_label(b, at, level + 5, "middle", colour_of(number - 1), text);
        if (taken->n < MOST_BOXES) taken->list[taken->n++] = a;
        return;
    }
}

/* Decades that contain all divergences above 0; false: there are none. */
static bool decades(const advice *a, axis *y) {
    double low = INFINITY, high = 0;
    for (int i = 0; i < a->n; i++) {
        const double kl = advised_divergence(a, &a->caches[i]);
        if (kl > 0) low = fmin(low, kl);
        if (kl > 0) high = fmax(high, kl);
    }
    *y = (axis){0.1, 1, BOTTOM - ZERO_BAND, TOP, true};
    if (high == 0) return false;
    y->low = pow(10, floor(log10(low)));
    y->high = pow(10, floor(log10(high)) + 1);
    return true;
}

static double level_of(const axis *y, double kl) {
    return kl > 0 ? place(y, kl) : BOTTOM - ZERO_BAND / 2.0;
}

static void put_decades(bytes *b, const axis *y) {
    char text[FIGURE];
    const int low = (int)lround(log10(y->low)), high = (int)lround(log10(y->high)), step = (high - low + 7) / 8;
    for (int decade = low; decade <= high; decade += step) {
        const double value = pow(10, decade);
        put_line_at(b, false, place(y, value), LEFT_BEGIN, LEFT_END);
        snprintf(text, sizeof text, "%.0e", value);
        if (value >= 0.00009 && value < 1000) snprintf(text, sizeof text, "%g", value);
        put_label(b, LEFT_BEGIN - 8, place(y, value) + 5, "end", "#000000", text);
    }
    put_line_at(b, false, level_of(y, 0), LEFT_BEGIN, LEFT_END);
    put_label(b, LEFT_BEGIN - 8, level_of(y, 0) + 5, "end", "#000000", "0");
}

static void put_quality(bytes *b, const advice *a) {
    static const struct {
        double bytes;
        const char *name;
    } units[] = {{0x1p30, "peak memory, GiB"}, {0x1p20, "peak memory, MiB"}, {0x1p10, "peak memory, KiB"}};
    axis x = {.first = LEFT_BEGIN, .last = LEFT_END}, y;
    boxes taken = {.n = 0};
    int unit = 0;
    for (int i = 0; i < a->n; i++)
        if (advised_divergence(a, &a->caches[i]) >= 0) x.high = fmax(x.high, (double)a->caches[i].peak_bytes);
    while (unit < 2 && x.high < 10 * units[unit].bytes) unit++;
    x.high = fmax(x.high / units[unit].bytes, 1);
    put_titles(b, LEFT_BEGIN, LEFT_END, "Divergence from dynamic against memory", units[unit].name,
               "KL divergence, nats a token");
    if (decades(a, &y)) {
        put_decades(b, &y);
    } else {
        put_line_at(b, false, level_of(&y, 0), LEFT_BEGIN, LEFT_END);
        put_label(b, LEFT_BEGIN - 8, level_of(&y, 0) + 5, "end", "#000000", "0");
    }
    put_linear(b, &x, true, TOP, BOTTOM);
    for (int pass = 0; pass < 2; pass++) { /* marks, then their numbers */
        for (int i = 0; i < a->n; i++) {
            const advised_cache *k = &a->caches[i];
            const double kl = advised_divergence(a, k);
            if (!(kl >= 0)) continue;
            const double at = place(&x, (double)k->peak_bytes / units[unit].bytes), level = level_of(&y, kl);
            if (pass == 1) put_number(b, &taken, at, level, i + 1);
            if (pass == 1) continue;
            bytes_printf(
                b,
                "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"%s\" fill-opacity=\"%s\" stroke=\"%s\" "
                "stroke-width=\"2\"><title>%s %s: %llu bytes, %.3g nats</title></circle>\n",
                at, level, colour_of(i), k->is_on_front ? "1" : "0", colour_of(i), k->is.name, k->is.config,
                (unsigned long long)k->peak_bytes, kl);
            taken.list[taken.n++] = (box){at - 7, level - 7, at + 7, level + 7};
        }
    }
}

/* ---- speed against depth ---- */

/* Moves labels apart that are closer than a line, from the lowest up and back. */
static void spread(double *levels, const int *order, int n) {
    for (int i = 1; i < n; i++) levels[order[i]] = fmin(levels[order[i]], levels[order[i - 1]] - LABEL_HEIGHT);
    double least = TOP - 6;
    for (int i = n - 1; i >= 0; i--) {
        levels[order[i]] = fmax(levels[order[i]], least);
        least = levels[order[i]] + LABEL_HEIGHT;
    }
}

/* Numbers at the right, each tied to the end of its line. */
static void put_ends(bytes *b, const advice *a, double end, const axis *y) {
    double levels[LISTED_CACHES];
    int order[LISTED_CACHES], n = 0;
    for (int i = 0; i < a->n; i++) {
        if (!a->caches[i].is_measured) continue;
        levels[i] = place(y, advised_speed(a, &a->caches[i]));
        int at = n++;
        for (; at > 0 && levels[order[at - 1]] < levels[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    spread(levels, order, n);
    for (int k = 0; k < n; k++) {
        char text[16];
        const int i = order[k];
        snprintf(text, sizeof text, "%d", i + 1);
        bytes_printf(b, "<path d=\"M%.1f %.1fL%d %.1f\" stroke=\"%s\" stroke-width=\"0.7\"/>\n", end,
                     place(y, advised_speed(a, &a->caches[i])), RIGHT_END + 22, levels[i], colour_of(i));
        put_label(b, RIGHT_END + 26, levels[i] + 5, "start", colour_of(i), text);
    }
}

static void put_speed(bytes *b, const advice *a) {
    const compared_text *t = &a->t;
    axis y = {.first = BOTTOM, .last = TOP},
         x = {0, (double)segment_depth(&t->segments[t->n_segments - 1]), RIGHT_BEGIN, RIGHT_END, false};
    for (int i = 0; i < a->n; i++)
        for (int k = 0; a->caches[i].is_measured && k < t->n_segments; k++)
            y.high = fmax(y.high, 1e3 / a->caches[i].m.median_ms[k]);
    put_titles(b, RIGHT_BEGIN, RIGHT_END, "Speed against depth", "tokens in the cache", "tokens a second, one row");
    const double deepest = x.high;
    put_linear(b, &x, true, TOP, BOTTOM);
    x = (axis){0, deepest, RIGHT_BEGIN, place(&x, deepest), false};
    put_linear(b, &y, false, RIGHT_BEGIN, RIGHT_END);
    for (int i = 0; i < a->n; i++) {
        const advised_cache *k = &a->caches[i];
        if (!k->is_measured) continue;
        bytes_printf(b, "<polyline class=\"speed\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                     colour_of(i));
        for (int s = 0; s < t->n_segments; s++)
            bytes_printf(b, "%.1f,%.1f ", place(&x, (double)segment_depth(&t->segments[s])),
                         place(&y, 1e3 / k->m.median_ms[s]));
        bytes_append_text(b, "\"/>\n");
        for (int s = 0; s < t->n_segments; s++)
            bytes_printf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                         place(&x, (double)segment_depth(&t->segments[s])), place(&y, 1e3 / k->m.median_ms[s]),
                         colour_of(i));
    }
    put_ends(b, a, place(&x, deepest), &y);
}

/* ---- all of it ---- */

static void put_key(bytes *b, const advice *a, int i, int line) {
    const advised_cache *k = &a->caches[i];
    const int left = line % 2 ? RIGHT_BEGIN - 80 : LEFT_BEGIN - 60, y = KEY_TOP + KEY_LINE * (line / 2);
    bytes_printf(
        b, "<circle cx=\"%d\" cy=\"%d\" r=\"5\" fill=\"%s\" fill-opacity=\"%s\" stroke=\"%s\" stroke-width=\"2\"/>\n",
        left, y - 5, colour_of(i), k->is_on_front ? "1" : "0", colour_of(i));
    bytes_printf(b, "<text x=\"%d\" y=\"%d\" font-size=\"13\">%d  %s %s%s</text>\n", left + 12, y, i + 1, k->is.name,
                 k->is.config, i == a->recommended ? " (recommended)" : "");
}

void advise_put_picture(bytes *b, const advice *a) {
    char memory[FIGURE];
    int lines = 0;
    for (int i = 0; i < a->n; i++) lines += a->caches[i].is_measured;
    figure_size(memory, a->memory);
    bytes_printf(
        b,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"14\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
        WIDTH, KEY_TOP + KEY_LINE * ((lines + 1) / 2) + 24, WIDTH, KEY_TOP + KEY_LINE * ((lines + 1) / 2) + 24);
    bytes_printf(
        b, "<text x=\"%d\" y=\"26\" text-anchor=\"middle\" font-size=\"17\">Caches for %lld tokens in %s%s</text>\n",
        WIDTH / 2, (long long)a->context, memory, a->n_measured ? "" : ": nothing was measured");
    if (a->n_measured) {
        put_quality(b, a);
        put_speed(b, a);
        for (int i = 0, line = 0; i < a->n; i++)
            if (a->caches[i].is_measured) put_key(b, a, i, line++);
        bytes_printf(
            b,
            "<text x=\"%d\" y=\"%d\" font-size=\"13\">filled: on the Pareto front of memory, divergence and speed</text>\n",
            LEFT_BEGIN - 72, KEY_TOP + KEY_LINE * ((lines + 1) / 2) + 8);
    }
    bytes_append_text(b, "</svg>\n");
}
