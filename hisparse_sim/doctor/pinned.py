"""Host memory that a plan pins on one node, and the part of it that lies in ``/dev/shm``."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.memory.budget import PoolSizes
from hisparse_sim.memory.host import Placement, host_pool_copies, per_node_bytes, place, shares_host_pool
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.node import NodeSpec

MIB = 2**20

QUEUE_BYTES, ANSWER_BYTES = 160 * MIB, 100 * MIB
"""Message queues of the ``mp`` executor in shared memory: one to all ranks (10 chunks of
``VLLM_MQ_MAX_CHUNK_BYTES_MB`` = 16) and one back from each (10 of 10 MiB); vLLM's
``device_communicators/shm_broadcast.py``."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """Bytes on one node.

    ``pool_bytes``: of one HiSparse pool, of which the node holds ``pool_copies``; ``shared``: ranks of
    a replica map one pool, a file in ``/dev/shm``. ``offload_bytes``: of all offload tiers, which
    are files there, too. ``queue_bytes``: what the executor keeps there beside them, not pinned.
    """

    pool_bytes: int
    pool_copies: int
    shared: bool
    offload_bytes: int
    queue_bytes: int
    ranks: int

    @property
    def total_bytes(self) -> int:
        """All that is pinned."""
        return self.pool_bytes * self.pool_copies + self.offload_bytes

    @property
    def shm_bytes(self) -> int:
        """What ``/dev/shm`` must hold."""
        pools = self.pool_bytes * self.pool_copies if self.shared else 0
        return pools + self.offload_bytes + self.queue_bytes


def pinned(pools: PoolSizes, node: NodeSpec, engine: EngineSpec) -> Pinned:
    """What ``engine`` with these ``pools`` pins on one of its nodes."""
    where = place(node, engine)
    gib = engine.indexer_offload_gib if engine.mode == "hisparse" else 0.0
    if engine.mode == "offload":
        gib = engine.kv_offload_gib
    hisparse = engine.mode == "hisparse"
    return Pinned(
        pool_bytes=pools.host_pool_bytes if hisparse else 0,
        pool_copies=host_pool_copies(where, engine) if hisparse else 0,
        shared=hisparse and shares_host_pool(where, engine),
        offload_bytes=per_node_bytes(gib, where),
        queue_bytes=_queues(where),
        ranks=where.ranks_per_node,
    )


def _queues(where: Placement) -> int:
    if where.tp == 1:
        return 0
    return max(1, where.replicas_per_node) * QUEUE_BYTES + where.ranks_per_node * ANSWER_BYTES
