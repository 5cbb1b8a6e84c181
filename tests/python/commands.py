#!/usr/bin/env python3
"""What Python has of the command: inspections, measurements, failures as exceptions. Oracles are the command's answers.
usage: commands.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import contextlib
import dataclasses
import io
import json
import os
import stat
import tempfile
import unittest
import warnings
from unittest import mock

from runner import SMALL, command, golden, main, refused
import mneme
from mneme import _command

IDS = [(7 * i + i * i) % 200 + 3 for i in range(200)]


def plain(found):
    values = dataclasses.asdict(found)
    for cache in values["caches"]:
        cache["largest_context"] = "any" if cache["largest_context"] is None else cache["largest_context"]
        cache["refused"] = cache["refused"] or ""
    return values


# What depends on the memory that is free at the moment.
def without_moment(values):
    values["memory"].pop("available_bytes")
    for cache in values["caches"]:
        cache.pop("largest_context")
    return values


def inspections_are_those_of_the_command():
    for name in (SMALL, golden("llama"), golden("jamba"), golden("whisper/tiny80")):
        limit = {"memory_limit": 1 << 30, "cpu": "scalar"}
        wanted = command("inspect", name, "--context", "40", "--memory-limit", "1073741824", "--cpu", "scalar", "--json")
        found = mneme.inspect(name, context=40, **limit)
        assert plain(found) == wanted, (plain(found), wanted)
        with mneme.Model(name) as model:
            assert without_moment(plain(mneme.inspect(model))) == without_moment(command("inspect", name, "--json")) == without_moment(model.info)
    by_name = {(cache.implementation, cache.config, cache.dtype): cache for cache in mneme.inspect(SMALL).caches}
    assert by_name["dynamic", "", "f32"].bytes_per_token == 1280 and by_name["dynamic", "", "f32"].refused is None
    assert "heads of 16" in by_name["quantized", "nbits=4", "f32"].refused and by_name["sink", "window_length=1024", "f32"].largest_context is None
    refused(FileNotFoundError, "no model 'nothere'", lambda: mneme.inspect("nothere"))
    refused(ValueError, "'z80'", lambda: mneme.inspect(SMALL, cpu="z80"))
    with mneme.Model(SMALL) as model:
        refused(ValueError, "cpu has no effect: the model is open", lambda: mneme.inspect(model, cpu="scalar"))


def measurements_are_rows():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of samples that differ
        rows = mneme.bench(SMALL, n_prompt=[8, 16], n_gen=4, n_depth=2, repetitions=2, threads=1)
        wanted = command("bench", SMALL, "-p", "8", "-n", "0", "-r", "2", "--output", "jsonl")
    assert [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows] == [(8, 0, 2), (16, 0, 2), (0, 4, 2)]
    for row in rows:
        assert row.keys() == wanted.keys() and row["n_threads"] == 1 and len(row["samples_ns"]) == 2 and row["avg_ts"] > 0
        assert abs(row["avg_ns"] - sum(row["samples_ns"]) / 2) <= 1, row
    with mneme.Model(golden("llama")) as model:
        compared = mneme.bench(model, cache=["static", "quantized"], cache_config={"nbits": 4}, n_gen=8, ids=IDS)
    wanted = command("bench", golden("llama"), "--cache", "static,quantized", "--cache-config", "nbits=4", "-n", "8", "--ids", ",".join(map(str, IDS)),
                     "--json")
    fixed = ("cache_implementation", "cache_config", "cache_bytes", "perplexity", "kl_divergence", "same_tokens")
    assert [[row[name] for name in fixed] for row in compared] == [[row[name] for name in fixed] for row in wanted["caches"]]
    assert all(row["n_prompt"] == wanted["n_prompt"] for row in compared)
    refused(FileNotFoundError, "no model 'nothere'", lambda: mneme.bench("nothere"))
    refused(ValueError, "'--n-promt'", lambda: mneme.bench(SMALL, n_promt=3))
    refused(ValueError, "repetitions", lambda: mneme.bench(SMALL, repetitions=0))


def rows_become_a_table():
    try:
        import pandas
    except ImportError:
        raise unittest.SkipTest("pandas is not installed") from None
    table = pandas.DataFrame(mneme.inspect(SMALL, memory_limit=1 << 30).caches)
    assert list(table.columns) == [field.name for field in dataclasses.fields(mneme.CacheSize)] and set(table["dtype"]) == {"f32", "bf16"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = pandas.DataFrame(mneme.bench(SMALL, n_prompt=8, n_gen=2, repetitions=1))
    assert table["n_gen"].tolist() == [0, 2]


# A command that prints this, and ends with this code.
def with_command(folder, out, err, code, call):
    path = os.path.join(folder, "mneme")
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\ncat <<'END'\n{out}\nEND\ncat >&2 <<'END'\n{err}\nEND\nexit {code}\n")
    os.chmod(path, stat.S_IRWXU)
    with mock.patch.dict(os.environ, MNEME_COMMAND=path):
        return call()


def failures_of_the_command_are_exceptions():
    assert _command.flags({"a_b": True, "c": False, "d": None, "e": 3, "f": [1, 2], "g": {"nbits": 4}, "h": "x y"}) == \
        ["--a-b", "--no-c", "--e=3", "--f=1,2", '--g={"nbits": 4}', "--h=x y"]
    kinds = {1: mneme.MnemeError, 2: mneme.ArgumentError, 3: mneme.NotFoundError, 4: mneme.OutOfMemoryError, 5: mneme.CancelledError, 6: mneme.RefusedError}
    with tempfile.TemporaryDirectory() as folder:
        for code, kind in kinds.items():
            refused(kind, "why", lambda: with_command(folder, '{"error": {"message": "why"}}', "", code, lambda: _command.run_json("bench")))
        refused(mneme.MnemeError, "ended with code 9 and printed no JSON: the end", lambda: with_command(folder, "{", "a\nthe end", 9, lambda: mneme.bench()))
        refused(mneme.MnemeError, "code 0 and printed no JSON", lambda: with_command(folder, "text", "", 0, lambda: mneme.bench()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert with_command(folder, "[]", "mneme: warning: a line\nother", 0, lambda: mneme.bench()) == []
        lines: list[str] = []  # an answer larger than a pipe, before the lines
        assert len(with_command(folder, json.dumps(["x" * 99] * 2000), "a\nb", 0, lambda: _command.run_json("bench", on_line=lines.append))) == 2000
        assert lines == ["a", "b"]
        assert [(str(w.message), w.category, w.filename) for w in caught] == [("a line", mneme.MnemeWarning, __file__)]
    with mock.patch.dict(os.environ, MNEME_COMMAND="/nothere/mneme"):
        refused(mneme.MnemeError, "the command cannot be run", lambda: mneme.bench())


def models_are_fetched():
    refused(ValueError, "'nothere' is neither the name of a model that can be fetched nor a URL", lambda: mneme.pull("nothere"))
    refused(ValueError, "--sha256", lambda: mneme.pull("smollm2", sha256="x"))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
        assert with_command(folder, '{"path": "/models/a.gguf", "sha256": "00"}', "a line\nanother", 0, lambda: mneme.pull("a")) == "/models/a.gguf"
    assert said.getvalue() == "a line\nanother\n"
    models = os.environ.get("MNEME_TEST_MODELS", "")
    if not os.path.exists(os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")):
        raise unittest.SkipTest("SmolLM2 is not installed")
    with mock.patch.dict(os.environ, MNEME_MODELS=models), contextlib.redirect_stderr(io.StringIO()):
        assert mneme.pull("smollm2") == os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")


CASES = [inspections_are_those_of_the_command, measurements_are_rows, rows_become_a_table, failures_of_the_command_are_exceptions, models_are_fetched]


if __name__ == "__main__":
    main(CASES)
