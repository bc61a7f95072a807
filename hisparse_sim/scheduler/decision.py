"""What one scheduling step computes, and what was decided with it."""

from __future__ import annotations

from msgspec import Struct

from hisparse_sim.memory.base import Hit
from hisparse_sim.scheduler.request import Request


class Step(Struct, eq=False):
    """What one step computes."""

    step: int
    riders: int = 0
    """Requests that ride in the cohort; each decodes one token."""
    rider_tokens: int = 0
    """Tokens that they had computed before, together."""
    running: int = 0
    waiting: int = 0
    scheduled: dict[Request, int] = {}
    """Tokens of each request, in schedule order; those that ride in the cohort apart."""
    last: list[Request] = []
    """Riders whose last token this step brings; they ride no longer."""
    past: dict[Request, int] = {}
    """Tokens computed before this step, of each scheduled request."""
    epochs: dict[Request, tuple[int, bool]] = {}
    """Epoch of each scheduled request, and whether the step samples a token for it."""
    drafted: dict[Request, int] = {}
    """Drafts among the tokens of each request that samples; empty without speculative decoding."""
    preempted: list[Request] = []

    def __bool__(self) -> bool:
        return bool(self.scheduled or self.riders)

    def whole(self, running: list[Request]) -> dict[Request, int]:
        """Tokens of every scheduled request, if ``running`` still is as the decision left it."""
        if not self.riders:
            return self.scheduled
        each = {r: self.scheduled.get(r) or int(r.joined >= 0) for r in running}
        return {r: n for r, n in each.items() if n}

    def single_out(self, request: Request, past: int) -> None:
        """A request that rode in this step counts on its own again."""
        self.riders -= 1
        self.rider_tokens -= past
        self.scheduled[request] = 1
        self.past[request] = past
        self.epochs[request] = request.epoch, True
        if len(self.scheduled) > 1:
            self.scheduled = in_order(self.scheduled)


class Decision(Step):
    """A step that was decided, not one of many alike."""

    joined: list[Request] = []
    """Requests that ride from the next step on."""
    left: list[Request] = []
    """Requests that rode until now."""
    admitted: list[Request] = []
    resumed: list[Request] = []
    given_up: list[Request] = []
    """Preempted and not put back: see ``SchedulerConfig.give_up_after``."""
    dropped_tokens: int = 0
    """Computed tokens that the preempted requests lost (those they find again are counted too)."""
    short_of: str = ""
    """Why the waiting queue did not empty: tokens, places, GPU blocks, host blocks, loads."""
    hits: dict[Request, Hit] = {}
    """Prefix of each request that was admitted or began to load."""
    lookups: list[tuple[Request, Hit]] = []
    """Prefix of each waiting request that was tried."""


def in_order(scheduled: dict[Request, int]) -> dict[Request, int]:
    return dict(sorted(scheduled.items(), key=lambda item: item[0].order))
