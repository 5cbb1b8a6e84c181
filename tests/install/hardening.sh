#!/usr/bin/env bash
# Checks built files for the options of cmake/hardening.cmake. Every file is a test.
# usage: hardening.sh COMMAND [LIBRARY...]
set -uo pipefail
passed=0 failed=0

# Reports what is missing; the first file is the command, the others are shared libraries.
check() {
  local file=$1 is_command=$2 header dynamic segments symbols bad=0
  complain() { echo "failed: $file: $*"; bad=1; }
  header=$(readelf -hW "$file") && dynamic=$(readelf -dW "$file") && segments=$(readelf -lW "$file") &&
    symbols=$(readelf -W --dyn-syms "$file") || complain "cannot be read"
  grep -q 'Type: *DYN' <<<"$header" || complain "its addresses are fixed"
  [ "$is_command" = 0 ] || grep -q 'FLAGS_1.*PIE' <<<"$dynamic" || complain "is no position-independent executable"
  grep -q 'GNU_RELRO' <<<"$segments" || complain "has no segment that becomes read-only (RELRO)"
  grep -qE '\(FLAGS\).*BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || complain "binds lazily: its tables of functions stay writable"
  grep -qE 'GNU_STACK .* RW +0x' <<<"$segments" || complain "has an executable stack"
  grep -qE '^ +LOAD .* (RWE|WE) ' <<<"$segments" && complain "has a segment that is writable and executable"
  grep -q 'TEXTREL' <<<"$dynamic" && complain "has relocations in code"
  grep -q '__stack_chk_fail' <<<"$symbols" || complain "has no stack protector"
  grep -qE '__(memcpy|memset|memmove|snprintf|vsnprintf|read|fprintf|vfprintf)_chk' <<<"$symbols" || complain "has no fortified calls"
  if [ $bad = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

check "$1" 1
shift
for library in "$@"; do check "$library" 0; done
echo "[  PASSED  ] $passed test(s)."
[ $((passed + failed)) -gt 0 ] || { echo "no file was checked"; failed=1; }
[ $failed = 0 ] || { echo "[  FAILED  ] $failed test(s)."; exit 1; }
