"""Configurations, results and streams of generation."""
from __future__ import annotations

import ctypes
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _ffi
from ._library import ArgumentError, Busy, Handle, check, ids_array, initialized, lib, take_text


@dataclass(frozen=True)
class Token:
    """A new token of a stream, with the text that it completes; str() is that text."""

    text: str
    """Whole characters, never a part of a stop string; may be empty."""
    id: int
    """-1 in the last event of a sequence, which has finish_reason and the text that was held back."""
    row: int = 0
    """Of the batch."""
    sequence: int = 0
    """Among those returned for the row."""
    logprobs: dict[int, float] | None = None
    """Natural log-probabilities by token id, the token's own first; with top_logprobs."""
    finish_reason: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class GeneratedSequence:
    """One answer."""

    text: str
    token_ids: list[int]
    """The new tokens, with the end token if there was one."""
    finish_reason: str
    """"eos", "length", "stop_string", "time", "callback" or "cancelled"."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's tokens, those that the session held already."""
    logprobs: list[dict[int, float]] | None = field(default=None, repr=False)
    score: float | None = None
    """With beams: the sum of log-probabilities / length ** length_penalty."""

    def __str__(self) -> str:
        return self.text


class Generation(Sequence[GeneratedSequence]):
    """What a call of generate() returns: its sequences; text and str() are those of the first."""

    def __init__(self, sequences: list[GeneratedSequence], seed: int, prompt_ms: float, predicted_ms: float) -> None:
        self.sequences = sequences
        self.seed = seed
        self.prompt_ms = prompt_ms
        self.predicted_ms = predicted_ms

    def __getitem__(self, index: Any) -> Any:
        return self.sequences[index]

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def text(self) -> str:
        return self.sequences[0].text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Generation({self.sequences!r})"


class GenerationConfig(Handle):
    """Transformers' GenerationConfig: the values of a model's generation_config.json, and fields set by their names there."""

    _name = "generation_config"

    def __init__(self, model: Handle | None = None, given: Any = None, **fields: Any) -> None:
        super().__init__()
        check(lib.mn_generation_config_open(ctypes.byref(self._handle), model._pointer if model else None))
        if given is not None:
            self._load(given)
        for name, value in fields.items():
            self.set(name, value)

    def _load(self, given: Any) -> None:
        values = given.to_dict() if hasattr(given, "to_dict") else given
        if not isinstance(values, Mapping):
            raise ArgumentError(f"generation_config must be a mapping or have to_dict(), not {type(given).__name__}")
        text = json.dumps({name: value for name, value in values.items() if value is not None}).encode()
        check(lib.mn_generation_config_load(self._pointer, text, len(text)))

    def set(self, name: str, value: Any) -> None:
        """Sets one field by Transformers' name."""
        try:
            text = json.dumps(value)
        except TypeError:
            raise ArgumentError(f"{name} cannot be a {type(value).__name__}") from None
        check(lib.mn_generation_config_set(self._pointer, name.encode(), text.encode()))

    def get(self, name: str) -> Any:
        """A field's value; ArgumentError for an unknown name."""
        address = lib.mn_generation_config_get(self._pointer, name.encode())
        if not address:
            raise ArgumentError(f"'{name}' is no field of a generation configuration")
        return json.loads(take_text(ctypes.c_void_p(address)))

    def has_limit(self) -> bool:
        """Whether max_new_tokens or max_length is set."""
        return self.get("max_new_tokens") is not None or self.get("max_length") is not None


def _logprobs(ids: Any, values: Any, n: int) -> dict[int, float]:
    return {ids[i]: values[i] for i in range(n)}


def _token(event: Any, n_logprobs: int) -> Token:
    return Token(
        text=ctypes.string_at(event.text, event.n_text).decode() if event.n_text else "",
        id=event.id, row=event.row, sequence=event.sequence,
        logprobs=_logprobs(event.logprob_ids, event.logprobs, n_logprobs) if event.logprob_ids and n_logprobs else None,
        finish_reason=event.finish_reason.decode() if event.finish_reason else None)


def _sequence(s: Any, n_logprobs: int) -> GeneratedSequence:
    logprobs = None
    if s.logprob_ids and n_logprobs:
        logprobs = [{s.logprob_ids[at + k]: s.logprobs[at + k] for k in range(n_logprobs)} for at in range(0, s.n_ids * n_logprobs, n_logprobs)]
    return GeneratedSequence(
        text=ctypes.string_at(s.text, s.n_text).decode() if s.text else "", token_ids=s.ids[: s.n_ids], finish_reason=s.finish_reason.decode(),
        prompt_tokens=s.prompt_tokens, cached_tokens=s.cached_tokens, logprobs=logprobs, score=s.score if s.has_score else None)


def run(session: Handle, prompt: Sequence[int], config: GenerationConfig, top_logprobs: int | None = None,
        on_token: Callable[[Token], Any] | None = None, is_left: Callable[[], bool] = lambda: False) -> Generation:
    """mn_generate on a session, which ends when on_token returns False or is_left() holds. What on_token raises is raised here."""
    ids, n_logprobs, raised = ids_array(prompt), 0 if top_logprobs is None else 1 + top_logprobs, []
    options = initialized(_ffi.mn_generate_options)
    if top_logprobs is not None:
        options.top_logprobs = top_logprobs

    # Python runs its handlers of signals in these callbacks, so that Ctrl-C ends a generation; an exception cannot pass through C.
    def receive(_: Any, event: Any) -> bool:
        try:
            return not is_left() and (on_token is None or on_token(_token(event.contents, n_logprobs)) is not False)
        except BaseException as error:
            raised.append(error)
            return False

    def receive_prefill(_: Any, done: int, total: int) -> None:
        try:
            ends = is_left()
        except BaseException as error:
            raised.append(error)
            ends = True
        if ends and done < total:  # while it runs: a session that is cancelled later would not begin its next call
            lib.mn_session_cancel(session._handle)

    options.on_token = _ffi.mn_token_callback(receive)
    options.on_prefill = _ffi.mn_generate_options_on_prefill(receive_prefill)
    result = ctypes.POINTER(_ffi.mn_generation)()
    with Busy(session) as pointer:
        check(lib.mn_generate(pointer, ids, len(ids), config._pointer, ctypes.byref(options), ctypes.byref(result)))
    try:
        if raised:
            raise raised[0]
        g = result.contents
        sequences = [_sequence(g.sequences[i].contents, n_logprobs) for i in range(g.n_sequences)]
        return Generation(sequences, g.seed, g.prompt_ms, g.predicted_ms)
    finally:
        lib.mn_generation_close(ctypes.byref(result))


def stream(session: Handle, prompt: Sequence[int], config: GenerationConfig, top_logprobs: int | None = None) -> Iterator[Token]:
    """The tokens of run() as they come. Leaving the iterator ends the generation."""
    tokens: queue.SimpleQueue[Token | BaseException | None] = queue.SimpleQueue()
    left = threading.Event()

    def work() -> None:
        try:
            run(session, prompt, config, top_logprobs, tokens.put, left.is_set)
            tokens.put(None)
        except BaseException as error:
            tokens.put(error)

    worker = threading.Thread(target=work, name="mneme", daemon=True)
    worker.start()
    try:
        while True:
            token = tokens.get()
            if token is None:
                return
            if isinstance(token, BaseException):
                raise token
            yield token
    finally:
        left.set()
        worker.join()
