#!/usr/bin/env bash
# Installs into an empty prefix, moves it, builds the examples against it through find_package and through pkg-config, runs them, and checks the exported symbols of the library.
# usage: run.sh SOURCE_FOLDER BUILD_FOLDER [static]
set -euo pipefail
source=$1 build=$2 kind=${3:-shared}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
done_one() { passed=$((passed + 1)); }
fail() { echo "failed: $*"; echo "[  PASSED  ] $passed test(s)."; echo "[  FAILED  ] 1 test(s)."; exit 1; }

# The output of scripts/build must suffice: other files of the build are moved away. Other tests use the command.
read -r -a targets <<<"$(sed -n 's/.*|| targets=(\(.*\))$/\1/p' "$source/scripts/build")"
[ ${#targets[@]} -gt 0 ] || fail "scripts/build names no targets"
rm -f "$build"/libmneme.so* "$build"/libmneme.a
cmake --build "$build" --target "${targets[@]}" >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "cmake --build"; }
cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; fail "cmake --install"; }
mv "$work/first" "$work/moved"
prefix=$work/moved
libdir=$(dirname "$(find "$prefix" -name 'libmneme.*' | head -1)")
for file in bin/mneme include/mneme.h include/mneme_engine.h include/mneme_speech.h; do [ -f "$prefix/$file" ] || fail "$file is not installed"; done
[ -n "$(find "$prefix" -name LICENSE)" ] || fail "LICENSE is not installed"
done_one

# The installed command finds the script that fetches models, which says what it lacks.
mkdir "$work/no-pip"
printf '#!/bin/sh\nexit 1\n' >"$work/no-pip/python3"
chmod +x "$work/no-pip/python3"
code=0
PATH=$work/no-pip:$PATH MNEME_MODELS=$work/models "$prefix/bin/mneme" pull smollm2 2>"$work/why" || code=$?
[ $code = 1 ] && grep -q '^get-model: python3 with pip is needed' "$work/why" || fail "mneme pull without pip: exit code $code, $(cat "$work/why")"
done_one

"$prefix/bin/mneme" --version | grep -q '^mneme [0-9]' || fail "the installed command does not tell its version"
done_one

# The unit, with the command where it was installed; how much of the system it can reach, from 0 to 10 of systemd's own measure.
unit=$prefix/lib/systemd/system/mneme.service
[ -f "$unit" ] && [ -f "$prefix/share/mneme/grafana/mneme.json" ] || fail "the unit or the dashboard is not installed"
if command -v systemd-analyze >/dev/null; then
  mkdir "$work/unit"
  text=$(<"$unit")
  printf '%s\n' "${text/$'\n'ExecStart=mneme /$'\n'"ExecStart=\"$prefix/bin/mneme\" "}" >"$work/unit/mneme.service"
  grep -qF "ExecStart=\"$prefix/bin/mneme\" serve" "$work/unit/mneme.service" || fail "the unit does not start mneme serve"
  complaint=$(systemd-analyze verify --man=no "$work/unit/mneme.service" 2>&1) && [ -z "$complaint" ] || fail "systemd-analyze verify: $complaint"
  systemd-analyze security --offline=yes --threshold=20 "$work/unit/mneme.service" >"$work/exposure" || fail "the unit is exposed: $(tail -1 "$work/exposure")"
  done_one
else
  unit_skipped=1
fi

if [ "$kind" = shared ]; then
  readelf -d "$libdir/libmneme.so" | grep -q 'SONAME.*libmneme\.so\.[0-9]' || fail "libmneme.so has no versioned name"
  done_one
fi

{
  cmake -S "$source/examples" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" && cmake --build "$work/cmake"
} >"$work/log" 2>&1 || { cat "$work/log"; fail "examples through find_package"; }
done_one

mkdir "$work/pc"
export PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
flags=()
eval "flags=($(pkg-config --cflags --libs mneme))" # pkg-config quotes for the shell
for name in generate chat own_loop own_beams prefix transcribe; do
  "${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic "$source/examples/$name.c" "${flags[@]}" -lm "-Wl,-rpath,$libdir" -o "$work/pc/$name" ||
    fail "$name through pkg-config"
done
done_one

cp -r "$source/models-embedded/stories260K" "$work/talker"
echo '{"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"}' >"$work/talker/tokenizer_config.json"
for kind in cmake pc; do
  "$work/$kind/generate" >"$work/story" || fail "$kind/generate"
  [ "$(wc -c <"$work/story")" -gt 60 ] || fail "$kind/generate prints too little: $(cat "$work/story")"
  "$work/$kind/own_loop" embedded "Once upon a time" 5 >"$work/loop" || fail "$kind/own_loop"
  [ "$(wc -l <"$work/loop")" = 5 ] || fail "$kind/own_loop prints $(wc -l <"$work/loop") lines"
  # The third number of the shape is the tokens held: it grows by one a line, one ahead of the position.
  awk '{ split($0, part, /[][,]+/); if (part[4] != $2 + 1 || (NR > 1 && $2 != last + 1)) exit 1; last = $2 }' "$work/loop" ||
    fail "$kind/own_loop: positions and shapes: $(cat "$work/loop")"
  # The hand-written beam search finds the same texts as the library's.
  "$work/$kind/own_beams" embedded "Once upon a time" 5 20 >"$work/beams" || fail "$kind/own_beams"
  "$prefix/bin/mneme" run embedded "Once upon a time" --raw --num-beams 5 --max-new-tokens 20 --ignore-eos --json >"$work/run.json" ||
    fail "mneme run --num-beams"
  text=$(head -n -1 "$work/beams" | sed -z 's/\n$//; s/^Once upon a time//; s/\n/\\n/g')
  grep -qF "\"text\":\"$text" "$work/run.json" || fail "$kind/own_beams: $(cat "$work/beams"), mneme run: $(cat "$work/run.json")"
  # A prefix is computed once: each prompt reuses all of it except perhaps its last token.
  "$work/$kind/prefix" >"$work/prefix" || fail "$kind/prefix"
  awk '{ if (substr($1, 2) + 0 < 8 || $3 <= substr($1, 2) + 0) exit 1 } END { exit NR != 3 }' "$work/prefix" || fail "$kind/prefix: $(cat "$work/prefix")"
  # A conversation: from the second message on nearly all of the prompt is there, also when the answer's ids are not those that its text is tokenized to.
  printf 'Once upon a time\nAnd "then"?\nThe end\n' | "$work/$kind/chat" "$work/talker" >"$work/turns" || fail "$kind/chat"
  awk '/tokens were there\]$/ { if (++n > 1 && substr($1, 2) + 0 < last) exit 1; last = $3 + 0 } END { exit n != 3 }' "$work/turns" ||
    fail "$kind/chat: $(cat "$work/turns")"
  # A checkpoint without a tokenizer: the same ids as the command.
  "$work/$kind/transcribe" "$source/tests/data/audio/test_speech.wav" "$source/tests/data/golden/whisper/tiny80" en >"$work/transcript" ||
    fail "$kind/transcribe"
  "$prefix/bin/mneme" transcribe -m "$source/tests/data/golden/whisper/tiny80" "$source/tests/data/audio/test_speech.wav" --language en >"$work/ids" ||
    fail "mneme transcribe"
  [ "$(grep -c '^\[' "$work/transcript")" = "$(wc -l <"$work/ids")" ] && tail -1 "$work/transcript" | grep -qx 'en, 3.6 s' || fail "$kind/transcribe: $(cat "$work/transcript")"
  [ "$(sed -n 's/^\[[^]]*\] //p' "$work/transcript" | tr ' ' ,)" = "$(cat "$work/ids")" ] || fail "$kind/transcribe and the command differ"
  done_one
done

# The program of README.md: it prints a story, and an error when the model does not exist.
sed -n '/^```c$/,/^```$/{/^```/d;p}' "$source/README.md" >"$work/story.c"
"${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror "$work/story.c" "${flags[@]}" "-Wl,-rpath,$libdir" -o "$work/story" || fail "the program of README.md"
"$work/story" >"$work/text" || fail "the program of README.md: exit code $?"
[ "$(wc -c <"$work/text")" -gt 60 ] || fail "the program of README.md prints too little: $(cat "$work/text")"
if "$work/story" no-such-model >"$work/text" 2>"$work/why"; then fail "the program of README.md finds no-such-model"; fi
[ ! -s "$work/text" ] && grep -q "no-such-model" "$work/why" || fail "the program of README.md printed '$(cat "$work/why")'"
done_one

# The header compiles alone, in C and in C++.
echo '#include <mneme.h>' >"$work/only.c"
"${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror -I"$prefix/include" -c "$work/only.c" -o "$work/only.o" || fail "mneme.h alone in C11"
if command -v c++ >/dev/null; then
  c++ -x c++ -std=c++17 -Wall -Wextra -Werror -I"$prefix/include" -c "$work/only.c" -o "$work/only.o" || fail "mneme.h alone in C++"
fi
done_one

# The examples of the documents work.
documents=$("$source/tests/install/docs.sh" "$source" "$prefix" "$source/README.md" "$source/docs/from-transformers.md") || fail "documents: $documents"
passed=$((passed + $(sed -n 's/^\[  PASSED  \] \([0-9]*\).*/\1/p' <<<"$documents")))
skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\).*/\1/p' <<<"$documents")
[ -z "${unit_skipped:-}" ] || skipped=$((${skipped:-0} + 1))

# From an empty system, as in README.md; takes minutes.
if [ "${MNEME_LONG:-0}" = 1 ] && [ "${3:-shared}" = shared ]; then
  mkdir "$work/tree"
  ln -s "$source"/[!b]* "$source"/bench "$work/tree"
  "$work/tree/scripts/build" && cmake --install "$work/tree/build/release" --prefix "$work/alone" >"$work/log" || fail "scripts/build, then cmake --install"
  [ -e "$work/alone/bin/mneme" ] && find "$work/alone" -name libmneme.so | grep -q . || fail "scripts/build, then cmake --install: files are missing"
  done_one
fi
echo "[  PASSED  ] $passed test(s)."
[ -z "$skipped" ] || echo "[  SKIPPED ] $skipped test(s)."
