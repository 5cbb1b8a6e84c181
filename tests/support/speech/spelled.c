/* SPDX-License-Identifier: Apache-2.0 */
#include "support/speech/spelled.h"

#include <unistd.h>

#include "base/json.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { N_VISIBLE = 94, FIRST_VISIBLE = '!', N_IDS = 313 };

/* U+0120, which stands for a space in byte-level vocabularies. */
#define SPACE "\xC4\xA0"

static void put_token(bytes *out, int id) {
    char text[8];
    const char *before = id < N_VISIBLE ? "" : id < 2 * N_VISIBLE ? SPACE : id < 3 * N_VISIBLE ? "(" : ")";
    int n = id == N_IDS - 1 ? snprintf(text, sizeof text, SPACE)
                            : snprintf(text, sizeof text, "%s%c", before, FIRST_VISIBLE + id % N_VISIBLE);
    bytes_append_text(out, id ? "," : "");
    json_put_string(out, text, (size_t)n);
    bytes_printf(out, ":%d", id);
}

const char *spelled_folder(void) {
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
    static char folder[512];
    char from[1024], name[128];
    bytes text = {0};
    snprintf(folder, sizeof folder, "%s", scratch_empty("spelled"));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(name, sizeof name, "golden/whisper/tiny80/%s", files[i]);
        snprintf(from, sizeof from, "%s", data_path(name));
        snprintf(name, sizeof name, "spelled/%s", files[i]);
        assert_int_equal(symlink(from, scratch_path(name)), 0);
    }
    bytes_append_text(
        &text, "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
               "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int id = 0; id < N_IDS; id++) put_token(&text, id);
    bytes_append_text(&text, "},\"merges\":[]}}");
    assert_ok(bytes_status(&text));
    scratch_file("spelled/tokenizer.json", text.data, text.n);
    bytes_clear(&text);
    return folder;
}

mn_model *spelled_model(void) {
    return engine_model(spelled_folder(), "f32", "auto", engine_threads());
}
