"""The part of Session that shows its cache: logits, keys and values as arrays, Transformers' legacy tuples, a picture."""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _ffi
from ._arrays import empty, floats, numpy_module, pointer
from ._information import cache_options, model_info, path_bytes
from ._interrupt import compute
from ._library import ArgumentError, Busy, Handle, check, ids_array, information, lib

if TYPE_CHECKING:
    from ._arrays import Floats
    from ._model import Model
    from ._session import CacheInfo, Session


@dataclass(frozen=True)
class LayerInfo:
    """The cache of one layer."""

    kind: str
    """"self", "cross" (attention of an encoder-decoder model) or "state" (recurrent)."""
    num_key_value_heads: int
    k_head_dim: int
    v_head_dim: int
    tokens: int
    """Seen, those included that were dropped since."""
    first_held: int
    """Earlier tokens were dropped, except the first first_exact."""
    first_exact: int
    """First tokens that are never dropped or quantized."""
    quantized_tokens: int
    """Of those held."""
    window_length: int
    """With the first tokens that stay; 0: no window."""
    key_codec: str
    """The form of quantized tokens: "f32", "bf16", "mneme", "quanto" or "hqq"."""
    value_codec: str
    key_bits: int
    """Of a number, without scales."""
    value_bits: int

    @property
    def held_tokens(self) -> int:
        """Those that were not dropped."""
        return self.tokens - self.first_held + min(self.first_exact, self.first_held)


class SessionArrays(Handle):
    """Methods of Session. Arrays of numpy, f32; each is a copy, which stays as it is when the session goes on."""

    model: Model

    if TYPE_CHECKING:
        @property
        def cache(self) -> CacheInfo: ...

    @property
    def logits(self) -> Floats | None:
        """The logits after the last token, a copy, float32 [vocab_size]; None when the session is empty or was truncated."""
        copied = empty([model_info(self.model).vocab_size])
        with Busy(self) as handle:
            address = lib.mn_session_logits(handle)
            if not address:
                return None
            ctypes.memmove(copied.ctypes.data, address, copied.nbytes)
        return copied

    @overload
    def step(self, token_ids: Sequence[int], *, all_logits: Literal[False] = False) -> None: ...
    @overload
    def step(self, token_ids: Sequence[int], *, all_logits: Literal[True]) -> Floats: ...
    def step(self, token_ids: Sequence[int], *, all_logits: bool = False) -> Floats | None:
        """Appends tokens: computes them into the cache; `logits` are then those after the last one.

        all_logits: returns the logits after each of them, float32 [n, vocab_size]. LimitError when max_cache_len is reached.
        """
        ids = ids_array(token_ids)
        rows = empty([len(ids), model_info(self.model).vocab_size]) if all_logits else None
        with Busy(self) as handle:
            compute(handle, ids, lambda: check(lib.mn_session_step(handle, ids, len(ids), None if rows is None else pointer(rows))))
        return rows

    def sync(self, token_ids: Sequence[int]) -> int:
        """Makes the session hold exactly these tokens: drops what differs, and computes what is new. Returns how many tokens it could keep."""
        ids, n_reused = ids_array(token_ids), ctypes.c_size_t()
        with Busy(self) as handle:
            compute(handle, ids, lambda: check(lib.mn_session_sync(handle, ids, len(ids), ctypes.byref(n_reused))))
        return n_reused.value

    def set_cache(self, cache: str, **options: Any) -> None:
        """Converts the cache to another strategy and keeps its tokens. options: as of Model.session()."""
        with Busy(self) as handle:
            check(lib.mn_session_set_cache(handle, ctypes.byref(cache_options(cache, **options))))

    def encode(self, features: Any) -> None:
        """Runs the encoder of an encoder-decoder model over features, float32 [num_mel_bins, frames] (Features.window()), once, before the first token."""
        array = floats(features, "features")
        if array.ndim == 3 and array.shape[0] == 1:
            array = array[0]
        if array.ndim != 2:
            raise ArgumentError(f"features have the shape {array.shape}, not (bands, frames)")
        with Busy(self) as handle:
            check(lib.mn_session_encode(handle, pointer(array), array.shape[0], array.shape[1]))

    def cancel(self) -> None:
        """Ends the step (CancelledError) or generation that runs in another thread; the next one where none runs. From any thread."""
        lib.mn_session_cancel(self._pointer)

    # ---- layers ----

    @property
    def num_layers(self) -> int:
        """The layers that layer(), keys() and values() take; cross attention is behind all self attention."""
        info = information(_ffi.mn_cache_info)
        with Busy(self) as handle:
            check(lib.mn_session_cache(handle, ctypes.byref(info)))
            n = int(info.num_layers)
            while not lib.mn_session_layer(handle, n, ctypes.byref(information(_ffi.mn_layer_info))):
                n += 1
        return n

    def layer(self, index: int) -> LayerInfo:
        """The cache of one layer."""
        info = information(_ffi.mn_layer_info)
        with Busy(self) as handle:
            check(lib.mn_session_layer(handle, index, ctypes.byref(info)))
        return LayerInfo(info.kind.decode(), info.num_key_value_heads, info.k_head_dim, info.v_head_dim, info.tokens, info.first_held, info.first_exact,
                         info.quantized_tokens, info.window_length, info.key_codec.decode(), info.value_codec.decode(), info.key_bits, info.value_bits)

    def kv_shape(self, layer: int) -> tuple[int, ...]:
        """The shape of a layer's keys as Transformers shows it: (1, heads, tokens, dim), of a preallocated cache with its capacity."""
        shape = (ctypes.c_int64 * 4)()
        with Busy(self) as handle:
            check(lib.mn_session_kv_shape(handle, layer, shape))
        return tuple(shape)

    def keys(self, layer: int, begin: int = 0, n: int | None = None) -> Floats:
        """A layer's keys, with rotary embedding, dequantized: n tokens from begin on (None: all from there), a copy, float32 [heads, n, dim].

        ArgumentError for tokens that the layer does not hold, UnsupportedError for recurrent states.
        """
        return self._rows(layer, True, begin, n)

    def values(self, layer: int, begin: int = 0, n: int | None = None) -> Floats:
        """A layer's values, as keys()."""
        return self._rows(layer, False, begin, n)

    def _rows(self, layer: int, keys: bool, begin: int, n: int | None) -> Floats:
        info = self.layer(layer)
        if n is None:
            n = max(info.tokens - begin, 0)
        if n < 0 or begin < 0 or begin + n > info.tokens:
            raise ArgumentError(f"tokens {begin} to {begin + n} of layer {layer} were requested, it has 0 to {info.tokens}")
        rows = empty([info.num_key_value_heads, n, info.k_head_dim if keys else info.v_head_dim])
        with Busy(self) as handle:
            check(lib.mn_session_read(handle, layer, keys, begin, n, pointer(rows)))
        return rows

    # ---- Transformers' forms ----

    def export(self, path: str, *, dtype: str = "auto") -> None:
        """Writes keys and values in Transformers' legacy format as a safetensors file: key.0, value.0, ..., ids."""
        _export([self], path, dtype)

    def to_legacy_cache(self) -> tuple[tuple[Floats, ...], ...]:
        """Keys and values as Transformers' legacy tuples: of each layer (key, value), float32 [1, heads, tokens, dim], behind them those of cross attention."""
        pairs = [(self.keys(i)[None], self.values(i)[None]) for i in range(self.num_layers)]
        n_self = sum(self.layer(i).kind != "cross" for i in range(len(pairs)))
        crossed: list[tuple[Floats, ...]] = [*pairs[n_self:]] or [()] * n_self
        return tuple((*own, *cross) for own, cross in zip(pairs[:n_self], crossed))

    # ---- a picture ----

    def _repr_html_(self) -> str:
        """Strategy, tokens and bytes of each layer, for notebooks."""
        from ._picture import session_picture

        return session_picture(self)


def export_sessions(sessions: Sequence[Session], path: str, *, dtype: str = "auto") -> None:
    """Writes sessions as the rows of one file in Transformers' legacy format; shorter ones are padded on the left, with an attention_mask."""
    _export(sessions, path, dtype)


def _export(sessions: Sequence[Handle], path: str, dtype: str) -> None:
    with AllBusy(sessions) as rows:
        check(lib.mn_sessions_export(rows, len(sessions), path_bytes(path), dtype.encode()))


class AllBusy:
    """The use of several handles by one call."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        if len({id(handle) for handle in handles}) < len(handles):
            raise ArgumentError("a session is given twice; fork it")
        self._uses = [Busy(handle) for handle in handles]
        self._begun: list[Busy] = []

    def __enter__(self) -> Any:
        pointers = (ctypes.c_void_p * max(len(self._uses), 1))()
        try:
            for i, use in enumerate(self._uses):
                pointers[i] = use.__enter__().value
                self._begun.append(use)
        except BaseException:
            self.__exit__()
            raise
        return pointers

    def __exit__(self, *_: object) -> None:
        for use in self._begun:
            use.__exit__()
        self._begun = []


def step_sessions(sessions: Sequence[Session], token_ids: Sequence[int]) -> None:
    """Appends token_ids[i] to sessions[i], different sessions of one model, in one pass; each gets the same bits as alone."""
    ids = ids_array(token_ids)
    if len(ids) != len(sessions):
        raise ArgumentError(f"{len(ids)} token ids for {len(sessions)} sessions")
    with AllBusy(sessions) as rows:
        check(lib.mn_sessions_step(rows, len(sessions), ids))


def legacy_layers(past: Any) -> list[tuple[Any, Any]]:
    """Keys and values of each layer, those of cross attention behind all others, of a cache of Transformers or legacy tuples."""
    if hasattr(past, "self_attention_cache") and hasattr(past, "cross_attention_cache"):
        return legacy_layers(past.self_attention_cache) + legacy_layers(past.cross_attention_cache)
    if hasattr(past, "layers"):
        return [(layer.keys, layer.values) for layer in past.layers if getattr(layer, "keys", None) is not None]
    if hasattr(past, "to_legacy_cache"):
        past = past.to_legacy_cache()
    layers = list(past)
    if any(len(layer) not in (2, 4) for layer in layers):
        raise ArgumentError("past must be a cache of Transformers, or of each layer (key, value) or (key, value, cross_key, cross_value)")
    return [(layer[0], layer[1]) for layer in layers] + [(layer[2], layer[3]) for layer in layers if len(layer) == 4]


def layer_array(given: Any, name: str, shape: tuple[int, int, int], row: int) -> Floats:
    """Keys or values of one row as [heads, tokens, dim] of this shape."""
    array = floats(given, name)
    if array.ndim == 4 and 0 <= row < array.shape[0]:
        array = array[row]
    if array.shape != shape:
        raise ArgumentError(f"{name} have the shape {array.shape}, row {row} of this model and these ids has {shape}")
    contiguous: Floats = numpy_module().ascontiguousarray(array)
    return contiguous
