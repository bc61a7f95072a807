"""One engine replica on a clock: scheduler, memory and cost joined by simpy processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.offload import Job, OffloadMemory
from hisparse_sim.memory.residency import HiSparseMemory
from hisparse_sim.memory.resident import ResidentMemory
from hisparse_sim.scheduler.request import Request
from hisparse_sim.scheduler.step import Decision, Scheduler
from hisparse_sim.simulation.links import D2H, H2D, HostLink
from hisparse_sim.simulation.recorder import Recorder, RequestRecord, StepRow
from hisparse_sim.workload.request import BlockHashes, RequestSpec, Session


@dataclass(slots=True)
class _Batch:
    decision: Decision
    cost: StepCost
    work: StepWork
    start_s: float = 0.0
    done: simpy.Event | None = None


@dataclass(slots=True)
class _Life:
    """What the engine keeps of a request beside the scheduler's own record."""

    record: RequestRecord
    over: Callable[[], None]


class Engine:
    """Runs scheduled batches one after the other on a GPU whose seconds ``cost`` tells.

    With asynchronous scheduling the next batch is decided while one runs, before its tokens are
    known; the scheduler's ``update`` then always lags one batch behind.
    """

    def __init__(
        self,
        env: simpy.Environment,
        *,
        scheduler: Scheduler,
        memory: ResidentMemory | HiSparseMemory,
        cost: StepCostModel,
        link: HostLink,
        recorder: Recorder,
        topk: int,
        block_bytes: int,
        index_block_bytes: int,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.memory = memory
        self.cost = cost
        self.link = link
        self.recorder = recorder
        self.content = ContentIndex(memory.block_size)
        self._topk = topk
        self._block_bytes = block_bytes
        self._index_block_bytes = index_block_bytes
        self._depth = 2 if scheduler.config.async_scheduling else 1
        self._wake = env.event()
        self._last_end: simpy.Event | None = None
        self._restored = self._stored = 0
        self.finished = 0
        env.process(self._run())

    # -- arrivals -------------------------------------------------------------------------------

    def send(self, session: Session, spec: RequestSpec, over: Callable[[], None]) -> None:
        """A request arrives; ``over`` is called when it has finished or failed."""
        record = RequestRecord(spec.id, session.id, self.env.now, spec.prompt_tokens, spec.output_tokens)
        self.recorder.requests.append(record)
        limit = self.scheduler.config.max_model_len
        total = spec.prompt_tokens + spec.output_tokens
        if total > limit:
            record.status = "failed"
            record.reason = f"{total:,} tokens exceed max_model_len {limit:,}"
            self.finished += 1
            over()
            return
        content = spec.content
        if isinstance(content, BlockHashes):
            ids = self.content.of_hashes(content.scope, content.ids, content.block_tokens, total)
        else:
            ids = self.content.of_segments(content, total)
        request = Request(
            spec.id,
            spec.prompt_tokens,
            max(spec.output_tokens, 1),  # a prefill-only request still samples once
            ids,
            arrival=self.env.now,
            priority=spec.priority,
            user=_Life(record, over),
        )
        self.scheduler.add(request)
        self._rouse()

    def _rouse(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()

    # -- the loop -------------------------------------------------------------------------------

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, scheduler = self.env, self.scheduler
        queue: deque[_Batch] = deque()
        while True:
            if scheduler.has_work:
                decision = scheduler.schedule()
                self._begin_jobs(decision)
                batch = self._batch(decision)
                queue.append(batch)
                if decision:
                    previous, self._last_end = self._last_end, env.event()
                    batch.done = self._last_end
                    env.process(self._execute(batch, previous, self._last_end))
                if len(queue) < self._depth and decision:
                    continue
            if queue:
                batch = queue.popleft()
                if batch.done is not None:
                    yield batch.done
                self._update(batch)
                if (
                    batch.decision
                    or any(b.decision for b in queue)
                    or self.memory.counting
                    or scheduler.flush
                ):
                    continue
            self.recorder.queue_is(env.now, len(scheduler.running), self._waiting())
            self._wake = env.event()
            yield self._wake

    def _waiting(self) -> int:
        return len(self.scheduler.waiting) + len(self.scheduler.loading)

    def _execute(
        self, batch: _Batch, previous: simpy.Event | None, done: simpy.Event
    ) -> Generator[simpy.Event, Any, None]:
        """The GPU's part: wait for the batch before, compute, and wait for rows still on the link."""
        if previous is not None and not previous.processed:
            yield previous
        batch.start_s = self.env.now
        cost = batch.cost
        moved = self.link.transfer(cost.h2d_bytes, H2D) if cost.h2d_bytes > _SMALL_BYTES else None
        if moved is None:
            self.link.bytes[H2D] += cost.h2d_bytes
        if cost.d2h_bytes > _SMALL_BYTES:
            self.link.transfer(cost.d2h_bytes, D2H)
        else:
            self.link.bytes[D2H] += cost.d2h_bytes
        yield self.env.timeout(cost.total_s)
        if moved is not None and not moved.processed:
            yield moved
        done.succeed()

    # -- one step -------------------------------------------------------------------------------

    def _batch(self, decision: Decision) -> _Batch:
        now = self.env.now
        recorder = self.recorder
        recorder.queue_is(now, decision.running, decision.waiting)
        for request in decision.preempted:
            recorder.preemptions += 1
            request.user.record.preemptions += 1
        for request, hit in decision.hits.items():
            record = request.user.record
            if record.hit_tokens is None:
                record.hit_tokens = hit.tokens + hit.load_tokens
                recorder.hit_tokens += record.hit_tokens
                recorder.prompt_tokens += request.num_tokens
                recorder.loaded_tokens += hit.load_tokens
        for request in decision.admitted:
            request.user.record.first_scheduled_s = now
        work = self._work(decision)
        cost = self.cost.step(work) if decision else StepCost()
        if isinstance(self.memory, HiSparseMemory) and self.memory.index_offload is not None:
            cost = self._index_traffic(cost)
        return _Batch(decision, cost, work)

    def _work(self, decision: Decision) -> StepWork:
        """What the step has to do, in counts."""
        hisparse = isinstance(self.memory, HiSparseMemory)
        size = self.memory.block_size
        decodes = context = sampled = staged = tokens = 0
        lookups = largest = 0.0
        prefills: list[tuple[int, int]] = []
        for request, n in decision.scheduled.items():
            past = decision.past[request]
            samples = decision.epochs[request][1]
            tokens += n
            sampled += samples
            if n == 1 and samples and past:
                decodes += 1
                context += past + 1
                if hisparse:
                    state = request.memory
                    if state.host_only:
                        rows = min(self._topk, past + 1) * state.host_only / state.pages
                        lookups += rows
                        largest = max(largest, rows)
            else:
                prefills.append((n, past))
                if hisparse:
                    staged += request.memory.host_only * size
        return StepWork(
            decode_requests=decodes,
            decode_context_tokens=context,
            prefills=tuple(prefills),
            sampled=sampled,
            lookup_rows=lookups,
            lookup_rows_max=largest,
            staged_tokens=staged,
            mirrored_tokens=tokens if hisparse else 0,
        )

    def _index_traffic(self, cost: StepCost) -> StepCost:
        """Add the indexer blocks that the step copies to and from their offload."""
        assert isinstance(self.memory, HiSparseMemory)
        offload = self.memory.index_offload
        assert offload is not None
        restored = (offload.restored_blocks - self._restored) * self._index_block_bytes
        stored = (offload.stored_blocks - self._stored) * self._index_block_bytes
        self._restored, self._stored = offload.restored_blocks, offload.stored_blocks
        if not restored and not stored:
            return cost
        return cost._replace(
            staging_s=cost.staging_s + restored / self.cost.node.host_link.copy_h2d_bytes_per_s,
            h2d_bytes=cost.h2d_bytes + restored,
            d2h_bytes=cost.d2h_bytes + stored,
        )

    def _begin_jobs(self, decision: Decision) -> None:
        """Put the offload tier's copies on the link; a load ends when its bytes are there."""
        memory = self.memory
        if not isinstance(memory, OffloadMemory) or not memory.started:
            return
        jobs, memory.started = memory.started, []
        memory.completed = []
        for job in jobs:
            size = job.blocks * self._block_bytes
            if job.load:
                self.env.process(self._load(memory, job, size))
            else:
                self.link.transfer(size, D2H)

    def _load(self, memory: OffloadMemory, job: Job, size: int) -> Generator[simpy.Event, Any, None]:
        yield self.link.transfer(size, H2D)
        memory.finish(job)
        self._rouse()

    def _update(self, batch: _Batch) -> None:
        """The batch's results are here."""
        now = self.env.now
        decision = batch.decision
        finished = self.scheduler.update(decision)
        if decision:
            self._record(batch)
        gaps: dict[float, int] = {}
        for request, (_, samples) in decision.epochs.items():
            if not samples:
                continue
            record: RequestRecord = request.user.record
            if record.finish_s is not None:
                continue
            record.sampled += 1
            if record.last_token_s is None:
                record.first_token_s = now
            else:
                gap = now - record.last_token_s
                gaps[gap] = gaps.get(gap, 0) + 1
                if gap > record.itl_max_s:
                    record.itl_max_s = gap
            record.last_token_s = now
        for gap, count in gaps.items():
            self.recorder.gap(gap, count)
        for request in finished:
            life: _Life = request.user
            life.record.finish_s = now
            life.record.status = "completed"
            self.finished += 1
            life.over()

    def _record(self, batch: _Batch) -> None:
        decision, cost, work = batch.decision, batch.cost, batch.work
        memory = self.memory
        resident = host_only = 0
        if isinstance(memory, HiSparseMemory):
            for request in self.scheduler.running:
                resident += request.memory.resident
                host_only += request.memory.host_only
        host_free = memory.host_pool.free if isinstance(memory, HiSparseMemory) else 0
        if isinstance(memory, OffloadMemory):
            host_free = memory.store.free
        self.recorder.step(
            StepRow(
                decision.step,
                decision.step,
                batch.start_s,
                self.env.now,
                decision.running,
                decision.waiting,
                work.decode_requests,
                sum(n for n, _ in work.prefills),
                memory.gpu.free,
                host_free,
                len(decision.preempted),
                resident,
                host_only,
                cost.h2d_bytes,
                cost.d2h_bytes,
            ),
            cost,
            decision.short_of,
        )


_SMALL_BYTES = 64 << 20
"""Bytes of one step below which their transfer is not put on the link as a flow of its own: at
PCIe 5 speed they take about 1 ms, which the step's cost already contains."""
