"""`mneme serve` behind a Unix socket, its client, and random prompts, for the benches beside this file."""
import http.client
import json
import os
import socket
import subprocess
import sys
import time

WORDS = 'time year people way day man thing woman life child world school state family group country hand part place week'.split()
MNEME = os.path.join(os.path.dirname(__file__), '..', 'build', 'release', 'mneme')


def random_text(rnd, n):
    """n words; with the vocabulary of most models as many tokens."""
    return ' '.join(rnd.choice(WORDS) for _ in range(n))


class Local(http.client.HTTPConnection):
    """A connection through a Unix socket."""

    def __init__(self, path):
        super().__init__('localhost')
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Server:
    """A server in a folder; ends with the block."""

    def __init__(self, folder, model, threads, *options):
        self.path = os.path.join(folder, 'socket')
        self.command = [MNEME, 'serve', '-m', model, '--unix', self.path, '-t', str(threads), *options]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        while not os.path.exists(self.path):
            if self.process.poll() is not None:
                sys.exit('%s: exit code %d' % (' '.join(self.command), self.process.returncode))
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def events(path, prompt, n):
    """Greedy completion of n tokens: the events of the stream, as they come."""
    body = {'prompt': prompt, 'max_tokens': n, 'stream': True, 'temperature': 0, 'ignore_eos': True,
            'stream_options': {'include_usage': True}}
    client = Local(path)
    client.request('POST', '/v1/completions', json.dumps(body), {'Content-Type': 'application/json'})
    answer = client.getresponse()
    if answer.status != 200:
        sys.exit('%d %s' % (answer.status, answer.read().decode()))
    try:
        for line in answer:
            if line.startswith(b'data: {'):
                yield json.loads(line[6:])
    finally:
        client.close()
