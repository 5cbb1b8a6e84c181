#!/usr/bin/env bash
# `mneme cache`: saved caches as files.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
make_cache=$2

# make FILE [KEY=VALUE...]
make() { "$make_cache" "$@" || problem "make_cache $*"; }

# damage FILE OFFSET: changes one byte; negative: from the end.
damage() {
  local at=$2 old
  [ "$at" -ge 0 ] || at=$(($(stat -c %s "$1") + at))
  old=$(od -An -tu1 -j "$at" -N 1 "$1")
  printf "\\x$(printf %02x $((old ^ 1)))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}

lists() {
  local folder=$work/list
  mkdir -p "$folder/sub"
  make "$folder/b.safetensors"
  make "$folder/a cache" tokens=12 "strategy=sink" model=
  make "$folder/cut"
  truncate -s 3000 "$folder/cut"
  cp "$folder/b.safetensors" "$folder/c.mneme-part"
  cp "$here/../data/golden/llama/model.safetensors" "$folder/model.safetensors"
  echo text >"$folder/text"
  mkfifo "$folder/pipe"
  expect 0 cache ls "$folder" --json
  err_empty
  json '[c["file"] for c in j["caches"]] == ["a cache", "b.safetensors", "c.mneme-part", "cut"]'
  json 'j["folder"].endswith("/list")'
  json 'j["caches"][1] == {"file": "b.safetensors", "bytes": j["caches"][2]["bytes"], "tokens": 3, "strategy": "dynamic", "model": "stories260K", "created": "2025-01-02T03:04:05Z", "error": None}'
  json 'j["caches"][0]["tokens"] == 12 and j["caches"][0]["strategy"] == "sink" and j["caches"][0]["model"] == ""'
  json '"killed save" in j["caches"][2]["error"] and j["caches"][2]["tokens"] is None'
  json '"truncated" in j["caches"][3]["error"] and j["caches"][3]["bytes"] == 3000'
  expect 0 cache ls "$folder"
  out_has '^ *b\.safetensors +[0-9]+ B +3 +dynamic +stories260K +2025-01-02T03:04:05Z'
  last="ls in the folder"
  (cd "$folder" && "$mneme" cache ls) >"$work/out" 2>"$work/err" || problem "exit code"
  out_has '^ *b\.safetensors '
  expect 0 cache ls "$folder/sub"
  out_empty
  err_has "no saved caches in"
  expect 0 cache ls "$folder/sub" --json
  json 'j["caches"] == []'
  err_empty
  expect 1 cache ls "$folder/absent"
  err_is_sentence
  expect 1 cache ls "$folder/text"
  err_is_sentence
}

shows() {
  make "$work/s" "note=two
lines" $'evil=\e[31mred\xc2\x9b'
  expect 0 cache show "$work/s" --json
  err_empty
  json 'j["version"] == 1 and j["members"]["strategy"] == {"implementation": "dynamic", "dtype": "bf16"} and j["members"]["tokens"] == 3'
  json 'j["members"]["note"] == "two\nlines" and j["members"]["evil"] == "\x1b[31mred\x9b" and j["members"]["mneme.kind"] == "cache"'
  json '[e["name"] for e in j["entries"]] == ["ids", "keys", "values"]'
  json '{k: v for k, v in j["entries"][1].items() if k != "checksum"} == {"name": "keys", "type": "BF16", "shape": [2, 100, 128], "bytes": 51200, "stored_bytes": 51200, "compression": None}'
  json 'all_of(len(e["checksum"]) == 16 for e in j["entries"])'
  expect 0 cache show "$work/s"
  out_has '^ *keys +BF16 +2 x 100 x 128 +51200 B +51200 B'
  out_has '^ *model +stories260K$'
  out_has '^ *note +two\\nlines$'
  expect 6 cache show "$here/lib.sh"
  err_is_sentence
  expect 6 cache show "$here/../data/golden/llama/model.safetensors" --json
  err_has "no saved cache"
  json 'j["error"]["code"] == "cache_refused"'
  expect 1 cache show "$work/absent"
  err_is_sentence
  damage "$work/s" 100
  expect 6 cache show "$work/s"
  err_has "the header is damaged"
}

verifies() {
  local at
  make "$work/v1"
  make "$work/v2"
  expect 0 cache verify "$work/v1" "$work/v2"
  err_empty
  [ "$(grep -c ': good, 3 entries' "$work/out")" = 2 ] || problem "not two good ones"
  expect 0 cache verify --json "$work/v1" "$work/v2"
  json '[x["valid"] for x in all] == [True, True] and all[1]["entries"] == 3 and all[0]["bytes"] > 100000'
  # The last byte, one in the middle, a checksum.
  for at in -1 50000 2000 40; do
    cp "$work/v1" "$work/v3"
    damage "$work/v3" $at
    expect 6 cache verify "$work/v3"
    err_is_sentence
    err_has "v3: .*damaged"
    out_empty
  done
  expect 6 cache verify --json "$work/v1" "$work/v3" "$work/absent" "$work/v2"
  json '[("error" in x) for x in all] == [False, True, True, False] and all[1]["error"]["code"] == "cache_refused" and "v3" in all[1]["error"]["message"]'
  [ "$(wc -l <"$work/err")" = 2 ] || problem "not two sentences"
  expect 1 cache verify "$work/absent" "$work/v1"
  expect 6 cache verify /dev/null "$work/v3"
}

copies() {
  mkdir -p "$work/to"
  make "$work/c1"
  expect 0 cache cp "$work/c1" "$work/c2"
  out_empty
  err_empty
  cmp -s "$work/c1" "$work/c2" || problem "the copy differs"
  expect 0 cache cp "$work/c1" "$work/to" --zstd -v
  err_has "copied to"
  expect 0 cache show "$work/to/c1" --json
  json 'j["entries"][1]["compression"] == "zstd" and j["entries"][1]["shape"] == [2, 100, 128] and j["entries"][1]["stored_bytes"] < 20000'
  json 'j["entries"][2]["compression"] is None and j["members"]["tokens"] == 3'
  [ "$(stat -c %s "$work/to/c1")" -lt $(($(stat -c %s "$work/c1") - 30000)) ] || problem "the compressed copy is not smaller"
  expect 0 cache verify "$work/to/c1"
  expect 0 cache cp --plain "$work/to/c1" "$work/c3" --json
  json 'j["file"].endswith("/c3") and j["bytes"] > 100000'
  cmp -s "$work/c1" "$work/c3" || problem "compressed and expanded, it is another file"
  # Onto itself, and over another one.
  expect 0 cache cp "$work/c2" "$work/c2" --zstd
  cmp -s "$work/c2" "$work/to/c1" || problem "not the compressed file"
  expect 2 cache cp "$work/c1" "$work/c4" --zstd --plain
  err_is_sentence
  damage "$work/c1" 60000
  for flag in --zstd --plain --json; do
    expect 6 cache cp "$work/c1" "$work/c4" "$flag"
    err_is_sentence
    [ ! -e "$work/c4" ] || problem "a damaged cache was copied"
  done
  expect 1 cache cp "$work/c3" "$work/absent/c4"
  err_is_sentence
  expect 1 cache cp "$work/absent" "$work/c4"
  [ -z "$(find "$work" -maxdepth 1 -name '*.mneme-part')" ] || problem "a temporary file is left"
}

removes() {
  make "$work/r1"
  make "$work/r2"
  make "$work/r3"
  truncate -s 1000 "$work/r3"
  echo text >"$work/text"
  expect 6 cache rm "$work/r1" "$work/text"
  err_is_sentence
  err_has "'.*/text' is not a saved cache; nothing was removed"
  expect 1 cache rm "$work/r1" "$work/absent"
  err_has "nothing was removed"
  expect 1 cache rm "$work/to"
  [ -e "$work/r1" ] && [ -e "$work/text" ] || problem "something was removed"
  expect 0 cache rm "$work/r1" "$work/r3"
  out_empty
  err_empty
  [ ! -e "$work/r1" ] && [ ! -e "$work/r3" ] || problem "something is left"
  expect 0 cache rm "$work/r2" --json
  json 'len(j["removed"]) == 1'
}

usage() {
  expect 2 cache
  err_is_sentence
  err_has "ls, show, verify, cp, rm"
  expect 2 cache lst
  err_has "did you mean ls\?"
  expect 2 cache frobnicate
  err_has "there are ls, show"
  expect 2 cache show
  err_has "usage: mneme cache show FILE"
  expect 2 cache show a b
  expect 2 cache cp a
  expect 2 cache rm
  expect 2 cache verify
  expect 2 cache ls a b --json
  json 'j["error"]["type"] == "invalid_request_error"'
  expect 2 cache ls --model x
  err_is_sentence
  expect 0 cache --help
  out_has 'mneme cache verify'
  if grep -q -e --model "$work/out"; then problem "a flag that it does not take"; fi
}

# From the format's description, and through the Python package where there is one.
python_reads_them() {
  if [ $have_python = 0 ]; then uncounted=1; return 0; fi
  make "$work/p1"
  expect 0 cache cp "$work/p1" "$work/p2" --zstd
  python3 - "$work/p1" "$work/p2" <<'PYTHON' || problem "Python reads something else"
import json, struct, sys
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        data = f.read()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    metadata = header.pop("__metadata__")
    assert all(isinstance(v, str) for v in metadata.values())
    assert metadata["mneme.version"] == "1" and metadata["tokens"] == "3"
    at = 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        size = {"I32": 4, "BF16": 2, "F32": 4, "U8": 1}[t["dtype"]]
        for d in t["shape"]:
            size *= d
        assert begin == at and end - begin == size, name
        at = end
        assert name.startswith("mneme.fill.") or (8 + n + begin) % 64 == 0
    assert 8 + n + at == len(data)
    begin, end = header["ids"]["data_offsets"]
    assert struct.unpack("<3i", data[8 + n + begin:8 + n + end]) == (1, 403, 407)
    try:
        from safetensors import deserialize, safe_open
    except ImportError:
        continue
    tensors = dict(deserialize(data))
    assert tensors["ids"]["shape"] == [3] and struct.unpack("<3i", bytes(tensors["ids"]["data"])) == (1, 403, 407)
    assert len(tensors["values"]["data"]) == 51200
    with safe_open(path, framework="numpy") as f:
        assert f.metadata()["model"] == "stories260K" and set(f.keys()) == set(header)
        assert f.get_tensor("ids").tolist() == [1, 403, 407] and f.get_tensor("values").shape == (100, 128)
PYTHON
}

# Between strategies and to the legacy form and back; generation continues with the same text.
converts() {
  expect 0 run embedded "Once upon a time" --raw -n 20 --save-cache "$work/k1"
  expect 0 run embedded --raw -n 30 --load-cache "$work/k1"
  cp "$work/out" "$work/wanted"
  expect 0 cache convert "$work/k1" "$work/k2" -m embedded --legacy
  err_has "25 tokens of 'dynamic' written"
  for strategy in dynamic static offloaded; do
    expect 0 cache convert "$work/k2" "$work/k3" -m embedded --cache $strategy --max-cache-len 200
    expect 0 run embedded --raw -n 30 --load-cache "$work/k3"
    cmp -s "$work/out" "$work/wanted" || problem "another continuation through $strategy"
  done
  expect 0 cache convert "$work/k1" "$work/k3" -m embedded --cache offloaded --zstd
  expect 0 cache show "$work/k3" --json
  json 'j["members"]["strategy"]["implementation"] == "offloaded"'
  expect 0 run embedded --raw -n 30 --load-cache "$work/k3"
  cmp -s "$work/out" "$work/wanted" || problem "another continuation when offloaded"
  expect 0 cache convert "$work/k1" "$work/k3" -m embedded --cache sink --cache-config window_length=100
  expect 2 cache convert "$work/k1" "$work/k4" -m embedded --cache quantized
  expect 2 cache convert "$work/k1" "$work/k4" -m embedded --ids 1,2
  expect 2 cache convert "$work/k2" "$work/k4" -m embedded --row 1
  err_has 'row is 1, the file has 1'
  expect 2 cache convert "$work/k2" "$work/k4" -m embedded --ids 1,2
  expect 6 cache convert "$here/lib.sh" "$work/k4" -m embedded
  expect 1 cache convert "$work/absent" "$work/k4" -m embedded
  [ ! -e "$work/k4" ] || problem "a file after a failure"
  if [ $have_python = 0 ]; then uncounted=1; return 0; fi
  python3 - "$work/k2" <<'PYTHON' || problem "the legacy form is not as it is said to be"
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + n])
header.pop("__metadata__", None)
assert set(header) == {"ids", "attention_mask"} | {f"{s}.{i}" for s in ("key", "value") for i in range(5)}
assert all(t["shape"] == [1, 4, 25, 8] for name, t in header.items() if "." in name)
assert header["attention_mask"]["shape"] == [1, 25]
assert header["ids"]["shape"] == [1, 25] and header["ids"]["dtype"] == "I32"
PYTHON
}

# ---- caches of runs ----

tiny=$here/../data/golden/llama
prompt=$(seq -s, 3 92)

# An answer in two halves, the cache saved between them, equals one in one piece; for every kind of cache.
runs_go_on() {
  local cache config n=0
  while read -r cache config; do
    n=$((n + 1))
    expect 0 run "$tiny" --ids "$prompt" -n 24 --ignore-eos --json --cache "$cache" --cache-config "$config"
    cp "$work/out" "$work/whole"
    rm -f "$work/half"
    expect 0 run "$tiny" --ids "$prompt" -n 12 --ignore-eos --json --cache "$cache" --cache-config "$config" --save-cache "$work/half"
    cp "$work/out" "$work/first"
    expect 0 cache verify "$work/half"
    expect 0 run "$tiny" -n 12 --ignore-eos --json --load-cache "$work/half" --max-cache-len 200
    json "j['sequences'][0]['ids'] == json.load(open('$work/whole'))['sequences'][0]['ids'][12:]"
    json "j['cache']['implementation'] == '$cache' and j['usage']['cached_tokens'] == 102 == j['usage']['prompt_tokens']"
    # The same with the strategy given.
    expect 0 run "$tiny" -n 12 --ignore-eos --json --load-cache "$work/half" --cache "$cache" --cache-config "$config" --zstd --save-cache "$work/more"
    json "j['sequences'][0]['ids'] == json.load(open('$work/whole'))['sequences'][0]['ids'][12:]"
    expect 0 cache verify "$work/more"
  done <<'CASES'
dynamic
static max_cache_len=150
offloaded
quantized nbits=4,residual_length=16,page_tokens=16
quantized backend=quanto,nbits=4,residual_length=8,page_tokens=16
sink window_length=50,page_tokens=4
quantized+sink+offloaded window_length=64,page_tokens=16
CASES
  [ $n = 7 ] || problem "$n cases were run"
}

# The command chooses a model's calibration and shows its folder; saved caches continue only with their own calibration.
calibrations_are_chosen() {
  local model=$here/../data/golden/llama ids folder=$work/calibrations file
  ids=$(awk 'BEGIN { for (i = 0; i < 400; i++) printf "%s%d", i ? "," : "", (i * 7 + i % 5) % 64 }')
  local run=(run "$model" --ids "$ids" -n 2 --cache quantized --cache-config nbits=2,residual_length=0)
  MNEME_CALIBRATIONS=$folder expect 0 cache calibrate "$model" --ids "$ids"
  file=$(find "$folder" -name '????????????????.safetensors')
  [ -f "$file" ] || problem "no calibration is written to $folder"
  MNEME_CALIBRATIONS=$folder expect 0 "${run[@]}" --save-cache "$work/calibrated"
  MNEME_CALIBRATIONS=$folder expect 0 "${run[@]}" --save-cache "$work/bare" --calibration none
  MNEME_CALIBRATIONS=$work expect 0 "${run[@]}" --save-cache "$work/named" --calibration "$file"
  MNEME_CALIBRATIONS='' XDG_DATA_HOME=$work expect 0 "${run[@]}" --save-cache "$work/elsewhere"
  for name in calibrated bare named elsewhere; do
    expect 0 cache show "$work/$name" --json
    cp "$work/out" "$work/$name.json"
  done
  json '(lambda of: of("calibrated") == of("named") != "" and of("bare") == of("elsewhere") == "")(lambda name: json.load(open("'"$work"'/" + name + ".json"))["members"]["strategy"]["calibration"])'
  MNEME_CALIBRATIONS=$folder expect 0 run "$model" -n 2 --load-cache "$work/calibrated"
  MNEME_CALIBRATIONS=$folder expect 6 run "$model" -n 2 --load-cache "$work/calibrated" --calibration none
  err_is_sentence
  err_has "quantized with another calibration"
  expect 1 "${run[@]}" --calibration "$work/absent"
  err_is_sentence
  err_has "no calibration '$work/absent'"
  MNEME_CALIBRATIONS=$folder expect 0 run "$model" --print-config --json
  json 'j["calibration"] == {"value": "'"$folder"'", "origin": "environment"}'
  MNEME_CALIBRATIONS='' XDG_DATA_HOME=/d expect 0 run "$model" --print-config --json
  json 'j["calibration"] == {"value": "/d/mneme/calibrations", "origin": "default"}'
  MNEME_CALIBRATIONS=$folder expect 0 run "$model" --print-config --json --calibration "$file"
  json 'j["calibration"] == {"value": "'"$file"'", "origin": "flag"}'
}

# `pack` writes what the next command maps.
packed_weights_are_mapped() {
  local model=$here/../data/golden/llama folder=$work/packed run
  run=(run "$model" --ids 3,4,5 -n 6)
  expect 0 "${run[@]}" -v
  err_has " loaded in "
  cp "$work/out" "$work/wanted"
  MNEME_PACKED=$folder expect 0 pack "$model" --json
  json 'j["packed_dir"] == "'"$folder"'" and j["packed_bytes"] > 0 and j["compute_type"] == "f32"'
  MNEME_PACKED=$folder expect 0 "${run[@]}" -v
  err_has " packed weights mapped in "
  cmp -s "$work/out" "$work/wanted" || problem "mapped weights give other tokens"
  expect 0 "${run[@]}" -v --packed-dir "$folder"
  err_has " packed weights mapped in "
  for other in --packed-dir=none --compute-type=bf16 "--packed-dir=$work/absent"; do
    MNEME_PACKED=$folder expect 0 "${run[@]}" -v "$other"
    err_has " loaded in "
  done
  printf x | dd of="$(find "$folder" -name '*.safetensors')" bs=1 seek=5000 conv=notrunc status=none
  MNEME_PACKED=$folder expect 0 "${run[@]}" -v
  err_has " loaded in "
  cmp -s "$work/out" "$work/wanted" || problem "a damaged file changes the tokens"
  MNEME_PACKED=$folder expect 0 pack "$model"
  MNEME_PACKED=$folder expect 0 "${run[@]}" -v
  err_has " packed weights mapped in "
  MNEME_PACKED=$folder expect 0 run "$model" --print-config --json
  json 'j["packed_dir"] == {"value": "'"$folder"'", "origin": "environment"}'
  expect 2 pack "$model" --packed-dir none
  err_is_sentence
}

wrong_caches_are_refused() {
  expect 0 run "$tiny" --ids "$prompt" -n 2 --save-cache "$work/good"
  expect 6 run embedded -n 2 --load-cache "$work/good"
  err_is_sentence
  err_has "another model"
  expect 6 run "$tiny" -n 2 --load-cache "$work/good" --cache quantized --json
  err_has "not the requested 'quantized'"
  json 'j["error"]["code"] == "cache_refused"'
  expect 6 run "$tiny" -n 2 --load-cache "$here/lib.sh"
  err_is_sentence
  cp "$work/good" "$work/bad"
  damage "$work/bad" -3000
  expect 6 run "$tiny" -n 2 --load-cache "$work/bad"
  err_has "bad: .*damaged"
  truncate -s 9000 "$work/bad"
  expect 6 score "$tiny" --ids 3,4 --load-cache "$work/bad"
  err_has "truncated"
  out_empty
  expect 1 run "$tiny" -n 2 --load-cache "$work/absent"
  err_is_sentence
  expect 1 run "$tiny" --ids "$prompt" -n 2 --save-cache "$work/absent/file"
  err_is_sentence
}

folders_are_used() {
  local folder=$work/folder
  expect 0 run "$tiny" --ids "$prompt" -n 5 --ignore-eos --json --cache-dir "$folder"
  json 'j["usage"]["cached_tokens"] == 0'
  expect 0 run "$tiny" --ids "$prompt,5,6" -n 5 --ignore-eos --json --cache-dir "$folder"
  json 'j["usage"]["cached_tokens"] == 90'
  expect 0 run "$tiny" --ids "$prompt,5,6,9" -n 5 --ignore-eos --json --cache-dir "$folder"
  json 'j["usage"]["cached_tokens"] == 92'
  cp "$work/out" "$work/first"
  expect 0 run "$tiny" --ids "$prompt,5,6,9" -n 5 --ignore-eos --json
  json "j['sequences'] == json.load(open('$work/first'))['sequences'] and j['usage']['cached_tokens'] == 0"
  # Another strategy and another model keep theirs beside these.
  for _ in 1 2; do
    expect 0 run "$tiny" --ids "$prompt" -n 5 --ignore-eos --json --cache-dir "$folder" --cache quantized
    cp "$work/out" "$work/quantized"
    expect 0 run embedded --ids "$prompt" -n 5 --ignore-eos --json --cache-dir "$folder"
  done
  json 'j["usage"]["cached_tokens"] == 89' # the last one's logits are wanted
  cp "$work/quantized" "$work/out"
  json 'j["usage"]["cached_tokens"] == 89'
  expect 0 cache ls "$folder" --json
  json 'len(j["caches"]) == 5 and all_of(c["error"] is None for c in j["caches"])'
}

# Two threads: each has a buffer, which a limit includes.
long_run=(run embedded --ids "$(seq -s, 3 502),$(seq -s, 3 502),$(seq -s, 3 502),$(seq -s, 3 502)" -n 20 --ignore-eos
  --max-cache-len 3000 --compute-type f32 -t 2)

# 2,020 tokens of 1,280 bytes, and room for three quarters of them.
memory_that_ends() {
  expect 0 "${long_run[@]}" --json
  cp "$work/out" "$work/first"
  expect 4 "${long_run[@]}" --json --memory-limit 3M
  err_is_sentence
  json 'j["error"]["code"] == "out_of_memory"'
  expect 4 "${long_run[@]}" --memory-limit 3M --on-oom fail
  expect 0 "${long_run[@]}" --json --memory-limit 3M --on-oom offload
  err_is_sentence
  err_has "memory ran out: the cache 'dynamic' was converted to 'offloaded'"
  json "j['sequences'] == json.load(open('$work/first'))['sequences']"
  json 'j["cache"]["implementation"] == "offloaded" and j["cache"]["original_implementation"] == "dynamic"'
  json 'j["cache"]["bytes"] > 2500000 and j["cache"]["bytes"] - j["cache"]["offloaded_bytes"] < 2100000 and j["cache"]["tokens"] == 2019'
  expect 0 "${long_run[@]}" --json --memory-limit 3M --on-oom evict
  err_has "was converted to 'sink'"
  json 'j["cache"]["original_implementation"] == "dynamic" and j["cache"]["bytes"] < 2100000 and "offloaded_bytes" not in j["cache"]'
  expect 0 "${long_run[@]}" --json --memory-limit 8M --on-oom offload
  err_empty
  json '"original_implementation" not in j["cache"] and j["cache"]["implementation"] == "dynamic"'
  # A cache that cannot be quantized fails with the original error.
  expect 4 "${long_run[@]}" --memory-limit 3M --on-oom quantize
  err_has "allowed are in use"
  expect 2 "${long_run[@]}" --on-oom pray
  err_is_sentence
}

# The policy applies to a loaded cache, too.
loaded_memory_that_ends() {
  expect 0 run embedded --ids "$prompt" -n 2 --max-cache-len 3000 --compute-type f32 --save-cache "$work/begun"
  expect 0 "${long_run[@]}" --json --memory-limit 3M --on-oom offload --load-cache "$work/begun"
  json 'j["cache"]["original_implementation"] == "dynamic" and j["usage"]["cached_tokens"] == 90'
  json "j['sequences'] == json.load(open('$work/first'))['sequences']"
}

# A file that may not grow: an error as of a full disk, and nothing is left.
files_that_may_not_grow() {
  local code=0
  last="run --save-cache, ulimit -f"
  (ulimit -f 8; "$mneme" run "$tiny" --ids "$prompt" -n 2 --save-cache "$work/limited") >"$work/out" 2>"$work/err" || code=$?
  [ $code = 1 ] || problem "exit code $code"
  err_is_sentence
  err_has "cannot write '.*limited': File too large"
  [ -z "$(find "$work" -name 'limited*')" ] || problem "a part of the file is left"
  echo old >"$work/limited"
  (ulimit -f 8; "$mneme" run "$tiny" --ids "$prompt" -n 2 --save-cache "$work/limited") >"$work/out" 2>"$work/err"
  [ "$(cat "$work/limited")" = old ] || problem "the old file is gone"
  # Offloaded pages on such a disk.
  code=0
  last="run --cache offloaded, ulimit -f"
  (ulimit -f 8; "$mneme" "${long_run[@]}" --cache offloaded) >"$work/out" 2>"$work/err" || code=$?
  [ $code = 1 ] || problem "exit code $code"
  err_is_sentence
}

# Waits until a file holds a text, a minute at most.
wait_for() {
  for _ in $(seq 6000); do
    if grep -q "$2" "$1"; then return; fi
    sleep 0.1
  done
}

# shortened FILE ARGUMENTS...: another process truncates the file during a generation.
shortened() {
  local file=$1 code=0
  shift
  last="mneme $*, $file cut meanwhile"
  background "$@" --max-cache-len 1000000 -n 900000 --ignore-eos
  wait_for "$work/out" "[a-z]"
  truncate -s 4096 "$file"
  wait $!
  code=$?
  [ $code = 1 ] || problem "exit code $code"
  err_is_sentence
  err_has "^mneme: a file that is in use was shortened by another process"
}

files_that_shrink() {
  expect 0 run embedded --ids "$(seq -s, 3 402)" -n 1 --save-cache "$work/shrinks"
  shortened "$work/shrinks" run embedded --load-cache "$work/shrinks"
  mkdir "$work/model"
  cp "$here"/../../models-embedded/stories260K/* "$work/model"
  shortened "$work/model/model.safetensors" run "$work/model" "Once upon a time"
}

# A saved session, read with the safetensors package.
package_reads_sessions() {
  if [ $have_python = 0 ] || ! python3 -c 'import safetensors, numpy' 2>"$work/err"; then uncounted=1; return 0; fi
  expect 0 run "$tiny" --ids "$prompt" -n 2 --cache quantized --save-cache "$work/package"
  python3 - "$work/package" <<'PYTHON' || problem "the package reads something else"
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="numpy") as f:
    metadata, names = f.metadata(), set(f.keys())
    assert metadata["mneme.kind"] == "cache" and metadata["tokens"] == "92"
    assert json.loads(metadata["strategy"])["implementation"] == "quantized"
    assert f.get_tensor("ids").tolist()[:90] == list(range(3, 93)) and f.get_tensor("logits").shape == (320,)
    assert "groups" in names and any(name.startswith("group.0.exact.") for name in names)
    for name in names:
        f.get_tensor(name)
PYTHON
}

check "ls lists saved caches, damaged ones with the reason, and nothing else" lists
check "show: members and entries" shows
check "verify finds damage" verifies
check "cp: as it is, compressed, expanded" copies
check "rm removes saved caches only" removes
check "convert: other strategies, the legacy form" converts
check "usage" usage
check "Python reads the file" python_reads_them
check "the safetensors package reads a saved session" package_reads_sessions
check "a run that was saved goes on" runs_go_on
check "calibrations are chosen" calibrations_are_chosen
check "packed weights are mapped" packed_weights_are_mapped
check "wrong caches are refused" wrong_caches_are_refused
check "a folder of caches is used" folders_are_used
check "memory that ends" memory_that_ends
check "memory that ends for a loaded cache" loaded_memory_that_ends
check "files that may not grow" files_that_may_not_grow
check "files that shrink while they are mapped" files_that_shrink
finish
