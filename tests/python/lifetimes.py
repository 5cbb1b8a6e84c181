#!/usr/bin/env python3
"""Threads, signals, forks and ends in Python: who may use an object when, what Ctrl-C does, and how a process ends in the middle of a computation.
usage: lifetimes.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading

from runner import ROOT, SMALL, TEXT, golden, main, refused
import mneme

JFK = os.path.join(ROOT, "tests/data/audio/jfk.wav")
ENDLESS = {"max_new_tokens": 10**9, "ignore_eos": True, "cache_implementation": "sliding_window", "cache_config": {"window_length": 32}}
BEGIN = f"""import mneme, os, signal, sys, threading, types
ENDLESS = {ENDLESS!r}
model = mneme.Model({SMALL!r})
LONG = [3 + i * i % 200 for i in range(400000)]
"""


def run_program(program, *arguments):
    return subprocess.run([sys.executable, "-c", BEGIN + program, *arguments], capture_output=True, text=True, timeout=300)


# ---- threads ----


# The thread that adds can run only while the one that waits in the library does not hold Python's lock.
def other_threads_run_while_the_library_works():
    with mneme.Model(SMALL) as model, mneme.Engine(model) as engine:
        def add():
            while not engine._lock.locked():
                pass
            engine.add(TEXT, max_new_tokens=3)

        adding = threading.Thread(target=add)
        adding.start()
        assert engine.wait(200)
        adding.join()


def a_second_thread_is_refused():
    with mneme.Model(SMALL) as model, model.session() as session, mneme.Engine(model) as engine:
        for owner, name, begin, calls in (
                (session, "session", lambda on_token: session.generate(TEXT, max_new_tokens=5, on_token=on_token),
                 (lambda: session.step([1]), lambda: session.generate(TEXT), lambda: session.token_ids, lambda: session.cache, session.fork,
                  lambda: session.truncate(0), session.close, lambda: session.layer(0), lambda: list(session.generate(TEXT, stream=True)))),
                (engine, "engine", lambda on_token: (engine.add(TEXT, max_new_tokens=5, on_token=on_token), engine.run()),
                 (engine.step, lambda: engine.info, engine.prefixes, engine.close))):
            is_inside, may_go_on = threading.Event(), threading.Event()

            def on_token(token):
                is_inside.set()
                may_go_on.wait()

            using = threading.Thread(target=begin, args=[on_token])
            using.start()
            is_inside.wait()
            for call in calls:
                refused(ValueError, f"this {name} is in use", call)
            may_go_on.set()
            using.join()
            assert not owner.closed
        assert session.generate(TEXT, max_new_tokens=5)[0].token_ids == model.generate(TEXT, max_new_tokens=5)[0].token_ids


def a_model_is_used_by_several_threads():
    with mneme.Model(SMALL) as model:
        texts = [TEXT[: 5 + 4 * i] for i in range(8)]
        wanted = [model.generate(text, max_new_tokens=12)[0].token_ids for text in texts]
        got = [None] * 8

        def generate(i):
            got[i] = model.generate(texts[i], max_new_tokens=12)[0].token_ids

        threads = [threading.Thread(target=generate, args=[i]) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == wanted


def another_thread_cancels():
    with mneme.Model(SMALL) as model, model.session() as session:
        is_begun = threading.Event()
        ending = threading.Thread(target=lambda: (is_begun.wait(), session.cancel()))
        ending.start()
        ended = session.generate(TEXT, **ENDLESS, on_token=lambda token: is_begun.set())
        ending.join()
        assert ended[0].finish_reason == "cancelled" and len(ended[0].token_ids) > 0


# ---- Ctrl-C ----


# Of each call: it ends with KeyboardInterrupt, the handler is Python's again, and the object works.
def ctrl_c_ends_every_long_call():
    done = run_program(f"""
def interrupt(call):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
        print("ended")
    except KeyboardInterrupt:
        print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)

session = model.session("sliding_window", window_length=32)
session.step(LONG[:5])
for call in (lambda: session.step(LONG), lambda: session.sync(LONG[:5] + LONG)):
    interrupt(call)
    print(session.token_ids == LONG[:5])
session.step([7])
print(len(session))
for fields in (dict(), dict(on_token=lambda token: None)):
    engine = mneme.Engine(model)
    numbers = [engine.add("a", **ENDLESS, **fields) for _ in range(64)]
    interrupt(engine.run)
    print(engine.info.num_requests_running)
    for number in numbers:
        engine.cancel(number)
    number = engine.add("a", max_new_tokens=2)
    print(engine.run()[number][0].finish_reason)
speech = mneme.Model({golden("whisper/tiny80")!r})
for fields in (dict(), dict(on_segment=lambda *_: None)):
    interrupt(lambda: mneme.transcribe([{JFK!r}] * 2000, speech, language="en", **fields))
print(len(mneme.transcribe({JFK!r}, speech, language="en", max_new_tokens=20).segments) > 0)
""")
    wanted = ["interrupted True", "True", "interrupted True", "True", "6", "interrupted True", "64", "length", "interrupted True", "64", "length",
              "interrupted True", "interrupted True", "True"]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, wanted, ""), done


def what_ended_before_ctrl_c_does_not_end_the_next_call():
    done = run_program("""
from mneme import _interrupt
session = model.session()
class Late(threading.Event):  # Ctrl-C comes when the step has ended, before the main thread knows
    n = 0
    def is_set(self):
        self.n += 1
        return self.n > 1
    def wait(self):
        super().wait()
        raise KeyboardInterrupt
_interrupt.threading = types.SimpleNamespace(**{**vars(threading), 'Event': Late})
try:
    session.step(LONG[:40])
except KeyboardInterrupt:
    print(len(session))
    session.step(LONG[:3])
    print(len(session))
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "40\n43\n", ""), done


# ---- ends ----


def the_interpreter_may_end_in_any_computation():
    ways = {
        "a stream": "tokens = model.generate('a', stream=True, **ENDLESS)\nnext(tokens)",
        "a batch's stream": "tokens = model.generate(['a', 'b'], stream=True, **ENDLESS)\nnext(tokens)",
        "another thread": "begun = threading.Event()\n"
                          "threading.Thread(target=lambda: model.generate('a', on_token=lambda t: begun.set(), **ENDLESS), daemon=True).start()\nbegun.wait()",
        "a step": "session = model.session('sliding_window', window_length=32)\n"
                  "threading.Thread(target=lambda: session.step(LONG), daemon=True).start()\nwhile not session._lock.locked():\n    pass",
        "an engine": "engine = mneme.Engine(model)\nbegun = threading.Event()\nengine.add('a', on_token=lambda t: begun.set(), **ENDLESS)\n"
                     "threading.Thread(target=engine.run, daemon=True).start()\nbegun.wait()",
        "a callback": "def leave(token):\n    sys.exit(0)\nmodel.generate('a', on_token=leave, **ENDLESS)",
        "asyncio": "import asyncio\nasync def read():\n    async for token in model.agenerate('a', **ENDLESS):\n        return\nasyncio.run(read())",
        "a stream in a circle": "import gc\nclass Keeper:\n    pass\nkeeper = Keeper()\nkeeper.session = model.session()\n"
                                "keeper.stream = keeper.session.generate('a', stream=True, **ENDLESS)\nnext(keeper.stream)\nkeeper.self = keeper\n"
                                "handle = keeper.session._handle\ndel keeper\ngc.collect()\nassert not handle.value",
        "objects that are left": "session = model.session()\nsession.generate('a', max_new_tokens=2)\nfork = session.fork()\nmodel.close()",
    }
    for name, program in ways.items():
        done = run_program(f"{program}\nprint('end')\n")
        assert (done.returncode, done.stderr) == (0, "") and done.stdout in ("end\n", "" if name == "a callback" else "end\n"), (name, done)


# ---- forks ----


# In a forked process every object is refused, and closing them there leaves those of the parent as they are.
def forked_processes_open_their_own():
    done = run_program(f"""
session, engine, config, tokenizer = model.session(), mneme.Engine(model), mneme.GenerationConfig(model), model.tokenizer
sampler, pieces, features = mneme.Sampler(model, [1]), mneme.Detokenizer(tokenizer), mneme.Features({JFK!r})
tokens = model.session().generate("a", stream=True, **ENDLESS)
next(tokens)
calls = [lambda: session.step([1]), session.fork, session.cancel, lambda: session.cache, engine.step, engine.take, lambda: config.set("top_k", 3),
         lambda: tokenizer.encode("a"), lambda: model.describe(), lambda: model.generate("a"), lambda: sampler.accept(1), lambda: pieces.push(300),
         lambda: features.window(), lambda: mneme.Engine(model)]
child = os.fork()
if child == 0:
    n_refused = 0
    for call in calls:
        try:
            call()
        except mneme.ArgumentError as error:
            n_refused += "a forked process opens its own" in str(error)
    for handle in (session, engine, config, sampler, pieces, features, model):
        handle.close()
    own = mneme.Model({SMALL!r})
    n_refused += own.generate("a", max_new_tokens=3)[0].finish_reason == "length"
    os._exit(n_refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls) + 1)
tokens.close()
session.step([1])
print(model.generate("a", max_new_tokens=3)[0].finish_reason, engine.run(), tokenizer.encode("a") != [])
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nlength {} True\n", ""), done


def objects_are_not_pickled_or_copied():
    with mneme.Model(SMALL) as model, model.session() as session, mneme.Engine(model) as engine, mneme.GenerationConfig(model) as config:
        for handle in (model, session, engine, config, model.tokenizer):
            for call in (pickle.dumps, copy.copy, copy.deepcopy):
                try:
                    call(handle)
                    raise AssertionError(f"{call.__name__} of a {type(handle).__name__}")
                except TypeError as error:
                    assert "cannot be pickled" in str(error) and "save()" in str(error), error
        for error in (mneme.NotFoundError("no model 'a'"), mneme.CancelledError("cancelled")):
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is type(error) and str(again) == str(error)


# ---- context managers ----


def objects_close_with_their_blocks():
    with mneme.Model(SMALL) as model:
        handles = [model.session(), mneme.Engine(model), mneme.GenerationConfig(model), mneme.Sampler(model, [1]), mneme.Detokenizer(model.tokenizer),
                   mneme.Features(JFK)]
        for handle in handles:
            try:
                with handle as entered:
                    assert entered is handle and not handle.closed
                    raise KeyError("of the block")
            except KeyError:
                assert handle.closed
                handle.close()
                refused(ValueError, "is closed", lambda: handle._pointer)
    assert model.closed and model.tokenizer is not None


CASES = [other_threads_run_while_the_library_works, a_second_thread_is_refused, a_model_is_used_by_several_threads, another_thread_cancels,
         ctrl_c_ends_every_long_call, what_ended_before_ctrl_c_does_not_end_the_next_call, the_interpreter_may_end_in_any_computation,
         forked_processes_open_their_own, objects_are_not_pickled_or_copied, objects_close_with_their_blocks]


if __name__ == "__main__":
    main(CASES)
