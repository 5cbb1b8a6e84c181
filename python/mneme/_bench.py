"""Measurements of a model, its caches or a server, as rows."""
from __future__ import annotations

import os
from typing import Any, cast

from ._command import run_json
from ._model import Model


def bench(model: Model | str | os.PathLike[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    """Measures with `mneme bench` in a process of its own, and returns a row for each measurement: `pandas.DataFrame(mneme.bench("smollm2"))`.

    - model: a name or path as of Model(), or a Model, whose file is opened anew.
    - options: those of `mneme bench --help all` with _ for -; True is a flag without a value, False the flag with no-, a list several values.

    What the rows are depends on the options:

    - n_prompt=[128, 512], n_gen=64, n_depth=[0, 4096], pg, parallel, repetitions=5, threads: a row for each test, with the keys of llama-bench:
      n_prompt, n_gen, n_depth, pl, avg_ts and stddev_ts (tokens a second), samples_ns, cache_bytes.
    - cache="all", or ["static", "quantized"]: a row for each cache beside dynamic, on a text (text=PATH): cache_implementation, cache_config,
      cache_bytes, prefill_per_second, decode_per_second, perplexity, kl_divergence; `refused` says why the model cannot have it.
    - serve="http://HOST:PORT": one row about a server: request_throughput, and mean, median and percentiles of the times.

    What the command warns of, as of samples that differ, is a MnemeWarning. Its failures are exceptions.
    """
    name = model.path if isinstance(model, Model) else model
    found: Any = run_json("bench", *([] if name is None else ["--model", os.fspath(name)]), **options)
    if isinstance(found, list):
        return cast("list[dict[str, Any]]", found)
    return [{**found, **row} for row in found.pop("caches", [{}])]
