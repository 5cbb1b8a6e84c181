"""What a terminal gets: no control character of a file, a token or an error, from any command; a pipe gets every byte as it is.
usage: terminal.py MNEME MAKE_CACHE SHOW_PIECES [CASE...]

Standard output and standard error are pseudo terminals, one each. What they show is compared with what pipes get, by a rule that is
written here once more.
SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios

from chat_driver import ENV, HERE, MNEME, PATIENCE, WORK, Skip, Terminal, mneme, run

MAKE_CACHE, SHOW_PIECES = (os.path.abspath(path) for path in sys.argv[2:4])
STORIES = os.path.join(HERE, "../../models-embedded/stories260K")
DATA = os.path.join(HERE, "../data")
TINY = os.path.join(DATA, "golden/whisper/tiny80")
SPEECH = os.path.join(DATA, "audio/test_speech.wav")
PLAIN = {"TERM": "dumb", "NO_COLOR": "1"}  # terminals that get no control sequences of the command's own either
CONTROLS = [chr(c) for c in [*range(1, 32), *range(0x7F, 0xA0)] if chr(c) not in "\n\t"]
# Writes the clipboard, sets the title, clears, colours, in 7 and in 8 bits.
EVIL = "\x1b]52;c;cm0gLXJmIH4=\x07\x1b]0;title\x07\x1b[2J\x9b31m\x9d0;t\x9c\x7f"


def shown(data):
    """The expected output on a terminal for these bytes."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    return "".join(c if c in "\n\t" or not (c < " " or "\x7f" <= c < "\xa0") else f"\\u{ord(c):04x}" for c in text)


def on_terminals(command, *arguments, env=None, text=b"", code=0):
    """Output and messages of a run whose both streams are terminals, as bytes with plain newlines."""
    pairs = [pty.openpty() for _ in range(2)]
    for _, slave in pairs:
        settings = termios.tcgetattr(slave)
        settings[1] &= ~termios.OPOST  # newlines as they were written
        termios.tcsetattr(slave, termios.TCSANOW, settings)
    process = subprocess.Popen([command, *arguments], stdin=subprocess.PIPE, stdout=pairs[0][1], stderr=pairs[1][1],
                               env=dict(ENV, **(PLAIN if env is None else env)), close_fds=True)
    process.stdin.write(text)
    process.stdin.close()
    got = {master: b"" for master, _ in pairs}
    for _, slave in pairs:
        os.close(slave)
    open_ones = set(got)
    while open_ones:
        ready, _, _ = select.select(sorted(open_ones), [], [], PATIENCE)
        assert ready, "nothing came"
        for master in ready:
            try:
                data = os.read(master, 65536)
            except OSError:
                data = b""
            got[master] += data
            if not data:
                open_ones.remove(master)
    process.wait(PATIENCE)
    out, err = (got[master] for master, _ in pairs)
    for master, _ in pairs:
        os.close(master)
    assert process.returncode == code, f"exit code {process.returncode}, expected {code}: {err}"
    return out, err


def on_pipes(command, *arguments, text=b"", code=0):
    done = subprocess.run([command, *arguments], input=text, capture_output=True, env=ENV, timeout=PATIENCE)
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}: {done.stderr}"
    return done.stdout, done.stderr


def assert_clean(data):
    text = data.decode("utf-8")  # whole characters only
    bad = re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert not bad, f"{bad.group()!r} in {text[max(0, bad.start() - 60):bad.start() + 60]!r}"
    return text


def compare(*arguments, text=b"", code=0, newline="", same_err=True):
    """A run on terminals shows what a run on pipes gives. newline: what a terminal gets besides, behind the answer."""
    out, err = on_terminals(MNEME, *arguments, text=text, code=code)
    pipe_out, pipe_err = on_pipes(MNEME, *arguments, text=text, code=code)
    assert_clean(out), assert_clean(err)
    assert out.decode() == shown(pipe_out) + newline, (out, pipe_out)
    if same_err:
        assert err.decode() == shown(pipe_err), (err, pipe_err)
    return pipe_out, pipe_err


def model(name, **changes):
    """The embedded model's files with other ones."""
    folder = os.path.join(WORK, name)
    os.makedirs(folder)
    for file in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        shutil.copy(os.path.join(STORIES, file), folder)
    for file, change in changes.items():
        path = os.path.join(folder, file + ".json")
        with open(path) as f:
            value = json.load(f)
        change(value)
        with open(path, "w") as f:
            json.dump(value, f)
    return folder


def decodes_to(text):
    """A change of tokenizer.json: every e of an answer becomes the text."""
    def change(tokenizer):
        tokenizer["decoder"]["decoders"].insert(0, {"type": "Replace", "pattern": {"String": "e"}, "content": text})
    return change


# ---- characters ----


def every_byte_and_piece():
    cases = [bytes(range(1, 256)), "".join(map(chr, range(1, 0x250))).encode(), b"\xc2", b"a\xe2\x80", b"\xf0\x9f\x98", b"\xc2\x9b\xc2\xc2\x9b\xe2\x82\xac\xe2\x82",
             "grüße, 日本語, 😀\n\ttab\r\n".encode(), b"\xed\xa0\x80\xf5\xc0\x80\xe0\x80\x9b" + EVIL.encode("utf-8"), ("é" * 700 + "\x9b" * 700).encode(),
             b"\x1b" * 3000 + "x€".encode() * 1000]
    for data in cases:
        for size in (1, 2, 3, 5, 1023, 4096):
            if len(data) > 1000 and size < 3:
                continue
            out, _ = on_terminals(SHOW_PIECES, str(size), text=data)
            assert_clean(out)
            assert out.decode() == shown(data), (size, data[:80], out[:80])
    data = bytes(range(256)) * 40
    assert on_pipes(SHOW_PIECES, "7", text=data)[0] == data


# ---- answers ----


def answers():
    evil = model("answers", tokenizer=decodes_to("".join(CONTROLS) + EVIL))
    prompt = ["run", evil, "Once upon a time", "--raw", "-n", "12"]
    out, _ = compare(*prompt, newline="\n", same_err=False)
    assert out.count(b"\x1b") > 4, "nothing to be held back"
    compare(*prompt, "--do-sample", "--num-return-sequences", "2", "--seed", "1", newline="\n", same_err=False)
    out, _ = on_terminals(MNEME, *prompt, "--json")
    value = json.loads(assert_clean(out))
    pipe = json.loads(on_pipes(MNEME, *prompt, "--json")[0])
    assert value["sequences"] == pipe["sequences"] and "\x9b" in value["sequences"][0]["text"]
    batch = os.path.join(WORK, "batch.jsonl")
    with open(batch, "w") as f:
        f.write('{"prompt": "Once upon a time"}\n')
    out, _ = on_terminals(MNEME, "run", evil, "--batch", batch, "-n", "8")
    assert "\x1b" in json.loads(assert_clean(out))["sequences"][0]["text"]


def bytes_of_two_tokens():
    """Bytes C2 and 9B are tokens of their own."""
    with open(os.path.join(STORIES, "tokenizer.json")) as f:
        vocab = json.load(f)["model"]["vocab"]
    ids = ",".join(str(vocab[f"<0x{byte:02X}>"]) for byte in b"\xc2\x9b2J\x1b[2J")
    out, _ = compare("tokenize", STORIES, "--decode", "--ids", ids, newline="\n")
    assert out.startswith(b"\xc2\x9b2J\x1b[2J"), out
    first, second = vocab["<0xC2>"], vocab["<0x9B>"]
    out, _ = compare("run", STORIES, "Once", "--raw", "-n", "2", "--greedy", "--sequence-bias", json.dumps([[[first], 99.0], [[first, second], 999.0]]),
                     newline="\n", same_err=False)
    assert out == b"\xc2\x9b", out


def pieces_of_a_vocabulary():
    def change(tokenizer):
        vocab = tokenizer["model"]["vocab"]
        last = max(vocab, key=vocab.get)
        vocab[EVIL] = vocab.pop(last)
        tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"] if last not in ("".join(m).replace(" ", ""), m[0], m[1])]
        tokenizer["added_tokens"].append({"id": vocab[EVIL], "content": EVIL, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": False})
    evil = model("pieces", tokenizer=change)
    arguments = ["tokenize", evil, "-p", "one" + EVIL, "--json"]
    out, _ = on_terminals(MNEME, *arguments)
    value = json.loads(assert_clean(out))
    assert EVIL in value["pieces"] and value == json.loads(on_pipes(MNEME, *arguments)[0])


# ---- names and descriptions ----


def models_with_bad_names():
    for name in ("name\x1b[2J\x9b31m", os.fsdecode(b"raw\x9b2J\xff\x1b]0;t\x07")):
        folder = os.path.join(WORK, name)
        shutil.copytree(STORIES, folder)
        out, err = on_terminals(MNEME, "inspect", folder)
        assert "\\u001b" in assert_clean(out)
        out, _ = on_terminals(MNEME, "inspect", folder, "--json")
        json.loads(assert_clean(out))
        for command in (["doctor", folder], ["run", folder, "Once", "-n", "2", "-v"], ["run", folder, "Once", "-n", "2", "--print-config"],
                     ["score", folder, "-p", "Once upon a time", "-v"], ["bench", folder, "-p", "4", "-n", "2", "-r", "1", "-o", "csv"]):
            out, err = on_terminals(MNEME, *command)
            assert_clean(out), assert_clean(err)


def saved_caches():
    folder = os.path.join(WORK, "caches")
    os.mkdir(folder)
    path = os.path.join(folder, f"talk\x1b[2J\x9b.safetensors")
    subprocess.run([MAKE_CACHE, path, f"note={EVIL}", f"mneme.model=model{EVIL}", f"k\x9b31m={EVIL}"], check=True)
    for arguments in (["ls", folder], ["show", path], ["verify", path]):
        out, _ = compare("cache", *arguments)
        assert b"\x1b" in out
        out, _ = on_terminals(MNEME, "cache", *arguments, "--json")
        assert json.loads(assert_clean(out)) == json.loads(on_pipes(MNEME, "cache", *arguments, "--json")[0])


def recordings():
    wav = os.path.join(WORK, "speech\x1b]0;t\x07\x9b2J.wav")
    shutil.copy(SPEECH, wav)
    bad = os.path.join(WORK, "bad\x1b[2J.wav")
    with open(bad, "wb") as f:
        f.write(EVIL.encode() * 100)
    few = ["--max-new-tokens", "4", "--temperature", "0"]
    out, err = compare("transcribe", "-m", TINY, wav, bad, *few, code=1, same_err=False)
    assert out.count(b"\x1b") >= 1 and b"bad\x1b" in err
    out, _ = on_terminals(MNEME, "transcribe", "-m", TINY, wav, *few, "--json")
    assert json.loads(assert_clean(out))["file"] == wav
    # The progress line, with the command's own control sequences around it.
    _, err = on_terminals(MNEME, "transcribe", "-m", TINY, wav, wav, *few, "--output", "json", env={"TERM": "xterm"})
    own = re.sub(rb"\r|\x1b\[(2m|0m|K)", b"", err)
    assert own != err
    assert_clean(own)


# ---- errors ----


def errors():
    def normalizer(tokenizer):
        tokenizer["normalizer"] = {"type": "\x1b]0;PWNED\x07\x1b[2J\x1b[31mred"}

    def template(config):
        config["chat_template"] = "{{ raise_exception('" + EVIL.replace("\x1b", "\\x1b").replace("\x07", "\\x07") + "hello') }}"
    for folder, code in ((model("normalizer", tokenizer=normalizer), 3), (model("template", tokenizer_config=template), 2)):
        for extra in ([], ["--json"]):
            out, err = on_terminals(MNEME, "run", folder, "Hello", "-n", "2", *extra, code=code)
            assert "\\u001b" in assert_clean(err)
            assert err.decode() == shown(on_pipes(MNEME, "run", folder, "Hello", "-n", "2", *extra, code=code)[1])
            if extra:
                assert "\x1b" in json.loads(assert_clean(out))["error"]["message"]
    folder = model("header")
    header = b'{"__metadata__":{"a\\u001b[31mb":"1","a\\u001b[31mb":"2"}}'
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
    compare("run", folder, "Hello", code=3)
    for arguments in (["run", f"./{EVIL}", "hi"], ["tokenize", "embedded", "-f", f"/nowhere/{EVIL}"], ["inspect", f"org/{EVIL}"], ["run", "embedded", "hi", f"--x{EVIL}"], [EVIL],
                      ["run", "embedded", "hi", "--threads", EVIL], ["cache", "show", EVIL], ["run", "embedded", "hi", "--load-cache", EVIL]):
        out, err = on_terminals(MNEME, *arguments, code=subprocess.run([MNEME, *arguments], capture_output=True, env=ENV).returncode)
        assert "\\u001b" in assert_clean(err), err
        assert_clean(out)
    # Longer than any buffer of the command.
    _, err = on_terminals(MNEME, "run", "embedded", "--raw", "-f", "/nowhere/" + "\x9b" * 3000, code=1)
    assert_clean(err)


# ---- conversations ----


def talks_on_pipes_into_terminals():
    evil = model("talk", tokenizer=decodes_to(EVIL))
    lines = f"Once upon\n/system be {EVIL}\n/system\n/fork t{EVIL}\n/switch\n/stats\n/set stop_strings={EVIL}\n/set\n/load /nowhere/{EVIL}\n/{EVIL}\n/cache\n/help\n".encode()
    out, err = on_terminals(MNEME, "chat", evil, "-n", "8", "--stats", text=lines)
    assert "\\u001b" in assert_clean(out) and "\\u001b]52" in assert_clean(err)


def has_editor():
    return "libedit" in subprocess.run(["ldd", MNEME], capture_output=True, text=True).stdout


def a_prompt_with_the_name_of_a_branch():
    if not has_editor():
        raise Skip("built without libedit")
    t = Terminal("embedded", "-n", "2", "--no-history")
    try:
        t.line("\x1b[200~/fork a\x9b2J\x9d0;t\x9c\x1b[201~")
        t.line("/switch")
        t.line("/switch")
        t.line("/exit")
        t.end(0)
        assert "a\\u009b2J\\u009d0;t\\u009c> " in t.text, t.text
        assert not re.search("[\x80-\x9f]", t.text), t.text
    finally:
        t.close()


def an_old_message_types_nothing():
    """/edit gives the last message to the editor: as text, whatever it holds."""
    if not has_editor():
        raise Skip("built without libedit")
    saved = os.path.join(WORK, "saved\x1b[2J")
    marker = os.path.join(WORK, "marker")
    mneme("chat", "embedded", "-n", "2", "--save", saved, text=f"hi\x1b[201~\r/save {marker}\rthere\n/exit\n")
    t = Terminal("embedded", "-n", "2", "--no-history", "--load", saved)
    try:
        t.line("/edit")
        t.ready()
        t.wait("there")
        t.keys("!\r")
        t.line("/exit")
        t.end(0)
    finally:
        t.close()
    assert not os.path.exists(marker), "a message of a file was taken as keys"


def reasoning_is_faint():
    """On a terminal with colours, and in no pipe."""
    folder = model("thinker", tokenizer_config=lambda c: c.update(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}"))
    command = ["run", folder, "Hi", "-n", "40", "--ignore-eos", "--regex", "<think>One</think>Two"]
    out, _ = on_terminals(MNEME, *command, env={"TERM": "xterm"})
    pieces = out.decode().replace("\x1b[0m\x1b[2m", "")
    assert pieces == "\x1b[2m<think>One</think>\x1b[0mTwo\n", pieces
    for environment in ({"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert on_terminals(MNEME, *command, env=environment)[0] == b"<think>One</think>Two\n", environment
    assert on_pipes(MNEME, *command)[0] == b"<think>One</think>Two"
    assert on_terminals(MNEME, *command, "--no-thinking", env={"TERM": "xterm"})[0] == b"Two\n"


def waits_say_how_far_they_are():
    """Loading, each row of a table, checking a saved cache and calibrating, on a terminal that can overwrite a line; in a pipe there are only results."""
    capable = {"TERM": "xterm", "NO_COLOR": "1"}
    cache, calibration = os.path.join(WORK, "waits.safetensors"), os.path.join(WORK, "waits.calibration")
    subprocess.run([MAKE_CACHE, cache], check=True)
    ids = ",".join(str((i * 7 + i % 5) % 64) for i in range(400))
    for arguments, wanted in ((("run", "embedded", "Once", "-n", "2"), "loading "), (("doctor",), "loading "),
                              (("bench", "embedded", "-d", "8", "-p", "4", "-n", "2", "-r", "1"), "depth 8: row 1 of 1"),
                              (("cache", "verify", cache), f"checking {cache}"[:70]),  # as far as a line of 80 columns has it
                              (("cache", "calibrate", os.path.join(DATA, "golden/llama"), "--out", calibration, "--ids", ids), "calibrating with 400 tokens")):
        _, err = on_terminals(MNEME, *arguments, env=capable)
        assert wanted in err.decode(), (arguments, err)
        assert wanted not in on_pipes(MNEME, *arguments)[1].decode(), arguments


def scripts_say_how_far_they_are():
    """A script's long command: its state on the terminal, its output in the file, its exit code."""
    begun, marker, output = (os.path.join(WORK, name) for name in ("begun", "reported", "output"))
    wait = f"echo text; until [ -e '{marker}' ]; do sleep 0.05; done; exit 3"
    state = f"! [ -e '{begun}' ] || touch '{marker}'; touch '{begun}'; echo half way"  # the second one follows when the first is shown
    _, err = on_terminals(os.path.join(HERE, "../../scripts/progress"), output, state, "sh", "-c", wait, code=3)
    assert err.startswith(b"\rhalf way"), err
    with open(output) as f:
        assert f.read() == "text\n"


CASES = [every_byte_and_piece, answers, bytes_of_two_tokens, pieces_of_a_vocabulary, models_with_bad_names, saved_caches, recordings, errors, talks_on_pipes_into_terminals,
         a_prompt_with_the_name_of_a_branch, an_old_message_types_nothing, reasoning_is_faint, waits_say_how_far_they_are, scripts_say_how_far_they_are]

if __name__ == "__main__":
    chosen = sys.argv[4:]
    sys.exit(run([case for case in CASES if not chosen or case.__name__ in chosen]))
