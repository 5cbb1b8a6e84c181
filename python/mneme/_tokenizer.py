"""Text to token ids and back."""
from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import _ffi
from ._library import ArgumentError, Busy, Handle, check, ids_array, initialized, lib, take_text

Message = Mapping[str, Any]
"""{"role": "user", "content": "..."}, as chat templates take them."""


class Tokenizer(Handle):
    """The tokenizer of a checkpoint, by the path of its folder or .gguf file, of which it reads no weights; a model has its own.

        tokenizer = model.tokenizer                     # or mneme.Tokenizer(path)
        ids = tokenizer.encode("The sea is wide.")
        print(ids, tokenizer.decode(ids), [tokenizer.convert_ids_to_tokens(i) for i in ids])
        print(tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}]))

    len() is the size of the vocabulary.
    """

    _name = "tokenizer"

    def __init__(self, path: str) -> None:
        super().__init__()
        self._model: Handle | None = None
        check(lib.mn_tokenizer_open(ctypes.byref(self._handle), str(path).encode()))

    @classmethod
    def _of(cls, model: Handle) -> Tokenizer | None:
        """The model's own, which is closed with it."""
        pointer = lib.mn_model_tokenizer(model._pointer)
        if not pointer:
            return None
        own = cls.__new__(cls)
        Handle.__init__(own)
        own._model = model
        own._handle = ctypes.c_void_p(pointer)
        return own

    @property
    def _pointer(self) -> ctypes.c_void_p:
        if self._model is not None:
            self._model._pointer
        return super()._pointer

    def close(self) -> None:
        if self._model is None:
            super().close()
        self._handle = ctypes.c_void_p()

    def __len__(self) -> int:
        return int(lib.mn_vocab_size(self._pointer))

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special_tokens: bool = True) -> list[int]:
        """The token ids of a text.

        - add_special_tokens: those that the tokenizer puts around a text, as bos.
        - parse_special_tokens: False: special tokens that are spelled in the text are ordinary text.
        """
        flags = (_ffi.MN_ADD_SPECIAL if add_special_tokens else 0) | (0 if parse_special_tokens else _ffi.MN_NO_PARSE)
        ids, n, data = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t(), text.encode()
        check(lib.mn_tokenize(self._pointer, data, len(data), flags, ctypes.byref(ids), ctypes.byref(n)))
        try:
            return ids[: n.value]
        finally:
            lib.mn_free(ids)

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids; ArgumentError for one out of range."""
        ids = ids_array([token_ids] if isinstance(token_ids, int) else token_ids)
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        flags = _ffi.MN_SKIP_SPECIAL if skip_special_tokens else 0
        check(lib.mn_detokenize(self._pointer, ids, len(ids), flags, ctypes.byref(text), ctypes.byref(n)))
        return take_text(text, n.value)

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """The bytes that a token adds to a text, perhaps a part of a character; none for special tokens. first: the text begins with it."""
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        check(lib.mn_token_bytes(self._pointer, ids_array([token_id])[0], first, ctypes.byref(text), ctypes.byref(n)))
        data = ctypes.string_at(text.value or 0, n.value)
        lib.mn_free(text)
        return data

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        """The string of a token in the vocabulary; None out of range."""
        piece = lib.mn_token_piece(self._pointer, token_id)
        return None if piece is None else str(piece, "utf-8", "surrogateescape")

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The token with this string; None: there is none."""
        found = int(lib.mn_token_id(self._pointer, token.encode("utf-8", "surrogateescape")))
        return None if found < 0 else found

    def _special(self, name: str) -> int | None:
        found = int(lib.mn_special_token_id(self._pointer, name.encode()))
        return None if found < 0 else found

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text; None: there is none."""
        return self._special("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text; None: there is none."""
        return self._special("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The filler token; None: there is none."""
        return self._special("pad_token")

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template; None: the checkpoint has none."""
        text = lib.mn_chat_template(self._pointer, False)
        return None if text is None else str(text, "utf-8")

    def apply_chat_template(self, messages: str | Sequence[Message], *, add_generation_prompt: bool = True,
                            tools: Sequence[Mapping[str, Any]] | None = None, documents: Sequence[Mapping[str, Any]] | None = None,
                            **template_kwargs: Any) -> str:
        """Messages rendered through the chat template, as a text.

        - messages: a list of {"role": "user", "content": "..."}; a str is one message of the user.
        - add_generation_prompt: ends with the beginning of an answer.
        - tools: functions that the model may call; documents: what it may quote from, a list of {"title", "text"}.
        - template_kwargs: variables of the template, as enable_thinking=False.

        UnsupportedError without a template; ArgumentError with the template's own message.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        data = _json_text("messages", list(messages))
        options = initialized(_ffi.mn_chat_options)
        options.add_generation_prompt = add_generation_prompt
        options.tools = None if tools is None else _json_text("tools", list(tools))
        options.documents = None if documents is None else _json_text("documents", list(documents))
        options.template_kwargs = _json_text("template_kwargs", template_kwargs) if template_kwargs else None
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        check(lib.mn_chat_render_with(self._pointer, data, len(data), ctypes.byref(options), ctypes.byref(text), ctypes.byref(n)))
        return take_text(text, n.value)


class Detokenizer(Handle):
    """Turns token ids into text as they come: what push() and finish() return, joined, is what decode() returns for all ids."""

    _name = "detokenizer"

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = False) -> None:
        super().__init__()
        check(lib.mn_detokenizer_open(ctypes.byref(self._handle), tokenizer._pointer, _ffi.MN_SKIP_SPECIAL if skip_special_tokens else 0))

    def push(self, token_ids: int | Sequence[int]) -> str:
        """The text that these tokens complete: whole characters, perhaps none."""
        ids = ids_array([token_ids] if isinstance(token_ids, int) else token_ids)
        return self._piece(lib.mn_detokenizer_push, ids, len(ids))

    def finish(self) -> str:
        """The text that was held back; then the next sequence may begin."""
        return self._piece(lib.mn_detokenizer_finish)

    def _piece(self, function: Any, *arguments: Any) -> str:
        text, n = ctypes.c_char_p(), ctypes.c_size_t()
        with Busy(self) as handle:
            check(function(handle, *arguments, ctypes.byref(text), ctypes.byref(n)))
            return ctypes.string_at(text, n.value).decode()


def _json_text(name: str, value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name} cannot be written as JSON: {error}") from None
