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


@contextmanager
def interruptible(keep: Callable[[BaseException], Any]) -> Generator[None, None, None]:
    """What Python's handler raises in the package's part of a callback would be lost in C; it is kept, and the caller raises it behind C.

    In the user's part of a callback it is raised as ever.
    """
    import signal

    before: Any = signal.getsignal(signal.SIGINT)
    if not is_main_thread() or not callable(before):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if frame is None or os.path.dirname(frame.f_code.co_filename) != PACKAGE:
            before(number, frame)
            return
        try:
            before(number, frame)
        except BaseException as error:
            keep(error)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, before)


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
