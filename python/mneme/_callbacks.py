"""What a call of generate() takes beside the fields of its configuration, and its callbacks as C calls them."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from . import _ffi
from ._arrays import Memory, numpy_module
from ._generation import Token, token_of
from ._library import ArgumentError, ids_array
from ._progress import progress_of

if TYPE_CHECKING:
    from ._model import Model
    from ._tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass
class CallOptions:
    """The options of one call by their names in Transformers."""

    top_logprobs: int | None = None
    on_token: Callable[[Token], Any] | None = None
    logits_processor: Any = None
    stopping_criteria: Any = None
    prefix_allowed_tokens_fn: Callable[[int, Any], Sequence[int]] | None = None
    assistant_model: Model | None = None
    negative_prompt: Prompt | None = None
    output_scores: bool = False
    output_logits: bool = False
    return_sessions: bool = False
    progress: bool | Callable[[int, int], Any] | None = None

    def __post_init__(self) -> None:
        self.logits_processor = _callables("logits_processor", self.logits_processor)
        self.stopping_criteria = _callables("stopping_criteria", self.stopping_criteria)
        for name in ("on_token", "prefix_allowed_tokens_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ArgumentError(f"{name} cannot be called: it is a {type(getattr(self, name)).__name__}")
        if self.assistant_model is not None and getattr(self.assistant_model, "_name", "") != "model":
            raise ArgumentError(f"assistant_model must be a Model, not {type(self.assistant_model).__name__}")
        if self.output_scores or self.output_logits or self.logits_processor or self.stopping_criteria or self.prefix_allowed_tokens_fn:
            numpy_module("logits_processor, stopping_criteria, prefix_allowed_tokens_fn, output_scores and output_logits")

    @classmethod
    def take(cls, given: dict[str, Any]) -> CallOptions:
        """Takes its own out of the options of a call; what is left are fields of the configuration."""
        return cls(**{f.name: given.pop(f.name) for f in fields(cls) if f.name in given})

    def fill(self, c: Any) -> None:
        """Sets the members of mn_generate_options that are no callbacks."""
        c.top_logprobs = -1 if self.top_logprobs is None else self.top_logprobs
        c.keep_scores, c.keep_logits, c.keep_sessions = self.output_scores, self.output_logits, self.return_sessions
        if self.assistant_model is not None:
            c.assistant = self.assistant_model._pointer

    @property
    def n_logprobs(self) -> int:
        """Of each token: its own and the best ones."""
        return 0 if self.top_logprobs is None else 1 + self.top_logprobs


def _callables(name: str, given: Any) -> list[Any]:
    found = [] if given is None else [given] if callable(given) else list(given) if hasattr(given, "__iter__") else [None]
    if not all(map(callable, found)):
        raise ArgumentError(f"{name} must be a list of functions f(input_ids, scores)")
    return found


# ---- callbacks ----


class Callbacks:
    """The callbacks of a call. An exception cannot pass through C: the first one is kept, ends the generation, and is raised behind it."""

    def __init__(self, options: CallOptions, on_token: Callable[[Token], Any] | None, is_left: Callable[[], bool] = lambda: False) -> None:
        self.options, self.on_token, self.is_left = options, on_token, is_left
        self.raised: list[BaseException] = []
        self.progress = progress_of(options.progress)
        self.allowed: Any = None

    def fill(self, c: Any) -> None:
        """Sets the callbacks of mn_generate_options, which keep the functions."""
        given = self.options
        c.on_token = _ffi.mn_token_callback(self._receive)
        c.on_prefill = _ffi.mn_generate_options_on_prefill(self._receive_prefill)
        c.abort_callback = _ffi.mn_generate_options_abort_callback(self._abort)
        if given.logits_processor:
            c.process = _ffi.mn_logits_processor(self._process)
        if given.prefix_allowed_tokens_fn:
            c.prefix_allowed = _ffi.mn_prefix_allowed(self._allow)
        if given.stopping_criteria:
            c.stop = _ffi.mn_stopping(self._stop)

    def raise_first(self) -> None:
        """Raises what a callback raised."""
        if self.raised:
            raise self.raised.pop()

    def _is_ended(self) -> bool:
        return bool(self.raised) or self.is_left()

    def keep(self, error: BaseException) -> None:
        """The first is raised, by raise_first()."""
        if not self.raised:
            self.raised.append(error)

    def _receive(self, _: Any, event: Any) -> bool:
        try:
            if self._is_ended():
                return False
            return self.on_token is None or self.on_token(token_of(event.contents, self.options.n_logprobs)) is not False
        except BaseException as error:
            self.keep(error)
            return False

    def _receive_prefill(self, _: Any, done: int, total: int) -> None:
        try:
            self.progress.update(done, total)
        except BaseException as error:
            self.keep(error)

    def _abort(self, _: Any) -> bool:
        try:
            return self._is_ended()
        except BaseException as error:
            self.keep(error)
            return True

    def _process(self, _: Any, row: int, ids: Any, n: int, scores: Any, vocab_size: int) -> bool:
        try:
            if self.raised:
                return False
            asarray = numpy_module().asarray
            input_ids, values = asarray(Memory(ids, "<i4", (n,), True)), asarray(Memory(scores, "<f4", (vocab_size,), False))
            for process in self.options.logits_processor:
                changed = process(input_ids, values)
                if changed is not None and changed is not values:
                    values[...] = changed
            return True
        except BaseException as error:
            self.keep(error)
            return False

    def _allow(self, _: Any, row: int, ids: Any, n: int, allowed: Any, n_allowed: Any) -> bool:
        try:
            if self.raised or self.options.prefix_allowed_tokens_fn is None:
                return False
            found = self.options.prefix_allowed_tokens_fn(row, numpy_module().asarray(Memory(ids, "<i4", (n,), True)))
            self.allowed = ids_array(found)  # kept until the next call
            allowed[0], n_allowed[0] = ctypes.cast(self.allowed, ctypes.POINTER(ctypes.c_int32)), len(self.allowed)
            return True
        except BaseException as error:
            self.keep(error)
            return False

    def _stop(self, _: Any, row: int, ids: Any, n: int) -> bool:
        try:
            if self._is_ended():
                return True
            input_ids = numpy_module().asarray(Memory(ids, "<i4", (n,), True))
            return any([bool(ends(input_ids, None)) for ends in self.options.stopping_criteria])
        except BaseException as error:
            self.keep(error)
            return True


# ---- prompts ----


def prompt_ids(model: Model, prompt: Any) -> Any:
    """The ids of a prompt: a text, to which the tokenizer's special tokens are added, or ids."""
    if not isinstance(prompt, str):
        return ids_array(prompt)
    return ids_array(tokenizer_of(model).encode(prompt))


def tokenizer_of(model: Model) -> Tokenizer:
    """A model's tokenizer; ArgumentError when it has none."""
    if model.tokenizer is None:
        raise ArgumentError("the model has no tokenizer: give token ids, not text")
    return model.tokenizer
