#!/usr/bin/env bash
# A program that ran no case fails, whichever runner it has.
# usage: no_case.sh SOURCE_FOLDER BUILD_FOLDER MNEME EMPTY_PROGRAM
set -uo pipefail
source=$1 build=$2 mneme=$3 empty=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
  echo "failed: $*"
  failed=$((failed + 1))
}
refuse() { # refuse NAME COMMAND...: the command has to fail for this reason
  if "${@:2}" >"$work/out" 2>&1 || ! grep -qx 'no case was run' "$work/out"; then
    complain "$1 does not fail because no case was run: $(cat "$work/out")"
  fi
}
counted() { # counted FUNCTION ARGUMENTS...: passed, failed and skipped after a function of scripts/test
  passed=0 failed=0 skipped=0
  eval "$(sed -n "/^$1() {/,/^}/p" "$source/scripts/test")"
  "$@" >/dev/null 2>&1
  echo "$passed $failed $skipped"
}

refuse tests/cli/lib.sh bash -c '. "$0/tests/cli/lib.sh" && finish' "$source" "$mneme"
if command -v python3 >/dev/null; then
  refuse tests/cli/terminal.py python3 "$source/tests/cli/terminal.py" "$mneme" "$mneme" "$mneme" no_such_case
  refuse tests/cli/chat_turns.py python3 "$source/tests/cli/chat_turns.py" "$mneme" no_such_case
fi

# A program of cmocka without a case, with the properties that CTest has for one with cases: CTest calls it failed.
properties=$(sed -n 's/^set_tests_properties(\[=\[base\/test_file\]=\] //p' "$build/tests/CTestTestfile.cmake")
[ -n "$properties" ] || complain "$build/tests/CTestTestfile.cmake has no properties of base/test_file"
"$empty" >/dev/null 2>&1 || complain "$empty fails by itself, so CTest's property is not tried"
printf 'add_test(a/none "%s")\nset_tests_properties(a/none %s\n' "$empty" "$properties" >"$work/CTestTestfile.cmake"
if ctest --test-dir "$work" >"$work/out" 2>&1; then complain "CTest lets a program without cases pass: $(cat "$work/out")"; fi
grep -q 'a/none.*Failed.*regular expression' "$work/out" || complain "CTest does not tell why a program without cases fails: $(cat "$work/out")"

# scripts/test counts what CTest wrote down, and what programs of other runners printed.
printf '1/1 Testing: a/test_none\n[  PASSED  ] 0 test(s).\nTest Passed.\n' >"$work/Testing/Temporary/LastTest.log"
result=$(counted count "$work")
[ "$result" = "0 1 0" ] || complain "scripts/test counts a program without cases as $result"
for line in "0 passed, 0 failed, 0 skipped:0 1 0" "0 passed, 0 failed, 1 skipped:0 0 1" "2 passed, 0 failed, 0 skipped:2 0 0" "Traceback:0 1 0"; do
  echo "${line%:*}" >"$work/out"
  result=$(counted add_counts "$work/out")
  [ "$result" = "${line#*:}" ] || complain "scripts/test counts '${line%:*}' as $result"
done

[ $failed = 0 ] || { echo "[  FAILED  ] 1 test(s)."; exit 1; }
echo "[  PASSED  ] 1 test(s)."
