"""Why the default answer is not the published calculator's: one assumption after the other.

Starts at the page's count, replaces its assumptions in a fixed order, and ends at ours; each cause's
effect is the change it makes at its turn, so the effects add up to the whole difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hisparse_sim.estimate.calculator import (
    MAX_SEQUENCES,
    SYSTEM_MEMORY_GIB,
    PageLayout,
    knows,
    page_answer,
)
from hisparse_sim.estimate.concurrency import ModePools, kv_left_bytes
from hisparse_sim.memory.host import GIB, HOST_POOL_SHARE, place
from hisparse_sim.memory.layout import KVLayout, kv_layout
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec


@dataclass(frozen=True, slots=True)
class Cause:
    """One assumption of the page replaced: what it was, and requests it adds or takes."""

    why: str
    resident: int
    hisparse: int


@dataclass(frozen=True, slots=True)
class Differences:
    """The page's counts, the causes in order, and what vLLM would admit before the outputs grow.

    ``admitted_resident`` and ``admitted_hisparse`` count requests at their prompt's length, as vLLM's
    admission and the page do; those beyond our counts would be preempted while they decode.
    """

    page_resident: int
    page_hisparse: int
    causes: tuple[Cause, ...]
    admitted_resident: int
    admitted_hisparse: int


def differences(
    model: ModelSpec,
    node: NodeSpec,
    engine: EngineSpec,
    resident: ModePools,
    hisparse: ModePools,
    tokens: int,
    output_tokens: int,
) -> Differences | None:
    """How the page's answer for ``tokens`` becomes ours; none for a model the page does not know."""
    if not knows(model):
        return None
    steps = list(_steps(model, node, engine, resident, hisparse, tokens))
    causes = [
        Cause(why, r - before[1], h - before[2])
        for before, (why, r, h) in pairwise(steps)
        if (r, h) != before[1:]
    ]
    prompt = max(1, tokens - output_tokens)
    dp = engine.dp
    return Differences(
        page_resident=steps[0][1],
        page_hisparse=steps[0][2],
        causes=tuple(causes),
        admitted_resident=resident.count(prompt).requests * dp,
        admitted_hisparse=hisparse.count(prompt).requests * dp,
    )


def _steps(
    model: ModelSpec,
    node: NodeSpec,
    engine: EngineSpec,
    resident: ModePools,
    hisparse: ModePools,
    tokens: int,
) -> Iterator[tuple[str, int, int]]:
    """(cause, resident, HiSparse) from the page to ours, the page's own answer first."""
    no_override = {"available_kv_gib": None, "num_gpu_blocks": None, "kv_tokens": None, "block_size": None}
    asked = engine.model_copy(update=no_override | {"mtp": 0} | ({"hot_rows": None} if engine.mtp else {}))
    given: dict[str, Any] = {}

    def page(why: str) -> tuple[str, int, int]:
        answer = page_answer(model, node, asked, tokens, **given)
        return why, answer.resident, answer.hisparse

    yield page("")
    given["memory_bytes"] = node.gpu.memory_bytes
    yield page(
        f"GPU memory as the driver reports it, {node.gpu.memory_bytes / GIB:.1f} GiB, not "
        f"{node.gpu.marketing_bytes / 1e9:g}e9 bytes ({node.gpu.marketing_bytes / GIB:.1f} GiB)"
    )
    left = max(kv_left_bytes(model, node, engine), 1)
    plain = _page_layout(kv_layout(model, asked, node))
    asked = asked.model_copy(update={"available_kv_gib": left / GIB})
    yield page(f"{left / GIB:.1f} GiB for KV by this engine's utilisation, weights and reserve, or its log")
    given["round_kv"] = False
    yield page("KV memory not rounded to 0.1 GiB")
    given["layout"] = plain
    layout = resident.layout
    yield page(f"{layout.row_bytes}-byte rows ({layout.row_format}), as this GPU's backend stores them")
    if engine.mtp and layout.hisparse:
        given["layout"] = _page_layout(layout)
        given["hot_groups"] = layout.hisparse.resident_groups
        asked = asked.model_copy(update={"hot_rows": layout.hisparse.hot_rows})
        yield page(f"MTP: {layout.num_layers} layers, {layout.hisparse.hot_rows:,} hot rows a request")
    memory_gib = place(node, engine).nodes * node.dram_bytes / GIB
    given["system_memory_gib"] = memory_gib * HOST_POOL_SHARE
    yield page(f"host memory 95 % of {memory_gib:,.0f} GiB, not {SYSTEM_MEMORY_GIB:,.0f} GiB")
    given["max_sequences"] = engine.max_num_seqs
    yield page(f"max_num_seqs {engine.max_num_seqs}, not {MAX_SEQUENCES:,}")
    window = hisparse.sizes.admission_window_pages if hisparse.sizes else 0
    last = (
        f"admission window ({window:,} pages in each group for the request being admitted), the null block, "
        "short requests in HiSparse's blocks"
    )
    yield (
        last if window else hisparse.reason or "the engine does not start",
        resident.count(tokens).requests * engine.dp,
        hisparse.count(tokens).requests * engine.dp,
    )


def _page_layout(layout: KVLayout) -> PageLayout:
    sparse = layout.hisparse
    return PageLayout(
        layout.block_bytes, sparse.block_bytes if sparse else 1, sparse.host_block_bytes if sparse else 1
    )
