#!/usr/bin/env python3
"""The Python package on the built library: models, sessions, tokenizers, generation, what is refused. Oracles are the command's answers.
usage: package.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import ctypes
import gc
import importlib.util
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

from runner import COMMAND, ROOT, SMALL, TEXT, command, main, refused, template_model
import mneme
from mneme import _ffi


# ---- declarations ----


def declarations_name_all_functions():
    names = set()
    for header in ("mneme.h", "mneme_engine.h", "mneme_speech.h"):
        with open(os.path.join(ROOT, "include", header)) as file:
            names |= set(re.findall(r"^MN_API [^;]*?\b(mn_\w+)\(", file.read(), re.M))
    assert len(names) > 100 and names == set(_ffi.FUNCTIONS), names ^ set(_ffi.FUNCTIONS)


# What the package needs not call, and why.
NOT_CALLED = {
    "mn_version_number": "mneme.__version__ is mn_version",
    "mn_status_text": "every failure has its own sentence",
    "mn_chat_render": "mn_chat_render_with is the same with options",
    "mn_has_chat_template": "Tokenizer.chat_template is None without one",
    "mn_generator_finish": "a stream has given its tokens",
}


def functions_are_called_by_the_package():
    text, folder = "", os.path.dirname(mneme.__file__)
    for name in os.listdir(folder):
        if name.endswith(".py") and name != "_ffi.py":
            with open(os.path.join(folder, name)) as file:
                text += file.read()
    called = set(re.findall(r"\blib\.(mn_\w+)", text))
    called |= {f"mn_{name}_close" for name in re.findall(r'^    _name = "(\w+)"', text, re.M)}
    called |= {f"{name}_init" for name in re.findall(r"initialized\(_ffi\.(\w+)\)", text)}
    assert called <= set(_ffi.FUNCTIONS) and set(NOT_CALLED) <= set(_ffi.FUNCTIONS), (called | set(NOT_CALLED)) - set(_ffi.FUNCTIONS)
    assert set(_ffi.FUNCTIONS) - called == set(NOT_CALLED), (set(_ffi.FUNCTIONS) - called) ^ set(NOT_CALLED)


def importing_is_light():
    program = ("import sys\nbefore = set(sys.modules)\nimport mneme\n"
               "print([name for name in ('numpy', 'subprocess', 'torch', 'transformers') if name in set(sys.modules) - before])\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done


def classes_are_named_as_they_are_imported():
    classes = [value for value in (getattr(mneme, name) for name in mneme.__all__) if isinstance(value, type)]
    assert len(classes) > 30 and all(getattr(mneme, kind.__name__) is kind for kind in classes)
    assert {kind.__module__ for kind in classes} == {"mneme"}


def declarations_are_those_written_from_the_header():
    try:
        import pycparser  # noqa: F401
    except ImportError:
        raise unittest.SkipTest("pycparser is not installed") from None
    written = subprocess.run([sys.executable, os.path.join(ROOT, "tools/python_ffi.py")], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(ROOT, "python/mneme/_ffi.py")) as file:
        assert file.read() == written, "tools/python_ffi.py > python/mneme/_ffi.py"


def structs_have_the_layout_of_c():
    structs = {name: kind for name, kind in vars(_ffi).items() if isinstance(kind, type) and issubclass(kind, _ffi.Structure) and name.startswith("mn_")}
    lines, expected = [], []
    for name, kind in structs.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(str(ctypes.sizeof(kind)))
        for member, *_ in kind._fields_:
            lines.append(f'printf("%zu %zu\\n", offsetof({name}, {member}), sizeof((({name} *)0)->{member}));')
            expected.append(f"{getattr(kind, member).offset} {getattr(kind, member).size}")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "layout.c")
        with open(source, "w") as file:
            file.write("#include <stdio.h>\n#include <mneme.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
        program = os.path.join(folder, "layout")
        subprocess.run([os.environ.get("CC", "cc"), "-I", os.path.join(ROOT, "include"), source, "-o", program], check=True)
        got = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(structs) > 20 and got == expected, [pair for pair in zip(got, expected) if pair[0] != pair[1]][:5]


def constants_are_those_of_c():
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in vars(_ffi) if name.startswith("MN_")]
        source = os.path.join(folder, "constants.c")
        with open(source, "w") as file:
            file.write("#include <mneme.h>\n" + "".join(f'_Static_assert({name} == {getattr(_ffi, name)}, "{name}");\n' for name in names))
        subprocess.run([os.environ.get("CC", "cc"), "-I", os.path.join(ROOT, "include"), "-fsyntax-only", source], check=True)
    assert len(names) > 10


def the_reference_is_written_from_the_docstrings():
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tools/python_reference"), "--check"], capture_output=True, text=True)
    if done.returncode == 77:
        raise unittest.SkipTest("griffe is not installed")
    assert done.returncode == 0, done.stderr


# ---- generation ----


def answers_are_those_of_the_command():
    with mneme.Model(SMALL) as model:
        wanted = command("run", SMALL, TEXT, "-n", "30", "--json")["sequences"][0]
        got = model.generate(TEXT, max_new_tokens=30)
        assert got[0].token_ids == wanted["ids"] and got.text == wanted["text"] == str(got), (got, wanted)
        assert got[0].finish_reason == "length" and got[0].prompt_tokens == len(model.tokenizer.encode(TEXT)) and got[0].cached_tokens == 0
        drawn = command("run", SMALL, TEXT, "-n", "20", "--do-sample", "--seed", "7", "--temperature", "0.9", "--num-return-sequences", "3", "--json")
        several = model.generate(TEXT, max_new_tokens=20, do_sample=True, seed=7, temperature=0.9, num_return_sequences=3)
        assert [s.token_ids for s in several] == [s["ids"] for s in drawn["sequences"]] and several.seed == 7
        beams = command("run", SMALL, TEXT, "-n", "12", "--num-beams", "3", "--cache", "sink", "--json")["sequences"][0]
        assert model.generate(TEXT, max_new_tokens=12, num_beams=3, cache_implementation="sink")[0].token_ids == beams["ids"]


def streams_give_the_same_text():
    with mneme.Model(SMALL) as model:
        whole = model.generate(TEXT, max_new_tokens=25, top_logprobs=2)
        tokens = list(model.generate(TEXT, max_new_tokens=25, top_logprobs=2, stream=True))
        assert "".join(map(str, tokens)) == whole.text and [t.id for t in tokens[:-1]] == whole[0].token_ids
        assert tokens[-1].id == -1 and tokens[-1].finish_reason == whole[0].finish_reason == "length"
        assert [t.logprobs for t in tokens[:-1]] == whole[0].logprobs and all(len(p) in (2, 3) for p in whole[0].logprobs)
        assert all(max(p.values()) <= 0 and t.id in p for t, p in zip(tokens, whole[0].logprobs))
        seen = []
        model.generate(TEXT, max_new_tokens=25, top_logprobs=2, on_token=seen.append)
        assert seen == tokens


def a_stream_that_is_left_ends_the_generation():
    with mneme.Model(SMALL) as model, model.session("dynamic") as session:
        tokens = session.generate(TEXT, max_new_tokens=400, ignore_eos=False, stream=True)
        first = [next(tokens), next(tokens)]
        tokens.close()
        assert len(session) < len(model.tokenizer.encode(TEXT)) + 400
        assert threading.active_count() == 1
        left = session.generate(TEXT, max_new_tokens=400, stream=True)
        assert next(left).id == first[0].id  # one that is not read on keeps its session
        refused(ValueError, "this session is in use", session.close)
        refused(ValueError, "this session is in use", lambda: session.generate(TEXT))
        del left
        again = session.generate(TEXT, max_new_tokens=2)
        assert again[0].finish_reason == "length"
        assert again[0].token_ids == [t.id for t in first]


def conversations_compute_what_is_new():
    with tempfile.TemporaryDirectory() as folder, mneme.Model(template_model(folder)) as model, model.session() as session:
        first = session.chat("Tell me of a cat", max_new_tokens=12)
        messages = [{"role": "user", "content": "Tell me of a cat"}, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And a dog?"}]
        held = len(session)
        second = session.chat(messages, max_new_tokens=12)
        assert held == first[0].prompt_tokens + len(first[0].token_ids) - 1 and second[0].cached_tokens == held
        path = os.path.join(folder, "messages.json")
        with open(path, "w") as file:
            json.dump(messages[:1], file)
        assert first[0].token_ids == command("run", folder, "--messages", path, "-n", "12", "--json")["sequences"][0]["ids"]
        # Without a limit it may take the context.
        assert len(model.chat("Tell me of a cat")[0].token_ids) > 12
        text = model.tokenizer.apply_chat_template("Hi")
        assert text == "user: Hi\nassistant:" and model.tokenizer.apply_chat_template("Hi", add_generation_prompt=False) == "user: Hi\n"


# ---- sessions ----


def sessions_fork_crop_and_save():
    ids = [(7 * i + i * i) % 200 + 3 for i in range(60)]
    with mneme.Model(os.path.join(ROOT, "tests/data/golden/llama")) as model, tempfile.TemporaryDirectory() as folder:
        session = model.session("quantized", nbits=4, residual_length=16)
        session.step(ids)
        assert session.token_ids == ids and session.cache.implementation == "quantized" and session.cache.tokens == len(session) == 60
        assert "60 tokens, quantized" in repr(session)
        fork = session.fork()
        wanted = fork.generate(ids, max_new_tokens=20)[0]
        path = os.path.join(folder, "a cache.safetensors")
        session.save(path)
        with mneme.Session.load(model, path) as loaded:
            assert loaded.token_ids == ids and loaded.generate(ids, max_new_tokens=20)[0].token_ids == wanted.token_ids
        assert len(fork) == 60 + 19 and fork.token_ids[60:] == wanted.token_ids[:-1] and len(session) == 60
        fork.truncate(-19)
        assert fork.token_ids == ids and fork.generate(ids, max_new_tokens=20)[0].token_ids == wanted.token_ids
        assert session.generate(ids + wanted.token_ids[:5], max_new_tokens=15)[0].token_ids == wanted.token_ids[5:]


# ---- tokenizer ----


def texts_are_encoded_and_decoded():
    with mneme.Model(SMALL) as model:
        tokenizer = model.tokenizer
        for text in (TEXT, "naïve 日本 😀", "", "a\0b"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text, (text, ids)
        assert tokenizer.encode(TEXT) == [tokenizer.bos_token_id, *tokenizer.encode(TEXT, add_special_tokens=False)]
        assert tokenizer.decode(tokenizer.encode(TEXT), skip_special_tokens=True) == TEXT
        assert len(tokenizer) == 512 and tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(300)) == 300
        assert tokenizer.convert_ids_to_tokens(512) is None and tokenizer.convert_tokens_to_ids("no such token") is None and tokenizer.chat_template is None


# ---- failures ----


def failures_are_exceptions_with_a_sentence():
    refused(FileNotFoundError, "no model 'nothere'", lambda: mneme.Model("nothere"))
    refused(ValueError, "threads is -1", lambda: mneme.Model(SMALL, threads=-1))
    refused(ValueError, "memory_limit cannot be -1", lambda: mneme.Model(SMALL, memory_limit=-1))
    with mneme.Model(SMALL) as model:
        refused(ValueError, "the nearest is 'temperature'", lambda: model.generate(TEXT, tempreture=1))
        refused(ValueError, "temperature", lambda: model.generate(TEXT, temperature="hot"))
        refused(ValueError, "temperature cannot be a object", lambda: model.generate(TEXT, temperature=object()))
        refused(ValueError, "sequence of integers", lambda: model.generate([1.5]))
        refused(ValueError, "is 512, allowed: 0 to 511", lambda: model.generate([512]))
        refused(ValueError, "generation_config must be a mapping", lambda: model.generate(TEXT, generation_config=3))
        refused(ValueError, "'nosuch'", lambda: model.session("nosuch"))
        refused(ValueError, "nbit", lambda: model.session("quantized", nbit=4))
        refused(mneme.UnsupportedError, "template", lambda: model.chat("Hi"))
        refused(FileNotFoundError, "nothere", lambda: mneme.Session.load(model, "/nothere"))
        try:
            pickle.dumps(model)
            raise AssertionError("pickled")
        except TypeError as error:
            assert "save()" in str(error)


def configurations_are_objects_or_mappings():
    class Given:
        def to_dict(self):
            return {"max_new_tokens": 5, "temperature": None, "num_beams": 2}

    with mneme.Model(SMALL) as model:
        wanted = model.generate(TEXT, max_new_tokens=5, num_beams=2)[0].token_ids
        assert model.generate(TEXT, generation_config=Given())[0].token_ids == wanted
        assert model.generate(TEXT, generation_config={"max_new_tokens": 9, "num_beams": 2}, max_new_tokens=5)[0].token_ids == wanted


# Transformers' own objects list every field. Those that repeat what holds are no requests; the others count.
def configurations_that_list_all_fields_request_what_differs():
    class Given:
        def __init__(self, **fields):
            self.fields = {"max_length": 20, "do_sample": False, "temperature": 1.0, "top_k": 50, "num_beams": 1, "assistant_lookbehind": 10, **fields}

        def to_dict(self):
            return self.fields

    with mneme.Model(SMALL) as model, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wanted = model.generate(TEXT, max_new_tokens=9)[0].token_ids
        assert model.generate(TEXT, generation_config=Given(max_new_tokens=9))[0].token_ids == wanted and not caught
        assert len(model.generate(TEXT, generation_config=Given())[0].token_ids) + len(model.tokenizer.encode(TEXT)) == 20 and not caught
        assert model.generate(TEXT, generation_config=Given(max_new_tokens=9, temperature=0.5))[0].token_ids == wanted
        assert any("temperature" in str(w.message) for w in caught), caught
        assert model.generate(TEXT, generation_config=Given(max_new_tokens=9, max_length=30))[0].token_ids == wanted
        assert any("max_length" in str(w.message) for w in caught), caught


def callbacks_end_a_generation():
    with mneme.Model(SMALL) as model, model.session() as session:
        seen = []
        ended = session.generate(TEXT, max_new_tokens=50, on_token=lambda t: seen.append(t) or len(seen) < 4)
        assert ended[0].finish_reason == "cancelled" and len(ended[0].token_ids) == 4

        def fail(token):
            raise KeyError("of the callback")

        try:
            session.generate(TEXT, max_new_tokens=50, on_token=fail)
            raise AssertionError("the exception is lost")
        except KeyError as error:
            assert "of the callback" in str(error)
        refused(ValueError, "in use", lambda: session.generate(TEXT, max_new_tokens=3, on_token=lambda t: session.truncate(1)))
        assert len(session.generate(TEXT, max_new_tokens=3)[0].token_ids) == 3


def closed_and_forked_objects_are_refused():
    model = mneme.Model(SMALL)
    session, tokenizer = model.session(), model.tokenizer
    session.close()
    session.close()
    refused(ValueError, "this session is closed", lambda: session.step([1]))
    child = os.fork()
    if child == 0:
        try:
            model.session()
        except mneme.ArgumentError as error:
            os._exit(0 if "belongs to process" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    model.close()
    refused(ValueError, "this model is closed", lambda: model.session())
    refused(ValueError, "this model is closed", lambda: tokenizer.encode("a"))
    assert "closed" in repr(model) and "closed" in repr(session)
    for _ in range(3):  # what is not closed is closed by the collector
        mneme.Model(SMALL).session().step([1, 2, 3])
    gc.collect()


def the_interpreter_may_end_at_any_time():
    program = (f"import mneme\nmodel = mneme.Model({SMALL!r})\nsession = model.session()\ntokens = session.generate('a', max_new_tokens=400, stream=True)\n"
               "print(next(tokens).id >= 0)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", ""), done


def ctrl_c_ends_a_generation():
    program = (f"import mneme, time\nsession = mneme.Model({SMALL!r}).session()\ntry:\n"
               "    session.generate('a', max_new_tokens=400, on_token=lambda t: (print(t.id, flush=True), time.sleep(0.01)))\n"
               "except KeyboardInterrupt:\n    print('interrupted', 2 < len(session) < 400, len(session.generate('a', max_new_tokens=3)[0].token_ids))\n")
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(4):
        running.stdout.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=100)
    assert (running.returncode, out.splitlines()[-1], err) == (0, "interrupted True 3", ""), (running.returncode, out, err)


def the_command_is_part_of_the_package():
    done = subprocess.run([sys.executable, "-m", "mneme", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and mneme.__version__ in done.stdout, done


def examples_of_the_documents_run():
    models = os.environ.get("MNEME_TEST_MODELS")
    if not models or not os.path.isdir(models) or not any(name.startswith("SmolLM2") for name in os.listdir(models)):
        raise unittest.SkipTest("SmolLM2 is not installed")
    lacking = [word for word, is_here in (("numpy", importlib.util.find_spec("numpy")), (".logits", importlib.util.find_spec("numpy")),
                                          ("whisper-base", os.path.isdir(os.path.join(models, "whisper-base")))) if not is_here]
    for page in ("README.md", "python/README.md", "docs/python.md"):
        with open(os.path.join(ROOT, page)) as file:
            blocks = re.findall(r"```python\n(.*?)```", file.read(), re.S)
        # Of the reference, which has signatures too, those that call something.
        blocks = [block for block in blocks if page != "docs/python.md" or re.search("mneme\\.|model\\.", block)]
        program = "".join(block for block in ["import mneme\n", *blocks] if not any(word in block for word in lacking))
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(ROOT, "tests/data/audio/jfk.wav"), os.path.join(folder, "talk.wav"))
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, env={**os.environ, "MNEME_MODELS": models})
        said = re.sub(r".*SmolLM2\S* is installed\n", "", done.stderr)  # by pull
        assert done.returncode == 0 and done.stdout.startswith("The capital of France is Paris.\n") and not said, (page, done)


CASES = [declarations_name_all_functions, functions_are_called_by_the_package, importing_is_light, classes_are_named_as_they_are_imported,
         declarations_are_those_written_from_the_header, structs_have_the_layout_of_c, constants_are_those_of_c,
         the_reference_is_written_from_the_docstrings, answers_are_those_of_the_command,
         streams_give_the_same_text, a_stream_that_is_left_ends_the_generation, conversations_compute_what_is_new, sessions_fork_crop_and_save,
         texts_are_encoded_and_decoded, failures_are_exceptions_with_a_sentence, configurations_are_objects_or_mappings,
         configurations_that_list_all_fields_request_what_differs, callbacks_end_a_generation,
         closed_and_forked_objects_are_refused, the_interpreter_may_end_at_any_time, ctrl_c_ends_a_generation, the_command_is_part_of_the_package,
         examples_of_the_documents_run]


if __name__ == "__main__":
    main(CASES)
