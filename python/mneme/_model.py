"""Models."""
from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, overload

from . import _ffi
from ._callbacks import CallOptions, Prompt
from ._generation import Generation, GenerationConfig, Token
from ._information import Planning, assign, described
from ._library import check, initialized, lib, take_text
from ._run import BatchRun, Run
from ._session import Session
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
    def generate(self, prompt: Prompt | Sequence[Prompt], *, stream: Literal[False] = False, prefix: Session | None = None,
                 **options: Any) -> Generation: ...
    @overload
    def generate(self, prompt: Prompt | Sequence[Prompt], *, stream: Literal[True], prefix: Session | None = None,
                 **options: Any) -> Iterator[Token]: ...
    def generate(self, prompt: Prompt | Sequence[Prompt], *, stream: bool = False, prefix: Session | None = None,
                 **options: Any) -> Generation | Iterator[Token]:
        """Continues a text or token ids, on a cache of its own. Options: those of Session.generate.

        A list of texts, or of lists of ids, is a batch: its rows are computed together, each exactly as it would be alone. Token.row and
        GeneratedSequence.row tell the row, Generation.rows has the sequences of each. prefix: every row begins as a fork of this session, which
        stays as it is, and of its prompt computes what follows the tokens that both have.
        """
        return self._prepare(prompt, prefix, options).give(stream)

    def agenerate(self, prompt: Prompt | Sequence[Prompt], *, prefix: Session | None = None, **options: Any) -> AsyncIterator[Token]:
        """generate() for asyncio: `async for token in model.agenerate(...)`. Leaving the loop or cancelling the task ends the generation."""
        return self._prepare(prompt, prefix, options).give_async()

    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[False] = False, **options: Any) -> Generation: ...
    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[True], **options: Any) -> Iterator[Token]: ...
    def chat(self, messages: str | Sequence[Message], *, stream: bool = False, **options: Any) -> Generation | Iterator[Token]:
        """Answers messages through the chat template, on a cache of its own. Options: those of Session.chat."""
        return self._alone("_prepare_chat", messages, options).give(stream)

    def achat(self, messages: str | Sequence[Message], **options: Any) -> AsyncIterator[Token]:
        """chat() for asyncio, as agenerate()."""
        return self._alone("_prepare_chat", messages, options).give_async()

    def _prepare(self, prompt: Any, prefix: Session | None, options: dict[str, Any]) -> Run:
        is_batch = not isinstance(prompt, str) and hasattr(prompt, "__len__") and len(prompt) > 0 and hasattr(prompt[0], "__len__")
        if not is_batch and prefix is None:
            return self._alone("_prepare", prompt, options)
        call = CallOptions.take(options)
        config = GenerationConfig(self, options.pop("generation_config", None), **options)
        return BatchRun(self, prompt if is_batch else [prompt], prefix, config, call)

    def _alone(self, prepare: str, prompt: Any, options: dict[str, Any]) -> Run:
        """On a session that is closed behind it."""
        session = self.session()
        try:
            run: Run = getattr(session, prepare)(prompt, options)
        except BaseException:
            session.close()
            raise
        run.is_own = True
        return run

    def __repr__(self) -> str:
        return f"<mneme.Model {self.path!r}{', closed' if self.closed else ''}>"
