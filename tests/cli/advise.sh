#!/usr/bin/env bash
# `mneme advise`: bytes, measurements, the front and the recommended cache, each recomputed from its definition.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
model=$here/../data/golden/llama
# Buffers are as many as threads: limits of memory are for two.
export MNEME_THREADS=2
# The rows of all_choices (cli/bench/cache_list.c) without none, hybrid and mamba.
n_caches=17
# So many ids, all of them in the vocabulary.
ids_of() { seq 0 $(($1 - 1)) | awk '{ print 3 + $1 % 300 }' | paste -sd,; }

# Each row's flags, given to `run`, make a cache of the bytes that the row says.
bytes_are_those_of_a_run() {
  local flags bytes n=0 tokens
  [ $have_python = 1 ] || { uncounted=1; return; }
  expect 0 advise "$model" --context 300 --memory 1G --time 0 --json
  err_empty
  python3 -c 'import json, sys
for row in json.load(open(sys.argv[1]))["caches"]: print(row["cache_bytes"], row["flags"])' "$work/out" >"$work/rows"
  while read -r bytes flags; do
    n=$((n + 1))
    tokens=300
    case $flags in *max-cache-len*) tokens=299 ;; esac # which counts the new token
    # shellcheck disable=SC2086
    expect 0 run "$model" --ids "$(ids_of $tokens)" -n 1 --ignore-eos $flags --json
    json 'j["cache"]["bytes"] == int(args[0])' "$bytes"
  done <"$work/rows"
  [ $n = $n_caches ] || problem "$n rows"
  json 'len(args) - 1 == int(args[0]) == len(set(args[1:])) and not any("hybrid" in f or "mamba" in f or "none" in f for f in args)' $n_caches $(cut -d' ' -f2- "$work/rows" | tr ' ' '_')
}

# Rows have caches of their own.
rows_are_multiplied() {
  expect 0 advise "$model" --context 300 --memory 1G --time 0 --json
  cp "$work/out" "$work/one"
  expect 0 advise "$model" --context 300 --memory 1G --time 0 --rows 7 --json
  json 'j["rows"] == 7 and all_of(r["cache_bytes"] == 7 * o["cache_bytes"] for r, o in zip(j["caches"], json.load(open(work + "/one"))["caches"]))'
  json 'all_of(r["cache_peak_bytes"] > 2 * o["cache_peak_bytes"] for r, o in zip(j["caches"], json.load(open(work + "/one"))["caches"]))'
  json '" in each of 7 rows" in j["recommendation"]["sentence"]'
}

measure() {
  [ -s "$work/measured" ] || {
    expect 0 advise "$model" --ids "$(ids_of 400)" --context 400 --memory 4M --time 3600 --svg "$work/picture.svg" --json
    cp "$work/out" "$work/measured"
    cp "$work/err" "$work/said"
  }
  cp "$work/measured" "$work/out"
}

# The divergence from the logits that `score` writes, and its standard error: 128 tokens, seen from the 272nd to the 399th.
divergence_by_score() {
  measure
  json 'j["n_depth"] == j["n_compared_depth"] == 400 and all_of(r["compared_tokens"] == 128 for r in j["caches"])'
  [ $have_python = 1 ] || { uncounted=1; return; }
  expect 0 score "$model" --ids "$(ids_of 400)" --out "$work/dynamic" --json
  expect 0 score "$model" --ids "$(ids_of 400)" --cache quantized --cache-config nbits=2 --out "$work/quantized" --json
  expect 0 score "$model" --ids "$(ids_of 400)" --cache sink --cache-config window_length=200 --out "$work/sink" --json
  python3 - "$work" <<'PYTHON' || problem "another divergence"
import array, json, math, sys
work = sys.argv[1]
def logits(name):
    data = open(f"{work}/{name}", "rb").read()
    n = int.from_bytes(data[:8], "little")
    tensor = json.loads(data[8:8 + n])["logits"]
    begin, end = tensor["data_offsets"]
    values = array.array("f", data[8 + n + begin:8 + n + end])
    width = tensor["shape"][1]
    return [values[i * width:(i + 1) * width] for i in range(tensor["shape"][0])]
def log_softmax(row):
    most = max(row)
    total = most + math.log(sum(math.exp(x - most) for x in row))
    return [x - total for x in row]
rows = {(r["cache_implementation"], r["cache_config"]): r for r in json.load(open(work + "/measured"))["caches"]}
exact = [log_softmax(row) for row in logits("dynamic")[271:399]]
for name, key in (("quantized", ("quantized", "nbits=2")), ("sink", ("sink", "window_length=200"))):
    other = [log_softmax(row) for row in logits(name)[271:399]]
    kls = [sum(math.exp(p) * (p - q) for p, q in zip(a, b)) for a, b in zip(exact, other)]
    mean = sum(kls) / 128
    error = math.sqrt(sum((kl - mean) ** 2 for kl in kls) / 127 / 128)
    row = rows[key]
    assert mean > 0.01 and abs(row["kl_divergence"] / mean - 1) < 1e-3, (name, mean, row)
    assert abs(row["kl_standard_error"] / error - 1) < 1e-2, (name, error, row)
    assert row["same_tokens"] == sum(a.index(max(a)) == b.index(max(b)) for a, b in zip(exact, other)), name
PYTHON
}

front_by_definition() {
  measure
  [ $have_python = 1 ] || { uncounted=1; return; }
  python3 - "$work/measured" $n_caches <<'PYTHON' || problem "another front or recommendation"
import json, sys
n_caches = int(sys.argv[2])
j = json.load(open(sys.argv[1]))
rows = [r for r in j["caches"] if r["fits"] and r["measured"] and r["kl_divergence"] is not None]
assert len(rows) == len(j["caches"]) == n_caches
def better(a, b):
    keys = "cache_peak_bytes", "kl_divergence"
    worse = any(a[k] > b[k] for k in keys) or a["decode_per_second"] < 0.9 * b["decode_per_second"]
    return not worse and (any(a[k] < b[k] for k in keys) or 0.9 * a["decode_per_second"] > b["decode_per_second"])
for row in j["caches"]:
    assert row["pareto"] == (row in rows and not any(better(other, row) for other in rows)), row
assert 0 < sum(r["pareto"] for r in rows) < n_caches
fastest = max(r["decode_per_second"] for r in rows)
best = min((r for r in rows if r["decode_per_second"] >= fastest / 2), key=lambda r: r["kl_divergence"])
assert all(j["recommendation"][k] == best[k] for k in ("cache_implementation", "cache_config", "flags")), (best, j["recommendation"])
for row in rows:
    assert row["decode_per_second"] == row["speeds"][-1]["decode_per_second"] and len(row["speeds"]) >= 3
    assert [s["n_depth"] for s in row["speeds"]] == sorted({s["n_depth"] for s in row["speeds"]})
    assert 0 < row["speeds"][0]["n_depth"] < row["speeds"][-1]["n_depth"] < 400
PYTHON
}

# Sets `memory` to what weights and buffers take and so many KiB more, as a value of --memory.
memory_beyond_buffers() {
  expect 0 advise "$model" --context 64 --memory 1G --time 0 --json
  memory=$(($(sed -E 's/.*"fixed_bytes":([0-9]+).*/\1/' "$work/out") / 1024 + $1))K
}

# The recommended cache holds the tokens where --memory-limit is that memory, and the exact one that does not fit fails.
recommendation_fits() {
  local memory flags
  memory_beyond_buffers 700
  expect 0 advise "$model" --context 1000 --memory $memory --time 0 --json
  json 'not j["caches"][0]["fits"] and j["recommendation"]["cache_implementation"] != "dynamic"'
  json '[r["fits"] for r in j["caches"]] == [j["fixed_bytes"] + r["cache_peak_bytes"] <= j["memory_bytes"] == int(args[0][:-1]) << 10 for r in j["caches"]]' "$memory"
  [ $have_python = 1 ] || { uncounted=1; return; }
  flags=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["recommendation"]["flags"])' "$work/out")
  # shellcheck disable=SC2086
  expect 0 score "$model" --ids "$(ids_of 1000)" $flags --memory-limit $memory --json
  json 'j["tokens"] == 1000'
}

# One token more than the largest context, or one KiB less than the named memory, is too much.
limits_are_exact() {
  local largest memory
  memory_beyond_buffers 396
  expect 0 advise "$model" --context 400 --memory "$memory" --time 0 --json
  [ $have_python = 1 ] || { uncounted=1; return; }
  largest=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["caches"][0]["largest_context"])' "$work/out")
  expect 0 advise "$model" --context "$largest" --memory "$memory" --time 0 --json
  json 'j["caches"][0]["fits"] and j["caches"][0]["largest_context"] == int(args[0])' "$largest"
  expect 0 advise "$model" --context $((largest + 1)) --memory "$memory" --time 0 --json
  json 'not j["caches"][0]["fits"] and j["caches"][0]["largest_context"] == int(args[0])' "$largest"
  expect 4 advise "$model" --context 4000 --memory 1M
  err_is_sentence
  err_has '^mneme: --memory is 1024K, in which no cache holds 4000 tokens: weights and buffers take [0-9]+K; the smallest that would is [a-z_+]+ .*, with --memory [0-9]+K$'
  out_empty
  memory=$(sed -E 's/.*--memory ([0-9]+)K$/\1/' "$work/err")
  expect 0 advise "$model" --context 4000 --memory "${memory}K" --time 0
  expect 4 advise "$model" --context 4000 --memory $((memory - 1))K --time 0
  expect 4 advise "$model" --context 4000 --memory 1M --json
  json 'j["error"]["param"] == "memory"'
}

picture() {
  measure
  [ $have_python = 1 ] || { uncounted=1; return; }
  python3 - "$work" $n_caches <<'PYTHON' || problem "another picture"
import json, sys
import xml.etree.ElementTree as tree
work = sys.argv[1]
rows = json.load(open(work + "/measured"))["caches"]
text = open(work + "/picture.svg").read()
assert "href" not in text and "script" not in text and "url(" not in text
root = tree.fromstring(text)
ns = "{http://www.w3.org/2000/svg}"
marks = [c for c in root.iter(ns + "circle") if c.get("class") == "mark"]
assert len(marks) == sum(r["measured"] and r["kl_divergence"] is not None for r in rows) == int(sys.argv[2])
assert sum(m.get("fill-opacity") == "1" for m in marks) == sum(r["pareto"] for r in rows)
assert sum(p.get("class") == "speed" for p in root.iter(ns + "polyline")) == sum(r["measured"] for r in rows)
for mark, row in zip(marks, rows):
    title = mark.find(ns + "title").text
    assert title.startswith(f"{row['cache_implementation']} {row['cache_config']}: {row['cache_peak_bytes']} bytes"), title
by_bytes = sorted((row["cache_peak_bytes"], float(mark.get("cx"))) for mark, row in zip(marks, rows))
assert [x for _, x in by_bytes] == sorted(x for _, x in by_bytes)
by_kl = sorted((row["kl_divergence"], -float(mark.get("cy"))) for mark, row in zip(marks, rows))
assert [y for _, y in by_kl] == sorted(y for _, y in by_kl)
boxes = []  # of all texts that are not turned
width, height = float(root.get("width")), float(root.get("height"))
for t in root.iter(ns + "text"):
    if t.get("transform"):
        continue
    size, x, y, n = float(t.get("font-size", 14)), float(t.get("x")), float(t.get("y")), len(t.text) * 0.6
    left = x - {"start": 0, None: 0, "middle": n * size / 2, "end": n * size}[t.get("text-anchor")]
    boxes.append((left, y - 0.75 * size, left + n * size, y, t.text))
assert len(boxes) > 50 and all(0 <= l and r <= width and 0 <= top and bottom <= height for l, top, r, bottom, _ in boxes)
for i, a in enumerate(boxes):
    for b in boxes[:i]:
        assert not (a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]), (a, b)
PYTHON
}

# What is computed is counted: dynamic on 256 tokens, on all, then every cache that fits. No time: nothing.
time_limits_work() {
  measure
  json 'j["computed_tokens"] == 255 + 399 * (int(args[0]) + 1) and j["time"] == 3600' $n_caches
  grep -q "^mneme: $n_caches of $n_caches caches hold 400 tokens; measuring them on ids takes 3600 s at most (--time)\$" "$work/said" || problem "the time is not said"
  expect 0 advise "$model" --ids "$(ids_of 400)" --context 400 --memory 4M --time 0 --json
  err_empty
  json 'j["computed_tokens"] == 0 == j["n_depth"] and not any(r["measured"] or r["pareto"] for r in j["caches"])'
  json 'j["recommendation"]["cache_implementation"] == "dynamic" and "nothing was measured" in j["recommendation"]["sentence"]'
}

# Speeds go deeper than a text that is shorter, its divergence does not.
short_texts() {
  expect 0 advise "$model" --ids "$(ids_of 128)" --context 320 --memory 4M --time 3600 --json
  json 'j["n_text"] == j["n_compared_depth"] == 128 and j["n_depth"] == 320 and j["caches"][0]["compared_tokens"] == 64'
  json 'all_of((r["kl_divergence"] is None) == any(x in r["cache_implementation"] for x in ("sink", "window")) for r in j["caches"] if "quantized" not in r["cache_implementation"])'
  json 'all_of(r["speeds"][-1]["n_depth"] > 300 for r in j["caches"])'
}

# The sentence and the flags name the cache that the table recommends: the closest to dynamic of those at least half as fast as the fastest.
recommends_by_table() {
  local wanted
  wanted=$(awk -F'|' '/^\| [* ] \|/ && $7 + 0 > 0 { split($3, of, " "); name[++n] = of[1]; rate[n] = $7; kl[n] = $8 + 0; if ($7 + 0 > most) most = $7 + 0 }
    END { for (i = 1; i <= n; i++) if (2 * rate[i] >= most && (!best || kl[i] < kl[best])) best = i; print name[best] }' "$work/out")
  [ -n "$wanted" ] && [[ $(sed -n 1p "$work/out") = "Take $wanted"[:\ ]* && $(sed -n 3p "$work/out") = "    --cache $wanted"* ]] || problem "the table recommends '$wanted'"
}

for_people() {
  printf 'Once upon a time, there was a little girl named Lily. She loved to play outside in the park. %.0s' 1 2 3 4 5 6 7 8 >"$work/story"
  expect 0 advise embedded --context 200 --memory 100M --text "$work/story"
  [ "$(wc -l <"$work/err")" = 1 ] || problem "stderr is not one line"
  recommends_by_table
  out_has '^\| [* ] \| dynamic +\| .* KiB \| .* KiB \|  yes \| +[0-9.]+ \| 0\.00000 ± 0\.00000 \|' # on the front, unless `static` was measured faster
  out_has '^quantized nbits=4: refused: a quantized cache takes heads'
  out_has "^Text \\($work/story\\): [0-9]+ tokens\\."
  expect 0 advise "$here/../data/golden/mistral-window" --context 64 --time 0 --json
  json 'not any("sliding_window" in r["cache_implementation"] for r in j["caches"])'
  expect 0 advise "$here/../data/golden/mamba" --context 100 --time 9
  recommends_by_table
  expect 0 advise embedded --context 600 --memory 1G --time 0 --json
  err_has 'trained with texts of up to 512 tokens'
  json 'j["recommendation"]["flags"] == "--cache dynamic --max-cache-len 600"'
}

refusals() {
  printf 'Once upon a time' >"$work/short"
  expect 2 advise "$model" --context 0
  err_has '^mneme: --context: 0 is out of range; allowed: 64 to 1099511627776$'
  expect 2 advise "$model" --rows 0
  err_has 'allowed: 1 to 65536'
  expect 2 advise "$model" --time -1
  err_has 'allowed: 0 to 86400'
  expect 2 advise "$model" --memory much
  err_has "'much' is not a size"
  expect 1 advise embedded --text "$work/absent"
  err_is_sentence
  err_has "$work/absent"
  expect 2 advise embedded --text "$work/short"
  err_is_sentence
  err_has "the text \\($work/short\\) has [0-9]+ tokens; allowed: 64 and more"
  expect 2 advise "$model" --svg "$work/x.svg" --time 0
  err_has 'svg draws what is measured'
  expect 1 advise "$model" --svg "$work/nowhere/x.svg"
  err_is_sentence
  expect 2 advise "$model" --memory-limit 1G
  err_has 'unknown flag'
  expect 2 advise "$here/../data/golden/whisper/tiny80"
  err_has 'has an encoder'
  expect 2 advise "$here/../data/golden/gpt2" --context 100000
  err_has 'allowed: 64 to [0-9]+, for which the model has learned positions'
}

# docs/caches.md has every key of the JSON.
documented() {
  measure
  [ $have_python = 1 ] || { uncounted=1; return; }
  python3 - "$work/measured" "$here/../../docs/caches.md" <<'PYTHON' || problem "docs/caches.md lacks something"
import json, sys
page = open(sys.argv[2]).read()
page = page[page.index("## Which cache for me"):]
def keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)
missing = sorted(key for key in set(keys(json.load(open(sys.argv[1])))) if f"`{key}`" not in page)
print(missing)
sys.exit(bool(missing))
PYTHON
}

check "bytes are those of a run with the flags" bytes_are_those_of_a_run
check "rows" rows_are_multiplied
check "the divergence is that of the logits of score" divergence_by_score
check "the front and the recommendation by definition" front_by_definition
check "the recommended cache fits" recommendation_fits
check "limits are exact" limits_are_exact
check "the picture" picture
check "the time limits what is computed" time_limits_work
check "texts shorter than the context" short_texts
check "for people" for_people
check "refusals" refusals
check "docs/caches.md has every key" documented
finish
