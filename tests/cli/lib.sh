# Helpers of the command's tests: run a case, compare, count. Sourced by the groups beside it.
# shellcheck shell=bash
set -uo pipefail
# Also by hand in an environment of its own.
[ -n "${MNEME_TEST_RUN:-}" ] || exec "$(dirname "$0")/../run" "$0" "$@"
mneme=$1
# shellcheck disable=SC2034
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
# Not from a subshell that a signal ends before it became the command.
trap '[ "$BASHPID" != $$ ] || rm -rf "$work"' EXIT
# SmolLM2, when it is on this machine.
# shellcheck disable=SC2034
smollm2=${MNEME_TEST_SMOLLM2:-$MNEME_TEST_MODELS/SmolLM2-135M-Instruct.Q4_1.gguf}
exec </dev/null # no command reads what the runner was given
export XDG_CONFIG_HOME=$work/config MNEME_MODELS=$work/models HF_HUB_CACHE=$work/hub
passed=0 failed=0 skipped=0

# expect EXIT ARGUMENTS...: runs the command; its streams are in $work/out and $work/err. stdin is empty unless $input names
# a file.
expect() {
  local wanted=$1 code=0
  shift
  last="mneme $*"
  "$mneme" "$@" <"${input:-/dev/null}" >"$work/out" 2>"$work/err" || code=$?
  [ $code = "$wanted" ] && return 0
  problem "exit code $code, expected $wanted"
}

# background ARGUMENTS...: starts the command as process $!; when this returns, its streams in $work/out and $work/err have nothing of
# an earlier one, so a test may wait for what they will have.
background() {
  : >"$work/out"
  : >"$work/err"
  "$mneme" "$@" >"$work/out" 2>"$work/err" &
}

problem() {
  echo "FAIL: $last: $*"
  head -c 600 "$work/out"
  head -c 600 "$work/err"
  bad=1
  return 1
}

# The streams hold, or are, something.
out_has() { grep -qE -- "$1" "$work/out" || problem "stdout lacks '$1'"; }
err_has() { grep -qE -- "$1" "$work/err" || problem "stderr lacks '$1'"; }
out_is() { [ "$(cat "$work/out")" = "$1" ] || problem "stdout is not '$1'"; }
out_empty() { [ ! -s "$work/out" ] || problem "stdout is not empty"; }
err_empty() { [ ! -s "$work/err" ] || problem "stderr is not empty"; }
# One sentence: a single line that begins as every message does.
err_is_sentence() {
  [ "$(wc -l <"$work/err")" = 1 ] || problem "stderr is not one line"
  err_has '^mneme: .+'
}

have_python=0
if command -v python3 >/dev/null; then have_python=1; fi

# One Python for all expressions of a group: it starts with the first, and ends with this shell.
start_python() {
  mkfifo "$work/ask" "$work/answer"
  python3 "$here/expressions.py" <"$work/ask" >"$work/answer" &
  exec {asking}>"$work/ask" {answers}<"$work/answer"
}

# json EXPRESSION [TEXT...]: stdout is JSON (one value a line) and the Python expression holds over `j` (the first value), `all`, the
# folder `work` and the texts `args`.
json() {
  local answer=''
  if [ $have_python = 0 ]; then uncounted=1; return 0; fi
  [ -n "${asking:-}" ] || start_python
  printf '%s\0' $# "$(pwd)" "$work" "$@" >&"$asking"
  read -r answer <&"$answers"
  [ "$answer" = true ] || problem "JSON: not so: $1"
}

# check NAME FUNCTION: one case.
check() {
  bad=0 uncounted=0 input='' last=''
  "$2" || true
  if [ $bad = 1 ]; then
    echo "[  FAILED  ] $1"
    failed=$((failed + 1))
  elif [ $uncounted = 1 ]; then
    skipped=$((skipped + 1))
  else
    passed=$((passed + 1))
  fi
}

finish() {
  echo "[  PASSED  ] $passed test(s)."
  [ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)."
  if [ $((passed + skipped + failed)) = 0 ]; then
    echo "no case was run"
    failed=1
  fi
  if [ $failed -gt 0 ]; then
    echo "[  FAILED  ] $failed test(s)."
    exit 1
  fi
}
