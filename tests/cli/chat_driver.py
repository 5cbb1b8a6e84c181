"""Drives `mneme chat` for the tests: on pipes, one process for a whole conversation, and on a pseudo terminal, key by key.

SPDX-License-Identifier: Apache-2.0
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

HERE = os.path.dirname(os.path.abspath(__file__))
if "MNEME_TEST_RUN" not in os.environ:  # also by hand in an environment of its own
    os.execv(HERE + "/../run", ["run", sys.executable, *sys.argv])
MNEME = os.path.abspath(sys.argv[1])
WORK = tempfile.mkdtemp()
SMOLLM2 = os.environ.get("MNEME_TEST_SMOLLM2") or os.path.join(os.environ["MNEME_TEST_MODELS"], "SmolLM2-135M-Instruct.Q4_1.gguf")
ENV = dict(os.environ)
ENV.update(XDG_CONFIG_HOME=WORK + "/config", XDG_STATE_HOME=WORK + "/state", MNEME_MODELS=WORK + "/models", HF_HUB_CACHE=WORK + "/hub",
           HOME=WORK, TERM="xterm")
PATIENCE = 600  # seconds that a step may take on a busy machine


class Skip(Exception):
    pass


def template_model(name="chat", flip=False):
    """The embedded model's files with a chat template of our own; flip: with another weight."""
    folder = os.path.join(WORK, name)
    if not os.path.isdir(folder):
        os.mkdir(folder)
        source = os.path.join(HERE, "../../models-embedded/stories260K")
        for file in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
            shutil.copy(os.path.join(source, file), folder)
        template = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' and loop.first %}{{ raise_exception('who asked?') }}"
                    "{% endif %}{{ m.role }}:{{ '' if m.role == 'assistant' else ' ' }}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                       "chat_template": template}, f)
        if flip:
            with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
                f.seek(-3, 2)
                byte = f.read(1)
                f.seek(-3, 2)
                f.write(bytes([byte[0] ^ 1]))
    return folder


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def objects(self):
        return [json.loads(line) for line in self.out.splitlines() if line.strip()]


def mneme(*arguments, text="", code=0):
    """One run on pipes; text is all of its input."""
    data = text if isinstance(text, bytes) else text.encode()
    done = subprocess.run([MNEME, *arguments], input=data, capture_output=True, env=ENV, timeout=PATIENCE)
    result = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert result.code == code, f"exit code {result.code}, expected {code}: {result.err}"
    return result


def chat(*arguments, lines, code=0):
    return mneme("chat", *arguments, text="".join(line + "\n" for line in lines), code=code)


def turns(*arguments, lines):
    """The objects of a conversation with --json, and its stderr."""
    result = chat(*arguments, "--json", lines=lines)
    return result.objects(), result.err


def prompt_of(turn):
    return turn["prompt_ids"][0]


def answer_of(turn):
    return turn["sequences"][0]["ids"]


def messages_of(folder):
    with open(os.path.join(folder, "conversation.json")) as f:
        return [(m["role"], m["content"]) for m in json.load(f)["messages"]]


class Terminal:
    """`mneme chat` with a terminal of its own."""

    READY = "\x1b[?2004h"  # a line can be typed now

    def __init__(self, *arguments, columns=80, env=None, command=None):
        self.master, slave = pty.openpty()
        self.resize(columns, 24)
        self.before = termios.tcgetattr(slave)

        def own_terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(command or [MNEME, "chat", *arguments], stdin=slave, stdout=slave, stderr=slave, env=dict(ENV, **(env or {})),
                                        preexec_fn=own_terminal, close_fds=True)
        self.slave = slave
        self.text = ""  # everything shown
        self.at = 0     # looked at

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.raw = getattr(self, "raw", b"") + data
        self.text = self.raw.decode("utf-8", "replace")
        return bool(data)

    def wait(self, wanted):
        """Waits for the text; returns the output up to its end."""
        end = time.monotonic() + PATIENCE
        while wanted not in self.text[self.at:]:
            if time.monotonic() > end:
                raise AssertionError(f"{wanted!r} did not come; there is {self.text[self.at:]!r}")
            self.read(0.2)
        begin, self.at = self.at, self.text.index(wanted, self.at) + len(wanted)
        return self.text[begin:self.at]

    def keys(self, text):
        os.write(self.master, text.encode())

    def ready(self):
        return self.wait(self.READY)

    def line(self, text):
        """Types a line when the prompt is there."""
        self.ready()
        self.keys(text + "\r")

    def say(self, text):
        """Types a line and returns the output until the next prompt."""
        self.line(text)
        shown = self.ready()
        self.at -= len(self.READY)  # the next line waits for it too
        return shown

    def end(self, code=0):
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        while self.read(0.05):
            pass
        assert self.process.returncode == code, f"exit code {self.process.returncode}, expected {code}: {self.text[-300:]!r}"
        after = termios.tcgetattr(self.slave)
        assert after == self.before, "the terminal is not as it was"
        assert self.text.rfind("\x1b[?2004h") <= self.text.rfind("\x1b[?2004l"), "pasting is not switched off"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.master, self.slave):
            try:
                os.close(fd)
            except OSError:
                pass


def plain(text):
    """Without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)


class background:
    """A conversation on pipes that the test reads while it runs: stdin stays open."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([MNEME, "chat", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()

    def send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def read_some(self):
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "nothing came"
        return os.read(self.process.stdout.fileno(), 4096)

    def end(self, code, number=None):
        if number is None:
            self.process.stdin.close()
        else:
            self.process.send_signal(number)
        out = self.process.stdout.read()
        self.process.wait(PATIENCE)
        err = self.process.stderr.read().decode()
        assert self.process.returncode == code, f"exit code {self.process.returncode}, expected {code}: {err}"
        return out.decode("utf-8", "replace"), err


def run(cases):
    """Runs the functions, prints the counts as the other tests do; the exit code."""
    passed = failed = skipped = 0
    for case in cases:
        try:
            case()
            passed += 1
        except Skip as reason:
            print(f"skipped {case.__name__}: {reason}")
            skipped += 1
        except Exception as problem:  # noqa: BLE001 (any way to fail is a failure)
            line = problem.__traceback__
            while line.tb_next:
                line = line.tb_next
            print(f"[  FAILED  ] {case.__name__} (line {problem.__traceback__.tb_next.tb_lineno}): {type(problem).__name__} {str(problem)[:1500]}")
            failed += 1
    shutil.rmtree(WORK, ignore_errors=True)
    print(f"[  PASSED  ] {passed} test(s).")
    if skipped:
        print(f"[  SKIPPED ] {skipped} test(s).")
    if not passed and not skipped and not failed:
        print("no case was run")
        failed = 1
    if failed:
        print(f"[  FAILED  ] {failed} test(s).")
    return 1 if failed else 0
