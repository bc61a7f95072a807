"""Expert layers against tokens: one rising line a shape, all shapes of a table smoothed together.

A table has some 20 of 27 token counts a shape, and the skewed distributions are one draw of experts
each. Shapes that differ in one thing (hidden size, twice as many shards, the next skew) rise alike, so
each line borrows where its own rows are missing: a penalty holds the rises between two knots of
neighbours together, and another one bends, both in logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hisparse_sim.calibration.fitting import FOLDS, rounded
from hisparse_sim.cost.forms import Params

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Index = npt.NDArray[np.intp]

KNOTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 48.0, 96.0, 256.0, 768.0, 2048.0, 6144.0, 16384.0)
DISTRIBUTIONS = ("balanced", "power_law_1.01", "power_law_1.2")
_ALIKE, _BEND = 0.3, 0.03
"""Weights of the two penalties, chosen by five-fold error on H200's rows that may be fitted."""
_ROUNDS = 4
_FORGIVEN = 0.03


class Shape(NamedTuple):
    """What tells one line from another."""

    hidden: int
    inter: int
    experts: int
    topk: int
    tp: int
    ep: int
    distribution: str

    def neighbours(self) -> Iterator[tuple[Shape, float]]:
        """The shapes next to this one, and how much alike they are."""
        if self.hidden == 6144:
            yield self._replace(hidden=7168), 1.0
        yield self._replace(tp=2 * self.tp), 1.0
        yield self._replace(ep=2 * self.ep), 0.5
        if self.experts == 256:
            yield self._replace(experts=384), 0.5
        at = DISTRIBUTIONS.index(self.distribution)
        if at + 1 < len(DISTRIBUTIONS):
            yield self._replace(distribution=DISTRIBUTIONS[at + 1]), 0.5


class Lines:
    """The lines of many shapes at once."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        import scipy.sparse as sparse

        self.shapes = list(shapes)
        at = {shape: i for i, shape in enumerate(self.shapes)}
        width = len(KNOTS)
        rows: list[int] = []
        columns: list[int] = []
        values: list[float] = []

        def put(entries: Sequence[tuple[int, float]], row: int) -> None:
            for column, value in entries:
                rows.append(row)
                columns.append(column)
                values.append(value)

        row = 0
        for i, shape in enumerate(self.shapes):
            for other, likeness in shape.neighbours():
                if (j := at.get(other)) is None:
                    continue
                weight = _ALIKE * likeness
                for k in range(width - 1):
                    here, there = i * width + k, j * width + k
                    put(((here + 1, weight), (here, -weight), (there + 1, -weight), (there, weight)), row)
                    row += 1
            for k in range(1, width - 1):
                middle = i * width + k
                put(((middle - 1, _BEND), (middle, -2 * _BEND), (middle + 1, _BEND)), row)
                row += 1
        size = len(self.shapes) * width
        penalty = sparse.csr_matrix((values, (rows, columns)), shape=(row, size))
        self._penalty = penalty.T @ penalty
        self._size = size

    def _design(self, shape: Index, tokens: Array) -> Any:
        import numpy as np
        import scipy.sparse as sparse

        knots = np.log(np.array(KNOTS))
        at = np.clip(np.log(tokens), knots[0], knots[-1])
        low = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
        share = (at - knots[low]) / (knots[low + 1] - knots[low])
        row = np.arange(len(tokens))
        column = shape * len(knots) + low
        return sparse.csr_matrix(
            (np.r_[1 - share, share], (np.r_[row, row], np.r_[column, column + 1])),
            shape=(len(tokens), self._size),
        )

    def _solve(self, shape: Index, tokens: Array, seconds: Array) -> Array:
        import numpy as np
        import scipy.sparse as sparse
        from scipy.sparse.linalg import spsolve

        design = self._design(shape, tokens)
        goal = np.log(seconds)
        weight = np.ones(len(goal))
        found = np.zeros(self._size)
        for _ in range(_ROUNDS):
            weighted = design.T @ sparse.diags(weight)
            found = spsolve((weighted @ design + self._penalty).tocsc(), weighted @ goal)
            weight = _FORGIVEN / np.maximum(np.abs(design @ found - goal), _FORGIVEN)
        return np.asarray(found)

    def fit(self, shape: Index, tokens: Array, seconds: Array) -> list[Params]:
        """Parameters of each shape's ``rising_log_log``, in the order of ``shapes``."""
        import numpy as np

        logs = self._solve(shape, tokens, seconds).reshape(len(self.shapes), len(KNOTS))
        rising = np.exp(np.maximum.accumulate(logs, axis=1))
        return [rounded({"x": KNOTS, "y": tuple(line.tolist())}) for line in rising]

    def left_out(self, shape: Index, tokens: Array, seconds: Array) -> Array:
        """Relative error on each row when its fifth of the rows was not fitted."""
        import numpy as np

        fold = np.random.default_rng(0).permutation(len(tokens)) % FOLDS
        errors = np.empty(len(tokens))
        for i in range(FOLDS):
            out = fold == i
            found = self._solve(shape[~out], tokens[~out], seconds[~out])
            design = self._design(shape[out], tokens[out])
            errors[out] = np.exp(design @ found) / seconds[out] - 1.0
        return errors
