/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits/warpers.h"

#include <math.h>
#include <string.h>

#include "gen/logits/scores.h"

mn_status shortlist_open(shortlist *list, size_t vocab, size_t min_keep) {
    *list = (shortlist){.min_keep = min_keep};
    list->own_values = mem_alloc_raw(vocab, sizeof *list->own_values);
    list->ids = mem_alloc_raw(vocab, sizeof *list->ids);
    list->keys = mem_alloc_raw(vocab, sizeof *list->keys);
    list->weights = mem_alloc_raw(vocab, sizeof *list->weights);
    list->positions = mem_alloc_raw(vocab, sizeof *list->positions);
    if (list->own_values && list->ids && list->keys && list->weights && list->positions) return MN_OK;
    shortlist_close(list);
    return MN_E_NOMEM;
}

void shortlist_close(shortlist *list) {
    mem_free(list->own_values);
    mem_free(list->ids);
    mem_free(list->keys);
    mem_free(list->weights);
    mem_free(list->positions);
    *list = (shortlist){0};
}

/* Infinite scores have equal parts of the distribution, and the others none. */
static void tame(float *values, size_t n) {
    if (scores_max(values, n) < INFINITY) return;
    for (size_t i = 0; i < n; i++) values[i] = values[i] == INFINITY ? 0.0f : -INFINITY;
}

void shortlist_begin(shortlist *list, float *scores, size_t n) {
    for (size_t i = 0; i < n; i++) scores[i] = isnan(scores[i]) ? -INFINITY : scores[i];
    tame(scores, n);
    list->values = scores;
    list->n = n;
    list->is_whole = true;
}

void shortlist_end(shortlist *list, float *scores, size_t n) {
    if (list->is_whole) return;
    for (size_t i = 0; i < n; i++) scores[i] = -INFINITY;
    for (size_t i = 0; i < list->n; i++) scores[list->ids[i]] = list->values[i];
}

/* ---- which tokens stay ---- */

/* The last kept token in order of (key, position), smallest first. */
typedef struct boundary {
    float key;
    size_t position;
} boundary;

static bool is_later(boundary a, boundary b) {
    return a.key > b.key || (a.key == b.key && a.position > b.position);
}

/* The list is now the first n that were moved to the front of own_values and ids. */
static void become(shortlist *list, size_t n) {
    list->n = n;
    list->values = list->own_values;
    list->is_whole = false;
}

/* Keeps tokens whose list->keys are up to the boundary. */
static void keep_until(shortlist *list, boundary last) {
    const float *keys = list->keys;
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        float value = list->values[i];
        list->own_values[n] = value;
        list->ids[n] = list->is_whole ? (uint32_t)i : list->ids[i];
        n += (keys[i] < last.key) | ((keys[i] == last.key) & (i <= last.position));
    }
    become(list, n);
}

/* Keeps what is at least `least`, which is at most the largest. */
static void keep_from(shortlist *list, float least) {
    enum { BLOCK = 32 };
    size_t n = 0;
    for (size_t begin = 0; begin < list->n; begin += BLOCK) {
        size_t end = list->n - begin < BLOCK ? list->n : begin + BLOCK;
        if (scores_max(list->values + begin, end - begin) < least) continue;
        for (size_t i = begin; i < end; i++) {
            float value = list->values[i];
            list->own_values[n] = value;
            list->ids[n] = list->is_whole ? (uint32_t)i : list->ids[i];
            n += value >= least;
        }
    }
    become(list, n);
}

/* ---- selection ---- */

/* Candidates for the boundary: keys, weights (NULL: 1 each) and positions. */
typedef struct selection {
    float *keys, *weights;
    uint32_t *positions; /* meaningful once `gathered` */
    size_t n;
    bool gathered;
    double before; /* weight of all tokens before these */
} selection;

enum { BUCKETS = 1024, FEW = 48, PIECE = 512 };

/* How keys are spread over buckets: the lowest is in the first, infinite ones are alone in the last. Quarters, because
 * the difference of two floats may be none. */
typedef struct spread {
    float base, scale;
} spread;

static void find_buckets(int32_t *buckets, const float *keys, size_t n, spread by) {
    for (size_t i = 0; i < n; i++) {
        float at = (keys[i] * 0.25f - by.base) * by.scale;
        buckets[i] = (int32_t)(at < BUCKETS - 1 ? at : BUCKETS - 1);
    }
}

static double weight_at(const selection *s, size_t i) {
    return s->weights ? (double)s->weights[i] : 1;
}

static uint32_t position_at(const selection *s, size_t i) {
    return s->gathered ? s->positions[i] : (uint32_t)i;
}

static void move_selected(selection *s, size_t to, float key, float weight, uint32_t position) {
    s->keys[to] = key;
    s->positions[to] = position;
    if (s->weights) s->weights[to] = weight;
}

/* False when the keys are equal, or too close to be separated. */
static bool find_spread(const selection *s, spread *by) {
    float least, most;
    scores_range(s->keys, s->n, &least, &most);
    if (least == INFINITY) return false;
    if (most == least) { /* and perhaps infinite ones, which go into the last bucket */
        *by = (spread){least * 0.25f, 1};
        return scores_max(s->keys, s->n) == INFINITY;
    }
    *by = (spread){least * 0.25f, (BUCKETS - 2) / (most * 0.25f - least * 0.25f)};
    return by->scale < INFINITY;
}

/* Insertion sort by (key, position): for a few keys, or many nearly equal ones that are in order already. */
static void sort_selection(selection *s) {
    for (size_t i = 0; i < s->n; i++) {
        bool is_few = s->n <= FEW;
        float key = s->keys[i], weight = (float)weight_at(s, i);
        uint32_t position = position_at(s, i);
        size_t at = i;
        for (; is_few && at > 0 && s->keys[at - 1] > key; at--)
            move_selected(s, at, s->keys[at - 1], (float)weight_at(s, at - 1), s->positions[at - 1]);
        move_selected(s, at, key, weight, position);
    }
    s->gathered = true;
}

/* Weights of the buckets. */
static void fill_histogram(const selection *s, spread by, double *sums) {
    int32_t buckets[PIECE];
    for (size_t begin = 0; begin < s->n; begin += PIECE) {
        size_t n = s->n - begin < PIECE ? s->n - begin : PIECE;
        find_buckets(buckets, s->keys + begin, n, by);
        for (size_t i = 0; i < n; i++) sums[buckets[i]] += weight_at(s, begin + i);
    }
}

static void gather_bucket(selection *s, spread by, int32_t bucket) {
    int32_t buckets[PIECE];
    size_t n_left = 0;
    for (size_t begin = 0; begin < s->n; begin += PIECE) {
        size_t n = s->n - begin < PIECE ? s->n - begin : PIECE;
        find_buckets(buckets, s->keys + begin, n, by);
        for (size_t i = 0; i < n; i++) {
            move_selected(s, n_left, s->keys[begin + i], (float)weight_at(s, begin + i), position_at(s, begin + i));
            n_left += buckets[i] == bucket;
        }
    }
    s->n = n_left;
    s->gathered = true;
}

/* The last token that stays when those stay before which, in order, there is less than `mass`; the first token always
 * does. Uses up what `s` points to. A histogram of the keys shows in which of its buckets that is, another one where in
 * that bucket; a few are sorted. A bucket is a thousandth as wide as the range of its keys, which bounds the levels. */
static boundary find_boundary(selection *s, double mass) {
    spread by;
    while (s->n > FEW && find_spread(s, &by)) {
        double sums[BUCKETS] = {0};
        int32_t bucket = 0;
        fill_histogram(s, by, sums);
        while (bucket < BUCKETS && s->before + sums[bucket] < mass) s->before += sums[bucket++];
        if (bucket == BUCKETS) return (boundary){INFINITY, SIZE_MAX};
        gather_bucket(s, by, bucket);
    }
    sort_selection(s);
    size_t last = 0;
    double before = s->before + weight_at(s, 0);
    while (last + 1 < s->n && before < mass) before += weight_at(s, ++last);
    return (boundary){s->keys[last], s->positions[last]};
}

static boundary boundary_by_mass(shortlist *list, double mass) {
    selection s = {list->keys, list->weights, list->positions, list->n, false, 0};
    return find_boundary(&s, mass);
}

/* The k-th by list->keys[0..n), k from 1 to n. */
static boundary boundary_by_rank(shortlist *list, size_t n, size_t k) {
    selection s = {list->keys, NULL, list->positions, n, false, 0};
    return find_boundary(&s, (double)k);
}

/* What list->keys are: how far values are below 0, or how far from a centre. */
typedef struct ranking {
    bool by_distance;
    float centre;
} ranking;

static const ranking by_value = {false, 0};

static void order(shortlist *list, ranking by) {
    for (size_t i = 0; i < list->n; i++)
        list->keys[i] = by.by_distance ? fabsf(by.centre - list->values[i]) : -list->values[i];
}

/* The last token that min_keep keeps whatever its weight; overwrites the keys. */
static boundary last_to_keep(shortlist *list) {
    return boundary_by_rank(list, list->n, list->min_keep < list->n ? list->min_keep : list->n);
}

/* Keeps tokens up to the boundary, and at least min_keep. */
static void keep_ranked(shortlist *list, ranking by, boundary last) {
    if (list->min_keep > 1) {
        order(list, by);
        boundary least = last_to_keep(list);
        if (is_later(least, last)) last = least;
    }
    order(list, by);
    keep_until(list, last);
}

/* ---- the warpers ---- */

/* list->weights become exp(value - max). False where everything is removed. */
static bool weigh(shortlist *list, float *max, double *sum) {
    *max = scores_max(list->values, list->n);
    if (!(*max > -INFINITY)) return false;
    *sum = scores_exp(list->weights, list->values, list->n, *max);
    return true;
}

/* Entropy of the distribution, in nats; after weigh. */
static double entropy(const shortlist *list, float max, double sum) {
    enum { SIDE = 16 };
    double side[SIDE] = {0}, total = 0;
    for (size_t i = 0; i < list->n; i++) {
        float below = list->weights[i] > 0 ? list->values[i] - max : 0.0f;
        side[i % SIDE] += (double)(list->weights[i] * below);
    }
    for (size_t j = 0; j < SIDE; j++) total += side[j];
    return log(sum) - total / sum;
}

void warp_temperature(shortlist *list, double temperature) {
    float divisor = (float)temperature;
    for (size_t i = 0; i < list->n; i++) list->values[i] /= divisor;
    tame(list->values, list->n);
}

/* A score that the k-th best, k from 1 to list->n, is not below. There are k blocks whose best is at least the k-th
 * best of the blocks' best ones, so that many tokens are at least as good, and few blocks have more to search. */
static float below_kth(shortlist *list, size_t k) {
    enum { BLOCK = 32 };
    size_t n_blocks = (list->n + BLOCK - 1) / BLOCK;
    if (k > n_blocks / 2) return -INFINITY;
    for (size_t b = 0; b < n_blocks; b++) {
        size_t begin = b * BLOCK, n = list->n - begin < BLOCK ? list->n - begin : BLOCK;
        list->keys[b] = -scores_max(list->values + begin, n);
    }
    return -boundary_by_rank(list, n_blocks, k).key;
}

void warp_top_k(shortlist *list, size_t k) {
    if (k < list->min_keep) k = list->min_keep;
    if (k >= list->n) return;
    keep_from(list, below_kth(list, k));
    if (k >= list->n) return;
    order(list, by_value);
    keep_from(list, -boundary_by_rank(list, list->n, k).key);
}

/* Removes what is below `least` and not among the min_keep best, so that fewer tokens have to be searched. */
static void prune(shortlist *list, double least) {
    float best = list->min_keep < list->n ? below_kth(list, list->min_keep) : -INFINITY;
    keep_from(list, least < (double)best ? (float)least : best);
}

/* Weights that are all below this add up to less than `share` of the sum, whichever they are. */
static double negligible(const shortlist *list, double share, double sum) {
    return 0.999 * share * sum / (double)list->n;
}

void warp_top_p(shortlist *list, double p) {
    float max;
    double sum, sum_of_left;
    if (!weigh(list, &max, &sum)) return;
    prune(list, (double)max + log(negligible(list, 1 - p, sum)));
    weigh(list, &max, &sum_of_left);
    order(list, by_value);
    keep_ranked(list, by_value, boundary_by_mass(list, p * sum));
}

void warp_min_p(shortlist *list, double share) {
    float least = (float)((double)scores_max(list->values, list->n) + log(share));
    if (list->min_keep == 1) {
        keep_from(list, least);
    } else {
        keep_ranked(list, by_value, (boundary){-least, SIZE_MAX});
    }
}

/* Keeps values from `least` up, and the min_keep best including ties. */
static void keep_from_at_least(shortlist *list, float least) {
    float best = scores_max(list->values, list->n);
    if (list->min_keep > 1) {
        order(list, by_value);
        best = -last_to_keep(list).key;
    }
    keep_from(list, least < best ? least : best);
}

void warp_epsilon(shortlist *list, double epsilon) {
    float max;
    double sum;
    if (weigh(list, &max, &sum)) keep_from_at_least(list, (float)((double)max + log(epsilon * sum)));
}

void warp_eta(shortlist *list, double epsilon) {
    float max;
    double sum;
    if (!weigh(list, &max, &sum)) return;
    double cut = fmin(epsilon, sqrt(epsilon) * exp(-entropy(list, max, sum)));
    keep_from_at_least(list, (float)((double)max + log(cut * sum)));
}

void warp_typical(shortlist *list, double p) {
    float max;
    double sum;
    if (!weigh(list, &max, &sum)) return;
    /* -log p_i - H, with p_i = exp(value - max) / sum. */
    double middle = (double)max + log(sum) - entropy(list, max, sum), sum_of_left;
    const ranking near = {true, (float)middle};
    /* Tokens farther below the centre than the best is above it are last in order, and together have little weight. */
    double least = fmin(log(negligible(list, 1 - p, sum)), 2 * (middle - (double)max) - 1);
    prune(list, (double)max + least);
    weigh(list, &max, &sum_of_left);
    order(list, near);
    boundary last = boundary_by_mass(list, p * sum);
    last.position = SIZE_MAX; /* ties are kept */
    keep_ranked(list, near, last);
}
