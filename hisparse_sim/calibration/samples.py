"""A samples file, ``hisparse-sim/samples/1``: what a benchmark run measured, before any fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt

from hisparse_sim.cost.hardware import Build, Hardware
from hisparse_sim.cost.profile import read_json
from hisparse_sim.cost.sample import Sample
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.validate import build

__all__ = ["SCHEMA", "Check", "Sample", "Samples", "read_samples", "write_samples"]

SCHEMA = "hisparse-sim/samples/1"


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
