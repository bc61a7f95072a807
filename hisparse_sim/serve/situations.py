"""Commands that start and disappoint, or that do not fit: what sizes tell before anything runs.

Each is a public case; ``source`` names it. A check takes the pools and says nothing, or one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hisparse_sim.doctor.pinned import pinned
from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.memory.budget import PoolSizes, kv_pool_bytes, size_pools
from hisparse_sim.memory.host import GIB, host_pool_copies, place, shares_host_pool
from hisparse_sim.memory.layout import ceil_div, kv_layout
from hisparse_sim.serve.connectors import NAME, SIZE
from hisparse_sim.serve.finding import Finding, Kind
from hisparse_sim.serve.rules import Asked

MOST_UTILIZATION = 0.97
"""Above, less than 3 % of the GPU is left for what vLLM does not count."""
TIGHT_SHARE = 0.90
"""vLLM compares pools with 95 % of the memory that is *available* when a rank looks: page cache, other
processes and ranks that were faster count against it."""

SHARED_SOURCE = "vllm/v1/hisparse/runtime.py, use_shared_hisparse_host_pool"
_NO_FIT = {
    "engine.max_model_len": "context-cannot-fit",
    "engine.host_pool_gib": "host-pool-exceeds-ram",
    "engine.indexer_offload_gib": "offload-exceeds-ram",
    "engine.kv_offload_gib": "offload-exceeds-ram",
    "model": "model-does-not-fit",
    "engine.reserve_gib": "model-does-not-fit",
}
_REMEDY = {
    "context-cannot-fit": (
        "lower --max-model-len (or give auto), raise --gpu-memory-utilization, lower "
        "--max-num-batched-tokens, or spread over more GPUs"
    ),
    "host-pool-exceeds-ram": "lower host_pool_gib, or let a replica's ranks share one pool (executor mp)",
    "offload-exceeds-ram": f"lower cpu_bytes_to_use or --{SIZE}: both are totals over the TP ranks",
    "model-does-not-fit": "use more GPUs (--enable-expert-parallel spreads experts), or smaller weights",
}


@dataclass(frozen=True, slots=True)
class Sized:
    """The command with its pools. ``concurrency``: requests at once, if known. ``longest``: tokens."""

    asked: Asked
    pools: PoolSizes
    resident: PoolSizes | None
    concurrency: int | None
    longest: int

    @property
    def context(self) -> int:
        """Tokens of the longest request that the engine takes."""
        return min(self.longest, self.pools.max_model_len)

    @property
    def pages(self) -> int:
        """Blocks of one request of the workload's context."""
        return ceil_div(self.context, self.pools.block_size)

    @property
    def resident_requests(self) -> int:
        """Requests of that context which the GPUs of a replica hold with all their KV."""
        if self.resident is None:
            return 0
        return (self.resident.num_gpu_blocks - 1) // ceil_div(self.context, self.resident.block_size)


def fit(asked: Asked) -> tuple[PoolSizes | None, Finding | None]:
    """The pools, or why vLLM would not start with them."""
    try:
        return size_pools(asked.model, asked.node, asked.engine), None
    except HiSparseError as error:
        name = _NO_FIT.get(error.where or "")
        if name is None or (isinstance(error, InputError) and name != "context-cannot-fit"):
            raise
        reason = error.message
        if name == "host-pool-exceeds-ram" and copies(asked) > 1:
            name = "host-pool-times-tp" if not _shares(asked) else name
            reason += f": {copies(asked)} pools stand on a node"
        if name == "context-cannot-fit":
            reason = _vllm_words(asked, reason)
        field = (error.where or "").removeprefix("engine.")
        flag = asked.served.written(field)
        source = {"context-cannot-fit": "vllm/v1/core/kv_cache_utils.py"}.get(name, SHARED_SOURCE)
        return None, Finding(
            name, "refusal", flag, reason, _REMEDY.get(name, _REMEDY["host-pool-exceeds-ram"]), source
        )


def _vllm_words(asked: Asked, reason: str) -> str:
    """The sentence that vLLM prints, for resident and offload mode; then ours."""
    length = asked.engine.max_model_len
    if asked.hisparse or length == "auto":
        return reason
    layout = kv_layout(asked.model, asked.engine, asked.node)
    needed = ceil_div(length, layout.block_size) * layout.block_bytes / GIB
    has = kv_pool_bytes(asked.model, asked.node, asked.engine) / GIB
    return (
        f"To serve at least one request with the model's max seq len ({length}), {needed:.2f} GiB KV cache "
        f"is needed, which is larger than the available KV cache memory ({has:.2f} GiB): {reason}"
    )


def copies(asked: Asked) -> int:
    """HiSparse pools on a node."""
    return host_pool_copies(place(asked.node, asked.engine), asked.engine)


def _shares(asked: Asked) -> bool:
    return shares_host_pool(place(asked.node, asked.engine), asked.engine)


def check_situations(sized: Sized) -> Iterator[Finding]:
    """Every warning that applies."""
    for check in SITUATIONS:
        found = check(sized)
        if found is not None:
            yield found


def _warning(name: str, flag: str, reason: str, remedy: str, source: str) -> Finding:
    kind: Kind = "warning"
    return Finding(name, kind, flag, reason, remedy, source)


def _pool_times_tp(s: Sized) -> Finding | None:
    asked = s.asked
    if not asked.hisparse or asked.tp == 1 or _shares(asked):
        return None
    each = s.pools.host_pool_bytes / GIB
    return _warning(
        "host-pool-times-tp",
        asked.served.written("shared_host_pool"),
        f"each of {asked.tp} TP ranks pins a host pool of its own: {each:,.0f} GiB x {copies(asked)} = "
        f"{each * copies(asked):,.0f} GiB a node for {each:,.0f} GiB of KV",
        "use the mp executor on one node, PP and DCP 1: then the ranks map one pool",
        SHARED_SOURCE,
    )


def _memory_tight(s: Sized) -> Finding | None:
    total = pinned(s.pools, s.asked.node, s.asked.engine).total_bytes
    share = total / s.asked.node.dram_bytes
    if share <= TIGHT_SHARE:
        return None
    return _warning(
        "host-memory-tight",
        f"--{NAME}",
        f"{total / GIB:,.0f} GiB pinned are {share:.0%} of {s.asked.node.name}'s memory, and vLLM compares "
        "with 95 % of what is available at that moment: whether it starts depends on page cache, other "
        "processes and which rank looks first",
        "leave 10 % of RAM free, or check the machine with hisparse-sim doctor",
        "github.com/sgl-project/sglang/issues/38156",
    )


def _pool_below_demand(s: Sized) -> Finding | None:
    if not s.asked.hisparse or s.concurrency is None:
        return None
    holds = (s.pools.num_host_blocks - 1) // s.pages
    each = ceil_div(s.concurrency, s.asked.engine.dp)
    if holds >= each:
        return None
    needed = (each * s.pages + 1) * s.pools.host_block_bytes / GIB
    old = s.asked.engine.version.startswith("0.30")
    then = "their pages stay on the GPU" if old else "the others wait, or preempt each other"
    return _warning(
        "host-pool-below-demand",
        s.asked.served.written("host_pool_gib"),
        f"the host pool holds {holds:,} requests of {s.context:,} tokens, and {each:,} are asked of a "
        f"replica: {then}",
        f"set host_pool_gib to {needed:,.0f} or more",
        "github.com/sgl-project/sglang/issues/23704",
    )


def _offload_small(s: Sized) -> Finding | None:
    if s.asked.engine.mode != "offload":
        return None
    distinct, gpu = (n * s.pools.block_size for n in (s.pools.num_cpu_chunks, s.pools.num_gpu_blocks - 1))
    if distinct >= gpu:
        return None
    return _warning(
        "offload-smaller-than-gpu-pool",
        _offload_flag(s),
        f"{s.asked.engine.kv_offload_gib:g} GiB over {s.asked.tp} TP ranks, each with its own copy, hold "
        f"{distinct:,} distinct tokens; the GPU pool holds {gpu:,}, so little that left the GPU is found "
        "again",
        "multiply the size: distinct tokens are the total divided by TP",
        "docs of --kv-offloading-size (a total over TP ranks)",
    )


def _offload_below_sessions(s: Sized) -> Finding | None:
    if s.asked.engine.mode != "offload" or s.concurrency is None:
        return None
    distinct = s.pools.num_cpu_chunks * s.pools.block_size
    each = ceil_div(s.concurrency, s.asked.engine.dp)
    if each <= s.resident_requests or distinct >= each * s.context:
        return None
    return _warning(
        "offload-below-working-set",
        _offload_flag(s),
        f"the tier holds {distinct // s.context:,} contexts of {s.context:,} tokens (each TP rank keeps its "
        f"own copy) and {each:,} are live: with more than it holds, prompts are computed anew each turn and "
        "throughput collapses",
        "enlarge the tier, or lower the concurrency below what it holds",
        "vLLM blog 2026-09-08, offload between 8 and 24 clients",
    )


def _offload_unread(s: Sized) -> Finding | None:
    size = s.asked.engine.kv_offload_gib + s.asked.engine.indexer_offload_gib
    if not size or s.asked.engine.enable_prefix_caching:
        return None
    return _warning(
        "offload-never-read",
        _offload_flag(s),
        f"without prefix caching nothing is looked up: {size:g} GiB are pinned and never read",
        "leave out --no-enable-prefix-caching, or the offload",
        "vllm/v1/kv_offload; 960 GB pinned with 198,422 stores and no load were seen for another reason",
    )


def _offload_speculation(s: Sized) -> Finding | None:
    speculates = bool(s.asked.served.flags.mapping("speculative-config"))
    size = s.asked.engine.kv_offload_gib + s.asked.engine.indexer_offload_gib
    if not size or not speculates or not s.asked.engine.enable_prefix_caching:
        return None
    return _warning(
        "offload-with-speculation",
        _offload_flag(s),
        "a lookup must hit in every KV group, the draft's too: with draft layers of another kind a tier of "
        "960 GB stored 198,422 times and was never read",
        "watch 'External prefix cache hit rate'; if it stays at 0 %, drop the tier or the drafts",
        "8x H200, vLLM 0.26, OffloadingConnector with drafts, 2026-08",
    )


def _offload_flag(s: Sized) -> str:
    field = "indexer_offload_gib" if s.asked.hisparse else "kv_offload_gib"
    return s.asked.served.written(field)


def _admission_crash(s: Sized) -> Finding | None:
    if not s.asked.hisparse or not s.asked.engine.version.startswith("0.30"):
        return None
    return _warning(
        "admission-crash",
        "",
        "vLLM 0.30 takes back GPU copies of a prefix hit without counting them: under pressure its scheduler "
        "raises 'Cannot get N free blocks from the pool' and the engine dies",
        "use 0.33, or keep the pool from filling (fewer --max-num-seqs)",
        "github.com/vllm-project/vllm/pull/57457",
    )


def _slower(s: Sized) -> Finding | None:
    fits = s.resident_requests * s.asked.engine.dp
    if not s.asked.hisparse or not fits or (s.concurrency is not None and s.concurrency > fits):
        return None
    users = f"{s.concurrency:,}" if s.concurrency is not None else f"up to {fits:,}"
    return _warning(
        "hisparse-slower-at-low-concurrency",
        f"--{NAME}",
        f"{users} requests of {s.context:,} tokens at once fit the GPUs whole ({fits:,} do): there HiSparse "
        "frees nothing that is needed and each step still pays for misses and lookups (+2.7 % of TPOT at one "
        "client on 8xH200, 44 instead of 48 tokens/s on RTX PRO 6000)",
        "leave HiSparseConnector out for this load, or check TPOT with run --mode resident",
        "vLLM blog 2026-09-08; github.com/sgl-project/sglang/pull/33075",
    )


def _override(s: Sized) -> Finding | None:
    if not s.asked.hisparse or "num-gpu-blocks-override" not in s.asked.served.flags.given:
        return None
    return _warning(
        "gpu-override-sizes-host-pool",
        s.asked.served.flags.written("num-gpu-blocks-override"),
        "the override may size the host pool, too, over host_pool_gib: more may be pinned than declared",
        "size by --kv-cache-memory-bytes or --gpu-memory-utilization instead",
        "review of github.com/vllm-project/vllm/pull/53781",
    )


def _few(s: Sized) -> Finding | None:
    length = s.pools.max_model_len
    holds = (s.pools.num_gpu_blocks - 1) // ceil_div(length, s.pools.block_size)
    if s.asked.hisparse or holds > 2 or s.asked.tp == 1 or s.asked.model.attention == "gqa":
        return None
    return _warning(
        "few-requests-at-full-context",
        s.asked.served.written("max_model_len"),
        f"{holds} requests of {length:,} tokens run at once: each TP rank holds the whole latent KV, so more "
        "ranks add no room",
        "use HiSparse, fp8 KV, or a shorter --max-model-len",
        "github.com/vllm-project/vllm/issues/46654",
    )


def _utilization(s: Sized) -> Finding | None:
    share, gpu = s.asked.engine.gpu_memory_utilization, s.asked.node.gpu
    if share <= MOST_UTILIZATION:
        return None
    left = gpu.memory_bytes * (1 - share) / GIB
    return _warning(
        "utilization-leaves-no-room",
        s.asked.served.written("gpu_memory_utilization"),
        f"{left:.1f} GiB of {gpu.name} are left to CUDA contexts, NCCL and other processes; vLLM refuses "
        "when free memory at start is less than the utilization, and may run out later",
        "use 0.92 to 0.95",
        "github.com/sostrowsk/dgx-spark-local-llm (0.92 refused with 110.73 of 121.63 GiB free)",
    )


def _too_long(s: Sized) -> Finding | None:
    if s.longest <= s.pools.max_model_len:
        return None
    return _warning(
        "requests-beyond-max-model-len",
        s.asked.served.written("max_model_len"),
        f"the workload's requests reach {s.longest:,} tokens; those over {s.pools.max_model_len:,} fail",
        "raise --max-model-len, or shorten the workload",
        "vllm/entrypoints/openai (this model's maximum context length)",
    )


SITUATIONS: tuple[Callable[[Sized], Finding | None], ...] = (
    _too_long,
    _utilization,
    _pool_times_tp,
    _memory_tight,
    _pool_below_demand,
    _offload_small,
    _offload_below_sessions,
    _offload_unread,
    _offload_speculation,
    _admission_crash,
    _slower,
    _override,
    _few,
)
