#!/usr/bin/env python3
"""Caches in Python: logits, keys and values as arrays, Transformers' forms, files, plans. Oracles are values recorded from Transformers, the command's
answers, and sessions that compute everything.
usage: caches.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import xml.etree.ElementTree

from runner import command, golden, main, need_numpy, read_safetensors, refused, said
import mneme

IDS = [(7 * i + i * i) % 200 + 3 for i in range(60)]


def recorded(name):
    with open(os.path.join(golden(name), "cases.json")) as file:
        cases = {case["name"]: case for case in json.load(file)["cases"]}
    return cases, read_safetensors(os.path.join(golden(name), "tensors.safetensors"))


def is_near(got, wanted, tolerance=2e-4):
    return got.shape == wanted.shape and abs(got - wanted).max() <= tolerance * max(1, abs(wanted).max())


# Logits after ids, computed anew without a cache.
def fresh(model, ids):
    with model.session("none") as session:
        session.step(ids)
        return session.logits


def whisper():
    model = mneme.Model(golden("whisper/tiny80"), compute_type="f32")
    cases, tensors = recorded("whisper/tiny80")
    session = model.session("dynamic", dtype="f32")
    session.encode(tensors["features.0"])
    return model, cases, tensors, session


# ---- arrays ----


def logits_are_those_of_transformers():
    cases, tensors = recorded("llama")
    with mneme.Model(golden("llama"), compute_type="f32") as model, model.session("dynamic") as session:
        assert session.logits is None
        rows = session.step(cases["score"]["ids"], all_logits=True)
        assert is_near(rows, tensors["score.logits"]) and (rows[-1] == session.logits).all() and str(rows.dtype) == "float32"
        kept = session.logits
        session.step([5])
        assert (kept == rows[-1]).all() and (session.logits != kept).any()


def forks_and_crops_have_the_logits_of_new_sessions():
    need_numpy()
    with mneme.Model(golden("llama"), compute_type="f32") as model, model.session("dynamic") as session:
        session.step(IDS)
        fork = session.fork()
        fork.truncate(40)
        assert fork.logits is None
        fork.step([9])
        assert is_near(fork.logits, fresh(model, IDS[:40] + [9])) and is_near(session.logits, fresh(model, IDS))
        assert fork.sync(IDS[:40] + [8, 7]) == 40 and fork.token_ids == IDS[:40] + [8, 7]
        assert is_near(fork.logits, fresh(model, IDS[:40] + [8, 7]))
        fork.set_cache("quantized", nbits=8, residual_length=0)
        assert fork.cache.implementation == "quantized" and fork.token_ids == IDS[:40] + [8, 7]


def keys_and_values_are_those_of_transformers():
    model, cases, tensors, session = whisper()
    with model, session:
        session.step(cases["cache.legacy"]["base"])
        trace = cases["cache.trace"]
        layer, n = trace["stored_layer"], trace["legacy"]["layers"]
        assert session.num_layers == 2 * n and session.layer(layer).kind == "self" and session.layer(n).kind == "cross"
        for name, index in (("self", layer), ("cross", n + layer)):
            for method in ("keys", "values"):
                assert is_near(getattr(session, method)(index), tensors[f"cache.{name}.{layer}.{method}"]), (name, method)
        assert (session.keys(layer, 2, 3) == session.keys(layer)[:, 2:5]).all() and session.values(layer, 5).shape == (4, 3, 16)
        assert [list(array.shape) for array in session.to_legacy_cache()[layer]] == trace["legacy"]["shapes"]
        assert session.kv_shape(layer) == (1, 4, 8, 16)
        refused(ValueError, "layer is 4", lambda: session.keys(4))
        refused(ValueError, "tokens 6 to 9", lambda: session.keys(0, 6, 3))
        refused(ValueError, "it has 0 to 8", lambda: session.keys(0, -1))


# Every operation whose logits were recorded, in the order of Transformers: the base, the operation, one more token.
def operations_have_the_logits_of_transformers():
    model, cases, tensors, session = whisper()
    with model:
        rows = cases["cache.reorder.swap"]["rows"]
        session.step(rows[0])
        other = model.session("dynamic", dtype="f32")
        other.encode(tensors["features.1"])
        other.step(rows[1])
        for name, index in (("reorder.swap", [1, 0]), ("reorder.first", [0, 0]), ("reorder.second", [1, 1]), ("select", [1])):
            probe = cases[f"cache.{name}"]["probe"]
            given = [session.fork(), other.fork()]
            chosen = mneme.select_sessions(given, index)
            assert len(chosen) == len(index) and all(old.closed == (i not in index) for i, old in enumerate(given))
            assert all(chosen[index.index(i)] is old for i, old in enumerate(given) if i in index)
            mneme.step_sessions(chosen, [probe] * len(index))
            for row, wanted in zip(chosen, tensors[f"cache.{name}.logits"]):
                assert is_near(row.logits, wanted), name
        crop = session.fork()
        crop.truncate(cases["cache.crop.6"]["argument"])
        crop.step([cases["cache.crop.6"]["probe"]])
        assert is_near(crop.logits, tensors["cache.crop.6.logits"][0])
        refused(ValueError, "token ids must be", lambda: crop.step([2**32 + 5]))
        refused(ValueError, "token ids must be", lambda: crop.step([1.5]))
        refused(ValueError, "given twice", lambda: mneme.step_sessions([crop, crop], [1, 1]))
        refused(ValueError, "1 token ids for 2", lambda: mneme.step_sessions([crop, session], [1]))
        refused(ValueError, "index 0 is 2, allowed: 0 to 1", lambda: mneme.select_sessions([crop, session], [2]))
        assert not crop.closed and len(session) == 8


# ---- Transformers' forms ----


class Tensor:
    """As torch's, of which the package uses these methods."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    cpu = float = detach

    def numpy(self):
        return self.array


def caches_of_transformers_become_sessions():
    np = need_numpy()
    model, cases, tensors, session = whisper()
    base, probe, wanted = (cases["cache.legacy"]["base"], cases["cache.legacy"]["probe"], tensors["cache.legacy.logits"][0])
    with model, session:
        session.step(base)
        past = session.to_legacy_cache()
        assert [len(layer) for layer in past] == [4, 4]
        owns = [types.SimpleNamespace(keys=Tensor(k), values=Tensor(v)) for k, v, _, _ in past]
        crosses = [types.SimpleNamespace(keys=k, values=v) for _, _, k, v in past]
        both = types.SimpleNamespace(self_attention_cache=types.SimpleNamespace(layers=owns), cross_attention_cache=types.SimpleNamespace(layers=crosses))
        doubled = tuple(tuple(np.concatenate([np.zeros_like(array), array]) for array in layer) for layer in past)
        for given, row in ((past, 0), (both, 0), (types.SimpleNamespace(to_legacy_cache=lambda: past), 0), (doubled, 1)):
            with mneme.Session.from_legacy_cache(model, base, given, "static", row=row, max_cache_len=20, dtype="f32") as loaded:
                assert loaded.logits is None and loaded.token_ids == base and loaded.cache.implementation == "static"
                loaded.step([probe])
                assert is_near(loaded.logits, wanted)
        refused(ValueError, "past has 2 layers, the model has 4", lambda: mneme.Session.from_legacy_cache(model, base, [l[:2] for l in past]))
        refused(ValueError, "keys of layer 0 have the shape (4, 8, 16)", lambda: mneme.Session.from_legacy_cache(model, base[:7], past))
        refused(ValueError, "row 3", lambda: mneme.Session.from_legacy_cache(model, base, doubled, row=3))
        refused(ValueError, "must be a cache of Transformers", lambda: mneme.Session.from_legacy_cache(model, base, [[1]]))
        refused(ValueError, "must be an array of numbers", lambda: mneme.Session.from_legacy_cache(model, base, [["a", "b"]] * 4))


def legacy_files_have_the_same_arrays():
    need_numpy()
    with mneme.Model(golden("llama"), compute_type="f32") as model, tempfile.TemporaryDirectory() as folder:
        session, path, own = model.session("dynamic", dtype="f32"), os.path.join(folder, "kv.safetensors"), os.path.join(folder, "own.safetensors")
        session.step(IDS)
        session.export(path)
        session.save(own)
        by_command = os.path.join(folder, "command.safetensors")
        said("cache", "convert", own, by_command, "--legacy", "-m", golden("llama"))
        for file in (path, by_command):
            tensors = read_safetensors(file)
            assert tensors["ids"].tolist() == [IDS]
            for i, (key, value) in enumerate(session.to_legacy_cache()):
                assert (tensors[f"key.{i}"] == key).all() and (tensors[f"value.{i}"] == value).all()
        fork = session.fork()
        fork.truncate(-20)
        mneme.export_sessions([session, fork], path)
        assert mneme.legacy_rows(path) == 2 and read_safetensors(path)["attention_mask"].sum(1).tolist() == [60, 40]
        with mneme.Session.import_file(model, path, "offloaded", row=1) as loaded:
            assert loaded.token_ids == IDS[:40]
            loaded.step([9])
            assert is_near(loaded.logits, fresh(model, IDS[:40] + [9]))
        refused(ValueError, "row is 2, the file has 2", lambda: mneme.Session.import_file(model, path, row=2))
        mneme.save_tensor(path, "x", [[1, 2, 3], [4, 5, 6]])
        assert read_safetensors(path)["x"].tolist() == [[1, 2, 3], [4, 5, 6]]


# ---- files ----


def saved_caches_are_described_and_verified():
    with mneme.Model(golden("llama")) as model, tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        path, copy, key = (os.path.join(folder, name) for name in ("a.safetensors", "b.safetensors", "key"))
        with open(key, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(b"k" * 32)
        with model.session("quantized", nbits=4, residual_length=16, key_file=key) as session:
            session.step(IDS)
            session.save(path)
        wanted = command("cache", "show", path, "--json")
        got = mneme.describe_cache_file(path)
        assert got["bytes"] == os.path.getsize(path) and got["members"] == wanted["members"] and got["entries"] == wanted["entries"], (got, wanted)
        assert got["members"]["strategy"] and mneme.is_cache_file(path) and not mneme.is_cache_file(key)
        mneme.verify_cache_file(path, key_file=key)
        mneme.copy_cache_file(path, copy, compression="zstd", key_file=key)
        assert {entry["compression"] for entry in mneme.describe_cache_file(copy)["entries"]} == {None, "zstd"}
        said("cache", "verify", copy, "--cache-key-file", key)
        with mneme.Session.load(model, copy, "quantized", nbits=4, residual_length=16, key_file=key) as loaded:
            assert loaded.token_ids == IDS
        refused(mneme.RefusedError, "not the requested 'sink'", lambda: mneme.Session.load(model, copy, "sink", key_file=key))
        with mneme.Session.open_cached(model, folder, IDS + [5], "quantized", nbits=4, residual_length=16, key_file=key) as found:
            assert found.token_ids == IDS
        with mneme.Session.open_cached(model, folder, [5, 6], "quantized", nbits=4, residual_length=16) as found:
            assert len(found) == 0
        with open(path, "r+b") as file:
            file.seek(-3, 2)
            last = file.read(1)
            file.seek(-3, 2)
            file.write(bytes([last[0] ^ 1]))
        refused(mneme.RefusedError, "a.safetensors", lambda: mneme.verify_cache_file(path))


# ---- models and plans ----


def models_and_caches_are_described():
    listed = command("list", "--json")["models"]
    assert mneme.list_models() == listed and listed[0]["name"] == "embedded"
    inspected = command("inspect", "--kernels", "--json")
    machine = mneme.machine()
    assert machine["cpu"] == inspected["cpu"] and set(machine) & set(inspected), (machine, inspected)
    strategies = json.dumps(mneme.cache_strategies())
    assert all(f'"{name}"' in strategies for name in ("dynamic", "quantized", "sink", "static", "nbits"))
    summary = mneme.check_cache("static", max_cache_len=64)
    assert summary.preallocates and summary.max_cache_len == 64 and summary.page_tokens == 128 and not summary.has_unbounded_context
    refused(ValueError, "nbits", lambda: mneme.check_cache("quantized", nbits=99))
    with mneme.Model(golden("llama")) as model:
        assert re.fullmatch("[0-9a-f]{32}", model.fingerprint)
        with tempfile.TemporaryDirectory() as folder, model.session() as session:
            path = os.path.join(folder, "c.safetensors")
            session.step([1, 2])
            session.save(path)
            assert model.fingerprint in json.dumps(command("cache", "show", path, "--json"))
        warnings = model.cache_warnings("quantized", compute_dtype="float16")
        assert len(warnings) == 1 and "compute_dtype" in warnings[0] and model.cache_warnings("dynamic") == []
        plan = model.memory_plan(50, 10, rows=4, cache="quantized", nbits=4)
        by_command = command("inspect", golden("llama"), "--context", "50", "--new-tokens", "10", "--rows", "4", "--cache", "quantized", "--cache-config",
                             "nbits=4", "--json")
        assert str(plan.cache_bytes) in json.dumps(by_command) and plan.cache_bytes == max(plan.prompt_bytes, plan.rows_bytes) > 0, (plan, by_command)
        described = command("inspect", golden("llama"), "--context", "77", "--json")["caches"]
        assert [cache["bytes"] for cache in model.describe(77)["caches"]] == [cache["bytes"] for cache in described]


def calibrations_are_used():
    ids = [(7 * i + i * i) % 300 + 3 for i in range(400)]
    with mneme.Model(golden("llama")) as model, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "calibration")
        model.calibrate(ids, path)
        model.set_calibration(path)
        with model.session("quantized", nbits=3) as session:
            session.step(ids)
            session.save(os.path.join(folder, "a"))
            assert command("cache", "show", os.path.join(folder, "a"), "--json")["members"]["strategy"]["calibration"]
        model.set_calibration(None)
        refused(mneme.RefusedError, "calibration", lambda: mneme.Session.load(model, os.path.join(folder, "a")))
        refused(ValueError, "384", lambda: model.calibrate(ids[:100], path))
        refused(FileNotFoundError, "nothere", lambda: model.set_calibration("/nothere"))


def packed_weights_are_saved_and_mapped():
    with tempfile.TemporaryDirectory() as folder:
        packed = os.path.join(folder, "packed")
        with mneme.Model(golden("llama")) as model:
            wanted, n_bytes = list(model.generate([3, 4, 5], max_new_tokens=8)[0].token_ids), model.save_packed(packed)
        (name,) = os.listdir(packed)
        assert 0 < os.path.getsize(os.path.join(packed, name)) - n_bytes < 4096
        with mneme.Model(golden("llama"), packed_dir=packed) as model:
            assert list(model.generate([3, 4, 5], max_new_tokens=8)[0].token_ids) == wanted
        with mneme.Model(golden("llama")) as model:
            refused(mneme.ArgumentError, "no folder was named", lambda: model.save_packed(""))


def sessions_are_shown_as_html():
    with mneme.Model(golden("llama")) as model, model.session("quantized", nbits=4, residual_length=16, page_tokens=16) as session:
        session.step(IDS)
        info = session.layer(0)
        assert info.tokens == info.held_tokens == 60 and 0 < info.quantized_tokens < 60 and info.key_bits == 4 and info.key_codec == "mneme"
        root = xml.etree.ElementTree.fromstring(session._repr_html_().replace("&#9632;", ""))
        text = "".join(root.itertext())
        assert f"60 tokens held, 60 seen, {info.quantized_tokens} quantized" in text and f"{session.cache.bytes:,} bytes" in text
        per_token = info.num_key_value_heads * (info.k_head_dim + info.v_head_dim)
        assert f"layer 0, self: 60 of 60 tokens, {per_token * 4 * (60 - info.quantized_tokens) + per_token * info.quantized_tokens // 2:,} bytes" in text
        assert text.count("layer ") == session.num_layers + 1
        assert f"tokens of layer 0, from the first to the newest: 4 exact, {info.quantized_tokens} quantized, {56 - info.quantized_tokens} exact" in text
        widths = [float(rect.get("width")) for rect in root.find(".//svg[@aria-label='tokens']").iter("rect")]
        assert [round(width * 60 / 360) for width in widths] == [4, 0, info.quantized_tokens, 56 - info.quantized_tokens]
        assert session.cache.unique_bytes == session.cache.bytes and "shared" not in session._repr_html_()
        with session.fork() as fork:
            fork.step([7])
            shared = session.cache.bytes - session.cache.unique_bytes
            assert 0 < shared <= session.cache.bytes and f"{shared:,} shared with other sessions" in session._repr_html_()
            assert 0 < fork.cache.unique_bytes < fork.cache.bytes
        assert session.cache.unique_bytes == session.cache.bytes
        session.close()
        assert "closed" in session._repr_html_()
    with mneme.Model(golden("jamba")) as model, model.session() as session:
        session.step(IDS)
        assert "layer 0: a state after 60 tokens" in session._repr_html_() and "layer 1, self: 60 of 60 tokens" in session._repr_html_()
    with mneme.Model(golden("llama")) as model, model.session("sink", window_length=24, num_sink_tokens=4, page_tokens=4) as session:
        session.step(IDS)
        info = session.layer(0)
        assert info.first_held > 0 and info.window_length == 24 and info.first_exact == 4 and info.held_tokens < 60
        assert "60 seen" in session._repr_html_()
        assert f"newest: 4 exact, {60 - info.held_tokens} dropped, {info.held_tokens - 4} exact" in session._repr_html_()


# ---- loops of a program's own ----


def samplers_choose_the_tokens_of_generate():
    need_numpy()
    for name in ("embedded", golden("llama")):
        with mneme.Model(name) as model:
            for fields in ({"do_sample": True, "seed": 7, "temperature": 0.9, "top_k": 20}, {"repetition_penalty": 1.4}):
                wanted, sampler = model.generate(IDS, max_new_tokens=12, **fields)[0].token_ids, mneme.Sampler(model, IDS, **fields)
                with model.session() as session, sampler:
                    session.step(IDS)
                    for token in wanted:
                        chosen, scores = sampler.choose(session.logits, return_scores=True)
                        assert chosen == token == sampler.choose(session.logits.tolist()) and scores[token] > -1e30
                        sampler.accept(token)
                        session.step([token])
                    assert sampler.seed == fields.get("seed", sampler.seed)
            refused(ValueError, "logits have the shape (3,)", lambda: mneme.Sampler(model, IDS).choose([1, 2, 3]))
            refused(ValueError, "beam search", lambda: mneme.Sampler(model, IDS, num_beams=2))


def pieces_of_text_are_those_of_decode():
    with mneme.Model("embedded") as model:
        tokenizer = model.tokenizer
        text = "The naïve 日本 😀\0 end."
        ids = tokenizer.encode(text)
        with mneme.Detokenizer(tokenizer) as pieces:
            for _ in range(2):
                parts = [pieces.push(token) for token in ids]
                assert "".join(parts) + pieces.finish() == tokenizer.decode(ids) and "" in parts and len(set(parts)) > 5
            refused(ValueError, "512", lambda: pieces.push([512]))
        with mneme.Detokenizer(tokenizer, skip_special_tokens=True) as pieces:
            assert pieces.push(ids) + pieces.finish() == text
        data = b"".join(tokenizer.token_bytes(token, first=i == 0) for i, token in enumerate(ids[1:]))
        assert data == text.encode() and tokenizer.token_bytes(ids[0]) == b""
        refused(ValueError, "-1", lambda: tokenizer.token_bytes(-1))


# The head's product with the states gives the logits of a session; the rest follows by definition.
def embeddings_are_the_states_before_the_head():
    np = need_numpy()
    head = read_safetensors(os.path.join(golden("llama-untied-bias"), "model.safetensors"))["lm_head.weight"].astype(np.float64)
    ids, other = [5, 9, 31, 200, 7, 7, 13], [4, 80, 3]
    with mneme.Model(golden("llama-untied-bias"), compute_type="f32") as model:
        states = model.embed(ids, pooling="none", normalize=False)
        assert states.shape == (7, 96) and states.dtype == np.float32
        with model.session() as session:
            assert np.abs(states @ head.T - session.step(ids, all_logits=True)).max() < 2e-4
        rows = {"mean": states.mean(axis=0, dtype=np.float64), "cls": states[0], "last": states[-1]}
        for pooling, wanted in rows.items():
            for normalize in (False, True):
                both = model.embed([ids, other], pooling=pooling, normalize=normalize)
                assert both.shape == (2, 96) and np.abs(both[0] - wanted / (np.linalg.norm(wanted) if normalize else 1)).max() < 1e-5
                for row, text in zip(both, (ids, other)):
                    assert np.array_equal(row, model.embed(text, pooling=pooling, normalize=normalize))
        assert abs(np.linalg.norm(model.embed(np.array(ids))) - 1) < 1e-5
        assert [rows.shape for rows in model.embed([ids, other], pooling="none")] == [(7, 96), (3, 96)]
        refused(ValueError, "pooling is 'max', allowed: none, mean, cls, last", lambda: model.embed(ids, pooling="max"))
        refused(ValueError, "token 0 is 320, allowed: 0 to 319", lambda: model.embed([320]))
        refused(ValueError, "no token was given", lambda: model.embed([]))
    with mneme.Model("embedded") as model:
        texts = ["The sea is wide.", "A cat"]
        assert np.array_equal(model.embed(texts), model.embed([model.tokenizer.encode(text) for text in texts]))
        assert np.array_equal(model.embed(texts[1]), model.embed(texts)[1])


def numpy_is_needed_by_arrays_alone():
    program = ("import sys\nsys.modules['numpy'] = None\nimport mneme\nmodel = mneme.Model('embedded')\nsession = model.session()\nsession.step([1, 2])\n"
               "print(session.layer(0).tokens, session.sync([1, 2, 3]))\ntry:\n    session.logits\nexcept ImportError as error:\n    print(error)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "2 2\narrays need numpy, which is not installed: pip install numpy\n", done


CASES = [logits_are_those_of_transformers, forks_and_crops_have_the_logits_of_new_sessions, keys_and_values_are_those_of_transformers,
         operations_have_the_logits_of_transformers, caches_of_transformers_become_sessions, legacy_files_have_the_same_arrays,
         saved_caches_are_described_and_verified, models_and_caches_are_described, calibrations_are_used, packed_weights_are_saved_and_mapped,
         sessions_are_shown_as_html,
         samplers_choose_the_tokens_of_generate, pieces_of_text_are_those_of_decode, numpy_is_needed_by_arrays_alone,
         embeddings_are_the_states_before_the_head]


if __name__ == "__main__":
    main(CASES)
