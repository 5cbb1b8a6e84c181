"""How far the computation of a prompt is, or another one that is counted."""
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
        """`done` of `total` tokens, or of what is counted, are done."""

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

    def __init__(self, what: str, unit: str, least: int) -> None:
        self.what, self.unit, self.least = what, unit, least

    def update(self, done: int, total: int) -> None:
        if total > self.least:
            self.is_shown = True
            print(f"\r{self.what}: {done} of {total} {self.unit} ({100 * done // total}%)", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class _Bar(Progress):
    """The bar of tqdm."""

    bar: Any = None

    def __init__(self, tqdm: Any, what: str, unit: str, least: int) -> None:
        self.tqdm, self.what, self.unit, self.least = tqdm, what, unit, least

    def update(self, done: int, total: int) -> None:
        if total > self.least:
            self.bar = self.bar or self.tqdm(total=total, desc=self.what, unit=f" {self.unit}", leave=False)
            self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def progress_of(given: bool | Callable[[int, int], Any] | None, what: str = "prompt", unit: str = "tokens", least: int = LONG_PROMPT) -> Progress:
    """progress=True: a bar of tqdm when it is installed, else a line when stderr is a terminal; a function: f(done, total). `what` is counted in units; a
    bar is shown for more than `least`."""
    if callable(given):
        return _Called(given)
    if not given:
        return Progress()
    try:
        return _Bar(import_module("tqdm.auto").tqdm, what, unit, least)
    except ImportError:
        return _Line(what, unit, least) if sys.stderr is not None and sys.stderr.isatty() else Progress()
