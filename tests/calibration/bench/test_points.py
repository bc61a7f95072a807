"""Every point of every benchmark is described soundly: nothing outside its memory, and a floor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from footprints import footprint

from hisparse_sim.calibration.bench.abi import KINDS, Device, Op, op
from hisparse_sim.calibration.bench.benchmarks import GROUPS, Group, points_of, resolver
from hisparse_sim.calibration.bench.gpu import GPU, Library, Memory, Timed
from hisparse_sim.calibration.bench.machine import RATES
from hisparse_sim.calibration.bench.points import Ground, Point, take

ROOT = Path(__file__).resolve().parents[3]
H200 = Device(name=b"NVIDIA H200", sms=132, l2_bytes=60 << 20, memory_bytes=143_771 << 20, major=9)


class Planned:
    """A library that runs nothing, looks at what it would touch, and pretends a time."""

    def __init__(self, library: Library) -> None:
        self.gpu = library
        self.ops = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gpu, name)

    def empty(self, nbytes: int, space: int = GPU) -> Memory:
        made = self.gpu.empty(nbytes, space)
        if nbytes < 1 << 20:  # lists that a kernel would have written: empty
            self.gpu.set(made, 0)
        return made

    def run(self, ops: Sequence[Op]) -> None:
        owned = np.array(sorted((m.address, m.address + m.nbytes) for m in self.gpu._owned))
        for one in ops:
            for what, begin, nbytes in footprint(one):
                if nbytes == 0:
                    continue
                at = int(np.searchsorted(owned[:, 0], begin, side="right")) - 1
                inside = at >= 0 and begin + nbytes <= owned[at, 1]
                assert inside, f"{KINDS[one.kind]}: {what}, {nbytes} bytes, leaves its memory"
        self.ops += len(ops)

    def time(self, ops: Sequence[Op], *, slices: int, launches: int, graphs: bool, **_: Any) -> Timed:
        self.run(ops[:: max(1, len(ops) // 12)])
        assert {one.slice for one in ops} == set(range(slices))
        if not graphs:
            issued = [one for one in ops if KINDS[one.kind] != "copy_batch"]
            assert len(issued) <= 400 * slices, "more than a stream's queue holds"
        else:
            assert "copy_batch" not in {KINDS[one.kind] for one in ops}, "batches cannot be captured"
        return Timed(np.ones((2, launches)), 0)

    def issue(self, ops: Sequence[Op], *, repeats: int) -> np.ndarray:
        self.run(ops)
        return np.ones(repeats)


@pytest.fixture
def ground(emulation: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setattr(resolver, "LAYERS", 2)
    monkeypatch.setattr(resolver, "BATCHES", (1, 24))
    yield Ground(Planned(emulation), H200, 2 << 30, RATES["h200"])  # type: ignore[arg-type]
    emulation.release()


DOCUMENTED = {
    name: row.split("|")[2]
    for row in (ROOT / "docs/howto/calibration.md").read_text(encoding="utf-8").splitlines()
    if row.startswith("| `")
    for name in re.findall(r"`(\w+)`", row.split("|")[1])
}


def test_the_documents_name_every_benchmark() -> None:
    assert set(DOCUMENTED) == {name for group in GROUPS for name in group.benchmarks}


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_each_point_stays_inside_its_memory(group: Group, ground: Ground) -> None:
    parameters: dict[str, tuple[str, ...]] = {}
    seen = set()
    for name, point in points_of(group, ground):
        object.__setattr__(point, "verify", None)
        sample = take(ground, name, point)
        assert sample.status == "ok", sample.reason
        assert parameters.setdefault(name, tuple(point.parameters)) == tuple(point.parameters)
        assert all(re.search(rf"\b{parameter}\b", DOCUMENTED[name]) for parameter in point.parameters), name
        key = (name, *point.parameters.values())
        assert key not in seen, f"{key} is there twice"
        seen.add(key)
        floorless = name in ("launch", "copy_issue", "interference")
        assert floorless or (sample.floor_s is not None and 0 < sample.floor_s < 1 and sample.floor)
    assert set(parameters) == set(group.benchmarks)


def test_selections_miss_as_often_as_they_say(emulation: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "LAYERS", 2)
    monkeypatch.setattr(resolver, "STEPS", 4)
    resolver.steady_steps.cache_clear()
    real = Ground(emulation, H200, 2 << 30, None)
    for kernel, misses, hot_rows, resident in (("split_gather", 41, 4096, 0.0), ("split", 20, 8192, 0.5)):
        host, gpu = emulation.empty(2 << 30), emulation.empty(1 << 30)
        point = resolver.make_point(real, host, gpu, kernel, 1, misses, hot_rows, resident)
        sample = take(real, "resolve", point)
        assert sample.status == "ok", sample.reason
        assert sample.median_s == pytest.approx(2e-6 if kernel == "split_gather" else 1e-6), "launches a call"
        assert point.verify is not None
        assert point.verify(3).startswith("the GPU counted")
    resolver.steady_steps.cache_clear()


def test_a_timing_with_gaps_or_wrong_results_has_no_figures(emulation: Library) -> None:
    class Late(Planned):
        def time(self, *_: Any, **__: Any) -> Timed:
            return Timed(np.ones((2, 3)), 1)

    def on(library: Any) -> Ground:
        return Ground(library, H200, 0, None)

    late = take(on(Late(emulation)), "x", Point({"a": 1}))
    assert late.status == "failed" and late.median_s is None and "queued" in late.reason
    wrong = take(on(Planned(emulation)), "x", Point({"a": 1}, [op("null")], verify=lambda n: f"{n} wrong"))
    assert wrong.status == "failed" and wrong.reason == "34 wrong"


def test_a_floor_is_the_longest_of_its_parts(ground: Ground) -> None:
    floor = ground.floor(hbm_bytes=4.8e9, bf16_flop=989.5e9 * 3, link_bytes=1e6)
    assert floor is not None and floor.seconds == pytest.approx(3e-3) and "bf16" in floor.why
    unknown = Ground(ground.gpu, H200, 0, None)
    assert unknown.floor(hbm_bytes=1) is None
