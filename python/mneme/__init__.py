"""Text generation with every KV-cache strategy.

    import mneme
    model = mneme.Model("smollm2")
    print(model.chat("What is the capital of France?"))
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._cache_files import copy_cache_file, describe_cache_file, is_cache_file, legacy_rows, save_tensor, verify_cache_file
from ._engine import Engine, EngineInfo, PrefixInfo, RequestInfo
from ._generation import GeneratedSequence, Generation, GenerationConfig, GenerationField, Token, generation_fields
from ._information import CacheSummary, MemoryPlan, cache_strategies, check_cache, list_models, machine
from ._library import (ArgumentError, CancelledError, FileError, FormatError, LimitError, MnemeError, MnemeWarning, NotFoundError, OutOfMemoryError,
                       RefusedError, UnsupportedError, lib)
from ._model import Model
from ._sampler import Sampler
from ._session import CacheInfo, Session, select_sessions
from ._session_arrays import LayerInfo, export_sessions, step_sessions
from ._speech import Features, Progress, Segment, Transcript, Word, find_speech_model, transcribe
from ._tokenizer import Detokenizer, Tokenizer

if TYPE_CHECKING:
    from ._server import Server

__version__: str = lib.mn_version().decode()
__all__ = ["ArgumentError", "CacheInfo", "CacheSummary", "CancelledError", "Detokenizer", "Engine", "EngineInfo", "Features", "FileError", "FormatError",
           "GeneratedSequence", "Generation", "GenerationConfig", "GenerationField", "LayerInfo", "LimitError", "MemoryPlan", "MnemeError",
           "MnemeWarning", "Model", "NotFoundError", "OutOfMemoryError", "PrefixInfo", "Progress", "RefusedError", "RequestInfo", "Sampler",
           "Segment", "Server", "Session", "Token", "Tokenizer", "Transcript", "UnsupportedError", "Word", "cache_strategies", "check_cache",
           "copy_cache_file", "describe_cache_file", "export_sessions", "find_speech_model", "generation_fields", "is_cache_file", "legacy_rows",
           "list_models", "machine", "save_tensor", "select_sessions", "step_sessions", "transcribe", "verify_cache_file"]


def __getattr__(name: str) -> Any:
    """What few programs need and takes long to import."""
    if name == "Server":
        from ._server import Server

        return Server
    raise AttributeError(f"module 'mneme' has no attribute '{name}'")
