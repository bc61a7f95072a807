"""One request's hot buffer in one layer, slot by slot, exactly as the resolver kernel keeps it.

Source of the algorithm: vLLM's csrc hisparse_kernels.cu (PR #53781), as docs/howto/calibration.md describes
it; the checks of the CUDA resolver compare with this class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.errors import InputError

Rows = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass
class HotBuffer:
    """Exact LRU over steps: ``owners[slot]`` a row or -1, ``order`` slots, the oldest first."""

    owners: Rows
    order: Rows
    _slot_of: NDArray[np.int32] = field(default_factory=lambda: np.full(0, -1, np.int32), repr=False)
    """Slot of each row, -1: in none. As long as the largest row that was ever wanted."""

    def __post_init__(self) -> None:
        if self.order.dtype != np.int64:
            self.order = self.order.astype(np.int64)
        held = np.flatnonzero(self.owners >= 0)
        if len(held):
            self._reach(int(self.owners.max()))
            self._slot_of[self.owners[held]] = held

    @classmethod
    def empty(cls, hot_rows: int) -> HotBuffer:
        """No row, slots in their own order."""
        return cls(np.full(hot_rows, -1, dtype=np.int64), np.arange(hot_rows))

    @classmethod
    def first_rows(cls, hot_rows: int, context_rows: int) -> HotBuffer:
        """The first rows of the context, as SGLang's staging leaves them (hisparse_coordinator.py)."""
        owners = np.arange(hot_rows)
        owners[context_rows:] = -1
        return cls(owners, np.arange(hot_rows))

    def resolve(self, wanted: Rows) -> tuple[Rows, Bools]:
        """Slots of the ``wanted`` rows (all different) and which of them had to be fetched.

        Misses take the oldest slots that are not hit, in the order of ``wanted``; afterwards come, oldest
        first: slots not used, slots just filled, slots hit (in their order before).
        """
        if len(wanted) == 0:
            return wanted, np.zeros(0, dtype=bool)
        slots, missed, hit = self._look_up(wanted)
        hit = hit[self.order]
        stale = self.order[~hit]
        taken = stale[: int(missed.sum())]
        self._fill(wanted, slots, missed, taken)
        self.order = np.concatenate([stale[len(taken) :], taken, self.order[hit]])
        return slots, missed

    def _look_up(self, wanted: Rows) -> tuple[Rows, Bools, Bools]:
        """Slots (-1: missed), what is missed, and by slot whether it is hit."""
        self._reach(int(wanted.max()))
        slots = self._slot_of[wanted].astype(np.int64)
        missed = slots < 0
        hit = np.zeros(len(self.owners), dtype=bool)
        hit[slots[~missed]] = True
        if len(wanted) > len(self.owners):
            raise InputError(
                f"{len(wanted):,} rows wanted at once exceed the buffer's {len(self.owners):,}",
                where="hot rows",
            )
        return slots, missed, hit

    def _fill(self, wanted: Rows, slots: Rows, missed: Bools, taken: Rows) -> None:
        """The missed rows go to the slots ``taken``, whose owners leave."""
        gone = self.owners[taken]
        self._slot_of[gone[gone >= 0]] = -1
        rows = wanted[missed]
        slots[missed] = taken
        self.owners[taken] = rows
        self._slot_of[rows] = taken

    def _reach(self, row: int) -> None:
        short = row + 1 - len(self._slot_of)
        if short > 0:
            more = np.full(max(short, len(self._slot_of) // 4), -1, np.int32)
            self._slot_of = np.concatenate([self._slot_of, more])


class FifoBuffer(HotBuffer):
    """First in, first out; what the step wants is passed over."""

    def resolve(self, wanted: Rows) -> tuple[Rows, Bools]:
        """As :meth:`HotBuffer.resolve`; hits leave the order as it is."""
        if len(wanted) == 0:
            return wanted, np.zeros(0, dtype=bool)
        slots, missed, hit = self._look_up(wanted)
        taken = self.order[~hit[self.order]][: int(missed.sum())]
        self._fill(wanted, slots, missed, taken)
        kept = np.ones(len(self.owners), dtype=bool)
        kept[taken] = False
        self.order = np.concatenate([self.order[kept[self.order]], taken])
        return slots, missed


class RandomBuffer(HotBuffer):
    """Empty slots first, then any row that the step does not want."""

    def seed(self, seed: int) -> RandomBuffer:
        """Which rows go depends on this number alone."""
        self._random = np.random.default_rng(seed)
        return self

    def resolve(self, wanted: Rows) -> tuple[Rows, Bools]:
        """As :meth:`HotBuffer.resolve`; there is no order."""
        if len(wanted) == 0:
            return wanted, np.zeros(0, dtype=bool)
        slots, missed, hit = self._look_up(wanted)
        count = int(missed.sum())
        free = np.flatnonzero(~hit & (self.owners < 0))[:count]
        others = np.flatnonzero(~hit & (self.owners >= 0))
        taken = np.concatenate([free, self._random.choice(others, count - len(free), replace=False)])
        self._fill(wanted, slots, missed, taken)
        return slots, missed


class BeladyBuffer(HotBuffer):
    """Evicts what is wanted again last; :meth:`resolve_knowing` is told when that is."""

    def resolve_knowing(self, wanted: Rows, next_use: Rows) -> Bools:
        """Which of ``wanted`` had to be fetched; ``next_use``: the step that wants each again."""
        if not hasattr(self, "_next_use"):
            self._next_use = np.full(len(self.owners), np.iinfo(np.int64).max)
        if len(wanted) == 0:
            return np.zeros(0, dtype=bool)
        slots, missed, hit = self._look_up(wanted)
        count = int(missed.sum())
        idle = np.flatnonzero(~hit)
        if 0 < count < len(idle):
            idle = idle[np.argpartition(self._next_use[idle], len(idle) - count)[len(idle) - count :]]
        self._fill(wanted, slots, missed, idle[:count])
        self._next_use[slots] = next_use
        return missed


BUFFERS: dict[str, Callable[[int], HotBuffer]] = {
    "lru": HotBuffer.empty,
    "fifo": FifoBuffer.empty,
    "random": lambda rows: RandomBuffer(np.full(rows, -1, dtype=np.int64), np.arange(rows)).seed(0),
    "belady": BeladyBuffer.empty,
}
"""Empty buffers of so many rows, by policy; the same names as in ``policies.POLICIES``."""
