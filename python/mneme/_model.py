"""Models."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

from . import _ffi
from ._generation import Generation, Token
from ._information import Planning, assign, described
from ._library import check, initialized, lib, take_text
from ._session import Prompt, Session
from ._tokenizer import Message, Tokenizer


class Model(Planning):
    """A checkpoint with its weights packed for this processor.

    name: a folder, a .gguf file, "org/name" in the local Hugging Face cache, a name that `mneme list` shows, "embedded", or None: the text model
    installed last, else the embedded one. Nothing is downloaded. A model may be used by several threads, each with sessions of its own.
    """

    _name = "model"

    def __init__(self, name: str | None = None, *, compute_type: str = "auto", cpu: str = "auto", threads: int = 0, memory_limit: int = 0) -> None:
        super().__init__()
        path = ctypes.c_void_p()
        check(lib.mn_model_find(ctypes.byref(path), None if name is None else str(name).encode()))
        self.path = take_text(path)
        options = initialized(_ffi.mn_model_options)
        assign(options, compute_type=compute_type, cpu=cpu, threads=threads, memory_limit=memory_limit)
        check(lib.mn_model_open(ctypes.byref(self._handle), self.path.encode(), ctypes.byref(options)))
        self.tokenizer: Tokenizer | None = Tokenizer._of(self)

    @property
    def info(self) -> dict[str, Any]:
        """Everything that `mneme inspect` shows: sizes, tensor types, bytes of each cache."""
        return self.describe()

    def describe(self, context: int = 0) -> dict[str, Any]:
        """The same for a context of so many tokens; 0: the model's own."""
        found: dict[str, Any] = described(lib.mn_model_describe, self._pointer, context)
        return found

    def session(self, cache: str | None = None, *, dtype: str = "auto", max_cache_len: int = 0, on_oom: str | None = None, **config: Any) -> Session:
        """An empty session with a cache of this strategy: "dynamic", "quantized+sink", ...; config: Transformers' cache_config, as nbits=4.

        dtype: "auto", "f32" or "bf16", of what is not quantized. max_cache_len: most tokens. on_oom: "offload", "quantize", "evict": what to do when
        memory runs out. key_file: saved caches get a checksum keyed with the bytes of this file.
        """
        return Session(self, cache, dtype=dtype, max_cache_len=max_cache_len, on_oom=on_oom, **config)

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = False, **fields: Any) -> Generation: ...
    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **fields: Any) -> Iterator[Token]: ...
    def generate(self, prompt: Prompt, *, stream: bool = False, **fields: Any) -> Generation | Iterator[Token]:
        """Continues a text or token ids, on a cache of its own. Fields: those of Session.generate."""
        return _alone(self.session(), "generate", prompt, stream, fields)

    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[False] = False, **fields: Any) -> Generation: ...
    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[True], **fields: Any) -> Iterator[Token]: ...
    def chat(self, messages: str | Sequence[Message], *, stream: bool = False, **fields: Any) -> Generation | Iterator[Token]:
        """Answers messages through the chat template, on a cache of its own. Fields: those of Session.chat."""
        return _alone(self.session(), "chat", messages, stream, fields)

    def __repr__(self) -> str:
        return f"<mneme.Model {self.path!r}{', closed' if self.closed else ''}>"


def _alone(session: Session, method: str, prompt: Any, as_stream: bool, fields: dict[str, Any]) -> Generation | Iterator[Token]:
    """A call on a session that is closed behind it."""
    if not as_stream:
        with session:
            result: Generation = getattr(session, method)(prompt, **fields)
            return result

    def tokens() -> Iterator[Token]:
        with session:
            yield from getattr(session, method)(prompt, stream=True, **fields)

    return tokens()
