"""What the memories share: how they see a request, and what a prefix lookup finds."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from hisparse_sim.memory.pool import NO_IDS, Ids

NOTHING = NO_IDS


class EngineDied(RuntimeError):
    """The real engine raises here and does not survive it; the text is its own."""


class Sequence(Protocol):
    """A request, as far as memory goes. ``memory`` is the memory's own record of it."""

    num_tokens: int
    prompt_tokens: int
    computed: int
    in_flight: int
    quiet_until: int
    quiet_while_free: bool
    private_from: int
    preemptions: int
    memory: Any

    @property
    def content(self) -> Ids:
        """Ids of its whole blocks."""


def content_bound(request: Sequence) -> int:
    """All content ids of a request lie below this."""
    return int(request.content.max()) + 1 if len(request.content) else 0


class Hit(NamedTuple):
    """A prefix found for a waiting request.

    ``tokens`` of it can be used at once; ``load_tokens`` more must first be loaded from an offload
    tier. ``gpu`` and ``host`` are the blocks that hold it. ``imported``: computed by another instance.
    """

    tokens: int
    gpu: Ids
    host: Ids = NOTHING
    load_tokens: int = 0
    imported: bool = False


NEVER = 1 << 30
"""More steps or tokens than anything here counts."""

MISS = Hit(0, NOTHING)
