#!/usr/bin/env bash
# `mneme chat`: every command, on pipes and on a pseudo terminal. usage: chat_turns.sh MNEME ...
set -uo pipefail
if ! command -v python3 >/dev/null; then
  echo "no python3: the conversations cannot be driven"
  echo "[  SKIPPED ] 1 test(s)."
  exit 0
fi
exec python3 "$(dirname "$0")/chat_turns.py" "$1"
