"""Text generation with every KV-cache strategy.

    import mneme
    mneme.pull("smollm2")
    model = mneme.Model("smollm2")
    print(model.chat("What is the capital of France?"))
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._cache_files import copy_cache_file, describe_cache_file, is_cache_file, legacy_rows, save_tensor, verify_cache_file
from ._engine import Engine, EngineInfo, PrefixInfo, RequestInfo
from ._generation import GeneratedSequence, Generation, GenerationConfig, GenerationField, Token, generation_fields
from ._information import CacheSummary, MemoryPlan, cache_strategies, check_cache, list_models, machine
from ._inspect import CacheSize, Inspection, ModelMemory, TensorType, inspect
from ._library import (ArgumentError, CancelledError, FileError, FormatError, LimitError, MnemeError, MnemeWarning, NotFoundError, OutOfMemoryError,
                       RefusedError, UnsupportedError, lib)
from ._model import Model
from ._sampler import Sampler
from ._session import CacheInfo, Session, select_sessions
from ._session_arrays import LayerInfo, export_sessions, step_sessions
from ._speech import Features, Progress, Segment, Transcript, Word, find_speech_model, transcribe
from ._tokenizer import Detokenizer, Tokenizer

if TYPE_CHECKING:
    from ._advise import Advice, AdvisedCache, advise
    from ._bench import bench
    from ._pull import pull
    from ._server import Server

__version__: str = lib.mn_version().decode()
__all__ = ["Advice", "AdvisedCache", "ArgumentError", "CacheInfo", "CacheSize", "CacheSummary", "CancelledError", "Detokenizer", "Engine", "EngineInfo",
           "Features", "FileError", "FormatError", "GeneratedSequence", "Generation", "GenerationConfig", "GenerationField", "Inspection", "LayerInfo",
           "LimitError", "MemoryPlan", "MnemeError", "MnemeWarning", "Model", "ModelMemory", "NotFoundError", "OutOfMemoryError", "PrefixInfo", "Progress",
           "RefusedError", "RequestInfo", "Sampler", "Segment", "Server", "Session", "TensorType", "Token", "Tokenizer", "Transcript",
           "UnsupportedError", "Word", "advise", "bench", "cache_strategies", "check_cache", "copy_cache_file", "describe_cache_file", "export_sessions",
           "find_speech_model", "generation_fields", "inspect", "is_cache_file", "legacy_rows", "list_models", "machine", "pull", "save_tensor",
           "select_sessions", "step_sessions", "transcribe", "verify_cache_file"]


def _named(value: Any) -> Any:
    """Errors, and what is shown of objects, name the module that programs import."""
    if isinstance(value, type):
        value.__module__ = __name__
    return value


for _name in __all__:
    _named(globals().get(_name))

LATER = {"Server": "._server", "bench": "._bench", "pull": "._pull", "Advice": "._advise", "AdvisedCache": "._advise", "advise": "._advise"}


def __getattr__(name: str) -> Any:
    """What few programs need and takes long to import."""
    if name in LATER:
        return _named(getattr(import_module(LATER[name], __name__), name))
    raise AttributeError(f"module 'mneme' has no attribute '{name}'")
