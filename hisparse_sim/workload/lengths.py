"""How long prompts, outputs and pauses are: one sampler a distribution of ``scenario.distributions``.

A sampler takes a generator and a count and gives that many values, of which the first are the same
whatever the count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hisparse_sim.scenario.distributions import (
    Distribution,
    FixedSpec,
    LognormalSpec,
    MixtureSpec,
    QuantilesSpec,
    UniformSpec,
    ZipfSpec,
    quantile_level,
)
from hisparse_sim.scenario.workload import MAX_COUNT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Varies = float | Distribution


def draw(spec: Varies, rng: np.random.Generator, count: int) -> Floats:
    """``count`` values of a plain number or a distribution, in the unit of its field; finite."""
    if isinstance(spec, (int, float)):
        return np.full(count, float(spec))
    return _SAMPLERS[type(spec)](spec, rng, count)


def draw_counts(spec: Varies, rng: np.random.Generator, count: int) -> Ints:
    """The same as whole numbers (of tokens, of turns), at least 1."""
    # A wide lognormal has values that no 64 bits hold.
    return np.clip(np.rint(draw(spec, rng, count)), 1, MAX_COUNT).astype(np.int64)


def jittered_tokens(
    rng: np.random.Generator, mean_tokens: int, jitter: float, count: int
) -> npt.NDArray[np.int64]:
    """``count`` lengths in tokens, uniform within ``mean_tokens`` x (1 +- ``jitter``), at least 1.

    A jitter of 0.2 is what vLLM's benchmark calls ``--random-range-ratio 0.2``.
    """
    if not jitter:
        return np.full(count, mean_tokens, dtype=np.int64)
    low = max(1, round(mean_tokens * (1 - jitter)))
    return rng.integers(low, round(mean_tokens * (1 + jitter)), size=count, endpoint=True, dtype=np.int64)


class Quantiles:
    """The inverse of a distribution known at some quantiles.

    The logarithm of the value is linear in the logit of the quantile, log(u / (1 - u)), between two
    known ones; ``min`` and ``max`` stand at 0.5 / ``samples`` and 1 - 0.5 / ``samples``. Below the first
    and above the last known quantile the value stays.
    """

    def __init__(self, spec: QuantilesSpec) -> None:
        levels = np.array([quantile_level(name, spec.samples) for name in spec.points], dtype=np.float64)
        self._logits = np.log(levels / (1 - levels))
        self._logs = np.log(np.array(list(spec.points.values())))

    def at(self, levels: Floats) -> Floats:
        """Values at quantiles in [0, 1)."""
        levels = np.clip(levels, 1e-12, 1 - 1e-12)
        return np.asarray(np.exp(np.interp(np.log(levels / (1 - levels)), self._logits, self._logs)))


def _fixed(spec: FixedSpec, rng: np.random.Generator, count: int) -> Floats:
    return np.full(count, float(spec.value))


def _uniform(spec: UniformSpec, rng: np.random.Generator, count: int) -> Floats:
    return rng.uniform(spec.low, spec.high, count)


def _lognormal(spec: LognormalSpec, rng: np.random.Generator, count: int) -> Floats:
    with np.errstate(over="ignore"):
        values = np.minimum(spec.median * np.exp(spec.sigma * rng.standard_normal(count)), MAX_COUNT)
    return np.clip(values, spec.low, spec.high) if spec.low or spec.high else values


def _zipf(spec: ZipfSpec, rng: np.random.Generator, count: int) -> Floats:
    """The weight of k is the integral of x^-exponent from k to k + 1: inverted, not summed up."""
    low, end, levels = float(spec.low), spec.high + 1.0, rng.random(count)
    if abs(spec.exponent - 1) < 1e-9:
        values = low * (end / low) ** levels
    else:
        power = 1 - spec.exponent
        values = (low**power + levels * (end**power - low**power)) ** (1 / power)
    return np.clip(np.floor(values), spec.low, spec.high)


def _quantiles(spec: QuantilesSpec, rng: np.random.Generator, count: int) -> Floats:
    return Quantiles(spec).at(rng.random(count))


def _mixture(spec: MixtureSpec, rng: np.random.Generator, count: int) -> Floats:
    """Each part has a generator of its own: more values of one leave those of the others as they are."""
    choice, *of_parts = rng.spawn(len(spec.parts) + 1)
    ends = np.cumsum([part.weight for part in spec.parts])
    part_of = np.searchsorted(ends / ends[-1], choice.random(count), side="right")
    values = np.empty(count)
    for index, (part, part_rng) in enumerate(zip(spec.parts, of_parts, strict=True)):
        here = part_of == index
        values[here] = draw(part.of, part_rng, int(here.sum()))
    return values


_SAMPLERS: dict[type, Callable[[Any, np.random.Generator, int], Floats]] = {
    FixedSpec: _fixed,
    UniformSpec: _uniform,
    LognormalSpec: _lognormal,
    ZipfSpec: _zipf,
    QuantilesSpec: _quantiles,
    MixtureSpec: _mixture,
}
