/* Time of transcription: the model is opened once and a recording is transcribed repeatedly, greedily, without
 * temperature fallback. One line of JSON: seconds of opening, seconds and processor seconds of each run, peak MiB, the
 * text. usage: bench_transcribe MODEL COMPUTE_TYPE THREADS TIMES LANGUAGE FILE
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "bench_program.h"

static struct rusage usage(void) {
    struct rusage now;
    getrusage(RUSAGE_SELF, &now);
    return now;
}

static double processor_seconds(void) {
    struct rusage now = usage();
    return (double)(now.ru_utime.tv_sec + now.ru_stime.tv_sec) +
           1e-6 * (double)(now.ru_utime.tv_usec + now.ru_stime.tv_usec);
}

static void print_text(const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
}

int main(int argc, char **argv) {
    static const double greedy = 0;
    if (argc != 7) return 2;
    const char *path = argv[6];
    int times = atoi(argv[4]);
    mn_model_options model_options;
    mn_model_options_init(&model_options, sizeof model_options);
    mn_transcribe_options options;
    mn_transcribe_options_init(&options, sizeof options);
    mn_transcription *result = NULL;
    mn_model *model = NULL;
    char *folder = NULL;
    double begin = clock_ms();
    model_options.compute_type = argv[2];
    model_options.threads = atoi(argv[3]);
    options.language = argv[5];
    options.temperatures = &greedy;
    options.n_temperatures = 1;
    must(mn_model_find(&folder, argv[1]));
    must(mn_model_open(&model, folder, &model_options));
    printf("{\"load\": %.3f, \"times\": [", (clock_ms() - begin) / 1000);
    for (int i = 0; i < times; i++) {
        double cpu = processor_seconds();
        mn_transcription_close(&result);
        begin = clock_ms();
        must(mn_transcribe(model, &path, 1, &options, &result));
        double wall = (clock_ms() - begin) / 1000;
        printf("%s[%.4f, %.4f]", i ? ", " : "", wall, processor_seconds() - cpu);
    }
    printf("], \"peak\": %.1f, \"tokens\": %zu, \"text\": \"", (double)usage().ru_maxrss / 1024,
           result->files[0]->n_ids);
    print_text(result->files[0]->text);
    printf("\"}\n");
    mn_transcription_close(&result);
    mn_model_close(&model);
    mn_free(folder);
    return 0;
}
