#!/usr/bin/env bash
# The memory that `inspect --rows --new-tokens --batch-size` plans for a run, compared with the peak of such a run.
# usage: memory.sh MNEME MAKE_CACHE SHOW_PIECES LIST_OPTIONS PEAK_MEMORY
. "$(dirname "$0")/lib.sh"
peak_memory=$5

planned() { # planned KEY: of the plan in $work/out
  sed -nE "s/.*\"$1\":([0-9]+).*/\1/p" "$work/out"
}

# within COMMAND...: the peak of the command, which reads $input, against the plan in $work/out: at most 5 % above it, so that the planned
# memory is enough; and not below it by more than a quarter or 2 MiB, so that no possible run is refused. What the plan of a run of one token is above
# that run's peak does not count there: it is of the program and its libraries, of which the kernel maps more pages or fewer. The additional memory
# of sanitizers is not planned.
n_held=0 most_above=-1000 most_below=-1000 # in thousandths
within() {
  local expected peak
  expected=$(planned resident_bytes)
  peak=$("$peak_memory" "$mneme" "$@" <"${input:-/dev/null}") || { problem "failed"; return; }
  [ -n "$expected" ] && [ "$peak" -gt 4000000 ] && [ $((peak * 100)) -le $((expected * 105)) ] || { problem "$peak bytes at most, expected: $expected"; return; }
  [ $(((expected - of_program) * 100)) -le $((peak * 125)) ] || [ $((expected - of_program)) -le $((peak + (2 << 20))) ] || [ "$says_more" = 1 ] ||
    { problem "expected: $expected bytes, of which $of_program of the program, $peak at most"; return; }
  n_held=$((n_held + 1))
  [ $(((peak - expected) * 1000 / expected)) -le "$most_above" ] || most_above=$(((peak - expected) * 1000 / expected))
  [ "$says_more" = 1 ] || [ $(((expected - peak) * 1000 / peak)) -le "$most_below" ] || most_below=$(((expected - peak) * 1000 / peak))
}
says_more=0 of_program=0

# note_program MODEL: sets of_program, the bytes by which the plan of a run of one token is above the lowest of three peaks.
declare -A programs
note_program() {
  local peak
  if [ -z "${programs[$1]:-}" ]; then
    expect 0 inspect "$1" --json --context 1 --new-tokens 1 --rows 1 -t 2 || return
    of_program=0
    for _ in 1 2 3; do
      last="mneme run $1, one token"
      peak=$("$peak_memory" "$mneme" run "$1" --ids 5 -n 1 --greedy -t 2 </dev/null) || { problem "failed"; return 1; }
      peak=$(($(planned resident_bytes) - peak))
      [ "$peak" -le "$of_program" ] || of_program=$peak
    done
    programs[$1]=$of_program
  fi
  of_program=${programs[$1]}
}

ids() { seq -s, 5 $(($1 + 4)); } # ids N

# holds_rows MODEL ROWS PROMPT NEW CACHE...: beams behind one prompt.
holds_rows() {
  local model=$1 rows=$2 prompt=$3 new=$4 beams=(--greedy)
  shift 4
  note_program "$model" || return
  expect 0 inspect "$model" --json --context "$prompt" --rows "$rows" --new-tokens "$new" --cache "$@" -t 2 || return
  [ "$rows" = 1 ] || beams=(--num-beams "$rows" --num-beam-groups "$rows" --diversity-penalty 1.0 --num-return-sequences "$rows")
  last="mneme run $model, $rows rows, $prompt + $new tokens, $*"
  within run "$model" --ids "$(ids "$prompt")" -n "$new" --ignore-eos "${beams[@]}" --cache "$@" -t 2
}

# holds_batch MODEL SIZE PROMPT NEW CACHE...: half as many lines again as are in work at once.
holds_batch() {
  local model=$1 size=$2 prompt=$3 new=$4 i
  shift 4
  for ((i = 0; i < size + size / 2; i++)); do printf '{"ids":[%d,%s]}\n' $((5 + i % 90)) "$(ids $((prompt - 1)))"; done >"$work/batch.jsonl"
  note_program "$model" || return
  expect 0 inspect "$model" --json --context "$prompt" --batch-size "$size" --new-tokens "$new" --cache "$@" -t 2 || return
  last="mneme run --batch, $model, $size lines at once, $prompt + $new tokens, $*"
  within run "$model" --batch "$work/batch.jsonl" --batch-size "$size" -n "$new" --ignore-eos --greedy --cache "$@" -t 2
}

# holds_chat MODEL TURNS NEW CACHE...: a conversation; the plan is that of its last turn.
holds_chat() {
  local model=$1 turns=$2 new=$3 prompt i input="$work/lines"
  shift 3
  local chat=(chat "$model" --json --greedy -n "$new" --ignore-eos --no-history --cache "$@" -t 2)
  for ((i = 0; i < turns; i++)); do echo "Once upon a time there was a girl who had $i apples."; done >"$input"
  note_program "$model" && expect 0 "${chat[@]}" || return
  prompt=$(sed -nE '$s/.*"prompt_tokens":([0-9]+).*/\1/p' "$work/out")
  expect 0 inspect "$model" --json --context "$prompt" --new-tokens "$new" --cache "$@" -t 2 || return
  last="mneme chat $model, $turns turns, $prompt + $new tokens, $*"
  within "${chat[@]}"
}

# Recordings that fill what is kept of one: jfk.wav seven times.
long_recording() {
  local le i
  [ ! -f "$work/long.wav" ] || return 0
  le() { local n=$1; printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $((n & 255)) $((n >> 8 & 255)) $((n >> 16 & 255)) $((n >> 24)))"; }
  {
    printf RIFF && le $((36 + 7 * 352000)) && head -c 36 "$here/../data/audio/jfk.wav" | tail -c 28 && printf data && le $((7 * 352000))
    for ((i = 0; i < 7; i++)); do tail -c 352000 "$here/../data/audio/jfk.wav"; done
  } >"$work/long.wav"
}

# holds_recordings MODEL SIZE BEAMS NEW RECORDING CACHE...: one recording more than are transcribed together. Of a short recording less is
# kept than is planned.
holds_recordings() {
  local model=$1 size=$2 beams=$3 new=$4 recording=$5 files=() i
  shift 5
  for ((i = 0; i < size + (size > 1); i++)); do files+=("$recording"); done
  of_program=0
  expect 0 inspect "$model" --json --context 4 --batch-size "$size" --rows "$beams" --new-tokens "$new" --cache "$@" -t 2 || return
  last="mneme transcribe $model, $size of $recording at once, $beams beams, $new tokens, $*"
  within transcribe -m "$model" "${files[@]}" -n "$new" --num-beams "$beams" --batch-size "$size" --temperature 0 --cache "$@" -t 2
}

of_sanitizer() { grep -qa __sanitizer "$mneme"; }
is_long() { [ "${MNEME_LONG:-0}" = 1 ]; }
llama=$here/../data/golden/llama
whisper=$here/../data/golden/whisper

caches=(dynamic static offloaded offloaded_static sink "sliding_window --cache-config window_length=64")
llama_caches=(quantized "quantized+sink" "quantized --cache-config nbits=2,page_tokens=64" "dynamic --cache-config page_tokens=16")
sizes=("40 100 20")
batches=("12 200 20")
models=(embedded)
if is_long; then
  sizes+=("1 300 40" "8 300 40" "4 20 100")
  batches+=("1 300 40" "4 300 40" "16 20 100" "32 100 10")
  models+=("$llama" "$here/../data/golden/jamba")
  for pages in 16 64 128; do
    llama_caches+=("dynamic --cache-config page_tokens=$pages" "static --cache-config page_tokens=$pages"
      "quantized --cache-config nbits=2,page_tokens=$pages" "quantized --cache-config nbits=4,page_tokens=$pages")
  done
fi

# each FUNCTION CACHES SIZES MODEL...: every one with every other; CACHES and SIZES are names of arrays.
each() {
  local function=$1 model size cache
  local -n of_caches=$2 of_sizes=$3
  shift 3
  for model in "$@"; do
    for size in "${of_sizes[@]}"; do
      # shellcheck disable=SC2086
      for cache in "${of_caches[@]}"; do "$function" "$model" $size $cache || return; done
    done
  done
}

runs_keep_to_it() {
  if of_sanitizer; then uncounted=1; return 0; fi
  each holds_rows caches sizes "${models[@]}" && each holds_rows llama_caches sizes "$llama"
}

batches_keep_to_it() {
  if of_sanitizer; then uncounted=1; return 0; fi
  each holds_batch caches batches "${models[@]}" && each holds_batch llama_caches batches "$llama"
}

conversations_keep_to_it() {
  if of_sanitizer; then uncounted=1; return 0; fi
  local chats=("6 30")
  ! is_long || chats+=("2 60" "1 200")
  each holds_chat caches chats embedded
}

transcripts_keep_to_it() {
  if of_sanitizer; then uncounted=1; return 0; fi
  local size sizes=("2 1 20") caches=(dynamic "self=dynamic,cross=quantized")
  ! is_long || { sizes+=("1 1 60" "1 4 40" "5 1 30"); caches+=(static offloaded); }
  long_recording
  for size in "${sizes[@]}"; do
    # shellcheck disable=SC2086
    for cache in "${caches[@]}"; do holds_recordings "$whisper/tiny80" $size "$work/long.wav" $cache || return; done
    # shellcheck disable=SC2086
    ! is_long || holds_recordings "$whisper/tiny128" $size "$work/long.wav" dynamic || return
  done
  says_more=1
  for recording in jfk.wav 1272-141231-0002.flac 1272-141231-0002.mp3; do
    holds_recordings "$whisper/tiny80" 1 1 20 "$here/../data/audio/$recording" dynamic || break
    is_long || break
  done
  says_more=0
}

enough_were_held() {
  if of_sanitizer || ! is_long; then uncounted=1; return 0; fi
  last="memory.sh"
  [ "$n_held" -ge 100 ] || problem "$n_held configurations"
  echo "$n_held configurations: peaks up to $most_above thousandths above the plan, which is up to $most_below above the peak"
}

large_models_keep_to_it() {
  if of_sanitizer || [ ! -f "$smollm2" ] || ! is_long; then uncounted=1; return 0; fi
  local cache
  for cache in "${caches[@]}" quantized; do
    # shellcheck disable=SC2086
    holds_rows "$smollm2" 16 100 4 $cache && holds_batch "$smollm2" 8 60 4 $cache || return
  done
  for cache in dynamic "quantized --cache-config nbits=2,page_tokens=64"; do
    # shellcheck disable=SC2086
    holds_batch "$smollm2" 8 300 12 $cache || return
  done
  holds_chat "$smollm2" 4 12 dynamic
}

# Forty beams behind a thousand tokens.
quantizing_saves() {
  if of_sanitizer || [ ! -f "$smollm2" ] || ! is_long; then uncounted=1; return 0; fi
  local cache peaks=()
  for cache in dynamic quantized; do
    last="mneme run $smollm2, 40 rows, $cache"
    peaks+=("$("$peak_memory" "$mneme" run "$smollm2" --ids "$(seq -s, 5 1004)" -n 20 --ignore-eos --num-beams 40 --num-beam-groups 40 \
      --diversity-penalty 1.0 --num-return-sequences 40 --cache $cache -t 2)") || { problem "failed"; return; }
  done
  [ "${peaks[1]}" -lt "${peaks[0]}" ] || problem "${peaks[1]} bytes at most, dynamic ${peaks[0]}"
}

# The limit that a run needs which on_oom converts is the plan of the cache that it becomes, within a tenth on both sides.
needs_what_was_said() { # needs_what_was_said BASE POLICY CACHE...
  local base=$1 policy=$2 expected code
  shift 2
  expect 0 inspect "$smollm2" --json --context 1000 --rows 40 --new-tokens 20 --cache "$@" || return
  expected=$(planned cache_bytes)
  for code in 0 4; do
    expect $code run "$smollm2" --ids "$(ids 1000)" -n 20 --ignore-eos --num-beams 40 --num-beam-groups 40 --diversity-penalty 1.0 \
      --on-oom "$policy" --memory-limit $((base + expected * (code == 0 ? 110 : 90) / 100)) -t 2 || return
    [ $code = 4 ] || err_has "converted to '$1'" || return
  done
}

limits_are_what_was_said() {
  if of_sanitizer || [ ! -f "$smollm2" ] || ! is_long; then uncounted=1; return 0; fi
  local base
  expect 0 inspect "$smollm2" --json || return
  base=$(($(planned packed_bytes) + $(planned buffer_bytes)))
  needs_what_was_said "$base" offload offloaded && needs_what_was_said "$base" quantize quantized &&
    needs_what_was_said "$base" evict sink --cache-config window_length=384
}

figures() {
  local model=$llama
  expect 0 inspect "$model" --json --context 1000 --rows 40 --new-tokens 20
  json 'j["implementation"] == "dynamic" and (j["context"], j["rows"], j["new_tokens"]) == (1000, 40, 20)'
  json 'j["cache_bytes"] == max(j["prompt_bytes"], j["rows_bytes"]) and j["resident_bytes"] > j["cache_bytes"]'
  expect 0 inspect "$model" --context 1000 --rows 40
  out_has 'resident_bytes +[0-9.]+ MiB'
  expect 2 inspect "$model" --rows 40 --cache dynamics
  err_has "cache implementation is 'dynamics'"
  expect 2 inspect "$model" --rows 0
  err_has "rows: 0 is out of range; allowed: 1 to"
  expect 0 inspect "$model" --json --batch-size 3 --context 100
  json 'j["batch_size"] == 3 and j["rows"] == 1'
  expect 2 inspect "$model" --batch-size 65537
  err_has "batch-size: 65537 is out of range; allowed: 1 to 65536"
}

check "figures of a plan" figures
check "runs keep to the plan" runs_keep_to_it
check "batches keep to the plan" batches_keep_to_it
check "conversations keep to the plan" conversations_keep_to_it
check "transcripts keep to the plan" transcripts_keep_to_it
check "enough was measured" enough_were_held
check "a large model's runs keep to it" large_models_keep_to_it
check "memory limits of on_oom are those of the plan" limits_are_what_was_said
check "quantizing saves memory of the process" quantizing_saves
finish
