/* Which model a name leads to, and which one no name: those for text and those for speech lie in one folder.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/locate.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "support/scratch.h"
#include "support/support.h"

/* A Hugging Face folder with that config.json, or a file for NULL; `age`: the higher the older. */
static void put_model(const char *name, const char *config, int age) {
    const char *path = scratch_path(name);
    if (config) {
        bytes inside = {0};
        mkdir(path, 0777);
        bytes_printf(&inside, "%s/config.json", name);
        scratch_file(bytes_text(&inside), config, strlen(config));
        bytes_clear(&inside);
    } else {
        scratch_file(name, "GGUF", 4);
    }
    struct timespec times[2] = {{.tv_sec = 2000000000 - age}, {.tv_sec = 2000000000 - age}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void expect(const char *name, model_use use, const char *wanted) {
    bytes path = {0};
    assert_ok(model_locate(&path, name, use));
    const char *slash = strrchr(path.data, '/');
    assert_string_equal(slash ? slash + 1 : path.data, wanted);
    bytes_clear(&path);
}

static int set_up(void **state) {
    (void)state;
    setenv("MNEME_MODELS", scratch_path("models"), 1);
    setenv("XDG_CONFIG_HOME", scratch_path("config"), 1);
    return mkdir(scratch_path("models"), 0777);
}

static void nothing_installed(void **state) {
    (void)state;
    bytes path = {0};
    expect(NULL, MODEL_FOR_TEXT, "embedded");
    assert_fails(MN_E_NOT_FOUND, "no speech model; looked at: the models folder /",
                 model_locate(&path, NULL, MODEL_FOR_SPEECH));
    bytes_clear(&path);
}

static void newest_of_its_use(void **state) {
    (void)state;
    put_model("models/ears-old", "{\"model_type\": \"whisper\"}", 5);
    expect(NULL, MODEL_FOR_TEXT, "embedded");
    expect(NULL, MODEL_FOR_SPEECH, "ears-old");
    put_model("models/talk", "{\"model_type\": \"llama\"}", 4);
    put_model("models/old.gguf", NULL, 6);
    put_model("models/ears-new", "{\"model_type\": \"whisper\", \"is_encoder_decoder\": true}", 1);
    expect(NULL, MODEL_FOR_TEXT, "talk");
    expect(NULL, MODEL_FOR_SPEECH, "ears-new");
    put_model("models/old.gguf", NULL, 2);
    expect(NULL, MODEL_FOR_TEXT, "old.gguf");
    put_model("models/broken", "{\"model_type\": ", 0);
    expect(NULL, MODEL_FOR_TEXT, "broken"); /* whoever opens it says what is wrong */
    expect(NULL, MODEL_FOR_SPEECH, "ears-new");
}

static void names_lead_to_either(void **state) {
    (void)state;
    expect("ears-o", MODEL_FOR_TEXT, "ears-old");
    expect("EARS", MODEL_FOR_TEXT, "ears-new");
    expect("talk", MODEL_FOR_SPEECH, "talk");
    expect("embedded", MODEL_FOR_SPEECH, "embedded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_installed),
        cmocka_unit_test(newest_of_its_use),
        cmocka_unit_test(names_lead_to_either),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
