"""A tier of host chunks beside the GPU pool: vLLM's native offloading (OffloadingConnector).

Whole blocks of prompts are copied to the host as they are computed; a waiting request whose prefix
is there loads it before it runs. A running request still needs all its KV on the GPU. Source: vLLM
0.33, as observed by running it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from hisparse_sim.memory.base import NOTHING, Hit, Sequence, content_bound
from hisparse_sim.memory.chunks import Access, ChunkStore, LruChunkStore
from hisparse_sim.memory.pool import Ids
from hisparse_sim.memory.resident import BlockState, ResidentMemory, ResidentSizes


class Job(Struct, eq=False):
    """A copy between GPU and host, ``blocks`` blocks. ``due``: the step it is reported with.

    Whoever runs the clock sets ``on_link`` while the bytes are under way: it is not reported before.
    """

    request: Sequence
    content: Ids
    load: bool
    due: int | None
    gpu: Ids
    done: bool = False
    on_link: bool = False

    @property
    def blocks(self) -> int:
        """Blocks copied."""
        return len(self.content)


class OffloadSizes(Struct, frozen=True):
    """Sizes of the GPU pool and of the chunks on the host.

    ``load_delay_steps`` none: whoever runs the clock calls ``OffloadMemory.finish`` for each load.
    """

    gpu: ResidentSizes
    chunks: int
    store_delay_steps: int = 2
    load_delay_steps: int | None = 1
    lru: bool = False
    """Evict as 0.30 did."""


class OffloadMemory(ResidentMemory):
    """``ResidentMemory`` with an offload tier behind it."""

    def __init__(self, sizes: OffloadSizes) -> None:
        super().__init__(sizes.gpu)
        self.offload = sizes
        self.store = LruChunkStore(sizes.chunks) if sizes.lru else ChunkStore(sizes.chunks)
        self.jobs: list[Job] = []
        self.started: list[Job] = []
        """Jobs begun in the current step."""
        self.completed: list[Job] = []
        """Jobs reported in the current step."""
        self.flushed = 0
        self._access: dict[Sequence, Access] = {}
        self._ended: list[Sequence] = []
        self._fenced: dict[int, Job] = {}
        self._early: list[Job] = []
        self._step = 0
        self.blocks.on_taken = self._taken

    @property
    def busy(self) -> bool:
        """Whether copies are under way."""
        return bool(self.jobs)

    @property
    def findable(self) -> int:
        """Grows whenever a lookup may find more than before."""
        return self.blocks.published + self.store.readied

    @property
    def counting(self) -> bool:
        """Whether some of them end with a step."""
        return any(job.due is not None and not job.on_link for job in self.jobs)

    def _access_of(self, request: Sequence) -> Access:
        access = self._access.get(request)
        if access is None:
            access = self._access[request] = Access(len(request.content))
        return access

    def private_from(self, request: Sequence) -> int:
        """Its prompt is of use to the host."""
        return max(request.private_from, request.prompt_tokens // self.block_size)

    # -- lookup and load ------------------------------------------------------------------------

    def expect(self, request: Sequence) -> None:
        """A request arrives: its content will be asked for."""
        super().expect(request)
        self.store.know(content_bound(request))

    def lookup(self, request: Sequence) -> Hit | None:
        """The GPU prefix and what the host can add to it; None while either is in motion."""
        hit = super().lookup(request)
        assert hit is not None
        self._access_of(request).next_stored = 0
        if any(job.request is request for job in self.jobs):
            return None
        first = hit.tokens // self.block_size
        content = request.content[first : request.num_tokens // self.block_size]
        n, usable = self.store.run(content)
        if not usable:
            return None
        return Hit(hit.tokens, hit.gpu, load_tokens=n * self.block_size)

    def load(self, request: Sequence, hit: Hit, prefilling: list[Sequence], *, others_running: bool) -> bool:
        """Reserve blocks for the prefix and start loading it."""
        spare = sum(max(self.pages_for(r.num_tokens) - r.memory.pages, 0) for r in prefilling)
        end = hit.tokens + hit.load_tokens
        if not (
            self.fits(hit, request.num_tokens, others_running=others_running)
            and self.fits(hit, end, others_running=others_running, spare_blocks=spare)
        ):
            return False
        state = self.start(request, hit)
        self.allocate(request, state, end // self.block_size)
        request.memory = state
        first = hit.tokens // self.block_size
        content = request.content[first : end // self.block_size]
        access = self._access_of(request)
        self.store.use(access, content, first, self.block_size)
        self.store.pin(content)
        access.next_stored = end // self.block_size
        delay = self.offload.load_delay_steps
        job = Job(request, content, True, None if delay is None else self._step + delay, NOTHING)
        self.jobs.append(job)
        self.started.append(job)
        return True

    def loaded(self, request: Sequence) -> bool:
        """Whether the request's load has arrived; its blocks are findable from then on."""
        if any(job.request is request and job.load for job in self.jobs):
            return False
        self.publish(request, request.memory, request.computed)
        return True

    def readmit(self, request: Sequence, tokens: int, *, others_running: bool) -> bool:
        """Admit a request whose load has arrived."""
        state: BlockState = request.memory
        watermark = self.sizes.admission_watermark_blocks if others_running else 0
        whole = max(self.pages_for(request.num_tokens) - state.pages, 0)
        if whole + watermark > self.gpu.free:
            return False
        return self.extend(request, tokens)

    # -- store ----------------------------------------------------------------------------------

    def settle(self, scheduled: Mapping[Sequence, int], step: int) -> None:
        """Offer the prompt blocks that are complete after this step to the host."""
        self._step = step
        for request, tokens in scheduled.items():
            self._offer(request, request.computed + tokens, request.memory.blocks)
            stored = self._access[request].next_stored >= request.prompt_tokens // self.block_size
            request.quiet_until = self._quiet_until(request, tokens) if stored else 0
        for request in self._ended:
            self._offer(request, request.num_tokens, None)
            access = self._access.pop(request, None)
            if access is not None:
                self.store.finish(access, request.content)
        self._ended = []

    def _offer(self, request: Sequence, tokens: int, gpu: Ids | None) -> None:
        access = self._access_of(request)
        end = min(tokens, request.num_tokens, request.prompt_tokens) // self.block_size
        first = access.next_stored
        if end <= first:
            return
        content = request.content[first:end]
        new = self.store.store(access, content, first, self.block_size)
        if new is None:
            return
        access.next_stored = end
        self.store.stored(access, request.content)
        if len(new):
            blocks = NOTHING if gpu is None else gpu[first:end][np.isin(content, new)].copy()
            job = Job(request, new, False, self._step + self.offload.store_delay_steps, blocks)
            self.jobs.append(job)
            self.started.append(job)

    def may_preempt(self, victim: Sequence) -> bool:
        """Only when the last batch that holds the victim has come back."""
        return not victim.in_flight

    # -- completion -----------------------------------------------------------------------------

    def complete(self, step: int) -> int:
        """Report the copies that are due with ``step``; returns how many."""
        done = [
            j
            for j in self.jobs
            if j in self._early or (j.due is not None and j.due <= step and not j.on_link)
        ]
        self._early = []
        for job in done:
            self.finish(job)
        self._step = step + 1
        return len(done)

    def finish(self, job: Job) -> None:
        """A copy is complete."""
        if job.done:
            return
        job.done = True
        self.jobs.remove(job)
        self.completed.append(job)
        if job.load:
            self.store.unpin(job.content)
        else:
            self.store.ready(job.content)
            for block in job.gpu.tolist():
                self._fenced.pop(block, None)

    def release(self, request: Sequence, *, finished: bool) -> None:
        """A request ends (its last blocks are offered next) or is preempted (its stores are flushed)."""
        for job in self.jobs:
            if job.request is request and not job.load:
                if finished:
                    self._fenced.update(dict.fromkeys(job.gpu.tolist(), job))
                elif job not in self._early:
                    self._early.append(job)
                    self.flushed += 1
        super().release(request, finished=finished)
        if finished:
            self._ended.append(request)

    def _taken(self, ids: Ids) -> None:
        if self._fenced:
            for block in ids.tolist():
                job = self._fenced.pop(block, None)
                if job is not None and job not in self._early:
                    self._early.append(job)
                    self.flushed += 1
