"""Loads libmneme, turns its statuses into exceptions, and keeps its handles."""
from __future__ import annotations

import ctypes
import operator
import os
import sys
import threading
import warnings
from array import array
from types import TracebackType
from typing import Any, TypeVar

from . import _ffi


class MnemeError(Exception):
    """A failure of the library, with its sentence: what was wrong, the value, the values allowed."""

    status: int = 0
    """mn_status of the library; 0: the package found it, or the command."""


class ArgumentError(MnemeError, ValueError):
    """An argument is out of range or contradicts another."""


class OutOfMemoryError(MnemeError, MemoryError):
    """Weights or caches do not fit into memory, or into the limit that was set."""


class LimitError(MnemeError):
    """A limit that the caller set is reached: the cache has no room for more tokens."""


class FileError(MnemeError, OSError):
    """A file or device failed."""


class FormatError(MnemeError, ValueError):
    """A file is damaged or has an unsupported format."""


class UnsupportedError(MnemeError, NotImplementedError):
    """Not possible for this model, cache or machine."""


class NotFoundError(MnemeError, FileNotFoundError):
    """No such file or model; the sentence lists the places searched."""


class CancelledError(MnemeError):
    """The computation was cancelled."""


class RefusedError(MnemeError, ValueError):
    """A saved cache does not belong to this model or is damaged."""


class MnemeWarning(UserWarning):
    """A setting that has no effect, with the reason."""


ERRORS: dict[int, type[MnemeError]] = {
    _ffi.MN_E_ARG: ArgumentError,
    _ffi.MN_E_NOMEM: OutOfMemoryError,
    _ffi.MN_E_FULL: LimitError,
    _ffi.MN_E_IO: FileError,
    _ffi.MN_E_FORMAT: FormatError,
    _ffi.MN_E_UNSUPPORTED: UnsupportedError,
    _ffi.MN_E_NOT_FOUND: NotFoundError,
    _ffi.MN_E_CANCELLED: CancelledError,
    _ffi.MN_E_REFUSED: RefusedError,
}


def _load() -> ctypes.CDLL:
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libmneme.so")
    try:
        library = ctypes.CDLL(os.environ.get("MNEME_LIBRARY") or (own if os.path.exists(own) else "libmneme.so.0"))
    except OSError as error:
        raise ImportError(f"the library of mneme cannot be loaded: {error}") from None
    _ffi.declare(library)
    return library


lib: Any = _load()


def check(status: int) -> None:
    """Raises the exception of a status, with the library's sentence."""
    if status != _ffi.MN_OK:
        error = ERRORS.get(status, MnemeError)(lib.mn_last_error().decode())
        error.status = status
        raise error


PACKAGE = os.path.dirname(os.path.abspath(__file__))


def warn(line: str) -> None:
    """Warns, at the line of the program that called the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(line, MnemeWarning, stacklevel=level)


def initialized(kind: Any) -> Any:
    """Options with the library's defaults: mn_x_options by mn_x_options_init."""
    options = kind()
    getattr(lib, f"{kind.__name__}_init")(ctypes.byref(options), ctypes.sizeof(options))
    return options


def information(kind: Any) -> Any:
    """An empty struct that a function fills."""
    return kind(size=ctypes.sizeof(kind))


def take_text(address: ctypes.c_void_p, n: int | None = None) -> str:
    """The text that the library has returned, which is freed."""
    try:
        return ctypes.string_at(address.value or 0, -1 if n is None else n).decode()
    finally:
        lib.mn_free(address)


def ids_array(ids: Any) -> Any:
    """Token ids, also of an array of numpy or a tensor, as an array of C; ArgumentError where one is no 32-bit integer."""
    try:
        values = array("i", map(operator.index, ids.tolist() if hasattr(ids, "tolist") else ids))  # unlike ctypes, it refuses integers that do not fit
        return (ctypes.c_int32 * len(values)).from_buffer(values)
    except (TypeError, OverflowError) as error:
        raise ArgumentError(f"token ids must be a sequence of integers, not {type(ids).__name__}: {error}") from None


Self = TypeVar("Self", bound="Handle")


class Handle:
    """An object of the library: closed by close(), by `with`, or when it is no longer referred to.

    Only one thread at a time may use one. It belongs to the process that opened it: a forked one opens its own.
    """

    _name = ""  # of the functions: mn_<name>_close

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_dropped = False  # while it was in use

    @property
    def closed(self) -> bool:
        return not self._handle.value

    @property
    def _pointer(self) -> ctypes.c_void_p:
        if not self._handle.value:
            raise ArgumentError(f"this {self._name} is closed")
        if self._process != os.getpid():
            raise ArgumentError(f"this {self._name} belongs to process {self._process}, a forked process opens its own")
        return self._handle

    def close(self) -> None:
        """Frees it; nothing happens when it is closed already."""
        if self._handle.value and self._process == os.getpid():
            if self._lock.locked():
                raise ArgumentError(f"this {self._name} is in use: it can be closed when the call that uses it has ended")
            getattr(lib, f"mn_{self._name}_close")(ctypes.byref(self._handle))
        self._handle = ctypes.c_void_p()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_lock", None) and self._lock.locked():
            self._is_dropped = True  # of objects that are dropped together, what uses this one may come later
        elif getattr(self, "_handle", None):
            self.close()

    def __reduce__(self) -> str:
        raise TypeError(f"a {self._name} cannot be pickled; a session is written to a file by save()")


class Busy:
    """The use of a handle by one call; what comes meanwhile, from another thread or from a callback, gets an exception."""

    def __init__(self, handle: Handle) -> None:
        self._owner = handle

    def __enter__(self) -> ctypes.c_void_p:
        pointer = self._owner._pointer
        if not self._owner._lock.acquire(blocking=False):
            raise ArgumentError(f"this {self._owner._name} is in use, by another thread or by the call whose callback this is")
        return pointer

    def __exit__(self, *_: object) -> None:
        self._owner._lock.release()
        if self._owner._is_dropped:
            self._owner.close()
