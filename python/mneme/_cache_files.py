"""Saved caches as files, without a model."""
from __future__ import annotations

import ctypes
from typing import Any, Literal

from ._arrays import floats, pointer
from ._information import described, path_bytes
from ._library import check, lib


def is_cache_file(path: str) -> bool:
    """Whether a file begins as a saved cache does."""
    return bool(lib.mn_cache_file_is(path_bytes(path)))


def describe_cache_file(path: str) -> dict[str, Any]:
    """What a saved cache has: "bytes", "version", "members" (model, fingerprints, strategy, tokens, ...), "entries" (name, type, shape, checksum, ...)."""
    found: dict[str, Any] = described(lib.mn_cache_file_describe, path_bytes(path))
    return found


def verify_cache_file(path: str, *, key_file: str | None = None) -> None:
    """Compares every checksum of a saved cache, with a key the keyed one too; RefusedError where one differs."""
    check(lib.mn_cache_file_verify(path_bytes(path), _optional(key_file)))


def copy_cache_file(source: str, target: str, *, compression: Literal["none", "zstd"] | None = None, key_file: str | None = None) -> None:
    """Writes a verified copy of a saved cache, completely or not at all. compression: None keeps the bytes as they are."""
    check(lib.mn_cache_file_copy(path_bytes(source), path_bytes(target), None if compression is None else compression.encode(), _optional(key_file)))


def legacy_rows(path: str) -> int:
    """How many rows a file in Transformers' legacy format has (Session.export, export_sessions)."""
    n = ctypes.c_size_t()
    check(lib.mn_session_import_rows(path_bytes(path), ctypes.byref(n)))
    return n.value


def save_tensor(path: str, name: str, values: Any) -> None:
    """Writes an array of 1 to 4 dimensions, as float32, as the only tensor of a safetensors file."""
    array = floats(values, name)
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    check(lib.mn_tensor_save(path_bytes(path), name.encode(), shape, array.ndim, pointer(array)))


def _optional(path: str | None) -> bytes | None:
    return None if path is None else path_bytes(path)
