#!/usr/bin/env bash
# The output of every command on a terminal. usage: terminal.sh MNEME MAKE_CACHE SHOW_PIECES
set -uo pipefail
if ! command -v python3 >/dev/null; then
  echo "no python3: no terminal can be made"
  echo "[  SKIPPED ] 1 test(s)."
  exit 0
fi
exec python3 "$(dirname "$0")/terminal.py" "${@:1:3}"
