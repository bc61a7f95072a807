"""What only shows when model, node and engine are seen together, as far as no layout is needed.

What needs block sizes (95 % of DRAM, copies of the pool, start-up length) is checked where they are
computed, in the memory room.
"""

from __future__ import annotations

from hisparse_sim.errors import Infeasible, InputError
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scenario.units import GIB


def check_scenario(scenario: Scenario) -> None:
    """Raise InputError or Infeasible for combinations that vLLM would not start with."""
    check_engine(scenario.model, scenario.node, scenario.engine)
    if scenario.cluster.prefill is not None:
        try:
            check_engine(scenario.model, scenario.node, scenario.cluster.prefill.engine)
        except (InputError, Infeasible) as error:
            raise error.within("cluster.prefill") from None


def check_estimated(scenario: Scenario) -> None:
    """Raise InputError for what only a run answers."""
    if scenario.cluster.prefill is not None:
        raise InputError(
            "estimates are of instances that prefill and decode; `run` simulates prefill apart",
            where="cluster.prefill",
        )


def check_engine(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> None:
    """The same without a workload. Errors name the field (``engine.max_model_len``) only."""
    for name in sorted(engine.foreign & engine.model_fields_set):
        other = "sglang" if engine.kind == "vllm" else "vllm"
        raise InputError(
            f"a setting of {other}, which engine.kind {engine.kind} does not have; leave it out",
            where=f"engine.{name}",
        )
    length = engine.max_model_len
    if length != "auto" and length > model.max_context_tokens:
        raise InputError(
            f"{length:,} tokens is longer than {model.name} allows, at most {model.max_context_tokens:,}",
            where="engine.max_model_len",
        )
    if engine.max_num_batched_tokens < engine.max_num_seqs:  # vLLM's SchedulerConfig refuses it
        tokens, seqs = engine.max_num_batched_tokens, engine.max_num_seqs
        if tokens == type(engine).model_fields["max_num_batched_tokens"].default:  # not the odd one
            raise InputError(
                f"{seqs:,} is more than max_num_batched_tokens, {tokens:,}", where="engine.max_num_seqs"
            )
        raise InputError(
            f"{tokens:,} is less than max_num_seqs, {seqs:,}", where="engine.max_num_batched_tokens"
        )
    nodes = -(-engine.dp * (engine.tp or node.gpus) // node.gpus)
    if engine.mode == "hisparse" and engine.host_pool_gib != "auto":
        _fits_dram(node, 1, engine.host_pool_gib, "engine.host_pool_gib")  # one pool never spans nodes
    elif engine.mode == "offload":
        _fits_dram(node, nodes, engine.kv_offload_gib, "engine.kv_offload_gib")


def _fits_dram(node: NodeSpec, nodes: int, asked_gib: float, where: str) -> None:
    has_gib = nodes * node.dram_bytes / GIB
    if asked_gib > has_gib:
        machine = node.name if nodes == 1 else f"{nodes} x {node.name}"
        raise Infeasible(
            f"{asked_gib:,.6g} GiB is more than the host memory of {machine}, {has_gib:,.0f} GiB", where=where
        )
