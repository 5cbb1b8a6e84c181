#!/usr/bin/env bash
# What can be said about a command line without computing: help, flags, their errors, exit codes.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"

version() {
  expect 0 --version
  out_has '^mneme [0-9]+\.[0-9]+\.[0-9]+ \((gcc|clang)'
  err_empty
}

help_starts_with_examples() {
  local verb
  expect 0 --help
  [ "$(head -1 "$work/out")" = "Examples:" ] || problem "starts otherwise"
  for verb in run score tokenize inspect bench cache doctor; do
    expect 0 $verb --help
    err_empty
    [ "$(head -1 "$work/out")" = "Examples:" ] || problem "starts otherwise"
    [ "$(sed -n 2p "$work/out" | cut -c1-8)" = "  mneme " ] || problem "no example"
    [ "$(wc -l <"$work/out")" -le 40 ] || problem "longer than a screen: $(wc -l <"$work/out") lines"
    [ "$(wc -L <"$work/out")" -le 132 ] || problem "wider than a screen: $(wc -L <"$work/out")"
    expect 0 $verb --help-all
    out_has 'MNEME_SOME_NAME'
  done
}

help_shows_every_flag() {
  expect 0 run --help-all
  for flag in --max-new-tokens --do-sample --temperature --top-k --top-p --min-p --repetition-penalty --eos-token-id --stop-strings \
    --seed --greedy --ignore-eos --cache-implementation --cache-config --cache-dtype --max-cache-len --compute-type --threads --cpu \
    --memory-limit --logprobs --scores-out --logits-out --ids --ids-file --messages --batch --raw --print-config --json; do
    out_has "(^|[ ,])$flag( |$)"
  done
}

verbs() {
  expect 2
  err_is_sentence
  expect 2 runn
  err_has "did you mean run\?"
  expect 2 qqqqqq
  err_has "mneme --help"
  out_empty
}

unknown_flags() {
  expect 2 run embedded hello --max-new-token 5
  err_is_sentence
  err_has "did you mean --max-new-tokens\?"
  expect 2 run embedded hello --tempreature=1
  err_has "did you mean --temperature\?"
  expect 2 run embedded hello --zzzzzzzzz
  err_has "help-all"
  expect 2 score embedded --do-sample
  err_is_sentence
  expect 2 run embedded hello -Z
  err_is_sentence
  expect 2 run embedded hello --json --colour
  json 'j["error"]["type"] == "invalid_request_error" and j["error"]["param"] == "colour" and j["error"]["message"] and j["error"]["code"]'
}

bad_values() {
  expect 2 run embedded hi --threads 0
  err_has "--threads: 0 is out of range; allowed: 1 to 1024"
  expect 2 run embedded hi --threads many
  err_has "'many' is no whole number"
  expect 2 run embedded hi --compute-type f64
  err_has "'f64' is not one of auto\|f32\|bf16\|int8"
  expect 2 run embedded hi --memory-limit lots
  err_has "512M or 1.5GiB"
  expect 2 run embedded hi --memory-limit -5
  expect 2 run embedded hi --json=maybe
  expect 2 run embedded hi --threads
  err_has "needs a value"
  expect 2 run a b c
  err_has "quotes"
  expect 2 run -m embedded a b
  expect 2 run embedded hi --temp -1
  err_has "temperature"
  expect 2 bench embedded -p x
  expect 2 bench embedded -p 0 -n 0
  err_has "nothing to measure"
}

later_caches() {
  local name
  for name in offloaded quantized sink sliding_window quantized+sink static+quantized self=dynamic,cross=static; do
    expect 2 run embedded hi --cache "$name"
    err_is_sentence
    err_has "not there yet; there are none, dynamic and static"
  done
  expect 2 run embedded hi --cache dinamic
  err_has "did you mean dynamic\?"
  expect 2 run embedded hi --cache-config nbits=4
  err_has "not there yet"
  expect 2 run embedded hi --cache-config max_cache_ln=4
  err_has "did you mean max_cache_len\?"
  expect 2 run embedded hi --cache-config max_cache_len=0
  expect 2 run embedded hi --save-cache x
  err_has "not there yet"
  expect 2 run embedded hi --on-oom evict
  [ ! -e x ] || problem "a file was made"
}

environment_is_checked() {
  MNEME_THREADS=none expect 2 run embedded hi
  err_has "MNEME_THREADS: 'none' is no whole number"
  MNEME_CONFIG=$work/absent.json expect 1 run embedded hi
  err_is_sentence
  echo '{"threds": 2}' >"$work/bad.json"
  MNEME_CONFIG=$work/bad.json expect 2 run embedded hi
  err_has "'threds'"
  echo '{"threads": ' >"$work/bad.json"
  MNEME_CONFIG=$work/bad.json expect 2 run embedded hi
  err_is_sentence
}

check "version" version
check "every help starts with examples and fits a screen" help_starts_with_examples
check "the long help shows every flag" help_shows_every_flag
check "verbs" verbs
check "unknown flags get the nearest name" unknown_flags
check "bad values are named with what is allowed" bad_values
check "caches that come later are refused" later_caches
check "environment and configuration file are checked" environment_is_checked
finish
