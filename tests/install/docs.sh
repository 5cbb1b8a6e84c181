#!/usr/bin/env bash
# Runs the examples of documents with an installed Mneme: compiles every C block and runs every command of the console blocks, in the
# document's order and in one folder; each command must print the output that the document shows.
#   ```c            a file, named in its first comment ("/* name.c ..."); a .h file is included by others; a file without a name
#                   runs with the embedded model and prints a text
#   ```console      lines that begin with "$ " are commands, other lines are their output; exit code 0 is expected
#   ```console long the same, in the long tier (MNEME_LONG=1)
#   ```pycon        statements of Python, which must print what stands below them; docs.py runs them behind the others
# Commands without a model of this repository take SmolLM2 and are skipped, and counted, where it is not installed.
# usage: docs.sh SOURCE PREFIX DOCUMENT...
set -uo pipefail
source=$1 prefix=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
fail() {
  echo "failed: $*"
  failed=$((failed + 1))
}

smollm2=${MNEME_TEST_SMOLLM2:-$MNEME_TEST_MODELS/SmolLM2-135M-Instruct.Q4_1.gguf}
mkdir "$work/models"
if [ -e "$smollm2" ]; then ln -s "$smollm2" "$work/models/"; fi
export XDG_CONFIG_HOME=$work/config MNEME_MODELS=$work/models HF_HUB_CACHE=$work/hub MNEME_CALIBRATIONS=$work/calibrations
export PATH=$prefix/bin:$PATH
libdir=$(dirname "$(find "$prefix" -name 'libmneme.*' | head -1)")
export PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
flags=()
eval "flags=($(pkg-config --cflags --libs mneme))" # pkg-config quotes for the shell
[ ${#flags[@]} -gt 0 ] || { echo "failed: no Mneme is installed in $prefix"; echo "[  FAILED  ] 1 test(s)."; exit 1; }

# Writes the blocks of document $1 into $2: C as the files they name, console blocks as 001.console, 002.long, ...
extract() {
  awk -v folder="$2" '
    /^```/ && inside { inside = 0; next }
    /^```c$/ { inside = 1; file = ""; next }
    /^```console( long)?$/ { inside = 1; file = sprintf("%s/%03d.%s", folder, ++n, $2 == "" ? "console" : $2); next }
    /^```/ { inside = 2; next }
    inside == 2 || !inside { next }
    file == "" { file = folder "/" (match($0, /^\/\* [a-z_]+\.[ch]/) ? substr($0, 4, RLENGTH - 3) : "block.c") }
    { print > file }' "$1"
}

# Runs the commands of console block $1: each one must succeed and print the lines after it.
run_block() {
  local block=$1 line commands=() expected=() i last=-1
  while IFS= read -r line; do
    if [[ $line == '$ '* ]]; then
      last=$((last + 1))
      commands+=("${line#\$ }") expected+=("")
    else
      expected[last]+=$line$'\n'
    fi
  done <"$block"
  : >"$block.sh"
  for i in "${!commands[@]}"; do
    if [[ ${commands[i]} =~ (^|[ |])(mneme|\./[a-z_]+)\  && ! ${commands[i]} =~ (embedded|tests/data/) && ! -e $smollm2 ]]; then
      skipped=$((skipped + 1))
      commands[i]=''
      continue
    fi
    printf '{\n%s\n} >out.%d 2>err.%d </dev/null; echo $? >rc.%d\n' "${commands[i]}" "$i" "$i" "$i" >>"$block.sh"
  done
  bash -o pipefail "$block.sh"
  for i in "${!commands[@]}"; do
    [ -n "${commands[i]}" ] || continue
    if [ "$(cat "rc.$i")" != 0 ]; then
      fail "${commands[i]}: exit code $(cat "rc.$i"): $(head -c 600 "err.$i")"
    elif [ "$(cat "out.$i")" != "$(printf %s "${expected[i]}")" ]; then
      fail "${commands[i]}"
      diff <(printf %s "${expected[i]}") "out.$i" | head -20
    else
      passed=$((passed + 1))
    fi
  done
}

# Runs the statements of document $1, with the package of the source folder on the installed library.
run_python() {
  local said python=/usr/bin/python3 without=() # Debian's has the packages that scripts/deps installs, numpy among them
  [ -x $python ] || python=python3
  [ -e "$smollm2" ] || without=(--without-smollm2)
  if [ ! -e "$libdir/libmneme.so" ] || ! $python -c 'import numpy'; then
    skipped=$((skipped + $(grep -c '^>>> ' "$1")))
    return
  fi
  said=$(MNEME_LIBRARY=$libdir/libmneme.so PYTHONPATH=$source/python $python "$source/tests/install/docs.py" "$1" "${without[@]}") ||
    printf '%s\n' "$said" | grep -v '^\[  '
  if [[ $said =~ PASSED\ \ \]\ ([0-9]+).*SKIPPED\ \]\ ([0-9]+).*FAILED\ \ \]\ ([0-9]+) ]]; then
    passed=$((passed + BASH_REMATCH[1])) skipped=$((skipped + BASH_REMATCH[2])) failed=$((failed + BASH_REMATCH[3]))
  else
    fail "$1: its Python ended early"
  fi
}

for document in "$@"; do
  folder=$work/$(basename "$document" .md)
  mkdir "$folder"
  extract "$document" "$folder"
  cd "$folder" || exit 1
  ln -s "$source/tests" "$source/LICENSE" .
  blocks=0
  for file in *.c; do
    [ -e "$file" ] || continue
    blocks=$((blocks + 1))
    if "${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror "$file" "${flags[@]}" -lm "-Wl,-rpath,$libdir" -o "${file%.c}"; then
      passed=$((passed + 1))
    else
      fail "$document: $file does not compile"
    fi
  done
  if [ -e block ]; then
    ./block >block.out && [ "$(wc -c <block.out)" -gt 60 ] || fail "$document: its program prints: $(head -c 600 block.out)"
  fi
  for file in *.console *.long; do
    [ -e "$file" ] || continue
    blocks=$((blocks + 1))
    if [[ $file == *.long && ${MNEME_LONG:-0} != 1 ]]; then
      skipped=$((skipped + $(grep -c '^\$ ' "$file")))
    else
      run_block "$file"
    fi
  done
  if grep -q '^```pycon' "$document"; then
    blocks=$((blocks + 1))
    run_python "$document"
  fi
  [ "$blocks" -gt 0 ] || fail "$document has no block that can be tried"
done
echo "[  PASSED  ] $passed test(s)."
[ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)."
[ $failed = 0 ] || { echo "[  FAILED  ] $failed test(s)."; exit 1; }
