#!/usr/bin/env python3
"""Records the words that faster-whisper finds in the beginnings, of many lengths, of two recordings that follow each other twice.

    tools/make_whisper_cuts.py FOLDER > tests/data/golden/whisper-real/cuts.json

FOLDER/whisper-tiny.en and FOLDER/whisper-base are the models in CTranslate2's container, as their packages hold them. faster-whisper is made
to pad with silence, as bench/whisper_cuts does it, whose recording and words these are.
"""
import importlib.machinery
import importlib.util
import json
import pathlib
import sys

import faster_whisper
from faster_whisper import transcribe

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Beginnings that the model leaves in the middle of a sentence, so that the rest is decoded as a window of its own: the test runs these always.
BORDERS = {"whisper-tiny.en": [11, 29], "whisper-base": [11, 29]}
OTHERS = {"whisper-tiny.en": range(1, 36), "whisper-base": range(5, 36, 5)}


def load_bench():
    loader = importlib.machinery.SourceFileLoader("whisper_cuts", str(ROOT / "bench" / "whisper_cuts"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("whisper_cuts", loader))
    loader.exec_module(module)
    return module


bench = load_bench()
bench.pad_with_silence(transcribe)
joined = bench.join_clips()
clips = []
for name, borders in BORDERS.items():
    model = faster_whisper.WhisperModel(str(pathlib.Path(sys.argv[1]) / name), device="cpu", compute_type="float32", cpu_threads=1)
    for seconds in sorted({*borders, *OTHERS[name]}):
        segments, _ = model.transcribe(joined[:round(seconds * bench.RATE)], language="en", beam_size=1, temperature=0, condition_on_previous_text=False)
        clip = {"model": name, "seconds": seconds, "words": " ".join(bench.words("".join(s.text for s in segments)))}
        clips.append(clip | {"border": True} if seconds in borders else clip)
print('{"faster_whisper": "' + faster_whisper.__version__ + '", "compute_type": "float32", "beam_size": 1, "clips": [')
print(",\n".join(json.dumps(clip) for clip in clips) + "\n]}")
