"""Tells whether Python expressions over JSON hold. From standard input, each text with a zero byte behind it: a number, the folder in which
relative names are, the folder `work` whose file `out` has a JSON value on each line, an expression, and so many texts less one, its `args`. In it `j`
is the first value, `all` the list of them, `all_of` Python's own `all`. To standard output: a line `true` or `false` for each.
SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import os
import traceback


def refuse(name):
    raise ValueError(f"{name} is no JSON")


def holds(folder, work, expression, *args):
    os.chdir(folder)
    with open(work + "/out", encoding="utf-8") as f:
        values = [json.loads(line, parse_constant=refuse) for line in f if line.strip()]
    names = {"json": json, "math": math, "j": values[0], "all": values, "all_of": all, "work": work, "args": args}
    return bool(eval(expression, names))


def texts():
    """Each text of standard input."""
    rest = b""
    while data := os.read(0, 65536):
        *whole, rest = (rest + data).split(b"\0")
        yield from (text.decode() for text in whole)


asked = texts()
for n in asked:
    question = [next(asked) for _ in range(int(n) + 2)]
    try:
        answer = holds(*question)
    except Exception:
        traceback.print_exc()
        answer = False
    print("true" if answer else "false", flush=True)
