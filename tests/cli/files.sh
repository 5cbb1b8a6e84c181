#!/usr/bin/env bash
# Files and the system: closed streams, modes, links, paths that are no regular file, paths in messages.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
story="Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day she saw a big red ball in the tall grass and ran to it as fast as she could, for nobody was there. "
text=$work/text
printf '%s' "$story$story$story" >"$text"
offloaded=(run embedded -f "$text" --raw -n 40 -t 1 --cache offloaded)

# The bytes of a saved cache without the moment of saving and the sum of the head that has it.
still() { sed -E 's/"mneme.sum":"[0-9a-f]+"/"mneme.sum":""/; s/"created":"[^"]*"/"created":""/' "$1"; }

# Output to a closed stream is discarded and never written to another file.
closed_streams() {
  local closed code
  expect 0 "${offloaded[@]}" --save-cache "$work/whole"
  still "$work/whole" >"$work/wanted"
  for closed in '<&-' '>&-' '<&- >&-' '2>&-' '<&- 2>&-' '>&- 2>&-' '<&- >&- 2>&-'; do
    last="${offloaded[*]} $closed"
    code=0
    rm -f "$work/saved"
    : >"$work/out"
    : >"$work/err"
    eval '"$mneme" "${offloaded[@]}" --save-cache "$work/saved" </dev/null >"$work/out" 2>"$work/err"' "$closed" || code=$?
    [ $code = 0 ] || problem "exit code $code"
    [ -e "$work/saved" ] || problem "no cache was saved"
    still "$work/saved" | cmp -s - "$work/wanted" || problem "the saved cache differs"
    "$mneme" cache verify "$work/saved" >/dev/null || problem "the saved cache is damaged"
  done
}

mode_is() { [ "$(stat -c %a "$2")" = "$1" ] || problem "$2 has mode $(stat -c %a "$2"), expected $1"; }

what_is_saved_is_private() {
  local mask
  for mask in 000 022; do
    rm -rf "$work"/p-*
    umask $mask
    expect 0 run embedded "Once" -n 2 --save-cache "$work/p-cache" --logits-out "$work/p-logits"
    expect 0 run embedded "Once" -n 2 --cache-dir "$work/p-dir/below"
    printf '/save %s\nOnce upon\n/save\n' "$work/p-chat" >"$work/lines"
    XDG_STATE_HOME=$work/p-state input=$work/lines expect 0 chat embedded -n 3
    expect 0 cache cp "$work/p-cache" "$work/p-copy"
    expect 0 cache convert -m embedded "$work/p-cache" "$work/p-legacy" --legacy
    umask 022
    mode_is 600 "$work/p-cache"
    mode_is 600 "$work/p-logits"
    mode_is 600 "$work/p-copy"
    mode_is 600 "$work/p-legacy"
    mode_is 700 "$work/p-dir"
    mode_is 700 "$work/p-dir/below"
    mode_is 600 "$work"/p-dir/below/*.safetensors
    mode_is 700 "$work/p-chat"
    mode_is 600 "$work/p-chat/conversation.json"
  done
  chmod 644 "$work/p-cache"
  expect 0 run embedded "Once" -n 3 --save-cache "$work/p-cache"
  mode_is 644 "$work/p-cache"
  mkdir -p "$work/p-real"
  ln -s p-real/cache "$work/p-link"
  expect 0 run embedded "Once" -n 3 --save-cache "$work/p-link"
  [ -L "$work/p-link" ] || problem "the link is gone"
  mode_is 600 "$work/p-real/cache"
  expect 0 cache verify "$work/p-link"
}

# once PATH: the one line on stderr names it once.
once() {
  err_is_sentence
  [ "$(grep -oF -- "$1" "$work/err" | wc -l)" = 1 ] || problem "'$1' is not named once"
}

# refused_at_once EXIT THING ARGUMENTS...: the command does not wait, and names the thing.
refused_at_once() {
  local wanted=$1 thing=$2 code=0
  shift 2
  last="mneme $*"
  timeout 600 "$mneme" "$@" </dev/null >"$work/out" 2>"$work/err" || code=$?
  [ $code = "$wanted" ] || problem "exit code $code, expected $wanted"
  once "$thing"
}

# A pipe that nobody writes, a folder, a device.
what_is_no_file() {
  local thing code
  mkdir -p "$work/n-folder"
  mkfifo "$work/n-pipe.gguf"
  for thing in "$work/n-pipe.gguf" "$work/n-folder" /dev/zero; do
    refused_at_once 3 "$thing" run -m "$thing" hello
    refused_at_once 1 "$thing" cache verify "$thing"
    refused_at_once 1 "$thing" cache show "$thing"
    for flag in --load-cache --generation-config --save-cache --logits-out; do
      refused_at_once 1 "$thing" run embedded hello $flag "$thing"
    done
  done
  # As a text a pipe is welcome: here one that nobody writes, and one that is written.
  last="-f pipe"
  code=0
  timeout 600 "$mneme" run embedded -f "$work/n-pipe.gguf" -n 2 </dev/null >"$work/out" 2>"$work/err" || code=$?
  [ $code = 2 ] || problem "exit code $code"
  err_has 'is empty'
  expect 1 run embedded -f /dev/zero
  once /dev/zero
  expect 0 run embedded "Once upon a time" -n 8
  cp "$work/out" "$work/first"
  last="-f <(...)"
  "$mneme" run embedded -n 8 -f <(sleep 0.2; printf 'Once upon '; sleep 0.1; printf 'a time') >"$work/out" 2>"$work/err" || problem "exit code $?"
  cmp -s "$work/out" "$work/first" || problem "differs"
}

# ends WANTED ARGUMENTS...: the command ends by itself, with this exit code.
ends() {
  local wanted=$1 code=0
  shift
  last="mneme $*"
  timeout 60 "$mneme" "$@" </dev/null >"$work/out" 2>"$work/err" || code=$?
  [ $code = "$wanted" ] || problem "exit code $code, expected $wanted"
}

# In the place of each file that a folder has or may have.
pipes_in_folders() {
  local file folder=$work/f-model
  for file in config.json generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json \
    chat_template.jinja model.safetensors model.safetensors.index.json vocab.json merges.txt tokenizer.model; do
    rm -rf "$folder"
    cp -r "$here/../../models-embedded/stories260K" "$folder"
    case $file in # files that others stand in for
    *index.json) rm "$folder/model.safetensors" ;;
    vocab.json | merges.txt | added_tokens.json)
      rm "$folder/tokenizer.json"
      printf '#version: 0.2\n' >"$folder/merges.txt"
      printf '{"a":0,"b":1}' >"$folder/vocab.json"
      ;;
    tokenizer.model) rm "$folder/tokenizer.json" ;;
    special*) rm -f "$folder/tokenizer_config.json" ;;
    esac
    rm -f "$folder/$file"
    mkfifo "$folder/$file"
    ends 3 run "$folder" hello -n 2
    once "$folder/$file"
    err_has 'is a pipe, not a regular file'
  done
  expect 0 run embedded "Once upon a time" -n 4 --cache-dir "$work/f-caches"
  mkfifo "$work/f-caches/pipe.safetensors"
  ends 0 run embedded "Once upon a time" -n 4 --cache-dir "$work/f-caches"
  ends 1 cache verify "$work"/f-caches/*.safetensors
  err_has 'is a pipe, not a regular file'
  for file in conversation.json '*.safetensors'; do
    rm -rf "$work/f-chat"
    printf 'Hello\n' | "$mneme" chat embedded -n 4 --save "$work/f-chat" >"$work/out" 2>"$work/err" || problem "exit code $?"
    # shellcheck disable=SC2086
    file=$(cd "$work/f-chat" && echo $file)
    rm "$work/f-chat/$file"
    mkfifo "$work/f-chat/$file"
    ends 1 chat embedded --load "$work/f-chat"
    err_has 'is a pipe, not a regular file'
  done
}

paths_are_named_once() {
  local f=$work/o.safetensors
  expect 0 run embedded "Once upon a time" -n 4 --save-cache "$f"
  expect 1 run embedded hello --load-cache "$work/o-absent"
  once "$work/o-absent"
  printf 'x' >"$work/o-short"
  expect 6 run embedded hello --load-cache "$work/o-short"
  once "$work/o-short"
  cp "$f" "$work/o-damaged"
  printf '\1' | dd of="$work/o-damaged" bs=1 seek=$(($(stat -c %s "$f") - 3)) conv=notrunc status=none
  expect 6 run embedded hello --load-cache "$work/o-damaged"
  once "$work/o-damaged"
  expect 6 cache verify "$work/o-damaged"
  once "$work/o-damaged"
  expect 6 run "$here/../data/golden/llama" --ids 1,2 --load-cache "$f"
  once "$f"
  expect 6 run embedded hello --load-cache "$f" --cache sink
  once "$f"
  expect 3 run "$work/o-absent/" hello
  once "$work/o-absent/"
  mkdir -p "$work/o-model"
  printf '{' >"$work/o-model/config.json"
  expect 3 run "$work/o-model" hello
  once "$work/o-model"
  printf '{"model_type": "llama"}' >"$work/o-model/config.json"
  expect 3 run "$work/o-model" hello
  once "$work/o-model"
  printf 'GGUF' >"$work/o.gguf"
  expect 3 run "$work/o.gguf" hello
  once "$work/o.gguf"
  printf '{"a":' >"$work/o.json"
  expect 2 run embedded hello --generation-config "$work/o.json"
  once "$work/o.json"
  expect 1 run embedded hello --save-cache "$work/o-none/file"
  once "$work/o-none/file"
}

# The address space ends: memory, not an unreadable file.
mappings_without_room() {
  local code=0
  truncate -s 3G "$work/m.gguf"
  last="a model of 3 GiB in 1 GiB of address space"
  (
    ulimit -v 1048576
    exec "$mneme" run "$work/m.gguf" hello -t 1
  ) </dev/null >"$work/out" 2>"$work/err" || code=$?
  if [ ! -s "$work/err" ] || grep -qi sanitizer "$work/err"; then uncounted=1; return 0; fi
  [ $code = 4 ] || problem "exit code $code, expected 4"
  once "$work/m.gguf"
}

# Saved caches that are taken without being named.
only_own_files_are_reused() {
  local d=$work/r-dir run=(run embedded "Once upon a time" -n 4 --cache-dir "$work/r-dir" --json)
  expect 0 "${run[@]}"
  expect 0 "${run[@]}"
  json 'j["usage"]["cached_tokens"] > 0'
  err_empty
  chmod 666 "$d"/*.safetensors
  expect 0 "${run[@]}"
  json 'j["usage"]["cached_tokens"] == 0'
  chmod 600 "$d"/*.safetensors
  chmod 777 "$d"
  expect 0 "${run[@]}"
  json 'j["usage"]["cached_tokens"] == 0'
  err_has "^mneme: warning: no cache was reused from '$d' or kept there: the folder belongs to another user, or others may write it$"
  chmod 755 "$d"
  expect 0 "${run[@]}"
  json 'j["usage"]["cached_tokens"] > 0'
}

keys() {
  local d=$work/k-dir f=$work/k-cache run=(run embedded "Once upon a time" -n 4 --json)
  head -c 32 /dev/urandom >"$work/key"
  printf 'another key, sixteen bytes and more' >"$work/other-key"
  cp "$work/key" "$work/open-key"
  printf short >"$work/short-key"
  chmod 600 "$work"/*key
  chmod 644 "$work/open-key"
  expect 0 "${run[@]}" --cache-dir "$d"
  expect 0 "${run[@]}" --cache-dir "$d" --cache-key-file "$work/key"
  json 'j["usage"]["cached_tokens"] == 0'
  rm -rf "$d"
  expect 0 "${run[@]}" --cache-dir "$d" --cache-key-file "$work/key"
  expect 0 "${run[@]}" --cache-dir "$d" --cache-key-file "$work/key"
  json 'j["usage"]["cached_tokens"] > 0'
  expect 0 "${run[@]}" --cache-dir "$d" --cache-key-file "$work/other-key"
  json 'j["usage"]["cached_tokens"] == 0'
  expect 0 "${run[@]}" --save-cache "$f" --cache-key-file "$work/key"
  expect 0 cache verify "$f"
  expect 0 cache verify "$f" --cache-key-file "$work/key"
  expect 6 cache verify "$f" --cache-key-file "$work/other-key"
  once "$f"
  expect 6 "${run[@]}" --load-cache "$f" --cache-key-file "$work/other-key"
  once "$f"
  expect 0 "${run[@]}" --load-cache "$f" --cache-key-file "$work/key"
  # The file holds the value that Python's hmac computes.
  if [ $have_python = 1 ]; then
    python3 - "$f" "$work/key" <<'PYTHON' || problem "another HMAC"
import hashlib, hmac, re, sys
data = bytearray(open(sys.argv[1], "rb").read())
found = re.search(rb'"mneme.sum":"([0-9a-f]{16})","mneme.version":"1","mneme.mac":"([0-9a-f]{64})"', data)
wanted = found.group(2).decode()
for group in 1, 2: data[found.start(group):found.end(group)] = b"0" * len(found.group(group))
sys.exit(hmac.new(open(sys.argv[2], "rb").read(), bytes(data), hashlib.sha256).hexdigest() != wanted)
PYTHON
  fi
  # Copies keep it, made anew with the key; conversions carry one of their own.
  expect 0 cache cp "$f" "$work/k-copy"
  expect 0 cache cp "$f" "$work/k-packed" --zstd --cache-key-file "$work/key"
  expect 0 cache convert -m embedded "$f" "$work/k-sink" --cache sink --cache-key-file "$work/key"
  expect 0 cache verify "$work/k-copy" "$work/k-packed" "$work/k-sink" --cache-key-file "$work/key"
  expect 0 cache cp "$f" "$work/k-bare" --zstd
  expect 6 cache verify "$work/k-bare" --cache-key-file "$work/key"
  err_has 'saved without a key'
  expect 6 cache cp "$f" "$work/k-none" --zstd --cache-key-file "$work/other-key"
  [ ! -e "$work/k-none" ] || problem "a copy was made"
  # Key files.
  expect 2 "${run[@]}" --cache-dir "$d" --cache-key-file "$work/open-key"
  once "$work/open-key"
  err_has 'mode 0644: others may use it; allowed: 0600 or 0400'
  expect 2 "${run[@]}" --save-cache "$f" --cache-key-file "$work/short-key"
  err_has 'has 5 bytes, allowed: 16 to 4096'
  expect 1 cache verify "$f" --cache-key-file "$work/absent"
  once "$work/absent"
  mkfifo "$work/key-pipe"
  expect 1 cache verify "$f" --cache-key-file "$work/key-pipe"
  once "$work/key-pipe"
}

# Values of generation_config.json that a field cannot take count where they have an effect, and a flag replaces them.
values_of_generation_config() {
  local m=$work/values wanted server i
  mkdir -p "$m"
  cp "$here"/../../models-embedded/stories260K/{config,tokenizer}.json "$here"/../../models-embedded/stories260K/model.safetensors "$m"
  expect 0 run "$m" --raw Once -n 6
  wanted=$(cat "$work/out")
  while read -r has warning; do
    echo "$has" >"$m/generation_config.json"
    expect 0 run "$m" --raw Once -n 6
    out_is "$wanted"
    err_has "^mneme: warning: generation_config.json has fields that have no effect here: $warning\$"
    expect 0 score "$m" -p Once
    err_empty
  done <<'.'
{"temperature":0.0,"do_sample":false} temperature
{"top_k":-1} top_k
{"pad_token_id":-1} pad_token_id -1
{"eos_token_id":-1} eos_token_id -1
.
  echo '{"temperature": 0, "do_sample": true}' >"$m/generation_config.json"
  expect 2 run "$m" --raw Once -n 6
  err_has '/generation_config.json: temperature is 0, allowed: 1e-6 to 1e6$'
  for how in "--temperature 0.9 --seed 1" "--temperature 0" --greedy --no-do-sample; do
    # shellcheck disable=SC2086 # words
    expect 0 run "$m" --raw Once -n 6 $how
    err_empty
  done
  expect 0 inspect "$m"
  last="mneme serve $m"
  background serve "$m" --unix "$work/socket"
  server=$!
  for ((i = 0; i < 6000; i++)); do ! grep -q listening "$work/err" || break; sleep 0.05; done
  kill -INT $server
  wait $server || problem "exit code $?"
  err_has 'warning: .*temperature is 0, allowed: 1e-6 to 1e6; requests without a value of their own are refused'
}

check "closed streams are never files" closed_streams
check "values of generation_config.json" values_of_generation_config
check "what is saved is private" what_is_saved_is_private
check "what is no file ends at once" what_is_no_file
check "a pipe among the files of a folder ends at once" pipes_in_folders
check "paths are named once" paths_are_named_once
check "a mapping without room is out of memory" mappings_without_room
check "only one's own files are reused" only_own_files_are_reused
check "keyed checksums" keys
finish
