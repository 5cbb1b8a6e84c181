#!/usr/bin/env bash
# A program that ran no case fails, whichever runner it has. usage: no_case.sh SOURCE_FOLDER MNEME
set -uo pipefail
source=$1 mneme=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
refuse() { # refuse NAME COMMAND...: the command has to fail
  if "${@:2}" >"$work/out" 2>&1; then
    echo "failed: $1 passes without a case: $(cat "$work/out")"
    failed=$((failed + 1))
  fi
}

refuse tests/cli/lib.sh bash -c '. "$0/tests/cli/lib.sh" && finish' "$source" "$mneme"
if command -v python3 >/dev/null; then
  refuse tests/cli/terminal.py python3 "$source/tests/cli/terminal.py" "$mneme" "$mneme" "$mneme" no_such_case
  refuse tests/cli/chat_turns.py python3 "$source/tests/cli/chat_turns.py" "$mneme" no_such_case
fi

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
[ RUN      ] bad
1 is not 2
[  FAILED  ] bad
[==========] 2 test(s) run.
[  PASSED  ] 1 test(s).
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] bad
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
failed: a/test_two: bad (b)
  | 1 is not 2
failed: a/test_crash: Test Failed. (b)
  | Segmentation fault
failed: a/test_empty: Test Fail Reason: (b)
  | [==========] Running 0 test(s).
WANTED
: >"$work/failures"
awk -v failures="$work/failures" -v build=b -f "$source/tests/count.awk" "$work/log" >"$work/counts"
cat "$work/counts" "$work/failures" | diff "$work/wanted" - || { echo "failed: tests/count.awk counts something else"; failed=$((failed + 1)); }

[ $failed = 0 ] || { echo "[  FAILED  ] 1 test(s)."; exit 1; }
echo "[  PASSED  ] 1 test(s)."
