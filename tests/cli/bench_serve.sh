#!/usr/bin/env bash
# Servers measured: `mneme bench --serve`, against `mneme serve` and against one that answers as a test wants.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
servers=()
# shellcheck disable=SC2329
stop_servers() {
  [ "$BASHPID" = $$ ] || return 0
  for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
  rm -rf "$work"
}
trap stop_servers EXIT

# Waits until a file is there.
wait_for() {
  for _ in $(seq 6000); do
    [ -e "$1" ] && return 0
    sleep 0.05
  done
  problem "$1 does not come"
}

if [ $have_python = 1 ]; then
  python3 "$here/openai_server.py" "$work/port" "$work/log" &
  servers+=($!)
  wait_for "$work/port"
  fake=http://127.0.0.1:$(cat "$work/port")
fi
sizes=(--random-input-len 12 --random-output-len 4)

# requests MODE N ARGUMENTS...: measures N requests of this server; their bodies are in $work/log.
requests() {
  local code=$1 mode=$2 n=$3
  shift 3
  rm -f "$work/log"
  expect "$code" bench --serve "$fake/$mode" --num-prompts "$n" "${sizes[@]}" --no-warmup --json "$@"
}

needs_python() {
  [ $have_python = 1 ] || { uncounted=1; return 1; }
}

# The server waits 50 ms before the first of 4 tokens and 20 ms before each other one.
figures() {
  needs_python || return 0
  requests 0 ok 6
  err_empty
  json 'j["completed"] == 6 and j["failed"] == 0 and j["num_prompts"] == 6 and j["errors"] == []'
  json 'j["total_input_tokens"] == 60 and j["total_output_tokens"] == 24 and j["cached_tokens"] == 36'
  json 'j["model_id"] == "first" and j["endpoint_type"] == "completions" and j["prompt_unit"] == "tokens"'
  json 'j["mean_ttft_ms"] >= 50 and j["mean_e2el_ms"] >= 110 and j["duration"] >= 0.11'
  json 'abs(j["mean_e2el_ms"] - j["mean_ttft_ms"] - 3 * j["mean_tpot_ms"]) < 1e-6'
  json 'abs(j["request_throughput"] * j["duration"] - 6) < 1e-6 and abs(j["output_throughput"] * j["duration"] - 24) < 1e-6'
  json 'abs(j["total_token_throughput"] * j["duration"] - 84) < 1e-6'
  json 'j["request_rate"] == "inf" and j["max_concurrency"] is None and j["max_concurrent_requests"] == 6'
  json 'all_of(j["median_" + k] <= j["p99_" + k] and j["std_" + k] >= 0 for k in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"))'
  requests 0 ok 3 --metric-percentiles 50,99.9,0 --endpoint chat --model second
  json 'j["p50_ttft_ms"] == j["median_ttft_ms"] and j["p0_e2el_ms"] <= j["p50_e2el_ms"] <= j["p99.9_e2el_ms"] and "p99_ttft_ms" not in j'
  json 'j["model_id"] == "second" and j["endpoint_type"] == "chat" and j["total_output_tokens"] == 12 and j["mean_ttft_ms"] >= 50'
  expect 0 bench --serve "$fake/ok/" --num-prompts 2 "${sizes[@]}" --no-warmup
  out_has '^Successful requests: +2$'
  out_has '^Failed requests: +0$'
  out_has '^Cached input tokens: +12$'
  out_has '^Total generated tokens: +8$'
  out_has '^  P99 TTFT \(ms\): +[0-9]+\.[0-9]{2}$'
  out_has '^End-to-end Latency$'
}

# What is sent: as the log of the server has it.
bodies() {
  needs_python || return 0
  local key=$work/key
  printf 'secret-of-this-test-1\nanother\n' >"$key"
  requests 0 ok 5 --random-prefix-len 30 --api-key-file "$key" --seed 3
  cp "$work/log" "$work/first"
  requests 0 ok 5 --random-prefix-len 30 --api-key-file "$key" --seed 3
  cp "$work/log" "$work/again"
  requests 0 ok 5 --random-prefix-len 30 --seed 4 --no-ignore-eos
  cp "$work/log" "$work/other"
  requests 0 ok 2 --endpoint chat
  cp "$work/log" "$work/chat"
  python3 - "$work" "$here" <<'PYTHON' || problem "requests"
import json, os, sys
def tokens_of(text): return sum(1 + (len(w) > 4) for w in text.split())
first, again, other, chat = ([json.loads(line) for line in open(os.path.join(sys.argv[1], n))] for n in ("first", "again", "other", "chat"))
texts = [r["body"]["prompt"] for r in first]
assert all(tokens_of(t) == 42 for t in texts), [tokens_of(t) for t in texts]
shared = os.path.commonprefix(texts)
assert tokens_of(shared[:shared.rindex(" ")]) >= 30 and len(set(texts)) == 5
assert sorted(texts) == sorted(r["body"]["prompt"] for r in again)
assert not set(texts) & {r["body"]["prompt"] for r in other}
b = first[0]["body"]
assert b["max_tokens"] == 4 and b["stream"] is True and b["stream_options"] == {"include_usage": True} and b["temperature"] == 0
assert b["ignore_eos"] is True and "ignore_eos" not in other[0]["body"]
assert first[0]["authorization"] == "Bearer secret-of-this-test-1" and other[0]["authorization"] is None
assert all(r["path"] == "/ok/v1/chat/completions" and r["body"]["messages"][0]["role"] == "user" and "prompt" not in r["body"] for r in chat)
PYTHON
  : >"$key"
  expect 2 bench --serve "$fake/ok" --api-key-file "$key"
  err_has 'no key'
}

# A server without usage and without a count of tokens.
little_said() {
  needs_python || return 0
  requests 0 brief 3
  err_has 'does not count tokens at /tokenize: prompts have as many words'
  json 'j["completed"] == 3 and j["total_output_tokens"] == 12 and j["total_input_tokens"] == 36 and j["cached_tokens"] is None and j["prompt_unit"] == "words"'
  python3 -c 'import json,sys; assert all(len(json.loads(l)["body"]["prompt"].split()) == 12 for l in open(sys.argv[1]))' "$work/log" || problem "words"
}

concurrency_and_rate() {
  needs_python || return 0
  requests 0 ok 9 --max-concurrency 3
  json 'j["completed"] == 9 and j["max_concurrent_requests"] == 3 and j["max_concurrency"] == 3 and j["duration"] >= 0.33'
  python3 -c 'import json,sys; assert max(json.loads(l)["running"] for l in open(sys.argv[1])) <= 3' "$work/log" || problem "more than three at a time"
  requests 0 brief 20 --request-rate 40
  json 'j["completed"] == 20 and j["request_rate"] == 40 and j["duration"] > 0.2 and j["max_concurrent_requests"] <= 20'
  rm -f "$work/log"
  expect 0 bench --serve "$fake/ok" --num-prompts 2 "${sizes[@]}" --json # and one for warming up
  [ "$(wc -l <"$work/log")" = 3 ] || problem "no warm-up"
  json 'j["completed"] == 2 and j["total_output_tokens"] == 8'
}

failures() {
  needs_python || return 0
  local mode reason
  while read -r mode reason; do
    requests 1 "$mode" 4
    json 'j["completed"] == 0 and j["failed"] == 4 and len(j["errors"]) == 1 and j["errors"][0]["count"] == 4'
    json 'j["total_output_tokens"] == 0 and j["mean_ttft_ms"] is None and j["output_throughput"] == 0'
    err_is_sentence
    err_has "4 of 4 requests failed: $reason"
  done <<'LIST'
429 HTTP 429: the queue is full$
500 HTTP 500: broken$
hangup .*(partial|closed|receiv|transfer)
early the stream ended before the answer did$
malformed an event:
error an error in the stream: out of memory$
other an event without 'choices'$
whole the answer has no event of a token$
empty the answer has no event of a token$
silent .*(empty|nothing|receiv)
LIST
  requests 0 mixed 6
  json 'j["completed"] == 3 and j["failed"] == 3 and j["total_output_tokens"] == 12 and j["total_input_tokens"] == 30'
  json 'j["errors"] == [{"message": "HTTP 429: the queue is full", "count": 3}]'
  err_has '3 of 6 requests failed: HTTP 429: the queue is full'
  expect 0 bench --serve "$fake/mixed" --num-prompts 4 "${sizes[@]}" --no-warmup
  out_has '^Failed requests: +2$'
}

# A server that does not go on: Ctrl-C ends the wait.
cancelled() {
  needs_python || return 0
  local pid code=0
  last="mneme bench --serve $fake/forever"
  rm -f "$work/log"
  "$mneme" bench --serve "$fake/forever" --num-prompts 2 "${sizes[@]}" --no-warmup >"$work/out" 2>"$work/err" &
  pid=$!
  wait_for "$work/log"
  kill -INT $pid
  wait $pid || code=$?
  [ $code = 5 ] || problem "exit code $code"
  out_empty
  err_is_sentence
}

# counters PATH: the server's own counts, as shell variables.
counters() {
  python3 - "$1" <<'PYTHON'
import re, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
text = b"".join(iter(lambda: s.recv(65536), b"")).decode()
for name in ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_hits_total", "request_success_total"):
    print("%s=%d" % (name, sum(float(v) for v in re.findall(r"^mneme_%s\{.*\} (\S+)$" % name, text, re.M))))
PYTHON
}

# Against `mneme serve`: its own counters have the same numbers. The checkpoint gets a chat template.
with_mneme() {
  needs_python || return 0
  local model=$work/model path=$work/socket prompt_tokens_total generation_tokens_total prefix_cache_hits_total request_success_total
  mkdir "$model"
  cp "$here"/../../models-embedded/stories260K/* "$model/"
  python3 - "$model/tokenizer_config.json" <<'PYTHON' || problem "no template"
import json, os, sys
config = json.load(open(sys.argv[1])) if os.path.exists(sys.argv[1]) else {}
config["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
json.dump(config, open(sys.argv[1], "w"))
PYTHON
  "$mneme" serve "$model" --unix "$path" 2>"$work/serve" &
  servers+=($!)
  wait_for "$path"
  expect 0 bench --serve "unix:$path" --num-prompts 12 --random-input-len 40 --random-prefix-len 130 --random-output-len 9 --max-concurrency 4 --no-warmup --json
  err_empty
  eval "$(counters "$path")"
  json 'j["completed"] == 12 and j["failed"] == 0 and j["total_output_tokens"] == 108 and j["model_id"] == "model" and j["max_concurrent_requests"] == 4'
  json '[j[k] for k in ("total_input_tokens", "total_output_tokens", "cached_tokens", "completed")] == [int(x) for x in args]' \
    "$prompt_tokens_total" "$generation_tokens_total" "$prefix_cache_hits_total" "$request_success_total"
  json 'j["total_input_tokens"] == 12 * 171 and j["cached_tokens"] >= 8 * 130' # 170 and the token that opens a text
  json '0 < j["mean_ttft_ms"] <= j["mean_e2el_ms"] <= 1e3 * j["duration"] and j["mean_itl_ms"] >= 0'
  expect 0 bench --serve "unix:$path" --num-prompts 3 --random-input-len 20 --random-output-len 5 --endpoint chat --json
  json 'j["completed"] == 3 and j["total_output_tokens"] == 15'
  expect 1 bench --serve "unix:$path" --num-prompts 3 --random-input-len 600 --json
  err_has '3 of 3 requests failed: HTTP 400: .*512'
  expect 1 bench --serve "unix:$path" --num-prompts 2 --model other --no-warmup
  err_has '2 of 2 requests failed: HTTP 404'
}

refusals() {
  expect 2 bench --serve ftp://127.0.0.1:8080
  err_has "'ftp://127.0.0.1:8080' is no address of a server; allowed: http://HOST:PORT, https://HOST:PORT, unix:PATH"
  expect 2 bench --serve unix:
  expect 1 bench --serve "unix:$work/absent" --json
  json 'j["error"]["code"] == "failed" and "/absent: " in j["error"]["message"]'
  expect 2 bench --serve http://x -p 5
  err_has "--n-prompt has no meaning with --serve"
  expect 2 bench embedded --serve http://x
  err_has "--model names a model of the server"
  expect 2 bench embedded --num-prompts 5
  err_has "--num-prompts has a meaning only with --serve URL"
  local rate
  for rate in 0 -1 nan 1e9 x ''; do
    expect 2 bench --serve http://x --request-rate "$rate"
    err_has "'$rate' is no rate; allowed: 0.000001 to 1000000 requests a second, or inf"
  done
  for rate in 101 -1 nan 5,,6 ',' '' 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17; do
    expect 2 bench --serve http://x --metric-percentiles "$rate"
    err_has "allowed: up to 16 numbers from 0 to 100"
  done
  expect 2 bench --serve http://x --num-prompts 0
  err_has "allowed: 1 to 100000"
  expect 2 bench --serve http://x -o csv
  err_has "allowed with --serve: md, json, jsonl"
  expect 2 bench --serve http://x --endpoint talk
  err_has "completions\|chat"
}

# On a machine without libcurl the command works, but for this.
without_libcurl() {
  mkdir "$work/no"
  echo nothing >"$work/no/libcurl.so.4"
  echo nothing >"$work/no/libcurl-gnutls.so.4"
  LD_LIBRARY_PATH=$work/no expect 2 bench --serve http://127.0.0.1:1
  err_has 'needs libcurl, which cannot be loaded: '
  err_is_sentence
  LD_LIBRARY_PATH=$work/no expect 0 run embedded Once -n 1
}

if "$mneme" bench --serve unix:/absent 2>&1 | grep -q 'built without libcurl'; then
  expect 2 bench --serve unix:/absent
  skipped=9
  finish
  exit
fi
check "counts, rates and times" figures
check "what is sent" bodies
check "a server that says little" little_said
check "concurrency, rate, warm-up" concurrency_and_rate
check "requests that fail" failures
check "Ctrl-C" cancelled
check "mneme serve counts the same" with_mneme
check "refusals" refusals
check "without libcurl" without_libcurl
finish
