#!/usr/bin/env python3
"""Makes tiny random checkpoints with golden outputs of Transformers: tests/data/golden/<family> (described in its README).

usage: OMP_NUM_THREADS=1 python tools/make_goldens.py FOLDER [family ...]

Needs transformers 4.56.2, torch, safetensors. A target is the model run over the whole sequence without a cache, in float32
with eager attention; prompts are drawn until no greedy choice is nearer to the next best than MARGIN. Every checkpoint is also
run in float64: the distance is printed and must stay below 1e-4.
"""
import json
import sys

import torch
import transformers
from safetensors.torch import save_file

VOCAB, MARGIN, NEW = 256, 4e-3, 40
SMALL = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
FAMILIES = {
    "qwen3-moe": ("Qwen3Moe", dict(head_dim=24, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40,
                                   norm_topk_prob=True, decoder_sparse_step=1)),
    "qwen2-moe": ("Qwen2Moe", dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
                                   shared_expert_intermediate_size=72, decoder_sparse_step=1)),
    "olmo2": ("Olmo2", dict()),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=4, rope_theta=10000.0)),
    "stablelm": ("StableLm", dict(use_qkv_bias=True, partial_rotary_factor=0.25, tie_word_embeddings=False)),
    "phi": ("Phi", dict(num_key_value_heads=4, partial_rotary_factor=0.5)),
    "cohere": ("Cohere", dict(logit_scale=0.25)),
    "gemma": ("Gemma", dict(head_dim=24)),
}


def make_model(family, seed):
    name, more = FAMILIES[family]
    config = getattr(transformers, name + "Config")(**{**SMALL, **more})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, name + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn_like(p)
            if key.endswith("bias"):
                p.copy_(0.2 * noise)
            elif p.dim() < 2 or "norm" in key:
                p.copy_((0 if family == "gemma" else 1) + 0.2 * noise)
            elif "embed_tokens" in key:
                p.copy_((0.03 if family == "gemma" else 0.25 if config.tie_word_embeddings else 0.6) * noise)
            else:
                p.copy_(1.2 * noise / p.shape[-1] ** 0.5)
    return model


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, prompt):
    ids, rows, margin = list(prompt), [], float("inf")
    for _ in range(NEW):
        row = logits_of(model, ids)[-1]
        rows.append(row)
        open_row = row.clone()
        open_row[2] = -float("inf")  # min_new_tokens: no end before NEW tokens
        best = open_row.topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        if margin < MARGIN:
            return None
        ids.append(int(best.indices[0]))
    if len(set(ids[len(prompt):])) < NEW / 3:  # runs of one id would show little
        return None
    return ids[len(prompt):], torch.stack(rows), margin


def make_family(folder, family, seed):
    model = make_model(family, seed)
    draw = torch.Generator().manual_seed(seed)
    random_ids = lambda n: torch.randint(3, VOCAB, (n,), generator=draw).tolist()
    score = random_ids(48)
    tensors = {"score.ids": torch.tensor(score, dtype=torch.int32), "score.logits": logits_of(model, score).contiguous()}
    exact = logits_of(model.double(), score)
    floor = float((exact - tensors["score.logits"]).abs().max())
    assert floor < 1e-4, (family, floor)
    model.float()
    args = {"max_new_tokens": NEW, "min_new_tokens": NEW}
    cases = [{"name": "score", "kind": "score", "ids": score}]
    for i, n in enumerate((17, 5)):
        found = None
        while not found:
            prompt = random_ids(n)
            found = greedy(model, prompt)
        new, rows, margin = found
        hf = model.generate(torch.tensor([prompt]), do_sample=False, **args)[0, n:].tolist()
        cases.append({"name": f"greedy{i}", "kind": "generate", "ids": prompt, "args": args, "new": [new], "margin": margin,
                      "hf_agrees": hf == new, **({} if hf == new else {"hf_new": [hf]})})
        if i == 0:
            tensors["greedy0.logits"] = rows.contiguous()
    where = f"{folder}/{family}"
    model.save_pretrained(where)
    save_file(tensors, f"{where}/tensors.safetensors")
    with open(f"{where}/cases.json", "w") as f:
        json.dump({"family": family, "transformers": transformers.__version__, "torch": torch.__version__,
                   "attention": "eager", "cases": cases}, f)
        f.write("\n")
    print(f"{family}: largest logit {float(exact.abs().max()):.2f}, float64 {floor:.1e}, "
          f"margins {cases[1]['margin']:.4f} {cases[2]['margin']:.4f}, agrees {cases[1]['hf_agrees']} {cases[2]['hf_agrees']}",
          flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for i, family in enumerate(FAMILIES):
        if family in (sys.argv[2:] or FAMILIES):
            make_family(sys.argv[1], family, 100 + i)
