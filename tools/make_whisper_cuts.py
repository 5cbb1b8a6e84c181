#!/usr/bin/env python3
"""Records the words that faster-whisper finds in the beginnings, of every length, of two recordings that follow each other twice.

    tools/make_whisper_cuts.py FOLDER > tests/data/golden/whisper-real/cuts.json

FOLDER/whisper-tiny.en and FOLDER/whisper-base are the models in CTranslate2's container, as their packages hold them. faster-whisper pads the
features of a window with zeros, which is louder than silence, so that short recordings come out otherwise than with silence behind them, as
OpenAI's transcribe and Transformers pad; here it is made to pad with silence.
"""
import json
import pathlib
import re
import sys

import faster_whisper
import numpy
from faster_whisper import transcribe

AUDIO = pathlib.Path(__file__).resolve().parent.parent / "tests/data/audio"
RATE, QUIET = 16000, 2.0  # log-mel levels of silence are two below the loudest


class Extractor(transcribe.FeatureExtractor):
    def __call__(self, *arguments, **named):
        levels = super().__call__(*arguments, **named)
        Extractor.silence = levels.max() - QUIET
        return levels


def pad(levels, length=3000):
    short = max(0, length - levels.shape[-1])
    return numpy.pad(levels[..., :length], ((0, 0), (0, short)), constant_values=Extractor.silence)


transcribe.FeatureExtractor, transcribe.pad_or_trim = Extractor, pad
book, speech = (faster_whisper.decode_audio(str(AUDIO / name), sampling_rate=RATE) for name in ("1272-141231-0002.flac", "jfk.wav"))
joined = numpy.concatenate([book, speech, book, speech, book])
clips = []
for name, step in (("whisper-tiny.en", 1), ("whisper-base", 5)):
    model = faster_whisper.WhisperModel(str(pathlib.Path(sys.argv[1]) / name), device="cpu", compute_type="float32", cpu_threads=1)
    for seconds in range(step, 36, step):
        segments, _ = model.transcribe(joined[:seconds * RATE], language="en", beam_size=1, temperature=0, condition_on_previous_text=False)
        words = re.findall(r"[a-z0-9']+", "".join(s.text for s in segments).lower())
        clips.append({"model": name, "seconds": seconds, "words": " ".join(words)})
print('{"faster_whisper": "' + faster_whisper.__version__ + '", "compute_type": "float32", "beam_size": 1, "clips": [')
print(",\n".join(json.dumps(clip) for clip in clips) + "\n]}")
