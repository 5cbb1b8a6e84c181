"""Text generation with every KV-cache strategy.

    import mneme
    model = mneme.Model("smollm2")
    print(model.chat("What is the capital of France?"))
"""
from __future__ import annotations

from ._generation import GeneratedSequence, Generation, GenerationConfig, Token
from ._library import (ArgumentError, CancelledError, FileError, FormatError, LimitError, MnemeError, NotFoundError, OutOfMemoryError, RefusedError,
                       UnsupportedError, lib)
from ._model import Model
from ._session import CacheInfo, Session
from ._tokenizer import Tokenizer

__version__: str = lib.mn_version().decode()
__all__ = ["ArgumentError", "CacheInfo", "CancelledError", "FileError", "FormatError", "GeneratedSequence", "Generation", "GenerationConfig", "LimitError",
           "MnemeError", "Model", "NotFoundError", "OutOfMemoryError", "RefusedError", "Session", "Token", "Tokenizer", "UnsupportedError"]
