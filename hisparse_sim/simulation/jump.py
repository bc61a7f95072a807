"""Steps in which nothing is decided, taken all at once.

Between two decisions every running request decodes one token a step, and of memory only the number of
free blocks changes. Such steps differ only in their price. The result is the same, to the last bit, as
that of single steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import reduce
from itertools import accumulate, repeat
from operator import add
from typing import TYPE_CHECKING

from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.memory.base import NEVER
from hisparse_sim.simulation.batch import Batch
from hisparse_sim.simulation.links import D2H, H2D
from hisparse_sim.simulation.rows import Counts

if TYPE_CHECKING:
    from hisparse_sim.simulation.engine import Engine

_MANY = 1 << 13
"""Steps priced at once."""
_STEPS_A_MOMENT = 1 << 8
"""So many steps of a jump take as long as an event."""
UNPRICED = StepCost()
"""Of a batch whose price is the first of those of the steps after it."""


def jump(engine: Engine, queue: deque[Batch]) -> None:
    """Take all steps up to the next decision or event, if the next step is of that kind.

    ``queue``: batches in flight, one under asynchronous scheduling: it comes back first, and the last
    step of the jump takes its place.
    """
    scheduler, until_s = engine.scheduler, engine.env.peek()
    while _quiet(engine, queue):
        if steps := scheduler.cohort.quiet_steps:
            if not _take(engine, queue, steps, until_s) or engine.clock >= until_s or engine.env.left <= 0:
                break
            if scheduler.waiting or scheduler.cohort.quiet_steps:
                continue
        if not _part(engine, queue):
            break
        until_s = engine.env.peek()
    if queue:
        _price(engine, queue[0])


def _quiet(engine: Engine, queue: deque[Batch]) -> bool:
    """Whether the next step is of the cohort alone."""
    if len(queue) != engine.depth - 1 or engine.traffic.link.busy:
        return False
    scheduler = engine.scheduler
    if scheduler.active or (queue and queue[0].moves) or not scheduler.quiet:
        return False
    return not scheduler.waiting or engine.still_refused()


def _part(engine: Engine, queue: deque[Batch]) -> bool:
    """The batch in flight comes back with the last tokens of some, and a step of the others takes its place;
    False if it is not as simple as that."""
    if not queue:
        return False
    scheduler, ending = engine.scheduler, queue[0]
    _price(engine, ending)
    if not engine.env.is_free(ending.end_s):
        return False
    leaving = scheduler.part()
    if not leaving:
        return False
    engine.works.leave(leaving)
    work, _ = engine.works.decodes()
    _note_queue(engine, len(scheduler.running))
    batch = queue[0] = Batch(scheduler.decide_quiet(), UNPRICED, work)
    if engine.works.lookups is not None:
        batch.cost = engine.traffic.of_step(engine.replica.cost.step(work))
    engine.follow(batch)
    engine.env.skip_to(ending.end_s)
    engine.clock = ending.end_s
    engine.came_back(ending)
    return True


def _price(engine: Engine, batch: Batch) -> None:
    """Of a batch that still has none."""
    if batch.cost is UNPRICED:
        batch.cost = engine.replica.cost.step(batch.work)
        batch.end_s = batch.start_s + batch.cost.total_s


def _take(engine: Engine, queue: deque[Batch], steps: int, until_s: float) -> bool:
    """At most ``steps`` steps that differ in their contexts alone; False if blocks do not suffice for one."""
    recorder, scheduler, prices = engine.recorder, engine.scheduler, engine.replica.cost
    flying = queue[0] if queue else None
    if flying is not None and flying.cost is UNPRICED:
        ahead, work, lasting = 1, flying.work, NEVER
    else:
        ahead, (work, lasting) = 0, engine.works.decodes()
    cost, others_s = prices.decoding(work)
    start_s = engine.clock if flying is None else flying.end_s
    within = (until_s - start_s) / (cost.attention_s + others_s) + 2
    steps = min(steps, lasting, _MANY)
    if within < steps:
        steps = max(1, int(within))
    if cost.mirror_s:  # what other work leaves of it differs from step to step
        steps = 1
    free = engine.memory.free_after(steps)
    if not free:
        return False
    attentions = prices.decodes_s(work, ahead + len(free))
    ends = list(accumulate(map(add, attentions, repeat(others_s)), initial=start_s))
    if flying is not None and ahead:
        flying.cost = cost.with_attention(attentions.pop(0))
        start_s = flying.end_s = ends[1]
        del ends[0]
    # When the batches come back: of flying ones the first is one before.
    backs = ends[1:] if flying is None else ends[:-1]
    steps = 1 + bisect_left(backs, until_s, 0, len(backs) - 1)
    prices.note_decodes(work, ahead + steps)
    running = work.decode_requests
    waiting = _note_queue(engine, running)
    if cost.h2d_bytes or cost.d2h_bytes:
        _moved(engine, cost, steps)
    counts = _counts(engine, running, waiting, cost)
    if flying is None:
        recorder.decodes(counts, start_s, backs[:steps], free[:steps], cost, attentions[:steps])
        scheduler.skip(steps)
        if engine.last is not None:
            engine.last.end_s = ends[steps]
    else:
        flying = _come_back(engine, queue, work, steps, free[0])
        recorder.decodes(counts, start_s, backs[1:steps], free[1:steps], cost, attentions[: steps - 1])
        # The last step is in flight now.
        flying.cost = cost.with_attention(attentions[steps - 1])
        flying.work = work
        flying.start_s, flying.end_s = ends[steps - 1], ends[steps]
        flying.loaded_bytes = flying.stored_bytes = 0.0
        flying.decision.running, flying.decision.waiting = running, waiting
    engine.clock = backs[steps - 1]
    engine.env.left -= steps // _STEPS_A_MOMENT
    return True


def _come_back(engine: Engine, queue: deque[Batch], work: StepWork, steps: int, free_blocks: int) -> Batch:
    """The batch in flight comes back, and ``steps`` are decided; returns the batch that takes its place,
    whose price is still to come."""
    scheduler, flying = engine.scheduler, queue[0]
    decision, cost = flying.decision, flying.cost
    engine.clock = flying.end_s
    if decision.scheduled:  # it brings tokens of requests one by one, which ride since
        queue[0] = engine.last = Batch(scheduler.decide_quiet(), cost, work)
        engine.came_back(flying)
        if steps > 1:
            scheduler.skip(steps - 1)
        return queue[0]
    # It was decided with the queues of then.
    moved = flying.loaded_bytes, flying.stored_bytes
    counts = _counts(engine, decision.running, decision.waiting, cost, *moved)
    engine.recorder.step(counts, flying.start_s, flying.end_s, free_blocks, cost, decision.riders)
    scheduler.skip(steps)
    return flying


def _note_queue(engine: Engine, running: int) -> int:
    """Write down how many run and wait, nobody loading; returns how many wait."""
    waiting = len(engine.scheduler.waiting)
    if not waiting:
        engine.lack = ""
    engine.recorder.queue_is(engine.clock, running, waiting, engine.lack)
    return waiting


def _counts(
    engine: Engine, running: int, waiting: int, cost: StepCost, h2d_bytes: float = 0.0, d2h_bytes: float = 0.0
) -> Counts:
    """Of a step in which only the cohort decodes, which moves these bytes beside those of its cost."""
    _, host_free, resident, host_only, hot_blocks = engine.works.levels()
    return (
        running, waiting, engine.scheduler.cohort.size, 0, host_free, 0, resident, host_only,
        cost.h2d_bytes + h2d_bytes, cost.d2h_bytes + d2h_bytes, hot_blocks,
    )  # fmt: skip


def _moved(engine: Engine, cost: StepCost, steps: int) -> None:
    """Bytes of so many steps, on one GPU's link."""
    replica, link, host = engine.replica, engine.traffic.link.bytes, engine.traffic.host_bytes
    link[H2D], link[D2H] = plus(link[H2D], cost.h2d_bytes, steps), plus(link[D2H], cost.d2h_bytes, steps)
    host[H2D] = plus(host[H2D], cost.h2d_bytes * replica.ranks, steps)
    host[D2H] = plus(host[D2H], cost.d2h_bytes * replica.mirroring_ranks, steps)


def plus(total: float, value: float, times: int) -> float:
    """``total`` and the value so many times, one after the other: to the last bit as single steps add it."""
    return reduce(add, repeat(value, times), total)
