#!/usr/bin/env bash
# Generation, scoring, inspection and measuring with the embedded model.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
story="Once upon a time, there was a little girl named Lily. She loved to play outside in the park."

tells_a_story() {
  expect 0 run embedded "Once upon a time" --max-new-tokens 24
  out_has '^,? there was a little girl named Lily'
  err_empty
  expect 0 run embedded "Once upon a time"
  [ "$(wc -w <"$work/out")" -gt 40 ] || problem "the story is short"
  err_empty
}

# The folder of models is empty here, so that no name means the embedded model.
lone_argument_is_the_text() {
  expect 0 run "Once upon a time" --max-new-tokens 8
  cp "$work/out" "$work/first"
  expect 0 run embedded "Once upon a time" --max-new-tokens 8
  cmp -s "$work/out" "$work/first" || problem "differs"
  expect 0 run -m embedded "Once upon a time" -n 8
  cmp -s "$work/out" "$work/first" || problem "differs"
  printf 'Once upon a time' >"$work/prompt"
  input=$work/prompt expect 0 run embedded --predict 8
  cmp -s "$work/out" "$work/first" || problem "differs from stdin"
  expect 0 run embedded --ids 1,403,407,261,378 --n-predict 8
  cmp -s "$work/out" "$work/first" || problem "differs with --ids"
}

# Guesses change how fast a text comes, not the text.
draft_models_and_prompt_lookup() {
  expect 0 run embedded "Once upon a time" --max-new-tokens 40
  cp "$work/out" "$work/first"
  expect 0 run embedded "Once upon a time" --max-new-tokens 40 --assistant-model embedded
  cmp -s "$work/out" "$work/first" || problem "differs with a draft model"
  expect 0 run embedded "Once upon a time" --max-new-tokens 40 --prompt-lookup-num-tokens 4
  cmp -s "$work/out" "$work/first" || problem "differs with prompt lookup"
  expect 0 run embedded "Once upon a time" --max-new-tokens 40 --json --assistant-model embedded --num-assistant-tokens 4 --assistant-confidence-threshold 0
  json 'j["usage"]["draft_tokens"] == j["usage"]["draft_accepted"] == 31 and len(j["sequences"][0]["ids"]) == 40'
  expect 3 run embedded "Once upon a time" --assistant-model "$work/none"
  err_is_sentence
  err_has "no model '$work/none'"
  expect 2 run embedded "Once upon a time" --assistant-model embedded --num-beams 2
  err_is_sentence
}

guidance_has_a_negative_prompt() {
  expect 0 run embedded "Once upon a time" --max-new-tokens 20 --guidance-scale 3 --json
  cp "$work/out" "$work/first"
  expect 0 run embedded "Once upon a time" --max-new-tokens 20 --guidance-scale 3 --negative-prompt "Lily" --json
  json 'j["sequences"][0]["ids"] != json.load(open("'"$work/first"'"))["sequences"][0]["ids"]'
  err_empty
  cp "$work/out" "$work/led"
  expect 0 tokenize embedded -p Lily
  ids=$(cat "$work/out")
  expect 0 run embedded "Once upon a time" --max-new-tokens 20 --guidance-scale 3 --negative-prompt-ids "$ids" --json
  json 'j["sequences"] == json.load(open("'"$work/led"'"))["sequences"]'
  # A checkpoint without a tokenizer takes ids alone.
  expect 0 run "$here/../data/golden/llama" --ids 3,4,5 -n 4 --guidance-scale 3 --negative-prompt-ids 7,8 --json
  expect 2 run embedded hi --guidance-scale 3 --negative-prompt no --negative-prompt-ids 1,2
  err_has "both set the negative prompt"
  expect 2 run embedded hi --guidance-scale 3 --negative-prompt-ids 1,x
  err_has "negative-prompt-ids: token id number 2 begins 'x'"
  expect 2 run embedded hi --guidance-scale 3 --negative-prompt-ids 1,99999
  err_has "token 1 of the negative prompt is 99999, allowed: 0 to 511"
}

json_result() {
  expect 0 run embedded "Once upon a time" --max-new-tokens 8 --json
  json 'len(all) == 1 and j["model"] == "embedded" and j["prompt_ids"] == [[1, 403, 407, 261, 378]] and isinstance(j["seed"], int)'
  json 'len(j["sequences"]) == 1 and len(j["sequences"][0]["ids"]) == 8 and j["sequences"][0]["finish_reason"] == "length"'
  json 'j["sequences"][0]["row"] == 0 and j["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "cached_tokens": 0}'
  json 'j["cache"]["implementation"] == "dynamic" and j["cache"]["tokens"] == 12 and j["cache"]["bytes"] <= j["cache"]["peak_bytes"]'
  json 'j["cache"]["bytes_per_token"] == 2 * 5 * 4 * 8 * 4 and "score" not in j["sequences"][0]'
  json 'set(j["timings"]) == {"load_ms", "prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second"}'
  err_empty
}

every_cache_says_the_same() {
  local cache
  expect 0 run embedded "$story" -n 40
  cp "$work/out" "$work/first"
  for cache in none dynamic static; do
    expect 0 run embedded "$story" -n 40 --cache $cache
    cmp -s "$work/out" "$work/first" || problem "differs"
  done
  expect 0 run embedded "$story" -n 40 --no-cache
  cmp -s "$work/out" "$work/first" || problem "differs"
  expect 0 run embedded "$story" -n 40 --threads 1 --cache-config prefill_chunk=3
  cmp -s "$work/out" "$work/first" || problem "differs"
}

# A short text fits into every window and residual: all say the same, by their own names.
every_strategy_runs() {
  local model=$here/../data/golden/llama cache config n=0
  expect 0 run "$model" --ids 5,9,31,7 -n 20 --json
  cp "$work/out" "$work/first"
  while read -r cache config; do
    n=$((n + 1))
    expect 0 run "$model" --ids 5,9,31,7 -n 20 --json --cache "$cache" --cache-config "$config"
    json "j['cache']['implementation'] == '$cache'"
    json "j['sequences'] == json.load(open('$work/first'))['sequences']"
    expect 0 score "$model" --ids 5,9,31,7 --json --cache "$cache" --cache-config "$config"
    json "j['cache']['implementation'] == '$cache'"
  done <<'CASES'
none
dynamic
static
hybrid
mamba
offloaded
offloaded_static
static+offloaded home=memory
quantized nbits=2
sink
sliding_window window_length=64
quantized+sink {"nbits":3,"window_length":64}
static+quantized layers=0:f32,rest:4bit
quantized+offloaded nbits=8
sink+offloaded window_length=32,num_sink_tokens=2
CASES
  [ $n = 15 ] || problem "$n cases were run"
  for config in backend=quanto backend=hqq,nbits=1,axis_key=1 layers=0-1:bf16,rest:k4v2bit; do
    expect 0 run "$model" --ids 5,9,31,7 -n 20 --json --cache quantized --cache-config "$config"
    json 'len(j["sequences"][0]["ids"]) == 20 and j["cache"]["implementation"] == "quantized"'
  done
}

quantized_scores() {
  local model=$here/../data/golden/llama ids bits last_bytes=1000000000
  ids=$(seq -s, 3 302)
  expect 0 score "$model" --ids "$ids" --json
  cp "$work/out" "$work/first"
  for bits in 8 4 2; do
    expect 0 score "$model" --ids "$ids" --json --cache quantized --cache-config nbits=$bits
    json "abs(j['nll'] / json.load(open('$work/first'))['nll'] - 1) < 0.02"
    json "j['cache']['bytes'] < min($last_bytes, json.load(open('$work/first'))['cache']['bytes'])"
    last_bytes=$(sed -E 's/.*"bytes":([0-9]+).*/\1/' "$work/out")
    cp "$work/out" "$work/whole"
    expect 0 score "$model" --ids "$ids" --json --cache quantized --cache-config nbits=$bits --chunk 7
    json "j['nll'] == json.load(open('$work/whole'))['nll']"
  done
}

static_limits() {
  expect 0 run embedded --ids 1,403,407 -n 5 --cache static --json
  json 'j["cache"]["implementation"] == "static" and j["cache"]["max_cache_len"] == 8'
  expect 4 run embedded --ids 1,403,407 -n 50 --cache static --cache-config max_cache_len=8
  err_has "max_cache_len 8"
  out_empty
  expect 0 run embedded --ids 1,403,407 --cache static --max-cache-len 8 --json
  json 'j["usage"]["completion_tokens"] == 5'
  expect 4 score embedded --ids 1,403,407 --max-cache-len 2
  err_is_sentence
}

long_prompts() {
  expect 2 score embedded --ids "$(printf '5,%.0s' $(seq 513))5"
  err_has "514 tokens.* 512"
  expect 2 run embedded --ids "$(printf '5,%.0s' $(seq 513))5"
  err_has "514 tokens.* 512.*--max-cache-len"
  expect 0 run embedded --ids "$(printf '5,%.0s' $(seq 513))5" -n 2 --max-cache-len 600
}

memory_limit() {
  expect 4 run embedded hello --memory-limit 64K
  err_is_sentence
  out_empty
}

sampling() {
  expect 0 run embedded "Once upon a time" -n 20 --do-sample --seed 5
  cp "$work/out" "$work/first"
  expect 0 run embedded "Once upon a time" -n 20 --do-sample -s 5 --threads 1
  cmp -s "$work/out" "$work/first" || problem "the same seed gives another text"
  err_empty
  expect 0 run embedded "Once upon a time" -n 20 --do-sample --temperature 3 --seed 6
  ! cmp -s "$work/out" "$work/first" || problem "another seed gives the same text"
  expect 0 run embedded "Once upon a time" -n 20 --temp 0.9
  err_has '^mneme: seed [0-9]+$'
  expect 0 run embedded "Once upon a time" -n 20 --temp 0
  err_empty
}

# samples RUN_ARGUMENTS...: the text is that of the same run with do_sample; is_greedy: that without any of it.
samples() {
  expect 0 run embedded "Once upon a time" -n 12 --seed 5 "$@"
  cp "$work/out" "$work/meant"
  expect 0 run embedded "Once upon a time" -n 12 --seed 5 "$@" --do-sample
  cmp -s "$work/out" "$work/meant" || problem "is not sampled"
  ! cmp -s "$work/out" "$work/greedy" || problem "samples the most likely text: the case shows nothing"
}

is_greedy() {
  expect 0 run embedded "Once upon a time" -n 12 --seed 5 "$@"
  cmp -s "$work/out" "$work/greedy" || problem "is not greedy"
}

# An option of sampling that the user gives turns sampling on; do_sample=false stays, and 0 is greedy.
options_that_sample() {
  local option own=$work/own-settings
  expect 0 run embedded "Once upon a time" -n 12
  cp "$work/out" "$work/greedy"
  for option in --temperature=1.5 --temp=1.5 --top-k=20 --top-p=0.95 --min-p=0.01 --typical-p=0.9 --epsilon-cutoff=0.001 --eta-cutoff=0.001; do
    samples "$option"
    err_empty
    is_greedy "$option" --no-do-sample
    err_has "but has no effect: do_sample is false"
  done
  MNEME_TOP_P=0.95 samples
  MNEME_TOP_P=0.95 MNEME_DO_SAMPLE=false is_greedy
  echo '{"min_p": 0.01}' >"$work/sample.json"
  MNEME_CONFIG=$work/sample.json samples
  samples --generation-config "$work/sample.json"
  echo '{"min_p": 0.01, "do_sample": false}' >"$work/sample.json"
  is_greedy --generation-config "$work/sample.json"
  is_greedy --generation-config "$work/sample.json" --temperature 1.5
  for option in --temperature=0 --temp=0 --temperature=0.0; do
    is_greedy "$option"
    err_empty
    is_greedy "$option" --do-sample
  done
  MNEME_TEMPERATURE=0 is_greedy
  MNEME_TEMPERATURE=0 samples --temperature 1.5
  echo '{"temperature": 0}' >"$work/sample.json"
  is_greedy --generation-config "$work/sample.json"
  samples --generation-config "$work/sample.json" --temp 1.5
  expect 2 run embedded hi --temperature -1
  # A search that is not sampled contradicts the option, not do_sample, which nobody gave.
  expect 2 run embedded hi --num-beams 4 --num-beam-groups 2 --diversity-penalty 1 --top-p 0.9
  err_has "top_p turns sampling on: do_sample is true, but groups of beams .num_beam_groups 2. are not sampled"
  expect 2 run embedded hi --num-beams 4 --force-words-ids '[[9]]' --temp 0.9
  err_has "temperature turns sampling on: "
  expect 2 run embedded hi --num-beams 4 --num-beam-groups 2 --diversity-penalty 1 --top-p 0.9 --do-sample
  err_has "^mneme.* do_sample is true, but" && ! grep -q "turns" "$work/err" || problem "another option is named"
  expect 0 run embedded hi --num-beams 4 --num-beam-groups 2 --diversity-penalty 1 --top-p 0.9 --no-do-sample -n 2
  # top_k of contrastive search is none; neither is null, nor what a checkpoint's own file has.
  expect 0 run embedded --print-config --json --penalty-alpha 0.6 --top-k 4
  json 'j["do_sample"] == {"value": False, "origin": "default"}'
  expect 0 run embedded --print-config --json --top-p null
  json 'j["do_sample"] == {"value": False, "origin": "default"}'
  mkdir "$own"
  ln -s "$(realpath "$here/../data/golden/llama")"/* "$own"
  rm -f "$own/generation_config.json"
  echo '{"temperature": 0.5, "top_p": 0.9}' >"$own/generation_config.json"
  expect 0 run "$own" --print-config --json
  json 'j["do_sample"] == {"value": False, "origin": "default"} and j["temperature"] == {"value": 0.5, "origin": "model"}'
  MNEME_TOP_K=9 expect 0 run "$own" --print-config --json
  json 'j["do_sample"] == {"value": True, "origin": "environment"}'
  # A line of a batch: its own options come first.
  printf '{"prompt": "Once upon a time", "seed": 5%s}\n' '' ', "top_p": 0.95' ', "temperature": 0' ', "temperature": 1.5' ', "temperature": 1.5, "do_sample": false' >"$work/rows"
  expect 0 run embedded --batch "$work/rows" -n 12 --raw
  json '[r["sequences"][0]["text"] == j["sequences"][0]["text"] for r in all] == [True, False, True, False, True]'
  expect 0 run embedded --batch "$work/rows" -n 12 --raw --temperature 0 # which holds for lines without a temperature
  json '[r["sequences"][0]["text"] == j["sequences"][0]["text"] for r in all] == [True, True, True, False, True]'
  expect 0 run embedded --batch "$work/rows" -n 12 --raw --temperature 1.5
  json '[r["sequences"][0]["text"] == all[2]["sequences"][0]["text"] for r in all] == [False, False, True, False, True]'
}

logprobs() {
  expect 0 run embedded "Once upon a time" -n 4 --json --logprobs 3
  json 'len(j["sequences"][0]["logprobs"]) == 4 and all_of([len(t["top"]) == 3 and t["id"] == t["top"][0]["id"] and t["logprob"] <= 0 and t["top"][0]["logprob"] >= t["top"][1]["logprob"] for t in j["sequences"][0]["logprobs"]])'
  expect 2 run embedded hi --logprobs 3
  err_has "add --json"
}

stops() {
  expect 0 run embedded "Once upon a time" -n 60 --stop Lily --json
  json '"Lily" not in j["sequences"][0]["text"][:-4] and j["sequences"][0]["finish_reason"] == "stop_string"'
  expect 0 run embedded "Once upon a time" -n 60 --stop zzz --stop " girl" --json
  json 'j["sequences"][0]["finish_reason"] == "stop_string"'
  expect 0 run embedded "Once upon a time" -n 400 --json
  json 'j["sequences"][0]["finish_reason"] in ("eos", "length")'
  expect 0 run embedded --ids 1 -n 400 --ignore-eos --json
  json 'j["sequences"][0]["finish_reason"] == "length" and len(j["sequences"][0]["ids"]) == 400'
  # Stop strings that name special tokens; tokens by name and by id.
  local once=(run embedded --raw -p Once -n 20 --greedy --ignore-eos --json)
  expect 0 "${once[@]}" --logit-bias '{"2":100}' --stop '</s>'
  json '[(s["ids"], s["text"], s["finish_reason"]) for s in j["sequences"]] == [([2], "", "stop_string")]'
  expect 0 "${once[@]}" --logit-bias '{"2":100}' --stop-token '</s>'
  json '[(s["ids"], s["text"], s["finish_reason"]) for s in j["sequences"]] == [([2], "", "eos")]'
  for token in 383 '▁there'; do
    expect 0 "${once[@]}" --stop-token 511 --stop-token "$token"
    json '[(s["ids"], s["text"], s["finish_reason"]) for s in j["sequences"]] == [([407, 261, 378, 432, 383], "upon a time,", "eos")]'
  done
  expect 0 run embedded --raw -p Once -n 20 --stop-token 383 --print-config --json
  json 'j["eos_token_id"]["value"][-2:] == [2, 383] and j["ignore_eos"]["value"] is False'
  expect 2 "${once[@]}" --stop-token '</t>'
  err_has "'</t>' is no token; did you mean </s>\?"
  expect 2 "${once[@]}" --stop-token 512
  err_has 'stop-token is 512, allowed: 0 to 511'
}

generation_files() {
  echo '{"max_new_tokens": 5, "transformers_version": "4.56.2", "do_sample": false, "cache_implementation": "static"}' >"$work/g.json"
  expect 0 run embedded "Once upon a time" --generation-config "$work/g.json" --json
  json 'j["usage"]["completion_tokens"] == 5 and j["cache"]["implementation"] == "static"'
  expect 0 run embedded "Once upon a time" --generation-config "$work/g.json" -n 3 --cache dynamic --json
  json 'j["usage"]["completion_tokens"] == 3 and j["cache"]["implementation"] == "dynamic"'
  echo '{"max_new_tokens": 5, "cache_implementation": "quantized", "cache_config": {"backend": "HQQ", "nbits": 3, "q_group_size": 16}}' >"$work/g.json"
  expect 0 run "$here/../data/golden/llama" --ids 1,2 --generation-config "$work/g.json" --json
  json 'j["cache"]["implementation"] == "quantized"'
  expect 2 run "$here/../data/golden/llama" --ids 1,2 --generation-config "$work/g.json" --cache-config backend=quanto,nbits=3
  err_has "allowed: 2, 4"
  expect 0 run "$here/../data/golden/llama" --ids 1,2 --generation-config "$work/g.json" --cache dynamic --json
  json 'j["cache"]["implementation"] == "dynamic"'
  echo '{"max_new_tokens": 5, "cache_implementation": "quantized", "cache_config": {"backend": "quanto", "nbits": 3}}' >"$work/g.json"
  expect 2 run "$here/../data/golden/llama" --ids 1,2 --generation-config "$work/g.json"
  err_has "bits is 3, allowed: 2, 4"
  echo '{"max_new_token": 5}' >"$work/g.json"
  expect 2 run embedded hi --generation-config "$work/g.json"
  err_has "max_new_tokens"
  echo '{"max_new_tokens": 5' >"$work/g.json"
  expect 2 run embedded hi --generation-config "$work/g.json"
  err_is_sentence
  echo '{"use_cache": false, "max_new_tokens": 3}' >"$work/g.json"
  expect 0 run embedded hi --generation-config "$work/g.json" --json
  json 'j["cache"]["implementation"] == "none"'
  expect 0 run embedded hi --num-beams 1 -n 2
  expect 2 run embedded hi --num-beams 0
  err_has "num_beams"
  expect 0 run embedded "Once upon" -n 5 --num-beams 3 --num-return-sequences 2 --json
  json 'len(j["sequences"]) == 2'
  cp "$work/out" "$work/two"
  expect 0 run embedded "Once upon" -n 5 --num-beams 3 --num-return-sequences 2
  [ $have_python = 0 ] || python3 -c 'import json, sys
texts = [s["text"] for s in json.load(open(sys.argv[1]))["sequences"]]
sys.exit(open(sys.argv[2]).read() != "".join(f"[{i + 1}] {t}" + "\n" * (i == 0) for i, t in enumerate(texts)))' "$work/two" "$work/out" ||
    problem "answers are not numbered"
  # Contradictions are refused, settings without effect give a warning.
  expect 2 run embedded hi --num-return-sequences 2 -n 2
  err_has "num_return_sequences is 2, but greedy search has one answer"
  expect 0 run embedded hi --no-do-sample --temperature 0.5 --top-p 0.9 -n 2
  err_has "warning: temperature is 0.5 but has no effect: do_sample is false"
  err_has "warning: top_p is 0.9 but has no effect"
  expect 0 run embedded hi --negative-prompt no -n 2
  err_has "the negative prompt has no effect"
  expect 0 run embedded hi --temperature 0.5 --do-sample --seed 1 -n 2
  err_empty
}

# A schema is JSON or a file, as a flag, a variable and a member of the configuration file.
schemas_in_files() {
  local how schema='{"enum": ["a dog", "a cat"]}'
  echo "$schema" >"$work/schema.json"
  expect 0 run embedded Hi --json-schema "$schema"
  out_has '^"a (dog|cat)"$'
  cp "$work/out" "$work/wanted"
  for how in "@$work/schema.json" "$work/schema.json"; do
    expect 0 run embedded Hi --json-schema "$how"
    cmp -s "$work/out" "$work/wanted" || problem "differs"
    MNEME_JSON_SCHEMA=$how expect 0 run embedded Hi
    cmp -s "$work/out" "$work/wanted" || problem "differs"
  done
  expect 1 run embedded Hi --json-schema "@$work/absent"
  err_is_sentence
  err_has "--json-schema: cannot open '$work/absent'"
  expect 2 run embedded Hi --json-schema "@$here/lib.sh"
  err_has "lib.sh: bad value at line 1"
  expect 2 run embedded Hi --json-schema ./absent # of a longer value the message has the beginning
  err_has "json_schema is .*absent.*allowed: a JSON schema"
}

# Numbers that a double does not hold reach the answer as the schema has them.
long_numbers_of_schemas() {
  local number
  for number in 12345678901234567890123 -1e400 0.1234567890123456789; do
    expect 0 run embedded Hi --json-schema "{\"const\": $number}"
    out_is "$number"
  done
  expect 0 run embedded Hi --json-schema \
    '{"type": "integer", "minimum": 12345678901234567890123, "maximum": 12345678901234567890123}'
  out_is 12345678901234567890123
}

# A grammar is a text or a file, as a flag, a variable, a member of the configuration file and of a line of a batch.
grammars() {
  local how grammar=$'root ::= "a " animal\nanimal ::= "dog" | "cat"'
  echo "$grammar" >"$work/pets.gbnf"
  expect 0 run embedded Hi --grammar "$grammar"
  out_has '^a (dog|cat)$'
  cp "$work/out" "$work/wanted"
  for how in "@$work/pets.gbnf" "$work/pets.gbnf"; do
    expect 0 run embedded Hi --grammar "$how"
    cmp -s "$work/out" "$work/wanted" || problem "differs"
    MNEME_GRAMMAR=$how expect 0 run embedded Hi
    cmp -s "$work/out" "$work/wanted" || problem "differs"
  done
  printf '%s\n' '{"ids": [1], "grammar": "root ::= \"a \" (\"dog\" | \"cat\")"}' >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl"
  out_has '"a (dog|cat)"'
  expect 1 run embedded Hi --grammar "@$work/absent"
  err_is_sentence
  err_has "cannot open '$work/absent'"
  expect 2 run embedded Hi --grammar $'root ::= "a"\n  | "b"'
  err_is_sentence
  err_has 'grammar, line 2, column 3: a \| at the beginning of a line'
  expect 2 run embedded Hi --grammar 'root ::= root "a" | "b"'
  err_has "the rule 'root' begins with itself"
  expect 2 run embedded Hi --grammar 'root ::= "a"' --regex b
  err_has 'regex and grammar are both set'
}

# The cache that a checkpoint, a file or a row names is used; flags override it; ignored settings give one warning.
caches_of_files() {
  local own=$work/own
  rm -rf "$own" && mkdir -p "$own"
  cp "$here"/../data/golden/llama/{config.json,model.safetensors} "$own"
  echo '{"max_new_tokens": 4, "temperature": 0.6, "forced_decoder_ids": [[1, 2]], "cache_implementation": "quantized", "cache_config": {"nbits": 2, "axis-key": 0, "backend": "quanto",
    "compute_dtype": "float16", "device": "cuda:0"}, "return_legacy_cache": true, "output_scores": true, "made_up": 3}' >"$own/generation_config.json"
  expect 0 run "$own" --ids 1,2,3 --json
  json 'j["cache"]["implementation"] == "quantized"'
  [ "$(wc -l <"$work/err")" = 3 ] || problem "not three warnings"
  err_has 'warning: generation_config.json has fields that have no effect here: temperature, forced_decoder_ids, return_legacy_cache, output_scores, made_up$'
  err_has 'warning: cache option compute_dtype has no effect'
  err_has "warning: cache option device is 'cuda:0' but has no effect"
  expect 0 run "$own" --ids 1,2,3 --json --scores-out "$work/s.safetensors"
  [ "$(wc -l <"$work/err")" = 3 ] || problem "not three warnings"
  err_has 'no effect here: temperature, forced_decoder_ids, return_legacy_cache, made_up$'
  expect 0 run "$own" --ids 1,2,3 --json --cache dynamic
  json 'j["cache"]["implementation"] == "dynamic"'
  [ "$(wc -l <"$work/err")" = 1 ] || problem "not one warning"
  expect 0 run "$own" --ids 1,2,3 --json --no-cache
  json 'j["cache"]["implementation"] == "none"'
  expect 0 run "$own" --ids 1,2,3 --json --cache-config nbits=4
  json 'j["cache"]["implementation"] == "quantized"'
  expect 2 run "$own" --ids 1,2,3 --json --cache-config window_length=4
  expect 0 run "$own" --ids 1,2,3 --print-config --json
  json 'j["cache_implementation"] == {"value": "quantized", "origin": "model"} and j["cache_config"]["value"]["nbits"] == 2 and j["cache_config"]["origin"] == "model"'
  expect 0 run "$own" --ids 1,2,3 --print-config --json --cache SinkCache
  json 'j["cache_implementation"] == {"value": "SinkCache", "origin": "flag"} and j["cache_config"] == {"value": None, "origin": "default"}'
  expect 0 score "$own" --ids 1,2,3,4 --json
  json 'j["cache"]["implementation"] == "quantized"'
  err_has "warning: cache option device is 'cuda:0' but has no effect"
  expect 0 score "$own" --ids 1,2,3,4 --json --cache static
  json 'j["cache"]["implementation"] == "static"'
  for command in "score --ids 1,2" bench; do
    # shellcheck disable=SC2086 # words
    expect 0 $command -m "$own" --print-config --json
    json 'j["cache_implementation"] == {"value": "quantized", "origin": "model"} and j["cache_config"]["value"]["nbits"] == 2 and "top_p" not in j'
  done
  expect 0 bench "$own" -p 4 -n 2 -r 1 -o json
  grep -q '"cache_implementation":"quantized"' "$work/out" || problem "bench has another cache"
  last="mneme serve $own"
  background serve "$own" --unix "$work/socket"
  local server=$! i
  for ((i = 0; i < 6000; i++)); do ! grep -q listening "$work/err" || break; sleep 0.05; done
  kill -INT $server
  wait $server || problem "exit code $?"
  err_has 'listening on unix:.* model=own cache=quantized '
  [ "$(wc -l <"$work/err")" = 4 ] || problem "not three warnings"
  expect 2 serve "$own" --unix "$work/socket" --cache-config window_length=4
  # Another cache of the same file's fields, the file of --generation-config, the rows of a batch.
  echo '{"cache_implementation": "StaticCache"}' >"$work/g.json"
  expect 0 run "$own" --ids 1,2,3 --json --generation-config "$work/g.json"
  json 'j["cache"]["implementation"] == "static" and j["cache"]["max_cache_len"] == 7'
  {
    echo '{"ids": [1, 2, 3]}'
    echo '{"ids": [1, 2, 3], "cache_implementation": "sink", "cache_config": {"window_length": 8}}'
    echo '{"ids": [1, 2, 3], "cache_implementation": "static"}'
    echo '{"ids": [1, 2, 3], "use_cache": false}'
  } >"$work/b.jsonl"
  expect 0 run "$own" --batch "$work/b.jsonl"
  json '[row["cache"]["implementation"] for row in all] == ["quantized", "sink", "static", "none"]'
  for row in 2:sink 3:static 4:none; do
    sed -n "${row%:*}p" "$work/b.jsonl" >"$work/one.jsonl"
    expect 0 run "$own" --batch "$work/one.jsonl" --cache offloaded
    json 'j["cache"]["implementation"] == "'"${row#*:}"'"'
  done
  sed -n 1p "$work/b.jsonl" >"$work/one.jsonl"
  expect 0 run "$own" --batch "$work/one.jsonl" --cache offloaded
  json 'j["cache"]["implementation"] == "offloaded"'
  echo '{"ids": [1, 2, 3], "cache_implementation": "paged"}' >"$work/one.jsonl"
  expect 2 run "$own" --batch "$work/one.jsonl"
  err_has "line 1: .*cache_implementation: cache implementation is 'paged'"
  # A name that there is not, in the checkpoint: refused when it would be used.
  echo '{"max_new_tokens": 2, "cache_implementation": "paged"}' >"$own/generation_config.json"
  expect 2 run "$own" --ids 1,2,3
  err_is_sentence
  expect 2 serve "$own" --unix "$work/socket"
  err_is_sentence
  expect 0 run "$own" --ids 1,2,3 --cache dynamic
  expect 0 run "$own" --ids 1,2,3 --cache HQQQuantizedCache --cache-config axis-key=1,axis-value=1 --json
  json 'j["cache"]["implementation"] == "quantized"'
}

sinks_beside_windows() {
  for command in "run --ids 1,2,3 -n 2" "score --ids 1,2,3"; do
    # shellcheck disable=SC2086
    expect 0 ${command%% *} "$here/../data/golden/mistral-window" ${command#* } --cache sink --json
    [ "$(wc -l <"$work/err")" = 1 ] || problem "not one warning"
    err_has 'warning: 3 of 3 layers have a window of their own of 8 tokens'
  done
}

# Transformers' names of types and of on_oom policies.
words_of_transformers() {
  local llama=$here/../data/golden/llama
  for dtype in float32:f32 torch.float32:f32 bfloat16:bf16 torch.bfloat16:bf16 torch.float16:bf16; do
    expect 0 run "$llama" --ids 1 -n 1 --dtype "${dtype%:*}" --cache-dtype "${dtype%:*}" --json
    json 'j["cache"]["dtype"] == "'"${dtype#*:}"'"'
    expect 0 run "$llama" --print-config --json --torch-dtype "${dtype%:*}"
    json 'j["compute_type"] == {"value": "'"${dtype#*:}"'", "origin": "flag"}'
  done
  expect 2 run "$llama" --ids 1 --dtype float8
  err_has "'float8' is not one of auto|f32|bf16|int8|int8_a8"
  for word in offloaded:offload quantized:quantize sink:evict; do
    expect 0 run "$llama" --print-config --json --on-oom "${word%:*}"
    json 'j["on_oom"]["value"] == "'"${word#*:}"'"'
  done
  expect 0 run "$llama" --ids 1,2,3,4 -n 4 --cache sliding_window --cache-config sliding_window=3 --json
  json 'j["cache"]["max_cache_len"] == 3'
}

print_config() {
  echo '{"top_k": 7, "temperature": 0.5}' >"$work/g.json"
  mkdir -p "$work/config/mneme"
  echo '{"top_p": 0.8, "threads": 1}' >"$work/config/mneme/config.json"
  MNEME_MIN_P=0.1 MNEME_TOP_P=0.9 expect 0 run embedded --print-config --json --generation-config "$work/g.json" --temperature 0.7 --cache static
  rm "$work/config/mneme/config.json"
  json 'j["temperature"] == {"value": 0.7, "origin": "flag"} and j["top_k"] == {"value": 7, "origin": "generation-config file"}'
  json 'j["min_p"] == {"value": 0.1, "origin": "environment"} and j["top_p"]["value"] == 0.9 and j["threads"] == {"value": 1, "origin": "config file"}'
  json 'j["eos_token_id"]["origin"] == "model" and j["repetition_penalty"]["origin"] == "default"'
  json 'j["cache_implementation"] == {"value": "static", "origin": "flag"} and j["cache_dtype"] == {"value": "auto", "origin": "default"}'
  echo '{"cache_implementation": "static"}' >"$work/g.json"
  expect 0 run embedded --print-config --json --generation-config "$work/g.json"
  json 'j["cache_implementation"] == {"value": "static", "origin": "generation-config file"}'
  expect 0 run embedded --print-config
  out_has '^max_new_tokens '
  # A number without a default is null, in every command.
  expect 0 bench embedded --print-config --json
  json 'j["max_concurrency"] == {"value": None, "origin": "default"} and j["num_prompts"]["value"] == 100'
  expect 0 score embedded --ids 1,2 --print-config --json
  json 'j["threads"]["value"] is None'
  expect 0 serve embedded --print-config --json --port 0
  json 'j["port"] == {"value": 0, "origin": "flag"} and j["cache_dir"]["value"] is None'
  # Lists, words and pairs in short.
  echo '{"sequence_bias": [[[5], -Infinity]]}' >"$work/g.json"
  expect 0 run embedded --print-config --json --generation-config "$work/g.json" --suppress-tokens 1,2 --bad-words-ids 5,6 --bad-words-ids '[[7]]' \
    --early-stopping never --dola-layers 1,2 --logit-bias 15=-5,3=0.5 --watermarking-config bias=3,seeding_scheme=selfhash \
    --exponential-decay-length-penalty 3,1.5 --regex '[0-9]+' --json-schema '{"type": "object"}' --num-beams 3 --no-use-cache
  json 'j["suppress_tokens"]["value"] == [1, 2] and j["bad_words_ids"]["value"] == [[5, 6], [7]] and j["early_stopping"]["value"] == "never"'
  json 'j["dola_layers"]["value"] == [1, 2] and j["logit_bias"]["value"] == {"15": -5, "3": 0.5} and j["regex"]["value"] == "[0-9]+"'
  json 'j["watermarking_config"]["value"]["bias"] == 3 and j["watermarking_config"]["value"]["seeding_scheme"] == "selfhash"'
  json 'j["exponential_decay_length_penalty"]["value"] == [3, 1.5] and j["json_schema"]["value"] == {"type": "object"}'
  json 'j["sequence_bias"]["value"] == [[[5], "-inf"]] and j["num_beams"] == {"value": 3, "origin": "flag"}'
}

# Every value of the listing can be set in the environment and is shown again.
config_round_trip() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  expect 0 run embedded --print-config --json
  python3 - "$mneme" "$work/out" <<'PYTHON' || problem "an option does not come back from the environment"
import json, os, subprocess, sys
shapes_output = {"json", "verbose", "batch", "generation_config", "cache_implementation", "prefix_file"}  # said apart, or a file that is read
special = {"model": "embedded", "cache_dtype": "f32", "compute_type": "f32", "cpu": "scalar", "cache_config": "max_cache_len=77",
           "temp": "0.5", "top_p": "0.5", "min_p": "0.5", "on_oom": "evict", "calibration": "none", "memory_limit": "1073741824", "stop_strings": '["a", "b"]',
           "eos_token_id": "[2, 3]", "typical_p": "0.5", "epsilon_cutoff": "0.5", "eta_cutoff": "0.5", "penalty_alpha": "0.5",
           "assistant_confidence_threshold": "0.5", "logit_bias": '{"15": -5}', "sequence_bias": '[[[5, 6], "-inf"]]',
           "bad_words_ids": "[[5], [6, 7]]", "force_words_ids": "[[5]]", "suppress_tokens": "[5]", "begin_suppress_tokens": "[5]",
           "forced_eos_token_id": "[2]", "exponential_decay_length_penalty": "[3, 1.5]", "grammar": "root ::= [a-z]+", "json_schema": '{"type": "object"}',
           "early_stopping": '"never"', "num_assistant_tokens_schedule": '"heuristic"', "dola_layers": '"low"', "watermarking_config":
           '{"greenlist_ratio": 0.5, "bias": 1, "hashing_key": 3, "seeding_scheme": "selfhash", "context_width": 2}'}
ok = True
for name, entry in json.load(open(sys.argv[2])).items():
    if name in shapes_output:
        continue
    value = special.get(name) or ("true" if isinstance(entry["value"], bool) else "17")
    env = dict(os.environ, **{"MNEME_" + name.upper(): value})
    run = subprocess.run([sys.argv[1], "run", "embedded", "--print-config", "--json"], env=env, capture_output=True, text=True)
    if run.returncode != 0:
        print(name, run.stderr)
        ok = False
        continue
    got = json.loads(run.stdout)[name]
    try:
        wanted = json.loads(value)
    except ValueError:
        wanted = value
    if got["origin"] != "environment" or got["value"] not in (wanted, value):
        print(name, value, got)
        ok = False
sys.exit(0 if ok else 1)
PYTHON
}

batches() {
  printf '%s\n' '{"ids": [1, 403, 407, 261, 378], "max_new_tokens": 6}' '' '{"prompt": "The cat", "max_new_tokens": 9}' \
    '{"ids": [1, 403], "max_new_tokens": 3}' >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl"
  json '[x["sequences"][0]["row"] for x in all] == [0, 1, 2] and [len(x["sequences"][0]["ids"]) for x in all] == [6, 9, 3]'
  json 'all_of(len(x["sequences"]) == 1 and len(x["prompt_ids"]) == 1 for x in all) and all[0]["usage"]["prompt_tokens"] == 5'
  if [ $have_python = 1 ]; then
    python3 -c 'import json,sys; print(*json.loads(open(sys.argv[1]).readlines()[0])["sequences"][0]["ids"], sep=",")' "$work/out" >"$work/row"
    expect 0 run embedded --ids 1,403,407,261,378 -n 6 --json
    json '",".join(map(str, j["sequences"][0]["ids"])) == args[0]' "$(cat "$work/row")"
  fi
  printf '%s\n' '{"ids": [1]}' '{"ids": [1], "tempreature": 1}' >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl"
  err_has "line 2"
  out_empty
  printf '%s\n' '{"ids": [1]}' '{"ids": [1]' >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl"
  err_has "line 2"
  printf '%s\n' '{"ids": [1], "prompt": "x"}' >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl"
  printf '%s\n' '{"ids": []}' >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl"
  : >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl"
  err_is_sentence
  printf '{"ids":[1,403]}\n{"ids":[1,403],"sequence_bias":[[[407],-Infinity]]}\n{"ids":[1,403],"sequence_bias":[[[407],"-inf"]]}\n' >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl" -n 3
  json '(lambda ids: ids[0][0] == 407 and ids[1][0] != 407 and ids[1] == ids[2])([r["sequences"][0]["ids"] for r in all])'
}

# The header of a safetensors file as JSON in $work/out.
header() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  python3 -c 'import struct,sys; f=open(sys.argv[1],"rb"); n,=struct.unpack("<Q",f.read(8)); print(f.read(n).decode())' "$1" >"$work/out"
}

output_files() {
  expect 0 run embedded --ids 1,403 -n 4 --scores-out "$work/s.safetensors" --logits-out "$work/l.safetensors"
  header "$work/s.safetensors"
  json 'j["scores"]["dtype"] == "F32" and j["scores"]["shape"] == [4, 1, 512]'
  header "$work/l.safetensors"
  json 'j["logits"]["shape"] == [4, 1, 512]'
  expect 0 run embedded --ids 1,403 -n 4 --num-beams 3 --num-return-sequences 2 --scores-out "$work/s.safetensors" --json
  json 'len(j["sequences"]) == 2 and 0 > j["sequences"][0]["score"] >= j["sequences"][1]["score"]'
  header "$work/s.safetensors"
  json 'j["scores"]["shape"] == [4, 3, 512]' # of all running beams
  expect 0 score embedded --ids 1,403,407 --out "$work/x.safetensors"
  header "$work/x.safetensors"
  json 'j["logits"]["shape"] == [3, 512] and j["logits"]["data_offsets"] == [0, 3 * 512 * 4]'
  expect 1 run embedded hi --scores-out "$work/absent/s.safetensors"
  err_is_sentence
  out_empty
  expect 1 score embedded -p hi --out /dev/full
  err_is_sentence
  [ -c /dev/full ] || problem "/dev/full is gone"
  expect 1 score embedded -p hi --out "$work"
  err_is_sentence
  [ -z "$(find "$work" -name '*.tmp.*' -o -name '*.mneme-part')" ] || problem "a temporary file is left"
}

scores() {
  expect 0 score embedded -p "$story" --json
  json 'j["tokens"] > 20 and abs(j["perplexity"] - math.exp(j["nll"] / (j["tokens"] - 1))) < 1e-9 and 1 < j["perplexity"] < 20'
  json 'j["cache"]["tokens"] == j["tokens"]'
  cp "$work/out" "$work/first"
  for chunk in 1 3 7; do
    expect 0 score embedded -p "$story" --json --chunk $chunk
    cmp -s "$work/out" "$work/first" || json "j[\"nll\"] == $(sed -E 's/.*"nll":([^,]*).*/\1/' "$work/first")"
  done
  for cache in none static; do
    expect 0 score embedded -p "$story" --json --cache $cache
    json "j[\"nll\"] == $(sed -E 's/.*"nll":([^,]*).*/\1/' "$work/first") and j[\"cache\"][\"implementation\"] == \"$cache\""
  done
  expect 2 score embedded --ids 1
  err_has "two or more"
}

no_tokenizer() {
  local from
  from=$here/../../models-embedded/stories260K
  mkdir -p "$work/bare"
  cp "$from/config.json" "$from/model.safetensors" "$work/bare"
  expect 0 run "$work/bare" --ids 1,403,407,261,378 -n 4 --json
  json 'j["sequences"][0]["text"] is None and len(j["sequences"][0]["ids"]) == 4'
  expect 0 run "$work/bare" --ids 1,403,407,261,378 -n 4
  out_has '^[0-9]+(,[0-9]+){3}$'
  expect 2 run "$work/bare" -p hello
  err_has "--ids"
}

# Learned positions end; no option takes a text beyond them.
learned_positions() {
  local model="$here/../data/golden/gpt2" long
  long=$(printf '5,%.0s' $(seq 128))5
  expect 2 run "$model" --ids "$long" -n 3
  err_has "129 tokens.* 128; shorten it$"
  expect 2 run "$model" --ids "$long" -n 3 --cache sliding_window --cache-config window_length=10
  err_has "129 tokens.* 128; shorten it$"
  expect 2 score "$model" --ids "$long"
  err_has "129 tokens.* 128; shorten it$"
  expect 2 run "$model" --ids 5,6,7 -n 10 --max-cache-len 300
  err_has "max_cache_len is 300, allowed: up to 128"
  expect 2 run "$model" --ids 5,6,7 -n 10 --cache sink
  err_has "learned positions are part of its keys"
  expect 0 run "$model" --ids 5,6,7 -n 300 --ignore-eos --json
  err_has "ends at 128, for which the model has learned positions"
  json 'j["usage"]["completion_tokens"] == 126 and j["sequences"][0]["finish_reason"] == "length"'
  expect 4 bench "$model" -p 200 -n 1 -r 1
  err_has "128 that the model has learned positions for"
  expect 2 inspect "$model" --context 129
  err_has "context is 129, allowed: up to 128"
}

states() {
  local model="$here/../data/golden/mamba"
  expect 0 inspect "$model" --json
  json 'j["config"]["state_size"] == 8 and j["config"]["layers"] == {"mamba": 3} and "max_position_embeddings" not in j["config"]'
  json 'all_of((c["bytes"], c["largest_context"]) == (126720, "any") for c in j["caches"] if c["implementation"] in ("dynamic", "static", "hybrid", "mamba"))'
  json 'all_of("a recurrent state" in c["refused"] for c in j["caches"] if c["implementation"] in ("offloaded", "quantized", "sliding_window", "sink"))'
  expect 0 run "$model" --ids 5,6,7 -n 4 --ignore-eos --cache static --json
  json 'j["cache"]["bytes"] == 3 * 4 * 11 * 192 * 4 and j["cache"]["max_cache_len"] == 7'
  expect 2 run "$model" --ids 5,6,7 -n 4 --cache quantized
  err_has "'quantized' applies to keys and values"
  expect 0 bench "$model" -p 20 -n 4 -r 1 --cache mamba
  expect 0 doctor "$model"
  out_has 'context unbounded'
  expect 0 inspect "$here/../data/golden/jamba" --json
  json 'j["config"]["layers"] == {"full_attention": 2, "mamba": 2} and j["config"]["num_local_experts"] == 4'
  json 'all_of(c["refused"] == "" for c in j["caches"])'
}

inspects() {
  expect 0 inspect embedded --json
  json 'j["architecture"] == "llama" and j["parameters"] == 260032 and j["config"]["hidden_size"] == 64'
  json 'any(c["implementation"] == "dynamic" and c["dtype"] == "f32" and c["bytes_per_token"] == 1280 for c in j["caches"])'
  json 'sum(t["count"] for t in j["tensors"]) == 47 and j["memory"]["peak_bytes"] > j["memory"]["file_bytes"] == 1044984'
  expect 0 inspect embedded --context 4096 --json
  json 'all_of(c["context"] == 4096 for c in j["caches"])'
  json 'all_of(("have 8" in c["refused"]) == ("quantized" in c["implementation"]) for c in j["caches"])'
  expect 0 inspect "$here/../data/golden/llama" --context 4096 --json
  json '{c["implementation"] for c in j["caches"]} == set("none dynamic static offloaded offloaded_static quantized sliding_window sink hybrid mamba".split())'
  json '{c["config"]: c["bytes_per_token"] for c in j["caches"] if c["implementation"] == "quantized"} == {"nbits=8": 204, "nbits=4": 109, "nbits=3": 85, "nbits=2": 61}'
  json 'all_of(c["largest_context"] == "any" or c["largest_context"] > 4096 for c in j["caches"])'
  expect 0 inspect embedded
  out_has 'hidden_size +64'
  expect 0 inspect --kernels --json --cpu scalar
  json 'len(j["kernels"]) > 5 and all_of(k["level"] == "scalar" for k in j["kernels"])'
  expect 0 inspect --kernels
  expect 2 inspect embedded --kernels --cpu z80
  err_is_sentence
}

doctor() {
  expect 0 doctor
  [ "$(tail -1 "$work/out")" = ready ] || problem "not ready"
  expect 0 doctor --json
  json 'j["ok"] is True and all_of(c["ok"] for c in j["checks"])'
  expect 1 doctor "$work/absent.gguf"
  out_has '^FAIL +model'
}

# Every model that a name finds, and each name finds its model.
models_are_listed() {
  local name models=$work/models-here hub=$work/hub-here snapshot
  mkdir -p "$models/empty" "$hub/models--org--no-model"
  cp -r "$here/../data/golden/llama" "$models/b-llama"
  cp -r "$here/../data/golden/whisper/tiny80" "$models/c-whisper"
  : >"$models/a.gguf"
  : >"$models/notes.txt"
  snapshot=$hub/models--org--small/snapshots/0123456789012345678901234567890123456789
  mkdir -p "$snapshot" "$hub/models--org--small/refs"
  cp "$here"/../../models-embedded/stories260K/* "$snapshot"
  printf 0123456789012345678901234567890123456789 >"$hub/models--org--small/refs/main"
  local -x MNEME_MODELS=$models HF_HUB_CACHE=$hub
  expect 0 list --json
  json '[(m["name"], m["use"]) for m in j["models"]] == [("embedded", "text"), ("a.gguf", "text"), ("b-llama", "text"), ("c-whisper", "speech"), ("org/small", "text")]'
  json "[m['path'] for m in j['models']] == ['embedded', '$models/a.gguf', '$models/b-llama', '$models/c-whisper', '$snapshot']"
  expect 0 list
  [ "$(wc -l <"$work/out")" = 5 ] || problem "not five lines"
  out_has "^org/small +text +$snapshot\$"
  expect 0 doctor embedded
  out_has '^ok +models +embedded, a.gguf, b-llama, c-whisper \(speech\), org/small$'
  for name in b-llama org/small embedded; do expect 0 inspect "$name"; done
  MNEME_MODELS=$work/absent HF_HUB_CACHE=$work/absent
  expect 0 list
  [ "$(cut -d' ' -f1 "$work/out")" = embedded ] || problem "not one line"
  expect 2 list embedded
  err_is_sentence
}

benches() {
  expect 0 bench embedded -p 16 -n 8 -d 0,8 -r 2 -o json
  if [ $have_python = 1 ]; then
    python3 - "$work/out" <<'PYTHON' || problem "bench JSON"
import json, sys
rows = json.load(open(sys.argv[1]))
assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows] == [(16, 0, 0), (0, 8, 0), (16, 0, 8), (0, 8, 8)]
for r in rows:
    assert len(r["samples_ns"]) == len(r["samples_ts"]) == 2 and r["avg_ts"] > 0 and r["cache_implementation"] == "dynamic"
    assert r["cache_bytes"] > 0 and r["peak_rss"] > 1 << 20 and r["n_threads"] >= 1 and r["type_k"] in ("f32", "bf16")
    assert {"build_commit", "cpu_info", "model_filename", "model_type", "model_size", "model_n_params", "stddev_ns", "test_time"} <= set(r)
PYTHON
  fi
  expect 0 bench embedded -p 8 -n 0 -r 1 -o jsonl --threads 1,2
  json '[x["n_threads"] for x in all] == [1, 2]'
  # A prompt is measured once, new tokens for every number of rows, whose caches count together.
  expect 0 bench embedded -p 8 -n 4 -d 3 -npl 1,5 -r 1 -o jsonl
  json '[(x["n_prompt"], x["n_gen"], x["pl"]) for x in all] == [(8, 0, 1), (0, 4, 1), (0, 4, 5)]'
  json 'all[2]["cache_bytes"] == 5 * all[1]["cache_bytes"] and abs(all[2]["avg_ts"] * all[2]["avg_ns"] / 1e9 - 20) < 1e-3'
  expect 0 bench embedded -p 0 -n 4 --parallel 3 -r 1
  out_has 'tg4 x3'
  expect 2 bench embedded -n 4 -npl 0
  err_has "npl: 0 is out of range; allowed: 1 to 1024"
  expect 0 bench embedded -p 8 -n 4 -r 1 -o csv --cache static
  [ "$(wc -l <"$work/out")" = 3 ] || problem "csv has no header and two rows"
  expect 0 bench embedded -p 8 -n 4 -pg 4,4 -r 1
  out_has 'pp8 .*'
  out_has 'pp4\+tg4'
}

output_that_fails() {
  local code
  "$mneme" run embedded "Once upon a time" >/dev/full 2>"$work/err"
  code=$?
  last="run >/dev/full"
  : >"$work/out"
  [ $code = 1 ] || problem "exit code $code"
  err_has "No space left"
  "$mneme" run embedded "Once upon a time" --json >/dev/full 2>"$work/err"
  code=$?
  [ $code = 1 ] || problem "exit code $code"
  # Longer than a pipe holds: it ends only because nobody reads it.
  { "$mneme" run embedded "Once upon a time" --max-cache-len 1000000 -n 900000 --ignore-eos 2>"$work/err"; echo $? >"$work/code"; } |
    head -c 5 >"$work/out"
  last="run | head -c 5"
  [ "$(cat "$work/code")" = 1 ] || problem "exit code $(cat "$work/code")"
  err_empty
}

check "the embedded model tells a story" tells_a_story
check "a lone argument is the text" lone_argument_is_the_text
check "the result as JSON" json_result
check "draft models and prompt lookup" draft_models_and_prompt_lookup
check "guidance" guidance_has_a_negative_prompt
check "none, dynamic and static say the same" every_cache_says_the_same
check "every strategy runs" every_strategy_runs
check "quantized caches score nearly as well in less memory" quantized_scores
check "static holds what it says" static_limits
check "prompts longer than the context" long_prompts
check "the memory limit" memory_limit
check "sampling and seeds" sampling
check "options of sampling turn it on" options_that_sample
check "log-probabilities" logprobs
check "stop strings and end tokens" stops
check "generation files" generation_files
check "schemas in files" schemas_in_files
check "long numbers of schemas" long_numbers_of_schemas
check "grammars" grammars
check "caches that files ask for" caches_of_files
check "sinks beside windows" sinks_beside_windows
check "words of Transformers" words_of_transformers
check "--print-config tells values and origins" print_config
check "every option comes back from the environment" config_round_trip
check "batches" batches

prefixes() {
  local row
  printf 'Once upon a time there was a little' >"$work/prefix.txt"
  printf '{"prompt":" dog"}\n{"prompt":" girl named Lily"}\n' >"$work/b.jsonl"
  expect 0 run embedded --raw --prefix-file "$work/prefix.txt" --batch "$work/b.jsonl" -n 12
  cp "$work/out" "$work/batch.out"
  json 'len(all) == 2 and all_of(r["usage"]["prompt_tokens"] > r["usage"]["cached_tokens"] >= 8 for r in all)'
  row="json.loads(open('$work/batch.out').readlines()[1])"
  expect 0 run embedded --raw --prefix-file "$work/prefix.txt" " girl named Lily" -n 12 --json
  json "j['prompt_ids'] == $row['prompt_ids'] and j['sequences'][0]['ids'] == $row['sequences'][0]['ids']"
  expect 2 run embedded --prefix-file "$work/prefix.txt" --ids 1,2
  err_has "prefix-file"
  expect 1 run embedded --prefix-file "$work/none.txt" hi
}
check "prefixes" prefixes
check "output files" output_files
check "scores" scores
check "a model without tokenizer" no_tokenizer
check "inspect" inspects
check "learned positions" learned_positions
check "states" states
check "doctor" doctor
check "models are listed" models_are_listed
check "bench" benches
check "output that fails" output_that_fails
finish
