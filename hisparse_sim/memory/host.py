"""Where ranks lie and what host memory holds: HiSparse's pools and the CPU offload's chunks."""

from __future__ import annotations

from msgspec import Struct

from hisparse_sim.errors import Infeasible, InputError
from hisparse_sim.memory.layout import HiSparseLayout, ceil_div, round_up, tensor_parallel
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.node import NodeSpec

GIB = 2**30
HOST_ALIGN_BYTES = 4096
"""A host block that several processes map, and a chunk of the CPU offload, are whole OS pages."""

HOST_POOL_SHARE = 0.95
"""HiSparse refuses a host pool above 95 % of available memory (vllm/v1/hisparse start-up check)."""


class Placement(Struct, frozen=True):
    """How ranks lie on nodes. ``replicas_per_node`` is 0 when a replica spans several nodes."""

    tp: int
    dp: int
    nodes: int
    ranks_per_node: int
    replicas_per_node: int

    @property
    def replica_on_one_node(self) -> bool:
        """Whether the TP ranks of a replica share a host."""
        return self.replicas_per_node > 0


def place(node: NodeSpec, engine: EngineSpec) -> Placement:
    """Put ``dp`` replicas of ``tp`` ranks on nodes of one type, as many as are needed.

    Raises ``InputError`` when a replica would straddle nodes unevenly.
    """
    tp, dp, gpus = tensor_parallel(node, engine), engine.dp, node.gpus
    ranks = tp * dp
    if ranks <= gpus:
        return Placement(tp, dp, 1, ranks, dp)
    if tp <= gpus:
        if gpus % tp:
            raise InputError(
                f"{dp} replicas of {tp} GPUs do not fill nodes of {gpus} GPUs evenly; "
                f"use a size that divides {gpus}",
                where="engine.tp",
            )
        per_node = gpus // tp
        return Placement(tp, dp, ceil_div(dp, per_node), gpus, per_node)
    if tp % gpus:
        raise InputError(f"{tp} is not a whole number of {gpus}-GPU nodes", where="engine.tp")
    return Placement(tp, dp, dp * tp // gpus, gpus, 0)


def shares_host_pool(placement: Placement, engine: EngineSpec) -> bool:
    """Whether the TP ranks of a replica map one host pool: several ranks, all on one node.

    SGLang's ranks each pin their own (sglang PR 27370, closed, would have changed that).
    """
    shares = engine.kind == "vllm" and engine.shared_host_pool
    return shares and placement.tp > 1 and placement.replica_on_one_node


def host_block_stride(sparse: HiSparseLayout, placement: Placement, engine: EngineSpec) -> int:
    """Bytes from one host block to the next: whole OS pages when the pool is shared."""
    if shares_host_pool(placement, engine):
        return round_up(sparse.host_block_bytes, HOST_ALIGN_BYTES)
    return sparse.host_block_bytes


def host_pool_copies(placement: Placement, engine: EngineSpec) -> int:
    """HiSparse pools that one node's memory holds: one a replica, or one a rank."""
    if shares_host_pool(placement, engine):
        return placement.replicas_per_node
    return placement.ranks_per_node


def host_pool_limit(node: NodeSpec, engine: EngineSpec, placement: Placement) -> int:
    """Largest HiSparse pool in bytes: 95 % of DRAM less the indexer's offload, over the node's pools."""
    left = node.dram_bytes * HOST_POOL_SHARE - per_node_bytes(engine.indexer_offload_gib, placement)
    return max(0, int(left / host_pool_copies(placement, engine)))


def host_pool(node: NodeSpec, engine: EngineSpec, placement: Placement) -> int:
    """Bytes of one HiSparse host pool. Raises ``Infeasible`` when DRAM does not hold them all."""
    limit = host_pool_limit(node, engine, placement)
    beside = per_node_bytes(engine.indexer_offload_gib, placement)
    if beside > node.dram_bytes * HOST_POOL_SHARE:
        raise Infeasible(
            f"{engine.indexer_offload_gib:,g} GiB a replica ({beside / GIB:,.0f} GiB a node) leave no host "
            f"pool in {node.name}'s {node.dram_bytes / GIB:,.0f} GiB of DRAM, of which vLLM uses 95 %",
            where="engine.indexer_offload_gib",
        )
    if engine.host_pool_gib == "auto":
        return limit
    asked = int(engine.host_pool_gib * GIB)
    if asked > limit:
        copies = host_pool_copies(placement, engine)
        alone = asked * copies <= node.dram_bytes * HOST_POOL_SHARE
        raise Infeasible(
            f"{engine.host_pool_gib:g} GiB x {copies} pools a node and {engine.indexer_offload_gib:g} GiB of "
            f"indexer offload do not fit {node.name}'s {node.dram_bytes / GIB:,.0f} GiB of DRAM; at most "
            f"{limit / GIB:,.1f} GiB a pool (vLLM stops at 95 %)",
            where="engine.indexer_offload_gib" if alone else "engine.host_pool_gib",
        )
    return asked


def per_node_bytes(gib: float, placement: Placement) -> int:
    """Bytes on one node of an offload of ``gib`` a replica, spread over the replica's ranks."""
    share = placement.replicas_per_node or placement.ranks_per_node / placement.tp
    return int(gib * GIB * share)


def offload_chunks(node: NodeSpec, engine: EngineSpec, placement: Placement, block_bytes: int) -> int:
    """Distinct blocks in the CPU offload: its size over TP ranks, each with a copy of its own."""
    if engine.mode != "offload":
        return 0
    if per_node_bytes(engine.kv_offload_gib, placement) > node.dram_bytes:
        raise Infeasible(
            f"{engine.kv_offload_gib:g} GiB a replica do not fit {node.name}'s "
            f"{node.dram_bytes / GIB:,.0f} GiB of DRAM",
            where="engine.kv_offload_gib",
        )
    rank_bytes = int(engine.kv_offload_gib * GIB) // placement.tp
    return rank_bytes // round_up(block_bytes, HOST_ALIGN_BYTES)


def indexer_chunks(
    node: NodeSpec, engine: EngineSpec, placement: Placement, sparse: HiSparseLayout | None
) -> int:
    """Distinct indexer pages in the OffloadingConnector beside HiSparse.

    A chunk is a whole block of the shared pool, as vLLM's calculator counts it.
    """
    if sparse is None:
        return 0
    if per_node_bytes(engine.indexer_offload_gib, placement) > node.dram_bytes:
        raise Infeasible(
            f"{engine.indexer_offload_gib:g} GiB a replica do not fit {node.name}'s "
            f"{node.dram_bytes / GIB:,.0f} GiB of DRAM",
            where="engine.indexer_offload_gib",
        )
    rank_bytes = int(engine.indexer_offload_gib * GIB) // placement.tp
    return rank_bytes // round_up(sparse.block_bytes, HOST_ALIGN_BYTES)
