/* Prints the transcript of a recording, each word with its time. usage: transcribe FILE [MODEL [LANGUAGE]] */
#include <mneme.h>
#include <stdio.h>

/* A segment, as soon as it is transcribed. */
static void print(void *user, size_t file, const mn_segment *segment) {
    (void)user;
    (void)file;
    printf("[%.2f - %.2f]", segment->start, segment->end);
    for (size_t i = 0; i < segment->n_words; i++) {
        const mn_word *word = segment->words[i];
        printf("%.*s (%.2f)", (int)word->n_text, word->text, word->start);
    }
    /* A checkpoint without a tokenizer has ids only. */
    for (size_t i = 0; i < segment->n_ids && !segment->text; i++) printf(" %d", segment->ids[i]);
    puts("");
    fflush(stdout);
}

int main(int argc, char **argv) {
    char *path = NULL;
    mn_model *model = NULL;
    mn_transcription *transcription = NULL;
    mn_transcribe_options options;
    mn_transcribe_options_init(&options, sizeof options);
    options.language = argc > 3 ? argv[3] : NULL;
    options.on_segment = print;
    if (argc < 2) {
        fprintf(stderr, "usage: transcribe FILE [MODEL [LANGUAGE]]\n");
        return 2;
    }
    bool ok =
        mn_model_find_speech(&path, argc > 2 ? argv[2] : NULL) == MN_OK && mn_model_open(&model, path, NULL) == MN_OK;
    if (ok && mn_model_tokenizer(model)) options.timestamps = "word";
    const char *recording = argv[1];
    ok = ok && mn_transcribe(model, &recording, 1, &options, &transcription) == MN_OK;
    if (!ok) fprintf(stderr, "%s\n", mn_last_error());
    if (ok && transcription->files[0]->status != MN_OK) {
        fprintf(stderr, "%s\n", transcription->files[0]->error); /* each recording has a status of its own */
        ok = false;
    }
    if (ok) printf("%s, %.1f s\n", transcription->files[0]->language, transcription->files[0]->duration);
    mn_transcription_close(&transcription);
    mn_model_close(&model);
    mn_free(path);
    return ok ? 0 : 1;
}
