"""What there is: models, strategies, the machine; what a model is, and what a cache of it takes."""
from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _ffi
from ._library import ArgumentError, Handle, check, ids_array, information, initialized, lib, take_text
from ._tokenizer import Tokenizer


SIMPLE = {ctypes.c_char_p, ctypes.c_bool, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_double}


def described(function: Any, *arguments: Any) -> Any:
    """What a function returns as JSON text."""
    text = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(text)))
    return json.loads(take_text(text))


def list_models() -> list[dict[str, str]]:
    """The models on this machine that are found by name: of each "name", "path", and "use", which is "text" or "speech"."""
    models: list[dict[str, str]] = described(lib.mn_models_describe)
    return models


def machine(cpu: str = "auto") -> dict[str, Any]:
    """The level of this processor and of each kernel, cores, bytes of available memory. cpu: "auto" or a level, as of Model()."""
    found: dict[str, Any] = described(lib.mn_machine_describe, cpu.encode())
    return found


def cache_strategies() -> dict[str, Any]:
    """The strategies with their help, and the keys of a cache_config with their allowed values and defaults."""
    found: dict[str, Any] = described(lib.mn_cache_describe)
    return found


def model_info(model: Handle) -> Any:
    info = information(_ffi.mn_model_info)
    check(lib.mn_model_get_info(model._pointer, ctypes.byref(info)))
    return info


def path_bytes(path: Any) -> bytes:
    return str(path).encode("utf-8", "surrogateescape")


def assign(options: Any, **values: Any) -> None:
    """Sets members of an options struct; ArgumentError for a name that it does not have, and a value that does not fit the member."""
    kinds = {name: kind for name, kind in options._fields_ if kind in SIMPLE and name != "size" and not name.startswith("n_")}
    for name, value in values.items():
        if name not in kinds:
            raise ArgumentError(f"'{name}' is no option, allowed: {', '.join(kinds)}")
        given = value.encode() if isinstance(value, str) else value
        try:
            setattr(options, name, given)
            fits = bool(getattr(options, name) == given)
        except TypeError:
            fits = False
        if not fits:  # ctypes would take a part of an integer, and the truth of anything
            raise ArgumentError(f"{name} cannot be {value!r:.100}")


def cache_options(cache: str | None = None, *, dtype: str = "auto", max_cache_len: int = 0, on_oom: str | None = None, key_file: str | None = None,
                  **config: Any) -> Any:
    """mn_cache_options of a strategy and its cache_config."""
    options = initialized(_ffi.mn_cache_options)
    options.implementation = None if cache is None else cache.encode()
    options.config = json.dumps(config).encode() if config else None
    assign(options, dtype=dtype, max_cache_len=max_cache_len)
    options.on_oom = None if on_oom is None else on_oom.encode()
    options.key_file = None if key_file is None else path_bytes(key_file)
    return options


@dataclass(frozen=True)
class CacheSummary:
    """What a strategy and its options amount to, without a model."""

    preallocates: bool
    """max_cache_len tokens are allocated at once."""
    max_cache_len: int
    """Most tokens; 0: not set."""
    page_tokens: int
    """Tokens in a page."""
    prefill_chunk: int
    """Tokens of a prompt that are computed together."""
    has_unbounded_context: bool
    """Every query has a window: a text may exceed the model's context."""


def check_cache(cache: str | None = None, **options: Any) -> CacheSummary:
    """Checks the arguments of Model.session() as far as no model is needed; ArgumentError names what is wrong."""
    summary = information(_ffi.mn_cache_summary)
    check(lib.mn_cache_check(ctypes.byref(cache_options(cache, **options)), ctypes.byref(summary)))
    return CacheSummary(summary.preallocates, summary.max_cache_len, summary.page_tokens, summary.prefill_chunk, summary.has_unbounded_context)


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs of memory when no limit is set, in bytes."""

    prompt_bytes: int
    """Of caches while the prompts are computed, at most."""
    rows_bytes: int
    """Of caches while the rows grow; 0: they do not."""
    cache_bytes: int
    """The larger of both."""
    resident_bytes: int
    """Of the process: what it holds now, cache_bytes, and what computing needs beside them."""


class Planning(Handle):
    """The part of Model that is about what its caches are and take."""

    tokenizer: Tokenizer | None

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits; models with different ones cannot share saved caches or calibrations."""
        text = ctypes.c_void_p()
        check(lib.mn_model_fingerprint(self._pointer, ctypes.byref(text)))
        return take_text(text)

    def memory_plan(self, prompt_tokens: int, max_new_tokens: int, *, rows: int = 1, batch_size: int = 1, cache: str | None = None,
                    **options: Any) -> MemoryPlan:
        """The memory that a run needs.

        - prompt_tokens, batch_size: that many prompts of so many tokens, computed together.
        - max_new_tokens, rows: behind each of them, rows (beams, answers) of so many new tokens.
        - cache, options: as of session().
        """
        plan = information(_ffi.mn_memory_plan)
        check(lib.mn_memory_plan_make(ctypes.byref(plan), self._pointer, ctypes.byref(cache_options(cache, **options)), prompt_tokens,
                                      max_new_tokens, rows, batch_size))
        return MemoryPlan(plan.prompt_bytes, plan.rows_bytes, plan.cache_bytes, plan.resident_bytes)

    def cache_warnings(self, cache: str | None = None, **options: Any) -> list[str]:
        """A line for each argument of session() that would have no effect with this model, with the reason."""
        text = ctypes.c_void_p()
        check(lib.mn_cache_warnings(self._pointer, ctypes.byref(cache_options(cache, **options)), ctypes.byref(text)))
        return take_text(text).splitlines()

    def calibrate(self, text: str | Sequence[int], path: str) -> None:
        """Writes a calibration of quantized keys, computed from a text of at least 384 tokens (the first 2,048 are used). set_calibration() takes it."""
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ArgumentError("the model has no tokenizer: give token ids, not text")
            text = self.tokenizer.encode(text)
        ids = ids_array(text)
        check(lib.mn_cache_calibrate(self._pointer, ids, len(ids), path_bytes(path)))

    def set_calibration(self, path: str | None) -> None:
        """The calibration of quantized keys for sessions opened later: a file of calibrate(); None: no calibration."""
        check(lib.mn_model_set_calibration(self._pointer, None if path is None else path_bytes(path)))
