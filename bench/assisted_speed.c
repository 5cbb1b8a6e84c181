/* Prompt lookup beside greedy search on a text that is edited, and the cost of verifying m + 1 tokens relative to one
 * token: bench_assisted MODEL [THREADS]. Runs alternate, medians count. Exit code 1 when lookup is less than 1.5 times
 * as fast as greedy search or gives other tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "bench_timer.h"
#include "bench_program.h"

enum { RUNS = 7, N_NEW = 200, MOST = 32, STEPS = 41 };

static const char prompt_text[] =
    "<|im_start|>user\nCorrect the spelling of this text and write the whole text again, with nothing else:\n\n"
    "The harbour was quiet in the early mornning. A few fishermen were mending their nets along the stone wall, and the "
    "smell of salt and tar hung over the boats. Anna walked past them with her basket, counting the gulls that sat on the "
    "masts. She had promised her grandmother to bring back two pounds of herring, a loaf of dark bread, and the newspaper, if "
    "the shop had opened by then. The old clock over the town hall struck seven. On the far side of the bay the ferry turned "
    "slowly towards the pier, its lamps still burning, although the sun had allready risen over the hills.<|im_end|>\n<|im_start|>assistant\n";

static double milliseconds(void) {
    return 1e3 * seconds_of(CLOCK_MONOTONIC);
}

static mn_generation *generate(mn_model *model, text_ids prompt, const char *lookup) {
    mn_session *session = NULL;
    mn_generation_config *config = NULL;
    mn_generation *generation = NULL;
    must(mn_session_open(&session, model, NULL));
    must(mn_generation_config_open(&config, model));
    must(mn_generation_config_set(config, "do_sample", "false"));
    must(mn_generation_config_set(config, "max_new_tokens", "200"));
    must(mn_generation_config_set(config, "prompt_lookup_num_tokens", lookup));
    must(mn_generate(session, prompt.ids, prompt.n, config, NULL, &generation));
    mn_generation_config_close(&config);
    mn_session_close(&session);
    return generation;
}

static bool compare(mn_model *model, text_ids prompt) {
    double times[2][RUNS];
    bool same = true;
    for (int run = 0; run < RUNS; run++) {
        mn_generation *both[2] = {generate(model, prompt, "null"), generate(model, prompt, "10")};
        const mn_sequence *plain = both[0]->sequences[0], *guessed = both[1]->sequences[0];
        same = same && plain->n_ids == guessed->n_ids &&
               memcmp(plain->ids, guessed->ids, plain->n_ids * sizeof *plain->ids) == 0;
        for (int i = 0; i < 2; i++) times[i][run] = both[i]->predicted_ms / (double)plain->n_ids;
        if (run == 0) {
            printf("%zu prompt tokens, %zu new; lookup: %zu of %zu proposals accepted\n%.*s\n", prompt.n, plain->n_ids,
                   guessed->draft_accepted, guessed->draft_tokens, (int)plain->n_text, plain->text);
        }
        for (int i = 0; i < 2; i++) mn_generation_close(&both[i]);
    }
    double greedy = median_of(times[0], RUNS), lookup = median_of(times[1], RUNS);
    printf(
        "greedy %.2f ms a token, prompt lookup %.2f: %.2f times as fast; at best %.2f and %.2f: %.2f times; %s tokens\n",
        greedy, lookup, greedy / lookup, times[0][0], times[1][0], times[0][0] / times[1][0],
        same ? "the same" : "OTHER");
    return same && greedy / lookup >= 1.5;
}

/* A step of several tokens with the logits after each, followed by truncation. */
static void verifications(mn_model *model, text_ids prompt) {
    static const size_t sizes[] = {1, 2, 4, 6, 10, 16, 32};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    static double times[N_SIZES][STEPS];
    mn_model_info info = {.size = sizeof info};
    must(mn_model_get_info(model, &info));
    float *logits = must_have(malloc((size_t)info.vocab_size * MOST * sizeof *logits));
    mn_session *session = NULL;
    must(mn_session_open(&session, model, NULL));
    must(mn_session_step(session, prompt.ids, prompt.n, NULL));
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < N_SIZES; i++) {
            double start = milliseconds();
            must(mn_session_step(session, prompt.ids, sizes[i], logits));
            times[i][step] = milliseconds() - start;
            must(mn_session_truncate(session, (int64_t)prompt.n));
        }
    }
    double one = median_of(times[0], STEPS);
    for (size_t i = 0; i < N_SIZES; i++) {
        double m = median_of(times[i], STEPS);
        printf("%2zu tokens: %6.2f ms, %.2f times one; at best %.2f ms, %.2f times\n", sizes[i], m, m / one,
               times[i][0], times[i][0] / times[0][0]);
    }
    mn_session_close(&session);
    free(logits);
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: bench_assisted MODEL [THREADS]\n");
        return 2;
    }
    mn_model *model = open_model(argv[1], argc > 2 ? atoi(argv[2]) : 2);
    mn_model_info info = {.size = sizeof info};
    must(mn_model_get_info(model, &info));
    text_ids prompt = {0};
    must(mn_tokenize(mn_model_tokenizer(model), prompt_text, strlen(prompt_text), 0, &prompt.ids, &prompt.n));
    printf("%s, %s\n", info.architecture, info.compute_type);
    verifications(model, prompt);
    bool is_fast = compare(model, prompt);
    mn_free(prompt.ids);
    mn_model_close(&model);
    return !is_fast;
}
