/* Which model a name, or no name, selects; models for text and for speech are in one folder.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/locate.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "support/scratch.h"
#include "support/support.h"

/* A Hugging Face folder with that config.json, or a file for NULL; a higher `age` is older. */
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

static void without_models_the_message_lists_where_it_looked(void **state) {
    (void)state;
    bytes path = {0};
    expect(NULL, MODEL_FOR_TEXT, "embedded");
    assert_fails(MN_E_NOT_FOUND, "no speech model; looked at: the models folder /",
                 model_locate(&path, NULL, MODEL_FOR_SPEECH));
    assert_non_null(strstr(mn_last_error(), "; `mneme pull NAME` installs one of whisper-tiny, whisper-base"));
    bytes_clear(&path);
}

static void the_newest_model_of_its_kind_is_the_default(void **state) {
    (void)state;
    put_model("models/ears-old", "{\"model_type\": \"whisper\"}", 5);
    expect(NULL, MODEL_FOR_TEXT, "embedded");
    expect(NULL, MODEL_FOR_SPEECH, "ears-old");
    put_model("models/text-model", "{\"model_type\": \"llama\"}", 4);
    put_model("models/old.gguf", NULL, 6);
    put_model("models/ears-new", "{\"model_type\": \"whisper\", \"is_encoder_decoder\": true}", 1);
    expect(NULL, MODEL_FOR_TEXT, "text-model");
    expect(NULL, MODEL_FOR_SPEECH, "ears-new");
    put_model("models/old.gguf", NULL, 2);
    expect(NULL, MODEL_FOR_TEXT, "old.gguf");
    put_model("models/broken", "{\"model_type\": ", 0);
    expect(NULL, MODEL_FOR_TEXT, "broken"); /* opening it reports the error */
    expect(NULL, MODEL_FOR_SPEECH, "ears-new");
}

static void names_select_models_of_both_kinds(void **state) {
    (void)state;
    expect("ears-o", MODEL_FOR_TEXT, "ears-old");
    expect("EARS", MODEL_FOR_TEXT, "ears-new");
    expect("text-model", MODEL_FOR_SPEECH, "text-model");
    expect("embedded", MODEL_FOR_SPEECH, "embedded");
}

/* A message ends with the command that installs the model. */
static void errors_name_the_command_that_installs_the_model(void **state) {
    (void)state;
    static const struct {
        const char *name, *end;
    } cases[] = {
        {"smollm2", "; `mneme pull smollm2` installs it"},
        {"SmolLM2-135M", "; `mneme pull smollm2` installs it"},
        {"gemma-3-270m", "; `mneme pull gemma3-270m` installs it"},
        {"whisper-base", "; `mneme pull whisper-base` installs it"},
        {"some/thing", "; `hf download some/thing` fetches it"},
        {"some/thing@v1.2", "; `hf download some/thing --revision v1.2` fetches it"},
        {"./thing", "; `mneme pull NAME` installs one of smollm2, gemma3-270m, whisper-tiny, whisper-base"},
        {"/a/thing", " installs one of smollm2, gemma3-270m, whisper-tiny, whisper-base"},
        {"a/b/thing", " installs one of smollm2, gemma3-270m, whisper-tiny, whisper-base"},
        {"a/thing.gguf", " installs one of smollm2, gemma3-270m, whisper-tiny, whisper-base"},
        {"nothing", " installs one of smollm2, gemma3-270m, whisper-tiny, whisper-base"},
        {"", " installs one of smollm2, gemma3-270m, whisper-tiny, whisper-base"},
    };
    bytes path = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(MN_E_NOT_FOUND, cases[i].end, model_locate(&path, cases[i].name, MODEL_FOR_TEXT));
        const char *message = mn_last_error(), *name = strstr(message, cases[i].name);
        assert_string_equal(message + strlen(message) - strlen(cases[i].end), cases[i].end);
        if (*cases[i].name == '/') assert_null(strstr(name + 1, cases[i].name)); /* a path appears once */
    }
    bytes_clear(&path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_models_the_message_lists_where_it_looked),
        cmocka_unit_test(errors_name_the_command_that_installs_the_model),
        cmocka_unit_test(the_newest_model_of_its_kind_is_the_default),
        cmocka_unit_test(names_select_models_of_both_kinds),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
