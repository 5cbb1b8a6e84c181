"""Which cache holds so many tokens in so much memory: `mneme advise` in a child process."""
from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from ._command import run_json
from ._progress import progress_of

MEASURED = re.compile(r"mneme: measured (\d+) of (\d+): ")


@dataclass(frozen=True)
class AdvisedCache:
    """A cache of an Advice. None: refused, not measured, or for largest_context any."""

    cache_implementation: str
    cache_config: str
    flags: str | None = None
    refused: str = ""
    cache_bytes: int | None = None
    cache_peak_bytes: int | None = None
    fits: bool = False
    largest_context: int | None = None
    measured: bool = False
    decode_per_second: float | None = None
    compared_tokens: int | None = None
    same_tokens: int | None = None
    kl_divergence: float | None = None
    kl_standard_error: float | None = None
    perplexity_change: float | None = None
    pareto: bool = False


class Advice(Sequence[AdvisedCache]):
    """The caches in the order of the command, of which pandas.DataFrame(advice.rows) makes a table."""

    def __init__(self, answer: dict[str, Any]) -> None:
        names = AdvisedCache.__dataclass_fields__
        self.rows = [AdvisedCache(**{name: value for name, value in row.items() if name in names}) for row in answer["caches"]]
        self.recommendation: str = answer["recommendation"]["sentence"]
        """Which cache to take, and why."""
        self.flags: str = answer["recommendation"]["flags"]
        """The same as flags of the command."""
        self.answer = answer
        """The command's JSON: docs/caches.md, "Which cache for me"."""

    @property
    def recommended(self) -> AdvisedCache:
        """The cache to take: session(recommended.cache_implementation, ...) with its cache_config."""
        return next(row for row in self.rows if row.flags == self.flags)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> AdvisedCache: ...

    @overload
    def __getitem__(self, index: slice) -> list[AdvisedCache]: ...

    def __getitem__(self, index: int | slice) -> AdvisedCache | list[AdvisedCache]:
        return self.rows[index]

    def __iter__(self) -> Iterator[AdvisedCache]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<mneme.Advice of {len(self)} caches: {self.flags}>"


def advise(model: str | os.PathLike[str] | None = None, *, context: int | None = None, memory: int | str | None = None,
           text: str | os.PathLike[str] | Sequence[int] | None = None, rows: int = 1, time: int = 60, svg: str | os.PathLike[str] | None = None,
           progress: bool | Callable[[int, int], Any] | None = None, **options: Any) -> Advice:
    """Which cache to take for `context` tokens (default: the model's own) in each of `rows` texts, in `memory` ("512M", or bytes; default: what is free).

    text: the path of a file, or token ids, on which the caches that fit are run for at most `time` seconds; default: one built in. progress: True, or
    f(done, total), after each of the caches. svg: where to draw it. options: others of the command with _ for -, as threads=2.
    """
    given: dict[str, Any] = {"model": model, "context": context, "memory": memory, "rows": rows, "time": time, "svg": svg, **options}
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
        if text is None or isinstance(text, (str, os.PathLike)):
            given["text"] = text
        else:
            file.write(" ".join(map(str, text)))
            file.flush()
            given["ids_file"] = file.name
        shown = progress_of(progress, "measuring", "caches", 0)

        def show(line: str) -> None:
            found = MEASURED.match(line)
            if found:
                shown.update(int(found[1]), int(found[2]))

        try:
            return Advice(run_json("advise", "-v", on_line=show, **given))
        finally:
            shown.close()
