#!/usr/bin/env bash
# The start and the end of `mneme serve`: its options, and what it refuses.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
list_options=${4:-}
key=a-key-of-this-test-0123

# start ARGUMENTS...: a server of the embedded model; its process is $server, what it says is in $work/server.
start() {
  last="mneme serve embedded $*"
  : >"$work/server" # what an earlier one said is not this one's
  "$mneme" serve embedded "$@" 2>"$work/server" &
  server=$!
  for _ in $(seq 6000); do
    ! grep -q '^listening on ' "$work/server" || return 0
    kill -0 $server 2>/dev/null || break
    sleep 0.05
  done
  problem "does not listen: $(head -c 300 "$work/server")"
}

stop() {
  local code=0
  kill -TERM $server
  wait $server || code=$?
  [ $code = 0 ] || problem "exit code $code"
}

# refused ARGUMENTS...: the server does not start; one that did would run for ever.
refused() {
  local code=0
  last="mneme serve embedded $*"
  timeout 60 "$mneme" serve embedded "$@" >"$work/out" 2>"$work/err" || code=$?
  [ $code = 2 ] || problem "exit code $code, expected 2"
  err_is_sentence
  out_empty
}

# The port of the server.
port() { sed -nE 's/^listening on http:\/\/127\.0\.0\.1:([0-9]+) .*/\1/p' "$work/server"; }

port_in_use() {
  local port
  start --port 0 || return 0
  port=$(port)
  refused --port "$port"
  err_has "cannot listen on 127\.0\.0\.1 port $port: .*; another program does, choose another with --port$"
  stop
  refused --host 192.0.2.1 --port 0 --allow-remote # an address for documentation (RFC 5737), of no machine
  err_has "cannot listen on 192\.0\.2\.1 port 0: "
}

paths_of_sockets() {
  local long
  start --unix "$work/socket" || return 0
  [ "$(stat -c %a "$work/socket")" = 600 ] || problem "the socket has mode $(stat -c %a "$work/socket")"
  refused --unix "$work/socket"
  err_has "cannot listen at '$work/socket': another program does, choose another with --unix$"
  [ -S "$work/socket" ] || problem "the socket of the first server is gone"
  stop
  [ ! -e "$work/socket" ] || problem "the socket is left"
  echo text >"$work/file"
  refused --unix "$work/file"
  err_has "'$work/file' exists and is no socket$"
  [ "$(cat "$work/file")" = text ] || problem "the file was changed"
  refused --unix "$work/none/socket"
  err_has "cannot listen at '$work/none/socket': No such file or directory$"
  long=/tmp/$(printf 'x%.0s' $(seq 104)) # 109 bytes: sun_path has 108 with its end
  refused --unix "$long"
  err_has "the path of the socket has 109 bytes, allowed: up to 107$"
}

# Nobody else may read the file of API keys; what it has is not shown.
key_files_are_private() {
  local mode
  echo $key >"$work/keys"
  for mode in 644 640 604 620 602 610; do
    chmod $mode "$work/keys"
    refused --port 0 --api-key-file "$work/keys"
    err_has "the key file '$work/keys' has mode 0$mode: others may use it; allowed: 0600 or 0400$"
    ! grep -q "$key" "$work/err" || problem "the key is shown"
  done
  for mode in 600 400; do
    chmod $mode "$work/keys"
    start --port 0 --api-key-file "$work/keys" || return 0
    stop
  done
  expect 1 serve embedded --port 0 --api-key-file "$work/none"
  err_is_sentence
  err_has "$work/none"
}

# stream N TOKENS: N streamed answers of so many tokens each; "answering" in $work/client when all have begun, and the tokens of
# all when they have ended.
stream() {
  : >"$work/client" # what an earlier one wrote is not this one's answer
  python3 - "$(port)" "$1" "$2" >"$work/client" 2>&1 <<'PYTHON' &
import json, re, socket, sys
port, n, tokens = map(int, sys.argv[1:])
body = json.dumps({"prompt": "Once", "max_tokens": tokens, "min_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}).encode()
sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(n)]
for s in sockets:
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
answers = [s.recv(65536) for s in sockets]
print("answering", flush=True)
for i, s in enumerate(sockets):
    while piece := s.recv(65536):
        answers[i] += piece
print(sum(int(k) for a in answers for k in re.findall(rb'"completion_tokens":(\d+)', a)))
PYTHON
  client=$!
  for _ in $(seq 6000); do
    ! grep -q answering "$work/client" || return 0
    sleep 0.01
  done
  problem "no answer"
}

# Requests that run have --drain-timeout seconds to end.
requests_may_end() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  start --port 0 || return 0
  stream 2 400
  stop
  wait $client
  [ "$(tail -n 1 "$work/client")" = 800 ] || problem "answers were cut off: $(tail -n 1 "$work/client")"
  start --port 0 --drain-timeout 0 || return 0
  stream 64 500
  stop
  wait $client
  [ "$(tail -n 1 "$work/client")" -lt 32000 ] || problem "the server waited: $(tail -n 1 "$work/client")"
  refused --drain-timeout=-1
  err_has "drain-timeout: -1 is out of range; allowed: 0 to 86400"
}

# logged ARGUMENTS...: $work/out is the log of two requests.
logged() {
  start --port 0 --log-requests "$@" || return 0
  python3 - "$(port)" <<'PYTHON' || problem "no answers"
import http.client, json, sys
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
c.request("POST", "/v1/completions", json.dumps({"prompt": "Once upon", "max_tokens": 5, "ignore_eos": True}), {"Content-Type": "application/json"})
assert c.getresponse().read()
c.request("GET", "/secret")
assert c.getresponse().read()
PYTHON
  stop
  sed 1d "$work/server" | grep -v "^this kernel" >"$work/out"
}

formats_of_the_log() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  logged --log-format json
  json '[list(line) for line in all] == [["time", "method", "path", "status", "ms", "id", "prompt_tokens", "cached_tokens", "completion_tokens"], ["time", "method", "path", "status", "ms"]]'
  json '[(line["method"], line["path"], line["status"]) for line in all] == [("POST", "/v1/completions", 200), ("-", "-", 404)]'
  json '(j["prompt_tokens"], j["cached_tokens"], j["completion_tokens"]) == (3, 0, 5) and j["ms"] > 0 and j["id"].startswith("cmpl-") and j["time"].endswith("Z")'
  logged
  out_has '^20[0-9-]{8}T[0-9:]{8}Z POST /v1/completions status=200 ms=[0-9.]+ id=cmpl-[0-9a-z]+ prompt_tokens=3 cached_tokens=0 completion_tokens=5$'
  out_has '^20[0-9-]{8}T[0-9:]{8}Z - - status=404 ms=[0-9.]+$'
  refused --log-requests --log-format xml
  err_has "log-format: 'xml' is not one of text\|json"
  refused --log-format json
  err_has "log-format 'json' is given without --log-requests"
}

# ask METHOD PATH [BODY]: status and body of an answer in $work/out.
ask() {
  python3 - "$(port)" "$@" >"$work/out" <<'PYTHON' || problem "no answer"
import http.client, json, sys
port, method, path, *body = sys.argv[1:]
c = http.client.HTTPConnection("127.0.0.1", int(port))
c.request(method, path, *body, headers={"Content-Type": "application/json"})
r = c.getresponse()
print(json.dumps([r.status, json.loads(r.read())]))
PYTHON
}

# The same answer with and without what a prompt before it has computed.
without_a_prefix_cache() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  local option text n=0 ask='{"prompt": "Once upon a time, there was a little", "max_tokens": 8, "temperature": 0, "ignore_eos": true}'
  for option in --prefix-memory=1M --no-prefix-cache; do
    start --port 0 $option || return 0
    ask POST /v1/completions "$ask"
    json 'j[0] == 200'
    ask POST /v1/completions "$ask"
    if [ $option = --no-prefix-cache ]; then
      json 'j[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0'
      json 'j[1]["choices"][0]["text"] == args[0]' "$text"
      ask POST /v1/caches '{"prompt": "Once"}'
      json 'j[0] == 501 and "--no-prefix-cache" in j[1]["error"]["message"]'
      ask GET /v1/caches
      json 'j[0] == 200 and j[1]["data"] == []'
    else
      json 'j[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == j[1]["usage"]["prompt_tokens"] - 1'
      text=$(python3 -c 'import json, sys; sys.stdout.write(json.load(open(sys.argv[1]))[1]["choices"][0]["text"])' "$work/out")
      ask GET /v1/caches
      json '0 < j[1]["tiers"]["memory"]["bytes"] <= 1 << 20'
    fi
    n=$((n + 1))
    stop
  done
  [ $n = 2 ] || problem "$n servers"
  refused --no-prefix-cache --cache-dir "$work/caches"
  err_has "no-prefix-cache is given with --cache-dir; allowed: without it$"
  refused --no-prefix-cache --prefix-memory 1M
  err_has "no-prefix-cache is given with --prefix-memory"
  refused --prefix-memory 0
  err_has "prefix-memory"
}

# The table of docs/serve.md has every option of the server, and no other.
documented_options() {
  local row flag found
  last="docs/serve.md"
  [ -x "$list_options" ] || { problem "no list_options"; return; }
  sed -n '/^| option | | default |$/,/^$/p' "$here/../../docs/serve.md" | sed '/^$/q' | cut -d '|' -f 2 | grep -oE -- '--[a-z][a-z-]+' >"$work/documented"
  "$list_options" serve >"$work/listed"
  [ "$(wc -l <"$work/listed")" -gt 20 ] || problem "$(wc -l <"$work/listed") options only"
  while read -r row; do
    found=0
    for flag in $row; do ! grep -qxe "$flag" "$work/documented" || found=1; done
    [ $found = 1 ] || problem "the table lacks $row"
  done <"$work/listed"
  while read -r flag; do
    tr ' ' '\n' <"$work/listed" | grep -qxe "$flag" || problem "$flag is no option of mneme serve"
  done <"$work/documented"
}

check "a port in use is refused" port_in_use
check "paths of sockets that cannot be used are refused" paths_of_sockets
check "key files that others may use are refused" key_files_are_private
check "requests that run may end" requests_may_end
check "the formats of the log" formats_of_the_log
check "the server without a prefix cache" without_a_prefix_cache
check "docs/serve.md has the options" documented_options
finish
