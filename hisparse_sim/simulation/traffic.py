"""What one engine moves: over its link to host memory, and over the network."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, cast

import simpy
from msgspec.structs import replace

from hisparse_sim.cost.work import StepCost
from hisparse_sim.memory.handover import Arrivals
from hisparse_sim.memory.offload import Job, OffloadMemory
from hisparse_sim.scheduler.request import Request
from hisparse_sim.simulation.batch import Life
from hisparse_sim.simulation.links import D2H, H2D, HostLink, StepLink
from hisparse_sim.simulation.replica import Replica
from hisparse_sim.simulation.works import HISPARSE

SMALL_BYTES = 64 << 20
"""Bytes of one step below which their transfer is not put on the link as a flow of its own: at
PCIe 5 speed they take about 1 ms, which the step's cost already contains."""


class Traffic:
    """Puts bytes on links and counts them. ``rouse``: called when something has arrived."""

    def __init__(
        self,
        env: simpy.Environment,
        replica: Replica,
        link: HostLink | StepLink,
        network: HostLink | None,
        rouse: Callable[[], None],
    ) -> None:
        self.env = env
        self.link, self.network = link, network
        self._replica, self._memory, self._rouse = replica, replica.memory, rouse
        self.host_bytes = [0.0, 0.0]
        """Read from and written to host memory so far, over all ranks."""
        self.arrivals: Arrivals | None = getattr(self._memory, "arrivals", None)
        """Requests that were prefilled elsewhere; none where nobody else prefills."""
        self._index = getattr(self._memory, "index_offload", None)
        self._restored = self._stored = 0

    def of_step(self, cost: StepCost) -> StepCost:
        """Count what a step moves in host memory; its cost with the indexer's offload in it."""
        if cost.h2d_bytes or cost.d2h_bytes:
            self.host_bytes[H2D] += cost.h2d_bytes * self._replica.ranks
            self.host_bytes[D2H] += cost.d2h_bytes * self._replica.mirroring_ranks
        return cost if self._index is None else self._with_index(cost)

    def put(self, h2d_bytes: float, d2h_bytes: float) -> simpy.Event | float:
        """Put a step's bytes on the link, or count them if they are too few to matter there. Those to the
        device have arrived at the time that it returns, or when the event fires."""
        link = self.link
        moving = [size if size > SMALL_BYTES else 0.0 for size in (h2d_bytes, d2h_bytes)]
        link.bytes[H2D] += h2d_bytes - moving[H2D]
        link.bytes[D2H] += d2h_bytes - moving[D2H]
        if isinstance(link, StepLink):
            return link.send(*moving)
        came = self.env.event() if moving[H2D] else None
        if any(moving):
            events = came, None
            link.begin([(size, way, events[way]) for way, size in enumerate(moving) if size])
        return self.env.now if came is None else came

    def _with_index(self, cost: StepCost) -> StepCost:
        """Add the indexer blocks that the step copies to and from their offload, on every rank."""
        offload = self._index
        assert offload is not None
        size = self._replica.index_block_bytes
        restored = (offload.restored_blocks - self._restored) * size
        stored = (offload.stored_blocks - self._stored) * size
        self._restored, self._stored = offload.restored_blocks, offload.stored_blocks
        if not restored and not stored:
            return cost
        self.host_bytes[H2D] += restored * self._replica.ranks
        self.host_bytes[D2H] += stored * self._replica.ranks
        return replace(
            cost,
            staging_s=cost.staging_s + restored / self.link.rates[H2D],
            h2d_bytes=cost.h2d_bytes + restored,
            d2h_bytes=cost.d2h_bytes + stored,
        )

    def begin_jobs(self) -> tuple[int, int]:
        """Put the offload tier's new copies on the link; bytes to and from the device."""
        memory = self._memory
        moved = [0, 0]
        if isinstance(memory, OffloadMemory) and memory.started:
            jobs, memory.started = memory.started, []
            memory.completed = []
            for job in jobs:
                size = job.blocks * self._replica.pools.block_bytes
                direction = H2D if job.load else D2H
                moved[direction] += size
                self.host_bytes[direction] += size * self._replica.ranks
                job.on_link = True
                self.env.process(self._copy(memory, job, size, direction))
        return moved[H2D], moved[D2H]

    def _copy(
        self, memory: OffloadMemory, job: Job, size: int, direction: int
    ) -> Generator[simpy.Event, Any, None]:
        """A load is there when its bytes are; a store is reported with the step after that."""
        assert isinstance(self.link, HostLink)
        yield self.link.transfer(size, direction)
        job.on_link = False
        if job.load:
            memory.finish(job)
            record = cast(Request, job.request).user.record
            if record.load_end_s is None and not record.preemptions:
                record.load_end_s = self.env.now
        self._rouse()

    def read(self) -> None:
        """Begin to read the prompts for which blocks are reserved now."""
        arrivals = self.arrivals
        if arrivals is None or not arrivals.started:
            return
        begun, arrivals.started = arrivals.started, []
        for request, tokens, to_host in begun:
            self.env.process(self._receive(arrivals, cast(Request, request), tokens, to_host))

    def _receive(
        self, arrivals: Arrivals, request: Request, tokens: int, to_host: bool
    ) -> Generator[simpy.Event, Any, None]:
        """A prompt's KV comes over the network to each rank, and, under HiSparse, on into host memory.

        What lands there passes through the GPU in pieces, and is there when the last one is.
        """
        assert self.network is not None
        assert isinstance(self.link, HostLink)
        replica = self._replica
        on_host = tokens * replica.host_token_bytes if isinstance(self._memory, HISPARSE) else 0
        life: Life = request.user
        if life.record.load_start_s is None:
            life.record.load_start_s = self.env.now
        came = self.network.transfer(tokens * replica.token_bytes, H2D)
        if to_host:
            came = came & self.link.transfer(on_host, D2H)
        yield came
        if life.record.load_end_s is None:
            life.record.load_end_s = self.env.now
        arrivals.under_way.discard(request)
        self.host_bytes[D2H] += on_host * replica.mirroring_ranks
        if on_host and not to_host:
            self.link.transfer(on_host, D2H)
        assert life.read is not None
        life.read()
        self._rouse()
