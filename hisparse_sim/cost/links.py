"""What the link between a GPU and host memory delivers; who shares it is the simulation's business."""

from __future__ import annotations

from hisparse_sim.cost.profile import Profile
from hisparse_sim.scenario.node import NodeSpec


class LinkRates:
    """Bytes/s of one GPU's link while ``ranks`` GPUs of the node use theirs alike.

    Each rank moves its own bytes over its own link; together they cannot exceed what the host's DRAM
    delivers. Rates are the node's, or those measured where ``profile`` has them (``link.h2d``,
    ``link.d2h``, ``link.both_ways``, ``hisparse.gather``).
    """

    def __init__(self, node: NodeSpec, *, ranks: int, profile: Profile | None = None) -> None:
        link = node.host_link
        dram = node.dram_bytes_per_s / max(1, min(ranks, node.gpus))

        def rate(term_id: str, of_node: float) -> float:
            term = profile.find(term_id) if profile is not None else None
            if term is None or not term.value("per_unit_s"):
                return min(of_node, dram)
            return min(1.0 / term.value("per_unit_s"), dram)

        self.h2d_bytes_per_s = rate("link.h2d", link.copy_h2d_bytes_per_s)
        self.d2h_bytes_per_s = rate("link.d2h", link.copy_d2h_bytes_per_s)
        self.both_ways_bytes_per_s = rate("link.both_ways", link.both_ways_bytes_per_s)
        gather = profile.find("hisparse.gather") if profile is not None else None
        saturated, block = link.gather_bytes_per_s, link.gather_per_request_bytes_per_s
        if gather is not None:
            saturated = gather.value("saturated_bytes_per_s")
            block = gather.value("block_bytes_per_s")
        self.gather_bytes_per_s = min(saturated, dram)
        self.gather_per_block_bytes_per_s = min(block, dram)
        self.gather_base_s = gather.value("base_s") if gather is not None else 0.0
        self.gather_source = gather.source if gather is not None else f"node {node.name}: host_link"
