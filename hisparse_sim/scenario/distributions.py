"""How a length or a time varies: a plain number, or one of a family of distributions.

Everywhere a field of tokens, turns or seconds takes a distribution, a plain number still means that
number, always.
"""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Tag,
    field_validator,
    model_validator,
)

from hisparse_sim.scenario.base import Record


class FixedSpec(Record):
    """Always ``value``."""

    kind: Literal["fixed"] = "fixed"
    value: NonNegativeFloat


class UniformSpec(Record):
    """Anything from ``low`` to ``high``, all equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: NonNegativeFloat
    high: NonNegativeFloat

    @model_validator(mode="after")
    def _in_order(self) -> UniformSpec:
        _check_order(self.low, self.high)
        return self


class LognormalSpec(Record):
    """``median`` x exp(``sigma`` x a standard normal number), cut off at ``low`` and ``high``."""

    kind: Literal["lognormal"] = "lognormal"
    median: PositiveFloat
    sigma: NonNegativeFloat
    low: NonNegativeFloat | None = None
    high: NonNegativeFloat | None = None

    @model_validator(mode="after")
    def _in_order(self) -> LognormalSpec:
        _check_order(self.low or 0.0, self.high)
        return self


class ZipfSpec(Record):
    """Whole numbers from ``low`` to ``high``, k with a weight that falls as k to the ``exponent``."""

    kind: Literal["zipf"] = "zipf"
    low: PositiveInt = 1
    high: PositiveInt
    exponent: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> ZipfSpec:
        _check_order(self.low, self.high)
        return self


class QuantilesSpec(Record):
    """What was measured: values at quantiles, as ``{min: 64, p50: 705, p99: 65875, max: 697351}``.

    Between them the logarithm of the value is linear in the logit of the quantile, so that a tail goes
    on as it was going. ``min`` and ``max`` are the extremes of ``samples`` values.
    """

    kind: Literal["quantiles"] = "quantiles"
    points: dict[str, PositiveFloat]
    samples: PositiveInt = 10_000

    @field_validator("points")
    @classmethod
    def _known_points(cls, points: dict[str, float]) -> dict[str, float]:
        levels = {name: quantile_level(name, 10**9) for name in points}
        if unknown := [name for name, level in levels.items() if level is None]:
            raise ValueError(f"{unknown[0]!r} is not min, max or a percentile such as p50 or p99.9")
        ordered = sorted(points, key=lambda name: levels[name] or 0.0)
        for before, after in itertools.pairwise(ordered):
            if points[before] > points[after]:
                raise ValueError(f"{before} is {points[before]:g}, more than {after}, {points[after]:g}")
        if len(points) < 2:
            raise ValueError("needs two quantiles or more")
        return {name: points[name] for name in ordered}


class MixturePart(Record):
    """One population of a mixture."""

    weight: PositiveFloat
    of: Annotated[
        Annotated[NonNegativeFloat, Tag("number")] | Annotated[Distribution, Tag("distribution")],
        Discriminator(lambda value: which(value)),
    ]


class MixtureSpec(Record):
    """Several populations: each value comes from one of ``parts``, drawn by weight."""

    kind: Literal["mixture"] = "mixture"
    parts: tuple[MixturePart, ...] = Field(min_length=1)


Distribution = Annotated[
    FixedSpec | UniformSpec | LognormalSpec | ZipfSpec | QuantilesSpec | MixtureSpec,
    Field(discriminator="kind"),
]


def which(value: Any) -> str:
    """The branch a value takes: a mapping is a distribution, all else should be a number."""
    return "distribution" if isinstance(value, (dict, Record)) else "number"


Count = Annotated[
    Annotated[PositiveInt, Tag("number")] | Annotated[Distribution, Tag("distribution")],
    Discriminator(which),
]
"""Tokens or turns: a whole number from 1 on, or a distribution (rounded, at least 1)."""

Seconds = Annotated[
    Annotated[NonNegativeFloat, Tag("number")] | Annotated[Distribution, Tag("distribution")],
    Discriminator(which),
]
"""A time from 0 on, or a distribution of it."""


def quantile_level(name: str, samples: int) -> float | None:
    """The quantile that ``p99.9``, ``min`` or ``max`` of ``samples`` values stands for; none: no such."""
    if name in ("min", "max"):
        return 0.5 / samples if name == "min" else 1 - 0.5 / samples
    match = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", name)
    level = float(match[1]) / 100 if match else 0.0
    return level if level > 0 else None


def _check_order(low: float, high: float | None) -> None:
    if high is not None and low > high:
        raise ValueError(f"low is {low:g}, more than high, {high:g}")
