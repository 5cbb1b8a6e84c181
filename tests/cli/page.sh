#!/usr/bin/env bash
# The page of `mneme serve`, as far as it can be seen without a browser (tests/serve/page_browser.py has one).
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"

# Fetches / from a server, with and without API keys; its head is in $work/head, its body in $work/page.
fetch_page() {
  last="mneme serve embedded $*"
  background serve embedded --port 0 "$@"
  local server=$! url=
  for _ in $(seq 6000); do
    url=$(grep -oE 'http://[0-9.:]+' "$work/err") && break
    sleep 0.05
  done
  python3 - "$url" "$work" <<'PYTHON' || problem "the page cannot be fetched"
import sys, urllib.request
url, work = sys.argv[1:]
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url + "/", timeout=30) as answer:
    assert answer.status == 200
    open(work + "/head", "w").write("".join(f"{k}: {v}\n" for k, v in answer.headers.items()))
    open(work + "/page", "wb").write(answer.read())
PYTHON
  kill -TERM $server
  wait $server || problem "exit code $?"
}

policy_names_what_is_in_the_page() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  fetch_page
  grep -qx "Content-Type: text/html; charset=utf-8" "$work/head" || problem "another content type"
  grep -qx "X-Content-Type-Options: nosniff" "$work/head" || problem "nosniff is missing"
  grep -qx "Referrer-Policy: no-referrer" "$work/head" || problem "the referrer policy is missing"
  cmp "$work/page" "$here/../../serve/page/index.html" || problem "the page is another one"
  python3 - "$work" <<'PYTHON' || problem "the policy is another one: $(grep Policy "$work/head")"
import base64, hashlib, re, sys
page, head = open(sys.argv[1] + "/page", encoding="utf-8").read(), open(sys.argv[1] + "/head").read()
def source(tag):
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
policy = re.search("^Content-Security-Policy: (.*)$", head, re.M)[1]
assert policy.split("; ") == ["default-src 'none'", "style-src " + source("style"), "script-src " + source("script"), "connect-src 'self'",
                              "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]
PYTHON
}

page_is_one_file_that_asks_nobody_else() {
  last="serve/page/index.html"
  local page=$here/../../serve/page/index.html
  ! grep -nE '[a-z]+://|src=|@import|url\(|<(link|script|style)[^>]*(http|//)' "$page" || problem "another address is named"
  ! grep -nE ' (style|on[a-z]+)="|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function' "$page" ||
    problem "the policy forbids this, or it makes markup of a text"
  [ "$(wc -c <"$page")" -lt 65536 ] || problem "64 KiB or more"
}

page_needs_no_key_and_its_requests_do() {
  if [ $have_python = 0 ]; then uncounted=1; return; fi
  (umask 077 && echo "a-key-of-the-page-0123" >"$work/keys")
  fetch_page --api-key-file "$work/keys"
  grep -q "<title>Mneme</title>" "$work/page" || problem "it is not the page"
}

check "the policy names the style and the script of the page" policy_names_what_is_in_the_page
check "the page is one file that asks nobody else" page_is_one_file_that_asks_nobody_else
check "the page needs no key" page_needs_no_key_and_its_requests_do
finish
