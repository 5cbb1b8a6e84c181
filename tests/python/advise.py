#!/usr/bin/env python3
"""Advice on caches in Python: the command's rows, and sessions of the caches that it names.
usage: advise.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import dataclasses
import os
import tempfile
import xml.etree.ElementTree

from runner import command, golden, main, refused
import mneme

IDS = [(7 * i + i * i) % 300 + 3 for i in range(300)]


# The bytes are those of a session with the same cache.
def rows_are_those_of_the_command():
    advice = mneme.advise(golden("llama"), context=300, memory="64M", time=0)
    wanted = command("advise", golden("llama"), "--context", "300", "--memory", "64M", "--time", "0", "--json")
    assert len(advice) == len(wanted["caches"]) == 17
    for row, other in zip(advice, wanted["caches"]):
        assert dataclasses.asdict(row) == {name: other.get(name, getattr(mneme.AdvisedCache, name, None)) for name in dataclasses.asdict(row)}, row
    assert (advice.flags, advice.recommendation) == (wanted["recommendation"]["flags"], wanted["recommendation"]["sentence"])
    assert advice.recommended is advice.rows[0] and advice.flags == "--cache dynamic"
    with mneme.Model(golden("llama")) as model:
        for row in advice.rows:
            if "static" in row.cache_implementation:
                continue  # holds its whole length at once
            options = dict(pair.split("=") for pair in row.cache_config.split(",") if pair)
            with model.session(row.cache_implementation, **{k: int(v) if v.isdigit() else v for k, v in options.items()}) as session:
                session.step(IDS)
                assert session.cache.bytes == row.cache_bytes, row


def caches_are_measured_with_progress():
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "caches.svg")
        advice = mneme.advise(golden("llama"), context=300, memory=64 << 20, text=IDS, time=3600, svg=path,
                              progress=lambda done, total: seen.append((done, total)))
        xml.etree.ElementTree.parse(path)
    assert seen == [(i, 17) for i in range(1, 18)], seen
    assert advice.answer["text"] == "ids" and advice.answer["n_text"] == 300
    assert all(row.measured and row.decode_per_second > 0 for row in advice) and any(row.pareto for row in advice)
    figures = [row for row in advice if row.kl_divergence is not None]
    fastest = max(row.decode_per_second for row in figures)
    assert advice.recommended.kl_divergence == min(row.kl_divergence for row in figures if row.decode_per_second >= 0.5 * fastest)


def failures_have_the_sentence_of_the_command():
    refused(mneme.ArgumentError, "--context: 0 is out of range; allowed: 64", lambda: mneme.advise(golden("llama"), context=0))
    refused(mneme.OutOfMemoryError, "the smallest that would is", lambda: mneme.advise(golden("llama"), context=400, memory="1M"))
    refused(mneme.NotFoundError, "nowhere", lambda: mneme.advise("./nowhere"))
    refused(mneme.ArgumentError, "allowed: 64 and more", lambda: mneme.advise(golden("llama"), text=[3, 4, 5]))

    def stop(done, total):
        raise KeyError("enough")

    try:
        mneme.advise(golden("llama"), context=300, text=IDS, progress=stop)
    except KeyError:
        return
    raise AssertionError("the callback's exception is not raised")


CASES = [rows_are_those_of_the_command, caches_are_measured_with_progress, failures_have_the_sentence_of_the_command]

if __name__ == "__main__":
    main(CASES)
