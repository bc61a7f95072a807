"""The result of ``vllm bench serve --save-result --save-detailed``: what was sent, and when.

``input_lens``, ``output_lens`` and ``start_times`` (seconds) are lists with a value a request
(vllm/benchmarks/serve.py). A request that failed has an output of 0 tokens and is sent for its prompt
alone. Without start times the run is repeated as a closed loop of its ``max_concurrency``, or all at once
if its ``request_rate`` was ``inf``. Prompts are taken to have nothing in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.workload.traces.batch import Batch
from hisparse_sim.workload.traces.rows import clock, whole


def read_bench_result(path: Path, result: Mapping[str, Any]) -> Iterator[Batch]:
    """Its requests in order of their start; a "line" is the place in the lists, from 1."""
    lengths = {name: _column(path, result, name, whole) for name in ("input_lens", "output_lens")}
    count = len(lengths["input_lens"])
    if result.get("start_times"):
        starts = _column(path, result, "start_times", clock)
    elif result.get("max_concurrency") or str(result.get("request_rate", "inf")) == "inf":
        starts = [math.nan if result.get("max_concurrency") else 0.0] * count
    else:
        raise InputError(
            "has no start_times; save the benchmark with --save-detailed by a version that writes them",
            where=str(path),
        )
    for name, column in (("output_lens", lengths["output_lens"]), ("start_times", starts)):
        if len(column) != count:
            raise InputError(
                f"has {len(column)} values, where input_lens has {count}", where=f"{path}: {name}"
            )
    order = np.argsort(np.array(starts, dtype=np.float64), kind="stable")
    yield Batch(
        order + 1,
        np.array(starts, dtype=np.float64)[order],
        np.array(lengths["input_lens"], dtype=np.int64)[order],
        np.array(lengths["output_lens"], dtype=np.int64)[order],
    )


def bench_clients(result: Mapping[str, Any]) -> int | None:
    """The cap on requests in flight that the benchmark had."""
    clients = result.get("max_concurrency")
    return clients if isinstance(clients, int) and clients > 0 and not result.get("start_times") else None


def _column(path: Path, result: Mapping[str, Any], name: str, kind: Any) -> list[Any]:
    values = result.get(name)
    if not isinstance(values, list) or not values:
        raise InputError(
            f"'{name}' is missing or empty; save the benchmark with --save-detailed", where=str(path)
        )
    found = []
    for index, value in enumerate(values):
        try:
            found.append(kind(value))
        except ValueError as error:
            raise InputError(f"{value!r}: {error}", where=f"{path}: {name}[{index}]") from None
    return found
