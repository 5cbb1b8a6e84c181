"""Sessions: sequences of tokens with their caches."""
from __future__ import annotations

import ctypes
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _ffi
from ._callbacks import CallOptions, Prompt, prompt_ids, tokenizer_of
from ._generation import Generation, GenerationConfig, Token
from ._library import Busy, Handle, check, ids_array, information, initialized, lib
from ._run import SessionRun
from ._tokenizer import Message

if TYPE_CHECKING:
    from ._model import Model


@dataclass(frozen=True)
class CacheInfo:
    """What a session's cache is and takes."""

    implementation: str
    dtype: str
    tokens: int
    bytes: int
    offloaded_bytes: int
    bytes_per_token: int


class Session(Handle):
    """A sequence of tokens with its cache. Used by one thread at a time."""

    _name = "session"

    def __init__(self, model: Model, cache: str | None = None, *, dtype: str = "auto", max_cache_len: int = 0, on_oom: str | None = None,
                 **config: Any) -> None:
        super().__init__()
        self.model = model
        options = initialized(_ffi.mn_cache_options)
        options.implementation = None if cache is None else cache.encode()
        options.config = json.dumps(config).encode() if config else None
        options.dtype, options.max_cache_len = dtype.encode(), max_cache_len
        options.on_oom = None if on_oom is None else on_oom.encode()
        check(lib.mn_session_open(ctypes.byref(self._handle), model._pointer, ctypes.byref(options)))

    @classmethod
    def _opened(cls, model: Model, handle: ctypes.c_void_p) -> Session:
        session = cls.__new__(cls)
        Handle.__init__(session)
        session.model, session._handle = model, handle
        return session

    @classmethod
    def load(cls, model: Model, path: str) -> Session:
        """A session from a file of save(); it goes on, bit for bit, as if it had never been interrupted."""
        handle = ctypes.c_void_p()
        check(lib.mn_session_load(ctypes.byref(handle), model._pointer, str(path).encode(), None))
        return cls._opened(model, handle)

    def save(self, path: str, *, compress: bool = False) -> None:
        """Writes tokens and cache to one safetensors file: the old file or the new one, never a part."""
        with Busy(self) as pointer:
            check(lib.mn_session_save(pointer, str(path).encode(), compress))

    def fork(self) -> Session:
        """A copy; pages are shared until one of the two writes to them."""
        handle = ctypes.c_void_p()
        with Busy(self) as pointer:
            check(lib.mn_session_fork(ctypes.byref(handle), pointer))
        return Session._opened(self.model, handle)

    def truncate(self, n_keep: int) -> None:
        """Keeps the first n_keep tokens; negative: drops the last -n_keep."""
        with Busy(self) as pointer:
            check(lib.mn_session_truncate(pointer, n_keep))

    def step(self, token_ids: Sequence[int]) -> None:
        """Appends tokens: computes them into the cache."""
        ids = ids_array(token_ids)
        with Busy(self) as pointer:
            check(lib.mn_session_step(pointer, ids, len(ids), None))

    def __len__(self) -> int:
        return int(lib.mn_session_length(self._pointer))

    @property
    def token_ids(self) -> list[int]:
        """The tokens held."""
        with Busy(self) as pointer:
            ids: list[int] = lib.mn_session_ids(pointer)[: len(self)]
            return ids

    @property
    def cache(self) -> CacheInfo:
        """The cache: its strategy, tokens and bytes."""
        info = information(_ffi.mn_cache_info)
        with Busy(self) as pointer:
            check(lib.mn_session_cache(pointer, ctypes.byref(info)))
        return CacheInfo(info.implementation.decode(), info.dtype.decode(), info.tokens, info.bytes, info.offloaded_bytes, info.bytes_per_token)

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = False, **options: Any) -> Generation: ...
    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **options: Any) -> Iterator[Token]: ...
    def generate(self, prompt: Prompt, *, stream: bool = False, **options: Any) -> Generation | Iterator[Token]:
        """Makes the session hold the prompt, of which it computes what is new, and continues it.

        prompt: a text, to which the tokenizer's special tokens are added, or token ids. stream: the tokens as an iterator instead; leaving it ends
        the generation. Options, by Transformers' names, are the fields of GenerationConfig and:
        generation_config: a mapping of such fields, or an object with to_dict(); those that are given beside it are above it.
        on_token: called with each Token; returns False to end. What it or another callback raises ends the generation and is raised here.
        logits_processor: functions f(input_ids, scores), called for each token after the built-in processors, with arrays of numpy over the
        library's memory: one dimension, valid until the function returns. They change scores or return others.
        stopping_criteria: functions f(input_ids, scores), scores being None; a true result ends the sequence.
        prefix_allowed_tokens_fn: f(batch_id, input_ids) returns the ids that may be next.
        assistant_model: a Model that drafts tokens. negative_prompt: a text or ids, for guidance_scale.
        top_logprobs: log-probabilities of each token and of this many best ones. output_scores, output_logits: arrays of numpy in the result.
        progress: True shows how far a long prompt is, with tqdm or as a line at a terminal; or f(done, total).
        """
        return self._prepare(prompt, options).give(stream)

    def agenerate(self, prompt: Prompt, **options: Any) -> AsyncIterator[Token]:
        """generate() for asyncio: `async for token in session.agenerate(...)`. Leaving the loop or cancelling the task ends the generation."""
        return self._prepare(prompt, options).give_async()

    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[False] = False, **options: Any) -> Generation: ...
    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[True], **options: Any) -> Iterator[Token]: ...
    def chat(self, messages: str | Sequence[Message], *, stream: bool = False, **options: Any) -> Generation | Iterator[Token]:
        """Answers messages, a str being one of the user, through the chat template. Of the conversation so far the session computes what is new.

        Options: tools, functions that the template shows, and those of generate(). An answer without max_new_tokens or max_length may take all of
        the model's context.
        """
        return self._prepare_chat(messages, options).give(stream)

    def achat(self, messages: str | Sequence[Message], **options: Any) -> AsyncIterator[Token]:
        """chat() for asyncio, as agenerate()."""
        return self._prepare_chat(messages, options).give_async()

    def _prepare(self, prompt: Prompt, options: dict[str, Any]) -> SessionRun:
        call = CallOptions.take(options)
        return SessionRun(self, prompt_ids(self.model, prompt), GenerationConfig(self.model, options.pop("generation_config", None), **options), call)

    def _prepare_chat(self, messages: str | Sequence[Message], options: dict[str, Any]) -> SessionRun:
        tokenizer = tokenizer_of(self.model)
        text = tokenizer.apply_chat_template(messages, tools=options.pop("tools", None)).encode()
        ids, n, held = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t(), len(self)
        with Busy(self) as pointer:
            check(lib.mn_tokenize_after(tokenizer._pointer, lib.mn_session_ids(pointer), held, text, len(text), 0, ctypes.byref(ids),
                                        ctypes.byref(n), None))
        prompt = ids[: n.value]
        lib.mn_free(ids)
        prepared = self._prepare(prompt, options)
        if not prepared.config.has_limit():
            info = information(_ffi.mn_model_info)
            check(lib.mn_model_get_info(self.model._pointer, ctypes.byref(info)))
            prepared.config.set("max_new_tokens", max(info.max_position_embeddings - len(prompt), 1) if info.max_position_embeddings else 4096)
        return prepared

    def __repr__(self) -> str:
        return "<mneme.Session, closed>" if self.closed else f"<mneme.Session of {len(self)} tokens, {self.cache.implementation}>"
