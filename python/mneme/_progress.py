"""How far the computation of a prompt is."""
from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

LONG_PROMPT = 512
"""Tokens from which a prompt has a bar: one piece of its computation."""


class Progress:
    """Shows nothing."""

    def update(self, done: int, total: int) -> None:
        """`done` of `total` tokens are computed."""

    def close(self) -> None:
        """The call has ended."""


class _Called(Progress):
    def __init__(self, function: Callable[[int, int], Any]) -> None:
        self.function = function

    def update(self, done: int, total: int) -> None:
        self.function(done, total)


class _Line(Progress):
    """A line at a terminal."""

    is_shown = False

    def update(self, done: int, total: int) -> None:
        if total > LONG_PROMPT:
            self.is_shown = True
            print(f"\rprompt: {done} of {total} tokens ({100 * done // total}%)", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class _Bar(Progress):
    """The bar of tqdm."""

    bar: Any = None

    def __init__(self, tqdm: Any) -> None:
        self.tqdm = tqdm

    def update(self, done: int, total: int) -> None:
        if total > LONG_PROMPT:
            self.bar = self.bar or self.tqdm(total=total, desc="prompt", unit=" tokens", leave=False)
            self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def progress_of(given: bool | Callable[[int, int], Any] | None) -> Progress:
    """progress=True: a bar of tqdm when it is installed, else a line when stderr is a terminal; a function: f(done, total)."""
    if callable(given):
        return _Called(given)
    if not given:
        return Progress()
    try:
        return _Bar(import_module("tqdm.auto").tqdm)
    except ImportError:
        return _Line() if sys.stderr is not None and sys.stderr.isatty() else Progress()
