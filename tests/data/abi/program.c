/* A program of a user, compiled with headers of other versions than the library's (tests/install/abi.sh): HEADER is an
 * older one, one whose structs lack their last member, or, with GROWN, one whose structs have another member at the
 * end, `grown`. It reads and sets none of the members that a header may lack. usage: program [SPEECH_MODEL RECORDING]
 */
#include HEADER
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds)                                                                                                   \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            printf("line %d: %s: %s\n", __LINE__, #holds, mn_last_error());                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call) CHECK((call) == MN_OK)

/* Nothing behind a struct is written, and its size is this program's. */
#define CHECK_INIT(type, init)                                                                                         \
    do {                                                                                                               \
        struct {                                                                                                       \
            type options;                                                                                              \
            unsigned char behind[64];                                                                                  \
        } block;                                                                                                       \
        memset(&block, 0xA5, sizeof block);                                                                            \
        init(&block.options, sizeof block.options);                                                                    \
        CHECK(block.options.size == sizeof block.options);                                                             \
        for (size_t i = 0; i < sizeof block.behind; i++) CHECK(block.behind[i] == 0xA5);                               \
    } while (0)

#define CHECK_ANSWER(type, call)                                                                                       \
    do {                                                                                                               \
        struct {                                                                                                       \
            type answer;                                                                                               \
            unsigned char behind[64];                                                                                  \
        } block;                                                                                                       \
        memset(&block, 0xA5, sizeof block);                                                                            \
        block.answer.size = sizeof block.answer;                                                                       \
        OK(call);                                                                                                      \
        CHECK(block.answer.size == sizeof block.answer);                                                               \
        for (size_t i = 0; i < sizeof block.behind; i++) CHECK(block.behind[i] == 0xA5);                               \
    } while (0)

enum { N_ROWS = 3, N_NEW = 12 };

typedef struct seen {
    size_t n_tokens, n_text;
} seen;

static bool on_token(void *user, const mn_token_event *event) {
    seen *s = user;
    CHECK(event->size >= sizeof event->size && event->row == 0);
    s->n_tokens += event->id >= 0;
    s->n_text += event->n_text;
    return true;
}

static void check_structs(mn_model *model, mn_session *session) {
    CHECK_INIT(mn_model_options, mn_model_options_init);
    CHECK_INIT(mn_chat_options, mn_chat_options_init);
    CHECK_INIT(mn_cache_options, mn_cache_options_init);
    CHECK_INIT(mn_generate_options, mn_generate_options_init);
    CHECK_INIT(mn_embed_options, mn_embed_options_init);
    CHECK_INIT(mn_engine_options, mn_engine_options_init);
    CHECK_INIT(mn_request, mn_request_init);
    CHECK_INIT(mn_transcribe_options, mn_transcribe_options_init);
    CHECK_ANSWER(mn_model_info, mn_model_get_info(model, &block.answer));
    CHECK_ANSWER(mn_cache_info, mn_session_cache(session, &block.answer));
    CHECK_ANSWER(mn_layer_info, mn_session_layer(session, 0, &block.answer));
    CHECK_ANSWER(mn_cache_summary, mn_cache_check(NULL, &block.answer));
    CHECK_ANSWER(mn_memory_plan, mn_memory_plan_make(&block.answer, model, NULL, 100, 20, 4, 1));
    mn_memory_plan plan = {.size = sizeof plan};
    OK(mn_memory_plan_make(&plan, model, NULL, 100, 20, 4, 1));
    CHECK(plan.cache_bytes > 0 && plan.prompt_bytes <= plan.cache_bytes && plan.rows_bytes <= plan.cache_bytes);
    int n = 0;
    for (const mn_generation_field *field; (field = mn_generation_field_at(n)); n++)
        CHECK(*field->name && *field->kind);
    CHECK(n > 30 && !mn_generation_field_at(-1));
}

/* Several sequences, walked by pointers. */
static void check_generation(mn_model *model, const int32_t *prompt, size_t n_prompt) {
    mn_generation_config *config = NULL;
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    mn_generate_options options;
    seen s = {0, 0};
    mn_generate_options_init(&options, sizeof options);
    options.on_token = on_token;
    options.user = &s;
    options.top_logprobs = 2;
    OK(mn_generation_config_open(&config, model));
    OK(mn_generation_config_set(config, "max_new_tokens", "12"));
    OK(mn_generation_config_set(config, "ignore_eos", "true"));
    OK(mn_generation_config_set(config, "do_sample", "true"));
    OK(mn_generation_config_set(config, "num_return_sequences", "3"));
    OK(mn_session_open(&session, model, NULL));
    OK(mn_generate(session, prompt, n_prompt, config, &options, &generation));
    CHECK(generation->n_sequences == 3 && s.n_tokens == 3 * N_NEW);
    for (size_t i = 0; i < generation->n_sequences; i++) {
        const mn_sequence *sequence = generation->sequences[i];
        char *text = NULL;
        size_t n = 0;
        CHECK(sequence->index == (int)i && sequence->n_ids == N_NEW && strcmp(sequence->finish_reason, "length") == 0);
        CHECK(sequence->logprob_ids[3 * 4] == sequence->ids[4] && sequence->logprobs[3 * 4] <= 0);
        OK(mn_detokenize(mn_model_tokenizer(model), sequence->ids, sequence->n_ids, MN_SKIP_SPECIAL, &text, &n));
        CHECK(n == sequence->n_text && memcmp(text, sequence->text, n) == 0);
        mn_free(text);
    }
    CHECK(strcmp(generation->cache->implementation, "dynamic") == 0 && generation->cache->tokens > 0);
    mn_generation_close(&generation);
    mn_session_close(&session);
    mn_generation_config_close(&config);
}

/* Rows and requests that this program lays out. */
static void check_rows(mn_model *model, const int32_t *prompt, size_t n_prompt) {
    mn_generation_config *config = NULL;
    mn_generation *generation = NULL, *taken = NULL;
    mn_engine *engine = NULL;
    mn_batch_row rows[N_ROWS];
    size_t n_running = 1;
    int id = -1;
    memset(rows, 0, sizeof rows);
    OK(mn_generation_config_open(&config, model));
    OK(mn_generation_config_set(config, "max_new_tokens", "12"));
    OK(mn_generation_config_set(config, "ignore_eos", "true"));
    for (size_t i = 0; i < N_ROWS; i++) {
        rows[i].size = sizeof rows[i];
        rows[i].prompt = prompt;
        rows[i].n_prompt = n_prompt - i;
    }
    OK(mn_generate_batch(model, NULL, rows, N_ROWS, config, NULL, &generation));
    OK(mn_engine_open(&engine, model, NULL));
    for (size_t i = 0; i < N_ROWS; i++) {
        mn_request request;
        mn_request_init(&request, sizeof request);
        request.prompt = prompt;
        request.n_prompt = n_prompt - i;
        request.config = config;
        OK(mn_engine_add(engine, &request, &id));
        CHECK(id == (int)i);
    }
    while (n_running) OK(mn_engine_step(engine, &n_running));
    for (size_t i = 0; i < N_ROWS; i++) {
        OK(mn_engine_take(engine, &id, &taken));
        const mn_sequence *a = generation->sequences[id], *b = taken->sequences[0];
        CHECK(a->row == id && a->n_ids == N_NEW && b->n_ids == N_NEW &&
              memcmp(a->ids, b->ids, N_NEW * sizeof *a->ids) == 0);
        CHECK(a->prompt_tokens == n_prompt - (size_t)id);
        mn_generation_close(&taken);
    }
    rows[1].size--;
    mn_generation_close(&generation);
    CHECK(mn_generate_batch(model, NULL, rows, N_ROWS, config, NULL, &generation) == MN_E_ARG);
#ifdef GROWN /* what the library does not know must not be set */
    mn_session *session = NULL;
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.grown[3] = 1;
    CHECK(mn_session_open(&session, model, &options) == MN_E_ARG && strstr(mn_last_error(), "not zero"));
#endif
    mn_engine_close(&engine);
    mn_generation_config_close(&config);
}

static void check_speech(const char *path, const char *recording) {
    mn_model *model = NULL;
    mn_transcription *transcription = NULL;
    mn_transcribe_options options;
    mn_transcribe_options_init(&options, sizeof options);
    OK(mn_model_open(&model, path, NULL));
    options.language = "en";
    const char *paths[] = {recording, recording};
    OK(mn_transcribe(model, paths, 2, &options, &transcription));
    CHECK(transcription->n_files == 2);
    for (size_t i = 0; i < 2; i++) {
        const mn_transcript *file = transcription->files[i];
        size_t n = 0;
        CHECK(file->status == MN_OK && strcmp(file->path, recording) == 0 && file->n_segments > 0);
        for (size_t k = 0; k < file->n_segments; k++) n += file->segments[k]->n_ids;
        CHECK(n == file->n_ids);
    }
    mn_transcription_close(&transcription);
    mn_model_close(&model);
}

int main(int argc, char **argv) {
    mn_model *model = NULL;
    mn_session *session = NULL;
    mn_model_options options;
    int32_t *ids = NULL;
    size_t n = 0;
    mn_model_options_init(&options, sizeof options);
    CHECK(mn_version_number() >= MN_VERSION_NUMBER);
    OK(mn_model_open(&model, "embedded", &options));
    OK(mn_tokenize(mn_model_tokenizer(model), "Once upon a time", 16, MN_ADD_SPECIAL, &ids, &n));
    OK(mn_session_open(&session, model, NULL));
    OK(mn_session_step(session, ids, n, NULL));
    check_structs(model, session);
    check_generation(model, ids, n);
    check_rows(model, ids, n);
    if (argc > 2) check_speech(argv[1], argv[2]);
    mn_session_close(&session);
    mn_free(ids);
    mn_model_close(&model);
    return 0;
}
