#!/usr/bin/env python3
"""Runs notebooks, each in a kernel of this Python and in its own folder, and writes the outputs into them. Called by scripts/notebooks.
usage: notebooks.py [--check] NOTEBOOK...
--check writes nothing, and a notebook must be as this program writes it: every cell with its outputs, less than 200 KB, nothing of the machine.
The last line counts notebooks. A notebook fails with the first cell that raises: what it states, it asserts.
SPDX-License-Identifier: Apache-2.0"""
import os
import sys
import time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}


def strip(notebook):
    """Leaves sources and outputs, without what libraries write about the machine."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]


def text_of(notebook):
    return nbformat.writes(notebook, version=4) + "\n"


def complaint(path, notebook):
    """What is wrong with a notebook as it is stored; None: nothing."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if len(text) > 200_000:
        return f"{len(text)} bytes"
    if any(part in text for part in ("/root/", "/home/", "/tmp/", os.path.expanduser("~/"))):
        return "a path of the machine"
    if [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] != list(range(1, 1 + sum(c.cell_type == "code" for c in notebook.cells))):
        return "cells that were not run in their order"
    strip(notebook)
    return None if text == text_of(notebook) else "not as scripts/notebooks writes it"


def run(path, is_check):
    """Whether the notebook ran to its end."""
    begin, name = time.monotonic(), os.path.basename(path)
    notebook = nbformat.read(path, as_version=4)
    wrong = complaint(path, notebook) if is_check else None
    if wrong:
        print(f"failed: {name}: {wrong}")
        return False
    try:
        NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": os.path.dirname(os.path.abspath(path))}}).execute()
    except CellExecutionError as error:
        print(f"failed: {name}: {error}")
        return False
    print(f"  {name}: {time.monotonic() - begin:.0f} s", flush=True)
    if not is_check:
        strip(notebook)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text_of(notebook))
        os.replace(path + ".new", path)
    return True


def main():
    is_check = sys.argv[1:2] == ["--check"]
    paths = sys.argv[1 + is_check:]
    passed = sum(run(path, is_check) for path in paths)
    print(f"{passed} passed, {len(paths) - passed} failed, 0 skipped")
    return passed < len(paths)


if __name__ == "__main__":
    sys.exit(main())
