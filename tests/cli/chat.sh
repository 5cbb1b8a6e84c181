#!/usr/bin/env bash
# Chat templates on the command line, with the embedded model's files and a template of our own, and SmolLM2 when it is there.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"

chat=$work/chat
mkdir "$chat"
cp "$here"/../../models-embedded/stories260K/{config,generation_config,tokenizer}.json "$here"/../../models-embedded/stories260K/model.safetensors "$chat"
cat >"$chat/tokenizer_config.json" <<'JSON'
{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
 "chat_template": "{{ bos_token }}{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + m.role) }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"}
JSON
echo '[{"role": "user", "content": "Tell a story"}, {"role": "assistant", "content": "No"}]' >"$work/messages.json"

render() {
  expect 0 tokenize "$chat" --messages "$work/messages.json" --render
  out_is $'<s>user: Tell a story\nassistant: No'
  expect 0 tokenize "$chat" --messages "$work/messages.json" --render --add-generation-prompt
  out_is $'<s>user: Tell a story\nassistant: No\nassistant:'
  expect 0 tokenize "$chat" --messages "$work/messages.json" --add-generation-prompt --json
  json 'j["ids"][0] == 1 and 1 not in j["ids"][1:]'
}

# The prompt of `run` is the rendered template with nothing added; --raw takes the text as it is.
text_goes_through_the_template() {
  local ids
  expect 0 tokenize "$chat" -p $'<s>user: Tell a story\nassistant:' --no-special-tokens
  ids=$(cat "$work/out")
  expect 0 run "$chat" "Tell a story" -n 3 --json
  json "j['prompt_ids'] == [[$ids]]"
  echo '[{"role": "user", "content": "Tell a story"}]' >"$work/one.json"
  expect 0 run "$chat" --messages "$work/one.json" -n 3 --json
  json "j['prompt_ids'] == [[$ids]]"
  printf '%s\n' '{"prompt": "Tell a story", "max_new_tokens": 2}' '{"messages": [{"role": "user", "content": "Tell a story"}], "max_new_tokens": 2}' >"$work/b.jsonl"
  expect 0 run "$chat" --batch "$work/b.jsonl"
  json "[x['prompt_ids'] for x in all] == [[[$ids]]] * 2"
  expect 0 tokenize "$chat" -p "Tell a story"
  ids=$(cat "$work/out")
  expect 0 run "$chat" --raw "Tell a story" -n 3 --json
  json "j['prompt_ids'] == [[$ids]]"
}

# 256 tokens, unless more are requested.
answers_have_a_limit() {
  expect 0 run "$chat" "Tell a story" --ignore-eos --json
  json 'j["usage"]["completion_tokens"] == 256'
  expect 0 run "$chat" --raw "Tell a story" --ignore-eos --json
  json 'j["usage"]["completion_tokens"] + j["usage"]["prompt_tokens"] == 512'
}

templates_refuse() {
  echo '[{"role": "tool", "content": "x"}]' >"$work/bad.json"
  expect 2 run "$chat" --messages "$work/bad.json"
  err_is_sentence
  err_has "no tool"
  echo '{"role": "user"}' >"$work/bad.json"
  expect 2 run "$chat" --messages "$work/bad.json"
  err_is_sentence
  echo '[{"role": "user", ' >"$work/bad.json"
  expect 2 tokenize "$chat" --messages "$work/bad.json"
  err_is_sentence
}

smollm2_names_paris() {
  if [ ! -f "$smollm2" ]; then uncounted=1; return; fi
  expect 0 run "$smollm2" "What is the capital of France?"
  out_has Paris
  err_empty
  mkdir -p "$work/models"
  ln -sf "$smollm2" "$work/models/"
  expect 0 run "What is the capital of France?" --max-new-tokens 30 --json
  json '"Paris" in j["sequences"][0]["text"] and j["model"].endswith("SmolLM2-135M-Instruct.Q4_1.gguf") and j["sequences"][0]["finish_reason"] == "eos"'
  rm -r "$work/models"
}

check "rendering" render
check "text goes through the template" text_goes_through_the_template
check "the length of answers" answers_have_a_limit
check "templates that refuse" templates_refuse
check "SmolLM2 names Paris" smollm2_names_paris
finish
