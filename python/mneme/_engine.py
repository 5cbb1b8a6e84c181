"""Many requests computed together as they come and go."""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import _ffi
from ._callbacks import Prompt
from ._generation import Generation, GenerationConfig, Token, sequence_of, token_of
from ._information import assign, cache_options, path_bytes
from ._interrupt import interruptible
from ._library import ArgumentError, Busy, Handle, MnemeError, check, ids_array, information, initialized, lib
from ._model import Model
from ._run import take_session
from ._session import Session
from ._session_arrays import AllBusy


@dataclass(frozen=True)
class EngineInfo:
    """What an engine has and did since it was opened."""

    num_requests_running: int
    num_requests_waiting: int
    n_preemptions: int
    """How often a request gave its memory to others, to be recomputed."""
    cache_bytes: int
    """Resident bytes of all caches of the model, as memory_limit counts them."""
    memory_limit: int
    """0: none."""
    kept_bytes: int
    """Bytes of the prefix cache."""
    n_kept: int
    """Cached prefixes."""
    n_files: int
    """Of cache_dir, with file_bytes."""
    file_bytes: int
    n_files_read: int
    n_files_written: int
    n_files_failed: int
    n_resident_pages: int
    n_offloaded_pages: int
    offloaded_bytes: int
    """Of caches in files, with n_offloaded_pages pages."""


@dataclass(frozen=True)
class PrefixInfo:
    """A prefix that is cached or being computed: that of its parent, and its own tokens behind it."""

    id: int
    """The same while the engine is open; counts from 1."""
    parent_id: int
    """0: none."""
    salt: str
    """The cache_salt of its requests."""
    token_ids: list[int]
    """Its own, behind those of the parent."""
    n_tokens: int
    """Of the whole prefix."""
    is_kept: bool
    """In memory."""
    is_running: bool
    """A request computes it."""
    has_file: bool
    """In cache_dir."""
    is_pinned: bool
    """Not dropped when memory is needed."""
    bytes: int
    """Those that it shares with others included."""
    unique_bytes: int
    """Those that dropping it frees."""
    n_hits: int
    """How many requests began with it or a part of it."""
    unused_ms: float
    """Milliseconds since the last one."""
    ttl_ms: float
    """It is dropped when it was not used for so long; 0: never."""


@dataclass(frozen=True)
class RequestInfo:
    """A request that has not ended."""

    state: str
    """"queued", "prompt" (being computed) or "decode"."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, those that were found in the prefix cache."""
    prompt_done: int
    """Tokens of the prompt that are computed, cached ones included."""
    generated_tokens: int
    """Of all its sequences."""
    implementation: str
    """The strategy of its cache."""
    n_preemptions: int
    """How often it was preempted and recomputed."""


class _Request:
    """What must live until a request is taken: its callback. An exception in it cancels the request and is raised when it is taken."""

    def __init__(self, top_logprobs: int | None, on_token: Callable[[Token], Any] | None, return_sessions: bool) -> None:
        self.n_logprobs = 0 if top_logprobs is None else 1 + top_logprobs
        self.raised: BaseException | None = None

        def receive(_: Any, event: Any) -> bool:
            try:
                return on_token is not None and on_token(token_of(event.contents, self.n_logprobs)) is not False
            except BaseException as error:
                self.raised = error
                return False

        self.options = initialized(_ffi.mn_generate_options)
        self.options.keep_sessions = return_sessions
        if on_token is not None:
            self.options.on_token = _ffi.mn_token_callback(receive)
        if top_logprobs is not None:
            self.options.top_logprobs = top_logprobs


class Engine(Handle):
    """Computes requests together: each is added at any time, leaves when it ends, and gets exactly the result that it would get alone.

        with mneme.Engine(model, max_num_seqs=8) as engine:
            numbers = {engine.add(text, max_new_tokens=10): text for text in ("The sea", "A river", "The sky")}
            for number, result in engine.results():
                print(numbers[number], result)

    - cache, cache_config: of requests that name none; as of Model.session().
    - memory_limit: bytes that all caches of the model may take while the engine is open; 0: the model's limit. Requests wait until theirs fits.
    - max_num_seqs: sequences computed together at most; 0: no limit.
    - enable_prefix_caching: what requests computed is kept, as far as memory allows, for requests that begin with the same tokens.
    - max_slowdown: while prompts are computed, steps take at most about so many times as long, 1.5 to 1000; 0: no limit.
    - cache_dir: a folder in which cached prefixes are kept as files for the next engine, with cache_dir_limit bytes; 0: no limit.
    - prefix_ttl_ms: prefixes that were unused for so many milliseconds are dropped. owner_quota, prefix_limit: bytes of the cached prefixes of one owner,
      and of all. 0: no limit.

    One thread steps (step, run, wait, and what is about prefixes); add, cancel, take and wake may be called from any thread, and from callbacks.
    close() drops the requests that were not taken; no other call may run then.
    """

    _name = "engine"

    def __init__(self, model: Model, cache: str | None = None, *, memory_limit: int = 0, max_num_seqs: int = 0, enable_prefix_caching: bool = False,
                 max_slowdown: float = 0, cache_dir: str | None = None, cache_dir_limit: int = 0, prefix_ttl_ms: float = 0, owner_quota: int = 0,
                 prefix_limit: int = 0, **cache_config: Any) -> None:
        super().__init__()
        self.model = model
        self._requests: dict[int, _Request] = {}
        self._taking = threading.Lock()  # a request that another thread adds is known here before it is taken
        own, options = cache_options(cache, **cache_config), initialized(_ffi.mn_engine_options)
        options.cache = ctypes.pointer(own)
        assign(options, memory_limit=memory_limit, max_num_seqs=max_num_seqs, enable_prefix_caching=enable_prefix_caching, max_slowdown=max_slowdown,
               cache_dir=None if cache_dir is None else path_bytes(cache_dir), cache_dir_limit=cache_dir_limit, prefix_ttl_ms=prefix_ttl_ms,
               owner_quota=owner_quota, prefix_limit=prefix_limit)
        check(lib.mn_engine_open(ctypes.byref(self._handle), model._pointer, ctypes.byref(options)))

    def close(self) -> None:
        super().close()
        self._requests = {}

    # ---- requests ----

    def add(self, prompt: Prompt, *, cache: str | None = None, cache_config: dict[str, Any] | None = None, prefix: Session | None = None,
            priority: int = 0, cache_salt: str | None = None, owner: str | None = None, generation_config: Any = None,
            top_logprobs: int | None = None, on_token: Callable[[Token], Any] | None = None, return_sessions: bool = False, **fields: Any) -> int:
        """Adds a request, which joins at a following step; returns its id, a number that counts from 0.

        - prompt, generation_config, top_logprobs, on_token, return_sessions, fields: as of Session.generate().
        - cache, cache_config: the engine's where they are not given.
        - prefix: the request begins as a fork of this session, and has its cache.
        - priority: higher ones start first and are preempted last.
        - cache_salt: with enable_prefix_caching, what was computed is shared only with requests of the same.
        - owner: whose it is. Of waiting requests that of the owner for whom least was computed starts first.

        OutOfMemoryError for a request that alone needs more than the limit.
        """
        if isinstance(prompt, str):
            if self.model.tokenizer is None:
                raise ArgumentError("the model has no tokenizer: give token ids, not text")
            prompt = self.model.tokenizer.encode(prompt)
        ids, number, kept, request = ids_array(prompt), ctypes.c_int(), _Request(top_logprobs, on_token, return_sessions), initialized(_ffi.mn_request)
        request.prompt, request.n_prompt, request.options = ids, len(ids), ctypes.pointer(kept.options)
        if cache is not None or cache_config:
            request.cache = ctypes.pointer(cache_options(cache, **(cache_config or {})))
        assign(request, priority=priority, cache_salt=cache_salt, owner=owner)
        with GenerationConfig(self.model, generation_config, **fields) as config, AllBusy([] if prefix is None else [prefix]) as held, self._taking:
            config._warn(kept.options)
            request.config, request.prefix = config._pointer.value, held[0]
            check(lib.mn_engine_add(self._pointer, ctypes.byref(request), ctypes.byref(number)))
            self._requests[number.value] = kept
        return number.value

    def cancel(self, request: int) -> None:
        """Ends a request at the beginning of the next step, with the tokens until then and finish_reason "cancelled"."""
        check(lib.mn_engine_cancel(self._pointer, request))

    def step(self) -> int:
        """Computes the next tokens of every request; returns how many requests have not ended."""
        n_running, interrupts = ctypes.c_size_t(), list[BaseException]()
        with Busy(self) as handle, interruptible(interrupts.append):
            status = lib.mn_engine_step(handle, ctypes.byref(n_running))
        if interrupts:
            raise interrupts[0]
        check(status)
        return n_running.value

    def take(self) -> tuple[int, Generation | MnemeError] | None:
        """The first request that ended and was not taken, and its result or its failure; None: there is none. What its on_token raised is raised here."""
        number, result = ctypes.c_int(-1), ctypes.POINTER(_ffi.mn_generation)()
        with self._taking:
            try:
                check(lib.mn_engine_take(self._pointer, ctypes.byref(number), ctypes.byref(result)))
            except MnemeError as error:
                if number.value < 0:
                    raise
                del self._requests[number.value]
                return number.value, error
            if number.value < 0:
                return None
            kept = self._requests.pop(number.value)
        try:
            if kept.raised:
                raise kept.raised
            g = result.contents
            sessions = [take_session(self.model, result, i) if kept.options.keep_sessions else None for i in range(g.n_sequences)]
            sequences = [sequence_of(g.sequences[i].contents, kept.n_logprobs, None, None, session) for i, session in enumerate(sessions)]
            return number.value, Generation(sequences, g.seed, g.prompt_ms, g.predicted_ms)
        finally:
            lib.mn_generation_close(ctypes.byref(result))

    def results(self) -> Iterator[tuple[int, Generation | MnemeError]]:
        """Steps until every request has ended, and yields the id and the result of each as it ends; of one that failed, its exception."""
        while True:
            n_running = self.step()
            while (taken := self.take()) is not None:
                yield taken
            if not n_running:
                return

    def run(self) -> dict[int, Generation | MnemeError]:
        """Steps until every request has ended; the results, or failures, by their ids."""
        return dict(self.results())

    def wait(self, timeout: float) -> bool:
        """Returns when there is work for step(), or after so many seconds; whether there is."""
        has_work = ctypes.c_bool()
        with Busy(self) as handle:
            check(lib.mn_engine_wait(handle, timeout * 1000, ctypes.byref(has_work)))
        return has_work.value

    def wake(self) -> None:
        """Makes wait() return at once: the call that waits, or the next one."""
        lib.mn_engine_wake(self._pointer)

    def request(self, request: int) -> RequestInfo:
        """How far a request is that has not ended."""
        info = information(_ffi.mn_request_info)
        with Busy(self) as handle:
            check(lib.mn_engine_request(handle, request, ctypes.byref(info)))
            return RequestInfo(info.state.decode(), info.prompt_tokens, info.cached_tokens, info.prompt_done, info.generated_tokens,
                               info.implementation.decode() if info.implementation else "", info.n_preemptions)

    @property
    def info(self) -> EngineInfo:
        """Requests, memory, files."""
        info = information(_ffi.mn_engine_info)
        with Busy(self) as handle:
            check(lib.mn_engine_get_info(handle, ctypes.byref(info)))
        return EngineInfo(*(getattr(info, name) for name in EngineInfo.__dataclass_fields__))

    # ---- prefixes ----

    def prefixes(self) -> list[PrefixInfo]:
        """The prefixes that are cached or being computed, parents first."""
        found: list[PrefixInfo] = []

        def visit(_: Any, pointer: Any) -> bool:
            p = pointer.contents
            found.append(PrefixInfo(p.id, p.parent_id, p.salt.decode(), p.ids[: p.n_ids], p.n_tokens, p.is_kept, p.is_running, p.has_file, p.is_pinned,
                                    p.bytes, p.unique_bytes, p.n_hits, p.unused_ms, p.ttl_ms))
            return True

        with Busy(self) as handle:
            check(lib.mn_engine_prefixes(handle, _ffi.mn_engine_prefixes_visit(visit), None))
        return found

    def prefix_of(self, token_ids: Sequence[int], *, cache_salt: str | None = None) -> int:
        """The id of a prefix that is cached whole with the engine's own cache; NotFoundError where it is not."""
        ids, number = ids_array(token_ids), ctypes.c_uint64()
        with Busy(self) as handle:
            check(lib.mn_engine_prefix_of(handle, ids, len(ids), None if cache_salt is None else cache_salt.encode(), ctypes.byref(number)))
        return number.value

    def prefix_session(self, prefix: int) -> Session:
        """A session with a cached prefix and its cache, to be saved or gone on with."""
        session = ctypes.c_void_p()
        with Busy(self) as handle:
            check(lib.mn_engine_prefix_session(handle, prefix, ctypes.byref(session)))
        return Session._opened(self.model, session)

    def add_prefix(self, session: Session, *, cache_salt: str | None = None, owner: str | None = None) -> int:
        """Keeps what a session holds as if a request had computed it; the id of the prefix."""
        number = ctypes.c_uint64()
        with Busy(self) as handle, Busy(session) as held:
            check(lib.mn_engine_prefix_add(handle, held, None if cache_salt is None else cache_salt.encode(),
                                           None if owner is None else owner.encode(), ctypes.byref(number)))
        return number.value

    def hold_prefix(self, prefix: int, *, pin: bool = True, ttl_ms: float = 0) -> None:
        """pin: it is not dropped when memory is needed. ttl_ms: it is dropped when no request began with it for so long; 0: the engine's."""
        with Busy(self) as handle:
            check(lib.mn_engine_prefix_hold(handle, prefix, pin, ttl_ms))

    def drop_prefix(self, prefix: int) -> None:
        """Drops a prefix and those that begin with it, their files too."""
        with Busy(self) as handle:
            check(lib.mn_engine_prefix_drop(handle, prefix))

    def make_room(self, n_bytes: int) -> None:
        """Drops cached prefixes until caches can take so many bytes more, or none is left."""
        with Busy(self) as handle:
            lib.mn_engine_prefix_room(handle, n_bytes)
