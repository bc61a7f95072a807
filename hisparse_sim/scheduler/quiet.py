"""How many steps from now on decide nothing: each running request decodes one token, no more."""

from __future__ import annotations

from typing import Protocol

from hisparse_sim.memory.base import NEVER
from hisparse_sim.scheduler.request import Request
from hisparse_sim.scheduler.step import Scheduler


class QuietMemory(Protocol):
    """A memory that can tell when it will next change."""

    @property
    def busy(self) -> bool:
        """Whether transfers are under way."""

    @property
    def fewer_blocks_refuse_too(self) -> bool:
        """Whether a request refused now is refused with fewer free blocks as well."""

    def quiet_tokens(self, request: Request) -> int:
        """Tokens that a decoding request can take one by one before more than its own blocks changes."""

    def affordable(self, requests: list[Request], steps: int) -> int:
        """How many of ``steps`` decode steps of these requests the free blocks suffice for."""

    def free_after(self, requests: list[Request], steps: int) -> list[int]:
        """GPU blocks free after each of ``steps`` decode steps."""

    def advance(self, requests: list[Request]) -> None:
        """Bring the blocks of these requests up to their tokens, as step after step would have."""


def quiet_steps(scheduler: Scheduler, memory: QuietMemory) -> int:
    """Steps for which ``schedule`` would schedule one token of each running request, and nothing else.

    Assumes that no request arrives and that a waiting queue, if there is one, stays where it is
    (``engine`` knows why it waits). Never more than true, perhaps fewer.
    """
    config = scheduler.config
    running = scheduler.running
    if not running or scheduler.loading or memory.busy or len(running) > config.max_num_batched_tokens:
        return 0
    steps = NEVER
    for request in running:
        computed = request.computed
        if request.num_tokens + request.placeholders - computed != 1 or request.stale:
            return 0
        end = min(request.end_tokens, config.max_model_len)
        # Each step but the one that ends it; a token under way counts as computed already.
        steps = min(steps, end - request.num_tokens - 1)
        if steps > 0:
            steps = min(steps, memory.quiet_tokens(request))
        if steps <= 0:
            return 0
    return memory.affordable(running, steps)


def skip(scheduler: Scheduler, memory: QuietMemory, steps: int) -> None:
    """Count ``steps`` quiet steps as decided and come back."""
    for request in scheduler.running:
        request.num_tokens += steps
        request.computed += steps
    memory.advance(scheduler.running)
    scheduler.step += steps
    scheduler.memory.settle({}, scheduler.step - 1)
