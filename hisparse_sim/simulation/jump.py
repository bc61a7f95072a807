"""Steps in which nothing is decided, taken all at once.

Between two decisions every running request decodes one token a step and no memory changes. Such steps
differ only in their price. The result is the same, to the last bit, as that of single steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from hisparse_sim.scheduler.quiet import quiet_steps, skip
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
    lives = [request.user.record for request in engine.scheduler.running]
    if steps < 2 or any(record.last_token_s is None for record in lives):
        return False
    recorder, replica, link = engine.recorder, engine.replica, engine.link
    n, waiting = len(lives), engine.waiting()
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
            free = engine.memory.free_after(engine.scheduler.running, min(steps, 4 * done + 32))
        cost = replica.cost.step(work)
        link.bytes[H2D] += cost.h2d_bytes
        link.bytes[D2H] += cost.d2h_bytes
        engine.host_bytes[H2D] += cost.h2d_bytes * replica.ranks
        engine.host_bytes[D2H] += cost.d2h_bytes * replica.mirroring_ranks
        start_s = max(clock, end_s)
        end_s = start_s + cost.total_s
        if ahead is None:
            back_cost, back_start_s, back_end_s = cost, start_s, end_s
            loaded, stored = 0.0, 0.0
        else:
            back_cost, back_start_s, back_end_s = ahead.cost, ahead.start_s, ahead.end_s
            loaded, stored = ahead.loaded_bytes, ahead.stored_bytes
            ahead.cost, ahead.work, ahead.start_s, ahead.end_s = cost, work, start_s, end_s
            ahead.loaded_bytes = ahead.stored_bytes = 0.0
        before, clock = clock, back_end_s
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
        if done:
            recorder.gap(clock - before, n)
            longest_s = max(longest_s, clock - before)
        else:
            recorder.tokens(clock, lives)
        done += 1
    for record in lives:
        record.sampled += done - 1
        record.last_token_s = clock
        record.itl_max_s = max(record.itl_max_s, longest_s)
    skip(engine.scheduler, engine.memory, done)
    if flying is not None:
        assert ahead is not None
        flying.cost, flying.work = ahead.cost, ahead.work
        flying.start_s, flying.end_s = ahead.start_s, ahead.end_s
        flying.loaded_bytes = flying.stored_bytes = 0.0
        decision = flying.decision
        decision.step += done
        decision.running, decision.waiting = queues
        for request in decision.past:
            decision.past[request] += done
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
    running = engine.scheduler.running
    if flying is not None and not (
        flying.done is None
        and flying.work.decode_requests == len(running) == len(flying.decision.scheduled)
        and not flying.work.prefills
        and not flying.decision.preempted
    ):
        return 0
    return quiet_steps(engine.scheduler, engine.memory)
