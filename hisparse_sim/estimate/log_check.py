"""What a real start-up log says against what this package derives, figure by figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hisparse_sim.errors import HiSparseError
from hisparse_sim.memory.budget import (
    derived_kv_bytes,
    kv_pool_bytes,
    logged_concurrency,
    steady_concurrency,
    weights_per_gpu,
)
from hisparse_sim.memory.host import GIB
from hisparse_sim.memory.layout import kv_layout, tensor_parallel
from hisparse_sim.memory.reserve import reserve_bytes
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.vllm_log import StartupLog

TOLERANCE = 0.005
"""Printed figures have two decimals; agreement within half a percent is agreement."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure: what this package derives, what the log prints, and whether they disagree.

    ``difference`` is (log - derived) / derived; none for settings.
    """

    what: str
    derived: float | str
    logged: float | str
    difference: float | None
    contradicts: bool

    @property
    def sentence(self) -> str:
        """The finding as a line."""
        if self.difference is None:
            return f"{self.what}: the log has {self.logged}, this question {self.derived}"
        verdict = f"{self.difference:+.1%}" if self.contradicts else "agrees"
        return f"{self.what}: derived {_show(self.derived)}, the log has {_show(self.logged)} ({verdict})"


def check_log(model: ModelSpec, node: NodeSpec, engine: EngineSpec, log: StartupLog) -> list[Finding]:
    """Compare every figure of ``log`` that can be derived. ``engine`` has the log's override set."""
    return [
        *_settings(node, engine, log),
        *_memory(model, node, engine, log),
        *_pool(model, node, engine, log),
    ]


def _settings(node: NodeSpec, engine: EngineSpec, log: StartupLog) -> Iterator[Finding]:
    asked = {
        "tensor_parallel_size": (tensor_parallel(node, engine), log.tp),
        "data_parallel_size": (engine.dp, log.dp),
        "gpu_memory_utilization": (engine.gpu_memory_utilization, log.utilization),
        "max_num_batched_tokens": (engine.max_num_batched_tokens, log.max_num_batched_tokens),
        "device_buffer_size": (engine.hot_rows, log.hot_rows),
    }
    for what, (ours, theirs) in asked.items():
        if ours is not None and theirs is not None and ours != theirs:
            yield Finding(what, f"{ours:g}", f"{theirs:g}", None, contradicts=True)


def _memory(model: ModelSpec, node: NodeSpec, engine: EngineSpec, log: StartupLog) -> Iterator[Finding]:
    tp = tensor_parallel(node, engine)
    if log.weights_gib is not None:
        yield _compare("weights a GPU, GiB", weights_per_gpu(model, node, engine) / GIB, log.weights_gib)
    if log.total_gpu_gib is not None:
        yield _compare("GPU memory, GiB", node.gpu.memory_bytes / GIB, log.total_gpu_gib)
    if log.available_kv_gib is None:
        return
    total = log.total_gpu_gib or node.gpu.memory_bytes / GIB
    if log.weights_gib is not None:
        budget = total * (log.utilization or engine.gpu_memory_utilization)
        reserve = budget - log.weights_gib - log.available_kv_gib
        yield _compare(
            "activations and runtime, GiB", reserve_bytes(model, engine, tp) / GIB, round(reserve, 2)
        )
    free = engine.model_copy(update={"available_kv_gib": None, "num_gpu_blocks": None, "kv_tokens": None})
    yield _compare("KV memory, GiB", derived_kv_bytes(model, node, free) / GIB, log.available_kv_gib)


def _pool(model: ModelSpec, node: NodeSpec, engine: EngineSpec, log: StartupLog) -> Iterator[Finding]:
    layout = kv_layout(model, engine, node)
    sparse = layout.hisparse if log.hisparse_blocks is not None else None
    if log.hisparse_blocks is not None and sparse is not None:
        if log.hisparse_pool_gib is not None:
            block = log.hisparse_pool_gib * GIB / log.hisparse_blocks
            yield _compare("HiSparse block, bytes", sparse.block_bytes, round(block))
        if log.host_pool_gib is not None and log.host_blocks:
            block = log.host_pool_gib * GIB / log.host_blocks
            yield _compare("host block, bytes", sparse.host_block_bytes, round(block))
    dcp = log.dcp or 1
    plain = sparse is None
    if plain and log.available_kv_gib is not None and log.kv_tokens:
        token = log.available_kv_gib * GIB / (log.kv_tokens / dcp)
        yield _compare("KV of a token, bytes", layout.token_bytes, round(token))
    elif plain and log.available_kv_gib is not None and log.num_gpu_blocks:
        block = log.available_kv_gib * GIB / log.num_gpu_blocks
        yield _compare("KV block, bytes", layout.block_bytes, round(block))
    try:
        pool = kv_pool_bytes(model, node, engine)
    except HiSparseError:
        return
    blocks = pool // (sparse.block_bytes if sparse else layout.block_bytes)
    if plain and log.kv_tokens:
        yield _compare("KV cache size, tokens", blocks * layout.block_size * dcp, log.kv_tokens)
    if plain and log.num_gpu_blocks:
        yield _compare("GPU blocks", blocks, log.num_gpu_blocks)
    if log.max_concurrency is not None and log.tokens_per_request:
        hosts = log.host_blocks or 2**62
        ours = logged_concurrency(engine, layout, sparse, blocks, hosts, log.tokens_per_request) * dcp
        what = f"maximum concurrency at {log.tokens_per_request:,} tokens"
        yield _compare(what, round(ours, 4), log.max_concurrency)
        steady = steady_concurrency(engine, layout, sparse, blocks, hosts, log.tokens_per_request)
        if steady is not None and log.steady_concurrency is not None:
            yield _compare("steady-state maximum concurrency", round(steady, 4), log.steady_concurrency)
    if log.needed_kv_gib is not None and log.max_model_len:
        need = -(-log.max_model_len // layout.block_size) * layout.block_bytes / GIB
        yield _compare("KV of one longest request, GiB", need, log.needed_kv_gib)


def _compare(what: str, derived: float, logged: float) -> Finding:
    difference = (logged - derived) / derived if derived else float(bool(logged))
    # Half a unit of the last printed decimal is rounding, whatever its share.
    rounding = 0.005 if isinstance(logged, float) else 0.5
    contradicts = abs(difference) > TOLERANCE and abs(logged - derived) > rounding
    return Finding(what, derived, logged, difference, contradicts)


def _show(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
