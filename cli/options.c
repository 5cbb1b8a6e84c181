/* The table of options, and reading it from flags, environment and configuration file.
 * SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/distance.h"
#include "base/file.h"

#define CACHED (COMMAND_GENERATES | COMMAND_SCORE | COMMAND_BENCH | COMMAND_TRANSCRIBE | COMMAND_SERVE)
#define SAVING (COMMAND_GENERATES | COMMAND_SCORE)
enum { SCHEMA_FILE = 1 << 24, GRAMMAR_FILE = 1 << 20 }; /* bytes of a file with a schema, a grammar, at most */

#define TEMPLATED (COMMAND_GENERATES | COMMAND_TOKENIZE)
#define TEXTUAL   (COMMAND_RUN | COMMAND_SCORE | COMMAND_TOKENIZE)

/* clang-format off */
const option option_table[N_OPTIONS] = {
    [OPT_MODEL] = {"model", "-m", OPTION_TEXT, "MODEL", "the last one installed, else embedded", "folder, .gguf file, org/name[@revision], alias, embedded", COMMAND_ALL & ~(unsigned)(COMMAND_LIST | COMMAND_PULL), COMMAND_ALL & ~(unsigned)(COMMAND_CACHE | COMMAND_LIST | COMMAND_PULL), 0, 0},

    [OPT_PROMPT] = {"prompt", "-p", OPTION_TEXT, "TEXT", NULL, "the text", TEXTUAL | COMMAND_CACHE, COMMAND_SCORE | COMMAND_TOKENIZE, 0, 0},
    [OPT_FILE] = {"file", "-f", OPTION_TEXT, "FILE", NULL, "the text, read unchanged from a file; - is stdin", TEXTUAL | COMMAND_CACHE, TEXTUAL, 0, 0},
    [OPT_IDS] = {"ids", NULL, OPTION_TEXT, "1,2,3", NULL, "token ids", TEXTUAL | COMMAND_CACHE | COMMAND_BENCH | COMMAND_ADVISE, COMMAND_SCORE | COMMAND_TOKENIZE, 0, 0},
    [OPT_IDS_FILE] = {"ids_file", NULL, OPTION_TEXT, "FILE", NULL, "token ids from a file", TEXTUAL | COMMAND_CACHE | COMMAND_BENCH | COMMAND_ADVISE, COMMAND_SCORE | COMMAND_TOKENIZE, 0, 0},
    [OPT_MESSAGES] = {"messages", NULL, OPTION_TEXT, "F.json", NULL, "a conversation: [{\"role\": \"user\", \"content\": \"...\"}]", COMMAND_RUN | COMMAND_TOKENIZE, COMMAND_RUN | COMMAND_TOKENIZE, 0, 0},
    [OPT_PREFIX_FILE] = {"prefix_file", NULL, OPTION_TEXT, "F", NULL, "text before every prompt, computed once for all of a batch", COMMAND_RUN, 0, 0, 0},
    [OPT_BATCH] = {"batch", NULL, OPTION_TEXT, "F.jsonl", NULL, "one {\"ids\"}, {\"prompt\"} or {\"messages\"} a line; answers as JSON lines", COMMAND_RUN, COMMAND_RUN, 0, 0},
    [OPT_ROWS] = {"batch_size", NULL, OPTION_INTEGER, "N", "16", "lines of --batch computed at once; results do not depend on it", COMMAND_RUN, 0, 1, 1024},
    [OPT_UNORDERED] = {"unordered", NULL, OPTION_SWITCH, NULL, NULL, "with --batch: print answers as they finish, not in the order of the lines", COMMAND_RUN, 0, 0, 0},
    [OPT_RAW] = {"raw", "--no-chat-template", OPTION_SWITCH, NULL, NULL, "continue the text without the chat template", COMMAND_GENERATES, COMMAND_RUN, 0, 0},
    [OPT_NO_SPECIAL_TOKENS] = {"no_special_tokens", NULL, OPTION_SWITCH, NULL, NULL, "do not add what the tokenizer adds (bos)", TEXTUAL, COMMAND_SCORE | COMMAND_TOKENIZE, 0, 0},

    [OPT_GENERATION_CONFIG] = {"generation_config", NULL, OPTION_TEXT, "F.json", NULL, "generation fields from a file in Transformers' format", COMMAND_GENERATES, 0, 0, 0},
    [OPT_GREEDY] = {"greedy", NULL, OPTION_SWITCH, NULL, NULL, "always the most likely token; the same as --no-do-sample", COMMAND_GENERATES, COMMAND_GENERATES, 0, 0},
    [OPT_TEMP] = {"temp", NULL, OPTION_TEXT, "T", NULL, "the same as --temperature; 0: greedy", COMMAND_GENERATES, 0, 0, 0},
    [OPT_STOP_TOKEN] = {"stop_token", NULL, OPTION_LINES, "NAME|ID", NULL, "a token that ends the answer too, also with --ignore-eos; repeated: several", COMMAND_GENERATES, 0, 0, 0},
    [OPT_ASSISTANT_MODEL] = {"assistant_model", NULL, OPTION_TEXT, "MODEL", NULL, "a smaller model that drafts tokens: the same text, faster", COMMAND_RUN, 0, 0, 0},
    [OPT_NEGATIVE_PROMPT] = {"negative_prompt", NULL, OPTION_TEXT, "TEXT", NULL, "with --guidance-scale: the unconditional prompt", COMMAND_RUN, 0, 0, 0},
    [OPT_NEGATIVE_PROMPT_IDS] = {"negative_prompt_ids", NULL, OPTION_TEXT, "1,2,3", NULL, "the same as token ids", COMMAND_RUN, 0, 0, 0},
    [OPT_LOGPROBS] = {"logprobs", NULL, OPTION_INTEGER, "K", NULL, "with --json: log-probabilities, of the K best too", COMMAND_GENERATES, 0, 0, 1000},
    [OPT_SCORES_OUT] = {"scores_out", NULL, OPTION_TEXT, "F.safetensors", NULL, "processed scores, F32 [steps][rows][vocab]", COMMAND_RUN, 0, 0, 0},
    [OPT_LOGITS_OUT] = {"logits_out", NULL, OPTION_TEXT, "F.safetensors", NULL, "raw logits, F32 [steps][rows][vocab]", COMMAND_RUN, 0, 0, 0},

    [OPT_CACHE] = {"cache_implementation", "--cache", OPTION_TEXT, "NAME", "dynamic", "cache strategy, names joined by +; bench: all, or a list a,b; --help all lists them", CACHED | COMMAND_CACHE | COMMAND_INSPECT, CACHED, 0, 0},
    [OPT_CACHE_CONFIG] = {"cache_config", NULL, OPTION_TEXT, "k=v,...", NULL, "as nbits=4,window_length=1024; --help all lists them", CACHED | COMMAND_CACHE | COMMAND_INSPECT, COMMAND_CHAT | COMMAND_SCORE, 0, 0},
    [OPT_CACHE_DTYPE] = {"cache_dtype", NULL, OPTION_CHOICE, "auto|f32|bf16", "auto", "type of exact keys and values", CACHED | COMMAND_CACHE | COMMAND_INSPECT | COMMAND_ADVISE, COMMAND_SCORE | COMMAND_BENCH | COMMAND_TRANSCRIBE | COMMAND_SERVE, 0, 0},
    [OPT_MAX_CACHE_LEN] = {"max_cache_len", "-c --ctx-size", OPTION_INTEGER, "N", NULL, "most tokens in the cache; may exceed the model's context", CACHED | COMMAND_CACHE, COMMAND_CHAT | COMMAND_SCORE, 1, INT64_C(1) << 40},
    [OPT_NO_CACHE] = {"no_cache", "--no-use-cache", OPTION_SWITCH, NULL, NULL, "the same as --cache none", COMMAND_GENERATES | COMMAND_SCORE, 0, 0, 0},
    [OPT_SAVE_CACHE] = {"save_cache", NULL, OPTION_TEXT, "F", NULL, "write tokens and cache to a file at the end", SAVING, COMMAND_SCORE, 0, 0},
    [OPT_LOAD_CACHE] = {"load_cache", NULL, OPTION_TEXT, "F", NULL, "continue from such a file; the text may be omitted", SAVING, COMMAND_RUN | COMMAND_SCORE, 0, 0},
    [OPT_CACHE_DIR] = {"cache_dir", NULL, OPTION_TEXT, "D", NULL, "save caches there and reuse the longest matching prefix", SAVING | COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_CACHE_DIR_LIMIT] = {"cache_dir_limit", NULL, OPTION_SIZE, "SIZE", "none", "most bytes of the files of --cache-dir; above it, the least recently used are deleted", COMMAND_SERVE, COMMAND_SERVE, 1, 0},
    [OPT_CACHE_TTL] = {"cache_ttl", NULL, OPTION_INTEGER, "S", "none", "drop from memory what was not used for so many seconds", COMMAND_SERVE, COMMAND_SERVE, 1, 1000000000},
    [OPT_CACHE_QUOTA] = {"cache_quota", NULL, OPTION_SIZE, "SIZE", "none", "most bytes of cached prefixes for one API key; above it, that key's prefixes are dropped", COMMAND_SERVE, COMMAND_SERVE, 1, 0},
    [OPT_PREFIX_CACHE] = {"prefix_cache", NULL, OPTION_SWITCH, NULL, "true", "--no-prefix-cache: no cache of prompts that begin alike", COMMAND_SERVE, 0, 0, 0},
    [OPT_PREFIX_MEMORY] = {"prefix_memory", NULL, OPTION_SIZE, "SIZE", "none", "most bytes of the prefix cache; above it, the least valuable prefixes are dropped", COMMAND_SERVE, 0, 1, 0},
    [OPT_CACHE_KEY_FILE] = {"cache_key_file", NULL, OPTION_TEXT, "F", NULL, "saved caches carry an HMAC with the bytes of this file as key; others are not loaded", SAVING | COMMAND_CACHE | COMMAND_SERVE, COMMAND_CACHE, 0, 0},
    [OPT_CALIBRATION] = {"calibration", NULL, OPTION_TEXT, "F", "the model's own, of cache calibrate", "calibration of quantized keys; none: without one", CACHED | COMMAND_CACHE | COMMAND_INSPECT | COMMAND_ADVISE, 0, 0, 0},
    [OPT_ON_OOM] = {"on_oom", NULL, OPTION_CHOICE, "offload|quantize|evict|fail", "fail", "when memory runs out: convert the cache this way and continue", CACHED, COMMAND_SCORE, 0, 0},

    [OPT_SPEECH_MODEL] = {"speech_model", NULL, OPTION_TEXT, "MODEL", NULL, "a Whisper model beside the text model: /v1/audio/transcriptions", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_HOST] = {"host", NULL, OPTION_TEXT, "HOST", "127.0.0.1", "address to listen on; only this machine, unless --api-key-file or --allow-remote is given", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_PORT] = {"port", NULL, OPTION_INTEGER, "N", "8080", "port to listen on; 0: any free one", COMMAND_SERVE, COMMAND_SERVE, 0, 65535},
    [OPT_UNIX] = {"unix", NULL, OPTION_TEXT, "PATH", NULL, "listen on a Unix socket instead", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_API_KEY_FILE] = {"api_key_file", NULL, OPTION_TEXT, "F", NULL, "a file with an API key in each line; requests need one of them", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_ALLOW_REMOTE] = {"allow_remote", NULL, OPTION_SWITCH, NULL, NULL, "other machines may connect without an API key, where --host lets them", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_SSL_CERT_FILE] = {"ssl_cert_file", NULL, OPTION_TEXT, "F", NULL, "speak TLS (https), with this certificate in PEM and those that signed it", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_SSL_KEY_FILE] = {"ssl_key_file", NULL, OPTION_TEXT, "F", NULL, "the private key of the certificate, in PEM without a password", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_SHARE_PREFIXES] = {"share_prefixes", NULL, OPTION_SWITCH, NULL, NULL, "requests with different API keys share computed prompts", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_CACHE_FIXED] = {"cache_fixed", NULL, OPTION_SWITCH, NULL, NULL, "requests cannot name another cache", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_LOG_REQUESTS] = {"log_requests", NULL, OPTION_SWITCH, NULL, NULL, "a line on stderr for each request, without its text", COMMAND_SERVE, COMMAND_SERVE, 0, 0},
    [OPT_LOG_FORMAT] = {"log_format", NULL, OPTION_CHOICE, "text|json", "text", "format of the lines of --log-requests; json: an object each", COMMAND_SERVE, 0, 0, 0},
    [OPT_DRAIN_TIMEOUT] = {"drain_timeout", NULL, OPTION_INTEGER, "S", "30", "seconds that requests have to end after Ctrl-C or SIGTERM", COMMAND_SERVE, 0, 0, 86400},
    [OPT_MAX_NUM_SEQS] = {"max_num_seqs", NULL, OPTION_INTEGER, "N", "64", "sequences computed together at most", COMMAND_SERVE, COMMAND_SERVE, 1, 1024},
    [OPT_MAX_QUEUE] = {"max_queue", NULL, OPTION_INTEGER, "N", "256", "requests that wait or are computed; more are refused with 429", COMMAND_SERVE, COMMAND_SERVE, 1, 100000},
    [OPT_SANDBOX] = {"sandbox", NULL, OPTION_SWITCH, NULL, "true", "--no-sandbox: the server may open any file, start programs, connect to others", COMMAND_SERVE, COMMAND_SERVE, 0, 0},

    [OPT_SYSTEM] = {"system", NULL, OPTION_TEXT, "TEXT", NULL, "the system message", COMMAND_GENERATES, COMMAND_GENERATES, 0, 0},
    [OPT_TOOLS] = {"tools", NULL, OPTION_TEXT, "F.json", NULL, "functions that the model may call, for its chat template: a file, or the list itself", TEMPLATED, COMMAND_CHAT, 0, 0},
    [OPT_DOCUMENTS] = {"documents", NULL, OPTION_TEXT, "F.json", NULL, "documents for the template, [{\"title\": \"...\", \"text\": \"...\"}] or a file", TEMPLATED, COMMAND_CHAT, 0, 0},
    [OPT_TEMPLATE_VAR] = {"template_var", "--chat-template-kwargs", OPTION_LINES, "NAME=VALUE", NULL, "a variable of the chat template, as enable_thinking=false, or an object of them; repeated: several", TEMPLATED, COMMAND_CHAT, 0, 0},
    [OPT_THINKING] = {"thinking", NULL, OPTION_SWITCH, NULL, "the template's own", "sets enable_thinking of the chat template; --no-thinking: to false, and any reasoning is hidden", TEMPLATED, COMMAND_CHAT, 0, 0},
    [OPT_SAVE] = {"save", NULL, OPTION_TEXT, "FOLDER", NULL, "write text, settings and cache to a folder at exit, as /save does", COMMAND_CHAT, COMMAND_CHAT, 0, 0},
    [OPT_LOAD] = {"load", NULL, OPTION_TEXT, "FOLDER", NULL, "continue a saved conversation, as /load does", COMMAND_CHAT, COMMAND_CHAT, 0, 0},
    [OPT_STATS] = {"stats", NULL, OPTION_SWITCH, NULL, NULL, "after every turn: tokens, cached tokens, speed, cache", COMMAND_CHAT, COMMAND_CHAT, 0, 0},
    [OPT_NO_HISTORY] = {"no_history", NULL, OPTION_SWITCH, NULL, NULL, "neither read nor write the history of lines", COMMAND_CHAT, COMMAND_CHAT, 0, 0},

    [OPT_CHUNK] = {"chunk", NULL, OPTION_INTEGER, "N", NULL, "compute the text N tokens at a time", COMMAND_SCORE, COMMAND_SCORE, 1, INT64_C(1) << 31},
    [OPT_OUT] = {"out", NULL, OPTION_TEXT, "F.safetensors", NULL, "F32 logits [T][vocab]", COMMAND_SCORE | COMMAND_CACHE, COMMAND_SCORE, 0, 0},

    [OPT_DECODE] = {"decode", NULL, OPTION_SWITCH, NULL, NULL, "ids to text", COMMAND_TOKENIZE, COMMAND_TOKENIZE, 0, 0},
    [OPT_RENDER] = {"render", NULL, OPTION_SWITCH, NULL, NULL, "print the rendered messages, not their ids", COMMAND_TOKENIZE, COMMAND_TOKENIZE, 0, 0},
    [OPT_ADD_GENERATION_PROMPT] = {"add_generation_prompt", NULL, OPTION_SWITCH, NULL, NULL, "end the rendered messages with the beginning of an answer", COMMAND_TOKENIZE, COMMAND_TOKENIZE, 0, 0},
    [OPT_SKIP_SPECIAL_TOKENS] = {"skip_special_tokens", NULL, OPTION_SWITCH, NULL, NULL, "with --decode: leave special tokens out", COMMAND_TOKENIZE, COMMAND_TOKENIZE, 0, 0},

    [OPT_KERNELS] = {"kernels", NULL, OPTION_SWITCH, NULL, NULL, "which kernels are used on this CPU", COMMAND_INSPECT, COMMAND_INSPECT, 0, 0},
    [OPT_CONTEXT] = {"context", "-c --ctx-size", OPTION_INTEGER, "N", "the model's own", "tokens to plan memory for", COMMAND_INSPECT, COMMAND_INSPECT, 1, INT64_C(1) << 40},
    [OPT_PLAN_ROWS] = {"rows", NULL, OPTION_INTEGER, "N", "1", "plan a run of the cache that --cache names: N beams or answers behind a prompt of --context tokens", COMMAND_INSPECT, COMMAND_INSPECT, 1, 1 << 24},
    [OPT_PLAN_NEW_TOKENS] = {"new_tokens", NULL, OPTION_INTEGER, "N", "1", "plan a run of N new tokens behind such a prompt, in each row", COMMAND_INSPECT, COMMAND_INSPECT, 1, 1 << 24},
    [OPT_PLAN_BATCH_SIZE] = {"batch_size", NULL, OPTION_INTEGER, "N", "1", "plan N such prompts at once: lines of run --batch, recordings of transcribe", COMMAND_INSPECT, COMMAND_INSPECT, 1, 1 << 16},

    [OPT_ADVISE_CONTEXT] = {"context", "-c --ctx-size", OPTION_INTEGER, "N", "the model's own", "tokens that the cache must hold", COMMAND_ADVISE, COMMAND_ADVISE, 64, INT64_C(1) << 40},
    [OPT_ADVISE_MEMORY] = {"memory", NULL, OPTION_SIZE, "SIZE", "available memory", "for weights and caches, as --memory-limit of other commands", COMMAND_ADVISE, COMMAND_ADVISE, 1, 0},
    [OPT_ADVISE_ROWS] = {"rows", NULL, OPTION_INTEGER, "N", "1", "texts of so many tokens at once, each with a cache of its own", COMMAND_ADVISE, COMMAND_ADVISE, 1, 1 << 16},
    [OPT_ADVISE_TIME] = {"time", NULL, OPTION_INTEGER, "SECONDS", "60", "for measuring, at most; 0: bytes alone", COMMAND_ADVISE, COMMAND_ADVISE, 0, 86400},
    [OPT_ADVISE_SVG] = {"svg", NULL, OPTION_TEXT, "FILE", NULL, "draw divergence against memory and speed against depth", COMMAND_ADVISE, COMMAND_ADVISE, 0, 0},

    [OPT_N_PROMPT] = {"n_prompt", "-p", OPTION_TEXT, "N,...", "512", "prompt sizes", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_N_GEN] = {"n_gen", "-n", OPTION_TEXT, "N,...", "128", "tokens generated", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_N_DEPTH] = {"n_depth", "-d", OPTION_TEXT, "N,...", "0", "tokens in the cache before the test", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_PG] = {"pg", "-pg", OPTION_TEXT, "P,N", NULL, "a prompt of P and then N tokens, timed together", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_PARALLEL] = {"parallel", "-npl", OPTION_TEXT, "N,...", "1", "rows decoded together", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_REPETITIONS] = {"repetitions", "-r", OPTION_INTEGER, "N", "5", "measurements of each test", COMMAND_BENCH, COMMAND_BENCH, 1, 10000},
    [OPT_BENCH_THREADS] = {"threads", "-t", OPTION_TEXT, "N,...", "the cores allowed", "computing threads", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_OUTPUT] = {"output", "-o", OPTION_CHOICE, "md|csv|json|jsonl", "md", "format of the result", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_NO_WARMUP] = {"no_warmup", NULL, OPTION_SWITCH, NULL, NULL, "measure the first run too", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_TEXT] = {"text", NULL, OPTION_TEXT, "FILE", "one built in", "compare caches on this text; - is stdin", COMMAND_BENCH | COMMAND_ADVISE, COMMAND_BENCH | COMMAND_ADVISE, 0, 0},

    [OPT_TEXTS] = {"texts", NULL, OPTION_SWITCH, NULL, NULL, "when caches are compared: also the text that each one generates", COMMAND_BENCH, COMMAND_BENCH, 0, 0},

    [OPT_SERVE] = {"serve", NULL, OPTION_TEXT, "URL", NULL, "measure an OpenAI-compatible server: http://HOST:PORT or unix:PATH; the options are in --help all", COMMAND_BENCH, COMMAND_BENCH, 0, 0},
    [OPT_ENDPOINT] = {"endpoint", NULL, OPTION_CHOICE, "completions|chat", "completions", "--serve: /v1/completions or /v1/chat/completions", COMMAND_BENCH, 0, 0, 0},
    [OPT_NUM_PROMPTS] = {"num_prompts", NULL, OPTION_INTEGER, "N", "100", "--serve: requests", COMMAND_BENCH, 0, 1, 100000},
    [OPT_REQUEST_RATE] = {"request_rate", NULL, OPTION_TEXT, "R|inf", "inf", "--serve: requests a second on average, at random moments (a Poisson process); inf: all at once", COMMAND_BENCH, 0, 0, 0},
    [OPT_MAX_CONCURRENCY] = {"max_concurrency", NULL, OPTION_INTEGER, "N", "none", "--serve: requests at a time; the others wait and their time does not count", COMMAND_BENCH, 0, 1, 100000},
    [OPT_RANDOM_INPUT_LEN] = {"random_input_len", NULL, OPTION_INTEGER, "N", "256", "--serve: tokens of each prompt, random words", COMMAND_BENCH, 0, 1, 1 << 20},
    [OPT_RANDOM_OUTPUT_LEN] = {"random_output_len", NULL, OPTION_INTEGER, "N", "64", "--serve: tokens of each answer at most", COMMAND_BENCH, 0, 1, 1 << 20},
    [OPT_RANDOM_PREFIX_LEN] = {"random_prefix_len", NULL, OPTION_INTEGER, "N", "0", "--serve: tokens that all prompts begin with, besides those of --random-input-len", COMMAND_BENCH, 0, 0, 1 << 20},
    [OPT_SERVE_IGNORE_EOS] = {"ignore_eos", NULL, OPTION_SWITCH, NULL, "true", "--serve: answers go on past the end token; --no-ignore-eos for servers that refuse the field", COMMAND_BENCH, 0, 0, 0},
    [OPT_METRIC_PERCENTILES] = {"metric_percentiles", NULL, OPTION_TEXT, "99,...", "99", "--serve: percentiles of the times, beside mean and median", COMMAND_BENCH, 0, 0, 0},
    [OPT_BENCH_SEED] = {"seed", NULL, OPTION_INTEGER, "N", "0", "--serve: seed of words and arrival times", COMMAND_BENCH, 0, 0, INT64_C(1) << 53},
    [OPT_BENCH_API_KEY_FILE] = {"api_key_file", NULL, OPTION_TEXT, "F", NULL, "--serve: the API key is the first line of this file", COMMAND_BENCH, 0, 0, 0},

    [OPT_LANGUAGE] = {"language", "-l", OPTION_TEXT, "LANGUAGE", "detected", "language spoken: a code or an English name", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_SPEECH_PROMPT] = {"prompt", "--initial-prompt", OPTION_TEXT, "TEXT", NULL, "text before the recording: spelling of names and terms", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_HOTWORDS] = {"hotwords", NULL, OPTION_TEXT, "TEXT", NULL, "words to expect, spelled as they should appear: text before every 30 seconds", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_TASK] = {"task", NULL, OPTION_CHOICE, "transcribe|translate", "transcribe", "translate: to English", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_TIMESTAMPS] = {"timestamps", NULL, OPTION_CHOICE, "none|segment|word", "segment", "timestamps of segments or words; those of words only in JSON", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_SUBTITLES] = {"output", "-o", OPTION_CHOICE, "txt|srt|vtt|json", "txt", "format of the result; json: one object per file", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_OUTPUT_DIR] = {"output_dir", NULL, OPTION_TEXT, "D", NULL, "write a file for each recording there, named after it, instead of to stdout", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_NUM_BEAMS] = {"num_beams", NULL, OPTION_INTEGER, "N", "1", "beams at temperature 0", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 1, 1000},
    [OPT_TEMPERATURES] = {"temperature", "--temperatures", OPTION_TEXT, "0,0.2,...", "0,0.2,0.4,0.6,0.8,1", "tried in turn while the text fails the thresholds; 0 alone: no retry", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_CONDITION] = {"condition_on_prev_tokens", "--condition-on-previous-text", OPTION_SWITCH, NULL, NULL, "use the preceding text as prompt of each window", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_COMPRESSION_RATIO] = {"compression_ratio_threshold", NULL, OPTION_TEXT, "X|none", "1.35", "retry above this compression ratio (repetition)", COMMAND_TRANSCRIBE, 0, 0, 0},
    [OPT_LOGPROB] = {"logprob_threshold", NULL, OPTION_TEXT, "X|none", "-1", "retry below this mean log-probability", COMMAND_TRANSCRIBE, 0, 0, 0},
    [OPT_NO_SPEECH] = {"no_speech_threshold", NULL, OPTION_TEXT, "X|none", "0.6", "omit text that fails --logprob-threshold when the probability of no speech is above this", COMMAND_TRANSCRIBE, 0, 0, 0},
    [OPT_VAD_FILTER] = {"vad_filter", NULL, OPTION_SWITCH, NULL, NULL, "leave out non-speech; times stay those of the recording", COMMAND_TRANSCRIBE, COMMAND_TRANSCRIBE, 0, 0},
    [OPT_VAD_THRESHOLD] = {"vad_threshold", NULL, OPTION_INTEGER, "DB", "4", "--vad-filter: speech is this many dB above the noise around it", COMMAND_TRANSCRIBE, 0, 1, 60},
    [OPT_VAD_MIN_SILENCE] = {"vad_min_silence_ms", "--min-silence-duration-ms", OPTION_INTEGER, "MS", "2000", "--vad-filter: silence shorter than this is kept", COMMAND_TRANSCRIBE, 0, 0, 3600000},
    [OPT_VAD_MIN_SPEECH] = {"vad_min_speech_ms", "--min-speech-duration-ms", OPTION_INTEGER, "MS", "100", "--vad-filter: speech shorter than this is left out", COMMAND_TRANSCRIBE, 0, 0, 3600000},
    [OPT_VAD_SPEECH_PAD] = {"vad_speech_pad_ms", "--speech-pad-ms", OPTION_INTEGER, "MS", "400", "--vad-filter: kept before and after speech", COMMAND_TRANSCRIBE, 0, 0, 3600000},
    [OPT_WINDOW_TOKENS] = {"max_new_tokens", "-n", OPTION_INTEGER, "N", "as many as the context allows", "most new tokens of a window", COMMAND_TRANSCRIBE, 0, 1, 1000000},
    [OPT_SEED] = {"seed", "-s", OPTION_INTEGER, "N", "0", "seed of sampling above temperature 0", COMMAND_TRANSCRIBE, 0, 0, INT64_C(1) << 53},
    [OPT_BATCH_SIZE] = {"batch_size", NULL, OPTION_INTEGER, "N", "8", "recordings transcribed together; results do not depend on it", COMMAND_TRANSCRIBE, 0, 1, 256},

    [OPT_ZSTD] = {"zstd", NULL, OPTION_SWITCH, NULL, NULL, "cp, convert, saving: compress what shrinks by a tenth", COMMAND_CACHE | COMMAND_GENERATES | COMMAND_SCORE, COMMAND_CACHE, 0, 0},
    [OPT_PLAIN] = {"plain", NULL, OPTION_SWITCH, NULL, NULL, "cp: compress nothing; such a file loads fastest", COMMAND_CACHE, COMMAND_CACHE, 0, 0},
    [OPT_LEGACY] = {"legacy", NULL, OPTION_SWITCH, NULL, NULL, "convert: write key.N and value.N, [rows][heads][tokens][dim], as Transformers' legacy format", COMMAND_CACHE, COMMAND_CACHE, 0, 0},
    [OPT_ROW] = {"row", NULL, OPTION_INTEGER, "N", "0", "convert: which row of a file in the legacy format", COMMAND_CACHE, COMMAND_CACHE, 0, 1000000},

    [OPT_SHA256] = {"sha256", NULL, OPTION_TEXT, "HEX", NULL, "the SHA-256 that the file of the URL must have", COMMAND_PULL, COMMAND_PULL, 0, 0},

    [OPT_COMPUTE_TYPE] = {"compute_type", "--dtype --torch-dtype", OPTION_CHOICE, "auto|f32|bf16|int8|int8_a8", "auto", "type in which activations are multiplied; f32 is the reference", COMMAND_COMPUTES, COMMAND_SCORE | COMMAND_BENCH | COMMAND_TRANSCRIBE, 0, 0},
    [OPT_CPU] = {"cpu", NULL, OPTION_TEXT, "LEVEL", "auto", "scalar, avx2, avx512, avx512_dot or neon", COMMAND_COMPUTES, COMMAND_INSPECT | COMMAND_DOCTOR | COMMAND_BENCH, 0, 0},
    [OPT_PACKED_DIR] = {"packed_dir", NULL, OPTION_TEXT, "D", "the user's own, of mneme pack", "folder of packed weights, which are mapped in place of packing; none: no folder", COMMAND_COMPUTES, COMMAND_PACK, 0, 0},
    [OPT_THREADS] = {"threads", "-t", OPTION_INTEGER, "N", "the cores allowed", "computing threads", (COMMAND_COMPUTES & ~(unsigned)COMMAND_BENCH) | COMMAND_CACHE, COMMAND_SCORE | COMMAND_TRANSCRIBE, 1, MN_MOST_THREADS},
    [OPT_MEMORY_LIMIT] = {"memory_limit", NULL, OPTION_SIZE, "SIZE", "available memory", "for weights and caches: 512M, 1.5GiB", COMMAND_COMPUTES & ~(unsigned)COMMAND_ADVISE, COMMAND_GENERATES | COMMAND_INSPECT, 1, 0},
    [OPT_JSON] = {"json", NULL, OPTION_SWITCH, NULL, NULL, "one JSON object on stdout, also for errors", COMMAND_ALL, COMMAND_ALL, 0, 0},
    [OPT_VERBOSE] = {"verbose", "-v", OPTION_SWITCH, NULL, NULL, "report progress on stderr", COMMAND_ALL, COMMAND_DOCTOR, 0, 0},
    [OPT_PRINT_CONFIG] = {"print_config", NULL, OPTION_SWITCH, NULL, NULL, "print every value and where it came from", COMMAND_ALL, 0, 0, 0},
    [OPT_HELP] = {"help", "-h", OPTION_SWITCH, NULL, NULL, "this page", COMMAND_ALL, 0, 0, 0},
    [OPT_HELP_ALL] = {"help_all", NULL, OPTION_SWITCH, NULL, NULL, "every option", COMMAND_ALL, 0, 0, 0},
};

/* Spellings of generation fields besides their own and the alias that the library gives. */
static const struct { const char *flag, *field; } generation_aliases[] = {
    {"-n", "max_new_tokens"}, {"--predict", "max_new_tokens"}, {"--n-predict", "max_new_tokens"},
    {"-s", "seed"}, {"--stop", "stop_strings"}, {"--repeat-penalty", "repetition_penalty"},
};
/* clang-format on */

/* Transformers' words for values of choices. float16 has no arithmetic of its own here: bf16 computes in as many
 * bits. */
static const struct {
    option_id id;
    const char *warned, *meant;
} synonyms[] = {
    {OPT_COMPUTE_TYPE, "float32", "f32"}, {OPT_COMPUTE_TYPE, "bfloat16", "bf16"}, {OPT_COMPUTE_TYPE, "float16", "bf16"},
    {OPT_CACHE_DTYPE, "float32", "f32"},  {OPT_CACHE_DTYPE, "bfloat16", "bf16"},  {OPT_CACHE_DTYPE, "float16", "bf16"},
    {OPT_ON_OOM, "offloaded", "offload"}, {OPT_ON_OOM, "quantized", "quantize"},  {OPT_ON_OOM, "sink", "evict"},
};

const char *const option_origin_names[] = {
    [ORIGIN_DEFAULT] = "default",
    [ORIGIN_MODEL] = "model",
    [ORIGIN_GENERATION_FILE] = "generation-config file",
    [ORIGIN_CONFIG_FILE] = "config file",
    [ORIGIN_ENVIRONMENT] = "environment",
    [ORIGIN_FLAG] = "flag",
};

/* ---- small readers ---- */

mn_status size_parse(const char *text, int64_t *out) {
    static const struct {
        const char *unit;
        double factor;
    } units[] = {
        {"", 1},         {"b", 1},      {"k", 1024},    {"kb", 1024},    {"kib", 1024}, {"m", 0x1p20},  {"mb", 0x1p20},
        {"mib", 0x1p20}, {"g", 0x1p30}, {"gb", 0x1p30}, {"gib", 0x1p30}, {"t", 0x1p40}, {"tb", 0x1p40}, {"tib", 0x1p40},
    };
    char *end = NULL;
    double value = strtod(text, &end);
    bool number = end != text && (isdigit((unsigned char)*text) || *text == '.') && isfinite(value);
    for (size_t i = 0; number && i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].unit) != 0) continue;
        double total = value * units[i].factor;
        if (total < 1 || total > 0x1p62) break;
        *out = (int64_t)total;
        return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "'%s' is not a size; allowed: a number of bytes above 0, or with a unit as in 512M or 1.5GiB",
            text);
}

static mn_status integer_parse(const char *text, int64_t *out) {
    char *end = NULL;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text)) MN_FAIL(MN_E_ARG, "'%s' is not a whole number", text);
    *out = value; /* out of range saturates, and every range here is narrower */
    return MN_OK;
}

static bool switch_parse(const char *text, int64_t *out) {
    static const char *const words[2][4] = {{"0", "false", "no", "off"}, {"1", "true", "yes", "on"}};
    for (int value = 0; value < 2; value++) {
        for (int i = 0; i < 4; i++) {
            if (strcasecmp(text, words[value][i]) == 0) {
                *out = value;
                return true;
            }
        }
    }
    return false;
}

static bool choice_allows(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (const char *at = choices; n && at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        if (strncmp(at, text, n) == 0 && (at[n] == 0 || at[n] == '|')) return true;
    }
    return false;
}

/* The text itself when it is not a synonym; a leading "torch." is ignored. */
static const char *choice_meant(int id, const char *text) {
    const char *bare = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++) {
        if ((int)synonyms[i].id == id && strcmp(synonyms[i].warned, bare) == 0) return synonyms[i].meant;
    }
    return text;
}

const char *flag_spelling(char *out, size_t n, const char *name) {
    size_t i = 0;
    for (; name[i] && i + 1 < n; i++) out[i] = name[i] == '_' ? '-' : name[i];
    out[i] = 0;
    return out;
}

/* Equal but for '-' and '_'; the first n bytes of `text` count. */
static bool same_spelling(const char *name, const char *text, size_t n) {
    if (strlen(name) != n) return false;
    for (size_t i = 0; i < n; i++) {
        char a = name[i] == '_' ? '-' : name[i], b = text[i] == '_' ? '-' : text[i];
        if (a != b) return false;
    }
    return true;
}

/* ---- which row a flag means ---- */

int generation_field(const char *name) {
    for (int i = 0; mn_generation_field_at(i); i++) {
        if (same_spelling(mn_generation_field_at(i)->name, name, strlen(name))) return i;
    }
    return -1;
}

bool option_is_row(const command *c, const char *name) {
    for (int i = 0; i < N_OPTIONS; i++) {
        if (option_table[i].commands & c->bit && strcmp(option_table[i].name, name) == 0) return true;
    }
    return false;
}

static bool alias_matches(const char *aliases, const char *flag, size_t n) {
    for (const char *at = aliases; at && *at;) {
        size_t length = strcspn(at, " ");
        if (length == n && strncmp(at, flag, n) == 0) return true;
        at += length + (at[length] == ' ');
    }
    return false;
}

static int find_row(unsigned taker, const char *flag, size_t n) {
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *row = &option_table[i];
        if (!(row->commands & taker)) continue;
        if (n > 2 && strncmp(flag, "--", 2) == 0 && same_spelling(row->name, flag + 2, n - 2)) return i;
        if (alias_matches(row->aliases, flag, n)) return i;
    }
    return -1;
}

static int find_field(unsigned taker, const char *flag, size_t n) {
    if (!(taker & COMMAND_GENERATES)) return -1;
    for (size_t i = 0; i < sizeof generation_aliases / sizeof *generation_aliases; i++) {
        if (strlen(generation_aliases[i].flag) == n && strncmp(generation_aliases[i].flag, flag, n) == 0) {
            return generation_field(generation_aliases[i].field);
        }
    }
    if (n <= 2 || strncmp(flag, "--", 2) != 0) return -1;
    for (int i = 0; mn_generation_field_at(i); i++) {
        if (same_spelling(mn_generation_field_at(i)->name, flag + 2, n - 2)) return i;
        if (mn_generation_field_at(i)->alias && same_spelling(mn_generation_field_at(i)->alias, flag + 2, n - 2))
            return i;
    }
    return -1;
}

int generation_flag(const char *name) {
    char flag[72];
    int field = generation_field(name);
    for (int dashes = 1; field < 0 && dashes <= 2; dashes++) {
        int n = snprintf(flag, sizeof flag, "%s%.64s", dashes == 1 ? "-" : "--", name);
        field = find_field(COMMAND_GENERATES, flag, (size_t)n);
    }
    return field;
}

static mn_status unknown_flag(const command *c, const char *flag) {
    enum { MOST = 256 };
    char flags[MOST][64];
    const char *names[MOST + 1];
    size_t n = 0;
    for (int i = 0; i < N_OPTIONS && n < MOST; i++) {
        if (option_table[i].commands & c->bit && option_table[i].help)
            flag_spelling(flags[n++], 64, option_table[i].name);
    }
    for (int i = 0; c->bit & COMMAND_GENERATES && mn_generation_field_at(i) && n < MOST; i++)
        flag_spelling(flags[n++], 64, mn_generation_field_at(i)->name);
    for (size_t i = 0; i < n; i++) names[i] = flags[i];
    names[n] = NULL;
    char bare[64] = "";
    size_t dashes = strspn(flag, "-"), length = strcspn(flag + dashes, "=");
    if (length < sizeof bare) memcpy(bare, flag + dashes, length);
    flag_spelling(bare, sizeof bare, bare);
    const char *near = text_nearest(bare, names);
    int shown = (int)(dashes + length > 80 ? 80 : dashes + length);
    if (near) MN_FAIL(MN_E_ARG, "unknown flag '%.*s'; did you mean --%s?", shown, flag, near);
    MN_FAIL(MN_E_ARG, "unknown flag '%.*s'; `mneme %s --help all` lists all flags", shown, flag, c->name);
}

/* ---- setting values ---- */

static mn_status store(setting *s, const char *text, int64_t number, option_origin origin) {
    char *copy = mem_copy_text(text, strlen(text));
    if (!copy) return mem_no_memory();
    mem_free(s->text);
    *s = (setting){copy, number, origin};
    return MN_OK;
}

static mn_status add_line(setting *s, const char *text) {
    bytes both = {0};
    bytes_printf(&both, "%s\n%s", s->text, text);
    mn_status status = bytes_status(&both);
    if (status == MN_OK) status = store(s, both.data, 0, s->origin);
    bytes_clear(&both);
    return status;
}

static mn_status set_row(options *o, int id, const char *text, option_origin origin) {
    const option *row = &option_table[id];
    int64_t number = 0;
    switch (row->kind) {
    case OPTION_SWITCH:
        if (!switch_parse(text, &number)) MN_FAIL(MN_E_ARG, "'%s' is neither true nor false", text);
        break;
    case OPTION_INTEGER:
        MN_TRY(integer_parse(text, &number));
        if (number < row->lo || number > row->hi) {
            MN_FAIL(MN_E_ARG, "%s is out of range; allowed: %lld to %lld", text, (long long)row->lo,
                    (long long)row->hi);
        }
        break;
    case OPTION_SIZE: MN_TRY(size_parse(text, &number)); break;
    case OPTION_CHOICE:
        text = choice_meant(id, text);
        if (!choice_allows(row->argument, text)) MN_FAIL(MN_E_ARG, "'%s' is not one of %s", text, row->argument);
        break;
    case OPTION_LINES:
        if (o->set[id].text && o->set[id].origin == origin) return add_line(&o->set[id], text);
        break;
    case OPTION_TEXT: break;
    }
    return store(&o->set[id], text, number, origin);
}

/* Valid JSON is used as such, anything else is a string. */
static void put_value(bytes *out, const char *text, size_t n) {
    json_doc *doc = NULL;
    if (json_parse(&doc, text, n, JSON_PYTHON, "value") == MN_OK) {
        bytes_append(out, text, n);
    } else {
        json_put_string(out, text, n);
    }
    json_close(&doc);
}

/* "bias=2,seeding_scheme=selfhash" as a JSON object. */
static void put_pairs(bytes *out, const char *text) {
    bytes_append_text(out, "{");
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ","), n_key = strcspn(at, "=,"), skipped = n_key + (n_key < n);
        if (at != text) bytes_append_text(out, ",");
        json_put_string(out, at, n_key);
        bytes_append_text(out, ":");
        put_value(out, at + skipped, n - skipped);
        at += n + (at[n] == ',');
    }
    bytes_append_text(out, "}");
}

/* Short forms of values: what is put around the text, or around the quoted text, to make it JSON. */
static const struct {
    const char *kind, *before, *after;
    bool is_quoted;
} short_forms[] = {
    {"integer", "", "", false},    {"number", "", "", false},   {"boolean", "", "", false},
    {"integers", "[", "]", false}, {"pair", "[", "]", false},   {"lists of integers", "[[", "]]", false},
    {"string", "", "", true},      {"strings", "[", "]", true}, {"grammar", "", "", true},
};

static void put_field_value(bytes *out, const char *kind, const char *text) {
    bool is_text = strcmp(kind, "string") == 0 || strcmp(kind, "grammar") == 0,
         is_list = text[0] == '[' || text[0] == '{';
    if (strcmp(text, "null") == 0 || (is_list && !is_text)) {
        bytes_append_text(out, text);
        return;
    }
    for (size_t i = 0; i < sizeof short_forms / sizeof *short_forms; i++) {
        if (strcmp(kind, short_forms[i].kind) != 0) continue;
        bytes_append_text(out, short_forms[i].before);
        if (short_forms[i].is_quoted) {
            json_put_string(out, text, strlen(text));
        } else {
            bytes_append_text(out, text);
        }
        bytes_append_text(out, short_forms[i].after);
        return;
    }
    if (strcmp(kind, "object") == 0) {
        put_pairs(out, text);
    } else if (strcmp(kind, "layers") == 0 && isdigit((unsigned char)text[0])) {
        bytes_printf(out, "[%s]", text);
    } else {
        put_value(out, text, strlen(text));
    }
}

/* The file that a schema or a grammar is in: "@path", or a text that is no JSON (no grammar has a name with a dot) and
 * names a file; else NULL. */
static const char *file_of_value(const mn_generation_field *field, const char *text) {
    json_doc *doc = NULL;
    bool is_schema = strcmp(field->kind, "schema") == 0;
    if (!is_schema && strcmp(field->kind, "grammar") != 0) return NULL;
    if (*text == '@') return text + 1;
    if (!is_schema) return file_is_there(text) ? text : NULL;
    bool is_json = json_parse(&doc, text, strlen(text), JSON_PYTHON, "value") == MN_OK;
    json_close(&doc);
    return !is_json && file_is_there(text) ? text : NULL;
}

/* A file as one JSON text. */
static mn_status put_file(bytes *out, const char *path) {
    bytes text = {0};
    mn_status status = file_read(&text, path, GRAMMAR_FILE);
    if (status == MN_OK) json_put_string(out, text.data, text.n);
    bytes_clear(&text);
    return status;
}

mn_status generation_value(char **value, const mn_generation_field *field, const char *text) {
    bytes out = {0};
    const char *file = file_of_value(field, text);
    *value = NULL;
    if (file && strcmp(field->kind, "grammar") == 0) {
        MN_TRY(put_file(&out, file));
    } else if (file) {
        json_doc *doc = NULL;
        MN_TRY(json_open(&doc, file, JSON_PYTHON, SCHEMA_FILE));
        json_put_as(&out, json_root(doc), JSON_PYTHON);
        json_close(&doc);
    } else {
        put_field_value(&out, field->kind, text);
    }
    mn_status status = bytes_status(&out);
    if (status == MN_OK) *value = mem_copy_text(out.data, out.n);
    bytes_clear(&out);
    return status == MN_OK && !*value ? mem_no_memory() : status;
}

/* Fields that a repeated flag adds to: --stop A --stop B. */
static bool adds_up(const mn_generation_field *field) {
    return strcmp(field->kind, "strings") == 0 || strcmp(field->kind, "lists of integers") == 0;
}

static mn_status set_field(options *o, int id, const char *text, option_origin origin) {
    const mn_generation_field *field = mn_generation_field_at(id);
    setting *s = &o->generation[id];
    char *value = NULL;
    MN_TRY(generation_value(&value, field, text));
    size_t n = strlen(value);
    bool repeats = s->text && s->origin == origin && origin == ORIGIN_FLAG && adds_up(field);
    if (repeats && n > 2 && value[0] == '[' && strlen(s->text) > 2) {
        bytes both = {0};
        bytes_append(&both, s->text, strlen(s->text) - 1);
        bytes_append_text(&both, ",");
        bytes_append(&both, value + 1, n - 1);
        mem_free(value);
        value = both.failed ? NULL : mem_copy_text(both.data, both.n);
        bytes_clear(&both);
        if (!value) return mem_no_memory();
    }
    mem_free(s->text);
    *s = (setting){value, 0, origin};
    return MN_OK;
}

/* ---- the three sources ---- */

/* The target of a flag: a row or a generation field. */
typedef struct flag_target {
    int row, field; /* -1: no */
    bool is_switch, negated;
} flag_target;

static bool find_target(flag_target *target, const command *c, const char *flag, size_t n) {
    *target = (flag_target){.row = find_row(c->bit, flag, n), .field = -1};
    if (target->row >= 0) {
        target->is_switch = option_table[target->row].kind == OPTION_SWITCH;
        return true;
    }
    target->field = find_field(c->bit, flag, n);
    if (target->field < 0) return false;
    target->is_switch = strcmp(mn_generation_field_at(target->field)->kind, "boolean") == 0;
    return true;
}

/* Also --no-NAME for a switch. */
static bool find_flag(flag_target *target, const command *c, const char *flag, size_t n) {
    char positive[64];
    if (find_target(target, c, flag, n)) return true;
    if (strncmp(flag, "--no-", 5) != 0 || n - 3 >= sizeof positive) return false;
    snprintf(positive, sizeof positive, "--%.*s", (int)(n - 5), flag + 5);
    bool found = find_target(target, c, positive, strlen(positive)) && target->is_switch;
    target->negated = true;
    return found;
}

static bool is_truth(const char *text) {
    return strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
}

/* One flag at argv[*i]; moves *i over its value. */
static mn_status read_flag(options *o, int argc, char **argv, int *i) {
    const char *flag = argv[*i], *equals = strncmp(flag, "--", 2) == 0 ? strchr(flag, '=') : NULL;
    size_t n = equals ? (size_t)(equals - flag) : strlen(flag);
    const char *value = equals ? equals + 1 : NULL;
    flag_target target;
    if (!find_flag(&target, o->command, flag, n)) return unknown_flag(o->command, flag);
    if (target.negated && value) MN_FAIL(MN_E_ARG, "%.*s takes no value", (int)n, flag);
    if (!value && target.is_switch && !target.negated && *i + 1 < argc && is_truth(argv[*i + 1])) value = argv[++*i];
    if (!value && target.is_switch) value = target.negated ? "false" : "true";
    if (!value) {
        if (*i + 1 >= argc) MN_FAIL(MN_E_ARG, "%.*s needs a value", (int)n, flag);
        value = argv[++*i];
    }
    mn_status status =
        target.row >= 0 ? set_row(o, target.row, value, ORIGIN_FLAG) : set_field(o, target.field, value, ORIGIN_FLAG);
    return status_context(status, "%.*s", (int)n, flag);
}

static mn_status read_flags(options *o, int argc, char **argv, const char **param) {
    bool only_positional = false;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (!only_positional && strcmp(arg, "--") == 0) {
            only_positional = true;
        } else if (only_positional || arg[0] != '-' || arg[1] == 0) {
            if (o->n_positional == o->command->max_positional) {
                MN_FAIL(MN_E_ARG, "unexpected argument '%s'; usage: mneme %s (put a text of several words in quotes)",
                        arg, o->command->usage);
            }
            o->positional[o->n_positional++] = arg;
        } else {
            *param = arg;
            MN_TRY(read_flag(o, argc, argv, &i));
            *param = NULL;
            bool is_all = option_on(o, OPT_HELP) && i + 1 < argc && strcmp(argv[i + 1], "all") == 0;
            if (is_all) MN_TRY(set_row(o, OPT_HELP_ALL, "true", ORIGIN_FLAG));
            if (option_on(o, OPT_HELP) || option_on(o, OPT_HELP_ALL)) return MN_OK;
        }
    }
    return MN_OK;
}

static const char *variable_of(char *out, size_t n, const char *name) {
    snprintf(out, n, "MNEME_");
    size_t i = strlen(out);
    for (const char *c = name; *c && i + 1 < n; c++) out[i++] = (char)toupper((unsigned char)*c);
    out[i] = 0;
    return out;
}

static mn_status read_environment(options *o, const char **param) {
    static char variable[80]; /* named in an error after this returns */
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!(option_table[i].commands & o->command->bit) || o->set[i].text || i == OPT_HELP || i == OPT_HELP_ALL)
            continue;
        const char *value = getenv(variable_of(variable, sizeof variable, option_table[i].name));
        if (!value) continue;
        *param = variable;
        MN_TRY(status_context(set_row(o, i, value, ORIGIN_ENVIRONMENT), "%s", variable));
    }
    for (int i = 0; o->command->bit & COMMAND_GENERATES && mn_generation_field_at(i); i++) {
        const char *value = getenv(variable_of(variable, sizeof variable, mn_generation_field_at(i)->name));
        if (!value || o->generation[i].text || option_is_row(o->command, mn_generation_field_at(i)->name)) continue;
        *param = variable;
        MN_TRY(status_context(set_field(o, i, value, ORIGIN_ENVIRONMENT), "%s", variable));
    }
    *param = NULL;
    return MN_OK;
}

static mn_status config_path(bytes *path) {
    const char *named = getenv("MNEME_CONFIG"), *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (named && *named) {
        bytes_append_text(path, named);
    } else if (folder && *folder) {
        bytes_printf(path, "%s/mneme/config.json", folder);
    } else if (home && *home) {
        bytes_printf(path, "%s/.config/mneme/config.json", home);
    }
    bytes_text(path);
    return bytes_status(path);
}

static mn_status read_config_member(options *o, const char *what, const json_member *member) {
    if (strcmp(member->key, "aliases") == 0) return MN_OK;
    bytes text = {0};
    if (member->value.kind == JSON_STRING) {
        bytes_append(&text, member->value.string, member->value.n);
    } else {
        json_put(&text, &member->value);
    }
    mn_status status = bytes_status(&text);
    int field = generation_field(member->key);
    bool known = field >= 0;
    for (int i = 0; status == MN_OK && i < N_OPTIONS; i++) {
        if (strcmp(option_table[i].name, member->key) != 0) continue;
        known = true;
        if (!(option_table[i].commands & o->command->bit)) continue;
        field = -1;
        if (!o->set[i].text) { status = set_row(o, i, bytes_text(&text), ORIGIN_CONFIG_FILE); }
    }
    if (status == MN_OK && field >= 0 && o->command->bit & COMMAND_GENERATES && !o->generation[field].text) {
        status = set_field(o, field, bytes_text(&text), ORIGIN_CONFIG_FILE);
    }
    if (status == MN_OK && !known) {
        status = status_fail(MN_E_ARG, "no such option; `mneme run --help all` lists all options");
    }
    bytes_clear(&text);
    return status_context(status, "%s: '%s'", what, member->key);
}

static mn_status read_config(options *o, const char **param) {
    bytes path = {0};
    mn_status status = config_path(&path);
    if (status == MN_OK && path.n && (file_exists(bytes_text(&path)) || getenv("MNEME_CONFIG"))) {
        *param = "config";
        status = json_open(&o->config, bytes_text(&path), JSON_PYTHON, 1 << 20);
        const json *root = status == MN_OK ? json_root(o->config) : NULL;
        if (root && root->kind != JSON_OBJECT) {
            status = status_fail(MN_E_ARG, "%s: is no JSON object of option names and values", bytes_text(&path));
        }
        for (size_t i = 0; status == MN_OK && i < root->n; i++) {
            status = read_config_member(o, bytes_text(&path), &root->members[i]);
        }
        if (status == MN_OK) *param = NULL;
    }
    bytes_clear(&path);
    return status == MN_E_FORMAT ? MN_E_ARG : status;
}

mn_status options_read(options *o, int argc, char **argv, const char **param) {
    while (mn_generation_field_at((int)o->n_generation)) o->n_generation++;
    o->generation = mem_alloc(o->n_generation + 1, sizeof *o->generation);
    o->positional = mem_alloc((size_t)argc + 1, sizeof *o->positional);
    if (!o->generation || !o->positional) return mem_no_memory();
    MN_TRY(read_flags(o, argc, argv, param));
    if (option_on(o, OPT_HELP) || option_on(o, OPT_HELP_ALL)) return MN_OK;
    MN_TRY(read_environment(o, param));
    MN_TRY(read_config(o, param));
    return MN_OK;
}

void options_clear(options *o) {
    for (int i = 0; i < N_OPTIONS; i++) mem_free(o->set[i].text);
    for (size_t i = 0; o->generation && i < o->n_generation; i++) mem_free(o->generation[i].text);
    mem_free(o->generation);
    mem_free(o->positional);
    json_close(&o->config);
    *o = (options){0};
}

/* ---- values ---- */

bool option_is_set(const options *o, option_id id) {
    return o->set[id].text != NULL;
}
bool option_on(const options *o, option_id id) {
    return o->set[id].number != 0;
}

const char *option_text(const options *o, option_id id, const char *standard) {
    return o->set[id].text ? o->set[id].text : standard;
}

int64_t option_number(const options *o, option_id id, int64_t standard) {
    return o->set[id].text ? o->set[id].number : standard;
}

const char *generation_text(const options *o, const char *name) {
    int field = generation_field(name);
    return field >= 0 ? o->generation[field].text : NULL;
}

const char *options_alias(const options *o, const char *name) {
    const json *target = json_get(json_get(o->config ? json_root(o->config) : NULL, "aliases"), name);
    return target && target->kind == JSON_STRING ? target->string : NULL;
}
