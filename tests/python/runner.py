"""What the tests of the Python package share: the package on the built library, the command, and the runner of cases.
usage: TEST.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import subprocess
import sys
import traceback
import unittest

ROOT, LIBRARY, COMMAND = sys.argv[1:4]
if LIBRARY != "installed":
    os.environ.update(MNEME_LIBRARY=LIBRARY, MNEME_COMMAND=COMMAND, PYTHONPATH=os.path.join(ROOT, "python"))
    sys.path.insert(0, os.path.join(ROOT, "python"))
import mneme  # noqa: E402

SMALL = "embedded"
TEXT = "Once upon a time there was a cat. The cat"


def said(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=True).stdout


def command(*arguments):
    return json.loads(said(*arguments).splitlines()[0])


def golden(name):
    return os.path.join(ROOT, "tests/data/golden", name)


# A model whose template is simple, made of the embedded one.
def template_model(folder):
    source = os.path.join(ROOT, "models-embedded/stories260K")
    for name in os.listdir(source):
        os.symlink(os.path.join(source, name), os.path.join(folder, name))
    path = os.path.join(folder, "tokenizer_config.json")
    values = {}
    if os.path.exists(path):
        with open(path) as file:
            values = json.load(file)
        os.unlink(path)
    values["chat_template"] = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    with open(path, "w") as file:
        json.dump(values, file)
    return folder


def refused(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), error
        assert isinstance(error, mneme.MnemeError) or kind is ImportError, error
        return
    raise AssertionError(f"not refused: {part}")


def need_numpy():
    try:
        import numpy
    except ImportError:
        raise unittest.SkipTest("numpy is not installed") from None
    return numpy


def read_safetensors(path):
    np = need_numpy()
    with open(path, "rb") as file:
        data = file.read()
    n = int.from_bytes(data[:8], "little")
    types_of = {"F32": "<f4", "I16": "<i2", "F16": "<f2", "I32": "<i4", "I64": "<i8"}
    return {name: np.frombuffer(data[8 + n:][slice(*entry["data_offsets"])], types_of[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in json.loads(data[8:8 + n]).items() if name != "__metadata__" and entry["dtype"] in types_of}


def main(cases):
    failed, skipped = [], []
    for case in cases:
        if sys.argv[4:] and case.__name__ not in sys.argv[4:]:
            continue
        print(f"[ RUN      ] {case.__name__}", flush=True)
        try:
            case()
            print(f"[       OK ] {case.__name__}", flush=True)
        except unittest.SkipTest as why:
            print(f"{why}\n[  SKIPPED ] {case.__name__}", flush=True)
            skipped.append(case.__name__)
        except Exception:
            traceback.print_exc()
            failed.append(case.__name__)
            print(f"[  FAILED  ] {case.__name__}", flush=True)
    n = len(sys.argv[4:] or cases)
    print(f"[  PASSED  ] {n - len(failed) - len(skipped)} test(s).")
    if skipped:
        print(f"[  SKIPPED ] {len(skipped)} test(s).")
    if failed:
        print(f"[  FAILED  ] {len(failed)} test(s).")
    sys.exit(1 if failed else 0)
