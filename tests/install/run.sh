#!/usr/bin/env bash
# Installs into an empty prefix, moves it, builds the examples against it through find_package and through pkg-config, runs
# them, and looks at what the library exports.
# usage: run.sh SOURCE_FOLDER BUILD_FOLDER [static]
set -euo pipefail
source=$1 build=$2 kind=${3:-shared}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
done_one() { passed=$((passed + 1)); }
fail() { echo "failed: $*"; echo "[  PASSED  ] $passed test(s)."; echo "[  FAILED  ] 1 test(s)."; exit 1; }

# What scripts/build builds is enough: what else there is of the library does not come from it. The command is in use by other tests.
read -r -a targets <<<"$(sed -n 's/.*|| targets=(\(.*\))$/\1/p' "$source/scripts/build")"
[ ${#targets[@]} -gt 0 ] || fail "scripts/build names no targets"
rm -f "$build"/libmneme.so* "$build"/libmneme.a
cmake --build "$build" --target "${targets[@]}" >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "cmake --build"; }
cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; fail "cmake --install"; }
mv "$work/first" "$work/moved"
prefix=$work/moved
libdir=$(dirname "$(find "$prefix" -name 'libmneme.*' | head -1)")
for file in bin/mneme include/mneme.h; do [ -f "$prefix/$file" ] || fail "$file is not installed"; done
[ -n "$(find "$prefix" -name LICENSE)" ] || fail "LICENSE is not installed"
done_one

"$prefix/bin/mneme" --version | grep -q '^mneme [0-9]' || fail "the installed command does not tell its version"
done_one

if [ "$kind" = shared ]; then
  strangers=$(nm -D --defined-only "$libdir/libmneme.so" | awk '{print $3}' | grep -v '^mn_' || true)
  [ -z "$strangers" ] || fail "libmneme.so exports $strangers"
  readelf -d "$libdir/libmneme.so" | grep -q 'SONAME.*libmneme\.so\.[0-9]' || fail "libmneme.so has no versioned name"
  done_one
fi

{
  cmake -S "$source/examples" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" && cmake --build "$work/cmake"
} >"$work/log" 2>&1 || { cat "$work/log"; fail "examples through find_package"; }
done_one

mkdir "$work/pc"
export PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
read -r -a flags <<<"$(pkg-config --cflags --libs mneme)"
for name in generate own_loop own_beams prefix transcribe; do
  "${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic "$source/examples/$name.c" "${flags[@]}" -lm "-Wl,-rpath,$libdir" -o "$work/pc/$name" ||
    fail "$name through pkg-config"
done
done_one

for kind in cmake pc; do
  "$work/$kind/generate" >"$work/story" || fail "$kind/generate"
  [ "$(wc -c <"$work/story")" -gt 60 ] || fail "$kind/generate prints too little: $(cat "$work/story")"
  "$work/$kind/own_loop" embedded "Once upon a time" 5 >"$work/loop" || fail "$kind/own_loop"
  [ "$(wc -l <"$work/loop")" = 5 ] || fail "$kind/own_loop prints $(wc -l <"$work/loop") lines"
  # The third number of the shape is the tokens held: it grows by one a line, one ahead of the position.
  awk '{ split($0, part, /[][,]+/); if (part[4] != $2 + 1 || (NR > 1 && $2 != last + 1)) exit 1; last = $2 }' "$work/loop" ||
    fail "$kind/own_loop: positions and shapes: $(cat "$work/loop")"
  # The hand-written beams find what the library's find.
  "$work/$kind/own_beams" embedded "Once upon a time" 5 20 >"$work/beams" || fail "$kind/own_beams"
  "$prefix/bin/mneme" run embedded "Once upon a time" --raw --num-beams 5 --max-new-tokens 20 --ignore-eos --json >"$work/run.json" ||
    fail "mneme run --num-beams"
  text=$(head -n -1 "$work/beams" | sed -z 's/\n$//; s/^Once upon a time//; s/\n/\\n/g')
  grep -qF "\"text\":\"$text" "$work/run.json" || fail "$kind/own_beams: $(cat "$work/beams"), mneme run: $(cat "$work/run.json")"
  # A prefix is computed once: each prompt finds all of it but perhaps its last token.
  "$work/$kind/prefix" >"$work/prefix" || fail "$kind/prefix"
  awk '{ if (substr($1, 2) + 0 < 8 || $3 <= substr($1, 2) + 0) exit 1 } END { exit NR != 3 }' "$work/prefix" || fail "$kind/prefix: $(cat "$work/prefix")"
  # A checkpoint without a tokenizer: the ids that the command finds.
  "$work/$kind/transcribe" "$source/tests/data/audio/test_speech.wav" "$source/tests/data/golden/whisper/tiny80" en >"$work/heard" ||
    fail "$kind/transcribe"
  "$prefix/bin/mneme" transcribe -m "$source/tests/data/golden/whisper/tiny80" "$source/tests/data/audio/test_speech.wav" --language en >"$work/ids" ||
    fail "mneme transcribe"
  [ "$(grep -c '^\[' "$work/heard")" = "$(wc -l <"$work/ids")" ] && tail -1 "$work/heard" | grep -qx 'en, 3.6 s' || fail "$kind/transcribe: $(cat "$work/heard")"
  [ "$(sed -n 's/^\[[^]]*\] //p' "$work/heard" | tr ' ' ,)" = "$(cat "$work/ids")" ] || fail "$kind/transcribe and the command differ"
  done_one
done

# The header stands alone, in C and in C++.
echo '#include <mneme.h>' >"$work/only.c"
"${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror -I"$prefix/include" -c "$work/only.c" -o "$work/only.o" || fail "mneme.h alone in C11"
if command -v c++ >/dev/null; then
  c++ -x c++ -std=c++17 -Wall -Wextra -Werror -I"$prefix/include" -c "$work/only.c" -o "$work/only.o" || fail "mneme.h alone in C++"
fi
done_one

# From nothing, as README.md says; minutes.
if [ "${MNEME_LONG:-0}" = 1 ] && [ "${3:-shared}" = shared ]; then
  mkdir "$work/tree"
  ln -s "$source"/[!b]* "$source"/bench "$work/tree"
  "$work/tree/scripts/build" && cmake --install "$work/tree/build/release" --prefix "$work/alone" >"$work/log" || fail "scripts/build, then cmake --install"
  [ -e "$work/alone/bin/mneme" ] && find "$work/alone" -name libmneme.so | grep -q . || fail "scripts/build, then cmake --install: files are missing"
  done_one
fi
echo "[  PASSED  ] $passed test(s)."
