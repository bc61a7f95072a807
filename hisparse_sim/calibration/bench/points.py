"""One point of a benchmark: what is launched, how often, and what it could take at best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.abi import Device, Op
from hisparse_sim.calibration.bench.gpu import UNSUPPORTED, GpuError, Library
from hisparse_sim.calibration.bench.machine import Rates
from hisparse_sim.calibration.samples import Sample

Parameters = dict[str, int | float | str]

SLICE_S = 300e-6
"""A timed launch lasts at least so long: hundreds of times the resolution of an event."""


MOST_S = 1.0
"""A point stops when so much wall time is gone, with the launches that it has."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time something can take, and why."""

    seconds: float
    why: str


@dataclass(frozen=True)
class Ground:
    """Where benchmarks run. ``rates`` are missing for a GPU whose data sheet is not known here."""

    gpu: Library
    device: Device
    host_bytes: int
    rates: Rates | None
    flush: Op | None = None
    """A pass over more than the L2 holds."""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(17))

    def floor(
        self, *, link_bytes: float = 0, hbm_bytes: float = 0, fp8_flop: float = 0, bf16_flop: float = 0
    ) -> Floor | None:
        """The longest of these at the data sheet's rates; none where they are not known."""
        if self.rates is None:
            return None
        parts = [
            Floor(link_bytes / self.rates.link_bytes_per_s, "bytes over the host link's rate"),
            Floor(hbm_bytes / self.rates.hbm_bytes_per_s, "bytes over the memory's rate"),
            Floor(fp8_flop / self.rates.fp8_flops, "fp8 operations over the tensor cores' rate"),
            Floor(bf16_flop / self.rates.bf16_flops, "bf16 operations over the tensor cores' rate"),
        ]
        return max(parts, key=lambda part: part.seconds)


@dataclass(frozen=True)
class Point:
    """``calls`` calls a slice, so the time of one is the slice's over ``calls``.

    ``cold``: the L2 is emptied ahead of each slice, in which no call reads what another has read.

    ``measure``: seconds of each call by another way than timed slices. ``verify`` says afterwards what is
    wrong with the results, or nothing; it gets the number of slices that ran.
    """

    parameters: Parameters
    ops: list[Op] = field(default_factory=list)
    calls: int = 1
    floor: Floor | None = None
    slices: int = 1
    launches: int = 31
    warmup: int = 3
    graphs: bool = True
    cold: bool = True
    stream: int | None = None
    """Take this stream's time; else the longer of both."""
    measure: Callable[[], NDArray[np.float64]] | None = None
    verify: Callable[[int], str] | None = None

    def seconds(self, ground: Ground) -> NDArray[np.float64]:
        """Seconds of one call, once for each launch. Raises ``GpuError`` and ``Unsound``."""
        if self.measure is not None:
            return self.measure()
        timed = ground.gpu.time(
            self.ops,
            slices=self.slices,
            launches=self.launches,
            warmup=self.warmup,
            graphs=self.graphs,
            most_s=MOST_S,
            before=ground.flush if self.cold else None,
        )
        if timed.late:
            raise Unsound(f"{timed.late} launches began before all of them was queued")
        taken = timed.seconds.max(axis=0) if self.stream is None else timed.seconds[self.stream]
        if self.verify and (wrong := self.verify(len(taken) + self.warmup)):
            raise Unsound(wrong)
        return np.asarray(taken / self.calls)


class Unsound(Exception):
    """A timing that must not be used, and why."""


Benchmark = Callable[[Ground], Iterator[Point]]


def calls_for(estimate_s: float, *, most: int = 64) -> int:
    """How many calls of about ``estimate_s`` fill a slice."""
    return max(1, min(most, math.ceil(SLICE_S / estimate_s)))


def take(ground: Ground, name: str, point: Point) -> Sample:
    """Time a point; a failure is a sample without figures. Raises ``GpuError`` when the GPU is lost."""
    try:
        seconds = point.seconds(ground)
    except GpuError as error:
        if error.fatal:
            raise
        status = "unsupported" if error.code == UNSUPPORTED else "failed"
        return untaken(name, point.parameters, status, str(error))
    except Unsound as error:
        return untaken(name, point.parameters, "failed", str(error))
    low, middle, high = (float(q) for q in np.quantile(seconds, (0.1, 0.5, 0.9)))
    if low <= 0:
        return untaken(name, point.parameters, "failed", "shorter than the clock can tell")
    return Sample.model_validate(
        {
            "name": name,
            "parameters": point.parameters,
            "unit": "s",
            "median_s": middle,
            "p10_s": low,
            "p90_s": high,
            "n": len(seconds),
            "floor_s": point.floor.seconds if point.floor else None,
            "floor": point.floor.why if point.floor else "",
            "cold": point.cold,
            "status": "ok",
        }
    )


def untaken(name: str, parameters: Parameters, status: str, reason: str) -> Sample:
    """A point without figures."""
    return Sample.model_validate(
        {"name": name, "parameters": parameters, "unit": "s", "status": status, "reason": reason}
    )
