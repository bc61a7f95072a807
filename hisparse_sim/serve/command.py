"""From a scenario back to the ``vllm serve`` command that starts it; ``--serve`` reads it back the same."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.memory.budget import size_pools
from hisparse_sim.memory.host import GIB
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

_DTYPES = {"bf16": "bfloat16"}
NOT_FLAGS = ("version", "mtp_acceptance", "transfer_delay_steps", "single_step", "reserve_gib", "kv_tokens")
"""Fields of the engine that no flag sets: what is assumed of vLLM, not what it is told."""


def as_started(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> EngineSpec:
    """``engine`` as one command can say it: sizes resolved, fields of other modes at their defaults.

    A host pool that is ``auto`` becomes the whole GiB that host memory allows, as vLLM needs a number.
    Raises ``InputError`` for an engine that is not vLLM.
    """
    if engine.kind != "vllm":
        raise InputError(f"{engine.kind} is not started by vllm serve", where="engine.kind")
    change: dict[str, Any] = {"tp": engine.tp or node.gpus}
    if engine.mode == "hisparse":
        change["kv_offload_gib"] = 0.0
        if engine.host_pool_gib == "auto":
            change["host_pool_gib"] = max(
                1, math.floor(size_pools(model, node, engine).host_pool_bytes / GIB)
            )
    else:
        change |= {"host_pool_gib": "auto", "indexer_offload_gib": 0.0, "hot_rows": None}
        if engine.mode == "resident" or not engine.kv_offload_gib:
            change |= {"kv_offload_gib": 0.0, "mode": "resident"}
    if not engine.mtp:
        change["mtp_acceptance"] = None
    return engine.model_copy(update=change)


def serve_words(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> list[str]:
    """The command, word by word. Defaults that hang on vLLM's version are written out."""
    found = as_started(model, node, engine)
    words = ["vllm", "serve", model.hf_id or model.name, "--tensor-parallel-size", str(found.tp)]

    def flag(name: str, value: Any) -> None:
        words.extend([f"--{name}", str(value)])

    if found.dp > 1:
        flag("data-parallel-size", found.dp)
    if found.ep:
        words.append("--enable-expert-parallel")
    flag("gpu-memory-utilization", _number(found.gpu_memory_utilization))
    flag("max-model-len", found.max_model_len)
    flag("max-num-seqs", found.max_num_seqs)
    flag("max-num-batched-tokens", found.max_num_batched_tokens)
    if found.kv_cache_dtype != "auto":
        flag("kv-cache-dtype", _DTYPES.get(found.kv_cache_dtype, found.kv_cache_dtype))
    if found.block_size is not None:
        flag("block-size", found.block_size)
    if found.long_prefill_token_threshold:
        flag("long-prefill-token-threshold", found.long_prefill_token_threshold)
    switches = ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling")
    words += [f"--no-{name.replace('_', '-')}" for name in switches if not getattr(found, name)]
    if found.policy != "fcfs":
        flag("scheduling-policy", found.policy)
    if found.watermark:
        flag("watermark", _number(found.watermark))
    if found.mtp:
        flag("speculative-config", _json({"method": "mtp", "num_speculative_tokens": found.mtp}))
    if found.num_gpu_blocks is not None:
        flag("num-gpu-blocks-override", found.num_gpu_blocks)
    if found.available_kv_gib is not None:
        flag("kv-cache-memory-bytes", round(found.available_kv_gib * GIB))
    if found.mode == "hisparse":
        config = {} if found.hot_rows is None else {"device_buffer_size": found.hot_rows}
        if config:
            flag("attention-config", _json({"hisparse_config": config}))
        flag("kv-transfer-config", _json(_connectors(found)))
        if not found.shared_host_pool and (found.tp or 1) > 1:
            flag("distributed-executor-backend", "ray")
    elif found.mode == "offload":
        flag("kv-offloading-size", _number(found.kv_offload_gib))
    return words


def serve_command(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> str:
    """The same as a line for a shell."""
    return shlex.join(serve_words(model, node, engine))


def _connectors(engine: EngineSpec) -> dict[str, Any]:
    hisparse = {
        "kv_connector": "HiSparseConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host_pool_gib": _number(engine.host_pool_gib)},
    }
    if not engine.indexer_offload_gib:
        return hisparse
    offload = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": round(engine.indexer_offload_gib * GIB)},
    }
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [hisparse, offload]},
    }


def _number(value: Any) -> Any:
    """384.0 as 384."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
