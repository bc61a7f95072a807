"""From a scenario to the parts of one engine replica."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from hisparse_sim.cost.profile import Profile, load_profile
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.errors import Infeasible, InputError
from hisparse_sim.memory.budget import PoolSizes, size_pools
from hisparse_sim.memory.handover import HiSparseImports, HoldingMemory, ResidentImports
from hisparse_sim.memory.host import GIB, place, shares_host_pool
from hisparse_sim.memory.index_offload import IndexOffload
from hisparse_sim.memory.layout import kv_layout, require_hisparse
from hisparse_sim.memory.offload import OffloadMemory, OffloadSizes
from hisparse_sim.memory.residency import HiSparseMemory, HiSparseSizes
from hisparse_sim.memory.residency_v030 import HiSparseMemoryV030
from hisparse_sim.memory.resident import ResidentMemory, ResidentSizes
from hisparse_sim.memory.sglang import SGLangMemory, SGLangSizes
from hisparse_sim.memory.sglang_pools import chunk_tokens, metadata_bytes, places, static_fraction
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.step import Scheduler


class Replica(Struct, frozen=True):
    """Everything that one replica is made of, ready to run."""

    pools: PoolSizes
    profile: Profile
    profile_sha256: str
    """Its hash, which takes as long as hundreds of steps: made with it, not within the run."""
    memory: ResidentMemory | HiSparseMemory | HiSparseMemoryV030 | SGLangMemory
    scheduler: Scheduler
    cost: StepCostModel
    index_block_bytes: int
    """Of the indexer's offload, on one rank."""
    token_bytes: int
    """KV of a token in all layers, on one rank."""
    host_token_bytes: int
    """What of it HiSparse's host pool holds: all but the indexer's."""
    topk: int
    ranks: int
    mirroring_ranks: int
    """Ranks that write HiSparse's host pool: one if they share it."""
    ranks_per_node: int
    """Ranks of all replicas that share a node's host memory."""
    warnings: tuple[str, ...]
    single_step: bool
    acceptance: tuple[float, ...]
    """Share of steps that accept at least the first, the second … drafted token."""
    seed: int


def check_simulated(scenario: Scenario) -> None:
    """Refuse what ``run`` does not simulate (``estimate`` may still size it)."""
    engine = scenario.engine
    if scenario.tp > scenario.node.gpus:
        raise InputError(
            f"{scenario.tp}: run simulates a replica on one node, {scenario.node.name} has "
            f"{scenario.node.gpus} GPUs; estimate sizes larger ones",
            where="engine.tp",
        )
    if scenario.cluster.prefill is not None and engine.kind == "sglang":
        raise InputError(
            "a pool that prefills is simulated with vLLM; SGLang's decode instance alone is "
            "engine.disaggregation_mode: decode",
            where="cluster.prefill",
        )
    if scenario.cluster.prefill is not None and (engine.mode == "offload" or _is_v030(scenario)):
        what = f"mode {engine.mode} of vLLM {engine.version}"
        raise InputError(
            f"{what}: instances that decode what others prefill are simulated in modes resident and "
            "hisparse of 0.33",
            where="cluster.prefill",
        )
    if _is_v030(scenario) and engine.mode == "hisparse" and engine.indexer_offload_gib:
        raise InputError(
            f"{engine.indexer_offload_gib:g} GiB: run simulates no indexer offload beside HiSparse of "
            "vLLM 0.30 (use 0, or engine.version 0.33)",
            where="engine.indexer_offload_gib",
        )


def check_handover(scenario: Scenario, prefilling: Scenario) -> None:
    """Refuse instances whose KV the others cannot read: NixlConnector compares both layouts."""
    here, there = (kv_layout(s.model, s.engine, s.node).row_format for s in (scenario, prefilling))
    if here != there:
        raise InputError(
            f"{prefilling.engine.kv_cache_dtype}: rows of {there}, and the instances that decode hold {here} "
            f"(engine.kv_cache_dtype {scenario.engine.kv_cache_dtype}); both must be the same",
            where="cluster.prefill.engine.kv_cache_dtype",
        )


def _is_v030(scenario: Scenario) -> bool:
    return scenario.engine.version.startswith("0.30")


def profile_of(scenario: Scenario) -> Profile:
    """The calibration profile that prices the scenario's steps; ``InputError`` if its node has none."""
    name = scenario.calibration or scenario.node.calibration
    if name is None:
        raise InputError(
            f"{scenario.node.name} has no calibration profile: capacity only, no time "
            "(estimate sizes it; or name a profile in `calibration`)",
            where="node",
        )
    try:
        return load_profile(name)
    except InputError as error:
        if error.where != name:  # inside the file
            raise
        raise InputError(f"{name}: {error.message}", where="calibration") from None


def build_prefill(prefilling: Scenario) -> Replica:
    """One of the instances that only prefill. Raises ``InputError`` and ``Infeasible``."""
    try:
        return build_replica(prefilling, prefills_only=True)
    except (InputError, Infeasible) as error:
        raise error.within("cluster.prefill") from None


def blocks_in(pools: PoolSizes) -> tuple[int, int]:
    """Blocks of the GPU pool and of the host pool (or chunks) that requests may have."""
    host = pools.num_host_blocks - 1 if pools.num_host_blocks else pools.num_cpu_chunks
    return pools.num_gpu_blocks - 1, host


def build_replica(scenario: Scenario, *, prefills_only: bool = False) -> Replica:
    """Size the pools and make the replica. Raises ``Infeasible`` for what vLLM would not start with.

    ``prefills_only``: of an instance that hands its requests over.
    """
    check_simulated(scenario)
    model, node, engine = scenario.model, scenario.node, scenario.engine
    pools = size_pools(model, node, engine)
    _check_chunks(scenario, pools)
    profile = profile_of(scenario)
    layout = kv_layout(model, engine, node)
    index_block_bytes = require_hisparse(layout, model).indexer_page_bytes if layout.hisparse else 0
    cost = StepCostModel(model, node, engine, profile, locality=scenario.locality)
    placement = place(node, engine)
    memory = _memory(scenario, pools, holds=prefills_only)
    return Replica(
        pools,
        profile,
        profile.hash,
        memory,
        Scheduler(_scheduling(scenario, pools), memory),
        cost,
        index_block_bytes,
        token_bytes=layout.token_bytes,
        host_token_bytes=layout.num_layers * layout.row_bytes,
        topk=model.index_topk,
        ranks=scenario.tp,
        mirroring_ranks=1 if shares_host_pool(placement, engine) else scenario.tp,
        ranks_per_node=placement.ranks_per_node,
        warnings=(*cost.warnings, *_warnings(scenario, pools)),
        single_step=engine.single_step,
        acceptance=engine.acceptance,
        seed=scenario.seed,
    )


def peers_of(replica: Replica, scenario: Scenario) -> list[Replica]:
    """``replica`` and the scenario's others: each with memory of its own, all priced in one place."""
    others = []
    for number in range(1, scenario.replicas):
        memory = _memory(scenario, replica.pools, holds=isinstance(replica.memory, HoldingMemory))
        scheduler = Scheduler(replica.scheduler.config, memory)
        others.append(replace(replica, memory=memory, scheduler=scheduler, seed=replica.seed + number))
    return [replica, *others]


def _scheduling(scenario: Scenario, pools: PoolSizes) -> SchedulerConfig:
    engine = scenario.engine
    if engine.kind == "sglang":
        # The overlap scheduler, SGLang's default, decides a batch ahead as vLLM's asynchronous one does.
        imports = engine.disaggregation_mode == "decode"
        seqs = places(scenario.model, engine, pools)
        chunk = chunk_tokens(scenario.node, engine)
        return SchedulerConfig(
            max_model_len=pools.max_model_len,
            max_num_seqs=seqs,
            max_num_batched_tokens=seqs * (1 + engine.mtp) if imports else chunk,
            async_scheduling=True,
            cohort=False,
            drafts=engine.mtp,
            give_up_after=1000,
            prefill_first=not imports and not engine.enable_mixed_chunk,
            retracts=True,
        )
    return SchedulerConfig(
        max_model_len=pools.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        chunked_prefill=engine.enable_chunked_prefill,
        priority_policy=engine.policy == "priority",
        async_scheduling=engine.async_scheduling,
        cohort=not engine.single_step and not engine.mtp,
        drafts=engine.mtp,
        give_up_after=1000,
        threshold_when_alone=_is_v030(scenario),
        self_preemption_ends_step=_is_v030(scenario),
        known_by_placeholders=_is_v030(scenario),
    )


def _check_chunks(scenario: Scenario, pools: PoolSizes) -> None:
    """vLLM's SchedulerConfig: without chunked prefill a step must take the longest prompt."""
    engine = scenario.engine
    if not engine.enable_chunked_prefill and engine.max_num_batched_tokens < pools.max_model_len:
        raise Infeasible(
            f"{engine.max_num_batched_tokens:,} is less than max_model_len, {pools.max_model_len:,}, "
            "which enable_chunked_prefill: false does not allow",
            where="engine.max_num_batched_tokens",
        )


def _warnings(scenario: Scenario, pools: PoolSizes) -> list[str]:
    engine = scenario.engine
    found = []
    if engine.kind == "sglang":
        return _sglang_warnings(scenario, pools)
    if not engine.async_scheduling:
        found.append("engine.async_scheduling is off: the host's time between steps is not priced")
    if engine.mode == "offload":
        resident = "nothing is offloaded, the run is a resident one"
        if not engine.enable_prefix_caching:
            found.append(f"engine.enable_prefix_caching is off: {resident}")
        elif not pools.num_cpu_chunks:
            size = f"{engine.kv_offload_gib:g} GiB"
            found.append(f"engine.kv_offload_gib: {size} holds no block on each rank: {resident}")
    return found


def _sglang_warnings(scenario: Scenario, pools: PoolSizes) -> list[str]:
    engine, node = scenario.engine, scenario.node
    if engine.mode == "resident":
        return ["engine.kind sglang, mode resident: blocks are admitted and found again as in vLLM"]
    layout = kv_layout(scenario.model, engine, node)
    tables = metadata_bytes(scenario.model, engine, layout, pools)
    spare = int(node.gpu.memory_bytes * (1 - static_fraction(node, engine)))
    if tables <= spare:
        return []
    return [
        f"engine.max_running_requests: tables of {places(scenario.model, engine, pools):,} requests take "
        f"{tables / GIB:,.1f} GiB a GPU, more than the {spare / GIB:,.1f} GiB that are not static: SGLang "
        "would run out of memory (sglang PR 23970)"
    ]


def _sglang_memory(scenario: Scenario, pools: PoolSizes) -> SGLangMemory:
    engine = scenario.engine
    return SGLangMemory(
        SGLangSizes(
            page_size=pools.block_size,
            device_pages=pools.num_gpu_blocks - 1,
            host_pages=pools.num_host_blocks - 1,
            buffer_pages=pools.hot_blocks,
            max_model_len=pools.max_model_len,
            conservativeness=engine.schedule_conservativeness,
            imports=engine.disaggregation_mode == "decode",
            reserved_decode_tokens=engine.num_reserved_decode_tokens,
        )
    )


def _memory(
    scenario: Scenario, pools: PoolSizes, *, holds: bool = False
) -> ResidentMemory | HiSparseMemory | HiSparseMemoryV030 | SGLangMemory:
    """``holds``: of an engine that only prefills."""
    engine, prefill = scenario.engine, scenario.cluster.prefill
    if engine.kind == "sglang" and engine.mode == "hisparse":
        return _sglang_memory(scenario, pools)
    delay = engine.transfer_delay_steps
    old = _is_v030(scenario)
    if delay is None:
        delay = 0 if old else 1
    watermark = int(engine.watermark * pools.num_gpu_blocks)
    caching = engine.enable_prefix_caching
    # One block of each pool is vLLM's null block.
    if pools.mode == "hisparse":
        sizes = HiSparseSizes(
            block_size=pools.block_size,
            gpu_blocks=pools.num_gpu_blocks - 1,
            host_blocks=pools.num_host_blocks - 1,
            resident_groups=pools.resident_groups,
            hot_blocks_per_group=pools.hot_blocks_per_group,
            window_pages=pools.admission_window_pages,
            transition_watermark_blocks=pools.transition_watermark_blocks,
            max_model_len=pools.max_model_len,
            admission_watermark_blocks=watermark,
            prefix_caching=caching,
            transfer_delay_steps=delay,
        )
        if old:
            return HiSparseMemoryV030(sizes)
        chunks = pools.num_indexer_chunks
        offload = IndexOffload(chunks, pools.block_size) if chunks and caching else None
        if prefill is not None:
            return HiSparseImports(sizes, offload, lands=prefill.lands)
        return HiSparseMemory(sizes, offload)
    resident = ResidentSizes(
        pools.block_size, pools.num_gpu_blocks - 1, pools.max_model_len, watermark, caching
    )
    if holds:
        return HoldingMemory(resident)
    if prefill is not None:
        return ResidentImports(resident)
    if pools.mode == "offload" and pools.num_cpu_chunks and caching:
        return OffloadMemory(
            OffloadSizes(
                resident,
                pools.num_cpu_chunks,
                store_delay_steps=delay + 1,
                load_delay_steps=None,
                lru=old,
            )
        )
    return ResidentMemory(resident)
