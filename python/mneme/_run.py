"""Runs generations: at once, as an iterator, or as an asynchronous iterator."""
from __future__ import annotations

import ctypes
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from . import _ffi
from ._arrays import array_copy
from ._callbacks import CallOptions, Callbacks, prompt_ids
from ._generation import GeneratedSequence, Generation, GenerationConfig, Token, sequence_of
from ._information import model_info
from ._interrupt import interrupts, interruptible, kept
from ._library import ArgumentError, Busy, Handle, check, initialized, lib

if TYPE_CHECKING:
    from ._model import Model
    from ._session import Session


def take_session(model: Model, result: Any, i: int) -> Session:
    """The session of sequence i, which a generation with keep_sessions has."""
    from ._session import Session

    handle = ctypes.c_void_p()
    check(lib.mn_generation_take_session(result, i, ctypes.byref(handle)))
    return Session._opened(model, handle)


class Stepped(Handle):
    """A generation in C that is stepped."""

    _name = "generator"


class Run:
    """One generation that is prepared: checked, but not begun."""

    whole: Any  # the function in C of the whole generation
    opening: Any  # that of one that is stepped

    def __init__(self, model: Model, config: GenerationConfig, options: CallOptions) -> None:
        self.model, self.config, self.options = model, config, options
        self.session: Session | None = None
        self.is_own = False  # the session, which is closed behind the generation
        self.negative = None if options.negative_prompt is None else prompt_ids(model, options.negative_prompt)

    def arguments(self) -> AbstractContextManager[tuple[Any, ...]]:
        """Those of the functions in C before the options; what they name is kept from others until the context is left."""
        raise NotImplementedError

    def run(self, on_token: Callable[[Token], Any] | None = None, is_left: Callable[[], bool] = lambda: False) -> Generation:
        """The generation, which ends when on_token returns False or is_left() holds. What a callback raises is raised here."""
        callbacks = Callbacks(self.options, on_token, is_left)
        options, result = self._options(), ctypes.POINTER(_ffi.mn_generation)()
        callbacks.fill(options)
        try:
            with self.arguments() as given, interruptible(callbacks.keep):
                status = self.whole(*given, ctypes.byref(options), ctypes.byref(result))
            callbacks.raise_first()
            check(status)
            return self._result(result)
        finally:
            callbacks.progress.close()
            lib.mn_generation_close(ctypes.byref(result))
            self._close_own()

    def check(self) -> None:
        """Raises ArgumentError where two settings contradict each other, and warns of those without effect."""
        options = self._options()
        if self.session is not None:
            options.session = self.session._pointer
        self.config._warn(options)

    def _options(self) -> Any:
        options = initialized(_ffi.mn_generate_options)
        self.options.fill(options)
        if self.negative is not None:
            options.negative_prompt, options.n_negative_prompt = self.negative, len(self.negative)
        return options

    def _result(self, result: Any) -> Generation:
        g, vocab_size, sequences = result.contents, model_info(self.model).vocab_size, list[GeneratedSequence]()
        for i in range(g.n_sequences):
            s = g.sequences[i].contents
            scores, logits = array_copy(s.scores, s.n_ids, vocab_size), array_copy(s.logits, s.n_ids, vocab_size)
            sequences.append(sequence_of(s, self.options.n_logprobs, scores, logits, self._session_of(result, i)))
        shape = g.n_steps, g.n_beams, vocab_size
        return Generation(sequences, g.seed, g.prompt_ms, g.predicted_ms, array_copy(g.beam_scores, *shape), array_copy(g.beam_logits, *shape))

    def _session_of(self, result: Any, i: int) -> Session | None:
        """With return_sessions, the session of sequence i. Sequence 0 of a generation that a session goes on with is that session."""
        if not self.options.return_sessions:
            return None
        if i == 0 and self.session is not None:
            self.is_own = False
            return self.session
        return take_session(self.model, result, i)

    def give(self, as_stream: bool) -> Generation | Iterator[Token]:
        """What generate() returns."""
        if as_stream:
            self._check_stream()
        self.check()
        return self._stream() if as_stream else self.run(self.options.on_token)

    def give_async(self) -> AsyncIterator[Token]:
        """What agenerate() returns."""
        self._check_stream()
        self.check()
        return self._astream()

    def _check_stream(self) -> None:
        if self.options.on_token is not None:
            raise ArgumentError("on_token has no effect in a stream: the iterator yields the tokens")
        if self.options.return_sessions:
            raise ArgumentError("return_sessions has no effect in a stream, which yields tokens: generate with a session")

    def _stream(self) -> Iterator[Token]:
        """The tokens as they are asked for: C computes between them, in the thread that reads. Leaving the iterator ends the generation."""
        tokens, generator, is_done = list[Token](), Stepped(), ctypes.c_bool()
        callbacks = Callbacks(self.options, tokens.append)
        options = self._options()
        callbacks.fill(options)
        try:
            with self.arguments() as given, interrupts():
                check(self.opening(ctypes.byref(generator._handle), *given, ctypes.byref(options)))
                try:
                    while not is_done.value:
                        with kept(callbacks.keep):
                            status = lib.mn_generator_step(generator._pointer, ctypes.byref(is_done))
                        yield from tokens
                        tokens.clear()
                        callbacks.raise_first()
                        check(status)
                finally:
                    generator.close()
        finally:
            callbacks.progress.close()
            self._close_own()

    def _close_own(self) -> None:
        if self.is_own and self.session is not None:
            self.session.close()

    def _work(self, put: Callable[[Token | None], Any]) -> tuple[threading.Thread, threading.Event, list[BaseException]]:
        """A thread that puts every token, then None; it ends early when the event is set. The list: what was raised, for the reader to take out."""
        left, raised = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                self.run(put, left.is_set)
            except BaseException as error:
                raised.append(error)
            put(None)

        worker = threading.Thread(target=work, name="mneme", daemon=True)
        worker.start()
        return worker, left, raised

    async def _astream(self) -> AsyncIterator[Token]:
        """The same for asyncio, from a thread of its own: leaving the loop or cancelling the task ends the generation."""
        import asyncio

        loop = asyncio.get_running_loop()
        tokens: asyncio.Queue[Token | None] = asyncio.Queue()

        def put(token: Token | None) -> bool:
            try:
                loop.call_soon_threadsafe(tokens.put_nowait, token)
                return True
            except RuntimeError:  # the loop is closed
                return False

        worker, left, raised = self._work(put)
        has_ended = False
        try:
            while token := await tokens.get():
                yield token
            has_ended = True
            if raised:
                raise raised.pop()
        finally:
            left.set()
            while not has_ended:  # the thread ends after one step at most
                has_ended = await tokens.get() is None
            worker.join()  # it has nothing to do any more


class SessionRun(Run):
    """A generation that a session goes on with."""

    whole, opening = lib.mn_generate, lib.mn_generator_open

    def __init__(self, session: Session, ids: Any, config: GenerationConfig, options: CallOptions) -> None:
        super().__init__(session.model, config, options)
        self.session, self.ids = session, ids

    @contextmanager
    def arguments(self) -> Generator[tuple[Any, ...], Any, Any]:
        assert self.session is not None
        with Busy(self.session) as pointer:
            yield pointer, self.ids, len(self.ids), self.config._pointer


class BatchRun(Run):
    """Prompts that are computed together, each as it would be alone."""

    whole, opening = lib.mn_generate_batch, lib.mn_generator_open_batch

    def __init__(self, model: Model, prompts: Any, prefix: Handle | None, config: GenerationConfig, options: CallOptions) -> None:
        super().__init__(model, config, options)
        self.prefix, self.ids = prefix, [prompt_ids(model, prompt) for prompt in prompts]

    @contextmanager
    def arguments(self) -> Generator[tuple[Any, ...], Any, Any]:
        rows = (_ffi.mn_batch_row * len(self.ids))()
        for row, ids in zip(rows, self.ids):
            row.size, row.prompt, row.n_prompt = ctypes.sizeof(row), ids, len(ids)
        with nullcontext() if self.prefix is None else Busy(self.prefix) as pointer:
            for row in rows:
                row.prefix = pointer
            yield self.model._pointer, None, rows, len(rows), self.config._pointer
