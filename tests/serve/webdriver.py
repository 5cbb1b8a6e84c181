"""A client of the WebDriver protocol (W3C), as much of it as the test of the page needs: Debian's chromedriver and
Chromium without a window."""
import base64
import json
import re
import subprocess
import time
import urllib.error
import urllib.request

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ELEMENT = 'element-6066-11e4-a52e-4f735466cecf'
KEYS = {'Enter': '\ue007', 'Escape': '\ue00c', 'Alt': '\ue00a', 'Shift': '\ue008', 'Left': '\ue012', 'Right': '\ue014', 'Tab': '\ue004'}


class Browser:
    """A session of its own profile; ends with the block."""

    def __init__(self, width=1280, height=800):
        self.size = width, height

    def __enter__(self):
        self.driver = subprocess.Popen(['chromedriver', '--port=0'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.driver.stdout:
            found = re.search(r'successfully on port (\d+)', line)
            if found:
                self.base = 'http://127.0.0.1:' + found.group(1)
                break
        options = {'args': ['--headless=new', '--no-sandbox', '--disable-dev-shm-usage', '--no-proxy-server', '--window-size=%d,%d' % self.size]}
        made = self.call('POST', '/session', {'capabilities': {'alwaysMatch': {
            'goog:chromeOptions': options, 'goog:loggingPrefs': {'browser': 'ALL'}}}}, root=True)
        self.session = made['sessionId']
        self.call('POST', '/window/rect', {'width': self.size[0], 'height': self.size[1]})
        return self

    def __exit__(self, *_):
        try:
            self.call('DELETE', '')
        finally:
            self.driver.terminate()
            self.driver.wait()

    def call(self, method, path, body=None, root=False):
        url = self.base + (path if root else '/session/' + self.session + path)
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, {'Content-Type': 'application/json'}, method=method)
        try:
            with OPENER.open(request, timeout=120) as answer:
                return json.load(answer)['value']
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)['value']['message']) from None

    def open(self, url):
        self.call('POST', '/url', {'url': url})

    def run(self, script, *args):
        return self.call('POST', '/execute/sync', {'script': script, 'args': list(args)})

    def find(self, css):
        return self.call('POST', '/element', {'using': 'css selector', 'value': css})[ELEMENT]

    def click(self, css):
        self.call('POST', '/element/%s/click' % self.find(css), {})

    def type(self, css, text):
        self.call('POST', '/element/%s/value' % self.find(css), {'text': text})

    def press(self, *keys):
        """Keys held together, to whatever has the focus."""
        keys = [KEYS.get(k, k) for k in keys]
        actions = [{'type': 'keyDown', 'value': k} for k in keys] + [{'type': 'keyUp', 'value': k} for k in reversed(keys)]
        self.call('POST', '/actions', {'actions': [{'type': 'key', 'id': 'keyboard', 'actions': actions}]})

    def wait(self, script, seconds=60):
        """Until an expression of JavaScript is true; its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run('return ' + script)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError('never true: ' + script)

    def text(self, css):
        return self.run('return document.querySelector(arguments[0]).textContent', css)

    def problems(self):
        """What the console has: errors, and what the policy forbade."""
        return [e['message'] for e in self.call('POST', '/se/log', {'type': 'browser'}) if e['level'] in ('SEVERE', 'WARNING')]

    def screenshot(self, path):
        with open(path, 'wb') as f:
            f.write(base64.b64decode(self.call('GET', '/screenshot')))
