"""Steps in which nothing is decided, taken all at once.

Between two decisions every running request decodes one token a step and no memory changes. Such steps
differ only in their price. The result is the same, to the last bit, as that of single steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hisparse_sim.cost.work import Floats, StepCost, totals_s
from hisparse_sim.simulation.links import D2H, H2D
from hisparse_sim.simulation.recorder import StepRow, added

if TYPE_CHECKING:
    from hisparse_sim.simulation.batch import Batch
    from hisparse_sim.simulation.engine import Engine

_FEW = 12
"""Steps that are priced one by one sooner than as arrays."""
_MANY = 1 << 16
"""Steps of one array."""


def jump(engine: Engine, queue: deque[Batch]) -> bool:
    """Take all steps up to the next decision or event; False if the next step is not of that kind.

    ``queue``: batches in flight, one under asynchronous scheduling, which must itself be of the kind
    that is repeated: it comes back first, and the last step of the jump takes its place.
    """
    flying = queue[0] if queue else None
    steps = _steps(engine, queue, flying)
    return steps >= 2 and _Jump(engine, flying).take(steps)


def _steps(engine: Engine, queue: deque[Batch], flying: Batch | None) -> int:
    """How many steps may be taken at once, as far as requests and memory go."""
    if len(queue) != engine.depth - 1 or engine.traffic.link.busy:
        return 0
    if engine.waiting() and not engine.still_refused():
        return 0
    if flying is not None and flying.done is not None:
        return 0
    return engine.scheduler.quiet_steps()


class _Jump:
    """Steps alike, each given to the GPU as the one before comes back."""

    def __init__(self, engine: Engine, flying: Batch | None) -> None:
        self.engine, self.flying = engine, flying
        self.riders, self.waiting = len(engine.scheduler.cohort), engine.waiting()
        self.until_s = engine.env.peek()
        self.clock = engine.clock
        """When the last one came back."""
        self.ahead = None if flying is None else replace(flying)
        """The one that has not."""
        self.end_s = self.clock if self.ahead is None else self.ahead.end_s
        """When the GPU is through with what it has been given."""
        self.work = engine.works.decodes(0)
        self.longest_s = 0.0
        self.step_s = 0.0
        """Of the last one."""
        self.done = 0
        self.free: list[int] = []
        """GPU blocks after each step."""

    def take(self, steps: int) -> bool:
        """At most ``steps`` of them; False if blocks do not suffice for one."""
        engine, recorder = self.engine, self.engine.recorder
        if not self.waiting:
            engine.lack = ""
        recorder.queue_is(engine.clock, self.riders, self.waiting, engine.lack)
        while self.done < steps and (not self.done or self.clock < self.until_s):
            if self.done == len(self.free):
                self.free = engine.memory.free_after(min(steps, 4 * self.done + 32))
                if self.done == len(self.free):
                    break
            # The first two may still differ from the others in what the step rows say of them.
            if self.done < 2 or not self._many():
                self._one()
        if not self.done:
            return False
        recorder.rode(recorder.steps - self.done, self.longest_s)
        engine.scheduler.skip(self.done)
        flying, ahead = self.flying, self.ahead
        if flying is not None:
            assert ahead is not None
            flying.cost, flying.work = ahead.cost, ahead.work
            flying.start_s, flying.end_s = ahead.start_s, ahead.end_s
            flying.loaded_bytes = flying.stored_bytes = 0.0
            flying.decision.running, flying.decision.waiting = self.riders, self.waiting
        elif engine.last is not None:
            engine.last.end_s, engine.last.done = self.end_s, None
        engine.clock = self.clock
        return True

    def _one(self) -> None:
        """One step."""
        engine, recorder, ahead, done = self.engine, self.engine.recorder, self.ahead, self.done
        running, waiting = self.riders, self.waiting
        if done:
            self.work = engine.works.decodes(done, self.work)
        elif self.flying is not None:  # it was decided with the queues of then
            running, waiting = self.flying.decision.running, self.flying.decision.waiting
        cost = engine.replica.cost.step(self.work)
        if cost.h2d_bytes or cost.d2h_bytes:
            self._moved(cost.h2d_bytes, cost.d2h_bytes)
        self.step_s = cost.total_s
        start_s, self.end_s = self.end_s, self.end_s + self.step_s
        back_cost, back_start_s, self.clock = cost, start_s, self.end_s
        h2d_bytes, d2h_bytes = cost.h2d_bytes, cost.d2h_bytes
        if ahead is not None:
            back_cost, back_start_s, self.clock = ahead.cost, ahead.start_s, ahead.end_s
            h2d_bytes = back_cost.h2d_bytes + ahead.loaded_bytes
            d2h_bytes = back_cost.d2h_bytes + ahead.stored_bytes
            ahead.cost, ahead.work, ahead.start_s, ahead.end_s = cost, self.work, start_s, self.end_s
            ahead.loaded_bytes = ahead.stored_bytes = 0.0
        last = recorder.rows[-1] if done > 1 else None
        if last is not None and abs(last.gpu_free_blocks - self.free[done]) <= recorder.grain_blocks:
            recorder.pay(back_cost, self.clock - back_start_s)
            last.go_on(1, self.clock, h2d_bytes, d2h_bytes)
        else:
            row = self._row(recorder.steps, back_start_s, self.clock, running, waiting, self.free[done])
            row.h2d_bytes, row.d2h_bytes = h2d_bytes, d2h_bytes
            recorder.step(row, back_cost)
        gap_s = self.clock - recorder.returned_s
        recorder.gap(gap_s, self.riders)
        recorder.returned_s = self.clock
        self.longest_s = max(self.longest_s, gap_s)
        self.done += 1

    def _many(self) -> bool:
        """All steps for which ``free`` is known, up to the next event; False if they are few."""
        engine, recorder, ahead, work = self.engine, self.engine.recorder, self.ahead, self.work
        steps = min(len(self.free) - self.done, _MANY)
        steps = int(min(steps, (self.until_s - self.clock) / self.step_s + 2))
        if engine.works.lookups is not None:
            steps = min(steps, engine.works.lookups.until - engine.scheduler.cohort.steps - self.done)
        if steps < _FEW:
            return False
        contexts = work.decode_context_tokens + self.riders * np.arange(1, steps + 1)
        costs = engine.replica.cost.decodes(work, contexts)
        ends = np.add.accumulate(np.concatenate(((self.end_s,), totals_s(costs))))
        starts, backs, back_costs = ends[:-1], ends[1:], costs
        if ahead is not None:
            starts, backs = np.concatenate(((ahead.start_s,), ends[:-2])), ends[:-1]
            back_costs = np.vstack((ahead.cost, costs[:-1]))
        steps = 1 + int(np.searchsorted(backs[:-1], self.until_s))
        costs, back_costs, starts, backs = costs[:steps], back_costs[:steps], starts[:steps], backs[:steps]
        engine.replica.cost.note_decodes(work, contexts[:steps])
        self._moved(costs[:, _H2D], costs[:, _D2H])
        recorder.pay_each(back_costs, backs - starts)
        self._rows(back_costs, starts, backs)
        gaps = np.diff(backs, prepend=recorder.returned_s)
        recorder.gap_each(gaps, self.riders)
        self.longest_s = max(self.longest_s, float(gaps.max()))
        self.clock = recorder.returned_s = float(backs[-1])
        start_s, self.end_s = float(ends[steps - 1]), float(ends[steps])
        self.work = work._replace(decode_context_tokens=int(contexts[steps - 1]))
        if ahead is not None:
            ahead.cost, ahead.work = StepCost(*costs[-1].tolist()), self.work
            ahead.start_s, ahead.end_s = start_s, self.end_s
        self.done += steps
        return True

    def _rows(self, costs: Floats, starts: Floats, backs: Floats) -> None:
        """Put steps that have come back and are paid for into the last row, and into new ones."""
        recorder = self.engine.recorder
        steps = len(backs)
        first = recorder.steps - steps
        free = np.array(self.free[self.done : self.done + steps])
        i = 0
        while i < steps:
            other = np.abs(free[i:] - recorder.rows[-1].gpu_free_blocks) > recorder.grain_blocks
            end = i + int(other.argmax()) if other.any() else steps
            if end > i:
                part = slice(i, end)
                recorder.rows[-1].go_on(end - i, float(backs[end - 1]), costs[part, _H2D], costs[part, _D2H])
                i = end
            else:
                row = self._row(
                    first + i, float(starts[i]), float(backs[i]), self.riders, self.waiting, int(free[i])
                )
                row.h2d_bytes, row.d2h_bytes = costs[i, [_H2D, _D2H]].tolist()
                recorder.rows.append(row)
                i += 1

    def _row(self, step: int, start_s: float, end_s: float, running: int, waiting: int, free: int) -> StepRow:
        _, host_free, resident, host_only, hot_blocks = self.engine.works.levels()
        return StepRow(
            step, step, start_s, end_s, running, waiting, self.riders, 0, free, host_free, 0,
            resident, host_only, 0.0, 0.0, hot_blocks, self.engine.recorder.replica,
        )  # fmt: skip

    def _moved(self, h2d_bytes: Floats | float, d2h_bytes: Floats | float) -> None:
        """Bytes of each step, on one GPU's link."""
        engine, replica = self.engine, self.engine.replica
        link, host = engine.traffic.link.bytes, engine.traffic.host_bytes
        link[H2D], link[D2H] = added(link[H2D], h2d_bytes), added(link[D2H], d2h_bytes)
        host[H2D] = added(host[H2D], h2d_bytes * replica.ranks)
        host[D2H] = added(host[D2H], d2h_bytes * replica.mirroring_ranks)


_H2D, _D2H = StepCost._fields.index("h2d_bytes"), StepCost._fields.index("d2h_bytes")
