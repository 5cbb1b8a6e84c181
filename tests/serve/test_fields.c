/* Every field of every route at its edges and beyond them, with every wrong kind of value: what is taken, what is
 * refused by name, never a failure of the server. The documents have every route and field.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/file.h"
#include "request/fields.h"
#include "routes.h"
#include "serve/fixture.h"
#include "serve/oracle.h"
#include "support/scratch.h"

static fixture open_fixture(void) {
    static char folder[1024];
    snprintf(folder, sizeof folder, "%s", scratch_empty("fields"));
    return serve_embedded(TOOL_TEMPLATE, (serve_options){.max_num_seqs = 16, .cache_dir = folder});
}

/* ---- bodies ---- */

/* The smallest body of a form, with one field set (f NULL: none), sampled and short. */
static char *make_body(unsigned form, const field *f, const char *value) {
    bytes b = {0};
    const field *g;
    bytes_append_text(&b, "{");
    for (size_t i = 0; (g = field_at(i)); i++) {
        if (g->bodies & form && g->is_required && g != f) bytes_printf(&b, "\"%s\":%s,", g->name, g->example);
    }
    if (form & (BODY_GENERATE | BODY_CACHE)) {
        bool is_prompt =
            f && (strcmp(f->name, "prompt") == 0 || strcmp(f->name, "ids") == 0 || strcmp(f->name, "messages") == 0);
        if (!is_prompt) bytes_append_text(&b, "\"prompt\":\"Once\",");
        if (form & BODY_GENERATE && (!f || strcmp(f->name, "generation_config") != 0))
            bytes_append_text(&b, "\"generation_config\":{\"max_new_tokens\":1},");
    }
    if (f && (strcmp(f->name, "cache_config") == 0 || strcmp(f->name, "cache.config") == 0))
        bytes_append_text(&b, "\"cache_implementation\":\"dynamic\",");
    bool is_text = form & BODY_DIALECT;
    const char *most = form & BODY_RESPONSES ? "max_output_tokens" : "max_tokens";
    if (form & (BODY_TEXT | BODY_RESPONSES) && (!f || strcmp(f->name, most) != 0)) bytes_printf(&b, "\"%s\":1,", most);
    if (is_text && (!f || strcmp(f->name, "temperature") != 0)) bytes_append_text(&b, "\"temperature\":1,");
    if (f && form == BODY_CHAT && strcmp(f->name, "top_logprobs") == 0) bytes_append_text(&b, "\"logprobs\":true,");
    const char *dot = f ? strchr(f->name, '.') : NULL;
    if (dot)
        bytes_printf(&b, "\"%.*s\":{\"%s\":%s},", (int)(dot - f->name), f->name, dot + 1, value);
    else if (f)
        bytes_printf(&b, "\"%s\":%s,", f->name, value);
    if (b.data[b.n - 1] == ',') b.n--;
    bytes_append_text(&b, "}");
    char *text = mem_copy_text(b.data, b.n);
    bytes_clear(&b);
    return text;
}

typedef enum verdict { TAKEN, REFUSED_BY_NAME, EITHER } verdict;

static int n_asked;

/* {id} is that of a text that is kept, made anew as its time may have ended; a saved text has its name. */
static void put_path(char *path, size_t n, const fixture *w, const route *r) {
    const char *hole = strchr(r->path, '{'), *rest = hole ? strchr(hole, '}') : NULL;
    snprintf(path, n, "%s", r->path);
    if (!rest) return;
    answer_text a = client_ask(w->port, "/v1/caches", "{\"prompt\":\"There was\"}");
    json_doc *doc = client_json(&a);
    const long long id = json_get(json_root(doc), "id")->integer;
    json_close(&doc);
    client_clear(&a);
    snprintf(path, n, "%.*s%lld%s", (int)(hole - r->path), r->path, id, rest + 1);
    if (!strstr(r->path, "/saved/")) return;
    snprintf(path, n, "/v1/caches/%lld/save", id);
    a = client_ask(w->port, path, "{\"name\":\"girl\"}");
    assert_int_equal(a.status, 200);
    client_clear(&a);
    snprintf(path, n, "%.*sgirl", (int)(hole - r->path), r->path);
}

static void ask(const fixture *w, const route *r, const field *f, const char *value, verdict wanted) {
    if (r->form & BODY_SPEECH) return; /* test_recordings */
    char *body = make_body(r->form, f, value), path[128];
    put_path(path, sizeof path, w, r);
    answer_text a = client_ask(w->port, path, body);
    n_asked++;
    if (a.status != 200 && a.status != 400) fail_msg("%s %.300s: %d %s", r->path, body, a.status, a.body.data);
    if (wanted != EITHER && (a.status == 200) != (wanted == TAKEN))
        fail_msg("%s %.300s: %d %.300s", r->path, body, a.status, a.body.data);
    if (a.status == 400) {
        json_doc *doc = client_json(&a);
        const json *error = json_get(json_root(doc), "error");
        bool is_named = r->form & BODY_ANTHROPIC || json_is_string(json_get(error, "param"), f->name);
        if (!is_named) fail_msg("%s %.300s: %s", r->path, body, a.body.data);
        if (!strstr(json_get(error, "message")->string, f->name)) fail_msg("%s %.300s: %s", r->path, body, a.body.data);
        json_close(&doc);
    }
    client_clear(&a);
    mem_free(body);
}

static void ask_number(const fixture *w, const route *r, const field *f, double value, verdict wanted) {
    char text[64];
    snprintf(text, sizeof text, "%.17g", value);
    ask(w, r, f, text, wanted);
}

/* n bytes in quotes, or n items. */
static void ask_many(const fixture *w, const route *r, const field *f, unsigned kind, size_t n, verdict wanted) {
    bytes b = {0};
    bytes_append_text(&b, kind == TAKES_STRING ? "\"" : kind == TAKES_LIST ? "[" : "{");
    for (size_t i = 0; i < n; i++) {
        if (kind == TAKES_STRING) bytes_append_text(&b, "a");
        if (kind == TAKES_LIST) bytes_append_text(&b, i ? ",1" : "1");
        if (kind == TAKES_OBJECT) bytes_printf(&b, "%s\"%zu\":1", i ? "," : "", i);
    }
    bytes_append_text(&b, kind == TAKES_STRING ? "\"" : kind == TAKES_LIST ? "]" : "}");
    ask(w, r, f, bytes_text(&b), wanted);
    bytes_clear(&b);
}

/* ---- edges ---- */

/* What the range alone does not decide: what else the body says, or the text inside, does. */
static bool has_more_rules(const field *f) {
    static const char *const names[] = {"best_of", "grammar", "model", "regex", "stop"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(f->name, names[i]) == 0) return true;
    }
    return false;
}

static bool is_refused(const field *f) {
    return f->kinds == TAKES_ANY && f->apply;
}

/* Where integers and doubles of the languages around us end. */
static const char *const extremes[] = {"0",
                                       "-0",
                                       "-1",
                                       "-2147483648",
                                       "-2147483649",
                                       "2147483647",
                                       "2147483648",
                                       "4294967295",
                                       "4294967296",
                                       "9007199254740993",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "-9223372036854775808",
                                       "18446744073709551615",
                                       "18446744073709551616",
                                       "1e308",
                                       "-1.7976931348623157e308",
                                       "5e-324",
                                       "1e-400"};

enum { N_EXTREMES = sizeof extremes / sizeof *extremes };

static void ask_edges(const fixture *w, const route *r, const field *f) {
    verdict inside = has_more_rules(f) ? EITHER : TAKEN;
    if (f->kinds == TAKES_ANY) return;
    if (f->kinds & (TAKES_NUMBER | TAKES_INTEGER)) {
        ask_number(w, r, f, f->low, inside);
        ask_number(w, r, f, f->high, inside);
        ask_number(w, r, f, f->low - 1, REFUSED_BY_NAME);
        ask_number(w, r, f, f->high * 2 + 1, REFUSED_BY_NAME);
    }
    for (size_t i = 0; f->kinds & (TAKES_NUMBER | TAKES_INTEGER) && test_is_long() && i < N_EXTREMES; i++)
        ask(w, r, f, extremes[i], EITHER);
    if (f->kinds == TAKES_INTEGER) {
        ask_number(w, r, f, f->low + 0.5, REFUSED_BY_NAME);
        ask(w, r, f, "99999999999999999999999", REFUSED_BY_NAME);
    }
    if (f->kinds == TAKES_NUMBER) {
        ask_number(w, r, f, nextafter(f->low, -INFINITY), REFUSED_BY_NAME);
        ask_number(w, r, f, nextafter(f->high, INFINITY), REFUSED_BY_NAME);
    }
    for (unsigned kind = TAKES_STRING; kind <= TAKES_OBJECT; kind <<= 1) {
        if (!(f->kinds & kind) || strcmp(f->name, "model") == 0) continue;
        if (f->least) ask_many(w, r, f, kind, f->least - 1, REFUSED_BY_NAME);
        if (f->most) ask_many(w, r, f, kind, f->most + 1, REFUSED_BY_NAME);
        ask_many(w, r, f, kind, f->least, EITHER);
        if (f->most) ask_many(w, r, f, kind, f->most, EITHER);
    }
    if (f->kinds & TAKES_FLAG) {
        ask(w, r, f, "true", inside);
        ask(w, r, f, "false", inside);
    }
    if (f->choices) ask(w, r, f, "\"no such choice\"", REFUSED_BY_NAME);
}

static void ask_kinds(const fixture *w, const route *r, const field *f, int number) {
    static const struct {
        unsigned kinds;
        const char *value;
    } of[] = {{TAKES_FLAG, "true"},
              {TAKES_INTEGER | TAKES_NUMBER, "3"},
              {TAKES_NUMBER, "0.5"},
              {TAKES_STRING, "\"text\""},
              {TAKES_LIST, "[]"},
              {TAKES_LIST, "[null]"},
              {TAKES_LIST, "[[1,[\"x\"]],{}]"},
              {TAKES_OBJECT, "{}"},
              {TAKES_OBJECT, "{\"\":null}"},
              {TAKES_OBJECT, "{\"type\":[1e300]}"},
              {TAKES_STRING, "\"NaN\""},
              {TAKES_STRING, "\"-Infinity\""},
              {TAKES_STRING, "\"1e400\""},
              {TAKES_STRING, "\"\\u0000\""},
              {TAKES_STRING, "\"\\ud83d\\ude00\""},
              {TAKES_STRING, "\"\""}};
    if (strcmp(f->name, "model") == 0) return; /* another name: 404 */
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (!test_samples((int)i + number, 4)) continue;
        bool is_any = f->kinds == TAKES_ANY && !f->apply;
        ask(w, r, f, of[i].value,
            is_any                   ? TAKEN
            : f->kinds & of[i].kinds ? EITHER
            : is_refused(f)          ? EITHER
                                     : REFUSED_BY_NAME);
    }
    if (is_refused(f)) ask(w, r, f, "{\"a\":1}", REFUSED_BY_NAME);
    bool is_only_prompt = r->form & (BODY_GENERATE | BODY_CACHE) && strcmp(f->name, "prompt") == 0;
    bool is_other_prompt =
        r->form & (BODY_GENERATE | BODY_CACHE) && (strcmp(f->name, "ids") == 0 || strcmp(f->name, "messages") == 0);
    if (is_other_prompt)
        (void)0; /* without it the prompt is missing: refused by the name of that */
    else if (f->is_required || is_only_prompt)
        ask(w, r, f, "null", REFUSED_BY_NAME);
    else
        ask(w, r, f, "null", TAKEN);
    if (f->example) ask(w, r, f, f->example, TAKEN);
}

static void ask_what_json_is_not(const fixture *w, const route *r, const field *f) {
    static const char *const values[] = {"NaN", "Infinity", "-Infinity", "nan", "01",       "+1",
                                         ".5",  "0x10",     "1.",        "'a'", "undefined"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char *body = make_body(r->form, f, values[i]);
        answer_text a = client_ask(w->port, r->path, body);
        const char *code = r->form & BODY_ANTHROPIC ? "invalid_request_error" : "invalid_json";
        if (a.status != 400 || !strstr(a.body.data, code)) fail_msg("%s %s: %d", r->path, body, a.status);
        client_clear(&a);
        mem_free(body);
    }
}

static void R26_every_field_at_its_edges_and_beyond(void **state) {
    (void)state;
    fixture w = open_fixture();
    const route *r;
    const field *f;
    int n_fields = 0;
    for (size_t i = 0; (r = route_at(i)); i++) {
        bool has_strange = false;
        for (size_t k = 0; r->form && (f = field_at(k)); k++) {
            if (!(f->bodies & r->form)) continue;
            n_fields++;
            ask_edges(&w, r, f);
            ask_kinds(&w, r, f, n_fields);
            if (!has_strange && !(r->form & BODY_SPEECH)) ask_what_json_is_not(&w, r, f);
            has_strange = true;
        }
    }
    print_message("%d requests with %d fields\n", n_asked, n_fields);
    assert_true(n_fields > 60 && n_asked > 1000 / test_stride(2));
    close_fixture(&w);
}

/* The fields inside of generation_config, from the library's own table. What is taken is computed, a token of it. */
static void R26_fields_of_generation_at_any_value(void **state) {
    (void)state;
    static const char *const others[] = {"true", "null", "[]", "[-1]", "[[1]]", "{}", "\"\"", "\"x\"", "0.5", "1e400"};
    enum { N_OTHERS = sizeof others / sizeof *others };
    fixture w = open_fixture();
    const mn_generation_field *f;
    int n = 0;
    for (int i = 0; (f = mn_generation_field_at(i)); i++) {
        for (size_t k = 0; k < N_EXTREMES + N_OTHERS; k++) {
            const char *value = k < N_EXTREMES ? extremes[k] : others[k - N_EXTREMES];
            const char *bound = strcmp(f->name, "max_new_tokens") == 0 ? "" : ",\"max_new_tokens\":1";
            char body[512];
            if (!test_is_long() && ((size_t)i + k) % 8) continue;
            snprintf(body, sizeof body, "{\"ids\":[1,5],\"generation_config\":{\"%s\":%s%s}}", f->name, value, bound);
            answer_text a = client_ask(w.port, "/v1/generate", body);
            if (a.status != 200 && a.status != 400) fail_msg("%s: %d %s", body, a.status, a.body.data);
            const bool is_named = strstr(a.body.data, "generation_config") || strstr(a.body.data, f->name);
            if (a.status == 400 && !is_named) fail_msg("%s: %s", body, a.body.data);
            client_clear(&a);
            n++;
        }
    }
    print_message("%d requests\n", n);
    assert_true(n > (test_is_long() ? 1000 : 100));
    close_fixture(&w);
}

/* ---- fields of generation by their own names ---- */

/* Values that they take, where the kind alone does not say; with what they need beside them, without which the
 * library refuses them. */
static const struct {
    const char *name, *value, *beside;
} named_values[] = {
    {"early_stopping", "\"never\"", NULL},
    {"num_assistant_tokens_schedule", "\"heuristic\"", NULL},
    {"force_words_ids", "[[300]]", "\"num_beams\":2"},
    {"num_beam_groups", "2", "\"num_beams\":2,\"diversity_penalty\":0.5"},
    {"diversity_penalty", "0.5", "\"num_beams\":2,\"num_beam_groups\":2"},
    {"do_sample", "true", "\"seed\":3"},
    {"num_return_sequences", "2", "\"num_beams\":2"},
    {"dola_layers", "[1]", NULL},
    {"eos_token_id", "[300,403]", NULL},
    {"penalty_alpha", "0.5", "\"top_k\":4"},
    {"regex", "\"[a-c]{3}\"", NULL},
    {"logit_bias", "{\"300\":-5}", NULL},
    {"cache_implementation", "\"offloaded\"", NULL},
    {"cache_config", "{\"window_length\":8}", "\"cache_implementation\":\"sink\""},
};

static const struct {
    const char *kind, *value, *wrong;
} kinds[] = {
    {"integer", "2", "\"x\""},          {"number", "0.5", "[]"},         {"boolean", "true", "3"},
    {"choice", NULL, "\"sometimes\""},  {"string", NULL, "3"},           {"schema", "{\"type\":\"boolean\"}", "3"},
    {"integers", "[300]", "\"x\""},     {"strings", "[\"zz\"]", "3"},    {"lists of integers", "[[300]]", "[300]"},
    {"biases", "[[[300],5]]", "\"x\""}, {"object", "{\"bias\":2}", "3"}, {"pair", "[1,1.5]", "[1]"},
    {"layers", NULL, "\"middle\""},
};

/* One that has a row is of narrower limits, or of another kind, there: tested above. */
static bool has_own_row(unsigned form, const char *name) {
    const field *f;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (f->bodies & form && strcmp(f->name, name) == 0) return true;
    }
    return false;
}

static void expect_refused(const fixture *w, const route *r, const char *name, const char *value) {
    char body[512];
    bytes message = {0};
    snprintf(body, sizeof body, "{%s,\"max_tokens\":1,\"%s\":%s}",
             r->form == BODY_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" : "\"prompt\":\"a\"", name,
             value);
    answer_text a = client_ask(w->port, r->path, body);
    if (a.status != 400) fail_msg("%s %s: %d %s", r->path, body, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    const json *error = json_get(json_root(doc), "error");
    bytes_append_text(&message, json_get(error, "message")->string);
    if (!json_is_string(json_get(error, "param"), name) || !strstr(bytes_text(&message), name) ||
        !strstr(message.data, "allowed: ") || !json_is_string(json_get(error, "type"), "invalid_request_error"))
        fail_msg("%s %s: %s", r->path, body, a.body.data);
    json_close(&doc);
    client_clear(&a);
    bytes_clear(&message);
}

/* The answer has the text that the library gives with the same field, and no warning. */
static void expect_taken(const fixture *w, const route *r, const char *name, const char *value, const char *beside) {
    char fields[256], body[768];
    const bool is_chat = r->form == BODY_CHAT, samples = strcmp(name, "do_sample") == 0;
    snprintf(fields, sizeof fields, "%s%s\"%s\":%s", beside ? beside : "", beside ? "," : "", name, value);
    snprintf(body, sizeof body, "{%s,\"max_tokens\":9,\"temperature\":0,%s}",
             is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" : "\"prompt\":\"Once upon\"", fields);
    answer_text a = client_ask(w->port, r->path, body);
    if (a.status != 200) fail_msg("%s %s: %d %s", r->path, body, a.status, a.body.data);
    if (strstr(bytes_text(&a.head), "X-Mneme-Warning")) fail_msg("%s %s: %s", r->path, body, a.head.data);
    json_doc *doc = client_json(&a);
    if (!is_chat) {
        char config[512];
        snprintf(config, sizeof config, "{\"max_new_tokens\":9%s,%s}", samples ? "" : ",\"do_sample\":false", fields);
        mn_generation *g = oracle_text(w->model, "Once upon", config);
        const json *choices = json_get(json_root(doc), "choices");
        assert_int_equal(choices->n, g->n_sequences);
        for (size_t i = 0; i < choices->n; i++)
            assert_string_equal(json_get(&choices->items[i], "text")->string, g->sequences[i]->text);
        mn_generation_close(&g);
    }
    json_close(&doc);
    client_clear(&a);
}

static void generation_fields_are_taken_by_their_names(void **state) {
    (void)state;
    fixture w = open_fixture();
    const route *r;
    const mn_generation_field *g;
    int n = 0;
    for (size_t i = 0; (r = route_at(i)); i++) {
        if (r->form != BODY_CHAT && r->form != BODY_COMPLETION) continue;
        for (int k = 0; (g = mn_generation_field_at(k)); k++) {
            const char *value = NULL, *wrong = NULL, *beside = NULL;
            for (size_t m = 0; m < sizeof kinds / sizeof *kinds; m++) {
                if (strcmp(kinds[m].kind, g->kind) != 0) continue;
                value = kinds[m].value;
                wrong = kinds[m].wrong;
            }
            for (size_t m = 0; m < sizeof named_values / sizeof *named_values; m++) {
                if (strcmp(named_values[m].name, g->name) != 0) continue;
                value = named_values[m].value;
                beside = named_values[m].beside;
            }
            const bool has_row = has_own_row(r->form, g->name),
                       is_numeric = strcmp(g->kind, "integer") == 0 || strcmp(g->kind, "number") == 0;
            if (!wrong) continue; /* biases by id: of a row */
            if (!value) fail_msg("no value for %s", g->name);
            expect_refused(&w, r, g->name, wrong);
            if (is_numeric) expect_refused(&w, r, g->name, "-2000000000");
            const bool has_own_rules = has_row && (strcmp(g->name, "temperature") == 0 || strcmp(g->name, "seed") == 0);
            if (!has_own_rules) expect_taken(&w, r, g->name, value, beside);
            n++;
        }
    }
    print_message("%d fields\n", n);
    assert_true(n > 90);
    close_fixture(&w);
}

/* ---- fields that are not known ---- */

static void unknown_fields_are_ignored_with_a_warning(void **state) {
    (void)state;
    static const struct {
        const char *fields, *warning; /* NULL: none */
    } of[] = {
        {"\"user\":\"u\"", NULL},
        {"\"top_q\":1", "unknown field 'top_q' ignored"},
        {"\"top_q\":null", "unknown field 'top_q' ignored"},
        {"\"a\":1,\"b\":{\"c\":2}", "unknown field 'a' ignored; unknown field 'b' ignored"},
        {"\"stream_options\":{\"chunk\":1}", "unknown field 'stream_options.chunk' ignored"},
        {"\"stream_options\":{\"include_usage\":true}", NULL},
        {"\"stream_options.include_usage\":true", NULL},
        {"\"a\\r\\nX-Evil: 1\":1", "unknown field 'a?\?X-Evil:?1' ignored"},
        {"\"\\u00e9'\":1", "unknown field '?\?\?' ignored"},
        {"\"top_p\\u0000x\":1", "unknown field 'top_p?x' ignored"},
        {"\"\":1", "unknown field '' ignored"},
        {"\"0123456789012345678901234567890123456789x\":1",
         "unknown field '0123456789012345678901234567890123456789...' ignored"},
        {"\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1",
         "unknown field 'h' ignored; and 2 more"},
    };
    fixture w = open_fixture();
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"prompt\":\"Once\",\"max_tokens\":1,%s}", of[i].fields);
        answer_text a = client_ask(w.port, "/v1/completions", body);
        assert_int_equal(a.status, 200);
        const char *line = strstr(bytes_text(&a.head), "X-Mneme-Warning: ");
        if (!of[i].warning != !line) fail_msg("%s: %s", body, line ? line : "no warning");
        if (line && !strstr(line, of[i].warning)) fail_msg("%s: %s", body, line);
        assert_null(strstr(bytes_text(&a.head), "\nX-Evil"));
        client_clear(&a);
    }
    close_fixture(&w);
}

static void a_wrong_method_says_the_right_one(void **state) {
    (void)state;
    fixture w = open_fixture();
    answer_text a = client_get(w.port, "/v1/completions");
    assert_int_equal(a.status, 405);
    assert_non_null(strstr(bytes_text(&a.head), "Allow: POST"));
    client_clear(&a);
    close_fixture(&w);
}

/* ---- documents ---- */

static void put_row(bytes *out, const field *f) {
    static const struct {
        unsigned form;
        const char *name;
    } forms[] = {{BODY_CHAT, "chat"},
                 {BODY_COMPLETION, "completions"},
                 {BODY_RESPONSES, "responses"},
                 {BODY_MESSAGES, "messages"},
                 {BODY_COUNT_TOKENS, "count_tokens"},
                 {BODY_TOKENIZE, "tokenize"},
                 {BODY_DETOKENIZE, "detokenize"},
                 {BODY_TEMPLATE, "apply-template"},
                 {BODY_GENERATE, "generate"},
                 {BODY_CACHE, "caches"},
                 {BODY_HOLD, "caches/{id}"},
                 {BODY_SAVE, "caches/{id}/save"},
                 {BODY_TRANSCRIPTION, "transcriptions"},
                 {BODY_TRANSLATION, "translations"}};
    const char *comma = "";
    bytes_printf(out, "| `%s` | ", f->name);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (!(f->bodies & forms[i].form)) continue;
        bytes_printf(out, "%s%s", comma, forms[i].name);
        comma = ", ";
    }
    bytes_append_text(out, " | ");
    if (f->kinds == TAKES_ANY)
        bytes_append_text(out, f->apply ? "refused" : "anything");
    else
        field_put_allowed(out, f);
    bytes_printf(out, " | %s%s |\n", f->help, f->is_required ? "; required" : "");
}

/* docs/NAME is `text`, or contains it between its markers. With MNEME_INTERFACE=FOLDER writes FOLDER/NAME instead
 * (tools/interface). */
static void check_document(const char *name, const bytes *text, const char *begin, const char *end) {
    char path[512];
    const char *folder = getenv("MNEME_INTERFACE");
    bytes page = {0};
    if (folder) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fwrite(text->data, 1, text->n, file);
        fclose(file);
        return;
    }
    snprintf(path, sizeof path, TESTS_DIR "/../docs/%s", name);
    assert_ok(file_read(&page, path, 1 << 22));
    const char *from = bytes_text(&page);
    size_t n = page.n;
    if (begin) {
        from = strstr(from, begin);
        assert_non_null(from);
        from += strlen(begin);
        assert_non_null(strstr(from, end));
        n = (size_t)(strstr(from, end) - from);
    }
    if (n != text->n || memcmp(from, text->data, n) != 0) fail_msg("docs/%s differs; tools/interface updates it", name);
    bytes_clear(&page);
}

static void documents_have_every_route_and_field(void **state) {
    (void)state;
    fixture w = open_fixture();
    bytes table = {0};
    const field *f;
    const route *r;
    answer_text a = client_get(w.port, "/openapi.json");
    assert_int_equal(a.status, 200);
    check_document("openapi.json", &a.body, NULL, NULL);
    json_doc *doc = client_json(&a);
    const json *paths = json_get(json_root(doc), "paths");
    for (size_t i = 0; (r = route_at(i)); i++) {
        const json *operation = json_get(json_get(paths, r->path), strcmp(r->method, "POST") == 0 ? "post" : "get");
        if (!operation && strcmp(r->method, "DELETE") == 0) operation = json_get(json_get(paths, r->path), "delete");
        if (!operation) fail_msg("openapi.json lacks %s %s", r->method, r->path);
        if (r->form) assert_non_null(json_get(json_get(operation, "requestBody"), "content"));
    }
    json_close(&doc);
    client_clear(&a);
    bytes_append_text(&table, "| field | of | allowed | |\n|---|---|---|---|\n");
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (f->bodies & ~(unsigned)BODY_LINES) put_row(&table, f);
    }
    check_document("serve.md", &table, "<!-- fields: tools/interface writes this table -->\n",
                   "<!-- end of fields -->");
    bytes page = {0};
    assert_ok(file_read(&page, TESTS_DIR "/../docs/serve.md", 1 << 22));
    for (size_t i = 0; (r = route_at(i)); i++) {
        char name[128];
        snprintf(name, sizeof name, "`%s`", r->path);
        if (!strstr(bytes_text(&page), name)) fail_msg("docs/serve.md lacks %s", name);
    }
    bytes_clear(&page);
    bytes_clear(&table);
    close_fixture(&w);
}

/* The members that the description promises. */
static void answers_have_what_is_described(void **state) {
    (void)state;
    fixture w = open_fixture();
    const route *r;
    for (size_t i = 0; (r = route_at(i)); i++) {
        if (!r->returns || strchr(r->path, '{') || r->form & BODY_SPEECH) continue; /* they have tests of their own */
        char *body = r->form ? make_body(r->form, NULL, NULL) : NULL;
        answer_text a = body ? client_ask(w.port, r->path, body) : client_get(w.port, r->path);
        if (a.status != 200) fail_msg("%s: %d %s", r->path, a.status, a.body.data);
        json_doc *doc = client_json(&a);
        for (const char *at = r->returns; *at;) {
            char name[64];
            size_t n = strcspn(at, "|");
            snprintf(name, sizeof name, "%.*s", (int)n, at);
            if (!json_get(json_root(doc), name)) fail_msg("%s: no '%s'", r->path, name);
            at += n + (at[n] == '|');
        }
        json_close(&doc);
        client_clear(&a);
        mem_free(body);
    }
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(R26_every_field_at_its_edges_and_beyond),
        cmocka_unit_test(R26_fields_of_generation_at_any_value),
        cmocka_unit_test(generation_fields_are_taken_by_their_names),
        cmocka_unit_test(unknown_fields_are_ignored_with_a_warning),
        cmocka_unit_test(a_wrong_method_says_the_right_one),
        cmocka_unit_test(documents_have_every_route_and_field),
        cmocka_unit_test(answers_have_what_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
