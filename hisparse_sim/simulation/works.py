"""What the steps of one engine have to do, in counts that the cost room prices."""

from __future__ import annotations

from collections.abc import Iterable

from hisparse_sim.cost.work import StepWork
from hisparse_sim.memory.base import NEVER
from hisparse_sim.memory.offload import OffloadMemory
from hisparse_sim.memory.residency import HiSparseMemory
from hisparse_sim.memory.residency_v030 import HiSparseMemoryV030
from hisparse_sim.memory.sglang import SGLangMemory
from hisparse_sim.scheduler.decision import Step
from hisparse_sim.scheduler.request import Request
from hisparse_sim.simulation.lookups import UNIT, Buffered, Lookups, Warmth
from hisparse_sim.simulation.replica import Replica

HISPARSE = HiSparseMemory | HiSparseMemoryV030 | SGLangMemory


class Works:
    """Counts the work of decided steps, and of steps that nobody has to decide."""

    def __init__(self, replica: Replica) -> None:
        self._scheduler, self._memory = replica.scheduler, replica.memory
        memory = replica.memory
        self._hisparse = isinstance(memory, HISPARSE)
        self._gpu_only = not isinstance(memory, HISPARSE | OffloadMemory)
        """Blocks on the GPU are all there is."""
        # SGLang prefills a prompt in its device pool.
        self._stages = self._hisparse and not isinstance(memory, SGLangMemory)
        self.lookups: Lookups | None = None
        """In hot buffers; none outside HiSparse."""
        if isinstance(memory, HISPARSE):
            assert replica.cost.misses is not None
            self.lookups = Lookups(replica.topk, memory.block_size, replica.cost.misses)
            if not isinstance(memory, SGLangMemory):
                memory.copies.on_lost = self.lookups.changed.add

    def warmth(self) -> Warmth:
        """Of the hot buffer of a request that arrives."""
        return Buffered() if isinstance(self._memory, SGLangMemory) else Warmth()

    def join(self, requests: Iterable[Request]) -> None:
        """These ride in the cohort from the next step on."""
        if self.lookups is not None:
            for request in requests:
                self.lookups.join(request)

    def leave(self, requests: Iterable[Request]) -> None:
        """These have left the cohort."""
        if self.lookups is not None:
            for request in requests:
                self.lookups.leave(request)

    def of(self, decision: Step) -> StepWork:
        """What a step has to do, in counts."""
        hisparse = self._hisparse
        size = self._memory.block_size
        decodes = sampled = tokens = decision.riders
        context = decision.rider_tokens + decodes
        staged = rows = missed = most_missed = drafts = 0
        if decodes and self.lookups is not None:
            rows, missed, most_missed = self.lookups.total(self._scheduler.cohort.steps - 1)
        prefills: list[tuple[int, int]] = []
        pasts, epochs = decision.past, decision.epochs
        for request, n in decision.scheduled.items():
            past = pasts[request]
            samples = epochs[request][1]
            tokens += n
            drafted = decision.drafted.get(request, 0)
            sampled += samples + drafted
            if n == 1 + drafted and samples and past:
                decodes += 1
                drafts += drafted
                context += past + n
                if self.lookups is not None and request.memory.host_only:
                    each = self.lookups.of(request, past)
                    rows += each.looked_up
                    missed += each.missed
                    most_missed = max(most_missed, each.missed)
            else:
                prefills.append((n, past))
                if self._stages:
                    staged += request.memory.host_only * size
        return StepWork(
            decode_requests=decodes,
            decode_context_tokens=context,
            prefills=tuple(prefills),
            draft_tokens=drafts,
            sampled=sampled,
            lookup_rows=rows / UNIT,
            miss_rows=missed / UNIT,
            miss_rows_max=most_missed / UNIT,
            staged_tokens=staged,
            mirrored_tokens=tokens if hisparse else 0,
        )

    def decodes(self) -> tuple[StepWork, int]:
        """The work of decoding one token of each request of the cohort, and for how many steps nothing but
        its context changes if nobody joins, leaves or loses a page."""
        cohort = self._scheduler.cohort
        riders = cohort.size
        context = cohort.tokens + riders
        if self.lookups is None:
            return StepWork(riders, context, sampled=riders), NEVER
        rows, missed, most_missed = self.lookups.total(cohort.steps)
        work = StepWork(
            riders,
            context,
            sampled=riders,
            lookup_rows=rows / UNIT,
            miss_rows=missed / UNIT,
            miss_rows_max=most_missed / UNIT,
            mirrored_tokens=riders,
        )
        return work, max(1, self.lookups.until - cohort.steps)

    def levels(self) -> tuple[int, int, int, int, int]:
        """Free blocks on GPU and host; running requests' pages on the GPU, only off it, and hot blocks."""
        memory = self._memory
        if self._gpu_only:
            return memory.gpu.free, 0, 0, 0, 0
        resident = host_only = hot = host_free = 0
        if isinstance(memory, HiSparseMemory):
            host_free = memory.host_pool.free
            host_only, hot = memory.copies.host_only, memory.hot_in_use
            resident = memory.pages - host_only
        elif isinstance(memory, HISPARSE):
            host_free = memory.host_pool.free
            for request in self._scheduler.running:
                resident += request.memory.resident
                host_only += request.memory.host_only
                hot += request.memory.hot_blocks
        elif isinstance(memory, OffloadMemory):
            host_free = memory.store.free
        return memory.gpu.free, host_free, resident, host_only, hot
