#!/usr/bin/env python3
"""Caches and configurations of an installed Transformers, there and back: Transformers' own logits and tokens are the oracle. Skipped where it, or
torch, is missing.
usage: with_transformers.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import unittest
import warnings

from runner import golden, main, need_numpy
import mneme

IDS = [(7 * i + i * i) % 200 + 3 for i in range(60)]
FAMILIES = ("llama", "qwen2", "mixtral", "gpt2")


def need_transformers():
    need_numpy()
    try:
        import torch
        import transformers
    except ImportError:
        raise unittest.SkipTest("Transformers is not installed") from None
    transformers.utils.logging.set_verbosity_error()
    return torch, transformers


def original(family):
    torch, transformers = need_transformers()
    kind = transformers.WhisperForConditionalGeneration if family.startswith("whisper") else transformers.AutoModelForCausalLM
    return kind.from_pretrained(golden(family), torch_dtype=torch.float32, attn_implementation="eager").eval()


def is_near(got, wanted, tolerance=2e-4):
    return got.shape == wanted.shape and abs(got - wanted).max() <= tolerance * max(1, abs(wanted).max())


# A DynamicCache with the keys and values of a session, as float32 tensors.
def cache_of(session, torch, transformers):
    past = transformers.DynamicCache()
    for i, (keys, values) in enumerate(session.to_legacy_cache()):
        past.update(torch.from_numpy(keys), torch.from_numpy(values), i)
    return past


def transformers_caches_go_on_here():
    torch, transformers = need_transformers()
    for family in FAMILIES:
        theirs, past, n = original(family), transformers.DynamicCache(), 40
        with torch.no_grad():
            theirs(torch.tensor([IDS[:n]]), past_key_values=past, use_cache=True)
            with mneme.Model(golden(family), compute_type="f32") as model, mneme.Session.from_legacy_cache(model, IDS[:n], past, "dynamic", dtype="f32") as session:
                assert session.token_ids == IDS[:n]
                session.step(IDS[n:])
                wanted = theirs(torch.tensor([IDS]), use_cache=False).logits[0, -1].numpy()
                assert is_near(session.logits, wanted), (family, abs(session.logits - wanted).max())


def caches_of_sessions_go_on_there():
    torch, transformers = need_transformers()
    for family in FAMILIES:
        theirs, n = original(family), 40
        with mneme.Model(golden(family), compute_type="f32") as model, model.session("dynamic", dtype="f32") as session, torch.no_grad():
            session.step(IDS[:n])
            past = cache_of(session, torch, transformers)
            assert past.get_seq_length() == n
            position = torch.arange(n, len(IDS))
            got = theirs(torch.tensor([IDS[n:]]), past_key_values=past, use_cache=True, cache_position=position).logits[0, -1].numpy()
            wanted = theirs(torch.tensor([IDS]), use_cache=False).logits[0, -1].numpy()
            assert is_near(got, wanted), (family, abs(got - wanted).max())


def encoder_decoder_caches_go_on_here():
    torch, _ = need_transformers()
    theirs = original("whisper/tiny80")
    frames = 2 * theirs.config.max_source_positions
    features = torch.sin(torch.arange(theirs.config.num_mel_bins * frames).reshape(1, -1, frames) * 0.37)
    ids = IDS[:12]
    with torch.no_grad(), mneme.Model(golden("whisper/tiny80"), compute_type="f32") as model:
        past = theirs(features, decoder_input_ids=torch.tensor([ids[:8]]), use_cache=True).past_key_values
        wanted = theirs(features, decoder_input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()
        with mneme.Session.from_legacy_cache(model, ids[:8], past, "dynamic", dtype="f32") as session:
            session.step(ids[8:])
            assert is_near(session.logits, wanted, 1e-3), abs(session.logits - wanted).max()


def configurations_of_transformers_are_taken():
    torch, transformers = need_transformers()
    given = ({"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}, {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True})
    configs = [transformers.GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=0, **fields) for fields in given]
    for family, config in ((family, config) for family in FAMILIES for config in configs):
        with mneme.Model(golden(family), compute_type="f32") as model, warnings.catch_warnings():
            warnings.simplefilter("error")
            got = model.generate(IDS, generation_config=config)
        theirs = original(family)
        theirs.generation_config = transformers.GenerationConfig()
        wanted = theirs.generate(torch.tensor([IDS]), generation_config=config)[0, len(IDS):].tolist()
        assert got.sequences[0].token_ids == wanted, (family, got, wanted)


main([transformers_caches_go_on_here, caches_of_sessions_go_on_there, encoder_decoder_caches_go_on_here, configurations_of_transformers_are_taken])
