"""From flags of ``vllm serve`` to the fields of a scenario's engine, with vLLM's own defaults.

Where the defaults hang on the GPU (``EngineArgs.get_batch_defaults``: 8,192 tokens and 1,024 sequences
from 70 GiB of memory, else 2,048 and 256, for the API server), the node decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import list_models, load_model
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.validate import nearest
from hisparse_sim.serve import flags as table
from hisparse_sim.serve.connectors import Connectors, read_connectors
from hisparse_sim.serve.parse import ServeFlags

GIB = 2**30
LARGE_GPU_BYTES = 70 * GIB
KV_DTYPES = {
    "auto": "auto",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "fp8_ds_mla": "fp8_ds_mla",
}
"""vLLM's names and ours; 16-bit floats take the same bytes."""
MTP_METHODS = re.compile(r"(\w*_)?mtp")

FIELDS = {
    "tp": "tensor-parallel-size",
    "dp": "data-parallel-size",
    "ep": "enable-expert-parallel",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "max_model_len": "max-model-len",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "long_prefill_token_threshold": "long-prefill-token-threshold",
    "enable_chunked_prefill": "enable-chunked-prefill",
    "enable_prefix_caching": "enable-prefix-caching",
    "policy": "scheduling-policy",
    "async_scheduling": "async-scheduling",
    "watermark": "watermark",
    "block_size": "block-size",
    "kv_cache_dtype": "kv-cache-dtype",
    "mtp": "speculative-config",
    "hot_rows": "attention-config",
    "mode": "kv-transfer-config",
    "host_pool_gib": "kv-transfer-config",
    "shared_host_pool": "distributed-executor-backend",
    "indexer_offload_gib": "kv-transfer-config",
    "kv_offload_gib": "kv-offloading-size",
    "num_gpu_blocks": "num-gpu-blocks-override",
    "available_kv_gib": "kv-cache-memory-bytes",
}
"""The flag that sets each field of the engine, for errors."""


@dataclass(frozen=True, slots=True)
class Served:
    """A command translated. ``engine``: fields of the scenario's engine. ``assumed``: taken as default.

    ``ignored`` and ``unmodelled``: flags as written, the former with why. ``model_stands_in``: the
    catalogue has another checkpoint of the named model.
    """

    flags: ServeFlags
    model: str
    model_stands_in: bool
    engine: Mapping[str, Any]
    connectors: Connectors
    ignored: Mapping[str, str]
    unmodelled: tuple[str, ...]
    assumed: tuple[str, ...]

    def place(self, engine_field: str) -> str:
        """How an error names the flag that set a field of the engine."""
        name = FIELDS.get(engine_field, "")
        if engine_field in ("kv_offload_gib", "indexer_offload_gib") and name not in self.flags.given:
            name = "kv-transfer-config"
        if name in self.flags.given:
            return self.flags.place(name)
        return f"{self.flags.where}: --{name} (not given, so vLLM's default)" if name else self.flags.where

    def written(self, engine_field: str) -> str:
        """The flag alone, with its value."""
        if engine_field == "model":
            return self.flags.model
        return self.place(engine_field).removeprefix(f"{self.flags.where}: ")

    def places(self) -> dict[tuple[str, ...], str]:
        """The same for every field that is set, by its path in a scenario."""
        return {("engine", f): self.place(f) for f in self.engine} | {
            ("model",): f"{self.flags.where}: {self.flags.model}"
        }


def translate(flags: ServeFlags, node: NodeSpec, *, version: str | None = None) -> Served:
    """Raises ``InputError`` for values that vLLM's parser or configuration would not take."""
    name, stands_in = find_model(flags.model, where=flags.where)
    model = load_model(name)
    tp = _positive(flags, "tensor-parallel-size", 1)
    connectors = read_connectors(flags, tp)
    assumed: list[str] = []
    engine: dict[str, Any] = {
        "tp": tp,
        "dp": _positive(flags, "data-parallel-size", 1),
        "ep": flags.switch("enable-expert-parallel", False),
        "max_model_len": _max_model_len(flags, model),
        "long_prefill_token_threshold": flags.whole("long-prefill-token-threshold", 0),
        "enable_chunked_prefill": flags.switch("enable-chunked-prefill", True),
        "enable_prefix_caching": flags.switch("enable-prefix-caching", True),
        "policy": flags.text("scheduling-policy", "fcfs"),
        "async_scheduling": flags.switch("async-scheduling", True),
        "watermark": flags.number("watermark", 0.0),
        "kv_cache_dtype": _kv_dtype(flags),
        "mtp": _mtp(flags),
        **_batch(flags, node, model, assumed),
        **_connected(flags, connectors, tp, node),
    }
    if "gpu-memory-utilization" in flags.given:
        engine["gpu_memory_utilization"] = flags.number("gpu-memory-utilization", 0.92)
    if "block-size" in flags.given:
        engine["block_size"] = flags.whole("block-size", 0)
    if version is not None and re.match(r"0\.3[03]\b", version):
        engine["version"] = version
    elif version is not None:
        assumed.append(f"vLLM {version} of the image is not modelled: answered as 0.33")
    _pool_override(flags, engine)
    why = table.ignored_because()
    ignored = {flags.written(n): why[n] for n in flags.given if n in why}
    strange = table.UNMODELLED_VALUES | table.UNMODELLED_SWITCHES | {"hf-overrides", "enable-dbo"}
    unmodelled = [flags.written(n) for n in flags.given if n in strange and flags.given[n] is not False]
    if flags.number("cpu-offload-gb", 0.0):
        unmodelled.append(flags.written("cpu-offload-gb"))
    return Served(flags, name, stands_in, engine, connectors, ignored, tuple(unmodelled), tuple(assumed))


def find_model(given: str, *, where: str) -> tuple[str, bool]:
    """Catalogue name or path of a model as vLLM names it, and whether another checkpoint stands in."""
    try:
        if Path(given).expanduser().exists() or given.endswith((".json", ".yaml")):
            return given, False
    except (OSError, RuntimeError):
        pass
    names = list_models()
    ids = {name: load_model(name).hf_id or name for name in names}
    for name, hf_id in ids.items():
        if given.lower() in (hf_id.lower(), name):
            return name, False
    for name, hf_id in ids.items():
        if _family(given) == _family(hf_id):
            return name, True
    near = nearest(given, ids.values()) or f"; shipped are {', '.join(ids.values())}"
    raise InputError(
        f"{given!r} is no model that is shipped{near}; or name the path of its config.json", where=where
    )


def _family(hf_id: str) -> str:
    """``zai-org/GLM-5.3-FP8`` and ``zai-org/GLM-5.3`` are one: the same layers, other weights."""
    base = hf_id.rstrip("/").rsplit("/", 1)[-1].lower().removeprefix("meta-")
    return re.sub(r"(-(fp8|nvfp4|fp4|bf16|int4|awq|w4afp8|instruct|chat|base|hf|exp|\d{4}))+$", "", base)


def _positive(flags: ServeFlags, name: str, default: int) -> int:
    value = flags.whole(name, default)
    if value < 1:
        raise InputError(f"{value} is not allowed, must be at least 1", where=flags.place(name))
    return value


def _max_model_len(flags: ServeFlags, model: ModelSpec) -> int | str:
    if "max-model-len" not in flags.given:
        return model.max_context_tokens
    if flags.text("max-model-len", "") in ("auto", "-1"):
        return "auto"
    return _positive(flags, "max-model-len", 0)


def _batch(flags: ServeFlags, node: NodeSpec, model: ModelSpec, assumed: list[str]) -> dict[str, int]:
    """Tokens and sequences of a step."""
    large = node.gpu.memory_bytes >= LARGE_GPU_BYTES and "a100" not in node.gpu.name.lower()
    tokens, seqs = (8192, 1024) if large else (2048, 256)
    if not flags.switch("enable-chunked-prefill", True):
        length = _max_model_len(flags, model)
        tokens = max(tokens, length if isinstance(length, int) else model.max_context_tokens)
    found = {
        "max_num_batched_tokens": _positive(flags, "max-num-batched-tokens", tokens),
        "max_num_seqs": _positive(flags, "max-num-seqs", seqs),
    }
    if "max-num-seqs" not in flags.given:
        found["max_num_seqs"] = min(found["max_num_seqs"], found["max_num_batched_tokens"])
    if "max-num-active-seqs" in flags.given:  # bounds what runs, and nothing else
        found["max_num_seqs"] = min(found["max_num_seqs"], _positive(flags, "max-num-active-seqs", 0))
    for field, value in found.items():
        if FIELDS[field] not in flags.given:
            assumed.append(f"--{FIELDS[field]} {value} (vLLM's default on {node.gpu.name})")
    return found


def _kv_dtype(flags: ServeFlags) -> str:
    given = flags.text("kv-cache-dtype", "auto")
    # What is not sized is refused with the start-up rules, by name.
    return KV_DTYPES.get(given, "auto")


def _mtp(flags: ServeFlags) -> int:
    config = flags.mapping("speculative-config")
    if not config or not MTP_METHODS.fullmatch(str(config.get("method", ""))):
        return 0
    tokens = config.get("num_speculative_tokens", 1)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise InputError(
            f"num_speculative_tokens {tokens!r} is not a whole number of at least 1",
            where=flags.place("speculative-config"),
        )
    return tokens


def _connected(flags: ServeFlags, found: Connectors, tp: int, node: NodeSpec) -> dict[str, Any]:
    """Mode, sizes of host memory, and whether ranks share HiSparse's pool."""
    hisparse = found.hisparse
    fields: dict[str, Any] = {
        "mode": "hisparse" if hisparse else "offload" if found.offload_gib else "resident",
        "shared_host_pool": shares_pool(flags, tp, node),
    }
    if hisparse:
        if found.host_pool_gib and found.host_pool_gib > 0:
            fields["host_pool_gib"] = found.host_pool_gib
        fields["indexer_offload_gib"] = found.offload_gib or 0.0
        rows = _hisparse_config(flags).get("device_buffer_size")
        if rows is not None:
            if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
                raise InputError(
                    f"device_buffer_size {rows!r} is not a whole number of rows",
                    where=flags.place("attention-config"),
                )
            fields["hot_rows"] = rows
    else:
        fields["kv_offload_gib"] = found.offload_gib or 0.0
    return fields


def _hisparse_config(flags: ServeFlags) -> dict[str, Any]:
    config = flags.mapping("attention-config").get("hisparse_config")
    return config if isinstance(config, dict) else {}


def shares_pool(flags: ServeFlags, tp: int, node: NodeSpec) -> bool:
    """Whether TP ranks map one pool (``use_shared_hisparse_host_pool`` of vllm/v1/hisparse/runtime.py).

    TP alone, on one node, with the ``mp`` executor, which vLLM takes unless told otherwise.
    """
    executor = flags.text("distributed-executor-backend", "mp")
    return executor == "mp" and tp <= node.gpus and flags.whole("nnodes", 1) == 1


def _pool_override(flags: ServeFlags, engine: dict[str, Any]) -> None:
    if "num-gpu-blocks-override" in flags.given:
        engine["num_gpu_blocks"] = _positive(flags, "num-gpu-blocks-override", 0)
    elif "kv-cache-memory-bytes" in flags.given:
        engine["available_kv_gib"] = _positive(flags, "kv-cache-memory-bytes", 0) / GIB
