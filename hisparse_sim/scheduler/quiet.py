"""How many steps from now on decide nothing: each running request decodes one token, no more."""

from __future__ import annotations

from typing import Protocol

from hisparse_sim.scheduler.request import Request
from hisparse_sim.scheduler.step import Scheduler

_ENDING_TOKENS = 4
"""Before a request ends, asynchronous scheduling looks this far ahead at most."""


class QuietMemory(Protocol):
    """A memory that can tell when it will next change."""

    @property
    def busy(self) -> bool:
        """Whether transfers are under way."""

    def quiet_tokens(self, request: Request) -> int:
        """Tokens that a decoding request can take one by one before its memory changes in any way."""


def quiet_steps(scheduler: Scheduler, memory: QuietMemory) -> int:
    """Steps for which ``schedule`` would schedule one token of each running request, and nothing else.

    Assumes that no request arrives and that a waiting queue, if there is one, stays where it is
    (``engine`` knows why it waits). Never more than true, perhaps fewer.
    """
    config = scheduler.config
    running = scheduler.running
    if not running or scheduler.loading or memory.busy or len(running) > config.max_num_batched_tokens:
        return 0
    steps = 1 << 30
    for request in running:
        computed = request.computed
        if request.num_tokens + request.placeholders - computed != 1 or request.stale:
            return 0
        end = min(request.prompt_tokens + request.max_tokens, config.max_model_len)
        steps = min(steps, end - computed - _ENDING_TOKENS)
        if steps > 0:
            steps = min(steps, memory.quiet_tokens(request))
        if steps <= 0:
            return 0
    return steps


def skip(scheduler: Scheduler, steps: int) -> None:
    """Count ``steps`` quiet steps as decided and come back."""
    for request in scheduler.running:
        request.num_tokens += steps
        request.computed += steps
    scheduler.step += steps
    scheduler.memory.settle({}, scheduler.step - 1)
