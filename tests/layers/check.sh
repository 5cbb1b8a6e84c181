#!/usr/bin/env bash
# Fails when a file includes a folder that its own folder must not know, is too long, or holds a word that is not used here.
# usage: check.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

# What each folder of src may include besides itself.
declare -A allowed=(
  [base]=""
  [text]="base tensor"
  [tensor]="base"
  [kernels]="base tensor"
  [kv]="base tensor kernels"
  [model]="base tensor kernels kv"
  [gen]="base text tensor kernels kv model"
  [speech]="base text tensor kernels kv model gen"
)

includes() { grep -nE '^ *# *include +"' "$1" | sed -E 's/^([0-9]+): *# *include +"([^"]+)".*/\1 \2/' || true; }

while read -r file; do
  folder=${file#src/}
  case $folder in
    */*) folder=${folder%%/*} ;;
    *) continue ;; # src/mneme.c sees everything
  esac
  [ -n "${allowed[$folder]+there}" ] || { complain "$file: the folder '$folder' has no row in tests/layers/check.sh"; continue; }
  while read -r line header; do
    [ -n "$line" ] || continue
    target=${header%%/*}
    [ "$target" != "$header" ] || continue # mneme.h, or a file of the same folder
    case " $folder ${allowed[$folder]} " in
      *" $target "*) ;;
      *) complain "$file:$line: $folder must not include $header (allowed: $folder ${allowed[$folder]})" ;;
    esac
  done < <(includes "$file")
done < <(find src -name '*.[ch]' | sort)

# The command sees the public header, its own files, base/, the safetensors writer, the archives of saved caches and subtitles.
while read -r file; do
  while read -r line header; do
    [ -n "$line" ] || continue
    case $header in
      mneme.h | base/* | tensor/safetensors.h | kv/archive.h | speech/subtitles.h) ;;
      */*) complain "$file:$line: cli must not include $header" ;;
      *) [ -e "cli/$header" ] || complain "$file:$line: $header is not a file of cli" ;;
    esac
  done < <(includes "$file")
done < <(find cli -name '*.[ch]' | sort)

# Examples are programs of users: the public header alone.
while read -r file; do
  if grep -nE '^ *# *include +"' "$file"; then complain "$file: examples include <mneme.h> and the C library only"; fi
done < <(find examples -name '*.c' | sort)

# DESIGN.md says of every file of cache, models, generation and speech what it is for, and of none that is gone.
for file in src/kv/*.c src/model/*.c src/gen/*.c src/speech/*.c; do
  grep -qE "^\|.*[ |]$(basename "$file")[ ,|]" DESIGN.md || complain "$file: DESIGN.md does not say what it is for"
done
for name in $(grep -E '^\| [a-z_0-9.]+\.[ch][ ,|]' DESIGN.md | cut -d'|' -f2 | tr -d ','); do
  [ -e "src/kv/$name" ] || [ -e "src/model/$name" ] || [ -e "src/gen/$name" ] || [ -e "src/speech/$name" ] ||
    complain "DESIGN.md: there is no $name in src/kv, src/model, src/gen or src/speech"
done

while read -r count file; do
  [ "$count" -le 900 ] || complain "$file has $count lines; 900 are allowed, split it by subject"
done < <(find src cli include examples tests bench -name '*.[ch]' -not -path '*/data/*' -exec wc -l {} + | grep -v ' total$')

ban() { # ban PATTERN WHY FOLDER...
  local pattern=$1 why=$2 hits
  shift 2
  hits=$(grep -srnE --include='*.c' --include='*.h' --include='*.inc' --include='*.S' "$pattern" "$@" || true)
  [ -z "$hits" ] || complain "$hits"$'\n'"  ($why)"
}
ban '\<(strcpy|strcat|sprintf|vsprintf|gets|strtok|alloca)\(' "use the bounded form" src cli
ban '\<(exit|_exit|abort)\(' "the library never ends a program" src
ban '\<(printf|fprintf|puts|putchar|perror|vfprintf)\(' "the library never prints" src
hits=$(grep -nE '\<(printf|fprintf|vprintf|vfprintf|puts|fputs|fputc|putc|putchar|fwrite|perror|dprintf)\(' cli/*.[ch] | grep -v '^cli/output\.c:' || true)
[ -z "$hits" ] || complain "$hits"$'\n'"  (text leaves the command in cli/output.c, where terminals get no control characters)"
ban '\<(malloc|calloc|realloc|free|strdup)\(' "memory comes from base/mem.h" src/text src/tensor src/kernels src/kv src/model src/gen src/speech
mapfile -t unopened < <(find src cli -name '*.[ch]' -not -path src/base/file.c)
ban '([=(!,?:] ?(open|socket|dup)|(^|[^_a-z>.])(openat|creat|fopen|freopen|popen|opendir|mkstemp|mkostemp|mkdir|memfd_create|sf_open|sf_open_fd))\(' \
  "files are opened and folders made by base/file.h" "${unopened[@]}"
ban '\<(TODO|FIXME|XXX|HACK)\>' "do it, or leave it out" src cli include examples tests

if [ $failures -gt 0 ]; then
  echo "[  FAILED  ] $failures test(s)."
  exit 1
fi
echo "[  PASSED  ] 1 test(s)."
