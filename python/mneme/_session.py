"""Sessions: sequences of tokens with their caches."""
from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _ffi
from ._arrays import pointer
from ._callbacks import CallOptions, Prompt, prompt_ids, tokenizer_of
from ._generation import Generation, GenerationConfig, Token
from ._information import cache_options, model_info, path_bytes
from ._library import ArgumentError, Busy, Handle, check, ids_array, information, lib
from ._run import SessionRun
from ._session_arrays import AllBusy, SessionArrays, layer_array, legacy_layers
from ._tokenizer import Message

if TYPE_CHECKING:
    from ._arrays import Floats
    from ._model import Model


@dataclass(frozen=True)
class CacheInfo:
    """What a session's cache is and takes."""

    implementation: str
    """The strategy: "dynamic", "quantized+sink", ..."""
    dtype: str
    """Of what is not quantized."""
    tokens: int
    """Those held."""
    bytes: int
    """In memory."""
    offloaded_bytes: int
    """In a file."""
    unique_bytes: int
    """In memory and held by no other session: what closing this one frees."""
    bytes_per_token: int


class Session(SessionArrays):
    """A sequence of tokens with its cache, and the logits after the last one. Used by one thread at a time.

        with model.session("quantized", nbits=4) as session:
            print(session.chat("Name a river.", max_new_tokens=20))
            fork = session.fork()                       # shares pages until one of the two writes
            print(session.cache, fork.token_ids[:5])
            session.save("talk.safetensors")
        session = mneme.Session.load(model, "talk.safetensors")

    Arguments: those of Model.session().
    """

    _name = "session"

    def __init__(self, model: Model, cache: str | None = None, *, dtype: str = "auto", max_cache_len: int = 0, on_oom: str | None = None,
                 **config: Any) -> None:
        super().__init__()
        self.model = model
        options = cache_options(cache, dtype=dtype, max_cache_len=max_cache_len, on_oom=on_oom, **config)
        check(lib.mn_session_open(ctypes.byref(self._handle), model._pointer, ctypes.byref(options)))

    @classmethod
    def _opened(cls, model: Model, handle: ctypes.c_void_p) -> Session:
        session = cls.__new__(cls)
        Handle.__init__(session)
        session.model, session._handle = model, handle
        return session

    @classmethod
    def load(cls, model: Model, path: str, cache: str | None = None, **options: Any) -> Session:
        """A session from a file of save(); it goes on, bit for bit, as if it had never been interrupted.

        - cache: the strategy that the file must have; None: any.
        - options: as of Model.session(), with key_file, whose checksum the file must have.

        RefusedError for the file of another model or cache, and for one that is damaged.
        """
        handle = ctypes.c_void_p()
        check(lib.mn_session_load(ctypes.byref(handle), model._pointer, path_bytes(path), ctypes.byref(cache_options(cache, **options))))
        return cls._opened(model, handle)

    @classmethod
    def open_cached(cls, model: Model, folder: str, token_ids: Sequence[int], cache: str | None = None, **options: Any) -> Session:
        """A session that begins with the longest prefix of token_ids that a saved cache of this folder has, or an empty one.

        cache, options: as of Model.session(); a saved cache of another strategy is none.
        """
        ids, handle = ids_array(token_ids), ctypes.c_void_p()
        check(lib.mn_session_open_cached(ctypes.byref(handle), model._pointer, ctypes.byref(cache_options(cache, **options)), path_bytes(folder), ids,
                                         len(ids)))
        return cls._opened(model, handle)

    @classmethod
    def import_file(cls, model: Model, path: str, cache: str | None = None, *, row: int = 0, token_ids: Sequence[int] | None = None,
                    **options: Any) -> Session:
        """A session from a row of a file in Transformers' legacy format (export); it has no logits until its next step.

        - row: counted from 0; legacy_rows() tells how many there are.
        - token_ids: None: those of the file.
        - cache, options: as of Model.session().
        """
        handle, ids = ctypes.c_void_p(), None if token_ids is None else ids_array(token_ids)
        if row < 0:
            raise ArgumentError(f"row is {row}, allowed: 0 or more")
        check(lib.mn_session_import(ctypes.byref(handle), model._pointer, ctypes.byref(cache_options(cache, **options)), path_bytes(path), row, ids,
                                    0 if ids is None else len(ids)))
        return cls._opened(model, handle)

    @classmethod
    def from_legacy_cache(cls, model: Model, token_ids: Sequence[int], past: Any, cache: str | None = None, *, row: int = 0, **options: Any) -> Session:
        """A session from keys and values of Transformers; it has no logits until its next step.

        - token_ids: those of the row, without padding.
        - past: a DynamicCache or EncoderDecoderCache, or legacy tuples of numpy arrays or tensors, [rows, heads, tokens, dim], which are copied.
        - row: of these arrays.
        - cache, options: as of Model.session().

        ArgumentError names the layer whose array has another shape.
        """
        ids, handle, layers = ids_array(token_ids), ctypes.c_void_p(), legacy_layers(past)
        frames = model_info(model).max_source_positions
        with Session(model) as empty:
            infos = [empty.layer(i) for i in range(empty.num_layers)]
        if len(layers) != len(infos):
            raise ArgumentError(f"past has {len(layers)} layers, the model has {len(infos)}, those of cross attention counted")
        arrays: list[Floats] = []
        for i, (info, pair) in enumerate(zip(infos, layers)):
            n = frames if info.kind == "cross" else len(ids)
            for name, given, dim in (("keys", pair[0], info.k_head_dim), ("values", pair[1], info.v_head_dim)):
                arrays.append(layer_array(given, f"{name} of layer {i}", (info.num_key_value_heads, n, dim), row))
        kind = ctypes.POINTER(ctypes.c_float) * len(layers)
        check(lib.mn_session_import_layers(ctypes.byref(handle), model._pointer, ctypes.byref(cache_options(cache, **options)), ids, len(ids),
                                           kind(*map(pointer, arrays[0::2])), kind(*map(pointer, arrays[1::2])), len(layers)))
        return cls._opened(model, handle)

    def save(self, path: str, *, compress: bool = False) -> None:
        """Writes tokens and cache to one safetensors file: the old file or the new one, never a part.

        compress: by zstd, what shrinks by a tenth or more.
        """
        with Busy(self) as pointer:
            check(lib.mn_session_save(pointer, str(path).encode(), compress))

    def fork(self) -> Session:
        """A copy; pages are shared until one of the two writes to them."""
        handle = ctypes.c_void_p()
        with Busy(self) as pointer:
            check(lib.mn_session_fork(ctypes.byref(handle), pointer))
        return Session._opened(self.model, handle)

    def truncate(self, n_keep: int) -> None:
        """Keeps the first n_keep tokens; negative: drops the last -n_keep. It has no logits until its next step."""
        with Busy(self) as pointer:
            check(lib.mn_session_truncate(pointer, n_keep))

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
        return CacheInfo(info.implementation.decode(), info.dtype.decode(), info.tokens, info.bytes, info.offloaded_bytes,
                         info.unique_bytes, info.bytes_per_token)

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = False, **options: Any) -> Generation: ...
    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **options: Any) -> Iterator[Token]: ...
    def generate(self, prompt: Prompt, *, stream: bool = False, **options: Any) -> Generation | Iterator[Token]:
        """Makes the session hold the prompt, of which it computes what is new, and continues it.

        - prompt: a text, to which the tokenizer's special tokens are added, or token ids.
        - stream: returns an iterator over the tokens instead, which computes while it is read; leaving it ends the generation.
        - options: the fields of GenerationConfig by Transformers' names (generation_fields() lists them), as max_new_tokens=20, and the following.
        - generation_config: a mapping of such fields, or an object with to_dict(); those that are given beside it are above it.
        - on_token: a function, called with each Token; it returns False to end.
        - logits_processor: functions f(input_ids, scores), called for each token after the built-in processors, with arrays of numpy over the library's
          memory: [tokens] int32 and [vocab_size] float32, valid until the function returns. They change scores or return others.
        - stopping_criteria: functions f(input_ids, scores), scores being None; a true result ends the sequence.
        - prefix_allowed_tokens_fn: f(batch_id, input_ids) returns the ids that may be next.
        - assistant_model: a Model that drafts tokens. negative_prompt: a text or ids, for guidance_scale.
        - top_logprobs: the log-probabilities of each token and of this many best ones. output_scores, output_logits: arrays of numpy in the result.
        - return_sessions: each sequence of the result has its session, which can be forked, saved and gone on with.
        - progress: True shows how far a long prompt is, with tqdm or as a line at a terminal; or f(done, total), in tokens.

        What a callback raises ends the generation and is raised here, as is KeyboardInterrupt. A MnemeWarning tells of options without effect;
        ArgumentError names options that are unknown, out of range, or contradict each other, before anything is computed.
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
        """Answers messages through the chat template. Of the conversation so far the session computes what is new.

        - messages: a list of {"role": "user", "content": "..."}, the whole conversation; a str is one message of the user.
        - options: tools, functions that the template shows, and those of generate(). An answer without max_new_tokens or max_length may take all of the
          model's context.

        UnsupportedError for a model without a chat template.
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
            info = model_info(self.model)
            prepared.config.set("max_new_tokens", max(info.max_position_embeddings - len(prompt), 1) if info.max_position_embeddings else 4096)
        return prepared

    def __repr__(self) -> str:
        return "<mneme.Session, closed>" if self.closed else f"<mneme.Session of {len(self)} tokens, {self.cache.implementation}>"


def select_sessions(sessions: Sequence[Session], index: Sequence[int]) -> list[Session]:
    """The sessions of these indices, as beam search and batches need them: those that are repeated are forked, those that are left out are closed."""
    chosen = ids_array(index)
    with AllBusy(sessions) as busy:
        rows = (ctypes.c_void_p * max(len(sessions), len(chosen), 1))(*busy)
        check(lib.mn_sessions_select(rows, len(sessions), chosen, len(chosen)))
        own = {session._handle.value: session for session in sessions}
        for address in set(own) - set(rows[: len(chosen)]):
            own[address]._handle = ctypes.c_void_p()  # closed by the call
    selected: list[Session] = []
    for at, address in zip(index, rows):
        session = own.pop(address, None)
        selected.append(session or Session._opened(sessions[at].model, ctypes.c_void_p(address)))
    return selected
