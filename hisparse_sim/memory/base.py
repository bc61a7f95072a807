"""What the memories share: how they see a request, and what a prefix lookup finds."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from hisparse_sim.memory.pool import Ids

NOTHING: Ids = np.empty(0, dtype=np.int64)


class EngineDied(RuntimeError):
    """The real engine raises here and does not survive it; the text is its own."""


class Sequence(Protocol):
    """A request, as far as memory goes. ``memory`` is the memory's own record of it."""

    num_tokens: int
    prompt_tokens: int
    computed: int
    in_flight: int
    quiet_until: int
    content: Ids
    memory: Any


class Hit(NamedTuple):
    """A prefix found for a waiting request.

    ``tokens`` of it can be used at once; ``load_tokens`` more must first be loaded from an offload
    tier. ``gpu`` and ``host`` are the blocks that hold it.
    """

    tokens: int
    gpu: Ids
    host: Ids = NOTHING
    load_tokens: int = 0


NEVER = 1 << 30
"""More steps or tokens than anything here counts."""

MISS = Hit(0, NOTHING)
