"""What an engine keeps of a step that is under way, and of a request."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from msgspec import Struct, field

from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.scheduler.decision import Step
from hisparse_sim.simulation.lookups import Warmth
from hisparse_sim.simulation.record import RequestRecord


class Batch(Struct):
    """A step on its way through the GPU."""

    decision: Step
    cost: StepCost
    work: StepWork
    """Its own, or at the end of a jump that of the first step, whose contexts were shorter."""
    loaded_bytes: float = 0.0
    """Of the offload tier's copies that began with it, on one GPU's link."""
    stored_bytes: float = 0.0
    start_s: float = 0.0
    end_s: float = -1.0
    """-1: not known yet."""
    moves: bool = False
    """The link has a say in when it ends, and ``end_s`` is known only once it runs or has ended."""
    done: simpy.Event | None = None
    """Fires when it ends, if it is not known before."""
    runs: bool = True
    """Whether the GPU has anything to do."""


class Life(Struct):
    """What the engine keeps of a request beside the scheduler's own record."""

    record: RequestRecord
    over: Callable[[], None]
    read: Callable[[], None] | None = None
    """Called when its KV has been read from the engine that prefilled it, if one did."""
    warmth: Warmth = field(default_factory=Warmth)
    """Of its hot buffer."""
