"""Arrays of numpy, which is imported when one is needed."""
from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ._library import ArgumentError

if TYPE_CHECKING:
    import numpy  # type: ignore[import-not-found,unused-ignore]

    Floats: TypeAlias = "numpy.ndarray[Any, numpy.dtype[numpy.float32]]"


def numpy_module(what: str = "arrays") -> Any:
    """numpy; ImportError that names what needs it, where it is missing."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError(f"{what} need numpy, which is not installed: pip install numpy", name="numpy") from error
    return numpy


def empty(shape: Sequence[int]) -> Floats:
    array: Floats = numpy_module().empty(shape, "float32")
    return array


def floats(given: Any, name: str) -> Floats:
    """A numpy array, a tensor of torch or nested lists, as float32 in the order of C; no copy where it is that already."""
    numpy = numpy_module()
    if hasattr(given, "detach"):  # torch, whose bfloat16 numpy does not have
        given = given.detach().cpu().float()
    if not hasattr(given, "__array__") and hasattr(given, "numpy"):
        given = given.numpy()
    try:
        array: Floats = numpy.ascontiguousarray(given, dtype="float32")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name} must be an array of numbers, not {type(given).__name__}: {error}") from None
    return array


def pointer(array: Floats) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


class Memory:
    """Memory of C as numpy takes it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, pointer: Any, kind: str, shape: tuple[int, ...], is_read_only: bool) -> None:
        address = ctypes.addressof(pointer.contents)
        self.__array_interface__: Mapping[str, Any] = {"version": 3, "typestr": kind, "shape": shape, "data": (address, is_read_only)}


def array_copy(pointer: Any, *shape: int) -> Any:
    """An array of f32 in the result of a generation, copied; None where there is none."""
    return numpy_module().array(Memory(pointer, "<f4", shape, True)) if pointer else None
