#!/usr/bin/env python3
"""Writes tests/data/unicode/normalization.txt: texts and their normalisation forms by Python's unicodedata.

A line is five fields, separated by semicolons: a text, then NFC, NFD, NFKC and NFKD of it; characters are hexadecimal numbers
with spaces between, as in Unicode's own NormalizationTest.txt. The texts: characters with decompositions of every kind, marks of
many combining classes in every order, syllables of Hangul and their parts, and mixtures.

    python3 tools/make_normalization_cases.py > tests/data/unicode/normalization.txt

SPDX-License-Identifier: Apache-2.0
"""
import random
import unicodedata

FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def numbers(text):
    return " ".join("%04X" % ord(c) for c in text)


def main():
    draw = random.Random(13)
    known = [chr(c) for c in range(0x80, 0x110000)
             if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    marks = [c for c in known if unicodedata.combining(c)]
    composed = [c for c in known if unicodedata.decomposition(c)]
    by_class = {}
    for c in marks:
        by_class.setdefault(unicodedata.combining(c), []).append(c)
    latin = [chr(c) for c in range(0x20, 0x7F)]
    hangul = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A7, 0x11C3))]
    syllables = [chr(c) for c in range(0xAC00, 0xD7A4)]

    def some(pool, least, most):
        return "".join(draw.choice(pool) for _ in range(draw.randint(least, most)))

    def mixed_marks(n):
        return "".join(draw.choice(by_class[draw.choice(list(by_class))]) for _ in range(n))

    texts = [draw.choice(by_class[c]) + "e" + draw.choice(by_class[c]) + draw.choice(by_class[d])
             for c in by_class for d in draw.sample(list(by_class), 3)]
    texts += [unicodedata.normalize("NFD", c) for c in draw.sample(composed, 150)]
    texts += [c + mixed_marks(2) for c in draw.sample(composed, 350)]
    texts += [some(latin, 1, 2) + mixed_marks(draw.randint(2, 40)) for _ in range(120)]
    texts += [some(hangul + syllables[:400], 2, 6) for _ in range(120)]
    texts += [some(latin, 0, 3) + some(composed, 0, 3) + some(known, 0, 4) + some(marks, 0, 5) + some(syllables, 0, 2)
              for _ in range(250)]
    print("# By tools/make_normalization_cases.py, Unicode %s. SPDX-License-Identifier: Apache-2.0"
          % unicodedata.unidata_version)
    for text in texts:
        if text:
            print(";".join([numbers(text)] + [numbers(unicodedata.normalize(form, text)) for form in FORMS]))


main()
