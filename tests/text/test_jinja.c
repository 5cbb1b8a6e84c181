/* The Jinja engine against recorded results of Python's Jinja2; budgets; hostile templates.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <time.h>

#include "text/chat.h"
#include "text/jinja/jinja.h"

/* 2025-07-10 12:00:00, a Thursday: the date of all recorded results. */
static const struct tm recorded_date = {
    .tm_year = 125, .tm_mon = 6, .tm_mday = 10, .tm_hour = 12, .tm_wday = 4, .tm_yday = 190};

static mn_status render_with(const char *text, size_t n, const json *context, const jinja_limits *limits, bytes *out) {
    jinja_template *template = NULL;
    mn_status status = jinja_compile(&template, text, n);
    if (status == MN_OK) status = jinja_render(template, context, limits, &recorded_date, out);
    jinja_close(&template);
    return status;
}

static mn_status render(const char *text, bytes *out) {
    return render_with(text, strlen(text), NULL, NULL, out);
}

/* ---- recorded results ---- */

/* The text of raise_exception must be the whole message. */
static bool right_error(const char *wanted, mn_status status) {
    static const char raised[] = "TemplateError: ";
    if (strncmp(wanted, "RecursionError", 14) == 0) return status == MN_E_FULL;
    if (status != MN_E_ARG && status != MN_E_FORMAT) return false;
    if (strncmp(wanted, raised, sizeof raised - 1) != 0) return true;
    char message[1024];
    snprintf(message, sizeof message, "chat template: %s", wanted + sizeof raised - 1);
    return status == MN_E_ARG && strcmp(mn_last_error(), message) == 0;
}

/* 1 when the template gives `answer` ({"output"} or {"error"}), else 0 with a line about the difference. */
static int agrees(const char *name, const json *template, const json *context, const json *answer) {
    const json *output = json_get(answer, "output"), *error = json_get(answer, "error");
    bytes out = {0};
    assert_true((output != NULL) != (error != NULL));
    mn_status status = render_with(template->string, template->n, context, NULL, &out);
    bool right = output ? status == MN_OK && out.n == output->n && memcmp(bytes_text(&out), output->string, out.n) == 0
                        : right_error(error->string, status);
    if (!right) {
        print_error("%s\n  wanted: %s\n  got %d: %s\n", name, output ? output->string : error->string, status,
                    status == MN_OK ? bytes_text(&out) : mn_last_error());
    }
    bytes_clear(&out);
    return right;
}

static void small_templates_agree_with_python(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("jinja/differential.json"));
    const json *cases = json_get(json_root(doc), "cases"), *context = json_get(json_root(doc), "context");
    size_t right = 0;
    assert_true(cases->n > 600);
    for (size_t i = 0; i < cases->n; i++) {
        const json *template = json_get(&cases->items[i], "template");
        right += (size_t)agrees(template->string, template, context, &cases->items[i]);
    }
    assert_int_equal(right, cases->n);
    json_close(&doc);
}

static void tests_of_another_engine_pass(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("chat-templates/jinja-unit.json"));
    const json *cases = json_root(doc);
    size_t right = 0;
    assert_true(cases->n > 150);
    for (size_t i = 0; i < cases->n; i++) {
        const json *c = &cases->items[i];
        right += (size_t)agrees(json_get(c, "name")->string, json_get(c, "template"), json_get(c, "context"),
                                json_get(c, "jinja2"));
    }
    assert_int_equal(right, cases->n);
    json_close(&doc);
}

static void published_prompts_are_reproduced(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("chat-templates/e2e.json"));
    const json *cases = json_root(doc);
    size_t right = 0;
    assert_true(cases->n > 30);
    for (size_t i = 0; i < cases->n; i++) {
        const json *c = &cases->items[i], *other = json_get(c, "jinja2");
        const json_member target = {"output", 6, *json_get(c, "target")};
        const json published = {.kind = JSON_OBJECT, .n = 1, .members = &target};
        right += (size_t)agrees(json_get(c, "name")->string, json_get(c, "chat_template"), json_get(c, "data"),
                                json_get(c, "jinja2_agrees")->boolean ? &published : other);
    }
    assert_int_equal(right, cases->n);
    json_close(&doc);
}

static size_t check_renderings(const char *name, const json *template, const json *results, const json *contexts) {
    size_t right = 0;
    for (size_t i = 0; i < results->n; i++) {
        char what[300];
        snprintf(what, sizeof what, "%.200s with %.60s", name, results->members[i].key);
        right +=
            (size_t)agrees(what, template, json_get(contexts, results->members[i].key), &results->members[i].value);
    }
    return right;
}

static void real_templates_agree_with_python(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("chat-templates/rendered.json"));
    const json *templates = json_get(json_root(doc), "templates"), *contexts = json_get(json_root(doc), "contexts");
    size_t right = 0, all = 0;
    for (size_t i = 0; i < templates->n; i++) {
        const json *t = &templates->items[i], *results = json_get(t, "results");
        right += check_renderings(json_get(t, "name")->string, json_get(t, "template"), results, contexts);
        all += results->n;
    }
    assert_true(all > 300);
    assert_int_equal(right, all);
    json_close(&doc);
}

static uint64_t fnv(const char *data, size_t n) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)data[i]) * 0x100000001B3u;
    return hash;
}

typedef mn_status (*renderer)(const json *template, const json *conversation, bytes *out);

static mn_status render_context(const json *template, const json *conversation, bytes *out) {
    return render_with(template->string, template->n, conversation, NULL, out);
}

static mn_status render_chat(const json *template, const json *conversation, bytes *out) {
    const chat_request request = {.messages = json_get(conversation, "messages"),
                                  .tools = json_get(conversation, "tools"),
                                  .tokens = {"<s>", "</s>", "<pad>", "<unk>"},
                                  .add_generation_prompt = true,
                                  .now = &recorded_date};
    return chat_render_text(template->string, template->n, &request, out);
}

/* 1 when the text has the recorded length and hash, or when it failed as recorded. */
static size_t agrees_with_hash(const char *name, const json *template, const json_member *conversation,
                               const json *answer, renderer render_one) {
    char got[100];
    bytes out = {0};
    mn_status status = render_one(template, &conversation->value, &out);
    snprintf(got, sizeof got, "%zu %016llx", out.n, (unsigned long long)fnv(bytes_text(&out), out.n));
    bool is_error = strchr(answer->string, ':') != NULL,
         right = is_error ? right_error(answer->string, status) : status == MN_OK && strcmp(got, answer->string) == 0;
    if (!right) {
        print_error("%s with %s\n  wanted: %s\n  got %d: %s\n", name, conversation->key, answer->string, status,
                    status == MN_OK ? bytes_text(&out) : mn_last_error());
    }
    bytes_clear(&out);
    return right;
}

static size_t check_conversations(const json *results, const char *name, const json *template,
                                  const json *conversations, renderer render_one) {
    const json *answers = json_get(results, name);
    size_t right = 0;
    for (size_t i = 0; i < conversations->n; i++) {
        const json *answer = json_get(answers, conversations->members[i].key);
        right += agrees_with_hash(name, template, &conversations->members[i], answer, render_one);
    }
    return right;
}

/* Renders every template with the conversations of the file, those of rendered.json before them if `more`. */
static void check_templates(const char *file, bool more, size_t n_conversations, renderer render_one) {
    json_doc *first = open_json(data_path("chat-templates/rendered.json")), *second = open_json(data_path(file)),
             *published = open_json(data_path("chat-templates/e2e.json"));
    const json *results = json_get(json_root(second), "results");
    const json *conversations[2] = {json_get(json_root(second), "conversations"),
                                    json_get(json_root(first), "contexts")};
    const json *lists[2] = {json_get(json_root(first), "templates"), json_root(published)};
    size_t right = 0, n_templates = 0;
    assert_int_equal(conversations[0]->n + (more ? conversations[1]->n : 0), n_conversations);
    for (int list = 0; list < 2; list++) {
        for (size_t i = 0; i < lists[list]->n; i++) {
            const json *one = &lists[list]->items[i];
            char name[200];
            snprintf(name, sizeof name, "%s%s", list ? "e2e: " : "", json_get(one, "name")->string);
            if (!json_get(results, name)) continue; /* the same text as another */
            n_templates++;
            for (int k = 0; k <= more; k++)
                right += check_conversations(results, name, json_get(one, list ? "chat_template" : "template"),
                                             conversations[k], render_one);
        }
    }
    print_message("%zu templates with %zu conversations: %zu of %zu as Jinja2\n", n_templates, n_conversations, right,
                  n_conversations * n_templates);
    assert_int_equal(n_templates, results->n);
    assert_int_equal(right, n_conversations * n_templates);
    assert_true(n_templates >= 69);
    json_close(&first);
    json_close(&second);
    json_close(&published);
}

static void templates_with_twelve_conversations(void **state) {
    (void)state;
    check_templates("chat-templates/twelve.json", true, 12, render_context);
}

/* Members that are null or have another name: what Jinja2 made of the messages as apply_chat_template cleans them. */
static void templates_do_not_see_null_members(void **state) {
    (void)state;
    check_templates("chat-templates/nulls.json", false, 5, render_chat);
}

/* Templates that may not be distributed with the project. */
static void templates_outside_the_project_agree_with_python(void **state) {
    (void)state;
    const char *path = shared_path("data/chat-templates/rendered-jinja2.json");
    if (!path) skip();
    json_doc *doc = open_json(path);
    const json *rendered = json_get(json_root(doc), "rendered"), *contexts = json_get(json_root(doc), "contexts");
    size_t right = 0, all = 0;
    for (size_t i = 0; i < rendered->n; i++) {
        const char *name = rendered->members[i].key;
        char file[512], relative[600];
        snprintf(file, sizeof file, "%s", name);
        char *key = strchr(file, '#');
        if (key) *key++ = 0;
        snprintf(relative, sizeof relative, "data/%s", file);
        bytes text = {0};
        json_doc *config = NULL;
        json template = {.kind = JSON_STRING};
        assert_ok(file_read(&text, shared_path(relative), 1 << 28));
        if (key) {
            assert_ok(json_parse(&config, text.data, text.n, JSON_PYTHON, file));
            template = *json_get(json_root(config), key);
        } else {
            template.string = text.data;
            template.n = text.n;
        }
        right += check_renderings(name, &template, &rendered->members[i].value, contexts);
        all += rendered->members[i].value.n;
        json_close(&config);
        bytes_clear(&text);
    }
    assert_true(all > 500);
    assert_int_equal(right, all);
    json_close(&doc);
}

/* ---- errors ---- */

static void messages_name_the_line(void **state) {
    (void)state;
    bytes out = {0};
    bytes_append_text(&out, "before");
    assert_fails(MN_E_FORMAT, "chat template: line 3: unknown tag 'nosuch'", render("a\nb\n{% nosuch %}", &out));
    assert_fails(MN_E_FORMAT, "line 2: No filter named 'nosuch'", render("a\n{{ x|nosuch }}", &out));
    assert_fails(MN_E_ARG, "line 2: 'x' is undefined", render("abc\n{{ x.y }}", &out));
    assert_fails(MN_E_ARG, "line 1: 'dict object' has no attribute 'b'", render("{{ {'a': 1}.b.c }}", &out));
    assert_fails(MN_E_ARG, "line 4: division by zero", render("\n\n\n{{ 1 / 0 }}", &out));
    assert_fails(MN_E_ARG, "access to attribute 'append' of 'list' object is unsafe.",
                 render("{{ [].append(1) }}", &out));
    assert_fails(MN_E_FORMAT, "not valid UTF-8", render("a\xff", &out));
    assert_fails(MN_E_UNSUPPORTED, "random", render("{{ [1]|random }}", &out));
    assert_fails(MN_E_UNSUPPORTED, "random", render("{{ lipsum() }}", &out));
    assert_fails(MN_E_UNSUPPORTED, "line 1: the filter 'urlize' is not supported", render("{{ 'a'|urlize }}", &out));
    assert_fails(MN_E_FORMAT, "No filter named 'wordrap'; did you mean 'wordwrap'?", render("{{ 'a'|wordrap }}", &out));
    assert_fails(MN_E_UNSUPPORTED, "autoescape", render("{% autoescape true %}a{% endautoescape %}", &out));
    assert_fails(MN_E_UNSUPPORTED, "complex numbers", render("{{ (-8) ** 0.5 }}", &out));
    assert_fails(MN_E_FORMAT, "\\N{...} escapes", render("{{ '\\N{DIGIT ONE}' }}", &out));
    assert_fails(MN_E_ARG, NULL, render("{{ raise_exception('no') }}", &out));
    assert_string_equal(mn_last_error(), "chat template: no");
    assert_string_equal(bytes_text(&out), "before"); /* a failed rendering writes nothing */
    assert_ok(render(" and {{ 1 + 1 }}", &out));
    assert_string_equal(bytes_text(&out), "before and 2");
    bytes_clear(&out);
}

static void integers_do_not_overflow(void **state) {
    (void)state;
    static const char *const beyond[] = {
        "{{ 9223372036854775807 + 1 }}",
        "{{ -9223372036854775807 - 2 }}",
        "{{ 2 ** 63 }}",
        "{{ 4611686018427387904 * 2 }}",
        "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ -(-9223372036854775807 - 1) }}",
        "{{ 1e30|int }}",
        "{{ (-9223372036854775807 - 1)|abs }}",
        "{{ 9223372036854775807|round(-14) }}",
        "{{ '%d' % 1e30 }}",
    };
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        bytes out = {0};
        mn_status status = render(beyond[i], &out);
        if (status != MN_E_ARG) fail_msg("%s: %d %s", beyond[i], status, bytes_text(&out));
        bytes_clear(&out);
    }
    bytes out = {0};
    assert_fails(MN_E_FORMAT, "64 bits", render("{{ 9223372036854775808 }}", &out));
    assert_ok(render(
        "{{ (-9223372036854775807 - 1) % -1 }} {{ range(9223372036854775807, 9223372036854775806, -1)|list }}"
        "{{ 'x'.center(-9223372036854775807 - 1) }}{{ 'abc'[::-9223372036854775807 - 1] }}{{ 'abc'[9223372036854775807:] }}",
        &out));
    assert_string_equal(bytes_text(&out), "0 [9223372036854775807]xc");
    bytes_clear(&out);
}

/* ---- budgets ---- */

static void hostile_templates_end_quickly(void **state) {
    (void)state;
    static const char *const templates[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ [1] * 1000000000 }}",
        "{{ 'abc'.center(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a\tb'.expandtabs(1000000000) }}",
        "{{ '1'.zfill(1000000000) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
        "{% set ns = namespace(x=['ab']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=['ab']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        ("{% set ns = namespace(x=['ab'], y=['ab']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
         "{% endfor %}{{ ns.x == ns.y }}"),
        "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson(indent=1) }}",
        "{% set ns = namespace(x=1, y=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        "{% set ns = namespace(x=1, y=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x < ns.y }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set ns = namespace(g=[1]) %}{% for i in range(100000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s.replace('a', s) }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{{ s.rfind('b' + s[:500000]) }}{{ s.strip('b' * 1000000 ~ 'a') }}",
        "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% if s == s ~ '' %}{% endif %}{% endfor %}",
        "{% set s = 'a' * 10000000 %}{% set d = {s: 1} %}{% for i in range(100000) %}{{ d[s] }}{% endfor %}",
        "{{ (['a' * 1000000] * 1000) | join }}",
        "{% set x %}{% for i in range(100000) %}{% for j in range(1000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}{% endset %}",
        "{{ range(100000) | map('string') | list * 100000 }}",
        "{{ range(100000) | slice(9223372036854775807) | list }}",
        "{{ range(10) | batch(9223372036854775807, 'x') | list }}",
        "{% macro m(x) %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m(1) %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}",
    };
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        bytes out = {0};
        clock_t start = clock();
        mn_status status = render(templates[i], &out);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (status != MN_E_FULL) fail_msg("%s: %d %s", templates[i], status, mn_last_error());
        if (seconds > 20) fail_msg("%s: %.1f s", templates[i], seconds); /* a second without sanitizers */
        bytes_clear(&out);
    }
}

/* A deep nest of `open`, `middle`, `close`. */
static void append_nest(bytes *text, const char *open, const char *middle, const char *close, int n) {
    for (int i = 0; i < n; i++) bytes_append_text(text, open);
    bytes_append_text(text, middle);
    for (int i = 0; i < n; i++) bytes_append_text(text, close);
}

static void published_templates_stay_far_below_the_limits(void **state) {
    (void)state;
    bytes out = {0}, text = {0};
    append_nest(&text, "{% if 1 %}", "{{ ((((((((((1)))))))))) + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 }}",
                "{% endif %}", 40);
    assert_ok(render_with(text.data, text.n, NULL, NULL, &out));
    assert_string_equal(bytes_text(&out), "11");
    bytes_clear(&out);
    bytes_clear(&text);
}

/* Long chains of operators, in brackets, in such chains: operators do not count as nesting, brackets do. */
static void long_chains_do_not_nest(void **state) {
    (void)state;
    bytes text = {0}, out = {0};
    bytes_append_text(&text, "{{ ");
    for (int i = 0; i < 40; i++) bytes_append_text(&text, "(");
    bytes_append_text(&text, "1");
    for (int i = 0; i < 40; i++) append_nest(&text, " + 1", ")", "", 900);
    bytes_append_text(&text, " }}");
    assert_ok(render_with(text.data, text.n, NULL, NULL, &out));
    assert_string_equal(bytes_text(&out), "36001");
    bytes_clear(&text);
    bytes_clear(&out);
}

static void many_variables_are_refused(void **state) {
    (void)state;
    bytes text = {0}, out = {0};
    for (int i = 0; i < 30000; i++) bytes_printf(&text, "{%% if a%d %%}{%% endif %%}", i);
    assert_fails(MN_E_FULL, "too many steps", render_with(text.data, text.n, NULL, NULL, &out));
    bytes_clear(&text);
    bytes_clear(&out);
}

static void limits_can_be_set(void **state) {
    (void)state;
    const char *text = "{% for i in range(1000) %}{{ i }}{% endfor %}";
    bytes out = {0};
    assert_ok(render_with(text, strlen(text), NULL, NULL, &out));
    assert_int_equal(out.n, 2890);
    assert_fails(MN_E_FULL, "steps", render_with(text, strlen(text), NULL, &(jinja_limits){.steps = 100}, &out));
    assert_fails(MN_E_FULL, "output", render_with(text, strlen(text), NULL, &(jinja_limits){.output = 2000}, &out));
    assert_fails(MN_E_FULL, "memory", render_with(text, strlen(text), NULL, &(jinja_limits){.memory = 1000}, &out));
    assert_fails(MN_E_FULL, "deep", render_with(text, strlen(text), NULL, &(jinja_limits){.depth = 1}, &out));
    bytes_clear(&out);
}

/* ---- failing memory, mutated templates, speed ---- */

static const json *find_template(const json *templates, const char *name) {
    for (size_t i = 0; i < templates->n; i++) {
        if (json_is_string(json_get(&templates->items[i], "name"), name))
            return json_get(&templates->items[i], "template");
    }
    fail_msg("no template %s", name);
    return NULL;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char *const names[] = {"llama.cpp/Qwen-Qwen3-0.6B.jinja", "llama.cpp/openai-gpt-oss-120b.jinja",
                                        "mistral-common/v3.jinja"};
    json_doc *doc = open_json(data_path("chat-templates/rendered.json"));
    const json *context = json_get(json_get(json_root(doc), "contexts"), "tool_use");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json *text = find_template(json_get(json_root(doc), "templates"), names[i]);
        int64_t live = mem_count().live, k = 1;
        for (;; k++) {
            bytes out = {0};
            mem_fail_after(k);
            mn_status status = render_with(text->string, text->n, context, NULL, &out);
            mem_fail_after(0);
            bytes_clear(&out);
            assert_int_equal(mem_count().live, live);
            if (status != MN_E_NOMEM) break;
        }
        assert_true(k > 10);
    }
    json_close(&doc);
}

/* Changes, removes or doubles bytes, or inserts a piece of another template. */
static void mutate(bytes *text, const json *other, uint64_t *seed) {
    static const char alphabet[] = "{}%#-+|.,:()[]'\"~=!<>*/ \n\\0129abnortsifxelu";
    for (int n = 1 + (int)(test_random(seed) % 4); n > 0 && text->n > 8; n--) {
        size_t at = test_random(seed) % text->n, length = 1 + test_random(seed) % 40;
        if (length > text->n - at) length = text->n - at;
        switch (test_random(seed) % 4) {
        case 0: text->data[at] = alphabet[test_random(seed) % (sizeof alphabet - 1)]; break;
        case 1:
            memmove(text->data + at, text->data + at + length, text->n - at - length);
            text->n -= length;
            break;
        case 2: bytes_append(text, "{{", 2); break;
        default:
            if (other->n < length) break;
            memcpy(text->data + at, other->string + test_random(seed) % (other->n - length + 1), length);
        }
    }
}

static void mutated_templates_never_crash(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("chat-templates/rendered.json")),
             *cases = open_json(data_path("jinja/differential.json"));
    const json *templates = json_get(json_root(doc), "templates"), *small = json_get(json_root(cases), "cases");
    const json *contexts[2] = {json_get(json_get(json_root(doc), "contexts"), "tool_use"),
                               json_get(json_root(cases), "context")};
    const jinja_limits limits = {.steps = 200000, .memory = 8 << 20, .output = 1 << 20};
    uint64_t seed = 1;
    int accepted = 0, tried = 3000;
    for (int i = 0; i < tried; i++) {
        bool big = i % 4 == 0;
        const json *list = big ? templates : small,
                   *other = json_get(&small->items[test_random(&seed) % small->n], "template");
        const json *from = json_get(&list->items[test_random(&seed) % list->n], "template");
        bytes text = {0}, out = {0};
        bytes_append(&text, from->string, from->n);
        mutate(&text, other, &seed);
        mn_status status = render_with(text.data ? text.data : "", text.n, contexts[!big], &limits, &out);
        accepted += status == MN_OK;
        if (status != MN_OK) assert_int_equal(out.n, 0);
        bytes_clear(&text);
        bytes_clear(&out);
    }
    assert_true(accepted > tried / 20 && accepted < tried);
    json_close(&doc);
    json_close(&cases);
}

static void rendering_a_conversation_takes_under_its_limit(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("chat-templates/rendered.json"));
    const json *context = json_get(json_get(json_root(doc), "contexts"), "tool_use");
    const json *text = find_template(json_get(json_root(doc), "templates"), "llama.cpp/Qwen-Qwen3-0.6B.jinja");
    jinja_template *template = NULL;
    bytes out = {0};
    enum { TIMES = 200 };
    assert_ok(jinja_compile(&template, text->string, text->n));
    clock_t start = clock();
    for (int i = 0; i < TIMES; i++) {
        out.n = 0;
        assert_ok(jinja_render(template, context, NULL, &recorded_date, &out));
    }
    double each = (double)(clock() - start) / CLOCKS_PER_SEC / TIMES;
    print_message("a conversation of 12 messages with 4 tools, %zu bytes: %.3f ms\n", out.n, each * 1e3);
    assert_true(each < 0.02); /* far below 1 ms without sanitizers; the limit catches a change of complexity */
    bytes_clear(&out);
    jinja_close(&template);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_templates_agree_with_python),
        cmocka_unit_test(tests_of_another_engine_pass),
        cmocka_unit_test(published_prompts_are_reproduced),
        cmocka_unit_test(real_templates_agree_with_python),
        cmocka_unit_test(templates_with_twelve_conversations),
        cmocka_unit_test(templates_do_not_see_null_members),
        cmocka_unit_test(templates_outside_the_project_agree_with_python),
        cmocka_unit_test(messages_name_the_line),
        cmocka_unit_test(integers_do_not_overflow),
        cmocka_unit_test(hostile_templates_end_quickly),
        cmocka_unit_test(published_templates_stay_far_below_the_limits),
        cmocka_unit_test(long_chains_do_not_nest),
        cmocka_unit_test(many_variables_are_refused),
        cmocka_unit_test(limits_can_be_set),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(mutated_templates_never_crash),
        cmocka_unit_test(rendering_a_conversation_takes_under_its_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
