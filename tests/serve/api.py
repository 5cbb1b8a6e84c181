"""Schemathesis against `mneme serve`: requests made from /openapi.json, right and wrong ones. No answer has a status of 500 or above, and each has a
status, a type and a body that the document describes.

usage: api.py MNEME [--max-examples N]     run by a Python that has schemathesis; the last line counts the operations

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

import clients

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance", "response_schema_conformance",
          "unsupported_method", "ignored_auth")
PHASES = "examples,coverage,fuzzing"


def check(url, most):
    """How many operations failed; Schemathesis' own words about them go to stdout."""
    with tempfile.TemporaryDirectory() as work:
        command = [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", url + "/openapi.json", "--checks", ",".join(CHECKS), "--phases", PHASES,
                   "--max-examples", str(most), "--seed", "1", "--continue-on-failure", "--no-color", "--header", "Authorization: Bearer " + clients.KEY]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    print(done.stdout[done.stdout.find("=== FAILURES" if done.returncode else "=== SUMMARY"):] + done.stderr)
    failed = set(re.findall(r"^_+ ([A-Z]+ /\S*) _+$", done.stdout, re.M))
    return len(failed) or int(done.returncode != 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mneme")
    parser.add_argument("--max-examples", type=int, default=50)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        keys = os.path.join(work, "keys")
        with open(keys, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(clients.KEY + "\n")
        caches = os.path.join(work, "caches")  # with these every operation is one that the server can do
        server = clients.Server(a.mneme, clients.tiny_model(work), keys, "--log-requests", "--speech-model", clients.tiny_speech(work), "--cache-dir", caches)
        url = f"http://127.0.0.1:{server.port}"
        request = urllib.request.Request(url + "/openapi.json", headers={"Authorization": "Bearer " + clients.KEY})
        with urllib.request.urlopen(request) as answer:
            n_operations = sum(len(methods) for methods in json.load(answer)["paths"].values())
        failed = check(url, a.max_examples)
        server.close()
    statuses = collections.Counter(re.findall(r" status=(\d+)", server.log))
    print("answers: " + ", ".join(f"{n} with {status}" for status, n in sorted(statuses.items())))
    failed += sum(n for status, n in statuses.items() if status >= "500")
    print(f"{max(n_operations - failed, 0)} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
