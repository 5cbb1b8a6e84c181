#!/usr/bin/env bash
# The template engine has no loop that its budget does not pay for (loops.py), and takes memory and writes text in one file only;
# and loops.py finds what it is to find.
# usage: loops.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
here=tests/layers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

$here/loops.py src/text/jinja*.[ch] || complain "src/text: a loop nobody pays for"
if grep -nE '\<(mem_grow|mem_alloc_raw|bytes_[a-z]+)\(' src/text/jinja*.c | grep -vE 'jinja_budget\.c|jinja_spend_bytes'; then
  complain "memory and text of templates come from jinja_budget.c"
fi

# sample good|bad: the body of a function, read from stdin
sample() {
  { echo "mn_status f(jrun *r, const char *text, size_t n, bool some) {"; cat; echo "}"; } > "$work/sample.c"
  local result=good
  $here/loops.py "$work/sample.c" > "$work/out" || result=bad
  [ $result = "$1" ] || { complain "loops.py calls this $result, it is $1:"; cat "$work/sample.c"; }
}
sample bad <<< 'for (size_t i = 0; i < n; i++) g(text[i]);'
sample bad <<< 'while (n > 0) { n--; if (some) MN_TRY(jinja_work(&r->arena, 1)); }'
sample bad <<< 'while (n > 0) { n--; if (some) continue; MN_TRY(jinja_work(&r->arena, 1)); }'
sample bad <<< 'while (n > 0) { switch (n--) { case 1: MN_TRY(jinja_work(&r->arena, 1)); } }'
sample bad <<< 'do n--; while (n > 0);'
sample bad <<< 'for (;;) { for (size_t i = 0; i < n; i++) MN_TRY(jinja_work(&r->arena, 1)); }'
sample bad <<< 'for (size_t i = 0; i < n; i++) g("jinja_work(1)"); /* jinja_work(1) */'
sample bad <<< 'for (size_t i = 0; i < n; i++) /* bounded: */ g(i);'
sample bad <<< '/* bounded: said too early */ if (some) return MN_OK;
                for (size_t i = 0; i < n; i++) g(i);'
sample good <<< 'for (size_t i = 0; i < n; i++) MN_TRY(jinja_work(&r->arena, 1));'
sample good <<< 'while (n > 0) { n--; MN_TRY(jinja_work(&r->arena, 1)); if (some) continue; g(n); }'
sample good <<< 'while (jinja_work(&r->arena, 1) == MN_OK) g(n);'
sample good <<< 'for (;;) { if (some) MN_TRY(jinja_work(&r->arena, 1)); else return jinja_work(&r->arena, n); }'
sample good <<< 'for (size_t i = 0; i < n; i++) { /* paid: by the caller */ g(i); }'
sample good <<< 'for (size_t i = 0; i < sizeof table / sizeof *table; i++) g(table[i]);'
sample good <<< 'for (size_t i = 0; i < n; i++) g(i); /* bounded: three times */'

# Without the payment for a probe, the loop over probes is found, and so is every loop that relied on a function that paid.
cp src/text/jinja*.[ch] "$work"
sed -i '/^static mn_status dict_find/,/^}/ s/MN_TRY(jinja_spend(r, 1));//' "$work/jinja_dict.c"
if $here/loops.py "$work"/jinja*.[ch] > "$work/out" || ! grep -q 'loop of dict_find' "$work/out"; then
  complain "loops.py does not miss the payment for probes of dictionaries"
fi
cp src/text/jinja_dict.c "$work"
sed -i '/^mn_status jinja_next/,/^}/ s/MN_TRY(jinja_spend(r, 1));//' "$work/jinja_iter.c"
if $here/loops.py "$work"/jinja*.[ch] > "$work/out" || ! grep -q 'loop of next_selected' "$work/out"; then
  complain "loops.py does not miss the payment for items"
fi

if [ $failures -gt 0 ]; then
  echo "[  FAILED  ] $failures test(s)."
  exit 1
fi
echo "[  PASSED  ] 1 test(s)."
