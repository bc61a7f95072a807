"""vLLM's start-up rules that need no pool sizes, as data: a name, when it refuses, the remedy, the source.

Reasons are vLLM's own where its code or pull requests state them (``vllm/v1/hisparse``, ``vllm/config``,
0.33); figures are put in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hisparse_sim.memory.layout import MAX_HOT_ROWS
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.serve.connectors import NAME, SIZE
from hisparse_sim.serve.finding import Finding
from hisparse_sim.serve.translate import KV_DTYPES, Served

SHARED_MEMORY_BYTES = {"hopper": 232_448, "blackwell": 232_448, "blackwell-sm120": 101_376, "cdna4": 163_840}
"""Most dynamic shared memory of a thread block: 227, 227 and 99 KiB (CUDA programming guide, compute
capabilities 9.0, 10.0 and 12.0); 160 KiB of LDS (AMD CDNA4)."""

PR = "github.com/vllm-project/vllm/pull/53781"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is started: the command, and the records with everything laid over it."""

    served: Served
    model: ModelSpec
    node: NodeSpec
    engine: EngineSpec

    @property
    def hisparse(self) -> bool:
        """Whether HiSparse is asked for."""
        return self.engine.mode == "hisparse"

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.engine.tp or self.node.gpus

    def count(self, flag: str) -> int:
        """A whole number of the command, 1 if it is not there."""
        return self.served.flags.whole(flag, 1)


@dataclass(frozen=True, slots=True)
class Rule:
    """``reason``: what vLLM says, or none where it starts. ``flag``: the one at fault."""

    name: str
    flag: str
    reason: Callable[[Asked], str | None]
    remedy: str
    source: str

    def check(self, asked: Asked) -> Finding | None:
        """The refusal, if there is one."""
        reason = self.reason(asked)
        if reason is None:
            return None
        flags = asked.served.flags
        flag = flags.written(self.flag) if self.flag in flags.given else f"--{self.flag}"
        return Finding(self.name, "refusal", flag, reason, self.remedy, self.source)


def _when(hisparse: bool, text: str) -> Callable[[Asked, bool], str | None]:
    return lambda asked, wrong: text if wrong and (asked.hisparse or not hisparse) else None


def _no_pool(a: Asked) -> str | None:
    found = a.served.connectors
    if not found.hisparse or (found.host_pool_gib or 0.0) > 0:
        return None
    given = "" if found.host_pool_gib is None else f"; {found.host_pool_gib:g} is not more than 0"
    return f"HiSparse requires HiSparseConnector with host_pool_gib{given}"


def _config_alone(a: Asked) -> str | None:
    config = a.served.flags.mapping("attention-config").get("hisparse_config")
    if config is None or a.served.connectors.hisparse:
        return None
    return "HiSparse requires both attention_config.hisparse_config and HiSparseConnector with host_pool_gib"


def _pool_in_config(a: Asked) -> str | None:
    config = a.served.flags.mapping("attention-config").get("hisparse_config")
    if isinstance(config, dict) and "host_pool_gib" in config:
        return "hisparse_config has no host_pool_gib any more: it moved to the connector"
    return None


def _role(a: Asked) -> str | None:
    names = a.served.connectors.without_role
    return (
        "Please specify kv_role when kv_connector is set, supported roles are kv_producer, kv_consumer and "
        f"kv_both ({', '.join(names)})"
        if names
        else None
    )


def _replaced(a: Asked) -> str | None:
    if a.served.connectors.by_size and a.served.flags.mapping(NAME):
        return (
            f"--{SIZE} sets kv_connector to the offloading connector, over "
            f"{a.served.flags.mapping(NAME).get('kv_connector')} of --{NAME}"
        )
    return None


def _hot_rows(a: Asked) -> str | None:
    rows, query = a.engine.hot_rows, a.engine.mtp + 1
    if not a.hisparse or not a.model.index_topk:
        return None
    least = query * a.model.index_topk
    rows = rows or (query + 1) * a.model.index_topk
    if rows < least:
        return (
            "HiSparse device_buffer_size must cover every decode query's index_topk rows. Got "
            f"device_buffer_size={rows}, max_decode_query_len={query}, index_topk={a.model.index_topk}; "
            f"expected at least {least}"
        )
    if rows > MAX_HOT_ROWS:
        return (
            f"HiSparse device_buffer_size exceeds the int16 slot-index limit: got {rows}, maximum is "
            f"{MAX_HOT_ROWS}"
        )
    return None


def _shared_memory(a: Asked) -> str | None:
    if not a.hisparse or not a.model.index_topk or _hot_rows(a):
        return None
    union = (a.engine.mtp + 1) * a.model.index_topk
    rows = a.engine.hot_rows or union + a.model.index_topk
    needed = 4 * (2 * (union + 1) + 3 * -(-rows // 32) + 7) + 2 * rows
    has = SHARED_MEMORY_BYTES[a.node.gpu.generation]
    if needed <= has:
        return None
    return (
        f"HiSparse residency resolution needs {needed:,} B of shared memory per block for "
        f"device_buffer_size={rows} and {union} rows per request, but the device allows {has:,} B"
    )


def _cudagraph(a: Asked) -> str | None:
    mode = str(a.served.flags.mapping("compilation-config").get("cudagraph_mode", "")).upper()
    return f"HiSparse does not run with cudagraph_mode {mode}" if a.hisparse and mode == "FULL" else None


def _runner(a: Asked) -> str | None:
    value = a.served.flags.environment.get("VLLM_USE_V2_MODEL_RUNNER")
    wrong = value is not None and value.strip().lower() in ("0", "false")
    return (
        "HiSparse needs Model Runner V2, which VLLM_USE_V2_MODEL_RUNNER=0 turns off"
        if a.hisparse and wrong
        else None
    )


def _kv_dtype(a: Asked) -> str | None:
    given = a.served.flags.text("kv-cache-dtype", "auto")
    if given in KV_DTYPES:
        return None
    return f"no attention backend stores {given} for {a.model.name} ({a.model.attention})"


def _length(a: Asked) -> str | None:
    length = a.engine.max_model_len
    if length == "auto" or length <= a.model.max_context_tokens:
        return None
    return (
        f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
        f"(max_position_embeddings={a.model.max_context_tokens})"
    )


def _budget(a: Asked) -> str | None:
    tokens, seqs, length = a.engine.max_num_batched_tokens, a.engine.max_num_seqs, a.engine.max_model_len
    if tokens < seqs:
        return f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})"
    if not a.engine.enable_chunked_prefill and length != "auto" and tokens < length:
        return (
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}), without chunked "
            "prefill"
        )
    return None


def _gpus(a: Asked) -> str | None:
    flags = a.served.flags
    stages = a.count("pipeline-parallel-size")
    elsewhere = (
        flags.text("distributed-executor-backend", "mp") == "ray"
        or a.count("nnodes") > 1
        or "data-parallel-size-local" in flags.given
        or flags.text("data-parallel-backend", "mp") == "ray"
    )
    world = a.tp * stages * a.engine.dp
    if elsewhere or world <= a.node.gpus:
        return None
    return f"World size ({world}) is larger than the number of available GPUs ({a.node.gpus}) in this node"


def _heads(a: Asked) -> str | None:
    if a.model.num_heads % a.tp == 0:
        return None
    return (
        f"Total number of attention heads ({a.model.num_heads}) must be divisible by tensor parallel size "
        f"({a.tp})"
    )


_CONNECTOR_REMEDY = (
    'give --kv-transfer-config \'{"kv_connector":"HiSparseConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"host_pool_gib":N}}\''
)

RULES: tuple[Rule, ...] = (
    Rule("hisparse-needs-host-pool", NAME, _no_pool, _CONNECTOR_REMEDY, PR),
    Rule("hisparse-config-without-connector", "attention-config", _config_alone, _CONNECTOR_REMEDY, PR),
    Rule("host-pool-in-attention-config", "attention-config", _pool_in_config, _CONNECTOR_REMEDY, PR),
    Rule("connector-needs-role", NAME, _role, 'add "kv_role":"kv_both"', "vllm/config/kv_transfer.py"),
    Rule(
        "offloading-size-replaces-connector",
        SIZE,
        _replaced,
        "put HiSparseConnector and OffloadingConnector (cpu_bytes_to_use) into one MultiConnector",
        "VllmConfig._post_init_kv_transfer_config",
    ),
    Rule(
        "hisparse-needs-indexer",
        NAME,
        lambda a: _when(
            True,
            f"{a.model.name} has no sparse-attention indexer (index_topk); HiSparse "
            "requires sparse-MLA and indexer cache specs",
        )(a, a.model.attention != "dsa"),
        "leave HiSparseConnector out, or serve a model with DeepSeek sparse attention",
        PR,
    ),
    Rule(
        "hisparse-nvidia-only",
        NAME,
        lambda a: _when(True, f"HiSparse runs on NVIDIA GPUs only; {a.node.name} has {a.node.gpu.name}")(
            a, not a.node.hisparse
        ),
        "leave HiSparseConnector out; on MI350X a port lost 56 % of the tokens/s at one client and crashed",
        "github.com/vllm-project/vllm/pull/57602",
    ),
    Rule(
        "hisparse-needs-one-stage",
        "pipeline-parallel-size",
        lambda a: _when(True, "HiSparse does not support pipeline parallelism")(
            a, a.count("pipeline-parallel-size") > 1
        ),
        "use --tensor-parallel-size or --data-parallel-size instead",
        PR,
    ),
    Rule(
        "hisparse-needs-whole-context",
        "decode-context-parallel-size",
        lambda a: _when(True, "HiSparse does not support decode or prefill context parallelism")(
            a, a.count("decode-context-parallel-size") > 1 or a.count("prefill-context-parallel-size") > 1
        ),
        "leave context parallelism out, or serve without HiSparse",
        PR,
    ),
    Rule(
        "hisparse-needs-full-isl",
        "scheduler-reserve-full-isl",
        lambda a: _when(True, "HiSparse requires scheduler_reserve_full_isl")(
            a, not a.served.flags.switch("scheduler-reserve-full-isl", True)
        ),
        "leave out --no-scheduler-reserve-full-isl",
        PR,
    ),
    Rule(
        "hisparse-needs-hybrid-kv",
        "disable-hybrid-kv-cache-manager",
        lambda a: _when(True, "HiSparse requires the hybrid KV cache manager")(
            a, a.served.flags.switch("disable-hybrid-kv-cache-manager", False)
        ),
        "leave out --disable-hybrid-kv-cache-manager",
        PR,
    ),
    Rule("hisparse-needs-runner-v2", NAME, _runner, "set VLLM_USE_V2_MODEL_RUNNER=1", PR),
    Rule(
        "hisparse-full-cudagraph",
        "compilation-config",
        _cudagraph,
        "use cudagraph_mode FULL_AND_PIECEWISE",
        PR,
    ),
    Rule(
        "hot-buffer-size",
        "attention-config",
        _hot_rows,
        "set device_buffer_size within these bounds, or fewer num_speculative_tokens",
        "vllm/v1/hisparse/runtime.py",
    ),
    Rule(
        "hot-buffer-shared-memory",
        "attention-config",
        _shared_memory,
        "lower device_buffer_size or num_speculative_tokens",
        "vllm/v1/hisparse/runtime.py",
    ),
    Rule(
        "kv-dtype-not-supported",
        "kv-cache-dtype",
        _kv_dtype,
        "use fp8, or auto",
        "github.com/vllm-project/vllm/issues/46654 (nvfp4 KV with GLM-5.2)",
    ),
    Rule("context-beyond-model", "max-model-len", _length, "lower it", "vllm/config/model.py"),
    Rule("batched-tokens-too-few", "max-num-batched-tokens", _budget, "raise it", "vllm/config/scheduler.py"),
    Rule(
        "world-size-exceeds-gpus",
        "tensor-parallel-size",
        _gpus,
        "use fewer ranks, or --nnodes, --data-parallel-size-local or ray for several nodes",
        "vllm/config/parallel.py",
    ),
    Rule(
        "heads-not-divisible",
        "tensor-parallel-size",
        _heads,
        "use a divisor of the heads",
        "vllm/config/model.py",
    ),
)


def check_rules(asked: Asked) -> list[Finding]:
    """The refusals of ``RULES``, in order."""
    return [found for rule in RULES if (found := rule.check(asked)) is not None]
