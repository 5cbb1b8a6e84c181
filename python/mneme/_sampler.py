"""Choosing tokens, for programs with loops of their own."""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ._arrays import empty, floats, pointer
from ._generation import GenerationConfig
from ._information import model_info
from ._library import ArgumentError, Busy, Handle, check, ids_array, lib

if TYPE_CHECKING:
    from ._arrays import Floats
    from ._model import Model


class Sampler(Handle):
    """Chooses tokens from logits as generate() does in greedy search and sampling, for loops of your own.

        prompt = tokenizer.encode("The sea is")
        session, sampler = model.session(), mneme.Sampler(model, prompt, do_sample=True, temperature=0.8, seed=7)
        session.step(prompt)
        for _ in range(5):
            token = sampler.choose(session.logits)
            sampler.accept(token)
            session.step([token])
        print(tokenizer.decode(session.token_ids))

    - prompt: the tokens before the first chosen one, which some processors read.
    - generation_config, fields: as of Session.generate(). ArgumentError for those of other searches, as num_beams.
    """

    _name = "sampler"

    def __init__(self, model: Model, prompt: Sequence[int], *, generation_config: Any = None, **fields: Any) -> None:
        super().__init__()
        ids = ids_array(prompt)
        self._vocab_size = int(model_info(model).vocab_size)
        with GenerationConfig(model, generation_config, **fields) as config:
            config._warn()
            check(lib.mn_sampler_open(ctypes.byref(self._handle), model._pointer, config._pointer, ids, len(ids)))

    @overload
    def choose(self, logits: Any, *, return_scores: Literal[False] = False) -> int: ...
    @overload
    def choose(self, logits: Any, *, return_scores: Literal[True]) -> tuple[int, Floats]: ...
    def choose(self, logits: Any, *, return_scores: bool = False) -> int | tuple[int, Floats]:
        """The next token after the prompt and those accepted; a repeated call returns the same one.

        - logits: [vocab_size], of which it makes no change: an array, a tensor or a list.
        - return_scores: returns the processed scores too, float32 [vocab_size].
        """
        array, chosen = floats(logits, "logits"), ctypes.c_int32()
        if array.shape != (self._vocab_size,):
            raise ArgumentError(f"logits have the shape {array.shape}, allowed: ({self._vocab_size},)")
        scores = empty([self._vocab_size]) if return_scores else None
        with Busy(self) as handle:
            check(lib.mn_sampler_choose(handle, pointer(array), None if scores is None else pointer(scores), ctypes.byref(chosen)))
        return chosen.value if scores is None else (chosen.value, scores)

    def accept(self, token_id: int) -> None:
        """Adds a token to the text: the one that was chosen, or another."""
        with Busy(self) as handle:
            check(lib.mn_sampler_accept(handle, ids_array([token_id])[0]))

    @property
    def seed(self) -> int:
        """The one in use: the configuration's, or a random one."""
        return int(lib.mn_sampler_seed(self._pointer))
