"""Poisoned and guarded memory, and the count of what did not come out as it should."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.gpu import GPU, Library, Memory

POISONS = (0xFF, 0xA5)
"""As e4m3, bfloat16 or float: NaN, then a number; as int32: -1, then a large negative one."""

GUARD_BYTES = 4096


@dataclass
class Bench:
    """Where a check runs and what it has seen. ``full``: sizes of production, for a GPU."""

    gpu: Library
    poison: int
    full: bool
    cases: int = 0
    mismatches: int = 0
    worst: str = ""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def guarded(self, nbytes: int, space: int = GPU) -> Guarded:
        """Poisoned memory between guard pages."""
        whole = self.gpu.empty(nbytes + 2 * GUARD_BYTES, space)
        self.gpu.set(whole, self.poison)
        return Guarded(whole)

    def content(self, memory: Memory, dtype: Any, shape: tuple[int, ...], what: str) -> NDArray[Any]:
        """What guarded memory holds, after a look at its guard pages."""
        assert isinstance(memory, Guarded)
        for offset in (0, GUARD_BYTES + memory.nbytes):
            guard = self.gpu.read(memory.whole, np.uint8, GUARD_BYTES, offset)
            self.same(guard, self.poisoned((GUARD_BYTES,), np.uint8), f"{what}, guard page")
        return self.gpu.read(memory, dtype, shape)

    def poisoned(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """What untouched memory reads as."""
        made = np.empty(shape, dtype)
        made.reshape(-1).view(np.uint8)[:] = self.poison
        return made

    def same(self, found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
        """Count elements that differ."""
        wrong = int((found != wanted).sum()) if found.shape == wanted.shape else max(wanted.size, 1)
        self._count(wrong, f"{what}: {wrong} of {wanted.size} differ")

    def close(self, found: NDArray[Any], wanted: NDArray[Any], most: float, what: str) -> None:
        """The norm of the difference over the norm of what is wanted; NaN is never close."""
        error = float(np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-30))
        self._count(int(not error <= most), f"{what}: relative error {error:.2g}, allowed {most:g}")

    def _count(self, wrong: int, what: str) -> None:
        self.cases += 1
        self.mismatches += wrong
        if wrong and not self.worst:
            self.worst = f"{what} (poison {self.poison:#04x})"


class Guarded(Memory):
    """Memory between two guard pages; :meth:`Bench.guarded` makes it, :meth:`Bench.content` reads it."""

    def __init__(self, whole: Memory) -> None:
        super().__init__(whole.address + GUARD_BYTES, whole.nbytes - 2 * GUARD_BYTES, whole.space)
        self.whole = whole
