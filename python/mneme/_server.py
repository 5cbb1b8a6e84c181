"""The package's command as a server in a child process."""
from __future__ import annotations

import subprocess
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any

from ._command import ERRORS, command_path, flags
from ._library import MnemeError


class Server:
    """`mneme serve` as a child process, which answers when the object is made: the HTTP interface of OpenAI and Anthropic.

        with mneme.Server("smollm2", max_num_seqs=8) as server:
            print(server.url + "/v1")                   # the base_url of OpenAI's client

    - model: a name or path as of Model(); None: the model installed last.
    - port: 0: any free one. unix: the path of a Unix socket instead; url is then "unix:PATH".
    - timeout: seconds until it must answer.
    - options: those of `mneme serve --help all` with _ for -, as cache="quantized"; True is a flag without a value, False the flag with no-, a list
      values joined by commas.

    It ends by stop(), by `with`, when it is no longer referred to, and with the interpreter. What keeps it from starting is an exception with the
    command's sentence.
    """

    def __init__(self, model: str | None = None, *, port: int = 0, unix: str | None = None, timeout: float = 600, **options: Any) -> None:
        arguments = [command_path(), "serve", *(["--port", str(port)] if unix is None else ["--unix", str(unix)])]
        if model is not None:
            arguments += ["--model", str(model)]
        try:
            process = subprocess.Popen([*arguments, *flags(options)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                       errors="replace")
        except OSError as error:
            raise MnemeError(f"the command cannot be run: {error}") from None
        self.log: deque[str] = deque(maxlen=1000)
        """The newest lines that it printed."""
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        found: list[str] = []
        is_known = threading.Event()
        threading.Thread(target=_read, args=(process, self.log, found, is_known), name="mneme server", daemon=True).start()
        is_known.wait(timeout)
        if not found:
            ended = process.poll() is not None or is_known.is_set()
            self.stop()
            if not ended:
                raise MnemeError(f"the server does not listen after {timeout} seconds")
            line = self.log[-1] if self.log else f"it ended with code {process.returncode}"
            raise ERRORS.get(process.returncode, MnemeError)(line.removeprefix("mneme: "))
        self.url: str = found[0]
        """Where it listens: "http://127.0.0.1:PORT", or "unix:PATH"."""

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ends it; running requests have 30 seconds (drain_timeout) to end. Nothing happens when it has ended."""
        self._end()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<mneme.Server {self.url}{', ended' if self.closed else ''}>"


def _read(process: subprocess.Popen[str], log: deque[str], found: list[str], is_known: threading.Event) -> None:
    """Keeps what the server prints, so that it never waits for a reader; the address is in the line that it prints when it listens."""
    assert process.stderr
    with process.stderr as lines:
        for line in lines:
            log.append(line.rstrip("\n"))
            if line.startswith("listening on ") and not found:
                found.append(line.removeprefix("listening on ").rpartition(" model=")[0])
                is_known.set()
    process.wait()
    is_known.set()


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()  # in a forked process, whose child the server is not, this does nothing
    try:
        process.wait()
    except BaseException:  # Ctrl-C while requests end: they are not waited for
        process.kill()
        process.wait()
        raise
