#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutation tests of the cache: changes its code in one small way at a time and counts the changes that tests detect.

    tools/mutate.py [--build build/release] [--count 120] [--seed 1] [--jobs 2] [--file PART] [--report FILE]

Each mutant is one changed file of src/kv, compiled alone and linked before the library of an existing build with the
tests that belong to it, the mutant and the tests under the address and undefined-behaviour sanitizers. A mutant is killed
when it does not end in time or a test fails; survivors are listed; each needs
a test or, in docs/mutants.md, the reason why it does not change behaviour.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ["test_cache", "test_convert", "test_stage", "test_laws"]  # the tests that must fail, the fastest first
FILES = {
    "group.c": CACHE,
    "cache.c": CACHE,
    "quantize_schedule.c": CACHE,
    "state.c": CACHE,
    "check.c": ["test_cache", "test_snapshot", "test_plan_bytes", "test_laws"],
    "convert.c": ["test_convert", "test_laws"],
    "snapshot.c": ["test_snapshot", "test_laws"],
    "stage.c": ["test_stage", "test_snapshot", "test_laws"],
    "visible.h": CACHE,
    "plan.c": ["test_plan", "test_plan_bytes"],
    "plan_config.c": ["test_plan"],
}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SWAPS = [
    (r"(?<![<>=!-])<(?![<=])", "<="), (r"<=", "<"), (r"(?<![->=])>(?![>=])", ">="), (r">=", ">"),
    (r"==", "!="), (r"!=", "=="), (r"&&", "||"), (r"\|\|", "&&"),
    (r"(?<=[\w)\]]) \+ (?=[\w(])", " - "), (r"(?<=[\w)\]]) - (?=[\w(])", " + "),
    (r"(?<=[\w)\]]) \* (?=[\w(])", " + "), (r"(?<=[\w)\]]) / (?=[\w(])", " * "), (r"(?<=[\w)\]]) % (?=[\w(])", " / "),
    (r"\+\+", "--"), (r"--", "++"), (r"\+=", "-="), (r"-=", "+="),
    (r"\bmin_i64\b", "max_i64"), (r"\bmax_i64\b", "min_i64"), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"!(?=[\w(])", ""), (r"(?<![\w.\"'x])(\d+)(?![\w.\"'])", "+1"), (r"\bPAGE_EXACT\b", "PAGE_CODED"),
    (r"\bPAGE_CODED\b", "PAGE_EXACT"), (r"\bcontinue;", ";"), (r"\bbreak;", ";"),
]
STATEMENT = re.compile(r"^\s+(?!return\b|break\b|continue\b|MN_FAIL|static\b|const\b|case\b|goto\b)[\w>\[\]().*&+-]*"
                       r"(\(.*\)| [-+|]?= .*|\+\+|--);\s*(/\*.*\*/)?$")
DECLARATION = re.compile(r"^\s+(const |static |struct |unsigned )?(size_t|int|bool|int64_t|float|char|void|kv_\w+|mn_status|page_\w+|slot_need|"
                         r"code_layout|stream|quantize_(?:task|stream|space|part)|store_job|bf16|json\w*|bytes)\b")


def code_mask(text):
    """True where a character is code: no comment, string, character or preprocessor line."""
    mask = bytearray(b"\1" * len(text))
    for match in re.finditer(r"/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#.*?$", text, re.S | re.M):
        mask[match.start():match.end()] = b"\0" * (match.end() - match.start())
    return mask


def mutants_of(name):
    text = (ROOT / "src/kv" / name).read_text()
    mask, found = code_mask(text), []
    for pattern, new in SWAPS:
        for match in re.finditer(pattern, text):
            if not all(mask[match.start():match.end()]):
                continue
            replacement = str(int(match.group(1)) + 1) if new == "+1" else new
            found.append((match.start(), match.end(), replacement))
    at = 0
    for line in text.splitlines(keepends=True):
        if STATEMENT.match(line) and not DECLARATION.match(line) and mask[at + len(line) - len(line.lstrip())]:
            begin = at + len(line) - len(line.lstrip())
            found.append((begin, at + len(line.rstrip()), ";"))
        at += len(line)
    # Texts of messages and the rounding of allocations are not behaviour.
    kept = []
    for begin, end, new in found:
        line_begin = text.rfind("\n", 0, begin) + 1
        line = text[line_begin:text.find("\n", begin)]
        if "MN_FAIL" in line or "long long" in line or "enum {" in line:
            continue
        kept.append((name, begin, end, new))
    return text, kept


def describe(text, begin, end, new):
    number = text.count("\n", 0, begin) + 1
    line_begin, line_end = text.rfind("\n", 0, begin) + 1, text.find("\n", end)
    before = text[line_begin:line_end].strip()
    after = (text[line_begin:begin] + new + text[end:line_end]).strip()
    return number, before, after


class Workshop:
    def __init__(self, build, seconds):
        self.build, self.seconds = pathlib.Path(build).resolve(), seconds
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="mutants-"))
        ninja = (self.build / "build.ninja").read_text()
        rule = ninja[ninja.index("build test_laws:"):]
        self.libraries = re.search(r"LINK_LIBRARIES = (.*)", rule).group(1).split()
        self.flags = ["-std=c11", "-O1", "-w", "-fPIC", "-D_GNU_SOURCE", "-ffp-contract=off", "-fno-math-errno",
                      "-g1", *SANITIZERS,
                      f"-DTESTS_DIR=\"{ROOT}/tests\""]
        self.includes = [f"-I{ROOT}/include", f"-I{ROOT}/src", f"-I{ROOT}/tests"]
        self.headers_used = [p for p in sorted((ROOT / "src/kv").glob("*.c"))
                             if re.search(r"kv/(kv|group|stage|snapshot|visible)\.h", p.read_text())]
        for test in sorted({t for tests in FILES.values() for t in tests}):
            self.compile(ROOT / "tests/kv" / f"{test}.c", self.scratch / f"{test}.o", [])

    def compile(self, source, target, first):
        subprocess.run(["cc", *self.flags, *first, *self.includes, "-c", str(source), "-o", str(target)], check=True,
                       stderr=subprocess.DEVNULL)

    def passes(self, test, part, objects, folder):
        """Whether a test passes with these objects before the library's; None: timeout."""
        program = folder / test
        subprocess.run(["cc", *SANITIZERS, str(part), *map(str, objects), *self.libraries, "-o", str(program)], check=True,
                       cwd=self.build, stderr=subprocess.DEVNULL)
        limit = (resource.RLIMIT_CPU, (self.seconds, self.seconds))
        try:
            done = subprocess.run([str(program)], cwd=self.build, timeout=20 * self.seconds, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env={**os.environ, "MNEME_NO_SHRINK": "1"},
                                  preexec_fn=lambda: resource.setrlimit(*limit))
        except subprocess.TimeoutExpired:
            return None
        return None if done.returncode == -signal.SIGXCPU or done.returncode == -signal.SIGKILL else done.returncode == 0

    def check_unchanged(self):
        for test in sorted({t for tests in FILES.values() for t in tests}):
            if not self.passes(test, self.scratch / f"{test}.o", [], self.scratch):
                sys.exit(f"{test} fails without any change")

    def try_mutant(self, number, name, text):
        """The test that detected the mutant, or None; "" when it does not compile."""
        folder = self.scratch / str(number)
        (folder / "kv").mkdir(parents=True)
        try:
            changed = folder / "kv" / name
            changed.write_text(text)
            objects, first = [], [f"-I{folder}"]
            tests = {t: self.scratch / f"{t}.o" for t in FILES[name]}
            try:
                if name.endswith(".h"):
                    for source in self.headers_used:
                        objects.append(folder / f"{source.stem}.o")
                        self.compile(source, objects[-1], first)
                    for test in tests:
                        tests[test] = folder / f"{test}.o"
                        self.compile(ROOT / "tests/kv" / f"{test}.c", tests[test], first)
                else:
                    objects.append(folder / "mutant.o")
                    self.compile(changed, objects[-1], [])
            except subprocess.CalledProcessError:
                return ""
            for test, part in tests.items():
                passed = self.passes(test, part, objects, folder)
                if not passed:
                    return test if passed is False else f"{test} (too long)"
            return None
        finally:
            shutil.rmtree(folder)


def choose(names, count, seed):
    """Mutants of all files, about as many of each as it has code, in a random order."""
    texts, piles = {}, []
    for name in names:
        texts[name], mutants = mutants_of(name)
        random.Random(f"{seed}{name}").shuffle(mutants)
        piles.append(mutants)
    total = sum(map(len, piles))
    chosen = [m for pile in piles for m in pile[:max(2, round(count * len(pile) / total))]]
    random.Random(seed).shuffle(chosen)
    return texts, chosen, total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=40, help="processor time that a test may take")
    parser.add_argument("--file", action="append", help="only these of src/kv")
    parser.add_argument("--report", help="file to which the survivors are appended")
    args = parser.parse_args()
    texts, chosen, total = choose(args.file or list(FILES), args.count, args.seed)
    shop = Workshop(args.build, args.seconds)
    print(f"{len(chosen)} of {total} mutants", flush=True)
    shop.check_unchanged()

    def judge(number):
        name, begin, end, new = chosen[number]
        text = texts[name]
        killer = shop.try_mutant(number, name, text[:begin] + new + text[end:])
        line, before, after = describe(text, begin, end, new)
        verdict = "SURVIVED" if killer is None else "does not compile" if killer == "" else f"killed by {killer}"
        print(f"{name}:{line}: {verdict}\n    - {before}\n    + {after}", flush=True)
        return killer, f"{name}:{line}", before, after

    try:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(judge, range(len(chosen))))
    finally:
        shutil.rmtree(shop.scratch)
    valid = [r for r in results if r[0] != ""]
    survivors = [r for r in valid if r[0] is None]
    print(f"\n{len(valid) - len(survivors)} of {len(valid)} killed, {len(survivors)} survived")
    for _, place, before, after in survivors:
        print(f"{place}\n    - {before}\n    + {after}")
    if args.report:
        with open(args.report, "a", encoding="utf-8") as report:
            for _, place, before, after in survivors:
                report.write(f"| `{place}` | `{before}` | `{after}` | |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
