"""Runs the package's command `mneme`, and takes what it prints as JSON."""
from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, cast

from ._library import ArgumentError, CancelledError, MnemeError, NotFoundError, OutOfMemoryError, RefusedError, warn

# Of the command's exit codes.
ERRORS: dict[int, type[MnemeError]] = {2: ArgumentError, 3: NotFoundError, 4: OutOfMemoryError, 5: CancelledError, 6: RefusedError}


def command_path() -> str:
    """The command `mneme` of this package."""
    return os.environ.get("MNEME_COMMAND") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "mneme")


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options by their names with _ for -: True is a flag without a value, False the flag with no-, None nothing, a list values joined by commas."""
    given: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            given.append(f"--{flag}={json.dumps(value)}")
        elif isinstance(value, (list, tuple)):
            given.append(f"--{flag}={','.join(map(str, cast('list[Any]', value)))}")
        elif value is not None:
            given.append(f"--{flag}={value}")
    return given


def run_json(*arguments: str, on_line: Callable[[str], Any] | None = None, **options: Any) -> Any:
    """What the command prints with --json. Its failure is an exception with its sentence, its warnings are those of Python; on_line gets each line of
    its standard error as it comes. Ctrl-C and errors of on_line end the command."""
    command, last = [command_path(), *arguments, *flags(options), "--json"], ""
    with tempfile.TemporaryFile("w+", errors="replace") as output:  # not a pipe, which would fill up while lines are read
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace")
        except OSError as error:
            raise MnemeError(f"the command cannot be run: {error}") from None
        with process:
            assert process.stderr
            try:
                for line in map(str.rstrip, process.stderr):
                    last = line or last
                    if line.startswith("mneme: warning: "):
                        warn(line.removeprefix("mneme: warning: "))
                    elif on_line:
                        on_line(line)
            except BaseException:
                process.terminate()
                raise
        output.seek(0)
        found: Any = None
        with contextlib.suppress(ValueError):
            found = json.load(output)
    if process.returncode == 0 and found is not None:
        return found
    if found is not None:
        raise ERRORS.get(process.returncode, MnemeError)(found["error"]["message"])
    raise MnemeError(f"the command ended with code {process.returncode} and printed no JSON{': ' + last if last else ''}")
