#!/usr/bin/env python3
"""Generation in Python: callbacks over arrays of numpy, scores, drafts, batches, constraints, asyncio, progress. Oracles are the command's answers, single runs
for rows of batches, and recomputation here.
usage: generation.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import asyncio
import gc
import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
import weakref
from pathlib import Path
from unittest import mock

from runner import COMMAND, SMALL, TEXT, command, golden, main, refused, said, template_model

import mneme

OTHER = "The dog and the ball"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "maximum": 99}}, "required": ["name", "n"]}


def numpy():
    try:
        import numpy
    except ImportError:
        raise unittest.SkipTest("numpy is not installed") from None
    return numpy


def same(a, b):
    assert a == b, (a, b)


def raises(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), error
        return
    raise AssertionError(f"nothing raised: {part}")


# The arrays that `mneme run` writes with --scores-out, --logits-out.
def written(*arguments, name):
    np = numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out")
        subprocess.run([COMMAND, "run", SMALL, TEXT, *arguments, f"--{name}-out", path], capture_output=True, check=True)
        with open(path, "rb") as file:
            data = file.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])[name]
    return np.frombuffer(data[8 + n:], np.float32).reshape(header["shape"])


# ---- callbacks ----


def processors_change_scores():
    np = numpy()
    seen = []
    with mneme.Model(SMALL) as model:
        prompt = model.tokenizer.encode(TEXT)
        plain = model.generate(TEXT, max_new_tokens=20)[0].token_ids
        banned = [plain[0], plain[3], plain[8]]

        def in_place(input_ids, scores):
            assert input_ids.dtype == np.int32 and scores.dtype == np.float32 and scores.shape == (512,) and not input_ids.flags.writeable
            seen.append(input_ids.tolist())
            scores[banned] = -np.inf

        def returned(input_ids, scores):
            return np.where(np.isin(np.arange(512), banned), -np.inf, scores)[None]

        wanted = model.generate(TEXT, max_new_tokens=20, suppress_tokens=banned)[0].token_ids
        got = model.generate(TEXT, max_new_tokens=20, logits_processor=[in_place])[0].token_ids
        assert got == wanted != plain and seen == [prompt + got[:i] for i in range(20)], (got, wanted)
        same(model.generate(TEXT, max_new_tokens=20, logits_processor=returned)[0].token_ids, wanted)
        # One behind the other, in sampling and with beams.
        first, rest = [lambda i, s: s.__setitem__(banned[0], -np.inf)], [lambda i, s: s.__setitem__(banned[1:], -np.inf)]
        for fields in ({"do_sample": True, "seed": 3, "num_return_sequences": 2}, {"num_beams": 3}):
            same([s.token_ids for s in model.generate(TEXT, max_new_tokens=12, logits_processor=first + rest, **fields)],
                 [s.token_ids for s in model.generate(TEXT, max_new_tokens=12, suppress_tokens=banned, **fields)])


def criteria_end_a_text():
    numpy()
    with mneme.Model(SMALL) as model:
        n = len(model.tokenizer.encode(TEXT))
        plain = model.generate(TEXT, max_new_tokens=20)[0].token_ids
        ended = model.generate(TEXT, max_new_tokens=20, stopping_criteria=[lambda ids, scores: False, lambda ids, _: len(ids) >= n + 6])[0]
        assert ended.finish_reason == "callback" and ended.token_ids == plain[:6], ended
        ended = model.generate(TEXT, max_new_tokens=20, stopping_criteria=lambda ids, _: ids[-1] == plain[9])[0]
        same(ended.token_ids, plain[:plain.index(plain[9]) + 1])
        beams = model.generate(TEXT, max_new_tokens=20, num_beams=3, stopping_criteria=[lambda ids, _: len(ids) >= n + 6])[0]
        assert beams.finish_reason == "callback" and len(beams.token_ids) == 6, beams


def allowed_ids_are_the_only_ones():
    np = numpy()
    with mneme.Model(SMALL) as model:
        allowed = [[300, 301, 310, 400], np.array([290, 340, 341])]
        calls = []

        def given(batch_id, input_ids):
            calls.append((batch_id, len(input_ids)))
            return allowed[batch_id]

        got = model.generate([TEXT, OTHER], max_new_tokens=10, prefix_allowed_tokens_fn=given)
        for row, (text, ids) in enumerate(zip((TEXT, OTHER), allowed)):
            others = sorted(set(range(512)) - set(map(int, ids)))
            same(got[row].token_ids, model.generate(text, max_new_tokens=10, suppress_tokens=others)[0].token_ids)
        n = [len(model.tokenizer.encode(text)) for text in (TEXT, OTHER)]
        same(sorted(calls), sorted((row, n[row] + i) for row in range(2) for i in range(10)))
        refused(ValueError, "allows none", lambda: model.generate(TEXT, max_new_tokens=3, prefix_allowed_tokens_fn=lambda b, i: []))
        refused(ValueError, "gave 512", lambda: model.generate(TEXT, max_new_tokens=3, prefix_allowed_tokens_fn=lambda b, i: [512]))


def exceptions_of_callbacks_are_raised():
    numpy()

    class Failing:
        def __call__(self, *_):
            raise KeyError("of the callback")

    with mneme.Model(SMALL) as model, model.session() as session:
        prompt = [3 + i % 200 for i in range(40)]
        wanted = model.generate(prompt, max_new_tokens=3)[0].token_ids
        gc.disable()
        try:
            for name in ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "on_token", "progress"):
                for fields in ({}, {"num_beams": 2}):
                    failing = Failing()
                    raises(KeyError, "of the callback", lambda: session.generate(prompt, max_new_tokens=50, **fields, **{name: failing}))
                    raises(KeyError, "of the callback", lambda: model.generate([prompt, prompt], max_new_tokens=50, **fields, **{name: failing}))
                    session.truncate(0)
                    if name != "on_token":
                        raises(KeyError, "of the callback", lambda: list(session.generate(prompt, max_new_tokens=50, stream=True, **fields, **{name: failing})))
                    left = weakref.ref(failing)
                    del failing
                    assert left() is None, name
                    session.truncate(0)
                    same(session.generate(prompt, max_new_tokens=3)[0].token_ids, wanted)
        finally:
            gc.enable()
        raises(ValueError, "broadcast", lambda: model.generate(TEXT, max_new_tokens=3, logits_processor=[lambda i, s: s[:3]]))
        raises(ValueError, "read-only", lambda: model.generate(TEXT, max_new_tokens=3, logits_processor=[lambda i, s: i.__setitem__(0, 1)]))
        refused(ValueError, "in use", lambda: session.generate(TEXT, max_new_tokens=3, logits_processor=[lambda i, s: session.truncate(1)]))


def ctrl_c_ends_what_c_computes():
    program = f"""import mneme, os, signal, threading
model = mneme.Model({SMALL!r})
fields = dict(max_new_tokens=1000000, ignore_eos=True, cache_implementation="sliding_window", cache_config=dict(window_length=32))
for prompt in ["a", ["a", "b"]] * 3:
    for more in (dict(), dict(num_beams=2), dict(on_token=lambda token: None)):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            model.generate(prompt, **fields, **more)
            print("ended")
        except KeyboardInterrupt:
            print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    same((done.returncode, done.stdout, done.stderr), (0, "interrupted True\n" * 18, ""))


def any_row_may_end_a_batch():
    with mneme.Model(SMALL) as model:
        for fields in ({}, {"do_sample": True, "seed": 1, "num_return_sequences": 2}):
            for most in range(1, 9):
                seen = []
                ended = model.generate([TEXT, OTHER], max_new_tokens=100, on_token=lambda t: seen.append(t) or len(seen) < most, **fields)
                assert len(ended) == 2 * fields.get("num_return_sequences", 1) and all(len(s.token_ids) <= most // len(ended) + 2 for s in ended), ended
                assert {s.finish_reason for s in ended} == {"cancelled"}, ended

                def fail(token):
                    seen.append(token)
                    if len(seen) == most:
                        raise KeyError("of the callback")

                seen.clear()
                raises(KeyError, "of the callback", lambda: model.generate([TEXT, OTHER], max_new_tokens=100, on_token=fail, **fields))
                tokens = model.generate([TEXT, OTHER], max_new_tokens=100, stream=True, **fields)
                same([next(tokens).row for _ in range(most)][0], 0)
                tokens.close()


def options_are_checked():
    with mneme.Model(SMALL) as model:
        refused(ValueError, "logits_processor must be a list of functions", lambda: model.generate(TEXT, logits_processor=[3]))
        refused(ValueError, "stopping_criteria must be a list of functions", lambda: model.generate(TEXT, stopping_criteria=7))
        refused(ValueError, "on_token cannot be called: it is a int", lambda: model.generate(TEXT, on_token=7))
        refused(ValueError, "assistant_model must be a Model, not str", lambda: model.generate(TEXT, assistant_model="small"))
        refused(ValueError, "on_token has no effect in a stream", lambda: model.generate(TEXT, on_token=print, stream=True))
        refused(ValueError, "the nearest is 'temperature'", lambda: model.generate([TEXT], tempreture=1))
        refused(ValueError, "row 1", lambda: model.generate([[3], [512]], max_new_tokens=1))
        refused(ValueError, "sequence of integers", lambda: model.session().generate([TEXT, TEXT]))


def numpy_is_optional():
    program = (f"import sys\nsys.modules['numpy'] = None\nimport mneme\nassert 'asyncio' not in sys.modules\nmodel = mneme.Model({SMALL!r})\n"
               "assert len(model.generate(['a', 'b'], max_new_tokens=3, num_beams=2, top_logprobs=1)) == 2\n"
               "given = dict(logits_processor=[print], stopping_criteria=[print], prefix_allowed_tokens_fn=print, output_scores=True, output_logits=True)\n"
               "for name, value in given.items():\n    try:\n        model.generate('a', **{name: value})\n"
               "    except ImportError as error:\n        print('pip install numpy' in str(error) and name in str(error))\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    same((done.stdout, done.stderr), ("True\n" * 5, ""))
    program = "import mneme, sys\nprint([m for m in ('numpy', 'asyncio', 'tqdm') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    same(loaded.stdout, "[]\n")


# ---- scores ----


def scores_are_those_of_the_command():
    np = numpy()
    with mneme.Model(SMALL) as model:
        got = model.generate(TEXT, max_new_tokens=15, suppress_tokens=[261, 378], output_scores=True, output_logits=True, top_logprobs=3)[0]
        flags = ("-n", "15", "--suppress-tokens", "261,378")
        assert np.array_equal(got.scores[:, None], written(*flags, name="scores")) and np.array_equal(got.logits[:, None], written(*flags, name="logits"))
        assert got.scores.shape == (15, 512) and got.scores.argmax(1).tolist() == got.token_ids and got.scores.flags.owndata
        masked = got.logits.copy()
        masked[:, [261, 378]] = -np.inf
        assert np.array_equal(masked, got.scores)
        rows = np.asarray(got.scores, np.float64)
        logs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        for i, shown in enumerate(got.logprobs):
            same(list(shown), np.argsort(-logs[i], kind="stable")[:3].tolist())
            assert np.allclose(list(shown.values()), logs[i][list(shown)], atol=1e-5)
        only_scores = model.generate(TEXT, max_new_tokens=2, output_scores=True)[0]
        only_logits = model.generate(TEXT, max_new_tokens=2, output_logits=True)[0]
        assert only_scores.scores.shape == only_logits.logits.shape == (2, 512) and only_scores.logits is None and only_logits.scores is None
        plain = model.generate(TEXT, max_new_tokens=15)[0]
        assert plain.scores is None and plain.logits is None and plain.beam_indices is None and plain.score is None


def beams_have_scores_and_indices():
    np = numpy()
    with mneme.Model(SMALL) as model:
        got = model.generate(TEXT, max_new_tokens=10, num_beams=3, num_return_sequences=2, length_penalty=0.5, output_scores=True, output_logits=True)
        assert got.beam_scores.shape == got.beam_logits.shape == (10, 3, 512) and [s.index for s in got] == [0, 1]
        assert np.array_equal(got.beam_scores, written("-n", "10", "--num-beams", "3", "--length-penalty", "0.5", "--num-return-sequences", "2", name="scores"))
        for s in got:
            chosen = [got.beam_scores[i, beam, token] for i, (beam, token) in enumerate(zip(s.beam_indices, s.token_ids))]
            assert np.allclose(chosen, s.transition_scores, atol=1e-5) and abs(sum(s.transition_scores) / 10 ** 0.5 - s.score) < 1e-4, s
            wanted = model.generate(TEXT, max_new_tokens=10, num_beams=3, num_return_sequences=2, length_penalty=0.5)[s.index]
            same((wanted.token_ids, wanted.beam_indices), (s.token_ids, s.beam_indices))


def drafts_and_negative_prompts():
    with mneme.Model(SMALL) as model, mneme.Model(SMALL) as small:
        plain = model.generate(TEXT, max_new_tokens=25)[0]
        drafted = model.generate(TEXT, max_new_tokens=25, assistant_model=small, num_assistant_tokens=5)[0]
        assert drafted.token_ids == plain.token_ids and drafted.draft_tokens >= drafted.draft_accepted > 10 and plain.draft_tokens == 0, drafted
        wanted = command("run", SMALL, TEXT, "-n", "12", "--guidance-scale", "1.7", "--negative-prompt", OTHER, "--json")["sequences"][0]["ids"]
        assert wanted != plain.token_ids[:12]
        same(model.generate(TEXT, max_new_tokens=12, guidance_scale=1.7, negative_prompt=OTHER)[0].token_ids, wanted)
        same(model.generate(TEXT, max_new_tokens=12, guidance_scale=1.7, negative_prompt=model.tokenizer.encode(OTHER))[0].token_ids, wanted)
        stopped = model.generate(TEXT, max_new_tokens=25, stop_strings=["nothing", plain.text[10:16]])[0]
        assert stopped.stop_string == 1 and stopped.text == plain.text[:plain.text.index(plain.text[10:16])] and plain.stop_string is None, stopped


# ---- batches ----


def rows_of_a_batch_are_single_runs():
    with mneme.Model(SMALL) as model:
        texts = [TEXT, "a", OTHER]
        for fields in ({}, {"num_beams": 2}, {"do_sample": True, "seed": 5, "num_return_sequences": 2}):
            alone = [model.generate(text, max_new_tokens=15, **fields) for text in texts]
            together = model.generate(texts, max_new_tokens=15, **fields)
            same([[s.token_ids for s in row] for row in together.rows], [[s.token_ids for s in one] for one in alone])
            same([s.row for s in together], [i for i, one in enumerate(alone) for _ in one])
        ids = [model.tokenizer.encode(text) for text in texts]
        same([s.token_ids for s in model.generate(ids, max_new_tokens=15)], [model.generate(i, max_new_tokens=15)[0].token_ids for i in ids])
        alone = [model.generate(text, max_new_tokens=15)[0] for text in texts]
        tokens = list(model.generate(texts, max_new_tokens=15, stream=True))
        for row, one in enumerate(alone):
            own = [t for t in tokens if t.row == row]
            assert "".join(map(str, own)) == one.text and own[-1].finish_reason == one.finish_reason and [t.id for t in own[:-1]] == one.token_ids
        one = model.generate([TEXT], max_new_tokens=15)
        assert len(one.rows) == 1 and one.text == alone[0].text and model.generate((TEXT, "a"), max_new_tokens=2).rows[1][0].row == 1


def batches_begin_as_forks_of_a_session():
    with mneme.Model(SMALL) as model, model.session() as session:
        session.generate(TEXT, max_new_tokens=1)
        held = session.token_ids
        texts = [TEXT + " sat", TEXT + " was", OTHER]
        got = model.generate(texts, max_new_tokens=10, prefix=session)
        same([s.token_ids for s in got], [model.generate(text, max_new_tokens=10)[0].token_ids for text in texts])
        assert got[0].cached_tokens >= len(held) - 1 and got[2].cached_tokens < 5 and session.token_ids == held, got
        single = model.generate(texts[0], max_new_tokens=10, prefix=session)
        assert single[0].token_ids == got[0].token_ids and single[0].cached_tokens == got[0].cached_tokens
        session.close()
        refused(ValueError, "closed", lambda: model.generate(texts, prefix=session))


# Each goes on as a session does that computes everything anew.
def sequences_have_their_sessions():
    with mneme.Model(SMALL) as model:
        prompts = [model.tokenizer.encode(text) for text in (TEXT, OTHER)]
        for fields in ({}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "seed": 5, "num_return_sequences": 2}):
            for given in (TEXT, [TEXT, OTHER]):
                got = model.generate(given, max_new_tokens=8, return_sessions=True, **fields)
                assert len({id(s.session) for s in got}) == len(got) > 0
                for s in got:
                    ids = prompts[s.row] + s.token_ids
                    same(s.session.token_ids, ids[:-1])
                    same(s.session.generate(ids, max_new_tokens=5)[0].token_ids, model.generate(ids, max_new_tokens=5)[0].token_ids)
        with model.session() as session:
            got = session.generate(TEXT, max_new_tokens=4, num_beams=2, num_return_sequences=2, return_sessions=True)
            assert got[0].session is session and got[1].session is not session and got[1].session.token_ids == prompts[0] + got[1].token_ids[:-1]
        left = [weakref.ref(s.session) for s in model.generate([TEXT, OTHER], max_new_tokens=2, return_sessions=True)]
        assert [ref() for ref in left] == [None, None] and model.generate(TEXT, max_new_tokens=2)[0].session is None
        refused(ValueError, "return_sessions has no effect in a stream", lambda: model.generate(TEXT, return_sessions=True, stream=True))


# ---- configurations ----


def settings_without_effect_are_warned_of():
    def warned(call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert all(w.category is mneme.MnemeWarning and w.filename == __file__ for w in caught), caught
        return [str(w.message) for w in caught]

    async def read(stream):
        return [token async for token in stream]

    with tempfile.TemporaryDirectory() as folder, mneme.Model(template_model(folder)) as model:
        fields = {"max_new_tokens": 2, "temperature": 0.5}
        done = subprocess.run([COMMAND, "run", SMALL, TEXT, "-n", "2", "--temperature", "0.5", "--no-do-sample"], capture_output=True, text=True)
        wanted = [re.search("^mneme: warning: (.*)$", done.stderr, re.M)[1]]
        assert "temperature is 0.5 but has no effect" in wanted[0]
        same(warned(lambda: model.generate(TEXT, **fields)), wanted)
        same(warned(lambda: model.generate([TEXT, OTHER], **fields)), wanted)
        same(warned(lambda: list(model.generate(TEXT, stream=True, **fields))), wanted)
        same(warned(lambda: model.chat(TEXT, **fields)), wanted)
        same(warned(lambda: asyncio.run(read(model.agenerate(TEXT, **fields)))), wanted)
        same(warned(lambda: mneme.Engine(model).add(TEXT, **fields)), wanted)
        same(warned(lambda: mneme.Sampler(model, [1], temperature=0.5)), wanted)
        same(warned(lambda: model.generate(TEXT, do_sample=True, **fields)), [])
        negative = warned(lambda: model.generate(TEXT, max_new_tokens=2, negative_prompt="a"))
        assert len(negative) == 1 and "guidance_scale is not set" in negative[0]
        same(warned(lambda: model.generate(TEXT, max_new_tokens=2, num_assistant_tokens=3, assistant_model=model)), [])
        with model.session("sink", window_length=64) as session:
            kept = warned(lambda: session.generate(TEXT, max_new_tokens=2, cache_implementation="static"))
            assert len(kept) == 1 and "the session keeps the cache 'sink'" in kept[0]
            same(mneme.GenerationConfig(model, cache_implementation="static").check(session), kept)
        same(mneme.GenerationConfig(model, temperature=0.5).check(), wanted)
        refused(ValueError, "num_return_sequences is 2", lambda: model.generate(TEXT, num_return_sequences=2, stream=True))
        refused(ValueError, "num_return_sequences is 2", lambda: mneme.GenerationConfig(model, num_return_sequences=2).check())


def fields_are_described():
    fields = {field.name: field for field in mneme.generation_fields()}
    page = said("run", "--help-all")
    config = mneme.GenerationConfig()
    for field in fields.values():
        if not field.name.startswith("cache_"):  # the command describes its own options for them
            line = re.search(rf"^  --{field.name.replace('_', '-')} .*", page, re.M)[0]
            assert field.help in line, (field, line)
            assert field.default in (None, config.get(field.name)) and (field.default is None or f"[{json.dumps(field.default)}]" in line), (field, line)
    assert len(fields) > 50 and fields["max_new_tokens"].alias == "n-predict" and fields["seed"].alias is None
    assert fields["top_p"].only_samples and not fields["num_beams"].only_samples and fields["num_beams"].allowed == "1 to 4096"
    assert fields["num_beams"].kind == "integer" and fields["do_sample"].default is False and fields["temperature"].default == 1


def configurations_name_the_cache():
    quantized = {"cache": "quantized", "nbits": 4, "residual_length": 16}
    for cache_config in ({"nbits": 4, "residual_length": 16}, "nbits=4, residual_length=16"):
        config = mneme.GenerationConfig(cache_implementation="quantized", cache_config=cache_config)
        same(config.cache, quantized)
        with mneme.Model(golden("llama")) as model, model.session(**config.cache) as session:
            same(session.cache.implementation, "quantized")
            assert session.layer(0).key_bits == 4
    same(mneme.GenerationConfig(use_cache=False).cache, {"cache": "none"})
    same(mneme.GenerationConfig().cache, {})
    same(mneme.GenerationConfig(cache_config="backend=hqq").cache, {"backend": "hqq"})


# ---- constraints ----


def constraints_in_every_form():
    with mneme.Model(SMALL) as model, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schema.json")
        path.write_text(json.dumps(SCHEMA))
        wanted = command("run", SMALL, TEXT, "-n", "80", "--json-schema", json.dumps(SCHEMA), "--json")["sequences"][0]
        values = json.loads(wanted["text"])
        assert isinstance(values["n"], int) and len(values["name"]) <= 8

        class Like:
            @staticmethod
            def model_json_schema():
                return SCHEMA

        for form in (SCHEMA, json.dumps(SCHEMA), path, Like):
            same(model.generate(TEXT, max_new_tokens=80, json_schema=form)[0].token_ids, wanted["ids"])
        same(model.generate(TEXT, generation_config={"json_schema": Like, "max_new_tokens": 80})[0].token_ids, wanted["ids"])
        pattern = r"[a-z]{4} \d\d"
        wanted = command("run", SMALL, TEXT, "-n", "30", "--regex", pattern, "--json")["sequences"][0]["ids"]
        for form in (pattern, re.compile(pattern)):
            got = model.generate(TEXT, max_new_tokens=30, regex=form)[0]
            assert got.token_ids == wanted and re.fullmatch(pattern, got.text), got
        grammar = 'root ::= ("yes" | "no") "." '
        path.write_text(grammar)
        for form in (grammar, path):
            assert model.generate(TEXT, max_new_tokens=30, grammar=form).text in ("yes.", "no.")
        refused(ValueError, "json_schema is no JSON", lambda: model.generate(TEXT, json_schema="{"))
        refused(ValueError, "regex has re.IGNORECASE", lambda: model.generate(TEXT, regex=re.compile("a", re.I)))
        refused(ValueError, "at least 3 items, but at most 2", lambda: model.generate(TEXT, json_schema={"type": "array", "minItems": 3, "maxItems": 2}))


def models_of_pydantic_are_schemas():
    try:
        import pydantic
    except ImportError:
        raise unittest.SkipTest("pydantic is not installed") from None

    class Animal(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=8)
        legs: int = pydantic.Field(ge=0, le=9)

    with mneme.Model(SMALL) as model:
        animal = Animal.model_validate_json(model.generate(TEXT, max_new_tokens=80, json_schema=Animal).text)
        assert 0 <= animal.legs <= 9


# ---- asyncio ----


def streams_of_asyncio():
    with tempfile.TemporaryDirectory() as folder, mneme.Model(template_model(folder)) as model, model.session() as session:
        wanted = list(model.generate(TEXT, max_new_tokens=20, top_logprobs=1, stream=True))
        conversation = model.chat("Hi", max_new_tokens=9).text

        async def read(stream):
            return [token async for token in stream]

        async def several():
            return await asyncio.gather(*(read(model.agenerate(TEXT, max_new_tokens=20, top_logprobs=1)) for _ in range(3)),
                                        read(session.agenerate(TEXT, max_new_tokens=20)),
                                        read(model.agenerate([TEXT, OTHER], max_new_tokens=5)), read(model.achat("Hi", max_new_tokens=9)))

        *same_ones, of_session, batch, chat = asyncio.run(several())
        assert same_ones == [wanted] * 3 and [t.id for t in of_session] == [t.id for t in wanted] and {t.row for t in batch} == {0, 1}
        assert "".join(map(str, chat)) == conversation and threading.active_count() == 1


def asyncio_ends_what_is_left():
    numpy()
    slow = [lambda ids, scores: (threading.Event().wait(0.002), None)[1]]
    with mneme.Model(SMALL) as model, model.session() as session:
        first = model.generate(TEXT, max_new_tokens=2)[0].token_ids
        options = {"max_new_tokens": 450, "ignore_eos": True, "logits_processor": slow}

        async def leave():
            n = 0
            async for token in session.agenerate(TEXT, **options):
                n += 1
                if n == 3:
                    break
            while threading.active_count() > 1:  # the loop closes the iterator
                await asyncio.sleep(0.001)

        async def cancel():
            begun = asyncio.Event()

            async def read():
                async for _ in session.agenerate(TEXT, **options):
                    begun.set()

            task = asyncio.create_task(read())
            await begun.wait()
            task.cancel()
            try:
                await task
                raise AssertionError("not cancelled")
            except asyncio.CancelledError:
                pass

        async def cancel_beams():  # which show no token until they end
            calls = []

            async def read():
                return [t async for t in session.agenerate(TEXT, num_beams=2, max_new_tokens=150, logits_processor=[lambda i, s: calls.append(i[-1]), *slow])]

            task = asyncio.create_task(read())
            while len(calls) < 5:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() and len(calls) < 150 and threading.active_count() == 1, len(calls)

        async def fail():
            def of_callback(ids, scores):
                raise KeyError("of the callback")

            try:
                async for _ in session.agenerate(TEXT, max_new_tokens=5, logits_processor=[of_callback]):
                    pass
                raise AssertionError("the exception is lost")
            except KeyError as error:
                assert "of the callback" in str(error)

        async def abandon():
            stream = session.agenerate(TEXT, **options)
            assert (await stream.__anext__()).id == first[0]
            return stream  # asyncio.run closes it

        for way in (leave, cancel, cancel_beams, fail, abandon):
            asyncio.run(way())
            assert len(session) < 400, (way, len(session))
            session.truncate(0)
            same(session.generate(TEXT, max_new_tokens=2)[0].token_ids, first)
        refused(ValueError, "on_token has no effect", lambda: model.agenerate(TEXT, on_token=print))


# ---- progress ----


def progress_of_long_prompts():
    class Bar:
        shown, n = [], 0

        def __init__(self, **options):
            Bar.shown.append((options["total"], options["desc"]))

        def update(self, more):
            self.n += more
            Bar.shown.append(self.n)

        def close(self):
            Bar.shown.append("closed")

    with mneme.Model(SMALL) as model, model.session("sliding_window", window_length=64) as session:
        prompt = [3 + i * i % 200 for i in range(1300)]
        wanted = session.generate(prompt, max_new_tokens=3)[0].token_ids
        seen = []
        session.truncate(0)
        same(session.generate(prompt, max_new_tokens=3, progress=lambda done, total: seen.append((done, total)))[0].token_ids, wanted)
        assert len(seen) > 1 and seen[-1] == (1300, 1300) and seen == sorted(seen), seen
        steps = [done for done, _ in seen]
        with mock.patch.dict(sys.modules, {"tqdm.auto": mock.Mock(tqdm=Bar)}):
            session.truncate(0)
            session.generate(prompt, max_new_tokens=3, progress=True)
            model.generate(prompt[:40], max_new_tokens=3, progress=True)  # a short one has none
        same(Bar.shown, [(1300, "prompt"), *steps, "closed"])
        with mock.patch.dict(sys.modules, {"tqdm.auto": None}):
            for is_terminal in (True, False):
                session.truncate(0)
                with mock.patch("sys.stderr", io.StringIO()) as shown:
                    shown.isatty = lambda: is_terminal
                    session.generate(prompt, max_new_tokens=3, progress=True)
                wanted = [f"prompt: {done} of 1300 tokens ({100 * done // 1300}%)" for done in steps] + ["\033[K"]
                same(shown.getvalue(), "".join("\r" + line for line in wanted) if is_terminal else "")


def prompts_of_a_batch_are_ended():
    with mneme.Model(SMALL) as model:
        fields = {"max_new_tokens": 3, "cache_implementation": "sliding_window", "cache_config": {"window_length": 64}}
        prompts, seen = [[3 + i * i % 200 for i in range(n)] for n in (1300, 1200)], []

        def end(done, total):
            seen.append((done, total))
            raise KeyError("of the callback")

        for num_beams in (1, 2):
            seen.clear()
            raises(KeyError, "of the callback", lambda: model.generate(prompts, progress=end, num_beams=num_beams, **fields))
            assert len(seen) == 1 and seen[0][0] < seen[0][1] // 2 and seen[0][1] == 2500, seen
            same([len(row.token_ids) for row in model.generate(prompts, num_beams=num_beams, **fields)], [3, 3])


CASES = [processors_change_scores, criteria_end_a_text, allowed_ids_are_the_only_ones, exceptions_of_callbacks_are_raised,
         ctrl_c_ends_what_c_computes, any_row_may_end_a_batch, options_are_checked,
         numpy_is_optional, scores_are_those_of_the_command, beams_have_scores_and_indices, drafts_and_negative_prompts, rows_of_a_batch_are_single_runs,
         batches_begin_as_forks_of_a_session, sequences_have_their_sessions, settings_without_effect_are_warned_of, fields_are_described,
         configurations_name_the_cache, constraints_in_every_form, models_of_pydantic_are_schemas, streams_of_asyncio, asyncio_ends_what_is_left,
         progress_of_long_prompts, prompts_of_a_batch_are_ended]

if __name__ == "__main__":
    main(CASES)
