#!/usr/bin/env python3
"""Makes tests/data/tokenizers/components.json: small tokenizers of random normalizers, pre-tokenizers, decoders and added words, with ids and texts by the
Python package tokenizers.

usage: python tools/make_tokenizer_components.py     needs tokenizers 0.22.2
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import random

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENIZERS, TEXTS = 80, 3
SAMPLE = ("The cache holds keys and values; it's 3.5 times as large, isn't it? We'll see in 2026. Ünïcödé naïve café Straße ΑΒΓ αβγ Привет мир "
          "你好世界 こんにちは 안녕하세요 हिन्दी में 🙂👍🏽 ①②③ ½ ﬁ … 123 4567 89\n\ttabs\r\n  double  spaces   ")
CHARACTERS = list("abcdehinorst ABCXYZ 0123456789 .,;:!?'\"-_/()[]{}<>|@#$%^&*+=~`") + [
    "\n", "\t", "\r\n", "  ", "   ", "é", "e\u0301", "ß", "İ", "ı", "ﬁ", "½", "①", "Ω", "Å", "\u212b", "\u00a0", "\u3000", "\u200b", "\u200d", "▁", "你", "の",
    "안", "각", "ᄀ", "ᅡ", "🙂", "👍🏽", "\x01", "\x7f", "\u0085", "\u2028", "'s", "'ll", "'S", "²", "٣", "़", "कि", "\u0300", "\u0327", "Ǆ", "ς", "Σ", "𝒜", "‿"]
PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)", r" ?[^(\s|[.,!?…。，、।۔،])]+", r"\s+", r"[A-Z]?[a-z]+|\d", r"\w+", r"\b", r"[\u4e00-\u9fff\u3040-\u309f]+", r"^.|.$"]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def normalizer(draw, nested=False):
    kind = draw.choice(["none", "form", "lowercase", "strip", "accents", "prepend", "replace", "regex"] + ([] if nested else ["sequence", "sequence"]))
    if kind == "form":
        return getattr(normalizers, draw.choice(["NFC", "NFD", "NFKC", "NFKD"]))()
    if kind == "lowercase":
        return normalizers.Lowercase()
    if kind == "strip":
        return normalizers.Strip(draw.random() < 0.5, draw.random() < 0.5)
    if kind == "accents":
        return normalizers.StripAccents()
    if kind == "prepend":
        return normalizers.Prepend(draw.choice(["▁", " ", "x"]))
    if kind == "replace":
        return normalizers.Replace(draw.choice([" ", "a", "  ", "\n"]), draw.choice(["▁", "", "bb", " "]))
    if kind == "regex":
        return normalizers.Replace(Regex(draw.choice([r" {2,}", r"\s+", r"[0-9]", r"(a|b)+", r"^\s"])), draw.choice([" ", "", "#"]))
    if kind == "sequence":
        return normalizers.Sequence([n for n in (normalizer(draw, True) for _ in range(3)) if n is not None])
    return None


def pre_tokenizer(draw, nested=False):
    kind = draw.choice(["split", "split", "digits", "metaspace", "whitespace", "whitespace_split", "punctuation"] +
                       ([] if nested else ["none", "byte_level", "sequence", "sequence", "sequence"]))
    if kind == "byte_level":
        return pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.4, use_regex=draw.random() < 0.6)
    if kind == "split":
        pattern = Regex(draw.choice(PATTERNS)) if draw.random() < 0.85 else draw.choice([" ", "a", ", "])
        return pre_tokenizers.Split(pattern, draw.choice(BEHAVIORS), draw.random() < 0.3)
    if kind == "digits":
        return pre_tokenizers.Digits(draw.random() < 0.5)
    if kind == "metaspace":
        return pre_tokenizers.Metaspace(replacement=draw.choice(["▁", "▁", "_"]), prepend_scheme=draw.choice(["always", "never", "first"]),
                                        split=draw.random() < 0.6)
    if kind == "whitespace":
        return pre_tokenizers.Whitespace()
    if kind == "whitespace_split":
        return pre_tokenizers.WhitespaceSplit()
    if kind == "punctuation":
        return pre_tokenizers.Punctuation(draw.choice(BEHAVIORS))
    if kind == "sequence":
        steps = [pre_tokenizer(draw, True) for _ in range(draw.randint(1, 3))]
        if draw.random() < 0.5:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.3, use_regex=draw.random() < 0.4))
        return pre_tokenizers.Sequence(steps)
    return None


def train(byte_level):
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=not byte_level))
    if byte_level:
        made.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    made.train_from_iterator([SAMPLE], trainers.BpeTrainer(vocab_size=len(alphabet) + 160, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet,
                                                           show_progress=False))
    model = json.loads(made.to_str())["model"]
    del model["fuse_unk"], model["ignore_merges"]
    if not byte_level:
        for byte in range(256):
            model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    return model


def added_words(draw, vocab):
    words = [{"id": vocab[w], "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for w in ("<unk>", "<s>", "</s>")]
    n_new = 0
    for word in draw.sample(["<|x|>", "[MASK]", "foo", "the", "<tool_call>", "ing", "A B", "123", "it's", "Ünï", "你好"], draw.randint(0, 4)):
        if word not in vocab:
            n_new += 1
        words.append({"id": vocab.get(word, len(vocab) + n_new - 1), "content": word, "single_word": draw.random() < 0.25, "lstrip": draw.random() < 0.25,
                      "rstrip": draw.random() < 0.25, "normalized": draw.random() < 0.5, "special": draw.random() < 0.5})
    return sorted(words, key=lambda word: word["id"])


def text(draw, words):
    parts = []
    for _ in range(draw.randint(1, 8)):
        kind = draw.random()
        parts.append(draw.choice(SAMPLE.split()) if kind < 0.35 else draw.choice(words)["content"] if kind < 0.5 else
                     "".join(draw.choice(CHARACTERS) for _ in range(draw.randint(1, 5))))
        parts.append(draw.choice(["", "", " ", "  "]))
    return "".join(parts)


def inner(members):
    """The text of an object without its braces."""
    return json.dumps(members, ensure_ascii=False)[1:-1]


def state(component):
    return None if component is None else json.loads(component.__getstate__())


def make(draw, vocabularies):
    splits = pre_tokenizer(draw)
    byte_level = splits is not None and "ByteLevel" in json.dumps(state(splits))
    model = vocabularies["byte_level" if byte_level else "plain"]
    around = draw.choice([None, processors.TemplateProcessing(single="<s> $A" + draw.choice(["", " </s>"]), special_tokens=[("<s>", 1), ("</s>", 2)]),
                          processors.ByteLevel(trim_offsets=False), processors.RobertaProcessing(("</s>", 2), ("<s>", 1))])
    decoder = decoders.ByteLevel() if byte_level else draw.choice(
        [None, decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse(), decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
         decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])])
    parts = {"added_tokens": added_words(draw, model["vocab"]), "normalizer": state(normalizer(draw)), "pre_tokenizer": state(splits),
             "post_processor": state(around), "decoder": state(decoder)}
    choices = {"fuse_unk": draw.random() < 0.4, "ignore_merges": draw.random() < 0.3}
    made = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, **parts, "model": {**model, **choices}}))
    texts = []
    for _ in range(TEXTS):
        sample = text(draw, parts["added_tokens"])
        ids = made.encode(sample).ids
        decoded = made.decode(ids, skip_special_tokens=False)
        # Added words with letters beyond ASCII decode to broken characters in byte-level tokenizers there.
        texts.append([sample, ids, None if "\ufffd" in decoded else decoded])
    return {"model": "byte_level" if byte_level else "plain", "choices": inner(choices), "parts": inner(parts), "texts": texts}


def main():
    vocabularies = {"byte_level": train(True), "plain": train(False)}
    cases = [make(random.Random(seed), vocabularies) for seed in range(TOKENIZERS)]
    with open(os.path.join(ROOT, "tests/data/tokenizers/components.json"), "w") as f:
        f.write('{"tokenizers": "%s",\n"models": {' % tokenizers.__version__)
        f.write(",\n".join(f"{json.dumps(name)}: {json.dumps(inner(model), ensure_ascii=False)}" for name, model in vocabularies.items()))
        f.write('},\n"cases": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
