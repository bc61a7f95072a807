"""``hisparse-sim report --calculator``: a page that answers how many requests fit, without this package.

The page has the bytes of every shipped model's blocks on every shipped node as ``memory`` computes them,
and mirrors ``estimate.concurrency`` in ``estimate.js``; a test holds both against each other. It knows no
seconds: those need a profile's tables, so it gives the command that answers them.
"""

from __future__ import annotations

from typing import Any

from hisparse_sim import __version__
from hisparse_sim.errors import InputError
from hisparse_sim.estimate.concurrency import POOL_OVERHEAD_SHARE, hisparse_refusal
from hisparse_sim.memory import budget, host, layout, reserve
from hisparse_sim.report.page.html import page, text
from hisparse_sim.scenario.catalogue import list_models, list_nodes, load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

TP = (1, 2, 4, 8, 16, 32, 64)
DTYPES = ("fp8", "bf16", "fp8_ds_mla", "auto")
_MODEL = (
    "attention",
    "hidden_size",
    "index_topk",
    "num_experts",
    "experts_per_token",
    "moe_intermediate_size",
    "intermediate_size",
    "vocab_size",
    "mtp_layers",
    "max_context_tokens",
)
_ENGINE = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "async_scheduling")


def make_calculator() -> str:
    """The page."""
    parts = {"version": text(__version__)}
    return page(
        "calculator",
        "How many requests fit? · hisparse-sim",
        parts,
        constants(),
        ["charts.js", "estimate.js", "calculator.js"],
    )


def constants() -> dict[str, Any]:
    """All that the page computes with, as plain data.

    ``layouts``: (tokens a block, its bytes, resident groups, HiSparse's block bytes, the host's block
    bytes); a node's ``layouts`` give the place there by ``model/dtype/mtp/tp``, or why vLLM refuses it.
    """
    layouts: list[list[int]] = []
    models = {name: load_model(name) for name in list_models()}
    nodes = {name: load_node(name) for name in list_nodes()}
    return {
        "tp": TP,
        "dtypes": DTYPES,
        "layouts": layouts,
        "models": {name: _model(model) for name, model in models.items()},
        "nodes": {name: _node(node, models, layouts) for name, node in nodes.items()},
        "engine": {name: EngineSpec.model_fields[name].default for name in _ENGINE},
        "rules": {
            "dsa_reserve_bytes": reserve.DSA_RESERVE_BYTES,
            "runtime_bytes": reserve.RUNTIME_BYTES,
            "sampler_bytes_per_logit": reserve.SAMPLER_BYTES_PER_LOGIT,
            "reserve_share": POOL_OVERHEAD_SHARE,
            "host_share": host.HOST_POOL_SHARE,
            "host_align_bytes": host.HOST_ALIGN_BYTES,
            "tail_pages": budget.ACTIVE_TAIL_PAGES,
            "max_hot_rows": layout.MAX_HOT_ROWS,
        },
    }


def _model(model: ModelSpec) -> dict[str, Any]:
    weights = {"shared_bytes": model.weights.shared_bytes, "routed_bytes": model.weights.routed_bytes}
    return {name: getattr(model, name) for name in _MODEL} | weights


def _node(node: NodeSpec, models: dict[str, ModelSpec], layouts: list[list[int]]) -> dict[str, Any]:
    found: dict[str, int | str] = {}
    for name, model in models.items():
        for dtype in DTYPES:
            for mtp in (0, 1):
                for tp in TP:
                    engine = EngineSpec.model_validate({"tp": tp, "kv_cache_dtype": dtype, "mtp": mtp})
                    found[f"{name}/{dtype}/{mtp}/{tp}"] = _layout(model, node, engine, layouts)
    return {
        "gpus": node.gpus,
        "gpu": node.gpu.name,
        "memory_bytes": node.gpu.memory_bytes,
        "dram_bytes": node.dram_bytes,
        "refuses": {name: hisparse_refusal(model, node) for name, model in models.items()},
        "layouts": found,
    }


def _layout(model: ModelSpec, node: NodeSpec, engine: EngineSpec, layouts: list[list[int]]) -> int | str:
    """The place of this layout in ``layouts``, where it is put if it is new; or a refusal."""
    try:
        sizes = layout.kv_layout(model, engine, node)
    except InputError as error:
        return str(error)
    sparse = sizes.hisparse
    of_hisparse = (
        [sparse.resident_groups, sparse.block_bytes, sparse.host_block_bytes] if sparse else [0, 0, 0]
    )
    entry = [sizes.block_size, sizes.block_bytes, *of_hisparse]
    if entry not in layouts:
        layouts.append(entry)
    return layouts.index(entry)
