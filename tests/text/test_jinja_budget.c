/* Template budgets that run out at every step: compilation or rendering fails with one message, writes nothing and
 * leaks no memory. With exactly enough steps the output is that of a large budget.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "text/jinja/internal.h"

static const struct tm recorded_date = {
    .tm_year = 125, .tm_mon = 6, .tm_mday = 10, .tm_hour = 12, .tm_wday = 4, .tm_yday = 190};

/* jinja_compile with a given budget. */
static mn_status compile_within(const json *text, int64_t steps, size_t memory) {
    jinja_template template = {.arena = {.limit = memory, .steps = steps, .line = 1}};
    jtokens tokens = {0};
    mn_status status = jinja_lex(&template.arena, text->string, text->n, &tokens);
    if (status == MN_OK) status = jinja_parse(&template.arena, &tokens, &template.body);
    if (status == MN_OK) status = jinja_scope(&template);
    jinja_free(&template.arena, tokens.items, tokens.capacity, sizeof *tokens.items);
    jinja_arena_clear(&template.arena);
    return status;
}

/* Tries every number of steps until they suffice; returns that number. */
static int64_t sweep_compilation(const json *text) {
    static const int64_t plenty = 10000000;
    const size_t memory = (size_t)64 << 20;
    mn_status wanted = compile_within(text, plenty, memory), status = MN_E_FULL;
    int64_t live = mem_count().live, steps = 0;
    for (; status == MN_E_FULL && steps < plenty; steps++) {
        status = compile_within(text, steps, memory);
        if (status == MN_E_FULL && !strstr(mn_last_error(), "the template takes too many steps"))
            fail_msg("%s, %lld steps: %s", text->string, (long long)steps, mn_last_error());
        assert_int_equal(mem_count().live, live);
    }
    if (status != wanted) fail_msg("%s: %d, wanted: %d", text->string, status, wanted);
    return steps;
}

static mn_status render_within(const jinja_template *template, const json *context, int64_t steps, bytes *out) {
    return jinja_render(template, context, &(jinja_limits){.steps = steps}, &recorded_date, out);
}

/* Tries every number of steps from `first` until they suffice; returns that number. */
static int64_t sweep_rendering(const json *text, const json *context, int64_t first) {
    static const char before[] = "before";
    static const int64_t plenty = 10000000;
    jinja_template *template = NULL;
    bytes wanted = {0}, out = {0};
    if (jinja_compile(&template, text->string, text->n) != MN_OK) return 0;
    mn_status answer = render_within(template, context, plenty, &wanted), status = MN_E_FULL;
    bytes_append_text(&out, before);
    bytes_append(&out, wanted.data, wanted.n); /* so that the buffer is already allocated */
    int64_t live = mem_count().live, steps = first;
    for (; status == MN_E_FULL && answer != MN_E_FULL && steps < plenty; steps++) {
        out.n = strlen(before);
        status = render_within(template, context, steps, &out);
        if (status == MN_E_FULL && (out.n != strlen(before) || !strstr(mn_last_error(), "too many steps")))
            fail_msg("%s, %lld steps: %zu bytes, %s", text->string, (long long)steps, out.n, mn_last_error());
        assert_int_equal(mem_count().live, live);
    }
    if (answer != MN_E_FULL) {
        assert_int_equal(status, answer);
        assert_int_equal(out.n, strlen(before) + wanted.n);
        assert_memory_equal(out.data, before, strlen(before));
        if (wanted.n) assert_memory_equal(out.data + strlen(before), wanted.data, wanted.n);
    }
    jinja_close(&template);
    bytes_clear(&wanted);
    bytes_clear(&out);
    return steps;
}

static void compilation_fails_cleanly_at_every_step_limit(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("jinja/differential.json"));
    const json *cases = json_get(json_root(doc), "cases");
    const size_t step = (size_t)test_stride(4);
    int64_t all = 0;
    for (size_t i = 0; i < cases->n; i += step) all += sweep_compilation(json_get(&cases->items[i], "template"));
    assert_true(all > 100000 / (int64_t)step);
    print_message("%lld budgets of %zu templates\n", (long long)all, cases->n);
    json_close(&doc);
}

static void rendering_fails_cleanly_at_every_step_limit(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("jinja/differential.json"));
    const json *cases = json_get(json_root(doc), "cases"), *context = json_get(json_root(doc), "context");
    const json nothing = {.kind = JSON_STRING, .string = ""};
    const size_t step = (size_t)test_stride(4);
    int64_t for_context = sweep_rendering(&nothing, context, 1), first = for_context - 50, all = 0;
    for (size_t i = 0; i < cases->n; i += step) {
        int64_t n = sweep_rendering(json_get(&cases->items[i], "template"), context, first);
        if (n > 0) all += n - first;
    }
    assert_true(all > 100000 / (int64_t)step);
    print_message("%lld budgets of %zu templates\n", (long long)all, cases->n);
    json_close(&doc);
}

/* Memory is counted in large blocks; published templates take many of them. */
static void rendering_fails_cleanly_at_every_memory_limit(void **state) {
    (void)state;
    enum { BETWEEN = 1 << 10, PLENTY = 64 << 20 };
    json_doc *doc = open_json(data_path("chat-templates/rendered.json"));
    const json *templates = json_get(json_root(doc), "templates"),
               *context = json_get(json_get(json_root(doc), "contexts"), "tool_use");
    int64_t all = 0;
    for (size_t i = 0; i < templates->n; i += test_is_long() ? 1 : 8) {
        const json *text = json_get(&templates->items[i], "template");
        jinja_template *template = NULL;
        bytes wanted = {0}, out = {0};
        mn_status status = MN_E_FULL;
        for (size_t memory = 0; status == MN_E_FULL; memory += BETWEEN, all++) {
            status = compile_within(text, 10000000, memory);
            if (status == MN_E_FULL) assert_non_null(strstr(mn_last_error(), "bytes of memory are needed"));
        }
        assert_ok(status);
        assert_ok(jinja_compile(&template, text->string, text->n));
        mn_status answer = jinja_render(template, context, NULL, &recorded_date, &wanted);
        int64_t live = mem_count().live;
        status = MN_E_FULL;
        for (int64_t memory = BETWEEN; status == MN_E_FULL && memory < PLENTY; memory += BETWEEN, all++) {
            status = jinja_render(template, context, &(jinja_limits){.memory = memory}, &recorded_date, &out);
            if (status != MN_E_FULL) break;
            assert_non_null(strstr(mn_last_error(), "bytes of memory are needed"));
            assert_int_equal(out.n, 0);
            bytes_clear(&out);
            assert_int_equal(mem_count().live, live);
        }
        assert_int_equal(status, answer);
        assert_int_equal(out.n, wanted.n);
        if (wanted.n) assert_memory_equal(out.data, wanted.data, wanted.n);
        bytes_clear(&wanted);
        bytes_clear(&out);
        jinja_close(&template);
    }
    print_message("%lld limits of memory\n", (long long)all);
    assert_true(all > 500);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compilation_fails_cleanly_at_every_step_limit),
        cmocka_unit_test(rendering_fails_cleanly_at_every_step_limit),
        cmocka_unit_test(rendering_fails_cleanly_at_every_memory_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
