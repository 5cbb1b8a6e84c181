"""Models."""
from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _ffi
from ._arrays import empty, numpy_module, pointer
from ._callbacks import CallOptions, Prompt, prompt_ids
from ._generation import Generation, GenerationConfig, Token
from ._information import Planning, assign, described, model_info, path_bytes
from ._library import check, initialized, lib, take_text
from ._run import BatchRun, Run
from ._session import Session
from ._tokenizer import Message, Tokenizer

if TYPE_CHECKING:
    from ._arrays import Floats


def _is_batch(prompt: Any) -> bool:
    """Whether these are several texts or lists of ids."""
    return not isinstance(prompt, str) and hasattr(prompt, "__len__") and len(prompt) > 0 and hasattr(prompt[0], "__len__")


class Model(Planning):
    """A checkpoint with its weights packed for this processor.

        model = mneme.Model("smollm2")
        print(model.chat("What is the capital of France?"))
        for token in model.generate("The sea", max_new_tokens=20, do_sample=True, seed=7, stream=True):
            print(token, end="", flush=True)

    - name: a folder, a .gguf file, "org/name" in the local Hugging Face cache, a name that `mneme list` shows, "embedded", or None: the text model
      installed last, else the embedded one. Nothing is downloaded.
    - compute_type: the type in which activations are multiplied: "f32" (the reference), "bf16", "int8", "int8_a8", or "auto".
    - cpu: the level of the kernels: "scalar", "avx2", "avx512", "avx512_dot", "neon", or "auto".
    - threads: computing threads, at most 256; 0: the cores that the process may use.
    - memory_limit: bytes for weights and caches together; 0: the available memory.
    - packed_dir: a folder of save_packed(), whose files of this model are mapped in place of packing. Damaged ones are passed over.

    Several threads may use a model, each with sessions of its own; what they compute takes turns. NotFoundError lists the places searched,
    OutOfMemoryError comes before anything large is allocated, FormatError and UnsupportedError say what a file has.
    """

    _name = "model"

    def __init__(self, name: str | None = None, *, compute_type: str = "auto", cpu: str = "auto", threads: int = 0, memory_limit: int = 0,
                 packed_dir: str | None = None) -> None:
        super().__init__()
        path = ctypes.c_void_p()
        check(lib.mn_model_find(ctypes.byref(path), None if name is None else str(name).encode()))
        self.path: str = take_text(path)
        """Of the folder or file; "embedded"."""
        options = initialized(_ffi.mn_model_options)
        assign(options, compute_type=compute_type, cpu=cpu, threads=threads, memory_limit=memory_limit)
        if packed_dir is not None:
            options.packed_dir = path_bytes(packed_dir)
        check(lib.mn_model_open(ctypes.byref(self._handle), self.path.encode(), ctypes.byref(options)))
        self.tokenizer: Tokenizer | None = Tokenizer._of(self)
        """Closed with the model; None: the checkpoint has none."""

    def save_packed(self, folder: str) -> int:
        """Writes the packed weights to a folder, which is made, for Model(packed_dir=...): about the bytes of the checkpoint, which are returned."""
        n_bytes = ctypes.c_uint64()
        check(lib.mn_model_save_packed(self._pointer, path_bytes(folder), ctypes.byref(n_bytes)))
        return n_bytes.value

    @property
    def info(self) -> dict[str, Any]:
        """Everything that `mneme inspect` shows, as a mapping: sizes, tensor types, bytes of each cache. mneme.inspect() has types."""
        return self.describe()

    def describe(self, context: int = 0) -> dict[str, Any]:
        """What `info` has, for a context of so many tokens; 0: the model's own."""
        found: dict[str, Any] = described(lib.mn_model_describe, self._pointer, context)
        return found

    def session(self, cache: str | None = None, *, dtype: str = "auto", max_cache_len: int = 0, on_oom: str | None = None, **config: Any) -> Session:
        """An empty session.

        - cache: a strategy that cache_strategies() lists, or several joined by "+": "dynamic", "static", "quantized+sink", ... None: what the first
          generation requests (cache_implementation), else "dynamic".
        - dtype: the type of keys and values that are not quantized: "auto", "f32" or "bf16".
        - max_cache_len: most tokens; a static cache allocates them at once. 0: no limit. A token more is a LimitError.
        - on_oom: what to do when memory runs out: "offload", "quantize", "evict" (drop old tokens), or None: OutOfMemoryError.
        - config: Transformers' cache_config, as nbits=4 or window_length=1024; and page_tokens, prefill_chunk, and key_file, a file with whose bytes the
          checksum of saved caches is keyed.

        ArgumentError names what is unknown or contradicts another, UnsupportedError what this model cannot have.
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
        """Continues a text or token ids, on a cache of its own, which is closed behind it.

        - prompt: a text, to which the tokenizer's special tokens are added, or token ids. A list of texts, or of lists of ids, is a batch: its rows are
          computed together, each exactly as it would be alone. Token.row and GeneratedSequence.row tell the row, Generation.rows has the sequences of
          each.
        - stream: returns an iterator over the tokens instead, which computes while it is read; leaving it ends the generation.
        - prefix: every row begins as a fork of this session, which stays as it is, and of its prompt computes what follows the tokens that both have.
        - options: those of Session.generate().
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
        """Answers messages through the chat template, on a cache of its own. Messages and options: those of Session.chat()."""
        return self._alone("_prepare_chat", messages, options).give(stream)

    def achat(self, messages: str | Sequence[Message], **options: Any) -> AsyncIterator[Token]:
        """chat() for asyncio, as agenerate()."""
        return self._alone("_prepare_chat", messages, options).give_async()

    @overload
    def embed(self, texts: Prompt | Sequence[Prompt], *, pooling: Literal["mean", "cls", "last"] = "mean", normalize: bool = True) -> Floats: ...
    @overload
    def embed(self, texts: Prompt | Sequence[Prompt], *, pooling: Literal["none"], normalize: bool = True) -> Floats | list[Floats]: ...
    def embed(self, texts: Prompt | Sequence[Prompt], *, pooling: str = "mean", normalize: bool = True) -> Floats | list[Floats]:
        """Embeddings: the hidden states behind the last norm (Transformers' last_hidden_state), pooled, as arrays of numpy, float32.

        texts: a text or token ids: the result is [hidden_size]; a list of them: [n_texts, hidden_size], each row as for its text alone. pooling:
        "mean" of the tokens, "cls": the first token, "last": the last one; "none": all tokens, [n_ids, hidden_size], of several texts a list of such
        arrays. normalize: rows are divided by their L2 norm. Special tokens are added to a text and are tokens like the others.
        """
        rows = [self._embed(text, pooling, normalize) for text in (texts if _is_batch(texts) else [texts])]
        if not _is_batch(texts):
            return rows[0]
        stacked: Floats | list[Floats] = rows if pooling == "none" else numpy_module().stack(rows)
        return stacked

    def _embed(self, text: Any, pooling: str, normalize: bool) -> Floats:
        ids, width = prompt_ids(self, text), model_info(self).hidden_size
        options = initialized(_ffi.mn_embed_options)
        assign(options, pooling=pooling, normalize=normalize)
        out = empty([len(ids), width] if pooling == "none" else [width])
        check(lib.mn_model_embed(self._pointer, ids, len(ids), ctypes.byref(options), pointer(out)))
        return out

    def _prepare(self, prompt: Any, prefix: Session | None, options: dict[str, Any]) -> Run:
        is_batch = _is_batch(prompt)
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
