"""The page at / in headless Chromium, driven by WebDriver: a conversation with streaming, stop, other answers, edits, branches,
a cache that changes while an answer runs, the cache panel, keys, dark mode, and what a hostile text cannot do.

usage: page_browser.py MNEME MODEL [--screenshots FOLDER]     MODEL: one whose answers take a while, as SmolLM2

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

from webdriver import OPENER, Browser

QUESTION = 'What is the capital of France?'
LONG = 'Write a long story about a dog, a cat and a bird who travel around the world.'
KEY = 'a-key-of-the-page-0123'


class Server:
    def __init__(self, mneme, model, *options):
        self.process = subprocess.Popen([mneme, 'serve', model, '--port', '0', *options], stderr=subprocess.PIPE, text=True)
        self.url = re.match(r'listening on (http://\S+) ', self.process.stderr.readline())[1]

    def close(self):
        self.process.terminate()
        assert self.process.wait(60) == 0

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, {'Content-Type': 'application/json'})
        with OPENER.open(request, timeout=120) as answer:
            return json.load(answer)


def bodies(b, role):
    return b.run('return [...document.querySelectorAll(".turn." + arguments[0] + " .body")].map(e => e.textContent)', role)


def begin(b, url, **settings):
    """A fresh page, greedy."""
    b.open(url)
    b.run('localStorage.clear(); sessionStorage.clear();'
          'localStorage.setItem("settings", JSON.stringify(Object.assign({temperature: 0, max_new_tokens: 48}, arguments[0])))', settings)
    b.open(url)
    b.wait('document.querySelector("#model").textContent')


def say(b, text):
    b.type('#input', text)
    b.press('Enter')
    b.wait('!running && document.querySelectorAll(".turn.assistant .tools").length', 120)


def answers_stream_and_are_the_servers(b, s):
    begin(b, s.url)
    b.type('#input', LONG)
    b.press('Enter')
    b.wait('running && document.querySelector(".turn.assistant .body").textContent.length > 4')
    first = len(bodies(b, 'assistant')[0])
    b.wait('!running', 120)
    wanted = s.ask('/v1/generate', {'messages': [{'role': 'user', 'content': LONG}], 'generation_config': {'max_new_tokens': 48, 'do_sample': False}})
    assert bodies(b, 'user') == [LONG] and 0 < first < len(wanted['sequences'][0]['text'])
    assert b.run('return conversation.nodes[1].content') == wanted['sequences'][0]['text']


def the_panel_shows_what_was_reused(b, s):
    begin(b, s.url)
    say(b, QUESTION)
    say(b, 'And of Italy?')
    b.wait('document.querySelector("#prompt mark").textContent')
    cached, prompt = map(int, re.match(r'(\d+) of (\d+) tokens', b.text('#reason')).groups())
    ids = b.run('return last.ids')
    assert len(ids) == prompt and 20 < cached < prompt
    assert b.text('#prompt mark') == s.ask('/detokenize', {'tokens': ids[:cached]})['content']
    assert QUESTION in b.text('#prompt mark') and 'Italy' not in b.text('#prompt mark') and 'Italy' in b.text('#prompt')
    assert abs(b.run('return document.querySelector("#reused").offsetWidth / document.querySelector(".bar").offsetWidth') - cached / prompt) < 0.02
    b.wait('document.querySelector("#tree li")')
    assert 'memory: ' in b.text('#tiers') and 'Paris' in b.text('#tree')


def other_answers_and_edits_are_branches(b, s):
    begin(b, s.url, temperature=1.5, seed='')
    say(b, QUESTION)
    one = bodies(b, 'assistant')[0]
    b.press('Alt', 'r')
    b.wait('!running && conversation.nodes.length === 3 && conversation.nodes[2].done', 120)
    two = bodies(b, 'assistant')[0]
    assert '2/2' in b.text('.turn.assistant .tools')
    b.press('Alt', 'Left')
    assert bodies(b, 'assistant') == [one] and '1/2' in b.text('.turn.assistant .tools')
    b.press('Alt', 'Right')
    assert bodies(b, 'assistant') == [two]
    b.press('Alt', 'e')
    b.run('document.activeElement.value = ""')
    b.type('.turn.user textarea', 'Name a color.')
    b.press('Enter')
    b.wait('!running && conversation.nodes.length === 5 && conversation.nodes[4].done', 120)
    assert bodies(b, 'user') == ['Name a color.'] and '2/2' in b.text('.turn.user .tools')
    b.click('.turn.user .tools button[title="The version before"]')
    assert bodies(b, 'user') == [QUESTION] and bodies(b, 'assistant') == [two]
    b.open(s.url)
    b.wait('document.querySelector("#model").textContent')
    assert bodies(b, 'user') == [QUESTION] and bodies(b, 'assistant') == [two]


def escape_stops_and_frees(b, s):
    begin(b, s.url, max_new_tokens=4096)
    b.type('#input', LONG)
    b.press('Enter')
    b.wait('running && running.node.ids.length > 5')
    b.wait('document.querySelector("#running .row")')
    b.press('Escape')
    b.wait('!running')
    assert len(bodies(b, 'assistant')[0]) > 5 and b.run('return document.querySelector("#stop").hidden')
    for _ in range(6000):
        if not s.ask('/v1/requests')['data']:
            return
        time.sleep(0.05)
    raise AssertionError('the request goes on')


def a_cache_changes_while_an_answer_runs(b, s):
    begin(b, s.url, max_new_tokens=160)
    b.type('#input', LONG)
    b.press('Enter')
    b.wait('running && running.node.ids.length > 8')
    b.run('const e = document.querySelector("#strategy"); e.value = "quantized"; e.dispatchEvent(new Event("change"))')
    b.wait('!running', 120)
    node = b.run('return conversation.nodes[1]')
    assert node['changes'][0]['name'] == 'quantized' and 8 < node['changes'][0]['at'] < len(node['content'])
    assert b.text('.turn.assistant .change') == '→ quantized' and b.text('#strategies tr.now td') == 'quantized'
    assert node['content'] == s.ask('/detokenize', {'tokens': [i for i in node['ids'] if i > 2]})['content']


def strategies_are_compared(b, s):
    begin(b, s.url)
    say(b, QUESTION)
    b.click('#compare')
    b.wait('!document.querySelector("#compare").disabled', 120)
    rows = b.run('return [...document.querySelectorAll("#strategies tr")].map(r => [...r.cells].map(c => c.textContent))')
    assert {'dynamic', 'quantized', 'sink'} <= {r[0] for r in rows}
    per_token = {r[0]: int(r[2]) for r in rows}
    assert per_token['quantized'] * 2 < per_token['dynamic']


def texts_are_never_markup(b, s):
    begin(b, s.url, max_new_tokens=2)
    hostile = '<img src=x onerror="window.bad=1"><script>window.bad=1</script> **<b>x</b>** `<i>y</i>`'
    say(b, hostile)
    assert b.run('return document.querySelectorAll("#conversation img, #conversation script, #conversation b, #conversation i").length') == 0
    assert '<img src=x onerror' in bodies(b, 'user')[0] and b.run('return window.bad') is None
    assert not b.problems()
    b.run('const e = document.createElement("script"); e.textContent = "window.bad = 1"; document.body.append(e);'
          'const i = new Image(); i.src = "https://example.com/x.png"; document.body.append(i)')
    time.sleep(0.3)
    assert b.run('return window.bad') is None
    assert sum('Content Security Policy' in p for p in b.problems()) >= 2


def keys_alone_and_themes(b, s):
    begin(b, s.url, max_new_tokens=4)
    b.press('Tab')
    assert b.run('return document.activeElement !== document.body')
    b.run('document.querySelector("#input").blur()')
    b.press('?')
    assert b.run('return document.querySelector("#help").open')
    b.press('Escape')
    assert not b.run('return document.querySelector("#help").open')
    was = b.run('return document.documentElement.dataset.theme')
    color = 'return getComputedStyle(document.body).backgroundColor'
    before = b.run(color)
    b.click('#theme')
    assert b.run(color) != before
    b.open(s.url)
    assert b.run('return document.documentElement.dataset.theme') != was and b.run(color) != before


def narrow_screens_switch_to_the_panel(b, s):
    b.call('POST', '/window/rect', {'width': 500, 'height': 800})
    begin(b, s.url, max_new_tokens=4)
    shown = 'return getComputedStyle(document.querySelector("aside")).display'
    assert b.run(shown) == 'none'
    assert b.run('return document.documentElement.scrollWidth <= window.innerWidth')
    b.click('#show-cache')
    assert b.run(shown) == 'block' and b.run('return document.querySelector("#show-cache").ariaPressed') == 'true'
    b.call('POST', '/window/rect', {'width': 1280, 'height': 800})


CASES = [answers_stream_and_are_the_servers, the_panel_shows_what_was_reused, other_answers_and_edits_are_branches, escape_stops_and_frees,
         a_cache_changes_while_an_answer_runs, strategies_are_compared, keys_alone_and_themes, narrow_screens_switch_to_the_panel,
         texts_are_never_markup]


def a_key_is_asked_for(mneme, model, work):
    with open(os.path.join(work, 'keys'), 'w', opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
        f.write(KEY + '\n')
    s = Server(mneme, model, '--api-key-file', f.name)
    with Browser() as b:
        b.open(s.url)
        b.wait('document.querySelector("#settings").open')
        b.type('#key', KEY)
        b.press('Enter')
        b.wait('document.querySelector("#model").textContent')
        say(b, QUESTION)
        assert bodies(b, 'assistant')[0]
        assert KEY not in b.run('return JSON.stringify(localStorage)')
    s.close()


def take_screenshots(s, folder):
    for name, size, theme in (('page-light', (1280, 860), 'light'), ('page-dark', (1280, 860), 'dark'), ('page-narrow', (500, 860), 'light')):
        with Browser(*size) as b:
            begin(b, s.url)
            if b.run('return document.documentElement.dataset.theme') != theme:
                b.click('#theme')
            for text in (QUESTION, 'And of Italy?', 'Which of the two is older?'):
                say(b, text)
            if size[0] > 820:
                b.click('#compare')
                b.wait('!document.querySelector("#compare").disabled', 120)
                b.click('#prompt-box summary')
            time.sleep(2)
            b.screenshot(os.path.join(folder, name + '.png'))


def line_of(error):
    """Of the case."""
    return next((f'line {f.lineno}: {f.line}' for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == __file__), '')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('mneme')
    parser.add_argument('model')
    parser.add_argument('--screenshots')
    a = parser.parse_args()
    if not shutil.which('chromedriver') or not shutil.which('chromium'):
        print('chromium and chromedriver are not installed\n0 passed, 0 failed, 1 skipped')
        return 0
    passed = failed = 0
    with tempfile.TemporaryDirectory() as work:
        s = Server(a.mneme, a.model)
        if a.screenshots:
            take_screenshots(s, a.screenshots)
        with Browser() as b:
            cases = [(case.__name__, lambda case=case: case(b, s)) for case in CASES]
            for name, case in cases + [('a_key_is_asked_for', lambda: a_key_is_asked_for(a.mneme, a.model, work))]:
                try:
                    case()
                    found = [p for p in b.problems() if '400 (Bad Request)' not in p]  # a strategy that the model does not allow
                    assert not found, found
                    passed += 1
                except Exception as e:
                    failed += 1
                    print(f'  {name}: {type(e).__name__}: {e} ({line_of(e)})')
        s.close()
    print(f'{passed} passed, {failed} failed, 0 skipped')
    return failed != 0


if __name__ == '__main__':
    sys.exit(main())
