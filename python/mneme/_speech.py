"""Transcription of recordings."""
from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from . import _ffi
from ._arrays import empty, floats, pointer
from ._information import assign, cache_options, path_bytes
from ._interrupt import interruptible
from ._library import ERRORS, ArgumentError, Busy, Handle, MnemeError, check, initialized, lib, take_text
from ._model import Model

if TYPE_CHECKING:
    from ._arrays import Floats

# What turns a threshold off.
UNCHECKED = {"compression_ratio_threshold": math.inf, "logprob_threshold": -math.inf, "no_speech_threshold": math.inf}


@dataclass(frozen=True)
class Word:
    """A word, with the space before it."""

    text: str
    start: float
    """Seconds from the recording's beginning, as end."""
    end: float


@dataclass(frozen=True)
class Segment:
    """The text from start to end, in seconds from the recording's beginning. The statistics are those of its window."""

    start: float
    end: float
    text: str | None
    """None without a tokenizer."""
    token_ids: list[int] = field(repr=False)
    """As generated, with timestamps."""
    words: list[Word] = field(repr=False)
    """With timestamps="word"."""
    avg_logprob: float
    """Natural logarithm, of a token in the mean."""
    no_speech_prob: float
    """The probability that the window has no speech."""
    compression_ratio: float
    """Of the window's text; high where it repeats itself."""
    temperature: float
    """With which the window's text was chosen."""
    window_start: float
    """Seconds."""

    def __str__(self) -> str:
        return self.text or ""


@dataclass(frozen=True)
class Transcript:
    """What a recording says; str() is its text."""

    path: str
    """Of the file, or a name of what is in memory."""
    language: str | None
    """As "en"; None when it was not found, as in a silent recording."""
    language_probability: float
    """Among the model's languages; 1 when it was given."""
    duration: float
    """Seconds."""
    text: str | None
    """None without a tokenizer."""
    token_ids: list[int] = field(repr=False)
    segments: list[Segment] = field(repr=False)
    error: MnemeError | None = None
    """Why it ended before its end; the rest has what was transcribed until then."""

    def __str__(self) -> str:
        return self.text or ""

    def subtitles(self, format: Literal["srt", "vtt", "txt"] = "srt") -> str:
        """The segments as the text of a file of subtitles."""
        text, n, number = ctypes.c_void_p(), ctypes.c_size_t(), 0
        check(lib.mn_subtitles_head(format.encode(), ctypes.byref(text), ctypes.byref(n)))
        parts = [take_text(text, n.value)]
        for segment in self.segments:
            said = (segment.text or "").encode()
            check(lib.mn_subtitles_cue(format.encode(), number, segment.start, segment.end, said, len(said), ctypes.byref(text), ctypes.byref(n)))
            parts.append(take_text(text, n.value))
            number += bool(parts[-1])
        return "".join(parts)


@dataclass(frozen=True)
class Progress:
    """How far a transcription is."""

    file: int
    """Index of the recording."""
    done: float
    """Seconds transcribed."""
    duration: float
    """Of the recording, seconds; 0 until it is known."""


def _text(address: int | None, n: int) -> str | None:
    return ctypes.string_at(address, n).decode() if address else None


def _segment(s: Any) -> Segment:
    words = [s.words[i].contents for i in range(s.n_words)]
    return Segment(s.start, s.end, _text(s.text, s.n_text), s.ids[: s.n_ids], [Word(_text(w.text, w.n_text) or "", w.start, w.end) for w in words],
                   s.avg_logprob, s.no_speech_prob, s.compression_ratio, s.temperature, s.window_start)


def _transcript(t: Any) -> Transcript:
    error = None
    if t.status != _ffi.MN_OK:
        error = ERRORS.get(t.status, MnemeError)(t.error.decode())
        error.status = t.status
    return Transcript(os.fsdecode(t.path), t.language.decode() if t.language else None, t.language_probability, t.duration, _text(t.text, t.n_text),
                      t.ids[: t.n_ids], [_segment(t.segments[i].contents) for i in range(t.n_segments)], error)


def recording_bytes(given: Any, sampling_rate: int) -> bytes | None:
    """The file that a recording in memory is: bytes as they are, samples as WAV; None for a path."""
    if isinstance(given, (str, os.PathLike)):
        return None
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", given))
    if getattr(getattr(given, "dtype", None), "kind", "f") not in "f":
        raise ArgumentError(f"samples are {given.dtype}, allowed: floating-point numbers from -1 to 1")
    samples = floats(given, "samples")
    if samples.ndim != 1:
        raise ArgumentError(f"samples have the shape {samples.shape}, allowed: one channel, (n,)")
    if not 1 <= sampling_rate <= 1_000_000:
        raise ArgumentError(f"sampling_rate is {sampling_rate}, allowed: 1 to 1000000")
    data: bytes = samples.astype("<f4").tobytes()
    sizes = [16, 3, 1, sampling_rate, 4 * sampling_rate, 4, 32]  # of the format: IEEE floats, one channel
    parts = [n.to_bytes(w, "little") for n, w in zip(sizes, (4, 2, 2, 4, 4, 2, 2))]
    return b"RIFF" + (36 + len(data)).to_bytes(4, "little") + b"WAVEfmt " + b"".join(parts) + b"data" + len(data).to_bytes(4, "little") + data


def find_speech_model(name: str | None = None) -> str:
    """The path of a speech model by its name; None: the one installed last."""
    path = ctypes.c_void_p()
    check(lib.mn_model_find_speech(ctypes.byref(path), None if name is None else path_bytes(name)))
    return take_text(path)


class _Callbacks:
    """The callbacks of a transcription. The first exception of one ends it and is raised behind it, as is Ctrl-C."""

    def __init__(self, options: Any, on_progress: Callable[[Progress], Any] | None, on_segment: Callable[[int, Segment], Any] | None,
                 on_file: Callable[[int, Transcript], Any] | None) -> None:
        self.raised: BaseException | None = None

        def guarded(call: Callable[[], Any]) -> bool:
            try:
                return self.raised is None and call() is not False
            except BaseException as error:
                self.keep(error)
                return False

        def progress(_: Any, p: Any) -> bool:
            at = p.contents
            return guarded(lambda: None if on_progress is None else on_progress(Progress(at.file, at.done, at.duration)))

        def segment(_: Any, file: int, s: Any) -> None:
            guarded(lambda: None if on_segment is None else on_segment(file, _segment(s.contents)))

        def complete(_: Any, file: int, t: Any) -> None:
            guarded(lambda: None if on_file is None else on_file(file, _transcript(t.contents)))

        options.on_progress = _ffi.mn_transcribe_options_on_progress(progress)
        options.on_segment = _ffi.mn_transcribe_options_on_segment(segment)
        options.on_file = _ffi.mn_transcribe_options_on_file(complete)

    def keep(self, error: BaseException) -> None:
        """The first is raised."""
        self.raised = self.raised or error


@overload
def transcribe(recording: str | os.PathLike[str] | bytes, model: Model | str | None = None, **options: Any) -> Transcript: ...
@overload
def transcribe(recording: list[Any] | tuple[Any, ...], model: Model | str | None = None, **options: Any) -> list[Transcript]: ...
@overload
def transcribe(recording: Any, model: Model | str | None = None, **options: Any) -> Any: ...
def transcribe(recording: Any, model: Model | str | None = None, *, sampling_rate: int = 16000, temperatures: Sequence[float] | None = None,
               cache: str | None = None, cache_config: dict[str, Any] | None = None, on_progress: Callable[[Progress], Any] | None = None,
               on_segment: Callable[[int, Segment], Any] | None = None, on_file: Callable[[int, Transcript], Any] | None = None,
               **options: Any) -> Transcript | list[Transcript]:
    """Transcribes a recording, or a list of them side by side.

        transcript = mneme.transcribe("talk.wav", "whisper-base", language="en")
        for segment in transcript.segments:
            print(f"{segment.start:.1f} to {segment.end:.1f} s: {segment}")
        print(transcript.subtitles("srt"))

    - recording: a path, "-" for the standard input, the bytes of a file, or samples [n] of one channel from -1 to 1 at sampling_rate (in Hz). A list or
      tuple of these returns a list.
    - model: a speech Model, or the name of one that is opened for this call; None: the one installed last.
    - temperatures: tried one after another while a window's text looks wrong. cache, cache_config: as of Model.session().
    - options: language ("en"; found when not given), task ("transcribe", or "translate" into English), timestamps ("none", "segment", "word"), num_beams,
      condition_on_prev_tokens, max_new_tokens, seed, batch_size, prompt, hotwords, vad_filter, vad_threshold, vad_min_silence_ms, vad_min_speech_ms,
      vad_speech_pad_ms, and compression_ratio_threshold, logprob_threshold, no_speech_threshold (None: not checked). docs/transcribe.md has their meaning.
    - on_segment(index, segment), on_file(index, transcript): called as they are complete. on_progress(progress) returns False to end, with the text so far.

    A single recording that fails raises; of a list, each transcript has its error.
    """
    several = isinstance(recording, (list, tuple))
    given: list[Any] = [*recording] if several else [recording]
    own = initialized(_ffi.mn_transcribe_options)
    assign(own, **{name: UNCHECKED.get(name) if value is None else value for name, value in options.items()})
    if temperatures is not None:
        kept = (ctypes.c_double * len(temperatures))(*temperatures)
        own.temperatures, own.n_temperatures = kept, len(temperatures)
    if cache is not None or cache_config:
        own.cache = ctypes.pointer(cache_options(cache, **(cache_config or {})))
    callbacks = _Callbacks(own, on_progress, on_segment, on_file)
    data = [recording_bytes(one, sampling_rate) for one in given]
    paths = (ctypes.c_char_p * len(given))(*(path_bytes(one) if held is None else f"recording {i}".encode() for i, (one, held) in enumerate(zip(given, data))))
    if any(held is not None for held in data):
        own.data = (ctypes.c_void_p * len(given))(*(ctypes.cast(ctypes.c_char_p(held), ctypes.c_void_p) for held in data))
        own.data_sizes = (ctypes.c_size_t * len(given))(*(len(held or b"") for held in data))
    result = ctypes.POINTER(_ffi.mn_transcription)()
    opened = None if isinstance(model, Model) else Model(find_speech_model(model))
    try:
        used = opened or model
        assert isinstance(used, Model)
        with interruptible(callbacks.keep):
            status = lib.mn_transcribe(used._pointer, paths, len(given), ctypes.byref(own), ctypes.byref(result))
        if callbacks.raised:
            raise callbacks.raised
        check(status)
        transcripts = [_transcript(result.contents.files[i].contents) for i in range(result.contents.n_files)]
    finally:
        lib.mn_transcription_close(ctypes.byref(result))
        if opened:
            opened.close()
    if several:
        return transcripts
    error = transcripts[0].error
    if error and not (on_progress and error.status == _ffi.MN_E_CANCELLED):
        raise error
    return transcripts[0]


class Features(Handle):
    """The log-mel features of a recording, the input of a speech model: a frame every 10 ms, as Whisper's feature extractor computes them.

    - recording, sampling_rate: as of transcribe().
    - num_mel_bins: bands, 80 or 128 in Whisper.
    - n_frames: shorter recordings are padded with silence to this length.

    len() is the number of frames.
    """

    _name = "features"

    def __init__(self, recording: Any, num_mel_bins: int = 80, n_frames: int = 0, *, sampling_rate: int = 16000) -> None:
        super().__init__()
        self.num_mel_bins = num_mel_bins
        if num_mel_bins < 1 or n_frames < 0:
            raise ArgumentError(f"num_mel_bins is {num_mel_bins} and n_frames {n_frames}, allowed: 1 to 256, and 0 or more")
        data = recording_bytes(recording, sampling_rate)
        self._file = None
        if data is not None:
            import tempfile

            self._file = tempfile.NamedTemporaryFile(suffix=".wav")
            self._file.write(data)
            self._file.flush()
        check(lib.mn_features_open(ctypes.byref(self._handle), path_bytes(self._file.name if self._file else recording), num_mel_bins, n_frames))

    def __len__(self) -> int:
        return int(lib.mn_features_count(self._pointer))

    def window(self, first: int = 0, n: int | None = None) -> Floats:
        """n frames from the first on, float32 [num_mel_bins, n], the input of Session.encode(); None: all. After the end they are those of silence."""
        n = max(len(self) - first, 0) if n is None else n
        if n < 0:
            raise ArgumentError(f"n is {n}, allowed: 0 or more")
        frames = empty([self.num_mel_bins, n])
        with Busy(self) as handle:
            check(lib.mn_features_window(handle, first, n, pointer(frames)))
        return frames
