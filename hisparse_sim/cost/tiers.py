"""What HiSparse adds to a step: resolving the selection, gathering misses, staging, mirroring.

The order of things is vLLM's (PR 53781): a leader layer resolves its selection, then its own and its
followers' rows are gathered from pinned host memory by the SMs. In a pure decode step the followers'
gathers run ahead of their layers on a side stream; in a mixed step each layer gathers for itself.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from hisparse_sim.cost.links import LinkRates
from hisparse_sim.cost.profile import Profile
from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.scenario.node import NodeSpec


class TierCost(Struct, frozen=True):
    """Seconds on the critical path and traffic, as in :class:`~hisparse_sim.cost.work.StepCost`."""

    resolve_s: float
    gather_s: float
    staging_s: float
    mirror_s: float
    h2d_bytes: float
    d2h_bytes: float
    misses_rows: float
    lookups_rows: float


NOTHING = TierCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Tiers:
    """Prices the host tier of one HiSparse engine.

    ``layers`` with rows of ``row_bytes`` each, ``leaders`` of them with an indexer; ``ranks`` GPUs on
    the node pull copies of their own. How many rows miss is part of a step's work.

    ``swap_in``: SGLang's kernel, one a layer that resolves and gathers, with one thread block a request
    (jit_kernel/csrc/hisparse.cuh). ``leaders`` are then the layers that resolve.
    """

    def __init__(
        self,
        node: NodeSpec,
        profile: Profile,
        *,
        layers: int,
        leaders: int,
        row_bytes: int,
        ranks: int,
        swap_in: bool = False,
    ) -> None:
        self.link = LinkRates(node, ranks=ranks, profile=profile)
        line = profile.term("hisparse.line_bytes").value()
        whole = -(-row_bytes // line) * line
        # Rows of 576, 656 and 1,152 bytes, packed, touch 5, 6 and 9 lines wherever they start.
        self._gather_s = whole / self.link.gather_bytes_per_s
        self._block_gather_s = whole / self.link.gather_per_block_bytes_per_s
        self._line_row_bytes, self._row_bytes = whole, row_bytes
        self._layers, self._leaders, self._followers = layers, leaders, layers - leaders
        resolve = profile.term("hisparse.resolve")
        self._resolve_s, self._wave_s = resolve.value("base_s"), resolve.value("wave_s")
        self._slots = resolve.value("slots")
        kernels = layers if swap_in else 2 * leaders + layers
        self._kernels_s = kernels * profile.term("hisparse.kernel").value()
        self._blocks = profile.term("hisparse.gather_blocks").value()
        self._blocks_each = 1.0 if swap_in else profile.term("hisparse.gather_blocks_per_row").value()
        self._hidden = profile.term("hisparse.prefetch_hidden_share").value()

    def layer_gather_s(self, misses: float, misses_max: float, requests: int) -> float:
        """One layer's gather: the busiest request's thread blocks, or all rows over the ceiling.

        Each request's rows are copied by min(8, max(1, 64 / requests)) thread blocks; SGLang's by one.
        """
        blocks = min(self._blocks_each, max(1.0, self._blocks / (requests or 1)))
        busy = max(misses * self._gather_s, misses_max * self._block_gather_s / blocks)
        return busy + self.link.gather_base_s if busy else 0.0

    def copying_s(self, h2d_bytes: float, d2h_bytes: float) -> float:
        """What the mirror's copy takes while rows come the other way."""
        if not d2h_bytes:
            return 0.0
        both = (d2h_bytes + h2d_bytes) / self.link.both_ways_bytes_per_s
        return max(d2h_bytes / self.link.d2h_bytes_per_s, both)

    def hidden_s(self, work: StepWork, cost: StepCost) -> tuple[float, float]:
        """Of a step's gathers and of its mirror's copy: seconds that other work covers."""
        each = self.layer_gather_s(work.miss_rows, work.miss_rows_max, work.decode_requests)
        gathers = self._layers * each if work.lookup_rows > 0.0 else 0.0
        copies = self.copying_s(cost.h2d_bytes, cost.d2h_bytes)
        return max(0.0, gathers - cost.gather_s), max(0.0, copies - cost.mirror_s)

    def step(self, work: StepWork, compute_s: float, follower_s: float) -> TierCost:
        """Cost of a step whose compute takes ``compute_s``; ``follower_s``: one follower layer's."""
        resolve = gather = 0.0
        misses = work.miss_rows
        if work.decode_requests:
            resolve = self._kernels_s
        if work.lookup_rows > 0.0:
            # All rows resident: the resolver returns at once, and only launches remain.
            waves = ceil(work.decode_requests / self._slots)
            resolve += self._leaders * (self._resolve_s + self._wave_s * waves)
            each = self.layer_gather_s(misses, work.miss_rows_max, work.decode_requests)
            gather = self._layers * each
            if not work.prefills:
                gather -= self._followers * self._hidden * min(each, follower_s)
        staged = work.staged_tokens * self._layers * self._row_bytes
        staging = staged / self.link.gather_bytes_per_s
        h2d = misses * self._layers * self._line_row_bytes + staged
        d2h = float(work.mirrored_tokens * self._layers * self._row_bytes)
        busy = compute_s + resolve + gather + staging
        return TierCost(
            resolve_s=resolve,
            gather_s=gather,
            staging_s=staging,
            mirror_s=max(0.0, self.copying_s(h2d, d2h) - busy),
            h2d_bytes=h2d,
            d2h_bytes=d2h,
            misses_rows=misses * self._layers,
            lookups_rows=work.lookup_rows * self._layers,
        )
