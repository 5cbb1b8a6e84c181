#!/usr/bin/env bash
# --batch: lines come and answers go one after the other, and the memory is that of the lines in work.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"

# numbered_lines N: prompts of ids with lengths of their own.
numbered_lines() {
  local i
  for ((i = 0; i < $1; i++)); do
    printf '{"ids":[1,%d,%d],"max_new_tokens":%d}\n' $((403 + i % 60)) $((5 + i * 7 % 400)) $((1 + i * 5 % 37))
  done
}

# The generated ids of every line of a file, a line each, in the order of the rows.
rows_of() {
  python3 -c 'import json,sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for r in sorted(rows, key=lambda r: r["sequences"][0]["row"]): print(r["prompt_ids"], [s["ids"] for s in r["sequences"]])' "$1"
}

any_number_of_rows_gives_the_same() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  local n ids
  numbered_lines 40 >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl" --batch-size 1
  err_empty
  json '[x["sequences"][0]["row"] for x in all] == list(range(40))'
  json 'all_of(len(x["sequences"][0]["ids"]) == 1 + i * 5 % 37 or x["sequences"][0]["finish_reason"] == "eos" for i, x in enumerate(all))'
  rows_of "$work/out" >"$work/wanted"
  for n in 3 16 64; do
    expect 0 run embedded --batch "$work/b.jsonl" --batch-size $n
    json '[x["sequences"][0]["row"] for x in all] == list(range(40))'
    rows_of "$work/out" | cmp -s - "$work/wanted" || problem "--batch-size $n gives other answers"
  done
  expect 0 run embedded --batch "$work/b.jsonl" --unordered
  json '(lambda rows: rows != sorted(rows) and sorted(rows) == list(range(40)))([x["sequences"][0]["row"] for x in all])'
  rows_of "$work/out" | cmp -s - "$work/wanted" || problem "--unordered gives other answers"
  expect 0 run embedded --ids 1,410,54 -n 36 --json # the eighth of them
  ids=$(sed -n 8p "$work/wanted")
  json 'str(j["prompt_ids"]) + " " + str([j["sequences"][0]["ids"]]) == args[0]' "$ids"
  expect 2 run embedded --batch "$work/b.jsonl" --batch-size 0
  err_is_sentence
}

# A line is answered although the next one has not come.
answers_do_not_wait_for_lines() {
  local line
  last="(line; waiting; line) | mneme run --batch -"
  mkfifo "$work/in"
  "$mneme" run embedded --batch - -n 4 <"$work/in" >"$work/answers" 2>"$work/err" &
  exec 7>"$work/in"
  for line in 1 2 3; do
    printf '{"ids":[1,%d]' $((402 + line)) >&7
    sleep 0.1
    printf '}\n' >&7
    for _ in $(seq 6000); do
      [ "$(wc -l <"$work/answers")" -lt $line ] || break
      sleep 0.05
    done
    [ "$(wc -l <"$work/answers")" = $line ] || problem "line $line is not answered"
  done
  exec 7>&-
  wait $! || problem "exit code $?"
  cp "$work/answers" "$work/out"
  json '[x["sequences"][0]["row"] for x in all] == [0, 1, 2]'
}

# A pipe that is named is read as it is written. Where nobody writes it there is nothing to wait for.
pipes_end_with_their_writers() {
  local pipe=$work/named code=0
  mkfifo "$pipe"
  last="run --batch PIPE, which nobody writes"
  timeout 60 "$mneme" run embedded --batch "$pipe" </dev/null >"$work/out" 2>"$work/err" || code=$?
  [ $code = 2 ] || problem "exit code $code"
  err_is_sentence
  err_has 'is a pipe that is empty and that no program writes to'
  out_empty
  last="run --batch PIPE, which is written"
  exec 7<>"$pipe" # the writer that is there
  : >"$work/out"
  timeout 60 "$mneme" run embedded --batch "$pipe" -n 2 </dev/null 7>&- >"$work/out" 2>"$work/err" &
  printf '{"ids":[1,403]}\n' >&7
  for _ in $(seq 600); do
    [ ! -s "$work/out" ] || break
    sleep 0.05
  done
  printf '{"ids":[1,404]}' >&7
  exec 7>&-
  wait $! || problem "exit code $?"
  json '[x["prompt_ids"] for x in all] == [[[1, 403]], [[1, 404]]]'
  last="run --batch <(...), whose writer has gone"
  timeout 60 sh -c 'sleep 0.3; exec "$0" run embedded --batch "$1" -n 2' "$mneme" <(printf '{"ids":[1,403]}\n{"ids":[1,404]}') </dev/null >"$work/out" 2>"$work/err" ||
    problem "exit code $?"
  json '[x["prompt_ids"] for x in all] == [[[1, 403]], [[1, 404]]]'
  last="run --batch <(...), whose writer is slow"
  timeout 60 "$mneme" run embedded --batch <(sleep 0.3; printf '{"ids":'; sleep 0.2; printf '[1,403]}\n') -n 2 </dev/null >"$work/out" 2>"$work/err" ||
    problem "exit code $?"
  json '[x["prompt_ids"] for x in all] == [[[1, 403]]]'
}

lines_are_of_any_kind() {
  printf '\n  \t\r\n{"ids":[1,403]}\r\n\n{"ids":[1,404]}' >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl" -n 2
  json '[x["prompt_ids"] for x in all] == [[[1, 403]], [[1, 404]]]'
  cp "$work/out" "$work/plain"
  last="run --batch <(...)"
  "$mneme" run embedded --batch <(cat "$work/b.jsonl") -n 2 >"$work/out" 2>"$work/err" || problem "exit code $?"
  json '[x["prompt_ids"] for x in all] == [[[1, 403]], [[1, 404]]]'
  { printf '{"prompt":"'; head -c 200000 /dev/zero | tr '\0' a; printf '"}\n'; } >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl" # longer than what is read at once, and than the context
  err_has "line 1: the prompt has [0-9]+ tokens"
  printf '\n \n' >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl"
  err_has "holds no lines"
  err_is_sentence
  expect 1 run embedded --batch "$work/absent.jsonl"
  err_has "absent.jsonl"
  expect 1 run embedded --batch "$work"
  err_is_sentence
}

# A bad line among the first refuses the run; later, those before it are answered.
# What callers need to find their lines again comes back; OpenAI's names of fields are understood.
callers_names() {
  local line
  printf '%s\n' '{"id": 7, "custom_id": "a\u00e9", "metadata": {"k": [1, null]}, "ids": [1, 403], "max_tokens": 3, "ignore_eos": true}' \
    '{"prompt": "Once upon a", "max_completion_tokens": 9, "stop": "there", "user": "me", "stream": false}' \
    '{"prompt": "Once upon a", "max_new_tokens": 9, "stop": ["zzz", "there"], "n": 1, "max_tokens": null}' \
    '{"ids": [1], "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a cat"]}}}}' >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl"
  err_empty
  json '[j["id"], j["custom_id"], j["metadata"]] == [7, "aé", {"k": [1, None]}] and len(j["sequences"][0]["ids"]) == 3'
  json 'not {"id", "custom_id", "metadata"} & set(all[1])'
  json '[x["sequences"][0]["finish_reason"] for x in all[1:3]] == ["stop_string"] * 2 and all[2]["sequences"][0]["text"].startswith("time")'
  json 'all[3]["sequences"][0]["text"] == "\"a cat\""'
  printf '%s\n' '{"prompt": [1, 403], "max_tokens": 2, "n": 9, "temperature": 1, "seed": 1}' '{"prompt": "Once", "n": null, "max_tokens": 2}' >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl" # more answers than a request to the server may have
  json 'j["prompt_ids"] == [[1, 403]] and [len(x["sequences"]) for x in all] == [9, 1]'
  for line in '{"ids": [1], "max_token": 3}' '{"ids": [1], "model": "m"}' '{"ids": [1], "stream": true}' '{"ids": [1], "response_format": {"type": "xml"}}'; do
    echo "$line" >"$work/b.jsonl"
    expect 2 run embedded --batch "$work/b.jsonl" -n 2
    err_is_sentence
    err_has 'line 1: .*(max_token|model|stream|response_format)'
    out_empty
  done
}

# openai URL BODY: a line of OpenAI's batch format.
openai() { printf '{"custom_id": "request-%s", "method": "POST", "url": "/v1/%s", "body": {"model": "gpt", %s}}\n' "$1" "$2" "$3"; }

openai_lines() {
  local line ids chat=$work/chat
  {
    openai 1 completions '"prompt": "Once upon a", "max_tokens": 4, "temperature": 0, "metadata": {"a": "b"}, "logprobs": null'
    openai 2 completions '"prompt": [1, 403, 407], "max_tokens": 40, "stop": "was", "temperature": 0'
    openai 3 completions '"prompt": ["Once upon a"], "max_tokens": 4, "n": 2, "temperature": 0.7, "seed": 3'
    echo '{"prompt": "Once upon a", "max_tokens": 4}'
  } >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl"
  json '[x.get("custom_id") for x in all] == ["request-1", "request-2", "request-3", None]'
  json 'set(j) == {"id", "custom_id", "response", "error"} and j["error"] is None and j["response"]["status_code"] == 200 and len({x["id"] for x in all[:3]}) == 3'
  json '(lambda b: b["object"] == "text_completion" and b["usage"]["prompt_tokens"] == 4 and b["usage"]["completion_tokens"] == 4 and b["usage"]["total_tokens"] == 8)(j["response"]["body"])'
  json 'j["response"]["body"]["choices"] == [{"index": 0, "text": all[3]["sequences"][0]["text"], "logprobs": None, "finish_reason": "length"}]'
  json 'all[1]["response"]["body"]["choices"][0]["finish_reason"] == "stop" and not all[1]["response"]["body"]["choices"][0]["text"].endswith("was")'
  json '[c["index"] for c in all[2]["response"]["body"]["choices"]] == [0, 1]'
  # As on the server's routes: null is as if the field were absent, and some fields have no effect.
  {
    openai 1 completions '"prompt": "Once upon a", "max_tokens": 4, "temperature": 0'
    openai 2 completions '"prompt": "Once upon a", "max_tokens": 4, "top_k": null, "echo": false, "prompt_cache_retention": "24h"'
    openai 3 chat/completions '"prompt": "Once upon a", "max_tokens": 4, "reasoning_effort": "low", "verbosity": "low", "modalities": ["text"], "logprobs": false, "top_logprobs": 0'
  } >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl" --temperature 9 --top-k 1 # which leaves the best token alone to be drawn
  json 'all_of(x["response"]["body"]["choices"][0].get("text", "") in ("", j["response"]["body"]["choices"][0]["text"]) for x in all) and all[2]["response"]["body"]["choices"][0]["message"]["content"] == j["response"]["body"]["choices"][0]["text"]'
  # Chats go through the template, completions do not.
  cp -r "$here/../../models-embedded/stories260K" "$chat"
  echo '{"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"}' >"$chat/tokenizer_config.json"
  {
    openai 1 chat/completions '"messages": [{"role": "user", "content": "Tell a story"}], "max_completion_tokens": 5, "temperature": 0'
    openai 2 completions '"prompt": "Tell a story", "max_tokens": 5, "temperature": 0'
    printf '%s\n' '{"messages": [{"role": "user", "content": "Tell a story"}], "max_tokens": 5}'
  } >"$work/b.jsonl"
  expect 0 run "$chat" --batch "$work/b.jsonl"
  json 'j["response"]["body"]["object"] == "chat.completion" and j["response"]["body"]["usage"]["prompt_tokens"] == len(all[2]["prompt_ids"][0])'
  json 'j["response"]["body"]["choices"][0]["message"] == {"role": "assistant", "content": all[2]["sequences"][0]["text"], "refusal": None}'
  ids=$("$mneme" tokenize "$chat" -p "Tell a story" | tr ',' '\n' | wc -l)
  json "all[1]['response']['body']['usage']['prompt_tokens'] == $ids"
  # Parts of text, a developer and a call as clients send them are those that the template takes.
  echo '{"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{% for m in messages %}{{ m.role + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}|{% endfor %}"}' >"$chat/tokenizer_config.json"
  local call='"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments":'
  {
    openai 1 chat/completions '"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]}, {"role": "assistant", "content": null, '"$call"' "{\"city\": \"Bonn\"}"}}]}], "max_tokens": 1'
    printf '%s\n' '{"messages": [{"role": "system", "content": "Be brief"}, {"role": "assistant", "content": "", '"$call"' {"city": "Bonn"}}}]}], "max_tokens": 1}'
  } >"$work/b.jsonl"
  expect 0 run "$chat" --batch "$work/b.jsonl" --ignore-eos
  json 'all[0]["response"]["body"]["usage"]["prompt_tokens"] == len(all[1]["prompt_ids"][0]) > 20'
  json 'all[0]["response"]["body"]["choices"][0]["message"]["content"] == all[1]["sequences"][0]["text"]'
  while IFS='|' read -r line message; do
    echo "$line" >"$work/b.jsonl"
    expect 2 run "$chat" --batch "$work/b.jsonl" -n 2
    err_is_sentence
    err_has "line 1: .*$message"
    out_empty
  done <<'LINES'
{"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}}|'messages' has at 0 a part that is no text, allowed: \{"type": "text"
{"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": [3]}}|'messages' has at 0 no message, allowed: objects with 'role'
{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}}|method is GET, allowed: POST
{"custom_id": "a", "url": "/v1/embeddings", "body": {"prompt": "x"}}|url is /v1/embeddings, allowed: /v1/chat/completions
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}, "priority": 1}|'priority' is unknown beside a body, allowed: custom_id
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "tool": []}}|'tool' is no field
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "stream": true}}|stream is not for lines of a batch
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": ["x", "y"]}}|prompt is a list of 2, allowed: one prompt
{"custom_id": "a", "url": "/v1/completions", "body": []}|body is no object
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "logprobs": 2}}|logprobs is not for lines of a batch, allowed: false
{"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "x"}], "logprobs": true}}|logprobs is not for lines of a batch
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "echo": true}}|echo is not for lines of a batch
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "temperature": "hot"}}|'temperature' is "hot", allowed: 0 to 100
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "temperature": NaN}}|'temperature' is NaN, allowed: 0 to 100
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "top_p": 2}}|'top_p' is 2, allowed: 0 to 1
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "n": 0}}|'n' is 0, allowed: whole numbers from 1 to
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}}|'response_format' is .*, allowed: type 'text'
{"ids": [1], "max_tokens": 0}|'max_tokens' is 0, allowed: whole numbers from 1 to 1048576
{"ids": [1], "stop": ["a", ""]}|'stop' is \["a",""\], allowed: a string or up to 16
{"prompt": "x", "messages": []}|'messages' is \[\], allowed: a list of messages
LINES
}

bad_lines() {
  { numbered_lines 6; echo '{"ids": [1], "tempreature": 1}'; numbered_lines 3; } >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl"
  err_has "line 7: .*tempreature"
  err_is_sentence
  out_empty
  expect 2 run embedded --batch "$work/b.jsonl" --batch-size 2
  err_has "line 7: .*tempreature"
  err_is_sentence
  json '[x["sequences"][0]["row"] for x in all] == list(range(6))'
  expect 2 run embedded --batch "$work/b.jsonl" --batch-size 2 --json
  json '[x["sequences"][0]["row"] for x in all[:-1]] == list(range(6)) and "line 7" in all[-1]["error"]["message"]'
  { numbered_lines 1; printf '{"ids":[1,5],"num_beams":2,"suppress_tokens":['; seq -s, 0 511 | tr -d '\n'; printf ']}\n'; numbered_lines 2; } >"$work/b.jsonl"
  expect 2 run embedded --batch "$work/b.jsonl" # a line that fails when it is computed leaves the others alone
  err_has "line 2: no token is left"
  json '[x["sequences"][0]["row"] for x in all] == [0, 2, 3]'
}

# peak N: the most memory of a run of N lines, in KiB.
peak() {
  numbered_lines "$1" >"$work/b.jsonl"
  python3 -c 'import resource,subprocess,sys
with open(sys.argv[1], "wb") as out:
    code = subprocess.run(sys.argv[2:], stdout=out).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$work/out" "$mneme" run embedded --batch "$work/b.jsonl" -n 8
}

memory_is_that_of_the_rows_in_work() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  local few many n=300
  [ "${MNEME_LONG:-0}" != 1 ] || n=8000
  last="--batch of $n lines"
  few=$(peak 30)
  many=$(peak $n)
  [ "${few%% *}${many%% *}" = 00 ] || problem "exit codes ${few%% *} ${many%% *}"
  [ "$(wc -l <"$work/out")" = $n ] || problem "$(wc -l <"$work/out") answers"
  [ "${many##* }" -le $((${few##* } + 2048)) ] ||
    problem "$n lines take ${many##* } KiB, 30 lines ${few##* }"
}

# Interrupts a job in the background when it has answered something.
interrupt() {
  local code
  for _ in $(seq 6000); do
    [ ! -s "$work/out" ] || break
    sleep 0.05
  done
  kill -INT "$1"
  wait "$1"
  code=$?
  [ $code = 5 ] || problem "exit code $code"
}

closed_pipes_and_signals() {
  local code
  numbered_lines 3000 >"$work/b.jsonl"
  last="run --batch | head -1"
  "$mneme" run embedded --batch "$work/b.jsonl" 2>"$work/err" | head -1 >"$work/out"
  code=${PIPESTATUS[0]} # the answers are more than a pipe holds
  [ "$code" = 1 ] || problem "exit code $code"
  err_empty
  json 'len(all) == 1'
  last="run --batch, SIGINT"
  printf '{"ids":[1,403],"max_new_tokens":3}\n{"ids":[1,404],"max_new_tokens":900000,"ignore_eos":true}\n{"ids":[1,405],"max_new_tokens":2}\n' >"$work/b.jsonl"
  background run embedded --batch "$work/b.jsonl" --max-cache-len 1000000
  interrupt $!
  json '[x["sequences"][0]["finish_reason"] for x in all] == ["length", "cancelled", "length"] and len(all[1]["sequences"][0]["ids"]) > 0'
  last="run --batch, SIGINT between lines"
  : >"$work/out"
  "$mneme" run embedded --batch - <"$work/in" >"$work/out" 2>"$work/err" &
  exec 7>"$work/in"
  printf '{"ids":[1,403],"max_new_tokens":3}\n' >&7
  interrupt $!
  exec 7>&-
  json 'len(all) == 1'
}

rows_have_caches_of_their_own() {
  numbered_lines 5 >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl" --batch-size 2
  json 'all_of(x["cache"]["tokens"] == 2 + len(x["sequences"][0]["ids"]) and x["seed"] >= 0 for x in all)'
  expect 0 run embedded --batch "$work/b.jsonl" --cache static
  json '[x["cache"]["max_cache_len"] for x in all] == [4 + i * 5 % 37 for i in range(5)]'
  printf 'Once upon a time there was a little' >"$work/prefix.txt"
  printf '{"prompt":" dog"}\n{"prompt":" girl named Lily"}\n' >"$work/b.jsonl"
  expect 0 run embedded --raw --prefix-file "$work/prefix.txt" --batch "$work/b.jsonl" -n 12 --cache static
  json 'all_of(x["usage"]["cached_tokens"] >= 8 for x in all)'
  cp "$work/out" "$work/static"
  expect 0 run embedded --raw --prefix-file "$work/prefix.txt" --batch "$work/b.jsonl" -n 12
  if [ $have_python = 1 ]; then
    rows_of "$work/static" >"$work/wanted"
    rows_of "$work/out" | cmp -s - "$work/wanted" || problem "static behind a prefix gives other answers"
  fi
}

# The scores of all rows side by side, those of each as alone.
scores_of_all_rows() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  printf '{"ids":[1,403],"max_new_tokens":5,"ignore_eos":true}\n{"ids":[1,404,9],"max_new_tokens":2,"ignore_eos":true}\n' >"$work/b.jsonl"
  expect 0 run embedded --batch "$work/b.jsonl" --logits-out "$work/all.safetensors" --unordered
  expect 0 run embedded --ids 1,403 -n 5 --ignore-eos --logits-out "$work/first.safetensors" --json
  expect 0 run embedded --ids 1,404,9 -n 2 --ignore-eos --logits-out "$work/second.safetensors" --json
  python3 - "$work" <<'PYTHON' || problem "scores are not those of the rows alone"
import json, math, struct, sys
def load(name):
    raw = open(sys.argv[1] + "/" + name + ".safetensors", "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    t = json.loads(raw[8:8 + n])["logits"]
    return t["shape"], memoryview(raw[8 + n:]).cast("f")
shape, all = load("all")
assert shape[:2] == [5, 2], shape
vocab = shape[2]
for row, name in enumerate(["first", "second"]):
    s, alone = load(name)
    for step in range(5):
        got = all[(step * 2 + row) * vocab:(step * 2 + row + 1) * vocab]
        wanted = alone[step * vocab:(step + 1) * vocab] if step < s[0] else None
        assert got == wanted if wanted else math.isnan(got[0]), (row, step)
PYTHON
}

check "any number of rows gives the same answers" any_number_of_rows_gives_the_same
check "a line is answered before the next one comes" answers_do_not_wait_for_lines
check "pipes end with their writers" pipes_end_with_their_writers
check "lines of any kind" lines_are_of_any_kind
check "names that callers use" callers_names
check "lines of OpenAI's batch format" openai_lines
check "bad lines" bad_lines
check "the memory is that of the rows in work" memory_is_that_of_the_rows_in_work
check "closed pipes and signals" closed_pipes_and_signals
check "rows have caches of their own" rows_have_caches_of_their_own
check "scores of all rows" scores_of_all_rows
finish
