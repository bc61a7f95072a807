"""A request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from msgspec import Struct

from hisparse_sim.memory.pool import Ids


class Status(IntEnum):
    """Where a request stands."""

    WAITING = 0
    LOADING = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED = 4


class Request(Struct, eq=False):
    """One request. Token counts are of prompt and output together unless said.

    What comes after ``user`` is kept by the scheduler and the memory.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    """The most it may produce, as the client asked."""
    blocks: Ids | Callable[[], Ids]
    """Ids of its whole blocks (``memory.content``), long enough for the prompt and all output it may
    produce, or what makes them when they are first asked for."""
    output_tokens: int | None = None
    """What it will produce; none: ``max_tokens``. Nobody may look at it, but for ``end_tokens``."""
    arrival: float = 0.0
    priority: int = 0
    private_from: int = -1
    """From this block on nobody else can have the same content; -1: from the end of ``content`` on."""
    user: Any = None
    """Whatever the caller wants to find again."""
    num_tokens: int = 0
    """Prompt and sampled tokens."""
    limit_tokens: int = 0
    """Where the client's ``max_tokens`` ends it at the latest; the scheduler may count on it."""
    end_tokens: int = 0
    """Where the model will end it; no decision may look at it before that token has come back."""
    computed: int = 0
    """Tokens whose KV exists or is being computed."""
    furthest: int = 0
    """The most it has ever been."""
    placeholders: int = 0
    """Sampled tokens that an asynchronous batch has not brought back yet, and drafts that it verifies."""
    drafts: int = 0
    """Drafted tokens that its next step verifies."""
    in_flight: int = 0
    """Tokens scheduled in batches that have not come back."""
    batches: int = 0
    """Batches under way that hold it."""
    epoch: int = 0
    """Grows with each preemption: results of an older epoch are stale."""
    stale: int = 0
    """Batches of an older epoch that are still under way."""
    status: Status = Status.WAITING
    quiet_until: int = 0
    """Up to so many tokens its memory has nothing to do for it; kept by the memory."""
    quiet_while_free: bool = False
    """Only as long as the memory is not pressed."""
    order: int = 0
    """Grows from admission to admission: running requests are in this order."""
    joined: int = -1
    """While it rides in the cohort: the cohort's steps when it joined; -1: it does not."""
    due: int = 0
    """The cohort's steps at which it must leave."""
    memory: Any = None
    """The memory's own record of this request while it holds blocks."""
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.num_tokens = prompt = self.prompt_tokens
        self.limit_tokens = prompt + self.max_tokens
        self.end_tokens = prompt + min(self.output_tokens or self.max_tokens, self.max_tokens)
        if self.private_from < 0:
            self.private_from = len(self.content)

    @property
    def content(self) -> Ids:
        """Ids of its whole blocks."""
        if callable(self.blocks):
            self.blocks = self.blocks()
        return self.blocks

    def __repr__(self) -> str:
        return f"<Request {self.id} {self.status.name.lower()} {self.computed}/{self.num_tokens}>"
