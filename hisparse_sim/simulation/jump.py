"""Steps in which nothing is decided, taken all at once.

Between two decisions every running request decodes one token a step and no memory changes. Such steps
differ only in their price. The result is the same, to the last bit, as that of single steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from hisparse_sim.simulation.links import D2H, H2D
from hisparse_sim.simulation.recorder import StepRow

if TYPE_CHECKING:
    from hisparse_sim.simulation.engine import Batch, Engine


def jump(engine: Engine, queue: deque[Batch]) -> bool:
    """Take all steps up to the next decision or event; False if the next step is not of that kind.

    ``queue``: batches in flight, one under asynchronous scheduling, which must itself be of the kind
    that is repeated: it comes back first, and the last step of the jump takes its place.
    """
    flying = queue[0] if queue else None
    steps = _steps(engine, queue, flying)
    if steps < 2:
        return False
    recorder, replica, link = engine.recorder, engine.replica, engine.link
    price, rows = replica.cost.step, recorder.rows
    n, waiting = len(engine.scheduler.cohort), engine.waiting()
    if not waiting:
        engine.lack = ""
    recorder.queue_is(engine.clock, n, waiting, engine.lack)
    until_s = engine.env.peek()
    _, host_free, resident, host_only, hot_blocks = engine.levels()
    # The batch in flight was decided with the queues of then.
    queues = (n, waiting) if flying is None else (flying.decision.running, flying.decision.waiting)
    work = engine.decodes(0)
    clock = engine.clock
    ahead = None if flying is None else replace(flying)
    end_s = clock if ahead is None else ahead.end_s
    longest_s = 0.0
    done = 0
    free: list[int] = []
    while done < steps and (not done or clock < until_s):
        if done:
            work = engine.decodes(done, work)
        if done == len(free):
            free = engine.memory.free_after(min(steps, 4 * done + 32))
            if done == len(free):
                break
        cost = price(work)
        if cost.h2d_bytes or cost.d2h_bytes:
            link.bytes[H2D] += cost.h2d_bytes
            link.bytes[D2H] += cost.d2h_bytes
            engine.host_bytes[H2D] += cost.h2d_bytes * replica.ranks
            engine.host_bytes[D2H] += cost.d2h_bytes * replica.mirroring_ranks
        start_s = clock if clock > end_s else end_s
        end_s = start_s + cost.total_s
        if ahead is None:
            back_cost, back_start_s, back_end_s = cost, start_s, end_s
            loaded, stored = 0.0, 0.0
        else:
            back_cost, back_start_s, back_end_s = ahead.cost, ahead.start_s, ahead.end_s
            loaded, stored = ahead.loaded_bytes, ahead.stored_bytes
            ahead.cost, ahead.work, ahead.start_s, ahead.end_s = cost, work, start_s, end_s
            ahead.loaded_bytes = ahead.stored_bytes = 0.0
        clock = back_end_s
        if done > 1 and abs(rows[-1].gpu_free_blocks - free[done]) <= recorder.grain_blocks:
            recorder.pay(back_cost, clock - back_start_s)
            row = rows[-1]
            row.last_step += 1
            row.end_s = clock
            row.h2d_bytes += back_cost.h2d_bytes
            row.d2h_bytes += back_cost.d2h_bytes
        else:
            row = StepRow(
                recorder.steps,
                recorder.steps,
                back_start_s,
                clock,
                *queues,
                n,
                0,
                free[done],
                host_free,
                0,
                resident,
                host_only,
                back_cost.h2d_bytes + loaded,
                back_cost.d2h_bytes + stored,
                hot_blocks,
            )
            recorder.step(row, back_cost)
        queues = n, waiting
        gap_s = clock - recorder.returned_s
        recorder.gap(gap_s, n)
        recorder.returned_s = clock
        if gap_s > longest_s:
            longest_s = gap_s
        done += 1
    if not done:
        return False
    recorder.rode(recorder.steps - done, longest_s)
    engine.scheduler.skip(done)
    if flying is not None:
        assert ahead is not None
        flying.cost, flying.work = ahead.cost, ahead.work
        flying.start_s, flying.end_s = ahead.start_s, ahead.end_s
        flying.loaded_bytes = flying.stored_bytes = 0.0
        flying.decision.running, flying.decision.waiting = queues
    elif engine.last is not None:
        engine.last.end_s, engine.last.done = end_s, None
    engine.clock = clock
    return True


def _steps(engine: Engine, queue: deque[Batch], flying: Batch | None) -> int:
    """How many steps may be taken at once, as far as requests and memory go."""
    if len(queue) != engine.depth - 1 or engine.link.busy:
        return 0
    if engine.waiting() and not engine.still_refused():
        return 0
    if flying is not None and flying.done is not None:
        return 0
    return engine.scheduler.quiet_steps()
