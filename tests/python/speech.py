#!/usr/bin/env python3
"""Speech in Python: features, transcripts, subtitles. Oracles are values recorded from Transformers and the command's answers.
usage: speech.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import csv
import json
import os
import tempfile
import unittest
import wave

from runner import ROOT, command, golden, main, need_numpy, read_safetensors, refused, said
import mneme

AUDIO = os.path.join(ROOT, "tests/data/audio")
JFK, SPEECH = os.path.join(AUDIO, "jfk.wav"), os.path.join(AUDIO, "test_speech.wav")
TINY = golden("whisper/tiny80")
OPTIONS = {"language": "en", "max_new_tokens": 20, "temperatures": [0]}
FLAGS = ["--language", "en", "--max-new-tokens", "20", "--temperature", "0", "--output", "json"]


def english():
    path = os.path.join(os.environ.get("MNEME_TEST_MODELS", ""), "whisper-tiny.en")
    if not os.path.isdir(path):
        raise unittest.SkipTest("whisper-tiny.en is not installed")
    return path


def samples(path):
    np = need_numpy()
    with wave.open(path) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        return (np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768).astype("float32")


# As the command prints it.
def form(t):
    return {"file": t.path, "language": t.language, "duration": round(t.duration, 3), "text": t.text, "ids": t.token_ids,
            "segments": [{"start": round(s.start, 3), "end": round(s.end, 3), "text": s.text, "ids": s.token_ids, "temperature": s.temperature}
                         for s in t.segments]}


def form_of_command(line):
    t = json.loads(line)
    kept = {name: t[name] for name in ("file", "language", "duration", "text", "ids")}
    return {**kept, "segments": [{name: s[name] for name in ("start", "end", "text", "ids", "temperature")} for s in t["segments"]]}


def transcripts_are_those_of_the_command():
    wanted = [form_of_command(line) for line in said("transcribe", "-m", TINY, JFK, SPEECH, *FLAGS).splitlines()]
    with mneme.Model(TINY) as model:
        one = mneme.transcribe(JFK, model, **OPTIONS)
        assert form(one) == wanted[0] and len(one.segments) > 1 and one.error is None and one.language_probability == 1 and str(one) == ""
        two = mneme.transcribe([JFK, SPEECH], model, **OPTIONS)
        assert [form(t) for t in two] == wanted
    assert form(mneme.transcribe(JFK, TINY, **OPTIONS)) == wanted[0]
    beams = form_of_command(said("transcribe", "-m", TINY, JFK, *FLAGS, "--num-beams", "2", "--condition-on-prev-tokens", "--logprob-threshold", "none",
                                 "--cache", "self=static,cross=quantized"))
    got = mneme.transcribe(JFK, TINY, num_beams=2, condition_on_prev_tokens=True, logprob_threshold=None, cache="self=static,cross=quantized", **OPTIONS)
    assert form(got) == beams


def recordings_in_memory_are_those_of_files():
    with open(SPEECH, "rb") as file:
        data = file.read()
    with mneme.Model(TINY) as model:
        wanted = form(mneme.transcribe(SPEECH, model, **OPTIONS))
        got = form(mneme.transcribe(data, model, **OPTIONS))
        assert got.pop("file") == "recording 0" and wanted.pop("file") == SPEECH and got == wanted
        audio, jfk = samples(JFK), form(mneme.transcribe(JFK, model, **OPTIONS))
        mixed = [form(t) for t in mneme.transcribe([audio, SPEECH, audio.astype("float64")], model, **OPTIONS)]
        assert [t.pop("file") for t in mixed] == ["recording 0", SPEECH, "recording 2"] and jfk.pop("file") == JFK
        assert mixed == [jfk, wanted, jfk]
        assert mneme.transcribe(audio, model, sampling_rate=8000, **OPTIONS).duration == 2 * jfk["duration"]
        refused(ValueError, "allowed: one channel", lambda: mneme.transcribe(audio[None], model))
        refused(ValueError, "samples are int16", lambda: mneme.transcribe(audio.astype("int16"), model))


def callbacks_get_segments_as_they_come():
    with mneme.Model(TINY) as model:
        segments, files, progress = [], [], []
        got = mneme.transcribe([JFK, SPEECH], model, on_segment=lambda i, s: segments.append((i, s)), on_file=lambda i, t: files.append((i, t)),
                               on_progress=progress.append, **OPTIONS)
        assert [t for _, t in files] == got and [i for i, _ in files] == [0, 1]
        assert sorted(segments, key=lambda pair: pair[0]) == [(i, s) for i, t in enumerate(got) for s in t.segments]
        assert progress[-1].duration > 0 and {p.file for p in progress} == {0, 1}
        ended = mneme.transcribe(JFK, model, on_progress=lambda p: p.done < 3, **OPTIONS)
        assert isinstance(ended.error, mneme.CancelledError) and 0 < len(ended.segments) < len(got[0].segments)

        def fail(*_):
            raise KeyError("of the callback")

        for name in ("on_progress", "on_segment", "on_file"):
            try:
                mneme.transcribe(JFK, model, **{name: fail}, **OPTIONS)
                raise AssertionError("the exception is lost")
            except KeyError as error:
                assert "of the callback" in str(error)


def failures_are_sentences():
    with mneme.Model(TINY) as model:
        refused(FileNotFoundError, "/nothere.wav", lambda: mneme.transcribe("/nothere.wav", model))
        got = mneme.transcribe(["/nothere.wav", SPEECH, b"no sound"], model, **OPTIONS)
        assert isinstance(got[0].error, mneme.NotFoundError) and got[1].error is None and isinstance(got[2].error, mneme.FormatError) and got[1].token_ids
        refused(ValueError, "'langauge' is no option, allowed: language, task", lambda: mneme.transcribe(JFK, model, langauge="en"))
        refused(ValueError, "num_beams cannot be 4294967297", lambda: mneme.transcribe(JFK, model, num_beams=2**32 + 1))
        refused(ValueError, "vad_filter cannot be 'yes'", lambda: mneme.transcribe(JFK, model, vad_filter="yes"))
        refused(ValueError, "Klingon", lambda: mneme.transcribe(JFK, model, language="Klingon"))
    refused(mneme.NotFoundError, "speech", lambda: mneme.transcribe(JFK))
    refused(mneme.UnsupportedError, "speech model", lambda: mneme.transcribe(JFK, mneme.Model("embedded")))
    refused(FileNotFoundError, "nothere", lambda: mneme.find_speech_model("nothere"))


def words_and_subtitles_are_those_of_the_command():
    model = english()
    line = json.loads(said("transcribe", "-m", model, JFK, "--timestamps", "word", "--output", "json"))
    got = mneme.transcribe(JFK, model, timestamps="word")
    assert got.text == str(got) == line["text"] and "my fellow Americans" in got.text
    assert [[(w.text, round(w.start, 3), round(w.end, 3)) for w in s.words] for s in got.segments] == \
        [[(w["word"], w["start"], w["end"]) for w in s["words"]] for s in line["segments"]]
    for kind in ("srt", "vtt"):
        assert mneme.transcribe(JFK, model).subtitles(kind) == said("transcribe", "-m", model, JFK, "--output", kind)
    refused(ValueError, "'doc'", lambda: got.subtitles("doc"))


def features_are_those_of_whisper():
    np = need_numpy()
    with mneme.Features(os.path.join(AUDIO, "1272-141231-0002.flac"), 80, 3000) as features:
        with open(os.path.join(AUDIO, "expected_log_mel_1272-141231-0002.csv")) as file:
            rows = np.array([[float(x) for x in row if x.strip()] for row in csv.reader(file)])
        window = features.window(0, 10)
        rows = rows if rows.shape == window.shape else rows.T
        assert len(features) == 3000 and window.shape == (80, 10) and abs(window - rows).max() < 1e-2
        assert (features.window(2990) == features.window(3000, 10)).all() and features.window().shape == (80, 3000)
    recorded = read_safetensors(os.path.join(golden("whisper-mel"), "tensors.safetensors"))
    for name in ("sine", "noise", "square"):
        with mneme.Features(recorded[f"samples.{name}"] / np.float32(32768), 80, 3000) as features:
            wanted = recorded[f"{name}.80.0"]
            assert abs(features.window(0, wanted.shape[1]) - wanted).max() < 1e-4, (name, abs(features.window(0, wanted.shape[1]) - wanted).max())
    with mneme.Features(samples(JFK)) as own, mneme.Features(JFK) as wanted:
        assert len(own) == len(wanted) == 1100 and abs(own.window() - wanted.window()).max() < 1e-5
    refused(FileNotFoundError, "nothere", lambda: mneme.Features("/nothere"))
    refused(ValueError, "num_mel_bins is 0", lambda: mneme.Features(JFK, 0))


CASES = [transcripts_are_those_of_the_command, recordings_in_memory_are_those_of_files, callbacks_get_segments_as_they_come, failures_are_sentences,
         words_and_subtitles_are_those_of_the_command, features_are_those_of_whisper]


if __name__ == "__main__":
    main(CASES)
