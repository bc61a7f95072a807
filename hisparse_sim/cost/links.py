"""Time on the link between a GPU and host memory."""

from __future__ import annotations

from hisparse_sim.cost.profile import Profile
from hisparse_sim.scenario.node import NodeSpec


class HostLink:
    """One GPU's link while ``ranks`` GPUs of the node use theirs alike.

    Each rank moves its own bytes over its own link; together they cannot exceed what the host's DRAM
    delivers. Rates are the node's; the issue time of a copy is the profile's. Bytes are per rank.
    """

    def __init__(self, node: NodeSpec, profile: Profile, *, ranks: int) -> None:
        link = node.host_link
        dram = node.dram_bytes_per_s / max(1, min(ranks, node.gpus))
        self.h2d_bytes_per_s = min(link.copy_h2d_bytes_per_s, dram)
        self.d2h_bytes_per_s = min(link.copy_d2h_bytes_per_s, dram)
        self.both_ways_bytes_per_s = min(link.both_ways_bytes_per_s, dram)
        self.gather_bytes_per_s = min(link.gather_bytes_per_s, dram)
        self.gather_per_block_bytes_per_s = min(link.gather_per_request_bytes_per_s, dram)
        self._issue_s = profile.term("link.copy_issue").value()

    def load_s(self, bytes_per_rank: float, *, copies: int = 1, storing: bool = False) -> float:
        """Host to device; ``storing``: while the other direction is busy too."""
        return self._copy_s(bytes_per_rank, self.h2d_bytes_per_s, copies, storing)

    def store_s(self, bytes_per_rank: float, *, copies: int = 1, loading: bool = False) -> float:
        """Device to host; ``loading``: while the other direction is busy too."""
        return self._copy_s(bytes_per_rank, self.d2h_bytes_per_s, copies, loading)

    def both_s(self, load_bytes: float, store_bytes: float) -> float:
        """Both directions started together: the longer one, or the sum over the shared ceiling."""
        return max(
            load_bytes / self.h2d_bytes_per_s,
            store_bytes / self.d2h_bytes_per_s,
            (load_bytes + store_bytes) / self.both_ways_bytes_per_s,
        )

    def _copy_s(self, size: float, rate: float, copies: int, shared: bool) -> float:
        if size <= 0:
            return 0.0
        if shared:
            rate = min(rate, self.both_ways_bytes_per_s / 2)
        return max(size / rate, copies * self._issue_s)
