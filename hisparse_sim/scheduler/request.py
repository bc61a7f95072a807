"""A request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from hisparse_sim.memory.pool import Ids


class Status(IntEnum):
    """Where a request stands."""

    WAITING = 0
    LOADING = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED = 4


class Request:
    """One request. Token counts are of prompt and output together unless said.

    ``content`` are the ids of its whole blocks (``memory.content``), long enough for the prompt and
    all output it may produce, or what makes them when they are first asked for. ``output_tokens``:
    what it will produce; none: ``max_tokens``.
    """

    __slots__ = (
        "_content",
        "arrival",
        "batches",
        "computed",
        "drafts",
        "due",
        "end_tokens",
        "epoch",
        "furthest",
        "id",
        "in_flight",
        "joined",
        "limit_tokens",
        "memory",
        "num_tokens",
        "order",
        "placeholders",
        "preemptions",
        "priority",
        "private_from",
        "prompt_tokens",
        "quiet_until",
        "quiet_while_free",
        "stale",
        "status",
        "user",
    )

    def __init__(
        self,
        id: str,  # noqa: A002
        prompt_tokens: int,
        max_tokens: int,
        content: Ids | Callable[[], Ids],
        *,
        output_tokens: int | None = None,
        arrival: float = 0.0,
        priority: int = 0,
        private_from: int | None = None,
        user: Any = None,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self._content = content
        self.arrival = arrival
        self.priority = priority
        self.user = user
        """Whatever the caller wants to find again."""
        self.num_tokens = prompt_tokens
        """Prompt and sampled tokens."""
        self.limit_tokens = prompt_tokens + max_tokens
        """Where the client's ``max_tokens`` ends it at the latest; the scheduler may count on it."""
        self.end_tokens = prompt_tokens + min(output_tokens or max_tokens, max_tokens)
        """Where the model will end it; no decision may look at it before that token has come back."""
        self.computed = 0
        """Tokens whose KV exists or is being computed."""
        self.furthest = 0
        """The most it has ever been."""
        self.placeholders = 0
        """Sampled tokens that an asynchronous batch has not brought back yet, and drafts that it verifies."""
        self.drafts = 0
        """Drafted tokens that its next step verifies."""
        self.in_flight = 0
        """Tokens scheduled in batches that have not come back."""
        self.batches = 0
        """Batches under way that hold it."""
        self.epoch = 0
        """Grows with each preemption: results of an older epoch are stale."""
        self.stale = 0
        """Batches of an older epoch that are still under way."""
        self.status = Status.WAITING
        self.private_from = len(self.content) if private_from is None else private_from
        """From this block on nobody else can have the same content."""
        self.quiet_until = 0
        """Up to so many tokens its memory has nothing to do for it; kept by the memory."""
        self.quiet_while_free = False
        """Only as long as the memory is not pressed."""
        self.order = 0
        """Grows from admission to admission: running requests are in this order."""
        self.joined = -1
        """While it rides in the cohort: the cohort's steps when it joined; -1: it does not."""
        self.due = 0
        """The cohort's steps at which it must leave."""
        self.memory: Any = None
        """The memory's own record of this request while it holds blocks."""
        self.preemptions = 0

    @property
    def content(self) -> Ids:
        """Ids of its whole blocks."""
        if callable(self._content):
            self._content = self._content()
        return self._content

    def __repr__(self) -> str:
        return f"<Request {self.id} {self.status.name.lower()} {self.computed}/{self.num_tokens}>"
