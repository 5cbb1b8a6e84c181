#!/usr/bin/env python3
"""Every row of the table of kernels has a reference and a test; part of the build of the tests, which fails otherwise.

A reference is an assignment in a *_ref.c file. A test is a function of a test program in this folder, run by its main, that has a comment
above it: /* kernels: NAME, NAME */

usage: covered.py SOURCE_FOLDER [STAMP]     writes STAMP when all is well
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
kernels = re.findall(r"^KERNEL\((\w+),", (root / "src/kernels/kernels.inc").read_text(), re.M)
references = "".join(file.read_text() for file in sorted((root / "src/kernels").rglob("*_ref.c")))
tested, failures = set(), []
for file in sorted((root / "tests/kernels").glob("test_*.c")):
    text = file.read_text()
    for names, function in re.findall(r"/\* kernels: ([\w, \n*]+?) \*/\s*static void (\w+)\(void \*\*state\)", text):
        if f"cmocka_unit_test({function})" not in text:
            failures.append(f"{file.name}: {function} is never run")
            continue
        for name in re.split(r"[,\s*]+", names):
            tested.add(name)
            if name not in kernels:
                failures.append(f"{file.name}: there is no kernel '{name}'")
for name in kernels:
    if not re.search(rf"table->{name} = \w+;", references):
        failures.append(f"kernel {name} has no reference: a scalar function in a *_ref.c file")
    if name not in tested:
        failures.append(f"kernel {name} has no test: a function in tests/kernels with /* kernels: {name} */ above it")
print("\n".join(failures), end="\n" if failures else "")
if failures or not kernels:
    sys.exit(1)
if len(sys.argv) > 2:
    pathlib.Path(sys.argv[2]).touch()
