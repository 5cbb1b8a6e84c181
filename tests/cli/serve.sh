#!/usr/bin/env bash
# The start of `mneme serve`: its options, and what it refuses.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
key=a-key-of-this-test-0123

# start ARGUMENTS...: a server of the embedded model; its process is $server, what it says is in $work/server.
start() {
  last="mneme serve embedded $*"
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

port_in_use() {
  local port
  start --port 0 || return 0
  port=$(sed -nE 's/^listening on http:\/\/127\.0\.0\.1:([0-9]+) .*/\1/p' "$work/server")
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

check "a port in use is refused" port_in_use
check "paths of sockets that cannot be used are refused" paths_of_sockets
check "key files that others may use are refused" key_files_are_private
finish
