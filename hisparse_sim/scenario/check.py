"""What only shows when model, node and engine are seen together, as far as no layout is needed."""

from __future__ import annotations

from hisparse_sim.errors import Infeasible, InputError
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scenario.units import GIB, human_bytes


def check_scenario(scenario: Scenario, *, file: str = "") -> None:
    """Raise InputError or Infeasible for combinations that vLLM would not start with."""
    check_engine(scenario.model, scenario.node, scenario.engine, file=file)


def check_engine(model: ModelSpec, node: NodeSpec, engine: EngineSpec, *, file: str = "") -> None:
    """The same without a workload; ``file`` is put before the field names of errors."""
    at = f"{file}: engine." if file else "engine."
    length = engine.max_model_len
    if length != "auto" and length > model.max_context_tokens:
        raise InputError(
            f"{length:,} tokens is longer than {model.name} allows, at most {model.max_context_tokens:,}",
            where=at + "max_model_len",
        )
    if engine.mtp and not model.mtp_layers:
        raise InputError(
            f"{engine.mtp} drafts a step, but {model.name} has no MTP layer; set 0", where=at + "mtp"
        )
    if engine.mode == "hisparse":
        _check_hisparse(model, node, engine, at)
    elif engine.mode == "offload" and engine.kv_offload_gib > _dram_gib(node, engine):
        raise Infeasible(_exceeds(node, engine, engine.kv_offload_gib), where=at + "kv_offload_gib")


def nodes_used(node: NodeSpec, engine: EngineSpec) -> int:
    """Nodes that DP x TP GPUs span."""
    return -(-engine.dp * (engine.tp or node.gpus) // node.gpus)


def host_pool_copies(node: NodeSpec, engine: EngineSpec) -> int:
    """Physical copies of the logical host pool: one a DP replica when shared, else one a rank.

    A pool is shared between the ranks of a replica that lives on one node (vLLM HiSparse runtime,
    ``use_shared_hisparse_host_pool``).
    """
    tp = engine.tp or node.gpus
    shared = engine.shared_host_pool and tp <= node.gpus
    return engine.dp * (1 if shared else tp)


def _check_hisparse(model: ModelSpec, node: NodeSpec, engine: EngineSpec, at: str) -> None:
    if model.attention != "dsa":
        raise InputError(
            f"hisparse needs sparse MLA with an indexer, {model.name} is {model.attention}; "
            "use resident or offload",
            where=at + "mode",
        )
    if not node.hisparse:
        raise InputError(
            f"hisparse does not run on {node.name} ({node.gpu.name}); use resident or offload",
            where=at + "mode",
        )
    pool = 0.0 if engine.host_pool_gib == "auto" else engine.host_pool_gib * host_pool_copies(node, engine)
    if pool > _dram_gib(node, engine):
        raise Infeasible(_exceeds(node, engine, pool), where=at + "host_pool_gib")
    if pool + engine.indexer_offload_gib > _dram_gib(node, engine):
        raise Infeasible(
            _exceeds(node, engine, pool + engine.indexer_offload_gib)
            + f" ({pool:,.0f} GiB of it the host pool)",
            where=at + "indexer_offload_gib",
        )


def _dram_gib(node: NodeSpec, engine: EngineSpec) -> float:
    return nodes_used(node, engine) * node.dram_bytes / GIB


def _exceeds(node: NodeSpec, engine: EngineSpec, asked_gib: float) -> str:
    count = nodes_used(node, engine)
    machine = node.name if count == 1 else f"{count} x {node.name}"
    has = human_bytes(count * node.dram_bytes)
    return f"{asked_gib:,.0f} GiB of host memory in all, but {machine} has {has}"
