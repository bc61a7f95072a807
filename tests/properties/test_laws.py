"""What must hold in every step of every scenario: nothing is lost, counted twice or forgotten."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.memory.offload import OffloadMemory
from hisparse_sim.memory.pool import HashedBlocks
from hisparse_sim.memory.residency import HiSparseMemory
from hisparse_sim.memory.resident import ResidentMemory
from hisparse_sim.scheduler.request import Request, Status
from hisparse_sim.validation.replay import Replay

ONE_GROUP = {"num_layers": 1, "index_topk": 100}  # 1 resident group, 4 hot blocks
TWO_GROUPS = {"num_layers": 2, "index_topk": 32}  # 2 resident groups, 1 hot block each
THREE_GROUPS = {"num_layers": 8, "index_topk": 64}  # 3 resident groups, 2 hot blocks each
SHAPES = [(ONE_GROUP, 1, 4), (TWO_GROUPS, 2, 2), (THREE_GROUPS, 3, 6)]
MAX_STEPS = 3000


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
        engine["num_cpu_chunks"] = random.choice([2, 8, 30])
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


# -- books: everything counted again from the requests --------------------------------------------


def counted(ids: list[np.ndarray], size: int) -> np.ndarray:
    return np.bincount(np.concatenate([np.empty(0, dtype=np.int64), *ids]), minlength=size)


def check_references(blocks: HashedBlocks, holders: list[np.ndarray]) -> int:
    """Each block is referenced once for each holder; returns how many are referenced."""
    ref = blocks.ref.a
    assert (ref == counted(holders, len(ref))).all()
    return int((ref > 0).sum())


def check_resident(memory: ResidentMemory, requests: list[Request]) -> None:
    states = [r.memory for r in requests if r.memory is not None]
    used = check_references(memory.blocks, [s.blocks[: s.pages] for s in states])
    assert memory.gpu.free + used == memory.gpu.total
    for r in requests:
        if r.memory is not None and r.status is Status.RUNNING:
            assert r.memory.pages * 64 >= r.computed


def check_offload(memory: OffloadMemory, requests: list[Request]) -> None:
    check_resident(memory, requests)
    store = memory.store
    assert store.free + int((store._state.a > 0).sum()) == store.total
    loading = [job.content for job in memory.jobs if job.load]
    assert (store._pins.a == counted(loading, len(store._pins.a))).all()


def check_hisparse(memory: HiSparseMemory, requests: list[Request]) -> None:
    states = [r.memory for r in requests if r.memory is not None]
    moving = memory.writebacks
    detached = {id(w.state): w.state.detached for w in moving if len(w.state.detached)}
    index = check_references(memory.index, [s.index[: s.pages] for s in states])
    host = check_references(
        memory.host,
        [s.host[: s.pages] for s in states]
        + [w.state.host[w.first : w.end] for w in moving]
        + list(detached.values()),
    )
    held = [s.copy[s.unpinned_to : s.pages] for s in states]
    copies = [h[h >= 0] for h in held] + [w.state.copy[w.first : w.end] for w in moving]
    ref = memory.copies.ref.a
    assert (ref == counted(copies, len(ref))).all()
    hot = sum(s.hot_blocks for s in states)
    used = index + hot + memory.sizes.resident_groups * int((ref > 0).sum())
    assert memory.gpu.free + used == memory.gpu.total
    assert memory.host_pool.free + host == memory.host_pool.total
    for s in states:
        assert 0 <= s.unpinned_to <= s.ready <= s.planned <= s.pages
        assert s.published <= s.ready
        here = s.copy[: s.pages] >= 0
        assert s.host_only == int((~here).sum())
        assert s.unpinned == int(here[: s.unpinned_to].sum())
        # A page without a copy on the host is never lost, nor are the two last ones given up for others.
        assert here[s.ready :].all()
        assert s.unpinned_to <= max(s.pages - 2, 0)
        assert s.hot_blocks in (0, memory.hot_blocks)
        if s.host_only or s.unpinned:
            assert s.hot_blocks


CHECKS = {
    "hisparse": check_hisparse,
    "vanilla": check_resident,
    "cpu_offload": check_offload,
}


# -- laws ------------------------------------------------------------------------------------------


def play(asked: dict[str, Any], steps: int | None = None) -> None:
    """Run a scenario, to its end or for some steps, all laws checked in each of them."""
    replay = Replay(asked)
    engine, memory = replay.engine, replay.memory
    requests = [r for _, r in replay.arrivals]
    check = CHECKS[asked["mode"]]
    before = {r: (0, 0, r.num_tokens) for r in requests}
    for count, line in enumerate(replay.lines()):
        if count == steps:
            return
        assert count < MAX_STEPS, "the requests never end"
        check(memory, requests)
        tokens = line["scheduled"]
        assert sum(tokens.values()) <= engine["max_num_batched_tokens"]
        assert all(n > 0 for n in tokens.values())
        assert line["running"] <= engine["max_num_seqs"]
        assert memory.gpu.free >= 0
        for r in requests:
            preemptions, computed, sampled = before[r]
            assert r.num_tokens >= sampled
            if r.preemptions == preemptions:
                assert r.computed >= computed
            assert r.computed <= min(r.num_tokens + r.placeholders, engine["max_model_len"])
            before[r] = r.preemptions, r.computed, r.num_tokens
    for r, spec in zip(requests, sorted(asked["requests"], key=lambda s: s["arrival_step"]), strict=True):
        assert r.status is Status.FINISHED
        assert r.num_tokens == min(spec["prompt_len"] + spec["output_len"], engine["max_model_len"])
    assert memory.gpu.free == memory.gpu.total
    if asked["mode"] == "hisparse":
        assert memory.host_pool.free == memory.host_pool.total
        assert not any(memory.copies.states)
    if asked["mode"] == "cpu_offload":
        assert not memory.jobs
        assert not memory._access
        assert not memory._fenced


SEEDS = st.integers(0, 2**32)


@settings(max_examples=100)
@given(seed=SEEDS)
def test_hisparse_keeps_its_books_and_every_request_ends(seed):
    play(scenario("hisparse", seed))


@settings(max_examples=60)
@given(seed=SEEDS)
def test_hisparse_keeps_its_books_with_hardly_any_room(seed):
    play(scenario("hisparse", seed, tight=True), steps=250)


@settings(max_examples=60)
@given(seed=SEEDS)
def test_resident_keeps_its_books_and_every_request_ends(seed):
    play(scenario("vanilla", seed))


@settings(max_examples=80)
@given(seed=SEEDS)
def test_offload_keeps_its_books_and_every_request_ends(seed):
    play(scenario("cpu_offload", seed))


@pytest.mark.parametrize("mode", sorted(CHECKS))
@settings(max_examples=15)
@given(seed=SEEDS)
def test_the_same_scenario_gives_the_same_steps(mode, seed):
    one, two = (list(Replay(scenario(mode, seed)).lines()) for _ in range(2))
    assert one == two
