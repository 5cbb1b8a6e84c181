"""What a model is and takes."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from ._library import ArgumentError
from ._model import Model


@dataclass(frozen=True)
class TensorType:
    """The tensors of a checkpoint that are stored as one type."""

    type: str
    """"F32", "BF16", "Q4_1", ..."""
    count: int
    bytes: int


@dataclass(frozen=True)
class ModelMemory:
    """What a model takes without caches, in bytes."""

    file_bytes: int
    """Mapped."""
    packed_bytes: int
    """Weights packed for this processor."""
    buffer_bytes: int
    """For computing."""
    peak_bytes: int
    """All of these together."""
    available_bytes: int
    """The memory limit, or the available memory."""


@dataclass(frozen=True)
class CacheSize:
    """What a cache of a model takes."""

    implementation: str
    config: str
    """Its cache_config, as "nbits=4"."""
    dtype: str
    """Of what is not quantized: "f32" or "bf16"."""
    bytes_per_token: int
    context: int
    """Tokens, for which the bytes are."""
    bytes: int
    largest_context: int | None
    """The most tokens for which there is memory; None: any number."""
    refused: str | None
    """Why the model cannot have it; then the numbers are 0. None: it can."""


@dataclass(frozen=True)
class Inspection:
    """A model, what it takes, and what each cache of it would take."""

    model: str
    """Its name or path."""
    architecture: str
    """model_type: "llama", "qwen2", ..."""
    format: str
    """"safetensors" or "gguf"."""
    parameters: int
    """Elements of all tensors."""
    compute_type: str
    """In which activations are multiplied."""
    cpu: str
    """The level of the kernels."""
    threads: int
    has_tokenizer: bool
    has_chat_template: bool
    config: dict[str, Any] = field(repr=False)
    """By the names of config.json: hidden_size, num_hidden_layers, max_position_embeddings, ..."""
    tensors: list[TensorType]
    memory: ModelMemory
    caches: list[CacheSize] = field(repr=False)
    """`pandas.DataFrame(found.caches)` is a table of them."""


def inspect(model: Model | str | os.PathLike[str] | None = None, *, context: int = 0, **options: Any) -> Inspection:
    """What a model is and takes, and what each cache of it would take: that of `mneme inspect`.

    - model: a Model, or a name or path as of Model(), which is opened for this call.
    - context: tokens to plan for; 0: the model's own.
    - options: as of Model(), with a name.
    """
    if isinstance(model, Model):
        if options:
            raise ArgumentError(f"{next(iter(options))} has no effect: the model is open")
        return _inspection(model.describe(context))
    with Model(None if model is None else os.fspath(model), **options) as opened:
        return _inspection(opened.describe(context))


def _inspection(found: dict[str, Any]) -> Inspection:
    caches = [{**cache, "largest_context": None if cache["largest_context"] == "any" else cache["largest_context"], "refused": cache["refused"] or None}
              for cache in found["caches"]]
    made: Inspection = _of(Inspection, {**found, "tensors": [_of(TensorType, one) for one in found["tensors"]], "memory": _of(ModelMemory, found["memory"]),
                                        "caches": [_of(CacheSize, cache) for cache in caches]})
    return made


def _of(kind: Any, found: dict[str, Any]) -> Any:
    """The members that a class has, for a library may know more."""
    return kind(**{name: found[name] for name in kind.__dataclass_fields__})
