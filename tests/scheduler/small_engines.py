"""Engines small enough to follow by hand, and a way to write down what happens to a few requests."""

from __future__ import annotations

from typing import Any

from hisparse_sim.validation.replay import Replay

TWO_GROUPS = {"num_layers": 2, "index_topk": 32}
"""Layers 0 and 1, each with an indexer: two resident groups, one hot block each. A page costs
1 indexer block + 2 resident ones = 3 GPU blocks; a hot region 2."""

THREE_GROUPS = {"num_layers": 8, "index_topk": 128}
"""Three resident groups, four hot blocks each: a page costs 1 + 3 = 4 blocks, a hot region 12."""

FIELDS = ["prompt_len", "output_len", "arrival_step", "prefix_group", "prefix_len", "priority"]


def replay(
    mode: str,
    engine: dict[str, Any],
    model: dict[str, Any] = TWO_GROUPS,
    *,
    version: str = "0.33",
    **requests,
) -> Replay:
    """Requests by name: (prompt, output[, arrival step[, prefix group, prefix length[, priority]]])."""
    return Replay(
        {
            "mode": mode,
            "model": model,
            "engine": {"max_model_len": 4096, "num_host_blocks": 1000, **engine},
            "requests": [
                {"id": name, "arrival_step": 0, **dict(zip(FIELDS, values, strict=False))}
                for name, values in requests.items()
            ],
        },
        version=version,
    )


def run(
    mode: str,
    engine: dict[str, Any],
    model: dict[str, Any] = TWO_GROUPS,
    *,
    version: str = "0.33",
    **requests,
) -> dict[int, Any]:
    """What happens, by step."""
    lines = {}
    for line in replay(mode, engine, model, version=version, **requests).lines():
        lines[line["step"]] = line
        assert line["step"] < 3000, "the requests never end"
    return lines


def when(lines: dict[int, Any], what: str, request: str) -> list[int]:
    """Steps at which a request is ``new``, ``resumed``, ``preempted`` or ``finished``."""
    return [step for step, line in lines.items() if request in line[what]]


def total(lines: dict[int, Any], what: str) -> int:
    """A number, summed over all steps."""
    return sum(line.get(what, 0) for line in lines.values())


def hit(lines: dict[int, Any], request: str) -> list[int]:
    """Prefix hits of a request, in tokens, at each of its admissions."""
    return [line["hits"][request] for line in lines.values() if request in line.get("hits", ())]
