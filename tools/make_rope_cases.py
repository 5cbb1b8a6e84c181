#!/usr/bin/env python3
"""Writes tests/data/rope/cases.json: rotary frequencies for every scaling rule, and cosines and sines at large positions.

The formulas are written out from their publications and from the documented behaviour of Transformers, apart from the C
code; powers, logarithms and trigonometric series are evaluated with 50 decimal digits, so that the values are correct to the last bit of a double.

    python3 tools/make_rope_cases.py > tests/data/rope/cases.json

SPDX-License-Identifier: Apache-2.0
"""
import json
from decimal import Decimal as D, ROUND_CEILING, ROUND_FLOOR, getcontext

getcontext().prec = 50
PI = D("3.14159265358979323846264338327950288419716939937510582097494")

BASE = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "head_dim": 64, "vocab_size": 32, "max_position_embeddings": 2048,
        "rope_theta": 10000.0}


def exact(x):
    return D(x)  # a float becomes its exact value


def power(base, exponent):
    return (base.ln() * exponent).exp()


def plain(base, d):
    return [1 / power(base, D(2 * j) / D(d)) for j in range(d // 2)]


def yarn(s, base, d, max_position):
    orig = D(s.get("original_max_position_embeddings", max_position))
    factor = exact(s["factor"])

    def find(turns):
        return D(d) * (orig / (2 * PI * turns)).ln() / (2 * base.ln())

    low, high = find(exact(s.get("beta_fast") or 32)), find(exact(s.get("beta_slow") or 1))
    if s.get("truncate", True):
        low = low.to_integral_value(rounding=ROUND_FLOOR)
        high = high.to_integral_value(rounding=ROUND_CEILING)
    low, high = max(low, D(0)), min(high, D(d - 1))
    if low == high:
        high += D("0.001")
    out = []
    for j, f in enumerate(plain(base, d)):
        ramp = min(max((D(j) - low) / (high - low), D(0)), D(1))
        out.append(f / factor * ramp + f * (1 - ramp))

    def magnitude(m):
        return D("0.1") * m * factor.ln() + 1 if factor > 1 else D(1)

    if s.get("attention_factor") is not None:
        m = exact(s["attention_factor"])
    elif s.get("mscale") and s.get("mscale_all_dim"):
        m = magnitude(exact(s["mscale"])) / magnitude(exact(s["mscale_all_dim"]))
    else:
        m = magnitude(D(1))
    return out, m


def llama3(s, base, d):
    factor, low, high = exact(s["factor"]), exact(s["low_freq_factor"]), exact(s["high_freq_factor"])
    orig = D(s["original_max_position_embeddings"])
    out = []
    for f in plain(base, d):
        wave = 2 * PI / f
        if wave < orig / high:
            out.append(f)
        elif wave > orig / low:
            out.append(f / factor)
        else:
            smooth = (orig / wave - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def longrope(s, base, d, config, length):
    orig = D(config.get("original_max_position_embeddings", s.get("original_max_position_embeddings", 0)))
    max_position = D(config["max_position_embeddings"])
    if orig == 0:
        orig, scale = max_position, exact(s["factor"])
    else:
        scale = max_position / orig
    ext = s["long_factor"] if length > orig else s["short_factor"]
    out = [f / exact(e) for f, e in zip(plain(base, d), ext)]
    if s.get("attention_factor") is not None:
        m = exact(s["attention_factor"])
    else:
        m = (1 + scale.ln() / orig.ln()).sqrt() if scale > 1 else D(1)
    return out, m, int(length > orig)


def frequencies(config, length):
    """-> (frequencies, attention factor, regime)"""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    d = int(head * config.get("partial_rotary_factor", 1.0))
    base = exact(config["rope_theta"])
    s = config.get("rope_scaling") or {"rope_type": "default"}
    kind = s.get("rope_type", s.get("type"))
    if kind == "default":
        return plain(base, d), D(1), 0
    if kind == "linear":
        return [f / exact(s["factor"]) for f in plain(base, d)], D(1), 0
    if kind == "dynamic":
        most = config["max_position_embeddings"]
        factor, used = exact(s["factor"]), max(length, most)
        grown = base * power(factor * used / most - (factor - 1), D(d) / D(d - 2))
        return plain(grown, d), D(1), length if length > most else 0
    if kind == "llama3":
        return llama3(s, base, d), D(1), 0
    if kind == "yarn":
        return (*yarn(s, base, d, config["max_position_embeddings"]), 0)
    if kind in ("longrope", "su"):
        return longrope(s, base, d, config, length)
    raise ValueError(kind)


def cos_sin(angle):
    """Taylor series after reduction by whole turns."""
    angle = angle % (2 * PI)
    sums = [D(0), D(0)]
    term, k = D(1), 0
    while abs(term) > D(10) ** -40 or k < 10:
        sums[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = term * angle / k
    return sums


def factors(n, first, step):
    return [round(first + step * j, 4) for j in range(n)]


def scaled(scaling, **changes):
    return {**BASE, **changes, "rope_scaling": scaling}


def cases():
    yield "default", BASE, [1, 100000]
    yield "default, theta 500000, head 128", {**BASE, "head_dim": 128, "rope_theta": 500000.0}, [1]
    yield "default, partial 0.75", {**BASE, "head_dim": 128, "partial_rotary_factor": 0.75}, [1]
    yield "linear 4", scaled({"rope_type": "linear", "factor": 4.0}), [1, 9000]
    yield "linear 2.5, older key", scaled({"type": "linear", "factor": 2.5}, head_dim=16), [1]
    yield "dynamic 2", scaled({"rope_type": "dynamic", "factor": 2.0}), [1, 2048, 2049, 4096, 20000]
    yield "dynamic 3.5, head 32", scaled({"type": "dynamic", "factor": 3.5}, head_dim=32), [2047, 2100]
    yield "dynamic 1", scaled({"type": "dynamic", "factor": 1.0}), [5000]
    for factor in (8.0, 32.0):
        rule = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}
        yield f"llama3 {factor:g}", scaled(rule, rope_theta=500000.0, max_position_embeddings=131072), [1]
    rule = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 3.0,
            "original_max_position_embeddings": 64}
    yield "llama3, narrow band, short", scaled(rule, head_dim=32), [600]
    rule = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    yield "yarn 4", scaled(rule, max_position_embeddings=8192), [1, 8192]
    yield "yarn 4, unchanged maximum", scaled(rule), [1]
    yield "yarn, not truncated", scaled({**rule, "truncate": False}), [1]
    yield "yarn, attention_factor", scaled({**rule, "attention_factor": 1.25}), [1]
    yield "yarn, mscale", scaled({**rule, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0}), [1]
    yield "yarn, mscale alone", scaled({**rule, "mscale": 0.707}), [1]
    yield "yarn, betas", scaled({**rule, "beta_fast": 16.0, "beta_slow": 2.0}), [1]
    yield "yarn, equal betas", scaled({**rule, "beta_fast": 4.0, "beta_slow": 4.0, "truncate": False}), [1]
    yield "yarn, no original length", scaled({"rope_type": "yarn", "factor": 1.0}, max_position_embeddings=4096), [1]
    yield "yarn, short original", scaled({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
                                         head_dim=32), [1]
    yield "yarn, partial", scaled(rule, partial_rotary_factor=0.5), [1]
    rule = {"type": "longrope", "short_factor": factors(32, 1.0, 0.02), "long_factor": factors(32, 1.5, 0.9)}
    phi3 = {"model_type": "phi3", "original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
    yield "longrope", scaled(rule, **phi3), [1, 4096, 4097, 131072]
    yield "longrope, older name", scaled({**rule, "type": "su"}, **phi3), [10]
    yield "longrope, attention_factor", scaled({**rule, "attention_factor": 1.5}, **phi3), [5000]
    yield "longrope, not longer", scaled(rule, **{**phi3, "max_position_embeddings": 4096}), [4096]
    yield "longrope, factor", scaled({**rule, "factor": 16.0}, max_position_embeddings=8192), [8192, 8193]
    yield "longrope, original inside", scaled({**rule, "original_max_position_embeddings": 1024}), [1024, 1025]
    yield "longrope, partial", scaled({**rule, "short_factor": factors(24, 1, 0.5), "long_factor": factors(24, 2, 2)},
                                      **phi3, partial_rotary_factor=0.75), [1, 5000]


def main():
    out = []
    for name, config, lengths in cases():
        for length in lengths:
            f, m, regime = frequencies(config, length)
            out.append({"name": name, "config": config, "total_length": length, "regime": regime,
                        "attention_factor": float(m), "inverse_frequencies": [float(x) for x in f]})
    rows = []
    for name, config in (("default", BASE), ("yarn 4", next(c for n, c, _ in cases() if n == "yarn 4"))):
        f, m, _ = frequencies(config, 1)
        for position in (0, 1, 2, 511, 512, 4097, 131071, 1048577, 4000000):
            pairs = [cos_sin(position * x) for x in f]
            rows.append({"name": name, "config": config, "position": position, "cos": [float(c * m) for c, _ in pairs],
                         "sin": [float(s * m) for _, s in pairs]})
    print(json.dumps({"frequencies": out, "tables": rows}, separators=(",", ":")).replace('},{"name"', '},\n{"name"'))


main()
