#!/usr/bin/env bash
# Every loop of the template engine charges its budget (loops.py), and only one file allocates memory and writes text;
# loops.py is tested with samples.
# usage: loops.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
here=tests/layers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

$here/loops.py src/text/jinja/*.[ch] || complain "src/text/jinja: a loop that charges no budget"
if grep -nE '\<(mem_grow|mem_alloc_raw|bytes_[a-z]+)\(' src/text/jinja/*.c | grep -vE 'jinja/budget\.c|jinja_charge_bytes'; then
  complain "memory and text of templates are allocated in jinja/budget.c only"
fi

# sample good|bad: the body of a function, read from stdin
sample() {
  { echo "mn_status f(jrun *r, const char *text, size_t n, bool some) {"; cat; echo "}"; } > "$work/sample.c"
  local result=good
  $here/loops.py "$work/sample.c" > "$work/out" || result=bad
  [ $result = "$1" ] || { complain "loops.py finds this $result, expected $1:"; cat "$work/sample.c"; }
}
sample bad <<< 'for (size_t i = 0; i < n; i++) g(text[i]);'
sample bad <<< 'while (n > 0) { n--; if (some) MN_TRY(jinja_charge_steps(&r->arena, 1)); }'
sample bad <<< 'while (n > 0) { n--; if (some) continue; MN_TRY(jinja_charge_steps(&r->arena, 1)); }'
sample bad <<< 'while (n > 0) { switch (n--) { case 1: MN_TRY(jinja_charge_steps(&r->arena, 1)); } }'
sample bad <<< 'do n--; while (n > 0);'
sample bad <<< 'for (;;) { for (size_t i = 0; i < n; i++) MN_TRY(jinja_charge_steps(&r->arena, 1)); }'
sample bad <<< 'for (size_t i = 0; i < n; i++) g("jinja_charge_steps(1)"); /* jinja_charge_steps(1) */'
sample bad <<< 'for (size_t i = 0; i < n; i++) /* bounded: */ g(i);'
sample bad <<< '/* bounded: said too early */ if (some) return MN_OK;
                for (size_t i = 0; i < n; i++) g(i);'
sample good <<< 'for (size_t i = 0; i < n; i++) MN_TRY(jinja_charge_steps(&r->arena, 1));'
sample good <<< 'while (n > 0) { n--; MN_TRY(jinja_charge_steps(&r->arena, 1)); if (some) continue; g(n); }'
sample good <<< 'while (jinja_charge_steps(&r->arena, 1) == MN_OK) g(n);'
sample good <<< 'for (;;) { if (some) MN_TRY(jinja_charge_steps(&r->arena, 1)); else return jinja_charge_steps(&r->arena, n); }'
sample good <<< 'for (size_t i = 0; i < n; i++) { /* charged: by the caller */ g(i); }'
sample good <<< 'for (size_t i = 0; i < sizeof table / sizeof *table; i++) g(table[i]);'
sample good <<< 'for (size_t i = 0; i < n; i++) g(i); /* bounded: three times */'

# Without the charge for a probe, loops.py reports the loop over probes and every loop that relied on a function that charged.
rm "$work"/*.c
cp src/text/jinja/*.[ch] "$work"
sed -i '/^static mn_status dict_find/,/^}/ s/MN_TRY(jinja_charge(r, 1));//' "$work/dict.c"
if $here/loops.py "$work"/*.[ch] > "$work/out" || ! grep -q 'loop of dict_find' "$work/out"; then
  complain "loops.py does not report the missing charge for probes of dictionaries"
fi
cp src/text/jinja/dict.c "$work"
sed -i '/^mn_status jinja_next/,/^}/ s/MN_TRY(jinja_charge(r, 1));//' "$work/iter.c"
if $here/loops.py "$work"/*.[ch] > "$work/out" || ! grep -q 'loop of next_selected' "$work/out"; then
  complain "loops.py does not report the missing charge for items"
fi

if [ $failures -gt 0 ]; then
  echo "[  FAILED  ] $failures test(s)."
  exit 1
fi
echo "[  PASSED  ] 1 test(s)."
