#!/usr/bin/env bash
# Caches compared on a text: `mneme bench --cache all`.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
model=$here/../data/golden/llama
# The rows of all_choices (cli/bench/cache_list.c), without hybrid and mamba where they are the same as dynamic.
n_caches=18

# Every strategy in the help is measured, and the exact ones give the same bits as dynamic.
all_of_them() {
  expect 0 bench "$model" --cache all --json
  # A Llama has no windows and no states of its own. And about none, which a busy machine leaves out.
  [ "$(grep -c '^mneme: left out, .* the one in parentheses: hybrid (dynamic), mamba (dynamic); ' "$work/err")" = 1 ] || problem "what is left out is not said once"
  [ "$(wc -l <"$work/err")" = 2 ] || problem "stderr is not two lines"
  err_has '^mneme: none (computes|is left out: it computes) the whole text for every token'
  json 'len(all) == 1 and j["text"] == "random tokens" and j["n_prompt"] == 256 and j["n_gen"] == 128 and j["n_generated"] == 0'
  json 'all_of(c["refused"] == "" and c["prefill_per_second"] > 0 and c["decode_per_second"] > 0 and c["total_ms"] > 0 for c in j["caches"] if c["cache_implementation"] != "none")'
  json 'all_of(c["cache_peak_bytes"] >= c["cache_bytes"] > 0 and c["peak_rss"] > 2 << 20 and "generated_text" not in c for c in j["caches"] if c["cache_implementation"] != "none")'
  json 'all_of(c["cache_bytes"] > 0 and c["cache_seen"] == 383 >= c["cache_tokens"] > 0 for c in j["caches"] if c["cache_implementation"] != "none")'
  json 'all_of(c["same_tokens"] == c["compared_tokens"] and c["kl_divergence"] == 0 and c["perplexity_change"] == 0 for c in j["caches"] if c["refused"] == "" and c["cache_implementation"] in ("none", "dynamic", "static", "offloaded", "offloaded_static"))'
  json 'all_of(0 < c["kl_divergence"] < 2 and c["same_tokens"] <= c["compared_tokens"] == 128 for c in j["caches"] if any(x in c["cache_implementation"] for x in ("quantized", "sink", "sliding")))'
  json '[c["kl_divergence"] for c in j["caches"] if c["cache_implementation"] == "quantized" and c["cache_config"] in ("nbits=8", "nbits=4", "nbits=2")] == sorted(c["kl_divergence"] for c in j["caches"] if c["cache_config"] in ("nbits=8", "nbits=4", "nbits=2") and c["cache_implementation"] == "quantized")'
  cp "$work/out" "$work/all"
  names=$("$mneme" run --help-all | sed -n '/^Caches, for --cache/,/^What --cache-config/p' | sed -n 's/^  \([a-z_]*\) .*/\1/p' | tr '\n' ' ')
  [ "$(echo "$names" | wc -w)" -ge 10 ] || problem "the help names '$names'"
  json 'set(args[0].split()) - {"hybrid", "mamba"} == {c["cache_implementation"] for c in j["caches"] if "+" not in c["cache_implementation"]}' "$names"
}

# A window is no cache of its own where the model's is shorter; names that are listed are all measured, and what is left out gives the same
# numbers as the one it is said to be.
same_ones_are_left_out() {
  local windowed=$here/../data/golden/mistral-window
  expect 0 bench "$windowed" --cache all -n 40 -o jsonl
  err_has 'left out, .*: hybrid \(dynamic\), mamba \(dynamic\), sliding_window window_length=[0-9]+ \(dynamic\), quantized\+sliding_window .* \(quantized\); '
  json 'len(all) == int(args[0]) == len({(c["cache_implementation"], c["cache_config"]) for c in all}) and not any("sliding" in c["cache_implementation"] for c in all)' $((n_caches - 2))
  expect 0 bench "$windowed" --cache dynamic,hybrid,mamba,sliding_window --cache-config window_length=150 -n 40 -o jsonl
  json '[c["cache_implementation"] for c in all] == ["dynamic", "hybrid", "mamba", "sliding_window"] and len({(c["cache_bytes"], c["perplexity"], c["kl_divergence"]) for c in all}) == 1'
  expect 0 bench "$here/../data/golden/jamba" --cache all -n 4 -o jsonl
  json 'len(all) == int(args[0]) and [c["cache_implementation"] for c in all[:3]] == ["none", "dynamic", "static"]' $n_caches
}

# The bytes of that comparison are those of the planner for as many tokens. The last new token is never fed.
bytes_are_planned() {
  expect 0 inspect "$model" --context 383 --json
  cp "$work/out" "$work/plan"
  cp "$work/all" "$work/out"
  json 'sum(p["bytes"] == c["cache_bytes"] for c in j["caches"] if c["refused"] == "" for p in json.load(open(work + "/plan"))["caches"] if (p["implementation"], p["config"], p["dtype"]) == (c["cache_implementation"], c["cache_config"], c["cache_dtype"]) and "static" not in p["implementation"] and p["implementation"] != "none") == 6'
}

# Perplexity and agreement against those of `score`, which computes them by itself: new tokens 100 .. 199 of a text.
same_as_score() {
  local ids all head
  ids=$(seq -s, 3 202)
  expect 0 score "$model" --ids "$ids" --json --cache quantized --cache-config nbits=2 --chunk 1
  all=$(sed -E 's/.*"nll":([^,]*).*/\1/' "$work/out")
  expect 0 score "$model" --ids "$(seq -s, 3 102)" --json --cache quantized --cache-config nbits=2 --chunk 1
  head=$(sed -E 's/.*"nll":([^,]*).*/\1/' "$work/out")
  expect 0 bench "$model" --ids "$ids" -p 100 -n 100 --cache quantized --cache-config nbits=2 --json
  json "len(j['caches']) == 1 and abs(j['caches'][0]['perplexity'] / math.exp(($all - $head) / 100) - 1) < 1e-9"
  json 'j["text"] == "ids" and j["n_prompt"] == 100 and j["n_gen"] == 100'
  expect 0 bench "$model" --ids "$ids" -n 60 --cache quantized,dynamic --json
  json '[c["cache_implementation"] for c in j["caches"]] == ["quantized", "dynamic"] and j["n_prompt"] == 140'
}

# A text that is too short is continued by dynamic: the tokens of a greedy run.
goes_on_greedily() {
  expect 0 bench "$model" --ids 5,9,31,7 -n 40 --cache none,dynamic,static -r 3 --json
  json 'j["n_prompt"] == 4 and j["n_gen"] == 40 and j["n_generated"] == 40 and j["repetitions"] == 3'
  json 'all_of(c["same_tokens"] == c["compared_tokens"] == 40 for c in j["caches"])'
  cp "$work/out" "$work/bench"
  expect 0 run "$model" --ids 5,9,31,7 -n 40 --ignore-eos --greedy --json
  json 'len(j["sequences"][0]["ids"]) == 40'
  ids=$(python3 -c 'import json,sys; print(*([5,9,31,7] + json.load(open(sys.argv[1]))["sequences"][0]["ids"]), sep=",")' "$work/out") || { uncounted=1; return; }
  expect 0 bench "$model" --ids "$ids" -p 4 --cache dynamic,static --json
  json 'j["n_generated"] == 0 and j["n_gen"] == 40 and j["caches"][0]["perplexity"] == json.load(open(work + "/bench"))["caches"][1]["perplexity"]'
}

texts() {
  printf 'Once upon a time, there was a little girl named Lily. She loved to play outside in the park.' >"$work/story"
  expect 0 bench embedded --text "$work/story" --json
  json 'j["text"].endswith("/story") and [c["cache_implementation"] for c in j["caches"]] == ["dynamic"] and j["caches"][0]["perplexity"] < 20'
  cp "$work/out" "$work/first"
  input=$work/story expect 0 bench embedded --text - --cache dynamic --json
  json 'j["text"] == "-" and j["caches"][0]["perplexity"] == json.load(open(work + "/first"))["caches"][0]["perplexity"]'
  expect 0 bench embedded --cache all --json
  json 'j["text"] == "built in" and j["n_prompt"] + j["n_gen"] == 512'
  json 'all_of(("heads of 16" in c["refused"]) == ("quantized" in c["cache_implementation"]) for c in j["caches"])'
  expect 0 bench embedded --cache all
  out_has '^\| dynamic +\| +[0-9.]+ KiB \|'
  out_has '^quantized nbits=4: refused: a quantized cache takes heads'
  out_has '^Text \(built in\): a prompt of 384 tokens, then 128 one by one'
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do cat "$work/story"; done >"$work/long"
  expect 0 bench embedded --text "$work/long" -n 20
  err_has "its first 512 are used"
  expect 2 bench "$model" --text "$work/story"
  err_has "no tokenizer; give token ids with --ids"
  expect 1 bench embedded --text "$work/absent"
  err_is_sentence
}

# --cache-config goes to those that take it.
configurations() {
  expect 0 bench "$model" --cache all --cache-config residual_length=32,page_tokens=32 --json
  json 'all_of(("residual_length=32" in c["cache_config"]) == ("quantized" in c["cache_implementation"]) for c in j["caches"])'
  expect 0 bench "$model" --cache sink,dynamic --cache-config '{"window_length": 40, "num_sink_tokens": 2}' --json
  json '[c["cache_config"] for c in j["caches"]] == ["window_length=40,num_sink_tokens=2", ""]'
  expect 2 bench "$model" --cache all --cache-config nbits=9
  err_has "no cache here takes the options"
  expect 2 bench "$model" --cache all --cache-config windw_length=9
  err_has "did you mean window_length\?"
  expect 0 bench "$model" --cache sliding_window,dinamic,none+sink,dynamic --json
  json '["needs window_length" in j["caches"][0]["refused"], "did you mean dynamic?" in j["caches"][1]["refused"], "cannot be combined" in j["caches"][2]["refused"], j["caches"][3]["refused"]] == [True, True, True, ""]'
}

# "A conversation of 2,000 tokens takes a third of the memory": by the plan, whose bytes are those that a shorter one takes, and in the
# long tier one of 2,000 tokens.
share_of_memory() {
  local tokens=400
  [ -f "$smollm2" ] || { uncounted=1; return; }
  [ "${MNEME_LONG:-0}" = 0 ] || tokens=2000
  tr '\n' ' ' <"$here/../../README.md" | grep -q 'with `quantized nbits=4` a conversation of 2,000 tokens takes a third of the memory' ||
    problem "README.md says something else"
  expect 0 inspect "$smollm2" --context 1999 --json
  json '[0.25 < q["bytes"] / d["bytes"] <= 1 / 3 for d in j["caches"] for q in j["caches"] if (d["implementation"], d["dtype"], q["implementation"], q["config"], q["dtype"]) == ("dynamic", "bf16", "quantized", "nbits=4", "bf16")] == [True]'
  expect 0 inspect "$smollm2" --context $((tokens - 1)) --json
  cp "$work/out" "$work/planned"
  expect 0 bench "$smollm2" --text "$here/../../LICENSE" -p $((tokens - 10)) -n 10 --cache dynamic,quantized --cache-config nbits=4 -o jsonl
  json 'all[0]["cache_dtype"] == "bf16" and all[0]["cache_bytes"] > all[1]["cache_bytes"]'
  json 'len(all) == 2 == sum(p["bytes"] == c["cache_bytes"] for c in all for p in json.load(open(work + "/planned"))["caches"] if (p["implementation"], p["config"], p["dtype"]) == (c["cache_implementation"], c["cache_config"], c["cache_dtype"]))'
}

# Every row when it has been measured.
rows_as_they_come() {
  local pid line rows=0 code=0
  last="mneme bench --cache dynamic,none"
  mkfifo "$work/rows"
  "$mneme" bench "$model" --ids "$(seq -s, 3 302)" --max-cache-len 5000 -p 300 -n 3000 --cache dynamic,none --cache-dtype f32 >"$work/rows" 2>"$work/err" &
  pid=$!
  while [ $rows -lt 1 ] && read -r line; do [[ $line != "| dynamic "* ]] || rows=1; done <"$work/rows"
  [ $rows = 1 ] || problem "no row"
  kill -INT $pid 2>/dev/null || problem "the row came at the end"
  wait $pid || code=$?
  [ $code = 5 ] || [ $code = 1 ] || problem "exit code $code"
  err_has 'none computes the whole text for every token: about [0-9.]+ s'
}

# A thousand tokens computed a hundred times take longer than seventeen times once.
# With one thread, since many threads on few cores slow a token down more than a prompt.
none_is_left_out() {
  expect 0 bench "$model" --ids "$(seq -s, 3 302 | sed 's/$/,/;s/.*/&&&&&&&/;s/,$//')" --max-cache-len 5000 -p 1000 -n 100 -t 1 --cache all -o jsonl
  err_has 'none is left out: it computes the whole text for every token, which takes about [0-9.]+ s, all others together about [0-9.]+ s; --cache none,dynamic measures it'
  json 'len(all) == int(args[0]) and all[0]["cache_implementation"] == "none" and all[0]["refused"].startswith("left out: ") and "cache_bytes" not in all[0]' $n_caches
  json 'all_of(c["refused"] == "" and c["n_prompt"] == 1000 and c["n_gen"] == 100 and c["model"] == j["model"] for c in all[1:])'
  expect 0 bench "$model" --cache all -n 2 -o jsonl # as much work as any other
  err_has 'none computes the whole text for every token: about [0-9.]+ s'
  json 'all[0]["cache_implementation"] == "none" and all[0]["refused"] == "" and all[0]["same_tokens"] == 2'
}

forms() {
  local kinds=dynamic,sink,paper
  expect 0 bench "$model" --cache $kinds -n 4 -o jsonl --texts
  cp "$work/out" "$work/lines"
  json '[c["cache_implementation"] for c in all] == ["dynamic", "sink", "paper"] and all[2]["refused"] and all[0]["generated_text"].count(",") == 3'
  expect 0 bench "$model" --cache $kinds -n 4 -o csv --texts
  [ $have_python = 1 ] || { uncounted=1; return; }
  python3 - "$work" <<'PYTHON' || problem "CSV and JSON differ"
import csv, json, sys
rows = list(csv.DictReader(open(sys.argv[1] + "/out", newline="")))
lines = [json.loads(line) for line in open(sys.argv[1] + "/lines")]
timed = {"prefill_per_second", "decode_per_second", "total_ms", "peak_rss"}
assert len(rows) == len(lines) == 3 and len(rows[0]) == 27
for row, line in zip(rows, lines):
    assert set(line) <= set(row), set(line) - set(row)
    for key, value in row.items():
        wanted = line.get(key, "")
        assert key in timed or value == wanted or float(value) == wanted, (key, value, wanted)
PYTHON
  expect 0 bench "$model" --cache dynamic -n 4 -o csv
  [ "$(head -1 "$work/out" | grep -c generated_text)" = 0 ] || problem "texts were not requested"
  expect 0 bench "$model" -p 4 -n 0 -r 1 -o csv
  out_has '^"build_commit","build_number"'
}

# The texts equal the output of `run` with each cache.
generated_texts() {
  printf 'Once upon a time, there was a little girl named Lily.' >"$work/story"
  expect 0 bench embedded --text "$work/story" -p 12 -n 20 --cache dynamic,static,none --texts
  cp "$work/out" "$work/bench"
  expect 0 bench embedded --text "$work/story" -p 12 -n 20 --cache dynamic,static,none --texts -o jsonl
  json 'len({c["generated_text"] for c in all}) == 1 and len(all[0]["generated_text"]) > 20'
  cp "$work/out" "$work/lines"
  "$mneme" tokenize embedded -f "$work/story" >"$work/ids" 2>/dev/null || problem "tokenize"
  expect 0 run embedded --ids "$(cut -d, -f1-12 "$work/ids")" -n 20 --greedy --json
  json 'j["sequences"][0]["text"] == json.loads(open(work + "/lines").readline())["generated_text"]'
  [ "$(grep -c '^==> [a-z]* <==$' "$work/bench")" = 3 ] || problem "three headings"
}

refusals() {
  expect 2 bench "$model" --cache all -d 8
  err_has "no meaning"
  expect 2 bench "$model" --cache all -n 8,9
  err_has "one number"
  expect 2 bench "$model" --cache all -p 4000
  err_has "the text has 384 tokens"
  expect 2 bench embedded --cache all -n 4000
  err_has "pass 512"
  expect 2 bench "$model" --ids 5,9 --text x
  err_has "both give"
  expect 2 bench "$model" --cache all --save-cache x
  err_has "unknown flag"
}

# docs/caches.md has everything that --help-all lists, keys with the same default.
documented() {
  expect 0 run --help-all
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  python3 - "$work/out" "$here/../../docs/caches.md" <<'PYTHON' || problem "docs/caches.md lacks something"
import re, sys
text, page = open(sys.argv[1]).read(), open(sys.argv[2]).read().replace("`", "")
part = lambda begin, end: re.findall(r"^  (\w+) .*?(?:\[(.*)\])?$", text[text.index(begin):text.index(end)], re.M)
names, keys = part("Caches, for --cache", "What --cache-config sets"), part("What --cache-config sets", "Every --some-name")
rows = [line.split("|")[1:5] for line in page.split("\n") if line.count("|") == 6]
missing = [n for n, _ in names if not re.search(r"\b%s\b" % n, page)]
missing += [k for k in keys if not any(k[0] in re.split(r"\W+", r[0]) and k[1] == r[3].strip() for r in rows)]
print(missing)
sys.exit(1 if missing or len(names) < 10 or len(keys) < 17 else 0)
PYTHON
}

check "every strategy is compared" all_of_them
check "caches that are the same are left out" same_ones_are_left_out
check "docs/caches.md has every strategy and key" documented
check "bytes are those of the planner" bytes_are_planned
check "perplexity is that of score" same_as_score
check "a short text goes on greedily" goes_on_greedily
check "texts" texts
check "configurations go where they belong" configurations
check "the share of memory that README.md names" share_of_memory
check "rows as they come" rows_as_they_come
check "none is left out where it takes longest" none_is_left_out
check "csv and jsonl" forms
check "texts that caches write" generated_texts
check "what cannot be compared" refusals
finish
