#!/usr/bin/env bash
# The examples of README.md with SmolLM2, where it is installed: they print the output that the page shows.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"

page=$here/../../README.md

# The block below a line that begins with "$ build/release/mneme COMMAND ".
block_of() { sed -n "/^\\$ build\/release\/mneme $1 /,/^\`\`\`/p" "$page" | sed '1d;$d'; }

conversation() {
  if [ ! -f "$smollm2" ]; then uncounted=1; return; fi
  block_of chat | sed -n 's/^> //p' >"$work/lines"
  block_of chat | grep -v '^> ' | sort >"$work/shown"
  [ "$(wc -l <"$work/lines")" -ge 4 ] || problem "README.md has no conversation"
  input=$work/lines expect 0 chat "$smollm2" --greedy
  sort "$work/out" "$work/err" | diff - "$work/shown" || problem "README.md shows something else"
}

# The server is one on another port; the second answer says what the text says.
server() {
  if [ ! -f "$smollm2" ] || ! command -v curl >/dev/null; then uncounted=1; return; fi
  local pid url=
  block_of serve >"$work/shown"
  sed -n '/^\$ curl/,/grep/p' "$work/shown" | sed 's/^\$ //' >"$work/request"
  sed '1,/grep/d' "$work/shown" >"$work/wanted"
  last="mneme serve"
  background serve "$smollm2" --port 0
  pid=$!
  for _ in $(seq 6000); do
    url=$(grep -oE 'http://[0-9.:]+' "$work/err") && break
    sleep 0.05
  done
  diff <(sed "s,$url,http://127.0.0.1:8080," "$work/err") <(head -1 "$work/shown") || problem "README.md shows another first line"
  sed -i "s,http://127.0.0.1:8080,$url," "$work/request"
  bash "$work/request" | diff - "$work/wanted" || problem "README.md shows another answer"
  [ "$(wc -l <"$work/wanted")" = 3 ] || problem "README.md has no answer"
  bash "$work/request" | grep -qx '"cached_tokens":36' || problem "the second request has other cached tokens"
  kill -TERM $pid
  wait $pid || problem "exit code $?"
}

# Two thousand tokens with four caches: in the long tier.
comparison() {
  if [ ! -f "$smollm2" ] || [ "${MNEME_LONG:-0}" != 1 ]; then uncounted=1; return; fi
  expect 0 bench "$smollm2" --cache dynamic,quantized,sink,quantized+sink --text "$here/../../LICENSE" -n 64
  block_of bench >"$work/shown"
  [ "$(wc -l <"$work/shown")" = 6 ] || problem "README.md has no table"
  grep '^|' "$work/out" | cut -d'|' -f1-3,8-12 | diff - "$work/shown" || problem "README.md shows something else"
}

check "the conversation" conversation
check "the server" server
check "the comparison of caches" comparison
finish
