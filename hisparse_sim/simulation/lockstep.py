"""DP replicas whose steps begin and end together, because they share their experts."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import simpy
from msgspec.structs import replace
from simpy.events import EventPriority

if TYPE_CHECKING:
    from hisparse_sim.simulation.batch import Batch
    from hisparse_sim.simulation.engine import Engine

_LAST = EventPriority(2)
"""Priority of an event that comes after all others of its moment (simpy's own are 0 and 1)."""


class Lockstep:
    """The replicas of one instance of a model with experts.

    All of them dispatch their tokens to the same experts in each layer, so the forward passes are
    aligned: each takes as long as the slowest, and a replica with nothing to do runs a dummy pass of one
    token as long as any other works (vLLM, Data Parallel Deployment). A request that comes to an idle
    replica therefore waits for the pass that is under way.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._queues: dict[Engine, deque[Batch]] = {}
        self._busy = self._called = False

    def enter(self, engine: Engine) -> None:
        """A replica takes part from now on."""
        self._queues[engine] = deque()

    def submit(self, engine: Engine, batch: Batch) -> None:
        """The replica's next pass; ``batch.done`` fires when it and all others have ended."""
        batch.moves, batch.done = True, self.env.event()
        self._queues[engine].append(batch)
        self._call()

    def _call(self) -> None:
        """Begin the next pass once everything that happens at this moment has happened."""
        if self._busy or self._called:
            return
        self._called = True
        event = self.env.event()
        event._ok, event._value = True, None
        assert event.callbacks is not None
        event.callbacks.append(self._begin)
        self.env.schedule(event, priority=_LAST)

    def _begin(self, _: simpy.Event) -> None:
        self._called = False
        passes = [(engine, queue.popleft() if queue else None) for engine, queue in self._queues.items()]
        tokens = sum(batch.work.tokens if batch else _DUMMY_TOKENS for _, batch in passes)
        self._busy = True
        own = [(engine, batch, engine.begin_beside(batch, tokens)) for engine, batch in passes if batch]
        self.env.process(self._end(own))

    def _end(self, own: list[tuple[Engine, Batch, simpy.Event]]) -> simpy.events.ProcessGenerator:
        yield self.env.all_of([ended for _, _, ended in own])
        now = self.env.now
        for _, batch, _ in own:
            # Each replica has waited for its own work and its own copies already.
            batch.cost = replace(batch.cost, peers_s=now - batch.end_s)
            batch.end_s = now
            assert batch.done is not None
            batch.done.succeed()
        self._busy = False
        if any(self._queues.values()):
            self._call()


_DUMMY_TOKENS = 1
