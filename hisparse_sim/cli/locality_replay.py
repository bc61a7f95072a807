"""Replays of a recording over several buffers and policies, a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hisparse_sim.cost.locality import MissModel
from hisparse_sim.errors import InputError
from hisparse_sim.locality.file import load_locality
from hisparse_sim.locality.hot_buffer import HotBuffer
from hisparse_sim.locality.recording import Recording
from hisparse_sim.locality.replay import PAGE_TOKENS, lookups_of, replay


class Row(NamedTuple):
    """All layers together; ``lowest`` and ``highest``: shares of one layer."""

    policy: str
    hot_rows: int
    lookups: int
    misses: int
    miss_share: float
    lowest: float
    highest: float
    expected: float | None


def replay_rows(
    recording: Recording,
    hot_rows: Sequence[int],
    policies: Sequence[str],
    *,
    since: int = 0,
    resident_share: float = 0.0,
    start: str = "empty",
    against: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """One row a policy and buffer, counted from step ``since``. Raises ``InputError``."""
    if since >= recording.steps:
        raise InputError(f"{since} is past the last step, {recording.steps - 1}", where="--since")
    if start not in ("empty", "first-rows"):
        raise InputError(f"{start!r} is none of empty, first-rows", where="--start")
    if start == "first-rows" and list(policies) != ["lru"]:
        raise InputError("first-rows is for policy lru alone", where="--start")
    for rows in hot_rows:
        if rows < recording.topk_rows:
            raise InputError(
                f"{rows:,} rows are fewer than the top-k of {recording.path.name}, {recording.topk_rows:,}; "
                "a buffer holds one selection at least",
                where="--hot-rows",
            )
    locality = load_locality(against) if against is not None else None
    resident, context = None, 0
    counts: dict[tuple[str, int], list[tuple[int, int]]] = {(p, n): [] for p in policies for n in hot_rows}
    for index, positions in enumerate(recording.each()):
        here = int(positions.max()) + 1 if recording.contexts is None else int(recording.contexts[0])
        context = max(context, here)
        if resident_share:
            resident = np.arange(-(-here // PAGE_TOKENS)) < round(resident_share * here / PAGE_TOKENS)
        lookups = lookups_of(positions, resident)
        for (policy, rows), found in counts.items():
            buffer = HotBuffer.first_rows(rows, here) if start == "first-rows" else None
            done = replay(lookups, hot_rows=rows, policy=policy, buffer=buffer)
            found.append((int(done.lookups[since:].sum()), int(done.misses[since:].sum())))
        if progress is not None:
            progress(index + 1, len(recording.layers))
    made = []
    for (policy, rows), found in counts.items():
        looked, missed = (sum(pair[i] for pair in found) for i in (0, 1))
        each = [m / n if n else 0.0 for n, m in found]
        expected = None
        if locality is not None:
            model = MissModel(
                locality, topk_rows=recording.topk_rows, hot_rows=rows, policy=policy,
                queries=recording.queries,
            )  # fmt: skip
            expected = model.share(context, resident_share=resident_share)
        share = missed / looked if looked else 0.0
        made.append(Row(policy, rows, looked, missed, share, min(each), max(each), expected))
    return made
