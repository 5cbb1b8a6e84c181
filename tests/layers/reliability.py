#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reliability.md: every test program, case, preset and tool that it names exists, no goal has two rows, and programs that try a sample
of a product with the address sanitizer have a row there.
usage: reliability.py SOURCE_FOLDER"""
import json
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
rows = [line for line in (root / "docs/reliability.md").read_text().splitlines() if line.startswith("| ")]
presets = {p["name"] for p in json.loads((root / "CMakePresets.json").read_text())["configurePresets"]}
wrong, goals, named = [], [], 0


def source_of(name):
    """The text of a test program, a fuzzer or a group of the command's tests; None: there is none."""
    pattern = f"{name}.sh" if "/" in name else f"*/{name}.c"
    return next((path.read_text() for path in (root / "tests").glob(pattern)), None)


for row in rows:
    cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
    goal = cells[0] if re.fullmatch(r"R\d+", cells[0]) else ""
    goals += [goal] if goal else []
    for name, cases in re.findall(r"`((?:test|fuzz)_\w+|cli/\w+)`(?:: ([\w.]+(?:, [\w.]+)*))?", row):
        named += 1
        source = source_of(name)
        # "..." stands for the rest of a name, at either end.
        if source is None:
            wrong.append(f"{goal or cells[0][:40]}: there is no test {name}")
            continue
        for case in cases.split(", "):
            if "_" in case and case.strip(".") not in source:
                wrong.append(f"{goal or cells[0][:40]}: {name} has no case {case}")
    for name in re.findall(r"`(tools/\w+)", row):
        if not (root / name).exists():
            wrong.append(f"{goal}: there is no {name}")
    for name in re.findall(r"the `(\w+)` preset", row):
        if name not in presets:
            wrong.append(f"{goal}: there is no preset {name}")
wrong += [f"{goal} has two rows" for goal in sorted({g for g in goals if goals.count(g) > 1})]
samples = (root / "docs/reliability.md").read_text().split("## With sanitizers\n")[1].split("\n## ")[0]
for path in sorted((root / "tests").glob("*/test_*.c")):
    is_sampled = re.search(r"\b(test_samples|strategy_tries|strategy_is_brief)\(", path.read_text()) is not None
    if is_sampled and f"`{path.stem}`" not in samples:
        wrong.append(f"{path.stem} tries a sample with sanitizers and has no row")
release_only = re.search(r"^release_only='(.*)'$", (root / "scripts/test").read_text(), re.M).group(1)
left_out = [f"test_{name}" for names in re.findall(r"test_\(([^)]*)\)", release_only) for name in names.split("|")]
wrong += [f"{name} is not run with the address sanitizer and has no row" for name in left_out if f"`{name}`" not in samples]
if named < 50 or len(left_out) < 3:
    wrong.append(f"only {named} tests are named, {len(left_out)} left out: are the tables read?")
for sentence in wrong:
    print("docs/reliability.md:", sentence)
print(f"[  PASSED  ] {0 if wrong else 1} test(s).")
if wrong:
    print("[  FAILED  ] 1 test(s).")
sys.exit(1 if wrong else 0)
