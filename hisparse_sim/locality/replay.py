"""Recorded or sampled selections through the exact hot buffer: what would have been fetched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.errors import InputError
from hisparse_sim.locality.hot_buffer import BUFFERS, BeladyBuffer, HotBuffer
from hisparse_sim.locality.selection import Positions

PAGE_TOKENS = 64
"""Tokens of a page of sparse MLA (vLLM)."""


class Replayed(NamedTuple):
    """Per step of one layer: rows looked up in the buffer, and those of them that were fetched."""

    lookups: NDArray[np.int64]
    misses: NDArray[np.int64]

    def share(self, since: int = 0) -> float:
        """Misses over lookups from step ``since`` on; 0 without lookups."""
        lookups = int(self.lookups[since:].sum())
        return int(self.misses[since:].sum()) / lookups if lookups else 0.0


def lookups_of(positions: Positions, resident: NDArray[np.bool_] | None = None) -> list[NDArray[np.int64]]:
    """Rows that each step looks up: its queries' positions [steps, queries, top-k], each row once.

    ``resident`` [pages]: pages on the GPU, whose rows need no buffer; later pages are not.
    """
    made = []
    for step in positions:
        rows = step[0] if len(step) == 1 else np.unique(step)
        rows = rows[rows >= 0].astype(np.int64)
        if resident is not None:
            page = rows // PAGE_TOKENS
            on_gpu = np.zeros(len(rows), dtype=bool)
            known = page < len(resident)
            on_gpu[known] = resident[page[known]]
            rows = rows[~on_gpu]
        made.append(rows)
    return made


def replay(
    lookups: list[NDArray[np.int64]],
    *,
    hot_rows: int,
    policy: str = "lru",
    buffer: HotBuffer | None = None,
) -> Replayed:
    """Each step's lookups through a buffer of ``hot_rows`` rows, empty unless ``buffer`` is given.

    Raises ``InputError`` for a step that looks up more rows than the buffer has.
    """
    most = max((len(rows) for rows in lookups), default=0)
    if most > hot_rows:
        raise InputError(
            f"{hot_rows:,} rows are fewer than the {most:,} of one step; a buffer holds at least those",
            where="hot rows",
        )
    held = BUFFERS[policy](hot_rows) if buffer is None else buffer
    misses = np.zeros(len(lookups), dtype=np.int64)
    if isinstance(held, BeladyBuffer):
        for i, (rows, next_use) in enumerate(zip(lookups, _next_uses(lookups), strict=True)):
            misses[i] = np.count_nonzero(held.resolve_knowing(rows, next_use))
    else:
        for i, rows in enumerate(lookups):
            misses[i] = np.count_nonzero(held.resolve(rows)[1])
    return Replayed(np.array([len(rows) for rows in lookups], dtype=np.int64), misses)


def _next_uses(lookups: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """For each lookup the step that looks the row up next; the number of steps if none does."""
    rows = 1 + max((int(r.max()) for r in lookups if len(r)), default=0)
    never = len(lookups)
    following = np.full(rows, never, dtype=np.int64)
    made: list[NDArray[np.int64]] = []
    for i in range(never - 1, -1, -1):
        made.append(following[lookups[i]])
        following[lookups[i]] = i
    return made[::-1]
