/* The command: which command, which options.
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"
#include "base/file.h"
#include "base/status.h"
#include "interrupt.h"
#include "output.h"
#include "commands.h"

static const command commands[] = {
    {"run", COMMAND_RUN, 2, "answer a question, continue a text, run a batch", "run [MODEL] [TEXT]",
     "  mneme run \"What is the capital of France?\"\n"
     "  mneme run embedded \"Once upon a time\" --max-new-tokens 60\n"
     "  mneme run ./SmolLM2 --raw -p \"The sea\" --temperature 0.8 --seed 7\n"
     "  mneme run --batch prompts.jsonl --greedy > answers.jsonl\n",
     command_run},
    {"chat", COMMAND_CHAT, 2, "talk with a model, turn by turn", "chat [MODEL] [TEXT]",
     "  mneme chat\n"
     "  mneme chat ./SmolLM2 --system \"Answer in one sentence.\" --stats\n"
     "  mneme chat --cache sink        a conversation of any length in constant memory\n"
     "  mneme chat --load mon --save mon   goes on, computes nothing again\n"
     "  printf 'Hello\\nWhat is 2+2?\\n' | mneme chat --json   an object a turn\n",
     command_chat},
    {"serve", COMMAND_SERVE, 1, "serve a model over HTTP, with OpenAI's interface", "serve [MODEL]",
     "  mneme serve\n"
     "  mneme serve ./SmolLM2 --port 8000 --cache quantized --memory-limit 4G\n"
     "  curl http://127.0.0.1:8080/v1/chat/completions \\\n"
     "       -H 'Content-Type: application/json' \\\n"
     "       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n",
     command_serve},
    {"transcribe", COMMAND_TRANSCRIBE, INT_MAX, "transcribe recordings", "transcribe [-m MODEL] FILE...",
     "  mneme transcribe talk.mp3    wav, flac, mp3, ogg and more; - is stdin\n"
     "  mneme transcribe talk.mp3 --output srt > talk.srt\n"
     "  mneme transcribe *.flac --output vtt --output-dir subtitles\n"
     "  mneme transcribe -m whisper-base clip.wav --language Spanish --task translate\n"
     "  mneme transcribe a.wav b.wav --timestamps word --output json\n",
     command_transcribe},
    {"score", COMMAND_SCORE, 1, "log-probability and perplexity of a text",
     "score [MODEL] (-p TEXT | -f FILE | --ids 1,2,3)",
     "  mneme score -f book.txt --json\n"
     "  mneme score ./model --ids 1,403,407 --dtype f32 --out logits.safetensors\n",
     command_score},
    {"tokenize", COMMAND_TOKENIZE, 1, "text to token ids and back",
     "tokenize [MODEL] (-p TEXT | -f FILE | --ids 1,2,3 --decode)",
     "  mneme tokenize -p \"Hello there\" --json\n"
     "  mneme tokenize --decode --ids 1,403,407\n"
     "  mneme tokenize --messages messages.json --add-generation-prompt --render\n",
     command_tokenize},
    {"inspect", COMMAND_INSPECT, 1, "what a model is and how much memory it needs", "inspect [MODEL]",
     "  mneme inspect\n"
     "  mneme inspect ./model.gguf --context 8192 --json\n"
     "  mneme inspect --kernels\n",
     command_inspect},
    {"advise", COMMAND_ADVISE, 1, "which cache holds so many tokens in so much memory", "advise [MODEL]",
     "  mneme advise --context 8192 --memory 512M\n"
     "  mneme advise ./model.gguf --context 4096 --memory 2G --text book.txt\n"
     "  mneme advise --context 2000 --rows 8 --memory 400M --time 120 --svg caches.svg\n",
     command_advise},
    {"bench", COMMAND_BENCH, 1, "measure prefill and decoding, compare caches", "bench [MODEL]",
     "  mneme bench -p 512 -n 128\n"
     "  mneme bench -m ./model.gguf -p 0 -n 64 -d 0,4096 -t 1,2 -o json\n"
     "  mneme bench --cache all --text book.txt     each cache beside dynamic\n"
     "  mneme bench --cache static,quantized -n 200\n"
     "  mneme bench --serve http://127.0.0.1:8080 --num-prompts 50      a server\n",
     command_bench},
    {"cache", COMMAND_CACHE, INT_MAX, "list, verify, copy and convert saved caches; calibrate",
     "cache ls|show|verify|cp|rm|convert|calibrate [...]",
     "  mneme cache ls ~/caches                      the saved caches of a folder\n"
     "  mneme cache show c.safetensors               its description and its entries\n"
     "  mneme cache verify *.safetensors             compares all checksums\n"
     "  mneme cache cp c.safetensors old/ --zstd     a compressed copy\n"
     "  mneme cache rm c.safetensors                 removes saved caches only\n"
     "  mneme cache convert c.safetensors kv.safetensors --legacy    Transformers'\n"
     "  mneme cache calibrate -f book.txt            --cache quantized, in seconds\n",
     command_cache},
    {"list", COMMAND_LIST, 0, "the models on this machine", "list",
     "  mneme list                   their names, what they are for, where they are\n"
     "  mneme list --json\n",
     command_list},
    {"pull", COMMAND_PULL, 1, "fetch a model", "pull [NAME|URL]",
     "  mneme pull                   what can be fetched by name: size, licence\n"
     "  mneme pull smollm2           into the models folder; `mneme run` finds it\n"
     "  mneme pull https://example.org/model.gguf --sha256 HEX\n",
     command_pull},
    {"pack", COMMAND_PACK, 1, "keep a model's packed weights: it opens faster", "pack [MODEL]",
     "  mneme pack                   of the model that `mneme run` takes\n"
     "  mneme pack ./model.gguf --compute-type bf16\n",
     command_pack},
    {"doctor", COMMAND_DOCTOR, 1, "check that everything is in place", "doctor [MODEL]",
     "  mneme doctor\n"
     "  mneme doctor ./model --json\n",
     command_doctor},
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_help(void) {
    bytes b = {0};
    bytes_append_text(&b, "Examples:\n"
                          "  mneme run \"What is the capital of France?\"\n"
                          "  mneme run embedded \"Once upon a time\"\n"
                          "  mneme chat\n"
                          "  mneme inspect\n\n"
                          "Usage: mneme COMMAND [MODEL] [options]\n");
    for (int i = 0; i < N_COMMANDS; i++) bytes_printf(&b, "  %-10s %s\n", commands[i].name, commands[i].summary);
    bytes_append_text(&b, "  --version  version and compiler\n"
                          "`mneme COMMAND --help` explains a command. MODEL is a Hugging Face folder, a\n"
                          ".gguf file, org/name in the local Hugging Face cache, or 'embedded'; without\n"
                          "one, the model that was installed last, else the embedded one.\n");
    put_bytes(&b);
}

static void print_version(void) {
    bytes b = {0};
    bytes_printf(&b, "mneme %s (%s %s)\n", mn_version(),
#if defined(__clang__)
                 "clang", __clang_version__
#else
                 "gcc", __VERSION__
#endif
    );
    put_bytes(&b);
}

/* --json anywhere, also on a command line that cannot be read to its end. */
static bool wants_json(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0) return true;
    }
    return false;
}

static int unknown_command(const char *name, bool as_json) {
    const char *names[N_COMMANDS + 1];
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    names[N_COMMANDS] = NULL;
    const char *near = text_nearest(name, names);
    if (near) {
        status_fail(MN_E_ARG, "unknown command '%.60s'; did you mean %s?", name, near);
    } else {
        status_fail(MN_E_ARG, "unknown command '%.60s'; `mneme --help` lists all commands", name);
    }
    return report_json(as_json, EXIT_USAGE, NULL);
}

static int run_named(const command *c, int argc, char **argv, bool as_json) {
    options o = {.command = c};
    const char *param = NULL;
    mn_status status = options_read(&o, argc - 2, argv + 2, &param);
    int code = EXIT_DONE;
    if (status != MN_OK) {
        code = report_json(as_json, exit_of(status), param);
    } else if (option_on(&o, OPT_HELP) || option_on(&o, OPT_HELP_ALL)) {
        help_print(c, option_on(&o, OPT_HELP_ALL));
    } else {
        code = c->run(&o);
    }
    options_clear(&o);
    return code;
}

int main(int argc, char **argv) {
    file_hold_standard();
    interrupt_install();
    bool as_json = wants_json(argc, argv);
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        status_fail(
            MN_E_ARG,
            "no command; allowed: run, chat, serve, transcribe, score, tokenize, inspect, advise, bench, cache, list, pull, pack, doctor; see `mneme --help`");
        return finish(report_json(as_json, EXIT_USAGE, NULL));
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return finish(EXIT_DONE);
    }
    if (strcmp(name, "--version") == 0) {
        print_version();
        return finish(EXIT_DONE);
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) return finish(run_named(&commands[i], argc, argv, as_json));
    }
    return finish(unknown_command(name, as_json));
}
