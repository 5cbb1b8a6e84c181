/* Coded streams: layout, packing, side data.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attend/codes.h"

#include <assert.h>
#include <math.h>

#include "kernels/attend/codes_tile.h"

/* ---- layout ---- */

static size_t padded(size_t n_bytes) {
    return (n_bytes + CODE_BLOCK - 1) / CODE_BLOCK * CODE_BLOCK;
}

static void add_run(code_layout *layout, int begin, int end, int bits) {
    assert(layout->n_runs < CODE_MAX_RUNS);
    code_run *run = layout->runs + layout->n_runs++;
    *run = (code_run){begin, end, bits, layout->bytes};
    size_t n_tiles = code_run_tiles(layout, run);
    for (int width = code_first_width(bits); width; width = code_next_width(bits, width)) {
        layout->bytes += code_plane_bytes(n_tiles, width);
    }
}

void code_layout_make(code_layout *layout, const code_shape *shape) {
    assert(shape->dim > 0 && shape->dim % CODE_LANES == 0);
    assert(shape->page_tokens > 0 && shape->page_tokens % CODE_LANES == 0);
    assert(shape->group > 0 && (shape->axis == CODE_TOKEN ? shape->dim : shape->page_tokens) % shape->group == 0);
    assert(shape->scale != CODE_SIDE_NONE && shape->shift != CODE_SIDE_LOG8 && shape->mean != CODE_SIDE_LOG8);
    assert(shape->is_key || (!shape->bits_of_dim && shape->mean == CODE_SIDE_NONE));
    *layout = (code_layout){.is_key = shape->is_key,
                            .dim = shape->dim,
                            .page_tokens = shape->page_tokens,
                            .group = shape->group,
                            .axis = shape->axis,
                            .grid = shape->grid,
                            .scale = shape->scale,
                            .shift = shape->shift,
                            .mean = shape->mean};
    size_t n_sides = (size_t)code_groups(layout) * (size_t)code_side_width(layout);
    layout->shift_offset = padded(n_sides * code_side_bytes(shape->scale));
    layout->mean_offset = layout->shift_offset + padded(n_sides * code_side_bytes(shape->shift));
    layout->bytes = layout->mean_offset + padded((size_t)shape->dim * code_side_bytes(shape->mean));
    const int n_steps = code_steps(layout);
    for (int begin = 0, end; begin < n_steps; begin = end) {
        const uint8_t *bits = shape->bits_of_dim;
        for (end = bits ? begin + CODE_STEPS : n_steps; end < n_steps && bits[end] == bits[begin];) end += CODE_STEPS;
        int b = bits ? bits[begin] : shape->bits;
        assert(b >= 0 && b <= CODE_MAX_BITS && (shape->grid != CODE_UNSIGNED || b != 7));
        assert(begin == 0 || b < layout->runs[layout->n_runs - 1].bits);
        for (int step = begin; bits && step < end; step++) assert(bits[step] == b);
        add_run(layout, begin, end, b);
    }
}

/* ---- levels ---- */

#define EIGHT(M, i)  M(i), M((i) + 1), M((i) + 2), M((i) + 3), M((i) + 4), M((i) + 5), M((i) + 6), M((i) + 7)
#define EIGHTS(M, i) EIGHT(M, i), EIGHT(M, (i) + 8), EIGHT(M, (i) + 16), EIGHT(M, (i) + 24)
#define UNSIGNED(i)  (i)
#define ODD(i)       (2 * (i)-127)
#define CENTRED(i)   ((i)-128)

/* Unsigned levels of any number of bits are the first of these; signed ones are the middle ones. */
static const int8_t unsigned_levels[64] = {EIGHTS(UNSIGNED, 0), EIGHTS(UNSIGNED, 32)};
static const int8_t odd_levels[128] = {EIGHTS(ODD, 0), EIGHTS(ODD, 32), EIGHTS(ODD, 64), EIGHTS(ODD, 96)};
static const int8_t centred_levels[256] = {EIGHTS(CENTRED, 0),   EIGHTS(CENTRED, 32),  EIGHTS(CENTRED, 64),
                                           EIGHTS(CENTRED, 96),  EIGHTS(CENTRED, 128), EIGHTS(CENTRED, 160),
                                           EIGHTS(CENTRED, 192), EIGHTS(CENTRED, 224)};

/* The quantizer of least squared error for the unit normal: each point is the mean of the normal over the interval
 * between the midpoints to its neighbours (Lloyd 1982, Max 1960). Computed in double by iterating this until no point
 * moves by more than 1e-15; then 127 times the point over the largest one, rounded. */
static const int8_t normal_1[] = {-127, 127};
static const int8_t normal_2[] = {-127, -38, 38, 127};
static const int8_t normal_3[] = {-127, -79, -45, -14, 14, 45, 79, 127};
static const int8_t normal_4[] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};
static const int8_t normal_5[] = {-127, -105, -90, -79, -70, -61, -54, -47, -41, -35, -29, -24, -18, -13, -8,  -3,
                                  3,    8,    13,  18,  24,  29,  35,  41,  47,  54,  61,  70,  79,  90,  105, 127};

const int8_t *code_levels(code_grid grid, int bits) {
    static const int8_t none[] = {0};
    static const int8_t *const normal[] = {none, normal_1, normal_2, normal_3, normal_4, normal_5};
    if (bits == 0) return none;
    if (bits == 8) return centred_levels;
    if (grid == CODE_UNSIGNED) return unsigned_levels;
    if (grid == CODE_NORMAL && bits <= 5) return normal[bits];
    return odd_levels + 64 - (1 << (bits - 1));
}

/* ---- codes ---- */

typedef struct tile_place {
    const code_run *run;
    int step, lane; /* the tile's first */
    size_t k;       /* its number in the run */
} tile_place;

/* Calls visit for every tile that holds a code of tokens slot .. slot + n - 1. */
typedef void (*tile_visit)(const code_layout *layout, const tile_place *place, void *context);

static void each_tile(const code_layout *layout, int slot, int n, tile_visit visit, void *context) {
    const int step_begin = layout->is_key ? 0 : slot, step_end = layout->is_key ? layout->dim : slot + n;
    const int lane_begin = layout->is_key ? slot : 0, lane_end = layout->is_key ? slot + n : layout->dim;
    const size_t tiles_across = (size_t)(code_lanes(layout) / CODE_LANES);
    assert(slot >= 0 && n >= 0 && slot + n <= layout->page_tokens);
    if (n == 0) return;
    for (int r = 0; r < layout->n_runs; r++) {
        tile_place place = {.run = layout->runs + r};
        place.step = (int)max_i64(place.run->begin, step_begin / CODE_STEPS * CODE_STEPS);
        for (; place.step < place.run->end && place.step < step_end; place.step += CODE_STEPS) {
            size_t row = (size_t)((place.step - place.run->begin) / CODE_STEPS) * tiles_across;
            for (place.lane = lane_begin / CODE_LANES * CODE_LANES; place.lane < lane_end; place.lane += CODE_LANES) {
                place.k = row + (size_t)(place.lane / CODE_LANES);
                visit(layout, &place, context);
            }
        }
    }
}

typedef struct token_codes {
    char *stream;
    uint8_t *codes; /* [n][dim] */
    int slot, n;
} token_codes;

/* Copies the codes in range between the bytes of a tile and token rows, and marks those bytes. */
static void tile_from_rows(const code_layout *layout, const tile_place *place, const token_codes *t,
                           uint8_t tile[CODE_BLOCK], uint8_t mark[CODE_BLOCK]) {
    memset(tile, 0, CODE_BLOCK);
    memset(mark, 0, CODE_BLOCK);
    const int n_tokens = layout->is_key ? CODE_LANES : CODE_STEPS, first = layout->is_key ? place->lane : place->step;
    for (int i = 0; i < n_tokens; i++) {
        int token = first + i - t->slot;
        if (token < 0 || token >= t->n) continue;
        const uint8_t *row = t->codes + (size_t)token * (size_t)layout->dim;
        if (layout->is_key) {
            memcpy(tile + CODE_STEPS * i, row + place->step, CODE_STEPS);
            memset(mark + CODE_STEPS * i, 0xFF, CODE_STEPS);
        } else {
            for (int lane = 0; lane < CODE_LANES; lane++) tile[CODE_STEPS * lane + i] = row[place->lane + lane];
            for (int lane = 0; lane < CODE_LANES; lane++) mark[CODE_STEPS * lane + i] = 0xFF;
        }
    }
}

static void tile_to_rows(const code_layout *layout, const tile_place *place, const token_codes *t,
                         const uint8_t tile[CODE_BLOCK]) {
    const int n_tokens = layout->is_key ? CODE_LANES : CODE_STEPS, first = layout->is_key ? place->lane : place->step;
    for (int i = 0; i < n_tokens; i++) {
        int token = first + i - t->slot;
        if (token < 0 || token >= t->n) continue;
        uint8_t *row = t->codes + (size_t)token * (size_t)layout->dim;
        if (layout->is_key) {
            memcpy(row + place->step, tile + CODE_STEPS * i, CODE_STEPS);
        } else {
            for (int lane = 0; lane < CODE_LANES; lane++) row[place->lane + lane] = tile[CODE_STEPS * lane + i];
        }
    }
}

/* The bits of tile k in a block of its plane. */
typedef struct plane_part {
    size_t offset; /* of the block, relative to the plane's first byte */
    int shift;
    unsigned mask;
} plane_part;

static plane_part part_of(size_t k, int width) {
    size_t tiles_of_block = (size_t)(8 / width);
    return (plane_part){k / tiles_of_block * CODE_BLOCK, (int)(k % tiles_of_block) * width, (1u << width) - 1};
}

static void pack_tile(const code_layout *layout, const tile_place *place, void *context) {
    const token_codes *t = context;
    uint8_t tile[CODE_BLOCK], mark[CODE_BLOCK];
    tile_from_rows(layout, place, t, tile, mark);
    char *plane = t->stream + place->run->offset;
    const int bits = place->run->bits;
    for (int width = code_first_width(bits), low = 0; width; width = code_next_width(bits, width)) {
        const plane_part part = part_of(place->k, width);
        uint8_t *block = (uint8_t *)plane + part.offset;
        for (int i = 0; i < CODE_BLOCK; i++) {
            unsigned new = ((unsigned)tile[i] >> low & part.mask) << part.shift,
                     old = mark[i] & (part.mask << part.shift);
            block[i] = (uint8_t)((block[i] & ~old) | new);
        }
        low += width;
        plane += code_plane_bytes(code_run_tiles(layout, place->run), width);
    }
}

static void read_tile(const code_layout *layout, const tile_place *place, const char *stream,
                      uint8_t tile[CODE_BLOCK]) {
    const char *plane = stream + place->run->offset;
    const int bits = place->run->bits;
    memset(tile, 0, CODE_BLOCK);
    for (int width = code_first_width(bits), low = 0; width; width = code_next_width(bits, width)) {
        const plane_part part = part_of(place->k, width);
        const uint8_t *block = (const uint8_t *)plane + part.offset;
        for (int i = 0; i < CODE_BLOCK; i++) {
            tile[i] = (uint8_t)(tile[i] | ((unsigned)block[i] >> part.shift & part.mask) << low);
        }
        low += width;
        plane += code_plane_bytes(code_run_tiles(layout, place->run), width);
    }
}

static void unpack_tile(const code_layout *layout, const tile_place *place, void *context) {
    const token_codes *t = context;
    uint8_t tile[CODE_BLOCK];
    read_tile(layout, place, t->stream, tile);
    tile_to_rows(layout, place, t, tile);
}

void code_pack(const code_layout *layout, char *stream, const uint8_t *codes, int slot, int n) {
    token_codes t = {stream, (uint8_t *)(uintptr_t)codes, slot, n};
    each_tile(layout, slot, n, pack_tile, &t);
}

void code_unpack(const code_layout *layout, const char *stream, uint8_t *codes, int slot, int n) {
    token_codes t = {(char *)(uintptr_t)stream, codes, slot, n};
    each_tile(layout, slot, n, unpack_tile, &t);
}

/* ---- side data ---- */

/* The n whose power is nearest to x by ratio; for x below all powers the nearer of the smallest one and 0. */
static uint8_t log8_from_f32(float x) {
    /* 2^((r + 1/2) / 8): from here on a number in [1, 2) is nearer to the next power. */
    static const uint32_t borders[] = {0x3F85AAC4, 0x3F91C3D4, 0x3F9EF533, 0x3FAD583F,
                                       0x3FBD08A4, 0x3FCE248D, 0x3FE0CCDF, 0x3FF5257E};
    if (!(x > 0)) return 0;
    if (x < f32_from_log8(1)) return x < f32_from_log8(1) / 2 ? 0 : 1;
    uint32_t u = f32_bits(x), fraction = (u & 0x7FFFFFu) | 0x3F800000u;
    int n = 8 * ((int)(u >> 23) - 127 + 20);
    for (int r = 0; r < 8; r++) n += fraction >= borders[r];
    return (uint8_t)(n > 255 ? 255 : n);
}

static f16 side_f16(float x) {
    const float largest = 65504.0f;
    return f16_from_f32(x > largest ? largest : x < -largest ? -largest : x);
}

static void side_put(code_side side, char *stored, size_t i, float x) {
    f16 half = 0;
    switch (side) {
    case CODE_SIDE_F32: memcpy(stored + 4 * i, &x, 4); break;
    case CODE_SIDE_F16: half = side_f16(x), memcpy(stored + 2 * i, &half, 2); break;
    case CODE_SIDE_LOG8: stored[i] = (char)log8_from_f32(x); break;
    default: break;
    }
}

float code_side_round(code_side side, float x) {
    char stored[4];
    side_put(side, stored, 0, x);
    return code_side_at(side, stored, 0);
}

/* A part of an array of side data: n_rows rows, of each n entries from `first`. */
typedef struct side_part {
    size_t n_rows, stride, first, n;
} side_part;

static side_part side_part_of(const code_layout *layout, int slot, int n) {
    assert(slot >= 0 && n >= 0 && slot + n <= layout->page_tokens);
    if (layout->axis == CODE_TOKEN) {
        return (side_part){(size_t)code_groups(layout), (size_t)layout->page_tokens, (size_t)slot, (size_t)n};
    }
    assert(slot % layout->group == 0 && n % layout->group == 0);
    size_t dim = (size_t)layout->dim;
    return (side_part){1, 0, (size_t)(slot / layout->group) * dim, (size_t)(n / layout->group) * dim};
}

static void sides_put(code_side side, char *stored, const float *x, side_part part) {
    if (side == CODE_SIDE_NONE) return;
    for (size_t row = 0; row < part.n_rows; row++) {
        for (size_t i = 0; i < part.n; i++) side_put(side, stored, row * part.stride + part.first + i, *x++);
    }
}

static void sides_get(code_side side, const char *stored, float *x, side_part part) {
    for (size_t row = 0; row < part.n_rows; row++) {
        for (size_t i = 0; i < part.n; i++) *x++ = code_side_at(side, stored, row * part.stride + part.first + i);
    }
}

void code_put_side(const code_layout *layout, char *stream, const float *scales, const float *shifts, int slot, int n) {
    const side_part part = side_part_of(layout, slot, n);
    sides_put(layout->scale, stream + layout->scale_offset, scales, part);
    sides_put(layout->shift, stream + layout->shift_offset, shifts, part);
}

void code_get_side(const code_layout *layout, const char *stream, float *scales, float *shifts, int slot, int n) {
    const side_part part = side_part_of(layout, slot, n);
    if (scales) sides_get(layout->scale, stream + layout->scale_offset, scales, part);
    if (shifts) sides_get(layout->shift, stream + layout->shift_offset, shifts, part);
}

void code_put_mean(const code_layout *layout, char *stream, const float *means) {
    sides_put(layout->mean, stream + layout->mean_offset, means, (side_part){1, 0, 0, (size_t)layout->dim});
}

void code_get_mean(const code_layout *layout, const char *stream, float *means) {
    sides_get(layout->mean, stream + layout->mean_offset, means, (side_part){1, 0, 0, (size_t)layout->dim});
}

/* ---- decoding ---- */

typedef struct token_floats {
    const char *stream;
    float *x; /* [n][dim] */
    int slot, n;
} token_floats;

static void decode_tile(const code_layout *layout, const tile_place *place, void *context) {
    const token_floats *t = context;
    const int8_t *levels = code_levels(layout->grid, place->run->bits);
    uint8_t tile[CODE_BLOCK];
    read_tile(layout, place, t->stream, tile);
    for (int i = 0; i < CODE_BLOCK; i++) {
        const int step = place->step + i % CODE_STEPS, lane = place->lane + i / CODE_STEPS;
        const int token = layout->is_key ? lane : step, d = layout->is_key ? step : lane;
        if (token < t->slot || token >= t->slot + t->n) continue;
        const size_t side = code_side_index(layout, token, d);
        float x = code_side_at(layout->scale, t->stream + layout->scale_offset, side) * (float)levels[tile[i]];
        if (layout->shift) x += code_side_at(layout->shift, t->stream + layout->shift_offset, side);
        if (layout->mean) x += code_side_at(layout->mean, t->stream + layout->mean_offset, (size_t)d);
        t->x[(size_t)(token - t->slot) * (size_t)layout->dim + (size_t)d] = x;
    }
}

void code_decode(const code_layout *layout, const char *stream, float *x, int slot, int n) {
    token_floats t = {stream, x, slot, n};
    each_tile(layout, slot, n, decode_tile, &t);
}
