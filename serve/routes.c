/* SPDX-License-Identifier: Apache-2.0 */
#include "routes.h"

#include "http/page.h"
#include "request/fields.h"

static const route routes[] = {
    {"POST", "/v1/chat/completions", false, chat_job, NULL, BODY_CHAT,
     "OpenAI's chat, through the model's chat template", "id|object|created|model|choices|usage|timings", NULL, NULL},
    {"POST", "/v1/completions", false, completion_job, NULL, BODY_COMPLETION, "OpenAI's text completion",
     "id|object|created|model|choices|usage|timings", NULL, NULL},
    {"POST", "/v1/responses", false, responses_job, NULL, BODY_RESPONSES, "OpenAI's Responses",
     "id|object|created_at|status|model|output|usage", NULL, NULL},
    {"POST", "/v1/messages", false, messages_job, NULL, BODY_MESSAGES, "Anthropic's Messages",
     "id|type|role|model|content|stop_reason|stop_sequence|usage", NULL, NULL},
    {"POST", "/v1/messages/count_tokens", false, NULL, count_tokens_answer, BODY_COUNT_TOKENS,
     "how many tokens the prompt of /v1/messages has", "input_tokens", NULL, NULL},
    {"POST", "/v1/generate", false, generate_job, NULL, BODY_GENERATE,
     "the whole GenerationConfig, any cache, token ids", "id|model|prompt_ids|sequences|usage|cache|timings",
     "{\"prompt\":\"Once upon a time\",\"generation_config\":{\"max_new_tokens\":16,\"num_beams\":2}}", NULL},
    {"POST", "/v1/audio/transcriptions", false, transcription_job, NULL, BODY_TRANSCRIPTION,
     "OpenAI's transcription of a recording, by the speech model", "text", NULL, NULL},
    {"POST", "/v1/audio/translations", false, translation_job, NULL, BODY_TRANSLATION,
     "OpenAI's translation of a recording to English, by the speech model", "text", NULL, NULL},
    {"POST", "/tokenize", false, NULL, tokenize_answer, BODY_TOKENIZE, "a text to its tokens", "tokens|count", NULL,
     NULL},
    {"POST", "/detokenize", false, NULL, detokenize_answer, BODY_DETOKENIZE, "tokens to their text", "content", NULL,
     NULL},
    {"POST", "/apply-template", false, NULL, template_answer, BODY_TEMPLATE,
     "messages to the prompt that the model gets", "prompt", NULL, NULL},
    {"GET", "/v1/models", false, NULL, models_answer, 0, "the models", "object|data", NULL, NULL},
    {"GET", "/health", true, NULL, health_answer, 0, "whether the server runs", "status", NULL, NULL},
    {"GET", "/metrics", false, metrics_job, NULL, 0, "counters and histograms for Prometheus", NULL, NULL, NULL},
    {"GET", "/ready", true, NULL, ready_answer, 0, "whether requests are taken; 503 while the server ends", "status",
     NULL, NULL},
    {"GET", "/props", false, NULL, props_answer, 0, "the model, its cache and the limits of requests",
     "model|version|model_type|compute_type|max_position_embeddings|vocab_size|has_tokenizer|has_chat_template|"
     "cache_implementation|cache_config|limits",
     NULL, NULL},
    {"GET", "/v1/requests", false, requests_job, NULL, 0, "the requests that wait or are computed", "object|data", NULL,
     NULL},
    {"DELETE", "/v1/requests/{id}", false, cancel_job, NULL, 0, "cancels a request", "id|object|cancelled", NULL, NULL},
    {"GET", "/v1/caches", false, caches_job, NULL, 0, "the prefix cache, as a tree", "object|data|truncated|tiers",
     NULL, NULL},
    {"POST", "/v1/caches", false, create_cache_job, NULL, BODY_CACHE, "computes a prompt and caches it", "id|object",
     "{\"prompt\":\"Once upon a time\"}", NULL},
    {"GET", "/v1/caches/saved", false, saved_job, NULL, 0, "the prefixes that are saved as files", "object|data", NULL,
     NULL},
    {"POST", "/v1/caches/saved/{id}", false, load_cache_job, NULL, BODY_HOLD, "loads a saved prefix", "id|object",
     "{\"pin\":true}", NULL},
    {"DELETE", "/v1/caches/saved/{id}", false, delete_saved_job, NULL, 0, "deletes a saved prefix",
     "name|object|deleted", NULL, NULL},
    {"POST", "/v1/caches/{id}/save", false, save_cache_job, NULL, BODY_SAVE,
     "saves a cached prefix as a file with a name", "name|object|tokens|bytes", NULL, NULL},
    {"GET", "/v1/caches/{id}", false, cache_job, NULL, 0, "one cached prefix", "id|object", NULL, NULL},
    {"POST", "/v1/caches/{id}", false, hold_cache_job, NULL, BODY_HOLD,
     "pins a cached prefix, or sets its time to live", "id|object", "{\"ttl\":3600}", NULL},
    {"DELETE", "/v1/caches/{id}", false, drop_cache_job, NULL, 0, "drops a cached prefix and those that begin with it",
     "id|object|deleted", NULL, NULL},
    {"GET", "/openapi.json", false, NULL, openapi_answer, 0, "this description", "openapi|info|paths|components", NULL,
     NULL},
    {"GET", "/", true, NULL, page_answer, 0, "a page to chat with the model and see its cache", NULL, NULL, PAGE_TYPE},
};

write_error *route_error(const route *r) {
    return r->form & BODY_ANTHROPIC ? messages_error : openai_error;
}

const char *route_lacks(const route *r, const server *s) {
    if (r->form & BODY_SPEECH && !s->speech)
        return "the server has no speech model; `mneme serve --speech-model MODEL` gives it one";
    if (r->form & (BODY_DIALECT | BODY_COUNT_TOKENS | BODY_GENERATE | BODY_CACHE) && !s->has_text)
        return "the model is a speech model: it answers /v1/audio/transcriptions";
    if (r->form & (BODY_CACHE | BODY_HOLD) && s->options.no_prefix_cache)
        return "there is no prefix cache: the server was started with --no-prefix-cache";
    return NULL;
}

const route *route_at(size_t index) {
    return index < sizeof routes / sizeof *routes ? &routes[index] : NULL;
}
