"""Sampled selections: traces of positions drawn from the process of ``reuse.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.locality.reuse import Process, shape_in

Positions = NDArray[np.int32]

_ROUNDS = 30
_OLDEST = 1 << 22
"""Rows not selected for so many steps are kept at this age."""


class Selection:
    """One layer's selections, step after step, each of exactly ``topk_rows`` different positions.

    Every row is selected with the probability that its age (steps since it was selected last) gives it,
    scaled so that they sum to the top-k; systematic sampling (W. Madow, Ann. Math. Stat. 20 (1949) 333)
    then takes exactly that many. The first step is as if the process had always run. Each step may add
    rows at the context's end; a new row counts as just selected.
    """

    def __init__(
        self, process: Process, *, topk_rows: int, context_rows: int, random: np.random.Generator
    ) -> None:
        self._topk = min(topk_rows, context_rows)
        self._shape = shape_in(process, context_rows / self._topk)
        self._random = random
        self._step = 0
        ages = self._steady_ages(context_rows)
        random.shuffle(ages)
        self._last = -ages
        self._table = self._hazards_to(int(ages.max()) + 1)

    def step(self, new_rows: int = 0) -> Positions:
        """The next step's positions, in rising order, after ``new_rows`` more in the context."""
        if new_rows:
            self._last = np.concatenate([self._last, np.full(new_rows, self._step - 1)])
        ages = self._step - self._last
        if (oldest := int(ages.max())) >= len(self._table):
            self._table = self._hazards_to(2 * oldest)
        chosen = self._exactly(self._table[ages])
        self._last[chosen] = self._step
        self._step += 1
        return chosen.astype(np.int32)

    def _steady_ages(self, rows: int) -> NDArray[np.int64]:
        """Ages as they are distributed in the long run: topk * s(age - 1) rows of each."""
        bound = 1 << 12
        while True:
            each = self._topk * self._shape.share(np.arange(bound, dtype=np.float64))
            upto = np.cumsum(each)
            if each[-1] < 1e-6 or bound >= _OLDEST:
                break
            bound <<= 2
        # Rows that ought to be older still are kept at the largest age.
        ages = np.searchsorted(upto, np.arange(rows) + 0.5) + 1
        return np.minimum(ages, bound).astype(np.int64)

    def _hazards_to(self, bound: int) -> NDArray[np.float64]:
        """Probability that a row is selected that was selected last 0, 1, ... ``bound`` - 1 steps ago."""
        share = np.maximum(self._shape.share(np.arange(bound, dtype=np.float64)), 1e-300)
        return np.concatenate(([0.0], np.clip(1.0 - share[1:] / share[:-1], 1e-9, 1.0)))

    def _exactly(self, chance: NDArray[np.float64]) -> NDArray[np.int64]:
        """Indices of top-k different rows, each with about its chance."""
        for _ in range(_ROUNDS):
            sure = chance >= 1.0
            rest, lacking = chance[~sure].sum(), self._topk - sure.sum()
            if abs(rest - lacking) <= 1e-6 * self._topk:
                break
            chance[~sure] = np.minimum(1.0, chance[~sure] * (lacking / rest))
        upto = np.cumsum(chance)
        at = np.searchsorted(upto, (np.arange(self._topk) + self._random.random()) * (upto[-1] / self._topk))
        at = np.unique(np.minimum(at, len(upto) - 1))
        if len(at) < self._topk:  # rounding took one twice
            others = np.setdiff1d(np.arange(len(upto)), at)
            at = np.concatenate([at, self._random.choice(others, self._topk - len(at), replace=False)])
        return at


def sample(
    processes: Sequence[Process], *, topk_rows: int, context_rows: int, steps: int, seed: int, grows: int = 1
) -> Positions:
    """Positions [steps, layers, top-k] of layers with these processes; the context grows each step."""
    made = np.empty((steps, len(processes), min(topk_rows, context_rows)), dtype=np.int32)
    for layer, process in enumerate(processes):
        random = np.random.default_rng((seed, layer))
        layer_of = Selection(process, topk_rows=topk_rows, context_rows=context_rows, random=random)
        for step in range(steps):
            made[step, layer] = layer_of.step(grows if step else 0)
    return made
