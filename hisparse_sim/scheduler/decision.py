"""What one scheduling step computes, and what was decided with it."""

from __future__ import annotations

from hisparse_sim.memory.base import Hit
from hisparse_sim.scheduler.request import Request


class Step:
    """What one step computes."""

    __slots__ = (
        "drafted",
        "epochs",
        "last",
        "past",
        "preempted",
        "rider_tokens",
        "riders",
        "running",
        "scheduled",
        "step",
        "waiting",
    )

    def __init__(self, step: int, riders: int = 0, rider_tokens: int = 0) -> None:
        self.step = step
        self.scheduled: dict[Request, int] = {}
        """Tokens of each request, in schedule order; those that ride in the cohort apart."""
        self.riders = riders
        """Requests that ride in the cohort; each decodes one token."""
        self.rider_tokens = rider_tokens
        """Tokens that they had computed before, together."""
        self.last: list[Request] = []
        """Riders whose last token this step brings; they ride no longer."""
        self.past: dict[Request, int] = {}
        """Tokens computed before this step, of each scheduled request."""
        self.epochs: dict[Request, tuple[int, bool]] = {}
        """Epoch of each scheduled request, and whether the step samples a token for it."""
        self.drafted: dict[Request, int] = {}
        """Drafts among the tokens of each request that samples; empty without speculative decoding."""
        self.preempted: list[Request] = []
        self.running = 0
        self.waiting = 0

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

    __slots__ = (
        "admitted",
        "dropped_tokens",
        "given_up",
        "hits",
        "joined",
        "left",
        "lookups",
        "resumed",
        "short_of",
    )

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.joined: list[Request] = []
        """Requests that ride from the next step on."""
        self.left: list[Request] = []
        """Requests that rode until now."""
        self.admitted: list[Request] = []
        self.resumed: list[Request] = []
        self.given_up: list[Request] = []
        """Preempted and not put back: see ``SchedulerConfig.give_up_after``."""
        self.dropped_tokens = 0
        """Computed tokens that the preempted requests lost (those they find again are counted too)."""
        self.short_of = ""
        """Why the waiting queue did not empty: tokens, places, GPU blocks, host blocks, loads."""
        self.hits: dict[Request, Hit] = {}
        """Prefix of each request that was admitted or began to load."""
        self.lookups: list[tuple[Request, Hit]] = []
        """Prefix of each waiting request that was tried."""


def in_order(scheduled: dict[Request, int]) -> dict[Request, int]:
    return dict(sorted(scheduled.items(), key=lambda item: item[0].order))
