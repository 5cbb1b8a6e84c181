/* SPDX-License-Identifier: Apache-2.0 */
#include "support/speech/transcripts.h"

static const char *const models[] = {"whisper-base", "whisper-tiny.en"};
static const char *const recordings[] = {"1272-141231-0002",
                                         "45s_right_through_the_billboard",
                                         "5s_dont_worry_about_him",
                                         "89s_ill_come_back_down_as_soon_as",
                                         "es_test_clip",
                                         "jfk",
                                         "joined-a",
                                         "test_speech"};
static const char *const tiny_models[] = {"tiny80", "tiny128"};

static void open_tokens(transcript *t, const char *folder) {
    bytes path = {0};
    bytes_printf(&path, "golden/%s", folder);
    assert_ok(speech_tokens_open(&t->tokens, data_path(bytes_text(&path))));
    bytes_printf(&path, "/config.json");
    json_doc *doc = open_json(data_path(bytes_text(&path)));
    t->window = 0;
    assert_ok(json_int("config.json", json_root(doc), "max_source_positions", 1, 1 << 20, &t->window));
    t->window *= 2;
    json_close(&doc);
    bytes_clear(&path);
}

static void visit_real(const char *model, transcript_visit visit, void *user) {
    bytes name = {0};
    transcript t = {.model = model};
    bytes_printf(&name, "whisper-real/%s", model);
    open_tokens(&t, bytes_text(&name));
    for (size_t i = 0; i < sizeof recordings / sizeof *recordings; i++) {
        name.n = 0;
        bytes_printf(&name, "golden/whisper-real/%s.%s.json", model, recordings[i]);
        json_doc *doc = open_json(data_path(bytes_text(&name)));
        t.name = name.data + strlen("golden/");
        t.root = json_root(doc);
        visit(&t, user);
        json_close(&doc);
    }
    speech_tokens_close(&t.tokens);
    bytes_clear(&name);
}

static void visit_tiny(const char *model, transcript_visit visit, void *user) {
    bytes name = {0};
    transcript t = {.model = model};
    bytes_printf(&name, "whisper/%s", model);
    open_tokens(&t, bytes_text(&name));
    name.n = 0;
    bytes_printf(&name, "golden/whisper/%s/cases.json", model);
    json_doc *doc = open_json(data_path(bytes_text(&name)));
    const json *cases = json_get(json_root(doc), "cases");
    for (size_t i = 0; i < cases->n; i++) {
        name.n = 0;
        bytes_printf(&name, "%s %s", model, json_get(&cases->items[i], "name")->string);
        t.name = bytes_text(&name);
        t.root = &cases->items[i];
        visit(&t, user);
    }
    json_close(&doc);
    speech_tokens_close(&t.tokens);
    bytes_clear(&name);
}

void transcripts_visit(transcript_visit visit, void *user) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) visit_real(models[i], visit, user);
    for (size_t i = 0; i < sizeof tiny_models / sizeof *tiny_models; i++) visit_tiny(tiny_models[i], visit, user);
}

const json *transcript_run(const transcript *t, const char *key) {
    const json *run = json_get(t->root, key);
    return run && json_get(run, "tokens") ? run : NULL;
}

size_t transcript_ids(const json *list, int32_t ids[MOST_IDS]) {
    size_t n = list ? list->n : 0;
    assert_true(n <= MOST_IDS);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)list->items[i].integer;
    return n;
}
