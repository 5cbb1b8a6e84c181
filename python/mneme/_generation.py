"""Configurations and results of generation."""
from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, overload

from . import _ffi
from ._library import ArgumentError, Handle, check, initialized, lib, take_text, warn

if TYPE_CHECKING:
    from ._arrays import Floats
    from ._model import Model
    from ._session import Session


@dataclass(frozen=True)
class Token:
    """A new token of a stream, with the text that it completes; str() is that text."""

    text: str
    """Whole characters, never a part of a stop string; may be empty."""
    id: int
    """-1 in the last one of a sequence, which has finish_reason and the text that was held back."""
    row: int = 0
    """Of the batch."""
    sequence: int = 0
    """Among those returned for the row."""
    logprobs: dict[int, float] | None = None
    """Natural log-probabilities by token id, the token's own first; with top_logprobs."""
    finish_reason: str | None = None
    """As of GeneratedSequence, in the last one of a sequence; else None."""

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
    """With top_logprobs: of each new token, natural log-probabilities by token id, its own first."""
    score: float | None = None
    """With beams: the sum of log-probabilities / length ** length_penalty."""
    row: int = 0
    """Of the batch."""
    index: int = 0
    """In its row; with beams the best one first."""
    scores: Floats | None = field(default=None, repr=False, compare=False)
    """With output_scores: float32 [n_ids, vocab_size], the scores from which each token was chosen. Beams: Generation.beam_scores."""
    logits: Floats | None = field(default=None, repr=False, compare=False)
    """With output_logits: the same of the logits as the model gave them. Beams: Generation.beam_logits."""
    beam_indices: list[int] | None = field(default=None, repr=False)
    """With beams: the index in its row of the beam that each token was added to."""
    transition_scores: list[float] | None = field(default=None, repr=False)
    """With beams: the log-probability with which each token was chosen."""
    draft_tokens: int = 0
    """Of an assistant_model or prompt lookup; draft_accepted of them became tokens of the answer."""
    draft_accepted: int = 0
    stop_string: int | None = None
    """With finish_reason "stop_string": its index in stop_strings."""
    session: Session | None = field(default=None, repr=False, compare=False)
    """With return_sessions: the prompt and token_ids but the last, with their cache. Pages that sequences have in common are held once."""

    def __str__(self) -> str:
        return self.text


class Generation(Sequence[GeneratedSequence]):
    """What generate() returns: a sequence of GeneratedSequence; text and str() are those of the first."""

    def __init__(self, sequences: list[GeneratedSequence], seed: int, prompt_ms: float, predicted_ms: float,
                 beam_scores: Floats | None = None, beam_logits: Floats | None = None) -> None:
        self.sequences: list[GeneratedSequence] = sequences
        """In the order of the prompts."""
        self.seed: int = seed
        """The one used: with it and do_sample the same text comes again."""
        self.prompt_ms: float = prompt_ms
        """Milliseconds until the prompts were computed."""
        self.predicted_ms: float = predicted_ms
        """Milliseconds from there to the end."""
        self.beam_scores: Floats | None = beam_scores
        """Beams with output_scores: of every step and running beam, float32 [n_steps, n_beams, vocab_size], row by row."""
        self.beam_logits: Floats | None = beam_logits
        """Beams with output_logits: the same of the logits."""

    @overload
    def __getitem__(self, index: int) -> GeneratedSequence: ...
    @overload
    def __getitem__(self, index: slice) -> list[GeneratedSequence]: ...
    def __getitem__(self, index: int | slice) -> GeneratedSequence | list[GeneratedSequence]:
        return self.sequences[index]

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def text(self) -> str:
        """Of the first sequence."""
        return self.sequences[0].text

    @property
    def rows(self) -> list[list[GeneratedSequence]]:
        """The sequences of each prompt of a batch."""
        rows: dict[int, list[GeneratedSequence]] = {}
        for sequence in self.sequences:
            rows.setdefault(sequence.row, []).append(sequence)
        return [rows.get(i, []) for i in range(max(rows, default=-1) + 1)]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Generation({self.sequences!r})"


# Of Transformers, where this library has no value to compare with.
_DEFAULTS = {"max_length": 20, "assistant_lookbehind": 10, "target_lookbehind": 10}


class GenerationConfig(Handle):
    """Transformers' GenerationConfig: the values of a model's generation_config.json, and fields that are set by their names there.

    - model: None: the defaults that generation_fields() lists.
    - given: a mapping of fields, or an object with to_dict(), as Transformers' own.
    - fields: set after it.
    """

    _name = "generation_config"

    def __init__(self, model: Model | None = None, given: Any = None, **fields: Any) -> None:
        super().__init__()
        check(lib.mn_generation_config_open(ctypes.byref(self._handle), model._pointer if model else None))
        if given is not None:
            self._load(given)
        for name, value in fields.items():
            self.set(name, value)

    def _load(self, given: Any) -> None:
        found = given.to_dict() if hasattr(given, "to_dict") else given
        if not isinstance(found, Mapping):
            raise ArgumentError(f"generation_config must be a mapping or have to_dict(), not {type(given).__name__}")
        values = cast("Mapping[str, Any]", found)
        values = {name: value for name, value in values.items() if value is not None}
        if hasattr(given, "to_dict"):
            values = {name: value for name, value in values.items() if not self._is_default(name, values)}
        text = json.dumps({name: _plain(name, value) for name, value in values.items()}).encode()
        check(lib.mn_generation_config_load(self._pointer, text, len(text)))

    def _is_default(self, name: str, values: Mapping[str, Any]) -> bool:
        """Whether a field only repeats what holds already: an object of Transformers lists all, and no warning is due for those."""
        if name == "do_sample":
            return False  # without it, sampling options that are set turn it on
        if name in _DEFAULTS:
            return bool(values[name] == _DEFAULTS[name]) and (name != "max_length" or "max_new_tokens" in values)
        try:
            return bool(self.get(name) == values[name])
        except ArgumentError:
            return False

    def set(self, name: str, value: Any) -> None:
        """Sets one field by Transformers' name; ArgumentError names the allowed values, for an unknown name the nearest known one."""
        try:
            text = json.dumps(_plain(name, value))
        except TypeError:
            raise ArgumentError(f"{name} cannot be a {type(value).__name__}") from None
        check(lib.mn_generation_config_set(self._pointer, name.encode(), text.encode()))

    def get(self, name: str) -> Any:
        """A field's value; ArgumentError for an unknown name."""
        address = lib.mn_generation_config_get(self._pointer, name.encode())
        if not address:
            raise ArgumentError(f"'{name}' is no field of a generation configuration")
        return json.loads(take_text(ctypes.c_void_p(address)))

    def check(self, session: Session | None = None) -> list[str]:
        """A line for each field that was set and has no effect, with the reason; ArgumentError where two fields contradict each other.

        session: the one that will generate, whose own cache may not be the one of these fields.
        """
        options = initialized(_ffi.mn_generate_options)
        if session is not None:
            options.session = session._pointer
        return self._check(options)

    def _check(self, options: Any = None) -> list[str]:
        text = ctypes.c_void_p()
        check(lib.mn_generation_config_check(self._pointer, None if options is None else ctypes.byref(options), ctypes.byref(text)))
        return take_text(text).splitlines()

    def _warn(self, options: Any = None) -> None:
        for line in self._check(options):
            warn(line)

    @property
    def cache(self) -> dict[str, Any]:
        """The cache that the fields request, as arguments of Model.session(): `model.session(**config.cache)`."""
        options = initialized(_ffi.mn_cache_options)
        check(lib.mn_generation_config_cache(self._pointer, ctypes.byref(options)))
        named = {} if options.implementation is None else {"cache": options.implementation.decode()}
        return {**named, **_cache_config((options.config or b"").decode())}

    def has_limit(self) -> bool:
        """Whether max_new_tokens or max_length is set."""
        return self.get("max_new_tokens") is not None or self.get("max_length") is not None


def _cache_config(text: str) -> dict[str, Any]:
    """A cache_config, an object or a text key=value,..., as a mapping."""
    if not text or text.startswith("{"):
        return dict(json.loads(text or "{}"))
    return {key: _plain_value(value) for key, _, value in (part.strip().partition("=") for part in text.split(","))}


def _plain_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class GenerationField:
    """A field of GenerationConfig, which is an option of generate() too."""

    name: str
    kind: str
    """"integer", "number", "boolean", "choice", "string", "grammar", "schema", "integers", "strings", "lists of integers", "biases", "object", "pair",
    "layers" or "options"."""
    allowed: str
    """In words, as "1 to 4096"."""
    default: Any
    """Without a model's generation_config.json."""
    help: str
    only_samples: bool
    """It has an effect with do_sample alone; top_k in contrastive search, too."""
    alias: str | None
    """The name of llama.cpp's flag, where it is another."""


def generation_fields() -> list[GenerationField]:
    """The fields of GenerationConfig, with their allowed values and defaults."""
    fields: list[GenerationField] = []
    while found := lib.mn_generation_field_at(len(fields)):
        f = found.contents
        fields.append(GenerationField(f.name.decode(), f.kind.decode(), f.allowed.decode(), json.loads(f.standard), f.help.decode(), f.only_samples,
                                      f.alias.decode() if f.alias else None))
    return fields


def _plain(name: str, value: Any) -> Any:
    """A field's value as JSON has it: schemas also as text, as a file's path or as a model of pydantic, grammars as a path, compiled patterns."""
    if name in ("json_schema", "grammar", "regex") and hasattr(value, "__fspath__"):
        with open(value, encoding="utf-8") as file:
            value = file.read()
    if name == "json_schema" and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ArgumentError(f"json_schema is no JSON: {error}") from None
    if name == "json_schema" and hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    if name == "regex" and isinstance(value, re.Pattern):
        pattern = cast("Any", value)
        if not isinstance(pattern.pattern, str) or pattern.flags & ~re.UNICODE:
            raise ArgumentError(f"regex has {re.RegexFlag(pattern.flags & ~re.UNICODE)!r}, allowed: a pattern of text without flags")
        return pattern.pattern
    return value


def _logprobs(ids: Any, values: Any, n: int) -> dict[int, float]:
    return {ids[i]: values[i] for i in range(n)}


def token_of(event: Any, n_logprobs: int) -> Token:
    return Token(
        text=ctypes.string_at(event.text, event.n_text).decode() if event.n_text else "",
        id=event.id, row=event.row, sequence=event.sequence,
        logprobs=_logprobs(event.logprob_ids, event.logprobs, n_logprobs) if event.logprob_ids and n_logprobs else None,
        finish_reason=event.finish_reason.decode() if event.finish_reason else None)


def sequence_of(s: Any, n_logprobs: int, scores: Any, logits: Any, session: Session | None) -> GeneratedSequence:
    logprobs = None
    if s.logprob_ids and n_logprobs:
        logprobs = [{s.logprob_ids[at + k]: s.logprobs[at + k] for k in range(n_logprobs)} for at in range(0, s.n_ids * n_logprobs, n_logprobs)]
    return GeneratedSequence(
        text=ctypes.string_at(s.text, s.n_text).decode() if s.text else "", token_ids=s.ids[: s.n_ids], finish_reason=s.finish_reason.decode(),
        prompt_tokens=s.prompt_tokens, cached_tokens=s.cached_tokens, logprobs=logprobs, score=s.score if s.has_score else None,
        row=s.row, index=s.index, scores=scores, logits=logits, beam_indices=s.beam_indices[: s.n_ids] if s.beam_indices else None,
        transition_scores=s.transition_scores[: s.n_ids] if s.transition_scores else None, draft_tokens=s.draft_tokens,
        draft_accepted=s.draft_accepted, stop_string=None if s.stop_string < 0 else s.stop_string, session=session)
