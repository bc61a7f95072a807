"""What the scheduler asks of the memory behind it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from hisparse_sim.memory.base import Hit
from hisparse_sim.scheduler.request import Request


class Memory(Protocol):
    """What the scheduler asks of the memory behind it: ``ResidentMemory`` or ``HiSparseMemory``."""

    def shortage(self, request: Request) -> str:
        """What a waiting request would lack even if nothing of it were cached; empty: nothing."""

    @property
    def refusal(self) -> str:
        """What the last refused request lacked."""

    @property
    def busy(self) -> bool:
        """Whether transfers are under way that need further steps."""

    def expect(self, request: Request) -> None:
        """A request arrives."""

    def lookup(self, request: Request) -> Hit | None:
        """The prefix of a waiting request; None: it cannot be tried in this step."""

    def admit(self, request: Request, hit: Hit, tokens: int, *, others_running: bool) -> bool:
        """Reserve what the first step needs; False: the queue waits."""

    def extend(self, request: Request, tokens: int) -> bool:
        """Reserve blocks for a running request's next tokens."""

    def may_preempt(self, victim: Request) -> bool:
        """Whether the memory can let go of a request now."""

    def reclaim_pending(self) -> bool:
        """Whether a failing request should wait for blocks on their way back instead of preempting."""

    def release(self, request: Request, *, finished: bool) -> None:
        """Give back what a request holds."""

    def settle(self, scheduled: Mapping[Any, int], step: int) -> None:
        """The work at the end of a step, before its tokens count as computed.

        ``scheduled``: tokens of each request that may need any, in schedule order.
        """

    def returned(self, request: Request, known_tokens: int) -> None:
        """A batch of a running request has come back (asynchronous scheduling)."""

    def complete(self, step: int) -> int:
        """Take note of the transfers that are reported with ``step``."""

    # -- requests that ride in the cohort: up to ``quiet_until`` tokens they decode one a step, unseen

    @property
    def pressed(self) -> bool:
        """Whether free blocks are so few that ``quiet_while_free`` requests are quiet no longer."""

    def ride(self, request: Request) -> bool:
        """From the next step on a request decodes one token a step; False: it may not yet."""

    def alight(self, request: Request) -> None:
        """It does not any more; ``computed`` and ``in_flight`` are up to date."""

    def covers(self, wants: Collection[tuple[Request, int]]) -> bool:
        """Whether the free blocks suffice for all that ride and for ``wants``, tokens of others.

        All that want some may yet join those that ride.
        """

    def grow(self, steps: int) -> None:
        """So many steps of those that ride: take the blocks that they need."""

    def free_after(self, steps: int) -> list[int]:
        """GPU blocks free after each of the next steps, at most ``steps``, for which they suffice."""


class LoadingMemory(Memory, Protocol):
    """A memory whose hits may have to be loaded first: ``OffloadMemory``."""

    def load(self, request: Request, hit: Hit, prefilling: list[Request], *, others_running: bool) -> bool:
        """Reserve blocks for, and start, an asynchronous load; False: the queue waits."""

    def loaded(self, request: Request) -> bool:
        """Whether the load has arrived; if so its blocks count as cached from now on."""

    def readmit(self, request: Request, tokens: int, *, others_running: bool) -> bool:
        """Admit a request whose load has arrived; False: it keeps its blocks and its place."""
