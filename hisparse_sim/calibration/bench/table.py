"""Samples as a table: every figure beside the least time that the data sheet allows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from hisparse_sim.calibration.samples import Sample, Samples


def table(samples: Samples) -> Iterator[str]:
    """Lines for a person: the machine, the checks, then each benchmark's points. Only what was measured."""
    yield _machine(samples)
    for check in samples.checks:
        came_out = "passed" if check.passed else "FAILED"
        detail = f": {check.detail}" if check.detail else ""
        yield f"check {check.name}: {came_out}, {check.cases} comparisons ({check.reference}){detail}"
    for name, group in groupby(samples.samples, key=lambda s: s.name):
        points = list(group)
        yield ""
        yield name + _floor_note(points)
        measured = [p for p in points if p.status == "ok"]
        if measured:
            yield from _columns(measured)
        for point in points:
            if point.status != "ok":
                with_ = " ".join(f"{k}={v}" for k, v in point.parameters.items())
                yield f"  {point.status}{': ' + with_ if with_ else ''}: {point.reason}"
    if samples.notes:
        yield ""
        yield from samples.notes


def _machine(samples: Samples) -> str:
    hardware = samples.hardware
    parts = [hardware.gpu, f"driver {hardware.driver}" if hardware.driver else ""]
    if hardware.pcie_generation:
        parts.append(f"PCIe {hardware.pcie_generation} x{hardware.pcie_width}")
    if hardware.sm_clock_hz:
        parts.append(f"{hardware.sm_clock_hz / 1e6:.0f} MHz")
    if samples.build.nvcc:
        parts.append(f"nvcc {samples.build.nvcc}")
    return ", ".join(part for part in parts if part)


def _floor_note(points: list[Sample]) -> str:
    whys = list(dict.fromkeys(p.floor for p in points if p.floor))
    return f" (floor: {'; '.join(whys)})" if whys else ""


def _columns(points: list[Sample]) -> Iterator[str]:
    names = list(points[0].parameters)
    head = [*names, "median µs", "p10", "p90", "n", "floor µs", "of floor"]
    rows = [head]
    for p in points:
        median, low, high = (1e6 * (value or 0.0) for value in (p.median_s, p.p10_s, p.p90_s))
        floor = 1e6 * (p.floor_s or 0.0)
        rows.append(
            [
                *(str(p.parameters.get(name, "")) for name in names),
                *(f"{value:.2f}" for value in (median, low, high)),
                str(p.n),
                f"{floor:.2f}" if floor else "-",
                f"{median / floor:.2f}" if floor else "-",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
