"""The command that starts an engine as a scenario describes it: vLLM's, or here SGLang's.

Flags as in SGLang's HiSparse guide (docs/advanced_features/hisparse_guide.md), its server arguments, and the
commands of LMSYS's HiSparse post of 2026-04-10 (prefill and decode in one engine) and pull 25584 (drafts).
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

_DTYPES = {"bf16": "bfloat16", "fp8": "fp8_e4m3", "fp8_ds_mla": "fp8_e4m3"}
_NUMBERS = (
    "mem_fraction_static", "max_total_tokens", "context_length", "max_running_requests",
    "chunked_prefill_size",
)  # fmt: skip
"""Written where given, as SGLang derives them itself."""


def sglang_words(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> list[str]:
    """The command, word by word. ``index_share`` and ``mtp_acceptance`` are no flags.

    Several DP replicas are SGLang's DP attention, whose ``--tp`` counts the GPUs of all of them.
    """
    gpus = (engine.tp or node.gpus) * engine.dp
    words = ["python", "-m", "sglang.launch_server", "--model-path", model.hf_id or model.name]

    def flag(name: str, value: Any) -> None:
        words.extend([f"--{name}", str(value)])

    flag("tp", gpus)
    if engine.dp > 1:
        flag("dp", engine.dp)
        words.append("--enable-dp-attention")
    if engine.ep and model.moe_layers:
        flag("ep-size", gpus)
    for name in _NUMBERS:
        if (value := getattr(engine, name)) is not None:
            flag(name.replace("_", "-"), value)
    if engine.kv_cache_dtype != "auto":
        flag("kv-cache-dtype", _DTYPES[engine.kv_cache_dtype])
    if engine.schedule_conservativeness != 1.0:
        flag("schedule-conservativeness", engine.schedule_conservativeness)
    if engine.enable_mixed_chunk:
        words.append("--enable-mixed-chunk")
    if engine.mtp:
        flag("speculative-algorithm", "EAGLE")
        flag("speculative-num-steps", engine.mtp)
        flag("speculative-eagle-topk", 1)
        flag("speculative-num-draft-tokens", engine.mtp + 1)
    if engine.disaggregation_mode == "decode":
        flag("disaggregation-mode", "decode")
        flag("num-reserved-decode-tokens", engine.num_reserved_decode_tokens)
    if engine.mode == "hisparse":
        config: dict[str, int] = {"top_k": model.index_topk}
        if engine.device_buffer_size is not None:
            config["device_buffer_size"] = engine.device_buffer_size
        config["host_to_device_ratio"] = engine.host_to_device_ratio
        words.append("--enable-hisparse")
        flag("hisparse-config", json.dumps(config, separators=(",", ":")))
        words.append("--disable-radix-cache")
    return words


def start_command(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> str:
    """Of vLLM or SGLang, whichever the engine is, as a line for a shell."""
    from hisparse_sim.serve.command import serve_command

    if engine.kind == "sglang":
        return shlex.join(sglang_words(model, node, engine))
    return serve_command(model, node, engine)
