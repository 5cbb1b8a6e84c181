#!/usr/bin/env bash
# Where the text comes from, and tokenize.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"

round_trip() {
  expect 0 tokenize embedded -p "Once upon a time" --json
  json 'j["tokens"] == len(j["ids"]) == len(j["pieces"]) and j["ids"][0] == 1 and j["ids"][1:] == [403, 407, 261, 378]'
  expect 0 tokenize embedded -p "Once upon a time" --no-special-tokens
  out_is "403,407,261,378"
  expect 0 tokenize embedded --decode --ids 403,407,261,378
  out_has '^ ?Once upon a time$'
  printf '403 407,\n261 378\n' >"$work/ids"
  expect 0 tokenize embedded --decode --ids-file "$work/ids" --json
  json 'j["text"].strip() == "Once upon a time"'
}

# A folder, or a file, that holds a tokenizer and no model; its chat templates.
tokenizers_alone() {
  local alone=$work/alone one='{"name": "rag", "template": "<{{ messages[0].content }}>"}' two='{"name": "tool_use", "template": "{{ messages[0].content|wordwrap(4) }}"}'
  mkdir -p "$alone" "$work/nothing-here"
  cp "$here"/../../models-embedded/stories260K/tokenizer.json "$alone"
  for path in "$alone" "$alone/tokenizer.json"; do
    expect 0 tokenize "$path" -p "Once upon a time"
    out_is "1,403,407,261,378"
    expect 0 tokenize -m "$path" -p "Once upon a time"
    out_is "1,403,407,261,378"
  done
  expect 3 run "$alone" hi
  expect 3 tokenize "$work/nothing-here" -p hi
  echo '[{"role": "user", "content": "Once upon"}]' >"$work/messages.json"
  expect 2 tokenize "$alone" --messages "$work/messages.json"
  err_has 'this checkpoint has no chat template$'
  echo "{\"chat_template\": [$one]}" >"$alone/tokenizer_config.json"
  expect 0 tokenize "$alone" --messages "$work/messages.json" --render
  out_is "<Once upon>"
  echo "{\"chat_template\": [$one, $two]}" >"$alone/tokenizer_config.json"
  expect 2 tokenize "$alone" --messages "$work/messages.json"
  err_has 'this checkpoint has no chat template named default, only: rag, tool_use$'
  cp "$here"/../../models-embedded/stories260K/{config.json,model.safetensors} "$alone"
  expect 0 run "$alone" Once -n 2
  err_has 'warning: none of the chat templates is named default, so none is used: rag, tool_use$'
  echo "{\"chat_template\": [$one, ${two/tool_use/default}]}" >"$alone/tokenizer_config.json"
  expect 0 tokenize "$alone" --messages "$work/messages.json" --render
  out_is "Once
upon"
}

sources_of_text() {
  printf 'Once upon a time' >"$work/story"
  expect 0 tokenize embedded -f "$work/story"
  out_is "1,403,407,261,378"
  input=$work/story expect 0 tokenize embedded
  out_is "1,403,407,261,378"
  input=$work/story expect 0 tokenize embedded -f -
  out_is "1,403,407,261,378"
  MNEME_PROMPT="Once upon a time" expect 0 tokenize embedded
  out_is "1,403,407,261,378"
  MNEME_PROMPT="another" expect 0 tokenize embedded -p "Once upon a time"
  out_is "1,403,407,261,378"
  expect 2 tokenize embedded -p a -f "$work/story"
  err_has "both give the text"
}

# What a pipe or a file brings belongs to a text that is an argument.
stdin_is_joined() {
  local how
  printf 'There was a dog.\n' >"$work/more"
  printf 'Once upon\n\nThere was a dog.\n' >"$work/all"
  expect 0 run embedded -f "$work/all" -n 4 --json
  json 'open("'"$work"'/ids", "w").write(str(j["prompt_ids"])) > 0'
  for how in "-p" "--"; do
    input=$work/more expect 0 run embedded -n 4 --json $how "Once upon"
    json 'str(j["prompt_ids"]) == open("'"$work"'/ids").read()'
  done
  last="cat | mneme run TEXT"
  { printf 'There was '; sleep 0.2; printf 'a dog.\n'; } | "$mneme" run embedded "Once upon" -n 4 --json >"$work/out" 2>"$work/err" || problem "exit code $?"
  json 'str(j["prompt_ids"]) == open("'"$work"'/ids").read()'
  # Not where it brings nothing, where the text is none of an argument, and for commands of exact texts.
  expect 0 run embedded "Once upon" -n 4 --json
  cp "$work/out" "$work/plain"
  : >"$work/nothing"
  input=$work/nothing expect 0 run embedded "Once upon" -n 4 --json
  json 'j["prompt_ids"] == json.load(open("'"$work"'/plain"))["prompt_ids"]'
  MNEME_PROMPT="Once upon" input=$work/more expect 0 run embedded -n 4 --json
  json 'j["prompt_ids"] == json.load(open("'"$work"'/plain"))["prompt_ids"]'
  input=$work/more expect 0 run embedded --ids 1,403 -n 4 --json
  json 'j["prompt_ids"] == [[1, 403]]'
  input=$work/more expect 0 tokenize embedded -p "Once upon a time"
  out_is "1,403,407,261,378"
}

bad_texts() {
  expect 2 tokenize embedded -p ""
  err_has "is empty"
  expect 2 run embedded ""
  err_is_sentence
  printf 'good \377 bad' >"$work/latin"
  expect 2 tokenize embedded -f "$work/latin"
  err_is_sentence
  expect 2 run embedded --raw -f "$work/latin"
  err_has "UTF-8"
  out_empty
  expect 1 run embedded -f "$work/absent"
  err_is_sentence
  expect 1 run embedded -f "$work"
  err_is_sentence
  expect 2 run embedded --ids 1,x
  err_has "token id number 2"
  expect 2 run embedded --ids ,
  expect 2 run embedded --ids 1,512
  err_is_sentence
  expect 2 run embedded --ids 1,99999999999
  expect 2 run embedded --ids -1
  expect 2 tokenize embedded --decode --ids 512
  err_is_sentence
}

missing_models() {
  expect 3 run "$work/absent.gguf" hello
  err_is_sentence
  expect 3 tokenize no/such-model -p hello
  err_has "no/such-model"
  err_has "$work/models"
  expect 3 run -m no/such-model hello --json
  json 'j["error"]["type"] == "not_found_error"'
  mkdir -p "$work/empty"
  expect 3 score "$work/empty" -p hello
  err_is_sentence
  printf 'GGUF' >"$work/broken.gguf"
  expect 3 run "$work/broken.gguf" hello
  err_is_sentence
  out_empty
}

messages_need_a_template() {
  echo '[{"role":"user","content":"hi"}]' >"$work/conversation.json"
  expect 2 run embedded --messages "$work/conversation.json"
  err_is_sentence
  expect 2 tokenize embedded --messages "$work/conversation.json" --render
  err_is_sentence
  expect 2 tokenize embedded -p hi --render
  err_has "--messages"
}

aliases() {
  mkdir -p "$work/config/mneme"
  echo '{"aliases": {"stories": "embedded"}, "no_special_tokens": true}' >"$work/config/mneme/config.json"
  expect 0 tokenize stories -p "Once upon a time"
  out_is "403,407,261,378"
  MNEME_MODEL=stories expect 0 tokenize -p "Once upon a time"
  out_is "403,407,261,378"
  rm "$work/config/mneme/config.json"
}

check "tokenizers alone" tokenizers_alone
check "text to ids and back" round_trip
check "arguments, files, stdin, environment" sources_of_text
check "stdin is joined to an argument" stdin_is_joined
check "bad texts and ids" bad_texts
check "missing and broken models" missing_models
check "messages without a template" messages_need_a_template
check "aliases of the configuration file" aliases
finish
