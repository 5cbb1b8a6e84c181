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

# cmocka's programs: scripts/test counts what CTest wrote down.
mkdir -p "$work/Testing/Temporary"
printf '1/1 Testing: a/test_none\n[  PASSED  ] 0 test(s).\nTest Passed.\n' >"$work/Testing/Temporary/LastTest.log"
counted=$(passed=0 failed=0 skipped=0
  eval "$(sed -n '/^count() {/,/^}/p' "$source/scripts/test")"
  count "$work" >/dev/null 2>&1
  echo "$passed $failed $skipped")
[ "$counted" = "0 1 0" ] || { echo "failed: scripts/test counts a program without cases as $counted"; failed=$((failed + 1)); }

[ $failed = 0 ] || { echo "[  FAILED  ] 1 test(s)."; exit 1; }
echo "[  PASSED  ] 1 test(s)."
