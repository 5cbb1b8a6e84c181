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

system_messages() {
  local said=$work/said
  cp -r "$chat" "$said"
  sed -i "s/\['user', 'assistant'\]/['system', 'user']/" "$said/tokenizer_config.json"
  echo '[{"role": "system", "content": "Be \"brief\""}, {"role": "user", "content": "Tell a story"}]' >"$work/system.json"
  expect 0 run "$said" --messages "$work/system.json" -n 6 --json
  cp "$work/out" "$work/wanted"
  expect 0 run "$said" "Tell a story" --system 'Be "brief"' -n 6 --json
  json "(lambda w: [j[k] for k in ('prompt_ids', 'usage')] == [w[k] for k in ('prompt_ids', 'usage')])(json.load(open('$work/wanted')))"
  echo '{"prompt": "Tell a story"}' >"$work/b.jsonl"
  expect 0 run "$said" --batch "$work/b.jsonl" --system 'Be "brief"' -n 6
  json "j['prompt_ids'] == json.load(open('$work/wanted'))['prompt_ids']"
  # Where there is no place for one it is refused, and one of the environment, for chats, is not used.
  local -A others=([--raw]=hi [--ids]=1,2 [--messages]=$work/one.json)
  for how in "${!others[@]}"; do
    expect 2 run "$said" "$how" "${others[$how]}" --system Brief -n 2
    err_is_sentence
    err_has '--system is for a text'
    MNEME_SYSTEM=Brief expect 0 run "$said" "$how" "${others[$how]}" -n 2
  done
  expect 2 run embedded hi --system Brief
  err_has '--system is for a text'
  echo '{"ids": [1, 2]}' >"$work/b.jsonl"
  expect 2 run "$said" --batch "$work/b.jsonl" --system Brief
  err_has 'line 1: --system is for a text'
}

# A loaded conversation is not what a text goes on with: that is said, and what is kept of it.
loaded_conversations() {
  local kept
  expect 0 run "$chat" "Tell a story" -n 8 --save-cache "$work/cache"
  expect 0 run "$chat" "Tell it again" -n 4 --load-cache "$work/cache" --json
  err_is_sentence
  kept=$(sed -E 's/.*keeps ([0-9]+) of the ([0-9]+) tokens.*/\1 \2/' "$work/err")
  err_has 'the prompt begins a new conversation .* without one the run continues .*`mneme chat --load FOLDER`'
  json "j['usage']['cached_tokens'] == int('$kept'.split()[0]) < int('$kept'.split()[1])"
  # No conversation is begun: the run goes on, or the text is not one.
  expect 0 run "$chat" -n 4 --load-cache "$work/cache"
  err_empty
  expect 0 run "$chat" --raw "Tell a story" -n 4 --load-cache "$work/cache"
  err_empty
}

# 256 tokens, unless another number is requested; what ends there says so.
answers_have_a_limit() {
  local limit='^mneme: the answer ends at 256 tokens, .*; -n N \(--max-new-tokens\) sets another$'
  expect 0 run "$chat" "Tell a story" --ignore-eos --json
  json 'j["usage"]["completion_tokens"] == 256'
  err_has "$limit"
  err_is_sentence
  expect 0 run "$chat" "Tell a story" --ignore-eos --do-sample --num-return-sequences 2 --seed 1
  err_is_sentence
  err_has "$limit"
  printf '%s\n' '{"prompt": "A"}' '{"prompt": "B"}' '{"prompt": "C", "max_new_tokens": 256}' >"$work/rows"
  expect 0 run "$chat" --batch "$work/rows" --ignore-eos
  err_is_sentence
  err_has "$limit"
  # A limit that was given is known already, and one that the context sets is another.
  expect 0 run "$chat" "Tell a story" --ignore-eos -n 256 --json
  err_empty
  expect 0 run "$chat" "Tell a story" --ignore-eos --max-length 200 --json
  err_empty
  expect 0 run "$chat" "Tell a story" --ignore-eos --max-cache-len 100 --json
  json 'j["usage"]["completion_tokens"] < 100 and j["sequences"][0]["finish_reason"] == "length"'
  err_empty
  expect 0 run "$chat" "Tell a story" --stop e --json
  json 'j["sequences"][0]["finish_reason"] == "stop_string"'
  err_empty
  expect 0 run "$chat" --raw "Tell a story" --ignore-eos --json
  json 'j["usage"]["completion_tokens"] + j["usage"]["prompt_tokens"] == 512'
  err_empty
}

print_config_has_the_limit() {
  local how
  expect 0 run "$chat" --print-config --json
  json 'j["max_new_tokens"] == {"value": 256, "origin": "default"}'
  expect 0 run "$chat" --print-config
  out_has '^max_new_tokens +256 +default \(of an answer\)$'
  expect 0 run "$chat" --print-config --json -n 7
  json 'j["max_new_tokens"] == {"value": 7, "origin": "flag"}'
  for how in --raw "--ids 1,2" "--max-length 90"; do
    # shellcheck disable=SC2086
    expect 0 run "$chat" $how --print-config --json
    json 'j["max_new_tokens"]["value"] is None'
  done
  expect 0 chat "$chat" --print-config
  out_has '^max_new_tokens +null +default \(as many as the context holds\)$'
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

# What a template gets besides messages, written out by one that shows all of it.
open=$work/open
mkdir "$open"
cp "$chat"/{config,generation_config,tokenizer}.json "$chat/model.safetensors" "$open"
cat >"$open/tokenizer_config.json" <<'JSON'
{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
 "chat_template": "{{ tools | tojson }} {{ documents | tojson }} {{ enable_thinking | default('unset') | tojson }} {{ style | default('unset') | tojson }}{% for m in messages %} {{ m.content }}{% endfor %}"}
JSON
echo '[{"role": "user", "content": "Hi"}]' >"$work/hi.json"
echo '[{"type": "function", "function": {"name": "f"}}]' >"$work/tools.json"

rendered() { # rendered TEXT FLAG...: what the template makes of the message
  local wanted=$1
  shift
  expect 0 tokenize "$open" --messages "$work/hi.json" --render "$@"
  out_is "$wanted Hi"
}

template_variables() {
  local tools='[{"type": "function", "function": {"name": "f"}}]' ids
  rendered 'null null "unset" "unset"'
  rendered "$tools null \"unset\" \"unset\"" --tools "$work/tools.json"
  rendered "$tools null \"unset\" \"unset\"" --tools "@$work/tools.json"
  rendered "$tools [{\"title\": \"t\", \"text\": \"x\"}] \"unset\" \"unset\"" --tools "$tools" --documents ' [{"title": "t", "text": "x"}]'
  rendered 'null null false "two words=2"' --template-var enable_thinking=false --template-var "style=two words=2"
  rendered 'null null false {"a": [1, null]}' --template-var enable_thinking=False --template-var 'style={"a": [1, null]}'
  rendered 'null null "unset" "2"' --template-var 'style="2"'
  rendered 'null null true 2' --chat-template-kwargs '{"enable_thinking": true, "style": 1}' --template-var style=2
  rendered '[] null "unset" "unset"' --template-var tools=[] # above the variables of the same name
  # The same in run, in lines of a batch, and in chat.
  expect 0 tokenize "$open" --messages "$work/hi.json" --tools "$work/tools.json" --template-var style=brief
  ids=$(cat "$work/out")
  expect 0 run "$open" Hi --tools "$work/tools.json" --template-var style=brief -n 1 --json
  json "j['prompt_ids'] == [[$ids]]"
  expect 0 chat "$open" Hi --tools "$work/tools.json" --template-var style=brief -n 1 --json
  json "j['prompt_ids'] == [[$ids]]"
  printf '%s\n' '{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": {"name": "f"}}], "chat_template_kwargs": {"style": "brief"}}' \
    '{"prompt": "Hi", "tools": null}' \
    '{"custom_id": "x", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"style": "brief"}}}' >"$work/b.jsonl"
  MNEME_TOOLS=$work/tools.json MNEME_TEMPLATE_VAR=style=long expect 0 run "$open" --batch "$work/b.jsonl" -n 1
  json "all[0]['prompt_ids'] == [[$ids]] and all[2]['response']['body']['usage']['prompt_tokens'] == len([$ids])"
  expect 0 tokenize "$open" --messages "$work/hi.json" --tools "$work/tools.json" --template-var style=long
  ids=$(cat "$work/out")
  expect 0 run "$open" --batch <(echo '{"prompt": "Hi", "tools": null}') --tools "$work/tools.json" --template-var style=long -n 1
  json "j['prompt_ids'] == [[$ids]]"
}

# A model that is made to write reasoning, by a regular expression.
reasoning() {
  local thought='<think>\nTwo.\n</think>\n\n' text
  text=$(printf "%bIt is 4." "$thought")
  set -- "$open" Hi -n 60 --ignore-eos --regex '<think>\nTwo\.\n</think>\n\nIt is 4\.'
  expect 0 run "$@"
  out_is "$text"
  expect 0 run "$@" --no-thinking
  out_is "It is 4."
  expect 0 run "$@" --num-return-sequences 2 --do-sample --no-thinking
  out_is $'[1] It is 4.\n[2] It is 4.'
  expect 0 run "$@" --json
  json 'j["sequences"][0]["text"] == args[0] and j["sequences"][0]["reasoning"] == "Two."' "$text"
  expect 0 run "$@" --json --no-thinking
  json 'j["sequences"][0]["text"] == "It is 4." and j["sequences"][0]["reasoning"] == "Two."'
  expect 0 chat "$@"
  out_is "$text"
  expect 0 chat "$@" --no-thinking
  out_is "It is 4."
  expect 0 chat "$@" --no-thinking --json
  json 'j["sequences"][0]["text"] == "It is 4."'
  # Not behind --raw, and not without any.
  expect 0 run "$@" --raw --json
  json '"reasoning" not in j["sequences"][0]'
  expect 0 run "$open" Hi -n 60 --ignore-eos --regex 'It is <think>4</think>\.' --json
  json 'j["sequences"][0]["text"] == "It is <think>4</think>." and "reasoning" not in j["sequences"][0]'
  # An answer that ends before it has begun.
  expect 0 run "$open" Hi -n 60 --ignore-eos --regex '<think>Two' --no-thinking
  out_empty
  printf '%s\n' '{"custom_id": "x", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "regex": "<think>Two\\n</think>\\nIt is 4\\."}}' >"$work/b.jsonl"
  expect 0 run "$open" --batch "$work/b.jsonl" --ignore-eos
  json '[c["message"]["content"] + "|" + c["message"]["reasoning_content"] for c in j["response"]["body"]["choices"]] == ["It is 4.|Two"]'
  # What the template gets.
  rendered 'null null false "unset"' --no-thinking
  rendered 'null null true "unset"' --thinking
  rendered 'null null 5 "unset"' --no-thinking --template-var enable_thinking=5
  # A template that begins the reasoning itself.
  cp -r "$open" "$work/begun"
  sed -i 's/{% endfor %}"/{% endfor %}<think>\\n"/' "$work/begun/tokenizer_config.json"
  expect 0 run "$work/begun" Hi -n 60 --ignore-eos --regex 'Two\.</think>It is 4\.' --json
  json 'j["sequences"][0]["reasoning"] == "Two."'
}

template_variables_that_are_none() {
  local flag value flags
  echo '{"role": "user"}' >"$work/object.json"
  while read -r flag value; do
    expect 2 tokenize "$open" --messages "$work/hi.json" "$flag" ${value:+"$value"}
    err_is_sentence
    err_has "${flag%%=*}"
  done <<LIST
--tools $work/object.json
--tools [1]
--tools [
--documents=[{}
--template-var enable_thinking
--template-var =1
--template-var {"a"}
LIST
  expect 1 tokenize "$open" --messages "$work/hi.json" --tools "$work/nowhere.json"
  err_is_sentence
  for flags in --tools=[] --documents=[] --template-var=a=1; do
    expect 2 run "$open" --raw Hi -n 1 "$flags"
    err_is_sentence
    err_has "^mneme: ${flags%%=*} is for the chat template"
    expect 2 run embedded Hi -n 1 "$flags"
    expect 2 run "$open" --ids 1,2 -n 1 "$flags"
    expect 2 chat embedded Hi -n 1 "$flags"
    err_has "^mneme: ${flags%%=*} is for the chat template"
  done
  for flags in '"tools": {}' '"documents": [1]' '"chat_template_kwargs": []'; do
    expect 2 run "$open" --batch <(echo "{\"prompt\": \"Hi\", $flags}") -n 1
    err_is_sentence
  done
  expect 2 run "$open" --batch <(echo '{"ids": [1], "tools": []}') -n 1
  err_has "tools: for the chat template"
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
check "system messages" system_messages
check "loaded conversations" loaded_conversations
check "the length of answers" answers_have_a_limit
check "--print-config has the limit" print_config_has_the_limit
check "templates that refuse" templates_refuse
check "template variables" template_variables
check "reasoning" reasoning
check "template variables that are none" template_variables_that_are_none
check "SmolLM2 names Paris" smollm2_names_paris
finish
