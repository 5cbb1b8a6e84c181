"""Fetches models."""
from __future__ import annotations

import sys

from ._command import run_json


def pull(name: str, *, sha256: str | None = None) -> str:
    """Fetches a model into the models folder, where Model() finds it, and returns its path; one that is there is not fetched again.

        mneme.pull("smollm2")
        model = mneme.Model("smollm2")

    - name: one that `mneme pull` lists, or the URL of a .gguf file, which goes on where it was cut off.
    - sha256: what the file of a URL must have, in hexadecimal digits.

    What the command says of its progress goes to stderr. Its failures are exceptions.
    """
    found: dict[str, str] = run_json("pull", name, sha256=sha256, on_line=lambda line: print(line, file=sys.stderr))
    return found["path"]
