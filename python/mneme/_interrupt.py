"""Ctrl-C while C computes. Python calls its handler between its own instructions only: where a callback begins, or when C has returned."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ._library import PACKAGE, CancelledError, lib


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _State:
    """Of the main thread, the only one in which Python runs handlers."""

    before: Any = None  # the handler that ours has replaced
    n_open = 0  # contexts that need ours
    keeps: list[Callable[[BaseException], Any]] = []  # of the calls that run in C, the innermost last


def _handle(number: int, frame: FrameType | None) -> None:
    if not _State.keeps or frame is None or os.path.dirname(frame.f_code.co_filename) != PACKAGE:
        _State.before(number, frame)
        return
    try:
        _State.before(number, frame)
    except BaseException as error:
        _State.keeps[-1](error)


@contextmanager
def interrupts() -> Generator[None, None, None]:
    """In it, `kept` can be used. It costs ten microseconds: around many calls, not around each."""
    import signal

    before: Any = signal.getsignal(signal.SIGINT)
    if not is_main_thread() or not callable(before):
        yield
        return
    if before is not _handle:
        _State.before = before
        signal.signal(signal.SIGINT, _handle)
    _State.n_open += 1
    try:
        yield
    finally:
        _State.n_open -= 1
        if _State.n_open == 0 and is_main_thread() and signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, _State.before)


class kept:
    """Around a call of C. What Python's handler raises in the package's part of a callback would be lost in C; it is kept, and the caller raises it behind C.

    In the user's part of a callback it is raised as ever.
    """

    def __init__(self, keep: Callable[[BaseException], Any]) -> None:
        self._keep = keep

    def __enter__(self) -> None:
        self._is_main = is_main_thread()
        if self._is_main:
            _State.keeps.append(self._keep)

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            _State.keeps.pop()


@contextmanager
def interruptible(keep: Callable[[BaseException], Any]) -> Generator[None, None, None]:
    """Both, for one call."""
    with interrupts(), kept(keep):
        yield


def compute(session: Any, ids: Any, call: Callable[[], Any]) -> Any:
    """A call that computes these tokens of a session, which Ctrl-C ends: C then runs in another thread, while the main one waits."""
    if len(ids) < 32 or not is_main_thread():
        return call()
    results, raised, interrupts = list[Any](), list[BaseException](), list[BaseException]()
    has_ended = threading.Event()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            raised.append(error)
        has_ended.set()

    def cancel(interrupt: BaseException) -> None:
        if not interrupts:
            lib.mn_session_cancel(session)
        interrupts.append(interrupt)

    threading.Thread(target=work, name="mneme", daemon=True).start()
    with interruptible(cancel):
        while not has_ended.is_set():
            try:
                has_ended.wait()  # Thread.join, once interrupted, no longer waits
            except BaseException as error:
                cancel(error)
    if interrupts and not any(isinstance(error, CancelledError) for error in raised):
        lib.mn_session_step(session, ids, 1, None)  # the call ended by itself; this one takes the request to end, and changes nothing
    if interrupts or raised:
        raise [*interrupts, *raised][0]
    return results[0]
