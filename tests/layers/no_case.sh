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
counted() { # counted FILE: passed, failed and skipped after add_counts of scripts/test
  passed=0 failed=0 skipped=0 failures=$work/failures
  eval "$(sed -n '/^fail_case() {/,/^}/p; /^add_counts() {/,/^}/p' "$source/scripts/test")"
  add_counts "$1" none >/dev/null 2>&1
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

# cmocka's programs: what CTest wrote down is counted, and the failed cases are listed with the end of their output.
cat >"$work/log" <<'LOG'
1/6 Testing: a/test_none
Output:
----------------------------------------------------------
[==========] Running 0 test(s).
[  PASSED  ] 0 test(s).
<end of output>
Test time =   0.10 sec
----------------------------------------------------------
Test Passed.
2/6 Testing: a/test_two
Output:
----------------------------------------------------------
[ RUN      ] good
[       OK ] good
[ RUN      ] bad case
1 is not 2
[  FAILED  ] bad case
[==========] 2 test(s) run.
[  PASSED  ] 1 test(s).
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] bad case
<end of output>
Test time =   0.10 sec
----------------------------------------------------------
Test Failed.
3/6 Testing: a/test_crash
Output:
----------------------------------------------------------
[ RUN      ] early
Segmentation fault
<end of output>
Test time =   0.10 sec
----------------------------------------------------------
Test Failed.
4/6 Testing: a/test_skips
Output:
----------------------------------------------------------
[  PASSED  ] 0 test(s).
[  SKIPPED ] 2 test(s).
<end of output>
Test time =   0.10 sec
----------------------------------------------------------
Test Passed.
5/6 Testing: a/test_empty
Output:
----------------------------------------------------------
[==========] Running 0 test(s).
<end of output>
Test time =   0.10 sec
----------------------------------------------------------
Test Fail Reason:
Error regular expression found in output. Regex=[Running 0 test]
6/6 Testing: a/script
Output:
----------------------------------------------------------
<end of output>
Test time =   0.10 sec
----------------------------------------------------------
Test Passed.
LOG
cat >"$work/wanted" <<'WANTED'
2 4 2
failed: a/test_none: it ran no case (b)
  | [==========] Running 0 test(s).
  | [  PASSED  ] 0 test(s).
failed: a/test_two: bad case (b)
  | 1 is not 2
failed: a/test_crash: Test Failed. (b)
  | Segmentation fault
failed: a/test_empty: Test Fail Reason: (b)
  | [==========] Running 0 test(s).
WANTED
: >"$work/failures"
awk -v failures="$work/failures" -v build=b -f "$source/tests/count.awk" "$work/log" >"$work/counts"
cat "$work/counts" "$work/failures" | diff "$work/wanted" - || complain "tests/count.awk counts something else"
# What programs of other runners printed.
for line in "0 passed, 0 failed, 0 skipped:0 1 0" "0 passed, 0 failed, 1 skipped:0 0 1" "2 passed, 0 failed, 0 skipped:2 0 0" "Traceback:0 1 0"; do
  echo "${line%:*}" >"$work/out"
  result=$(counted "$work/out")
  [ "$result" = "${line#*:}" ] || complain "scripts/test counts '${line%:*}' as $result"
done

[ $failed = 0 ] || { echo "[  FAILED  ] 1 test(s)."; exit 1; }
echo "[  PASSED  ] 1 test(s)."
