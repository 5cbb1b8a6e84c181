#!/usr/bin/env bash
# The environment of tests is their own, whatever the user's: tests/run, which every test of CTest begins with.
# usage: environment.sh SOURCE_FOLDER BUILD_FOLDER
set -uo pipefail
run=$(realpath "$1")/tests/run build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
  echo "failed: $*"
  failed=$((failed + 1))
}

# What a test sees of a user who has set everything, except the folder of the test.
mkdir "$work/a b"
hostile=(PATH="$PATH" HOME=/a TMPDIR="$work/a b" TERM=xterm LC_ALL=POSIX LANG=tr_TR.UTF-8 TZ=Asia/Tokyo NO_COLOR=1 HF_HUB_CACHE=/hub
  XDG_CONFIG_HOME=/x XDG_DATA_HOME=/x XDG_STATE_HOME=/x XDG_CACHE_HOME=/x XDG_RUNTIME_DIR=/x MNEME_CALIBRATIONS=/c MNEME_MODEL=/m MNEME_CONFIG=/f
  MNEME_MAX_NEW_TOKENS=1 MNEME_MODELS=/models MNEME_LONG=1 MNEME_TEST_SMOLLM2="/a b.gguf")
wanted="HOME=FOLDER/home LC_ALL=C.UTF-8 MNEME_LONG=1 MNEME_TEST_MODELS=/models MNEME_TEST_RUN=1 MNEME_TEST_SMOLLM2=/a b.gguf PATH=$PATH TERM=dumb
TMPDIR=FOLDER TZ=UTC XDG_CACHE_HOME=FOLDER/cache XDG_CONFIG_HOME=FOLDER/config XDG_DATA_HOME=FOLDER/data XDG_RUNTIME_DIR=FOLDER/runtime
XDG_STATE_HOME=FOLDER/state"
env -i "${hostile[@]}" "$run" env >"$work/out" || complain "tests/run: exit code $?"
seen=$(sort "$work/out" | sed -E "s,$work/a b/mneme tést-[A-Za-z0-9]{6},FOLDER," | tr '\n' ' ')
[ "$seen" = "$(tr '\n' ' ' <<<"$wanted")" ] || complain "a test sees $seen"

# The exit code is the test's, its folders are there, and nothing is left.
code=0
env -i PATH="$PATH" TMPDIR="$work/a b" "$run" bash -c 'cd "$HOME" && mkdir -m 0 "$TMPDIR/closed" && touch "$HOME/file" && exit 77' >"$work/out" || code=$?
[ $code = 77 ] || complain "exit code $code, expected 77"
grep -qxF '[  SKIPPED ] 1 test(s).' "$work/out" || complain "a test that ends with 77 does not count as skipped"
[ -z "$(ls -A "$work/a b")" ] || complain "tests/run leaves $(ls -A "$work/a b")"

# Descriptors of the caller are closed; ls opens one for the folder.
seen=$(env -i PATH="$PATH" TMPDIR="$work/a b" "$run" ls /proc/self/fd 9</dev/null | tr '\n' ' ')
[ "$seen" = "0 1 2 3 " ] || complain "a test has the descriptors $seen"

others=$(find "$build" -name CTestTestfile.cmake -exec grep -h '^add_test(' {} + | grep -vF "] \"$run\" ")
[ -z "$others" ] || complain "CTest has tests without $run: $(head -3 <<<"$others")"

[ $failed = 0 ] || { echo "[  FAILED  ] 1 test(s)."; exit 1; }
echo "[  PASSED  ] 1 test(s)."
