/* Element-wise and row kernels of every level of this machine against formulas in double. u = 2^-24 is half a unit in
 * the last place of 1: the most that one rounding changes a result, relatively.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "support/kernel_check.h"

enum { GUARD = 16 };

static const double u = 0x1p-24;

/* Sizes around multiples of any vector; the odd ones begin unaligned, for all end where memory does. */
static const int sizes[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 255, 576};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

typedef void (*table_check)(const kernel_table *table, int n, uint64_t *state);

static void every_level(table_check check) {
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        kernel_table table;
        uint64_t state = 11;
        kernel_table_fill(&table, (cpu_level)level);
        for (int i = 0; i < N_SIZES; i++) check(&table, sizes[i], &state);
    }
}

/* n floats that end at an inaccessible page (support/hostile/guard_pages.c), with guards before them. */
typedef struct array {
    float *block, *x;
    int n;
} array;

static array array_open(int n, uint64_t *state, double lo, double hi) {
    array a = {.n = n, .block = mem_alloc((size_t)n + GUARD, sizeof(float))};
    a.x = a.block + GUARD;
    for (int i = -GUARD; i < 0; i++) a.x[i] = 12345.0f;
    for (int i = 0; i < n; i++) a.x[i] = (float)test_uniform(state, lo, hi);
    return a;
}

static array array_copy(const array *from) {
    array a = {.n = from->n, .block = mem_alloc((size_t)from->n + GUARD, sizeof(float))};
    a.x = a.block + GUARD;
    memcpy(a.block, from->block, ((size_t)from->n + GUARD) * sizeof(float));
    return a;
}

static void array_close(array *a) {
    for (int i = 0; i < GUARD; i++) assert_true(a->x[-1 - i] == 12345.0f);
    mem_free(a->block);
}

static void assert_near(const char *what, int i, double got, double expected, double allowed) {
    if (!(fabs(got - expected) <= allowed)) {
        fail_msg("%s: element %d is %.9g, expected %.9g +- %.3g", what, i, got, expected, allowed);
    }
}

/* Sum of squares: a chain of at most n / 8 + 4 roundings in any vector, n in plain C is in double. */
static void check_rms_norm(const kernel_table *table, int n, uint64_t *state) {
    if (n == 0) return;
    for (int kind = 0; kind < 4; kind++) {
        double size = kind == 3 ? 1e-4 : 3;
        float eps = kind == 2 ? 0.5f : 1e-6f;
        array x = array_open(n, state, -size, size), weight = array_open(n, state, -2, 2);
        array y = kind % 2 ? array_copy(&x) : array_open(n, state, 0, 1), original = array_copy(&x);
        double squares = 0;
        for (int i = 0; i < n; i++) squares += (double)x.x[i] * (double)x.x[i];
        double factor = 1 / sqrt(squares / n + (double)eps);
        table->rms_norm(y.x, kind % 2 ? y.x : x.x, weight.x, n, eps);
        for (int i = 0; i < n; i++) {
            double expected = (double)original.x[i] * factor * (double)weight.x[i];
            assert_near("rms_norm", i, (double)y.x[i], expected, (n / 8 / 2 + 8) * u * fabs(expected));
        }
        array_close(&x), array_close(&weight), array_close(&y), array_close(&original);
    }
}

/* Two products and a sum: three roundings of at most the sum of magnitudes. */
static void check_rope(const kernel_table *table, int n, uint64_t *state) {
    array x = array_open(2 * n, state, -3, 3), before = array_copy(&x);
    array angle = array_open(n, state, -4, 4), c = array_copy(&angle), s = array_copy(&angle);
    for (int j = 0; j < n; j++) c.x[j] = cosf(angle.x[j]), s.x[j] = sinf(angle.x[j]);
    table->rope(x.x, c.x, s.x, n);
    for (int j = 0; j < n; j++) {
        double a = (double)before.x[j], b = (double)before.x[j + n], cj = (double)c.x[j], sj = (double)s.x[j];
        assert_near("rope", j, (double)x.x[j], a * cj - b * sj, 3 * u * (fabs(a * cj) + fabs(b * sj)));
        assert_near("rope", j + n, (double)x.x[j + n], b * cj + a * sj, 3 * u * (fabs(b * cj) + fabs(a * sj)));
    }
    array_close(&x), array_close(&before), array_close(&angle), array_close(&c), array_close(&s);
}

/* Moments: chains of 16 roundings, then double, so what the mean misses is 17 u of a deviation; 10 u come with the
 * factor, 4 with the products. Means of any size beside the deviations, down to deviations of a unit of the mean. */
static void check_layer_norm(const kernel_table *table, int n, uint64_t *state) {
    if (n == 0) return;
    static const double means[] = {0, 1000, -3e4, 1e-5, 3e4}, spreads[] = {3, 3, 3, 1e-6, 4e-3};
    for (int kind = 0; kind < 10; kind++) {
        double mean = means[kind / 2], size = spreads[kind / 2];
        float eps = kind == 4 ? 0.5f : 1e-5f;
        array x = array_open(n, state, mean - size, mean + size), weight = array_open(n, state, -2, 2),
              bias = array_open(n, state, -1, 1);
        array y = kind % 2 ? array_copy(&x) : array_open(n, state, 0, 1), original = array_copy(&x);
        double sum = 0, squares = 0;
        for (int i = 0; i < n; i++) sum += (double)x.x[i];
        for (int i = 0; i < n; i++) squares += pow((double)x.x[i] - sum / n, 2);
        double factor = 1 / sqrt(squares / n + (double)eps);
        bool biased = kind % 3 != 0;
        table->layer_norm(y.x, kind % 2 ? y.x : x.x, weight.x, biased ? bias.x : NULL, n, eps);
        for (int i = 0; i < n; i++) {
            double z = ((double)original.x[i] - sum / n) * factor, w = (double)weight.x[i];
            double expected = z * w + (biased ? (double)bias.x[i] : 0);
            assert_near("layer_norm", i, (double)y.x[i], expected,
                        u * ((16 * fabs(z) + 18) * fabs(w) + 2 * fabs(expected)));
        }
        array_close(&x), array_close(&weight), array_close(&bias), array_close(&y), array_close(&original);
    }
}

/* ---- activations ---- */

static double silu(double x) {
    return x / (1 + exp(-x));
}
static double gelu(double x) {
    return 0.5 * x * erfc(-x * sqrt(0.5));
}
static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}
static double relu(double x) {
    return x > 0 ? x : 0;
}

/* 8 u of the exponential and 4 more roundings; where exp(-x) overflows the result is below 1e-36. */
static double silu_error(double x) {
    return 12 * fabs(silu(x)) + 1e-36 / u;
}
/* Of |x| Phi(-|x|): 8 u of the exponential, 12 of the rest, and an argument x^2 / 2 that four roundings made (in plain
 * C; the vectors have one). Two more of the result. */
static double gelu_error(double x) {
    return 4 * fabs(gelu(x)) + (20 + 2 * x * x) * fabs(gelu(-fabs(x))) + 1e-36 / u;
}
/* Relative to x / 2, since 1 + tanh may cancel: 8 u of tanh, 2 of the sum, 2 of the products; the argument's four
 * roundings, of which at most 0.45 of the result come through. */
static double gelu_tanh_error(double x) {
    return 16 * fabs(x / 2) + 1e-36 / u;
}
static double relu_error(double x) {
    return x > 0 ? 1e-36 / u : 0;
}

/* The exact value of a function, and its permitted error in units before the product with `up`. */
static const struct {
    const char *name;
    double (*exact)(double x), (*error)(double x);
    size_t in_place, gate; /* offsets in the table of kernels */
} functions[] = {
#define ACTIVATION(name)                                                                                               \
    { #name, name, name##_error, offsetof(kernel_table, activate_##name), offsetof(kernel_table, name##_mul) }
    ACTIVATION(silu),
    ACTIVATION(gelu),
    ACTIVATION(gelu_tanh),
    ACTIVATION(relu),
#undef ACTIVATION
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

typedef void (*in_place)(float *y, size_t n);
typedef void (*gated)(float *y, const float *gate, const float *up, size_t n);

static in_place find_in_place(const kernel_table *table, int i) {
    in_place f;
    memcpy(&f, (const char *)table + functions[i].in_place, sizeof f);
    return f;
}

static gated find_gated(const kernel_table *table, int i) {
    gated f;
    memcpy(&f, (const char *)table + functions[i].gate, sizeof f);
    return f;
}

/* In place and as a gate, into a third row or into the gate; alone an element has the bits that it has among others. */
static void check_activation(const kernel_table *table, int f, int n, uint64_t *state) {
    for (int kind = 0; kind < 4; kind++) {
        double size = kind < 2 ? 5 : 150;
        array x = array_open(n, state, -size, size), up = array_open(n, state, -2, 2), before = array_copy(&x),
              gate = array_copy(&x), y = array_open(n, state, 0, 1);
        float *out = kind % 2 ? gate.x : y.x;
        find_in_place(table, f)(x.x, (size_t)n);
        find_gated(table, f)(out, gate.x, up.x, (size_t)n);
        for (int i = 0; i < n; i++) {
            double given = (double)before.x[i], expected = functions[f].exact(given);
            double allowed = functions[f].error(given) * u, factor = (double)up.x[i];
            float alone = before.x[i];
            assert_near(functions[f].name, i, (double)x.x[i], expected, allowed);
            assert_near(functions[f].name, i, (double)out[i], expected * factor,
                        allowed * fabs(factor) + u * fabs(expected * factor) + 1e-36);
            find_in_place(table, f)(&alone, 1);
            assert_memory_equal(&alone, &x.x[i], sizeof alone);
        }
        array_close(&x), array_close(&gate), array_close(&up), array_close(&before), array_close(&y);
    }
}

static void check_activations(const kernel_table *table, int n, uint64_t *state) {
    for (int f = 0; f < N_FUNCTIONS; f++) check_activation(table, f, n, state);
}

/* The exact form over its whole range, near 0 and at its minimum; near zero also the relative error. */
static void gelu_is_accurate(void **state) {
    (void)state;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        uint64_t random = 5;
        kernel_table_fill(&table, level);
        for (int i = 0; i < 200000; i++) {
            float size = i % 4 == 0 ? 1e-3f : i % 4 == 1 ? 1 : 15, x = (float)test_uniform(&random, -1, 1) * size;
            double expected = gelu((double)x);
            float y = x;
            table.activate_gelu(&y, 1);
            assert_near("gelu", i, (double)y, expected, 2e-7 * fmax(1, fabs((double)x)));
            assert_near("gelu", i, (double)y, expected, gelu_error((double)x) * u);
        }
        float ends[] = {0, -1e30f, 1e30f, NAN}, given[] = {0, -1e30f, 1e30f, NAN};
        table.activate_gelu(ends, 4);
        assert_true(ends[0] == 0 && ends[1] == 0 && ends[2] == 1e30f && isnan(ends[3]));
        table.activate_relu(given, 4);
        assert_true(given[0] == 0 && given[1] == 0 && given[2] == 1e30f && isnan(given[3]));
    }
}

/* 8 u of tanh, and two more roundings. */
static void check_soft_cap(const kernel_table *table, int n, uint64_t *state) {
    static const double sizes_of_x[] = {1e-3, 1, 60, 3000};
    for (int kind = 0; kind < 4; kind++) {
        array y = array_open(n, state, -sizes_of_x[kind], sizes_of_x[kind]);
        if (n > 2) y.x[1] = -INFINITY, y.x[2] = INFINITY;
        array before = array_copy(&y);
        double cap = kind % 2 ? 30 : 50;
        table->soft_cap(y.x, (float)cap, (size_t)n);
        for (int i = 0; i < n; i++) {
            double expected = cap * tanh((double)before.x[i] / cap);
            assert_near("soft_cap", i, (double)y.x[i], expected, 10 * u * fabs(expected) + 1e-36);
            assert_true(fabs((double)y.x[i]) <= cap);
        }
        array_close(&y), array_close(&before);
    }
}

/* A product and a sum. */
static void check_mul_add(const kernel_table *table, int n, uint64_t *state) {
    array y = array_open(n, state, -5, 5), x = array_open(n, state, -5, 5), before = array_copy(&y);
    table->mul_add(y.x, x.x, 0.3f, (size_t)n);
    for (int i = 0; i < n; i++) {
        double product = (double)x.x[i] * (double)0.3f, expected = (double)before.x[i] + product;
        assert_near("mul_add", i, (double)y.x[i], expected, u * (1.001 * fabs(product) + fabs(expected)));
    }
    array_close(&y), array_close(&x), array_close(&before);
}

/* One rounding: exactly that of C. */
static void check_add_and_scale(const kernel_table *table, int n, uint64_t *state) {
    array y = array_open(n, state, -5, 5), x = array_open(n, state, -5, 5), before = array_copy(&y);
    table->add(y.x, x.x, (size_t)n);
    for (int i = 0; i < n; i++) assert_true(y.x[i] == before.x[i] + x.x[i]);
    table->scale(y.x, 0.3f, (size_t)n);
    for (int i = 0; i < n; i++) assert_true(y.x[i] == (before.x[i] + x.x[i]) * 0.3f);
    table->add(x.x, x.x, (size_t)n);
    array_close(&y), array_close(&x), array_close(&before);
}

/* 4 units of each exponential, and the rounding of x - max, which counts |x - max| times. */
static void check_exp_sum(const kernel_table *table, int n, uint64_t *state) {
    array x = array_open(n, state, -30, 10);
    if (n > 3) x.x[n / 2] = -INFINITY;
    double expected = 0, allowed = 0, sum = -1;
    for (int i = 0; i < n; i++) {
        double distance = (double)x.x[i] - 10, term = exp(distance);
        expected += term;
        if (term > 0) allowed += term * (8 + fabs(distance)) * u;
    }
    table->exp_sum(&sum, x.x, 10, (size_t)n);
    assert_near("exp_sum", n, sum, expected, allowed * 1.001 + n * 0x1p-52 * expected);
    array_close(&x);
}

static void check_max_index(const kernel_table *table, int n, uint64_t *state) {
    static const float specials[] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, 7.0f};
    for (int kind = 0; kind < 200; kind++) {
        array x = array_open(n, state, -1, 1);
        for (int i = 0; i < n && kind > 0; i++) {
            if (kind < 4) x.x[i] = specials[kind - 1]; /* all alike */
            if (kind >= 4 && test_random(state) % 4 < (uint64_t)kind % 5) x.x[i] = specials[test_random(state) % 6];
            if (kind % 2 && i > n / 3 && kind > 4) x.x[i] = -2;
        }
        int expected = -1;
        for (int i = 0; i < n; i++) {
            if (isnan(x.x[i])) continue;
            int beats = expected < 0 || x.x[i] > x.x[expected];
            expected = beats ? i : expected;
        }
        int64_t index = -1;
        table->max_index(&index, x.x, (size_t)n);
        assert_int_equal(index, expected < 0 ? 0 : expected);
        array_close(&x);
    }
}

/* kernels: rms_norm */
static void rms_norm_is_as_defined(void **state) {
    (void)state, every_level(check_rms_norm);
}
/* kernels: rope */
static void rope_rotates_pairs(void **state) {
    (void)state, every_level(check_rope);
}
/* kernels: layer_norm */
static void layer_norm_is_as_defined(void **state) {
    (void)state, every_level(check_layer_norm);
}
/* kernels: silu_mul, gelu_mul, gelu_tanh_mul, relu_mul, activate_silu, activate_gelu, activate_gelu_tanh,
 * activate_relu */
static void activations_are_as_defined(void **state) {
    (void)state, every_level(check_activations);
}
/* kernels: soft_cap */
static void soft_cap_is_as_defined(void **state) {
    (void)state, every_level(check_soft_cap);
}
/* kernels: mul_add */
static void mul_add_is_as_defined(void **state) {
    (void)state, every_level(check_mul_add);
}
/* kernels: add, scale */
static void add_and_scale_round_once(void **state) {
    (void)state, every_level(check_add_and_scale);
}
/* kernels: exp_sum */
static void exp_sum_is_as_defined(void **state) {
    (void)state, every_level(check_exp_sum);
}
/* kernels: max_index */
static void max_index_is_the_first_of_the_largest(void **state) {
    (void)state, every_level(check_max_index);
}

/* The exponential by itself, over all it can give: 4 units in the last place, subnormal results included. */
static void exp_is_accurate(void **state) {
    (void)state;
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        kernel_table table;
        uint64_t random = 5;
        kernel_table_fill(&table, (cpu_level)level);
        for (int i = 0; i < 200000; i++) {
            float x = (float)test_uniform(&random, -105, 88.7);
            if (i % 4 == 0) x = (float)test_uniform(&random, -1, 1);
            double y = exp((double)x), unit = ldexp(1, (int)fmax(floor(log2(y)), -126) - 23), sum = -1;
            table.exp_sum(&sum, &x, 0, 1);
            assert_near("exp", i, sum, y, 4 * unit);
        }
        float far[] = {-INFINITY, -1e30f, -200, 0, 89, INFINITY};
        double expected[] = {0, 0, 0, 1, INFINITY, INFINITY}, sum = -1;
        for (int i = 0; i < 6; i++) {
            table.exp_sum(&sum, &far[i], 0, 1);
            assert_true(sum == expected[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_is_as_defined),
        cmocka_unit_test(layer_norm_is_as_defined),
        cmocka_unit_test(rope_rotates_pairs),
        cmocka_unit_test(activations_are_as_defined),
        cmocka_unit_test(gelu_is_accurate),
        cmocka_unit_test(soft_cap_is_as_defined),
        cmocka_unit_test(mul_add_is_as_defined),
        cmocka_unit_test(add_and_scale_round_once),
        cmocka_unit_test(exp_sum_is_as_defined),
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(max_index_is_the_first_of_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
