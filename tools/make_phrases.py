#!/usr/bin/env python3
"""Makes tests/data/golden/decoding/phrases.json: beams of Transformers with forced phrases and with choices of forms, on the checkpoint `llama`.

usage: python tools/make_phrases.py     needs transformers 4.56.2 and torch

Two faults of Transformers are avoided: a choice that is under way shares its tokens with its copies, and banks are ordered by 100 * bank + score. Cases
count where the classes give the same as a run in float64 in which both are mended.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import random

import torch
import transformers
from transformers.generation import beam_constraints, beam_search

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/data/golden")
CASES = 8
SETTINGS = [
    ([[7, 9], [44]], {}),
    ([[[57], [44, 12]]], {}),
    ([[[57, 30], [57, 31], [44]], [9]], {"num_beams": 5}),
    ([[[12, 13, 14], [12, 15], [99]]], {"num_return_sequences": 1, "max_new_tokens": 16}),
    ([[5, 6], [[70, 71], [72]]], {"early_stopping": True, "eos_token_id": [83, 149, 173]}),
    ([[[31, 32], [33]], [[31, 40], [50]]], {"length_penalty": 0.0, "num_beams": 6}),
    ([[[8, 9], [10, 11, 12]], [200]], {"early_stopping": "never", "length_penalty": 1.5, "max_new_tokens": 20}),
    ([[[57], [58], [59], [60]]], {"num_beams": 2, "num_return_sequences": 1, "repetition_penalty": 1.3}),
]


def copy_choice(self, stateful=False):
    other = beam_constraints.DisjunctiveConstraint(self.token_ids)
    if stateful:
        other.current_seq, other.completed = list(self.current_seq), self.completed
    return other


def mended(run):
    stock, scale = beam_constraints.DisjunctiveConstraint.copy, beam_constraints.ConstraintListState.get_bank
    beam_constraints.DisjunctiveConstraint.copy = copy_choice
    beam_constraints.ConstraintListState.get_bank = lambda self: 1000 * scale(self)
    try:
        return run()
    finally:
        beam_constraints.DisjunctiveConstraint.copy, beam_constraints.ConstraintListState.get_bank = stock, scale


def main():
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(FOLDER, "llama"), attn_implementation="eager", torch_dtype=torch.float32)
    draw, cases = random.Random(7), []

    @torch.no_grad()
    def texts(ids, args):
        out = model.generate(torch.tensor([ids]), do_sample=False, use_cache=False, pad_token_id=0, return_dict_in_generate=True, output_scores=True, **args)
        return out.sequences[:, len(ids):].tolist(), out.sequences_scores.tolist()

    for i, (phrases, more) in enumerate(SETTINGS):
        args = {"max_new_tokens": 12, "num_beams": 4, "num_return_sequences": 2, "force_words_ids": phrases, **more}
        while True:
            ids = [draw.randrange(3, 320) for _ in range(draw.randint(3, 8))]
            model.float()
            got, scores = texts(ids, args)
            model.double()
            if mended(lambda: texts(ids, args))[0] == got:
                break
        cases.append({"name": f"phrases{i}", "ids": ids, "args": args, "new": got, "scores": scores})
    with open(os.path.join(FOLDER, "decoding/phrases.json"), "w") as f:
        f.write('{"transformers": "%s", "torch": "%s", "checkpoint": "llama", "cases": [\n' % (transformers.__version__, torch.__version__))
        f.write(",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
