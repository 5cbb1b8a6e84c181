#!/usr/bin/env python3
"""Runs the statements of a document's ```pycon blocks as one session, in their order: each must print what stands below it, as doctest compares.
Those of ```pycon long blocks belong to the long tier (MNEME_LONG=1). Without SmolLM2 only imports and statements with models of tests/data run. What does
not run is counted as skipped.
usage: docs.py DOCUMENT [--without-smollm2]     in a folder with tests/
SPDX-License-Identifier: Apache-2.0"""
import doctest
import os
import re
import sys


def statements(text, has_model, is_long):
    """The statements to run, and how many are skipped."""
    chosen, skipped = [], 0
    own = set()  # names that hold what needs no other model
    for block in re.finditer(r"^```pycon( long)?\n(.*?)^```$", text, re.M | re.S):
        for statement in doctest.DocTestParser().get_examples(block[2]):
            is_own = statement.source.startswith("import ") or "tests/data/" in statement.source or not own.isdisjoint(re.findall(r"\w+", statement.source))
            name = re.match(r"(\w+) = ", statement.source)
            if name:
                (own.add if is_own else own.discard)(name[1])
            if (is_own or has_model) and (is_long or not block[1]):
                statement.lineno += text.count("\n", 0, block.start(2))
                chosen.append(statement)
            else:
                skipped += 1
    return chosen, skipped


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    chosen, skipped = statements(text, "--without-smollm2" not in sys.argv[2:], os.environ.get("MNEME_LONG") == "1")
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(doctest.DocTest(chosen, {}, "<module>", sys.argv[1], 0, None))
    failed, tried = runner.failures, runner.tries
    print(f"[  PASSED  ] {tried - failed} test(s).")
    print(f"[  SKIPPED ] {skipped} test(s).")
    print(f"[  FAILED  ] {failed} test(s).")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
