#!/usr/bin/env bash
# What the shared library exports, and programs compiled with other versions of its header.
# usage: abi.sh SOURCE_FOLDER LIBRARY
set -euo pipefail
source=$1 library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
done_one() { passed=$((passed + 1)); }
fail() { echo "failed: $*"; echo "[  PASSED  ] $passed test(s)."; echo "[  FAILED  ] 1 test(s)."; exit 1; }

for kind in today older newer; do python3 "$source/tests/install/abi.py" $kind "$source/include/mneme.h" >"$work/$kind.h" || fail "abi.py $kind"; done

# The functions of the header, each in the node of this major version, and nothing else.
nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" {print $3}' | sort >"$work/exported"
tr '\n' ' ' <"$work/today.h" | sed 's:/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/::g; s/;/;\n/g' |
  sed -nE 's/.*MN_API [^(]*\<(mn_[a-z0-9_]+)\(.*/\1@@MNEME_0/p' | sort >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 60 ] || fail "the functions of mneme.h are not found"
diff "$work/declared" "$work/exported" >"$work/difference" || fail "mneme.h declares (<) and the library exports (>): $(cat "$work/difference")"
done_one

ln -s "$(realpath "$library")" "$work/libmneme.so.0"
run() { # run HEADER NAME FLAG...
  local header=$1 name=$2
  shift 2
  "${CC:-cc}" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror "-DHEADER=\"$header\"" "$@" "$source/tests/data/abi/program.c" "$work/libmneme.so.0" \
    "-Wl,-rpath,$work" -o "$work/$name" 2>"$work/log" || { cat "$work/log"; fail "$name does not compile"; }
  "$work/$name" "$source/tests/data/golden/whisper/tiny80" "$source/tests/data/audio/test_speech.wav" >"$work/log" 2>&1 ||
    { cat "$work/log"; fail "$name does not run"; }
  done_one
}
run "$source/include/mneme.h" today
for header in "$source"/tests/data/abi/mneme-*.h; do run "$header" "$(basename "$header" .h)"; done
run "$work/older.h" older
run "$work/newer.h" newer -DGROWN
echo "[  PASSED  ] $passed test(s)."
