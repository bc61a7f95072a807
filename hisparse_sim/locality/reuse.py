"""How long until a row that attention selected is selected again, and what follows for any window.

The process, for one layer: each step selects ``topk_rows`` of ``context_rows`` rows. A row selected now
is selected again ``g`` steps later with a probability that depends on ``g`` alone, independently of its
past (a renewal process). The share of selected rows that were in none of the last ``g`` selections is

    s(0) = 1,    s(g) = (1 - step_overlap) * g**-tail_exponent * exp(-(g - 1) / cutoff)

``step_overlap`` is the share that the step before selected as well. The power law is this package's
choice; how well it does is in the locality files. The cutoff is not free: every row of the context is
selected again some day, on average after context / top-k steps, so s sums to that (Kac's lemma: M. Kac,
Bull. AMS 53 (1947) 1002). Without a tail (exponent 0) and with an overlap of top-k / context this is
selection at random.

Rows that differ within ``g`` steps are topk * (s(0) + ... + s(g - 1)), since each step adds those of its
rows that the window lacks (P. Denning, "The working set model for program behavior", CACM 11 (1968)
323; Denning and Schwartz, CACM 15 (1972) 191).
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EACH = 4096
"""Ages up to here are kept one by one, older ones 2 % apart."""
_OLDEST = 1e8
_AGES: Floats = np.concatenate(
    (np.arange(_EACH + 1.0), np.geomspace(_EACH, _OLDEST, round(np.log(_OLDEST / _EACH) / 0.02))[1:])
)


class Process(NamedTuple):
    """What one layer's selection depends on; see the module's text."""

    step_overlap: float
    tail_exponent: float


class Shape(NamedTuple):
    """A process in a context: s(g) = ``first`` * g**-exponent * exp(-(g - 1) / cutoff) from age 1 on."""

    first: float
    exponent: float
    cutoff: float

    def share(self, ages: Floats) -> Floats:
        """s at these ages (any shape), 1 at age 0."""
        late = np.maximum(ages, 1.0)
        with np.errstate(under="ignore"):
            tail = self.first * late**-self.exponent * np.exp(-(late - 1.0) / self.cutoff)
        return np.where(ages < 1.0, 1.0, tail)


class Reuse(Struct, frozen=True, dict=True):
    """Windows of the process, by age in steps; arrays [ages].

    ``share``: of a step's rows that no step within ``age`` looked up. ``distinct``: rows that ``age``
    consecutive steps look up together. ``rows``: what one step looks up.
    """

    rows: float
    context_rows: float
    ages: Floats
    share: Floats
    distinct: Floats

    def distinct_in(self, steps: float) -> float:
        """Different rows that so many consecutive steps look up."""
        return float(np.interp(steps, self.ages, self.distinct))

    def window_of(self, rows: float) -> float:
        """Steps whose different rows are so many."""
        return float(np.interp(rows, self.distinct, self.ages))

    @cached_property
    def returns(self) -> Floats:
        """Probability that a row just looked up is looked up again exactly ``age`` steps later."""
        return np.concatenate(([0.0], self.share[:-1] - self.share[1:]))

    @cached_property
    def renewals(self) -> Floats:
        """Probability that a row just looked up is looked up ``age`` steps later, whatever happens between.

        For ages 0 to 4096, by the renewal equation u(t) = sum of f(g) u(t - g).
        """
        f = self.returns[1 : _EACH + 1]
        u = np.zeros(_EACH + 1)
        u[0] = 1.0
        for t in range(1, _EACH + 1):
            u[t] = f[:t] @ u[t - 1 :: -1] if t > 1 else f[0]
        return u

    def verified(self, *, queries: int, accepted: float) -> Reuse:
        """The same selection when a step looks up the union of ``queries`` tokens' rows.

        Speculative decoding verifies ``queries`` tokens a step (drafts + 1) and keeps ``accepted`` of them
        on average; the next step begins after those. Drafted tokens are taken to select as accepted ones
        do. vLLM's resolver looks up each row of the union once (PR 53781).
        """
        if queries == 1 and accepted == 1.0:
            return self
        # Steps 1 to j cover queries + (j - 1) * accepted consecutive tokens.
        tokens = np.where(self.ages < 1.0, 0.0, queries + (self.ages - 1.0) * accepted)
        distinct = np.interp(tokens, self.ages, self.distinct)
        rows = float(distinct[1])
        following = np.interp(queries + self.ages * accepted, self.ages, self.distinct)
        share = np.clip((following - distinct) / rows, 0.0, 1.0)
        return Reuse(rows, self.context_rows, self.ages, share, distinct)


def reuse(process: Process, *, topk_rows: int, context_rows: float) -> Reuse:
    """Windows of ``process`` for steps that select ``topk_rows`` of ``context_rows`` rows."""
    rows = min(float(topk_rows), float(context_rows))
    shape = shape_in(process, context_rows / rows)
    share = shape.share(_AGES)
    return Reuse(rows, float(context_rows), _AGES, share, rows * _sums(shape, share))


@lru_cache(maxsize=4096)
def shape_in(process: Process, context_over_topk: float) -> Shape:
    """The process where the context is ``context_over_topk`` times the top-k.

    A context that hardly exceeds the top-k bounds the overlap from below: what is not selected again at
    once is at most what the step before left out.
    """
    overlap, exponent = process
    wanted = context_over_topk - 1.0  # of the sum from age 1 on
    first = min(1.0 - overlap, wanted)
    if wanted <= first or first <= 0.0:
        return Shape(max(first, 0.0), exponent, 1e-3)
    low, high = -7.0, 25.0

    def total(log_cutoff: float) -> float:
        shape = Shape(first, exponent, float(np.exp(log_cutoff)))
        return float(_sums(shape, shape.share(_AGES))[-1]) - 1.0

    if total(high) <= wanted:  # a steep tail: some rows never come back
        return Shape(first, exponent, float(np.exp(high)))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < wanted else (low, middle)
    return Shape(first, exponent, float(np.exp(high)))


def _sums(shape: Shape, share: Floats) -> Floats:
    """Sum of s over all ages below each of ``_AGES``; beyond single ages by the trapezoid rule.

    The rule's end terms follow from Euler and Maclaurin: sum over [a, b) = integral + (s(a) - s(b)) / 2.
    """
    sums = np.zeros(len(share))
    np.cumsum(share[:_EACH], out=sums[1 : _EACH + 1])
    steps = np.diff(_AGES[_EACH:])
    old = share[_EACH:]
    pieces = steps * (old[1:] + old[:-1]) / 2 + (old[:-1] - old[1:]) / 2
    np.cumsum(pieces, out=sums[_EACH + 1 :])
    sums[_EACH + 1 :] += sums[_EACH]
    return sums
