"""One engine replica on a clock: scheduler, memory and cost joined by simpy processes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import simpy

from hisparse_sim.cost.work import StepCost
from hisparse_sim.memory.base import EngineDied
from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.residency_v030 import HiSparseMemoryV030
from hisparse_sim.scheduler.decision import Step
from hisparse_sim.scheduler.request import Request
from hisparse_sim.scheduler.step import NOBODY
from hisparse_sim.simulation.batch import Batch, Life
from hisparse_sim.simulation.blocks import blocks_of, described_tokens
from hisparse_sim.simulation.jump import jump
from hisparse_sim.simulation.links import D2H, H2D, HostLink, StepLink
from hisparse_sim.simulation.lockstep import Lockstep
from hisparse_sim.simulation.moment import Clock, at
from hisparse_sim.simulation.record import RequestRecord, record_of
from hisparse_sim.simulation.recorder import Recorder
from hisparse_sim.simulation.replica import Replica
from hisparse_sim.simulation.survival import Ending, live_lock
from hisparse_sim.simulation.traffic import SMALL_BYTES, Traffic
from hisparse_sim.simulation.works import HISPARSE, Works
from hisparse_sim.workload.request import RequestSpec, Session

HAD_DIED = "the engine had died"
"""Reason of a request that came later."""


class Engine:
    """Runs scheduled batches one after the other on GPUs whose seconds ``replica.cost`` tells.

    With asynchronous scheduling the next batch is decided while one runs, before its tokens are
    known; the scheduler's ``update`` then always lags one batch behind.
    """

    def __init__(
        self,
        env: Clock,
        replica: Replica,
        link: HostLink | StepLink,
        recorder: Recorder,
        *,
        content: ContentIndex | None = None,
        lockstep: Lockstep | None = None,
        network: HostLink | None = None,
    ) -> None:
        self.env = env
        self.replica = replica
        self.scheduler = replica.scheduler
        self.memory = replica.memory
        self.recorder = recorder
        self.content = content or ContentIndex(self.memory.block_size)
        self._lockstep = lockstep
        if lockstep is not None:
            lockstep.enter(self)
        self.finished = 0
        self.depth = 2 if self.scheduler.config.async_scheduling else 1
        self._wake = env.event()
        self.last: Batch | None = None
        """The batch that the GPU was given last."""
        self.clock = env.now
        """Now, or later: the engine may be ahead of ``env.now``, and waits for that before it decides."""
        self._refused_at: tuple[int, ...] | None = None
        """Standing at which the waiting queue was refused in the last schedule; none: it was not."""
        self.works = Works(replica)
        self.traffic = Traffic(env, replica, link, network, self.rouse)
        self._jumps = not replica.single_step and lockstep is None
        self._acceptance = replica.acceptance
        self._chance = random.Random(replica.seed).random
        self.died = ""
        """What the engine said when it died, if it did."""
        self.live_lock: Ending | None = None
        """Where requests were given up, if any were."""
        self._old = isinstance(self.memory, HiSparseMemoryV030)
        self.lack = ""
        """What waiting requests wait for."""
        env.process(self._run())

    # -- arrivals -------------------------------------------------------------------------------

    def send(self, session: Session, spec: RequestSpec, over: Callable[[], None]) -> None:
        """A request arrives; ``over`` is called later, when it has finished or failed."""
        record = record_of(session, spec, self.env.now, self.recorder.replica)
        self.recorder.requests.append(record)
        self.take(record, spec, over)

    def takes(self, spec: RequestSpec) -> bool:
        """Whether a request is short enough."""
        return spec.prompt_tokens + (spec.output_tokens or 1) <= self.scheduler.config.max_model_len

    def take(
        self,
        record: RequestRecord,
        spec: RequestSpec,
        over: Callable[[], None],
        read: Callable[[], None] | None = None,
    ) -> Request | None:
        """A request is here; None if it fails. ``read``: another engine has prefilled it, and is told when
        its KV has been read from there."""
        outputs = spec.output_tokens or 1  # a prefill-only request still samples once
        total = spec.prompt_tokens + outputs
        if not self.takes(spec) or self.died:
            reason = f"{total:,} tokens exceed max_model_len {self.scheduler.config.max_model_len:,}"
            self._fail(Life(record, over), HAD_DIED if self.died else reason)
            if read is not None:
                read()
            return None
        made = partial(blocks_of, self.content, spec.content, total)
        request = Request(
            spec.id,
            spec.prompt_tokens,
            outputs,
            # What nobody describes is nobody else's: rarely does anything ask for it.
            made() if spec.content else made,
            arrival=self.env.now,
            priority=spec.priority,
            private_from=described_tokens(spec.content) // self.content.block_size if spec.content else 0,
            user=Life(record, over, read, self.works.warmth()),
        )
        if read is not None:
            assert self.traffic.arrivals is not None
            self.traffic.arrivals.expected.add(request)
        self.scheduler.add(request)
        self.rouse()
        return request

    def _fail(self, life: Life, reason: str) -> None:
        life.record.status = "failed"
        life.record.reason = reason
        self.finished += 1
        # Not at once: each turn of a long conversation would fail inside the one before.
        _then(self.env.timeout(0), lambda _: life.over())

    def rouse(self) -> None:
        """Something has changed: look whether there is work."""
        if not self._wake.triggered:
            self._wake.succeed()

    # -- the loop -------------------------------------------------------------------------------

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, scheduler, memory = self.env, self.scheduler, self.memory
        queue: deque[Batch] = deque()
        while True:
            if self._jumps:
                jump(self, queue)
            if len(queue) < self.depth and self.clock > env.now and not env.skip_to(self.clock):
                yield at(env, self.clock)
            if len(queue) < self.depth and scheduler.has_work:
                try:
                    batch = self._schedule()
                except EngineDied as death:
                    self.died = str(death)
                    self._count(self.lack)
                    return
                queue.append(batch)
                if batch.runs:
                    self.launch(batch)
                    if len(queue) < self.depth:
                        continue
            if queue:
                batch = queue.popleft()
                if batch.moves and self._lockstep is None:  # all batches before it have ended just now
                    batch.done = self.begin(batch)
                if batch.done is not None:
                    yield batch.done
                    self.clock = env.now
                elif batch.runs and batch.end_s > self.clock:
                    if not env.skip_to(batch.end_s):
                        yield at(env, batch.end_s)
                    self.clock = batch.end_s
                if batch.moves and queue and queue[0].runs and not queue[0].moves:
                    self._starts(queue[0], batch.end_s)  # it waited for an end that was not known
                counting = memory.counting
                self.came_back(batch)
                # A step that ran nothing may yet have reported copies, and so made room.
                if counting or batch.runs or any(b.runs for b in queue) or scheduler.flush:
                    continue
            self._count(self.lack)
            self._wake = env.event()
            yield self._wake
            self.clock = env.now

    def waiting(self) -> int:
        """Requests that wait or load."""
        return len(self.scheduler.waiting) + len(self.scheduler.loading)

    def _count(self, lack: str) -> None:
        """Note how many requests run and wait, and what the waiting ones lack."""
        scheduler = self.scheduler
        waiting, loading = len(scheduler.waiting), len(scheduler.loading)
        self.lack = (lack if waiting else "") or ("loads" if loading else "")
        self.recorder.queue_is(self.clock, len(scheduler.running), waiting + loading, self.lack)

    def _standing(self) -> tuple[int, ...]:
        """What an admission depends on."""
        memory = self.memory
        host = memory.host_pool.free if isinstance(memory, HISPARSE) else 0
        return memory.gpu.free, host, len(self.scheduler.running), self.waiting(), memory.findable

    def still_refused(self) -> bool:
        """Whether the waiting queue, refused at the last schedule, would be refused again."""
        if self._refused_at is None:
            return False
        then, now = self._refused_at, self._standing()
        return now == then or (
            self.memory.fewer_blocks_refuse_too and now[0] < then[0] and now[1:] == then[1:]
        )

    def launch(self, batch: Batch) -> None:
        """Give a batch to the GPU, behind the one before. One that shares the link begins (``begin``) only
        when that has ended."""
        if self._lockstep is not None:
            self._lockstep.submit(self, batch)
            return
        cost, link = batch.cost, self.traffic.link
        # A decode's gathers are alone on the link, and their time is part of its cost already.
        moves = cost.h2d_bytes > SMALL_BYTES and (link.busy or bool(batch.work.prefills))
        if moves or cost.d2h_bytes > SMALL_BYTES:
            self.last = batch
            batch.moves = True
        else:
            self.follow(batch)

    def follow(self, batch: Batch) -> None:
        """Give a batch to the GPU whose bytes are too few to matter on the link."""
        before, self.last = self.last, batch
        cost = batch.cost
        if cost.h2d_bytes or cost.d2h_bytes:
            self.traffic.link.bytes[H2D] += cost.h2d_bytes
            self.traffic.link.bytes[D2H] += cost.d2h_bytes
        if before is None:
            self._starts(batch, self.clock)
        elif before.end_s >= 0:
            self._starts(batch, before.end_s if before.end_s > self.clock else self.clock)

    def _starts(self, batch: Batch, when_s: float) -> None:
        """The batch runs from then on; nothing but its own work decides how long."""
        batch.start_s = when_s
        batch.end_s = when_s + batch.cost.total_s

    def begin(self, batch: Batch) -> simpy.Event | None:
        """The batch runs from now on, until its own work and its own copies are done: when the event fires,
        or, without one, at its ``end_s``."""
        batch.start_s = now = self.env.now
        cost = batch.cost
        own_s = now + cost.total_s
        moved = self.traffic.put(cost.h2d_bytes, cost.d2h_bytes)
        if not isinstance(moved, simpy.Event):
            batch.end_s = max(own_s, moved)
            return None
        ended = self.env.event()
        _then(at(self.env, own_s), partial(self._end, batch, moved, ended))
        return ended

    def _end(self, batch: Batch, moved: simpy.Event, ended: simpy.Event, _: simpy.Event) -> None:
        """The batch's own work is done, or the last of its bytes has ``moved``."""
        if not moved.processed:
            _then(moved, partial(self._end, batch, moved, ended))
            return
        batch.end_s = self.env.now
        ended.succeed()

    def begin_beside(self, batch: Batch, group_tokens: int) -> simpy.Event:
        """Run a batch beside those of the other DP replicas; the event fires when this one is through."""
        batch.cost = self.replica.cost.beside(batch.work, batch.cost, group_tokens)
        return self.begin(batch) or at(self.env, batch.end_s)

    # -- one step -------------------------------------------------------------------------------

    def _schedule(self) -> Batch:
        """Decide the next step, start the copies that it asks for, and price it."""
        now, recorder, replica = self.clock, self.recorder, self.replica
        self._refused_at = self._standing()
        decision = self.scheduler.schedule()
        if decision.short_of not in ("GPU blocks", "host blocks", "max_num_seqs") or not self.still_refused():
            self._refused_at = None
        self._count(decision.short_of)
        if decision.left:
            self.leave(decision.left)
        for request in decision.preempted:
            recorder.preemptions += 1
            request.user.record.preemptions += 1
            request.user.record.preempted_s += (now,)
        for request in decision.resumed:
            request.user.record.preempted_s += (now,)
        for request in decision.given_up:
            ending = live_lock(step=decision.step, time_s=now, old=self._old)
            if self.live_lock is None:
                self.live_lock = ending
            else:
                self.live_lock.requests += 1
            self._fail(request.user, str(ending))
        for request, hit in decision.hits.items():
            record = request.user.record
            if record.hit_tokens is None:
                record.hit_tokens = 0 if hit.imported else hit.tokens + hit.load_tokens
                recorder.hit_tokens += record.hit_tokens
                recorder.prompt_tokens += request.num_tokens
                recorder.loaded_tokens += hit.load_tokens
                if hit.load_tokens:
                    record.load_start_s = now
        for request in decision.admitted:
            if request.user.record.first_scheduled_s is None:  # not where it was prefilled
                request.user.record.first_scheduled_s = now
        work = self.works.of(decision)
        if decision.joined:
            self._join(decision.joined)
        # Beside other DP replicas it is priced when it begins: what they bring counts, too.
        price = replica.cost.step if self._lockstep is None else replica.cost.unnoted
        runs = bool(decision)
        cost = price(work) if runs else StepCost()
        cost = self.traffic.of_step(cost)
        loaded, stored = self.traffic.begin_jobs()
        self.traffic.read()
        if not runs:
            recorder.moved(loaded, stored)
        return Batch(decision, cost, work, loaded, stored, runs=runs)

    def leave(self, requests: list[Request]) -> None:
        """These have left the cohort."""
        for request in requests:
            self._off(request.user.record)
        self.works.leave(requests)

    def _off(self, record: RequestRecord) -> None:
        """The request rides no longer."""
        self.recorder.catch_up(record)
        record.rides_from = -1

    def _join(self, requests: list[Request]) -> None:
        """These ride in the cohort from the next step on."""
        first = self.recorder.steps + len(self.scheduler.flying)
        for request in requests:
            request.user.record.rides_from = first
        self.works.join(requests)

    def came_back(self, batch: Batch) -> None:
        """The batch's results are here."""
        now = self.clock
        decision, known, accepted = batch.decision, NOBODY, NOBODY
        if decision.drafted:
            known = {request: request.num_tokens for request in decision.drafted}
            accepted = self._accepted(decision)
        finished = self.scheduler.update(decision, accepted)
        if batch.runs:
            records: list[RequestRecord] = []
            for request, (_, samples) in decision.epochs.items():
                if samples and request.user.record.finish_s is None:
                    records.append(request.user.record)
            self._record(batch, records)
            for request, before in known.items():
                self.recorder.came_along(request.user.record, request.num_tokens - before - 1)
        for request in finished:
            life: Life = request.user
            self._off(life.record)
            life.record.finish_s = now
            life.record.status = "completed"
            self.finished += 1
            life.over()

    def _accepted(self, decision: Step) -> dict[Request, int]:
        """How many drafts the model agrees to, drawn for each request; one counts after those before it."""
        found = {}
        for request, drafted in decision.drafted.items():
            chance = self._chance()
            accepted = sum(rate > chance for rate in self._acceptance[:drafted])
            found[request] = accepted
            if drafted:
                self.recorder.drafted(drafted, accepted)
        return found

    def _record(self, batch: Batch, records: list[RequestRecord]) -> None:
        """``records``: of those with a token more that do not ride."""
        decision, cost, work = batch.decision, batch.cost, batch.work
        gpu_free, host_free, resident, host_only, hot_blocks = self.works.levels()
        self.recorder.step(
            (
                decision.running,
                decision.waiting,
                work.decode_requests,
                sum([n for n, _ in work.prefills]) if work.prefills else 0,
                host_free,
                len(decision.preempted),
                resident,
                host_only,
                cost.h2d_bytes + batch.loaded_bytes,
                cost.d2h_bytes + batch.stored_bytes,
                hot_blocks,
            ),
            batch.start_s,
            self.clock,
            gpu_free,
            cost,
            decision.riders,
            records,
            waits=batch.moves,
        )


def _then(event: simpy.Event, what: Callable[[simpy.Event], None]) -> None:
    """Call ``what`` once the event has fired, which it has not yet."""
    assert event.callbacks is not None
    event.callbacks.append(what)
