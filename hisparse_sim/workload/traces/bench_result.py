"""The result of ``vllm bench serve --save-result --save-detailed``: what was sent, and when.

``input_lens``, ``output_lens`` and ``start_times`` (seconds) are lists with a value a request
(vllm/benchmarks/serve.py). A request that failed has an output of 0 tokens and is sent for its prompt
alone. Without start times the run is repeated as a closed loop of its ``max_concurrency``, or all at once
if its ``request_rate`` was ``inf``. Prompts are taken to have nothing in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.workload.traces.batch import Batch
from hisparse_sim.workload.traces.rows import Rows


def read_bench_result(path: Path, result: Mapping[str, Any]) -> Iterator[Batch]:
    """Its requests in order of their start; a "line" is the place in the lists, from 1.

    Raises InputError.
    """
    names = {"prompt_tokens": "input_lens", "output_tokens": "output_lens"}
    if result.get("start_times"):
        names["arrival_s"] = "start_times"
    elif not result.get("max_concurrency") and str(result.get("request_rate", "inf")) != "inf":
        raise InputError(
            "has no start_times; save the benchmark with --save-detailed by a version that writes them",
            where=str(path),
        )
    columns = {name: _column(path, result, name) for name in names.values()}
    count = len(columns["input_lens"])
    for name, column in columns.items():
        if len(column) != count:
            raise InputError(
                f"has {len(column)} values, where input_lens has {count}", where=f"{path}: {name}"
            )
    rows, problems = Rows(names), []
    for index in range(count):
        try:
            rows.add(index + 1, {name: column[index] for name, column in columns.items()}.get)
        except ValueError as error:
            problems.append((index + 1, str(error)))
    batch = rows.batch()
    if "arrival_s" not in names and not result.get("max_concurrency"):
        batch.arrival_s = np.zeros(len(batch))
    batch = batch.take(np.argsort(batch.arrival_s, kind="stable"))
    batch.problems = problems
    yield batch


def bench_clients(result: Mapping[str, Any]) -> int | None:
    """The cap on requests in flight that the benchmark had."""
    clients = result.get("max_concurrency")
    return clients if isinstance(clients, int) and clients > 0 and not result.get("start_times") else None


def _column(path: Path, result: Mapping[str, Any], name: str) -> list[Any]:
    values = result.get(name)
    if not isinstance(values, list) or not values:
        raise InputError(
            f"'{name}' is missing or empty; save the benchmark with --save-detailed", where=str(path)
        )
    return values
