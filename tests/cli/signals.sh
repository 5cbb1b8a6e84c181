#!/usr/bin/env bash
# Ctrl-C, on a terminal and off one.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
# A text that takes long enough to be interrupted, however fast the machine.
endless=(run embedded "Once upon a time" --max-cache-len 1000000 --max-new-tokens 900000 --ignore-eos)

# Waits until a file holds a text, ten minutes at most.
wait_for() {
  for _ in $(seq 6000); do
    if grep -q "$2" "$1"; then return; fi
    sleep 0.1
  done
}

# Waits until a process has computed for so many hundredths of a second, ten minutes at most.
wait_for_work() {
  local stat
  for _ in $(seq 6000); do
    read -r -a stat <"/proc/$1/stat"
    if [ $((stat[13] + stat[14])) -ge "$2" ]; then return; fi
    sleep 0.1
  done
}

interrupt_keeps_the_partial_text() {
  local code=0 signal
  for signal in INT TERM; do
    last="run, SIG$signal"
    background "${endless[@]}"
    wait_for "$work/out" "there was"
    kill -$signal $!
    wait $!
    code=$?
    [ $code = 5 ] || problem "exit code $code"
    grep -q "there was" "$work/out" || problem "the partial text is lost"
    [ "$(tail -c 1 "$work/out" | wc -l)" = 1 ] || problem "no newline at the end"
  done
}

interrupt_in_json() {
  local code=0
  last="run --json, SIGINT"
  background "${endless[@]}" --json -v
  wait_for "$work/err" "loaded in"
  wait_for_work $! 20 # its prompt takes less than one of them
  kill -INT $!
  wait $!
  code=$?
  [ $code = 5 ] || problem "exit code $code"
  json 'j["sequences"][0]["finish_reason"] == "cancelled" and len(j["sequences"][0]["ids"]) > 0'
}

interrupt_of_score_leaves_nothing() {
  local code=0
  last="score --out, SIGINT"
  printf '5 %.0s' $(seq 60000) >"$work/ids"
  background score embedded --ids-file "$work/ids" --max-cache-len 100000 --chunk 16 -v --out "$work/x.safetensors"
  wait_for "$work/err" "loaded in"
  kill -INT $!
  wait $!
  code=$?
  [ $code = 5 ] || problem "exit code $code"
  [ -z "$(find "$work" -name 'x.safetensors*')" ] || problem "a file is left"
  [ ! -s "$work/out" ] || problem "stdout is not empty"
}

# Requests that are computed keep the server from ending; a second signal does not wait for them.
second_signal_ends_the_server() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  local server client code=0
  last="mneme serve, SIGTERM twice"
  background serve embedded --port 0
  server=$!
  wait_for "$work/err" "http://"
  python3 - "$(grep -oE '127.0.0.1:[0-9]+' "$work/err" | cut -d: -f2)" >"$work/out" <<'PYTHON' &
import json, socket, sys
body = json.dumps({"prompt": "Once", "n": 8, "temperature": 1, "max_tokens": 400, "min_tokens": 400, "stream": True}).encode()
sockets = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(64)]
for s in sockets:
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
for s in sockets:
    assert s.recv(15) == b"HTTP/1.1 200 OK"  # it is being computed, or waits
print("answering", flush=True)
for s in sockets:
    while s.recv(65536):
        pass
PYTHON
  client=$!
  wait_for "$work/out" "answering"
  while kill -TERM $server 2>/dev/null; do sleep 0.01; done
  wait $server || code=$?
  [ $code = 5 ] || problem "exit code $code"
  wait $client
}

progress_on_a_terminal_only() {
  if ! command -v script >/dev/null; then uncounted=1; return; fi
  last="run on a terminal"
  TERM=xterm script -qec "'$mneme' run embedded 'Once upon a time' -n 30" /dev/null </dev/null >"$work/out" 2>"$work/err" || problem "exit code $?"
  grep -q "tok/s" "$work/out" || problem "no summary"
  TERM=dumb script -qec "'$mneme' run embedded 'Once upon a time' -n 30" /dev/null </dev/null >"$work/out" || problem "exit code $?"
  ! grep -q "$(printf '\033')" "$work/out" || problem "escape sequences on a dumb terminal"
  expect 0 run embedded "Once upon a time" -n 30
  err_empty
}

check "SIGINT and SIGTERM leave the partial text" interrupt_keeps_the_partial_text
check "SIGINT with --json" interrupt_in_json
check "SIGINT leaves no half-written file" interrupt_of_score_leaves_nothing
check "a second signal ends the server" second_signal_ends_the_server
check "progress shows on a terminal only" progress_on_a_terminal_only
finish
