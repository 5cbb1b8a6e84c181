/* The arithmetic of quanto and hqq against what the packages themselves gave (tests/data/caches/README.md).
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "base/num.h"
#include "kv/quantizers.h"
#include "tensor/safetensors.h"

typedef struct material {
    json_doc *doc;
    tensor_set *set;
} material;

static material open_material(void) {
    material m = {.doc = open_json(data_path("caches/quantizers.json"))};
    assert_ok(safetensors_open(&m.set, data_path("caches/quantizers.safetensors")));
    return m;
}

static void close_material(material *m) {
    json_close(&m->doc);
    tensor_set_close(&m->set);
}

static const tensor *find(const material *m, const char *name, const char *part) {
    char full[128];
    snprintf(full, sizeof full, "%s%s%s", name, part ? "." : "", part ? part : "");
    return tensor_set_find(m->set, full);
}

static const tensor *need(const material *m, const char *name, const char *part) {
    const tensor *t = find(m, name, part);
    if (!t) fail_msg("%s.%s is missing", name, part ? part : "");
    return t;
}

static int64_t count(const tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

/* As f32; owned by the caller. */
static float *floats(const tensor *t) {
    float *x = mem_alloc((size_t)count(t), sizeof *x);
    dtype_table[t->type].to_f32(x, t->data, (size_t)count(t));
    return x;
}

static quantizer_options read_options(const json *c) {
    int64_t nbits = 0, axis = 0, group = 0;
    bool optimize = false;
    const char *type = "";
    assert_ok(json_int("case", c, "nbits", 1, 8, &nbits));
    assert_ok(json_int("case", c, "axis", -1, 1, &axis));
    assert_ok(json_int("case", c, "q_group_size", 1, 1000, &group));
    assert_ok(json_bool("case", c, "optimize", &optimize));
    assert_ok(json_string("case", c, "dtype", &type));
    return (quantizer_options){
        .kind = json_is_string(json_get(c, "backend"), "hqq") ? QUANTIZER_HQQ : QUANTIZER_QUANTO,
        .nbits = (int)nbits,
        .axis = (int)axis,
        .group = (int)group,
        .dtype = !strcmp(type, "float16")    ? QUANTIZER_F16
                 : !strcmp(type, "bfloat16") ? QUANTIZER_BF16
                                             : QUANTIZER_F32,
        .optimize = optimize,
    };
}

/* The distance of neighbouring numbers of the type at x. */
static double spacing(quantizer_dtype type, double x) {
    static const int digits[] = {[QUANTIZER_F32] = 24, [QUANTIZER_F16] = 11, [QUANTIZER_BF16] = 8};
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - digits[type]);
}

static void assert_near(const char *name, const char *part, int64_t i, double got, double expected, double allowed) {
    if (!(fabs(got - expected) <= allowed)) {
        fail_msg("%s.%s[%lld] is %.9g, expected %.9g +- %.3g", name, part, (long long)i, got, expected, allowed);
    }
}

typedef struct trial {
    const material *m;
    const char *name;
    const json *c;
    quantizer_options options;
    int64_t shape[4], n;
    float *x;
} trial;

/* Another order of summation moves a refined zero by a few roundings of its sum; all else is equal to the bit. */
static double zero_allowed(const trial *t, double zero) {
    if (t->options.kind == QUANTIZER_QUANTO || !t->options.optimize) return 0;
    double top = (1 << t->options.nbits) - 1;
    return 2e-6 * top + (t->options.dtype == QUANTIZER_F32 ? 0 : spacing(t->options.dtype, zero));
}

static void check_exact(const trial *t, const quantized *q) {
    const char *shift_name = t->options.kind == QUANTIZER_HQQ ? "zero" : "shift";
    const tensor *codes = need(t->m, t->name, "codes"), *packed = need(t->m, t->name, "packed");
    assert_int_equal(codes->shape[0], q->n_rows);
    assert_int_equal(codes->shape[1], q->n_columns);
    if (memcmp(q->codes, codes->data, (size_t)t->n)) fail_msg("%s: codes differ", t->name);
    uint8_t *bytes_packed;
    size_t n_packed;
    assert_ok(quantizer_pack(&bytes_packed, &n_packed, q, &t->options));
    assert_int_equal(n_packed, packed->bytes);
    assert_memory_equal(bytes_packed, packed->data, n_packed);
    mem_free(bytes_packed);
    float *scale = floats(need(t->m, t->name, "scale")), *shift = floats(need(t->m, t->name, shift_name));
    float *y = floats(need(t->m, t->name, "y")), *own = mem_alloc((size_t)t->n, sizeof *own);
    assert_int_equal(count(need(t->m, t->name, "scale")), q->n_groups);
    for (int64_t i = 0; i < q->n_groups; i++) {
        assert_near(t->name, "scale", i, q->scale[i], scale[i], 0);
        assert_near(t->name, shift_name, i, q->shift[i], shift[i], zero_allowed(t, shift[i]));
    }
    quantizer_dequantize(own, q, &t->options, t->shape);
    for (int64_t i = 0; i < t->n; i++) {
        int64_t code, group;
        quantizer_place(&t->options, t->shape, i, &code, &group);
        double allowed = zero_allowed(t, shift[group]) * scale[group];
        if (allowed > 0) allowed += 2 * spacing(t->options.dtype, y[i]);
        assert_near(t->name, "y", i, own[i], y[i], allowed);
    }
    int64_t rounds = 0;
    assert_ok(json_int("case", t->c, "iterations", 0, 20, &rounds));
    assert_int_equal(q->rounds, rounds);
    mem_free(scale);
    mem_free(shift);
    mem_free(y);
    mem_free(own);
}

static double mean_error(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fabs((double)x[i] - y[i]);
    return sum / (double)n;
}

/* The errors stop falling by less than what decides, so they are alike whatever the round; scales depend on no
 * round. */
static void check_fragile(const trial *t, const quantized *q) {
    float *y = floats(need(t->m, t->name, "y")), *own = mem_alloc((size_t)t->n, sizeof *own);
    float *scale = floats(need(t->m, t->name, "scale"));
    for (int64_t i = 0; i < q->n_groups; i++) assert_near(t->name, "scale", i, q->scale[i], scale[i], 0);
    quantizer_dequantize(own, q, &t->options, t->shape);
    double theirs = mean_error(t->x, y, t->n), ours = mean_error(t->x, own, t->n);
    if (!(fabs(ours - theirs) <= 0.005 * theirs))
        fail_msg("%s: mean error %.6g, the package has %.6g", t->name, ours, theirs);
    mem_free(y);
    mem_free(own);
    mem_free(scale);
}

/* The formulas accept inputs that the package refuses. */
static void check_refused(const trial *t) {
    quantized q;
    assert_fails(MN_E_ARG, "allowed", quantizer_run(&q, &t->options, t->x, t->shape));
    const tensor *codes = find(t->m, t->name, "codes");
    if (!codes) return;
    assert_int_equal(t->options.axis, 1);
    int64_t group = t->options.group, n_groups = t->n / group;
    quantizer_view view = {1, n_groups, group, 0, (ptrdiff_t)group, 1};
    uint8_t *own = mem_alloc((size_t)t->n, 1);
    float *scale = mem_alloc((size_t)n_groups, sizeof *scale), *shift = mem_alloc((size_t)n_groups, sizeof *shift);
    quantizer_view_run(own, scale, shift, &t->options, t->x, &view);
    if (memcmp(own, codes->data, (size_t)t->n)) fail_msg("%s: codes differ", t->name);
    mem_free(own);
    mem_free(scale);
    mem_free(shift);
}

static void every_case_agrees_with_its_package(void **state) {
    (void)state;
    material m = open_material();
    const json *cases = json_get(json_root(m.doc), "cases");
    int n_refused = 0, n_fragile = 0;
    for (size_t i = 0; i < cases->n; i++) {
        const json *c = &cases->items[i];
        trial t = {.m = &m, .c = c, .name = json_get(c, "name")->string, .options = read_options(c)};
        const tensor *x = need(&m, json_get(c, "x")->string, NULL);
        t.x = floats(x);
        t.n = count(x);
        memcpy(t.shape, x->shape, sizeof t.shape);
        bool fragile = false;
        assert_ok(json_bool("case", c, "fragile", &fragile));
        if (json_get(c, "error")) {
            check_refused(&t);
            n_refused++;
        } else {
            quantized q;
            assert_ok(quantizer_run(&q, &t.options, t.x, t.shape));
            if (fragile) {
                check_fragile(&t, &q);
                n_fragile++;
            } else {
                check_exact(&t, &q);
            }
            quantized_clear(&q);
        }
        mem_free(t.x);
    }
    assert_int_equal(cases->n, 196);
    assert_int_equal(n_refused, 24);
    assert_int_equal(n_fragile, 24);
    close_material(&m);
}

static void groups_of_equal_values_come_back(void **state) {
    (void)state;
    material m = open_material();
    const tensor *input = need(&m, "x.constant", NULL);
    float *x = floats(input), *quanto = floats(need(&m, "edge.constant.quanto", "y"));
    float *hqq = floats(need(&m, "edge.constant.hqq", "y")), y[32];
    quantized q;
    quantizer_options options = {.kind = QUANTIZER_QUANTO, .nbits = 4, .axis = 0, .group = 8};
    assert_ok(quantizer_run(&q, &options, x, input->shape));
    const json *codes = json_get(&json_get(json_root(m.doc), "edge")->items[0], "quanto_codes");
    for (int i = 0; i < 32; i++) assert_int_equal(q.codes[i], codes->items[i / 8].items[i % 8].integer);
    quantizer_dequantize(y, &q, &options, input->shape);
    for (int i = 0; i < 32; i++) assert_true(y[i] == quanto[i]);
    quantized_clear(&q);
    options = (quantizer_options){.kind = QUANTIZER_HQQ, .nbits = 4, .axis = 1, .group = 8, .optimize = true};
    assert_ok(quantizer_run(&q, &options, x, input->shape));
    quantizer_dequantize(y, &q, &options, input->shape);
    for (int i = 0; i < 32; i++) assert_near("constant", "hqq", i, y[i], hqq[i], 2e-6);
    quantized_clear(&q);
    mem_free(x);
    mem_free(quanto);
    mem_free(hqq);
    close_material(&m);
}

static void one_group_is_an_ordinary_group(void **state) {
    (void)state;
    material m = open_material();
    const tensor *input = need(&m, "x.onegroup", NULL);
    float *x = floats(input), *expected = floats(need(&m, "edge.onegroup", "y")), y[16];
    quantized q;
    quantizer_options options = {.kind = QUANTIZER_QUANTO, .nbits = 4, .axis = 0, .group = 16};
    assert_ok(quantizer_run(&q, &options, x, input->shape));
    assert_int_equal(q.n_groups, 1);
    assert_memory_equal(q.codes, need(&m, "edge.onegroup", "codes")->data, 16);
    quantizer_dequantize(y, &q, &options, input->shape);
    for (int i = 0; i < 16; i++) assert_true(y[i] == expected[i]);
    quantized_clear(&q);
    mem_free(x);
    mem_free(expected);
    close_material(&m);
}

static void wrong_options_are_named(void **state) {
    (void)state;
    static const struct {
        quantizer_options options;
        int64_t shape[4];
        const char *part;
    } wrong[] = {
        {{.kind = QUANTIZER_QUANTO, .nbits = 3, .axis = 0, .group = 8}, {1, 1, 2, 16}, "nbits is 3, allowed: 2, 4"},
        {{.kind = QUANTIZER_QUANTO, .nbits = 4, .axis = 1, .group = 8}, {1, 1, 2, 16}, "axis is 1, allowed: 0, -1"},
        {{.kind = QUANTIZER_HQQ, .nbits = 5, .axis = 0, .group = 8}, {1, 1, 2, 16}, "allowed: 1, 2, 3, 4, 8"},
        {{.kind = QUANTIZER_HQQ, .nbits = 4, .axis = -1, .group = 8}, {1, 1, 2, 16}, "axis is -1, allowed: 0, 1"},
        {{.kind = QUANTIZER_HQQ, .nbits = 4, .axis = 0, .group = 0}, {1, 1, 2, 16}, "q_group_size is 0"},
        {{.kind = QUANTIZER_HQQ, .nbits = 2, .axis = 0, .group = 2}, {1, 1, 2, 16}, "multiples of 4 rows"},
        {{.kind = QUANTIZER_QUANTO, .nbits = 4, .axis = 0, .group = 32}, {2, 1, 1, 16}, "divisors of 16"},
        {{.kind = QUANTIZER_QUANTO, .nbits = 4, .axis = 0, .group = 8},
         {1, 0, 2, 16},
         "dimension 1 of the tensor is 0"},
        {{.kind = QUANTIZER_QUANTO, .nbits = 4, .axis = 0, .group = 8},
         {INT32_MAX, INT32_MAX, INT32_MAX, 16},
         "a tensor of more than"},
    };
    float x[32] = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        quantized q;
        assert_fails(MN_E_ARG, wrong[i].part, quantizer_run(&q, &wrong[i].options, x, wrong[i].shape));
        assert_null(q.codes);
    }
}

static void missing_memory_is_clean(void **state) {
    (void)state;
    quantizer_options options = {.kind = QUANTIZER_HQQ, .nbits = 4, .axis = 0, .group = 8, .optimize = true};
    int64_t shape[4] = {1, 1, 4, 16};
    float x[64];
    for (int i = 0; i < 64; i++) x[i] = (float)(i * i % 37);
    int64_t live = mem_count().live;
    for (int k = 1;; k++) {
        quantized q;
        uint8_t *packed = NULL;
        size_t n;
        mem_fail_after(k);
        mn_status status = quantizer_run(&q, &options, x, shape);
        if (status == MN_OK) {
            status = quantizer_pack(&packed, &n, &q, &options);
            mem_free(packed);
        }
        quantized_clear(&q);
        mem_fail_after(0);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) {
            assert_true(k > 5);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_agrees_with_its_package),
        cmocka_unit_test(groups_of_equal_values_come_back),
        cmocka_unit_test(one_group_is_an_ordinary_group),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(missing_memory_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
