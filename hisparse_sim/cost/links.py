"""What the link between a GPU and host memory delivers; who shares it is the simulation's business."""

from __future__ import annotations

from hisparse_sim.scenario.node import NodeSpec


class LinkRates:
    """Bytes/s of one GPU's link while ``ranks`` GPUs of the node use theirs alike.

    Each rank moves its own bytes over its own link; together they cannot exceed what the host's DRAM
    delivers. All rates are the node's.
    """

    def __init__(self, node: NodeSpec, *, ranks: int) -> None:
        link = node.host_link
        dram = node.dram_bytes_per_s / max(1, min(ranks, node.gpus))
        self.h2d_bytes_per_s = min(link.copy_h2d_bytes_per_s, dram)
        self.d2h_bytes_per_s = min(link.copy_d2h_bytes_per_s, dram)
        self.both_ways_bytes_per_s = min(link.both_ways_bytes_per_s, dram)
        self.gather_bytes_per_s = min(link.gather_bytes_per_s, dram)
        self.gather_per_block_bytes_per_s = min(link.gather_per_request_bytes_per_s, dram)
