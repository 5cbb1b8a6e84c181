"""The Hugging Face package `tokenizers` on the same file as bench/tokenizer_speed.c, on one thread, in processor time.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python bench/tokenizer_hf.py TOKENIZER.json TEXT-FILE [RUNS]

SPDX-License-Identifier: Apache-2.0
"""

import os
import struct
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers  # noqa: E402  (the variables above count when it is loaded)


def checksum(ids):
    h = 0x811C9DC5
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def main():
    path, text_path = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with open(text_path, "rb") as file:
        data = file.read()
    text = data.decode("utf-8")
    load = encode = decode = float("inf")
    for _ in range(runs):
        start = time.process_time()
        tokenizer = tokenizers.Tokenizer.from_file(path)
        loaded = time.process_time()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        encoded = time.process_time()
        tokenizer.decode(ids, skip_special_tokens=False)
        decoded = time.process_time()
        load, encode, decode = min(load, loaded - start), min(encode, encoded - loaded), min(decode, decoded - encoded)
    size = len(data) / 1e6
    print(
        f"tokenizers {tokenizers.__version__} load {load * 1e3:5.1f} ms  encode {size / encode:7.2f} MB/s  "
        f"decode {size / decode:7.2f} MB/s  {len(ids)} ids  checksum {checksum(ids):08x}"
    )


main()
