"""A samples file, ``hisparse-sim/samples/1``: what a benchmark run measured, before any fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

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

from hisparse_sim.cost.hardware import Build, Hardware
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.validate import build
from hisparse_sim.scenario.yaml_file import check_regular

SCHEMA = "hisparse-sim/samples/1"

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


class Check(Record):
    """A comparison with an exact or float64 reference, made before anything was timed."""

    name: str
    reference: str
    cases: NonNegativeInt
    mismatches: NonNegativeInt = 0
    passed: bool
    detail: str = ""


class Samples(Record):
    """All of a run of the benchmark suite; written again after each benchmark."""

    schema_: Literal["hisparse-sim/samples/1"] = Field(alias="schema", default="hisparse-sim/samples/1")
    created: str = ""
    """UTC, ISO 8601."""
    hardware: Hardware
    build: Build = Build()
    checks: tuple[Check, ...] = ()
    samples: tuple[Sample, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[Sample, ...]:
        """The points that have figures."""
        return tuple(s for s in self.samples if s.status == "ok")


def read_samples(path: str | Path) -> Samples:
    """A samples file. Raises ``InputError`` with file and field for anything that cannot be used."""
    file = Path(path)
    raw = read_json(file, SCHEMA)
    return build(Samples, raw, file=str(file))


def write_samples(path: str | Path, samples: Samples) -> None:
    """Write ``samples``, whole or not at all (a file beside it takes its place when complete)."""
    file = Path(path)
    text = json.dumps(samples.model_dump(mode="json", by_alias=True, exclude_defaults=False), indent=1)
    beside = file.with_name(file.name + ".part")
    try:
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(file)) from None


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """The object in a JSON file that says it follows ``schema``. Raises ``InputError``."""
    check_regular(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON (truncated?): {error}", where=str(path)) from None
    if not isinstance(raw, dict):
        raise InputError(f"holds a {type(raw).__name__}, not an object with a schema", where=str(path))
    found = raw.get("schema")
    if found != schema:
        raise InputError(f"schema is {found!r}; this version reads {schema!r}", where=str(path))
    return raw
