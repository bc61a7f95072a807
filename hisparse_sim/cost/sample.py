"""One measured point: what was run, how long it took, how often it was timed."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from hisparse_sim.scenario.base import Record

Parameter = StrictInt | StrictFloat | StrictStr


class Sample(Record):
    """One point of one benchmark: the time of one call, from ``n`` timed repetitions.

    ``parameters`` are what it was run with (rows, row_bytes, ctas, …); points of one ``name`` have the
    same ones. With ``status`` other than ``ok`` there are no figures, and ``reason`` says why:
    ``truncated`` by the time budget, ``unsupported`` on this GPU, ``skipped``, or ``failed``.
    """

    name: str = Field(min_length=1)
    parameters: dict[str, Parameter] = Field(default={})
    unit: Literal["s"]
    median_s: PositiveFloat | None = None
    p10_s: PositiveFloat | None = None
    p90_s: PositiveFloat | None = None
    n: NonNegativeInt = 0
    floor_s: NonNegativeFloat | None = None
    """What it would take at datasheet rates; ``floor`` says of what."""
    floor: str = ""
    cold: bool = True
    """Whether sources and destinations rotate through more than the L2 holds."""
    status: Literal["ok", "skipped", "failed", "truncated", "unsupported"]
    reason: str = ""

    @model_validator(mode="after")
    def _figures_fit_the_status(self) -> Sample:
        figures = (self.p10_s, self.median_s, self.p90_s)
        if self.status != "ok":
            if any(f is not None for f in figures):
                raise ValueError(f"{self.name} is {self.status}, yet has figures")
            if not self.reason:
                raise ValueError(f"{self.name} is {self.status} without a reason")
            return self
        if self.n < 1 or any(f is None for f in figures):
            raise ValueError(f"{self.name} is ok, so it needs median_s, p10_s, p90_s and n of at least 1")
        low, middle, high = (f or 0.0 for f in figures)
        if not low <= middle <= high:
            raise ValueError(
                f"{self.name}: p10_s {low:g}, median_s {middle:g} and p90_s {high:g} must not fall"
            )
        return self
