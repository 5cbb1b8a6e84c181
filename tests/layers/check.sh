#!/usr/bin/env bash
# Fails when a file includes a folder that its own folder must not include, includes others in a cycle, is too long or has a function that is, or uses a forbidden function or word.
# usage: check.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

# What each folder of src may include besides itself; a folder without a row belongs to its parent.
declare -A allowed=(
  [base]=""
  [tensor]="base"
  [text]="base tensor text/jinja text/tokenizer"
  [text/jinja]="base"
  [text/tokenizer]="base tensor"
  [constraint]="base text/tokenizer"
  [kernels]="base tensor"
  [kv]="base tensor kernels"
  [model]="base tensor kernels kv"
  [session]="base tensor text/tokenizer kernels kv model"
  [gen/config]="base tensor kernels kv model session"
  [gen/logits]="base constraint gen/config"
  [gen/search]="base tensor text/tokenizer constraint kernels kv model session gen/config gen/logits"
  [gen]="base tensor text/tokenizer constraint kernels kv model session gen/config gen/logits gen/search"
  [speech]="base tensor text/tokenizer kernels kv model session gen gen/config gen/logits gen/search"
)

# Sets `folder` to the row of the table that a path below src belongs to.
find_folder() {
  folder=${1%/*}
  until [ -n "${allowed[$folder]+there}" ]; do
    case $folder in
      */*) folder=${folder%/*} ;;
      *) return 1 ;;
    esac
  done
}

# File, line and header of each #include "..." of the files of some folders.
includes() { find "$@" -name '*.[ch]' -exec awk -F'"' '/^ *# *include +"/ { print FILENAME, FNR, $2 }' {} + | sort -k1,1 -k2,2n; }

while read -r path; do
  find_folder "$path" || complain "src/$path: its folder has no row in tests/layers/check.sh"
done < <(find src -mindepth 2 -name '*.[ch]' -printf '%P\n' | sort)
while read -r file line header; do
  case ${file#src/}:$header in
    */*:*/*) ;;
    *) continue ;; # src/mneme.c includes everything, mneme.h is in no folder of src
  esac
  find_folder "${file#src/}" || continue
  own=$folder
  find_folder "$header" || { complain "$file:$line: $header is in no folder of src"; continue; }
  case " $own ${allowed[$own]} " in
    *" $folder "*) ;;
    *) complain "$file:$line: $own must not include $header (allowed: $own ${allowed[$own]})" ;;
  esac
done < <(includes src)

circle=$(python3 tests/layers/circles.py .) || complain "$circle"

while read -r count folder; do
  [ "$count" -le 26 ] || complain "$folder has $count sources; 26 are allowed, divide it by subject"
done < <(find src tests bench cli serve tools -name '*.c' -not -path '*/data/*' -printf '%h\n' | sort | uniq -c)

# base/ is shared by library, server and command; otherwise these include mneme.h only, and the command serve.h and the fields of requests.
while read -r file line header; do
  case $header in
    mneme.h | base/*) ;;
    serve.h | request/fields.h) ;;
    *) [ -e "${file%%/*}/$header" ] || complain "$file:$line: ${file%%/*} must not include $header" ;;
  esac
done < <(includes cli serve)

# Examples are programs of users: the public header alone.
while read -r file; do
  if grep -nE '^ *# *include +"' "$file"; then complain "$file: examples include <mneme.h> and the C library only"; fi
done < <(find examples -name '*.c' | sort)

# DESIGN.md has a row for every file of these folders, by its path in the folder, and none for missing files. Of a kernel's files the reference has a
# row.
folders="cli serve src/base src/tensor src/text src/kernels src/kv src/model src/session src/constraint src/gen src/speech"
while read -r folder file; do
  name=$(sed -E 's/_(avx2|avx512|avx512_dot|neon)\.c$/_ref.c/' <<<"$file")
  grep -qE "^\|.*[ |]$name[ ,|]" DESIGN.md || complain "$folder/$file: DESIGN.md has no row for $name"
done < <(for folder in $folders; do find "$folder" -name '*.c' -printf "$folder %P\n"; done | sort)
for name in $(grep -E '^\| [a-z_0-9./]+\.[ch][ ,|]' DESIGN.md | cut -d"|" -f2 | tr -d "," | sed "s,include/mneme.h,,"); do
  for folder in $folders; do [ ! -e "$folder/$name" ] || continue 2; done
  complain "DESIGN.md: $name does not exist in these folders: $folders"
done

# Tests that docs/reliability.md names exist.
while read -r name; do
  [ -n "$(find tests -name "$name.*" -not -path '*/data/*' -print -quit)" ] || complain "docs/reliability.md: there is no test $name"
done < <(grep -oE '`(test|fuzz)_[a-z0-9_]+`' docs/reliability.md | tr -d '`' | sort -u)
while read -r test name; do
  grep -rqE "\<$name\>" tests --include="$test.c" || complain "docs/reliability.md: $test has no case $name"
done < <(grep -oE '`test_[a-z0-9_]+`: [a-z0-9_]+' docs/reliability.md | sed 's/`//g; s/://')

# Links of documents lead to files.
while IFS=: read -r file link; do
  target=${link#](}
  target=${target%%#*}
  [ -e "$(dirname "$file")/${target%)}" ] || complain "$file: ${target%)} does not exist"
done < <(grep -oHE '\]\([^):#]+[^):]*\)' ./*.md docs/*.md docs/*/*.md)

# Files that CONTRIBUTING.md names by their whole path exist.
while read -r name; do
  [ -e "$name" ] || complain "CONTRIBUTING.md: $name does not exist"
done < <(grep -oE '`(src|serve|cli|include|tests|tools|bench|scripts|docs)/[a-z0-9_/.-]+`' CONTRIBUTING.md | tr -d '`' | sort -u)

# README.md and its Chinese translation show the same commands, outputs and programs; comments of commands are translated.
blocks() { awk '/^```/ { inside = !inside; print; next } inside { sub(/ *# .*/, ""); print }' "$1"; }
differing=$(diff <(blocks README.md) <(blocks README.zh.md)) || complain "README.md and README.zh.md have different blocks:"$'\n'"$differing"

while read -r count file; do
  [ "$count" -le 900 ] || complain "$file has $count lines; 900 are allowed, split it by subject"
done < <(find src cli serve include examples tests bench tools scripts \( -name '*.[ch]' -o -name '*.inc' -o -name '*.py' -o -name '*.sh' -o -name '*.html' \) \
  -not -path '*/data/*' -exec wc -l {} + | grep -v ' total$')

# Functions begin and end at the left margin.
while read -r place count; do
  complain "$place: a function of $count lines; 80 are allowed, divide it by step"
done < <(find src cli serve -name '*.[ch]' -exec awk '
  FNR == 1 || /^}/ { if (FNR > 1 && begin && FNR - begin + 1 > 80) print FILENAME ":" begin, FNR - begin + 1; begin = 0 }
  /^[a-zA-Z].*[^;]$/ && /\(/ { begin = FNR }' {} + | sort)

ban() { # ban PATTERN WHY FOLDER...
  local pattern=$1 why=$2 hits
  shift 2
  hits=$(grep -srnE --include='*.c' --include='*.h' --include='*.inc' --include='*.S' "$pattern" "$@" || true)
  [ -z "$hits" ] || complain "$hits"$'\n'"  ($why)"
}
ban '\<(strcpy|strcat|sprintf|vsprintf|gets|strtok|alloca)\(' "use the bounded form" src cli serve
ban '\<(exit|_exit|abort)\(' "the library never ends a program" src serve
ban '\<(printf|fprintf|puts|putchar|perror|vfprintf)\(' "the library never prints" src serve
hits=$(grep -nE '\<(printf|fprintf|vprintf|vfprintf|puts|fputs|fputc|putc|putchar|fwrite|perror|dprintf)\(' cli/*.[ch] cli/*/*.[ch] | grep -v '^cli/output\.c:' || true)
[ -z "$hits" ] || complain "$hits"$'\n'"  (text leaves the command in cli/output.c, where terminals get no control characters)"
ban '\<(malloc|calloc|realloc|free|strdup)\(' "memory comes from base/mem.h" src/text src/tensor src/kernels src/kv src/model src/session src/constraint src/gen src/speech serve
hits=$(grep -rnE '(model|core|m)->lock\>' src --include='*.[ch]' | grep -v '^src/model/' || true)
[ -z "$hits" ] || complain "$hits"$'\n'"  (the lock of a model is taken in src/model; model.h has operations for others)"
mapfile -t unopened < <(find src cli -name '*.[ch]' -not -path src/base/file.c)
ban '([=(!,?:] ?(open|socket|dup)|(^|[^_a-z>.])(openat|creat|fopen|freopen|popen|opendir|mkstemp|mkostemp|mkdir|memfd_create|sf_open|sf_open_fd))\(' \
  "files are opened and folders made by base/file.h" "${unopened[@]}"
ban '\<(verbs?|[a-z]+_verb|verb_[a-z_]+|VERB_[A-Z]+)\>' "a command" cli
ban '\<(TODO|FIXME|XXX|HACK)\>' "do it, or leave it out" src cli serve include examples tests

# Words that only this project would know: quantize, calibration, resident, sequence, vocabulary translation, confidence and requested are the field's.
private='seal(s|ed|ing)?|settle[sd]?|kin|retelling|scribe|sureness|wish(es|ed)?|relieve[sd]?|timelines?|kv_look|is_said|quiet_tokens|is_endless|stretch(es)?'
hits=$(grep -rnIiE --exclude-dir=data --exclude=check.sh "(^|[^a-z])($private)([^a-z]|\$)" src cli serve include examples tests bench tools scripts cmake share docs ./*.md || true)
[ -z "$hits" ] || complain "$hits"$'\n'"  (use the field's word)"

# Tests are added by mneme_test, which gives them an environment of their own and the one limit of time.
if grep -nE '\<(add_test|TIMEOUT)\>' CMakeLists.txt tests/*/CMakeLists.txt bench/CMakeLists.txt tools/CMakeLists.txt; then
  complain "  (tests/CMakeLists.txt: mneme_test)"
fi

# Of the environment they read what tests/run passes or sets. other_variables FOLDER: "FILE:LINE:NAME" of each other one.
known=" $(sed -n '/^passed=(/,/^)/p; /^own=(/,/^)/p' tests/run | grep -oE '\<[A-Z][A-Z0-9_]+\>' | tr '\n' ' ')BASHPID PIPESTATUS "
other_variables() {
  {
    grep -rnoE --include='*.[ch]' --exclude-dir=data 'getenv\([^)]*\)' "$1" | sed -E 's/getenv\("?([^")]*)"?\)$/\1/'
    grep -rnoE --include='*.py' "os\.(environ\[|environ\.get\(|getenv\()[^]),]*([]),] *=?[^=])?" "$1" | grep -v '= *.$' |
      sed -E "s/os\.(environ\[|environ\.get\(|getenv\()[\"']?([^\"']*).*/\2/"
    grep -rnoE --include='*.sh' '\$\{?[A-Z][A-Z0-9_]+' "$1" | tr -d '${'
  } | while IFS=: read -r file line name; do
    [[ $known = *" $name "* ]] || { [[ $file = *.sh ]] && grep -qE "(^|[ ;(])$name=" "$file"; } || echo "$file:$line:$name"
  done
}
hits=$(other_variables tests)
[ -z "$hits" ] || complain "$hits"$'\n'"  (tests read variables that tests/run passes or sets)"
samples=$(mktemp -d)
printf '%s\n' 'f(getenv("HOME"), getenv("MNEME_MODELS"), getenv(name));' >"$samples/a.c"
printf '%s\n' 'os.environ["HOME"], os.environ["LANG"], os.environ.get("EDITOR", "vi"), os.getenv("USER")' 'os.environ["SET"] = "1"' >"$samples/b.py"
tr @ '$' <<<'OWN=1; echo "@OWN @HOME @{MNEME_MAX_NEW_TOKENS:-3} @LANG"' >"$samples/c.sh"
hits=$(other_variables "$samples" | sed 's,.*/,,' | tr '\n' ' ')
[ "$hits" = "a.c:1:MNEME_MODELS a.c:1:name b.py:1:LANG b.py:1:EDITOR b.py:1:USER c.sh:1:MNEME_MAX_NEW_TOKENS c.sh:1:LANG " ] ||
  complain "variables are found in samples: $hits"
rm -r "$samples"

# Tests read no clock: they wait by support/patience.h, move the clock by support/hostile/moved_clock.h, and limit processor time by support/budget.h, which has
# wall time for the long tier. The drivers of terminals and browsers have one limit each for what never comes.
clocks='clock_ms\(|CLOCK_(MONOTONIC|REALTIME|BOOTTIME|TAI)|gettimeofday|timespec_get|\<time\((NULL|0|&)|\<time\.(time|monotonic|perf_counter)|\$\{?(SECONDS|EPOCH[A-Z]+)|\<date \+'
reads_of_clocks() {
  grep -rnE --include='*.[ch]' --include='*.py' --include='*.sh' --exclude-dir=data "$clocks" "$1" |
    grep -vE '^tests/(support/(budget|hostile/moved_clock)\.c|cli/chat_driver\.py|serve/webdriver\.py|layers/check\.sh):' || true
}
hits=$(reads_of_clocks tests)
[ -z "$hits" ] || complain "$hits"$'\n'"  (tests read no clock)"
samples=$(mktemp -d)
printf '%s\n' 'double begin = clock_ms();' 'clock_gettime(CLOCK_MONOTONIC, &t);' 'seed = time(NULL);' 'processor_time(NULL);' 'clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);' >"$samples/a.c"
printf '%s\n' 'end = time.monotonic() + 3' 'time.sleep(0.1)' >"$samples/b.py"
tr @ '$' <<<'begin=@SECONDS' >"$samples/c.sh"
hits=$(reads_of_clocks "$samples" | sed -E 's,.*/([^:]*:[0-9]+):.*,\1,' | sort | tr '\n' ' ')
[ "$hits" = "a.c:1 a.c:2 a.c:3 b.py:1 c.sh:1 " ] || complain "clocks are found in samples: $hits"
rm -r "$samples"

# With a Python that has no tomllib, which is older than 3.11, tools/incidents ends with one sentence and the code of a skipped test.
code=0
said=$(python3 -c 'import runpy, sys
sys.modules["tomllib"] = None
runpy.run_path("tools/incidents", run_name="__main__")' 2>&1) || code=$?
[[ $code = 77 && $said = "tools/incidents: this is Python 3."*"; needed: 3.11 or newer, as in Debian 12" ]] ||
  complain "tools/incidents with an older Python: exit code $code, $said"

if [ $failures -gt 0 ]; then
  echo "[  FAILED  ] $failures test(s)."
  exit 1
fi
echo "[  PASSED  ] 1 test(s)."
