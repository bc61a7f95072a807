"""When requests or sessions arrive in an open loop: a family of arrival processes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from hisparse_sim.scenario.base import Record


class EvenSpec(Record):
    """One every 1 / ``rate_per_s``."""

    kind: Literal["even"] = "even"
    rate_per_s: PositiveFloat


class PoissonArrivalsSpec(Record):
    """Independent of each other: exponential gaps of mean 1 / ``rate_per_s``."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: PositiveFloat


class GammaSpec(Record):
    """Gaps from a gamma distribution of shape ``burstiness``, as ``vllm bench serve --burstiness``.

    1 is Poisson, less comes in bursts, more is steadier; the coefficient of variation of a gap is
    1 / sqrt(``burstiness``).
    """

    kind: Literal["gamma"] = "gamma"
    rate_per_s: PositiveFloat
    burstiness: PositiveFloat


class RateStep(Record):
    """``rate_per_s`` for ``duration_s``."""

    duration_s: PositiveFloat
    rate_per_s: NonNegativeFloat


class PiecewiseSpec(Record):
    """A schedule of rates, one after the other; over and over, or ending with the last.

    ``burstiness``: as in ``gamma``, of gaps counted in expected arrivals.
    """

    kind: Literal["piecewise"] = "piecewise"
    steps: tuple[RateStep, ...] = Field(min_length=1)
    repeat: bool = False
    burstiness: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _something_arrives(self) -> PiecewiseSpec:
        if not any(step.rate_per_s for step in self.steps):
            raise ValueError("all rates are 0; nothing would ever arrive")
        return self


class DailySpec(Record):
    """A day: the rate swings around its mean as a sine does, highest at ``peak_hour``.

    At the peak it is mean x (1 + ``swing``), twelve hours later mean x (1 - ``swing``). The first
    second is ``start_hour`` o'clock.
    """

    kind: Literal["daily"] = "daily"
    mean_rate_per_s: PositiveFloat
    swing: float = Field(default=0.5, ge=0, le=1)
    peak_hour: float = Field(default=15.0, ge=0, lt=24)
    start_hour: float = Field(default=0.0, ge=0, lt=24)
    burstiness: PositiveFloat = 1.0


ArrivalsSpec = Annotated[
    EvenSpec | PoissonArrivalsSpec | GammaSpec | PiecewiseSpec | DailySpec, Field(discriminator="kind")
]


def endless(spec: ArrivalsSpec) -> bool:
    """Whether arrivals go on for ever."""
    return not isinstance(spec, PiecewiseSpec) or spec.repeat
