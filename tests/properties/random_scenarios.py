"""Small engines and a few requests, drawn at random, and the steps that they take."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hisparse_sim.scheduler.request import Request
from hisparse_sim.validation.replay import Replay

ONE_GROUP = {"num_layers": 1, "index_topk": 100}  # 1 resident group, 4 hot blocks
TWO_GROUPS = {"num_layers": 2, "index_topk": 32}  # 2 resident groups, 1 hot block each
THREE_GROUPS = {"num_layers": 8, "index_topk": 64}  # 3 resident groups, 2 hot blocks each
SHAPES = [(ONE_GROUP, 1, 4), (TWO_GROUPS, 2, 2), (THREE_GROUPS, 3, 6)]

MOST_STEPS = 3000
"""A scenario with enough room is over long before."""


def pages(tokens: int) -> int:
    return -(-tokens // 64)


def scenario(mode: str, seed: int, *, tight: bool = False) -> dict[str, Any]:
    """A few requests on a small engine; a ``tight`` one is hardly larger than vLLM needs to start."""
    random = Random(f"{mode} {seed}")
    longest = random.choice([256, 448, 640])
    chunked = random.random() < 0.85
    tokens = random.choice([64, 100, 256]) if chunked else 1024
    engine: dict[str, Any] = {
        "max_model_len": longest,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": random.choice([2, 16, 16]),
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": random.choice([0, 0, 50]) if chunked else 0,
        "enable_prefix_caching": mode == "cpu_offload" or random.random() < 0.85,
        "policy": random.choice(["fcfs", "fcfs", "priority"]),
        "async_scheduling": random.random() < 0.4,
        "watermark": random.choice([0.0, 0.0, 0.05]),
        "delay": random.randrange(3),
    }
    model, groups, hot = random.choice(SHAPES)
    if mode == "hisparse":
        in_flight = tokens * (2 if engine["async_scheduling"] else 1)
        window = pages(min(in_flight, longest))
        engine["num_gpu_blocks"] = 1 + pages(longest) + groups * window + hot + random.randrange(40)
        engine["num_host_blocks"] = 2 + pages(longest) + random.randrange(20)
        if not tight:
            # What the start-up check leaves out: pages under way to the host and the two last pages. Without
            # them even a request that is alone may have to preempt itself, again and again.
            engine["num_gpu_blocks"] += groups * ((engine["delay"] + 1) * window + 2)
    else:
        engine["num_gpu_blocks"] = 1 + pages(longest) + random.randrange(6)
        engine["num_cpu_chunks"] = random.choice([2, 4, 8, 30])
        engine["load_delay"] = random.choice([None, 6])  # loads so slow that others store meanwhile
    requests = [
        {
            "id": f"r{i}",
            "arrival_step": random.randrange(30),
            "prompt_len": random.randrange(1, longest),
            "output_len": random.choice([1, 5, 30, 70]),
            "prefix_group": random.choice([None, "g", "g", "h"]),
            "prefix_len": random.randrange(longest),
            "priority": random.randrange(3),
        }
        for i in range(random.randint(2, 9))
    ]
    return {"mode": mode, "model": model, "engine": engine, "requests": requests}


KINDS = {
    "hisparse": ("hisparse", "0.33", False),
    "hisparse with hardly any room": ("hisparse", "0.33", True),
    "hisparse of 0.30": ("hisparse", "0.30", False),
    "resident": ("vanilla", "0.33", False),
    "offload": ("cpu_offload", "0.33", False),
}
"""Name of a kind of scenario: mode, version, tight."""

STEPS_OF_A_STRUGGLE = 250
"""A scenario with hardly any room, or of 0.30, may never end: so many of its steps are looked at."""


def drawn(kind: str, seed: int) -> tuple[Replay, list[Request]]:
    """A scenario of that kind, and its requests in order of arrival."""
    mode, version, tight = KINDS[kind]
    replay = Replay(scenario(mode, seed, tight=tight), version=version)
    return replay, [r for _, r in replay.arrivals]


def steps(replay: Replay, kind: str) -> Iterator[dict[str, Any]]:
    """The steps of a drawn scenario, after each of which its state may be looked at."""
    struggles = kind not in ("hisparse", "resident", "offload")
    for count, line in enumerate(replay.lines()):
        if struggles and count == STEPS_OF_A_STRUGGLE:
            return
        assert count < MOST_STEPS, "the requests never end"
        yield line
