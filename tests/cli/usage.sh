#!/usr/bin/env bash
# Command lines without computation: help, flags, their errors, exit codes.
# shellcheck source-path=SCRIPTDIR disable=SC2317
list_options=${4:-}
source "$(dirname "$0")/lib.sh"

version() {
  expect 0 --version
  out_has '^mneme [0-9]+\.[0-9]+\.[0-9]+ \((gcc|clang)'
  err_empty
}

help_starts_with_examples() {
  local command
  expect 0 --help
  [ "$(head -1 "$work/out")" = "Examples:" ] || problem "starts otherwise"
  for command in run chat transcribe score tokenize inspect advise bench cache doctor list pull serve; do
    expect 0 $command --help
    err_empty
    [ "$(head -1 "$work/out")" = "Examples:" ] || problem "starts otherwise"
    [ "$(sed -n 2p "$work/out" | cut -c1-8)" = "  mneme " ] || problem "no example"
    [ "$(wc -l <"$work/out")" -le 40 ] || problem "longer than a screen: $(wc -l <"$work/out") lines"
    [ "$(wc -L <"$work/out")" -le 80 ] || problem "wider than a screen: $(wc -L <"$work/out")"
    out_has '^  --help all  '
    expect 0 $command --help-all
    out_has 'MNEME_SOME_NAME'
    cp "$work/out" "$work/all"
    expect 0 $command --help all
    cmp -s "$work/out" "$work/all" || problem "differs from --help-all"
  done
  expect 0 --help
  [ "$(wc -L <"$work/out")" -le 80 ] || problem "wider than a screen: $(wc -L <"$work/out")"
  expect 0 run -h
  [ "$(wc -l <"$work/out")" -le 24 ] || problem "longer than a small screen: $(wc -l <"$work/out") lines"
  # Words are not cut, and what is left out is in the long page.
  out_has '^  --cache NAME +cache strategy, names joined by \+$'
  expect 0 serve --help
  out_has '^ {24}[^ ]'
}

help_shows_every_flag() {
  expect 0 run --help-all
  for flag in --max-new-tokens --do-sample --temperature --top-k --top-p --min-p --repetition-penalty --eos-token-id --stop-strings \
    --seed --greedy --ignore-eos --cache-implementation --cache-config --cache-dtype --max-cache-len --compute-type --threads --cpu \
    --memory-limit --logprobs --scores-out --logits-out --ids --ids-file --messages --batch --raw --print-config --json; do
    out_has "(^|[ ,])$flag( |$)"
  done
}

commands() {
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
  err_has "help all"
  expect 2 score embedded --do-sample
  err_is_sentence
  expect 2 run embedded hello -Z
  err_is_sentence
  expect 2 run embedded hello --json --colour
  json 'j["error"]["type"] == "invalid_request_error" and j["error"]["param"] == "colour" and j["error"]["message"] and j["error"]["code"]'
}

bad_values() {
  expect 2 run embedded hi --threads 0
  err_has "--threads: 0 is out of range; allowed: 1 to 256"
  expect 2 run embedded hi --threads many
  err_has "'many' is not a whole number"
  expect 2 run embedded hi --compute-type f64
  err_has "'f64' is not one of auto\|f32\|bf16\|int8\|int8_a8"
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

# A flag without a value takes true or false behind it, and nothing else.
truth_behind_flags() {
  local value
  for value in true false; do
    expect 0 run embedded --do-sample $value --raw $value --ignore-eos $value --print-config --json true
    json "all_of([j[name] == {\"value\": ${value^}, \"origin\": \"flag\"} for name in (\"do_sample\", \"raw\", \"ignore_eos\")])"
  done
  expect 0 run embedded --raw false --json true "Once upon" -n 1
  json 'j["usage"]["completion_tokens"] == 1'
  expect 0 run embedded --json -n 1 -- true # a text
  json 'j["usage"]["completion_tokens"] == 1'
  expect 2 run embedded --no-do-sample=true hi
  err_has "takes no value"
  expect 2 run embedded --json maybe hi
}

refused_caches() {
  local name
  for name in none+sink sink+sliding_window quantized+quantized dynamic+static static+offloaded_static hybrid+sink; do
    expect 2 run embedded hi --cache "$name"
    err_is_sentence
    err_has "cannot be combined: "
  done
  for name in '' quantized+ paper self=paper both=sink self=sink,self=sink cross=sink; do
    expect 2 run embedded hi --cache "$name"
    err_is_sentence
  done
  expect 2 run embedded hi --cache dinamic
  err_has "did you mean dynamic\?; allowed: none, dynamic, static, offloaded, offloaded_static, quantized"
  expect 2 run embedded hi --cache self=dynamic,cross=static
  err_has "no cross attention"
  expect 2 run embedded hi --cache sliding_window
  err_has "needs window_length"
  expect 2 run embedded hi --cache quantized
  err_has "heads of 16, 32, 48, .* have 8"
  expect 2 run embedded hi --cache none --no-cache
  err_has "contradict"
}

refused_cache_options() {
  local pair
  while IFS='|' read -r pair message; do
    expect 2 run "$here/../data/golden/llama" --ids 1,2 --cache "${pair%% *}" --cache-config "${pair#* }"
    err_is_sentence
    err_has "$message"
    expect 2 score "$here/../data/golden/llama" --ids 1,2 --cache "${pair%% *}" --cache-config "${pair#* }"
    err_has "$message"
  done <<'CASES'
dynamic nbits=4|nbits belongs to quantized; the cache implementation is 'dynamic'
dynamic max_cache_ln=4|did you mean max_cache_len\?
dynamic max_cache_len=0|max_cache_len is '0', allowed: 1 to 2\^40
dynamic max_cache_len|key=value
dynamic {"max_cache_len": 4|cache options
quantized nbits=7|nbits: mneme: bits is 7, allowed: 1, 2, 3, 4, 5, 6, 8
quantized nbits=3,backend=quanto|bits is 3, allowed: 2, 4
quantized backend=kivi|'kivi', allowed: mneme, quanto, hqq
quantized backend=hqq,axis_key=-1|axis_key is -1, allowed for hqq: 0, 1
quantized q_group_size=24|q_group_size is 24, allowed for heads of 32: 16, 32
quantized layers=3:2bit|names layer 3, allowed: 0 to 2
quantized page_tokens=24|page_tokens is 24, allowed: multiples of 16
quantized residual_length=-1|residual_length is '-1'
sink window_length=4|num_sink_tokens is 4, allowed: 0 to 3
sliding_window window_length=0|window_length is '0'
offloaded home=disk|'disk', allowed: memory, file
CASES
  expect 2 run embedded hi --on-oom panic
  err_has "offload\|quantize\|evict\|fail"
  expect 2 run embedded hi --cache quantized --cache-config nbits=9 --json
  json 'j["error"]["param"] == "cache" and "9" in j["error"]["message"]'
}

environment_is_checked() {
  MNEME_THREADS=none expect 2 run embedded hi
  err_has "MNEME_THREADS: 'none' is not a whole number"
  MNEME_CONFIG=$work/absent.json expect 1 run embedded hi
  err_is_sentence
  echo '{"threds": 2}' >"$work/bad.json"
  MNEME_CONFIG=$work/bad.json expect 2 run embedded hi
  err_has "'threds'"
  echo '{"threads": ' >"$work/bad.json"
  MNEME_CONFIG=$work/bad.json expect 2 run embedded hi
  err_is_sentence
}

# The bounds in a refusal are those of the table, and lower layers accept the values at the bounds.
numbers_at_their_bounds() {
  local command flag lo hi besides value n=0 data=$here/../data
  [ -x "$list_options" ] || { problem "no list_options"; return; }
  while read -r command flag lo hi; do
    n=$((n + 1))
    case $command in # other arguments, so that only the number can be wrong
      run) besides=(embedded hi -n 1 --json) ;;
      chat) besides=(embedded -n 1) ;;
      score) besides=(embedded -p ab) ;;
      bench) besides=(embedded -p 1 -n 0 -r 1) ;;
      cache) besides=(convert "$work/absent" "$work/to") ;;
      transcribe)
        besides=(-m "$data/golden/whisper/tiny80" "$data/wav-corner-cases/test-8000Hz-le-2ch-1byteu.wav" --temperature 0 --max-new-tokens 1 --vad-filter)
        ;;
      inspect | doctor) besides=(embedded) ;;
      advise) besides=(embedded --time 0) ;;
      serve) besides=("$work/absent") ;;
      *) besides=() ;;
    esac
    for value in $((lo - 1)) $((hi + 1)) 99999999999999999999; do
      expect 2 "$command" "${besides[@]}" "$flag=$value"
      err_has "$flag: $value is out of range; allowed: $lo to $hi\$"
    done
    case $command$flag in # minutes; bounds of the model besides; the row of run
      *--repetitions | *--logprobs | transcribe--max-cache-len | [!r]*--threads) continue ;;
    esac
    case $flag in # those of `bench --serve`
      --num-prompts | --max-concurrency | --random-*-len | --seed) [ "$command" = bench ] && continue ;;
    esac
    for value in $lo $hi; do
      last="mneme $command $flag=$value"
      "$mneme" "$command" "${besides[@]}" "$flag=$value" </dev/null >"$work/out" 2>"$work/err"
      [ $? != 2 ] || problem "refused"
      if grep -q 'allowed: ' "$work/err"; then problem "refused by other bounds"; fi
    done
  done < <("$list_options")
  [ $n -ge 20 ] || problem "$n options only"
  for flag in -t --threads; do
    expect 2 bench embedded -p 1 -n 0 $flag 257
    err_has "257 is out of range; allowed: 1 to 256"
    expect 2 bench embedded -p 1 -n 0 $flag 0
    err_has "allowed: 1 to 256"
    expect 2 bench embedded --cache dynamic,static $flag 257
    err_has "allowed where caches are compared: one number from 1 to 256"
  done
  expect 2 bench embedded -p 16777217
  err_has "allowed: 0 to 16777216"
  expect 2 bench embedded -p 1 -npl 1025
  err_has "1025 is out of range; allowed: 1 to 1024"
}

# Messages name models that `mneme pull` fetches.
models_that_can_be_had() {
  local listed
  listed=$(grep -v '^#' "$here/../../scripts/models.tsv" | cut -f1 | paste -sd, | sed 's/,/, /g')
  expect 3 inspect ./nowhere
  err_is_sentence
  err_has "installs one of $listed\$"
}

check "models that can be had" models_that_can_be_had
check "refused numbers are shown with the bounds in force" numbers_at_their_bounds
check "version" version
check "every help starts with examples and fits a screen" help_starts_with_examples
check "the long help shows every flag" help_shows_every_flag
check "commands" commands
check "unknown flags get the nearest name" unknown_flags
check "bad values are named with what is allowed" bad_values
check "true and false behind flags" truth_behind_flags
check "caches that cannot be combined are refused" refused_caches
check "cache options out of range are refused" refused_cache_options
check "environment and configuration file are checked" environment_is_checked
finish
